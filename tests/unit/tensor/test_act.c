/* Unit tests of tensor/act.h: where the parts of an activation row lie, and the format per weight.
 */
#include "../unit.h"

#include "tensor/act.h"

static void format_follows_the_weight_alone(void **state)
{
    (void)state;
    for (int i = 0; i < DTYPE_COUNT; i++) {
        enum dtype dtype = (enum dtype)i;
        assert_int_equal(act_format_for(dtype),
                         dtype_block_elems(dtype) == 1 ? ACT_FORMAT_F32 : ACT_FORMAT_A32);
    }
}

static void parts_of_a_row_do_not_overlap(void **state)
{
    _Alignas(64) static char row[1 << 16];

    (void)state;
    for (size_t k = 0; k < 1500; k++) {
        size_t n_blocks = act_blocks(k);
        size_t n_bytes = act_row_bytes(ACT_FORMAT_A32, k);
        assert_true(n_blocks * ACT_BLOCK >= k && n_blocks * ACT_BLOCK < k + ACT_BLOCK);
        assert_int_equal(n_bytes % 64, 0);
        size_t scales = (size_t)((const char *)act_a32_scales(row, k) - row);
        size_t sums = (size_t)((const char *)act_a32_sums(row, k) - row);
        assert_int_equal(scales, n_blocks * ACT_BLOCK);
        assert_int_equal(sums, scales + n_blocks * sizeof(float));
        assert_int_equal(scales % sizeof(float), 0);
        size_t end = sums + n_blocks * sizeof(int32_t);
        assert_true(n_bytes >= end && n_bytes < end + 64);
        size_t f32 = act_row_bytes(ACT_FORMAT_F32, k);
        assert_true(f32 % 64 == 0 && f32 >= 4 * k && f32 < 4 * k + 64);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(format_follows_the_weight_alone),
        cmocka_unit_test(parts_of_a_row_do_not_overlap),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
