/* What the fabric counts, read back from a registry. */
#include "ranks.h"

#include "base/clock.h"
#include "metric/metric.h"

#include <string.h>

static const uint64_t MS = 1000000;

/* The value of a metric whose labels have these values, in order. */
static double value(const struct metric_registry *registry, const char *name,
                    const char *const *labels, size_t n_labels)
{
    for (const struct metric *m = metric_first(registry); m != NULL; m = metric_next(m)) {
        const struct metric_spec *spec = metric_info(m);
        bool same = strcmp(spec->name, name) == 0 && spec->n_labels == n_labels;
        for (size_t i = 0; same && i < n_labels; i++)
            same = strcmp(spec->labels[i].value, labels[i]) == 0;
        if (same)
            return metric_value(m);
    }
    fail_msg("no metric %s", name);
    return 0;
}
#define VALUE(name, ...)                                      \
    value(registry, name, (const char *const[]){__VA_ARGS__}, \
          sizeof((const char *const[]){__VA_ARGS__}) / sizeof(char *))

/* The fabric's thread shows things when it comes round to it, later on a busy machine. */
#define AWAIT(condition)                                    \
    do {                                                    \
        uint64_t until = clock_now_ns() + 30000 * MS;       \
        while (!(condition)) {                              \
            assert_true(clock_now_ns() < until);            \
            lane_bell_sleep(&(struct lane_bell){0}, 0, MS); \
        }                                                   \
    } while (0)

static void test_counts(void **state)
{
    struct ranks ranks;
    struct metric_registry *registry;
    struct fabric_options options;
    struct lane_header header = {.n_bytes = 1000};
    struct fabric_message message;
    struct fabric *other;
    struct ferry_error err = {0};
    void *data;

    (void)state;
    assert_int_equal(metric_registry_create(&registry, NULL), FERRY_OK);
    ranks_open(&ranks, 2);
    options = ranks_options(&ranks, 0, -1);
    options.metrics = registry;
    if (fabric_create(&ranks.fabrics[0], &options, &err) != FERRY_OK)
        fail_msg("%s", err.msg);
    metric_registry_seal(registry);
    fabric_ready(ranks.fabrics[0]);
    ranks_start(&ranks, 1, 0);
    fabric_ready(ranks.fabrics[1]);
    ranks_wait_live(&ranks, 3, 3);
    for (int way = 0; way < 2; way++) {
        assert_int_not_equal(fabric_lanes(ranks.fabrics[way], !way), 0);
        assert_int_equal(fabric_reserve(ranks.fabrics[way], !way, LANE_REQUEST, 1000, &data),
                         FERRY_OK);
        memset(data, 0, 1000);
        fabric_commit(ranks.fabrics[way], !way, LANE_REQUEST, &header);
    }
    while (!fabric_take(ranks.fabrics[0], 1, LANE_REQUEST, &message))
        fabric_sleep(ranks.fabrics[0], fabric_rings(ranks.fabrics[0]), MS);
    fabric_release(ranks.fabrics[0], &message);
    fabric_count_wait(ranks.fabrics[0], 1, 250 * MS);
    assert_true(VALUE("ferry_fabric_bytes_total", "1", "shm", "out") == 1064);
    assert_true(VALUE("ferry_fabric_bytes_total", "1", "shm", "in") == 1064);
    assert_true(VALUE("ferry_fabric_messages_total", "1", "shm", "out") == 1);
    assert_true(VALUE("ferry_fabric_bytes_total", "1", "tcp", "out") == 0);
    assert_true(VALUE("ferry_fabric_wait_seconds_total", "1") > 0.2499 &&
                VALUE("ferry_fabric_wait_seconds_total", "1") < 0.2501);
    options = ranks_options(&ranks, 2, 0);
    options.key = "another";
    assert_int_equal(fabric_create(&other, &options, NULL), FERRY_ERR_ARG);
    AWAIT(value(registry, "ferry_group_epoch", NULL, 0) == (double)fabric_epoch(ranks.fabrics[0]));
    AWAIT(value(registry, "ferry_group_issuer", NULL, 0) == 0);
    AWAIT(VALUE("ferry_seat_state", "1") == (double)SEAT_LIVE);
    AWAIT(VALUE("ferry_seat_heartbeat_age_seconds", "1") < 1.0);
    ranks_kill(&ranks, 1);
    ranks_wait(&ranks, 1, 1, SEAT_DEAD);
    AWAIT(VALUE("ferry_seat_state", "1") == (double)SEAT_DEAD);
    ranks_close(&ranks);
    metric_registry_destroy(registry);
}

static uint64_t stalled_ns(const struct ranks *ranks)
{
    struct fabric_view view;

    fabric_view(ranks->fabrics[0], &view);
    assert_int_equal(view.seats[1].state, SEAT_LIVE);
    return view.seats[1].stalled_ns;
}

/* A rank that is busy and does not move is shown as that, and stays. */
static void test_slow_is_not_dead(void **state)
{
    struct ranks ranks;

    (void)state;
    ranks_open(&ranks, 2);
    ranks_start_all(&ranks, 2);
    fabric_progress(ranks.fabrics[1], 5, true);
    AWAIT(stalled_ns(&ranks) > 300 * MS);
    fabric_progress(ranks.fabrics[1], 6, true);
    AWAIT(stalled_ns(&ranks) < 300 * MS);
    AWAIT(stalled_ns(&ranks) > 300 * MS);
    fabric_progress(ranks.fabrics[1], 6, false);
    AWAIT(stalled_ns(&ranks) == 0);
    ranks_close(&ranks);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_counts),
        cmocka_unit_test(test_slow_is_not_dead),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
