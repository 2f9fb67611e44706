/* Threads, start, drain and end. See server.h. */
#include "serve/server_impl.h"

#include "base/alloc.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "base/size.h"
#include "serve/answer.h"
#include "serve/server_metrics.h"

#include <stdio.h>
#include <string.h>

enum { DEFAULT_WORKERS = 2, JOBS_MAX = 1024, IDLE_MS = 50 };

#define NS_PER_S        1e9
#define FAREWELL_S      0.5
#define WORKER_LOOKS_NS UINT64_C(1000000000)
#define FAILURES_NS     UINT64_C(1000000000)

/* ---- workers ---- */

/* The next job that may be begun, NULL when there is none. Under the mutex. */
static struct job *take_job(struct server *s)
{
    enum job_kind kind = JOB_REST;

    if (s->jobs[kind].first == NULL) {
        bool large = s->jobs[JOB_LARGE].first != NULL && s->n_large < s->max_large &&
                     (s->large_next || s->jobs[JOB_NEW].first == NULL);
        kind = large ? JOB_LARGE : JOB_NEW;
        s->large_next = !large;
    }
    struct job *job = s->jobs[kind].first;
    if (job == NULL)
        return NULL;
    s->jobs[kind].first = job->next;
    if (job->next == NULL)
        s->jobs[kind].last = NULL;
    s->n_jobs -= kind != JOB_REST;
    s->n_large += kind == JOB_LARGE;
    return job;
}

/* Woken by server_add_job and at the end; looks up by itself now and then, so that a lost wake-up
 * would be a late answer and no hang. Under the mutex. */
static void wait_for_job(struct server *s)
{
    uint64_t until = clock_now_ns() + WORKER_LOOKS_NS;
    struct timespec t = {(time_t)(until / UINT64_C(1000000000)),
                         (long)(until % UINT64_C(1000000000))};

    (void)pthread_cond_timedwait(&s->condition, &s->mutex, &t);
}

static void *worker_main(void *arg)
{
    struct server *s = arg;
    struct job *job;

    (void)pthread_mutex_lock(&s->mutex);
    for (;;) {
        while ((job = take_job(s)) == NULL && !s->quit)
            wait_for_job(s);
        if (job == NULL)
            break; /* what may still be large has a worker that is busy with another */
        bool large = job->kind == JOB_LARGE;
        (void)pthread_mutex_unlock(&s->mutex);
        job->run(job); /* it may be gone */
        (void)pthread_mutex_lock(&s->mutex);
        s->n_large -= large;
        if (large && s->jobs[JOB_LARGE].first != NULL)
            (void)pthread_cond_signal(&s->condition);
    }
    (void)pthread_mutex_unlock(&s->mutex);
    return NULL;
}

bool server_add_job(struct server *server, struct job *job, enum job_kind kind)
{
    struct server *s = server;
    bool is_new = kind != JOB_REST;

    (void)pthread_mutex_lock(&s->mutex);
    bool fits = !s->quit && (!is_new || s->n_jobs < JOBS_MAX);
    if (fits) {
        job->next = NULL;
        job->kind = kind;
        if (s->jobs[kind].last != NULL)
            s->jobs[kind].last->next = job;
        else
            s->jobs[kind].first = job;
        s->jobs[kind].last = job;
        s->n_jobs += is_new;
        (void)pthread_cond_signal(&s->condition);
    }
    bool here = s->quit && !is_new; /* the workers may be gone: the caller does it */
    if (here)
        fits = true;
    (void)pthread_mutex_unlock(&s->mutex);
    if (here)
        job->run(job);
    return fits;
}

static enum ferry_status start_workers(struct server *s, struct ferry_error *err)
{
    size_t n = s->options.n_workers > 0 ? s->options.n_workers : DEFAULT_WORKERS;

    n = min_size(n, SERVER_WORKERS_MAX);
    s->max_large = max_size(n, 2) - 1;
    for (; s->n_workers < n; s->n_workers++) {
        if (pthread_create(&s->workers[s->n_workers], NULL, worker_main, s) != 0)
            return FERRY_FAIL(err, FERRY_ERR_IO, "server: no thread for worker %zu", s->n_workers);
    }
    return FERRY_OK;
}

/* They finish what is in the queue. */
static void stop_workers(struct server *s)
{
    (void)pthread_mutex_lock(&s->mutex);
    s->quit = true;
    (void)pthread_cond_broadcast(&s->condition);
    (void)pthread_mutex_unlock(&s->mutex);
    for (size_t i = 0; i < s->n_workers; i++)
        (void)pthread_join(s->workers[i], NULL);
    s->n_workers = 0;
}

/* ---- start and end ---- */

static enum ferry_status start(struct server *s, struct ferry_error *err)
{
    struct http_options http = s->options.http;
    struct scheduler_options scheduler = {.max_waiting = s->options.max_waiting,
                                          .no_prefix_cache = s->options.no_prefix_cache,
                                          .metrics = &s->metrics,
                                          .follow = s->options.follow,
                                          .follow_arg = s->options.follow_arg};
    enum ferry_status st = FERRY_OK;

    s->registry = s->options.registry;
    if (s->registry == NULL)
        st = metric_registry_create(&s->registry, err);
    if (st == FERRY_OK)
        st = engine_metrics_register(&s->metrics, s->registry, engine_context(s->engine), err);
    if (st == FERRY_OK)
        st = server_metrics_create(&s->http_metrics, s, err);
    if (st == FERRY_OK)
        metric_registry_seal(s->registry);
    if (st == FERRY_OK)
        st = scheduler_create(&s->scheduler, s->engine, s->tokenizer, &scheduler, err);
    if (st == FERRY_OK)
        st = start_workers(s, err);
    http.handler = server_route;
    http.count = server_metrics_count;
    http.arg = s;
    if (st == FERRY_OK)
        st = http_server_create(&s->http, &http, err);
    return st == FERRY_OK ? http_server_start(s->http, err) : st;
}

enum ferry_status server_create(struct server **ret_server, struct engine *engine,
                                const struct tokenizer *tokenizer, const struct chat *chat,
                                const struct server_options *options, struct ferry_error *err)
{
    struct server *s = mem_zero(sizeof *s);
    pthread_condattr_t attr;

    if (s == NULL)
        return FERRY_FAIL(err, FERRY_ERR_NOMEM, "server: no memory");
    s->options = *options;
    s->engine = engine;
    s->tokenizer = tokenizer;
    s->chat = chat;
    s->created = time(NULL);
    s->n_valid = model_config(engine_model(engine))->n_vocab;
    if (tokenizer != NULL)
        s->n_valid = min_size(s->n_valid, tokenizer_n_vocab(tokenizer));
    (void)pthread_mutex_init(&s->mutex, NULL);
    (void)pthread_condattr_init(&attr);
    (void)pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    (void)pthread_cond_init(&s->condition, &attr);
    (void)pthread_condattr_destroy(&attr);
    enum ferry_status st = start(s, err);
    if (st != FERRY_OK) {
        server_destroy(s);
        return st;
    }
    *ret_server = s;
    return FERRY_OK;
}

void server_destroy(struct server *server)
{
    struct server *s = server;

    if (s == NULL)
        return;
    /* Whoever calls into the next one ends first: workers and I/O thread submit, the scheduler's
     * last events end answers, the answers lie in exchanges. */
    stop_workers(s);
    http_server_stop(s->http);
    scheduler_destroy(s->scheduler);
    http_server_destroy(s->http);
    server_metrics_destroy(s->http_metrics);
    if (s->options.registry == NULL)
        metric_registry_destroy(s->registry);
    (void)pthread_cond_destroy(&s->condition);
    (void)pthread_mutex_destroy(&s->mutex);
    mem_free(s);
}

struct scheduler *server_scheduler(struct server *server)
{
    return server->scheduler;
}

unsigned server_port(const struct server *server)
{
    return http_port(server->http);
}

void server_stop(struct server *server)
{
    atomic_fetch_add(&server->stops, 1);
}

/* Waiting too long and a server that stops are told to the client, and no fault. */
void server_log_failure(struct server *server, const char *id, const struct openai_error *error)
{
    const char *code = error->code != NULL ? error->code : "";
    uint64_t now = clock_now_ns(), next = atomic_load(&server->log_next_ns);

    if (error->http < 500 || strcmp(code, "cancelled") == 0 || strcmp(code, "queue_timeout") == 0)
        return;
    if (now < next ||
        !atomic_compare_exchange_strong(&server->log_next_ns, &next, now + FAILURES_NS)) {
        atomic_fetch_add(&server->n_unlogged, 1);
        return;
    }
    size_t n = atomic_exchange(&server->n_unlogged, 0);
    char more[64] = "";
    if (n > 0)
        (void)snprintf(more, sizeof more, " (%zu more since the last line)", n);
    LOG_ERROR("request %s failed with %s: %s%s", id, code, error->message, more);
}

/* ---- the engine's thread ---- */

static bool is_idle(const struct server *s)
{
    struct scheduler_view view;

    scheduler_view(s->scheduler, &view);
    return view.n_running == 0 && view.n_waiting == 0 && view.n_held == 0;
}

/* Whether the loop is to end: stopped, and everything is answered, or broken off and given a moment
 * to reach its clients. */
static bool is_over(struct server *s, uint64_t *drain_ns, uint64_t *broken_ns)
{
    int stops = atomic_load(&s->stops);
    uint64_t now = clock_now_ns();

    if (stops == 0)
        return false;
    if (*drain_ns == 0) {
        LOG_INFO("stopping: %zu answers are being made; a second signal breaks them off",
                 atomic_load(&s->n_answers));
        *drain_ns = now;
        http_server_drain(s->http);
    }
    if (atomic_load(&s->n_answers) == 0)
        return true;
    bool late = (double)(now - *drain_ns) > s->options.drain_seconds * NS_PER_S;
    if (stops < 2 && !late)
        return false;
    answer_cancel_all(s);
    if (*broken_ns == 0)
        *broken_ns = now;
    return is_idle(s) && (double)(now - *broken_ns) > FAREWELL_S * NS_PER_S;
}

enum ferry_status server_run(struct server *server, struct ferry_error *err)
{
    struct server *s = server;
    enum ferry_status st = FERRY_OK;
    uint64_t drain_ns = 0, broken_ns = 0;
    struct ferry_error own; /* it is logged */
    bool idle;

    err = err != NULL ? err : &own;
    atomic_store(&s->running, true);
    while (!is_over(s, &drain_ns, &broken_ns)) {
        st = scheduler_step(s->scheduler, &idle, err);
        if (st != FERRY_OK) {
            /* Whatever waits has been failed; new requests are refused until the end. */
            if (!atomic_exchange(&s->failed, true))
                LOG_ERROR("the engine is lost: %s", err->msg);
            if (atomic_load(&s->stops) == 0)
                server_stop(s);
        }
        if (idle)
            scheduler_wait(s->scheduler, IDLE_MS * UINT64_C(1000000));
    }
    atomic_store(&s->running, false);
    return atomic_load(&s->failed) ? FERRY_ERR_DEVICE : FERRY_OK;
}
