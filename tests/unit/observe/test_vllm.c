/* Aliases: the same numbers under the other names, sums where theirs is one number, nothing that we
 * do not have. The whole set with the engine's metrics: tests/unit/engine/test_metrics.c. */
#include "page.h"

#include "observe/vllm.h"

static const struct vllm_options OPTIONS = {"org/Model \"8x7B\"", 128, 42, "F16"};
#define LABELS "model_name=\"org/Model \\\"8x7B\\\"\",engine=\"0\""

static struct metric *add_counter(struct metric_registry *registry, const char *name,
                                  const char *label, const char *value)
{
    const struct metric_label l = {label, value};

    return add_metric(registry, (struct metric_spec){.name = name,
                                                     .help = "H.",
                                                     .labels = label != NULL ? &l : NULL,
                                                     .n_labels = label != NULL});
}

static void values_under_the_other_names(void **state)
{
    struct metric_registry *registry = new_registry();
    struct exposition e = {0};
    const double bounds[] = {0.01, 0.5};

    (void)state;
    struct metric *running = add_metric(
        registry, (struct metric_spec){
                      .type = METRIC_TYPE_GAUGE, .name = "ferry_requests_running", .help = "H."});
    struct metric *computed =
        add_counter(registry, "ferry_prompt_tokens_total", "source", "computed");
    struct metric *cached = add_counter(registry, "ferry_prompt_tokens_total", "source", "cached");
    struct metric *stop = add_counter(registry, "ferry_answers_finished_total", "reason", "stop");
    struct metric *cancelled =
        add_counter(registry, "ferry_answers_finished_total", "reason", "cancelled");
    struct metric *itl =
        add_metric(registry, (struct metric_spec){.type = METRIC_TYPE_HISTOGRAM,
                                                  .name = "ferry_inter_token_seconds",
                                                  .help = "H.",
                                                  .bounds = bounds,
                                                  .n_bounds = 2});
    (void)add_counter(registry, "ferry_without_alias_total", NULL, NULL);
    metric_registry_seal(registry);
    metric_set(running, 3);
    metric_add(computed, 100);
    metric_add(cached, 28);
    metric_add(stop, 5);
    metric_add(cancelled, 2);
    metric_observe(itl, 0.02);
    vllm_expose(&e, registry, &OPTIONS);
    const char *page = page_text(&e);
    assert_line(page, "# TYPE vllm:num_requests_running gauge");
    assert_line(page, "vllm:num_requests_running{" LABELS "} 3");
    assert_line(page, "# TYPE vllm:prompt_tokens_total counter");
    assert_line(page, "vllm:prompt_tokens_total{" LABELS "} 128");
    assert_line(page, "vllm:request_success_total{" LABELS ",finished_reason=\"stop\"} 5");
    assert_line(page, "vllm:request_success_total{" LABELS ",finished_reason=\"abort\"} 2");
    assert_int_equal(times_in(page, "# TYPE vllm:request_success_total counter\n"), 1);
    assert_line(page, "# TYPE vllm:inter_token_latency_seconds histogram");
    assert_line(page, "vllm:inter_token_latency_seconds_bucket{" LABELS ",le=\"0.01\"} 0");
    assert_line(page, "vllm:inter_token_latency_seconds_bucket{" LABELS ",le=\"+Inf\"} 1");
    assert_line(page, "vllm:inter_token_latency_seconds_sum{" LABELS "} 0.02");
    assert_line(page, "vllm:inter_token_latency_seconds_count{" LABELS "} 1");
    assert_line(page, "vllm:cache_config_info{" LABELS
                      ",block_size=\"128\",cache_dtype=\"F16\",num_gpu_blocks=\"42\"} 1");
    /* Read at scrape time: no copy that could lag behind. */
    metric_add(cached, 1);
    struct exposition later = {0};
    vllm_expose(&later, registry, &OPTIONS);
    assert_line(page_text(&later), "vllm:prompt_tokens_total{" LABELS "} 129");
    exposition_fini(&later);
    /* What is not registered is absent, not 0. */
    assert_int_equal(times_in(page_text(&e), "# TYPE"), 5);
    assert_null(strstr(page_text(&e), "without_alias"));
    exposition_fini(&e);
    metric_registry_destroy(registry);
}

static void an_empty_registry_has_no_aliases(void **state)
{
    struct metric_registry *registry = new_registry();
    struct exposition e = {0};

    (void)state;
    metric_registry_seal(registry);
    vllm_expose(&e, registry, &OPTIONS);
    assert_int_equal(times_in(page_text(&e), "\n"), 3); /* the cache's */
    exposition_fini(&e);
    metric_registry_destroy(registry);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(values_under_the_other_names),
        cmocka_unit_test(an_empty_registry_has_no_aliases),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
