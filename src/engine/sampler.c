/* Greedy and random sampling with a counter-based generator. See sampler.h. */
#include "engine/sampler.h"

#include "base/alloc.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/fpmode.h"
#include "base/size.h"

#include <float.h>
#include <math.h>
#include <string.h>
#include <sys/random.h>

/* Ranges of the settings: those of OpenAI's and vLLM's clients and what is harmless beyond. */
#define BIAS_MAX       100.0f
#define PENALTY_MAX    100.0f /* clients: 2 */
#define REPETITION_MIN 0.01f  /* clients: above 0, up to 2 */
#define REPETITION_MAX 100.0f

/* Sorting is by digits of the key: three passes over 32 bits. */
enum { DIGIT_BITS = 11, N_DIGITS = 1 << DIGIT_BITS, N_PASSES = 3 };

/* Candidates that are less likely than the best by more than e^-TIER are sorted only when the
 * others do not suffice. It changes the cost, never the token. */
#define TIER 10.0f

/* A token in the running; keys ascend where logits descend. */
struct candidate {
    uint32_t key;
    int32_t id;
};

struct sampler {
    const struct kernels *kernels;
    size_t n_valid;
    struct candidate *order; /* [n_valid] best first, as far as sorted */
    struct candidate *other; /* [n_valid] for sorting */
    float *probs;            /* [n_valid] by id */
    float *adjusted;         /* [n_valid] by id: logits after biases and penalties */
    uint32_t *counts;        /* [n_valid] by id: occurrences; all 0 between calls */
    size_t n_sorted;
    uint32_t digits[N_PASSES][N_DIGITS];
};

void philox4x32(const uint32_t counter[4], const uint32_t key[2], uint32_t ret[4])
{
    uint32_t c[4] = {counter[0], counter[1], counter[2], counter[3]}, k[2] = {key[0], key[1]};

    for (int round = 0; round < 10; round++) {
        uint64_t a = (uint64_t)0xD2511F53u * c[0], b = (uint64_t)0xCD9E8D57u * c[2];
        uint32_t n0 = (uint32_t)(b >> 32) ^ c[1] ^ k[0], n2 = (uint32_t)(a >> 32) ^ c[3] ^ k[1];
        c[0] = n0;
        c[1] = (uint32_t)b;
        c[2] = n2;
        c[3] = (uint32_t)a;
        k[0] += 0x9E3779B9u;
        k[1] += 0xBB67AE85u;
    }
    memcpy(ret, c, sizeof c);
}

uint64_t sampler_draw_seed(void)
{
    uint64_t seed;

    if (getrandom(&seed, sizeof seed, 0) != (ssize_t)sizeof seed)
        seed = clock_now_ns();
    return seed >> 11;
}

float sampler_uniform(uint64_t seed, uint32_t choice, uint64_t position)
{
    uint32_t counter[4] = {(uint32_t)position, (uint32_t)(position >> 32), choice, 0};
    uint32_t key[2] = {(uint32_t)seed, (uint32_t)(seed >> 32)}, out[4];

    philox4x32(counter, key, out);
    return (float)(out[0] >> 8) * 0x1p-24f;
}

/* lo <= value <= hi; NaN is outside. */
static enum ferry_status check_range(const char *field, float value, float lo, float hi,
                                     struct ferry_error *err)
{
    if (value >= lo && value <= hi)
        return FERRY_OK;
    return FERRY_FAIL(err, FERRY_ERR_ARG, "%s %g is not in [%g, %g]", field, (double)value,
                      (double)lo, (double)hi);
}

static enum ferry_status check_biases(const struct logit_bias *biases, size_t n, size_t n_vocab,
                                      struct ferry_error *err)
{
    if (n >= n_vocab && n > 0)
        return FERRY_FAIL(err, FERRY_ERR_ARG,
                          "logit_bias has %zu entries and the vocabulary %zu ids; at least one id "
                          "must stay without",
                          n, n_vocab);
    for (size_t i = 0; i < n; i++) {
        if (biases[i].id < 0 || (size_t)biases[i].id >= n_vocab)
            return FERRY_FAIL(err, FERRY_ERR_ARG, "logit_bias id %d is not in [0, %zu)",
                              biases[i].id, n_vocab);
        if (!(biases[i].bias >= SAMPLER_BIAS_BAN && biases[i].bias <= BIAS_MAX))
            return FERRY_FAIL(err, FERRY_ERR_ARG, "logit_bias %g of id %d is not in [%g, %g]",
                              (double)biases[i].bias, biases[i].id, (double)SAMPLER_BIAS_BAN,
                              (double)BIAS_MAX);
    }
    return FERRY_OK;
}

enum ferry_status sampler_options_check(const struct sampler_options *options, size_t n_vocab,
                                        struct ferry_error *err)
{
    const struct {
        const char *field;
        float value, lo, hi;
    } ranges[] = {
        {"top_p", options->top_p, 0, 1},
        {"min_p", options->min_p, 0, 1},
        {"repetition_penalty", options->repetition_penalty, REPETITION_MIN, REPETITION_MAX},
        {"presence_penalty", options->presence_penalty, -PENALTY_MAX, PENALTY_MAX},
        {"frequency_penalty", options->frequency_penalty, -PENALTY_MAX, PENALTY_MAX},
    };

    if (!(options->temperature >= 0) || !isfinite(options->temperature))
        return FERRY_FAIL(err, FERRY_ERR_ARG, "temperature %g is not a number >= 0",
                          (double)options->temperature);
    for (size_t i = 0; i < sizeof ranges / sizeof ranges[0]; i++) {
        enum ferry_status st =
            check_range(ranges[i].field, ranges[i].value, ranges[i].lo, ranges[i].hi, err);
        if (st != FERRY_OK)
            return st;
    }
    return check_biases(options->biases, options->n_biases, n_vocab, err);
}

enum ferry_status sampler_create(struct sampler **ret_sampler, size_t n_vocab, size_t n_valid,
                                 const struct kernels *kernels, struct ferry_error *err)
{
    struct sampler *s = mem_zero(sizeof *s);

    if (s == NULL)
        return FERRY_FAIL(err, FERRY_ERR_NOMEM, "sampler: no memory");
    s->kernels = kernels;
    s->n_valid = n_valid > 0 ? min_size(n_valid, n_vocab) : n_vocab;
    s->order = mem_array(s->n_valid, sizeof *s->order);
    s->other = mem_array(s->n_valid, sizeof *s->other);
    s->probs = mem_array(s->n_valid, sizeof *s->probs);
    s->adjusted = mem_array(s->n_valid, sizeof *s->adjusted);
    s->counts = mem_array(s->n_valid, sizeof *s->counts);
    if (s->order == NULL || s->other == NULL || s->probs == NULL || s->adjusted == NULL ||
        s->counts == NULL) {
        size_t n = s->n_valid;
        sampler_destroy(s);
        return FERRY_FAIL(err, FERRY_ERR_NOMEM, "sampler: no memory for %zu candidates", n);
    }
    *ret_sampler = s;
    return FERRY_OK;
}

void sampler_destroy(struct sampler *sampler)
{
    if (sampler == NULL)
        return;
    mem_free(sampler->order);
    mem_free(sampler->other);
    mem_free(sampler->probs);
    mem_free(sampler->adjusted);
    mem_free(sampler->counts);
    mem_free(sampler);
}

size_t sampler_n_valid(const struct sampler *sampler)
{
    return sampler->n_valid;
}

int32_t sampler_argmax(const float *logits, size_t n)
{
    size_t best = 0;

    for (size_t i = 1; i < n; i++) {
        if (logits[i] > logits[best])
            best = i;
    }
    return (int32_t)best;
}

/* ---- the order of candidates: logit descending, then lower id ---- */

/* -0 and +0 are equal. */
static uint32_t key_of(float logit)
{
    float x = logit + 0.0f;
    uint32_t bits;

    memcpy(&bits, &x, sizeof bits);
    return (bits >> 31) != 0 ? bits : ~bits & 0x7FFFFFFFu;
}

/* Stable, so that equal keys keep the ids' order. a and b [n]; returns the one that is sorted. */
static struct candidate *sort(struct candidate *a, struct candidate *b, size_t n,
                              uint32_t digits[N_PASSES][N_DIGITS])
{
    memset(digits, 0, N_PASSES * sizeof digits[0]);
    for (size_t i = 0; i < n; i++) {
        for (int pass = 0; pass < N_PASSES; pass++)
            digits[pass][(a[i].key >> (pass * DIGIT_BITS)) % N_DIGITS]++;
    }
    for (int pass = 0; pass < N_PASSES; pass++) {
        uint32_t *starts = digits[pass], start = 0;
        for (size_t d = 0; d < N_DIGITS; d++) {
            uint32_t count = starts[d];
            starts[d] = start;
            start += count;
        }
        for (size_t i = 0; i < n; i++)
            b[starts[(a[i].key >> (pass * DIGIT_BITS)) % N_DIGITS]++] = a[i];
        struct candidate *t = a;
        a = b;
        b = t;
    }
    return a;
}

/* Appends the candidates at or above `floor` (below it: the rest) to the order. */
static void sort_tier(struct sampler *s, const float *logits, float floor, bool below)
{
    struct candidate *to = s->order + s->n_sorted;
    size_t n = 0;

    for (size_t i = 0; i < s->n_valid; i++) {
        if ((logits[i] >= floor) == below) /* one tier or the other, NaN too */
            continue;
        to[n++] = (struct candidate){key_of(logits[i]), (int32_t)i};
    }
    struct candidate *sorted = sort(to, s->other, n, s->digits);
    if (sorted != to)
        memcpy(to, sorted, n * sizeof *to);
    s->n_sorted += n;
}

/* The candidate at `place`, 0 the best; floor: that of the first tier. */
static int32_t candidate_at(struct sampler *s, const float *logits, float floor, size_t place)
{
    if (place >= s->n_sorted)
        sort_tier(s, logits, floor, true);
    return s->order[place].id;
}

/* ---- biases and penalties ---- */

static bool has_adjustments(const struct sampler_options *o)
{
    return o->n_biases > 0 || o->repetition_penalty != 1 || o->presence_penalty != 0 ||
           o->frequency_penalty != 0;
}

/* Settings do not make an infinity of a finite logit, nor bring one back. */
static float stay_finite(float before, float after)
{
    if (!isfinite(before))
        return before;
    return after > FLT_MAX ? FLT_MAX : after < -FLT_MAX ? -FLT_MAX : after;
}

static void add_biases(float *logits, size_t n, const struct logit_bias *biases, size_t n_biases)
{
    for (size_t i = 0; i < n_biases; i++) {
        size_t id = (size_t)biases[i].id; /* a negative one is beyond n, too */
        if (id < n && biases[i].bias > SAMPLER_BIAS_BAN)
            logits[id] = stay_finite(logits[id], logits[id] + biases[i].bias);
    }
}

/* After everything that could bring one back. */
static void ban(float *logits, size_t n, const struct logit_bias *biases, size_t n_biases)
{
    for (size_t i = 0; i < n_biases; i++) {
        size_t id = (size_t)biases[i].id;
        if (id < n && biases[i].bias <= SAMPLER_BIAS_BAN)
            logits[id] = -INFINITY;
    }
}

/* Once per distinct id: towards 0 when positive, away from it when negative (penalty above 1). */
static void penalize_repetition(float *logits, uint32_t *counts, size_t n, const int32_t *ids,
                                size_t n_ids, float penalty)
{
    for (size_t i = 0; i < n_ids; i++) {
        size_t id = (size_t)ids[i];
        if (id >= n || counts[id]++ > 0)
            continue;
        float x = logits[id];
        logits[id] = stay_finite(x, x > 0 ? x / penalty : x * penalty);
    }
    for (size_t i = 0; i < n_ids; i++) {
        if ((size_t)ids[i] < n)
            counts[ids[i]] = 0;
    }
}

static void penalize_answer(float *logits, uint32_t *counts, size_t n, const int32_t *ids,
                            size_t n_ids, const struct sampler_options *o)
{
    for (size_t i = 0; i < n_ids; i++) {
        if ((size_t)ids[i] < n)
            counts[ids[i]]++;
    }
    for (size_t i = 0; i < n_ids; i++) {
        size_t id = (size_t)ids[i];
        if (id >= n || counts[id] == 0)
            continue;
        float x = logits[id] - (float)counts[id] * o->frequency_penalty;
        logits[id] = stay_finite(logits[id], x - o->presence_penalty);
        counts[id] = 0;
    }
}

/* A copy of the logits with biases and penalties. */
static const float *adjust(struct sampler *s, const struct sampler_options *o, const float *logits,
                           const int32_t *ids, size_t n_prompt, size_t n_ids)
{
    size_t n = s->n_valid;

    memcpy(s->adjusted, logits, n * sizeof *logits);
    add_biases(s->adjusted, n, o->biases, o->n_biases);
    if (o->repetition_penalty != 1)
        penalize_repetition(s->adjusted, s->counts, n, ids, n_ids, o->repetition_penalty);
    if (n_ids > n_prompt && (o->presence_penalty != 0 || o->frequency_penalty != 0))
        penalize_answer(s->adjusted, s->counts, n, ids + n_prompt, n_ids - n_prompt, o);
    ban(s->adjusted, n, o->biases, o->n_biases);
    return s->adjusted;
}

/* ---- the draw ---- */

/* How many of the best candidates are kept, and the sum of their probabilities. */
static size_t keep(struct sampler *s, const struct sampler_options *o, const float *logits,
                   float floor, double *ret_sum)
{
    size_t limit = o->top_k > 0 ? min_size(o->top_k, s->n_valid) : s->n_valid, n_kept = 0;
    double sum = 0;
    float best = 0;

    while (n_kept < limit && (n_kept == 0 || sum < (double)o->top_p)) {
        float prob = s->probs[candidate_at(s, logits, floor, n_kept)];
        if (n_kept == 0)
            best = prob;
        else if (prob < o->min_p * best)
            break;
        n_kept++;
        sum += (double)prob;
    }
    *ret_sum = sum;
    return n_kept;
}

/* logits [n_valid]; max: the greatest, finite. u in [0, 1). */
static int32_t draw(struct sampler *s, const struct sampler_options *o, const float *logits,
                    float max, double u)
{
    size_t n_kept = s->n_valid;
    float floor = max - TIER * o->temperature;
    double sum = 0, seen = 0;
    int32_t id = 0;

    /* Probabilities over the whole vocabulary first: top-p and min-p speak of them. */
    for (size_t i = 0; i < s->n_valid; i++)
        s->probs[i] = (logits[i] - max) / o->temperature; /* at most 0: cannot overflow */
    s->kernels->softmax(s->probs, s->n_valid);
    s->n_sorted = 0;
    sort_tier(s, logits, floor, false);
    if (o->top_k > 0 || o->top_p < 1 || o->min_p > 0)
        n_kept = keep(s, o, logits, floor, &sum);
    else
        for (size_t i = 0; i < s->n_valid; i++)
            sum += (double)s->probs[i];
    for (size_t i = 0; i < n_kept; i++) {
        id = candidate_at(s, logits, floor, i);
        seen += (double)s->probs[id];
        if (u * sum < seen)
            break;
    }
    return id;
}

static int32_t sample(struct sampler *s, const struct sampler_options *o, const float *logits,
                      const int32_t *ids, size_t n_prompt, size_t n_ids)
{
    const float *used = has_adjustments(o) ? adjust(s, o, logits, ids, n_prompt, n_ids) : logits;
    int32_t best = sampler_argmax(used, s->n_valid);

    if (!(used[best] >= -FLT_MAX)) /* every id is banned: then none is */
        return sampler_argmax(logits, s->n_valid);
    if (o->temperature == 0)
        return best;
    return draw(s, o, used, used[best], (double)sampler_uniform(o->seed, o->choice, n_ids));
}

int32_t sampler_sample(struct sampler *sampler, const struct sampler_options *options,
                       const float *logits, const int32_t *ids, size_t n_prompt, size_t n_ids)
{
    unsigned mode = fp_mode_enter(); /* the caller's rounding must not show in the token */
    int32_t id = sample(sampler, options, logits, ids, n_prompt, n_ids);
    fp_mode_leave(mode);
    return id;
}
