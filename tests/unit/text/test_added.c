/* Added tokens: leftmost and longest, stripping, whole words, what is hidden when control tokens
 * are not parsed. Expected stretches follow `tokenizers` 0.23. */
#include "../unit.h"

#include "text/added.h"

#include <string.h>

static struct arena arena;

static void make(struct added_set *set, struct added_token *tokens, size_t n)
{
    struct added_pattern patterns[8];

    for (size_t i = 0; i < n; i++) {
        tokens[i].size = strlen(tokens[i].text);
        tokens[i].id = (int32_t)i;
        patterns[i] = (struct added_pattern){tokens[i].text, tokens[i].size, &tokens[i]};
    }
    assert_true(added_set_init(set, &arena, patterns, n));
}

/* Expects the stretches as "[text]id" or "text", with '|' between. */
static void expect(const struct added_set *set, const char *text, bool parse_special,
                   const char *want)
{
    struct added_cursor cursor = {0};
    struct added_piece piece;
    char got[512] = "";
    size_t used = 0;

    while (added_next(set, text, strlen(text), parse_special, &cursor, &piece)) {
        int n = (int)(piece.end - piece.start);
        used += (size_t)snprintf(got + used, sizeof got - used,
                                 piece.token == NULL ? "%s%.*s" : "%s[%.*s]", used > 0 ? "|" : "",
                                 n, text + piece.start);
        if (piece.token != NULL)
            used += (size_t)snprintf(got + used, sizeof got - used, "%d", piece.token->id);
    }
    assert_string_equal(got, want);
}

static void leftmost_then_longest(void **state)
{
    struct added_token tokens[] = {
        {.text = "<a>"}, {.text = "<a>b"}, {.text = "  "}, {.text = "    "}, {.text = "b>"}};
    struct added_set set;

    (void)state;
    make(&set, tokens, 5);
    expect(&set, "", true, "");
    expect(&set, "plain", true, "plain");
    expect(&set, "x<a>y", true, "x|[<a>]0|y");
    expect(&set, "<a>b>", true, "[<a>b]1|>");
    expect(&set, "<a><a>", true, "[<a>]0|[<a>]0");
    expect(&set, "     .", true, "[    ]3| .");
    expect(&set, "   .", true, "[  ]2| .");
    expect(&set, "<a", true, "<a");
}

static void stripping_takes_white_space(void **state)
{
    struct added_token tokens[] = {{.text = "<l>", .lstrip = true},
                                   {.text = "<r>", .rstrip = true}};
    struct added_set set;

    (void)state;
    make(&set, tokens, 2);
    expect(&set, "a \t<l> b", true, "a|[ \t<l>]0| b");
    expect(&set, "a <r> \n b", true, "a |[<r> \n ]1|b");
    expect(&set, "<r> <l>", true, "[<r> ]1|[<l>]0");
    expect(&set, "a\xE3\x80\x80<l>", true, "a|[\xE3\x80\x80<l>]0");
}

static void whole_words_only(void **state)
{
    struct added_token tokens[] = {{.text = "whole", .single_word = true}};
    struct added_set set;

    (void)state;
    make(&set, tokens, 1);
    expect(&set, "whole", true, "[whole]0");
    expect(&set, "a whole.", true, "a |[whole]0|.");
    expect(&set, "wholesale", true, "wholesale");
    expect(&set, "\xC3\xA9whole whole", true, "\xC3\xA9whole |[whole]0");
    expect(&set, "whole_", true, "whole_");
}

static void control_tokens_stay_text_when_not_parsed(void **state)
{
    struct added_token tokens[] = {
        {.text = "<|end|>", .special = true}, {.text = "<think>"}, {.text = "end|>x"}};
    struct added_set set;

    (void)state;
    make(&set, tokens, 3);
    expect(&set, "a<|end|>b<think>", true, "a|[<|end|>]0|b|[<think>]1");
    expect(&set, "a<|end|>b<think>", false, "a<|end|>b|[<think>]1");
    /* A match that does not count still hides what overlaps it. */
    expect(&set, "<|end|>x", false, "<|end|>x");
}

static void equal_texts_keep_the_first(void **state)
{
    struct added_token tokens[] = {{.text = "<a>"}, {.text = "<a>"}};
    struct added_set set;
    struct added_set none;

    (void)state;
    make(&set, tokens, 2);
    assert_int_equal(set.n, 1);
    expect(&set, "<a>", true, "[<a>]0");
    make(&none, tokens, 0);
    expect(&none, "<a>", true, "<a>");
}

static void special_tokens_need_trusted_bytes(void **state)
{
    struct added_token tokens[] = {{.text = "<a>", .special = true},
                                   {.text = "<a>bc", .special = true},
                                   {.text = "bc"},
                                   {.text = "a><a", .special = true}};
    static const char TEXT[] = "<a><a>bc<a>bc<a>";
    /* As the spans say: user's <a>, template's <a>b, user's c, all else the template's. */
    const struct text_span spans[] = {{13, 17}, {18, 26}};
    const struct added_trust trust = {.spans = spans, .n = 2, .offset = 10};
    struct added_cursor cursor = {.trust = &trust};
    struct added_piece piece;
    struct added_set set;
    size_t starts[8];
    int32_t ids[8];
    size_t n = 0;

    (void)state;
    make(&set, tokens, 4);
    while (added_next(&set, TEXT, sizeof TEXT - 1, true, &cursor, &piece)) {
        if (piece.token == NULL)
            continue;
        assert_true(n < 8);
        starts[n] = piece.start;
        ids[n++] = piece.token->id;
    }
    assert_int_equal(n, 4);
    assert_true(ids[0] == 0 && starts[0] == 3); /* not the longer one, which reaches into c */
    assert_true(ids[1] == 2 && starts[1] == 6); /* no special token: anywhere */
    assert_true(ids[2] == 1 && starts[2] == 8); /* the longer one, all trusted */
    assert_true(ids[3] == 0 && starts[3] == 13);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(leftmost_then_longest),
        cmocka_unit_test(stripping_takes_white_space),
        cmocka_unit_test(whole_words_only),
        cmocka_unit_test(control_tokens_stay_text_when_not_parsed),
        cmocka_unit_test(equal_texts_keep_the_first),
        cmocka_unit_test(special_tokens_need_trusted_bytes),
    };
    arena_init(&arena, "test");
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    arena_fini(&arena);
    return failed;
}
