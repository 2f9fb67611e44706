/* The combine tree. See tree.h. */
#include "exchange/tree.h"

#include "base/assert.h"
#include "tensor/half.h"

#include <string.h>

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
    memcpy(dst, (const float *)leaf->row + col, n * sizeof(float));
    if (leaf->is_node)
        return;
    kernels->scale(dst, leaf->weight, n);
    if (bf16_nodes)
        round_bf16(dst, n);
}

size_t tree_sum(const struct kernels *kernels, const struct tree_leaf *leaves, const int32_t *ids,
                size_t k, size_t n_experts, size_t col, size_t n, bool bf16_nodes, void *dst,
                bool dst_bf16, float *scratch)
{
    uint8_t left[LIMIT_TOP_K], right[LIMIT_TOP_K];

    FERRY_DCHECK(k > 0 && n <= TREE_COLS);
    for (size_t i = 0; i < k; i++)
        load_leaf(kernels, &leaves[i], col, n, bf16_nodes, scratch + i * TREE_COLS);
    size_t n_steps = tree_steps(ids, k, n_experts, left, right);
    for (size_t i = 0; i < n_steps; i++) {
        float *sum = scratch + left[i] * TREE_COLS;
        kernels->add(sum, scratch + right[i] * TREE_COLS, n);
        if (bf16_nodes)
            round_bf16(sum, n);
    }
    if (dst_bf16)
        (void)kernels->encode[DTYPE_BF16](dst, scratch, n);
    else
        memcpy(dst, scratch, n * sizeof(float));
    return n_steps + 1;
}
