/* Reader of GGUF headers. See gguf_parse.h. */
#include "file/gguf_parse.h"

#include "base/error.h"
#include "base/limits.h"
#include "base/size.h"
#include "file/utf8.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef unsigned long long ull;

enum {
    NAME_SHOWN = 120,
    DEFAULT_ALIGNMENT = 32,
    MIN_ALIGNMENT = 8,
    MIN_KEY_BYTES = 8 + 1 + 4 + 1,            /* length, key, type, value */
    MIN_TENSOR_BYTES = 8 + 1 + 4 + 8 + 4 + 8, /* length, name, n_dims, dim, type, offset */
};

/* Where we are in the file. Every byte is fetched once: what was checked is what is used, whatever
 * another process does to the file meanwhile. */
struct reader {
    const unsigned char *data;
    size_t size;
    size_t at;
    const char *file;
    struct arena *arena;
    struct ferry_error *err;
};

static enum ferry_status no_memory(const struct reader *r)
{
    return FERRY_FAIL(r->err, FERRY_ERR_NOMEM, "%s: out of memory at offset %zu of the header",
                      r->file, r->at);
}

/* Checks that n more bytes exist. */
static enum ferry_status need(const struct reader *r, uint64_t n, const char *what)
{
    if (n <= r->size - r->at)
        return FERRY_OK;
    return FERRY_FAIL(r->err, FERRY_ERR_FORMAT,
                      "%s: truncated: %s at offset %zu needs %llu bytes, the file has %zu bytes; "
                      "fetch it again",
                      r->file, what, r->at, (ull)n, r->size);
}

static uint64_t little_endian(const unsigned char *p, size_t n)
{
    uint64_t v = 0;
    for (size_t i = 0; i < n; i++)
        v |= (uint64_t)p[i] << (8 * i);
    return v;
}

static enum ferry_status read_u32(struct reader *r, uint32_t *ret, const char *what)
{
    enum ferry_status st = need(r, 4, what);
    if (st != FERRY_OK)
        return st;
    *ret = (uint32_t)little_endian(r->data + r->at, 4);
    r->at += 4;
    return FERRY_OK;
}

static enum ferry_status read_u64(struct reader *r, uint64_t *ret, const char *what)
{
    enum ferry_status st = need(r, 8, what);
    if (st != FERRY_OK)
        return st;
    *ret = little_endian(r->data + r->at, 8);
    r->at += 8;
    return FERRY_OK;
}

/* A length and that many bytes, at most `limit`. */
static enum ferry_status read_string(struct reader *r, size_t limit, struct gguf_string *ret,
                                     const char *what)
{
    uint64_t n = 0;

    enum ferry_status st = read_u64(r, &n, what);
    if (st != FERRY_OK)
        return st;
    if (n > limit)
        return FERRY_FAIL(r->err, FERRY_ERR_LIMIT,
                          "%s: %s at offset %zu has %llu bytes, the limit is %zu", r->file, what,
                          r->at - 8, (ull)n, limit);
    st = need(r, n, what);
    if (st != FERRY_OK)
        return st;
    *ret = (struct gguf_string){.data = (const char *)r->data + r->at, .size = (size_t)n};
    r->at += (size_t)n;
    return FERRY_OK;
}

size_t gguf_type_bytes(enum gguf_type type)
{
    static const unsigned char BYTES[GGUF_TYPE_COUNT] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};
    return BYTES[type];
}

const char *gguf_type_name(enum gguf_type type)
{
    static const char *const NAMES[GGUF_TYPE_COUNT] = {"u8",  "i8",  "u16",  "i16",    "u32",
                                                       "i32", "f32", "bool", "string", "array",
                                                       "u64", "i64", "f64"};
    return NAMES[type];
}

/* Fills the number fields from the raw bytes of a value of fixed size. */
static void decode_number(struct gguf_value *value)
{
    uint64_t bits = little_endian(value->raw, value->raw_bytes);
    uint64_t sign = UINT64_C(1) << (8 * value->raw_bytes - 1);
    uint32_t bits32 = (uint32_t)bits;
    float f32;

    switch (value->type) {
    case GGUF_TYPE_I8:
    case GGUF_TYPE_I16:
    case GGUF_TYPE_I32:
    case GGUF_TYPE_I64:
        value->i64 = (int64_t)((bits ^ sign) - sign);
        break;
    case GGUF_TYPE_F32:
        memcpy(&f32, &bits32, sizeof f32);
        value->f64 = (double)f32;
        break;
    case GGUF_TYPE_F64:
        memcpy(&value->f64, &bits, sizeof value->f64);
        break;
    default:
        value->u64 = bits;
        break;
    }
}

static enum ferry_status read_type(struct reader *r, const struct gguf_value *value,
                                   enum gguf_type *ret, const char *what)
{
    uint32_t type = 0;

    enum ferry_status st = read_u32(r, &type, what);
    if (st != FERRY_OK)
        return st;
    if (type >= GGUF_TYPE_COUNT)
        return FERRY_FAIL(r->err, FERRY_ERR_FORMAT,
                          "%s: key '%.*s': %s %u at offset %zu is unknown (0..%d exist)", r->file,
                          NAME_SHOWN, value->key, what, type, r->at - 4, GGUF_TYPE_COUNT - 1);
    *ret = (enum gguf_type)type;
    return FERRY_OK;
}

static enum ferry_status check_bools(const struct reader *r, const struct gguf_value *value,
                                     const unsigned char *bytes, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        unsigned byte = bytes[i];
        if (byte > 1)
            return FERRY_FAIL(r->err, FERRY_ERR_FORMAT,
                              "%s: key '%.*s': bool at offset %zu has the value %u", r->file,
                              NAME_SHOWN, value->key, (size_t)(bytes - r->data) + i, byte);
    }
    return FERRY_OK;
}

/* The strings of an array, with an index. The caller has bounded count by the file's size. */
static enum ferry_status read_strings(struct reader *r, struct gguf_value *value)
{
    struct gguf_string *strings = arena_array(r->arena, value->count, sizeof *strings);

    if (strings == NULL)
        return no_memory(r);
    for (size_t i = 0; i < value->count; i++) {
        enum ferry_status st = read_string(r, LIMIT_GGUF_STRING, &strings[i], "string of an array");
        if (st != FERRY_OK) {
            error_prefix(r->err, "key '%.*s', element %zu: ", NAME_SHOWN, value->key, i);
            return st;
        }
    }
    value->strings = strings;
    return FERRY_OK;
}

static enum ferry_status read_array(struct reader *r, struct gguf_value *value)
{
    uint64_t count = 0;

    enum ferry_status st = read_type(r, value, &value->element_type, "array element type");
    if (st == FERRY_OK)
        st = read_u64(r, &count, "array length");
    if (st != FERRY_OK)
        return st;
    if (value->element_type == GGUF_TYPE_ARRAY)
        return FERRY_FAIL(r->err, FERRY_ERR_UNSUPPORTED,
                          "%s: key '%.*s' at offset %zu is an array of arrays; no model needs one",
                          r->file, NAME_SHOWN, value->key, r->at - 12);
    if (count > LIMIT_GGUF_ARRAY)
        return FERRY_FAIL(r->err, FERRY_ERR_LIMIT,
                          "%s: key '%.*s': array of %llu elements at offset %zu, the limit is %d",
                          r->file, NAME_SHOWN, value->key, (ull)count, r->at - 8,
                          (int)LIMIT_GGUF_ARRAY);
    /* Below 2^24 elements of at most 8 bytes: the product cannot overflow. */
    bool is_string = value->element_type == GGUF_TYPE_STRING;
    st = need(r, count * (is_string ? 8 : gguf_type_bytes(value->element_type)), "array");
    if (st != FERRY_OK) {
        error_prefix(r->err, "key '%.*s': ", NAME_SHOWN, value->key);
        return st;
    }
    value->count = (size_t)count;
    if (is_string)
        return read_strings(r, value);
    size_t n_bytes = value->count * gguf_type_bytes(value->element_type);
    value->elements = r->data + r->at;
    r->at += n_bytes;
    if (value->element_type == GGUF_TYPE_BOOL)
        return check_bools(r, value, value->elements, n_bytes);
    return FERRY_OK;
}

static enum ferry_status read_value(struct reader *r, struct gguf_value *value)
{
    size_t begin = r->at;
    enum ferry_status st;

    if (value->type == GGUF_TYPE_ARRAY) {
        st = read_array(r, value);
    } else if (value->type == GGUF_TYPE_STRING) {
        st = read_string(r, LIMIT_GGUF_STRING, &value->string, "string value");
    } else {
        st = need(r, gguf_type_bytes(value->type), "value");
        if (st == FERRY_OK)
            r->at += gguf_type_bytes(value->type);
    }
    if (st != FERRY_OK)
        return st;
    value->raw = r->data + begin;
    value->raw_bytes = r->at - begin;
    if (value->type == GGUF_TYPE_ARRAY || value->type == GGUF_TYPE_STRING)
        return FERRY_OK;
    decode_number(value);
    if (value->type == GGUF_TYPE_BOOL && value->u64 > 1)
        return check_bools(r, value, value->raw, 1);
    return FERRY_OK;
}

static enum ferry_status read_key(struct reader *r, struct gguf_value *value)
{
    struct gguf_string key = {0};
    size_t begin = r->at;

    enum ferry_status st = read_string(r, LIMIT_GGUF_KEY, &key, "key");
    if (st != FERRY_OK)
        return st;
    if (key.size == 0 || !utf8_is_name(key.data, key.size))
        return FERRY_FAIL(r->err, FERRY_ERR_FORMAT,
                          "%s: key at offset %zu is empty or no printable text", r->file, begin);
    value->key = arena_strndup(r->arena, key.data, key.size);
    if (value->key == NULL)
        return no_memory(r);
    st = read_type(r, value, &value->type, "value type");
    if (st != FERRY_OK)
        return st;
    return read_value(r, value);
}

static int by_key(const void *a, const void *b)
{
    return strcmp((*(const struct gguf_value *const *)a)->key,
                  (*(const struct gguf_value *const *)b)->key);
}

static enum ferry_status read_keys(struct reader *r, size_t count, struct gguf_meta *ret)
{
    struct gguf_value *values = arena_array(r->arena, count, sizeof *values);
    const struct gguf_value **by_name = arena_array(r->arena, count, sizeof *by_name);

    if (values == NULL || by_name == NULL)
        return no_memory(r);
    for (size_t i = 0; i < count; i++) {
        enum ferry_status st = read_key(r, &values[i]);
        if (st != FERRY_OK)
            return st;
        by_name[i] = &values[i];
    }
    if (count > 1)
        qsort(by_name, count, sizeof(const struct gguf_value *), by_key);
    for (size_t i = 1; i < count; i++) {
        if (strcmp(by_name[i - 1]->key, by_name[i]->key) == 0)
            return FERRY_FAIL(r->err, FERRY_ERR_FORMAT, "%s: key '%.*s' occurs twice", r->file,
                              NAME_SHOWN, by_name[i]->key);
    }
    *ret = (struct gguf_meta){.values = values, .by_name = by_name, .count = count};
    return FERRY_OK;
}

const struct gguf_value *gguf_find(const struct gguf_meta *meta, const char *key)
{
    size_t low = 0;
    size_t high = meta->count;

    while (low < high) {
        size_t middle = low + (high - low) / 2;
        int order = strcmp(meta->by_name[middle]->key, key);
        if (order == 0)
            return meta->by_name[middle];
        if (order < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return NULL;
}

static enum ferry_status read_alignment(const struct reader *r, const struct gguf_meta *meta,
                                        size_t *ret)
{
    const struct gguf_value *value = gguf_find(meta, "general.alignment");

    *ret = DEFAULT_ALIGNMENT;
    if (value == NULL)
        return FERRY_OK;
    if (value->type != GGUF_TYPE_U32)
        return FERRY_FAIL(r->err, FERRY_ERR_FORMAT,
                          "%s: general.alignment has type %s, it must be u32", r->file,
                          gguf_type_name(value->type));
    uint64_t n = value->u64;
    if (n < MIN_ALIGNMENT || n > LIMIT_GGUF_ALIGNMENT || (n & (n - 1)) != 0)
        return FERRY_FAIL(r->err, FERRY_ERR_FORMAT,
                          "%s: general.alignment is %llu, it must be a power of two from %d to %d",
                          r->file, (ull)n, MIN_ALIGNMENT, (int)LIMIT_GGUF_ALIGNMENT);
    *ret = (size_t)n;
    return FERRY_OK;
}

/* What a type number of the format is called when Ferry does not read it. */
static const char *unsupported_type_name(uint32_t type)
{
    static const char *const NAMES[] = {
        [9] = "Q8_1",    [10] = "Q2_K",    [11] = "Q3_K",  [15] = "Q8_K",  [16] = "IQ2_XXS",
        [17] = "IQ2_XS", [18] = "IQ3_XXS", [19] = "IQ1_S", [21] = "IQ3_S", [22] = "IQ2_S",
        [23] = "IQ4_XS", [24] = "I8",      [25] = "I16",   [26] = "I32",   [27] = "I64",
        [28] = "F64",    [29] = "IQ1_M",   [34] = "TQ1_0", [35] = "TQ2_0", [40] = "NVFP4",
        [41] = "Q1_0",   [42] = "Q2_0",
    };
    return type < sizeof NAMES / sizeof NAMES[0] && NAMES[type] != NULL ? NAMES[type] : "unknown";
}

static enum ferry_status bad_type(const struct reader *r, const struct checkpoint_tensor *t,
                                  uint32_t type)
{
    char list[160] = "";
    size_t used = 0;

    for (int i = 0; i < DTYPE_COUNT && used < sizeof list; i++) {
        int n = snprintf(list + used, sizeof list - used, "%s%s", i == 0 ? "" : ", ",
                         dtype_name((enum dtype)i));
        used += (size_t)(n > 0 ? n : 0);
    }
    return FERRY_FAIL(r->err, FERRY_ERR_UNSUPPORTED,
                      "%s: tensor '%.*s' has type %u (%s); supported: %s", r->file, NAME_SHOWN,
                      t->name, type, unsupported_type_name(type), list);
}

/* Dimensions come fastest first; ours are outermost first. */
static enum ferry_status read_dims(struct reader *r, struct checkpoint_tensor *t)
{
    uint32_t n_dims = 0;

    enum ferry_status st = read_u32(r, &n_dims, "n_dims");
    if (st != FERRY_OK)
        return st;
    if (n_dims < 1 || n_dims > LIMIT_TENSOR_DIMS)
        return FERRY_FAIL(r->err, FERRY_ERR_FORMAT,
                          "%s: tensor '%.*s' at offset %zu has %u dimensions, 1 to %d are allowed",
                          r->file, NAME_SHOWN, t->name, r->at - 4, n_dims, (int)LIMIT_TENSOR_DIMS);
    t->n_dims = (int)n_dims;
    for (uint32_t i = 0; i < n_dims; i++) {
        uint64_t dim = 0;
        st = read_u64(r, &dim, "dimension");
        if (st != FERRY_OK)
            return st;
        if (dim == 0 || dim > INT64_MAX)
            return FERRY_FAIL(r->err, FERRY_ERR_FORMAT,
                              "%s: tensor '%.*s': dimension %u at offset %zu is %llu, 1 to 2^63-1 "
                              "are allowed",
                              r->file, NAME_SHOWN, t->name, i, r->at - 8, (ull)dim);
        t->dims[n_dims - 1 - i] = dim;
    }
    return FERRY_OK;
}

/* Type and size; every product is checked. */
static enum ferry_status read_type_and_size(struct reader *r, struct checkpoint_tensor *t)
{
    uint32_t type = 0;
    uint64_t bytes = 0;
    uint64_t elems = 1;
    uint64_t row = t->dims[t->n_dims - 1];

    enum ferry_status st = read_u32(r, &type, "tensor type");
    if (st != FERRY_OK)
        return st;
    if (!dtype_from_gguf(type, &t->dtype))
        return bad_type(r, t, type);
    if (row % dtype_block_elems(t->dtype) != 0)
        return FERRY_FAIL(
            r->err, FERRY_ERR_FORMAT,
            "%s: tensor '%.*s': rows of %llu elements are no multiple of the %zu of a "
            "%s block",
            r->file, NAME_SHOWN, t->name, (ull)row, dtype_block_elems(t->dtype),
            dtype_name(t->dtype));
    bool fits = dtype_row_bytes(t->dtype, row, &bytes) && bytes <= INT64_MAX;
    for (int i = 0; i < t->n_dims && fits; i++) {
        fits = mul_u64(elems, t->dims[i], &elems) && elems <= INT64_MAX;
        if (i < t->n_dims - 1)
            fits = fits && mul_u64(bytes, t->dims[i], &bytes) && bytes <= INT64_MAX;
    }
    if (!fits)
        return FERRY_FAIL(r->err, FERRY_ERR_FORMAT,
                          "%s: tensor '%.*s': size overflows (%d dimensions, outermost %llu, "
                          "innermost %llu)",
                          r->file, NAME_SHOWN, t->name, t->n_dims, (ull)t->dims[0], (ull)row);
    t->size_bytes = bytes;
    return FERRY_OK;
}

static enum ferry_status read_tensor(struct reader *r, struct checkpoint_tensor *t)
{
    struct gguf_string name = {0};
    size_t begin = r->at;

    enum ferry_status st = read_string(r, LIMIT_TENSOR_NAME, &name, "tensor name");
    if (st != FERRY_OK)
        return st;
    if (name.size == 0 || !utf8_is_name(name.data, name.size))
        return FERRY_FAIL(r->err, FERRY_ERR_FORMAT,
                          "%s: tensor name at offset %zu is empty or no printable text", r->file,
                          begin);
    t->file = r->file;
    t->name = arena_strndup(r->arena, name.data, name.size);
    if (t->name == NULL)
        return no_memory(r);
    st = read_dims(r, t);
    if (st == FERRY_OK)
        st = read_type_and_size(r, t);
    if (st == FERRY_OK)
        st = read_u64(r, &t->offset, "tensor offset");
    if (st != FERRY_OK)
        error_prefix(r->err, "tensor '%.*s': ", NAME_SHOWN, t->name);
    return st;
}

/* Turns offsets within the data into offsets within the file. They must be the running sum of the
 * padded sizes, as every writer makes them: no gap, no overlap. */
static enum ferry_status place_tensors(const struct reader *r, struct tensor_list *list,
                                       size_t alignment)
{
    size_t base = 0;
    uint64_t at = 0;

    if (list->count == 0)
        return FERRY_OK;
    if (!round_up_size(r->at, alignment, &base) || base > r->size)
        return FERRY_FAIL(
            r->err, FERRY_ERR_FORMAT,
            "%s: truncated: the header ends at offset %zu, the data begin at %zu, the "
            "file has %zu bytes; fetch it again",
            r->file, r->at, base, r->size);
    for (size_t i = 0; i < list->count; i++) {
        struct checkpoint_tensor *t = &list->items[i];
        if (t->offset != at)
            return FERRY_FAIL(
                r->err, FERRY_ERR_FORMAT,
                "%s: tensor '%.*s' has data offset %llu, the padded tensors before it "
                "end at %llu",
                r->file, NAME_SHOWN, t->name, (ull)t->offset, (ull)at);
        uint64_t left = (uint64_t)r->size - base;
        if (at > left || t->size_bytes > left - at)
            return FERRY_FAIL(r->err, FERRY_ERR_FORMAT,
                              "%s: truncated: tensor '%.*s' at offset %llu needs %llu bytes, the "
                              "file has %zu bytes; fetch it again",
                              r->file, NAME_SHOWN, t->name, (ull)base + (ull)at, (ull)t->size_bytes,
                              r->size);
        t->offset = base + at;
        t->data = r->data + t->offset;
        /* at + size_bytes <= file size and the alignment is at most 1 MiB: no overflow. */
        at = (at + t->size_bytes + alignment - 1) & ~((uint64_t)alignment - 1);
    }
    return FERRY_OK;
}

static int by_tensor_name(const void *a, const void *b)
{
    return strcmp((*(const struct checkpoint_tensor *const *)a)->name,
                  (*(const struct checkpoint_tensor *const *)b)->name);
}

static enum ferry_status check_unique(const struct reader *r, const struct tensor_list *list)
{
    const struct checkpoint_tensor **sorted =
        arena_array(r->arena, list->count, sizeof(const struct checkpoint_tensor *));

    if (sorted == NULL)
        return no_memory(r);
    for (size_t i = 0; i < list->count; i++)
        sorted[i] = &list->items[i];
    if (list->count > 1)
        qsort(sorted, list->count, sizeof(const struct checkpoint_tensor *), by_tensor_name);
    for (size_t i = 1; i < list->count; i++) {
        if (strcmp(sorted[i - 1]->name, sorted[i]->name) == 0)
            return FERRY_FAIL(r->err, FERRY_ERR_FORMAT,
                              "%s: tensor '%.*s' occurs twice, at offsets %llu and %llu", r->file,
                              NAME_SHOWN, sorted[i]->name, (ull)sorted[i - 1]->offset,
                              (ull)sorted[i]->offset);
    }
    return FERRY_OK;
}

static enum ferry_status read_version(struct reader *r)
{
    uint32_t version = 0;

    if (r->size < 4 || memcmp(r->data, "GGUF", 4) != 0)
        return FERRY_FAIL(r->err, FERRY_ERR_FORMAT,
                          "%s: does not begin with 'GGUF'; is this a GGUF file?", r->file);
    r->at = 4;
    enum ferry_status st = read_u32(r, &version, "version");
    if (st != FERRY_OK)
        return st;
    if ((version & 0xFFFF) == 0 && version != 0)
        return FERRY_FAIL(r->err, FERRY_ERR_UNSUPPORTED,
                          "%s: is a big-endian GGUF file (version 0x%08x at offset 4); convert it "
                          "to little endian",
                          r->file, version);
    if (version != 2 && version != 3)
        return FERRY_FAIL(
            r->err, FERRY_ERR_UNSUPPORTED,
            "%s: GGUF version %u at offset 4; versions 2 and 3 are supported, convert "
            "the model anew",
            r->file, version);
    return FERRY_OK;
}

/* Both counts, bounded by what the rest of the file could hold before anything is allocated. */
static enum ferry_status read_counts(struct reader *r, size_t *ret_n_tensors, size_t *ret_n_keys)
{
    uint64_t n_tensors = 0;
    uint64_t n_keys = 0;

    enum ferry_status st = read_u64(r, &n_tensors, "tensor count");
    if (st == FERRY_OK)
        st = read_u64(r, &n_keys, "key count");
    if (st != FERRY_OK)
        return st;
    if (n_tensors > LIMIT_TENSORS)
        return FERRY_FAIL(r->err, FERRY_ERR_LIMIT, "%s: %llu tensors, the limit is %d", r->file,
                          (ull)n_tensors, (int)LIMIT_TENSORS);
    if (n_keys > LIMIT_GGUF_KEYS)
        return FERRY_FAIL(r->err, FERRY_ERR_LIMIT, "%s: %llu metadata keys, the limit is %d",
                          r->file, (ull)n_keys, (int)LIMIT_GGUF_KEYS);
    /* Both limits are below 2^21: no overflow. */
    uint64_t least = n_tensors * MIN_TENSOR_BYTES + n_keys * MIN_KEY_BYTES;
    if (least > r->size - r->at)
        return FERRY_FAIL(r->err, FERRY_ERR_FORMAT,
                          "%s: truncated: %llu keys and %llu tensors need %llu bytes or more at "
                          "offset %zu, the file has %zu bytes; fetch it again",
                          r->file, (ull)n_keys, (ull)n_tensors, (ull)least, r->at, r->size);
    *ret_n_tensors = (size_t)n_tensors;
    *ret_n_keys = (size_t)n_keys;
    return FERRY_OK;
}

enum ferry_status gguf_parse(struct gguf_contents *ret_contents, struct arena *arena,
                             const void *mem, size_t size, const char *file,
                             struct ferry_error *err)
{
    struct reader r = {.data = mem, .size = size, .file = file, .arena = arena, .err = err};
    struct gguf_contents contents = {0};
    size_t n_tensors = 0;
    size_t n_keys = 0;
    size_t alignment = 0;

    enum ferry_status st = read_version(&r);
    if (st == FERRY_OK)
        st = read_counts(&r, &n_tensors, &n_keys);
    if (st == FERRY_OK)
        st = read_keys(&r, n_keys, &contents.meta);
    if (st == FERRY_OK)
        st = read_alignment(&r, &contents.meta, &alignment);
    if (st != FERRY_OK)
        return st;
    contents.tensors.items = arena_array(arena, n_tensors, sizeof *contents.tensors.items);
    if (contents.tensors.items == NULL)
        return no_memory(&r);
    contents.tensors.count = n_tensors;
    for (size_t i = 0; i < n_tensors; i++) {
        st = read_tensor(&r, &contents.tensors.items[i]);
        if (st != FERRY_OK)
            return st;
    }
    st = check_unique(&r, &contents.tensors);
    if (st == FERRY_OK)
        st = place_tensors(&r, &contents.tensors, alignment);
    if (st == FERRY_OK)
        *ret_contents = contents;
    return st;
}
