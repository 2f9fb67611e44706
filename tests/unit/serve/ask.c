/* Requests for tests. See ask.h. */
#include "ask.h"

#include <string.h>

static const char *const MODELS[] = {"m", "other"};

const struct openai_limits ASK_LIMITS = {
    .models = MODELS, .n_models = 2, .n_vocab = 300, .has_bos = true};

void expect_taken(enum openai_kind kind, const struct openai_limits *limits, const char *body,
                  struct openai_request *ret)
{
    struct openai_error err = {0};

    if (openai_request_parse(kind, body, strlen(body), limits, ret, &err) != FERRY_OK)
        fail_msg("%s\nrefused, param '%s': %s", body, err.param, err.message);
}

void expect_denied(enum openai_kind kind, const struct openai_limits *limits, const char *body,
                   int http, const char *param, const char *part)
{
    struct openai_error err = {0};
    struct openai_request r = {.n_prompts = 77};

    if (openai_request_parse(kind, body, strlen(body), limits, &r, &err) == FERRY_OK)
        fail_msg("%s\nwas taken", body);
    if (err.http != http || strcmp(err.param, param) != 0 || strstr(err.message, part) == NULL)
        fail_msg("%s\n%d param '%s': %s\nwanted %d param '%s': %s", body, err.http, err.param,
                 err.message, http, param, part);
    assert_non_null(err.type);
    assert_non_null(err.code);
    assert_int_equal(r.n_prompts, 77); /* untouched */
}

void expect_all_denied(enum openai_kind kind, const struct refusal *refusals, size_t n)
{
    for (size_t i = 0; i < n; i++)
        expect_denied(kind, &ASK_LIMITS, refusals[i].body, 400, refusals[i].param,
                      refusals[i].part);
}

json_t *read_json(const char *data, size_t size)
{
    json_error_t cause;
    json_t *json =
        json_loadb(data, size, JSON_REJECT_DUPLICATES | JSON_DECODE_ANY | JSON_ALLOW_NUL, &cause);

    if (json == NULL)
        fail_msg("no JSON: %s in %.*s", cause.text, (int)size, data);
    return json;
}

void expect_json(const json_t *value, const char *text)
{
    json_t *wanted = read_json(text, strlen(text));

    if (!json_equal(value, wanted))
        fail_msg("got %s\nwanted %s", json_dumps(value, JSON_COMPACT | JSON_ENCODE_ANY), text);
    json_decref(wanted);
}
