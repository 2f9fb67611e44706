/* The combine tree: in which order a token's rows are added. docs/numerics.md, "Router and combine
 * tree". Inside of the room; origin and holder add by the same function. */
#ifndef EXCHANGE_TREE_H
#define EXCHANGE_TREE_H

#include "base/limits.h"
#include "kernel/kernel.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The order of additions: ids ascending [k]; step i adds row right[i] into row left[i]; the sum
 * ends in row 0. Returns the number of steps, k - 1. */
size_t tree_steps(const int32_t *ids, size_t k, size_t n_experts, uint8_t *left, uint8_t *right);

/* Cuts ids [k] ascending, each held by seats[i], into groups: the largest nodes of the tree all of
 * whose chosen leaves lie in ids and on one seat. `ids` are all the leaves of one node. Writes
 * where each group begins, ascending; returns how many. A group's sum is a node of the token's
 * tree, so whoever adds it up gives the same bits. */
size_t tree_groups(const int32_t *ids, const int16_t *seats, size_t k, size_t n_experts,
                   uint8_t *begins);

/* What is added: a computed row that still has to be weighted, or a node that came back. */
struct tree_leaf {
    const void *row;
    float weight; /* of a computed row */
    bool is_node; /* weighted and summed already */
    bool is_bf16; /* a node's row is bf16 */
};

enum { TREE_COLS = 256 }; /* columns at a time; a bound on cache use, not on bits */

/* Where a sum goes: f32, bf16, or f32 past the own caches (into memory that another rank reads; the
 * caller orders such stores by its next fence). */
enum tree_store { TREE_F32, TREE_BF16, TREE_STREAM };

/* Adds up columns [col, col + n) of k leaves in the order of ids into dst [n],
 * writing each value once; dst may be a leaf's own columns. bf16_nodes: every node is rounded to
 * bf16, leaves included. scratch: k * TREE_COLS floats. Returns how many leaves are in the sum: k,
 * if ids are as they should be. */
size_t tree_sum(const struct kernels *kernels, const struct tree_leaf *leaves, const int32_t *ids,
                size_t k, size_t n_experts, size_t col, size_t n, bool bf16_nodes, void *dst,
                enum tree_store store, float *scratch);

/* Orders a thread's own TREE_STREAM stores before what it stores next. */
void tree_fence(void);

#endif
