/* AVX2 matmuls of F32, F16 and BF16 weights with f32 rows. Order of operations: ref/matmul.c: one
 * accumulator per output, fused multiply-add over k ascending.
 *
 * Lanes are the 8 columns of a group. The chain of dependent multiply-adds of one output is long,
 * so a tile keeps up to 6 rows by 2 groups (few rows: by 4 groups) in flight. */
#include "kernel/init.h"
#include "kernel/x86/matmul_codes.h"

enum { ROWS = 6, GROUPS = 4, PREFETCH_BYTES = 1024 };

/* 8 weights of one k, widened. */
INLINE __m256 load_weights(enum dtype t, const uint8_t *p)
{
    if (t == DTYPE_F32)
        return _mm256_load_ps((const float *)(const void *)p);
    __m128i h = _mm_load_si128((const __m128i *)(const void *)p);
    if (t == DTYPE_F16)
        return _mm256_cvtph_ps(h);
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(h), 16));
}

INLINE void store_columns(float *out, __m256 v, size_t n)
{
    float lanes[KERNEL_GROUP];

    if (n >= KERNEL_GROUP) {
        _mm256_storeu_ps(out, v);
        return;
    }
    _mm256_storeu_ps(lanes, v);
    for (size_t i = 0; i < n; i++)
        out[i] = lanes[i];
}

/* n_rows x (8 * n_groups) outputs; rows from row(i0), groups from g. */
INLINE void tile(enum dtype t, int n_rows, int n_groups, const struct matmul_job *job, size_t i0,
                 size_t g)
{
    const size_t step = t == DTYPE_F32 ? 32 : 16;
    size_t group_bytes = pack_group_bytes(t, job->k);
    const uint8_t *w = (const uint8_t *)job->packed + g * group_bytes;
    const float *x[ROWS];
    __m256 acc[ROWS][GROUPS];

    UNROLL for (int r = 0; r < n_rows; r++)
    {
        size_t i = i0 + (size_t)r;
        x[r] = matmul_act_row(job, i);
        UNROLL for (int c = 0; c < n_groups; c++) acc[r][c] = _mm256_setzero_ps();
    }
    for (size_t k = 0; k < job->k; k++, w += step) {
        __m256 v[GROUPS];
        UNROLL for (int c = 0; c < n_groups; c++)
        {
            const uint8_t *p = w + (size_t)c * group_bytes;
            if (t == DTYPE_F32 || k % 2 == 0)
                _mm_prefetch((const char *)p + PREFETCH_BYTES, _MM_HINT_T0);
            v[c] = load_weights(t, p);
        }
        UNROLL for (int r = 0; r < n_rows; r++)
        {
            __m256 xr = _mm256_broadcast_ss(x[r] + k);
            UNROLL for (int c = 0; c < n_groups; c++) acc[r][c] =
                _mm256_fmadd_ps(v[c], xr, acc[r][c]);
        }
    }
    UNROLL for (int r = 0; r < n_rows; r++)
    {
        UNROLL for (int c = 0; c < n_groups; c++)
        {
            size_t column = (g + (size_t)c) * KERNEL_GROUP;
            store_columns(job->out + (i0 + (size_t)r) * job->out_stride + column, acc[r][c],
                          job->n_cols - column);
        }
    }
}

/* All rows against n_groups groups, in tiles of at most 6 rows, none of them much smaller. */
INLINE void rows_by_groups(enum dtype t, int n_groups, const struct matmul_job *job, size_t g)
{
    size_t i = 0;

    while (i < job->n_rows) {
        size_t rest = job->n_rows - i;
        size_t n = rest > 8 ? 6 : rest > 6 ? 4 : rest;
        if (n == 6)
            tile(t, 6, n_groups, job, i, g);
        else if (n == 5)
            tile(t, 5, n_groups, job, i, g);
        else if (n == 4)
            tile(t, 4, n_groups, job, i, g);
        else if (n == 3)
            tile(t, 3, n_groups, job, i, g);
        else if (n == 2)
            tile(t, 2, n_groups, job, i, g);
        else
            tile(t, 1, n_groups, job, i, g);
        i += n;
    }
}

INLINE void matmul(enum dtype t, const struct matmul_job *job)
{
    size_t g = job->group_begin;

    if (job->n_rows <= 3) {
        for (; g + 4 <= job->group_end; g += 4) {
            if (job->n_rows == 3)
                tile(t, 3, 4, job, 0, g);
            else if (job->n_rows == 2)
                tile(t, 2, 4, job, 0, g);
            else if (job->n_rows == 1)
                tile(t, 1, 4, job, 0, g);
        }
    }
    for (; g + 2 <= job->group_end; g += 2)
        rows_by_groups(t, 2, job, g);
    for (; g < job->group_end; g++)
        rows_by_groups(t, 1, job, g);
}

static void matmul_f32(const struct matmul_job *job)
{
    matmul(DTYPE_F32, job);
}

static void matmul_f16(const struct matmul_job *job)
{
    matmul(DTYPE_F16, job);
}

static void matmul_bf16(const struct matmul_job *job)
{
    matmul(DTYPE_BF16, job);
}

void kernels_init_x86_matmul(struct kernels *k)
{
    k->matmul[DTYPE_F32] = matmul_f32;
    k->matmul[DTYPE_F16] = matmul_f16;
    k->matmul[DTYPE_BF16] = matmul_bf16;
    kernels_init_x86_matmul_block(k);
}
