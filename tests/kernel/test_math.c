/* Our own exp, log, pow, sin, cos against libm in higher precision; the vector exp against the
 * scalar one. `test_math all` walks all 2^32 floats (two minutes), else every 509th. */
#include "rows_check.h"

#include <stdio.h>

static uint64_t float_step = 509;

/* Every level's exp equals math_exp bit for bit; math_exp against f64. */
static void test_exp(void **state)
{
    struct kernels k[CPU_LEVEL_COUNT];
    double worst = 0;
    float worst_at = 0;
    (void)state;

    for (int level = 0; level <= (int)cpu_best_level(); level++)
        kernels_init(&k[level], (enum cpu_level)level);
    for (uint64_t first = 0; first < 1ull << 32; first += 64 * float_step) {
        float x[64], want[64], got[64];
        for (size_t i = 0; i < 64; i++) {
            x[i] = f32_from_bits((uint32_t)(first + i * float_step));
            want[i] = math_exp(x[i]);
            if (want[i] > 0 && want[i] < INFINITY) {
                double e = exp((double)x[i]);
                /* e is positive: its ulp from the exponent bits, as frexp is slow */
                uint64_t bits;
                memcpy(&bits, &e, sizeof bits);
                bits = (bits & 0x7FF0000000000000u) - (23ull << 52);
                double ulp;
                memcpy(&ulp, &bits, sizeof ulp);
                double error = fabs(e - (double)want[i]) / ulp;
                if (error > worst) {
                    worst = error;
                    worst_at = x[i];
                }
            } else if (x[i] == x[i]) {
                assert_true(want[i] == 0 ? x[i] < -87.3365f : x[i] > 88.7228f);
            } else {
                assert_true(want[i] != want[i]);
            }
        }
        for (int level = 1; level <= (int)cpu_best_level(); level++) {
            memcpy(got, x, sizeof got);
            k[level].exp(got, 64);
            assert_same_floats(got, want, 64, "exp", 64, 0);
        }
    }
    printf("math_exp: worst error %.4f ulp at %a\n", worst, (double)worst_at);
    assert_true(worst < 1.1);
}

static void test_exp_cut_offs(void **state)
{
    (void)state;
    assert_true(math_exp(0.0f) == 1.0f);
    assert_true(math_exp(-0.0f) == 1.0f);
    assert_true(math_exp(INFINITY) == INFINITY);
    assert_true(math_exp(-INFINITY) == 0.0f);
    assert_true(math_exp(NAN) != math_exp(NAN));
    assert_true(math_exp(0x1.62e42ep+6f) > 0x1.ffp+127f && math_exp(0x1.62e42ep+6f) < INFINITY);
    assert_true(math_exp(nextafterf(0x1.62e42ep+6f, 100)) == INFINITY);
    assert_true(math_exp(-0x1.5d589ep+6f) >= FLT_MIN);
    assert_true(math_exp(nextafterf(-0x1.5d589ep+6f, -100)) == 0.0f);
    assert_true(f32_to_bits(math_exp(-1000.0f)) == 0);
}

static void test_f32_functions(void **state)
{
    double worst_log = 0, worst_sigmoid = 0, worst_tanh = 0;
    (void)state;

    for (uint64_t bits = 0; bits < 1ull << 32; bits += 8 * float_step) {
        float x = f32_from_bits((uint32_t)bits);
        double t = (double)x;
        if (x > 0 && x < INFINITY)
            worst_log = fmax(worst_log, error_ulp(math_log(x), (long double)log(t), 24));
        if (fabs(t) < 87) {
            worst_sigmoid = fmax(worst_sigmoid,
                                 error_ulp(math_sigmoid(x), (long double)(1 / (1 + exp(-t))), 24));
            if (fabs(t) > 0x1p-120)
                worst_tanh = fmax(worst_tanh, error_ulp(math_tanh(x), (long double)tanh(t), 24));
        }
    }
    printf("math_log %.4f ulp, math_sigmoid %.4f ulp, math_tanh %.4f ulp\n", worst_log,
           worst_sigmoid, worst_tanh);
    assert_true(worst_log < 0.51);
    assert_true(worst_sigmoid < 2.5);
    assert_true(worst_tanh < 2.0);

    assert_true(math_log(0.0f) == -INFINITY && math_log(-0.0f) == -INFINITY);
    assert_true(math_log(1.0f) == 0 && math_log(INFINITY) == INFINITY);
    assert_true(isnan(math_log(-1.0f)) && isnan(math_log(NAN)));
    assert_true(math_sigmoid(INFINITY) == 1 && math_sigmoid(-INFINITY) == 0);
    assert_true(math_sigmoid(0.0f) == 0.5f && isnan(math_sigmoid(NAN)));
    assert_true(math_tanh(INFINITY) == 1 && math_tanh(-INFINITY) == -1 && isnan(math_tanh(NAN)));
    assert_true(f32_to_bits(math_tanh(-0.0f)) == 0x80000000u);
}

static void test_f64_exp_log_pow(void **state)
{
    double worst_exp = 0, worst_log = 0, worst_pow = 0, worst_rope = 0;
    uint64_t rng = 1;
    (void)state;

    for (int i = 0; i < 200000; i++) {
        double x = (rng_unit(&rng) - 0.5) * 1400;
        if (fabs(x) < 707)
            worst_exp = fmax(worst_exp, error_ulp(math_exp_f64(x), expl(x), 53));
        x = ldexp(1 + rng_unit(&rng), (int)(rng_next(&rng) % 2000) - 1000);
        worst_log = fmax(worst_log, error_ulp(math_log_f64(x), logl(x), 53));
        double near_one = 1 + (rng_unit(&rng) - 0.5) * 0x1p-8;
        worst_log = fmax(worst_log, error_ulp(math_log_f64(near_one), logl(near_one), 53));
        double y = (rng_unit(&rng) - 0.5) * 2000 / fmax(1, fabs(log(x)));
        if (fabs(y * log(x)) < 700) /* powl itself is good to 11 more bits only */
            worst_pow = fmax(worst_pow, error_ulp(math_pow_f64(x, y), powl(x, y), 53));
        /* rope: base^(-2i / d) */
        double base = 1e4 + rng_unit(&rng) * 1e7, part = -rng_unit(&rng);
        worst_rope = fmax(worst_rope, error_ulp(math_pow_f64(base, part), powl(base, part), 53));
    }
    printf("f64: exp %.4f, log %.4f, pow %.4f (rope frequencies %.4f) ulp\n", worst_exp, worst_log,
           worst_pow, worst_rope);
    assert_true(worst_exp < 1 && worst_log < 0.51 && worst_pow < 1 && worst_rope < 1);

    assert_true(math_exp_f64(710) == INFINITY && math_exp_f64(-746) == 0);
    assert_true(math_exp_f64(-745) > 0 && math_exp_f64(709.78) < INFINITY);
    assert_true(isnan(math_exp_f64(NAN)) && isnan(math_log_f64(NAN)) && isnan(math_log_f64(-1)));
    assert_true(error_ulp(math_log_f64(0x1p-1074), logl(0x1p-1074L), 53) < 0.51);
    assert_true(math_log_f64(1) == 0 && math_log_f64(0) == -INFINITY);
    assert_true(math_pow_f64(10000, 0) == 1 && math_pow_f64(2, 10) == 1024);
    assert_true(math_pow_f64(2, 2000) == INFINITY && math_pow_f64(2, -2000) == 0);
    assert_true(math_pow_f64(1, INFINITY) == 1 && isnan(math_pow_f64(-1, 2)));
}

/* Random angles up to 2^27, doubles next to multiples of pi / 2 among them. */
static void test_f64_sincos(void **state)
{
    double worst = 0;
    uint64_t rng = 2;
    (void)state;

    for (int i = 0; i < 400000; i++) {
        double s, c, x = (rng_unit(&rng) - 0.5) * (i % 3 == 0 ? 6 : i % 3 == 1 ? 2e5 : 0x1p+28);
        if (i % 5 == 0)
            x = (double)(rng_next(&rng) % 80000000) * 1.5707963267948966;
        math_sincos_f64(x, &s, &c);
        worst = fmax(worst, error_ulp(s, sinl(x), 53));
        worst = fmax(worst, error_ulp(c, cosl(x), 53));
        assert_true(fabs(s * s + c * c - 1) < 1e-15);
    }
    printf("f64: sin, cos %.4f ulp\n", worst);
    assert_true(worst < 1);

    double s, c;
    math_sincos_f64(-0.0, &s, &c);
    assert_true(s == 0 && signbit(s) && c == 1);
    math_sincos_f64(INFINITY, &s, &c);
    assert_true(isnan(s) && isnan(c));
    math_sincos_f64(0x1.0000000000001p+27, &s, &c);
    assert_true(isnan(s) && isnan(c));
}

static void test_sum16(void **state)
{
    float x[100];
    uint64_t rng = 3;
    (void)state;

    pattern_fill(x, 100, PATTERN_NORMAL, &rng);
    for (size_t n = 0; n <= 100; n++) {
        float lane[16] = {0};
        for (size_t l = 0; l < 16; l++)
            for (size_t i = l; i < n; i += 16)
                lane[l] += x[i];
        float a[8], b[4];
        for (size_t l = 0; l < 8; l++)
            a[l] = lane[l] + lane[l + 8];
        for (size_t l = 0; l < 4; l++)
            b[l] = a[l] + a[l + 4];
        assert_true(math_sum16(x, n) == (b[0] + b[2]) + (b[1] + b[3]));
    }
    assert_true(f32_to_bits(math_sum16(x, 0)) == 0);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_exp),           cmocka_unit_test(test_exp_cut_offs),
        cmocka_unit_test(test_f32_functions), cmocka_unit_test(test_f64_exp_log_pow),
        cmocka_unit_test(test_f64_sincos),    cmocka_unit_test(test_sum16),
    };
    if (argc > 1 && strcmp(argv[1], "all") == 0)
        float_step = 1;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
