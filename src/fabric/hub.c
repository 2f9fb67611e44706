/* The hub itself, faults, and what is on the way to an end of a connection. See hub.h. */
#include "fabric/hub.h"

#include "base/alloc.h"
#include "base/assert.h"
#include "base/error.h"
#include "fabric/sim.h"

#include <stdio.h>
#include <string.h>

enum ferry_status fabric_hub_create(struct fabric_hub **ret_hub,
                                    const struct fabric_hub_options *options,
                                    struct ferry_error *err)
{
    struct fabric_hub *hub;

    if (options->sim && options->n_ranks == 0)
        return FERRY_FAIL(err, FERRY_ERR_ARG,
                          "hub: 0 threads take part in the virtual clock; count them in n_ranks");
    if (!(options->bytes_per_ns >= 0.0)) /* NaN, too */
        return FERRY_FAIL(err, FERRY_ERR_ARG, "hub: %g bytes per ns; give 0 for no bound",
                          options->bytes_per_ns);
    hub = mem_zero(sizeof *hub);
    if (hub == NULL)
        return FERRY_FAIL(err, FERRY_ERR_NOMEM, "hub: no memory for %zu bytes", sizeof *hub);
    hub->options = *options;
    if (pthread_mutex_init(&hub->lock, NULL) != 0) {
        mem_free(hub);
        return FERRY_FAIL(err, FERRY_ERR_NOMEM, "hub: cannot make a lock");
    }
    if (options->sim) {
        enum ferry_status st = sim_create(hub, err);
        if (st != FERRY_OK) {
            fabric_hub_destroy(hub);
            return st;
        }
    }
    *ret_hub = hub;
    return FERRY_OK;
}

void fabric_hub_destroy(struct fabric_hub *hub)
{
    if (hub == NULL)
        return;
    FERRY_ASSERT(hub->ranks == NULL);
    sim_destroy(hub);
    (void)pthread_mutex_destroy(&hub->lock);
    mem_free(hub);
}

uint64_t hub_arrived(const struct fabric_hub *hub)
{
    return hub->sim != NULL ? sim_now(hub->sim) : hub->sequence;
}

/* ---- on the way to an end ---- */

void hub_push(struct transport_conn *to, struct sim_wire *wire, struct hub_item *item)
{
    struct fabric_hub *hub = to->owner->hub;

    item->next = NULL;
    item->due = hub->sim != NULL ? sim_due(hub, wire, item->n_bytes) : ++hub->sequence;
    if (to->last != NULL && item->due < to->last->due) /* healed after a cut */
        item->due = to->last->due;
    if (to->last != NULL)
        to->last->next = item;
    else
        to->first = item;
    to->last = item;
    to->queued_bytes += item->n_bytes + sizeof *item;
    to->known_bytes += item->n_bytes + sizeof *item;
    if (hub->sim == NULL && !to->cut)
        lane_bell_ring(&to->owner->poll_bell);
}

/* Drops what has not arrived by `arrived` (0: everything). */
static void drop_items(struct transport_conn *conn, uint64_t arrived)
{
    struct hub_item *item = conn->first, *kept = NULL;

    while (item != NULL && item->due <= arrived) {
        kept = item;
        item = item->next;
    }
    if (kept != NULL)
        kept->next = NULL;
    else
        conn->first = NULL;
    conn->last = kept;
    while (item != NULL) {
        struct hub_item *next = item->next;
        conn->queued_bytes -= item->n_bytes + sizeof *item;
        if (item->kind == HUB_CONTROL)
            mem_free(item);
        item = next;
    }
}

void hub_conn_free(struct transport_conn *conn)
{
    struct transport_conn **at = &conn->owner->conns;

    while (*at != conn)
        at = &(*at)->next;
    *at = conn->next;
    drop_items(conn, 0);
    mem_free(conn);
}

void hub_sever(struct transport_conn *conn, const char *reason)
{
    struct transport_conn *peer = conn->peer;

    hub_rings_sever(conn);
    drop_items(conn, 0);
    conn->peer = NULL;
    if (peer == NULL)
        return;
    hub_rings_sever(peer);
    peer->peer = NULL;
    if (!peer->known) { /* its owner has never heard of it */
        hub_conn_free(peer);
        return;
    }
    /* As a reset connection: what has not arrived yet is lost. With loop nothing that was not
     * looked at has: a rank that relies on last words is found out. */
    drop_items(peer, conn->owner->hub->sim != NULL ? hub_arrived(conn->owner->hub) : 0);
    (void)snprintf(peer->reason, sizeof peer->reason, "%s %s", conn->owner->name, reason);
    peer->loss.kind = HUB_LOST;
    hub_push(peer, &conn->control_wire, &peer->loss);
}

/* ---- faults ---- */

bool hub_is_cut(const struct fabric_hub *hub, const char *a, const char *b)
{
    for (size_t i = 0; i < hub->n_cuts; i++) {
        const struct hub_cut *cut = &hub->cuts[i];
        if ((strcmp(cut->a, a) == 0 && strcmp(cut->b, b) == 0) ||
            (strcmp(cut->a, b) == 0 && strcmp(cut->b, a) == 0))
            return true;
    }
    return false;
}

void fabric_hub_kill(struct fabric_hub *hub, const char *name)
{
    (void)pthread_mutex_lock(&hub->lock);
    for (struct transport *rank = hub->ranks; rank != NULL; rank = rank->next) {
        if (rank->dead || strcmp(rank->name, name) != 0)
            continue;
        rank->dead = true;
        for (struct transport_conn *conn = rank->conns; conn != NULL; conn = conn->next)
            hub_sever(conn, "has died");
        hub_quarantine_forget(hub, rank->serial);
        if (hub->sim != NULL)
            sim_kill(rank);
        lane_bell_ring(&rank->bell);
        lane_bell_ring(&rank->poll_bell);
    }
    (void)pthread_mutex_unlock(&hub->lock);
}

/* Lets through what a cut has held back: now, or with sim as if it were sent again. */
static void heal(struct transport_conn *conn)
{
    struct fabric_hub *hub = conn->owner->hub;
    uint64_t due = hub->sim != NULL ? sim_due(hub, NULL, 0) : 0;

    for (struct hub_item *item = conn->first; item != NULL; item = item->next) {
        if (item->due < due)
            item->due = due;
    }
    for (int channel = 0; channel < LANE_N_CHANNELS; channel++) {
        struct hub_ring *ring = conn->rings[channel][LANE_RECEIVE];
        if (ring != NULL) {
            hub_ring_delay(ring, due);
            hub_ring_land(ring);
        }
    }
    lane_bell_ring(&conn->owner->poll_bell);
}

static void record_cut(struct fabric_hub *hub, const char *a, const char *b, bool cut)
{
    size_t n_kept = 0;

    for (size_t i = 0; i < hub->n_cuts; i++) {
        struct hub_cut *old = &hub->cuts[i];
        if ((strcmp(old->a, a) == 0 && strcmp(old->b, b) == 0) ||
            (strcmp(old->a, b) == 0 && strcmp(old->b, a) == 0))
            continue;
        hub->cuts[n_kept++] = *old;
    }
    hub->n_cuts = n_kept;
    if (!cut)
        return;
    FERRY_ASSERT(hub->n_cuts < HUB_CUTS);
    struct hub_cut *added = &hub->cuts[hub->n_cuts++];
    (void)snprintf(added->a, sizeof added->a, "%s", a);
    (void)snprintf(added->b, sizeof added->b, "%s", b);
}

void fabric_hub_cut(struct fabric_hub *hub, const char *a, const char *b, bool cut)
{
    (void)pthread_mutex_lock(&hub->lock);
    record_cut(hub, a, b, cut);
    for (struct transport *rank = hub->ranks; rank != NULL; rank = rank->next) {
        for (struct transport_conn *conn = rank->conns; conn != NULL; conn = conn->next) {
            bool now = hub_is_cut(hub, rank->name, conn->peer_name);
            if (now == conn->cut)
                continue;
            conn->cut = now;
            if (!now)
                heal(conn);
        }
    }
    if (hub->sim != NULL)
        sim_advance(hub);
    (void)pthread_mutex_unlock(&hub->lock);
}

void fabric_hub_join(struct fabric_hub *hub)
{
    (void)pthread_mutex_lock(&hub->lock);
    if (hub->sim != NULL)
        sim_join(hub);
    (void)pthread_mutex_unlock(&hub->lock);
}

void fabric_hub_leave(struct fabric_hub *hub)
{
    (void)pthread_mutex_lock(&hub->lock);
    if (hub->sim != NULL)
        sim_leave(hub);
    (void)pthread_mutex_unlock(&hub->lock);
}
