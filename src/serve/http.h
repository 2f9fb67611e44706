/* HTTP/1.1: connections, limits, keys, and answers that wait for somebody else's thread.
 *
 * Why here: routes think in requests and answers; sockets, slow readers and clients that left are
 * this file's business. It must not know JSON bodies, routes or the engine. libmicrohttpd parses;
 * why that one: docs/decisions/0005-http-library.md.
 *
 * Threads: one I/O thread does all socket work and calls handler and owners; it must never wait. An
 * answer may be given from any thread. */
#ifndef SERVE_HTTP_H
#define SERVE_HTTP_H

#include "ferry/status.h"
#include "serve/auth.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct http_server;
struct http_exchange; /* one request and its answer */

/* A complete request. Replies at once, or takes it with http_own. I/O thread. */
typedef void http_handler_fn(void *arg, struct http_exchange *x);

/* An exchange is over: for counters. route: what http_set_route said, or "other". I/O thread. */
typedef void http_count_fn(void *arg, const char *route, int status, double seconds);

struct http_options {
    const char *host;        /* NULL: 127.0.0.1 */
    unsigned port;           /* 0: any free one, see http_port */
    bool insecure;           /* a public address without keys is refused unless this is set */
    const struct auth *auth; /* borrowed; NULL: no keys */
    const char *const *allowed_hosts;   /* Host names beside the loopback ones; NULL-ended */
    const char *const *allowed_origins; /* of browsers; "*": all; NULL: none */
    const char *tls_cert, *tls_key;     /* PEM, 0-terminated texts; both or none */
    size_t max_body_bytes;              /* 0: 32 MiB */
    size_t max_bodies_bytes;            /* of all requests together; 0: 128 MiB */
    size_t max_connections;             /* 0: 1024 */
    size_t max_per_peer;                /* of them, from one address; 0: all */
    size_t stream_bytes;   /* of an answer that its reader has not taken: AGAIN above; 0: 64 KiB */
    unsigned idle_seconds; /* without a byte: the connection is closed; 0: 60 */
    unsigned read_seconds; /* more, that a request may take to come in; 0: 120 */
    unsigned stall_ms;     /* an answer of which its reader takes nothing is dropped; 0: 30,000 */
    unsigned keepalive_ms; /* a stream in which nothing was said gets a comment; 0: 10,000 */
    int log_fd;            /* access log; -1: none */
    bool log_probes;       /* /health, /ready and /metrics, too */
    http_handler_fn *handler;
    http_count_fn *count; /* may be NULL */
    void *arg;
};

/* Binds. Who connects waits until http_server_start: a handler may use whatever its caller sets up
 * in between, this server too. Errors: FERRY_ERR_ARG (public address without keys; TLS),
 * FERRY_ERR_IO (port busy: the message says so and what to do), FERRY_ERR_NOMEM. */
enum ferry_status http_server_create(struct http_server **ret_server,
                                     const struct http_options *options,
                                     struct ferry_error *err) FERRY_MUST_CHECK;

/* Starts the I/O thread, once. FERRY_ERR_IO. */
enum ferry_status http_server_start(struct http_server *server,
                                    struct ferry_error *err) FERRY_MUST_CHECK;

/* Ends the I/O thread: no handler and no owner is called any more until destroy. NULL is allowed.
 */
void http_server_stop(struct http_server *server);

/* Closes everything; every exchange must have been ended by its owner, who hears closed. NULL is
 * allowed. */
void http_server_destroy(struct http_server *server);

unsigned http_port(const struct http_server *server);

/* Answers get Connection: close from now on; new connections are still taken. */
void http_server_drain(struct http_server *server);

/* Requests that have begun and are not over. Any thread. */
size_t http_server_n_open(const struct http_server *server);

/* ---- the request; the strings live as long as the exchange ---- */

const char *http_method(const struct http_exchange *x);
const char *http_path(const struct http_exchange *x); /* without the query */
const char *http_body(const struct http_exchange *x, size_t *ret_size);
/* Gives the body's memory back before the answer is there; http_body says nothing from then on. Any
 * thread, before the answer ends. */
void http_drop_body(struct http_exchange *x);
const char *http_id(const struct http_exchange *x);
/* What prefixes of its prompts are shared under: [32], one of its own for every key. */
const unsigned char *http_cache_key(const struct http_exchange *x);

/* ---- taking it ---- */

/* Called on the I/O thread; must not block. */
struct http_owner {
    void (*gone)(void *arg);    /* once: the client left, or does not read, or the server closes */
    void (*drained)(void *arg); /* after AGAIN: less than half of the cap is left */
    void (*closed)(void *arg);  /* once, the last: answered (or ended) and off the wire */
};

/* In the handler. The owner then owes exactly one http_reply or http_stream_end, also when the
 * client is gone, and does not touch the exchange afterwards. */
void http_own(struct http_exchange *x, const struct http_owner *owner, void *arg);

/* For log and counters: a constant string. */
void http_set_route(struct http_exchange *x, const char *route);

/* A header of the answer, before it begins, of up to 16 KiB; what HTTP does not allow in it is left
 * out. False: it will not be there (no memory, or too long). */
bool http_add_header(struct http_exchange *x, const char *name, const char *value);

/* A member of the access log's line; name is a constant. */
void http_log_number(struct http_exchange *x, const char *name, uint64_t value);
void http_log_word(struct http_exchange *x, const char *name, const char *constant);

/* ---- the answer; any thread, one at a time ---- */

/* The whole answer; body [size] is copied. */
void http_reply(struct http_exchange *x, int status, const char *content_type, const void *body,
                size_t size);

/* An error in OpenAI's shape. code (a constant) and param may be NULL. Bytes of message and param
 * that are not printable become '?'; what is longer than 511 and 255 bytes is cut. */
void http_error(struct http_exchange *x, int status, const char *code, const char *param,
                const char *message);

/* Status and headers go out at once, the body in pieces (server-sent events). */
void http_stream_begin(struct http_exchange *x, int status, const char *content_type);

/* FERRY_AGAIN: taken, but the reader is behind: pause until `drained`. FERRY_ERR_CANCELLED: the
 * client is gone. */
enum ferry_status http_stream_write(struct http_exchange *x, const void *data,
                                    size_t size) FERRY_MUST_CHECK;

/* Bytes that the first write of a stream may have, so that what its owner writes until it has
 * paused still fits. */
size_t http_stream_room(const struct http_exchange *x);

/* complete: with HTTP's end mark; otherwise the connection is cut, so that the client can tell. */
void http_stream_end(struct http_exchange *x, bool complete);

#endif
