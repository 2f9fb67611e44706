/* Every family compiles; the names in the message; a look at what each does to digits. */
#include "../unit.h"

#include "text/gguf_families.h"
#include "text/regex.h"

#include <string.h>

static void every_pattern_compiles(void **state)
{
    static const char *const NAMES[] = {
        "gpt-2",     "default", "olmo",   "qwen2",  "qwen35", "refact",      "starcoder",
        "llama-bpe", "llama3",  "gpt-4o", "llama4", "tekken", "deepseek-v3", "deepseek-llm"};

    (void)state;
    for (size_t i = 0; i < COUNT_OF(NAMES); i++) {
        const struct gguf_family *family = gguf_family_find(NAMES[i], strlen(NAMES[i]));
        assert_non_null(family);
        assert_non_null(family->patterns[0]);
        for (int k = 0; k < GGUF_PATTERNS_MAX && family->patterns[k] != NULL; k++) {
            struct regex *regex = NULL;
            struct ferry_error err = {0};
            if (regex_create(&regex, family->patterns[k], strlen(family->patterns[k]), &err) !=
                FERRY_OK)
                fail_msg("%s: %s", NAMES[i], err.msg);
            regex_destroy(regex);
        }
    }
}

static void unknown_names_are_not_guessed(void **state)
{
    char list[256];
    char small[16];

    (void)state;
    assert_null(gguf_family_find("dbrx", 4));
    assert_null(gguf_family_find("qwen", 4));
    assert_null(gguf_family_find("qwen22", 6));
    assert_null(gguf_family_find("", 0));
    gguf_family_list(list, sizeof list);
    assert_non_null(strstr(list, "qwen2, "));
    assert_non_null(strstr(list, "deepseek-llm"));
    gguf_family_list(small, sizeof small);
    assert_string_equal(small, "gpt-2, default");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_pattern_compiles),
        cmocka_unit_test(unknown_names_are_not_guessed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
