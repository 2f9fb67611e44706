/* A fabric's life, its thread, and membership as others see it. See fabric.h and fabric_impl.h. */
#include "fabric/fabric_impl.h"

#include "base/alloc.h"
#include "base/assert.h"
#include "base/error.h"

#include <stdio.h>
#include <string.h>

/* Sanitizers slow everything down by about this; silence means less then. */
#ifdef FERRY_SANITIZED
enum { TIME_FACTOR = 5 };
#else
enum { TIME_FACTOR = 1 };
#endif

static const uint64_t MS = 1000000;

const char *seat_state_name(enum seat_state state)
{
    static const char *const NAMES[] = {
#define SEAT_STATE_NAME(value, label) label,
        SEAT_STATE_LIST(SEAT_STATE_NAME)
#undef SEAT_STATE_NAME
    };
    return state < SEAT_N_STATES ? NAMES[state] : "?";
}

unsigned fabric_time_factor(void)
{
    return TIME_FACTOR;
}

/* ---- what the thread tells others ---- */

void fabric_refused(struct fabric *f, const char *text)
{
    (void)pthread_mutex_lock(&f->lock);
    (void)snprintf(f->refusal, sizeof f->refusal, "%.399s", text);
    (void)pthread_mutex_unlock(&f->lock);
}

void fabric_set_entered(struct fabric *f, enum ferry_status status, const struct ferry_error *err)
{
    (void)pthread_mutex_lock(&f->lock);
    if (!f->entered) {
        f->entered = true;
        f->status = status;
        if (err != NULL)
            f->error = *err;
    }
    (void)pthread_mutex_unlock(&f->lock);
    f->ops->ring(f->transport);
}

static void view_seat(struct fabric *f, int s, uint64_t now_ns)
{
    const struct wire_seat *seat = &f->group.committed.seats[s];
    enum link_class link =
        (enum link_class)atomic_load_explicit(&f->links[s], memory_order_relaxed);
    uint64_t ago_ns = group_heard_ago(&f->group, s, now_ns);

    f->view.seats[s].state = group_state(&f->group, s, now_ns);
    f->view.seats[s].incarnation = seat->incarnation;
    f->view.seats[s].link = s == f->group.seat ? LINK_LOCAL : link;
    f->view.seats[s].heard_ns = ago_ns < now_ns ? now_ns - ago_ns : 0;
    f->view.seats[s].stalled_ns = group_stalled(&f->group, s, now_ns);
    memcpy(f->view.seats[s].address, seat->address, sizeof seat->address);
}

/* Publishes the view; the two numbers for hot loops last, in the promised order. */
static void publish(struct fabric *f, uint64_t now_ns)
{
    uint64_t live = group_live(&f->group, now_ns);
    uint32_t known = atomic_load_explicit(&f->epoch, memory_order_relaxed);
    /* Between two incarnations there is no table: what was known of the last one stays. */
    bool blank = f->group.committed.epoch == 0;
    uint32_t epoch = blank ? known : f->group.committed.epoch;
    bool changed = live != atomic_load_explicit(&f->live, memory_order_relaxed) || epoch != known;

    (void)pthread_mutex_lock(&f->lock);
    f->view.epoch = epoch;
    f->view.issuer = group_issuer(&f->group, now_ns);
    f->view.live = live;
    f->view.members = group_members(&f->group);
    for (int s = 0; s < (int)f->group.n_seats && !blank; s++)
        view_seat(f, s, now_ns);
    (void)pthread_mutex_unlock(&f->lock);
    atomic_store_explicit(&f->live, live, memory_order_release);
    atomic_store_explicit(&f->epoch, epoch, memory_order_release);
    if (changed)
        f->ops->ring(f->transport);
}

/* Tells of states that differ from what was told last. The view has them already. */
static void tell_changes(struct fabric *f, uint64_t now_ns)
{
    fabric_change_fn *fn;
    void *arg;

    (void)pthread_mutex_lock(&f->lock);
    fn = f->on_change;
    arg = f->on_change_arg;
    (void)pthread_mutex_unlock(&f->lock);
    for (int s = 0; s < (int)f->group.n_seats && f->group.committed.epoch != 0; s++) {
        enum seat_state from = f->told[s], to = group_state(&f->group, s, now_ns);
        f->told[s] = to;
        if (from != to && fn != NULL)
            fn(arg, s, from, to);
    }
}

/* ---- the group's messages ---- */

/* In the group's name to who holds a seat, or will with the epoch that is proposed. */
static void group_send(void *arg, int seat, const struct wire *message)
{
    struct fabric *f = arg;
    struct peer *peer = f->seats[seat];
    uint64_t instance = f->group.peers[seat].instance;

    if (peer == NULL || peer->instance != instance)
        peer = peers_of(f, seat, instance);
    if (peer != NULL)
        (void)peers_send(f, peer, message); /* AGAIN: beats are lost, all others are repeated */
}

/* ---- events of the transport ---- */

static void on_accepted(void *arg, struct transport_conn *conn)
{
    struct fabric *f = arg;
    struct peer *peer = peers_add(f, conn, false);

    if (peer == NULL) {
        f->ops->close(conn, false);
        return;
    }
    peer->deadline_ns = f->ops->now_ns(f->transport) + f->limits.grant_ns;
    if (f->n_peers > LIMIT_SEATS + LIMIT_HANDSHAKES || !group_is_member(&f->group))
        peer->doomed = true;
}

static void on_connected(void *arg, struct transport_conn *conn)
{
    struct fabric *f = arg;
    struct peer *peer = peers_find(f, conn);

    if (peer != NULL && !peer->doomed)
        enter_connected(f, peer, f->ops->now_ns(f->transport));
}

static void on_lost(void *arg, struct transport_conn *conn, const char *reason)
{
    struct fabric *f = arg;
    struct peer *peer = peers_find(f, conn);
    uint64_t now_ns = f->ops->now_ns(f->transport);

    if (peer == NULL || peer->lost)
        return;
    bool mine = peer->dialled && !peer->doomed && !peer->retired;
    peers_lost(f, peer, now_ns);
    if (mine)
        enter_lost(f, peer, reason, now_ns);
}

static void on_control(void *arg, struct transport_conn *conn, const void *data, size_t n_bytes)
{
    struct fabric *f = arg;
    struct peer *peer = peers_find(f, conn);
    uint64_t now_ns = f->ops->now_ns(f->transport);
    struct wire *m = f->in;
    struct ferry_error err = {0};

    if (peer == NULL || peer->doomed || peer->retired || peer->lost)
        return;
    if (wire_decode(m, data, n_bytes, &err) != FERRY_OK) {
        fabric_refused(f, err.msg);
        stats_rejected(f);
        peers_lost(f, peer, now_ns);
        if (peer->dialled)
            enter_lost(f, peer, err.msg, now_ns);
        return;
    }
    if (peer->phase == PEER_ATTACHED && m->type == WIRE_TOPIC)
        topic_receive(f, peer, m);
    else if (peer->phase == PEER_ATTACHED && m->type >= WIRE_BEAT)
        group_receive(&f->group, peer->seat, peer->instance, m, now_ns);
    else if (peer->dialled)
        enter_message(f, peer, m, now_ns);
    else
        admit_message(f, peer, m, now_ns);
}

/* ---- the thread ---- */

void fabric_reset(struct fabric *f, uint64_t now_ns)
{
    struct wire_seat *own = &f->group.committed.seats[f->group.seat];

    own->state = SEAT_DEAD;
    f->group.dropped = true;
    atomic_store_explicit(&f->wishes, 0, memory_order_relaxed);
    f->group.wishes = 0;
    for (int s = 0; s < (int)f->group.n_seats; s++) {
        if (s != f->group.seat && seat_is_member(f->group.committed.seats[s].state))
            f->group.peers[s].lost = true;
    }
    peers_retire_all(f, now_ns);
    publish(f, now_ns);
    tell_changes(f, now_ns);
}

/* What other threads have asked for since. */
static void take_wishes(struct fabric *f, uint64_t now_ns)
{
    uint32_t wishes = atomic_load_explicit(&f->wishes, memory_order_relaxed);
    uint32_t all = WIRE_BEAT_READY | WIRE_BEAT_DRAIN | WIRE_BEAT_BUSY;
    uint32_t settled = f->options.settles ? atomic_load_explicit(&f->settled, memory_order_relaxed)
                                          : f->group.committed.epoch;

    if (!group_is_member(&f->group))
        return;
    f->group.progress = atomic_load_explicit(&f->progress, memory_order_relaxed);
    group_wish(&f->group, wishes, all & ~wishes, now_ns);
    group_settle(&f->group, settled, now_ns);
}

/* Joins again when this rank was given up, or can no longer know that it was not. */
static void watch_own_seat(struct fabric *f, uint64_t now_ns)
{
    if (group_issuer(&f->group, now_ns) >= 0)
        f->led_ns = now_ns;
    if (!f->group.entered || f->group.left || f->entry.active)
        return;
    if (f->group.dropped) {
        fabric_reset(f, now_ns);
        enter_start(f, false, now_ns);
    } else if (now_ns - f->led_ns >= 2 * f->limits.dead_ns) {
        enter_start(f, true, now_ns);
    }
}

static void check_entry(struct fabric *f, uint64_t now_ns)
{
    char text[WIRE_TEXT_MAX];
    struct ferry_error err = {0};

    if (f->entry_deadline_ns == UINT64_MAX)
        return;
    if (group_is_member(&f->group)) {
        f->entry_deadline_ns = UINT64_MAX;
        atomic_store_explicit(&f->seat_number, (uint32_t)f->group.seat, memory_order_relaxed);
        fabric_set_entered(f, FERRY_OK, NULL);
    } else if (now_ns >= f->entry_deadline_ns) {
        f->entry_deadline_ns = UINT64_MAX;
        enter_describe(f, text, sizeof text);
        (void)FERRY_FAIL(&err, FERRY_ERR_TIMEOUT,
                         "fabric: joining by %s took more than %llu ms: %s", f->options.join,
                         (unsigned long long)(f->options.connect_ns / MS), text);
        enter_stop(f);
        fabric_set_entered(f, FERRY_ERR_TIMEOUT, &err);
    }
}

static void step(struct fabric *f)
{
    uint64_t now_ns = f->ops->now_ns(f->transport);

    take_wishes(f, now_ns);
    peers_look(f, now_ns);
    enter_tick(f, now_ns);
    do {
        group_tick(&f->group, now_ns);
        if (f->group.committed.epoch == f->synced)
            break;
        peers_sync(f, now_ns);
        take_wishes(f, now_ns);
    } while (true);
    watch_own_seat(f, now_ns);
    publish(f, now_ns);
    check_entry(f, now_ns);
    tell_changes(f, now_ns);
    topic_deliver(f);
    topic_flush(f);
    peers_reap(f, now_ns);
    stats_update(f, now_ns);
}

static uint64_t next_ns(const struct fabric *f, uint64_t now_ns)
{
    uint64_t next = now_ns + f->limits.heartbeat_ns / 2;
    uint64_t group = group_next_ns(&f->group), enter = enter_next_ns(f);

    if (group < next)
        next = group;
    if (enter < next)
        next = enter;
    for (int s = 0; s < (int)f->group.n_seats; s++) {
        const struct peer *peer = f->seats[s];
        if (f->ops->gone != NULL && peer != NULL && peer->lost && !peer->gone &&
            next > now_ns + 2 * MS)
            next = now_ns + 2 * MS; /* the proof of its end comes a moment later */
    }
    return next;
}

static enum ferry_status open_transport(struct fabric *f)
{
    struct transport_options options = {.events = {.accepted = on_accepted,
                                                   .connected = on_connected,
                                                   .control = on_control,
                                                   .lost = on_lost,
                                                   .arg = f},
                                        .listen = f->options.listen,
                                        .spin_ns = f->options.spin_ns,
                                        .hub = f->hub,
                                        .ret_bell = &f->bell};
    enum ferry_status st = f->ops->create(&f->transport, &options, &f->error);
    uint64_t instance = 0;

    if (st != FERRY_OK)
        return st;
    uint64_t now_ns = f->ops->now_ns(f->transport);
    f->led_ns = now_ns;
    if (f->options.join != NULL) {
        f->entry_deadline_ns = now_ns + f->options.connect_ns;
        enter_start(f, false, now_ns);
        return FERRY_OK;
    }
    while (instance == 0 && st == FERRY_OK)
        st = auth_random(&instance, sizeof instance, &f->error);
    if (st != FERRY_OK)
        return st;
    char address[TRANSPORT_ADDRESS_MAX];
    f->ops->address(f->transport, address);
    group_found(&f->group, f->options.seat < 0 ? 0 : f->options.seat, f->options.n_seats, instance,
                address, now_ns);
    return FERRY_OK;
}

static void *thread_main(void *arg)
{
    struct fabric *f = arg;
    enum ferry_status st = open_transport(f);

    (void)pthread_mutex_lock(&f->lock);
    f->created = true;
    f->status = st;
    (void)pthread_cond_signal(&f->started);
    (void)pthread_mutex_unlock(&f->lock);
    if (st != FERRY_OK)
        return NULL;
    while (!atomic_load_explicit(&f->stop, memory_order_acquire)) {
        step(f);
        uint64_t now_ns = f->ops->now_ns(f->transport);
        uint64_t next = next_ns(f, now_ns);
        f->ops->poll(f->transport, next > now_ns ? next - now_ns : 0);
    }
    return NULL;
}

/* ---- create ---- */

static enum ferry_status check_options(const struct fabric_options *o, struct ferry_error *err)
{
    if (o->n_seats > LIMIT_SEATS || (o->join == NULL && o->n_seats == 0))
        return FERRY_FAIL(err, FERRY_ERR_ARG, "fabric: a group of %zu seats; 1 to %d are possible",
                          o->n_seats, LIMIT_SEATS);
    if (o->seat < -1 || o->seat >= LIMIT_SEATS || (o->n_seats != 0 && o->seat >= (int)o->n_seats))
        return FERRY_FAIL(err, FERRY_ERR_ARG, "fabric: seat %d of a group of %zu", o->seat,
                          o->n_seats);
    if (o->n_terms > LIMIT_TERMS)
        return FERRY_FAIL(err, FERRY_ERR_LIMIT, "fabric: %zu terms, at most %d", o->n_terms,
                          LIMIT_TERMS);
    for (size_t t = 0; t < o->n_terms; t++) {
        if (strlen(o->terms[t].name) > LIMIT_TERM_BYTES ||
            strlen(o->terms[t].value) > LIMIT_TERM_BYTES)
            return FERRY_FAIL(err, FERRY_ERR_LIMIT, "fabric: term '%.40s' has over %d bytes",
                              o->terms[t].name, LIMIT_TERM_BYTES);
    }
    if (o->n_key == 0 && o->hub == NULL &&
        (!auth_is_loopback(o->listen) || (o->join != NULL && !auth_is_loopback(o->join))))
        return FERRY_FAIL(err, FERRY_ERR_ARG,
                          "fabric: %s%s%s is not on this machine alone, so the group needs a key; "
                          "give --group-key-file",
                          o->listen, o->join != NULL ? " or " : "", o->join != NULL ? o->join : "");
    return FERRY_OK;
}

static char *keep(char **at, const char *text)
{
    size_t n = strlen(text) + 1;
    char *copy = memcpy(*at, text, n);

    *at += n;
    return copy;
}

/* Own copies of everything that the options point to. */
static enum ferry_status copy_options(struct fabric *f, const struct fabric_options *o,
                                      struct ferry_error *err)
{
    size_t n = strlen(o->listen) + 1 + (o->join != NULL ? strlen(o->join) + 1 : 0);
    char *at;

    for (size_t t = 0; t < o->n_terms; t++)
        n += strlen(o->terms[t].name) + strlen(o->terms[t].value) + 2;
    f->texts = at = mem_alloc(n);
    f->terms = mem_array(o->n_terms > 0 ? o->n_terms : 1, sizeof *f->terms);
    f->key = mem_alloc(o->n_key > 0 ? o->n_key : 1);
    if (f->texts == NULL || f->terms == NULL || f->key == NULL)
        return FERRY_FAIL(err, FERRY_ERR_NOMEM, "fabric: no memory for its options");
    f->options = *o;
    f->options.listen = keep(&at, o->listen);
    f->options.join = o->join != NULL ? keep(&at, o->join) : NULL;
    for (size_t t = 0; t < o->n_terms; t++)
        f->terms[t] =
            (struct fabric_term){keep(&at, o->terms[t].name), keep(&at, o->terms[t].value)};
    if (o->n_key > 0)
        memcpy(f->key, o->key, o->n_key);
    f->options.terms = NULL;
    f->options.key = NULL;
    for (size_t c = 0; c < LANE_N_CHANNELS; c++)
        f->options.lanes.ring_bytes[c] = lane_ring_bytes(o->lanes.ring_bytes[c]);
    return FERRY_OK;
}

static void set_limits(struct fabric *f)
{
    struct fabric_options *o = &f->options;
    struct group_limits *l = &f->limits;

    l->heartbeat_ns = (o->heartbeat_ns != 0 ? o->heartbeat_ns : 100 * MS);
    l->suspect_ns = (o->suspect_ns != 0 ? o->suspect_ns : 4 * l->heartbeat_ns) * TIME_FACTOR;
    l->dead_ns = (o->dead_ns != 0 ? o->dead_ns : 8 * l->heartbeat_ns) * TIME_FACTOR;
    if (l->dead_ns < 4 * l->heartbeat_ns)
        l->dead_ns = 4 * l->heartbeat_ns;
    if (l->suspect_ns > l->dead_ns)
        l->suspect_ns = l->dead_ns;
    l->grant_ns = 3000 * MS * TIME_FACTOR;
    if (o->connect_ns == 0)
        o->connect_ns = 10000 * MS;
    o->connect_ns *= TIME_FACTOR;
}

static enum ferry_status make(struct fabric *f, const struct fabric_options *options,
                              struct ferry_error *err)
{
    enum ferry_status st = copy_options(f, options, err);

    if (st != FERRY_OK)
        return st;
    f->ops = options->transport != NULL ? options->transport : &transport_ucx;
    f->hub = options->hub;
    if (f->ops == &transport_sim)
        f->options.spin_ns = 0; /* time stands still for who spins */
    f->entry_deadline_ns = UINT64_MAX - 1;
    set_limits(f);
    f->buffer = mem_alloc(TRANSPORT_CONTROL_MAX);
    f->in = mem_zero(sizeof *f->in);
    f->out = mem_zero(sizeof *f->out);
    if (f->buffer == NULL || f->in == NULL || f->out == NULL)
        return FERRY_FAIL(err, FERRY_ERR_NOMEM, "fabric: no memory for messages");
    group_init(&f->group, &f->limits, group_send, f);
    f->view.issuer = -1;
    atomic_store_explicit(&f->seat_number, UINT32_MAX, memory_order_relaxed);
    for (int s = 0; s < LIMIT_SEATS; s++) {
        f->view.seats[s].link = LINK_UNKNOWN;
        atomic_store_explicit(&f->links[s], LINK_UNKNOWN, memory_order_relaxed);
    }
    f->has_lock = pthread_mutex_init(&f->lock, NULL) == 0;
    f->has_cond = pthread_cond_init(&f->started, NULL) == 0;
    if (f->has_lock && f->has_cond)
        f->has_thread = pthread_create(&f->thread, NULL, thread_main, f) == 0;
    if (!f->has_thread)
        return FERRY_FAIL(err, FERRY_ERR_IO, "fabric: cannot start its thread");
    return FERRY_OK;
}

/* By the transport's clock: with a virtual one, blocking in another way would stop time. */
static enum ferry_status wait_entered(struct fabric *f, struct ferry_error *err)
{
    enum ferry_status st;

    (void)pthread_mutex_lock(&f->lock);
    while (!f->created)
        (void)pthread_cond_wait(&f->started, &f->lock);
    st = f->status;
    (void)pthread_mutex_unlock(&f->lock);
    while (st == FERRY_OK) {
        uint32_t seen = lane_bell_rings(f->bell);
        (void)pthread_mutex_lock(&f->lock);
        bool entered = f->entered;
        st = f->status;
        (void)pthread_mutex_unlock(&f->lock);
        if (entered)
            break;
        f->ops->sleep(f->transport, seen, f->limits.heartbeat_ns);
    }
    if (st != FERRY_OK && err != NULL) {
        (void)pthread_mutex_lock(&f->lock);
        *err = f->error;
        (void)pthread_mutex_unlock(&f->lock);
    }
    return st;
}

enum ferry_status fabric_create(struct fabric **ret_fabric, const struct fabric_options *options,
                                struct ferry_error *err)
{
    struct fabric *f = NULL;
    enum ferry_status st = check_options(options, err);

    if (st != FERRY_OK)
        return st;
    f = mem_zero(sizeof *f);
    if (f == NULL)
        return FERRY_FAIL(err, FERRY_ERR_NOMEM, "fabric: no memory for %zu bytes", sizeof *f);
    st = make(f, options, err);
    if (st == FERRY_OK)
        st = wait_entered(f, err);
    if (st == FERRY_OK && options->metrics != NULL)
        st = stats_create(f, err);
    if (st != FERRY_OK) {
        fabric_destroy(f);
        return st;
    }
    *ret_fabric = f;
    return FERRY_OK;
}

void fabric_destroy(struct fabric *fabric)
{
    struct fabric *f = fabric;

    if (f == NULL)
        return;
    if (f->has_thread) {
        atomic_store_explicit(&f->stop, true, memory_order_release);
        if (f->transport != NULL) {
            f->ops->wake(f->transport);
            if (f->hub != NULL)
                fabric_hub_leave(f->hub); /* a virtual clock does not wait for the join */
        }
        (void)pthread_join(f->thread, NULL);
    }
    if (f->transport != NULL) {
        peers_free(f);
        f->ops->destroy(f->transport);
    }
    topic_free(f);
    stats_destroy(f);
    if (f->has_cond)
        (void)pthread_cond_destroy(&f->started);
    if (f->has_lock)
        (void)pthread_mutex_destroy(&f->lock);
    mem_free(f->buffer);
    mem_free(f->in);
    mem_free(f->out);
    mem_free(f->texts);
    mem_free(f->terms);
    mem_free(f->key);
    mem_free(f);
}

/* ---- what others ask ---- */

int fabric_seat(const struct fabric *fabric)
{
    return (int)atomic_load_explicit(&fabric->seat_number, memory_order_relaxed);
}

size_t fabric_n_seats(const struct fabric *fabric)
{
    return fabric->options.n_seats;
}

void fabric_address(const struct fabric *fabric, char ret_address[TRANSPORT_ADDRESS_MAX])
{
    fabric->ops->address(fabric->transport, ret_address);
}

uint64_t fabric_now_ns(const struct fabric *fabric)
{
    return fabric->ops->now_ns(fabric->transport);
}

static void wish(struct fabric *fabric, uint32_t wish)
{
    (void)atomic_fetch_or_explicit(&fabric->wishes, wish, memory_order_relaxed);
    fabric->ops->wake(fabric->transport);
}

void fabric_ready(struct fabric *fabric)
{
    wish(fabric, WIRE_BEAT_READY);
}

void fabric_drain(struct fabric *fabric)
{
    wish(fabric, WIRE_BEAT_DRAIN);
}

void fabric_settle(struct fabric *fabric, uint32_t epoch)
{
    atomic_store_explicit(&fabric->settled, epoch, memory_order_relaxed);
    fabric->ops->wake(fabric->transport);
}

void fabric_progress(struct fabric *fabric, uint64_t counter, bool busy)
{
    atomic_store_explicit(&fabric->progress, counter, memory_order_relaxed);
    if (busy)
        (void)atomic_fetch_or_explicit(&fabric->wishes, WIRE_BEAT_BUSY, memory_order_relaxed);
    else
        (void)atomic_fetch_and_explicit(&fabric->wishes, ~(uint32_t)WIRE_BEAT_BUSY,
                                        memory_order_relaxed);
}

void fabric_view(struct fabric *fabric, struct fabric_view *ret_view)
{
    (void)pthread_mutex_lock(&fabric->lock);
    *ret_view = fabric->view;
    (void)pthread_mutex_unlock(&fabric->lock);
    uint64_t now_ns = fabric_now_ns(fabric);
    for (int s = 0; s < LIMIT_SEATS; s++) {
        uint64_t heard_ns = ret_view->seats[s].heard_ns;
        if (s == fabric_seat(fabric))
            heard_ns = now_ns;
        ret_view->seats[s].heard_ns = now_ns > heard_ns ? now_ns - heard_ns : 0;
    }
}

void fabric_refusal(struct fabric *fabric, char *ret_text, size_t size)
{
    (void)pthread_mutex_lock(&fabric->lock);
    (void)snprintf(ret_text, size, "%s", fabric->refusal);
    (void)pthread_mutex_unlock(&fabric->lock);
}

uint32_t fabric_epoch(const struct fabric *fabric)
{
    return atomic_load_explicit(&fabric->epoch, memory_order_acquire);
}

uint64_t fabric_live(const struct fabric *fabric)
{
    return atomic_load_explicit(&fabric->live, memory_order_acquire);
}

enum link_class fabric_link(const struct fabric *fabric, int seat)
{
    if (seat == fabric_seat(fabric))
        return LINK_LOCAL;
    return (enum link_class)atomic_load_explicit(&fabric->links[seat], memory_order_relaxed);
}

bool fabric_is_near(const struct fabric *fabric)
{
    int n_seats = (int)fabric_n_seats(fabric);

    for (int s = 0; s < n_seats; s++) {
        enum link_class link = fabric_link(fabric, s);
        if (link != LINK_LOCAL && link <= LINK_PCIE)
            return true;
    }
    return false;
}

/* Of "host:port". */
static size_t host_length(const char *address)
{
    const char *colon = strrchr(address, ':');

    return colon != NULL ? (size_t)(colon - address) : strlen(address);
}

uint64_t fabric_mates(struct fabric *fabric, int seat)
{
    uint64_t mates = UINT64_C(1) << seat;

    (void)pthread_mutex_lock(&fabric->lock);
    const char *address = fabric->view.seats[seat].address;
    size_t n = host_length(address);
    for (int s = 0; s < LIMIT_SEATS && n > 0; s++) {
        const char *other = fabric->view.seats[s].address;
        if (host_length(other) == n && strncmp(address, other, n) == 0)
            mates |= UINT64_C(1) << s;
    }
    (void)pthread_mutex_unlock(&fabric->lock);
    return mates;
}

static void describe_seats(struct fabric *fabric, char *text, size_t size)
{
    struct fabric_view view;
    size_t used = 0;

    fabric_view(fabric, &view);
    text[0] = 0;
    for (size_t s = 0; s < fabric_n_seats(fabric) && used + 1 < size; s++) {
        int n = snprintf(text + used, size - used, "%s%zu %s", s > 0 ? ", " : "", s,
                         seat_state_name(view.seats[s].state));
        used += n > 0 ? (size_t)n : 0;
    }
}

enum ferry_status fabric_wait_live(struct fabric *fabric, size_t n, uint64_t timeout_ns,
                                   struct ferry_error *err)
{
    uint64_t begin_ns = fabric_now_ns(fabric);
    char text[WIRE_TEXT_MAX];

    for (;;) {
        uint32_t seen = fabric_rings(fabric);
        size_t n_live = (size_t)__builtin_popcountll(fabric_live(fabric));
        uint64_t waited_ns = fabric_now_ns(fabric) - begin_ns;

        if (n_live >= n)
            return FERRY_OK;
        if (waited_ns >= timeout_ns) {
            describe_seats(fabric, text, sizeof text);
            return FERRY_FAIL(err, FERRY_ERR_TIMEOUT,
                              "fabric: %zu of %zu wanted seats are live after %llu ms: seats %s",
                              n_live, n, (unsigned long long)(timeout_ns / MS), text);
        }
        fabric->ops->sleep(fabric->transport, seen, timeout_ns - waited_ns);
    }
}

void fabric_on_message(struct fabric *fabric, enum fabric_topic topic, fabric_message_fn *fn,
                       void *arg)
{
    (void)pthread_mutex_lock(&fabric->lock);
    fabric->on_message[topic] = fn;
    fabric->on_message_arg[topic] = arg;
    (void)pthread_mutex_unlock(&fabric->lock);
    fabric->ops->wake(fabric->transport);
}

void fabric_on_change(struct fabric *fabric, fabric_change_fn *fn, void *arg)
{
    (void)pthread_mutex_lock(&fabric->lock);
    fabric->on_change = fn;
    fabric->on_change_arg = arg;
    (void)pthread_mutex_unlock(&fabric->lock);
}
