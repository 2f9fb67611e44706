/* AVX2: what one packed block of 32 k x 8 columns holds, as vectors ready to multiply.
 *
 * Why here: the tiles of matmul_block.c are the same for all formats; what differs is how codes and
 * scales are loaded. Every function is inlined with a constant dtype, so the switches cost nothing.
 * Lanes: byte 4c + j of code vector q belongs to column c, k = 4q + j; float lane c is column c. */
#ifndef KERNEL_X86_MATMUL_CODES_H
#define KERNEL_X86_MATMUL_CODES_H

#include "kernel/pack_layout.h"

#include <immintrin.h>

#define INLINE static inline __attribute__((always_inline))

#if defined(__clang__)
#define UNROLL _Pragma("clang loop unroll(full)")
#else
#define UNROLL _Pragma("GCC unroll 16")
#endif

/* How the integer dot of a format is taken. */
enum dot_form {
    DOT_U4,     /* codes 0..15: 8 products pairs fit one int16 sum (30,480) */
    DOT_U5,     /* codes 0..31: 4 fit (31,496) */
    DOT_U6,     /* Q6_K, codes 0..63: 2 fit (32,004); two halves with integer scales */
    DOT_SIGNED, /* any int8, -128 included: |w| * (x with w's sign), 1 fits (32,512) */
};

/* What is needed of the activation row beside codes and scales, one 32-bit word per block. */
enum aux_form {
    AUX_NONE,
    AUX_OFFSET, /* int32 offset * sum: the codes are stored that much too high */
    AUX_MIN,    /* f32 scale * (float)sum */
    AUX_HALVES, /* int16 sums of k 0..15 and k 16..31 */
};

INLINE enum dot_form dot_form_of(enum dtype t)
{
    switch (t) {
    case DTYPE_Q4_0:
    case DTYPE_Q4_1:
    case DTYPE_Q4_K:
        return DOT_U4;
    case DTYPE_Q5_0:
    case DTYPE_Q5_1:
    case DTYPE_Q5_K:
    case DTYPE_MXFP4:
        return DOT_U5;
    case DTYPE_Q6_K:
        return DOT_U6;
    default:
        return DOT_SIGNED;
    }
}

INLINE enum aux_form aux_form_of(enum dtype t)
{
    switch (t) {
    case DTYPE_Q4_0:
    case DTYPE_Q5_0:
    case DTYPE_MXFP4:
        return AUX_OFFSET;
    case DTYPE_Q4_1:
    case DTYPE_Q5_1:
    case DTYPE_Q4_K:
    case DTYPE_Q5_K:
        return AUX_MIN;
    case DTYPE_Q6_K:
        return AUX_HALVES;
    default:
        return AUX_NONE;
    }
}

/* AUX_OFFSET: code = value + offset. */
INLINE int code_offset(enum dtype t)
{
    return t == DTYPE_Q4_0 ? 8 : t == DTYPE_Q5_0 ? 16 : 12;
}

/* One block, unpacked. */
struct codes {
    __m256i w[8];
    __m256 d;      /* factor of the integer dot */
    __m256 m;      /* AUX_MIN: factor of the activation sum */
    __m256i sc[2]; /* Q6_K: int16 pairs (sc, sc) of each half */
    __m256i off;   /* Q6_K: int16 pairs (32 * sc0, 32 * sc1) */
};

INLINE __m256i load256(const uint8_t *p)
{
    return _mm256_load_si256((const __m256i *)(const void *)p);
}

INLINE __m256 load_halves(const uint8_t *p)
{
    return _mm256_cvtph_ps(_mm_load_si128((const __m128i *)(const void *)p));
}

INLINE __m256i load_u8x8(const uint8_t *p)
{
    return _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)(const void *)p));
}

/* 2^(e - 128): half of the E8M0 scale; the two smallest are denormal, 255 is NaN. */
INLINE __m256 load_half_e8m0(const uint8_t *p)
{
    const __m256i one = _mm256_set1_epi32(1);
    __m256i e = load_u8x8(p);
    __m256i normal = _mm256_slli_epi32(_mm256_sub_epi32(e, one), 23);
    __m256i denormal = _mm256_sllv_epi32(_mm256_set1_epi32(0x00200000), e);
    __m256i bits = _mm256_blendv_epi8(denormal, normal, _mm256_cmpgt_epi32(e, one));
    __m256i is_nan = _mm256_cmpeq_epi32(e, _mm256_set1_epi32(255));
    bits = _mm256_blendv_epi8(bits, _mm256_set1_epi32(0x7FC00000), is_nan);
    return _mm256_castsi256_ps(bits);
}

/* The codes of one body. Signed for DOT_SIGNED, else unsigned with the format's offset left in. */
INLINE void load_codes(enum dtype t, const uint8_t *body, __m256i w[8])
{
    const __m256i low4 = _mm256_set1_epi8(15);

    if (t == DTYPE_Q8_0) {
        UNROLL for (int q = 0; q < 8; q++) w[q] = load256(body + 32 * q);
        return;
    }
    UNROLL for (int q = 0; q < 4; q++)
    {
        __m256i v = load256(body + 32 * q);
        w[q] = _mm256_and_si256(v, low4);
        w[q + 4] = _mm256_and_si256(_mm256_srli_epi16(v, 4), low4);
    }
    if (t == DTYPE_Q5_0 || t == DTYPE_Q5_1 || t == DTYPE_Q5_K) {
        const __m256i bit4 = _mm256_set1_epi8(16);
        __m256i h = load256(body + 128);
        UNROLL for (int q = 0; q < 8; q++)
        {
            __m256i s = q < 4 ? _mm256_slli_epi16(h, 4 - q) : _mm256_srli_epi16(h, q - 4);
            w[q] = _mm256_or_si256(w[q], _mm256_and_si256(s, bit4));
        }
    }
    if (t == DTYPE_Q6_K) {
        const __m256i top = _mm256_set1_epi8(48);
        UNROLL for (int q = 0; q < 8; q++)
        {
            __m256i h = load256(body + 128 + q / 4 * 32);
            int up = 4 - 2 * (q % 4);
            __m256i s = up >= 0 ? _mm256_slli_epi16(h, up) : _mm256_srli_epi16(h, -up);
            w[q] = _mm256_or_si256(w[q], _mm256_and_si256(s, top));
        }
    }
    if (t == DTYPE_IQ4_NL || t == DTYPE_MXFP4) {
        __m256i table = _mm256_broadcastsi128_si256(_mm_loadu_si128(
            (const __m128i *)(const void *)(t == DTYPE_IQ4_NL ? PACK_IQ4_NL : PACK_MXFP4_X2)));
        if (t == DTYPE_MXFP4)
            table = _mm256_add_epi8(table, _mm256_set1_epi8(12));
        UNROLL for (int q = 0; q < 8; q++) w[q] = _mm256_shuffle_epi8(table, w[q]);
    }
}

/* Scales of block i of the panel. */
INLINE void load_scales(enum dtype t, const uint8_t *header, size_t i, struct codes *c)
{
    switch (t) {
    case DTYPE_MXFP4:
        c->d = load_half_e8m0(header + 8 * i);
        break;
    case DTYPE_Q4_1:
    case DTYPE_Q5_1:
        c->d = load_halves(header + 16 * i);
        c->m = load_halves(header + 64 + 16 * i);
        break;
    case DTYPE_Q4_K:
    case DTYPE_Q5_K:
        c->d =
            _mm256_mul_ps(load_halves(header), _mm256_cvtepi32_ps(load_u8x8(header + 32 + 8 * i)));
        c->m = _mm256_mul_ps(load_halves(header + 16),
                             _mm256_cvtepi32_ps(load_u8x8(header + 96 + 8 * i)));
        c->m = _mm256_xor_ps(c->m, _mm256_set1_ps(-0.0f));
        break;
    case DTYPE_Q6_K: {
        const __m256i low16 = _mm256_set1_epi32(0xFFFF);
        __m128i both = _mm_load_si128((const __m128i *)(const void *)(header + 32 + 16 * i));
        __m256i s0 = _mm256_cvtepi8_epi32(both);
        __m256i s1 = _mm256_cvtepi8_epi32(_mm_srli_si128(both, 8));
        __m256i l0 = _mm256_and_si256(s0, low16), l1 = _mm256_and_si256(s1, low16);
        c->d = load_halves(header);
        c->sc[0] = _mm256_or_si256(l0, _mm256_slli_epi32(s0, 16));
        c->sc[1] = _mm256_or_si256(l1, _mm256_slli_epi32(s1, 16));
        c->off = _mm256_slli_epi16(_mm256_or_si256(l0, _mm256_slli_epi32(s1, 16)), 5);
        break;
    }
    default:
        c->d = load_halves(header + 16 * i);
        break;
    }
}

#endif
