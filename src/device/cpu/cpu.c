/* The CPU backend: life cycle, weights, row operations. See device.h. Matmuls are in matmul.c,
 * experts in ffn.c, attention in attn.c. */
#include "device/cpu/cpu.h"

#include "base/alloc.h"
#include "base/cpu.h"
#include "base/error.h"
#include "base/size.h"
#include "tensor/codec.h"

#include <string.h>

enum ferry_status device_create_cpu(struct device **ret_device,
                                    const struct device_options *options, struct ferry_error *err)
{
    struct device *device = mem_zero(sizeof *device);
    if (device == NULL)
        return FERRY_FAIL(err, FERRY_ERR_NOMEM, "device: no memory");
    enum cpu_level best = cpu_best_level();
    kernels_init(&device->kernels, options->level < best ? options->level : best);
    device->n_threads = options->n_threads > 0 ? options->n_threads : cpu_count();
    enum ferry_status st = pool_create(&device->pool, device->n_threads, err);
    if (st != FERRY_OK) {
        device_destroy(device);
        return st;
    }
    *ret_device = device;
    return FERRY_OK;
}

void device_destroy(struct device *device)
{
    if (device == NULL)
        return;
    pool_destroy(device->pool);
    mem_free(device->thread_scratch);
    mem_free(device->blocks);
    mem_free(device);
}

static size_t thread_scratch_bytes(const struct device_limits *limits)
{
    size_t ffn = (2 * CPU_ROW_TILE * CPU_FFN_COLS) * sizeof(float) +
                 act_row_bytes(ACT_FORMAT_A32, CPU_FFN_COLS);
    size_t attn = cpu_attn_scratch_bytes(limits->n_heads, limits->n_kv_heads, limits->head_dim);
    size_t n = max_size(ffn, attn) + limits->group_bytes;
    return (n + 4095) & ~(size_t)4095;
}

size_t device_reserve_bytes(const struct device *device, const struct device_limits *limits)
{
    return thread_scratch_bytes(limits) * (size_t)device->n_threads +
           limits->n_slots * sizeof(struct ffn_block);
}

enum ferry_status device_reserve(struct device *device, const struct device_limits *limits,
                                 struct ferry_error *err)
{
    size_t per_thread = thread_scratch_bytes(limits);
    size_t total;

    if (per_thread > device->thread_scratch_bytes) {
        unsigned char *scratch =
            mul_size(per_thread, (size_t)device->n_threads, &total) ? mem_alloc(total) : NULL;
        if (scratch == NULL)
            return FERRY_FAIL(err, FERRY_ERR_NOMEM,
                              "device: no memory for %d x %zu bytes of thread scratch",
                              device->n_threads, per_thread);
        mem_free(device->thread_scratch);
        device->thread_scratch = scratch;
        device->thread_scratch_bytes = per_thread;
    }
    if (limits->n_slots > device->max_slots) {
        struct ffn_block *blocks = mem_array(limits->n_slots, sizeof *blocks);
        if (blocks == NULL)
            return FERRY_FAIL(err, FERRY_ERR_NOMEM, "device: no memory for %zu expert slots",
                              limits->n_slots);
        mem_free(device->blocks);
        device->blocks = blocks;
        device->max_slots = limits->n_slots;
    }
    return FERRY_OK;
}

const struct kernels *device_kernels(const struct device *device)
{
    return &device->kernels;
}

int device_threads(const struct device *device)
{
    return device->n_threads;
}

void device_for(struct device *device, size_t n, size_t grain, pool_fn *fn, void *arg)
{
    pool_for(device->pool, n, grain, fn, arg);
}

/* ---- weights ---- */

bool device_weight_bytes(enum dtype dtype, size_t n_cols, size_t k, size_t *ret_bytes)
{
    return mul_size(div_up(n_cols, KERNEL_GROUP), pack_group_bytes(dtype, k), ret_bytes);
}

struct pack_arg {
    const struct weight *weight;
    unsigned char *dst;
};

static void pack_groups(void *arg, size_t begin, size_t end, int thread_index)
{
    const struct pack_arg *pack = arg;
    const struct weight *w = pack->weight;

    (void)thread_index;
    for (size_t g = begin; g < end; g++) {
        size_t col = g * KERNEL_GROUP;
        pack_group(w->dtype, pack->dst + g * w->group_bytes,
                   (const unsigned char *)w->rows + col * w->row_bytes, w->row_bytes,
                   min_size(KERNEL_GROUP, w->n_cols - col), w->k);
    }
}

void device_weight_pack(struct device *device, struct weight *weight, void *dst)
{
    struct pack_arg arg = {weight, dst};
    pool_for(device->pool, div_up(weight->n_cols, KERNEL_GROUP), 8, pack_groups, &arg);
    weight->packed = dst;
}

void device_weight_pack_alone(struct weight *weight, void *dst)
{
    struct pack_arg arg = {weight, dst};
    pack_groups(&arg, 0, div_up(weight->n_cols, KERNEL_GROUP), 0);
    weight->packed = dst;
}

/* ---- rows ---- */

struct rows_arg {
    struct device *device;
    float *out;
    const float *x, *w;
    const struct weight *table;
    const struct act_rows *act;
    const struct rope_job *rope;
    const int32_t *ids;
    size_t k, stride, n_heads;
    float value;
};

static void embed_rows(void *arg, size_t begin, size_t end, int thread_index)
{
    const struct rows_arg *a = arg;

    (void)thread_index;
    for (size_t i = begin; i < end; i++) {
        float *out = a->out + i * a->k;
        codec_decode_row(a->table->dtype,
                         (const unsigned char *)a->table->rows +
                             (size_t)a->ids[i] * a->table->row_bytes,
                         out, a->k);
        if (a->value != 1.0f)
            a->device->kernels.scale(out, a->value, a->k);
    }
}

void device_embed(struct device *device, const struct weight *table, const int32_t *ids, size_t n,
                  float scale, float *out)
{
    struct rows_arg arg = {
        .device = device, .table = table, .ids = ids, .out = out, .k = table->k, .value = scale};
    pool_for(device->pool, n, 8, embed_rows, &arg);
}

static void norm_rows(void *arg, size_t begin, size_t end, int thread_index)
{
    const struct rows_arg *a = arg;

    (void)thread_index;
    for (size_t i = begin; i < end; i++)
        a->device->kernels.rms_norm(a->out + i * a->k, a->x + i * a->k, a->w, a->k, a->value);
}

void device_rms_norm(struct device *device, float *out, const float *x, const float *w, size_t n,
                     size_t k, float eps)
{
    struct rows_arg arg = {.device = device, .out = out, .x = x, .w = w, .k = k, .value = eps};
    pool_for(device->pool, n, 8, norm_rows, &arg);
}

static void head_norm_rows(void *arg, size_t begin, size_t end, int thread_index)
{
    const struct rows_arg *a = arg;

    (void)thread_index;
    for (size_t i = begin; i < end; i++) {
        for (size_t h = 0; h < a->n_heads; h++) {
            float *x = a->out + i * a->stride + h * a->k;
            a->device->kernels.rms_norm(x, x, a->w, a->k, a->value);
        }
    }
}

void device_head_norm(struct device *device, float *x, size_t stride, const float *w, size_t n,
                      size_t n_heads, size_t head_dim, float eps)
{
    struct rows_arg arg = {.device = device,
                           .out = x,
                           .w = w,
                           .k = head_dim,
                           .stride = stride,
                           .n_heads = n_heads,
                           .value = eps};
    pool_for(device->pool, n, 4, head_norm_rows, &arg);
}

static void quantize_rows(void *arg, size_t begin, size_t end, int thread_index)
{
    const struct rows_arg *a = arg;
    const struct act_rows *rows = a->act;
    size_t stride = act_row_bytes(ACT_FORMAT_A32, rows->k);

    (void)thread_index;
    for (size_t i = begin; i < end; i++)
        a->device->kernels.quantize_a32((unsigned char *)rows->a32 + i * stride,
                                        rows->f32 + i * rows->f32_stride, rows->k);
}

void device_quantize(struct device *device, const struct act_rows *rows, size_t n)
{
    struct rows_arg arg = {.device = device, .act = rows};
    pool_for(device->pool, n, 8, quantize_rows, &arg);
}

static void rope_rows(void *arg, size_t begin, size_t end, int thread_index)
{
    const struct rows_arg *a = arg;
    const struct rope_job *job = a->rope;

    (void)thread_index;
    for (size_t i = begin; i < end; i++) {
        const float *c = job->cos + i * job->n_pairs, *s = job->sin + i * job->n_pairs;
        a->device->kernels.rope(job->q + i * job->q_stride, job->head_dim, job->n_heads,
                                job->n_pairs, c, s, job->interleaved);
        a->device->kernels.rope(job->k + i * job->k_stride, job->head_dim, job->n_kv_heads,
                                job->n_pairs, c, s, job->interleaved);
    }
}

void device_rope(struct device *device, const struct rope_job *job, size_t n_rows)
{
    struct rows_arg arg = {.device = device, .rope = job};
    pool_for(device->pool, n_rows, 4, rope_rows, &arg);
}

static void add_floats(void *arg, size_t begin, size_t end, int thread_index)
{
    const struct rows_arg *a = arg;
    (void)thread_index;
    a->device->kernels.add(a->out + begin, a->x + begin, end - begin);
}

static void scale_floats(void *arg, size_t begin, size_t end, int thread_index)
{
    const struct rows_arg *a = arg;
    (void)thread_index;
    a->device->kernels.scale(a->out + begin, a->value, end - begin);
}

static void clamp_floats(void *arg, size_t begin, size_t end, int thread_index)
{
    const struct rows_arg *a = arg;

    (void)thread_index;
    for (size_t i = begin; i < end; i++) { /* NaN passes through: both comparisons are false */
        if (a->out[i] > a->value)
            a->out[i] = a->value;
        else if (a->out[i] < -a->value)
            a->out[i] = -a->value;
    }
}

enum { FLOATS_GRAIN = 16384 };

void device_add(struct device *device, float *y, const float *x, size_t n)
{
    struct rows_arg arg = {.device = device, .out = y, .x = x};
    pool_for(device->pool, n, FLOATS_GRAIN, add_floats, &arg);
}

void device_scale(struct device *device, float *y, float s, size_t n)
{
    struct rows_arg arg = {.device = device, .out = y, .value = s};
    pool_for(device->pool, n, FLOATS_GRAIN, scale_floats, &arg);
}

void device_clamp(struct device *device, float *y, float limit, size_t n)
{
    struct rows_arg arg = {.device = device, .out = y, .value = limit};
    pool_for(device->pool, n, FLOATS_GRAIN, clamp_floats, &arg);
}

static void gate_rows(void *arg, size_t begin, size_t end, int thread_index)
{
    const struct rows_arg *a = arg;

    (void)thread_index;
    for (size_t i = begin; i < end; i++)
        a->device->kernels.scale(a->out + i * a->k, math_sigmoid(a->x[i]), a->k);
}

void device_gate_rows(struct device *device, float *y, const float *gate, size_t n, size_t k)
{
    struct rows_arg arg = {.device = device, .out = y, .x = gate, .k = k};
    pool_for(device->pool, n, 8, gate_rows, &arg);
}
