/* JSON limits, messages and typed look-ups. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/alloc.h"
#include "file/json.h"
#include "make.h"

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

static void test_no_memory(void **state)
{
    static const char TEXT[] = "{\"a\":[1,2.5,\"x\",{\"b\":null}],\"c\":true}";
    enum ferry_status st = FERRY_ERR_NOMEM;
    uint64_t n_failed = 0;

    (void)state;
    json_set_alloc_funcs(mem_alloc, mem_free);
    for (uint64_t n = 1; n < 200 && st != FERRY_OK; n++) {
        json_t *json = NULL;
        struct ferry_error err = {0};
        mem_fail_after(n);
        st = parse(TEXT, &json, &err);
        mem_fail_after(0);
        /* jansson reports some failed allocations as bad syntax. */
        if (st != FERRY_OK && st != FERRY_ERR_NOMEM && st != FERRY_ERR_FORMAT)
            fail_msg("allocation %llu: %s", (unsigned long long)n, err.msg);
        n_failed += st != FERRY_OK;
        json_decref(json);
    }
    json_set_alloc_funcs(malloc, free);
    assert_int_equal(st, FERRY_OK);
    assert_in_range(n_failed, 10, 100);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_getters), cmocka_unit_test(test_rejected),
        cmocka_unit_test(test_counts),  cmocka_unit_test(test_brackets_in_strings),
        cmocka_unit_test(test_load),    cmocka_unit_test(test_no_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
