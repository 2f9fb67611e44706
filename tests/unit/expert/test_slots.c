/* Slots: distinct, aligned, taken again after they were given back, and grown without moving. */
#include "tests/unit/unit.h"

#include "base/alloc.h"
#include "expert/slots.h"

#include <stdint.h>
#include <string.h>

static void slots_are_apart_and_stay_where_they_are(void **state)
{
    struct slots slots;
    unsigned char *taken[40];
    struct ferry_error err = {0};

    (void)state;
    slots_init(&slots, 1000);
    assert_int_equal(slots.slot_bytes, 1024);
    assert_null(slots_take(&slots));
    for (size_t i = 0; i < COUNT_OF(taken); i++) {
        if (i % 7 == 0) { /* slabs of 7: the last one is not used up */
            assert_int_equal(slots_reserve(&slots, 7, &err), FERRY_OK);
            assert_int_equal(slots_reserve(&slots, 3, &err), FERRY_OK); /* there are enough */
        }
        taken[i] = slots_take(&slots);
        assert_non_null(taken[i]);
        assert_int_equal((uintptr_t)taken[i] % 64, 0);
        memset(taken[i], (int)i, 1024);
    }
    assert_int_equal(slots.n_slots, 42);
    assert_int_equal(slots_bytes(&slots), 42 * 1024);
    for (size_t i = 0; i < COUNT_OF(taken); i++) { /* nobody wrote into another's */
        for (size_t k = 0; k < 1024; k++)
            assert_int_equal(taken[i][k], i);
    }
    slots_fini(&slots);
}

static void slots_come_back(void **state)
{
    struct slots slots;
    unsigned char *a, *b, *c;

    (void)state;
    slots_init(&slots, 64);
    assert_int_equal(slots_reserve(&slots, 2, NULL), FERRY_OK);
    a = slots_take(&slots);
    b = slots_take(&slots);
    assert_null(slots_take(&slots));
    assert_ptr_not_equal(a, b);
    for (size_t round = 0; round < 1000; round++) { /* no growth */
        slots_give(&slots, a);
        slots_give(&slots, b);
        assert_int_equal(slots_reserve(&slots, 2, NULL), FERRY_OK);
        c = slots_take(&slots);
        assert_ptr_equal(c, b); /* the last one given: its pages are warm */
        a = slots_take(&slots);
        b = c;
    }
    assert_int_equal(slots.n_slots, 2);
    assert_int_equal(slots.n_taken, 2);
    slots_fini(&slots);
}

static void out_of_memory_changes_nothing(void **state)
{
    struct slots slots;
    struct ferry_error err = {0};

    (void)state;
    slots_init(&slots, 4096);
    for (uint64_t n = 1; n <= 3; n++) {
        mem_fail_after(n);
        assert_int_equal(slots_reserve(&slots, 5, &err), FERRY_ERR_NOMEM);
        mem_fail_after(0);
        assert_non_null(strstr(err.msg, "5 more of 4096 bytes"));
        assert_null(slots_take(&slots));
    }
    assert_int_equal(slots_reserve(&slots, SIZE_MAX / 2, &err), FERRY_ERR_NOMEM);
    assert_int_equal(slots_reserve(&slots, 5, &err), FERRY_OK);
    assert_non_null(slots_take(&slots));
    for (uint64_t n = 1; n <= 3; n++) {
        mem_fail_after(n);
        assert_int_equal(slots_reserve(&slots, 9, &err), FERRY_ERR_NOMEM);
        mem_fail_after(0);
        assert_non_null(strstr(err.msg, "beside 5 slots of that size (1 in use)"));
    }
    assert_non_null(slots_take(&slots));
    slots_fini(&slots);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(slots_are_apart_and_stay_where_they_are),
        cmocka_unit_test(slots_come_back),
        cmocka_unit_test(out_of_memory_changes_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
