/* Attention over KV pages: every level equals the reference bit for bit, whatever queries share a
 * call; invisible positions never reach a result; the reference keeps its error bound against f64.
 */
#include "rows_check.h"

#include "base/cpu.h"

#include <stdio.h>

enum { POSITIONS = KERNEL_KV_CHUNK };

static const enum dtype KV_TYPES[] = {DTYPE_F32, DTYPE_F16, DTYPE_BF16};

static struct kernels ref;
static struct kernels fast[CPU_LEVEL_COUNT];
static int n_fast;

static int setup(void **state)
{
    (void)state;
    kernels_init(&ref, CPU_LEVEL_REF);
    for (int level = 1; level <= (int)cpu_best_level(); level++)
        kernels_init(&fast[n_fast++], (enum cpu_level)level);
    return 0;
}

/* One problem: queries, ranges and a page between guards; two copies of the running result. */
struct problem {
    size_t n_q, head_dim, q_stride, acc_stride;
    enum dtype dtype;
    struct guarded q, k, v, begin, end, scratch, max[2], sum[2], acc[2];
};

static void problem_init(struct problem *p, size_t n_q, size_t head_dim, enum dtype dtype,
                         uint64_t *rng)
{
    size_t page = POSITIONS * head_dim * dtype_block_bytes(dtype);
    size_t shift = rng_next(rng) % 4 * 4;

    p->n_q = n_q;
    p->head_dim = head_dim;
    p->dtype = dtype;
    p->q_stride = head_dim + rng_next(rng) % 3;
    p->acc_stride = head_dim + rng_next(rng) % 3;
    guarded_init(&p->q, ((n_q - 1) * p->q_stride + head_dim) * 4, shift);
    size_t page_shift = shift / 4 * dtype_block_bytes(dtype); /* pages are aligned as their type */
    guarded_init(&p->k, page, page_shift);
    guarded_init(&p->v, page, page_shift);
    guarded_init(&p->begin, n_q * 4, 0);
    guarded_init(&p->end, n_q * 4, 0);
    guarded_init(&p->scratch, attn_scratch_floats(n_q, head_dim) * 4, shift);
    for (int c = 0; c < 2; c++) {
        guarded_init(&p->max[c], n_q * 4, 0);
        guarded_init(&p->sum[c], n_q * 4, 0);
        guarded_init(&p->acc[c], ((n_q - 1) * p->acc_stride + head_dim) * 4, c == 0 ? 0 : shift);
        memset(p->sum[c].data, 0, n_q * 4); /* max and acc stay garbage: they must not be read */
    }
}

static void problem_fini(struct problem *p)
{
    guarded_fini(&p->q);
    guarded_fini(&p->k);
    guarded_fini(&p->v);
    guarded_fini(&p->begin);
    guarded_fini(&p->end);
    guarded_fini(&p->scratch);
    for (int c = 0; c < 2; c++) {
        guarded_fini(&p->max[c]);
        guarded_fini(&p->sum[c]);
        guarded_fini(&p->acc[c]);
    }
}

/* The job for copy c of the result, queries [first, first + n). */
static struct attn_job problem_job(const struct problem *p, int c, size_t first, size_t n)
{
    return (struct attn_job){
        .q = (float *)p->q.data + first * p->q_stride,
        .q_stride = p->q_stride,
        .n_q = n,
        .head_dim = p->head_dim,
        .k = p->k.data,
        .v = p->v.data,
        .begin = (int32_t *)p->begin.data + first,
        .end = (int32_t *)p->end.data + first,
        .scale = 0.3f,
        .scratch = p->scratch.data,
        .max = (float *)p->max[c].data + first,
        .sum = (float *)p->sum[c].data + first,
        .acc = (float *)p->acc[c].data + first * p->acc_stride,
        .acc_stride = p->acc_stride,
    };
}

enum ranges { RANGES_FULL, RANGES_CAUSAL, RANGES_WINDOW, RANGES_RANDOM, RANGES_ONE, RANGES_COUNT };

static void fill_ranges(const struct problem *p, enum ranges kind, uint64_t *rng)
{
    int32_t *begin = p->begin.data, *end = p->end.data;
    int32_t start = (int32_t)(rng_next(rng) % POSITIONS);

    for (size_t i = 0; i < p->n_q; i++) {
        int32_t a = (int32_t)(rng_next(rng) % (POSITIONS + 1));
        int32_t b = (int32_t)(rng_next(rng) % (POSITIONS + 1));
        int32_t last = start + (int32_t)i < POSITIONS ? start + (int32_t)i + 1 : POSITIONS;
        begin[i] = kind == RANGES_RANDOM   ? (a < b ? a : b)
                   : kind == RANGES_WINDOW ? (last > 20 ? last - 20 : 0)
                   : kind == RANGES_ONE    ? a % POSITIONS
                                           : 0;
        end[i] = kind == RANGES_RANDOM ? (a < b ? b : a)
                 : kind == RANGES_FULL ? POSITIONS
                 : kind == RANGES_ONE  ? begin[i] + 1
                                       : last;
        if (rng_next(rng) % 8 == 0)
            end[i] = begin[i]; /* nothing visible */
    }
}

/* Fills the page position by position with `store`; positions that no query sees hold NaN. */
static void fill_page(const struct problem *p, kv_store_fn *store, enum pattern pattern,
                      uint64_t *rng)
{
    const int32_t *begin = p->begin.data, *end = p->end.data;
    float *k = malloc(p->head_dim * 4), *v = malloc(p->head_dim * 4);

    assert_non_null(k);
    assert_non_null(v);
    for (size_t pos = 0; pos < POSITIONS; pos++) {
        bool seen = false;
        for (size_t i = 0; i < p->n_q; i++)
            seen = seen || (begin[i] <= (int32_t)pos && (int32_t)pos < end[i]);
        for (size_t d = 0; d < p->head_dim; d++) {
            k[d] = seen ? pattern_value(pattern, rng) : NAN;
            v[d] = seen ? pattern_value(pattern, rng) : NAN;
        }
        (void)store(p->k.data, p->v.data, pos, p->head_dim, k, v);
    }
    free(k);
    free(v);
}

static void compare_results(const struct problem *p, const char *what, int pattern)
{
    const float *sum = p->sum[0].data;
    assert_same_floats(p->sum[1].data, p->sum[0].data, p->n_q, what, p->head_dim, pattern);
    for (size_t i = 0; i < p->n_q; i++) {
        if (sum[i] == 0)
            continue;
        assert_same_floats((float *)p->max[1].data + i, (float *)p->max[0].data + i, 1, what,
                           p->head_dim, pattern);
        assert_same_floats((float *)p->acc[1].data + i * p->acc_stride,
                           (float *)p->acc[0].data + i * p->acc_stride, p->head_dim, what,
                           p->head_dim, pattern);
    }
}

/* Bytes of acc between rows and rows of skipped queries keep the guard byte. */
static void check_untouched(const struct problem *p, int c)
{
    const unsigned char *acc = p->acc[c].data;
    const float *sum = p->sum[c].data;
    size_t row = p->acc_stride * 4, used = p->head_dim * 4;

    for (size_t i = 0; i < p->n_q; i++) {
        size_t from = sum[i] == 0 ? 0 : used;
        size_t to = i + 1 < p->n_q ? row : used;
        for (size_t b = from; b < to; b++)
            assert_int_equal(acc[i * row + b], GUARD_BYTE);
    }
}

/* Three chunks, merged; reference in one call; the level in one call or query by query. */
static void run_problem(const struct kernels *k, size_t n_q, size_t head_dim, enum dtype dtype,
                        enum pattern pattern, uint64_t seed)
{
    struct problem p;
    uint64_t rng = seed;
    unsigned control = control_word();

    problem_init(&p, n_q, head_dim, dtype, &rng);
    for (int chunk = 0; chunk < 3; chunk++) {
        fill_ranges(&p, (enum ranges)(rng_next(&rng) % RANGES_COUNT), &rng);
        fill_page(&p, ref.kv_store[dtype], pattern, &rng);
        for (size_t i = 0; i < n_q; i++)
            pattern_fill((float *)p.q.data + i * p.q_stride, head_dim, pattern, &rng);
        struct attn_job job = problem_job(&p, 0, 0, n_q);
        ref.attn[dtype](&job);
        if (seed % 2 == 0) {
            job = problem_job(&p, 1, 0, n_q);
            k->attn[dtype](&job);
        }
        for (size_t i = 0; i < n_q && seed % 2 == 1; i++) {
            job = problem_job(&p, 1, i, 1);
            k->attn[dtype](&job);
        }
        compare_results(&p, "attn", (int)pattern);
    }
    check_untouched(&p, 0);
    check_untouched(&p, 1);
    assert_int_equal(control_word(), control);
    problem_fini(&p);
}

static void test_levels(void **state)
{
    static const size_t DIMS[] = {1,  2,  3,  7,  8,  9,  15, 16,  17,  24,
                                  31, 32, 40, 64, 72, 80, 96, 128, 130, 1024};
    static const size_t COUNTS[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 13, 32};
    (void)state;

    for (int f = 0; f < n_fast; f++)
        for (size_t d = 0; d < sizeof DIMS / sizeof DIMS[0]; d++)
            for (size_t c = 0; c < sizeof COUNTS / sizeof COUNTS[0]; c++)
                for (int t = 0; t < 3; t++) {
                    if (DIMS[d] * COUNTS[c] > 4096)
                        continue;
                    uint64_t seed = (d * 16 + c) * 4 + (uint64_t)t;
                    enum pattern pattern = (enum pattern)((d + c + (size_t)t) % PATTERN_COUNT);
                    run_problem(&fast[f], COUNTS[c], DIMS[d], KV_TYPES[t], PATTERN_NORMAL, seed);
                    run_problem(&fast[f], COUNTS[c], DIMS[d], KV_TYPES[t], pattern, seed + 1);
                }
}

/* A query that sees only finite positions has a finite result, whatever the others hold; the
 * reference and every level, alone and in company that does see NaN. */
static void test_invisible_positions(void **state)
{
    (void)state;
    for (int level = -1; level < n_fast; level++) {
        const struct kernels *k = level < 0 ? &ref : &fast[level];
        for (uint64_t seed = 1; seed <= 60; seed++) {
            struct problem p;
            uint64_t rng = seed;
            size_t head_dim = 1 + seed % 40;
            enum dtype dtype = KV_TYPES[seed % 3];
            problem_init(&p, 9, head_dim, dtype, &rng);
            fill_ranges(&p, RANGES_RANDOM, &rng);
            for (size_t i = 0; i < 9; i++)
                pattern_fill((float *)p.q.data + i * p.q_stride, head_dim, PATTERN_NORMAL, &rng);
            float poison[41], good[41];
            bool bad[POSITIONS];
            for (size_t pos = 0; pos < POSITIONS; pos++) {
                bad[pos] = rng_next(&rng) % 16 == 0;
                for (size_t d = 0; d < head_dim; d++) {
                    good[d] = rng_normal(&rng);
                    poison[d] = d % 2 == 0 ? NAN : INFINITY;
                }
                const float *x = bad[pos] ? poison : good;
                (void)k->kv_store[dtype](p.k.data, p.v.data, pos, head_dim, x, x);
            }
            struct attn_job job = problem_job(&p, 0, 0, 9);
            k->attn[dtype](&job);
            for (size_t i = 0; i < 9; i++) {
                bool any = false, sees_bad = false;
                for (int32_t pos = job.begin[i]; pos < job.end[i]; pos++) {
                    any = true;
                    sees_bad = sees_bad || bad[pos];
                }
                if (!any)
                    assert_true(job.sum[i] == 0);
                else
                    assert_int_equal(sees_bad, isnan(job.acc[i * job.acc_stride]) != 0);
                if (any)
                    assert_true(sees_bad || (job.sum[i] >= 1 && job.sum[i] <= POSITIONS));
            }
            problem_fini(&p);
        }
    }
}

/* kv_store against encode: same bits, right places, nothing else touched, overflows counted. */
static void test_kv_store(void **state)
{
    static const size_t DIMS[] = {1, 7, 8, 9, 64, 80, 128, 131};
    (void)state;

    for (int level = -1; level < n_fast; level++)
        for (size_t n = 0; n < sizeof DIMS / sizeof DIMS[0]; n++)
            for (int t = 0; t < 3; t++) {
                const struct kernels *kernels = level < 0 ? &ref : &fast[level];
                size_t head_dim = DIMS[n], size = dtype_block_bytes(KV_TYPES[t]);
                struct guarded k, v, kx, vx;
                uint64_t rng = n + 1;
                guarded_init(&k, POSITIONS * head_dim * size, 0);
                guarded_init(&v, POSITIONS * head_dim * size, 0);
                guarded_init(&kx, head_dim * 4, 4);
                guarded_init(&vx, head_dim * 4, 0);
                memset(k.data, GUARD_BYTE, k.n_bytes);
                pattern_fill(kx.data, head_dim, PATTERN_SPECIAL, &rng);
                pattern_fill(vx.data, head_dim, PATTERN_WIDE, &rng);

                char want_k[131 * 4], want_v[131 * 4];
                size_t lost = ref.encode[KV_TYPES[t]](want_k, kx.data, head_dim) +
                              ref.encode[KV_TYPES[t]](want_v, vx.data, head_dim);
                size_t p = rng_next(&rng) % POSITIONS;
                size_t got =
                    kernels->kv_store[KV_TYPES[t]](k.data, v.data, p, head_dim, kx.data, vx.data);
                assert_int_equal(got, lost);
                for (size_t i = 0; i < POSITIONS * head_dim * size; i++) {
                    size_t element = i / size, d = element / POSITIONS;
                    int want =
                        element % POSITIONS == p ? want_k[d * size + i % size] & 255 : GUARD_BYTE;
                    assert_int_equal(((unsigned char *)k.data)[i], want);
                    want = element / head_dim == p ? want_v[i - p * head_dim * size] & 255
                                                   : GUARD_BYTE;
                    assert_int_equal(((unsigned char *)v.data)[i], want);
                }
                guarded_fini(&k);
                guarded_fini(&v);
                guarded_fini(&kx);
                guarded_fini(&vx);
            }
}

/* head_dim 128, f32 page, q, k, v standard normal, scale 1 / sqrt(128), 8 chunks (1024 positions):
 * acc / sum against softmax attention in f64, relative to the largest |result| of the query. */
static void test_error_bound(void **state)
{
    enum { DIM = 128, CHUNKS = 8, QUERIES = 4 };
    static float q[QUERIES * DIM], k[CHUNKS][DIM * POSITIONS], v[CHUNKS][POSITIONS * DIM];
    static float acc[QUERIES * DIM], scratch[QUERIES * (POSITIONS + DIM)];
    static double out[DIM];
    double worst = 0;
    const int32_t begin[QUERIES] = {0}, end[QUERIES] = {128, 128, 128, 128};
    (void)state;

    for (uint64_t seed = 1; seed <= 5; seed++) {
        uint64_t rng = seed;
        float max[QUERIES], sum[QUERIES] = {0};
        pattern_fill(q, QUERIES * DIM, PATTERN_NORMAL, &rng);
        for (int c = 0; c < CHUNKS; c++) {
            pattern_fill(k[c], DIM * POSITIONS, PATTERN_NORMAL, &rng);
            pattern_fill(v[c], DIM * POSITIONS, PATTERN_NORMAL, &rng);
            struct attn_job job = {
                q,       DIM, QUERIES, DIM, k[c], v[c], begin, end, 1.0f / sqrtf(128.0f),
                scratch, max, sum,     acc, DIM};
            ref.attn[DTYPE_F32](&job);
        }
        for (int i = 0; i < QUERIES; i++) {
            double total = 0, largest = 0;
            memset(out, 0, sizeof out);
            for (int c = 0; c < CHUNKS; c++)
                for (int p = 0; p < POSITIONS; p++) {
                    double s = 0;
                    for (int d = 0; d < DIM; d++)
                        s += (double)q[i * DIM + d] * (double)k[c][d * POSITIONS + p];
                    double e = exp(s / sqrt(128.0));
                    total += e;
                    for (int d = 0; d < DIM; d++)
                        out[d] += e * (double)v[c][p * DIM + d];
                }
            for (int d = 0; d < DIM; d++)
                largest = fmax(largest, fabs(out[d] / total));
            for (int d = 0; d < DIM; d++)
                worst = fmax(worst,
                             fabs((double)(acc[i * DIM + d] / sum[i]) - out[d] / total) / largest);
        }
    }
    printf("attention error against f64: %.3g of the largest result\n", worst);
    assert_true(worst < 2e-6);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_levels),
        cmocka_unit_test(test_invisible_positions),
        cmocka_unit_test(test_kv_store),
        cmocka_unit_test(test_error_bound),
    };
    return cmocka_run_group_tests(tests, setup, NULL);
}
