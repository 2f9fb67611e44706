/* A line through the last steps. See pace.h.
 *
 * Why a fit and not two averages: while prompts come in without a pause there is no step of answers
 * alone that could be measured, and what answers cost grows with each prompt that ends. Averages
 * took that cost for the prompts' own, gave them 16 tokens a step and a quarter of the time. */
#include "engine/pace.h"

#include "base/size.h"

enum {
    FIRST_CHUNK = 128, /* prompt tokens of a step before anything was measured */
    CHUNK_MIN = 16,
};

static const double FORGET = 0.8; /* weight of a step, one step later */

/* Steps of nearly the same size say where the line is, not how steep: what was known of that stays,
 * as if it had been measured over a tenth of their size; on a machine that has become slower or
 * faster, in proportion. */
static const double TRUST = 0.1;

/* It is at most the mean cost of a token (the line does not begin below 0), and surely not so small
 * that a noisy step would let in a prompt of seconds. */
static const double LEAST_SHARE = 0.25;

/* Of a step's time for own tokens, whatever the others want. */
static const double OWN_LEAST = 0.5;

static double clamp(double x, double low, double high)
{
    return x < low ? low : x > high ? high : x;
}

void pace_learn(struct pace *pace, size_t n_rows, uint64_t ns, uint64_t others_ns)
{
    struct pace *p = pace;
    double rows = (double)n_rows, t = (double)(ns - others_ns);
    double part = ns > 0 ? (double)others_ns / (double)ns : 0;

    p->others = FORGET * p->others + (1 - FORGET) * part;

    p->n = FORGET * p->n + 1;
    p->rows = FORGET * p->rows + rows;
    p->rows2 = FORGET * p->rows2 + rows * rows;
    p->ns = FORGET * p->ns + t;
    p->rows_ns = FORGET * p->rows_ns + rows * t;
    double mean_rows = p->rows / p->n, mean_ns = p->ns / p->n, cost = mean_ns / mean_rows;
    double expected = p->fixed_ns + p->row_ns * mean_rows,
           known = expected > 0 ? p->row_ns * clamp(mean_ns / expected, 0.5, 2) : cost;
    double spread = p->rows2 / p->n - mean_rows * mean_rows,
           common = p->rows_ns / p->n - mean_rows * mean_ns,
           trust = TRUST * mean_rows * TRUST * mean_rows + 1;
    double slope = (common + trust * known) / (spread + trust);
    p->cost_ns = cost;
    p->row_ns = clamp(slope, LEAST_SHARE * cost, cost);
    p->fixed_ns = mean_ns - p->row_ns * mean_rows;
}

/* Of n answers alone. Few tokens do not read the weights of all experts, so the line is too high
 * for them; and their share of a larger step, whose tokens have them in common, is too low. */
static double answers_ns(const struct pace *p, size_t n)
{
    return (p->fixed_ns + p->row_ns * (double)n + p->cost_ns * (double)n) / 2;
}

size_t pace_prompt_tokens(const struct pace *pace, size_t n_decode, size_t most)
{
    double own = clamp(1 - pace->others, OWN_LEAST, 1);
    double all = own * (double)pace->prefill_target_ns;

    if (n_decode > 0) {
        double target = own * (double)pace->step_target_ns, twice = 2 * answers_ns(pace, n_decode);
        all = target > twice ? target : twice;
    }
    double n = FIRST_CHUNK;
    if (pace->row_ns > 0)
        n = (all - pace->fixed_ns) / pace->row_ns - (double)n_decode;
    if (n >= (double)most)
        return most;
    return min_size(n > CHUNK_MIN ? (size_t)n : CHUNK_MIN, most);
}
