/* Which path answers what, in every state of the server. */
#include "demo.h"

#include <stdio.h>
#include <string.h>

static struct reply reply;

struct row {
    const char *method, *path, *body;
    int status;
    const char *part; /* of headers or body */
};

static void check(const struct demo *demo, const struct row *rows, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        const struct row *r = &rows[i];
        int status = demo_ask(demo, r->method, r->path, r->body, &reply);
        if (status != r->status)
            fail_msg("%s %s: %d instead of %d: %.200s", r->method, r->path, status, r->status,
                     reply.body);
        if (strstr(reply.body, r->part) == NULL && strstr(reply.all, r->part) == NULL)
            fail_msg("%s %s: no '%s' in %s %.300s", r->method, r->path, r->part, reply.all,
                     reply.body);
        if (status >= 400 && strstr(r->path, "ready") == NULL && strcmp(r->method, "HEAD") != 0) {
            json_t *json = reply_json(&reply);
            assert_true(json_word(json, "error.message")[0] != 0);
            assert_true(json_word(json, "error.type")[0] != 0);
            json_decref(json);
        }
    }
}

#define CHAT "/v1/chat/completions"
#define TEXT "/v1/completions"
#define ASK                                                                           \
    "{\"model\":\"demo\",\"max_tokens\":3,\"messages\":[{\"role\":\"user\",\"content" \
    "\":\"Hello\"}]}"

static void every_route(void **state)
{
    static const struct row ROWS[] = {
        {"POST", CHAT, ASK, 200, "\"object\":\"chat.completion\""},
        {"POST", CHAT "?x=1", ASK, 200, "\"object\":\"chat.completion\""},
        {"POST", TEXT, "{\"prompt\":\"a\",\"max_tokens\":2}", 200, "\"text_completion\""},
        {"POST", "/tokenize", "{\"prompt\":\"Hello\"}", 200, "\"max_model_len\":1024"},
        {"POST", "/detokenize", "{\"tokens\":[72]}", 200, "{\"prompt\":\""},
        {"GET", "/v1/models", NULL, 200, "\"id\":\"demo\""},
        {"HEAD", "/v1/models", NULL, 200, "application/json"},
        {"GET", "/v1/models/demo", NULL, 200, "\"max_model_len\":1024"},
        {"HEAD", "/v1/models/demo", NULL, 200, "application/json"},
        {"GET", "/v1/models/other/name", NULL, 404, "model_not_found"},
        {"GET", "/v1/models/", NULL, 404, "model_not_found"},
        {"GET", "/health", NULL, 200, "\"status\":\"ok\""},
        {"HEAD", "/health", NULL, 200, "Content-Length"},
        {"GET", "/ready", NULL, 200, "ready"},
        {"GET", "/metrics", NULL, 200, "text/plain; version=0.0.4"},
        {"GET", "/", NULL, 404, "/v1/chat/completions"},
        {"GET", "/v1", NULL, 404, "not_found"},
        {"GET", "/v1/chat/completions/", NULL, 404, "not_found"},
        {"POST", "/V1/completions", "{}", 404, "not_found"},
        {"GET", CHAT, NULL, 405, "Allow: POST"},
        {"GET", TEXT, NULL, 405, "Allow: POST"},
        {"PUT", "/tokenize", "{}", 405, "Allow: POST"},
        {"DELETE", "/detokenize", NULL, 405, "Allow: POST"},
        {"POST", "/v1/models", "{}", 405, "Allow: GET, HEAD"},
        {"DELETE", "/v1/models/demo", NULL, 405, "Allow: GET, HEAD"},
        {"POST", "/health", "{}", 405, "Allow: GET, HEAD"},
        {"POST", "/ready", "{}", 405, "Allow: GET, HEAD"},
        {"POST", "/metrics", "{}", 405, "Allow: GET, HEAD"},
        {"OPTIONS", CHAT, NULL, 405, "Allow: POST"},
        {"POST", CHAT, "{", 400, "invalid_json"},
        {"POST", CHAT, "", 400, "invalid_json"},
        {"POST", TEXT, "{\"prompt\":\"a\",\"model\":\"gpt\"}", 404, "model_not_found"},
    };
    struct server_options options = demo_options();
    struct demo demo;

    (void)state;
    demo_start(&demo, &options);
    demo_run(&demo);
    check(&demo, ROWS, COUNT_OF(ROWS));
    demo_end(&demo);
}

static void before_and_after(void **state)
{
    static const struct row BEFORE[] = {
        {"GET", "/health", NULL, 200, "\"status\":\"ok\""},
        {"GET", "/ready", NULL, 503, "loading"},
        {"GET", "/v1/models", NULL, 200, "demo"},
        {"GET", "/metrics", NULL, 200, "ferry_build_info"},
        {"POST", CHAT, ASK, 503, "Retry-After: "},
        {"POST", "/tokenize", "{\"prompt\":\"a\"}", 503, "not_ready"},
    };
    static const struct row AFTER[] = {
        {"GET", "/health", NULL, 200, "\"status\":\"ok\""},
        {"GET", "/ready", NULL, 503, "draining"},
        {"POST", CHAT, ASK, 503, "shutting down"},
        {"POST", TEXT, "{\"prompt\":\"a\"}", 503, "Retry-After: "},
    };
    struct server_options options = demo_options();
    struct demo demo;

    (void)state;
    demo_start(&demo, &options);
    check(&demo, BEFORE, COUNT_OF(BEFORE));
    demo_by_hand(&demo);
    assert_int_equal(demo_ask(&demo, "GET", "/ready", NULL, &reply), 200);
    server_stop(demo.server);
    check(&demo, AFTER, COUNT_OF(AFTER));
    assert_true(demo_metric(&demo, "ferry_requests_rejected_total{reason=\"draining\"}") == 4);
    demo_end(&demo);
}

/* Green while steps are made, however long a prompt; red when the engine is not seen; green again
 * when it comes back. */
static void heartbeat(void **state)
{
    struct server_options options = demo_options();
    struct demo demo;

    (void)state;
    options.wedged_seconds = 0.3;
    demo_start(&demo, &options);
    assert_int_equal(demo_ask(&demo, "GET", "/health", NULL, &reply), 200);
    demo_by_hand(&demo);
    for (int i = 0; i < 400; i++)
        demo_nap();
    assert_int_equal(demo_ask(&demo, "GET", "/health", NULL, &reply), 503);
    json_t *json = reply_json(&reply);
    assert_string_equal(json_word(json, "status"), "wedged");
    assert_true(json_real_value(json_object_get(json, "heartbeat_seconds")) > 0.3);
    json_decref(json);
    (void)demo_step(&demo);
    assert_int_equal(demo_ask(&demo, "GET", "/health", NULL, &reply), 200);
    json = reply_json(&reply);
    assert_true(json_real_value(json_object_get(json, "heartbeat_seconds")) < 0.3);
    assert_int_equal(json_integer_value(json_object_get(json, "running")), 0);
    json_decref(json);
    demo_end(&demo);
    /* And an idle server is alive without being asked. */
    demo_start(&demo, &options);
    demo_run(&demo);
    for (int i = 0; i < 400; i++)
        demo_nap();
    assert_int_equal(demo_ask(&demo, "GET", "/health", NULL, &reply), 200);
    demo_end(&demo);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_route),
        cmocka_unit_test(before_and_after),
        cmocka_unit_test(heartbeat),
    };

    return cmocka_run_group_tests(tests, demo_setup, demo_teardown);
}
