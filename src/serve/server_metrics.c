/* Counters of the server and the metrics page. See server_metrics.h; docs/metrics.md has the names.
 */
#include "serve/server_metrics.h"

#include "base/alloc.h"
#include "base/error.h"
#include "observe/experts.h"
#include "observe/exposition.h"
#include "observe/process.h"
#include "observe/vllm.h"
#include "serve/server_impl.h"

#include <stdio.h>
#include <string.h>

static const char *const ROUTES[] = {"chat",       "completions", "tokenize",
                                     "detokenize", "models",      "other"};
enum { N_ROUTES = sizeof ROUTES / sizeof ROUTES[0], N_CLASSES = 6 };
static const char *const CLASSES[N_CLASSES] = {"none", "1xx", "2xx", "3xx", "4xx", "5xx"};
static const char *const REJECTIONS[REJECTED_COUNT] = {"invalid", "queue_full", "queue_timeout",
                                                       "out_of_memory", "draining"};
/* From a refusal at once to an answer of half an hour. */
static const double SECONDS[] = {.005, .01, .025, .05, .1,  .25, .5,  1,   2.5,
                                 5,    10,  30,   60,  120, 300, 600, 1800};

struct server_metrics {
    struct metric *requests[N_ROUTES][N_CLASSES], *seconds[N_ROUTES];
    struct metric *rejected[REJECTED_COUNT];
    struct metric *client_left, *paused;
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
    for (size_t r = 0; r < N_ROUTES && st == FERRY_OK; r++) {
        struct metric_label label = {"route", ROUTES[r]};
        st = add(registry,
                 (struct metric_spec){.type = METRIC_TYPE_HISTOGRAM,
                                      .name = "ferry_http_request_seconds",
                                      .help = "From the headers of an HTTP request to the last "
                                              "byte of its answer.",
                                      .labels = &label,
                                      .n_labels = 1,
                                      .bounds = SECONDS,
                                      .n_bounds = sizeof SECONDS / sizeof SECONDS[0]},
                 &m->seconds[r], err);
    }
    for (size_t i = 0; i < REJECTED_COUNT && st == FERRY_OK; i++) {
        struct metric_label label = {"reason", REJECTIONS[i]};
        st = add(registry,
                 (struct metric_spec){.name = "ferry_requests_rejected_total",
                                      .help = "Requests that were refused, by reason.",
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

    if (strcmp(route, "health") == 0 || strcmp(route, "ready") == 0 ||
        strcmp(route, "metrics") == 0)
        return;
    for (size_t i = 0; i < N_ROUTES; i++) {
        if (strcmp(route, ROUTES[i]) == 0)
            r = i;
    }
    metric_add(s->http_metrics->requests[r][c], 1);
    metric_observe(s->http_metrics->seconds[r], seconds);
}

void server_metrics_rejected(struct server_metrics *metrics, enum rejection why)
{
    metric_add(metrics->rejected[why], 1);
}

void server_metrics_refused(struct server_metrics *metrics, const struct openai_error *error)
{
    const char *code = error->code != NULL ? error->code : "";

    if (error->http == 429)
        metric_add(metrics->rejected[REJECTED_QUEUE], 1);
    else if (error->http < 500)
        metric_add(metrics->rejected[REJECTED_INVALID], 1);
    else if (strcmp(code, REJECTIONS[REJECTED_TIMEOUT]) == 0)
        metric_add(metrics->rejected[REJECTED_TIMEOUT], 1);
    else if (strcmp(code, REJECTIONS[REJECTED_MEMORY]) == 0)
        metric_add(metrics->rejected[REJECTED_MEMORY], 1);
}

void server_metrics_client_left(struct server_metrics *metrics)
{
    metric_add(metrics->client_left, 1);
}

void server_metrics_paused(struct server_metrics *metrics, uint64_t ns)
{
    metric_add(metrics->paused, ns);
}

static bool read_counts(const void *model, size_t layer, uint64_t *ret_counts)
{
    return model_expert_counts(model, layer, ret_counts);
}

static void show_model(struct exposition *e, const struct server *s)
{
    const struct model *model = engine_model(s->engine);
    const struct model_config *c = model_config(model);
    char n_layers[24], n_experts[24], top_k[24];
    const struct metric_label info[] = {{"model_name", s->options.model_name},
                                        {"arch", c->arch->name},
                                        {"layers", n_layers},
                                        {"experts", n_experts},
                                        {"top_k", top_k}};
    const struct metric_label version = {"version", FERRY_VERSION};

    (void)snprintf(n_layers, sizeof n_layers, "%zu", c->n_layers);
    (void)snprintf(n_experts, sizeof n_experts, "%zu", c->router.n_experts);
    (void)snprintf(top_k, sizeof top_k, "%zu", c->router.top_k);
    exposition_family(e, "ferry_model_info", METRIC_TYPE_GAUGE, "The model that is served.");
    exposition_count(e, "ferry_model_info", info, sizeof info / sizeof info[0], 1);
    exposition_family(e, "ferry_build_info", METRIC_TYPE_GAUGE, "The program.");
    exposition_count(e, "ferry_build_info", &version, 1, 1);
    exposition_family(e, "ferry_http_requests_open", METRIC_TYPE_GAUGE,
                      "HTTP requests that have begun and are not over.");
    exposition_count(e, "ferry_http_requests_open", NULL, 0, http_server_n_open(s->http));
    exposition_family(e, "ferry_kv_pages", METRIC_TYPE_GAUGE, "KV pages, of 128 tokens each.");
    exposition_count(e, "ferry_kv_pages", NULL, 0, engine_n_pages(s->engine));
    experts_expose(e, c->n_layers, c->router.n_experts, read_counts, model);
    if (s->options.expert_metrics)
        experts_expose_all(e, c->n_layers, c->router.n_experts, read_counts, model);
}

void server_metrics_page(struct server *server, struct http_exchange *x)
{
    const struct model *model = engine_model(server->engine);
    const struct vllm_options vllm = {.model_name = server->options.model_name,
                                      .page_tokens = KERNEL_KV_CHUNK,
                                      .n_pages = engine_n_pages(server->engine),
                                      .kv_dtype = dtype_name(model_options(model)->kv_dtype)};
    struct exposition e = {0};

    exposition_registry(&e, server->registry);
    show_model(&e, server);
    process_expose(&e);
    if (!server->options.no_vllm_metrics)
        vllm_expose(&e, server->registry, &vllm);
    if (e.failed)
        http_error(x, 503, "overloaded", NULL, "no memory for the metrics page");
    else
        http_reply(x, 200, EXPOSITION_CONTENT_TYPE, e.text, e.size);
    exposition_fini(&e);
}
