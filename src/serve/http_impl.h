/* Inside of the HTTP layer: what the loop (http.c), the checks of a request (http_request.c) and
 * the answers (http_answer.c) share. */
#ifndef SERVE_HTTP_IMPL_H
#define SERVE_HTTP_IMPL_H

#include "serve/http.h"

#include <microhttpd.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/types.h>

enum {
    /* libmicrohttpd's memory of a connection: address, headers, and a buffer. */
    HTTP_POOL_BYTES = 48 << 10,
    HTTP_ID_BYTES = 64,
    HTTP_ADDED_MAX = 12,
    HTTP_NOTES_MAX = 12,
};

enum answer_state {
    ANSWER_NONE,
    ANSWER_STREAM, /* begun, more to come */
    ANSWER_WHOLE,  /* all of it is in `out` */
    ANSWER_CUT,    /* what is in `out`, then the connection is cut */
};

struct http_note {
    const char *name;
    const char *word; /* NULL: number */
    uint64_t number;
};

/* One socket; I/O thread. */
struct http_connection {
    struct http_server *server;
    struct http_connection *next, *previous;
    struct http_exchange *exchange; /* what is asked or answered on it; NULL: between two */
    struct MHD_Connection *mhd;
    int fd;
    uint64_t left_ns;    /* the client closed its side; 0: it did not */
    bool busy;           /* its request is complete, the answer is not */
    uint64_t waiting_ns; /* since then for a request, or for the rest of one */
    bool reads_head;     /* its request line was read, http_access was not called for it yet */
    const char *uri;     /* of the request that is being read, with the query, where it came in */
    size_t uri_bytes;    /* up to a 0 */
    bool odd_uri;        /* with bytes that no address has */
};

struct http_exchange {
    struct http_server *server;
    struct http_exchange *next, *previous; /* all that are open; I/O thread */

    /* The request; constant once the handler runs. */
    char *method, *path;
    char id[HTTP_ID_BYTES + 1];
    char *body; /* NULL: there was none, or it was dropped */
    size_t body_size, body_capacity;
    int key_index;
    const char *origin; /* the allowed one, in `path`'s allocation; NULL: none */
    uint64_t start_ns;

    /* I/O thread only. */
    struct MHD_Connection *connection; /* NULL: off the wire */
    struct http_connection *socket;
    int fd;
    bool suspended, complete; /* complete: the body is there */
    bool owned;               /* somebody owes an answer */
    bool no_room;             /* for the body, over all connections */
    size_t forgotten_bytes;   /* of the body, that were not kept */
    bool refused;             /* by us, before the handler: nothing to own */
    bool pulled;              /* sent as a stream, without a length */
    bool queued;              /* libmicrohttpd has the response */
    bool told_gone;
    const char *route;
    struct http_owner owner;
    void *owner_arg;
    uint64_t sent_bytes;

    /* Guards what follows; held for copies only, and never while anything is called. */
    pthread_mutex_t mutex;
    enum answer_state state;
    bool gone;  /* nobody reads any more */
    bool above; /* AGAIN was said, `drained` is owed */
    bool dirty; /* in the server's list of exchanges to look at */
    int status;
    const char *content_type;
    char *out;
    size_t out_start, out_size, out_capacity; /* [out_start, out_size) is still to be sent */
    uint64_t wrote_ns;                        /* the owner last said something */
    uint64_t taken_ns; /* the reader last took something, or was in debt to nobody */
    struct {
        char name[48], *value; /* its own */
    } added[HTTP_ADDED_MAX];
    size_t n_added;
    struct http_note notes[HTTP_NOTES_MAX];
    size_t n_notes;
    struct http_exchange *next_dirty;
};

struct http_server {
    struct http_options options;
    char *host;
    bool loopback;
    struct MHD_Daemon *daemon;
    int listen_fd, epoll_fd, wake_fd;
    unsigned port;
    pthread_t thread;
    bool started;
    atomic_bool stop, draining;
    atomic_size_t n_open;
    atomic_size_t bodies_bytes;          /* of all exchanges; grows on the I/O thread only */
    struct http_exchange *open;          /* I/O thread */
    struct http_connection *connections; /* I/O thread */
    size_t n_log_lost;                   /* lines of the access log; I/O thread */
    pthread_mutex_t dirty_mutex;         /* guards dirty and the next_dirty links */
    struct http_exchange *dirty;
};

/* http_request.c: one callback of libmicrohttpd per request stage. */
enum MHD_Result http_access(void *cls, struct MHD_Connection *connection, const char *url,
                            const char *method, const char *version, const char *upload_data,
                            size_t *upload_data_size, void **con_cls);

/* http_request.c: the address as it was sent, before it is taken apart. */
void *http_see_uri(void *cls, const char *uri, struct MHD_Connection *connection);

/* http_request.c: libmicrohttpd is about to refuse a request with this status, by itself. */
void http_library_refuses(struct http_server *s, int status);

/* http_answer.c, I/O thread. For an exchange that libmicrohttpd knows nothing of (whole, refused):
 * writes the answer to its socket, and ends what is sent there. */
void http_answer_raw(struct http_exchange *x);
/* http_answer.c, I/O thread. Hands the answer to libmicrohttpd, or suspends until there is one. */
enum MHD_Result http_answer(struct http_exchange *x);
void http_tell_gone(struct http_exchange *x);
/* Whether the reader has owed us a read for longer than that. */
bool http_has_stalled(struct http_exchange *x, uint64_t now_ns, uint64_t limit_ns);
/* Writes a comment into a stream in which nothing was said for so long; true if it did. */
bool http_keep_alive(struct http_exchange *x, uint64_t now_ns, uint64_t quiet_ns);

/* http.c, I/O thread. spare_bytes: room behind the path, for the origin. */
struct http_exchange *http_exchange_new(struct http_server *server,
                                        struct MHD_Connection *connection, const char *method,
                                        const char *url, size_t spare_bytes);
struct http_connection *http_connection_of(struct MHD_Connection *connection);
void http_suspend(struct http_exchange *x);
/* Takes it off its connection. */
void http_off_wire(struct http_exchange *x);

/* http.c, any thread: the I/O thread shall look at x, which has just been marked dirty. */
void http_push_dirty(struct http_exchange *x);

/* http_log.c, I/O thread. */
void http_log(const struct http_exchange *x, int status, uint64_t now_ns);

#endif
