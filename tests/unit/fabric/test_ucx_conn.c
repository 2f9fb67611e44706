/* Connections of the transport `ucx` against peers that do not keep to the protocol: other
 * versions, messages that are too long, visitors of the port, silence; and against a lack of memory
 * and of descriptors. */
#include "../unit.h"
#include "base/alloc.h"
#include "fabric/ucx_impl.h"
#include "ucx_peer.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

/* ---- a peer that is a plain socket ---- */

static int visit(const struct side *side)
{
    struct ucx_address to;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    assert_int_equal(ucx_address_parse(&to, side->address, AF_INET, NULL), FERRY_OK);
    assert_int_equal(connect(fd, (struct sockaddr *)&to.storage, to.n_bytes), 0);
    return fd;
}

static void say(int fd, const void *data, size_t n)
{
    assert_int_equal(send(fd, data, n, MSG_NOSIGNAL), (ssize_t)n);
}

static void turns(struct side *side)
{
    for (int i = 0; i < 20; i++)
        transport_ucx.poll(side->transport, 300000);
}

static size_t count_conns(const struct side *side)
{
    size_t n = 0;

    for (size_t i = 0; i < UCX_CONNS; i++)
        n += side->transport->conns[i] != NULL;
    return n;
}

static struct ucx_hello good_hello(void)
{
    return (struct ucx_hello){.magic = 0x78726566, .version = 2, .label = {.token = 5}};
}

/* A visitor that is taken for a peer. */
static int visit_well(struct side *side)
{
    const struct ucx_hello hello = good_hello();
    int fd = visit(side);

    side->bare = true;
    say(fd, &hello, sizeof hello);
    SIDE_WAIT(side, 3000, side->links[0].open);
    return fd;
}

/* ---- hello ---- */

static void strangers_with_another_hello_are_never_announced(void **state)
{
    struct side side;

    (void)state;
    side_open(&side);
    for (int i = 0; i < 4; i++) {
        struct ucx_hello hello = good_hello();
        int fd = visit(&side);
        turns(&side);
        assert_int_equal(count_conns(&side), 1);
        hello.version += i == 0;
        hello.magic ^= i == 1;
        if (i == 3)
            memset(&hello, 0xff, sizeof hello);
        if (i != 2)
            say(fd, &hello, sizeof hello);
        else
            say(fd, &hello, sizeof hello - 1);
        if (i == 2) {
            turns(&side);
            assert_int_equal(count_conns(&side), 1); /* one byte may still come */
            (void)close(fd);
            fd = -1;
        }
        SIDE_WAIT(&side, 3000, count_conns(&side) == 0);
        assert_null(side.links[0].conn);
        if (fd >= 0)
            (void)close(fd);
    }
    side_close(&side);
}

static void a_hello_in_pieces_is_one(void **state)
{
    const struct ucx_hello hello = good_hello();
    const char *bytes = (const char *)&hello;
    struct side side;

    (void)state;
    side_open(&side);
    side.bare = true;
    int fd = visit(&side);
    for (size_t i = 0; i < sizeof hello; i++) {
        assert_null(side.links[0].conn);
        say(fd, bytes + i, 1);
        turns(&side);
    }
    SIDE_WAIT(&side, 3000, side.links[0].open);
    (void)close(fd);
    SIDE_WAIT(&side, 3000, side.links[0].lost);
    side_close(&side);
}

static void strangers_that_say_nothing_are_dropped_in_time(void **state)
{
    struct side side;

    (void)state;
    side_open(&side);
    int fd = visit(&side);
    turns(&side);
    assert_int_equal(ucx_conn_strangers(side.transport), 1);
    for (size_t i = 0; i < UCX_CONNS; i++) {
        if (side.transport->conns[i] != NULL) /* as if it had connected long ago */
            side.transport->conns[i]->since_ns -= 11000000000u;
    }
    SIDE_WAIT(&side, 3000, count_conns(&side) == 0);
    assert_null(side.links[0].conn);
    (void)close(fd);
    side_close(&side);
}

/* Many silent ones do not keep a peer out for longer than they may be silent, nor eat all slots. */
static void silent_strangers_are_bounded(void **state)
{
    enum { MANY = UCX_STRANGERS + 20 };
    static int fds[MANY];
    struct both both;

    (void)state;
    both_open(&both);
    for (size_t i = 0; i < MANY; i++)
        fds[i] = visit(&both.far);
    turns(&both.far);
    assert_int_equal(ucx_conn_strangers(both.far.transport), UCX_STRANGERS);
    assert_int_equal(count_conns(&both.far), UCX_STRANGERS + 1);
    assert_int_equal(transport_ucx.send(both.out->conn, "usual", 5), FERRY_OK);
    BOTH_WAIT(&both, both.in->n_pings == 1);
    for (size_t i = 0; i < MANY; i++)
        (void)close(fds[i]);
    SIDE_WAIT(&both.far, 3000, ucx_conn_strangers(both.far.transport) == 0);
    side_connect(&both.near, both.far.address);
    BOTH_WAIT(&both, both.far.links[1].open);
    both_close(&both);
}

/* ---- messages ---- */

static void messages_in_pieces_come_whole(void **state)
{
    static const uint32_t SIZES[] = {1, 0, 3, 1000, 0, TRANSPORT_CONTROL_MAX};
    static char wire[TRANSPORT_CONTROL_MAX + 4096];
    struct side side;
    size_t n = 0;

    (void)state;
    side_open(&side);
    int fd = visit_well(&side);
    side.empty_is_legal = true;
    for (size_t i = 0; i < COUNT_OF(SIZES); i++) {
        memcpy(wire + n, &SIZES[i], 4);
        memset(wire + n + 4, 'p', SIZES[i]);
        n += 4 + SIZES[i];
    }
    for (size_t at = 0, piece = 1; at < n; at += piece, piece = piece % 7000 + 1 + piece / 2) {
        if (piece > n - at)
            piece = n - at;
        say(fd, wire + at, piece);
        transport_ucx.poll(side.transport, 100000);
    }
    SIDE_WAIT(&side, 3000, side.links[0].n_pings == COUNT_OF(SIZES));
    assert_false(side.links[0].lost);
    (void)close(fd);
    SIDE_WAIT(&side, 3000, side.links[0].lost);
    side_close(&side);
}

static void messages_that_are_too_long_are_the_end(void **state)
{
    static const uint32_t SIZES[] = {TRANSPORT_CONTROL_MAX + 1, UINT32_MAX, 1u << 31};

    (void)state;
    for (size_t i = 0; i < COUNT_OF(SIZES); i++) {
        struct side side;
        side_open(&side);
        int fd = visit_well(&side);
        say(fd, &SIZES[i], 4);
        SIDE_WAIT(&side, 3000, side.links[0].lost);
        assert_non_null(strstr(side.links[0].reason, "too long"));
        assert_int_equal(side.links[0].n_pings, 0);
        (void)close(fd);
        side_close(&side);
    }
}

/* What a peer says before it goes is heard, although the own answer finds nobody. */
static void last_words_are_heard(void **state)
{
    enum { WORDS = 100 };
    struct side side;

    (void)state;
    side_open(&side);
    int fd = visit_well(&side);
    static unsigned char words[5 * WORDS];
    for (size_t i = 0; i < WORDS; i++)
        memcpy(words + 5 * i, "\1\0\0\0w", 5);
    say(fd, words, sizeof words);
    const struct linger hard = {.l_onoff = 1}; /* a reset, not an end */
    (void)setsockopt(fd, SOL_SOCKET, SO_LINGER, &hard, sizeof hard);
    (void)close(fd);
    for (int i = 0; i < 10 && !side.links[0].lost; i++)
        (void)transport_ucx.send(side.links[0].conn, "answer", 6);
    SIDE_WAIT(&side, 3000, side.links[0].lost);
    assert_int_equal(side.links[0].n_pings, WORDS);
    side_close(&side);
}

/* ---- the port ---- */

/* What a port scanner or a browser does: connects, says something or nothing, leaves. */
static void visitors_of_the_port_do_no_harm(void **state)
{
    static const char *const WORDS[] = {
        "", "GET / HTTP/1.1\r\nHost: x\r\nAccept: text/html\r\n\r\n", "\r\n\r\n", "SSH-2.0-x\r\n"};
    static const char zeros[100000];
    struct both both;

    (void)state;
    both_open(&both);
    size_t before = count_descriptors();
    for (size_t i = 0; i < 5 * COUNT_OF(WORDS); i++) {
        const char *word = WORDS[i % COUNT_OF(WORDS)];
        int fd = visit(&both.far);
        say(fd, word, strlen(word));
        if (i % 3 == 0)
            (void)send(fd, zeros, sizeof zeros, MSG_NOSIGNAL);
        both_turn(&both);
        (void)close(fd);
        both_turn(&both);
    }
    assert_false(both.in->lost || both.out->lost);
    assert_int_equal(transport_ucx.send(both.out->conn, "usual", 5), FERRY_OK);
    BOTH_WAIT(&both, both.in->n_pings == 1);
    BOTH_WAIT(&both, count_descriptors() <= before);
    both_close(&both);
}

/* One that takes a connection and never answers: a connect waits, and can be closed. */
static void a_connect_to_a_silent_port_can_be_closed(void **state)
{
    struct sockaddr_in any = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t n = sizeof any;
    char address[64];
    struct side side;
    int fd = socket(AF_INET, SOCK_STREAM, 0);

    (void)state;
    assert_int_equal(bind(fd, (struct sockaddr *)&any, sizeof any), 0);
    assert_int_equal(listen(fd, 8), 0); /* and more than that is not even answered by the kernel */
    assert_int_equal(getsockname(fd, (struct sockaddr *)&any, &n), 0);
    (void)snprintf(address, sizeof address, "127.0.0.1:%u", ntohs(any.sin_port));
    side_open(&side);
    size_t before = count_descriptors();
    for (int i = 0; i < 20; i++) {
        side_connect(&side, address);
        for (int k = 0; k < i; k++)
            transport_ucx.poll(side.transport, 300000);
        assert_false(side.links[0].open || side.links[0].lost);
        assert_int_equal(transport_ucx.send(side.links[0].conn, "x", 1), FERRY_AGAIN);
        uint64_t begin = clock_now_ns();
        link_close(&side.links[0], i % 2 == 0);
        assert_true(clock_now_ns() - begin < 3000000000u * patience());
    }
    assert_int_equal(count_descriptors(), before);
    side_connect(&side, address); /* and a transport may end with one */
    side_close(&side);
    (void)close(fd);
}

static void a_connection_that_leads_to_itself_is_lost(void **state)
{
    struct side side;

    (void)state;
    side_open(&side);
    int fd = visit(&side);
    turns(&side);
    struct ucx_hello echo;
    assert_int_equal(recv(fd, &echo, sizeof echo, MSG_WAITALL), sizeof echo);
    say(fd, &echo, sizeof echo);
    SIDE_WAIT(&side, 3000, count_conns(&side) == 0);
    assert_null(side.links[0].conn);
    (void)close(fd);
    side_close(&side);
}

static void an_address_in_use_is_said(void **state)
{
    struct side side;
    struct transport *other = NULL;
    struct ferry_error err = {0};
    size_t before = count_descriptors();

    (void)state;
    side_open(&side);
    size_t with = count_descriptors();
    struct transport_options options = {.listen = side.address};
    assert_int_equal(transport_ucx.create(&other, &options, &err), FERRY_ERR_IO);
    assert_non_null(strstr(err.msg, "in use"));
    assert_non_null(strstr(err.msg, side.address));
    options.listen = "203.0.113.1:0"; /* nobody's here */
    assert_int_equal(transport_ucx.create(&other, &options, &err), FERRY_ERR_IO);
    options.listen = "nonsense";
    assert_int_equal(transport_ucx.create(&other, &options, &err), FERRY_ERR_ARG);
    options.listen = NULL;
    assert_int_equal(transport_ucx.create(&other, &options, &err), FERRY_ERR_ARG);
    assert_null(other);
    assert_int_equal(count_descriptors(), with);
    side_close(&side);
    assert_int_equal(count_descriptors(), before);
}

/* The next rank on a port does not have to wait for the connections of the last. */
static void a_port_can_be_taken_again_at_once(void **state)
{
    struct ferry_error err = {0};
    struct both both;

    (void)state;
    both_open(&both);
    const struct transport_options options = {.listen = both.far.address};
    struct transport *again;
    side_close(&both.far);
    if (transport_ucx.create(&again, &options, &err) != FERRY_OK)
        fail_msg("%s", err.msg);
    transport_ucx.destroy(again);
    side_close(&both.near);
}

/* A child of exec holds none of our connections. */
static void no_descriptor_survives_exec(void **state)
{
    struct both both;

    (void)state;
    size_t before[1024] = {0};
    for (int fd = 0; fd < 1024; fd++)
        before[fd] = fcntl(fd, F_GETFD) >= 0;
    (void)setenv("FERRY_FABRIC_NO_SHM", "0", 1);
    both_open(&both);
    for (int fd = 0; fd < 1024; fd++) {
        int flags = fcntl(fd, F_GETFD);
        assert_true(flags < 0 || before[fd] || (flags & FD_CLOEXEC) != 0);
    }
    both_close(&both);
}

/* ---- lack ---- */

static void a_lack_of_memory_is_an_error(void **state)
{
    struct side side;
    struct transport *other = NULL;
    struct transport_conn *conn = NULL;
    const struct transport_options options = {.listen = "127.0.0.1:0"};
    static const unsigned char data[TRANSPORT_CONTROL_MAX] = {'d'};
    struct ferry_error err = {0};
    struct both both;
    enum ferry_status st = FERRY_ERR_NOMEM;

    (void)state;
    for (uint64_t n = 1; st != FERRY_OK && n < 20; n++) {
        mem_fail_after(n);
        st = transport_ucx.create(&other, &options, &err);
        mem_fail_after(0);
        assert_true(st == FERRY_OK || st == FERRY_ERR_NOMEM);
    }
    assert_int_equal(st, FERRY_OK);
    transport_ucx.destroy(other);
    side_open(&side);
    size_t before = count_descriptors();
    mem_fail_after(1);
    assert_int_equal(transport_ucx.connect(side.transport, "127.0.0.1:1", &conn, &err),
                     FERRY_ERR_NOMEM);
    mem_fail_after(0);
    assert_int_equal(count_descriptors(), before);
    side_close(&side);

    both_open(&both);
    mem_fail_after(1); /* nothing was sent: the connection is as it was */
    assert_int_equal(transport_ucx.send(both.out->conn, data, sizeof data), FERRY_ERR_NOMEM);
    mem_fail_after(0);
    assert_int_equal(transport_ucx.send(both.out->conn, data, 10), FERRY_OK);
    BOTH_WAIT(&both, both.in->n_pings == 1);
    assert_int_equal(transport_ucx.send(both.out->conn, data, 10), FERRY_OK);
    mem_fail_after(1); /* of the receiver */
    SIDE_WAIT(&both.far, 3000, both.in->lost);
    mem_fail_after(0);
    assert_non_null(strstr(both.in->reason, "no memory"));
    both_close(&both);
}

/* Without descriptors nobody new gets in; with the next free one they do. */
static void a_lack_of_descriptors_passes(void **state)
{
    struct both both;
    struct rlimit old, few;

    (void)state;
    both_open(&both);
    int fd = visit(&both.far); /* waits in the kernel */
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &old), 0);
    few = (struct rlimit){.rlim_cur = 3, .rlim_max = old.rlim_max};
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &few), 0);
    uint64_t begin = clock_now_ns();
    int n_polls = 0;
    while (clock_now_ns() - begin < 200000000u) { /* it does not spin over it */
        transport_ucx.poll(both.far.transport, 200000000);
        n_polls++;
    }
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &old), 0);
    assert_in_range(n_polls, 1, 10);
    assert_int_equal(ucx_conn_strangers(both.far.transport), 0);
    SIDE_WAIT(&both.far, 3000, ucx_conn_strangers(both.far.transport) == 1);
    (void)close(fd);
    both_close(&both);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(strangers_with_another_hello_are_never_announced),
        cmocka_unit_test(a_hello_in_pieces_is_one),
        cmocka_unit_test(strangers_that_say_nothing_are_dropped_in_time),
        cmocka_unit_test(silent_strangers_are_bounded),
        cmocka_unit_test(messages_in_pieces_come_whole),
        cmocka_unit_test(messages_that_are_too_long_are_the_end),
        cmocka_unit_test(last_words_are_heard),
        cmocka_unit_test(visitors_of_the_port_do_no_harm),
        cmocka_unit_test(a_connect_to_a_silent_port_can_be_closed),
        cmocka_unit_test(a_connection_that_leads_to_itself_is_lost),
        cmocka_unit_test(an_address_in_use_is_said),
        cmocka_unit_test(a_port_can_be_taken_again_at_once),
        cmocka_unit_test(no_descriptor_survives_exec),
        cmocka_unit_test(a_lack_of_memory_is_an_error),
        cmocka_unit_test(a_lack_of_descriptors_passes),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
