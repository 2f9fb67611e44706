/* config.json to struct model_config. See config.h. Field names and defaults: the Hugging Face
 * configuration classes. */
#include "model/config.h"

#include "base/error.h"
#include "base/limits.h"
#include "file/json.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* One object being read; the first error sticks, so that a reader is a list of fields. */
struct reader {
    const json_t *json;
    struct ferry_error *err;
    enum ferry_status status;
};

static void fail_type(struct reader *r, const char *key, const char *wanted)
{
    if (r->status == FERRY_OK)
        r->status =
            FERRY_FAIL(r->err, FERRY_ERR_FORMAT, "config.json: '%s' is not %s", key, wanted);
}

/* SIZE_MAX as fallback: the key must exist. */
static size_t get_size(struct reader *r, const char *key, size_t fallback)
{
    uint64_t value = 0;
    bool bad = false;

    if (json_get_u64(r->json, key, &value, &bad)) {
        if (value <= LIMIT_CONTEXT)
            return (size_t)value;
        if (r->status == FERRY_OK)
            r->status =
                FERRY_FAIL(r->err, FERRY_ERR_LIMIT, "config.json: '%s' is %llu, more than %d", key,
                           (unsigned long long)value, LIMIT_CONTEXT);
        return 0;
    }
    if (bad)
        fail_type(r, key, "a whole number >= 0");
    else if (fallback == SIZE_MAX && r->status == FERRY_OK)
        r->status = FERRY_FAIL(r->err, FERRY_ERR_FORMAT, "config.json: '%s' is missing", key);
    return fallback == SIZE_MAX ? 0 : fallback;
}

static double get_number(struct reader *r, const char *key, double fallback)
{
    double value = fallback;
    bool bad = false;

    if (!json_get_f64(r->json, key, &value, &bad) && bad)
        fail_type(r, key, "a number");
    return value;
}

static bool get_bool(struct reader *r, const char *key, bool fallback)
{
    bool value = fallback, bad = false;

    if (!json_get_bool(r->json, key, &value, &bad) && bad)
        fail_type(r, key, "true or false");
    return value;
}

static void unsupported(struct reader *r, const char *key, const char *value, const char *hint)
{
    if (r->status == FERRY_OK)
        r->status = FERRY_FAIL(r->err, FERRY_ERR_UNSUPPORTED,
                               "config.json: '%s' = %s is not supported%s", key, value, hint);
}

/* A member that is an object; NULL when it is absent or null. */
static const json_t *get_object(struct reader *r, const char *key)
{
    const json_t *value = json_object_get(r->json, key);

    if (value == NULL || json_is_null(value))
        return NULL;
    if (!json_is_object(value)) {
        fail_type(r, key, "an object");
        return NULL;
    }
    return value;
}

static const char *get_string(struct reader *r, const char *key)
{
    const char *value = NULL;
    bool bad = false;

    if (!json_get_string(r->json, key, &value, &bad) && bad)
        fail_type(r, key, "a string");
    return value;
}

static void check_partial(struct reader *r)
{
    double partial = get_number(r, "partial_rotary_factor", 1);
    char text[40];

    (void)snprintf(text, sizeof text, "%g", partial);
    if (partial != 1)
        unsupported(r, "partial_rotary_factor", text, "");
}

/* Rotary settings stand in rope_theta and rope_scaling, or (newer files) in rope_parameters. */
static void read_rope(struct reader *r, struct model_config *c)
{
    static const char *const KEYS[] = {"rope_scaling", "rope_parameters"};

    c->rope_theta = get_number(r, "rope_theta", c->arch->rope_theta);
    check_partial(r);
    for (int i = 0; i < 2; i++) {
        const json_t *object = get_object(r, KEYS[i]); /* may set r->status: read first */
        struct reader inner = {object, r->err, r->status};
        c->rope_theta = get_number(&inner, "rope_theta", c->rope_theta);
        check_partial(&inner);
        const char *type = get_string(&inner, "rope_type");
        if (type == NULL)
            type = get_string(&inner, "type");
        if (type != NULL && strcmp(type, "default") != 0)
            unsupported(&inner, "rope_type", type, "; remove it to run at the trained length");
        r->status = inner.status;
    }
}

/* Which layers are dense: mlp_only_layers, and every layer that decoder_sparse_step skips. */
static void read_sparse_layers(struct reader *r, struct model_config *c)
{
    size_t step = get_size(r, "decoder_sparse_step", 1);
    const json_t *dense = json_object_get(r->json, "mlp_only_layers");

    if (r->status == FERRY_OK && step == 0)
        r->status = FERRY_FAIL(r->err, FERRY_ERR_FORMAT, "config.json: 'decoder_sparse_step' is 0");
    if (r->status != FERRY_OK)
        return;
    for (size_t l = 0; l < c->n_layers; l++)
        c->layer_has_experts[l] = (l + 1) % step == 0;
    if (dense == NULL || json_is_null(dense))
        return;
    for (size_t i = 0; i < json_array_size(dense); i++) {
        const json_t *item = json_array_get(dense, i);
        json_int_t layer = json_integer_value(item);
        if (!json_is_integer(item) || layer < 0 || (size_t)layer >= c->n_layers) {
            fail_type(r, "mlp_only_layers", "a list of layer numbers");
            return;
        }
        c->layer_has_experts[layer] = false;
    }
    if (!json_is_array(dense))
        fail_type(r, "mlp_only_layers", "a list");
}

/* What layer_types says of one layer: full or sliding attention, or neither is known to Ferry. */
static bool read_layer_type(struct reader *r, const json_t *types, size_t layer)
{
    const char *type = json_string_value(json_array_get(types, layer));

    if (type == NULL) {
        fail_type(r, "layer_types", "a list of one name per layer");
        return false;
    }
    if (strcmp(type, "sliding_attention") != 0 && strcmp(type, "full_attention") != 0)
        unsupported(r, "layer_types", type, "");
    return strcmp(type, "sliding_attention") == 0;
}

/* Sliding windows by the architecture's rule. */
static void read_windows(struct reader *r, struct model_config *c)
{
    enum window_rule rule = c->arch->windows;
    bool switched = rule == WINDOW_SWITCHED || rule == WINDOW_ALTERNATE;
    const json_t *types = json_object_get(r->json, "layer_types");
    const json_t *none = json_object_get(r->json, "sliding_window");

    if (rule == WINDOW_NEVER || (switched && !get_bool(r, "use_sliding_window", false)))
        return;
    size_t window = get_size(r, "sliding_window", switched && none == NULL ? 4096 : 0);
    size_t below = rule == WINDOW_ALTERNATE ? get_size(r, "max_window_layers", 28) : c->n_layers;
    if (r->status != FERRY_OK || window == 0)
        return;
    bool typed = types != NULL && !json_is_null(types);
    for (size_t l = 0; l < c->n_layers; l++) {
        bool sliding = l < below && (rule != WINDOW_ALTERNATE || l % 2 == 0);
        if (typed)
            sliding = read_layer_type(r, types, l);
        c->layer_window[l] = sliding ? window : 0;
    }
}

static void read_router(struct reader *r, struct model_config *c)
{
    const struct model_arch *arch = c->arch;

    c->router = (struct router_policy){
        .score = arch->score, .post = arch->post, .renormalise = arch->renormalise, .scale = 1};
    c->router.n_experts = get_size(r, arch->experts_key, SIZE_MAX);
    c->router.top_k = get_size(r, "num_experts_per_tok", SIZE_MAX);
    if (arch->renormalise_from_key) /* the configuration classes default to false */
        c->router.renormalise = get_bool(r, "norm_topk_prob", false);
}

static void read_shape(struct reader *r, struct model_config *c)
{
    const struct model_arch *arch = c->arch;

    c->n_layers = get_size(r, "num_hidden_layers", SIZE_MAX);
    c->hidden = get_size(r, "hidden_size", SIZE_MAX);
    c->n_vocab = get_size(r, "vocab_size", SIZE_MAX);
    c->context = get_size(r, "max_position_embeddings", 4096);
    c->n_heads = get_size(r, "num_attention_heads", SIZE_MAX);
    c->n_kv_heads = get_size(r, "num_key_value_heads", c->n_heads);
    c->head_dim = get_size(r, "head_dim", c->n_heads > 0 ? c->hidden / c->n_heads : 0);
    c->n_rope_pairs = c->head_dim / 2;
    c->expert_width = get_size(r, arch->width_key, SIZE_MAX);
    c->shared_width =
        arch->shared_expert ? get_size(r, "shared_expert_intermediate_size", SIZE_MAX) : 0;
    c->dense_width = arch->dense_layers ? get_size(r, "intermediate_size", 0) : 0;
    c->norm_eps = (float)get_number(r, "rms_norm_eps", arch->norm_eps);
    c->tied = get_bool(r, "tie_word_embeddings", false);
    c->attn_bias =
        arch->qkv_bias ? get_bool(r, "qkv_bias", true) : get_bool(r, "attention_bias", false);
    c->qkv_clamp = (float)get_number(r, "clip_qkv", 0);
    c->attn_scale = c->head_dim > 0 ? (float)(1.0 / sqrt((double)c->head_dim)) : 0;
    if (!arch->granite_scales)
        return;
    c->attn_scale = (float)get_number(r, "attention_multiplier", 1);
    c->embed_scale = (float)get_number(r, "embedding_multiplier", 1);
    c->residual_scale = (float)get_number(r, "residual_multiplier", 1);
    c->logit_divisor = (float)get_number(r, "logits_scaling", 1);
}

static void check_settings(struct reader *r)
{
    const char *act = get_string(r, "hidden_act");

    if (act != NULL && strcmp(act, "silu") != 0 && strcmp(act, "swish") != 0)
        unsupported(r, "hidden_act", act, "; silu is");
    if (get_object(r, "quantization_config") != NULL)
        unsupported(r, "quantization_config", "an object",
                    " (quantised safetensors); use a GGUF file");
}

enum ferry_status config_read_hf(struct model_config *config, const struct checkpoint *checkpoint,
                                 struct arena *arena, struct ferry_error *err)
{
    struct reader r = {checkpoint_config(checkpoint), err, FERRY_OK};
    const char *type = NULL;

    if (!json_get_string(r.json, "model_type", &type, NULL))
        return FERRY_FAIL(err, FERRY_ERR_FORMAT, "config.json: 'model_type' is missing");
    config->arch = model_arch_by_name(type);
    if (config->arch == NULL)
        return FERRY_FAIL(err, FERRY_ERR_UNSUPPORTED,
                          "config.json: model_type '%s' is not supported; these are: %s", type,
                          model_arch_names());
    (void)snprintf(config->name, sizeof config->name, "%s", type);
    read_shape(&r, config);
    read_router(&r, config);
    read_rope(&r, config);
    check_settings(&r);
    if (r.status != FERRY_OK)
        return r.status;
    enum ferry_status st = config_alloc_layers(config, arena, err);
    if (st != FERRY_OK)
        return st;
    for (size_t l = 0; l < config->n_layers; l++)
        config->layer_has_experts[l] = true;
    if (config->arch->dense_layers)
        read_sparse_layers(&r, config);
    read_windows(&r, config);
    return r.status;
}
