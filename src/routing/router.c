/* Top-k routing as trained. See router.h. Source of the semantics: the models' reference code, as
 * tabled in docs/numerics.md. */
#include "routing/router.h"

#include "base/error.h"
#include "base/limits.h"

#include <math.h>

enum ferry_status router_policy_check(const struct router_policy *policy, struct ferry_error *err)
{
    if (policy->n_experts < 1 || policy->n_experts > LIMIT_EXPERTS)
        return FERRY_FAIL(err, FERRY_ERR_LIMIT, "router: %zu experts is not in 1..%d",
                          policy->n_experts, LIMIT_EXPERTS);
    if (policy->top_k < 1 || policy->top_k > policy->n_experts)
        return FERRY_FAIL(err, FERRY_ERR_ARG,
                          "router: %zu experts per token is not in 1..%zu (the number of experts)",
                          policy->top_k, policy->n_experts);
    if (policy->top_k > LIMIT_TOP_K)
        return FERRY_FAIL(err, FERRY_ERR_LIMIT, "router: %zu experts per token is more than %d",
                          policy->top_k, LIMIT_TOP_K);
    if (!isfinite(policy->scale))
        return FERRY_FAIL(err, FERRY_ERR_ARG, "router: weight scale is not finite");
    return FERRY_OK;
}

/* Keeps the k best of scores [n] in `ids`, best first; an equal score keeps the lower id ahead. */
static void top_k(const float *scores, size_t n, size_t k, int32_t *ids)
{
    size_t count = 0;

    for (size_t i = 0; i < n; i++) {
        if (count == k && !(scores[i] > scores[ids[count - 1]]))
            continue;
        size_t at = count < k ? count++ : k - 1;
        while (at > 0 && scores[i] > scores[ids[at - 1]]) {
            ids[at] = ids[at - 1];
            at--;
        }
        ids[at] = (int32_t)i;
    }
}

enum ferry_status router_select(const struct router_policy *policy, const struct kernels *kernels,
                                float *logits, int32_t *experts, float *weights)
{
    size_t k = policy->top_k;

    for (size_t i = 0; i < policy->n_experts; i++) {
        if (!isfinite(logits[i]))
            return FERRY_ERR_NONFINITE;
    }
    if (policy->score == ROUTER_SCORE_SOFTMAX)
        kernels->softmax(logits, policy->n_experts);
    top_k(logits, policy->n_experts, k, experts);
    for (size_t i = 0; i < k; i++)
        weights[i] = logits[experts[i]];
    if (policy->post == ROUTER_POST_SOFTMAX)
        kernels->softmax(weights, k);
    if (policy->renormalise) {
        float sum = 0;
        for (size_t i = 0; i < k; i++)
            sum += weights[i];
        for (size_t i = 0; i < k; i++)
            weights[i] /= sum;
    }
    if (policy->scale != 1.0f) {
        for (size_t i = 0; i < k; i++)
            weights[i] *= policy->scale;
    }
    return FERRY_OK;
}
