/* How much of prompts a step may carry, learned from what steps took.
 *
 * Why here: the scheduler decides who is in a step; how long it will take is a matter of numbers
 * alone. Only speed depends on it: no answer does (law 2). It must not know requests. */
#ifndef ENGINE_PACE_H
#define ENGINE_PACE_H

#include <stddef.h>
#include <stdint.h>

/* A step takes `fixed_ns` and `row_ns` for each of its tokens, of prompts and answers alike: they
 * go through the same weights. {.step_target_ns, .prefill_target_ns} to start. */
struct pace {
    uint64_t step_target_ns;    /* of a step with answers in it, if its answers leave room */
    uint64_t prefill_target_ns; /* of a step of prompts only */
    double fixed_ns, row_ns;    /* row_ns 0: nothing was measured */
    double cost_ns;             /* of a token on average, its share of fixed_ns in it */
    double n, rows, rows2, ns, rows_ns; /* sums over the last steps, older ones weigh less */
    double others;                      /* part of a step's time that went to other ranks' tokens */
};

/* A step of n_rows tokens (>= 1) took so long, others_ns (<= ns) of it for other ranks: computing
 * their rows, and waiting for them. Those are left out of what a token costs. If they were not, of
 * two ranks that prefill at once the one with fewer tokens would take itself for slow, take fewer
 * still, and be alone in the end. */
void pace_learn(struct pace *pace, size_t n_rows, uint64_t ns, uint64_t others_ns);

/* Prompt tokens for a step with n_decode answers, at most `most`. Without answers: as many as fit
 * into prefill_target_ns. Other ranks' tokens take their part of the targets, at most half of it:
 * where they and waiting take more, steps last longer than the targets. With answers: as many as
 * fit into step_target_ns, or into the time that the answers themselves take, whichever is more: so
 * prompts get about half of a step, however slow the model is, and nobody's next token takes much
 * longer than the target or twice what it would take without them. In any case CHUNK_MIN: with
 * fewer a prompt reads all weights for next to nothing. */
size_t pace_prompt_tokens(const struct pace *pace, size_t n_decode, size_t most);

#endif
