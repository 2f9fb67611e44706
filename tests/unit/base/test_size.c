/* Unit tests of base/size.h: every helper at and around the point of overflow. */
#include "../unit.h"

#include "base/size.h"

static void products_and_sums(void **state)
{
    size_t r = 77;
    uint64_t u = 77;

    (void)state;
    assert_true(mul_size(SIZE_MAX / 3, 3, &r));
    assert_true(r == SIZE_MAX / 3 * 3);
    r = 77;
    assert_false(mul_size(SIZE_MAX / 3 + 1, 3, &r));
    assert_false(mul_size((size_t)1 << 32, (size_t)1 << 32, &r)); /* product wraps to exactly 0 */
    assert_int_equal(r, 77);                                      /* untouched */
    assert_true(mul_size(0, SIZE_MAX, &r));
    assert_int_equal(r, 0);
    assert_true(add_size(SIZE_MAX - 1, 1, &r));
    assert_true(r == SIZE_MAX);
    r = 77;
    assert_false(add_size(SIZE_MAX, 1, &r));
    assert_int_equal(r, 77);
    assert_true(mul_u64(UINT64_MAX / 5, 5, &u));
    assert_true(u == UINT64_MAX / 5 * 5);
    u = 77;
    assert_false(mul_u64(UINT64_MAX / 5 + 1, 5, &u));
    assert_false(add_u64(UINT64_MAX, UINT64_MAX, &u));
    assert_int_equal(u, 77);
    assert_true(add_u64(UINT64_MAX, 0, &u));
    assert_true(u == UINT64_MAX);
}

static void rounding_up(void **state)
{
    size_t r = 77;

    (void)state;
    for (size_t n = 0; n < 300; n++) {
        assert_true(round_up_size(n, 64, &r));
        assert_int_equal(r % 64, 0);
        assert_true(r >= n && r < n + 64);
        assert_int_equal(div_up(n, 7), (n + 6) / 7);
    }
    assert_true(round_up_size(SIZE_MAX - 63, 64, &r));
    assert_true(r == SIZE_MAX - 63);
    r = 77;
    assert_false(round_up_size(SIZE_MAX - 62, 64, &r));
    assert_int_equal(r, 77);
    assert_true(round_up_size(SIZE_MAX, 1, &r));
    assert_true(r == SIZE_MAX);
    assert_true(div_up(SIZE_MAX, 2) == SIZE_MAX / 2 + 1);
    assert_true(div_up(SIZE_MAX, SIZE_MAX) == 1);
    assert_true(div_up(0, SIZE_MAX) == 0);
}

static void least_and_greatest(void **state)
{
    (void)state;
    assert_int_equal(min_size(3, 4), 3);
    assert_int_equal(min_size(4, 3), 3);
    assert_int_equal(max_size(3, 4), 4);
    assert_true(max_size(SIZE_MAX, 0) == SIZE_MAX);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(products_and_sums),
        cmocka_unit_test(rounding_up),
        cmocka_unit_test(least_and_greatest),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
