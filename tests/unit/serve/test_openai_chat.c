/* Conversations: what the template gets, and what is refused (T38, T41, T44). */
#include "ask.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A template that looks at nothing but messages. */
static bool knows_nothing(const void *arg, const char *name)
{
    (void)arg;
    (void)name;
    return false;
}

static struct openai_limits plain_limits(void)
{
    struct openai_limits limits = ASK_LIMITS;
    limits.template_knows = knows_nothing;
    return limits;
}

static void expect_variables(const struct openai_limits *limits, const char *body,
                             const char *wanted)
{
    struct openai_request r;

    expect_taken(OPENAI_CHAT, limits, body, &r);
    expect_json(r.variables, wanted);
    openai_request_fini(&r);
}

static void expect_messages(const char *messages, const char *wanted)
{
    char body[1000];
    char variables[1000];

    (void)snprintf(body, sizeof body, "{\"messages\":%s}", messages);
    (void)snprintf(variables, sizeof variables, "{\"messages\":%s,\"add_generation_prompt\":true}",
                   wanted);
    expect_variables(&ASK_LIMITS, body, variables);
}

static void test_content(void **state)
{
    (void)state;
    expect_messages("[{\"role\":\"user\",\"content\":\"\"}]",
                    "[{\"role\":\"user\",\"content\":\"\"}]");
    expect_messages(
        "[{\"role\":\"user\",\"name\":\"n\",\"content\":[{\"type\":\"text\",\"text\":"
        "\"a\"},{\"type\":\"text\",\"text\":\"\"},{\"type\":\"text\",\"text\":\"b\"}]}]",
        "[{\"role\":\"user\",\"name\":\"n\",\"content\":\"a\\n\\nb\"}]");
    /* Clients send back what they were given, nulls and all. */
    expect_messages("[{\"role\":\"assistant\",\"content\":null,\"refusal\":null,\"audio\":null,"
                    "\"function_call\":null,\"tool_calls\":null,\"reasoning_content\":\"r\"}]",
                    "[{\"role\":\"assistant\",\"content\":\"\",\"reasoning_content\":\"r\"}]");
    expect_messages("[{\"role\":\"assistant\"}]", "[{\"role\":\"assistant\",\"content\":\"\"}]");
    expect_messages("[{\"role\":\"assistant\",\"content\":[]}]",
                    "[{\"role\":\"assistant\",\"content\":\"\"}]");
}

static void test_roles(void **state)
{
    static const char BODY[] = "{\"messages\":[{\"role\":\"developer\",\"content\":\"d\"},"
                               "{\"role\":\"function\",\"name\":\"f\",\"content\":\"x\"}]}";
    struct openai_limits limits = plain_limits();

    (void)state;
    expect_variables(&ASK_LIMITS, BODY,
                     "{\"messages\":[{\"role\":\"developer\",\"content\":\"d\"},{\"role\":"
                     "\"function\",\"name\":\"f\",\"content\":\"x\"}],\"add_generation_prompt\":"
                     "true}");
    /* To a template that has never heard of it, a developer is the system. */
    expect_variables(&limits, BODY,
                     "{\"messages\":[{\"role\":\"system\",\"content\":\"d\"},{\"role\":"
                     "\"function\",\"name\":\"f\",\"content\":\"x\"}],\"add_generation_prompt\":"
                     "true}");
}

static void test_tool_calls(void **state)
{
    struct openai_request r;

    (void)state;
    expect_messages("[{\"role\":\"assistant\",\"content\":\"c\",\"tool_calls\":[]}]",
                    "[{\"role\":\"assistant\",\"content\":\"c\"}]");
    expect_messages("[{\"role\":\"user\",\"content\":\"c\",\"tool_calls\":[]}]",
                    "[{\"role\":\"user\",\"content\":\"c\"}]");
    expect_messages(
        "[{\"role\":\"assistant\",\"tool_calls\":[{\"id\":\"1\",\"type\":\"function\","
        "\"function\":{\"name\":\"f\",\"arguments\":\"{\\\"a\\\":[1]}\"}},{\"function\":{"
        "\"name\":\"g\",\"arguments\":{\"b\":2}}},{\"function\":{\"name\":\"h\"}}]},"
        "{\"role\":\"tool\",\"tool_call_id\":\"1\",\"content\":\"done\"}]",
        "[{\"role\":\"assistant\",\"content\":\"\",\"tool_calls\":[{\"id\":\"1\",\"type\":"
        "\"function\",\"function\":{\"name\":\"f\",\"arguments\":{\"a\":[1]}}},{\"function\":{"
        "\"name\":\"g\",\"arguments\":{\"b\":2}}},{\"function\":{\"name\":\"h\",\"arguments\":{}}}"
        "]},{\"role\":\"tool\",\"tool_call_id\":\"1\",\"content\":\"done\"}]");
    /* T44: what a model once wrote wrongly must not make the conversation impossible. */
    expect_taken(OPENAI_CHAT, &ASK_LIMITS,
                 "{\"messages\":[{\"role\":\"assistant\",\"tool_calls\":[{\"function\":{\"name\":"
                 "\"f\",\"arguments\":\"{\\\"a\\\":\"}},{\"function\":{\"name\":\"g\","
                 "\"arguments\":\"[1]\"}},{\"function\":{\"name\":\"g\",\"arguments\":\"\"}}]}]}",
                 &r);
    assert_int_equal(r.n_bad_arguments, 3);
    json_t *calls =
        json_object_get(json_array_get(json_object_get(r.variables, "messages"), 0), "tool_calls");
    expect_json(json_array_get(calls, 0),
                "{\"function\":{\"name\":\"f\",\"arguments\":\"{\\\"a\\\":\"}}");
    expect_json(json_array_get(calls, 1), "{\"function\":{\"name\":\"g\",\"arguments\":\"[1]\"}}");
    openai_request_fini(&r);
}

/* JSON inside strings is beyond the body's limits: beyond its own it stays a string. */
static void test_large_arguments(void **state)
{
    enum { N = 6, SIZE = 200000 };
    char *body = malloc((size_t)N * (SIZE + 100) + 200);
    char *p = body;
    struct openai_request r;

    (void)state;
    assert_non_null(body);
    p += sprintf(p, "{\"messages\":[{\"role\":\"assistant\",\"tool_calls\":[");
    for (int i = 0; i < N; i++) {
        p += sprintf(p, "%s{\"function\":{\"name\":\"f\",\"arguments\":\"{", i > 0 ? "," : "");
        memset(p, ' ', SIZE);
        p += SIZE;
        p += sprintf(p, "}\"}}");
    }
    (void)sprintf(p, "]}]}");
    expect_taken(OPENAI_CHAT, &ASK_LIMITS, body, &r);
    assert_int_equal(r.n_bad_arguments, 1); /* a mebibyte holds five of them */
    openai_request_fini(&r);
    free(body);
}

#define M    "{\"messages\":["
#define USER "{\"role\":\"user\",\"content\":\"x\"}"

static void test_refused(void **state)
{
    static const struct refusal CASES[] = {
        {"{}", "messages", "is required"},
        {"{\"messages\":null}", "messages", "is required"},
        {"{\"messages\":[]}", "messages", "messages must not be empty"}, /* T38 */
        {"{\"messages\":\"x\"}", "messages", "must be an array"},
        {M "null]}", "messages[0]", "must be an object"},
        {M USER ",\"x\"]}", "messages[1]", "must be an object"},
        {M "{\"content\":\"x\"}]}", "messages[0].role", "is missing"},
        {M "{\"role\":5,\"content\":\"x\"}]}", "messages[0].role", "must be a string"},
        {M "{\"role\":\"wizard\",\"content\":\"x\"}]}", "messages[0].role", "must be system"},
        {M "{\"role\":\"user\"}]}", "messages[0].content", "is missing"},
        {M "{\"role\":\"tool\",\"content\":null}]}", "messages[0].content", "is missing"},
        {M "{\"role\":\"user\",\"content\":7}]}", "messages[0].content", "string or an array"},
        {M "{\"role\":\"user\",\"content\":[]}]}", "messages[0].content", "empty array"},
        {M "{\"role\":\"user\",\"content\":[\"x\"]}]}", "messages[0].content[0]",
         "must be an object"},
        {M "{\"role\":\"user\",\"content\":[{\"text\":\"x\"}]}]}", "messages[0].content[0].type",
         "is missing"},
        {M "{\"role\":\"user\",\"content\":[{\"type\":\"image_url\",\"image_url\":{}}]}]}",
         "messages[0].content[0].type", "\"text\" only"},
        {M "{\"role\":\"user\",\"content\":[{\"type\":\"text\"}]}]}", "messages[0].content[0].text",
         "is missing"},
        {M "{\"role\":\"user\",\"content\":\"x\",\"name\":5}]}", "messages[0].name",
         "must be a string"},
        {M "{\"role\":\"tool\",\"content\":\"x\",\"tool_call_id\":5}]}", "messages[0].tool_call_id",
         "must be a string"},
        {M "{\"role\":\"user\",\"content\":\"x\",\"audio\":{}}]}", "messages[0].audio",
         "not supported"},
        {M "{\"role\":\"user\",\"content\":\"x\",\"tool_calls\":[{}]}]}", "messages[0].tool_calls",
         "assistant only"},
        {M "{\"role\":\"assistant\",\"tool_calls\":{}}]}", "messages[0].tool_calls",
         "must be an array"},
        {M "{\"role\":\"assistant\",\"tool_calls\":[5]}]}", "messages[0].tool_calls[0]",
         "must be an object"},
        {M "{\"role\":\"assistant\",\"tool_calls\":[{}]}]}", "messages[0].tool_calls[0].function",
         "is missing"},
        {M "{\"role\":\"assistant\",\"tool_calls\":[{\"type\":\"custom\"}]}]}",
         "messages[0].tool_calls[0].type", "function"},
        {M "{\"role\":\"assistant\",\"tool_calls\":[{\"function\":{}}]}]}",
         "messages[0].tool_calls[0].function.name", "is missing"},
        {M "{\"role\":\"assistant\",\"tool_calls\":[{\"function\":{\"name\":\"f\",\"arguments\":5}}"
           "]}]}",
         "messages[0].tool_calls[0].function.arguments", "string with JSON"},
        {M USER "],\"add_generation_prompt\":1}", "add_generation_prompt", "true or false"},
        {M USER "],\"continue_final_message\":true}", "continue_final_message", "not supported"},
        {M USER "],\"tools\":{}}", "tools", "must be an array"},
        {M USER "],\"tools\":[5]}", "tools[0]", "must be an object"},
        {M USER "],\"tools\":[{\"type\":\"web_search\"}]}", "tools[0].type", "function"},
        {M USER "],\"tools\":[{\"type\":\"function\"}]}", "tools[0].function", "is missing"},
        {M USER "],\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"\"}}]}",
         "tools[0].function.name", "is missing"},
        {M USER
         "],\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"parameters\":[]}}]}",
         "tools[0].function.parameters", "must be an object"},
        {M USER "],\"tool_choice\":\"required\"}", "tool_choice", "cannot force"},
        {M USER "],\"tool_choice\":{\"type\":\"function\"}}", "tool_choice", "cannot force"},
        {M USER "],\"documents\":[1]}", "documents[0]", "must be an object"},
        {M USER "],\"reasoning_effort\":3}", "reasoning_effort", "must be a string"},
        {M USER "],\"reasoning_effort\":\"\"}", "reasoning_effort", "must be a word"},
        {M USER "],\"chat_template_kwargs\":[]}", "chat_template_kwargs", "must be an object"},
        {M USER "],\"chat_template_kwargs\":{\"messages\":[]}}", "chat_template_kwargs.messages",
         "field of the request"},
    };
    (void)state;
    expect_all_denied(OPENAI_CHAT, CASES, COUNT_OF(CASES));
}

#define TOOLS  "\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\"}}]"
#define WANTED "{\"messages\":[" USER "],\"add_generation_prompt\":true"

static void test_tools(void **state)
{
    struct openai_limits limits = plain_limits();

    (void)state;
    expect_variables(&ASK_LIMITS, M USER "]," TOOLS ",\"tool_choice\":\"auto\"}",
                     WANTED "," TOOLS "}");
    expect_variables(&ASK_LIMITS, M USER "]," TOOLS ",\"tool_choice\":\"none\"}", WANTED "}");
    expect_variables(&ASK_LIMITS, M USER "],\"tools\":[]}", WANTED "}");
    expect_denied(OPENAI_CHAT, &limits, M USER "]," TOOLS "}", 400, "tools", "has no place for it");
    expect_variables(&limits, M USER "]," TOOLS ",\"tool_choice\":\"none\"}", WANTED "}");
}

static void test_kwargs(void **state)
{
    static const char BODY[] =
        M USER "],\"reasoning_effort\":\"low\",\"documents\":[{\"title\":\"t\"}],"
               "\"chat_template_kwargs\":{\"enable_thinking\":false,\"k\":[1]},"
               "\"add_generation_prompt\":false}";
    struct openai_limits limits = plain_limits();
    struct openai_request r;

    (void)state;
    expect_variables(&ASK_LIMITS, BODY,
                     M USER "],\"add_generation_prompt\":false,\"reasoning_effort\":\"low\","
                            "\"documents\":[{\"title\":\"t\"}],\"enable_thinking\":false,"
                            "\"k\":[1]}");
    expect_denied(OPENAI_CHAT, &limits, BODY, 400, "documents", "has no place for it");
    expect_taken(OPENAI_CHAT, &limits,
                 M USER "],\"reasoning_effort\":\"low\",\"chat_template_kwargs\":{\"k\":1}}", &r);
    assert_string_equal(r.ignored, "reasoning_effort, chat_template_kwargs.k");
    expect_json(r.variables, WANTED "}");
    openai_request_fini(&r);
    limits.strict_params = true;
    expect_denied(OPENAI_CHAT, &limits, M USER "],\"chat_template_kwargs\":{\"k\":1}}", 400,
                  "chat_template_kwargs.k", "--strict-params");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_content),    cmocka_unit_test(test_roles),
        cmocka_unit_test(test_tool_calls), cmocka_unit_test(test_large_arguments),
        cmocka_unit_test(test_refused),    cmocka_unit_test(test_tools),
        cmocka_unit_test(test_kwargs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
