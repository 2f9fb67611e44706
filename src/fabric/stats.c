/* What the fabric counts. See docs/metrics.md for meanings, fabric_impl.h for whose is what.
 *
 * Registered when the number of seats is known, that is after joining; until then, and without a
 * registry, nothing is counted. */
#include "fabric/fabric_impl.h"

#include "base/alloc.h"
#include "base/error.h"

#include <stdio.h>

/* Roads that bytes can take to another rank. */
enum { FIRST_LINK = LINK_SHM, N_LINKS = LINK_UNKNOWN - LINK_SHM };

struct fabric_stats {
    struct metric *epoch, *issuer, *quarantined, *rejected;
    struct metric *state[LIMIT_SEATS], *heard[LIMIT_SEATS], *stalled[LIMIT_SEATS];
    struct metric *wait[LIMIT_SEATS];
    struct metric *bytes[LIMIT_SEATS][N_LINKS][LANE_N_SIDES];
    struct metric *messages[LIMIT_SEATS][N_LINKS][LANE_N_SIDES];
};

static enum ferry_status add(struct fabric *f, enum metric_type type, const char *name,
                             const char *help, const struct metric_label *labels, size_t n_labels,
                             double unit, struct metric **ret, struct ferry_error *err)
{
    struct metric_spec spec = {.type = type,
                               .name = name,
                               .help = help,
                               .labels = labels,
                               .n_labels = n_labels,
                               .unit = type == METRIC_TYPE_COUNTER ? unit : 0};

    return metric_register(f->options.metrics, &spec, ret, err);
}

static enum ferry_status add_roads(struct fabric *f, struct fabric_stats *stats, int seat,
                                   const char *number, struct ferry_error *err)
{
    static const char *const DIRECTIONS[] = {"out", "in"};
    enum ferry_status st = FERRY_OK;

    for (int link = 0; link < N_LINKS; link++) {
        for (int side = 0; side < LANE_N_SIDES && st == FERRY_OK; side++) {
            struct metric_label labels[] = {
                {"peer", number},
                {"link", link_class_name((enum link_class)(FIRST_LINK + link))},
                {"direction", DIRECTIONS[side]}};
            st = add(f, METRIC_TYPE_COUNTER, "ferry_fabric_bytes_total",
                     "Bytes of data messages to and from a rank, by road.", labels, 3, 1,
                     &stats->bytes[seat][link][side], err);
            if (st == FERRY_OK)
                st = add(f, METRIC_TYPE_COUNTER, "ferry_fabric_messages_total",
                         "Data messages to and from a rank, by road.", labels, 3, 1,
                         &stats->messages[seat][link][side], err);
        }
    }
    return st;
}

static enum ferry_status add_seat(struct fabric *f, struct fabric_stats *stats, int seat,
                                  struct ferry_error *err)
{
    char number[16];
    struct metric_label own = {"seat", number}, peer = {"peer", number};
    enum ferry_status st;

    (void)snprintf(number, sizeof number, "%d", seat);
    st = add(f, METRIC_TYPE_GAUGE, "ferry_seat_state",
             "State of a seat as this rank sees it: 0 empty, 1 joining, 2 warm, 3 live, 4 "
             "draining, 5 suspect, 6 dead.",
             &own, 1, 1, &stats->state[seat], err);
    if (st == FERRY_OK)
        st = add(f, METRIC_TYPE_GAUGE, "ferry_seat_heartbeat_age_seconds",
                 "Time since the last sign of life of a seat's rank.", &own, 1, 1,
                 &stats->heard[seat], err);
    if (st == FERRY_OK)
        st = add(f, METRIC_TYPE_GAUGE, "ferry_seat_stalled_seconds",
                 "Time since a rank that computes a step went on to its next layer.", &own, 1, 1,
                 &stats->stalled[seat], err);
    if (st == FERRY_OK)
        st = add(f, METRIC_TYPE_COUNTER, "ferry_fabric_wait_seconds_total",
                 "Time that this rank's engine waited for a rank.", &peer, 1, 1e-9,
                 &stats->wait[seat], err);
    return st == FERRY_OK ? add_roads(f, stats, seat, number, err) : st;
}

enum ferry_status stats_create(struct fabric *f, struct ferry_error *err)
{
    struct fabric_stats *stats = mem_zero(sizeof *stats);
    enum ferry_status st;

    if (stats == NULL)
        return FERRY_FAIL(err, FERRY_ERR_NOMEM, "fabric: no memory for its metrics");
    st = add(f, METRIC_TYPE_GAUGE, "ferry_group_epoch", "Epoch of the membership in force.", NULL,
             0, 1, &stats->epoch, err);
    if (st == FERRY_OK)
        st = add(f, METRIC_TYPE_GAUGE, "ferry_group_issuer",
                 "Seat that issues epochs; -1: none holds the lease.", NULL, 0, 1, &stats->issuer,
                 err);
    if (st == FERRY_OK)
        st = add(f, METRIC_TYPE_GAUGE, "ferry_fabric_quarantined_bytes",
                 "Memory that a lost rank may still write, kept apart.", NULL, 0, 1,
                 &stats->quarantined, err);
    if (st == FERRY_OK)
        st = add(f, METRIC_TYPE_COUNTER, "ferry_fabric_rejected_handshakes_total",
                 "Handshakes that were refused: key, terms, sizes or seat.", NULL, 0, 1,
                 &stats->rejected, err);
    for (int s = 0; s < (int)fabric_n_seats(f) && st == FERRY_OK; s++)
        st = add_seat(f, stats, s, err);
    if (st != FERRY_OK) {
        mem_free(stats);
        return st;
    }
    atomic_store_explicit(&f->stats, stats, memory_order_release);
    return FERRY_OK;
}

void stats_destroy(struct fabric *f)
{
    mem_free(atomic_load_explicit(&f->stats, memory_order_relaxed));
}

static struct fabric_stats *get(struct fabric *f)
{
    return atomic_load_explicit(&f->stats, memory_order_acquire);
}

void stats_update(struct fabric *f, uint64_t now_ns)
{
    struct fabric_stats *stats = get(f);

    if (stats == NULL || f->group.committed.epoch == 0)
        return;
    metric_set(stats->epoch, (double)f->group.committed.epoch);
    metric_set(stats->issuer, (double)group_issuer(&f->group, now_ns));
    metric_set(stats->quarantined, (double)f->ops->quarantined(f->transport));
    for (int s = 0; s < (int)f->group.n_seats; s++) {
        uint64_t ago_ns = group_heard_ago(&f->group, s, now_ns);
        metric_set(stats->state[s], (double)group_state(&f->group, s, now_ns));
        metric_set(stats->heard[s], ago_ns == UINT64_MAX ? 0.0 : (double)ago_ns * 1e-9);
        metric_set(stats->stalled[s], (double)group_stalled(&f->group, s, now_ns) * 1e-9);
    }
}

void stats_count(struct fabric *f, int seat, enum link_class link, enum lane_side side,
                 size_t n_bytes)
{
    struct fabric_stats *stats = get(f);

    if (stats == NULL || link < LINK_SHM || link >= LINK_UNKNOWN)
        return;
    metric_add(stats->bytes[seat][(int)link - FIRST_LINK][side], n_bytes);
    metric_add(stats->messages[seat][(int)link - FIRST_LINK][side], 1);
}

void stats_wait(struct fabric *f, int seat, uint64_t ns)
{
    struct fabric_stats *stats = get(f);

    if (stats != NULL && seat >= 0 && seat < LIMIT_SEATS)
        metric_add(stats->wait[seat], ns);
}

void stats_rejected(struct fabric *f)
{
    struct fabric_stats *stats = get(f);

    if (stats != NULL)
        metric_add(stats->rejected, 1);
}
