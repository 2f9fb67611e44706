/* Unit tests of fabric/hub_lane.c: lanes behind a cut and after a kill, offers that belong to
 * others, quarantine when a rank dies. Over the transport loop. */
#include "contract_world.h"

#include <string.h>

enum { RING = 4096, BYTES = 300 };

static const struct contract_setup LOOP = {
    .ops = &transport_loop,
    .listen = {"alpha", "beta", "gamma"},
    .nowhere = "nobody",
    .hub = true,
};

static bool send_one(struct lane *lane, uint64_t id)
{
    struct lane_header header = {.id = id, .n_bytes = BYTES};
    void *data;

    if (lane_reserve(lane, BYTES, &data) != FERRY_OK)
        return false;
    fill(data, BYTES, id);
    lane_commit(lane, &header);
    return true;
}

static bool take_one(struct lane *lane, uint64_t id)
{
    struct lane_header header;
    const unsigned char *data;

    if (!lane_take(lane, &header, &data))
        return false;
    assert_int_equal(header.id, id);
    assert_true(is_filled(data, BYTES, id));
    lane_release(lane, &header);
    return true;
}

/* Neither commits nor credit pass while the pair is cut; then all of it does, and bells ring. */
static void a_cut_holds_commits_and_credit(void **state)
{
    struct world *world = world_open(&LOOP, 2, 1);
    struct pair pair = pair_open(world, 0, 1);
    uint64_t sent = 0, taken = 0;

    (void)state;
    pair_lanes(&pair, RING, RING);
    struct lane *out = record_lane(pair.near, LANE_REQUEST, LANE_SEND);
    struct lane *in = record_lane(pair.far, LANE_REQUEST, LANE_RECEIVE);
    for (int round = 0; round < 30; round++) {
        while (send_one(out, sent)) /* seen before the cut */
            sent++;
        fabric_hub_cut(world->hub, "alpha", "beta", true);
        uint32_t sender_rings = lane_bell_rings(world->ends[0].bell);
        uint32_t receiver_rings = lane_bell_rings(world->ends[1].bell);
        while (take_one(in, taken))
            taken++;
        assert_int_equal(taken, sent);
        assert_false(send_one(out, sent)); /* the credit is held */
        assert_int_equal(lane_bell_rings(world->ends[0].bell), sender_rings);
        fabric_hub_cut(world->hub, "alpha", "beta", false);
        assert_int_not_equal(lane_bell_rings(world->ends[0].bell), sender_rings);
        fabric_hub_cut(world->hub, "alpha", "beta", true);
        receiver_rings = lane_bell_rings(world->ends[1].bell);
        while (send_one(out, sent)) /* not seen */
            sent++;
        assert_true(sent > taken);
        assert_false(take_one(in, taken));
        assert_int_equal(lane_bell_rings(world->ends[1].bell), receiver_rings);
        fabric_hub_cut(world->hub, "alpha", "beta", false);
        assert_int_not_equal(lane_bell_rings(world->ends[1].bell), receiver_rings);
        while (take_one(in, taken))
            taken++;
        assert_int_equal(taken, sent);
    }
    world_close(world);
}

static void a_kill_stops_commits_and_credit(void **state)
{
    for (int behind_cut = 0; behind_cut < 2; behind_cut++) {
        struct world *world = world_open(&LOOP, 2, 1);
        struct pair pair = pair_open(world, 0, 1);
        (void)state;
        pair_lanes(&pair, RING, RING);
        struct lane *out = record_lane(pair.near, LANE_REQUEST, LANE_SEND);
        struct lane *in = record_lane(pair.far, LANE_REQUEST, LANE_RECEIVE);
        struct lane *back_out = record_lane(pair.far, LANE_REPLY, LANE_SEND);
        struct lane *back_in = record_lane(pair.near, LANE_REPLY, LANE_RECEIVE);
        assert_true(send_one(back_out, 0)); /* arrived before */
        if (behind_cut) {
            fabric_hub_cut(world->hub, "alpha", "beta", true);
            assert_true(send_one(back_out, 1));
        }
        fabric_hub_kill(world->hub, "beta");
        fabric_hub_cut(world->hub, "alpha", "beta", false);
        assert_true(send_one(back_out, 1 + (uint64_t)behind_cut)); /* goes nowhere */
        assert_true(send_one(out, 0));
        assert_false(take_one(in, 0));
        assert_true(take_one(back_in, 0)); /* memory of the living */
        assert_false(take_one(back_in, 1));
        WAIT_FOR(world, pair.near->n_lost == 1);
        assert_false(take_one(back_in, 1));
        while (send_one(out, 1)) /* until it is full */
            ;
        end_close(&world->ends[0], pair.near, true);
        /* Its process is gone: nothing has to be kept. */
        assert_int_equal(transport_loop.quarantined(world->ends[0].transport), 0);
        assert_true(send_one(back_out, 9)); /* the dead one's thread is still inside */
        world_close(world);
    }
}

static void a_kill_frees_what_was_kept_for_it(void **state)
{
    struct world *world = world_open(&LOOP, 3, 1);
    struct pair ab = pair_open(world, 0, 1);
    struct pair ac = pair_open(world, 0, 2);
    struct transport *a = world->ends[0].transport;

    (void)state;
    pair_lanes(&ab, RING, RING);
    pair_lanes(&ac, RING, 2 * RING);
    struct lane *late = record_lane(ab.far, LANE_REPLY, LANE_SEND);
    end_close(&world->ends[0], ab.near, true);
    end_close(&world->ends[0], ac.near, true);
    size_t ab_bytes = 2 * lane_shared_bytes(RING);
    size_t ac_bytes = lane_shared_bytes(RING) + lane_shared_bytes(2 * RING);
    assert_int_equal(transport_loop.quarantined(a), ab_bytes + ac_bytes);
    fabric_hub_kill(world->hub, "beta");
    assert_int_equal(transport_loop.quarantined(a), ac_bytes);
    assert_true(send_one(late, 1)); /* the dead one's thread is still inside */
    end_destroy(&world->ends[1]);
    assert_int_equal(transport_loop.quarantined(a), ac_bytes);
    end_destroy(&world->ends[2]);
    assert_int_equal(transport_loop.quarantined(a), 0);
    world_close(world);
}

/* Without an accept nobody can write into an offer. */
static void an_offer_that_nobody_took_is_not_kept(void **state)
{
    static const struct transport_lanes SIZES = {{RING, RING}};
    struct world *world = world_open(&LOOP, 2, 1);
    struct pair pair = pair_open(world, 0, 1);
    unsigned char offer[TRANSPORT_OFFER_MAX], late[TRANSPORT_OFFER_MAX];
    size_t n_bytes, n_late;
    struct ferry_error err = {0};

    (void)state;
    assert_int_equal(transport_loop.offer(pair.near->conn, &SIZES, offer, &n_bytes, &err),
                     FERRY_OK);
    end_close(&world->ends[0], pair.near, true);
    assert_int_equal(transport_loop.quarantined(world->ends[0].transport), 0);
    assert_int_equal(transport_loop.offer(pair.far->conn, &SIZES, late, &n_late, &err), FERRY_OK);
    assert_int_equal(transport_loop.accept(pair.far->conn, offer, n_bytes, &err), FERRY_ERR_PEER);
    assert_non_null(strstr(err.msg, "alpha"));
    world_close(world);
}

static void offers_of_others_and_second_ones_are_refused(void **state)
{
    static const struct transport_lanes SIZES = {{RING, RING}}, ODD = {{RING, RING + 64}};
    struct world *world = world_open(&LOOP, 3, 1);
    struct pair ab = pair_open(world, 0, 1);
    struct pair ac = pair_open(world, 0, 2);
    struct transport_conn *conns[] = {ab.near->conn, ab.far->conn, ac.near->conn, ac.far->conn};
    unsigned char offers[4][TRANSPORT_OFFER_MAX];
    size_t n_bytes[4];
    struct ferry_error err = {0};

    (void)state;
    assert_int_equal(transport_loop.offer(conns[0], &ODD, offers[0], &n_bytes[0], &err),
                     FERRY_ERR_ARG);
    assert_int_equal(transport_loop.offer(conns[1], &SIZES, offers[1], &n_bytes[1], &err),
                     FERRY_OK);
    assert_int_equal(transport_loop.accept(conns[0], offers[1], n_bytes[1], &err), FERRY_ERR_ARG);
    for (size_t i = 0; i < 4; i++) {
        if (i != 1)
            assert_int_equal(transport_loop.offer(conns[i], &SIZES, offers[i], &n_bytes[i], &err),
                             FERRY_OK);
    }
    for (size_t i = 0; i < 4; i++) {
        assert_int_equal(transport_loop.offer(conns[i], &SIZES, offers[i], &n_bytes[i], &err),
                         FERRY_ERR_ARG);
        for (size_t k = 0; k < 4; k++) {
            if (k != (i ^ 1)) /* own ones, and those of the other connection */
                assert_int_equal(transport_loop.accept(conns[i], offers[k], n_bytes[k], &err),
                                 FERRY_ERR_FORMAT);
        }
    }
    for (size_t i = 0; i < 4; i++) {
        assert_null(transport_loop.lane(conns[i], LANE_REQUEST, LANE_SEND));
        assert_int_equal(transport_loop.accept(conns[i], offers[i ^ 1], n_bytes[i ^ 1], &err),
                         FERRY_OK);
        assert_int_equal(transport_loop.accept(conns[i], offers[i ^ 1], n_bytes[i ^ 1], &err),
                         FERRY_ERR_FORMAT);
    }
    assert_true(send_one(transport_loop.lane(conns[2], LANE_REPLY, LANE_SEND), 5));
    assert_true(take_one(transport_loop.lane(conns[3], LANE_REPLY, LANE_RECEIVE), 5));
    world_close(world);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_cut_holds_commits_and_credit),
        cmocka_unit_test(a_kill_stops_commits_and_credit),
        cmocka_unit_test(a_kill_frees_what_was_kept_for_it),
        cmocka_unit_test(an_offer_that_nobody_took_is_not_kept),
        cmocka_unit_test(offers_of_others_and_second_ones_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
