/* Row kernels with AVX2: the same bits as ref/rows.c, which states the operation orders.
 *
 * The 16 virtual lanes are two vectors. A tail is copied into a vector of neutral values (+0 for
 * sums, -infinity for the maximum), so it takes the same instructions as the body; neutral values
 * change nothing because a sum lane is never -0. */
#include "kernel/init.h"
#include "kernel/kernel.h"
#include "kernel/x86/simd.h"

/* ---- quantisation ---- */

/* 32 codes in their order. */
ALWAYS_INLINE __m256i pack_codes(const __m256i r[4])
{
    __m256i bytes =
        _mm256_packs_epi16(_mm256_packs_epi32(r[0], r[1]), _mm256_packs_epi32(r[2], r[3]));

    return _mm256_permutevar8x32_epi32(bytes, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
}

/* 32 values in four vectors. Magnitudes compare as integers, so NaN and infinity come out on top.
 */
ALWAYS_INLINE float quantize_block(int8_t *q, int32_t *ret_sum, const __m256 x[4])
{
    const __m256i mask = _mm256_set1_epi32(0x7FFFFFFF);
    __m256i m[4];
    for (int v = 0; v < 4; v++)
        m[v] = _mm256_and_si256(_mm256_castps_si256(x[v]), mask);
    __m256i top = _mm256_max_epi32(_mm256_max_epi32(m[0], m[1]), _mm256_max_epi32(m[2], m[3]));
    __m128i t = _mm_max_epi32(_mm256_castsi256_si128(top), _mm256_extracti128_si256(top, 1));
    t = _mm_max_epi32(t, _mm_shuffle_epi32(t, 0x4E));
    t = _mm_max_epi32(t, _mm_shuffle_epi32(t, 0xB1));
    float amax = _mm_cvtss_f32(_mm_castsi128_ps(t));

    bool finite = amax < INFINITY;
    if (!finite || amax < 0x1p-119f) {
        _mm256_storeu_si256((void *)q, _mm256_setzero_si256());
        *ret_sum = 0;
        return finite ? 0.0f : NAN;
    }
    __m256 inverse = _mm256_set1_ps(127.0f / amax);
    __m256i r[4];
    for (int v = 0; v < 4; v++) /* |x * inverse| < 127.5, so the clamp of the reference is idle */
        r[v] = _mm256_cvtps_epi32(_mm256_mul_ps(x[v], inverse));
    __m256i sum = _mm256_add_epi32(_mm256_add_epi32(r[0], r[1]), _mm256_add_epi32(r[2], r[3]));
    __m128i s = _mm_add_epi32(_mm256_castsi256_si128(sum), _mm256_extracti128_si256(sum, 1));
    s = _mm_add_epi32(s, _mm_shuffle_epi32(s, 0x4E));
    s = _mm_add_epi32(s, _mm_shuffle_epi32(s, 0xB1));
    *ret_sum = _mm_cvtsi128_si32(s);
    _mm256_storeu_si256((void *)q, pack_codes(r));
    return amax / 127.0f;
}

/* What the eight lanes of each of eight vectors come to, in one vector: two at a time by `pair`. */
ALWAYS_INLINE __m256i fold_lanes(const __m256i v[8], __m256i (*pair)(__m256i, __m256i))
{
    __m256i half[4], quarter[2];

    for (int i = 0; i < 4; i++)
        half[i] = pair(_mm256_unpacklo_epi32(v[2 * i], v[2 * i + 1]),
                       _mm256_unpackhi_epi32(v[2 * i], v[2 * i + 1]));
    for (int i = 0; i < 2; i++)
        quarter[i] = pair(_mm256_unpacklo_epi64(half[2 * i], half[2 * i + 1]),
                          _mm256_unpackhi_epi64(half[2 * i], half[2 * i + 1]));
    return pair(_mm256_permute2x128_si256(quarter[0], quarter[1], 0x20),
                _mm256_permute2x128_si256(quarter[0], quarter[1], 0x31));
}

ALWAYS_INLINE __m256i max_pair(__m256i a, __m256i b)
{
    return _mm256_max_epi32(a, b);
}

ALWAYS_INLINE __m256i add_pair(__m256i a, __m256i b)
{
    return _mm256_add_epi32(a, b);
}

/* Eight blocks as quantize_block would have them; false: one is out of the ordinary, nothing was
 * written. */
ALWAYS_INLINE bool quantize_eight(int8_t *q, float *scale, int32_t *sum, const float *x)
{
    const __m256i mask = _mm256_set1_epi32(0x7FFFFFFF);
    __m256i top[8], total[8];
    float inverse[8];

    for (size_t b = 0; b < 8; b++) {
        __m256i m[4];
        for (size_t v = 0; v < 4; v++)
            m[v] = _mm256_and_si256(_mm256_castps_si256(_mm256_loadu_ps(x + b * ACT_BLOCK + 8 * v)),
                                    mask);
        top[b] = _mm256_max_epi32(_mm256_max_epi32(m[0], m[1]), _mm256_max_epi32(m[2], m[3]));
    }
    __m256 amax = _mm256_castsi256_ps(fold_lanes(top, max_pair));
    __m256 plain = _mm256_and_ps(_mm256_cmp_ps(amax, _mm256_set1_ps(INFINITY), _CMP_LT_OQ),
                                 _mm256_cmp_ps(amax, _mm256_set1_ps(0x1p-119f), _CMP_GE_OQ));
    if (_mm256_movemask_ps(plain) != 0xFF)
        return false;
    _mm256_storeu_ps(inverse, _mm256_div_ps(_mm256_set1_ps(127.0f), amax));
    _mm256_storeu_ps(scale, _mm256_div_ps(amax, _mm256_set1_ps(127.0f)));
    for (size_t b = 0; b < 8; b++) {
        const __m256 by = _mm256_broadcast_ss(inverse + b);
        __m256i r[4];
        for (size_t v = 0; v < 4; v++)
            r[v] =
                _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x + b * ACT_BLOCK + 8 * v), by));
        total[b] = _mm256_add_epi32(_mm256_add_epi32(r[0], r[1]), _mm256_add_epi32(r[2], r[3]));
        _mm256_storeu_si256((void *)(q + b * ACT_BLOCK), pack_codes(r));
    }
    _mm256_storeu_si256((void *)sum, fold_lanes(total, add_pair));
    return true;
}

static void quantize_a32(void *row, const float *x, size_t k)
{
    size_t n_blocks = act_blocks(k), b = 0;
    int8_t *q = row;
    float *scale = (float *)(void *)((char *)row + n_blocks * ACT_BLOCK);
    int32_t *sum = (int32_t *)(void *)((char *)row + n_blocks * (ACT_BLOCK + 4));
    __m256 v[4];

    while (b < k / ACT_BLOCK) {
        if (b + 8 <= k / ACT_BLOCK &&
            quantize_eight(q + b * ACT_BLOCK, scale + b, sum + b, x + b * ACT_BLOCK)) {
            b += 8;
            continue;
        }
        for (size_t end = b + 8; b < end && b < k / ACT_BLOCK; b++) {
            for (size_t j = 0; j < 4; j++)
                v[j] = _mm256_loadu_ps(x + b * ACT_BLOCK + 8 * j);
            scale[b] = quantize_block(q + b * ACT_BLOCK, &sum[b], v);
        }
    }
    if (k % ACT_BLOCK != 0) {
        float tail[ACT_BLOCK] = {0};
        b = n_blocks - 1;
        memcpy(tail, x + b * ACT_BLOCK, k % ACT_BLOCK * sizeof *x);
        for (size_t j = 0; j < 4; j++)
            v[j] = _mm256_loadu_ps(tail + 8 * j);
        scale[b] = quantize_block(q + b * ACT_BLOCK, &sum[b], v);
    }
}

/* ---- norm, activation, softmax ---- */

static void rms_norm(float *out, const float *x, const float *w, size_t n, float eps)
{
    __m256 a = _mm256_setzero_ps(), b = a, va, vb;
    size_t i = 0;

    for (; i + 16 <= n; i += 16) {
        va = _mm256_loadu_ps(x + i);
        vb = _mm256_loadu_ps(x + i + 8);
        a = _mm256_fmadd_ps(va, va, a);
        b = _mm256_fmadd_ps(vb, vb, b);
    }
    if (i < n) {
        float tail[16] = {0};
        memcpy(tail, x + i, (n - i) * sizeof *x);
        va = _mm256_loadu_ps(tail);
        vb = _mm256_loadu_ps(tail + 8);
        a = _mm256_fmadd_ps(va, va, a);
        b = _mm256_fmadd_ps(vb, vb, b);
    }
    float scale = 1.0f / sqrtf(tree16(a, b) / (float)n + eps);
    __m256 s = _mm256_set1_ps(scale);
    for (i = 0; i + 8 <= n; i += 8)
        _mm256_storeu_ps(out + i, _mm256_mul_ps(_mm256_mul_ps(_mm256_loadu_ps(x + i), s),
                                                _mm256_loadu_ps(w + i)));
    for (; i < n; i++)
        out[i] = (x[i] * scale) * w[i];
}

ALWAYS_INLINE __m256 silu_mul8(__m256 gate, __m256 up)
{
    __m256 e = exp8(_mm256_xor_ps(gate, _mm256_set1_ps(-0.0f)));
    return _mm256_mul_ps(_mm256_div_ps(gate, _mm256_add_ps(_mm256_set1_ps(1.0f), e)), up);
}

static void silu_mul(float *out, const float *gate, const float *up, size_t n)
{
    size_t i = 0;

    for (; i + 8 <= n; i += 8)
        _mm256_storeu_ps(out + i, silu_mul8(_mm256_loadu_ps(gate + i), _mm256_loadu_ps(up + i)));
    if (i < n) {
        float g[8] = {0}, u[8] = {0};
        memcpy(g, gate + i, (n - i) * sizeof *g);
        memcpy(u, up + i, (n - i) * sizeof *u);
        _mm256_storeu_ps(g, silu_mul8(_mm256_loadu_ps(g), _mm256_loadu_ps(u)));
        memcpy(out + i, g, (n - i) * sizeof *g);
    }
}

static void exp_rows(float *x, size_t n)
{
    size_t i = 0;

    for (; i + 8 <= n; i += 8)
        _mm256_storeu_ps(x + i, exp8(_mm256_loadu_ps(x + i)));
    if (i < n) {
        float tail[8] = {0};
        memcpy(tail, x + i, (n - i) * sizeof *x);
        _mm256_storeu_ps(tail, exp8(_mm256_loadu_ps(tail)));
        memcpy(x + i, tail, (n - i) * sizeof *x);
    }
}

static float max_row(const float *x, size_t n)
{
    __m256 a = _mm256_set1_ps(-INFINITY), b = a;
    size_t i = 0;

    /* max(x, m) gives m when x is NaN: NaN is ignored, like in the reference */
    for (; i + 16 <= n; i += 16) {
        a = _mm256_max_ps(_mm256_loadu_ps(x + i), a);
        b = _mm256_max_ps(_mm256_loadu_ps(x + i + 8), b);
    }
    float max = max8(_mm256_max_ps(a, b));
    for (; i < n; i++)
        max = x[i] > max ? x[i] : max;
    return max;
}

static void softmax(float *x, size_t n)
{
    float max = max_row(x, n);
    __m256 m = _mm256_set1_ps(max), a = _mm256_setzero_ps(), b = a;
    size_t i = 0;

    for (; i + 16 <= n; i += 16) {
        __m256 ea = exp8(_mm256_sub_ps(_mm256_loadu_ps(x + i), m));
        __m256 eb = exp8(_mm256_sub_ps(_mm256_loadu_ps(x + i + 8), m));
        _mm256_storeu_ps(x + i, ea);
        _mm256_storeu_ps(x + i + 8, eb);
        a = _mm256_add_ps(a, ea);
        b = _mm256_add_ps(b, eb);
    }
    if (i < n) {
        float tail[16] = {0}, e[16];
        memcpy(tail, x + i, (n - i) * sizeof *x);
        _mm256_storeu_ps(e, exp8(_mm256_sub_ps(_mm256_loadu_ps(tail), m)));
        _mm256_storeu_ps(e + 8, exp8(_mm256_sub_ps(_mm256_loadu_ps(tail + 8), m)));
        memcpy(x + i, e, (n - i) * sizeof *x);
        memset(e + (n - i), 0, (16 - (n - i)) * sizeof *e);
        a = _mm256_add_ps(a, _mm256_loadu_ps(e));
        b = _mm256_add_ps(b, _mm256_loadu_ps(e + 8));
    }
    float sum = tree16(a, b);
    __m256 s = _mm256_set1_ps(sum);
    for (i = 0; i + 8 <= n; i += 8)
        _mm256_storeu_ps(x + i, _mm256_div_ps(_mm256_loadu_ps(x + i), s));
    for (; i < n; i++)
        x[i] = x[i] / sum;
}

/* ---- one operation per element ---- */

static void add(float *y, const float *x, size_t n)
{
    size_t i = 0;

    for (; i + 8 <= n; i += 8)
        _mm256_storeu_ps(y + i, _mm256_add_ps(_mm256_loadu_ps(y + i), _mm256_loadu_ps(x + i)));
    for (; i < n; i++)
        y[i] = y[i] + x[i];
}

static void scale_row(float *y, float s, size_t n)
{
    __m256 v = _mm256_set1_ps(s);
    size_t i = 0;

    for (; i + 8 <= n; i += 8)
        _mm256_storeu_ps(y + i, _mm256_mul_ps(_mm256_loadu_ps(y + i), v));
    for (; i < n; i++)
        y[i] = y[i] * s;
}

/* fmsub(a, c, t) is fma(a, c, -t): one rounding, same bits. */
static void rope_halves(float *a, float *b, size_t n, const float *cos, const float *sin)
{
    size_t i = 0;

    for (; i + 8 <= n; i += 8) {
        __m256 va = _mm256_loadu_ps(a + i), vb = _mm256_loadu_ps(b + i);
        __m256 c = _mm256_loadu_ps(cos + i), s = _mm256_loadu_ps(sin + i);
        _mm256_storeu_ps(a + i, _mm256_fmsub_ps(va, c, _mm256_mul_ps(vb, s)));
        _mm256_storeu_ps(b + i, _mm256_fmadd_ps(va, s, _mm256_mul_ps(vb, c)));
    }
    for (; i < n; i++) {
        float x = a[i], y = b[i];
        a[i] = fmaf(x, cos[i], -(y * sin[i]));
        b[i] = fmaf(x, sin[i], y * cos[i]);
    }
}

static void rope_pairs(float *v, size_t n, const float *cos, const float *sin)
{
    size_t i = 0;

    for (; i + 4 <= n; i += 4) {
        __m256 x = _mm256_loadu_ps(v + 2 * i);
        __m128 c = _mm_loadu_ps(cos + i), s = _mm_loadu_ps(sin + i);
        __m128 cs0 = _mm_unpacklo_ps(c, s), cs1 = _mm_unpackhi_ps(c, s);
        __m256 cs = _mm256_set_m128(cs1, cs0);   /* c0 s0 c1 s1 ... */
        __m256 sc = _mm256_permute_ps(cs, 0xB1); /* s0 c0 s1 c1 ... */
        __m256 t = _mm256_mul_ps(_mm256_movehdup_ps(x), sc);
        _mm256_storeu_ps(v + 2 * i, _mm256_fmaddsub_ps(_mm256_moveldup_ps(x), cs, t));
    }
    for (; i < n; i++) {
        float a = v[2 * i], b = v[2 * i + 1];
        v[2 * i] = fmaf(a, cos[i], -(b * sin[i]));
        v[2 * i + 1] = fmaf(a, sin[i], b * cos[i]);
    }
}

static void rope(float *x, size_t stride, size_t n_heads, size_t n_pairs, const float *cos,
                 const float *sin, bool interleaved)
{
    for (size_t h = 0; h < n_heads; h++) {
        if (interleaved)
            rope_pairs(x + h * stride, n_pairs, cos, sin);
        else
            rope_halves(x + h * stride, x + h * stride + n_pairs, n_pairs, cos, sin);
    }
}

/* ---- conversions ---- */

/* f16_from_f32() or bf16_from_f32() of 8 values; adds the finite ones that became infinite. */
ALWAYS_INLINE __m128i encode8(enum dtype dtype, __m256 x, size_t *overflows)
{
    __m256i bits = _mm256_castps_si256(x);
    __m256i magnitude = _mm256_and_si256(bits, _mm256_set1_epi32(0x7FFFFFFF));
    __m256i infinity = _mm256_set1_epi32(0x7F800000);
    /* smallest magnitude that rounds to infinity, less 1: 65520 and 2^128 - 2^119 */
    __m256i limit = _mm256_set1_epi32(dtype == DTYPE_F16 ? 0x477FEFFF : 0x7F7F7FFF);
    __m256i over = _mm256_and_si256(_mm256_cmpgt_epi32(magnitude, limit),
                                    _mm256_cmpgt_epi32(infinity, magnitude));
    int mask = _mm256_movemask_ps(_mm256_castsi256_ps(over));
    if (__builtin_expect(mask != 0, 0))
        *overflows += (size_t)__builtin_popcount((unsigned)mask);
    if (dtype == DTYPE_F16)
        return _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);

    __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    __m256i rounded = _mm256_srli_epi32(
        _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7FFF)), odd), 16);
    __m256i quiet = _mm256_or_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(0x40));
    __m256i nan = _mm256_cmpgt_epi32(magnitude, infinity);
    __m256i h = _mm256_blendv_epi8(rounded, quiet, nan);
    h = _mm256_permute4x64_epi64(_mm256_packus_epi32(h, h), 0x08);
    return _mm256_castsi256_si128(h);
}

ALWAYS_INLINE size_t encode_half(enum dtype dtype, void *dst, const float *src, size_t n)
{
    char *out = dst;
    size_t overflows = 0, i = 0;

    for (; i + 8 <= n; i += 8)
        _mm_storeu_si128((void *)(out + 2 * i),
                         encode8(dtype, _mm256_loadu_ps(src + i), &overflows));
    if (i < n) {
        float tail[8] = {0};
        memcpy(tail, src + i, (n - i) * sizeof *src);
        __m128i h = encode8(dtype, _mm256_loadu_ps(tail), &overflows);
        memcpy(out + 2 * i, &h, (n - i) * 2);
    }
    return overflows;
}

ALWAYS_INLINE void decode_half(enum dtype dtype, float *dst, const void *src, size_t n)
{
    size_t i = 0;

    for (; i + 8 <= n; i += 8)
        _mm256_storeu_ps(dst + i, load8(dtype, src, i));
    if (i < n) {
        uint16_t tail[8] = {0};
        float x[8];
        memcpy(tail, (const char *)src + 2 * i, (n - i) * 2);
        _mm256_storeu_ps(x, load8(dtype, tail, 0));
        memcpy(dst + i, x, (n - i) * sizeof *x);
    }
}

static void decode_f16(float *dst, const void *src, size_t n)
{
    decode_half(DTYPE_F16, dst, src, n);
}

static void decode_bf16(float *dst, const void *src, size_t n)
{
    decode_half(DTYPE_BF16, dst, src, n);
}

static size_t encode_f16(void *dst, const float *src, size_t n)
{
    return encode_half(DTYPE_F16, dst, src, n);
}

static size_t encode_bf16(void *dst, const float *src, size_t n)
{
    return encode_half(DTYPE_BF16, dst, src, n);
}

/* ---- one position into a KV page ---- */

ALWAYS_INLINE size_t kv_store_half(enum dtype dtype, void *k_page, void *v_page, size_t p,
                                   size_t head_dim, const float *k, const float *v)
{
    uint16_t *column = (uint16_t *)k_page + p;
    size_t overflows = 0, d = 0;
    uint16_t h[8];

    for (; d < head_dim; d += 8) {
        size_t n = head_dim - d < 8 ? head_dim - d : 8;
        overflows += encode_half(dtype, h, k + d, n);
        for (size_t j = 0; j < n; j++)
            column[(d + j) * KERNEL_KV_CHUNK] = h[j];
    }
    return overflows + encode_half(dtype, (uint16_t *)v_page + p * head_dim, v, head_dim);
}

static size_t kv_store_f16(void *k_page, void *v_page, size_t p, size_t head_dim, const float *k,
                           const float *v)
{
    return kv_store_half(DTYPE_F16, k_page, v_page, p, head_dim, k, v);
}

static size_t kv_store_bf16(void *k_page, void *v_page, size_t p, size_t head_dim, const float *k,
                            const float *v)
{
    return kv_store_half(DTYPE_BF16, k_page, v_page, p, head_dim, k, v);
}

/* The F32 conversions and store are copies: the reference's stay. */
void kernels_init_x86_rows(struct kernels *k)
{
    k->quantize_a32 = quantize_a32;
    k->rms_norm = rms_norm;
    k->silu_mul = silu_mul;
    k->softmax = softmax;
    k->exp = exp_rows;
    k->add = add;
    k->scale = scale_row;
    k->rope = rope;
    k->decode[DTYPE_F16] = decode_f16;
    k->decode[DTYPE_BF16] = decode_bf16;
    k->encode[DTYPE_F16] = encode_f16;
    k->encode[DTYPE_BF16] = encode_bf16;
    k->kv_store[DTYPE_F16] = kv_store_f16;
    k->kv_store[DTYPE_BF16] = kv_store_bf16;
}
