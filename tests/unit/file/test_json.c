/* JSON limits, messages and typed look-ups. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/alloc.h"
#include "file/json.h"
#include "make.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

static enum ferry_status parse(const char *text, json_t **ret, struct ferry_error *err)
{
    return json_parse(ret, text, strlen(text), 1000, "x.json", err);
}

static void test_getters(void **state)
{
    json_t *json = NULL;
    uint64_t u64 = 99;
    double f64 = 99.0;
    bool flag = false;
    bool bad = false;
    const char *text = NULL;

    (void)state;
    assert_int_equal(
        parse("{\"i\":7,\"neg\":-1,\"r\":1.5,\"t\":true,\"s\":\"x\",\"n\":null}", &json, NULL),
        FERRY_OK);
    assert_true(json_get_u64(json, "i", &u64, &bad));
    assert_int_equal(u64, 7);
    assert_true(json_get_f64(json, "i", &f64, &bad));
    assert_true(f64 == 7.0);
    assert_true(json_get_f64(json, "r", &f64, &bad));
    assert_true(f64 == 1.5);
    assert_true(json_get_bool(json, "t", &flag, &bad));
    assert_true(flag);
    assert_true(json_get_string(json, "s", &text, &bad));
    assert_string_equal(text, "x");
    assert_false(json_get_u64(json, "absent", &u64, &bad));
    assert_false(json_get_u64(json, "n", &u64, &bad)); /* null counts as absent */
    assert_false(json_get_string(NULL, "s", &text, &bad));
    assert_false(bad);
    assert_false(json_get_u64(json, "neg", &u64, &bad));
    assert_true(bad);
    bad = false;
    assert_false(json_get_u64(json, "r", &u64, &bad));
    assert_true(bad);
    bad = false;
    assert_false(json_get_f64(json, "s", &f64, &bad));
    assert_true(bad);
    bad = false;
    assert_false(json_get_bool(json, "i", &flag, &bad));
    assert_true(bad);
    bad = false;
    assert_false(json_get_string(json, "i", &text, &bad));
    assert_true(bad);
    assert_false(json_get_string(json, "i", &text, NULL));
    assert_int_equal(u64, 7);
    json_decref(json);
}

static void test_rejected(void **state)
{
    static const struct {
        const char *text;
        enum ferry_status status;
        const char *says;
    } CASES[] = {
        {"", FERRY_ERR_FORMAT, "x.json: bad JSON in line 1"},
        {"{\n \"a\": }", FERRY_ERR_FORMAT, "line 2 column"},
        {"{\"a\":1,\"a\":2}", FERRY_ERR_FORMAT, "duplicate"},
        {"{\"a\":NaN}", FERRY_ERR_FORMAT, "bad JSON"},
        {"{\"a\":99999999999999999999}", FERRY_ERR_FORMAT, "too big"},
        {"[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[", FERRY_ERR_LIMIT,
         "nests deeper than 64 at offset 64"},
        {"\"[", FERRY_ERR_FORMAT, "bad JSON"},
        {"{\"a\\", FERRY_ERR_FORMAT, "bad JSON"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof CASES / sizeof CASES[0]; i++) {
        struct ferry_error err = {0};
        json_t *json = NULL;
        enum ferry_status st = parse(CASES[i].text, &json, &err);
        if (st != CASES[i].status || strstr(err.msg, CASES[i].says) == NULL || json != NULL)
            fail_msg("case %zu: %s \"%s\"", i, ferry_status_name(st), err.msg);
    }
}

/* Values are counted before anything is built, and keys, which cost more, at half as many. */
static void test_counts(void **state)
{
    static const struct {
        const char *text;
        size_t max_values;
        enum ferry_status status;
    } CASES[] = {
        {"[1,2,3]", 4, FERRY_OK},
        {"[1,2,3]", 3, FERRY_ERR_LIMIT},
        {"{\"a\":1,\"b\":\"::,,\"}", 4, FERRY_OK},
        {"{\"a\":1,\"b\":1,\"c\":1}", 5, FERRY_ERR_LIMIT},
        {"{\"a\":1,\"b\":1,\"c\":1}", 6, FERRY_OK},
    };
    (void)state;
    for (size_t i = 0; i < sizeof CASES / sizeof CASES[0]; i++) {
        struct ferry_error err = {0};
        json_t *json = NULL;
        assert_int_equal(json_parse(&json, CASES[i].text, strlen(CASES[i].text),
                                    CASES[i].max_values, "x.json", &err),
                         CASES[i].status);
        assert_true((json != NULL) == (CASES[i].status == FERRY_OK));
        json_decref(json);
    }
}

/* Brackets in strings do not nest. */
static void test_brackets_in_strings(void **state)
{
    json_t *json = NULL;
    char text[400];

    (void)state;
    memset(text, '[', sizeof text);
    memcpy(text, "[\"\\\"", 4);
    memcpy(text + sizeof text - 2, "\"]", 2);
    assert_int_equal(json_parse(&json, text, sizeof text, 2, "x.json", NULL), FERRY_OK);
    json_decref(json);
}

/* A 0 is a byte like others, and allowed nowhere. */
static void test_zero_bytes(void **state)
{
    static const char TEXT[] = "{\"ab\":[1,-2.5,true,\"x\"]}";
    struct ferry_error err = {0};

    (void)state;
    for (size_t i = 0; i <= sizeof TEXT - 1; i++) {
        char with[sizeof TEXT];
        json_t *json = NULL;
        memcpy(with, TEXT, i);
        with[i] = 0;
        memcpy(with + i + 1, TEXT + i, sizeof TEXT - 1 - i);
        if (json_parse(&json, with, sizeof with, 100, "x.json", &err) != FERRY_ERR_FORMAT)
            fail_msg("a 0 at %zu is taken", i);
        assert_null(json);
    }
}

static void test_load(void **state)
{
    struct dir dir;
    struct ferry_error err = {0};
    json_t *json = NULL;

    (void)state;
    dir_make(&dir);
    dir_write_text(&dir, "good.json", "{\"a\":1}\n");
    dir_write_text(&dir, "array.json", "[1]");
    assert_int_equal(json_load_object(&json, dir_path(&dir, "good.json"), &err), FERRY_OK);
    json_decref(json);
    assert_int_equal(json_load_object(&json, dir_path(&dir, "array.json"), &err), FERRY_ERR_FORMAT);
    assert_string_equal(err.msg, "array.json: holds no JSON object");
    assert_int_equal(json_load_object(&json, dir_path(&dir, "none.json"), &err),
                     FERRY_ERR_NOT_FOUND);
    dir_remove(&dir);
}

/* What jansson allocates: number `fail_at` fails, and with fail_on all that follow. */
static uint64_t n_asked, fail_at;
static bool fail_on;

static void *failing_alloc(size_t n)
{
    n_asked++;
    return n_asked == fail_at || (fail_on && n_asked > fail_at) ? NULL : mem_alloc(n);
}

/* Every allocation of a parse fails in turn, ours and jansson's, once or from there on: the text
 * never counts as bad for it, and nothing is written where it should not be (the sanitizer looks).
 */
static void sweep(const char *text, size_t size)
{
    enum { ONCE, JANSSON_ONCE, JANSSON_FROM_HERE, N_WAYS };

    for (int way = 0; way < N_WAYS; way++) {
        enum ferry_status st = FERRY_ERR_NOMEM;
        uint64_t n_failed = 0;
        for (uint64_t n = 1; n < 500 && st != FERRY_OK; n++) {
            json_t *json = NULL;
            struct ferry_error err = {0};
            n_asked = 0;
            fail_at = way == ONCE ? 0 : n;
            fail_on = way == JANSSON_FROM_HERE;
            mem_fail_after(way == ONCE ? n : 0);
            st = json_parse(&json, text, size, 1000, "x.json", &err);
            mem_fail_after(0);
            fail_at = 0;
            fail_on = false;
            if (st != FERRY_OK && st != FERRY_ERR_NOMEM)
                fail_msg("way %d allocation %llu: %s", way, (unsigned long long)n, err.msg);
            assert_true((json != NULL) == (st == FERRY_OK));
            n_failed += st != FERRY_OK;
            json_decref(json);
        }
        assert_int_equal(st, FERRY_OK);
        assert_in_range(n_failed, 2, 400);
    }
}

static void test_no_memory(void **state)
{
    static const char *const TEXTS[] = {
        "{\"a\":[1,2.5,\"x\",{\"b\":null}],\"c\":true}",
        "{\"prompt\": \"0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef\"}",
        "{\"0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef\\u00e9\":1}",
        "[\"\\ud83d\\ude00\\n\\t\\\"0123456789abcdef0123456789abcdef\\\\0123456789abcdef\"]",
        "[0.12345678901234567890123456789012345678901234567890123456789012345678901234567890]",
        "[1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23,24,25,26,27,28,29,30]",
        "{\"a\":1,\"b\":1,\"c\":1,\"d\":1,\"e\":1,\"f\":1,\"g\":1,\"h\":1,\"i\":1,\"j\":1,\"k\":1}",
    };
    enum { LONG = 300000 };
    char *text = malloc(LONG);

    (void)state;
    assert_non_null(text);
    json_set_alloc_funcs(failing_alloc, mem_free);
    for (size_t i = 0; i < sizeof TEXTS / sizeof TEXTS[0]; i++)
        sweep(TEXTS[i], strlen(TEXTS[i]));
    /* Long strings: a buffer grows many times, or has to be large at once. */
    memset(text, 'x', LONG);
    memcpy(text, "{\"prompt\":\"", 11);
    memcpy(text + LONG - 2, "\"}", 2);
    sweep(text, LONG);
    memcpy(text + LONG / 2, "\\n", 2);
    sweep(text, LONG);
    json_set_alloc_funcs(malloc, free);
    free(text);
}

/* What is taken, and as what. */
static const struct {
    const char *text, *dump; /* NULL: refused */
} VALUES[] = {
    {" \t\r\n[ ]\n", "[]"},
    {"{ }", "{}"},
    {"[true,false,null]", "[true,false,null]"},
    {"[0,-0,-1,9223372036854775807,-9223372036854775808]",
     "[0,0,-1,9223372036854775807,-9223372036854775808]"},
    {"[0.5,1e2,-1.25E-1,1E+2]", "[0.5,100.0,-0.125,100.0]"},
    {"[1e-999]", "[0.0]"},
    {"[\"\\\"\\\\\\/\\b\\f\\n\\r\\t\"]", "[\"\\\"\\\\/\\b\\f\\n\\r\\t\"]"},
    {"[\"\\u0041\\u00e9\\u20AC\\uD83D\\uDE00\"]", "[\"A\xC3\xA9\xE2\x82\xAC\xF0\x9F\x98\x80\"]"},
    {"[\"\x7F\xC3\xA9\"]", "[\"\x7F\xC3\xA9\"]"},
    {"{\"\\u0061\":{\"b\\n\":[{\"c\":1}]},\"\":2}", "{\"a\":{\"b\\n\":[{\"c\":1}]},\"\":2}"},
    {"{\"\\u0061\":1,\"a\":2}", NULL},
    {"[9223372036854775808]", NULL},
    {"[-9223372036854775809]", NULL},
    {"[1e999]", NULL},
    {"[01]", NULL},
    {"[-]", NULL},
    {"[+1]", NULL},
    {"[1.]", NULL},
    {"[.5]", NULL},
    {"[1e]", NULL},
    {"[1e+]", NULL},
    {"[0x1]", NULL},
    {"[1 2]", NULL},
    {"[1,]", NULL},
    {"[,1]", NULL},
    {"[1", NULL},
    {"[", NULL},
    {"]", NULL},
    {"{\"a\"}", NULL},
    {"{\"a\":}", NULL},
    {"{\"a\":1,}", NULL},
    {"{a:1}", NULL},
    {"{\"a\":1]", NULL},
    {"[1}", NULL},
    {"[] []", NULL},
    {"[]x", NULL},
    {"\"a\"", NULL},
    {"1", NULL},
    {"[tru]", NULL},
    {"[truex]", NULL},
    {"[True]", NULL},
    {"['a']", NULL},
    {"[\"\\x\"]", NULL},
    {"[\"\\u12\"]", NULL},
    {"[\"\\u12G4\"]", NULL},
    {"[\"\\ud800\"]", NULL},
    {"[\"\\ud800\\u0041\"]", NULL},
    {"[\"\\ude00\"]", NULL},
    {"[\"\\u0000\"]", NULL},
    {"{\"\\u0000\":1}", NULL},
    {"[\"\n\"]", NULL},
    {"[\"\x1F\"]", NULL},
    {"[\"\xC3\"]", NULL},
    {"[\"\xED\xA0\x80\"]", NULL},
    {"[\"\xC0\x80\"]", NULL},
    {"[\"\\\xC3\xA9\"]", NULL},
    {"[\"", NULL},
    {"[\"\\", NULL},
    {"[\"\\u", NULL},
    {"[\"\\ud83d\\u", NULL},
    {"/**/[]", NULL},
    {"\xEF\xBB\xBF[]", NULL},
};

static void test_values(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof VALUES / sizeof VALUES[0]; i++) {
        struct ferry_error err = {0};
        json_t *json = NULL;
        size_t size = strlen(VALUES[i].text);
        char *exact = malloc(size); /* no byte behind it: the sanitizer sees a read too far */
        assert_non_null(exact);
        memcpy(exact, VALUES[i].text, size);
        enum ferry_status st = json_parse(&json, exact, size, 1000, "x.json", &err);
        free(exact);
        char *dump = json_dumps(json, JSON_COMPACT);
        if (st != (VALUES[i].dump != NULL ? FERRY_OK : FERRY_ERR_FORMAT) ||
            (dump != NULL) != (VALUES[i].dump != NULL) ||
            (dump != NULL && strcmp(dump, VALUES[i].dump) != 0))
            fail_msg("%s: %s, %s", VALUES[i].text, dump != NULL ? dump : "refused", err.msg);
        free(dump);
        json_decref(json);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_getters), cmocka_unit_test(test_rejected),
        cmocka_unit_test(test_counts),  cmocka_unit_test(test_brackets_in_strings),
        cmocka_unit_test(test_load),    cmocka_unit_test(test_no_memory),
        cmocka_unit_test(test_values),  cmocka_unit_test(test_zero_bytes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
