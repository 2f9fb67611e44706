/* Loads of experts: known distributions, edges, and a page whose size is bounded. */
#include "page.h"

#include "base/alloc.h"
#include "base/clock.h"
#include "observe/experts.h"

#include <math.h>

static struct expert_load load_of(const uint64_t *counts, size_t n)
{
    struct expert_load load;
    uint64_t copy[512];

    assert_true(n <= COUNT_OF(copy));
    memcpy(copy, counts, n * sizeof copy[0]);
    expert_load_of(&load, copy, n);
    assert_true(load.has_experts);
    return load;
}

static void known_distributions(void **state)
{
    uint64_t even[256], ramp[200], one[64] = {0};

    (void)state;
    for (size_t i = 0; i < 256; i++)
        even[i] = 777;
    struct expert_load load = load_of(even, 256);
    assert_true(load.max == 1 && load.p99 == 1 && load.p50 == 1 && load.min == 1);
    assert_true(load.balance == 1);
    assert_int_equal(load.n_active, 256);
    one[17] = UINT64_MAX / 2; /* one has all */
    load = load_of(one, 64);
    assert_true(load.max == 64 && load.min == 0 && load.p50 == 0);
    assert_true(load.p99 == 64); /* of 64, 99 % are more than 63 */
    assert_true(fabs(load.balance - 1.0 / 64) < 1e-12);
    assert_int_equal(load.n_active, 1);
    for (size_t i = 0; i < 200; i++) /* 1..200 in some order; the mean is 100.5 */
        ramp[i] = (i * 77 + 5) % 200 + 1;
    load = load_of(ramp, 200);
    assert_true(fabs(load.max - 200 / 100.5) < 1e-12);
    assert_true(fabs(load.p99 - 198 / 100.5) < 1e-12);
    assert_true(fabs(load.p50 - 100 / 100.5) < 1e-12);
    assert_true(fabs(load.min - 1 / 100.5) < 1e-12);
    /* (n(n+1)/2)^2 / (n * n(n+1)(2n+1)/6) = 3(n+1) / (2(2n+1)) */
    assert_true(fabs(load.balance - 603.0 / 802) < 1e-12);
    const uint64_t two[] = {1, 3};
    load = load_of(two, 2);
    assert_true(load.max == 1.5 && load.p99 == 1.5 && load.p50 == 0.5 && load.min == 0.5);
    assert_true(load.balance == 0.8);
    const uint64_t single[] = {9};
    load = load_of(single, 1);
    assert_true(load.max == 1 && load.min == 1 && load.balance == 1);
    const uint64_t none[8] = {0};
    load = load_of(none, 8);
    assert_true(isnan(load.max) && isnan(load.p50) && isnan(load.min) && isnan(load.balance));
    assert_int_equal(load.n_active, 0);
}

static void the_balance_is_never_over_one(void **state)
{
    uint64_t counts[7];

    (void)state;
    for (uint64_t c = 1; c < 5000; c++) {
        for (size_t i = 0; i < 7; i++)
            counts[i] = c * 1000000000007u;
        assert_true(load_of(counts, 7).balance <= 1);
        assert_true(load_of(counts, 7).balance > 1 - 1e-12);
    }
}

/* Layer 0 has no experts, layer 1 the loads {1, 3, 0, 0}, layer 2 none yet. */
static bool read_three(const void *arg, size_t layer, uint64_t *ret_counts)
{
    (void)arg;
    if (layer == 0)
        return false;
    memset(ret_counts, 0, 4 * sizeof ret_counts[0]);
    if (layer == 1) {
        ret_counts[0] = 1;
        ret_counts[1] = 3;
    }
    return true;
}

static void a_page_of_three_layers(void **state)
{
    struct exposition e = {0};

    (void)state;
    experts_expose(&e, 3, 4, read_three, NULL);
    assert_string_equal(
        page_text(&e),
        "# HELP ferry_layer_expert_load_ratio Load of a layer's experts over the fair share, since "
        "the start.\n"
        "# TYPE ferry_layer_expert_load_ratio gauge\n"
        "ferry_layer_expert_load_ratio{layer=\"1\",stat=\"max\"} 3\n"
        "ferry_layer_expert_load_ratio{layer=\"1\",stat=\"p99\"} 3\n"
        "ferry_layer_expert_load_ratio{layer=\"1\",stat=\"p50\"} 0\n"
        "ferry_layer_expert_load_ratio{layer=\"1\",stat=\"min\"} 0\n"
        "# HELP ferry_layer_balance_ratio Jain index of a layer's expert loads, since the start: 1 "
        "is even.\n"
        "# TYPE ferry_layer_balance_ratio gauge\n"
        "ferry_layer_balance_ratio{layer=\"1\"} 0.4\n"
        "# HELP ferry_layer_experts_active Experts of a layer that computed anything since the "
        "start.\n"
        "# TYPE ferry_layer_experts_active gauge\n"
        "ferry_layer_experts_active{layer=\"1\"} 2\n"
        "ferry_layer_experts_active{layer=\"2\"} 0\n");
    e.size = 0;
    experts_expose_all(&e, 3, 4, read_three, NULL);
    const char *page = page_text(&e);
    assert_line(page, "# TYPE ferry_expert_rows_total counter");
    assert_line(page, "ferry_expert_rows_total{layer=\"1\",expert=\"1\"} 3");
    assert_line(page, "ferry_expert_rows_total{layer=\"1\",expert=\"3\"} 0");
    assert_int_equal(times_in(page, "\n"), 2 + 8);
    e.size = 0;
    experts_expose(&e, 0, 4, read_three, NULL);
    experts_expose_all(&e, 3, 0, read_three, NULL);
    assert_string_equal(page_text(&e), "");
    exposition_fini(&e);
}

static bool read_many(const void *arg, size_t layer, uint64_t *ret_counts)
{
    const size_t *n_experts = arg;

    for (size_t i = 0; i < *n_experts; i++)
        ret_counts[i] = (i * 7919 + layer * 104729) % 10007 * 1000003;
    return true;
}

/* The shape of DeepSeek-V3: 58 layers of 256 experts. */
static void large_models_stay_cheap(void **state)
{
    struct exposition e = {0};
    size_t n_experts = 256;

    (void)state;
    uint64_t best[2] = {UINT64_MAX, UINT64_MAX};
    for (int i = 0; i < 5; i++) {
        e.size = 0;
        uint64_t start = clock_now_ns();
        experts_expose(&e, 58, n_experts, read_many, &n_experts);
        uint64_t ns = clock_now_ns() - start;
        best[0] = ns < best[0] ? ns : best[0];
        assert_int_equal(times_in(page_text(&e), "\n"), 3 * 2 + 58 * 6);
        e.size = 0;
        start = clock_now_ns();
        experts_expose_all(&e, 58, n_experts, read_many, &n_experts);
        ns = clock_now_ns() - start;
        best[1] = ns < best[1] ? ns : best[1];
        assert_false(e.failed);
    }
    print_message("58 x 256: %.2f ms, every expert: %.2f ms, %zu bytes\n", (double)best[0] * 1e-6,
                  (double)best[1] * 1e-6, e.size);
    assert_true(best[0] < 200000000); /* a bound for sanitizers on busy machines */
    exposition_fini(&e);
}

static void out_of_memory_fails_the_page(void **state)
{
    (void)state;
    for (uint64_t n = 1; n <= 3; n++) {
        struct exposition e = {0};
        mem_fail_after(n);
        experts_expose(&e, 3, 4, read_three, NULL);
        mem_fail_after(0);
        assert_true(e.failed);
        exposition_fini(&e);
        mem_fail_after(n);
        experts_expose_all(&e, 3, 4, read_three, NULL);
        mem_fail_after(0);
        assert_int_equal(e.failed, n <= 2);
        exposition_fini(&e);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(known_distributions),
        cmocka_unit_test(the_balance_is_never_over_one),
        cmocka_unit_test(a_page_of_three_layers),
        cmocka_unit_test(large_models_stay_cheap),
        cmocka_unit_test(out_of_memory_fails_the_page),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
