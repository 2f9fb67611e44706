/* Sequences over a model: who owns which KV pages, how prompts are cut into steps, which tokens are
 * stepped together.
 *
 * Why here: everything above (the command line, later the server) speaks of sequences and tokens,
 * not of steps and pages. It must not know HTTP or text. One owning thread. */
#ifndef ENGINE_ENGINE_H
#define ENGINE_ENGINE_H

#include "ferry/status.h"
#include "model/model.h"

#include <stddef.h>
#include <stdint.h>

struct engine;
struct sequence;

struct engine_options {
    size_t n_sequences; /* most sequences at a time */
    size_t context;     /* most tokens of one sequence */
    size_t n_pages;     /* KV pages for all of them; 0: enough for every sequence at full context */
};

/* The model must outlive the engine. All memory that steps need is taken here. FERRY_ERR_NOMEM,
 * FERRY_ERR_LIMIT. */
enum ferry_status engine_create(struct engine **ret_engine, struct model *model,
                                const struct engine_options *options,
                                struct ferry_error *err) FERRY_MUST_CHECK;
void engine_destroy(struct engine *engine);

/* Rows of logits that a step may return for this vocabulary, so that their buffer stays small; for
 * model_options.step_logits. */
size_t engine_logit_rows(size_t step_tokens, size_t n_vocab);

/* Bytes that engine_create takes beside the model: the KV pages (all of them, touched or not) and
 * the logits buffer. */
size_t engine_bytes(const struct model *model, const struct engine_options *options);

/* A new empty sequence; FERRY_ERR_LIMIT when n_sequences exist. Closing gives its pages back. */
enum ferry_status sequence_open(struct engine *engine, struct sequence **ret_sequence,
                                struct ferry_error *err) FERRY_MUST_CHECK;
void sequence_close(struct engine *engine, struct sequence *sequence);

/* Tokens whose K and V are in the pages. */
size_t sequence_n_tokens(const struct sequence *sequence);

/* Forgets all tokens from position n on (n <= sequence_n_tokens). */
void sequence_truncate(struct engine *engine, struct sequence *sequence, size_t n);

/* Tokens to add to one sequence. */
struct engine_feed {
    struct sequence *sequence;
    const int32_t *ids;
    size_t n_tokens; /* >= 1 */
    size_t n_logits; /* logits wanted for the last n_logits tokens */
};

/* Called for each wanted row, in token order of its feed; logits [n_vocab] die with the call. A
 * status other than FERRY_OK stops the feeding and is returned. */
typedef enum ferry_status engine_logits_fn(void *arg, size_t feed_index, size_t position,
                                           const float *logits);

/* Adds tokens to distinct sequences, in as few steps as step_tokens allows; feeds advance together.
 * FERRY_ERR_CONTEXT_FULL (err names lengths), FERRY_ERR_NOMEM (no free page), FERRY_ERR_ARG (token
 * id), those of model_step. On an error the sequences keep the tokens of the steps before. Never
 * allocates. */
enum ferry_status engine_feed(struct engine *engine, const struct engine_feed *feeds,
                              size_t n_feeds, engine_logits_fn *on_logits, void *arg,
                              struct ferry_error *err) FERRY_MUST_CHECK;

struct model *engine_model(struct engine *engine);

/* Tokens that one sequence may hold. */
size_t engine_context(const struct engine *engine);

#endif
