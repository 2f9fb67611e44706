/* Inside of the server: what routes and answers share. */
#ifndef SERVE_SERVER_IMPL_H
#define SERVE_SERVER_IMPL_H

#include "engine/metrics.h"
#include "engine/scheduler.h"
#include "serve/openai_error.h"
#include "serve/server.h"

#include <pthread.h>
#include <stdatomic.h>
#include <time.h>

enum { SERVER_WORKERS_MAX = 16 };

/* In the order in which they are taken. */
enum job_kind {
    JOB_REST,  /* of an answer that is made: its client waits for nothing else */
    JOB_NEW,   /* a request to be read */
    JOB_LARGE, /* the same, with a body that keeps a worker busy; takes turns with JOB_NEW, and one
                  worker never does it (if there are two) */
    JOB_KINDS,
};

/* Work for the workers, part of whatever it is about. A job is in one queue at most. */
struct job {
    struct job *next;
    enum job_kind kind; /* set by server_add_job */
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

    /* Guards the queues of jobs; the condition tells that they are not empty, or `quit`. */
    pthread_mutex_t mutex;
    pthread_cond_t condition;
    struct {
        struct job *first, *last;
    } jobs[JOB_KINDS];
    size_t n_jobs;             /* new requests in the queues: bounded, answers in making are not */
    size_t n_large, max_large; /* JOB_LARGE that are being done, and at most */
    bool large_next;           /* whose turn it is */
    bool quit;
    pthread_t workers[SERVER_WORKERS_MAX];
    size_t n_workers;

    struct answer *answers;       /* all that are not closed; guarded by mutex */
    atomic_int stops;             /* server_stop was called so often */
    atomic_bool running;          /* server_run is in its loop */
    atomic_bool failed;           /* the engine is lost */
    atomic_size_t n_answers;      /* that are not closed */
    _Atomic uint64_t log_next_ns; /* no failure is logged before */
    atomic_size_t n_unlogged;     /* since the last one that was */
};

/* Any thread. A new request is refused (false) when too many wait for a worker; the rest of an
 * answer never is. */
bool server_add_job(struct server *server, struct job *job, enum job_kind kind);

/* Any thread. A line for the operator when the error is the server's fault: one a second at most,
 * so that a model that always fails fills no disk. */
void server_log_failure(struct server *server, const char *id, const struct openai_error *error);

/* routes.c: the handler of all requests. I/O thread. */
void server_route(void *arg, struct http_exchange *x);

#endif
