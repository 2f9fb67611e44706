/* The fields of a request that do nothing, for X-Ignored-Params.
 *
 * Why here: names come from clients and go into a header. It must not know which fields those are.
 */
#ifndef SERVE_OPENAI_IGNORED_H
#define SERVE_OPENAI_IGNORED_H

#include "ferry/status.h"
#include "serve/openai_error.h"
#include "text/unicode.h"

#include <stdbool.h>
#include <stddef.h>

/* {.strict = ...} to start, openai_ignored_fini to free. */
struct openai_ignored {
    bool strict; /* nothing may be ignored */
    size_t count;
    struct bytes names; /* joined by ", "; letters, digits and _ . - only, others are '?' */
};

/* Notes prefix and name; strict: FERRY_ERR_UNSUPPORTED with both in param. Beyond
 * OPENAI_IGNORED_MAX names only "..." is added, once. FERRY_ERR_NOMEM. */
enum ferry_status openai_ignored_add(struct openai_ignored *ignored, const char *prefix,
                                     const char *name, struct openai_error *err) FERRY_MUST_CHECK;

/* The value of the header, ended by 0, for mem_free; NULL when there is none. Leaves nothing to
 * free. FERRY_ERR_NOMEM. */
enum ferry_status openai_ignored_take(struct openai_ignored *ignored, char **ret_value,
                                      struct openai_error *err) FERRY_MUST_CHECK;

void openai_ignored_fini(struct openai_ignored *ignored);

#endif
