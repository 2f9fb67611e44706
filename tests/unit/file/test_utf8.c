/* Valid and invalid sequences, at the edges of each length. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "file/utf8.h"

#include <string.h>

static void test_sequences(void **state)
{
    static const struct {
        const char *bytes;
        size_t length; /* 0: invalid */
    } CASES[] = {
        {"a", 1},
        {"\x7F", 1},
        {"\x80", 0},
        {"\xC1\xBF", 0},
        {"\xC2\x80", 2},
        {"\xDF\xBF", 2},
        {"\xC2", 0},
        {"\xC2\x41", 0},
        {"\xE0\x9F\xBF", 0},
        {"\xE0\xA0\x80", 3},
        {"\xED\x9F\xBF", 3},
        {"\xED\xA0\x80", 0},
        {"\xEF\xBF\xBF", 3},
        {"\xE1\x80", 0},
        {"\xE1\x80\x41", 0},
        {"\xF0\x8F\xBF\xBF", 0},
        {"\xF0\x90\x80\x80", 4},
        {"\xF4\x8F\xBF\xBF", 4},
        {"\xF4\x90\x80\x80", 0},
        {"\xF5\x80\x80\x80", 0},
        {"\xFF", 0},
    };
    (void)state;
    for (size_t i = 0; i < sizeof CASES / sizeof CASES[0]; i++) {
        const char *s = CASES[i].bytes;
        if (utf8_length((const unsigned char *)s, strlen(s)) != CASES[i].length)
            fail_msg("case %zu", i);
    }
}

static void test_names(void **state)
{
    (void)state;
    assert_true(utf8_is_name("blk.0.\u00e9", 8));
    assert_true(utf8_is_name("", 0));
    assert_false(utf8_is_name("a\0b", 3));
    assert_false(utf8_is_name("a\tb", 3));
    assert_false(utf8_is_name("a\x7F", 2));
    assert_false(utf8_is_name("a\xC3", 2));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sequences),
        cmocka_unit_test(test_names),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
