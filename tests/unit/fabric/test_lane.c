/* Unit tests of fabric/lane.c: sizes, order, credit, both ends against hostile other ends by seeded
 * generators, two threads with non-temporal stores, bells within and between processes. */
#include "../unit.h"

#include "base/alloc.h"
#include "base/clock.h"
#include "fabric/lane.h"

#include <linux/seccomp.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#if defined(__SANITIZE_THREAD__)
#define UNDER_TSAN 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define UNDER_TSAN 1
#endif
#endif
#ifndef UNDER_TSAN
#define UNDER_TSAN 0
#endif

enum { RING = 4096, MAX_PAYLOAD = RING / 2 - 64 };

/* splitmix64: one number decides everything, and is printed when something fails. */
static uint64_t next_random(uint64_t *seed)
{
    uint64_t z = *seed += 0x9e3779b97f4a7c15u;

    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

/* Both ends of one lane. */
struct both {
    struct lane_shared *shared;
    struct lane from, to;
};

static struct both open_both(size_t ring_bytes)
{
    struct both both = {.shared = mem_zero(lane_shared_bytes(ring_bytes))};

    assert_non_null(both.shared);
    lane_shared_init(both.shared);
    lane_init(&both.from, both.shared, ring_bytes, NULL, NULL);
    lane_init(&both.to, both.shared, ring_bytes, NULL, NULL);
    return both;
}

static void close_both(struct both *both)
{
    mem_free(both->shared);
}

static enum ferry_status send_bytes(struct lane *lane, size_t n_reserved, size_t n_bytes,
                                    uint64_t id)
{
    struct lane_header header = {.id = id, .n_bytes = (uint32_t)n_bytes};
    void *data = NULL;
    enum ferry_status st = lane_reserve(lane, n_reserved, &data);

    if (st != FERRY_OK)
        return st;
    assert_int_equal((uintptr_t)data % LANE_ALIGN, 0);
    memset(data, (int)(id & 0xff), n_bytes);
    lane_commit(lane, &header);
    return FERRY_OK;
}

static struct lane_header take_bytes(struct lane *lane, size_t n_bytes, uint64_t id)
{
    struct lane_header header;
    const unsigned char *data;

    assert_true(lane_take(lane, &header, &data));
    assert_int_equal(header.id, id);
    assert_int_equal(header.n_bytes, n_bytes);
    for (size_t i = 0; i < n_bytes; i++)
        assert_int_equal(data[i], id & 0xff);
    return header;
}

/* ---- honest ends ---- */

static void sizes_are_rounded_and_bounded(void **state)
{
    (void)state;
    assert_int_equal(lane_ring_bytes(0), 4096);
    assert_int_equal(lane_ring_bytes(4096), 4096);
    assert_int_equal(lane_ring_bytes(4097), 8192);
    assert_int_equal(lane_ring_bytes(1 << 20), 1 << 20);
    assert_int_equal(lane_ring_bytes(SIZE_MAX), 1 << 30);
    for (size_t wanted = 1; wanted < (size_t)1 << 40; wanted = wanted * 3 + 1) {
        size_t ring = lane_ring_bytes(wanted);
        assert_int_equal(ring & (ring - 1), 0);
        assert_int_equal(lane_ring_bytes(ring), ring);
        assert_int_equal(lane_max_payload(ring), ring / 2 - 64);
        assert_int_equal(lane_shared_bytes(wanted), sizeof(struct lane_shared) + ring);
    }
    assert_int_equal(offsetof(struct lane_shared, ring) % LANE_ALIGN, 0);
}

static void headers_travel_whole(void **state)
{
    struct both both = open_both(RING);
    struct lane_header sent, header;
    const unsigned char *got;
    void *data;

    (void)state;
    memset(&sent, 0xa7, sizeof sent);
    sent.n_bytes = 3;
    assert_int_equal(lane_reserve(&both.from, 3, &data), FERRY_OK);
    memcpy(data, "abc", 3);
    lane_commit(&both.from, &sent);
    memcpy(&header, both.shared->ring, sizeof header);
    assert_int_equal(header.span, 0); /* is no matter of the sender */
    assert_true(lane_take(&both.to, &header, &got));
    assert_memory_equal(got, "abc", 3);
    assert_int_equal(header.span, 128);
    header.span = sent.span;
    assert_memory_equal(&header, &sent, sizeof sent);
    assert_false(lane_take(&both.to, &header, &got));
    assert_false(both.to.broken);
    close_both(&both);
}

static void a_second_reserve_replaces_the_first(void **state)
{
    struct both both = open_both(RING);
    void *first, *second;

    (void)state;
    assert_int_equal(lane_reserve(&both.from, 1000, &first), FERRY_OK);
    assert_int_equal(lane_reserve(&both.from, 10, &second), FERRY_OK);
    assert_ptr_equal(first, second);
    assert_int_equal(lane_reserve(&both.from, MAX_PAYLOAD + 1, &second), FERRY_ERR_LIMIT);
    assert_int_equal(send_bytes(&both.from, 20, 20, 1), FERRY_OK);
    struct lane_header header = take_bytes(&both.to, 20, 1);
    lane_release(&both.to, &header);
    close_both(&both);
}

/* A message may be shorter than what was reserved, also behind a skip that it would not have
 * needed. */
static void less_than_reserved_may_be_sent(void **state)
{
    (void)state;
    for (size_t offset = 0; offset < RING; offset += LANE_ALIGN) {
        for (size_t reserved = 0; reserved <= MAX_PAYLOAD; reserved += 61) {
            struct both both = open_both(RING);
            while (both.from.head < offset) {
                assert_int_equal(send_bytes(&both.from, 0, 0, 1), FERRY_OK);
                struct lane_header header = take_bytes(&both.to, 0, 1);
                lane_release(&both.to, &header);
            }
            for (uint64_t id = 2; id < 5; id++) {
                size_t n_bytes = reserved / id;
                assert_int_equal(send_bytes(&both.from, reserved, n_bytes, id), FERRY_OK);
                struct lane_header header = take_bytes(&both.to, n_bytes, id);
                lane_release(&both.to, &header);
                assert_int_equal(both.to.tail, both.from.head);
            }
            close_both(&both);
        }
    }
}

/* Random sizes, several messages taken before the oldest is released: none is lost, changed or
 * given back early. */
static void stay_until_released(bool rewinds)
{
    enum { MESSAGES = 100000, HELD = 8 };
    struct both both = open_both(RING);
    struct lane_bell *bell = mem_zero(sizeof *bell);
    struct lane_header held[HELD];
    const unsigned char *data[HELD];
    uint64_t seed = 42, sent = 0, taken = 0, released = 0;

    both.to.bell = rewinds ? bell : NULL;
    while (released < MESSAGES) {
        uint64_t what = next_random(&seed);
        both.from.rewinds = rewinds && what % 5 > 0;
        if (what % 3 == 0) {
            size_t n_bytes = next_random(&seed) % (what % 64 == 0 ? MAX_PAYLOAD + 1 : 300);
            enum ferry_status st = send_bytes(&both.from, n_bytes, n_bytes, sent);
            assert_true(st == FERRY_OK || st == FERRY_AGAIN);
            sent += st == FERRY_OK;
        } else if (what % 3 == 1 && taken - released < HELD) {
            size_t slot = taken % HELD;
            if (lane_take(&both.to, &held[slot], &data[slot])) {
                assert_int_equal(held[slot].id, taken);
                taken++;
            }
        } else if (taken > released) {
            size_t slot = released % HELD;
            for (size_t i = 0; i < held[slot].n_bytes; i++)
                assert_int_equal(data[slot][i], released & 0xff);
            lane_release(&both.to, &held[slot]);
            released++;
        }
        assert_true(both.from.head - both.from.tail <= RING);
        assert_true(both.from.head - both.to.tail < 2 * RING);
    }
    assert_false(both.to.broken || both.from.broken);
    assert_true(!rewinds || both.to.line_ns > 0);
    mem_free(bell);
    close_both(&both);
}

static void taken_messages_stay_until_released(void **state)
{
    (void)state;
    stay_until_released(false);
    stay_until_released(true);
}

/* From a quarter of it on. What is skipped is room at once, and what is written behind the
 * beginning is not: not all of the ring is taken twice. */
static void an_empty_ring_is_written_from_its_beginning(void **state)
{
    struct both both = open_both(RING);
    struct lane_bell *bell = mem_zero(sizeof *bell);
    struct lane_header header;
    void *data;

    (void)state;
    both.to.bell = bell;
    both.from.rewinds = true;
    assert_int_equal(send_bytes(&both.from, 500, 500, 1), FERRY_OK);
    header = take_bytes(&both.to, 500, 1);
    lane_release(&both.to, &header);
    assert_int_equal(lane_reserve(&both.from, 100, &data), FERRY_OK);
    assert_ptr_equal(data, both.shared->ring + 576 + 64); /* little was used yet */
    assert_int_equal(send_bytes(&both.from, 500, 500, 1), FERRY_OK);
    assert_int_equal(lane_reserve(&both.from, 100, &data), FERRY_OK);
    assert_ptr_equal(data, both.shared->ring + 1152 + 64); /* not empty */
    header = take_bytes(&both.to, 500, 1);
    lane_release(&both.to, &header);
    for (uint64_t id = 2; id < 100; id++) {
        size_t n = 0;
        assert_int_equal(lane_reserve(&both.from, MAX_PAYLOAD, &data), FERRY_OK);
        assert_ptr_equal(data, both.shared->ring + 64);
        while (send_bytes(&both.from, 960, 960, id) == FERRY_OK)
            n++;
        assert_int_equal(n, RING / 1024); /* nobody has taken anything yet */
        for (; n > 0; n--) {
            header = take_bytes(&both.to, 960, id);
            lane_release(&both.to, &header);
        }
        assert_int_equal(both.from.head, both.to.tail);
        assert_int_equal(send_bytes(&both.from, 960, 960, id), FERRY_OK);
        header = take_bytes(&both.to, 960, id);
        lane_release(&both.to, &header);
    }
    assert_false(both.to.broken || both.from.broken);
    mem_free(bell);
    close_both(&both);
}

/* Also where every message begins the ring anew: the line that is timed is the message's. */
static void lines_are_timed_in_rewound_rings(void **state)
{
    struct both both = open_both(RING);
    struct lane_bell *bell = mem_zero(sizeof *bell);

    (void)state;
    both.to.bell = bell;
    both.from.rewinds = true;
    for (uint64_t id = 1; id <= 20; id++) {
        assert_int_equal(send_bytes(&both.from, MAX_PAYLOAD, MAX_PAYLOAD, id), FERRY_OK);
        struct lane_header header = take_bytes(&both.to, MAX_PAYLOAD, id);
        lane_release(&both.to, &header);
        if (id == 1) /* the only one that was not rewound */
            both.to.line_ns = 0;
    }
    assert_true(both.to.line_ns > 0);
    mem_free(bell);
    close_both(&both);
}

/* ---- hooks ---- */

struct seen {
    uint64_t from, to, tail;
    int n_committed, n_released;
};

static void on_committed(void *arg, struct lane *lane, uint64_t from, uint64_t to)
{
    struct seen *seen = arg;

    assert_int_equal(from, seen->to);
    assert_int_equal(to, lane->head);
    seen->from = from;
    seen->to = to;
    seen->n_committed++;
}

static void on_released(void *arg, struct lane *lane, uint64_t tail)
{
    struct seen *seen = arg;

    assert_int_equal(tail, lane->tail);
    seen->tail = tail;
    seen->n_released++;
}

static void hooks_follow_every_change(void **state)
{
    struct both both = open_both(RING);
    struct seen seen = {0};
    struct lane_hooks hooks = {on_committed, on_released, &seen, false};
    struct lane_header header;
    const unsigned char *data;

    (void)state;
    lane_init(&both.from, both.shared, RING, NULL, &hooks);
    lane_init(&both.to, both.shared, RING, NULL, &hooks);
    for (uint64_t id = 0; id < 100; id++) {
        assert_int_equal(send_bytes(&both.from, 777, 777, id), FERRY_OK);
        header = take_bytes(&both.to, 777, id);
        lane_release(&both.to, &header);
    }
    assert_int_equal(seen.n_committed, 100);
    assert_int_equal(seen.n_released, 100);
    assert_int_equal(seen.to, seen.tail);

    /* Hooks that publish decide when the other end sees it. */
    hooks.publish = true;
    lane_init(&both.from, both.shared, RING, NULL, &hooks);
    lane_init(&both.to, both.shared, RING, NULL, &hooks);
    atomic_store(&both.shared->head, 0);
    atomic_store(&both.shared->tail, 0);
    seen = (struct seen){0};
    assert_int_equal(send_bytes(&both.from, 100, 100, 1), FERRY_OK);
    assert_false(lane_take(&both.to, &header, &data));
    atomic_store(&both.shared->head, seen.to);
    header = take_bytes(&both.to, 100, 1);
    lane_release(&both.to, &header);
    assert_int_equal(atomic_load(&both.shared->tail), 0);
    assert_int_equal(seen.tail, seen.to);
    close_both(&both);
}

/* ---- hostile senders ---- */

/* A ring that is said to be left at a place with nothing behind it. */
static void a_rest_left_out_needs_a_message_behind_it(void **state)
{
    struct both both = open_both(RING);
    struct lane_header header;
    const unsigned char *data;

    (void)state;
    assert_int_equal(send_bytes(&both.from, 150, 150, 9), FERRY_OK);
    header = take_bytes(&both.to, 150, 9);
    lane_release(&both.to, &header);
    atomic_store(&both.shared->rewound, both.to.tail);
    assert_false(lane_take(&both.to, &header, &data)); /* nothing is there: no harm */
    assert_false(both.to.broken);
    assert_int_equal(send_bytes(&both.from, 150, 150, 10), FERRY_OK);
    assert_false(lane_take(&both.to, &header, &data));
    assert_true(both.to.broken);
    close_both(&both);
}

static void heads_that_no_sender_may_write_break_the_lane(void **state)
{
    static const uint64_t BAD[] = {
        1, 63, 65, 2 * RING, 2 * RING + 64, RING + 1, UINT64_MAX, UINT64_MAX - 63, 1ull << 63, 128,
    };

    (void)state;
    for (size_t i = 0; i < COUNT_OF(BAD); i++) {
        struct both both = open_both(RING);
        struct lane_header header;
        const unsigned char *data;
        /* One message of 256 bytes taken and released, so that 128 is a step back. */
        assert_int_equal(send_bytes(&both.from, 150, 150, 9), FERRY_OK);
        header = take_bytes(&both.to, 150, 9);
        lane_release(&both.to, &header);
        uint64_t bad = BAD[i] == 128 ? 128 : both.to.tail + BAD[i];
        atomic_store(&both.shared->head, bad);
        assert_false(lane_take(&both.to, &header, &data));
        assert_true(both.to.broken);
        atomic_store(&both.shared->head, both.from.head + 256); /* too late to make it good */
        assert_false(lane_take(&both.to, &header, &data));
        close_both(&both);
    }
}

/* Back to before what was taken, but not before what was given back. */
static void a_head_that_steps_back_breaks_the_lane(void **state)
{
    (void)state;
    for (uint64_t head = 0; head < 3 * 128; head += LANE_ALIGN) {
        struct both both = open_both(RING);
        struct lane_header header;
        const unsigned char *data;
        for (uint64_t id = 0; id < 3; id++) {
            assert_int_equal(send_bytes(&both.from, 64, 64, id), FERRY_OK);
            (void)take_bytes(&both.to, 64, id);
        }
        atomic_store(&both.shared->head, head);
        assert_false(lane_take(&both.to, &header, &data));
        assert_true(both.to.broken);
        close_both(&both);
    }
}

/* A ring of anything with any head: whatever is taken lies inside the ring and inside what was
 * committed. Every other ring is nearly right, or hardly anything would be taken from it. */
static void a_hostile_ring_gives_nothing_outside(void **state)
{
    enum { ROUNDS = 30000, STEPS = 40 };
    size_t n_taken = 0, n_broken = 0, n_rewound = 0;

    (void)state;
    for (uint64_t round = 0; round < ROUNDS; round++) {
        struct both both = open_both(RING);
        struct lane_header header;
        const unsigned char *data;
        uint64_t seed = round, spans = 0;
        for (size_t i = 0; i < RING; i += 64) {
            struct lane_header made = {.id = i};
            uint64_t kind = next_random(&seed);
            if (round % 2 == 1 && kind % 64 >= 8)
                kind = 7;
            made.n_bytes = kind % 8 == 0   ? UINT32_MAX
                           : kind % 8 == 1 ? (uint32_t)next_random(&seed)
                           : kind % 8 == 2 ? (uint32_t)(MAX_PAYLOAD - 2 + next_random(&seed) % 5)
                                           : (uint32_t)(next_random(&seed) % 600);
            made.span = next_random(&seed);
            memcpy(both.shared->ring + i, &made, sizeof made);
        }
        for (size_t step = 0; step < STEPS && !both.to.broken; step++) {
            uint64_t head = both.to.head + next_random(&seed) % 60 * 64, r = next_random(&seed);
            size_t left = RING - both.to.taken % RING;
            bool rewinds = round % 2 == 1 && r % 16 < 4; /* as whoever begins an empty ring anew */
            if (rewinds && both.to.taken + left >= both.to.head)
                head = both.to.taken + left + 64 + r / 16 % 16 * 64;
            atomic_store(&both.shared->head, head);
            if (rewinds)
                atomic_store(&both.shared->rewound, both.to.taken);
            else if (r % 4 < 3)
                atomic_store(&both.shared->rewound,
                             r % 4 == 0 ? next_random(&seed) : both.to.taken + r / 4 % 3 * 64 - 64);
            for (;;) {
                uint64_t taken = both.to.taken;
                if (!lane_take(&both.to, &header, &data))
                    break;
                n_taken++;
                n_rewound += taken % RING != 0 && atomic_load(&both.shared->rewound) == taken;
                spans += header.span;
                if (data < both.shared->ring || header.n_bytes > MAX_PAYLOAD ||
                    data + header.n_bytes > both.shared->ring + RING ||
                    header.span < 64 + header.n_bytes || spans > 2 * RING ||
                    both.to.taken - both.to.tail > head - both.to.tail)
                    fail_msg("seed %llu", (unsigned long long)round);
                if (next_random(&seed) % 2 == 0) {
                    lane_release(&both.to, &header);
                    spans -= header.span;
                } else {
                    break;
                }
            }
            if (spans > 0 && both.to.taken - both.to.tail != spans)
                fail_msg("seed %llu", (unsigned long long)round);
            while (spans > 0) { /* the rest, in one */
                header.span = spans;
                lane_release(&both.to, &header);
                spans = 0;
            }
        }
        n_broken += both.to.broken;
        close_both(&both);
    }
    assert_true(n_taken > ROUNDS && n_broken > ROUNDS / 2 && n_rewound > ROUNDS / 20); /* all */
}

static void skips_that_no_sender_may_write_break_the_lane(void **state)
{
    struct lane_header header, skip = {.n_bytes = UINT32_MAX};
    const unsigned char *data;

    (void)state;
    /* At the ring's start; with nothing behind it; with another skip behind it; with a message that
     * was not committed behind it. */
    for (int which = 0; which < 4; which++) {
        struct both both = open_both(RING);
        if (which > 0) {
            assert_int_equal(send_bytes(&both.from, 1000, 1000, 1), FERRY_OK);
            header = take_bytes(&both.to, 1000, 1);
            lane_release(&both.to, &header);
            if (which < 3)
                memcpy(both.shared->ring, &skip, sizeof skip);
        }
        memcpy(both.shared->ring + both.to.taken, &skip, sizeof skip);
        uint64_t head = which == 1 ? RING : which == 3 ? both.to.taken + 64 : both.to.taken + RING;
        atomic_store(&both.shared->head, head);
        assert_false(lane_take(&both.to, &header, &data));
        assert_true(both.to.broken);
        close_both(&both);
    }
}

struct scribbler {
    struct lane_shared *shared;
    _Atomic bool stop;
};

static void *scribble(void *arg)
{
    struct scribbler *scribbler = arg;
    uint64_t seed = 7;

    while (!atomic_load(&scribbler->stop)) {
        uint64_t r = next_random(&seed);
        struct lane_header made = {.n_bytes = (uint32_t)(r >> 60 == 0 ? r >> 20 : r >> 40 & 0xff)};
        memcpy(scribbler->shared->ring + r % (RING / 64) * 64, &made, sizeof made);
    }
    return NULL;
}

/* The sender changes the ring while it is read. Not under the thread sanitizer, which would report
 * just that. */
static void a_ring_that_changes_under_the_reader_does_no_harm(void **state)
{
    enum { ROUNDS = 20000 };
    struct both both = open_both(RING);
    struct scribbler scribbler = {.shared = both.shared};
    struct lane_header header;
    const unsigned char *data;
    pthread_t thread;

    (void)state;
    if (UNDER_TSAN) {
        close_both(&both);
        skip();
    }
    assert_int_equal(pthread_create(&thread, NULL, scribble, &scribbler), 0);
    for (int round = 0; round < ROUNDS; round++) {
        lane_shared_init(both.shared);
        lane_init(&both.to, both.shared, RING, NULL, NULL);
        atomic_store(&both.shared->head, RING);
        while (lane_take(&both.to, &header, &data)) {
            assert_true(data >= both.shared->ring);
            assert_true(header.n_bytes <= MAX_PAYLOAD);
            assert_true(data + header.n_bytes <= both.shared->ring + RING);
            lane_release(&both.to, &header);
        }
    }
    atomic_store(&scribbler.stop, true);
    assert_int_equal(pthread_join(thread, NULL), 0);
    close_both(&both);
}

/* ---- hostile receivers ---- */

static void tails_that_no_receiver_may_write_break_the_lane(void **state)
{
    enum { ROUNDS = 20000, STEPS = 100 };
    size_t n_ok = 0, n_broken = 0;

    (void)state;
    for (uint64_t round = 0; round < ROUNDS; round++) {
        struct both both = open_both(RING);
        uint64_t seed = round, seen = 0;
        both.from.rewinds = round % 2 != 0;
        for (size_t step = 0; step < STEPS; step++) {
            uint64_t r = next_random(&seed);
            size_t n_bytes = r % (MAX_PAYLOAD + 1);
            uint64_t written = r >> 60 == 0   ? next_random(&seed)
                               : r >> 60 == 1 ? both.from.head + next_random(&seed) % 1000
                               : r >> 60 == 2 ? seen - next_random(&seed) % 200
                                              : both.from.head;
            bool legal = written % 64 == 0 && written >= seen && written <= both.from.head;
            atomic_store(&both.shared->tail, written);
            enum ferry_status st = send_bytes(&both.from, n_bytes, n_bytes, step);
            if (st == FERRY_ERR_PEER) {
                if (legal)
                    fail_msg("seed %llu: a good tail is refused", (unsigned long long)round);
                atomic_store(&both.shared->tail, both.from.head);
                assert_int_equal(send_bytes(&both.from, 0, 0, 1), FERRY_ERR_PEER);
                n_broken++;
                break;
            }
            uint64_t tail = both.from.tail;
            seen = both.from.seen_tail;
            if (both.from.head - tail > RING || tail > both.from.head || tail % 64 != 0)
                fail_msg("seed %llu: tail %llu", (unsigned long long)round,
                         (unsigned long long)tail);
            n_ok++;
        }
        close_both(&both);
    }
    assert_true(n_ok > ROUNDS && n_broken > ROUNDS / 2);
}

/* ---- two threads ---- */

enum { STREAM_MESSAGES = 200000, STREAM_RING = 16 << 10 };

struct stream {
    struct lane lane;
    struct lane_bell *own;
    uint64_t n_bad;
};

static size_t stream_size(uint64_t id)
{
    uint64_t mixed = id * 0x9e3779b97f4a7c15u >> 40;

    return mixed % 50 == 0 ? lane_max_payload(STREAM_RING) - mixed % 64 : mixed % 500;
}

/* Writes around the caches, as the exchange does. Thread sanitizers do not know such stores. */
static void stream_words(void *data, size_t n_words, uint64_t id)
{
    for (size_t i = 0; i < n_words; i++) {
        uint64_t word = id * 0x2545f4914f6cdd1du + i;
#if defined(__x86_64__)
        if (!UNDER_TSAN) {
            _mm_stream_si64((long long *)data + i, (long long)word);
            continue;
        }
#endif
        memcpy((char *)data + 8 * i, &word, 8);
    }
}

static void *stream_out(void *arg)
{
    enum { TIMEOUT_NS = 1000000000 };
    struct stream *stream = arg;

    for (uint64_t id = 0; id < STREAM_MESSAGES;) {
        uint32_t seen = lane_bell_rings(stream->own);
        struct lane_header header = {.id = id, .n_bytes = (uint32_t)stream_size(id)};
        void *data;
        stream->lane.rewinds = id % 1000 < 500;
        enum ferry_status st = lane_reserve(&stream->lane, header.n_bytes, &data);
        if (st == FERRY_AGAIN) {
            lane_bell_sleep(stream->own, seen, TIMEOUT_NS);
            continue;
        }
        if (st != FERRY_OK) {
            stream->n_bad++;
            break;
        }
        stream_words(data, header.n_bytes / 8, id);
        lane_commit(&stream->lane, &header);
        id++;
    }
    return NULL;
}

static void *stream_in(void *arg)
{
    enum { TIMEOUT_NS = 1000000000 };
    struct stream *stream = arg;

    for (uint64_t id = 0; id < STREAM_MESSAGES && stream->n_bad == 0;) {
        uint32_t seen = lane_bell_rings(stream->own);
        struct lane_header header;
        const unsigned char *data;
        if (!lane_take(&stream->lane, &header, &data)) {
            lane_bell_sleep(stream->own, seen, TIMEOUT_NS);
            stream->n_bad += stream->lane.broken;
            continue;
        }
        stream->n_bad += header.id != id || header.n_bytes != stream_size(id);
        for (size_t i = 0; i < header.n_bytes / 8; i++) {
            uint64_t word;
            memcpy(&word, data + 8 * i, 8);
            stream->n_bad += word != id * 0x2545f4914f6cdd1du + i;
        }
        lane_release(&stream->lane, &header);
        id++;
    }
    return NULL;
}

static void two_threads_pass_messages(void **state)
{
    struct both both = open_both(STREAM_RING);
    struct lane_bell *bells = mem_array(2, sizeof *bells);
    struct stream streams[2] = {{.own = &bells[0]}, {.own = &bells[1]}};
    pthread_t threads[2];

    (void)state;
    lane_init(&streams[0].lane, both.shared, STREAM_RING, &bells[1], NULL);
    lane_init(&streams[1].lane, both.shared, STREAM_RING, &bells[0], NULL);
    assert_int_equal(pthread_create(&threads[0], NULL, stream_out, &streams[0]), 0);
    assert_int_equal(pthread_create(&threads[1], NULL, stream_in, &streams[1]), 0);
    for (size_t i = 0; i < 2; i++)
        assert_int_equal(pthread_join(threads[i], NULL), 0);
    assert_int_equal(streams[0].n_bad + streams[1].n_bad, 0);
    assert_int_equal(streams[0].lane.head, streams[1].lane.tail);
    assert_int_equal(bells[0].sleepers + bells[1].sleepers, 0);
    mem_free(bells);
    close_both(&both);
}

/* ---- bells ---- */

static void a_sleep_ends_by_time_or_by_ring(void **state)
{
    enum { WAIT_NS = 20000000 };
    struct lane_bell bell = {0};
    uint64_t begin = clock_now_ns();

    (void)state;
    lane_bell_sleep(&bell, 0, WAIT_NS);
    assert_in_range(clock_now_ns() - begin, WAIT_NS, 100ull * WAIT_NS);
    begin = clock_now_ns();
    lane_bell_sleep(&bell, 0, 0);
    lane_bell_ring(&bell);
    lane_bell_sleep(&bell, 0, UINT64_MAX); /* rung before: does not sleep */
    assert_in_range(clock_now_ns() - begin, 0, 100ull * WAIT_NS);
    assert_int_equal(lane_bell_rings(&bell), 1);
    assert_int_equal(bell.sleepers, 0);
}

/* Strict mode of seccomp: any system call but read, write and exit kills. */
static struct lane_bell quiet_bell;

static void ring_without_system_calls(void)
{
    if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_STRICT) != 0)
        _exit(9);
    for (int i = 0; i < 1000; i++)
        lane_bell_ring(&quiet_bell);
    (void)syscall(SYS_exit, 3);
}

static void a_ring_costs_a_system_call_only_for_sleepers(void **state)
{
    char text[4096];

    (void)state;
    if (UNDER_TSAN)
        skip();
    int status = run_in_child(ring_without_system_calls, text, sizeof text);
    if (WIFEXITED(status) && WEXITSTATUS(status) == 9)
        skip(); /* no seccomp here */
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 3);
    quiet_bell.sleepers = 1;
    status = run_in_child(ring_without_system_calls, text, sizeof text);
    assert_true(WIFSIGNALED(status));
    assert_int_equal(WTERMSIG(status), SIGKILL);
    quiet_bell.sleepers = 0;
}

/* Ping-pong between two processes through shared memory: a futex that is private to a process would
 * sleep until the timeout each time. */
static void a_bell_wakes_another_process(void **state)
{
    enum { ROUNDS = 2000 };
    const uint64_t timeout_ns = 1000000000;
    struct lane_bell *bells =
        mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    int status = 0;

    (void)state;
    assert_ptr_not_equal(bells, MAP_FAILED);
    uint64_t begin = clock_now_ns();
    pid_t pid = fork();
    assert_true(pid >= 0);
    for (uint32_t round = 0; round < ROUNDS; round++) {
        if (pid != 0) {
            lane_bell_ring(&bells[0]);
            lane_bell_sleep(&bells[1], round, timeout_ns);
        } else {
            lane_bell_sleep(&bells[0], round, timeout_ns);
            lane_bell_ring(&bells[1]);
        }
    }
    if (pid == 0)
        _exit(bells[0].sleepers == 0 ? 0 : 1);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
    assert_int_equal(lane_bell_rings(&bells[1]), ROUNDS);
    assert_true(clock_now_ns() - begin < 20 * timeout_ns);
    assert_int_equal(munmap(bells, 4096), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sizes_are_rounded_and_bounded),
        cmocka_unit_test(headers_travel_whole),
        cmocka_unit_test(a_second_reserve_replaces_the_first),
        cmocka_unit_test(less_than_reserved_may_be_sent),
        cmocka_unit_test(taken_messages_stay_until_released),
        cmocka_unit_test(an_empty_ring_is_written_from_its_beginning),
        cmocka_unit_test(lines_are_timed_in_rewound_rings),
        cmocka_unit_test(hooks_follow_every_change),
        cmocka_unit_test(a_rest_left_out_needs_a_message_behind_it),
        cmocka_unit_test(heads_that_no_sender_may_write_break_the_lane),
        cmocka_unit_test(a_head_that_steps_back_breaks_the_lane),
        cmocka_unit_test(a_hostile_ring_gives_nothing_outside),
        cmocka_unit_test(skips_that_no_sender_may_write_break_the_lane),
        cmocka_unit_test(a_ring_that_changes_under_the_reader_does_no_harm),
        cmocka_unit_test(tails_that_no_receiver_may_write_break_the_lane),
        cmocka_unit_test(two_threads_pass_messages),
        cmocka_unit_test(a_sleep_ends_by_time_or_by_ring),
        cmocka_unit_test(a_ring_costs_a_system_call_only_for_sleepers),
        cmocka_unit_test(a_bell_wakes_another_process),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
