/* JSON writer: any bytes give well-formed JSON, numbers come back, memory that runs out is told. */
#include "ask.h"

#include "base/alloc.h"
#include "serve/json_writer.h"
#include "text/unicode.h"

#include <math.h>
#include <string.h>

static void expect_written(const char *s, size_t size, const char *wanted)
{
    struct json_writer w = {0};

    json_put_string(&w, s, size);
    json_put_raw(&w, "", 1);
    assert_false(w.failed);
    assert_string_equal(w.data, wanted);
    json_writer_fini(&w);
}

static void test_escapes(void **state)
{
    (void)state;
    expect_written("", 0, "\"\"");
    expect_written(NULL, 0, "\"\"");
    expect_written("plain text", 10, "\"plain text\"");
    expect_written("\"\\/", 3, "\"\\\"\\\\/\"");
    expect_written("\b\f\n\r\t", 5, "\"\\b\\f\\n\\r\\t\"");
    expect_written("a\0b\x01\x1F\x7F", 6, "\"a\\u0000b\\u0001\\u001f\x7F\"");
    expect_written("\xC3\xA4\xE2\x82\xAC\xF0\x9F\x98\x80", 9,
                   "\"\xC3\xA4\xE2\x82\xAC\xF0\x9F\x98\x80\"");
    /* Python's splitlines, and with it some clients, would end a line here. */
    expect_written("\xC2\x85\xE2\x80\xA8\xE2\x80\xA9", 8, "\"\\u0085\\u2028\\u2029\"");
}

static void test_ill_formed(void **state)
{
    (void)state;
    expect_written("\xFF", 1, "\"\xEF\xBF\xBD\"");
    expect_written("a\xE4\xBD", 3, "\"a\xEF\xBF\xBD\"");           /* cut short */
    expect_written("\xE4\xBDz", 3, "\"\xEF\xBF\xBDz\"");           /* goes on wrongly */
    expect_written("\xC0\xAF", 2, "\"\xEF\xBF\xBD\xEF\xBF\xBD\""); /* overlong */
    expect_written("\xED\xA0\x80", 3, "\"\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD\""); /* surrogate */
}

/* Every text of random bytes is read back as its lossy decoding. */
static void test_random_bytes(void **state)
{
    uint64_t seed = 1;

    (void)state;
    for (int round = 0; round < 3000; round++) {
        char s[24];
        size_t n = (size_t)round % sizeof s;
        struct json_writer w = {0};
        struct bytes lossy = {0};
        for (size_t i = 0; i < n; i++) {
            static const char LIKELY[] = "a\"\\\n\xC2\x85\xE2\x80\xA8\xF0\x9F\x98\x80\xED\xA0";
            seed = seed * 6364136223846793005U + 1442695040888963407U;
            s[i] =
                (seed >> 60) < 8 ? LIKELY[(seed >> 33) % (sizeof LIKELY - 1)] : (char)(seed >> 40);
        }
        json_put_string(&w, s, n);
        assert_true(utf8_append_lossy(&lossy, s, n));
        json_t *back = read_json(w.data, w.size);
        assert_int_equal(json_string_length(back), lossy.size);
        if (n > 0)
            assert_memory_equal(json_string_value(back), lossy.data, lossy.size);
        json_decref(back);
        json_writer_fini(&w);
        bytes_fini(&lossy);
    }
}

static void test_numbers(void **state)
{
    static const struct {
        float value;
        const char *text;
    } FLOATS[] = {
        {0.0F, "0.0"},
        {-0.0F, "-0.0"},
        {-5.0F, "-5.0"},
        {-0.5F, "-0.5"},
        {1e-20F, "9.99999968e-21"},
        {-0.1F, "-0.100000001"},
        {INFINITY, "-9999.0"},
        {-INFINITY, "-9999.0"},
        {NAN, "-9999.0"},
    };
    struct json_writer w = {0};

    (void)state;
    for (size_t i = 0; i < COUNT_OF(FLOATS); i++) {
        json_writer_reset(&w);
        json_put_float(&w, FLOATS[i].value);
        json_put_raw(&w, "", 1);
        assert_string_equal(w.data, FLOATS[i].text);
        json_t *back = read_json(w.data, w.size - 1);
        assert_true(json_is_real(back));
        if (isfinite(FLOATS[i].value))
            assert_true((float)json_real_value(back) == FLOATS[i].value);
        json_decref(back);
    }
    json_writer_reset(&w);
    json_put_int(&w, INT64_MIN);
    json_put_text(&w, " ");
    json_put_uint(&w, UINT64_MAX);
    json_put_text(&w, " ");
    json_put_string0(&w, NULL);
    json_put_string0(&w, "x");
    json_put_raw(&w, "", 1);
    assert_string_equal(w.data, "-9223372036854775808 18446744073709551615 null\"x\"");
    json_writer_fini(&w);
}

/* After a failure nothing is written any more, and reset starts over in the old memory. */
static void test_no_memory(void **state)
{
    struct json_writer w = {0};
    char big[5000];

    (void)state;
    memset(big, 'x', sizeof big);
    json_put_text(&w, "a");
    mem_fail_after(1);
    json_put_string(&w, big, sizeof big);
    mem_fail_after(0);
    assert_true(w.failed);
    size_t size = w.size;
    json_put_text(&w, "b");
    assert_int_equal(w.size, size);
    json_writer_reset(&w);
    assert_false(w.failed);
    uint64_t calls = mem_count_calls();
    json_put_text(&w, "b");
    assert_int_equal(mem_count_calls(), calls);
    assert_int_equal(w.size, 1);
    json_writer_fini(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_escapes),      cmocka_unit_test(test_ill_formed),
        cmocka_unit_test(test_random_bytes), cmocka_unit_test(test_numbers),
        cmocka_unit_test(test_no_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
