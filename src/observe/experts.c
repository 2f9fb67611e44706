/* Loads of experts. See experts.h. Source: R. Jain, D. Chiu, W. Hawe, "A Quantitative Measure of
 * Fairness and Discrimination", 1984, for the index. */
#include "observe/experts.h"

#include "base/alloc.h"
#include "base/assert.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

static int compare(const void *a, const void *b)
{
    const uint64_t *x = a, *y = b;
    return (*x > *y) - (*x < *y);
}

/* The smallest value of sorted counts that at least percent % of them do not exceed. */
static double percentile(const uint64_t *counts, size_t n, size_t percent)
{
    return (double)counts[(n * percent + 99) / 100 - 1];
}

void expert_load_of(struct expert_load *ret_load, uint64_t *counts, size_t n_experts)
{
    double total = 0, squares = 0;
    size_t n_active = 0;

    FERRY_ASSERT(n_experts > 0);
    qsort(counts, n_experts, sizeof counts[0], compare);
    for (size_t i = 0; i < n_experts; i++) {
        total += (double)counts[i];
        squares += (double)counts[i] * (double)counts[i];
        n_active += counts[i] > 0;
    }
    double fair = total > 0 ? total / (double)n_experts : (double)NAN;
    *ret_load = (struct expert_load){
        .max = (double)counts[n_experts - 1] / fair,
        .p99 = percentile(counts, n_experts, 99) / fair,
        .p50 = percentile(counts, n_experts, 50) / fair,
        .min = (double)counts[0] / fair,
        .balance = total > 0 ? fmin(total * total / ((double)n_experts * squares), 1) : (double)NAN,
        .n_active = n_active,
        .has_experts = true,
    };
}

/* A layer's number as a label's value; the caller's array. */
static struct metric_label layer_label(char text[24], size_t layer)
{
    (void)snprintf(text, 24, "%zu", layer);
    return (struct metric_label){"layer", text};
}

static void expose_ratios(struct exposition *e, const struct expert_load *loads, size_t n_layers)
{
    static const char NAME[] = "ferry_layer_expert_load_ratio";
    char text[24];

    exposition_family(e, NAME, METRIC_TYPE_GAUGE,
                      "Load of a layer's experts over the fair share, since the start.");
    for (size_t layer = 0; layer < n_layers; layer++) {
        const struct expert_load *load = &loads[layer];
        const struct {
            const char *stat;
            double value;
        } stats[] = {
            {"max", load->max}, {"p99", load->p99}, {"p50", load->p50}, {"min", load->min}};
        for (size_t i = 0; i < sizeof stats / sizeof stats[0]; i++) {
            const struct metric_label labels[] = {layer_label(text, layer),
                                                  {"stat", stats[i].stat}};
            if (load->n_active > 0)
                exposition_value(e, NAME, labels, 2, stats[i].value);
        }
    }
}

static void expose_loads(struct exposition *e, const struct expert_load *loads, size_t n_layers)
{
    static const char BALANCE[] = "ferry_layer_balance_ratio",
                      ACTIVE[] = "ferry_layer_experts_active";
    char text[24];

    expose_ratios(e, loads, n_layers);
    exposition_family(e, BALANCE, METRIC_TYPE_GAUGE,
                      "Jain index of a layer's expert loads, since the start: 1 is even.");
    for (size_t layer = 0; layer < n_layers; layer++) {
        const struct metric_label label = layer_label(text, layer);
        if (loads[layer].n_active > 0)
            exposition_value(e, BALANCE, &label, 1, loads[layer].balance);
    }
    exposition_family(e, ACTIVE, METRIC_TYPE_GAUGE,
                      "Experts of a layer that computed anything since the start.");
    for (size_t layer = 0; layer < n_layers; layer++) {
        const struct metric_label label = layer_label(text, layer);
        if (loads[layer].has_experts)
            exposition_count(e, ACTIVE, &label, 1, loads[layer].n_active);
    }
}

void experts_expose(struct exposition *e, size_t n_layers, size_t n_experts, expert_counts_fn *read,
                    const void *arg)
{
    if (n_layers == 0 || n_experts == 0)
        return;
    struct expert_load *loads = mem_array(n_layers, sizeof *loads);
    uint64_t *counts = mem_array(n_experts, sizeof *counts);
    if (loads == NULL || counts == NULL) {
        e->failed = true;
        goto out;
    }
    for (size_t layer = 0; layer < n_layers; layer++) {
        if (read(arg, layer, counts))
            expert_load_of(&loads[layer], counts, n_experts);
    }
    expose_loads(e, loads, n_layers);
out:
    mem_free(loads);
    mem_free(counts);
}

void experts_expose_all(struct exposition *e, size_t n_layers, size_t n_experts,
                        expert_counts_fn *read, const void *arg)
{
    static const char NAME[] = "ferry_expert_rows_total";
    char layer_text[24], expert_text[24];

    if (n_layers == 0 || n_experts == 0)
        return;
    uint64_t *counts = mem_array(n_experts, sizeof *counts);
    if (counts == NULL) {
        e->failed = true;
        return;
    }
    exposition_family(e, NAME, METRIC_TYPE_COUNTER,
                      "Rows (a token at one of its experts) that each expert computed.");
    for (size_t layer = 0; layer < n_layers; layer++) {
        if (!read(arg, layer, counts))
            continue;
        for (size_t expert = 0; expert < n_experts; expert++) {
            (void)snprintf(expert_text, sizeof expert_text, "%zu", expert);
            const struct metric_label labels[] = {layer_label(layer_text, layer),
                                                  {"expert", expert_text}};
            exposition_count(e, NAME, labels, 2, counts[expert]);
        }
    }
    mem_free(counts);
}
