/* Groups of real processes over the transport ucx: joining, kill -9, SIGSTOP, joining again. Each
 * rank is a child that writes what it sees into memory shared with the test. */
#include "../unit.h"

#include "base/clock.h"
#include "fabric/fabric.h"

#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>

enum { N_RANKS = 4, RING = 1 << 16 };

static const uint64_t MS = 1000000;

/* One rank, as it sees the world. */
struct seen {
    _Atomic uint32_t epoch, incarnation, status;
    _Atomic uint64_t live, members;
    _Atomic int issuer, link;
    _Atomic uint64_t n_received; /* messages of others' data that were right */
    _Atomic uint64_t n_wrong;
    char error[480];
};
static struct seen *ranks;
static char founder[TRANSPORT_ADDRESS_MAX + 16]; /* of seat 0, set by the test */
static struct {
    char address[N_RANKS][TRANSPORT_ADDRESS_MAX];
} * addresses;
static _Atomic bool *busy; /* ranks never sleep */
static pid_t pids[N_RANKS];

static struct fabric *own;

static void on_change(void *arg, int seat, enum seat_state from, enum seat_state to)
{
    (void)arg;
    (void)from;
    if (seat == fabric_seat(own) && to == SEAT_JOINING)
        fabric_ready(own);
}

/* Sends a message to every live rank now and then, and checks what comes. */
static void exchange(struct fabric *fabric, struct seen *seen, uint64_t round)
{
    for (int s = 0; s < N_RANKS; s++) {
        struct lane_header header = {.id = round, .n_bytes = 256};
        struct fabric_message message;
        void *data;

        if (fabric_lanes(fabric, s) == 0)
            continue;
        while (fabric_take(fabric, s, LANE_REQUEST, &message)) {
            bool right = message.header.n_bytes == 256;
            for (size_t i = 0; right && i < 256; i++)
                right = message.data[i] == (unsigned char)(s + (int)message.header.id);
            if (right)
                seen->n_received++;
            else
                seen->n_wrong++;
            fabric_release(fabric, &message);
        }
        if (fabric_reserve(fabric, s, LANE_REQUEST, 256, &data) != FERRY_OK)
            continue;
        memset(data, (int)(unsigned char)(fabric_seat(fabric) + (int)round), 256);
        fabric_commit(fabric, s, LANE_REQUEST, &header);
    }
}

static void run_rank(int seat, const char *join)
{
    struct seen *seen = &ranks[seat];
    struct fabric_options options = {.transport = &transport_ucx,
                                     .listen = "127.0.0.1:0",
                                     .join = join,
                                     .seat = seat,
                                     .n_seats = N_RANKS,
                                     .lanes = {{RING, RING}}};
    struct ferry_error err = {0};
    struct fabric_view view;

    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (fabric_create(&own, &options, &err) != FERRY_OK) {
        (void)snprintf(seen->error, sizeof seen->error, "%s", err.msg);
        seen->status = 2;
        return;
    }
    fabric_address(own, addresses->address[seat]);
    fabric_on_change(own, on_change, NULL);
    fabric_ready(own);
    seen->status = 1;
    for (uint64_t round = 0;; round++) {
        uint32_t rings = fabric_rings(own);
        fabric_view(own, &view);
        seen->link = (int)fabric_link(own, seat == 0 ? 1 : 0);
        seen->incarnation = view.seats[seat].incarnation;
        seen->issuer = view.issuer;
        seen->live = view.live;
        seen->members = view.members;
        seen->epoch = view.epoch;
        exchange(own, seen, round);
        if (!*busy)
            fabric_sleep(own, rings, 2 * MS);
    }
}

static void start(int seat, int contact)
{
    ranks[seat].status = 0;
    if (contact >= 0)
        (void)snprintf(founder, sizeof founder, "%s", addresses->address[contact]);
    (void)fflush(NULL);
    pids[seat] = fork();
    assert_true(pids[seat] >= 0);
    if (pids[seat] == 0) {
        run_rank(seat, contact >= 0 ? founder : NULL);
        _exit(0);
    }
    uint64_t end_ns = clock_now_ns() + 20000 * MS;
    while (ranks[seat].status == 0 && clock_now_ns() < end_ns)
        lane_bell_sleep(&(struct lane_bell){0}, 0, MS);
    if (ranks[seat].status != 1)
        fail_msg("seat %d: %s", seat, ranks[seat].error);
}

static void end(int seat, int sig)
{
    (void)kill(pids[seat], sig);
    (void)waitpid(pids[seat], NULL, 0);
    pids[seat] = 0;
}

/* Milliseconds until all of `of` see these live, with one epoch and issuer. */
static uint64_t wait_live(uint64_t of, uint64_t live)
{
    uint64_t begin_ns = clock_now_ns();

    for (;;) {
        bool agree = true;
        int first = __builtin_ctzll(of);
        for (int s = 0; s < N_RANKS; s++) {
            if ((of >> s & 1) == 0)
                continue;
            agree &= ranks[s].live == live && ranks[s].epoch == ranks[first].epoch &&
                     ranks[s].issuer >= 0 && ranks[s].issuer == ranks[first].issuer &&
                     ranks[s].members == live;
        }
        uint64_t ms = (clock_now_ns() - begin_ns) / MS;
        if (agree)
            return ms;
        if (ms > 20000) {
            for (int s = 0; s < N_RANKS; s++)
                print_message("seat %d: epoch %u live %llx issuer %d\n", s, ranks[s].epoch,
                              (unsigned long long)ranks[s].live, ranks[s].issuer);
            fail_msg("no agreement on %llx", (unsigned long long)live);
        }
        lane_bell_sleep(&(struct lane_bell){0}, 0, MS / 2);
    }
}

/* Data goes on between all of these. */
static void check_data(uint64_t of)
{
    uint64_t before[N_RANKS], end_ns = clock_now_ns() + 20000 * MS;

    for (int s = 0; s < N_RANKS; s++)
        before[s] = ranks[s].n_received;
    for (int s = 0; s < N_RANKS; s++) {
        while ((of >> s & 1) != 0 && ranks[s].n_received < before[s] + 20) {
            assert_true(clock_now_ns() < end_ns);
            lane_bell_sleep(&(struct lane_bell){0}, 0, MS);
        }
        assert_int_equal(ranks[s].n_wrong, 0);
    }
}

static void *share(size_t n_bytes)
{
    void *p = mmap(NULL, n_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

    assert_true(p != MAP_FAILED);
    return p;
}

static int begin(void **state)
{
    (void)state;
    ranks = share(N_RANKS * sizeof *ranks);
    addresses = share(sizeof *addresses);
    busy = share(sizeof *busy);
    for (int s = 0; s < N_RANKS; s++)
        start(s, s == 0 ? -1 : 0);
    (void)wait_live(15, 15);
    return 0;
}

static int finish(void **state)
{
    (void)state;
    for (int s = 0; s < N_RANKS; s++) {
        if (pids[s] != 0)
            end(s, SIGKILL);
    }
    (void)munmap(ranks, N_RANKS * sizeof *ranks);
    (void)munmap(addresses, sizeof *addresses);
    (void)munmap((void *)busy, sizeof *busy);
    return 0;
}

static void test_data_flows(void **state)
{
    (void)state;
    check_data(15);
    assert_int_equal(ranks[1].link, LINK_SHM);
}

/* Once with cores to spare, once with an engine thread in every rank that never rests. */
static void test_kill(void **state)
{
    (void)state;
    for (int i = 0; i < 2 * N_RANKS; i++) {
        int victim = i % N_RANKS;
        uint64_t left = 15 & ~((uint64_t)1 << victim);
        int contact = __builtin_ctzll(left);

        *busy = i >= N_RANKS;
        end(victim, SIGKILL);
        uint64_t ms = wait_live(left, left);
        print_message("kill -9 of seat %d%s: %llu ms until all agree\n", victim,
                      *busy ? ", the others busy" : "", (unsigned long long)ms);
        assert_true(ms < 1000 * fabric_time_factor());
        check_data(left);
        start(victim, contact);
        print_message("  back after %llu ms\n", (unsigned long long)wait_live(15, 15));
        check_data(15);
    }
}

static void test_stop(void **state)
{
    (void)state;
    for (int victim = 0; victim < N_RANKS; victim++) {
        uint64_t left = 15 & ~((uint64_t)1 << victim);
        uint32_t incarnation = ranks[victim].incarnation;

        (void)kill(pids[victim], SIGSTOP);
        uint64_t ms = wait_live(left, left);
        print_message("SIGSTOP of seat %d: %llu ms until all agree\n", victim,
                      (unsigned long long)ms);
        lane_bell_sleep(&(struct lane_bell){0}, 0, 1500 * MS * fabric_time_factor());
        check_data(left);
        (void)kill(pids[victim], SIGCONT);
        print_message("  back after %llu ms\n", (unsigned long long)wait_live(15, 15));
        assert_true(ranks[victim].incarnation > incarnation);
        check_data(15);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_data_flows, begin, finish),
        cmocka_unit_test_setup_teardown(test_kill, begin, finish),
        cmocka_unit_test_setup_teardown(test_stop, begin, finish),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
