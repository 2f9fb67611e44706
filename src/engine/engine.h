/* Sequences over a model: their KV pages, and steps over several of them.
 *
 * Why here: everything above (the command line, later the server) speaks of sequences and tokens,
 * not of steps and pages. It must not know HTTP or text. One owning thread. */
#ifndef ENGINE_ENGINE_H
#define ENGINE_ENGINE_H

#include "engine/pages.h"
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

/* Takes over what earlier sequences published of ids [n_ids] under `key`; the sequence is empty.
 * Returns how many tokens it has now. */
size_t sequence_attach(struct engine *engine, struct sequence *sequence,
                       const unsigned char key[PAGE_KEY_BYTES], const int32_t *ids, size_t n_ids);

/* Lets later sequences with the same key find the full pages of this one; ids: all its tokens.
 * Cheap when there is nothing new. */
void sequence_publish(struct engine *engine, struct sequence *sequence,
                      const unsigned char key[PAGE_KEY_BYTES], const int32_t *ids);

/* Pages for n_more tokens; engine_step and engine_feed call it, the scheduler calls it first to see
 * whether a step will have room. FERRY_ERR_NOMEM: every page is in use. */
enum ferry_status sequence_reserve(struct engine *engine, struct sequence *sequence, size_t n_more,
                                   struct ferry_error *err) FERRY_MUST_CHECK;

/* Tokens that fit into the pages it has and may write. */
size_t sequence_room(const struct sequence *sequence);

/* Pages in all, and those that sequence_reserve can still get. */
size_t engine_n_pages(const struct engine *engine);
size_t engine_n_pages_available(const struct engine *engine);

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

/* Exactly one step over all feeds: at most step_tokens tokens and step_logits rows in all. On an
 * error no sequence has changed. Otherwise as engine_feed. */
enum ferry_status engine_step(struct engine *engine, const struct engine_feed *feeds,
                              size_t n_feeds, engine_logits_fn *on_logits, void *arg,
                              struct ferry_error *err) FERRY_MUST_CHECK;

struct model *engine_model(struct engine *engine);

/* Sequences at a time. */
size_t engine_n_sequences(const struct engine *engine);

/* Tokens that one sequence may hold. */
size_t engine_context(const struct engine *engine);

#endif
