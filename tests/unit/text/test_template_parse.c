/* Tags of chat templates: which there are, which are refused, where they end. */
#include "render.h"

static void knows_its_tags(void **state)
{
    (void)state;
    expect_rendered("{% if 0 %}a{% elif 1 %}b{% else %}c{% endif %}", "{}", "b");
    expect_rendered("{% with a = 1, b = 2 %}{{ a + b }}{% endwith %}", "{}", "3");
    expect_rendered("{% filter upper %}a{% endfilter %}", "{}", "A");
    expect_rendered("{% generation %}a{% endgeneration %}", "{}", "a");
    expect_rendered("{% set x | upper %}a{% endset %}{{ x }}", "{}", "A");
}

static void refuses_other_tags_by_name(void **state)
{
    static const char *const TAGS[] = {
        "include 'x'", "import 'x' as y", "from 'x' import y", "extends 'x'", "block a",
        "do a",        "autoescape true", "print 1",           "trans",       "debug"};
    char source[64];

    (void)state;
    for (size_t i = 0; i < COUNT_OF(TAGS); i++) {
        (void)snprintf(source, sizeof source, "\n{%% %s %%}", TAGS[i]);
        expect_create_error(source, FERRY_ERR_UNSUPPORTED, "line 2: the tag '");
    }
    expect_create_error("{% for a in b recursive %}{% endfor %}", FERRY_ERR_UNSUPPORTED,
                        "recursive");
    expect_create_error("{% nope %}", FERRY_ERR_FORMAT, "found 'nope'");
}

static void wants_blocks_closed(void **state)
{
    (void)state;
    expect_create_error("a\n{% if 1 %}\nb", FERRY_ERR_FORMAT, "begun in line 2");
    expect_create_error("{% endif %}", FERRY_ERR_FORMAT, "found 'endif'");
    expect_create_error("{% if 1 %}{% endfor %}", FERRY_ERR_FORMAT, "found 'endfor'");
    expect_create_error("{% break %}", FERRY_ERR_FORMAT, "outside of a loop");
    expect_create_error("{% for a in b %}{% macro m() %}{% break %}{% endmacro %}{% endfor %}",
                        FERRY_ERR_FORMAT, "outside of a loop");
    expect_create_error("{% macro m(a=1, b) %}{% endmacro %}", FERRY_ERR_FORMAT, "without default");
    expect_create_error("{% for loop in a %}{% endfor %}", FERRY_ERR_FORMAT, "'loop'");
    expect_create_error("{% call 1 %}{% endcall %}", FERRY_ERR_FORMAT, "a call");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(knows_its_tags),
        cmocka_unit_test(refuses_other_tags_by_name),
        cmocka_unit_test(wants_blocks_closed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
