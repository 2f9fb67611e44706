/* Memory with one named lifetime: allocated piece by piece, released at once.
 *
 * Why: step buffers are carved from one block and reset once per step; growth after warm-up is a
 * bug that the counter shows. An arena has one owning thread. */
#ifndef BASE_ARENA_H
#define BASE_ARENA_H

#include <stddef.h>

struct arena_block;

struct arena {
    const char *name;         /* for messages and metrics; borrowed */
    struct arena_block *head; /* newest block */
    size_t used;              /* bytes handed out since the last reset */
    size_t reserved;          /* bytes held */
};

/* Empty arena in the caller's storage; takes no memory yet. */
void arena_init(struct arena *arena, const char *name);

/* Releases everything; the arena may be used again. */
void arena_fini(struct arena *arena);

/* n_bytes, 64-byte aligned, undefined contents (arena_zero: zeroed), valid until reset or fini;
 * NULL when out of memory. n_bytes 0 gives a valid pointer to nothing. */
void *arena_alloc(struct arena *arena, size_t n_bytes);
void *arena_zero(struct arena *arena, size_t n_bytes);

/* n * size bytes, zeroed; NULL also when the product overflows. */
void *arena_array(struct arena *arena, size_t n, size_t size);

/* Copy of n bytes of s plus a 0. */
char *arena_strndup(struct arena *arena, const char *s, size_t n);

/* Forgets all pieces and keeps the storage as one block, so that the next round of the same size
 * allocates nothing. */
void arena_reset(struct arena *arena);

#endif
