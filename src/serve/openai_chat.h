/* Conversations: messages, tools and what else a chat template reads.
 *
 * Why here: templates of many models expect one tidy form: content as one string, no nulls, tool
 * arguments as objects. It must not know templates or tokens. */
#ifndef SERVE_OPENAI_CHAT_H
#define SERVE_OPENAI_CHAT_H

#include "serve/openai_fields.h"
#include "serve/openai_ignored.h"
#include "serve/openai_request.h"

/* Checks messages, tools, tool_choice, documents, reasoning_effort, add_generation_prompt,
 * continue_final_message and chat_template_kwargs of the body, tidies the messages in place, and
 * gives the variables for chat_encode, which the caller owns; they share values with the body. What
 * the template does not look at is refused or goes to `ignored`. *ret_n_bad_arguments: see
 * openai_request. Errors: FERRY_ERR_ARG, FERRY_ERR_UNSUPPORTED, FERRY_ERR_LIMIT, FERRY_ERR_NOMEM.
 */
enum ferry_status openai_chat_variables(const struct fields *fields,
                                        const struct openai_limits *limits,
                                        struct openai_ignored *ignored, json_t **ret_variables,
                                        size_t *ret_n_bad_arguments) FERRY_MUST_CHECK;

#endif
