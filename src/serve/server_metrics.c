/* Counters of the server and the metrics page. See server_metrics.h; docs/metrics.md has the names.
 */
#include "serve/server_metrics.h"

#include "base/alloc.h"
#include "base/clock.h"
#include "base/error.h"
#include "observe/exposition.h"
#include "serve/server_impl.h"

#include <stdio.h>
#include <string.h>

static const char *const ROUTES[] = {"chat",       "completions", "tokenize",
                                     "detokenize", "models",      "other"};
enum { N_ROUTES = sizeof ROUTES / sizeof ROUTES[0], N_CLASSES = 6 };
static const char *const CLASSES[N_CLASSES] = {"none", "1xx", "2xx", "3xx", "4xx", "5xx"};
static const char *const REJECTIONS[REJECTED_COUNT] = {"invalid", "queue_full", "draining"};

struct server_metrics {
    struct metric *requests[N_ROUTES][N_CLASSES];
    struct metric *rejected[REJECTED_COUNT];
    struct metric *client_left, *paused;
    uint64_t start_ns;
};

static enum ferry_status add(struct metric_registry *registry, struct metric_spec spec,
                             struct metric **ret, struct ferry_error *err)
{
    return metric_register(registry, &spec, ret, err);
}

static enum ferry_status add_all(struct server_metrics *m, struct metric_registry *registry,
                                 struct ferry_error *err)
{
    enum ferry_status st = FERRY_OK;

    for (size_t r = 0; r < N_ROUTES; r++) {
        for (size_t c = 0; c < N_CLASSES && st == FERRY_OK; c++) {
            struct metric_label labels[] = {{"route", ROUTES[r]}, {"code", CLASSES[c]}};
            if (c == 1 || c == 3) /* never sent */
                continue;
            st = add(registry,
                     (struct metric_spec){.name = "ferry_http_requests_total",
                                          .help = "HTTP requests that are over, without probes.",
                                          .labels = labels,
                                          .n_labels = 2},
                     &m->requests[r][c], err);
        }
    }
    for (size_t i = 0; i < REJECTED_COUNT && st == FERRY_OK; i++) {
        struct metric_label label = {"reason", REJECTIONS[i]};
        st = add(registry,
                 (struct metric_spec){.name = "ferry_requests_rejected_total",
                                      .help = "Completions that were refused, by reason.",
                                      .labels = &label,
                                      .n_labels = 1},
                 &m->rejected[i], err);
    }
    if (st == FERRY_OK)
        st = add(registry,
                 (struct metric_spec){.name = "ferry_clients_left_total",
                                      .help = "Answers whose client left or did not read."},
                 &m->client_left, err);
    if (st == FERRY_OK)
        st = add(registry,
                 (struct metric_spec){.name = "ferry_client_backpressure_seconds_total",
                                      .help = "Time that answers stood still for slow readers.",
                                      .unit = 1e-9},
                 &m->paused, err);
    return st;
}

enum ferry_status server_metrics_create(struct server_metrics **ret_metrics, struct server *server,
                                        struct ferry_error *err)
{
    struct server_metrics *m = mem_zero(sizeof *m);

    if (m == NULL)
        return FERRY_FAIL(err, FERRY_ERR_NOMEM, "metrics: no memory");
    m->start_ns = clock_now_ns();
    enum ferry_status st = add_all(m, server->registry, err);
    if (st != FERRY_OK) {
        mem_free(m);
        return st;
    }
    *ret_metrics = m;
    return FERRY_OK;
}

void server_metrics_destroy(struct server_metrics *metrics)
{
    mem_free(metrics);
}

void server_metrics_count(void *arg, const char *route, int status, double seconds)
{
    const struct server *s = arg;
    size_t r = N_ROUTES - 1, c = status >= 100 && status < 600 ? (size_t)status / 100 : 0;

    (void)seconds;
    if (strcmp(route, "health") == 0 || strcmp(route, "ready") == 0 ||
        strcmp(route, "metrics") == 0)
        return;
    for (size_t i = 0; i < N_ROUTES; i++) {
        if (strcmp(route, ROUTES[i]) == 0)
            r = i;
    }
    metric_add(s->http_metrics->requests[r][c], 1);
}

void server_metrics_rejected(struct server_metrics *metrics, enum rejection why)
{
    metric_add(metrics->rejected[why], 1);
}

void server_metrics_client_left(struct server_metrics *metrics)
{
    metric_add(metrics->client_left, 1);
}

void server_metrics_paused(struct server_metrics *metrics, uint64_t ns)
{
    metric_add(metrics->paused, ns);
}

static void show_model(struct exposition *e, struct server *s)
{
    const struct model *model = engine_model(s->engine);
    const struct model_config *c = model_config(model);
    char labels[1200], name[512];

    exposition_escape(name, sizeof name, s->options.model_name);
    (void)snprintf(labels, sizeof labels,
                   "model_name=\"%s\",arch=\"%s\",layers=\"%zu\",experts=\"%zu\",top_k=\"%zu\"",
                   name, c->arch->name, c->n_layers, c->router.n_experts, c->router.top_k);
    exposition_value(e, "ferry_model_info", "gauge", "The model that is served.", labels, 1);
    (void)snprintf(labels, sizeof labels, "version=\"%s\"", FERRY_VERSION);
    exposition_value(e, "ferry_build_info", "gauge", "The program.", labels, 1);
    exposition_value(e, "ferry_kv_pages", "gauge", "KV pages, of 128 tokens each.", NULL,
                     (double)engine_n_pages(s->engine));
    exposition_value(e, "ferry_uptime_seconds", "gauge", "Since the server was started.", NULL,
                     (double)(clock_now_ns() - s->http_metrics->start_ns) * 1e-9);
}

void server_metrics_page(struct server *server, struct http_exchange *x)
{
    struct exposition e = {0};

    exposition_registry(&e, server->registry);
    show_model(&e, server);
    exposition_process(&e);
    if (!server->options.no_vllm_metrics)
        exposition_vllm(&e, server->registry, server->options.model_name);
    if (e.failed)
        http_error(x, 503, "overloaded", NULL, "no memory for the metrics page");
    else
        http_reply(x, 200, EXPOSITION_CONTENT_TYPE, e.text, e.size);
    exposition_fini(&e);
}
