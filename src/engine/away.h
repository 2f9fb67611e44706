/* Answers that one rank has and another computes.
 *
 * Inside of the room. Every rank of a group with an engine is both: the front door of its own
 * requests, which may send choices away to less loaded ranks, and the host of choices that others
 * have sent. What travels is ids and settings one way, tokens back: text, stop strings and readers
 * stay with the front door, so a choice whose host is lost goes on from its ids anywhere, with the
 * same bits (law 2). It must not know HTTP, text or steps.
 *
 * Messages come on the fabric's thread; all else is the scheduler's owner's. */
#ifndef ENGINE_AWAY_H
#define ENGINE_AWAY_H

#include "engine/away_wire.h"
#include "engine/request.h"
#include "fabric/fabric.h"

struct away;

/* n_slots: answers that this rank computes at once. FERRY_ERR_NOMEM. */
enum ferry_status away_create(struct away **ret_away, struct scheduler *scheduler,
                              struct fabric *fabric, const struct away_hello *hello,
                              struct ferry_error *err) FERRY_MUST_CHECK;
/* Requests of others are the scheduler's to end first; NULL is allowed. */
void away_destroy(struct away *away);

/* A message of another rank's engine. Fabric's thread. */
void away_message(struct away *away, int seat, uint32_t incarnation, const void *data,
                  size_t n_bytes);

/* Between steps: tells new members about this rank, ends what lost front doors had asked for. */
void away_follow(struct away *away);

/* ---- the front door's side ---- */

/* The seat that should compute the next choice: the one with the fewest, this rank first among
 * equals; -1: this one. n_here: that this rank computes or has waiting. */
int away_pick(struct away *away, size_t n_here);

/* Sends a choice away; its ids are what it goes on from. False: it did not work, the choice is as
 * it was. */
bool away_send(struct away *away, struct choice *choice, int seat);
/* Its host need not go on. */
void away_cancel(struct away *away, struct choice *choice);
/* Tells its host about its reader when that has changed. */
void away_hold(struct away *away, struct choice *choice, bool hold);
/* Asks its host about a choice of which nothing was heard for a second: a message may have been
 * lost with a connection. Held ones too: the answer is cheap. */
void away_check(struct away *away, struct choice *choice, uint64_t now_ns);
/* Whether its host will never send another token. */
bool away_is_lost(struct away *away, const struct choice *choice);

/* What a rank has sent: a token, or that it will not go on. */
struct away_arrival {
    uint64_t id; /* choice.away_id */
    int seat;    /* who sent it */
    uint32_t incarnation;
    bool failed;
    struct away_token token; /* not failed */
};

/* The next one in the order they came; false: there is none. */
bool away_next(struct away *away, struct away_arrival *ret);
/* Whether it is about this choice, and of the host that computes it. */
bool away_is_from_host(const struct choice *choice, const struct away_arrival *arrival);

#endif
