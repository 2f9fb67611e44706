/* JSON with limits. See json.h. */
#include "file/json.h"

#include "base/alloc.h"
#include "base/error.h"
#include "base/limits.h"
#include "file/map.h"
#include "file/utf8.h"

#include <locale.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { FIRST_SCRATCH_BYTES = 256 };

/* One pass over the raw bytes, before anything is allocated: nesting, number of values and of keys.
 * It need not be exact for malformed text, which the reader refuses. */
static enum ferry_status check_limits(const unsigned char *s, size_t size, size_t max_values,
                                      const char *name, struct ferry_error *err)
{
    size_t depth = 0;
    size_t n_values = 1;
    size_t n_keys = 0;
    bool in_string = false;

    for (size_t i = 0; i < size; i++) {
        if (in_string) {
            if (s[i] == '\\')
                i++;
            else if (s[i] == '"')
                in_string = false;
            continue;
        }
        switch (s[i]) {
        case '"':
            in_string = true;
            break;
        case '[':
        case '{':
            n_values++;
            if (++depth > LIMIT_JSON_DEPTH)
                return FERRY_FAIL(err, FERRY_ERR_LIMIT,
                                  "%s: JSON nests deeper than %d at offset %zu", name,
                                  (int)LIMIT_JSON_DEPTH, i);
            break;
        case ']':
        case '}':
            depth -= depth > 0;
            break;
        case ',':
            n_values++;
            break;
        case ':':
            n_keys++;
            break;
        default:
            break;
        }
        if (n_values > max_values || n_keys > max_values / 2)
            return FERRY_FAIL(err, FERRY_ERR_LIMIT,
                              "%s: JSON has more than %zu values or %zu keys (reached at offset "
                              "%zu)",
                              name, max_values, max_values / 2, i);
    }
    return FERRY_OK;
}

/* ---- the reader ---- */

/* jansson keeps the values; its own parser is not used: in 2.14 it goes on after a failed growth of
 * its buffer, with what it has, and so writes over memory or calls good text bad. Its constructors
 * report every failure. */
struct reader {
    const unsigned char *s;
    size_t size, at;
    const char *name;
    /* A stack: the keys of the open objects, and above them the text that is being read. */
    char *scratch;
    size_t used, capacity;
    locale_t c_locale; /* for strtod_l; 0: not needed yet */
    struct ferry_error *err;
};

/* The text itself is not quoted: it may be a user's. */
static enum ferry_status bad(const struct reader *r, size_t at, const char *what)
{
    size_t line = 1, column = 1;

    for (size_t i = 0; i < at; i++) {
        if (r->s[i] == '\n') {
            line++;
            column = 1;
        } else if ((r->s[i] & 0xC0) != 0x80) {
            column++;
        }
    }
    return FERRY_FAIL(r->err, FERRY_ERR_FORMAT, "%s: bad JSON in line %zu column %zu: %s%s",
                      r->name, line, column, what, at >= r->size ? " near end of file" : "");
}

static enum ferry_status no_memory(const struct reader *r)
{
    return FERRY_FAIL(r->err, FERRY_ERR_NOMEM, "%s: out of memory while reading %zu bytes of JSON",
                      r->name, r->size);
}

static bool push(struct reader *r, const void *data, size_t n)
{
    if (!mem_reserve(&r->scratch, r->used, &r->capacity, n, FIRST_SCRATCH_BYTES))
        return false;
    if (n > 0)
        memcpy(r->scratch + r->used, data, n);
    r->used += n;
    return true;
}

/* The next byte that is no white space, not taken; -1: there is none. */
static int peek(struct reader *r)
{
    while (r->at < r->size && (r->s[r->at] == ' ' || r->s[r->at] == '\t' || r->s[r->at] == '\n' ||
                               r->s[r->at] == '\r'))
        r->at++;
    return r->at < r->size ? r->s[r->at] : -1;
}

static bool take(struct reader *r, int wanted)
{
    if (peek(r) != wanted)
        return false;
    r->at++;
    return true;
}

/* ---- strings ---- */

/* Behind the opening quote. Finds the closing one, which *ret_end is; what lies between is valid
 * UTF-8 without control characters. */
static enum ferry_status scan_string(const struct reader *r, size_t *ret_end, bool *ret_escapes)
{
    size_t at = r->at;

    *ret_escapes = false;
    while (at < r->size && r->s[at] != '"') {
        unsigned char c = r->s[at];
        if (c < 0x20)
            return bad(r, at, "control character in a string");
        if (c == '\\') {
            *ret_escapes = true;
            at++;
            if (at == r->size)
                break;
            c = r->s[at];
        }
        size_t step = c < 0x80 ? 1 : utf8_length(r->s + at, r->size - at);
        if (step == 0)
            return bad(r, at, "a byte that is not UTF-8");
        at += step;
    }
    if (at >= r->size)
        return bad(r, r->size, "a string does not end");
    *ret_end = at;
    return FERRY_OK;
}

/* Four hex digits at `at`; -1: they are none. */
static int32_t hex4(const struct reader *r, size_t at, size_t end)
{
    int32_t value = 0;

    if (end - at < 4)
        return -1;
    for (size_t i = at; i < at + 4; i++) {
        unsigned char c = r->s[i];
        int digit = c >= '0' && c <= '9'   ? c - '0'
                    : c >= 'a' && c <= 'f' ? c - 'a' + 10
                    : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                           : -1;
        if (digit < 0)
            return -1;
        value = value * 16 + digit;
    }
    return value;
}

/* At the 'u' of an escape; moves behind it. */
static enum ferry_status read_code(const struct reader *r, size_t *at, size_t end, int32_t *ret)
{
    int32_t code = hex4(r, *at + 1, end);

    if (code < 0)
        return bad(r, *at, "\\u wants four hex digits");
    if (code == 0)
        return bad(r, *at, "\\u0000 may not be in a string");
    *at += 5;
    if (code >= 0xD800 && code <= 0xDBFF) {
        int32_t low = end - *at >= 6 && r->s[*at] == '\\' && r->s[*at + 1] == 'u'
                          ? hex4(r, *at + 2, end)
                          : -1;
        if (low < 0xDC00 || low > 0xDFFF)
            return bad(r, *at, "half of a surrogate pair");
        code = 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00);
        *at += 6;
    } else if (code >= 0xDC00 && code <= 0xDFFF) {
        return bad(r, *at, "half of a surrogate pair");
    }
    *ret = code;
    return FERRY_OK;
}

/* Pushes [r->at, end) without its escapes. */
static enum ferry_status unescape(struct reader *r, size_t end)
{
    static const char FROM[] = "\"\\/bfnrt";
    static const char TO[] = "\"\\/\b\f\n\r\t";

    if (!push(r, NULL, 0) ||
        !mem_reserve(&r->scratch, r->used, &r->capacity, end - r->at, FIRST_SCRATCH_BYTES))
        return no_memory(r);
    for (size_t at = r->at; at < end;) {
        const unsigned char *escape = memchr(r->s + at, '\\', end - at);
        size_t n = escape != NULL ? (size_t)(escape - r->s) - at : end - at;
        memcpy(r->scratch + r->used, r->s + at, n);
        r->used += n;
        at += n;
        if (at == end)
            break;
        unsigned char c = r->s[++at];
        const char *known = memchr(FROM, c, sizeof FROM - 1);
        if (known != NULL) {
            r->scratch[r->used++] = TO[known - FROM];
            at++;
            continue;
        }
        int32_t code = 0;
        if (c != 'u')
            return bad(r, at, "invalid escape");
        enum ferry_status st = read_code(r, &at, end, &code);
        if (st != FERRY_OK)
            return st;
        r->used += utf8_encode(code, r->scratch + r->used);
    }
    return FERRY_OK;
}

static enum ferry_status read_string(struct reader *r, json_t **ret)
{
    size_t end = 0, bottom = r->used;
    bool escapes = false;
    enum ferry_status st = scan_string(r, &end, &escapes);

    if (st == FERRY_OK && escapes)
        st = unescape(r, end);
    if (st != FERRY_OK)
        return st;
    *ret = escapes ? json_stringn_nocheck(r->scratch + bottom, r->used - bottom)
                   : json_stringn_nocheck((const char *)r->s + r->at, end - r->at);
    r->used = bottom;
    r->at = end + 1;
    return *ret != NULL ? FERRY_OK : no_memory(r);
}

/* Leaves the key on the scratch, with a 0 behind it. */
static enum ferry_status read_key(struct reader *r)
{
    size_t end = 0;
    bool escapes = false;

    if (!take(r, '"'))
        return bad(r, r->at, "string or '}' expected");
    enum ferry_status st = scan_string(r, &end, &escapes);
    if (st == FERRY_OK && escapes)
        st = unescape(r, end);
    else if (st == FERRY_OK && !push(r, r->s + r->at, end - r->at))
        st = no_memory(r);
    if (st == FERRY_OK && !push(r, "", 1))
        st = no_memory(r);
    r->at = end + 1;
    return st;
}

/* ---- numbers ---- */

static size_t digits(const struct reader *r, size_t at)
{
    size_t from = at;

    while (at < r->size && r->s[at] >= '0' && r->s[at] <= '9')
        at++;
    return at - from;
}

static enum ferry_status read_integer(struct reader *r, size_t end, json_t **ret)
{
    bool negative = r->s[r->at] == '-';
    json_int_t value = 0;

    for (size_t i = r->at + negative; i < end; i++) {
        json_int_t digit = r->s[i] - '0';
        if (__builtin_mul_overflow(value, (json_int_t)10, &value) ||
            (negative ? __builtin_sub_overflow(value, digit, &value)
                      : __builtin_add_overflow(value, digit, &value)))
            return bad(r, r->at, "too big integer");
    }
    *ret = json_integer(value);
    r->at = end;
    return *ret != NULL ? FERRY_OK : no_memory(r);
}

static enum ferry_status read_real(struct reader *r, size_t end, json_t **ret)
{
    size_t bottom = r->used;

    if (r->c_locale == (locale_t)0)
        r->c_locale = newlocale(LC_ALL_MASK, "C", (locale_t)0);
    if (r->c_locale == (locale_t)0 || !push(r, r->s + r->at, end - r->at) || !push(r, "", 1))
        return no_memory(r);
    double value = strtod_l(r->scratch + bottom, NULL, r->c_locale);
    r->used = bottom;
    if (!isfinite(value))
        return bad(r, r->at, "too big number");
    *ret = json_real(value);
    r->at = end;
    return *ret != NULL ? FERRY_OK : no_memory(r);
}

static enum ferry_status read_number(struct reader *r, json_t **ret)
{
    size_t at = r->at + (r->s[r->at] == '-');
    size_t n = digits(r, at);
    bool real = false;

    if (n == 0 || (n > 1 && r->s[at] == '0'))
        return bad(r, r->at, "invalid number");
    at += n;
    if (at < r->size && r->s[at] == '.') {
        real = true;
        n = digits(r, ++at);
        if (n == 0)
            return bad(r, at, "invalid number");
        at += n;
    }
    if (at < r->size && (r->s[at] == 'e' || r->s[at] == 'E')) {
        real = true;
        at++;
        at += at < r->size && (r->s[at] == '+' || r->s[at] == '-');
        n = digits(r, at);
        if (n == 0)
            return bad(r, at, "invalid number");
        at += n;
    }
    return real ? read_real(r, at, ret) : read_integer(r, at, ret);
}

/* ---- values ---- */

static enum ferry_status read_value(struct reader *r, size_t depth, json_t **ret);

static enum ferry_status read_array(struct reader *r, size_t depth, json_t *array)
{
    if (take(r, ']'))
        return FERRY_OK;
    do {
        json_t *item = NULL;
        enum ferry_status st = read_value(r, depth, &item);
        if (st != FERRY_OK)
            return st;
        if (json_array_append_new(array, item) != 0)
            return no_memory(r);
    } while (take(r, ','));
    return take(r, ']') ? FERRY_OK : bad(r, r->at, "']' expected");
}

static enum ferry_status read_object(struct reader *r, size_t depth, json_t *object)
{
    if (take(r, '}'))
        return FERRY_OK;
    do {
        json_t *value = NULL;
        size_t key = r->used, key_at = r->at;
        enum ferry_status st = read_key(r);
        if (st != FERRY_OK)
            return st;
        if (json_object_get(object, r->scratch + key) != NULL)
            return bad(r, key_at, "duplicate object key");
        if (!take(r, ':'))
            return bad(r, r->at, "':' expected");
        st = read_value(r, depth, &value);
        if (st != FERRY_OK)
            return st;
        if (json_object_set_new_nocheck(object, r->scratch + key, value) != 0)
            return no_memory(r);
        r->used = key;
    } while (take(r, ','));
    return take(r, '}') ? FERRY_OK : bad(r, r->at, "'}' expected");
}

static enum ferry_status read_collection(struct reader *r, size_t depth, json_t **ret)
{
    bool is_array = r->s[r->at++] == '[';

    if (depth == LIMIT_JSON_DEPTH) /* check_limits saw it already */
        return FERRY_FAIL(r->err, FERRY_ERR_LIMIT, "%s: JSON nests too deep", r->name);
    json_t *all = is_array ? json_array() : json_object();
    if (all == NULL)
        return no_memory(r);
    enum ferry_status st =
        is_array ? read_array(r, depth + 1, all) : read_object(r, depth + 1, all);
    if (st != FERRY_OK) {
        json_decref(all);
        return st;
    }
    *ret = all;
    return FERRY_OK;
}

/* depth: of collections around it. */
static enum ferry_status read_value(struct reader *r, size_t depth, json_t **ret)
{
    static const char *const WORDS[] = {"true", "false", "null"};
    int c = peek(r);

    if (c == '{' || c == '[')
        return read_collection(r, depth, ret);
    if (c == '"') {
        r->at++;
        return read_string(r, ret);
    }
    if (c == '-' || (c >= '0' && c <= '9'))
        return read_number(r, ret);
    for (size_t i = 0; i < 3; i++) {
        size_t n = strlen(WORDS[i]);
        if (r->size - r->at >= n && memcmp(r->s + r->at, WORDS[i], n) == 0) {
            *ret = i == 0 ? json_true() : i == 1 ? json_false() : json_null();
            r->at += n;
            return FERRY_OK;
        }
    }
    return bad(r, r->at, "invalid token");
}

enum ferry_status json_parse(json_t **ret_json, const void *data, size_t size, size_t max_values,
                             const char *name, struct ferry_error *err)
{
    struct reader r = {.s = data, .size = size, .name = name, .err = err};
    json_t *json = NULL;

    enum ferry_status st = check_limits(data, size, max_values, name, err);
    if (st != FERRY_OK)
        return st;
    int first = peek(&r);
    st = first == '{' || first == '[' ? read_collection(&r, 0, &json)
                                      : bad(&r, r.at, "'[' or '{' expected");
    if (st == FERRY_OK && peek(&r) >= 0)
        st = bad(&r, r.at, "end of file expected");
    mem_free(r.scratch);
    if (r.c_locale != (locale_t)0)
        freelocale(r.c_locale);
    if (st != FERRY_OK) {
        json_decref(json);
        return st;
    }
    *ret_json = json;
    return FERRY_OK;
}

enum ferry_status json_load_object(json_t **ret_json, const char *path, struct ferry_error *err)
{
    struct map *map = NULL;
    json_t *json = NULL;

    enum ferry_status st = map_open(&map, path, LIMIT_JSON_FILE, err);
    if (st != FERRY_OK)
        return st;
    st = json_parse(&json, map->data, map->size, LIMIT_HEADER_VALUES, map->name, err);
    if (st == FERRY_OK && !json_is_object(json)) {
        json_decref(json);
        st = FERRY_FAIL(err, FERRY_ERR_FORMAT, "%s: holds no JSON object", map->name);
    }
    if (st == FERRY_OK)
        *ret_json = json;
    map_close(map);
    return st;
}

/* The member, NULL when absent or null. */
static json_t *member(const json_t *object, const char *key)
{
    json_t *value = json_object_get(object, key);
    return json_is_null(value) ? NULL : value;
}

static bool wrong_type(bool *ret_bad)
{
    if (ret_bad != NULL)
        *ret_bad = true;
    return false;
}

bool json_get_u64(const json_t *object, const char *key, uint64_t *ret, bool *ret_bad)
{
    const json_t *value = member(object, key);

    if (value == NULL)
        return false;
    if (!json_is_integer(value) || json_integer_value(value) < 0)
        return wrong_type(ret_bad);
    *ret = (uint64_t)json_integer_value(value);
    return true;
}

bool json_get_f64(const json_t *object, const char *key, double *ret, bool *ret_bad)
{
    const json_t *value = member(object, key);

    if (value == NULL)
        return false;
    if (!json_is_number(value))
        return wrong_type(ret_bad);
    *ret = json_number_value(value);
    return true;
}

bool json_get_bool(const json_t *object, const char *key, bool *ret, bool *ret_bad)
{
    const json_t *value = member(object, key);

    if (value == NULL)
        return false;
    if (!json_is_boolean(value))
        return wrong_type(ret_bad);
    *ret = json_is_true(value);
    return true;
}

bool json_get_string(const json_t *object, const char *key, const char **ret, bool *ret_bad)
{
    const json_t *value = member(object, key);

    if (value == NULL)
        return false;
    if (!json_is_string(value))
        return wrong_type(ret_bad);
    *ret = json_string_value(value);
    return true;
}
