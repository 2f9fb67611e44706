/* From bytes of a client to one JSON object, or to an error that says where they are wrong.
 *
 * Why here: file/json.h knows files; a client wants the byte that is no UTF-8 and the field whose
 * number no machine can hold. It must not know any field. */
#ifndef SERVE_OPENAI_BODY_H
#define SERVE_OPENAI_BODY_H

#include "serve/openai_error.h"

#include <jansson.h>
#include <stddef.h>

/* Parses body [size], at most max_values values and half as many keys; a byte order mark is passed
 * over. The caller owns *ret_json, an object. Errors: FERRY_ERR_FORMAT (ill-formed UTF-8 with its
 * offset, bad JSON with line and column, no object), FERRY_ERR_LIMIT (size, depth, values),
 * FERRY_ERR_ARG (a number that is not finite or does not fit; param is the top-level field it
 * stands in), FERRY_ERR_NOMEM. No message quotes the body. */
enum ferry_status openai_body_parse(json_t **ret_json, const void *body, size_t size,
                                    size_t max_values, struct openai_error *err) FERRY_MUST_CHECK;

#endif
