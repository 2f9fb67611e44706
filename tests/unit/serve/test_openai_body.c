/* Bodies: what is no JSON in UTF-8 is refused with the place, and never quoted. */
#include "ask.h"

#include "serve/openai_body.h"

#include <stdlib.h>
#include <string.h>

static void expect_bad(const char *body, size_t size, enum ferry_status status, const char *param,
                       const char *part)
{
    struct openai_error err = {0};
    json_t *json = NULL;

    enum ferry_status st = openai_body_parse(&json, body, size, 100, &err);
    if (st != status || strcmp(err.param, param) != 0 || strstr(err.message, part) == NULL)
        fail_msg("%.*s: %s param '%s': %s", (int)size, body, ferry_status_name(st), err.param,
                 err.message);
    assert_null(json);
    assert_null(strstr(err.message, "secret"));
}

/* T04 and the rest of what is no JSON. */
static void test_messages(void **state)
{
    enum { ZEROS = 1000000, VALUES = 600000 };
    char *body = malloc(2 * VALUES + 100);

    /* Of use to who sent it: nothing of flags of a library, or of checkpoints. */
    (void)state;
    expect_bad("{\"a\":\"\\u0000\"}", 14, FERRY_ERR_FORMAT, "", "\\u0000 may not be in a string");
    memset(body, '0', ZEROS);
    memcpy(body, "{\"seed\":0.", 10);
    memcpy(body + ZEROS, "1}", 2);
    expect_bad(body, ZEROS + 2, FERRY_ERR_ARG, "seed", "has 999993 characters; the most are 400");
    memcpy(body, "{\"p\":[1", 7);
    for (size_t i = 0; i < VALUES; i++)
        memcpy(body + 7 + 2 * i, ",1", 2);
    memcpy(body + 7 + 2 * VALUES, "]}", 2);
    expect_bad(body, 9 + 2 * VALUES, FERRY_ERR_LIMIT, "", "JSON has more than");
    free(body);
}

static void test_refused(void **state)
{
    static const struct {
        const char *body;
        enum ferry_status status;
        const char *param, *part;
    } CASES[] = {
        {"", FERRY_ERR_FORMAT, "", "empty"},
        {"{\"a\":\"\xC4\xE3\xBA\xC3\"}", FERRY_ERR_FORMAT, "",
         "byte 0xC4 at offset 6 is not UTF-8"}, /* GBK */
        {"\xFF\xFE{", FERRY_ERR_FORMAT, "", "byte 0xFF at offset 0"},
        {"[1]", FERRY_ERR_FORMAT, "", "must be a JSON object"},
        {"\"secret\"", FERRY_ERR_FORMAT, "", "bad JSON in line 1"},
        {"{\"a\":1,\n\"secret\" 2}", FERRY_ERR_FORMAT, "", "bad JSON in line 2 column"},
        {"{\"secret\":1,\"secret\":2}", FERRY_ERR_FORMAT, "", "duplicate object key"},
        {"{\"a\":\"\\ud800secret\"}", FERRY_ERR_FORMAT, "", "bad JSON"},
        {"{\"a\":\"\\u0000\"}", FERRY_ERR_FORMAT, "", "bad JSON"},
        {"{\"a\":1}secret", FERRY_ERR_FORMAT, "", "end of file expected"},
        {"{\"a\":secret}", FERRY_ERR_FORMAT, "", "invalid token"},
        {"{\"a\":01}", FERRY_ERR_FORMAT, "", "bad JSON"},
        {"{\"a\":\"\\", FERRY_ERR_FORMAT, "", "bad JSON"},
        {"{\"a\":-}", FERRY_ERR_FORMAT, "", "bad JSON"},
        /* T35: the field is named although the number cannot be read. */
        {"{\"temperature\":NaN}", FERRY_ERR_ARG, "temperature", "byte offset 15"},
        {"{\"b\":1,\"top_p\": -Infinity}", FERRY_ERR_ARG, "top_p", "not finite"},
        {"{\"n\":Infinity}", FERRY_ERR_ARG, "n", "not finite"},
        {"{\"top_p\":1e400}", FERRY_ERR_ARG, "top_p", "too large"},
        {"{\"x\":{\"n\":-1E+999}}", FERRY_ERR_ARG, "x", "too large"},
        {"{\"seed\":9223372036854775808}", FERRY_ERR_ARG, "seed", "too large"},
        {"{\"seed\":-9223372036854775809}", FERRY_ERR_ARG, "seed", "too large"},
        {"{\"a\":[0,\"x:y\",{\"b\":99999999999999999999}]}", FERRY_ERR_ARG, "a", "too large"},
        {"[99999999999999999999]", FERRY_ERR_ARG, "", "too large"},
    };
    (void)state;
    for (size_t i = 0; i < COUNT_OF(CASES); i++)
        expect_bad(CASES[i].body, strlen(CASES[i].body), CASES[i].status, CASES[i].param,
                   CASES[i].part);
}

static void test_taken(void **state)
{
    static const char *const CASES[] = {
        "{}",
        " {\"a\":1.5e308,\"b\":-9223372036854775808,\"c\":9223372036854775807} ",
        "\xEF\xBB\xBF{\"NaN\":\"NaN Infinity 1e999\"}",
        "{\"a\":\"\\\"1e999\",\"b\":null,\"c\":1e-999}",
    };
    (void)state;
    for (size_t i = 0; i < COUNT_OF(CASES); i++) {
        json_t *json = NULL;
        struct openai_error err = {0};
        if (openai_body_parse(&json, CASES[i], strlen(CASES[i]), 100, &err) != FERRY_OK)
            fail_msg("%s: %s", CASES[i], err.message);
        json_decref(json);
    }
}

static void test_limits(void **state)
{
    char deep[400];
    char many[400];
    char digits[500];
    struct openai_error err = {0};
    json_t *json = NULL;

    (void)state;
    memset(deep, '[', sizeof deep);
    memcpy(deep, "{\"a\":", 5);
    expect_bad(deep, sizeof deep, FERRY_ERR_LIMIT, "", "nests deeper than 64");
    memset(many, ',', sizeof many);
    memcpy(many, "{\"a\":[1", 7);
    expect_bad(many, sizeof many, FERRY_ERR_LIMIT, "", "more than 100 values");
    memset(digits, '1', sizeof digits);
    memcpy(digits, "{\"a\":", 5);
    expect_bad(digits, sizeof digits, FERRY_ERR_ARG, "a", "has 495 characters");
    /* Nothing is read of a body that is too long. */
    assert_int_equal(openai_body_parse(&json, "{}", (size_t)OPENAI_BODY_MAX + 1, 100, &err),
                     FERRY_ERR_LIMIT);
    assert_non_null(strstr(err.message, "33554433 bytes, the most are 33554432"));
}

/* Every cut of a body is refused, and no byte behind it is read. */
static void test_cut(void **state)
{
    static const char BODY[] = "{\"a\":[1,-2.5e3,\"\\u00e4\\\\\",NaN],\"b\":{\"c\":Infinity}}";

    (void)state;
    for (size_t n = 1; n < sizeof BODY - 1; n++) {
        char *copy = malloc(n);
        json_t *json = NULL;
        assert_non_null(copy);
        memcpy(copy, BODY, n);
        assert_true(openai_body_parse(&json, copy, n, 100, NULL) < FERRY_OK);
        free(copy);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_messages), cmocka_unit_test(test_refused),
        cmocka_unit_test(test_taken),    cmocka_unit_test(test_limits),
        cmocka_unit_test(test_cut),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
