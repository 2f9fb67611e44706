/* Attention over threads: items are (run, block of rows, kv head); chunks of absolute positions
 * merge in order inside an item. See device.h. */
#include "device/cpu/cpu.h"

#include "base/assert.h"
#include "base/size.h"

#include <stdatomic.h>
#include <string.h>

size_t attn_layer_bytes(const struct attn_shape *shape)
{
    return 2 * shape->n_kv_heads * shape->head_dim * KERNEL_KV_CHUNK *
           dtype_block_bytes(shape->kv_dtype);
}

/* Query vectors of one call: whole rows of a kv head's group, at least one row. */
static size_t rows_per_item(size_t n_heads, size_t n_kv_heads)
{
    return max_size(CPU_ATTN_QUERIES / (n_heads / n_kv_heads), 1);
}

size_t cpu_attn_scratch_bytes(size_t n_heads, size_t n_kv_heads, size_t head_dim)
{
    if (n_kv_heads == 0)
        return 0;
    size_t n_q = rows_per_item(n_heads, n_kv_heads) * (n_heads / n_kv_heads);
    return (n_q * (2 * head_dim + 4 + 16) + attn_scratch_floats(n_q, head_dim)) * sizeof(float) +
           6 * 64;
}

struct attn_arg {
    struct device *device;
    const struct attn_shape *shape;
    const struct attn_run *runs;
    size_t n_runs, row_block;
    atomic_size_t n_overflows; /* a sum: its order does not matter */
};

static void *carve(unsigned char **at, size_t n_bytes)
{
    void *p = *at;
    *at += (n_bytes + 63) & ~(size_t)63;
    return p;
}

/* Visible keys of `position` in the chunk that starts at `base`. */
static void visible(const struct attn_shape *shape, size_t position, size_t base, int32_t *begin,
                    int32_t *end)
{
    size_t first =
        shape->window > 0 && position + 1 > shape->window ? position + 1 - shape->window : 0;
    size_t lo = first > base ? first - base : 0;
    size_t hi = position + 1 > base ? position + 1 - base : 0;

    hi = min_size(hi, KERNEL_KV_CHUNK);
    lo = min_size(lo, hi);
    *begin = (int32_t)lo;
    *end = (int32_t)hi;
}

/* Stores one kv head of n_rows rows. The lines of K lie far apart: unless all are asked for first,
 * each store waits for its own. Returns how many finite values became infinite. */
static size_t store_head(const struct device *device, const struct attn_shape *s,
                         unsigned char *const *pages, size_t first_position, size_t n_rows,
                         const float *k, const float *v, size_t kv_head)
{
    size_t size = dtype_block_bytes(s->kv_dtype), n = 0;
    size_t head_bytes = s->head_dim * KERNEL_KV_CHUNK * size;

    for (size_t i = 0; i < n_rows; i++) {
        size_t chunk = (first_position + i) / KERNEL_KV_CHUNK;
        size_t p = (first_position + i) % KERNEL_KV_CHUNK;
        unsigned char *page = pages[chunk] + s->page_offset + kv_head * 2 * head_bytes;
        size_t row = (i * s->n_kv_heads + kv_head) * s->head_dim;
        for (size_t d = 0; (i == 0 || p == 0) && d < s->head_dim; d++)
            __builtin_prefetch(page + (d * KERNEL_KV_CHUNK + p) * size, 1);
        n += device->kernels.kv_store[s->kv_dtype](page, page + head_bytes, p, s->head_dim, k + row,
                                                   v + row);
    }
    return n;
}

/* One kv head for n rows of a run. */
static void attend(const struct attn_arg *a, const struct attn_run *run, size_t row, size_t n,
                   size_t kv_head, unsigned char *scratch)
{
    const struct attn_shape *s = a->shape;
    size_t group = s->n_heads / s->n_kv_heads, d = s->head_dim, n_q = n * group;
    size_t head_bytes = d * KERNEL_KV_CHUNK * dtype_block_bytes(s->kv_dtype);
    float *q = carve(&scratch, n_q * d * sizeof(float));
    float *acc = carve(&scratch, n_q * d * sizeof(float));
    float *max = carve(&scratch, n_q * sizeof(float));
    float *sum = carve(&scratch, n_q * sizeof(float));
    int32_t *begin = carve(&scratch, n_q * sizeof(int32_t));
    int32_t *end = carve(&scratch, n_q * sizeof(int32_t));
    struct attn_job job = {.q = q,
                           .q_stride = d,
                           .n_q = n_q,
                           .head_dim = d,
                           .begin = begin,
                           .end = end,
                           .scale = s->scale,
                           .scratch = (float *)(void *)scratch,
                           .max = max,
                           .sum = sum,
                           .acc = acc,
                           .acc_stride = d};

    for (size_t r = 0; r < n; r++)
        memcpy(q + r * group * d, run->q + ((row + r) * s->n_heads + kv_head * group) * d,
               group * d * sizeof(float));
    memset(sum, 0, n_q * sizeof(float));
    size_t first = run->first_position + row, last = first + n - 1;
    size_t chunk =
        s->window > 0 && first + 1 > s->window ? (first + 1 - s->window) / KERNEL_KV_CHUNK : 0;
    for (; chunk <= last / KERNEL_KV_CHUNK; chunk++) {
        for (size_t i = 0; i < n_q; i++)
            visible(s, first + i / group, chunk * KERNEL_KV_CHUNK, &begin[i], &end[i]);
        const unsigned char *layer = run->pages[chunk] + s->page_offset;
        job.k = layer + kv_head * 2 * head_bytes;
        job.v = layer + kv_head * 2 * head_bytes + head_bytes;
        a->device->kernels.attn[s->kv_dtype](&job);
    }
    for (size_t i = 0; i < n_q; i++) {
        float *out = run->out + ((row + i / group) * s->n_heads + kv_head * group + i % group) * d;
        for (size_t j = 0; j < d; j++)
            out[j] = acc[i * d + j] / sum[i];
    }
}

/* Runs of one block of rows are stored by the item that attends to them, while K is in L1: heads of
 * many sequences lie a power of two apart and push each other out of the caches. */
static void attn_items(void *arg, size_t begin, size_t end, int thread_index)
{
    struct attn_arg *a = arg;
    size_t run = 0, first = 0; /* items of the runs before `run` */
    size_t n_overflows = 0;

    for (size_t item = begin; item < end; item++) {
        size_t blocks = div_up(a->runs[run].n_rows, a->row_block);
        while (item - first >= blocks * a->shape->n_kv_heads) {
            first += blocks * a->shape->n_kv_heads;
            blocks = div_up(a->runs[++run].n_rows, a->row_block);
        }
        /* The last rows see most keys: they go first, so that no thread is left alone with them. */
        size_t row = (blocks - 1 - (item - first) / a->shape->n_kv_heads) * a->row_block;
        const struct attn_run *r = &a->runs[run];
        size_t kv_head = (item - first) % a->shape->n_kv_heads;
        if (r->k != NULL && blocks == 1)
            n_overflows += store_head(a->device, a->shape, r->pages, r->first_position, r->n_rows,
                                      r->k, r->v, kv_head);
        attend(a, r, row, min_size(a->row_block, r->n_rows - row), kv_head,
               cpu_scratch(a->device, thread_index));
    }
    if (n_overflows > 0)
        atomic_fetch_add_explicit(&a->n_overflows, n_overflows, memory_order_relaxed);
}

size_t device_attention(struct device *device, const struct attn_shape *shape,
                        const struct attn_run *runs, size_t n_runs)
{
    struct attn_arg arg = {.device = device,
                           .shape = shape,
                           .runs = runs,
                           .n_runs = n_runs,
                           .row_block = rows_per_item(shape->n_heads, shape->n_kv_heads)};
    size_t n_items = 0, n_overflows = 0;

    for (size_t i = 0; i < n_runs; i++) {
        size_t blocks = div_up(runs[i].n_rows, arg.row_block);
        n_items += blocks * shape->n_kv_heads;
        if (blocks > 1 && runs[i].k != NULL)
            n_overflows += device_kv_store(device, shape, runs[i].pages, runs[i].first_position,
                                           runs[i].n_rows, runs[i].k, runs[i].v);
    }
    pool_for(device->pool, n_items, 1, attn_items, &arg);
    return n_overflows + atomic_load_explicit(&arg.n_overflows, memory_order_relaxed);
}

struct store_arg {
    struct device *device;
    const struct attn_shape *shape;
    unsigned char *const *pages;
    size_t first_position, n_rows;
    const float *k, *v;
    atomic_size_t n_overflows; /* a sum: its order does not matter */
};

static void store_heads(void *arg, size_t begin, size_t end, int thread_index)
{
    struct store_arg *a = arg;
    const struct attn_shape *s = a->shape;
    size_t n = 0;

    (void)thread_index;
    for (size_t h = begin; h < end; h++)
        n += store_head(a->device, s, a->pages, a->first_position, a->n_rows, a->k, a->v, h);
    atomic_fetch_add_explicit(&a->n_overflows, n, memory_order_relaxed);
}

size_t device_kv_store(struct device *device, const struct attn_shape *shape,
                       unsigned char *const *pages, size_t first_position, size_t n_rows,
                       const float *k, const float *v)
{
    struct store_arg arg = {.device = device,
                            .shape = shape,
                            .pages = pages,
                            .first_position = first_position,
                            .n_rows = n_rows,
                            .k = k,
                            .v = v};
    /* Few rows: one thread is quicker than waking the others. */
    size_t grain = n_rows * shape->n_kv_heads < 64 ? shape->n_kv_heads : 1;
    pool_for(device->pool, shape->n_kv_heads, grain, store_heads, &arg);
    return atomic_load_explicit(&arg.n_overflows, memory_order_relaxed);
}
