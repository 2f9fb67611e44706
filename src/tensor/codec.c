/* Decoding and encoding of plain types and of the 32-element block formats; the K types are in
 * codec_k.c. See codec.h.
 *
 * Why here: one readable definition of every format, which kernels, files and tools are tested
 * against. It must not know files or kernels, and it uses no libm. Order of operations: each
 * comment gives the value as f32 operations, one rounding each; products with d are done in f32
 * after the exact conversion of d from f16. Encoders mark a block that holds an infinity or a NaN
 * by a NaN scale, so that all of it decodes to NaN: a broken weight stays visible. Source of the
 * layouts: the GGUF specification; OCP Microscaling Formats 1.0 for MXFP4. */
#include "tensor/codec.h"

#include "base/assert.h"
#include "tensor/codec_block.h"

#include <string.h>

enum { N = 32 /* elements of a block */, HALF = 16 };

static const uint16_t F16_NAN = 0x7E00;

/* 4-bit codes of IQ4_NL: a non-linear grid, denser near 0. */
static const int8_t IQ4_NL_VALUES[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                         1,    13,   25,  38,  53,  69,  89,  113};

/* E2M1 codes of MXFP4, doubled so that they are integers; code 8 (-0) reads as +0. */
static const int8_t MXFP4_VALUES[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

/* ---- codes to bytes and back ---- */

/* 16 bytes of 4-bit codes: low nibbles are elements 0..15, high nibbles 16..31. */
static void unpack_nibbles(const uint8_t *qs, int *codes)
{
    for (int i = 0; i < HALF; i++) {
        codes[i] = qs[i] & 15;
        codes[i + HALF] = qs[i] >> 4;
    }
}

static void pack_nibbles(uint8_t *qs, const int *codes)
{
    for (int i = 0; i < HALF; i++)
        qs[i] = (uint8_t)((codes[i] & 15) | (codes[i + HALF] & 15) << 4);
}

/* 4 bytes of fifth bits (bit i of the little-endian word: element i), then the nibbles. */
static void unpack_5bit(const uint8_t *qh_qs, int *codes)
{
    uint32_t high = load_u32(qh_qs);

    unpack_nibbles(qh_qs + 4, codes);
    for (int i = 0; i < N; i++)
        codes[i] |= (int)(high >> i & 1u) << 4;
}

static void pack_5bit(uint8_t *qh_qs, const int *codes)
{
    uint32_t high = 0;

    for (int i = 0; i < N; i++)
        high |= (uint32_t)(codes[i] >> 4 & 1) << i;
    store_u32(qh_qs, high);
    pack_nibbles(qh_qs + 4, codes);
}

/* ---- decoding one block ---- */

/* x = d * q */
static void decode_q8_0(const uint8_t *src, float *dst)
{
    float d = load_f16(src);
    for (int i = 0; i < N; i++)
        dst[i] = d * (float)(int8_t)src[2 + i];
}

/* x = d * (q - 8) */
static void decode_q4_0(const uint8_t *src, float *dst)
{
    float d = load_f16(src);
    int codes[N];

    unpack_nibbles(src + 2, codes);
    for (int i = 0; i < N; i++)
        dst[i] = d * (float)(codes[i] - 8);
}

/* x = (d * q) + m: two roundings */
static void decode_q4_1(const uint8_t *src, float *dst)
{
    float d = load_f16(src), m = load_f16(src + 2);
    int codes[N];

    unpack_nibbles(src + 4, codes);
    for (int i = 0; i < N; i++)
        dst[i] = d * (float)codes[i] + m;
}

/* x = d * (q - 16) */
static void decode_q5_0(const uint8_t *src, float *dst)
{
    float d = load_f16(src);
    int codes[N];

    unpack_5bit(src + 2, codes);
    for (int i = 0; i < N; i++)
        dst[i] = d * (float)(codes[i] - 16);
}

/* x = (d * q) + m: two roundings */
static void decode_q5_1(const uint8_t *src, float *dst)
{
    float d = load_f16(src), m = load_f16(src + 2);
    int codes[N];

    unpack_5bit(src + 4, codes);
    for (int i = 0; i < N; i++)
        dst[i] = d * (float)codes[i] + m;
}

/* x = d * value[q] */
static void decode_iq4_nl(const uint8_t *src, float *dst)
{
    float d = load_f16(src);
    int codes[N];

    unpack_nibbles(src + 2, codes);
    for (int i = 0; i < N; i++)
        dst[i] = d * (float)IQ4_NL_VALUES[codes[i]];
}

/* 2^(e - 128), half of the E8M0 scale, since the values are doubled; 255 is NaN. */
static float mxfp4_half_scale(uint8_t e)
{
    if (e == 255)
        return f32_from_bits(0x7FC00000u);
    return f32_from_bits(e < 2 ? 0x00200000u << e : (uint32_t)(e - 1) << 23);
}

/* x = 2^(e - 128) * doubled value[q]; exact, save for infinity at e = 254 and |value| >= 4 */
static void decode_mxfp4(const uint8_t *src, float *dst)
{
    float d = mxfp4_half_scale(src[0]);
    int codes[N];

    unpack_nibbles(src + 1, codes);
    for (int i = 0; i < N; i++)
        dst[i] = d * (float)MXFP4_VALUES[codes[i]];
}

/* ---- encoding one block ---- */

static float largest_magnitude(const float *x, int n)
{
    float extreme = 0.0f;

    for (int i = 0; i < n; i++) {
        if (__builtin_fabsf(x[i]) > __builtin_fabsf(extreme))
            extreme = x[i];
    }
    return extreme;
}

/* d = amax / 127 as f16; q = nearest(x / d) */
static void encode_q8_0(const float *src, uint8_t *dst)
{
    float d = store_f16(dst, __builtin_fabsf(largest_magnitude(src, N)) / 127.0f);
    float inverse = invert(d);

    for (int i = 0; i < N; i++)
        dst[2 + i] = (uint8_t)to_code(src[i] * inverse, -127, 127);
}

/* d = extreme / -2^(bits-1), so that the value of largest magnitude takes the code that has no
 * mirror */
static void codes_symmetric(const float *src, uint8_t *ret_d, int *codes, int offset)
{
    float d = store_f16(ret_d, largest_magnitude(src, N) / (float)-offset);
    float inverse = invert(d);

    for (int i = 0; i < N; i++)
        codes[i] = to_code(src[i] * inverse, -offset, offset - 1) + offset;
}

/* m = least value, d = range / levels, both as f16 */
static void codes_affine(const float *src, uint8_t *ret_dm, int *codes, int levels)
{
    float lo = src[0], hi = src[0];

    for (int i = 1; i < N; i++) {
        lo = src[i] < lo ? src[i] : lo;
        hi = src[i] > hi ? src[i] : hi;
    }
    float d = store_f16(ret_dm, hi / (float)levels - lo / (float)levels);
    float m = store_f16(ret_dm + 2, lo);
    float inverse = invert(d);
    for (int i = 0; i < N; i++)
        codes[i] = to_code((src[i] - m) * inverse, 0, levels);
}

static void encode_q4_0(const float *src, uint8_t *dst)
{
    int codes[N];
    codes_symmetric(src, dst, codes, 8);
    pack_nibbles(dst + 2, codes);
}

static void encode_q4_1(const float *src, uint8_t *dst)
{
    int codes[N];
    codes_affine(src, dst, codes, 15);
    pack_nibbles(dst + 4, codes);
}

static void encode_q5_0(const float *src, uint8_t *dst)
{
    int codes[N];
    codes_symmetric(src, dst, codes, 16);
    pack_5bit(dst + 2, codes);
}

static void encode_q5_1(const float *src, uint8_t *dst)
{
    int codes[N];
    codes_affine(src, dst, codes, 31);
    pack_5bit(dst + 4, codes);
}

/* Nearest entry of a table of 16 for each d * value; returns the squared error. Ties go to the
 * earlier entry, or to the even one where `even` says so (E2M1 by its specification). */
static double codes_nearest(const float *src, float d, const int8_t *values, bool even, int *codes)
{
    double total = 0.0;

    for (int i = 0; i < N; i++) {
        double best = -1.0;
        for (int c = 0; c < 16; c++) {
            double e = (double)src[i] - (double)d * values[c];
            e = e < 0 ? -e : e;
            if (best < 0.0 || e < best || (even && e == best && (c & 1) == 0 && values[c] != 0)) {
                best = e;
                codes[i] = c;
            }
        }
        total += best * best;
    }
    return total;
}

/* The scale that fits given codes best; 0 when all of them stand for 0. */
static float least_squares_scale(const float *src, const int8_t *values, const int *codes)
{
    double sum_xv = 0.0, sum_vv = 0.0;

    for (int i = 0; i < N; i++) {
        double v = values[codes[i]];
        sum_xv += (double)src[i] * v;
        sum_vv += v * v;
    }
    return sum_vv > 0.0 ? (float)(sum_xv / sum_vv) : 0.0f;
}

/* The value of largest magnitude goes near one end of the table or near the other; each try is
 * improved once by least squares, and the one that errs least wins. */
static void encode_iq4_nl(const float *src, uint8_t *dst)
{
    static const float ENDS[] = {-139.0f, -127.0f, -117.0f, -104.0f, 95.0f, 103.0f, 113.0f, 124.0f};
    float extreme = largest_magnitude(src, N);
    double best = -1.0;

    for (size_t t = 0; t < sizeof ENDS / sizeof ENDS[0]; t++) {
        float d = extreme / ENDS[t];
        for (int round = 0; round < 2; round++) {
            uint8_t stored[2];
            int codes[N];
            float read = store_f16(stored, d);
            double error = codes_nearest(src, read, IQ4_NL_VALUES, false, codes);
            if (best < 0.0 || error < best) {
                best = error;
                memcpy(dst, stored, 2);
                pack_nibbles(dst + 2, codes);
            }
            d = least_squares_scale(src, IQ4_NL_VALUES, codes);
        }
    }
}

/* floor(log2(v)), v > 0 and finite */
static int exponent_of(float v)
{
    uint32_t bits = f32_to_bits(v);
    if (bits >= 0x00800000u)
        return (int)(bits >> 23) - 127;
    return 31 - __builtin_clz(bits) - 149;
}

/* The power of two that puts the largest magnitude into [4, 8), or the next one (which has room
 * for 6..8): whichever errs less. */
static void encode_mxfp4(const float *src, uint8_t *dst)
{
    float amax = __builtin_fabsf(largest_magnitude(src, N));
    int e = amax > 0.0f ? exponent_of(amax) - 2 + 127 : 0;
    int first[N], second[N];

    e = e < 0 ? 0 : e;
    int next = e < 254 ? e + 1 : e;
    double error = codes_nearest(src, mxfp4_half_scale((uint8_t)e), MXFP4_VALUES, true, first);
    double other = codes_nearest(src, mxfp4_half_scale((uint8_t)next), MXFP4_VALUES, true, second);
    dst[0] = (uint8_t)(error <= other ? e : next);
    pack_nibbles(dst + 1, error <= other ? first : second);
}

/* ---- rows ---- */

typedef void decode_block_fn(const uint8_t *src, float *dst);
typedef void encode_block_fn(const float *src, uint8_t *dst);

static const struct {
    decode_block_fn *decode;
    encode_block_fn *encode;
} BLOCKS[DTYPE_COUNT] = {
    [DTYPE_Q8_0] = {decode_q8_0, encode_q8_0},    [DTYPE_Q4_0] = {decode_q4_0, encode_q4_0},
    [DTYPE_Q4_1] = {decode_q4_1, encode_q4_1},    [DTYPE_Q5_0] = {decode_q5_0, encode_q5_0},
    [DTYPE_Q5_1] = {decode_q5_1, encode_q5_1},    [DTYPE_IQ4_NL] = {decode_iq4_nl, encode_iq4_nl},
    [DTYPE_MXFP4] = {decode_mxfp4, encode_mxfp4},
};

void codec_decode_row(enum dtype dtype, const void *src, float *dst, size_t n)
{
    const uint8_t *p = src;
    size_t n_blocks = n / dtype_block_elems(dtype);

    FERRY_ASSERT(n % dtype_block_elems(dtype) == 0);
    switch (dtype) {
    case DTYPE_F32:
        for (size_t i = 0; i < n; i++)
            dst[i] = f32_from_bits(load_u32(p + 4 * i));
        return;
    case DTYPE_F16:
        for (size_t i = 0; i < n; i++)
            dst[i] = f16_to_f32(load_u16(p + 2 * i));
        return;
    case DTYPE_BF16:
        for (size_t i = 0; i < n; i++)
            dst[i] = bf16_to_f32(load_u16(p + 2 * i));
        return;
    case DTYPE_Q4_K:
        codec_k_decode_q4(p, dst, n_blocks);
        return;
    case DTYPE_Q5_K:
        codec_k_decode_q5(p, dst, n_blocks);
        return;
    case DTYPE_Q6_K:
        codec_k_decode_q6(p, dst, n_blocks);
        return;
    default:
        for (size_t b = 0; b < n_blocks; b++)
            BLOCKS[dtype].decode(p + b * dtype_block_bytes(dtype), dst + b * N);
        return;
    }
}

/* A block that cannot be said in the format: every value decodes to NaN. The scale comes first in
 * all formats of this file. */
static void encode_broken(enum dtype dtype, uint8_t *dst)
{
    memset(dst, 0, dtype_block_bytes(dtype));
    if (dtype == DTYPE_MXFP4)
        dst[0] = 255;
    else
        store_u16(dst, F16_NAN);
}

void codec_encode_row(enum dtype dtype, const float *src, void *dst, size_t n)
{
    uint8_t *p = dst;
    size_t n_blocks = n / dtype_block_elems(dtype);

    FERRY_ASSERT(n % dtype_block_elems(dtype) == 0);
    switch (dtype) {
    case DTYPE_F32:
        for (size_t i = 0; i < n; i++)
            store_u32(p + 4 * i, f32_to_bits(src[i]));
        return;
    case DTYPE_F16:
        for (size_t i = 0; i < n; i++)
            store_u16(p + 2 * i, f16_from_f32(src[i]));
        return;
    case DTYPE_BF16:
        for (size_t i = 0; i < n; i++)
            store_u16(p + 2 * i, bf16_from_f32(src[i]));
        return;
    case DTYPE_Q4_K:
        codec_k_encode_q4(src, p, n_blocks);
        return;
    case DTYPE_Q5_K:
        codec_k_encode_q5(src, p, n_blocks);
        return;
    case DTYPE_Q6_K:
        codec_k_encode_q6(src, p, n_blocks);
        return;
    default:
        for (size_t b = 0; b < n_blocks; b++) {
            uint8_t *block = p + b * dtype_block_bytes(dtype);
            if (all_finite(src + b * N, N))
                BLOCKS[dtype].encode(src + b * N, block);
            else
                encode_broken(dtype, block);
        }
        return;
    }
}
