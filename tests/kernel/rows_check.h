/* What the row, attention and math tests share: inputs that hurt, buffers that notice every stray
 * access, comparison by bits. */
#ifndef TESTS_KERNEL_ROWS_CHECK_H
#define TESTS_KERNEL_ROWS_CHECK_H

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "kernel/kernel.h"
#include "tensor/half.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <sys/mman.h>

/* ---- inputs ---- */

static inline uint64_t rng_next(uint64_t *state)
{
    uint64_t z = (*state += 0x9E3779B97F4A7C15u);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
}

/* [0, 1) */
static inline double rng_unit(uint64_t *state)
{
    return (double)(rng_next(state) >> 11) * 0x1p-53;
}

/* Sum of 12 uniforms: close to a standard normal, without libm. */
static inline float rng_normal(uint64_t *state)
{
    double sum = -6;
    for (int i = 0; i < 12; i++)
        sum += rng_unit(state);
    return (float)sum;
}

enum pattern {
    PATTERN_NORMAL,  /* standard normal */
    PATTERN_WIDE,    /* any finite bits */
    PATTERN_TINY,    /* denormals and zeros of both signs */
    PATTERN_ZERO,    /* zeros of both signs */
    PATTERN_SPARSE,  /* normal with a few special values */
    PATTERN_SPECIAL, /* nothing but special values */
    PATTERN_COUNT,
};

static inline float special_value(uint64_t *state)
{
    static const float SPECIAL[] = {
        0.0f,        -0.0f,     INFINITY,   -INFINITY, NAN,      FLT_MAX,  -FLT_MAX,
        FLT_MIN,     0x1p-149f, -0x1p-149f, 0x1p-126f, -88.0f,   88.7f,    -87.34f,
        65504.0f,    65519.9f,  65520.0f,   1.0f,      0x1p-24f, 0x1p-25f, -0x1.8p-25f,
        3.3895e+38f, 0x1p-119f, 0x1p-120f,  126.5f,    127.0f};
    return SPECIAL[rng_next(state) % (sizeof SPECIAL / sizeof SPECIAL[0])];
}

static inline float pattern_value(enum pattern pattern, uint64_t *state)
{
    uint32_t bits = (uint32_t)rng_next(state);
    switch (pattern) {
    case PATTERN_WIDE:
        return f32_from_bits((bits & 0x7F800000u) == 0x7F800000u ? bits ^ 0x10000000u : bits);
    case PATTERN_TINY:
        return f32_from_bits(bits & (bits & 0x700u ? 0x807FFFFFu : 0x80000000u));
    case PATTERN_ZERO:
        return bits & 1u ? 0.0f : -0.0f;
    case PATTERN_SPARSE:
        return bits % 64 == 0 ? special_value(state) : rng_normal(state);
    case PATTERN_SPECIAL:
        return special_value(state);
    default:
        return rng_normal(state);
    }
}

static inline void pattern_fill(float *x, size_t n, enum pattern pattern, uint64_t *state)
{
    for (size_t i = 0; i < n; i++)
        x[i] = pattern_value(pattern, state);
}

/* ---- buffers ---- */

/* `n_bytes` at data; `shift` bytes behind it begins a page that cannot be touched. What lies before
 * data (64 bytes at least) and the shift hold a known byte. */
struct guarded {
    unsigned char *map;
    size_t map_bytes, before, shift;
    void *data;
    size_t n_bytes;
};

enum { GUARD_BYTE = 0xA5, GUARD_PAGE = 4096 };

static inline void *guarded_init(struct guarded *g, size_t n_bytes, size_t shift)
{
    size_t inside = (n_bytes + shift + 64 + GUARD_PAGE - 1) / GUARD_PAGE * GUARD_PAGE;
    g->map_bytes = inside + GUARD_PAGE;
    g->map = mmap(NULL, g->map_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(g->map != MAP_FAILED);
    assert_int_equal(mprotect(g->map + inside, GUARD_PAGE, PROT_NONE), 0);
    memset(g->map, GUARD_BYTE, inside);
    g->before = inside - n_bytes - shift;
    g->shift = shift;
    g->n_bytes = n_bytes;
    g->data = g->map + g->before;
    return g->data;
}

/* Fails the test when a byte around the data changed. */
static inline void guarded_fini(struct guarded *g)
{
    for (size_t i = 0; i < g->before; i++)
        assert_int_equal(g->map[i], GUARD_BYTE);
    for (size_t i = 0; i < g->shift; i++)
        assert_int_equal(g->map[g->before + g->n_bytes + i], GUARD_BYTE);
    assert_int_equal(munmap(g->map, g->map_bytes), 0);
}

/* ---- comparison ---- */

static inline bool same_float(float a, float b)
{
    return f32_to_bits(a) == f32_to_bits(b) || (a != a && b != b);
}

static inline void assert_same_floats(const float *got, const float *want, size_t n,
                                      const char *what, size_t size, int pattern)
{
    for (size_t i = 0; i < n; i++)
        if (!same_float(got[i], want[i]))
            fail_msg("%s, n = %zu, pattern %d: element %zu is %a, the reference says %a", what,
                     size, pattern, i, (double)got[i], (double)want[i]);
}

/* |got - want| in units of the last place of want as a float of 24 bits (or a double of 53). */
static inline double error_ulp(long double got, long double want, int digits)
{
    int exponent;
    if (want == 0)
        return got == 0 ? 0 : 1e9;
    (void)frexpl(want, &exponent);
    return (double)ldexpl(fabsl(got - want), digits - exponent);
}

/* The control half of MXCSR (rounding, FTZ, DAZ, masks): kernels must leave it alone. */
static inline unsigned control_word(void)
{
#if defined(__x86_64__)
    return __builtin_ia32_stmxcsr() & ~0x3Fu;
#else
    return 0;
#endif
}

#endif
