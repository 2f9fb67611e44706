/* UTF-8: validity of what comes from files, and one character written. */
#ifndef FILE_UTF8_H
#define FILE_UTF8_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Bytes of the valid sequence at s (`left` > 0 bytes may be read); 0: not one. Overlong forms,
 * surrogates and values over U+10FFFF are invalid. */
static inline size_t utf8_length(const unsigned char *s, size_t left)
{
    if (s[0] < 0x80)
        return 1;
    size_t n = s[0] >= 0xC2 && s[0] <= 0xDF   ? 2
               : s[0] >= 0xE0 && s[0] <= 0xEF ? 3
               : s[0] >= 0xF0 && s[0] <= 0xF4 ? 4
                                              : 0;
    if (n == 0 || n > left)
        return 0;
    unsigned char low = s[0] == 0xE0 ? 0xA0 : s[0] == 0xF0 ? 0x90 : 0x80;
    unsigned char high = s[0] == 0xED ? 0x9F : s[0] == 0xF4 ? 0x8F : 0xBF;
    if (s[1] < low || s[1] > high)
        return 0;
    for (size_t i = 2; i < n; i++) {
        if ((s[i] & 0xC0) != 0x80)
            return 0;
    }
    return n;
}

/* Whether all n bytes are valid UTF-8 without control characters (so no 0 either). */
static inline bool utf8_is_name(const void *data, size_t n)
{
    const unsigned char *s = data;

    for (size_t i = 0; i < n;) {
        size_t step = utf8_length(s + i, n - i);
        if (step == 0 || s[i] < 0x20 || s[i] == 0x7F)
            return false;
        i += step;
    }
    return true;
}

/* Writes a scalar value; returns 1..4. */
static inline size_t utf8_encode(int32_t code, char ret[4])
{
    uint32_t c = (uint32_t)code;

    if (c < 0x80) {
        ret[0] = (char)c;
        return 1;
    }
    size_t size = c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
    for (size_t i = size - 1; i > 0; i--) {
        ret[i] = (char)(0x80 | (c & 0x3F));
        c >>= 6;
    }
    ret[0] = (char)((0xF00U >> size) | c);
    return size;
}

#endif
