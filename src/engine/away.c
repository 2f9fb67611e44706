/* Sending answers away, and computing those of others. See away.h. */
#include "engine/away.h"

#include "base/alloc.h"
#include "base/assert.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "base/size.h"

#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

/* A choice of another rank, computed here. */
struct guest {
    struct away *away;
    int seat; /* who asked */
    uint32_t incarnation;
    uint64_t id;
    struct away_start start;
    struct logit_bias *biases; /* [start.n_biases] */
    int32_t *ids;              /* [start.n_ids]; NULL once the request has them */
    size_t n_ids;              /* that have come */
    size_t n_all;              /* of the answer with its prompt, so far */
    struct request *request;   /* NULL: not all ids are here */
    atomic_bool ended;         /* whoever asked does not want it, or is told already: a flag, no
                                  data; read by the owner, set by both threads */
    struct guest *next;
};

/* On its way to the owner. */
struct arrival {
    struct away_arrival what;
    struct arrival *next;
};

struct host {
    struct away_hello hello; /* n_slots 0: computes for nobody, or nothing is known */
    uint32_t incarnation;
    size_t n_away; /* choices of this rank that are there; owner's */
};

enum {
    GUESTS_MAX = 4096,
    ARRIVALS_MAX = 65536, /* a step's: hosts that are faster than this rank, or mad */
};
static const uint64_t CHECK_NS = UINT64_C(1000000000); /* without a token */

struct away {
    struct scheduler *scheduler;
    struct fabric *fabric;
    struct away_hello own;
    uint32_t n_sent;                    /* choices; owner's */
    atomic_bool warned;                 /* of a message that no rank may send */
    uint32_t epoch;                     /* that was followed; owner's */
    uint64_t live;                      /* the same */
    uint32_t incarnations[LIMIT_SEATS]; /* of the members then; 0: not live. Owner's */

    pthread_mutex_t mutex; /* guards what follows; taken with no other lock but the scheduler's
                              inside it */
    struct guest *guests;
    size_t n_guests;
    struct arrival *first, *last;
    size_t n_arrivals;
    struct host hosts[LIMIT_SEATS]; /* but n_away */
};

enum ferry_status away_create(struct away **ret_away, struct scheduler *scheduler,
                              struct fabric *fabric, const struct away_hello *hello,
                              struct ferry_error *err)
{
    struct away *p = mem_zero(sizeof *p);

    if (p == NULL)
        return FERRY_FAIL(err, FERRY_ERR_NOMEM, "away: no memory");
    p->scheduler = scheduler;
    p->fabric = fabric;
    p->own = *hello;
    (void)pthread_mutex_init(&p->mutex, NULL);
    *ret_away = p;
    return FERRY_OK;
}

static void free_guest(struct guest *guest)
{
    mem_free(guest->ids);
    mem_free(guest->biases);
    mem_free(guest);
}

void away_destroy(struct away *away)
{
    if (away == NULL)
        return;
    while (away->guests != NULL) {
        struct guest *g = away->guests;
        away->guests = g->next;
        request_destroy(g->request);
        free_guest(g);
    }
    while (away->first != NULL) {
        struct arrival *a = away->first;
        away->first = a->next;
        mem_free(a);
    }
    (void)pthread_mutex_destroy(&away->mutex);
    mem_free(away);
}

static enum ferry_status post(struct away *p, int seat, const struct away_message *message)
{
    unsigned char bytes[AWAY_MESSAGE_MAX];
    size_t n_ids = 0, n = away_wire_write(message, bytes, &n_ids);

    return fabric_send(p->fabric, seat, FABRIC_TOPIC_ENGINE, bytes, n);
}

/* ---- the host's side ---- */

static void tell_failed(struct away *p, const struct guest *g)
{
    (void)post(p, g->seat, &(struct away_message){.type = AWAY_FAILED, .id = g->id});
}

/* Takes a guest out of the list; the mutex is held. */
static void unlink_guest(struct away *p, struct guest *guest)
{
    struct guest **at = &p->guests;

    while (*at != guest)
        at = &(*at)->next;
    *at = guest->next;
    p->n_guests--;
}

static struct guest *find_guest(struct away *p, int seat, uint32_t incarnation, uint64_t id)
{
    for (struct guest *g = p->guests; g != NULL; g = g->next) {
        if (g->seat == seat && g->incarnation == incarnation && g->id == id)
            return g;
    }
    return NULL;
}

/* The scheduler's events of a guest's request, on the owner's thread. */
static void on_event(void *arg, struct request *request, const struct request_event *event)
{
    struct guest *g = arg;
    struct away *p = g->away;

    for (size_t i = 0; event->kind == REQUEST_EVENT_TOKEN && i < event->n_tokens; i++) {
        struct away_message m = {.type = AWAY_TOKEN, .id = g->id};
        m.token = (struct away_token){.n_ids = g->n_all++, .token = event->tokens[i].id};
        if (event->tokens[i].logprobs != NULL) {
            m.token.logprobs = *event->tokens[i].logprobs;
            m.token.has_logprobs = 1;
        }
        if (!atomic_load(&g->ended) && post(p, g->seat, &m) != FERRY_OK) {
            atomic_store(&g->ended, true); /* it is lost, or as good as: it takes nothing */
            request_cancel(request);
        }
    }
    /* The front door knows when an answer is at its end; one that ends here before that, because of
     * an error or of a smaller context, goes on elsewhere. */
    bool is_short =
        event->finish == REQUEST_FINISH_LENGTH && g->n_all < g->start.n_ids + g->start.max_tokens;
    if (event->kind == REQUEST_EVENT_FINISH &&
        (event->finish == REQUEST_FINISH_ERROR || is_short) && !atomic_exchange(&g->ended, true)) {
        tell_failed(p, g);
    }
    if (event->kind != REQUEST_EVENT_DONE)
        return;
    (void)pthread_mutex_lock(&p->mutex);
    unlink_guest(p, g);
    (void)pthread_mutex_unlock(&p->mutex);
    request_destroy(request);
    free_guest(g);
}

/* All ids are here: hands the guest to the scheduler. The mutex is held; false: it was refused. */
static bool admit_guest(struct away *p, struct guest *g)
{
    const struct away_start *s = &g->start;
    struct ferry_error err;
    struct request_options o = {.ids = g->ids,
                                .n_ids = s->n_ids,
                                .max_tokens = s->max_tokens,
                                .n_choices = 1,
                                .sampling = {.temperature = s->temperature,
                                             .top_k = s->top_k,
                                             .top_p = s->top_p,
                                             .min_p = s->min_p,
                                             .repetition_penalty = s->repetition_penalty,
                                             .presence_penalty = s->presence_penalty,
                                             .frequency_penalty = s->frequency_penalty,
                                             .biases = g->biases,
                                             .n_biases = s->n_biases,
                                             .seed = s->seed},
                                .ignore_eos = s->ignore_eos != 0,
                                .n_answered = s->n_answered,
                                .first_choice = s->choice,
                                .ids_only = true,
                                .logprobs = s->logprobs != 0,
                                .n_top_logprobs = s->n_top_logprobs,
                                .on_event = on_event,
                                .arg = g};

    memcpy(o.cache_key, s->cache_key, sizeof o.cache_key);
    enum ferry_status st = s->n_valid == p->own.n_valid
                               ? request_create(&g->request, p->scheduler, &o, &err)
                               : FERRY_FAIL(&err, FERRY_ERR_ARG, "other vocabulary");
    if (st == FERRY_OK)
        st = scheduler_submit(p->scheduler, g->request, &err);
    if (st != FERRY_OK) {
        LOG_DEBUG("away: an answer of seat %d is refused: %s", g->seat, err.msg);
        return false;
    }
    mem_free(g->ids); /* the request has a copy */
    g->ids = NULL;
    return true;
}

/* Takes ids in; the mutex is held. */
static void add_ids(struct away *p, struct guest *g, size_t offset, const int32_t *ids, size_t n)
{
    bool fits = g->request == NULL && offset == g->n_ids && n <= g->start.n_ids - g->n_ids;

    if (fits) {
        memcpy(g->ids + offset, ids, n * sizeof *ids);
        g->n_ids += n;
    }
    if (fits && (g->n_ids < g->start.n_ids || admit_guest(p, g)))
        return;
    if (g->request != NULL && fits == false)
        return; /* it runs: what comes now is nonsense */
    tell_failed(p, g);
    unlink_guest(p, g);
    request_destroy(g->request);
    free_guest(g);
}

/* A rank sends an answer's ids without anything in between: one that is still incomplete when the
 * next begins was given up there, for lack of room in the queue. The mutex is held. */
static void forget_half(struct away *p, int seat)
{
    for (struct guest *g = p->guests; g != NULL; g = g->next) {
        if (g->seat == seat && g->request == NULL) {
            unlink_guest(p, g);
            free_guest(g);
            return; /* there is never more than one */
        }
    }
}

static void start_guest(struct away *p, int seat, uint32_t incarnation,
                        const struct away_message *m)
{
    struct guest *g = mem_zero(sizeof *g);

    forget_half(p, seat);
    if (g != NULL) {
        *g = (struct guest){.away = p,
                            .seat = seat,
                            .incarnation = incarnation,
                            .id = m->id,
                            .start = m->start,
                            .n_all = m->start.n_ids};
        if (m->start.n_ids > 0 && m->start.n_ids <= p->own.max_ids)
            g->ids = mem_alloc(m->start.n_ids * sizeof *g->ids);
        if (m->start.n_biases > 0)
            g->biases = mem_alloc(m->start.n_biases * sizeof *g->biases);
    }
    if (g == NULL || g->ids == NULL || (m->start.n_biases > 0 && g->biases == NULL) ||
        p->n_guests == GUESTS_MAX || find_guest(p, seat, incarnation, m->id) != NULL) {
        if (g != NULL) {
            tell_failed(p, g);
            free_guest(g);
        }
        return;
    }
    if (m->start.n_biases > 0)
        memcpy(g->biases, m->biases, m->start.n_biases * sizeof *g->biases);
    g->next = p->guests;
    p->guests = g;
    p->n_guests++;
    add_ids(p, g, 0, m->ids, m->n_ids);
}

/* Whoever asked does not want it any more; the mutex is held. */
static void end_guest(struct away *p, struct guest *g)
{
    atomic_store(&g->ended, true);
    if (g->request != NULL) {
        request_cancel(g->request); /* DONE frees it */
        return;
    }
    unlink_guest(p, g);
    free_guest(g);
}

/* ---- messages ---- */

/* One that is dropped is missed with the next token, or when its host is asked: the choice is then
 * computed here. */
static void keep_arrival(struct away *p, int seat, uint32_t incarnation,
                         const struct away_message *m)
{
    struct arrival *a = p->n_arrivals < ARRIVALS_MAX ? mem_zero(sizeof *a) : NULL;

    if (a == NULL)
        return;
    a->what = (struct away_arrival){
        .id = m->id, .seat = seat, .incarnation = incarnation, .failed = m->type == AWAY_FAILED};
    if (!a->what.failed)
        a->what.token = m->token;
    p->n_arrivals++;
    if (p->last != NULL)
        p->last->next = a;
    else
        p->first = a;
    p->last = a;
}

void away_message(struct away *away, int seat, uint32_t incarnation, const void *data,
                  size_t n_bytes)
{
    struct away *p = away;
    struct away_message m;
    struct ferry_error err;
    struct guest *g;
    bool wakes = false;

    if (away_wire_read(&m, data, n_bytes, &err) != FERRY_OK) {
        if (!atomic_exchange(&p->warned, true)) /* once: it may go on for ever */
            LOG_WARNING("away: seat %d sent what no rank may send: %s", seat, err.msg);
        return;
    }
    (void)pthread_mutex_lock(&p->mutex);
    g = m.type == AWAY_MORE || m.type == AWAY_CANCEL || m.type == AWAY_HOLD || m.type == AWAY_CHECK
            ? find_guest(p, seat, incarnation, m.id)
            : NULL;
    switch (m.type) {
    case AWAY_HELLO:
        p->hosts[seat].hello = m.hello;
        p->hosts[seat].incarnation = incarnation;
        wakes = true;
        break;
    case AWAY_START:
        start_guest(p, seat, incarnation, &m);
        break;
    case AWAY_MORE:
        if (g != NULL)
            add_ids(p, g, m.offset, m.ids, m.n_ids);
        break;
    case AWAY_TOKEN:
    case AWAY_FAILED:
        keep_arrival(p, seat, incarnation, &m);
        wakes = true;
        break;
    case AWAY_CANCEL:
        if (g != NULL)
            end_guest(p, g);
        break;
    case AWAY_HOLD:
        if (g != NULL && g->request != NULL)
            request_hold(g->request, m.hold);
        break;
    case AWAY_CHECK:
        if (g == NULL || atomic_load(&g->ended))
            (void)post(p, seat, &(struct away_message){.type = AWAY_FAILED, .id = m.id});
        break;
    case AWAY_TYPES:
        break;
    }
    (void)pthread_mutex_unlock(&p->mutex);
    if (wakes)
        scheduler_wake(p->scheduler);
}

void away_follow(struct away *away)
{
    struct away *p = away;
    uint32_t epoch = fabric_epoch(p->fabric);
    uint64_t live = fabric_live(p->fabric);
    struct fabric_view view;

    if (epoch == p->epoch && live == p->live)
        return;
    p->epoch = epoch;
    p->live = live;
    fabric_view(p->fabric, &view);
    for (int s = 0; s < LIMIT_SEATS; s++) {
        /* One that drains computes what it has; its answers are called back. */
        bool is_live = (view.live >> s & 1) != 0 && view.seats[s].state == SEAT_LIVE;
        p->incarnations[s] = is_live ? view.seats[s].incarnation : 0;
        if (is_live && s != fabric_seat(p->fabric))
            (void)post(p, s, &(struct away_message){.type = AWAY_HELLO, .hello = p->own});
    }
    (void)pthread_mutex_lock(&p->mutex);
    for (struct guest *g = p->guests, *next; g != NULL; g = next) {
        next = g->next;
        if (view.seats[g->seat].state == SEAT_DEAD || view.seats[g->seat].state == SEAT_EMPTY ||
            view.seats[g->seat].incarnation != g->incarnation)
            end_guest(p, g);
    }
    (void)pthread_mutex_unlock(&p->mutex);
}

/* ---- the front door's side ---- */

/* What a seat offers to this rank now. The mutex is held. */
static size_t slots_of(const struct away *p, int seat)
{
    const struct host *h = &p->hosts[seat];

    if (h->hello.n_slots == 0 || h->incarnation != p->incarnations[seat] ||
        h->hello.n_valid != p->own.n_valid || (fabric_live(p->fabric) >> seat & 1) == 0)
        return 0;
    return h->hello.n_slots;
}

int away_pick(struct away *away, size_t n_here)
{
    struct away *p = away;
    size_t fewest = n_here;
    int best = -1;

    (void)pthread_mutex_lock(&p->mutex);
    for (int s = 0; s < LIMIT_SEATS; s++) {
        if (p->hosts[s].n_away < slots_of(p, s) && p->hosts[s].n_away < fewest) {
            fewest = p->hosts[s].n_away;
            best = s;
        }
    }
    (void)pthread_mutex_unlock(&p->mutex);
    return best;
}

bool away_send(struct away *away, struct choice *choice, int seat)
{
    struct away *p = away;
    const struct request *r = choice->request;
    const struct sampler_options *o = &r->options.sampling;
    unsigned char bytes[AWAY_MESSAGE_MAX];
    /* Hosts answer a seat: what they still say to who had it before must not be taken for this. */
    struct away_message m = {.type = AWAY_START,
                             .id = (uint64_t)p->incarnations[fabric_seat(p->fabric)] << 32 |
                                   ++p->n_sent};

    (void)pthread_mutex_lock(&p->mutex);
    bool fits = choice->n_ids <= p->hosts[seat].hello.max_ids && o->n_biases <= AWAY_BIASES_MAX;
    (void)pthread_mutex_unlock(&p->mutex);
    if (!fits)
        return false;
    m.start = (struct away_start){.n_ids = choice->n_ids,
                                  .n_answered = choice->n_ids - r->n_prompt,
                                  .max_tokens = choice->ids_max - choice->n_ids,
                                  .n_valid = p->own.n_valid,
                                  .n_biases = o->n_biases,
                                  .top_k = o->top_k,
                                  .seed = o->seed,
                                  .n_top_logprobs = r->options.n_top_logprobs,
                                  .temperature = o->temperature,
                                  .top_p = o->top_p,
                                  .min_p = o->min_p,
                                  .repetition_penalty = o->repetition_penalty,
                                  .presence_penalty = o->presence_penalty,
                                  .frequency_penalty = o->frequency_penalty,
                                  .choice = (uint32_t)(r->options.first_choice + choice->index),
                                  .ignore_eos = r->options.ignore_eos,
                                  .logprobs = r->options.logprobs};
    memcpy(m.start.cache_key, r->options.cache_key, sizeof m.start.cache_key);
    m.biases = o->biases;
    for (size_t done = 0, n = 0; done < choice->n_ids; done += n) {
        m.ids = choice->ids + done;
        m.n_ids = choice->n_ids - done;
        size_t n_bytes = away_wire_write(&m, bytes, &n);
        if (fabric_send(p->fabric, seat, FABRIC_TOPIC_ENGINE, bytes, n_bytes) != FERRY_OK)
            return false; /* what has been sent of it is forgotten there with the next one */
        m.type = AWAY_MORE;
        m.offset = done + n;
    }
    choice->away_seat = seat;
    choice->away_incarnation = p->incarnations[seat];
    choice->away_id = m.id;
    choice->away_held = false;
    choice->away_heard_ns = clock_now_ns();
    p->hosts[seat].n_away++;
    return true;
}

void away_cancel(struct away *away, struct choice *choice)
{
    FERRY_ASSERT(away->hosts[choice->away_seat].n_away > 0);
    away->hosts[choice->away_seat].n_away--;
    (void)post(away, choice->away_seat,
               &(struct away_message){.type = AWAY_CANCEL, .id = choice->away_id});
    choice->away_id = 0;
}

void away_hold(struct away *away, struct choice *choice, bool hold)
{
    struct away_message m = {.type = AWAY_HOLD, .id = choice->away_id, .hold = hold};

    if (choice->away_held != hold && post(away, choice->away_seat, &m) == FERRY_OK)
        choice->away_held = hold;
}

void away_check(struct away *away, struct choice *choice, uint64_t now_ns)
{
    if (now_ns - choice->away_heard_ns < CHECK_NS)
        return;
    choice->away_heard_ns = now_ns;
    (void)post(away, choice->away_seat,
               &(struct away_message){.type = AWAY_CHECK, .id = choice->away_id});
}

bool away_is_lost(struct away *away, const struct choice *choice)
{
    return (fabric_live(away->fabric) >> choice->away_seat & 1) == 0 ||
           away->incarnations[choice->away_seat] != choice->away_incarnation;
}

bool away_is_from_host(const struct choice *choice, const struct away_arrival *arrival)
{
    return choice->away_id == arrival->id && choice->away_seat == arrival->seat &&
           choice->away_incarnation == arrival->incarnation;
}

bool away_next(struct away *away, struct away_arrival *ret)
{
    struct away *p = away;

    (void)pthread_mutex_lock(&p->mutex);
    struct arrival *a = p->first;
    if (a != NULL) {
        p->first = a->next;
        p->n_arrivals--;
        if (p->first == NULL)
            p->last = NULL;
    }
    (void)pthread_mutex_unlock(&p->mutex);
    if (a == NULL)
        return false;
    *ret = a->what;
    mem_free(a);
    return true;
}
