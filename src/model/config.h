/* What a checkpoint says about itself, in one form for every architecture and both file formats.
 *
 * Why here: the forward pass reads only this struct; what differs between architectures is data
 * (arch.c), not code. It must not know tensors. */
#ifndef MODEL_CONFIG_H
#define MODEL_CONFIG_H

#include "base/arena.h"
#include "ferry/status.h"
#include "file/checkpoint.h"
#include "routing/router.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum qk_norm {
    QK_NORM_NONE,
    QK_NORM_HEAD,  /* RMS norm of each head's vector (Qwen3) */
    QK_NORM_WHOLE, /* RMS norm of the whole projection, before the split into heads (OLMoE) */
};

/* Which layers a sliding window of config.json applies to, when layer_types does not say. */
enum window_rule {
    WINDOW_NEVER,     /* sliding_window is not read (OLMoE, Granite) */
    WINDOW_ALL,       /* every layer (Mixtral) */
    WINDOW_SWITCHED,  /* every layer, if use_sliding_window (Qwen3) */
    WINDOW_ALTERNATE, /* even layers below max_window_layers, if use_sliding_window (Qwen2) */
};

/* An architecture as data. Everything that a checkpoint's metadata does not say stands here. */
struct model_arch {
    const char *name;      /* model_type of config.json */
    const char *gguf_name; /* general.architecture */
    enum qk_norm qk_norm;
    bool qkv_bias;      /* q, k and v have biases */
    bool shared_expert; /* an always-on expert, scaled by sigmoid(gate . x) */
    bool
        dense_layers; /* mlp_only_layers and decoder_sparse_step decide which layers have experts */
    bool granite_scales;   /* embedding, residual, attention multipliers and a logits divisor */
    bool gguf_interleaved; /* GGUF files of it hold q and k rows permuted for pairwise rotation */
    enum router_score score;
    enum router_post post;
    bool renormalise;          /* fixed, unless renormalise_key */
    bool renormalise_from_key; /* norm_topk_prob of config.json decides (GGUF: `renormalise`) */
    enum window_rule windows;
    double norm_eps, rope_theta; /* when the file does not say */
    const char *experts_key;     /* config.json: number of experts */
    const char *width_key;       /* config.json: width of one expert */
};

/* The architecture of a config.json model_type or a GGUF general.architecture; NULL when Ferry does
 * not know it. A GGUF "llama" file is Mixtral only if it has experts: the caller checks. */
const struct model_arch *model_arch_by_name(const char *name);
const struct model_arch *model_arch_by_gguf_name(const char *name, size_t n_bytes);

/* Names of all known architectures, comma separated, for messages. */
const char *model_arch_names(void);

struct model_config {
    const struct model_arch *arch;
    size_t n_layers, hidden, n_vocab, context; /* context: trained length in tokens */
    size_t n_heads, n_kv_heads, head_dim;
    size_t expert_width, shared_width, dense_width; /* 0: none */
    struct router_policy router;
    float norm_eps;
    double rope_theta;
    size_t n_rope_pairs;
    bool rope_interleaved;
    float qkv_clamp; /* 0: none */
    float attn_scale, embed_scale, residual_scale, logit_divisor;
    bool tied;               /* the head is the embedding table */
    bool attn_bias;          /* q, k, v biases are expected */
    bool *layer_has_experts; /* [n_layers] */
    size_t *layer_window;    /* [n_layers] keys a query sees, 0: all */
    char name[128];          /* of the model, as the file has it; for people */
};

/* Reads and checks a checkpoint's configuration; arrays live in `arena`.
 * FERRY_ERR_UNSUPPORTED: an architecture or a setting that Ferry does not have (named);
 * FERRY_ERR_FORMAT: missing or wrong fields (named); FERRY_ERR_LIMIT; FERRY_ERR_NOMEM. */
enum ferry_status model_config_read(struct model_config *config,
                                    const struct checkpoint *checkpoint, struct arena *arena,
                                    struct ferry_error *err) FERRY_MUST_CHECK;

/* Bytes of K and V of one token over all layers, for the KV plan. */
size_t model_config_kv_bytes_per_token(const struct model_config *config, enum dtype kv);

/* The two readers behind model_config_read, and the checks that both share. Inside of the room. */
enum ferry_status config_read_hf(struct model_config *config, const struct checkpoint *checkpoint,
                                 struct arena *arena, struct ferry_error *err) FERRY_MUST_CHECK;
enum ferry_status config_read_gguf(struct model_config *config, const struct checkpoint *checkpoint,
                                   struct arena *arena, struct ferry_error *err) FERRY_MUST_CHECK;
enum ferry_status config_alloc_layers(struct model_config *config, struct arena *arena,
                                      struct ferry_error *err) FERRY_MUST_CHECK;

#endif
