/* Exact decoding of every block format to f32, and a simple encoder for the formats that tools and
 * tests write.
 *
 * Written for reading: kernels have their own packed layouts and are tested against this. Source of
 * the layouts: the GGUF specification and docs/numerics.md. */
#ifndef TENSOR_CODEC_H
#define TENSOR_CODEC_H

#include "tensor/dtype.h"

/* One row: src is dtype_row_bytes(dtype, n) bytes, any alignment; dst [n] f32. n is a multiple of
 * the block. Each value is the one that the format defines, computed in f32 as d * q (+ or - m),
 * one rounding per operation. */
void codec_decode_row(enum dtype dtype, const void *src, float *dst, size_t n);

/* One row the other way, by a plain round-to-nearest search per block (K types: per sub-block
 * scales from a short search, quantised to 6 or 8 bits). Codes are chosen for the scale as stored.
 * Good for tests and `quantize`, no importance weights. A block that holds an infinity or a NaN, or
 * whose scale overflows f16, decodes to non-finite values: a broken weight stays visible. */
void codec_encode_row(enum dtype dtype, const float *src, void *dst, size_t n);

#endif
