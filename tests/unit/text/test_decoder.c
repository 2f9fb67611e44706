/* Decoder steps alone and in the order that Llama files have; a text in the middle of a stream. */
#include "../unit.h"

#include "base/alloc.h"
#include "text/decoder.h"

#include <string.h>

/* Decodes strings given with '|' between. */
static void expect(const struct decoder *decoder, const char *tokens, bool in_middle,
                   const char *want)
{
    struct decoder_list list = {0};
    struct regex_matcher *matcher = NULL;

    assert_int_equal(regex_matcher_create(&matcher, NULL), FERRY_OK);
    while (*tokens != 0) {
        size_t n = strcspn(tokens, "|");
        assert_true(decoder_list_append(&list, tokens, n));
        tokens += n + (tokens[n] == '|');
    }
    assert_int_equal(decoder_run(decoder, matcher, &list, in_middle, NULL), FERRY_OK);
    assert_int_equal(list.text.size, strlen(want));
    if (list.text.size > 0)
        assert_memory_equal(list.text.data, want, list.text.size);
    decoder_list_fini(&list);
    regex_matcher_destroy(matcher);
}

static void byte_level(void **state)
{
    struct decoder decoder = {.n_steps = 1};

    (void)state;
    decoder.steps[0].kind = DECODER_BYTE_LEVEL;
    expect(&decoder, "\xC4\xA0Hi|\xC3\xA4|\xC2\xBD|\xC5\x82", false, " Hi\xE4\xBD\xA0");
    /* A token with any other character stays as it is. */
    expect(&decoder, "a b|\xE4\xBD\xA0\xC4\xA0", false, "a b\xE4\xBD\xA0\xC4\xA0");
    expect(&decoder, "", false, "");
}

static void llama_chain(void **state)
{
    struct regex *mark = NULL;
    struct decoder decoder = {.n_steps = 4};

    (void)state;
    assert_int_equal(regex_create_literal(&mark, "\xE2\x96\x81", 3, NULL), FERRY_OK);
    decoder.steps[0] = (struct decoder_step){
        .kind = DECODER_REPLACE, .regex = mark, .content = " ", .content_size = 1};
    decoder.steps[1].kind = DECODER_BYTE_FALLBACK;
    decoder.steps[2].kind = DECODER_FUSE;
    decoder.steps[3] = (struct decoder_step){.kind = DECODER_STRIP, .code = ' ', .start = 1};
    expect(&decoder, "\xE2\x96\x81Hey|\xE2\x96\x81\xE2\x96\x81you|<0xE4>|<0xBD>|<0xA0>|!", false,
           "Hey  you\xE4\xBD\xA0!");
    expect(&decoder, "\xE2\x96\x81Hey", true, " Hey");
    expect(&decoder, "<0x0a>|<0xZZ>|<0x4>", false, "\n<0xZZ><0x4>");
    expect(&decoder, "|", false, "");
    expect(&decoder, "||a|", false, "a");
    regex_destroy(mark);
}

/* As normalize_limit says: 16 times the text, of short ones 256 bytes. */
static void growth_has_a_limit(void **state)
{
    struct regex *a = NULL;
    struct decoder decoder = {.n_steps = DECODER_STEPS_MAX};
    struct decoder_list list = {0};
    struct regex_matcher *matcher = NULL;
    struct ferry_error err = {0};

    (void)state;
    assert_int_equal(regex_matcher_create(&matcher, NULL), FERRY_OK);
    assert_int_equal(regex_create_literal(&a, "a", 1, NULL), FERRY_OK);
    for (int i = 0; i < decoder.n_steps; i++)
        decoder.steps[i] = (struct decoder_step){
            .kind = DECODER_REPLACE, .regex = a, .content = "aa", .content_size = 2};
    assert_true(decoder_list_append(&list, "a", 1));
    assert_int_equal(decoder_run(&decoder, matcher, &list, false, &err), FERRY_ERR_LIMIT);
    assert_non_null(strstr(err.msg,
                           "its decoder makes more than 256 bytes of a text of 1 (limit: 16 "
                           "times as many, or 256 when that is more; "));
    decoder_list_fini(&list);
    decoder.n_steps = 8;
    assert_true(decoder_list_append(&list, "a", 1));
    assert_int_equal(decoder_run(&decoder, matcher, &list, false, &err), FERRY_OK);
    assert_int_equal(list.text.size, 256);
    decoder_list_fini(&list);
    regex_matcher_destroy(matcher);
    regex_destroy(a);
}

static void metaspace_and_strip(void **state)
{
    struct decoder decoder = {.n_steps = 1};

    (void)state;
    decoder.steps[0] =
        (struct decoder_step){.kind = DECODER_METASPACE, .code = '_', .drop_first = true};
    expect(&decoder, "_Hey|_you", false, "Hey you");
    expect(&decoder, "_Hey|_you", true, " Hey you");
    decoder.steps[0].drop_first = false;
    expect(&decoder, "_Hey|_you", false, " Hey you");
    decoder.steps[0] =
        (struct decoder_step){.kind = DECODER_STRIP, .code = 'H', .start = 1, .stop = 2};
    expect(&decoder, "HHey|aHHH|H", false, "HeyaH");
    struct decoder none = {.join_by_space = true};
    expect(&none, "a|b", false, "a b");
    expect(&none, "|", false, "");
}

static void every_allocation_may_fail(void **state)
{
    struct decoder decoder = {.n_steps = 1};
    struct regex_matcher *matcher = NULL;
    bool done = false;

    (void)state;
    decoder.steps[0].kind = DECODER_BYTE_LEVEL;
    assert_int_equal(regex_matcher_create(&matcher, NULL), FERRY_OK);
    for (uint64_t n = 1; !done; n++) {
        struct decoder_list list = {0};
        mem_fail_after(n);
        done = decoder_list_append(&list, "abc", 3) &&
               decoder_run(&decoder, matcher, &list, false, NULL) == FERRY_OK;
        mem_fail_after(0);
        decoder_list_fini(&list);
        assert_true(!done || n > 3);
    }
    regex_matcher_destroy(matcher);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(byte_level),
        cmocka_unit_test(llama_chain),
        cmocka_unit_test(growth_has_a_limit),
        cmocka_unit_test(metaspace_and_strip),
        cmocka_unit_test(every_allocation_may_fail),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
