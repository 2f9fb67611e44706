/* Inside of the engine: a scheduler's state, shared by scheduler.c (queue, steps) and
 * scheduler_group.c (answers that other ranks compute, waiting for them).
 *
 * It must not be seen outside of these two files. */
#ifndef ENGINE_SCHEDULER_IMPL_H
#define ENGINE_SCHEDULER_IMPL_H

#include "engine/away.h"
#include "engine/pace.h"
#include "engine/request.h"
#include "engine/scheduler.h"

#include <pthread.h>
#include <stdatomic.h>

struct scheduler {
    struct engine *engine;
    const struct tokenizer *tokenizer;
    struct scheduler_options options;
    struct engine_metrics metrics; /* all NULL: nobody counts */
    struct sampler *sampler;
    size_t max_ids, n_slots;

    /* Owner's. */
    struct choice *first, *last; /* the queue */
    struct choice **running;     /* [n_slots] in order of admission */
    size_t n_running;
    struct engine_feed *feeds; /* [n_slots] */
    struct choice **fed;       /* [n_slots] whose feed it is */
    struct pace pace;
    struct fabric *fabric; /* NULL: one rank */
    struct away *peers;    /* the same */
    struct choice **away;  /* [away_max] computed by other ranks */
    size_t n_away, away_max;
    uint64_t peer_since_ns; /* since when no step is possible for want of peers; 0: one is */
    uint64_t peer_again_ns; /* when the next one is tried, or with another epoch */
    uint32_t peer_epoch;    /* of the last one that was tried */

    /* Guards inbox and inbox_last; the condition tells `woken`. Taken with nothing else. */
    pthread_mutex_t mutex;
    pthread_cond_t condition;
    struct request *inbox, *inbox_last;
    bool woken;

    /* For the limits: what has not been admitted yet, and the sequences that it can have at once.
     * Read by any thread, each alone, relaxed. */
    atomic_size_t n_waiting, n_waiting_tokens, n_free_slots;
    /* For scheduler_view, the same way; n_again: choices that wait after having run. */
    atomic_size_t n_again, n_running_view, n_held_view, n_pages_used;
    _Atomic uint64_t heartbeat_ns, n_steps, group_wait_ns;
};

/* ---- scheduler.c ---- */

/* It waits in front of all that are new, and goes on from its ids, here or elsewhere. */
void sched_requeue(struct scheduler *s, struct choice *c);
/* Takes out the choice behind `before` (NULL: the first). */
struct choice *sched_queue_take(struct scheduler *s, struct choice *before);
/* The limits count what has not been admitted yet; a preempted choice is exempt. */
void sched_leave_account(struct scheduler *s, struct choice *c);
/* The request's first choice begins: its wait is over. Nothing for the others. */
void sched_note_start(struct scheduler *s, struct request *r);
/* Counts and takes the token that was drawn for the choice. Returns whether it was its last, and
 * why. */
bool sched_take_sampled(struct scheduler *s, struct choice *c, enum request_finish *ret_how,
                        struct ferry_error *err);
/* Takes running[i] out, with its sequence. */
struct choice *sched_stop_running(struct scheduler *s, size_t i);
/* The choice is in no list any more. Its request may be gone afterwards. */
void sched_finish(struct scheduler *s, struct choice *c, enum request_finish how,
                  const struct ferry_error *error);

/* ---- scheduler_group.c ---- */

enum ferry_status sched_meet_peers(struct scheduler *s, struct ferry_error *err);
/* Takes away[i] out; its host need not go on. */
struct choice *sched_call_back(struct scheduler *s, size_t i);
/* Tokens that came; and choices whose host is lost, or would not have them. Returns whether
 * anything happened. */
bool sched_hear_peers(struct scheduler *s);
/* Whether a step that has just failed for want of peers should not be tried again yet. */
bool sched_must_rest(const struct scheduler *s);
/* Sends waiting choices to ranks that compute fewer than this one would. */
void sched_send_away(struct scheduler *s);
/* Whether a step's error is for want of other ranks. */
bool sched_is_of_peers(enum ferry_status st);
/* No step is possible for want of other ranks: answers wait, and are failed when it lasts. Their
 * sequences are as they were. */
void sched_bear_with_peers(struct scheduler *s, const struct ferry_error *error);

#endif
