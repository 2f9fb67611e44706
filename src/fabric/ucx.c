/* The transport `ucx`: processes of one host and of several.
 *
 * Why here: UCX knows shared memory, TCP and RDMA, notices a dead peer within milliseconds, and
 * lets one that was killed leave nothing behind. This file has its context, worker and listener,
 * the settings that were measured for UCX 1.13.1 (docs/decisions/0006-ucx.md), and the poll loop.
 * It must not know seats or what messages mean. */
#include "base/alloc.h"
#include "base/clock.h"
#include "base/error.h"
#include "fabric/ucx_impl.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>
#include <ucs/debug/debug.h>
#include <unistd.h>

enum { PROGRESS_MAX = 64 }; /* calls of UCX before events are handed out */
static const uint64_t SWEEP_NS = 50000000;

/* ---- settings ---- */

/* UCX's library takes SIGSEGV and its like when it is loaded, prints where it was and may wait for
 * a debugger. Those signals belong to the program: a sanitizer's reports, and our own handler for
 * files that shrink. Runs before main, so that nobody has set a handler of his own yet. */
__attribute__((constructor)) static void give_signals_back(void)
{
    static const int signals[] = {SIGILL, SIGSEGV, SIGBUS, SIGFPE}; /* UCX_ERROR_SIGNALS' default */

    if (getenv("UCX_HANDLE_ERRORS") != NULL || getenv("UCX_ERROR_SIGNALS") != NULL)
        return;
    for (size_t i = 0; i < sizeof signals / sizeof signals[0]; i++)
        ucs_debug_disable_signal(signals[i]);
}

/* A rank that was killed is started again at the same address at once, where the kernel keeps its
 * former connections for a minute. UCX 1.13 reads this setting, its listener's, from the
 * environment only (ucp_config_modify takes it and does nothing); before main, when no thread can
 * be reading that. */
__attribute__((constructor)) static void listen_again(void)
{
    (void)setenv("UCX_TCP_CM_REUSEADDR", "y", 0);
}

/* UCX knows the settings of its parts by two names: in the environment with the part's prefix, in
 * ucp_config_modify without (it warns about the other, and goes on with the default). */
struct setting {
    const char *variable, *name, *value;
    enum { USUAL, FIXED, WITH_TLS } kind; /* FIXED: not the user's, something here relies on it */
};

static const struct setting SETTINGS[] = {
    /* Inside a host, too: data goes through memory that is not UCX's, so that its shared memory
     * would carry control messages only. It costs 4 MB of /dev/shm per process, and leaves files
     * there when a process is killed while it makes them. A user may list others, RDMA for one. */
    {"UCX_TLS", "TLS", "tcp,self", USUAL},
    /* Of shared memory, if it is listed: without the first, UCX does not use it. */
    {"UCX_MM_ERROR_HANDLING", "MM_ERROR_HANDLING", "y", WITH_TLS},
    {"UCX_POSIX_USE_PROC_LINK", "USE_PROC_LINK", "y", WITH_TLS},
    {"UCX_KEEPALIVE_INTERVAL", "KEEPALIVE_INTERVAL", "100ms", USUAL},
    {"UCX_TCP_AF_PRIO", "AF_PRIO", "inet,inet6", USUAL},
    {"UCX_TCP_KEEPIDLE", "KEEPIDLE", "1s", USUAL},
    {"UCX_TCP_KEEPINTVL", "KEEPINTVL", "1s", USUAL},
    {"UCX_TCP_KEEPCNT", "KEEPCNT", "2", USUAL},
    /* One TCP connection to a peer carries everything, besides that by which it was made. */
    {"UCX_MAX_EAGER_LANES", "MAX_EAGER_LANES", "1", USUAL},
    {"UCX_MAX_RNDV_LANES", "MAX_RNDV_LANES", "1", USUAL},
    /* A cache of registered memory, which TCP does not need: for it UCX patches mmap, munmap,
     * madvise and others of the whole process. */
    {"UCX_RCACHE_ENABLE", "RCACHE_ENABLE", "n", USUAL},
    /* See ucx_conn_post. */
    {"UCX_TCP_PUT_ENABLE", "PUT_ENABLE", "n", FIXED},
    /* A library prints nothing: errors reach the caller. */
    {"UCX_LOG_LEVEL", "LOG_LEVEL", "fatal", USUAL},
};

static enum ferry_status ucx_fail(ucs_status_t status, const char *what, struct ferry_error *err)
{
    return FERRY_FAIL(err, status == UCS_ERR_NO_MEMORY ? FERRY_ERR_NOMEM : FERRY_ERR_IO,
                      "ucx: %s: %s; UCX_LOG_LEVEL=info says more", what, ucs_status_string(status));
}

/* The value for this transport. UCX connects by one family, whatever a listener's address is. */
static const char *value_for(const struct transport *transport, const struct setting *setting)
{
    if (transport->family == AF_INET6 && strcmp(setting->name, "AF_PRIO") == 0)
        return "inet6,inet";
    return setting->value;
}

static enum ferry_status set_options(const struct transport *transport, ucp_config_t *config,
                                     struct ferry_error *err)
{
    for (size_t i = 0; i < sizeof SETTINGS / sizeof SETTINGS[0]; i++) {
        const struct setting *setting = &SETTINGS[i];
        if ((setting->kind != FIXED && getenv(setting->variable) != NULL) ||
            (setting->kind == WITH_TLS && getenv("UCX_TLS") == NULL))
            continue;
        const char *value = value_for(transport, setting);
        ucs_status_t status = ucp_config_modify(config, setting->name, value);
        if (status != UCS_OK) {
            char what[128];
            (void)snprintf(what, sizeof what, "cannot set %s=%s", setting->variable, value);
            return ucx_fail(status, what, err);
        }
    }
    return FERRY_OK;
}

/* ---- create ---- */

static enum ferry_status make_context(struct transport *transport, struct ferry_error *err)
{
    ucp_config_t *config;
    const ucp_params_t params = {
        .field_mask = UCP_PARAM_FIELD_FEATURES | UCP_PARAM_FIELD_NAME,
        .features = UCP_FEATURE_AM | UCP_FEATURE_WAKEUP,
        .name = "ferry",
    };

    ucs_status_t status = ucp_config_read(NULL, NULL, &config);
    if (status != UCS_OK)
        return ucx_fail(status, "cannot read its settings", err);
    enum ferry_status st = set_options(transport, config, err);
    if (st == FERRY_OK) {
        status = ucp_init(&params, config, &transport->context);
        if (status != UCS_OK) {
            transport->context = NULL;
            st = ucx_fail(status, "cannot start (are the transports of UCX_TLS there?)", err);
        }
    }
    ucp_config_release(config);
    return st;
}

static enum ferry_status make_worker(struct transport *transport, struct ferry_error *err)
{
    static const ucp_am_recv_callback_t handlers[UCX_N_MESSAGES] = {
        [UCX_HELLO] = ucx_on_hello,
        [UCX_CONTROL] = ucx_on_control,
        [UCX_DATA] = ucx_on_data,
        [UCX_CREDIT] = ucx_on_credit,
    };
    const ucp_worker_params_t params = {
        .field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE,
        .thread_mode = UCS_THREAD_MODE_SINGLE,
    };

    ucs_status_t status = ucp_worker_create(transport->context, &params, &transport->worker);
    if (status != UCS_OK) {
        transport->worker = NULL;
        return ucx_fail(status, "cannot make a worker", err);
    }
    status = ucp_worker_get_efd(transport->worker, &transport->worker_fd);
    for (unsigned id = 0; id < UCX_N_MESSAGES && status == UCS_OK; id++) {
        const ucp_am_handler_param_t handler = {
            .field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_FLAGS |
                          UCP_AM_HANDLER_PARAM_FIELD_CB | UCP_AM_HANDLER_PARAM_FIELD_ARG,
            .id = id,
            .flags = UCP_AM_FLAG_WHOLE_MSG,
            .cb = handlers[id],
            .arg = transport,
        };
        status = ucp_worker_set_am_recv_handler(transport->worker, &handler);
    }
    if (status != UCS_OK)
        return ucx_fail(status, "cannot prepare a worker", err);
    return FERRY_OK;
}

/* Connections are made after the callback has returned: see ucx_impl.h. */
static void on_request(ucp_conn_request_h handle, void *arg)
{
    struct transport *transport = arg;
    struct ucx_request *request = mem_alloc(sizeof *request);

    if (request == NULL) {
        (void)ucp_listener_reject(transport->listener, handle);
        return;
    }
    *request = (struct ucx_request){.next = transport->requests, .handle = handle};
    transport->requests = request;
}

static enum ferry_status make_listener(struct transport *transport,
                                       const struct ucx_address *address, const char *text,
                                       struct ferry_error *err)
{
    const ucp_listener_params_t params = {
        .field_mask = UCP_LISTENER_PARAM_FIELD_SOCK_ADDR | UCP_LISTENER_PARAM_FIELD_CONN_HANDLER,
        .sockaddr = {.addr = (const struct sockaddr *)&address->storage,
                     .addrlen = address->n_bytes},
        .conn_handler = {.cb = on_request, .arg = transport},
    };
    ucs_status_t status = ucp_listener_create(transport->worker, &params, &transport->listener);
    if (status != UCS_OK) {
        transport->listener = NULL;
        const char *hint = status == UCS_ERR_BUSY ? "the address is in use; choose another port"
                                                  : ucs_status_string(status);
        return FERRY_FAIL(err, FERRY_ERR_IO, "ucx: cannot listen on %s: %s", text, hint);
    }
    ucp_listener_attr_t attr = {.field_mask = UCP_LISTENER_ATTR_FIELD_SOCKADDR};
    status = ucp_listener_query(transport->listener, &attr);
    if (status != UCS_OK)
        return ucx_fail(status, "cannot say where it listens", err);
    ucx_address_format(&attr.sockaddr, transport->address);
    return FERRY_OK;
}

static enum ferry_status make_bell(struct transport *transport, struct ferry_error *err)
{
    transport->host = transport->no_share ? 0 : ucx_host_id();
    return transport->no_share
               ? ucx_memory_own(&transport->bell, sizeof(struct lane_bell), "the bell", err)
               : ucx_memory_share(&transport->bell, sizeof(struct lane_bell), "the bell", err);
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
    struct ucx_address address = {.n_bytes = 0};

    if (transport == NULL)
        return FERRY_FAIL(err, FERRY_ERR_NOMEM, "ucx: no memory for %zu bytes", sizeof *transport);
    transport->events = options->events;
    transport->no_share = variable_is_set("FERRY_FABRIC_NO_SHM");
    transport->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    enum ferry_status st = ucx_address_parse(&address, options->listen, AF_UNSPEC, err);
    if (st == FERRY_OK && transport->wake_fd < 0)
        st = FERRY_FAIL(err, FERRY_ERR_IO, "ucx: no eventfd: %s", strerror(errno));
    transport->family = address.storage.ss_family;
    if (st == FERRY_OK)
        st = make_context(transport, err);
    if (st == FERRY_OK)
        st = make_worker(transport, err);
    if (st == FERRY_OK)
        st = make_bell(transport, err);
    if (st == FERRY_OK)
        st = make_listener(transport, &address, options->listen, err);
    if (st != FERRY_OK) {
        transport_ucx_destroy(transport);
        return st;
    }
    if (options->ret_bell != NULL)
        *options->ret_bell = (struct lane_bell *)(void *)transport->bell.region->data;
    *ret = transport;
    return FERRY_OK;
}

static void refuse_requests(struct transport *transport)
{
    while (transport->requests != NULL) {
        struct ucx_request *request = transport->requests;
        transport->requests = request->next;
        (void)ucp_listener_reject(transport->listener, request->handle);
        mem_free(request);
    }
}

static void transport_ucx_destroy(struct transport *transport)
{
    enum { PASSES = 1000 };

    if (transport == NULL)
        return;
    refuse_requests(transport);
    if (transport->listener != NULL)
        ucp_listener_destroy(transport->listener);
    for (size_t i = 0; i < UCX_CONNS; i++) {
        if (transport->conns[i] != NULL)
            ucx_close(transport->conns[i], false);
    }
    for (int i = 0; i < PASSES && transport->closed != NULL; i++) {
        (void)ucp_worker_progress(transport->worker);
        ucx_conn_reap(transport, false);
    }
    if (transport->worker != NULL)
        ucp_worker_destroy(transport->worker); /* what still waited is over now */
    ucx_conn_reap(transport, true);
    ucx_quarantine_sweep(transport, true);
    ucx_memory_fini(&transport->bell);
    if (transport->context != NULL)
        ucp_cleanup(transport->context);
    if (transport->wake_fd >= 0)
        (void)close(transport->wake_fd);
    mem_free(transport);
}

/* ---- poll ---- */

/* Lets UCX work until it has nothing more to do; false: it still had. */
static bool progress(struct transport *transport)
{
    for (int i = 0; i < PROGRESS_MAX; i++) {
        if (ucp_worker_progress(transport->worker) == 0)
            return true;
    }
    return false;
}

static void accept_requests(struct transport *transport)
{
    while (transport->requests != NULL) {
        struct ucx_request *request = transport->requests;
        transport->requests = request->next;
        ucx_conn_accept(transport, request->handle);
        mem_free(request);
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
}

/* One round: what has arrived, events, what is to be sent. Returns the number of events. */
static size_t pass(struct transport *transport)
{
    bool idle = progress(transport);

    accept_requests(transport);
    if (transport->ring_bell) {
        transport->ring_bell = false;
        lane_bell_ring((struct lane_bell *)(void *)transport->bell.region->data);
    }
    ucx_ship(transport);
    size_t n = ucx_conn_deliver(transport, idle);
    ucx_conn_reap(transport, false);
    sweep(transport);
    return n;
}

/* Sleeps until UCX has something, or somebody wakes, or the time is over. */
static void doze(struct transport *transport, uint64_t timeout_ns)
{
    struct pollfd fds[] = {{.fd = transport->worker_fd, .events = POLLIN},
                           {.fd = transport->wake_fd, .events = POLLIN}};
    uint64_t count;

    if ((transport->quarantine != NULL || transport->closed != NULL ||
         ucx_conn_strangers(transport)) &&
        timeout_ns > SWEEP_NS)
        timeout_ns = SWEEP_NS;
    /* In one order with what the wakers do: note the work, then look for a sleeper. */
    atomic_store(&transport->asleep, true);
    if (!atomic_load(&transport->woken) && !ucx_ship_due(transport) &&
        ucp_worker_arm(transport->worker) == UCS_OK) {
        const struct timespec timeout = {.tv_sec = (time_t)(timeout_ns / 1000000000u),
                                         .tv_nsec = (long)(timeout_ns % 1000000000u)};
        (void)ppoll(fds, 2, &timeout, NULL);
        if ((fds[1].revents & POLLIN) != 0 && read(transport->wake_fd, &count, sizeof count) < 0)
            (void)0; /* somebody else's wake was already taken: nothing to do */
    }
    atomic_store(&transport->asleep, false);
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
        (void)0; /* the counter is full: it is readable, which is all that is wanted */
}

static void transport_ucx_wake(struct transport *transport)
{
    atomic_store(&transport->woken, true);
    ucx_nudge(transport);
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

static void transport_ucx_sleep(struct transport *transport, uint32_t seen, uint64_t timeout_ns)
{
    lane_bell_sleep((struct lane_bell *)(void *)transport->bell.region->data, seen, timeout_ns);
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
    .connect = ucx_connect,
    .send = ucx_send,
    .close = ucx_close,
    .offer = ucx_offer,
    .accept = ucx_accept,
    .lane = ucx_lane,
    .link = ucx_link,
    .poll = transport_ucx_poll,
    .wake = transport_ucx_wake,
    .now_ns = transport_ucx_now_ns,
    .sleep = transport_ucx_sleep,
    .quarantined = ucx_quarantined,
    .gone = is_gone,
};
