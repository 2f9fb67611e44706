/* API keys: what a key file may hold, who is found, what is shared under which digest. */
#include "tests/unit/unit.h"

#include "base/alloc.h"
#include "serve/auth.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static enum ferry_status create(struct auth **auth, const char *text, struct ferry_error *err)
{
    return auth_create(auth, text, strlen(text), err);
}

static int find(const struct auth *auth, const char *key)
{
    return auth_find(auth, key, strlen(key));
}

static void files(void **state)
{
    struct auth *auth = NULL;
    struct ferry_error err = {0};

    (void)state;
    assert_int_equal(create(&auth, "# keys\n\n  alpha \r\nbeta\t\n\ngamma", &err), FERRY_OK);
    assert_int_equal(find(auth, "alpha"), 0);
    assert_int_equal(find(auth, "beta"), 1);
    assert_int_equal(find(auth, "gamma"), 2);
    assert_int_equal(find(auth, "alph"), -1);
    assert_int_equal(find(auth, "alpha "), -1);
    assert_int_equal(find(auth, "# keys"), -1);
    assert_int_equal(find(auth, ""), -1);
    assert_int_equal(auth_find(auth, "alpha\0x", 7), -1);
    assert_memory_not_equal(auth_cache_key(auth, 0), auth_cache_key(auth, 1), AUTH_DIGEST_BYTES);
    /* The digest is of the key, not of its place: prefixes outlive a change of the file. */
    struct auth *other = NULL;
    assert_int_equal(create(&other, "beta\n", &err), FERRY_OK);
    assert_memory_equal(auth_cache_key(other, 0), auth_cache_key(auth, 1), AUTH_DIGEST_BYTES);
    auth_destroy(other);
    auth_destroy(auth);
    auth_destroy(NULL);
}

static void refusals(void **state)
{
    struct auth *auth = NULL;
    struct ferry_error err = {0};
    char *many = malloc((size_t)(AUTH_KEYS_MAX + 1) * 8 + 1);
    char longest[AUTH_KEY_BYTES_MAX + 2];
    size_t n = 0;

    (void)state;
    assert_int_equal(create(&auth, "", &err), FERRY_ERR_ARG);
    assert_int_equal(create(&auth, "# only this\n \n", &err), FERRY_ERR_ARG);
    assert_int_equal(create(&auth, "good\ntwo words\n", &err), FERRY_ERR_ARG);
    assert_non_null(strstr(err.msg, "line 2"));
    assert_null(strstr(err.msg, "words")); /* no key in a message */
    assert_int_equal(create(&auth, "k\xc3\xa9y\n", &err), FERRY_ERR_ARG);
    memset(longest, 'k', sizeof longest - 1);
    longest[sizeof longest - 1] = 0;
    assert_int_equal(create(&auth, longest, &err), FERRY_ERR_LIMIT);
    assert_int_equal(create(&auth, longest + 1, &err), FERRY_OK);
    assert_int_equal(find(auth, longest + 1), 0);
    assert_int_equal(find(auth, longest), -1);
    auth_destroy(auth);
    auth = NULL;
    for (int i = 0; i < AUTH_KEYS_MAX; i++)
        n += (size_t)sprintf(many + n, "k%d\n", i);
    assert_int_equal(create(&auth, many, &err), FERRY_OK);
    assert_int_equal(find(auth, "k0"), 0);
    assert_int_equal(find(auth, "k1023"), AUTH_KEYS_MAX - 1);
    auth_destroy(auth);
    auth = NULL;
    (void)strcpy(many + n, "more\n");
    assert_int_equal(create(&auth, many, &err), FERRY_ERR_LIMIT);
    mem_fail_after(1);
    assert_int_equal(create(&auth, "good", &err), FERRY_ERR_NOMEM);
    mem_fail_after(0);
    assert_null(auth);
    free(many);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(files), cmocka_unit_test(refusals)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
