/* Candidates of a merge loop, lowest rank first, then leftmost.
 *
 * Why own code: one 8-byte key per candidate and four children per node keep a line of ten million
 * characters in few cache lines. Used by bpe.c and spm.c only. */
#ifndef TEXT_MERGE_HEAP_H
#define TEXT_MERGE_HEAP_H

#include "base/alloc.h"
#include "base/size.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* {0} to start; keys are rank << 32 | position. */
struct merge_heap {
    uint64_t *keys;
    size_t n;
    size_t capacity;
};

static inline void merge_heap_fini(struct merge_heap *heap)
{
    mem_free(heap->keys);
    *heap = (struct merge_heap){0};
}

static inline bool merge_heap_grow(struct merge_heap *heap)
{
    size_t capacity = max_size(heap->capacity * 2, 256);
    uint64_t *keys = mem_resize(heap->keys, heap->n * sizeof *keys, capacity * sizeof *keys);
    if (keys == NULL)
        return false;
    heap->keys = keys;
    heap->capacity = capacity;
    return true;
}

/* False when out of memory. */
static inline bool merge_heap_push(struct merge_heap *heap, uint32_t rank, uint32_t position)
{
    if (heap->n == heap->capacity && !merge_heap_grow(heap))
        return false;
    uint64_t key = (uint64_t)rank << 32 | position;
    size_t i = heap->n++;
    while (i > 0 && heap->keys[(i - 1) / 4] > key) {
        heap->keys[i] = heap->keys[(i - 1) / 4];
        i = (i - 1) / 4;
    }
    heap->keys[i] = key;
    return true;
}

/* Removes and returns the smallest key; n > 0. */
static inline uint64_t merge_heap_pop(struct merge_heap *heap)
{
    uint64_t *keys = heap->keys;
    uint64_t top = keys[0];
    size_t n = --heap->n;
    uint64_t key = keys[n];
    size_t i = 0;

    for (;;) {
        size_t child = 4 * i + 1;
        if (child >= n)
            break;
        size_t end = min_size(child + 4, n);
        size_t least = child;
        for (size_t c = child + 1; c < end; c++)
            least = keys[c] < keys[least] ? c : least;
        if (keys[least] >= key)
            break;
        keys[i] = keys[least];
        i = least;
    }
    keys[i] = key;
    return top;
}

#endif
