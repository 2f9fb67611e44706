/* See fake_fabric.h. */
#include "tests/unit/exchange/fake_fabric.h"

#include "base/clock.h"

#include <assert.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

struct block {
    struct lane_header header;
    unsigned char *payload;
    struct block *next;
    struct fake_lane *lane;
    uint32_t incarnation; /* of the sender when it sent */
};

struct fake_lane {
    struct block *first, *last, *next_taken; /* first: oldest unreleased */
    size_t n_bytes;
};

struct fabric {
    struct fake_group *group;
    int seat;
    uint32_t rings;
    uint64_t suspects; /* bit per seat */
    struct fake_lane in[LIMIT_SEATS][LANE_N_CHANNELS];
    uint32_t incarnations[LIMIT_SEATS]; /* adopted */
    struct block *open[LIMIT_SEATS][LANE_N_CHANNELS];
};

struct fake_group {
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    size_t n, max_payload[LANE_N_CHANNELS], n_unreleased;
    size_t per_host; /* seats of a host */
    uint64_t live;
    uint32_t epoch, incarnations[LIMIT_SEATS];
    fake_commit_fn *on_commit;
    void *arg;
    struct fabric ends[LIMIT_SEATS];
};

struct fake_group *fake_group_create(size_t n, const size_t max_payload[LANE_N_CHANNELS])
{
    struct fake_group *g = calloc(1, sizeof *g);

    (void)pthread_mutex_init(&g->mutex, NULL);
    (void)pthread_cond_init(&g->changed, NULL);
    g->n = g->per_host = n;
    memcpy(g->max_payload, max_payload, sizeof g->max_payload);
    g->live = (UINT64_C(1) << n) - 1;
    g->epoch = 1;
    for (size_t s = 0; s < n; s++) {
        g->incarnations[s] = 1;
        g->ends[s].group = g;
        g->ends[s].seat = (int)s;
        for (size_t t = 0; t < n; t++)
            g->ends[s].incarnations[t] = 1;
    }
    return g;
}

static void clear_lane(struct fake_lane *lane)
{
    while (lane->first != NULL) {
        struct block *b = lane->first;
        lane->first = b->next;
        free(b->payload);
        free(b);
    }
    *lane = (struct fake_lane){0};
}

void fake_group_destroy(struct fake_group *group)
{
    for (size_t s = 0; s < group->n; s++) {
        for (size_t t = 0; t < group->n; t++) {
            for (int c = 0; c < LANE_N_CHANNELS; c++) {
                clear_lane(&group->ends[s].in[t][c]);
                if (group->ends[s].open[t][c] != NULL)
                    free(group->ends[s].open[t][c]->payload);
                free(group->ends[s].open[t][c]);
            }
        }
    }
    free(group);
}

struct fabric *fake_end(struct fake_group *group, int seat)
{
    return &group->ends[seat];
}

static void ring_all(struct fake_group *g)
{
    for (size_t s = 0; s < g->n; s++)
        g->ends[s].rings++;
    (void)pthread_cond_broadcast(&g->changed);
}

void fake_kill(struct fake_group *group, int seat)
{
    (void)pthread_mutex_lock(&group->mutex);
    group->live &= ~(UINT64_C(1) << seat);
    group->epoch++;
    ring_all(group);
    (void)pthread_mutex_unlock(&group->mutex);
}

void fake_revive(struct fake_group *group, int seat)
{
    (void)pthread_mutex_lock(&group->mutex);
    group->incarnations[seat]++;
    group->live |= UINT64_C(1) << seat;
    group->epoch++;
    ring_all(group);
    (void)pthread_mutex_unlock(&group->mutex);
}

void fake_suspect(struct fake_group *group, int viewer, int seat, bool suspect)
{
    uint64_t bit = UINT64_C(1) << seat;
    struct fabric *end = &group->ends[viewer];

    (void)pthread_mutex_lock(&group->mutex);
    end->suspects = suspect ? end->suspects | bit : end->suspects & ~bit;
    ring_all(group);
    (void)pthread_mutex_unlock(&group->mutex);
}

void fake_hosts(struct fake_group *group, size_t per_host)
{
    group->per_host = per_host;
}

void fake_on_commit(struct fake_group *group, fake_commit_fn *fn, void *arg)
{
    group->on_commit = fn;
    group->arg = arg;
}

size_t fake_unreleased(struct fake_group *group)
{
    return group->n_unreleased;
}

/* ---- the calls of the exchange ---- */

int fabric_seat(const struct fabric *fabric)
{
    return fabric->seat;
}

size_t fabric_n_seats(const struct fabric *fabric)
{
    return fabric->group->n;
}

uint64_t fabric_now_ns(const struct fabric *fabric)
{
    (void)fabric;
    return clock_now_ns();
}

static struct fake_group *lock(const struct fabric *fabric)
{
    (void)pthread_mutex_lock(&fabric->group->mutex);
    return fabric->group;
}

static void unlock(struct fake_group *g)
{
    (void)pthread_mutex_unlock(&g->mutex);
}

uint32_t fabric_epoch(const struct fabric *fabric)
{
    struct fake_group *g = lock(fabric);
    uint32_t epoch = g->epoch;

    unlock(g);
    return epoch;
}

uint64_t fabric_live(const struct fabric *fabric)
{
    struct fake_group *g = lock(fabric);
    uint64_t live = g->live & ~fabric->suspects;

    unlock(g);
    return live;
}

bool fabric_shares_cache(const struct fabric *fabric, int seat)
{
    (void)fabric;
    return seat % 2 == 0;
}

enum link_class fabric_link(const struct fabric *fabric, int seat)
{
    size_t per_host = fabric->group->per_host;

    if ((size_t)seat / per_host != (size_t)fabric->seat / per_host)
        return LINK_TCP;
    return seat == fabric->seat ? LINK_LOCAL : LINK_SHM;
}

bool fabric_is_near(const struct fabric *fabric)
{
    return fabric->group->per_host > 1;
}

uint64_t fabric_mates(struct fabric *fabric, int seat)
{
    size_t per_host = fabric->group->per_host, n = fabric->group->n;
    uint64_t mates = 0;

    for (size_t s = (size_t)seat / per_host * per_host, i = 0; i < per_host && s < n; i++, s++)
        mates |= UINT64_C(1) << s;
    return mates;
}

size_t fabric_max_payload(const struct fabric *fabric, enum lane_channel channel)
{
    return fabric->group->max_payload[channel];
}

uint32_t fabric_lanes(struct fabric *fabric, int seat)
{
    struct fake_group *g = lock(fabric);
    uint32_t now = g->incarnations[seat];

    /* Blocks stay until they are released; new ones come behind them. */
    for (int c = 0; c < LANE_N_CHANNELS && fabric->incarnations[seat] != now; c++) {
        struct fake_lane *lane = &fabric->in[seat][c];
        /* What the former one sent and nobody took is gone. */
        while (lane->next_taken != NULL && lane->next_taken->incarnation != now) {
            struct block *b = lane->next_taken, **at = &lane->first;
            lane->next_taken = b->next;
            while (*at != b)
                at = &(*at)->next;
            *at = b->next;
            lane->n_bytes -= b->header.n_bytes;
            free(b->payload);
            free(b);
        }
        lane->last = lane->first;
        while (lane->last != NULL && lane->last->next != NULL)
            lane->last = lane->last->next;
    }
    fabric->incarnations[seat] = now;
    unlock(g);
    return now;
}

enum ferry_status fabric_reserve(struct fabric *fabric, int seat, enum lane_channel channel,
                                 size_t n_bytes, void **ret_data)
{
    struct fake_group *g = lock(fabric);
    enum ferry_status st = FERRY_OK;

    if ((g->live >> seat & 1) == 0)
        st = FERRY_ERR_PEER;
    else if (n_bytes > g->max_payload[channel])
        st = FERRY_ERR_LIMIT;
    else if (g->ends[seat].in[fabric->seat][channel].n_bytes + n_bytes >
             2 * g->max_payload[channel])
        st = FERRY_AGAIN;
    unlock(g);
    if (st != FERRY_OK)
        return st;
    struct block *b = fabric->open[seat][channel];
    if (b != NULL)
        free(b->payload);
    else
        b = calloc(1, sizeof *b);
    b->payload = aligned_alloc(64, (n_bytes + 64) / 64 * 64);
    fabric->open[seat][channel] = b;
    *ret_data = b->payload;
    return FERRY_OK;
}

void fabric_commit(struct fabric *fabric, int seat, enum lane_channel channel,
                   struct lane_header *header)
{
    struct block *b = fabric->open[seat][channel];
    struct fake_group *g = fabric->group;

    fabric->open[seat][channel] = NULL;
    b->header = *header;
    bool keep = g->on_commit == NULL ||
                g->on_commit(g->arg, fabric->seat, seat, channel, &b->header, b->payload);
    (void)lock(fabric);
    struct fabric *to = &g->ends[seat];
    struct fake_lane *lane = &to->in[fabric->seat][channel];
    if (!keep || (g->live >> fabric->seat & 1) == 0 ||
        fabric->incarnations[seat] != g->incarnations[seat]) {
        free(b->payload);
        free(b);
    } else {
        b->lane = lane;
        b->incarnation = g->incarnations[fabric->seat];
        if (lane->last != NULL)
            lane->last->next = b;
        else
            lane->first = b;
        lane->last = b;
        if (lane->next_taken == NULL)
            lane->next_taken = b;
        lane->n_bytes += b->header.n_bytes;
        to->rings++;
        (void)pthread_cond_broadcast(&g->changed);
    }
    unlock(g);
}

bool fabric_take(struct fabric *fabric, int seat, enum lane_channel channel,
                 struct fabric_message *ret_message)
{
    struct fake_group *g = lock(fabric);
    struct fake_lane *lane = &fabric->in[seat][channel];
    struct block *b = lane->next_taken;

    if (b != NULL && b->incarnation != fabric->incarnations[seat])
        b = NULL; /* of new lanes, which are not in use yet */
    if (b != NULL) {
        lane->next_taken = b->next;
        g->n_unreleased++;
        *ret_message = (struct fabric_message){
            b->header, b->payload, seat, fabric->incarnations[seat], channel, b};
    }
    unlock(g);
    return b != NULL;
}

void fabric_release(struct fabric *fabric, const struct fabric_message *message)
{
    struct fake_group *g = lock(fabric);
    struct block *b = message->lanes;
    struct fake_lane *lane = b->lane;

    assert(lane->first == b); /* in the order they were taken */
    lane->first = b->next;
    if (lane->last == b)
        lane->last = NULL;
    lane->n_bytes -= b->header.n_bytes;
    g->n_unreleased--;
    memset(b->payload, 0xA5, b->header.n_bytes); /* who reads it later sees nonsense */
    free(b->payload);
    free(b);
    ring_all(g);
    unlock(g);
}

uint32_t fabric_rings(const struct fabric *fabric)
{
    struct fake_group *g = lock(fabric);
    uint32_t rings = fabric->rings;

    unlock(g);
    return rings;
}

void fabric_sleep(struct fabric *fabric, uint32_t seen, uint64_t timeout_ns)
{
    struct fake_group *g = lock(fabric);
    struct timespec t;

    (void)clock_gettime(CLOCK_REALTIME, &t);
    uint64_t until = (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec + timeout_ns;
    t.tv_sec = (time_t)(until / 1000000000u);
    t.tv_nsec = (long)(until % 1000000000u);
    while (fabric->rings == seen && pthread_cond_timedwait(&g->changed, &g->mutex, &t) == 0)
        ;
    unlock(g);
}

void fabric_wake(struct fabric *fabric)
{
    struct fake_group *g = lock(fabric);

    fabric->rings++;
    (void)pthread_cond_broadcast(&g->changed);
    unlock(g);
}

void fabric_count_wait(struct fabric *fabric, int seat, uint64_t ns)
{
    (void)fabric;
    (void)seat;
    (void)ns;
}
