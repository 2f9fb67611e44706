/* The one-rank exchange: every pair combined once, the tree's shape, bits that depend on the chosen
 * experts only. */
#include "tests/unit/unit.h"

#include "base/alloc.h"
#include "exchange/exchange.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

enum { HIDDEN = 600, EXPERTS = 13, TOP_K = 5, TOKENS = 37 };

static struct device *device;

/* Expert e turns token t into e + 1 + t / 100 + column / 1000, whatever the batch. */
static size_t fake_experts(void *arg, const struct exchange_plan *plan, float *out,
                           size_t out_stride)
{
    const int32_t *tokens = arg; /* global number of each local token */

    for (size_t e = 0; e < plan->n_experts; e++) {
        for (int32_t s = plan->begin[e]; s < plan->begin[e + 1]; s++) {
            int32_t t = tokens[plan->slot_token[s]];
            for (size_t c = 0; c < HIDDEN; c++)
                out[(size_t)s * out_stride + c] = (float)(e + 1) + (float)t / 100 + (float)c / 1000;
        }
    }
    return plan->n_slots;
}

static void make_decision(int32_t *experts, float *weights, size_t n, size_t top_k, unsigned seed)
{
    srand(seed);
    for (size_t t = 0; t < n; t++) {
        int32_t all[EXPERTS];
        for (int32_t e = 0; e < EXPERTS; e++)
            all[e] = e;
        for (size_t j = 0; j < top_k;
             j++) { /* a random choice without repetition, in random order */
            size_t at = j + (size_t)rand() % (EXPERTS - j);
            int32_t id = all[at];
            all[at] = all[j];
            all[j] = id;
            experts[t * top_k + j] = id;
            weights[t * top_k + j] = (float)(1 + rand() % 1000) / 1000;
        }
    }
}

static void one_token_equals_its_batch(void **state)
{
    struct exchange *x = NULL;
    struct ferry_error err = {0};
    int32_t experts[TOKENS * TOP_K], tokens[TOKENS];
    float weights[TOKENS * TOP_K];
    float *all = malloc(sizeof(float) * TOKENS * HIDDEN), *one = malloc(sizeof(float) * HIDDEN);

    (void)state;
    make_decision(experts, weights, TOKENS, TOP_K, 1);
    for (int32_t t = 0; t < TOKENS; t++)
        tokens[t] = t;
    assert_int_equal(exchange_create(&x, device, TOKENS, TOP_K, EXPERTS, HIDDEN, &err), FERRY_OK);
    assert_int_equal(
        exchange_run(x, experts, weights, TOKENS, TOP_K, EXPERTS, fake_experts, tokens, all, &err),
        FERRY_OK);
    for (size_t t = 0; t < TOKENS; t++) {
        assert_int_equal(exchange_run(x, experts + t * TOP_K, weights + t * TOP_K, 1, TOP_K,
                                      EXPERTS, fake_experts, tokens + t, one, &err),
                         FERRY_OK);
        assert_memory_equal(one, all + t * HIDDEN, sizeof(float) * HIDDEN);
    }
    const struct exchange_ledger *ledger = exchange_ledger(x);
    assert_int_equal(ledger->routed, 2 * TOKENS * TOP_K);
    assert_int_equal(ledger->delivered, ledger->routed);
    assert_int_equal(ledger->combined, ledger->routed);
    assert_int_equal(ledger->voided, 0);
    exchange_destroy(x);
    free(all);
    free(one);
}

/* The sum by the definition: a recursion over the expert range, independent of the implementation.
 */
static bool tree_sum(const int32_t *ids, const float *leaves, size_t k, int32_t lo, int32_t hi,
                     float *ret)
{
    size_t n = 0, last = 0;
    float left, right;

    for (size_t i = 0; i < k; i++) {
        if (ids[i] >= lo && ids[i] < hi) {
            n++;
            last = i;
        }
    }
    if (n == 0)
        return false;
    if (n == 1) {
        *ret = leaves[last];
        return true;
    }
    int32_t mid = lo + (hi - lo) / 2;
    bool has_left = tree_sum(ids, leaves, k, lo, mid, &left),
         has_right = tree_sum(ids, leaves, k, mid, hi, &right);
    *ret = has_left && has_right ? left + right : has_left ? left : right;
    return true;
}

static void sum_is_the_stated_tree(void **state)
{
    struct exchange *x = NULL;
    struct ferry_error err = {0};
    int32_t experts[TOKENS * TOP_K], tokens[TOKENS];
    float weights[TOKENS * TOP_K], *out = malloc(sizeof(float) * TOKENS * HIDDEN);

    (void)state;
    make_decision(experts, weights, TOKENS, TOP_K, 2);
    for (int32_t t = 0; t < TOKENS; t++)
        tokens[t] = t;
    assert_int_equal(exchange_create(&x, device, TOKENS, TOP_K, EXPERTS, HIDDEN, &err), FERRY_OK);
    assert_int_equal(
        exchange_run(x, experts, weights, TOKENS, TOP_K, EXPERTS, fake_experts, tokens, out, &err),
        FERRY_OK);
    for (size_t t = 0; t < TOKENS; t++) {
        for (size_t c = 0; c < HIDDEN; c += 7) {
            float leaves[TOP_K], wanted;
            for (size_t j = 0; j < TOP_K; j++)
                leaves[j] = weights[t * TOP_K + j] * ((float)(experts[t * TOP_K + j] + 1) +
                                                      (float)t / 100 + (float)c / 1000);
            assert_true(tree_sum(experts + t * TOP_K, leaves, TOP_K, 0, EXPERTS, &wanted));
            assert_memory_equal(&out[t * HIDDEN + c], &wanted, sizeof wanted);
        }
    }
    exchange_destroy(x);
    free(out);
}

/* Loses one row on the way. */
static size_t losing_experts(void *arg, const struct exchange_plan *plan, float *out,
                             size_t out_stride)
{
    return fake_experts(arg, plan, out, out_stride) - 1;
}

static void a_lost_row_voids_the_round(void **state)
{
    struct exchange *x = NULL;
    struct ferry_error err = {0};
    const int32_t experts[4] = {0, 3, 3, 12};
    const float weights[4] = {1, 1, 1, 1};
    int32_t tokens[2] = {0, 1};
    float *out = malloc(sizeof(float) * 2 * HIDDEN);

    (void)state;
    assert_int_equal(exchange_create(&x, device, 2, 2, EXPERTS, HIDDEN, &err), FERRY_OK);
    assert_int_equal(
        exchange_run(x, experts, weights, 2, 2, EXPERTS, losing_experts, tokens, out, &err),
        FERRY_ERR_LEDGER);
    assert_non_null(strstr(err.msg, "4 rows routed, 3 delivered"));
    assert_int_equal(exchange_ledger(x)->voided, 1);
    assert_int_equal(
        exchange_run(x, experts, weights, 2, 2, EXPERTS, fake_experts, tokens, out, &err),
        FERRY_OK);
    exchange_destroy(x);
    free(out);
}

static void no_tokens_is_legal(void **state)
{
    struct exchange *x = NULL;
    struct ferry_error err = {0};

    (void)state;
    assert_int_equal(exchange_create(&x, device, 4, 1, EXPERTS, HIDDEN, &err), FERRY_OK);
    assert_int_equal(exchange_run(x, NULL, NULL, 0, 1, EXPERTS, fake_experts, NULL, NULL, &err),
                     FERRY_OK);
    assert_int_equal(exchange_ledger(x)->routed, 0);
    exchange_destroy(x);
}

/* ---- the load of experts ---- */

static void counts_are_the_decisions_by_layer(void **state)
{
    struct exchange *x = NULL;
    struct ferry_error err = {0};
    int32_t experts[TOKENS * TOP_K], tokens[TOKENS];
    float weights[TOKENS * TOP_K], *out = malloc(sizeof(float) * TOKENS * HIDDEN);
    uint64_t wanted[3][EXPERTS + 4] = {{0}}, got[EXPERTS + 4];

    (void)state;
    for (int32_t t = 0; t < TOKENS; t++)
        tokens[t] = t;
    /* Room for more experts than the layers have: rows of the table must not overlap. */
    assert_int_equal(exchange_create(&x, device, TOKENS, TOP_K, EXPERTS + 4, HIDDEN, &err),
                     FERRY_OK);
    assert_int_equal(exchange_keep_counts(x, 3, &err), FERRY_OK);
    for (unsigned round = 0; round < 12; round++) {
        size_t layer = round % 3, n = round % 4 == 3 ? 0 : 1 + round % TOKENS;
        if (layer == 1)
            continue; /* as a layer without experts */
        make_decision(experts, weights, n, TOP_K, round);
        assert_int_equal(
            exchange_run(x, experts, weights, n, TOP_K, EXPERTS, fake_experts, tokens, out, &err),
            FERRY_OK);
        if (round == 5)
            continue; /* nobody counted it */
        exchange_count(x, layer);
        for (size_t i = 0; i < n * TOP_K; i++)
            wanted[layer][experts[i]]++;
    }
    for (size_t layer = 0; layer < 3; layer++) {
        memset(got, 0xAA, sizeof got);
        exchange_counts(x, layer, EXPERTS, got);
        assert_memory_equal(got, wanted[layer], EXPERTS * sizeof got[0]);
        exchange_counts(x, layer, EXPERTS + 4, got);
        assert_memory_equal(got, wanted[layer], sizeof got);
    }
    assert_int_equal(exchange_counts_bytes(3, EXPERTS + 4), sizeof wanted);
    exchange_destroy(x);
    free(out);
}

static void without_counts_nothing_is_counted(void **state)
{
    struct exchange *x = NULL;
    struct ferry_error err = {0};
    const int32_t experts[2] = {0, 3};
    const float weights[2] = {1, 1};
    const uint64_t none[EXPERTS] = {0};
    uint64_t got[EXPERTS];
    int32_t token = 0;
    float *out = malloc(sizeof(float) * HIDDEN);

    (void)state;
    assert_int_equal(exchange_create(&x, device, 1, 2, EXPERTS, HIDDEN, &err), FERRY_OK);
    assert_int_equal(
        exchange_run(x, experts, weights, 1, 2, EXPERTS, fake_experts, &token, out, &err),
        FERRY_OK);
    exchange_count(x, 7);
    memset(got, 0xAA, sizeof got);
    exchange_counts(x, 7, EXPERTS, got);
    assert_memory_equal(got, none, sizeof got);
    /* No memory: as before. */
    assert_int_equal(exchange_keep_counts(x, SIZE_MAX / 2, &err), FERRY_ERR_NOMEM);
    assert_non_null(strstr(err.msg, "layers x 13 experts"));
    assert_int_equal(exchange_keep_counts(x, SIZE_MAX / 1024, &err), FERRY_ERR_NOMEM);
    exchange_count(x, 7);
    free(out);
    exchange_destroy(x);
}

struct watch {
    struct exchange *exchange;
    atomic_bool quit;
    size_t n_reads, n_backwards;
};

static void *watch_counts(void *arg)
{
    struct watch *w = arg;
    uint64_t now[EXPERTS], before[EXPERTS] = {0};

    do {
        exchange_counts(w->exchange, 0, EXPERTS, now);
        for (size_t e = 0; e < EXPERTS; e++)
            w->n_backwards += now[e] < before[e];
        memcpy(before, now, sizeof before);
        w->n_reads++;
    } while (!atomic_load(&w->quit));
    return NULL;
}

static void counts_are_read_while_they_grow(void **state)
{
    enum { ROUNDS = 300 };
    struct exchange *x = NULL;
    struct ferry_error err = {0};
    const int32_t experts[2] = {2, 5};
    const float weights[2] = {1, 1};
    uint64_t got[EXPERTS];
    int32_t token = 0;
    float *out = malloc(sizeof(float) * HIDDEN);
    pthread_t thread;

    (void)state;
    assert_int_equal(exchange_create(&x, device, 1, 2, EXPERTS, HIDDEN, &err), FERRY_OK);
    assert_int_equal(exchange_keep_counts(x, 1, &err), FERRY_OK);
    struct watch watch = {.exchange = x};
    assert_int_equal(pthread_create(&thread, NULL, watch_counts, &watch), 0);
    for (size_t i = 0; i < ROUNDS; i++) {
        assert_int_equal(
            exchange_run(x, experts, weights, 1, 2, EXPERTS, fake_experts, &token, out, &err),
            FERRY_OK);
        exchange_count(x, 0);
    }
    atomic_store(&watch.quit, true);
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_true(watch.n_reads > 0);
    assert_int_equal(watch.n_backwards, 0);
    exchange_counts(x, 0, EXPERTS, got);
    for (size_t e = 0; e < EXPERTS; e++)
        assert_int_equal(got[e], e == 2 || e == 5 ? ROUNDS : 0);
    exchange_destroy(x);
    free(out);
}

static void out_of_memory_is_a_status(void **state)
{
    struct ferry_error err = {0};

    (void)state;
    for (uint64_t n = 1; n < 20; n++) {
        struct exchange *x = NULL;
        mem_fail_after(n);
        enum ferry_status st = exchange_create(&x, device, 64, 4, 64, 256, &err);
        mem_fail_after(0);
        if (st == FERRY_OK) {
            exchange_destroy(x);
            assert_true(n > 1);
            return;
        }
        assert_int_equal(st, FERRY_ERR_NOMEM);
        assert_null(x);
    }
    fail_msg("exchange_create never succeeded");
}

static int start(void **state)
{
    struct device_options options = {2, cpu_best_level()};
    struct ferry_error err = {0};

    (void)state;
    return device_create_cpu(&device, &options, &err) == FERRY_OK ? 0 : -1;
}

static int stop(void **state)
{
    (void)state;
    device_destroy(device);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_token_equals_its_batch),
        cmocka_unit_test(sum_is_the_stated_tree),
        cmocka_unit_test(a_lost_row_voids_the_round),
        cmocka_unit_test(no_tokens_is_legal),
        cmocka_unit_test(out_of_memory_is_a_status),
        cmocka_unit_test(counts_are_the_decisions_by_layer),
        cmocka_unit_test(without_counts_nothing_is_counted),
        cmocka_unit_test(counts_are_read_while_they_grow),
    };
    return cmocka_run_group_tests(tests, start, stop);
}
