/* Table of element types. See dtype.h. Source of sizes and numbers: the GGUF specification. */
#include "tensor/dtype.h"

#include "base/size.h"

#include <strings.h>

static const struct {
    const char *name;
    uint16_t elems, bytes;
    uint32_t gguf;
} TYPES[DTYPE_COUNT] = {
    [DTYPE_F32] = {"F32", 1, 4, 0},        [DTYPE_F16] = {"F16", 1, 2, 1},
    [DTYPE_BF16] = {"BF16", 1, 2, 30},     [DTYPE_Q8_0] = {"Q8_0", 32, 34, 8},
    [DTYPE_Q4_0] = {"Q4_0", 32, 18, 2},    [DTYPE_Q4_1] = {"Q4_1", 32, 20, 3},
    [DTYPE_Q5_0] = {"Q5_0", 32, 22, 6},    [DTYPE_Q5_1] = {"Q5_1", 32, 24, 7},
    [DTYPE_Q4_K] = {"Q4_K", 256, 144, 12}, [DTYPE_Q5_K] = {"Q5_K", 256, 176, 13},
    [DTYPE_Q6_K] = {"Q6_K", 256, 210, 14}, [DTYPE_IQ4_NL] = {"IQ4_NL", 32, 18, 20},
    [DTYPE_MXFP4] = {"MXFP4", 32, 17, 39},
};

size_t dtype_block_elems(enum dtype dtype)
{
    return TYPES[dtype].elems;
}

size_t dtype_block_bytes(enum dtype dtype)
{
    return TYPES[dtype].bytes;
}

const char *dtype_name(enum dtype dtype)
{
    return TYPES[dtype].name;
}

bool dtype_parse(const char *name, enum dtype *ret_dtype)
{
    for (int i = 0; i < DTYPE_COUNT; i++) {
        if (strcasecmp(name, TYPES[i].name) == 0) {
            *ret_dtype = (enum dtype)i;
            return true;
        }
    }
    return false;
}

bool dtype_row_bytes(enum dtype dtype, uint64_t n, uint64_t *ret_bytes)
{
    if (n % TYPES[dtype].elems != 0)
        return false;
    return mul_u64(n / TYPES[dtype].elems, TYPES[dtype].bytes, ret_bytes);
}

bool dtype_from_gguf(uint32_t type, enum dtype *ret_dtype)
{
    for (int i = 0; i < DTYPE_COUNT; i++) {
        if (TYPES[i].gguf == type) {
            *ret_dtype = (enum dtype)i;
            return true;
        }
    }
    return false;
}

uint32_t dtype_to_gguf(enum dtype dtype)
{
    return TYPES[dtype].gguf;
}
