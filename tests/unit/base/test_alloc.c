/* Unit tests of base/alloc.c: alignment, sizes at the edge, counting, failure injection. */
#include "../unit.h"

#include "base/alloc.h"

#include <string.h>

static void blocks_are_aligned_and_writable(void **state)
{
    (void)state;
    for (size_t n = 1; n < 5000; n = n * 3 + 1) {
        unsigned char *p = mem_alloc(n);
        assert_non_null(p);
        assert_int_equal((uintptr_t)p % 64, 0);
        memset(p, 0xA5, n);
        mem_free(p);
    }
    mem_free(NULL);
}

static void zeroed_blocks_are_zero(void **state)
{
    (void)state;
    for (int round = 0; round < 8; round++) {
        unsigned char *dirty = mem_alloc(4097);
        assert_non_null(dirty);
        memset(dirty, 0xFF, 4097);
        mem_free(dirty);
        unsigned char *p = mem_zero(4097);
        assert_non_null(p);
        for (size_t i = 0; i < 4097; i++)
            assert_int_equal(p[i], 0);
        mem_free(p);
    }
}

static void impossible_sizes_give_null(void **state)
{
    (void)state;
    assert_null(mem_alloc(0));
    assert_null(mem_zero(0));
    assert_null(mem_alloc(SIZE_MAX));
    assert_null(mem_alloc(SIZE_MAX - 62));
    assert_null(mem_alloc((size_t)PTRDIFF_MAX + 1));
    assert_null(mem_array(SIZE_MAX / 2, 3));
    assert_null(mem_array(SIZE_MAX, SIZE_MAX));
    assert_null(mem_array(0, 8));
    assert_null(mem_strndup("x", SIZE_MAX));
    assert_null(map_alloc(0, 0));
    assert_null(map_alloc(SIZE_MAX, 1));
    assert_null(map_alloc(SIZE_MAX - (2u << 20), 0));
    assert_null(map_alloc(PTRDIFF_MAX, 0));
}

static void array_is_zeroed(void **state)
{
    (void)state;
    uint64_t *p = mem_array(1000, sizeof *p);
    assert_non_null(p);
    for (size_t i = 0; i < 1000; i++)
        assert_int_equal(p[i], 0);
    mem_free(p);
}

static void resize_keeps_the_common_part(void **state)
{
    (void)state;
    unsigned char *p = mem_resize(NULL, 0, 100);
    assert_non_null(p);
    for (int i = 0; i < 100; i++)
        p[i] = (unsigned char)i;
    p = mem_resize(p, 100, 100000);
    assert_non_null(p);
    for (int i = 0; i < 100; i++)
        assert_int_equal(p[i], i);
    p = mem_resize(p, 100000, 10);
    assert_non_null(p);
    for (int i = 0; i < 10; i++)
        assert_int_equal(p[i], i);
    assert_null(mem_resize(p, 10, SIZE_MAX)); /* the old block stays */
    assert_null(mem_resize(p, 10, 0));
    mem_fail_after(1);
    assert_null(mem_resize(p, 10, 20));
    for (int i = 0; i < 10; i++)
        assert_int_equal(p[i], i);
    mem_free(p);
}

static void strndup_copies_exactly(void **state)
{
    (void)state;
    char *p = mem_strndup("abc\0def", 7);
    assert_non_null(p);
    assert_memory_equal(p, "abc\0def", 8);
    mem_free(p);
    p = mem_strndup("", 0);
    assert_string_equal(p, "");
    mem_free(p);
}

static void maps_are_zero_and_start_on_huge_pages(void **state)
{
    static const size_t SIZES[] = {1, 4096, (2u << 20) - 1, 2u << 20, (2u << 20) + 1, 9000001};
    (void)state;
    for (size_t i = 0; i < COUNT_OF(SIZES); i++) {
        for (int huge = 0; huge < 2; huge++) {
            unsigned char *p = map_alloc(SIZES[i], huge);
            assert_non_null(p);
            assert_int_equal((uintptr_t)p % (2u << 20), 0);
            for (size_t j = 0; j < SIZES[i]; j += 4096)
                assert_int_equal(p[j], 0);
            p[0] = 1;
            p[SIZES[i] - 1] = 2;
            map_free(p, SIZES[i]);
        }
    }
    map_free(NULL, 5);
}

/* 2000 maps of 128 GiB are 250 TiB, more than the 128 TiB of a 47-bit address space: a map that is
 * not released fails here. */
static void maps_are_released_whole(void **state)
{
    (void)state;
#ifndef FERRY_SANITIZED /* the sanitizers' shadow makes a reservation of this size slow */
    for (int i = 0; i < 2000; i++) {
        void *p = map_alloc((size_t)1 << 37, 0);
        assert_non_null(p);
        map_free(p, (size_t)1 << 37);
    }
#endif
}

static void calls_are_counted(void **state)
{
    (void)state;
    uint64_t before = mem_count_calls();
    void *a = mem_alloc(10);
    void *b = mem_zero(10);
    void *c = mem_array(2, 5);
    char *d = mem_strndup("x", 1);
    void *e = map_alloc(10, 0);
    assert_int_equal(mem_count_calls() - before, 5);
    a = mem_resize(a, 10, 20);
    assert_int_equal(mem_count_calls() - before, 6);
    mem_free(a);
    mem_free(b);
    mem_free(c);
    mem_free(d);
    map_free(e, 10);
    assert_int_equal(mem_count_calls() - before, 6);
    assert_null(mem_alloc(0)); /* never reached the heap */
    assert_int_equal(mem_count_calls() - before, 6);
}

static void reserve_doubles_and_keeps(void **state)
{
    char *data = NULL;
    size_t capacity = 0;

    (void)state;
    assert_true(mem_reserve(&data, 0, &capacity, 3, 16));
    assert_int_equal(capacity, 16); /* the first room */
    memcpy(data, "abc", 3);
    uint64_t calls = mem_count_calls();
    assert_true(mem_reserve(&data, 3, &capacity, 13, 16));
    assert_int_equal(mem_count_calls(), calls); /* it fits */
    assert_true(mem_reserve(&data, 3, &capacity, 14, 16));
    assert_int_equal(capacity, 32);
    assert_true(mem_reserve(&data, 3, &capacity, 100, 16));
    assert_int_equal(capacity, 103);
    assert_memory_equal(data, "abc", 3);
    char *before = data;
    assert_false(mem_reserve(&data, 3, &capacity, SIZE_MAX - 2, 16)); /* the sum wraps */
    mem_fail_after(1);
    assert_false(mem_reserve(&data, 3, &capacity, 200, 16));
    mem_fail_after(0);
    assert_ptr_equal(data, before);
    assert_int_equal(capacity, 103);
    mem_free(data);
}

static void failure_hits_the_chosen_call_once(void **state)
{
    (void)state;
    for (uint64_t n = 1; n <= 5; n++) {
        mem_fail_after(n);
        for (uint64_t i = 1; i <= 8; i++) {
            void *p = i % 2 == 0 ? map_alloc(1, 0) : mem_alloc(1);
            assert_true((p == NULL) == (i == n));
            if (i % 2 == 0)
                map_free(p, 1);
            else
                mem_free(p);
        }
    }
    mem_fail_after(1);
    mem_fail_after(0); /* turned off again */
    void *p = mem_alloc(1);
    assert_non_null(p);
    mem_free(p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(blocks_are_aligned_and_writable),
        cmocka_unit_test(zeroed_blocks_are_zero),
        cmocka_unit_test(impossible_sizes_give_null),
        cmocka_unit_test(array_is_zeroed),
        cmocka_unit_test(resize_keeps_the_common_part),
        cmocka_unit_test(strndup_copies_exactly),
        cmocka_unit_test(maps_are_zero_and_start_on_huge_pages),
        cmocka_unit_test(maps_are_released_whole),
        cmocka_unit_test(calls_are_counted),
        cmocka_unit_test(reserve_doubles_and_keeps),
        cmocka_unit_test(failure_hits_the_chosen_call_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
