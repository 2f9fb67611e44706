/* The transport `ucx` between real processes: kill -9 and SIGSTOP at any moment, what is left
 * behind, how fast a death is noticed, whether sleepers are woken. Arguments: `quick` or `long`,
 * and `shm` or `tcp`, the road. */
#include "ucx_peer.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool is_long, over_tcp;

/* ---- what the cases share ---- */

static uint64_t random_state;

static uint64_t next_random(uint64_t bound)
{
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (random_state >> 33) % bound;
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return x < y ? -1 : x > y;
}

static void print_times(const char *what, double *ms, size_t n)
{
    qsort(ms, n, sizeof ms[0], compare);
    if (n > 0)
        (void)printf("%s, %s: n %zu, median %.3f ms, 90 %% %.3f, most %.3f\n", what,
                     over_tcp ? "tcp" : "shm", n, ms[n / 2], ms[n * 9 / 10], ms[n - 1]);
}

static void pump_for(struct side *side, uint64_t ns)
{
    uint64_t end = clock_now_ns() + ns;

    do {
        struct link *link = side_ready(side);
        if (link != NULL) {
            (void)link_pump(link);
            assert_int_equal(link->n_bad, 0);
        }
        transport_ucx.poll(side->transport, link == NULL ? 1000000 : 0);
    } while (clock_now_ns() < end);
}

static enum link_class wanted_link(void)
{
    return over_tcp ? LINK_TCP : LINK_SHM;
}

/* ---- death ---- */

/* One peer, killed `after` ns from its start, at whatever it does then. Appends the time from its
 * end to the event. */
static void kill_one(struct side *side, uint64_t after, double *ms, size_t *n, size_t *n_busy)
{
    pid_t pid = peer_start("traffic", side->address);

    pump_for(side, after);
    uint64_t killed_ns = clock_now_ns();
    peer_kill(pid);
    bool known = false;
    for (size_t i = 0; i < PEER_LINKS; i++)
        known |= side->links[i].conn != NULL;
    if (!known) { /* it had not said hello: nobody is told, and nothing stays */
        pump_for(side, 20000000);
        for (size_t i = 0; i < PEER_LINKS; i++)
            known |= side->links[i].conn != NULL;
    }
    for (size_t i = 0; known && i < PEER_LINKS; i++) {
        struct link *link = &side->links[i];
        if (link->conn == NULL)
            continue;
        *n_busy += link->next_in[0] > 0;
        SIDE_WAIT(side, 1000, link->lost);
        ms[(*n)++] = (double)(link->lost_ns - killed_ns) / 1e6;
        assert_true(strlen(link->reason) > 0);
        if (!over_tcp) /* proven, not just silent */
            SIDE_WAIT(side, 1000, transport_ucx.gone(link->conn));
        assert_int_equal(transport_ucx.gone(link->conn), !over_tcp); /* as of another host */
        link_close(link, true);
    }
    SIDE_WAIT(side, 1000, transport_ucx.quarantined(side->transport) == 0);
}

static void a_killed_peer_is_noticed_and_leaves_nothing(void **state)
{
    enum { MOST = 400 };
    struct side side;
    double ms[MOST];
    size_t n = 0, n_busy = 0,
           n_kills = is_long          ? 200
                     : patience() > 1 ? 15
                                      : 50,
           files = count_shm_files();

    (void)state;
    side_open(&side);
    kill_one(&side, 300000000 * patience(), ms, &n, &n_busy); /* warm */
    size_t descriptors = count_descriptors();
    n = n_busy = 0;
    for (size_t i = 0; i < n_kills; i++)
        kill_one(&side, next_random(150000000 * patience()), ms, &n, &n_busy);
    print_times("kill -9 to `lost`", ms, n);
    (void)printf("  of %zu kills %zu came before the hello, %zu in the middle of traffic\n",
                 n_kills, n_kills - n, n_busy);
    assert_true(n >= n_kills / 4);
    assert_in_range(count_descriptors(), 1, descriptors + 2);
    assert_int_equal(count_shm_files(), files);
    pid_t last = peer_start("traffic", side.address); /* and it goes on as before */
    SIDE_WAIT(&side, 5000, side_ready(&side) != NULL);
    SIDE_WAIT(&side, 5000, (link_pump(side_ready(&side)), side_ready(&side)->next_in[0] > 0));
    assert_int_equal(transport_ucx.link(side_ready(&side)->conn), wanted_link());
    peer_kill(last);
    side_close(&side);
    assert_int_equal(count_shm_files(), files);
}

/* ---- a stopped peer ---- */

static struct link *wait_ready(struct side *side)
{
    SIDE_WAIT(side, 10000, side_ready(side) != NULL);
    return side_ready(side);
}

static void a_stopped_peer_that_goes_on_hurts_nobody(void **state)
{
    enum { PROBE = 4096 };
    struct side side;

    (void)state;
    side_open(&side);
    pid_t stopped = peer_start("store", side.address);
    struct link *link = wait_ready(&side);
    struct lane *lane = transport_ucx.lane(link->conn, LANE_REQUEST, LANE_RECEIVE);
    volatile unsigned char *row = lane->shared->ring + PROBE;
    if (!over_tcp) /* its stores are seen here: it is in the middle of a row */
        SIDE_WAIT(&side, 5000, row[0] != 0);
    assert_int_equal(kill(stopped, SIGSTOP), 0);
    pump_for(&side, 20000000);
    assert_false(link->lost); /* nobody but a heartbeat can tell */
    link_close(link, true);
    size_t kept = transport_ucx.quarantined(side.transport);
    if (over_tcp)
        assert_int_equal(kept, 0);
    else
        assert_in_range(kept, 2 * PEER_RING, 3 * PEER_RING);
    unsigned char before = over_tcp ? 0 : row[0];

    pid_t other = peer_start("traffic", side.address); /* fresh lanes beside it */
    link = wait_ready(&side);
    pump_for(&side, 20000000);
    assert_int_equal(kill(stopped, SIGCONT), 0);
    uint64_t end = clock_now_ns() + 2000000000u * patience();
    while (!over_tcp && row[0] == before && clock_now_ns() < end) /* it writes where it may */
        pump_for(&side, 1000000);
    if (!over_tcp)
        assert_int_not_equal(row[0], before);
    pump_for(&side, 100000000);
    SIDE_WAIT(&side, 5000, (link_pump(link), link->next_in[0] > 100));
    assert_int_equal(link->n_bad, 0);
    assert_int_equal(transport_ucx.quarantined(side.transport), kept);
    peer_kill(stopped);
    SIDE_WAIT(&side, 1000, transport_ucx.quarantined(side.transport) == 0);
    pump_for(&side, 20000000);
    assert_int_equal(link->n_bad, 0);
    peer_kill(other);
    side_close(&side);
}

/* A stopped peer does not read: sends queue up, and neither they nor a close wait for it. */
static void a_stopped_peer_blocks_nobody(void **state)
{
    static const unsigned char data[16 << 10] = {'x'};
    struct side side;
    enum ferry_status st = FERRY_OK;

    (void)state;
    side_open(&side);
    pid_t pid = peer_start("idle", side.address);
    struct link *link = wait_ready(&side);
    assert_int_equal(kill(pid, SIGSTOP), 0);
    for (size_t sent = 0; sent < (64 << 20) && st == FERRY_OK; sent += sizeof data) {
        st = transport_ucx.send(link->conn, data, sizeof data);
        transport_ucx.poll(side.transport, 0);
        (void)link_pump(link);
    }
    assert_int_equal(st, FERRY_AGAIN);
    assert_false(transport_ucx.gone(link->conn)); /* silent, but there */
    uint64_t begin = clock_now_ns();
    link_close(link, true);
    assert_true(clock_now_ns() - begin < 3000000000u * patience()); /* waits for nobody */
    assert_int_equal(kill(pid, SIGCONT), 0);
    SIDE_WAIT(&side, 5000, waitpid(pid, NULL, WNOHANG) == pid); /* it has noticed the close */
    side_close(&side);
}

/* ---- waking ---- */

/* Control messages to and fro with both sides asleep between them: a wake that is missed would last
 * as long as the poll. */
static void sleepers_are_woken(void **state)
{
    enum { MOST = 20000, POLL_MS = 1000 };
    static double ms[MOST];
    struct side side;
    size_t n = is_long ? MOST : 2000, n_late = 0;

    (void)state;
    (void)setenv("UCX_KEEPALIVE_INTERVAL", "60s", 1); /* or its timer would help out */
    side_open(&side);
    pid_t pid = peer_start("echo", side.address);
    struct link *link = wait_ready(&side);
    for (size_t i = 0; i < n; i++) {
        uint64_t begin = clock_now_ns();
        assert_int_equal(transport_ucx.send(link->conn, "ping", 4), FERRY_OK);
        while (link->n_pings <= i)
            transport_ucx.poll(side.transport, POLL_MS * 1000000ull);
        ms[i] = (double)(clock_now_ns() - begin) / 1e6;
        n_late += ms[i] > POLL_MS / 2;
        assert_true(ms[i] < 10.0 * POLL_MS);
    }
    print_times("control message to and fro", ms, n);
    assert_int_equal(n_late, 0);
    peer_kill(pid);
    SIDE_WAIT(&side, 1000, link->lost);
    side_close(&side);
    (void)unsetenv("UCX_KEEPALIVE_INTERVAL");
}

/* ---- growth ---- */

static void connections_come_and_go_without_growth(void **state)
{
    struct side side;
    size_t n_cycles = is_long ? 1000 : 200, n_done = 0, descriptors = 0, kib = 0;
    char text[32];
    int status = -1;

    (void)state;
    side_open(&side);
    (void)snprintf(text, sizeof text, "%zu", n_cycles);
    (void)setenv("PEER_CYCLES", text, 1);
    pid_t pid = peer_start("cycle", side.address);
    uint64_t end = clock_now_ns() + 200000000000u;
    while (waitpid(pid, &status, WNOHANG) != pid) {
        assert_true(clock_now_ns() < end);
        transport_ucx.poll(side.transport, 1000000);
        for (size_t i = 0; i < PEER_LINKS; i++) {
            struct link *link = &side.links[i];
            if (link->conn != NULL && link->ready && !link->lost)
                (void)link_pump(link);
            if (link->conn == NULL || !link->lost)
                continue;
            link_close(link, n_done % 3 == 0);
            n_done++;
            if (n_done == 100) {
                descriptors = count_descriptors();
                kib = rss_anon_kib();
            }
        }
    }
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
    SIDE_WAIT(&side, 2000, transport_ucx.quarantined(side.transport) == 0);
    (void)printf("after %zu cycles: %zu descriptors, %zu KiB; after 100: %zu, %zu\n", n_done,
                 count_descriptors(), rss_anon_kib(), descriptors, kib);
    assert_in_range(n_done, n_cycles - 1, n_cycles + 1);
    assert_in_range(count_descriptors(), 1, descriptors + 2);
    assert_in_range(rss_anon_kib(), 1, kib + RSS_SLACK_KIB);
    side_close(&side);
}

int main(int argc, char **argv)
{
    peer_main(argc, argv);
    for (int i = 1; i < argc; i++) {
        is_long |= strcmp(argv[i], "long") == 0;
        over_tcp |= strcmp(argv[i], "tcp") == 0;
    }
    if (over_tcp)
        (void)setenv("FERRY_FABRIC_NO_SHM", "1", 1);
    const char *seed = getenv("FERRY_TEST_SEED");
    random_state = seed != NULL ? strtoull(seed, NULL, 10) : clock_now_ns();
    (void)printf("FERRY_TEST_SEED=%llu\n", (unsigned long long)random_state);
    const char *only = getenv("FERRY_TEST_ONLY");
    if (only != NULL)
        cmocka_set_test_filter(only);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_killed_peer_is_noticed_and_leaves_nothing),
        cmocka_unit_test(a_stopped_peer_that_goes_on_hurts_nobody),
        cmocka_unit_test(a_stopped_peer_blocks_nobody),
        cmocka_unit_test(sleepers_are_woken),
        cmocka_unit_test(connections_come_and_go_without_growth),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
