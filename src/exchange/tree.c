/* The combine tree. See tree.h. */
#include "exchange/tree.h"

#include "base/assert.h"
#include "base/size.h"
#include "tensor/half.h"

#include <string.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

/* First of ids[first, last) that is not below mid. */
static size_t split_at(const int32_t *ids, size_t first, size_t last, int32_t mid)
{
    while (first < last && ids[first] < mid)
        first++;
    return first;
}

/* Adds up ids[first, last), all inside [lo, hi); returns how many steps were written. */
static size_t steps_range(const int32_t *ids, size_t first, size_t last, int32_t lo, int32_t hi,
                          uint8_t *left, uint8_t *right)
{
    if (last - first < 2 || hi - lo < 2) /* ids are unique; two equal ones would not be added up */
        return 0;
    int32_t mid = lo + (hi - lo) / 2;
    size_t split = split_at(ids, first, last, mid);
    size_t n = steps_range(ids, first, split, lo, mid, left, right);
    n += steps_range(ids, split, last, mid, hi, left + n, right + n);
    if (split > first && split < last) {
        left[n] = (uint8_t)first;
        right[n] = (uint8_t)split;
        n++;
    }
    return n;
}

size_t tree_steps(const int32_t *ids, size_t k, size_t n_experts, uint8_t *left, uint8_t *right)
{
    FERRY_DCHECK(k <= LIMIT_TOP_K);
    return steps_range(ids, 0, k, 0, (int32_t)n_experts, left, right);
}

static size_t groups_range(const int32_t *ids, const int16_t *seats, size_t first, size_t last,
                           int32_t lo, int32_t hi, uint8_t *begins)
{
    size_t same = first;

    if (first == last)
        return 0;
    while (same < last && seats[same] == seats[first])
        same++;
    if (same == last || hi - lo < 2) {
        begins[0] = (uint8_t)first;
        return 1;
    }
    int32_t mid = lo + (hi - lo) / 2;
    size_t split = split_at(ids, first, last, mid);
    size_t n = groups_range(ids, seats, first, split, lo, mid, begins);
    return n + groups_range(ids, seats, split, last, mid, hi, begins + n);
}

size_t tree_groups(const int32_t *ids, const int16_t *seats, size_t k, size_t n_experts,
                   uint8_t *begins)
{
    FERRY_DCHECK(k <= LIMIT_TOP_K);
    return groups_range(ids, seats, 0, k, 0, (int32_t)n_experts, begins);
}

/* ---- two rows into one ---- */

/* dst[i] = a[i] * wa + b[i] * wb: three roundings, never a fused multiply-add. dst may be a or b.
 * A node's weight is 1, which changes no bit. */
static void add_rows(float *dst, const float *a, float wa, const float *b, float wb, size_t n)
{
    for (size_t i = 0; i < n; i++)
        dst[i] = a[i] * wa + b[i] * wb;
}

static void scale_row(float *dst, const float *a, float wa, size_t n)
{
    for (size_t i = 0; i < n; i++)
        dst[i] = a[i] * wa;
}

#if defined(__x86_64__)
/* Rows of a message follow each other: the next page's first lines are asked for in time, which a
 * prefetcher that stops at pages does not do. */
enum { AHEAD_BYTES = 2048 };

/* The same by eight; `stream`: past the own caches, when dst is 32-byte aligned. */
__attribute__((target("avx2"))) static void add_rows_avx2(float *dst, const float *a, float wa,
                                                          const float *b, float wb, size_t n,
                                                          bool stream)
{
    const __m256 va = _mm256_set1_ps(wa), vb = _mm256_set1_ps(wb);
    size_t i = 0;

    for (; i + 16 <= n; i += 16) {
        _mm_prefetch((const char *)(a + i) + AHEAD_BYTES, _MM_HINT_T0);
        _mm_prefetch((const char *)(b + i) + AHEAD_BYTES, _MM_HINT_T0);
        __m256 x = _mm256_add_ps(_mm256_mul_ps(_mm256_loadu_ps(a + i), va),
                                 _mm256_mul_ps(_mm256_loadu_ps(b + i), vb));
        __m256 y = _mm256_add_ps(_mm256_mul_ps(_mm256_loadu_ps(a + i + 8), va),
                                 _mm256_mul_ps(_mm256_loadu_ps(b + i + 8), vb));
        if (stream) {
            _mm256_stream_ps(dst + i, x);
            _mm256_stream_ps(dst + i + 8, y);
        } else {
            _mm256_storeu_ps(dst + i, x);
            _mm256_storeu_ps(dst + i + 8, y);
        }
    }
    add_rows(dst + i, a + i, wa, b + i, wb, n - i);
}

__attribute__((target("avx2"))) static void scale_row_avx2(float *dst, const float *a, float wa,
                                                           size_t n, bool stream)
{
    const __m256 va = _mm256_set1_ps(wa);
    size_t i = 0;

    for (; i + 16 <= n; i += 16) {
        __m256 x = _mm256_mul_ps(_mm256_loadu_ps(a + i), va);
        __m256 y = _mm256_mul_ps(_mm256_loadu_ps(a + i + 8), va);
        if (stream) {
            _mm256_stream_ps(dst + i, x);
            _mm256_stream_ps(dst + i + 8, y);
        } else {
            _mm256_storeu_ps(dst + i, x);
            _mm256_storeu_ps(dst + i + 8, y);
        }
    }
    scale_row(dst + i, a + i, wa, n - i);
}
#endif

/* What is still to be added: a row and what it is multiplied by. */
struct operand {
    const float *row;
    float weight;
};

static void add_into(const struct kernels *kernels, float *dst, const struct operand *a,
                     const struct operand *b, size_t n, bool stream)
{
#if defined(__x86_64__)
    if (kernels->level >= CPU_LEVEL_AVX2) {
        add_rows_avx2(dst, a->row, a->weight, b->row, b->weight, n,
                      stream && ((uintptr_t)dst & 31) == 0);
        return;
    }
#endif
    (void)kernels;
    (void)stream;
    add_rows(dst, a->row, a->weight, b->row, b->weight, n);
}

static void scale_into(const struct kernels *kernels, float *dst, const struct operand *a, size_t n,
                       bool stream)
{
#if defined(__x86_64__)
    if (kernels->level >= CPU_LEVEL_AVX2) {
        scale_row_avx2(dst, a->row, a->weight, n, stream && ((uintptr_t)dst & 31) == 0);
        return;
    }
#endif
    (void)kernels;
    (void)stream;
    scale_row(dst, a->row, a->weight, n);
}

/* f32 rows only, no rounding between: every step reads two rows where they lie, and the last one
 * writes dst. */
static void sum_rows(const struct kernels *kernels, const struct tree_leaf *leaves, size_t k,
                     const uint8_t *left, const uint8_t *right, size_t n_steps, size_t col,
                     size_t n, float *dst, bool stream, float *scratch)
{
    struct operand operands[LIMIT_TOP_K];

    for (size_t i = 0; i < k; i++)
        operands[i] = (struct operand){(const float *)leaves[i].row + col,
                                       leaves[i].is_node ? 1.0f : leaves[i].weight};
    if (n_steps == 0 && !(leaves[0].is_node && operands[0].row == dst))
        scale_into(kernels, dst, &operands[0], n, stream);
    for (size_t i = 0; i < n_steps; i++) {
        bool last = i + 1 == n_steps;
        float *to = last ? dst : scratch + left[i] * TREE_COLS;
        add_into(kernels, to, &operands[left[i]], &operands[right[i]], n, last && stream);
        operands[left[i]] = (struct operand){to, 1.0f};
    }
}

/* ---- the general way ---- */

static void round_bf16(float *x, size_t n)
{
    for (size_t i = 0; i < n; i++)
        x[i] = bf16_to_f32(bf16_from_f32(x[i]));
}

static void load_leaf(const struct kernels *kernels, const struct tree_leaf *leaf, size_t col,
                      size_t n, bool bf16_nodes, float *dst)
{
    if (leaf->is_node && leaf->is_bf16) {
        kernels->decode[DTYPE_BF16](dst, (const uint16_t *)leaf->row + col, n);
        return;
    }
    if ((const float *)leaf->row + col != dst)
        memcpy(dst, (const float *)leaf->row + col, n * sizeof(float));
    if (leaf->is_node)
        return;
    kernels->scale(dst, leaf->weight, n);
    if (bf16_nodes)
        round_bf16(dst, n);
}

static void sum_any(const struct kernels *kernels, const struct tree_leaf *leaves, size_t k,
                    const uint8_t *left, const uint8_t *right, size_t n_steps, size_t col, size_t n,
                    bool bf16_nodes, void *dst, enum tree_store store, float *scratch)
{
    for (size_t i = 0; i < k; i++)
        load_leaf(kernels, &leaves[i], col, n, bf16_nodes, scratch + i * TREE_COLS);
    for (size_t i = 0; i < n_steps; i++) {
        float *sum = scratch + left[i] * TREE_COLS;
        kernels->add(sum, scratch + right[i] * TREE_COLS, n);
        if (bf16_nodes)
            round_bf16(sum, n);
    }
    if (store == TREE_BF16)
        (void)kernels->encode[DTYPE_BF16](dst, scratch, n);
    else
        memcpy(dst, scratch, n * sizeof(float));
}

size_t tree_sum(const struct kernels *kernels, const struct tree_leaf *leaves, const int32_t *ids,
                size_t k, size_t n_experts, size_t col, size_t n, bool bf16_nodes, void *dst,
                enum tree_store store, float *scratch)
{
    uint8_t left[LIMIT_TOP_K], right[LIMIT_TOP_K];
    bool plain = !bf16_nodes && store != TREE_BF16;
    size_t n_steps = tree_steps(ids, k, n_experts, left, right);

    FERRY_DCHECK(k > 0);
    for (size_t i = 0; i < k && plain; i++)
        plain = !(leaves[i].is_node && leaves[i].is_bf16);
    for (size_t at = 0; at < n; at += TREE_COLS) {
        size_t n_cols = min_size(TREE_COLS, n - at);
        if (plain)
            sum_rows(kernels, leaves, k, left, right, n_steps, col + at, n_cols, (float *)dst + at,
                     store == TREE_STREAM, scratch);
        else
            sum_any(kernels, leaves, k, left, right, n_steps, col + at, n_cols, bf16_nodes,
                    (unsigned char *)dst +
                        at * (store == TREE_BF16 ? sizeof(uint16_t) : sizeof(float)),
                    store, scratch);
    }
    return n_steps + 1;
}

void tree_fence(void)
{
#if defined(__x86_64__)
    _mm_sfence();
#endif
}
