/* Unit tests of base/error.c: status table, error records, hostile text, truncation, prefixes. */
#include "../unit.h"

#include "base/error.h"

#include <errno.h>
#include <string.h>

static void status_table_is_complete_and_unique(void **state)
{
    static const enum ferry_status ALL[] = {
#define ROW(name, value, text, http, label) name,
        FERRY_STATUS_LIST(ROW)
#undef ROW
    };

    (void)state;
    for (size_t i = 0; i < COUNT_OF(ALL); i++) {
        assert_true(strncmp(ferry_status_name(ALL[i]), "FERRY_", 6) == 0);
        assert_true(strlen(ferry_status_text(ALL[i])) > 0);
        assert_in_range(ferry_status_http(ALL[i]), 200, 599);
        for (const char *c = ferry_status_label(ALL[i]); *c != 0; c++)
            assert_true((*c >= 'a' && *c <= 'z') || *c == '_');
        for (size_t j = 0; j < i; j++) {
            assert_int_not_equal(ALL[i], ALL[j]);
            assert_string_not_equal(ferry_status_label(ALL[i]), ferry_status_label(ALL[j]));
        }
    }
    assert_string_equal(ferry_status_name(FERRY_ERR_NOMEM), "FERRY_ERR_NOMEM");
    assert_int_equal(ferry_status_http(FERRY_ERR_NOT_FOUND), 404);
    assert_string_equal(ferry_status_text((enum ferry_status)12345), "unknown status");
    assert_int_equal(ferry_status_http((enum ferry_status) - 12345), 500);
    assert_non_null(ferry_status_name((enum ferry_status)77));
    assert_non_null(ferry_status_label((enum ferry_status)77));
}

static void record_says_what_and_where(void **state)
{
    struct ferry_error err;

    (void)state;
    memset(&err, 0xA5, sizeof err);
    errno = ENOENT;
    int line = __LINE__ + 1;
    enum ferry_status st = FERRY_FAIL(&err, FERRY_ERR_IO, "%s: %d bytes", "file.gguf", 12);
    assert_int_equal(st, FERRY_ERR_IO);
    assert_int_equal(err.status, FERRY_ERR_IO);
    assert_int_equal(err.sys, ENOENT);
    assert_string_equal(err.msg, "file.gguf: 12 bytes");
    assert_non_null(strstr(err.file, "test_error.c"));
    assert_int_equal(err.line, line);
    assert_int_equal(errno, ENOENT);
}

static void null_record_is_allowed(void **state)
{
    (void)state;
    assert_int_equal(FERRY_FAIL(NULL, FERRY_ERR_ARG, "x %d", 1), FERRY_ERR_ARG);
    error_prefix(NULL, "layer %d: ", 1);
}

static void hostile_text_becomes_one_printable_line(void **state)
{
    static const struct {
        const char *in, *out;
    } CASES[] = {
        {"plain ASCII ~", "plain ASCII ~"},
        {"a\nb\rc\td\033[31me\177f\001", "a?b?c?d?[31me?f?"},
        {"\xC3\xA9 \xE6\xB5\xB7 \xF0\x9F\x9A\xA2", "\xC3\xA9 \xE6\xB5\xB7 \xF0\x9F\x9A\xA2"},
        {"\xC2\x85x\xC2\x9Bx\xC2\xA0", "?x?x\xC2\xA0"}, /* C1 controls, no-break space stays */
        {"\x80\xBF\xFE\xFF", "????"},
        {"\xC3", "?"}, /* cut at the end: never reads behind the 0 */
        {"\xE6\xB5", "??"},
        {"\xF0\x9F\x9A", "???"},
        {"\xC3(", "?("},
        {"\xC0\x80|\xC1\xBF", "??|??"},                                     /* overlong */
        {"\xE0\x80\x80|\xE0\x9F\xBF|\xE0\xA0\x80", "???|???|\xE0\xA0\x80"}, /* overlong, U+0800 */
        {"\xF0\x80\x80\x80|\xF0\x8F\xBF\xBF|\xF0\x90\x80\x80", "????|????|\xF0\x90\x80\x80"},
        {"\xED\x9F\xBF|\xED\xA0\x80|\xED\xBF\xBF|\xEE\x80\x80",
         "\xED\x9F\xBF|???|???|\xEE\x80\x80"}, /* surrogates */
        {"\xF4\x8F\xBF\xBF|\xF4\x90\x80\x80|\xF5\x80\x80\x80", "\xF4\x8F\xBF\xBF|????|????"},
        {"\xF8\x90\x80\x80\x80", "?????"},
        {"a\xE2\x80\xA8"
         "b\xE2\x80\xAE"
         "c\xE2\x81\xA6",
         "a?b?c?"}, /* line separator, overrides */
        {"", ""},
    };
    struct ferry_error err;

    (void)state;
    for (size_t i = 0; i < COUNT_OF(CASES); i++) {
        (void)FERRY_FAIL(&err, FERRY_ERR_FORMAT, "%s", CASES[i].in);
        assert_string_equal(err.msg, CASES[i].out);
        char text[64];
        (void)snprintf(text, sizeof text, "%s", CASES[i].in);
        error_make_printable(text);
        assert_string_equal(text, CASES[i].out);
        error_make_printable(text); /* printable text stays as it is */
        assert_string_equal(text, CASES[i].out);
    }
}

static void long_messages_are_cut_between_characters(void **state)
{
    struct ferry_error err;
    char text[2000];

    (void)state;
    for (size_t shift = 0; shift < 4; shift++) {
        memset(text, 'a', sizeof text);
        for (size_t i = shift; i + 3 < sizeof text; i += 3)
            memcpy(text + i, "\xE6\xB5\xB7", 3);
        text[sizeof text - 1] = 0;
        (void)FERRY_FAIL(&err, FERRY_ERR_FORMAT, "%s", text);
        size_t n = strlen(err.msg);
        assert_int_equal(n, sizeof err.msg - 1);
        size_t whole = n - (n - shift) % 3;
        assert_memory_equal(err.msg, text, whole);
        for (size_t i = whole; i < n; i++)
            assert_int_equal(err.msg[i], '?');
    }
}

static void prefix_goes_in_front(void **state)
{
    struct ferry_error err;

    (void)state;
    (void)FERRY_FAIL(&err, FERRY_ERR_FORMAT, "bad scale");
    int line = err.line;
    error_prefix(&err, "expert %d: ", 7);
    error_prefix(&err, "layer %d\n", 12);
    assert_string_equal(err.msg, "layer 12?expert 7: bad scale");
    assert_int_equal(err.status, FERRY_ERR_FORMAT);
    assert_int_equal(err.line, line);
}

static void prefix_cuts_the_end(void **state)
{
    struct ferry_error err;
    char text[600];

    (void)state;
    memset(text, 'p', sizeof text - 1);
    text[sizeof text - 1] = 0;
    for (int keep = 0; keep < 4; keep++) {
        (void)FERRY_FAIL(&err, FERRY_ERR_FORMAT, "\xE6\xB5\xB7!");
        error_prefix(&err, "%.*s", (int)sizeof err.msg - 1 - keep, text);
        assert_int_equal(strlen(err.msg), sizeof err.msg - 1);
        static const char *const ENDS[] = {"", "?", "??", "\xE6\xB5\xB7"};
        assert_string_equal(err.msg + sizeof err.msg - 1 - keep, ENDS[keep]);
    }
    (void)FERRY_FAIL(&err, FERRY_ERR_FORMAT, "cause");
    error_prefix(&err, "%s", text); /* alone longer than the record */
    assert_int_equal(strlen(err.msg), sizeof err.msg - 1);
    assert_int_equal(strspn(err.msg, "p"), sizeof err.msg - 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(status_table_is_complete_and_unique),
        cmocka_unit_test(record_says_what_and_where),
        cmocka_unit_test(null_record_is_allowed),
        cmocka_unit_test(hostile_text_becomes_one_printable_line),
        cmocka_unit_test(long_messages_are_cut_between_characters),
        cmocka_unit_test(prefix_goes_in_front),
        cmocka_unit_test(prefix_cuts_the_end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
