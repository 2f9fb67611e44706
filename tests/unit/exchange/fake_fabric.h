/* A group without transports for tests of the exchange: every message is a block of memory, and a
 * test decides at which message a rank dies, stops or answers nonsense. Linked instead of the
 * fabric room's data calls. */
#ifndef TESTS_UNIT_EXCHANGE_FAKE_FABRIC_H
#define TESTS_UNIT_EXCHANGE_FAKE_FABRIC_H

#include "fabric/fabric.h"

struct fake_group;

/* n live seats. max_payload per channel; a lane holds twice that until it is released. */
struct fake_group *fake_group_create(size_t n, const size_t max_payload[LANE_N_CHANNELS]);
void fake_group_destroy(struct fake_group *group);
struct fabric *fake_end(struct fake_group *group, int seat);
/* Seats 0 .. per_host - 1 stand at one host, and so on; at first all do. */
void fake_hosts(struct fake_group *group, size_t per_host);

/* The seat's rank is lost to all others: what it has committed before stays readable until its
 * lanes are renewed. Any thread. */
void fake_kill(struct fake_group *group, int seat);
/* It is live again, as a new incarnation with empty lanes. */
void fake_revive(struct fake_group *group, int seat);
/* Whether `viewer` takes a seat for silent, which nobody else does: it is not live there, its lanes
 * stay. Any thread. */
void fake_suspect(struct fake_group *group, int viewer, int seat, bool suspect);
/* Called with the group unlocked at every commit, before the message is seen: return false to lose
 * the message. */
typedef bool fake_commit_fn(void *arg, int from, int to, enum lane_channel channel,
                            struct lane_header *header, unsigned char *payload);
void fake_on_commit(struct fake_group *group, fake_commit_fn *fn, void *arg);
/* Messages that were taken and never released. */
size_t fake_unreleased(struct fake_group *group);

#endif
