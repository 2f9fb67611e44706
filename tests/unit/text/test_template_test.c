/* Tests of chat templates: what stands behind is. */
#include "render.h"

#include "text/template_test.h"

static void finds_tests_by_name(void **state)
{
    (void)state;
    assert_true(tpl_test_find("defined", 7) >= 0);
    assert_true(tpl_test_find("==", 2) >= 0);
    assert_int_equal(tpl_test_find("escaped", 7), -1);
}

static void tell_kinds_apart(void **state)
{
    (void)state;
    expect_rendered("{{ x is defined }}{{ y is defined }}{{ x is none }}{{ x is string }}",
                    "{'x':null}", "TrueFalseTrueFalse");
    expect_rendered(
        "{{ {} is mapping }}{{ [] is mapping }}{{ {} is sequence }}{{ 'a' is iterable }}", "{}",
        "TrueFalseTrueTrue");
    expect_rendered("{{ true is integer }}{{ 1 is number }}{{ 1.5 is float }}{{ 1 is boolean }}",
                    "{}", "FalseTrueTrueFalse");
    expect_rendered("{{ y is sequence }}{{ y is iterable }}{{ y is none }}", "{}", "TrueTrueFalse");
}

static void compare(void **state)
{
    (void)state;
    expect_rendered("{{ 3 is odd }}{{ 3 is divisibleby 3 }}{{ 1 is in [1] }}{{ 'a' is eq 'a' }}",
                    "{}", "TrueTrueTrueTrue");
    expect_render_error("{{ 'a' is odd }}", "{}", FERRY_ERR_UNSUPPORTED, "%");
    expect_render_error("{{ 1 is eq }}", "{}", FERRY_ERR_ARG, "'eq' takes 1 arguments (0 given)");
    expect_render_error("{{ 1 is defined(2) }}", "{}", FERRY_ERR_ARG, "'defined' takes 0");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(finds_tests_by_name),
        cmocka_unit_test(tell_kinds_apart),
        cmocka_unit_test(compare),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
