/* What both configuration readers share: limits, defaults, checks. See config.h. */
#include "model/config.h"

#include "base/error.h"
#include "base/limits.h"
#include "base/size.h"
#include "kernel/kernel.h"

#include <math.h>

enum ferry_status config_alloc_layers(struct model_config *config, struct arena *arena,
                                      struct ferry_error *err)
{
    if (config->n_layers < 1 || config->n_layers > LIMIT_LAYERS)
        return FERRY_FAIL(err, FERRY_ERR_LIMIT, "config: %zu layers is not in 1..%d",
                          config->n_layers, LIMIT_LAYERS);
    config->layer_has_experts =
        arena_array(arena, config->n_layers, sizeof *config->layer_has_experts);
    config->layer_window = arena_array(arena, config->n_layers, sizeof *config->layer_window);
    if (config->layer_has_experts == NULL || config->layer_window == NULL)
        return FERRY_FAIL(err, FERRY_ERR_NOMEM, "config: no memory for %zu layers",
                          config->n_layers);
    return FERRY_OK;
}

struct bound {
    const char *what;
    size_t value, min, max;
};

static enum ferry_status check_bounds(const struct model_config *c, struct ferry_error *err)
{
    const struct bound bounds[] = {
        {"hidden size", c->hidden, 1, LIMIT_HIDDEN},
        {"vocabulary size", c->n_vocab, 1, LIMIT_VOCAB},
        {"context length", c->context, 1, LIMIT_CONTEXT},
        {"number of attention heads", c->n_heads, 1, LIMIT_HEADS},
        {"number of key/value heads", c->n_kv_heads, 1, LIMIT_HEADS},
        {"head size", c->head_dim, 2, LIMIT_HEAD_DIM},
        {"expert width", c->expert_width, 1, LIMIT_HIDDEN},
        {"shared expert width", c->shared_width, 0, LIMIT_HIDDEN},
        {"number of experts times layers", c->router.n_experts * c->n_layers, 1,
         LIMIT_EXPERTS_TOTAL},
        {"width of all heads", c->n_heads * c->head_dim, 1, LIMIT_HIDDEN},
        {"dense width", c->dense_width, 0, LIMIT_HIDDEN * 4},
    };
    for (size_t i = 0; i < sizeof bounds / sizeof bounds[0]; i++) {
        if (bounds[i].value < bounds[i].min || bounds[i].value > bounds[i].max)
            return FERRY_FAIL(err, FERRY_ERR_LIMIT, "config: %s is %zu, not in %zu..%zu",
                              bounds[i].what, bounds[i].value, bounds[i].min, bounds[i].max);
    }
    return FERRY_OK;
}

static enum ferry_status check(const struct model_config *c, struct ferry_error *err)
{
    enum ferry_status st = check_bounds(c, err);
    if (st != FERRY_OK)
        return st;
    if (c->n_heads % c->n_kv_heads != 0)
        return FERRY_FAIL(err, FERRY_ERR_FORMAT,
                          "config: %zu attention heads cannot share %zu key/value heads evenly",
                          c->n_heads, c->n_kv_heads);
    if (c->n_rope_pairs < 1 || 2 * c->n_rope_pairs > c->head_dim)
        return FERRY_FAIL(err, FERRY_ERR_FORMAT,
                          "config: rotary size %zu does not fit heads of %zu", 2 * c->n_rope_pairs,
                          c->head_dim);
    if (!(c->rope_theta > 0) || !isfinite(c->rope_theta))
        return FERRY_FAIL(err, FERRY_ERR_FORMAT, "config: rope theta %g is not a positive number",
                          c->rope_theta);
    if (!(c->norm_eps >= 0) || !isfinite(c->norm_eps))
        return FERRY_FAIL(err, FERRY_ERR_FORMAT, "config: norm epsilon %g is not a number >= 0",
                          (double)c->norm_eps);
    const float scales[] = {c->attn_scale, c->embed_scale, c->residual_scale, c->logit_divisor,
                            c->qkv_clamp};
    for (size_t i = 0; i < sizeof scales / sizeof scales[0]; i++) {
        if (!isfinite(scales[i]))
            return FERRY_FAIL(err, FERRY_ERR_FORMAT, "config: a scale is not finite");
    }
    if (c->logit_divisor == 0)
        return FERRY_FAIL(err, FERRY_ERR_FORMAT, "config: logits are divided by 0");
    for (size_t l = 0; l < c->n_layers; l++) {
        if (!c->layer_has_experts[l] && c->dense_width == 0)
            return FERRY_FAIL(err, FERRY_ERR_FORMAT,
                              "config: layer %zu has no experts and no dense width is given", l);
    }
    return router_policy_check(&c->router, err);
}

enum ferry_status model_config_read(struct model_config *config,
                                    const struct checkpoint *checkpoint, struct arena *arena,
                                    struct ferry_error *err)
{
    *config = (struct model_config){.embed_scale = 1, .residual_scale = 1, .logit_divisor = 1};
    enum ferry_status st = checkpoint_format(checkpoint) == CHECKPOINT_FORMAT_GGUF
                               ? config_read_gguf(config, checkpoint, arena, err)
                               : config_read_hf(config, checkpoint, arena, err);
    if (st != FERRY_OK)
        return st;
    return check(config, err);
}

size_t model_config_kv_bytes_per_token(const struct model_config *config, enum dtype kv)
{
    return 2 * config->n_layers * config->n_kv_heads * config->head_dim * dtype_block_bytes(kv);
}
