/* The architectures as data. See config.h. Source of each row: the model's reference
 * implementation; the traps are in docs/numerics.md, "Routers". */
#include "model/config.h"

#include <string.h>

static const struct model_arch ARCHS[] = {
    {
        .name = "mixtral",
        .gguf_name = "llama",
        .gguf_interleaved = true,
        .score = ROUTER_SCORE_SOFTMAX,
        .post = ROUTER_POST_GATHER,
        .renormalise = true,
        .windows = WINDOW_ALL,
        .norm_eps = 1e-5,
        .rope_theta = 1e6,
        .experts_key = "num_local_experts",
        .width_key = "intermediate_size",
    },
    {
        .name = "qwen2_moe",
        .gguf_name = "qwen2moe",
        .qkv_bias = true,
        .shared_expert = true,
        .dense_layers = true,
        .score = ROUTER_SCORE_SOFTMAX,
        .post = ROUTER_POST_GATHER,
        .renormalise = false,
        .renormalise_from_key = true,
        .windows = WINDOW_ALTERNATE,
        .norm_eps = 1e-6,
        .rope_theta = 1e4,
        .experts_key = "num_experts",
        .width_key = "moe_intermediate_size",
    },
    {
        .name = "qwen3_moe",
        .gguf_name = "qwen3moe",
        .qk_norm = QK_NORM_HEAD,
        .dense_layers = true,
        .score = ROUTER_SCORE_SOFTMAX,
        .post = ROUTER_POST_GATHER,
        .renormalise =
            true, /* GGUF carries no key: every released checkpoint has norm_topk_prob = true */
        .renormalise_from_key = true,
        .windows = WINDOW_SWITCHED,
        .norm_eps = 1e-6,
        .rope_theta = 1e4,
        .experts_key = "num_experts",
        .width_key = "moe_intermediate_size",
    },
    {
        .name = "olmoe",
        .gguf_name = "olmoe",
        .qk_norm = QK_NORM_WHOLE,
        .score = ROUTER_SCORE_SOFTMAX,
        .post = ROUTER_POST_GATHER,
        .renormalise = false,
        .renormalise_from_key = true,
        .windows = WINDOW_NEVER,
        .norm_eps = 1e-5,
        .rope_theta = 1e4,
        .experts_key = "num_experts",
        .width_key = "intermediate_size",
    },
    {
        .name = "granitemoe",
        .gguf_name = "granitemoe",
        .granite_scales = true,
        .gguf_interleaved = true,
        .score = ROUTER_SCORE_NONE,
        .post = ROUTER_POST_SOFTMAX,
        .windows = WINDOW_NEVER,
        .norm_eps = 1e-6,
        .rope_theta = 1e4,
        .experts_key = "num_local_experts",
        .width_key = "intermediate_size",
    },
};

const struct model_arch *model_arch_by_name(const char *name)
{
    for (size_t i = 0; i < sizeof ARCHS / sizeof ARCHS[0]; i++) {
        if (strcmp(ARCHS[i].name, name) == 0)
            return &ARCHS[i];
    }
    return NULL;
}

const struct model_arch *model_arch_by_gguf_name(const char *name, size_t n_bytes)
{
    for (size_t i = 0; i < sizeof ARCHS / sizeof ARCHS[0]; i++) {
        if (strlen(ARCHS[i].gguf_name) == n_bytes && memcmp(ARCHS[i].gguf_name, name, n_bytes) == 0)
            return &ARCHS[i];
    }
    return NULL;
}

const char *model_arch_names(void)
{
    return "mixtral, qwen2_moe, qwen3_moe, olmoe, granitemoe";
}
