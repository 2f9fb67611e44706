/* Every rule of the safetensors reader has a file that breaks it; truncation, mutation, no memory.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/alloc.h"
#include "base/limits.h"
#include "file/safetensors.h"
#include "make.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct bytes file;

#define A    "\"a\":{\"dtype\":\"F32\",\"shape\":[2,3],\"data_offsets\":[0,24]}"
#define B    "\"b\":{\"dtype\":\"BF16\",\"shape\":[],\"data_offsets\":[24,26]}"
#define C    "\"c\":{\"dtype\":\"F16\",\"shape\":[0,7],\"data_offsets\":[24,24]}"
#define GOOD "{\"__metadata__\":{\"format\":\"pt\"}," B "," C "," A "}"

static enum ferry_status parse(const void *data, size_t size, struct ferry_error *err)
{
    struct arena arena;
    struct tensor_list list;

    arena_init(&arena, "test");
    enum ferry_status st = safetensors_parse(&list, &arena, data, size, "x.safetensors", err);
    if (st == FERRY_OK)
        (void)walk_tensors(&list);
    arena_fini(&arena);
    return st;
}

#define ONE(dtype, shape, offsets) \
    "{\"t\":{\"dtype\":" dtype ",\"shape\":" shape ",\"data_offsets\":" offsets "}}"

static const struct {
    const char *name;
    const char *header;
    size_t n_data;
    enum ferry_status status;
    const char *says;
} CASES[] = {
    {"good", GOOD, 26, FERRY_OK, ""},
    {"empty header", "{}", 0, FERRY_OK, ""},
    {"padded", "{}      ", 0, FERRY_OK, ""},
    {"bytes of nobody", "{}", 3, FERRY_ERR_FORMAT, "3 bytes belong to no tensor"},
    {"one byte too many", GOOD, 27, FERRY_ERR_FORMAT, "1 bytes belong to no tensor"},
    {"one byte missing", GOOD, 25, FERRY_ERR_FORMAT, "truncated: tensor 'b' ends at offset"},
    {"array", "[1]", 0, FERRY_ERR_FORMAT, "does not begin with '{'"},
    {"leading space", " {}", 0, FERRY_ERR_FORMAT, "does not begin with '{'"},
    {"not closed", "{\"a\":", 0, FERRY_ERR_FORMAT, "bad JSON in line 1"},
    {"two values", "{} {}", 0, FERRY_ERR_FORMAT, "bad JSON"},
    {"invalid UTF-8", "{\"\xC3\x28\":{}}", 0, FERRY_ERR_FORMAT, "not UTF-8"},
    {"duplicate tensor", "{" A "," A "}", 24, FERRY_ERR_FORMAT, "duplicate"},
    {"duplicate field", "{\"t\":{\"dtype\":\"F32\",\"dtype\":\"F16\"}}", 0, FERRY_ERR_FORMAT,
     "duplicate"},
    {"NUL in name", "{\"a\\u0000b\":{}}", 0, FERRY_ERR_FORMAT, "bad JSON"},
    {"control character in name", "{\"a\\u001b[2J\":{}}", 0, FERRY_ERR_FORMAT, "control"},
    {"empty name", "{\"\":{}}", 0, FERRY_ERR_FORMAT, "is empty"},
    {"metadata no object", "{\"__metadata__\":3}", 0, FERRY_ERR_FORMAT,
     "__metadata__ is no object"},
    {"metadata no string", "{\"__metadata__\":{\"k\":3}}", 0, FERRY_ERR_FORMAT, "'k' is no string"},
    {"entry no object", "{\"t\":7}", 0, FERRY_ERR_FORMAT, "'t': entry is no object"},
    {"unknown field", "{\"t\":{\"dtype\":\"F32\",\"strides\":[1]}}", 0, FERRY_ERR_FORMAT,
     "'t': unknown field 'strides'"},
    {"no dtype", "{\"t\":{\"shape\":[],\"data_offsets\":[0,4]}}", 4, FERRY_ERR_FORMAT,
     "'t': dtype missing"},
    {"dtype number", ONE("32", "[]", "[0,4]"), 4, FERRY_ERR_FORMAT, "'t': dtype missing"},
    {"dtype I64", ONE("\"I64\"", "[1]", "[0,8]"), 8, FERRY_ERR_UNSUPPORTED,
     "tensor 't' has dtype I64; supported in safetensors: F32, F16, BF16"},
    {"dtype F8", ONE("\"F8_E4M3\"", "[1]", "[0,1]"), 1, FERRY_ERR_UNSUPPORTED, "dtype F8_E4M3"},
    {"dtype f32", ONE("\"f32\"", "[1]", "[0,4]"), 4, FERRY_ERR_UNSUPPORTED, "dtype f32"},
    {"dtype Q8_0", ONE("\"Q8_0\"", "[32]", "[0,34]"), 34, FERRY_ERR_UNSUPPORTED, "dtype Q8_0"},
    {"no shape", "{\"t\":{\"dtype\":\"F32\",\"data_offsets\":[0,4]}}", 4, FERRY_ERR_FORMAT,
     "'t': shape missing"},
    {"shape number", ONE("\"F32\"", "1", "[0,4]"), 4, FERRY_ERR_FORMAT, "'t': shape missing"},
    {"shape of 5", ONE("\"F32\"", "[1,1,1,1,1]", "[0,4]"), 4, FERRY_ERR_LIMIT,
     "'t' has 5 dimensions, the limit is 4"},
    {"dim real", ONE("\"F32\"", "[1.0]", "[0,4]"), 4, FERRY_ERR_FORMAT, "'t': dimension 0 is no"},
    {"dim negative", ONE("\"F32\"", "[1,-1]", "[0,4]"), 4, FERRY_ERR_FORMAT, "'t': dimension 1 is"},
    {"dim 2^64", ONE("\"F32\"", "[18446744073709551616]", "[0,4]"), 4, FERRY_ERR_FORMAT,
     "bad JSON"},
    {"product wraps", ONE("\"F32\"", "[4294967296,4294967296]", "[0,0]"), 0, FERRY_ERR_FORMAT,
     "'t': size overflows at dimension 1"},
    {"bytes wrap", ONE("\"F32\"", "[4611686018427387904]", "[0,0]"), 0, FERRY_ERR_FORMAT,
     "'t': size overflows at dimension 0"},
    {"no offsets", "{\"t\":{\"dtype\":\"F32\",\"shape\":[1]}}", 4, FERRY_ERR_FORMAT,
     "'t': data_offsets missing"},
    {"one offset", ONE("\"F32\"", "[1]", "[4]"), 4, FERRY_ERR_FORMAT, "'t': data_offsets"},
    {"three offsets", ONE("\"F32\"", "[1]", "[0,4,4]"), 4, FERRY_ERR_FORMAT, "'t': data_offsets"},
    {"offset real", ONE("\"F32\"", "[1]", "[0.0,4]"), 4, FERRY_ERR_FORMAT, "'t': data_offsets"},
    {"offset negative", ONE("\"F32\"", "[1]", "[-4,0]"), 4, FERRY_ERR_FORMAT, "run backwards"},
    {"backwards", ONE("\"F32\"", "[1]", "[4,0]"), 4, FERRY_ERR_FORMAT, "[4, 0] run backwards"},
    {"beyond the file", ONE("\"F32\"", "[2]", "[0,8]"), 4, FERRY_ERR_FORMAT,
     "truncated: tensor 't' ends at offset 70, the file has 66 bytes"},
    {"end 2^63-1", ONE("\"F32\"", "[2]", "[0,9223372036854775807]"), 8, FERRY_ERR_FORMAT,
     "truncated: tensor 't'"},
    {"size differs", ONE("\"F32\"", "[2,2]", "[0,12]"), 12, FERRY_ERR_FORMAT,
     "span 12 bytes, dtype and shape need 16"},
    {"hole at the start", ONE("\"F32\"", "[1]", "[4,8]"), 8, FERRY_ERR_FORMAT,
     "tensor 't' begins at offset 66, the data before it end at 62: a hole of 4 bytes"},
    {"hole between", "{" A ",\"d\":{\"dtype\":\"F16\",\"shape\":[1],\"data_offsets\":[26,28]}}", 28,
     FERRY_ERR_FORMAT, "tensor 'd' begins at"},
    {"overlap", "{" A ",\"d\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[20,24]}}", 24,
     FERRY_ERR_FORMAT, "an overlap of 4 bytes"},
    {"same bytes twice", "{" A ",\"d\":{\"dtype\":\"F32\",\"shape\":[6],\"data_offsets\":[0,24]}}",
     24, FERRY_ERR_FORMAT, "an overlap of 24 bytes"},
};

static void test_cases(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof CASES / sizeof CASES[0]; i++) {
        struct ferry_error err = {0};
        make_safetensors(&file, CASES[i].header, CASES[i].n_data);
        unsigned char *copy = exact_copy(file.data, file.size);
        enum ferry_status st = parse(copy, file.size, &err);
        free(copy);
        if (st != CASES[i].status || strstr(err.msg, CASES[i].says) == NULL ||
            (st != FERRY_OK && strstr(err.msg, "x.safetensors") == NULL) ||
            strpbrk(err.msg, "\n\033") != NULL)
            fail_msg("%s: %s: \"%s\" (expected %s, \"%s\")", CASES[i].name, ferry_status_name(st),
                     err.msg, ferry_status_name(CASES[i].status), CASES[i].says);
    }
}

static void test_contents(void **state)
{
    struct arena arena;
    struct tensor_list list;

    (void)state;
    arena_init(&arena, "test");
    make_safetensors(&file, GOOD, 26);
    assert_int_equal(safetensors_parse(&list, &arena, file.data, file.size, "x", NULL), FERRY_OK);
    assert_int_equal(list.count, 3);
    assert_string_equal(list.items[0].name, "a");
    assert_int_equal(list.items[0].n_dims, 2);
    assert_int_equal(list.items[0].dims[1], 3);
    assert_int_equal(list.items[0].offset, file.size - 26);
    assert_ptr_equal(list.items[0].data, file.data + file.size - 26);
    assert_string_equal(list.items[1].name, "c"); /* empty, before b at the same offset */
    assert_int_equal(list.items[1].size_bytes, 0);
    assert_string_equal(list.items[2].name, "b");
    assert_int_equal(list.items[2].n_dims, 0);
    assert_int_equal(list.items[2].dtype, DTYPE_BF16);
    assert_int_equal(list.items[2].size_bytes, 2);
    arena_fini(&arena);
}

/* Length fields that no header can have. */
static void test_header_length(void **state)
{
    static const struct {
        uint64_t n;
        enum ferry_status status;
        const char *says;
    } LENGTHS[] = {
        {0, FERRY_ERR_FORMAT, "header of 0 bytes"},
        {1, FERRY_ERR_FORMAT, "header of 1 bytes"},
        {1000, FERRY_ERR_FORMAT, "truncated: header of 1000 bytes"},
        {LIMIT_SAFETENSORS_HEADER, FERRY_ERR_FORMAT, "truncated"},
        {LIMIT_SAFETENSORS_HEADER + 1, FERRY_ERR_LIMIT, "limit is 33554432"},
        {UINT64_MAX - 7, FERRY_ERR_LIMIT, "limit is 33554432"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof LENGTHS / sizeof LENGTHS[0]; i++) {
        struct ferry_error err = {0};
        file.size = 0;
        put_int(&file, LENGTHS[i].n, 8);
        put(&file, "{}", 2);
        assert_int_equal(parse(file.data, file.size, &err), LENGTHS[i].status);
        if (strstr(err.msg, LENGTHS[i].says) == NULL)
            fail_msg("%s", err.msg);
    }
}

/* Nesting and number of values end at a limit, before the memory does. */
static void test_limits(void **state)
{
    struct ferry_error err = {0};
    static char header[40000];

    (void)state;
    (void)strcpy(header, "{\"__metadata__\":");
    memset(header + strlen(header), '[', 20000);
    make_safetensors(&file, header, 0);
    assert_int_equal(parse(file.data, file.size, &err), FERRY_ERR_LIMIT);
    assert_non_null(strstr(err.msg, "nests deeper than 64 at offset 79"));

    size_t n = 2 * (size_t)LIMIT_HEADER_VALUES + 64;
    unsigned char *big = malloc(n);
    assert_non_null(big);
    memset(big, ',', n);
    for (size_t i = 0; i < 8; i++)
        big[i] = (unsigned char)((n - 8) >> (8 * i));
    big[8] = '{';
    assert_int_equal(parse(big, n, &err), FERRY_ERR_LIMIT);
    assert_non_null(strstr(err.msg, "more than 1048576 values"));
    free(big);

    char name[LIMIT_TENSOR_NAME + 2];
    memset(name, 'n', sizeof name - 1);
    name[sizeof name - 1] = 0;
    (void)snprintf(header, sizeof header, "{\"%s\":{}}", name);
    make_safetensors(&file, header, 0);
    assert_int_equal(parse(file.data, file.size, &err), FERRY_ERR_LIMIT);
    assert_non_null(strstr(err.msg, "has 1025 bytes, the limit is 1024"));
}

/* As many tensors as DeepSeek-V3 has in all its shards (91,991) fit in one file; a header that
 * could keep the reader busy for ten seconds (4 million keys, as the limit once was) does not. */
static void test_many_tensors(void **state)
{
    struct ferry_error err = {0};
    size_t capacity = (size_t)100 << 20;
    char *text = malloc(capacity);

    (void)state;
    assert_non_null(text);
    for (int kind = 0; kind < 2; kind++) {
        size_t n = 8;
        text[n++] = '{';
        for (int i = 0; i < (kind == 0 ? 91991 : LIMIT_HEADER_VALUES / 2 + 1); i++)
            n += (size_t)snprintf(
                text + n, capacity - n,
                kind == 0
                    ? "%s\"model.layers.%d.mlp.experts.down_proj.weight_scale_inv\":{\"dtype\":"
                      "\"F32\",\"shape\":[0,16],\"data_offsets\":[0,0]}"
                    : "%s\"%d\":0",
                i > 0 ? "," : "", i);
        text[n++] = '}';
        for (size_t i = 0; i < 8; i++)
            text[i] = (char)((n - 8) >> (8 * i));
        enum ferry_status st = parse((unsigned char *)text, n, &err);
        if (st != (kind == 0 ? FERRY_OK : FERRY_ERR_LIMIT))
            fail_msg("%s", err.msg);
    }
    assert_non_null(strstr(err.msg, "524288 keys"));
    free(text);
}

static void test_truncated_everywhere(void **state)
{
    (void)state;
    make_safetensors(&file, GOOD, 26);
    for (size_t n = 0; n < file.size; n++) {
        struct ferry_error err = {0};
        unsigned char *copy = exact_copy(file.data, n);
        enum ferry_status st = parse(copy, n, &err);
        free(copy);
        if (st != FERRY_ERR_FORMAT || err.msg[0] == 0)
            fail_msg("cut to %zu bytes: %s \"%s\"", n, ferry_status_name(st), err.msg);
    }
}

static void test_mutated(void **state)
{
    static const unsigned char VALUES[] = {0, '"', '{', '}', '[', ',', '9', '-', 0x80, 0xFF};
    size_t n_accepted = 0;
    uint64_t random = 1;

    (void)state;
    make_safetensors(&file, GOOD, 26);
    for (size_t at = 0; at < file.size - 26; at++) {
        for (size_t k = 0; k < sizeof VALUES + 8; k++) {
            unsigned char *copy = exact_copy(file.data, file.size);
            random = random * UINT64_C(6364136223846793005) + 1442695040888963407u;
            copy[at] = k < sizeof VALUES ? VALUES[k] : (unsigned char)(random >> 56);
            n_accepted += parse(copy, file.size, NULL) == FERRY_OK;
            free(copy);
        }
    }
    assert_in_range(n_accepted, 1, file.size * (sizeof VALUES + 8) / 2);
}

/* jansson's allocations fail in turn as well as ours. */
static void test_no_memory(void **state)
{
    uint64_t n = 1;
    uint64_t n_failed = 0;
    enum ferry_status st = FERRY_ERR_NOMEM;

    (void)state;
    json_set_alloc_funcs(mem_alloc, mem_free);
    make_safetensors(&file, GOOD, 26);
    for (; n < 1000 && (st != FERRY_OK || n < 200); n++) {
        struct ferry_error err = {0};
        mem_fail_after(n);
        st = parse(file.data, file.size, &err);
        mem_fail_after(0);
        if (st != FERRY_OK && st != FERRY_ERR_NOMEM)
            fail_msg("allocation %llu: %s %s", (unsigned long long)n, ferry_status_name(st),
                     err.msg);
        n_failed += st != FERRY_OK;
    }
    json_set_alloc_funcs(malloc, free);
    assert_int_equal(st, FERRY_OK);
    assert_in_range(n_failed, 40, 190);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cases),         cmocka_unit_test(test_contents),
        cmocka_unit_test(test_header_length), cmocka_unit_test(test_limits),
        cmocka_unit_test(test_many_tensors),  cmocka_unit_test(test_truncated_everywhere),
        cmocka_unit_test(test_mutated),       cmocka_unit_test(test_no_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
