/* GGUF metadata keys: typed look-ups that never trust the file.
 *
 * Why apart from checkpoint.h: only `model` (configuration) and `text` (vocabulary) read keys. */
#ifndef FILE_GGUF_H
#define FILE_GGUF_H

#include "ferry/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct gguf_meta;

enum gguf_type {
    GGUF_TYPE_U8,
    GGUF_TYPE_I8,
    GGUF_TYPE_U16,
    GGUF_TYPE_I16,
    GGUF_TYPE_U32,
    GGUF_TYPE_I32,
    GGUF_TYPE_F32,
    GGUF_TYPE_BOOL,
    GGUF_TYPE_STRING,
    GGUF_TYPE_ARRAY,
    GGUF_TYPE_U64,
    GGUF_TYPE_I64,
    GGUF_TYPE_F64,
};

/* A string in the mapping: not terminated, may hold any byte. */
struct gguf_string {
    const char *data;
    size_t size;
};

/* Whether the key exists, whatever its type. */
bool gguf_has(const struct gguf_meta *meta, const char *key);

/* Typed reads. Present with a fitting type: true, value written. Integers convert when the value
 * fits; get_f64 takes f32, f64 and integers. Absent: false and *ret untouched. Present with another
 * type: *ret_bad (if not NULL) set true, returns false. */
bool gguf_get_u64(const struct gguf_meta *meta, const char *key, uint64_t *ret, bool *ret_bad);
bool gguf_get_f64(const struct gguf_meta *meta, const char *key, double *ret, bool *ret_bad);
bool gguf_get_bool(const struct gguf_meta *meta, const char *key, bool *ret, bool *ret_bad);
bool gguf_get_string(const struct gguf_meta *meta, const char *key, struct gguf_string *ret,
                     bool *ret_bad);

/* Arrays: element type and count; false when absent or no array. */
bool gguf_get_array(const struct gguf_meta *meta, const char *key, enum gguf_type *ret_type,
                    size_t *ret_count);

/* Element i < count of an array of that kind (checked by FERRY_ASSERT against gguf_get_array's
 * answer); strings in O(1) (an index is built at open). */
struct gguf_string gguf_array_string(const struct gguf_meta *meta, const char *key, size_t i);
double gguf_array_f64(const struct gguf_meta *meta, const char *key, size_t i);
int64_t gguf_array_i64(const struct gguf_meta *meta, const char *key, size_t i);

/* Key number i in file order, for `inspect`; NULL-terminated text of a scalar or a summary of an
 * array in text. */
size_t gguf_n_keys(const struct gguf_meta *meta);
const char *gguf_key(const struct gguf_meta *meta, size_t i);
void gguf_describe(const struct gguf_meta *meta, size_t i, char *text, size_t size);

#endif
