/* How to answer: sampling, lengths, stop strings, streaming, log-probabilities.
 *
 * Why here: chat and text completions share all of it. It must not know prompts or messages. */
#ifndef SERVE_OPENAI_SETTINGS_H
#define SERVE_OPENAI_SETTINGS_H

#include "serve/openai_fields.h"
#include "serve/openai_request.h"

/* Fills the settings of request (kind CHAT or COMPLETION, sampling as SAMPLER_OPTIONS_INIT,
 * n_choices 1) from the body; what it allocates is freed by openai_request_fini, on failure too.
 * Errors: FERRY_ERR_ARG, FERRY_ERR_UNSUPPORTED, FERRY_ERR_LIMIT, FERRY_ERR_NOMEM. */
enum ferry_status openai_settings_parse(const struct fields *fields,
                                        const struct openai_limits *limits,
                                        struct openai_request *request) FERRY_MUST_CHECK;

#endif
