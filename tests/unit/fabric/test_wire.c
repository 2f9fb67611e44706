/* Control messages: every kind there and back, every cut of every kind refused, hostile values. */
#include "../unit.h"

#include "fabric/wire.h"

#include <string.h>

static unsigned char bytes[TRANSPORT_CONTROL_MAX], again[TRANSPORT_CONTROL_MAX];
static struct wire sent, got;

static void fill_table(struct wire_table *table, size_t n_seats)
{
    table->epoch = 900;
    table->issuer = (int)n_seats - 1;
    table->n_seats = n_seats;
    for (size_t s = 0; s < n_seats; s++) {
        table->seats[s].state = s % 2 == 0 ? SEAT_LIVE : SEAT_DEAD;
        table->seats[s].incarnation = 1 + (uint32_t)s;
        table->seats[s].since = 800;
        table->seats[s].instance = 0x123456789abcdefu + s;
        (void)snprintf(table->seats[s].address, TRANSPORT_ADDRESS_MAX, "10.0.0.%zu:8081", s);
    }
}

/* One message of every type, with texts and blobs. */
static void make(enum wire_type type)
{
    static const char offer[] = "an offer, opaque";

    memset(&sent, 0, sizeof sent);
    sent.type = type;
    switch (type) {
    case WIRE_HELLO:
    case WIRE_CHALLENGE:
    case WIRE_PROOF:
        memset(&sent.challenge, 0x5a, sizeof sent.challenge);
        break;
    case WIRE_JOIN:
        sent.join = (struct wire_join){.n_seats = 64,
                                       .wanted = -1,
                                       .instance = 7,
                                       .former = 6,
                                       .ring_bytes = {1 << 20, 1 << 21},
                                       .address = "host:1",
                                       .n_terms = 2};
        sent.join.terms[0].name = (struct wire_text){"numerics", 8};
        sent.join.terms[0].value = (struct wire_text){"v1", 2};
        sent.join.terms[1].name = (struct wire_text){"empty", 5};
        sent.join.terms[1].value = (struct wire_text){"", 0};
        break;
    case WIRE_REFER:
        sent.refer.seat = 63;
        strcpy(sent.refer.address, "[::1]:9");
        break;
    case WIRE_WAIT:
    case WIRE_REFUSE:
        strcpy(sent.wait.text, "not yet");
        break;
    case WIRE_GRANT:
        sent.grant.seat = 1;
        fill_table(&sent.grant.table, 64);
        break;
    case WIRE_ATTACH:
    case WIRE_ATTACHED:
        sent.attach.seat = 3;
        sent.attach.instance = 99;
        sent.attach.offer = offer;
        sent.attach.n_offer = sizeof offer;
        break;
    case WIRE_MENDED:
        sent.mended.seat = 2;
        sent.mended.instance = 98;
        break;
    case WIRE_JOINED:
        sent.joined.seats = 0x8000000000000001u;
        break;
    case WIRE_BEAT:
        sent.beat = (struct wire_beat){.stamp = 1,
                                       .echo = 2,
                                       .lease = 3,
                                       .term = 4,
                                       .epoch = 5,
                                       .settled = 6,
                                       .flags = WIRE_BEAT_CLAIM | WIRE_BEAT_OUT,
                                       .progress = 8,
                                       .broken = 9,
                                       .gone = 10};
        break;
    case WIRE_PROPOSE:
        sent.propose.term = 65;
        fill_table(&sent.propose.table, 5);
        break;
    case WIRE_ACK:
    case WIRE_COMMIT:
        sent.ack.term = 66;
        sent.ack.epoch = 901;
        break;
    case WIRE_PREPARE:
    case WIRE_REJECT:
        sent.prepare.term = 67;
        break;
    case WIRE_PROMISE:
        sent.promise.term = 68;
        sent.promise.accepted_term = 4;
        fill_table(&sent.promise.table, 1);
        break;
    case WIRE_TOPIC:
        sent.topic.topic = FABRIC_TOPIC_APP;
        sent.topic.data = offer;
        sent.topic.n_bytes = sizeof offer;
        break;
    }
}

static const enum wire_type TYPES[] = {
#define TYPE(type, number, name) type,
    WIRE_TYPE_LIST(TYPE)
#undef TYPE
};

static void test_there_and_back(void **state)
{
    (void)state;
    for (size_t t = 0; t < COUNT_OF(TYPES); t++) {
        size_t n, n_again;
        struct ferry_error err = {0};

        make(TYPES[t]);
        assert_int_equal(wire_encode(&sent, bytes, &n), FERRY_OK);
        if (wire_decode(&got, bytes, n, &err) != FERRY_OK)
            fail_msg("%s: %s", wire_type_name(TYPES[t]), err.msg);
        assert_int_equal(got.type, TYPES[t]);
        assert_int_equal(wire_encode(&got, again, &n_again), FERRY_OK);
        assert_int_equal(n_again, n);
        assert_memory_equal(again, bytes, n);
    }
    size_t n;
    make(WIRE_BEAT);
    assert_int_equal(wire_encode(&sent, bytes, &n), FERRY_OK);
    assert_int_equal(wire_decode(&got, bytes, n, NULL), FERRY_OK);
    assert_int_equal(got.beat.lease, 3);
    assert_int_equal(got.beat.flags, WIRE_BEAT_CLAIM | WIRE_BEAT_OUT);
    assert_int_equal(got.beat.gone, 10);
    make(WIRE_GRANT);
    assert_int_equal(wire_encode(&sent, bytes, &n), FERRY_OK);
    assert_int_equal(wire_decode(&got, bytes, n, NULL), FERRY_OK);
    assert_int_equal(got.grant.table.issuer, 63);
    assert_int_equal(got.grant.table.seats[63].incarnation, 64);
    assert_string_equal(got.grant.table.seats[63].address, "10.0.0.63:8081");
}

/* Bytes that end anywhere, or go on: an error that says so, never a read behind the end. */
static void test_cut_anywhere(void **state)
{
    (void)state;
    for (size_t t = 0; t < COUNT_OF(TYPES); t++) {
        size_t n;

        make(TYPES[t]);
        assert_int_equal(wire_encode(&sent, bytes, &n), FERRY_OK);
        for (size_t cut = 0; cut < n; cut++) {
            struct ferry_error err = {0};
            unsigned char *exact = test_malloc(cut + 1);

            memcpy(exact, bytes, cut);
            if (TYPES[t] == WIRE_TOPIC && cut > 2) /* its data may have any length */
                assert_int_equal(wire_decode(&got, exact, cut, &err), FERRY_OK);
            else
                assert_int_equal(wire_decode(&got, exact, cut, &err), FERRY_ERR_FORMAT);
            test_free(exact);
        }
        bytes[n] = 0;
        if (TYPES[t] != WIRE_TOPIC)
            assert_int_equal(wire_decode(&got, bytes, n + 1, NULL), FERRY_ERR_FORMAT);
    }
}

static void refuse(const char *what)
{
    struct ferry_error err = {0};
    size_t n;

    assert_int_equal(wire_encode(&sent, bytes, &n), FERRY_OK);
    assert_int_equal(wire_decode(&got, bytes, n, &err), FERRY_ERR_FORMAT);
    if (strstr(err.msg, what) == NULL)
        fail_msg("'%s' does not name '%s'", err.msg, what);
}

static void test_hostile_values(void **state)
{
    size_t n;
    struct ferry_error err = {0};

    (void)state;
    make(WIRE_GRANT);
    sent.grant.seat = 64;
    refuse("seat");
    make(WIRE_GRANT);
    sent.grant.table.n_seats = 1;
    sent.grant.table.issuer = 0;
    refuse("seat");
    make(WIRE_PROPOSE);
    sent.propose.table.issuer = 5;
    refuse("issuer");
    make(WIRE_PROPOSE);
    sent.propose.table.seats[0].state = SEAT_SUSPECT;
    refuse("state");
    make(WIRE_PROPOSE);
    sent.propose.table.seats[0].state = SEAT_N_STATES;
    refuse("state");
    make(WIRE_PROPOSE);
    sent.propose.table.seats[0].incarnation = 0;
    refuse("incarnation");
    make(WIRE_PROPOSE);
    sent.propose.table.seats[0].instance = 0;
    refuse("incarnation");
    make(WIRE_PROPOSE);
    sent.propose.table.seats[1].since = 901;
    refuse("epoch");
    make(WIRE_PROPOSE);
    strcpy(sent.propose.table.seats[1].address, "a\nb");
    refuse("address");
    make(WIRE_JOIN);
    sent.join.instance = 0;
    refuse("instance");
    make(WIRE_JOIN);
    sent.join.n_seats = 65;
    refuse("number of seats");
    make(WIRE_JOIN);
    sent.join.wanted = 64;
    refuse("wanted");
    make(WIRE_JOIN);
    sent.join.terms[0].name = (struct wire_text){"a\x1b[2J", 5};
    refuse("term");
    make(WIRE_TOPIC);
    sent.topic.topic = FABRIC_N_TOPICS;
    refuse("topic");
    make(WIRE_HELLO);
    assert_int_equal(wire_encode(&sent, bytes, &n), FERRY_OK);
    bytes[0] = WIRE_VERSION + 1;
    assert_int_equal(wire_decode(&got, bytes, n, &err), FERRY_ERR_UNSUPPORTED);
    assert_non_null(strstr(err.msg, "version 2"));
    for (unsigned type = 0; type < 256; type++) {
        bool known = strcmp(wire_type_name((enum wire_type)type), "?") != 0;
        bytes[0] = WIRE_VERSION;
        bytes[1] = (unsigned char)type;
        if (!known)
            assert_int_equal(wire_decode(&got, bytes, 2, &err), FERRY_ERR_FORMAT);
    }
}

static void test_limits(void **state)
{
    static char text[LIMIT_TERM_BYTES];
    static unsigned char blob[TRANSPORT_CONTROL_MAX];
    size_t n;

    (void)state;
    memset(text, 'x', sizeof text);
    make(WIRE_JOIN);
    sent.join.n_terms = LIMIT_TERMS;
    for (size_t t = 0; t < LIMIT_TERMS; t++)
        sent.join.terms[t].name = sent.join.terms[t].value = (struct wire_text){text, 1000};
    assert_int_equal(wire_encode(&sent, bytes, &n), FERRY_OK);
    assert_int_equal(wire_decode(&got, bytes, n, NULL), FERRY_OK);
    for (size_t t = 0; t < LIMIT_TERMS; t++)
        sent.join.terms[t].name = sent.join.terms[t].value = (struct wire_text){text, sizeof text};
    assert_int_equal(wire_encode(&sent, bytes, &n), FERRY_ERR_LIMIT); /* over 64 KiB */
    make(WIRE_TOPIC);
    sent.topic.data = blob;
    sent.topic.n_bytes = TRANSPORT_CONTROL_MAX - WIRE_TOPIC_BYTES;
    assert_int_equal(wire_encode(&sent, bytes, &n), FERRY_OK);
    assert_true(n <= TRANSPORT_CONTROL_MAX);
    sent.topic.n_bytes++;
    assert_int_equal(wire_encode(&sent, bytes, &n), FERRY_ERR_LIMIT);
    make(WIRE_ATTACH);
    sent.attach.offer = blob;
    sent.attach.n_offer = TRANSPORT_OFFER_MAX;
    assert_int_equal(wire_encode(&sent, bytes, &n), FERRY_OK);
    assert_int_equal(wire_decode(&got, bytes, n, NULL), FERRY_OK);
    sent.attach.n_offer++;
    assert_int_equal(wire_encode(&sent, bytes, &n), FERRY_ERR_LIMIT);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_there_and_back),
        cmocka_unit_test(test_cut_anywhere),
        cmocka_unit_test(test_hostile_values),
        cmocka_unit_test(test_limits),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
