/* Lanes of the transport `ucx`: the choice of the road, hostile offers, what becomes of the memory.
 */
#include "../unit.h"
#include "base/alloc.h"
#include "fabric/ucx_impl.h"
#include "ucx_peer.h"

#include <stdlib.h>
#include <string.h>

enum { RING = 8192 };

/* Two sides that are connected and have no lanes yet. */
static void open_bare(struct both *both)
{
    side_open(&both->near);
    side_open(&both->far);
    both->near.bare = both->far.bare = true;
    side_connect(&both->near, both->far.address);
    both->out = &both->near.links[0];
    both->in = &both->far.links[0];
    BOTH_WAIT(both, both->out->open && both->in->open);
}

struct offers {
    unsigned char bytes[2][TRANSPORT_OFFER_MAX];
    size_t n_bytes[2];
};

static void make_offers(const struct both *both, struct offers *offers)
{
    const struct transport_lanes lanes = {{RING, 2 * RING}};
    struct transport_conn *conns[] = {both->out->conn, both->in->conn};
    struct ferry_error err = {0};

    for (size_t i = 0; i < 2; i++) {
        if (transport_ucx.offer(conns[i], &lanes, offers->bytes[i], &offers->n_bytes[i], &err) !=
            FERRY_OK)
            fail_msg("offer: %s", err.msg);
    }
}

static enum ferry_status take_offer(const struct both *both, size_t side,
                                    const struct offers *offers)
{
    struct transport_conn *conn = side == 0 ? both->out->conn : both->in->conn;
    struct ferry_error err = {0};
    enum ferry_status st =
        transport_ucx.accept(conn, offers->bytes[1 - side], offers->n_bytes[1 - side], &err);

    assert_true((st == FERRY_OK) == (err.msg[0] == 0));
    return st;
}

/* Messages of all sizes in both directions of both channels. */
static void exchange(struct both *both)
{
    uint64_t goal = both->out->next_in[0] + 300;

    BOTH_WAIT(both, (link_pump(both->out), link_pump(both->in),
                     both->out->next_in[0] > goal && both->in->next_in[0] > goal &&
                         both->out->next_in[1] > goal && both->in->next_in[1] > goal));
    assert_int_equal(both->out->n_bad + both->in->n_bad, 0);
}

static void lanes_are_mapped_inside_a_host_and_travel_otherwise(void **state)
{
    (void)state;
    for (int apart = 0; apart < 2; apart++) {
        struct offers offers;
        struct both both;
        open_bare(&both);
        if (apart != 0) /* what a hello from another host would say */
            both.out->conn->peer_host = both.in->conn->peer_host = 77;
        make_offers(&both, &offers);
        assert_int_equal(transport_ucx.link(both.out->conn), LINK_UNKNOWN);
        assert_null(transport_ucx.lane(both.out->conn, LANE_REPLY, LANE_SEND));
        assert_int_equal(take_offer(&both, 0, &offers), FERRY_OK);
        assert_int_equal(take_offer(&both, 1, &offers), FERRY_OK);
        assert_int_equal(transport_ucx.link(both.out->conn), apart != 0 ? LINK_TCP : LINK_SHM);
        assert_int_equal(transport_ucx.link(both.in->conn), apart != 0 ? LINK_TCP : LINK_SHM);
        exchange(&both);
        assert_int_equal(both.near.transport->worker != NULL, apart); /* UCX starts when it must */
        both_close(&both);
    }
}

/* One side takes the other for a process of its host, the other does not: said, not guessed. */
static void sides_that_do_not_agree_on_the_road_are_told(void **state)
{
    struct offers offers;
    struct both both;

    (void)state;
    open_bare(&both);
    both.out->conn->peer_host = 77;
    make_offers(&both, &offers);
    assert_int_equal(take_offer(&both, 0, &offers), FERRY_ERR_FORMAT);
    assert_int_equal(take_offer(&both, 1, &offers), FERRY_ERR_FORMAT);
    both_close(&both);

    open_bare(&both);
    make_offers(&both, &offers);
    memset(offers.bytes[1] + 24, 0, 8); /* the nonce of the rings: they cannot be mapped */
    assert_int_equal(take_offer(&both, 0, &offers), FERRY_ERR_FORMAT);
    both_close(&both);
}

/* The owner of an offer dies before it is taken. */
static void an_offer_of_the_dead_is_refused(void **state)
{
    struct offers offers;
    struct both both;

    (void)state;
    open_bare(&both);
    make_offers(&both, &offers);
    side_close(&both.far);
    assert_int_equal(take_offer(&both, 0, &offers), FERRY_ERR_FORMAT);
    side_close(&both.near);
}

static void steps_out_of_order_are_refused(void **state)
{
    const struct transport_lanes odd = {{RING + 64, RING}}, lanes = {{RING, 2 * RING}};
    static unsigned char offer[TRANSPORT_OFFER_MAX];
    struct ferry_error err = {0};
    struct offers offers;
    struct both both;
    size_t n;

    (void)state;
    open_bare(&both);
    struct transport_conn *conn = both.out->conn;
    assert_int_equal(transport_ucx.offer(conn, &odd, offer, &n, &err), FERRY_ERR_ARG);
    memset(&offers, 0, sizeof offers);
    offers.n_bytes[1] = sizeof offers.bytes[1];
    assert_int_equal(take_offer(&both, 0, &offers), FERRY_ERR_FORMAT);
    make_offers(&both, &offers);
    assert_int_equal(transport_ucx.offer(conn, &lanes, offer, &n, &err), FERRY_ERR_ARG);
    offers.n_bytes[1]--;
    assert_int_equal(take_offer(&both, 0, &offers), FERRY_ERR_FORMAT);
    offers.n_bytes[1]++;
    offers.bytes[1][0] ^= 1;
    assert_int_equal(take_offer(&both, 0, &offers), FERRY_ERR_FORMAT);
    offers.bytes[1][0] ^= 1;
    offers.bytes[1][8] ^= 1; /* a ring's size */
    assert_int_equal(take_offer(&both, 0, &offers), FERRY_ERR_FORMAT);
    offers.bytes[1][8] ^= 1;
    assert_int_equal(take_offer(&both, 0, &offers), FERRY_OK);
    assert_int_equal(take_offer(&both, 0, &offers), FERRY_ERR_ARG);
    link_close(both.in, false);
    BOTH_WAIT(&both, both.out->lost);
    both_close(&both);

    open_bare(&both); /* lost before anything was offered */
    link_close(both.in, false);
    BOTH_WAIT(&both, both.out->lost);
    assert_int_equal(transport_ucx.offer(both.out->conn, &lanes, offer, &n, &err), FERRY_ERR_PEER);
    both_close(&both);
}

static void a_lack_of_memory_leaves_all_as_it_was(void **state)
{
    const struct transport_lanes lanes = {{RING, RING}};
    struct ferry_error err = {0};
    struct offers offers;
    struct both both;
    size_t n;

    (void)state;
    (void)setenv("FERRY_FABRIC_NO_SHM", "1", 1);
    open_bare(&both);
    mem_fail_after(1);
    assert_int_equal(transport_ucx.offer(both.out->conn, &lanes, offers.bytes[0], &n, &err),
                     FERRY_ERR_NOMEM);
    mem_fail_after(0);
    make_offers(&both, &offers);
    mem_fail_after(1);
    assert_int_equal(take_offer(&both, 0, &offers), FERRY_ERR_NOMEM);
    mem_fail_after(0);
    assert_int_equal(take_offer(&both, 0, &offers), FERRY_OK);
    assert_int_equal(take_offer(&both, 1, &offers), FERRY_OK);
    assert_int_equal(transport_ucx.link(both.out->conn), LINK_TCP);
    exchange(&both);
    both_close(&both);
    (void)unsetenv("FERRY_FABRIC_NO_SHM");
}

/* Kept lanes go when the peer has unmapped them, though its process lives on. */
static void quarantine_ends_when_the_peer_lets_go(void **state)
{
    struct both both;
    size_t before;

    (void)state;
    both_open(&both);
    before = count_descriptors();
    for (int i = 0; i < 3; i++) {
        link_close(both.out, true);
        size_t kept = transport_ucx.quarantined(both.near.transport);
        assert_in_range(kept, 2 * PEER_RING, 3 * PEER_RING);
        BOTH_WAIT(&both, both.in->lost);
        for (int k = 0; k < 20; k++)
            both_turn(&both);
        assert_int_equal(transport_ucx.quarantined(both.near.transport), kept);
        link_close(both.in, true); /* nothing to keep: the other side has let go of these */
        assert_int_equal(transport_ucx.quarantined(both.far.transport), 0);
        BOTH_WAIT(&both, transport_ucx.quarantined(both.near.transport) == 0);
        side_connect(&both.near, both.far.address);
        BOTH_WAIT(&both, side_ready(&both.near) != NULL && side_ready(&both.far) != NULL);
        both.out = side_ready(&both.near);
        both.in = side_ready(&both.far);
        exchange(&both);
    }
    BOTH_WAIT(&both, count_descriptors() <= before);
    link_close(both.out, true);
    assert_true(transport_ucx.quarantined(both.near.transport) > 0);
    both_close(&both); /* and with the transport at the latest */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lanes_are_mapped_inside_a_host_and_travel_otherwise),
        cmocka_unit_test(sides_that_do_not_agree_on_the_road_are_told),
        cmocka_unit_test(an_offer_of_the_dead_is_refused),
        cmocka_unit_test(steps_out_of_order_are_refused),
        cmocka_unit_test(a_lack_of_memory_leaves_all_as_it_was),
        cmocka_unit_test(quarantine_ends_when_the_peer_lets_go),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
