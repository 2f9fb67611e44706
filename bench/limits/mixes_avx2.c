/* The instruction mixes of mixes.h in AVX2 and FMA; the only file here built with those flags.
 *
 * Why inline assembly: written with intrinsics, both compilers reorder and spill these loops, and
 * the figure becomes that of the spills (a third lower). Here each round is exactly the
 * instructions it is named after, in registers.
 * Why these chain counts: latency times throughput asks for 8 to 10 independent chains at most, and
 * 16 registers hold no more once the operands are in place. One temporary register is enough:
 * renaming gives every use of it a register of its own. */
#include "mixes.h"

#include <immintrin.h>

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

static __m256i total(const __m256i *acc, int n)
{
    __m256i sum = _mm256_setzero_si256();
    int c;

    for (c = 0; c < n; c++)
        sum = _mm256_add_epi32(sum, acc[c]);
    return sum;
}

static void clear(__m256i *acc, int n)
{
    int c;

    for (c = 0; c < n; c++)
        acc[c] = _mm256_setzero_si256();
}

/* The operand lists of the loops below: n accumulators, read and written. */
#define ACC6(a)                                                                          \
    [a0] "+x"(a[0]), [a1] "+x"(a[1]), [a2] "+x"(a[2]), [a3] "+x"(a[3]), [a4] "+x"(a[4]), \
        [a5] "+x"(a[5])
#define ACC10(a) ACC6(a), [a6] "+x"(a[6]), [a7] "+x"(a[7]), [a8] "+x"(a[8]), [a9] "+x"(a[9])
#define ACC12(a) ACC10(a), [a10] "+x"(a[10]), [a11] "+x"(a[11])

/* Runs body until the operand n, at least 1, has counted down to 0. */
#define LOOP(body)                           \
    ".p2align 5\n1:\n\t" body "dec %[n]\n\t" \
    "jnz 1b\n\t"

/* One instruction group per chain. */
#define EACH6(G)  G("0") G("1") G("2") G("3") G("4") G("5")
#define EACH10(G) EACH6(G) G("6") G("7") G("8") G("9")
#define EACH12(G) EACH10(G) G("10") G("11")

/* 4-bit weights: 8 steps of vpmaddubsw + vpaddw (vpmaddubsw alone in the first), then one vpmaddwd
 * and vpaddd, in 6 chains. 15 * 127 * 2 * 8 fits 16 bits. */
static uint64_t run_u4_acc16(uint64_t rounds, uint64_t seed)
{
    __m256i acc[6];
    __m256i p[6];
    __m256i t;
    const __m256i w = small_bytes(seed);
    const __m256i x = small_bytes(seed + 1);
    const __m256i ones = _mm256_set1_epi16(1);

#define U4_FIRST(c) "vpmaddubsw %[x], %[w], %[p" c "]\n\t"
#define U4_STEP(c)                    \
    "vpmaddubsw %[x], %[w], %[t]\n\t" \
    "vpaddw %[t], %[p" c "], %[p" c "]\n\t"
#define U4_WIDEN(c)                         \
    "vpmaddwd %[ones], %[p" c "], %[t]\n\t" \
    "vpaddd %[t], %[a" c "], %[a" c "]\n\t"
    clear(acc, 6);
    __asm__ volatile(
        LOOP(EACH6(U4_FIRST) EACH6(U4_STEP) EACH6(U4_STEP) EACH6(U4_STEP) EACH6(U4_STEP)
                 EACH6(U4_STEP) EACH6(U4_STEP) EACH6(U4_STEP) EACH6(U4_WIDEN))
        : [n] "+r"(rounds), ACC6(acc), [p0] "=&x"(p[0]), [p1] "=&x"(p[1]), [p2] "=&x"(p[2]),
          [p3] "=&x"(p[3]), [p4] "=&x"(p[4]), [p5] "=&x"(p[5]), [t] "=&x"(t)
        : [w] "x"(w), [x] "x"(x), [ones] "x"(ones)
        : "cc");
    return fold(total(acc, 6));
}

/* Unsigned times signed bytes, widened at once: vpmaddubsw + vpmaddwd + vpaddd in 10 chains. */
static uint64_t run_u8_acc32(uint64_t rounds, uint64_t seed)
{
    __m256i acc[10];
    __m256i t;
    const __m256i w = small_bytes(seed);
    const __m256i x = small_bytes(seed + 1);
    const __m256i ones = _mm256_set1_epi16(1);

#define U8_STEP(c)                     \
    "vpmaddubsw %[x], %[w], %[t]\n\t"  \
    "vpmaddwd %[ones], %[t], %[t]\n\t" \
    "vpaddd %[t], %[a" c "], %[a" c "]\n\t"
    clear(acc, 10);
    __asm__ volatile(LOOP(EACH10(U8_STEP))
                     : [n] "+r"(rounds), ACC10(acc), [t] "=&x"(t)
                     : [w] "x"(w), [x] "x"(x), [ones] "x"(ones)
                     : "cc");
    return fold(total(acc, 10));
}

/* Signed times signed bytes by moving the weight's sign to the activation, Q8_0 style:
 * vpsignb twice (|w|, x with w's sign), vpmaddubsw, vpmaddwd, vpaddd, in 10 chains. */
static uint64_t run_s8_sign(uint64_t rounds, uint64_t seed)
{
    __m256i acc[10];
    __m256i t;
    __m256i u;
    const __m256i w = small_bytes(seed);
    const __m256i x = small_bytes(seed + 1);
    const __m256i ones = _mm256_set1_epi16(1);

#define S8_STEP(c)                     \
    "vpsignb %[w], %[w], %[t]\n\t"     \
    "vpsignb %[w], %[x], %[u]\n\t"     \
    "vpmaddubsw %[u], %[t], %[t]\n\t"  \
    "vpmaddwd %[ones], %[t], %[t]\n\t" \
    "vpaddd %[t], %[a" c "], %[a" c "]\n\t"
    clear(acc, 10);
    __asm__ volatile(LOOP(EACH10(S8_STEP))
                     : [n] "+r"(rounds), ACC10(acc), [t] "=&x"(t), [u] "=&x"(u)
                     : [w] "x"(w), [x] "x"(x), [ones] "x"(ones)
                     : "cc");
    return fold(total(acc, 10));
}

/* 16-bit operands: vpmaddwd + vpaddd in 12 chains. */
static uint64_t run_s16(uint64_t rounds, uint64_t seed)
{
    __m256i acc[12];
    __m256i t;
    const __m256i w = _mm256_set1_epi16((short)(1 + (seed & 3)));
    const __m256i x = _mm256_set1_epi16((short)(2 + (seed & 3)));

#define S16_STEP(c)                 \
    "vpmaddwd %[x], %[w], %[t]\n\t" \
    "vpaddd %[t], %[a" c "], %[a" c "]\n\t"
    clear(acc, 12);
    __asm__ volatile(LOOP(EACH12(S16_STEP))
                     : [n] "+r"(rounds), ACC12(acc), [t] "=&x"(t)
                     : [w] "x"(w), [x] "x"(x)
                     : "cc");
    return fold(total(acc, 12));
}

/* vfmadd on f32 in 12 chains. */
static uint64_t run_f32_fma(uint64_t rounds, uint64_t seed)
{
    __m256i acc[12];
    const __m256 w = _mm256_set1_ps(0.5F + (float)(seed & 3));
    const __m256 x = _mm256_set1_ps(1e-9F);

#define FMA_STEP(c) "vfmadd231ps %[x], %[w], %[a" c "]\n\t"
    clear(acc, 12);
    __asm__ volatile(LOOP(EACH12(FMA_STEP))
                     : [n] "+r"(rounds), ACC12(acc)
                     : [w] "x"(w), [x] "x"(x)
                     : "cc");
    return fold(total(acc, 12));
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
