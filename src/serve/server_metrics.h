/* What the server itself counts, and the page that shows everything.
 *
 * Why here: routes and answers count, `observe` formats. */
#ifndef SERVE_SERVER_METRICS_H
#define SERVE_SERVER_METRICS_H

#include "ferry/status.h"
#include "serve/http.h"
#include "serve/openai_error.h"

#include <stdint.h>

struct server;
struct server_metrics;

/* Why a request was not taken, or had to wait in vain. */
enum rejection {
    REJECTED_INVALID,  /* the request itself */
    REJECTED_QUEUE,    /* too many wait */
    REJECTED_TIMEOUT,  /* it waited for too long */
    REJECTED_MEMORY,   /* there is none for it */
    REJECTED_DRAINING, /* or not started yet */
    REJECTED_COUNT,
};

/* Registers in the server's registry, before it is sealed. Errors: those of metric_register. */
enum ferry_status server_metrics_create(struct server_metrics **ret_metrics, struct server *server,
                                        struct ferry_error *err) FERRY_MUST_CHECK;
void server_metrics_destroy(struct server_metrics *metrics);

/* http_count_fn; arg: the server. */
void server_metrics_count(void *arg, const char *route, int status, double seconds);

/* Any thread. */
void server_metrics_rejected(struct server_metrics *metrics, enum rejection why);
/* The same by the error that a request is answered with; nothing when that is no rejection. */
void server_metrics_refused(struct server_metrics *metrics, const struct openai_error *error);
void server_metrics_client_left(struct server_metrics *metrics);
void server_metrics_paused(struct server_metrics *metrics, uint64_t ns);

/* Answers GET /metrics. I/O thread. */
void server_metrics_page(struct server *server, struct http_exchange *x);

#endif
