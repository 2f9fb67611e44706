/* What the engine counts about requests, tokens and steps.
 *
 * Why here: the scheduler knows when a token is generated and a prefix is found; how the numbers
 * are shown is `observe`'s business. Names and meanings: docs/metrics.md. */
#ifndef ENGINE_METRICS_H
#define ENGINE_METRICS_H

#include "ferry/status.h"
#include "metric/metric.h"

/* Borrowed from the registry; a NULL metric is ignored by metric_add and friends. */
struct engine_metrics {
    /* Gauges: choices in steps, in the queue, and left out for a reader that does not read. */
    struct metric *requests_running, *requests_waiting, *requests_held, *requests_away;
    struct metric *kv_cache_usage; /* gauge, 0..1: pages of running requests */
    struct metric *prompt_tokens_computed,
        *prompt_tokens_cached; /* ferry_prompt_tokens_total{source} */
    struct metric *generation_tokens;
    struct metric *finished_stop, *finished_length, *finished_cancelled, *finished_error;
    struct metric *preemptions, *sent_away;
    struct metric *prefix_queried_tokens, *prefix_hit_tokens;
    struct metric *nonfinite; /* steps of a request that gave a NaN or infinity */
    struct metric *kv_overflows, *steps_retried;
    struct metric *steps, *step_tokens; /* counter; histogram of tokens per step */
    struct metric *queue_seconds, *prefill_seconds, *decode_seconds,
        *inference_seconds; /* histograms */
    struct metric *ttft_seconds, *inter_token_seconds, *e2e_seconds;
    struct metric *request_prompt_tokens, *request_generation_tokens;
    struct metric *step_distinct_experts; /* histogram: experts read per layer round */
};

/* Registers all of them under ferry_*. `context` bounds the token histograms. Errors: those of
 * metric_register; metrics is untouched then. */
enum ferry_status engine_metrics_register(struct engine_metrics *metrics,
                                          struct metric_registry *registry, size_t context,
                                          struct ferry_error *err) FERRY_MUST_CHECK;

#endif
