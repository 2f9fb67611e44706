/* Typed look-ups of GGUF metadata: right type, wrong type, absent, limits of each type. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "file/gguf.h"
#include "make.h"

#include <string.h>

static struct gguf_spec spec;
static struct bytes file;
static struct arena arena;
static struct gguf_contents contents;

static const struct gguf_meta *meta_of_spec(void)
{
    struct ferry_error err = {0};

    arena_init(&arena, "test");
    gguf_spec_write(&spec, &file);
    if (gguf_parse(&contents, &arena, file.data, file.size, "x.gguf", &err) != FERRY_OK)
        fail_msg("%s", err.msg);
    return &contents.meta;
}

static const struct {
    const char *key;
    enum gguf_type type;
    uint64_t bits;
    size_t n_bytes;
    bool is_u64;
    uint64_t u64;
    bool is_f64;
    double f64;
    const char *text;
} NUMBERS[] = {
    {"u8", GGUF_TYPE_U8, 0xFF, 1, true, 255, true, 255.0, "255"},
    {"i8", GGUF_TYPE_I8, 0x80, 1, false, 0, true, -128.0, "-128"},
    {"u16", GGUF_TYPE_U16, 0xFFFF, 2, true, 65535, true, 65535.0, "65535"},
    {"i16", GGUF_TYPE_I16, 0xFFFF, 2, false, 0, true, -1.0, "-1"},
    {"u32", GGUF_TYPE_U32, 0xFFFFFFFF, 4, true, UINT32_MAX, true, 4294967295.0, "4294967295"},
    {"i32", GGUF_TYPE_I32, 7, 4, true, 7, true, 7.0, "7"},
    {"f32", GGUF_TYPE_F32, 0x3FC00000, 4, false, 0, true, 1.5, "1.5"},
    {"bool", GGUF_TYPE_BOOL, 1, 1, false, 0, false, 0.0, "true"},
    {"u64", GGUF_TYPE_U64, UINT64_MAX, 8, true, UINT64_MAX, true, 18446744073709551616.0,
     "18446744073709551615"},
    {"i64", GGUF_TYPE_I64, UINT64_C(1) << 63, 8, false, 0, true, -9223372036854775808.0,
     "-9223372036854775808"},
    {"f64", GGUF_TYPE_F64, UINT64_C(0x400921FB54442D18), 8, false, 0, true, 3.141592653589793,
     "3.14159265358979"},
};

enum { N_NUMBERS = sizeof NUMBERS / sizeof NUMBERS[0] };

static void test_numbers(void **state)
{
    (void)state;
    gguf_spec_init(&spec);
    for (size_t i = 0; i < N_NUMBERS; i++)
        gguf_spec_key(&spec, NUMBERS[i].key, (uint32_t)NUMBERS[i].type, NUMBERS[i].bits,
                      NUMBERS[i].n_bytes);
    const struct gguf_meta *meta = meta_of_spec();
    assert_int_equal(gguf_n_keys(meta), 3 + N_NUMBERS);
    for (size_t i = 0; i < N_NUMBERS; i++) {
        uint64_t u64 = 99;
        double f64 = 99.0;
        bool bad = false;
        char text[40];
        assert_int_equal(gguf_get_u64(meta, NUMBERS[i].key, &u64, &bad), NUMBERS[i].is_u64);
        assert_int_equal(bad, !NUMBERS[i].is_u64);
        assert_int_equal(u64, NUMBERS[i].is_u64 ? NUMBERS[i].u64 : 99);
        bad = false;
        assert_int_equal(gguf_get_f64(meta, NUMBERS[i].key, &f64, &bad), NUMBERS[i].is_f64);
        assert_int_equal(bad, !NUMBERS[i].is_f64);
        assert_true(f64 == (NUMBERS[i].is_f64 ? NUMBERS[i].f64 : 99.0));
        assert_string_equal(gguf_key(meta, 3 + i), NUMBERS[i].key);
        gguf_describe(meta, 3 + i, text, sizeof text);
        assert_string_equal(text, NUMBERS[i].text);
    }
    arena_fini(&arena);
}

/* Absent leaves both outputs alone; a wrong type sets only the flag. */
static void test_absent_and_wrong(void **state)
{
    uint64_t u64 = 99;
    double f64 = 99.0;
    bool flag = true;
    bool bad = false;
    struct gguf_string s = {0};
    enum gguf_type type = GGUF_TYPE_F64;
    size_t count = 99;

    (void)state;
    gguf_spec_init(&spec);
    gguf_spec_key(&spec, "flag", GGUF_TYPE_BOOL, 0, 1);
    const struct gguf_meta *meta = meta_of_spec();
    assert_false(gguf_get_u64(meta, "absent", &u64, &bad));
    assert_false(gguf_get_f64(meta, "absent", &f64, &bad));
    assert_false(gguf_get_bool(meta, "absent", &flag, &bad));
    assert_false(gguf_get_string(meta, "absent", &s, &bad));
    assert_false(gguf_get_array(meta, "absent", &type, &count));
    assert_false(bad);
    assert_true(flag);
    assert_true(gguf_get_bool(meta, "flag", &flag, &bad));
    assert_false(flag);
    assert_false(gguf_get_bool(meta, "general.architecture", &flag, &bad));
    assert_true(bad);
    bad = false;
    assert_false(gguf_get_string(meta, "flag", &s, &bad));
    assert_true(bad);
    assert_false(gguf_get_u64(meta, "test.words", &u64, NULL));
    assert_false(gguf_get_array(meta, "flag", &type, &count));
    assert_int_equal(u64, 99);
    assert_int_equal(count, 99);
    assert_true(gguf_get_string(meta, "general.architecture", &s, NULL));
    assert_int_equal(s.size, 4);
    assert_memory_equal(s.data, "test", 4);
    assert_true(gguf_has(meta, "test.words"));
    assert_false(gguf_has(meta, "test.word"));
    arena_fini(&arena);
}

static void put_array(const char *key, enum gguf_type type, uint64_t a, uint64_t b, size_t n_bytes)
{
    gguf_spec_key(&spec, key, GGUF_TYPE_ARRAY, (uint64_t)type, 4);
    put_int(&spec.keys, 2, 8);
    put_int(&spec.keys, a, n_bytes);
    put_int(&spec.keys, b, n_bytes);
}

static void test_arrays(void **state)
{
    enum gguf_type type;
    size_t count;
    char text[40];

    (void)state;
    gguf_spec_init(&spec);
    put_array("i8", GGUF_TYPE_I8, 0x7F, 0x80, 1);
    put_array("i64", GGUF_TYPE_I64, 5, UINT64_MAX, 8);
    put_array("u64", GGUF_TYPE_U64, 5, UINT64_MAX, 8);
    put_array("f32", GGUF_TYPE_F32, 0x3F000000, 0xBF800000, 4);
    put_array("f64", GGUF_TYPE_F64, 0, UINT64_C(0x3FF8000000000000), 8);
    put_array("bool", GGUF_TYPE_BOOL, 1, 0, 1);
    const struct gguf_meta *meta = meta_of_spec();
    assert_true(gguf_get_array(meta, "test.words", &type, &count));
    assert_int_equal(type, GGUF_TYPE_STRING);
    assert_int_equal(count, 3);
    assert_memory_equal(gguf_array_string(meta, "test.words", 1).data, "bc", 2);
    assert_int_equal(gguf_array_string(meta, "test.words", 2).size, 0);
    assert_int_equal(gguf_array_i64(meta, "test.numbers", 1), -2);
    assert_true(gguf_array_f64(meta, "test.numbers", 1) == -2.0);
    assert_int_equal(gguf_array_i64(meta, "i8", 0), 127);
    assert_int_equal(gguf_array_i64(meta, "i8", 1), -128);
    assert_int_equal(gguf_array_i64(meta, "i64", 1), -1);
    assert_int_equal(gguf_array_i64(meta, "u64", 1), INT64_MAX); /* saturates */
    assert_true(gguf_array_f64(meta, "u64", 1) == 18446744073709551616.0);
    assert_true(gguf_array_f64(meta, "f32", 0) == 0.5);
    assert_true(gguf_array_f64(meta, "f32", 1) == -1.0);
    assert_true(gguf_array_f64(meta, "f64", 1) == 1.5);
    assert_int_equal(gguf_array_i64(meta, "bool", 0), 1);
    gguf_describe(meta, 1, text, sizeof text);
    assert_string_equal(text, "[3 string]");
    arena_fini(&arena);
}

/* A string on one line, cut between characters. */
static void test_describe_string(void **state)
{
    char text[8];

    (void)state;
    gguf_spec_init(&spec);
    gguf_spec_key_string(&spec, "s", "a\n\xFF\u00e9\u6f22\u6f22");
    const struct gguf_meta *meta = meta_of_spec();
    gguf_describe(meta, 3, text, sizeof text);
    assert_string_equal(text, "a?\?\u00e9"); /* the next character does not fit */
    gguf_describe(meta, 3, text, 1);
    assert_string_equal(text, "");
    gguf_describe(meta, 3, text, 0);
    arena_fini(&arena);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_numbers),
        cmocka_unit_test(test_absent_and_wrong),
        cmocka_unit_test(test_arrays),
        cmocka_unit_test(test_describe_string),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
