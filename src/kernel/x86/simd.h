/* Shared pieces of the AVX2 kernels: the exponential, the 16-lane tree, conversions, tails.
 *
 * Included only by files compiled with AVX2 + FMA + F16C. Each helper states which scalar code it
 * must equal bit for bit. */
#ifndef KERNEL_X86_SIMD_H
#define KERNEL_X86_SIMD_H

#include "kernel/exp.h"
#include "tensor/dtype.h"

#include <immintrin.h>
#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define ALWAYS_INLINE static inline __attribute__((always_inline))

/* Unrolls the constant loop that follows completely, so that arrays of vectors become registers. */
#if defined(__clang__)
#define UNROLL _Pragma("clang loop unroll(full)")
#else
#define UNROLL _Pragma("GCC unroll 16")
#endif

/* math_exp() of 8 values, same operations. */
ALWAYS_INLINE __m256 exp8(__m256 x)
{
    const __m256 magic = _mm256_set1_ps(EXP_MAGIC);
    __m256 t = _mm256_fmadd_ps(x, _mm256_set1_ps(EXP_LOG2E), magic);
    __m256 n = _mm256_sub_ps(t, magic);
    __m256 r = _mm256_fmadd_ps(n, _mm256_set1_ps(-EXP_LN2_HI), x);
    r = _mm256_fmadd_ps(n, _mm256_set1_ps(-EXP_LN2_LO), r);

    __m256 q = _mm256_set1_ps(EXP_C6);
    q = _mm256_fmadd_ps(q, r, _mm256_set1_ps(EXP_C5));
    q = _mm256_fmadd_ps(q, r, _mm256_set1_ps(EXP_C4));
    q = _mm256_fmadd_ps(q, r, _mm256_set1_ps(EXP_C3));
    q = _mm256_fmadd_ps(q, r, _mm256_set1_ps(EXP_C2));
    __m256 y = _mm256_add_ps(_mm256_set1_ps(1.0f), _mm256_fmadd_ps(q, _mm256_mul_ps(r, r), r));
    y = _mm256_castsi256_ps(
        _mm256_add_epi32(_mm256_castps_si256(y), _mm256_slli_epi32(_mm256_castps_si256(t), 23)));

    __m256 small = _mm256_cmp_ps(x, _mm256_set1_ps(EXP_MIN), _CMP_LT_OQ);
    __m256 large = _mm256_cmp_ps(x, _mm256_set1_ps(EXP_MAX), _CMP_GT_OQ);
    __m256 nan = _mm256_cmp_ps(x, x, _CMP_UNORD_Q);
    y = _mm256_andnot_ps(small, y);
    y = _mm256_blendv_ps(y, _mm256_set1_ps(INFINITY), large);
    return _mm256_blendv_ps(y, x, nan);
}

/* The tree over 16 lanes: lanes 0..7 in a, 8..15 in b. */
ALWAYS_INLINE float tree16(__m256 a, __m256 b)
{
    __m256 v = _mm256_add_ps(a, b);
    __m128 w = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    w = _mm_add_ps(w, _mm_movehl_ps(w, w));
    w = _mm_add_ss(w, _mm_movehdup_ps(w));
    return _mm_cvtss_f32(w);
}

/* Largest of 8 lanes, none NaN; a zero maximum is +0. */
ALWAYS_INLINE float max8(__m256 v)
{
    __m128 w = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    w = _mm_max_ps(w, _mm_movehl_ps(w, w));
    w = _mm_max_ss(w, _mm_movehdup_ps(w));
    return _mm_cvtss_f32(w) + 0.0f;
}

/* bf16_to_f32() of 8 codes, except that a signaling NaN stays one. */
ALWAYS_INLINE __m256 bf16_to_f32_8(__m128i h)
{
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(h), 16));
}

/* 8 consecutive values of a plain type, any alignment. */
ALWAYS_INLINE __m256 load8(enum dtype dtype, const void *p, size_t i)
{
    if (dtype == DTYPE_F16)
        return _mm256_cvtph_ps(_mm_loadu_si128((const void *)((const uint16_t *)p + i)));
    if (dtype == DTYPE_BF16)
        return bf16_to_f32_8(_mm_loadu_si128((const void *)((const uint16_t *)p + i)));
    return _mm256_loadu_ps((const float *)p + i);
}

#endif
