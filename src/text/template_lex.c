/* Tokens of chat templates. See template_lex.h. Source of the rules: the documentation of jinja2
 * and tests against it (tools/oracle_template). */
#include "text/template_lex.h"

#include "base/alloc.h"
#include "base/error.h"
#include "base/limits.h"
#include "text/template_text.h"
#include "text/unicode.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

struct lexer {
    struct tpl_tokens *tokens;
    struct tpl_pool *pool;
    const char *source; /* line ends are \n */
    size_t n;
    size_t at;
    size_t counted; /* line is the number of the line that holds this offset */
    int line;
    char brackets[LIMIT_TEMPLATE_DEPTH]; /* closing ones that are due */
    int n_brackets;
    struct ferry_error *err;
};

static enum ferry_status no_memory(const struct lexer *lexer)
{
    if (lexer->pool->over)
        return FERRY_FAIL(lexer->err, FERRY_ERR_LIMIT, "chat template: more than %zu bytes (limit)",
                          lexer->pool->limit);
    return FERRY_FAIL(lexer->err, FERRY_ERR_NOMEM, "chat template: out of memory");
}

static int line_of(struct lexer *lexer, size_t at)
{
    for (; lexer->counted < at; lexer->counted++)
        lexer->line += lexer->source[lexer->counted] == '\n';
    return lexer->line;
}

static enum ferry_status push(struct lexer *lexer, struct tpl_token token)
{
    struct tpl_tokens *tokens = lexer->tokens;

    if (tokens->n == tokens->capacity) {
        size_t capacity = tokens->capacity * 2 + 64;
        struct tpl_token *grown =
            mem_resize(tokens->tokens, tokens->capacity * sizeof *grown, capacity * sizeof *grown);
        if (grown == NULL)
            return no_memory(lexer);
        tokens->tokens = grown;
        tokens->capacity = capacity;
    }
    tokens->tokens[tokens->n++] = token;
    return FERRY_OK;
}

static enum ferry_status push_plain(struct lexer *lexer, enum tpl_token_kind kind, size_t at,
                                    size_t size)
{
    return push(lexer, (struct tpl_token){.kind = kind,
                                          .line = line_of(lexer, at),
                                          .text = lexer->source + at,
                                          .size = size});
}

static bool starts(const struct lexer *lexer, size_t at, const char *text)
{
    size_t n = strlen(text);
    return lexer->n - at >= n && memcmp(lexer->source + at, text, n) == 0;
}

/* Offset behind the white space at `at`. */
static size_t skip_space(const struct lexer *lexer, size_t at)
{
    return at + tpl_space_size(lexer->source + at, lexer->n - at);
}

/* Text [start, end) in front of a tag, without what the tag eats of it. sign: the character behind
 * the opening delimiter. */
static enum ferry_status push_data(struct lexer *lexer, size_t start, size_t end, char sign,
                                   bool is_variable)
{
    const char *s = lexer->source;

    if (sign == '-') {
        end = start + tpl_rstrip_size(s + start, end - start);
    } else if (sign != '+' && !is_variable) {
        size_t line_start = end;
        while (line_start > start && s[line_start - 1] != '\n')
            line_start--;
        bool at_line_start = line_start > 0 ? s[line_start - 1] == '\n' : true;
        if (at_line_start && tpl_space_size(s + line_start, end - line_start) == end - line_start)
            end = line_start;
    }
    if (end == start)
        return FERRY_OK;
    return push_plain(lexer, TOKEN_DATA, start, end - start);
}

static char sign_at(const struct lexer *lexer, size_t at)
{
    if (at < lexer->n && (lexer->source[at] == '-' || lexer->source[at] == '+'))
        return lexer->source[at];
    return 0;
}

/* The end of a block or comment at `at`: its length with what it eats, 0 when there is none. */
static size_t closing_size(const struct lexer *lexer, size_t at, const char *delimiter)
{
    char sign = sign_at(lexer, at);
    size_t end = at + (sign != 0);

    if (!starts(lexer, end, delimiter))
        return 0;
    end += 2;
    if (sign == '-')
        end = skip_space(lexer, end);
    else if (sign == 0 && end < lexer->n && lexer->source[end] == '\n')
        end++;
    return end - at;
}

static enum ferry_status lex_comment(struct lexer *lexer, size_t open)
{
    size_t at = open + 2 + (sign_at(lexer, open + 2) != 0);

    lexer->at = at;
    if (at == lexer->n) /* as jinja2: nothing to comment on */
        return FERRY_OK;
    for (; at < lexer->n; at++) {
        size_t size = closing_size(lexer, at, "#}");
        if (size > 0) {
            lexer->at = at + size;
            return FERRY_OK;
        }
    }
    return FERRY_FAIL(lexer->err, FERRY_ERR_FORMAT,
                      "chat template line %d: a comment without its end #}", line_of(lexer, open));
}

/* Length of "{%- name" and white space behind it at `at`, 0 when something else stands there. */
static size_t tag_size(const struct lexer *lexer, size_t at, const char *name)
{
    if (!starts(lexer, at, "{%"))
        return 0;
    size_t end = at + 2;
    end = skip_space(lexer, end + (sign_at(lexer, end) != 0));
    if (!starts(lexer, end, name))
        return 0;
    return skip_space(lexer, end + strlen(name)) - at;
}

/* Length of a tag that begins raw text, 0 when it is none. */
static size_t raw_begin_size(const struct lexer *lexer, size_t at)
{
    size_t size = tag_size(lexer, at, "raw");

    if (size == 0)
        return 0;
    if (starts(lexer, at + size, "-%}"))
        return skip_space(lexer, at + size + 3) - at;
    return starts(lexer, at + size, "%}") ? size + 2 : 0;
}

static enum ferry_status lex_raw(struct lexer *lexer, size_t open, size_t begin_size)
{
    size_t start = open + begin_size;

    lexer->at = start;
    if (start == lexer->n)
        return FERRY_OK;
    for (size_t at = start; at < lexer->n; at++) {
        size_t size = lexer->source[at] == '{' ? tag_size(lexer, at, "endraw") : 0;
        size_t closing = size == 0 ? 0 : closing_size(lexer, at + size, "%}");
        if (closing == 0)
            continue;
        lexer->at = at + size + closing;
        return push_data(lexer, start, at, sign_at(lexer, at + 2), false);
    }
    return FERRY_FAIL(lexer->err, FERRY_ERR_FORMAT, "chat template line %d: raw without its endraw",
                      line_of(lexer, open));
}

static bool is_name_byte(unsigned char c)
{
    return c == '_' || c >= 0x80 || (c >= '0' && c <= '9') || ((c | 32) >= 'a' && (c | 32) <= 'z');
}

static bool is_digit(const struct lexer *lexer, size_t at)
{
    return at < lexer->n && lexer->source[at] >= '0' && lexer->source[at] <= '9';
}

/* Offset behind digits with single '_' between them. */
static size_t skip_digits(const struct lexer *lexer, size_t at)
{
    while (is_digit(lexer, at) ||
           (at < lexer->n && lexer->source[at] == '_' && is_digit(lexer, at + 1)))
        at++;
    return at;
}

enum { NUMBER_MAX = 64 };

static enum ferry_status lex_number(struct lexer *lexer)
{
    const char *s = lexer->source;
    size_t start = lexer->at;
    size_t end = skip_digits(lexer, start);
    struct tpl_token token = {.kind = TOKEN_INT, .line = line_of(lexer, start)};

    if (start == 0 || s[start - 1] != '.') {
        if (end < lexer->n && s[end] == '.' && is_digit(lexer, end + 1)) {
            token.kind = TOKEN_FLOAT;
            end = skip_digits(lexer, end + 1);
        }
        size_t exponent = end + 1;
        if (end < lexer->n && (s[end] | 32) == 'e') {
            exponent += exponent < lexer->n && (s[exponent] == '+' || s[exponent] == '-');
            if (is_digit(lexer, exponent)) {
                token.kind = TOKEN_FLOAT;
                end = skip_digits(lexer, exponent);
            }
        }
    }
    char text[NUMBER_MAX];
    size_t n = 0;
    for (size_t i = start; i < end && n < NUMBER_MAX - 1; i++) {
        if (s[i] != '_')
            text[n++] = s[i];
    }
    text[n] = 0;
    bool is_odd =
        end - start >= NUMBER_MAX || (end < lexer->n && is_name_byte((unsigned char)s[end]));
    if (token.kind == TOKEN_FLOAT) {
        token.f = strtod(text, NULL);
    } else {
        errno = 0;
        is_odd = is_odd || (text[0] == '0' && strspn(text, "0") != n);
        token.i = strtoll(text, NULL, 10);
        is_odd = is_odd || errno == ERANGE;
    }
    if (is_odd)
        return FERRY_FAIL(
            lexer->err, FERRY_ERR_UNSUPPORTED,
            "chat template line %d: the number %.40s is not handled (decimal, below 2^63)",
            token.line, text);
    lexer->at = end;
    return push(lexer, token);
}

/* Value of up to n_max digits of base 8 or 16; *at moves behind them. */
static int32_t read_digits(const struct lexer *lexer, size_t *at, size_t end, int n_max, int base,
                           int *ret_n)
{
    int32_t value = 0;

    for (*ret_n = 0; *ret_n < n_max && *at < end; (*ret_n)++, (*at)++) {
        unsigned char c = (unsigned char)lexer->source[*at];
        int digit = c >= '0' && c <= '9'                 ? c - '0'
                    : (c | 32) >= 'a' && (c | 32) <= 'f' ? (c | 32) - 'a' + 10
                                                         : 16;
        if (digit >= base)
            break;
        value = value * base + digit;
    }
    return value;
}

/* One escape of a string literal; *at stands behind the backslash. False: not handled. */
static bool unescape(const struct lexer *lexer, size_t *at, size_t end, char *out, size_t *n)
{
    static const char FROM[] = "\\'\"abfnrtv";
    static const char TO[] = "\\'\"\a\b\f\n\r\t\v";
    char c = lexer->source[*at];
    const char *simple = strchr(FROM, c);
    int digits = 0;
    int32_t code;

    if (c != 0 && simple != NULL) {
        out[(*n)++] = TO[simple - FROM];
        (*at)++;
        return true;
    }
    if (c == '\n') {
        (*at)++;
        return true;
    }
    if (c >= '0' && c <= '7') {
        code = read_digits(lexer, at, end, 3, 8, &digits);
    } else if (c == 'x' || c == 'u' || c == 'U') {
        int want = c == 'x' ? 2 : c == 'u' ? 4 : 8;
        (*at)++;
        code = read_digits(lexer, at, end, want == 8 ? 7 : want, 16, &digits);
        if (want == 8 && digits == 7) { /* the first digit can only be 0 */
            int32_t last = read_digits(lexer, at, end, 1, 16, &digits);
            digits = digits == 1 ? 8 : 7;
            code = code > 0x10FFFF ? 0x110000 : code * 16 + last;
        }
        if (digits != want || code > 0x10FFFF || (code >= 0xD800 && code <= 0xDFFF))
            return false;
    } else if (c == 'N') {
        return false;
    } else {
        out[(*n)++] = '\\'; /* as Python keeps it */
        return true;
    }
    *n += utf8_encode(code, out + *n);
    return true;
}

static enum ferry_status lex_string(struct lexer *lexer)
{
    size_t start = lexer->at + 1;
    size_t end = start;
    char quote = lexer->source[lexer->at];
    int line = line_of(lexer, lexer->at);

    while (end < lexer->n && lexer->source[end] != quote)
        end += lexer->source[end] == '\\' ? 2 : 1;
    if (end >= lexer->n)
        return FERRY_FAIL(lexer->err, FERRY_ERR_FORMAT,
                          "chat template line %d: a string without its end", line);
    char *text = tpl_pool_get(lexer->pool, end - start + 1); /* no escape makes it longer */
    size_t n = 0;
    if (text == NULL)
        return no_memory(lexer);
    for (size_t at = start; at < end;) {
        char c = lexer->source[at++];
        if (c != '\\')
            text[n++] = c;
        else if (!unescape(lexer, &at, end, text, &n))
            return FERRY_FAIL(
                lexer->err, FERRY_ERR_UNSUPPORTED,
                "chat template line %d: an escape \\%c in a string that is not handled", line,
                lexer->source[at - (at > start && lexer->source[at - 1] == 'U')]);
    }
    lexer->at = end + 1;
    return push(lexer,
                (struct tpl_token){.kind = TOKEN_STRING, .line = line, .text = text, .size = n});
}

static const struct {
    char text[3];
    enum tpl_token_kind kind;
    char close; /* of an opening bracket */
} OPERATORS[] = {
    {"//", TOKEN_FLOORDIV, 0},  {"**", TOKEN_POW, 0},     {"==", TOKEN_EQ, 0},
    {"!=", TOKEN_NE, 0},        {"<=", TOKEN_LE, 0},      {">=", TOKEN_GE, 0},
    {"<", TOKEN_LT, 0},         {">", TOKEN_GT, 0},       {"=", TOKEN_ASSIGN, 0},
    {"+", TOKEN_ADD, 0},        {"-", TOKEN_SUB, 0},      {"*", TOKEN_MUL, 0},
    {"/", TOKEN_DIV, 0},        {"%", TOKEN_MOD, 0},      {"~", TOKEN_TILDE, 0},
    {".", TOKEN_DOT, 0},        {":", TOKEN_COLON, 0},    {"|", TOKEN_PIPE, 0},
    {",", TOKEN_COMMA, 0},      {"(", TOKEN_LPAREN, ')'}, {")", TOKEN_RPAREN, 0},
    {"[", TOKEN_LBRACKET, ']'}, {"]", TOKEN_RBRACKET, 0}, {"{", TOKEN_LBRACE, '}'},
    {"}", TOKEN_RBRACE, 0},
};

static enum ferry_status lex_operator(struct lexer *lexer)
{
    size_t i = 0;
    size_t n_operators = sizeof OPERATORS / sizeof OPERATORS[0];
    int line = line_of(lexer, lexer->at);

    while (i < n_operators && !starts(lexer, lexer->at, OPERATORS[i].text))
        i++;
    if (i == n_operators) {
        unsigned char c = (unsigned char)lexer->source[lexer->at];
        return FERRY_FAIL(lexer->err, FERRY_ERR_FORMAT,
                          "chat template line %d: unexpected character '%c' (byte 0x%02X)", line,
                          c >= 0x20 && c < 0x7F ? c : '?', (unsigned)c);
    }
    enum tpl_token_kind kind = OPERATORS[i].kind;
    if (OPERATORS[i].close != 0) {
        if (lexer->n_brackets == LIMIT_TEMPLATE_DEPTH)
            return FERRY_FAIL(lexer->err, FERRY_ERR_LIMIT,
                              "chat template line %d: more than %d open brackets (limit)", line,
                              (int)LIMIT_TEMPLATE_DEPTH);
        lexer->brackets[lexer->n_brackets++] = OPERATORS[i].close;
    } else if (kind == TOKEN_RPAREN || kind == TOKEN_RBRACKET || kind == TOKEN_RBRACE) {
        if (lexer->n_brackets == 0 || lexer->brackets[--lexer->n_brackets] != OPERATORS[i].text[0])
            return FERRY_FAIL(lexer->err, FERRY_ERR_FORMAT,
                              "chat template line %d: unexpected '%s'", line, OPERATORS[i].text);
    }
    size_t size = strlen(OPERATORS[i].text);
    enum ferry_status st = push_plain(lexer, kind, lexer->at, size);
    lexer->at += size;
    return st;
}

/* Length of the end of a print statement at `at`, 0 when there is none. */
static size_t variable_end_size(const struct lexer *lexer, size_t at)
{
    if (starts(lexer, at, "-}}"))
        return skip_space(lexer, at + 3) - at;
    return starts(lexer, at, "}}") ? 2 : 0;
}

/* Everything between an opening delimiter and its closing one. */
static enum ferry_status lex_inside(struct lexer *lexer, bool is_variable)
{
    lexer->n_brackets = 0;
    for (;;) {
        lexer->at = skip_space(lexer, lexer->at);
        if (lexer->at >= lexer->n)
            return push_plain(lexer, TOKEN_END, lexer->n, 0);
        if (lexer->n_brackets == 0) {
            size_t size = is_variable ? variable_end_size(lexer, lexer->at)
                                      : closing_size(lexer, lexer->at, "%}");
            if (size > 0) {
                enum ferry_status st = push_plain(
                    lexer, is_variable ? TOKEN_VARIABLE_END : TOKEN_BLOCK_END, lexer->at, size);
                lexer->at += size;
                return st;
            }
        }
        unsigned char c = (unsigned char)lexer->source[lexer->at];
        enum ferry_status st;
        if (c == '\'' || c == '"') {
            st = lex_string(lexer);
        } else if (is_digit(lexer, lexer->at)) {
            st = lex_number(lexer);
        } else if (is_name_byte(c)) {
            size_t end = lexer->at;
            while (end < lexer->n && is_name_byte((unsigned char)lexer->source[end]))
                end++;
            st = push_plain(lexer, TOKEN_NAME, lexer->at, end - lexer->at);
            lexer->at = end;
        } else {
            st = lex_operator(lexer);
        }
        if (st != FERRY_OK)
            return st;
    }
}

/* One stretch of text and the tag behind it. */
static enum ferry_status lex_next(struct lexer *lexer)
{
    size_t start = lexer->at;
    size_t open = start;

    while (open < lexer->n &&
           !(lexer->source[open] == '{' && open + 1 < lexer->n &&
             strchr("%{#", lexer->source[open + 1]) != NULL && lexer->source[open + 1] != 0))
        open++;
    if (open == lexer->n) {
        lexer->at = open;
        return open == start ? FERRY_OK : push_plain(lexer, TOKEN_DATA, start, open - start);
    }
    char sign = sign_at(lexer, open + 2);
    bool is_variable = lexer->source[open + 1] == '{';
    enum ferry_status st = push_data(lexer, start, open, sign, is_variable);
    if (st != FERRY_OK)
        return st;
    if (lexer->source[open + 1] == '#')
        return lex_comment(lexer, open);
    size_t raw = raw_begin_size(lexer, open);
    if (raw > 0)
        return lex_raw(lexer, open, raw);
    lexer->at = open + 2 + (sign != 0);
    st = push_plain(lexer, is_variable ? TOKEN_VARIABLE_BEGIN : TOKEN_BLOCK_BEGIN, open, 2);
    return st == FERRY_OK ? lex_inside(lexer, is_variable) : st;
}

enum ferry_status tpl_lex(struct tpl_tokens *ret, struct tpl_pool *pool, const char *source,
                          size_t n_bytes, struct ferry_error *err)
{
    struct lexer lexer = {.tokens = ret, .pool = pool, .line = 1, .err = err};

    if (n_bytes > LIMIT_TEMPLATE_SOURCE)
        return FERRY_FAIL(err, FERRY_ERR_LIMIT, "chat template: %zu bytes of source (limit %d)",
                          n_bytes, (int)LIMIT_TEMPLATE_SOURCE);
    if (utf8_valid_size(source, n_bytes) != n_bytes)
        return FERRY_FAIL(err, FERRY_ERR_FORMAT, "chat template: the source is not UTF-8");
    char *text = tpl_pool_get(pool, n_bytes + 1);
    if (text == NULL)
        return no_memory(&lexer);
    for (size_t i = 0; i < n_bytes; i++) {
        if (source[i] == '\r' && i + 1 < n_bytes && source[i + 1] == '\n')
            continue;
        text[lexer.n++] = source[i] == '\r' ? '\n' : source[i];
    }
    if (lexer.n > 0 && text[lexer.n - 1] == '\n')
        lexer.n--;
    text[lexer.n] = 0;
    lexer.source = text;
    enum ferry_status st = FERRY_OK;
    while (st == FERRY_OK && lexer.at < lexer.n)
        st = lex_next(&lexer);
    return st == FERRY_OK ? push_plain(&lexer, TOKEN_END, lexer.n, 0) : st;
}

void tpl_tokens_fini(struct tpl_tokens *tokens)
{
    mem_free(tokens->tokens);
    *tokens = (struct tpl_tokens){0};
}

const char *tpl_token_name(enum tpl_token_kind kind)
{
    static const char *const NAMES[] = {
        [TOKEN_END] = "the end of the template",
        [TOKEN_DATA] = "text",
        [TOKEN_BLOCK_BEGIN] = "'{%'",
        [TOKEN_BLOCK_END] = "the end of the tag",
        [TOKEN_VARIABLE_BEGIN] = "'{{'",
        [TOKEN_VARIABLE_END] = "the end of the tag",
        [TOKEN_NAME] = "a name",
        [TOKEN_STRING] = "a string",
        [TOKEN_INT] = "a number",
        [TOKEN_FLOAT] = "a number",
        [TOKEN_ASSIGN] = "'='",
        [TOKEN_COLON] = "':'",
        [TOKEN_COMMA] = "','",
        [TOKEN_LPAREN] = "'('",
        [TOKEN_RPAREN] = "')'",
        [TOKEN_RBRACKET] = "']'",
        [TOKEN_RBRACE] = "'}'",
        [TOKEN_PIPE] = "'|'",
    };

    return (size_t)kind < sizeof NAMES / sizeof NAMES[0] && NAMES[kind] != NULL ? NAMES[kind]
                                                                                : "an operator";
}
