/* Every step and every behaviour; expected pieces from `tokenizers` 0.23. */
#include "../unit.h"

#include "text/pretoken.h"

#include <string.h>

struct collected {
    char text[512];
    size_t used;
};

static enum ferry_status collect(void *arg, const char *piece, size_t n_bytes)
{
    struct collected *c = arg;
    c->used += (size_t)snprintf(c->text + c->used, sizeof c->text - c->used, "%s%.*s",
                                c->used > 0 ? "|" : "", (int)n_bytes, piece);
    return FERRY_OK;
}

static enum ferry_status refuse(void *arg, const char *piece, size_t n_bytes)
{
    (void)arg;
    (void)piece;
    (void)n_bytes;
    return FERRY_ERR_NOMEM;
}

static void expect(const struct pretokenizer *pretokenizer, const char *text, bool at_start,
                   const char *want)
{
    struct pretoken_scratch scratch = {0};
    struct regex_matcher *matcher = NULL;
    struct collected got = {.used = 0};

    assert_int_equal(regex_matcher_create(&matcher, NULL), FERRY_OK);
    assert_int_equal(pretoken_run(pretokenizer, &scratch, matcher, text, strlen(text), at_start,
                                  collect, &got, NULL),
                     FERRY_OK);
    assert_string_equal(got.text, want);
    if (strlen(text) > 0)
        assert_int_equal(pretoken_run(pretokenizer, &scratch, matcher, text, strlen(text), at_start,
                                      refuse, NULL, NULL),
                         FERRY_ERR_NOMEM);
    pretoken_scratch_fini(&scratch);
    regex_matcher_destroy(matcher);
}

static void behaviors(void **state)
{
    static const struct {
        enum pretoken_behavior behavior;
        bool invert;
        const char *want; /* of "the-final--countdown-" split at "-" */
    } CASES[] = {
        {PRETOKEN_REMOVED, false, "the|final|countdown"},
        {PRETOKEN_ISOLATED, false, "the|-|final|-|-|countdown|-"},
        {PRETOKEN_MERGED_WITH_PREVIOUS, false, "the-|final-|-|countdown-"},
        {PRETOKEN_MERGED_WITH_NEXT, false, "the|-final|-|-countdown|-"},
        {PRETOKEN_CONTIGUOUS, false, "the|-|final|--|countdown|-"},
        {PRETOKEN_REMOVED, true, "-|-|-|-"},
        {PRETOKEN_MERGED_WITH_NEXT, true, "the-|final-|-|countdown-"},
    };
    struct regex *dash = NULL;

    (void)state;
    assert_int_equal(regex_create_literal(&dash, "-", 1, NULL), FERRY_OK);
    for (size_t i = 0; i < COUNT_OF(CASES); i++) {
        struct pretokenizer p = {.n_steps = 1};
        p.steps[0] = (struct pretoken_step){.kind = PRETOKEN_SPLIT,
                                            .behavior = CASES[i].behavior,
                                            .invert = CASES[i].invert,
                                            .regex = dash};
        expect(&p, "the-final--countdown-", true, CASES[i].want);
    }
    regex_destroy(dash);
}

static void character_steps(void **state)
{
    struct pretokenizer p = {.n_steps = 1};

    (void)state;
    p.steps[0] = (struct pretoken_step){.kind = PRETOKEN_DIGITS, .behavior = PRETOKEN_ISOLATED};
    expect(&p, "ab12\xC2\xBD", true, "ab|1|2|\xC2\xBD");
    p.steps[0].behavior = PRETOKEN_CONTIGUOUS;
    expect(&p, "ab12c3", true, "ab|12|c|3");
    p.steps[0] =
        (struct pretoken_step){.kind = PRETOKEN_PUNCTUATION, .behavior = PRETOKEN_ISOLATED};
    expect(&p, "Hey, you\xE3\x80\x82", true, "Hey|,| you|\xE3\x80\x82");
    p.steps[0] =
        (struct pretoken_step){.kind = PRETOKEN_WHITESPACE_SPLIT, .behavior = PRETOKEN_REMOVED};
    expect(&p, " a \n b", true, "a|b");
    expect(&p, "", true, "");
}

static void metaspace(void **state)
{
    struct pretokenizer p = {.n_steps = 1};

    (void)state;
    p.steps[0] = (struct pretoken_step){.kind = PRETOKEN_METASPACE,
                                        .replacement = '_',
                                        .prepend = PRETOKEN_PREPEND_FIRST,
                                        .split = true};
    expect(&p, "Hey  you", true, "_Hey|_|_you");
    expect(&p, "Hey you", false, "Hey|_you");
    expect(&p, " Hey", true, "_Hey");
    p.steps[0].split = false;
    p.steps[0].prepend = PRETOKEN_PREPEND_ALWAYS;
    expect(&p, "Hey you", false, "_Hey_you");
    expect(&p, "_x", false, "_x");
    p.steps[0].prepend = PRETOKEN_PREPEND_NEVER;
    expect(&p, "Hey you", true, "Hey_you");
}

static void steps_work_on_the_pieces_of_the_one_before(void **state)
{
    struct pretokenizer p = {.n_steps = 3};
    struct regex *gpt2 = NULL;
    static const char GPT2[] = " ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";

    (void)state;
    assert_int_equal(regex_create(&gpt2, GPT2, sizeof GPT2 - 1, NULL), FERRY_OK);
    p.steps[0] = (struct pretoken_step){.kind = PRETOKEN_DIGITS, .behavior = PRETOKEN_ISOLATED};
    p.steps[1] = (struct pretoken_step){.kind = PRETOKEN_PREFIX_SPACE};
    p.steps[2] = (struct pretoken_step){
        .kind = PRETOKEN_SPLIT, .behavior = PRETOKEN_ISOLATED, .regex = gpt2};
    expect(&p, "a b12", true, " a| b| 1| 2");
    /* Look-ahead does not see past its piece. */
    p.n_steps = 3;
    p.steps[1] = p.steps[2];
    p.n_steps = 2;
    expect(&p, "a  1", true, "a|  |1");
    expect(&p, "a  b", true, "a| | b");
    regex_destroy(gpt2);
}

static enum ferry_status count(void *arg, const char *piece, size_t n_bytes)
{
    size_t *n = arg;
    (void)piece;
    *n += n_bytes;
    return FERRY_OK;
}

/* A mark in front of every piece, every byte a piece, and again: twice as many at every other step.
 */
static void text_may_grow_sixteenfold(void **state)
{
    static const char TEXT[] = "XXXXXXXXXXXXXXXXXXXXXXXXXXXXXXXXXXXXXXXX"; /* 40 */
    struct pretokenizer p = {.n_steps = 8};
    struct pretoken_scratch scratch = {0};
    struct regex_matcher *matcher = NULL;
    struct regex *any = NULL;
    struct ferry_error err = {0};
    size_t n = 0;

    (void)state;
    assert_int_equal(regex_create(&any, ".", 1, NULL), FERRY_OK);
    assert_int_equal(regex_matcher_create(&matcher, NULL), FERRY_OK);
    for (int i = 0; i < PRETOKEN_STEPS_MAX; i += 2) {
        p.steps[i] = (struct pretoken_step){
            .kind = PRETOKEN_METASPACE, .replacement = 'a' + i, .prepend = PRETOKEN_PREPEND_ALWAYS};
        p.steps[i + 1] = (struct pretoken_step){
            .kind = PRETOKEN_SPLIT, .behavior = PRETOKEN_ISOLATED, .regex = any};
    }
    assert_int_equal(
        pretoken_run(&p, &scratch, matcher, TEXT, sizeof TEXT - 1, true, count, &n, &err),
        FERRY_OK);
    assert_int_equal(n, 41 * 8); /* one mark in front of the text, then one before every byte */
    p.n_steps = PRETOKEN_STEPS_MAX;
    n = 0;
    assert_int_equal(
        pretoken_run(&p, &scratch, matcher, TEXT, sizeof TEXT - 1, true, count, &n, &err),
        FERRY_ERR_LIMIT);
    assert_true(n <= 640);
    assert_non_null(
        strstr(err.msg, "its pre-tokenizer makes more than 640 bytes of a text of 40 (limit: 16"));
    pretoken_scratch_fini(&scratch);
    regex_matcher_destroy(matcher);
    regex_destroy(any);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(behaviors),
        cmocka_unit_test(character_steps),
        cmocka_unit_test(metaspace),
        cmocka_unit_test(steps_work_on_the_pieces_of_the_one_before),
        cmocka_unit_test(text_may_grow_sixteenfold),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
