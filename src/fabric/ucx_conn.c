/* Connections of the transport `ucx`: hello, control messages, loss, close.
 *
 * Why here, and not UCX's: 1.13.1 ends the process by an assertion when a peer dies at some moments
 * of its connection handshake. A plain TCP connection is closed by the kernel with the process at
 * its other end, keeps the order, and lets a stranger say nothing to UCX. It must not know lanes'
 * insides.
 *
 * What comes is hostile until the owner has checked it: a hello of one size, then frames of at most
 * TRANSPORT_CONTROL_MAX bytes. */
#include "base/alloc.h"
#include "base/clock.h"
#include "base/error.h"
#include "fabric/ucx_impl.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

static const uint32_t HELLO_MAGIC = 0x78726566; /* "ferx" */
enum { HELLO_VERSION = 2, READ_MAX = 1 << 20, OUT_FIRST = 4096 };
static const uint64_t HELLO_NS = 10000000000u; /* that who connected may take to say hello */

void ucx_conn_fail(struct transport_conn *conn, const char *reason)
{
    if (conn->failed)
        return;
    conn->failed = conn->owner->has_failed = true;
    (void)snprintf(conn->reason, sizeof conn->reason, "%s: %s", conn->name, reason);
    error_make_printable(conn->reason);
}

struct transport_conn *ucx_conn_find(struct transport *transport, const struct ucx_label *label)
{
    struct transport_conn *conn = label->slot < UCX_CONNS ? transport->conns[label->slot] : NULL;

    if (conn == NULL || conn->label.token != label->token || conn->failed)
        return NULL;
    return conn;
}

/* ---- in ---- */

static void take_hello(struct transport_conn *conn)
{
    struct ucx_hello hello;

    memcpy(&hello, conn->head, sizeof hello);
    conn->head_have = 0;
    if (hello.magic != HELLO_MAGIC) {
        ucx_conn_fail(conn, "it is no ferry, or one of another version");
    } else if (hello.version != HELLO_VERSION) {
        ucx_conn_fail(conn, "it speaks another version of the protocol");
    } else if (hello.label.token == conn->label.token) { /* TCP can, when nobody listens */
        ucx_conn_fail(conn, "the connection leads to itself");
    } else {
        conn->state = UCX_OPEN;
        conn->peer = hello.label;
        conn->peer_host = hello.host;
        if (hello.host != 0 && hello.host == conn->owner->host)
            ucx_watch_open(&conn->watch, &hello.process);
        conn->say_open = true;
    }
}

/* The head of a frame is there. */
static void begin_message(struct transport_conn *conn)
{
    struct ucx_frame frame;

    memcpy(&frame, conn->head, sizeof frame);
    conn->head_have = 0;
    if (frame.n_bytes > TRANSPORT_CONTROL_MAX) {
        ucx_conn_fail(conn, "a control message is too long");
        return;
    }
    conn->partial = mem_alloc(sizeof *conn->partial + frame.n_bytes);
    if (conn->partial == NULL) {
        ucx_conn_fail(conn, "no memory for a control message");
        return;
    }
    *conn->partial = (struct ucx_inbox){.n_bytes = frame.n_bytes};
}

static void end_message(struct transport_conn *conn)
{
    if (conn->first == NULL)
        conn->first = conn->partial;
    else
        conn->last->next = conn->partial;
    conn->last = conn->partial;
    conn->partial = NULL;
}

/* Where the next bytes go, and how many are wanted. */
static unsigned char *next_place(struct transport_conn *conn, size_t *ret_wanted)
{
    if (conn->partial != NULL) {
        *ret_wanted = conn->partial->n_bytes - conn->partial->have;
        return conn->partial->data + conn->partial->have;
    }
    size_t head = conn->state == UCX_OPEN ? sizeof(struct ucx_frame) : sizeof(struct ucx_hello);
    *ret_wanted = head - conn->head_have;
    return conn->head + conn->head_have;
}

/* n bytes have come to next_place; wanted was asked for. */
static void take_bytes(struct transport_conn *conn, size_t n, size_t wanted)
{
    if (conn->partial != NULL)
        conn->partial->have += n;
    else
        conn->head_have += n;
    if (n < wanted)
        return;
    if (conn->partial == NULL) {
        if (conn->state != UCX_OPEN)
            take_hello(conn);
        else
            begin_message(conn);
    }
    if (conn->partial != NULL && conn->partial->have == conn->partial->n_bytes)
        end_message(conn);
}

/* Takes what is there, within reason. */
static void read_in(struct transport_conn *conn)
{
    size_t total = 0;

    while (!conn->failed && total < READ_MAX) {
        size_t wanted;
        unsigned char *place = next_place(conn, &wanted);
        ssize_t n = recv(conn->fd, place, wanted, MSG_DONTWAIT);
        if (n > 0) {
            take_bytes(conn, (size_t)n, wanted);
            total += (size_t)n;
        } else if (n == 0) {
            ucx_conn_fail(conn, "closed by the other side, which may have died");
        } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
            return;
        } else if (errno != EINTR) {
            ucx_conn_fail(conn, strerror(errno));
        }
    }
}

/* ---- out ---- */

/* Tells epoll what to wait for. */
static void watch(struct transport_conn *conn)
{
    bool blocked = conn->state == UCX_CONNECTING || conn->out_at < conn->out_size;
    struct epoll_event event = {.events = EPOLLIN | (blocked ? EPOLLOUT : 0u), .data.ptr = conn};

    if (conn->failed || conn->fd < 0)
        event.events = 0;
    if (event.events == conn->watched || conn->fd < 0)
        return;
    /* A failed one is taken out: its error would wake for ever. */
    int op = event.events == 0 ? EPOLL_CTL_DEL : conn->watched == 0 ? EPOLL_CTL_ADD : EPOLL_CTL_MOD;
    if (epoll_ctl(conn->owner->epoll_fd, op, conn->fd, &event) == 0)
        conn->watched = event.events;
    else if (op != EPOLL_CTL_DEL)
        ucx_conn_fail(conn, strerror(errno));
}

/* The other side is gone. What it said before is still to be read: its reason, maybe. */
static void break_off(struct transport_conn *conn, int error)
{
    read_in(conn);
    ucx_conn_fail(conn, strerror(error));
}

/* Gives the kernel what it takes. */
static void flush_out(struct transport_conn *conn)
{
    while (!conn->failed && conn->out_at < conn->out_size) {
        ssize_t n = send(conn->fd, conn->out + conn->out_at, conn->out_size - conn->out_at,
                         MSG_NOSIGNAL | MSG_DONTWAIT);
        if (n > 0)
            conn->out_at += (size_t)n;
        else if (n < 0 && errno == EINTR)
            continue;
        else if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
            break;
        else
            break_off(conn, errno);
    }
    if (conn->out_at == conn->out_size)
        conn->out_at = conn->out_size = 0;
}

/* Room for n more bytes behind what waits; false: no memory. */
static bool reserve_out(struct transport_conn *conn, size_t n)
{
    if (conn->out_at > 0) {
        memmove(conn->out, conn->out + conn->out_at, conn->out_size - conn->out_at);
        conn->out_size -= conn->out_at;
        conn->out_at = 0;
    }
    return mem_reserve(&conn->out, conn->out_size, &conn->out_capacity, n, OUT_FIRST);
}

static void push_out(struct transport_conn *conn, const void *data, size_t n)
{
    if (n > 0)
        memcpy(conn->out + conn->out_size, data, n);
    conn->out_size += n;
}

enum ferry_status ucx_send(struct transport_conn *conn, const void *data, size_t n_bytes)
{
    const struct ucx_frame frame = {.n_bytes = (uint32_t)n_bytes};
    size_t queued = conn->out_size - conn->out_at;

    if (n_bytes > TRANSPORT_CONTROL_MAX)
        return FERRY_ERR_LIMIT;
    if (conn->failed)
        return FERRY_ERR_PEER;
    if (conn->state != UCX_OPEN || queued + sizeof frame + n_bytes > UCX_QUEUE_BYTES)
        return FERRY_AGAIN;
    if (!reserve_out(conn, sizeof frame + n_bytes))
        return FERRY_ERR_NOMEM;
    push_out(conn, &frame, sizeof frame);
    push_out(conn, data, n_bytes);
    if (queued == 0)
        flush_out(conn);
    watch(conn);
    return conn->failed ? FERRY_ERR_PEER : FERRY_OK;
}

static void say_hello(struct transport_conn *conn)
{
    struct ucx_hello hello = {.magic = HELLO_MAGIC,
                              .version = HELLO_VERSION,
                              .label = conn->label,
                              .host = conn->owner->host};

    ucx_process_self(&hello.process);
    if (!reserve_out(conn, sizeof hello)) {
        ucx_conn_fail(conn, "no memory for a hello");
        return;
    }
    push_out(conn, &hello, sizeof hello);
    flush_out(conn);
}

/* An own connect has come to an end. */
static void finish_connect(struct transport_conn *conn)
{
    int error = 0;
    socklen_t n = sizeof error;

    if (getsockopt(conn->fd, SOL_SOCKET, SO_ERROR, &error, &n) != 0)
        error = errno;
    if (error != 0) {
        ucx_conn_fail(conn, strerror(error));
        return;
    }
    conn->state = UCX_GREETING;
    say_hello(conn);
}

void ucx_conn_move(struct transport_conn *conn, uint32_t events)
{
    if (conn->state == UCX_CONNECTING && (events & (EPOLLOUT | EPOLLERR | EPOLLHUP)) != 0)
        finish_connect(conn);
    if (!conn->failed && conn->state != UCX_CONNECTING) {
        if ((events & (EPOLLIN | EPOLLERR | EPOLLHUP)) != 0)
            read_in(conn);
        if ((events & EPOLLOUT) != 0)
            flush_out(conn);
    }
    watch(conn);
}

/* ---- life ---- */

/* A connection over fd, which it takes; NULL: no memory, or too many (fd is closed). */
static struct transport_conn *new_conn(struct transport *transport, int fd, const char *name,
                                       bool incoming)
{
    const int one = 1, tries = 2, patience_ms = 10000;
    uint32_t slot = 0;

    while (slot < UCX_CONNS && transport->conns[slot] != NULL)
        slot++;
    struct transport_conn *conn = slot < UCX_CONNS ? mem_zero(sizeof *conn) : NULL;
    if (conn == NULL) {
        if (fd >= 0)
            (void)close(fd);
        return NULL;
    }
    conn->owner = transport;
    conn->fd = fd;
    conn->incoming = incoming;
    conn->since_ns = clock_now_ns();
    conn->watch.fd = -1;
    conn->lanes.rings.fd = conn->lanes.mirror.fd = -1;
    conn->label = (struct ucx_label){.token = ucx_random(), .slot = slot};
    (void)snprintf(conn->name, sizeof conn->name, "%s", name);
    transport->conns[slot] = conn;
    if (fd >= 0) { /* none of these is worth an error */
        (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        (void)setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &one, sizeof one);
        (void)setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &one, sizeof one);
        (void)setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &one, sizeof one);
        (void)setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &tries, sizeof tries);
        (void)setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &patience_ms, sizeof patience_ms);
    }
    return conn;
}

enum ferry_status ucx_connect(struct transport *transport, const char *address,
                              struct transport_conn **ret_conn, struct ferry_error *err)
{
    struct ucx_address to;
    enum ferry_status st = ucx_address_parse(&to, address, transport->family, err);

    if (st != FERRY_OK)
        return st;
    int fd = socket(to.storage.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    int error = fd < 0 ? errno : 0;
    struct transport_conn *conn = new_conn(transport, fd, address, false);
    if (conn == NULL)
        return FERRY_FAIL(err, FERRY_ERR_NOMEM,
                          "ucx: no memory for a connection to %s, or %d are open", address,
                          (int)UCX_CONNS);
    if (error == 0 && connect(fd, (struct sockaddr *)&to.storage, to.n_bytes) != 0 &&
        errno != EINPROGRESS)
        error = errno;
    if (error != 0)
        ucx_conn_fail(conn, strerror(error));
    watch(conn); /* also when it is through at once: EPOLLOUT says so */
    *ret_conn = conn;
    return FERRY_OK;
}

bool ucx_conn_accept(struct transport *transport)
{
    struct sockaddr_storage from;
    char name[TRANSPORT_ADDRESS_MAX];

    for (;;) {
        socklen_t n = sizeof from;
        int fd = accept4(transport->listen_fd, (struct sockaddr *)&from, &n,
                         SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (fd < 0 && (errno == EINTR || errno == ECONNABORTED))
            continue;
        if (fd < 0)
            return errno == EAGAIN || errno == EWOULDBLOCK;
        if (ucx_conn_strangers(transport) >= UCX_STRANGERS) {
            (void)close(fd);
            continue;
        }
        ucx_address_format(&from, name);
        struct transport_conn *conn = new_conn(transport, fd, name, true);
        if (conn == NULL)
            continue;
        conn->state = UCX_GREETING;
        say_hello(conn);
        watch(conn);
    }
}

static void free_inbox(struct ucx_inbox *box)
{
    while (box != NULL) {
        struct ucx_inbox *next = box->next;
        mem_free(box);
        box = next;
    }
}

void ucx_close(struct transport_conn *conn, bool keep_lanes)
{
    struct transport *transport = conn->owner;
    bool lost = conn->failed;

    transport->conns[conn->label.slot] = NULL;
    conn->failed = true; /* nothing is sent or said any more */
    watch(conn);
    ucx_lanes_close(conn, keep_lanes);
    if (lost)
        conn->linger_until_ns = 0;
    if (conn->fd >= 0)
        (void)close(conn->fd);
    conn->fd = -1;
    conn->next = transport->closed;
    transport->closed = conn;
    ucx_conn_reap(transport, false);
}

void ucx_conn_reap(struct transport *transport, bool all)
{
    struct transport_conn **at = &transport->closed;

    while (*at != NULL) {
        struct transport_conn *conn = *at;
        bool lingers = conn->ep != NULL && clock_now_ns() < conn->linger_until_ns;
        if (!lingers && !all)
            ucx_endpoint_close(conn);
        if ((lingers || conn->n_sends > 0) && !all) {
            at = &conn->next;
            continue;
        }
        *at = conn->next;
        ucx_lanes_free(conn);
        ucx_watch_close(&conn->watch);
        free_inbox(conn->first);
        free_inbox(conn->partial);
        mem_free(conn->out);
        mem_free(conn);
    }
}

static bool is_stranger(const struct transport_conn *conn)
{
    return conn != NULL && conn->incoming && conn->state != UCX_OPEN;
}

size_t ucx_conn_strangers(const struct transport *transport)
{
    size_t n = 0;

    for (size_t i = 0; i < UCX_CONNS; i++)
        n += is_stranger(transport->conns[i]);
    return n;
}

void ucx_conn_expire(struct transport *transport, uint64_t now_ns)
{
    for (size_t i = 0; i < UCX_CONNS; i++) {
        struct transport_conn *conn = transport->conns[i];
        if (is_stranger(conn) && now_ns - conn->since_ns > HELLO_NS)
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

static size_t deliver_lost(struct transport_conn *conn)
{
    const struct transport_events *events = &conn->owner->events;
    char reason[sizeof conn->reason];

    if (!conn->failed || conn->said_lost)
        return 0;
    if (is_stranger(conn)) { /* nobody has heard of it */
        ucx_close(conn, false);
        return 0;
    }
    watch(conn);
    conn->said_lost = true;
    memcpy(reason, conn->reason, sizeof reason);
    events->lost(events->arg, conn, reason);
    return 1;
}

size_t ucx_conn_deliver(struct transport *transport)
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
        while (is_there(transport, &label) && conn->first != NULL) {
            deliver_control(conn);
            n++;
        }
        if (is_there(transport, &label))
            n += deliver_lost(conn);
    }
    return n;
}
