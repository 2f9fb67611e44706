/* The inside of the group's state machine, shared by its two files: group.c is how an epoch comes
 * into force, group_change.c is what it changes. Nobody else includes it. */
#ifndef FABRIC_GROUP_IMPL_H
#define FABRIC_GROUP_IMPL_H

#include "fabric/group.h"

/* Epochs above are no honest counters; refused, so that adding never overflows. */
#define GROUP_EPOCH_MAX (UINT32_MAX - 16)

static inline int count_bits(uint64_t mask)
{
    return __builtin_popcountll(mask);
}

/* Runs the block for every seat of a mask; no break inside. */
#define FOR_SEATS(s, mask)                                                    \
    for (uint64_t rest_##s = (mask); rest_##s != 0; rest_##s &= rest_##s - 1) \
        for (int s = __builtin_ctzll(rest_##s), once_##s = 1; once_##s != 0; once_##s = 0)

static inline uint64_t ago(uint64_t then_ns, uint64_t now_ns)
{
    return now_ns > then_ns ? now_ns - then_ns : 0;
}

/* Evidence about who holds the seat; NULL: there is none about this instance. */
const struct group_peer *group_peer_of(const struct group *group, int seat);
/* NULL: UINT64_MAX. */
uint64_t group_silence(const struct group_peer *peer, uint64_t now_ns);
/* Messages go through; NULL: false. */
bool group_works(const struct group_peer *peer);
/* Its messages count: connected, and heard of lately. */
bool group_hears(const struct group *group, int seat, uint64_t now_ns);
/* Its own lease as a member is over for sure: either nothing was heard for so long, so that it has
 * got no echo of anything younger, or nothing was said to it for so long. */
bool group_lapsed(const struct group *group, const struct group_peer *peer, uint64_t now_ns);
/* Members whose process has ended, by own proof or that of a member which is heard. */
uint64_t group_gone_mask(const struct group *group, uint64_t now_ns);

/* Issuer: what the next epoch changes, one seat; false: nothing. *ret_table: the epoch in force
 * with that change. */
bool group_next_change(struct group *group, struct wire_table *ret_table, uint64_t now_ns);

#endif
