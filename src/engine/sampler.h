/* From one row of logits to a token: the same row, settings and ids before it always give the same
 * token (law 2).
 *
 * Why here: sampling is the engine's last word; it must not know who asks. Contract:
 * docs/numerics.md, "Sampling". */
#ifndef ENGINE_SAMPLER_H
#define ENGINE_SAMPLER_H

#include "ferry/status.h"
#include "kernel/kernel.h"

#include <stddef.h>
#include <stdint.h>

/* Added to the logit of one id. SAMPLER_BIAS_BAN is not a number but a ban: that id is never
 * sampled, at whatever temperature. */
struct logit_bias {
    int32_t id;
    float bias; /* [SAMPLER_BIAS_BAN, 100] */
};

#define SAMPLER_BIAS_BAN (-100.0f)

/* The settings of one request. Start from SAMPLER_OPTIONS_INIT: all zeros are refused. */
struct sampler_options {
    float temperature;                         /* 0: greedy */
    size_t top_k;                              /* 0: all */
    float top_p;                               /* 1: all; 0: only the best */
    float min_p;                               /* 0: all; keeps tokens with p >= min_p * p(best) */
    float repetition_penalty;                  /* 1: none; over prompt and answer */
    float presence_penalty, frequency_penalty; /* 0: none; over the answer only */
    const struct logit_bias *biases;           /* [n_biases] borrowed; of one id, they all count */
    size_t n_biases;
    uint64_t seed;
    uint32_t choice; /* number of the answer when several are asked for */
};

/* Every token with its own probability. */
#define SAMPLER_OPTIONS_INIT                                  \
    {                                                         \
        .temperature = 1, .top_p = 1, .repetition_penalty = 1 \
    }

/* Ranges: temperature finite and >= 0; top_p, min_p in [0, 1]; repetition_penalty in [0.01, 100];
 * presence_penalty, frequency_penalty in [-100, 100]; biases in [-100, 100] with ids in [0,
 * n_vocab), fewer than n_vocab of them, so that bans leave a token. n_vocab: ids that may be
 * sampled (sampler_n_valid). FERRY_ERR_ARG names the field, as the API spells it, its value and its
 * range; NaN is in no range. Any thread. */
enum ferry_status sampler_options_check(const struct sampler_options *options, size_t n_vocab,
                                        struct ferry_error *err) FERRY_MUST_CHECK;

/* Scratch memory of one engine thread, shared by all its sequences: nothing of one call reaches the
 * next. */
struct sampler;

/* n_vocab: ids that the model scores; n_valid: ids that the tokenizer knows (0: all), the rest is
 * padding and never sampled. kernels borrowed. 28 bytes per valid id. FERRY_ERR_NOMEM. */
enum ferry_status sampler_create(struct sampler **ret_sampler, size_t n_vocab, size_t n_valid,
                                 const struct kernels *kernels,
                                 struct ferry_error *err) FERRY_MUST_CHECK;
void sampler_destroy(struct sampler *sampler);

/* Ids that may be sampled: [0, n). */
size_t sampler_n_valid(const struct sampler *sampler);

/* The token after ids [n_ids], of which the first n_prompt are the prompt; its position in the
 * random stream is n_ids. logits [n_vocab] raw, finite, not modified; options as
 * sampler_options_check passes them. ids may be NULL when no penalty is set; ids that cannot be
 * sampled are passed over. Always an id in [0, n_valid). O(n_vocab + n_ids); never allocates. */
int32_t sampler_sample(struct sampler *sampler, const struct sampler_options *options,
                       const float *logits, const int32_t *ids, size_t n_prompt, size_t n_ids);

/* Highest logit, lowest id among equals, of the first n. */
int32_t sampler_argmax(const float *logits, size_t n);

/* A seed for whoever gave none: below 2^53, which every reader of JSON can hold. Any thread. */
uint64_t sampler_draw_seed(void);

/* Uniform in [0, 1), 24 bits, from (seed, choice, position): Philox4x32-10. For the sampler and its
 * tests. */
float sampler_uniform(uint64_t seed, uint32_t choice, uint64_t position);

/* Philox4x32-10: counter and key in, 128 random bits out. Source: Salmon et al., "Parallel random
 * numbers: as easy as 1, 2, 3". */
void philox4x32(const uint32_t counter[4], const uint32_t key[2], uint32_t ret[4]);

#endif
