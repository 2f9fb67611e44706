/* Groups of ranks for tests. See ranks.h. */
#include "ranks.h"

#include "base/clock.h"

#include <string.h>

static const uint64_t MS = 1000000;

void ranks_open(struct ranks *ranks, size_t n_seats)
{
    struct fabric_hub_options options = {0};

    *ranks = (struct ranks){.n_seats = n_seats};
    assert_int_equal(fabric_hub_create(&ranks->hub, &options, NULL), FERRY_OK);
}

void ranks_close(struct ranks *ranks)
{
    for (int s = 0; s < RANKS_MAX; s++)
        fabric_destroy(ranks->fabrics[s]);
    fabric_hub_destroy(ranks->hub);
}

void ranks_name(const struct ranks *ranks, int seat, char ret_name[32])
{
    (void)snprintf(ret_name, 32, "rank%d.%u", seat, ranks->births[seat]);
}

struct fabric_options ranks_options(struct ranks *ranks, int seat, int contact)
{
    static char names[RANKS_MAX][2][32];
    struct fabric_options options = {.transport = &transport_loop,
                                     .hub = ranks->hub,
                                     .seat = seat,
                                     .n_seats = ranks->n_seats,
                                     .key = "the key",
                                     .n_key = 7,
                                     .heartbeat_ns = 50 * MS,
                                     .lanes = {{RANKS_RING, RANKS_RING}}};

    ranks->births[seat]++;
    ranks_name(ranks, seat, names[seat][0]);
    options.listen = names[seat][0];
    if (contact >= 0) {
        ranks_name(ranks, contact, names[seat][1]);
        options.join = names[seat][1];
    }
    return options;
}

void ranks_start(struct ranks *ranks, int seat, int contact)
{
    struct fabric_options options = ranks_options(ranks, seat, contact);
    struct ferry_error err = {0};

    if (fabric_create(&ranks->fabrics[seat], &options, &err) != FERRY_OK)
        fail_msg("seat %d: %s", seat, err.msg);
    assert_int_equal(fabric_seat(ranks->fabrics[seat]), seat);
}

void ranks_start_all(struct ranks *ranks, size_t n)
{
    for (int s = 0; s < (int)n; s++) {
        ranks_start(ranks, s, s == 0 ? -1 : 0);
        fabric_ready(ranks->fabrics[s]);
    }
    ranks_wait_live(ranks, ((uint64_t)1 << n) - 1, ((uint64_t)1 << n) - 1);
}

void ranks_kill(struct ranks *ranks, int seat)
{
    char name[32];

    ranks_name(ranks, seat, name);
    fabric_hub_kill(ranks->hub, name);
    fabric_destroy(ranks->fabrics[seat]);
    ranks->fabrics[seat] = NULL;
}

void ranks_cut(struct ranks *ranks, int seat, bool cut)
{
    char own[32], other[32];

    ranks_name(ranks, seat, own);
    for (int s = 0; s < RANKS_MAX; s++) {
        if (s == seat || ranks->fabrics[s] == NULL)
            continue;
        ranks_name(ranks, s, other);
        fabric_hub_cut(ranks->hub, own, other, cut);
    }
}

static uint64_t deadline_ns(void)
{
    return clock_now_ns() + 10000 * MS * fabric_time_factor();
}

void ranks_wait(struct ranks *ranks, uint64_t of, int seat, enum seat_state state)
{
    uint64_t end_ns = deadline_ns();

    for (int s = 0; s < RANKS_MAX; s++) {
        if ((of & (uint64_t)1 << s) == 0)
            continue;
        for (;;) {
            uint32_t seen = fabric_rings(ranks->fabrics[s]);
            struct fabric_view view;
            fabric_view(ranks->fabrics[s], &view);
            if (view.seats[seat].state == state)
                break;
            if (clock_now_ns() > end_ns)
                fail_msg("seat %d sees seat %d %s, not %s", s, seat,
                         seat_state_name(view.seats[seat].state), seat_state_name(state));
            fabric_sleep(ranks->fabrics[s], seen, 5 * MS);
        }
    }
}

static bool agree(struct ranks *ranks, uint64_t of, uint64_t live)
{
    struct fabric_view first = {0}, view;
    bool any = false;

    for (int s = 0; s < RANKS_MAX; s++) {
        if ((of & (uint64_t)1 << s) == 0)
            continue;
        fabric_view(ranks->fabrics[s], &view);
        if (view.live != live || view.issuer < 0)
            return false;
        if (any && (view.epoch != first.epoch || view.issuer != first.issuer))
            return false;
        first = view;
        any = true;
    }
    return any;
}

void ranks_wait_live(struct ranks *ranks, uint64_t of, uint64_t live)
{
    uint64_t end_ns = deadline_ns();
    int first = __builtin_ctzll(of);
    struct fabric_view view;

    while (!agree(ranks, of, live)) {
        uint32_t seen = fabric_rings(ranks->fabrics[first]);
        if (clock_now_ns() > end_ns) {
            for (int s = 0; s < RANKS_MAX; s++) {
                if ((of & (uint64_t)1 << s) == 0)
                    continue;
                fabric_view(ranks->fabrics[s], &view);
                print_message("seat %d: epoch %u issuer %d live %llx:", s, view.epoch, view.issuer,
                              (unsigned long long)view.live);
                for (size_t t = 0; t < ranks->n_seats; t++)
                    print_message(" %s/%u", seat_state_name(view.seats[t].state),
                                  view.seats[t].incarnation);
                print_message("\n");
            }
            fail_msg("no agreement on live seats %llx", (unsigned long long)live);
        }
        fabric_sleep(ranks->fabrics[first], seen, 5 * MS);
    }
}
