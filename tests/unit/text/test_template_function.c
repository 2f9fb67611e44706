/* Global functions of chat templates: ranges, namespaces, exceptions, the time. */
#include "render.h"

static void ranges_have_a_limit(void **state)
{
    (void)state;
    expect_rendered("{{ range(5, 0, -2)|list }}{{ range(3) }}{{ range(0)|length }}", "{}",
                    "[5, 3, 1]range(0, 3)0");
    expect_rendered("{{ range(9223372036854775806, 9223372036854775807)|list|length }}", "{}", "1");
    expect_render_error("{{ range(-9223372036854775807, 9223372036854775807) }}", "{}",
                        FERRY_ERR_LIMIT, "limit 100000");
    expect_render_error("{{ range(1, 2, 0) }}", "{}", FERRY_ERR_ARG, "must not be zero");
    expect_render_error("{{ range('a') }}", "{}", FERRY_ERR_ARG, "'str' object");
}

static void dicts_take_pairs_and_keywords(void **state)
{
    (void)state;
    expect_rendered("{{ dict([('a', 1)], b=2) }}{{ namespace({'q': 3}).q }}", "{}",
                    "{'a': 1, 'b': 2}3");
    expect_render_error("{{ dict([1]) }}", "{}", FERRY_ERR_ARG, "not iterable");
    expect_render_error("{{ dict([[1, 2, 3]]) }}", "{}", FERRY_ERR_ARG, "length 3");
    expect_render_error("{{ dict([[[1], 2]]) }}", "{}", FERRY_ERR_ARG, "unhashable");
}

static void tells_the_time_it_was_given(void **state)
{
    struct template_limits limits = {.now_s = 1764547200};
    struct rendered r = {0};

    (void)state;
    render("{{ strftime_now('%Y-%m-%d %B %-d %H:%M %j 100%%') }}", "{}", &limits, &r);
    assert_string_equal(r.text, "2025-12-01 December 1 00:00 335 100%");
    rendered_fini(&r);
    expect_render_error("{{ strftime_now('%Q') }}", "{}", FERRY_ERR_UNSUPPORTED, "%Q");
    expect_render_error("{{ strftime_now('%') }}", "{}", FERRY_ERR_UNSUPPORTED, "%");
    expect_render_error("{{ strftime_now(1) }}", "{}", FERRY_ERR_ARG, "one string");
}

static void exceptions_carry_their_message(void **state)
{
    (void)state;
    expect_render_error("{{ raise_exception('No ' ~ x) }}", "{'x':'wizards'}", FERRY_ERR_ARG,
                        "No wizards");
    expect_render_error("{{ raise_exception('a\\u001b[31m\nb') }}", "{}", FERRY_ERR_ARG,
                        "a?[31m?b");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ranges_have_a_limit),
        cmocka_unit_test(dicts_take_pairs_and_keywords),
        cmocka_unit_test(tells_the_time_it_was_given),
        cmocka_unit_test(exceptions_carry_their_message),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
