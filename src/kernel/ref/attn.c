/* Reference attention over one chunk of 128 positions. See attn_fn in kernel.h for the contract.
 *
 * Why here: it defines the bits; every other level must give the same (law 2). Written for reading.
 * Invisible positions are never read: a page may hold anything there.
 *
 * Rules beyond kernel.h: the maximum starts at -infinity, ignores NaN, and a zero maximum is +0 (so
 * it does not depend on which zero came first); a NaN score reaches the sum and the result. A chunk
 * whose visible scores are all -infinity, or that has +infinity among them, gives NaN. */
#include "kernel/init.h"
#include "kernel/kernel.h"
#include "tensor/half.h"

#include <math.h>

/* Element i of a page as f32. */
static float load_kv(enum dtype dtype, const void *p, size_t i)
{
    if (dtype == DTYPE_F16)
        return f16_to_f32(((const uint16_t *)p)[i]);
    if (dtype == DTYPE_BF16)
        return bf16_to_f32(((const uint16_t *)p)[i]);
    return ((const float *)p)[i];
}

/* s[begin..end) becomes exp(s - max); returns the maximum and the sum. */
static void softmax_part(float *s, size_t begin, size_t end, float *ret_max, float *ret_sum)
{
    float lane[KERNEL_SUM_LANES] = {0};
    float max = -INFINITY;

    for (size_t p = begin; p < end; p++)
        max = s[p] > max ? s[p] : max;
    max = max + 0.0f; /* -0 becomes +0 */
    for (size_t p = begin; p < end; p++) {
        s[p] = math_exp(s[p] - max);
        lane[p % KERNEL_SUM_LANES] += s[p];
    }
    for (size_t width = KERNEL_SUM_LANES / 2; width > 0; width /= 2)
        for (size_t l = 0; l < width; l++)
            lane[l] += lane[l + width];
    *ret_max = max;
    *ret_sum = lane[0];
}

/* Merges (m, l, o) of this chunk into (*max, *sum, acc). sum 0: nothing merged yet, max and acc are
 * not read. */
static void merge(float *max, float *sum, float *acc, float m, float l, const float *o,
                  size_t head_dim)
{
    if (*sum == 0) {
        *max = m;
        *sum = l;
        memcpy(acc, o, head_dim * sizeof *acc);
        return;
    }
    float larger = m > *max ? m : *max;
    float a = math_exp(*max - larger);
    float b = math_exp(m - larger);
    *max = larger;
    *sum = fmaf(*sum, a, l * b);
    for (size_t d = 0; d < head_dim; d++)
        acc[d] = fmaf(acc[d], a, o[d] * b);
}

static void attn(const struct attn_job *job, enum dtype dtype)
{
    size_t head_dim = job->head_dim;
    float *s = job->scratch;
    float *o = job->scratch + KERNEL_KV_CHUNK;

    for (size_t i = 0; i < job->n_q; i++) {
        const float *q = job->q + i * job->q_stride;
        size_t begin = (size_t)job->begin[i], end = (size_t)job->end[i];
        float m, l;

        if (begin >= end)
            continue;
        for (size_t p = begin; p < end; p++) {
            float dot = 0;
            for (size_t d = 0; d < head_dim; d++)
                dot = fmaf(q[d], load_kv(dtype, job->k, d * KERNEL_KV_CHUNK + p), dot);
            s[p] = dot * job->scale;
        }
        softmax_part(s, begin, end, &m, &l);
        for (size_t d = 0; d < head_dim; d++) {
            o[d] = 0;
            for (size_t p = begin; p < end; p++)
                o[d] = fmaf(s[p], load_kv(dtype, job->v, p * head_dim + d), o[d]);
        }
        merge(&job->max[i], &job->sum[i], job->acc + i * job->acc_stride, m, l, o, head_dim);
    }
}

static void attn_f32(const struct attn_job *job)
{
    attn(job, DTYPE_F32);
}

static void attn_f16(const struct attn_job *job)
{
    attn(job, DTYPE_F16);
}

static void attn_bf16(const struct attn_job *job)
{
    attn(job, DTYPE_BF16);
}

/* The largest need of any level: a tile of up to 8 queries, each with its scores and its result
 * padded to whole vectors. */
size_t attn_scratch_floats(size_t n_q, size_t head_dim)
{
    size_t tile = n_q < ATTN_TILE_MAX ? n_q : ATTN_TILE_MAX;
    return tile * (KERNEL_KV_CHUNK + (head_dim + 7) / 8 * 8);
}

void kernels_init_ref_attn(struct kernels *k)
{
    k->attn[DTYPE_F32] = attn_f32;
    k->attn[DTYPE_F16] = attn_f16;
    k->attn[DTYPE_BF16] = attn_bf16;
}
