/* Expert work of one layer for several origins at once: sorts their pairs by expert, runs the
 * experts, and adds up each group.
 *
 * Inside of the room. It must not know messages or seats: a source is rows, pairs, and a place for
 * the sums. */
#ifndef EXCHANGE_JOB_H
#define EXCHANGE_JOB_H

#include "base/arena.h"
#include "exchange/plan.h"
#include "exchange/tree.h"

struct job_source {
    const struct exchange_pair *pairs; /* checked: rows < n_rows, experts < n_experts, groups of at
                                          most LIMIT_TOP_K pairs; private memory */
    size_t n_pairs, n_groups;
    struct exchange_rows rows;
};

struct job {
    struct device *device;
    size_t max_slots, max_experts, hidden;
    bool bf16_nodes;
    exchange_sum_fn *sum_group;
    void *arg; /* of sum_group */
    struct exchange_job work;
    int32_t *begin;        /* [max_experts + 1] */
    const void **a32_at;   /* [max_slots] */
    const void **f32_at;   /* [max_slots] */
    uint32_t *pair_slot;   /* [max_slots] slot of pair i, sources one after the other */
    uint32_t *group_first; /* [max_slots] of one source: its groups' first pairs */
    float *out;            /* [max_slots, hidden] */
};

/* False: no memory. */
bool job_create(struct job *job, struct arena *arena, struct device *device,
                const struct exchange_options *options, size_t max_slots);
size_t job_bytes(const struct exchange_options *options, size_t max_slots);

/* Sorts and computes all pairs of n sources (max_slots at most; rows of all are in the same
 * formats). Returns the rows computed. */
size_t job_run(struct job *job, size_t layer, size_t n_experts, const struct job_source *sources,
               size_t n_sources, exchange_experts_fn *run_experts, void *arg);

/* Adds up the groups of source i of the last job into sums [n_groups, hidden]. Returns how many
 * rows are in them. */
size_t job_sums(struct job *job, const struct job_source *sources, size_t i, void *sums,
                enum tree_store store);

/* Columns that are added up in one go when there are n_rows sums to be made. */
size_t job_item_cols(const struct device *device, size_t n_rows, size_t hidden);

/* Leaves of a group of the last job, pairs [first, last) of a source with `before` pairs in front
 * of it; row pointers are at column `col`. wide [n_cols]: where a node is made when
 * options.sum_group says what it is. Returns how many. */
size_t job_leaves(const struct job *job, const struct job_source *source, size_t before,
                  size_t first, size_t last, size_t col, size_t n_cols,
                  struct tree_leaf *ret_leaves, int32_t *ret_ids, float *wide);

/* Experts with rows in the last job. */
size_t job_n_active(const struct job *job);

#endif
