/* GGUF metadata to struct model_config: keys, what absent keys mean for each architecture, and
 * refusals that name the key. */
#include "config_case.h"

#include <math.h>
#include <stdlib.h>

/* One key of a case: a number (type U32 or F32), a text, or a key taken away. */
struct key {
    const char *name; /* without the architecture */
    double number;
    const char *text;
    bool absent;
};

static const struct key BASE[] = {
    {"block_count", 2, NULL, false},
    {"embedding_length", 64, NULL, false},
    {"feed_forward_length", 96, NULL, false},
    {"attention.head_count", 4, NULL, false},
    {"attention.head_count_kv", 2, NULL, false},
    {"expert_count", 16, NULL, false},
    {"expert_used_count", 4, NULL, false},
};

static void add_key(struct gguf_spec *spec, const char *arch, const struct key *key)
{
    char name[200];
    float f = (float)key->number;
    uint32_t bits;

    (void)snprintf(name, sizeof name, "%s.%s", arch, key->name);
    memcpy(&bits, &f, sizeof bits);
    if (key->absent)
        return;
    if (key->text != NULL)
        gguf_spec_key_string(spec, name, key->text);
    else if (strcmp(key->name, "expert_weights_norm") == 0)
        gguf_spec_key(spec, name, GGUF_TYPE_BOOL, key->number != 0, 1);
    else if (key->number == floor(key->number) && key->number >= 0 && key->number < 1e18 &&
             strstr(key->name, "scal") == NULL)
        gguf_spec_key(spec, name, key->number < 4e9 ? GGUF_TYPE_U32 : GGUF_TYPE_U64,
                      (uint64_t)key->number, key->number < 4e9 ? 4 : 8);
    else
        gguf_spec_key(spec, name, GGUF_TYPE_F32, bits, 4);
}

static void add_tensor(struct gguf_spec *spec, const char *name, uint64_t rows, uint64_t cols)
{
    size_t i = spec->n_written++;

    spec->n_tensors = spec->n_written;
    spec->tensors[i].name = name;
    spec->tensors[i].n_dims = 2;
    spec->tensors[i].dims[0] = cols;
    spec->tensors[i].dims[1] = rows;
    spec->tensors[i].type = 0;
    spec->tensors[i].offset = spec->data_bytes;
    spec->data_bytes += (size_t)(rows * cols * 4);
}

/* BASE with n keys added or replaced, and the tensors that configurations look at; more than one
 * extra tensor does not fit. */
static void read_keys(struct config_case *c, const char *arch, const struct key *keys, size_t n,
                      const char *tensor)
{
    static struct gguf_spec spec;
    static struct bytes file;
    struct dir dir;

    memset(&spec, 0, sizeof spec);
    spec.version = 3;
    spec.alignment = 32;
    gguf_spec_key_string(&spec, "general.architecture", arch);
    for (size_t i = 0; i < COUNT_OF(BASE); i++) {
        bool replaced = false;
        for (size_t k = 0; k < n; k++)
            replaced = replaced || strcmp(keys[k].name, BASE[i].name) == 0;
        if (!replaced)
            add_key(&spec, arch, &BASE[i]);
    }
    for (size_t k = 0; k < n; k++)
        add_key(&spec, arch, &keys[k]);
    add_tensor(&spec, "token_embd.weight", 10, 64);
    add_tensor(&spec, "blk.0.ffn_gate_inp.weight", 16, 64);
    add_tensor(&spec, "blk.1.ffn_gate_inp.weight", 16, 64);
    if (tensor != NULL)
        add_tensor(&spec, tensor, 8, 8);
    gguf_spec_write(&spec, &file);
    dir_make(&dir);
    dir_write(&dir, "m.gguf", file.data, file.size);
    read_case(c, dir_path(&dir, "m.gguf"));
    dir_remove(&dir);
}

static const struct model_config *good(struct config_case *c, const char *arch,
                                       const struct key *keys, size_t n, const char *tensor)
{
    read_keys(c, arch, keys, n, tensor);
    if (c->status != FERRY_OK)
        fail_msg("%s: %s", arch, c->err.msg);
    return &c->config;
}

static void keys_are_read(void **state)
{
    static const struct key KEYS[] = {
        {"context_length", 8192, NULL, false},
        {"attention.key_length", 32, NULL, false},
        {"attention.value_length", 32, NULL, false},
        {"expert_feed_forward_length", 24, NULL, false},
        {"rope.freq_base", 1e6, NULL, false},
        {"rope.dimension_count", 32, NULL, false},
        {"attention.layer_norm_rms_epsilon", 1e-6, NULL, false},
    };
    struct config_case x;
    const struct model_config *c = good(&x, "qwen3moe", KEYS, COUNT_OF(KEYS), NULL);

    (void)state;
    assert_string_equal(c->arch->name, "qwen3_moe");
    assert_int_equal(c->n_layers, 2);
    assert_int_equal(c->hidden, 64);
    assert_int_equal(c->n_vocab, 10); /* the table's rows */
    assert_int_equal(c->context, 8192);
    assert_int_equal(c->n_heads, 4);
    assert_int_equal(c->n_kv_heads, 2);
    assert_int_equal(c->head_dim, 32);
    assert_int_equal(c->n_rope_pairs, 16);
    assert_int_equal(c->expert_width, 24);
    assert_true(c->rope_theta == 1e6);
    assert_float_equal(c->norm_eps, 1e-6, 1e-12);
    assert_int_equal(c->layer_window[0], 0);
    assert_true(c->tied); /* no output.weight */
    assert_false(c->rope_interleaved);
    assert_false(c->attn_bias);
    arena_fini(&x.arena);
}

static void absent_keys_mean_what_the_architecture_means(void **state)
{
    struct config_case x;
    const struct model_config *c = good(&x, "qwen3moe", NULL, 0, "output.weight");

    (void)state;
    assert_true(
        c->router.renormalise); /* norm_topk_prob is not stored: the architecture implies it */
    assert_int_equal(c->router.post, ROUTER_POST_GATHER);
    assert_false(c->tied);
    assert_int_equal(c->head_dim, 16);
    arena_fini(&x.arena);
    c = good(&x, "qwen2moe", NULL, 0, "blk.0.attn_q.bias");
    assert_false(c->router.renormalise);
    assert_true(c->attn_bias);
    assert_int_equal(c->expert_width, 24); /* old files: all active experts together are 96 wide */
    assert_int_equal(c->shared_width, 96);
    arena_fini(&x.arena);
    c = good(&x, "olmoe", NULL, 0, NULL);
    assert_false(c->router.renormalise);
    assert_int_equal(c->expert_width, 96);
    arena_fini(&x.arena);
    c = good(&x, "llama", NULL, 0, NULL); /* Mixtral */
    assert_true(c->router.renormalise);
    assert_true(c->rope_interleaved); /* q and k rows are permuted in these files */
    arena_fini(&x.arena);
    c = good(&x, "granitemoe", NULL, 0, NULL);
    assert_true(c->rope_interleaved);
    assert_int_equal(c->router.post, ROUTER_POST_SOFTMAX);
    assert_float_equal(c->attn_scale, 0.25, 1e-7);
    arena_fini(&x.arena);
}

static void optional_settings(void **state)
{
    static const struct key WEIGHTS[] = {{"expert_weights_norm", 1, NULL, false},
                                         {"expert_weights_scale", 2.5, NULL, false}};
    static const struct key NONE[] = {{"expert_weights_scale", 0, NULL, false},
                                      {"rope.scaling.type", 0, "none", false},
                                      {"rope.scaling.factor", 0, NULL, false},
                                      {"expert_group_count", 1, NULL, false}};
    static const struct key AFTER[] = {{"expert_gating_func", 3, NULL, false}};
    static const struct key GRANITE[] = {{"attention.scale", 0.015625, NULL, false},
                                         {"embedding_scale", 12, NULL, false},
                                         {"residual_scale", 0.25, NULL, false},
                                         {"logit_scale", 6, NULL, false},
                                         {"expert_gating_func", 1, NULL, false}};
    static const struct key CLAMP[] = {{"attention.clamp_kqv", 8, NULL, false},
                                       {"leading_dense_block_count", 1, NULL, false}};
    struct config_case x;
    const struct model_config *c = good(&x, "qwen2moe", WEIGHTS, 2, NULL);

    (void)state;
    assert_true(c->router.renormalise && c->router.scale == 2.5f);
    arena_fini(&x.arena);
    c = good(&x, "qwen3moe", NONE, COUNT_OF(NONE), NULL);
    assert_true(c->router.scale == 1);
    arena_fini(&x.arena);
    /* Softmax after the choice is another function where nothing renormalises. */
    c = good(&x, "qwen2moe", AFTER, 1, NULL);
    assert_int_equal(c->router.score, ROUTER_SCORE_NONE);
    assert_int_equal(c->router.post, ROUTER_POST_SOFTMAX);
    arena_fini(&x.arena);
    c = good(&x, "granitemoe", GRANITE, COUNT_OF(GRANITE), NULL);
    assert_true(c->attn_scale == 0.015625f && c->embed_scale == 12 && c->residual_scale == 0.25f);
    assert_true(c->logit_divisor == 6);
    assert_int_equal(c->router.post, ROUTER_POST_SOFTMAX);
    arena_fini(&x.arena);
    c = good(&x, "qwen3moe", CLAMP, 2, NULL);
    assert_true(c->qkv_clamp == 8);
    assert_false(c->layer_has_experts[0]);
    assert_true(c->layer_has_experts[1]);
    arena_fini(&x.arena);
}

/* Mixtral has one window for all layers; one as long as the context changes nothing anywhere. */
static void windows_follow_the_architecture(void **state)
{
    static const struct key WINDOW[] = {{"attention.sliding_window", 128, NULL, false},
                                        {"context_length", 8192, NULL, false}};
    static const struct key WHOLE[] = {{"attention.sliding_window", 8192, NULL, false},
                                       {"context_length", 8192, NULL, false}};
    struct config_case x;
    const struct model_config *c = good(&x, "llama", WINDOW, COUNT_OF(WINDOW), NULL);

    (void)state;
    assert_int_equal(c->layer_window[0], 128);
    assert_int_equal(c->layer_window[1], 128);
    arena_fini(&x.arena);
    c = good(&x, "olmoe", WHOLE, COUNT_OF(WHOLE), NULL);
    assert_int_equal(c->layer_window[0], 0);
    arena_fini(&x.arena);
}

static void refusals_name_the_key(void **state)
{
    static const struct {
        struct key key;
        enum ferry_status status;
        const char *what;
    } cases[] = {
        {{"block_count", 0, NULL, true}, FERRY_ERR_FORMAT, "'qwen3moe.block_count' is missing"},
        {{"block_count", 0, "two", false}, FERRY_ERR_FORMAT, "qwen3moe.block_count"},
        {{"block_count", 2.5, NULL, false}, FERRY_ERR_FORMAT, "qwen3moe.block_count"},
        {{"block_count", -1, NULL, false}, FERRY_ERR_FORMAT, "qwen3moe.block_count"},
        {{"block_count", 5000, NULL, false}, FERRY_ERR_LIMIT, "5000 layers"},
        {{"embedding_length", 1e15, NULL, false}, FERRY_ERR_LIMIT, "qwen3moe.embedding_length"},
        {{"embedding_length", 0, NULL, true}, FERRY_ERR_FORMAT, "embedding_length"},
        {{"attention.head_count", 0, NULL, false}, FERRY_ERR_LIMIT, "attention heads"},
        {{"attention.head_count_kv", 3, NULL, false}, FERRY_ERR_FORMAT, "3 key/value heads"},
        {{"attention.value_length", 48, NULL, false}, FERRY_ERR_UNSUPPORTED, "different length"},
        {{"expert_count", 0, NULL, true}, FERRY_ERR_UNSUPPORTED, "no experts"},
        {{"expert_count", 0, NULL, false}, FERRY_ERR_LIMIT, "0"},
        {{"expert_used_count", 0, NULL, true}, FERRY_ERR_FORMAT, "expert_used_count"},
        {{"expert_used_count", 17, NULL, false}, FERRY_ERR_ARG, "17"},
        {{"expert_gating_func", 2, NULL, false}, FERRY_ERR_UNSUPPORTED, "expert_gating_func 2"},
        {{"expert_gating_func", 4, NULL, false}, FERRY_ERR_UNSUPPORTED, "expert_gating_func 4"},
        {{"expert_group_count", 8, NULL, false}, FERRY_ERR_UNSUPPORTED, "expert_group_count"},
        {{"expert_weights_norm", 0, "yes", false}, FERRY_ERR_FORMAT, "expert_weights_norm"},
        {{"router_logit_softcapping", 30, NULL, false}, FERRY_ERR_UNSUPPORTED, "softcapping"},
        {{"rope.scaling.type", 0, "yarn", false}, FERRY_ERR_UNSUPPORTED, "yarn"},
        {{"rope.scaling.type", 7, NULL, false}, FERRY_ERR_FORMAT, "rope.scaling.type"},
        {{"rope.scaling.factor", 4, NULL, false}, FERRY_ERR_UNSUPPORTED, "rope.scaling.factor"},
        {{"rope.scale_linear", 4, NULL, false}, FERRY_ERR_UNSUPPORTED, "rope.scale_linear"},
        {{"rope.dimension_count", 64, NULL, false}, FERRY_ERR_FORMAT, "rotary size 64"},
        {{"rope.dimension_count", 0, NULL, false}, FERRY_ERR_FORMAT, "rotary size 0"},
        {{"rope.freq_base", 0, "x", false}, FERRY_ERR_FORMAT, "rope.freq_base"},
        {{"attention.sliding_window", 0, "x", false}, FERRY_ERR_FORMAT, "sliding_window"},
        {{"attention.sliding_window", 128, NULL, false}, FERRY_ERR_UNSUPPORTED, "window (128)"},
        {{"final_logit_softcapping", 30, NULL, false}, FERRY_ERR_UNSUPPORTED, "softcapping"},
        {{"attention.scale", 0.5, NULL, false}, FERRY_ERR_UNSUPPORTED, "attention.scale"},
        {{"logit_scale", 8, NULL, false}, FERRY_ERR_UNSUPPORTED, "logit_scale"},
        {{"attention.layer_norm_rms_epsilon", -1, NULL, false}, FERRY_ERR_FORMAT, "epsilon"},
    };
    struct config_case x;

    (void)state;
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        read_keys(&x, "qwen3moe", &cases[i].key, 1, NULL);
        expect(&x, cases[i].status, cases[i].what, cases[i].key.name);
    }
    read_keys(&x, "deepseek2", NULL, 0, NULL);
    expect(&x, FERRY_ERR_UNSUPPORTED, "'deepseek2'", "deepseek2");
    static const struct key DENSE = {"expert_count", 0, NULL, true};
    read_keys(&x, "llama", &DENSE, 1, NULL); /* an ordinary dense file */
    expect(&x, FERRY_ERR_UNSUPPORTED, "no experts", "llama without experts");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(keys_are_read),
        cmocka_unit_test(absent_keys_mean_what_the_architecture_means),
        cmocka_unit_test(optional_settings),
        cmocka_unit_test(windows_follow_the_architecture),
        cmocka_unit_test(refusals_name_the_key),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
