/* Lanes that travel: ranges in any order, ranges that no honest sender sends, credits. */
#include "../unit.h"
#include "base/alloc.h"
#include "fabric/ucx_impl.h"
#include "ucx_peer.h"

#include <stdlib.h>
#include <string.h>

enum { RING = PEER_RING, A = LANE_ALIGN };

static void post(struct transport_conn *conn, enum ucx_message id, const void *header,
                 size_t n_header, size_t n_payload)
{
    static unsigned char payload[4 * A];
    struct ucx_send *send = mem_zero(sizeof *send);

    assert_non_null(send);
    assert_true(n_payload <= sizeof payload);
    send->conn = conn;
    memcpy(&send->header, header, n_header);
    memset(payload, 0x7e, sizeof payload);
    ucx_endpoint_post(send, id, n_header, payload, n_payload);
}

static void post_data(struct transport_conn *conn, uint64_t from, uint64_t next, size_t n_bytes,
                      uint32_t channel, bool whole)
{
    const struct ucx_data data = {
        .label = conn->peer, .from = from, .next = next, .channel = channel, .whole = whole};

    post(conn, UCX_DATA, &data, sizeof data, n_bytes);
}

static void settle(struct both *both)
{
    for (int i = 0; i < 30; i++)
        both_turn(both);
}

static uint64_t head_of(const struct link *link, enum lane_channel channel)
{
    struct lane *lane = transport_ucx.lane(link->conn, channel, LANE_RECEIVE);

    return atomic_load(&lane->shared->head);
}

static void the_head_moves_over_what_has_come_without_a_gap(void **state)
{
    struct both both;

    (void)state;
    both_open(&both);
    struct transport_conn *conn = both.out->conn;
    const struct lane *in = transport_ucx.lane(both.in->conn, LANE_REPLY, LANE_RECEIVE);
    post_data(conn, 3 * A, 5 * A, 2 * A, LANE_REPLY, true);
    post_data(conn, 2 * A, 3 * A, A, LANE_REPLY, false);
    settle(&both);
    assert_int_equal(head_of(both.in, LANE_REPLY), 0);
    post_data(conn, 0, A, A, LANE_REPLY, true);
    BOTH_WAIT(&both, head_of(both.in, LANE_REPLY) == A);
    assert_int_equal(in->shared->ring[5 * A - 1], 0x7e);
    assert_int_equal(in->shared->ring[A], 0);
    post_data(conn, A, 2 * A, A, LANE_REPLY, false);
    BOTH_WAIT(&both, head_of(both.in, LANE_REPLY) == 5 * A);
    /* Not whole: what lies there is no message yet. */
    post_data(conn, 5 * A, 6 * A, A, LANE_REPLY, false);
    settle(&both);
    assert_int_equal(head_of(both.in, LANE_REPLY), 5 * A);
    /* The rest of the lap is unused; it takes a marker to say so. */
    post_data(conn, 6 * A, RING, A, LANE_REPLY, false);
    post_data(conn, RING, RING + A, A, LANE_REPLY, true); /* not released yet: too far */
    BOTH_WAIT(&both, both.in->lost);
    assert_int_equal(head_of(both.in, LANE_REPLY), 5 * A);
    assert_int_equal(head_of(both.in, LANE_REQUEST), 0);
    both_close(&both);
}

struct hostile {
    const char *what;
    uint64_t from, next;
    size_t n_bytes;
    uint32_t channel;
};

static void ranges_that_nobody_may_send_are_the_end(void **state)
{
    static const struct hostile CASES[] = {
        {"no bytes", 0, A, 0, 0},
        {"not aligned", 1, A, A - 1, 0},
        {"no aligned end", 0, A - 1, A - 1, 0},
        {"backwards", 2 * A, A, A, 0},
        {"empty", A, A, A, 0},
        {"more bytes than it says", 0, A, 2 * A, 0},
        {"less bytes in the middle of a lap", 0, 2 * A, A, 0},
        {"over the end of the lap", RING - A, RING + A, 2 * A, 0},
        {"beyond the ring", RING, RING + A, A, 0},
        {"far beyond", UINT64_MAX - 2 * A + 1, UINT64_MAX - A + 1, A, 0},
        {"around zero", UINT64_MAX - A + 1, A, A, 0},
        {"another channel", 0, A, A, LANE_N_CHANNELS},
        {"no channel", 0, A, A, UINT32_MAX},
    };

    (void)state;
    for (size_t i = 0; i < COUNT_OF(CASES); i++) {
        struct both both;
        both_open(&both);
        post_data(both.out->conn, CASES[i].from, CASES[i].next, CASES[i].n_bytes, CASES[i].channel,
                  true);
        BOTH_WAIT(&both, both.in->lost);
        assert_non_null(strstr(both.in->reason, "where it may not"));
        const struct lane *in = transport_ucx.lane(both.in->conn, LANE_REQUEST, LANE_RECEIVE);
        for (size_t k = 0; k < RING; k++)
            assert_int_equal(in->shared->ring[k], 0);
        assert_int_equal(head_of(both.in, LANE_REQUEST), 0);
        both_close(&both);
    }
}

static void ranges_that_come_twice_are_the_end(void **state)
{
    (void)state;
    for (int i = 0; i < 3; i++) {
        struct both both;
        both_open(&both);
        if (i == 0) { /* it has landed */
            post_data(both.out->conn, 0, 2 * A, 2 * A, 0, true);
            post_data(both.out->conn, A, 3 * A, 2 * A, 0, true);
        } else { /* it waits */
            post_data(both.out->conn, 4 * A, 6 * A, 2 * A, 0, true);
            post_data(both.out->conn, i == 1 ? 5 * A : 3 * A, i == 1 ? 6 * A : 5 * A,
                      i == 1 ? A : 2 * A, 0, true);
        }
        BOTH_WAIT(&both, both.in->lost);
        both_close(&both);
    }
}

/* What comes before its turn is bounded. */
static void a_flood_of_early_ranges_is_the_end(void **state)
{
    struct both both;

    (void)state;
    both_open(&both);
    for (uint64_t i = 1; i <= UCX_RANGES + 1; i++)
        post_data(both.out->conn, 2 * i * A, (2 * i + 1) * A, A, 0, true);
    BOTH_WAIT(&both, both.in->lost);
    assert_int_equal(head_of(both.in, LANE_REQUEST), 0);
    both_close(&both);
}

static void credits_for_what_was_not_sent_are_the_end(void **state)
{
    static const uint64_t TAILS[] = {A, 1, UINT64_MAX, UINT64_MAX - A + 1};

    (void)state;
    for (size_t i = 0; i < COUNT_OF(TAILS) + 1; i++) {
        struct both both;
        both_open(&both);
        struct ucx_credit credit = {.label = both.in->conn->peer,
                                    .tail = i < COUNT_OF(TAILS) ? TAILS[i] : 0,
                                    .channel = i < COUNT_OF(TAILS) ? 0 : LANE_N_CHANNELS};
        post(both.in->conn, UCX_CREDIT, &credit, sizeof credit, 0);
        BOTH_WAIT(&both, both.out->lost);
        both_close(&both);
    }
}

/* Labels name connections; nobody can guess them. */
static void messages_with_a_wrong_label_are_nobodys(void **state)
{
    struct both both;

    (void)state;
    both_open(&both);
    struct transport_conn *conn = both.out->conn;
    for (int i = 0; i < 4; i++) {
        struct ucx_data data = {.label = conn->peer, .next = A, .whole = 1};
        if (i == 0)
            data.label.token ^= 1;
        if (i == 1 || i == 2)
            data.label.slot = i == 1 ? UINT32_MAX : conn->peer.slot + 1;
        post(conn, UCX_DATA, &data, sizeof data - (i == 3), A);
        post(conn, UCX_CREDIT, &data, sizeof(struct ucx_credit) - (i == 3), 0);
    }
    settle(&both);
    assert_int_equal(head_of(both.in, LANE_REQUEST), 0);
    assert_false(both.in->lost);
    post_data(conn, 0, A, A, 0, true);
    BOTH_WAIT(&both, head_of(both.in, LANE_REQUEST) == A);
    both_close(&both);
}

/* An engine that takes and releases everything: credits reach the sender before it could starve,
 * and much fewer than messages. */
static void credits_come_in_time_and_not_for_every_message(void **state)
{
    enum { MESSAGES = 5000 };
    struct both both;
    void *data;

    (void)state;
    both_open(&both);
    struct lane *out = transport_ucx.lane(both.out->conn, LANE_REQUEST, LANE_SEND);
    struct lane *in = transport_ucx.lane(both.in->conn, LANE_REQUEST, LANE_RECEIVE);
    const struct ucx_inlet *inlet = &both.in->conn->lanes.in[LANE_REQUEST];
    size_t n_taken = 0, n_credits = 0;
    uint64_t credited = 0;
    for (size_t n_sent = 0; n_taken < MESSAGES;) {
        struct lane_header header = {.id = n_sent, .n_bytes = 500};
        const unsigned char *bytes;
        if (n_sent < MESSAGES && lane_reserve(out, 500, &data) == FERRY_OK) {
            memset(data, 1, 500);
            lane_commit(out, &header);
            n_sent++;
        }
        transport_ucx.poll(both.near.transport, 0);
        transport_ucx.poll(both.far.transport, 0);
        while (lane_take(in, &header, &bytes)) {
            assert_int_equal(header.id, n_taken);
            n_taken++;
            lane_release(in, &header);
        }
        n_credits += atomic_load(&inlet->credited) != credited;
        credited = atomic_load(&inlet->credited);
    }
    assert_false(in->broken || out->broken);
    assert_in_range(n_credits, MESSAGES * 576 / RING, MESSAGES / 5);
    both_close(&both);
}

int main(void)
{
    (void)setenv("FERRY_FABRIC_NO_SHM", "1", 1);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_head_moves_over_what_has_come_without_a_gap),
        cmocka_unit_test(ranges_that_nobody_may_send_are_the_end),
        cmocka_unit_test(ranges_that_come_twice_are_the_end),
        cmocka_unit_test(a_flood_of_early_ranges_is_the_end),
        cmocka_unit_test(messages_with_a_wrong_label_are_nobodys),
        cmocka_unit_test(credits_for_what_was_not_sent_are_the_end),
        cmocka_unit_test(credits_come_in_time_and_not_for_every_message),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
