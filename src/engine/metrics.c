/* Registering what the engine counts: one table. See metrics.h; names and meanings for operators
 * are in docs/metrics.md. */
#include "engine/metrics.h"

#include "base/error.h"
#include "base/size.h"

#include <string.h>

/* Bucket edges of the field's dashboards (vLLM), so that boards drawn for it read ours. */
static const double TTFT[] = {.001, .005, .01, .02, .04, .06, .08, .1, .25, .5,  .75,
                              1,    2.5,  5,   7.5, 10,  20,  40,  80, 160, 640, 2560};
static const double INTER_TOKEN[] = {.01, .025, .05, .075, .1,  .15, .2, .3, .4, .5,
                                     .75, 1,    2.5, 5,    7.5, 10,  20, 40, 80};
static const double REQUEST[] = {.3, .5, .8, 1,  1.5, 2,   2.5, 5,   10,   15,  20,
                                 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680};
static const double STEP_TOKENS[] = {1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096};
static const double EXPERTS[] = {1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512};

#define COUNT(a) (sizeof(a) / sizeof(a)[0])
#define FIELD(m) offsetof(struct engine_metrics, m)

struct entry {
    size_t field;
    enum metric_type type;
    const char *name, *help, *label, *value;
    const double *bounds;
    size_t n_bounds; /* 0 of a histogram: tokens up to the context */
};

#define COUNTER(m, name, help)                                         \
    {                                                                  \
        FIELD(m), METRIC_TYPE_COUNTER, name, help, NULL, NULL, NULL, 0 \
    }
#define LABELLED(m, name, help, label, value)                            \
    {                                                                    \
        FIELD(m), METRIC_TYPE_COUNTER, name, help, label, value, NULL, 0 \
    }
#define GAUGE(m, name, help)                                         \
    {                                                                \
        FIELD(m), METRIC_TYPE_GAUGE, name, help, NULL, NULL, NULL, 0 \
    }
#define HISTOGRAM(m, name, help, b)                                          \
    {                                                                        \
        FIELD(m), METRIC_TYPE_HISTOGRAM, name, help, NULL, NULL, b, COUNT(b) \
    }
#define TOKENS(m, name, help)                                            \
    {                                                                    \
        FIELD(m), METRIC_TYPE_HISTOGRAM, name, help, NULL, NULL, NULL, 0 \
    }

static const char PROMPT_HELP[] =
    "Prompt tokens whose keys and values were needed and are there, by where they came from.";
static const char FINISHED_HELP[] = "Answers that ended, by reason.";

static const struct entry ENTRIES[] = {
    GAUGE(requests_running, "ferry_requests_running", "Answers that take part in steps."),
    GAUGE(requests_waiting, "ferry_requests_waiting", "Answers that wait for a sequence."),
    GAUGE(requests_held, "ferry_requests_held",
          "Answers that stand still because their reader does not read."),
    GAUGE(requests_away, "ferry_requests_away",
          "Answers of this front door that other ranks compute (part of running)."),
    GAUGE(kv_cache_usage, "ferry_kv_cache_usage_ratio",
          "Share of the KV pages that running answers hold."),
    LABELLED(prompt_tokens_computed, "ferry_prompt_tokens_total", PROMPT_HELP, "source",
             "computed"),
    LABELLED(prompt_tokens_cached, "ferry_prompt_tokens_total", PROMPT_HELP, "source", "cached"),
    COUNTER(generation_tokens, "ferry_generation_tokens_total", "Tokens that were generated."),
    LABELLED(finished_stop, "ferry_answers_finished_total", FINISHED_HELP, "reason", "stop"),
    LABELLED(finished_length, "ferry_answers_finished_total", FINISHED_HELP, "reason", "length"),
    LABELLED(finished_cancelled, "ferry_answers_finished_total", FINISHED_HELP, "reason",
             "cancelled"),
    LABELLED(finished_error, "ferry_answers_finished_total", FINISHED_HELP, "reason", "error"),
    COUNTER(sent_away, "ferry_answers_sent_away_total",
            "Answers, or their continuations, that were sent to other ranks."),
    COUNTER(preemptions, "ferry_preemptions_total",
            "Answers that lost their KV pages to others and were computed again."),
    COUNTER(prefix_queried_tokens, "ferry_prefix_cache_queried_tokens_total",
            "Prompt tokens that were looked for in the prefix cache."),
    COUNTER(prefix_hit_tokens, "ferry_prefix_cache_hit_tokens_total",
            "Prompt tokens that the prefix cache had."),
    COUNTER(nonfinite, "ferry_nonfinite_total",
            "Answers that were broken off because a score or logit was not finite."),
    COUNTER(kv_overflows, "ferry_kv_overflows_total",
            "Keys and values that the KV cache's number format could not hold."),
    COUNTER(steps_retried, "ferry_steps_retried_total", "Steps that were void and done again."),
    COUNTER(steps, "ferry_steps_total", "Forward steps."),
    HISTOGRAM(step_tokens, "ferry_step_tokens", "Tokens of a step, prompts and answers.",
              STEP_TOKENS),
    HISTOGRAM(queue_seconds, "ferry_request_queue_seconds",
              "From the arrival of a request to its first step.", REQUEST),
    HISTOGRAM(prefill_seconds, "ferry_request_prefill_seconds",
              "From the first step of a request to its first token.", REQUEST),
    HISTOGRAM(decode_seconds, "ferry_request_decode_seconds",
              "From the first token of a request to its last.", REQUEST),
    HISTOGRAM(inference_seconds, "ferry_request_inference_seconds",
              "From the first step of a request to its last token.", REQUEST),
    HISTOGRAM(ttft_seconds, "ferry_time_to_first_token_seconds",
              "From the arrival of a request to its first token.", TTFT),
    HISTOGRAM(inter_token_seconds, "ferry_inter_token_seconds",
              "Between neighbouring tokens of an answer.", INTER_TOKEN),
    HISTOGRAM(e2e_seconds, "ferry_request_seconds", "From the arrival of a request to its end.",
              REQUEST),
    TOKENS(request_prompt_tokens, "ferry_request_prompt_tokens", "Prompt tokens of a request."),
    TOKENS(request_generation_tokens, "ferry_request_generation_tokens",
           "Tokens that were generated for a request."),
    HISTOGRAM(step_distinct_experts, "ferry_step_distinct_experts",
              "Experts whose weights a step read, averaged over its layers.", EXPERTS),
};

/* 1, 2, 5, 10, ... up to the first edge that holds a whole context. */
static size_t token_bounds(size_t context, double bounds[METRIC_BOUNDS_MAX])
{
    static const double SERIES[] = {1, 2, 5};
    double power = 1;
    size_t n = 0;

    while (n < METRIC_BOUNDS_MAX) {
        bounds[n] = SERIES[n % 3] * power;
        if (n % 3 == 2)
            power *= 10;
        if (bounds[n++] >= (double)context)
            break;
    }
    return n;
}

enum ferry_status engine_metrics_register(struct engine_metrics *metrics,
                                          struct metric_registry *registry, size_t context,
                                          struct ferry_error *err)
{
    double tokens[METRIC_BOUNDS_MAX];
    size_t n_tokens = token_bounds(max_size(context, 1), tokens);
    struct engine_metrics all = {0};

    for (size_t i = 0; i < COUNT(ENTRIES); i++) {
        const struct entry *e = &ENTRIES[i];
        struct metric_label label = {e->label, e->value};
        struct metric_spec spec = {.type = e->type,
                                   .name = e->name,
                                   .help = e->help,
                                   .labels = e->label != NULL ? &label : NULL,
                                   .n_labels = e->label != NULL};
        struct metric *metric = NULL;
        if (e->type == METRIC_TYPE_HISTOGRAM) {
            spec.bounds = e->bounds != NULL ? e->bounds : tokens;
            spec.n_bounds = e->bounds != NULL ? e->n_bounds : n_tokens;
        }
        enum ferry_status st = metric_register(registry, &spec, &metric, err);
        if (st != FERRY_OK)
            return st;
        memcpy((char *)&all + e->field, &metric, sizeof(struct metric *));
    }
    *metrics = all;
    return FERRY_OK;
}
