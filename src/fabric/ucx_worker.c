/* What is UCX's in the transport `ucx`: context, worker and endpoints for lanes between hosts.
 *
 * Why here: the rest sees none of UCX's settings and states. UCX starts with the first lane that
 * travels: ranks of one host never need it. Settings were measured for UCX 1.13.1
 * (docs/decisions/0006-ucx.md). It must not know what is in a ring. */
#include "base/alloc.h"
#include "base/clock.h"
#include "base/error.h"
#include "fabric/ucx_impl.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <ucs/debug/debug.h>

enum { PROGRESS_MAX = 64 }; /* calls of UCX before other things have their turn */

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

/* UCX knows the settings of its parts by two names: in the environment with the part's prefix, in
 * ucp_config_modify without (it warns about the other, and goes on with the default). */
struct setting {
    const char *variable, *name, *value;
    bool fixed; /* not the user's: something here relies on it */
};

static const struct setting SETTINGS[] = {
    /* A user may list others, RDMA for one. */
    {"UCX_TLS", "TLS", "tcp,self", false},
    {"UCX_TCP_AF_PRIO", "AF_PRIO", "inet,inet6", false},
    /* Whoever reaches UCX's port can end the process (docs/decisions/0006-ucx.md): it is open where
     * the group's is, and nowhere else. */
    {"UCX_NET_DEVICES", "NET_DEVICES", NULL, false},
    /* The connection for control messages knows of a death before UCX would. */
    {"UCX_KEEPALIVE_INTERVAL", "KEEPALIVE_INTERVAL", "inf", false},
    /* One TCP connection to a peer carries everything. */
    {"UCX_MAX_EAGER_LANES", "MAX_EAGER_LANES", "1", false},
    {"UCX_MAX_RNDV_LANES", "MAX_RNDV_LANES", "1", false},
    /* Otherwise a host that does not answer stops this thread, and its heartbeats. */
    {"UCX_TCP_CONN_NB", "CONN_NB", "y", true},
    /* A cache of registered memory, which TCP does not need: for it UCX watches the memory calls
     * of the whole process. */
    {"UCX_RCACHE_ENABLE", "RCACHE_ENABLE", "n", false},
    /* See ucx_endpoint_post. */
    {"UCX_TCP_PUT_ENABLE", "PUT_ENABLE", "n", true},
    /* A library prints nothing: errors reach the caller. */
    {"UCX_LOG_LEVEL", "LOG_LEVEL", "fatal", false},
};

static enum ferry_status ucx_fail(ucs_status_t status, const char *what, struct ferry_error *err)
{
    return FERRY_FAIL(err, status == UCS_ERR_NO_MEMORY ? FERRY_ERR_NOMEM : FERRY_ERR_IO,
                      "ucx: %s: %s; UCX_LOG_LEVEL=info says more", what, ucs_status_string(status));
}

static enum ferry_status set_options(const struct transport *transport, ucp_config_t *config,
                                     struct ferry_error *err)
{
    for (size_t i = 0; i < sizeof SETTINGS / sizeof SETTINGS[0]; i++) {
        const struct setting *setting = &SETTINGS[i];
        const char *value = setting->value;
        if (!setting->fixed && getenv(setting->variable) != NULL)
            continue;
        /* UCX connects by one family, whatever addresses there are. */
        if (transport->family == AF_INET6 && strcmp(setting->name, "AF_PRIO") == 0)
            value = "inet6,inet";
        if (strcmp(setting->name, "NET_DEVICES") == 0) {
            /* Other transports have devices of other names, which their user knows. */
            if (transport->device[0] == 0 || getenv("UCX_TLS") != NULL)
                continue;
            value = transport->device;
        }
        ucs_status_t status = ucp_config_modify(config, setting->name, value);
        if (status != UCS_OK) {
            char what[128];
            (void)snprintf(what, sizeof what, "cannot set %s=%s", setting->variable, value);
            return ucx_fail(status, what, err);
        }
    }
    return FERRY_OK;
}

/* ---- start ---- */

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

static ucs_status_t set_handlers(struct transport *transport)
{
    static const ucp_am_recv_callback_t handlers[UCX_N_MESSAGES] = {
        [UCX_DATA] = ucx_on_data,
        [UCX_CREDIT] = ucx_on_credit,
    };
    ucs_status_t status = UCS_OK;

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
    return status;
}

static enum ferry_status make_worker(struct transport *transport, struct ferry_error *err)
{
    const ucp_worker_params_t params = {
        .field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE,
        .thread_mode = UCS_THREAD_MODE_SERIALIZED, /* see transport.lock */
    };

    ucs_status_t status = ucp_worker_create(transport->context, &params, &transport->worker);
    if (status != UCS_OK) {
        transport->worker = NULL;
        return ucx_fail(status, "cannot make a worker", err);
    }
    status = set_handlers(transport);
    if (status == UCS_OK)
        status = ucp_worker_get_efd(transport->worker, &transport->worker_fd);
    atomic_store(&transport->travels, status == UCS_OK);
    return status == UCS_OK ? FERRY_OK : ucx_fail(status, "cannot prepare a worker", err);
}

enum ferry_status ucx_worker_address(struct transport *transport,
                                     unsigned char ret_address[UCX_WORKER_MAX], size_t *ret_bytes,
                                     struct ferry_error *err)
{
    ucp_address_t *address;
    size_t n;

    if (transport->worker == NULL) {
        enum ferry_status st = make_context(transport, err);
        if (st == FERRY_OK)
            st = make_worker(transport, err);
        if (st != FERRY_OK) {
            ucx_worker_destroy(transport);
            return st;
        }
    }
    ucs_status_t status = ucp_worker_get_address(transport->worker, &address, &n);
    if (status != UCS_OK)
        return ucx_fail(status, "cannot say where its worker is", err);
    bool fits = n <= UCX_WORKER_MAX;
    if (fits) {
        memcpy(ret_address, address, n);
        *ret_bytes = n;
    }
    ucp_worker_release_address(transport->worker, address);
    return fits ? FERRY_OK
                : FERRY_FAIL(err, FERRY_ERR_LIMIT,
                             "ucx: a worker's address has %zu bytes, %d fit; name fewer devices "
                             "by UCX_NET_DEVICES",
                             n, (int)UCX_WORKER_MAX);
}

void ucx_worker_destroy(struct transport *transport)
{
    if (transport->worker != NULL)
        ucp_worker_destroy(transport->worker);
    if (transport->context != NULL)
        ucp_cleanup(transport->context);
    transport->worker = NULL;
    transport->context = NULL;
    transport->worker_fd = -1;
}

bool ucx_worker_progress(struct transport *transport)
{
    for (int i = 0; transport->worker != NULL && i < PROGRESS_MAX; i++) {
        if (ucp_worker_progress(transport->worker) == 0)
            return i > 0;
    }
    return true;
}

bool ucx_worker_may_sleep(struct transport *transport)
{
    return transport->worker == NULL || ucp_worker_arm(transport->worker) == UCS_OK;
}

/* ---- endpoints ---- */

/* A new endpoint's other side may be in the middle of its handshake, and UCX 1.13.1 ends that
 * process by an assertion (wireup_ep.c, "pending_count") when a message of it fails. So whoever
 * closes an endpoint stays so long after it was opened. */
static const uint64_t LINGER_NS = 200000000u;

static void on_error(void *arg, ucp_ep_h ep, ucs_status_t status)
{
    (void)ep;
    ucx_conn_fail(arg, ucs_status_string(status));
}

enum ferry_status ucx_endpoint_open(struct transport_conn *conn, const unsigned char *address,
                                    size_t n_bytes, struct ferry_error *err)
{
    enum { PADDED = 64 << 10 };
    /* UCX takes no size and goes by numbers that stand in the address: it may read far. */
    unsigned char *copy = mem_zero(PADDED);

    if (copy == NULL || n_bytes > UCX_WORKER_MAX) {
        mem_free(copy);
        return FERRY_FAIL(err, FERRY_ERR_NOMEM, "lanes of %s: no memory", conn->name);
    }
    memcpy(copy, address, n_bytes);
    const ucp_ep_params_t params = {
        .field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE |
                      UCP_EP_PARAM_FIELD_ERR_HANDLER,
        .address = (const ucp_address_t *)copy,
        .err_mode = UCP_ERR_HANDLING_MODE_PEER,
        .err_handler = {.cb = on_error, .arg = conn},
    };
    ucs_status_t status = ucp_ep_create(conn->owner->worker, &params, &conn->ep);
    mem_free(copy);
    conn->linger_until_ns = clock_now_ns() + LINGER_NS;
    if (status == UCS_OK)
        return FERRY_OK;
    conn->ep = NULL;
    return FERRY_FAIL(err, FERRY_ERR_PEER, "lanes of %s: UCX has no road there: %s", conn->name,
                      ucs_status_string(status));
}

void ucx_endpoint_close(struct transport_conn *conn)
{
    const ucp_request_param_t param = {.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS,
                                       .flags = UCP_EP_CLOSE_FLAG_FORCE};

    if (conn->ep == NULL)
        return;
    ucs_status_ptr_t request = ucp_ep_close_nbx(conn->ep, &param);
    if (UCS_PTR_IS_PTR(request))
        ucp_request_free(request); /* UCX frees it when it is done */
    conn->ep = NULL;
}

static void send_over(struct ucx_send *send)
{
    send->conn->n_sends--;
    if (send->in_flight != NULL)
        (*send->in_flight)--;
    mem_free(send);
}

static void on_sent(void *request, ucs_status_t status, void *arg)
{
    struct ucx_send *send = arg;

    if (status != UCS_OK && status != UCS_ERR_CANCELED)
        ucx_conn_fail(send->conn, ucs_status_string(status));
    send_over(send);
    ucp_request_free(request);
}

void ucx_endpoint_post(struct ucx_send *send, enum ucx_message id, size_t n_header,
                       const void *payload, size_t n_payload)
{
    struct transport_conn *conn = send->conn;
    const ucp_request_param_t param = {
        .op_attr_mask =
            UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_FLAGS,
        .cb.send = on_sent,
        .user_data = send,
        /* Never by rendezvous: over TCP that is ucp_put inside, and a connection that breaks in the
         * middle of one ends the process by an assertion of UCX 1.13.1 (tcp_ep.c,
         * "PUT_TX_WAITING_ACK"). It would cost a round trip besides. */
        .flags = UCP_AM_SEND_FLAG_EAGER,
    };

    conn->n_sends++;
    if (send->in_flight != NULL)
        (*send->in_flight)++;
    ucs_status_ptr_t request =
        ucp_am_send_nbx(conn->ep, id, &send->header, n_header, payload, n_payload, &param);
    if (UCS_PTR_IS_PTR(request))
        return;
    if (UCS_PTR_IS_ERR(request))
        ucx_conn_fail(conn, ucs_status_string(UCS_PTR_STATUS(request)));
    send_over(send);
}
