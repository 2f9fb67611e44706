/* Normal forms against the Unicode examples and their invariants, long runs of marks in linear
 * time, the other steps. */
#include "../unit.h"

#include "base/alloc.h"
#include "text/normalize.h"

#include <string.h>

static void run(const struct normalizer *normalizer, const char *text, size_t n, struct bytes *ret)
{
    struct normalize_scratch scratch = {0};
    struct regex_matcher *matcher = NULL;
    const char *out;
    size_t size;

    assert_int_equal(regex_matcher_create(&matcher, NULL), FERRY_OK);
    assert_int_equal(normalize_run(normalizer, &scratch, matcher, text, n, &out, &size, NULL),
                     FERRY_OK);
    assert_true(bytes_append(ret, out, size) && bytes_append(ret, "", 1));
    normalize_scratch_fini(&scratch);
    regex_matcher_destroy(matcher);
}

static void expect(const struct normalizer *normalizer, const char *text, const char *want)
{
    struct bytes got = {0};
    run(normalizer, text, strlen(text), &got);
    assert_string_equal(got.data, want);
    bytes_fini(&got);
}

static struct normalizer one(enum normalize_kind kind)
{
    struct normalizer normalizer = {.n_steps = 1};
    normalizer.steps[0].kind = kind;
    return normalizer;
}

static void normal_forms(void **state)
{
    static const struct {
        const char *text;
        const char *forms[4]; /* NFC, NFD, NFKC, NFKD */
    } CASES[] = {
        {"plain", {"plain", "plain", "plain", "plain"}},
        {"e\xCC\x81", {"\xC3\xA9", "e\xCC\x81", "\xC3\xA9", "e\xCC\x81"}},
        {"\xC3\xA9", {"\xC3\xA9", "e\xCC\x81", "\xC3\xA9", "e\xCC\x81"}},
        /* marks are ordered by class, composition skips blocked ones */
        {"q\xCC\x87\xCC\xA3",
         {"q\xCC\xA3\xCC\x87", "q\xCC\xA3\xCC\x87", "q\xCC\xA3\xCC\x87", "q\xCC\xA3\xCC\x87"}},
        {"s\xCC\xA3\xCC\x87",
         {"\xE1\xB9\xA9", "s\xCC\xA3\xCC\x87", "\xE1\xB9\xA9", "s\xCC\xA3\xCC\x87"}},
        {"\xEF\xAC\x81", {"\xEF\xAC\x81", "\xEF\xAC\x81", "fi", "fi"}},
        {"\xE2\x84\xAB", {"\xC3\x85", "A\xCC\x8A", "\xC3\x85", "A\xCC\x8A"}},
        {"\xED\x95\x9C",
         {"\xED\x95\x9C", "\xE1\x84\x92\xE1\x85\xA1\xE1\x86\xAB", "\xED\x95\x9C",
          "\xE1\x84\x92\xE1\x85\xA1\xE1\x86\xAB"}},
        /* excluded from composition */
        {"\xE0\xA5\x98",
         {"\xE0\xA4\x95\xE0\xA4\xBC", "\xE0\xA4\x95\xE0\xA4\xBC", "\xE0\xA4\x95\xE0\xA4\xBC",
          "\xE0\xA4\x95\xE0\xA4\xBC"}},
        {"a b\xCC\x81 c", {"a b\xCC\x81 c", "a b\xCC\x81 c", "a b\xCC\x81 c", "a b\xCC\x81 c"}},
        /* U+11D42 (Unicode 10) has a class now, but none for the reference: marks stay behind it */
        {"e\xF0\x91\xB5\x82\xCC\x81",
         {"e\xF0\x91\xB5\x82\xCC\x81", "e\xF0\x91\xB5\x82\xCC\x81", "e\xF0\x91\xB5\x82\xCC\x81",
          "e\xF0\x91\xB5\x82\xCC\x81"}},
        {"\xCC\x81x", {"\xCC\x81x", "\xCC\x81x", "\xCC\x81x", "\xCC\x81x"}},
    };

    (void)state;
    for (size_t i = 0; i < COUNT_OF(CASES); i++) {
        for (int kind = NORMALIZE_NFC; kind <= NORMALIZE_NFKD; kind++) {
            struct normalizer normalizer = one((enum normalize_kind)kind);
            expect(&normalizer, CASES[i].text, CASES[i].forms[kind]);
            expect(&normalizer, CASES[i].forms[kind], CASES[i].forms[kind]);
        }
    }
}

/* utf8proc alone takes seconds for this; a stable sort by class must give one run per class. */
static void long_runs_of_marks_stay_fast_and_sorted(void **state)
{
    enum { N = 200000 };
    struct bytes text = {0};
    struct bytes got = {0};
    struct normalizer normalizer = one(NORMALIZE_NFD);

    (void)state;
    assert_true(bytes_append(&text, "a", 1));
    for (int i = 0; i < N; i++)
        assert_true(bytes_append(&text, i % 2 == 0 ? "\xCC\x81" : "\xCC\xA3", 2)); /* 230, 220 */
    run(&normalizer, text.data, text.size, &got);
    assert_int_equal(got.size, text.size + 1);
    for (int i = 0; i < N; i++)
        assert_memory_equal(got.data + 1 + 2 * i, i < N / 2 ? "\xCC\xA3" : "\xCC\x81", 2);
    bytes_fini(&text);
    bytes_fini(&got);
}

static void other_steps(void **state)
{
    struct normalizer normalizer = {.n_steps = 2};
    struct regex *space = NULL;

    (void)state;
    assert_int_equal(regex_create_literal(&space, " ", 1, NULL), FERRY_OK);
    normalizer.steps[0] = (struct normalize_step){
        .kind = NORMALIZE_PREPEND, .content = "\xE2\x96\x81", .content_size = 3};
    normalizer.steps[1] = (struct normalize_step){
        .kind = NORMALIZE_REPLACE, .regex = space, .content = "\xE2\x96\x81", .content_size = 3};
    expect(&normalizer, "a b ",
           "\xE2\x96\x81"
           "a\xE2\x96\x81"
           "b\xE2\x96\x81");
    expect(&normalizer, "", "");
    struct normalizer strip = one(NORMALIZE_STRIP);
    strip.steps[0].left = true;
    expect(&strip, " \xE3\x80\x80x ", "x ");
    strip.steps[0].right = true;
    expect(&strip, " x \xE3\x80\x80\n", "x");
    expect(&strip, " \n ", "");
    struct normalizer lower = one(NORMALIZE_LOWERCASE);
    expect(&lower, "A\xC3\x89\xC4\xB0\xCE\xA3", "a\xC3\xA9i\xCC\x87\xCF\x83");
    regex_destroy(space);
}

/* Sixteen steps "a" -> "aa" would make 65536 times the text of the file, or all memory. */
static void growth_has_a_limit(void **state)
{
    struct normalizer normalizer = {.n_steps = NORMALIZE_STEPS_MAX};
    struct normalize_scratch scratch = {0};
    struct regex_matcher *matcher = NULL;
    struct regex *a = NULL;
    struct ferry_error err = {0};
    const char *out;
    size_t size;
    char text[1000];

    (void)state;
    memset(text, 'a', sizeof text);
    assert_int_equal(regex_matcher_create(&matcher, NULL), FERRY_OK);
    assert_int_equal(regex_create_literal(&a, "a", 1, NULL), FERRY_OK);
    for (int i = 0; i < normalizer.n_steps; i++)
        normalizer.steps[i] = (struct normalize_step){
            .kind = NORMALIZE_REPLACE, .regex = a, .content = "aa", .content_size = 2};
    assert_int_equal(
        normalize_run(&normalizer, &scratch, matcher, text, sizeof text, &out, &size, &err),
        FERRY_ERR_LIMIT);
    assert_non_null(
        strstr(err.msg, "makes more than 16000 bytes of a text of 1000 (limit: 16 times"));
    assert_true(scratch.out[0].capacity <= 64000 && scratch.out[1].capacity <= 64000);
    normalizer.n_steps = 4; /* 16 times: just allowed */
    assert_int_equal(
        normalize_run(&normalizer, &scratch, matcher, text, sizeof text, &out, &size, &err),
        FERRY_OK);
    assert_int_equal(size, 16000);
    struct normalizer prepend = one(NORMALIZE_PREPEND);
    prepend.steps[0].content = text;
    prepend.steps[0].content_size = 256; /* a character's own limit: that of LIMIT_TEXT_FLOOR */
    assert_int_equal(normalize_run(&prepend, &scratch, matcher, "b", 1, &out, &size, &err),
                     FERRY_ERR_LIMIT);
    prepend.steps[0].content_size = 255;
    assert_int_equal(normalize_run(&prepend, &scratch, matcher, "b", 1, &out, &size, &err),
                     FERRY_OK);
    assert_int_equal(normalize_limit(SIZE_MAX), normalize_limit((size_t)1 << 29));
    normalize_scratch_fini(&scratch);
    regex_matcher_destroy(matcher);
    regex_destroy(a);
}

static void every_allocation_may_fail(void **state)
{
    struct normalizer normalizer = one(NORMALIZE_NFC);
    struct regex_matcher *matcher = NULL;
    bool done = false;

    (void)state;
    assert_int_equal(regex_matcher_create(&matcher, NULL), FERRY_OK);
    for (uint64_t n = 1; !done; n++) {
        struct normalize_scratch scratch = {0};
        const char *out;
        size_t size;
        mem_fail_after(n);
        enum ferry_status st =
            normalize_run(&normalizer, &scratch, matcher, "e\xCC\x81", 3, &out, &size, NULL);
        mem_fail_after(0);
        normalize_scratch_fini(&scratch);
        assert_true(st == FERRY_OK || st == FERRY_ERR_NOMEM);
        done = st == FERRY_OK;
        assert_true(!done || n > 2);
    }
    regex_matcher_destroy(matcher);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(normal_forms),
        cmocka_unit_test(long_runs_of_marks_stay_fast_and_sorted),
        cmocka_unit_test(other_steps),
        cmocka_unit_test(growth_has_a_limit),
        cmocka_unit_test(every_allocation_may_fail),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
