/* The packed weight layout of every dtype: what pack_group() writes and every matmul level reads.
 *
 * Why here: pack.c, ref/ and x86/ agree on it; it must not leave this room. All sizes are bytes.
 *
 * A group is 8 columns. Plain types: element k of column c at index k * 8 + c.
 *
 * Block types: "block" is 32 consecutive k of the 8 columns. A panel is `blocks` blocks: a header
 * with their scales, then one body per block. Panels follow each other; the last may hold fewer
 * bodies but has a whole header (unused scales zero). A body is made of 32-byte vectors; byte 4c +
 * j of a vector belongs to column c and to k = 4q + j:
 *
 *   Q8_0         8 vectors q = 0..7, the signed byte
 *   4-bit codes  4 vectors q = 0..3, low nibble k = 4q + j, high nibble k = 16 + 4q + j
 *   fifth bits   1 vector after the nibbles, bit q (0..7) of the byte is bit 4 of k = 4q + j
 *   Q6_K         2 vectors after the nibbles: bits 2q, 2q+1 (q = 0..3) are bits 4, 5 of
 *                k = 4q + j in the first and of k = 16 + 4q + j in the second
 *
 * Headers (b = block within the panel, c = column):
 *
 *   f16 d[blocks][8]                          Q8_0 Q4_0 Q5_0 IQ4_NL
 *   f16 d[blocks][8], f16 m[blocks][8]        Q4_1 Q5_1
 *   u8 e[blocks][8]                           MXFP4
 *   f16 d[8], f16 dmin[8], u8 sc[8][8], u8 m[8][8]   Q4_K Q5_K (6-bit scales as bytes)
 *   f16 d[8], 16 zero bytes, i8 sc[16][8]     Q6_K (scales of 16 k)
 *
 * Packed bytes against file bytes (k a multiple of the panel): 1.000 for all but Q4_K 1.028, Q5_K
 * 1.023, Q6_K 1.010. */
#ifndef KERNEL_PACK_LAYOUT_H
#define KERNEL_PACK_LAYOUT_H

#include "kernel/kernel.h"

enum {
    PACK_BLOCK = 32, /* k of one block; equals ACT_BLOCK */
    PACK_VECTOR = 32,
};

struct pack_layout {
    size_t blocks; /* per panel; 0 for plain types */
    size_t header;
    size_t body;
};

static inline struct pack_layout pack_layout_of(enum dtype dtype)
{
    switch (dtype) {
    case DTYPE_Q8_0:
        return (struct pack_layout){4, 64, 256};
    case DTYPE_Q4_0:
    case DTYPE_IQ4_NL:
        return (struct pack_layout){4, 64, 128};
    case DTYPE_Q4_1:
        return (struct pack_layout){4, 128, 128};
    case DTYPE_Q5_0:
        return (struct pack_layout){4, 64, 160};
    case DTYPE_Q5_1:
        return (struct pack_layout){4, 128, 160};
    case DTYPE_MXFP4:
        return (struct pack_layout){4, 32, 128};
    case DTYPE_Q4_K:
        return (struct pack_layout){8, 160, 128};
    case DTYPE_Q5_K:
        return (struct pack_layout){8, 160, 160};
    case DTYPE_Q6_K:
        return (struct pack_layout){8, 160, 192};
    default:
        return (struct pack_layout){0, 0, 0};
    }
}

/* Bytes of a whole panel. */
static inline size_t pack_panel_bytes(struct pack_layout l)
{
    return l.header + l.blocks * l.body;
}

/* pack_group_bytes() without its check, for kernels: with a constant dtype it is a shift or two. */
static inline size_t pack_group_size(enum dtype dtype, size_t k)
{
    struct pack_layout l = pack_layout_of(dtype);
    size_t n_blocks = k / PACK_BLOCK;
    size_t n = l.blocks == 0 ? k * KERNEL_GROUP * dtype_block_bytes(dtype)
                             : (n_blocks + l.blocks - 1) / l.blocks * l.header + n_blocks * l.body;
    return (n + 63) & ~(size_t)63;
}

/* Header of the panel that holds block b, and that block's body. */
static inline const uint8_t *pack_header(struct pack_layout l, const void *group, size_t b)
{
    return (const uint8_t *)group + b / l.blocks * pack_panel_bytes(l);
}

static inline const uint8_t *pack_body(struct pack_layout l, const void *group, size_t b)
{
    return pack_header(l, group, b) + l.header + b % l.blocks * l.body;
}

/* IQ4_NL values by code, and twice the E2M1 values by code. */
static const int8_t PACK_IQ4_NL[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                       1,    13,   25,  38,  53,  69,  89,  113};
static const int8_t PACK_MXFP4_X2[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

#endif
