/* The ring of lane.h, and bells.
 *
 * Why here: transports only move what this file writes, so that there is one place where order,
 * wrap-around and hostile numbers are thought about. It must not know transports.
 *
 * Messages never wrap: one that does not fit before the ring's end is preceded by a skip marker, a
 * header whose n_bytes no message can have; where an empty ring is begun anew, its shared part says
 * so. All positions count bytes since the beginning and are multiples of LANE_ALIGN, so that a
 * header always fits before the end. */
#include "fabric/lane.h"

#include "base/assert.h"
#include "base/clock.h"
#include "base/size.h"

#include <errno.h>
#include <linux/futex.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

enum { RING_MIN = 4096, RING_MAX = 1 << 30, NEWS_PER_SAMPLE = 4, BEHIND = 512 };
enum {
    WINDOW = 256 << 10
}; /* bytes of a ring that rewinds are used at least, if it has four times
      as many: a processor's own cache holds them */
static const uint32_t SKIP = UINT32_MAX;     /* n_bytes: the rest of the ring is unused */
static const uint64_t SAMPLE_MOST_NS = 1000; /* whatever takes longer was interrupted */
static const float SAMPLE_WEIGHT = 0.125f;

/* Orders earlier non-temporal stores, which a release store alone does not. */
static void flush_stores(void)
{
#if defined(__x86_64__)
    _mm_sfence();
#else
    atomic_thread_fence(memory_order_seq_cst);
#endif
}

size_t lane_ring_bytes(size_t wanted)
{
    size_t n_bytes = RING_MIN;

    while (n_bytes < wanted && n_bytes < RING_MAX)
        n_bytes *= 2;
    return n_bytes;
}

size_t lane_shared_bytes(size_t ring_bytes)
{
    return sizeof(struct lane_shared) + lane_ring_bytes(ring_bytes);
}

/* A skip is shorter than the message behind it, so that two halves always fit; one in an empty ring
 * that is begun anew needs no room. */
size_t lane_max_payload(size_t ring_bytes)
{
    return ring_bytes / 2 - sizeof(struct lane_header);
}

/* Bytes of a message with its header; n_bytes <= lane_max_payload. */
static size_t message_bytes(size_t n_bytes)
{
    return sizeof(struct lane_header) + ((n_bytes + LANE_ALIGN - 1) & ~(size_t)(LANE_ALIGN - 1));
}

void lane_shared_init(struct lane_shared *shared)
{
    atomic_init(&shared->head, 0);
    atomic_init(&shared->rewound, 0);
    atomic_init(&shared->tail, 0);
}

void lane_init(struct lane *lane, struct lane_shared *shared, size_t ring_bytes,
               struct lane_bell *bell, const struct lane_hooks *hooks)
{
    FERRY_ASSERT(ring_bytes == lane_ring_bytes(ring_bytes));
    *lane = (struct lane){.shared = shared, .ring_bytes = ring_bytes, .bell = bell};
    if (hooks != NULL)
        lane->hooks = *hooks;
}

/* ---- sender ---- */

/* Reads the receiver's tail: it may move forward, up to what was sent. */
static bool read_tail(struct lane *lane)
{
    /* Pairs with the release in lane_release: what is given back is no longer read. */
    uint64_t tail = atomic_load_explicit(&lane->shared->tail, memory_order_acquire);
    uint64_t unreleased = lane->head - tail;

    if (unreleased > lane->head - lane->seen_tail || tail % LANE_ALIGN != 0)
        return false;
    lane->seen_tail = tail;
    if (unreleased < lane->head - lane->tail) /* else it has not passed a skipped rest yet */
        lane->tail = tail;
    return true;
}

/* Bytes between the head and where a message of n_bytes (with header) begins. */
static size_t skip_bytes(const struct lane *lane, size_t n_bytes)
{
    size_t at = (size_t)(lane->head & (lane->ring_bytes - 1)), left = lane->ring_bytes - at;
    bool rewinds =
        lane->rewinds && lane->tail == lane->head && at >= min_size(WINDOW, lane->ring_bytes / 4);

    return n_bytes > left || rewinds ? left : 0;
}

/* Where what is in use begins, once `skip` bytes were skipped: nothing lies in the rest of an empty
 * ring, so nobody needs to give it back. */
static uint64_t tail_after(const struct lane *lane, size_t skip)
{
    return lane->rewinds && lane->tail == lane->head ? lane->head + skip : lane->tail;
}

enum ferry_status lane_reserve(struct lane *lane, size_t n_bytes, void **ret_data)
{
    lane->reserved = 0;
    if (n_bytes > lane_max_payload(lane->ring_bytes))
        return FERRY_ERR_LIMIT;
    if (lane->broken)
        return FERRY_ERR_PEER;
    if (lane->rewinds && lane->tail != lane->head && !read_tail(lane)) {
        lane->broken = true;
        return FERRY_ERR_PEER;
    }
    size_t message = message_bytes(n_bytes);
    size_t skip = skip_bytes(lane, message);
    size_t wanted = skip + message;

    if (lane->head + wanted - tail_after(lane, skip) > lane->ring_bytes) {
        if (!read_tail(lane)) {
            lane->broken = true;
            return FERRY_ERR_PEER;
        }
        if (lane->head + wanted - tail_after(lane, skip) > lane->ring_bytes)
            return FERRY_AGAIN;
    }
    size_t at = (size_t)((lane->head + skip) & (lane->ring_bytes - 1));
    lane->reserved = wanted;
    *ret_data = lane->shared->ring + at + sizeof(struct lane_header);
    return FERRY_OK;
}

void lane_commit(struct lane *lane, const struct lane_header *header)
{
    FERRY_ASSERT(lane->reserved != 0);
    size_t at = (size_t)(lane->head & (lane->ring_bytes - 1));
    /* A message ends at the ring's end at the latest: more than that is a skip and a message. */
    size_t skip = lane->reserved > lane->ring_bytes - at ? lane->ring_bytes - at : 0;
    FERRY_ASSERT(header->n_bytes <= lane->reserved - skip - sizeof *header);
    uint64_t from = lane->head;

    if (skip > 0 && tail_after(lane, skip) != lane->tail) {
        /* A marker could be overwritten: the rest is room at once. Ordered by head's release. */
        FERRY_ASSERT(!lane->hooks.publish); /* it does not travel */
        atomic_store_explicit(&lane->shared->rewound, from, memory_order_relaxed);
        at = 0;
    } else if (skip > 0) {
        struct lane_header marker = {.n_bytes = SKIP};
        memcpy(lane->shared->ring + at, &marker, sizeof marker);
        at = 0;
    }
    struct lane_header sent = *header;
    sent.span = 0;
    memcpy(lane->shared->ring + at, &sent, sizeof sent);
    lane->tail = tail_after(lane, skip);
    lane->head += skip + message_bytes(header->n_bytes);
    lane->reserved = 0;
    flush_stores();
    if (!lane->hooks.publish) /* pairs with the acquire in lane_take */
        atomic_store_explicit(&lane->shared->head, lane->head, memory_order_release);
    if (lane->hooks.committed != NULL)
        lane->hooks.committed(lane->hooks.arg, lane, from, lane->head);
    if (lane->bell != NULL)
        lane_bell_ring(lane->bell);
}

/* ---- receiver ---- */

/* Reads the sender's head: it may move forward, up to a ring's length before the tail, which a
 * skipped rest before that does not have to reach. */
static bool read_head(struct lane *lane)
{
    uint64_t head = atomic_load_explicit(&lane->shared->head, memory_order_acquire);
    uint64_t ahead = head - lane->tail;

    if (ahead >= 2 * lane->ring_bytes || ahead < lane->head - lane->tail || head % LANE_ALIGN != 0)
        return false;
    lane->head = head;
    return true;
}

/* Whether the rest of the ring was left out at `at`, where the next message would begin. An older
 * value is a position that was passed. */
static bool is_rewound(const struct lane *lane, size_t at)
{
    return at != 0 &&
           atomic_load_explicit(&lane->shared->rewound, memory_order_relaxed) == lane->taken;
}

/* Copies the header of the next message, which begins at *ret_at of the ring; false: nonsense.
 * There is something between taken and head. */
static bool read_header(const struct lane *lane, struct lane_header *ret_header, size_t *ret_at)
{
    size_t at = (size_t)(lane->taken & (lane->ring_bytes - 1));
    size_t unread = (size_t)(lane->head - lane->taken);
    size_t skip = 0;
    bool rewound = is_rewound(lane, at);

    if (!rewound)
        memcpy(ret_header, lane->shared->ring + at, sizeof *ret_header);
    if (rewound || ret_header->n_bytes == SKIP) {
        skip = lane->ring_bytes - at;
        if (at == 0 || unread <= skip) /* it is committed with the message behind it */
            return false;
        at = 0;
        memcpy(ret_header, lane->shared->ring, sizeof *ret_header);
    }
    if (ret_header->n_bytes > lane_max_payload(lane->ring_bytes))
        return false;
    size_t message = message_bytes(ret_header->n_bytes);
    if (message > unread - skip || message > lane->ring_bytes - at)
        return false;
    ret_header->span = skip + message;
    *ret_at = at;
    return true;
}

/* Reads the first line of what is new, by the clock. One behind it is read before: the address is
 * translated then, which would count as much and has nothing to do with caches. Both are the
 * receiver's until they are released; in a rest that was left out the sender may write already.
 * False: too little has come. */
static bool sample_line(struct lane *lane)
{
    size_t at = (size_t)(lane->taken & (lane->ring_bytes - 1)), left = lane->ring_bytes - at;
    uint64_t unread = lane->head - lane->taken;

    if (is_rewound(lane, at)) {
        unread -= unread > left ? left : unread;
        at = 0;
        left = lane->ring_bytes;
    }
    if (unread <= BEHIND || left <= BEHIND)
        return false;
    const volatile unsigned char *line = lane->shared->ring + at;
    (void)line[BEHIND];
    uint64_t begin_ns = clock_now_ns();
    (void)*line;
    uint64_t ns = clock_now_ns() - begin_ns;
    if (ns < SAMPLE_MOST_NS) {
        float sample = (float)ns;
        lane->line_ns += lane->line_ns > 0 ? (sample - lane->line_ns) * SAMPLE_WEIGHT : sample;
    }
    return true;
}

bool lane_take(struct lane *lane, struct lane_header *ret_header, const unsigned char **ret_data)
{
    struct lane_header header;
    size_t at;

    if (lane->broken)
        return false;
    if (lane->taken == lane->head) {
        if (!read_head(lane)) {
            lane->broken = true;
            return false;
        }
        if (lane->taken == lane->head)
            return false;
        if (lane->bell != NULL && (lane->n_news % NEWS_PER_SAMPLE != 0 || sample_line(lane)))
            lane->n_news++;
    }
    if (!read_header(lane, &header, &at)) {
        lane->broken = true;
        return false;
    }
    lane->taken += header.span;
    *ret_header = header;
    *ret_data = lane->shared->ring + at + sizeof header;
    return true;
}

void lane_release(struct lane *lane, const struct lane_header *header)
{
    FERRY_ASSERT(header->span != 0 && header->span % LANE_ALIGN == 0);
    FERRY_ASSERT(header->span <= lane->taken - lane->tail);
    lane->tail += header->span;
    if (!lane->hooks.publish) /* pairs with the acquire in read_tail */
        atomic_store_explicit(&lane->shared->tail, lane->tail, memory_order_release);
    if (lane->hooks.released != NULL)
        lane->hooks.released(lane->hooks.arg, lane, lane->tail);
    if (lane->bell != NULL)
        lane_bell_ring(lane->bell);
}

/* ---- bells ---- */

/* Not FUTEX_PRIVATE: a bell lies in memory that processes share. */
static void futex(_Atomic uint32_t *word, int op, uint32_t value, const struct timespec *deadline)
{
    (void)syscall(SYS_futex, word, op, value, deadline, NULL, FUTEX_BITSET_MATCH_ANY);
}

void lane_bell_ring(struct lane_bell *bell)
{
    /* Sequentially consistent with lane_bell_sleep: either the sleeper sees the ring, or this sees
     * the sleeper. */
    atomic_fetch_add(&bell->rings, 1);
    if (atomic_load(&bell->sleepers) != 0)
        futex(&bell->rings, FUTEX_WAKE, INT32_MAX, NULL);
}

uint32_t lane_bell_rings(const struct lane_bell *bell)
{
    return atomic_load(&bell->rings);
}

void lane_bell_sleep(struct lane_bell *bell, uint32_t seen, uint64_t timeout_ns)
{
    enum { SECOND = 1000000000 };
    struct timespec deadline;
    uint64_t deadline_ns = UINT64_MAX; /* without end: only who rings ends it */

    if (timeout_ns == 0 || atomic_load(&bell->rings) != seen)
        return;
    if (timeout_ns < (uint64_t)INT64_MAX) {
        deadline_ns = clock_now_ns() + timeout_ns;
        deadline.tv_sec = (time_t)(deadline_ns / SECOND);
        deadline.tv_nsec = (long)(deadline_ns % SECOND);
    }
    atomic_fetch_add(&bell->sleepers, 1);
    while (atomic_load(&bell->rings) == seen) {
        if (deadline_ns != UINT64_MAX && clock_now_ns() >= deadline_ns)
            break;
        /* The bitset kind of wait takes a point of the monotonic clock, not a length. */
        futex(&bell->rings, FUTEX_WAIT_BITSET, seen, deadline_ns == UINT64_MAX ? NULL : &deadline);
    }
    atomic_fetch_sub(&bell->sleepers, 1);
}
