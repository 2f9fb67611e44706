/* GGUF metadata to struct model_config. See config.h. Keys: the GGUF specification and what
 * converters write. */
#include "model/config.h"

#include "base/error.h"
#include "base/limits.h"
#include "file/gguf.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* Keys of one architecture being read; the first error sticks. */
struct reader {
    const struct gguf_meta *meta;
    const char *arch; /* prefix of the keys */
    struct ferry_error *err;
    enum ferry_status status;
};

static const char *full_key(const struct reader *r, const char *key, char text[160])
{
    (void)snprintf(text, 160, "%s.%s", r->arch, key);
    return text;
}

static void fail_type(struct reader *r, const char *key)
{
    if (r->status == FERRY_OK)
        r->status = FERRY_FAIL(r->err, FERRY_ERR_FORMAT, "gguf: key '%s' has the wrong type", key);
}

/* SIZE_MAX as fallback: the key must exist. */
static size_t get_size(struct reader *r, const char *key, size_t fallback)
{
    char text[160];
    uint64_t value = 0;
    bool bad = false;

    if (gguf_get_u64(r->meta, full_key(r, key, text), &value, &bad)) {
        if (value <= LIMIT_CONTEXT)
            return (size_t)value;
        if (r->status == FERRY_OK)
            r->status = FERRY_FAIL(r->err, FERRY_ERR_LIMIT, "gguf: key '%s' is %llu, more than %d",
                                   text, (unsigned long long)value, LIMIT_CONTEXT);
        return 0;
    }
    if (bad)
        fail_type(r, text);
    else if (fallback == SIZE_MAX && r->status == FERRY_OK)
        r->status = FERRY_FAIL(r->err, FERRY_ERR_FORMAT, "gguf: key '%s' is missing", text);
    return fallback == SIZE_MAX ? 0 : fallback;
}

static double get_number(struct reader *r, const char *key, double fallback)
{
    char text[160];
    double value = fallback;
    bool bad = false;

    if (!gguf_get_f64(r->meta, full_key(r, key, text), &value, &bad) && bad)
        fail_type(r, text);
    return value;
}

/* A setting that would change the function and that Ferry does not have: only its neutral value
 * passes. */
static void refuse(struct reader *r, const char *key, double neutral)
{
    double value = get_number(r, key, neutral);
    if (value != neutral && r->status == FERRY_OK)
        r->status = FERRY_FAIL(r->err, FERRY_ERR_UNSUPPORTED,
                               "gguf: key '%s.%s' = %g is not supported", r->arch, key, value);
}

/* A scale; 0 is what converters write for "none". */
static float get_scale(struct reader *r, const char *key, float none)
{
    double value = get_number(r, key, 0);
    return value != 0 ? (float)value : none;
}

/* Settings of other architectures that would change the function. */
static void refuse_foreign(struct reader *r, const struct model_config *c)
{
    static const char *const SCALES[] = {"attention.scale", "embedding_scale", "residual_scale",
                                         "logit_scale"};
    static const char *const CAPS[] = {"router_logit_softcapping", "attn_logit_softcapping",
                                       "final_logit_softcapping"};
    char text[160];
    bool rotates = true;

    for (size_t i = 0; i < sizeof CAPS / sizeof CAPS[0]; i++)
        refuse(r, CAPS[i], 0);
    for (size_t i = 0; i < sizeof SCALES / sizeof SCALES[0] && !c->arch->granite_scales; i++) {
        double value = get_number(r, SCALES[i], 0);
        if (value != 1 && (float)value != (i == 0 ? c->attn_scale : 0))
            refuse(r, SCALES[i], 0);
    }
    refuse(r, "expert_group_count", get_number(r, "expert_group_count", 0) == 1 ? 1 : 0);
    /* Granite files without rotation say so here. */
    if (c->arch->granite_scales &&
        gguf_get_bool(r->meta, full_key(r, "rope.scaling.finetuned", text), &rotates, NULL) &&
        !rotates && r->status == FERRY_OK)
        r->status = FERRY_FAIL(r->err, FERRY_ERR_UNSUPPORTED,
                               "gguf: key '%s' = false (no rotation) is not supported", text);
}

/* Sliding windows as the architecture has them; a window that its reference would not apply is
 * refused. */
static void read_windows(struct reader *r, struct model_config *c)
{
    size_t window = get_size(r, "attention.sliding_window", 0);

    if (window == 0 || window >= c->context || r->status != FERRY_OK)
        return;
    if (c->arch->windows != WINDOW_ALL) {
        r->status = FERRY_FAIL(r->err, FERRY_ERR_UNSUPPORTED,
                               "gguf: a sliding window (%zu) is not supported for %s", window,
                               c->arch->name);
        return;
    }
    for (size_t l = 0; l < c->n_layers; l++)
        c->layer_window[l] = window;
}

static void read_rope(struct reader *r, struct model_config *c)
{
    char text[160];
    struct gguf_string type = {0};
    bool bad = false;

    c->rope_theta = get_number(r, "rope.freq_base", 10000.0);
    c->n_rope_pairs = get_size(r, "rope.dimension_count", c->head_dim) / 2;
    c->rope_interleaved = c->arch->gguf_interleaved;
    bool given =
        gguf_get_string(r->meta, full_key(r, "rope.scaling.type", text), &type, &bad) && !bad;
    bool none = given && type.size == 4 && memcmp(type.data, "none", 4) == 0;
    if (bad)
        fail_type(r, text);
    if (given && !none && r->status == FERRY_OK)
        r->status = FERRY_FAIL(r->err, FERRY_ERR_UNSUPPORTED,
                               "gguf: rope scaling '%.*s' is not supported yet",
                               (int)(type.size < 40 ? type.size : 40), type.data);
    if (none)
        return;
    /* Without a type a factor means linear scaling; 0 is what writers put for "none". */
    if (get_number(r, "rope.scaling.factor", 1) != 0)
        refuse(r, "rope.scaling.factor", 1);
    if (get_number(r, "rope.scale_linear", 1) != 0)
        refuse(r, "rope.scale_linear", 1);
}

/* Vocabulary size: the embedding table knows; the tokenizer's list may be shorter. */
static size_t vocab_size(const struct checkpoint *checkpoint)
{
    const struct checkpoint_tensor *table = checkpoint_find(checkpoint, "token_embd.weight");
    return table != NULL && table->n_dims == 2 && table->dims[0] <= LIMIT_VOCAB
               ? (size_t)table->dims[0]
               : 0;
}

static void read_shape(struct reader *r, struct model_config *c,
                       const struct checkpoint *checkpoint)
{
    const struct model_arch *arch = c->arch;

    c->n_layers = get_size(r, "block_count", SIZE_MAX);
    c->hidden = get_size(r, "embedding_length", SIZE_MAX);
    c->n_vocab = vocab_size(checkpoint);
    c->context = get_size(r, "context_length", 4096);
    c->n_heads = get_size(r, "attention.head_count", SIZE_MAX);
    c->n_kv_heads = get_size(r, "attention.head_count_kv", c->n_heads);
    c->head_dim = get_size(r, "attention.key_length", c->n_heads > 0 ? c->hidden / c->n_heads : 0);
    if (get_size(r, "attention.value_length", c->head_dim) != c->head_dim && r->status == FERRY_OK)
        r->status = FERRY_FAIL(r->err, FERRY_ERR_UNSUPPORTED,
                               "gguf: keys and values of different length are not supported");
    c->dense_width = get_size(r, "feed_forward_length", 0);
    /* Old Qwen files say only the width of all active experts together. */
    size_t top_k = get_size(r, "expert_used_count", 1);
    size_t width = arch->dense_layers && top_k > 0 ? c->dense_width / top_k : c->dense_width;
    c->expert_width = get_size(r, "expert_feed_forward_length", width);
    c->shared_width =
        arch->shared_expert ? get_size(r, "expert_shared_feed_forward_length", c->dense_width) : 0;
    if (!arch->dense_layers)
        c->dense_width = 0;
    c->norm_eps = (float)get_number(r, "attention.layer_norm_rms_epsilon", arch->norm_eps);
    c->qkv_clamp = (float)get_number(r, "attention.clamp_kqv", 0);
    c->attn_bias = checkpoint_find(checkpoint, "blk.0.attn_q.bias") != NULL;
    c->tied = checkpoint_find(checkpoint, "output.weight") == NULL;
    c->attn_scale = c->head_dim > 0 ? (float)(1.0 / sqrt((double)c->head_dim)) : 0;
    if (!arch->granite_scales)
        return;
    c->attn_scale = get_scale(r, "attention.scale", c->attn_scale);
    c->embed_scale = get_scale(r, "embedding_scale", 1);
    c->residual_scale = get_scale(r, "residual_scale", 1);
    c->logit_divisor = get_scale(r, "logit_scale", 1);
}

static void read_router(struct reader *r, struct model_config *c)
{
    const struct model_arch *arch = c->arch;
    char text[160];
    bool bad = false;
    size_t expected = arch->post == ROUTER_POST_SOFTMAX
                          ? 3
                          : 1; /* expert_gating_func: softmax, softmax after top-k */
    size_t gating = get_size(r, "expert_gating_func", expected);

    c->router = (struct router_policy){
        .score = arch->score, .post = arch->post, .renormalise = arch->renormalise, .scale = 1};
    c->router.n_experts = get_size(r, "expert_count", SIZE_MAX);
    c->router.top_k = get_size(r, "expert_used_count", SIZE_MAX);
    if (!gguf_get_bool(r->meta, full_key(r, "expert_weights_norm", text), &c->router.renormalise,
                       &bad) &&
        bad)
        fail_type(r, text);
    c->router.scale = (float)get_number(r, "expert_weights_scale", 1);
    if (c->router.scale == 0) /* what converters write for "none" */
        c->router.scale = 1;
    /* Softmax over the selected is another function than softmax over all, unless renormalised. */
    if (gating == 3 && !c->router.renormalise) {
        c->router.score = ROUTER_SCORE_NONE;
        c->router.post = ROUTER_POST_SOFTMAX;
    }
    /* Granite files exist with 1: top-k of a softmax over all, renormalised, is the same function.
     */
    if (gating != 1 && gating != 3 && gating != 0 && r->status == FERRY_OK)
        r->status =
            FERRY_FAIL(r->err, FERRY_ERR_UNSUPPORTED,
                       "gguf: expert_gating_func %zu is not supported for %s", gating, arch->name);
}

enum ferry_status config_read_gguf(struct model_config *config, const struct checkpoint *checkpoint,
                                   struct arena *arena, struct ferry_error *err)
{
    struct gguf_string name;
    char prefix[64];
    struct reader r = {checkpoint_meta(checkpoint), prefix, err, FERRY_OK};

    if (!gguf_get_string(r.meta, "general.architecture", &name, NULL) || name.size >= sizeof prefix)
        return FERRY_FAIL(err, FERRY_ERR_FORMAT,
                          "gguf: key 'general.architecture' is missing or no short string");
    (void)snprintf(prefix, sizeof prefix, "%.*s", (int)name.size, name.data);
    config->arch = model_arch_by_gguf_name(name.data, name.size);
    if (config->arch == NULL)
        return FERRY_FAIL(err, FERRY_ERR_UNSUPPORTED,
                          "gguf: architecture '%s' is not supported; these are: %s", prefix,
                          model_arch_names());
    char text[160];
    if (!gguf_has(r.meta, full_key(&r, "expert_count", text)))
        return FERRY_FAIL(
            err, FERRY_ERR_UNSUPPORTED,
            "gguf: this '%s' file has no experts; Ferry runs Mixture-of-Experts models", prefix);
    struct gguf_string title;
    if (gguf_get_string(r.meta, "general.name", &title, NULL))
        (void)snprintf(config->name, sizeof config->name, "%.*s",
                       (int)(title.size < 100 ? title.size : 100), title.data);
    else
        (void)snprintf(config->name, sizeof config->name, "%s", config->arch->name);
    error_make_printable(config->name); /* it goes to terminals and into JSON */
    read_shape(&r, config, checkpoint);
    read_router(&r, config);
    read_rope(&r, config);
    refuse_foreign(&r, config);
    if (r.status != FERRY_OK)
        return r.status;
    if (config->n_vocab == 0)
        return FERRY_FAIL(err, FERRY_ERR_FORMAT,
                          "gguf: tensor 'token_embd.weight' is missing or no matrix");
    enum ferry_status st = config_alloc_layers(config, arena, err);
    if (st != FERRY_OK)
        return st;
    size_t dense = get_size(&r, "leading_dense_block_count", 0);
    for (size_t l = 0; l < config->n_layers; l++) {
        (void)snprintf(text, sizeof text, "blk.%zu.ffn_gate_inp.weight",
                       l); /* tensors tell which layers have experts */
        config->layer_has_experts[l] = l >= dense && checkpoint_find(checkpoint, text) != NULL;
    }
    read_windows(&r, config);
    return r.status;
}
