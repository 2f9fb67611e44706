/* Arenas over mem_alloc. See arena.h. */
#include "base/arena.h"

#include "base/alloc.h"
#include "base/size.h"

#include <stdint.h>
#include <string.h>

enum { ALIGNMENT = 64, BLOCK_MIN = 64 << 10 };

struct arena_block {
    struct arena_block *next;
    size_t size; /* bytes behind the header */
    size_t used;
    _Alignas(ALIGNMENT) unsigned char data[];
};

void arena_init(struct arena *arena, const char *name)
{
    *arena = (struct arena){.name = name};
}

void arena_fini(struct arena *arena)
{
    while (arena->head != NULL) {
        struct arena_block *next = arena->head->next;
        mem_free(arena->head);
        arena->head = next;
    }
    arena->used = 0;
    arena->reserved = 0;
}

static struct arena_block *block_add(struct arena *arena, size_t size)
{
    size_t n_bytes;

    if (!add_size(size, sizeof(struct arena_block), &n_bytes))
        return NULL;
    struct arena_block *block = mem_alloc(n_bytes);
    if (block == NULL)
        return NULL;
    block->next = arena->head;
    block->size = size;
    block->used = 0;
    arena->head = block;
    arena->reserved += size;
    return block;
}

void *arena_alloc(struct arena *arena, size_t n_bytes)
{
    size_t need;

    if (!round_up_size(n_bytes, ALIGNMENT, &need))
        return NULL;
    struct arena_block *block = arena->head;
    if (block == NULL || block->size - block->used < need) {
        size_t size = max_size(need, BLOCK_MIN);
        if (block != NULL)
            size = max_size(size, block->size < SIZE_MAX / 4 ? block->size * 2 : need);
        block = block_add(arena, size);
        if (block == NULL && size > need)
            block = block_add(arena, max_size(need, ALIGNMENT)); /* little memory left: no slack */
        if (block == NULL)
            return NULL;
    }
    void *p = block->data + block->used;
    block->used += need;
    arena->used += need;
    return p;
}

void *arena_zero(struct arena *arena, size_t n_bytes)
{
    void *p = arena_alloc(arena, n_bytes);
    if (p != NULL)
        memset(p, 0, n_bytes);
    return p;
}

void *arena_array(struct arena *arena, size_t n, size_t size)
{
    size_t n_bytes;
    if (!mul_size(n, size, &n_bytes))
        return NULL;
    return arena_zero(arena, n_bytes);
}

char *arena_strndup(struct arena *arena, const char *s, size_t n)
{
    size_t n_bytes;
    if (!add_size(n, 1, &n_bytes))
        return NULL;
    char *p = arena_alloc(arena, n_bytes);
    if (p == NULL)
        return NULL;
    memcpy(p, s, n);
    p[n] = 0;
    return p;
}

void arena_reset(struct arena *arena)
{
    size_t total = arena->reserved;

    if (arena->head != NULL && arena->head->next != NULL) {
        arena_fini(arena);
        (void)block_add(arena, total); /* failing is harmless: the next use grows again */
    }
    if (arena->head != NULL)
        arena->head->used = 0;
    arena->used = 0;
}
