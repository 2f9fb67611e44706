/* Sorting, running and adding up. See job.h. */
#include "exchange/job.h"

#include "base/assert.h"
#include "base/size.h"

#include <stdatomic.h>
#include <string.h>

bool job_create(struct job *job, struct arena *arena, struct device *device,
                const struct exchange_options *options, size_t max_slots, bool staging)
{
    *job = (struct job){.device = device,
                        .max_slots = max_slots,
                        .max_experts = options->max_experts,
                        .hidden = options->hidden,
                        .a32_bytes = options->a32_bytes,
                        .f32_floats = options->f32_floats,
                        .bf16_nodes = options->combine_bf16,
                        .sum_group = options->sum_group,
                        .arg = options->arg};
    job->begin = arena_array(arena, options->max_experts + 1, sizeof *job->begin);
    job->slot_row = arena_array(arena, max_slots, sizeof *job->slot_row);
    job->pair_slot = arena_array(arena, max_slots, sizeof *job->pair_slot);
    job->group_first = arena_array(arena, max_slots, sizeof *job->group_first);
    job->out = arena_array(arena, max_slots, options->hidden * sizeof *job->out);
    if (staging && options->a32_bytes > 0)
        job->staged_a32 = arena_array(arena, max_slots, options->a32_bytes);
    if (staging && options->f32_floats > 0)
        job->staged_f32 = arena_array(arena, max_slots, options->f32_floats * sizeof(float));
    return job->begin != NULL && job->slot_row != NULL && job->pair_slot != NULL &&
           job->group_first != NULL && job->out != NULL &&
           (!staging || options->a32_bytes == 0 || job->staged_a32 != NULL) &&
           (!staging || options->f32_floats == 0 || job->staged_f32 != NULL);
}

size_t job_bytes(const struct exchange_options *options, size_t max_slots, bool staging)
{
    return (options->max_experts + 1) * sizeof(int32_t) + max_slots * 3 * sizeof(int32_t) +
           max_slots * options->hidden * sizeof(float) +
           (staging ? max_slots * (options->a32_bytes + options->f32_floats * sizeof(float)) : 0);
}

/* Rows of all sources behind each other; one source alone is read where it lies. */
static struct exchange_rows gather_rows(struct job *job, const struct job_source *sources, size_t n)
{
    size_t at = 0;

    if (n == 1)
        return sources[0].rows;
    struct exchange_rows rows = {.a32_bytes = job->a32_bytes, .f32_stride = job->f32_floats};
    for (size_t s = 0; s < n; s++) {
        const struct exchange_rows *r = &sources[s].rows;
        FERRY_ASSERT(at + sources[s].n_rows <= job->max_slots);
        if (r->a32 != NULL) {
            FERRY_ASSERT(r->a32_bytes == job->a32_bytes);
            memcpy(job->staged_a32 + at * job->a32_bytes, r->a32,
                   sources[s].n_rows * job->a32_bytes);
            rows.a32 = job->staged_a32;
        }
        for (size_t i = 0; r->f32 != NULL && i < sources[s].n_rows; i++)
            memcpy(job->staged_f32 + (at + i) * job->f32_floats, r->f32 + i * r->f32_stride,
                   job->hidden * sizeof(float));
        if (r->f32 != NULL)
            rows.f32 = job->staged_f32;
        at += sources[s].n_rows;
    }
    return rows;
}

/* A counting sort by expert; inside an expert in the order of sources and pairs. */
static void sort_pairs(struct job *job, size_t n_experts, const struct job_source *sources,
                       size_t n_sources)
{
    int32_t *begin = job->begin;
    size_t pair = 0;
    int32_t base = 0; /* first row of the source among all */

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
        for (size_t i = 0; i < sources[s].n_pairs; i++, pair++) {
            const struct exchange_pair *p = &sources[s].pairs[i];
            int32_t slot = begin[p->expert]++;
            job->slot_row[slot] = base + (int32_t)p->row;
            job->pair_slot[pair] = (uint32_t)slot;
        }
        base += (int32_t)sources[s].n_rows;
    }
    memmove(begin + 1, begin, n_experts * sizeof *begin);
    begin[0] = 0;
}

size_t job_run(struct job *job, size_t layer, size_t n_experts, const struct job_source *sources,
               size_t n_sources, exchange_experts_fn *run_experts, void *arg)
{
    size_t n_slots = 0;

    for (size_t s = 0; s < n_sources; s++)
        n_slots += sources[s].n_pairs;
    FERRY_ASSERT(n_slots <= job->max_slots && n_experts <= job->max_experts);
    sort_pairs(job, n_experts, sources, n_sources);
    job->work = (struct exchange_job){.layer = layer,
                                      .n_experts = n_experts,
                                      .n_slots = n_slots,
                                      .begin = job->begin,
                                      .slot_row = job->slot_row,
                                      .rows = gather_rows(job, sources, n_sources),
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
