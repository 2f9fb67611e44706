/* The engine's thread moves data itself: with no other thread, beside one, and as little as it may
 * keep from one. */
#include "../unit.h"
#include "base/alloc.h"
#include "fabric/ucx_impl.h"
#include "ucx_peer.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { BYTES = 500 };
static const uint64_t SECOND = 1000000000;

static struct lane *lane_of(const struct link *link, enum lane_side side)
{
    return transport_ucx.lane(link->conn, LANE_REQUEST, side);
}

static void put(const struct link *link, uint64_t id)
{
    struct lane_header header = {.id = id, .n_bytes = BYTES};
    void *data;

    assert_int_equal(lane_reserve(lane_of(link, LANE_SEND), BYTES, &data), FERRY_OK);
    memset(data, (int)id, BYTES);
    lane_commit(lane_of(link, LANE_SEND), &header);
}

static bool take(const struct link *link, uint64_t id)
{
    struct lane *lane = lane_of(link, LANE_RECEIVE);
    const unsigned char *data;
    struct lane_header header;

    if (!lane_take(lane, &header, &data))
        return false;
    assert_int_equal(header.id, id);
    assert_int_equal(data[BYTES - 1], (unsigned char)id);
    lane_release(lane, &header);
    return true;
}

/* UCX finds its roads with the first messages, which takes several turns of both sides. */
static void open_warm(struct both *both)
{
    both_open(both);
    put(both->out, 0);
    put(both->in, 0);
    BOTH_WAIT(both, take(both->in, 0));
    BOTH_WAIT(both, take(both->out, 0));
    for (int i = 0; i < 30; i++)
        both_turn(both);
}

/* Sleeps until a message comes; nobody else moves it. */
static void await(struct side *side, const struct link *link, uint64_t id)
{
    uint64_t until = clock_now_ns() + 5 * SECOND * patience();

    for (;;) {
        uint32_t seen = lane_bell_rings(side->bell);
        if (take(link, id))
            return;
        if (clock_now_ns() > until)
            fail_msg("message %llu did not come", (unsigned long long)id);
        transport_ucx.sleep(side->transport, seen, SECOND);
    }
}

/* 1,500 messages of each side go through rings of 64 KiB: their credits travel, too. */
static void two_engines_need_no_other_thread(void **state)
{
    struct both both;

    (void)state;
    open_warm(&both);
    for (int spin = 0; spin < 2; spin++) {
        both.near.transport->spin_ns = both.far.transport->spin_ns = spin > 0 ? 1000000 : 0;
        for (uint64_t i = 0; i < 1500; i++) {
            put(both.out, i);
            await(&both.far, both.in, i);
            put(both.in, i);
            await(&both.near, both.out, i);
        }
    }
    both_close(&both);
}

struct sleeper {
    struct side *side;
    uint32_t seen;
    _Atomic bool begun;
    uint64_t ns;
};

static void *sleep_main(void *arg)
{
    struct sleeper *s = arg;
    uint64_t begin = clock_now_ns();

    atomic_store(&s->begun, true);
    transport_ucx.sleep(s->side->transport, s->seen, 20 * SECOND);
    s->ns = clock_now_ns() - begin;
    return NULL;
}

static void who_rings_ends_a_sleep_at_any_time(void **state)
{
    struct both both;

    (void)state;
    open_warm(&both);
    for (int i = 0; i < 200; i++) {
        struct sleeper sleeper = {&both.far, lane_bell_rings(both.far.bell), false, 0};
        pthread_t thread;
        both.far.transport->spin_ns = i % 2 == 0 ? 0 : 100000;
        assert_int_equal(pthread_create(&thread, NULL, sleep_main, &sleeper), 0);
        while (!atomic_load(&sleeper.begun))
            ;
        const struct timespec pause = {.tv_nsec = i * 1000};
        (void)nanosleep(&pause, NULL);
        transport_ucx.ring(both.far.transport);
        (void)pthread_join(thread, NULL);
        assert_true(sleeper.ns < 10 * SECOND);
    }
    both_close(&both);
}

struct poller {
    struct side *side;
    pthread_t thread;
    _Atomic bool stop;
};

static void *poll_main(void *arg)
{
    struct poller *p = arg;

    while (!atomic_load(&p->stop))
        transport_ucx.poll(p->side->transport, 20 * SECOND);
    return NULL;
}

static void poller_start(struct poller *p, struct side *side)
{
    *p = (struct poller){.side = side};
    assert_int_equal(pthread_create(&p->thread, NULL, poll_main, p), 0);
}

static void poller_stop(struct poller *p)
{
    atomic_store(&p->stop, true);
    transport_ucx.wake(p->side->transport);
    (void)pthread_join(p->thread, NULL);
}

/* Lets the other thread look, and see that the engine's moves data. */
static void *wake_main(void *arg)
{
    const struct side *side = arg;
    const struct timespec pause = {.tv_nsec = 20000000};

    (void)nanosleep(&pause, NULL);
    transport_ucx.wake(side->transport);
    return NULL;
}

/* However long the engine's thread has moved data: when it computes, the other one sees to it, long
 * before it would come by itself (after 600 ms it means to sleep until 1,043 ms). */
static void data_moves_while_the_engine_computes(void **state)
{
    static const uint64_t SLEEPS_NS[] = {0, 1000000, 5000000, 600000000};
    struct poller poller;
    struct both both;
    uint64_t id = 0;

    (void)state;
    open_warm(&both);
    poller_start(&poller, &both.far);
    for (size_t i = 0; i < 2 * COUNT_OF(SLEEPS_NS); i++) {
        pthread_t waker;
        assert_int_equal(pthread_create(&waker, NULL, wake_main, &both.far), 0);
        transport_ucx.sleep(both.far.transport, lane_bell_rings(both.far.bell),
                            SLEEPS_NS[i % COUNT_OF(SLEEPS_NS)]);
        (void)pthread_join(waker, NULL);
        uint64_t begin = clock_now_ns();
        put(both.out, id);
        while (!take(both.in, id)) {
            if (clock_now_ns() - begin > SECOND / 5 * patience())
                fail_msg("nobody moved it after a sleep of %llu ns",
                         (unsigned long long)SLEEPS_NS[i % COUNT_OF(SLEEPS_NS)]);
            (void)sched_yield();
        }
        id++;
    }
    poller_stop(&poller);
    both_close(&both);
}

/* Both threads at once, both directions: nothing is lost, doubled or out of order. */
static void both_threads_get_along(void **state)
{
    struct poller pollers[2];
    struct both both;

    (void)state;
    open_warm(&both);
    poller_start(&pollers[0], &both.near);
    poller_start(&pollers[1], &both.far);
    for (uint64_t i = 0; i < 3000; i++) {
        both.near.transport->spin_ns = i % 3 * 20000;
        put(both.out, i);
        await(&both.far, both.in, i);
        put(both.in, i);
        await(&both.near, both.out, i);
    }
    poller_stop(&pollers[0]);
    poller_stop(&pollers[1]);
    both_close(&both);
}

/* Sends to a place where nothing may be sent, while the other engine sleeps. */
static void *misbehave(void *arg)
{
    struct both *both = arg;
    struct transport_conn *conn = both->out->conn;
    const struct timespec pause = {.tv_nsec = 700000000};
    struct ucx_send *send = mem_zero(sizeof *send);

    if (send == NULL)
        return NULL;
    (void)nanosleep(&pause, NULL);
    send->conn = conn;
    send->header.data = (struct ucx_data){.label = conn->peer, .from = 1, .next = LANE_ALIGN};
    ucx_lock(both->near.transport);
    ucx_endpoint_post(send, UCX_DATA, sizeof send->header.data, "x", 1);
    ucx_unlock(both->near.transport);
    return NULL;
}

/* What the engine's thread finds broken is said by the other one, which sleeps: at once, and not
 * only when it would have come by itself (see above). */
static void a_loss_that_the_engine_sees_is_told(void **state)
{
    struct poller poller;
    struct both both;
    pthread_t thread;

    (void)state;
    open_warm(&both);
    poller_start(&poller, &both.far);
    uint64_t begin = clock_now_ns();
    assert_int_equal(pthread_create(&thread, NULL, misbehave, &both), 0);
    transport_ucx.sleep(both.far.transport, lane_bell_rings(both.far.bell), SECOND * 3 / 2);
    (void)pthread_join(thread, NULL);
    assert_true(both.in->lost);
    assert_non_null(strstr(both.in->reason, "where it may not"));
    assert_true(both.in->lost_ns - begin < SECOND * 9 / 10 * patience());
    poller_stop(&poller);
    both_close(&both);
}

int main(void)
{
    (void)setenv("FERRY_FABRIC_NO_SHM", "1", 1);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(two_engines_need_no_other_thread),
        cmocka_unit_test(who_rings_ends_a_sleep_at_any_time),
        cmocka_unit_test(data_moves_while_the_engine_computes),
        cmocka_unit_test(both_threads_get_along),
        cmocka_unit_test(a_loss_that_the_engine_sees_is_told),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
