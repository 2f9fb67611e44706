/* The server: HTTP on one side, the scheduler on the other.
 *
 * Why here: `app` starts it, signals it, and knows nothing of routes. It must not parse flags or
 * print. The outward header of the room.
 *
 * Threads: the caller of server_run owns engine and scheduler; one thread does all socket work; a
 * few workers parse, render templates, tokenise and build long answers, so that neither of the
 * first two ever waits for a prompt. */
#ifndef SERVE_SERVER_H
#define SERVE_SERVER_H

#include "engine/engine.h"
#include "ferry/status.h"
#include "metric/metric.h"
#include "serve/http.h"
#include "text/chat.h"
#include "text/tokenizer.h"

#include <stdbool.h>
#include <stddef.h>

struct server;

struct server_options {
    struct http_options http; /* address, limits, keys, TLS, log; handler and hooks are set here */
    const char *model_name;   /* as the API calls it */
    size_t n_workers;         /* 0: 2 */
    size_t max_waiting;       /* answers that may wait for a sequence; 0: the scheduler's default */
    double queue_seconds;     /* that a request may wait; 0: as long as its client does */
    double drain_seconds;     /* after server_stop, until what still runs is broken off */
    double wedged_seconds;    /* without a sign of life of the engine: /health turns red; 0: 60 */
    bool no_prefix_cache;
    bool strict_params;               /* unknown fields are errors */
    bool no_vllm_metrics;             /* leave the vllm: aliases out of /metrics */
    bool expert_metrics;              /* every expert its own series */
    struct metric_registry *registry; /* to count in, not sealed yet, outlives the server; NULL: an
                                         own one */
    /* scheduler_options' of the same names. */
    void (*follow)(void *arg);
    void *follow_arg;
};

/* Listens when it returns; answers 503 until server_run. engine, tokenizer and chat (NULL: chat
 * completions are refused with a reason) are borrowed. Errors: those of http_server_create (port
 * busy, no key for a public address), FERRY_ERR_NOMEM. */
enum ferry_status server_create(struct server **ret_server, struct engine *engine,
                                const struct tokenizer *tokenizer, const struct chat *chat,
                                const struct server_options *options,
                                struct ferry_error *err) FERRY_MUST_CHECK;
void server_destroy(struct server *server);

/* Its scheduler, for messages of other ranks' engines; until server_destroy. */
struct scheduler *server_scheduler(struct server *server);

/* The port that it listens on. */
unsigned server_port(const struct server *server);

/* Serves until it was stopped and everything is answered or broken off. An error is the process'
 * (device, memory): all requests have been failed with it. */
enum ferry_status server_run(struct server *server, struct ferry_error *err) FERRY_MUST_CHECK;

/* From any thread and from signal handlers. Once: /ready turns 503, new requests are refused, those
 * that run are finished for up to drain_seconds. Twice: they are broken off. */
void server_stop(struct server *server);

#endif
