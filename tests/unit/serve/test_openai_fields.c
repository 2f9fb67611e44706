/* Typed look-ups: absent, null, wrong, too small, too large. */
#include "ask.h"

#include "base/alloc.h"
#include "serve/openai_fields.h"

#include <string.h>

static json_t *object;
static struct openai_error err;
static struct fields fields;

static int set_up(void **state)
{
    static const char TEXT[] =
        "{\"i\":5,\"r\":0.5,\"t\":true,\"s\":\"x\",\"z\":null,\"a\":[1,2,299],\"o\":{},"
        "\"neg\":[1,-1],\"big\":[300],\"odd\":[1,2.0],\"none\":[],\"max\":[2147483647]}";
    (void)state;
    object = read_json(TEXT, strlen(TEXT));
    fields = (struct fields){object, "p[0].", &err};
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    json_decref(object);
    return 0;
}

static void expect_error(enum ferry_status got, enum ferry_status wanted, const char *param,
                         const char *message)
{
    assert_int_equal(got, wanted);
    assert_string_equal(err.param, param);
    assert_string_equal(err.message, message);
}

static void test_numbers(void **state)
{
    int64_t i = 9;
    size_t n = 9;
    float r = 9;

    (void)state;
    assert_int_equal(field_int(&fields, "absent", 0, 1, &i), FERRY_OK);
    assert_int_equal(field_int(&fields, "z", 0, 1, &i), FERRY_OK);
    assert_int_equal(field_size(&fields, "z", 0, 1, &n), FERRY_OK);
    assert_int_equal(field_real(&fields, "z", 0, 1, &r), FERRY_OK);
    assert_true(i == 9 && n == 9 && r == 9);
    expect_error(field_int(&fields, "i", 6, 8, &i), FERRY_ERR_ARG, "p[0].i",
                 "p[0].i is 5; it must be in [6, 8]");
    expect_error(field_size(&fields, "i", 0, 4, &n), FERRY_ERR_ARG, "p[0].i",
                 "p[0].i is 5; it must be in [0, 4]");
    expect_error(field_int(&fields, "r", 0, 8, &i), FERRY_ERR_ARG, "p[0].r",
                 "p[0].r must be an integer, not a real number");
    expect_error(field_real(&fields, "i", -2, 2, &r), FERRY_ERR_ARG, "p[0].i",
                 "p[0].i is 5; it must be in [-2, 2]");
    expect_error(field_real(&fields, "s", 0, 1, &r), FERRY_ERR_ARG, "p[0].s",
                 "p[0].s must be a number, not a string");
    assert_true(i == 9 && n == 9 && r == 9);
    assert_int_equal(field_int(&fields, "i", 5, 5, &i), FERRY_OK);
    assert_int_equal(field_size(&fields, "i", 5, 5, &n), FERRY_OK);
    assert_int_equal(field_real(&fields, "r", 0.5, 0.5, &r), FERRY_OK);
    assert_true(i == 5 && n == 5 && r == 0.5F);
    assert_int_equal(field_real(&fields, "i", 0, 10, &r), FERRY_OK);
    assert_true(r == 5);
}

static void test_others(void **state)
{
    bool flag = false;
    const char *text = NULL;
    json_t *value = NULL;

    (void)state;
    assert_int_equal(field_bool(&fields, "t", &flag), FERRY_OK);
    assert_true(flag);
    expect_error(field_bool(&fields, "i", &flag), FERRY_ERR_ARG, "p[0].i",
                 "p[0].i must be true or false, not an integer");
    assert_int_equal(field_string(&fields, "z", &text), FERRY_OK);
    assert_null(text);
    assert_int_equal(field_string(&fields, "s", &text), FERRY_OK);
    assert_string_equal(text, "x");
    expect_error(field_string(&fields, "a", &text), FERRY_ERR_ARG, "p[0].a",
                 "p[0].a must be a string, not an array");
    assert_int_equal(field_array(&fields, "a", 3, &value), FERRY_OK);
    assert_int_equal(json_array_size(value), 3);
    expect_error(field_array(&fields, "a", 2, &value), FERRY_ERR_LIMIT, "p[0].a",
                 "p[0].a has 3 items; the most are 2");
    expect_error(field_array(&fields, "o", 2, &value), FERRY_ERR_ARG, "p[0].o",
                 "p[0].o must be an array, not an object");
    assert_int_equal(field_object(&fields, "o", &value), FERRY_OK);
    assert_true(json_is_object(value));
    expect_error(field_object(&fields, "t", &value), FERRY_ERR_ARG, "p[0].t",
                 "p[0].t must be an object, not a boolean");
    assert_null(field_get(&fields, "z"));
}

static void test_ids(void **state)
{
    int32_t *ids = NULL;
    size_t n = 0;

    (void)state;
    assert_int_equal(field_ids(&fields, "a", field_get(&fields, "a"), 300, &ids, &n), FERRY_OK);
    assert_int_equal(n, 3);
    assert_int_equal(ids[2], 299);
    mem_free(ids);
    assert_int_equal(field_ids(&fields, "none", field_get(&fields, "none"), 300, &ids, &n),
                     FERRY_OK);
    assert_null(ids);
    assert_int_equal(n, 0);
    expect_error(field_ids(&fields, "neg", field_get(&fields, "neg"), 300, &ids, &n), FERRY_ERR_ARG,
                 "p[0].neg[1]", "p[0].neg[1] is -1; ids are in [0, 300)");
    expect_error(field_ids(&fields, "big", field_get(&fields, "big"), 300, &ids, &n), FERRY_ERR_ARG,
                 "p[0].big[0]", "p[0].big[0] is 300; ids are in [0, 300)");
    expect_error(field_ids(&fields, "max", field_get(&fields, "max"), 0, &ids, &n), FERRY_ERR_ARG,
                 "p[0].max[0]", "p[0].max[0] is 2147483647; ids are in [0, 2147483647)");
    expect_error(field_ids(&fields, "odd", field_get(&fields, "odd"), 300, &ids, &n), FERRY_ERR_ARG,
                 "p[0].odd[1]", "p[0].odd[1] must be a token id, not a real number");
    mem_fail_after(1);
    assert_int_equal(field_ids(&fields, "a", field_get(&fields, "a"), 300, &ids, &n),
                     FERRY_ERR_NOMEM);
    mem_fail_after(0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_numbers),
        cmocka_unit_test(test_others),
        cmocka_unit_test(test_ids),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
