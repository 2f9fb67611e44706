/* UTF-8, character properties, byte buffers. See unicode.h. */
#include "text/unicode.h"

#include "base/alloc.h"
#include "base/size.h"

#include <string.h>
#include <utf8proc.h>

enum { FIRST_CAPACITY = 256, REPLACEMENT = 0xFFFD };

bool bytes_reserve(struct bytes *bytes, size_t n)
{
    return mem_reserve(&bytes->data, bytes->size, &bytes->capacity, n, FIRST_CAPACITY);
}

bool bytes_append(struct bytes *bytes, const void *data, size_t n)
{
    if (!bytes_reserve(bytes, n))
        return false;
    if (n > 0)
        memcpy(bytes->data + bytes->size, data, n);
    bytes->size += n;
    return true;
}

bool bytes_append_code(struct bytes *bytes, int32_t code)
{
    char text[4];
    return bytes_append(bytes, text, utf8_encode(code, text));
}

void bytes_fini(struct bytes *bytes)
{
    mem_free(bytes->data);
    *bytes = (struct bytes){0};
}

/* Length a lead byte asks for (0: no lead byte) and the range of its second byte. */
static size_t lead_size(unsigned char lead, unsigned char *ret_low, unsigned char *ret_high)
{
    *ret_low = lead == 0xE0 ? 0xA0 : lead == 0xF0 ? 0x90 : 0x80;
    *ret_high = lead == 0xED ? 0x9F : lead == 0xF4 ? 0x8F : 0xBF;
    return lead < 0x80   ? 1
           : lead < 0xC2 ? 0
           : lead < 0xE0 ? 2
           : lead < 0xF0 ? 3
           : lead < 0xF5 ? 4
                         : 0;
}

/* Bytes of s that fit one well-formed character; *ret_size what its lead byte asks for. */
static size_t fitting_size(const char *s, size_t n, size_t *ret_size)
{
    const unsigned char *u = (const unsigned char *)s;
    unsigned char low;
    unsigned char high;
    size_t size = lead_size(u[0], &low, &high);

    *ret_size = size;
    if (size <= 1)
        return size;
    if (n < 2 || u[1] < low || u[1] > high)
        return 1;
    size_t i = 2;
    while (i < size && i < n && (u[i] & 0xC0) == 0x80)
        i++;
    return i;
}

size_t utf8_decode(const char *s, size_t n, int32_t *ret_code)
{
    const unsigned char *u = (const unsigned char *)s;
    size_t size;

    if (u[0] < 0x80) {
        *ret_code = u[0];
        return 1;
    }
    size_t fits = fitting_size(s, n, &size);
    if (size == 0 || fits < size) {
        *ret_code = -1;
        return max_size(fits, 1);
    }
    int32_t code = u[0] & (0x7F >> size);
    for (size_t i = 1; i < size; i++)
        code = (code << 6) | (u[i] & 0x3F);
    *ret_code = code;
    return size;
}

bool utf8_is_incomplete(const char *s, size_t n)
{
    size_t size;
    size_t fits = fitting_size(s, n, &size);
    return size > 1 && fits == n && n < size;
}

size_t utf8_valid_size(const char *s, size_t n)
{
    size_t i = 0;

    while (i < n) {
        uint64_t word;
        if (n - i >= sizeof word) {
            memcpy(&word, s + i, sizeof word);
            if ((word & 0x8080808080808080U) == 0) {
                i += sizeof word;
                continue;
            }
        }
        int32_t code;
        size_t size = utf8_decode(s + i, n - i, &code);
        if (code < 0)
            return i;
        i += size;
    }
    return n;
}

bool utf8_append_lossy(struct bytes *bytes, const char *s, size_t n)
{
    while (n > 0) {
        size_t valid = utf8_valid_size(s, n);
        if (!bytes_append(bytes, s, valid))
            return false;
        s += valid;
        n -= valid;
        if (n == 0)
            break;
        int32_t code;
        size_t bad = utf8_decode(s, n, &code);
        if (!bytes_append_code(bytes, REPLACEMENT))
            return false;
        s += bad;
        n -= bad;
    }
    return true;
}

bool unicode_is_space(int32_t code)
{
    if (code < 0x80)
        return code == ' ' || (code >= '\t' && code <= '\r');
    return code == 0x85 || code == 0xA0 || code == 0x1680 || (code >= 0x2000 && code <= 0x200A) ||
           code == 0x2028 || code == 0x2029 || code == 0x202F || code == 0x205F || code == 0x3000;
}

bool unicode_is_word(int32_t code)
{
    switch (utf8proc_category(unicode_stand_in(code))) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_PC:
        return true;
    default:
        /* Joiners, and the circled and squared letters that are Alphabetic but symbols. */
        return code == 0x200C || code == 0x200D || (code >= 0x24B6 && code <= 0x24E9) ||
               (code >= 0x1F130 && code <= 0x1F149) || (code >= 0x1F150 && code <= 0x1F169) ||
               (code >= 0x1F170 && code <= 0x1F189);
    }
}

bool unicode_is_numeric(int32_t code)
{
    if (code < 0x80)
        return code >= '0' && code <= '9';
    utf8proc_category_t category = utf8proc_category(unicode_stand_in(code));
    return category == UTF8PROC_CATEGORY_ND || category == UTF8PROC_CATEGORY_NL ||
           category == UTF8PROC_CATEGORY_NO;
}

/* The reference asks a list of Unicode 8: these became punctuation later (U+166D and U+111C9 have
 * ceased to be). */
static const int32_t LATER_PUNCTUATION[][2] = {
    {0x61D, 0x61D},     {0x9FD, 0x9FD},     {0xA76, 0xA76},     {0xC77, 0xC77},
    {0xC84, 0xC84},     {0x1B4E, 0x1B4F},   {0x1B7D, 0x1B7F},   {0x2E43, 0x2E4F},
    {0x2E52, 0x2E5D},   {0x10D6E, 0x10D6E}, {0x10EAD, 0x10EAD}, {0x10F55, 0x10F59},
    {0x10F86, 0x10F89}, {0x113D4, 0x113D5}, {0x113D7, 0x113D8}, {0x1144B, 0x1144F},
    {0x1145A, 0x1145B}, {0x1145D, 0x1145D}, {0x11660, 0x1166C}, {0x116B9, 0x116B9},
    {0x1183B, 0x1183B}, {0x11944, 0x11946}, {0x119E2, 0x119E2}, {0x11A3F, 0x11A46},
    {0x11A9A, 0x11A9C}, {0x11A9E, 0x11AA2}, {0x11B00, 0x11B09}, {0x11BE1, 0x11BE1},
    {0x11C41, 0x11C45}, {0x11C70, 0x11C71}, {0x11EF7, 0x11EF8}, {0x11F43, 0x11F4F},
    {0x11FFF, 0x11FFF}, {0x12FF1, 0x12FF2}, {0x16D6D, 0x16D6F}, {0x16E97, 0x16E9A},
    {0x16FE2, 0x16FE2}, {0x1E5FF, 0x1E5FF}, {0x1E95E, 0x1E95F},
};

bool unicode_is_punctuation(int32_t code)
{
    if (code < 0x80)
        return (code >= 33 && code <= 47) || (code >= 58 && code <= 64) ||
               (code >= 91 && code <= 96) || (code >= 123 && code <= 126);
    if (code == 0x166D || code == 0x111C9)
        return true;
    for (size_t i = 0; i < sizeof LATER_PUNCTUATION / sizeof LATER_PUNCTUATION[0]; i++) {
        if (code >= LATER_PUNCTUATION[i][0] && code <= LATER_PUNCTUATION[i][1])
            return false;
    }
    utf8proc_category_t category = utf8proc_category(unicode_stand_in(code));
    return category >= UTF8PROC_CATEGORY_PC && category <= UTF8PROC_CATEGORY_PO;
}

struct newer_range {
    int32_t first;
    int32_t last;
    int32_t stand_in;
};

static const struct newer_range NEWER[] = {
#include "text/unicode_delta.inc"
};

int32_t unicode_stand_in(int32_t code)
{
    size_t low = 0;
    size_t high = sizeof NEWER / sizeof NEWER[0];

    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (NEWER[middle].last < code)
            low = middle + 1;
        else
            high = middle;
    }
    bool found = low < sizeof NEWER / sizeof NEWER[0] && code >= NEWER[low].first;
    return found ? NEWER[low].stand_in : code;
}

static const int32_t INERT[][2] = {
#include "text/unicode_inert.inc"
};

bool unicode_is_inert(int32_t code)
{
    size_t low = 0;
    size_t high = sizeof INERT / sizeof INERT[0];

    if (code < INERT[0][0])
        return false;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (INERT[middle][1] < code)
            low = middle + 1;
        else
            high = middle;
    }
    if (low < sizeof INERT / sizeof INERT[0] && code >= INERT[low][0])
        return true;
    return unicode_stand_in(code) != code;
}

size_t unicode_find_newer(const char *s, size_t n)
{
    for (size_t i = 0; i < n;) {
        unsigned char lead = (unsigned char)s[i];
        /* No character of the table begins otherwise: most text needs no look-up. */
        bool maybe = (lead >= 0xE0 && lead <= 0xE3) || lead == 0xEA || lead >= 0xF0;
        if (!maybe) {
            i++;
            continue;
        }
        int32_t code;
        size_t size = utf8_decode(s + i, n - i, &code);
        if (unicode_stand_in(code) != code)
            return i;
        i += size;
    }
    return n;
}

/* Bytes that stand for themselves are printable Latin-1; the other 68 take U+0100 on, in order:
 * 0x00..0x20, 0x7F..0xA0, 0xAD. */
int32_t byte_level_from_byte(unsigned char byte)
{
    if (byte <= 0x20)
        return 0x100 + byte;
    if (byte >= 0x7F && byte <= 0xA0)
        return 0x121 + (byte - 0x7F);
    return byte == 0xAD ? 0x143 : byte;
}

int byte_level_to_byte(int32_t code)
{
    if (code >= 0x100 && code <= 0x120)
        return code - 0x100;
    if (code >= 0x121 && code <= 0x142)
        return code - 0x121 + 0x7F;
    if (code == 0x143)
        return 0xAD;
    if (code < 0x21 || code > 0xFF || (code >= 0x7F && code <= 0xA0) || code == 0xAD)
        return -1;
    return code;
}
