/* What the issuer changes next, and who gets which seat. See group.h. */
#include "fabric/group_impl.h"

#include <stdio.h>
#include <string.h>

static bool change(struct wire_table *table, int s, enum seat_state state)
{
    table->seats[s].state = state;
    table->seats[s].since = table->epoch + 1;
    return true;
}

/* Roads between members that the issuer hears and that they say are broken, for long enough that
 * it is not the first word of somebody's death. Counts them by member. */
static void count_broken(struct group *g, uint64_t heard, int degree[LIMIT_SEATS], uint64_t now_ns)
{
    uint64_t ends = heard | seat_bit(g->seat);
    uint64_t graph[LIMIT_SEATS] = {0};

    FOR_SEATS(s, heard)
    {
        struct group_peer *p = &g->peers[s];
        uint64_t broken = p->beaten ? p->beat.broken & ends & ~seat_bit(s) : 0;
        FOR_SEATS(other, broken)
        {
            if (g->committed.seats[other].incarnation > p->beat.epoch)
                broken &= ~seat_bit(other);
        }
        if (broken == 0)
            p->odd_ns = 0;
        else if (p->odd_ns == 0)
            p->odd_ns = now_ns;
        if (broken == 0 || ago(p->odd_ns, now_ns) < 2 * g->limits.heartbeat_ns)
            continue;
        graph[s] |= broken;
        FOR_SEATS(other, broken)
        {
            graph[other] |= seat_bit(s);
        }
    }
    FOR_SEATS(s, ends)
    {
        degree[s] = count_bits(graph[s]);
    }
}

/* A broken road has two ends, and one of them goes: the one with more broken roads, then the higher
 * seat; never the issuer. */
static int choose_broken(struct group *g, uint64_t now_ns)
{
    uint64_t heard = 0;
    int degree[LIMIT_SEATS] = {0};
    int worst = -1;

    FOR_SEATS(s, wire_table_members(&g->committed) & ~seat_bit(g->seat))
    {
        const struct group_peer *p = group_peer_of(g, s);
        if (group_works(p) && group_silence(p, now_ns) < g->limits.suspect_ns && !p->starved)
            heard |= seat_bit(s);
    }
    count_broken(g, heard, degree, now_ns);
    FOR_SEATS(s, heard)
    {
        if (degree[s] > 0 && (worst < 0 || degree[s] >= degree[worst]))
            worst = s;
    }
    /* One that gets nothing from here acknowledges nothing: its lease has to end. */
    if (worst >= 0 && (g->peers[worst].beat.broken & seat_bit(g->seat)) != 0 &&
        ago(g->peers[worst].confirmed_ns, now_ns) >= g->limits.suspect_ns)
        g->peers[worst].starved = true;
    return worst;
}

static bool all_settled(const struct group *g, uint32_t epoch, int but)
{
    for (int s = 0; s < (int)g->n_seats; s++) {
        if (s == but || g->committed.seats[s].state != SEAT_LIVE)
            continue;
        const struct group_peer *p = group_peer_of(g, s);
        uint32_t settled = s == g->seat ? g->settled : p != NULL && p->beaten ? p->beat.settled : 0;
        if (settled < epoch)
            return false;
    }
    return true;
}

/* What a member's flags ask for. */
static bool change_by_wish(const struct group *g, struct wire_table *table, uint64_t now_ns)
{
    FOR_SEATS(s, wire_table_members(table))
    {
        const struct group_peer *p = group_peer_of(g, s);
        const struct wire_seat *seat = &table->seats[s];
        uint32_t wishes = 0;

        if (s == g->seat)
            wishes = g->wishes;
        else if (group_hears(g, s, now_ns) && p->beaten)
            wishes = p->beat.flags;
        if (seat->state == SEAT_DRAINING) {
            if (all_settled(g, seat->since, s))
                return change(table, s, SEAT_EMPTY);
            continue;
        }
        if ((wishes & WIRE_BEAT_DRAIN) != 0)
            return change(table, s, SEAT_DRAINING);
        if (seat->state == SEAT_WARM)
            return change(table, s, SEAT_LIVE);
        if (seat->state == SEAT_JOINING && (wishes & WIRE_BEAT_READY) != 0)
            return change(table, s, SEAT_WARM);
    }
    return false;
}

static bool change_by_join(struct group *g, struct wire_table *table)
{
    struct wire_seat *seat = &table->seats[g->grant.seat];

    if (g->grant.instance == 0 || !g->grant.joined)
        return false;
    if (seat_is_member(seat->state)) {
        g->grant.instance = 0; /* that is this grant, done */
        return false;
    }
    seat->instance = g->grant.instance;
    seat->incarnation = table->epoch + 1;
    memcpy(seat->address, g->grant.address, sizeof seat->address);
    g->grant.instance = 0;
    return change(table, g->grant.seat, SEAT_JOINING);
}

bool group_next_change(struct group *g, struct wire_table *table, uint64_t now_ns)
{
    uint64_t gone = group_gone_mask(g, now_ns);

    *table = g->committed;
    if (table->epoch >= GROUP_EPOCH_MAX)
        return false;
    FOR_SEATS(s, wire_table_members(table) & ~seat_bit(g->seat))
    {
        const struct group_peer *p = group_peer_of(g, s);
        if ((gone & seat_bit(s)) != 0 || p == NULL || group_lapsed(g, p, now_ns))
            return change(table, s, SEAT_DEAD);
    }
    int worst = choose_broken(g, now_ns);
    if (worst >= 0 && !g->peers[worst].starved)
        return change(table, worst, SEAT_DEAD);
    return change_by_wish(g, table, now_ns) || change_by_join(g, table);
}

/* ---- joining, at a member ---- */

/* A seat that can be had; -1: none. *ret_soon: one will be, somebody is about to be given up. */
static int find_seat(const struct group *g, const struct wire_join *join, bool *ret_soon,
                     uint64_t now_ns)
{
    int empty = -1, dead = -1;

    *ret_soon = false;
    for (int s = 0; s < (int)g->n_seats; s++) {
        const struct wire_seat *seat = &g->committed.seats[s];

        if (join->wanted >= 0 && join->wanted != s)
            continue;
        if (seat_is_member(seat->state)) {
            if (s != g->seat && group_state(g, s, now_ns) == SEAT_SUSPECT)
                *ret_soon = true;
            continue;
        }
        if (join->wanted >= 0 || (join->former != 0 && seat->instance == join->former))
            return s;
        if (seat->state == SEAT_EMPTY && empty < 0)
            empty = s;
        if (seat->state == SEAT_DEAD && dead < 0)
            dead = s;
    }
    return empty >= 0 ? empty : dead;
}

enum group_answer group_ask(struct group *group, const struct wire_join *join, uint64_t now_ns,
                            int *ret_seat, char *ret_text)
{
    bool soon;
    int issuer = group_issuer(group, now_ns);

    if (issuer >= 0 && issuer != group->seat) {
        *ret_seat = issuer;
        return GROUP_REFER;
    }
    if (issuer < 0) {
        (void)snprintf(ret_text, WIRE_TEXT_MAX,
                       "no rank holds the lease that admitting takes (epoch %u)",
                       group->committed.epoch);
        return GROUP_WAIT;
    }
    for (size_t s = 0; join->former != 0 && s < group->n_seats; s++) {
        const struct wire_seat *seat = &group->committed.seats[s];
        if (seat_is_member(seat->state) && seat->instance == join->former) {
            (void)snprintf(ret_text, WIRE_TEXT_MAX,
                           "the former holder of seat %zu is not given up yet", s);
            return GROUP_WAIT;
        }
    }
    if (join->wanted >= (int)group->n_seats) {
        (void)snprintf(ret_text, WIRE_TEXT_MAX,
                       "seat %d is wanted, but the group has seats 0 to %zu", join->wanted,
                       group->n_seats - 1);
        return GROUP_REFUSED;
    }
    if (group->grant.instance != 0 && group->grant.instance != join->instance &&
        now_ns < group->grant.expires_ns) {
        (void)snprintf(ret_text, WIRE_TEXT_MAX, "another rank is joining (seat %d)",
                       group->grant.seat);
        return GROUP_WAIT;
    }
    int seat = find_seat(group, join, &soon, now_ns);
    FOR_SEATS(s, group_members(group))
    {
        if (group_state(group, s, now_ns) == SEAT_SUSPECT && seat >= 0) {
            (void)snprintf(ret_text, WIRE_TEXT_MAX, "seat %d is silent and not given up yet", s);
            return GROUP_WAIT; /* the joiner could not connect to it */
        }
    }
    if (seat < 0 && soon) {
        (void)snprintf(ret_text, WIRE_TEXT_MAX,
                       "the holder of the seat is silent and not given up yet");
        return GROUP_WAIT;
    }
    if (seat < 0) {
        if (join->wanted >= 0)
            (void)snprintf(ret_text, WIRE_TEXT_MAX, "seat %d is taken by %s", join->wanted,
                           group->committed.seats[join->wanted].address);
        else
            (void)snprintf(ret_text, WIRE_TEXT_MAX, "all %zu seats are taken", group->n_seats);
        return GROUP_REFUSED;
    }
    group->grant.instance = join->instance;
    group->grant.seat = seat;
    group->grant.joined = false;
    group->grant.expires_ns = now_ns + group->limits.grant_ns;
    *ret_seat = seat;
    return GROUP_GRANTED;
}

bool group_joined(struct group *group, uint64_t instance, uint64_t seats, const char *address,
                  uint64_t now_ns)
{
    uint64_t missing = wire_table_members(&group->committed) & ~seats & ~seat_bit(group->seat);

    if (instance == 0 || group->grant.instance != instance || group->role != GROUP_ISSUER)
        return false;
    FOR_SEATS(s, missing)
    {
        if (group_hears(group, s, now_ns))
            return false;
    }
    group->grant.joined = true;
    (void)snprintf(group->grant.address, sizeof group->grant.address, "%s", address);
    return true;
}

void group_give_up(struct group *group, uint64_t instance)
{
    if (instance != 0 && group->grant.instance == instance)
        group->grant.instance = 0;
}
