/* T34: known fields that are not supported are refused, unless they ask for nothing; unknown ones
 * are listed; with strict_params they are refused, too. */
#include "ask.h"

#include <string.h>

#define CHAT "\"messages\":[{\"role\":\"user\",\"content\":\"x\"}]"

static void test_refused(void **state)
{
    static const struct refusal CASES[] = {
        {"{" CHAT ",\"response_format\":{\"type\":\"json_object\"}}", "response_format",
         "not supported"},
        {"{" CHAT ",\"response_format\":{\"type\":\"json_schema\"}}", "response_format",
         "not supported"},
        {"{" CHAT ",\"response_format\":{}}", "response_format", "not supported"},
        {"{" CHAT ",\"functions\":[{}]}", "functions", "use tools"},
        {"{" CHAT ",\"function_call\":\"auto\"}", "function_call", "use tools"},
        {"{" CHAT ",\"audio\":{}}", "audio", "not supported"},
        {"{" CHAT ",\"modalities\":[\"text\",\"audio\"]}", "modalities", "not supported"},
        {"{" CHAT ",\"modalities\":[\"audio\"]}", "modalities", "not supported"},
        {"{" CHAT ",\"prediction\":{}}", "prediction", "not supported"},
        {"{" CHAT ",\"prompt\":\"x\"}", "prompt", "/v1/completions"},
        {"{" CHAT ",\"chat_template\":\"{{ x }}\"}", "chat_template", "fixed when it starts"},
        {"{" CHAT ",\"guided_json\":{}}", "guided_json", "not supported"},
        {"{" CHAT ",\"min_tokens\":3}", "min_tokens", "not supported"},
        {"{" CHAT ",\"use_beam_search\":true}", "use_beam_search", "not supported"},
        {"{" CHAT ",\"truncate_prompt_tokens\":5}", "truncate_prompt_tokens", "never cut"},
        {"{" CHAT ",\"n_predict\":5}", "n_predict", "use max_tokens"},
        {"{" CHAT ",\"repeat_penalty\":1.1}", "repeat_penalty", "use repetition_penalty"},
        {"{" CHAT ",\"skip_special_tokens\":false}", "skip_special_tokens", "not supported"},
        {"{" CHAT ",\"mirostat\":\"2\"}", "mirostat", "not supported"},
        {"{" CHAT ",\"echo\":true}", "echo", "not supported"},
        {"{" CHAT ",\"user\":7}", "user", "must be a string"},
        {"{" CHAT ",\"store\":\"yes\"}", "store", "true or false"},
        {"{" CHAT ",\"metadata\":[]}", "metadata", "must be an object"},
    };
    static const struct refusal COMPLETIONS[] = {
        {"{\"prompt\":\"x\",\"suffix\":\"y\"}", "suffix", "not supported"},
        {"{\"prompt\":\"x\",\"messages\":[]}", "messages", "/v1/chat/completions"},
        {"{\"prompt\":\"x\",\"top_logprobs\":5}", "top_logprobs", "number of alternatives"},
    };
    (void)state;
    expect_all_denied(OPENAI_CHAT, CASES, COUNT_OF(CASES));
    expect_all_denied(OPENAI_COMPLETION, COMPLETIONS, COUNT_OF(COMPLETIONS));
    expect_denied(OPENAI_TOKENIZE, &ASK_LIMITS, "{\"content\":\"x\"}", 400, "content",
                  "use prompt");
    expect_denied(OPENAI_DETOKENIZE, &ASK_LIMITS, "{\"prompt\":\"x\"}", 400, "prompt",
                  "use tokens");
}

/* What clients send along without meaning anything by it. */
static void test_neutral(void **state)
{
    static const char *const CASES[] = {
        "{" CHAT ",\"response_format\":{\"type\":\"text\"},\"modalities\":[\"text\"],"
        "\"functions\":[],\"audio\":null,\"min_tokens\":0,\"use_beam_search\":false,"
        "\"length_penalty\":1.0,\"skip_special_tokens\":true,\"stop_token_ids\":[],"
        "\"mirostat\":0,\"typical_p\":1,\"grammar\":\"\",\"echo\":false}",
        "{" CHAT ",\"user\":\"u\",\"store\":true,\"metadata\":{\"a\":\"b\"},\"service_tier\":"
        "\"auto\",\"safety_identifier\":\"s\",\"prompt_cache_key\":\"k\"}",
        "{" CHAT ",\"temperature\":null,\"n\":null,\"stop\":null,\"stream\":null,\"seed\":null,"
        "\"logit_bias\":null,\"logprobs\":null,\"tools\":null,\"unknown\":null}",
    };
    (void)state;
    for (size_t i = 0; i < COUNT_OF(CASES); i++) {
        struct openai_request r;
        expect_taken(OPENAI_CHAT, &ASK_LIMITS, CASES[i], &r);
        assert_null(r.ignored);
        openai_request_fini(&r);
    }
}

static void test_unknown(void **state)
{
    static const char BODY[] = "{" CHAT ",\"tempreature\":0.5,\"enable_thinking\":false}";
    struct openai_limits strict = ASK_LIMITS;
    struct openai_request r;

    (void)state;
    expect_taken(OPENAI_CHAT, &ASK_LIMITS, BODY, &r);
    assert_string_equal(r.ignored, "tempreature, enable_thinking");
    openai_request_fini(&r);
    strict.strict_params = true;
    expect_denied(OPENAI_CHAT, &strict, BODY, 400, "tempreature", "--strict-params");
    expect_taken(OPENAI_CHAT, &strict, "{" CHAT ",\"user\":\"u\"}", &r);
    openai_request_fini(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_neutral),
        cmocka_unit_test(test_unknown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
