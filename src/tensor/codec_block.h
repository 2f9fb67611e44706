/* What codec.c and codec_k.c share: little-endian access, rounding to codes, and the row functions
 * of the K types. Inner header of the room; nobody outside includes it. */
#ifndef TENSOR_CODEC_BLOCK_H
#define TENSOR_CODEC_BLOCK_H

#include "tensor/half.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

static inline uint16_t load_u16(const uint8_t *p)
{
    return (uint16_t)(p[0] | (p[1] << 8));
}

static inline void store_u16(uint8_t *p, uint16_t v)
{
    p[0] = (uint8_t)(v & 255u);
    p[1] = (uint8_t)(v >> 8);
}

static inline uint32_t load_u32(const uint8_t *p)
{
    return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

static inline void store_u32(uint8_t *p, uint32_t v)
{
    for (int i = 0; i < 4; i++)
        p[i] = (uint8_t)(v >> (8 * i) & 255u);
}

static inline float load_f16(const uint8_t *p)
{
    return f16_to_f32(load_u16(p));
}

/* Stores v as f16 and returns what a decoder will read back: encoders choose codes for the stored
 * scale, not for the ideal one. */
static inline float store_f16(uint8_t *p, float v)
{
    uint16_t h = f16_from_f32(v);
    store_u16(p, h);
    return f16_to_f32(h);
}

/* v rounded to nearest-even and clamped to [lo, hi] (within +-2^22). NaN gives lo: callers keep it
 * out. */
static inline int to_code(float v, int lo, int hi)
{
    const float magic = 12582912.0f; /* 1.5 * 2^23: the sum has no bits below 1 */

    if (!(v > (float)lo))
        return lo;
    if (!(v < (float)hi))
        return hi;
    return (int)((v + magic) - magic);
}

/* True when v is neither infinite nor NaN. */
static inline bool is_finite(float v)
{
    return (f32_to_bits(v) & 0x7F800000u) != 0x7F800000u;
}

/* True when all n values are finite. */
static inline bool all_finite(const float *x, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (!is_finite(x[i]))
            return false;
    }
    return true;
}

/* 1 / d, or 0 when that is not finite: a scale of 0 (or too small to invert) makes every code 0. */
static inline float invert(float d)
{
    float r = d != 0.0f ? 1.0f / d : 0.0f;
    return is_finite(r) ? r : 0.0f;
}

/* Rows of n_blocks blocks of the K types (256 elements each); codec_k.c. */
void codec_k_decode_q4(const uint8_t *src, float *dst, size_t n_blocks);
void codec_k_decode_q5(const uint8_t *src, float *dst, size_t n_blocks);
void codec_k_decode_q6(const uint8_t *src, float *dst, size_t n_blocks);
void codec_k_encode_q4(const float *src, uint8_t *dst, size_t n_blocks);
void codec_k_encode_q5(const float *src, uint8_t *dst, size_t n_blocks);
void codec_k_encode_q6(const float *src, uint8_t *dst, size_t n_blocks);

#endif
