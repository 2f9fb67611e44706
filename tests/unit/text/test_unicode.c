/* UTF-8 by the standard's table of well-formed sequences, lossy repair as Python does it, the byte
 * alphabet, properties. */
#include "../unit.h"

#include "text/unicode.h"

#include <string.h>

static void every_scalar_value_survives(void **state)
{
    (void)state;
    for (int32_t code = 0; code < 0x110000; code++) {
        char text[4];
        int32_t back = -2;
        size_t size = utf8_encode(code, text);
        size_t got = utf8_decode(text, size, &back);
        if (code >= 0xD800 && code < 0xE000) {
            assert_int_equal(back, -1);
            assert_int_equal(got, 1);
            continue;
        }
        assert_int_equal(got, size);
        assert_int_equal(back, code);
        assert_int_equal(utf8_valid_size(text, size), size);
        for (size_t n = 1; n < size; n++)
            assert_true(utf8_is_incomplete(text, n));
        assert_false(utf8_is_incomplete(text, size));
    }
}

/* Expected texts: bytes.decode("utf-8", "replace") of CPython 3.11. */
static void ill_formed_bytes_become_one_mark_per_subsequence(void **state)
{
    static const struct {
        const char *in;
        const char *out; /* '?' stands for U+FFFD */
    } CASES[] = {
        {"a\x80z", "a?z"},
        {"\xC0\xAF", "??"},
        {"\xE2\x82", "?"},
        {"\xE2\x82z", "?z"},
        {"\xE2z\x82", "?z?"},
        {"\xF0\x9F\x98", "?"},
        {"\xF0\x9F\xC3\xA9", "?\xC3\xA9"},
        {"\xED\xA0\x80", "???"},
        {"\xF4\x90\x80\x80", "????"},
        {"\xF5\x80\x80\x80", "????"},
        {"\xE0\x9F\xBF", "???"},
        {"\xF0\x8F\xBF\xBF", "????"},
        {"\xF1\x80\x80\xF1\x80", "??"},
        {"\xC3", "?"},
        {"0123456789abcdef\xFFxyz", "0123456789abcdef?xyz"},
    };

    (void)state;
    for (size_t i = 0; i < COUNT_OF(CASES); i++) {
        struct bytes got = {0};
        struct bytes want = {0};
        for (const char *c = CASES[i].out; *c != 0; c++)
            assert_true(*c == '?' ? bytes_append_code(&want, 0xFFFD) : bytes_append(&want, c, 1));
        assert_true(utf8_append_lossy(&got, CASES[i].in, strlen(CASES[i].in)));
        assert_int_equal(got.size, want.size);
        assert_memory_equal(got.data, want.data, want.size);
        bytes_fini(&got);
        bytes_fini(&want);
    }
}

static void byte_alphabet_is_a_bijection(void **state)
{
    (void)state;
    for (int byte = 0; byte < 256; byte++) {
        int32_t code = byte_level_from_byte((unsigned char)byte);
        assert_true(code > 0x20 && code < 0x144);
        assert_int_equal(byte_level_to_byte(code), byte);
    }
    assert_int_equal(byte_level_from_byte(' '), 0x120);
    assert_int_equal(byte_level_from_byte('\n'), 0x10A);
    assert_int_equal(byte_level_from_byte('!'), '!');
    assert_int_equal(byte_level_to_byte(' '), -1);
    assert_int_equal(byte_level_to_byte(0x144), -1);
    assert_int_equal(byte_level_to_byte(-1), -1);
}

static void properties_follow_the_reference(void **state)
{
    (void)state;
    assert_true(unicode_is_space(0x3000) && unicode_is_space('\v') && unicode_is_space(0x85));
    assert_false(unicode_is_space(0x180E) || unicode_is_space(0x200B) || unicode_is_space('a'));
    assert_true(unicode_is_word('_') && unicode_is_word(0x4E00) && unicode_is_word(0x24B6));
    assert_false(unicode_is_word('-') || unicode_is_word(0x1F600));
    assert_true(unicode_is_numeric('7') && unicode_is_numeric(0x2163) && unicode_is_numeric(0xBD));
    assert_false(unicode_is_numeric('a'));
    assert_true(unicode_is_punctuation('$') && unicode_is_punctuation(0x3002));
    assert_true(unicode_is_punctuation(0x166D));
    assert_false(unicode_is_punctuation(0x20AC) || unicode_is_punctuation(0x2E43));
    /* Newer than the tables: CJK extension H (Unicode 15), Kirat Rai digit (16). */
    assert_true(unicode_is_word(0x31350) && unicode_is_numeric(0x16D70));
    assert_int_equal(unicode_stand_in(0x31350), 0x20000);
    assert_int_equal(unicode_stand_in('a'), 'a');
    assert_int_equal(unicode_stand_in(0x10FFFF), 0x10FFFF);
    assert_int_equal(unicode_find_newer("ab\xE1\xA0\x8E", 5), 2);
    assert_int_equal(unicode_find_newer("ab\xE4\xB8\x80", 5), 5);
}

static void buffers_grow_and_keep_their_contents(void **state)
{
    struct bytes b = {0};

    (void)state;
    for (int i = 0; i < 10000; i++) {
        char c = (char)i;
        assert_true(bytes_append(&b, &c, 1));
    }
    for (int i = 0; i < 10000; i++)
        assert_int_equal(b.data[i], (char)i);
    assert_false(bytes_reserve(&b, SIZE_MAX));
    assert_int_equal(b.size, 10000);
    bytes_fini(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_scalar_value_survives),
        cmocka_unit_test(ill_formed_bytes_become_one_mark_per_subsequence),
        cmocka_unit_test(byte_alphabet_is_a_bijection),
        cmocka_unit_test(properties_follow_the_reference),
        cmocka_unit_test(buffers_grow_and_keep_their_contents),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
