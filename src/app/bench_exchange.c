/* Rounds of the exchange without a model, measured and checked. See bench_exchange.h.
 *
 * Tokens, experts and weights are drawn as bench/exchange/baseline.c draws them: a number is a
 * function of where it is used, so that every rank and every program has the same ones. An expert
 * is a factor: its row is the row that came, times the factor. Expert compute is left out, here and
 * in the baselines: a timed round either scales every row that came once per group ("scaled"), or
 * reads it (a word of each cache line, for each of its experts) and adds up experts' rows that are
 * there already ("summed": what a real layer does on top; rounds of a check compute them). */
#include "app/bench_exchange.h"

#include "base/alloc.h"
#include "base/arena.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/size.h"
#include "device/device.h"
#include "exchange/exchange.h"
#include "placement/placement.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

const size_t BENCH_LANE_BYTES = (size_t)64 << 20;

enum {
    LAYERS = 16,
    SCENES_MAX = 8,
    ROUNDS_LEAST = 20,
    ROUNDS_MOST = 2000,
    WARM_LEAST = 5,
    CACHE_LINE = 64
};
enum { WORD_HERE = 1, WORD_GO };
enum { START = 5 }; /* value of WORD_GO: when rank 0 goes on, by its clock */
static const uint64_t SEED = 1;
/* A tenth of what a layer's experts take is the default. Here they take no time, and it is as long
 * as a round, so that ranks that lost step with each other find it again. */
static const uint64_t GATHER_NS = UINT64_C(3000000);
static const uint64_t START_NS = UINT64_C(20000000);
static const uint64_t MEET_NS = UINT64_C(60000000000), LOOK_NS = UINT64_C(2000000);

/* A routing of this rank's tokens: every token top_k distinct experts. */
struct scene {
    int32_t *ids;   /* [tokens, top_k] */
    float *weights; /* [tokens, top_k], sum 1 */
};

struct bench {
    struct bench_rank *rank;
    const struct bench_shape *shape;
    int seat;
    struct device *device;
    enum cpu_level level;
    struct placement *placement;
    struct exchange *exchange;
    struct arena arena; /* of a case */
    struct scene scenes[SCENES_MAX];
    size_t n_scenes, tokens, row_bytes, n_rounds;
    float *x;            /* [tokens, hidden] */
    unsigned char *rows; /* [tokens, row_bytes] A32 */
    float *out;          /* [tokens, hidden] */
    bool computes;       /* experts are computed; else what they gave is there already */
    size_t n_filled;     /* rows of a job that hold the pattern */
    _Atomic uint64_t sink;
};

/* ---- numbers ---- */

static uint64_t mix(uint64_t z)
{
    z += UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
}

static uint64_t draw(uint64_t stream, uint64_t counter)
{
    return mix(mix(mix(SEED) ^ stream) ^ counter);
}

static size_t draw_below(uint64_t stream, uint64_t counter, size_t n)
{
    return (size_t)(((unsigned __int128)draw(stream, counter) * n) >> 64);
}

/* A token's experts, ascending, and their weights. pool [n_experts] scratch. */
static void draw_token(const struct bench_shape *shape, uint64_t stream, int32_t *pool,
                       int32_t *ids, float *weights)
{
    float sum = 0;

    for (size_t e = 0; e < shape->n_experts; e++)
        pool[e] = (int32_t)e;
    for (size_t i = 0; i < shape->top_k; i++) {
        size_t taken = i + draw_below(stream, i, shape->n_experts - i), at = i;
        int32_t id = pool[taken];
        pool[taken] = pool[i];
        for (; at > 0 && ids[at - 1] > id; at--)
            ids[at] = ids[at - 1];
        ids[at] = id;
        weights[i] = 0.5f + 0x1p-24f * (float)(draw(~stream, i) >> 40);
        sum += weights[i];
    }
    for (size_t i = 0; i < shape->top_k; i++)
        weights[i] /= sum;
}

static float factor_of(size_t expert)
{
    return 1.0f + (float)(expert % 8) * 0.125f;
}

/* What stands in experts' rows that are not computed: of few bits, so that products are exact or
 * nearly. */
static float pattern_of(size_t column)
{
    return 1.0f + (float)(column % 8) * 0.125f;
}

/* ---- a case's data ---- */

static size_t scenes_of(size_t tokens)
{
    if (tokens <= 8)
        return SCENES_MAX;
    return tokens <= 64 ? 2 : 1;
}

static bool make_scenes(struct bench *b)
{
    const struct bench_shape *s = b->shape;
    size_t n = b->tokens * s->top_k;
    int32_t *pool = arena_array(&b->arena, s->n_experts, sizeof *pool);

    if (pool == NULL)
        return false;
    for (size_t i = 0; i < b->n_scenes; i++) {
        struct scene *scene = &b->scenes[i];
        scene->ids = arena_array(&b->arena, n, sizeof *scene->ids);
        scene->weights = arena_array(&b->arena, n, sizeof *scene->weights);
        if (scene->ids == NULL || scene->weights == NULL)
            return false;
        for (size_t t = 0; t < b->tokens; t++)
            draw_token(s, 2 + ((uint64_t)i << 40 | (uint64_t)b->seat << 32 | t), pool,
                       scene->ids + t * s->top_k, scene->weights + t * s->top_k);
    }
    return true;
}

static bool make_case(struct bench *b, size_t tokens)
{
    size_t n = tokens * b->shape->hidden;

    arena_reset(&b->arena);
    b->tokens = tokens;
    b->n_scenes = scenes_of(tokens);
    b->x = arena_array(&b->arena, n, sizeof *b->x);
    b->out = arena_array(&b->arena, n, sizeof *b->out);
    b->rows = arena_array(&b->arena, tokens, b->row_bytes);
    if (b->x == NULL || b->out == NULL || b->rows == NULL || !make_scenes(b))
        return false;
    for (size_t i = 0; i < n; i++) {
        uint64_t bits = draw(0x7000 + (uint64_t)b->seat, i);
        b->x[i] = 0x1p-23f * (float)(int32_t)(bits >> 40) - 1.0f;
    }
    return true;
}

/* ---- experts ---- */

/* What an A32 row says, as floats. */
static void widen(const struct bench *b, const unsigned char *row, float *ret)
{
    const float *scales = act_a32_scales(row, b->shape->hidden);

    for (size_t c = 0; c < b->shape->hidden; c++)
        ret[c] = (float)((const int8_t *)row)[c] * scales[c / ACT_BLOCK];
}

static void compute_experts(const struct bench *b, const struct exchange_job *job)
{
    for (size_t e = 0; e < job->n_experts; e++) {
        float factor = factor_of(e);
        for (int32_t s = job->begin[e]; s < job->begin[e + 1]; s++) {
            float *out = job->out + (size_t)s * job->out_stride;
            widen(b, job->a32_at[s], out);
            for (size_t c = 0; c < b->shape->hidden; c++)
                out[c] *= factor;
        }
    }
}

static void fill_pattern(const struct bench *b, const struct exchange_job *job, size_t first)
{
    for (size_t s = first; s < job->n_slots; s++) {
        for (size_t c = 0; c < b->shape->hidden; c++)
            job->out[s * job->out_stride + c] = pattern_of(c);
    }
}

struct touch_arg {
    struct bench *b;
    const struct exchange_job *job;
};

static void touch_rows(void *arg, size_t begin, size_t end, int thread_index)
{
    const struct touch_arg *a = arg;
    uint64_t sum = 0, word;

    (void)thread_index;
    for (size_t s = begin; s < end; s++) {
        const unsigned char *row = a->job->a32_at[s];
        for (size_t at = 0; at < a->b->row_bytes; at += CACHE_LINE) {
            memcpy(&word, row + at, sizeof word);
            sum += word;
        }
    }
    atomic_fetch_add_explicit(&a->b->sink, sum, memory_order_relaxed);
}

/* An exchange_experts_fn. */
static size_t run_experts(void *arg, const struct exchange_job *job)
{
    struct bench *b = arg;
    struct touch_arg touch = {b, job};

    if (!b->shape->summed) /* scale_row reads them */
        return job->n_slots;
    device_for(b->device, job->n_slots, 16, touch_rows, &touch);
    if (b->computes) {
        compute_experts(b, job);
        b->n_filled = 0;
    } else if (b->n_filled < job->n_slots) {
        fill_pattern(b, job, b->n_filled);
        b->n_filled = job->n_slots;
    }
    return job->n_slots;
}

/* dst[c] = factor * (code * scale), a block of ACT_BLOCK codes per scale. */
static void scale_codes(float *dst, const int8_t *codes, const float *scales, float factor,
                        size_t n)
{
    for (size_t c = 0; c < n; c++)
        dst[c] = factor * ((float)codes[c] * scales[c / ACT_BLOCK]);
}

#if defined(__x86_64__)
/* The baselines are compiled for AVX2; the stand-in must not be what differs. */
__attribute__((target("avx2"))) static void scale_codes_avx2(float *dst, const int8_t *codes,
                                                             const float *scales, float factor,
                                                             size_t n, bool stream)
{
    const __m256 by = _mm256_set1_ps(factor);

    for (size_t c = 0; c < n; c += 8) {
        __m256i wide = _mm256_cvtepi8_epi32(_mm_loadl_epi64((const void *)(codes + c)));
        __m256 value =
            _mm256_mul_ps(_mm256_cvtepi32_ps(wide), _mm256_set1_ps(scales[c / ACT_BLOCK]));
        value = _mm256_mul_ps(by, value);
        if (stream)
            _mm256_stream_ps(dst + c, value);
        else
            _mm256_storeu_ps(dst + c, value);
    }
}
#endif

/* An exchange_sum_fn: the row that came, times what its experts' factors and weights make. */
static void scale_row(void *arg, const struct exchange_sum *sum, float *dst)
{
    const struct bench *b = arg;
    const unsigned char *row = sum->rows.a32 + sum->row * sum->rows.a32_bytes;
    const float *scales = act_a32_scales(row, b->shape->hidden) + sum->col / ACT_BLOCK;
    const int8_t *codes = (const int8_t *)row + sum->col;
    float factor = 0;

    for (size_t i = 0; i < sum->n; i++)
        factor += sum->weights[i] * factor_of((size_t)sum->experts[i]);
#if defined(__x86_64__)
    if (b->level >= CPU_LEVEL_AVX2) {
        scale_codes_avx2(dst, codes, scales, factor, sum->n_cols,
                         sum->stream && ((uintptr_t)dst & 31) == 0);
        return;
    }
#endif
    scale_codes(dst, codes, scales, factor, sum->n_cols);
}

/* ---- rounds ---- */

static enum ferry_status run_round(struct bench *b, size_t scene, struct ferry_error *err)
{
    const struct bench_shape *s = b->shape;
    struct act_rows act = {.f32 = b->x, .f32_stride = s->hidden, .a32 = b->rows, .k = s->hidden};
    struct exchange_round_input input = {.layer = b->n_rounds++ % LAYERS,
                                         .experts = b->scenes[scene].ids,
                                         .weights = b->scenes[scene].weights,
                                         .n_tokens = b->tokens,
                                         .top_k = s->top_k,
                                         .n_experts = s->n_experts,
                                         .rows = {.a32 = b->rows, .a32_bytes = b->row_bytes},
                                         .out = b->out};

    device_quantize(b->device, &act, b->tokens);
    return exchange_run(b->exchange, &input, err);
}

/* Largest difference between out and the direct sums, relative to the largest sum. `row` and
 * `direct` [hidden] are scratch. */
static double check_out(const struct bench *b, size_t scene, bool computed, float *row,
                        double *direct)
{
    const struct bench_shape *s = b->shape;
    double worst = 0, largest = 1e-30;

    for (size_t t = 0; t < b->tokens; t++) {
        for (size_t c = 0; c < s->hidden; c++) {
            direct[c] = 0;
            row[c] = pattern_of(c);
        }
        if (computed)
            widen(b, b->rows + t * b->row_bytes, row);
        for (size_t i = t * s->top_k; i < (t + 1) * s->top_k; i++) {
            double factor = (double)b->scenes[scene].weights[i] *
                            (computed ? (double)factor_of((size_t)b->scenes[scene].ids[i]) : 1.0);
            for (size_t c = 0; c < s->hidden; c++)
                direct[c] += factor * (double)row[c];
        }
        for (size_t c = 0; c < s->hidden; c++) {
            double gap = fabs((double)b->out[t * s->hidden + c] - direct[c]);
            worst = gap <= worst ? worst : gap; /* a NaN wins */
            largest = fmax(largest, fabs(direct[c]));
        }
    }
    return worst / largest;
}

static enum ferry_status check_scene(struct bench *b, size_t scene, bool computed, double *worst,
                                     struct ferry_error *err)
{
    float *row = mem_array(b->shape->hidden, sizeof *row);
    double *direct = mem_array(b->shape->hidden, sizeof *direct);
    enum ferry_status st = FERRY_OK;

    if (row == NULL || direct == NULL) {
        st = FERRY_FAIL(err, FERRY_ERR_NOMEM, "bench exchange: no memory");
    } else {
        double gap = check_out(b, scene, computed, row, direct);
        *worst = gap <= *worst ? *worst : gap;
    }
    mem_free(row);
    mem_free(direct);
    return st;
}

/* ---- meetings ---- */

void bench_message(void *arg, int seat, uint32_t incarnation, const void *data, size_t n_bytes)
{
    struct bench_rank *rank = arg;
    struct bench_word word;

    (void)incarnation;
    (void)pthread_mutex_lock(&rank->lock);
    if (seat >= 0 && seat < LIMIT_SEATS && n_bytes == sizeof word) {
        memcpy(&word, data, sizeof word);
        rank->words[seat] = word;
    }
    (void)pthread_mutex_unlock(&rank->lock);
    fabric_wake(rank->fabric);
}

static bool has_said(struct bench_rank *rank, int seat, uint32_t kind, double values[6])
{
    (void)pthread_mutex_lock(&rank->lock);
    const struct bench_word *word = &rank->words[seat];
    bool said = word->kind == kind && word->phase == rank->phase;
    if (said)
        memcpy(values, word->values, sizeof word->values);
    (void)pthread_mutex_unlock(&rank->lock);
    return said;
}

static enum ferry_status lost(const struct bench_rank *rank, int seat, struct ferry_error *err)
{
    return FERRY_FAIL(err, FERRY_ERR_PEER,
                      "bench exchange: rank %d was lost after meeting %u; its own message, or the "
                      "kernel's log, says why",
                      seat, rank->phase);
}

/* A seat that is not live, or else the last. */
static int first_lost(const struct bench_rank *rank)
{
    uint64_t live = fabric_live(rank->fabric);
    int seat = 0;

    while (seat + 1 < (int)rank->shape->n_ranks && (live >> seat & 1) != 0)
        seat++;
    return seat;
}

/* Waits for a word of a seat, serving meanwhile. */
static enum ferry_status hear(struct bench *b, int seat, uint32_t kind, double values[6],
                              struct ferry_error *err)
{
    struct bench_rank *rank = b->rank;
    uint64_t until = clock_now_ns() + MEET_NS * fabric_time_factor();

    while (!has_said(rank, seat, kind, values)) {
        if ((fabric_live(rank->fabric) >> seat & 1) == 0)
            return lost(rank, seat, err);
        if (clock_now_ns() > until)
            return FERRY_FAIL(err, FERRY_ERR_TIMEOUT,
                              "bench exchange: meeting %u: rank %d did not come within %.0f s; it "
                              "was last seen at meeting %u",
                              rank->phase, seat, (double)MEET_NS * 1e-9 * fabric_time_factor(),
                              rank->words[seat].phase);
        (void)exchange_serve(b->exchange, LOOK_NS, true);
    }
    return FERRY_OK;
}

static enum ferry_status say(struct bench *b, int seat, uint32_t kind, const double values[6],
                             struct ferry_error *err)
{
    struct bench_word word = {.kind = kind, .phase = b->rank->phase};
    uint64_t until = clock_now_ns() + MEET_NS * fabric_time_factor();
    enum ferry_status st;

    memcpy(word.values, values, sizeof word.values);
    do {
        st = fabric_send(b->rank->fabric, seat, FABRIC_TOPIC_APP, &word, sizeof word);
        if (st == FERRY_AGAIN)
            (void)exchange_serve(b->exchange, LOOK_NS, true);
    } while (st == FERRY_AGAIN && clock_now_ns() < until);
    if (st != FERRY_OK)
        return FERRY_FAIL(err, st == FERRY_AGAIN ? FERRY_ERR_TIMEOUT : st,
                          "bench exchange: meeting %u: rank %d cannot be told", b->rank->phase,
                          seat);
    return FERRY_OK;
}

/* What seat 0 makes of a rank's values; others' values become seat 0's. */
typedef void fold_fn(void *arg, int seat, const double values[6]);

/* Nobody goes on before everybody has come. Rank 0 sees each rank's values (fold, its own first)
 * and answers with what then stands in `values`, and the moment at which it goes on. */
static enum ferry_status meet(struct bench *b, double values[6], fold_fn *fold, void *arg,
                              struct ferry_error *err)
{
    enum ferry_status st = FERRY_OK;
    double theirs[6];

    b->rank->phase++;
    if (b->seat != 0) {
        st = say(b, 0, WORD_HERE, values, err);
        return st == FERRY_OK ? hear(b, 0, WORD_GO, values, err) : st;
    }
    if (fold != NULL)
        fold(arg, 0, values);
    for (int s = 1; s < (int)b->shape->n_ranks && st == FERRY_OK; s++) {
        st = hear(b, s, WORD_HERE, theirs, err);
        if (st == FERRY_OK && fold != NULL)
            fold(arg, s, theirs);
    }
    values[START] = (double)(clock_now_ns() + START_NS);
    for (int s = 1; s < (int)b->shape->n_ranks && st == FERRY_OK; s++)
        st = say(b, s, WORD_GO, values, err);
    return st;
}

/* A meeting after which all ranks go on at the same time. Rank 0's word may reach the others at
 * different times, and late when all processors are busy; so it names a moment. */
static enum ferry_status meet_to_start(struct bench *b, struct ferry_error *err)
{
    double values[6] = {0};
    enum ferry_status st = meet(b, values, NULL, NULL, err);
    uint64_t now = clock_now_ns(), start = now + START_NS;

    if (st != FERRY_OK)
        return st;
    bool same_clock = b->seat == 0 || fabric_link(b->rank->fabric, 0) == LINK_SHM;
    if (same_clock && values[START] >= 0 && values[START] < (double)start)
        start = (uint64_t)values[START];
    while ((now = clock_now_ns()) < start)
        (void)exchange_serve(b->exchange, start - now, true);
    return FERRY_OK;
}

/* ---- a case ---- */

static int compare_u64(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

    return (x > y) - (x < y);
}

/* Bytes of data messages that this rank has sent. */
static double bytes_out(const struct bench *b)
{
    double n = 0;

    for (const struct metric *m = metric_first(b->rank->metrics); m != NULL; m = metric_next(m)) {
        const struct metric_spec *spec = metric_info(m);
        if (strcmp(spec->name, "ferry_fabric_bytes_total") != 0)
            continue;
        for (size_t i = 0; i < spec->n_labels; i++) {
            if (strcmp(spec->labels[i].value, "out") == 0)
                n += metric_value(m);
        }
    }
    return n;
}

static enum ferry_status check_scenes(struct bench *b, double *worst, struct ferry_error *err)
{
    double values[6] = {0};
    enum ferry_status st;

    b->computes = true; /* before anybody's rows can come, and until everybody has its sums */
    st = meet(b, values, NULL, NULL, err);
    for (size_t i = 0; i < b->n_scenes && st == FERRY_OK; i++) {
        st = run_round(b, i, err);
        if (st == FERRY_OK)
            st = check_scene(b, i, true, worst, err);
    }
    if (st == FERRY_OK)
        st = meet(b, values, NULL, NULL, err);
    b->computes = false;
    return st == FERRY_OK ? meet(b, values, NULL, NULL, err) : st;
}

static enum ferry_status time_rounds(struct bench *b, size_t n_rounds, uint64_t *ret_ns,
                                     struct ferry_error *err)
{
    const struct bench_rank *rank = b->rank;
    uint32_t epoch = fabric_epoch(rank->fabric);
    enum ferry_status st = FERRY_OK;
    uint64_t begin = clock_now_ns();

    for (size_t i = 0; i < n_rounds && st == FERRY_OK; i++) {
        st = run_round(b, i % b->n_scenes, err);
        /* The exchange goes on without a rank that died; what is timed then is something else. */
        if (st == FERRY_OK && fabric_epoch(rank->fabric) != epoch)
            st = lost(rank, first_lost(rank), err);
        uint64_t end = clock_now_ns();
        ret_ns[i] = end - begin;
        begin = end;
    }
    return st;
}

/* Rounds to time: rank 0's word goes. */
static enum ferry_status choose_rounds(struct bench *b, uint64_t warm_ns, size_t n_warm,
                                       size_t *ret_rounds, struct ferry_error *err)
{
    double fits = b->shape->seconds * 1e9 * (double)n_warm / (double)(warm_ns > 0 ? warm_ns : 1);
    double values[6] = {b->shape->rounds > 0 ? (double)b->shape->rounds
                                             : fmin(fmax(fits, ROUNDS_LEAST), ROUNDS_MOST)};
    enum ferry_status st = meet(b, values, NULL, NULL, err);

    if (st == FERRY_OK && !(values[0] >= 1 && values[0] <= 1e6))
        return FERRY_FAIL(err, FERRY_ERR_PEER, "bench exchange: rank 0 wants %g rounds", values[0]);
    *ret_rounds = st == FERRY_OK ? (size_t)values[0] : 0;
    return st;
}

/* Values of a rank's report: p50, p10, p90 (us), bytes, error. */
static void fold_result(void *arg, int seat, const double values[6])
{
    struct bench_result *r = arg;

    if (seat == 0)
        r->us_p50_rank0 = values[0];
    if (values[0] >= r->us_p50) {
        r->us_p50 = values[0];
        r->us_p10 = values[1];
        r->us_p90 = values[2];
    }
    r->bytes_out += values[3];
    r->max_error = values[4] <= r->max_error ? r->max_error : values[4];
}

static enum ferry_status run_timed(struct bench *b, double *worst, struct bench_result *result,
                                   struct ferry_error *err)
{
    size_t n_warm = max_size(WARM_LEAST, 2 * b->n_scenes), n = 0;
    uint64_t warm[2 * SCENES_MAX], *ns = NULL, warm_ns = 0;
    double values[6] = {0}, bytes;
    enum ferry_status st = time_rounds(b, n_warm, warm, err);

    for (size_t i = 0; i < n_warm && st == FERRY_OK; i++)
        warm_ns += warm[i];
    if (st == FERRY_OK)
        st = choose_rounds(b, warm_ns, n_warm, &n, err);
    if (st != FERRY_OK)
        return st;
    ns = mem_array(n, sizeof *ns);
    if (ns == NULL)
        return FERRY_FAIL(err, FERRY_ERR_NOMEM, "bench exchange: no memory for %zu times", n);
    bytes = bytes_out(b); /* nobody sends now; later, others may have begun */
    st = meet_to_start(b, err);
    if (st == FERRY_OK)
        st = time_rounds(b, n, ns, err);
    double error = *worst;
    if (st == FERRY_OK)
        st = check_scene(b, (n - 1) % b->n_scenes, !b->shape->summed, &error, err);
    /* What others still ask for is served, and counted, before they all have come. */
    if (st == FERRY_OK)
        st = meet(b, values, NULL, NULL, err);
    if (st == FERRY_OK) {
        qsort(ns, n, sizeof *ns, compare_u64);
        values[0] = (double)ns[n / 2] * 1e-3;
        values[1] = (double)ns[n / 10] * 1e-3;
        values[2] = (double)ns[n * 9 / 10] * 1e-3;
        values[3] = (bytes_out(b) - bytes) / (double)n;
        values[4] = error;
        result->rounds = n;
        st = meet(b, values, fold_result, result, err);
    }
    mem_free(ns);
    return st;
}

static enum ferry_status run_case(struct bench *b, size_t tokens, struct bench_result *result,
                                  struct ferry_error *err)
{
    double worst = 0;

    *result = (struct bench_result){.tokens = tokens,
                                    .largest_gap = b->shape->combine_bf16 ? 0x1p-6 : 1e-5};
    if (!make_case(b, tokens))
        return FERRY_FAIL(err, FERRY_ERR_NOMEM,
                          "bench exchange: no memory for %zu tokens of %zu; take fewer --tokens",
                          tokens, b->shape->hidden);
    enum ferry_status st = check_scenes(b, &worst, err);
    if (st == FERRY_OK) {
        for (size_t i = 0; i < tokens * b->shape->hidden; i++)
            b->out[i] = NAN; /* a sum that is not written shows */
        st = run_timed(b, &worst, result, err);
    }
    result->bytes_out /= (double)b->shape->n_ranks;
    return st;
}

/* ---- a run ---- */

static size_t tokens_most(const struct bench_shape *shape)
{
    size_t most = 1;

    for (size_t i = 0; i < shape->n_cases; i++)
        most = max_size(most, shape->tokens[i]);
    return most;
}

static struct exchange_options options_of(const struct bench_shape *shape)
{
    return (struct exchange_options){.max_tokens = tokens_most(shape),
                                     .max_top_k = shape->top_k,
                                     .max_experts = shape->n_experts,
                                     .n_layers = LAYERS,
                                     .hidden = shape->hidden,
                                     .a32_bytes = act_row_bytes(ACT_FORMAT_A32, shape->hidden),
                                     .combine_bf16 = shape->combine_bf16,
                                     .bundle_bytes = shape->bundle_bytes};
}

void bench_lanes(const struct bench_shape *shape, struct transport_lanes *ret_lanes)
{
    struct exchange_options options = options_of(shape);

    exchange_lane_sizes(&options, BENCH_LANE_BYTES, ret_lanes);
}

static enum ferry_status open_bench(struct bench *b, struct ferry_error *err)
{
    const struct bench_shape *s = b->shape;
    struct device_options device = {.n_threads = s->n_threads, .level = b->level};
    struct exchange_options options = options_of(s);
    enum ferry_status st = device_create_cpu(&b->device, &device, err);

    if (st == FERRY_OK && s->random)
        st = placement_random(&b->placement, LAYERS, s->n_experts, s->n_ranks, s->n_replicas,
                              s->placement_seed, err);
    else if (st == FERRY_OK)
        st = placement_contiguous(&b->placement, LAYERS, s->n_experts, s->n_ranks, s->n_replicas,
                                  err);
    options.run_experts = run_experts;
    options.sum_group = s->summed ? NULL : scale_row;
    options.arg = b;
    options.fabric = b->rank->fabric;
    options.placement = b->placement;
    options.spin_ns = b->rank->spin_ns;
    options.gather_ns = GATHER_NS;
    if (st == FERRY_OK)
        st = exchange_create(&b->exchange, b->device, &options, err);
    return st;
}

enum ferry_status bench_run(struct bench_rank *rank, bench_done_fn *done, void *arg,
                            struct ferry_error *err)
{
    struct bench *b = mem_zero(sizeof *b);
    enum ferry_status st;

    if (b == NULL)
        return FERRY_FAIL(err, FERRY_ERR_NOMEM, "bench exchange: no memory");
    b->rank = rank;
    b->shape = rank->shape;
    b->seat = fabric_seat(rank->fabric);
    b->level = cpu_best_level();
    b->row_bytes = act_row_bytes(ACT_FORMAT_A32, rank->shape->hidden);
    arena_init(&b->arena, "bench exchange");
    st = open_bench(b, err);
    for (size_t i = 0; i < rank->shape->n_cases && st == FERRY_OK; i++) {
        struct bench_result result;
        st = run_case(b, rank->shape->tokens[i], &result, err);
        if (st == FERRY_OK && b->seat == 0)
            done(arg, &result);
    }
    exchange_destroy(b->exchange);
    placement_destroy(b->placement);
    device_destroy(b->device);
    arena_fini(&b->arena);
    mem_free(b);
    return st;
}
