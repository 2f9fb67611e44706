/* Who is let in: key, terms, sizes, seats; and strangers that send anything. */
#include "ranks.h"

#include "base/clock.h"
#include "fabric/auth.h"

#include <string.h>

static const uint64_t MS = 1000000;

/* Joining by these options is refused, both sides' words name all of `words`. */
static void expect_refusal(struct ranks *ranks, const struct fabric_options *options,
                           const char *const *words, size_t n_words, bool both)
{
    struct fabric *fabric = NULL;
    struct ferry_error err = {0};
    char refusal[512];
    uint64_t begin_ns = clock_now_ns();

    assert_int_equal(fabric_create(&fabric, options, &err), FERRY_ERR_ARG);
    assert_null(fabric);
    assert_true(clock_now_ns() - begin_ns < 2000 * MS * fabric_time_factor()); /* at once */
    fabric_refusal(ranks->fabrics[0], refusal, sizeof refusal);
    for (size_t i = 0; i < n_words; i++) {
        if (strstr(err.msg, words[i]) == NULL)
            fail_msg("the joiner's '%s' does not name '%s'", err.msg, words[i]);
        if (both && strstr(refusal, words[i]) == NULL)
            fail_msg("the member's '%s' does not name '%s'", refusal, words[i]);
    }
}

static void test_terms(void **state)
{
    const struct fabric_term ours[] = {{"numerics", "v1"}, {"shapes", "64x8"}};
    const struct fabric_term theirs[] = {{"shapes", "64x9"}, {"numerics", "v1"}};
    const struct fabric_term more[] = {{"numerics", "v1"}, {"shapes", "64x8"}, {"kv", "f16"}};
    struct ranks ranks;
    struct fabric_options options;

    (void)state;
    ranks_open(&ranks, 3);
    options = ranks_options(&ranks, 0, -1);
    options.terms = ours;
    options.n_terms = 2;
    assert_int_equal(fabric_create(&ranks.fabrics[0], &options, NULL), FERRY_OK);
    options = ranks_options(&ranks, 1, 0);
    options.terms = theirs;
    options.n_terms = 2;
    expect_refusal(&ranks, &options,
                   (const char *const[]){"shapes", "64x8", "64x9", "seat 0", "seat 1"}, 5, true);
    options.terms = ours;
    options.n_terms = 1;
    expect_refusal(&ranks, &options, (const char *const[]){"shapes", "64x8", "(nothing)"}, 3, true);
    options.terms = more;
    options.n_terms = 3;
    expect_refusal(&ranks, &options, (const char *const[]){"kv", "f16", "(nothing)"}, 3, true);
    options.terms = ours;
    options.n_terms = 2;
    options.n_seats = 4;
    expect_refusal(&ranks, &options, (const char *const[]){"number of seats", "3", "4"}, 3, true);
    options.n_seats = 0; /* whatever the group has */
    options.lanes.ring_bytes[LANE_REPLY] *= 2;
    expect_refusal(&ranks, &options, (const char *const[]){"reply lane", "65536", "131072"}, 3,
                   true);
    options.lanes.ring_bytes[LANE_REPLY] /= 2;
    assert_int_equal(fabric_create(&ranks.fabrics[1], &options, NULL), FERRY_OK);
    assert_int_equal(fabric_n_seats(ranks.fabrics[1]), 3);
    ranks_close(&ranks);
}

static void test_seats(void **state)
{
    struct ranks ranks;
    struct fabric_options options;

    (void)state;
    ranks_open(&ranks, 2);
    ranks_start_all(&ranks, 2);
    options = ranks_options(&ranks, 2, 0);
    options.n_seats = 2;
    options.seat = 1;
    expect_refusal(&ranks, &options, (const char *const[]){"seat 1 is taken by rank1"}, 1, true);
    options.seat = -1;
    expect_refusal(&ranks, &options, (const char *const[]){"all 2 seats are taken"}, 1, true);
    ranks_close(&ranks);
}

static void test_wrong_key(void **state)
{
    struct ranks ranks;
    struct fabric_options options;

    (void)state;
    ranks_open(&ranks, 2);
    ranks_start(&ranks, 0, -1);
    options = ranks_options(&ranks, 1, 0);
    options.key = "another";
    expect_refusal(&ranks, &options, (const char *const[]){"group key"}, 1, false);
    options.n_key = 0;
    expect_refusal(&ranks, &options, (const char *const[]){"group key"}, 1, false);
    ranks_close(&ranks);
}

/* ---- a stranger with a transport of its own ---- */

struct stranger {
    struct transport *transport;
    struct transport_conn *conn;
    bool connected, lost;
    size_t n_messages;
    struct wire last;
    unsigned char data[TRANSPORT_CONTROL_MAX];
};

static void on_accepted(void *arg, struct transport_conn *conn)
{
    (void)arg;
    (void)conn;
}

static void on_connected(void *arg, struct transport_conn *conn)
{
    (void)conn;
    ((struct stranger *)arg)->connected = true;
}

static void on_control(void *arg, struct transport_conn *conn, const void *data, size_t n_bytes)
{
    struct stranger *s = arg;

    (void)conn;
    s->n_messages++;
    memcpy(s->data, data, n_bytes);
    assert_int_equal(wire_decode(&s->last, s->data, n_bytes, NULL), FERRY_OK);
}

static void on_lost(void *arg, struct transport_conn *conn, const char *reason)
{
    (void)conn;
    (void)reason;
    ((struct stranger *)arg)->lost = true;
}

static struct stranger stranger;

static void stranger_connect(struct ranks *ranks)
{
    struct transport_options options = {
        .events = {on_accepted, on_connected, on_control, on_lost, &stranger},
        .listen = "stranger",
        .hub = ranks->hub};
    char name[32];

    memset(&stranger, 0, sizeof stranger);
    ranks_name(ranks, 0, name);
    assert_int_equal(transport_loop.create(&stranger.transport, &options, NULL), FERRY_OK);
    assert_int_equal(transport_loop.connect(stranger.transport, name, &stranger.conn, NULL),
                     FERRY_OK);
    while (!stranger.connected && !stranger.lost)
        transport_loop.poll(stranger.transport, 10 * MS);
    assert_true(stranger.connected);
}

static void stranger_close(void)
{
    transport_loop.destroy(stranger.transport);
}

static void stranger_send(const struct wire *message)
{
    static unsigned char bytes[TRANSPORT_CONTROL_MAX];
    size_t n_bytes;

    assert_int_equal(wire_encode(message, bytes, &n_bytes), FERRY_OK);
    (void)transport_loop.send(stranger.conn, bytes, n_bytes);
}

static void stranger_wait_lost(void)
{
    uint64_t end_ns = clock_now_ns() + 5000 * MS * fabric_time_factor();

    while (!stranger.lost && clock_now_ns() < end_ns)
        transport_loop.poll(stranger.transport, 10 * MS);
    assert_true(stranger.lost);
}

static void stranger_hello(void)
{
    struct wire hello = {.type = WIRE_HELLO};
    uint64_t end_ns = clock_now_ns() + 5000 * MS * fabric_time_factor();

    memset(hello.hello.nonce, 7, sizeof hello.hello.nonce);
    stranger_send(&hello);
    while (stranger.n_messages == 0 && clock_now_ns() < end_ns)
        transport_loop.poll(stranger.transport, 10 * MS);
    assert_int_equal(stranger.n_messages, 1);
    assert_int_equal(stranger.last.type, WIRE_CHALLENGE);
}

static void test_strangers_learn_nothing(void **state)
{
    static const enum wire_type TOO_EARLY[] = {WIRE_JOIN,    WIRE_ATTACH, WIRE_BEAT,
                                               WIRE_PROPOSE, WIRE_TOPIC,  WIRE_JOINED};
    struct ranks ranks;
    struct fabric_view before, after;

    (void)state;
    ranks_open(&ranks, 2);
    ranks_start_all(&ranks, 2);
    fabric_view(ranks.fabrics[0], &before);
    for (size_t i = 0; i < COUNT_OF(TOO_EARLY); i++) {
        for (int after_hello = 0; after_hello < 2; after_hello++) {
            struct wire message = {.type = TOO_EARLY[i]};
            message.attach.instance = 5;
            if (message.type == WIRE_JOIN)
                message.join.instance = 5;
            if (message.type == WIRE_PROPOSE)
                message.propose.table.n_seats = 2;
            stranger_connect(&ranks);
            if (after_hello)
                stranger_hello();
            stranger_send(&message);
            stranger_wait_lost();
            assert_int_equal(stranger.n_messages, (size_t)after_hello);
            stranger_close();
        }
    }
    stranger_connect(&ranks); /* a proof by another key, and the listener's own sent back */
    stranger_hello();
    struct wire proof = {.type = WIRE_PROOF};
    memcpy(proof.proof.mac, stranger.last.challenge.mac, WIRE_MAC_BYTES);
    stranger_send(&proof);
    stranger_wait_lost();
    assert_int_equal(stranger.n_messages, 1);
    stranger_close();
    stranger_connect(&ranks);
    assert_int_equal(transport_loop.send(stranger.conn, "GET / HTTP/1.1\r\n\r\n", 18), FERRY_OK);
    stranger_wait_lost();
    assert_int_equal(stranger.n_messages, 0);
    stranger_close();
    fabric_view(ranks.fabrics[0], &after);
    assert_int_equal(after.epoch, before.epoch);
    assert_int_equal(after.live, 3);
    ranks_close(&ranks);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_terms),
        cmocka_unit_test(test_seats),
        cmocka_unit_test(test_wrong_key),
        cmocka_unit_test(test_strangers_learn_nothing),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
