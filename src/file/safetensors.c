/* Reader of safetensors headers. See safetensors.h. */
#include "file/safetensors.h"

#include "base/error.h"
#include "base/limits.h"
#include "base/size.h"
#include "file/json.h"
#include "file/utf8.h"

#include <stdlib.h>
#include <string.h>

enum { PREFIX_BYTES = 8, NAME_SHOWN = 120 };

typedef unsigned long long ull;

static const struct {
    const char *name;
    enum dtype dtype;
} TYPES[] = {{"F32", DTYPE_F32}, {"F16", DTYPE_F16}, {"BF16", DTYPE_BF16}};

/* What the helpers below share. */
struct parser {
    const unsigned char *data; /* behind the header */
    size_t data_bytes;
    size_t header_end; /* offset of data in the file */
    const char *file;
    struct arena *arena;
    struct ferry_error *err;
};

static enum ferry_status find_json(const unsigned char *mem, size_t size, const char *file,
                                   size_t *ret_bytes, struct ferry_error *err)
{
    uint64_t n = 0;

    if (size < PREFIX_BYTES + 2)
        return FERRY_FAIL(
            err, FERRY_ERR_FORMAT,
            "%s: truncated: %zu bytes cannot hold a safetensors header; fetch it again", file,
            size);
    for (int i = 0; i < PREFIX_BYTES; i++)
        n |= (uint64_t)mem[i] << (8 * i);
    if (n > LIMIT_SAFETENSORS_HEADER)
        return FERRY_FAIL(err, FERRY_ERR_LIMIT,
                          "%s: header of %llu bytes, the limit is %d; is this a safetensors file?",
                          file, (ull)n, (int)LIMIT_SAFETENSORS_HEADER);
    if (n > size - PREFIX_BYTES)
        return FERRY_FAIL(
            err, FERRY_ERR_FORMAT,
            "%s: truncated: header of %llu bytes at offset 8, the file has %zu bytes; "
            "fetch it again",
            file, (ull)n, size);
    if (n < 2 || mem[PREFIX_BYTES] != '{')
        return FERRY_FAIL(err, FERRY_ERR_FORMAT,
                          "%s: header of %llu bytes does not begin with '{'; is this a safetensors "
                          "file?",
                          file, (ull)n);
    *ret_bytes = (size_t)n;
    return FERRY_OK;
}

/* __metadata__ maps strings to strings. */
static enum ferry_status check_metadata(const json_t *metadata, const struct parser *p)
{
    const char *key;
    json_t *value;

    if (!json_is_object(metadata))
        return FERRY_FAIL(p->err, FERRY_ERR_FORMAT, "%s: __metadata__ is no object", p->file);
    json_object_foreach((json_t *)(uintptr_t)metadata, key, value)
    {
        if (!json_is_string(value))
            return FERRY_FAIL(p->err, FERRY_ERR_FORMAT, "%s: __metadata__ key '%.*s' is no string",
                              p->file, NAME_SHOWN, key);
    }
    return FERRY_OK;
}

static enum ferry_status read_dtype(struct checkpoint_tensor *t, const json_t *info,
                                    const struct parser *p)
{
    const char *name = NULL;

    if (!json_get_string(info, "dtype", &name, NULL))
        return FERRY_FAIL(p->err, FERRY_ERR_FORMAT, "%s: tensor '%.*s': dtype missing or no string",
                          p->file, NAME_SHOWN, t->name);
    for (size_t i = 0; i < sizeof TYPES / sizeof TYPES[0]; i++) {
        if (strcmp(name, TYPES[i].name) == 0) {
            t->dtype = TYPES[i].dtype;
            return FERRY_OK;
        }
    }
    return FERRY_FAIL(
        p->err, FERRY_ERR_UNSUPPORTED,
        "%s: tensor '%.*s' has dtype %.32s; supported in safetensors: F32, F16, BF16; "
        "convert the checkpoint to one of them",
        p->file, NAME_SHOWN, t->name, name);
}

/* Shape, and *ret_bytes = its product times the element size. */
static enum ferry_status read_shape(struct checkpoint_tensor *t, const json_t *info,
                                    uint64_t *ret_bytes, const struct parser *p)
{
    const json_t *shape = json_object_get(info, "shape");
    size_t n_dims = json_array_size(shape);
    uint64_t bytes = dtype_block_bytes(t->dtype);

    if (!json_is_array(shape))
        return FERRY_FAIL(p->err, FERRY_ERR_FORMAT, "%s: tensor '%.*s': shape missing or no array",
                          p->file, NAME_SHOWN, t->name);
    if (n_dims > LIMIT_TENSOR_DIMS)
        return FERRY_FAIL(p->err, FERRY_ERR_LIMIT,
                          "%s: tensor '%.*s' has %zu dimensions, the limit is %d", p->file,
                          NAME_SHOWN, t->name, n_dims, (int)LIMIT_TENSOR_DIMS);
    for (size_t i = 0; i < n_dims; i++) {
        const json_t *dim = json_array_get(shape, i);
        if (!json_is_integer(dim) || json_integer_value(dim) < 0)
            return FERRY_FAIL(p->err, FERRY_ERR_FORMAT,
                              "%s: tensor '%.*s': dimension %zu is no integer >= 0", p->file,
                              NAME_SHOWN, t->name, i);
        t->dims[i] = (uint64_t)json_integer_value(dim);
        if (!mul_u64(bytes, t->dims[i], &bytes))
            return FERRY_FAIL(p->err, FERRY_ERR_FORMAT,
                              "%s: tensor '%.*s': size overflows at dimension %zu (%llu)", p->file,
                              NAME_SHOWN, t->name, i, (ull)t->dims[i]);
    }
    t->n_dims = (int)n_dims;
    *ret_bytes = bytes;
    return FERRY_OK;
}

static enum ferry_status read_offsets(struct checkpoint_tensor *t, const json_t *info,
                                      uint64_t bytes, const struct parser *p)
{
    const json_t *offsets = json_object_get(info, "data_offsets");
    const json_t *first = json_array_get(offsets, 0);
    const json_t *last = json_array_get(offsets, 1);

    if (json_array_size(offsets) != 2 || !json_is_integer(first) || !json_is_integer(last))
        return FERRY_FAIL(p->err, FERRY_ERR_FORMAT,
                          "%s: tensor '%.*s': data_offsets missing or not two integers", p->file,
                          NAME_SHOWN, t->name);
    int64_t begin = (int64_t)json_integer_value(first);
    int64_t end = (int64_t)json_integer_value(last);
    if (begin < 0 || end < begin)
        return FERRY_FAIL(p->err, FERRY_ERR_FORMAT,
                          "%s: tensor '%.*s': data_offsets [%lld, %lld] run backwards", p->file,
                          NAME_SHOWN, t->name, (long long)begin, (long long)end);
    if ((uint64_t)end > p->data_bytes)
        return FERRY_FAIL(
            p->err, FERRY_ERR_FORMAT,
            "%s: truncated: tensor '%.*s' ends at offset %llu, the file has %zu bytes; "
            "fetch it again",
            p->file, NAME_SHOWN, t->name, (ull)end + (ull)p->header_end,
            p->header_end + p->data_bytes);
    if ((uint64_t)(end - begin) != bytes)
        return FERRY_FAIL(
            p->err, FERRY_ERR_FORMAT,
            "%s: tensor '%.*s' at offset %llu: data_offsets span %llu bytes, dtype and "
            "shape need %llu",
            p->file, NAME_SHOWN, t->name, (ull)begin + (ull)p->header_end, (ull)(end - begin),
            (ull)bytes);
    t->offset = (uint64_t)begin + p->header_end;
    t->size_bytes = bytes;
    t->data = p->data + begin;
    return FERRY_OK;
}

/* Unknown fields could change what the known ones mean. */
static enum ferry_status check_fields(const struct checkpoint_tensor *t, const json_t *info,
                                      const struct parser *p)
{
    const char *key;
    json_t *value;

    if (!json_is_object(info))
        return FERRY_FAIL(p->err, FERRY_ERR_FORMAT, "%s: tensor '%.*s': entry is no object",
                          p->file, NAME_SHOWN, t->name);
    json_object_foreach((json_t *)(uintptr_t)info, key, value)
    {
        if (strcmp(key, "dtype") != 0 && strcmp(key, "shape") != 0 &&
            strcmp(key, "data_offsets") != 0)
            return FERRY_FAIL(p->err, FERRY_ERR_FORMAT, "%s: tensor '%.*s': unknown field '%.*s'",
                              p->file, NAME_SHOWN, t->name, NAME_SHOWN, key);
    }
    return FERRY_OK;
}

static enum ferry_status read_tensor(struct checkpoint_tensor *t, const char *name,
                                     const json_t *info, const struct parser *p)
{
    size_t n = strlen(name);
    uint64_t bytes = 0;

    if (n == 0 || !utf8_is_name(name, n))
        return FERRY_FAIL(p->err, FERRY_ERR_FORMAT,
                          "%s: tensor name '%.*s' is empty or has control characters", p->file,
                          NAME_SHOWN, name);
    if (n > LIMIT_TENSOR_NAME)
        return FERRY_FAIL(p->err, FERRY_ERR_LIMIT,
                          "%s: tensor name '%.*s...' has %zu bytes, the limit is %d", p->file,
                          NAME_SHOWN, name, n, (int)LIMIT_TENSOR_NAME);
    t->file = p->file;
    t->name = arena_strndup(p->arena, name, n);
    if (t->name == NULL)
        return FERRY_FAIL(p->err, FERRY_ERR_NOMEM, "%s: out of memory for tensor names", p->file);
    enum ferry_status st = check_fields(t, info, p);
    if (st == FERRY_OK)
        st = read_dtype(t, info, p);
    if (st == FERRY_OK)
        st = read_shape(t, info, &bytes, p);
    if (st == FERRY_OK)
        st = read_offsets(t, info, bytes, p);
    return st;
}

static int by_offset(const void *a, const void *b)
{
    const struct checkpoint_tensor *x = a;
    const struct checkpoint_tensor *y = b;

    if (x->offset != y->offset)
        return x->offset < y->offset ? -1 : 1;
    return (x->size_bytes > y->size_bytes) - (x->size_bytes < y->size_bytes);
}

/* Sorts by offset and checks that the tensors tile the data: no hole, no overlap, no rest. */
static enum ferry_status check_tiling(struct tensor_list *list, const struct parser *p)
{
    uint64_t at = p->header_end;

    if (list->count > 1)
        qsort(list->items, list->count, sizeof *list->items, by_offset);
    for (size_t i = 0; i < list->count; i++) {
        const struct checkpoint_tensor *t = &list->items[i];
        if (t->offset != at)
            return FERRY_FAIL(p->err, FERRY_ERR_FORMAT,
                              "%s: tensor '%.*s' begins at offset %llu, the data before it end at "
                              "%llu: %s of %llu bytes",
                              p->file, NAME_SHOWN, t->name, (ull)t->offset, (ull)at,
                              t->offset > at ? "a hole" : "an overlap",
                              (ull)(t->offset > at ? t->offset - at : at - t->offset));
        at += t->size_bytes; /* read_offsets keeps it within the file */
    }
    if (at != p->header_end + p->data_bytes)
        return FERRY_FAIL(p->err, FERRY_ERR_FORMAT,
                          "%s: the tensors end at offset %llu, the file has %zu bytes: %llu bytes "
                          "belong to no tensor",
                          p->file, (ull)at, p->header_end + p->data_bytes,
                          (ull)(p->header_end + p->data_bytes - at));
    return FERRY_OK;
}

static enum ferry_status read_entries(struct tensor_list *list, json_t *header,
                                      const struct parser *p)
{
    const char *key;
    json_t *value;
    enum ferry_status st = FERRY_OK;
    size_t n = json_object_size(header);

    _Static_assert(LIMIT_HEADER_VALUES / 2 <= LIMIT_TENSORS,
                   "json_parse stops at half as many keys as values");
    list->items = arena_array(p->arena, n, sizeof *list->items);
    list->count = 0;
    if (list->items == NULL)
        return FERRY_FAIL(p->err, FERRY_ERR_NOMEM, "%s: out of memory for %zu tensors", p->file, n);
    json_object_foreach(header, key, value)
    {
        if (strcmp(key, "__metadata__") == 0)
            st = check_metadata(value, p);
        else
            st = read_tensor(&list->items[list->count++], key, value, p);
        if (st != FERRY_OK)
            return st;
    }
    return check_tiling(list, p);
}

enum ferry_status safetensors_parse(struct tensor_list *ret_list, struct arena *arena,
                                    const void *mem, size_t size, const char *file,
                                    struct ferry_error *err)
{
    const unsigned char *bytes = mem;
    json_t *header = NULL;
    size_t json_bytes = 0;
    struct tensor_list list = {0};

    enum ferry_status st = find_json(bytes, size, file, &json_bytes, err);
    if (st != FERRY_OK)
        return st;
    st = json_parse(&header, bytes + PREFIX_BYTES, json_bytes, LIMIT_HEADER_VALUES, file, err);
    if (st == FERRY_ERR_LIMIT)
        error_prefix(err, "fetch the checkpoint again, or split it into smaller shards: ");
    if (st != FERRY_OK)
        return st;
    struct parser p = {.data = bytes + PREFIX_BYTES + json_bytes,
                       .data_bytes = size - PREFIX_BYTES - json_bytes,
                       .header_end = PREFIX_BYTES + json_bytes,
                       .file = file,
                       .arena = arena,
                       .err = err};
    st = read_entries(&list, header, &p);
    if (st == FERRY_OK)
        *ret_list = list;
    json_decref(header);
    return st;
}
