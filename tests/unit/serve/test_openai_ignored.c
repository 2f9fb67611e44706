/* Names for the header: joined, cut, cleaned, refused. */
#include "../unit.h"

#include "base/alloc.h"
#include "serve/openai_ignored.h"
#include "serve/openai_request.h"

#include <string.h>

static void add(struct openai_ignored *ignored, const char *prefix, const char *name)
{
    assert_int_equal(openai_ignored_add(ignored, prefix, name, NULL), FERRY_OK);
}

static void expect_taken_names(struct openai_ignored *ignored, const char *wanted)
{
    char *names = NULL;

    assert_int_equal(openai_ignored_take(ignored, &names, NULL), FERRY_OK);
    assert_string_equal(names, wanted);
    mem_free(names);
    openai_ignored_fini(ignored);
}

static void test_join(void **state)
{
    struct openai_ignored ignored = {0};
    char *names = (char *)(uintptr_t)1;

    (void)state;
    assert_int_equal(openai_ignored_take(&ignored, &names, NULL), FERRY_OK);
    assert_null(names);
    add(&ignored, "", "top_a");
    add(&ignored, "kwargs.", "x-1");
    expect_taken_names(&ignored, "top_a, kwargs.x-1");
}

/* A name must not end the header or become two. */
static void test_hostile(void **state)
{
    struct openai_ignored ignored = {0};
    char name[200];
    char wanted[200] = "a????X?1, ";

    (void)state;
    add(&ignored, "", "a\r\n, X:1");
    memset(name, 'n', sizeof name - 1);
    name[sizeof name - 1] = 0;
    add(&ignored, "", name);
    memset(wanted + 10, 'n', 64);
    expect_taken_names(&ignored, wanted);
}

static void test_many(void **state)
{
    struct openai_ignored ignored = {0};
    char wanted[3 * OPENAI_IGNORED_MAX + 4];

    (void)state;
    for (size_t i = 0; i < 1000; i++)
        add(&ignored, "", "x");
    for (size_t i = 0; i < OPENAI_IGNORED_MAX; i++)
        memcpy(wanted + 3 * i, "x, ", 3);
    memcpy(wanted + (size_t)3 * OPENAI_IGNORED_MAX, "...", 4);
    expect_taken_names(&ignored, wanted);
}

static void test_strict(void **state)
{
    struct openai_ignored ignored = {.strict = true};
    struct openai_error err = {0};

    (void)state;
    assert_int_equal(openai_ignored_add(&ignored, "p.", "tmeperature", &err),
                     FERRY_ERR_UNSUPPORTED);
    assert_string_equal(err.param, "p.tmeperature");
    assert_int_equal(err.http, 400);
    openai_ignored_fini(&ignored);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_join),
        cmocka_unit_test(test_hostile),
        cmocka_unit_test(test_many),
        cmocka_unit_test(test_strict),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
