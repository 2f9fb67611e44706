/* Aliases in vLLM's names. See vllm.h. Source: vLLM v0.32, documentation of its metrics page:
 * names, types, labels. */
#include "observe/vllm.h"

#include "base/size.h"

#include <stdio.h>
#include <string.h>

/* A series of theirs from one of ours; where several of ours fit, they are counters and their sum
 * is meant. Rows of an alias stand together. */
static const struct alias {
    const char *name, *help;
    const char *native;
    const char *value;               /* of the native's one label; NULL: any */
    const char *extra, *extra_value; /* the alias' own label; NULL: none */
} ALIASES[] = {
    {"vllm:num_requests_running", "Answers that take part in steps.", "ferry_requests_running",
     NULL, NULL, NULL},
    {"vllm:num_requests_waiting", "Answers that wait for a sequence.", "ferry_requests_waiting",
     NULL, NULL, NULL},
    {"vllm:kv_cache_usage_perc", "Used share of the KV cache, 0 to 1.",
     "ferry_kv_cache_usage_ratio", NULL, NULL, NULL},
    {"vllm:prefix_cache_queries_total", "Prompt tokens that were looked for in the prefix cache.",
     "ferry_prefix_cache_queried_tokens_total", NULL, NULL, NULL},
    {"vllm:prefix_cache_hits_total", "Prompt tokens that the prefix cache had.",
     "ferry_prefix_cache_hit_tokens_total", NULL, NULL, NULL},
    {"vllm:num_preemptions_total", "Answers that lost their KV pages and were computed again.",
     "ferry_preemptions_total", NULL, NULL, NULL},
    {"vllm:corrupted_requests_total", "Answers broken off because a number was not finite.",
     "ferry_nonfinite_total", NULL, NULL, NULL},
    {"vllm:prompt_tokens_total", "Prompt tokens, computed or cached.", "ferry_prompt_tokens_total",
     NULL, NULL, NULL},
    {"vllm:generation_tokens_total", "Tokens that were generated.", "ferry_generation_tokens_total",
     NULL, NULL, NULL},
#define FINISHED(native_value, reason)                                              \
    {                                                                               \
        "vllm:request_success_total", "Answers that ended, by reason.",             \
            "ferry_answers_finished_total", native_value, "finished_reason", reason \
    }
    FINISHED("stop", "stop"),
    FINISHED("length", "length"),
    FINISHED("cancelled", "abort"),
    FINISHED("error", "error"),
#undef FINISHED
    {"vllm:time_to_first_token_seconds", "From arrival to the first token.",
     "ferry_time_to_first_token_seconds", NULL, NULL, NULL},
    {"vllm:inter_token_latency_seconds", "Between neighbouring tokens of an answer.",
     "ferry_inter_token_seconds", NULL, NULL, NULL},
    {"vllm:e2e_request_latency_seconds", "From arrival to the end.", "ferry_request_seconds", NULL,
     NULL, NULL},
    {"vllm:request_queue_time_seconds", "From arrival to the first step.",
     "ferry_request_queue_seconds", NULL, NULL, NULL},
    {"vllm:request_prefill_time_seconds", "From the first step to the first token.",
     "ferry_request_prefill_seconds", NULL, NULL, NULL},
    {"vllm:request_decode_time_seconds", "From the first token to the last.",
     "ferry_request_decode_seconds", NULL, NULL, NULL},
    {"vllm:request_inference_time_seconds", "From the first step to the last token.",
     "ferry_request_inference_seconds", NULL, NULL, NULL},
    {"vllm:request_prompt_tokens", "Prompt tokens of a request.", "ferry_request_prompt_tokens",
     NULL, NULL, NULL},
    {"vllm:request_generation_tokens", "Tokens generated for a request.",
     "ferry_request_generation_tokens", NULL, NULL, NULL},
};

static bool is_wanted(const struct metric_spec *spec, const struct alias *alias)
{
    return strcmp(spec->name, alias->native) == 0 &&
           (alias->value == NULL ||
            (spec->n_labels == 1 && strcmp(spec->labels[0].value, alias->value) == 0));
}

/* The first metric that the alias stands for; *ret_counts: the sum of all of them, for counters. */
static const struct metric *find(const struct metric_registry *registry, const struct alias *alias,
                                 size_t *ret_n, uint64_t *ret_counts)
{
    const struct metric *first = NULL;

    *ret_n = 0;
    *ret_counts = 0;
    for (const struct metric *m = metric_first(registry); m != NULL; m = metric_next(m)) {
        const struct metric_spec *spec = metric_info(m);
        if (!is_wanted(spec, alias))
            continue;
        first = first != NULL ? first : m;
        (*ret_n)++;
        if (spec->type == METRIC_TYPE_COUNTER)
            *ret_counts += metric_counts(m);
    }
    return first;
}

/* Their page size and number of pages, which routers read to know how prompts share prefixes. */
static void expose_cache(struct exposition *e, const struct vllm_options *options)
{
    char block_size[24], n_blocks[24];
    const struct metric_label labels[] = {{"model_name", options->model_name},
                                          {"engine", "0"},
                                          {"block_size", block_size},
                                          {"cache_dtype", options->kv_dtype},
                                          {"num_gpu_blocks", n_blocks}};

    (void)snprintf(block_size, sizeof block_size, "%zu", options->page_tokens);
    (void)snprintf(n_blocks, sizeof n_blocks, "%zu", options->n_pages);
    exposition_family(e, "vllm:cache_config_info", METRIC_TYPE_GAUGE,
                      "Pages of the KV cache, as labels.");
    exposition_count(e, "vllm:cache_config_info", labels, sizeof labels / sizeof labels[0], 1);
}

void vllm_expose(struct exposition *e, const struct metric_registry *registry,
                 const struct vllm_options *options)
{
    const char *last = "";

    for (size_t i = 0; i < sizeof ALIASES / sizeof ALIASES[0]; i++) {
        const struct alias *a = &ALIASES[i];
        const struct metric_label labels[] = {
            {"model_name", options->model_name}, {"engine", "0"}, {a->extra, a->extra_value}};
        size_t n_labels = a->extra != NULL ? 3 : 2, n = 0;
        uint64_t counts = 0;
        const struct metric *m = find(registry, a, &n, &counts);
        if (m == NULL)
            continue;
        if (strcmp(a->name, last) != 0)
            exposition_family(e, a->name, metric_info(m)->type, a->help);
        last = a->name;
        if (n > 1 && metric_info(m)->type == METRIC_TYPE_COUNTER)
            exposition_count(e, a->name, labels, n_labels, counts);
        else
            exposition_metric(e, a->name, labels, n_labels, m);
    }
    expose_cache(e, options);
}
