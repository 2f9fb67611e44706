/* Grouped expert feed-forward over threads. See device.h.
 *
 * Slots arrive sorted by expert. Phase one computes gate and up for a tile of columns, applies
 * silu(gate) * up and leaves it in the activation format that the down matrix consumes; phase two
 * is the down product. Each active expert's weights are read once per row tile, threads share by
 * tiles of weights and not by experts. */
#include "device/cpu/cpu.h"

#include "base/assert.h"
#include "base/size.h"

#include <stdatomic.h>
#include <string.h>

struct ffn_arg {
    struct device *device;
    const struct ffn_job *job;
    size_t n_items, n_col_tiles; /* of the phase; items are blocks times column tiles */
    size_t tile_cols;            /* columns of a tile, ACT_BLOCK's multiple */
    size_t hidden_stride;        /* bytes between rows of job->hidden */
    size_t width;                /* ffn width */
    atomic_size_t n_rows; /* rows whose first output columns are done; a sum, order is no matter */
};

static size_t make_blocks(const struct device *device, const struct ffn_job *job)
{
    size_t n = 0;

    for (size_t e = 0; e < job->n_experts; e++) {
        for (int32_t slot = job->begin[e]; slot < job->begin[e + 1]; slot += CPU_ROW_TILE) {
            int32_t rows = job->begin[e + 1] - slot;
            FERRY_ASSERT(n < device->max_slots);
            device->blocks[n++] =
                (struct ffn_block){(int32_t)e, slot, rows < CPU_ROW_TILE ? rows : CPU_ROW_TILE};
        }
    }
    return n;
}

/* Quantises columns [col, col + n) of one hidden row: the tile's blocks go to their places in the
 * A32 row. */
static void store_a32(const struct kernels *k, unsigned char *row, size_t width, size_t col,
                      const float *x, size_t n, unsigned char *tile_row)
{
    size_t n_blocks = act_blocks(n), first = col / ACT_BLOCK, total = act_blocks(width);

    k->quantize_a32(tile_row, x, n);
    memcpy(row + first * ACT_BLOCK, tile_row, n_blocks * ACT_BLOCK);
    memcpy(row + total * ACT_BLOCK + first * 4, act_a32_scales(tile_row, n), n_blocks * 4);
    memcpy(row + total * (ACT_BLOCK + 4) + first * 4, act_a32_sums(tile_row, n), n_blocks * 4);
}

/* The gate or down columns of the item that this thread probably takes after `item`; NULL: there is
 * none, or the weights are not packed. */
static const void *next_weights(const struct ffn_arg *a, size_t item, bool is_down)
{
    size_t next = cpu_next_item(a->device, item);

    if (next >= a->n_items)
        return NULL;
    const struct ffn_weights *w = &a->job->experts[a->device->blocks[next / a->n_col_tiles].expert];
    return cpu_packed_group(is_down ? &w->down : &w->gate,
                            next % a->n_col_tiles * (a->tile_cols / KERNEL_GROUP));
}

/* The rows of a block's slots, in the format that a weight takes. */
static void set_rows(struct matmul_job *m, const struct weight *weight, const struct ffn_job *job,
                     const struct ffn_block *block)
{
    const void *const *at =
        act_format_for(weight->dtype) == ACT_FORMAT_A32 ? job->a32_at : job->f32_at;

    if (at != NULL) {
        m->k = weight->k;
        m->act_at = at + block->slot;
        return;
    }
    cpu_set_act(m, weight, &job->in);
    m->act = (const unsigned char *)m->act + (size_t)block->slot * m->act_stride;
}

/* Columns [col, col + n) of gate and up for one block of rows, then the gated product into
 * job->hidden. next: gate weights that this thread probably reads after that. */
static void gate_up_tile(const struct ffn_arg *a, const struct ffn_block *block, size_t col,
                         size_t n, const void *next, void *scratch)
{
    const struct ffn_job *job = a->job;
    const struct kernels *k = &a->device->kernels;
    const struct ffn_weights *w = &job->experts[block->expert];
    float *gate = scratch;
    float *up = gate + CPU_ROW_TILE * CPU_FFN_COLS;
    unsigned char *tile_row = (unsigned char *)(up + CPU_ROW_TILE * CPU_FFN_COLS);
    unsigned char *pack = tile_row + act_row_bytes(ACT_FORMAT_A32, CPU_FFN_COLS);
    const struct weight *pair[2] = {&w->gate, &w->up};
    float *tile[2] = {gate, up};

    for (int i = 0; i < 2; i++) {
        struct matmul_job m = {.n_rows = (size_t)block->n_rows,
                               .out = tile[i],
                               .out_stride = CPU_FFN_COLS,
                               .next =
                                   i == 0 ? cpu_packed_group(&w->up, col / KERNEL_GROUP) : next};
        set_rows(&m, pair[i], job, block);
        cpu_matmul_groups(a->device, pair[i], &m, pack, col / KERNEL_GROUP,
                          div_up(col + n, KERNEL_GROUP));
    }
    for (int32_t r = 0; r < block->n_rows; r++) {
        float *g = gate + (size_t)r * CPU_FFN_COLS, *u = up + (size_t)r * CPU_FFN_COLS;
        unsigned char *row =
            (unsigned char *)job->hidden + (size_t)(block->slot + r) * a->hidden_stride;
        if (act_format_for(w->down.dtype) == ACT_FORMAT_F32) {
            k->silu_mul((float *)(void *)row + col, g, u, n);
        } else {
            k->silu_mul(g, g, u, n);
            store_a32(k, row, a->width, col, g, n, tile_row);
        }
    }
}

static void gate_up_items(void *arg, size_t begin, size_t end, int thread_index)
{
    const struct ffn_arg *a = arg;

    for (size_t item = begin; item < end; item++) {
        size_t col = item % a->n_col_tiles * a->tile_cols;
        gate_up_tile(a, &a->device->blocks[item / a->n_col_tiles], col,
                     min_size(a->tile_cols, a->width - col), next_weights(a, item, false),
                     cpu_scratch(a->device, thread_index));
    }
}

static void down_items(void *arg, size_t begin, size_t end, int thread_index)
{
    struct ffn_arg *a = arg;
    const struct ffn_job *job = a->job;

    for (size_t item = begin; item < end; item++) {
        const struct ffn_block *block = &a->device->blocks[item / a->n_col_tiles];
        const struct weight *w = &job->experts[block->expert].down;
        size_t g = item % a->n_col_tiles * (a->tile_cols / KERNEL_GROUP);
        size_t g_end = min_size(g + a->tile_cols / KERNEL_GROUP, div_up(w->n_cols, KERNEL_GROUP));
        struct matmul_job m = {
            .act = (unsigned char *)job->hidden + (size_t)block->slot * a->hidden_stride,
            .act_stride = a->hidden_stride,
            .n_rows = (size_t)block->n_rows,
            .out = job->out + (size_t)block->slot * job->out_stride + g * KERNEL_GROUP,
            .out_stride = job->out_stride,
            .k = w->k,
            .next = next_weights(a, item, true)};
        cpu_matmul_groups(a->device, w, &m, cpu_scratch(a->device, thread_index), g, g_end);
        if (g == 0)
            atomic_fetch_add_explicit(&a->n_rows, m.n_rows, memory_order_relaxed);
    }
}

/* Wide tiles prepare their activations less often, narrow ones share the work more evenly: with 24
 * items a thread, the last one that others wait for is at most 4 % of the work. */
static void set_tiles(struct ffn_arg *a, size_t n_blocks, size_t n_cols, size_t most)
{
    size_t enough = 24 * (size_t)a->device->n_threads;

    a->tile_cols = most;
    while (a->tile_cols > CPU_FFN_COLS / 4 && n_blocks * div_up(n_cols, a->tile_cols) < enough)
        a->tile_cols /= 2;
    a->n_col_tiles = div_up(n_cols, a->tile_cols);
    a->n_items = n_blocks * a->n_col_tiles;
}

size_t device_ffn(struct device *device, const struct ffn_job *job)
{
    size_t n_blocks = make_blocks(device, job);
    const struct weight *down = &job->experts[0].down;
    struct ffn_arg arg = {.device = device, .job = job, .width = down->k};

    arg.hidden_stride = act_row_bytes(act_format_for(down->dtype), down->k);
    set_tiles(&arg, n_blocks, arg.width, CPU_FFN_COLS);
    pool_for(device->pool, arg.n_items, 1, gate_up_items, &arg);
    set_tiles(&arg, n_blocks, down->n_cols, CPU_DOWN_COLS);
    pool_for(device->pool, arg.n_items, 1, down_items, &arg);
    return atomic_load_explicit(&arg.n_rows, memory_order_relaxed);
}
