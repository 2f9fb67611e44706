/* Which path does what; the answers that need nobody's thread. See server_impl.h. */
#include "base/clock.h"
#include "serve/answer.h"
#include "serve/server_impl.h"
#include "serve/server_metrics.h"

#include <stdio.h>
#include <string.h>

enum { DEFAULT_WEDGED_S = 60, RETRY_DRAINING_S = 5 };
static const uint64_t GROUP_WAIT_NS = UINT64_C(5000000000);

typedef void route_fn(struct server *server, struct http_exchange *x);

static bool is_ready(const struct server *s)
{
    return atomic_load(&s->running) && atomic_load(&s->stops) == 0 && !atomic_load(&s->failed);
}

/* Alive: the engine was seen between two steps not long ago. A long prompt is many steps, so this
 * is neither red while it is read nor green when the engine hangs. */
static void health(struct server *s, struct http_exchange *x)
{
    struct scheduler_view view;
    char body[200];
    double limit = s->options.wedged_seconds > 0 ? s->options.wedged_seconds : DEFAULT_WEDGED_S;

    scheduler_view(s->scheduler, &view);
    uint64_t now = clock_now_ns();
    double age = now > view.heartbeat_ns ? (double)(now - view.heartbeat_ns) * 1e-9 : 0;
    bool started = atomic_load(&s->running);
    bool good = !atomic_load(&s->failed) && (!started || age < limit);
    (void)snprintf(body, sizeof body,
                   "{\"status\":\"%s\",\"heartbeat_seconds\":%.3f,\"steps\":%llu,\"running\":%zu,"
                   "\"waiting\":%zu,\"held\":%zu}",
                   good ? "ok" : "wedged", age, (unsigned long long)view.n_steps, view.n_running,
                   view.n_waiting, view.n_held);
    http_reply(x, good ? 200 : 503, "application/json", body, strlen(body));
}

/* Answers wait for other ranks longer than it takes to load a lost one's experts. */
static bool waits_for_group(const struct server *s)
{
    struct scheduler_view view;

    scheduler_view(s->scheduler, &view);
    uint64_t now = clock_now_ns();
    return view.group_wait_ns > 0 && now > view.group_wait_ns + GROUP_WAIT_NS;
}

static void ready(struct server *s, struct http_exchange *x)
{
    const char *body = "{\"status\":\"ready\"}";
    int status = 503;

    if (atomic_load(&s->stops) > 0)
        body = "{\"status\":\"draining\"}";
    else if (!is_ready(s))
        body = "{\"status\":\"loading\"}";
    else if (waits_for_group(s))
        body = "{\"status\":\"waiting for other ranks\"}";
    else
        status = 200;
    http_reply(x, status, "application/json", body, strlen(body));
}

static void work(struct server *s, struct http_exchange *x, enum openai_kind kind)
{
    /* Counted before the look: server_run, which stops first and counts then, cannot miss both. */
    atomic_fetch_add(&s->n_answers, 1);
    if (is_ready(s)) {
        answer_start(s, x, kind);
        return;
    }
    atomic_fetch_sub(&s->n_answers, 1);
    char seconds[16];
    (void)snprintf(seconds, sizeof seconds, "%d", RETRY_DRAINING_S);
    (void)http_add_header(x, "Retry-After", seconds);
    server_metrics_rejected(s->http_metrics, REJECTED_DRAINING);
    http_error(x, 503, "not_ready", NULL,
               atomic_load(&s->stops) > 0 ? "the server is shutting down; ask another one"
                                          : "the server is starting; try again");
}

/* What a path does: work for a worker of this kind (run NULL), or an answer at once. */
static const struct route {
    const char *path, *name;
    bool post;
    enum openai_kind kind;
    route_fn *run;
} ROUTES[] = {
    {"/v1/chat/completions", "chat", true, OPENAI_CHAT, NULL},
    {"/v1/completions", "completions", true, OPENAI_COMPLETION, NULL},
    {"/tokenize", "tokenize", true, OPENAI_TOKENIZE, NULL},
    {"/detokenize", "detokenize", true, OPENAI_DETOKENIZE, NULL},
    {.path = "/v1/models", .name = "models", .run = answer_models},
    {.path = "/health", .name = "health", .run = health},
    {.path = "/ready", .name = "ready", .run = ready},
    {.path = "/metrics", .name = "metrics", .run = server_metrics_page},
};

static bool method_fits(const struct route *route, const char *method)
{
    if (route->post)
        return strcmp(method, "POST") == 0;
    return strcmp(method, "GET") == 0 || strcmp(method, "HEAD") == 0;
}

static void wrong_method(struct http_exchange *x, bool post)
{
    (void)http_add_header(x, "Allow", post ? "POST" : "GET, HEAD");
    http_error(x, 405, "method_not_allowed", NULL,
               post ? "this path takes POST" : "this path takes GET");
}

void server_route(void *arg, struct http_exchange *x)
{
    struct server *s = arg;
    const char *path = http_path(x);
    static const struct route MODEL = {.path = "/v1/models/", .name = "models"};

    for (size_t i = 0; i < sizeof ROUTES / sizeof ROUTES[0]; i++) {
        const struct route *route = &ROUTES[i];
        if (strcmp(path, route->path) != 0)
            continue;
        http_set_route(x, route->name);
        if (!method_fits(route, http_method(x)))
            wrong_method(x, route->post);
        else if (route->run != NULL)
            route->run(s, x);
        else
            work(s, x, route->kind);
        return;
    }
    if (strncmp(path, MODEL.path, strlen(MODEL.path)) == 0) { /* names may hold slashes */
        http_set_route(x, MODEL.name);
        if (method_fits(&MODEL, http_method(x)))
            answer_model(s, x, path + strlen(MODEL.path));
        else
            wrong_method(x, MODEL.post);
        return;
    }
    http_error(
        x, 404, "not_found", NULL,
        "there is no such path; /v1/chat/completions, /v1/completions, /v1/models, /tokenize, "
        "/detokenize, /health, /ready and /metrics are there");
}
