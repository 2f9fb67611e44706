/* Attention over one chunk with AVX2: the same bits as ref/attn.c.
 *
 * Both products are one small matrix product: scores[q][p] = sum over d of q[d] * K[d][p] and
 * o[q][d] = sum over p of e[p] * V[p][d]. Lanes are outputs (positions, then dims), the inner index
 * ascends, so every output sees exactly the reference's fused multiply-adds. A register tile holds
 * up to 6 queries x 16 outputs or 1 query x 64: a vector of K or V is loaded and converted once for
 * all queries of the tile (those of a head group and of neighbouring tokens).
 *
 * Scores are computed in whole vectors, so lanes of invisible positions may hold garbage; they are
 * replaced before the maximum and the sum, and P.V walks visible positions only. */
#include "kernel/init.h"
#include "kernel/kernel.h"
#include "kernel/x86/simd.h"
#include "tensor/half.h"

enum {
    TILE = 6,
    STEP = 4,   /* rows of K or V between two looks ahead */
    AHEAD = 12, /* rows that a look goes ahead of their use */
};

_Static_assert((int)TILE <= (int)ATTN_TILE_MAX, "scratch is planned for ATTN_TILE_MAX queries");

/* Bytes that the memory is asked for while products run, bit by bit. The first pass over a page
 * reads a part of each row only, a pattern that the hardware does not foresee; and V can come while
 * the scores are computed. Reading ahead changes no result. */
struct ahead {
    const char *next, *stop;
    size_t step_bytes; /* asked for per STEP rows of any product */
};

static inline void look_ahead(struct ahead *ahead, size_t n_bytes)
{
    const char *stop =
        (size_t)(ahead->stop - ahead->next) < n_bytes ? ahead->stop : ahead->next + n_bytes;

    for (; ahead->next < stop; ahead->next += 64)
        _mm_prefetch(ahead->next, _MM_HINT_T0);
    ahead->next = stop;
}

/* c[i][0 .. 8 * nv) += a[i][j] * b[j * stride + 0 .. 8 * nv) for j in [begin, end), i < nq; c
 * starts at 0 when `fresh`. nq, nv, dtype are constants after inlining. */
ALWAYS_INLINE void tile_product(enum dtype dtype, int nq, int nv, float *const *c, size_t column,
                                const float *const *a, const void *b, size_t stride, size_t begin,
                                size_t end, bool fresh, struct ahead *ahead)
{
    __m256 acc[TILE][8];

    UNROLL
    for (int i = 0; i < nq; i++) {
        UNROLL
        for (int v = 0; v < nv; v++)
            acc[i][v] = fresh ? _mm256_setzero_ps() : _mm256_loadu_ps(c[i] + column + 8 * v);
    }
    for (size_t j = begin; j < end;) {
        size_t stop = end;
        if (ahead->next != ahead->stop) {
            look_ahead(ahead, ahead->step_bytes);
            stop = end - j < STEP ? end : j + STEP;
        }
        for (; j < stop; j++) {
            __m256 x[8];
            UNROLL
            for (int v = 0; v < nv; v++)
                x[v] = load8(dtype, b, j * stride + column + 8 * (size_t)v);
            UNROLL
            for (int i = 0; i < nq; i++) {
                __m256 s = _mm256_broadcast_ss(a[i] + j);
                UNROLL
                for (int v = 0; v < nv; v++)
                    acc[i][v] = _mm256_fmadd_ps(s, x[v], acc[i][v]);
            }
        }
    }
    UNROLL
    for (int i = 0; i < nq; i++) {
        UNROLL
        for (int v = 0; v < nv; v++)
            _mm256_storeu_ps(c[i] + column + 8 * v, acc[i][v]);
    }
}

/* The same over columns [first, last) in units of 8, cut into the widest tiles that keep all
 * accumulators in registers. One function per KV dtype. */
#define TILE_CASE(DTYPE, NQ, NV)                                                       \
    case (NQ)*16 + (NV):                                                               \
        tile_product(DTYPE, NQ, NV, c, 8 * v, a, b, stride, begin, end, fresh, ahead); \
        break
#define DEFINE_PRODUCT(NAME, DTYPE)                                                                \
    static void NAME(size_t nq, float *const *c, size_t first, size_t last, const float *const *a, \
                     const void *b, size_t stride, size_t begin, size_t end, bool fresh,           \
                     struct ahead *ahead)                                                          \
    {                                                                                              \
        size_t v = first, nv = nq == 1 ? 8 : nq == 2 ? 4 : 2;                                      \
        while (v < last) {                                                                         \
            while (nv > last - v)                                                                  \
                nv /= 2;                                                                           \
            switch (nq * 16 + nv) {                                                                \
                TILE_CASE(DTYPE, 1, 8);                                                            \
                TILE_CASE(DTYPE, 1, 4);                                                            \
                TILE_CASE(DTYPE, 1, 2);                                                            \
                TILE_CASE(DTYPE, 1, 1);                                                            \
                TILE_CASE(DTYPE, 2, 4);                                                            \
                TILE_CASE(DTYPE, 2, 2);                                                            \
                TILE_CASE(DTYPE, 2, 1);                                                            \
                TILE_CASE(DTYPE, 4, 2);                                                            \
                TILE_CASE(DTYPE, 4, 1);                                                            \
                TILE_CASE(DTYPE, 6, 2);                                                            \
                TILE_CASE(DTYPE, 6, 1);                                                            \
            }                                                                                      \
            v += nv;                                                                               \
        }                                                                                          \
    }

DEFINE_PRODUCT(product_f32, DTYPE_F32)
DEFINE_PRODUCT(product_f16, DTYPE_F16)
DEFINE_PRODUCT(product_bf16, DTYPE_BF16)

static void product(enum dtype dtype, size_t nq, float *const *c, size_t first, size_t last,
                    const float *const *a, const void *b, size_t stride, size_t begin, size_t end,
                    bool fresh, struct ahead *ahead)
{
    if (dtype == DTYPE_F16)
        product_f16(nq, c, first, last, a, b, stride, begin, end, fresh, ahead);
    else if (dtype == DTYPE_BF16)
        product_bf16(nq, c, first, last, a, b, stride, begin, end, fresh, ahead);
    else
        product_f32(nq, c, first, last, a, b, stride, begin, end, fresh, ahead);
}

/* s[begin..end) becomes exp(s * scale - max): returns the maximum and the sum. Lanes of the first
 * and last vector outside the range are kept out of both. */
static void softmax_part(float *s, size_t begin, size_t end, float scale, float *ret_max,
                         float *ret_sum)
{
    const __m256i iota = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    const __m256i before = _mm256_set1_epi32((int)begin - 1), after = _mm256_set1_epi32((int)end);
    const __m256 lowest = _mm256_set1_ps(-INFINITY), factor = _mm256_set1_ps(scale);
    size_t first = begin / 8, last = (end + 7) / 8;
    __m256 visible[KERNEL_KV_CHUNK / 8];
    __m256 max = lowest;

    for (size_t v = first; v < last; v++) {
        __m256i p = _mm256_add_epi32(iota, _mm256_set1_epi32((int)(8 * v)));
        visible[v] = _mm256_castsi256_ps(
            _mm256_and_si256(_mm256_cmpgt_epi32(p, before), _mm256_cmpgt_epi32(after, p)));
        __m256 x = _mm256_mul_ps(_mm256_loadu_ps(s + 8 * v), factor);
        _mm256_storeu_ps(s + 8 * v, x);
        max = _mm256_max_ps(_mm256_blendv_ps(lowest, x, visible[v]), max); /* ignores NaN */
    }
    *ret_max = max8(max);

    __m256 m = _mm256_set1_ps(*ret_max);
    __m256 lane[2] = {_mm256_setzero_ps(), _mm256_setzero_ps()};
    for (size_t v = first; v < last; v++) {
        __m256 e = exp8(_mm256_sub_ps(_mm256_loadu_ps(s + 8 * v), m));
        e = _mm256_and_ps(e, visible[v]);
        _mm256_storeu_ps(s + 8 * v, e);
        lane[v % 2] = _mm256_add_ps(lane[v % 2], e);
    }
    *ret_sum = tree16(lane[0], lane[1]);
}

/* The merge of ref/attn.c. */
static void merge(float *max, float *sum, float *acc, float m, float l, const float *o,
                  size_t head_dim)
{
    if (*sum == 0) {
        *max = m;
        *sum = l;
        memcpy(acc, o, head_dim * sizeof *acc);
        return;
    }
    float larger = m > *max ? m : *max;
    float a = math_exp(*max - larger);
    float b = math_exp(m - larger);
    *max = larger;
    *sum = fmaf(*sum, a, l * b);

    __m256 va = _mm256_set1_ps(a), vb = _mm256_set1_ps(b);
    size_t d = 0;
    for (; d + 8 <= head_dim; d += 8)
        _mm256_storeu_ps(acc + d, _mm256_fmadd_ps(_mm256_loadu_ps(acc + d), va,
                                                  _mm256_mul_ps(_mm256_loadu_ps(o + d), vb)));
    for (; d < head_dim; d++)
        acc[d] = fmaf(acc[d], a, o[d] * b);
}

/* o[i] += e[i][p] * V[p], p in [begin, end), for nq queries. The last dims of a head_dim that is no
 * multiple of 8 go one by one: a vector would read past the row, at last past the page. */
static void weigh_values(const struct attn_job *job, enum dtype dtype, size_t nq, float *const *o,
                         const float *const *e, size_t begin, size_t end, struct ahead *ahead)
{
    size_t head_dim = job->head_dim;

    if (begin >= end)
        return;
    product(dtype, nq, o, 0, head_dim / 8, e, job->v, head_dim, begin, end, false, ahead);
    for (size_t d = head_dim / 8 * 8; d < head_dim; d++) {
        for (size_t i = 0; i < nq; i++) {
            float sum = o[i][d];
            for (size_t p = begin; p < end; p++) {
                size_t at = p * head_dim + d;
                float v = dtype == DTYPE_F32   ? ((const float *)job->v)[at]
                          : dtype == DTYPE_F16 ? _cvtsh_ss(((const uint16_t *)job->v)[at])
                                               : bf16_to_f32(((const uint16_t *)job->v)[at]);
                sum = fmaf(e[i][p], v, sum);
            }
            o[i][d] = sum;
        }
    }
}

/* s[i] = dots of q[i] with positions [low, high), rounded out to whole vectors. The first tile of a
 * job brings the page into the cache: K in row order during the first pass over its columns, V bit
 * by bit during the others. */
static void score_keys(const struct attn_job *job, enum dtype dtype, size_t nq, float *const *s,
                       const float *const *q, size_t low, size_t high, bool cold,
                       struct ahead *ahead)
{
    size_t first = low / 8, last = (high + 7) / 8, width = nq == 1 ? 8 : nq == 2 ? 4 : 2;
    size_t size = dtype == DTYPE_F32 ? 4 : 2, k_row = KERNEL_KV_CHUNK * size;
    size_t v_row = job->head_dim * size;

    if (cold && last - first > width) {
        *ahead = (struct ahead){job->k, (const char *)job->k + job->head_dim * k_row, STEP * k_row};
        look_ahead(ahead, AHEAD * k_row);
        product(dtype, nq, s, first, first + width, q, job->k, KERNEL_KV_CHUNK, 0, job->head_dim,
                true, ahead);
        first += width;
    }
    if (cold) {
        size_t steps = (last - first + width - 1) / width * ((job->head_dim + STEP - 1) / STEP);
        ahead->next = (const char *)job->v + low * v_row;
        ahead->stop = (const char *)job->v + high * v_row;
        ahead->step_bytes = ((high - low) * v_row / steps + 64) / 64 * 64;
    }
    product(dtype, nq, s, first, last, q, job->k, KERNEL_KV_CHUNK, 0, job->head_dim, true, ahead);
}

/* Queries index[0..nq), all with something visible. Positions seen by all go through the tile; what
 * only some see before or after goes query by query, in position order. */
static void attend(const struct attn_job *job, enum dtype dtype, const size_t *index, size_t nq,
                   bool cold)
{
    struct ahead ahead = {NULL, NULL, 0};
    size_t padded = (job->head_dim + 7) / 8 * 8;
    const float *q[TILE], *e[TILE];
    float *s[TILE], *o[TILE], m[TILE], l[TILE];
    size_t low = KERNEL_KV_CHUNK, high = 0, common_low = 0, common_high = KERNEL_KV_CHUNK;

    for (size_t i = 0; i < nq; i++) {
        size_t begin = (size_t)job->begin[index[i]], end = (size_t)job->end[index[i]];
        q[i] = job->q + index[i] * job->q_stride;
        e[i] = s[i] = job->scratch + i * KERNEL_KV_CHUNK;
        o[i] = job->scratch + nq * KERNEL_KV_CHUNK + i * padded;
        low = begin < low ? begin : low;
        high = end > high ? end : high;
        common_low = begin > common_low ? begin : common_low;
        common_high = end < common_high ? end : common_high;
    }
    score_keys(job, dtype, nq, s, q, low, high, cold, &ahead);
    for (size_t i = 0; i < nq; i++) {
        size_t begin = (size_t)job->begin[index[i]], end = (size_t)job->end[index[i]];
        softmax_part(s[i], begin, end, job->scale, &m[i], &l[i]);
        memset(o[i], 0, job->head_dim * sizeof *o[i]);
        weigh_values(job, dtype, 1, o + i, e + i, begin, common_low < end ? common_low : end,
                     &ahead);
    }
    weigh_values(job, dtype, nq, o, e, common_low, common_high, &ahead);
    for (size_t i = 0; i < nq; i++) {
        size_t end = (size_t)job->end[index[i]];
        size_t from = common_high > common_low ? common_high : common_low;
        weigh_values(job, dtype, 1, o + i, e + i, from, end, &ahead);
        merge(&job->max[index[i]], &job->sum[index[i]], job->acc + index[i] * job->acc_stride, m[i],
              l[i], o[i], job->head_dim);
    }
}

static void attn(const struct attn_job *job, enum dtype dtype)
{
    size_t next = 0;
    bool cold = true;

    while (next < job->n_q) {
        size_t index[TILE], nq = 0;
        while (nq < TILE && next < job->n_q) {
            if (job->begin[next] < job->end[next])
                index[nq++] = next;
            next++;
        }
        for (size_t done = 0; done < nq;) { /* tiles of 6, 4, 2 and 1 queries */
            size_t n = nq - done;
            n = n >= 6 ? 6 : n >= 4 ? 4 : n >= 2 ? 2 : 1;
            attend(job, dtype, index + done, n, cold);
            cold = false;
            done += n;
        }
    }
}

static void attn_f32(const struct attn_job *job)
{
    attn(job, DTYPE_F32);
}

static void attn_f16(const struct attn_job *job)
{
    attn(job, DTYPE_F16);
}

static void attn_bf16(const struct attn_job *job)
{
    attn(job, DTYPE_BF16);
}

void kernels_init_x86_attn(struct kernels *k)
{
    k->attn[DTYPE_F32] = attn_f32;
    k->attn[DTYPE_F16] = attn_f16;
    k->attn[DTYPE_BF16] = attn_bf16;
}
