/* The server: socket, I/O loop, timers, and who is still there. See http.h.
 *
 * libmicrohttpd runs inside our own epoll loop, so that everything that touches it is one thread. A
 * connection whose answer is not there yet is suspended; libmicrohttpd does not look at it then,
 * and misses an end that comes together with data: so we watch every socket for a client that
 * leaves. Who closes one half has left, too: the two cannot be told apart. */
#include "serve/http_impl.h"

#include "base/alloc.h"
#include "base/assert.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/limits.h"
#include "base/log.h"
#include "base/size.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

enum {
    DEFAULT_IDLE_S = 60,
    DEFAULT_READ_S = 120,
    DEFAULT_STALL_MS = 30000,
    DEFAULT_KEEPALIVE_MS = 10000,
    SEND_BUFFER_BYTES = 128 << 10, /* so that a slow reader shows before the kernel has megabytes */
    BACKLOG = 256,
    TICK_MS = 50,
    EVENTS = 64,
};

#define NS_PER_MS UINT64_C(1000000)

/* ---- exchanges ---- */

struct http_exchange *http_exchange_new(struct http_server *server,
                                        struct MHD_Connection *connection, const char *method,
                                        const char *url, size_t spare_bytes)
{
    struct http_exchange *x = mem_zero(sizeof *x);
    size_t size = strlen(url) + 1;

    if (x == NULL)
        return NULL;
    x->method = mem_strndup(method, strlen(method));
    x->path = mem_zero(size + spare_bytes + 1);
    if (x->method == NULL || x->path == NULL) {
        mem_free(x->method);
        mem_free(x->path);
        mem_free(x);
        return NULL;
    }
    memcpy(x->path, url, size);
    (void)pthread_mutex_init(&x->mutex, NULL);
    x->server = server;
    x->connection = connection;
    x->socket = http_connection_of(connection);
    if (x->socket != NULL)
        x->socket->exchange = x;
    x->key_index = -1;
    x->route = "other";
    x->start_ns = clock_now_ns();
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CONNECTION_FD);
    x->fd = info != NULL ? info->connect_fd : -1;
    x->next = server->open;
    if (x->next != NULL)
        x->next->previous = x;
    server->open = x;
    atomic_fetch_add(&server->n_open, 1);
    return x;
}

static void exchange_free(struct http_exchange *x)
{
    struct http_server *s = x->server;

    if (x->next != NULL)
        x->next->previous = x->previous;
    if (x->previous != NULL)
        x->previous->next = x->next;
    else
        s->open = x->next;
    http_drop_body(x);
    (void)pthread_mutex_destroy(&x->mutex);
    for (size_t i = 0; i < x->n_added; i++)
        mem_free(x->added[i].value);
    mem_free(x->method);
    mem_free(x->path);
    mem_free(x->out);
    mem_free(x);
    atomic_fetch_sub(&s->n_open, 1);
}

/* Off the wire and ended by its owner: nobody knows it any more. */
static void close_if_over(struct http_exchange *x)
{
    const struct http_options *o = &x->server->options;
    uint64_t now = clock_now_ns();

    (void)pthread_mutex_lock(&x->mutex);
    bool ended = x->state == ANSWER_WHOLE || x->state == ANSWER_CUT || !x->owned;
    bool dirty = x->dirty;
    (void)pthread_mutex_unlock(&x->mutex);
    if (x->connection != NULL || !ended || dirty)
        return;
    int status = x->status == 0 || (x->told_gone && x->sent_bytes == 0) ? 499 : x->status;
    http_log(x, status, now);
    if (o->count != NULL)
        o->count(o->arg, x->route, status, (double)(now - x->start_ns) * 1e-9);
    if (x->owner.closed != NULL)
        x->owner.closed(x->owner_arg);
    exchange_free(x);
}

void http_own(struct http_exchange *x, const struct http_owner *owner, void *arg)
{
    x->owner = *owner;
    x->owner_arg = arg;
    x->owned = true;
}

void http_set_route(struct http_exchange *x, const char *route)
{
    x->route = route;
}

const char *http_method(const struct http_exchange *x)
{
    return x->method;
}

const char *http_path(const struct http_exchange *x)
{
    return x->path;
}

const char *http_body(const struct http_exchange *x, size_t *ret_size)
{
    *ret_size = x->body != NULL ? x->body_size : 0;
    return x->body != NULL ? x->body : "";
}

/* Its size stays for the log. */
void http_drop_body(struct http_exchange *x)
{
    mem_free(x->body);
    x->body = NULL;
    atomic_fetch_sub(&x->server->bodies_bytes, x->body_capacity);
    x->body_capacity = 0;
}

const char *http_id(const struct http_exchange *x)
{
    return x->id;
}

const unsigned char *http_cache_key(const struct http_exchange *x)
{
    static const unsigned char NOBODY[AUTH_DIGEST_BYTES];

    return x->key_index >= 0 ? auth_cache_key(x->server->options.auth, x->key_index) : NOBODY;
}

/* ---- between threads ---- */

void http_push_dirty(struct http_exchange *x)
{
    struct http_server *s = x->server;
    uint64_t one = 1;

    (void)pthread_mutex_lock(&s->dirty_mutex);
    bool first = s->dirty == NULL;
    x->next_dirty = s->dirty;
    s->dirty = x;
    (void)pthread_mutex_unlock(&s->dirty_mutex);
    if (first && write(s->wake_fd, &one, sizeof one) < 0 && errno != EAGAIN)
        LOG_ERROR("http: cannot wake the I/O thread: %s", strerror(errno));
}

/* ---- exchanges and their connections ---- */

void http_suspend(struct http_exchange *x)
{
    x->suspended = true;
    MHD_suspend_connection(x->connection);
}

static void resume(struct http_exchange *x)
{
    if (!x->suspended || x->connection == NULL)
        return;
    x->suspended = false;
    MHD_resume_connection(x->connection);
}

/* The client left, or is not worth waiting for. */
static void lose(struct http_exchange *x)
{
    http_tell_gone(x);
    if (x->connection == NULL)
        return;
    (void)shutdown(x->fd, SHUT_RDWR); /* libmicrohttpd sees it at its next read or write */
    resume(x);
}

void http_off_wire(struct http_exchange *x)
{
    x->connection = NULL;
    x->suspended = false;
    if (x->socket != NULL) {
        x->socket->busy = false;
        x->socket->exchange = NULL;
        x->socket->waiting_ns = clock_now_ns();
    }
    x->socket = NULL;
}

/* ---- sockets ---- */

struct http_connection *http_connection_of(struct MHD_Connection *connection)
{
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(connection, MHD_CONNECTION_INFO_SOCKET_CONTEXT);

    return info != NULL ? info->socket_context : NULL;
}

static void connection_add(struct http_server *s, struct MHD_Connection *connection, void **context)
{
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CONNECTION_FD);
    struct http_connection *c = mem_zero(sizeof *c);
    struct epoll_event event = {.events = EPOLLRDHUP | EPOLLET, .data.ptr = c};

    if (c == NULL) /* it is closed at its first request */
        return;
    c->server = s;
    c->mhd = connection;
    c->fd = info != NULL ? info->connect_fd : -1;
    c->waiting_ns = clock_now_ns();
    c->next = s->connections;
    if (c->next != NULL)
        c->next->previous = c;
    s->connections = c;
    *context = c;
    if (epoll_ctl(s->epoll_fd, EPOLL_CTL_ADD, c->fd, &event) != 0)
        LOG_DEBUG("http: socket %d is not watched: %s", c->fd, strerror(errno));
}

static void on_connection(void *cls, struct MHD_Connection *connection, void **context,
                          enum MHD_ConnectionNotificationCode code)
{
    struct http_server *s = cls;
    struct http_connection *c = *context;

    if (code == MHD_CONNECTION_NOTIFY_STARTED) {
        connection_add(s, connection, context);
        return;
    }
    if (c == NULL)
        return;
    *context = NULL;
    (void)epoll_ctl(s->epoll_fd, EPOLL_CTL_DEL, c->fd, NULL);
    if (c->next != NULL)
        c->next->previous = c->previous;
    if (c->previous != NULL)
        c->previous->next = c->next;
    else
        s->connections = c->next;
    mem_free(c);
}

/* The client closed its side. Nobody waits for an answer that is still to be made; what is on its
 * way gets another moment (look_after). */
static void on_left(struct http_connection *c)
{
    struct http_exchange *x = c->exchange;

    if (c->left_ns == 0)
        c->left_ns = clock_now_ns();
    if (x != NULL && x->suspended)
        lose(x);
}

/* Sockets that libmicrohttpd would keep: those of clients that left, and of those that say a byte
 * of their request now and then (silent ones it closes itself). */
static void look_after(struct http_server *s, uint64_t now)
{
    const struct http_options *o = &s->options;
    uint64_t seconds = (o->idle_seconds > 0 ? o->idle_seconds : DEFAULT_IDLE_S) +
                       (o->read_seconds > 0 ? o->read_seconds : DEFAULT_READ_S);

    for (struct http_connection *c = s->connections; c != NULL; c = c->next) {
        bool left = c->left_ns != 0 && now > c->left_ns && now - c->left_ns > TICK_MS * NS_PER_MS;
        bool drips =
            !c->busy && now > c->waiting_ns && now - c->waiting_ns > seconds * 1000 * NS_PER_MS;
        if (left && c->exchange != NULL && c->exchange->complete)
            lose(c->exchange);
        else if (left || drips)
            (void)shutdown(c->fd, SHUT_RDWR); /* to libmicrohttpd an error: it closes */
    }
}

/* ---- what comes back from libmicrohttpd and other threads ---- */

static void on_completed(void *cls, struct MHD_Connection *connection, void **con_cls,
                         enum MHD_RequestTerminationCode code)
{
    struct http_exchange *x = *con_cls;

    (void)cls;
    (void)connection;
    if (x == NULL)
        return;
    *con_cls = NULL;
    http_off_wire(x);
    if (code != MHD_REQUEST_TERMINATED_COMPLETED_OK)
        http_tell_gone(x);
    close_if_over(x);
}

static void take_dirty(struct http_server *s)
{
    uint64_t n;

    while (read(s->wake_fd, &n, sizeof n) > 0)
        ;
    (void)pthread_mutex_lock(&s->dirty_mutex);
    struct http_exchange *x = s->dirty;
    s->dirty = NULL;
    (void)pthread_mutex_unlock(&s->dirty_mutex);
    while (x != NULL) {
        struct http_exchange *next = x->next_dirty;
        (void)pthread_mutex_lock(&x->mutex);
        x->dirty = false;
        bool gone = x->gone;
        (void)pthread_mutex_unlock(&x->mutex);
        if (gone && !x->told_gone)
            lose(x);
        else
            resume(x);
        close_if_over(x);
        x = next;
    }
}

/* Timers of one exchange. */
static void tick(struct http_exchange *x, uint64_t now)
{
    const struct http_options *o = &x->server->options;
    uint64_t stall_ns = (o->stall_ms > 0 ? o->stall_ms : DEFAULT_STALL_MS) * NS_PER_MS;
    uint64_t quiet_ns = (o->keepalive_ms > 0 ? o->keepalive_ms : DEFAULT_KEEPALIVE_MS) * NS_PER_MS;

    if (x->connection != NULL && x->queued && !x->told_gone && http_has_stalled(x, now, stall_ns))
        lose(x);
    else if (http_keep_alive(x, now, quiet_ns))
        resume(x);
}

static int timeout_of(struct http_server *s)
{
    MHD_UNSIGNED_LONG_LONG mhd_ms;
    int ms = s->connections != NULL ? TICK_MS : 1000;

    if (MHD_get_timeout(s->daemon, &mhd_ms) == MHD_YES && mhd_ms < (unsigned)ms)
        ms = (int)mhd_ms;
    return ms;
}

static void *io_main(void *arg)
{
    struct http_server *s = arg;
    struct epoll_event events[EVENTS];
    uint64_t next_tick = 0;

    while (!atomic_load(&s->stop)) {
        int n = epoll_wait(s->epoll_fd, events, EVENTS, timeout_of(s));
        for (int i = 0; i < n; i++) {
            struct http_connection *c = events[i].data.ptr;
            if (c != NULL) /* it ends in MHD_run only, and is watched no longer then */
                on_left(c);
        }
        take_dirty(s);
        (void)MHD_run(s->daemon);
        uint64_t now = clock_now_ns();
        if (now < next_tick)
            continue;
        next_tick = now + TICK_MS * NS_PER_MS;
        for (struct http_exchange *x = s->open, *next; x != NULL; x = next) {
            next = x->next;
            tick(x, now);
        }
        look_after(s, now);
    }
    return NULL;
}

/* ---- start and end ---- */

static bool is_loopback(const struct sockaddr *a)
{
    if (a->sa_family == AF_INET)
        return (ntohl(((const struct sockaddr_in *)(const void *)a)->sin_addr.s_addr) >> 24) == 127;
    return a->sa_family == AF_INET6 &&
           IN6_IS_ADDR_LOOPBACK(&((const struct sockaddr_in6 *)(const void *)a)->sin6_addr);
}

static enum ferry_status open_socket(struct http_server *s, const struct addrinfo *a,
                                     struct ferry_error *err)
{
    const struct http_options *o = &s->options;
    int one = 1, bytes = SEND_BUFFER_BYTES;
    struct sockaddr_storage bound = {0};
    socklen_t size = sizeof bound;

    s->loopback = is_loopback(a->ai_addr);
    if (!s->loopback && o->auth == NULL && !o->insecure)
        return FERRY_FAIL(err, FERRY_ERR_ARG,
                          "%s can be reached from other machines and there is no API key; give "
                          "--api-key-file, bind 127.0.0.1, or say --insecure",
                          s->host);
    s->listen_fd = socket(a->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (s->listen_fd < 0)
        return FERRY_FAIL(err, FERRY_ERR_IO, "http: no socket: %s", strerror(errno));
    (void)setsockopt(s->listen_fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    (void)setsockopt(s->listen_fd, SOL_SOCKET, SO_SNDBUF, &bytes, sizeof bytes);
    (void)setsockopt(s->listen_fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    if (bind(s->listen_fd, a->ai_addr, a->ai_addrlen) != 0 || listen(s->listen_fd, BACKLOG) != 0) {
        int sys = errno;
        return FERRY_FAIL(err, FERRY_ERR_IO, "cannot listen on %s port %u: %s%s", s->host, o->port,
                          strerror(sys),
                          sys == EADDRINUSE ? "; stop what listens there, or take another --port"
                          : sys == EACCES   ? "; ports below 1024 need root"
                                            : "");
    }
    if (getsockname(s->listen_fd, (struct sockaddr *)(void *)&bound, &size) == 0)
        s->port =
            ntohs(bound.ss_family == AF_INET6 ? ((struct sockaddr_in6 *)(void *)&bound)->sin6_port
                                              : ((struct sockaddr_in *)(void *)&bound)->sin_port);
    return FERRY_OK;
}

static enum ferry_status listen_on(struct http_server *s, struct ferry_error *err)
{
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE | AI_NUMERICSERV};
    struct addrinfo *found = NULL;
    enum ferry_status st = FERRY_ERR_IO;
    char port[16], bare[256];
    size_t n = strlen(s->host);

    (void)snprintf(port, sizeof port, "%u", s->options.port);
    if (n > 2 && s->host[0] == '[' && s->host[n - 1] == ']') /* as in an address of the web */
        (void)snprintf(bare, sizeof bare, "%.*s", (int)min_size(n - 2, 255), s->host + 1);
    else
        (void)snprintf(bare, sizeof bare, "%s", s->host);
    int rc = getaddrinfo(bare, port, &hints, &found);
    if (rc != 0)
        return FERRY_FAIL(err, FERRY_ERR_ARG, "--host %s: %s", s->host, gai_strerror(rc));
    for (const struct addrinfo *a = found; a != NULL && st == FERRY_ERR_IO; a = a->ai_next) {
        if (s->listen_fd >= 0) /* of the address before, which this machine does not have */
            (void)close(s->listen_fd);
        s->listen_fd = -1;
        st = open_socket(s, a, err);
        if (st == FERRY_ERR_IO && err != NULL && err->sys == EADDRINUSE)
            break;
    }
    freeaddrinfo(found);
    return st;
}

static void mhd_panic(void *cls, const char *file, unsigned line, const char *reason)
{
    (void)cls;
    LOG_ERROR("http: libmicrohttpd gave up at %s:%u: %s", file, line,
              reason != NULL ? reason : "no reason");
    const bool library_state_is_whole = false; /* nothing can be answered any more */
    FERRY_ASSERT(library_state_is_whole);
}

FERRY_PRINTF(2, 0) static void mhd_log(void *cls, const char *format, va_list args)
{
    char line[256];
    int status = 0;

    (void)vsnprintf(line, sizeof line, format, args);
    line[strcspn(line, "\n")] = 0;
    LOG_DEBUG("http: %s", line);
    if (sscanf(line, "Error processing request (HTTP response code is %d", &status) == 1)
        http_library_refuses(cls, status);
}

static enum ferry_status start_mhd(struct http_server *s, struct ferry_error *err)
{
    const struct http_options *o = &s->options;
    unsigned flags = MHD_USE_EPOLL | MHD_ALLOW_SUSPEND_RESUME | MHD_USE_ERROR_LOG;
    unsigned n = (unsigned)(o->max_connections > 0 ? o->max_connections : LIMIT_HTTP_CONNECTIONS);
    struct MHD_OptionItem tls[] = {{MHD_OPTION_HTTPS_MEM_CERT, 0, (void *)(uintptr_t)o->tls_cert},
                                   {MHD_OPTION_HTTPS_MEM_KEY, 0, (void *)(uintptr_t)o->tls_key},
                                   {MHD_OPTION_END, 0, NULL}};

    if (o->tls_cert == NULL)
        tls[0].option = MHD_OPTION_END;
    else
        flags |= MHD_USE_TLS;
    MHD_set_panic_func(mhd_panic, NULL);
    s->daemon = MHD_start_daemon(
        flags, 0, NULL, NULL, http_access, s, MHD_OPTION_LISTEN_SOCKET, s->listen_fd,
        MHD_OPTION_EXTERNAL_LOGGER, mhd_log, s, MHD_OPTION_NOTIFY_COMPLETED, on_completed, s,
        MHD_OPTION_NOTIFY_CONNECTION, on_connection, s, MHD_OPTION_URI_LOG_CALLBACK, http_see_uri,
        s, MHD_OPTION_CONNECTION_LIMIT, n, MHD_OPTION_PER_IP_CONNECTION_LIMIT,
        (unsigned)o->max_per_peer, MHD_OPTION_CONNECTION_MEMORY_LIMIT, (size_t)HTTP_POOL_BYTES,
        MHD_OPTION_CONNECTION_TIMEOUT,
        o->idle_seconds > 0 ? o->idle_seconds : (unsigned)DEFAULT_IDLE_S,
        MHD_OPTION_STRICT_FOR_CLIENT, 0, MHD_OPTION_SIGPIPE_HANDLED_BY_APP, 1, MHD_OPTION_ARRAY,
        tls, MHD_OPTION_END);
    if (s->daemon == NULL)
        return FERRY_FAIL(err, o->tls_cert != NULL ? FERRY_ERR_ARG : FERRY_ERR_IO,
                          "http: libmicrohttpd does not start%s",
                          o->tls_cert != NULL ? "; are --tls-cert and --tls-key PEM files that "
                                                "belong together?"
                                              : "");
    const union MHD_DaemonInfo *info = MHD_get_daemon_info(s->daemon, MHD_DAEMON_INFO_EPOLL_FD);
    struct epoll_event event = {.events = EPOLLIN};
    if (info == NULL || epoll_ctl(s->epoll_fd, EPOLL_CTL_ADD, info->epoll_fd, &event) != 0 ||
        epoll_ctl(s->epoll_fd, EPOLL_CTL_ADD, s->wake_fd, &event) != 0)
        return FERRY_FAIL(err, FERRY_ERR_IO, "http: epoll: %s", strerror(errno));
    return FERRY_OK;
}

/* Signals are for other threads: the loop is not interrupted, and a client that closes its end is
 * an error of one write, not of the process. */
enum ferry_status http_server_start(struct http_server *server, struct ferry_error *err)
{
    sigset_t all, before;

    (void)sigfillset(&all);
    (void)pthread_sigmask(SIG_SETMASK, &all, &before);
    int rc = pthread_create(&server->thread, NULL, io_main, server);
    (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (rc != 0)
        return FERRY_FAIL(err, FERRY_ERR_IO, "http: no thread: %s", strerror(rc));
    server->started = true;
    return FERRY_OK;
}

enum ferry_status http_server_create(struct http_server **ret_server,
                                     const struct http_options *options, struct ferry_error *err)
{
    struct http_server *s = mem_zero(sizeof *s);
    const char *host = options->host != NULL ? options->host : "127.0.0.1";

    if (s == NULL)
        return FERRY_FAIL(err, FERRY_ERR_NOMEM, "http: no memory");
    s->options = *options;
    s->listen_fd = -1;
    (void)pthread_mutex_init(&s->dirty_mutex, NULL);
    s->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    s->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    s->host = mem_strndup(host, strlen(host));
    enum ferry_status st = FERRY_OK;
    if (s->host == NULL || s->epoll_fd < 0 || s->wake_fd < 0)
        st = FERRY_FAIL(err, FERRY_ERR_NOMEM, "http: no memory or descriptors");
    if (st == FERRY_OK)
        st = listen_on(s, err);
    if (st == FERRY_OK)
        st = start_mhd(s, err);
    if (st != FERRY_OK) {
        http_server_destroy(s);
        return st;
    }
    *ret_server = s;
    return FERRY_OK;
}

void http_server_stop(struct http_server *server)
{
    uint64_t one = 1;

    if (server == NULL || !server->started)
        return;
    atomic_store(&server->stop, true);
    if (write(server->wake_fd, &one, sizeof one) < 0)
        LOG_DEBUG(
            "http: the I/O thread ends at its next timer"); /* the counter is full: it is awake */
    (void)pthread_join(server->thread, NULL);
    server->started = false;
}

void http_server_destroy(struct http_server *server)
{
    struct http_server *s = server;

    if (s == NULL)
        return;
    http_server_stop(s);
    for (struct http_exchange *x = s->open; x != NULL; x = x->next)
        lose(x); /* libmicrohttpd must not be stopped with suspended connections */
    if (s->daemon != NULL) {
        (void)MHD_run(s->daemon);
        MHD_stop_daemon(s->daemon); /* closes the listening socket, too */
    } else if (s->listen_fd >= 0) {
        (void)close(s->listen_fd);
    }
    take_dirty(s);
    /* Who owns an exchange has been told; it must have ended it by now. */
    while (s->open != NULL) {
        struct http_exchange *x = s->open;
        if (x->owner.closed != NULL)
            x->owner.closed(x->owner_arg);
        exchange_free(x);
    }
    if (s->epoll_fd >= 0)
        (void)close(s->epoll_fd);
    if (s->wake_fd >= 0)
        (void)close(s->wake_fd);
    (void)pthread_mutex_destroy(&s->dirty_mutex);
    mem_free(s->host);
    mem_free(s);
}

unsigned http_port(const struct http_server *server)
{
    return server->port;
}

void http_server_drain(struct http_server *server)
{
    atomic_store(&server->draining, true);
}

size_t http_server_n_open(const struct http_server *server)
{
    return atomic_load(&server->n_open);
}
