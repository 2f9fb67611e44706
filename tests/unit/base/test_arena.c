/* Unit tests of base/arena.c: alignment, growth, reset into one block, out-of-memory paths. */
#include "../unit.h"

#include "base/alloc.h"
#include "base/arena.h"

#include <string.h>

static void pieces_are_aligned_and_do_not_overlap(void **state)
{
    enum { N = 300 };
    struct arena arena;
    unsigned char *p[N];
    size_t n[N];

    (void)state;
    arena_init(&arena, "test");
    for (size_t i = 0; i < N; i++) {
        n[i] = i * i * 7 % 6001;
        p[i] = arena_alloc(&arena, n[i]);
        assert_non_null(p[i]);
        assert_int_equal((uintptr_t)p[i] % 64, 0);
        memset(p[i], (int)(i & 255), n[i]);
    }
    for (size_t i = 0; i < N; i++) {
        for (size_t j = 0; j < n[i]; j++)
            assert_int_equal(p[i][j], i & 255);
    }
    arena_fini(&arena);
}

static void empty_pieces_are_valid(void **state)
{
    struct arena arena;

    (void)state;
    arena_init(&arena, "test");
    assert_non_null(arena_alloc(&arena, 0));
    assert_non_null(arena_zero(&arena, 0));
    assert_non_null(arena_array(&arena, 0, 100));
    assert_int_equal(arena.used, 0);
    arena_fini(&arena);
    arena_fini(&arena); /* twice is fine */
}

static void init_takes_no_memory(void **state)
{
    struct arena arena;
    uint64_t before = mem_count_calls();

    (void)state;
    arena_init(&arena, "test");
    arena_reset(&arena);
    arena_fini(&arena);
    assert_int_equal(mem_count_calls(), before);
}

static void counters_add_up(void **state)
{
    struct arena arena;

    (void)state;
    arena_init(&arena, "test");
    (void)arena_alloc(&arena, 1);
    assert_int_equal(arena.used, 64);
    (void)arena_alloc(&arena, 64);
    assert_int_equal(arena.used, 128);
    (void)arena_alloc(&arena, 65);
    assert_int_equal(arena.used, 256);
    assert_true(arena.reserved >= arena.used);
    arena_reset(&arena);
    assert_int_equal(arena.used, 0);
    arena_fini(&arena);
    assert_int_equal(arena.reserved, 0);
}

static void growth_is_geometric(void **state)
{
    struct arena arena;
    uint64_t before = mem_count_calls();

    (void)state;
    arena_init(&arena, "test");
    for (int i = 0; i < 100000; i++)
        assert_non_null(arena_alloc(&arena, 64));
    assert_true(mem_count_calls() - before < 12); /* 6.4 MB from 64 KiB by doubling */
    assert_true(arena.reserved < 3 * arena.used);
    arena_fini(&arena);
}

/* Law: the second round of the same size allocates nothing, whatever the pieces of the first were.
 */
static void reset_keeps_one_block(void **state)
{
    struct arena arena;

    (void)state;
    arena_init(&arena, "test");
    for (size_t seed = 1; seed < 20; seed++) {
        for (int round = 0; round < 3; round++) {
            uint64_t before = mem_count_calls();
            size_t r = seed;
            for (int i = 0; i < 200; i++) {
                r = r * 6364136223846793005u + 1442695040888963407u;
                assert_non_null(arena_alloc(&arena, (r >> 40) % 20000));
            }
            if (round > 0)
                assert_int_equal(mem_count_calls(), before);
            arena_reset(&arena);
        }
    }
    arena_fini(&arena);
}

static void zero_and_copies(void **state)
{
    struct arena arena;

    (void)state;
    arena_init(&arena, "test");
    memset(arena_alloc(&arena, 5000), 0xFF, 5000);
    arena_reset(&arena);
    unsigned char *p = arena_zero(&arena, 5000);
    for (int i = 0; i < 5000; i++)
        assert_int_equal(p[i], 0);
    arena_reset(&arena);
    memset(arena_alloc(&arena, 5000), 0xFF, 5000);
    arena_reset(&arena);
    uint32_t *q = arena_array(&arena, 1000, sizeof *q);
    for (int i = 0; i < 1000; i++)
        assert_int_equal(q[i], 0);
    char *s = arena_strndup(&arena, "ferryman", 5);
    assert_string_equal(s, "ferry");
    arena_fini(&arena);
}

static void impossible_sizes_give_null(void **state)
{
    struct arena arena;

    (void)state;
    arena_init(&arena, "test");
    assert_null(arena_alloc(&arena, SIZE_MAX));
    assert_null(arena_alloc(&arena, SIZE_MAX - 63));
    assert_null(arena_alloc(&arena, SIZE_MAX / 2));
    assert_null(arena_array(&arena, SIZE_MAX / 4, 8));
    assert_null(arena_strndup(&arena, "x", SIZE_MAX));
    assert_non_null(arena_alloc(&arena, 100)); /* still usable */
    assert_int_equal(arena.used, 128);
    arena_fini(&arena);
}

static void out_of_memory_is_clean(void **state)
{
    struct arena arena;

    (void)state;
    arena_init(&arena, "test");
    mem_fail_after(1);
    assert_null(arena_alloc(&arena, 1 << 20)); /* asked for no slack: nothing smaller to try */
    mem_fail_after(0);
    assert_int_equal(arena.used, 0);
    assert_non_null(arena_alloc(&arena, 10));
    /* no room for doubling, room for exactly what is needed */
    mem_fail_after(1);
    assert_non_null(arena_alloc(&arena, 70000));
    mem_fail_after(0);
    /* reset without memory for the one block: the next use grows again */
    mem_fail_after(1);
    arena_reset(&arena);
    mem_fail_after(0);
    assert_int_equal(arena.reserved, 0);
    assert_non_null(arena_alloc(&arena, 10));
    arena_fini(&arena);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pieces_are_aligned_and_do_not_overlap),
        cmocka_unit_test(empty_pieces_are_valid),
        cmocka_unit_test(init_takes_no_memory),
        cmocka_unit_test(counters_add_up),
        cmocka_unit_test(growth_is_geometric),
        cmocka_unit_test(reset_keeps_one_block),
        cmocka_unit_test(zero_and_copies),
        cmocka_unit_test(impossible_sizes_give_null),
        cmocka_unit_test(out_of_memory_is_clean),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
