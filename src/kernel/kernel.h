/* The compute kernels: one table of functions per instruction-set level, all levels equal bit for
 * bit.
 *
 * Why here: `device` runs them over threads, tests compare every level with `ref/`. A kernel is
 * single-threaded, never allocates, never fails; it must not know models, files or threads. The
 * exact order of operations of each is part of its contract (docs/numerics.md): vector lanes are
 * outputs, the inner dimension is walked in order, sums across lanes run over 16 virtual lanes and
 * one tree. */
#ifndef KERNEL_KERNEL_H
#define KERNEL_KERNEL_H

#include "base/cpu.h"
#include "tensor/act.h"
#include "tensor/dtype.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    KERNEL_GROUP = 8, /* output columns that are packed together: the lanes of one 256-bit vector */
    KERNEL_KV_CHUNK = 128, /* positions of one attention chunk and of one KV page */
    KERNEL_SUM_LANES = 16, /* virtual lanes of every sum across lanes */
    ATTN_TILE_MAX = 8,     /* queries that an attention kernel keeps scratch for at once */
};

/* ---- packed weights (pack.c; the same layout for all levels) ----
 *
 * A weight matrix [n_cols, k] (row-major in the file: row c holds the k inputs of output c) is
 * repacked into ceil(n_cols / 8) column groups; missing columns of the last group are zero. Group g
 * is contiguous, pack_group_bytes() long. */

/* Bytes of one packed column group of inner size k; 64-byte multiple. k is a multiple of the
 * dtype's block. */
size_t pack_group_bytes(enum dtype dtype, size_t k);

/* Packs one group: n_cols (1..8) file rows starting at src, row_bytes apart, into dst
 * [pack_group_bytes]. src any alignment; dst 64-byte aligned. Exact: no value changes. */
void pack_group(enum dtype dtype, void *dst, const void *src, size_t row_bytes, size_t n_cols,
                size_t k);

/* ---- matmul ---- */

/* One matmul: out[i][c] = sum over j of act[row(i)][j] * w[c][j], for column groups [group_begin,
 * group_end). */
struct matmul_job {
    const void *act;           /* activation rows in the weight's format (tensor/act.h) */
    size_t act_stride;         /* bytes between them */
    const void *const *act_at; /* [n_rows] where each row is; NULL: row i is act's row i */
    size_t n_rows;
    float *out;         /* row i at out + i * out_stride */
    size_t out_stride;  /* floats */
    const void *packed; /* group 0 of the matrix */
    size_t k;
    size_t n_cols; /* of the whole matrix; columns >= n_cols are not written */
    size_t group_begin, group_end;
    const void *next; /* packed group that this thread reads after this job; NULL: not known. Only a
                         hint: fetched as if of this dtype and k, also past its end; never read */
};

/* Order of operations, per output element and independent of everything else:
 * F32/F16/BF16 weights: acc = 0; for j ascending: acc = fma(w[j], x[j], acc).
 * Block formats: acc = 0; for each 32-block b ascending (K types: each 32-sub-block, Q6_K: see
 * docs/numerics.md): acc = fma((float)isum, dw * dx, acc), isum the exact integer dot with the
 * format's integer offset folded in; formats with a minimum add acc = fma(-m or +m as f32, dx *
 * (float)sumx, acc) right after it. */
typedef void matmul_fn(const struct matmul_job *job);

static inline const void *matmul_act_row(const struct matmul_job *job, size_t i)
{
    return job->act_at != NULL ? job->act_at[i] : (const char *)job->act + i * job->act_stride;
}

/* ---- rows ---- */

/* A32 quantisation of x [k] into row (act_row_bytes(ACT_FORMAT_A32, k)). NUMERICS: amax over 32;
 * scale = amax / 127; q = nearest-even(x * (127 / amax)), clamped to +-127; amax 0 gives scale 0.
 * NaN or infinity in a block gives scale NaN and q 0. amax below 2^-119, where 127 / amax or the
 * scale would leave the normal range, counts as 0. Bytes after the sums are not written. */
typedef void quantize_fn(void *row, const float *x, size_t k);

/* out = x / sqrt(mean(x^2) + eps) * w; x, w, out [n]; out may be x. Sum of squares in 16 virtual
 * lanes (lane l: acc = fma(x[i], x[i], acc) for i = l, l+16, ...), then the tree (l with l+8, +4,
 * +2, +1). scale = 1 / sqrtf(sum / n + eps); (x * scale) * w. */
typedef void rms_norm_fn(float *out, const float *x, const float *w, size_t n, float eps);

/* out[i] = silu(gate[i]) * up[i], silu(v) = v / (1 + exp(-v)); out may alias gate. */
typedef void silu_mul_fn(float *out, const float *gate, const float *up, size_t n);

/* Softmax of x [n] in place: max; e = exp(x - max); sum in 16 virtual lanes and one tree; e / sum.
 * NaN or +infinity in x, or nothing but -infinity, makes every output NaN. */
typedef void softmax_fn(float *x, size_t n);

/* x[i] = math_exp(x[i]) */
typedef void exp_fn(float *x, size_t n);

/* y[i] = y[i] + x[i];  y[i] = y[i] * s;  y[i] = y[i] + s * x[i] as one fma is NOT offered: leaf and
 * node are separate roundings. */
typedef void add_fn(float *y, const float *x, size_t n);
typedef void scale_fn(float *y, float s, size_t n);

/* Rotates head vectors in place: n_heads vectors of head_dim, stride apart; the first 2 * n_pairs
 * dims turn. cos, sin [n_pairs] of this position. interleaved: pairs (2i, 2i+1), else (i, i +
 * n_pairs). a' = fma(a, c, -(b * s)); b' = fma(a, s, b * c). */
typedef void rope_fn(float *x, size_t stride, size_t n_heads, size_t n_pairs, const float *cos,
                     const float *sin, bool interleaved);

/* Plain type to f32 rows and back (F32, F16, BF16). encode returns how many finite inputs became
 * infinite. */
typedef void decode_fn(float *dst, const void *src, size_t n);
typedef size_t encode_fn(void *dst, const float *src, size_t n);

/* ---- attention over one chunk of 128 positions ----
 *
 * A KV page holds, for one layer and one kv head, K transposed: k[d][128] and V: v[128][d], in the
 * KV dtype. */
struct attn_job {
    const float *q; /* n_q query vectors [head_dim], q_stride floats apart */
    size_t q_stride;
    size_t n_q;
    size_t head_dim;
    const void *k;              /* [head_dim][128] */
    const void *v;              /* [128][head_dim] */
    const int32_t *begin, *end; /* [n_q] visible positions of this chunk: 0 <= begin <= end <= 128;
                                   empty: query skipped */
    float scale;
    float *scratch; /* attn_scratch_floats(n_q, head_dim) floats; contents undefined after */
    /* running result per query, merged into: */
    float *max; /* [n_q] */
    float *sum; /* [n_q]; 0 means nothing merged yet: max and acc are then written, not read */
    float *acc; /* n_q vectors [head_dim], acc_stride floats apart */
    size_t acc_stride;
};

/* Per query: s[p] = dot * scale, dot = fma over d ascending; m = max over visible; e[p] = exp(s[p]
 * - m); l = sum of e in 16 lanes by p mod 16 (absolute in the chunk) and one tree; o[d] = fma over
 * p ascending of e[p] * v[p][d], from 0. Merge: first chunk: (m, l, o). Later: M' = max(M, m); a =
 * exp(M - M'); b = exp(m - M'); L' = fma(L, a, l * b); O' = fma(O, a, o * b). Invisible positions
 * may hold anything, NaN included: nothing of them reaches a result. */
typedef void attn_fn(const struct attn_job *job);

/* Floats of attn_job.scratch, enough for every level; at most 8 queries' worth however large n_q
 * is. */
size_t attn_scratch_floats(size_t n_q, size_t head_dim);

/* Rounds one position's k and v [head_dim] to the KV dtype and writes them as column p of k_page
 * [head_dim][128] and row p of v_page [128][head_dim]. Returns how many finite values became
 * infinite. */
typedef size_t kv_store_fn(void *k_page, void *v_page, size_t p, size_t head_dim, const float *k,
                           const float *v);

/* ---- the table ---- */

struct kernels {
    enum cpu_level level;
    matmul_fn *matmul[DTYPE_COUNT];
    quantize_fn *quantize_a32;
    rms_norm_fn *rms_norm;
    silu_mul_fn *silu_mul;
    softmax_fn *softmax;
    exp_fn *exp;
    add_fn *add;
    scale_fn *scale;
    rope_fn *rope;
    attn_fn *attn[DTYPE_COUNT];         /* by KV dtype: F32, F16, BF16 */
    decode_fn *decode[DTYPE_COUNT];     /* F32, F16, BF16 */
    encode_fn *encode[DTYPE_COUNT];     /* F32, F16, BF16 */
    kv_store_fn *kv_store[DTYPE_COUNT]; /* by KV dtype: F32, F16, BF16 */
};

/* Fills the table for `level` (or the best below it that this build has). Any thread; const
 * afterwards. */
void kernels_init(struct kernels *k, enum cpu_level level);

/* ---- scalar functions that must be ours (no libm transcendental; kernel/math.c) ---- */

/* exp in f32, error bound in docs/numerics.md; the vector kernels give the same bits. Cut-offs: x
 * > 88.72 -> inf, x < -87.33 -> 0 (results below FLT_MIN are flushed to 0 explicitly, not by mode);
 * NaN -> NaN. */
float math_exp(float x);
float math_log(float x); /* natural logarithm, for perplexity and z-loss */
double math_exp_f64(double x);
double math_log_f64(double x);
double math_pow_f64(double x, double y); /* x > 0; for rope frequencies */
void math_sincos_f64(double x, double *ret_sin,
                     double *ret_cos); /* |x| up to 2^27: angles are position * frequency */
float math_sigmoid(float x);           /* 1 / (1 + exp(-x)) */
float math_tanh(float x);

/* Sum of n floats in 16 virtual lanes (lane l: acc += x[i], i = l, l+16, ...) and the tree. */
float math_sum16(const float *x, size_t n);

#endif
