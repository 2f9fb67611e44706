/* Decoding and encoding of the K types: super-blocks of 256 elements, with 6- or 8-bit scales per
 * sub-block. See codec.h; codec.c holds the other formats.
 *
 * Why here: the same readable definition, apart because the layouts are longer. It must not know
 * files or kernels, and it uses no libm. Source of the layouts: the GGUF specification. */
#include "tensor/codec_block.h"

#include <string.h>

enum {
    SUPER = 256, /* elements of a block */
    N_SUB = 8,   /* sub-blocks of 32 with scale and minimum: Q4_K, Q5_K */
    SUB = 32,
    N_SUB6 = 16, /* sub-blocks of 16 with a scale: Q6_K */
    SUB6 = 16,
    SCALES_BYTES = 12, /* 8 scales and 8 minimums of 6 bits */
    Q4_BYTES = 144,
    Q5_BYTES = 176,
    Q6_BYTES = 210,
};

static const uint16_t F16_NAN = 0x7E00;

/* ---- 6-bit scales ---- */

static void unpack_scales(const uint8_t *b, int *sc, int *m)
{
    for (int j = 0; j < 4; j++) {
        sc[j] = b[j] & 63;
        m[j] = b[j + 4] & 63;
        sc[j + 4] = (b[j + 8] & 15) | (b[j] >> 6) << 4;
        m[j + 4] = (b[j + 8] >> 4) | (b[j + 4] >> 6) << 4;
    }
}

static void pack_scales(uint8_t *b, const int *sc, const int *m)
{
    for (int j = 0; j < 4; j++) {
        b[j] = (uint8_t)(sc[j] | (sc[j + 4] >> 4) << 6);
        b[j + 4] = (uint8_t)(m[j] | (m[j + 4] >> 4) << 6);
        b[j + 8] = (uint8_t)((sc[j + 4] & 15) | (m[j + 4] & 15) << 4);
    }
}

/* ---- Q4_K and Q5_K ----
 *
 * Q4_K: d, dmin f16; scales[12]; qs[128]. Q5_K: qh[32] between scales and qs. Bytes 32c..32c+31 of
 * qs hold sub-block 2c in their low nibbles and 2c+1 in the high ones; the fifth bit of sub-block
 * s, element l is bit s of qh[l]. */

static void decode_45(const uint8_t *src, float *dst, const uint8_t *qh, const uint8_t *qs)
{
    float d = load_f16(src), dmin = load_f16(src + 2);
    int sc[N_SUB], m[N_SUB];

    unpack_scales(src + 4, sc, m);
    for (int s = 0; s < N_SUB; s++) {
        /* x = ((d * sc) * q) - (dmin * m): four roundings (d * sc and dmin * m are exact unless
         * they overflow, having at most 17 bits) */
        float scale = d * (float)sc[s], minimum = dmin * (float)m[s];
        for (int l = 0; l < SUB; l++) {
            int q = qs[s / 2 * SUB + l] >> (s % 2 * 4) & 15;
            if (qh != NULL)
                q |= (qh[l] >> s & 1) << 4;
            dst[s * SUB + l] = scale * (float)q - minimum;
        }
    }
}

void codec_k_decode_q4(const uint8_t *src, float *dst, size_t n_blocks)
{
    for (size_t b = 0; b < n_blocks; b++) {
        const uint8_t *block = src + b * Q4_BYTES;
        decode_45(block, dst + b * SUPER, NULL, block + 16);
    }
}

void codec_k_decode_q5(const uint8_t *src, float *dst, size_t n_blocks)
{
    for (size_t b = 0; b < n_blocks; b++) {
        const uint8_t *block = src + b * Q5_BYTES;
        decode_45(block, dst + b * SUPER, block + 16, block + 48);
    }
}

/* Squared error of x = scale * q - minimum with the nearest codes; writes the codes. */
static double affine_codes(const float *x, float scale, float minimum, int levels, int *codes)
{
    float inverse = invert(scale);
    double error = 0.0;

    for (int i = 0; i < SUB; i++) {
        codes[i] = to_code((x[i] + minimum) * inverse, 0, levels);
        double e = (double)x[i] - ((double)scale * codes[i] - (double)minimum);
        error += e * e;
    }
    return error;
}

/* Least-squares scale and minimum for given codes; false when the codes do not determine them or
 * the minimum would be negative, which the format cannot say (then minimum is held at 0). */
static bool affine_fit(const float *x, const int *codes, float *ret_scale, float *ret_minimum)
{
    double sum_q = 0, sum_qq = 0, sum_x = 0, sum_xq = 0;

    for (int i = 0; i < SUB; i++) {
        double q = codes[i];
        sum_q += q;
        sum_qq += q * q;
        sum_x += (double)x[i];
        sum_xq += (double)x[i] * q;
    }
    double determinant = SUB * sum_qq - sum_q * sum_q;
    if (determinant <= 0.0)
        return false;
    double scale = (SUB * sum_xq - sum_q * sum_x) / determinant;
    double minimum = (scale * sum_q - sum_x) / SUB;
    if (minimum < 0.0) {
        minimum = 0.0;
        scale = sum_xq / sum_qq;
    }
    *ret_scale = (float)scale;
    *ret_minimum = (float)minimum;
    return scale > 0.0 && is_finite(*ret_scale) && is_finite(*ret_minimum);
}

/* Scale and minimum of one sub-block: from the range, a few narrower and wider grids around it,
 * each improved once by least squares; the least squared error wins. */
static void affine_search(const float *x, int levels, float *ret_scale, float *ret_minimum)
{
    float lo = 0.0f, hi = x[0];
    int codes[SUB];
    double best = -1.0;

    for (int i = 0; i < SUB; i++) {
        lo = x[i] < lo ? x[i] : lo;
        hi = x[i] > hi ? x[i] : hi;
    }
    hi = hi < lo ? lo : hi;
    *ret_minimum = -lo;
    *ret_scale = 0.0f;
    for (int step = -8; step <= 16; step++) {
        float scale =
            hi / ((float)levels + 0.1f * (float)step) - lo / ((float)levels + 0.1f * (float)step);
        float minimum = -lo;
        if (!(scale > 0.0f) || !is_finite(scale))
            return;
        double error = affine_codes(x, scale, minimum, levels, codes);
        float fit_scale, fit_minimum;
        if (affine_fit(x, codes, &fit_scale, &fit_minimum)) {
            double fit_error = affine_codes(x, fit_scale, fit_minimum, levels, codes);
            if (fit_error < error) {
                error = fit_error;
                scale = fit_scale;
                minimum = fit_minimum;
            }
        }
        if (best < 0.0 || error < best) {
            best = error;
            *ret_scale = scale;
            *ret_minimum = minimum;
        }
    }
}

/* Writes d, dmin and scales at dst and the codes of all 256 elements. */
static void encode_45(const float *src, uint8_t *dst, int levels, int *codes)
{
    float scale[N_SUB], minimum[N_SUB], scale_max = 0.0f, minimum_max = 0.0f;
    int sc[N_SUB], m[N_SUB];

    if (!all_finite(src, SUPER)) {
        memset(codes, 0, SUPER * sizeof codes[0]);
        memset(dst, 0, 4 + SCALES_BYTES);
        store_u16(dst, F16_NAN); /* NaN * 0 is NaN: every value decodes to it */
        return;
    }
    for (int s = 0; s < N_SUB; s++) {
        affine_search(src + s * SUB, levels, &scale[s], &minimum[s]);
        scale_max = scale[s] > scale_max ? scale[s] : scale_max;
        minimum_max = minimum[s] > minimum_max ? minimum[s] : minimum_max;
    }
    float d = store_f16(dst, scale_max / 63.0f);
    float dmin = store_f16(dst + 2, minimum_max / 63.0f);
    for (int s = 0; s < N_SUB; s++) {
        sc[s] = to_code(scale[s] * invert(d), 0, 63);
        m[s] = to_code(minimum[s] * invert(dmin), 0, 63);
        (void)affine_codes(src + s * SUB, d * (float)sc[s], dmin * (float)m[s], levels,
                           codes + s * SUB);
    }
    pack_scales(dst + 4, sc, m);
}

static void pack_45(const int *codes, uint8_t *qh, uint8_t *qs)
{
    for (int c = 0; c < N_SUB / 2; c++) {
        const int *low = codes + 2 * c * SUB, *high = low + SUB;
        for (int l = 0; l < SUB; l++)
            qs[c * SUB + l] = (uint8_t)((low[l] & 15) | (high[l] & 15) << 4);
    }
    for (int l = 0; qh != NULL && l < SUB; l++) {
        unsigned bits = 0;
        for (int s = 0; s < N_SUB; s++)
            bits |= (unsigned)(codes[s * SUB + l] >> 4 & 1) << s;
        qh[l] = (uint8_t)bits;
    }
}

void codec_k_encode_q4(const float *src, uint8_t *dst, size_t n_blocks)
{
    int codes[SUPER];

    for (size_t b = 0; b < n_blocks; b++) {
        uint8_t *block = dst + b * Q4_BYTES;
        encode_45(src + b * SUPER, block, 15, codes);
        pack_45(codes, NULL, block + 16);
    }
}

void codec_k_encode_q5(const float *src, uint8_t *dst, size_t n_blocks)
{
    int codes[SUPER];

    for (size_t b = 0; b < n_blocks; b++) {
        uint8_t *block = dst + b * Q5_BYTES;
        encode_45(src + b * SUPER, block, 31, codes);
        pack_45(codes, block + 16, block + 48);
    }
}

/* ---- Q6_K ----
 *
 * ql[128]; qh[64]; i8 scales[16]; d f16. Each half of 128 elements uses 64 bytes of ql and 32 of
 * qh; element 32 g + l of the half (g = 0..3) has its low 4 bits in ql[32 (g % 2) + l], low nibble
 * for g < 2, and its high 2 bits in bits 2g, 2g+1 of qh[l]. */

void codec_k_decode_q6(const uint8_t *src, float *dst, size_t n_blocks)
{
    for (size_t b = 0; b < n_blocks; b++, src += Q6_BYTES, dst += SUPER) {
        const uint8_t *ql = src, *qh = src + 128, *sc = src + 192;
        float d = load_f16(src + 208);
        for (int i = 0; i < SUPER; i++) {
            int half = i / 128, g = i % 128 / 32, l = i % 32;
            int low = ql[64 * half + 32 * (g % 2) + l] >> (g / 2 * 4) & 15;
            int high = qh[32 * half + l] >> (2 * g) & 3;
            /* x = (d * sc) * (q - 32): two roundings */
            float scale = d * (float)(int8_t)sc[i / SUB6];
            dst[i] = scale * (float)((low | high << 4) - 32);
        }
    }
}

static double linear_codes(const float *x, float scale, int *codes)
{
    float inverse = invert(scale);
    double error = 0.0;

    for (int i = 0; i < SUB6; i++) {
        codes[i] = to_code(x[i] * inverse, -32, 31);
        double e = (double)x[i] - (double)scale * codes[i];
        error += e * e;
    }
    return error;
}

/* Scale (of either sign) of 16 values: the extreme at -32, a few neighbours, each improved once by
 * least squares; the least squared error wins. */
static float linear_search(const float *x)
{
    float extreme = 0.0f, best_scale = 0.0f;
    int codes[SUB6];
    double best = -1.0;

    for (int i = 0; i < SUB6; i++) {
        if (__builtin_fabsf(x[i]) > __builtin_fabsf(extreme))
            extreme = x[i];
    }
    for (int step = -9; step <= 9; step++) {
        float scale = extreme / -(32.0f + 0.1f * (float)step);
        double error = linear_codes(x, scale, codes);
        double sum_xq = 0.0, sum_qq = 0.0;
        for (int i = 0; i < SUB6; i++) {
            sum_xq += (double)x[i] * codes[i];
            sum_qq += (double)codes[i] * codes[i];
        }
        if (sum_qq > 0.0) {
            float fit = (float)(sum_xq / sum_qq);
            double fit_error = linear_codes(x, fit, codes);
            if (fit_error < error) {
                error = fit_error;
                scale = fit;
            }
        }
        if (best < 0.0 || error < best) {
            best = error;
            best_scale = scale;
        }
    }
    return best_scale;
}

static void pack_6(const int *codes, uint8_t *dst)
{
    memset(dst, 0, 192);
    for (int i = 0; i < SUPER; i++) {
        int half = i / 128, g = i % 128 / 32, l = i % 32;
        int q = codes[i] + 32;
        uint8_t *low = &dst[64 * half + 32 * (g % 2) + l];
        uint8_t *high = &dst[128 + 32 * half + l];
        *low = (uint8_t)(*low | (q & 15) << (g / 2 * 4));
        *high = (uint8_t)(*high | (q >> 4) << (2 * g));
    }
}

static void encode_q6_block(const float *src, uint8_t *dst)
{
    float scale[N_SUB6], extreme = 0.0f;
    int codes[SUPER];

    memset(dst, 0, Q6_BYTES);
    if (!all_finite(src, SUPER)) {
        store_u16(dst + 208, F16_NAN);
        return;
    }
    for (int s = 0; s < N_SUB6; s++) {
        scale[s] = linear_search(src + s * SUB6);
        if (__builtin_fabsf(scale[s]) > __builtin_fabsf(extreme))
            extreme = scale[s];
    }
    float d = store_f16(dst + 208, extreme / -128.0f);
    for (int s = 0; s < N_SUB6; s++) {
        int sc = to_code(scale[s] * invert(d), -128, 127);
        dst[192 + s] = (uint8_t)sc;
        (void)linear_codes(src + s * SUB6, d * (float)sc, codes + s * SUB6);
    }
    pack_6(codes, dst);
}

void codec_k_encode_q6(const float *src, uint8_t *dst, size_t n_blocks)
{
    for (size_t b = 0; b < n_blocks; b++)
        encode_q6_block(src + b * SUPER, dst + b * Q6_BYTES);
}
