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

/* How the integer dot of a format is taken: 4 k are 2 products per int16 lane, 32 k are 16. */
enum dot_form {
    DOT_OFFSET, /* codes 0..31, value = code - offset: all 16 products of a lane in int16, modulo
                   2^16; with offset * (the lane's activations) subtracted the true sum is within
                   16 * 127 * 16 = 32,512 */
    DOT_U4,     /* codes 0..15: 16 products fit, 16 * 15 * 127 = 30,480 */
    DOT_U5,     /* codes 0..31: 8 products fit, 31,496 */
    DOT_U6,     /* Q6_K, codes 0..63: 4 products fit, 32,004; halves with integer scales */
    DOT_SIGNED, /* any int8, -128 included: |w| * (x with w's sign); 2 products fit, 32,512 */
};

/* What is needed of the activation row beside codes and scales, one 32-bit word per block. */
enum aux_form {
    AUX_NONE,
    AUX_LANES,  /* int16 offset * sum of k with k % 4 < 2, and of the others */
    AUX_MIN,    /* f32 scale * (float)sum */
    AUX_HALVES, /* int16 sums of k 0..15 and k 16..31 */
};

INLINE enum dot_form dot_form_of(enum dtype t)
{
    switch (t) {
    case DTYPE_Q4_0:
    case DTYPE_Q5_0:
    case DTYPE_MXFP4:
        return DOT_OFFSET;
    case DTYPE_Q4_1:
    case DTYPE_Q4_K:
        return DOT_U4;
    case DTYPE_Q5_1:
    case DTYPE_Q5_K:
        return DOT_U5;
    case DTYPE_Q6_K:
        return DOT_U6;
    default:
        return DOT_SIGNED;
    }
}

INLINE enum aux_form aux_form_of(enum dot_form form)
{
    switch (form) {
    case DOT_OFFSET:
        return AUX_LANES;
    case DOT_U4:
    case DOT_U5:
        return AUX_MIN;
    case DOT_U6:
        return AUX_HALVES;
    default:
        return AUX_NONE;
    }
}

/* DOT_OFFSET: code = value + offset. */
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

/* Code vector q of a body. Signed for DOT_SIGNED, else unsigned with the format's offset left in.
 */
INLINE __m256i load_code(enum dtype t, const uint8_t *body, int q)
{
    const __m256i low4 = _mm256_set1_epi8(15);
    __m256i w = load256(body + 32 * (t == DTYPE_Q8_0 ? q : q % 4));

    if (t == DTYPE_Q8_0)
        return w;
    w = _mm256_and_si256(q < 4 ? w : _mm256_srli_epi16(w, 4), low4);
    if (t == DTYPE_Q5_0 || t == DTYPE_Q5_1 || t == DTYPE_Q5_K) {
        __m256i h = load256(body + 128);
        h = q < 4 ? _mm256_slli_epi16(h, 4 - q) : _mm256_srli_epi16(h, q - 4);
        w = _mm256_or_si256(w, _mm256_and_si256(h, _mm256_set1_epi8(16)));
    }
    if (t == DTYPE_Q6_K) {
        __m256i h = load256(body + 128 + q / 4 * 32);
        int up = 4 - 2 * (q % 4);
        h = up >= 0 ? _mm256_slli_epi16(h, up) : _mm256_srli_epi16(h, -up);
        w = _mm256_or_si256(w, _mm256_and_si256(h, _mm256_set1_epi8(48)));
    }
    if (t == DTYPE_IQ4_NL || t == DTYPE_MXFP4) {
        __m256i table = _mm256_broadcastsi128_si256(_mm_loadu_si128(
            (const __m128i *)(const void *)(t == DTYPE_IQ4_NL ? PACK_IQ4_NL : PACK_MXFP4_X2)));
        if (t == DTYPE_MXFP4)
            table = _mm256_add_epi8(table, _mm256_set1_epi8(12));
        w = _mm256_shuffle_epi8(table, w);
    }
    return w;
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
