/* Every rule of the GGUF reader has a file that breaks it; truncation, mutation, no memory. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/alloc.h"
#include "base/limits.h"
#include "file/gguf_parse.h"
#include "make.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct gguf_spec spec;
static struct bytes file;

static enum ferry_status parse(const void *data, size_t size, struct ferry_error *err)
{
    struct arena arena;
    struct gguf_contents contents;

    arena_init(&arena, "test");
    enum ferry_status st = gguf_parse(&contents, &arena, data, size, "x.gguf", err);
    if (st == FERRY_OK)
        (void)(walk_tensors(&contents.tensors) + walk_meta(&contents.meta));
    arena_fini(&arena);
    return st;
}

static void nothing(void)
{
}

static void version_1(void)
{
    spec.version = 1;
}

static void version_4(void)
{
    spec.version = 4;
}

static void big_endian(void)
{
    spec.version = 3u << 24;
}

static void tensors_wrap(void)
{
    spec.n_tensors = UINT64_MAX;
}

static void keys_wrap(void)
{
    spec.n_keys = UINT64_C(1) << 61;
}

static void tensors_beyond_file(void)
{
    spec.n_tensors = 1000;
}

static void keys_beyond_file(void)
{
    spec.n_keys = 1000;
}

static void key_empty(void)
{
    gguf_spec_key(&spec, "", GGUF_TYPE_U8, 1, 1);
}

static void key_control(void)
{
    gguf_spec_key(&spec, "a\nb", GGUF_TYPE_U8, 1, 1);
}

static void key_latin1(void)
{
    gguf_spec_key(&spec, "a\xE9", GGUF_TYPE_U8, 1, 1);
}

static void key_twice(void)
{
    gguf_spec_key_string(&spec, "general.architecture", "other");
}

static void key_length_wraps(void)
{
    put_int(&spec.keys, UINT64_MAX, 8);
    put_int(&spec.keys, 0, 32);
    spec.n_keys++;
}

static void key_beyond_file(void)
{
    put_int(&spec.keys, 60000, 8);
    put_int(&spec.keys, 0, 8);
    spec.n_keys++;
}

static void value_type_unknown(void)
{
    gguf_spec_key(&spec, "k", 13, 1, 8);
}

static void value_type_wraps(void)
{
    gguf_spec_key(&spec, "k", UINT32_MAX, 1, 8);
}

static void string_length_wraps(void)
{
    gguf_spec_key(&spec, "k", GGUF_TYPE_STRING, UINT64_C(1) << 63, 8);
}

static void string_beyond_file(void)
{
    gguf_spec_key(&spec, "k", GGUF_TYPE_STRING, 50000, 8);
}

static void bool_of_two(void)
{
    gguf_spec_key(&spec, "k", GGUF_TYPE_BOOL, 2, 1);
}

static void array(uint32_t type, uint64_t count)
{
    gguf_spec_key(&spec, "k", GGUF_TYPE_ARRAY, type, 4);
    put_int(&spec.keys, count, 8);
}

static void bools_of_three(void)
{
    array(GGUF_TYPE_BOOL, 2);
    put_int(&spec.keys, 0x0301, 2);
}

static void array_nested(void)
{
    array(GGUF_TYPE_ARRAY, 1);
    put_int(&spec.keys, GGUF_TYPE_ARRAY, 4);
    put_int(&spec.keys, 1, 8);
}

static void array_type_unknown(void)
{
    array(99, 1);
}

static void array_wraps(void)
{
    array(GGUF_TYPE_U64, UINT64_C(1) << 61);
}

static void array_over_limit(void)
{
    array(GGUF_TYPE_U8, LIMIT_GGUF_ARRAY + 1);
}

static void array_beyond_file(void)
{
    array(GGUF_TYPE_U64, 50000);
}

static void strings_beyond_file(void)
{
    array(GGUF_TYPE_STRING, 50000);
}

static void string_in_array_wraps(void)
{
    array(GGUF_TYPE_STRING, 1);
    put_int(&spec.keys, UINT64_MAX - 7, 8);
}

static void alignment_0(void)
{
    gguf_spec_key(&spec, "general.alignment", GGUF_TYPE_U32, 0, 4);
}

static void alignment_4(void)
{
    gguf_spec_key(&spec, "general.alignment", GGUF_TYPE_U32, 4, 4);
}

static void alignment_48(void)
{
    gguf_spec_key(&spec, "general.alignment", GGUF_TYPE_U32, 48, 4);
}

static void alignment_huge(void)
{
    gguf_spec_key(&spec, "general.alignment", GGUF_TYPE_U32, UINT32_C(1) << 31, 4);
}

static void alignment_u64(void)
{
    gguf_spec_key(&spec, "general.alignment", GGUF_TYPE_U64, 32, 8);
}

static void alignment_string(void)
{
    gguf_spec_key_string(&spec, "general.alignment", "32");
}

static void alignment_beyond_file(void)
{
    gguf_spec_key(&spec, "general.alignment", GGUF_TYPE_U32, 1 << 20, 4);
}

static void name_empty(void)
{
    spec.tensors[1].name = "";
}

static void name_control(void)
{
    spec.tensors[1].name = "b\033[2J";
}

static void name_twice(void)
{
    spec.tensors[2].name = "a";
}

static void name_long(void)
{
    static char name[LIMIT_TENSOR_NAME + 2];
    memset(name, 'n', sizeof name - 1);
    spec.tensors[1].name = name;
}

static void dims_0(void)
{
    spec.tensors[1].n_dims = 0;
}

static void dims_9(void)
{
    spec.tensors[1].n_dims = 9;
}

static void dims_wrap(void)
{
    spec.tensors[1].n_dims = UINT32_MAX;
}

static void dim_zero(void)
{
    spec.tensors[1].dims[1] = 0;
}

static void dim_negative(void)
{
    spec.tensors[1].dims[1] = UINT64_MAX;
}

static void product_wraps(void)
{
    spec.tensors[1].n_dims = 4;
    spec.tensors[1].dims[0] = UINT64_C(1) << 32;
    spec.tensors[1].dims[1] = UINT64_C(1) << 32;
    spec.tensors[1].dims[2] = 2;
    spec.tensors[1].dims[3] = 1;
}

static void bytes_wrap(void)
{
    spec.tensors[0].dims[0] = UINT64_C(1) << 60;
    spec.tensors[0].dims[1] = 7;
}

static void row_wraps(void)
{
    spec.tensors[0].n_dims = 1;
    spec.tensors[0].dims[0] = (UINT64_C(1) << 62) + 8;
}

static void block_splits(void)
{
    spec.tensors[1].dims[0] = 48;
}

static void type_q2k(void)
{
    spec.tensors[1].type = 10;
}

static void type_removed(void)
{
    spec.tensors[1].type = 4;
}

static void type_wraps(void)
{
    spec.tensors[1].type = UINT32_MAX;
}

static void offset_overlaps(void)
{
    spec.tensors[1].offset = 0;
}

static void offset_gap(void)
{
    spec.tensors[1].offset = 288;
}

static void offset_first(void)
{
    spec.tensors[0].offset = 32;
}

static void offset_huge(void)
{
    spec.tensors[2].offset = UINT64_MAX - 31;
}

static void tensor_beyond_file(void)
{
    spec.data_bytes--;
}

static void data_missing(void)
{
    spec.data_bytes = 0;
}

static void tensor_huge(void)
{
    spec.tensors[2].dims[0] = UINT64_C(1) << 40;
}

struct rejected {
    const char *name;
    void (*edit)(void);
    enum ferry_status status;
    const char *says;
};

static const struct rejected REJECTED[] = {
    {"version 1", version_1, FERRY_ERR_UNSUPPORTED, "version 1"},
    {"version 4", version_4, FERRY_ERR_UNSUPPORTED, "version 4"},
    {"big endian", big_endian, FERRY_ERR_UNSUPPORTED, "big-endian"},
    {"tensor count wraps", tensors_wrap, FERRY_ERR_LIMIT, "18446744073709551615 tensors"},
    {"key count wraps", keys_wrap, FERRY_ERR_LIMIT, "metadata keys, the limit is 65536"},
    {"more tensors than bytes", tensors_beyond_file, FERRY_ERR_FORMAT, "1000 tensors need"},
    {"more keys than bytes", keys_beyond_file, FERRY_ERR_FORMAT, "1000 keys"},
    {"empty key", key_empty, FERRY_ERR_FORMAT, "key at offset 169 is empty"},
    {"control character in key", key_control, FERRY_ERR_FORMAT, "key at offset 169"},
    {"invalid UTF-8 in key", key_latin1, FERRY_ERR_FORMAT, "key at offset 169"},
    {"key twice", key_twice, FERRY_ERR_FORMAT, "'general.architecture' occurs twice"},
    {"key length wraps", key_length_wraps, FERRY_ERR_LIMIT, "limit is 65535"},
    {"key beyond the file", key_beyond_file, FERRY_ERR_FORMAT, "truncated: key at offset 177"},
    {"unknown value type", value_type_unknown, FERRY_ERR_FORMAT, "'k': value type 13"},
    {"huge value type", value_type_wraps, FERRY_ERR_FORMAT, "'k': value type 4294967295"},
    {"string length 2^63", string_length_wraps, FERRY_ERR_LIMIT, "9223372036854775808 bytes"},
    {"string beyond the file", string_beyond_file, FERRY_ERR_FORMAT, "needs 50000 bytes"},
    {"bool 2", bool_of_two, FERRY_ERR_FORMAT, "'k': bool at offset 182 has the value 2"},
    {"bool 3 in array", bools_of_three, FERRY_ERR_FORMAT, "has the value 3"},
    {"nested array", array_nested, FERRY_ERR_UNSUPPORTED,
     "'k' at offset 182 is an array of arrays"},
    {"unknown element type", array_type_unknown, FERRY_ERR_FORMAT, "array element type 99"},
    {"array size wraps", array_wraps, FERRY_ERR_LIMIT, "array of 2305843009213693952"},
    {"array over the limit", array_over_limit, FERRY_ERR_LIMIT, "limit is 16777216"},
    {"array beyond the file", array_beyond_file, FERRY_ERR_FORMAT, "needs 400000 bytes"},
    {"strings beyond the file", strings_beyond_file, FERRY_ERR_FORMAT, "key 'k'"},
    {"string in array wraps", string_in_array_wraps, FERRY_ERR_LIMIT, "'k', element 0"},
    {"alignment 0", alignment_0, FERRY_ERR_FORMAT, "general.alignment is 0"},
    {"alignment 4", alignment_4, FERRY_ERR_FORMAT, "general.alignment is 4"},
    {"alignment 48", alignment_48, FERRY_ERR_FORMAT, "general.alignment is 48"},
    {"alignment 2^31", alignment_huge, FERRY_ERR_FORMAT, "general.alignment is 2147483648"},
    {"alignment u64", alignment_u64, FERRY_ERR_FORMAT, "general.alignment has type u64"},
    {"alignment string", alignment_string, FERRY_ERR_FORMAT, "general.alignment has type string"},
    {"alignment beyond the file", alignment_beyond_file, FERRY_ERR_FORMAT, "begin at 1048576"},
    {"empty tensor name", name_empty, FERRY_ERR_FORMAT, "tensor name at offset 210"},
    {"control character in tensor name", name_control, FERRY_ERR_FORMAT, "name at offset 210"},
    {"tensor twice", name_twice, FERRY_ERR_FORMAT, "tensor 'a' occurs twice"},
    {"long tensor name", name_long, FERRY_ERR_LIMIT, "1025 bytes, the limit is 1024"},
    {"0 dimensions", dims_0, FERRY_ERR_FORMAT, "tensor 'b' at offset 219 has 0 dimensions"},
    {"9 dimensions", dims_9, FERRY_ERR_FORMAT, "has 9 dimensions"},
    {"2^32-1 dimensions", dims_wrap, FERRY_ERR_FORMAT, "has 4294967295 dimensions"},
    {"zero dimension", dim_zero, FERRY_ERR_FORMAT, "'b': dimension 1 at offset 231 is 0"},
    {"negative dimension", dim_negative, FERRY_ERR_FORMAT, "is 18446744073709551615"},
    {"product wraps", product_wraps, FERRY_ERR_FORMAT, "tensor 'b': size overflows"},
    {"bytes wrap", bytes_wrap, FERRY_ERR_FORMAT, "tensor 'a': size overflows"},
    {"row wraps", row_wraps, FERRY_ERR_FORMAT, "tensor 'a': size overflows"},
    {"row splits a block", block_splits, FERRY_ERR_FORMAT, "rows of 48 elements"},
    {"type Q2_K", type_q2k, FERRY_ERR_UNSUPPORTED,
     "type 10 (Q2_K); supported: F32, F16, BF16, Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, Q4_K, Q5_K, Q6_K, "
     "IQ4_NL, MXFP4"},
    {"removed type", type_removed, FERRY_ERR_UNSUPPORTED, "'b' has type 4 (unknown)"},
    {"huge type", type_wraps, FERRY_ERR_UNSUPPORTED, "'b' has type 4294967295"},
    {"overlap", offset_overlaps, FERRY_ERR_FORMAT, "'b' has data offset 0, the padded tensors"},
    {"gap", offset_gap, FERRY_ERR_FORMAT,
     "data offset 288, the padded tensors before it end at 256"},
    {"first not at 0", offset_first, FERRY_ERR_FORMAT, "'a' has data offset 32"},
    {"offset wraps", offset_huge, FERRY_ERR_FORMAT, "'c' has data offset 18446744073709551584"},
    {"last byte missing", tensor_beyond_file, FERRY_ERR_FORMAT,
     "truncated: tensor 'c' at offset 768 needs 10 bytes, the file has 777 bytes"},
    {"no data", data_missing, FERRY_ERR_FORMAT, "truncated: tensor 'a' at offset 288"},
    {"tensor larger than the file", tensor_huge, FERRY_ERR_FORMAT, "needs 2199023255552 bytes"},
};

static void test_rejected(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof REJECTED / sizeof REJECTED[0]; i++) {
        const struct rejected *c = &REJECTED[i];
        struct ferry_error err = {0};
        gguf_spec_init(&spec);
        c->edit();
        gguf_spec_write(&spec, &file);
        unsigned char *copy = exact_copy(file.data, file.size);
        enum ferry_status st = parse(copy, file.size, &err);
        free(copy);
        if (st != c->status || strstr(err.msg, c->says) == NULL ||
            strstr(err.msg, "x.gguf") == NULL || strpbrk(err.msg, "\n\033") != NULL)
            fail_msg("%s: %s: \"%s\" (expected %s, \"%s\")", c->name, ferry_status_name(st),
                     err.msg, ferry_status_name(c->status), c->says);
    }
}

static void four_dims(void)
{
    spec.tensors[1].n_dims = 4;
    spec.tensors[1].dims[2] = spec.tensors[1].dims[3] = 1;
}

static void version_2(void)
{
    spec.version = 2;
}

static void align_64(void)
{
    gguf_spec_key(&spec, "general.alignment", GGUF_TYPE_U32, 64, 4);
    spec.alignment = 64;
    spec.tensors[2].offset = 512;
    spec.data_bytes = 522;
}

static void bytes_after(void)
{
    spec.data_bytes += 100;
}

static void no_tensors(void)
{
    spec.n_tensors = spec.n_written = 0;
    spec.alignment = 1;
    spec.data_bytes = 0;
}

static void no_keys(void)
{
    spec.n_keys = 0;
    spec.keys.size = 0;
}

static void test_accepted(void **state)
{
    void (*const edits[])(void) = {nothing,     version_2,  four_dims, align_64,
                                   bytes_after, no_tensors, no_keys};
    (void)state;
    for (size_t i = 0; i < sizeof edits / sizeof edits[0]; i++) {
        struct ferry_error err = {0};
        gguf_spec_init(&spec);
        edits[i]();
        gguf_spec_write(&spec, &file);
        if (parse(file.data, file.size, &err) != FERRY_OK)
            fail_msg("case %zu: %s", i, err.msg);
    }
}

/* Dimensions are turned round, offsets are the file's. */
static void test_contents(void **state)
{
    struct arena arena;
    struct gguf_contents contents;

    (void)state;
    arena_init(&arena, "test");
    gguf_spec_init(&spec);
    gguf_spec_write(&spec, &file);
    assert_int_equal(gguf_parse(&contents, &arena, file.data, file.size, "x.gguf", NULL), FERRY_OK);
    assert_int_equal(contents.tensors.count, 3);
    const struct checkpoint_tensor *b = &contents.tensors.items[1];
    assert_string_equal(b->name, "b");
    assert_int_equal(b->dtype, DTYPE_Q8_0);
    assert_int_equal(b->n_dims, 2);
    assert_int_equal(b->dims[0], 3);
    assert_int_equal(b->dims[1], 64);
    assert_int_equal(b->size_bytes, 204);
    assert_int_equal(b->offset, 288 + 256);
    assert_ptr_equal(b->data, file.data + 288 + 256);
    assert_int_equal(contents.meta.count, 3);
    arena_fini(&arena);
}

static void test_truncated_everywhere(void **state)
{
    (void)state;
    gguf_spec_init(&spec);
    gguf_spec_write(&spec, &file);
    for (size_t n = 0; n < file.size; n++) {
        struct ferry_error err = {0};
        unsigned char *copy = exact_copy(file.data, n);
        enum ferry_status st = parse(copy, n, &err);
        free(copy);
        if (st != FERRY_ERR_FORMAT || err.msg[0] == 0)
            fail_msg("cut to %zu bytes: %s \"%s\"", n, ferry_status_name(st), err.msg);
    }
}

/* Any outcome, but no crash, and what is accepted lies within the file. */
static void test_mutated(void **state)
{
    static const unsigned char VALUES[] = {0, 1, 0x7F, 0x80, 0xFF};
    size_t n_accepted = 0;
    uint64_t random = 1;

    (void)state;
    gguf_spec_init(&spec);
    gguf_spec_write(&spec, &file);
    size_t header = 288;
    for (size_t at = 0; at < header; at++) {
        for (size_t k = 0; k < sizeof VALUES + 8; k++) {
            unsigned char *copy = exact_copy(file.data, file.size);
            random = random * UINT64_C(6364136223846793005) + 1442695040888963407u;
            copy[at] = k < sizeof VALUES ? VALUES[k] : (unsigned char)(random >> 56);
            n_accepted += parse(copy, file.size, NULL) == FERRY_OK;
            free(copy);
        }
    }
    assert_in_range(n_accepted, 1, header * (sizeof VALUES + 8) / 2);
}

static void test_no_memory(void **state)
{
    uint64_t n = 1;
    enum ferry_status st = FERRY_ERR_NOMEM;

    (void)state;
    gguf_spec_init(&spec);
    /* More than one arena block, so that several allocations can fail. */
    for (int i = 0; i < 1200; i++) {
        char key[32];
        (void)snprintf(key, sizeof key, "key.%d", i);
        gguf_spec_key(&spec, key, GGUF_TYPE_U8, 1, 1);
    }
    gguf_spec_write(&spec, &file);
    for (; n < 100 && st != FERRY_OK; n++) {
        struct ferry_error err = {0};
        mem_fail_after(n);
        st = parse(file.data, file.size, &err);
        mem_fail_after(0);
        /* The arena tries a smaller block after a failure, so some n succeed early. */
        if (st != FERRY_OK)
            assert_int_equal(st, FERRY_ERR_NOMEM);
    }
    assert_int_equal(st, FERRY_OK);
}

static void test_names(void **state)
{
    (void)state;
    assert_string_equal(gguf_type_name(GGUF_TYPE_U8), "u8");
    assert_string_equal(gguf_type_name(GGUF_TYPE_BOOL), "bool");
    assert_string_equal(gguf_type_name(GGUF_TYPE_F64), "f64");
    assert_int_equal(gguf_type_bytes(GGUF_TYPE_I16), 2);
    assert_int_equal(gguf_type_bytes(GGUF_TYPE_STRING), 0);
    assert_int_equal(gguf_type_bytes(GGUF_TYPE_U64), 8);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rejected), cmocka_unit_test(test_accepted),
        cmocka_unit_test(test_contents), cmocka_unit_test(test_truncated_everywhere),
        cmocka_unit_test(test_mutated),  cmocka_unit_test(test_no_memory),
        cmocka_unit_test(test_names),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
