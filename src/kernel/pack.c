/* Repacks weights from file order into column groups of 8. See pack_layout.h for the layout.
 *
 * Why here: every level reads the same packed bytes. Packing moves bits and never changes a value:
 * scales stay as the file has them, 6-bit scales of K types become bytes. Words of 4 codes are
 * moved at once; a word's byte j is always element 4q + j, and shifts are masked per byte. */
#include "kernel/pack_layout.h"

#include "base/assert.h"

#include <string.h>

#define LOW4  0x0F0F0F0Fu
#define HIGH4 0xF0F0F0F0u

static uint32_t load32(const uint8_t *p)
{
    uint32_t w;
    memcpy(&w, p, sizeof w);
    return w;
}

/* Word of column c in vector v of a body. */
static void store32(uint8_t *body, size_t v, size_t c, uint32_t w)
{
    memcpy(body + v * PACK_VECTOR + c * 4, &w, sizeof w);
}

size_t pack_group_bytes(enum dtype dtype, size_t k)
{
    FERRY_ASSERT(k % dtype_block_elems(dtype) == 0);
    return pack_group_size(dtype, k);
}

/* ---- plain types ---- */

static void pack_plain(uint8_t *dst, const uint8_t *src, size_t row_bytes, size_t n_cols, size_t k,
                       size_t elem_bytes)
{
    for (size_t c = 0; c < n_cols; c++) {
        const uint8_t *row = src + c * row_bytes;
        uint8_t *out = dst + c * elem_bytes;
        if (elem_bytes == 4) {
            for (size_t i = 0; i < k; i++)
                memcpy(out + i * 32, row + i * 4, 4);
        } else {
            for (size_t i = 0; i < k; i++)
                memcpy(out + i * 16, row + i * 2, 2);
        }
    }
}

/* ---- 32-element formats ---- */

/* 16 bytes of nibbles, low = element i, high = element 16 + i: already the packed order. */
static void put_nibbles(uint8_t *body, size_t c, const uint8_t *qs)
{
    for (size_t q = 0; q < 4; q++)
        store32(body, q, c, load32(qs + 4 * q));
}

/* 32 bits, bit i = element i, as bit q of byte j for element 4q + j. */
static void put_fifth_bits(uint8_t *body, size_t c, const uint8_t *qh)
{
    uint32_t bits =
        (uint32_t)qh[0] | (uint32_t)qh[1] << 8 | (uint32_t)qh[2] << 16 | (uint32_t)qh[3] << 24;
    uint8_t bytes[4] = {0};

    for (size_t i = 0; i < PACK_BLOCK; i++)
        bytes[i % 4] = (uint8_t)(bytes[i % 4] | (bits >> i & 1u) << (i / 4));
    store32(body, 4, c, load32(bytes));
}

/* One file block of column c into its panel; b is the block's index in the panel. */
static void pack_block32(enum dtype dtype, struct pack_layout l, uint8_t *header, size_t b,
                         size_t c, const uint8_t *src)
{
    uint8_t *body = header + l.header + b * l.body;
    uint8_t *scale = header + (b * KERNEL_GROUP + c) * 2;
    uint8_t *min = header + ((l.blocks + b) * KERNEL_GROUP + c) * 2;

    switch (dtype) {
    case DTYPE_Q8_0:
        memcpy(scale, src, 2);
        for (size_t q = 0; q < 8; q++)
            store32(body, q, c, load32(src + 2 + 4 * q));
        break;
    case DTYPE_Q4_0:
    case DTYPE_IQ4_NL:
        memcpy(scale, src, 2);
        put_nibbles(body, c, src + 2);
        break;
    case DTYPE_Q4_1:
        memcpy(scale, src, 2);
        memcpy(min, src + 2, 2);
        put_nibbles(body, c, src + 4);
        break;
    case DTYPE_Q5_0:
        memcpy(scale, src, 2);
        put_fifth_bits(body, c, src + 2);
        put_nibbles(body, c, src + 6);
        break;
    case DTYPE_Q5_1:
        memcpy(scale, src, 2);
        memcpy(min, src + 2, 2);
        put_fifth_bits(body, c, src + 4);
        put_nibbles(body, c, src + 8);
        break;
    default:
        FERRY_ASSERT(dtype == DTYPE_MXFP4);
        header[b * KERNEL_GROUP + c] = src[0];
        put_nibbles(body, c, src + 1);
        break;
    }
}

/* ---- K types: one file block of 256 elements is one panel ---- */

/* The 6-bit scales and minima of 8 sub-blocks, 12 bytes in the file. */
static void put_scales_k(uint8_t *header, size_t c, const uint8_t *s)
{
    for (size_t j = 0; j < 8; j++) {
        uint8_t sc = s[j] & 63u;
        uint8_t m = s[j + 4] & 63u;
        if (j >= 4) {
            sc = (uint8_t)((s[j + 4] & 15u) | (uint32_t)(s[j - 4] >> 6) << 4);
            m = (uint8_t)((uint32_t)(s[j + 4] >> 4) | (uint32_t)(s[j] >> 6) << 4);
        }
        header[32 + j * KERNEL_GROUP + c] = sc;
        header[96 + j * KERNEL_GROUP + c] = m;
    }
}

/* Nibbles of one sub-block of 32: bytes qs[0..31], the low or the high half of each. */
static void put_nibbles_k(uint8_t *body, size_t c, const uint8_t *qs, bool high)
{
    for (size_t q = 0; q < 4; q++) {
        uint32_t lo = load32(qs + 4 * q);
        uint32_t hi = load32(qs + 16 + 4 * q);
        store32(body, q, c,
                high ? (lo >> 4 & LOW4) | (hi & HIGH4) : (lo & LOW4) | (hi & LOW4) << 4);
    }
}

static void pack_q45_k(uint8_t *header, struct pack_layout l, size_t c, const uint8_t *src,
                       bool five)
{
    const uint8_t *qh = src + 16;
    const uint8_t *qs = five ? src + 48 : src + 16;

    memcpy(header + c * 2, src, 2);
    memcpy(header + 16 + c * 2, src + 2, 2);
    put_scales_k(header, c, src + 4);
    for (size_t s = 0; s < 8; s++) {
        uint8_t *body = header + l.header + s * l.body;
        put_nibbles_k(body, c, qs + s / 2 * 32, s % 2 != 0);
        if (!five)
            continue;
        uint32_t fifth = 0;
        for (size_t q = 0; q < 8; q++)
            fifth |= (load32(qh + 4 * q) >> s & 0x01010101u) << q;
        store32(body, 4, c, fifth);
    }
}

static void pack_q6_k(uint8_t *header, struct pack_layout l, size_t c, const uint8_t *src)
{
    const uint8_t *qh = src + 128, *scales = src + 192;

    memcpy(header + c * 2, src + 208, 2);
    for (size_t i = 0; i < 16; i++)
        header[32 + i * KERNEL_GROUP + c] = scales[i];
    for (size_t s = 0; s < 8; s++) { /* sub-block t of a half: see codec_decode_row */
        uint8_t *body = header + l.header + s * l.body;
        size_t half = s / 4, t = s % 4;
        put_nibbles_k(body, c, src + half * 64 + t % 2 * 32, t >= 2);
        for (size_t v = 0; v < 2; v++) {
            uint32_t top = 0;
            for (size_t q = 0; q < 4; q++) {
                uint32_t w = load32(qh + half * 32 + v * 16 + 4 * q);
                top |= (w >> 2 * t & 0x03030303u) << 2 * q;
            }
            store32(body, 4 + v, c, top);
        }
    }
}

void pack_group(enum dtype dtype, void *dst, const void *src, size_t row_bytes, size_t n_cols,
                size_t k)
{
    struct pack_layout l = pack_layout_of(dtype);
    size_t file_bytes = dtype_block_bytes(dtype);

    FERRY_ASSERT(n_cols >= 1 && n_cols <= KERNEL_GROUP);
    memset(dst, 0, pack_group_bytes(dtype, k));
    if (l.blocks == 0) {
        pack_plain(dst, src, row_bytes, n_cols, k, file_bytes);
        return;
    }
    for (size_t c = 0; c < n_cols; c++) {
        const uint8_t *row = (const uint8_t *)src + c * row_bytes;
        size_t n_file_blocks = k / dtype_block_elems(dtype);
        for (size_t i = 0; i < n_file_blocks; i++, row += file_bytes) {
            bool is_k = dtype == DTYPE_Q4_K || dtype == DTYPE_Q5_K || dtype == DTYPE_Q6_K;
            size_t b = is_k ? 0 : i % l.blocks;
            uint8_t *header = (uint8_t *)dst + (is_k ? i : i / l.blocks) * pack_panel_bytes(l);
            if (dtype == DTYPE_Q6_K)
                pack_q6_k(header, l, c, row);
            else if (is_k)
                pack_q45_k(header, l, c, row, dtype == DTYPE_Q5_K);
            else
                pack_block32(dtype, l, header, b, c, row);
        }
    }
}
