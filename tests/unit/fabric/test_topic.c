/* Messages of the rooms above: in order, whole, only from members, and bounded. */
#include "ranks.h"

#include "base/clock.h"
#include "fabric/wire.h"

#include <string.h>

static const uint64_t MS = 1000000;

struct seen {
    _Atomic uint32_t n;
    uint32_t wrong;
    uint32_t incarnation;
    size_t last_bytes;
};

static void on_message(void *arg, int seat, uint32_t incarnation, const void *data, size_t n_bytes)
{
    struct seen *seen = arg;
    uint32_t number;

    (void)seat;
    if (n_bytes < sizeof number) {
        seen->wrong++;
        return;
    }
    memcpy(&number, data, sizeof number);
    if (number != seen->n)
        seen->wrong++;
    seen->incarnation = incarnation;
    seen->last_bytes = n_bytes;
    seen->n++;
}

static void wait_for(struct ranks *ranks, int seat, struct seen *seen, uint32_t n)
{
    uint64_t end_ns = clock_now_ns() + 10000 * MS * fabric_time_factor();

    while (seen->n < n) {
        assert_true(clock_now_ns() < end_ns);
        fabric_sleep(ranks->fabrics[seat], fabric_rings(ranks->fabrics[seat]), MS);
    }
    assert_int_equal(seen->n, n);
    assert_int_equal(seen->wrong, 0);
}

static void send_number(struct fabric *fabric, int seat, uint32_t number, size_t n_bytes)
{
    static unsigned char bytes[TRANSPORT_CONTROL_MAX];

    memcpy(bytes, &number, sizeof number);
    while (fabric_send(fabric, seat, FABRIC_TOPIC_ENGINE, bytes, n_bytes) == FERRY_AGAIN)
        fabric_sleep(fabric, fabric_rings(fabric), MS);
}

static void test_in_order(void **state)
{
    struct ranks ranks;
    struct seen seen = {0};
    struct fabric_view view;

    (void)state;
    ranks_open(&ranks, 2);
    ranks_start_all(&ranks, 2);
    for (uint32_t i = 0; i < 50; i++) /* before there is a handler: kept */
        send_number(ranks.fabrics[0], 1, i, 100);
    lane_bell_sleep(&(struct lane_bell){0}, 0, 20 * MS);
    fabric_on_message(ranks.fabrics[1], FABRIC_TOPIC_ENGINE, on_message, &seen);
    for (uint32_t i = 50; i < 1000; i++)
        send_number(ranks.fabrics[0], 1, i, 4 + (i * 997) % 60000);
    wait_for(&ranks, 1, &seen, 1000);
    fabric_view(ranks.fabrics[1], &view);
    assert_int_equal(seen.incarnation, view.seats[0].incarnation);
    ranks_close(&ranks);
}

static void test_limits(void **state)
{
    struct ranks ranks;
    struct seen seen = {0};
    static unsigned char bytes[TRANSPORT_CONTROL_MAX];
    size_t most = TRANSPORT_CONTROL_MAX - WIRE_TOPIC_BYTES;
    size_t n = 0;

    (void)state;
    ranks_open(&ranks, 3);
    ranks_start_all(&ranks, 2);
    fabric_on_message(ranks.fabrics[1], FABRIC_TOPIC_ENGINE, on_message, &seen);
    struct fabric *f = ranks.fabrics[0];
    assert_int_equal(fabric_send(f, 1, FABRIC_TOPIC_ENGINE, bytes, most + 1), FERRY_ERR_LIMIT);
    assert_int_equal(fabric_send(f, 0, FABRIC_TOPIC_ENGINE, bytes, 4), FERRY_ERR_PEER);
    assert_int_equal(fabric_send(f, 2, FABRIC_TOPIC_ENGINE, bytes, 4), FERRY_ERR_PEER);
    assert_int_equal(fabric_send(f, -1, FABRIC_TOPIC_ENGINE, bytes, 4), FERRY_ERR_PEER);
    assert_int_equal(fabric_send(f, 64, FABRIC_TOPIC_ENGINE, bytes, 4), FERRY_ERR_PEER);
    send_number(f, 1, 0, most);
    wait_for(&ranks, 1, &seen, 1);
    assert_int_equal(seen.last_bytes, most);
    /* To a rank that does not read: AGAIN after at most what both queues hold. */
    char zero[32], one[32];
    ranks_name(&ranks, 0, zero);
    ranks_name(&ranks, 1, one);
    fabric_hub_cut(ranks.hub, zero, one, true);
    while (fabric_send(f, 1, FABRIC_TOPIC_ENGINE, bytes, most) == FERRY_OK && n < 1000)
        n++;
    assert_in_range(n, 10, 3 * LIMIT_FABRIC_QUEUE / most);
    ranks_close(&ranks);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_in_order),
        cmocka_unit_test(test_limits),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
