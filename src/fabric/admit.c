/* Who was dialled: proves and checks the key, compares terms, passes questions for seats to the
 * group, and makes lanes with who was granted one. See fabric_impl.h.
 *
 * Nothing but a nonce and a proof leaves this rank before the other side has proven the key. */
#include "fabric/fabric_impl.h"

#include "base/error.h"
#include "base/log.h"

#include <stdio.h>
#include <string.h>

/* Ends a handshake; text: for the peer, or NULL. */
static void refuse(struct fabric *f, struct peer *peer, const char *text, const char *own)
{
    struct wire message = {.type = WIRE_REFUSE};

    stats_rejected(f);
    group_give_up(&f->group, peer->asked_instance);
    fabric_refused(f, own); /* known here before it is known there */
    if (text == NULL) {
        peer->doomed = true;
        return;
    }
    (void)snprintf(message.refuse.text, sizeof message.refuse.text, "%s", text);
    (void)peers_send(f, peer, &message);
    peer->retired = true; /* closed a little later, so that this gets out */
    peer->deadline_ns = f->ops->now_ns(f->transport) + 2 * f->limits.heartbeat_ns;
}

static void on_hello(struct fabric *f, struct peer *peer, const struct wire *m)
{
    struct wire reply = {.type = WIRE_CHALLENGE};
    struct ferry_error err = {0};

    memcpy(peer->nonces[AUTH_DIALLER], m->hello.nonce, WIRE_NONCE_BYTES);
    if (auth_random(peer->nonces[AUTH_LISTENER], WIRE_NONCE_BYTES, &err) != FERRY_OK ||
        auth_prove(f->key, f->options.n_key, AUTH_LISTENER, peer->nonces[AUTH_DIALLER],
                   peer->nonces[AUTH_LISTENER], reply.challenge.mac, &err) != FERRY_OK) {
        refuse(f, peer, NULL, err.msg);
        return;
    }
    memcpy(reply.challenge.nonce, peer->nonces[AUTH_LISTENER], WIRE_NONCE_BYTES);
    peer->phase = PEER_PROVING;
    (void)peers_send(f, peer, &reply);
}

static void on_proof(struct fabric *f, struct peer *peer, const struct wire *m)
{
    if (!auth_check(f->key, f->options.n_key, AUTH_DIALLER, peer->nonces[AUTH_DIALLER],
                    peer->nonces[AUTH_LISTENER], m->proof.mac)) {
        refuse(f, peer, NULL, "a connection without the group's key was closed");
        return;
    }
    peer->phase = PEER_PROVEN;
}

/* ---- terms ---- */

static void mismatch(const struct fabric *f, char text[WIRE_TEXT_MAX], const char *name,
                     const char *own, const char *theirs, int joiner)
{
    char who[32];

    if (joiner >= 0)
        (void)snprintf(who, sizeof who, "seat %d", joiner);
    else
        (void)snprintf(who, sizeof who, "the joiner");
    (void)snprintf(text, WIRE_TEXT_MAX, "%.60s differs: seat %d has '%.120s', %s has '%.120s'",
                   name, f->group.seat, own, who, theirs);
}

static const struct fabric_term *find_term(const struct fabric *f, struct wire_text name)
{
    for (size_t t = 0; t < f->options.n_terms; t++) {
        if (strlen(f->terms[t].name) == name.size &&
            memcmp(f->terms[t].name, name.data, name.size) == 0)
            return &f->terms[t];
    }
    return NULL;
}

static void copy_text(char *ret, size_t size, struct wire_text text)
{
    (void)snprintf(ret, size, "%.*s", (int)text.size, text.data);
}

static bool compare_terms(const struct fabric *f, const struct wire_join *join, int joiner,
                          char text[WIRE_TEXT_MAX])
{
    bool seen[LIMIT_TERMS] = {false};
    char name[LIMIT_TERM_BYTES + 1], value[LIMIT_TERM_BYTES + 1];

    for (size_t t = 0; t < join->n_terms; t++) {
        const struct fabric_term *own = find_term(f, join->terms[t].name);

        copy_text(name, sizeof name, join->terms[t].name);
        copy_text(value, sizeof value, join->terms[t].value);
        if (own == NULL || strcmp(own->value, value) != 0) {
            mismatch(f, text, name, own != NULL ? own->value : "(nothing)", value, joiner);
            return true;
        }
        seen[own - f->terms] = true;
    }
    for (size_t t = 0; t < f->options.n_terms; t++) {
        if (!seen[t]) {
            mismatch(f, text, f->terms[t].name, f->terms[t].value, "(nothing)", joiner);
            return true;
        }
    }
    return false;
}

bool admit_compare(const struct fabric *f, const struct wire_join *join, int joiner,
                   char text[WIRE_TEXT_MAX])
{
    char own[32], theirs[32];

    if (join->n_seats != 0 && join->n_seats != f->group.n_seats) {
        (void)snprintf(own, sizeof own, "%zu", f->group.n_seats);
        (void)snprintf(theirs, sizeof theirs, "%u", join->n_seats);
        mismatch(f, text, "number of seats", own, theirs, joiner);
        return true;
    }
    /* Before the lanes: whoever starts ranks knows the terms by name, sizes follow from them. */
    if (compare_terms(f, join, joiner, text))
        return true;
    for (size_t c = 0; c < LANE_N_CHANNELS; c++) {
        if (join->ring_bytes[c] == f->options.lanes.ring_bytes[c])
            continue;
        (void)snprintf(own, sizeof own, "%zu", f->options.lanes.ring_bytes[c]);
        (void)snprintf(theirs, sizeof theirs, "%llu", (unsigned long long)join->ring_bytes[c]);
        mismatch(f, text, c == LANE_REQUEST ? "request lane bytes" : "reply lane bytes", own,
                 theirs, joiner);
        return true;
    }
    return false;
}

/* ---- seats ---- */

static void grant(struct fabric *f, struct peer *peer, int seat)
{
    struct wire *message = f->out;

    *message = (struct wire){.type = WIRE_GRANT};
    message->grant.seat = seat;
    message->grant.table = f->group.committed;
    peer->deadline_ns = f->ops->now_ns(f->transport) + f->limits.grant_ns;
    (void)peers_send(f, peer, message);
}

/* A member whose connections all broke asks whether there is a group, and so does this rank. The
 * higher seat dials, so that two do not mend the same road twice. */
static bool mend(struct fabric *f, struct peer *peer, const struct wire_join *join, uint64_t now_ns)
{
    struct wire reply = {.type = WIRE_MENDED};

    for (int s = f->group.seat + 1; join->former != 0 && s < (int)f->group.n_seats; s++) {
        if (f->group.committed.seats[s].instance != join->former ||
            !peers_mend(f, peer, s, join->former, now_ns))
            continue;
        reply.mended.seat = f->group.seat;
        reply.mended.instance = f->group.instance;
        (void)peers_send(f, peer, &reply);
        return true;
    }
    return false;
}

static void on_join(struct fabric *f, struct peer *peer, const struct wire_join *join,
                    uint64_t now_ns)
{
    char text[WIRE_TEXT_MAX];
    struct wire reply = {.type = WIRE_WAIT};
    int seat = -1;

    if (admit_compare(f, join, join->wanted, text)) {
        refuse(f, peer, text, text);
        return;
    }
    (void)snprintf(peer->address, sizeof peer->address, "%s", join->address);
    if (mend(f, peer, join, now_ns))
        return;
    peer->asked_instance = join->instance;
    peer->deadline_ns = now_ns + f->limits.grant_ns; /* it may ask for as long as it likes */
    switch (group_ask(&f->group, join, now_ns, &seat, reply.wait.text)) {
    case GROUP_GRANTED:
        grant(f, peer, seat);
        return;
    case GROUP_REFER:
        reply.type = WIRE_REFER;
        memcpy(text, f->group.committed.seats[seat].address, TRANSPORT_ADDRESS_MAX);
        reply.refer.seat = seat;
        memcpy(reply.refer.address, text, TRANSPORT_ADDRESS_MAX);
        break;
    case GROUP_REFUSED:
        memcpy(text, reply.wait.text, sizeof text);
        refuse(f, peer, text, text);
        return;
    case GROUP_WAIT:
        break;
    }
    (void)peers_send(f, peer, &reply);
}

static enum ferry_status make_lanes(struct fabric *f, struct peer *peer, const struct wire *m,
                                    struct ferry_error *err)
{
    unsigned char offer[TRANSPORT_OFFER_MAX];
    struct wire reply = {.type = WIRE_ATTACHED};
    enum ferry_status st;

    peer->seat = m->attach.seat;
    peer->instance = m->attach.instance;
    st = f->ops->offer(peer->conn, &f->options.lanes, offer, &reply.attached.n_offer, err);
    if (st == FERRY_OK)
        st = peers_accept(f, peer, m, err);
    if (st != FERRY_OK)
        return st;
    reply.attached.seat = f->group.seat;
    reply.attached.instance = f->group.instance;
    reply.attached.offer = offer;
    st = peers_send(f, peer, &reply);
    if (st != FERRY_OK)
        return FERRY_FAIL(err, FERRY_ERR_PEER, "fabric: cannot send lanes to %s", peer->address);
    return FERRY_OK;
}

/* A rank that was granted a seat wants lanes. Whether it really was is decided by the epoch that
 * names its instance: until then nothing uses them. */
static void on_attach(struct fabric *f, struct peer *peer, const struct wire *m, uint64_t now_ns)
{
    int seat = m->attach.seat;
    struct ferry_error err = {0};
    enum ferry_status st;

    if (seat == f->group.seat || (size_t)seat >= f->group.n_seats || !group_is_member(&f->group)) {
        refuse(f, peer, "the seat is not the joiner's to take", "lanes for a wrong seat");
        return;
    }
    if (peers_count_graves(f, seat) >= FABRIC_GRAVES) {
        refuse(f, peer, "the engine still holds lanes of the seat's former holders",
               "too many former lanes of a seat are in use");
        return;
    }
    for (struct peer *other = f->peers; other != NULL; other = other->next) {
        if (other != peer && other->seat == seat && !other->retired && f->seats[seat] != other)
            other->doomed = true; /* an attempt that was given up */
    }
    st = make_lanes(f, peer, m, &err);
    if (st != FERRY_OK) {
        refuse(f, peer, err.msg, err.msg);
        return;
    }
    peer->deadline_ns = now_ns + 2 * f->limits.grant_ns;
    group_connected(&f->group, seat, peer->instance, now_ns);
}

static void on_joined(struct fabric *f, struct peer *peer, const struct wire *m, uint64_t now_ns)
{
    struct wire reply = {.type = WIRE_WAIT};

    if (group_joined(&f->group, peer->asked_instance, m->joined.seats, peer->address, now_ns))
        return;
    (void)snprintf(reply.wait.text, sizeof reply.wait.text, "the members have changed meanwhile");
    (void)peers_send(f, peer, &reply);
}

void admit_message(struct fabric *f, struct peer *peer, const struct wire *m, uint64_t now_ns)
{
    if (m->type == WIRE_HELLO && peer->phase == PEER_GREETING)
        on_hello(f, peer, m);
    else if (m->type == WIRE_PROOF && peer->phase == PEER_PROVING)
        on_proof(f, peer, m);
    else if (m->type == WIRE_JOIN && peer->phase == PEER_PROVEN)
        on_join(f, peer, &m->join, now_ns);
    else if (m->type == WIRE_ATTACH && peer->phase == PEER_PROVEN)
        on_attach(f, peer, m, now_ns);
    else if (m->type == WIRE_JOINED && peer->phase == PEER_ATTACHED)
        on_joined(f, peer, m, now_ns);
    else
        refuse(f, peer, NULL, "a message that does not belong to a handshake was refused");
}
