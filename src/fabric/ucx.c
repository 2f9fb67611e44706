/* The transport `ucx`: processes of one host and of several.
 *
 * Why here: this file has the listener, the poll loop that waits for everything at once, and the
 * list of operations. Which road a lane takes is ucx_lane.c's, what UCX does is ucx_worker.c's. It
 * must not know seats or what messages mean. */
#include "base/alloc.h"
#include "base/clock.h"
#include "base/error.h"
#include "fabric/ucx_impl.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

enum { EVENTS_MAX = 64, LINGER_LOOKS = 250 };
static const uint64_t SWEEP_NS = 50000000;
static const uint64_t DEAF_NS = 1000000, DEAF_MOST_NS = 1000000000; /* see doze */

/* ---- create ---- */

static enum ferry_status add_to_epoll(struct transport *transport, int fd, void *what,
                                      struct ferry_error *err)
{
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = what};

    if (epoll_ctl(transport->epoll_fd, EPOLL_CTL_ADD, fd, &event) != 0)
        return FERRY_FAIL(err, FERRY_ERR_IO, "ucx: epoll: %s", strerror(errno));
    return FERRY_OK;
}

static enum ferry_status make_descriptors(struct transport *transport, struct ferry_error *err)
{
    transport->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    transport->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    transport->ring_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (transport->epoll_fd < 0 || transport->wake_fd < 0 || transport->ring_fd < 0)
        return FERRY_FAIL(err, FERRY_ERR_IO, "ucx: no descriptors: %s", strerror(errno));
    return add_to_epoll(transport, transport->wake_fd, &transport->wake_fd, err);
}

static enum ferry_status make_listener(struct transport *transport, const char *text,
                                       struct ferry_error *err)
{
    struct ucx_address address;
    struct sockaddr_storage own;
    socklen_t n = sizeof own;
    const int one = 1;
    enum ferry_status st = ucx_address_parse(&address, text, AF_UNSPEC, err);

    if (st != FERRY_OK)
        return st;
    transport->family = address.storage.ss_family;
    transport->listen_fd = socket(transport->family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    /* The connections of a rank that died still wait in the kernel: they are no reason to refuse
     * the next one its place. */
    if (transport->listen_fd < 0 ||
        setsockopt(transport->listen_fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one) != 0 ||
        bind(transport->listen_fd, (struct sockaddr *)&address.storage, address.n_bytes) != 0 ||
        listen(transport->listen_fd, SOMAXCONN) != 0 ||
        getsockname(transport->listen_fd, (struct sockaddr *)&own, &n) != 0)
        return FERRY_FAIL(err, FERRY_ERR_IO, "ucx: cannot listen on %s: %s", text,
                          errno == EADDRINUSE ? "the address is in use; choose another port"
                                              : strerror(errno));
    ucx_address_format(&own, transport->address);
    ucx_address_device(&own, transport->device);
    transport->listens = true;
    return add_to_epoll(transport, transport->listen_fd, &transport->listen_fd, err);
}

static enum ferry_status make_bell(struct transport *transport, struct ferry_error *err)
{
    transport->host = transport->no_share ? 0 : ucx_host_id();
    return transport->no_share
               ? ucx_memory_own(&transport->bell, sizeof(struct lane_bell), "the bell", err)
               : ucx_memory_share(&transport->bell, sizeof(struct lane_bell), "the bell", err);
}

static enum ferry_status make_lock(struct transport *transport, struct ferry_error *err)
{
    pthread_mutexattr_t recursive; /* events, which hold it, call operations that take it */

    if (pthread_mutexattr_init(&recursive) == 0) {
        transport->has_lock = pthread_mutexattr_settype(&recursive, PTHREAD_MUTEX_RECURSIVE) == 0 &&
                              pthread_mutex_init(&transport->lock, &recursive) == 0;
        (void)pthread_mutexattr_destroy(&recursive);
    }
    return transport->has_lock ? FERRY_OK : FERRY_FAIL(err, FERRY_ERR_NOMEM, "ucx: no lock");
}

static bool variable_is_set(const char *name)
{
    const char *value = getenv(name);

    return value != NULL && value[0] != 0 && strcmp(value, "0") != 0;
}

static void transport_ucx_destroy(struct transport *transport);

static enum ferry_status transport_ucx_create(struct transport **ret,
                                              const struct transport_options *options,
                                              struct ferry_error *err)
{
    struct transport *transport = mem_zero(sizeof *transport);

    if (transport == NULL)
        return FERRY_FAIL(err, FERRY_ERR_NOMEM, "ucx: no memory for %zu bytes", sizeof *transport);
    transport->events = options->events;
    transport->spin_ns = options->spin_ns;
    transport->deaf_ns = DEAF_NS;
    transport->no_share = variable_is_set("FERRY_FABRIC_NO_SHM");
    transport->listen_fd = transport->wake_fd = transport->epoll_fd = transport->bell.fd = -1;
    transport->worker_fd = transport->ring_fd = -1;
    enum ferry_status st = make_lock(transport, err);
    if (st == FERRY_OK)
        st = make_descriptors(transport, err);
    if (st == FERRY_OK)
        st = make_listener(transport, options->listen, err);
    if (st == FERRY_OK)
        st = make_bell(transport, err);
    if (st != FERRY_OK) {
        transport_ucx_destroy(transport);
        return st;
    }
    if (options->ret_bell != NULL)
        *options->ret_bell = ucx_bell(transport);
    *ret = transport;
    return FERRY_OK;
}

static void close_if_open(int fd)
{
    if (fd >= 0)
        (void)close(fd);
}

static void transport_ucx_destroy(struct transport *transport)
{
    if (transport == NULL)
        return;
    for (size_t i = 0; i < UCX_CONNS; i++) {
        if (transport->conns[i] != NULL)
            ucx_close(transport->conns[i], false);
    }
    ucx_conn_reap(transport, false); /* new endpoints linger for 200 ms */
    for (int i = 0; transport->closed != NULL && i < LINGER_LOOKS; i++) {
        (void)ucx_worker_progress(transport);
        (void)usleep(1000);
        ucx_conn_reap(transport, false);
    }
    (void)ucx_worker_progress(transport);
    ucx_worker_destroy(transport); /* what still waited is over now */
    ucx_conn_reap(transport, true);
    ucx_quarantine_sweep(transport, true);
    ucx_memory_fini(&transport->bell);
    close_if_open(transport->listen_fd);
    close_if_open(transport->wake_fd);
    close_if_open(transport->ring_fd);
    close_if_open(transport->epoll_fd);
    if (transport->has_lock)
        (void)pthread_mutex_destroy(&transport->lock);
    mem_free(transport);
}

/* ---- poll ---- */

/* Watches the listener or not. */
static void set_listens(struct transport *transport, bool listens)
{
    struct epoll_event event = {.events = listens ? EPOLLIN : 0u,
                                .data.ptr = &transport->listen_fd};

    if (epoll_ctl(transport->epoll_fd, EPOLL_CTL_MOD, transport->listen_fd, &event) == 0)
        transport->listens = listens;
}

/* Moves what has come and what can go, on all descriptors. None of it reports to the owner, so that
 * no connection in the list of events can go away meanwhile. */
static void move_all(struct transport *transport)
{
    struct epoll_event events[EVENTS_MAX];
    uint64_t count;
    int n = epoll_wait(transport->epoll_fd, events, EVENTS_MAX, 0);

    for (int i = 0; i < n; i++) {
        void *what = events[i].data.ptr;
        if (what == &transport->wake_fd) {
            if (read(transport->wake_fd, &count, sizeof count) < 0)
                continue; /* somebody else's wake was already taken: nothing to do */
        } else if (what == &transport->listen_fd) {
            if (!ucx_conn_accept(transport)) /* until something was closed */
                set_listens(transport, false);
        } else {
            ucx_conn_move(what, events[i].events);
        }
    }
}

static void sweep(struct transport *transport)
{
    uint64_t now_ns = clock_now_ns();

    if (now_ns - transport->swept_ns < SWEEP_NS)
        return;
    transport->swept_ns = now_ns;
    ucx_quarantine_sweep(transport, false);
    ucx_conn_expire(transport, now_ns);
    if (!transport->listens)
        set_listens(transport, true);
}

/* One round: what has arrived, events, what is to be sent. Returns the number of events. */
static size_t pass(struct transport *transport)
{
    ucx_lock(transport);
    move_all(transport);
    (void)ucx_move_data(transport);
    ucx_ship(transport);
    transport->has_failed = false;
    size_t n = ucx_conn_deliver(transport);
    ucx_conn_reap(transport, false);
    sweep(transport);
    ucx_unlock(transport);
    return n;
}

static bool must_sweep(const struct transport *transport)
{
    return transport->quarantine != NULL || transport->closed != NULL || !transport->listens ||
           ucx_conn_strangers(transport) > 0;
}

/* Sleeps until a descriptor has something, or somebody wakes, or the time is over. Data that the
 * engine's thread moves wakes nobody here: for DEAF_NS, since it may stop doing so at any time
 * without a word; longer only with `deaf`, upon which it says so. */
static void doze(struct transport *transport, uint64_t timeout_ns)
{
    uint32_t drives = atomic_load(&transport->drives);
    struct pollfd fds[] = {{.fd = transport->epoll_fd, .events = POLLIN},
                           {.fd = transport->worker_fd, .events = POLLIN}};

    if (timeout_ns > SWEEP_NS && must_sweep(transport))
        timeout_ns = SWEEP_NS;
    /* In one order with what the wakers do: they note the work, then look for a sleeper. */
    atomic_store(&transport->asleep, true);
    atomic_store(&transport->deaf, transport->deaf_ns > DEAF_NS);
    bool driven = atomic_load(&transport->driven);
    if (driven && timeout_ns > transport->deaf_ns)
        timeout_ns = transport->deaf_ns;
    ucx_lock(transport);
    bool may_sleep = !atomic_load(&transport->woken) && !transport->has_failed &&
                     !ucx_ship_due(transport) && (driven || ucx_worker_may_sleep(transport));
    ucx_unlock(transport);
    if (may_sleep)
        (void)ucx_wait(fds, driven || transport->worker_fd < 0 ? 1 : 2, timeout_ns);
    atomic_store(&transport->deaf, false);
    atomic_store(&transport->asleep, false);
    /* Longer only while nothing happens: otherwise it would be woken at every turn. */
    bool quiet = atomic_load(&transport->driven) && drives == atomic_load(&transport->drives);
    transport->deaf_ns = !quiet                              ? DEAF_NS
                         : transport->deaf_ns < DEAF_MOST_NS ? 2 * transport->deaf_ns
                                                             : transport->deaf_ns;
}

static void transport_ucx_poll(struct transport *transport, uint64_t timeout_ns)
{
    uint64_t begin_ns = clock_now_ns();

    for (;;) {
        bool woken = atomic_exchange(&transport->woken, false);
        if (pass(transport) > 0 || woken)
            return;
        uint64_t waited_ns = clock_now_ns() - begin_ns;
        if (waited_ns >= timeout_ns)
            return;
        doze(transport, timeout_ns - waited_ns);
    }
}

void ucx_nudge(struct transport *transport)
{
    const uint64_t one = 1;

    if (!atomic_exchange(&transport->asleep, false))
        return;
    if (write(transport->wake_fd, &one, sizeof one) < 0)
        return; /* the counter is full: it is readable, which is all that is wanted */
}

static void transport_ucx_wake(struct transport *transport)
{
    atomic_store(&transport->woken, true);
    ucx_nudge(transport);
}

/* ---- with the lock ---- */

static enum ferry_status transport_ucx_connect(struct transport *transport, const char *address,
                                               struct transport_conn **ret_conn,
                                               struct ferry_error *err)
{
    ucx_lock(transport);
    enum ferry_status st = ucx_connect(transport, address, ret_conn, err);
    ucx_unlock(transport);
    return st;
}

static enum ferry_status transport_ucx_send(struct transport_conn *conn, const void *data,
                                            size_t n_bytes)
{
    struct transport *transport = conn->owner;

    ucx_lock(transport);
    enum ferry_status st = ucx_send(conn, data, n_bytes);
    ucx_unlock(transport);
    return st;
}

static void transport_ucx_close(struct transport_conn *conn, bool keep_lanes)
{
    struct transport *transport = conn->owner;

    ucx_lock(transport);
    ucx_close(conn, keep_lanes);
    ucx_unlock(transport);
}

static enum ferry_status transport_ucx_offer(struct transport_conn *conn,
                                             const struct transport_lanes *lanes, void *ret_offer,
                                             size_t *ret_bytes, struct ferry_error *err)
{
    struct transport *transport = conn->owner;

    ucx_lock(transport);
    enum ferry_status st = ucx_offer(conn, lanes, ret_offer, ret_bytes, err);
    ucx_unlock(transport);
    return st;
}

static enum ferry_status transport_ucx_accept(struct transport_conn *conn, const void *offer,
                                              size_t n_bytes, struct ferry_error *err)
{
    struct transport *transport = conn->owner;

    ucx_lock(transport);
    enum ferry_status st = ucx_accept(conn, offer, n_bytes, err);
    ucx_unlock(transport);
    return st;
}

/* ---- the rest ---- */

static void transport_ucx_address(const struct transport *transport,
                                  char ret_address[TRANSPORT_ADDRESS_MAX])
{
    memcpy(ret_address, transport->address, TRANSPORT_ADDRESS_MAX);
}

static uint64_t transport_ucx_now_ns(const struct transport *transport)
{
    (void)transport;
    return clock_now_ns();
}

/* Only of a process of this host; another host's end cannot be told from a broken road. */
static bool is_gone(const struct transport_conn *conn)
{
    return ucx_watch_is_gone(&conn->watch);
}

const struct transport_ops transport_ucx = {
    .name = "ucx",
    .create = transport_ucx_create,
    .destroy = transport_ucx_destroy,
    .address = transport_ucx_address,
    .connect = transport_ucx_connect,
    .send = transport_ucx_send,
    .close = transport_ucx_close,
    .offer = transport_ucx_offer,
    .accept = transport_ucx_accept,
    .lane = ucx_lane,
    .link = ucx_link,
    .poll = transport_ucx_poll,
    .wake = transport_ucx_wake,
    .now_ns = transport_ucx_now_ns,
    .sleep = ucx_sleep,
    .ring = ucx_ring,
    .quarantined = ucx_quarantined,
    .gone = is_gone,
};
