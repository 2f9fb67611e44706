/* Addresses of the transport `ucx`: what is taken, what is refused, and what is shown. */
#include "../unit.h"
#include "fabric/ucx_impl.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <string.h>

static void shows(const char *text, const char *wanted)
{
    struct ucx_address address;
    struct ferry_error err = {0};
    char shown[TRANSPORT_ADDRESS_MAX];

    if (ucx_address_parse(&address, text, AF_UNSPEC, &err) != FERRY_OK)
        fail_msg("%s: %s", text, err.msg);
    ucx_address_format(&address.storage, shown);
    assert_string_equal(shown, wanted);
}

static void addresses_are_shown_as_they_are_given(void **state)
{
    (void)state;
    shows("127.0.0.1:0", "127.0.0.1:0");
    shows("127.0.0.1:65535", "127.0.0.1:65535");
    shows("10.1.2.3:8081", "10.1.2.3:8081");
    shows("[fd00::2]:8081", "[fd00::2]:8081");
    shows("[fd00:0:0:0:0:0:0:2]:1", "[fd00::2]:1");
    shows("[::1]:80", "[::1]:80");
}

static void a_name_gives_an_address_of_the_wanted_family(void **state)
{
    struct ucx_address address;
    struct ferry_error err = {0};

    (void)state;
    assert_int_equal(ucx_address_parse(&address, "localhost:5", AF_INET, &err), FERRY_OK);
    assert_int_equal(address.storage.ss_family, AF_INET);
    /* Another family is better than nothing. */
    assert_int_equal(ucx_address_parse(&address, "127.0.0.1:5", AF_INET6, &err), FERRY_OK);
    assert_int_equal(address.storage.ss_family, AF_INET);
}

static void wrong_addresses_are_refused(void **state)
{
    static const char *bad[] = {"",
                                ":",
                                "host",
                                ":80",
                                "127.0.0.1",
                                "127.0.0.1:",
                                "127.0.0.1:x",
                                "127.0.0.1:-1",
                                "127.0.0.1:65536",
                                "127.0.0.1:123456",
                                "127.0.0.1: 1",
                                "::1:80",
                                "fd00::2:80",
                                "[]:80",
                                "[fd00::2:80",
                                "[fd00::2]80",
                                "no.such.host.invalid:80",
                                "256.0.0.1:80"};
    struct ucx_address address;
    char much[2 * TRANSPORT_ADDRESS_MAX];

    (void)state;
    for (size_t i = 0; i < COUNT_OF(bad); i++) {
        struct ferry_error err = {0};
        if (ucx_address_parse(&address, bad[i], AF_UNSPEC, &err) != FERRY_ERR_ARG)
            fail_msg("'%s' is taken", bad[i]);
        assert_true(strstr(err.msg, "address '") != NULL);
    }
    struct ferry_error err = {0};
    assert_int_equal(ucx_address_parse(&address, NULL, AF_UNSPEC, &err), FERRY_ERR_ARG);
    memset(much, '1', sizeof much);
    memcpy(much + sizeof much - 4, ":80", 4);
    assert_int_equal(ucx_address_parse(&address, much, AF_UNSPEC, &err), FERRY_ERR_ARG);
}

/* The longest host that is taken still fits where it is copied. */
static void long_hosts_stay_in_bounds(void **state)
{
    struct ucx_address address;
    char text[TRANSPORT_ADDRESS_MAX];

    (void)state;
    for (size_t n = TRANSPORT_ADDRESS_MAX - 3; n < TRANSPORT_ADDRESS_MAX; n++) {
        struct ferry_error err = {0};
        memset(text, 'x', sizeof text);
        memcpy(text + n - 3, ":80", 3);
        text[n] = 0;
        assert_int_equal(ucx_address_parse(&address, text, AF_UNSPEC, &err), FERRY_ERR_ARG);
    }
}

static void wildcards_are_shown_as_an_address_that_others_can_use(void **state)
{
    static const char *wild[] = {"0.0.0.0:7", "[::]:7"};
    struct ucx_address address;
    struct ferry_error err = {0};
    char shown[TRANSPORT_ADDRESS_MAX];

    (void)state;
    for (size_t i = 0; i < COUNT_OF(wild); i++) {
        assert_int_equal(ucx_address_parse(&address, wild[i], AF_UNSPEC, &err), FERRY_OK);
        ucx_address_format(&address.storage, shown);
        assert_true(strlen(shown) > 3 && strcmp(shown + strlen(shown) - 2, ":7") == 0);
        if (i == 0) /* every machine has an IPv4 address, if only its own loopback */
            assert_string_not_equal(shown, wild[i]);
        assert_true(memchr(shown, '%', strlen(shown)) == NULL);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(addresses_are_shown_as_they_are_given),
        cmocka_unit_test(a_name_gives_an_address_of_the_wanted_family),
        cmocka_unit_test(wrong_addresses_are_refused),
        cmocka_unit_test(long_hosts_stay_in_bounds),
        cmocka_unit_test(wildcards_are_shown_as_an_address_that_others_can_use),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
