/* Log-probabilities: against f64, the sum, order and ties of the top list, equal bits at every cpu
 * level. */
#include "tests/unit/unit.h"

#include "base/alloc.h"
#include "engine/logprobs.h"

#include <fenv.h>
#include <float.h>
#include <math.h>
#include <string.h>

enum { N = 150001 }; /* a vocabulary of today, with a tail */

static struct kernels kernels;
static float row[N];

/* Logits around `mean`; a grid of 1/16, so that ties occur. */
static void fill(size_t n, uint32_t seed, float scale, float mean)
{
    uint32_t x = seed;
    for (size_t i = 0; i < n; i++) {
        float sum = 0;
        for (int k = 0; k < 4; k++) {
            x = x * 1664525u + 1013904223u;
            sum += (float)(x >> 24);
        }
        row[i] = rintf((sum / 64 - 8) * scale * 16) / 16 + mean;
    }
}

static double log_sum(size_t n)
{
    double max = -INFINITY, sum = 0;
    for (size_t i = 0; i < n; i++)
        max = fmax(max, (double)row[i]);
    for (size_t i = 0; i < n; i++)
        sum += exp((double)row[i] - max);
    return max + log(sum);
}

static void check_row(size_t n)
{
    double total = log_sum(n), mass = 0;
    size_t step = n > 1100 ? 997 : 1;
    struct logprobs r;

    for (size_t id = 0; id < n; id += step) {
        logprobs_of(&kernels, row, n, (int32_t)id, 0, &r);
        double wanted = (double)row[id] - total;
        assert_int_equal(r.n_top, 0);
        assert_int_equal(r.chosen.id, id);
        assert_true(r.chosen.logprob <= 0);
        if (!(fabs((double)r.chosen.logprob - wanted) <= 1e-6 + 6e-8 * fabs(wanted)))
            fail_msg("%zu ids, id %zu: %.9g, wanted %.9g", n, id, (double)r.chosen.logprob, wanted);
        mass += exp((double)r.chosen.logprob);
    }
    assert_true(mass <= 1 + 1e-6);
    if (step == 1)
        assert_true(mass >= 1 - 1e-6);
}

static void equals_f64(void **state)
{
    static const size_t SIZES[] = {1, 2, 15, 16, 17, 1023, 1024, 1025, 4096, N};

    (void)state;
    for (size_t i = 0; i < COUNT_OF(SIZES); i++) {
        fill(SIZES[i], 3, 1, 0);
        check_row(SIZES[i]);
        fill(SIZES[i], 4, 4, 20);
        check_row(SIZES[i]);
        fill(SIZES[i], 5, 0, -7); /* all equal */
        check_row(SIZES[i]);
    }
    fill(64, 6, 1, 3e38f);
    row[9] = -FLT_MAX;
    struct logprobs r;
    logprobs_of(&kernels, row, 64, 9, 1, &r);
    assert_true(r.chosen.logprob < -3e38f && isfinite(r.top[0].logprob));
}

/* The mass of all ids of a flat vocabulary, where rounding has the most to say. */
static void flat_rows_do_not_exceed_one(void **state)
{
    struct logprobs r;

    (void)state;
    for (size_t n = 1000; n <= N; n += 7450) {
        fill(n, 7, 0, 1);
        logprobs_of(&kernels, row, n, 0, 0, &r);
        assert_true(fabs((double)n * exp((double)r.chosen.logprob) - 1) <= 1e-6);
    }
}

static void top_is_by_logit_then_id(void **state)
{
    static const size_t SIZES[] = {1, 5, 20, 21, 400, 30000};
    static const size_t TOPS[] = {0, 1, 3, 20, 21, SIZE_MAX};

    (void)state;
    for (size_t s = 0; s < COUNT_OF(SIZES); s++) {
        size_t n = SIZES[s];
        fill(n, (uint32_t)n, 0.5f, 0); /* few distinct values */
        for (size_t t = 0; t < COUNT_OF(TOPS); t++) {
            size_t n_top = TOPS[t] < n ? TOPS[t] : n;
            struct logprobs r, one;
            n_top = n_top < LOGPROBS_TOP_MAX ? n_top : LOGPROBS_TOP_MAX;
            logprobs_of(&kernels, row, n, (int32_t)(n / 2), TOPS[t], &r);
            assert_int_equal(r.n_top, n_top);
            for (size_t i = 0; i < n_top; i++) {
                size_t rank = 0, id = (size_t)r.top[i].id;
                for (size_t j = 0; j < n; j++)
                    rank += row[j] > row[id] || (row[j] == row[id] && j < id);
                assert_int_equal(rank, i);
                logprobs_of(&kernels, row, n, (int32_t)id, 0, &one);
                assert_memory_equal(&one.chosen, &r.top[i], sizeof one.chosen);
            }
        }
    }
}

static void every_level_and_rounding_gives_the_same_bits(void **state)
{
    (void)state;
    for (uint32_t seed = 1; seed <= 20; seed++) {
        size_t n = seed % 2 == 0 ? N : 1000 + seed;
        struct logprobs wanted, got;
        struct kernels ref;
        memset(&wanted, 0, sizeof wanted);
        memset(&got, 0, sizeof got);
        kernels_init(&ref, CPU_LEVEL_REF);
        fill(n, seed, 1.5f, 0);
        logprobs_of(&ref, row, n, (int32_t)seed, 20, &wanted);
        for (int level = 0; level <= (int)cpu_best_level(); level++) {
            struct kernels k;
            kernels_init(&k, (enum cpu_level)level);
            uint64_t calls = mem_count_calls();
            (void)fesetround(FE_DOWNWARD);
            logprobs_of(&k, row, n, (int32_t)seed, 20, &got);
            (void)fesetround(FE_TONEAREST);
            assert_true(mem_count_calls() == calls);
            assert_memory_equal(&wanted, &got, sizeof got);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(equals_f64),
        cmocka_unit_test(flat_rows_do_not_exceed_one),
        cmocka_unit_test(top_is_by_logit_then_id),
        cmocka_unit_test(every_level_and_rounding_gives_the_same_bits),
    };
    kernels_init(&kernels, cpu_best_level());
    return cmocka_run_group_tests(tests, NULL, NULL);
}
