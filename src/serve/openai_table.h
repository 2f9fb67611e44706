/* The table of all fields: which are used, which do nothing, which are refused.
 *
 * Why here: "ignored without a word" must be impossible; a field that is in no row is listed as
 * ignored. It must not know what a field's value means. docs/api.md says the same in prose. */
#ifndef SERVE_OPENAI_TABLE_H
#define SERVE_OPENAI_TABLE_H

#include "serve/openai_fields.h"
#include "serve/openai_ignored.h"
#include "serve/openai_request.h"

/* Walks the members of the body: refuses known fields that are not supported, unless their value
 * asks for nothing; checks the types of those without effect; notes unknown ones. Errors:
 * FERRY_ERR_UNSUPPORTED, FERRY_ERR_ARG, FERRY_ERR_NOMEM. */
enum ferry_status openai_table_check(enum openai_kind kind, const struct fields *fields,
                                     struct openai_ignored *ignored) FERRY_MUST_CHECK;

#endif
