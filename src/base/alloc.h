/* The only road to the heap: counted, so that "no allocation between two decode steps" is a test,
 * and with a failure injector, so that every out-of-memory path is one too.
 *
 * It must not know arenas or who allocates. */
#ifndef BASE_ALLOC_H
#define BASE_ALLOC_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Memory for any type, 64-byte aligned, contents undefined (mem_zero: zeroed); NULL when out of
 * memory or n is 0. Freed with mem_free. Any thread. */
void *mem_alloc(size_t n_bytes);
void *mem_zero(size_t n_bytes);

/* n * size bytes, zeroed; NULL also when the product overflows. */
void *mem_array(size_t n, size_t size);

/* Grows or shrinks a block of mem_alloc: the first min(old, new) bytes stay. On NULL the old block
 * stays valid. */
void *mem_resize(void *p, size_t old_bytes, size_t new_bytes);

/* Room for n more bytes behind the size bytes of a growing buffer (*data NULL: none yet): at least
 * doubled, at least `first`. False when out of memory or on overflow; the buffer is as it was. */
bool mem_reserve(char **data, size_t size, size_t *capacity, size_t n, size_t first);

void mem_free(void *p);

/* Gives freed heap memory back to the kernel, where the C library can: for after work that freed
 * much of it. */
void mem_trim(void);

/* Copy of n bytes of s plus a 0; NULL when out of memory. Freed with mem_free. */
char *mem_strndup(const char *s, size_t n);

/* Whole pages from the kernel, zeroed, outside the heap; `huge` asks for transparent huge pages.
 * NULL when out of memory. The size is rounded up inside; map_free takes the size that was asked
 * for. */
void *map_alloc(size_t n_bytes, int huge);
void map_free(void *p, size_t n_bytes);

/* Calls that reached the heap or the kernel (alloc, resize, map; failed ones too) since the process
 * started. */
uint64_t mem_count_calls(void);

/* Tests: the allocation number `n` from now on (1 = the next) fails, once; 0 turns it off. */
void mem_fail_after(uint64_t n);

#endif
