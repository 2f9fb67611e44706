/* String operations of chat templates: characters, blanks, splits, case. */
#include "render.h"

#include "text/template_text.h"

#include <string.h>

static void counts_characters(void **state)
{
    (void)state;
    assert_int_equal(tpl_count_chars("a\303\251\360\237\246\212", 7), 3);
    assert_int_equal(tpl_char_offset("a\303\251b", 4, 2), 3);
    assert_int_equal(tpl_char_offset("ab", 2, 9), 2);
    assert_int_equal(tpl_space_size(" \t\302\240\034x", 6), 5);
    assert_int_equal(tpl_rstrip_size("x \342\200\203\n", 6), 1);
    assert_int_equal(tpl_rstrip_size(" \n", 2), 0);
}

static void expect_case(struct test_run *t, enum tpl_case how, const char *text, const char *want)
{
    struct tpl_value s = tpl_text(text, true);
    struct tpl_value ret;

    assert_true(tpl_change_case(&t->run, &s, how, &ret));
    expect_string_value(&ret, want);
    assert_true(ret.trusted || ret.u.s.size == 0);
}

static void changes_case_by_unicode(void **state)
{
    struct test_run t;

    (void)state;
    test_run_init(&t);
    expect_case(&t, TPL_UPPER, "stra\303\237e", "STRASSE");
    expect_case(&t, TPL_LOWER, "\316\221\316\243 \316\243", "\316\261\317\202 \317\203");
    expect_case(&t, TPL_TITLE, "they're a1b", "They'Re A1B");
    expect_case(&t, TPL_TITLE_FILTER, "they're (ok) x-y", "They're (Ok) X-Y");
    expect_case(&t, TPL_CAPITALIZE, "hELLO wORLD", "Hello world");
    expect_case(&t, TPL_UPPER, "", "");
    expect_case(&t, TPL_UPPER, "@[`{az_9\177", "@[`{AZ_9\177");
    expect_case(&t, TPL_LOWER, "@[`{AZ_9\177", "@[`{az_9\177");
    test_run_fini(&t);
}

static void splits(void **state)
{
    struct test_run t;
    struct tpl_value s = tpl_text("a,,b", false);
    struct tpl_string comma = {.data = ",", .size = 1};
    struct tpl_value ret;

    (void)state;
    test_run_init(&t);
    assert_true(tpl_split(&t.run, &s, &comma, -1, &ret));
    assert_int_equal(ret.u.seq->n, 3);
    expect_string_value(&ret.u.seq->items[1], "");
    assert_true(tpl_rsplit(&t.run, &s, &comma, 1, &ret));
    assert_int_equal(ret.u.seq->n, 2);
    expect_string_value(&ret.u.seq->items[0], "a,");
    s = tpl_text("a\r\nb\rc\n", false);
    assert_true(tpl_splitlines(&t.run, &s, true, &ret));
    assert_int_equal(ret.u.seq->n, 3);
    expect_string_value(&ret.u.seq->items[0], "a\r\n");
    test_run_fini(&t);
}

static void asks_and_escapes(void **state)
{
    struct test_run t;
    struct tpl_value s = tpl_text("<a href='x'>&\"", false);
    struct tpl_string upper = {.data = "A1\303\211", .size = 4};
    struct tpl_string empty = {.data = "", .size = 0};
    struct tpl_value ret;

    (void)state;
    assert_true(tpl_ask(&upper, TPL_IS_UPPER));
    assert_false(tpl_ask(&upper, TPL_IS_ALPHA));
    assert_true(tpl_ask(&upper, TPL_IS_ALNUM));
    assert_false(tpl_ask(&empty, TPL_IS_SPACE));
    test_run_init(&t);
    assert_true(tpl_escape(&t.run, &s, &ret));
    expect_string_value(&ret, "&lt;a href=&#39;x&#39;&gt;&amp;&#34;");
    assert_true(tpl_escape(&t.run, &ret, &s));
    assert_ptr_equal(s.u.s.data, ret.u.s.data);
    test_run_fini(&t);
}

static void long_searches_cost_steps(void **state)
{
    struct test_run t;
    struct tpl_value s =
        tpl_text("aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", false);
    struct tpl_value a = tpl_text("a", false);
    struct tpl_value ret;

    (void)state;
    test_run_init(&t);
    t.run.steps_left = 10;
    assert_false(tpl_replace(&t.run, &s, &a, &s, -1, &ret));
    assert_int_equal(t.run.status, FERRY_ERR_LIMIT);
    test_run_fini(&t);
}

/* A list that is too large is refused by its number of pieces, before it is made; another one takes
 * its own memory only, however many pieces it has. */
static void splits_take_what_they_need(void **state)
{
    enum { N = 200000 };
    static char commas[N], lines[N], words[N];
    static const struct {
        const char *text;
        int how;
    } CASES[] = {{commas, 0}, {commas, 1}, {words, 2}, {words, 3}, {lines, 4}};

    (void)state;
    memset(commas, ',', N);
    memset(lines, '\n', N);
    for (size_t i = 0; i < N; i++)
        words[i] = i % 2 == 0 ? 'a' : ' ';
    for (size_t i = 0; i < COUNT_OF(CASES); i++) {
        struct tpl_string comma = {.data = ",", .size = 1};
        struct tpl_string *separator = CASES[i].how < 2 ? &comma : NULL;
        for (size_t limit = 1 << 20; limit <= 1 << 25; limit <<= 5) {
            size_t n = limit == 1 << 20 ? N : 4000; /* so much is split */
            struct tpl_value s = tpl_bytes(CASES[i].text, n, false);
            struct tpl_value ret;
            struct test_run t;
            test_run_init(&t);
            t.run.pool.limit = limit;
            t.run.steps_left = UINT64_MAX;
            bool done = CASES[i].how == 4       ? tpl_splitlines(&t.run, &s, false, &ret)
                        : CASES[i].how % 2 == 1 ? tpl_rsplit(&t.run, &s, separator, -1, &ret)
                                                : tpl_split(&t.run, &s, separator, -1, &ret);
            size_t used = t.run.pool.arena.used;
            if (done != (n == 4000) ||
                used > (done ? ret.u.seq->n * sizeof *ret.u.seq->items + 65536 : 65536))
                fail_msg("case %zu: %s, %zu bytes", i, done ? "split" : t.err.msg, used);
            if (!done)
                assert_int_equal(t.run.status, FERRY_ERR_LIMIT);
            test_run_fini(&t);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(counts_characters),
        cmocka_unit_test(changes_case_by_unicode),
        cmocka_unit_test(splits),
        cmocka_unit_test(asks_and_escapes),
        cmocka_unit_test(long_searches_cost_steps),
        cmocka_unit_test(splits_take_what_they_need),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
