/* A small server for the tests of src/serve/http*.c, and a client that speaks in raw bytes. */
#ifndef TESTS_SERVE_WEB_H
#define TESTS_SERVE_WEB_H

#include "tests/unit/unit.h"

#include "serve/http.h"

#include <pthread.h>
#include <stdatomic.h>

/* What the handler of the tests does, by path:
 *   /echo    the body, at once, on the I/O thread
 *   /later   the body, from another thread
 *   /hang    nothing, until the client is gone
 *   /stream  `n_pieces` pieces of `piece_bytes`, from another thread; pauses at AGAIN until drained
 *   /quiet   begins a stream and says nothing for quiet_ms
 *   /fail    begins a stream and cuts it
 *   /flood   a stream that ignores AGAIN; counts it, and FERRY_ERR_CANCELLED
 *   /big     `n_pieces` times `piece_bytes` as one answer, at once
 *   /noted   members for the log, headers with line ends; the key's index as body
 *   /odd     an error whose message and parameter have every byte there is */
struct web {
    struct http_server *server;
    unsigned port;
    bool waits; /* web_start does not start the I/O thread */
    size_t n_pieces, piece_bytes;
    unsigned quiet_ms;
    atomic_int n_handled, n_gone, n_drained, n_closed, n_again, n_cancelled;
    atomic_int n_threads; /* of visits that have not ended */
    atomic_int last_status;
};

/* Options with a small stream buffer; port, handler and hooks are set by web_start. */
struct http_options web_options(void);
void web_start(struct web *web, struct http_options options);
void web_stop(struct web *web);

/* A connected socket. */
int web_connect(const struct web *web);
void web_send(int fd, const void *data, size_t size);
void web_say(int fd, const char *text);

/* Reads until `part` was seen, the other side closed, or 5 seconds passed; the text so far is in
 * `to`. */
bool web_hear(int fd, char *to, size_t size, const char *part);

/* One request on a connection of its own; returns the status, 0 when none came. The whole answer is
 * in `to`. */
int web_ask(const struct web *web, const char *request, char *to, size_t size);

/* Waits up to 5 seconds for a counter to reach n. */
void web_wait(atomic_int *counter, int n);

#endif
