/* Bodies of requests. See openai_body.h. */
#include "serve/openai_body.h"

#include "file/json.h"
#include "serve/openai_request.h"
#include "text/unicode.h"

#include <errno.h>
#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { NUMBER_BYTES_MAX = 400 }; /* DBL_MAX written out has 309 digits */

/* A walk over the bytes before anything is built. Exact for well-formed JSON; for the rest the
 * parser has the last word. */
struct scan {
    const char *s;
    size_t size, at;
    size_t depth;
    const char *string, *key; /* the last string; the last one before a colon of the outer object */
    size_t string_size, key_size;
};

static void skip_string(struct scan *scan)
{
    size_t start = ++scan->at;

    while (scan->at < scan->size && scan->s[scan->at] != '"')
        scan->at += scan->s[scan->at] == '\\' ? 2 : 1;
    if (scan->at > scan->size)
        scan->at = scan->size;
    scan->string = scan->s + start;
    scan->string_size = scan->at - start;
    scan->at++;
}

static bool has_prefix(const struct scan *scan, const char *word)
{
    size_t n = strlen(word);
    return scan->size - scan->at >= n && memcmp(scan->s + scan->at, word, n) == 0;
}

/* Whether a token of digits, signs, point and exponent is a number that int64_t or double hold; so
 * is everything that is no number at all. */
static bool number_fits(const char *s, size_t n)
{
    char text[NUMBER_BYTES_MAX + 1];
    bool real = false;

    if (n > NUMBER_BYTES_MAX)
        return false;
    memcpy(text, s, n);
    text[n] = 0;
    for (size_t i = 0; i < n; i++)
        real = real || s[i] == '.' || s[i] == 'e' || s[i] == 'E';
    errno = 0;
    if (real)
        return isfinite(strtod(text, NULL));
    (void)strtoll(text, NULL, 10);
    return errno == 0;
}

/* At a sign, a digit, or the first letter of the names that some programs write for what JSON does
 * not have. False: a number that must be refused. */
static bool skip_number(struct scan *scan)
{
    size_t start = scan->at;

    if (has_prefix(scan, "NaN") || has_prefix(scan, "Infinity") || has_prefix(scan, "-Infinity"))
        return false;
    while (scan->at < scan->size && strchr("+-.eE0123456789", scan->s[scan->at]) != NULL &&
           scan->s[scan->at] != 0)
        scan->at++;
    if (scan->at == start) /* a letter that begins something else */
        scan->at++;
    return number_fits(scan->s + start, scan->at - start);
}

static enum ferry_status bad_number(const struct scan *scan, size_t n_bytes,
                                    struct openai_error *err)
{
    size_t n = scan->key_size < sizeof err->param ? scan->key_size : sizeof err->param - 1;

    if (n_bytes > NUMBER_BYTES_MAX)
        (void)openai_error_set(err, FERRY_ERR_ARG,
                               "the number at byte offset %zu has %zu characters; the most are %d",
                               scan->at, n_bytes, (int)NUMBER_BYTES_MAX);
    else
        (void)openai_error_set(err, FERRY_ERR_ARG,
                               "the number at byte offset %zu is not finite or too large to be "
                               "read",
                               scan->at);
    openai_error_param(err, "%.*s", (int)n, scan->key == NULL ? "" : scan->key);
    return FERRY_ERR_ARG;
}

static enum ferry_status check_numbers(const char *s, size_t size, struct openai_error *err)
{
    struct scan scan = {.s = s, .size = size};

    while (scan.at < scan.size) {
        char c = s[scan.at];
        if (c == '"') {
            skip_string(&scan);
            continue;
        }
        if (c == '-' || c == 'N' || c == 'I' || (c >= '0' && c <= '9')) {
            struct scan before = scan;
            if (!skip_number(&scan))
                return bad_number(&before, scan.at - before.at, err);
            continue;
        }
        if (c == '{' || c == '[')
            scan.depth++;
        else if ((c == '}' || c == ']') && scan.depth > 0)
            scan.depth--;
        else if (c == ':' && scan.depth == 1) {
            scan.key = scan.string;
            scan.key_size = scan.string_size;
        }
        scan.at++;
    }
    return FERRY_OK;
}

enum ferry_status openai_body_parse(json_t **ret_json, const void *body, size_t size,
                                    size_t max_values, struct openai_error *err)
{
    static const char NAME[] = "request body";
    const char *s = body;
    struct ferry_error cause = {0};
    json_t *json = NULL;

    if (size > OPENAI_BODY_MAX)
        return openai_error_set(err, FERRY_ERR_LIMIT, "%s: %zu bytes, the most are %d", NAME, size,
                                (int)OPENAI_BODY_MAX);
    if (size == 0)
        return openai_error_set(err, FERRY_ERR_FORMAT, "%s: empty; send a JSON object", NAME);
    size_t valid = utf8_valid_size(s, size);
    if (valid < size)
        return openai_error_set(err, FERRY_ERR_FORMAT,
                                "%s: byte 0x%02X at offset %zu is not UTF-8; send JSON in UTF-8",
                                NAME, (unsigned)(unsigned char)s[valid], valid);
    if (size >= 3 && memcmp(s, "\xEF\xBB\xBF", 3) == 0) {
        s += 3;
        size -= 3;
    }
    enum ferry_status st = check_numbers(s, size, err);
    if (st != FERRY_OK)
        return st;
    st = json_parse(&json, s, size, max_values, NAME, &cause);
    if (st != FERRY_OK)
        return openai_error_from(err, &cause);
    if (!json_is_object(json)) {
        json_decref(json);
        return openai_error_set(err, FERRY_ERR_FORMAT, "%s: must be a JSON object", NAME);
    }
    *ret_json = json;
    return FERRY_OK;
}
