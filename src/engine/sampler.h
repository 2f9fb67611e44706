/* From one row of logits to a token: the same row, settings, seed and position always give the same
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

struct sampler_options {
    float temperature; /* 0: greedy */
    size_t top_k;      /* 0: all */
    float top_p;       /* 1: all */
    float min_p;       /* 0: all; keeps tokens with p >= min_p * p(best) */
    uint64_t seed;
    uint32_t choice; /* number of the answer when several are asked for */
};

/* FERRY_ERR_ARG names a setting that is out of range. */
enum ferry_status sampler_options_check(const struct sampler_options *options,
                                        struct ferry_error *err) FERRY_MUST_CHECK;

struct sampler;

/* n_vocab: ids that the model scores; n_valid: ids that the tokenizer knows, the rest is padding
 * and never sampled. FERRY_ERR_ARG names a setting that is out of range. */
enum ferry_status sampler_create(struct sampler **ret_sampler,
                                 const struct sampler_options *options, size_t n_vocab,
                                 size_t n_valid, const struct kernels *kernels,
                                 struct ferry_error *err) FERRY_MUST_CHECK;
void sampler_destroy(struct sampler *sampler);

/* The token at `position` of its sequence. Never allocates. */
int32_t sampler_sample(struct sampler *sampler, const float *logits, size_t position);

/* Highest logit, lowest id among equals, of the first n. */
int32_t sampler_argmax(const float *logits, size_t n);

/* Uniform in [0, 1), 24 bits, from (seed, choice, position): Philox4x32-10. For the sampler and its
 * tests. */
float sampler_uniform(uint64_t seed, uint32_t choice, uint64_t position);

/* Philox4x32-10: counter and key in, 128 random bits out. Source: Salmon et al., "Parallel random
 * numbers: as easy as 1, 2, 3". */
void philox4x32(const uint32_t counter[4], const uint32_t key[2], uint32_t ret[4]);

#endif
