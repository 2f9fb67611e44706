/* Unit tests of tensor/dtype.c: the table agrees with the GGUF specification, sizes are checked. */
#include "../unit.h"

#include "tensor/dtype.h"

#include <string.h>

/* Written out again, from the specification, so that a slip in the table shows. */
static const struct {
    enum dtype dtype;
    const char *name;
    uint64_t elems, bytes;
    uint32_t gguf;
} ALL[] = {
    {DTYPE_F32, "F32", 1, 4, 0},        {DTYPE_F16, "F16", 1, 2, 1},
    {DTYPE_BF16, "BF16", 1, 2, 30},     {DTYPE_Q8_0, "Q8_0", 32, 34, 8},
    {DTYPE_Q4_0, "Q4_0", 32, 18, 2},    {DTYPE_Q4_1, "Q4_1", 32, 20, 3},
    {DTYPE_Q5_0, "Q5_0", 32, 22, 6},    {DTYPE_Q5_1, "Q5_1", 32, 24, 7},
    {DTYPE_Q4_K, "Q4_K", 256, 144, 12}, {DTYPE_Q5_K, "Q5_K", 256, 176, 13},
    {DTYPE_Q6_K, "Q6_K", 256, 210, 14}, {DTYPE_IQ4_NL, "IQ4_NL", 32, 18, 20},
    {DTYPE_MXFP4, "MXFP4", 32, 17, 39},
};

static void table_is_the_specification(void **state)
{
    (void)state;
    assert_int_equal(COUNT_OF(ALL), DTYPE_COUNT);
    for (size_t i = 0; i < COUNT_OF(ALL); i++) {
        enum dtype dtype = DTYPE_COUNT;
        assert_string_equal(dtype_name(ALL[i].dtype), ALL[i].name);
        assert_int_equal(dtype_block_elems(ALL[i].dtype), ALL[i].elems);
        assert_int_equal(dtype_block_bytes(ALL[i].dtype), ALL[i].bytes);
        assert_int_equal(dtype_to_gguf(ALL[i].dtype), ALL[i].gguf);
        assert_true(dtype_from_gguf(ALL[i].gguf, &dtype));
        assert_int_equal(dtype, ALL[i].dtype);
    }
}

static void unknown_gguf_types_are_refused(void **state)
{
    (void)state;
    for (uint32_t type = 0; type < 300; type++) {
        enum dtype dtype = DTYPE_COUNT;
        size_t n_known = 0;
        for (size_t i = 0; i < COUNT_OF(ALL); i++)
            n_known += ALL[i].gguf == type;
        assert_int_equal(dtype_from_gguf(type, &dtype), n_known);
        if (n_known == 0)
            assert_int_equal(dtype, DTYPE_COUNT); /* untouched */
    }
    enum dtype dtype;
    assert_false(dtype_from_gguf(UINT32_MAX, &dtype));
}

static void names_parse_in_any_case(void **state)
{
    enum dtype dtype = DTYPE_F32;

    (void)state;
    for (size_t i = 0; i < COUNT_OF(ALL); i++) {
        char lower[16] = {0};
        for (size_t j = 0; ALL[i].name[j] != 0; j++)
            lower[j] =
                (char)(ALL[i].name[j] | (ALL[i].name[j] >= 'A' && ALL[i].name[j] <= 'Z' ? 32 : 0));
        assert_true(dtype_parse(ALL[i].name, &dtype));
        assert_int_equal(dtype, ALL[i].dtype);
        assert_true(dtype_parse(lower, &dtype));
        assert_int_equal(dtype, ALL[i].dtype);
    }
    static const char *const BAD[] = {"", "F3", "F322", "Q4_K_M", " F32", "Q4-0", "NVFP4"};
    dtype = DTYPE_Q4_K;
    for (size_t i = 0; i < COUNT_OF(BAD); i++)
        assert_false(dtype_parse(BAD[i], &dtype));
    assert_int_equal(dtype, DTYPE_Q4_K);
}

static void row_sizes_are_checked(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT_OF(ALL); i++) {
        uint64_t bytes = 99;
        assert_true(dtype_row_bytes(ALL[i].dtype, 0, &bytes));
        assert_int_equal(bytes, 0);
        assert_true(dtype_row_bytes(ALL[i].dtype, 7 * ALL[i].elems, &bytes));
        assert_int_equal(bytes, 7 * ALL[i].bytes);
        bytes = 99;
        if (ALL[i].elems > 1) {
            assert_false(dtype_row_bytes(ALL[i].dtype, ALL[i].elems - 1, &bytes));
            assert_false(dtype_row_bytes(ALL[i].dtype, ALL[i].elems + 1, &bytes));
            assert_false(dtype_row_bytes(ALL[i].dtype, UINT64_MAX, &bytes));
        }
        /* the largest n whose bytes fit in 64 bits, and the block after it */
        uint64_t n_blocks = UINT64_MAX / ALL[i].bytes, most = UINT64_MAX / ALL[i].elems;
        if (n_blocks < most) {
            assert_false(dtype_row_bytes(ALL[i].dtype, (n_blocks + 1) * ALL[i].elems, &bytes));
            assert_int_equal(bytes, 99);
            assert_true(dtype_row_bytes(ALL[i].dtype, n_blocks * ALL[i].elems, &bytes));
            assert_true(bytes == n_blocks * ALL[i].bytes);
        } else {
            assert_true(dtype_row_bytes(ALL[i].dtype, most * ALL[i].elems, &bytes));
            assert_true(bytes == most * ALL[i].bytes);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(table_is_the_specification),
        cmocka_unit_test(unknown_gguf_types_are_refused),
        cmocka_unit_test(names_parse_in_any_case),
        cmocka_unit_test(row_sizes_are_checked),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
