/* tokenizer.json as a hostile file, tokenizer_config.json, memory running out at every step. */
#include "../unit.h"

#include "base/alloc.h"
#include "small.h"

#include <string.h>

static void merges_in_both_forms(void **state)
{
    static const char JSON[] =
        "{\"added_tokens\":[],\"model\":{\"vocab\":{\"a\":0,\"b\":1,\"ab\":2,\"abb\":3},"
        "\"merges\":[[\"a\",\"b\"],[\"ab\",\"b\"]]}}";
    struct tokenizer *t = NULL;

    (void)state;
    assert_int_equal(tokenizer_create_json(&t, JSON, sizeof JSON - 1, NULL, 0, NULL), FERRY_OK);
    expect_ids(t, "abbab", true, "3 2");
    assert_int_equal(tokenizer_n_vocab(t), 4);
    assert_int_equal(tokenizer_find(t, "abb", 3), 3);
    assert_int_equal(tokenizer_find(t, "abc", 3), -1);
    tokenizer_destroy(t);
}

static void damaged_documents(void **state)
{
    static const char *const ARRAYS[] = {"a b c", NULL};
    static const char *const MISSING[] = {"a z", NULL};
    static const char *const NO_RESULT[] = {"b a", NULL};
    static const char VOCAB[] = "\"a\":0,\"b\":1,\"ab\":2,\"c\":3";
    static const struct {
        struct small small;
        enum ferry_status status;
        const char *part;
    } CASES[] = {
        {{.vocab = "\"a\":-1"}, FERRY_ERR_FORMAT, "id of \"a\""},
        {{.vocab = "\"a\":4194304"}, FERRY_ERR_FORMAT, "id of \"a\""},
        {{.vocab = "\"a\":\"0\""}, FERRY_ERR_FORMAT, "id of \"a\""},
        {{.vocab = "\"a\":1,\"b\":1"}, FERRY_ERR_FORMAT, "two tokens"},
        {{.vocab = VOCAB, .merges = ARRAYS}, FERRY_ERR_FORMAT, "merge 0"},
        {{.vocab = VOCAB, .merges = MISSING}, FERRY_ERR_FORMAT, "merge 0"},
        {{.vocab = VOCAB, .merges = NO_RESULT}, FERRY_ERR_FORMAT, "merge 0"},
        {{.vocab = VOCAB, .model = "\"unk_token\":\"x\","}, FERRY_ERR_FORMAT, "unk_token"},
        {{.vocab = VOCAB, .model = "\"dropout\":0.1,"}, FERRY_ERR_UNSUPPORTED, "dropout"},
        {{.vocab = VOCAB, .model = "\"continuing_subword_prefix\":\"##\","},
         FERRY_ERR_UNSUPPORTED,
         "continuing_subword_prefix"},
        {{.vocab = VOCAB, .model = "\"end_of_word_suffix\":\"</w>\","},
         FERRY_ERR_UNSUPPORTED,
         "end_of_word_suffix"},
        {{.vocab = VOCAB, .model = "\"fuse_unk\":\"yes\","}, FERRY_ERR_FORMAT, "fuse_unk"},
        {{.vocab = VOCAB, .pre_tokenizer = BYTE_LEVEL, .model = "\"byte_fallback\":true,"},
         FERRY_ERR_UNSUPPORTED,
         "byte_fallback"},
        {{.vocab = VOCAB, .added = "{\"id\":9}"}, FERRY_ERR_FORMAT, "added_tokens"},
        {{.vocab = VOCAB, .added = "{\"id\":-9,\"content\":\"x\"}"},
         FERRY_ERR_FORMAT,
         "added_tokens"},
        {{.vocab = VOCAB, .added = "{\"id\":9,\"content\":\"a\"}"}, FERRY_ERR_FORMAT, "has id 9"},
        {{.vocab = VOCAB, .added = "{\"id\":9,\"content\":\"x\",\"lstrip\":3}"},
         FERRY_ERR_FORMAT,
         "lstrip"},
    };
    static const char *const TEXTS[][2] = {
        {"", "tokenizer.json"},
        {"{", "tokenizer.json"},
        {"[]", "top-level"},
        {"{\"model\":3}", "model"},
        {"{\"model\":{\"type\":\"WordPiece\",\"vocab\":{}}}", "WordPiece"},
        {"{\"model\":{\"vocab\":{}}}", "model type"},
        {"{\"model\":{\"vocab\":[],\"merges\":[]}}", "vocab"},
        {"{\"model\":{\"vocab\":{},\"merges\":{}}}", "merges"},
        {"{\"model\":{\"vocab\":{},\"merges\":[3]}}", "merge 0"},
        {"{\"truncation\":{},\"model\":{\"vocab\":{},\"merges\":[]}}", "truncation"},
        {"{\"added_tokens\":{},\"model\":{\"vocab\":{},\"merges\":[]}}", "added_tokens"},
    };

    (void)state;
    for (size_t i = 0; i < COUNT_OF(CASES); i++)
        expect_refused(&CASES[i].small, CASES[i].status, CASES[i].part);
    for (size_t i = 0; i < COUNT_OF(TEXTS); i++) {
        struct tokenizer *t = NULL;
        struct ferry_error err = {0};
        assert_int_not_equal(
            tokenizer_create_json(&t, TEXTS[i][0], strlen(TEXTS[i][0]), NULL, 0, &err), FERRY_OK);
        assert_null(t);
        if (strstr(err.msg, TEXTS[i][1]) == NULL)
            fail_msg("%s: %s", TEXTS[i][0], err.msg);
    }
}

static void empty_vocabulary_is_usable(void **state)
{
    static const char JSON[] = "{\"model\":{\"vocab\":{},\"merges\":[]}}";
    struct tokenizer *t = NULL;

    (void)state;
    assert_int_equal(tokenizer_create_json(&t, JSON, sizeof JSON - 1, NULL, 0, NULL), FERRY_OK);
    expect_ids(t, "anything", true, "");
    assert_int_equal(tokenizer_n_vocab(t), 0);
    tokenizer_destroy(t);
}

static struct tokenizer *with_config(const char *config)
{
    static const struct small SMALL = {
        .pre_tokenizer = BYTE_LEVEL,
        .added = "{\"id\":256,\"content\":\"<s>\",\"special\":true},"
                 "{\"id\":257,\"content\":\"<|im_end|>\",\"special\":true},"
                 "{\"id\":258,\"content\":\"</s>\",\"special\":true}"};
    struct bytes json = {0};
    struct tokenizer *t = NULL;
    struct ferry_error err = {0};

    small_json(&SMALL, &json);
    if (tokenizer_create_json(&t, json.data, json.size, config, strlen(config), &err) != FERRY_OK)
        fail_msg("%s", err.msg);
    bytes_fini(&json);
    return t;
}

static void roles_from_the_configuration(void **state)
{
    (void)state;
    struct tokenizer *t = with_config("{\"bos_token\":\"<s>\",\"eos_token\":{\"content\":\"</s>\"},"
                                      "\"chat_template\":\"{{ x }}\"}");
    assert_int_equal(tokenizer_bos(t), 256);
    assert_int_equal(tokenizer_eos(t), 258);
    assert_true(tokenizer_is_eog(t, 258) && tokenizer_is_eog(t, 257));
    assert_false(tokenizer_is_eog(t, 256) || tokenizer_is_eog(t, -1));
    assert_false(tokenizer_adds_bos(t));
    assert_string_equal(tokenizer_chat_template(t), "{{ x }}");
    tokenizer_destroy(t);
    t = with_config("{\"bos_token\":null,\"chat_template\":[{\"name\":\"tool\",\"template\":\"a\"},"
                    "{\"name\":\"default\",\"template\":\"b\"}]}");
    assert_int_equal(tokenizer_bos(t), -1);
    assert_string_equal(tokenizer_chat_template(t), "b");
    tokenizer_destroy(t);
    t = with_config("{}");
    assert_null(tokenizer_chat_template(t));
    assert_int_equal(tokenizer_eos(t), -1);
    tokenizer_destroy(t);
}

/* Creating, encoding and decoding with allocation number n failing, for every n. */
static void every_allocation_may_fail(void **state)
{
    const char *const merges[] = {"a b", NULL};
    const struct small small = {.normalizer = "{\"type\":\"NFC\"}",
                                .pre_tokenizer = BYTE_LEVEL,
                                .decoder = BYTE_LEVEL_DECODER,
                                .merges = merges,
                                .model = "\"ignore_merges\":true,",
                                .added = "{\"id\":257,\"content\":\"<x>\",\"normalized\":true}"};
    struct bytes json = {0};
    bool done = false;

    (void)state;
    small_json(&small, &json);
    for (uint64_t n = 1; !done; n++) {
        struct tokenizer *t = NULL;
        struct token_ids ids = {0};
        char *text = NULL;
        size_t size;
        uint64_t calls = mem_count_calls();
        mem_fail_after(n);
        enum ferry_status st = tokenizer_create_json(&t, json.data, json.size, "{}", 2, NULL);
        if (st == FERRY_OK)
            st = tokenizer_encode(t, "ab<x> e\xCC\x81 \xFF", 10, true, true, &ids, NULL);
        if (st == FERRY_OK)
            st = tokenizer_decode(t, ids.ids, ids.count, false, &text, &size, NULL);
        mem_fail_after(0);
        /* Machine code for patterns is optional: without memory for it all succeeds. */
        assert_true(st == FERRY_OK || st == FERRY_ERR_NOMEM);
        done = mem_count_calls() - calls < n;
        assert_true(!done || (st == FERRY_OK && n > 20));
        mem_free(text);
        token_ids_fini(&ids);
        tokenizer_destroy(t);
    }
    bytes_fini(&json);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(merges_in_both_forms),
        cmocka_unit_test(damaged_documents),
        cmocka_unit_test(empty_vocabulary_is_usable),
        cmocka_unit_test(roles_from_the_configuration),
        cmocka_unit_test(every_allocation_may_fail),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
