/* Values of chat templates as text: str, repr and JSON. */
#include "render.h"

#include "text/template_print.h"

#include <math.h>
#include <string.h>

static void doubles_are_as_short_as_they_can_be(void **state)
{
    static const struct {
        double f;
        const char *text;
    } CASES[] = {{0.1, "0.1"},
                 {100.0, "100.0"},
                 {1e16, "1e+16"},
                 {1e15, "1000000000000000.0"},
                 {1e-4, "0.0001"},
                 {1e-5, "1e-05"},
                 {-0.0, "-0.0"},
                 {1.0 / 3, "0.3333333333333333"},
                 {5e-324, "5e-324"},
                 {1e22, "1e+22"},
                 {1.5e300, "1.5e+300"},
                 {1.7976931348623157e308, "1.7976931348623157e+308"},
                 {123456789.125, "123456789.125"},
                 {INFINITY, "inf"},
                 {-INFINITY, "-inf"},
                 {NAN, "nan"}};
    char text[TPL_DOUBLE_TEXT];

    (void)state;
    for (size_t i = 0; i < COUNT_OF(CASES); i++) {
        tpl_double_text(CASES[i].f, text);
        assert_string_equal(text, CASES[i].text);
    }
}

static void prints_as_python(void **state)
{
    (void)state;
    expect_rendered("{{ x }}", "{'x':[1,null,true,1.5,'a',{'k':[]}]}",
                    "[1, None, True, 1.5, 'a', {'k': []}]");
    expect_rendered("{{ [\"it's\", 'a\"b', '\\n\\x7f\\u200b\\xe9'] }}", "{}",
                    "[\"it's\", 'a\"b', '\\n\\x7f\\u200b\303\251']");
    expect_rendered("{{ x }}|{{ [x] }}", "{}", "|[Undefined]");
}

static void writes_json_as_python(void **state)
{
    struct test_run t;
    struct tpl_value text = tpl_bytes("a\"\\\n\x01\303\251", 7, false);
    struct tpl_json_options options = {.ensure_ascii = true,
                                       .item_separator = tpl_text(", ", false),
                                       .key_separator = tpl_text(": ", false)};

    (void)state;
    test_run_init(&t);
    assert_true(tpl_json(&t.run, &t.out, &text, &options));
    struct tpl_value got = tpl_built(&t.out);
    expect_string_value(&got, "\"a\\\"\\\\\\n\\u0001\\u00e9\"");
    test_run_fini(&t);
    expect_rendered("{{ x|tojson(indent=2) }}", "{'x':{'a':[1],'b':{}}}",
                    "{\n  \"a\": [\n    1\n  ],\n  \"b\": {}\n}");
    expect_rendered("{{ x|tojson(sort_keys=true, separators=(',', ':')) }}", "{'x':{'b':1,'a':2}}",
                    "{\"a\":2,\"b\":1}");
    expect_render_error("{{ {(1, 2): 3}|tojson }}", "{}", FERRY_ERR_ARG, "keys must be");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(doubles_are_as_short_as_they_can_be),
        cmocka_unit_test(prints_as_python),
        cmocka_unit_test(writes_json_as_python),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
