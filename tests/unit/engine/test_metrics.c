/* What the engine registers, and that the numbers are those of what was served. The names are also
 * held against docs/metrics.md, by tests/integration/test_metrics.py. */
#include "served.h"

#include "base/alloc.h"
#include "engine/metrics.h"
#include "observe/exposition.h"
#include "observe/vllm.h"
#include "tests/support/tiny.h"

#include <stdlib.h>
#include <string.h>

enum { N_FIELDS = sizeof(struct engine_metrics) / sizeof(struct metric *) };

#define AT(m) offsetof(struct engine_metrics, m)

/* Which field stands for which series; an order of its own. */
static const struct {
    size_t field;
    const char *name, *label, *value;
    enum metric_type type;
} SERIES[] = {
    {AT(requests_running), "ferry_requests_running", NULL, NULL, METRIC_TYPE_GAUGE},
    {AT(requests_waiting), "ferry_requests_waiting", NULL, NULL, METRIC_TYPE_GAUGE},
    {AT(requests_held), "ferry_requests_held", NULL, NULL, METRIC_TYPE_GAUGE},
    {AT(requests_away), "ferry_requests_away", NULL, NULL, METRIC_TYPE_GAUGE},
    {AT(kv_cache_usage), "ferry_kv_cache_usage_ratio", NULL, NULL, METRIC_TYPE_GAUGE},
    {AT(prompt_tokens_computed), "ferry_prompt_tokens_total", "source", "computed", 0},
    {AT(prompt_tokens_cached), "ferry_prompt_tokens_total", "source", "cached", 0},
    {AT(generation_tokens), "ferry_generation_tokens_total", NULL, NULL, 0},
    {AT(finished_stop), "ferry_answers_finished_total", "reason", "stop", 0},
    {AT(finished_length), "ferry_answers_finished_total", "reason", "length", 0},
    {AT(finished_cancelled), "ferry_answers_finished_total", "reason", "cancelled", 0},
    {AT(finished_error), "ferry_answers_finished_total", "reason", "error", 0},
    {AT(sent_away), "ferry_answers_sent_away_total", NULL, NULL, 0},
    {AT(preemptions), "ferry_preemptions_total", NULL, NULL, 0},
    {AT(prefix_queried_tokens), "ferry_prefix_cache_queried_tokens_total", NULL, NULL, 0},
    {AT(prefix_hit_tokens), "ferry_prefix_cache_hit_tokens_total", NULL, NULL, 0},
    {AT(nonfinite), "ferry_nonfinite_total", NULL, NULL, 0},
    {AT(kv_overflows), "ferry_kv_overflows_total", NULL, NULL, 0},
    {AT(steps_retried), "ferry_steps_retried_total", NULL, NULL, 0},
    {AT(steps), "ferry_steps_total", NULL, NULL, 0},
    {AT(step_tokens), "ferry_step_tokens", NULL, NULL, METRIC_TYPE_HISTOGRAM},
    {AT(queue_seconds), "ferry_request_queue_seconds", NULL, NULL, METRIC_TYPE_HISTOGRAM},
    {AT(prefill_seconds), "ferry_request_prefill_seconds", NULL, NULL, METRIC_TYPE_HISTOGRAM},
    {AT(decode_seconds), "ferry_request_decode_seconds", NULL, NULL, METRIC_TYPE_HISTOGRAM},
    {AT(inference_seconds), "ferry_request_inference_seconds", NULL, NULL, METRIC_TYPE_HISTOGRAM},
    {AT(ttft_seconds), "ferry_time_to_first_token_seconds", NULL, NULL, METRIC_TYPE_HISTOGRAM},
    {AT(inter_token_seconds), "ferry_inter_token_seconds", NULL, NULL, METRIC_TYPE_HISTOGRAM},
    {AT(e2e_seconds), "ferry_request_seconds", NULL, NULL, METRIC_TYPE_HISTOGRAM},
    {AT(request_prompt_tokens), "ferry_request_prompt_tokens", NULL, NULL, METRIC_TYPE_HISTOGRAM},
    {AT(request_generation_tokens), "ferry_request_generation_tokens", NULL, NULL,
     METRIC_TYPE_HISTOGRAM},
    {AT(step_distinct_experts), "ferry_step_distinct_experts", NULL, NULL, METRIC_TYPE_HISTOGRAM},
};

static struct metric *field_of(const struct engine_metrics *metrics, size_t field)
{
    struct metric *m = NULL;

    memcpy(&m, (const char *)metrics + field, sizeof m);
    return m;
}

static struct metric_registry *registered(struct engine_metrics *metrics, size_t context)
{
    struct metric_registry *registry = NULL;
    struct ferry_error err = {0};

    assert_int_equal(metric_registry_create(&registry, &err), FERRY_OK);
    if (engine_metrics_register(metrics, registry, context, &err) != FERRY_OK)
        fail_msg("%s", err.msg);
    metric_registry_seal(registry);
    return registry;
}

static void every_field_is_its_series(void **state)
{
    struct engine_metrics metrics;
    struct metric_registry *registry = registered(&metrics, 4096);
    bool seen[N_FIELDS] = {false};

    (void)state;
    assert_int_equal(COUNT_OF(SERIES), N_FIELDS);
    assert_int_equal(metric_registry_count(registry), N_FIELDS);
    for (size_t i = 0; i < N_FIELDS; i++) {
        const struct metric *m = field_of(&metrics, SERIES[i].field);
        assert_non_null(m);
        const struct metric_spec *spec = metric_info(m);
        assert_string_equal(spec->name, SERIES[i].name);
        assert_int_equal(spec->type, SERIES[i].type);
        assert_int_equal(spec->n_labels, SERIES[i].label != NULL);
        if (SERIES[i].label != NULL) {
            assert_string_equal(spec->labels[0].name, SERIES[i].label);
            assert_string_equal(spec->labels[0].value, SERIES[i].value);
        }
        seen[SERIES[i].field / sizeof m] = true;
    }
    for (size_t i = 0; i < N_FIELDS; i++)
        assert_true(seen[i]);
    metric_registry_destroy(registry);
}

static void assert_bounds(const struct metric *m, const double *bounds, size_t n)
{
    const struct metric_spec *spec = metric_info(m);

    assert_int_equal(spec->n_bounds, n);
    for (size_t i = 0; i < n; i++)
        if (spec->bounds[i] != bounds[i])
            fail_msg("%s: bound %zu is %g, want %g", spec->name, i, spec->bounds[i], bounds[i]);
}

/* Source: vLLM's documentation, as its dashboards expect them. */
static void bounds_are_the_field_s(void **state)
{
    static const double TTFT[] = {0.001, 0.005, 0.01, 0.02,  0.04,  0.06,  0.08, 0.1,
                                  0.25,  0.5,   0.75, 1.0,   2.5,   5.0,   7.5,  10.0,
                                  20.0,  40.0,  80.0, 160.0, 640.0, 2560.0};
    static const double ITL[] = {0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2,  0.3,  0.4, 0.5,
                                 0.75, 1.0,   2.5,  5.0,   7.5, 10.0, 20.0, 40.0, 80.0};
    static const double E2E[] = {0.3,  0.5,   0.8,   1.0,   1.5,   2.0,    2.5,
                                 5.0,  10.0,  15.0,  20.0,  30.0,  40.0,   50.0,
                                 60.0, 120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0};
    struct engine_metrics metrics;
    struct metric_registry *registry = registered(&metrics, 4096);

    (void)state;
    assert_bounds(metrics.ttft_seconds, TTFT, COUNT_OF(TTFT));
    assert_bounds(metrics.inter_token_seconds, ITL, COUNT_OF(ITL));
    assert_bounds(metrics.e2e_seconds, E2E, COUNT_OF(E2E));
    assert_bounds(metrics.queue_seconds, E2E, COUNT_OF(E2E));
    assert_bounds(metrics.prefill_seconds, E2E, COUNT_OF(E2E));
    assert_bounds(metrics.decode_seconds, E2E, COUNT_OF(E2E));
    assert_bounds(metrics.inference_seconds, E2E, COUNT_OF(E2E));
    metric_registry_destroy(registry);
}

/* 1, 2, 5, 10, ... up to one that holds the whole context, so that no request is beyond all. */
static void token_bounds_hold_the_context(void **state)
{
    static const double SMALL[] = {1, 2, 5, 10, 20, 50, 100, 200};
    static const size_t CONTEXTS[] = {0, 1, 2, 3, 128, 4096, 131072, 1u << 20, SIZE_MAX};

    (void)state;
    for (size_t i = 0; i < COUNT_OF(CONTEXTS); i++) {
        struct engine_metrics metrics;
        struct metric_registry *registry = registered(&metrics, CONTEXTS[i]);
        const struct metric_spec *spec = metric_info(metrics.request_prompt_tokens);
        assert_true(spec->bounds[spec->n_bounds - 1] >= (double)CONTEXTS[i]);
        assert_true(spec->n_bounds == 1 || spec->bounds[spec->n_bounds - 2] < (double)CONTEXTS[i]);
        assert_bounds(metrics.request_generation_tokens, spec->bounds, spec->n_bounds);
        if (CONTEXTS[i] == 128)
            assert_bounds(metrics.request_prompt_tokens, SMALL, COUNT_OF(SMALL));
        metric_registry_destroy(registry);
    }
}

static void failures_leave_the_caller_s_struct(void **state)
{
    struct engine_metrics metrics, untouched;
    struct metric_registry *registry = NULL;
    struct ferry_error err = {0};

    (void)state;
    memset(&metrics, 0x5A, sizeof metrics);
    untouched = metrics;
    assert_int_equal(metric_registry_create(&registry, &err), FERRY_OK);
    metric_registry_seal(registry);
    assert_int_equal(engine_metrics_register(&metrics, registry, 1, &err), FERRY_ERR_ARG);
    assert_memory_equal(&metrics, &untouched, sizeof metrics);
    metric_registry_destroy(registry);
    /* Registered twice. */
    struct engine_metrics first;
    assert_int_equal(metric_registry_create(&registry, &err), FERRY_OK);
    assert_int_equal(engine_metrics_register(&first, registry, 1, &err), FERRY_OK);
    assert_int_equal(engine_metrics_register(&metrics, registry, 1, &err), FERRY_ERR_ARG);
    assert_memory_equal(&metrics, &untouched, sizeof metrics);
    metric_registry_destroy(registry);
    for (uint64_t n = 1;; n++) {
        assert_true(n < 50);
        registry = NULL;
        mem_fail_after(n);
        enum ferry_status st = metric_registry_create(&registry, &err);
        if (st == FERRY_OK)
            st = engine_metrics_register(&metrics, registry, 1, &err);
        mem_fail_after(0);
        metric_registry_destroy(registry);
        if (st == FERRY_OK)
            break;
        assert_int_equal(st, FERRY_ERR_NOMEM);
        assert_memory_equal(&metrics, &untouched, sizeof metrics);
    }
}

static void the_aliases_are_complete(void **state)
{
    static const char *const NAMES[] = {"num_requests_running gauge",
                                        "num_requests_waiting gauge",
                                        "kv_cache_usage_perc gauge",
                                        "prompt_tokens_total counter",
                                        "generation_tokens_total counter",
                                        "request_success_total counter",
                                        "prefix_cache_queries_total counter",
                                        "prefix_cache_hits_total counter",
                                        "num_preemptions_total counter",
                                        "corrupted_requests_total counter",
                                        "cache_config_info gauge",
                                        "time_to_first_token_seconds histogram",
                                        "inter_token_latency_seconds histogram",
                                        "e2e_request_latency_seconds histogram",
                                        "request_queue_time_seconds histogram",
                                        "request_prefill_time_seconds histogram",
                                        "request_decode_time_seconds histogram",
                                        "request_inference_time_seconds histogram",
                                        "request_prompt_tokens histogram",
                                        "request_generation_tokens histogram"};
    const struct vllm_options options = {"m", 128, 9, "F16"};
    struct engine_metrics metrics;
    struct metric_registry *registry = registered(&metrics, 4096);
    struct exposition e = {0};
    size_t n_types = 0;

    (void)state;
    vllm_expose(&e, registry, &options);
    char *page = calloc(1, e.size + 1);
    memcpy(page, e.text, e.size);
    for (size_t i = 0; i < COUNT_OF(NAMES); i++) {
        char line[200];
        (void)snprintf(line, sizeof line, "# TYPE vllm:%s\n", NAMES[i]);
        if (strstr(page, line) == NULL)
            fail_msg("no '%s'", line);
    }
    for (const char *at = page; (at = strstr(at, "# TYPE ")) != NULL; at++)
        n_types++;
    assert_int_equal(n_types, COUNT_OF(NAMES));
    free(page);
    exposition_fini(&e);
    metric_registry_destroy(registry);
}

static uint64_t n_of(const struct metric *histogram, double *ret_sum)
{
    uint64_t buckets[METRIC_BOUNDS_MAX + 1];

    return metric_buckets(histogram, buckets, ret_sum);
}

/* What waits, runs and stands still is always one of the three, also after it lost its pages. */
static void gauges_count_everybody_once(void **state)
{
    enum { N = 4 };
    struct engine_metrics m;
    struct metric_registry *registry = registered(&m, SERVED_CONTEXT);
    struct served served;
    static struct asked all[N];
    size_t n_again = 0;

    (void)state;
    served_open(&served,
                &(struct served_options){
                    .n_sequences = 3, .n_pages = 5, .context = 640, .scheduler.metrics = &m});
    for (size_t i = 0; i < N; i++) { /* two pages each, then three: too many */
        asked_init(&all[i], 200, 20 + i, 90);
        asked_submit(&all[i], &served);
    }
    for (size_t n_done = 0, steps = 0; n_done < N; steps++) {
        assert_true(steps < 2000);
        if (steps == 20)
            request_hold(all[0].request, true);
        if (steps == 60)
            request_hold(all[0].request, false);
        if (!served_step(&served))
            continue;
        n_done = 0;
        for (size_t i = 0; i < N; i++)
            n_done += atomic_load(&all[i].done);
        double running = metric_value(m.requests_running),
               waiting = metric_value(m.requests_waiting), held = metric_value(m.requests_held);
        assert_true(running + waiting + held == (double)(N - n_done));
        assert_true(held == (steps >= 20 && steps < 60 ? 1 : 0));
        for (size_t i = 0; i < N; i++)
            n_again += !atomic_load(&all[i].done) &&
                       request_usage(all[i].request)->n_preempted > 0 && waiting > 0;
    }
    assert_true(n_again > 0);
    for (size_t i = 0; i < N; i++)
        asked_end(&all[i]);
    served_close(&served);
    metric_registry_destroy(registry);
}

/* Tokens that are computed twice, since their pages were taken away, were sent once. */
static void preempted_prompts_count_once(void **state)
{
    enum { N = 3, PROMPT = 200 };
    struct engine_metrics m;
    struct metric_registry *registry = registered(&m, SERVED_CONTEXT);
    struct served served;
    static struct asked all[N];
    struct asked *list[N];

    (void)state;
    for (int no_cache = 0; no_cache < 2; no_cache++) {
        uint64_t before = metric_counts(m.prompt_tokens_computed),
                 preempted = metric_counts(m.preemptions);
        served_open(&served, &(struct served_options){
                                 .n_sequences = N,
                                 .n_pages = 5,
                                 .context = 640,
                                 .scheduler = {.metrics = &m, .no_prefix_cache = no_cache}});
        for (size_t i = 0; i < N; i++) {
            asked_init(&all[i], PROMPT, 20 + i, 90);
            list[i] = &all[i];
            asked_submit(&all[i], &served);
        }
        served_finish(&served, list, N, 2000);
        assert_true(metric_counts(m.preemptions) > preempted);
        assert_int_equal(metric_counts(m.prompt_tokens_computed) - before, N * PROMPT);
        assert_int_equal(metric_counts(m.prompt_tokens_cached), 0);
        for (size_t i = 0; i < N; i++)
            asked_end(&all[i]);
        served_close(&served);
    }
    metric_registry_destroy(registry);
}

/* A step that one request spoils is done again for each alone, and these steps count like others.
 */
static void repeated_steps_are_observed(void **state)
{
    enum { POISONED = 150 };
    struct tiny_options tiny = tiny_defaults("qwen3_moe");
    struct engine_metrics m;
    struct metric_registry *registry = registered(&m, SERVED_CONTEXT);
    struct served served;
    static struct asked good, bad;
    struct asked *list[] = {&good, &bad};
    double sum;

    (void)state;
    tiny.n_vocab = SERVED_VOCAB;
    tiny.poison = "model.embed_tokens.weight";
    tiny.poisoned_item = (size_t)POISONED * tiny.hidden + 3;
    const char *folder = tiny_write(&tiny);
    served_open(&served, &(struct served_options){.folder = folder, .scheduler.metrics = &m});
    asked_init(&good, 40, 1, 1); /* one token: it is in the spoilt step only */
    asked_init(&bad, 20, 2, 1);
    for (size_t i = 0; i < 40; i++)
        good.ids[i] %= POISONED;
    bad.ids[19] = POISONED;
    asked_submit(&good, &served);
    asked_submit(&bad, &served);
    served_finish(&served, list, 2, 10);
    assert_int_equal(good.answers[0].finish, REQUEST_FINISH_LENGTH);
    assert_int_equal(bad.answers[0].finish, REQUEST_FINISH_ERROR);
    assert_int_equal(metric_counts(m.nonfinite), 1);
    assert_int_equal(model_counters(served.model)->steps, 1);
    assert_int_equal(n_of(m.step_distinct_experts, &sum), 1);
    asked_end(&good);
    asked_end(&bad);
    served_close(&served);
    tiny_remove(folder);
    metric_registry_destroy(registry);
}

/* The counters after three requests: one with two answers, one that repeats its prompt, one that is
 * cancelled. */
static void the_numbers_are_what_was_served(void **state)
{
    enum { PROMPT = 300, ANSWER = 10 };
    struct engine_metrics m;
    struct metric_registry *registry = registered(&m, SERVED_CONTEXT);
    struct served served;
    static struct asked two, again, cancelled;
    double sum = 0;

    (void)state;
    served_open(&served, &(struct served_options){.step_tokens = 200, .scheduler.metrics = &m});
    asked_init(&two, PROMPT, 1, ANSWER);
    two.options.n_choices = 2;
    asked_submit(&two, &served);
    served_finish(&served, (struct asked *const[]){&two}, 1, 1000);
    assert_int_equal(metric_counts(m.finished_length), 2);
    assert_int_equal(metric_counts(m.generation_tokens), 2 * ANSWER);
    /* Both answers' prompts count; the second found the first's full pages. */
    assert_int_equal(metric_counts(m.prompt_tokens_computed) +
                         metric_counts(m.prompt_tokens_cached),
                     2 * PROMPT);
    assert_int_equal(metric_counts(m.prefix_queried_tokens), 2 * PROMPT);
    asked_init(&again, PROMPT, 1, ANSWER);
    asked_submit(&again, &served);
    uint64_t hits = metric_counts(m.prefix_hit_tokens);
    served_finish(&served, (struct asked *const[]){&again}, 1, 1000);
    assert_int_equal(metric_counts(m.prefix_hit_tokens) - hits, again.usage.cached_tokens);
    assert_true(again.usage.cached_tokens >= 256);
    assert_int_equal(metric_counts(m.prompt_tokens_cached), metric_counts(m.prefix_hit_tokens));
    asked_init(&cancelled, PROMPT, 2, ANSWER);
    asked_submit(&cancelled, &served);
    uint64_t computed = metric_counts(m.prompt_tokens_computed);
    double before = 0;
    (void)n_of(m.step_tokens, &before);
    (void)served_step(&served);
    (void)n_of(m.step_tokens, &sum); /* its client did not wait for the rest of its prompt */
    computed = metric_counts(m.prompt_tokens_computed) - computed;
    assert_true(computed > 0 && computed < PROMPT);
    assert_true(sum - before == (double)computed);
    assert_true(metric_value(m.requests_running) == 1);
    assert_true(metric_value(m.kv_cache_usage) > 0 && metric_value(m.kv_cache_usage) < 1);
    request_cancel(cancelled.request);
    served_finish(&served, (struct asked *const[]){&cancelled}, 1, 1000);
    assert_int_equal(metric_counts(m.finished_cancelled), 1);
    assert_int_equal(metric_counts(m.finished_error), 0);
    assert_true(metric_value(m.requests_running) == 0);
    assert_true(metric_value(m.requests_waiting) == 0);
    /* Of requests: three ended, two of them with all their tokens. */
    assert_int_equal(n_of(m.e2e_seconds, &sum), 3);
    assert_int_equal(n_of(m.queue_seconds, &sum), 3);
    assert_int_equal(n_of(m.request_generation_tokens, &sum), 3);
    assert_true(sum == (double)metric_counts(m.generation_tokens));
    assert_int_equal(n_of(m.request_prompt_tokens, &sum), 3);
    assert_true(sum == 3 * PROMPT);
    /* Of steps: their tokens are those that experts saw, top_k experts each in every layer. */
    uint64_t n_steps = n_of(m.step_tokens, &sum);
    assert_int_equal(n_steps, metric_counts(m.steps));
    const struct model_config *c = model_config(served.model);
    for (size_t layer = 0; layer < c->n_layers; layer++) {
        uint64_t counts[64] = {0}, rows = 0;
        assert_true(c->router.n_experts <= COUNT_OF(counts));
        assert_true(model_expert_counts(served.model, layer, counts));
        for (size_t e = 0; e < c->router.n_experts; e++)
            rows += counts[e];
        assert_true((double)rows == sum * (double)c->router.top_k);
    }
    assert_int_equal(n_of(m.step_distinct_experts, &sum), n_steps);
    assert_true(sum >= (double)(n_steps * c->router.top_k));
    assert_int_equal(metric_registry_invalid(registry), 0);
    asked_end(&two);
    asked_end(&again);
    asked_end(&cancelled);
    served_close(&served);
    metric_registry_destroy(registry);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_field_is_its_series),
        cmocka_unit_test(bounds_are_the_field_s),
        cmocka_unit_test(token_bounds_hold_the_context),
        cmocka_unit_test(failures_leave_the_caller_s_struct),
        cmocka_unit_test(the_aliases_are_complete),
        cmocka_unit_test(gauges_count_everybody_once),
        cmocka_unit_test(preempted_prompts_count_once),
        cmocka_unit_test(repeated_steps_are_observed),
        cmocka_unit_test(the_numbers_are_what_was_served),
    };
    return cmocka_run_group_tests(tests, served_setup, served_teardown);
}
