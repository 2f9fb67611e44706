/* The transcendental functions that results depend on: exp, log, pow, sin, cos, sigmoid, tanh.
 *
 * Why here: libm differs between versions and machines, and law 2 wants equal bits, so nothing
 * above calls it. Only IEEE operations and fma are used. The f64 functions feed tables (rope) and
 * reports; they are written for accuracy, not for speed. */
#include "kernel/kernel.h"

#include "kernel/exp.h"
#include "tensor/half.h"

#include <math.h>

/* ---- f32 ---- */

/* Order of operations (the vector kernels repeat it): t = fma(x, log2(e), MAGIC); n = t - MAGIC;
 * r = fma(n, -LN2_HI, x), exact; r = fma(n, -LN2_LO, r); q = Horner by fma from C6 down to C2;
 * p = fma(q, r * r, r); y = 1 + p; the result is y with n added to its exponent, which stays
 * normal: y < 1 at EXP_MAX and y >= 1 at EXP_MIN. Worst error over all floats: 1.0237 ulp, at
 * 0x1.da8bd4p+5 (`test_math all`, against f64 libm; every level's exp gave the same bits). */
float math_exp(float x)
{
    if (x != x)
        return x;
    if (x > EXP_MAX)
        return INFINITY;
    if (x < EXP_MIN)
        return 0.0f;

    float t = fmaf(x, EXP_LOG2E, EXP_MAGIC);
    float n = t - EXP_MAGIC;
    float r = fmaf(n, -EXP_LN2_HI, x);
    r = fmaf(n, -EXP_LN2_LO, r);

    float q = EXP_C6;
    q = fmaf(q, r, EXP_C5);
    q = fmaf(q, r, EXP_C4);
    q = fmaf(q, r, EXP_C3);
    q = fmaf(q, r, EXP_C2);
    float y = 1.0f + fmaf(q, r * r, r);
    return f32_from_bits(f32_to_bits(y) + (f32_to_bits(t) << 23));
}

/* Through the f64 logarithm, rounded once more. */
float math_log(float x)
{
    return (float)math_log_f64((double)x);
}

/* -infinity gives 0, infinity gives 1, NaN gives NaN; below -88.72 the result is 0. */
float math_sigmoid(float x)
{
    return 1.0f / (1.0f + math_exp(-x));
}

/* |x| < 0.55: x + x^3 * P(x^2), P of degree 4 by least squares on Chebyshev nodes (error 0.02 ulp
 * before rounding). Else 1 - 2 / (exp(2|x|) + 1) with the sign of x; it reaches 1 near 9. */
float math_tanh(float x)
{
    float a = fabsf(x);

    if (!(a >= 0.55f)) { /* NaN goes through the polynomial */
        float z = x * x;
        float p = -0x1.9a8aa8p-8f;
        p = fmaf(p, z, 0x1.591d64p-6f);
        p = fmaf(p, z, -0x1.b92442p-5f);
        p = fmaf(p, z, 0x1.110d0ap-3f);
        p = fmaf(p, z, -0x1.55554ap-2f);
        return copysignf(fmaf(p * z, a, a), x);
    }
    return copysignf(1.0f - 2.0f / (math_exp(2.0f * a) + 1.0f), x);
}

float math_sum16(const float *x, size_t n)
{
    float lane[KERNEL_SUM_LANES] = {0};

    for (size_t i = 0; i < n; i++)
        lane[i % KERNEL_SUM_LANES] += x[i];
    for (size_t width = KERNEL_SUM_LANES / 2; width > 0; width /= 2)
        for (size_t l = 0; l < width; l++)
            lane[l] += lane[l + width];
    return lane[0];
}

/* ---- f64: pairs ---- */

/* An unevaluated sum hi + lo, |lo| <= ulp(hi) / 2: about 106 bits. */
struct pair {
    double hi, lo;
};

/* a + b exactly, any order of magnitudes. */
static struct pair two_sum(double a, double b)
{
    double s = a + b;
    double bb = s - a;
    return (struct pair){s, (a - (s - bb)) + (b - bb)};
}

/* a + b exactly when |a| >= |b| or a is 0. */
static struct pair fast_sum(double a, double b)
{
    double s = a + b;
    return (struct pair){s, b - (s - a)};
}

static struct pair pair_mul(struct pair a, struct pair b)
{
    double p = a.hi * b.hi;
    double e = fma(a.hi, b.hi, -p) + (a.hi * b.lo + a.lo * b.hi);
    return fast_sum(p, e);
}

static struct pair pair_add(struct pair a, struct pair b)
{
    struct pair s = two_sum(a.hi, b.hi);
    return fast_sum(s.hi, s.lo + (a.lo + b.lo));
}

static double f64_from_bits(uint64_t bits)
{
    double x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

static uint64_t f64_to_bits(double x)
{
    uint64_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

/* 2^n, -1022 <= n <= 1023 */
static double power_of_two(int n)
{
    return f64_from_bits((uint64_t)(n + 1023) << 52);
}

#define F64_LN2_HI 0x1.62e42fefa3p-1 /* 41 bits: n * F64_LN2_HI is exact for |n| < 4096 */
#define F64_LN2_LO 0x1.3de6af278ece6p-42
#define F64_MAGIC  0x1.8p+52

/* ---- f64: exp, log, pow ---- */

/* exp(x.hi + x.lo). Taylor series to r^14 on |r| <= ln(2) / 2. Denormal results are kept. */
static double exp_pair(struct pair x)
{
    if (x.hi != x.hi)
        return x.hi;
    if (x.hi > 710.0)
        return INFINITY;
    if (x.hi < -746.0)
        return 0.0;

    double n = (x.hi * 0x1.71547652b82fep+0 + F64_MAGIC) - F64_MAGIC;
    double high = fma(n, -F64_LN2_HI, x.hi); /* exact */
    struct pair r = two_sum(high, fma(n, -F64_LN2_LO, x.lo));

    static const double C[] = {
        1.0 / 87178291200, 1.0 / 6227020800, 1.0 / 479001600, 1.0 / 39916800, 1.0 / 3628800,
        1.0 / 362880,      1.0 / 40320,      1.0 / 5040,      1.0 / 720,      1.0 / 120,
        1.0 / 24,          1.0 / 6,          1.0 / 2};
    double q = C[0];
    for (size_t i = 1; i < sizeof C / sizeof C[0]; i++)
        q = fma(q, r.hi, C[i]);
    double y = 1.0 + (r.hi + fma(q, r.hi * r.hi, fma(r.lo, r.hi, r.lo)));

    int e = (int)n;
    return y * power_of_two(e / 2) * power_of_two(e - e / 2); /* only the last product can round */
}

/* log(x) as a pair with a relative error near 2^-66; x positive and finite. x = 2^k * m, m in
 * [sqrt(1/2), sqrt(2)); s = (m - 1) / (m + 1); log(m) = 2 s (1 + z / 3 + z^2 / 5 + ...), z = s^2.
 */
static struct pair log_pair(double x)
{
    int k = 0;
    if (x < 0x1p-1022) {
        x *= 0x1p+54;
        k = -54;
    }
    uint64_t bits = f64_to_bits(x);
    k += (int)(bits >> 52) - 1023;
    double m = f64_from_bits((bits & 0xFFFFFFFFFFFFFu) | 0x3FF0000000000000u);
    if (m > 0x1.6a09e667f3bcdp+0) {
        m *= 0.5;
        k++;
    }

    double f = m - 1.0; /* exact */
    struct pair g = two_sum(m, 1.0);
    struct pair s;
    s.hi = f / g.hi;
    s.lo = (fma(-s.hi, g.hi, f) - s.hi * g.lo) / g.hi;
    struct pair z = pair_mul(s, s);

    double q = 1.0 / 29;
    for (int i = 27; i >= 5; i -= 2) /* IEEE division: the same bits everywhere */
        q = fma(q, z.hi, 1.0 / i);
    struct pair third = {0x1.5555555555555p-2, 0x1.5555555555555p-56};
    struct pair v = pair_mul(z, pair_add(third, (struct pair){z.hi * q, 0}));
    struct pair log_m = pair_add(s, pair_mul(s, v));
    log_m.hi *= 2;
    log_m.lo *= 2;
    if (k == 0)
        return log_m;
    struct pair log_k = fast_sum(k * F64_LN2_HI, k * F64_LN2_LO);
    return pair_add(log_k, log_m);
}

double math_exp_f64(double x)
{
    return exp_pair((struct pair){x, 0});
}

/* 0 gives -infinity, negative numbers and NaN give NaN. */
double math_log_f64(double x)
{
    if (x == 0)
        return -INFINITY;
    if (!(x > 0))
        return NAN;
    if (x == INFINITY)
        return x;
    return log_pair(x).hi;
}

/* x positive and finite, else NaN. */
double math_pow_f64(double x, double y)
{
    if (!(x > 0) || x == INFINITY || y != y)
        return NAN;
    struct pair l = log_pair(x);
    double hi = y * l.hi;
    if (!(fabs(hi) < 1000.0)) /* also 0 * infinity: log(1) = 0 and an infinite y */
        return hi != hi ? 1.0 : hi > 0 ? INFINITY : 0.0;
    return exp_pair(fast_sum(hi, fma(y, l.hi, -hi) + y * l.lo));
}

/* ---- f64: sin, cos ---- */

/* x - n * pi / 2 as a pair. pi / 2 = P1 + P2 + P3 + P4 to 2^-188: P1 has 26 bits, so that n * P1 is
 * exact for |n| < 2^27 and x - n * P1 too; the other products are split exactly by fma. No double
 * up to 2^27 comes closer to a multiple of pi / 2 than about 2^-60, so the pair's relative error
 * stays under 2^-60 without a longer table. */
static struct pair reduce_half_pi(double x, double n)
{
    static const double P1 = 0x1.921fb5p+0, P2 = 0x1.110b4611a6263p-26, P3 = 0x1.8a2e03707344ap-81,
                        P4 = 0x1.024e088a67cc7p-135;
    double r = fma(-n, P1, x);
    double h2 = n * P2, l2 = fma(n, P2, -h2);
    double h3 = n * P3, l3 = fma(n, P3, -h3);
    struct pair a = two_sum(r, -h2);
    struct pair b = two_sum(a.hi, -l2);
    struct pair c = two_sum(b.hi, -h3);
    double lo = ((a.lo + b.lo) + c.lo) - (l3 + n * P4);
    return two_sum(c.hi, lo);
}

/* Taylor series on |r| <= pi / 4: sin to r^17, cos to r^18. NaN for NaN, infinity and |x| > 2^27.
 */
void math_sincos_f64(double x, double *ret_sin, double *ret_cos)
{
    if (!(fabs(x) <= 0x1p+27)) {
        *ret_sin = *ret_cos = NAN;
        return;
    }
    if (x == 0) { /* keeps the sign of zero */
        *ret_sin = x;
        *ret_cos = 1;
        return;
    }
    double n = (x * 0x1.45f306dc9c883p-1 + F64_MAGIC) - F64_MAGIC;
    struct pair r = reduce_half_pi(x, n);

    static const double S[] = {
        1.0 / 355687428096000, -1.0 / 1307674368000, 1.0 / 6227020800, -1.0 / 39916800,
        1.0 / 362880,          -1.0 / 5040,          1.0 / 120,        -1.0 / 6};
    static const double C[] = {
        -1.0 / 6402373705728000, 1.0 / 20922789888000, -1.0 / 87178291200, 1.0 / 479001600,
        -1.0 / 3628800,          1.0 / 40320,          -1.0 / 720,         1.0 / 24};
    double z = r.hi * r.hi;
    double p = S[0], q = C[0];
    for (size_t i = 1; i < sizeof S / sizeof S[0]; i++) {
        p = fma(p, z, S[i]);
        q = fma(q, z, C[i]);
    }
    double half = 0.5 * z;
    double w = 1.0 - half;
    double sin_r = r.hi + fma(p, z * r.hi, r.lo * w);
    double cos_r = w + (((1.0 - w) - half) + fma(q, z * z, -(r.hi * r.lo)));

    switch ((int)n & 3) {
    case 0:
        *ret_sin = sin_r;
        *ret_cos = cos_r;
        break;
    case 1:
        *ret_sin = cos_r;
        *ret_cos = -sin_r;
        break;
    case 2:
        *ret_sin = -sin_r;
        *ret_cos = -cos_r;
        break;
    default:
        *ret_sin = -cos_r;
        *ret_cos = sin_r;
        break;
    }
}
