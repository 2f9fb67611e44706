/* Lanes between ranks of one process: their memory, the gate that marks pass on their way to the
 * other end, and quarantine.
 *
 * Why here: the sender writes straight into the receiver's ring, but a commit must not be seen
 * while the pair is cut, nor with sim before its time. So the lanes' hooks publish: they queue the
 * new head or tail at the ring, and it is stored when it has arrived. See hub.h. */
#include "fabric/hub.h"

#include "base/alloc.h"
#include "base/error.h"
#include "base/size.h"
#include "fabric/sim.h"

#include <string.h>

static const uint64_t OFFER_MAGIC = 0x31657266662d6c6eu;

/* What hub_offer writes, as bytes. */
struct offer {
    uint64_t magic;
    uint64_t ring_bytes[LANE_N_CHANNELS];
    uint64_t ids[LANE_N_CHANNELS];
};

/* ---- memory ---- */

static void ring_unref(struct hub_ring *ring)
{
    if (ring == NULL || --ring->n_refs > 0)
        return;
    mem_free(ring->shared);
    mem_free(ring->heads.marks);
    mem_free(ring->tails.marks);
    mem_free(ring);
}

/* Without the lock. NULL: no memory. Every mark stands for LANE_ALIGN bytes at least, so that no
 * more than capacity can be on the way; loop keeps only the last of those that a cut holds. */
static struct hub_ring *ring_create(struct fabric_hub *hub, size_t ring_bytes)
{
    size_t capacity = hub->sim != NULL ? ring_bytes / LANE_ALIGN : 1;
    struct hub_ring *ring = mem_zero(sizeof *ring);

    if (ring == NULL)
        return NULL;
    ring->hub = hub;
    ring->ring_bytes = ring_bytes;
    ring->n_refs = 1;
    ring->heads.capacity = ring->tails.capacity = capacity;
    ring->shared = mem_zero(lane_shared_bytes(ring_bytes));
    ring->heads.marks = mem_alloc(capacity * sizeof(struct hub_mark));
    ring->tails.marks = mem_alloc(capacity * sizeof(struct hub_mark));
    if (ring->shared == NULL || ring->heads.marks == NULL || ring->tails.marks == NULL) {
        ring_unref(ring);
        return NULL;
    }
    lane_shared_init(ring->shared);
    return ring;
}

/* ---- marks on their way ---- */

static struct hub_mark *mark_at(const struct hub_flight *flight, size_t index)
{
    return &flight->marks[(flight->first + index) % flight->capacity];
}

static void flight_push(struct hub_flight *flight, uint64_t due, uint64_t value)
{
    if (flight->count > 0) {
        const struct hub_mark *last = mark_at(flight, flight->count - 1);
        if (due < last->due) /* healed after a cut */
            due = last->due;
    }
    if (flight->count < flight->capacity)
        flight->count++;
    *mark_at(flight, flight->count - 1) = (struct hub_mark){.due = due, .value = value};
}

/* Takes what is due by now_ns; false: nothing. *ret_value: the last of it. */
static bool flight_land(struct hub_flight *flight, uint64_t now_ns, uint64_t *ret_value)
{
    bool any = false;

    while (flight->count > 0 && mark_at(flight, 0)->due <= now_ns) {
        *ret_value = mark_at(flight, 0)->value;
        flight->first = (flight->first + 1) % flight->capacity;
        flight->count--;
        any = true;
    }
    return any;
}

void hub_ring_land(struct hub_ring *ring)
{
    uint64_t now_ns = ring->hub->sim != NULL ? sim_now(ring->hub->sim) : UINT64_MAX;
    uint64_t value;

    if (ring->receiver == NULL || ring->sender == NULL || ring->receiver->cut)
        return;
    /* The lock has made the payload visible to whoever stores here; release passes it on. */
    if (flight_land(&ring->heads, now_ns, &value)) {
        atomic_store_explicit(&ring->shared->head, value, memory_order_release);
        lane_bell_ring(&ring->receiver->owner->bell);
    }
    if (flight_land(&ring->tails, now_ns, &value)) {
        atomic_store_explicit(&ring->shared->tail, value, memory_order_release);
        lane_bell_ring(&ring->sender->owner->bell);
    }
}

uint64_t hub_ring_next(const struct hub_ring *ring, uint64_t now_ns)
{
    const struct hub_flight *flights[] = {&ring->heads, &ring->tails};
    uint64_t next = UINT64_MAX;

    if (ring->receiver == NULL || ring->sender == NULL || ring->receiver->cut)
        return UINT64_MAX;
    for (size_t i = 0; i < 2; i++) {
        if (flights[i]->count == 0)
            continue;
        uint64_t due = mark_at(flights[i], 0)->due;
        if (due > now_ns && due < next)
            next = due;
    }
    return next;
}

void hub_ring_delay(struct hub_ring *ring, uint64_t due_ns)
{
    struct hub_flight *flights[] = {&ring->heads, &ring->tails};

    for (size_t i = 0; i < 2; i++) {
        for (size_t k = 0; k < flights[i]->count; k++) {
            struct hub_mark *mark = mark_at(flights[i], k);
            if (mark->due < due_ns)
                mark->due = due_ns;
        }
    }
}

/* Bytes that a commit puts on the wire: a skip at the ring's end is not sent. */
static size_t wire_bytes(const struct hub_ring *ring, uint64_t from, uint64_t to)
{
    size_t left = ring->ring_bytes - (size_t)(from & (ring->ring_bytes - 1));
    size_t n_bytes = (size_t)(to - from);

    return n_bytes > left ? n_bytes - left : n_bytes;
}

static void ring_committed(void *arg, struct lane *lane, uint64_t from, uint64_t to)
{
    struct hub_ring *ring = arg;
    struct fabric_hub *hub = ring->hub;

    (void)lane;
    (void)pthread_mutex_lock(&hub->lock);
    if (ring->receiver != NULL && ring->sender != NULL) {
        uint64_t due = hub->sim != NULL
                           ? sim_due(hub, &ring->sender->data_wire, wire_bytes(ring, from, to))
                           : 0;
        flight_push(&ring->heads, due, to);
        hub_ring_land(ring);
    }
    (void)pthread_mutex_unlock(&hub->lock);
}

static void ring_released(void *arg, struct lane *lane, uint64_t tail)
{
    struct hub_ring *ring = arg;
    struct fabric_hub *hub = ring->hub;

    (void)lane;
    (void)pthread_mutex_lock(&hub->lock);
    if (ring->receiver != NULL && ring->sender != NULL) {
        flight_push(&ring->tails, hub->sim != NULL ? sim_due(hub, NULL, 0) : 0, tail);
        hub_ring_land(ring);
    }
    (void)pthread_mutex_unlock(&hub->lock);
}

/* ---- end of a connection ---- */

void hub_rings_sever(struct transport_conn *conn)
{
    for (int channel = 0; channel < LANE_N_CHANNELS; channel++) {
        struct hub_ring *in = conn->rings[channel][LANE_RECEIVE];
        struct hub_ring *out = conn->rings[channel][LANE_SEND];
        if (in != NULL)
            in->receiver = NULL;
        if (out != NULL)
            out->sender = NULL;
    }
}

static bool rank_lives(const struct fabric_hub *hub, uint64_t serial)
{
    for (const struct transport *rank = hub->ranks; rank != NULL; rank = rank->next) {
        if (rank->serial == serial)
            return !rank->dead;
    }
    return false;
}

/* A ring that its writer still refers to is not freed in any case: its thread may be inside. So the
 * quarantine is the account of what processes could not reuse, and keeps the memory besides. Sim's
 * ranks are on hosts of their own: a peer cannot write here. */
void hub_rings_close(struct transport_conn *conn, bool keep)
{
    for (int channel = 0; channel < LANE_N_CHANNELS; channel++) {
        struct hub_ring *in = conn->rings[channel][LANE_RECEIVE];
        if (keep && in != NULL && in->writer != 0 && in->hub->sim == NULL &&
            rank_lives(in->hub, in->writer)) {
            in->next_quarantined = conn->owner->quarantine;
            conn->owner->quarantine = in;
        } else {
            ring_unref(in);
        }
        ring_unref(conn->rings[channel][LANE_SEND]);
        conn->rings[channel][LANE_RECEIVE] = conn->rings[channel][LANE_SEND] = NULL;
    }
}

static void forget_in(struct transport *rank, uint64_t writer)
{
    struct hub_ring **at = &rank->quarantine;

    while (*at != NULL) {
        struct hub_ring *ring = *at;
        if (writer != 0 && ring->writer != writer) {
            at = &ring->next_quarantined;
            continue;
        }
        *at = ring->next_quarantined;
        ring_unref(ring);
    }
}

void hub_quarantine_forget(struct fabric_hub *hub, uint64_t writer)
{
    for (struct transport *rank = hub->ranks; rank != NULL; rank = rank->next)
        forget_in(rank, writer);
}

void hub_quarantine_drop(struct transport *transport)
{
    forget_in(transport, 0);
}

size_t hub_quarantined(const struct transport *transport)
{
    size_t n_bytes = 0;

    (void)pthread_mutex_lock(&transport->hub->lock);
    for (const struct hub_ring *ring = transport->quarantine; ring != NULL;
         ring = ring->next_quarantined)
        n_bytes += lane_shared_bytes(ring->ring_bytes);
    (void)pthread_mutex_unlock(&transport->hub->lock);
    return n_bytes;
}

bool hub_gone(const struct transport_conn *conn)
{
    struct fabric_hub *hub = conn->owner->hub;

    (void)pthread_mutex_lock(&hub->lock);
    bool gone = conn->peer_rank != 0 && !rank_lives(hub, conn->peer_rank) &&
                !conn->cut; /* no word comes through a cut */
    (void)pthread_mutex_unlock(&hub->lock);
    return gone;
}

/* ---- offer and accept ---- */

enum ferry_status hub_offer(struct transport_conn *conn, const struct transport_lanes *lanes,
                            void *ret_offer, size_t *ret_bytes, struct ferry_error *err)
{
    struct fabric_hub *hub = conn->owner->hub;
    struct hub_ring *made[LANE_N_CHANNELS] = {NULL};
    struct offer offer = {.magic = OFFER_MAGIC};

    if (conn->rings[0][LANE_RECEIVE] != NULL)
        return FERRY_FAIL(err, FERRY_ERR_ARG, "lanes to %s: offered already", conn->peer_name);
    for (size_t i = 0; i < LANE_N_CHANNELS; i++) {
        size_t n_bytes = lanes->ring_bytes[i];
        if (n_bytes != lane_ring_bytes(n_bytes))
            return FERRY_FAIL(err, FERRY_ERR_ARG,
                              "lanes to %s: a ring of %zu bytes; round it by lane_ring_bytes",
                              conn->peer_name, n_bytes);
    }
    for (size_t i = 0; i < LANE_N_CHANNELS; i++) {
        made[i] = ring_create(hub, lanes->ring_bytes[i]);
        if (made[i] == NULL) {
            for (size_t k = 0; k < i; k++)
                ring_unref(made[k]);
            return FERRY_FAIL(err, FERRY_ERR_NOMEM, "lanes to %s: no memory for %zu bytes",
                              conn->peer_name, lanes->ring_bytes[i]);
        }
    }
    (void)pthread_mutex_lock(&hub->lock);
    conn->sizes = *lanes;
    for (size_t i = 0; i < LANE_N_CHANNELS; i++) {
        made[i]->id = ++hub->sequence;
        made[i]->receiver = conn->peer != NULL ? conn : NULL;
        conn->rings[i][LANE_RECEIVE] = made[i];
        offer.ring_bytes[i] = lanes->ring_bytes[i];
        offer.ids[i] = made[i]->id;
    }
    (void)pthread_mutex_unlock(&hub->lock);
    memcpy(ret_offer, &offer, sizeof offer);
    *ret_bytes = sizeof offer;
    return FERRY_OK;
}

/* What is wrong with an offer, or NULL. */
static const char *offer_fault(const struct transport_conn *conn, const struct offer *offer)
{
    if (offer->magic != OFFER_MAGIC)
        return "not an offer";
    for (size_t i = 0; i < LANE_N_CHANNELS; i++) {
        const struct hub_ring *ring = conn->peer->rings[i][LANE_RECEIVE];
        if (offer->ring_bytes[i] != conn->sizes.ring_bytes[i])
            return "ring sizes differ from the own ones";
        if (ring == NULL || ring->id != offer->ids[i] || ring->ring_bytes != offer->ring_bytes[i])
            return "the peer has no such lanes";
        if (ring->writer != 0)
            return "accepted already";
    }
    return NULL;
}

static void open_ends(struct transport_conn *conn)
{
    for (size_t i = 0; i < LANE_N_CHANNELS; i++) {
        struct hub_ring *in = conn->rings[i][LANE_RECEIVE];
        struct hub_ring *out = conn->peer->rings[i][LANE_RECEIVE];
        struct lane_hooks hooks = {ring_committed, ring_released, in, true};
        lane_init(&conn->ends[i][LANE_RECEIVE], in->shared, in->ring_bytes, NULL, &hooks);
        hooks.arg = out;
        lane_init(&conn->ends[i][LANE_SEND], out->shared, out->ring_bytes, NULL, &hooks);
        out->n_refs++;
        out->sender = conn;
        out->writer = conn->owner->serial;
        conn->rings[i][LANE_SEND] = out;
    }
}

enum ferry_status hub_accept(struct transport_conn *conn, const void *offer_bytes, size_t n_bytes,
                             struct ferry_error *err)
{
    struct fabric_hub *hub = conn->owner->hub;
    enum ferry_status st = FERRY_OK;
    struct offer offer;

    if (n_bytes != sizeof offer)
        return FERRY_FAIL(err, FERRY_ERR_FORMAT, "lanes of %s: an offer of %zu bytes, wanted %zu",
                          conn->peer_name, n_bytes, sizeof offer);
    memcpy(&offer, offer_bytes, sizeof offer);
    (void)pthread_mutex_lock(&hub->lock);
    if (conn->rings[0][LANE_RECEIVE] == NULL) {
        st = FERRY_FAIL(err, FERRY_ERR_ARG, "lanes of %s: make the own offer before accepting",
                        conn->peer_name);
    } else if (conn->peer == NULL) {
        st =
            FERRY_FAIL(err, FERRY_ERR_PEER, "lanes of %s: the connection is lost", conn->peer_name);
    } else {
        const char *fault = offer_fault(conn, &offer);
        if (fault != NULL)
            st = FERRY_FAIL(err, FERRY_ERR_FORMAT, "lanes of %s: %s", conn->peer_name, fault);
        else
            open_ends(conn);
    }
    (void)pthread_mutex_unlock(&hub->lock);
    return st;
}

struct lane *hub_lane(struct transport_conn *conn, enum lane_channel channel, enum lane_side side)
{
    return conn->rings[channel][LANE_SEND] == NULL ? NULL : &conn->ends[channel][side];
}
