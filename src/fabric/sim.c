/* The virtual clock, and the transport `sim`. See sim.h and hub.h. */
#include "fabric/sim.h"

#include "base/alloc.h"
#include "base/error.h"
#include "base/size.h"

#include <stddef.h>

/* A thread that takes part; made at its first wait. */
struct sim_thread {
    struct sim_thread *next;
    struct fabric_hub *hub;
    const struct transport *rank; /* that it waited for last */
    struct lane_bell *bell;       /* that it waits for; NULL: awake */
    uint32_t seen;
    uint64_t deadline_ns;
    bool out; /* its rank was killed: not counted until it waits for a living one */
};

struct sim {
    uint64_t now_ns;
    pthread_key_t key; /* the calling thread's struct sim_thread; its destructor is how a thread
                          that exits stops to take part */
    struct sim_thread *threads;
    size_t n_met; /* threads that have ever waited */
    bool started;
};

enum { DEAD_WAIT_NS = 1000000, DEAD_STEP_NS = 1000000000 };

/* ---- who takes part ---- */

static void forget_thread(struct sim_thread *thread)
{
    struct sim_thread **at = &thread->hub->sim->threads;

    while (*at != thread)
        at = &(*at)->next;
    *at = thread->next;
    sim_advance(thread->hub);
    mem_free(thread);
}

static void thread_exits(void *arg)
{
    struct sim_thread *thread = arg;
    struct fabric_hub *hub = thread->hub;

    (void)pthread_mutex_lock(&hub->lock);
    forget_thread(thread);
    (void)pthread_mutex_unlock(&hub->lock);
}

void sim_leave(struct fabric_hub *hub)
{
    struct sim_thread *thread = pthread_getspecific(hub->sim->key);

    if (thread == NULL)
        return;
    (void)pthread_setspecific(hub->sim->key, NULL);
    forget_thread(thread);
}

/* The calling thread; NULL: no memory. */
static struct sim_thread *this_thread(struct fabric_hub *hub)
{
    struct sim *sim = hub->sim;
    struct sim_thread *thread = pthread_getspecific(sim->key);

    if (thread != NULL)
        return thread;
    thread = mem_zero(sizeof *thread);
    if (thread == NULL || pthread_setspecific(sim->key, thread) != 0) {
        mem_free(thread);
        return NULL;
    }
    thread->hub = hub;
    thread->next = sim->threads;
    sim->threads = thread;
    sim->n_met++;
    return thread;
}

void sim_join(struct fabric_hub *hub)
{
    struct sim_thread *thread = this_thread(hub);

    if (thread != NULL)
        thread->out = false;
}

void sim_kill(struct transport *transport)
{
    struct sim *sim = transport->hub->sim;
    const struct sim_thread *self = pthread_getspecific(sim->key);

    for (struct sim_thread *thread = sim->threads; thread != NULL; thread = thread->next) {
        if (thread->rank != transport)
            continue;
        thread->rank = NULL;
        if (thread != self) { /* who kills goes on */
            thread->bell = NULL;
            thread->out = true;
        }
    }
    sim->started = true; /* its threads may never come */
    sim_advance(transport->hub);
}

/* ---- time ---- */

uint64_t sim_now(const struct sim *sim)
{
    return sim->now_ns;
}

uint64_t sim_due(const struct fabric_hub *hub, struct sim_wire *wire, size_t n_bytes)
{
    uint64_t now_ns = hub->sim->now_ns;
    uint64_t due = now_ns;

    if (wire != NULL && hub->options.bytes_per_ns > 0.0) {
        double ns = (double)n_bytes / hub->options.bytes_per_ns;
        if (wire->busy_ns > due)
            due = wire->busy_ns;
        if (!add_u64(due, ns < 1e18 ? (uint64_t)ns : UINT64_MAX, &due))
            due = UINT64_MAX;
        wire->busy_ns = due;
    }
    if (!add_u64(due, hub->options.latency_ns, &due))
        return UINT64_MAX; /* never */
    /* Not at this instant: whether a thread that is awake sees it would be chance. */
    return due > now_ns ? due : now_ns + 1;
}

static bool all_wait(struct fabric_hub *hub)
{
    struct sim *sim = hub->sim;
    size_t n_waiting = 0;

    if (!sim->started && sim->n_met < hub->options.n_ranks)
        return false;
    sim->started = true;
    for (const struct sim_thread *thread = sim->threads; thread != NULL; thread = thread->next) {
        if (thread->out)
            continue;
        /* One that was rung is awake, even if it does not know yet. */
        if (thread->bell == NULL || lane_bell_rings(thread->bell) != thread->seen)
            return false;
        n_waiting++;
    }
    return n_waiting > 0;
}

/* The first item on the way to an end that arrives after now_ns, or NULL. */
static const struct hub_item *next_item(const struct transport_conn *conn, uint64_t now_ns)
{
    const struct hub_item *item = conn->cut ? NULL : conn->first;

    while (item != NULL && item->due <= now_ns)
        item = item->next;
    return item;
}

/* When the next thing happens; UINT64_MAX: nothing will. */
static uint64_t next_time(const struct fabric_hub *hub)
{
    uint64_t now_ns = hub->sim->now_ns;
    uint64_t next = UINT64_MAX;

    for (const struct sim_thread *t = hub->sim->threads; t != NULL; t = t->next) {
        if (!t->out && t->deadline_ns < next)
            next = t->deadline_ns;
    }
    for (const struct transport *rank = hub->ranks; rank != NULL; rank = rank->next) {
        for (const struct transport_conn *conn = rank->conns; conn != NULL; conn = conn->next) {
            const struct hub_item *item = next_item(conn, now_ns);
            if (item != NULL && item->due < next)
                next = item->due;
            for (int channel = 0; channel < LANE_N_CHANNELS; channel++) {
                const struct hub_ring *ring = conn->rings[channel][LANE_RECEIVE];
                uint64_t due = ring != NULL ? hub_ring_next(ring, now_ns) : UINT64_MAX;
                if (due < next)
                    next = due;
            }
        }
    }
    return next;
}

/* Everything that arrives by the new time does; who has waited for it, or for the time, wakes. */
static void go_on(struct fabric_hub *hub, uint64_t next_ns)
{
    uint64_t before_ns = hub->sim->now_ns;

    hub->sim->now_ns = next_ns;
    for (struct transport *rank = hub->ranks; rank != NULL; rank = rank->next) {
        for (struct transport_conn *conn = rank->conns; conn != NULL; conn = conn->next) {
            const struct hub_item *item = next_item(conn, before_ns);
            if (item != NULL && item->due <= next_ns)
                lane_bell_ring(&rank->poll_bell);
            conn->known_bytes = conn->queued_bytes;
            for (int channel = 0; channel < LANE_N_CHANNELS; channel++) {
                if (conn->rings[channel][LANE_RECEIVE] != NULL)
                    hub_ring_land(conn->rings[channel][LANE_RECEIVE]);
            }
        }
    }
    for (const struct sim_thread *t = hub->sim->threads; t != NULL; t = t->next) {
        if (!t->out && t->bell != NULL && t->deadline_ns <= next_ns)
            lane_bell_ring(t->bell);
    }
}

void sim_advance(struct fabric_hub *hub)
{
    while (all_wait(hub)) {
        uint64_t next_ns = next_time(hub);
        if (next_ns == UINT64_MAX)
            return;
        go_on(hub, next_ns);
    }
}

/* A dead rank has a time of its own: its threads get through their waits and loops and end, and
 * the clock of the living does not know them. */
static void dead_wait(struct transport *transport, struct lane_bell *bell, uint32_t seen,
                      uint64_t deadline_ns)
{
    struct fabric_hub *hub = transport->hub;
    uint64_t step_ns = deadline_ns == UINT64_MAX ? DEAD_STEP_NS : deadline_ns - hub->sim->now_ns;

    (void)pthread_mutex_unlock(&hub->lock);
    lane_bell_sleep(bell, seen, DEAD_WAIT_NS);
    (void)pthread_mutex_lock(&hub->lock);
    if (lane_bell_rings(bell) == seen)
        transport->dead_ns += step_ns;
}

void sim_wait(struct transport *transport, struct lane_bell *bell, uint32_t seen,
              uint64_t deadline_ns)
{
    struct fabric_hub *hub = transport->hub;

    if (transport->dead) {
        dead_wait(transport, bell, seen, deadline_ns);
        return;
    }
    struct sim_thread *thread = this_thread(hub);
    if (thread != NULL) {
        thread->rank = transport;
        thread->bell = bell;
        thread->seen = seen;
        thread->deadline_ns = deadline_ns;
        thread->out = false;
        sim_advance(hub);
    }
    (void)pthread_mutex_unlock(&hub->lock);
    /* Without memory for the thread: a moment of real time, then the caller tries again. */
    lane_bell_sleep(bell, seen, thread != NULL ? UINT64_MAX : DEAD_WAIT_NS);
    (void)pthread_mutex_lock(&hub->lock);
    if (thread != NULL) {
        thread->bell = NULL;
        thread->deadline_ns = UINT64_MAX;
    }
}

enum ferry_status sim_create(struct fabric_hub *hub, struct ferry_error *err)
{
    struct sim *sim = mem_zero(sizeof *sim);

    if (sim == NULL || pthread_key_create(&sim->key, thread_exits) != 0) {
        mem_free(sim);
        return FERRY_FAIL(err, FERRY_ERR_NOMEM, "hub: no memory for a virtual clock");
    }
    hub->sim = sim;
    return FERRY_OK;
}

void sim_destroy(struct fabric_hub *hub)
{
    struct sim *sim = hub->sim;

    if (sim == NULL)
        return;
    (void)pthread_key_delete(sim->key); /* threads that exit later do not come here */
    while (sim->threads != NULL) {
        struct sim_thread *next = sim->threads->next;
        mem_free(sim->threads);
        sim->threads = next;
    }
    mem_free(sim);
    hub->sim = NULL;
}

/* ---- the transport ---- */

static enum ferry_status create(struct transport **ret, const struct transport_options *options,
                                struct ferry_error *err)
{
    if (options->hub != NULL && options->hub->sim == NULL)
        return FERRY_FAIL(err, FERRY_ERR_ARG, "sim: the hub is one of loop; set sim to true");
    return loop_create(ret, options, err);
}

static enum link_class link_of(const struct transport_conn *conn)
{
    return conn->rings[0][LANE_SEND] == NULL ? LINK_UNKNOWN : LINK_TCP;
}

static uint64_t now_ns(const struct transport *transport)
{
    struct fabric_hub *hub = transport->hub;

    (void)pthread_mutex_lock(&hub->lock);
    uint64_t now = hub->sim->now_ns + transport->dead_ns;
    (void)pthread_mutex_unlock(&hub->lock);
    return now;
}

static void sleep_on_bell(struct transport *transport, uint32_t seen, uint64_t timeout_ns)
{
    struct fabric_hub *hub = transport->hub;
    uint64_t deadline_ns;

    if (timeout_ns == 0 || lane_bell_rings(&transport->bell) != seen)
        return;
    (void)pthread_mutex_lock(&hub->lock);
    if (!add_u64(hub->sim->now_ns, timeout_ns, &deadline_ns))
        deadline_ns = UINT64_MAX;
    sim_wait(transport, &transport->bell, seen, deadline_ns);
    (void)pthread_mutex_unlock(&hub->lock);
}

const struct transport_ops transport_sim = {
    .name = "sim",
    .create = create,
    .destroy = loop_destroy,
    .address = loop_address,
    .connect = loop_connect,
    .send = loop_send,
    .close = loop_close,
    .offer = hub_offer,
    .accept = hub_accept,
    .lane = hub_lane,
    .link = link_of,
    .poll = loop_poll,
    .wake = loop_wake,
    .now_ns = now_ns,
    .sleep = sleep_on_bell,
    .ring = loop_ring,
    .quarantined = hub_quarantined,
    .gone = hub_gone,
};
