/* Checked size arithmetic: every product or sum of sizes that come from a file or a user goes
 * through here. */
#ifndef BASE_SIZE_H
#define BASE_SIZE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* *ret = a * b or a + b; false (and *ret untouched) when the result does not fit. */
static inline bool mul_size(size_t a, size_t b, size_t *ret)
{
    size_t r;
    if (__builtin_mul_overflow(a, b, &r))
        return false;
    *ret = r;
    return true;
}

static inline bool add_size(size_t a, size_t b, size_t *ret)
{
    size_t r;
    if (__builtin_add_overflow(a, b, &r))
        return false;
    *ret = r;
    return true;
}

static inline bool mul_u64(uint64_t a, uint64_t b, uint64_t *ret)
{
    uint64_t r;
    if (__builtin_mul_overflow(a, b, &r))
        return false;
    *ret = r;
    return true;
}

static inline bool add_u64(uint64_t a, uint64_t b, uint64_t *ret)
{
    uint64_t r;
    if (__builtin_add_overflow(a, b, &r))
        return false;
    *ret = r;
    return true;
}

/* n rounded up to a multiple of `to` (a power of two); false when it does not fit. */
static inline bool round_up_size(size_t n, size_t to, size_t *ret)
{
    size_t sum;
    if (!add_size(n, to - 1, &sum))
        return false;
    *ret = sum & ~(to - 1);
    return true;
}

static inline size_t min_size(size_t a, size_t b)
{
    return a < b ? a : b;
}

static inline size_t max_size(size_t a, size_t b)
{
    return a > b ? a : b;
}

/* ceil(n / d), d > 0 */
static inline size_t div_up(size_t n, size_t d)
{
    return n / d + (n % d != 0);
}

#endif
