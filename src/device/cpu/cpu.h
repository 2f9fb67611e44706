/* Inside of the CPU backend: shared by its files only. */
#ifndef DEVICE_CPU_CPU_H
#define DEVICE_CPU_CPU_H

#include "base/pool.h"
#include "device/device.h"

enum {
    CPU_ROW_TILE = 64,    /* activation rows of one work item: their rows stay in L2 */
    CPU_FFN_COLS = 256,   /* columns of one work item of an expert, at most; ACT_BLOCK's multiple */
    CPU_DOWN_COLS = 1024, /* the same of its down product, which needs no scratch */
    CPU_ATTN_QUERIES = 32, /* query vectors of one attention call */
};

/* Rows of one expert that are worked on together. */
struct ffn_block {
    int32_t expert;
    int32_t slot;
    int32_t n_rows;
};

struct device {
    struct kernels kernels;
    struct pool *pool;
    int n_threads;
    unsigned char *thread_scratch; /* n_threads pieces of thread_scratch_bytes */
    size_t thread_scratch_bytes;
    struct ffn_block *blocks; /* [max_slots] */
    size_t max_slots;
};

static inline void *cpu_scratch(const struct device *device, int thread_index)
{
    return device->thread_scratch + device->thread_scratch_bytes * (size_t)thread_index;
}

/* Floats of scratch that one attention call takes: queries, results, running state, kernel scratch.
 */
size_t cpu_attn_scratch_bytes(size_t n_heads, size_t n_kv_heads, size_t head_dim);

/* The item that a thread probably works on after `item`: threads mostly take items in turn. Only to
 * fetch its weights ahead. */
static inline size_t cpu_next_item(const struct device *device, size_t item)
{
    return item + (size_t)device->n_threads;
}

/* Packed column group `group` of a weight; NULL: not packed. */
static inline const void *cpu_packed_group(const struct weight *weight, size_t group)
{
    if (weight->packed == NULL)
        return NULL;
    return (const unsigned char *)weight->packed + group * weight->group_bytes;
}

/* Runs a matmul over column groups [begin, end) of `weight`; job->out is where the first of these
 * columns goes. Weights that are not packed are packed group by group into `scratch`. Overwrites
 * the weight's fields of the job. */
void cpu_matmul_groups(const struct device *device, const struct weight *weight,
                       struct matmul_job *job, void *scratch, size_t begin, size_t end);

/* The activation rows that `weight` consumes, as a job's fields. */
void cpu_set_act(struct matmul_job *job, const struct weight *weight, const struct act_rows *rows);

#endif
