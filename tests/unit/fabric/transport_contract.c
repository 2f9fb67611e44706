/* The cases of transport_contract.h: connections, control messages, waiting. Those of lanes are in
 * contract_lanes.c, what all of them share in contract_world.c. */
#include "contract_world.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

/* ---- connections ---- */

static void both_sides_see_a_connect_once(void **state)
{
    struct world *world = world_open(*state, 2, 1);
    struct pair pair = pair_open(world, 0, 1);

    world_settle(world);
    assert_int_equal(pair.near->n_connected, 1);
    assert_int_equal(pair.near->n_accepted, 0);
    assert_int_equal(pair.far->n_accepted, 1);
    assert_int_equal(pair.far->n_connected, 0);
    assert_int_equal(world->ends[0].n_records, 1);
    assert_int_equal(world->ends[1].n_records, 1);
    assert_int_equal(pair.near->n_lost + pair.far->n_lost, 0);
    world_close(world);
}

static void crossing_connects_are_two_connections(void **state)
{
    struct world *world = world_open(*state, 2, 1);
    struct record *ab = end_connect(&world->ends[0], world->ends[1].address);
    struct record *ba = end_connect(&world->ends[1], world->ends[0].address);

    WAIT_FOR(world, ab->n_connected == 1 && ba->n_connected == 1);
    WAIT_FOR(world, world->ends[0].n_records == 2 && world->ends[1].n_records == 2);
    world_settle(world);
    for (size_t i = 0; i < 2; i++) {
        for (size_t k = 0; k < 2; k++) {
            const struct record *record = &world->ends[i].records[k];
            assert_int_equal(record->n_connected + record->n_accepted, 1);
            assert_int_equal(record->n_lost, 0);
        }
    }
    world_close(world);
}

static void a_connect_to_nobody_is_lost_once(void **state)
{
    const struct contract_setup *setup = *state;
    struct world *world = world_open(setup, 1, 1);
    struct record *record = end_connect(&world->ends[0], setup->nowhere);

    WAIT_FOR(world, record->n_lost > 0);
    world_settle(world);
    assert_int_equal(record->n_lost, 1);
    assert_int_equal(record->n_connected, 0);
    assert_int_equal(setup->ops->send(record->conn, "x", 1), FERRY_ERR_PEER);
    end_close(&world->ends[0], record, false);
    world_settle(world);
    assert_int_equal(record->n_lost, 1);
    world_close(world);
}

static void addresses_that_are_none_are_refused(void **state)
{
    const struct contract_setup *setup = *state;
    struct world *world = world_open(setup, 1, 1);
    char much[TRANSPORT_ADDRESS_MAX + 100];
    const char *bad[] = {"", much};
    struct transport_conn *conn = NULL;

    memset(much, 'x', sizeof much);
    much[sizeof much - 1] = 0;
    for (size_t i = 0; i < COUNT_OF(bad); i++) {
        struct ferry_error err = {0};
        assert_int_equal(setup->ops->connect(world->ends[0].transport, bad[i], &conn, &err),
                         FERRY_ERR_ARG);
        assert_true(strlen(err.msg) > 0);
        assert_null(conn);
    }
    world_close(world);
}

static void a_close_is_lost_once_at_the_peer_only(void **state)
{
    for (size_t closer = 0; closer < 2; closer++) {
        struct world *world = world_open(*state, 2, 1);
        struct pair pair = pair_open(world, 0, 1);
        struct record *closes = closer == 0 ? pair.near : pair.far;
        struct record *stays = closer == 0 ? pair.far : pair.near;

        end_close(&world->ends[closer], closes, false);
        WAIT_FOR(world, stays->n_lost > 0);
        world_settle(world);
        assert_int_equal(stays->n_lost, 1);
        assert_int_equal(closes->n_lost, 0);
        assert_int_equal(world->setup->ops->send(stays->conn, "x", 1), FERRY_ERR_PEER);
        world_close(world);
    }
}

static void a_destroyed_transport_is_lost_once(void **state)
{
    struct world *world = world_open(*state, 3, 1);
    struct pair ab = pair_open(world, 0, 1);
    struct pair cb = pair_open(world, 2, 1);
    struct pair ac = pair_open(world, 0, 2);

    end_destroy(&world->ends[1]);
    WAIT_FOR(world, ab.near->n_lost > 0 && cb.near->n_lost > 0);
    world_settle(world);
    assert_int_equal(ab.near->n_lost, 1);
    assert_int_equal(cb.near->n_lost, 1);
    assert_int_equal(ac.near->n_lost + ac.far->n_lost, 0);
    world_close(world);
}

static void a_connect_may_be_closed_before_it_is_through(void **state)
{
    struct world *world = world_open(*state, 2, 1);
    struct record *record = end_connect(&world->ends[0], world->ends[1].address);

    end_close(&world->ends[0], record, false);
    world_settle(world);
    assert_int_equal(record->n_lost + record->n_connected, 0);
    /* The other side has seen nothing, or a connection that was lost. */
    WAIT_FOR(world, world->ends[1].n_records == 0 || world->ends[1].records[0].n_lost == 1);
    struct pair pair = pair_open(world, 0, 1);
    assert_int_equal(pair.near->n_lost, 0);
    world_close(world);
}

static void close_in(struct end *end, struct record *record)
{
    end_close(end, record, false);
}

/* An owner may close a connection inside any event about it. */
static void events_may_close_their_connection(void **state)
{
    enum { IN_ACCEPTED, IN_CONNECTED, IN_CONTROL, IN_LOST, N_EVENTS };

    for (int event = 0; event < N_EVENTS; event++) {
        struct world *world = world_open(*state, 2, 1);
        struct end *a = &world->ends[0], *b = &world->ends[1];
        if (event == IN_ACCEPTED)
            b->on_accepted = close_in;
        if (event == IN_CONNECTED)
            a->on_connected = close_in;
        if (event == IN_CONTROL)
            b->on_control = close_in;
        if (event == IN_LOST)
            b->on_lost = close_in;
        struct record *near = end_connect(a, b->address);
        if (event == IN_CONTROL || event == IN_LOST) {
            WAIT_FOR(world, near->n_connected == 1 && b->n_records == 1);
            if (event == IN_CONTROL)
                assert_int_equal(world->setup->ops->send(near->conn, "x", 1), FERRY_OK);
            else
                end_close(a, near, false);
        }
        if (event == IN_ACCEPTED || event == IN_CONTROL) {
            WAIT_FOR(world, near->n_lost == 1);
            assert_true(b->records[0].closed);
        } else {
            WAIT_FOR(world, b->n_records == 1 && b->records[0].n_lost == 1);
        }
        world_settle(world);
        assert_true(near->n_lost <= 1);
        world_close(world);
    }
}

/* ---- control messages ---- */

/* Sizes around each power of two, and the limits. */
static size_t control_size(size_t index)
{
    size_t power = (size_t)1 << (index / 3);

    return power - 1 + index % 3;
}
enum { N_CONTROL_SIZES = 17 * 3 - 1 }; /* up to TRANSPORT_CONTROL_MAX */

static void control_messages_come_whole_and_in_order(void **state)
{
    static unsigned char data[TRANSPORT_CONTROL_MAX + 1];
    struct world *world = world_open(*state, 2, 1);
    const struct transport_ops *ops = world->setup->ops;
    struct pair pair = pair_open(world, 0, 1);
    struct record *from[] = {pair.near, pair.far}, *to[] = {pair.far, pair.near};

    for (size_t round = 0; round < 3; round++) {
        for (size_t i = 0; i < N_CONTROL_SIZES; i++) {
            size_t n_bytes = control_size(i);
            for (size_t way = 0; way < 2; way++) {
                fill(data, n_bytes, to[way]->n_expected);
                WAIT_FOR(world, ops->send(from[way]->conn, data, n_bytes) == FERRY_OK);
                to[way]->n_expected++;
                to[way]->expected_bytes += n_bytes;
            }
        }
    }
    memset(data, 0x5a, sizeof data); /* sent messages are copies */
    for (size_t way = 0; way < 2; way++) {
        WAIT_FOR(world, to[way]->n_control == to[way]->n_expected);
        assert_int_equal(to[way]->control_bytes, to[way]->expected_bytes);
        assert_int_equal(to[way]->n_bad, 0);
    }
    enum ferry_status st = ops->send(pair.near->conn, data, TRANSPORT_CONTROL_MAX + 1);
    assert_true(st < FERRY_OK);
    world_settle(world);
    assert_int_equal(pair.far->n_control, pair.far->n_expected);
    world_close(world);
}

/* The peer does not poll: what may be queued is bounded, nothing of it is lost, and when the peer
 * reads again there is room again. */
static void a_peer_that_does_not_read_makes_send_say_again(void **state)
{
    enum { BYTES = 16 << 10, MANY = 64 << 20 };
    static unsigned char data[BYTES];
    struct world *world = world_open(*state, 2, 1);
    const struct transport_ops *ops = world->setup->ops;
    struct pair pair = pair_open(world, 0, 1);
    size_t n_sent = 0;

    for (int again = 0; again < 3; again++) {
        enum ferry_status st = FERRY_OK;
        for (size_t sent = 0; sent < MANY && st == FERRY_OK; sent += BYTES) {
            fill(data, BYTES, n_sent);
            st = ops->send(pair.near->conn, data, BYTES);
            n_sent += st == FERRY_OK;
            ops->poll(world->ends[0].transport, 0);
        }
        assert_int_equal(st, FERRY_AGAIN);
        assert_in_range(n_sent, 8, MANY / BYTES);
        WAIT_FOR(world, pair.far->n_control == n_sent);
        assert_int_equal(pair.far->n_bad, 0);
    }
    /* Full in one direction does not close the other. */
    while (ops->send(pair.near->conn, data, BYTES) == FERRY_OK)
        n_sent++;
    fill(data, 10, 0);
    assert_int_equal(ops->send(pair.far->conn, data, 10), FERRY_OK);
    WAIT_FOR(world, pair.near->n_control == 1 && pair.far->n_control == n_sent);
    assert_int_equal(pair.near->n_bad, 0);
    world_close(world);
}

/* ---- waiting ---- */

static void waits_end_in_time(void **state)
{
    enum { WAIT_NS = 20000000, LONG_NS = 2000000000, N_POLLS = 50 };
    struct world *world = world_open(*state, 2, 1);
    const struct transport_ops *ops = world->setup->ops;
    struct end *a = &world->ends[0];

    (void)pair_open(world, 0, 1);
    world_settle(world);
    uint64_t begin = ops->now_ns(a->transport);
    for (int i = 0; i < N_POLLS; i++)
        ops->poll(a->transport, 0);
    assert_true(ops->now_ns(a->transport) - begin < LONG_NS);

    /* It may return early, but does not spin. */
    begin = ops->now_ns(a->transport);
    int n_polls = 0;
    while (ops->now_ns(a->transport) - begin < WAIT_NS && n_polls < N_POLLS) {
        ops->poll(a->transport, WAIT_NS);
        n_polls++;
    }
    assert_in_range(ops->now_ns(a->transport) - begin, WAIT_NS, LONG_NS * world->patience);
    assert_true(n_polls < N_POLLS);

    uint32_t seen = lane_bell_rings(a->bell);
    begin = ops->now_ns(a->transport);
    ops->sleep(a->transport, seen, 0);
    ops->sleep(a->transport, seen, WAIT_NS);
    if (lane_bell_rings(a->bell) == seen)
        assert_true(ops->now_ns(a->transport) - begin >= WAIT_NS);
    seen = lane_bell_rings(a->bell);
    lane_bell_ring(a->bell);
    begin = ops->now_ns(a->transport);
    ops->sleep(a->transport, seen, 100ull * LONG_NS);
    assert_true(ops->now_ns(a->transport) - begin < LONG_NS * world->patience);
    world_close(world);
}

static void *wake_later(void *arg)
{
    struct world *world = arg;

    (void)usleep(20000);
    world->setup->ops->wake(world->ends[0].transport);
    return NULL;
}

static void wake_ends_a_poll(void **state)
{
    const uint64_t long_ns = 20000000000u;
    struct world *world = world_open(*state, 1, 1);
    const struct transport_ops *ops = world->setup->ops;
    struct transport *transport = world->ends[0].transport;
    pthread_t thread;

    /* Before the poll: a wake is not lost. */
    world_settle(world);
    uint64_t begin = ops->now_ns(transport);
    ops->wake(transport);
    ops->wake(transport);
    ops->poll(transport, long_ns);
    assert_true(ops->now_ns(transport) - begin < long_ns);
    if (!world->setup->sim) { /* with sim, time would just pass: this thread is the only one */
        world_settle(world);
        begin = ops->now_ns(transport);
        assert_int_equal(pthread_create(&thread, NULL, wake_later, world), 0);
        ops->poll(transport, long_ns);
        assert_true(ops->now_ns(transport) - begin < long_ns);
        assert_int_equal(pthread_join(thread, NULL), 0);
    }
    world_close(world);
}

static void a_transport_ends_with_everything_open(void **state)
{
    struct world *world = world_open(*state, 3, 1);
    struct pair pair = pair_open(world, 0, 1);

    (void)pair_open(world, 1, 2);
    (void)end_connect(&world->ends[0], world->ends[2].address);
    for (int i = 0; i < 20; i++)
        (void)world->setup->ops->send(pair.near->conn, "undelivered", 11);
    pair_lanes(&pair, 4096, 65536);
    for (size_t i = 0; i < 3; i++)
        end_destroy(&world->ends[i]);
    world_close(world);
}

int transport_contract_run(const struct contract_setup *setup)
{
    void *given = (void *)(uintptr_t)setup; /* cmocka hands it on as a plain pointer */
    const struct CMUnitTest tests[] = {
#define CASE(name) cmocka_unit_test_prestate(name, given)
        CASE(both_sides_see_a_connect_once),
        CASE(crossing_connects_are_two_connections),
        CASE(a_connect_to_nobody_is_lost_once),
        CASE(addresses_that_are_none_are_refused),
        CASE(a_close_is_lost_once_at_the_peer_only),
        CASE(a_destroyed_transport_is_lost_once),
        CASE(a_connect_may_be_closed_before_it_is_through),
        CASE(events_may_close_their_connection),
        CASE(control_messages_come_whole_and_in_order),
        CASE(a_peer_that_does_not_read_makes_send_say_again),
        CASE(waits_end_in_time),
        CASE(wake_ends_a_poll),
        CASE(a_transport_ends_with_everything_open),
#undef CASE
    };
    int n_failed = cmocka_run_group_tests_name(setup->ops->name, tests, NULL, NULL);

    return n_failed + contract_lanes_run(setup);
}
