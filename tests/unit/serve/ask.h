/* Requests for the tests of the OpenAI layer: what a body becomes, or why not. Test code only. */
#ifndef TESTS_SERVE_ASK_H
#define TESTS_SERVE_ASK_H

#include "../unit.h"

#include "serve/openai_request.h"

/* One model "m", 300 ids, a begin-of-text token, a template that looks at everything. */
extern const struct openai_limits ASK_LIMITS;

/* Parses body, 0-terminated, and fails the test when that fails. The caller frees *ret. */
void expect_taken(enum openai_kind kind, const struct openai_limits *limits, const char *body,
                  struct openai_request *ret);

/* Expects an answer with this HTTP status, param ("": none) and a message that holds `part`. */
void expect_denied(enum openai_kind kind, const struct openai_limits *limits, const char *body,
                   int http, const char *param, const char *part);

/* A table of refusals with ASK_LIMITS. */
struct refusal {
    const char *body;
    const char *param, *part;
};
void expect_all_denied(enum openai_kind kind, const struct refusal *refusals, size_t n);

/* Expects the JSON value to equal the text (compared as values). */
void expect_json(const json_t *value, const char *text);

/* Parses [size] bytes without any limit but JSON's own and fails the test when they are none. The
 * caller owns it. */
json_t *read_json(const char *data, size_t size);

#endif
