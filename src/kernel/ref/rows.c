/* Reference kernels over rows: quantisation, norm, activation, softmax, rope, conversions.
 *
 * Why here: these loops define the bits; every other level must give the same (law 2). Written for
 * reading, never optimised. They must not know threads or models.
 *
 * Two rules make tails and vector widths invisible:
 * - A sum has 16 lanes that start at +0; element i is added to lane i mod 16 in order; then lane l
 *   takes l+8, l+4, l+2, l+1. A lane is never -0, so adding +0 for a missing element is no change.
 * - A maximum starts at -infinity, ignores NaN, and a zero maximum is +0. */
#include "kernel/init.h"
#include "kernel/kernel.h"
#include "tensor/half.h"

#include <math.h>
#include <string.h>

static float tree16(float lane[KERNEL_SUM_LANES])
{
    for (size_t width = KERNEL_SUM_LANES / 2; width > 0; width /= 2)
        for (size_t l = 0; l < width; l++)
            lane[l] += lane[l + width];
    return lane[0];
}

/* One block of at most 32 values. Returns the scale; writes 32 codes and their sum.
 *
 * amax < 2^-119 counts as 0 (scale 0, codes 0): below it 127 / amax overflows or the scale is not a
 * normal number. NaN or infinity anywhere: scale NaN, codes 0. */
static float quantize_block(int8_t q[ACT_BLOCK], int32_t *ret_sum, const float *x, size_t n)
{
    float amax = 0;
    bool finite = true;
    int32_t sum = 0;

    for (size_t i = 0; i < n; i++) {
        if (!(fabsf(x[i]) < INFINITY))
            finite = false;
        else if (fabsf(x[i]) > amax)
            amax = fabsf(x[i]);
    }
    memset(q, 0, ACT_BLOCK);
    *ret_sum = 0;
    if (!finite)
        return NAN;
    if (amax < 0x1p-119f)
        return 0;

    float inverse = 127.0f / amax;
    for (size_t i = 0; i < n; i++) {
        float r = rintf(x[i] * inverse); /* nearest-even: the mode is never changed */
        r = r > 127.0f ? 127.0f : r < -127.0f ? -127.0f : r;
        q[i] = (int8_t)r;
        sum += q[i];
    }
    *ret_sum = sum;
    return amax / 127.0f;
}

static void quantize_a32(void *row, const float *x, size_t k)
{
    size_t n_blocks = act_blocks(k);
    int8_t *q = row;
    float *scale = (float *)(void *)((char *)row + n_blocks * ACT_BLOCK);
    int32_t *sum = (int32_t *)(void *)((char *)row + n_blocks * (ACT_BLOCK + 4));

    for (size_t b = 0; b < n_blocks; b++) {
        size_t first = b * ACT_BLOCK;
        size_t n = k - first < ACT_BLOCK ? k - first : ACT_BLOCK;
        scale[b] = quantize_block(q + first, &sum[b], x + first, n);
    }
}

static void rms_norm(float *out, const float *x, const float *w, size_t n, float eps)
{
    float lane[KERNEL_SUM_LANES] = {0};

    for (size_t i = 0; i < n; i++)
        lane[i % KERNEL_SUM_LANES] = fmaf(x[i], x[i], lane[i % KERNEL_SUM_LANES]);
    float scale = 1.0f / sqrtf(tree16(lane) / (float)n + eps);
    for (size_t i = 0; i < n; i++)
        out[i] = (x[i] * scale) * w[i];
}

static void silu_mul(float *out, const float *gate, const float *up, size_t n)
{
    for (size_t i = 0; i < n; i++)
        out[i] = gate[i] / (1.0f + math_exp(-gate[i])) * up[i];
}

static void exp_rows(float *x, size_t n)
{
    for (size_t i = 0; i < n; i++)
        x[i] = math_exp(x[i]);
}

/* A NaN, a +infinity or nothing but -infinity in x makes every output NaN. */
static void softmax(float *x, size_t n)
{
    float lane[KERNEL_SUM_LANES] = {0};
    float max = -INFINITY;

    for (size_t i = 0; i < n; i++)
        max = x[i] > max ? x[i] : max;
    for (size_t i = 0; i < n; i++) {
        x[i] = math_exp(x[i] - max);
        lane[i % KERNEL_SUM_LANES] += x[i];
    }
    float sum = tree16(lane);
    for (size_t i = 0; i < n; i++)
        x[i] = x[i] / sum;
}

static void add(float *y, const float *x, size_t n)
{
    for (size_t i = 0; i < n; i++)
        y[i] = y[i] + x[i];
}

static void scale_row(float *y, float s, size_t n)
{
    for (size_t i = 0; i < n; i++)
        y[i] = y[i] * s;
}

static void rope(float *x, size_t stride, size_t n_heads, size_t n_pairs, const float *cos,
                 const float *sin, bool interleaved)
{
    for (size_t h = 0; h < n_heads; h++) {
        float *v = x + h * stride;
        for (size_t i = 0; i < n_pairs; i++) {
            float *pa = interleaved ? v + 2 * i : v + i;
            float *pb = interleaved ? v + 2 * i + 1 : v + i + n_pairs;
            float a = *pa, b = *pb;
            *pa = fmaf(a, cos[i], -(b * sin[i]));
            *pb = fmaf(a, sin[i], b * cos[i]);
        }
    }
}

/* ---- conversions ---- */

static void decode_f32(float *dst, const void *src, size_t n)
{
    memcpy(dst, src, n * sizeof *dst);
}

static void decode_f16(float *dst, const void *src, size_t n)
{
    const uint16_t *h = src;
    for (size_t i = 0; i < n; i++)
        dst[i] = f16_to_f32(h[i]);
}

static void decode_bf16(float *dst, const void *src, size_t n)
{
    const uint16_t *h = src;
    for (size_t i = 0; i < n; i++)
        dst[i] = bf16_to_f32(h[i]);
}

static size_t encode_f32(void *dst, const float *src, size_t n)
{
    memcpy(dst, src, n * sizeof *src);
    return 0;
}

static size_t encode_f16(void *dst, const float *src, size_t n)
{
    uint16_t *h = dst;
    size_t overflows = 0;

    for (size_t i = 0; i < n; i++) {
        h[i] = f16_from_f32(src[i]);
        overflows += (h[i] & 0x7FFFu) == 0x7C00u && fabsf(src[i]) < INFINITY;
    }
    return overflows;
}

static size_t encode_bf16(void *dst, const float *src, size_t n)
{
    uint16_t *h = dst;
    size_t overflows = 0;

    for (size_t i = 0; i < n; i++) {
        h[i] = bf16_from_f32(src[i]);
        overflows += (h[i] & 0x7FFFu) == 0x7F80u && fabsf(src[i]) < INFINITY;
    }
    return overflows;
}

/* ---- one position into a KV page ---- */

static size_t kv_store_f32(void *k_page, void *v_page, size_t p, size_t head_dim, const float *k,
                           const float *v)
{
    float *column = (float *)k_page + p;
    for (size_t d = 0; d < head_dim; d++)
        column[d * KERNEL_KV_CHUNK] = k[d];
    return encode_f32((float *)v_page + p * head_dim, v, head_dim);
}

static size_t kv_store_f16(void *k_page, void *v_page, size_t p, size_t head_dim, const float *k,
                           const float *v)
{
    uint16_t *column = (uint16_t *)k_page + p;
    size_t overflows = 0;

    for (size_t d = 0; d < head_dim; d++)
        overflows += encode_f16(column + d * KERNEL_KV_CHUNK, k + d, 1);
    return overflows + encode_f16((uint16_t *)v_page + p * head_dim, v, head_dim);
}

static size_t kv_store_bf16(void *k_page, void *v_page, size_t p, size_t head_dim, const float *k,
                            const float *v)
{
    uint16_t *column = (uint16_t *)k_page + p;
    size_t overflows = 0;

    for (size_t d = 0; d < head_dim; d++)
        overflows += encode_bf16(column + d * KERNEL_KV_CHUNK, k + d, 1);
    return overflows + encode_bf16((uint16_t *)v_page + p * head_dim, v, head_dim);
}

void kernels_init_ref_rows(struct kernels *k)
{
    k->quantize_a32 = quantize_a32;
    k->rms_norm = rms_norm;
    k->silu_mul = silu_mul;
    k->softmax = softmax;
    k->exp = exp_rows;
    k->add = add;
    k->scale = scale_row;
    k->rope = rope;
    k->decode[DTYPE_F32] = decode_f32;
    k->decode[DTYPE_F16] = decode_f16;
    k->decode[DTYPE_BF16] = decode_bf16;
    k->encode[DTYPE_F32] = encode_f32;
    k->encode[DTYPE_F16] = encode_f16;
    k->encode[DTYPE_BF16] = encode_bf16;
    k->kv_store[DTYPE_F32] = kv_store_f32;
    k->kv_store[DTYPE_F16] = kv_store_f16;
    k->kv_store[DTYPE_BF16] = kv_store_bf16;
}
