/* Row kernels: every level equals the reference bit for bit on inputs that hurt, writes nothing
 * outside its rows, leaves MXCSR alone; the reference keeps its error bound against f64. */
#include "rows_check.h"

#include "base/cpu.h"

#include <stdio.h>

static const size_t SIZES[] = {0,  1,  2,  3,  4,  5,  6,  7,  8,  9,   15,  16,  17,  23,   24,
                               25, 31, 32, 33, 47, 48, 63, 64, 65, 100, 256, 300, 544, 2048, 2053};
enum { N_SIZES = sizeof SIZES / sizeof SIZES[0] };

static struct kernels ref;
static struct kernels fast[CPU_LEVEL_COUNT];
static int n_fast;

static int setup(void **state)
{
    (void)state;
    kernels_init(&ref, CPU_LEVEL_REF);
    for (int level = 1; level <= (int)cpu_best_level(); level++)
        kernels_init(&fast[n_fast++], (enum cpu_level)level);
    return 0;
}

/* Calls body(kernels, size, pattern, shift, seed) for every level, size, pattern and alignment. */
typedef void case_fn(const struct kernels *k, size_t n, enum pattern pattern, size_t shift,
                     uint64_t seed);

static void for_each_case(case_fn *body)
{
    unsigned control = control_word();
    for (int f = 0; f < n_fast; f++)
        for (size_t s = 0; s < N_SIZES; s++)
            for (int pattern = 0; pattern < PATTERN_COUNT; pattern++)
                for (size_t shift = 0; shift <= 12; shift += 4)
                    for (uint64_t seed = 1; seed <= 3; seed++)
                        body(&fast[f], SIZES[s], (enum pattern)pattern, shift, seed);
    assert_int_equal(control_word(), control);
}

/* ---- quantisation ---- */

static void quantize_case(const struct kernels *k, size_t n, enum pattern pattern, size_t shift,
                          uint64_t seed)
{
    struct guarded x, a, b;
    size_t row_bytes = act_blocks(n) * (ACT_BLOCK + 8); /* the row's padding stays untouched too */
    guarded_init(&x, n * 4, shift);
    guarded_init(&a, row_bytes, shift);
    guarded_init(&b, row_bytes, shift);
    pattern_fill(x.data, n, pattern, &seed);

    ref.quantize_a32(a.data, x.data, n);
    k->quantize_a32(b.data, x.data, n);
    size_t codes = act_blocks(n) * ACT_BLOCK;
    assert_memory_equal(a.data, b.data, codes);
    assert_memory_equal(act_a32_sums(a.data, n), act_a32_sums(b.data, n), act_blocks(n) * 4);
    assert_same_floats(act_a32_scales(b.data, n), act_a32_scales(a.data, n), act_blocks(n),
                       "quantize_a32 scale", n, (int)pattern);
    guarded_fini(&x);
    guarded_fini(&a);
    guarded_fini(&b);
}

/* What the contract says of one row, checked without the kernel's formulas. */
static void check_quantized(const void *row, const float *x, size_t n)
{
    const int8_t *q = row;
    for (size_t b = 0; b < act_blocks(n); b++) {
        float scale = act_a32_scales(row, n)[b];
        int32_t sum = 0;
        bool finite = true;
        double amax = 0;
        for (size_t i = b * 32; i < n && i < b * 32 + 32; i++) {
            finite = finite && fabsf(x[i]) < INFINITY;
            amax = fmax(amax, fabs((double)x[i]));
        }
        assert_true(finite ? fabs((double)scale - amax / 127) <= amax / 127 * 0x1p-23 + 0x1p-125
                           : scale != scale);
        for (size_t i = b * 32; i < b * 32 + 32; i++) {
            double value = i < n ? (double)x[i] : 0;
            sum += q[i];
            assert_true(q[i] >= -127);
            if (!finite || i >= n)
                assert_int_equal(q[i], 0);
            else if (amax >= 0x1p-119)
                assert_true(fabs(value - q[i] * (double)scale) <= (double)scale * 0.50002);
        }
        assert_int_equal(act_a32_sums(row, n)[b], sum);
    }
}

static void test_quantize(void **state)
{
    float x[100], half[32];
    _Alignas(64) char row[4 * 40 + 64];
    (void)state;

    for_each_case(quantize_case);
    for (uint64_t seed = 1; seed < 2000; seed++) {
        uint64_t rng = seed;
        size_t n = seed % 101;
        pattern_fill(x, n, (enum pattern)(seed % PATTERN_COUNT), &rng);
        ref.quantize_a32(row, x, n);
        check_quantized(row, x, n);
    }
    /* halves go to the even code; amax 127 makes the scale 1 */
    for (int i = 0; i < 32; i++)
        half[i] = i == 0 ? 127.0f : (float)i - 16.5f;
    ref.quantize_a32(row, half, 32);
    for (int i = 1; i < 32; i++)
        assert_int_equal(row[i], (int)rint(i - 16.5));
    assert_true(act_a32_scales(row, 32)[0] == 1.0f);
}

/* ---- norm, activation, softmax ---- */

static void rms_norm_case(const struct kernels *k, size_t n, enum pattern pattern, size_t shift,
                          uint64_t seed)
{
    struct guarded x, w, a, b;
    guarded_init(&x, n * 4, shift);
    guarded_init(&w, n * 4, shift);
    guarded_init(&a, n * 4, 0);
    guarded_init(&b, n * 4, shift);
    pattern_fill(x.data, n, pattern, &seed);
    pattern_fill(w.data, n, seed % 2 == 0 ? PATTERN_NORMAL : PATTERN_SPARSE, &seed);

    ref.rms_norm(a.data, x.data, w.data, n, 1e-6f);
    k->rms_norm(b.data, x.data, w.data, n, 1e-6f);
    assert_same_floats(b.data, a.data, n, "rms_norm", n, (int)pattern);
    k->rms_norm(x.data, x.data, w.data, n, 1e-6f); /* in place */
    assert_same_floats(x.data, a.data, n, "rms_norm in place", n, (int)pattern);
    guarded_fini(&x);
    guarded_fini(&w);
    guarded_fini(&a);
    guarded_fini(&b);
}

static void silu_mul_case(const struct kernels *k, size_t n, enum pattern pattern, size_t shift,
                          uint64_t seed)
{
    struct guarded gate, up, a, b;
    guarded_init(&gate, n * 4, shift);
    guarded_init(&up, n * 4, shift);
    guarded_init(&a, n * 4, 0);
    guarded_init(&b, n * 4, shift);
    pattern_fill(gate.data, n, pattern, &seed);
    pattern_fill(up.data, n, seed % 2 == 0 ? PATTERN_NORMAL : PATTERN_SPECIAL, &seed);

    ref.silu_mul(a.data, gate.data, up.data, n);
    k->silu_mul(b.data, gate.data, up.data, n);
    assert_same_floats(b.data, a.data, n, "silu_mul", n, (int)pattern);
    k->silu_mul(gate.data, gate.data, up.data, n); /* out is gate */
    assert_same_floats(gate.data, a.data, n, "silu_mul in place", n, (int)pattern);
    guarded_fini(&gate);
    guarded_fini(&up);
    guarded_fini(&a);
    guarded_fini(&b);
}

static void softmax_case(const struct kernels *k, size_t n, enum pattern pattern, size_t shift,
                         uint64_t seed)
{
    struct guarded a, b;
    guarded_init(&a, n * 4, 0);
    guarded_init(&b, n * 4, shift);
    pattern_fill(a.data, n, pattern, &seed);
    if (n > 0)
        memcpy(b.data, a.data, n * 4);

    ref.softmax(a.data, n);
    k->softmax(b.data, n);
    assert_same_floats(b.data, a.data, n, "softmax", n, (int)pattern);
    ref.exp(a.data, n);
    k->exp(b.data, n);
    assert_same_floats(b.data, a.data, n, "exp", n, (int)pattern);
    guarded_fini(&a);
    guarded_fini(&b);
}

static void test_rms_norm(void **state)
{
    (void)state;
    for_each_case(rms_norm_case);
}

static void test_silu_mul(void **state)
{
    (void)state;
    for_each_case(silu_mul_case);
}

static void test_softmax(void **state)
{
    (void)state;
    for_each_case(softmax_case);

    /* a router's 4096 experts and a vocabulary of 262,144 */
    for (size_t n = 4096; n <= 262144; n *= 64) {
        struct guarded a, b;
        uint64_t rng = n;
        guarded_init(&a, n * 4, 0);
        guarded_init(&b, n * 4, 4);
        float *want = a.data, *got = b.data;
        for (size_t i = 0; i < n; i++)
            want[i] = got[i] = 4 * rng_normal(&rng);
        ref.softmax(want, n);
        for (int f = 0; f < n_fast; f++) {
            fast[f].softmax(got, n);
            assert_same_floats(got, want, n, "softmax", n, 0);
        }
        guarded_fini(&a);
        guarded_fini(&b);
    }
}

static void test_softmax_defined(void **state)
{
    float x[3][20];
    (void)state;

    for (int level = -1; level < n_fast; level++) {
        const struct kernels *k = level < 0 ? &ref : &fast[level];
        for (int i = 0; i < 20; i++) {
            x[0][i] = -INFINITY;
            x[1][i] = i == 13 ? NAN : 1;
            x[2][i] = i == 3 ? INFINITY : 1;
        }
        for (int j = 0; j < 3; j++) {
            k->softmax(x[j], 20);
            for (int i = 0; i < 20; i++)
                assert_true(isnan(x[j][i]));
        }
        for (int i = 0; i < 20; i++)
            x[0][i] = i == 18 ? 5 : -INFINITY;
        k->softmax(x[0], 20);
        for (int i = 0; i < 20; i++)
            assert_true(x[0][i] == (i == 18 ? 1.0f : 0.0f));
    }
}

/* ---- one operation per element, rope ---- */

static void add_scale_case(const struct kernels *k, size_t n, enum pattern pattern, size_t shift,
                           uint64_t seed)
{
    struct guarded x, a, b;
    guarded_init(&x, n * 4, shift);
    guarded_init(&a, n * 4, 0);
    guarded_init(&b, n * 4, shift);
    pattern_fill(x.data, n, pattern, &seed);
    pattern_fill(a.data, n, PATTERN_SPARSE, &seed);
    if (n > 0)
        memcpy(b.data, a.data, n * 4);

    ref.add(a.data, x.data, n);
    k->add(b.data, x.data, n);
    assert_same_floats(b.data, a.data, n, "add", n, (int)pattern);
    float s = pattern_value(pattern, &seed);
    ref.scale(a.data, s, n);
    k->scale(b.data, s, n);
    assert_same_floats(b.data, a.data, n, "scale", n, (int)pattern);
    guarded_fini(&x);
    guarded_fini(&a);
    guarded_fini(&b);
}

static void test_add_scale(void **state)
{
    (void)state;
    for_each_case(add_scale_case);
}

/* n pairs; 3 heads, the first with dims behind the rotated ones that stay as they are. */
static void rope_case(const struct kernels *k, size_t n, enum pattern pattern, size_t shift,
                      uint64_t seed)
{
    for (int interleaved = 0; interleaved < 2; interleaved++) {
        struct guarded cos, sin, a, b;
        size_t stride = 2 * n + seed % 3 * 2, total = 2 * stride + 2 * n;
        guarded_init(&cos, n * 4, shift);
        guarded_init(&sin, n * 4, shift);
        guarded_init(&a, total * 4, 0);
        guarded_init(&b, total * 4, shift);
        pattern_fill(cos.data, n, PATTERN_NORMAL, &seed);
        pattern_fill(sin.data, n, PATTERN_NORMAL, &seed);
        pattern_fill(a.data, total, pattern, &seed);
        if (total > 0)
            memcpy(b.data, a.data, total * 4);
        ref.rope(a.data, stride, 3, n, cos.data, sin.data, interleaved);
        k->rope(b.data, stride, 3, n, cos.data, sin.data, interleaved);
        assert_same_floats(b.data, a.data, total, "rope", n, (int)pattern);
        guarded_fini(&cos);
        guarded_fini(&sin);
        guarded_fini(&a);
        guarded_fini(&b);
    }
}

static void test_rope(void **state)
{
    (void)state;
    for_each_case(rope_case);

    /* the pairing, by hand: (1, 2, 3, 4) turned by 90 degrees, the fifth dim stays */
    const float c[2] = {0, 0}, s[2] = {1, 1};
    const float want[2][5] = {{-3, -4, 1, 2, 9}, {-2, 1, -4, 3, 9}};
    for (int interleaved = 0; interleaved < 2; interleaved++) {
        float x[5] = {1, 2, 3, 4, 9};
        ref.rope(x, 5, 1, 2, c, s, interleaved);
        for (int i = 0; i < 5; i++)
            assert_true(x[i] == want[interleaved][i]);
    }
}

/* ---- conversions ---- */

static void convert_case(const struct kernels *k, size_t n, enum pattern pattern, size_t shift,
                         uint64_t seed)
{
    static const enum dtype TYPES[] = {DTYPE_F32, DTYPE_F16, DTYPE_BF16};
    for (int t = 0; t < 3; t++) {
        enum dtype dtype = TYPES[t];
        size_t bytes = n * dtype_block_bytes(dtype);
        struct guarded x, a, b, da, db;
        guarded_init(&x, n * 4, shift);
        guarded_init(&a, bytes, 0);
        guarded_init(&b, bytes, shift / 2);
        guarded_init(&da, n * 4, 0);
        guarded_init(&db, n * 4, shift);
        pattern_fill(x.data, n, pattern, &seed);
        size_t lost = ref.encode[dtype](a.data, x.data, n);
        assert_int_equal(k->encode[dtype](b.data, x.data, n), lost);
        assert_memory_equal(b.data, a.data, bytes);
        ref.decode[dtype](da.data, a.data, n);
        k->decode[dtype](db.data, a.data, n);
        assert_same_floats(db.data, da.data, n, "decode", n, (int)pattern);
        guarded_fini(&x);
        guarded_fini(&a);
        guarded_fini(&b);
        guarded_fini(&da);
        guarded_fini(&db);
    }
}

static void test_convert(void **state)
{
    static const enum dtype HALVES[] = {DTYPE_F16, DTYPE_BF16};
    static uint16_t codes[65536], back[65536];
    static float want[65536], got[65536];
    (void)state;

    for_each_case(convert_case);

    /* every half there is, and every half times 1 +- 1/2 ulp neighbourhoods through f32 */
    for (int t = 0; t < 2; t++) {
        enum dtype dtype = HALVES[t];
        for (size_t i = 0; i < 65536; i++)
            codes[i] = (uint16_t)i;
        ref.decode[dtype](want, codes, 65536);
        for (int f = 0; f < n_fast; f++) {
            fast[f].decode[dtype](got, codes, 65536);
            assert_same_floats(got, want, 65536, "decode", 65536, 0);
            for (uint32_t offset = 0; offset < 0x12000u; offset += 0xFFFu) {
                for (size_t i = 0; i < 65536; i++)
                    got[i] = f32_from_bits(f32_to_bits(want[i]) + offset);
                size_t lost = ref.encode[dtype](codes, got, 65536);
                assert_int_equal(fast[f].encode[dtype](back, got, 65536), lost);
                assert_memory_equal(codes, back, sizeof codes);
            }
            for (size_t i = 0; i < 65536; i++)
                codes[i] = (uint16_t)i;
        }
    }

    const float edge[] = {65504,        65519.9f,         65520,        -65520,
                          1e9f,         INFINITY,         -INFINITY,    NAN,
                          0x1.fep+127f, 0x1.fefffep+127f, 0x1.ffp+127f, FLT_MAX};
    uint16_t h[12];
    for (int level = -1; level < n_fast; level++) {
        const struct kernels *k = level < 0 ? &ref : &fast[level];
        assert_int_equal(k->encode[DTYPE_F16](h, edge, 12), 7);
        assert_int_equal(h[0], 0x7BFF);
        assert_int_equal(h[1], 0x7BFF);
        assert_int_equal(h[2], 0x7C00);
        assert_int_equal(k->encode[DTYPE_BF16](h, edge, 12), 2);
        assert_int_equal(h[9], 0x7F7F);
    }
}

/* ---- the reference against f64 ---- */

/* Standard normal inputs of 2048 (norm), 4096 (silu), softmax of 4 * normal over 128 and 4096. */
static void test_error_bounds(void **state)
{
    enum { N = 4096 };
    static float x[N], w[N], y[N];
    double norm = 0, silu = 0, soft = 0;
    (void)state;

    for (uint64_t seed = 1; seed <= 200; seed++) {
        uint64_t rng = seed;
        pattern_fill(x, N, PATTERN_NORMAL, &rng);
        pattern_fill(w, N, PATTERN_NORMAL, &rng);
        double squares = 0;
        for (int i = 0; i < 2048; i++)
            squares += (double)x[i] * (double)x[i];
        ref.rms_norm(y, x, w, 2048, 1e-5f);
        for (int i = 0; i < 2048; i++) {
            double want = (double)x[i] / sqrt(squares / 2048 + (double)1e-5f) * (double)w[i];
            norm = fmax(norm, fabs((double)y[i] - want) / fabs(want));
        }
        ref.silu_mul(y, x, w, N);
        for (int i = 0; i < N; i++) {
            double want = (double)x[i] / (1 + exp(-(double)x[i])) * (double)w[i];
            silu = fmax(silu, fabs((double)y[i] - want) / fabs(want));
        }
        int n = seed % 2 == 0 ? 128 : N;
        double sum = 0;
        for (int i = 0; i < n; i++) {
            y[i] = x[i] *= 4;
            sum += exp((double)x[i]);
        }
        ref.softmax(y, (size_t)n);
        for (int i = 0; i < n; i++) {
            double want = exp((double)x[i]) / sum;
            soft = fmax(soft, fabs((double)y[i] - want) / want);
        }
    }
    printf("largest relative error: rms_norm %.3g, silu_mul %.3g, softmax %.3g\n", norm, silu,
           soft);
    assert_true(norm < 4e-7);
    assert_true(silu < 4e-7);
    assert_true(soft < 2e-6);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_quantize),
        cmocka_unit_test(test_rms_norm),
        cmocka_unit_test(test_silu_mul),
        cmocka_unit_test(test_softmax),
        cmocka_unit_test(test_softmax_defined),
        cmocka_unit_test(test_add_scale),
        cmocka_unit_test(test_rope),
        cmocka_unit_test(test_convert),
        cmocka_unit_test(test_error_bounds),
    };
    return cmocka_run_group_tests(tests, setup, NULL);
}
