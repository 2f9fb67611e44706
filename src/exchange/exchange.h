/* One MoE layer of one step over the ranks of a group: plan, dispatch, experts, combine, and the
 * ledger that counts both sides.
 *
 * Why here: this is where a token leaves for its experts and comes back exactly once (law 1), with
 * the same bits whoever computed them (law 2). One rank is the plain case: nothing is sent. Ranks
 * add roads and holders, no arithmetic. It must not know architectures: experts run through
 * callbacks. Contract: docs/numerics.md, "Router and combine tree" and "The exchange".
 *
 * A rank is origin (of its own tokens) and holder (of its experts, for everybody's tokens) at once:
 * while it waits for others it serves them. Engine thread only, but for exchange_counts. */
#ifndef EXCHANGE_EXCHANGE_H
#define EXCHANGE_EXCHANGE_H

#include "device/device.h"
#include "fabric/fabric.h"
#include "ferry/status.h"
#include "placement/placement.h"

#include <stddef.h>
#include <stdint.h>

struct exchange;

/* What ranks of one group must agree on: grows with every change of what travels. */
#define EXCHANGE_PROTOCOL "2"

/* Activation rows as a layer's experts consume them. A32 rows stand a32_bytes apart
 * (act_row_bytes), f32 rows f32_stride floats apart; a part that no expert of the layer takes is
 * NULL. */
struct exchange_rows {
    const unsigned char *a32;
    size_t a32_bytes;
    const float *f32;
    size_t f32_stride;
};

/* Expert work of one layer: slots sorted by expert, expert e owns [begin[e], begin[e + 1]). Slot i
 * reads its row where it lies, the caller's or what came from another rank, and writes row i of
 * out. */
struct exchange_job {
    size_t layer, n_experts, n_slots;
    const int32_t *begin; /* [n_experts + 1] */
    /* [n_slots] each slot's row as A32, and as f32; NULL: rows did not come so */
    const void *const *a32_at, *const *f32_at;
    float *out; /* [n_slots, out_stride] */
    size_t out_stride;
};

/* Computes a job; returns how many rows it computed. */
typedef size_t exchange_experts_fn(void *arg, const struct exchange_job *job);

/* Columns of a group's sum: one row, at n experts (ascending) with their weights. */
struct exchange_sum {
    struct exchange_rows rows;
    size_t row;             /* of rows */
    const int32_t *experts; /* [n] */
    const float *weights;   /* [n] */
    size_t n;
    size_t col, n_cols; /* multiples of 64, but for the end of a row */
    bool stream;        /* dst is read by another rank next: past the own caches, if possible */
};

/* Writes dst [n_cols], each value once. */
typedef void exchange_sum_fn(void *arg, const struct exchange_sum *sum, float *dst);

/* Makes an expert's verified weights resident (law 3); called for every active expert of a job,
 * cheap when they are. Errors are told to the origin, who finds another holder. */
typedef enum ferry_status exchange_resident_fn(void *arg, size_t layer, size_t expert,
                                               struct ferry_error *err);

enum { EXCHANGE_ROUNDS = 2 }; /* micro-batches that may be on their way at once */

struct exchange_options {
    size_t max_tokens; /* of one round */
    size_t max_top_k, max_experts, n_layers, hidden;
    size_t a32_bytes, f32_floats; /* widest row of any layer as it travels: bytes of its A32 part,
                                     floats of its f32 part; 0: no layer has it */
    bool combine_bf16;            /* every node of the tree is rounded to bf16 */
    exchange_experts_fn *run_experts;
    exchange_sum_fn *sum_group; /* NULL: rows of run_experts are added along the tree. Otherwise
                                   this says what a group's sum is, and run_experts need not write:
                                   for measuring the roads without experts. Any device thread */
    exchange_resident_fn *make_resident; /* NULL: all are */
    void *arg;
    struct fabric *fabric; /* NULL: one rank. Outlives the exchange */
    const struct placement *placement;
    uint64_t gather_ns;   /* longest wait for other origins' rows of the same layer; 0: a tenth of
                             the measured expert time */
    uint64_t deadline_ns; /* of one round; 0: 60 s */
    size_t bundle_bytes;  /* that must be saved for rows to cross to another host once and be passed
                             on there; 0: 32 KiB, SIZE_MAX: never */
    uint64_t spin_ns;     /* that a wait looks into lanes before it sleeps; 0 with more threads than
                             cores */
};

/* Counts since the exchange was created; equal sides, or the step is void. In rows: one token at
 * one expert. */
struct exchange_ledger {
    uint64_t routed;       /* that the router of this rank decided */
    uint64_t delivered;    /* of them: computed by an expert, here or elsewhere */
    uint64_t redirected;   /* sent again because their holder was lost or refused */
    uint64_t combined;     /* that entered a token's sum */
    uint64_t late;         /* that came twice, or too late: discarded */
    uint64_t served;       /* computed here for other ranks */
    uint64_t weight_reads; /* experts whose weights were read (once per job) */
    uint64_t jobs;         /* expert jobs */
    uint64_t layers;       /* own layer rounds */
    uint64_t voided;       /* own rounds that did not balance */
    uint64_t bad_messages; /* that no rank may send */
    uint64_t passed_on;    /* messages for ranks of this host, from bundles of other hosts */
    uint64_t others_ns;    /* of own rounds' time: computing others' rows, and waiting */
};

/* FERRY_ERR_NOMEM. */
enum ferry_status exchange_create(struct exchange **ret_exchange, struct device *device,
                                  const struct exchange_options *options,
                                  struct ferry_error *err) FERRY_MUST_CHECK;
void exchange_destroy(struct exchange *exchange);

/* Bytes that exchange_create takes, for the memory plan; and the most slots of one job: the own
 * round's, and as many of others. */
size_t exchange_bytes(const struct exchange_options *options);
size_t exchange_job_slots(const struct exchange_options *options);

/* Ring sizes for a group whose rounds have these options: one whole round to one peer fits when it
 * is not larger than `most` bytes. */
void exchange_lane_sizes(const struct exchange_options *options, size_t most,
                         struct transport_lanes *ret_lanes);

/* What a round is given. */
struct exchange_round_input {
    size_t layer;
    const int32_t
        *experts; /* [n_tokens, top_k] as the router decided: unique per token, < n_experts */
    const float *weights; /* the same shape */
    size_t n_tokens, top_k, n_experts;
    struct exchange_rows rows; /* row t is token t's; stays until exchange_end */
    float *out;                /* [n_tokens, hidden] overwritten with each token's combined sum */
};

/* Starts round `slot`: decides the holders and sends their rows off. Errors: FERRY_ERR_NO_HOLDER,
 * FERRY_ERR_PEER (this rank is not in the group), FERRY_ERR_TIMEOUT; the round is then over. */
enum ferry_status exchange_begin(struct exchange *exchange, size_t slot,
                                 const struct exchange_round_input *input,
                                 struct ferry_error *err) FERRY_MUST_CHECK;

/* Computes what is held here, serves others meanwhile, and combines when everything is back.
 *
 * The sum: leaf = weight * row (one f32 multiply); node = left + right over the expert range halved
 * at lo + (hi - lo) / 2; absent leaves are skipped. Its shape depends on the chosen experts only.
 * Rows owed by a seat that was lost are sent to another holder. FERRY_ERR_LEDGER: rows delivered or
 * combined differ from rows routed (err has the numbers): void, may be tried again.
 * FERRY_ERR_NO_HOLDER, FERRY_ERR_PEER, FERRY_ERR_TIMEOUT (err names peer, phase, wanted, seen).
 * Never allocates. */
enum ferry_status exchange_end(struct exchange *exchange, size_t slot,
                               struct ferry_error *err) FERRY_MUST_CHECK;

/* Gives up rounds that were begun and not ended, after an error elsewhere in the step. What still
 * comes for them is late. */
void exchange_abandon(struct exchange *exchange);

/* exchange_begin and exchange_end of slot 0. */
enum ferry_status exchange_run(struct exchange *exchange, const struct exchange_round_input *input,
                               struct ferry_error *err) FERRY_MUST_CHECK;

/* Serves other ranks' rows for timeout_ns; `once`: returns after it has served something, or when
 * anything rang since the last call (fabric_wake, a change of membership). For ranks without own
 * work. Returns whether anything was served. */
bool exchange_serve(struct exchange *exchange, uint64_t timeout_ns, bool once);

/* The number that own rounds carry as their step; grows with every step of the model. */
void exchange_set_step(struct exchange *exchange, uint64_t step);

const struct exchange_ledger *exchange_ledger(const struct exchange *exchange);

/* Rows that this rank has computed at each expert of a layer, for whomever; ret_counts
 * [n_experts]. Any thread, without a lock: each number was true at some moment of the call, later
 * calls of a thread never see an older one. */
void exchange_counts(const struct exchange *exchange, size_t layer, size_t n_experts,
                     uint64_t *ret_counts);

#endif
