/* Methods of chat templates, and the members of loops and namespaces. */
#include "render.h"

#include "text/template_method.h"

#include <string.h>

static void strings_have_pythons_methods(void **state)
{
    (void)state;
    expect_rendered("{{ 'a</t>b'.split('</t>')[-1].lstrip('b') }}|{{ x.strip() }}", "{'x':' u '}",
                    "|u");
    expect_rendered("{{ 'abc'.startswith(('x', 'a')) }}{{ 'abc'.endswith('b', 0, 2) }}", "{}",
                    "TrueTrue");
    expect_rendered("{{ 'äb'.find('b') }}{{ 'banana'.rfind('an') }}{{ 'aa'.count('a') }}", "{}",
                    "132");
    expect_rendered("{{ '-'.join(['a', 'b']) }}{{ 'a-b'.partition('-') }}", "{}",
                    "a-b('a', '-', 'b')");
    expect_rendered("{{ '{} {0}'.replace('0', 'x').format('a', x='b') }}", "{}", "a b");
}

static void dicts_and_lists_cannot_be_changed(void **state)
{
    (void)state;
    expect_rendered("{{ d.items()|list }}{{ d.get('z', 1) }}{{ d.keys()|list }}", "{'d':{'a':1}}",
                    "[('a', 1)]1['a']");
    expect_render_error("{{ l.append(1) }}", "{'l':[]}", FERRY_ERR_ARG, "unsafe");
    expect_render_error("{{ d.pop('a') }}", "{'d':{'a':1}}", FERRY_ERR_ARG, "unsafe");
    expect_rendered("{{ d['items'] }}", "{'d':{'items':1}}", "1");
}

static void refuses_what_it_does_not_handle(void **state)
{
    (void)state;
    expect_render_error("{{ 'a'.encode() }}", "{}", FERRY_ERR_UNSUPPORTED, "str.encode");
    expect_render_error("{{ '{:>5}'.format(1) }}", "{}", FERRY_ERR_UNSUPPORTED, "{:>5}");
    expect_render_error("{{ 'a'.strip(1) }}", "{}", FERRY_ERR_ARG, "must be str, not int");
    expect_render_error("{{ 'a'.split('') }}", "{}", FERRY_ERR_ARG, "empty separator");
    expect_render_error("{{ 'a'.upper(1) }}", "{}", FERRY_ERR_ARG, "no arguments");
}

static void binds_arguments(void **state)
{
    static const char *const NAMES[] = {"a", "b"};
    struct test_run t;
    struct tpl_value values[] = {tpl_int(1, false), tpl_int(2, false), tpl_int(3, false)};
    struct tpl_keyword keyword = {tpl_text("b", false), tpl_int(4, false)};
    struct tpl_value ret[2];
    struct tpl_args args = {.values = values, .n = 1, .keywords = &keyword, .n_keywords = 1};

    (void)state;
    test_run_init(&t);
    assert_true(tpl_bind(&t.run, &args, "f", NAMES, 2, ret));
    assert_int_equal(ret[0].u.i, 1);
    assert_int_equal(ret[1].u.i, 4);
    args.n = 2;
    assert_false(tpl_bind(&t.run, &args, "f", NAMES, 2, ret));
    assert_non_null(strstr(t.err.msg, "several values for 'b'"));
    test_run_fini(&t);
}

static void loops_know_where_they_are(void **state)
{
    (void)state;
    expect_rendered("{% for a in 'xy' %}{{ loop.previtem }}{{ a }}{{ loop.nextitem }}"
                    "{{ loop.cycle(1, 2) }}{{ loop.revindex0 }} {% endfor %}",
                    "{}", "xy11 xy20 ");
    expect_rendered("{% for a in [1, 1, 2] %}{{ loop.changed(a) }}{% endfor %}", "{}",
                    "TrueFalseTrue");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(strings_have_pythons_methods),
        cmocka_unit_test(dicts_and_lists_cannot_be_changed),
        cmocka_unit_test(refuses_what_it_does_not_handle),
        cmocka_unit_test(binds_arguments),
        cmocka_unit_test(loops_know_where_they_are),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
