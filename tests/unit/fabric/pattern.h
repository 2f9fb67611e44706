/* Bytes that tell which message they belong to. */
#ifndef TESTS_UNIT_FABRIC_PATTERN_H
#define TESTS_UNIT_FABRIC_PATTERN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

static inline unsigned char pattern_byte(uint64_t number, size_t at)
{
    return (unsigned char)((number * 0x9e3779b97f4a7c15u + at * 0x2545f491u) >> 24);
}

static inline void fill(unsigned char *data, size_t n_bytes, uint64_t number)
{
    for (size_t i = 0; i < n_bytes; i++)
        data[i] = pattern_byte(number, i);
}

static inline bool is_filled(const unsigned char *data, size_t n_bytes, uint64_t number)
{
    for (size_t i = 0; i < n_bytes; i++) {
        if (data[i] != pattern_byte(number, i))
            return false;
    }
    return true;
}

#endif
