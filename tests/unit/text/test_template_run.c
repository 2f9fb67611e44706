/* Running chat templates: scopes, loops, macros, lines of errors. */
#include "render.h"

static void loops_have_scopes_of_their_own(void **state)
{
    (void)state;
    expect_rendered(
        "{% set x = 1 %}{% for i in [1, 2] %}{% set x = x + i %}{{ x }}{% endfor %}{{ x }}", "{}",
        "231");
    expect_rendered("{% set n = namespace(x=1) %}{% for i in [1, 2] %}{% set n.x = n.x + i %}"
                    "{% endfor %}{{ n.x }}",
                    "{}", "4");
    expect_rendered("{% if 1 %}{% set x = 5 %}{% endif %}{{ x }}", "{}", "5");
}

static void loops_count_and_jump(void **state)
{
    (void)state;
    expect_rendered("{% for a in l if a > 1 %}{{ loop.index }}{{ a }}{{ loop.last }} {% endfor %}",
                    "{'l':[1,2,3]}", "12False 23True ");
    expect_rendered("{% for a in l %}{% if a == 2 %}{% continue %}{% endif %}{% if a == 4 %}"
                    "{% break %}{% endif %}{{ a }}{% endfor %}",
                    "{'l':[1,2,3,4,5]}", "13");
    expect_rendered("{% for a in [] %}x{% else %}none{% endfor %}", "{}", "none");
    expect_rendered("{% for k, (a, b) in [(1, (2, 3))] %}{{ k }}{{ a }}{{ b }}{% endfor %}", "{}",
                    "123");
}

static void macros_take_arguments(void **state)
{
    static const char M[] = "{% macro m(a, b=a) %}{{ a }}-{{ b }};{% endmacro %}";
    char source[256];

    (void)state;
    (void)snprintf(source, sizeof source, "%s{{ m(1) }}{{ m(1, b=2) }}{{ m(b=3) }}{{ m(*[4, 5]) }}",
                   M);
    expect_rendered(source, "{}", "1-1;1-2;-3;4-5;");
    (void)snprintf(source, sizeof source, "%s\n{{ m(1, 2, 3) }}", M);
    expect_render_error(source, "{}", FERRY_ERR_ARG, "line 2: macro 'm' takes not more than 2");
    (void)snprintf(source, sizeof source, "%s{{ m(c=1) }}", M);
    expect_render_error(source, "{}", FERRY_ERR_ARG, "no keyword argument 'c'");
    (void)snprintf(source, sizeof source, "%s{{ m(1, a=1) }}", M);
    expect_render_error(source, "{}", FERRY_ERR_ARG, "several values for 'a'");
    expect_rendered("{% macro m() %}<{{ caller(1) }}>{% endmacro %}{% call(x) m() %}{{ x }}"
                    "{% endcall %}",
                    "{}", "<1>");
}

static void names_the_line_of_an_error(void **state)
{
    (void)state;
    expect_render_error("a\n{{ x.y }}", "{}", FERRY_ERR_ARG, "line 2: 'x' is undefined");
    expect_render_error("{{ x.y.z }}", "{'x':{}}", FERRY_ERR_ARG,
                        "'dict object' has no attribute 'y'");
    expect_render_error("{% for a in 5 %}{% endfor %}", "{}", FERRY_ERR_ARG,
                        "'int' object is not iterable");
    expect_render_error("{{ f() }}", "{'f':1}", FERRY_ERR_ARG, "'int' object is not callable");
    expect_render_error("{% set a, b = [1] %}", "{}", FERRY_ERR_ARG, "not enough values");
    expect_render_error("{% set x.a = 1 %}", "{'x':{}}", FERRY_ERR_ARG, "non-namespace");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(loops_have_scopes_of_their_own),
        cmocka_unit_test(loops_count_and_jump),
        cmocka_unit_test(macros_take_arguments),
        cmocka_unit_test(names_the_line_of_an_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
