/* See ucx_peer.h. */
#include "ucx_peer.h"

#include "pattern.h"

#include <dirent.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>

enum { OFFER = 'O', PING = 'p' };

/* ---- measures ---- */

uint64_t patience(void)
{
#ifdef FERRY_SANITIZED
    return 10;
#else
    return 1;
#endif
}

static size_t count_files(const char *folder, const char *prefix)
{
    size_t n = 0;
    const struct dirent *entry;
    DIR *dir = opendir(folder);

    assert_non_null(dir);
    while ((entry = readdir(dir)) != NULL)
        n += strncmp(entry->d_name, prefix, strlen(prefix)) == 0;
    (void)closedir(dir);
    return n;
}

size_t count_descriptors(void)
{
    return count_files("/proc/self/fd", "");
}

size_t count_shm_files(void)
{
    return count_files("/dev/shm", "ucx_shm");
}

size_t rss_anon_kib(void)
{
    char line[256];
    size_t kib = 0;
    FILE *file = fopen("/proc/self/status", "r");

    assert_non_null(file);
    while (kib == 0 && fgets(line, sizeof line, file) != NULL) {
        if (strncmp(line, "RssAnon:", 8) == 0)
            kib = strtoul(line + 8, NULL, 10);
    }
    (void)fclose(file);
    return kib;
}

/* ---- this side ---- */

static struct link *find_link(struct side *side, const struct transport_conn *conn)
{
    for (size_t i = 0; i < PEER_LINKS; i++) {
        if (side->links[i].conn == conn)
            return &side->links[i];
    }
    return NULL;
}

static struct link *add_link(struct side *side, struct transport_conn *conn)
{
    struct link *link = find_link(side, NULL);

    assert_non_null(link);
    *link = (struct link){.side = side, .conn = conn};
    return link;
}

static void send_offer(struct link *link)
{
    const struct transport_lanes lanes = {{link->side->ring_bytes, link->side->ring_bytes}};
    unsigned char message[1 + TRANSPORT_OFFER_MAX];
    size_t n_bytes;
    struct ferry_error err = {0};
    enum ferry_status st = transport_ucx.offer(link->conn, &lanes, message + 1, &n_bytes, &err);

    if (st == FERRY_ERR_PEER)
        return; /* it has died meanwhile */
    if (st != FERRY_OK)
        fail_msg("offer: %s", err.msg);
    message[0] = OFFER;
    link->offered = true;
    st = transport_ucx.send(link->conn, message, 1 + n_bytes);
    assert_true(st == FERRY_OK || st == FERRY_ERR_PEER);
}

static void on_open(void *arg, struct transport_conn *conn)
{
    struct side *side = arg;
    struct link *link = find_link(side, conn);

    if (link == NULL)
        link = add_link(side, conn);
    link->open = true;
    if (!side->bare)
        send_offer(link);
}

static void on_control(void *arg, struct transport_conn *conn, const void *data, size_t n_bytes)
{
    struct side *side = arg;
    struct link *link = find_link(side, conn);
    const unsigned char *bytes = data;
    struct ferry_error err = {0};

    assert_non_null(link);
    assert_false(link->lost);
    assert_true(n_bytes > 0 || side->empty_is_legal);
    if (n_bytes > 0 && bytes[0] == OFFER) {
        enum ferry_status st = transport_ucx.accept(conn, bytes + 1, n_bytes - 1, &err);
        if (st != FERRY_OK && st != FERRY_ERR_PEER)
            fail_msg("accept: %s", err.msg);
        link->ready = st == FERRY_OK;
        return;
    }
    link->n_pings++;
    if (side->echo)
        (void)transport_ucx.send(conn, data, n_bytes);
}

static void on_lost(void *arg, struct transport_conn *conn, const char *reason)
{
    struct side *side = arg;
    struct link *link = find_link(side, conn);

    assert_non_null(link);
    assert_false(link->lost);
    link->lost_ns = clock_now_ns();
    (void)snprintf(link->reason, sizeof link->reason, "%s", reason);
    link->lost = true;
}

void side_open(struct side *side)
{
    struct ferry_error err = {0};
    const struct transport_options options = {
        .events = {on_open, on_open, on_control, on_lost, side},
        .listen = "127.0.0.1:0",
        .ret_bell = &side->bell,
    };

    *side = (struct side){.ring_bytes = PEER_RING};
    if (transport_ucx.create(&side->transport, &options, &err) != FERRY_OK)
        fail_msg("create: %s", err.msg);
    transport_ucx.address(side->transport, side->address);
}

void side_close(struct side *side)
{
    transport_ucx.destroy(side->transport);
    side->transport = NULL;
}

void side_connect(struct side *side, const char *address)
{
    struct transport_conn *conn;
    struct ferry_error err = {0};

    if (transport_ucx.connect(side->transport, address, &conn, &err) != FERRY_OK)
        fail_msg("connect: %s", err.msg);
    (void)add_link(side, conn);
}

void link_close(struct link *link, bool keep_lanes)
{
    struct transport_conn *conn = link->conn;

    link->conn = NULL;
    link->ready = link->open = false;
    transport_ucx.close(conn, keep_lanes);
}

struct link *side_ready(struct side *side)
{
    for (size_t i = 0; i < PEER_LINKS; i++) {
        if (side->links[i].conn != NULL && side->links[i].ready && !side->links[i].lost)
            return &side->links[i];
    }
    return NULL;
}

void side_print(const struct side *side)
{
    (void)fprintf(stderr, "process %d, %s\n", (int)getpid(), side->address);
    for (size_t i = 0; i < PEER_LINKS; i++) {
        const struct link *link = &side->links[i];
        if (link->conn == NULL)
            continue;
        (void)fprintf(stderr, "  link %zu: open %d, offered %d, ready %d, lost %d %s; ", i,
                      link->open, link->offered, link->ready, link->lost, link->reason);
        for (int channel = 0; channel < LANE_N_CHANNELS; channel++)
            (void)fprintf(stderr, "out %llu in %llu ", (unsigned long long)link->next_out[channel],
                          (unsigned long long)link->next_in[channel]);
        (void)fprintf(stderr, "bad %llu\n", (unsigned long long)link->n_bad);
    }
}

/* ---- traffic ---- */

static size_t size_of(uint64_t number, size_t max)
{
    uint64_t mixed = number * 0x9e3779b97f4a7c15u >> 40;

    return mixed % 16 == 0 ? max - mixed % 100 : mixed % 3000;
}

static bool put(struct link *link, enum lane_channel channel)
{
    struct lane *lane = transport_ucx.lane(link->conn, channel, LANE_SEND);
    uint64_t number = link->next_out[channel];
    size_t n_bytes = size_of(number, lane_max_payload(lane->ring_bytes));
    struct lane_header header = {.id = number, .n_bytes = (uint32_t)n_bytes};
    void *data;

    if (lane_reserve(lane, n_bytes, &data) != FERRY_OK)
        return false;
    fill(data, n_bytes, number);
    lane_commit(lane, &header);
    link->next_out[channel]++;
    return true;
}

static bool take(struct link *link, enum lane_channel channel)
{
    struct lane *lane = transport_ucx.lane(link->conn, channel, LANE_RECEIVE);
    uint64_t number = link->next_in[channel];
    const unsigned char *data;
    struct lane_header header;

    if (!lane_take(lane, &header, &data)) {
        link->n_bad += lane->broken;
        return false;
    }
    bool good = header.id == number &&
                header.n_bytes == size_of(number, lane_max_payload(lane->ring_bytes)) &&
                is_filled(data, header.n_bytes, number);
    link->n_bad += !good;
    link->next_in[channel]++;
    lane_release(lane, &header);
    return true;
}

bool link_pump(struct link *link)
{
    bool any = false;

    for (int channel = 0; channel < LANE_N_CHANNELS; channel++) {
        any |= take(link, (enum lane_channel)channel);
        any |= put(link, (enum lane_channel)channel);
    }
    return any;
}

/* ---- two sides in one process ---- */

void both_turn(struct both *both)
{
    transport_ucx.poll(both->near.transport, 200000);
    transport_ucx.poll(both->far.transport, 200000);
}

void both_open(struct both *both)
{
    side_open(&both->near);
    side_open(&both->far);
    side_connect(&both->near, both->far.address);
    BOTH_WAIT(both, side_ready(&both->near) != NULL && side_ready(&both->far) != NULL);
    both->out = side_ready(&both->near);
    both->in = side_ready(&both->far);
}

void both_close(struct both *both)
{
    side_close(&both->near);
    side_close(&both->far);
}

/* ---- peers ---- */

pid_t peer_start(const char *mode, const char *address)
{
    (void)fflush(NULL);
    pid_t pid = fork();

    assert_true(pid >= 0);
    if (pid == 0) {
        (void)close_range(3, ~0u,
                          0); /* UCX's descriptors survive an exec: a copy is a connection */
        (void)prctl(PR_SET_PDEATHSIG, SIGKILL); /* survives exec: none is left when a test fails */
        (void)execl("/proc/self/exe", "peer", "peer", mode, address, (char *)NULL);
        _exit(127);
    }
    return pid;
}

void peer_kill(pid_t pid)
{
    assert_int_equal(kill(pid, SIGKILL), 0);
    assert_int_equal(waitpid(pid, NULL, 0), pid);
}

static void *poll_main(void *arg)
{
    struct side *side = arg;

    for (;;)
        transport_ucx.poll(side->transport, 100000000);
    return NULL;
}

/* Full traffic until it is killed: an engine thread beside the fabric's. */
static _Noreturn void peer_traffic(struct side *side, struct link *link)
{
    pthread_t thread;

    if (pthread_create(&thread, NULL, poll_main, side) != 0)
        _exit(3);
    for (;;) {
        uint32_t seen = lane_bell_rings(side->bell);
        if (!link_pump(link))
            transport_ucx.sleep(side->transport, seen, 10000000);
        if (link->n_bad > 0)
            _exit(4);
    }
}

/* Stores into the row that it has reserved, again and again, as one that was stopped in the middle
 * of it would go on. */
static _Noreturn void peer_store(struct link *link)
{
    struct lane *lane = transport_ucx.lane(link->conn, LANE_REQUEST, LANE_SEND);
    void *data;

    if (lane_reserve(lane, lane_max_payload(lane->ring_bytes), &data) != FERRY_OK)
        _exit(3);
    volatile unsigned char *bytes = data;
    for (unsigned char value = 1;; value++) {
        for (size_t i = 0; i < lane_max_payload(lane->ring_bytes); i++)
            bytes[i] = value;
    }
}

/* Connects, exchanges lanes and a few messages, closes; again until n are done. Exit 0: without
 * growth. */
static _Noreturn void peer_cycle(struct side *side, const char *address)
{
    enum { WARM = 100 };
    size_t n = strtoul(getenv("PEER_CYCLES"), NULL, 10), descriptors = 0, kib = 0;

    link_close(&side->links[0], false);
    for (size_t i = 0; i < n; i++) {
        side_connect(side, address);
        SIDE_WAIT(side, 5000, side_ready(side) != NULL);
        struct link *link = side_ready(side);
        SIDE_WAIT(side, 5000, (link_pump(link), link->next_in[0] >= 20 && link->next_in[1] >= 20));
        if (link->n_bad > 0)
            _exit(4);
        link_close(link, i % 2 == 0);
        if (i == WARM) {
            descriptors = count_descriptors();
            kib = rss_anon_kib();
        }
    }
    (void)printf("peer after %zu cycles: %zu descriptors, %zu KiB; after %d: %zu, %zu\n", n,
                 count_descriptors(), rss_anon_kib(), (int)WARM, descriptors, kib);
    (void)fflush(stdout);
    _exit(count_descriptors() > descriptors + 2 || rss_anon_kib() > kib + RSS_SLACK_KIB ? 5 : 0);
}

void peer_main(int argc, char **argv)
{
    static struct side side;

    if (argc < 4 || strcmp(argv[1], "peer") != 0)
        return;
    const char *mode = argv[2];
    side_open(&side);
    side.echo = strcmp(mode, "echo") == 0;
    side_connect(&side, argv[3]);
    SIDE_WAIT(&side, 20000, side_ready(&side) != NULL);
    struct link *link = side_ready(&side);
    if (strcmp(mode, "traffic") == 0)
        peer_traffic(&side, link);
    if (strcmp(mode, "store") == 0)
        peer_store(link);
    if (strcmp(mode, "cycle") == 0)
        peer_cycle(&side, argv[3]);
    while (!link->lost) /* "echo", and "idle", which answers nothing */
        transport_ucx.poll(side.transport, 1000000000);
    _exit(0);
}
