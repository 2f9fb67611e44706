/* The exchange of one rank: every pair combined once, the tree's shape, bits that depend on the
 * chosen experts only. */
#include "tests/unit/exchange/crew.h"
#include "tests/unit/exchange/one_device.h"

#include <stdlib.h>
#include <string.h>

static struct exchange *alone(bool bf16)
{
    return alone_on(device, bf16);
}

static void one_token_equals_its_batch(void **state)
{
    struct exchange *x = alone(false);
    struct ferry_error err = {0};
    struct input *all = malloc(sizeof *all), *one = malloc(sizeof *one);

    (void)state;
    make_input(all, 1);
    *one = *all;
    struct exchange_round_input in = round_of(all, 1, 0, TOKENS);
    assert_int_equal(exchange_run(x, &in, &err), FERRY_OK);
    for (size_t t = 0; t < TOKENS; t++) {
        in = round_of(one, 1, t, 1);
        assert_int_equal(exchange_run(x, &in, &err), FERRY_OK);
    }
    assert_memory_equal(one->out, all->out, sizeof all->out);
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
static bool sum_by_definition(const int32_t *ids, const float *leaves, size_t k, int32_t lo,
                              int32_t hi, float *ret)
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
    bool has_left = sum_by_definition(ids, leaves, k, lo, mid, &left),
         has_right = sum_by_definition(ids, leaves, k, mid, hi, &right);
    *ret = has_left && has_right ? left + right : has_left ? left : right;
    return true;
}

static void sum_is_the_stated_tree(void **state)
{
    struct exchange *x = alone(false);
    struct ferry_error err = {0};
    struct input *in = malloc(sizeof *in);

    (void)state;
    make_input(in, 2);
    struct exchange_round_input round = round_of(in, 2, 0, TOKENS);
    assert_int_equal(exchange_run(x, &round, &err), FERRY_OK);
    for (size_t t = 0; t < TOKENS; t++) {
        for (size_t c = 0; c < HIDDEN; c += 7) {
            float leaves[TOP_K], wanted;
            for (size_t j = 0; j < TOP_K; j++)
                leaves[j] = in->weights[t * TOP_K + j] *
                            (in->rows[t * HIDDEN + c] * (float)(in->experts[t * TOP_K + j] + 1) +
                             (float)c / 8 + 2.0f);
            assert_true(
                sum_by_definition(in->experts + t * TOP_K, leaves, TOP_K, 0, EXPERTS, &wanted));
            assert_memory_equal(&in->out[t * HIDDEN + c], &wanted, sizeof wanted);
        }
    }
    exchange_destroy(x);
    free(in);
}

/* Loses one row on the way. */
static size_t losing_experts(void *arg, const struct exchange_job *job)
{
    return fake_experts(NULL, job) - *(const size_t *)arg;
}

static void a_lost_row_voids_the_round(void **state)
{
    struct exchange *x = NULL;
    struct ferry_error err = {0};
    struct exchange_options options = options_of(NULL, NULL);
    struct input *in = malloc(sizeof *in);
    size_t n_lost = 1;

    (void)state;
    make_input(in, 3);
    options.run_experts = losing_experts;
    options.arg = &n_lost;
    assert_int_equal(exchange_create(&x, device, &options, &err), FERRY_OK);
    struct exchange_round_input round = round_of(in, 0, 0, 2);
    assert_int_equal(exchange_run(x, &round, &err), FERRY_ERR_LEDGER);
    assert_non_null(strstr(err.msg, "10 rows routed, 9 delivered"));
    assert_int_equal(exchange_ledger(x)->voided, 1);
    n_lost = 0;
    assert_int_equal(exchange_run(x, &round, &err), FERRY_OK);
    exchange_destroy(x);
    free(in);
}

/* An expert chosen twice would be added once: the account shows it. */
static void an_expert_twice_voids_the_round(void **state)
{
    struct exchange *x = alone(false);
    struct ferry_error err = {0};
    struct input *in = malloc(sizeof *in);

    (void)state;
    make_input(in, 3);
    in->experts[1] = in->experts[0];
    struct exchange_round_input round = round_of(in, 0, 0, 1);
    assert_int_equal(exchange_run(x, &round, &err), FERRY_ERR_LEDGER);
    exchange_destroy(x);
    free(in);
}

static void no_tokens_is_legal(void **state)
{
    struct exchange *x = alone(false);
    struct ferry_error err = {0};
    struct exchange_round_input none = {.top_k = 1, .n_experts = EXPERTS};

    (void)state;
    assert_int_equal(exchange_run(x, &none, &err), FERRY_OK);
    assert_int_equal(exchange_ledger(x)->routed, 0);
    exchange_destroy(x);
}

static void counts_are_the_decisions_by_layer(void **state)
{
    struct exchange *x = alone(false);
    struct ferry_error err = {0};
    struct input *in = malloc(sizeof *in);
    uint64_t wanted[LAYERS][EXPERTS] = {{0}}, got[EXPERTS];

    (void)state;
    for (unsigned i = 0; i < 12; i++) {
        size_t layer = i % LAYERS, n = i % 4 == 3 ? 0 : 1 + i % TOKENS;
        if (layer == 1)
            continue; /* as a layer without experts */
        make_input(in, i);
        struct exchange_round_input round = round_of(in, layer, 0, n);
        assert_int_equal(exchange_run(x, &round, &err), FERRY_OK);
        for (size_t s = 0; s < n * TOP_K; s++)
            wanted[layer][in->experts[s]]++;
    }
    for (size_t layer = 0; layer < LAYERS; layer++) {
        memset(got, 0xAA, sizeof got);
        exchange_counts(x, layer, EXPERTS, got);
        assert_memory_equal(got, wanted[layer], sizeof got);
    }
    exchange_destroy(x);
    free(in);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_token_equals_its_batch),
        cmocka_unit_test(sum_is_the_stated_tree),
        cmocka_unit_test(a_lost_row_voids_the_round),
        cmocka_unit_test(an_expert_twice_voids_the_round),
        cmocka_unit_test(no_tokens_is_legal),
        cmocka_unit_test(counts_are_the_decisions_by_layer),
    };
    return cmocka_run_group_tests(tests, make_device, free_device);
}
