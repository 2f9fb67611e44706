/* The plan's bookkeeping and the order of the combine tree. */
#include "tests/unit/unit.h"

#include "base/limits.h"
#include "exchange/plan.h"

#include <string.h>

static void slots_are_sorted_by_expert_then_token(void **state)
{
    const int32_t experts[3 * 2] = {4, 1, 1, 0, 4, 0};
    const float weights[3 * 2] = {0.1f, 0.2f, 0.3f, 0.4f, 0.5f, 0.6f};
    int32_t begin[6], slot_token[6], token_slots[6], token_experts[6];
    float slot_weight[6];
    struct exchange_plan plan = {.begin = begin,
                                 .slot_token = slot_token,
                                 .slot_weight = slot_weight,
                                 .token_slots = token_slots,
                                 .token_experts = token_experts};
    const int32_t want_begin[6] = {0, 2, 4, 4, 4, 6}, want_token[6] = {1, 2, 0, 1, 0, 2};
    const float want_weight[6] = {0.4f, 0.6f, 0.2f, 0.3f, 0.1f, 0.5f};
    const int32_t want_slots[6] = {2, 4, 0, 3, 1, 5}, want_experts[6] = {1, 4, 0, 1, 0, 4};

    (void)state;
    plan_build(&plan, experts, weights, 3, 2, 5);
    assert_memory_equal(begin, want_begin, sizeof begin);
    assert_memory_equal(slot_token, want_token, sizeof slot_token);
    assert_memory_equal(slot_weight, want_weight, sizeof slot_weight);
    assert_memory_equal(token_slots, want_slots, sizeof token_slots);
    assert_memory_equal(token_experts, want_experts, sizeof token_experts);
    assert_int_equal(plan.n_slots, 6);
    assert_int_equal(plan.n_active, 3);
}

/* Every leaf but the first is added into another exactly once, and nothing is added after it was.
 */
static void tree_uses_every_leaf_once(void **state)
{
    uint8_t left[LIMIT_TOP_K], right[LIMIT_TOP_K];
    int32_t ids[LIMIT_TOP_K];

    (void)state;
    for (size_t n_experts = 1; n_experts <= 70; n_experts++) {
        for (size_t k = 1; k <= n_experts && k <= LIMIT_TOP_K; k++) {
            uint8_t gone[LIMIT_TOP_K] = {0};
            for (size_t i = 0; i < k; i++) /* spread over the range */
                ids[i] = (int32_t)(i * n_experts / k);
            assert_int_equal(exchange_tree(ids, k, n_experts, left, right), k - 1);
            for (size_t i = 0; i + 1 < k; i++) {
                assert_true(left[i] < right[i] && right[i] < k);
                assert_int_equal(gone[left[i]], 0);
                assert_int_equal(gone[right[i]], 0);
                gone[right[i]] = 1;
            }
        }
    }
}

static void known_tree(void **state)
{
    /* Experts 0..7: {1, 2} meet in [0, 4), {6, 7} in [6, 8), then both in [0, 8). */
    const int32_t ids[4] = {1, 2, 6, 7};
    uint8_t left[4], right[4];

    (void)state;
    assert_int_equal(exchange_tree(ids, 4, 8, left, right), 3);
    const uint8_t want_left[3] = {0, 2, 0}, want_right[3] = {1, 3, 2};
    assert_memory_equal(left, want_left, 3);
    assert_memory_equal(right, want_right, 3);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(slots_are_sorted_by_expert_then_token),
        cmocka_unit_test(tree_uses_every_leaf_once),
        cmocka_unit_test(known_tree),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
