/* Proofs against an independent implementation, their roles, and which addresses need no key. */
#include "../unit.h"

#include "fabric/auth.h"

#include <string.h>

/* Python: hmac.new(key, b"ferry group 1 " + role + b"\0" + dialler + listener, sha256), with
 * dialler = bytes(range(32)), listener = bytes(range(100, 132)). */
static const char KEY[] = "group key";
static const char DIALLER_MAC[] =
    "1d2112ff38b038869dade90df5afa46e6ee5e589062afb4e0d20377fa25626c3";
static const char LISTENER_MAC[] =
    "a0876ebc902d4753785175465b3317b595c582c09da0ad4a838795cff3bf88b7";
static const char NO_KEY_MAC[] = "dc87a165a1c8747c1c73f2d710e90c55a75f8400a0c6d4f11fd63fbef54d5f82";

static unsigned char dialler[WIRE_NONCE_BYTES], listener[WIRE_NONCE_BYTES];

static int make_nonces(void **state)
{
    (void)state;
    for (int i = 0; i < WIRE_NONCE_BYTES; i++) {
        dialler[i] = (unsigned char)i;
        listener[i] = (unsigned char)(100 + i);
    }
    return 0;
}

static void expect_mac(const void *key, size_t n_key, enum auth_role role, const char *wanted)
{
    unsigned char mac[WIRE_MAC_BYTES];
    char hex[2 * WIRE_MAC_BYTES + 1];

    assert_int_equal(auth_prove(key, n_key, role, dialler, listener, mac, NULL), FERRY_OK);
    for (size_t i = 0; i < sizeof mac; i++)
        (void)snprintf(hex + 2 * i, 3, "%02x", mac[i]);
    assert_string_equal(hex, wanted);
}

static void test_known_answers(void **state)
{
    (void)state;
    expect_mac(KEY, strlen(KEY), AUTH_DIALLER, DIALLER_MAC);
    expect_mac(KEY, strlen(KEY), AUTH_LISTENER, LISTENER_MAC);
    expect_mac(NULL, 0, AUTH_DIALLER, NO_KEY_MAC);
}

static void test_what_is_not_a_proof(void **state)
{
    unsigned char mac[WIRE_MAC_BYTES];

    (void)state;
    assert_int_equal(auth_prove(KEY, 9, AUTH_DIALLER, dialler, listener, mac, NULL), FERRY_OK);
    assert_true(auth_check(KEY, 9, AUTH_DIALLER, dialler, listener, mac));
    assert_false(auth_check(KEY, 9, AUTH_LISTENER, dialler, listener, mac)); /* sent back */
    assert_false(auth_check(KEY, 9, AUTH_DIALLER, listener, dialler, mac));
    assert_false(auth_check(KEY, 8, AUTH_DIALLER, dialler, listener, mac));
    assert_false(auth_check("Group key", 9, AUTH_DIALLER, dialler, listener, mac));
    for (size_t i = 0; i < 8 * sizeof mac; i++) {
        mac[i / 8] ^= (unsigned char)(1u << i % 8);
        assert_false(auth_check(KEY, 9, AUTH_DIALLER, dialler, listener, mac));
        mac[i / 8] ^= (unsigned char)(1u << i % 8);
    }
    dialler[31] ^= 1; /* another connection */
    assert_false(auth_check(KEY, 9, AUTH_DIALLER, dialler, listener, mac));
    dialler[31] ^= 1;
}

static void test_nonces_differ(void **state)
{
    unsigned char a[WIRE_NONCE_BYTES], b[WIRE_NONCE_BYTES];

    (void)state;
    assert_int_equal(auth_random(a, sizeof a, NULL), FERRY_OK);
    assert_int_equal(auth_random(b, sizeof b, NULL), FERRY_OK);
    assert_memory_not_equal(a, b, sizeof a);
}

static void test_loopback(void **state)
{
    static const char *const INSIDE[] = {"127.0.0.1:8081", "127.1.2.3:0", "localhost:1", "[::1]:8",
                                         "127.0.0.1"};
    static const char *const OUTSIDE[] = {"0.0.0.0:8081",     "10.0.0.1:1", "127.example.org:1",
                                          "localhost.evil:1", ":8081",      "[::]:1",
                                          "[2001:db8::1]:1",  "",           "128.0.0.1:1"};

    (void)state;
    for (size_t i = 0; i < COUNT_OF(INSIDE); i++)
        assert_true(auth_is_loopback(INSIDE[i]));
    for (size_t i = 0; i < COUNT_OF(OUTSIDE); i++)
        assert_false(auth_is_loopback(OUTSIDE[i]));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_known_answers),
        cmocka_unit_test(test_what_is_not_a_proof),
        cmocka_unit_test(test_nonces_differ),
        cmocka_unit_test(test_loopback),
    };

    return cmocka_run_group_tests(tests, make_nonces, NULL);
}
