/* The cases of transport_contract.h about lanes: offers, sizes, credit, wrap-around, both
 * directions at once, ends that are lost while somebody writes, quarantine. */
#include "contract_world.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

enum { RING = 4096, WORD = 8 };

/* ---- sending and taking, one thread ---- */

static void send_message(struct world *world, struct lane *lane, size_t n_bytes, uint64_t id)
{
    struct lane_header header = {.id = id, .n_bytes = (uint32_t)n_bytes, .step = ~id};
    enum ferry_status st;
    void *data = NULL;

    WAIT_FOR(world, (st = lane_reserve(lane, n_bytes, &data)) != FERRY_AGAIN);
    assert_int_equal(st, FERRY_OK);
    assert_int_equal((uintptr_t)data % LANE_ALIGN, 0);
    fill(data, n_bytes, id);
    lane_commit(lane, &header);
}

static struct lane_header take_message(struct world *world, struct lane *lane, size_t n_bytes,
                                       uint64_t id)
{
    const unsigned char *data = NULL;
    struct lane_header header;

    WAIT_FOR(world, lane_take(lane, &header, &data));
    assert_int_equal(header.id, id);
    assert_int_equal(header.step, ~id);
    assert_int_equal(header.n_bytes, n_bytes);
    assert_int_equal((uintptr_t)data % LANE_ALIGN, 0);
    assert_true(is_filled(data, n_bytes, id));
    return header;
}

static void pass_message(struct world *world, struct lane *from, struct lane *to, size_t n_bytes,
                         uint64_t id)
{
    send_message(world, from, n_bytes, id);
    struct lane_header header = take_message(world, to, n_bytes, id);
    lane_release(to, &header);
}

/* ---- offers ---- */

static void lanes_exist_from_accept_on(void **state)
{
    struct world *world = world_open(*state, 2, 1);
    const struct transport_ops *ops = world->setup->ops;
    struct pair pair = pair_open(world, 0, 1);
    const struct record *records[] = {pair.near, pair.far};

    for (size_t i = 0; i < 2; i++)
        assert_int_equal(ops->link(records[i]->conn), LINK_UNKNOWN);
    pair_lanes(&pair, RING, 4 * RING);
    for (size_t i = 0; i < 2; i++) {
        for (int side = 0; side < LANE_N_SIDES; side++) {
            enum lane_side s = (enum lane_side)side;
            assert_int_equal(record_lane(records[i], LANE_REQUEST, s)->ring_bytes, RING);
            assert_int_equal(record_lane(records[i], LANE_REPLY, s)->ring_bytes, 4 * RING);
        }
    }
    assert_int_equal(ops->link(pair.near->conn), ops->link(pair.far->conn));
    world_close(world);
}

static void offers_of_other_sizes_are_refused(void **state)
{
    static const struct transport_lanes SIZES[] = {
        {{RING, 2 * RING}}, {{2 * RING, RING}}, {{RING, RING}}, {{2 * RING, 4 * RING}}};

    for (size_t i = 1; i < COUNT_OF(SIZES); i++) {
        struct world *world = world_open(*state, 2, 1);
        const struct transport_ops *ops = world->setup->ops;
        struct pair pair = pair_open(world, 0, 1);
        unsigned char offers[2][TRANSPORT_OFFER_MAX];
        size_t n_bytes[2] = {0};
        struct ferry_error err = {0};
        assert_int_equal(ops->offer(pair.near->conn, &SIZES[0], offers[0], &n_bytes[0], &err),
                         FERRY_OK);
        assert_int_equal(ops->offer(pair.far->conn, &SIZES[i], offers[1], &n_bytes[1], &err),
                         FERRY_OK);
        assert_int_equal(ops->accept(pair.near->conn, offers[1], n_bytes[1], &err),
                         FERRY_ERR_FORMAT);
        assert_true(strlen(err.msg) > 0);
        assert_int_equal(ops->accept(pair.far->conn, offers[0], n_bytes[0], &err),
                         FERRY_ERR_FORMAT);
        /* The connection itself is none the worse. */
        unsigned char data[100];
        fill(data, sizeof data, 0);
        assert_int_equal(ops->send(pair.near->conn, data, sizeof data), FERRY_OK);
        WAIT_FOR(world, pair.far->n_control == 1);
        assert_int_equal(pair.far->n_bad, 0);
        world_close(world);
    }
}

static void refuse(struct pair *pair, const void *offer, size_t n_bytes)
{
    struct ferry_error err = {0};

    assert_int_equal(pair->world->setup->ops->accept(pair->near->conn, offer, n_bytes, &err),
                     FERRY_ERR_FORMAT);
    assert_true(strlen(err.msg) > 0);
    assert_int_equal(pair->world->setup->ops->link(pair->near->conn), LINK_UNKNOWN);
}

/* What a broken or hostile peer may send in place of an offer. */
static void hostile_offers_are_refused(void **state)
{
    static unsigned char good[TRANSPORT_OFFER_MAX], own[TRANSPORT_OFFER_MAX];
    static unsigned char bad[TRANSPORT_OFFER_MAX];
    static const struct transport_lanes SIZES = {{RING, 2 * RING}};
    struct world *world = world_open(*state, 2, 1);
    const struct transport_ops *ops = world->setup->ops;
    struct pair pair = pair_open(world, 0, 1);
    size_t n_good = 0, n_own = 0;
    struct ferry_error err = {0};

    assert_int_equal(ops->offer(pair.near->conn, &SIZES, own, &n_own, &err), FERRY_OK);
    assert_int_equal(ops->offer(pair.far->conn, &SIZES, good, &n_good, &err), FERRY_OK);
    for (size_t n = 0; n < n_good; n++)
        refuse(&pair, good, n);
    memcpy(bad, good, n_good);
    if (n_good < TRANSPORT_OFFER_MAX) {
        refuse(&pair, bad, n_good + 1);
        refuse(&pair, bad, TRANSPORT_OFFER_MAX);
    }
    for (int value = 0; value < 256; value += 51) {
        memset(bad, value, sizeof bad);
        refuse(&pair, bad, n_good);
        refuse(&pair, bad, TRANSPORT_OFFER_MAX);
    }
    for (uint64_t seed = 1; seed <= 100; seed++) {
        fill(bad, sizeof bad, seed);
        refuse(&pair, bad, n_good);
        refuse(&pair, bad, (size_t)seed * 40);
    }
    for (size_t bit = 0; bit < 8 * n_good && world->setup->strict_offers; bit++) {
        memcpy(bad, good, n_good);
        bad[bit / 8] = (unsigned char)(bad[bit / 8] ^ 1u << bit % 8);
        refuse(&pair, bad, n_good);
    }
    assert_int_equal(ops->accept(pair.near->conn, good, n_good, &err), FERRY_OK);
    assert_int_equal(ops->accept(pair.far->conn, own, n_own, &err), FERRY_OK);
    for (uint64_t id = 0; id < 10; id++)
        pass_message(world, record_lane(pair.near, LANE_REQUEST, LANE_SEND),
                     record_lane(pair.far, LANE_REQUEST, LANE_RECEIVE), 100, id);
    world_close(world);
}

/* ---- sizes, credit, wrap-around ---- */

static void every_payload_size_arrives(void **state)
{
    struct world *world = world_open(*state, 2, 1);
    struct pair pair = pair_open(world, 0, 1);
    const struct record *records[] = {pair.near, pair.far};
    uint64_t id = 1;
    void *data;

    pair_lanes(&pair, 256 << 10, 64 << 10);
    for (int c = 0; c < LANE_N_CHANNELS; c++) {
        for (size_t way = 0; way < 2; way++) {
            enum lane_channel channel = (enum lane_channel)c;
            struct lane *from = record_lane(records[way], channel, LANE_SEND);
            struct lane *to = record_lane(records[1 - way], channel, LANE_RECEIVE);
            size_t max = lane_max_payload(from->ring_bytes);
            for (size_t power = 1; power <= from->ring_bytes; power *= 2) {
                for (size_t n_bytes = power - 1; n_bytes <= power + 1 && n_bytes <= max; n_bytes++)
                    pass_message(world, from, to, n_bytes, id++);
            }
            pass_message(world, from, to, max - 1, id++);
            pass_message(world, from, to, max, id++);
            assert_int_equal(lane_reserve(from, max + 1, &data), FERRY_ERR_LIMIT);
            assert_int_equal(lane_reserve(from, SIZE_MAX, &data), FERRY_ERR_LIMIT);
        }
    }
    world_close(world);
}

static void a_full_lane_waits_for_credit(void **state)
{
    enum { ROUNDS = 20 };
    struct world *world = world_open(*state, 2, 1);
    struct pair pair = pair_open(world, 0, 1);
    uint64_t sent = 0, taken = 0;
    void *data = NULL;

    pair_lanes(&pair, RING, RING);
    struct lane *from = record_lane(pair.near, LANE_REQUEST, LANE_SEND);
    struct lane *to = record_lane(pair.far, LANE_REQUEST, LANE_RECEIVE);
    for (size_t round = 0; round < ROUNDS; round++) {
        size_t n_bytes = 100 + 64 * round;
        while (lane_reserve(from, n_bytes, &data) == FERRY_OK)
            send_message(world, from, n_bytes, sent++);
        assert_int_equal(lane_reserve(from, n_bytes, &data), FERRY_AGAIN);
        world_settle(world);
        assert_int_equal(lane_reserve(from, n_bytes, &data), FERRY_AGAIN);
        /* Taken is not given back. */
        struct lane_header first = take_message(world, to, n_bytes, taken++);
        world_settle(world);
        assert_int_equal(lane_reserve(from, n_bytes, &data), FERRY_AGAIN);
        lane_release(to, &first);
        while (taken < sent) {
            first = take_message(world, to, n_bytes, taken++);
            lane_release(to, &first);
        }
        /* The other channel did not wait for this one. */
        pass_message(world, record_lane(pair.near, LANE_REPLY, LANE_SEND),
                     record_lane(pair.far, LANE_REPLY, LANE_RECEIVE), n_bytes, round);
        WAIT_FOR(world, lane_reserve(from, n_bytes, &data) == FERRY_OK);
    }
    assert_true(sent > ROUNDS);
    world_close(world);
}

static void messages_pass_the_end_of_the_ring_at_every_offset(void **state)
{
    static const size_t SIZES[] = {0, 1, 64, 65, 1000, 1983, RING / 2 - 64};
    struct world *world = world_open(*state, 2, 1);
    struct pair pair = pair_open(world, 0, 1);
    uint64_t id = 1;

    pair_lanes(&pair, RING, RING);
    struct lane *from = record_lane(pair.far, LANE_REPLY, LANE_SEND);
    struct lane *to = record_lane(pair.near, LANE_REPLY, LANE_RECEIVE);
    for (size_t offset = 0; offset < RING; offset += LANE_ALIGN) {
        for (size_t i = 0; i < COUNT_OF(SIZES); i++) {
            while (from->head % RING != offset)
                pass_message(world, from, to, 0, id++);
            pass_message(world, from, to, SIZES[i], id++);
            pass_message(world, from, to, SIZES[COUNT_OF(SIZES) - 1 - i], id++);
        }
    }
    assert_false(to->broken || from->broken);
    world_close(world);
}

/* ---- both directions at once ---- */

/* What the engine thread of one rank does: sends and checks n messages, odd ones as requests. */
struct engine {
    struct world *world;
    struct end *end;
    struct lane *out[LANE_N_CHANNELS], *in[LANE_N_CHANNELS];
    size_t n_messages, n_sent, n_taken, n_bad;
    uint64_t next_id[LANE_N_CHANNELS];
    _Atomic bool *stop; /* of the polling threads; NULL: this one polls until it is set */
    _Atomic size_t *n_running, *n_entered;
};

/* Of message `id` of a channel: small ones mostly, and some of a lane's full size. */
static size_t size_of(uint64_t id, size_t max)
{
    uint64_t mixed = id * 0x9e3779b97f4a7c15u >> 40;

    return mixed % 64 == 0 ? max - mixed % 100 : mixed % 300;
}

static bool engine_send(struct engine *engine, uint64_t *ids)
{
    enum lane_channel channel = engine->n_sent % 2 == 0 ? LANE_REPLY : LANE_REQUEST;
    struct lane *lane = engine->out[channel];
    struct lane_header header = {.id = ids[channel]};
    void *data;

    if (engine->n_sent == engine->n_messages)
        return false;
    header.n_bytes = (uint32_t)size_of(header.id, lane_max_payload(lane->ring_bytes));
    if (lane_reserve(lane, header.n_bytes, &data) != FERRY_OK)
        return false;
    fill(data, header.n_bytes, header.id);
    lane_commit(lane, &header);
    ids[channel]++;
    engine->n_sent++;
    return true;
}

static bool engine_take(struct engine *engine, enum lane_channel channel)
{
    struct lane *lane = engine->in[channel];
    struct lane_header header;
    const unsigned char *data;

    if (!lane_take(lane, &header, &data))
        return false;
    engine->n_bad += header.id != engine->next_id[channel] ||
                     header.n_bytes != size_of(header.id, lane_max_payload(lane->ring_bytes)) ||
                     !is_filled(data, header.n_bytes, header.id);
    engine->next_id[channel]++;
    engine->n_taken++;
    lane_release(lane, &header);
    return true;
}

static void *engine_main(void *arg)
{
    enum { SLEEP_NS = 100000000 };
    struct engine *engine = arg;
    const struct transport_ops *ops = engine->world->setup->ops;
    struct transport *transport = engine->end->transport;
    const uint64_t limit_ns = 40000000000u * engine->world->patience;
    uint64_t ids[LANE_N_CHANNELS] = {0}, begin = ops->now_ns(transport);

    world_enter(engine->world);
    atomic_fetch_add(engine->n_entered, 1);
    while (engine->n_sent + engine->n_taken < 2 * engine->n_messages && engine->n_bad == 0 &&
           ops->now_ns(transport) - begin < limit_ns) {
        uint32_t seen = lane_bell_rings(engine->end->bell);
        bool any = engine_send(engine, ids);
        for (int channel = 0; channel < LANE_N_CHANNELS; channel++)
            any |= engine_take(engine, (enum lane_channel)channel);
        if (!any)
            ops->sleep(transport, seen, SLEEP_NS);
    }
    if (atomic_fetch_sub(engine->n_running, 1) == 1) { /* the last one ends the polling threads */
        atomic_store(engine->stop, true);
        for (size_t i = 0; i < engine->world->n_ends; i++)
            ops->wake(engine->world->ends[i].transport);
    }
    return NULL;
}

static void *poll_main(void *arg)
{
    enum { POLL_NS = 50000000 };
    struct engine *engine = arg;

    world_enter(engine->world);
    atomic_fetch_add(engine->n_entered, 1);
    while (!atomic_load(engine->stop))
        engine->world->setup->ops->poll(engine->end->transport, POLL_NS);
    return NULL;
}

static void many_messages_go_both_ways_at_once(void **state)
{
    enum { ENGINE_RING = 16 << 10 };
    struct world *world = world_open(*state, 2, 1);
    struct engine engines[2];
    pthread_t threads[4];
    _Atomic bool stop = false;
    _Atomic size_t n_running = 2, n_entered = 0;

    struct pair pair = pair_open(world, 0, 1);
    pair_lanes(&pair, ENGINE_RING, ENGINE_RING);
    const struct record *records[] = {pair.near, pair.far};
    for (size_t i = 0; i < 2; i++) {
        engines[i] = (struct engine){.world = world,
                                     .end = records[i]->end,
                                     .n_messages = world->setup->n_messages,
                                     .stop = &stop,
                                     .n_running = &n_running,
                                     .n_entered = &n_entered};
        for (int channel = 0; channel < LANE_N_CHANNELS; channel++) {
            enum lane_channel c = (enum lane_channel)channel;
            engines[i].out[channel] = record_lane(records[i], c, LANE_SEND);
            engines[i].in[channel] = record_lane(records[i], c, LANE_RECEIVE);
        }
    }
    world_enter(world);
    for (size_t i = 0; i < 4; i++)
        assert_int_equal(
            pthread_create(&threads[i], NULL, i < 2 ? engine_main : poll_main, &engines[i % 2]), 0);
    while (atomic_load(&n_entered) < 4)
        (void)usleep(100);
    world_leave(world); /* and only waits for the others */
    for (size_t i = 0; i < 4; i++)
        assert_int_equal(pthread_join(threads[i], NULL), 0);
    for (size_t i = 0; i < 2; i++) {
        assert_int_equal(engines[i].n_bad, 0);
        assert_int_equal(engines[i].n_sent, world->setup->n_messages);
        assert_int_equal(engines[i].n_taken, world->setup->n_messages);
    }
    world_close(world);
}

/* ---- ends that are lost ---- */

struct writer {
    struct end *end;
    struct lane *lane;
    _Atomic bool entered, stop;
    _Atomic size_t n_written;
};

static void *writer_main(void *arg)
{
    enum { PAUSE_NS = 100000 };
    struct writer *writer = arg;
    void *data = NULL;

    world_enter(writer->end->world);
    atomic_store(&writer->entered, true);
    while (!atomic_load(&writer->stop)) {
        struct lane_header header = {.n_bytes = 1000};
        if (lane_reserve(writer->lane, 1000, &data) == FERRY_OK) {
            memset(data, 0x77, 1000);
            lane_commit(writer->lane, &header);
        } else { /* full, maybe for ever */
            uint32_t seen = lane_bell_rings(writer->end->bell);
            writer->end->world->setup->ops->sleep(writer->end->transport, seen, PAUSE_NS);
            if (data != NULL) /* as one that was stopped in the middle of a store does */
                memset(data, 0x78, 1000);
        }
        atomic_fetch_add(&writer->n_written, 1);
    }
    return NULL;
}

/* The peer's engine thread goes on writing while this side closes, and afterwards. */
static void a_close_survives_a_peer_that_writes(void **state)
{
    for (int keep = 0; keep < 2; keep++) {
        struct world *world = world_open(*state, 2, 1);
        struct pair pair = pair_open(world, 0, 1);
        struct writer writer = {0};
        const unsigned char *data;
        struct lane_header header;
        pthread_t thread;
        pair_lanes(&pair, RING, RING);
        writer.end = pair.far->end;
        writer.lane = record_lane(pair.far, LANE_REQUEST, LANE_SEND);
        struct lane *in = record_lane(pair.near, LANE_REQUEST, LANE_RECEIVE);
        world_enter(world);
        assert_int_equal(pthread_create(&thread, NULL, writer_main, &writer), 0);
        while (!atomic_load(&writer.entered))
            (void)usleep(100);
        for (size_t i = 0; i < 3; i++) {
            WAIT_FOR(world, lane_take(in, &header, &data));
            lane_release(in, &header);
        }
        end_close(&world->ends[0], pair.near, keep != 0);
        WAIT_FOR(world, pair.far->n_lost == 1);
        size_t before = atomic_load(&writer.n_written);
        WAIT_FOR(world, atomic_load(&writer.n_written) > before + 20);
        atomic_store(&writer.stop, true);
        world_leave(world);
        assert_int_equal(pthread_join(thread, NULL), 0);
        world_close(world);
    }
}

static void lanes_of_a_lost_connection_stay_until_close(void **state)
{
    struct world *world = world_open(*state, 2, 1);
    struct pair pair = pair_open(world, 0, 1);
    struct lane_header header = {.n_bytes = 100};
    const unsigned char *in_data;
    size_t n_taken = 0;
    void *data;

    pair_lanes(&pair, RING, RING);
    struct lane *out = record_lane(pair.near, LANE_REPLY, LANE_SEND);
    struct lane *in = record_lane(pair.near, LANE_REQUEST, LANE_RECEIVE);
    for (uint64_t id = 0; id < 5; id++)
        send_message(world, record_lane(pair.far, LANE_REQUEST, LANE_SEND), 100, id);
    end_destroy(&world->ends[1]);
    WAIT_FOR(world, pair.near->n_lost == 1);
    assert_ptr_equal(record_lane(pair.near, LANE_REPLY, LANE_SEND), out);
    while (lane_reserve(out, 100, &data) == FERRY_OK) { /* until it is full: nobody reads */
        memset(data, 1, 100);
        header.n_bytes = 100;
        lane_commit(out, &header);
    }
    while (lane_take(in, &header, &in_data)) { /* some of what was sent, in order */
        assert_int_equal(header.id, n_taken);
        assert_true(is_filled(in_data, 100, n_taken));
        lane_release(in, &header);
        n_taken++;
    }
    assert_in_range(n_taken, 0, 5);
    end_close(&world->ends[0], pair.near, true);
    world_close(world);
}

static void quarantine_counts_what_a_living_peer_may_write(void **state)
{
    enum { LANES = 2 * RING };
    struct world *world = world_open(*state, 3, 1);
    const struct transport_ops *ops = world->setup->ops;
    struct transport *a = world->ends[0].transport;

    assert_int_equal(ops->quarantined(a), 0);
    struct pair plain = pair_open(world, 0, 1);
    end_close(&world->ends[0], plain.near, true); /* it had no lanes */
    assert_int_equal(ops->quarantined(a), 0);

    struct pair ab = pair_open(world, 0, 1);
    struct pair ac = pair_open(world, 0, 2);
    struct pair ba = pair_open(world, 1, 0);
    pair_lanes(&ab, RING, RING);
    pair_lanes(&ac, RING, RING);
    pair_lanes(&ba, RING, RING);
    end_close(&world->ends[0], ba.far, false);
    assert_int_equal(ops->quarantined(a), 0);
    end_close(&world->ends[0], ab.near, true);
    size_t one = ops->quarantined(a);
    end_close(&world->ends[0], ac.near, true);
    size_t two = ops->quarantined(a);
    assert_int_equal(ops->quarantined(world->ends[1].transport), 0);
    assert_int_equal(two, 2 * one);
    if (world->setup->quarantines) {
        assert_in_range(one, LANES, 4 * LANES);
        WAIT_FOR(world, ab.far->n_lost == 1);
        end_close(&world->ends[1], ab.far, false);
        assert_int_equal(ops->quarantined(a), two); /* its process still lives */
        if (ops->gone != NULL)
            assert_false(ops->gone(ac.far->conn));
        end_destroy(&world->ends[2]);
        WAIT_FOR(world, ops->quarantined(a) == one);
        end_destroy(&world->ends[1]);
        WAIT_FOR(world, ops->quarantined(a) == 0);
    }
    world_close(world);
}

int contract_lanes_run(const struct contract_setup *setup)
{
    void *given = (void *)(uintptr_t)setup;
    const struct CMUnitTest tests[] = {
#define CASE(name) cmocka_unit_test_prestate(name, given)
        CASE(lanes_exist_from_accept_on),
        CASE(offers_of_other_sizes_are_refused),
        CASE(hostile_offers_are_refused),
        CASE(every_payload_size_arrives),
        CASE(a_full_lane_waits_for_credit),
        CASE(messages_pass_the_end_of_the_ring_at_every_offset),
        CASE(many_messages_go_both_ways_at_once),
        CASE(a_close_survives_a_peer_that_writes),
        CASE(lanes_of_a_lost_connection_stay_until_close),
        CASE(quarantine_counts_what_a_living_peer_may_write),
#undef CASE
    };

    return cmocka_run_group_tests_name(setup->ops->name, tests, NULL, NULL);
}
