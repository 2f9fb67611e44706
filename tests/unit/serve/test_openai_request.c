/* Whole requests: the model's name, prompts of all forms, the four kinds, and memory that runs out
 * anywhere. */
#include "ask.h"

#include "base/alloc.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void test_model(void **state)
{
    struct openai_request r;

    (void)state;
    expect_taken(OPENAI_COMPLETION, &ASK_LIMITS, "{\"model\":\"other\",\"prompt\":\"x\"}", &r);
    assert_string_equal(r.model, "other");
    openai_request_fini(&r);
    expect_taken(OPENAI_COMPLETION, &ASK_LIMITS, "{\"prompt\":\"x\",\"model\":null}", &r);
    assert_string_equal(r.model, "m");
    openai_request_fini(&r);
    openai_request_fini(&r);
    expect_denied(OPENAI_COMPLETION, &ASK_LIMITS, "{\"model\":\"gpt-4o\",\"prompt\":\"x\"}", 404,
                  "model", "this server has \"m\"");
    expect_denied(OPENAI_COMPLETION, &ASK_LIMITS, "{\"model\":\"\",\"prompt\":\"x\"}", 404, "model",
                  "no such model");
    expect_denied(OPENAI_DETOKENIZE, &ASK_LIMITS, "{\"model\":[],\"tokens\":[]}", 400, "model",
                  "must be a string");
}

static void test_prompts(void **state)
{
    struct openai_request r;

    (void)state;
    expect_taken(OPENAI_COMPLETION, &ASK_LIMITS, "{\"prompt\":\"one\"}", &r);
    assert_int_equal(r.n_prompts, 1);
    assert_string_equal(r.prompts[0].text, "one");
    assert_int_equal(r.prompts[0].text_size, 3);
    assert_true(r.add_special_tokens);
    assert_null(r.variables);
    openai_request_fini(&r);
    expect_taken(OPENAI_COMPLETION, &ASK_LIMITS, "{\"prompt\":[5,0,299],\"echo\":true}", &r);
    assert_int_equal(r.n_prompts, 1);
    assert_null(r.prompts[0].text);
    assert_int_equal(r.prompts[0].n_ids, 3);
    assert_int_equal(r.prompts[0].ids[2], 299);
    assert_true(r.echo);
    openai_request_fini(&r);
    expect_taken(OPENAI_COMPLETION, &ASK_LIMITS,
                 "{\"prompt\":[\"a\",[7],\"\"],\"add_special_tokens\":true}", &r);
    assert_int_equal(r.n_prompts, 3);
    assert_string_equal(r.prompts[0].text, "a");
    assert_int_equal(r.prompts[1].ids[0], 7);
    assert_int_equal(r.prompts[2].text_size, 0);
    openai_request_fini(&r);
}

static void test_prompts_refused(void **state)
{
    static const struct refusal CASES[] = {
        {"{}", "prompt", "prompt is required"},
        {"{\"prompt\":null}", "prompt", "is required"},
        {"{\"prompt\":5}", "prompt", "must be a string, an array"},
        {"{\"prompt\":[]}", "prompt", "must not be empty"},
        {"{\"prompt\":[[]]}", "prompt[0]", "must not be empty"},
        {"{\"prompt\":[1,\"a\"]}", "prompt[1]", "must be a token id"},
        {"{\"prompt\":[\"a\",1]}", "prompt[1]", "must be a string or an array"},
        {"{\"prompt\":[[1],null]}", "prompt[1]", "must be a string or an array"},
        {"{\"prompt\":[300]}", "prompt[0]", "ids are in [0, 300)"},
        {"{\"prompt\":[[1],[2,-1]]}", "prompt[1][1]", "ids are in [0, 300)"},
        {"{\"prompt\":[1.5]}", "prompt[0]", "must be a token id"},
        {"{\"prompt\":[4294967297]}", "prompt[0]", "ids are in [0, 300)"},
        {"{\"prompt\":\"\",\"add_special_tokens\":false}", "prompt", "must not be empty"},
        {"{\"prompt\":[\"a\",\"a\",\"a\",\"a\",\"a\",\"a\",\"a\",\"a\",\"a\",\"a\",\"a\",\"a\","
         "\"a\",\"a\",\"a\",\"a\",\"a\"]}",
         "prompt", "has 17 prompts with n 1; the most are 16 prompts and 64 answers"},
        {"{\"n\":8,\"prompt\":[\"a\",\"a\",\"a\",\"a\",\"a\",\"a\",\"a\",\"a\",\"a\"]}", "prompt",
         "has 9 prompts with n 8"},
    };
    struct openai_limits limits = ASK_LIMITS;

    (void)state;
    expect_all_denied(OPENAI_COMPLETION, CASES, COUNT_OF(CASES));
    limits.has_bos = false; /* T38 */
    expect_denied(OPENAI_COMPLETION, &limits, "{\"prompt\":\"\"}", 400, "prompt",
                  "must not be empty");
    expect_denied(OPENAI_COMPLETION, &limits, "{\"prompt\":[\"a\",\"\"]}", 400, "prompt[1]",
                  "must not be empty");
}

static void test_tokenize(void **state)
{
    static const struct refusal CASES[] = {
        {"{}", "prompt", "prompt or messages is required"},
        {"{\"prompt\":[1]}", "prompt", "must be a string"},
        {"{\"prompt\":\"x\",\"messages\":[]}", "prompt", "cannot go with messages"},
        {"{\"messages\":[]}", "messages", "must not be empty"},
        {"{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"add_special_tokens\":true}",
         "add_special_tokens", "cannot go with messages"},
        {"{\"prompt\":\"x\",\"return_token_strs\":1}", "return_token_strs", "true or false"},
    };
    struct openai_request r;

    (void)state;
    expect_all_denied(OPENAI_TOKENIZE, CASES, COUNT_OF(CASES));
    expect_taken(OPENAI_TOKENIZE, &ASK_LIMITS, "{\"prompt\":\"\"}", &r);
    assert_int_equal(r.n_prompts, 1);
    assert_string_equal(r.prompts[0].text, "");
    assert_true(r.add_special_tokens && !r.return_token_strings);
    openai_request_fini(&r);
    expect_taken(OPENAI_TOKENIZE, &ASK_LIMITS,
                 "{\"prompt\":\"x\",\"add_special_tokens\":false,\"return_token_strs\":true}", &r);
    assert_true(!r.add_special_tokens && r.return_token_strings);
    openai_request_fini(&r);
    expect_taken(OPENAI_TOKENIZE, &ASK_LIMITS,
                 "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],"
                 "\"add_generation_prompt\":false,\"temperature\":1,"
                 "\"reasoning_effort\":\"low\",\"tool_choice\":\"none\"}",
                 &r);
    expect_json(r.variables, "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],"
                             "\"add_generation_prompt\":false,\"reasoning_effort\":\"low\"}");
    assert_int_equal(r.n_prompts, 0);
    assert_string_equal(r.ignored, "temperature");
    openai_request_fini(&r);
}

static void test_detokenize(void **state)
{
    static const struct refusal CASES[] = {
        {"{}", "tokens", "is required"},
        {"{\"tokens\":5}", "tokens", "must be an array"},
        {"{\"tokens\":[1,\"2\"]}", "tokens[1]", "must be a token id"},
        {"{\"tokens\":[300]}", "tokens[0]", "ids are in [0, 300)"},
    };
    struct openai_request r;

    (void)state;
    expect_all_denied(OPENAI_DETOKENIZE, CASES, COUNT_OF(CASES));
    expect_taken(OPENAI_DETOKENIZE, &ASK_LIMITS, "{\"tokens\":[1,2]}", &r);
    assert_int_equal(r.prompts[0].n_ids, 2);
    openai_request_fini(&r);
    expect_taken(OPENAI_DETOKENIZE, &ASK_LIMITS, "{\"tokens\":[]}", &r);
    assert_int_equal(r.n_prompts, 1);
    assert_int_equal(r.prompts[0].n_ids, 0);
    openai_request_fini(&r);
}

/* Every allocation fails once: always an error that fits, never a leak or a crash. */
static void test_no_memory(void **state)
{
    static const struct {
        enum openai_kind kind;
        const char *body;
    } CASES[] = {
        {OPENAI_CHAT,
         "{\"messages\":[{\"role\":\"developer\",\"content\":[{\"type\":\"text\",\"text\":\"a\"}]},"
         "{\"role\":\"assistant\",\"tool_calls\":[{\"function\":{\"name\":\"f\",\"arguments\":"
         "\"{}\"}}]}],\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\"}}],"
         "\"reasoning_effort\":\"low\",\"chat_template_kwargs\":{\"a\":1},\"stop\":[\"x\"],"
         "\"logit_bias\":{\"1\":1},\"unknown\":1,\"user\":\"u\"}"},
        {OPENAI_COMPLETION, "{\"prompt\":[\"a\",[1,2],[3]],\"stop\":\"x\",\"what\":1}"},
        {OPENAI_TOKENIZE, "{\"prompt\":\"a\"}"},
        {OPENAI_DETOKENIZE, "{\"tokens\":[1]}"},
    };
    (void)state;
    json_set_alloc_funcs(mem_alloc, mem_free);
    for (size_t i = 0; i < COUNT_OF(CASES); i++) {
        enum ferry_status st = FERRY_ERR_NOMEM;
        uint64_t n_failed = 0;
        for (uint64_t n = 1; n < 1000 && st != FERRY_OK; n++) {
            struct openai_request r = {0};
            struct openai_error err = {0};
            mem_fail_after(n);
            st = openai_request_parse(CASES[i].kind, CASES[i].body, strlen(CASES[i].body),
                                      &ASK_LIMITS, &r, &err);
            mem_fail_after(0);
            if (st != FERRY_OK && st != FERRY_ERR_NOMEM)
                fail_msg("case %zu allocation %llu: %s", i, (unsigned long long)n, err.message);
            n_failed += st != FERRY_OK;
            openai_request_fini(&r);
        }
        assert_int_equal(st, FERRY_OK);
        assert_in_range(n_failed, 5, 500);
    }
    json_set_alloc_funcs(malloc, free);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_model),           cmocka_unit_test(test_prompts),
        cmocka_unit_test(test_prompts_refused), cmocka_unit_test(test_tokenize),
        cmocka_unit_test(test_detokenize),      cmocka_unit_test(test_no_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
