/* A group over the transport loop: joining, dying, cuts, draining, joining again. */
#include "ranks.h"

#include "base/clock.h"

#include <string.h>

static const uint64_t MS = 1000000;

static void test_alone(void **state)
{
    struct ranks ranks;
    struct fabric_view view;

    (void)state;
    ranks_open(&ranks, 1);
    ranks_start(&ranks, 0, -1);
    fabric_view(ranks.fabrics[0], &view);
    assert_int_equal(view.seats[0].state, SEAT_JOINING);
    assert_int_equal(view.issuer, 0);
    assert_int_equal(view.live, 0);
    fabric_ready(ranks.fabrics[0]);
    assert_int_equal(fabric_wait_live(ranks.fabrics[0], 1, 5000 * MS, NULL), FERRY_OK);
    assert_int_equal(fabric_live(ranks.fabrics[0]), 1);
    ranks_close(&ranks);
}

static void test_join(void **state)
{
    (void)state;
    for (size_t n = 2; n <= 5; n++) {
        struct ranks ranks;
        struct fabric_view view;

        ranks_open(&ranks, n);
        ranks_start_all(&ranks, n);
        fabric_view(ranks.fabrics[1], &view);
        assert_int_equal(view.members, (1u << n) - 1);
        assert_int_equal(view.seats[0].link, LINK_SHM);
        assert_int_equal(view.seats[1].link, LINK_LOCAL);
        ranks_close(&ranks);
    }
}

static void test_kill_any(void **state)
{
    (void)state;
    for (int victim = 0; victim < 3; victim++) {
        struct ranks ranks;
        uint64_t left = 7 & ~((uint64_t)1 << victim);

        ranks_open(&ranks, 3);
        ranks_start_all(&ranks, 3);
        uint64_t begin_ns = clock_now_ns();
        ranks_kill(&ranks, victim);
        ranks_wait_live(&ranks, left, left);
        print_message("seat %d: %llu us until all agree\n", victim,
                      (unsigned long long)(clock_now_ns() - begin_ns) / 1000);
        ranks_start(&ranks, victim, __builtin_ctzll(left));
        fabric_ready(ranks.fabrics[victim]);
        ranks_wait_live(&ranks, 7, 7);
        ranks_close(&ranks);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_alone),
        cmocka_unit_test(test_join),
        cmocka_unit_test(test_kill_any),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
