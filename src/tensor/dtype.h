/* Element types of checkpoints: sizes and names of every format that Ferry reads.
 *
 * Why here: files, kernels and models agree on one list. It must not know where bytes come from or
 * how fast they are used. */
#ifndef TENSOR_DTYPE_H
#define TENSOR_DTYPE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum dtype {
    DTYPE_F32,
    DTYPE_F16,
    DTYPE_BF16,
    DTYPE_Q8_0,
    DTYPE_Q4_0,
    DTYPE_Q4_1,
    DTYPE_Q5_0,
    DTYPE_Q5_1,
    DTYPE_Q4_K,
    DTYPE_Q5_K,
    DTYPE_Q6_K,
    DTYPE_IQ4_NL,
    DTYPE_MXFP4,
    DTYPE_COUNT,
};

/* Elements per block (1 for plain types) and bytes per block. */
size_t dtype_block_elems(enum dtype dtype);
size_t dtype_block_bytes(enum dtype dtype);

/* "F32", "Q4_K"; parse accepts any letter case. */
const char *dtype_name(enum dtype dtype);
bool dtype_parse(const char *name, enum dtype *ret_dtype);

/* Bytes of one row of n elements. False when n is no multiple of the block or the size overflows.
 */
bool dtype_row_bytes(enum dtype dtype, uint64_t n, uint64_t *ret_bytes);

/* GGUF type number to dtype and back; false for a type that Ferry does not read. */
bool dtype_from_gguf(uint32_t type, enum dtype *ret_dtype);
uint32_t dtype_to_gguf(enum dtype dtype);

#endif
