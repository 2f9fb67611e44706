/* A group over the transport loop: joining, dying, cuts, draining, joining again. */
#include "ranks.h"

#include "base/alloc.h"
#include "base/clock.h"

#include <pthread.h>
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

/* Who stands at one host is told by addresses; a seat nobody has taken stands nowhere. */
static void test_mates(void **state)
{
    static const char *const NAMES[] = {"10.0.0.1:1", "10.0.0.2:1", "10.0.0.1:2", "10.0.0.11:1"};
    struct ranks ranks;

    (void)state;
    ranks_open(&ranks, 5);
    for (int s = 0; s < 4; s++) {
        struct fabric_options options = ranks_options(&ranks, s, s == 0 ? -1 : 0);
        options.listen = NAMES[s];
        options.join = s == 0 ? NULL : NAMES[0];
        assert_int_equal(fabric_create(&ranks.fabrics[s], &options, NULL), FERRY_OK);
        fabric_ready(ranks.fabrics[s]);
    }
    ranks_wait_live(&ranks, 15, 15);
    for (int s = 0; s < 4; s++) {
        assert_int_equal(fabric_mates(ranks.fabrics[s], 0), 5);
        assert_int_equal(fabric_mates(ranks.fabrics[s], 1), 2);
        assert_int_equal(fabric_mates(ranks.fabrics[s], 2), 5);
        assert_int_equal(fabric_mates(ranks.fabrics[s], 3), 8);
        assert_int_equal(fabric_mates(ranks.fabrics[s], 4), 16);
    }
    ranks_close(&ranks);
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

/* The founder is cut from one of four: both hear the others, the issuer's word counts. */
static void test_partial_cut(void **state)
{
    struct ranks ranks;
    char a[32], b[32];

    (void)state;
    ranks_open(&ranks, 4);
    ranks_start_all(&ranks, 4);
    ranks_name(&ranks, 1, a);
    ranks_name(&ranks, 2, b);
    fabric_hub_cut(ranks.hub, a, b, true);
    ranks_wait(&ranks, 1 | 2 | 8, 2, SEAT_DEAD); /* of two equals the higher seat goes */
    ranks_wait_live(&ranks, 1 | 2 | 8, 1 | 2 | 8);
    fabric_hub_cut(ranks.hub, a, b, false);
    ranks_wait(&ranks, 1 | 2 | 8, 2, SEAT_JOINING);
    fabric_ready(ranks.fabrics[2]);
    ranks_wait_live(&ranks, 15, 15);
    ranks_close(&ranks);
}

/* Four in two halves: the one with the issuer goes on, the other admits nobody and comes back. */
static void test_halves(void **state)
{
    struct ranks ranks;
    char a[32], b[32];
    struct fabric_view view;
    uint64_t end_ns;

    (void)state;
    ranks_open(&ranks, 4);
    ranks_start_all(&ranks, 4);
    for (int cut = 1; cut >= 0; cut--) {
        for (int s = 0; s < 2; s++) {
            for (int t = 2; t < 4; t++) {
                ranks_name(&ranks, s, a);
                ranks_name(&ranks, t, b);
                fabric_hub_cut(ranks.hub, a, b, cut);
            }
        }
        if (!cut)
            break;
        ranks_wait_live(&ranks, 3, 3);
        ranks_wait(&ranks, 3, 2, SEAT_DEAD);
        ranks_wait(&ranks, 3, 3, SEAT_DEAD);
        end_ns = clock_now_ns() + 5000 * MS * fabric_time_factor();
        do {
            fabric_sleep(ranks.fabrics[3], fabric_rings(ranks.fabrics[3]), 5 * MS);
            fabric_view(ranks.fabrics[3], &view);
            assert_true(clock_now_ns() < end_ns);
        } while (view.issuer >= 0);
        assert_int_equal(view.live, 12); /* whom it hears: what runs among them may be finished */
    }
    ranks_wait(&ranks, 3, 2, SEAT_JOINING);
    ranks_wait(&ranks, 3, 3, SEAT_JOINING);
    fabric_ready(ranks.fabrics[2]);
    fabric_ready(ranks.fabrics[3]);
    ranks_wait_live(&ranks, 15, 15);
    ranks_close(&ranks);
}

static void test_drain(void **state)
{
    struct ranks ranks;
    struct fabric_options options;

    (void)state;
    for (int leaver = 0; leaver < 3; leaver++) {
        uint64_t left = 7 & ~((uint64_t)1 << leaver);
        uint32_t epoch;

        ranks_open(&ranks, 3);
        for (int s = 0; s < 3; s++) {
            options = ranks_options(&ranks, s, s == 0 ? -1 : 0);
            options.settles = true;
            assert_int_equal(fabric_create(&ranks.fabrics[s], &options, NULL), FERRY_OK);
            fabric_ready(ranks.fabrics[s]);
        }
        ranks_wait_live(&ranks, 7, 7);
        fabric_drain(ranks.fabrics[leaver]);
        ranks_wait(&ranks, 7, leaver, SEAT_DRAINING);
        lane_bell_sleep(&(struct lane_bell){0}, 0, 60 * MS);
        ranks_wait(&ranks, 7, leaver, SEAT_DRAINING); /* until the layers above have settled it */
        assert_int_equal(fabric_live(ranks.fabrics[leaver]), 7);
        epoch = fabric_epoch(ranks.fabrics[leaver]);
        for (int s = 0; s < 3; s++)
            fabric_settle(ranks.fabrics[s], epoch);
        ranks_wait(&ranks, 7, leaver, SEAT_EMPTY);
        ranks_wait_live(&ranks, left, left);
        assert_int_equal(fabric_live(ranks.fabrics[leaver]), 0);
        fabric_destroy(ranks.fabrics[leaver]);
        ranks.fabrics[leaver] = NULL;
        ranks_start(&ranks, leaver, __builtin_ctzll(left));
        fabric_ready(ranks.fabrics[leaver]);
        ranks_wait_live(&ranks, 7, 7);
        ranks_close(&ranks);
    }
}

/* Of two ranks the issuer dies: the other has proof and goes on. */
static void test_last_survivor(void **state)
{
    struct ranks ranks;

    (void)state;
    ranks_open(&ranks, 4);
    ranks_start_all(&ranks, 4);
    for (int s = 0; s < 3; s++) {
        uint64_t left = 15 & ~(((uint64_t)2 << s) - 1);
        ranks_kill(&ranks, s);
        ranks_wait_live(&ranks, left, left);
    }
    ranks_close(&ranks);
}

/* ---- by a virtual clock ---- */

struct timed {
    struct fabric_options options;
    uint64_t live_ns, silent_ns;
    pthread_t thread;
};

static void *run_timed(void *arg)
{
    struct timed *timed = arg;
    struct fabric *fabric;
    struct ferry_error err = {0};

    if (fabric_create(&fabric, &timed->options, &err) != FERRY_OK) {
        print_message("%s\n", err.msg);
        return NULL;
    }
    fabric_ready(fabric);
    if (fabric_wait_live(fabric, 3, 60000 * MS, &err) != FERRY_OK)
        print_message("%s\n", err.msg);
    timed->live_ns = fabric_now_ns(fabric);
    /* Ten virtual minutes of heartbeats. */
    while (fabric_now_ns(fabric) < timed->live_ns + 600000 * MS)
        fabric_sleep(fabric, fabric_rings(fabric), 1000 * MS);
    timed->silent_ns = fabric_live(fabric) == 7 ? 1 : 0;
    fabric_destroy(fabric);
    return NULL;
}

static void test_virtual_clock(void **state)
{
    static const char *const NAMES[] = {"a", "b", "c"};
    struct fabric_hub_options hub_options = {.sim = true, .n_ranks = 6, .latency_ns = 50000};
    struct fabric_hub *hub;
    struct timed timed[3] = {0};

    (void)state;
    assert_int_equal(fabric_hub_create(&hub, &hub_options, NULL), FERRY_OK);
    for (int s = 0; s < 3; s++) {
        timed[s].options = (struct fabric_options){.transport = &transport_sim,
                                                   .hub = hub,
                                                   .listen = NAMES[s],
                                                   .join = s == 0 ? NULL : "a",
                                                   .seat = s,
                                                   .n_seats = 3,
                                                   .lanes = {{4096, 4096}}};
        assert_int_equal(pthread_create(&timed[s].thread, NULL, run_timed, &timed[s]), 0);
    }
    for (int s = 0; s < 3; s++) {
        assert_int_equal(pthread_join(timed[s].thread, NULL), 0);
        assert_true(timed[s].live_ns > 0);
    }
    assert_int_equal(timed[0].silent_ns, 1);
    fabric_hub_destroy(hub);
}

static void test_options(void **state)
{
    struct ranks ranks;
    struct fabric_options options;
    struct fabric *fabric;
    struct ferry_error err = {0};
    struct fabric_term terms[LIMIT_TERMS + 1];

    (void)state;
    ranks_open(&ranks, 2);
    options = ranks_options(&ranks, 0, -1);
    options.n_seats = 65;
    assert_int_equal(fabric_create(&fabric, &options, &err), FERRY_ERR_ARG);
    options.n_seats = 0;
    assert_int_equal(fabric_create(&fabric, &options, &err), FERRY_ERR_ARG);
    options.n_seats = 2;
    options.seat = 2;
    assert_int_equal(fabric_create(&fabric, &options, &err), FERRY_ERR_ARG);
    options.seat = 0;
    for (int t = 0; t <= LIMIT_TERMS; t++)
        terms[t] = (struct fabric_term){"a", "b"};
    options.terms = terms;
    options.n_terms = LIMIT_TERMS + 1;
    assert_int_equal(fabric_create(&fabric, &options, &err), FERRY_ERR_LIMIT);
    options.n_terms = 0;
    options.hub = NULL; /* a real network, and no key */
    options.n_key = 0;
    options.listen = "0.0.0.0:8081";
    assert_int_equal(fabric_create(&fabric, &options, &err), FERRY_ERR_ARG);
    assert_non_null(strstr(err.msg, "--group-key-file"));
    ranks_start(&ranks, 0, -1);
    options = ranks_options(&ranks, 1, 0);
    char taken[32];
    ranks_name(&ranks, 0, taken);
    options.listen = taken;
    assert_int_equal(fabric_create(&fabric, &options, &err), FERRY_ERR_IO);
    assert_int_equal(fabric_wait_live(ranks.fabrics[0], 2, 10 * MS, &err), FERRY_ERR_TIMEOUT);
    assert_non_null(strstr(err.msg, "0 joining, 1 empty"));
    ranks_close(&ranks);
}

static void test_out_of_memory(void **state)
{
    struct ranks ranks;
    struct fabric_options options;
    enum ferry_status st;
    uint64_t n = 0;

    (void)state;
    ranks_open(&ranks, 2);
    do {
        struct ferry_error err = {0};
        options = ranks_options(&ranks, 0, -1);
        mem_fail_after(++n);
        st = fabric_create(&ranks.fabrics[0], &options, &err);
        mem_fail_after(0);
        if (st != FERRY_OK) {
            assert_int_equal(st, FERRY_ERR_NOMEM);
            assert_non_null(strstr(err.msg, "no memory"));
        }
        assert_true(n < 100);
    } while (st != FERRY_OK);
    assert_true(n > 5);
    ranks_close(&ranks);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_alone),         cmocka_unit_test(test_join),
        cmocka_unit_test(test_mates),         cmocka_unit_test(test_kill_any),
        cmocka_unit_test(test_partial_cut),   cmocka_unit_test(test_halves),
        cmocka_unit_test(test_drain),         cmocka_unit_test(test_last_survivor),
        cmocka_unit_test(test_virtual_clock), cmocka_unit_test(test_options),
        cmocka_unit_test(test_out_of_memory),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
