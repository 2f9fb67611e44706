/* Settings of an answer: every field, its range, and what cannot go together (T35). */
#include "ask.h"

#include <stdio.h>
#include <string.h>

static void take(const char *settings, struct openai_request *ret)
{
    char body[4096];

    (void)snprintf(body, sizeof body, "{\"prompt\":\"x\"%s%s}", settings[0] != 0 ? "," : "",
                   settings);
    expect_taken(OPENAI_COMPLETION, &ASK_LIMITS, body, ret);
}

static void refuse(const char *settings, const char *param, const char *part)
{
    char body[4096];

    (void)snprintf(body, sizeof body, "{\"prompt\":\"x\",%s}", settings);
    expect_denied(OPENAI_COMPLETION, &ASK_LIMITS, body, 400, param, part);
}

static void test_defaults(void **state)
{
    struct openai_request r;

    (void)state;
    take("", &r);
    assert_true(r.sampling.temperature == 1 && r.sampling.top_p == 1 && r.sampling.min_p == 0);
    assert_true(r.sampling.repetition_penalty == 1 && r.sampling.presence_penalty == 0 &&
                r.sampling.frequency_penalty == 0);
    assert_int_equal(r.sampling.top_k, 0);
    assert_int_equal(r.sampling.n_biases, 0);
    assert_int_equal(r.max_tokens, 0);
    assert_int_equal(r.n_choices, 1);
    assert_int_equal(r.n_stops, 0);
    assert_false(r.has_seed || r.stream || r.include_usage || r.echo || r.logprobs || r.ignore_eos);
    openai_request_fini(&r);
}

static void test_all(void **state)
{
    struct openai_request r;

    (void)state;
    take("\"temperature\":0.5,\"top_p\":0.25,\"top_k\":40,\"min_p\":0.125,"
         "\"repetition_penalty\":1.5,\"presence_penalty\":-2,\"frequency_penalty\":2,"
         "\"logit_bias\":{\"7\":-100,\"299\":5},\"seed\":-3,\"n\":3,\"best_of\":3,"
         "\"stop\":[\"a\",\"bc\"],\"max_tokens\":17,\"ignore_eos\":true,\"stream\":true,"
         "\"stream_options\":{\"include_usage\":true,\"include_obfuscation\":false},"
         "\"logprobs\":20",
         &r);
    assert_true(r.sampling.temperature == 0.5F && r.sampling.top_p == 0.25F);
    assert_int_equal(r.sampling.top_k, 40);
    assert_true(r.sampling.min_p == 0.125F && r.sampling.repetition_penalty == 1.5F);
    assert_true(r.sampling.presence_penalty == -2 && r.sampling.frequency_penalty == 2);
    assert_int_equal(sampler_options_check(&r.sampling, 300, NULL), FERRY_OK);
    assert_int_equal(r.sampling.n_biases, 2);
    assert_int_equal(r.sampling.biases[0].id, 7);
    assert_true(r.sampling.biases[0].bias == SAMPLER_BIAS_BAN);
    assert_int_equal(r.sampling.biases[1].id, 299);
    assert_true(r.has_seed && r.sampling.seed == (uint64_t)-3);
    assert_int_equal(r.n_choices, 3);
    assert_int_equal(r.n_stops, 2);
    assert_string_equal(r.stops[0], "a");
    assert_string_equal(r.stops[1], "bc");
    assert_int_equal(r.max_tokens, 17);
    assert_true(r.ignore_eos && r.stream && r.include_usage && r.logprobs);
    assert_int_equal(r.n_top_logprobs, 20);
    openai_request_fini(&r);
}

static void test_edges(void **state)
{
    struct openai_request r;

    (void)state;
    take("\"repetition_penalty\":0.01,\"temperature\":2,\"min_p\":1", &r);
    assert_int_equal(sampler_options_check(&r.sampling, 300, NULL), FERRY_OK);
    openai_request_fini(&r);
    take("\"temperature\":0,\"top_p\":0,\"top_k\":-1,\"repetition_penalty\":100,\"n\":8,"
         "\"seed\":9223372036854775807,\"stop\":\"one\",\"logprobs\":0,\"max_tokens\":5,"
         "\"max_completion_tokens\":5,\"logit_bias\":{}",
         &r);
    assert_int_equal(sampler_options_check(&r.sampling, 300, NULL), FERRY_OK);
    assert_true(r.sampling.temperature == 0);
    assert_int_equal(r.sampling.top_k, 0);
    assert_true(r.sampling.seed == INT64_MAX);
    assert_int_equal(r.n_stops, 1);
    assert_true(r.logprobs && r.n_top_logprobs == 0);
    assert_int_equal(r.max_tokens, 5);
    openai_request_fini(&r);
    take("\"max_completion_tokens\":6,\"stop\":[],\"seed\":0", &r);
    assert_int_equal(r.max_tokens, 6);
    assert_true(r.has_seed && r.n_stops == 0);
    openai_request_fini(&r);
}

static void test_refused(void **state)
{
    static const struct {
        const char *settings, *param, *part;
    } CASES[] = {
        {"\"temperature\":2.001", "temperature", "is 2.001; it must be in [0, 2]"},
        {"\"temperature\":2.0000000001", "temperature", "is 2.0000000001; it must be in [0, 2]"},
        {"\"temperature\":-0.1", "temperature", "it must be in [0, 2]"},
        {"\"temperature\":\"1\"", "temperature", "must be a number, not a string"},
        {"\"temperature\":NaN", "temperature", "not finite"},
        {"\"top_p\":1.5", "top_p", "[0, 1]"},
        {"\"top_p\":1e400", "top_p", "too large"},
        {"\"top_k\":-2", "top_k", "[-1, 2147483647]"},
        {"\"top_k\":2147483648", "top_k", "[-1, 2147483647]"},
        {"\"top_k\":1.0", "top_k", "must be an integer"},
        {"\"min_p\":-1", "min_p", "[0, 1]"},
        {"\"repetition_penalty\":0", "repetition_penalty", "[0.01, 100]"},
        {"\"presence_penalty\":2.5", "presence_penalty", "[-2, 2]"},
        {"\"frequency_penalty\":-3", "frequency_penalty", "[-2, 2]"},
        {"\"seed\":1.5", "seed", "must be an integer"},
        {"\"seed\":18446744073709551616", "seed", "too large"},
        {"\"n\":0", "n", "[1, 8]"},
        {"\"n\":9", "n", "[1, 8]"},
        {"\"n\":-9223372036854775808", "n", "[1, 8]"},
        {"\"n\":2,\"best_of\":4", "best_of", "must equal n (2)"},
        {"\"n\":2,\"best_of\":1", "best_of", "must equal n (2)"},
        {"\"max_tokens\":0", "max_tokens", "[1, 2147483647]"},
        {"\"max_tokens\":-1", "max_tokens", "[1, 2147483647]"},
        {"\"max_tokens\":16.5", "max_tokens", "must be an integer"},
        {"\"max_completion_tokens\":4294967297", "max_completion_tokens", "[1, 2147483647]"},
        {"\"max_tokens\":5,\"max_completion_tokens\":6", "max_completion_tokens",
         "is 6, but max_tokens is 5"},
        {"\"stop\":\"\"", "stop", "must not be empty"},
        {"\"stop\":[\"a\",\"\"]", "stop[1]", "must not be empty"},
        {"\"stop\":[null]", "stop[0]", "must be a string"},
        {"\"stop\":5", "stop", "string or an array"},
        {"\"stop\":[\"a\",\"a\",\"a\",\"a\",\"a\",\"a\",\"a\",\"a\",\"a\",\"a\",\"a\",\"a\",\"a\","
         "\"a\",\"a\",\"a\",\"a\"]",
         "stop", "has 17 strings; the most are 16"},
        {"\"stream\":1", "stream", "true or false"},
        {"\"stream_options\":{}", "stream_options", "needs stream to be true"},
        {"\"stream\":true,\"stream_options\":[]", "stream_options", "must be an object"},
        {"\"stream\":true,\"stream_options\":{\"include_usage\":1}", "stream_options.include_usage",
         "true or false"},
        {"\"stream\":true,\"stream_options\":{\"continuous_usage_stats\":true}",
         "stream_options.continuous_usage_stats", "not supported"},
        {"\"logprobs\":21", "logprobs", "[0, 20]"},
        {"\"logprobs\":true", "logprobs", "must be an integer"},
        {"\"echo\":true,\"logprobs\":0", "echo", "cannot go with logprobs"},
        {"\"ignore_eos\":\"no\"", "ignore_eos", "true or false"},
        {"\"logit_bias\":[]", "logit_bias", "must be an object"},
        {"\"logit_bias\":{\"300\":1}", "logit_bias", "below 300"},
        {"\"logit_bias\":{\"-1\":1}", "logit_bias", "no token id"},
        {"\"logit_bias\":{\"01\":1}", "logit_bias", "no token id"},
        {"\"logit_bias\":{\"\":1}", "logit_bias", "no token id"},
        {"\"logit_bias\":{\"1e1\":1}", "logit_bias", "no token id"},
        {"\"logit_bias\":{\"99999999999999999999\":1}", "logit_bias", "no token id"},
        {"\"logit_bias\":{\"5\":100.5}", "logit_bias.5", "[-100, 100]"},
        {"\"logit_bias\":{\"5\":null}", "logit_bias.5", "must be a number"},
        {"\"logit_bias\":{\"5\":\"x\"}", "logit_bias.5", "must be a number"},
    };
    (void)state;
    for (size_t i = 0; i < COUNT_OF(CASES); i++)
        refuse(CASES[i].settings, CASES[i].param, CASES[i].part);
}

static void test_long_stop(void **state)
{
    char settings[OPENAI_STOP_BYTES_MAX + 100];
    struct openai_request r;

    (void)state;
    (void)snprintf(settings, sizeof settings, "\"stop\":[\"%0*d\"]", (int)OPENAI_STOP_BYTES_MAX, 0);
    take(settings, &r);
    assert_int_equal(strlen(r.stops[0]), OPENAI_STOP_BYTES_MAX);
    openai_request_fini(&r);
    (void)snprintf(settings, sizeof settings, "\"stop\":[\"%0*d\"]", (int)OPENAI_STOP_BYTES_MAX + 1,
                   0);
    refuse(settings, "stop[0]", "has 1025 bytes; the most are 1024");
}

static void test_many_biases(void **state)
{
    static char body[32 * OPENAI_BIASES_MAX];
    struct openai_limits limits = ASK_LIMITS;
    struct openai_request r;

    (void)state;
    limits.n_vocab = 0;
    for (int n = OPENAI_BIASES_MAX; n <= OPENAI_BIASES_MAX + 1; n++) {
        size_t used = (size_t)snprintf(body, sizeof body, "{\"prompt\":\"x\",\"logit_bias\":{");
        for (int i = 0; i < n; i++)
            used += (size_t)snprintf(body + used, sizeof body - used, "%s\"%d\":1",
                                     i > 0 ? "," : "", i);
        (void)snprintf(body + used, sizeof body - used, "}}");
        if (n > OPENAI_BIASES_MAX) {
            expect_denied(OPENAI_COMPLETION, &limits, body, 400, "logit_bias",
                          "has 1025 entries; the most are 1024");
            break;
        }
        expect_taken(OPENAI_COMPLETION, &limits, body, &r);
        assert_int_equal(r.sampling.n_biases, OPENAI_BIASES_MAX);
        openai_request_fini(&r);
    }
}

#define CHAT "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],"

static void test_chat(void **state)
{
    static const struct refusal CASES[] = {
        {CHAT "\"logprobs\":5}", "logprobs", "true or false"},
        {CHAT "\"top_logprobs\":5}", "top_logprobs", "needs logprobs"},
        {CHAT "\"logprobs\":false,\"top_logprobs\":1}", "top_logprobs", "needs logprobs"},
        {CHAT "\"logprobs\":true,\"top_logprobs\":21}", "top_logprobs", "[0, 20]"},
        {CHAT "\"logprobs\":true,\"top_logprobs\":-1}", "top_logprobs", "[0, 20]"},
    };
    struct openai_request r;

    (void)state;
    expect_all_denied(OPENAI_CHAT, CASES, COUNT_OF(CASES));
    expect_taken(OPENAI_CHAT, &ASK_LIMITS, CHAT "\"logprobs\":true,\"top_logprobs\":3}", &r);
    assert_true(r.logprobs && r.n_top_logprobs == 3);
    openai_request_fini(&r);
    expect_taken(OPENAI_CHAT, &ASK_LIMITS, CHAT "\"logprobs\":true}", &r);
    assert_true(r.logprobs && r.n_top_logprobs == 0);
    openai_request_fini(&r);
    expect_denied(OPENAI_CHAT, &ASK_LIMITS, CHAT "\"n\":9}", 400, "n", "[1, 8]");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_defaults),  cmocka_unit_test(test_all),
        cmocka_unit_test(test_edges),     cmocka_unit_test(test_refused),
        cmocka_unit_test(test_long_stop), cmocka_unit_test(test_many_biases),
        cmocka_unit_test(test_chat),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
