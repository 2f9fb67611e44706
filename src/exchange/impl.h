/* Inside of the room: an exchange's state, shared by round.c (own tokens) and serve.c (others'). */
#ifndef EXCHANGE_IMPL_H
#define EXCHANGE_IMPL_H

#include "base/arena.h"
#include "base/size.h"
#include "exchange/exchange.h"
#include "exchange/job.h"
#include "exchange/plan.h"
#include "exchange/wire.h"

#include <stdatomic.h>

enum {
    INBOX_MAX = 64,   /* messages taken and not released, of one lane */
    SOURCES_MAX = 64, /* messages of one job, with the own part */
    ROWS_ENOUGH = 64, /* per expert, see impl_has_enough */
    PART_BITS = 20,   /* of a message's id; the others are its round's generation */
};

/* Messages of one lane, in the order they were taken, which is the order of release. A ring: a
 * message keeps its place until it is released. */
struct inbox {
    struct fabric_message messages[INBOX_MAX];
    bool done[INBOX_MAX];
    bool own[INBOX_MAX];      /* requests: there is something for this rank in it */
    uint64_t pass[INBOX_MAX]; /* bundles: bit per member that has still to be passed on */
    size_t first, n;
    size_t n_pass;        /* places with something to pass on */
    size_t n_bytes;       /* of payload that is not released */
    uint32_t incarnation; /* of the lanes */
};

struct round_leaf {
    int32_t id;           /* first expert of the group */
    uint32_t part, group; /* in the plan */
};

struct round {
    bool open;
    uint64_t generation; /* of every begin; upper bits of the shipments' ids */
    struct exchange_round_input input;
    unsigned flags; /* WIRE_A32, WIRE_F32 */
    struct plan plan;
    uint64_t refused;  /* seats that would not compute */
    uint64_t straight; /* seats that rows were not passed on to: they are sent there */
    size_t n_owed;     /* parts that are not BACK and not LOST */
    size_t n_own_sums; /* rows of own_sums in use */
    float *own_sums;   /* [max_slots, hidden] sums that could not stay where they were made */
    struct round_leaf *leaves; /* [max_tokens, max_top_k] groups that are here */
    uint32_t *n_leaves;        /* [max_tokens] */
    uint32_t *n_missing;       /* [max_tokens] groups that are not here yet */
    uint32_t *ready;           /* [max_tokens] scratch: tokens to be added up */
    size_t lazy_part;          /* own part whose rows are still in the job; SIZE_MAX: none */
    struct job_source lazy;    /* its source in the job, the first one */
    size_t delivered, combined;
    bool direct; /* the one part's sums are the output */
    uint64_t start_ns, gather_until_ns;
    uint32_t epoch; /* at the last look for losses */
};

/* What is known of another origin: where it is. */
struct origin {
    uint64_t step;
    uint32_t layer;
    bool active; /* has sent anything yet */
    bool whole;  /* the last part of `layer` has come */
};

struct exchange {
    struct device *device;
    struct exchange_options options;
    struct wire_shape shape;
    struct exchange_ledger ledger;
    struct job job;
    struct round rounds[EXCHANGE_ROUNDS];
    struct arena arena;
    uint64_t step, generation;
    double job_ns;                    /* of a job with own rows, smoothed */
    uint32_t own_layer, before_layer; /* own rounds: the last two distinct layers */

    /* Only with a fabric. */
    int self;
    uint64_t *holders;    /* [n_layers, max_experts] */
    uint64_t *layer_live; /* [n_layers] seats that a layer's holders were found for; 0: none yet */
    uint64_t *others;     /* [max_experts] scratch: holders without those that refused */
    enum link_class links[LIMIT_SEATS];
    uint64_t mates[LIMIT_SEATS]; /* [seat] seats at that seat's host */
    uint64_t roads_live;         /* for which links and mates were found */
    uint32_t roads_epoch;
    uint32_t heard[LIMIT_SEATS]; /* incarnation that anything has come from; 0: none */
    uint32_t *bundle_row;        /* [max_tokens] a token's row in the bundle, plus one; 0: none */
    uint32_t *bundle_tokens;     /* [max_tokens] scratch */
    uint32_t *pass_rows;         /* [max_slots] scratch */
    struct inbox (*inboxes)[LANE_N_CHANNELS]; /* [n_seats] */
    struct origin origins[LIMIT_SEATS];
    bool clogged[LIMIT_SEATS];          /* had no room for an answer, for REPLY_NS */
    uint32_t seen_rings;                /* at the last look of exchange_serve */
    struct exchange_pair *served_pairs; /* [2 * max_slots] private copies for one job */
    int next_seat;                      /* whose messages are looked at first: in turn */
    bool in_job;                        /* requests stay as they are */

    /* [n_layers, max_experts]. Written by the engine thread only, so that adding needs no locked
     * instruction; read by exchange_counts from any thread. Relaxed: they order nothing. */
    atomic_uint_fast64_t *counts;
    bool *told; /* [n_layers, max_experts] that it cannot be had here: once, until it can */
};

/* Takes what has come: replies go to their rounds, requests wait. Returns whether anything came. */
bool serve_collect(struct exchange *x);

/* The same again and again, for options.spin_ns at most, and until_ns: a lane's head is seen
 * sooner than the bell that is rung after it. */
bool serve_poll(struct exchange *x, uint64_t until_ns);

/* Runs one job: own part `part` of `round`, together with the waiting requests of its layer. Sums
 * go out. */
void serve_job(struct exchange *x, struct round *round, size_t part);

/* Runs one job of waiting requests of one layer, but not of layer `except` (SIZE_MAX: of any).
 * Returns false when there are none. */
bool serve_others(struct exchange *x, size_t except);

/* Reserves room to a seat; meanwhile serves others (to send a request) or only collects (a reply).
 * *ret_incarnation: of the lanes that it was reserved in; they stay in use until the commit if
 * nobody calls fabric_lanes before. Errors: FERRY_ERR_PEER (the seat is lost), FERRY_ERR_TIMEOUT.
 */
enum ferry_status serve_reserve(struct exchange *x, int seat, enum lane_channel channel,
                                size_t n_bytes, void **ret_data, uint32_t *ret_incarnation,
                                struct ferry_error *err);

/* Combining (combine.c). A round's accounts of what its tokens wait for are made by combine_begin;
 * combine_expect counts the groups of parts from first_part on as missing; combine_forget counts
 * those of a part that is lost as not. */
void combine_begin(struct round *round);
void combine_expect(struct round *round, size_t first_part);
void combine_forget(struct round *round, size_t part);

/* A part's sums are here (part->sums, or lazily in the job): adds up the tokens that have all
 * theirs, and gives back the messages that nobody needs any more. */
void combine_part(struct exchange *x, struct round *round, size_t part);

/* Copies a part's sums out of the lane. */
void combine_keep(struct exchange *x, struct round *round, size_t part);

/* The job's memory is needed: makes the sums of rows that are still there. */
void combine_flush(struct exchange *x);

/* A request's place has nothing left to be done when its own part is answered and all others are
 * passed on: then it is given back. */
void serve_settle(struct exchange *x, struct inbox *inbox, size_t place);

/* The message in a place of an inbox is no longer needed. */
void serve_done(struct exchange *x, struct inbox *inbox, size_t place);

/* Takes a reply in. `place`: of the message in its inbox. Returns whether it is done with. */
bool round_reply(struct exchange *x, struct inbox *inbox, size_t place);

/* The id of the message that carries a part. */
static inline uint64_t round_message_id(const struct round *round, size_t part)
{
    return round->generation << PART_BITS | part;
}

/* Whether a job of more pairs than these reads weights no less often (a tile of device_ffn for each
 * expert), and would only be done later. */
static inline bool impl_has_enough(const struct exchange *x, size_t n_pairs)
{
    return n_pairs >= ROWS_ENOUGH * x->shape.n_experts;
}

/* Bytes of replies that may stay in a lane until the round ends, and of one reply of several sums.
 * A quarter of the ring: of the rest, which may be in two pieces, one always has room for another
 * reply; otherwise a holder could wait for room that only its own further replies would free. */
static inline size_t impl_held_most(const struct exchange *x)
{
    return fabric_max_payload(x->options.fabric, LANE_REPLY) / 2;
}

/* The longest wait for rows of other origins. */
static inline uint64_t impl_gather_ns(const struct exchange *x)
{
    return x->options.gather_ns > 0 ? x->options.gather_ns : (uint64_t)(x->job_ns * 0.1);
}

/* Whether this seat may be sent work. */
static inline bool impl_is_live(const struct exchange *x, int seat)
{
    return (fabric_live(x->options.fabric) >> seat & 1) != 0;
}

static inline size_t impl_sum_bytes(const struct exchange *x)
{
    return x->options.hidden * (x->options.combine_bf16 ? sizeof(uint16_t) : sizeof(float));
}

#endif
