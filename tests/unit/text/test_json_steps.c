/* Pipeline parts of tokenizer.json: what is read, and that the rest is refused by name. */
#include "../unit.h"

#include "small.h"

#include <string.h>

#define SPLIT(pattern, rest) "{\"type\":\"Split\",\"pattern\":{\"Regex\":\"" pattern "\"}," rest "}"

static void pre_tokenizers(void **state)
{
    static const struct {
        const char *pre;
        const char *ids; /* of "ab 12,c" */
    } CASES[] = {
        {BYTE_LEVEL, "97 98 32 49 50 44 99"},
        {"{\"type\":\"ByteLevel\",\"add_prefix_space\":true}", "32 97 98 32 49 50 44 99"},
        {"{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"WhitespaceSplit\"}," BYTE_LEVEL
         "]}",
         "97 98 49 50 44 99"},
        {"{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Whitespace\"}," BYTE_LEVEL "]}",
         "97 98 49 50 44 99"},
        {"{\"type\":\"Sequence\",\"pretokenizers\":["
         "{\"type\":\"Punctuation\",\"behavior\":\"Removed\"}," BYTE_LEVEL "]}",
         "97 98 32 49 50 99"},
        {"{\"type\":\"Sequence\",\"pretokenizers\":[" SPLIT(
             "[a-z]+", "\"behavior\":\"Removed\",\"invert\":true") "," BYTE_LEVEL "]}",
         "97 98 99"},
        {"{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Split\",\"pattern\":{\"String\":"
         "\" \"},\"behavior\":\"Removed\",\"invert\":false}," BYTE_LEVEL "]}",
         "97 98 49 50 44 99"},
    };

    (void)state;
    for (size_t i = 0; i < COUNT_OF(CASES); i++) {
        struct small small = {.pre_tokenizer = CASES[i].pre};
        struct tokenizer *t = small_tokenizer(&small);
        expect_ids(t, "ab 12,c", true, CASES[i].ids);
        tokenizer_destroy(t);
    }
}

static void digits_may_stand_alone(void **state)
{
    const char *const merges[] = {"1 2", NULL};
    struct small small = {.pre_tokenizer =
                              "{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Digits\","
                              "\"individual_digits\":true}," BYTE_LEVEL "]}",
                          .merges = merges};
    struct tokenizer *t = small_tokenizer(&small);

    (void)state;
    expect_ids(t, "12", true, "49 50");
    tokenizer_destroy(t);
    small.pre_tokenizer = BYTE_LEVEL;
    t = small_tokenizer(&small);
    expect_ids(t, "12", true, "256");
    tokenizer_destroy(t);
}

static void post_processors(void **state)
{
    struct small small = {
        .pre_tokenizer = BYTE_LEVEL,
        .added = "{\"id\":256,\"content\":\"<s>\",\"special\":true},"
                 "{\"id\":257,\"content\":\"</s>\",\"special\":true}",
        .post_processor =
            "{\"type\":\"Sequence\",\"processors\":[{\"type\":\"ByteLevel\"},{\"type\":"
            "\"TemplateProcessing\",\"single\":[{\"SpecialToken\":{\"id\":\"<s>\",\"type_id\":0}},"
            "{\"Sequence\":{\"id\":\"A\",\"type_id\":0}},{\"SpecialToken\":{\"id\":\"</s>\","
            "\"type_id\":0}}],\"pair\":[],\"special_tokens\":{\"<s>\":{\"id\":\"<s>\",\"ids\":[256]"
            ",\"tokens\":[\"<s>\"]},\"</s>\":{\"id\":\"</s>\",\"ids\":[257],\"tokens\":[\"</s>\"]"
            "}}}]}"};
    struct tokenizer *t = small_tokenizer(&small);

    (void)state;
    expect_ids_n(t, "a", 1, true, false, "256 97 257");
    expect_ids_n(t, "", 0, true, false, "256 257");
    expect_ids_n(t, "a", 1, false, false, "97");
    tokenizer_destroy(t);
}

static void the_rest_is_refused_by_name(void **state)
{
    static const struct {
        struct small small;
        enum ferry_status status;
        const char *part;
    } CASES[] = {
        {{.normalizer = "{\"type\":\"BertNormalizer\"}"}, FERRY_ERR_UNSUPPORTED, "BertNormalizer"},
        {{.normalizer = "{\"type\":\"Sequence\"}"}, FERRY_ERR_FORMAT, "normalizer"},
        {{.normalizer = "[]"}, FERRY_ERR_FORMAT, "normalizer"},
        {{.normalizer = "{\"type\":\"Replace\",\"pattern\":{},\"content\":\"\"}"},
         FERRY_ERR_FORMAT,
         "pattern"},
        {{.normalizer = "{\"type\":\"Replace\",\"pattern\":{\"String\":\"a\"}}"},
         FERRY_ERR_FORMAT,
         "content"},
        {{.normalizer = "{\"type\":\"Prepend\"}"}, FERRY_ERR_FORMAT, "prepend"},
        {{.pre_tokenizer = "{\"type\":\"UnicodeScripts\"}"},
         FERRY_ERR_UNSUPPORTED,
         "UnicodeScripts"},
        {{.pre_tokenizer = SPLIT("a", "\"behavior\":\"Sideways\"")},
         FERRY_ERR_UNSUPPORTED,
         "Sideways"},
        {{.pre_tokenizer = SPLIT("a", "\"invert\":false")}, FERRY_ERR_FORMAT, "behavior"},
        {{.pre_tokenizer = SPLIT("[a&&b]", "\"behavior\":\"Isolated\"")},
         FERRY_ERR_UNSUPPORTED,
         "&&"},
        {{.pre_tokenizer = SPLIT("(", "\"behavior\":\"Isolated\"")}, FERRY_ERR_FORMAT, "compile"},
        {{.pre_tokenizer =
              "{\"type\":\"Sequence\",\"pretokenizers\":[" BYTE_LEVEL ",{\"type\":\"Digits\"}]}"},
         FERRY_ERR_UNSUPPORTED,
         "after ByteLevel"},
        {{.pre_tokenizer = "{\"type\":\"Metaspace\",\"replacement\":\"ab\"}"},
         FERRY_ERR_FORMAT,
         "replacement"},
        {{.pre_tokenizer =
              "{\"type\":\"Metaspace\",\"replacement\":\"_\",\"prepend_scheme\":\"last\"}"},
         FERRY_ERR_UNSUPPORTED,
         "last"},
        {{.pre_tokenizer = "{\"type\":\"Digits\",\"individual_digits\":1}"},
         FERRY_ERR_FORMAT,
         "individual_digits"},
        {{.post_processor = "{\"type\":\"BertProcessing\"}"},
         FERRY_ERR_UNSUPPORTED,
         "BertProcessing"},
        {{.post_processor = "{\"type\":\"TemplateProcessing\",\"single\":[]}"},
         FERRY_ERR_FORMAT,
         "template"},
        {{.post_processor = "{\"type\":\"TemplateProcessing\",\"single\":[{\"Sequence\":{\"id\":"
                            "\"B\"}}]}"},
         FERRY_ERR_UNSUPPORTED,
         "template"},
        {{.post_processor =
              "{\"type\":\"TemplateProcessing\",\"single\":[{\"SpecialToken\":"
              "{\"id\":\"x\"}},{\"Sequence\":{\"id\":\"A\"}}],\"special_tokens\":{}}"},
         FERRY_ERR_FORMAT,
         "template"},
        {{.decoder = "{\"type\":\"CTC\"}"}, FERRY_ERR_UNSUPPORTED, "CTC"},
        {{.decoder = "{\"type\":\"Strip\",\"content\":\" \",\"start\":-1,\"stop\":0}"},
         FERRY_ERR_FORMAT,
         "Strip"},
    };

    (void)state;
    for (size_t i = 0; i < COUNT_OF(CASES); i++)
        expect_refused(&CASES[i].small, CASES[i].status, CASES[i].part);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pre_tokenizers),
        cmocka_unit_test(digits_may_stand_alone),
        cmocka_unit_test(post_processors),
        cmocka_unit_test(the_rest_is_refused_by_name),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
