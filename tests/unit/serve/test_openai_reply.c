/* Answers: exact shapes, read back by a JSON parser; a stream adds up to the whole answer. */
#include "ask.h"

#include "base/alloc.h"
#include "serve/openai_reply.h"

#include <string.h>

static const struct openai_usage USAGE = {
    .prompt_tokens = 7, .completion_tokens = 5, .cached_tokens = 3};

static struct openai_head head_of(enum openai_kind kind)
{
    return (struct openai_head){.kind = kind,
                                .id = kind == OPENAI_CHAT ? "chatcmpl-1" : "cmpl-1",
                                .created = 1700000000,
                                .model = "m\"\xFF",
                                .fingerprint = "n1-abc",
                                .seed = (uint64_t)-2};
}

/* Expects the writer to hold JSON that equals the text, and empties it. */
static void expect_written(struct json_writer *w, const char *wanted)
{
    assert_false(w->failed);
    json_t *json = read_json(w->data, w->size);
    expect_json(json, wanted);
    json_decref(json);
    json_writer_reset(w);
}

/* The same for one event of a stream. */
static void expect_event(struct json_writer *w, const char *wanted)
{
    assert_false(w->failed);
    assert_memory_equal(w->data, "data: ", 6);
    assert_memory_equal(w->data + w->size - 2, "\n\n", 2);
    assert_null(memchr(w->data, '\n', w->size - 2));
    json_t *json = read_json(w->data + 6, w->size - 8);
    expect_json(json, wanted);
    json_decref(json);
    json_writer_reset(w);
}

#define HEAD(id, object)                                                                      \
    "{\"id\":\"" id "\",\"object\":\"" object                                                 \
    "\",\"created\":1700000000,\"model\":\"m\\\"\\ufffd\",\"system_fingerprint\":\"n1-abc\"," \
    "\"seed\":-2,\"choices\":"
#define CHUNK HEAD("chatcmpl-1", "chat.completion.chunk")
#define NUMBERS                                                         \
    "{\"prompt_tokens\":7,\"completion_tokens\":5,\"total_tokens\":12," \
    "\"prompt_tokens_details\":{\"cached_tokens\":3}}"

static void test_chat_chunks(void **state)
{
    struct openai_head head = head_of(OPENAI_CHAT);
    struct json_writer w = {0};
    struct openai_delta delta = {.index = 1, .first = true};

    (void)state;
    openai_write_chunk(&w, &head, &delta);
    expect_event(&w, CHUNK "[{\"index\":1,\"delta\":{\"role\":\"assistant\",\"content\":\"\"},"
                           "\"logprobs\":null,\"finish_reason\":null}]}");
    delta = (struct openai_delta){.text = "a\n\"", .text_size = 3};
    openai_write_chunk(&w, &head, &delta);
    expect_event(&w, CHUNK "[{\"index\":0,\"delta\":{\"content\":\"a\\n\\\"\"},\"logprobs\":null,"
                           "\"finish_reason\":null}]}");
    delta = (struct openai_delta){.text = "z", .text_size = 1, .finish = "length"};
    openai_write_chunk(&w, &head, &delta);
    expect_event(&w, CHUNK "[{\"index\":0,\"delta\":{\"content\":\"z\"},\"logprobs\":null,"
                           "\"finish_reason\":\"length\"}]}");
    /* An answer without any text: one chunk is its first and its last. */
    delta = (struct openai_delta){.first = true, .finish = "stop"};
    openai_write_chunk(&w, &head, &delta);
    expect_event(&w, CHUNK "[{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\"\"},"
                           "\"logprobs\":null,\"finish_reason\":\"stop\"}]}");
    head.include_usage = true;
    delta = (struct openai_delta){.finish = "stop"};
    openai_write_chunk(&w, &head, &delta);
    expect_event(&w, CHUNK "[{\"index\":0,\"delta\":{},\"logprobs\":null,\"finish_reason\":"
                           "\"stop\"}],\"usage\":null}");
    openai_write_usage_chunk(&w, &head, &USAGE);
    expect_event(&w, CHUNK "[],\"usage\":" NUMBERS "}");
    openai_write_done(&w);
    json_put_raw(&w, "", 1);
    assert_string_equal(w.data, "data: [DONE]\n\n");
    json_writer_fini(&w);
}

static const struct logprobs LOGPROBS[] = {
    {.chosen = {1, -0.5F}, .n_top = 1, .top = {{1, -0.5F}}},
    {.chosen = {2, -0.25F}, .n_top = 1, .top = {{3, -0.125F}}},
};
static const struct request_token TOKENS[] = {{1, &LOGPROBS[0]}, {2, &LOGPROBS[1]}};

static void test_completion_chunks(void **state)
{
    struct openai_head head = head_of(OPENAI_COMPLETION);
    struct json_writer w = {0};
    struct openai_delta delta = {.first = true, .text = "x", .text_size = 1};
    size_t offset = 0;

    (void)state;
    openai_write_chunk(&w, &head, &delta);
    expect_event(&w, HEAD("cmpl-1", "text_completion") "[{\"index\":0,\"text\":\"x\",\"logprobs\":"
                                                       "null,\"finish_reason\":null}]}");
    head.logprobs = true;
    head.n_top_logprobs = 1;
    delta = (struct openai_delta){.tokens = TOKENS, .n_tokens = 2, .text_offset = &offset};
    openai_write_chunk(&w, &head, &delta);
    expect_event(
        &w,
        HEAD("cmpl-1",
             "text_completion") "[{\"index\":0,\"text\":\"\",\"logprobs\":{\"tokens\":[\"\",\"\"],"
                                "\"token_logprobs\":[-0.5,-0.25],\"top_logprobs\":[{\"\":-0.5},{"
                                "\"\":-0.125}]"
                                ",\"text_offset\":[0,0]},\"finish_reason\":null}]}");
    delta = (struct openai_delta){.finish = "stop"};
    openai_write_chunk(&w, &head, &delta);
    expect_event(&w, HEAD("cmpl-1", "text_completion") "[{\"index\":0,\"text\":\"\",\"logprobs\":"
                                                       "null,\"finish_reason\":\"stop\"}]}");
    json_writer_fini(&w);
}

static void test_answers(void **state)
{
    struct openai_head head = head_of(OPENAI_CHAT);
    struct openai_choice choices[2] = {{.finish = "stop"}, {.finish = "length"}};
    struct json_writer w = {0};

    (void)state;
    assert_true(openai_choice_append(&choices[0], "Hi", 2, TOKENS, 1));
    assert_true(openai_choice_append(&choices[0], " \xE2\x82\xAC", 4, NULL, 0));
    openai_write_answer(&w, &head, choices, 2, &USAGE);
    expect_written(
        &w,
        HEAD(
            "chatcmpl-1",
            "chat.completion") "[{\"index\":0,\"message\":{\"role\":\"assistant\",\"content\":\"Hi "
                               "\\u20ac\",\"refusal\":null},\"logprobs\":null,\"finish_reason\":"
                               "\"stop\"},"
                               "{\"index\":1,\"message\":{\"role\":\"assistant\",\"content\":\"\","
                               "\"refusal\":null},\"logprobs\":null,\"finish_reason\":\"length\"}],"
                               "\"usage\":" NUMBERS "}");
    head.logprobs = true;
    openai_write_answer(&w, &head, choices, 1, &USAGE);
    expect_written(
        &w,
        HEAD(
            "chatcmpl-1",
            "chat.completion") "[{\"index\":0,\"message\":{\"role\":\"assistant\",\"content\":\"Hi "
                               "\\u20ac\",\"refusal\":null},\"logprobs\":{\"content\":[{\"token\":"
                               "\"\","
                               "\"logprob\":-0.5,\"bytes\":[],\"top_logprobs\":[]}],\"refusal\":"
                               "null},"
                               "\"finish_reason\":\"stop\"}],\"usage\":" NUMBERS "}");
    head = head_of(OPENAI_COMPLETION);
    head.logprobs = true;
    openai_write_answer(&w, &head, &choices[1], 1, &USAGE);
    expect_written(
        &w, HEAD("cmpl-1",
                 "text_completion") "[{\"index\":0,\"text\":\"\",\"logprobs\":{\"tokens\":[],"
                                    "\"token_logprobs\":[],\"top_logprobs\":[],\"text_offset\":[]},"
                                    "\"finish_reason\":\"length\"}],\"usage\":" NUMBERS "}");
    openai_choice_fini(&choices[0]);
    openai_choice_fini(&choices[1]);
    json_writer_fini(&w);
}

/* The contents and log-probabilities of all chunks, joined, are those of the whole answer; from the
 * second chunk of a size on nothing is allocated. */
static void test_stream_is_answer(void **state)
{
    static const char TEXT[] = "One \xC3\xA4 \xF0\x9F\x98\x80 \"two\"\n\\ \xE2\x80\xA8 end";
    struct openai_head head = head_of(OPENAI_CHAT);
    struct openai_choice choice = {.finish = "stop"};
    struct json_writer w = {0};
    char joined[sizeof TEXT] = "";
    json_t *entries = json_array();
    uint64_t calls = 0;
    size_t n_chunks = 0;

    (void)state;
    head.logprobs = true;
    for (size_t at = 0; at < sizeof TEXT - 1;) {
        size_t n = 1;
        while (((unsigned char)TEXT[at + n] & 0xC0) == 0x80)
            n++;
        struct openai_delta delta = {.text = TEXT + at,
                                     .text_size = n,
                                     .tokens = &TOKENS[n_chunks % 2],
                                     .n_tokens = 1,
                                     .first = at == 0};
        json_writer_reset(&w);
        openai_write_chunk(&w, &head, &delta);
        if (n_chunks++ == 0)
            calls = mem_count_calls();
        assert_int_equal(mem_count_calls(), calls);
        json_t *chunk = read_json(w.data + 6, w.size - 8);
        const json_t *first = json_array_get(json_object_get(chunk, "choices"), 0);
        strcat(joined,
               json_string_value(json_object_get(json_object_get(first, "delta"), "content")));
        json_array_extend(entries, json_object_get(json_object_get(first, "logprobs"), "content"));
        json_decref(chunk);
        assert_true(openai_choice_append(&choice, delta.text, n, delta.tokens, delta.n_tokens));
        calls = mem_count_calls();
        at += n;
    }
    assert_string_equal(joined, TEXT);
    json_writer_reset(&w);
    openai_write_answer(&w, &head, &choice, 1, &USAGE);
    json_t *answer = read_json(w.data, w.size);
    const json_t *first = json_array_get(json_object_get(answer, "choices"), 0);
    assert_string_equal(
        json_string_value(json_object_get(json_object_get(first, "message"), "content")), TEXT);
    assert_true(
        json_equal(json_object_get(json_object_get(first, "logprobs"), "content"), entries));
    json_decref(answer);
    json_decref(entries);
    openai_choice_fini(&choice);
    json_writer_fini(&w);
}

static void test_errors(void **state)
{
    struct openai_error error = {.http = 400, .type = "t", .code = NULL, .message = "bad \"x\""};
    struct json_writer w = {0};

    (void)state;
    openai_write_error(&w, &error);
    expect_written(&w, "{\"error\":{\"message\":\"bad \\\"x\\\"\",\"type\":\"t\",\"param\":null,"
                       "\"code\":null}}");
    error.code = "c";
    error.param[0] = (char)0xFF;
    openai_write_error_event(&w, &error); /* T21 */
    expect_event(&w, "{\"error\":{\"message\":\"bad \\\"x\\\"\",\"type\":\"t\",\"param\":"
                     "\"\\ufffd\",\"code\":\"c\"}}");
    json_writer_fini(&w);
    assert_string_equal(openai_finish_name(REQUEST_FINISH_STOP), "stop");
    assert_string_equal(openai_finish_name(REQUEST_FINISH_LENGTH), "length");
    assert_string_equal(openai_finish_name(REQUEST_FINISH_CANCELLED), "abort");
    assert_string_equal(openai_finish_name(REQUEST_FINISH_ERROR), "error");
}

static void test_lists(void **state)
{
    static const struct openai_model MODELS[] = {{"a", 5, 4096}, {"b/\"c", -1, 1}};
    static const int32_t IDS[] = {1, 2147483647};
    struct json_writer w = {0};

    (void)state;
    openai_write_models(&w, MODELS, 2);
    expect_written(&w, "{\"object\":\"list\",\"data\":[{\"id\":\"a\",\"object\":\"model\","
                       "\"created\":5,\"owned_by\":\"ferry\",\"max_model_len\":4096},{\"id\":"
                       "\"b/\\\"c\",\"object\":\"model\",\"created\":-1,\"owned_by\":\"ferry\","
                       "\"max_model_len\":1}]}");
    openai_write_tokens(&w, IDS, 2, 4096, NULL);
    expect_written(&w, "{\"count\":2,\"max_model_len\":4096,\"tokens\":[1,2147483647],"
                       "\"token_strs\":null}");
    openai_write_tokens(&w, NULL, 0, 1, NULL);
    expect_written(&w, "{\"count\":0,\"max_model_len\":1,\"tokens\":[],\"token_strs\":null}");
    openai_write_prompt(&w, "a\xFF", 2);
    expect_written(&w, "{\"prompt\":\"a\\ufffd\"}");
    json_writer_fini(&w);
}

/* Every allocation of a collected answer fails once: told, nothing lost, nothing leaked. */
static void test_no_memory(void **state)
{
    (void)state;
    uint64_t n_failed = 0;
    bool good = false;

    for (uint64_t n = 1; n < 50 && !good; n++) {
        struct openai_head head = head_of(OPENAI_CHAT);
        struct openai_choice choice = {.finish = "stop"};
        struct json_writer w = {0};
        head.logprobs = true;
        mem_fail_after(n);
        good = true;
        for (int i = 0; i < 200; i++)
            good = openai_choice_append(&choice, "0123456789", 10, TOKENS, 2) && good;
        openai_write_answer(&w, &head, &choice, 1, &USAGE);
        good = good && !w.failed;
        mem_fail_after(0);
        n_failed += !good;
        openai_choice_fini(&choice);
        json_writer_fini(&w);
    }
    assert_true(good);
    assert_in_range(n_failed, 5, 40);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_chat_chunks), cmocka_unit_test(test_completion_chunks),
        cmocka_unit_test(test_answers),     cmocka_unit_test(test_stream_is_answer),
        cmocka_unit_test(test_errors),      cmocka_unit_test(test_lists),
        cmocka_unit_test(test_no_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
