/* Running a layer's exchange: experts through the callback, then the combine tree. See exchange.h.
 */
#include "exchange/exchange.h"

#include "base/alloc.h"
#include "base/arena.h"
#include "base/assert.h"
#include "base/error.h"
#include "base/size.h"
#include "exchange/plan.h"

#include <stdatomic.h>
#include <string.h>

enum { COMBINE_COLS = 512 }; /* columns of one combine item; a bound on cache use, not on bits */

struct exchange {
    struct device *device;
    size_t max_tokens, max_top_k, max_experts, hidden;
    struct exchange_plan plan;
    struct exchange_ledger ledger;
    float *rows;     /* [max_tokens * max_top_k, hidden] expert outputs, sorted slots */
    size_t n_layers; /* that are counted */
    /* [n_layers, max_experts]. Written by the engine thread only, so that adding needs no locked
     * instruction; read by exchange_counts from any thread. Relaxed: they order nothing. */
    atomic_uint_fast64_t *counts;
    struct arena arena;
};

size_t exchange_bytes(size_t max_tokens, size_t max_top_k, size_t max_experts, size_t hidden)
{
    size_t slots = max_tokens * max_top_k;
    return slots * (hidden * sizeof(float) + 4 * sizeof(int32_t)) +
           (max_experts + 1) * sizeof(int32_t);
}

enum ferry_status exchange_create(struct exchange **ret_exchange, struct device *device,
                                  size_t max_tokens, size_t max_top_k, size_t max_experts,
                                  size_t hidden, struct ferry_error *err)
{
    size_t slots = max_tokens * max_top_k;
    struct exchange *x = mem_zero(sizeof *x);

    FERRY_ASSERT(max_top_k <= LIMIT_TOP_K);
    if (x == NULL)
        goto nomem;
    x->device = device;
    x->max_tokens = max_tokens;
    x->max_top_k = max_top_k;
    x->max_experts = max_experts;
    x->hidden = hidden;
    arena_init(&x->arena, "exchange");
    x->rows = arena_array(&x->arena, slots, hidden * sizeof(float));
    x->plan.begin = arena_array(&x->arena, max_experts + 1, sizeof(int32_t));
    x->plan.slot_token = arena_array(&x->arena, slots, sizeof(int32_t));
    x->plan.slot_weight = arena_array(&x->arena, slots, sizeof(float));
    x->plan.token_slots = arena_array(&x->arena, slots, sizeof(int32_t));
    x->plan.token_experts = arena_array(&x->arena, slots, sizeof(int32_t));
    if (x->rows == NULL || x->plan.begin == NULL || x->plan.slot_token == NULL ||
        x->plan.slot_weight == NULL || x->plan.token_slots == NULL || x->plan.token_experts == NULL)
        goto nomem;
    *ret_exchange = x;
    return FERRY_OK;
nomem:
    exchange_destroy(x);
    return FERRY_FAIL(err, FERRY_ERR_NOMEM,
                      "exchange: no memory for %zu tokens x %zu experts per token x %zu floats",
                      max_tokens, max_top_k, hidden);
}

void exchange_destroy(struct exchange *exchange)
{
    if (exchange == NULL)
        return;
    arena_fini(&exchange->arena);
    mem_free(exchange);
}

const struct exchange_ledger *exchange_ledger(const struct exchange *exchange)
{
    return &exchange->ledger;
}

size_t exchange_counts_bytes(size_t n_layers, size_t max_experts)
{
    return n_layers * max_experts * sizeof(atomic_uint_fast64_t);
}

enum ferry_status exchange_keep_counts(struct exchange *exchange, size_t n_layers,
                                       struct ferry_error *err)
{
    size_t n = 0;

    FERRY_ASSERT(exchange->counts == NULL);
    atomic_uint_fast64_t *counts = NULL;
    if (mul_size(n_layers, exchange->max_experts, &n))
        counts = arena_array(&exchange->arena, n, sizeof *counts);
    if (counts == NULL)
        return FERRY_FAIL(err, FERRY_ERR_NOMEM,
                          "exchange: no memory to count %zu layers x %zu experts", n_layers,
                          exchange->max_experts);
    for (size_t i = 0; i < n; i++)
        atomic_init(&counts[i], 0);
    exchange->counts = counts;
    exchange->n_layers = n_layers;
    return FERRY_OK;
}

void exchange_count(struct exchange *exchange, size_t layer)
{
    const struct exchange_plan *plan = &exchange->plan;

    if (exchange->counts == NULL)
        return;
    FERRY_ASSERT(layer < exchange->n_layers);
    atomic_uint_fast64_t *counts = exchange->counts + layer * exchange->max_experts;
    for (size_t e = 0; e < plan->n_experts; e++) {
        int32_t n = plan->begin[e + 1] - plan->begin[e];
        if (n > 0)
            atomic_store_explicit(
                &counts[e], atomic_load_explicit(&counts[e], memory_order_relaxed) + (uint64_t)n,
                memory_order_relaxed);
    }
}

void exchange_counts(const struct exchange *exchange, size_t layer, size_t n_experts,
                     uint64_t *ret_counts)
{
    FERRY_ASSERT(n_experts <= exchange->max_experts);
    FERRY_ASSERT(exchange->counts == NULL || layer < exchange->n_layers);
    for (size_t e = 0; e < n_experts; e++)
        ret_counts[e] =
            exchange->counts == NULL
                ? 0
                : atomic_load_explicit(&exchange->counts[layer * exchange->max_experts + e],
                                       memory_order_relaxed);
}

struct combine_arg {
    struct exchange *exchange;
    float *out;
    size_t n_col_tiles;
    atomic_size_t n_combined; /* rows that entered a sum; counted on the first column tile only */
};

/* Items are (token, column tile). A token's rows are scaled and added in place: they are scratch of
 * this layer. */
static void combine_items(void *arg, size_t begin, size_t end, int thread_index)
{
    struct combine_arg *a = arg;
    const struct exchange *x = a->exchange;
    const struct exchange_plan *plan = &x->plan;
    const struct kernels *k = device_kernels(x->device);
    uint8_t left[LIMIT_TOP_K], right[LIMIT_TOP_K];
    size_t n_combined = 0;

    (void)thread_index;
    for (size_t item = begin; item < end; item++) {
        size_t token = item / a->n_col_tiles, col = item % a->n_col_tiles * COMBINE_COLS;
        size_t n = min_size(COMBINE_COLS, x->hidden - col);
        const int32_t *slots = plan->token_slots + token * plan->top_k;
        size_t n_steps = exchange_tree(plan->token_experts + token * plan->top_k, plan->top_k,
                                       plan->n_experts, left, right);
        for (size_t j = 0; j < plan->top_k; j++)
            k->scale(x->rows + (size_t)slots[j] * x->hidden + col, plan->slot_weight[slots[j]], n);
        for (size_t i = 0; i < n_steps; i++)
            k->add(x->rows + (size_t)slots[left[i]] * x->hidden + col,
                   x->rows + (size_t)slots[right[i]] * x->hidden + col, n);
        memcpy(a->out + token * x->hidden + col, x->rows + (size_t)slots[0] * x->hidden + col,
               n * sizeof(float));
        if (col == 0)
            n_combined += n_steps + 1;
    }
    atomic_fetch_add_explicit(&a->n_combined, n_combined, memory_order_relaxed);
}

/* Both sides of the step's account; a mismatch voids the step. */
static enum ferry_status settle(struct exchange *x, size_t delivered, size_t n_combined,
                                struct ferry_error *err)
{
    const struct exchange_plan *plan = &x->plan;

    x->ledger.layers++;
    x->ledger.routed += plan->n_slots;
    x->ledger.delivered += delivered;
    x->ledger.combined += n_combined;
    x->ledger.weight_reads += plan->n_active;
    if (delivered == plan->n_slots && n_combined == plan->n_slots)
        return FERRY_OK;
    x->ledger.voided++;
    return FERRY_FAIL(err, FERRY_ERR_LEDGER,
                      "exchange: %zu rows routed, %zu delivered, %zu combined", plan->n_slots,
                      delivered, n_combined);
}

enum ferry_status exchange_run(struct exchange *exchange, const int32_t *experts,
                               const float *weights, size_t n_tokens, size_t top_k,
                               size_t n_experts, exchange_experts_fn *run_experts, void *arg,
                               float *out, struct ferry_error *err)
{
    FERRY_ASSERT(n_tokens <= exchange->max_tokens);
    FERRY_ASSERT(top_k <= exchange->max_top_k);
    FERRY_ASSERT(n_experts <= exchange->max_experts);
    plan_build(&exchange->plan, experts, weights, n_tokens, top_k, n_experts);
    size_t delivered = 0;
    if (n_tokens > 0)
        delivered = run_experts(arg, &exchange->plan, exchange->rows, exchange->hidden);
    struct combine_arg combine = {exchange, out, div_up(exchange->hidden, COMBINE_COLS), 0};
    device_for(exchange->device, n_tokens * combine.n_col_tiles, n_tokens > 8 ? 8 : 1,
               combine_items, &combine);
    return settle(exchange, delivered,
                  atomic_load_explicit(&combine.n_combined, memory_order_relaxed), err);
}
