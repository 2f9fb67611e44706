/* Lanes of the transport `ucx`: offers, the choice of the road, and what becomes of the memory.
 *
 * Why here: inside a host the sender stores into the receiver's ring, which it has mapped;
 * otherwise both sides have a ring of their own and ranges travel by UCX (ucx_ship.c). It must not
 * know what is in a ring. */
#include "base/alloc.h"
#include "base/error.h"
#include "base/size.h"
#include "fabric/ucx_impl.h"

#include <string.h>

static const uint64_t OFFER_MAGIC = 0x3178637566666f66u;

/* What ucx_offer writes, as bytes. */
struct offer {
    uint64_t magic;
    uint64_t ring_bytes[LANE_N_CHANNELS];
    struct ucx_key rings, bell;           /* inside a host */
    uint64_t n_worker;                    /* 0: inside a host */
    unsigned char worker[UCX_WORKER_MAX]; /* UCX's address */
};
_Static_assert(sizeof(struct offer) <= TRANSPORT_OFFER_MAX, "an offer fits");

/* ---- offer ---- */

static struct lane_shared *lane_in(struct ucx_lanes *lanes, void *data, size_t channel)
{
    return (struct lane_shared *)(void *)((unsigned char *)data + lanes->at[channel]);
}

static enum ferry_status plan(struct ucx_lanes *lanes, const struct transport_lanes *wanted,
                              const char *name, struct ferry_error *err)
{
    size_t n_bytes = 0;

    for (size_t i = 0; i < LANE_N_CHANNELS; i++) {
        size_t ring_bytes = wanted->ring_bytes[i];
        if (ring_bytes != lane_ring_bytes(ring_bytes))
            return FERRY_FAIL(err, FERRY_ERR_ARG,
                              "lanes to %s: a ring of %zu bytes; round it by lane_ring_bytes", name,
                              ring_bytes);
        lanes->ring_bytes[i] = ring_bytes;
        lanes->at[i] = n_bytes;
        if (!add_size(n_bytes, lane_shared_bytes(ring_bytes), &n_bytes))
            return FERRY_FAIL(err, FERRY_ERR_NOMEM, "lanes to %s: too large", name);
    }
    lanes->n_bytes = n_bytes;
    return FERRY_OK;
}

/* Whether the peer may be able to map what this side shares, and the other way round. */
static bool same_host(const struct transport_conn *conn)
{
    return !conn->owner->no_share && conn->peer_host == conn->owner->host;
}

enum ferry_status ucx_offer(struct transport_conn *conn, const struct transport_lanes *lanes,
                            void *ret_offer, size_t *ret_bytes, struct ferry_error *err)
{
    struct ucx_lanes *own = &conn->lanes;
    struct transport *transport = conn->owner;
    struct offer offer = {.magic = OFFER_MAGIC};
    char what[TRANSPORT_ADDRESS_MAX + 16];

    if (conn->state != UCX_OPEN || conn->failed)
        return FERRY_FAIL(err, FERRY_ERR_PEER, "lanes to %s: not connected", conn->name);
    if (own->offered)
        return FERRY_FAIL(err, FERRY_ERR_ARG, "lanes to %s: offered already", conn->name);
    enum ferry_status st = plan(own, lanes, conn->name, err);
    if (st != FERRY_OK)
        return st;
    (void)snprintf(what, sizeof what, "lanes to %s", conn->name);
    size_t n_worker = 0;
    if (!same_host(conn)) {
        st = ucx_worker_address(transport, offer.worker, &n_worker, err);
        if (st != FERRY_OK)
            return st;
        offer.n_worker = n_worker;
    }
    st = same_host(conn) ? ucx_memory_share(&own->rings, own->n_bytes, what, err)
                         : ucx_memory_own(&own->rings, own->n_bytes, what, err);
    if (st != FERRY_OK)
        return st;
    own->offered = true;
    for (size_t i = 0; i < LANE_N_CHANNELS; i++) {
        struct lane_shared *shared = lane_in(own, own->rings.region->data, i);
        lane_shared_init(shared);
        own->in[i].conn = conn;
        own->in[i].shared = shared;
        own->in[i].ring_bytes = own->ring_bytes[i];
        offer.ring_bytes[i] = own->ring_bytes[i];
    }
    ucx_memory_key(&own->rings, &offer.rings);
    ucx_memory_key(&transport->bell, &offer.bell);
    memcpy(ret_offer, &offer, sizeof offer);
    *ret_bytes = sizeof offer;
    return FERRY_OK;
}

/* ---- accept ---- */

/* Maps the peer's rings and bell: both or none. */
static enum ferry_status map_peer(struct transport_conn *conn, const struct offer *offer,
                                  struct ferry_error *err)
{
    struct ucx_lanes *own = &conn->lanes;

    if (ucx_window_open(&own->window, &offer->rings, own->n_bytes) &&
        ucx_window_open(&own->bell, &offer->bell, sizeof(struct lane_bell)))
        return FERRY_OK;
    ucx_window_close(&own->window, false);
    return FERRY_FAIL(
        err, FERRY_ERR_FORMAT,
        "lanes of %s: its memory cannot be mapped (did it die, or is it another user's? "
        "FERRY_FABRIC_NO_SHM=1 goes without)",
        conn->name);
}

/* A ring of the own that travels to the peer's. */
static enum ferry_status open_road(struct transport_conn *conn, const struct offer *offer,
                                   struct ferry_error *err)
{
    struct ucx_lanes *own = &conn->lanes;

    if (offer->n_worker == 0 || offer->n_worker > UCX_WORKER_MAX)
        return FERRY_FAIL(err, FERRY_ERR_FORMAT, "lanes of %s: no address of UCX in its offer",
                          conn->name);
    enum ferry_status st = ucx_memory_own(&own->mirror, own->n_bytes, "lanes", err);
    if (st == FERRY_OK)
        st = ucx_endpoint_open(conn, offer->worker, (size_t)offer->n_worker, err);
    if (st != FERRY_OK) {
        ucx_memory_fini(&own->mirror);
        return st;
    }
    for (size_t i = 0; i < LANE_N_CHANNELS; i++)
        lane_shared_init(lane_in(own, own->mirror.region->data, i));
    return FERRY_OK;
}

static void open_ends(struct transport_conn *conn)
{
    struct ucx_lanes *own = &conn->lanes;
    bool mapped = own->window.region != NULL;
    struct lane_bell *bell = mapped ? (struct lane_bell *)(void *)own->bell.region->data : NULL;

    for (size_t i = 0; i < LANE_N_CHANNELS; i++) {
        struct ucx_outlet *out = &own->out[i];
        struct ucx_inlet *in = &own->in[i];
        struct lane_hooks committed = {.committed = ucx_committed, .arg = out};
        struct lane_hooks released = {.released = ucx_released, .arg = in};
        void *data = (mapped ? own->window.region : own->mirror.region)->data;
        out->conn = conn;
        out->shared = lane_in(own, data, i);
        out->ring_bytes = own->ring_bytes[i];
        atomic_init(&out->pad_from, UINT64_MAX);
        lane_init(&own->ends[i][LANE_SEND], out->shared, out->ring_bytes, bell,
                  mapped ? NULL : &committed);
        lane_init(&own->ends[i][LANE_RECEIVE], in->shared, in->ring_bytes, bell, &released);
    }
}

enum ferry_status ucx_accept(struct transport_conn *conn, const void *offer_bytes, size_t n_bytes,
                             struct ferry_error *err)
{
    struct ucx_lanes *own = &conn->lanes;
    struct offer offer;

    if (n_bytes != sizeof offer)
        return FERRY_FAIL(err, FERRY_ERR_FORMAT, "lanes of %s: an offer of %zu bytes, wanted %zu",
                          conn->name, n_bytes, sizeof offer);
    if (!own->offered || own->accepted)
        return FERRY_FAIL(err, FERRY_ERR_ARG, "lanes of %s: %s", conn->name,
                          own->accepted ? "accepted already" : "make the own offer first");
    if (conn->failed)
        return FERRY_FAIL(err, FERRY_ERR_PEER, "lanes of %s: the connection is lost", conn->name);
    memcpy(&offer, offer_bytes, sizeof offer);
    if (offer.magic != OFFER_MAGIC)
        return FERRY_FAIL(err, FERRY_ERR_FORMAT, "lanes of %s: not an offer", conn->name);
    for (size_t i = 0; i < LANE_N_CHANNELS; i++) {
        if (offer.ring_bytes[i] != own->ring_bytes[i])
            return FERRY_FAIL(
                err, FERRY_ERR_FORMAT, "lanes of %s: its rings have %llu bytes, the own ones %zu",
                conn->name, (unsigned long long)offer.ring_bytes[i], own->ring_bytes[i]);
    }
    enum ferry_status st =
        same_host(conn) ? map_peer(conn, &offer, err) : open_road(conn, &offer, err);
    if (st != FERRY_OK)
        return st;
    open_ends(conn);
    own->accepted = true;
    if (own->window.region != NULL)
        atomic_fetch_add(&conn->owner->n_near, 1);
    return FERRY_OK;
}

struct lane *ucx_lane(struct transport_conn *conn, enum lane_channel channel, enum lane_side side)
{
    return conn->lanes.accepted ? &conn->lanes.ends[channel][side] : NULL;
}

enum link_class ucx_link(const struct transport_conn *conn)
{
    if (!conn->lanes.accepted)
        return LINK_UNKNOWN;
    return conn->lanes.window.region != NULL ? LINK_SHM : LINK_TCP;
}

/* ---- end ---- */

/* Whether the peer has, or could have, the rings in its own address space. */
static bool is_exposed(const struct ucx_lanes *own)
{
    bool travels = false;

    for (size_t i = 0; i < LANE_N_CHANNELS; i++)
        travels |= atomic_load(&own->in[i].travels);
    return ucx_memory_is_shared(&own->rings) && !travels;
}

void ucx_lanes_close(struct transport_conn *conn, bool keep)
{
    struct ucx_lanes *own = &conn->lanes;
    struct transport *transport = conn->owner;

    if (own->window.region != NULL)
        atomic_fetch_sub(&transport->n_near, 1);
    ucx_window_close(&own->window, true);
    ucx_window_close(&own->bell, false);
    if (!keep || !is_exposed(own) || ucx_memory_is_left(&own->rings) ||
        ucx_watch_is_gone(&conn->watch))
        return;
    struct ucx_quarantined *entry = mem_zero(sizeof *entry);
    if (entry == NULL) {
        /* Without a place to write it down the rings stay for good: lost, but hurting nobody. */
        own->rings = (struct ucx_memory){.fd = -1};
        return;
    }
    entry->memory = own->rings;
    entry->watch = conn->watch;
    entry->next = transport->quarantine;
    transport->quarantine = entry;
    own->rings = (struct ucx_memory){.fd = -1};
    conn->watch = (struct ucx_watch){.fd = -1};
}

void ucx_lanes_free(struct transport_conn *conn)
{
    for (size_t i = 0; i < LANE_N_CHANNELS; i++)
        mem_free(conn->lanes.in[i].ranges);
    ucx_memory_fini(&conn->lanes.rings);
    ucx_memory_fini(&conn->lanes.mirror);
}

void ucx_quarantine_sweep(struct transport *transport, bool all)
{
    struct ucx_quarantined **at = &transport->quarantine;

    while (*at != NULL) {
        struct ucx_quarantined *entry = *at;
        if (!all && !ucx_memory_is_left(&entry->memory) && !ucx_watch_is_gone(&entry->watch)) {
            at = &entry->next;
            continue;
        }
        *at = entry->next;
        ucx_memory_fini(&entry->memory);
        ucx_watch_close(&entry->watch);
        mem_free(entry);
    }
}

size_t ucx_quarantined(const struct transport *transport)
{
    size_t n_bytes = 0;

    for (const struct ucx_quarantined *entry = transport->quarantine; entry != NULL;
         entry = entry->next)
        n_bytes += entry->memory.n_bytes;
    return n_bytes;
}
