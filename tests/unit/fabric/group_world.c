/* A world of processes for the group's state machine. See group_world.h. */
#include "group_world.h"

#include "base/alloc.h"

#include <string.h>

enum event_kind { EVENT_MESSAGE, EVENT_LOST, EVENT_GONE, EVENT_GRANTED, EVENT_JOINED };

struct world_event {
    uint64_t due, order;
    enum event_kind kind;
    int from, to;
    uint64_t from_instance, to_instance, conn;
    size_t n_bytes;
    unsigned char data[];
};

uint64_t world_random(struct world *w, uint64_t below)
{
    uint64_t z = (w->random += 0x9e3779b97f4a7c15u); /* splitmix64 */

    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return (z ^ (z >> 31)) % below;
}

static uint64_t clock_of(const struct world *w, int p)
{
    return w->now_ns + w->processes[p].skew_ns;
}

/* ---- the queue ---- */

static bool is_before(const struct world_event *a, const struct world_event *b)
{
    return a->due != b->due ? a->due < b->due : a->order < b->order;
}

static void push(struct world *w, struct world_event *event)
{
    size_t i = w->n_heap++;

    if (w->n_heap > w->heap_size) {
        size_t size = w->heap_size == 0 ? 1024 : 2 * w->heap_size;
        w->heap = mem_resize(w->heap, w->heap_size * sizeof(void *), size * sizeof(void *));
        assert_non_null(w->heap);
        w->heap_size = size;
    }
    event->order = w->n_events++;
    for (; i > 0 && is_before(event, w->heap[(i - 1) / 2]); i = (i - 1) / 2)
        w->heap[i] = w->heap[(i - 1) / 2];
    w->heap[i] = event;
}

static struct world_event *pop(struct world *w)
{
    struct world_event *top = w->heap[0], *last = w->heap[--w->n_heap];
    size_t i = 0;

    for (;;) {
        size_t child = 2 * i + 1;
        if (child + 1 < w->n_heap && is_before(w->heap[child + 1], w->heap[child]))
            child++;
        if (child >= w->n_heap || !is_before(w->heap[child], last))
            break;
        w->heap[i] = w->heap[child];
        i = child;
    }
    if (w->n_heap > 0)
        w->heap[i] = last;
    return top;
}

/* On the way from one process to another; what takes one road keeps its order. */
static void post(struct world *w, enum event_kind kind, int from, int to, uint64_t from_instance,
                 uint64_t to_instance, const void *data, size_t n_bytes)
{
    struct world_event *event = mem_zero(sizeof *event + n_bytes);
    uint64_t due = w->now_ns + 1 + world_random(w, w->delay_ns);

    assert_non_null(event);
    if (due < w->last_due[from][to])
        due = w->last_due[from][to];
    w->last_due[from][to] = due;
    *event = (struct world_event){.due = due,
                                  .kind = kind,
                                  .from = from,
                                  .to = to,
                                  .from_instance = from_instance,
                                  .to_instance = to_instance,
                                  .conn = w->processes[from].conns[to],
                                  .n_bytes = n_bytes};
    if (n_bytes > 0)
        memcpy(event->data, data, n_bytes);
    push(w, event);
}

/* ---- connections ---- */

struct sender {
    struct world *world;
    int process;
};
static struct sender senders[WORLD_PROCESSES];

/* The process that a seat's holder is to this one; -1. */
static int find_peer(const struct world *w, int p, int seat)
{
    uint64_t instance = w->processes[p].group.peers[seat].instance;

    for (int q = 0; q < WORLD_PROCESSES; q++) {
        if (instance != 0 && w->processes[p].linked[q] == instance)
            return q;
    }
    return -1;
}

static void send_message(void *arg, int seat, const struct wire *message)
{
    const struct sender *sender = arg;
    struct world *w = sender->world;
    static unsigned char bytes[TRANSPORT_CONTROL_MAX];
    size_t n_bytes;
    int q = find_peer(w, sender->process, seat);

    if (q < 0 || w->processes[q].linked[sender->process] == 0)
        return;
    assert_int_equal(wire_encode(message, bytes, &n_bytes), FERRY_OK);
    post(w, EVENT_MESSAGE, sender->process, q, w->processes[q].linked[sender->process],
         w->processes[sender->process].linked[q], bytes, n_bytes);
}

/* One end is closed; the other hears of it, unless the process was stopped or the road is cut. */
static void disconnect(struct world *w, int p, int q)
{
    uint64_t own = w->processes[q].linked[p];

    if (w->processes[p].linked[q] == 0)
        return;
    if (own != 0)
        post(w, EVENT_LOST, p, q, own, w->processes[p].linked[q], NULL, 0);
    w->processes[p].linked[q] = 0;
}

static void disconnect_all(struct world *w, int p)
{
    for (int q = 0; q < WORLD_PROCESSES; q++)
        disconnect(w, p, q);
}

/* ---- life ---- */

void world_open(struct world *w, uint64_t seed, size_t n_seats)
{
    memset(w, 0, sizeof *w);
    w->seed = w->random = seed;
    w->n_seats = n_seats;
    w->now_ns = 1000 * WORLD_MS;
    w->delay_ns = 2 * WORLD_MS;
    w->limits = (struct group_limits){.heartbeat_ns = 100 * WORLD_MS,
                                      .suspect_ns = 400 * WORLD_MS,
                                      .dead_ns = 800 * WORLD_MS,
                                      .grant_ns = 3000 * WORLD_MS};
    w->processes = mem_array(WORLD_PROCESSES, sizeof *w->processes);
    assert_non_null(w->processes);
}

void world_close(struct world *w)
{
    while (w->n_heap > 0)
        mem_free(pop(w));
    mem_free(w->heap);
    mem_free(w->processes);
}

static uint64_t new_instance(struct world *w)
{
    return 1 + world_random(w, UINT64_MAX - 1);
}

int world_start(struct world *w, int wanted)
{
    int p = 0;
    bool first = world_alive(w) == 0;

    while (p < WORLD_PROCESSES && w->processes[p].alive)
        p++;
    assert_true(p < WORLD_PROCESSES);
    struct world_process *process = &w->processes[p];
    for (int q = 0; q < WORLD_PROCESSES; q++) {
        w->processes[q].linked[p] = 0;
        w->cut[p][q] = w->cut[q][p] = false;
    }
    memset(process, 0, sizeof *process);
    process->alive = true;
    process->id = w->n_events++;
    process->host = world_random(w, 2);
    process->skew_ns = world_random(w, 1000000) * WORLD_MS;
    process->contact = -1;
    process->wanted = wanted;
    senders[p] = (struct sender){w, p};
    group_init(&process->group, &w->limits, send_message, &senders[p]);
    if (first)
        group_found(&process->group, wanted < 0 ? 0 : wanted, w->n_seats, new_instance(w), "a",
                    clock_of(w, p));
    else
        process->asks = new_instance(w);
    process->led_ns = w->now_ns;
    return p;
}

void world_kill(struct world *w, int p)
{
    for (int q = 0; q < WORLD_PROCESSES; q++) {
        uint64_t own = w->processes[q].linked[p];
        if (own == 0 || w->processes[p].linked[q] == 0)
            continue;
        uint64_t instance = w->processes[p].linked[q];
        disconnect(w, p, q);
        if (w->processes[q].host == w->processes[p].host)
            post(w, EVENT_GONE, p, q, own, instance, NULL, 0);
    }
    w->processes[p].alive = false;
}

void world_stop(struct world *w, int p, uint64_t ns)
{
    w->processes[p].stopped_ns = w->now_ns + ns;
}

void world_cut(struct world *w, int from, int to, bool cut)
{
    w->cut[from][to] = cut;
}

void world_heal(struct world *w)
{
    memset(w->cut, 0, sizeof w->cut);
    for (int p = 0; p < WORLD_PROCESSES; p++)
        w->processes[p].stopped_ns = 0;
}

size_t world_alive(const struct world *w)
{
    size_t n = 0;

    for (int p = 0; p < WORLD_PROCESSES; p++)
        n += w->processes[p].alive;
    return n;
}

int world_at(const struct world *w, int seat)
{
    for (int p = 0; p < WORLD_PROCESSES; p++) {
        const struct world_process *process = &w->processes[p];
        if (process->alive && group_is_member(&process->group) && process->group.seat == seat)
            return p;
    }
    return -1;
}

/* ---- joining ---- */

static bool reachable(const struct world *w, int p, int q)
{
    return w->processes[q].alive && !w->cut[p][q] && !w->cut[q][p] &&
           w->processes[q].stopped_ns <= w->now_ns && w->processes[p].stopped_ns <= w->now_ns;
}

static void pick_contact(struct world *w, int p)
{
    size_t n = 0;

    for (int q = 0; q < WORLD_PROCESSES; q++) {
        if (q != p && reachable(w, p, q) && group_is_member(&w->processes[q].group) &&
            world_random(w, ++n) == 0)
            w->processes[p].contact = q;
    }
}

static int process_of(const struct world *w, const struct wire_seat *seat)
{
    for (int q = 0; q < WORLD_PROCESSES; q++) {
        if (w->processes[q].alive && w->processes[q].group.instance == seat->instance)
            return q;
    }
    return -1;
}

/* All at once: connections to every member of the issuer's table, or nothing. */
static bool connect_all(struct world *w, int p, int issuer, int seat)
{
    struct world_process *process = &w->processes[p];
    struct wire_table table = w->processes[issuer].group.committed;
    int peers[LIMIT_SEATS];

    for (int s = 0; s < (int)w->n_seats; s++) {
        peers[s] = -1;
        if (!seat_is_member(table.seats[s].state))
            continue;
        peers[s] = process_of(w, &table.seats[s]);
        if (peers[s] < 0 || peers[s] == p || !reachable(w, p, peers[s]))
            return false;
    }
    if (process->group.entered)
        process->group.dropped = true; /* whatever it was is over */
    disconnect_all(w, p);
    for (int q = 0; q < WORLD_PROCESSES; q++)
        w->processes[q].linked[p] = 0;
    for (int s = 0; s < (int)w->n_seats; s++) {
        if (peers[s] < 0)
            continue;
        process->conns[peers[s]] = w->processes[peers[s]].conns[p] = ++w->n_conns;
        process->linked[peers[s]] = table.seats[s].instance;
        w->processes[peers[s]].linked[p] = process->asks;
        group_connected(&w->processes[peers[s]].group, seat, process->asks, clock_of(w, peers[s]));
    }
    group_enter(&process->group, seat, process->asks, &table, clock_of(w, p));
    process->ready = false;
    process->closed_epoch = process->last_epoch = 0;
    process->asks = 0;
    process->led_ns = w->now_ns;
    post(w, EVENT_JOINED, p, issuer, process->group.instance, table.seats[table.issuer].instance,
         NULL, 0);
    return true;
}

static void ask(struct world *w, int p)
{
    struct world_process *process = &w->processes[p];
    struct wire_join join = {.wanted = process->wanted, .instance = process->asks};
    char text[WIRE_TEXT_MAX];
    int seat;

    process->ask_ns = w->now_ns + 50 * WORLD_MS + world_random(w, 50 * WORLD_MS);
    if (process->contact < 0 || !reachable(w, p, process->contact))
        pick_contact(w, p);
    int q = process->contact;
    if (q < 0)
        return;
    process->contact = -1;
    join.former = process->group.entered ? process->group.instance : 0;
    if (join.former != 0)
        join.wanted = process->group.seat;
    switch (group_ask(&w->processes[q].group, &join, clock_of(w, q), &seat, text)) {
    case GROUP_GRANTED:
        if (!connect_all(w, p, q, seat))
            group_give_up(&w->processes[q].group, join.instance);
        break;
    case GROUP_REFER:
        process->contact = process_of(w, &w->processes[q].group.committed.seats[seat]);
        break;
    default:
        break;
    }
}

/* ---- what must always hold ---- */

static uint64_t hash_table(const struct wire_table *table)
{
    uint64_t hash = 0xcbf29ce484222325u ^ table->epoch;

    hash = (hash ^ (uint64_t)table->issuer) * 0x100000001b3u;
    for (size_t s = 0; s < table->n_seats; s++) {
        const struct wire_seat *seat = &table->seats[s];
        hash = (hash ^ (uint64_t)seat->state) * 0x100000001b3u;
        hash = (hash ^ seat->incarnation) * 0x100000001b3u;
        hash = (hash ^ seat->instance) * 0x100000001b3u;
    }
    return hash;
}

static void check_process(struct world *w, int p)
{
    struct world_process *process = &w->processes[p];
    const struct wire_table *table = &process->group.committed;
    uint32_t epoch = table->epoch;
    uint64_t hash;

    if (!process->group.entered || epoch == process->last_epoch)
        return;
    if (epoch < process->last_epoch)
        fail_msg("seed %llu: process %d went from epoch %u to %u", (unsigned long long)w->seed, p,
                 process->last_epoch, epoch);
    process->last_epoch = epoch;
    assert_true(epoch < WORLD_EPOCHS);
    hash = hash_table(table);
    if (w->hashes[epoch] != 0 && w->hashes[epoch] != hash)
        fail_msg("seed %llu: epoch %u is two different ones (issuers %d and %d)",
                 (unsigned long long)w->seed, epoch, w->issuers[epoch], table->issuer);
    w->hashes[epoch] = hash;
    w->issuers[epoch] = table->issuer;
    if (epoch > w->top_epoch)
        w->top_epoch = epoch;
}

/* One issuer, and one holder of a seat, of those that may believe to be it. */
static void check_leases(struct world *w)
{
    int issuer = -1, holders[LIMIT_SEATS];

    memset(holders, -1, sizeof holders);
    for (int p = 0; p < WORLD_PROCESSES; p++) {
        struct world_process *process = &w->processes[p];
        if (!process->alive || process->stopped_ns > w->now_ns ||
            group_issuer(&process->group, clock_of(w, p)) < 0)
            continue;
        if (process->group.committed.issuer == process->group.seat) {
            if (issuer >= 0)
                fail_msg("seed %llu: processes %d and %d both issue", (unsigned long long)w->seed,
                         issuer, p);
            issuer = p;
        }
        if (holders[process->group.seat] >= 0)
            fail_msg("seed %llu: processes %d and %d both hold seat %d",
                     (unsigned long long)w->seed, holders[process->group.seat], p,
                     process->group.seat);
        holders[process->group.seat] = p;
    }
}

/* ---- running ---- */

/* What the fabric does after an epoch: closes connections to those who are out. */
static void follow_epoch(struct world *w, int p)
{
    struct world_process *process = &w->processes[p];
    const struct wire_table *table = &process->group.committed;

    if (table->epoch == process->closed_epoch)
        return;
    process->closed_epoch = table->epoch;
    for (int q = 0; q < WORLD_PROCESSES; q++) {
        uint64_t instance = process->linked[q];
        bool known = instance == 0, granted = false;
        for (size_t s = 0; s < table->n_seats; s++) {
            known |= instance == table->seats[s].instance && seat_is_member(table->seats[s].state);
            granted |= instance == process->group.peers[s].instance &&
                       !seat_is_member(table->seats[s].state);
        }
        bool over = false;
        for (size_t s = 0; s < table->n_seats; s++)
            over |= instance == table->seats[s].instance && !seat_is_member(table->seats[s].state);
        if (!known && (over || !granted))
            disconnect(w, p, q);
    }
}

static void tick(struct world *w, int p)
{
    struct world_process *process = &w->processes[p];
    uint64_t now_ns = clock_of(w, p);
    uint32_t epoch;

    process->tick_ns = w->now_ns;
    do {
        epoch = process->group.committed.epoch;
        if (group_is_member(&process->group)) {
            group_settle(&process->group, epoch, now_ns);
            if (process->ready)
                group_wish(&process->group, WIRE_BEAT_READY, 0, now_ns);
        }
        group_tick(&process->group, now_ns);
        check_process(w, p);
        for (int s = 0; s < (int)w->n_seats && process->group.entered; s++) {
            const struct wire_seat *seat = &process->group.committed.seats[s];
            if (s != process->group.seat && seat_is_member(seat->state)) {
                if (find_peer(w, p, s) >= 0 && process->group.peers[s].instance == seat->instance)
                    group_connected(&process->group, s, seat->instance, now_ns);
                else
                    group_lost(&process->group, s, seat->instance, now_ns);
            }
        }
        follow_epoch(w, p);
    } while (process->group.committed.epoch != epoch);
    if (group_is_member(&process->group))
        process->ready = true;
    if (group_issuer(&process->group, now_ns) >= 0)
        process->led_ns = w->now_ns;
    bool lost = process->group.entered && !process->group.left &&
                (process->group.dropped || w->now_ns - process->led_ns >= 2 * w->limits.dead_ns);
    if (lost && process->asks == 0)
        process->asks = new_instance(w);
    if (!lost && process->group.entered && group_is_member(&process->group))
        process->asks = 0;
    if (process->asks != 0 && w->now_ns >= process->ask_ns)
        ask(w, p);
}

static void deliver(struct world *w, const struct world_event *event)
{
    struct world_process *to = &w->processes[event->to];
    uint64_t now_ns = clock_of(w, event->to);
    struct wire message;
    int seat = -1;

    if (!to->alive || (to->group.instance != event->to_instance && event->kind != EVENT_LOST))
        return;
    for (int s = 0; s < (int)w->n_seats; s++) {
        if (to->group.peers[s].instance == event->from_instance)
            seat = s;
    }
    switch (event->kind) {
    case EVENT_MESSAGE:
        if (to->linked[event->from] != event->from_instance ||
            to->conns[event->from] != event->conn)
            return;
        assert_int_equal(wire_decode(&message, event->data, event->n_bytes, NULL), FERRY_OK);
        if (seat >= 0)
            group_receive(&to->group, seat, event->from_instance, &message, now_ns);
        break;
    case EVENT_LOST:
        if (to->linked[event->from] != event->from_instance ||
            to->conns[event->from] != event->conn)
            return; /* of an earlier one */
        to->linked[event->from] = 0;
        group_give_up(&to->group, event->from_instance);
        if (seat >= 0)
            group_lost(&to->group, seat, event->from_instance, now_ns);
        break;
    case EVENT_GONE:
        if (seat >= 0)
            group_gone(&to->group, seat, event->from_instance, now_ns);
        break;
    case EVENT_JOINED:
        if (!group_joined(&to->group, event->from_instance, UINT64_MAX, "b", now_ns)) {
            disconnect(w, event->to, event->from);
            disconnect(w, event->from, event->to);
        }
        break;
    default:
        break;
    }
    tick(w, event->to);
}

static uint64_t next_ns(const struct world *w, int *ret_process)
{
    uint64_t next = w->n_heap > 0 ? w->heap[0]->due : UINT64_MAX;

    *ret_process = -1;
    for (int p = 0; p < WORLD_PROCESSES; p++) {
        const struct world_process *process = &w->processes[p];
        if (!process->alive)
            continue;
        uint64_t at = group_next_ns(&process->group);
        at = at == UINT64_MAX ? at : at - process->skew_ns;
        if (process->asks != 0 && process->ask_ns < at)
            at = process->ask_ns;
        uint64_t rest = process->tick_ns + w->limits.heartbeat_ns / 2; /* as the fabric's poll */
        if (at > rest)
            at = rest;
        if (at < process->stopped_ns)
            at = process->stopped_ns;
        if (at < next) {
            next = at;
            *ret_process = p;
        }
    }
    return next;
}

/* A joiner whose connections broke before the epoch that names it: begins again. */
static void restart_joiners(struct world *w, int p)
{
    struct world_process *process = &w->processes[p];
    bool linked = false;

    if (!process->group.entered || process->group.committed.epoch != 0)
        return;
    for (int q = 0; q < WORLD_PROCESSES; q++)
        linked |= process->linked[q] != 0;
    if (linked && w->now_ns - process->led_ns < w->limits.grant_ns)
        return;
    disconnect_all(w, p);
    process->group.entered = false;
    process->asks = new_instance(w);
}

void world_run(struct world *w, uint64_t ns)
{
    uint64_t end_ns = w->now_ns + ns;

    for (;;) {
        int p;
        uint64_t next = next_ns(w, &p);
        if (next > end_ns)
            break;
        if (next > w->now_ns)
            w->now_ns = next;
        if (p >= 0) {
            restart_joiners(w, p);
            tick(w, p);
        } else {
            struct world_event *event = pop(w);
            bool held =
                w->cut[event->from][event->to] || w->processes[event->to].stopped_ns > w->now_ns;
            if (held && w->processes[event->to].alive) {
                event->due = w->now_ns + 10 * WORLD_MS;
                if (w->last_due[event->from][event->to] < event->due)
                    w->last_due[event->from][event->to] = event->due;
                push(w, event);
            } else {
                deliver(w, event);
                mem_free(event);
            }
        }
        check_leases(w);
    }
    w->now_ns = end_ns;
}

static bool is_settled(const struct world *w)
{
    const struct group *first = NULL;
    uint64_t seats = 0;
    size_t n = 0;

    for (int p = 0; p < WORLD_PROCESSES; p++) {
        const struct group *group = &w->processes[p].group;
        if (!w->processes[p].alive || group->left)
            continue;
        if (!group_is_member(group) || group_issuer(group, clock_of(w, p)) < 0)
            return false;
        if (first != NULL && group->committed.epoch != first->committed.epoch)
            return false;
        first = group;
        seats |= seat_bit(group->seat);
        n++;
    }
    if ((size_t)__builtin_popcountll(seats) < n)
        return false;
    for (int p = 0; p < WORLD_PROCESSES; p++) {
        const struct group *group = &w->processes[p].group;
        if (w->processes[p].alive && !group->left && group_live(group, clock_of(w, p)) != seats)
            return false;
    }
    return true;
}

bool world_settle(struct world *w, uint64_t ns)
{
    uint64_t end_ns = w->now_ns + ns;

    while (!is_settled(w)) {
        if (w->now_ns >= end_ns)
            return false;
        world_run(w, 10 * WORLD_MS);
    }
    return true;
}

void world_print(const struct world *w)
{
    for (int p = 0; p < WORLD_PROCESSES; p++) {
        const struct group *g = &w->processes[p].group;
        if (!w->processes[p].alive)
            continue;
        print_message("process %d seat %d epoch %u issuer %d (%d) term %llu leader %d role %d live "
                      "%llx members %llx%s%s%s%s prop %d first %d acks %llx base %llx\n",
                      p, g->seat, g->committed.epoch, group_issuer(g, clock_of(w, p)),
                      g->committed.issuer, (unsigned long long)g->term, g->leader, g->role,
                      (unsigned long long)group_live(g, clock_of(w, p)),
                      (unsigned long long)group_members(g), g->dropped ? " dropped" : "",
                      g->left ? " left" : "", w->processes[p].asks != 0 ? " asks" : "",
                      g->entered ? "" : " out", g->proposing, g->first, (unsigned long long)g->acks,
                      (unsigned long long)g->base);
    }
}
