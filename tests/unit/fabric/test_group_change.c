/* What an issuer decides: who gets a seat, which end of a broken road goes, when a drain is over.
 * One real state machine, whose members are played by the test. */
#include "../unit.h"

#include "fabric/group.h"

#include <string.h>

enum { MS = 1000000, HEARTBEAT = 100 * MS };

static struct group group;
static uint64_t now_ns;
static uint32_t proposed; /* epoch of the last proposal */

static void on_send(void *arg, int seat, const struct wire *message)
{
    (void)arg;
    (void)seat;
    if (message->type == WIRE_PROPOSE)
        proposed = message->propose.table.epoch;
}

static uint64_t instance_of(int seat)
{
    return 1000 + (uint64_t)seat;
}

static void receive(int seat, const struct wire *message)
{
    group_receive(&group, seat, group.committed.seats[seat].instance, message, now_ns);
}

/* All members but `but` acknowledge what is proposed, until nothing is. */
static void acknowledge(uint64_t but)
{
    for (int i = 0; i < 8 && group.proposing; i++) {
        struct wire ack = {.type = WIRE_ACK};
        ack.ack.term = group.term;
        ack.ack.epoch = group.accepted.epoch;
        for (int s = 1; s < (int)group.n_seats; s++) {
            if (seat_is_member(group.committed.seats[s].state) && (but & seat_bit(s)) == 0)
                receive(s, &ack);
        }
        group_tick(&group, now_ns);
    }
}

/* A heartbeat goes by: all members but `but` are heard; broken[s] is what seat s says. */
static void beat(uint64_t but, const uint64_t *broken, uint32_t flags, uint32_t settled)
{
    now_ns += HEARTBEAT;
    for (int s = 1; s < (int)group.n_seats; s++) {
        struct wire message = {.type = WIRE_BEAT};
        if (!seat_is_member(group.committed.seats[s].state) || (but & seat_bit(s)) != 0)
            continue;
        message.beat.stamp = now_ns;
        message.beat.echo = now_ns - MS;
        message.beat.term = group.term;
        message.beat.epoch = group.committed.epoch;
        message.beat.flags = flags;
        message.beat.settled = settled == 0 ? group.committed.epoch : settled;
        message.beat.broken = broken != NULL ? broken[s] : 0;
        receive(s, &message);
    }
    group_tick(&group, now_ns);
    acknowledge(but);
}

static enum group_answer ask(int wanted, uint64_t instance, uint64_t former, int *ret_seat,
                             char *text)
{
    struct wire_join join = {.wanted = wanted, .instance = instance, .former = former};

    *ret_seat = -1;
    text[0] = 0;
    return group_ask(&group, &join, now_ns, ret_seat, text);
}

static void join(int seat)
{
    char text[WIRE_TEXT_MAX];
    int got;

    assert_int_equal(ask(seat, instance_of(seat), 0, &got, text), GROUP_GRANTED);
    assert_int_equal(got, seat);
    group_connected(&group, seat, instance_of(seat), now_ns);
    assert_true(group_joined(&group, instance_of(seat), UINT64_MAX, "b", now_ns));
    group_tick(&group, now_ns);
    acknowledge(0);
    assert_int_equal(group.committed.seats[seat].state, SEAT_JOINING);
    beat(0, NULL, WIRE_BEAT_READY, 0);
    assert_int_equal(group.committed.seats[seat].state, SEAT_LIVE);
}

static void found(size_t n_seats, size_t n_members)
{
    const struct group_limits limits = {HEARTBEAT, 4 * HEARTBEAT, 8 * HEARTBEAT,
                                        30 * (uint64_t)HEARTBEAT};

    now_ns = 1000 * (uint64_t)MS;
    group_init(&group, &limits, on_send, NULL);
    group_found(&group, 0, n_seats, instance_of(0), "a", now_ns);
    group_wish(&group, WIRE_BEAT_READY, 0, now_ns);
    group_tick(&group, now_ns);
    assert_int_equal(group.committed.seats[0].state, SEAT_LIVE);
    for (int s = 1; s < (int)n_members; s++)
        join(s);
}

static void test_who_gets_a_seat(void **state)
{
    char text[WIRE_TEXT_MAX];
    int seat;

    (void)state;
    found(4, 3);
    assert_int_equal(ask(2, 50, 0, &seat, text), GROUP_REFUSED);
    assert_string_equal(text, "seat 2 is taken by b");
    assert_int_equal(ask(4, 50, 0, &seat, text), GROUP_REFUSED);
    assert_non_null(strstr(text, "0 to 3"));
    assert_int_equal(ask(-1, 50, 0, &seat, text), GROUP_GRANTED);
    assert_int_equal(seat, 3);
    assert_int_equal(ask(-1, 51, 0, &seat, text), GROUP_WAIT); /* one at a time */
    assert_non_null(strstr(text, "another rank is joining"));
    assert_int_equal(ask(-1, 50, 0, &seat, text), GROUP_GRANTED); /* it asks again */
    group_give_up(&group, 51);                                    /* not its grant */
    assert_int_equal(ask(-1, 51, 0, &seat, text), GROUP_WAIT);
    group_give_up(&group, 50);
    assert_int_equal(ask(-1, 51, 0, &seat, text), GROUP_GRANTED);
    for (int i = 0; i < 31; i++) /* a joiner that says nothing more */
        beat(0, NULL, WIRE_BEAT_READY, 0);
    assert_int_equal(ask(3, 52, 0, &seat, text), GROUP_GRANTED);
    assert_false(group_joined(&group, 51, UINT64_MAX, "b", now_ns));
    assert_false(group_joined(&group, 52, 1 | 2, "b", now_ns)); /* no lanes to seat 2 */
    assert_int_equal(group_members(&group), 7);
}

static void test_former_holders(void **state)
{
    char text[WIRE_TEXT_MAX];
    int seat;

    (void)state;
    found(5, 4);
    assert_int_equal(ask(2, 60, instance_of(2), &seat, text), GROUP_WAIT);
    assert_non_null(strstr(text, "not given up yet"));
    group_lost(&group, 1, instance_of(1), now_ns);
    assert_int_equal(ask(1, 61, 0, &seat, text), GROUP_WAIT);  /* its process may have ended */
    assert_int_equal(ask(-1, 61, 0, &seat, text), GROUP_WAIT); /* nobody could connect to it */
    group_gone(&group, 1, instance_of(1), now_ns);
    group_tick(&group, now_ns);
    acknowledge(2);
    assert_int_equal(group.committed.seats[1].state, SEAT_DEAD);
    assert_int_equal(ask(-1, 62, 0, &seat, text), GROUP_GRANTED);
    assert_int_equal(seat, 4); /* empty ones first */
    group_give_up(&group, 62);
    assert_int_equal(ask(-1, 63, instance_of(1), &seat, text), GROUP_GRANTED);
    assert_int_equal(seat, 1); /* its own */
}

/* An epoch waits for whoever may still believe to be a member; not for who cannot. */
static void test_who_is_awaited(void **state)
{
    uint32_t epoch;

    (void)state;
    found(4, 4);
    epoch = group.committed.epoch;
    group_gone(&group, 3, instance_of(3), now_ns);
    group_tick(&group, now_ns);
    assert_int_equal(proposed, epoch + 1);
    acknowledge(seat_bit(2) | seat_bit(3)); /* a majority has it, but seat 2 has a lease */
    assert_int_equal(group.committed.epoch, epoch);
    for (int i = 0; i < 7; i++) {
        beat(seat_bit(2) | seat_bit(3), NULL, WIRE_BEAT_READY, 0);
        assert_int_equal(group.committed.epoch, epoch);
    }
    beat(seat_bit(2) | seat_bit(3), NULL, WIRE_BEAT_READY, 0);
    beat(seat_bit(2) | seat_bit(3), NULL, WIRE_BEAT_READY, 0);
    assert_int_equal(group.committed.epoch, epoch + 2);
    assert_int_equal(group_members(&group), 3);
}

static void run_broken(const uint64_t *broken, int n)
{
    for (int i = 0; i < n; i++)
        beat(0, broken, WIRE_BEAT_READY, 0);
}

static void test_broken_roads(void **state)
{
    const uint64_t between[] = {0, 0, 8, 0, 0};    /* 2 does not hear 3 */
    const uint64_t two_of_one[] = {0, 4, 0, 4, 0}; /* 1 and 3 do not hear 2 */
    const uint64_t of_dead[] = {0, 16, 16, 16, 0}; /* of who is silent here, too */

    (void)state;
    found(5, 5);
    run_broken(between, 2);
    assert_int_equal(group_members(&group), 31); /* not at the first word */
    run_broken(between, 2);
    assert_int_equal(group_members(&group), 31 & ~8); /* the higher of two equals */
    found(5, 5);
    run_broken(two_of_one, 4);
    assert_int_equal(group_members(&group), 31 & ~4); /* the one with more broken roads */
    found(5, 5);
    for (int i = 0; i < 8; i++) {
        assert_int_equal(group_members(&group), 31);
        beat(16, of_dead, WIRE_BEAT_READY, 0);
    }
    beat(16, of_dead, WIRE_BEAT_READY, 0);
    assert_int_equal(group_members(&group), 15); /* it, and none of who said so */
}

/* A member hears nothing but is heard: it gets no more beats, so that its lease ends, and goes. */
static void test_one_way(void **state)
{
    uint64_t last_ns;

    (void)state;
    found(4, 4);
    last_ns = now_ns; /* of what seat 2 gets */
    for (int i = 0; i < 16; i++) {
        now_ns += HEARTBEAT;
        for (int s = 1; s < 4; s++) {
            struct wire message = {.type = WIRE_BEAT};
            if (!seat_is_member(group.committed.seats[s].state))
                continue;
            message.beat = (struct wire_beat){.stamp = now_ns,
                                              .echo = s == 2 ? last_ns : now_ns - MS,
                                              .term = group.term,
                                              .epoch = group.committed.epoch,
                                              .broken = s == 2 && i >= 8 ? 1 : 0};
            receive(s, &message);
        }
        group_tick(&group, now_ns);
        acknowledge(4); /* nor does it acknowledge anything */
        if (i < 8)
            assert_int_equal(group_members(&group), 15);
    }
    assert_int_equal(group_members(&group), 15); /* its lease may still run */
    for (int i = 0; i < 4; i++)
        beat(4, NULL, WIRE_BEAT_READY, 0);
    assert_int_equal(group_members(&group), 11);
}

static void test_drain(void **state)
{
    uint32_t began;

    (void)state;
    found(3, 3);
    began = group.committed.epoch;
    group_settle(&group, began, now_ns);
    group_wish(&group, WIRE_BEAT_DRAIN, 0, now_ns); /* the issuer itself */
    group_tick(&group, now_ns);
    acknowledge(0);
    assert_int_equal(group.committed.seats[0].state, SEAT_DRAINING);
    assert_int_equal(group_live(&group, now_ns), 7); /* still holds its experts */
    for (int i = 0; i < 5; i++) {
        beat(0, NULL, WIRE_BEAT_READY, began); /* the others have not taken over */
        assert_int_equal(group.committed.seats[0].state, SEAT_DRAINING);
    }
    beat(0, NULL, WIRE_BEAT_READY, began + 1);
    assert_int_equal(group.committed.seats[0].state, SEAT_EMPTY);
    assert_true(group.left);
    assert_int_equal(group_members(&group), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_who_gets_a_seat), cmocka_unit_test(test_former_holders),
        cmocka_unit_test(test_who_is_awaited),  cmocka_unit_test(test_broken_roads),
        cmocka_unit_test(test_one_way),         cmocka_unit_test(test_drain),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
