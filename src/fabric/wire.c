/* Bytes to checked values and back. See wire.h. */
#include "fabric/wire.h"

#include "base/error.h"

#include <string.h>

const char *wire_type_name(enum wire_type type)
{
    switch (type) {
#define WIRE_TYPE_NAME(value, number, name) \
    case value:                             \
        return name;
        WIRE_TYPE_LIST(WIRE_TYPE_NAME)
#undef WIRE_TYPE_NAME
    }
    return "?";
}

uint64_t wire_table_members(const struct wire_table *table)
{
    uint64_t members = 0;

    for (size_t s = 0; s < table->n_seats; s++) {
        if (seat_is_member(table->seats[s].state))
            members |= seat_bit((int)s);
    }
    return members;
}

/* ---- writing ---- */

/* Stops writing at the end and remembers it, so that one check at the end is enough. */
struct writer {
    unsigned char *data;
    size_t used, size;
    bool full;
};

static void put_bytes(struct writer *w, const void *data, size_t n)
{
    if (w->full || n > w->size - w->used) {
        w->full = true;
        return;
    }
    if (n > 0)
        memcpy(w->data + w->used, data, n);
    w->used += n;
}

static void put_int(struct writer *w, uint64_t value, size_t n)
{
    unsigned char bytes[8];

    for (size_t i = 0; i < n; i++)
        bytes[i] = (unsigned char)(value >> (8 * i));
    put_bytes(w, bytes, n);
}

static void put_u8(struct writer *w, unsigned value)
{
    put_int(w, value, 1);
}

static void put_u32(struct writer *w, uint32_t value)
{
    put_int(w, value, 4);
}

static void put_u64(struct writer *w, uint64_t value)
{
    put_int(w, value, 8);
}

static void put_blob(struct writer *w, const void *data, size_t n)
{
    if (n > UINT16_MAX) {
        w->full = true;
        return;
    }
    put_int(w, n, 2);
    put_bytes(w, data, n);
}

static void put_text(struct writer *w, const char *text)
{
    put_blob(w, text, strlen(text));
}

static void put_table(struct writer *w, const struct wire_table *table)
{
    put_u32(w, table->epoch);
    put_u8(w, (unsigned)table->issuer);
    put_u8(w, (unsigned)table->n_seats);
    for (size_t s = 0; s < table->n_seats; s++) {
        const struct wire_seat *seat = &table->seats[s];

        put_u8(w, (unsigned)seat->state);
        put_u32(w, seat->incarnation);
        put_u32(w, seat->since);
        put_u64(w, seat->instance);
        put_text(w, seat->address);
    }
}

static void put_join(struct writer *w, const struct wire_join *join)
{
    put_u32(w, join->n_seats);
    put_u8(w, (unsigned)(join->wanted + 1));
    put_u64(w, join->instance);
    put_u64(w, join->former);
    for (size_t c = 0; c < LANE_N_CHANNELS; c++)
        put_u64(w, join->ring_bytes[c]);
    put_text(w, join->address);
    put_u8(w, (unsigned)join->n_terms);
    for (size_t t = 0; t < join->n_terms; t++) {
        put_blob(w, join->terms[t].name.data, join->terms[t].name.size);
        put_blob(w, join->terms[t].value.data, join->terms[t].value.size);
    }
}

static void put_beat(struct writer *w, const struct wire_beat *beat)
{
    put_u64(w, beat->stamp);
    put_u64(w, beat->echo);
    put_u64(w, beat->lease);
    put_u64(w, beat->term);
    put_u32(w, beat->epoch);
    put_u32(w, beat->settled);
    put_u8(w, beat->flags);
    put_u64(w, beat->progress);
    put_u64(w, beat->broken);
    put_u64(w, beat->gone);
}

static void put_handshake(struct writer *w, const struct wire *m)
{
    switch (m->type) {
    case WIRE_HELLO:
        put_bytes(w, m->hello.nonce, sizeof m->hello.nonce);
        break;
    case WIRE_CHALLENGE:
        put_bytes(w, m->challenge.nonce, sizeof m->challenge.nonce);
        put_bytes(w, m->challenge.mac, sizeof m->challenge.mac);
        break;
    case WIRE_PROOF:
        put_bytes(w, m->proof.mac, sizeof m->proof.mac);
        break;
    case WIRE_JOIN:
        put_join(w, &m->join);
        break;
    case WIRE_REFER:
        put_u8(w, (unsigned)m->refer.seat);
        put_text(w, m->refer.address);
        break;
    case WIRE_WAIT:
    case WIRE_REFUSE:
        put_text(w, m->wait.text);
        break;
    case WIRE_GRANT:
        put_u8(w, (unsigned)m->grant.seat);
        put_table(w, &m->grant.table);
        break;
    case WIRE_ATTACH:
    case WIRE_ATTACHED:
        put_u8(w, (unsigned)m->attach.seat);
        put_u64(w, m->attach.instance);
        put_blob(w, m->attach.offer, m->attach.n_offer);
        break;
    case WIRE_MENDED:
        put_u8(w, (unsigned)m->mended.seat);
        put_u64(w, m->mended.instance);
        break;
    default: /* WIRE_JOINED */
        put_u64(w, m->joined.seats);
        break;
    }
}

static void put_group(struct writer *w, const struct wire *m)
{
    switch (m->type) {
    case WIRE_BEAT:
        put_beat(w, &m->beat);
        break;
    case WIRE_PROPOSE:
        put_u64(w, m->propose.term);
        put_table(w, &m->propose.table);
        break;
    case WIRE_ACK:
    case WIRE_COMMIT:
        put_u64(w, m->ack.term);
        put_u32(w, m->ack.epoch);
        break;
    case WIRE_PREPARE:
    case WIRE_REJECT:
        put_u64(w, m->prepare.term);
        break;
    default: /* WIRE_PROMISE */
        put_u64(w, m->promise.term);
        put_u64(w, m->promise.accepted_term);
        put_table(w, &m->promise.table);
        break;
    }
}

enum ferry_status wire_encode(const struct wire *message, unsigned char *ret_data,
                              size_t *ret_bytes)
{
    struct writer w = {ret_data, 0, TRANSPORT_CONTROL_MAX, false};

    put_u8(&w, WIRE_VERSION);
    put_u8(&w, (unsigned)message->type);
    if (message->type == WIRE_TOPIC) {
        if (message->topic.n_bytes > TRANSPORT_CONTROL_MAX - WIRE_TOPIC_BYTES)
            return FERRY_ERR_LIMIT;
        put_u8(&w, (unsigned)message->topic.topic);
        put_bytes(&w, message->topic.data, message->topic.n_bytes);
    } else if (message->type < WIRE_BEAT) {
        if ((message->type == WIRE_ATTACH || message->type == WIRE_ATTACHED) &&
            message->attach.n_offer > TRANSPORT_OFFER_MAX)
            return FERRY_ERR_LIMIT;
        put_handshake(&w, message);
    } else {
        put_group(&w, message);
    }
    if (w.full)
        return FERRY_ERR_LIMIT;
    *ret_bytes = w.used;
    return FERRY_OK;
}

/* ---- reading ---- */

/* The first thing that was wrong; later reads give 0 and keep it. */
struct reader {
    const unsigned char *data;
    size_t used, size;
    const char *wrong;
};

static const void *get_bytes(struct reader *r, size_t n, const char *what)
{
    const unsigned char *at = r->data + r->used;

    if (r->wrong != NULL)
        return NULL;
    if (n > r->size - r->used) {
        r->wrong = what;
        return NULL;
    }
    r->used += n;
    return at;
}

static uint64_t get_int(struct reader *r, size_t n, const char *what)
{
    const unsigned char *bytes = get_bytes(r, n, what);
    uint64_t value = 0;

    for (size_t i = 0; bytes != NULL && i < n; i++)
        value |= (uint64_t)bytes[i] << (8 * i);
    return value;
}

static uint8_t get_u8(struct reader *r, const char *what)
{
    return (uint8_t)get_int(r, 1, what);
}

static uint32_t get_u32(struct reader *r, const char *what)
{
    return (uint32_t)get_int(r, 4, what);
}

static uint64_t get_u64(struct reader *r, const char *what)
{
    return get_int(r, 8, what);
}

/* A number below `limit`. */
static unsigned get_below(struct reader *r, unsigned limit, const char *what)
{
    unsigned value = get_u8(r, what);

    if (r->wrong == NULL && value >= limit)
        r->wrong = what;
    return r->wrong == NULL ? value : 0;
}

static void get_copy(struct reader *r, unsigned char *ret, size_t n, const char *what)
{
    const void *bytes = get_bytes(r, n, what);

    if (bytes != NULL)
        memcpy(ret, bytes, n);
    else
        memset(ret, 0, n);
}

static struct wire_text get_blob(struct reader *r, size_t limit, const char *what)
{
    size_t n = (size_t)get_int(r, 2, what);
    struct wire_text text = {"", 0};

    if (r->wrong == NULL && n > limit)
        r->wrong = what;
    const void *bytes = get_bytes(r, n, what);
    if (bytes != NULL)
        text = (struct wire_text){bytes, n};
    return text;
}

/* Text without control characters: it ends up in error messages. */
static struct wire_text get_printable(struct reader *r, size_t limit, const char *what)
{
    struct wire_text text = get_blob(r, limit, what);

    for (size_t i = 0; i < text.size; i++) {
        unsigned char c = (unsigned char)text.data[i];
        if ((c < 0x20 || c == 0x7f) && r->wrong == NULL)
            r->wrong = what;
    }
    return text;
}

static void get_text(struct reader *r, char *ret, size_t size, const char *what)
{
    struct wire_text text = get_printable(r, size - 1, what);

    memset(ret, 0, size);
    if (r->wrong == NULL)
        memcpy(ret, text.data, text.size);
}

static void get_seat(struct reader *r, struct wire_seat *seat)
{
    seat->state = (enum seat_state)get_below(r, SEAT_N_STATES, "a seat's state");
    seat->incarnation = get_u32(r, "a seat's incarnation");
    seat->since = get_u32(r, "a seat's epoch");
    seat->instance = get_u64(r, "a seat's instance");
    get_text(r, seat->address, sizeof seat->address, "a seat's address");
    if (r->wrong != NULL)
        return;
    if (seat->state == SEAT_SUSPECT)
        r->wrong = "a seat's state";
    if (seat_is_member(seat->state) && (seat->incarnation == 0 || seat->instance == 0))
        r->wrong = "a seat's incarnation";
}

static void get_table(struct reader *r, struct wire_table *table)
{
    table->epoch = get_u32(r, "the table's epoch");
    table->issuer = (int)get_below(r, LIMIT_SEATS, "the table's issuer");
    table->n_seats = get_below(r, LIMIT_SEATS + 1, "the table's size");
    if (r->wrong == NULL && (size_t)table->issuer >= table->n_seats)
        r->wrong = "the table's issuer";
    for (size_t s = 0; s < table->n_seats && r->wrong == NULL; s++) {
        get_seat(r, &table->seats[s]);
        if (r->wrong == NULL &&
            (table->seats[s].incarnation > table->epoch || table->seats[s].since > table->epoch))
            r->wrong = "a seat's epoch";
    }
}

static void get_join(struct reader *r, struct wire_join *join)
{
    join->n_seats = get_u32(r, "the number of seats");
    if (r->wrong == NULL && join->n_seats > LIMIT_SEATS)
        r->wrong = "the number of seats";
    join->wanted = (int)get_below(r, LIMIT_SEATS + 1, "the wanted seat") - 1;
    join->instance = get_u64(r, "the instance");
    if (r->wrong == NULL && join->instance == 0)
        r->wrong = "the instance";
    join->former = get_u64(r, "the former instance");
    for (size_t c = 0; c < LANE_N_CHANNELS; c++)
        join->ring_bytes[c] = get_u64(r, "a lane's size");
    get_text(r, join->address, sizeof join->address, "the address");
    join->n_terms = get_below(r, LIMIT_TERMS + 1, "the number of terms");
    for (size_t t = 0; t < join->n_terms; t++) {
        join->terms[t].name = get_printable(r, LIMIT_TERM_BYTES, "a term's name");
        join->terms[t].value = get_printable(r, LIMIT_TERM_BYTES, "a term's value");
    }
}

static void get_beat(struct reader *r, struct wire_beat *beat)
{
    beat->stamp = get_u64(r, "the stamp");
    beat->echo = get_u64(r, "the echo");
    beat->lease = get_u64(r, "the lease");
    beat->term = get_u64(r, "the term");
    beat->epoch = get_u32(r, "the epoch");
    beat->settled = get_u32(r, "the settled epoch");
    beat->flags = get_u8(r, "the flags");
    beat->progress = get_u64(r, "the progress");
    beat->broken = get_u64(r, "the broken roads");
    beat->gone = get_u64(r, "the ended processes");
}

static void get_handshake(struct reader *r, struct wire *m)
{
    struct wire_text blob;

    switch (m->type) {
    case WIRE_HELLO:
        get_copy(r, m->hello.nonce, sizeof m->hello.nonce, "the nonce");
        break;
    case WIRE_CHALLENGE:
        get_copy(r, m->challenge.nonce, sizeof m->challenge.nonce, "the nonce");
        get_copy(r, m->challenge.mac, sizeof m->challenge.mac, "the proof");
        break;
    case WIRE_PROOF:
        get_copy(r, m->proof.mac, sizeof m->proof.mac, "the proof");
        break;
    case WIRE_JOIN:
        get_join(r, &m->join);
        break;
    case WIRE_REFER:
        m->refer.seat = (int)get_below(r, LIMIT_SEATS, "the seat");
        get_text(r, m->refer.address, sizeof m->refer.address, "the address");
        break;
    case WIRE_WAIT:
    case WIRE_REFUSE:
        get_text(r, m->wait.text, sizeof m->wait.text, "the reason");
        break;
    case WIRE_GRANT:
        m->grant.seat = (int)get_below(r, LIMIT_SEATS, "the seat");
        get_table(r, &m->grant.table);
        if (r->wrong == NULL && (size_t)m->grant.seat >= m->grant.table.n_seats)
            r->wrong = "the seat";
        break;
    case WIRE_ATTACH:
    case WIRE_ATTACHED:
        m->attach.seat = (int)get_below(r, LIMIT_SEATS, "the seat");
        m->attach.instance = get_u64(r, "the instance");
        if (r->wrong == NULL && m->attach.instance == 0)
            r->wrong = "the instance";
        blob = get_blob(r, TRANSPORT_OFFER_MAX, "the lane offer");
        m->attach.offer = blob.data;
        m->attach.n_offer = blob.size;
        break;
    case WIRE_JOINED:
        m->joined.seats = get_u64(r, "the seats");
        break;
    case WIRE_MENDED:
        m->mended.seat = (int)get_below(r, LIMIT_SEATS, "the seat");
        m->mended.instance = get_u64(r, "the instance");
        break;
    default:
        r->wrong = "the type";
        break;
    }
}

static void get_group(struct reader *r, struct wire *m)
{
    switch (m->type) {
    case WIRE_BEAT:
        get_beat(r, &m->beat);
        break;
    case WIRE_PROPOSE:
        m->propose.term = get_u64(r, "the term");
        get_table(r, &m->propose.table);
        break;
    case WIRE_ACK:
    case WIRE_COMMIT:
        m->ack.term = get_u64(r, "the term");
        m->ack.epoch = get_u32(r, "the epoch");
        break;
    case WIRE_PREPARE:
    case WIRE_REJECT:
        m->prepare.term = get_u64(r, "the term");
        break;
    case WIRE_PROMISE:
        m->promise.term = get_u64(r, "the term");
        m->promise.accepted_term = get_u64(r, "the accepted term");
        get_table(r, &m->promise.table);
        break;
    case WIRE_TOPIC:
        m->topic.topic = (enum fabric_topic)get_below(r, FABRIC_N_TOPICS, "the topic");
        m->topic.n_bytes = r->size - r->used;
        m->topic.data = get_bytes(r, m->topic.n_bytes, "the data");
        break;
    default:
        r->wrong = "the type";
        break;
    }
}

enum ferry_status wire_decode(struct wire *ret_message, const void *data, size_t n_bytes,
                              struct ferry_error *err)
{
    struct reader r = {data, 0, n_bytes, NULL};
    unsigned version = get_u8(&r, "the version");

    if (r.wrong == NULL && version != WIRE_VERSION)
        return FERRY_FAIL(err, FERRY_ERR_UNSUPPORTED,
                          "fabric: the peer speaks version %u of the group's protocol, this is %d; "
                          "run the same release on all ranks",
                          version, WIRE_VERSION);
    ret_message->type = (enum wire_type)get_u8(&r, "the type");
    if (r.wrong == NULL && ret_message->type < WIRE_BEAT)
        get_handshake(&r, ret_message);
    else if (r.wrong == NULL)
        get_group(&r, ret_message);
    if (r.wrong == NULL && r.used != r.size)
        r.wrong = "the end";
    if (r.wrong != NULL)
        return FERRY_FAIL(err, FERRY_ERR_FORMAT,
                          "fabric: malformed control message (%s, %zu bytes): %s",
                          wire_type_name(ret_message->type), n_bytes, r.wrong);
    return FERRY_OK;
}
