/* Counted allocation. See alloc.h. */
#include "base/alloc.h"

#include "base/size.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#ifdef __GLIBC__ /* known once a system header was read */
#include <malloc.h>
#endif

enum { ALIGNMENT = 64, HUGE_PAGE = 2 << 20 };

/* Statistics and a test hook, not engine state: relaxed, they order nothing. */
static atomic_uint_fast64_t n_calls;
static atomic_uint_fast64_t fail_countdown;

static int must_fail(void)
{
    atomic_fetch_add_explicit(&n_calls, 1, memory_order_relaxed);
    if (atomic_load_explicit(&fail_countdown, memory_order_relaxed) == 0)
        return 0;
    return atomic_fetch_sub_explicit(&fail_countdown, 1, memory_order_relaxed) == 1;
}

void *mem_alloc(size_t n_bytes)
{
    size_t rounded;

    if (n_bytes == 0 || n_bytes > PTRDIFF_MAX || !round_up_size(n_bytes, ALIGNMENT, &rounded))
        return NULL;
    if (must_fail())
        return NULL;
    return aligned_alloc(ALIGNMENT, rounded);
}

void *mem_zero(size_t n_bytes)
{
    void *p = mem_alloc(n_bytes);
    if (p != NULL)
        memset(p, 0, n_bytes);
    return p;
}

void *mem_array(size_t n, size_t size)
{
    size_t n_bytes;
    if (!mul_size(n, size, &n_bytes))
        return NULL;
    return mem_zero(n_bytes);
}

void *mem_resize(void *p, size_t old_bytes, size_t new_bytes)
{
    void *q = mem_alloc(new_bytes);
    if (q == NULL)
        return NULL;
    if (p != NULL)
        memcpy(q, p, min_size(old_bytes, new_bytes));
    mem_free(p);
    return q;
}

bool mem_reserve(char **data, size_t size, size_t *capacity, size_t n, size_t first)
{
    size_t wanted, doubled;

    if (!add_size(size, n, &wanted))
        return false;
    if (wanted <= *capacity)
        return true;
    if (!mul_size(*capacity, 2, &doubled))
        return false;
    size_t grown_bytes = max_size(max_size(wanted, doubled), first);
    char *grown = mem_resize(*data, size, grown_bytes);
    if (grown == NULL)
        return false;
    *data = grown;
    *capacity = grown_bytes;
    return true;
}

void mem_free(void *p)
{
    free(p);
}

void mem_trim(void)
{
#ifdef __GLIBC__
    (void)malloc_trim(0);
#endif
}

char *mem_strndup(const char *s, size_t n)
{
    size_t n_bytes;
    if (!add_size(n, 1, &n_bytes))
        return NULL;
    char *p = mem_alloc(n_bytes);
    if (p == NULL)
        return NULL;
    memcpy(p, s, n);
    p[n] = 0;
    return p;
}

void *map_alloc(size_t n_bytes, int huge)
{
    size_t rounded;

    if (n_bytes == 0 || !round_up_size(n_bytes, HUGE_PAGE, &rounded) ||
        rounded > PTRDIFF_MAX - HUGE_PAGE)
        return NULL;
    if (must_fail())
        return NULL;
    /* One huge page more than needed, trimmed below, so that the block starts on a huge-page
     * boundary. */
    unsigned char *base = mmap(NULL, rounded + HUGE_PAGE, PROT_READ | PROT_WRITE,
                               MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (base == MAP_FAILED)
        return NULL;
    size_t head = (HUGE_PAGE - (uintptr_t)base % HUGE_PAGE) % HUGE_PAGE;
    if (head > 0)
        (void)munmap(base, head);
    if (head < HUGE_PAGE)
        (void)munmap(base + head + rounded, HUGE_PAGE - head);
    (void)madvise(base + head, rounded, huge ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
    return base + head;
}

void map_free(void *p, size_t n_bytes)
{
    size_t rounded;
    if (p != NULL && round_up_size(n_bytes, HUGE_PAGE, &rounded))
        (void)munmap(p, rounded);
}

uint64_t mem_count_calls(void)
{
    return atomic_load_explicit(&n_calls, memory_order_relaxed);
}

void mem_fail_after(uint64_t n)
{
    atomic_store_explicit(&fail_countdown, n, memory_order_relaxed);
}
