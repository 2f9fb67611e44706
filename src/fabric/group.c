/* The rules of membership. See group.h, and docs/membership.md for why they are safe. */
#include "fabric/group.h"

#include <stdio.h>
#include <string.h>

/* Terms and epochs above are no honest counters; refused, so that adding never overflows. */
#define TERM_MAX  (UINT64_MAX / 4)
#define EPOCH_MAX (UINT32_MAX - 16)

static int count_bits(uint64_t mask)
{
    return __builtin_popcountll(mask);
}

/* Runs the block for every seat of a mask; no break inside. */
#define FOR_SEATS(s, mask)                                                    \
    for (uint64_t rest_##s = (mask); rest_##s != 0; rest_##s &= rest_##s - 1) \
        for (int s = __builtin_ctzll(rest_##s), once_##s = 1; once_##s != 0; once_##s = 0)

/* ---- what is known of a peer ---- */

static bool is_active(const struct group *g)
{
    return g->entered && !g->dropped && !g->left;
}

/* Evidence about who holds the seat by a table; NULL: there is none about this instance. */
static struct group_peer *peer_in(struct group *g, const struct wire_table *table, int s)
{
    struct group_peer *p = &g->peers[s];

    return p->instance != 0 && p->instance == table->seats[s].instance ? p : NULL;
}

static const struct group_peer *peer_of(const struct group *g, int s)
{
    return peer_in((struct group *)g, &g->committed, s);
}

static uint64_t ago(uint64_t then_ns, uint64_t now_ns)
{
    return now_ns > then_ns ? now_ns - then_ns : 0;
}

static uint64_t silence_of(const struct group_peer *p, uint64_t now_ns)
{
    return p == NULL ? UINT64_MAX : ago(p->heard_ns, now_ns);
}

static bool is_working(const struct group_peer *p)
{
    return p != NULL && p->connected && !p->lost;
}

/* Its messages count: connected, and heard of lately. */
static bool is_heard(const struct group *g, int s, uint64_t now_ns)
{
    const struct group_peer *p = peer_of(g, s);

    return is_working(p) && silence_of(p, now_ns) < g->limits.dead_ns;
}

/* Its own lease as a member is over for sure: either nothing was heard for so long, so that it has
 * got no echo of anything younger, or nothing was said to it for so long. */
static bool is_lapsed(const struct group *g, const struct group_peer *p, uint64_t now_ns)
{
    if (silence_of(p, now_ns) >= g->limits.dead_ns)
        return true;
    return p->starved && ago(p->fed_ns, now_ns) >= g->limits.dead_ns;
}

/* Members whose process has ended, by own proof or that of a member which is heard. */
static uint64_t gone_mask(const struct group *g, uint64_t now_ns)
{
    uint64_t members = wire_table_members(&g->committed) & ~seat_bit(g->seat);
    uint64_t gone = 0;

    FOR_SEATS(s, members)
    {
        const struct group_peer *p = peer_of(g, s);
        if (p == NULL)
            continue;
        if (p->gone)
            gone |= seat_bit(s);
        if (!p->beaten || p->gone || !is_heard(g, s, now_ns))
            continue;
        FOR_SEATS(other, p->beat.gone & members)
        {
            /* Not about somebody who has taken the seat since. */
            if (g->committed.seats[other].incarnation <= p->beat.epoch)
                gone |= seat_bit(other);
        }
    }
    return gone;
}

/* Members to which there is no working road. */
static uint64_t broken_mask(const struct group *g, uint64_t now_ns)
{
    uint64_t broken = 0;

    FOR_SEATS(s, wire_table_members(&g->committed) & ~seat_bit(g->seat))
    {
        if (!is_heard(g, s, now_ns))
            broken |= seat_bit(s);
    }
    return broken;
}

static bool issuer_lease(const struct group *g, uint64_t now_ns)
{
    uint64_t voters = wire_table_members(&g->committed) & ~gone_mask(g, now_ns);
    int n = 1;

    FOR_SEATS(s, voters & ~seat_bit(g->seat))
    {
        const struct group_peer *p = peer_of(g, s);
        if (p != NULL && p->confirmed_ns != 0 &&
            ago(p->confirmed_ns, now_ns) < g->limits.dead_ns - g->limits.heartbeat_ns)
            n++;
    }
    return 2 * n >= count_bits(voters);
}

/* This rank cannot have been given up behind its back. */
static bool has_lease(const struct group *g, uint64_t now_ns)
{
    if (g->committed.epoch == 0)
        return false;
    if (g->committed.issuer == g->seat)
        return g->role == GROUP_ISSUER && issuer_lease(g, now_ns);
    const struct group_peer *p = peer_of(g, g->committed.issuer);
    return p != NULL && p->confirmed_ns != 0 &&
           ago(p->confirmed_ns, now_ns) < g->limits.dead_ns - g->limits.heartbeat_ns;
}

/* Whether somebody who issued, or wanted to, does so no longer. */
static bool is_out(const struct group *g, int s, uint64_t now_ns)
{
    if (s < 0)
        return true;
    if (s == g->seat)
        return g->role == GROUP_FOLLOWER;
    if (!seat_is_member(g->committed.seats[s].state))
        return true;
    const struct group_peer *p = peer_of(g, s);
    if (p == NULL || silence_of(p, now_ns) >= g->limits.dead_ns)
        return true;
    if ((gone_mask(g, now_ns) & seat_bit(s)) != 0)
        return true;
    return p->beaten && (p->beat.flags & WIRE_BEAT_CLAIM) == 0;
}

/* ---- sending ---- */

static void send_to(struct group *g, uint64_t mask, const struct wire *message)
{
    FOR_SEATS(s, mask & ~seat_bit(g->seat))
    {
        if (g->peers[s].connected && !g->peers[s].lost)
            g->send(g->arg, s, message);
    }
}

static uint32_t beat_flags(const struct group *g, uint64_t now_ns)
{
    uint32_t flags = g->wishes;

    if (is_out(g, g->committed.issuer, now_ns))
        flags |= WIRE_BEAT_OUT;
    if (g->role != GROUP_FOLLOWER)
        flags |= WIRE_BEAT_CLAIM;
    return flags;
}

static void beat(struct group *g, uint64_t now_ns)
{
    struct wire message = {.type = WIRE_BEAT};
    uint64_t members = wire_table_members(&g->committed) & ~seat_bit(g->seat);

    g->reported = broken_mask(g, now_ns);
    message.beat = (struct wire_beat){.stamp = now_ns,
                                      .term = g->term,
                                      .epoch = g->committed.epoch,
                                      .settled = g->settled,
                                      .flags = beat_flags(g, now_ns),
                                      .progress = g->progress,
                                      .broken = g->reported};
    g->was_out = (message.beat.flags & WIRE_BEAT_OUT) != 0;
    FOR_SEATS(s, members)
    {
        const struct group_peer *p = peer_of(g, s);
        if (p != NULL && p->gone)
            message.beat.gone |= seat_bit(s);
    }
    FOR_SEATS(s, members)
    {
        struct group_peer *p = &g->peers[s];
        if (!is_working(peer_of(g, s)) || p->starved)
            continue;
        message.beat.echo = p->beaten ? p->beat.stamp : 0;
        p->fed_ns = now_ns;
        g->send(g->arg, s, &message);
    }
    g->beat_ns = now_ns + g->limits.heartbeat_ns;
}

/* ---- epochs ---- */

/* The committed table is new: forgets what is known of former holders. */
static void adopted(struct group *g, uint64_t before, uint64_t now_ns)
{
    const struct wire_seat *own = &g->committed.seats[g->seat];
    uint64_t members = wire_table_members(&g->committed);

    FOR_SEATS(s, members & ~seat_bit(g->seat))
    {
        struct group_peer *p = &g->peers[s];
        uint64_t instance = g->committed.seats[s].instance;
        if (p->instance == instance && (before & seat_bit(s)) != 0)
            continue;
        if (p->instance != instance)
            *p = (struct group_peer){.instance = instance};
        p->heard_ns = p->moved_ns = p->fed_ns = now_ns; /* its limits begin here */
    }
    if (own->instance != g->instance || own->state == SEAT_DEAD)
        g->dropped = true;
    else if (own->state == SEAT_EMPTY)
        g->left = true;
    if (!is_active(g))
        g->role = GROUP_FOLLOWER;
    if ((before & seat_bit(g->seat)) == 0)
        g->beat_ns = now_ns; /* a new member: leases begin with the first beats */
}

static void adopt(struct group *g, uint64_t now_ns)
{
    uint64_t before = wire_table_members(&g->committed);

    if (g->committed.epoch == 0 || g->committed.seats[g->seat].instance != g->instance)
        before &= ~seat_bit(g->seat);
    for (int s = 0; s < (int)g->n_seats; s++) {
        if (g->committed.seats[s].instance != g->accepted.seats[s].instance)
            before &= ~seat_bit(s);
    }
    g->committed = g->accepted;
    adopted(g, before, now_ns);
}

static void send_proposal(struct group *g, uint64_t mask, uint64_t now_ns)
{
    struct wire message = {.type = WIRE_PROPOSE};

    message.propose.term = g->term;
    message.propose.table = g->accepted;
    g->sent_ns = now_ns;
    send_to(g, mask, &message);
}

/* table: the next epoch but for its number and issuer. */
static void propose(struct group *g, struct wire_table *table, uint64_t now_ns)
{
    const struct wire_table *from = g->first ? &g->accepted : &g->committed;
    uint64_t members;

    table->epoch = from->epoch + 1;
    table->issuer = g->seat;
    g->base = wire_table_members(from);
    members = g->base | wire_table_members(table);
    g->accepted = *table;
    g->accepted_term = g->term;
    g->acks = seat_bit(g->seat);
    g->proposing = true;
    g->asked_ns = now_ns;
    send_proposal(g, members, now_ns);
}

/* Every member before it has the proposal, unless it is gone or its lease is over; and those that
 * have it are a majority, or a half with the issuer (not in a new issuer's first epoch). */
static bool may_commit(struct group *g, uint64_t now_ns)
{
    const struct wire_table *from = g->first ? &g->accepted : &g->committed;
    uint64_t voters = g->base & ~gone_mask(g, now_ns);
    int n = count_bits(g->acks & voters);

    FOR_SEATS(s, voters & ~g->acks)
    {
        struct group_peer *p = peer_in(g, from, s);
        if (p != NULL && !is_lapsed(g, p, now_ns))
            return false;
        if (p == NULL && g->first && ago(g->asked_ns, now_ns) < g->limits.dead_ns)
            return false; /* of whom it knows nothing: as long as the longest lease */
    }
    if (g->first)
        return 2 * n > count_bits(voters);
    return 2 * n >= count_bits(voters) && issuer_lease(g, now_ns);
}

static void commit(struct group *g, uint64_t now_ns)
{
    struct wire message = {.type = WIRE_COMMIT};
    uint64_t told = g->base | wire_table_members(&g->accepted);

    message.commit.term = g->term;
    message.commit.epoch = g->accepted.epoch;
    g->proposing = g->first = false;
    send_to(g, told, &message);
    adopt(g, now_ns);
}

/* ---- what the issuer changes next: one seat at a time ---- */

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
        const struct group_peer *p = peer_of(g, s);
        if (is_working(p) && silence_of(p, now_ns) < g->limits.suspect_ns && !p->starved)
            heard |= seat_bit(s);
    }
    count_broken(g, heard, degree, now_ns);
    FOR_SEATS(s, heard)
    {
        if (degree[s] > 0 && (worst < 0 || degree[s] >= degree[worst]))
            worst = s;
    }
    if (worst >= 0 && (g->peers[worst].beat.broken & seat_bit(g->seat)) != 0)
        g->peers[worst].starved = true; /* it hears nothing, so it will acknowledge nothing */
    return worst;
}

static bool all_settled(const struct group *g, uint32_t epoch, int but)
{
    for (int s = 0; s < (int)g->n_seats; s++) {
        if (s == but || g->committed.seats[s].state != SEAT_LIVE)
            continue;
        const struct group_peer *p = peer_of(g, s);
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
        const struct group_peer *p = peer_of(g, s);
        const struct wire_seat *seat = &table->seats[s];
        uint32_t wishes = 0;

        if (s == g->seat)
            wishes = g->wishes;
        else if (is_heard(g, s, now_ns) && p->beaten)
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

static bool next_change(struct group *g, struct wire_table *table, uint64_t now_ns)
{
    uint64_t gone = gone_mask(g, now_ns);

    *table = g->committed;
    if (table->epoch >= EPOCH_MAX)
        return false;
    FOR_SEATS(s, wire_table_members(table) & ~seat_bit(g->seat))
    {
        const struct group_peer *p = peer_of(g, s);
        if ((gone & seat_bit(s)) != 0 || p == NULL || is_lapsed(g, p, now_ns))
            return change(table, s, SEAT_DEAD);
    }
    int worst = choose_broken(g, now_ns);
    if (worst >= 0 && !g->peers[worst].starved)
        return change(table, worst, SEAT_DEAD);
    return change_by_wish(g, table, now_ns) || change_by_join(g, table);
}

/* Members that are heard but do not acknowledge: their leases end, too, if slowly. */
static void starve(struct group *g, uint64_t now_ns)
{
    if (ago(g->asked_ns, now_ns) < g->limits.dead_ns)
        return;
    FOR_SEATS(s, g->base & ~g->acks & ~seat_bit(g->seat))
    {
        g->peers[s].starved = true;
    }
}

static void issue(struct group *g, uint64_t now_ns)
{
    struct wire_table table;

    while (g->role == GROUP_ISSUER && is_active(g)) {
        if (g->proposing) {
            if (!may_commit(g, now_ns)) {
                starve(g, now_ns);
                if (ago(g->sent_ns, now_ns) >= g->limits.heartbeat_ns)
                    send_proposal(g, (g->base | wire_table_members(&g->accepted)) & ~g->acks,
                                  now_ns);
                return;
            }
            commit(g, now_ns);
            continue;
        }
        if (!issuer_lease(g, now_ns) || !next_change(g, &table, now_ns))
            return;
        propose(g, &table, now_ns);
    }
}

/* ---- another issuer ---- */

/* A strict majority of the members; those that are proven gone have no vote. */
static bool is_majority(const struct group *g, uint64_t members, uint64_t votes, uint64_t now_ns)
{
    uint64_t voters = members & ~gone_mask(g, now_ns);

    return 2 * count_bits(votes & voters) > count_bits(voters);
}

static void resign(struct group *g)
{
    g->role = GROUP_FOLLOWER;
    g->leader = -1;
    g->proposing = g->first = false;
    g->beat_ns = 0;
}

/* Who should issue: the lowest live seat that is heard; without live ones the lowest of any. */
static int preferred(const struct group *g, uint64_t now_ns)
{
    int any = -1;

    FOR_SEATS(s, wire_table_members(&g->committed))
    {
        if (s != g->seat && !is_heard(g, s, now_ns))
            continue;
        if (g->committed.seats[s].state == SEAT_LIVE)
            return s;
        if (any < 0)
            any = s;
    }
    return any;
}

/* Enough members say that the issuer is out that asking them is worth it: a rank that alone hears
 * nothing does not disturb the others. */
static bool has_prospects(const struct group *g, uint64_t now_ns)
{
    uint64_t votes = seat_bit(g->seat);

    FOR_SEATS(s, wire_table_members(&g->accepted) & ~seat_bit(g->seat))
    {
        const struct group_peer *p = peer_of(g, s);
        if (is_heard(g, s, now_ns) && p->beaten && (p->beat.flags & WIRE_BEAT_OUT) != 0)
            votes |= seat_bit(s);
    }
    return is_majority(g, wire_table_members(&g->accepted), votes, now_ns);
}

static void try_win(struct group *g, uint64_t now_ns)
{
    struct wire_table table = g->accepted;
    const struct wire_seat *own = &table.seats[g->seat];

    if (g->role != GROUP_CANDIDATE ||
        !is_majority(g, wire_table_members(&table), g->promises, now_ns) ||
        own->instance != g->instance || !seat_is_member(own->state) || table.epoch >= EPOCH_MAX)
        return;
    g->role = GROUP_ISSUER;
    g->first = true;
    g->grant.instance = 0;
    propose(g, &table, now_ns); /* the new issuer is the one change */
}

static void send_prepare(struct group *g, uint64_t now_ns)
{
    struct wire message = {.type = WIRE_PREPARE};
    uint64_t members = wire_table_members(&g->committed) | wire_table_members(&g->accepted);

    message.prepare.term = g->term;
    g->sent_ns = now_ns;
    send_to(g, members & ~g->promises, &message);
}

static void stand(struct group *g, uint64_t now_ns)
{
    uint64_t above = g->term > g->refused ? g->term : g->refused;

    g->term = (above / LIMIT_SEATS + 1) * LIMIT_SEATS + (uint64_t)g->seat;
    g->leader = g->seat;
    g->role = GROUP_CANDIDATE;
    g->promises = seat_bit(g->seat);
    g->asked_ns = now_ns;
    g->beat_ns = 0;
    send_prepare(g, now_ns);
    try_win(g, now_ns);
}

static void consider(struct group *g, uint64_t now_ns)
{
    bool wanted = is_out(g, g->committed.issuer, now_ns) && preferred(g, now_ns) == g->seat;

    if (g->committed.issuer == g->seat) /* stepped down, or stands again */
        wanted = preferred(g, now_ns) == g->seat;
    if (g->role == GROUP_CANDIDATE) {
        if (!wanted)
            resign(g);
        else if (g->refused > g->term && ago(g->asked_ns, now_ns) >= g->limits.heartbeat_ns)
            stand(g, now_ns);
        else if (ago(g->sent_ns, now_ns) >= g->limits.heartbeat_ns)
            send_prepare(g, now_ns);
        try_win(g, now_ns);
        return;
    }
    if (wanted && is_out(g, g->leader, now_ns) && has_prospects(g, now_ns))
        stand(g, now_ns);
}

/* ---- messages ---- */

static void reply_term(struct group *g, int s, enum wire_type type)
{
    struct wire message = {.type = type};

    message.reject.term = g->term;
    g->send(g->arg, s, &message);
}

static void follow(struct group *g, int s, uint64_t term)
{
    g->term = term;
    g->leader = s;
    g->role = GROUP_FOLLOWER;
    g->proposing = g->first = false;
    g->peers[s].beat.flags |= WIRE_BEAT_CLAIM;
}

static void on_prepare(struct group *g, int s, uint64_t term, uint64_t now_ns)
{
    struct wire message = {.type = WIRE_PROMISE};
    bool again = term == g->term && g->leader == s;
    bool free = g->leader == s || is_out(g, g->leader, now_ns);

    if (g->committed.issuer != s && !is_out(g, g->committed.issuer, now_ns))
        free = false;
    if (g->committed.epoch == 0 || (!again && (term <= g->term || !free))) {
        reply_term(g, s, WIRE_REJECT);
        return;
    }
    follow(g, s, term);
    message.promise.term = term;
    message.promise.accepted_term = g->accepted_term;
    message.promise.table = g->accepted;
    g->send(g->arg, s, &message);
}

static void on_promise(struct group *g, int s, const struct wire *m, uint64_t now_ns)
{
    const struct wire_table *table = &m->promise.table;

    if (g->role != GROUP_CANDIDATE || m->promise.term != g->term || table->n_seats != g->n_seats ||
        m->promise.accepted_term > g->term)
        return;
    if (m->promise.accepted_term > g->accepted_term ||
        (m->promise.accepted_term == g->accepted_term && table->epoch > g->accepted.epoch)) {
        g->accepted = *table;
        g->accepted_term = m->promise.accepted_term;
    }
    g->promises |= seat_bit(s);
    if (g->peers[s].confirmed_ns < g->asked_ns)
        g->peers[s].confirmed_ns = g->asked_ns;
    try_win(g, now_ns);
}

static void on_propose(struct group *g, int s, const struct wire *m)
{
    const struct wire_table *table = &m->propose.table;
    const struct wire_seat *own = &table->seats[g->seat];
    struct wire message = {.type = WIRE_ACK};

    if (table->issuer != s || table->n_seats != g->n_seats)
        return;
    if (m->propose.term < g->term) {
        reply_term(g, s, WIRE_REJECT);
        return;
    }
    if (g->committed.epoch == 0 && (own->instance != g->instance || !seat_is_member(own->state)))
        return; /* not about this rank's entry */
    if (table->epoch < g->committed.epoch ||
        (table->epoch == g->committed.epoch && m->propose.term != g->accepted_term))
        return;
    follow(g, s, m->propose.term);
    if (table->epoch > g->committed.epoch) {
        g->accepted = *table;
        g->accepted_term = m->propose.term;
    }
    message.ack.term = m->propose.term;
    message.ack.epoch = table->epoch;
    g->send(g->arg, s, &message);
}

static void on_commit(struct group *g, uint64_t term, uint32_t epoch, uint64_t now_ns)
{
    if (g->role != GROUP_FOLLOWER || term != g->accepted_term || epoch != g->accepted.epoch ||
        epoch <= g->committed.epoch)
        return;
    adopt(g, now_ns);
}

static void on_ack(struct group *g, int s, const struct wire *m)
{
    if (!g->proposing || m->ack.term != g->term || m->ack.epoch != g->accepted.epoch)
        return;
    g->acks |= seat_bit(s);
    g->peers[s].starved = false;
    if (g->peers[s].confirmed_ns < g->asked_ns)
        g->peers[s].confirmed_ns = g->asked_ns;
}

/* Somebody has promised a higher term: an issuer that goes on would not be heard. */
static void on_higher_term(struct group *g, uint64_t term)
{
    if (term <= g->term)
        return;
    if (term > g->refused)
        g->refused = term;
    if (g->role == GROUP_ISSUER)
        resign(g);
}

static void on_beat(struct group *g, int s, const struct wire_beat *beat, uint64_t now_ns)
{
    struct group_peer *p = &g->peers[s];

    if (!p->beaten || beat->progress != p->beat.progress || (beat->flags & WIRE_BEAT_BUSY) == 0)
        p->moved_ns = now_ns;
    p->beat = *beat;
    p->beaten = true;
    if (beat->echo > p->confirmed_ns && beat->echo <= now_ns)
        p->confirmed_ns = beat->echo;
    if (g->committed.epoch == 0 && g->accepted.epoch == 0)
        return;
    if (s == g->accepted.issuer && beat->term == g->accepted_term)
        on_commit(g, beat->term, beat->epoch, now_ns);
    if (seat_is_member(g->committed.seats[s].state))
        on_higher_term(g, beat->term);
}

static bool is_sane(const struct wire *m)
{
    switch (m->type) {
    case WIRE_BEAT:
        return m->beat.term <= TERM_MAX;
    case WIRE_PROPOSE:
        return m->propose.term <= TERM_MAX && m->propose.table.epoch <= EPOCH_MAX;
    case WIRE_ACK:
    case WIRE_COMMIT:
        return m->ack.term <= TERM_MAX;
    case WIRE_PREPARE:
    case WIRE_REJECT:
        return m->prepare.term <= TERM_MAX;
    case WIRE_PROMISE:
        return m->promise.term <= TERM_MAX && m->promise.table.epoch <= EPOCH_MAX;
    default:
        return false;
    }
}

void group_receive(struct group *group, int seat, uint64_t instance, const struct wire *message,
                   uint64_t now_ns)
{
    struct group_peer *p = &group->peers[seat];

    if (!is_active(group) || seat == group->seat || p->instance != instance || p->lost ||
        !is_sane(message))
        return;
    p->heard_ns = now_ns;
    switch (message->type) {
    case WIRE_BEAT:
        on_beat(group, seat, &message->beat, now_ns);
        break;
    case WIRE_PROPOSE:
        on_propose(group, seat, message);
        break;
    case WIRE_ACK:
        on_ack(group, seat, message);
        break;
    case WIRE_COMMIT:
        on_commit(group, message->commit.term, message->commit.epoch, now_ns);
        break;
    case WIRE_PREPARE:
        on_prepare(group, seat, message->prepare.term, now_ns);
        break;
    case WIRE_PROMISE:
        on_promise(group, seat, message, now_ns);
        break;
    default: /* WIRE_REJECT */
        on_higher_term(group, message->reject.term);
        break;
    }
}

/* ---- evidence and time ---- */

void group_connected(struct group *group, int seat, uint64_t instance, uint64_t now_ns)
{
    struct group_peer *p = &group->peers[seat];
    const struct wire_seat *held = &group->committed.seats[seat];

    if (seat_is_member(held->state) && held->instance != instance)
        return; /* its time has not come */
    if (p->instance != instance)
        *p = (struct group_peer){.instance = instance, .heard_ns = now_ns, .moved_ns = now_ns};
    p->connected = true;
}

void group_lost(struct group *group, int seat, uint64_t instance, uint64_t now_ns)
{
    struct group_peer *p = &group->peers[seat];

    (void)now_ns;
    if (p->instance == instance)
        p->lost = true;
}

void group_gone(struct group *group, int seat, uint64_t instance, uint64_t now_ns)
{
    struct group_peer *p = &group->peers[seat];

    if (p->instance != instance)
        return;
    p->lost = true;
    /* Without a lease this rank may have missed what was decided before the process ended. */
    if (has_lease(group, now_ns))
        p->gone = true;
}

void group_tick(struct group *group, uint64_t now_ns)
{
    group->ticked_ns = now_ns;
    if (!is_active(group) || group->committed.epoch == 0)
        return;
    if (group->role == GROUP_ISSUER)
        issue(group, now_ns);
    else
        consider(group, now_ns);
    if (is_active(group) &&
        (now_ns >= group->beat_ns || broken_mask(group, now_ns) != group->reported ||
         is_out(group, group->committed.issuer, now_ns) != group->was_out))
        beat(group, now_ns);
}

uint64_t group_next_ns(const struct group *group)
{
    uint64_t next = group->beat_ns;

    if (!is_active(group) || group->committed.epoch == 0)
        return UINT64_MAX;
    FOR_SEATS(s, wire_table_members(&group->committed) & ~seat_bit(group->seat))
    {
        const struct group_peer *p = peer_of(group, s);
        if (p == NULL)
            continue;
        uint64_t suspect_ns = p->heard_ns + group->limits.suspect_ns;
        uint64_t dead_ns = p->heard_ns + group->limits.dead_ns;
        if (suspect_ns > group->ticked_ns && suspect_ns < next)
            next = suspect_ns;
        if (dead_ns > group->ticked_ns && dead_ns < next)
            next = dead_ns;
    }
    return next;
}

void group_wish(struct group *group, uint32_t set, uint32_t clear, uint64_t now_ns)
{
    uint32_t wishes = (group->wishes & ~clear) | set;

    if (((wishes ^ group->wishes) & ~(uint32_t)WIRE_BEAT_BUSY) != 0 && group->beat_ns > now_ns)
        group->beat_ns = now_ns;
    group->wishes = wishes;
}

void group_settle(struct group *group, uint32_t epoch, uint64_t now_ns)
{
    if (epoch == group->settled)
        return;
    group->settled = epoch;
    for (size_t s = 0; s < group->n_seats; s++) {
        if (group->committed.seats[s].state == SEAT_DRAINING && group->beat_ns > now_ns)
            group->beat_ns = now_ns; /* somebody waits for it */
    }
}

/* ---- entering ---- */

void group_init(struct group *group, const struct group_limits *limits, group_send_fn *send,
                void *arg)
{
    *group = (struct group){.limits = *limits, .send = send, .arg = arg, .leader = -1};
}

static void reset(struct group *g, int seat, size_t n_seats, uint64_t instance)
{
    *g = (struct group){.limits = g->limits,
                        .send = g->send,
                        .arg = g->arg,
                        .seat = seat,
                        .n_seats = n_seats,
                        .instance = instance,
                        .entered = true,
                        .leader = -1};
}

void group_found(struct group *group, int seat, size_t n_seats, uint64_t instance,
                 const char *address, uint64_t now_ns)
{
    struct wire_seat *own = &group->accepted.seats[seat];

    reset(group, seat, n_seats, instance);
    group->accepted.epoch = 1;
    group->accepted.issuer = seat;
    group->accepted.n_seats = n_seats;
    own->state = SEAT_JOINING;
    own->incarnation = own->since = 1;
    own->instance = instance;
    (void)snprintf(own->address, sizeof own->address, "%s", address);
    group->term = group->accepted_term = (uint64_t)LIMIT_SEATS + (uint64_t)seat;
    group->leader = seat;
    group->role = GROUP_ISSUER;
    adopt(group, now_ns);
}

void group_enter(struct group *group, int seat, uint64_t instance, const struct wire_table *table,
                 uint64_t sent_ns, uint64_t now_ns)
{
    struct wire_table members = *table; /* may lie in the group */

    reset(group, seat, members.n_seats, instance);
    for (int s = 0; s < (int)members.n_seats; s++) {
        if (s == seat || !seat_is_member(members.seats[s].state))
            continue;
        group->peers[s] = (struct group_peer){.instance = members.seats[s].instance,
                                              .connected = true,
                                              .heard_ns = now_ns,
                                              .moved_ns = now_ns};
    }
    group->peers[members.issuer].confirmed_ns = sent_ns;
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
        if (is_heard(group, s, now_ns))
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

/* ---- what it sees ---- */

bool group_is_member(const struct group *group)
{
    const struct wire_seat *own = &group->committed.seats[group->seat];

    return is_active(group) && group->committed.epoch != 0 && own->instance == group->instance &&
           seat_is_member(own->state);
}

uint64_t group_members(const struct group *group)
{
    return group_is_member(group) ? wire_table_members(&group->committed) : 0;
}

enum seat_state group_state(const struct group *group, int seat, uint64_t now_ns)
{
    enum seat_state state = group->committed.seats[seat].state;
    const struct group_peer *p = peer_of(group, seat);

    if (!seat_is_member(state) || seat == group->seat)
        return state;
    if (!is_working(p) || silence_of(p, now_ns) >= group->limits.suspect_ns)
        return SEAT_SUSPECT;
    return state;
}

uint64_t group_live(const struct group *group, uint64_t now_ns)
{
    uint64_t live = 0;

    FOR_SEATS(s, group_members(group))
    {
        enum seat_state state = group_state(group, s, now_ns);
        if (state == SEAT_LIVE || state == SEAT_DRAINING)
            live |= seat_bit(s);
    }
    return live;
}

int group_issuer(const struct group *group, uint64_t now_ns)
{
    int issuer = group->committed.issuer;

    if (!group_is_member(group) || is_out(group, issuer, now_ns) || !has_lease(group, now_ns))
        return -1;
    return issuer;
}

uint64_t group_heard_ago(const struct group *group, int seat, uint64_t now_ns)
{
    if (seat == group->seat)
        return 0;
    return silence_of(peer_of(group, seat), now_ns);
}

uint64_t group_stalled(const struct group *group, int seat, uint64_t now_ns)
{
    const struct group_peer *p = peer_of(group, seat);

    if (p == NULL || !p->beaten || (p->beat.flags & WIRE_BEAT_BUSY) == 0)
        return 0;
    return ago(p->moved_ns, now_ns);
}
