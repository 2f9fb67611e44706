/* Connections and their lanes over many lives of a seat: nothing grows, and lanes that an engine
 * thread holds are neither freed nor waited for. */
#include "ranks.h"

#include "base/alloc.h"
#include "base/clock.h"

#include <malloc.h>
#include <string.h>

static const uint64_t MS = 1000000;

static void restart(struct ranks *ranks, int seat)
{
    uint64_t all = ((uint64_t)1 << ranks->n_seats) - 1, others = all & ~((uint64_t)1 << seat);

    ranks_kill(ranks, seat);
    ranks_wait(ranks, others, seat, SEAT_DEAD);
    ranks_start(ranks, seat, __builtin_ctzll(others));
    fabric_ready(ranks->fabrics[seat]);
    ranks_wait_live(ranks, all, all);
}

static size_t heap_bytes(void)
{
    struct mallinfo2 info = mallinfo2();

    return info.uordblks + info.hblkhd;
}

/* Each life of a seat is four changes of the membership: dead, joining, warm, live. */
static void test_memory_does_not_grow(void **state)
{
    struct ranks ranks;
    struct fabric_view view;
    size_t after_some = 0, at_end;
    uint64_t begin_ns = clock_now_ns();

    (void)state;
    ranks_open(&ranks, 3);
    ranks_start_all(&ranks, 3);
    for (int i = 0; i < 250; i++) {
        restart(&ranks, 1 + i % 2);
        for (int t = 0; t < 3; t++)
            (void)fabric_lanes(ranks.fabrics[0], t);
        if (i == 50)
            after_some = heap_bytes();
    }
    lane_bell_sleep(&(struct lane_bell){0}, 0, 200 * MS); /* former connections are closed */
    at_end = heap_bytes();
    fabric_view(ranks.fabrics[0], &view);
    assert_true(view.epoch >= 1000);
    print_message("epoch %u after %llu ms, heap %zu, at the end %zu bytes\n", view.epoch,
                  (unsigned long long)((clock_now_ns() - begin_ns) / MS), after_some, at_end);
    if (after_some > 0) /* sanitizers count elsewhere */
        assert_true(at_end < after_some + 8 * (size_t)RANKS_RING);
    ranks_close(&ranks);
}

/* An engine thread that is busy for long and holds a message of each life: the group goes on, what
 * is held stays, and after a few lives the seat's next holder is put off instead of more memory. */
static void test_busy_engine(void **state)
{
    struct ranks ranks;
    struct fabric_message held[3];

    (void)state;
    ranks_open(&ranks, 2);
    ranks_start_all(&ranks, 2);
    for (int i = 0; i < 3; i++) {
        struct lane_header header = {.id = (uint64_t)i, .n_bytes = 64};
        void *data;
        assert_int_not_equal(fabric_lanes(ranks.fabrics[1], 0), 0);
        assert_int_equal(fabric_reserve(ranks.fabrics[1], 0, LANE_REQUEST, 64, &data), FERRY_OK);
        memset(data, 'a' + i, 64);
        fabric_commit(ranks.fabrics[1], 0, LANE_REQUEST, &header);
        uint64_t end_ns = clock_now_ns() + 5000 * MS;
        do {
            (void)fabric_lanes(ranks.fabrics[0], 1);
            assert_true(clock_now_ns() < end_ns);
        } while (!fabric_take(ranks.fabrics[0], 1, LANE_REQUEST, &held[i]));
        restart(&ranks, 1);
    }
    for (int i = 0; i < 3; i++) {
        assert_int_equal(held[i].header.id, i);
        assert_int_equal(held[i].data[63], 'a' + i);
        fabric_release(ranks.fabrics[0], &held[i]);
    }
    ranks_close(&ranks);
}

static void test_graves_are_bounded(void **state)
{
    struct ranks ranks;
    struct fabric_message held[8];
    struct fabric_options options;
    struct ferry_error err = {0};
    struct fabric *late;
    int n = 0;

    (void)state;
    ranks_open(&ranks, 2);
    ranks_start_all(&ranks, 2);
    for (;;) {
        struct lane_header header = {.n_bytes = 0};
        void *data;
        assert_true(n < 8);
        while (fabric_lanes(ranks.fabrics[1], 0) == 0 || fabric_lanes(ranks.fabrics[0], 1) == 0)
            fabric_sleep(ranks.fabrics[0], fabric_rings(ranks.fabrics[0]), MS);
        assert_int_equal(fabric_reserve(ranks.fabrics[1], 0, LANE_REPLY, 0, &data), FERRY_OK);
        fabric_commit(ranks.fabrics[1], 0, LANE_REPLY, &header);
        while (!fabric_take(ranks.fabrics[0], 1, LANE_REPLY, &held[n]))
            fabric_sleep(ranks.fabrics[0], fabric_rings(ranks.fabrics[0]), MS);
        n++;
        ranks_kill(&ranks, 1);
        ranks_wait(&ranks, 1, 1, SEAT_DEAD);
        options = ranks_options(&ranks, 1, 0);
        options.connect_ns = 500 * MS;
        if (fabric_create(&late, &options, &err) != FERRY_OK)
            break;
        ranks.fabrics[1] = late;
    }
    print_message("%d lives, then: %s\n", n, err.msg);
    assert_non_null(strstr(err.msg, "engine still holds lanes"));
    for (int i = 0; i < n; i++)
        fabric_release(ranks.fabrics[0], &held[i]);
    (void)fabric_lanes(ranks.fabrics[0], 1);
    ranks_start(&ranks, 1, 0);
    ranks_close(&ranks);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_memory_does_not_grow),
        cmocka_unit_test(test_busy_engine),
        cmocka_unit_test(test_graves_are_bounded),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
