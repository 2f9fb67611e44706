/* AVX2 matmuls of the block formats. Order of operations: ref/matmul.c, bit for bit.
 *
 * Lanes are the 8 columns of a group. A tile is up to 4 rows by one group: codes of a block are
 * unpacked once and multiplied with the activations of every row of the tile, 4 k per broadcast.
 * Integer sums stay in int16 as long as that is exact (matmul_codes.h). Rows go in blocks of 64, k
 * in chunks of 4096: the words prepared per row and block (aux) then fit on the stack. Between
 * chunks the accumulators rest in the output. */
#include "kernel/init.h"
#include "kernel/x86/matmul_codes.h"

#include <string.h>

enum {
    TILE_ROWS = 4,
    ROWS_MAX = 64,      /* rows that are prepared at a time */
    CHUNK_BLOCKS = 128, /* blocks of k that are prepared at a time; whole panels */
    PREFETCH_BYTES = 2048,
};

/* Up to 64 rows and a chunk of k, as the tiles read it. */
struct rows {
    const int8_t *q[ROWS_MAX];
    const float *d[ROWS_MAX];
    float *out[ROWS_MAX];
    size_t n_rows;
    size_t block_begin, block_end;
    int32_t aux[ROWS_MAX][CHUNK_BLOCKS]; /* see enum aux_form */
};

/* ---- preparation ---- */

INLINE void prepare_offset(int32_t *aux, const int32_t *sums, size_t n, int offset)
{
    for (size_t b = 0; b < n; b++)
        aux[b] = offset * sums[b];
}

INLINE void prepare_min(int32_t *aux, const float *d, const int32_t *sums, size_t n)
{
    for (size_t b = 0; b < n; b++) {
        float v = d[b] * (float)sums[b];
        memcpy(&aux[b], &v, sizeof v);
    }
}

INLINE void prepare_halves(int32_t *aux, const int8_t *q, size_t n)
{
    const __m256i ones = _mm256_set1_epi8(1);
    for (size_t b = 0; b < n; b++) {
        __m256i v = _mm256_loadu_si256((const __m256i *)(const void *)(q + 32 * b));
        v = _mm256_maddubs_epi16(ones, v);
        v = _mm256_hadd_epi16(v, v);
        v = _mm256_hadd_epi16(v, v);
        v = _mm256_hadd_epi16(v, v);
        int lo = _mm256_extract_epi16(v, 0), hi = _mm256_extract_epi16(v, 8);
        aux[b] = (int32_t)(((uint32_t)lo & 0xFFFFu) | (uint32_t)hi << 16);
    }
}

INLINE void prepare(enum dtype t, const struct matmul_job *job, size_t row_begin, size_t b0,
                    struct rows *s)
{
    size_t n_blocks = job->k / PACK_BLOCK;

    s->n_rows = job->n_rows - row_begin < ROWS_MAX ? job->n_rows - row_begin : ROWS_MAX;
    s->block_begin = b0;
    s->block_end = n_blocks - b0 < CHUNK_BLOCKS ? n_blocks : b0 + CHUNK_BLOCKS;
    size_t n = s->block_end - b0;
    for (size_t r = 0; r < s->n_rows; r++) {
        size_t i = row_begin + r;
        size_t row = job->act_index != NULL ? (size_t)job->act_index[i] : i;
        const void *act = (const char *)job->act + row * job->act_stride;
        const int32_t *sums = act_a32_sums(act, job->k) + b0;
        s->q[r] = (const int8_t *)act + PACK_BLOCK * b0;
        s->d[r] = act_a32_scales(act, job->k) + b0;
        s->out[r] = job->out + i * job->out_stride;
        if (aux_form_of(t) == AUX_OFFSET)
            prepare_offset(s->aux[r], sums, n, code_offset(t));
        else if (aux_form_of(t) == AUX_MIN)
            prepare_min(s->aux[r], s->d[r], sums, n);
        else if (aux_form_of(t) == AUX_HALVES)
            prepare_halves(s->aux[r], s->q[r], n);
    }
}

/* ---- one block, one row ---- */

INLINE __m256i broadcast4(const int8_t *q)
{
    int32_t word;
    memcpy(&word, q, sizeof word);
    return _mm256_set1_epi32(word);
}

INLINE __m256i product(const struct codes *c, const int8_t *q, int i)
{
    return _mm256_maddubs_epi16(c->w[i], broadcast4(q + 4 * i));
}

/* Sum over the 32 k of code * q per column; Q6_K: with integer scales; offsets still in. */
INLINE __m256i dot(enum dtype t, const struct codes *c, const int8_t *q)
{
    const __m256i ones = _mm256_set1_epi16(1);
    enum dot_form form = dot_form_of(t);

    if (form == DOT_SIGNED) {
        __m256i sum = _mm256_setzero_si256();
        UNROLL for (int i = 0; i < 8; i++)
        {
            __m256i x = _mm256_sign_epi8(broadcast4(q + 4 * i), c->w[i]);
            __m256i p = _mm256_maddubs_epi16(_mm256_abs_epi8(c->w[i]), x);
            sum = _mm256_add_epi32(sum, _mm256_madd_epi16(p, ones));
        }
        return sum;
    }
    __m256i p[4];
    UNROLL for (int i = 0; i < 4; i++) p[i] =
        _mm256_add_epi16(product(c, q, 2 * i), product(c, q, 2 * i + 1));
    if (form == DOT_U6) {
        UNROLL for (int i = 0; i < 4; i++) p[i] = _mm256_madd_epi16(p[i], c->sc[i / 2]);
        return _mm256_add_epi32(_mm256_add_epi32(p[0], p[1]), _mm256_add_epi32(p[2], p[3]));
    }
    __m256i a = _mm256_add_epi16(p[0], p[1]), b = _mm256_add_epi16(p[2], p[3]);
    if (form == DOT_U4)
        return _mm256_madd_epi16(_mm256_add_epi16(a, b), ones);
    return _mm256_add_epi32(_mm256_madd_epi16(a, ones), _mm256_madd_epi16(b, ones));
}

INLINE __m256 step(enum dtype t, const struct codes *c, const int8_t *q, float d,
                   const int32_t *aux, __m256 acc)
{
    __m256i isum = dot(t, c, q);

    if (aux_form_of(t) == AUX_OFFSET)
        isum = _mm256_sub_epi32(isum, _mm256_set1_epi32(*aux));
    if (aux_form_of(t) == AUX_HALVES)
        isum = _mm256_sub_epi32(isum, _mm256_madd_epi16(_mm256_set1_epi32(*aux), c->off));
    acc = _mm256_fmadd_ps(_mm256_cvtepi32_ps(isum), _mm256_mul_ps(c->d, _mm256_set1_ps(d)), acc);
    if (aux_form_of(t) == AUX_MIN)
        acc = _mm256_fmadd_ps(c->m, _mm256_castsi256_ps(_mm256_set1_epi32(*aux)), acc);
    return acc;
}

/* ---- tiles ---- */

/* Lanes of columns that exist in a group whose first column is `column`. */
INLINE __m256i column_mask(size_t n_cols, size_t column)
{
    int n = n_cols - column < KERNEL_GROUP ? (int)(n_cols - column) : KERNEL_GROUP;
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}

INLINE void tile(enum dtype t, int n_rows, const struct rows *s, size_t r0, const uint8_t *group,
                 size_t column, __m256i mask)
{
    const struct pack_layout l = pack_layout_of(t);
    size_t n_blocks = s->block_end - s->block_begin;
    const uint8_t *panel = pack_header(l, group, s->block_begin);
    __m256 acc[TILE_ROWS];

    UNROLL for (int r = 0; r < n_rows; r++) acc[r] =
        s->block_begin == 0 ? _mm256_setzero_ps()
                            : _mm256_maskload_ps(s->out[r0 + (size_t)r] + column, mask);
    for (size_t b = 0; b < n_blocks; panel += pack_panel_bytes(l)) {
        size_t n = n_blocks - b < l.blocks ? n_blocks - b : l.blocks;
        for (size_t i = 0; i < n; i++, b++) {
            const uint8_t *body = panel + l.header + i * l.body;
            struct codes c;
            for (size_t p = 0; p < l.body; p += 64)
                _mm_prefetch((const char *)body + PREFETCH_BYTES + p, _MM_HINT_T0);
            load_codes(t, body, c.w);
            load_scales(t, panel, i, &c);
            UNROLL for (int r = 0; r < n_rows; r++)
            {
                size_t row = r0 + (size_t)r;
                acc[r] =
                    step(t, &c, s->q[row] + PACK_BLOCK * b, s->d[row][b], &s->aux[row][b], acc[r]);
            }
        }
    }
    UNROLL for (int r = 0; r < n_rows; r++)
        _mm256_maskstore_ps(s->out[r0 + (size_t)r] + column, mask, acc[r]);
}

INLINE void matmul(enum dtype t, const struct matmul_job *job)
{
    size_t group_bytes = pack_group_bytes(t, job->k);
    size_t n_blocks = job->k / PACK_BLOCK;
    struct rows s;

    for (size_t row = 0; row < job->n_rows; row += ROWS_MAX) {
        for (size_t b0 = 0; b0 == 0 || b0 < n_blocks; b0 += CHUNK_BLOCKS) {
            prepare(t, job, row, b0, &s);
            for (size_t g = job->group_begin; g < job->group_end; g++) {
                const uint8_t *group = (const uint8_t *)job->packed + g * group_bytes;
                size_t column = g * KERNEL_GROUP;
                __m256i mask = column_mask(job->n_cols, column);
                size_t r = 0;
                for (; r + 4 <= s.n_rows; r += 4)
                    tile(t, 4, &s, r, group, column, mask);
                if (s.n_rows - r == 3)
                    tile(t, 3, &s, r, group, column, mask);
                else if (s.n_rows - r == 2)
                    tile(t, 2, &s, r, group, column, mask);
                else if (s.n_rows - r == 1)
                    tile(t, 1, &s, r, group, column, mask);
            }
        }
    }
}

#define X86_MATMUL(dtype)                                    \
    static void matmul_##dtype(const struct matmul_job *job) \
    {                                                        \
        matmul(DTYPE_##dtype, job);                          \
    }
X86_MATMUL(Q8_0)
X86_MATMUL(Q4_0)
X86_MATMUL(Q4_1)
X86_MATMUL(Q5_0)
X86_MATMUL(Q5_1)
X86_MATMUL(Q4_K)
X86_MATMUL(Q5_K)
X86_MATMUL(Q6_K)
X86_MATMUL(IQ4_NL)
X86_MATMUL(MXFP4)
#undef X86_MATMUL

void kernels_init_x86_matmul_block(struct kernels *k)
{
    k->matmul[DTYPE_Q8_0] = matmul_Q8_0;
    k->matmul[DTYPE_Q4_0] = matmul_Q4_0;
    k->matmul[DTYPE_Q4_1] = matmul_Q4_1;
    k->matmul[DTYPE_Q5_0] = matmul_Q5_0;
    k->matmul[DTYPE_Q5_1] = matmul_Q5_1;
    k->matmul[DTYPE_Q4_K] = matmul_Q4_K;
    k->matmul[DTYPE_Q5_K] = matmul_Q5_K;
    k->matmul[DTYPE_Q6_K] = matmul_Q6_K;
    k->matmul[DTYPE_IQ4_NL] = matmul_IQ4_NL;
    k->matmul[DTYPE_MXFP4] = matmul_MXFP4;
}
