/* Filters of chat templates. */
#include "render.h"

#include "text/template_filter.h"

static void finds_filters_by_name(void **state)
{
    (void)state;
    assert_true(tpl_filter_find("tojson", 6) >= 0);
    assert_int_equal(tpl_filter_find("tojso", 5), -1);
    assert_int_equal(tpl_filter_find("urlize", 6), -1);
}

static void change_texts_and_lists(void **state)
{
    (void)state;
    expect_rendered("{{ l|map(attribute='a.b')|join('-') }}", "{'l':[{'a':{'b':1}},{'a':{'b':2}}]}",
                    "1-2");
    expect_rendered("{{ l|selectattr('r', 'equalto', 'u')|list|length }}",
                    "{'l':[{'r':'u'},{'r':'a'},{'r':'u'}]}", "2");
    expect_rendered("{{ l|sort|join }}{{ l|unique|join }}{{ l|reverse|join }}{{ l|sum }}",
                    "{'l':[2,1,2]}",
                    "12221212"
                    "5");
    expect_rendered("{{ d|dictsort }}{{ d|items|list|length }}", "{'d':{'b':1,'a':2}}",
                    "[('a', 2), ('b', 1)]2");
    expect_rendered("{{ 'a\nb'|indent(2) }}{{ x|d('-') }}{{ ' a '|trim }}{{ 2.5|round }}", "{}",
                    "a\n  b-a2.0");
    expect_rendered("{{ '<'|e }}{{ ('<'|safe) + '>' }}", "{}", "&lt;<&gt;");
}

static void generators_are_read_once(void **state)
{
    (void)state;
    expect_rendered("{% set g = [1, 2]|map('string') %}{{ g|first }}{{ g|list }}{{ g|list }}", "{}",
                    "1['2'][]");
    expect_render_error("{{ [1]|map('string')|length }}", "{}", FERRY_ERR_ARG, "no len()");
    expect_render_error("{{ [1]|map('string') }}", "{}", FERRY_ERR_UNSUPPORTED, "|list");
}

static void check_their_arguments(void **state)
{
    (void)state;
    expect_render_error("{{ 1|default(1, 2, 3) }}", "{}", FERRY_ERR_ARG, "at most 2 arguments");
    expect_render_error("{{ 1|tojson(nope=1) }}", "{}", FERRY_ERR_ARG, "no argument 'nope'");
    expect_render_error("{{ [1]|map('nope')|list }}", "{}", FERRY_ERR_UNSUPPORTED, "map");
    expect_render_error("{{ ['a', 1]|sort }}", "{}", FERRY_ERR_ARG, "not supported between");
    expect_render_error("{{ x|tojson }}", "{}", FERRY_ERR_ARG, "not JSON serializable");
    expect_render_error("{{ 1.5|round(20) }}", "{}", FERRY_ERR_UNSUPPORTED, "20 digits");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(finds_filters_by_name),
        cmocka_unit_test(change_texts_and_lists),
        cmocka_unit_test(generators_are_read_once),
        cmocka_unit_test(check_their_arguments),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
