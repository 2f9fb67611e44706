/* The instruction mixes of mixes.h in AVX2 and FMA; the only file here built with those flags.
 *
 * Why the empty asm statements: they tell the compiler that an operand changed, so that it neither
 * hoists a multiplication out of the loop nor merges two equal ones. They emit no instruction.
 * Why these accumulator counts: latency times throughput asks for 8 to 10 independent chains, and
 * 16 registers hold no more once the operands are in place. */
#include "mixes.h"

#include <immintrin.h>

#define OPAQUE(v) __asm__ volatile("" : "+x"(v))

enum { READ_LINE_BYTES = 64, READ_AHEAD_BYTES = 1024 };

static uint64_t fold(__m256i v)
{
    uint64_t lanes[4];

    _mm256_storeu_si256((__m256i *)(void *)lanes, v);
    return lanes[0] ^ lanes[1] ^ lanes[2] ^ lanes[3];
}

static __m256i small_bytes(uint64_t seed)
{
    return _mm256_set1_epi8((char)(1 + (seed & 3)));
}

/* 4-bit weights: 8 steps of vpmaddubsw + vpaddw (vpmaddubsw alone in the first), then one vpmaddwd
 * and vpaddd, in 6 chains. 15 * 127 * 2 * 8 fits 16 bits. */
static uint64_t run_u4_acc16(uint64_t rounds, uint64_t seed)
{
    enum { CHAINS = 6, STEPS = 8 };
    __m256i acc[CHAINS];
    __m256i w = small_bytes(seed);
    __m256i x = small_bytes(seed + 1);
    __m256i ones = _mm256_set1_epi16(1);
    __m256i sum = _mm256_setzero_si256();
    uint64_t r;
    int c;
    int s;

    for (c = 0; c < CHAINS; c++)
        acc[c] = _mm256_setzero_si256();
    for (r = 0; r < rounds; r++) {
        __m256i part[CHAINS];

#pragma GCC unroll 8
        for (s = 0; s < STEPS; s++) {
#pragma GCC unroll 6
            for (c = 0; c < CHAINS; c++) {
                __m256i p;

                OPAQUE(x);
                p = _mm256_maddubs_epi16(w, x);
                part[c] = s == 0 ? p : _mm256_add_epi16(part[c], p);
            }
        }
#pragma GCC unroll 6
        for (c = 0; c < CHAINS; c++)
            acc[c] = _mm256_add_epi32(acc[c], _mm256_madd_epi16(part[c], ones));
    }
    for (c = 0; c < CHAINS; c++)
        sum = _mm256_add_epi32(sum, acc[c]);
    return fold(sum);
}

/* Unsigned times signed bytes, widened at once: vpmaddubsw + vpmaddwd + vpaddd in 10 chains. */
static uint64_t run_u8_acc32(uint64_t rounds, uint64_t seed)
{
    enum { CHAINS = 10 };
    __m256i acc[CHAINS];
    __m256i w = small_bytes(seed);
    __m256i x = small_bytes(seed + 1);
    __m256i ones = _mm256_set1_epi16(1);
    __m256i sum = _mm256_setzero_si256();
    uint64_t r;
    int c;

    for (c = 0; c < CHAINS; c++)
        acc[c] = _mm256_setzero_si256();
    for (r = 0; r < rounds; r++) {
#pragma GCC unroll 10
        for (c = 0; c < CHAINS; c++) {
            OPAQUE(x);
            acc[c] = _mm256_add_epi32(acc[c], _mm256_madd_epi16(_mm256_maddubs_epi16(w, x), ones));
        }
    }
    for (c = 0; c < CHAINS; c++)
        sum = _mm256_add_epi32(sum, acc[c]);
    return fold(sum);
}

/* Signed times signed bytes by moving the weight's sign to the activation, Q8_0 style:
 * vpsignb twice (|w|, x with w's sign), vpmaddubsw, vpmaddwd, vpaddd, in 10 chains. */
static uint64_t run_s8_sign(uint64_t rounds, uint64_t seed)
{
    enum { CHAINS = 10 };
    __m256i acc[CHAINS];
    __m256i w = small_bytes(seed);
    __m256i x = small_bytes(seed + 1);
    __m256i ones = _mm256_set1_epi16(1);
    __m256i sum = _mm256_setzero_si256();
    uint64_t r;
    int c;

    for (c = 0; c < CHAINS; c++)
        acc[c] = _mm256_setzero_si256();
    for (r = 0; r < rounds; r++) {
#pragma GCC unroll 10
        for (c = 0; c < CHAINS; c++) {
            __m256i magnitude;
            __m256i flipped;

            OPAQUE(x);
            OPAQUE(w);
            magnitude = _mm256_sign_epi8(w, w);
            flipped = _mm256_sign_epi8(x, w);
            acc[c] = _mm256_add_epi32(
                acc[c], _mm256_madd_epi16(_mm256_maddubs_epi16(magnitude, flipped), ones));
        }
    }
    for (c = 0; c < CHAINS; c++)
        sum = _mm256_add_epi32(sum, acc[c]);
    return fold(sum);
}

/* 16-bit operands: vpmaddwd + vpaddd in 12 chains. */
static uint64_t run_s16(uint64_t rounds, uint64_t seed)
{
    enum { CHAINS = 12 };
    __m256i acc[CHAINS];
    __m256i w = _mm256_set1_epi16((short)(1 + (seed & 3)));
    __m256i x = _mm256_set1_epi16((short)(2 + (seed & 3)));
    __m256i sum = _mm256_setzero_si256();
    uint64_t r;
    int c;

    for (c = 0; c < CHAINS; c++)
        acc[c] = _mm256_setzero_si256();
    for (r = 0; r < rounds; r++) {
#pragma GCC unroll 12
        for (c = 0; c < CHAINS; c++) {
            OPAQUE(x);
            acc[c] = _mm256_add_epi32(acc[c], _mm256_madd_epi16(w, x));
        }
    }
    for (c = 0; c < CHAINS; c++)
        sum = _mm256_add_epi32(sum, acc[c]);
    return fold(sum);
}

/* vfmadd on f32 in 12 chains. */
static uint64_t run_f32_fma(uint64_t rounds, uint64_t seed)
{
    enum { CHAINS = 12 };
    __m256 acc[CHAINS];
    __m256 w = _mm256_set1_ps(0.5F + (float)(seed & 3));
    __m256 x = _mm256_set1_ps(1e-9F);
    __m256 sum = _mm256_setzero_ps();
    uint64_t r;
    int c;

    for (c = 0; c < CHAINS; c++)
        acc[c] = _mm256_setzero_ps();
    for (r = 0; r < rounds; r++) {
#pragma GCC unroll 12
        for (c = 0; c < CHAINS; c++)
            acc[c] = _mm256_fmadd_ps(w, x, acc[c]);
        OPAQUE(x);
    }
    for (c = 0; c < CHAINS; c++)
        sum = _mm256_add_ps(sum, acc[c]);
    return fold(_mm256_castps_si256(sum));
}

const struct mix *mixes_table(void)
{
    static const struct mix table[MIX_COUNT] = {
        {"u4_acc16", "8 x (vpmaddubsw + vpaddw) + vpmaddwd + vpaddd", run_u4_acc16,
         2.0 * 32 * 8 * 6},
        {"u8_acc32", "vpmaddubsw + vpmaddwd + vpaddd", run_u8_acc32, 2.0 * 32 * 10},
        {"s8_sign", "2 x vpsignb + vpmaddubsw + vpmaddwd + vpaddd", run_s8_sign, 2.0 * 32 * 10},
        {"s16", "vpmaddwd + vpaddd", run_s16, 2.0 * 16 * 12},
        {"f32_fma", "vfmadd", run_f32_fma, 2.0 * 8 * 12},
    };

    return table;
}

/* One 64-byte line of each stream per step, into two accumulators per stream. */
static inline __attribute__((always_inline)) uint64_t read_streams(const char *data, size_t bytes,
                                                                   const int streams)
{
    __m256i acc[8];
    __m256i sum = _mm256_setzero_si256();
    const size_t part = bytes / (size_t)streams;
    size_t at;
    int s;

    for (s = 0; s < 8; s++)
        acc[s] = _mm256_setzero_si256();
    for (at = 0; at < part; at += READ_LINE_BYTES) {
        for (s = 0; s < streams; s++) {
            const char *line = data + (size_t)s * part + at;

            _mm_prefetch(line + READ_AHEAD_BYTES, _MM_HINT_T0);
            acc[2 * s] = _mm256_add_epi64(acc[2 * s],
                                          _mm256_load_si256((const __m256i *)(const void *)line));
            acc[2 * s + 1] = _mm256_add_epi64(
                acc[2 * s + 1],
                _mm256_load_si256((const __m256i *)(const void *)(line + READ_LINE_BYTES / 2)));
        }
    }
    for (s = 0; s < 8; s++)
        sum = _mm256_add_epi64(sum, acc[s]);
    return fold(sum);
}

uint64_t mixes_read(const void *data, size_t bytes, int streams)
{
    switch (streams) {
    case 4:
        return read_streams(data, bytes, 4);
    case 2:
        return read_streams(data, bytes, 2);
    default:
        return read_streams(data, bytes, 1);
    }
}
