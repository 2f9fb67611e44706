/* T49: log-probabilities in OpenAI's two shapes, with tokens that are pieces of characters. */
#include "../text/small.h"
#include "ask.h"

#include "serve/openai_logprobs.h"

#include <string.h>

/* Ids 0..255 are the bytes; 256 is a special token. */
enum { SPECIAL = 256 };

static struct tokenizer *tokenizer;

static int set_up(void **state)
{
    const struct small small = {
        .pre_tokenizer = BYTE_LEVEL,
        .decoder = BYTE_LEVEL_DECODER,
        .added = "{\"id\":256,\"content\":\"<|s|>\",\"special\":true,\"normalized\":false,"
                 "\"single_word\":false,\"lstrip\":false,\"rstrip\":false}"};
    (void)state;
    tokenizer = small_tokenizer(&small);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    tokenizer_destroy(tokenizer);
    return 0;
}

static void expect_token(int32_t id, const char *wanted)
{
    struct json_writer w = {0};

    openai_write_token_text(&w, tokenizer, id);
    json_t *text = read_json(w.data, w.size);
    assert_string_equal(json_string_value(text), wanted);
    json_decref(text);
    json_writer_fini(&w);
}

static void test_token_text(void **state)
{
    struct json_writer w = {0};

    (void)state;
    expect_token('A', "A");
    expect_token('"', "\"");
    expect_token('\\', "\\");
    expect_token('\n', "\n");
    expect_token(0xE4, "\\xe4");
    expect_token(0x80, "\\x80");
    expect_token(SPECIAL, "<|s|>");
    expect_token(100000, "");
    openai_write_token_text(&w, NULL, 'A');
    assert_int_equal(w.size, 2);
    json_writer_fini(&w);
}

/* "a", the two bytes of U+00E4, and "b" that was not among the best. */
static const struct logprobs LOGPROBS[] = {
    {.chosen = {'a', -0.5F}, .n_top = 2, .top = {{'a', -0.5F}, {'"', -1.5F}}},
    {.chosen = {0xC3, 0}, .n_top = 2, .top = {{0xC3, 0}, {0xC4, -30}}},
    {.chosen = {0xA4, -0.25F}, .n_top = 1, .top = {{0xA4, -0.25F}}},
    {.chosen = {'b', -4}, .n_top = 2, .top = {{'x', -0.5F}, {'y', -1}}},
};

static json_t *write_chat(const struct openai_tokens *tokens, size_t n_top)
{
    struct json_writer w = {0};

    openai_write_chat_logprobs(&w, tokenizer, tokens, n_top);
    assert_false(w.failed);
    json_t *json = read_json(w.data, w.size);
    json_writer_fini(&w);
    return json;
}

static void test_chat(void **state)
{
    const struct openai_tokens tokens = {.logprobs = LOGPROBS, .n = 4};
    json_t *json = write_chat(&tokens, 2);

    (void)state;
    expect_json(json, "{\"content\":["
                      "{\"token\":\"a\",\"logprob\":-0.5,\"bytes\":[97],\"top_logprobs\":["
                      "{\"token\":\"a\",\"logprob\":-0.5,\"bytes\":[97]},"
                      "{\"token\":\"\\\"\",\"logprob\":-1.5,\"bytes\":[34]}]},"
                      "{\"token\":\"\\\\xc3\",\"logprob\":0.0,\"bytes\":[195],\"top_logprobs\":["
                      "{\"token\":\"\\\\xc3\",\"logprob\":0.0,\"bytes\":[195]},"
                      "{\"token\":\"\\\\xc4\",\"logprob\":-30.0,\"bytes\":[196]}]},"
                      "{\"token\":\"\\\\xa4\",\"logprob\":-0.25,\"bytes\":[164],\"top_logprobs\":["
                      "{\"token\":\"\\\\xa4\",\"logprob\":-0.25,\"bytes\":[164]}]},"
                      "{\"token\":\"b\",\"logprob\":-4.0,\"bytes\":[98],\"top_logprobs\":["
                      "{\"token\":\"x\",\"logprob\":-0.5,\"bytes\":[120]},"
                      "{\"token\":\"y\",\"logprob\":-1.0,\"bytes\":[121]}]}],\"refusal\":null}");
    json_decref(json);
}

static void test_chat_without_top(void **state)
{
    const struct request_token EVENT[] = {{'a', &LOGPROBS[0]}, {'q', NULL}, {'b', &LOGPROBS[3]}};
    const struct openai_tokens tokens = {.tokens = EVENT, .n = 3};
    json_t *json = write_chat(&tokens, 0);

    (void)state;
    expect_json(json, "{\"content\":["
                      "{\"token\":\"a\",\"logprob\":-0.5,\"bytes\":[97],\"top_logprobs\":[]},"
                      "{\"token\":\"b\",\"logprob\":-4.0,\"bytes\":[98],\"top_logprobs\":[]}],"
                      "\"refusal\":null}");
    json_decref(json);
}

/* The bytes of all tokens together are the text. */
static void test_bytes_make_text(void **state)
{
    const struct openai_tokens tokens = {.logprobs = LOGPROBS, .n = 4};
    json_t *json = write_chat(&tokens, 0);
    json_t *content = json_object_get(json, "content");
    char text[8] = {0};
    size_t n = 0;
    size_t i;
    json_t *entry;

    (void)state;
    json_array_foreach(content, i, entry)
    {
        const json_t *bytes = json_object_get(entry, "bytes");
        for (size_t j = 0; j < json_array_size(bytes); j++)
            text[n++] = (char)json_integer_value(json_array_get(bytes, j));
    }
    assert_string_equal(text, "a\xC3\xA4"
                              "b");
    json_decref(json);
}

static void test_completion(void **state)
{
    const struct openai_tokens tokens = {.logprobs = LOGPROBS, .n = 4};
    struct json_writer w = {0};
    size_t offset = 10;

    (void)state;
    openai_write_completion_logprobs(&w, tokenizer, &tokens, 2, &offset);
    json_t *json = read_json(w.data, w.size);
    expect_json(json, "{\"tokens\":[\"a\",\"\\\\xc3\",\"\\\\xa4\",\"b\"],"
                      "\"token_logprobs\":[-0.5,0.0,-0.25,-4.0],"
                      "\"top_logprobs\":[{\"a\":-0.5,\"\\\"\":-1.5},{\"\\\\xc3\":0.0,\"\\\\xc4\":"
                      "-30.0},{\"\\\\xa4\":-0.25},{\"x\":-0.5,\"y\":-1.0,\"b\":-4.0}],"
                      "\"text_offset\":[10,11,12,12]}");
    assert_int_equal(offset, 13);
    json_decref(json);
    json_writer_fini(&w);
}

/* Without alternatives the chosen token is still there, and special tokens take no room in the
 * text. Names of an object do not repeat (read_json refuses that). */
static void test_completion_edges(void **state)
{
    static const struct logprobs CASES[] = {
        {.chosen = {SPECIAL, -1}, .n_top = 3, .top = {{1000, -0.5F}, {1001, -0.75F}, {'z', -3}}},
        {.chosen = {1002, -2}, .n_top = 1, .top = {{1000, -0.5F}}},
    };
    const struct openai_tokens tokens = {.logprobs = CASES, .n = 2};
    struct json_writer w = {0};
    size_t offset = 0;

    (void)state;
    openai_write_completion_logprobs(&w, tokenizer, &tokens, 0, &offset);
    json_t *json = read_json(w.data, w.size);
    expect_json(json_object_get(json, "top_logprobs"), "[{\"<|s|>\":-1.0},{\"\":-2.0}]");
    expect_json(json_object_get(json, "text_offset"), "[0,0]");
    json_decref(json);
    json_writer_reset(&w);
    openai_write_completion_logprobs(&w, tokenizer, &tokens, 20, &offset);
    json = read_json(w.data, w.size);
    expect_json(json_object_get(json, "top_logprobs"),
                "[{\"\":-0.5,\"z\":-3.0,\"<|s|>\":-1.0},{\"\":-0.5}]");
    json_decref(json);
    json_writer_fini(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_token_text),       cmocka_unit_test(test_chat),
        cmocka_unit_test(test_chat_without_top), cmocka_unit_test(test_bytes_make_text),
        cmocka_unit_test(test_completion),       cmocka_unit_test(test_completion_edges),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
