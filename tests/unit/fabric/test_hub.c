/* Unit tests of fabric/hub.c: what a kill and a cut do to connections, options that are refused, no
 * memory, and faults in the middle of traffic. Over the transport loop. */
#include "contract_world.h"

#include "base/alloc.h"

#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

static const struct contract_setup LOOP = {
    .ops = &transport_loop,
    .listen = {"alpha", "beta", "gamma"},
    .nowhere = "nobody",
    .hub = true,
};

static void send_numbered(struct record *from, struct record *to)
{
    unsigned char data[100];

    fill(data, sizeof data, to->n_expected++);
    assert_int_equal(transport_loop.send(from->conn, data, sizeof data), FERRY_OK);
}

/* ---- options ---- */

static void hubs_that_cannot_work_are_refused(void **state)
{
    const struct fabric_hub_options bad[] = {
        {.sim = true, .latency_ns = 1},
        {.sim = true, .n_ranks = 1, .bytes_per_ns = -1.0},
        {.sim = true, .n_ranks = 1, .bytes_per_ns = (double)NAN},
        {.bytes_per_ns = -0.5},
    };

    (void)state;
    for (size_t i = 0; i < COUNT_OF(bad); i++) {
        struct fabric_hub *hub = NULL;
        struct ferry_error err = {0};
        assert_int_equal(fabric_hub_create(&hub, &bad[i], &err), FERRY_ERR_ARG);
        assert_null(hub);
        assert_true(strlen(err.msg) > 0);
    }
    fabric_hub_destroy(NULL);
}

static void transports_want_their_hub_and_a_name(void **state)
{
    struct fabric_hub *loop = NULL, *sim = NULL;
    struct fabric_hub_options options = {0};
    struct transport *first = NULL, *other = NULL;
    char much[TRANSPORT_ADDRESS_MAX + 1];

    (void)state;
    assert_int_equal(fabric_hub_create(&loop, &options, NULL), FERRY_OK);
    options = (struct fabric_hub_options){.sim = true, .n_ranks = 1};
    assert_int_equal(fabric_hub_create(&sim, &options, NULL), FERRY_OK);
    memset(much, 'y', sizeof much);
    much[sizeof much - 1] = 0;
    const struct {
        const struct transport_ops *ops;
        struct transport_options options;
    } bad[] = {
        {&transport_loop, {.listen = "a"}},
        {&transport_sim, {.listen = "a"}},
        {&transport_loop, {.listen = "a", .hub = sim}},
        {&transport_sim, {.listen = "a", .hub = loop}},
        {&transport_loop, {.hub = loop}},
        {&transport_loop, {.listen = "", .hub = loop}},
        {&transport_loop, {.listen = much, .hub = loop}},
    };
    for (size_t i = 0; i < COUNT_OF(bad); i++) {
        struct ferry_error err = {0};
        assert_int_equal(bad[i].ops->create(&first, &bad[i].options, &err), FERRY_ERR_ARG);
        assert_true(strlen(err.msg) > 0);
        assert_null(first);
    }
    struct transport_options good = {.listen = "a", .hub = loop};
    assert_int_equal(transport_loop.create(&first, &good, NULL), FERRY_OK);
    struct ferry_error err = {0};
    assert_int_equal(transport_loop.create(&other, &good, &err), FERRY_ERR_IO);
    assert_non_null(strstr(err.msg, "'a'"));
    fabric_hub_kill(loop, "a"); /* its name is free again: another process may start there */
    assert_int_equal(transport_loop.create(&other, &good, NULL), FERRY_OK);
    transport_loop.destroy(first);
    transport_loop.destroy(other);
    transport_loop.destroy(NULL);
    fabric_hub_destroy(loop);
    fabric_hub_destroy(sim);
}

/* Each call with the first, second, ... allocation failing: a status, and nothing else happens. */
static void no_memory_is_a_status(void **state)
{
    static const struct transport_lanes SIZES = {{4096, 4096}};
    struct fabric_hub_options options = {.sim = true, .n_ranks = 1};
    struct fabric_hub *hub = NULL;
    unsigned char offer[TRANSPORT_OFFER_MAX];
    size_t n_bytes;

    (void)state;
    for (uint64_t n = 1; hub == NULL; n++) {
        mem_fail_after(n);
        enum ferry_status st = fabric_hub_create(&hub, &options, NULL);
        assert_int_equal(st, hub != NULL ? FERRY_OK : FERRY_ERR_NOMEM);
    }
    mem_fail_after(0);
    fabric_hub_destroy(hub);
    struct world *world = world_open(&LOOP, 2, 1);
    struct pair pair = pair_open(world, 0, 1);
    struct transport_options again = {.listen = "again", .hub = world->hub};
    struct transport *transport = NULL;
    struct transport_conn *conn = NULL;
    mem_fail_after(1);
    assert_int_equal(transport_loop.create(&transport, &again, NULL), FERRY_ERR_NOMEM);
    for (uint64_t n = 1; n <= 2; n++) {
        mem_fail_after(n);
        assert_int_equal(transport_loop.connect(world->ends[0].transport, "beta", &conn, NULL),
                         FERRY_ERR_NOMEM);
        assert_null(conn);
    }
    mem_fail_after(1);
    assert_int_equal(transport_loop.send(pair.near->conn, "x", 1), FERRY_ERR_NOMEM);
    enum ferry_status st = FERRY_ERR_NOMEM;
    for (uint64_t n = 1; st == FERRY_ERR_NOMEM; n++) {
        struct ferry_error err = {0};
        mem_fail_after(n);
        st = transport_loop.offer(pair.near->conn, &SIZES, offer, &n_bytes, &err);
        assert_true(st == FERRY_ERR_NOMEM ? n <= 8 && strlen(err.msg) > 0 : n == 9);
    }
    mem_fail_after(0);
    assert_int_equal(st, FERRY_OK);
    world_settle(world);
    assert_int_equal(world->ends[1].n_records, 1);
    assert_int_equal(pair.far->n_control, 0);
    world_close(world);
}

/* ---- kill ---- */

static void a_kill_is_lost_once_and_delivers_nothing(void **state)
{
    struct world *world = world_open(&LOOP, 3, 1);
    struct pair ab = pair_open(world, 0, 1);
    struct pair bc = pair_open(world, 1, 2);
    struct pair ac = pair_open(world, 0, 2);

    (void)state;
    send_numbered(ab.far, ab.near); /* on the way when its sender dies */
    send_numbered(ab.near, ab.far);
    ab.near->n_expected = ab.far->n_expected = 0;
    assert_false(transport_loop.gone(ab.near->conn));
    fabric_hub_kill(world->hub, "nobody of that name");
    fabric_hub_kill(world->hub, "beta");
    fabric_hub_kill(world->hub, "beta");
    assert_true(transport_loop.gone(ab.near->conn));
    WAIT_FOR(world, ab.near->n_lost == 1 && bc.far->n_lost == 1);
    world_settle(world);
    assert_int_equal(ab.near->n_lost + bc.far->n_lost, 2);
    assert_int_equal(ab.near->n_control + ab.far->n_control, 0);
    /* The dead one sees nothing and can do nothing. */
    assert_int_equal(ab.far->n_lost + bc.near->n_lost, 0);
    assert_int_equal(transport_loop.send(ab.far->conn, "x", 1), FERRY_ERR_PEER);
    struct record *from_dead = end_connect(&world->ends[1], "alpha");
    world_settle(world);
    assert_int_equal(world->ends[0].n_records, 2);
    assert_int_equal(from_dead->n_connected, 0);
    /* The others go on, and nobody listens at the dead one's name. */
    send_numbered(ac.near, ac.far);
    WAIT_FOR(world, ac.far->n_control == 1);
    struct record *late = end_connect(&world->ends[0], "beta");
    WAIT_FOR(world, late->n_lost == 1);
    assert_true(transport_loop.gone(ab.near->conn));
    world_close(world);
}

static void a_kill_ends_a_connect_that_is_under_way(void **state)
{
    for (int killed = 0; killed < 2; killed++) {
        struct world *world = world_open(&LOOP, 2, 1);
        struct record *near = end_connect(&world->ends[0], "beta");
        (void)state;
        fabric_hub_kill(world->hub, killed == 0 ? "alpha" : "beta");
        world_settle(world);
        assert_int_equal(near->n_connected, 0);
        assert_int_equal(near->n_lost, killed == 0 ? 0 : 1);
        assert_int_equal(world->ends[1].n_records, 0);
        world_close(world);
    }
}

static void a_closed_connection_tells_later_that_the_peer_died(void **state)
{
    struct world *world = world_open(&LOOP, 2, 1);
    struct pair pair = pair_open(world, 0, 1);

    (void)state;
    end_close(&world->ends[1], pair.far, false);
    WAIT_FOR(world, pair.near->n_lost == 1);
    assert_false(transport_loop.gone(pair.near->conn)); /* a close proves nothing */
    fabric_hub_kill(world->hub, "beta");
    assert_true(transport_loop.gone(pair.near->conn));
    world_close(world);
}

/* ---- cut ---- */

static void a_cut_is_silence_until_it_heals(void **state)
{
    enum { MESSAGES = 50 };
    struct world *world = world_open(&LOOP, 3, 1);
    struct pair ab = pair_open(world, 0, 1);
    struct pair ac = pair_open(world, 0, 2);

    (void)state;
    fabric_hub_cut(world->hub, "beta", "alpha", true);
    for (int i = 0; i < MESSAGES; i++) {
        send_numbered(ab.near, ab.far);
        send_numbered(ab.far, ab.near);
        send_numbered(ac.near, ac.far);
    }
    WAIT_FOR(world, ac.far->n_control == MESSAGES); /* the other pair has no cut */
    world_settle(world);
    assert_int_equal(ab.near->n_control + ab.far->n_control, 0);
    assert_int_equal(ab.near->n_lost + ab.far->n_lost, 0);
    fabric_hub_cut(world->hub, "alpha", "beta", false);
    WAIT_FOR(world, ab.near->n_control == MESSAGES && ab.far->n_control == MESSAGES);
    assert_int_equal(ab.near->n_bad + ab.far->n_bad, 0);
    world_close(world);
}

static void what_happens_behind_a_cut_is_seen_when_it_heals(void **state)
{
    enum { CONNECT, CLOSE, KILL, N_DEEDS };

    (void)state;
    for (int deed = 0; deed < N_DEEDS; deed++) {
        struct world *world = world_open(&LOOP, 2, 1);
        struct record *near = NULL;
        if (deed == CONNECT) {
            fabric_hub_cut(world->hub, "alpha", "beta", true);
            fabric_hub_cut(world->hub, "alpha", "beta", true); /* again: as one */
            near = end_connect(&world->ends[0], "beta");
        } else {
            struct pair pair = pair_open(world, 0, 1);
            near = pair.near;
            fabric_hub_cut(world->hub, "alpha", "beta", true);
            if (deed == CLOSE)
                end_close(&world->ends[1], pair.far, false);
            else
                fabric_hub_kill(world->hub, "beta");
        }
        assert_int_equal(transport_loop.send(near->conn, "x", 1), FERRY_OK);
        world_settle(world);
        assert_int_equal(near->n_connected, deed == CONNECT ? 0 : 1);
        assert_int_equal(near->n_lost, 0);
        assert_false(transport_loop.gone(near->conn));
        fabric_hub_cut(world->hub, "alpha", "beta", false);
        if (deed == CONNECT)
            WAIT_FOR(world, near->n_connected == 1 && world->ends[1].n_records == 1);
        else
            WAIT_FOR(world, near->n_lost == 1);
        assert_int_equal(transport_loop.gone(near->conn), deed == KILL);
        world_close(world);
    }
}

/* ---- faults in the middle of traffic ---- */

enum { N_FAULTS = 300 };

struct busy {
    struct world *world;
    struct end *end;
    struct lane *out, *in;
    _Atomic bool stop;
    size_t n_sent, n_taken, n_bad;
    bool kills; /* losses are expected */
};

static void *busy_engine(void *arg)
{
    enum { SLEEP_NS = 1000000 };
    struct busy *busy = arg;

    while (!atomic_load(&busy->stop)) {
        uint32_t seen = lane_bell_rings(busy->end->bell);
        struct lane_header header = {.id = busy->n_sent, .n_bytes = 200};
        const unsigned char *data;
        bool any = false;
        void *room;
        if (lane_reserve(busy->out, 200, &room) == FERRY_OK) {
            fill(room, 200, busy->n_sent++);
            lane_commit(busy->out, &header);
            any = true;
        }
        if (lane_take(busy->in, &header, &data)) {
            busy->n_bad += header.id != busy->n_taken || !is_filled(data, 200, busy->n_taken);
            busy->n_taken++;
            lane_release(busy->in, &header);
            any = true;
        }
        if (!any)
            transport_loop.sleep(busy->end->transport, seen, SLEEP_NS);
    }
    return NULL;
}

static void *busy_poll(void *arg)
{
    enum { POLL_NS = 1000000 };
    struct busy *busy = arg;

    while (!atomic_load(&busy->stop)) {
        transport_loop.poll(busy->end->transport, POLL_NS);
        for (size_t i = 0; i < busy->end->n_records; i++) {
            struct record *record = &busy->end->records[i];
            if (!record->closed && record->n_lost == 0)
                (void)transport_loop.send(record->conn, "beat", 4);
        }
    }
    return NULL;
}

static void faults_in_the_middle_of_traffic(void **state)
{
    (void)state;
    for (int kills = 0; kills < 2; kills++) {
        struct world *world = world_open(&LOOP, 2, 1);
        struct pair pair = pair_open(world, 0, 1);
        struct record *records[] = {pair.near, pair.far};
        struct busy busy[2];
        pthread_t threads[4];
        pair_lanes(&pair, 4096, 4096);
        for (size_t i = 0; i < 2; i++) {
            busy[i] = (struct busy){.world = world, .end = records[i]->end};
            busy[i].out = record_lane(records[i], LANE_REQUEST, LANE_SEND);
            busy[i].in = record_lane(records[i], LANE_REQUEST, LANE_RECEIVE);
        }
        for (size_t i = 0; i < 4; i++)
            assert_int_equal(
                pthread_create(&threads[i], NULL, i < 2 ? busy_engine : busy_poll, &busy[i % 2]),
                0);
        for (int i = 0; i < N_FAULTS; i++) {
            fabric_hub_cut(world->hub, "alpha", "beta", i % 2 == 0);
            (void)usleep((useconds_t)(i * 37 % 300));
        }
        if (kills)
            fabric_hub_kill(world->hub, "beta");
        (void)usleep(5000);
        for (size_t i = 0; i < 2; i++)
            atomic_store(&busy[i].stop, true);
        for (size_t i = 0; i < 4; i++)
            assert_int_equal(pthread_join(threads[i], NULL), 0);
        for (size_t i = 0; i < 2; i++) {
            assert_int_equal(busy[i].n_bad, 0);
            assert_true(busy[i].n_taken > 0);
            assert_true(busy[i].n_taken <= busy[1 - i].n_sent);
        }
        world_settle(world);
        assert_int_equal(pair.near->n_lost, kills);
        assert_int_equal(pair.far->n_lost, 0);
        world_close(world);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(hubs_that_cannot_work_are_refused),
        cmocka_unit_test(transports_want_their_hub_and_a_name),
        cmocka_unit_test(no_memory_is_a_status),
        cmocka_unit_test(a_kill_is_lost_once_and_delivers_nothing),
        cmocka_unit_test(a_kill_ends_a_connect_that_is_under_way),
        cmocka_unit_test(a_closed_connection_tells_later_that_the_peer_died),
        cmocka_unit_test(a_cut_is_silence_until_it_heals),
        cmocka_unit_test(what_happens_behind_a_cut_is_seen_when_it_heals),
        cmocka_unit_test(faults_in_the_middle_of_traffic),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
