/* Makers of test files. See make.h. */
#include "make.h"

#include "base/assert.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

void put(struct bytes *b, const void *data, size_t n)
{
    FERRY_ASSERT(n <= sizeof b->data - b->size);
    memcpy(b->data + b->size, data, n);
    b->size += n;
}

void put_int(struct bytes *b, uint64_t value, size_t n_bytes)
{
    for (size_t i = 0; i < n_bytes; i++) {
        unsigned char byte = (unsigned char)(i < 8 ? value >> (8 * i) : 0);
        put(b, &byte, 1);
    }
}

void put_string(struct bytes *b, const char *text)
{
    put_int(b, strlen(text), 8);
    put(b, text, strlen(text));
}

void gguf_spec_key(struct gguf_spec *spec, const char *key, uint32_t type, uint64_t value,
                   size_t n_bytes)
{
    put_string(&spec->keys, key);
    put_int(&spec->keys, type, 4);
    put_int(&spec->keys, value, n_bytes);
    spec->n_keys++;
}

void gguf_spec_key_string(struct gguf_spec *spec, const char *key, const char *value)
{
    gguf_spec_key(spec, key, GGUF_TYPE_STRING, strlen(value), 8);
    put(&spec->keys, value, strlen(value));
}

void gguf_spec_init(struct gguf_spec *spec)
{
    memset(spec, 0, sizeof *spec);
    spec->version = 3;
    spec->alignment = 32;
    gguf_spec_key_string(spec, "general.architecture", "test");
    gguf_spec_key(spec, "test.words", GGUF_TYPE_ARRAY, GGUF_TYPE_STRING, 4);
    put_int(&spec->keys, 3, 8);
    put_string(&spec->keys, "a");
    put_string(&spec->keys, "bc");
    put_string(&spec->keys, "");
    gguf_spec_key(spec, "test.numbers", GGUF_TYPE_ARRAY, GGUF_TYPE_I16, 4);
    put_int(&spec->keys, 2, 8);
    put_int(&spec->keys, 1, 2);
    put_int(&spec->keys, 0xFFFE, 2);
    spec->n_tensors = spec->n_written = 3;
    spec->tensors[0].name = "a";
    spec->tensors[0].n_dims = 2;
    spec->tensors[0].dims[0] = 32;
    spec->tensors[0].dims[1] = 2;
    spec->tensors[0].type = 0; /* F32: 256 bytes */
    spec->tensors[1].name = "b";
    spec->tensors[1].n_dims = 2;
    spec->tensors[1].dims[0] = 64;
    spec->tensors[1].dims[1] = 3;
    spec->tensors[1].type = 8; /* Q8_0: 204 bytes */
    spec->tensors[1].offset = 256;
    spec->tensors[2].name = "c";
    spec->tensors[2].n_dims = 1;
    spec->tensors[2].dims[0] = 5;
    spec->tensors[2].type = 1; /* F16: 10 bytes */
    spec->tensors[2].offset = 480;
    spec->data_bytes = 490;
}

void gguf_spec_write(const struct gguf_spec *spec, struct bytes *ret)
{
    ret->size = 0;
    put(ret, "GGUF", 4);
    put_int(ret, spec->version, 4);
    put_int(ret, spec->n_tensors, 8);
    put_int(ret, spec->n_keys, 8);
    put(ret, spec->keys.data, spec->keys.size);
    for (size_t i = 0; i < spec->n_written; i++) {
        put_string(ret, spec->tensors[i].name);
        put_int(ret, spec->tensors[i].n_dims, 4);
        for (uint32_t k = 0; k < spec->tensors[i].n_dims && k < 10; k++)
            put_int(ret, spec->tensors[i].dims[k], 8);
        put_int(ret, spec->tensors[i].type, 4);
        put_int(ret, spec->tensors[i].offset, 8);
    }
    while (ret->size % spec->alignment != 0)
        put_int(ret, 0, 1);
    for (size_t i = 0; i < spec->data_bytes; i++)
        put_int(ret, i, 1);
}

void make_safetensors(struct bytes *ret, const char *header, size_t n_data)
{
    ret->size = 0;
    put_string(ret, header);
    for (size_t i = 0; i < n_data; i++)
        put_int(ret, i, 1);
}

static uint64_t sum_bytes(const void *data, size_t n)
{
    const unsigned char *p = data;
    uint64_t sum = 0;
    for (size_t i = 0; i < n; i++)
        sum += p[i];
    return sum;
}

uint64_t walk_tensors(const struct tensor_list *list)
{
    uint64_t sum = 0;
    for (size_t i = 0; i < list->count; i++) {
        const struct checkpoint_tensor *t = &list->items[i];
        FERRY_ASSERT(t->n_dims >= 0);
        FERRY_ASSERT(t->n_dims <= 4);
        sum += sum_bytes(t->name, strlen(t->name)) + sum_bytes(t->data, (size_t)t->size_bytes);
    }
    return sum;
}

static uint64_t walk_array(const struct gguf_meta *meta, const char *key, enum gguf_type type,
                           size_t count)
{
    uint64_t sum = 0;
    for (size_t i = 0; i < count; i++) {
        if (type == GGUF_TYPE_STRING) {
            struct gguf_string s = gguf_array_string(meta, key, i);
            sum += sum_bytes(s.data, s.size);
            continue;
        }
        sum += gguf_array_f64(meta, key, i) > 0.0;
        if (type != GGUF_TYPE_F32 && type != GGUF_TYPE_F64)
            sum += (uint64_t)gguf_array_i64(meta, key, i);
    }
    return sum;
}

uint64_t walk_meta(const struct gguf_meta *meta)
{
    uint64_t sum = 0;
    for (size_t i = 0; i < gguf_n_keys(meta); i++) {
        const char *key = gguf_key(meta, i);
        char text[48];
        enum gguf_type type;
        size_t count;
        uint64_t u64 = 0;
        double f64 = 0.0;
        bool flag = false;
        struct gguf_string s = {0};
        gguf_describe(meta, i, text, sizeof text);
        FERRY_ASSERT(gguf_has(meta, key));
        if (gguf_get_array(meta, key, &type, &count))
            sum += walk_array(meta, key, type, count);
        if (gguf_get_string(meta, key, &s, NULL))
            sum += sum_bytes(s.data, s.size);
        (void)gguf_get_u64(meta, key, &u64, NULL);
        (void)gguf_get_f64(meta, key, &f64, NULL);
        (void)gguf_get_bool(meta, key, &flag, NULL);
        sum += sum_bytes(text, strlen(text)) + u64 + (f64 > 0.0) + flag;
    }
    return sum;
}

unsigned char *exact_copy(const void *data, size_t n)
{
    unsigned char *p = malloc(n > 0 ? n : 1);
    FERRY_ASSERT(p != NULL);
    if (n > 0)
        memcpy(p, data, n);
    return p;
}

void dir_make(struct dir *dir)
{
    const char *base = getenv("TMPDIR");
    (void)snprintf(dir->path, sizeof dir->path, "%s/ferry-test-XXXXXX",
                   base != NULL ? base : "/tmp");
    FERRY_ASSERT(mkdtemp(dir->path) != NULL);
}

void dir_remove(struct dir *dir)
{
    DIR *d = opendir(dir->path);
    FERRY_ASSERT(d != NULL);
    for (struct dirent *e = readdir(d); e != NULL; e = readdir(d)) {
        if (strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0)
            (void)unlink(dir_path(dir, e->d_name));
    }
    (void)closedir(d);
    (void)rmdir(dir->path);
}

const char *dir_path(const struct dir *dir, const char *name)
{
    static char paths[4][512];
    static int next;
    char *path = paths[next++ % 4];
    (void)snprintf(path, sizeof paths[0], "%s/%s", dir->path, name);
    return path;
}

void dir_write(const struct dir *dir, const char *name, const void *data, size_t n)
{
    FILE *f = fopen(dir_path(dir, name), "wb");
    FERRY_ASSERT(f != NULL);
    FERRY_ASSERT(fwrite(data, 1, n, f) == n);
    FERRY_ASSERT(fclose(f) == 0);
}

void dir_write_text(const struct dir *dir, const char *name, const char *text)
{
    dir_write(dir, name, text, strlen(text));
}
