/* The stream gives out the same text however its bytes were cut, holds what may be a stop string,
 * and never shows part of a character. */
#include "../unit.h"

#include "base/alloc.h"
#include "text/utf8.h"

#include <string.h>

/* All that a stream gives out for text cut in pieces of `step` bytes. */
static void run(const char *text, size_t n, size_t step, const char *const *stops, size_t n_stops,
                struct bytes *ret, bool *ret_stopped)
{
    struct text_stream stream;
    const char *out;
    size_t size;

    assert_int_equal(text_stream_init(&stream, stops, n_stops, NULL), FERRY_OK);
    for (size_t i = 0; i < n; i += step) {
        size_t m = step < n - i ? step : n - i;
        assert_int_equal(text_stream_push(&stream, text + i, m, &out, &size, NULL), FERRY_OK);
        assert_int_equal(utf8_valid_size(out, size), size);
        assert_true(bytes_append(ret, out, size));
    }
    *ret_stopped = text_stream_stopped(&stream);
    assert_int_equal(text_stream_finish(&stream, &out, &size, NULL), FERRY_OK);
    assert_true(bytes_append(ret, out, size));
    text_stream_fini(&stream);
}

static void output_does_not_depend_on_the_cut(void **state)
{
    static const struct {
        const char *text;
        const char *stops[3];
        const char *want;
        bool stopped;
    } CASES[] = {
        {"plain text", {NULL}, "plain text", false},
        {"", {"x"}, "", false},
        {"h\xC3\xA9llo \xF0\x9F\x98\x80 \xE4\xBD\xA0",
         {NULL},
         "h\xC3\xA9llo \xF0\x9F\x98\x80 \xE4\xBD\xA0",
         false},
        {"bad \xE2\x82 \xF0\x9F\x98z\xFF",
         {NULL},
         "bad \xEF\xBF\xBD \xEF\xBF\xBDz\xEF\xBF\xBD",
         false},
        {"ends \xF0\x9F\x98", {NULL}, "ends \xEF\xBF\xBD", false},
        {"\xE2\xF0\x9F\x98\x80", {NULL}, "\xEF\xBF\xBD\xF0\x9F\x98\x80", false},
        {"one two three", {"two"}, "one ", true},
        {"one tw", {"two"}, "one tw", false},
        {"aaab", {"aab"}, "a", true},
        {"abcabd", {"abd"}, "abc", true},
        {"xab", {"abc", "b"}, "xa", true},
        {"xabc", {"abc", "bc"}, "x", true},
        {"stop\nUser:", {"\nUser", "END"}, "stop", true},
        {"\xE4\xBD\xA0\xE5\xA5\xBD\xE3\x80\x82z",
         {"\xE3\x80\x82"},
         "\xE4\xBD\xA0\xE5\xA5\xBD",
         true},
    };

    (void)state;
    for (size_t i = 0; i < COUNT_OF(CASES); i++) {
        size_t n_stops = 0;
        while (n_stops < 3 && CASES[i].stops[n_stops] != NULL)
            n_stops++;
        for (size_t step = 1; step < 16; step++) {
            struct bytes got = {0};
            bool stopped;
            run(CASES[i].text, strlen(CASES[i].text), step, CASES[i].stops, n_stops, &got,
                &stopped);
            assert_int_equal(stopped, CASES[i].stopped);
            assert_int_equal(got.size, strlen(CASES[i].want));
            if (got.size > 0)
                assert_memory_equal(got.data, CASES[i].want, got.size);
            bytes_fini(&got);
        }
    }
}

static void holds_no_more_than_it_must(void **state)
{
    struct text_stream stream;
    const char *const stops[] = {"<end>"};
    const char *out;
    size_t size;

    (void)state;
    assert_int_equal(text_stream_init(&stream, stops, 1, NULL), FERRY_OK);
    assert_int_equal(text_stream_push(&stream, "abc<e", 5, &out, &size, NULL), FERRY_OK);
    assert_int_equal(size, 3);
    assert_int_equal(text_stream_push(&stream, "x", 1, &out, &size, NULL), FERRY_OK);
    assert_int_equal(size, 3);
    assert_memory_equal(out, "<ex", 3);
    assert_int_equal(text_stream_push(&stream, "\xE4\xBD", 2, &out, &size, NULL), FERRY_OK);
    assert_int_equal(size, 0);
    assert_int_equal(text_stream_push(&stream, "\xA0<", 2, &out, &size, NULL), FERRY_OK);
    assert_int_equal(size, 3);
    /* Nothing is allocated while pieces are small. */
    uint64_t calls = mem_count_calls();
    for (int i = 0; i < 1000; i++)
        assert_int_equal(text_stream_push(&stream, "token ", 6, &out, &size, NULL), FERRY_OK);
    assert_int_equal(mem_count_calls(), calls);
    assert_int_equal(text_stream_push(&stream, "<end>tail", 9, &out, &size, NULL), FERRY_OK);
    assert_int_equal(size, 0);
    assert_true(text_stream_stopped(&stream));
    assert_int_equal(text_stream_push(&stream, "more", 4, &out, &size, NULL), FERRY_OK);
    assert_int_equal(size, 0);
    text_stream_fini(&stream);
}

static void refuses_bad_stop_strings(void **state)
{
    struct text_stream stream;
    struct ferry_error err = {0};
    const char *const empty[] = {"a", ""};
    const char *many[TEXT_STOPS_MAX + 1];
    static char huge[TEXT_STOP_BYTES_MAX + 2];
    const char *const one[] = {huge};

    (void)state;
    memset(huge, 'x', sizeof huge - 1);
    for (size_t i = 0; i < COUNT_OF(many); i++)
        many[i] = "s";
    assert_int_equal(text_stream_init(&stream, empty, 2, &err), FERRY_ERR_ARG);
    text_stream_fini(&stream);
    assert_int_equal(text_stream_init(&stream, many, COUNT_OF(many), &err), FERRY_ERR_LIMIT);
    assert_int_equal(text_stream_init(&stream, one, 1, &err), FERRY_ERR_LIMIT);
    text_stream_fini(&stream);
    for (uint64_t n = 1; n <= 2; n++) {
        mem_fail_after(n);
        assert_int_equal(text_stream_init(&stream, many, 1, &err), FERRY_ERR_NOMEM);
        mem_fail_after(0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(output_does_not_depend_on_the_cut),
        cmocka_unit_test(holds_no_more_than_it_must),
        cmocka_unit_test(refuses_bad_stop_strings),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
