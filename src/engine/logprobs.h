/* Log-probabilities of one row of logits: the model's own, before penalties, biases and
 * temperature.
 *
 * Why here: they are read from the same row as the sampler's token and belong to the answer. It
 * must not know the API's spelling of them. Contract: docs/numerics.md, "Log-probabilities". */
#ifndef ENGINE_LOGPROBS_H
#define ENGINE_LOGPROBS_H

#include "kernel/kernel.h"

#include <stddef.h>
#include <stdint.h>

enum { LOGPROBS_TOP_MAX = 20 };

struct token_logprob {
    int32_t id;
    float logprob; /* natural logarithm, <= 0 */
};

struct logprobs {
    struct token_logprob chosen; /* the id that was asked for, in `top` or not */
    size_t n_top;
    struct token_logprob top[LOGPROBS_TOP_MAX]; /* best first, lower id first among equal logits */
};

/* Log-softmax of logits [n_valid] at `id` (0 <= id < n_valid) and at the best min(n_top, n_valid,
 * LOGPROBS_TOP_MAX) ids. logits raw and finite; n_valid as sampler_n_valid. The sum of exp over
 * distinct ids is at most 1 + 1e-6. Equal bits at every cpu level. Any thread; O(n_valid); never
 * allocates, never fails. */
void logprobs_of(const struct kernels *kernels, const float *logits, size_t n_valid, int32_t id,
                 size_t n_top, struct logprobs *ret_logprobs);

#endif
