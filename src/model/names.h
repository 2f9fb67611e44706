/* What each weight is called in a checkpoint: one table per file format, alternatives included.
 *
 * Why here: adding an architecture means adding names, not code. It must not know shapes. */
#ifndef MODEL_NAMES_H
#define MODEL_NAMES_H

#include "file/checkpoint.h"

#include <stddef.h>

enum weight_role {
    ROLE_EMBED,
    ROLE_FINAL_NORM,
    ROLE_HEAD,
    ROLE_ATTN_NORM,
    ROLE_Q,
    ROLE_K,
    ROLE_V,
    ROLE_O,
    ROLE_Q_BIAS,
    ROLE_K_BIAS,
    ROLE_V_BIAS,
    ROLE_O_BIAS,
    ROLE_Q_NORM,
    ROLE_K_NORM,
    ROLE_FFN_NORM,
    ROLE_ROUTER,
    ROLE_GATE, /* dense layers */
    ROLE_UP,
    ROLE_DOWN,
    ROLE_SHARED_GATE, /* the shared expert */
    ROLE_SHARED_UP,
    ROLE_SHARED_DOWN,
    ROLE_SHARED_SCORE, /* its gating vector */
    ROLE_EXPERT_GATE,  /* one tensor per expert */
    ROLE_EXPERT_UP,
    ROLE_EXPERT_DOWN,
    ROLE_STACKED_GATE, /* one tensor for all experts */
    ROLE_STACKED_UP,
    ROLE_STACKED_DOWN,
    ROLE_STACKED_GATE_UP, /* [E, 2 * width, hidden]: gate rows first */
    ROLE_COUNT,
};

/* Finds the tensor of a role; layer and expert where the name has them. NULL when the checkpoint
 * has none of the alternatives. name (may be NULL) gets the first alternative, for messages. */
const struct checkpoint_tensor *names_find(const struct checkpoint *checkpoint,
                                           enum weight_role role, size_t layer, size_t expert,
                                           char *name, size_t name_size);

/* Tensors that are read by nobody, on purpose, and why; NULL when `name` is not one of them. */
const char *names_ignored(const char *name);

#endif
