/* The GGUF header, checked completely, and the form that metadata have behind gguf.h.
 *
 * Why here: gguf_parse.c builds it, gguf.c answers from it, checkpoint.c joins the shards. It works
 * on a memory range, so that tests and the fuzzer need no file. */
#ifndef FILE_GGUF_PARSE_H
#define FILE_GGUF_PARSE_H

#include "base/arena.h"
#include "file/checkpoint.h"
#include "file/gguf.h"
#include "file/safetensors.h"

enum { GGUF_TYPE_COUNT = GGUF_TYPE_F64 + 1 };

/* One key. Numbers are read from the file once, at open, except array elements. */
struct gguf_value {
    const char *key; /* ends with 0 */
    enum gguf_type type;
    enum gguf_type element_type;       /* of an array */
    size_t count;                      /* elements of an array */
    const unsigned char *raw;          /* the value's bytes in the file, behind its type */
    size_t raw_bytes;                  /* of a string: with its length field */
    const unsigned char *elements;     /* of an array of numbers */
    const struct gguf_string *strings; /* of an array of strings */
    struct gguf_string string;         /* of a string */
    uint64_t u64;                      /* of an unsigned integer or bool */
    int64_t i64;                       /* of a signed integer */
    double f64;                        /* of a float */
};

struct gguf_meta {
    const struct gguf_value *values;         /* in file order */
    const struct gguf_value *const *by_name; /* the same, sorted by key */
    size_t count;
};

struct gguf_contents {
    struct gguf_meta meta;
    struct tensor_list tensors; /* in file order; dims outermost first */
};

/* Reads header, keys and tensor directory of mem[0, size) and checks every range; reads no tensor
 * data. Everything lives in the arena except strings and data, which stay in mem. `file` is the
 * name for messages; it outlives the contents. Versions 2 and 3, little endian. Errors:
 * FERRY_ERR_FORMAT, FERRY_ERR_UNSUPPORTED, FERRY_ERR_LIMIT, FERRY_ERR_NOMEM.
 * Memory: at most about 250 bytes per key and tensor and 16 per string of an array, each of which
 * the file has been checked to hold. Source: the GGUF specification. */
enum ferry_status gguf_parse(struct gguf_contents *ret_contents, struct arena *arena,
                             const void *mem, size_t size, const char *file,
                             struct ferry_error *err) FERRY_MUST_CHECK;

/* Finds a key; NULL when absent. */
const struct gguf_value *gguf_find(const struct gguf_meta *meta, const char *key);

/* Bytes of one element of a type of fixed size; 0 for strings and arrays. */
size_t gguf_type_bytes(enum gguf_type type);

/* "u32", "string"; for messages. */
const char *gguf_type_name(enum gguf_type type);

#endif
