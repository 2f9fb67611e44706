/* Log-probabilities as the API spells them, in its two shapes.
 *
 * Why here: tokens may be pieces of characters, JSON strings may not; both shapes need the same
 * answer to that. It must not know the objects around them. */
#ifndef SERVE_OPENAI_LOGPROBS_H
#define SERVE_OPENAI_LOGPROBS_H

#include "engine/scheduler.h"
#include "serve/json_writer.h"
#include "text/tokenizer.h"

#include <stddef.h>

/* Tokens in either of the forms that they come in; those without log-probabilities are passed over.
 * All borrowed. */
struct openai_tokens {
    const struct request_token *tokens; /* [n] of an event, or NULL: */
    const struct logprobs *logprobs;    /* [n] of a whole answer */
    size_t n;
};

/* A token's text as a JSON string: bytes that are no whole character are written \xE4, backslash
 * and all, so that different pieces stay different. tokenizer NULL: "". */
void openai_write_token_text(struct json_writer *w, const struct tokenizer *tokenizer, int32_t id);

/* {"content": [{"token", "logprob", "bytes", "top_logprobs"}], "refusal": null} */
void openai_write_chat_logprobs(struct json_writer *w, const struct tokenizer *tokenizer,
                                const struct openai_tokens *tokens, size_t n_top);

/* {"tokens", "token_logprobs", "top_logprobs", "text_offset"}. An entry of top_logprobs holds the
 * best n_top and the token itself; of tokens with the same text, the more likely one. *text_offset:
 * characters before the first token, moved on behind the last one; a token that begins inside a
 * character counts from behind it. */
void openai_write_completion_logprobs(struct json_writer *w, const struct tokenizer *tokenizer,
                                      const struct openai_tokens *tokens, size_t n_top,
                                      size_t *text_offset);

#endif
