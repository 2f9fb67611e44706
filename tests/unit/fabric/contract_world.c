/* See contract_world.h. */
#include "contract_world.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct record *find_record(struct end *end, const struct transport_conn *conn)
{
    for (size_t i = end->n_records; i-- > 0;) { /* an address may come again after a close */
        if (end->records[i].conn == conn && !end->records[i].closed)
            return &end->records[i];
    }
    return NULL;
}

static struct record *add_record(struct end *end, struct transport_conn *conn)
{
    assert_in_range(end->n_records, 0, MAX_RECORDS - 1);
    struct record *record = &end->records[end->n_records++];
    *record = (struct record){.end = end, .conn = conn};
    return record;
}

/* The record of an event's connection: there must be one, and nothing may come after a loss. */
static struct record *record_of(struct end *end, const struct transport_conn *conn)
{
    struct record *record = find_record(end, conn);

    assert_non_null(record);
    assert_int_equal(record->n_lost, 0);
    end->n_events++;
    return record;
}

static void accepted(void *arg, struct transport_conn *conn)
{
    struct end *end = arg;

    assert_null(find_record(end, conn));
    (void)add_record(end, conn);
    struct record *record = record_of(end, conn);
    record->n_accepted++;
    if (end->on_accepted != NULL)
        end->on_accepted(end, record);
}

static void connected(void *arg, struct transport_conn *conn)
{
    struct end *end = arg;
    struct record *record = record_of(end, conn);

    record->n_connected++;
    assert_int_equal(record->n_accepted, 0);
    if (end->on_connected != NULL)
        end->on_connected(end, record);
}

static void control(void *arg, struct transport_conn *conn, const void *data, size_t n_bytes)
{
    struct end *end = arg;
    struct record *record = record_of(end, conn);

    assert_int_equal(record->n_accepted + record->n_connected, 1);
    record->n_bad += !is_filled(data, n_bytes, record->n_control);
    record->n_control++;
    record->control_bytes += n_bytes;
    if (end->on_control != NULL)
        end->on_control(end, record);
}

static void lost(void *arg, struct transport_conn *conn, const char *reason)
{
    struct end *end = arg;
    struct record *record = record_of(end, conn);

    assert_true(strlen(reason) > 0);
    assert_null(strchr(reason, '\n'));
    record->n_lost++;
    if (end->on_lost != NULL)
        end->on_lost(end, record);
}

/* ---- worlds ---- */

static void open_end(struct world *world, size_t index)
{
    struct end *end = &world->ends[index];
    struct ferry_error err = {0};
    struct transport_options options = {
        .events = {accepted, connected, control, lost, end},
        .listen = world->setup->listen[index],
        .hub = world->hub,
        .ret_bell = &end->bell,
    };

    end->world = world;
    if (world->setup->ops->create(&end->transport, &options, &err) != FERRY_OK)
        fail_msg("create: %s", err.msg);
    assert_non_null(end->bell);
    world->setup->ops->address(end->transport, end->address);
    assert_true(strlen(end->address) > 0);
}

struct world *world_open(const struct contract_setup *setup, size_t n_ends, size_t n_threads)
{
    struct world *world = test_calloc(1, sizeof *world);
    struct ferry_error err = {0};
    struct fabric_hub_options options = {.sim = setup->sim,
                                         .n_ranks = n_threads,
                                         .latency_ns = setup->latency_ns,
                                         .bytes_per_ns = setup->bytes_per_ns};

    world->setup = setup;
    world->n_ends = n_ends;
#ifdef FERRY_SANITIZED
    world->patience = 5;
#else
    world->patience = 1;
#endif
    if (setup->hub && fabric_hub_create(&world->hub, &options, &err) != FERRY_OK)
        fail_msg("hub: %s", err.msg);
    for (size_t i = 0; i < n_ends; i++)
        open_end(world, i);
    return world;
}

void world_close(struct world *world)
{
    for (size_t i = 0; i < world->n_ends; i++)
        end_destroy(&world->ends[i]);
    fabric_hub_destroy(world->hub);
    test_free(world);
}

static size_t count_events(const struct world *world)
{
    size_t n_events = 0;

    for (size_t i = 0; i < world->n_ends; i++)
        n_events += world->ends[i].n_events;
    return n_events;
}

void world_turn(struct world *world)
{
    enum { PAUSE_NS = 200000 };
    const struct transport_ops *ops = world->setup->ops;
    size_t before = count_events(world);

    for (size_t i = 0; i < world->n_ends; i++) {
        if (world->ends[i].transport != NULL)
            ops->poll(world->ends[i].transport, 0);
    }
    for (size_t i = 0; i < world->n_ends && count_events(world) == before; i++) {
        if (world->ends[i].transport != NULL)
            ops->poll(world->ends[i].transport, PAUSE_NS);
    }
}

void world_settle(struct world *world)
{
    enum { QUIET_NS = 10000000 };
    uint64_t quiet_since = world_now(world);

    do {
        size_t before = count_events(world);
        world_turn(world);
        if (count_events(world) != before)
            quiet_since = world_now(world);
    } while (world_now(world) - quiet_since < QUIET_NS);
}

uint64_t world_now(const struct world *world)
{
    for (size_t i = 0; i < world->n_ends; i++) {
        if (world->ends[i].transport != NULL)
            return world->setup->ops->now_ns(world->ends[i].transport);
    }
    fail_msg("no end is left");
    return 0;
}

void world_enter(const struct world *world)
{
    if (world->hub != NULL)
        fabric_hub_join(world->hub);
}

void world_leave(const struct world *world)
{
    if (world->hub != NULL)
        fabric_hub_leave(world->hub);
}

/* ---- ends ---- */

struct record *end_connect(struct end *end, const char *address)
{
    struct transport_conn *conn = NULL;
    struct ferry_error err = {0};

    if (end->world->setup->ops->connect(end->transport, address, &conn, &err) != FERRY_OK)
        fail_msg("connect to %s: %s", address, err.msg);
    assert_non_null(conn);
    return add_record(end, conn);
}

void end_close(struct end *end, struct record *record, bool keep_lanes)
{
    assert_false(record->closed);
    record->closed = true; /* before: nothing may come from inside, either */
    end->world->setup->ops->close(record->conn, keep_lanes);
}

void end_destroy(struct end *end)
{
    if (end->transport != NULL)
        end->world->setup->ops->destroy(end->transport);
    end->transport = NULL;
    for (size_t i = 0; i < end->n_records; i++)
        end->records[i].closed = true;
}

struct pair pair_open(struct world *world, size_t from, size_t to)
{
    struct pair pair = {.world = world};
    size_t before = world->ends[to].n_records;

    pair.near = end_connect(&world->ends[from], world->ends[to].address);
    WAIT_FOR(world, pair.near->n_connected == 1 && world->ends[to].n_records > before);
    pair.far = &world->ends[to].records[world->ends[to].n_records - 1];
    assert_int_equal(pair.far->n_accepted, 1);
    return pair;
}

void pair_lanes(const struct pair *pair, size_t request_bytes, size_t reply_bytes)
{
    const struct transport_ops *ops = pair->world->setup->ops;
    struct transport_lanes sizes = {{request_bytes, reply_bytes}};
    struct record *records[] = {pair->near, pair->far};
    static unsigned char offers[2][TRANSPORT_OFFER_MAX];
    size_t n_bytes[2];
    struct ferry_error err = {0};

    for (size_t i = 0; i < 2; i++) {
        if (ops->offer(records[i]->conn, &sizes, offers[i], &n_bytes[i], &err) != FERRY_OK)
            fail_msg("offer: %s", err.msg);
        assert_in_range(n_bytes[i], 1, TRANSPORT_OFFER_MAX);
    }
    for (size_t i = 0; i < 2; i++) {
        if (ops->accept(records[i]->conn, offers[1 - i], n_bytes[1 - i], &err) != FERRY_OK)
            fail_msg("accept: %s", err.msg);
        assert_int_not_equal(ops->link(records[i]->conn), LINK_UNKNOWN);
    }
}

struct lane *record_lane(const struct record *record, enum lane_channel channel,
                         enum lane_side side)
{
    struct lane *lane = record->end->world->setup->ops->lane(record->conn, channel, side);

    assert_non_null(lane);
    return lane;
}
