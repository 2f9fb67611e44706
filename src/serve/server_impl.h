/* Inside of the server: what routes and answers share. */
#ifndef SERVE_SERVER_IMPL_H
#define SERVE_SERVER_IMPL_H

#include "engine/metrics.h"
#include "engine/scheduler.h"
#include "serve/server.h"

#include <pthread.h>
#include <stdatomic.h>
#include <time.h>

enum { SERVER_WORKERS_MAX = 16 };

/* Work for the workers, part of whatever it is about. A job is in one queue at most. */
struct job {
    struct job *next;
    bool is_new; /* set by server_add_job */
    void (*run)(struct job *job);
};

struct answer;

struct server {
    struct server_options options;
    struct engine *engine;
    const struct tokenizer *tokenizer;
    const struct chat *chat;
    struct scheduler *scheduler;
    struct http_server *http;
    struct metric_registry *registry;
    struct engine_metrics metrics;
    struct server_metrics *http_metrics;
    size_t n_valid; /* ids that may be sampled */
    time_t created;

    /* Guards the queue of jobs; the condition tells that it is not empty, or `quit`. */
    pthread_mutex_t mutex;
    pthread_cond_t condition;
    struct job *first, *last;
    size_t n_jobs; /* new requests in the queue: bounded, answers in making are not */
    bool quit;
    pthread_t workers[SERVER_WORKERS_MAX];
    size_t n_workers;

    struct answer *answers;  /* all that are not closed; guarded by mutex */
    atomic_int stops;        /* server_stop was called so often */
    atomic_bool running;     /* server_run is in its loop */
    atomic_bool failed;      /* the engine is lost */
    atomic_size_t n_answers; /* that are not closed */
};

/* Any thread. A new request is refused (false) when too many wait for a worker; the rest of an
 * answer never is. */
bool server_add_job(struct server *server, struct job *job, bool is_new);

/* routes.c: the handler of all requests. I/O thread. */
void server_route(void *arg, struct http_exchange *x);

#endif
