/* Typed and range-checked look-ups in one object of a request.
 *
 * Why here: every field fails in the same way, with its full name in `param`. It must not know
 * which fields there are. A member that is null counts as absent: outputs are untouched then. */
#ifndef SERVE_OPENAI_FIELDS_H
#define SERVE_OPENAI_FIELDS_H

#include "serve/openai_error.h"

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* An object and where it stands: path is "" or "messages[3]." (borrowed). */
struct fields {
    const json_t *object;
    const char *path;
    struct openai_error *err;
};

/* Fails for the member `name`; the message says what is wrong with it, without its name. */
enum ferry_status field_fail(const struct fields *fields, const char *name,
                             enum ferry_status status, const char *format, ...) FERRY_PRINTF(4, 5);

/* NULL: absent or null. Borrowed. */
json_t *field_get(const struct fields *fields, const char *name);

/* FERRY_ERR_ARG: wrong type, or not in [min, max]. */
enum ferry_status field_int(const struct fields *fields, const char *name, int64_t min, int64_t max,
                            int64_t *ret) FERRY_MUST_CHECK;
enum ferry_status field_size(const struct fields *fields, const char *name, size_t min, size_t max,
                             size_t *ret) FERRY_MUST_CHECK;
enum ferry_status field_real(const struct fields *fields, const char *name, double min, double max,
                             float *ret) FERRY_MUST_CHECK;

/* FERRY_ERR_ARG: wrong type. What is returned is borrowed from the object. */
enum ferry_status field_bool(const struct fields *fields, const char *name,
                             bool *ret) FERRY_MUST_CHECK;
enum ferry_status field_string(const struct fields *fields, const char *name,
                               const char **ret) FERRY_MUST_CHECK;
enum ferry_status field_array(const struct fields *fields, const char *name, size_t max_items,
                              json_t **ret) FERRY_MUST_CHECK;
enum ferry_status field_object(const struct fields *fields, const char *name,
                               json_t **ret) FERRY_MUST_CHECK;

/* Ids from an array of integers in [0, n_vocab) (0: any int32_t that is not negative); its place is
 * `path` and "name". The caller frees *ret_ids (NULL when the array is empty) with mem_free. */
enum ferry_status field_ids(const struct fields *fields, const char *name, const json_t *array,
                            size_t n_vocab, int32_t **ret_ids, size_t *ret_n) FERRY_MUST_CHECK;

#endif
