/* Placements: every shape is legal, replicas are distinct, orphans go to one live seat, the same
 * for every caller, and evenly. */
#include "tests/unit/unit.h"

#include "base/alloc.h"
#include "base/limits.h"
#include "placement/placement.h"

#include <stdbool.h>
#include <string.h>

enum { MANY = 300 };

static uint64_t state_of_draws = 0x1234567;

static uint64_t draw(void)
{
    state_of_draws ^= state_of_draws << 13;
    state_of_draws ^= state_of_draws >> 7;
    state_of_draws ^= state_of_draws << 17;
    return state_of_draws;
}

static uint64_t all_seats(size_t n_seats)
{
    return n_seats == 64 ? UINT64_MAX : ((uint64_t)1 << n_seats) - 1;
}

static struct placement *contiguous(size_t layers, size_t experts, size_t seats, size_t replicas)
{
    struct placement *p = NULL;
    struct ferry_error err = {0};
    if (placement_contiguous(&p, layers, experts, seats, replicas, &err) != FERRY_OK)
        fail_msg("%zu experts on %zu seats: %s", experts, seats, err.msg);
    return p;
}

static void contiguous_ranges_differ_by_one(void **state)
{
    static const size_t EXPERTS[] = {1, 2, 3, 7, 8, 60, 64, 127, 128, 256, 384, LIMIT_EXPERTS};

    (void)state;
    for (size_t i = 0; i < COUNT_OF(EXPERTS); i++) {
        for (size_t seats = 1; seats <= 64; seats++) {
            size_t n = EXPERTS[i], held[64] = {0}, last = 0, least = SIZE_MAX, most = 0;
            struct placement *p = contiguous(2, n, seats, 1);
            assert_int_equal(placement_n_seats(p), seats);
            for (size_t e = 0; e < n; e++) {
                uint64_t listed = placement_listed(p, 1, e);
                size_t seat = (size_t)__builtin_ctzll(listed);
                assert_int_equal(__builtin_popcountll(listed), 1);
                assert_int_equal(seat, e * seats / n);
                assert_true(seat >= last); /* ranges, in order */
                held[seat]++;
                last = seat;
            }
            for (size_t s = 0; s < seats; s++) {
                least = held[s] < least ? held[s] : least;
                most = held[s] > most ? held[s] : most;
            }
            assert_true(most - least <= 1);
            placement_destroy(p);
        }
    }
    placement_destroy(NULL);
}

static void replicas_are_distinct_and_capped(void **state)
{
    static const size_t REPLICAS[] = {1, 2, 3, 8, 64, 1000};

    (void)state;
    for (size_t i = 0; i < COUNT_OF(REPLICAS); i++) {
        for (size_t seats = 1; seats <= 64; seats += 7) {
            size_t want = REPLICAS[i] < seats ? REPLICAS[i] : seats;
            struct placement *p = contiguous(2, 24, seats, REPLICAS[i]), *q = NULL;
            assert_int_equal(placement_random(&q, 2, 24, seats, REPLICAS[i], 5, NULL), FERRY_OK);
            for (size_t e = 0; e < 48; e++) {
                uint64_t a = placement_listed(p, e / 24, e % 24);
                uint64_t b = placement_listed(q, e / 24, e % 24);
                assert_int_equal(__builtin_popcountll(a), want);
                assert_int_equal(__builtin_popcountll(b), want);
                assert_int_equal((a | b) & ~all_seats(seats), 0);
            }
            assert_int_equal(placement_losses_survived(p, all_seats(seats)), (int)want - 1);
            placement_destroy(p);
            placement_destroy(q);
        }
    }
    /* The next ones in turn, over the end. */
    struct placement *p = contiguous(1, 6, 3, 2);
    assert_int_equal(placement_listed(p, 0, 0), 3);
    assert_int_equal(placement_listed(p, 0, 3), 6);
    assert_int_equal(placement_listed(p, 0, 5), 5);
    placement_destroy(p);
}

static void random_follows_its_seed(void **state)
{
    struct placement *a = NULL, *b = NULL, *c = NULL;
    char hash[3][65];
    size_t n_differ = 0, held[4] = {0};

    (void)state;
    assert_int_equal(placement_random(&a, 10, 100, 4, 1, 1, NULL), FERRY_OK);
    assert_int_equal(placement_random(&b, 10, 100, 4, 1, 1, NULL), FERRY_OK);
    assert_int_equal(placement_random(&c, 10, 100, 4, 1, 2, NULL), FERRY_OK);
    for (size_t i = 0; i < 1000; i++) {
        uint64_t seats = placement_listed(a, i / 100, i % 100);
        assert_int_equal(seats, placement_listed(b, i / 100, i % 100));
        n_differ += seats != placement_listed(c, i / 100, i % 100);
        held[__builtin_ctzll(seats)]++;
    }
    assert_true(n_differ > 650 && n_differ < 850); /* 750 expected */
    for (size_t s = 0; s < 4; s++)
        assert_true(held[s] > 190 && held[s] < 310); /* 250 expected, deviation 14 */
    placement_hash(a, hash[0]);
    placement_hash(b, hash[1]);
    placement_hash(c, hash[2]);
    assert_int_equal(strlen(hash[0]), 64);
    assert_string_equal(hash[0], hash[1]);
    assert_string_not_equal(hash[0], hash[2]);
    placement_destroy(a);
    placement_destroy(b);
    placement_destroy(c);
}

/* What the header promises about orphans, for one placement and group. */
static void check_layer(const struct placement *p, size_t layer, uint64_t live)
{
    size_t n = placement_n_experts(p), held[64] = {0}, dealt[64] = {0};
    static uint64_t holders[LIMIT_EXPERTS];

    placement_layer_holders(p, layer, live, holders);
    for (size_t e = 0; e < n; e++) {
        uint64_t listed = placement_listed(p, layer, e) & live;
        assert_int_equal(placement_holders(p, layer, e, live), holders[e]);
        if (listed != 0 || live == 0) {
            assert_int_equal(holders[e], listed);
            continue;
        }
        assert_int_equal(__builtin_popcountll(holders[e]), 1);
        assert_int_equal(holders[e] & ~live, 0);
        dealt[__builtin_ctzll(holders[e])]++;
    }
    for (size_t e = 0; e < n; e++) {
        for (size_t s = 0; s < 64; s++)
            held[s] += placement_listed(p, layer, e) >> s & live >> s & 1;
    }
    /* Whoever was dealt one ends with at most one more than anybody else. */
    for (size_t s = 0; s < 64; s++) {
        for (size_t t = 0; t < 64 && dealt[s] > 0; t++) {
            if ((live >> t & 1) != 0)
                assert_true(held[s] + dealt[s] <= held[t] + dealt[t] + 1);
        }
    }
}

static void orphans_are_dealt_evenly(void **state)
{
    (void)state;
    for (size_t i = 0; i < MANY; i++) {
        size_t n_seats = 1 + draw() % 64, n_experts = 1 + draw() % 200, n_replicas = 1 + draw() % 3;
        struct placement *p = NULL;
        if (i % 2 == 0)
            p = contiguous(2, n_experts, n_seats, n_replicas);
        else
            assert_int_equal(placement_random(&p, 2, n_experts, n_seats, n_replicas, draw(), NULL),
                             FERRY_OK);
        check_layer(p, 0, all_seats(n_seats));
        check_layer(p, 1, draw() & draw() & all_seats(n_seats));
        check_layer(p, 1, (uint64_t)1 << draw() % n_seats);
        check_layer(p, 0, 0);
        placement_destroy(p);
    }
}

static void orphans_by_hand(void **state)
{
    struct placement *p = contiguous(1, 9, 3, 1); /* 0-2, 3-5, 6-8 */

    (void)state;
    /* Without seat 1: 3 to seat 0, 4 to seat 2, 5 to seat 0. */
    assert_int_equal(placement_holders(p, 0, 2, 5), 1);
    assert_int_equal(placement_holders(p, 0, 3, 5), 1);
    assert_int_equal(placement_holders(p, 0, 4, 5), 4);
    assert_int_equal(placement_holders(p, 0, 5, 5), 1);
    assert_int_equal(placement_holders(p, 0, 6, 5), 4);
    assert_int_equal(placement_listed(p, 0, 4), 2);
    /* Seats that the plan does not know hold nothing: without 0 and 2 all is seat 1's. */
    assert_int_equal(placement_holders(p, 0, 0, 0xFF00 | 2), 2);
    assert_int_equal(placement_holders(p, 0, 0, 0xFF00), 0);
    assert_int_equal(placement_losses_survived(p, 7), 0);
    assert_int_equal(placement_losses_survived(p, 5), -1);
    assert_int_equal(placement_losses_survived(p, 0), -1);
    placement_destroy(p);
}

static void layers_without_experts_are_left_out(void **state)
{
    static const bool HAS[4] = {0, 1, 0, 1};
    struct placement *p = contiguous(4, 5, 3, 2), *q = NULL;
    char a[65], b[65];
    uint64_t holders[5] = {9, 9, 9, 9, 9};

    (void)state;
    assert_int_equal(placement_only(&q, p, HAS, NULL), FERRY_OK);
    for (size_t e = 0; e < 5; e++) {
        assert_int_equal(placement_listed(q, 1, e), placement_listed(p, 1, e));
        assert_int_equal(placement_listed(q, 2, e), 0);
        assert_int_equal(placement_holders(q, 2, e, 7), 0);
    }
    placement_layer_holders(q, 0, 7, holders);
    for (size_t e = 0; e < 5; e++)
        assert_int_equal(holders[e], 0);
    assert_int_equal(placement_losses_survived(q, 7), 1);
    placement_hash(p, a);
    placement_hash(q, b);
    assert_string_not_equal(a, b);
    placement_destroy(p);
    placement_destroy(q);
}

static void impossible_shapes_are_refused(void **state)
{
    static const size_t SHAPES[][4] = {{0, 8, 2, 1},        {8, 0, 2, 1},
                                       {8, 8, 0, 1},        {8, 8, 65, 1},
                                       {8, 8, 2, 0},        {LIMIT_LAYERS + 1, 8, 2, 1},
                                       {1024, 4096, 2, 1},  {8, LIMIT_EXPERTS + 1, 2, 1},
                                       {SIZE_MAX, 2, 2, 1}, {2, SIZE_MAX, SIZE_MAX, SIZE_MAX}};

    (void)state;
    for (size_t i = 0; i < COUNT_OF(SHAPES); i++) {
        struct placement *p = NULL;
        struct ferry_error err = {0};
        const size_t *s = SHAPES[i];
        assert_int_equal(placement_contiguous(&p, s[0], s[1], s[2], s[3], &err), FERRY_ERR_LIMIT);
        assert_null(p);
        assert_non_null(strstr(err.msg, "placement: "));
        assert_int_equal(placement_random(&p, s[0], s[1], s[2], s[3], 1, &err), FERRY_ERR_LIMIT);
        assert_null(p);
    }
}

static void out_of_memory_is_a_status(void **state)
{
    struct placement *p = NULL;
    struct ferry_error err = {0};
    uint64_t n = 0;

    (void)state;
    for (;;) {
        mem_fail_after(++n);
        enum ferry_status st = placement_contiguous(&p, 3, 100, 4, 4, &err);
        mem_fail_after(0);
        if (st == FERRY_OK)
            break;
        assert_int_equal(st, FERRY_ERR_NOMEM);
        assert_null(p);
    }
    assert_true(n > 4);
    placement_destroy(p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(contiguous_ranges_differ_by_one),
        cmocka_unit_test(replicas_are_distinct_and_capped),
        cmocka_unit_test(random_follows_its_seed),
        cmocka_unit_test(orphans_are_dealt_evenly),
        cmocka_unit_test(orphans_by_hand),
        cmocka_unit_test(layers_without_experts_are_left_out),
        cmocka_unit_test(impossible_shapes_are_refused),
        cmocka_unit_test(out_of_memory_is_a_status),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
