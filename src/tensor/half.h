/* f16 and bf16 to f32 and back, bit-exact everywhere: nearest-even, denormals kept, NaN stays NaN
 * (quiet).
 *
 * Plain integer code, so that every level and compiler gives the same bits; vector kernels use the
 * F16C instructions, which agree on every input (a test walks all of them). */
#ifndef TENSOR_HALF_H
#define TENSOR_HALF_H

#include <stdint.h>
#include <string.h>

static inline float f32_from_bits(uint32_t bits)
{
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}

static inline uint32_t f32_to_bits(float f)
{
    uint32_t bits;
    memcpy(&bits, &f, sizeof bits);
    return bits;
}

static inline float f16_to_f32(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000u) << 16;
    uint32_t exponent = (h >> 10) & 31u;
    uint32_t mantissa = h & 1023u;

    if (exponent == 31) /* infinity, NaN (made quiet) */
        return f32_from_bits(sign | 0x7F800000u | (mantissa << 13) |
                             (mantissa != 0 ? 0x400000u : 0));
    if (exponent != 0)
        return f32_from_bits(sign | ((exponent + 112u) << 23) | (mantissa << 13));
    if (mantissa == 0)
        return f32_from_bits(sign);
    uint32_t shift =
        (uint32_t)__builtin_clz(mantissa) - 21u; /* denormal: move the top bit to bit 10 */
    return f32_from_bits(sign | ((113u - shift) << 23) | (((mantissa << shift) & 1023u) << 13));
}

static inline uint16_t f16_from_f32(float f)
{
    uint32_t bits = f32_to_bits(f);
    uint32_t sign = (bits >> 16) & 0x8000u;
    uint32_t magnitude = bits & 0x7FFFFFFFu;

    if (magnitude > 0x7F800000u) /* NaN: keep the top mantissa bits, quiet */
        return (uint16_t)(sign | 0x7E00u | ((magnitude >> 13) & 0x1FFu));
    if (magnitude >= 0x47800000u) /* 65536 and up, infinity */
        return (uint16_t)(sign | 0x7C00u);
    if (magnitude < 0x38800000u) { /* denormal in f16: below 2^-14 */
        uint32_t exponent = magnitude >> 23;
        if (exponent < 102) /* below half of the smallest denormal */
            return (uint16_t)sign;
        uint32_t mantissa = (magnitude & 0x7FFFFFu) | 0x800000u;
        uint32_t shift = 126u - exponent; /* 14..24 */
        uint32_t value = mantissa >> shift;
        uint32_t rest = mantissa & ((1u << shift) - 1u);
        uint32_t half = 1u << (shift - 1u);
        value += rest > half || (rest == half && (value & 1u) != 0);
        return (uint16_t)(sign | value);
    }
    uint32_t value = (magnitude - 0x38000000u) >> 13;
    uint32_t rest = magnitude & 0x1FFFu;
    value += rest > 0x1000u || (rest == 0x1000u && (value & 1u) != 0);
    return (uint16_t)(sign |
                      value); /* a carry runs into the exponent, up to infinity, as it should */
}

static inline float bf16_to_f32(uint16_t h)
{
    uint32_t bits = (uint32_t)h << 16;
    if ((bits & 0x7FFFFFFFu) > 0x7F800000u)
        bits |= 0x400000u;
    return f32_from_bits(bits);
}

static inline uint16_t bf16_from_f32(float f)
{
    uint32_t bits = f32_to_bits(f);
    if ((bits & 0x7FFFFFFFu) > 0x7F800000u)
        return (uint16_t)((bits >> 16) | 0x40u);
    return (uint16_t)((bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16);
}

#endif
