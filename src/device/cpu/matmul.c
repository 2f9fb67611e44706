/* Matmuls over threads: split over rows and column groups, never over the inner dimension (law 2).
 * See device.h. */
#include "device/cpu/cpu.h"

#include "base/assert.h"
#include "base/size.h"

void cpu_set_act(struct matmul_job *job, const struct weight *weight, const struct act_rows *rows)
{
    job->k = weight->k;
    if (act_format_for(weight->dtype) == ACT_FORMAT_A32) {
        FERRY_ASSERT(rows->a32 != NULL);
        job->act = rows->a32;
        job->act_stride = act_row_bytes(ACT_FORMAT_A32, rows->k);
    } else {
        job->act = rows->f32;
        job->act_stride = rows->f32_stride * sizeof(float);
    }
}

void cpu_matmul_groups(const struct device *device, const struct weight *weight,
                       struct matmul_job *job, void *scratch, size_t begin, size_t end)
{
    matmul_fn *matmul = device->kernels.matmul[weight->dtype];
    size_t n_cols = weight->n_cols - begin * KERNEL_GROUP;

    job->group_begin = 0;
    if (weight->packed != NULL) {
        job->packed = (const unsigned char *)weight->packed + begin * weight->group_bytes;
        job->n_cols = n_cols;
        job->group_end = end - begin;
        matmul(job);
        return;
    }
    float *out = job->out;
    job->packed = scratch;
    job->group_end = 1;
    for (size_t g = begin; g < end; g++) {
        size_t col = g * KERNEL_GROUP;
        job->n_cols = min_size(KERNEL_GROUP, weight->n_cols - col);
        job->out = out + (col - begin * KERNEL_GROUP);
        pack_group(weight->dtype, scratch,
                   (const unsigned char *)weight->rows + col * weight->row_bytes, weight->row_bytes,
                   job->n_cols, weight->k);
        matmul(job);
    }
    job->out = out;
}

enum { OUTS_MAX = 4 };

struct matmul_arg {
    struct device *device;
    const struct act_rows *rows;
    const struct matmul_out *outs;
    size_t n_outs, n_rows, n_items;
    size_t tile_groups;              /* column groups of one item */
    size_t first_tile[OUTS_MAX + 1]; /* column tiles of the outs before */
};

struct tile {
    const struct matmul_out *out;
    size_t row, begin, end; /* first row; column groups */
};

/* Items are column tiles times row tiles, row tiles outermost: a row tile's activations stay in L2
 * while the weights stream. */
static struct tile tile_of_item(const struct matmul_arg *a, size_t item)
{
    size_t n_tiles = a->first_tile[a->n_outs], tile = item % n_tiles, o = 0;

    while (tile >= a->first_tile[o + 1])
        o++;
    size_t begin = (tile - a->first_tile[o]) * a->tile_groups;
    size_t n_groups = div_up(a->outs[o].weight->n_cols, KERNEL_GROUP);
    return (struct tile){.out = &a->outs[o],
                         .row = item / n_tiles * CPU_ROW_TILE,
                         .begin = begin,
                         .end = min_size(begin + a->tile_groups, n_groups)};
}

/* Weights of the item that this thread probably takes after `item`; NULL: there is none, or they
 * are not packed. */
static const void *next_weights(const struct matmul_arg *a, size_t item)
{
    size_t next = cpu_next_item(a->device, item);

    if (next >= a->n_items)
        return NULL;
    struct tile t = tile_of_item(a, next);
    return cpu_packed_group(t.out->weight, t.begin);
}

static void matmul_items(void *arg, size_t begin, size_t end, int thread_index)
{
    const struct matmul_arg *a = arg;

    for (size_t item = begin; item < end; item++) {
        struct tile t = tile_of_item(a, item);
        const struct matmul_out *out = t.out;
        size_t col = t.begin * KERNEL_GROUP;
        size_t n = min_size(t.end * KERNEL_GROUP, out->weight->n_cols) - col;
        struct matmul_job job = {.n_rows = min_size(CPU_ROW_TILE, a->n_rows - t.row),
                                 .out = out->out + t.row * out->out_stride + col,
                                 .out_stride = out->out_stride,
                                 .next = next_weights(a, item)};
        cpu_set_act(&job, out->weight, a->rows);
        job.act = (const unsigned char *)job.act + t.row * job.act_stride;
        cpu_matmul_groups(a->device, out->weight, &job, cpu_scratch(a->device, thread_index),
                          t.begin, t.end);
        if (out->bias == NULL)
            continue;
        for (size_t i = 0; i < job.n_rows; i++)
            a->device->kernels.add(job.out + i * job.out_stride, out->bias + col, n);
    }
}

void device_matmul(struct device *device, const struct act_rows *rows, size_t n_rows,
                   const struct matmul_out *outs, size_t n_outs)
{
    struct matmul_arg arg = {
        .device = device, .rows = rows, .outs = outs, .n_outs = n_outs, .n_rows = n_rows};
    size_t n_groups = 0;

    FERRY_ASSERT(n_outs <= OUTS_MAX);
    for (size_t o = 0; o < n_outs; o++)
        n_groups += div_up(outs[o].weight->n_cols, KERNEL_GROUP);
    size_t n_row_tiles = div_up(n_rows, CPU_ROW_TILE);
    /* About eight items per thread, so that a thread that lost its core holds up the others little.
     */
    arg.tile_groups = n_groups * n_row_tiles / (8 * (size_t)device->n_threads);
    arg.tile_groups = min_size(max_size(arg.tile_groups, 4), 32);
    for (size_t o = 0; o < n_outs; o++)
        arg.first_tile[o + 1] =
            arg.first_tile[o] +
            div_up(div_up(outs[o].weight->n_cols, KERNEL_GROUP), arg.tile_groups);
    arg.n_items = arg.first_tile[n_outs] * n_row_tiles;
    pool_for(device->pool, arg.n_items, 1, matmul_items, &arg);
}
