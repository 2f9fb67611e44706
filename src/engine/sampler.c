/* Greedy and random sampling with a counter-based generator. See sampler.h. */
#include "engine/sampler.h"

#include "base/alloc.h"
#include "base/error.h"
#include "base/fpmode.h"
#include "base/size.h"

#include <math.h>
#include <string.h>

/* A token that is still in the running. */
struct candidate {
    float logit;
    int32_t id;
};

struct sampler {
    struct sampler_options options;
    const struct kernels *kernels;
    size_t n_valid;
    struct candidate *heap; /* [n_valid] */
    float *probs;           /* [n_valid] */
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

float sampler_uniform(uint64_t seed, uint32_t choice, uint64_t position)
{
    uint32_t counter[4] = {(uint32_t)position, (uint32_t)(position >> 32), choice, 0};
    uint32_t key[2] = {(uint32_t)seed, (uint32_t)(seed >> 32)}, out[4];

    philox4x32(counter, key, out);
    return (float)(out[0] >> 8) * 0x1p-24f;
}

enum ferry_status sampler_options_check(const struct sampler_options *options,
                                        struct ferry_error *err)
{
    if (!(options->temperature >= 0) || !isfinite(options->temperature))
        return FERRY_FAIL(err, FERRY_ERR_ARG, "temperature %g is not a number >= 0",
                          (double)options->temperature);
    if (!(options->top_p > 0 && options->top_p <= 1))
        return FERRY_FAIL(err, FERRY_ERR_ARG, "top-p %g is not in (0, 1]", (double)options->top_p);
    if (!(options->min_p >= 0 && options->min_p <= 1))
        return FERRY_FAIL(err, FERRY_ERR_ARG, "min-p %g is not in [0, 1]", (double)options->min_p);
    return FERRY_OK;
}

enum ferry_status sampler_create(struct sampler **ret_sampler,
                                 const struct sampler_options *options, size_t n_vocab,
                                 size_t n_valid, const struct kernels *kernels,
                                 struct ferry_error *err)
{
    enum ferry_status st = sampler_options_check(options, err);
    if (st != FERRY_OK)
        return st;
    struct sampler *s = mem_zero(sizeof *s);
    if (s == NULL)
        return FERRY_FAIL(err, FERRY_ERR_NOMEM, "sampler: no memory");
    s->options = *options;
    s->kernels = kernels;
    s->n_valid = n_valid > 0 ? min_size(n_valid, n_vocab) : n_vocab;
    s->heap = mem_array(s->n_valid, sizeof *s->heap);
    s->probs = mem_array(s->n_valid, sizeof *s->probs);
    if (s->heap == NULL || s->probs == NULL) {
        sampler_destroy(s);
        return FERRY_FAIL(err, FERRY_ERR_NOMEM, "sampler: no memory for %zu candidates", n_valid);
    }
    *ret_sampler = s;
    return FERRY_OK;
}

void sampler_destroy(struct sampler *sampler)
{
    if (sampler == NULL)
        return;
    mem_free(sampler->heap);
    mem_free(sampler->probs);
    mem_free(sampler);
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

/* The order of candidates: logit descending, then lower id. */
static bool before(struct candidate a, struct candidate b)
{
    return a.logit > b.logit || (a.logit == b.logit && a.id < b.id);
}

/* Max-heap by that order: the best candidates come out first, as many as are needed. */
static void sift_down(struct candidate *heap, size_t n, size_t i)
{
    for (;;) {
        size_t child = 2 * i + 1;
        if (child >= n)
            return;
        if (child + 1 < n && before(heap[child + 1], heap[child]))
            child++;
        if (!before(heap[child], heap[i]))
            return;
        struct candidate t = heap[i];
        heap[i] = heap[child];
        heap[child] = t;
        i = child;
    }
}

/* Takes the best of heap[0, n) out to heap[n - 1]. */
static struct candidate pop(struct candidate *heap, size_t n)
{
    struct candidate best = heap[0];

    heap[0] = heap[n - 1];
    sift_down(heap, n - 1, 0);
    heap[n - 1] = best;
    return best;
}

/* How far down the order the sum of probabilities passes `target`; pops as it goes. */
static int32_t walk(struct sampler *s, size_t n, size_t n_max, double target)
{
    double seen = 0;
    struct candidate c = {0, 0};

    for (size_t i = 0; i < n_max; i++) {
        c = pop(s->heap, n - i);
        seen += (double)s->probs[c.id];
        if (target < seen)
            break;
    }
    return c.id;
}

/* The kept candidates end up at the end of the heap, best last; returns how many, and their
 * probabilities' sum. */
static size_t keep(struct sampler *s, size_t n, double *ret_sum)
{
    const struct sampler_options *o = &s->options;
    size_t limit = o->top_k > 0 ? min_size(o->top_k, n) : n, n_kept = 0;
    double sum = 0;
    float best = 0;

    while (n_kept < limit && (n_kept == 0 || sum < (double)o->top_p)) {
        float prob = s->probs[pop(s->heap, n - n_kept).id];
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

static int32_t sample(struct sampler *sampler, const float *logits, size_t position)
{
    const struct sampler_options *o = &sampler->options;
    size_t n = sampler->n_valid;

    if (o->temperature == 0)
        return sampler_argmax(logits, n);
    /* Probabilities over the whole vocabulary first: top-p and min-p speak of them. */
    float max = logits[sampler_argmax(logits, n)];
    for (size_t i = 0; i < n; i++) {
        sampler->probs[i] = (logits[i] - max) / o->temperature; /* at most 0: cannot overflow */
        sampler->heap[i] = (struct candidate){logits[i], (int32_t)i};
    }
    sampler->kernels->softmax(sampler->probs, n);
    for (size_t i = n / 2; i-- > 0;)
        sift_down(sampler->heap, n, i);
    double u = (double)sampler_uniform(o->seed, o->choice, position), sum = 0, seen = 0;
    if (o->top_k == 0 && o->top_p >= 1 && o->min_p <= 0) { /* nothing is cut off */
        for (size_t i = 0; i < n; i++)
            sum += (double)sampler->probs[i];
        return walk(sampler, n, n, u * sum); /* only as deep as needed */
    }
    size_t n_kept = keep(sampler, n, &sum);
    for (size_t i = 0; i < n_kept; i++) {
        int32_t id = sampler->heap[n - 1 - i].id;
        seen += (double)sampler->probs[id];
        if (u * sum < seen)
            return id;
    }
    return sampler->heap[n - n_kept].id;
}

int32_t sampler_sample(struct sampler *sampler, const float *logits, size_t position)
{
    unsigned mode = fp_mode_enter(); /* the caller's rounding must not show in the token */
    int32_t id = sample(sampler, logits, position);
    fp_mode_leave(mode);
    return id;
}
