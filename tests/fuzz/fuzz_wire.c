/* Any bytes as control messages between ranks: what is refused must say why in one line; what is
 * accepted must have exactly one encoding, and must do no harm to a member that gets it from
 * another member, in any order and number.
 *
 * Input: messages, each with its length (2 bytes, little endian) in front; the two highest bits of
 * the length are the seat that sends it. */
#include "fuzz.h"

#include "base/assert.h"
#include "fabric/group.h"

#include <string.h>

enum { N_SEATS = 4, SELF = 1, LENGTH_MASK = 0x3fff };

static const uint64_t MS = 1000000;
static struct wire message;
static struct group group;
static unsigned char again[TRANSPORT_CONTROL_MAX];

static void on_send(void *arg, int seat, const struct wire *sent)
{
    size_t n_bytes;

    (void)arg;
    FERRY_ASSERT(seat >= 0 && seat < N_SEATS && seat != SELF);
    FERRY_ASSERT(wire_encode(sent, again, &n_bytes) == FERRY_OK);
}

/* A member of a group of four, that its issuer on seat 0 has taken in. */
static void enter(uint64_t now_ns)
{
    const struct group_limits limits = {100 * MS, 400 * MS, 800 * MS, 3000 * MS};
    struct wire_table table = {.epoch = 5, .issuer = 0, .n_seats = N_SEATS};

    for (int s = 0; s < N_SEATS; s++) {
        table.seats[s].state = s == SELF ? SEAT_EMPTY : SEAT_LIVE;
        table.seats[s].incarnation = table.seats[s].since = s == SELF ? 0 : 1 + (uint32_t)s;
        table.seats[s].instance = s == SELF ? 0 : 100 + (uint64_t)s;
    }
    group_init(&group, &limits, on_send, NULL);
    group_enter(&group, SELF, 100 + SELF, &table, now_ns);
    message = (struct wire){.type = WIRE_PROPOSE};
    table.epoch = 6;
    table.seats[SELF].state = SEAT_JOINING;
    table.seats[SELF].incarnation = table.seats[SELF].since = 6;
    table.seats[SELF].instance = 100 + SELF;
    message.propose.term = 64;
    message.propose.table = table;
    group_receive(&group, 0, 100, &message, now_ns);
    message = (struct wire){.type = WIRE_COMMIT};
    message.commit.term = 64;
    message.commit.epoch = 6;
    group_receive(&group, 0, 100, &message, now_ns);
    group_tick(&group, now_ns);
    FERRY_ASSERT(group_is_member(&group));
}

static void use(int seat, const uint8_t *data, size_t size, uint64_t now_ns)
{
    struct ferry_error err = {0};
    size_t n_bytes;
    uint32_t epoch = group.committed.epoch;
    char text[WIRE_TEXT_MAX];
    int got;

    if (wire_decode(&message, data, size, &err) != FERRY_OK) {
        FERRY_ASSERT(err.msg[0] != 0 && strchr(err.msg, '\n') == NULL);
        return;
    }
    FERRY_ASSERT(wire_encode(&message, again, &n_bytes) == FERRY_OK);
    FERRY_ASSERT(n_bytes == size && memcmp(again, data, size) == 0);
    if (message.type == WIRE_JOIN)
        (void)group_ask(&group, &message.join, now_ns, &got, text);
    else if (seat != SELF)
        group_receive(&group, seat, group.peers[seat].instance, &message, now_ns);
    group_tick(&group, now_ns);
    FERRY_ASSERT(group.committed.epoch >= epoch);
    (void)group_live(&group, now_ns);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    uint64_t now_ns = 1000 * MS;

    enter(now_ns);
    while (size >= 2) {
        unsigned head = (unsigned)data[0] | (unsigned)data[1] << 8;
        size_t n = head & LENGTH_MASK;

        data += 2;
        size -= 2;
        if (n > size)
            n = size;
        now_ns += 50 * MS;
        use((int)(head >> 14), data, n, now_ns);
        data += n;
        size -= n;
    }
    return 0;
}
