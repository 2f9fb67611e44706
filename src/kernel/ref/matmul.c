/* Reference matmuls: the meaning of every dtype's product, written for reading. All other levels
 * give these bits (any NaN equals any NaN).
 *
 * Why here: this file is the contract in code. It must not be optimised.
 *
 * Order of operations of out[i][c], independent of all other outputs. x is the activation row; in
 * A32 rows q[j] is the int8 code, dx[b] the f32 scale and sx[b] the int32 sum of the codes of block
 * b (32 values). f16 and bf16 widen to f32 exactly. "*" of two f32 is one rounded multiply, fma is
 * one rounding, (float) of an int32 is exact (every integer below stays under 2^24). acc is f32 and
 * starts at +0.
 *
 * F32 F16 BF16   for j ascending: acc = fma(w[j], x[j], acc).
 *
 * The block formats walk b = 0, 1, ... over blocks of 32 k:
 * Q8_0           isum = sum_j w[j] * q[j], w the signed byte (-128 included)
 * Q4_0           isum = sum_j (code - 8) * q[j]
 * Q5_0           isum = sum_j (code - 16) * q[j]
 * IQ4_NL         isum = sum_j table[code] * q[j]
 *                acc = fma((float)isum, dw * dx, acc), dw the f16 scale.
 * MXFP4          isum = sum_j (2 * e2m1[code]) * q[j]; the same fma with dw = 2^(e - 128): half of
 *                the E8M0 scale, exact also for e = 0 and 1 (denormals); e = 255 is NaN.
 * Q4_1 Q5_1      isum = sum_j code * q[j]
 *                acc = fma((float)isum, dw * dx, acc); acc = fma(mw, dx * (float)sx, acc).
 * Q4_K Q5_K      as Q4_1 with dw = d * (float)sc and mw = -(dmin * (float)m): f16 by 6-bit
 *                products, exact in f32.
 * Q6_K           isum = sc0 * sum_{j<16} (code - 32) * q[j] + sc1 * sum_{j>=16} (code - 32) * q[j]
 *                acc = fma((float)isum, d * dx, acc).
 *
 * Domain: q in -127..127 and sx equal to the sum, as quantize_fn writes them. */
#include "kernel/init.h"
#include "kernel/pack_layout.h"

#include "tensor/half.h"

#include <math.h>
#include <string.h>

/* What one block of 32 k means for one column. */
struct block {
    int32_t w[PACK_BLOCK]; /* integer weights, the format's offset and Q6_K's scales folded in */
    float d;               /* factor of the integer dot */
    float m;               /* factor of the activation sum */
    bool has_m;
};

static float half_at(const uint8_t *p, size_t i)
{
    uint16_t h;
    memcpy(&h, p + 2 * i, sizeof h);
    return f16_to_f32(h);
}

/* Twice-valued codes carry half of the E8M0 scale. */
static float half_e8m0(uint8_t e)
{
    if (e == 255)
        return NAN;
    return e < 2 ? f32_from_bits(0x00200000u << e) : f32_from_bits((uint32_t)(e - 1) << 23);
}

/* Unsigned code of element j of column c in a body of nibbles (all but Q8_0). */
static uint32_t code_at(enum dtype dtype, const uint8_t *body, size_t c, size_t j)
{
    size_t byte = 4 * c + j % 4, q = j / 4;
    uint32_t nibbles = body[q % 4 * PACK_VECTOR + byte];
    uint32_t code = q < 4 ? nibbles & 15u : nibbles >> 4;

    if (dtype == DTYPE_Q5_0 || dtype == DTYPE_Q5_1 || dtype == DTYPE_Q5_K)
        code |= (uint32_t)(body[4 * PACK_VECTOR + byte] >> q & 1) << 4;
    if (dtype == DTYPE_Q6_K)
        code |= (uint32_t)(body[(4 + q / 4) * PACK_VECTOR + byte] >> 2 * (q % 4) & 3) << 4;
    return code;
}

/* Scales of block b (of the whole row), column c. */
static void read_scales(enum dtype dtype, const uint8_t *header, size_t b, size_t c, size_t blocks,
                        struct block *ret)
{
    size_t i = b % blocks * KERNEL_GROUP + c;

    ret->m = 0;
    ret->has_m = false;
    switch (dtype) {
    case DTYPE_MXFP4:
        ret->d = half_e8m0(header[i]);
        break;
    case DTYPE_Q4_1:
    case DTYPE_Q5_1:
        ret->d = half_at(header, i);
        ret->m = half_at(header, blocks * KERNEL_GROUP + i);
        ret->has_m = true;
        break;
    case DTYPE_Q4_K:
    case DTYPE_Q5_K:
        ret->d = half_at(header, c) * (float)header[32 + i];
        ret->m = -(half_at(header + 16, c) * (float)header[96 + i]);
        ret->has_m = true;
        break;
    case DTYPE_Q6_K:
        ret->d = half_at(header, c);
        break;
    default:
        ret->d = half_at(header, i);
        break;
    }
}

static void read_block(enum dtype dtype, const uint8_t *group, size_t b, size_t c,
                       struct block *ret)
{
    struct pack_layout l = pack_layout_of(dtype);
    const uint8_t *header = pack_header(l, group, b);
    const uint8_t *body = pack_body(l, group, b);

    read_scales(dtype, header, b, c, l.blocks, ret);
    for (size_t j = 0; j < PACK_BLOCK; j++) {
        if (dtype == DTYPE_Q8_0) {
            ret->w[j] = (int8_t)body[j / 4 * PACK_VECTOR + 4 * c + j % 4];
            continue;
        }
        int32_t code = (int32_t)code_at(dtype, body, c, j);
        switch (dtype) {
        case DTYPE_Q4_0:
            ret->w[j] = code - 8;
            break;
        case DTYPE_Q5_0:
            ret->w[j] = code - 16;
            break;
        case DTYPE_IQ4_NL:
            ret->w[j] = PACK_IQ4_NL[code];
            break;
        case DTYPE_MXFP4:
            ret->w[j] = PACK_MXFP4_X2[code];
            break;
        case DTYPE_Q6_K: {
            size_t sub = b % l.blocks * 2 + j / 16;
            int8_t sc = (int8_t)header[32 + sub * KERNEL_GROUP + c];
            ret->w[j] = sc * (code - 32);
            break;
        }
        default:
            ret->w[j] = code;
            break;
        }
    }
}

static const uint8_t *group_at(const struct matmul_job *job, enum dtype dtype, size_t column)
{
    return (const uint8_t *)job->packed + column / KERNEL_GROUP * pack_group_bytes(dtype, job->k);
}

static float dot_block(enum dtype dtype, const uint8_t *group, size_t c, const void *row, size_t k)
{
    const int8_t *q = row;
    const float *dx = act_a32_scales(row, k);
    const int32_t *sx = act_a32_sums(row, k);
    float acc = 0;

    for (size_t b = 0; b < k / PACK_BLOCK; b++) {
        struct block w;
        int32_t isum = 0;
        read_block(dtype, group, b, c, &w);
        for (size_t j = 0; j < PACK_BLOCK; j++)
            isum += w.w[j] * q[b * PACK_BLOCK + j];
        acc = fmaf((float)isum, w.d * dx[b], acc);
        if (w.has_m)
            acc = fmaf(w.m, dx[b] * (float)sx[b], acc);
    }
    return acc;
}

static float dot_plain(enum dtype dtype, const uint8_t *group, size_t c, const float *x, size_t k)
{
    float acc = 0;

    for (size_t j = 0; j < k; j++) {
        size_t i = j * KERNEL_GROUP + c;
        float w = 0;
        if (dtype == DTYPE_F32) {
            memcpy(&w, group + 4 * i, sizeof w);
        } else {
            uint16_t h;
            memcpy(&h, group + 2 * i, sizeof h);
            w = dtype == DTYPE_F16 ? f16_to_f32(h) : bf16_to_f32(h);
        }
        acc = fmaf(w, x[j], acc);
    }
    return acc;
}

static void matmul(const struct matmul_job *job, enum dtype dtype)
{
    bool plain = act_format_for(dtype) == ACT_FORMAT_F32;
    size_t begin = job->group_begin * KERNEL_GROUP;
    size_t end = job->group_end * KERNEL_GROUP;

    if (end > job->n_cols)
        end = job->n_cols;
    for (size_t i = 0; i < job->n_rows; i++) {
        const void *row = matmul_act_row(job, i);
        for (size_t column = begin; column < end; column++) {
            const uint8_t *group = group_at(job, dtype, column);
            size_t c = column % KERNEL_GROUP;
            job->out[i * job->out_stride + column] = plain
                                                         ? dot_plain(dtype, group, c, row, job->k)
                                                         : dot_block(dtype, group, c, row, job->k);
        }
    }
}

#define REF_MATMUL(dtype)                                    \
    static void matmul_##dtype(const struct matmul_job *job) \
    {                                                        \
        matmul(job, DTYPE_##dtype);                          \
    }
REF_MATMUL(F32)
REF_MATMUL(F16)
REF_MATMUL(BF16)
REF_MATMUL(Q8_0)
REF_MATMUL(Q4_0)
REF_MATMUL(Q4_1)
REF_MATMUL(Q5_0)
REF_MATMUL(Q5_1)
REF_MATMUL(Q4_K)
REF_MATMUL(Q5_K)
REF_MATMUL(Q6_K)
REF_MATMUL(IQ4_NL)
REF_MATMUL(MXFP4)
#undef REF_MATMUL

void kernels_init_ref_matmul(struct kernels *k)
{
    k->matmul[DTYPE_F32] = matmul_F32;
    k->matmul[DTYPE_F16] = matmul_F16;
    k->matmul[DTYPE_BF16] = matmul_BF16;
    k->matmul[DTYPE_Q8_0] = matmul_Q8_0;
    k->matmul[DTYPE_Q4_0] = matmul_Q4_0;
    k->matmul[DTYPE_Q4_1] = matmul_Q4_1;
    k->matmul[DTYPE_Q5_0] = matmul_Q5_0;
    k->matmul[DTYPE_Q5_1] = matmul_Q5_1;
    k->matmul[DTYPE_Q4_K] = matmul_Q4_K;
    k->matmul[DTYPE_Q5_K] = matmul_Q5_K;
    k->matmul[DTYPE_Q6_K] = matmul_Q6_K;
    k->matmul[DTYPE_IQ4_NL] = matmul_IQ4_NL;
    k->matmul[DTYPE_MXFP4] = matmul_MXFP4;
}
