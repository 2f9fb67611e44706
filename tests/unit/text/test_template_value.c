/* Values of chat templates: strings that know their writers, dicts, memory and steps. */
#include "render.h"

#include "base/limits.h"
#include "text/template_value.h"

#include <string.h>

static void builders_keep_the_writer_of_each_byte(void **state)
{
    struct test_run t;
    struct tpl_value text = tpl_text("user", false);
    struct tpl_builder all = {0};

    (void)state;
    test_run_init(&t);
    assert_true(tpl_put(&t.run, &t.out, "<a>", 3, true));
    assert_true(tpl_put_string(&t.run, &t.out, &text));
    struct tpl_value mixed = tpl_built(&t.out);
    assert_non_null(mixed.u.s.mask);
    assert_true(tpl_is_trusted(&mixed, 2));
    assert_false(tpl_is_trusted(&mixed, 3));
    struct tpl_value sub = tpl_sub(&mixed, 2, 5);
    expect_string_value(&sub, ">us");
    assert_true(tpl_is_trusted(&sub, 0));
    assert_false(tpl_is_trusted(&sub, 1));
    assert_true(tpl_put(&t.run, &all, "b", 1, true));
    struct tpl_value whole = tpl_built(&all);
    assert_null(whole.u.s.mask);
    assert_true(whole.trusted);
    test_run_fini(&t);
}

static void dicts_keep_their_order(void **state)
{
    struct test_run t;
    char name[24];
    bool ok;

    (void)state;
    test_run_init(&t);
    struct tpl_dict *dict = tpl_dict_new(&t.run, 0);
    for (int round = 0; round < 2; round++) {
        for (int i = 0; i < 50; i++) {
            (void)snprintf(name, sizeof name, "k%d", i);
            char *copy = tpl_get(&t.run, sizeof name);
            memcpy(copy, name, sizeof name);
            struct tpl_value key = tpl_text(copy, false);
            struct tpl_value value = tpl_int(i + round, false);
            assert_true(tpl_dict_set(&t.run, dict, &key, &value));
        }
    }
    assert_int_equal(dict->n, 50);
    expect_string_value(&dict->keys[7], "k7");
    struct tpl_value one = tpl_text("k7", false);
    assert_int_equal(tpl_dict_find(&t.run, dict, &one, &ok)->u.i, 8);
    struct tpl_value number = tpl_int(7, false);
    assert_null(tpl_dict_find(&t.run, dict, &number, &ok));
    assert_true(ok);
    test_run_fini(&t);
}

static void memory_steps_and_depth_end(void **state)
{
    struct test_run t;

    (void)state;
    test_run_init(&t);
    t.run.pool.limit = 1 << 16;
    while (tpl_get(&t.run, 1000) != NULL)
        ;
    assert_int_equal(t.run.status, FERRY_ERR_LIMIT);
    assert_true(t.run.pool.arena.used <= 1 << 16);
    test_run_fini(&t);
    test_run_init(&t);
    assert_null(tpl_array(&t.run, SIZE_MAX / 2, 3));
    assert_int_equal(t.run.status, FERRY_ERR_LIMIT);
    test_run_fini(&t);
    test_run_init(&t);
    assert_true(tpl_work(&t.run, 999999));
    assert_false(tpl_work(&t.run, 2));
    assert_int_equal(t.run.status, FERRY_ERR_LIMIT);
    test_run_fini(&t);
    test_run_init(&t);
    for (int i = 0; i < LIMIT_TEMPLATE_RUN_DEPTH; i++)
        assert_true(tpl_enter(&t.run));
    assert_false(tpl_enter(&t.run));
    test_run_fini(&t);
}

static void the_first_error_stays(void **state)
{
    struct test_run t;

    (void)state;
    test_run_init(&t);
    t.run.line = 7;
    assert_false(tpl_fail(&t.run, FERRY_ERR_ARG, "one %d", 1));
    assert_false(tpl_fail(&t.run, FERRY_ERR_LIMIT, "two"));
    assert_int_equal(t.run.status, FERRY_ERR_ARG);
    assert_string_equal(t.err.msg, "chat template line 7: one 1");
    test_run_fini(&t);
}

/* What cannot fit is not begun. */
static void repeats_are_measured_first(void **state)
{
    static const uint64_t TIMES[] = {(uint64_t)1 << 24, 10000000000, UINT64_MAX};
    struct tpl_value ab = tpl_text("ab", true);

    (void)state;
    for (size_t i = 0; i < COUNT_OF(TIMES); i++) {
        struct test_run t;
        struct tpl_builder b = {0};
        test_run_init(&t);
        t.run.steps_left = UINT64_MAX;
        assert_false(tpl_put_times(&t.run, &b, &ab, TIMES[i]));
        assert_int_equal(t.run.status, FERRY_ERR_LIMIT);
        assert_in_range(t.run.pool.arena.used, 0, 65536);
        assert_int_equal(b.size, 0);
        test_run_fini(&t);
    }
    for (size_t n = 0; n < 70; n++) {
        struct test_run t;
        struct tpl_builder b = {0};
        char want[200] = "x";
        test_run_init(&t);
        assert_true(tpl_put(&t.run, &b, "x", 1, false));
        assert_true(tpl_put_times(&t.run, &b, &ab, n));
        for (size_t i = 0; i < n; i++)
            memcpy(want + 1 + 2 * i, "ab", 3);
        struct tpl_value s = tpl_built(&b);
        expect_string_value(&s, want);
        for (size_t i = 0; i < s.u.s.size; i++)
            assert_int_equal(tpl_is_trusted(&s, i), i > 0);
        test_run_fini(&t);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(builders_keep_the_writer_of_each_byte),
        cmocka_unit_test(dicts_keep_their_order),
        cmocka_unit_test(memory_steps_and_depth_end),
        cmocka_unit_test(the_first_error_stays),
        cmocka_unit_test(repeats_are_measured_first),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
