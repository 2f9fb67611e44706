/* Unit tests of tensor/half.h: all f16 and bf16 values, the rounding boundary between each two of
 * them, and a walk over all floats against the F16C instructions and the compiler's _Float16. */
#include "../unit.h"

#include "tensor/half.h"

#include <math.h>
#include <stdbool.h>
#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>
#endif

static bool same(float a, float b)
{
    return f32_to_bits(a) == f32_to_bits(b);
}

/* The value of f16 bits by its definition, in f64. */
static double f16_value(unsigned h)
{
    int exponent = (int)(h >> 10 & 31u), mantissa = (int)(h & 1023u);
    double sign = h & 0x8000u ? -1.0 : 1.0;

    if (exponent == 31)
        return mantissa != 0 ? NAN : sign * INFINITY;
    if (exponent == 0)
        return sign * ldexp(mantissa, -24);
    return sign * ldexp(1024 + mantissa, exponent - 25);
}

static void f16_decodes_by_definition_and_back(void **state)
{
    (void)state;
    for (unsigned h = 0; h < 65536; h++) {
        float f = f16_to_f32((uint16_t)h);
        double want = f16_value(h);
        if (isnan(want)) {
            assert_int_equal(f32_to_bits(f),
                             (h & 0x8000u) << 16 | 0x7FC00000u | (h & 0x1FFu) << 13);
            assert_int_equal(f16_from_f32(f), h | 0x200u); /* quiet, payload kept */
        } else {
            assert_true(same(f, (float)want));
            assert_int_equal(f16_from_f32(f), h);
        }
    }
}

static float next_f32(float f, int step)
{
    return f32_from_bits(f32_to_bits(f) + (uint32_t)step); /* away from zero for step 1 */
}

/* Between each two f16 neighbours: the midpoint goes to the even one, the floats beside it to the
 * nearer. */
static void f16_rounds_to_nearest_even(void **state)
{
    (void)state;
    for (unsigned sign = 0; sign < 65536; sign += 32768) {
        for (unsigned h = 0; h < 0x7C00; h++) {
            double lo = f16_value(h), hi = h == 0x7BFF ? 65536.0 : f16_value(h + 1);
            float mid = (float)((lo + hi) / 2); /* exact */
            mid = sign ? -mid : mid;
            assert_int_equal(f16_from_f32(mid), sign | (h & 1u ? h + 1 : h));
            assert_int_equal(f16_from_f32(next_f32(mid, 1)), sign | (h + 1));
            assert_int_equal(f16_from_f32(next_f32(mid, -1)), sign | h);
        }
        uint32_t top = (uint32_t)sign << 16;
        assert_int_equal(f16_from_f32(f32_from_bits(top | 1u)), sign); /* f32 denormals */
        assert_int_equal(f16_from_f32(f32_from_bits(top | 0x7FFFFFu)), sign);
        assert_int_equal(f16_from_f32(f32_from_bits(top | 0x7F7FFFFFu)), sign | 0x7C00u);
        assert_int_equal(f16_from_f32(f32_from_bits(top | 0x7F800000u)), sign | 0x7C00u);
        assert_int_equal(f16_from_f32(f32_from_bits(top | 0x7F800001u)), sign | 0x7E00u);
        assert_int_equal(f16_from_f32(f32_from_bits(top | 0x7FFFFFFFu)), sign | 0x7FFFu);
    }
}

static void bf16_both_ways(void **state)
{
    (void)state;
    for (unsigned h = 0; h < 65536; h++) {
        float f = bf16_to_f32((uint16_t)h);
        bool nan = (h & 0x7FFFu) > 0x7F80u;
        assert_int_equal(f32_to_bits(f), (uint32_t)(nan ? h | 0x40u : h) << 16);
        assert_int_equal(bf16_from_f32(f), nan ? h | 0x40u : h);
        if ((h & 0x7FFFu) >= 0x7F80u)
            continue;
        uint32_t mid = (uint32_t)h << 16 | 0x8000u; /* 0x7F7F rounds up to infinity, as it should */
        assert_int_equal(bf16_from_f32(f32_from_bits(mid)), h & 1u ? h + 1 : h);
        assert_int_equal(bf16_from_f32(f32_from_bits(mid + 1)), h + 1);
        assert_int_equal(bf16_from_f32(f32_from_bits(mid - 1)), h);
    }
    assert_int_equal(bf16_from_f32(f32_from_bits(0x7F800001u)), 0x7FC0);
    assert_int_equal(bf16_from_f32(f32_from_bits(0xFFFFFFFFu)), 0xFFFF);
}

#ifdef FERRY_SANITIZED
enum { STRIDE = 1009 };
#else
enum { STRIDE = 101 };
#endif

#if defined(__x86_64__)
static bool has_f16c(void)
{
    unsigned a, b, c, d;
    return __get_cpuid(1, &a, &b, &c, &d) != 0 && (c & bit_F16C) != 0 &&
           __builtin_cpu_supports("avx");
}

__attribute__((target("f16c"))) static uint16_t f16c_from_f32(float f)
{
    __m128i h = _mm_cvtps_ph(_mm_set_ss(f), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    return (uint16_t)_mm_extract_epi16(h, 0);
}

__attribute__((target("f16c"))) static float f16c_to_f32(uint16_t h)
{
    return _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(h)));
}

/* Bit for bit, NaN payloads included. */
static void agrees_with_f16c(void **state)
{
    (void)state;
    if (!has_f16c())
        skip();
    for (unsigned h = 0; h < 65536; h++)
        assert_int_equal(f32_to_bits(f16_to_f32((uint16_t)h)),
                         f32_to_bits(f16c_to_f32((uint16_t)h)));
    for (uint64_t bits = 0; bits <= UINT32_MAX; bits += STRIDE) {
        float f = f32_from_bits((uint32_t)bits);
        if (f16_from_f32(f) != f16c_from_f32(f))
            fail_msg("f32 %08x: %04x, F16C %04x", (unsigned)bits, f16_from_f32(f),
                     f16c_from_f32(f));
    }
}
#endif

#if defined(__GNUC__) && !defined(__clang__) && defined(__FLT16_MANT_DIG__)
/* The compiler's own conversion (a library routine where the target has no instruction). */
static void agrees_with_the_compiler(void **state)
{
    (void)state;
    for (uint64_t bits = 0; bits <= UINT32_MAX; bits += 4 * STRIDE + 1) {
        float f = f32_from_bits((uint32_t)bits);
        _Float16 v = (_Float16)f;
        uint16_t h;
        memcpy(&h, &v, sizeof h);
        if (f == f && f16_from_f32(f) != h)
            fail_msg("f32 %08x: %04x, compiler %04x", (unsigned)bits, f16_from_f32(f), h);
    }
}
#endif

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(f16_decodes_by_definition_and_back),
        cmocka_unit_test(f16_rounds_to_nearest_even),
        cmocka_unit_test(bf16_both_ways),
#if defined(__x86_64__)
        cmocka_unit_test(agrees_with_f16c),
#endif
#if defined(__GNUC__) && !defined(__clang__) && defined(__FLT16_MANT_DIG__)
        cmocka_unit_test(agrees_with_the_compiler),
#endif
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
