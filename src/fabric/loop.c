/* The transport `loop`: ranks are threads of one process. Its functions serve `sim`, too.
 *
 * Why here: membership and exchange are tested over it, with every fault at hand, without a
 * network. It must not know what messages mean. See transport.h for the contract and hub.h for the
 * inside. */
#include "base/alloc.h"
#include "base/clock.h"
#include "base/error.h"
#include "fabric/hub.h"
#include "fabric/sim.h"

#include <stdio.h>
#include <string.h>

/* ---- life of a rank ---- */

static bool name_is_legal(const char *name)
{
    return name != NULL && name[0] != 0 && strlen(name) < TRANSPORT_ADDRESS_MAX;
}

/* The living rank of that name, or NULL. */
static struct transport *find_rank(const struct fabric_hub *hub, const char *name)
{
    for (struct transport *rank = hub->ranks; rank != NULL; rank = rank->next) {
        if (!rank->dead && strcmp(rank->name, name) == 0)
            return rank;
    }
    return NULL;
}

/* In the order of names, so that whatever goes through the list does not depend on who came first.
 */
static void add_rank(struct fabric_hub *hub, struct transport *added)
{
    struct transport **at = &hub->ranks;

    while (*at != NULL && strcmp((*at)->name, added->name) < 0)
        at = &(*at)->next;
    added->next = *at;
    *at = added;
}

enum ferry_status loop_create(struct transport **ret, const struct transport_options *options,
                              struct ferry_error *err)
{
    struct fabric_hub *hub = options->hub;
    bool taken;

    if (hub == NULL)
        return FERRY_FAIL(err, FERRY_ERR_ARG, "loop: no hub; ranks of one process meet in one");
    if (!name_is_legal(options->listen))
        return FERRY_FAIL(err, FERRY_ERR_ARG, "loop: listens on a name of 1 to %d characters",
                          TRANSPORT_ADDRESS_MAX - 1);
    struct transport *transport = mem_zero(sizeof *transport);
    if (transport == NULL)
        return FERRY_FAIL(err, FERRY_ERR_NOMEM, "loop: no memory for %zu bytes", sizeof *transport);
    transport->hub = hub;
    transport->events = options->events;
    (void)snprintf(transport->name, sizeof transport->name, "%s", options->listen);
    (void)pthread_mutex_lock(&hub->lock);
    taken = find_rank(hub, transport->name) != NULL;
    if (!taken) {
        transport->serial = ++hub->sequence;
        add_rank(hub, transport);
    }
    (void)pthread_mutex_unlock(&hub->lock);
    if (taken) {
        mem_free(transport);
        return FERRY_FAIL(err, FERRY_ERR_IO, "loop: '%s' is in use; choose another name",
                          options->listen);
    }
    if (options->ret_bell != NULL)
        *options->ret_bell = &transport->bell;
    *ret = transport;
    return FERRY_OK;
}

/* With the lock. */
static void drop_conn(struct transport_conn *conn, bool keep_lanes)
{
    hub_sever(conn, "has closed the connection");
    hub_rings_close(conn, keep_lanes);
    hub_conn_free(conn);
}

void loop_destroy(struct transport *transport)
{
    if (transport == NULL)
        return;
    struct fabric_hub *hub = transport->hub;
    struct transport **at = &hub->ranks;

    (void)pthread_mutex_lock(&hub->lock);
    while (transport->conns != NULL)
        drop_conn(transport->conns, false);
    hub_quarantine_drop(transport);
    while (*at != transport)
        at = &(*at)->next;
    *at = transport->next;
    hub_quarantine_forget(hub, transport->serial);
    if (hub->sim != NULL)
        sim_kill(transport);
    (void)pthread_mutex_unlock(&hub->lock);
    mem_free(transport);
}

void loop_address(const struct transport *transport, char ret_address[TRANSPORT_ADDRESS_MAX])
{
    (void)snprintf(ret_address, TRANSPORT_ADDRESS_MAX, "%s", transport->name);
}

/* ---- connections ---- */

static void add_conn(struct transport *owner, struct transport_conn *conn, const char *peer_name,
                     const struct transport *peer_rank)
{
    conn->owner = owner;
    conn->peer_rank = peer_rank != NULL ? peer_rank->serial : 0;
    (void)snprintf(conn->peer_name, sizeof conn->peer_name, "%s", peer_name);
    conn->serial = ++owner->hub->sequence;
    conn->cut = hub_is_cut(owner->hub, owner->name, peer_name);
    conn->next = owner->conns;
    owner->conns = conn;
}

enum ferry_status loop_connect(struct transport *transport, const char *address,
                               struct transport_conn **ret_conn, struct ferry_error *err)
{
    struct fabric_hub *hub = transport->hub;

    if (!name_is_legal(address))
        return FERRY_FAIL(err, FERRY_ERR_ARG, "loop: connects to a name of 1 to %d characters",
                          TRANSPORT_ADDRESS_MAX - 1);
    struct transport_conn *near = mem_zero(sizeof *near);
    struct transport_conn *far = mem_zero(sizeof *far);
    if (near == NULL || far == NULL) {
        mem_free(near);
        mem_free(far);
        return FERRY_FAIL(err, FERRY_ERR_NOMEM, "loop: no memory for a connection to %s", address);
    }
    (void)pthread_mutex_lock(&hub->lock);
    struct transport *target = transport->dead ? NULL : find_rank(hub, address);
    add_conn(transport, near, address, target);
    near->known = true;
    if (target == NULL) {
        mem_free(far);
        (void)snprintf(near->reason, sizeof near->reason, "%s refuses: nobody listens there",
                       near->peer_name);
        near->loss.kind = HUB_LOST;
        hub_push(near, &near->control_wire, &near->loss);
    } else {
        add_conn(target, far, transport->name, transport);
        far->accepted = true;
        near->peer = far;
        far->peer = near;
        far->intro.kind = HUB_ACCEPTED;
        hub_push(far, &near->control_wire, &far->intro);
    }
    *ret_conn = near;
    (void)pthread_mutex_unlock(&hub->lock);
    return FERRY_OK;
}

enum ferry_status loop_send(struct transport_conn *conn, const void *data, size_t n_bytes)
{
    struct fabric_hub *hub = conn->owner->hub;
    enum ferry_status st = FERRY_OK;

    if (n_bytes > TRANSPORT_CONTROL_MAX)
        return FERRY_ERR_LIMIT;
    struct hub_item *item = mem_alloc(sizeof *item + n_bytes);
    if (item == NULL)
        return FERRY_ERR_NOMEM;
    *item = (struct hub_item){.kind = HUB_CONTROL, .n_bytes = n_bytes};
    item->data = (unsigned char *)(item + 1);
    if (n_bytes > 0)
        memcpy(item->data, data, n_bytes);
    (void)pthread_mutex_lock(&hub->lock);
    struct transport_conn *peer = conn->peer;
    if (conn->lost || conn->owner->dead) {
        st = FERRY_ERR_PEER;
    } else if (peer == NULL) {
        mem_free(item); /* lost, but word of it has not arrived: goes nowhere */
        item = NULL;
    } else if (peer->known_bytes + n_bytes > HUB_QUEUE_BYTES) {
        st = FERRY_AGAIN;
    } else {
        hub_push(peer, &conn->control_wire, item);
        item = NULL;
    }
    (void)pthread_mutex_unlock(&hub->lock);
    mem_free(item);
    return st;
}

void loop_close(struct transport_conn *conn, bool keep_lanes)
{
    struct fabric_hub *hub = conn->owner->hub;

    (void)pthread_mutex_lock(&hub->lock);
    drop_conn(conn, keep_lanes);
    (void)pthread_mutex_unlock(&hub->lock);
}

static enum link_class loop_link(const struct transport_conn *conn)
{
    return conn->rings[0][LANE_SEND] == NULL ? LINK_UNKNOWN : LINK_SHM;
}

/* ---- events ---- */

/* Whether a's first item is before b's: by time, then by what does not depend on threads. */
static bool is_before(const struct transport_conn *a, const struct transport_conn *b)
{
    if (a->first->due != b->first->due)
        return a->first->due < b->first->due;
    int order = strcmp(a->peer_name, b->peer_name);
    if (order != 0)
        return order < 0;
    if (a->accepted != b->accepted)
        return b->accepted;
    return a->serial < b->serial;
}

/* The connection with the oldest item that has arrived, or NULL. */
static struct transport_conn *next_event(const struct transport *transport, uint64_t arrived)
{
    struct transport_conn *best = NULL;

    for (struct transport_conn *conn = transport->conns; conn != NULL; conn = conn->next) {
        if (conn->cut || conn->first == NULL || conn->first->due > arrived)
            continue;
        if (best == NULL || is_before(conn, best))
            best = conn;
    }
    return best;
}

/* Runs a connection's oldest event, without the lock, which it gives up and takes again. */
static void run_event(struct transport_conn *conn)
{
    const struct transport_events *events = &conn->owner->events;
    struct fabric_hub *hub = conn->owner->hub;
    struct hub_item *item = conn->first;
    char reason[sizeof conn->reason];

    conn->first = item->next;
    if (conn->first == NULL)
        conn->last = NULL;
    conn->queued_bytes -= item->n_bytes + sizeof *item;
    if (hub->sim == NULL)
        conn->known_bytes = conn->queued_bytes;
    switch (item->kind) {
    case HUB_ACCEPTED:
        conn->known = true;
        conn->peer->intro.kind = HUB_CONNECTED;
        hub_push(conn->peer, &conn->control_wire, &conn->peer->intro);
        (void)pthread_mutex_unlock(&hub->lock);
        events->accepted(events->arg, conn);
        break;
    case HUB_CONNECTED:
        (void)pthread_mutex_unlock(&hub->lock);
        events->connected(events->arg, conn);
        break;
    case HUB_CONTROL:
        (void)pthread_mutex_unlock(&hub->lock);
        events->control(events->arg, conn, item->data, item->n_bytes);
        mem_free(item);
        break;
    case HUB_LOST:
        conn->lost = true;
        memcpy(reason, conn->reason, sizeof reason);
        (void)pthread_mutex_unlock(&hub->lock);
        events->lost(events->arg, conn, reason);
        break;
    }
    (void)pthread_mutex_lock(&hub->lock);
}

/* What is there now; what comes while it runs is left for the next poll. */
static size_t run_events(struct transport *transport)
{
    uint64_t arrived = hub_arrived(transport->hub);
    size_t n_run = 0;

    while (!transport->dead) {
        struct transport_conn *conn = next_event(transport, arrived);
        if (conn == NULL)
            break;
        run_event(conn);
        n_run++;
    }
    return n_run;
}

void loop_poll(struct transport *transport, uint64_t timeout_ns)
{
    struct fabric_hub *hub = transport->hub;
    uint32_t seen = lane_bell_rings(&transport->poll_bell);
    bool woken = seen != transport->polled;

    transport->polled = seen; /* before looking: what comes later ends the next poll */
    (void)pthread_mutex_lock(&hub->lock);
    if (run_events(transport) == 0 && !woken && timeout_ns > 0) {
        if (hub->sim != NULL) {
            uint64_t now_ns = sim_now(hub->sim);
            sim_wait(transport, &transport->poll_bell, seen,
                     timeout_ns < UINT64_MAX - now_ns ? now_ns + timeout_ns : UINT64_MAX);
        } else {
            (void)pthread_mutex_unlock(&hub->lock);
            lane_bell_sleep(&transport->poll_bell, seen, timeout_ns);
            (void)pthread_mutex_lock(&hub->lock);
        }
        transport->polled = lane_bell_rings(&transport->poll_bell);
        (void)run_events(transport);
    }
    (void)pthread_mutex_unlock(&hub->lock);
}

void loop_wake(struct transport *transport)
{
    lane_bell_ring(&transport->poll_bell);
}

void loop_ring(struct transport *transport)
{
    lane_bell_ring(&transport->bell);
}

static uint64_t loop_now_ns(const struct transport *transport)
{
    (void)transport;
    return clock_now_ns();
}

static void loop_sleep(struct transport *transport, uint32_t seen, uint64_t timeout_ns)
{
    lane_bell_sleep(&transport->bell, seen, timeout_ns);
}

static enum ferry_status loop_create_checked(struct transport **ret,
                                             const struct transport_options *options,
                                             struct ferry_error *err)
{
    if (options->hub != NULL && options->hub->sim != NULL)
        return FERRY_FAIL(err, FERRY_ERR_ARG, "loop: the hub is one of sim; set sim to false");
    return loop_create(ret, options, err);
}

const struct transport_ops transport_loop = {
    .name = "loop",
    .create = loop_create_checked,
    .destroy = loop_destroy,
    .address = loop_address,
    .connect = loop_connect,
    .send = loop_send,
    .close = loop_close,
    .offer = hub_offer,
    .accept = hub_accept,
    .lane = hub_lane,
    .link = loop_link,
    .poll = loop_poll,
    .wake = loop_wake,
    .now_ns = loop_now_ns,
    .sleep = loop_sleep,
    .ring = loop_ring,
    .quarantined = hub_quarantined,
    .gone = hub_gone,
};
