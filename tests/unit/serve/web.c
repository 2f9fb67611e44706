/* See web.h. */
#include "web.h"

#include "serve/http_impl.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

struct visit {
    struct web *web;
    struct http_exchange *x;
    pthread_t thread;
    bool threaded;
    void *(*run)(void *);
    atomic_bool gone, paused;
};

static void nap(void)
{
    struct timespec ms = {0, 1000000};
    (void)nanosleep(&ms, NULL);
}

static void on_gone(void *arg)
{
    struct visit *v = arg;

    atomic_fetch_add(&v->web->n_gone, 1);
    atomic_store(&v->gone, true);
    if (!v->threaded)
        http_reply(v->x, 200, "text/plain", "too late", 8);
}

static void on_drained(void *arg)
{
    struct visit *v = arg;

    atomic_fetch_add(&v->web->n_drained, 1);
    atomic_store(&v->paused, false);
}

static void on_closed(void *arg)
{
    struct visit *v = arg;
    struct web *web = v->web;

    if (v->threaded)
        (void)pthread_detach(v->thread);
    free(v);
    atomic_fetch_add(&web->n_closed, 1);
}

static void *later(void *arg)
{
    struct visit *v = arg;
    size_t size;
    const char *body = http_body(v->x, &size);

    for (int i = 0; i < 20; i++)
        nap();
    http_reply(v->x, 200, "text/plain", body, size);
    return NULL;
}

static void *stream(void *arg)
{
    struct visit *v = arg;
    char *piece = malloc(v->web->piece_bytes);

    memset(piece, 'x', v->web->piece_bytes);
    http_stream_begin(v->x, 200, "text/event-stream");
    for (size_t i = 0; i < v->web->n_pieces; i++) {
        atomic_store(&v->paused, true); /* before: `drained` may come at once */
        enum ferry_status st = http_stream_write(v->x, piece, v->web->piece_bytes);
        if (st == FERRY_ERR_CANCELLED) {
            atomic_fetch_add(&v->web->n_cancelled, 1);
            break;
        }
        if (st != FERRY_AGAIN)
            continue;
        atomic_fetch_add(&v->web->n_again, 1);
        while (atomic_load(&v->paused) && !atomic_load(&v->gone))
            nap();
    }
    free(piece);
    http_stream_end(v->x, true);
    return NULL;
}

static void *quiet(void *arg)
{
    struct visit *v = arg;

    http_stream_begin(v->x, 200, "text/event-stream");
    for (unsigned i = 0; i < v->web->quiet_ms && !atomic_load(&v->gone); i++)
        nap();
    if (http_stream_write(v->x, "data: end\n\n", 11) != FERRY_OK)
        atomic_fetch_add(&v->web->n_cancelled, 1);
    http_stream_end(v->x, true);
    return NULL;
}

static void *cut(void *arg)
{
    struct visit *v = arg;

    http_stream_begin(v->x, 200, "text/event-stream");
    if (http_stream_write(v->x, "data: half\n\n", 12) != FERRY_OK)
        atomic_fetch_add(&v->web->n_cancelled, 1);
    http_stream_end(v->x, false);
    return NULL;
}

static void *flood(void *arg)
{
    struct visit *v = arg;
    char *piece = calloc(1, v->web->piece_bytes);
    enum ferry_status st = FERRY_OK;

    http_stream_begin(v->x, 200, "text/event-stream");
    for (size_t i = 0; i < v->web->n_pieces && st != FERRY_ERR_CANCELLED; i++) {
        st = http_stream_write(v->x, piece, v->web->piece_bytes);
        atomic_fetch_add(st == FERRY_AGAIN ? &v->web->n_again : &v->web->n_cancelled,
                         st != FERRY_OK);
    }
    free(piece);
    http_stream_end(v->x, true);
    return NULL;
}

/* The visit may be gone when it has run. */
static void *visit_main(void *arg)
{
    struct visit *v = arg;
    struct web *web = v->web;

    (void)v->run(v);
    atomic_fetch_sub(&web->n_threads, 1);
    return NULL;
}

/* Answers that are given at once; false: the path is another one. */
static bool answer_here(const struct web *web, struct http_exchange *x)
{
    const char *path = http_path(x);
    size_t size;
    const char *body = http_body(x, &size);
    char odd[700], index[16];

    if (strcmp(path, "/echo") == 0) {
        http_reply(x, 200, "text/plain", body, size);
    } else if (strcmp(path, "/big") == 0) {
        char *all = calloc(web->n_pieces, web->piece_bytes);
        http_reply(x, 200, "application/octet-stream", all, web->n_pieces * web->piece_bytes);
        free(all);
    } else if (strcmp(path, "/noted") == 0) {
        http_log_number(x, "tokens", 7);
        http_log_word(x, "finish", "stop");
        (void)http_add_header(x, "X-Odd", "a\r\nX-Injected: b\n\x7f");
        (void)snprintf(index, sizeof index, "%d", x->key_index);
        http_reply(x, 200, "text/plain", index, strlen(index));
    } else if (strcmp(path, "/odd") == 0) {
        for (size_t i = 0; i < sizeof odd; i++)
            odd[i] = (char)(1 + i % 255);
        odd[sizeof odd - 1] = 0;
        http_error(x, 400, "odd", odd, odd);
    } else {
        return false;
    }
    return true;
}

static void handle(void *arg, struct http_exchange *x)
{
    static const struct http_owner OWNER = {on_gone, on_drained, on_closed};
    static const struct {
        const char *path;
        void *(*run)(void *);
    } THREADS[] = {{"/later", later},
                   {"/stream", stream},
                   {"/quiet", quiet},
                   {"/fail", cut},
                   {"/flood", flood}};
    struct web *web = arg;
    void *(*run)(void *) = NULL;

    atomic_fetch_add(&web->n_handled, 1);
    http_set_route(x, strcmp(http_path(x), "/health") == 0 ? "health" : "test");
    if (answer_here(web, x))
        return;
    for (size_t i = 0; i < sizeof THREADS / sizeof THREADS[0]; i++) {
        if (strcmp(http_path(x), THREADS[i].path) == 0)
            run = THREADS[i].run;
    }
    if (run == NULL && strcmp(http_path(x), "/hang") != 0) {
        http_error(x, 404, "not_found", "path", "no \xff such \"path\"");
        return;
    }
    struct visit *v = calloc(1, sizeof *v);
    v->web = web;
    v->run = run;
    v->x = x;
    v->threaded = run != NULL;
    http_own(x, &OWNER, v);
    /* The thread may end, and `closed` may come, only after this thread has gone on: v->thread is
     * set. */
    if (run != NULL)
        atomic_fetch_add(&web->n_threads, 1);
    if (run != NULL && pthread_create(&v->thread, NULL, visit_main, v) != 0)
        fail_msg("no thread");
}

static void count(void *arg, const char *route, int status, double seconds)
{
    struct web *web = arg;

    (void)route;
    (void)seconds;
    atomic_store(&web->last_status, status);
}

struct http_options web_options(void)
{
    return (struct http_options){.log_fd = -1, .stream_bytes = 16 << 10};
}

void web_start(struct web *web, struct http_options options)
{
    struct ferry_error err = {0};

    options.handler = handle;
    options.count = count;
    options.arg = web;
    if (http_server_create(&web->server, &options, &err) != FERRY_OK ||
        (!web->waits && http_server_start(web->server, &err) != FERRY_OK))
        fail_msg("%s", err.msg);
    web->port = http_port(web->server);
}

void web_stop(struct web *web)
{
    /* As whoever owns answers has to: all of them are ended before the server goes. */
    http_server_stop(web->server);
    while (atomic_load(&web->n_threads) > 0)
        nap();
    http_server_destroy(web->server);
}

int web_connect(const struct web *web)
{
    struct sockaddr_in to = {.sin_family = AF_INET,
                             .sin_port = htons((uint16_t)web->port),
                             .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    if (fd < 0 || connect(fd, (struct sockaddr *)(void *)&to, sizeof to) != 0)
        fail_msg("cannot connect to port %u", web->port);
    return fd;
}

void web_send(int fd, const void *data, size_t size)
{
    const char *at = data;

    while (size > 0) {
        ssize_t n = send(fd, at, size, MSG_NOSIGNAL);
        if (n <= 0)
            return; /* refused in the middle: the answer tells */
        at += n;
        size -= (size_t)n;
    }
}

void web_say(int fd, const char *text)
{
    web_send(fd, text, strlen(text));
}

bool web_hear(int fd, char *to, size_t size, const char *part)
{
    size_t n = 0;

    to[0] = 0;
    while (n + 1 < size) {
        struct pollfd p = {fd, POLLIN, 0};
        if (poll(&p, 1, 5000) <= 0)
            return false;
        ssize_t got = recv(fd, to + n, size - 1 - n, 0);
        if (got <= 0)
            return false;
        n += (size_t)got;
        to[n] = 0;
        if (strstr(to, part) != NULL)
            return true;
    }
    return false;
}

int web_ask(const struct web *web, const char *request, char *to, size_t size)
{
    int fd = web_connect(web), status = 0;

    web_say(fd, request);
    (void)web_hear(fd, to, size, "\x01 never sent");
    (void)close(fd);
    if (sscanf(to, "HTTP/1.1 %d", &status) != 1)
        status = 0;
    return status;
}

void web_wait(atomic_int *counter, int n)
{
    for (int i = 0; i < 5000 && atomic_load(counter) < n; i++)
        nap();
    if (atomic_load(counter) < n)
        fail_msg("waited for %d, have %d", n, atomic_load(counter));
}
