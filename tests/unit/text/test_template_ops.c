/* Operators on the values of chat templates. */
#include "render.h"

#include "text/template_lex.h"
#include "text/template_ops.h"

#include <math.h>

static void expect_int(struct test_run *t, int op, int64_t a, int64_t b, int64_t want)
{
    struct tpl_value x = tpl_int(a, true);
    struct tpl_value y = tpl_int(b, false);
    struct tpl_value ret;

    assert_true(tpl_binary(&t->run, op, &x, &y, &ret));
    assert_int_equal(ret.kind, TPL_INT);
    assert_true(ret.u.i == want);
    assert_false(ret.trusted);
}

static void integers_round_down(void **state)
{
    struct test_run t;

    (void)state;
    test_run_init(&t);
    expect_int(&t, TOKEN_FLOORDIV, 7, 2, 3);
    expect_int(&t, TOKEN_FLOORDIV, -7, 2, -4);
    expect_int(&t, TOKEN_FLOORDIV, 7, -2, -4);
    expect_int(&t, TOKEN_MOD, -7, 3, 2);
    expect_int(&t, TOKEN_MOD, 7, -3, -2);
    expect_int(&t, TOKEN_MOD, INT64_MIN, 3, 1);
    expect_int(&t, TOKEN_POW, -1, INT64_MAX, -1);
    expect_int(&t, TOKEN_POW, 2, 62, 4611686018427387904);
    test_run_fini(&t);
}

static void overflow_is_an_error(void **state)
{
    static const struct {
        int op;
        int64_t a;
        int64_t b;
    } CASES[] = {{TOKEN_ADD, INT64_MAX, 1}, {TOKEN_SUB, INT64_MIN, 1},
                 {TOKEN_MUL, INT64_MAX, 2}, {TOKEN_FLOORDIV, INT64_MIN, -1},
                 {TOKEN_POW, 3, 1000000},   {TOKEN_MOD, INT64_MIN, -1}};

    (void)state;
    for (size_t i = 0; i < COUNT_OF(CASES); i++) {
        struct test_run t;
        struct tpl_value x = tpl_int(CASES[i].a, true);
        struct tpl_value y = tpl_int(CASES[i].b, true);
        struct tpl_value ret;
        test_run_init(&t);
        assert_false(tpl_binary(&t.run, CASES[i].op, &x, &y, &ret));
        assert_int_equal(t.run.status, FERRY_ERR_LIMIT);
        test_run_fini(&t);
    }
}

static void compares_exactly(void **state)
{
    struct test_run t;
    struct tpl_value i = tpl_int(9007199254740993, false);
    struct tpl_value f = tpl_float(9007199254740992.0, false);
    struct tpl_value nan = tpl_float(NAN, false);
    int order = 5;

    (void)state;
    test_run_init(&t);
    assert_true(tpl_compare(&t.run, &i, &f, &order));
    assert_int_equal(order, 1);
    assert_true(tpl_compare(&t.run, &nan, &f, &order));
    assert_int_equal(order, 2);
    i = tpl_int(INT64_MAX, false);
    f = tpl_float(9223372036854775808.0, false);
    assert_true(tpl_compare(&t.run, &i, &f, &order));
    assert_int_equal(order, -1);
    test_run_fini(&t);
}

static void slices_as_python(void **state)
{
    (void)state;
    expect_rendered("{{ x[::-1] }}{{ x[1:-1] }}{{ x[-2:] }}{{ x[9:] }}{{ x[2:0:-1] }}",
                    "{'x':'äbcd'}", "dcbäbccdcb");
    expect_rendered("{{ x[::2] }}{{ x[-1] }}{{ x[9] }}", "{'x':[1,2,3]}", "[1, 3]3");
    expect_render_error("{{ x[::0] }}", "{'x':[1]}", FERRY_ERR_ARG, "step cannot be zero");
    expect_render_error("{{ x[1:] }}", "{'x':{}}", FERRY_ERR_ARG, "'dict' object cannot be sliced");
    expect_rendered("{{ x[-9223372036854775807:9223372036854775807:9223372036854775807] }}",
                    "{'x':'ab'}", "a");
}

static void sorts_stably(void **state)
{
    struct test_run t;
    struct tpl_value keys[] = {tpl_int(2, false), tpl_int(1, false), tpl_int(2, false),
                               tpl_int(0, false)};
    size_t order[4];

    (void)state;
    test_run_init(&t);
    assert_true(tpl_sort(&t.run, keys, 4, false, order));
    assert_true(order[0] == 3 && order[1] == 1 && order[2] == 0 && order[3] == 2);
    assert_true(tpl_sort(&t.run, keys, 4, true, order));
    assert_true(order[0] == 0 && order[1] == 2 && order[2] == 1 && order[3] == 3);
    test_run_fini(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(integers_round_down), cmocka_unit_test(overflow_is_an_error),
        cmocka_unit_test(compares_exactly),    cmocka_unit_test(slices_as_python),
        cmocka_unit_test(sorts_stably),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
