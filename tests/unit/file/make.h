/* Makers of small files, good and bad, for the tests of src/file; and a folder to put them in. */
#ifndef TESTS_FILE_MAKE_H
#define TESTS_FILE_MAKE_H

#include "base/arena.h"
#include "file/gguf_parse.h"

#include <stddef.h>
#include <stdint.h>

/* A file in memory. */
struct bytes {
    unsigned char data[1 << 16];
    size_t size;
};

void put(struct bytes *b, const void *data, size_t n);
void put_int(struct bytes *b, uint64_t value, size_t n_bytes); /* little endian */
void put_string(struct bytes *b, const char *text);            /* u64 length + bytes */

/* GGUF file as a description that cases edit; the default one is valid. */
struct gguf_spec {
    uint32_t version;
    struct bytes keys;
    uint64_t n_keys;
    uint64_t n_tensors;
    struct {
        const char *name;
        uint32_t n_dims;
        uint64_t dims[10]; /* fastest first, as in the file */
        uint32_t type;
        uint64_t offset;
    } tensors[4];
    size_t n_written; /* tensors written, whatever n_tensors says */
    size_t alignment;
    size_t data_bytes;
};

/* Keys general.architecture = "test", test.words = ["a", "bc", ""], test.numbers = i16 [1, -2];
 * tensors a F32 [2, 32], b Q8_0 [3, 64], c F16 [5]. */
void gguf_spec_init(struct gguf_spec *spec);
void gguf_spec_key(struct gguf_spec *spec, const char *key, uint32_t type, uint64_t value,
                   size_t n_bytes);
void gguf_spec_key_string(struct gguf_spec *spec, const char *key, const char *value);
void gguf_spec_write(const struct gguf_spec *spec, struct bytes *ret);

/* safetensors file: the header text, then n_data bytes that count up. */
void make_safetensors(struct bytes *ret, const char *header, size_t n_data);

/* Reads every number, string, array element and tensor byte, so that a sanitizer sees a bad range;
 * returns a sum. */
uint64_t walk_tensors(const struct tensor_list *list);
uint64_t walk_meta(const struct gguf_meta *meta);

/* A copy whose end is the end of a heap block, so that reading past it is seen. */
unsigned char *exact_copy(const void *data, size_t n);

/* A new folder below the temporary one; dir_remove deletes it and the files in it. */
struct dir {
    char path[128];
};
void dir_make(struct dir *dir);
void dir_remove(struct dir *dir);
/* Path of a name in it, valid until the fourth call after. */
const char *dir_path(const struct dir *dir, const char *name);
void dir_write(const struct dir *dir, const char *name, const void *data, size_t n);
void dir_write_text(const struct dir *dir, const char *name, const char *text);

#endif
