/* The hash is SHA-256 over length-prefixed fields. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/alloc.h"
#include "file/hash.h"

#include <string.h>

static void test_known(void **state)
{
    char hex[65];

    (void)state;
    struct hash *hash = hash_create();
    assert_true(hash_finish(hash, hex));
    hash_destroy(hash);
    /* SHA-256 of nothing. */
    assert_string_equal(hex, "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
    hash = hash_create();
    hash_text(hash, "abc");
    assert_true(hash_finish(hash, hex));
    hash_destroy(hash);
    /* printf '\3\0\0\0\0\0\0\0abc' | sha256sum */
    assert_string_equal(hex, "ce91dc5eec0139adf091900d225971d6ad246a845bad791b5693a9d0d55dd391");
    hash = hash_create();
    hash_raw(hash, "a", 1);
    hash_raw(hash, "bc", 2);
    assert_true(hash_finish(hash, hex));
    hash_destroy(hash);
    /* printf abc | sha256sum */
    assert_string_equal(hex, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
}

static void hash_of(const char *a, const char *b, const char *json_text, char hex[65])
{
    struct hash *hash = hash_create();
    hash_text(hash, a);
    hash_text(hash, b);
    json_t *json = json_loads(json_text, 0, NULL);
    hash_json(hash, json);
    json_decref(json);
    assert_true(hash_finish(hash, hex));
    hash_destroy(hash);
}

/* Fields do not run together; JSON counts by content, not by layout. */
static void test_fields(void **state)
{
    char x[65];
    char y[65];

    (void)state;
    hash_of("ab", "c", "{}", x);
    hash_of("a", "bc", "{}", y);
    assert_string_not_equal(x, y);
    hash_of("", "", "{\"a\":1,\"b\":[2]}", x);
    hash_of("", "", " { \"b\": [2],\n \"a\": 1 }", y);
    assert_string_equal(x, y);
    hash_of("", "", "{\"a\":1,\"b\":[3]}", y);
    assert_string_not_equal(x, y);
}

static void test_failures(void **state)
{
    char hex[65] = "kept";

    (void)state;
    mem_fail_after(1);
    assert_null(hash_create());
    mem_fail_after(0);
    hash_destroy(NULL);
    struct hash *hash = hash_create();
    hash_json(hash, NULL); /* cannot be written: the failure is kept */
    assert_false(hash_finish(hash, hex));
    assert_string_equal(hex, "kept");
    hash_destroy(hash);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_known),
        cmocka_unit_test(test_fields),
        cmocka_unit_test(test_failures),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
