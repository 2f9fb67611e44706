/* A model's weights: bound to their tensors, then packed for the device.
 *
 * Why apart from the forward pass: binding is where a checkpoint is refused. Every tensor is taken
 * exactly once, or stands on the ignore list, or the load fails and names it (law 5). */
#ifndef MODEL_WEIGHTS_H
#define MODEL_WEIGHTS_H

#include "base/arena.h"
#include "device/device.h"
#include "expert/store.h"
#include "file/checkpoint.h"
#include "model/config.h"

struct layer_weights {
    const float *attn_norm, *ffn_norm; /* [hidden] */
    struct weight q, k, v, o;
    const float *q_bias, *k_bias, *v_bias, *o_bias; /* NULL: none */
    const float *q_norm, *k_norm; /* NULL: none; [head_dim] or the whole projection */
    struct weight router;         /* [n_experts, hidden]; layers with experts */
    struct ffn_weights dense;     /* layers without */
    struct ffn_weights shared;    /* shared expert; shared.gate.rows NULL: none */
    struct weight shared_score;   /* [1, hidden] */
};

struct model_weights {
    struct weight embed; /* used by row, from the file mapping */
    struct weight head;
    const float *final_norm;
    struct layer_weights *layers; /* [n_layers] */
    size_t n_ignored;             /* tensors on the ignore list */
    size_t packed_bytes;          /* of all matrices but the experts, which the store counts */
    size_t matrix_bytes;          /* the same in the file */
    size_t group_bytes_max;       /* of the largest column group */
};

/* Finds, checks and takes every tensor; the experts go into `store`. Reads norms and biases,
 * touches no matrix data. FERRY_ERR_FORMAT: a missing tensor, a wrong shape, or tensors left over;
 * err names the tensor, wanted and seen. */
enum ferry_status weights_bind(struct model_weights *weights, struct expert_store *store,
                               const struct model_config *config, struct checkpoint *checkpoint,
                               struct arena *arena, struct ferry_error *err) FERRY_MUST_CHECK;

/* Where weights go. */
struct weights_home {
    unsigned char *memory; /* [weights_memory_bytes]; NULL: nothing is packed (no_repack) */
    const struct placement *placement; /* NULL: all experts, in `memory`, layer by layer */
    int seat;                          /* with a placement: its experts, in the store's slots */
};

/* Bytes of `memory`: everything, or without the experts when a placement says who holds them. */
size_t weights_memory_bytes(const struct model_weights *weights, const struct expert_store *store,
                            const struct placement *placement);

/* Packs every matrix that `home` asks for, makes the experts resident (verified against the store's
 * manifest), and lets go of the file pages on the way, so that the resident set stays near the
 * weights' own size. Errors: those of expert_store_reserve and expert_store_load_many. */
enum ferry_status weights_load(struct model_weights *weights, struct expert_store *store,
                               const struct model_config *config,
                               const struct checkpoint *checkpoint, struct device *device,
                               const struct weights_home *home,
                               struct ferry_error *err) FERRY_MUST_CHECK;

#endif
