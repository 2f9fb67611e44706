/* Errors: the status decides what a client is told; hostile names do no harm. */
#include "../unit.h"

#include "serve/openai_error.h"

#include <string.h>

static void test_map(void **state)
{
    static const struct {
        enum ferry_status status;
        int http;
        const char *type, *code;
    } CASES[] = {
        {FERRY_AGAIN, 429, "rate_limit_error", "queue_full"},
        {FERRY_ERR_ARG, 400, "invalid_request_error", "invalid_value"},
        {FERRY_ERR_FORMAT, 400, "invalid_request_error", "invalid_json"},
        {FERRY_ERR_UNSUPPORTED, 400, "invalid_request_error", "unsupported_parameter"},
        {FERRY_ERR_NOT_FOUND, 404, "invalid_request_error", "model_not_found"},
        {FERRY_ERR_LIMIT, 400, "invalid_request_error", "over_limit"},
        {FERRY_ERR_CONTEXT_FULL, 400, "invalid_request_error", "context_length_exceeded"},
        {FERRY_ERR_CANCELLED, 503, "server_error", "cancelled"},
        {FERRY_ERR_NONFINITE, 500, "server_error", "nonfinite_logits"},
        {FERRY_ERR_TIMEOUT, 503, "server_error", "queue_timeout"},
        {FERRY_ERR_NOMEM, 503, "server_error", "out_of_memory"},
        {FERRY_ERR_DEVICE, 500, "server_error", "internal_error"},
        {FERRY_ERR_PEER, 503, "server_error", "internal_error"},
        {FERRY_ERR_INTERNAL, 500, "server_error", "internal_error"},
    };
    (void)state;
    for (size_t i = 0; i < COUNT_OF(CASES); i++) {
        struct openai_error err = {.param = "old"};
        assert_int_equal(openai_error_set(&err, CASES[i].status, "%s %d", "x", 7), CASES[i].status);
        assert_int_equal(err.http, CASES[i].http);
        assert_string_equal(err.type, CASES[i].type);
        assert_string_equal(err.code, CASES[i].code);
        assert_string_equal(err.param, "");
        assert_string_equal(err.message, "x 7");
    }
    assert_int_equal(openai_error_set(NULL, FERRY_ERR_ARG, "x"), FERRY_ERR_ARG);
    openai_error_param(NULL, "x");
}

static void test_from(void **state)
{
    struct ferry_error from = {.status = FERRY_ERR_CONTEXT_FULL, .msg = "the prompt has 9 tokens"};
    struct openai_error err = {0};

    (void)state;
    assert_int_equal(openai_error_from(&err, &from), FERRY_ERR_CONTEXT_FULL);
    assert_string_equal(err.code, "context_length_exceeded");
    assert_string_equal(err.message, "the prompt has 9 tokens");
    from = (struct ferry_error){.status = FERRY_ERR_NOMEM};
    assert_int_equal(openai_error_from(&err, &from), FERRY_ERR_NOMEM);
    assert_string_equal(err.message, "out of memory");
}

static void test_hostile(void **state)
{
    struct openai_error err = {0};
    char name[2000];

    (void)state;
    memset(name, 'n', sizeof name - 1);
    name[sizeof name - 1] = 0;
    name[1] = '\n';
    name[2] = (char)0xFF;
    assert_int_equal(openai_error_set(&err, FERRY_ERR_ARG, "%s", name), FERRY_ERR_ARG);
    openai_error_param(&err, "a.%s", name);
    assert_int_equal(strlen(err.param), sizeof err.param - 1);
    assert_memory_equal(err.param, "a.n??nn", 7);
    assert_memory_equal(err.message, "n??nn", 5);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_map),
        cmocka_unit_test(test_from),
        cmocka_unit_test(test_hostile),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
