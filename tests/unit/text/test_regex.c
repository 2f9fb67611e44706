/* Iteration as the reference does it, stand-ins for new characters, limits, no memory. */
#include "../unit.h"

#include "base/alloc.h"
#include "text/regex.h"

#include <string.h>

/* Expects the matches of pattern in text, each in brackets: "a[b]c". */
static void expect(const char *pattern, const char *text, const char *want)
{
    struct regex *regex = NULL;
    struct regex_matcher *matcher = NULL;
    struct regex_cursor cursor = {0};
    struct ferry_error err = {0};
    char got[512] = "";
    size_t used = 0;
    size_t done = 0;
    size_t start;
    size_t end;

    if (regex_create(&regex, pattern, strlen(pattern), &err) != FERRY_OK)
        fail_msg("%s", err.msg);
    assert_int_equal(regex_matcher_create(&matcher, NULL), FERRY_OK);
    while (regex_next(regex, matcher, text, strlen(text), &cursor, &start, &end, NULL) ==
           FERRY_OK) {
        used += (size_t)snprintf(got + used, sizeof got - used, "%.*s[%.*s]", (int)(start - done),
                                 text + done, (int)(end - start), text + start);
        done = end;
    }
    (void)snprintf(got + used, sizeof got - used, "%s", text + done);
    assert_string_equal(got, want);
    regex_matcher_destroy(matcher);
    regex_destroy(regex);
}

static void iterates_as_the_reference(void **state)
{
    (void)state;
    expect("b+", "abbcb", "a[bb]c[b]");
    expect("x*", "axxb", "[]a[xx]b[]");
}

static void patterns_of_the_families(void **state)
{
    (void)state;
    expect("\\s+(?!\\S)|\\s+", "a   b  ", "a[  ][ ]b[  ]");
    expect("(?i:'s|'t|'ll)", "It'S we'LL '\xC5\xBF", "It['S] we['LL] ['\xC5\xBF]");
    expect("[^\\r\\n\\p{L}\\p{N}]?\\p{L}+", " hi\tyou \xE4\xBD\xA0", "[ hi][\tyou][ \xE4\xBD\xA0]");
    expect("\\p{N}{1,3}", "12345", "[123][45]");
    expect("^a", "a\na", "[a]\n[a]");
    expect("a.c", "a\nc abc", "a\nc [abc]");
}

static void characters_newer_than_the_tables(void **state)
{
    (void)state;
    /* U+31350 (CJK, Unicode 15) is a letter; U+180E is no space. */
    expect("\\p{L}+", "a\xF0\xB1\x8D\x90z", "[a\xF0\xB1\x8D\x90z]");
    expect("\\s+", " \xE1\xA0\x8E ", "[ ]\xE1\xA0\x8E[ ]");
    expect("\\p{Han}", "\xF0\xB1\x8D\x90", "[\xF0\xB1\x8D\x90]");
}

static void literals_are_quoted(void **state)
{
    struct regex *regex = NULL;
    struct regex_matcher *matcher = NULL;
    struct regex_cursor cursor = {0};
    size_t start = 0;
    size_t end = 0;
    const char *text = "x.*+?()[]{}|^$\\/#y";

    (void)state;
    assert_int_equal(regex_create_literal(&regex, ".*+?()[]{}|^$\\/#", 16, NULL), FERRY_OK);
    assert_int_equal(regex_matcher_create(&matcher, NULL), FERRY_OK);
    assert_int_equal(regex_next(regex, matcher, text, strlen(text), &cursor, &start, &end, NULL),
                     FERRY_OK);
    assert_int_equal(start, 1);
    assert_int_equal(end, strlen(text) - 1);
    regex_destroy(regex);
    assert_int_equal(regex_create_literal(&regex, "", 0, NULL), FERRY_ERR_FORMAT);
    assert_int_equal(regex_create_literal(&regex, "\xFF", 1, NULL), FERRY_ERR_FORMAT);
    regex_matcher_destroy(matcher);
}

static void bad_patterns_and_runaway_matches_are_errors(void **state)
{
    struct regex *regex = NULL;
    struct regex_matcher *matcher = NULL;
    struct regex_cursor cursor = {0};
    struct ferry_error err = {0};
    size_t start;
    size_t end;
    char text[64];

    (void)state;
    assert_int_equal(regex_create(&regex, "", 0, &err), FERRY_ERR_FORMAT);
    assert_int_equal(regex_create(&regex, "(a", 2, &err), FERRY_ERR_FORMAT);
    assert_int_equal(regex_create(&regex, "\\p{Nonsense}", 12, &err), FERRY_ERR_FORMAT);
    assert_non_null(strstr(err.msg, "Nonsense"));
    memset(text, 'a', sizeof text);
    text[sizeof text - 1] = 'b';
    assert_int_equal(regex_create(&regex, "(a|aa)+\\z", 9, &err), FERRY_OK);
    assert_int_equal(regex_matcher_create(&matcher, NULL), FERRY_OK);
    assert_int_equal(regex_next(regex, matcher, text, sizeof text, &cursor, &start, &end, &err),
                     FERRY_ERR_LIMIT);
    regex_matcher_destroy(matcher);
    regex_destroy(regex);
}

/* Steps of a pre-tokenizer share one matcher and take turns: a search in a small piece between two
 * searches of the whole text must not leave the small piece's limit behind. */
static void a_search_in_a_piece_keeps_the_limit_of_the_text(void **state)
{
    enum { SIZE = 2000000 };
    struct regex *outer = NULL, *inner = NULL;
    struct regex_matcher *matcher = NULL;
    struct regex_cursor cursor = {0}, nested = {0};
    struct ferry_error err = {0};
    size_t start = 0;
    size_t end = 0;
    char *text = mem_alloc(SIZE);

    (void)state;
    assert_non_null(text);
    memset(text, 'a', SIZE);
    text[0] = 'x';
    text[SIZE - 1] = 'y';
    assert_int_equal(regex_create(&outer, "x|.*?y", 6, NULL), FERRY_OK);
    assert_int_equal(regex_create(&inner, "x", 1, NULL), FERRY_OK);
    assert_int_equal(regex_matcher_create(&matcher, NULL), FERRY_OK);
    assert_int_equal(regex_next(outer, matcher, text, SIZE, &cursor, &start, &end, &err), FERRY_OK);
    assert_int_equal(end, 1);
    assert_int_equal(regex_next(inner, matcher, text, end, &nested, &start, &end, &err), FERRY_OK);
    if (regex_next(outer, matcher, text, SIZE, &cursor, &start, &end, &err) != FERRY_OK)
        fail_msg("%s", err.msg);
    assert_int_equal(start, 1);
    assert_int_equal(end, SIZE);
    regex_cursor_fini(&cursor);
    regex_cursor_fini(&nested);
    regex_matcher_destroy(matcher);
    regex_destroy(inner);
    regex_destroy(outer);
    mem_free(text);
}

static void every_allocation_may_fail(void **state)
{
    (void)state;
    int n_refused = 0;
    for (uint64_t n = 1; n < 40; n++) {
        struct regex *regex = NULL;
        struct regex_matcher *matcher = NULL;
        mem_fail_after(n);
        enum ferry_status st = regex_create(&regex, "\\p{L}+|\\s", 9, NULL);
        if (st == FERRY_OK)
            st = regex_matcher_create(&matcher, NULL);
        mem_fail_after(0);
        regex_matcher_destroy(matcher);
        regex_destroy(regex);
        /* Machine code and its stack are optional: without memory for them the call succeeds. */
        assert_true(st == FERRY_OK || st == FERRY_ERR_NOMEM);
        n_refused += st == FERRY_ERR_NOMEM;
    }
    assert_true(n_refused >= 5 && n_refused < 39);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(iterates_as_the_reference),
        cmocka_unit_test(patterns_of_the_families),
        cmocka_unit_test(characters_newer_than_the_tables),
        cmocka_unit_test(literals_are_quoted),
        cmocka_unit_test(bad_patterns_and_runaway_matches_are_errors),
        cmocka_unit_test(a_search_in_a_piece_keeps_the_limit_of_the_text),
        cmocka_unit_test(every_allocation_may_fail),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
