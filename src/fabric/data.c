/* The engine thread's calls: lanes, bells, waiting. See fabric.h and fabric_impl.h.
 *
 * No lock on the way of a message. A seat's lanes change hands here: the fabric's thread offers
 * others and counts up a version; fabric_lanes sees the count, takes the new ones, and says that
 * it has let go of the old ones as soon as no message of theirs is held. */
#include "fabric/fabric_impl.h"

#include "base/assert.h"
#include "base/cpu.h"

#include <string.h>

/* A line that comes sooner does not come through memory; with what the clock itself takes. */
static const float CACHE_LINE_NS = 120;

static void let_go(struct road *road)
{
    if (road->dropped && road->n_taken == 0)
        atomic_store_explicit(&road->let_go, true, memory_order_release);
}

static void change_road(struct fabric *f, int seat, uint32_t version)
{
    struct road *old = f->current[seat];
    struct road *road;

    (void)pthread_mutex_lock(&f->lock);
    road = f->offered[seat];
    if (road != NULL)
        road->adopted = true;
    (void)pthread_mutex_unlock(&f->lock);
    f->seen_versions[seat] = version;
    f->current[seat] = road;
    if (old != NULL && old != road) {
        old->dropped = true;
        let_go(old);
    }
}

uint32_t fabric_lanes(struct fabric *fabric, int seat)
{
    uint32_t version = atomic_load_explicit(&fabric->road_versions[seat], memory_order_acquire);

    if (version != fabric->seen_versions[seat])
        change_road(fabric, seat, version);
    return fabric->current[seat] != NULL ? fabric->current[seat]->incarnation : 0;
}

/* The lanes in use to a seat, or NULL when there are none or they are lost. */
static struct road *road_to(struct fabric *fabric, int seat)
{
    struct road *road;

    if (seat < 0 || seat >= LIMIT_SEATS)
        return NULL;
    road = fabric->current[seat];
    if (road == NULL || atomic_load_explicit(&road->lost, memory_order_relaxed))
        return NULL;
    return road;
}

bool fabric_shares_cache(const struct fabric *fabric, int seat)
{
    const struct road *road = fabric->current[seat];
    float sum = 0;
    int n = 0;

    for (int channel = 0; road != NULL && channel < LANE_N_CHANNELS; channel++) {
        float ns = road->lanes[channel][LANE_RECEIVE]->line_ns;
        sum += ns;
        n += ns > 0;
    }
    return n > 0 && sum < CACHE_LINE_NS * (float)n;
}

enum ferry_status fabric_reserve(struct fabric *fabric, int seat, enum lane_channel channel,
                                 size_t n_bytes, void **ret_data)
{
    struct road *road = road_to(fabric, seat);

    if (road == NULL)
        return FERRY_ERR_PEER;
    struct lane *lane = road->lanes[channel][LANE_SEND];
    lane->rewinds = fabric_shares_cache(fabric, seat);
    return lane_reserve(lane, n_bytes, ret_data);
}

void fabric_commit(struct fabric *fabric, int seat, enum lane_channel channel,
                   struct lane_header *header)
{
    struct road *road = fabric->current[seat];

    FERRY_ASSERT(road != NULL); /* it was reserved, and only fabric_lanes changes it */
    header->epoch = fabric_epoch(fabric);
    lane_commit(road->lanes[channel][LANE_SEND], header);
    stats_count(fabric, seat, road->link, LANE_SEND, sizeof *header + header->n_bytes);
}

bool fabric_take(struct fabric *fabric, int seat, enum lane_channel channel,
                 struct fabric_message *ret_message)
{
    struct road *road = road_to(fabric, seat);
    struct lane *lane;

    if (road == NULL)
        return false;
    lane = road->lanes[channel][LANE_RECEIVE];
    if (!lane_take(lane, &ret_message->header, &ret_message->data)) {
        if (lane->broken && !atomic_load_explicit(&road->broken, memory_order_relaxed)) {
            atomic_store_explicit(&road->broken, true, memory_order_relaxed);
            fabric->ops->wake(fabric->transport);
        }
        return false;
    }
    road->n_taken++;
    ret_message->seat = seat;
    ret_message->incarnation = road->incarnation;
    ret_message->channel = channel;
    ret_message->lanes = road;
    stats_count(fabric, seat, road->link, LANE_RECEIVE,
                sizeof ret_message->header + ret_message->header.n_bytes);
    return true;
}

void fabric_release(struct fabric *fabric, const struct fabric_message *message)
{
    struct road *road = message->lanes;

    (void)fabric;
    FERRY_DCHECK(road->n_taken > 0);
    if (!atomic_load_explicit(&road->lost, memory_order_relaxed))
        lane_release(road->lanes[message->channel][LANE_RECEIVE], &message->header);
    road->n_taken--;
    let_go(road);
}

size_t fabric_max_payload(const struct fabric *fabric, enum lane_channel channel)
{
    return lane_max_payload(fabric->options.lanes.ring_bytes[channel]);
}

uint32_t fabric_rings(const struct fabric *fabric)
{
    return lane_bell_rings(fabric->bell);
}

void fabric_sleep(struct fabric *fabric, uint32_t seen, uint64_t timeout_ns)
{
    if (fabric->options.spin_ns > 0 && fabric_is_near(fabric)) {
        uint64_t begin_ns = fabric->ops->now_ns(fabric->transport);
        uint64_t spin_ns =
            fabric->options.spin_ns < timeout_ns ? fabric->options.spin_ns : timeout_ns;
        do {
            for (int i = 0; i < 64; i++) {
                if (lane_bell_rings(fabric->bell) != seen)
                    return;
                cpu_relax();
            }
        } while (fabric->ops->now_ns(fabric->transport) - begin_ns < spin_ns);
        timeout_ns -= spin_ns;
    }
    fabric->ops->sleep(fabric->transport, seen, timeout_ns);
}

void fabric_wake(struct fabric *fabric)
{
    fabric->ops->ring(fabric->transport);
}

void fabric_count_wait(struct fabric *fabric, int seat, uint64_t ns)
{
    stats_wait(fabric, seat, ns);
}
