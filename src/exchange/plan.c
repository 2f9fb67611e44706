/* The one-rank plan: a counting sort of (token, slot) pairs by expert. See exchange.h. */
#include "exchange/plan.h"

#include "base/assert.h"

#include <string.h>

/* A token's pairs in ascending expert order: k is small, insertion sort. */
static void sort_token(int32_t *ids, int32_t *order, size_t k)
{
    for (size_t i = 1; i < k; i++) {
        int32_t id = ids[i], at = order[i];
        size_t j = i;
        for (; j > 0 && ids[j - 1] > id; j--) {
            ids[j] = ids[j - 1];
            order[j] = order[j - 1];
        }
        ids[j] = id;
        order[j] = at;
    }
}

void plan_build(struct exchange_plan *plan, const int32_t *experts, const float *weights,
                size_t n_tokens, size_t top_k, size_t n_experts)
{
    int32_t order[LIMIT_TOP_K];

    plan->n_tokens = n_tokens;
    plan->top_k = top_k;
    plan->n_experts = n_experts;
    plan->n_slots = n_tokens * top_k;
    plan->n_active = 0;
    memset(plan->begin, 0, (n_experts + 1) * sizeof *plan->begin);
    for (size_t i = 0; i < plan->n_slots; i++) {
        FERRY_ASSERT(experts[i] >= 0 && (size_t)experts[i] < n_experts);
        plan->begin[experts[i] + 1]++;
    }
    for (size_t e = 0; e < n_experts; e++) {
        plan->n_active += plan->begin[e + 1] > 0;
        plan->begin[e + 1] += plan->begin[e];
    }
    /* begin[e] is used as the cursor of expert e, which leaves it at the end of e's slots: shifted
     * back below. */
    for (size_t t = 0; t < n_tokens; t++) {
        int32_t *ids = plan->token_experts + t * top_k, *slots = plan->token_slots + t * top_k;
        for (size_t j = 0; j < top_k; j++) {
            ids[j] = experts[t * top_k + j];
            order[j] = (int32_t)j;
        }
        sort_token(ids, order, top_k);
        for (size_t j = 0; j < top_k; j++) {
            int32_t slot = plan->begin[ids[j]]++;
            slots[j] = slot;
            plan->slot_token[slot] = (int32_t)t;
            plan->slot_weight[slot] = weights[t * top_k + (size_t)order[j]];
        }
    }
    memmove(plan->begin + 1, plan->begin, n_experts * sizeof *plan->begin);
    plan->begin[0] = 0;
}

/* Adds up ids[first, last), all inside [lo, hi); returns how many steps were written. */
static size_t tree_range(const int32_t *ids, size_t first, size_t last, int32_t lo, int32_t hi,
                         uint8_t *left, uint8_t *right)
{
    if (last - first < 2 || hi - lo < 2) /* ids are unique; two equal ones would not be added up */
        return 0;
    int32_t mid = lo + (hi - lo) / 2;
    size_t split = first;
    while (split < last && ids[split] < mid)
        split++;
    size_t n = tree_range(ids, first, split, lo, mid, left, right);
    n += tree_range(ids, split, last, mid, hi, left + n, right + n);
    if (split > first && split < last) {
        left[n] = (uint8_t)first;
        right[n] = (uint8_t)split;
        n++;
    }
    return n;
}

size_t exchange_tree(const int32_t *ids, size_t k, size_t n_experts, uint8_t *left, uint8_t *right)
{
    return tree_range(ids, 0, k, 0, (int32_t)n_experts, left, right);
}
