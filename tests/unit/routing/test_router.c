/* Routers as trained: semantics per architecture, ties, refusals. Reference numbers:
 * tests/oracle/golden/router.json. */
#include "tests/unit/unit.h"

#include "base/limits.h"
#include "routing/router.h"

#include <jansson.h>
#include <math.h>
#include <string.h>

static struct kernels kernels;

static struct router_policy softmax_policy(size_t n, size_t k, bool renormalise)
{
    return (struct router_policy){ROUTER_SCORE_SOFTMAX, ROUTER_POST_GATHER, renormalise, 1, n, k};
}

static void ties_go_to_the_lower_id(void **state)
{
    float logits[6] = {1, 2, 2, 0, 2, 1};
    int32_t ids[4];
    float weights[4];
    struct router_policy policy = softmax_policy(6, 4, true);

    (void)state;
    assert_int_equal(router_select(&policy, &kernels, logits, ids, weights), FERRY_OK);
    const int32_t wanted[4] = {1, 2, 4, 0};
    assert_memory_equal(ids, wanted, sizeof wanted);
}

static void all_equal_scores_give_unique_ids(void **state)
{
    float logits[300] = {0};
    int32_t ids[8];
    float weights[8];
    struct router_policy policy = softmax_policy(300, 8, false);

    (void)state;
    assert_int_equal(router_select(&policy, &kernels, logits, ids, weights), FERRY_OK);
    for (int32_t i = 0; i < 8; i++) {
        assert_int_equal(ids[i], i);
        assert_float_equal(weights[i], 1.0 / 300, 1e-9);
    }
}

static void non_finite_scores_are_an_error(void **state)
{
    const float bad[3] = {NAN, INFINITY, -INFINITY};

    (void)state;
    for (size_t i = 0; i < 3; i++) {
        float logits[4] = {0, bad[i], 1, 2};
        int32_t ids[2];
        float weights[2];
        struct router_policy policy = softmax_policy(4, 2, true);
        assert_int_equal(router_select(&policy, &kernels, logits, ids, weights),
                         FERRY_ERR_NONFINITE);
    }
}

static void softmax_then_renormalise_is_softmax_over_selected(void **state)
{
    float a[5] = {0.3f, -1, 2, 0.7f, 1}, b[5] = {0.3f, -1, 2, 0.7f, 1};
    int32_t ids_a[3], ids_b[3];
    float wa[3], wb[3], sum = 0;
    struct router_policy gather = softmax_policy(5, 3, true);
    struct router_policy after = {ROUTER_SCORE_NONE, ROUTER_POST_SOFTMAX, false, 1, 5, 3};

    (void)state;
    assert_int_equal(router_select(&gather, &kernels, a, ids_a, wa), FERRY_OK);
    assert_int_equal(router_select(&after, &kernels, b, ids_b, wb), FERRY_OK);
    assert_memory_equal(ids_a, ids_b, sizeof ids_a);
    for (int i = 0; i < 3; i++) {
        assert_float_equal(wa[i], wb[i], 1e-6);
        sum += wb[i];
    }
    assert_float_equal(sum, 1, 1e-6);
}

static void without_renormalising_weights_sum_below_one(void **state)
{
    float logits[5] = {0.3f, -1, 2, 0.7f, 1};
    int32_t ids[3];
    float w[3];
    struct router_policy policy = softmax_policy(5, 3, false);

    (void)state;
    assert_int_equal(router_select(&policy, &kernels, logits, ids, w), FERRY_OK);
    assert_true(w[0] + w[1] + w[2] < 0.95f);
}

static void scale_is_applied_once_and_last(void **state)
{
    float logits[4] = {0, 3, 1, 2};
    int32_t ids[2];
    float w[2];
    struct router_policy policy = softmax_policy(4, 2, true);

    (void)state;
    policy.scale = 2.5f;
    assert_int_equal(router_select(&policy, &kernels, logits, ids, w), FERRY_OK);
    assert_float_equal(w[0] + w[1], 2.5, 1e-6);
}

static void policies_are_checked(void **state)
{
    struct ferry_error err = {0};
    const struct router_policy good = softmax_policy(8, 2, true);
    struct router_policy p;

    (void)state;
    assert_int_equal(router_policy_check(&good, &err), FERRY_OK);
    p = softmax_policy(0, 1, true);
    assert_int_equal(router_policy_check(&p, &err), FERRY_ERR_LIMIT);
    p = softmax_policy(8, 9, true);
    assert_int_equal(router_policy_check(&p, &err), FERRY_ERR_ARG);
    assert_non_null(strstr(err.msg, "9"));
    p = softmax_policy(8, 0, true);
    assert_int_equal(router_policy_check(&p, &err), FERRY_ERR_ARG);
    p = softmax_policy(4096, 65, true);
    assert_int_equal(router_policy_check(&p, &err), FERRY_ERR_LIMIT);
    p = good;
    p.scale = NAN;
    assert_int_equal(router_policy_check(&p, &err), FERRY_ERR_ARG);
}

static void run_golden_case(const json_t *c, double relative, double absolute)
{
    const json_t *logits = json_object_get(c, "logits"), *ids = json_object_get(c, "ids");
    const json_t *weights = json_object_get(c, "weights");
    const char *post = json_string_value(json_object_get(c, "post"));
    const char *score = json_string_value(json_object_get(c, "score"));
    float row[512], got_w[LIMIT_TOP_K];
    int32_t got[LIMIT_TOP_K];
    struct router_policy policy = {
        .score = strcmp(score, "softmax") == 0 ? ROUTER_SCORE_SOFTMAX : ROUTER_SCORE_NONE,
        .post = strncmp(post, "softmax", 7) == 0 ? ROUTER_POST_SOFTMAX : ROUTER_POST_GATHER,
        .renormalise = json_is_true(json_object_get(c, "renorm")),
        .scale = (float)json_number_value(json_object_get(c, "scale")),
        .n_experts = json_array_size(logits),
        .top_k = (size_t)json_integer_value(json_object_get(c, "k")),
    };

    assert_true(policy.n_experts <= COUNT_OF(row));
    for (size_t i = 0; i < policy.n_experts; i++)
        row[i] = (float)json_number_value(json_array_get(logits, i));
    assert_int_equal(router_select(&policy, &kernels, row, got, got_w), FERRY_OK);
    for (size_t i = 0; i < policy.top_k; i++) {
        double wanted = json_number_value(json_array_get(weights, i));
        assert_int_equal(got[i], json_integer_value(json_array_get(ids, i)));
        if (!(fabs((double)got_w[i] - wanted) <= relative * fabs(wanted) + absolute))
            fail_msg("%s: weight %zu is %.9g, wanted %.9g",
                     json_string_value(json_object_get(c, "name")), i, (double)got_w[i], wanted);
    }
}

static void golden_vectors(void **state)
{
    json_error_t error;
    json_t *file = json_load_file(FERRY_SOURCE_DIR "/tests/oracle/golden/router.json", 0, &error);
    const json_t *cases = json_object_get(file, "cases");

    (void)state;
    assert_non_null(file);
    assert_true(json_array_size(cases) >= 50);
    for (size_t i = 0; i < json_array_size(cases); i++)
        run_golden_case(json_array_get(cases, i),
                        json_number_value(json_object_get(file, "weight_tolerance_relative")),
                        json_number_value(json_object_get(file, "weight_tolerance_absolute")));
    json_decref(file);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(golden_vectors),
        cmocka_unit_test(ties_go_to_the_lower_id),
        cmocka_unit_test(all_equal_scores_give_unique_ids),
        cmocka_unit_test(non_finite_scores_are_an_error),
        cmocka_unit_test(softmax_then_renormalise_is_softmax_over_selected),
        cmocka_unit_test(without_renormalising_weights_sum_below_one),
        cmocka_unit_test(scale_is_applied_once_and_last),
        cmocka_unit_test(policies_are_checked),
    };
    kernels_init(&kernels, cpu_best_level());
    return cmocka_run_group_tests(tests, NULL, NULL);
}
