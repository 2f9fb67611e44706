/* The metrics page: its grammar, what is counted where, and what can be left out. */
#include "demo.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct reply reply, page;

/* name or name{label="value",...}; returns what is behind it, NULL when it is none. */
static const char *series_end(const char *at)
{
    if (!isalpha((unsigned char)*at) && *at != '_')
        return NULL;
    while (isalnum((unsigned char)*at) || *at == '_' || *at == ':')
        at++;
    if (*at != '{')
        return at;
    do {
        at++;
        size_t n = strspn(at, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_0123456789");
        if (n == 0 || at[n] != '=' || at[n + 1] != '"')
            return NULL;
        for (at += n + 2; *at != '"'; at++) {
            if (*at == 0 || (*at == '\\' && strchr("\\\"n", *++at) == NULL))
                return NULL;
        }
        at++;
    } while (*at == ',');
    return *at == '}' ? at + 1 : NULL;
}

/* Every line is a comment or one sample; every family is declared once, in front of its samples. */
static void check_grammar(const char *text)
{
    char line[1024], family[200] = "", declared[16384] = "\n", name[210];

    while (*text != 0) {
        size_t n = strcspn(text, "\n");
        assert_true(n < sizeof line && text[n] == '\n');
        memcpy(line, text, n);
        line[n] = 0;
        text += n + 1;
        if (strncmp(line, "# TYPE ", 7) == 0) {
            (void)snprintf(family, sizeof family, "%.*s", (int)strcspn(line + 7, " "), line + 7);
            (void)snprintf(name, sizeof name, "\n%s\n", family);
            if (strstr(declared, name) != NULL)
                fail_msg("declared twice: %s", line);
            assert_true(strlen(declared) + strlen(name) < sizeof declared);
            (void)strcat(declared, name + 1);
            continue;
        }
        if (strncmp(line, "# HELP ", 7) == 0)
            continue;
        const char *end = series_end(line);
        char *rest = NULL;
        if (end == NULL || *end != ' ')
            fail_msg("no series: %s", line);
        (void)strtod(end + 1, &rest);
        if (rest == end + 1 || *rest != 0)
            fail_msg("no value: %s", line);
        if (strncmp(line, family, strlen(family)) != 0)
            fail_msg("%s stands under %s", line, family);
    }
}

static void ask(const struct demo *demo, const char *method, const char *path, const char *body,
                int status)
{
    int got = demo_ask(demo, method, path, body, &reply);

    if (got != status)
        fail_msg("%s %s: %d: %.200s", method, path, got, reply.body);
}

static void counts(void **state)
{
    struct server_options options = demo_options();
    struct demo demo;

    (void)state;
    options.model_name = "a \"quoted\" \\ name";
    demo_start(&demo, &options);
    demo_run(&demo);
    const char *body = "{\"prompt\":\"One two\",\"max_tokens\":4,\"ignore_eos\":true}";
    ask(&demo, "POST", "/v1/completions", body, 200);
    ask(&demo, "POST", "/v1/completions", body, 200);
    ask(&demo, "POST", "/v1/completions", "{", 400);
    ask(&demo, "POST", "/v1/chat/completions", "{\"messages\":[]}", 400);
    ask(&demo, "POST", "/tokenize", "{\"prompt\":\"a\"}", 200);
    ask(&demo, "POST", "/tokenize", "{\"prompt\":1}", 400);
    ask(&demo, "GET", "/v1/models", NULL, 200);
    ask(&demo, "GET", "/nowhere", NULL, 404);
    ask(&demo, "GET", "/health", NULL, 200);
    demo_wait_answers(&demo, 0);
    const struct {
        const char *series;
        double value;
    } WANT[] = {
        {"ferry_http_requests_total{route=\"completions\",code=\"2xx\"}", 2},
        {"ferry_http_requests_total{route=\"completions\",code=\"4xx\"}", 1},
        {"ferry_http_requests_total{route=\"chat\",code=\"4xx\"}", 1},
        {"ferry_http_requests_total{route=\"chat\",code=\"2xx\"}", 0},
        {"ferry_http_requests_total{route=\"tokenize\",code=\"2xx\"}", 1},
        {"ferry_http_requests_total{route=\"models\",code=\"2xx\"}", 1},
        {"ferry_http_requests_total{route=\"other\",code=\"4xx\"}", 1},
        {"ferry_http_requests_total{route=\"other\",code=\"2xx\"}", 0}, /* no probe is in it */
        {"ferry_http_request_seconds_count{route=\"completions\"}", 3},
        {"ferry_http_request_seconds_count{route=\"tokenize\"}", 2},
        {"ferry_http_request_seconds_count{route=\"other\"}", 1},
        {"ferry_http_request_seconds_bucket{route=\"completions\",le=\"+Inf\"}", 3},
        {"ferry_http_requests_open", 1}, /* the one that asks */
        {"ferry_requests_rejected_total{reason=\"invalid\"}", 3},
        {"ferry_requests_rejected_total{reason=\"queue_full\"}", 0},
        {"ferry_requests_rejected_total{reason=\"queue_timeout\"}", 0},
        {"ferry_requests_rejected_total{reason=\"out_of_memory\"}", 0},
        {"ferry_requests_rejected_total{reason=\"draining\"}", 0},
        {"ferry_clients_left_total", 0},
        {"ferry_client_backpressure_seconds_total", 0},
    };
    for (size_t i = 0; i < COUNT_OF(WANT); i++) {
        double got = demo_metric(&demo, WANT[i].series);
        if (got != WANT[i].value)
            fail_msg("%s is %g, not %g", WANT[i].series, got, WANT[i].value);
    }
    ask(&demo, "GET", "/metrics", NULL, 200);
    check_grammar(reply.body);
    assert_non_null(strstr(reply.body, "model_name=\"a \\\"quoted\\\" \\\\ name\""));
    assert_non_null(strstr(reply.body, "arch=\"qwen3_moe\""));
    demo_end(&demo);
}

static void switches(void **state)
{
    struct server_options options = demo_options();
    struct demo demo;

    (void)state;
    demo_start(&demo, &options);
    assert_int_equal(demo_ask(&demo, "GET", "/metrics", NULL, &page), 200);
    check_grammar(page.body);
    assert_non_null(strstr(page.body, "\nvllm:num_requests_running"));
    demo_end(&demo);
    options.no_vllm_metrics = true;
    options.expert_metrics = true;
    demo_start(&demo, &options);
    assert_int_equal(demo_ask(&demo, "GET", "/metrics", NULL, &reply), 200);
    check_grammar(reply.body);
    assert_null(strstr(reply.body, "vllm:"));
    /* 6 layers of 16 experts. */
    assert_true(count_of(reply.body, "expert=\"") >= 96);
    assert_true(count_of(page.body, "expert=\"") < 96);
    demo_end(&demo);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(counts), cmocka_unit_test(switches)};

    return cmocka_run_group_tests(tests, demo_setup, demo_teardown);
}
