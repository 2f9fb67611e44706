/* The engine threads' calls: messages both ways, limits, and what the death of a peer leaves. */
#include "ranks.h"

#include "base/clock.h"
#include "fabric/fabric_impl.h"

#include <pthread.h>
#include <string.h>

static const uint64_t MS = 1000000;

/* Reserves and sends n bytes of a value; the status of the reservation. */
static enum ferry_status put(struct fabric *fabric, int seat, enum lane_channel channel,
                             unsigned char value, size_t n, uint64_t id)
{
    struct lane_header header = {.id = id, .n_bytes = (uint32_t)n};
    void *data;
    enum ferry_status st = fabric_reserve(fabric, seat, channel, n, &data);

    if (st != FERRY_OK)
        return st;
    memset(data, value, n);
    fabric_commit(fabric, seat, channel, &header);
    return FERRY_OK;
}

static void wait_take(struct fabric *fabric, int seat, enum lane_channel channel,
                      struct fabric_message *message)
{
    uint64_t end_ns = clock_now_ns() + 5000 * MS * fabric_time_factor();

    for (;;) {
        uint32_t seen = fabric_rings(fabric);
        (void)fabric_lanes(fabric, seat);
        if (fabric_take(fabric, seat, channel, message))
            return;
        assert_true(clock_now_ns() < end_ns);
        fabric_sleep(fabric, seen, 100 * MS);
    }
}

static void test_messages(void **state)
{
    struct ranks ranks;
    struct fabric_message message;

    (void)state;
    ranks_open(&ranks, 3);
    ranks_start_all(&ranks, 3);
    assert_int_equal(put(ranks.fabrics[0], 1, LANE_REQUEST, 1, 10, 1),
                     FERRY_ERR_PEER); /* not yet */
    for (int s = 0; s < 3; s++) {
        struct fabric_view view;
        fabric_view(ranks.fabrics[s], &view);
        for (int t = 0; t < 3; t++)
            assert_int_equal(fabric_lanes(ranks.fabrics[s], t),
                             s == t ? 0 : view.seats[t].incarnation);
    }
    for (int s = 0; s < 3; s++) {
        for (int t = 0; t < 3; t++) {
            if (s == t)
                continue;
            for (int c = 0; c < LANE_N_CHANNELS; c++)
                assert_int_equal(put(ranks.fabrics[s], t, (enum lane_channel)c,
                                     (unsigned char)(16 * s + 4 * t + c), 1000, 77),
                                 FERRY_OK);
        }
    }
    for (int t = 0; t < 3; t++) {
        for (int s = 0; s < 3; s++) {
            for (int c = 0; s != t && c < LANE_N_CHANNELS; c++) {
                wait_take(ranks.fabrics[t], s, (enum lane_channel)c, &message);
                assert_int_equal(message.seat, s);
                assert_int_equal(message.header.id, 77);
                assert_int_equal(message.header.n_bytes, 1000);
                assert_int_equal(message.header.epoch, fabric_epoch(ranks.fabrics[s]));
                assert_int_equal(message.data[999], 16 * s + 4 * t + c);
                fabric_release(ranks.fabrics[t], &message);
            }
        }
    }
    assert_int_equal(put(ranks.fabrics[0], 0, LANE_REQUEST, 1, 10, 1), FERRY_ERR_PEER);
    assert_int_equal(put(ranks.fabrics[0], -1, LANE_REQUEST, 1, 10, 1), FERRY_ERR_PEER);
    assert_int_equal(put(ranks.fabrics[0], 64, LANE_REQUEST, 1, 10, 1), FERRY_ERR_PEER);
    assert_int_equal(put(ranks.fabrics[0], 1, LANE_REQUEST, 1,
                         fabric_max_payload(ranks.fabrics[0], LANE_REQUEST) + 1, 1),
                     FERRY_ERR_LIMIT);
    ranks_close(&ranks);
}

/* A full lane says AGAIN, and goes on when the receiver has released. */
static void test_credit(void **state)
{
    struct ranks ranks;
    struct fabric_message message;
    size_t n = 0;

    (void)state;
    ranks_open(&ranks, 2);
    ranks_start_all(&ranks, 2);
    assert_int_not_equal(fabric_lanes(ranks.fabrics[0], 1), 0);
    while (put(ranks.fabrics[0], 1, LANE_REQUEST, 3, 4000, n) == FERRY_OK)
        n++;
    assert_in_range(n, 10, RANKS_RING / 4000);
    assert_int_equal(put(ranks.fabrics[0], 1, LANE_REQUEST, 3, 4000, n), FERRY_AGAIN);
    uint32_t seen = fabric_rings(ranks.fabrics[0]);
    wait_take(ranks.fabrics[1], 0, LANE_REQUEST, &message);
    fabric_release(ranks.fabrics[1], &message);
    fabric_sleep(ranks.fabrics[0], seen, 5000 * MS);
    assert_int_not_equal(fabric_rings(ranks.fabrics[0]), seen);
    assert_int_equal(put(ranks.fabrics[0], 1, LANE_REQUEST, 3, 4000, n), FERRY_OK);
    ranks_close(&ranks);
}

static void test_death_of_the_peer(void **state)
{
    struct ranks ranks;
    struct fabric_message held, more;
    struct fabric *one;
    uint32_t before;
    unsigned char sum = 0;

    (void)state;
    ranks_open(&ranks, 2);
    ranks_start_all(&ranks, 2);
    one = ranks.fabrics[1];
    assert_int_not_equal(fabric_lanes(ranks.fabrics[0], 1), 0);
    assert_int_equal(put(ranks.fabrics[0], 1, LANE_REQUEST, 9, 2000, 1), FERRY_OK);
    assert_int_equal(put(ranks.fabrics[0], 1, LANE_REQUEST, 9, 2000, 2), FERRY_OK);
    wait_take(one, 0, LANE_REQUEST, &held);
    before = held.incarnation;
    ranks_kill(&ranks, 0);
    ranks_wait(&ranks, 2, 0, SEAT_DEAD);
    assert_false(fabric_take(one, 0, LANE_REQUEST, &more)); /* lost with its sender */
    assert_int_equal(put(one, 0, LANE_REPLY, 1, 10, 3), FERRY_ERR_PEER);
    assert_int_equal(fabric_lanes(one, 0), 0);
    ranks_start(&ranks, 0, 1);
    fabric_ready(ranks.fabrics[0]);
    ranks_wait_live(&ranks, 3, 3);
    assert_true(fabric_lanes(one, 0) > before);
    for (size_t i = 0; i < 2000; i++) /* what is held stays readable until it is released */
        sum = (unsigned char)(sum | held.data[i]);
    assert_int_equal(sum, 9);
    assert_int_not_equal(fabric_lanes(ranks.fabrics[0], 1), 0);
    assert_int_equal(put(ranks.fabrics[0], 1, LANE_REQUEST, 5, 100, 4), FERRY_OK);
    wait_take(one, 0, LANE_REQUEST, &more);
    assert_int_equal(more.header.id, 4);
    fabric_release(one, &held);
    fabric_release(one, &more);
    ranks_close(&ranks);
}

static void *wake_later(void *arg)
{
    lane_bell_sleep(&(struct lane_bell){0}, 0, 20 * MS);
    fabric_wake(arg);
    return NULL;
}

/* By what lines took lately: mean of the lanes that were measured, and the sender's ring follows.
 */
static void test_shared_caches(void **state)
{
    static const struct {
        float request, reply;
        bool shares;
    } CASES[] = {{0, 0, false},   {60, 0, true},   {0, 60, true},    {60, 100, true},
                 {200, 0, false}, {60, 170, true}, {60, 300, false}, {300, 300, false}};
    struct ranks ranks;
    void *data;

    (void)state;
    ranks_open(&ranks, 2);
    ranks_start_all(&ranks, 2);
    struct fabric *f = ranks.fabrics[0];
    assert_false(fabric_shares_cache(f, 1)); /* no lanes in use */
    assert_int_not_equal(fabric_lanes(f, 1), 0);
    struct road *road = f->current[1];
    for (size_t i = 0; i < COUNT_OF(CASES); i++) {
        road->lanes[LANE_REQUEST][LANE_RECEIVE]->line_ns = CASES[i].request;
        road->lanes[LANE_REPLY][LANE_RECEIVE]->line_ns = CASES[i].reply;
        assert_int_equal(fabric_shares_cache(f, 1), CASES[i].shares);
        assert_false(fabric_shares_cache(f, 0));
        for (int c = 0; c < LANE_N_CHANNELS; c++) {
            assert_int_equal(fabric_reserve(f, 1, (enum lane_channel)c, 100, &data), FERRY_OK);
            assert_int_equal(road->lanes[c][LANE_SEND]->rewinds, CASES[i].shares);
        }
    }
    ranks_close(&ranks);
}

static void test_waking(void **state)
{
    struct ranks ranks;
    pthread_t thread;

    (void)state;
    for (int spin = 0; spin < 2; spin++) {
        struct fabric_options options;
        ranks_open(&ranks, 1);
        options = ranks_options(&ranks, 0, -1);
        options.spin_ns = spin ? 100000 : 0;
        assert_int_equal(fabric_create(&ranks.fabrics[0], &options, NULL), FERRY_OK);
        uint32_t seen = fabric_rings(ranks.fabrics[0]);
        uint64_t begin_ns = clock_now_ns();
        fabric_sleep(ranks.fabrics[0], seen, 5 * MS);
        assert_true(clock_now_ns() - begin_ns >= 5 * MS || fabric_rings(ranks.fabrics[0]) != seen);
        seen = fabric_rings(ranks.fabrics[0]);
        assert_int_equal(pthread_create(&thread, NULL, wake_later, ranks.fabrics[0]), 0);
        begin_ns = clock_now_ns();
        fabric_sleep(ranks.fabrics[0], seen, 20000 * MS);
        assert_true(clock_now_ns() - begin_ns < 10000 * MS);
        assert_int_equal(pthread_join(thread, NULL), 0);
        ranks_close(&ranks);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_messages),
        cmocka_unit_test(test_credit),
        cmocka_unit_test(test_death_of_the_peer),
        cmocka_unit_test(test_shared_caches),
        cmocka_unit_test(test_waking),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
