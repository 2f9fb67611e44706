/* PCRE2 behind the reference's iteration rules. See regex.h. */
#include "text/regex.h"

#include "base/alloc.h"
#include "base/error.h"
#include "base/size.h"
#include "text/regex_syntax.h"
#include "text/unicode.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include <string.h>

enum {
    PATTERN_BYTES_MAX = 1 << 16,
    GROUPS_DEPTH_MAX = 64,
    HEAP_LIMIT_KIB = 256 << 10, /* the interpreter's backtracking frames */
    MATCH_STEPS_MIN = 1000000,
    MATCH_STEPS_PER_BYTE = 64, /* on top: a long subject may backtrack once over itself */
    JIT_STACK_MIN = 64 << 10,
    JIT_STACK_MAX = 16 << 20,
};

struct regex {
    pcre2_code *code;
    bool jitted;
};

struct regex_matcher {
    pcre2_match_data *data;
    pcre2_match_context *context;
    pcre2_jit_stack *stack; /* NULL: machine stack only */
};

static void *pcre_alloc(size_t n_bytes, void *tag)
{
    (void)tag;
    return mem_alloc(n_bytes);
}

static void pcre_free(void *p, void *tag)
{
    (void)tag;
    mem_free(p);
}

static enum ferry_status compile_failed(int code, size_t at, const char *pattern, size_t n_bytes,
                                        struct ferry_error *err)
{
    char text[160] = "unknown error";

    if (code == PCRE2_ERROR_HEAP_FAILED || code == PCRE2_ERROR_NOMEMORY)
        return FERRY_FAIL(err, FERRY_ERR_NOMEM, "tokenizer: no memory to compile a pattern");
    (void)pcre2_get_error_message(code, (PCRE2_UCHAR *)text, sizeof text);
    return FERRY_FAIL(err, FERRY_ERR_FORMAT,
                      "tokenizer: pattern does not compile: %s at byte %zu of \"%.*s\"", text, at,
                      (int)min_size(n_bytes, 80), pattern);
}

/* Compiles PCRE2 syntax. Without executable memory the interpreter does the work. */
static enum ferry_status compile(struct regex **ret_regex, const struct bytes *pattern,
                                 struct ferry_error *err)
{
    enum ferry_status st;
    int code = PCRE2_ERROR_HEAP_FAILED;
    PCRE2_SIZE at = 0;
    struct regex *regex = mem_zero(sizeof *regex);
    pcre2_general_context *general = pcre2_general_context_create(pcre_alloc, pcre_free, NULL);
    pcre2_compile_context *context = general == NULL ? NULL : pcre2_compile_context_create(general);

    if (regex != NULL && context != NULL) {
        (void)pcre2_set_newline(context, PCRE2_NEWLINE_LF);
        (void)pcre2_set_parens_nest_limit(context, GROUPS_DEPTH_MAX);
        regex->code =
            pcre2_compile((PCRE2_SPTR)pattern->data, pattern->size,
                          PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C, &code, &at, context);
    }
    if (regex == NULL || regex->code == NULL) {
        st = compile_failed(code, at, pattern->data, pattern->size, err);
        goto out;
    }
    regex->jitted = pcre2_jit_compile(regex->code, PCRE2_JIT_COMPLETE) == 0;
    *ret_regex = regex;
    regex = NULL;
    st = FERRY_OK;
out:
    pcre2_compile_context_free(context);
    pcre2_general_context_free(general);
    regex_destroy(regex);
    return st;
}

enum ferry_status regex_create(struct regex **ret_regex, const char *pattern, size_t n_bytes,
                               struct ferry_error *err)
{
    struct bytes text = {0};

    if (n_bytes == 0)
        return FERRY_FAIL(err, FERRY_ERR_FORMAT, "tokenizer: empty pattern");
    if (n_bytes > PATTERN_BYTES_MAX)
        return FERRY_FAIL(err, FERRY_ERR_LIMIT, "tokenizer: pattern of %zu bytes (limit %d)",
                          n_bytes, PATTERN_BYTES_MAX);
    enum ferry_status st = regex_translate(&text, pattern, n_bytes, err);
    if (st == FERRY_OK)
        st = compile(ret_regex, &text, err);
    bytes_fini(&text);
    return st;
}

enum ferry_status regex_create_literal(struct regex **ret_regex, const char *text, size_t n_bytes,
                                       struct ferry_error *err)
{
    struct bytes quoted = {0};
    enum ferry_status st;

    if (n_bytes == 0 || utf8_valid_size(text, n_bytes) != n_bytes)
        return FERRY_FAIL(err, FERRY_ERR_FORMAT, "tokenizer: a pattern string is %s",
                          n_bytes == 0 ? "empty" : "not UTF-8");
    if (n_bytes > PATTERN_BYTES_MAX)
        return FERRY_FAIL(err, FERRY_ERR_LIMIT, "tokenizer: pattern of %zu bytes (limit %d)",
                          n_bytes, PATTERN_BYTES_MAX);
    if (regex_quote(&quoted, text, n_bytes))
        st = compile(ret_regex, &quoted, err);
    else
        st = FERRY_FAIL(err, FERRY_ERR_NOMEM, "tokenizer: no memory for a pattern");
    bytes_fini(&quoted);
    return st;
}

void regex_destroy(struct regex *regex)
{
    if (regex == NULL)
        return;
    pcre2_code_free(regex->code);
    mem_free(regex);
}

bool regex_is_jitted(const struct regex *regex)
{
    return regex->jitted;
}

enum ferry_status regex_matcher_create(struct regex_matcher **ret_matcher, struct ferry_error *err)
{
    enum ferry_status st = FERRY_ERR_NOMEM;
    struct regex_matcher *matcher = mem_zero(sizeof *matcher);
    pcre2_general_context *general = pcre2_general_context_create(pcre_alloc, pcre_free, NULL);

    if (matcher == NULL || general == NULL)
        goto out;
    matcher->data = pcre2_match_data_create(1, general);
    matcher->context = pcre2_match_context_create(general);
    if (matcher->data == NULL || matcher->context == NULL)
        goto out;
    (void)pcre2_set_heap_limit(matcher->context, HEAP_LIMIT_KIB);
    matcher->stack = pcre2_jit_stack_create(JIT_STACK_MIN, JIT_STACK_MAX, general);
    if (matcher->stack != NULL)
        pcre2_jit_stack_assign(matcher->context, NULL, matcher->stack);
    *ret_matcher = matcher;
    matcher = NULL;
    st = FERRY_OK;
out:
    pcre2_general_context_free(general);
    regex_matcher_destroy(matcher);
    if (st != FERRY_OK)
        return FERRY_FAIL(err, st, "tokenizer: no memory for pattern matching");
    return st;
}

void regex_matcher_destroy(struct regex_matcher *matcher)
{
    if (matcher == NULL)
        return;
    pcre2_jit_stack_free(matcher->stack);
    pcre2_match_context_free(matcher->context);
    pcre2_match_data_free(matcher->data);
    mem_free(matcher);
}

static enum ferry_status match_failed(int rc, size_t n_bytes, struct ferry_error *err)
{
    char text[160] = "unknown error";

    if (rc == PCRE2_ERROR_NOMEMORY)
        return FERRY_FAIL(err, FERRY_ERR_NOMEM, "tokenizer: no memory to match a pattern");
    (void)pcre2_get_error_message(rc, (PCRE2_UCHAR *)text, sizeof text);
    return FERRY_FAIL(err, FERRY_ERR_LIMIT,
                      "tokenizer: splitting %zu bytes of text by the model's pattern failed: %s",
                      n_bytes, text);
}

void regex_cursor_fini(struct regex_cursor *cursor)
{
    bytes_fini(&cursor->stand_ins);
}

/* First call of an iteration: the step limit, and stand-ins for characters newer than PCRE2. */
static enum ferry_status begin(const char *subject, size_t n_bytes, struct regex_cursor *cursor,
                               struct ferry_error *err)
{
    size_t steps =
        MATCH_STEPS_MIN + min_size(n_bytes, (INT32_MAX - MATCH_STEPS_MIN) / MATCH_STEPS_PER_BYTE) *
                              MATCH_STEPS_PER_BYTE;
    size_t i = unicode_find_newer(subject, n_bytes);

    cursor->steps = (uint32_t)steps;
    cursor->has_begun = true;
    if (i == n_bytes)
        return FERRY_OK;
    if (!bytes_append(&cursor->stand_ins, subject, n_bytes))
        return FERRY_FAIL(err, FERRY_ERR_NOMEM, "tokenizer: no memory to match a pattern");
    while (i < n_bytes) {
        int32_t code;
        char text[4];
        size_t size = utf8_decode(subject + i, n_bytes - i, &code);
        memcpy(cursor->stand_ins.data + i, text, utf8_encode(unicode_stand_in(code), text));
        i += size;
        i += unicode_find_newer(subject + i, n_bytes - i);
    }
    return FERRY_OK;
}

/* One search from cursor->next; PCRE2's return code. The limit is set anew each time: between two
 * searches of this iteration the matcher may have served others, over shorter subjects. */
static int search(const struct regex *regex, const struct regex_matcher *matcher,
                  const char *subject, size_t n_bytes, const struct regex_cursor *cursor)
{
    PCRE2_SPTR text = (PCRE2_SPTR)(cursor->stand_ins.size > 0 ? cursor->stand_ins.data : subject);
    (void)pcre2_set_match_limit(matcher->context, cursor->steps);
    int rc = pcre2_match(regex->code, text, n_bytes, cursor->next, PCRE2_NO_UTF_CHECK,
                         matcher->data, matcher->context);
    if (rc == PCRE2_ERROR_JIT_STACKLIMIT)
        rc = pcre2_match(regex->code, text, n_bytes, cursor->next,
                         PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT, matcher->data, matcher->context);
    return rc;
}

enum ferry_status regex_next(const struct regex *regex, struct regex_matcher *matcher,
                             const char *subject, size_t n_bytes, struct regex_cursor *cursor,
                             size_t *ret_start, size_t *ret_end, struct ferry_error *err)
{
    enum ferry_status st = cursor->has_begun ? FERRY_OK : begin(subject, n_bytes, cursor, err);

    if (st != FERRY_OK)
        return st;
    while (cursor->next <= n_bytes) {
        int rc = search(regex, matcher, subject, n_bytes, cursor);
        if (rc == PCRE2_ERROR_NOMATCH)
            break;
        if (rc < 0) {
            regex_cursor_fini(cursor);
            return match_failed(rc, n_bytes, err);
        }
        const PCRE2_SIZE *range = pcre2_get_ovector_pointer(matcher->data);
        if (range[0] == range[1] && cursor->has_matched && cursor->last_end == range[1]) {
            int32_t code;
            cursor->next += cursor->next < n_bytes
                                ? utf8_decode(subject + cursor->next, n_bytes - cursor->next, &code)
                                : 1;
            continue;
        }
        cursor->next = range[1];
        cursor->last_end = range[1];
        cursor->has_matched = true;
        *ret_start = range[0];
        *ret_end = range[1];
        return FERRY_OK;
    }
    regex_cursor_fini(cursor);
    return FERRY_EOF;
}
