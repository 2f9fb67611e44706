/* Connections to members: from the first byte to the close. See fabric_impl.h.
 *
 * A connection serves one instance of a process. It is provisional until an epoch names that
 * instance, then the seat's, then retired; its lanes are handed to the transport's quarantine only
 * when the engine thread has let go of them, for which nobody waits. */
#include "fabric/fabric_impl.h"

#include "base/alloc.h"
#include "base/error.h"

#include <stdio.h>
#include <string.h>

const char *peer_phase_text(enum peer_phase phase)
{
    static const char *const TEXTS[] = {
#define PEER_PHASE_TEXT(value, text) text,
        PEER_PHASE_LIST(PEER_PHASE_TEXT)
#undef PEER_PHASE_TEXT
    };
    return TEXTS[phase];
}

struct peer *peers_add(struct fabric *f, struct transport_conn *conn, bool dialled)
{
    struct peer *peer = mem_zero(sizeof *peer);

    if (peer == NULL)
        return NULL;
    peer->conn = conn;
    peer->dialled = dialled;
    peer->phase = dialled ? PEER_DIALLING : PEER_GREETING;
    peer->seat = -1;
    peer->next = f->peers;
    f->peers = peer;
    f->n_peers++;
    return peer;
}

struct peer *peers_dial(struct fabric *f, const char *address)
{
    struct transport_conn *conn;
    struct ferry_error err = {0};

    if (f->ops->connect(f->transport, address, &conn, &err) != FERRY_OK) {
        (void)snprintf(f->entry.why, sizeof f->entry.why, "%.380s", err.msg);
        return NULL;
    }
    struct peer *peer = peers_add(f, conn, true);
    if (peer == NULL) {
        (void)snprintf(f->entry.why, sizeof f->entry.why, "no memory for a connection");
        f->ops->close(conn, false);
        return NULL;
    }
    (void)snprintf(peer->address, sizeof peer->address, "%s", address);
    return peer;
}

struct peer *peers_find(struct fabric *f, const struct transport_conn *conn)
{
    for (struct peer *peer = f->peers; peer != NULL; peer = peer->next) {
        if (peer->conn == conn)
            return peer;
    }
    return NULL;
}

struct peer *peers_of(struct fabric *f, int seat, uint64_t instance)
{
    for (struct peer *peer = f->peers; peer != NULL; peer = peer->next) {
        if (peer->phase == PEER_ATTACHED && peer->seat == seat && peer->instance == instance &&
            !peer->retired && !peer->doomed)
            return peer;
    }
    return NULL;
}

enum ferry_status peers_send(struct fabric *f, struct peer *peer, const struct wire *message)
{
    size_t n_bytes;

    if (peer->lost || peer->doomed)
        return FERRY_ERR_PEER;
    enum ferry_status st = wire_encode(message, f->buffer, &n_bytes);
    return st == FERRY_OK ? f->ops->send(peer->conn, f->buffer, n_bytes) : st;
}

/* ---- lanes ---- */

enum ferry_status peers_accept(struct fabric *f, struct peer *peer, const struct wire *message,
                               struct ferry_error *err)
{
    struct road *road;
    enum ferry_status st =
        f->ops->accept(peer->conn, message->attach.offer, message->attach.n_offer, err);

    if (st != FERRY_OK)
        return st;
    road = mem_zero(sizeof *road);
    if (road == NULL)
        return FERRY_FAIL(err, FERRY_ERR_NOMEM, "fabric: no memory for the lanes to %s",
                          peer->address);
    for (int channel = 0; channel < LANE_N_CHANNELS; channel++) {
        for (int side = 0; side < LANE_N_SIDES; side++)
            road->lanes[channel][side] =
                f->ops->lane(peer->conn, (enum lane_channel)channel, (enum lane_side)side);
    }
    road->link = f->ops->link(peer->conn);
    road->seat = peer->seat;
    peer->road = road;
    peer->phase = PEER_ATTACHED;
    return FERRY_OK;
}

/* Gives the engine thread other lanes to a seat, or none; it adopts them when it likes to. */
static void offer_road(struct fabric *f, int seat, struct road *road)
{
    (void)pthread_mutex_lock(&f->lock);
    f->offered[seat] = road;
    (void)atomic_fetch_add_explicit(&f->road_versions[seat], 1, memory_order_release);
    (void)pthread_mutex_unlock(&f->lock);
    atomic_store_explicit(&f->links[seat], road != NULL ? road->link : LINK_UNKNOWN,
                          memory_order_relaxed);
    f->ops->ring(f->transport);
}

static bool road_is_free(struct fabric *f, struct road *road)
{
    bool is_free;

    (void)pthread_mutex_lock(&f->lock);
    is_free = f->offered[road->seat] != road &&
              (!road->adopted || atomic_load_explicit(&road->let_go, memory_order_acquire));
    (void)pthread_mutex_unlock(&f->lock);
    return is_free;
}

size_t peers_count_graves(const struct fabric *f, int seat)
{
    size_t n = 0;

    for (const struct peer *peer = f->peers; peer != NULL; peer = peer->next)
        n += peer->retired && peer->seat == seat;
    return n;
}

/* ---- the course of a connection ---- */

static void take_seat(struct fabric *f, struct peer *peer, uint64_t now_ns)
{
    const struct wire_seat *seat = &f->group.committed.seats[peer->seat];

    f->seats[peer->seat] = peer;
    peer->deadline_ns = UINT64_MAX;
    (void)snprintf(peer->address, sizeof peer->address, "%s", seat->address);
    group_connected(&f->group, peer->seat, peer->instance, now_ns);
    peer->road->incarnation = seat->incarnation;
    if (peer->lost) {
        group_lost(&f->group, peer->seat, peer->instance, now_ns);
        return;
    }
    offer_road(f, peer->seat, peer->road);
}

static void lose_road(struct fabric *f, struct peer *peer)
{
    if (peer->road == NULL || atomic_load_explicit(&peer->road->lost, memory_order_relaxed))
        return;
    atomic_store_explicit(&peer->road->lost, true, memory_order_relaxed);
    if (f->seats[peer->seat] == peer)
        offer_road(f, peer->seat, NULL);
}

/* Its last words may still be on the way to the peer: closed a little later. */
static void retire(struct fabric *f, struct peer *peer, uint64_t now_ns)
{
    lose_road(f, peer);
    if (peer->seat >= 0 && f->seats[peer->seat] == peer) {
        f->seats[peer->seat] = NULL;
        topic_drop(f, peer->seat);
    }
    peer->retired = true;
    peer->deadline_ns = now_ns + 2 * f->limits.heartbeat_ns;
}

void peers_sync(struct fabric *f, uint64_t now_ns)
{
    const struct wire_table *table = &f->group.committed;
    uint64_t members = group_members(&f->group);

    for (int s = 0; s < (int)f->group.n_seats; s++) {
        uint64_t instance = table->seats[s].instance;
        bool member = (members & seat_bit(s)) != 0 && s != f->group.seat;

        if (f->seats[s] != NULL && (!member || f->seats[s]->instance != instance))
            retire(f, f->seats[s], now_ns);
        if (!member || f->seats[s] != NULL)
            continue;
        struct peer *peer = peers_of(f, s, instance);
        if (peer != NULL)
            take_seat(f, peer, now_ns);
        else
            group_lost(&f->group, s, instance, now_ns);
    }
    f->synced = table->epoch;
}

bool peers_mend(struct fabric *f, struct peer *peer, int seat, uint64_t instance, uint64_t now_ns)
{
    const struct wire_seat *held = &f->group.committed.seats[seat];

    if (seat == f->group.seat || (size_t)seat >= f->group.n_seats || held->instance != instance ||
        !seat_is_member(held->state) || !group_is_member(&f->group) ||
        group_issuer(&f->group, now_ns) >= 0)
        return false;
    if (f->seats[seat] != NULL && !f->seats[seat]->lost)
        return false; /* nothing to mend */
    if (f->seats[seat] != NULL)
        retire(f, f->seats[seat], now_ns);
    peer->seat = seat;
    peer->instance = instance;
    peer->phase = PEER_ATTACHED;
    peer->deadline_ns = UINT64_MAX;
    f->seats[seat] = peer;
    group_mended(&f->group, seat, instance, now_ns);
    return true;
}

void peers_retire_all(struct fabric *f, uint64_t now_ns)
{
    for (struct peer *peer = f->peers; peer != NULL; peer = peer->next) {
        if (peer->phase == PEER_ATTACHED && !peer->retired && peer != f->entry.ask)
            retire(f, peer, now_ns);
        else if (!peer->retired && peer != f->entry.ask)
            peer->doomed = true;
    }
}

void peers_lost(struct fabric *f, struct peer *peer, uint64_t now_ns)
{
    peer->lost = true;
    if (peer->retired) { /* what it was has another connection now, or is over */
        group_give_up(&f->group, peer->asked_instance);
        return;
    }
    if (peer->seat >= 0 && f->seats[peer->seat] == peer) {
        lose_road(f, peer);
        group_lost(&f->group, peer->seat, peer->instance, now_ns);
        return; /* kept: its end may still be proven */
    }
    group_give_up(&f->group, peer->asked_instance);
    if (peer->seat >= 0)
        group_lost(&f->group, peer->seat, peer->instance, now_ns);
    peer->doomed = true;
}

void peers_look(struct fabric *f, uint64_t now_ns)
{
    for (int s = 0; s < (int)f->group.n_seats; s++) {
        struct peer *peer = f->seats[s];

        if (peer == NULL)
            continue;
        if (!peer->lost && peer->road != NULL &&
            atomic_load_explicit(&peer->road->broken, memory_order_relaxed))
            peers_lost(f, peer, now_ns);
        if (!peer->lost || peer->gone || f->ops->gone == NULL)
            continue;
        peer->gone = f->ops->gone(peer->conn);
        if (peer->gone)
            group_gone(&f->group, s, peer->instance, now_ns);
    }
}

static bool may_close(struct fabric *f, struct peer *peer, uint64_t now_ns)
{
    if (peer->road != NULL && peer->seat >= 0 && !road_is_free(f, peer->road))
        return false;
    if (peer->doomed)
        return true;
    if (peer->retired)
        return peer->lost || now_ns >= peer->deadline_ns;
    return now_ns >= peer->deadline_ns;
}

static void free_peer(struct fabric *f, struct peer **at, bool keep_lanes)
{
    struct peer *peer = *at;

    *at = peer->next;
    f->n_peers--;
    if (f->entry.ask == peer)
        f->entry.ask = NULL;
    if (peer->conn != NULL)
        f->ops->close(peer->conn, keep_lanes);
    mem_free(peer->road);
    mem_free(peer);
}

void peers_reap(struct fabric *f, uint64_t now_ns)
{
    struct peer **at = &f->peers;

    while (*at != NULL) {
        struct peer *peer = *at;
        if (!may_close(f, peer, now_ns)) {
            at = &peer->next;
            continue;
        }
        if (!peer->doomed && !peer->retired) { /* a handshake that took too long */
            group_give_up(&f->group, peer->asked_instance);
            stats_rejected(f);
        }
        free_peer(f, at, true);
    }
}

void peers_free(struct fabric *f)
{
    while (f->peers != NULL)
        free_peer(f, &f->peers, false);
}
