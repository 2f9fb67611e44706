/* Tables of tensor names. See names.h. In a pattern, %L is the layer, %E the expert, '|' separates
 * alternatives. */
#include "model/names.h"

#include <stdio.h>
#include <string.h>

#define LAYER   "model.layers.%L."
#define MIXTRAL LAYER "block_sparse_moe."

static const char *const HF[ROLE_COUNT] = {
    [ROLE_EMBED] = "model.embed_tokens.weight",
    [ROLE_FINAL_NORM] = "model.norm.weight",
    [ROLE_HEAD] = "lm_head.weight",
    [ROLE_ATTN_NORM] = LAYER "input_layernorm.weight",
    [ROLE_Q] = LAYER "self_attn.q_proj.weight",
    [ROLE_K] = LAYER "self_attn.k_proj.weight",
    [ROLE_V] = LAYER "self_attn.v_proj.weight",
    [ROLE_O] = LAYER "self_attn.o_proj.weight",
    [ROLE_Q_BIAS] = LAYER "self_attn.q_proj.bias",
    [ROLE_K_BIAS] = LAYER "self_attn.k_proj.bias",
    [ROLE_V_BIAS] = LAYER "self_attn.v_proj.bias",
    [ROLE_O_BIAS] = LAYER "self_attn.o_proj.bias",
    [ROLE_Q_NORM] = LAYER "self_attn.q_norm.weight",
    [ROLE_K_NORM] = LAYER "self_attn.k_norm.weight",
    [ROLE_FFN_NORM] = LAYER "post_attention_layernorm.weight",
    [ROLE_ROUTER] = LAYER "mlp.gate.weight|" MIXTRAL "gate.weight|" MIXTRAL
                          "router.layer.weight|" MIXTRAL "router.weight",
    [ROLE_GATE] = LAYER "mlp.gate_proj.weight",
    [ROLE_UP] = LAYER "mlp.up_proj.weight",
    [ROLE_DOWN] = LAYER "mlp.down_proj.weight",
    [ROLE_SHARED_GATE] = LAYER "mlp.shared_expert.gate_proj.weight",
    [ROLE_SHARED_UP] = LAYER "mlp.shared_expert.up_proj.weight",
    [ROLE_SHARED_DOWN] = LAYER "mlp.shared_expert.down_proj.weight",
    [ROLE_SHARED_SCORE] = LAYER "mlp.shared_expert_gate.weight",
    [ROLE_EXPERT_GATE] = LAYER "mlp.experts.%E.gate_proj.weight|" MIXTRAL "experts.%E.w1.weight",
    [ROLE_EXPERT_UP] = LAYER "mlp.experts.%E.up_proj.weight|" MIXTRAL "experts.%E.w3.weight",
    [ROLE_EXPERT_DOWN] = LAYER "mlp.experts.%E.down_proj.weight|" MIXTRAL "experts.%E.w2.weight",
    [ROLE_STACKED_DOWN] =
        LAYER "mlp.experts.down_proj|" MIXTRAL "experts.down_proj|" MIXTRAL "output_linear.weight",
    [ROLE_STACKED_GATE_UP] = LAYER "mlp.experts.gate_up_proj|" MIXTRAL
                                   "experts.gate_up_proj|" MIXTRAL "input_linear.weight",
};

#define BLOCK "blk.%L."

static const char *const GGUF[ROLE_COUNT] = {
    [ROLE_EMBED] = "token_embd.weight",
    [ROLE_FINAL_NORM] = "output_norm.weight",
    [ROLE_HEAD] = "output.weight",
    [ROLE_ATTN_NORM] = BLOCK "attn_norm.weight",
    [ROLE_Q] = BLOCK "attn_q.weight",
    [ROLE_K] = BLOCK "attn_k.weight",
    [ROLE_V] = BLOCK "attn_v.weight",
    [ROLE_O] = BLOCK "attn_output.weight",
    [ROLE_Q_BIAS] = BLOCK "attn_q.bias",
    [ROLE_K_BIAS] = BLOCK "attn_k.bias",
    [ROLE_V_BIAS] = BLOCK "attn_v.bias",
    [ROLE_O_BIAS] = BLOCK "attn_output.bias",
    [ROLE_Q_NORM] = BLOCK "attn_q_norm.weight",
    [ROLE_K_NORM] = BLOCK "attn_k_norm.weight",
    [ROLE_FFN_NORM] = BLOCK "ffn_norm.weight",
    [ROLE_ROUTER] = BLOCK "ffn_gate_inp.weight",
    [ROLE_GATE] = BLOCK "ffn_gate.weight",
    [ROLE_UP] = BLOCK "ffn_up.weight",
    [ROLE_DOWN] = BLOCK "ffn_down.weight",
    [ROLE_SHARED_GATE] = BLOCK "ffn_gate_shexp.weight",
    [ROLE_SHARED_UP] = BLOCK "ffn_up_shexp.weight",
    [ROLE_SHARED_DOWN] = BLOCK "ffn_down_shexp.weight",
    [ROLE_SHARED_SCORE] = BLOCK "ffn_gate_inp_shexp.weight",
    [ROLE_EXPERT_GATE] = BLOCK "ffn_gate.%E.weight", /* Mixtral files from before April 2024 */
    [ROLE_EXPERT_UP] = BLOCK "ffn_up.%E.weight",
    [ROLE_EXPERT_DOWN] = BLOCK "ffn_down.%E.weight",
    [ROLE_STACKED_GATE] = BLOCK "ffn_gate_exps.weight",
    [ROLE_STACKED_UP] = BLOCK "ffn_up_exps.weight",
    [ROLE_STACKED_DOWN] = BLOCK "ffn_down_exps.weight",
    [ROLE_STACKED_GATE_UP] = BLOCK "ffn_gate_up_exps.weight",
};

/* Writes one alternative of a pattern; returns the text behind it (past the '|'), NULL when it was
 * the last. */
static const char *expand(const char *pattern, size_t layer, size_t expert, char *name, size_t size)
{
    size_t n = 0;

    for (; *pattern != 0 && *pattern != '|'; pattern++) {
        if (*pattern == '%') {
            pattern++;
            int wrote = snprintf(name + n, size - n, "%zu", *pattern == 'L' ? layer : expert);
            n += wrote > 0 ? (size_t)wrote : 0;
        } else if (n + 1 < size) {
            name[n++] = *pattern;
        }
        if (n >= size)
            n = size - 1;
    }
    name[n] = 0;
    return *pattern == '|' ? pattern + 1 : NULL;
}

const struct checkpoint_tensor *names_find(const struct checkpoint *checkpoint,
                                           enum weight_role role, size_t layer, size_t expert,
                                           char *name, size_t name_size)
{
    const char *pattern =
        checkpoint_format(checkpoint) == CHECKPOINT_FORMAT_GGUF ? GGUF[role] : HF[role];
    bool first = true;
    char text[160];

    if (name != NULL && name_size > 0)
        name[0] = 0;
    while (pattern != NULL) {
        pattern = expand(pattern, layer, expert, text, sizeof text);
        if (first && name != NULL)
            (void)snprintf(name, name_size, "%s", text);
        first = false;
        const struct checkpoint_tensor *tensor = checkpoint_find(checkpoint, text);
        if (tensor != NULL)
            return tensor;
    }
    return NULL;
}

const char *names_ignored(const char *name)
{
    size_t n = strlen(name);
    const char *suffix = ".rotary_emb.inv_freq";

    if (n > strlen(suffix) && strcmp(name + n - strlen(suffix), suffix) == 0)
        return "rotary frequencies, which follow from rope_theta";
    return NULL;
}
