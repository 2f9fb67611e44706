/* Typed look-ups over parsed metadata. See gguf.h. */
#include "file/gguf.h"

#include "base/assert.h"
#include "file/gguf_parse.h"
#include "file/utf8.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

bool gguf_has(const struct gguf_meta *meta, const char *key)
{
    return gguf_find(meta, key) != NULL;
}

static bool wrong_type(bool *ret_bad)
{
    if (ret_bad != NULL)
        *ret_bad = true;
    return false;
}

static bool is_unsigned(enum gguf_type type)
{
    return type == GGUF_TYPE_U8 || type == GGUF_TYPE_U16 || type == GGUF_TYPE_U32 ||
           type == GGUF_TYPE_U64;
}

static bool is_signed(enum gguf_type type)
{
    return type == GGUF_TYPE_I8 || type == GGUF_TYPE_I16 || type == GGUF_TYPE_I32 ||
           type == GGUF_TYPE_I64;
}

static bool is_float(enum gguf_type type)
{
    return type == GGUF_TYPE_F32 || type == GGUF_TYPE_F64;
}

bool gguf_get_u64(const struct gguf_meta *meta, const char *key, uint64_t *ret, bool *ret_bad)
{
    const struct gguf_value *value = gguf_find(meta, key);

    if (value == NULL)
        return false;
    if (is_unsigned(value->type))
        *ret = value->u64;
    else if (is_signed(value->type) && value->i64 >= 0)
        *ret = (uint64_t)value->i64;
    else
        return wrong_type(ret_bad);
    return true;
}

bool gguf_get_f64(const struct gguf_meta *meta, const char *key, double *ret, bool *ret_bad)
{
    const struct gguf_value *value = gguf_find(meta, key);

    if (value == NULL)
        return false;
    if (is_float(value->type))
        *ret = value->f64;
    else if (is_unsigned(value->type))
        *ret = (double)value->u64;
    else if (is_signed(value->type))
        *ret = (double)value->i64;
    else
        return wrong_type(ret_bad);
    return true;
}

bool gguf_get_bool(const struct gguf_meta *meta, const char *key, bool *ret, bool *ret_bad)
{
    const struct gguf_value *value = gguf_find(meta, key);

    if (value == NULL)
        return false;
    if (value->type != GGUF_TYPE_BOOL)
        return wrong_type(ret_bad);
    *ret = value->u64 != 0;
    return true;
}

bool gguf_get_string(const struct gguf_meta *meta, const char *key, struct gguf_string *ret,
                     bool *ret_bad)
{
    const struct gguf_value *value = gguf_find(meta, key);

    if (value == NULL)
        return false;
    if (value->type != GGUF_TYPE_STRING)
        return wrong_type(ret_bad);
    *ret = value->string;
    return true;
}

bool gguf_get_array(const struct gguf_meta *meta, const char *key, enum gguf_type *ret_type,
                    size_t *ret_count)
{
    const struct gguf_value *value = gguf_find(meta, key);

    if (value == NULL || value->type != GGUF_TYPE_ARRAY)
        return false;
    *ret_type = value->element_type;
    *ret_count = value->count;
    return true;
}

/* The array that the caller has asked gguf_get_array about. */
static const struct gguf_value *array_of(const struct gguf_meta *meta, const char *key, size_t i)
{
    const struct gguf_value *value = gguf_find(meta, key);

    FERRY_ASSERT(value != NULL);
    FERRY_ASSERT(value->type == GGUF_TYPE_ARRAY);
    FERRY_ASSERT(i < value->count);
    return value;
}

struct gguf_string gguf_array_string(const struct gguf_meta *meta, const char *key, size_t i)
{
    const struct gguf_value *value = array_of(meta, key, i);

    FERRY_ASSERT(value->element_type == GGUF_TYPE_STRING);
    return value->strings[i];
}

/* Element i of an array of integers or bools; *ret_negative tells that it is a negative i64. */
static uint64_t integer_element(const struct gguf_value *value, size_t i, bool *ret_negative)
{
    size_t n = gguf_type_bytes(value->element_type);
    uint64_t bits = 0;

    FERRY_ASSERT(n > 0);
    for (size_t k = 0; k < n; k++)
        bits |= (uint64_t)value->elements[i * n + k] << (8 * k);
    *ret_negative = false;
    if (is_signed(value->element_type)) {
        uint64_t sign = UINT64_C(1) << (8 * n - 1);
        bits = (bits ^ sign) - sign;
        *ret_negative = (int64_t)bits < 0;
    }
    return bits;
}

double gguf_array_f64(const struct gguf_meta *meta, const char *key, size_t i)
{
    const struct gguf_value *value = array_of(meta, key, i);
    bool negative;
    float f32;
    double f64;

    FERRY_ASSERT(value->element_type != GGUF_TYPE_STRING);
    if (value->element_type == GGUF_TYPE_F32) {
        memcpy(&f32, value->elements + 4 * i, sizeof f32);
        return (double)f32;
    }
    if (value->element_type == GGUF_TYPE_F64) {
        memcpy(&f64, value->elements + 8 * i, sizeof f64);
        return f64;
    }
    uint64_t bits = integer_element(value, i, &negative);
    return negative ? (double)(int64_t)bits : (double)bits;
}

int64_t gguf_array_i64(const struct gguf_meta *meta, const char *key, size_t i)
{
    const struct gguf_value *value = array_of(meta, key, i);
    bool negative;

    FERRY_ASSERT(value->element_type != GGUF_TYPE_STRING);
    FERRY_ASSERT(!is_float(value->element_type));
    uint64_t bits = integer_element(value, i, &negative);
    if (!negative && bits > INT64_MAX)
        return INT64_MAX;
    return (int64_t)bits;
}

size_t gguf_n_keys(const struct gguf_meta *meta)
{
    return meta->count;
}

const char *gguf_key(const struct gguf_meta *meta, size_t i)
{
    FERRY_ASSERT(i < meta->count);
    return meta->values[i].key;
}

/* A string on one line: control characters and invalid UTF-8 become '?', cut at a character. */
static void describe_string(const struct gguf_string *string, char *text, size_t size)
{
    const unsigned char *s = (const unsigned char *)string->data;
    size_t used = 0;

    for (size_t i = 0; i < string->size;) {
        size_t n = utf8_length(s + i, string->size - i);
        if (used + (n == 0 ? 1 : n) >= size)
            break;
        if (n == 0 || s[i] < 0x20 || s[i] == 0x7F || (n == 2 && s[i] == 0xC2 && s[i + 1] < 0xA0)) {
            text[used++] = '?';
            i += n == 0 ? 1 : n;
            continue;
        }
        memcpy(text + used, s + i, n);
        used += n;
        i += n;
    }
    text[used] = 0;
}

void gguf_describe(const struct gguf_meta *meta, size_t i, char *text, size_t size)
{
    FERRY_ASSERT(i < meta->count);
    const struct gguf_value *value = &meta->values[i];

    if (size == 0)
        return;
    if (value->type == GGUF_TYPE_STRING)
        describe_string(&value->string, text, size);
    else if (value->type == GGUF_TYPE_ARRAY)
        (void)snprintf(text, size, "[%zu %s]", value->count, gguf_type_name(value->element_type));
    else if (value->type == GGUF_TYPE_BOOL)
        (void)snprintf(text, size, "%s", value->u64 != 0 ? "true" : "false");
    else if (is_float(value->type))
        (void)snprintf(text, size, "%.*g", value->type == GGUF_TYPE_F32 ? 7 : 15, value->f64);
    else if (is_signed(value->type))
        (void)snprintf(text, size, "%" PRId64, value->i64);
    else
        (void)snprintf(text, size, "%" PRIu64, value->u64);
}
