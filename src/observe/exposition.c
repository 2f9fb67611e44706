/* The text format. See exposition.h. Source: "Prometheus exposition formats", text version 0.0.4.
 */
#include "observe/exposition.h"

#include "base/alloc.h"
#include "base/size.h"

#include <dirent.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static void put(struct exposition *e, const char *text, size_t size)
{
    if (e->failed)
        return;
    if (size > e->capacity - e->size) {
        size_t capacity = 2 * e->capacity + size + 4096;
        char *grown = mem_resize(e->text, e->size, capacity);
        if (grown == NULL) {
            e->failed = true;
            return;
        }
        e->text = grown;
        e->capacity = capacity;
    }
    memcpy(e->text + e->size, text, size);
    e->size += size;
}

static void FERRY_PRINTF(2, 3) say(struct exposition *e, const char *format, ...)
{
    char line[2048]; /* names, labels and helps are bounded: METRIC_TEXT_MAX */
    va_list args;

    va_start(args, format);
    int n = vsnprintf(line, sizeof line, format, args);
    va_end(args);
    if (n > 0)
        put(e, line, min_size((size_t)n, sizeof line - 1));
}

void exposition_fini(struct exposition *e)
{
    mem_free(e->text);
    *e = (struct exposition){0};
}

static void number(char text[40], double value)
{
    if (isnan(value))
        (void)snprintf(text, 40, "NaN");
    else if (isinf(value))
        (void)snprintf(text, 40, "%s", value > 0 ? "+Inf" : "-Inf");
    else
        (void)snprintf(text, 40, "%.17g", value);
    /* The shortest of the usual lengths that reads back as the same number. */
    for (int digits = 6; isfinite(value) && digits < 17; digits += 3) {
        char shorter[40];
        double back = 0;
        (void)snprintf(shorter, sizeof shorter, "%.*g", digits, value);
        if (sscanf(shorter, "%lf", &back) == 1 && back == value) {
            (void)snprintf(text, 40, "%s", shorter);
            return;
        }
    }
}

void exposition_escape(char *to, size_t size, const char *value)
{
    size_t n = 0;

    for (; *value != 0; value++) {
        const char *escaped = *value == '\\'   ? "\\\\"
                              : *value == '"'  ? "\\\""
                              : *value == '\n' ? "\\n"
                                               : NULL;
        size_t need = escaped != NULL ? 2 : 1;
        if (n + need + 1 > size) {
            while (n > 0 && ((unsigned char)to[n - 1] & 0xC0) == 0x80)
                n--; /* the tail of a character */
            n -= n > 0 && ((unsigned char)to[n - 1] & 0xC0) == 0xC0;
            break;
        }
        memcpy(to + n, escaped != NULL ? escaped : value, need);
        n += need;
    }
    to[n] = 0;
}

/* A metric under a name; extra: further labels, "" or ending in a comma. */
static void series(struct exposition *e, const char *name, const struct metric *metric,
                   const char *labels)
{
    const struct metric_spec *spec = metric_info(metric);
    const char *comma = labels[0] != 0 ? "," : "";
    char value[40];

    if (spec->type != METRIC_TYPE_HISTOGRAM) {
        number(value, metric_value(metric));
        if (labels[0] != 0)
            say(e, "%s{%s} %s\n", name, labels, value);
        else
            say(e, "%s %s\n", name, value);
        return;
    }
    uint64_t buckets[METRIC_BOUNDS_MAX + 1], seen = 0;
    double sum = 0;
    uint64_t count = metric_buckets(metric, buckets, &sum);
    for (size_t i = 0; i <= spec->n_bounds; i++) {
        seen += buckets[i];
        number(value, i < spec->n_bounds ? spec->bounds[i] : (double)INFINITY);
        say(e, "%s_bucket{%s%sle=\"%s\"} %llu\n", name, labels, comma, value,
            (unsigned long long)seen);
    }
    number(value, sum);
    if (labels[0] != 0) {
        say(e, "%s_sum{%s} %s\n", name, labels, value);
        say(e, "%s_count{%s} %llu\n", name, labels, (unsigned long long)count);
    } else {
        say(e, "%s_sum %s\n", name, value);
        say(e, "%s_count %llu\n", name, (unsigned long long)count);
    }
}

static const char *type_name(enum metric_type type)
{
    return type == METRIC_TYPE_COUNTER ? "counter"
           : type == METRIC_TYPE_GAUGE ? "gauge"
                                       : "histogram";
}

static void head(struct exposition *e, const char *name, enum metric_type type, const char *help)
{
    char text[2 * METRIC_TEXT_MAX + 1];
    size_t n = 0;

    for (; *help != 0 && n + 3 < sizeof text; help++) {
        if (*help == '\\')
            text[n++] = '\\';
        text[n++] = *help;
    }
    text[n] = 0;
    say(e, "# HELP %s %s\n# TYPE %s %s\n", name, text, name, type_name(type));
}

static void labels_of(const struct metric_spec *spec, char *text, size_t size)
{
    size_t n = 0;

    text[0] = 0;
    for (size_t i = 0; i < spec->n_labels; i++) {
        char value[2 * METRIC_TEXT_MAX + 1];
        exposition_escape(value, sizeof value, spec->labels[i].value);
        int more = snprintf(text + n, size - n, "%s%s=\"%s\"", i > 0 ? "," : "",
                            spec->labels[i].name, value);
        if (more < 0 || (size_t)more >= size - n)
            break;
        n += (size_t)more;
    }
}

void exposition_registry(struct exposition *e, const struct metric_registry *registry)
{
    const char *last = "";
    char labels[1600];

    for (const struct metric *m = metric_first(registry); m != NULL; m = metric_next(m)) {
        const struct metric_spec *spec = metric_info(m);
        if (strcmp(spec->name, last) != 0)
            head(e, spec->name, spec->type, spec->help);
        last = spec->name;
        labels_of(spec, labels, sizeof labels);
        series(e, spec->name, m, labels);
    }
}

/* Source: vLLM's metrics page; meanings are compared in docs/metrics.md. */
static const struct {
    const char *native, *label, *alias;
    const char *extra; /* a label of the alias that takes the place of the native one */
} VLLM[] = {
    {"ferry_requests_running", NULL, "vllm:num_requests_running", NULL},
    {"ferry_requests_waiting", NULL, "vllm:num_requests_waiting", NULL},
    {"ferry_kv_cache_usage_ratio", NULL, "vllm:kv_cache_usage_perc", NULL},
    {"ferry_generation_tokens_total", NULL, "vllm:generation_tokens_total", NULL},
    {"ferry_preemptions_total", NULL, "vllm:num_preemptions_total", NULL},
    {"ferry_prefix_cache_queried_tokens_total", NULL, "vllm:prefix_cache_queries_total", NULL},
    {"ferry_prefix_cache_hit_tokens_total", NULL, "vllm:prefix_cache_hits_total", NULL},
    {"ferry_nonfinite_total", NULL, "vllm:corrupted_requests_total", NULL},
    {"ferry_answers_finished_total", "stop", "vllm:request_success_total",
     ",finished_reason=\"stop\""},
    {"ferry_answers_finished_total", "length", "vllm:request_success_total",
     ",finished_reason=\"length\""},
    {"ferry_answers_finished_total", "cancelled", "vllm:request_success_total",
     ",finished_reason=\"abort\""},
    {"ferry_answers_finished_total", "error", "vllm:request_success_total",
     ",finished_reason=\"error\""},
    {"ferry_time_to_first_token_seconds", NULL, "vllm:time_to_first_token_seconds", NULL},
    {"ferry_inter_token_seconds", NULL, "vllm:inter_token_latency_seconds", NULL},
    {"ferry_request_seconds", NULL, "vllm:e2e_request_latency_seconds", NULL},
    {"ferry_request_queue_seconds", NULL, "vllm:request_queue_time_seconds", NULL},
    {"ferry_request_prefill_seconds", NULL, "vllm:request_prefill_time_seconds", NULL},
    {"ferry_request_decode_seconds", NULL, "vllm:request_decode_time_seconds", NULL},
    {"ferry_request_inference_seconds", NULL, "vllm:request_inference_time_seconds", NULL},
    {"ferry_request_prompt_tokens", NULL, "vllm:request_prompt_tokens", NULL},
    {"ferry_request_generation_tokens", NULL, "vllm:request_generation_tokens", NULL},
};

static const struct metric *find(const struct metric_registry *registry, const char *name,
                                 const char *value)
{
    const struct metric *m = metric_first(registry);

    for (; m != NULL; m = metric_next(m)) {
        const struct metric_spec *spec = metric_info(m);
        if (strcmp(spec->name, name) == 0 &&
            (value == NULL || (spec->n_labels > 0 && strcmp(spec->labels[0].value, value) == 0)))
            break;
    }
    return m;
}

void exposition_vllm(struct exposition *e, const struct metric_registry *registry,
                     const char *model_name)
{
    char name[256], labels[400];
    const char *last = "";
    double prompt = 0;

    exposition_escape(name, sizeof name, model_name);
    for (size_t i = 0; i < sizeof VLLM / sizeof VLLM[0]; i++) {
        const struct metric *m = find(registry, VLLM[i].native, VLLM[i].label);
        if (m == NULL)
            continue;
        if (strcmp(VLLM[i].alias, last) != 0)
            head(e, VLLM[i].alias, metric_info(m)->type, metric_info(m)->help);
        last = VLLM[i].alias;
        (void)snprintf(labels, sizeof labels, "model_name=\"%s\",engine=\"0\"%s", name,
                       VLLM[i].extra != NULL ? VLLM[i].extra : "");
        series(e, VLLM[i].alias, m, labels);
    }
    /* One number there, two here: cached tokens count as prompt tokens. */
    const struct metric *computed = find(registry, "ferry_prompt_tokens_total", "computed");
    const struct metric *cached = find(registry, "ferry_prompt_tokens_total", "cached");
    if (computed == NULL || cached == NULL)
        return;
    prompt = metric_value(computed) + metric_value(cached);
    (void)snprintf(labels, sizeof labels, "model_name=\"%s\",engine=\"0\"", name);
    exposition_value(e, "vllm:prompt_tokens_total", "counter",
                     "Prompt tokens of requests that were started.", labels, prompt);
}

void exposition_value(struct exposition *e, const char *name, const char *type, const char *help,
                      const char *labels, double value)
{
    char text[40];

    if (help != NULL)
        say(e, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, type);
    number(text, value);
    if (labels != NULL)
        say(e, "%s{%s} %s\n", name, labels, text);
    else
        say(e, "%s %s\n", name, text);
}

static double n_descriptors(void)
{
    DIR *dir = opendir("/proc/self/fd");
    double n = 0;

    if (dir == NULL)
        return (double)NAN;
    while (readdir(dir) != NULL)
        n++;
    (void)closedir(dir);
    return n - 3; /* ".", ".." and the folder itself */
}

void exposition_process(struct exposition *e)
{
    struct timespec cpu = {0};
    long size = 0, resident = 0;
    FILE *f = fopen("/proc/self/statm", "re");

    if (f != NULL && fscanf(f, "%ld %ld", &size, &resident) != 2)
        resident = 0;
    if (f != NULL)
        (void)fclose(f);
    (void)clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &cpu);
    exposition_value(e, "process_resident_memory_bytes", "gauge",
                     "Memory in use, file pages included.", NULL,
                     (double)resident * (double)sysconf(_SC_PAGESIZE));
    exposition_value(e, "process_cpu_seconds_total", "counter", "Processor time used.", NULL,
                     (double)cpu.tv_sec + 1e-9 * (double)cpu.tv_nsec);
    exposition_value(e, "process_open_fds", "gauge", "Open descriptors.", NULL, n_descriptors());
}
