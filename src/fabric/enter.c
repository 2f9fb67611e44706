/* Who dials: finds the issuer, is granted a seat, makes lanes with every member, and waits for the
 * epoch that takes it in. The same again for a rank that finds itself given up. See fabric_impl.h.
 *
 * An attempt that fails on the way is begun again from the start, with another instance: to the
 * group it has never happened. */
#include "fabric/fabric_impl.h"

#include "base/error.h"

#include <stdio.h>
#include <string.h>

static void add_contact(struct entry *entry, const char *address, const char *own)
{
    if (address[0] == 0 || strcmp(address, own) == 0 || entry->n_contacts > LIMIT_SEATS)
        return;
    for (size_t i = 0; i < entry->n_contacts; i++) {
        if (strcmp(entry->contacts[i], address) == 0)
            return;
    }
    (void)snprintf(entry->contacts[entry->n_contacts++], TRANSPORT_ADDRESS_MAX, "%s", address);
}

static bool new_instance(struct fabric *f)
{
    do {
        if (auth_random(&f->entry.instance, sizeof f->entry.instance, NULL) != FERRY_OK)
            return false;
    } while (f->entry.instance == 0);
    return true;
}

void enter_start(struct fabric *f, bool probing, uint64_t now_ns)
{
    struct entry *entry = &f->entry;
    char own[TRANSPORT_ADDRESS_MAX];

    if (entry->active)
        return;
    f->ops->address(f->transport, own);
    *entry = (struct entry){.active = true, .probing = probing, .next_ns = now_ns};
    entry->former = f->group.instance;
    for (size_t s = 0; s < f->group.n_seats; s++)
        add_contact(entry, f->group.committed.seats[s].address, own);
    if (f->options.join != NULL)
        add_contact(entry, f->options.join, own);
    if (!new_instance(f))
        entry->active = false;
}

/* Drops what the attempt has made. */
static void abandon(struct fabric *f)
{
    for (struct peer *peer = f->peers; peer != NULL; peer = peer->next) {
        bool seated = peer->seat >= 0 && f->seats[peer->seat] == peer;
        if (peer->dialled && !peer->retired && !seated)
            peer->doomed = true;
    }
    f->entry.ask = NULL;
    f->entry.granted = f->entry.joined = false;
    f->entry.wanted = f->entry.attached = 0;
}

void enter_stop(struct fabric *f)
{
    abandon(f);
    f->entry.active = false;
}

static void again(struct fabric *f, uint64_t wait_ns, const char *why, uint64_t now_ns)
{
    abandon(f);
    if (why != f->entry.why)
        (void)snprintf(f->entry.why, sizeof f->entry.why, "%s", why);
    if (f->entry.referred[0] != 0)
        f->entry.referred[0] = 0; /* back to who was named first */
    else if (f->entry.n_contacts > 0)
        f->entry.contact = (f->entry.contact + 1) % f->entry.n_contacts;
    f->entry.n_waits = 0;
    f->entry.next_ns = now_ns + wait_ns;
    (void)new_instance(f);
}

/* Nothing that trying again would change, at a first entry; a rank that was a member goes on. */
static void give_up(struct fabric *f, enum ferry_status status, const char *address,
                    const char *text, uint64_t now_ns)
{
    struct ferry_error err = {0};

    if (f->entry.former == 0) {
        (void)FERRY_FAIL(&err, status, "fabric: joining by %s: %s", address, text);
        fabric_set_entered(f, status, &err);
        enter_stop(f);
        return;
    }
    fabric_refused(f, text); /* a seat that somebody else has taken, say: for the operator */
    again(f, FABRIC_REENTER_NS, text, now_ns);
}

/* ---- the handshake with each ---- */

void enter_connected(struct fabric *f, struct peer *peer, uint64_t now_ns)
{
    struct wire message = {.type = WIRE_HELLO};
    struct ferry_error err = {0};

    if (!f->entry.active)
        return;
    if (auth_random(peer->nonces[AUTH_DIALLER], WIRE_NONCE_BYTES, &err) != FERRY_OK) {
        again(f, FABRIC_REDIAL_NS, err.msg, now_ns);
        return;
    }
    memcpy(message.hello.nonce, peer->nonces[AUTH_DIALLER], WIRE_NONCE_BYTES);
    peer->phase = PEER_PROVING;
    (void)peers_send(f, peer, &message);
}

static void send_join(struct fabric *f, struct peer *peer, uint64_t now_ns)
{
    struct wire *message = f->out;
    struct wire_join *join = &message->join;

    *message = (struct wire){.type = WIRE_JOIN};
    join->n_seats = (uint32_t)f->options.n_seats;
    join->wanted = f->entry.former != 0 ? f->group.seat : f->options.seat;
    join->instance = f->entry.instance;
    join->former = f->entry.former;
    for (size_t c = 0; c < LANE_N_CHANNELS; c++)
        join->ring_bytes[c] = f->options.lanes.ring_bytes[c];
    f->ops->address(f->transport, join->address);
    join->n_terms = f->options.n_terms;
    for (size_t t = 0; t < join->n_terms; t++) {
        join->terms[t].name = (struct wire_text){f->terms[t].name, strlen(f->terms[t].name)};
        join->terms[t].value = (struct wire_text){f->terms[t].value, strlen(f->terms[t].value)};
    }
    peer->phase = PEER_ASKING;
    f->entry.next_ns = UINT64_MAX; /* until it answers */
    if (peers_send(f, peer, message) == FERRY_ERR_LIMIT)
        give_up(f, FERRY_ERR_LIMIT, peer->address, "the terms do not fit into one message", now_ns);
}

static void send_attach(struct fabric *f, struct peer *peer, uint64_t now_ns)
{
    unsigned char offer[TRANSPORT_OFFER_MAX];
    struct wire message = {.type = WIRE_ATTACH};
    struct ferry_error err = {0};
    enum ferry_status st =
        f->ops->offer(peer->conn, &f->options.lanes, offer, &message.attach.n_offer, &err);

    if (st == FERRY_ERR_NOMEM) {
        give_up(f, st, peer->address, err.msg, now_ns);
        return;
    }
    if (st != FERRY_OK) {
        again(f, FABRIC_REDIAL_NS, err.msg, now_ns);
        return;
    }
    message.attach.seat = f->entry.seat;
    message.attach.instance = f->entry.instance;
    message.attach.offer = offer;
    peer->phase = PEER_ATTACHING;
    (void)peers_send(f, peer, &message);
}

static void on_challenge(struct fabric *f, struct peer *peer, const struct wire *m, uint64_t now_ns)
{
    struct wire message = {.type = WIRE_PROOF};
    struct ferry_error err = {0};

    memcpy(peer->nonces[AUTH_LISTENER], m->challenge.nonce, WIRE_NONCE_BYTES);
    if (!auth_check(f->key, f->options.n_key, AUTH_LISTENER, peer->nonces[AUTH_DIALLER],
                    peer->nonces[AUTH_LISTENER], m->challenge.mac)) {
        give_up(f, FERRY_ERR_ARG, peer->address,
                "it does not have this rank's group key; give all ranks the same key file", now_ns);
        return;
    }
    if (auth_prove(f->key, f->options.n_key, AUTH_DIALLER, peer->nonces[AUTH_DIALLER],
                   peer->nonces[AUTH_LISTENER], message.proof.mac, &err) != FERRY_OK) {
        again(f, FABRIC_REDIAL_NS, err.msg, now_ns);
        return;
    }
    peer->phase = PEER_PROVEN;
    (void)peers_send(f, peer, &message);
    if (peer == f->entry.ask)
        send_join(f, peer, now_ns);
    else
        send_attach(f, peer, now_ns);
}

/* ---- the answer ---- */

static void on_grant(struct fabric *f, struct peer *peer, const struct wire *m, uint64_t now_ns)
{
    const struct wire_table *table = &m->grant.table;
    struct entry *entry = &f->entry;
    int issuer = table->issuer;

    if ((f->options.n_seats != 0 && table->n_seats != f->options.n_seats) || table->epoch == 0 ||
        seat_is_member(table->seats[m->grant.seat].state) ||
        !seat_is_member(table->seats[issuer].state)) {
        again(f, FABRIC_REENTER_NS, "a grant that makes no sense", now_ns);
        return;
    }
    entry->table = *table;
    entry->seat = m->grant.seat;
    entry->granted = true;
    entry->wanted = wire_table_members(table);
    entry->attached = 0;
    entry->expires_ns = now_ns + f->limits.grant_ns;
    if (f->options.n_seats == 0) /* when it joins again, others may be reading it */
        f->options.n_seats = table->n_seats;
    if (entry->former != 0)
        fabric_reset(f, now_ns); /* whatever this rank was before is over now */
    peer->seat = issuer;
    peer->instance = entry->table.seats[issuer].instance;
    peer->deadline_ns = UINT64_MAX;
    for (int s = 0; s < (int)entry->table.n_seats && entry->granted; s++) {
        if (s == issuer || (entry->wanted & seat_bit(s)) == 0)
            continue;
        struct peer *other = peers_dial(f, entry->table.seats[s].address);
        if (other == NULL) {
            again(f, FABRIC_REDIAL_NS, f->entry.why, now_ns); /* peers_dial left it there */
            return;
        }
        other->seat = s;
        other->instance = entry->table.seats[s].instance;
        other->deadline_ns = UINT64_MAX; /* the attempt has its own */
    }
    send_attach(f, peer, now_ns);
}

static void on_attached(struct fabric *f, struct peer *peer, const struct wire *m, uint64_t now_ns)
{
    struct entry *entry = &f->entry;
    struct wire message = {.type = WIRE_JOINED};
    struct ferry_error err = {0};

    if (m->attached.seat != peer->seat || m->attached.instance != peer->instance) {
        again(f, FABRIC_REDIAL_NS, "a member's seat has changed hands meanwhile", now_ns);
        return;
    }
    enum ferry_status st = peers_accept(f, peer, m, &err);
    if (st != FERRY_OK) {
        if (st == FERRY_ERR_FORMAT)
            give_up(f, FERRY_ERR_ARG, peer->address, err.msg, now_ns);
        else
            again(f, FABRIC_REDIAL_NS, err.msg, now_ns);
        return;
    }
    entry->attached |= seat_bit(peer->seat);
    if (entry->attached != entry->wanted)
        return;
    group_enter(&f->group, entry->seat, entry->instance, &entry->table, now_ns);
    entry->joined = true;
    message.joined.seats = entry->attached;
    (void)peers_send(f, entry->ask, &message);
}

static void on_wait(struct fabric *f, struct peer *peer, const struct wire *m, uint64_t now_ns)
{
    struct entry *entry = &f->entry;

    if (entry->granted || (++entry->n_waits >= FABRIC_WAITS && entry->n_contacts > 1)) {
        again(f, FABRIC_REDIAL_NS, m->wait.text, now_ns);
        return;
    }
    (void)snprintf(entry->why, sizeof entry->why, "%s", m->wait.text);
    peer->phase = PEER_PROVEN;
    entry->next_ns = now_ns + FABRIC_RETRY_NS;
}

void enter_message(struct fabric *f, struct peer *peer, const struct wire *m, uint64_t now_ns)
{
    struct entry *entry = &f->entry;
    bool asked = peer == entry->ask && peer->phase == PEER_ASKING;

    if (!entry->active)
        return;
    if (m->type == WIRE_CHALLENGE && peer->phase == PEER_PROVING) {
        on_challenge(f, peer, m, now_ns);
    } else if (m->type == WIRE_GRANT && asked && !entry->granted) {
        on_grant(f, peer, m, now_ns);
    } else if (m->type == WIRE_ATTACHED && peer->phase == PEER_ATTACHING) {
        on_attached(f, peer, m, now_ns);
    } else if (m->type == WIRE_MENDED && asked && entry->probing) {
        if (peers_mend(f, peer, m->mended.seat, m->mended.instance, now_ns))
            again(f, FABRIC_REDIAL_NS, "a member's connection is mended", now_ns);
        else
            again(f, FABRIC_REENTER_NS, "a member's word about its seat makes no sense", now_ns);
    } else if (m->type == WIRE_WAIT && (asked || entry->joined)) {
        on_wait(f, peer, m, now_ns);
    } else if (m->type == WIRE_REFER && asked) {
        char address[TRANSPORT_ADDRESS_MAX];
        memcpy(address, m->refer.address, sizeof address);
        again(f, 0, "the issuer is somebody else", now_ns);
        memcpy(entry->referred, address, sizeof address);
    } else if (m->type == WIRE_REFUSE && peer->phase != PEER_ATTACHING) {
        give_up(f, FERRY_ERR_ARG, peer->address, m->refuse.text, now_ns);
    } else if (m->type == WIRE_REFUSE) {
        again(f, FABRIC_REDIAL_NS, m->refuse.text, now_ns);
    } else {
        again(f, FABRIC_REENTER_NS, "a message that does not belong there", now_ns);
    }
}

void enter_lost(struct fabric *f, struct peer *peer, const char *reason, uint64_t now_ns)
{
    char why[WIRE_TEXT_MAX];

    if (!f->entry.active || (!f->entry.granted && peer != f->entry.ask))
        return;
    (void)snprintf(why, sizeof why, "%.120s while %.60s: %.180s", peer->address,
                   peer_phase_text(peer->phase), reason);
    again(f, FABRIC_REDIAL_NS, why, now_ns);
}

/* ---- time ---- */

static void dial(struct fabric *f, uint64_t now_ns)
{
    struct entry *entry = &f->entry;
    const char *address =
        entry->referred[0] != 0 ? entry->referred : entry->contacts[entry->contact];

    if (entry->n_contacts == 0 && entry->referred[0] == 0) {
        entry->next_ns = UINT64_MAX; /* nobody to ask: only others can come to this rank */
        return;
    }
    entry->ask = peers_dial(f, address);
    if (entry->ask == NULL) {
        again(f, FABRIC_REDIAL_NS, entry->why, now_ns);
        return;
    }
    entry->ask->deadline_ns = UINT64_MAX;
    entry->next_ns = UINT64_MAX;
    entry->expires_ns = now_ns + f->limits.grant_ns;
}

void enter_tick(struct fabric *f, uint64_t now_ns)
{
    struct entry *entry = &f->entry;

    if (!entry->active)
        return;
    if (entry->joined && group_is_member(&f->group)) {
        entry->active = false;
        return;
    }
    if (entry->probing && !entry->granted && group_issuer(&f->group, now_ns) >= 0) {
        enter_stop(f); /* it was only a silence */
        return;
    }
    if (entry->ask == NULL && now_ns >= entry->next_ns)
        dial(f, now_ns);
    else if (entry->ask != NULL && entry->ask->phase == PEER_PROVEN && now_ns >= entry->next_ns) {
        entry->expires_ns = now_ns + f->limits.grant_ns;
        send_join(f, entry->ask, now_ns);
    } else if (entry->ask != NULL && now_ns >= entry->expires_ns) {
        char why[WIRE_TEXT_MAX];
        enter_describe(f, why, sizeof why);
        again(f, FABRIC_REDIAL_NS, why, now_ns);
    }
}

uint64_t enter_next_ns(const struct fabric *f)
{
    const struct entry *entry = &f->entry;

    if (!entry->active)
        return UINT64_MAX;
    if (entry->ask == NULL || entry->next_ns < entry->expires_ns)
        return entry->next_ns;
    return entry->expires_ns;
}

void enter_describe(const struct fabric *f, char *text, size_t size)
{
    const struct entry *entry = &f->entry;
    size_t used = 0;

    text[0] = 0;
    for (const struct peer *peer = f->peers; peer != NULL && used + 1 < size; peer = peer->next) {
        char who[24] = "asked for a seat";
        if (!peer->dialled || peer->doomed || peer->retired)
            continue;
        if (peer->seat >= 0)
            (void)snprintf(who, sizeof who, "seat %d", peer->seat);
        int n = snprintf(text + used, size - used, "%s%.60s (%s): %s", used > 0 ? "; " : "",
                         peer->address, who, peer_phase_text(peer->phase));
        used += n > 0 ? (size_t)n : 0;
    }
    if (entry->joined && used + 1 < size) {
        int n = snprintf(text + used, size - used, "; all lanes exist, waiting for the epoch");
        used += n > 0 ? (size_t)n : 0;
    }
    if (entry->why[0] != 0 && used + 1 < size)
        (void)snprintf(text + used, size - used, "%slast: %.200s", used > 0 ? "; " : "",
                       entry->why);
}
