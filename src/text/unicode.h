/* UTF-8 as the reference tokenizers see it, the few character properties they ask for, and a
 * growing byte buffer.
 *
 * Why here: every stage of a tokenizer walks UTF-8. Tables come from utf8proc; what it lacks stands
 * in unicode.c. It must not know tokens. */
#ifndef TEXT_UNICODE_H
#define TEXT_UNICODE_H

#include "file/utf8.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Growing bytes in the caller's storage: {0} to start, bytes_fini to free. */
struct bytes {
    char *data;
    size_t size;
    size_t capacity;
};

/* Makes room for n more bytes; false when out of memory (contents stay). */
bool bytes_reserve(struct bytes *bytes, size_t n);
bool bytes_append(struct bytes *bytes, const void *data, size_t n);
bool bytes_append_code(struct bytes *bytes, int32_t code);
void bytes_fini(struct bytes *bytes);

/* Reads one character of s [n > 0]: its length, *ret_code the code point. Ill-formed: *ret_code is
 * -1 and the length that of the maximal ill-formed subsequence (Unicode 3.9, as Python's "replace"
 * and Rust's lossy conversion count it). */
size_t utf8_decode(const char *s, size_t n, int32_t *ret_code);

/* Whether s [n > 0] is a proper beginning of one well-formed character. */
bool utf8_is_incomplete(const char *s, size_t n);

/* Bytes at the start of s that are well-formed UTF-8. */
size_t utf8_valid_size(const char *s, size_t n);

/* Appends s with U+FFFD for every ill-formed subsequence; false when out of memory. */
bool utf8_append_lossy(struct bytes *bytes, const char *s, size_t n);

/* White_Space; \w (Alphabetic, marks, decimal digits, connectors, joiners); general category N;
 * ASCII punctuation or general category P. */
bool unicode_is_space(int32_t code);
bool unicode_is_word(int32_t code);
bool unicode_is_numeric(int32_t code);
bool unicode_is_punctuation(int32_t code);

/* A character that our tables know and that has the category the reference gives to `code`: the
 * code itself unless it is newer than the tables (Unicode 15 and 16) or U+180E, which PCRE2 takes
 * for white space. Both have the same length in UTF-8. */
int32_t unicode_stand_in(int32_t code);

/* Whether normal forms leave the character alone although newer Unicode gives it a combining class
 * or a decomposition: the reference normalises by the tables of Unicode 9. */
bool unicode_is_inert(int32_t code);

/* Offset of the first character of s, well-formed UTF-8, that has a stand-in; n when none has. */
size_t unicode_find_newer(const char *s, size_t n);

/* The byte-level alphabet of GPT-2: each byte has one printable character, below U+0144. from_byte
 * gives its code point, to_byte the byte or -1. */
int32_t byte_level_from_byte(unsigned char byte);
int byte_level_to_byte(int32_t code);

#endif
