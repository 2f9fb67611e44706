/* Joining: the deadline's words, late founders, joiners that die, and joining again by oneself. */
#include "ranks.h"

#include "base/clock.h"
#include "fabric/fabric_impl.h"

#include <pthread.h>
#include <string.h>

static const uint64_t MS = 1000000;

static void test_nobody_there(void **state)
{
    struct ranks ranks;
    struct fabric_options options;
    struct fabric *fabric;
    struct ferry_error err = {0};

    (void)state;
    ranks_open(&ranks, 2);
    options = ranks_options(&ranks, 1, 0); /* whose holder is never started */
    options.connect_ns = 200 * MS;
    assert_int_equal(fabric_create(&fabric, &options, &err), FERRY_ERR_TIMEOUT);
    print_message("%s\n", err.msg);
    assert_non_null(strstr(err.msg, "rank0"));
    assert_non_null(strstr(err.msg, "ms"));
    ranks_close(&ranks);
}

/* A member is silent: the error says where the joiner stands with each. */
static void test_deadline_names_every_peer(void **state)
{
    struct ranks ranks;
    struct fabric_options options;
    struct fabric *fabric;
    struct ferry_error err = {0};

    (void)state;
    ranks_open(&ranks, 3);
    ranks_start_all(&ranks, 2);
    options = ranks_options(&ranks, 2, 0);
    options.connect_ns = 300 * MS;
    char one[32];
    ranks_name(&ranks, 1, one);
    fabric_hub_cut(ranks.hub, options.listen, one, true);
    assert_int_equal(fabric_create(&fabric, &options, &err), FERRY_ERR_TIMEOUT);
    print_message("%s\n", err.msg);
    assert_non_null(strstr(err.msg, "seat 0): lanes exist"));
    assert_non_null(strstr(err.msg, "seat 1): connecting"));
    assert_int_equal(fabric_live(ranks.fabrics[0]), 3); /* and the group is as it was */
    ranks_close(&ranks);
}

struct late {
    struct ranks *ranks;
    struct fabric_options options;
    struct fabric *fabric;
    enum ferry_status status;
    struct ferry_error err;
    pthread_t thread;
};

static void *create_late(void *arg)
{
    struct late *late = arg;

    late->status = fabric_create(&late->fabric, &late->options, &late->err);
    return NULL;
}

static void test_all_start_at_once(void **state)
{
    struct ranks ranks;
    struct late late[4];

    (void)state;
    ranks_open(&ranks, 5);
    ranks.births[0]++;
    for (int i = 0; i < 4; i++) { /* the founder is not there yet */
        late[i] = (struct late){.ranks = &ranks, .options = ranks_options(&ranks, i + 1, 0)};
        assert_int_equal(pthread_create(&late[i].thread, NULL, create_late, &late[i]), 0);
    }
    lane_bell_sleep(&(struct lane_bell){0}, 0, 100 * MS);
    ranks.births[0]--;
    ranks_start(&ranks, 0, -1);
    for (int i = 0; i < 4; i++) {
        assert_int_equal(pthread_join(late[i].thread, NULL), 0);
        if (late[i].status != FERRY_OK)
            fail_msg("seat %d: %s", i + 1, late[i].err.msg);
        ranks.fabrics[i + 1] = late[i].fabric;
    }
    for (int s = 0; s < 5; s++)
        fabric_ready(ranks.fabrics[s]);
    ranks_wait_live(&ranks, 31, 31);
    ranks_close(&ranks);
}

/* The joiner dies at some moment on the way: the group is as before, and the seat is free. */
static void test_joiner_dies(void **state)
{
    (void)state;
    for (uint64_t after_us = 0; after_us < 3000; after_us += 250) {
        struct ranks ranks;
        struct late late;
        char name[32];
        struct lane_bell bell = {0};

        ranks_open(&ranks, 3);
        ranks_start_all(&ranks, 2);
        late = (struct late){.ranks = &ranks, .options = ranks_options(&ranks, 2, 0)};
        late.options.connect_ns = 500 * MS;
        ranks_name(&ranks, 2, name);
        assert_int_equal(pthread_create(&late.thread, NULL, create_late, &late), 0);
        lane_bell_sleep(&bell, 0, after_us * 1000);
        fabric_hub_kill(ranks.hub, name);
        assert_int_equal(pthread_join(late.thread, NULL), 0);
        if (late.status == FERRY_OK)
            fabric_destroy(late.fabric);
        ranks_wait_live(&ranks, 3, 3);
        ranks_start(&ranks, 2, 1);
        fabric_ready(ranks.fabrics[2]);
        ranks_wait_live(&ranks, 7, 7);
        ranks_close(&ranks);
    }
}

static struct fabric *watched;
static _Atomic int n_own_deaths;

static void on_change(void *arg, int seat, enum seat_state from, enum seat_state to)
{
    (void)arg;
    (void)from;
    if (seat != fabric_seat(watched))
        return;
    if (to == SEAT_DEAD)
        n_own_deaths++;
    if (to == SEAT_JOINING)
        fabric_ready(watched);
}

/* A stopped rank, as a cut both ways stands for it: given up, heard again, joins again. */
static void test_joins_again(void **state)
{
    (void)state;
    for (int victim = 0; victim < 3; victim++) {
        struct ranks ranks;
        uint64_t others = 7 & ~((uint64_t)1 << victim);
        struct fabric_view before, after;

        ranks_open(&ranks, 3);
        ranks_start_all(&ranks, 3);
        watched = ranks.fabrics[victim];
        n_own_deaths = 0;
        fabric_on_change(watched, on_change, NULL);
        fabric_view(watched, &before);
        ranks_cut(&ranks, victim, true);
        ranks_wait_live(&ranks, others, others);
        ranks_wait(&ranks, others, victim, SEAT_DEAD);
        fabric_view(watched, &after);
        ranks_cut(&ranks, victim, false);
        ranks_wait_live(&ranks, 7, 7);
        assert_int_equal(n_own_deaths, 1);
        fabric_view(watched, &after);
        assert_true(after.seats[victim].incarnation > before.seats[victim].incarnation);
        for (int s = 0; s < 3; s++) { /* and with new lanes, both ways */
            if (s == victim)
                continue;
            assert_int_equal(fabric_lanes(ranks.fabrics[s], victim),
                             after.seats[victim].incarnation);
            assert_int_equal(fabric_lanes(watched, s), after.seats[s].incarnation);
        }
        ranks_close(&ranks);
    }
}

static void ready_again(void *arg, int seat, enum seat_state from, enum seat_state to)
{
    struct fabric *fabric = arg;

    (void)from;
    if (seat == fabric_seat(fabric) && to == SEAT_JOINING)
        fabric_ready(fabric);
}

/* Every connection of every rank breaks, and nobody has died: no part has a majority, none may go
 * on; they find each other, and the group is whole again without anybody's help. */
static void test_all_connections_break(void **state)
{
    struct ranks ranks;
    struct fabric_view view;
    uint32_t incarnation;

    (void)state;
    ranks_open(&ranks, 3);
    ranks_start_all(&ranks, 3);
    fabric_view(ranks.fabrics[0], &view);
    incarnation = view.seats[0].incarnation;
    for (int s = 0; s < 3; s++) {
        fabric_on_change(ranks.fabrics[s], ready_again, ranks.fabrics[s]);
        for (int t = 0; t < 3; t++)
            assert_true(s == t || fabric_lanes(ranks.fabrics[s], t) != 0);
    }
    for (int s = 0; s < 3; s++) {
        for (int t = 0; t < 3; t++) { /* as if the other had written nonsense */
            if (s != t)
                atomic_store(&ranks.fabrics[s]->current[t]->broken, true);
        }
    }
    ranks_wait(&ranks, 1, 1, SEAT_SUSPECT);
    ranks_wait_live(&ranks, 7, 7);
    fabric_view(ranks.fabrics[1], &view);
    assert_int_equal(view.seats[0].incarnation, incarnation); /* the issuer has stayed */
    assert_true(view.seats[1].incarnation > incarnation);
    for (int s = 0; s < 3; s++) {
        fabric_view(ranks.fabrics[s], &view);
        for (int t = 0; t < 3; t++)
            assert_int_equal(fabric_lanes(ranks.fabrics[s], t),
                             s == t ? 0 : view.seats[t].incarnation);
    }
    ranks_close(&ranks);
}

/* A short silence changes nothing but what is seen. */
static void test_short_silence(void **state)
{
    struct ranks ranks;
    struct fabric_view before, after;

    (void)state;
    ranks_open(&ranks, 3);
    ranks_start_all(&ranks, 3);
    fabric_view(ranks.fabrics[0], &before);
    ranks_cut(&ranks, 2, true);
    ranks_wait(&ranks, 3, 2, SEAT_SUSPECT);
    assert_int_equal(fabric_live(ranks.fabrics[0]) & 4, 0);
    ranks_cut(&ranks, 2, false);
    ranks_wait_live(&ranks, 7, 7);
    fabric_view(ranks.fabrics[0], &after);
    assert_int_equal(after.epoch, before.epoch);
    ranks_close(&ranks);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_nobody_there),
        cmocka_unit_test(test_deadline_names_every_peer),
        cmocka_unit_test(test_all_start_at_once),
        cmocka_unit_test(test_joiner_dies),
        cmocka_unit_test(test_joins_again),
        cmocka_unit_test(test_short_silence),
        cmocka_unit_test(test_all_connections_break),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
