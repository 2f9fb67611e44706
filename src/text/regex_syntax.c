/* Oniguruma syntax to PCRE2 syntax. See regex_syntax.h.
 *
 * A white list: a construct passes only when both engines read it alike (checked over every code
 * point and over the oracle's lines), everything else is refused by name. */
#include "text/regex_syntax.h"

#include "base/error.h"

#include <string.h>

struct translator {
    struct bytes *out;
    const char *in;
    size_t size;
    size_t pos;
    bool in_class;
    struct ferry_error *err;
};

static enum ferry_status refuse(const struct translator *t, const char *what)
{
    size_t begin = t->pos > 12 ? t->pos - 12 : 0;
    size_t n = t->size - begin < 32 ? t->size - begin : 32;
    return FERRY_FAIL(t->err, FERRY_ERR_UNSUPPORTED,
                      "tokenizer: pattern construct not supported: %s at byte %zu (near \"%.*s\")",
                      what, t->pos, (int)n, t->in + begin);
}

static enum ferry_status no_memory(const struct translator *t)
{
    return FERRY_FAIL(t->err, FERRY_ERR_NOMEM, "tokenizer: no memory for a pattern of %zu bytes",
                      t->size);
}

static enum ferry_status put(const struct translator *t, const char *text)
{
    return bytes_append(t->out, text, strlen(text)) ? FERRY_OK : no_memory(t);
}

/* Copies n bytes of the pattern unchanged. */
static enum ferry_status copy(struct translator *t, size_t n)
{
    if (!bytes_append(t->out, t->in + t->pos, n))
        return no_memory(t);
    t->pos += n;
    return FERRY_OK;
}

static int peek(const struct translator *t, size_t ahead)
{
    return t->pos + ahead < t->size ? (unsigned char)t->in[t->pos + ahead] : -1;
}

static bool is_alpha(int c)
{
    return (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z');
}

static bool is_digit(int c)
{
    return c >= '0' && c <= '9';
}

static bool is_hex(int c)
{
    return is_digit(c) || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F');
}

static bool is_general_category(const char *name, size_t n)
{
    return n >= 1 && n <= 2 && strchr("LMNPSZC", name[0]) != NULL &&
           (n == 1 || strchr("ulmtoncedskfipa", name[1]) != NULL);
}

/* \p{L}, \P{Lu}, \p{^M}, \p{Han}: a script is Oniguruma's Script, not Script_Extensions. */
static enum ferry_status property(struct translator *t)
{
    const char *open = t->in + t->pos;
    const char *close = t->pos + 2 < t->size ? memchr(open, '}', t->size - t->pos) : NULL;

    if (close == NULL || open[2] != '{')
        return refuse(t, "\\p without a name in braces");
    const char *name = open + 3;
    bool negated = name < close && *name == '^';
    name += negated;
    size_t n = (size_t)(close - name);
    if (n == 0 || n > 32)
        return refuse(t, "property name");
    for (size_t i = 0; i < n; i++) {
        if (!is_alpha((unsigned char)name[i]) && name[i] != '_')
            return refuse(t, "property name");
    }
    bool category = is_general_category(name, n);
    if (!category && n < 3)
        return refuse(t, "property name");
    if (!bytes_append(t->out, open, 3) || (negated && !bytes_append(t->out, "^", 1)) ||
        (!category && !bytes_append(t->out, "sc:", 3)) || !bytes_append(t->out, name, n + 1))
        return no_memory(t);
    t->pos += (size_t)(close - open) + 1;
    return FERRY_OK;
}

/* \uHHHH, \xHH (ASCII only: above, Oniguruma means a raw byte), \x{...}. */
static enum ferry_status code_point(struct translator *t)
{
    size_t digits = 0;

    if (peek(t, 1) == 'x' && peek(t, 2) == '{') {
        while (is_hex(peek(t, 3 + digits)))
            digits++;
        if (digits == 0 || digits > 6 || peek(t, 3 + digits) != '}')
            return refuse(t, "\\x{...}");
        return copy(t, digits + 4);
    }
    size_t wanted = peek(t, 1) == 'u' ? 4 : 2;
    while (digits < wanted && is_hex(peek(t, 2 + digits)))
        digits++;
    if (digits < wanted || (wanted == 2 && peek(t, 2) >= '8'))
        return refuse(t, "\\x or \\u");
    enum ferry_status st = put(t, "\\x{");
    t->pos += 2;
    if (st == FERRY_OK)
        st = copy(t, wanted);
    return st == FERRY_OK ? put(t, "}") : st;
}

/* Oniguruma's word characters: Alphabetic, marks, decimal digits, connectors, and the numbers of
 * Latin-1. */
#define WORD                                                                                   \
    "\\p{L}\\p{M}\\p{Nd}\\p{Nl}\\p{Pc}\\x{B2}\\x{B3}\\x{B9}\\x{BC}-\\x{BE}\\x{24B6}-\\x{24E9}" \
    "\\x{1F130}-\\x{1F149}\\x{1F150}-\\x{1F169}\\x{1F170}-\\x{1F189}"

static enum ferry_status word_class(struct translator *t, bool negated)
{
    if (negated && t->in_class)
        return refuse(t, "\\W in a class");
    t->pos += 2;
    if (t->in_class)
        return put(t, WORD);
    return put(t, negated ? "[^" WORD "]" : "[" WORD "]");
}

static enum ferry_status escape(struct translator *t)
{
    int c = peek(t, 1);

    switch (c) {
    case -1:
        return refuse(t, "lone backslash");
    case 'p':
    case 'P':
        return property(t);
    case 's':
    case 'S':
    case 'd':
    case 'D':
    case 'r':
    case 'n':
    case 't':
    case 'f':
        return copy(t, 2);
    case 'v': /* PCRE2's \v is a class */
        t->pos += 2;
        return put(t, "\\x0B");
    case 'w':
    case 'W':
        return word_class(t, c == 'W');
    case 'u':
    case 'x':
        return code_point(t);
    case 'A':
    case 'z':
        return t->in_class ? refuse(t, "anchor in a class") : copy(t, 2);
    default:
        break;
    }
    if (is_alpha(c) || is_digit(c))
        return refuse(t, "escape");
    if (c < 0x80)
        return copy(t, 2);
    t->pos++;
    int32_t code;
    return copy(t, utf8_decode(t->in + t->pos, t->size - t->pos, &code));
}

/* After "(": groups without a name, look-around, (?i:...) and a leading (?i). */
static enum ferry_status group(struct translator *t)
{
    if (peek(t, 1) == '*')
        return refuse(t, "(*");
    if (peek(t, 1) != '?')
        return copy(t, 1);
    int c = peek(t, 2);
    if (c == ':' || c == '=' || c == '!' || c == '>')
        return copy(t, 3);
    if (c == '<' && (peek(t, 3) == '=' || peek(t, 3) == '!'))
        return copy(t, 4);
    size_t n = 2;
    while (peek(t, n) == 'i' || peek(t, n) == '-')
        n++;
    if (n > 2 && (peek(t, n) == ':' || (peek(t, n) == ')' && t->pos == 0)))
        return copy(t, n + 1);
    return refuse(t, "group");
}

/* {n}, {n,}, {n,m}; Ruby reads a + behind it as "one or more of", PCRE2 as "possessive". */
static enum ferry_status interval(struct translator *t)
{
    size_t n = 1;

    while (is_digit(peek(t, n)))
        n++;
    if (n == 1)
        return refuse(t, "{ that is no interval");
    bool fixed = peek(t, n) == '}';
    if (peek(t, n) == ',') {
        n++;
        while (is_digit(peek(t, n)))
            n++;
    }
    if (peek(t, n) != '}')
        return refuse(t, "{ that is no interval");
    int next = peek(t, n + 1);
    if (next == '+' || (fixed && next == '?'))
        return refuse(t, "quantifier behind an interval");
    return copy(t, n + 1);
}

static enum ferry_status class_item(struct translator *t, int c)
{
    if (c == ']')
        t->in_class = false;
    if (c == '[')
        return refuse(t, "class in a class");
    if (c == '&' && peek(t, 1) == '&')
        return refuse(t, "class intersection &&");
    return copy(t, 1);
}

static enum ferry_status top_item(struct translator *t, int c)
{
    switch (c) {
    case '[':
        t->in_class = true;
        if (peek(t, 1) == ']' || (peek(t, 1) == '^' && peek(t, 2) == ']'))
            return refuse(t, "] first in a class");
        return copy(t, peek(t, 1) == '^' ? 2 : 1);
    case '(':
        return group(t);
    case '{':
        return interval(t);
    case '^': /* line anchors in Ruby, always */
        t->pos++;
        return put(t, "(?m:^)");
    case '$':
        t->pos++;
        return put(t, "(?m:$)");
    default:
        return copy(t, 1);
    }
}

enum ferry_status regex_translate(struct bytes *ret, const char *pattern, size_t n_bytes,
                                  struct ferry_error *err)
{
    struct translator t = {.out = ret, .in = pattern, .size = n_bytes, .err = err};
    enum ferry_status st = FERRY_OK;

    if (utf8_valid_size(pattern, n_bytes) != n_bytes)
        return FERRY_FAIL(err, FERRY_ERR_FORMAT, "tokenizer: a pattern is not UTF-8");
    while (t.pos < t.size && st == FERRY_OK) {
        int c = peek(&t, 0);
        if (c == 0)
            return refuse(&t, "byte 0");
        if (c >= 0x80)
            st = copy(&t, 1);
        else if (c == '\\')
            st = escape(&t);
        else
            st = t.in_class ? class_item(&t, c) : top_item(&t, c);
    }
    return st;
}

bool regex_quote(struct bytes *ret, const char *text, size_t n_bytes)
{
    for (size_t i = 0; i < n_bytes; i++) {
        unsigned char c = (unsigned char)text[i];
        bool plain = c >= 0x80 || is_alpha(c) || is_digit(c) || c < 0x20 || c == ' ' || c == 0x7F;
        if ((!plain && !bytes_append(ret, "\\", 1)) || !bytes_append(ret, text + i, 1))
            return false;
    }
    return true;
}
