/* The rules of membership. See group.h, and docs/membership.md for why they are safe. */
#include "fabric/group_impl.h"

#include <stdio.h>
#include <string.h>

/* Terms above are no honest counters; refused, so that adding never overflows. */
#define TERM_MAX (UINT64_MAX / 4)

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

const struct group_peer *group_peer_of(const struct group *g, int s)
{
    return peer_in((struct group *)g, &g->committed, s);
}

uint64_t group_silence(const struct group_peer *p, uint64_t now_ns)
{
    return p == NULL ? UINT64_MAX : ago(p->heard_ns, now_ns);
}

bool group_works(const struct group_peer *p)
{
    return p != NULL && p->connected && !p->lost;
}

bool group_hears(const struct group *g, int s, uint64_t now_ns)
{
    const struct group_peer *p = group_peer_of(g, s);

    return group_works(p) && group_silence(p, now_ns) < g->limits.dead_ns;
}

bool group_lapsed(const struct group *g, const struct group_peer *p, uint64_t now_ns)
{
    if (group_silence(p, now_ns) >= g->limits.dead_ns)
        return true;
    return p->starved && ago(p->fed_ns, now_ns) >= g->limits.dead_ns;
}

uint64_t group_gone_mask(const struct group *g, uint64_t now_ns)
{
    uint64_t members = wire_table_members(&g->committed) & ~seat_bit(g->seat);
    uint64_t gone = 0;

    FOR_SEATS(s, members)
    {
        const struct group_peer *p = group_peer_of(g, s);
        if (p == NULL)
            continue;
        if (p->gone)
            gone |= seat_bit(s);
        if (!p->beaten || p->gone || !group_hears(g, s, now_ns))
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
        if (!group_hears(g, s, now_ns) || g->peers[s].laneless)
            broken |= seat_bit(s);
    }
    return broken;
}

/* Part of the time of silence that leases are shorter by, for clocks that do not run equally. */
static uint64_t lease_length(const struct group *g)
{
    return g->limits.dead_ns - g->limits.heartbeat_ns;
}

/* How long this rank may issue epochs: until a half of the members, itself among them, may promise
 * their votes to others. */
static uint64_t issuer_lease(const struct group *g, uint64_t now_ns)
{
    uint64_t voters = wire_table_members(&g->committed) & ~group_gone_mask(g, now_ns);
    int wanted = (count_bits(voters) + 1) / 2 - 1;
    uint64_t best = lease_length(g), bar = UINT64_MAX;

    if (g->role != GROUP_ISSUER || g->first || g->committed.issuer != g->seat)
        return 0;
    /* The wanted-th youngest confirmation: each round takes the next one below the bar. */
    for (uint64_t rest = voters & ~seat_bit(g->seat); wanted > 0; wanted--) {
        int youngest = -1;
        FOR_SEATS(s, rest)
        {
            if (youngest < 0 || g->peers[s].confirmed_ns > g->peers[youngest].confirmed_ns)
                youngest = s;
        }
        const struct group_peer *p = youngest >= 0 ? group_peer_of(g, youngest) : NULL;
        bar = p != NULL ? ago(p->confirmed_ns, now_ns) : UINT64_MAX;
        rest &= youngest >= 0 ? ~seat_bit(youngest) : 0;
        best = bar < lease_length(g) ? lease_length(g) - bar : 0;
    }
    return best;
}

/* This rank cannot have been given up behind its back. */
static bool has_lease(const struct group *g, uint64_t now_ns)
{
    if (g->committed.epoch == 0)
        return false;
    if (g->committed.issuer == g->seat)
        return issuer_lease(g, now_ns) > 0;
    const struct group_peer *p = group_peer_of(g, g->committed.issuer);
    return p != NULL && p->lease_ns > now_ns;
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
    const struct group_peer *p = group_peer_of(g, s);
    if (p == NULL || group_silence(p, now_ns) >= g->limits.dead_ns)
        return true;
    if ((group_gone_mask(g, now_ns) & seat_bit(s)) != 0)
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
                                      .lease = issuer_lease(g, now_ns),
                                      .term = g->term,
                                      .epoch = g->committed.epoch,
                                      .settled = g->settled,
                                      .flags = beat_flags(g, now_ns),
                                      .progress = g->progress,
                                      .broken = g->reported};
    g->was_out = (message.beat.flags & WIRE_BEAT_OUT) != 0;
    FOR_SEATS(s, members)
    {
        const struct group_peer *p = group_peer_of(g, s);
        if (p != NULL && p->gone)
            message.beat.gone |= seat_bit(s);
    }
    FOR_SEATS(s, members)
    {
        struct group_peer *p = &g->peers[s];
        if (!group_works(group_peer_of(g, s)) || p->starved)
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
    uint64_t voters = g->base & ~group_gone_mask(g, now_ns);
    int n = count_bits(g->acks & voters);

    FOR_SEATS(s, voters & ~g->acks)
    {
        struct group_peer *p = peer_in(g, from, s);
        if (p != NULL && !group_lapsed(g, p, now_ns))
            return false;
        if (p == NULL && g->first && ago(g->asked_ns, now_ns) < g->limits.dead_ns)
            return false; /* of whom it knows nothing: as long as the longest lease */
    }
    if (g->first)
        return 2 * n > count_bits(voters);
    return 2 * n >= count_bits(voters) && issuer_lease(g, now_ns) > 0;
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
        if (issuer_lease(g, now_ns) == 0 || !group_next_change(g, &table, now_ns))
            return;
        propose(g, &table, now_ns);
    }
}

/* ---- another issuer ---- */

/* A strict majority of the members; those that are proven gone have no vote. */
static bool is_majority(const struct group *g, uint64_t members, uint64_t votes, uint64_t now_ns)
{
    uint64_t voters = members & ~group_gone_mask(g, now_ns);

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
        if (s != g->seat && !group_hears(g, s, now_ns))
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
        const struct group_peer *p = group_peer_of(g, s);
        if (group_hears(g, s, now_ns) && p->beaten && (p->beat.flags & WIRE_BEAT_OUT) != 0)
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
        own->instance != g->instance || !seat_is_member(own->state) ||
        table.epoch >= GROUP_EPOCH_MAX)
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

/* The peer has received what was sent at beat->echo, and has sent this later. */
static void confirm(struct group *g, struct group_peer *p, const struct wire_beat *beat)
{
    uint64_t lease = beat->lease < lease_length(g) ? beat->lease : lease_length(g);

    if (beat->echo > p->confirmed_ns)
        p->confirmed_ns = beat->echo;
    if (beat->echo + lease > p->lease_ns)
        p->lease_ns = beat->echo + lease;
}

static void on_beat(struct group *g, int s, const struct wire_beat *beat, uint64_t now_ns)
{
    struct group_peer *p = &g->peers[s];

    if (!p->beaten || beat->progress != p->beat.progress || (beat->flags & WIRE_BEAT_BUSY) == 0)
        p->moved_ns = now_ns;
    if (!p->beaten && g->role == GROUP_ISSUER)
        g->beat_ns = now_ns; /* a new member waits for its lease */
    p->beat = *beat;
    p->beaten = true;
    if (beat->echo != 0 && beat->echo <= now_ns)
        confirm(g, p, beat);
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
        return m->propose.term <= TERM_MAX && m->propose.table.epoch <= GROUP_EPOCH_MAX;
    case WIRE_ACK:
    case WIRE_COMMIT:
        return m->ack.term <= TERM_MAX;
    case WIRE_PREPARE:
    case WIRE_REJECT:
        return m->prepare.term <= TERM_MAX;
    case WIRE_PROMISE:
        return m->promise.term <= TERM_MAX && m->promise.table.epoch <= GROUP_EPOCH_MAX;
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

void group_mended(struct group *group, int seat, uint64_t instance, uint64_t now_ns)
{
    struct group_peer *p = &group->peers[seat];

    if (p->instance != instance)
        return;
    p->connected = p->laneless = true;
    p->lost = false;
    p->heard_ns = now_ns;
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
        const struct group_peer *p = group_peer_of(group, s);
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
                 uint64_t now_ns)
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
    const struct group_peer *p = group_peer_of(group, seat);

    if (!seat_is_member(state) || seat == group->seat)
        return state;
    if (!group_works(p) || p->laneless || group_silence(p, now_ns) >= group->limits.suspect_ns)
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
    return group_silence(group_peer_of(group, seat), now_ns);
}

uint64_t group_stalled(const struct group *group, int seat, uint64_t now_ns)
{
    const struct group_peer *p = group_peer_of(group, seat);

    if (p == NULL || !p->beaten || (p->beat.flags & WIRE_BEAT_BUSY) == 0)
        return 0;
    return ago(p->moved_ns, now_ns);
}
