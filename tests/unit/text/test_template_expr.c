/* Expressions of chat templates: precedence, what is refused and where. */
#include "render.h"

static void binds_as_jinja2_does(void **state)
{
    (void)state;
    expect_rendered("{{ 1 + 2 * 3 }} {{ 2 * 3 ** 2 }} {{ 2 ** 3 ** 2 }} {{ -2 ** 2 }}", "{}",
                    "7 18 64 4");
    expect_rendered("{{ 'a' ~ 2 * 3 }} {{ 10 - 2 - 3 }} {{ 7 // 2 * 2 }}", "{}", "a6 5 6");
}

static void reads_conditions_and_tuples(void **state)
{
    (void)state;
    expect_rendered("{{ 1 if 0 else 2 if 0 else 3 }}{{ 'a' if 0 }}", "{}", "3");
    expect_rendered("{{ 1, 2 }}{{ (1,) }}{{ () }}", "{}", "(1, 2)(1,)()");
    expect_rendered("{{ not 1 in [1] }} {{ 1 < 2 < 3 }} {{ 1 not in [2] }}", "{}",
                    "False True True");
    expect_rendered("{{ 4 is divisibleby 2 and x is not defined }}", "{}", "True");
}

static void refuses_with_line_and_name(void **state)
{
    (void)state;
    expect_create_error("\n\n{{ a | nope }}", FERRY_ERR_UNSUPPORTED,
                        "line 3: the filter 'nope' is not handled");
    expect_create_error("{{ a is nope }}", FERRY_ERR_UNSUPPORTED, "the test 'nope'");
    expect_create_error("{{ lipsum() }}", FERRY_ERR_UNSUPPORTED, "'lipsum'");
    expect_create_error("{{ a[1, 2] }}", FERRY_ERR_UNSUPPORTED, "subscript");
    expect_create_error("{{ f(a=1, 2) }}", FERRY_ERR_FORMAT, "wrong order");
    expect_create_error("{{ a is b is c }}", FERRY_ERR_UNSUPPORTED, "'b'");
    expect_create_error("{{ 1 is odd is even }}", FERRY_ERR_FORMAT, "chained");
    expect_create_error("{{ a. }}", FERRY_ERR_FORMAT, "a name or number");
    expect_create_error("{{ }}", FERRY_ERR_FORMAT, "an expression");
    expect_create_error("{% set none = 1 %}", FERRY_ERR_FORMAT, "cannot assign to 'none'");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(binds_as_jinja2_does),
        cmocka_unit_test(reads_conditions_and_tuples),
        cmocka_unit_test(refuses_with_line_and_name),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
