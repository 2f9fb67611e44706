/* A lane: a ring of bytes through which one rank sends messages to one other, in order.
 *
 * Why here: every transport moves the same ring. Inside a host the sender writes into the
 * receiver's memory; across hosts each side has a mirror and the transport ships the bytes to the
 * same offsets (by active message now, by put + flag on RDMA later). The algorithm is this one
 * file. It must not know seats, membership or what messages mean.
 *
 * One sender and one receiver, each one thread. The receiver reads messages where they lie and
 * releases them in order: released bytes are the sender's credit. A lane outlives trust in its
 * sender: what stands in it is hostile, so that every length is checked before use. */
#ifndef FABRIC_LANE_H
#define FABRIC_LANE_H

#include "ferry/status.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { LANE_ALIGN = 64 }; /* messages and payloads begin at multiples of it */

/* Precedes every message, LANE_ALIGN bytes. Little endian, as all hosts of a group. */
struct lane_header {
    uint64_t id;    /* of the shipment; unique at its origin for the life of the process */
    uint64_t step;  /* the origin's */
    uint32_t epoch; /* the sender's when it sent */
    uint32_t layer;
    uint32_t n_bytes; /* payload behind this header */
    uint32_t n_rows;
    uint32_t n_pairs;  /* (row, expert) pairs of a request, groups of a reply */
    uint16_t origin;   /* seat whose tokens these are */
    uint16_t kind;     /* the exchange's */
    uint32_t n_groups; /* sums that a request asks for */
    uint32_t more;     /* 1: more messages of this round follow to this seat */
    uint64_t span;     /* lane_take's: bytes of the ring that lane_release gives back; never sent */
    uint32_t origin_incarnation; /* of a request that another rank has passed on; else 0 */
    uint32_t unused;             /* 0 */
};
_Static_assert(sizeof(struct lane_header) == LANE_ALIGN, "a header is one cache line");

/* Both ends see it, or a mirror of it. */
struct lane_shared {
    _Alignas(64) _Atomic uint64_t head; /* bytes ever committed; the sender's */
    _Atomic uint64_t rewound; /* where the rest of the ring was last left out; the sender's, not
                                 mirrored */
    _Alignas(64) _Atomic uint64_t tail; /* bytes ever released; the receiver's */
    _Alignas(64) unsigned char ring[];
};

/* Where one process sleeps: every peer of the host and its own threads ring it. Lies in memory that
 * they all can write; a stray ring wakes for nothing and harms nothing. */
struct lane_bell {
    _Alignas(64) _Atomic uint32_t rings;
    _Atomic uint32_t sleepers;
};

struct lane;

/* What a transport does after the ring changed; either may be NULL. Called on the lane's thread.
 * publish: the hooks store the shared head and tail themselves, now or later (loop's cuts, sim's
 * clock); otherwise they are stored before the call. */
struct lane_hooks {
    void (*committed)(void *arg, struct lane *lane, uint64_t from, uint64_t to);
    void (*released)(void *arg, struct lane *lane, uint64_t tail);
    void *arg;
    bool publish;
};

/* One end of a lane; a process' own memory. */
struct lane {
    struct lane_shared *shared;
    size_t ring_bytes;      /* power of two, at least 4096 */
    struct lane_bell *bell; /* of the other side; NULL: the transport's hooks ring it */
    struct lane_hooks hooks;
    uint64_t head, tail; /* this end's own truth; the shared copies are only for the other */
    uint64_t seen_tail;  /* sender: the shared tail when last read; `tail` may be ahead of it */
    uint64_t taken;      /* receiver: bytes taken, released or not */
    size_t reserved;     /* sender: bytes of the open reservation with header and skip; 0: none */
    bool broken;         /* something that no honest other end may write was seen */
    bool rewinds;        /* sender: an empty ring is written from its beginning again, so that the
                            same few lines are used, as long as both sides have them in a cache */
    unsigned n_news;     /* receiver: times that the head had moved */
    float line_ns;       /* receiver, with a bell: how long a line that the other side has just
                            written takes to come, smoothed; 0: not measured */
};

/* Bytes of struct lane_shared with this ring; ring_bytes is rounded up to a legal one: a power of
 * two in 4096..1 GiB (less when more is wanted: look at lane_max_payload). */
size_t lane_shared_bytes(size_t ring_bytes);
size_t lane_ring_bytes(size_t wanted);

/* Largest payload that a lane can carry when it is empty: messages never wrap, so a half of the
 * ring less a header. */
size_t lane_max_payload(size_t ring_bytes);

/* Zeroes the shared part; the creating side, before the other end sees it. */
void lane_shared_init(struct lane_shared *shared);
void lane_init(struct lane *lane, struct lane_shared *shared, size_t ring_bytes,
               struct lane_bell *bell, const struct lane_hooks *hooks);

/* Sender. Contiguous room for a payload of n_bytes; *ret_data LANE_ALIGN-aligned. FERRY_AGAIN: the
 * receiver has not released enough. FERRY_ERR_LIMIT: over lane_max_payload. FERRY_ERR_PEER: the
 * receiver's tail makes no sense. A second reserve before commit replaces the first. */
enum ferry_status lane_reserve(struct lane *lane, size_t n_bytes, void **ret_data);

/* Sends the reserved message with header->n_bytes (<= reserved) of payload. All stores to the
 * payload, non-temporal ones too, are visible to who takes it. */
void lane_commit(struct lane *lane, const struct lane_header *header);

/* Receiver. The next message that was not taken yet; header and *ret_data stay valid until it is
 * released. False: none. The header is copied out first: the sender could still change it. A lane
 * whose sender wrote nonsense gives nothing more and is `broken`. */
bool lane_take(struct lane *lane, struct lane_header *ret_header, const unsigned char **ret_data);

/* Gives back the oldest taken message's bytes. */
void lane_release(struct lane *lane, const struct lane_header *header);

/* A bell: ring wakes every sleeper; lane_bell_sleep returns when it was rung since `seen`
 * (lane_bell_rings), or when timeout_ns has passed. Any process of the host. */
void lane_bell_ring(struct lane_bell *bell);
uint32_t lane_bell_rings(const struct lane_bell *bell);
void lane_bell_sleep(struct lane_bell *bell, uint32_t seen, uint64_t timeout_ns);

#endif
