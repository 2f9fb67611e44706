/* Connections of the transport `ucx`: hello, control messages, loss, close.
 *
 * Why here: an endpoint of UCX is anonymous and its errors come at any moment. A connection greets
 * with a token that labels all later messages, so that nobody else can speak for the peer, and it
 * outlives its close until UCX has let go of its buffers. It must not know lanes' insides.
 *
 * Active messages may overtake each other: an endpoint begins on a TCP connection and moves to
 * shared memory in the middle of the traffic (seen with UCX 1.13.1), and rendezvous takes its time.
 * So control messages travel in numbered fragments, one eager active message each, and early ones
 * wait; even the hello may come after them. */
#include "base/alloc.h"
#include "base/clock.h"
#include "base/error.h"
#include "fabric/ucx_impl.h"

#include <stdio.h>
#include <string.h>

static const uint32_t HELLO_MAGIC = 0x78726566; /* "ferx" */
enum { HELLO_VERSION = 1, PATIENCE_PASSES = 8 };
static const uint64_t HELLO_NS = 10000000000u; /* that who connected may take to say hello */

/* ---- sending ---- */

static void send_over(struct ucx_send *send)
{
    send->conn->n_sends--;
    send->conn->queued_bytes -= send->queued_bytes;
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

void ucx_conn_post(struct ucx_send *send, enum ucx_message id, size_t n_header, const void *payload,
                   size_t n_payload)
{
    struct transport_conn *conn = send->conn;
    ucp_request_param_t param = {
        .op_attr_mask =
            UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_FLAGS,
        .cb.send = on_sent,
        .user_data = send,
        /* Never by rendezvous: over TCP that is ucp_put inside, and a connection that breaks in the
         * middle of one ends the process by an assertion of UCX 1.13.1 (tcp_ep.c, "PUT_TX_WAITING_
         * ACK"). It would cost a round trip besides. */
        .flags = UCP_AM_SEND_FLAG_EAGER,
    };

    if (id == UCX_HELLO) /* which the other side knows by its endpoint */
        param.flags |= UCP_AM_SEND_FLAG_REPLY;
    conn->n_sends++;
    conn->queued_bytes += send->queued_bytes;
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

static struct ucx_send *new_send(struct transport_conn *conn, size_t n_payload)
{
    struct ucx_send *send = mem_alloc(sizeof *send + n_payload);

    if (send != NULL) {
        memset(send, 0, sizeof *send);
        send->conn = conn;
    }
    return send;
}

static void say_hello(struct transport_conn *conn)
{
    struct ucx_send *send = new_send(conn, 0);

    if (send == NULL) {
        ucx_conn_fail(conn, "no memory for a message");
        return;
    }
    send->header.hello = (struct ucx_hello){.magic = HELLO_MAGIC,
                                            .version = HELLO_VERSION,
                                            .label = conn->label,
                                            .host = conn->owner->host};
    ucx_process_self(&send->header.hello.process);
    ucx_conn_post(send, UCX_HELLO, sizeof send->header.hello, NULL, 0);
}

static bool send_fragment(struct transport_conn *conn, const unsigned char *data, size_t n_bytes,
                          size_t at)
{
    size_t n = n_bytes - at < UCX_FRAGMENT_BYTES ? n_bytes - at : UCX_FRAGMENT_BYTES;
    struct ucx_send *send = new_send(conn, n);

    if (send == NULL)
        return false;
    send->queued_bytes = n + sizeof *send;
    send->header.control = (struct ucx_control){.label = conn->peer,
                                                .sequence = conn->sequence_out++,
                                                .n_bytes = (uint32_t)n_bytes,
                                                .at = (uint32_t)at};
    if (n > 0)
        memcpy(send->payload, data + at, n);
    ucx_conn_post(send, UCX_CONTROL, sizeof send->header.control, send->payload, n);
    return true;
}

enum ferry_status ucx_send(struct transport_conn *conn, const void *data, size_t n_bytes)
{
    size_t at = 0;

    if (n_bytes > TRANSPORT_CONTROL_MAX)
        return FERRY_ERR_LIMIT;
    if (conn->failed)
        return FERRY_ERR_PEER;
    if (conn->state != UCX_OPEN || conn->queued_bytes + n_bytes > UCX_QUEUE_BYTES)
        return FERRY_AGAIN;
    do {
        if (!send_fragment(conn, data, n_bytes, at)) {
            if (at == 0)
                return FERRY_ERR_NOMEM;
            ucx_conn_fail(conn, "no memory for the rest of a message");
        }
        if (conn->failed)
            return FERRY_ERR_PEER;
        at += UCX_FRAGMENT_BYTES;
    } while (at < n_bytes);
    return FERRY_OK;
}

/* ---- receiving ---- */

struct transport_conn *ucx_conn_find(struct transport *transport, const struct ucx_label *label)
{
    struct transport_conn *conn = label->slot < UCX_CONNS ? transport->conns[label->slot] : NULL;

    if (conn == NULL || conn->label.token != label->token || conn->said_lost)
        return NULL;
    return conn;
}

static struct transport_conn *find_endpoint(struct transport *transport, ucp_ep_h ep)
{
    for (size_t i = 0; i < UCX_CONNS; i++) {
        if (transport->conns[i] != NULL && transport->conns[i]->ep == ep)
            return transport->conns[i];
    }
    return NULL;
}

ucs_status_t ucx_on_hello(void *arg, const void *header, size_t n_header, void *data,
                          size_t n_bytes, const ucp_am_recv_param_t *param)
{
    struct transport *transport = arg;
    struct transport_conn *conn = NULL;
    struct ucx_hello hello;

    (void)data;
    (void)n_bytes;
    if ((param->recv_attr & UCP_AM_RECV_ATTR_FIELD_REPLY_EP) != 0)
        conn = find_endpoint(transport, param->reply_ep);
    if (conn == NULL || conn->failed)
        return UCS_OK;
    if (n_header < sizeof hello) {
        ucx_conn_fail(conn, "its hello is too short; is it a ferry of this version?");
        return UCS_OK;
    }
    memcpy(&hello, header, sizeof hello);
    if (hello.magic != HELLO_MAGIC || hello.version != HELLO_VERSION) {
        ucx_conn_fail(conn, "it speaks another version of the protocol");
        return UCS_OK;
    }
    if (conn->state != UCX_CONNECTING) {
        ucx_conn_fail(conn, "it says hello twice");
        return UCS_OK;
    }
    conn->state = UCX_OPEN;
    conn->peer = hello.label;
    conn->peer_host = hello.host;
    if (hello.host != 0 && hello.host == transport->host)
        ucx_watch_open(&conn->watch, &hello.process);
    conn->say_open = true;
    return UCS_OK;
}

/* Puts the next fragment into the message that comes in; what is wrong with it, or NULL. */
static const char *take_fragment(struct transport_conn *conn, const struct ucx_control *control,
                                 const void *data, size_t n_bytes)
{
    struct ucx_inbox *box = conn->partial;

    if (box == NULL) {
        box = mem_alloc(sizeof *box + control->n_bytes);
        if (box == NULL)
            return "no memory for a control message";
        *box = (struct ucx_inbox){.n_bytes = control->n_bytes};
        conn->partial = box;
    }
    if (control->n_bytes != box->n_bytes || control->at != box->have ||
        n_bytes > box->n_bytes - box->have || (n_bytes == 0 && box->n_bytes > 0))
        return "a control message makes no sense";
    if (n_bytes > 0)
        memcpy(box->data + box->have, data, n_bytes);
    box->have += n_bytes;
    conn->sequence_in++;
    if (box->have == box->n_bytes) {
        if (conn->first == NULL)
            conn->first = box;
        else
            conn->last->next = box;
        conn->last = box;
        conn->partial = NULL;
    }
    return NULL;
}

/* Keeps a fragment that came before its turn. */
static const char *keep_early(struct transport_conn *conn, const struct ucx_control *control,
                              const void *data, size_t n_bytes)
{
    if (conn->n_early == UCX_EARLY_MAX)
        return "too many control messages came out of order";
    struct ucx_early *early = mem_alloc(sizeof *early + n_bytes);
    if (early == NULL)
        return "no memory for a control message";
    *early = (struct ucx_early){.next = conn->early, .control = *control, .n_bytes = n_bytes};
    if (n_bytes > 0)
        memcpy(early->data, data, n_bytes);
    conn->early = early;
    conn->n_early++;
    return NULL;
}

/* Takes those early ones whose turn it is now. */
static const char *take_early(struct transport_conn *conn)
{
    struct ucx_early **at = &conn->early;
    const char *fault = NULL;

    while (*at != NULL && fault == NULL) {
        struct ucx_early *early = *at;
        if (early->control.sequence != conn->sequence_in) {
            at = &early->next;
            continue;
        }
        *at = early->next;
        conn->n_early--;
        fault = take_fragment(conn, &early->control, early->data, early->n_bytes);
        mem_free(early);
        at = &conn->early;
    }
    return fault;
}

static const char *take_control(struct transport_conn *conn, const struct ucx_control *control,
                                const void *data, size_t n_bytes)
{
    uint32_t ahead = control->sequence - conn->sequence_in;

    if (control->n_bytes > TRANSPORT_CONTROL_MAX || n_bytes > UCX_FRAGMENT_BYTES ||
        ahead > UCX_EARLY_MAX)
        return "a control message is too long or out of order";
    if (ahead > 0)
        return keep_early(conn, control, data, n_bytes);
    const char *fault = take_fragment(conn, control, data, n_bytes);
    return fault != NULL ? fault : take_early(conn);
}

ucs_status_t ucx_on_control(void *arg, const void *header, size_t n_header, void *data,
                            size_t n_bytes, const ucp_am_recv_param_t *param)
{
    struct ucx_control control;

    if (n_header != sizeof control)
        return UCS_OK;
    memcpy(&control, header, sizeof control);
    struct transport_conn *conn = ucx_conn_find(arg, &control.label);
    if (conn == NULL)
        return UCS_OK;
    const char *fault = (param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) != 0
                            ? "a control message came by rendezvous"
                            : take_control(conn, &control, data, n_bytes);
    if (fault != NULL)
        ucx_conn_fail(conn, fault);
    return UCS_OK;
}

/* ---- life ---- */

void ucx_conn_fail(struct transport_conn *conn, const char *reason)
{
    if (conn->failed)
        return;
    conn->failed = true;
    (void)snprintf(conn->reason, sizeof conn->reason, "%s: %s", conn->name, reason);
    error_make_printable(conn->reason);
}

static void on_error(void *arg, ucp_ep_h ep, ucs_status_t status)
{
    (void)ep;
    ucx_conn_fail(arg, ucs_status_string(status));
}

/* A connection without an endpoint; NULL: no memory, or too many. */
static struct transport_conn *new_conn(struct transport *transport, const char *name, bool incoming)
{
    uint32_t slot = 0;

    while (slot < UCX_CONNS && transport->conns[slot] != NULL)
        slot++;
    struct transport_conn *conn = slot < UCX_CONNS ? mem_zero(sizeof *conn) : NULL;
    if (conn == NULL)
        return NULL;
    conn->owner = transport;
    conn->incoming = incoming;
    conn->since_ns = clock_now_ns();
    conn->watch.fd = -1;
    conn->label = (struct ucx_label){.token = ucx_random(), .slot = slot};
    (void)snprintf(conn->name, sizeof conn->name, "%s", name);
    transport->conns[slot] = conn;
    return conn;
}

/* params: where to, or the request; the rest is the same for both. */
static void open_endpoint(struct transport_conn *conn, ucp_ep_params_t *params)
{
    params->field_mask |= UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE | UCP_EP_PARAM_FIELD_ERR_HANDLER;
    params->err_mode = UCP_ERR_HANDLING_MODE_PEER;
    params->err_handler.cb = on_error;
    params->err_handler.arg = conn;
    ucs_status_t status = ucp_ep_create(conn->owner->worker, params, &conn->ep);
    if (status != UCS_OK) {
        conn->ep = NULL;
        ucx_conn_fail(conn, ucs_status_string(status));
        return;
    }
    say_hello(conn);
}

enum ferry_status ucx_connect(struct transport *transport, const char *address,
                              struct transport_conn **ret_conn, struct ferry_error *err)
{
    struct ucx_address to;
    enum ferry_status st = ucx_address_parse(&to, address, transport->family, err);

    if (st != FERRY_OK)
        return st;
    struct transport_conn *conn = new_conn(transport, address, false);
    if (conn == NULL)
        return FERRY_FAIL(err, FERRY_ERR_NOMEM,
                          "ucx: no memory for a connection to %s, or %d are open", address,
                          UCX_CONNS);
    ucp_ep_params_t params = {
        .field_mask = UCP_EP_PARAM_FIELD_FLAGS | UCP_EP_PARAM_FIELD_SOCK_ADDR,
        .flags = UCP_EP_PARAMS_FLAGS_CLIENT_SERVER,
        .sockaddr = {.addr = (struct sockaddr *)&to.storage, .addrlen = to.n_bytes},
    };
    open_endpoint(conn, &params);
    *ret_conn = conn;
    return FERRY_OK;
}

void ucx_conn_accept(struct transport *transport, ucp_conn_request_h request)
{
    ucp_conn_request_attr_t attr = {.field_mask = UCP_CONN_REQUEST_ATTR_FIELD_CLIENT_ADDR};
    char name[TRANSPORT_ADDRESS_MAX] = "a stranger";

    if (ucp_conn_request_query(request, &attr) == UCS_OK)
        ucx_address_format(&attr.client_address, name);
    struct transport_conn *conn = new_conn(transport, name, true);
    if (conn == NULL) {
        (void)ucp_listener_reject(transport->listener, request);
        return;
    }
    ucp_ep_params_t params = {.field_mask = UCP_EP_PARAM_FIELD_CONN_REQUEST,
                              .conn_request = request};
    open_endpoint(conn, &params);
}

static void free_inbox(struct ucx_inbox *box)
{
    while (box != NULL) {
        struct ucx_inbox *next = box->next;
        mem_free(box);
        box = next;
    }
}

static void free_early(struct ucx_early *early)
{
    while (early != NULL) {
        struct ucx_early *next = early->next;
        mem_free(early);
        early = next;
    }
}

void ucx_close(struct transport_conn *conn, bool keep_lanes)
{
    struct transport *transport = conn->owner;
    const ucp_request_param_t param = {.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS,
                                       .flags = UCP_EP_CLOSE_FLAG_FORCE};

    transport->conns[conn->label.slot] = NULL;
    conn->failed = true; /* nothing is sent or said any more */
    ucx_lanes_close(conn, keep_lanes);
    if (conn->ep != NULL) {
        ucs_status_ptr_t request = ucp_ep_close_nbx(conn->ep, &param);
        if (UCS_PTR_IS_PTR(request))
            ucp_request_free(request); /* UCX frees it when it is done */
        conn->ep = NULL;
    }
    conn->next = transport->closed;
    transport->closed = conn;
    ucx_conn_reap(transport, false);
}

void ucx_conn_reap(struct transport *transport, bool all)
{
    struct transport_conn **at = &transport->closed;

    while (*at != NULL) {
        struct transport_conn *conn = *at;
        if (conn->n_sends > 0 && !all) {
            at = &conn->next;
            continue;
        }
        *at = conn->next;
        ucx_lanes_free(conn);
        ucx_watch_close(&conn->watch);
        free_inbox(conn->first);
        free_inbox(conn->partial);
        free_early(conn->early);
        mem_free(conn);
    }
}

bool ucx_conn_strangers(const struct transport *transport)
{
    for (size_t i = 0; i < UCX_CONNS; i++) {
        const struct transport_conn *conn = transport->conns[i];
        if (conn != NULL && conn->incoming && conn->state == UCX_CONNECTING)
            return true;
    }
    return false;
}

void ucx_conn_expire(struct transport *transport, uint64_t now_ns)
{
    for (size_t i = 0; i < UCX_CONNS; i++) {
        struct transport_conn *conn = transport->conns[i];
        if (conn != NULL && conn->incoming && conn->state == UCX_CONNECTING &&
            now_ns - conn->since_ns > HELLO_NS)
            ucx_close(conn, false);
    }
}

/* ---- events ---- */

/* Whether the connection was not closed by the event before. */
static bool is_there(const struct transport *transport, const struct ucx_label *label)
{
    const struct transport_conn *conn = transport->conns[label->slot];

    return conn != NULL && conn->label.token == label->token;
}

/* The oldest control message to its owner. */
static void deliver_control(struct transport_conn *conn)
{
    const struct transport_events *events = &conn->owner->events;
    struct ucx_inbox *box = conn->first;

    conn->first = box->next;
    events->control(events->arg, conn, box->data, box->n_bytes);
    mem_free(box);
}

/* A loss waits until UCX has nothing more to give: what the peer sent before its end still lies in
 * memory, while the word of its end comes by another way. But not for long. */
static size_t deliver_lost(struct transport_conn *conn, bool idle)
{
    const struct transport_events *events = &conn->owner->events;
    char reason[sizeof conn->reason];

    if (!conn->failed || conn->said_lost || (!idle && conn->passes++ < PATIENCE_PASSES))
        return 0;
    if (conn->incoming && conn->state == UCX_CONNECTING) { /* nobody has heard of it */
        ucx_close(conn, false);
        return 0;
    }
    conn->said_lost = true;
    memcpy(reason, conn->reason, sizeof reason);
    events->lost(events->arg, conn, reason);
    return 1;
}

size_t ucx_conn_deliver(struct transport *transport, bool idle)
{
    const struct transport_events *events = &transport->events;
    size_t n = 0;

    for (size_t i = 0; i < UCX_CONNS; i++) {
        struct transport_conn *conn = transport->conns[i];
        if (conn == NULL)
            continue;
        const struct ucx_label label = conn->label;
        if (conn->say_open) {
            conn->say_open = false;
            (conn->incoming ? events->accepted : events->connected)(events->arg, conn);
            n++;
        }
        while (is_there(transport, &label) && conn->state == UCX_OPEN && conn->first != NULL) {
            deliver_control(conn);
            n++;
        }
        if (is_there(transport, &label))
            n += deliver_lost(conn, idle);
    }
    return n;
}
