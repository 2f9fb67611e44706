/* The transport `sim` under the contract of all transports, and what only it has: arrival times by
 * latency and rate, a clock that stands still while anybody computes, the same course of events in
 * every run, and no standstill when a rank or a thread goes. */
#include "contract_world.h"

#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

enum { LATENCY_NS = 20000, NS_PER_BYTE = 8 };

static const struct contract_setup SIM = {
    .ops = &transport_sim,
    .listen = {"alpha", "beta", "gamma"},
    .nowhere = "nobody",
    .hub = true,
    .sim = true,
    .latency_ns = LATENCY_NS,
    .bytes_per_ns = 1.0 / NS_PER_BYTE,
    .strict_offers = true,
    .n_messages = 20000,
};

/* ---- arrival times ---- */

/* Each event's time at one end. */
struct times {
    uint64_t at[64];
    size_t n;
};
static struct times times;

static void note_time(struct end *end, struct record *record)
{
    (void)record;
    if (times.n < COUNT_OF(times.at))
        times.at[times.n++] = transport_sim.now_ns(end->transport);
}

/* Polls one end only, so that time goes from event to event. */
static void run_until(struct end *end, uint64_t until_ns)
{
    uint64_t now_ns;

    while ((now_ns = transport_sim.now_ns(end->transport)) < until_ns)
        transport_sim.poll(end->transport, until_ns - now_ns);
}

static void control_arrives_by_latency_and_rate(void **state)
{
    static const size_t SIZES[] = {0, 1, 1000, 1000, 65536};
    static const unsigned char data[TRANSPORT_CONTROL_MAX];
    struct world *world = world_open(&SIM, 2, 1);
    struct pair pair = pair_open(world, 0, 1);
    struct end *to = pair.far->end;

    (void)state;
    world_settle(world);
    times.n = 0;
    to->on_control = note_time;
    uint64_t begin = world_now(world), due = begin + LATENCY_NS;
    for (size_t i = 0; i < COUNT_OF(SIZES); i++) {
        assert_int_equal(transport_sim.send(pair.near->conn, data, SIZES[i]), FERRY_OK);
        /* The other direction has a wire of its own. */
        assert_int_equal(transport_sim.send(pair.far->conn, data, 60000), FERRY_OK);
    }
    run_until(to, begin + 100 * LATENCY_NS);
    assert_int_equal(times.n, COUNT_OF(SIZES));
    for (size_t i = 0; i < COUNT_OF(SIZES); i++) {
        due += NS_PER_BYTE * SIZES[i];
        assert_int_equal(times.at[i], due);
    }
    world_close(world);
}

/* Commits are seen after latency and their bytes, credit after latency; a skip is not sent. */
static void lanes_go_by_latency_and_rate(void **state)
{
    enum { RING = 4096, BYTES = 1000, MESSAGE = 64 + 1024 };
    struct world *world = world_open(&SIM, 2, 1);
    struct pair pair = pair_open(world, 0, 1);
    struct lane_header header = {.n_bytes = BYTES};
    struct end *sender = pair.near->end, *receiver = pair.far->end;
    const unsigned char *got;
    void *data;

    (void)state;
    pair_lanes(&pair, RING, RING);
    world_settle(world);
    struct lane *out = record_lane(pair.near, LANE_REQUEST, LANE_SEND);
    struct lane *in = record_lane(pair.far, LANE_REQUEST, LANE_RECEIVE);
    for (int round = 0; round < 10; round++) {
        uint64_t begin = world_now(world), now_ns = begin;
        for (int i = 0; i < 3; i++) { /* the third or the next first one skips the ring's end */
            assert_int_equal(lane_reserve(out, BYTES, &data), FERRY_OK);
            header.n_bytes = BYTES;
            lane_commit(out, &header);
        }
        assert_int_equal(lane_reserve(out, BYTES, &data), FERRY_AGAIN);
        for (int i = 0; i < 3; i++) {
            uint32_t seen = lane_bell_rings(receiver->bell);
            assert_false(lane_take(in, &header, &got));
            transport_sim.sleep(receiver->transport, seen, UINT64_MAX);
            now_ns = transport_sim.now_ns(receiver->transport);
            assert_int_equal(now_ns - begin,
                             LATENCY_NS + (uint64_t)(i + 1) * MESSAGE * NS_PER_BYTE);
            assert_true(lane_take(in, &header, &got));
            if (i < 2)
                lane_release(in, &header);
        }
        uint32_t seen = lane_bell_rings(sender->bell);
        while (lane_reserve(out, BYTES, &data) == FERRY_AGAIN) {
            transport_sim.sleep(sender->transport, seen, UINT64_MAX);
            seen = lane_bell_rings(sender->bell);
        }
        lane_release(in, &header);
        world_settle(world); /* all credit is back */
    }
    world_close(world);
}

static void a_cut_holds_for_its_time(void **state)
{
    struct world *world = world_open(&SIM, 2, 1);
    struct pair pair = pair_open(world, 0, 1);
    struct end *to = pair.far->end;
    unsigned char data[10];

    (void)state;
    world_settle(world);
    times.n = 0;
    to->on_control = note_time;
    uint64_t begin = world_now(world);
    fill(data, sizeof data, 0);
    assert_int_equal(transport_sim.send(pair.near->conn, data, sizeof data), FERRY_OK);
    run_until(to, begin + 5);
    fabric_hub_cut(world->hub, "alpha", "beta", true);
    fill(data, sizeof data, 1);
    assert_int_equal(transport_sim.send(pair.near->conn, data, sizeof data), FERRY_OK);
    run_until(to, begin + 1000000);
    assert_int_equal(times.n, 0);
    fabric_hub_cut(world->hub, "alpha", "beta", false);
    run_until(to, begin + 2000000);
    assert_int_equal(times.n, 2);
    for (size_t i = 0; i < 2; i++)
        assert_int_equal(times.at[i], begin + 1000000 + LATENCY_NS);
    assert_int_equal(pair.far->n_bad, 0);
    world_close(world);
}

/* Without latency, too: two threads that are awake at one instant must not race. */
static void nothing_arrives_at_the_instant_it_is_sent(void **state)
{
    struct contract_setup setup = SIM;
    unsigned char data[8];

    (void)state;
    setup.latency_ns = 0;
    setup.bytes_per_ns = 0.0;
    struct world *world = world_open(&setup, 2, 1);
    struct pair pair = pair_open(world, 0, 1);
    world_settle(world);
    uint64_t begin = world_now(world);
    fill(data, sizeof data, 0);
    assert_int_equal(transport_sim.send(pair.near->conn, data, sizeof data), FERRY_OK);
    for (int i = 0; i < 3; i++)
        transport_sim.poll(pair.far->end->transport, 0);
    assert_int_equal(pair.far->n_control, 0);
    transport_sim.poll(pair.far->end->transport, 1000);
    assert_int_equal(pair.far->n_control, 1);
    assert_int_equal(world_now(world), begin + 1);
    world_close(world);
}

static struct record *came[2];
static size_t n_came;

static void note_record(struct end *end, struct record *record)
{
    (void)end;
    assert_true(n_came < 2);
    came[n_came++] = record;
}

/* Two messages that arrive at one instant: by their senders' names, not by who was first. */
static void what_arrives_at_one_instant_has_an_order(void **state)
{
    static const unsigned char data[10];

    (void)state;
    for (size_t run = 0; run < 4; run++) {
        struct world *world = world_open(&SIM, 3, 1);
        struct pair from[2]; /* alpha's and gamma's, made in either order */
        for (size_t i = 0; i < 2; i++) {
            size_t index = i ^ (run & 1);
            from[index] = pair_open(world, 2 * index, 1);
        }
        world_settle(world);
        n_came = 0;
        world->ends[1].on_control = note_record;
        for (size_t i = 0; i < 2; i++)
            assert_int_equal(transport_sim.send(from[i ^ run >> 1].near->conn, data, sizeof data),
                             FERRY_OK);
        world_settle(world);
        assert_int_equal(n_came, 2);
        for (size_t i = 0; i < 2; i++)
            assert_ptr_equal(came[i], from[i].far);
        world_close(world);
    }
}

/* Whether there is room again does not depend on how far the peer has read at this instant. */
static void room_in_a_queue_is_known_when_time_goes_on(void **state)
{
    static const unsigned char data[TRANSPORT_CONTROL_MAX];
    struct world *world = world_open(&SIM, 2, 1);
    struct pair pair = pair_open(world, 0, 1);
    struct end *sender = pair.near->end;

    (void)state;
    while (transport_sim.send(pair.near->conn, data, sizeof data) == FERRY_OK)
        pair.far->n_expected++;
    run_until(sender, world_now(world) + 100000000); /* all has arrived, nobody reads */
    assert_int_equal(transport_sim.send(pair.near->conn, data, sizeof data), FERRY_AGAIN);
    transport_sim.poll(pair.far->end->transport, 0);
    assert_int_equal(pair.far->n_control, pair.far->n_expected);
    assert_int_equal(transport_sim.send(pair.near->conn, data, sizeof data), FERRY_AGAIN);
    run_until(sender, world_now(world) + 1);
    assert_int_equal(transport_sim.send(pair.near->conn, data, sizeof data), FERRY_OK);
    world_close(world);
}

/* ---- who holds the clock ---- */

struct sleeper {
    struct world *world;
    size_t end;
    uint64_t until_ns, step_ns;
    uint64_t ended_ns;
    unsigned busy_us; /* real time that it computes before each wait */
    bool polls;       /* else sleeps */
    _Atomic bool done;
    _Atomic bool *hangs; /* after its first wait, until this is set; NULL: does not */
};

static void *sleeper_main(void *arg)
{
    struct sleeper *sleeper = arg;
    struct transport *transport = sleeper->world->ends[sleeper->end].transport;

    while (transport_sim.now_ns(transport) < sleeper->until_ns) {
        (void)usleep(sleeper->busy_us);
        if (sleeper->polls) {
            transport_sim.poll(transport, sleeper->step_ns);
        } else {
            uint32_t seen = lane_bell_rings(sleeper->world->ends[sleeper->end].bell);
            transport_sim.sleep(transport, seen, sleeper->step_ns);
        }
        while (sleeper->hangs != NULL && !atomic_load(sleeper->hangs))
            (void)usleep(100);
    }
    sleeper->ended_ns = transport_sim.now_ns(transport);
    atomic_store(&sleeper->done, true);
    return NULL;
}

/* One thread wants many short waits and computes in between, one a single long one: both end at
 * their times, and the long one not before the other's waits up to it. */
static void time_stands_still_while_anybody_computes(void **state)
{
    struct world *world = world_open(&SIM, 2, 3);
    struct sleeper sleepers[3] = {
        {.world = world, .end = 0, .until_ns = 1000000, .step_ns = 50000, .busy_us = 500},
        {.world = world, .end = 1, .until_ns = 1000000, .step_ns = 1000000, .polls = true},
        {.world = world, .end = 1, .until_ns = 30000, .step_ns = 10000, .busy_us = 3000},
    };
    pthread_t threads[3];

    (void)state;
    for (size_t i = 0; i < 3; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, sleeper_main, &sleepers[i]), 0);
    for (size_t i = 0; i < 3; i++)
        assert_int_equal(pthread_join(threads[i], NULL), 0);
    /* Nobody's time has passed by while it computed. */
    for (size_t i = 0; i < 3; i++)
        assert_int_equal(sleepers[i].ended_ns, sleepers[i].until_ns);
    assert_int_equal(world_now(world), 1000000);
    world_close(world);
}

static void the_clock_waits_for_all_threads_at_the_start(void **state)
{
    struct world *world = world_open(&SIM, 2, 2);
    struct sleeper sleepers[2] = {
        {.world = world, .end = 0, .until_ns = 1000, .step_ns = 1000},
        {.world = world, .end = 1, .until_ns = 1000, .step_ns = 1000, .polls = true},
    };
    pthread_t threads[2];

    (void)state;
    assert_int_equal(pthread_create(&threads[0], NULL, sleeper_main, &sleepers[0]), 0);
    (void)usleep(30000); /* time enough for a clock that does not wait */
    assert_false(atomic_load(&sleepers[0].done));
    assert_int_equal(world_now(world), 0);
    assert_int_equal(pthread_create(&threads[1], NULL, sleeper_main, &sleepers[1]), 0);
    for (size_t i = 0; i < 2; i++) {
        assert_int_equal(pthread_join(threads[i], NULL), 0);
        assert_int_equal(sleepers[i].ended_ns, 1000);
    }
    world_close(world);
}

/* Threads of three ranks, of which one is killed: its waits end, too, and the others' time goes on.
 * Then the others exit at different times. */
static void a_kill_does_not_stop_the_clock(void **state)
{
    enum { N_THREADS = 6 };
    const uint64_t second_ns = 1000000000;

    (void)state;
    for (unsigned busy = 0; busy < 4; busy++) {
        struct world *world = world_open(&SIM, 3, N_THREADS);
        struct sleeper sleepers[N_THREADS];
        pthread_t threads[N_THREADS];
        for (size_t i = 0; i < N_THREADS; i++) {
            sleepers[i] = (struct sleeper){.world = world,
                                           .end = i / 2,
                                           .polls = i % 2 == 0,
                                           .until_ns = (i + 1) * 1000 * second_ns,
                                           .step_ns = second_ns,
                                           .busy_us = i / 2 == 1 ? busy * 100 : 20};
            assert_int_equal(pthread_create(&threads[i], NULL, sleeper_main, &sleepers[i]), 0);
        }
        (void)usleep(busy * 500); /* before all have come, too */
        fabric_hub_kill(world->hub, "beta");
        for (size_t i = 0; i < N_THREADS; i++)
            assert_int_equal(pthread_join(threads[i], NULL), 0);
        for (size_t i = 0; i < N_THREADS; i++)
            assert_true(sleepers[i].ended_ns >= sleepers[i].until_ns);
        world_close(world);
    }
}

/* A thread of the killed rank that does not come back from what it does is not waited for. */
static void a_killed_thread_that_hangs_does_not_hold_the_clock(void **state)
{
    struct world *world = world_open(&SIM, 2, 2);
    _Atomic bool release = false;
    struct sleeper sleepers[2] = {
        {.world = world, .end = 0, .until_ns = 1000000, .step_ns = 1000},
        {.world = world, .end = 1, .until_ns = 10, .step_ns = 10, .hangs = &release},
    };
    pthread_t threads[2];

    (void)state;
    for (size_t i = 0; i < 2; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, sleeper_main, &sleepers[i]), 0);
    (void)usleep(20000);
    assert_false(atomic_load(&sleepers[0].done)); /* it holds the clock while it lives */
    fabric_hub_kill(world->hub, "beta");
    assert_int_equal(pthread_join(threads[0], NULL), 0);
    assert_int_equal(sleepers[0].ended_ns, 1000000);
    atomic_store(&release, true);
    assert_int_equal(pthread_join(threads[1], NULL), 0);
    world_close(world);
}

static void who_leaves_does_not_hold_the_clock(void **state)
{
    struct world *world = world_open(&SIM, 1, 1);
    struct sleeper sleeper = {.world = world, .until_ns = 5000, .step_ns = 1000};
    pthread_t thread;

    (void)state;
    world_leave(world); /* without having taken part: nothing */
    world_enter(world);
    world_enter(world); /* twice: as once */
    assert_int_equal(pthread_create(&thread, NULL, sleeper_main, &sleeper), 0);
    (void)usleep(20000);
    assert_false(atomic_load(&sleeper.done)); /* this thread computes */
    world_leave(world);
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_int_equal(sleeper.ended_ns, 5000);
    /* Both have gone; who comes back goes on from there. */
    transport_sim.poll(world->ends[0].transport, 1000);
    assert_int_equal(world_now(world), 6000);
    world_close(world);
}

/* A wait without end returns when its thread is rung, from a thread that takes no part, too. */
static void *ring_later(void *arg)
{
    struct end *end = arg;

    (void)usleep(10000);
    lane_bell_ring(end->bell);
    (void)usleep(10000);
    transport_sim.wake(end->transport);
    return NULL;
}

static void endless_waits_end_by_bell_and_wake(void **state)
{
    struct world *world = world_open(&SIM, 1, 1);
    struct end *end = &world->ends[0];
    pthread_t thread;

    (void)state;
    uint32_t seen = lane_bell_rings(end->bell);
    assert_int_equal(pthread_create(&thread, NULL, ring_later, end), 0);
    transport_sim.sleep(end->transport, seen, UINT64_MAX);
    assert_int_not_equal(lane_bell_rings(end->bell), seen);
    transport_sim.poll(end->transport, UINT64_MAX);
    assert_int_equal(world_now(world), 0); /* nothing was to happen at any time */
    assert_int_equal(pthread_join(thread, NULL), 0);
    world_close(world);
}

/* ---- the same course of events in every run ---- */

enum { N_RANKS = 3, RING = 4096, RUN_NS = 10000000 };
static const unsigned char BURST[TRANSPORT_CONTROL_MAX];

/* A rank: its engine thread sends to and takes from the others at times from a generator, its
 * polling thread sends control messages. What each sees, and when, is summed up in a hash. */
struct rank {
    struct end *end;
    size_t index;
    struct record *records[N_RANKS]; /* to the other ranks */
    uint64_t seen[2];                /* hashes: engine, control */
    size_t n_seen[2], n_again;
    _Atomic size_t *n_entered;
};

static uint64_t mix(uint64_t hash, uint64_t value)
{
    hash = (hash ^ value) * 0x9e3779b97f4a7c15u;
    return hash ^ hash >> 29;
}

static struct rank *ranks_by_end; /* [N_RANKS], for the event */

static void on_control(struct end *end, struct record *record)
{
    struct rank *rank = &ranks_by_end[end - end->world->ends];

    for (size_t i = 0; i < N_RANKS; i++) {
        if (rank->records[i] == record)
            rank->seen[1] = mix(mix(rank->seen[1], i), transport_sim.now_ns(end->transport));
    }
    rank->n_seen[1]++;
}

static void engine_turn(struct rank *rank, size_t peer, uint64_t *seed, uint64_t now_ns)
{
    struct lane_header header;
    const unsigned char *got;
    void *data;

    for (int c = 0; c < LANE_N_CHANNELS; c++) {
        enum lane_channel channel = (enum lane_channel)c;
        struct lane *in = record_lane(rank->records[peer], channel, LANE_RECEIVE);
        while (lane_take(in, &header, &got)) {
            rank->seen[0] = mix(mix(mix(rank->seen[0], peer), header.id), now_ns);
            rank->n_seen[0]++;
            lane_release(in, &header);
        }
        *seed = mix(*seed, (uint64_t)c + 1);
        size_t n_bytes = *seed % 1500;
        struct lane *out = record_lane(rank->records[peer], channel, LANE_SEND);
        if (*seed >> 62 == 0 && lane_reserve(out, n_bytes, &data) == FERRY_OK) {
            header = (struct lane_header){.id = *seed, .n_bytes = (uint32_t)n_bytes};
            memset(data, 1, n_bytes);
            lane_commit(out, &header);
        }
    }
}

static void *rank_engine(void *arg)
{
    struct rank *rank = arg;
    struct transport *transport = rank->end->transport;
    uint64_t seed = rank->index + 1, begin = transport_sim.now_ns(transport), now_ns;

    world_enter(rank->end->world);
    atomic_fetch_add(rank->n_entered, 1);
    while ((now_ns = transport_sim.now_ns(transport)) < begin + RUN_NS) {
        uint32_t rings = lane_bell_rings(rank->end->bell);
        for (size_t peer = 0; peer < N_RANKS; peer++) {
            if (peer != rank->index)
                engine_turn(rank, peer, &seed, now_ns);
        }
        seed = mix(seed, 7);
        if (seed % 16 == 0)
            (void)usleep((useconds_t)(seed % 100)); /* real time is of no matter */
        transport_sim.sleep(transport, rings, 1 + seed % 50000);
    }
    return NULL;
}

static void *rank_poll(void *arg)
{
    struct rank *rank = arg;
    struct transport *transport = rank->end->transport;
    uint64_t seed = rank->index + 100, now_ns = transport_sim.now_ns(transport);
    uint64_t end = now_ns + RUN_NS, next = now_ns;

    world_enter(rank->end->world);
    atomic_fetch_add(rank->n_entered, 1);
    while ((now_ns = transport_sim.now_ns(transport)) < end) {
        for (size_t peer = 0; peer < N_RANKS && now_ns >= next; peer++) {
            if (peer == rank->index)
                continue;
            seed = mix(seed, peer + 9);
            /* Sometimes more than the peer's queue takes. */
            for (uint64_t n = seed % 50 == 0 ? 20 : 1; n > 0; n--) {
                enum ferry_status st = transport_sim.send(rank->records[peer]->conn, BURST,
                                                          n > 1 ? sizeof BURST : seed % 100);
                rank->seen[1] = mix(rank->seen[1], (uint64_t)st);
                rank->n_again += st == FERRY_AGAIN;
            }
        }
        if (now_ns >= next)
            next = now_ns + 1 + seed % 60000;
        transport_sim.poll(transport, next - now_ns);
    }
    return NULL;
}

/* One run; the hash of all that anybody saw. */
static uint64_t run_once(size_t ret_n_seen[2])
{
    struct world *world = world_open(&SIM, N_RANKS, 1);
    struct rank ranks[N_RANKS] = {{.index = 0}, {.index = 1}, {.index = 2}};
    pthread_t threads[2 * N_RANKS];
    _Atomic size_t n_entered = 0;
    uint64_t hash = 0;

    ranks_by_end = ranks;
    for (size_t a = 0; a < N_RANKS; a++) {
        ranks[a].end = &world->ends[a];
        ranks[a].n_entered = &n_entered;
        world->ends[a].on_control = on_control;
        for (size_t b = 0; b < a; b++) {
            struct pair pair = pair_open(world, a, b);
            pair_lanes(&pair, RING, RING);
            ranks[a].records[b] = pair.near;
            ranks[b].records[a] = pair.far;
        }
    }
    world_enter(world);
    for (size_t i = 0; i < 2 * N_RANKS; i++)
        assert_int_equal(
            pthread_create(&threads[i], NULL, i % 2 == 0 ? rank_engine : rank_poll, &ranks[i / 2]),
            0);
    while (atomic_load(&n_entered) < 2 * N_RANKS)
        (void)usleep(100);
    world_leave(world);
    for (size_t i = 0; i < 2 * N_RANKS; i++)
        assert_int_equal(pthread_join(threads[i], NULL), 0);
    ret_n_seen[0] = ret_n_seen[1] = 0;
    for (size_t a = 0; a < N_RANKS; a++) {
        for (size_t i = 0; i < 2; i++) {
            hash = mix(hash, ranks[a].seen[i]);
            ret_n_seen[i] += ranks[a].n_seen[i];
        }
        assert_true(ranks[a].n_again > 0);
    }
    world_close(world);
    return hash;
}

static void every_run_takes_the_same_course(void **state)
{
    enum { RUNS = 4 };
    size_t first_seen[2], n_seen[2];
    uint64_t first = run_once(first_seen);

    (void)state;
    assert_true(first_seen[0] > 300 && first_seen[1] > 300);
    for (int run = 1; run < RUNS; run++) {
        uint64_t hash = run_once(n_seen);
        assert_int_equal(n_seen[0], first_seen[0]);
        assert_int_equal(n_seen[1], first_seen[1]);
        assert_true(hash == first);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(control_arrives_by_latency_and_rate),
        cmocka_unit_test(lanes_go_by_latency_and_rate),
        cmocka_unit_test(a_cut_holds_for_its_time),
        cmocka_unit_test(nothing_arrives_at_the_instant_it_is_sent),
        cmocka_unit_test(what_arrives_at_one_instant_has_an_order),
        cmocka_unit_test(room_in_a_queue_is_known_when_time_goes_on),
        cmocka_unit_test(time_stands_still_while_anybody_computes),
        cmocka_unit_test(the_clock_waits_for_all_threads_at_the_start),
        cmocka_unit_test(a_kill_does_not_stop_the_clock),
        cmocka_unit_test(a_killed_thread_that_hangs_does_not_hold_the_clock),
        cmocka_unit_test(who_leaves_does_not_hold_the_clock),
        cmocka_unit_test(endless_waits_end_by_bell_and_wake),
        cmocka_unit_test(every_run_takes_the_same_course),
    };
    int n_failed = transport_contract_run(&SIM);

    return n_failed + cmocka_run_group_tests(tests, NULL, NULL);
}
