/* JSON from hostile sources as jansson's values, and look-ups that tell "absent" from "wrong type".
 *
 * Why here: config.json, index files, tokenizer.json, safetensors headers and bodies of requests
 * share one reader and one set of limits: size, depth, number of values and keys (jansson spends up
 * to 250 bytes and two microseconds on each), no duplicate keys. */
#ifndef FILE_JSON_H
#define FILE_JSON_H

#include "ferry/status.h"

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Parses `size` bytes; white space may surround the one value. `name` (the file's) starts every
 * message. The caller owns *ret_json (json_decref). The time is linear in size. Errors:
 * FERRY_ERR_FORMAT (message with line and column, without the text itself), FERRY_ERR_LIMIT
 * (LIMIT_JSON_DEPTH, more than max_values values or half as many keys), FERRY_ERR_NOMEM. */
enum ferry_status json_parse(json_t **ret_json, const void *data, size_t size, size_t max_values,
                             const char *name, struct ferry_error *err) FERRY_MUST_CHECK;

/* The same for a file of at most LIMIT_JSON_FILE bytes and LIMIT_HEADER_VALUES values whose top
 * value is an object. Errors also as map_open(). */
enum ferry_status json_load_object(json_t **ret_json, const char *path,
                                   struct ferry_error *err) FERRY_MUST_CHECK;

/* Member `key` of `object` (NULL or no object: absent). Present with a fitting type: true and the
 * value written. Absent or null: false. Present with another type: false and *ret_bad (may be NULL)
 * set true, otherwise untouched. u64 takes integers >= 0; f64 takes integers too. Strings are
 * borrowed from the object. */
bool json_get_u64(const json_t *object, const char *key, uint64_t *ret, bool *ret_bad);
bool json_get_f64(const json_t *object, const char *key, double *ret, bool *ret_bad);
bool json_get_bool(const json_t *object, const char *key, bool *ret, bool *ret_bad);
bool json_get_string(const json_t *object, const char *key, const char **ret, bool *ret_bad);

#endif
