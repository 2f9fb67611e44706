/* What is rewritten, what is refused by name. */
#include "../unit.h"

#include "text/regex_syntax.h"

#include <string.h>

#define WORD                                                                                   \
    "\\p{L}\\p{M}\\p{Nd}\\p{Nl}\\p{Pc}\\x{B2}\\x{B3}\\x{B9}\\x{BC}-\\x{BE}\\x{24B6}-\\x{24E9}" \
    "\\x{1F130}-\\x{1F149}\\x{1F150}-\\x{1F169}\\x{1F170}-\\x{1F189}"

static void rewrites_what_differs(void **state)
{
    static const char *const CASES[][2] = {
        {"\\p{L}+| ?\\p{N}", "\\p{L}+| ?\\p{N}"},
        {"\\p{Han}", "\\p{sc:Han}"},
        {"\\p{^Lu}\\P{Greek}", "\\p{^Lu}\\P{sc:Greek}"},
        {"\\w[\\w-]", "[" WORD "][" WORD "-]"},
        {"\\W", "[^" WORD "]"},
        {"\\v\\u00e9\\x41\\x{1F600}", "\\x0B\\x{00e9}\\x{41}\\x{1F600}"},
        {"^a$", "(?m:^)a(?m:$)"},
        {"(?i:'s|'t)(?=a)(?!b)(?<=c)(?<!d)(?>e)(?:f)(g)",
         "(?i:'s|'t)(?=a)(?!b)(?<=c)(?<!d)(?>e)(?:f)(g)"},
        {"(?i)a", "(?i)a"},
        {"a{2}b{1,3}c{1,}?d++e?+f*+", "a{2}b{1,3}c{1,}?d++e?+f*+"},
        {"[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~]",
         "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~]"},
        {"[\xE4\xB8\x80-\xE9\xBE\xA5]\\\xC3\xA9", "[\xE4\xB8\x80-\xE9\xBE\xA5]\xC3\xA9"},
    };

    (void)state;
    for (size_t i = 0; i < COUNT_OF(CASES); i++) {
        struct bytes got = {0};
        struct ferry_error err = {0};
        if (regex_translate(&got, CASES[i][0], strlen(CASES[i][0]), &err) != FERRY_OK)
            fail_msg("%s", err.msg);
        assert_true(bytes_append(&got, "", 1));
        assert_string_equal(got.data, CASES[i][1]);
        bytes_fini(&got);
    }
}

static void refuses_the_rest_by_name(void **state)
{
    static const char *const CASES[][2] = {
        {"[\\p{L}&&[^\\p{Han}]]", "class intersection"}, /* Kimi's */
        {"[a&&b]", "&&"},
        {"[[:alpha:]]", "class in a class"},
        {"\\p{N}{1,3}+", "quantifier behind an interval"},
        {"a{2}?", "quantifier behind an interval"},
        {"a{,2}", "interval"},
        {"{", "interval"},
        {"(*FAIL)", "(*"},
        {"(?<name>a)", "group"},
        {"(?m:a)", "group"},
        {"a(?i)b", "group"},
        {"(?#c)", "group"},
        {"\\h", "escape"},
        {"\\b", "escape"},
        {"\\R", "escape"},
        {"\\1", "escape"},
        {"\\K", "escape"},
        {"\\xE9", "\\x"},
        {"\\x{}", "\\x"},
        {"\\u12", "\\u"},
        {"\\p{L", "\\p"},
        {"\\pL", "\\p"},
        {"\\p{Xx}", "property name"},
        {"\\p{a b}", "property name"},
        {"[]a]", "] first"},
        {"[\\W]", "\\W in a class"},
        {"[\\A]", "anchor"},
        {"a\\", "lone backslash"},
    };

    (void)state;
    for (size_t i = 0; i < COUNT_OF(CASES); i++) {
        struct bytes got = {0};
        struct ferry_error err = {0};
        assert_int_equal(regex_translate(&got, CASES[i][0], strlen(CASES[i][0]), &err),
                         FERRY_ERR_UNSUPPORTED);
        if (strstr(err.msg, CASES[i][1]) == NULL)
            fail_msg("%s: %s", CASES[i][0], err.msg);
        bytes_fini(&got);
    }
    struct bytes got = {0};
    assert_int_equal(regex_translate(&got, "a\0b", 3, NULL), FERRY_ERR_UNSUPPORTED);
    assert_int_equal(regex_translate(&got, "\xFF", 1, NULL), FERRY_ERR_FORMAT);
    bytes_fini(&got);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rewrites_what_differs),
        cmocka_unit_test(refuses_the_rest_by_name),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
