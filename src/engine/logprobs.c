/* Log-softmax in fixed chunks, f64 sums. See logprobs.h. */
#include "engine/logprobs.h"

#include "base/fpmode.h"
#include "base/size.h"

#include <math.h>

enum { CHUNK = 1024 }; /* a multiple of the lanes, so that element i is always in lane i mod 16 */

/* The sum of exp(logit - max) in 16 f64 lanes and one tree, as math_sum16 does in f32. */
static double sum_exp(const struct kernels *kernels, const float *logits, size_t n, float max)
{
    double lane[KERNEL_SUM_LANES] = {0};
    float e[CHUNK];

    for (size_t begin = 0; begin < n; begin += CHUNK) {
        size_t count = min_size(CHUNK, n - begin);
        for (size_t i = 0; i < count; i++)
            e[i] = logits[begin + i] - max;
        kernels->exp(e, count);
        for (size_t i = 0; i < count; i++)
            lane[i % KERNEL_SUM_LANES] += (double)e[i];
    }
    for (size_t width = KERNEL_SUM_LANES / 2; width > 0; width /= 2)
        for (size_t l = 0; l < width; l++)
            lane[l] += lane[l + width];
    return lane[0];
}

/* The ids of the best n_top logits into top[].id, kept sorted; ids come in ascending order, so an
 * equal logit stays behind the one that was there. Returns the greatest logit. */
static float pick_top(const float *logits, size_t n, size_t n_top, struct token_logprob *top)
{
    size_t filled = 0;
    float max = -INFINITY;

    for (size_t i = 0; i < n; i++) {
        if (logits[i] > max)
            max = logits[i];
        if (n_top == 0 || (filled == n_top && !(logits[i] > logits[top[n_top - 1].id])))
            continue;
        size_t at = filled < n_top ? filled++ : n_top - 1;
        for (; at > 0 && logits[i] > logits[top[at - 1].id]; at--)
            top[at] = top[at - 1];
        top[at].id = (int32_t)i;
    }
    return max;
}

void logprobs_of(const struct kernels *kernels, const float *logits, size_t n_valid, int32_t id,
                 size_t n_top, struct logprobs *ret_logprobs)
{
    unsigned mode = fp_mode_enter();
    struct logprobs *r = ret_logprobs;

    r->n_top = min_size(min_size(n_top, n_valid), LOGPROBS_TOP_MAX);
    float max = pick_top(logits, n_valid, r->n_top, r->top);
    /* The sum is at least 1, so that no result is above 0. */
    double total = (double)max + math_log_f64(sum_exp(kernels, logits, n_valid, max));
    r->chosen = (struct token_logprob){id, (float)((double)logits[id] - total)};
    for (size_t i = 0; i < r->n_top; i++)
        r->top[i].logprob = (float)((double)logits[r->top[i].id] - total);
    fp_mode_leave(mode);
}
