/* What is UCX's in the transport `ucx`: it starts when it must, gives signals back, and tells why
 * it does not. */
#include "../unit.h"
#include "fabric/ucx_impl.h"
#include "ucx_peer.h"

#include <arpa/inet.h>
#include <dlfcn.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

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

/* Of this process, at other addresses than loopback. */
static size_t count_open_ports(void)
{
    size_t n_open = 0;

    for (int fd = 3; fd < 1024; fd++) {
        struct sockaddr_storage at;
        socklen_t n = sizeof at, n_value = sizeof(int);
        int listens = 0;
        if (getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &n_value) != 0 || !listens ||
            getsockname(fd, (struct sockaddr *)&at, &n) != 0 || at.ss_family != AF_INET)
            continue;
        n_open += ntohl(((const struct sockaddr_in *)&at)->sin_addr.s_addr) != INADDR_LOOPBACK;
    }
    return n_open;
}

/* Whoever reaches the port of UCX's TCP can end the process, key or not. */
static void a_group_of_one_host_is_reached_from_nowhere_else(void **state)
{
    unsigned char address[UCX_WORKER_MAX];
    struct ferry_error err = {0};
    struct side side;
    size_t n;

    (void)state;
    side_open(&side);
    assert_string_equal(side.transport->device, "lo");
    if (ucx_worker_address(side.transport, address, &n, &err) != FERRY_OK)
        fail_msg("%s", err.msg);
    assert_int_equal(count_open_ports(), 0);
    side_close(&side);
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

/* The other side may be in the middle of its handshake, and UCX would end it: see ucx_worker.c. */
static void a_new_endpoint_is_not_closed_at_once(void **state)
{
    const uint64_t least_ns = UINT64_C(200000000);

    (void)state;
    (void)setenv("FERRY_FABRIC_NO_SHM", "1", 1);
    for (int whole = 0; whole < 2; whole++) { /* one connection, or all of a transport */
        struct both both;
        uint64_t begin = clock_now_ns();
        both_open(&both);
        assert_int_equal(transport_ucx.link(both.out->conn), LINK_TCP);
        if (whole) {
            side_close(&both.near);
        } else {
            link_close(both.out, false);
            BOTH_WAIT(&both, both.near.transport->closed == NULL);
        }
        assert_true(clock_now_ns() - begin >= least_ns);
        if (!whole)
            side_close(&both.near);
        side_close(&both.far);
    }
    (void)unsetenv("FERRY_FABRIC_NO_SHM");
}

int main(void)
{
    crash_signals_are_the_programs_own(NULL); /* cmocka sets its own around a test */
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_worker_starts_once_and_ends_with_the_transport),
        cmocka_unit_test(a_group_of_one_host_is_reached_from_nowhere_else),
        cmocka_unit_test(a_worker_that_cannot_start_is_an_error),
        cmocka_unit_test(a_road_to_nowhere_is_lost_and_can_be_closed),
        cmocka_unit_test(a_new_endpoint_is_not_closed_at_once),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
