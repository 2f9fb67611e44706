/* Activation formats: what an expert's or any other matmul consumes, chosen by the weight's dtype
 * alone (law 2).
 *
 * A32 row of k values, nb = ceil(k / 32) blocks: int8 q[32 * nb] (tail zero), f32 scale[nb], int32
 * sum[nb] (sum of the block's q). q and scale travel between ranks (36 bytes per 32 values); sum is
 * derived. F32 row: f32 x[k]. Numerics: docs/numerics.md, "Activation formats". */
#ifndef TENSOR_ACT_H
#define TENSOR_ACT_H

#include "tensor/dtype.h"

enum act_format {
    ACT_FORMAT_F32,
    ACT_FORMAT_A32,
};

enum { ACT_BLOCK = 32 };

static inline enum act_format act_format_for(enum dtype weight)
{
    return weight == DTYPE_F32 || weight == DTYPE_F16 || weight == DTYPE_BF16 ? ACT_FORMAT_F32
                                                                              : ACT_FORMAT_A32;
}

static inline size_t act_blocks(size_t k)
{
    return (k + ACT_BLOCK - 1) / ACT_BLOCK;
}

/* Bytes between two rows in memory: a multiple of 64. */
static inline size_t act_row_bytes(enum act_format format, size_t k)
{
    size_t n = format == ACT_FORMAT_F32 ? k * sizeof(float) : act_blocks(k) * (ACT_BLOCK + 8);
    return (n + 63) & ~(size_t)63;
}

static inline const float *act_a32_scales(const void *row, size_t k)
{
    return (const float *)(const void *)((const char *)row + act_blocks(k) * ACT_BLOCK);
}

static inline const int32_t *act_a32_sums(const void *row, size_t k)
{
    return (const int32_t *)(const void *)((const char *)row + act_blocks(k) * (ACT_BLOCK + 4));
}

#endif
