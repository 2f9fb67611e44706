/* One MoE layer of one step: plan, dispatch, experts, combine, and the ledger that counts both
 * sides.
 *
 * Why here: this is where a token leaves for its experts and comes back exactly once (law 1). With
 * one rank the dispatch is a sort of (token, slot) pairs by expert; ranks add roads and holders, no
 * arithmetic. It must not know architectures: the experts run through a callback. Contract:
 * docs/numerics.md, "Router and combine tree". Engine thread only, but for exchange_counts. */
#ifndef EXCHANGE_EXCHANGE_H
#define EXCHANGE_EXCHANGE_H

#include "device/device.h"
#include "ferry/status.h"

#include <stddef.h>
#include <stdint.h>

/* Where every (token, slot) pair of a step goes. Arrays are sized once for max_tokens * top_k
 * pairs. */
struct exchange_plan {
    size_t n_tokens, top_k, n_experts;
    size_t n_slots;       /* n_tokens * top_k */
    size_t n_active;      /* experts with at least one slot */
    int32_t *begin;       /* [n_experts + 1] expert e owns sorted slots [begin[e], begin[e + 1]) */
    int32_t *slot_token;  /* [n_slots] token of a sorted slot; ascending inside an expert */
    float *slot_weight;   /* [n_slots] combine weight of a sorted slot */
    int32_t *token_slots; /* [n_tokens, top_k] sorted slots of a token, in ascending expert order */
    int32_t *token_experts; /* [n_tokens, top_k] their experts, ascending */
};

/* Counts since the exchange was created; equal sides, or the step is void. */
struct exchange_ledger {
    uint64_t routed;       /* (token, slot) pairs that the router decided */
    uint64_t delivered;    /* rows that an expert computed */
    uint64_t combined;     /* rows that entered a token's sum */
    uint64_t weight_reads; /* experts whose weights were read (once per layer and step) */
    uint64_t layers;       /* layer rounds */
    uint64_t voided;       /* rounds that did not balance */
};

struct exchange;

/* Computes `plan->n_slots` rows out [n_slots, hidden] from the layer's input; supplied by `model`,
 * which knows the weights. Returns how many rows it computed: the ledger's "delivered" side. */
typedef size_t exchange_experts_fn(void *arg, const struct exchange_plan *plan, float *out,
                                   size_t out_stride);

/* Room for layers of up to max_tokens tokens. FERRY_ERR_NOMEM. */
enum ferry_status exchange_create(struct exchange **ret_exchange, struct device *device,
                                  size_t max_tokens, size_t max_top_k, size_t max_experts,
                                  size_t hidden, struct ferry_error *err) FERRY_MUST_CHECK;
void exchange_destroy(struct exchange *exchange);

/* Bytes that exchange_create takes, for the memory plan. */
size_t exchange_bytes(size_t max_tokens, size_t max_top_k, size_t max_experts, size_t hidden);

/* Runs one layer: experts, weights [n_tokens, top_k] as the router decided (ids unique per token
 * and < n_experts); out [n_tokens, hidden] is overwritten with each token's combined sum.
 *
 * The sum: leaf = weight * row (one f32 multiply); node = left + right over the expert range halved
 * at lo + (hi - lo) / 2; absent leaves are skipped. Its shape depends on the chosen experts only.
 * FERRY_ERR_LEDGER: rows delivered or combined differ from rows routed (err has the numbers). Never
 * allocates. */
enum ferry_status exchange_run(struct exchange *exchange, const int32_t *experts,
                               const float *weights, size_t n_tokens, size_t top_k,
                               size_t n_experts, exchange_experts_fn *run_experts, void *arg,
                               float *out, struct ferry_error *err) FERRY_MUST_CHECK;

const struct exchange_ledger *exchange_ledger(const struct exchange *exchange);

/* Keeps the load of each expert of each layer from now on. Before the first exchange_count; once.
 * Takes exchange_counts_bytes. FERRY_ERR_NOMEM. */
enum ferry_status exchange_keep_counts(struct exchange *exchange, size_t n_layers,
                                       struct ferry_error *err) FERRY_MUST_CHECK;
size_t exchange_counts_bytes(size_t n_layers, size_t max_experts);

/* Adds the round that exchange_run has just finished to the counts of `layer`. Costs one relaxed
 * store for each expert that had a row. Nothing happens without exchange_keep_counts. */
void exchange_count(struct exchange *exchange, size_t layer);

/* Rows that each expert of a layer has computed, counted so far; ret_counts [n_experts]. Any
 * thread, without a lock: each number was true at some moment of the call, later calls of a thread
 * never see an older one. 0 without exchange_keep_counts. */
void exchange_counts(const struct exchange *exchange, size_t layer, size_t n_experts,
                     uint64_t *ret_counts);

/* The order of additions of one token: ids ascending [k]; step i adds row right[i] into row
 * left[i]; the sum ends in row 0. Returns the number of steps, k - 1. For the combine and its
 * tests. */
size_t exchange_tree(const int32_t *ids, size_t k, size_t n_experts, uint8_t *left, uint8_t *right);

#endif
