/* How evenly the tokens of each layer are spread over its experts, in few numbers; and, when asked
 * for, all of them.
 *
 * Why here: a layer of 256 experts is 256 series, a model of 58 such layers 14,848; six numbers a
 * layer tell whether one has to look. It works on counts alone and must not know models. */
#ifndef OBSERVE_EXPERTS_H
#define OBSERVE_EXPERTS_H

#include "observe/exposition.h"

/* Of one layer. Ratios are of an expert's share to the fair one, the layer's total / n_experts;
 * percentiles by nearest rank: p99 is the smallest load that at least 99 % of the experts do not
 * exceed. NaN while the total is 0. */
struct expert_load {
    double max, p99, p50, min;
    double balance;  /* Jain's index (sum x)^2 / (n sum x^2): 1 all even, 1 / n one has all */
    size_t n_active; /* experts that had a row */
    bool has_experts;
};

/* counts [n_experts], n_experts > 0, is sorted by the way. O(n log n). */
void expert_load_of(struct expert_load *ret_load, uint64_t *counts, size_t n_experts);

/* Fills ret_counts [n_experts] with what each expert of a layer has computed since the start;
 * false: the layer has no experts. */
typedef bool expert_counts_fn(const void *arg, size_t layer, uint64_t *ret_counts);

/* Appends ferry_layer_expert_load_ratio{layer,stat}, ferry_layer_balance_ratio{layer} and
 * ferry_layer_experts_active{layer}: six series a layer with experts, whatever their number. No
 * ratios of a layer that has computed nothing. Takes n_layers loads and n_experts counts. */
void experts_expose(struct exposition *e, size_t n_layers, size_t n_experts, expert_counts_fn *read,
                    const void *arg);

/* Appends ferry_expert_rows_total{layer,expert}: every expert its own series. */
void experts_expose_all(struct exposition *e, size_t n_layers, size_t n_experts,
                        expert_counts_fn *read, const void *arg);

#endif
