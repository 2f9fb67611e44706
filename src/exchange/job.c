/* Sorting, running and adding up. See job.h. */
#include "exchange/job.h"

#include "base/assert.h"
#include "base/size.h"

#include <stdatomic.h>
#include <string.h>

bool job_create(struct job *job, struct arena *arena, struct device *device,
                const struct exchange_options *options, size_t max_slots)
{
    *job = (struct job){.device = device,
                        .max_slots = max_slots,
                        .max_experts = options->max_experts,
                        .hidden = options->hidden,
                        .bf16_nodes = options->combine_bf16,
                        .sum_group = options->sum_group,
                        .arg = options->arg};
    job->begin = arena_array(arena, options->max_experts + 1, sizeof *job->begin);
    job->a32_at = arena_array(arena, max_slots, sizeof *job->a32_at);
    job->f32_at = arena_array(arena, max_slots, sizeof *job->f32_at);
    job->pair_slot = arena_array(arena, max_slots, sizeof *job->pair_slot);
    job->group_first = arena_array(arena, max_slots, sizeof *job->group_first);
    job->out = arena_array(arena, max_slots, options->hidden * sizeof *job->out);
    return job->begin != NULL && job->a32_at != NULL && job->f32_at != NULL &&
           job->pair_slot != NULL && job->group_first != NULL && job->out != NULL;
}

size_t job_bytes(const struct exchange_options *options, size_t max_slots)
{
    return (options->max_experts + 1) * sizeof(int32_t) +
           max_slots * (2 * sizeof(void *) + 2 * sizeof(uint32_t)) +
           max_slots * options->hidden * sizeof(float);
}

/* A counting sort by expert; inside an expert in the order of sources and pairs. */
static void sort_pairs(struct job *job, size_t n_experts, const struct job_source *sources,
                       size_t n_sources)
{
    int32_t *begin = job->begin;
    size_t pair = 0;

    memset(begin, 0, (n_experts + 1) * sizeof *begin);
    for (size_t s = 0; s < n_sources; s++) {
        for (size_t i = 0; i < sources[s].n_pairs; i++)
            begin[sources[s].pairs[i].expert + 1]++;
    }
    for (size_t e = 0; e < n_experts; e++)
        begin[e + 1] += begin[e];
    /* begin[e] is used as the cursor of expert e, which leaves it at the end of e's slots: shifted
     * back below. */
    for (size_t s = 0; s < n_sources; s++) {
        const struct exchange_rows *rows = &sources[s].rows;
        for (size_t i = 0; i < sources[s].n_pairs; i++, pair++) {
            const struct exchange_pair *p = &sources[s].pairs[i];
            int32_t slot = begin[p->expert]++;
            if (rows->a32 != NULL)
                job->a32_at[slot] = rows->a32 + p->row * rows->a32_bytes;
            if (rows->f32 != NULL)
                job->f32_at[slot] = rows->f32 + p->row * rows->f32_stride;
            job->pair_slot[pair] = (uint32_t)slot;
        }
    }
    memmove(begin + 1, begin, n_experts * sizeof *begin);
    begin[0] = 0;
}

size_t job_run(struct job *job, size_t layer, size_t n_experts, const struct job_source *sources,
               size_t n_sources, exchange_experts_fn *run_experts, void *arg)
{
    size_t n_slots = 0;

    for (size_t s = 0; s < n_sources; s++) {
        FERRY_ASSERT((sources[s].rows.a32 != NULL) == (sources[0].rows.a32 != NULL));
        FERRY_ASSERT((sources[s].rows.f32 != NULL) == (sources[0].rows.f32 != NULL));
        n_slots += sources[s].n_pairs;
    }
    FERRY_ASSERT(n_slots <= job->max_slots && n_experts <= job->max_experts);
    sort_pairs(job, n_experts, sources, n_sources);
    job->work = (struct exchange_job){.layer = layer,
                                      .n_experts = n_experts,
                                      .n_slots = n_slots,
                                      .begin = job->begin,
                                      .a32_at = sources[0].rows.a32 != NULL ? job->a32_at : NULL,
                                      .f32_at = sources[0].rows.f32 != NULL ? job->f32_at : NULL,
                                      .out = job->out,
                                      .out_stride = job->hidden};
    return n_slots > 0 ? run_experts(arg, &job->work) : 0;
}

size_t job_n_active(const struct job *job)
{
    size_t n = 0;

    for (size_t e = 0; e < job->work.n_experts; e++)
        n += job->begin[e + 1] > job->begin[e];
    return n;
}

/* What options.sum_group says of the columns of pairs [first, last). */
static void stated_sum(const struct job *job, const struct job_source *source, size_t first,
                       size_t last, size_t col, size_t n_cols, float *dst, bool stream)
{
    int32_t experts[LIMIT_TOP_K];
    float weights[LIMIT_TOP_K];
    struct exchange_sum sum = {.rows = source->rows,
                               .row = source->pairs[first].row,
                               .experts = experts,
                               .weights = weights,
                               .n = last - first,
                               .col = col,
                               .n_cols = n_cols,
                               .stream = stream};

    for (size_t i = first; i < last; i++) {
        experts[i - first] = source->pairs[i].expert;
        weights[i - first] = source->pairs[i].weight;
    }
    job->sum_group(job->arg, &sum, dst);
}

size_t job_leaves(const struct job *job, const struct job_source *source, size_t before,
                  size_t first, size_t last, size_t col, size_t n_cols,
                  struct tree_leaf *ret_leaves, int32_t *ret_ids, float *wide)
{
    if (job->sum_group != NULL) {
        stated_sum(job, source, first, last, col, n_cols, wide, false);
        ret_leaves[0] = (struct tree_leaf){.row = wide, .is_node = true};
        ret_ids[0] = source->pairs[first].expert;
        return 1;
    }
    for (size_t i = first; i < last; i++) {
        size_t slot = job->pair_slot[before + i];
        ret_ids[i - first] = source->pairs[i].expert;
        ret_leaves[i - first] = (struct tree_leaf){.row = job->out + slot * job->hidden + col,
                                                   .weight = source->pairs[i].weight};
    }
    return last - first;
}

/* Columns of an item: whole rows, or tiles when there are fewer rows than would keep all threads
 * busy. */
size_t job_item_cols(const struct device *device, size_t n_rows, size_t hidden)
{
    return device_threads(device) == 1 || n_rows >= 16 ? hidden : TREE_COLS;
}

struct sums_arg {
    const struct job *job;
    const struct job_source *source;
    size_t before; /* pairs of the sources before it */
    unsigned char *sums;
    size_t value_bytes, item_cols, n_col_items;
    enum tree_store store;
    atomic_size_t n_summed; /* counted on the first columns only */
};

/* A group's columns. Returns the rows in the sum. */
static size_t sum_group(const struct sums_arg *a, size_t first, size_t last, size_t col,
                        size_t n_cols, unsigned char *dst, float *scratch)
{
    const struct job *job = a->job;
    struct tree_leaf leaves[LIMIT_TOP_K];
    int32_t ids[LIMIT_TOP_K];

    if (job->sum_group != NULL && a->store != TREE_BF16) {
        stated_sum(job, a->source, first, last, col, n_cols, (float *)(void *)dst,
                   a->store == TREE_STREAM);
        return last - first;
    }
    size_t step = job->sum_group != NULL ? TREE_COLS : n_cols; /* made in scratch */
    for (size_t at = 0; at < n_cols; at += step) {
        size_t width = min_size(step, n_cols - at);
        size_t n = job_leaves(job, a->source, a->before, first, last, col + at, width, leaves, ids,
                              scratch);
        if (tree_sum(device_kernels(job->device), leaves, ids, n, job->work.n_experts, 0, width,
                     job->bf16_nodes, dst + at * a->value_bytes, a->store, scratch) != n)
            return 0;
    }
    return last - first;
}

/* Items are (group, columns). */
static void sum_items(void *arg, size_t begin, size_t end, int thread_index)
{
    struct sums_arg *a = arg;
    const struct job *job = a->job;
    float scratch[LIMIT_TOP_K * TREE_COLS];
    size_t n_summed = 0;

    (void)thread_index;
    for (size_t item = begin; item < end; item++) {
        size_t group = item / a->n_col_items, col = item % a->n_col_items * a->item_cols;
        size_t first = job->group_first[group];
        size_t last =
            group + 1 < a->source->n_groups ? job->group_first[group + 1] : a->source->n_pairs;
        size_t n = sum_group(a, first, last, col, min_size(a->item_cols, job->hidden - col),
                             a->sums + (group * job->hidden + col) * a->value_bytes, scratch);
        if (col == 0)
            n_summed += n;
    }
    if (a->store == TREE_STREAM)
        tree_fence(); /* each thread's own stores, before the pool's join */
    atomic_fetch_add_explicit(&a->n_summed, n_summed, memory_order_relaxed);
}

size_t job_sums(struct job *job, const struct job_source *sources, size_t i, void *sums,
                enum tree_store store)
{
    const struct job_source *source = &sources[i];
    size_t before = 0, group = 0;

    for (size_t s = 0; s < i; s++)
        before += sources[s].n_pairs;
    for (size_t p = 0; p < source->n_pairs; p++) {
        if (source->pairs[p].begins != 0)
            job->group_first[group++] = (uint32_t)p;
    }
    FERRY_ASSERT(group == source->n_groups);
    struct sums_arg arg = {.job = job,
                           .source = source,
                           .before = before,
                           .sums = sums,
                           .value_bytes = store == TREE_BF16 ? sizeof(uint16_t) : sizeof(float),
                           .store = store};
    arg.item_cols = job_item_cols(job->device, group, job->hidden);
    arg.n_col_items = div_up(job->hidden, arg.item_cols);
    device_for(job->device, group * arg.n_col_items, group >= 64 ? 4 : 1, sum_items, &arg);
    return atomic_load_explicit(&arg.n_summed, memory_order_relaxed);
}
