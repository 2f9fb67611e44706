/* A scheduler's part in a group of ranks. See scheduler.h, and away.h for what travels. */
#include "engine/scheduler_impl.h"

#include "base/alloc.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"

#include <string.h>

static const uint64_t PEER_REST_MAX_NS = UINT64_C(50000000);

enum ferry_status sched_meet_peers(struct scheduler *s, struct ferry_error *err)
{
    struct away_hello hello = {
        .n_slots = s->n_slots, .n_valid = sampler_n_valid(s->sampler), .max_ids = s->max_ids};

    s->away_max = s->n_slots * fabric_n_seats(s->fabric);
    s->away = mem_array(s->away_max, sizeof(struct choice *));
    if (s->away == NULL)
        return FERRY_FAIL(err, FERRY_ERR_NOMEM, "scheduler: no memory for %zu answers",
                          s->away_max);
    return away_create(&s->peers, s, s->fabric, &hello, err);
}

struct choice *sched_call_back(struct scheduler *s, size_t i)
{
    struct choice *c = s->away[i];

    away_cancel(s->peers, c);
    s->n_away--;
    memmove(&s->away[i], &s->away[i + 1], (s->n_away - i) * sizeof(struct choice *));
    return c;
}

bool sched_is_of_peers(enum ferry_status st)
{
    return st <= FERRY_ERR_NO_HOLDER && st > FERRY_ERR_DEVICE;
}

void sched_bear_with_peers(struct scheduler *s, const struct ferry_error *error)
{
    uint64_t now = clock_now_ns();
    uint64_t since = s->peer_since_ns == 0 ? now : s->peer_since_ns;

    /* At once at first, then ever more seldom: what is missing may not come back for long. */
    uint64_t rest = (now - since) / 8;
    s->peer_again_ns = now + (rest < PEER_REST_MAX_NS ? rest : PEER_REST_MAX_NS);
    s->peer_epoch = fabric_epoch(s->fabric);
    if (s->peer_since_ns == 0) {
        s->peer_since_ns = now;
        LOG_WARNING("answers wait for the group: %s", error->msg);
    } else if (now - s->peer_since_ns > s->options.peer_patience_ns) {
        s->peer_since_ns = 0;
        while (s->n_running > 0)
            sched_finish(s, sched_stop_running(s, s->n_running - 1), REQUEST_FINISH_ERROR, error);
    }
}

bool sched_must_rest(const struct scheduler *s)
{
    return s->peer_since_ns != 0 && clock_now_ns() < s->peer_again_ns &&
           fabric_epoch(s->fabric) == s->peer_epoch;
}

static void take_token(struct scheduler *s, size_t i, const struct away_token *token)
{
    struct choice *c = s->away[i];
    enum request_finish how;
    struct ferry_error err = {0};

    c->sampled = token->token;
    c->sampled_logprobs = token->logprobs;
    c->away_heard_ns = clock_now_ns();
    if (sched_take_sampled(s, c, &how, &err))
        sched_finish(s, sched_call_back(s, i), how, &err);
}

bool sched_hear_peers(struct scheduler *s)
{
    struct away_arrival a;
    bool any = false;

    away_follow(s->peers);
    while (away_next(s->peers, &a)) {
        size_t i = 0;
        while (i < s->n_away && !away_is_from_host(s->away[i], &a))
            i++;
        if (i == s->n_away)
            continue; /* of an attempt that was given up */
        any = true;
        if (!a.failed && a.token.n_ids == s->away[i]->n_ids && a.token.token >= 0 &&
            (size_t)a.token.token < sampler_n_valid(s->sampler) &&
            (a.token.has_logprobs != 0 || !s->away[i]->request->options.logprobs)) {
            take_token(s, i, &a.token);
        } else {
            s->away[i]->stays_here = true;
            sched_requeue(s, sched_call_back(s, i));
        }
    }
    uint64_t now = clock_now_ns();
    for (size_t i = s->n_away; i-- > 0;) {
        if (away_is_lost(s->peers, s->away[i])) {
            sched_requeue(s, sched_call_back(s, i));
            any = true;
        } else {
            away_check(s->peers, s->away[i], now);
        }
    }
    return any;
}

static void begin_away(struct scheduler *s, struct choice *c)
{
    sched_note_start(s, c->request);
    sched_leave_account(s, c);
    c->state = CHOICE_AWAY;
    metric_add(s->metrics.sent_away, 1);
    s->away[s->n_away++] = c;
}

void sched_send_away(struct scheduler *s)
{
    struct choice *before = NULL, *c;
    size_t n_here = s->n_running;

    while (s->n_away < s->away_max && (c = before != NULL ? before->next : s->first) != NULL) {
        int seat = c->stays_here || c->paused || c->request->options.ids_only
                       ? -1
                       : away_pick(s->peers, n_here);
        if (seat >= 0 && away_send(s->peers, c, seat)) {
            begin_away(s, sched_queue_take(s, before));
            continue;
        }
        n_here++;
        before = c;
    }
}

void scheduler_peer_message(struct scheduler *scheduler, int seat, uint32_t incarnation,
                            const void *data, size_t n_bytes)
{
    if (scheduler->peers != NULL)
        away_message(scheduler->peers, seat, incarnation, data, n_bytes);
}
