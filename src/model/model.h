/* A loaded model and its forward pass.
 *
 * Why here: `engine` steps sequences through it and sees neither files nor architectures. A model
 * has one owning thread; the compute threads are its device's. The outward header of the room, with
 * config.h and kv.h. */
#ifndef MODEL_MODEL_H
#define MODEL_MODEL_H

#include "device/device.h"
#include "exchange/exchange.h"
#include "ferry/status.h"
#include "file/checkpoint.h"
#include "model/config.h"
#include "model/kv.h"
#include "placement/placement.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct model;

struct model_options {
    size_t step_tokens;  /* most tokens of one step, over all sequences; 0: 512 */
    size_t step_logits;  /* most rows of logits of one step; 0: step_tokens */
    bool no_repack;      /* compute from the file's own layout: slower, no second copy */
    enum dtype kv_dtype; /* F32, F16 or BF16 */
    /* Which experts this rank holds: those that the placement lists for its seat; borrowed,
     * outlives the model. NULL: all of them. */
    const struct placement *placement;
    int seat;
    /* The group whose ranks hold the rest; borrowed, outlives the model. NULL: one rank. Given by
     * model_join when it is found only after model_open. */
    struct fabric *fabric;
    bool combine_bf16;    /* nodes of the combine tree are rounded to bf16: other numerics */
    uint64_t gather_ns;   /* exchange_options.gather_ns */
    size_t bundle_bytes;  /* exchange_options.bundle_bytes */
    size_t micro_batches; /* that a step is cut into: 1 or 2; 0: 2 where rows go to other hosts and
                             are many */
};

/* Bytes that a model takes, known before anything is allocated. */
struct model_plan {
    size_t weights_file;   /* matrices that this seat holds, as the file has them */
    size_t weights_packed; /* the same repacked; 0 with no_repack */
    size_t experts_held;   /* over all layers; by the placement, from the start */
    size_t experts_room;   /* most experts that the loss of any one other seat would bring here */
    size_t room_packed;    /* bytes of them; memory is taken when they come. 0 with no_repack */
    size_t embed_mapped;   /* embedding table, read by row from the file mapping */
    size_t step;           /* activations and scratch of one step */
    size_t kv_per_token;
    size_t active_per_token; /* file bytes of the matrices that one token's step reads: the chosen
                                experts and all the rest */
};

/* Binds the checkpoint (every tensor taken or refused), then reserves memory and packs. The
 * checkpoint stays mapped and must outlive the model. Errors: those of model_config_read,
 * weights_bind, expert_manifest_read and weights_load; FERRY_ERR_ARG (the placement is not for this
 * model, or has no such seat); FERRY_ERR_NOMEM. */
enum ferry_status model_create(struct model **ret_model, struct checkpoint *checkpoint,
                               struct device *device, const struct model_options *options,
                               struct ferry_error *err) FERRY_MUST_CHECK;
void model_destroy(struct model *model);

/* Only the binding and the plan, for `inspect`: model_load has still to be called before the first
 * step. */
enum ferry_status model_open(struct model **ret_model, struct checkpoint *checkpoint,
                             struct device *device, const struct model_options *options,
                             struct ferry_error *err) FERRY_MUST_CHECK;
enum ferry_status model_load(struct model *model, struct ferry_error *err) FERRY_MUST_CHECK;

/* Between model_open and model_load: this rank holds what the placement lists for a seat, and
 * model_plan tells what that takes. fabric: the group whose ranks hold the rest; NULL: only the
 * plan is wanted. Errors: FERRY_ERR_ARG (the placement is not for this model, or has no such seat).
 */
enum ferry_status model_join(struct model *model, struct fabric *fabric,
                             const struct placement *placement, int seat,
                             struct ferry_error *err) FERRY_MUST_CHECK;

/* Ring sizes for the lanes of a group that steps this model: a whole step to one peer fits into
 * `most` bytes or is sent in parts. After model_open. */
void model_lanes(const struct model *model, size_t most, struct transport_lanes *ret_lanes);

const struct model_config *model_config(const struct model *model);
const struct model_plan *model_plan(const struct model *model);
const struct exchange_ledger *model_ledger(const struct model *model);
const struct model_options *model_options(const struct model *model);
struct device *model_device(const struct model *model);

/* The numerics string (docs/numerics.md): answers are comparable bit for bit within one. Borrowed.
 */
const char *model_numerics(const struct model *model);

/* SHA-256 of one expert's file bytes; layers without experts give an empty string. */
void model_expert_hash(const struct model *model, size_t layer, size_t expert, char ret_hex[65]);

/* What the manifest says that this would be; NULL: there is none. Borrowed. */
const char *model_manifest_hash(const struct model *model, size_t layer, size_t expert);

/* The hash over the checkpoint's manifest, which every loaded expert was compared with; NULL: it
 * has none, and nothing was compared. Borrowed. */
const char *model_manifest_root(const struct model *model);

/* Writes the manifest of the files as they are now (reads all of them) to path, where nothing may
 * be yet, and its root. The model need not be loaded. FERRY_ERR_ARG, FERRY_ERR_IO,
 * FERRY_ERR_NOMEM. */
enum ferry_status model_write_manifest(const struct model *model, const char *path,
                                       char ret_root[65], struct ferry_error *err) FERRY_MUST_CHECK;

/* Loads what this seat holds while `live` is the group and does not have yet (the experts of seats
 * that were lost); and the other way round, unloads what it holds no longer. Both tell how many.
 * Engine thread, between steps. Nothing without a placement. Errors: expert_store_load_many. */
enum ferry_status model_load_missing(struct model *model, uint64_t live, size_t *ret_n,
                                     struct ferry_error *err) FERRY_MUST_CHECK;
void model_unload_surplus(struct model *model, uint64_t live, size_t *ret_n);

/* Tensors on the architecture's ignore list. */
size_t model_n_ignored(const struct model *model);

/* One run of consecutive tokens of one sequence inside a step. */
struct model_run {
    const int32_t *ids;          /* [n_tokens], each < n_vocab */
    size_t n_tokens;             /* >= 1 */
    size_t first_position;       /* tokens of the sequence that are already in the pages */
    unsigned char *const *pages; /* page c holds positions [128 c, 128 c + 128); enough for
                                    first_position + n_tokens */
    size_t n_logits;             /* logits wanted for the last n_logits tokens of the run */
};

/* One forward step over runs of distinct sequences: at most step_tokens tokens in all.
 *
 * logits  [sum of n_logits, n_vocab] f32, runs in order, tokens in order; caller's memory
 *
 * Writes K and V of every token into its sequence's pages, by position: repeating a step is
 * harmless. Never allocates. A token's logits do not depend on the other runs, on how its sequence
 * was cut into runs, or on the number of threads (law 2). FERRY_ERR_NONFINITE: a router score or a
 * logit is not finite (err names layer or position); FERRY_ERR_LEDGER after one retry. */
enum ferry_status model_step(struct model *model, const struct model_run *runs, size_t n_runs,
                             float *logits, struct ferry_error *err) FERRY_MUST_CHECK;

/* Computes rows of other ranks for timeout_ns; `once`: until some were computed, or something woke
 * it. For ranks that have no step to do. Returns whether anything was computed. Engine thread. */
bool model_serve(struct model *model, uint64_t timeout_ns, bool once);

/* What happened since the model was loaded; for metrics and messages. */
struct model_counters {
    uint64_t steps, tokens;
    uint64_t kv_overflows; /* finite K or V values that the cache dtype could not hold */
    uint64_t steps_retried;
    uint64_t experts_loaded; /* while serving, because their holders were lost */
};
const struct model_counters *model_counters(const struct model *model);

/* The load of a layer's experts since the model was loaded: ret_counts [n_experts] gets how many
 * rows (one token at one of its experts) each has computed. A round that is computed twice counts
 * twice: a void step, a preempted sequence. False, and ret_counts untouched: no such layer, a layer
 * without experts, or a model that is not loaded. Any thread after model_load, without a lock; see
 * exchange_counts. */
bool model_expert_counts(const struct model *model, size_t layer, uint64_t *ret_counts);

#endif
