/* What is UCX's in the transport `ucx`: it starts when it must, gives signals back, and tells why
 * it does not. */
#include "../unit.h"
#include "fabric/ucx_impl.h"
#include "ucx_peer.h"

#include <dlfcn.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

/* Before anything else has set one. */
static void crash_signals_are_the_programs_own(void **state)
{
    static const int signals[] = {SIGILL, SIGSEGV, SIGBUS, SIGFPE};

    (void)state;
    for (size_t i = 0; i < COUNT_OF(signals); i++) {
        struct sigaction now;
        Dl_info info = {0};
        assert_int_equal(sigaction(signals[i], NULL, &now), 0);
        void *handler;
        memcpy(&handler, &now.sa_sigaction, sizeof handler);
        if (now.sa_handler != SIG_DFL && dladdr(handler, &info) != 0 && info.dli_fname != NULL)
            assert_null(strstr(info.dli_fname, "libucs"));
    }
}

static void a_worker_starts_once_and_ends_with_the_transport(void **state)
{
    unsigned char address[2][UCX_WORKER_MAX];
    struct ferry_error err = {0};
    struct side side;
    size_t n[2] = {0}, before = count_descriptors();

    (void)state;
    side_open(&side);
    assert_null(side.transport->worker);
    assert_true(ucx_worker_may_sleep(side.transport));
    for (size_t i = 0; i < 2; i++) {
        if (ucx_worker_address(side.transport, address[i], &n[i], &err) != FERRY_OK)
            fail_msg("%s", err.msg);
    }
    assert_in_range(n[0], 10, UCX_WORKER_MAX);
    assert_int_equal(n[0], n[1]);
    assert_memory_equal(address[0], address[1], n[0]);
    SIDE_WAIT(&side, 3000, ucx_worker_may_sleep(side.transport));
    side_close(&side);
    assert_in_range(count_descriptors(), 1, before + 2); /* UCX keeps some of its own */
}

static void a_worker_that_cannot_start_is_an_error(void **state)
{
    unsigned char address[UCX_WORKER_MAX];
    struct ferry_error err = {0};
    struct side side;
    size_t n;

    (void)state;
    side_open(&side);
    (void)setenv("UCX_TLS", "no_such_transport", 1);
    assert_true(ucx_worker_address(side.transport, address, &n, &err) < 0);
    assert_non_null(strstr(err.msg, "UCX_TLS"));
    assert_null(side.transport->worker);
    (void)unsetenv("UCX_TLS");
    assert_int_equal(ucx_worker_address(side.transport, address, &n, &err), FERRY_OK);
    side_close(&side);
}

/* The peer's address is gone, or was never one. */
static void a_road_to_nowhere_is_lost_and_can_be_closed(void **state)
{
    struct both both;

    (void)state;
    (void)setenv("FERRY_FABRIC_NO_SHM", "1", 1);
    both_open(&both);
    assert_int_equal(transport_ucx.link(both.out->conn), LINK_TCP);
    side_close(&both.far);
    for (int i = 0; i < 1000; i++) {
        (void)link_pump(both.out);
        transport_ucx.poll(both.near.transport, 100000);
    }
    assert_true(both.out->lost);
    link_close(both.out, true);
    SIDE_WAIT(&both.near, 3000, both.near.transport->closed == NULL);
    side_close(&both.near);
    (void)unsetenv("FERRY_FABRIC_NO_SHM");
}

int main(void)
{
    crash_signals_are_the_programs_own(NULL); /* cmocka sets its own around a test */
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_worker_starts_once_and_ends_with_the_transport),
        cmocka_unit_test(a_worker_that_cannot_start_is_an_error),
        cmocka_unit_test(a_road_to_nowhere_is_lost_and_can_be_closed),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
