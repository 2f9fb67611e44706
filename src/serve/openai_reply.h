/* OpenAI's answers: objects, streamed chunks, lists and errors, written into a buffer.
 *
 * Why here: the exact shape of every byte that a client sees stands in one place; docs/api.md
 * describes it. It must not know sockets, threads or when a token is made. Whatever the bytes, what
 * is written is well-formed JSON in UTF-8. All functions report through the writer's `failed`. */
#ifndef SERVE_OPENAI_REPLY_H
#define SERVE_OPENAI_REPLY_H

#include "engine/scheduler.h"
#include "serve/json_writer.h"
#include "serve/openai_error.h"
#include "serve/openai_request.h"
#include "text/tokenizer.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* What all pieces of one answer share. The strings are borrowed. */
struct openai_head {
    enum openai_kind kind; /* CHAT or COMPLETION */
    const char *id;        /* chatcmpl-... or cmpl-... */
    int64_t created;       /* seconds since 1970 */
    const char *model;
    const char *fingerprint; /* the numerics string */
    uint64_t seed;           /* the one in effect; written as a signed number, as it was read */
    bool include_usage;      /* streams: every chunk has "usage": null, the last one numbers */
    bool logprobs;
    size_t n_top_logprobs;
    const struct tokenizer *tokenizer; /* for the texts of logprobs; NULL: they are empty */
};

struct openai_usage {
    size_t prompt_tokens, completion_tokens, cached_tokens;
};

/* ---- streams: every function writes whole events ("data: ...\n\n") ---- */

/* One piece of one choice. Everything is borrowed. */
struct openai_delta {
    size_t index;
    bool first;       /* CHAT: the piece has the role */
    const char *text; /* [text_size] */
    size_t text_size;
    const struct request_token *tokens; /* [n_tokens] with head.logprobs: their log-probabilities */
    size_t n_tokens;
    size_t *text_offset; /* COMPLETION with logprobs: characters of the choice's tokens so far,
                            moved on by the call; 0 at the start */
    const char *finish;  /* openai_finish_name with the last piece; NULL: there is more to come */
};

/* Allocates nothing once the writer has grown to the longest chunk. */
void openai_write_chunk(struct json_writer *w, const struct openai_head *head,
                        const struct openai_delta *delta);

/* The chunk without choices at the end, with include_usage. */
void openai_write_usage_chunk(struct json_writer *w, const struct openai_head *head,
                              const struct openai_usage *usage);

/* Instead of what was still to come: an event with an error object. The stream ends after it,
 * without [DONE], so that a broken answer is never taken for a complete one. */
void openai_write_error_event(struct json_writer *w, const struct openai_error *error);

/* data: [DONE] */
void openai_write_done(struct json_writer *w);

/* stop, length; abort (cancelled) and error, which a client should hear of by an error object. */
const char *openai_finish_name(enum request_finish finish);

/* ---- whole answers ---- */

/* One choice that is being collected: {0} to start, openai_choice_fini to free. */
struct openai_choice {
    struct json_writer text;   /* raw bytes */
    struct logprobs *logprobs; /* [n_logprobs] */
    size_t n_logprobs, logprobs_max;
    const char *finish; /* openai_finish_name */
};

/* Takes a copy of text [text_size] and of the log-probabilities of tokens [n_tokens] that have any.
 * False when out of memory. */
bool openai_choice_append(struct openai_choice *choice, const char *text, size_t text_size,
                          const struct request_token *tokens, size_t n_tokens);
void openai_choice_fini(struct openai_choice *choice);

/* The whole completion object; the place in choices [n_choices] is the index. */
void openai_write_answer(struct json_writer *w, const struct openai_head *head,
                         const struct openai_choice *choices, size_t n_choices,
                         const struct openai_usage *usage);

/* ---- the rest ---- */

/* {"error": {...}} */
void openai_write_error(struct json_writer *w, const struct openai_error *error);

struct openai_model {
    const char *name;
    int64_t created;
    size_t max_model_len; /* tokens of one sequence */
};
void openai_write_model(struct json_writer *w, const struct openai_model *model);
void openai_write_models(struct json_writer *w, const struct openai_model *models, size_t n);

/* {"count", "max_model_len", "tokens", "token_strs"}; tokenizer NULL: token_strs is null. */
void openai_write_tokens(struct json_writer *w, const int32_t *ids, size_t n, size_t max_model_len,
                         const struct tokenizer *tokenizer);

/* {"prompt"} */
void openai_write_prompt(struct json_writer *w, const char *text, size_t size);

#endif
