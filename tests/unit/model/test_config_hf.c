/* config.json to struct model_config: fields, defaults of each architecture, and refusals that name
 * the field. */
#include "config_case.h"

#include <math.h>
#include <stdlib.h>

static const char QWEN3[] =
    "{\"model_type\":\"qwen3_moe\",\"hidden_size\":64,\"num_hidden_layers\":6,"
    "\"num_attention_heads\":4,\"num_key_value_heads\":2,\"head_dim\":32,\"vocab_size\":100,"
    "\"max_position_embeddings\":4096,\"rms_norm_eps\":1e-6,\"rope_theta\":1000000.0,"
    "\"num_experts\":16,\"num_experts_per_tok\":4,\"moe_intermediate_size\":24,"
    "\"intermediate_size\":96,\"norm_topk_prob\":true,\"hidden_act\":\"silu\"}";

static const char MIXTRAL[] =
    "{\"model_type\":\"mixtral\",\"hidden_size\":64,\"num_hidden_layers\":3,"
    "\"num_attention_heads\":4,\"vocab_size\":100,\"num_local_experts\":8,"
    "\"num_experts_per_tok\":2,\"intermediate_size\":96}";

static const char QWEN2[] =
    "{\"model_type\":\"qwen2_moe\",\"hidden_size\":64,\"num_hidden_layers\":6,"
    "\"num_attention_heads\":4,\"vocab_size\":100,\"num_experts\":60,\"num_experts_per_tok\":4,"
    "\"moe_intermediate_size\":24,\"shared_expert_intermediate_size\":48,"
    "\"intermediate_size\":96}";

static const char OLMOE[] =
    "{\"model_type\":\"olmoe\",\"hidden_size\":64,\"num_hidden_layers\":2,"
    "\"num_attention_heads\":4,\"vocab_size\":100,\"num_experts\":64,\"num_experts_per_tok\":8,"
    "\"intermediate_size\":24}";

static const char GRANITE[] =
    "{\"model_type\":\"granitemoe\",\"hidden_size\":64,\"num_hidden_layers\":2,"
    "\"num_attention_heads\":4,\"vocab_size\":100,\"num_local_experts\":40,"
    "\"num_experts_per_tok\":8,\"intermediate_size\":24}";

static const struct model_config *good(struct config_case *c, const char *json, const char *changes)
{
    read_json(c, json, changes);
    if (c->status != FERRY_OK)
        fail_msg("%s: %s", changes, c->err.msg);
    return &c->config;
}

static void fields_are_read(void **state)
{
    struct config_case x;
    const struct model_config *c = good(&x, QWEN3, "{\"tie_word_embeddings\":true}");

    (void)state;
    assert_string_equal(c->arch->name, "qwen3_moe");
    assert_int_equal(c->n_layers, 6);
    assert_int_equal(c->hidden, 64);
    assert_int_equal(c->n_vocab, 100);
    assert_int_equal(c->context, 4096);
    assert_int_equal(c->n_heads, 4);
    assert_int_equal(c->n_kv_heads, 2);
    assert_int_equal(c->head_dim, 32); /* not hidden / heads = 16 */
    assert_int_equal(c->n_rope_pairs, 16);
    assert_int_equal(c->expert_width, 24); /* not intermediate_size */
    assert_int_equal(c->dense_width, 96);
    assert_int_equal(c->shared_width, 0);
    assert_int_equal(c->router.n_experts, 16);
    assert_int_equal(c->router.top_k, 4);
    assert_true(c->router.renormalise);
    assert_true(c->router.scale == 1);
    assert_true(c->rope_theta == 1e6);
    assert_true(c->tied);
    assert_false(c->attn_bias);
    assert_false(c->rope_interleaved);
    assert_float_equal(c->attn_scale, 0.1767767f, 1e-6f);
    assert_true(c->embed_scale == 1 && c->residual_scale == 1 && c->logit_divisor == 1);
    for (size_t l = 0; l < 6; l++) {
        assert_true(c->layer_has_experts[l]);
        assert_int_equal(c->layer_window[l], 0);
    }
    arena_fini(&x.arena);
}

static void defaults_are_the_architectures(void **state)
{
    struct config_case x;
    const struct model_config *c = good(&x, MIXTRAL, "{}");

    (void)state;
    assert_float_equal(c->norm_eps, 1e-5, 1e-12);
    assert_true(c->rope_theta == 1e6);
    assert_int_equal(c->head_dim, 16);
    assert_int_equal(c->n_kv_heads, 4);
    assert_true(c->router.renormalise); /* always */
    assert_int_equal(c->expert_width, 96);
    assert_false(c->tied);
    arena_fini(&x.arena);
    c = good(&x, QWEN2, "{}");
    assert_float_equal(c->norm_eps, 1e-6, 1e-12);
    assert_true(c->rope_theta == 1e4);
    assert_false(c->router.renormalise); /* norm_topk_prob defaults to false */
    assert_true(c->attn_bias);           /* qkv_bias defaults to true */
    assert_int_equal(c->shared_width, 48);
    arena_fini(&x.arena);
    c = good(&x, QWEN2, "{\"qkv_bias\":false,\"norm_topk_prob\":true}");
    assert_true(c->router.renormalise);
    assert_false(c->attn_bias);
    arena_fini(&x.arena);
    c = good(&x, QWEN3, "{\"norm_topk_prob\":\"(absent)\"}");
    assert_false(c->router.renormalise); /* in config.json the class's default holds */
    arena_fini(&x.arena);
    c = good(&x, OLMOE, "{\"clip_qkv\":8.0}");
    assert_float_equal(c->norm_eps, 1e-5, 1e-12);
    assert_false(c->router.renormalise);
    assert_true(c->qkv_clamp == 8);
    arena_fini(&x.arena);
    c = good(&x, OLMOE, "{\"clip_qkv\":null,\"num_key_value_heads\":null,\"head_dim\":null}");
    assert_true(c->qkv_clamp == 0);
    assert_int_equal(c->n_kv_heads, 4);
    assert_int_equal(c->head_dim, 16);
    arena_fini(&x.arena);
    c = good(&x, MIXTRAL, "{\"norm_topk_prob\":false}"); /* a key that Mixtral does not have */
    assert_true(c->router.renormalise);
    arena_fini(&x.arena);
}

static void granite_has_multipliers(void **state)
{
    struct config_case x;
    const struct model_config *c =
        good(&x, GRANITE,
             "{\"embedding_multiplier\":12.0,\"residual_multiplier\":0.22,"
             "\"attention_multiplier\":0.015625,\"logits_scaling\":6}");

    (void)state;
    assert_true(c->embed_scale == 12 && c->residual_scale == 0.22f);
    assert_true(c->attn_scale == 0.015625f); /* not 1 / sqrt(head size) */
    assert_true(c->logit_divisor == 6);
    assert_int_equal(c->router.score, ROUTER_SCORE_NONE);
    assert_int_equal(c->router.post, ROUTER_POST_SOFTMAX);
    arena_fini(&x.arena);
    c = good(&x, GRANITE, "{}");
    assert_true(c->attn_scale == 1);
    arena_fini(&x.arena);
    c = good(&x, MIXTRAL, "{\"attention_multiplier\":3,\"logits_scaling\":6}");
    assert_true(c->attn_scale == 0.25f && c->logit_divisor == 1);
    arena_fini(&x.arena);
}

/* Layers as a text: E experts, d dense, w with a window. */
static void check_layers(const char *json, const char *changes, const char *wanted)
{
    struct config_case x;
    const struct model_config *c = good(&x, json, changes);

    assert_int_equal(c->n_layers, strlen(wanted));
    for (size_t l = 0; l < c->n_layers; l++) {
        char seen = c->layer_window[l] > 0 ? 'w' : c->layer_has_experts[l] ? 'E' : 'd';
        if (seen != wanted[l])
            fail_msg("%s: layer %zu is '%c', wanted '%s'", changes, l, seen, wanted);
    }
    arena_fini(&x.arena);
}

static void layers_are_dense_where_said(void **state)
{
    (void)state;
    check_layers(QWEN3, "{\"mlp_only_layers\":[0,3]}", "dEEdEE");
    check_layers(QWEN3, "{\"mlp_only_layers\":null}", "EEEEEE");
    check_layers(QWEN3, "{\"decoder_sparse_step\":2}", "dEdEdE"); /* (i + 1) % step == 0 */
    check_layers(QWEN2, "{\"decoder_sparse_step\":3,\"mlp_only_layers\":[5]}", "ddEddd");
    check_layers(MIXTRAL, "{\"mlp_only_layers\":[0],\"decoder_sparse_step\":2}", "EEE");
}

static void windows_follow_the_architecture(void **state)
{
    (void)state;
    check_layers(MIXTRAL, "{\"sliding_window\":null}", "EEE");
    check_layers(MIXTRAL, "{\"sliding_window\":128}", "www");
    check_layers(QWEN3, "{\"sliding_window\":128}", "EEEEEE"); /* off unless switched on */
    check_layers(QWEN3, "{\"sliding_window\":128,\"use_sliding_window\":true}", "wwwwww");
    check_layers(QWEN3, "{\"use_sliding_window\":true}", "wwwwww"); /* default 4096 */
    check_layers(QWEN3, "{\"sliding_window\":null,\"use_sliding_window\":true}", "EEEEEE");
    check_layers(QWEN2, "{\"sliding_window\":128,\"use_sliding_window\":true}", "wEwEwE");
    check_layers(QWEN2,
                 "{\"sliding_window\":128,\"use_sliding_window\":true,\"max_window_layers\":3}",
                 "wEwEEE");
    check_layers(QWEN2,
                 "{\"sliding_window\":9,\"use_sliding_window\":true,\"max_window_layers\":3,"
                 "\"layer_types\":[\"full_attention\",\"sliding_attention\",\"full_attention\","
                 "\"full_attention\",\"full_attention\",\"sliding_attention\"]}",
                 "EwEEEw");
    check_layers(OLMOE, "{\"sliding_window\":128}", "EE"); /* not a setting of these */
    check_layers(GRANITE, "{\"sliding_window\":128}", "EE");
}

static void rope_settings_are_found_in_both_places(void **state)
{
    struct config_case x;

    (void)state;
    assert_true(good(&x, QWEN3,
                     "{\"rope_theta\":\"(absent)\",\"rope_parameters\":{\"rope_type\":\"default\","
                     "\"rope_theta\":5000000.0}}")
                    ->rope_theta == 5e6);
    arena_fini(&x.arena);
    assert_true(good(&x, QWEN3, "{\"rope_scaling\":null,\"rope_parameters\":null}")->rope_theta ==
                1e6);
    arena_fini(&x.arena);
    assert_true(good(&x, QWEN3, "{\"rope_scaling\":{\"type\":\"default\"}}")->rope_theta == 1e6);
    arena_fini(&x.arena);
}

static void refusals_name_the_field(void **state)
{
    static const struct {
        const char *changes;
        enum ferry_status status;
        const char *what;
    } cases[] = {
        {"{\"model_type\":\"(absent)\"}", FERRY_ERR_FORMAT, "model_type"},
        {"{\"model_type\":7}", FERRY_ERR_FORMAT, "model_type"},
        {"{\"model_type\":\"deepseek_v3\"}", FERRY_ERR_UNSUPPORTED, "'deepseek_v3'"},
        {"{\"hidden_size\":\"(absent)\"}", FERRY_ERR_FORMAT, "'hidden_size' is missing"},
        {"{\"hidden_size\":\"64\"}", FERRY_ERR_FORMAT, "'hidden_size'"},
        {"{\"hidden_size\":64.5}", FERRY_ERR_FORMAT, "'hidden_size'"},
        {"{\"hidden_size\":-1}", FERRY_ERR_FORMAT, "'hidden_size'"},
        {"{\"hidden_size\":0}", FERRY_ERR_LIMIT, "hidden size is 0"},
        {"{\"hidden_size\":9000000000000000000}", FERRY_ERR_LIMIT, "'hidden_size'"},
        {"{\"num_hidden_layers\":0}", FERRY_ERR_LIMIT, "0 layers"},
        {"{\"num_hidden_layers\":5000}", FERRY_ERR_LIMIT, "5000 layers"},
        {"{\"vocab_size\":16000000}", FERRY_ERR_LIMIT, "vocabulary size"},
        {"{\"num_attention_heads\":0,\"head_dim\":null}", FERRY_ERR_LIMIT, "attention heads"},
        {"{\"num_key_value_heads\":0}", FERRY_ERR_LIMIT, "key/value heads"},
        {"{\"num_key_value_heads\":3}", FERRY_ERR_FORMAT, "3 key/value heads"},
        {"{\"head_dim\":1}", FERRY_ERR_LIMIT, "head size"},
        {"{\"head_dim\":100000}", FERRY_ERR_LIMIT, "head size"},
        {"{\"num_experts\":\"(absent)\"}", FERRY_ERR_FORMAT, "'num_experts' is missing"},
        {"{\"num_experts\":0}", FERRY_ERR_LIMIT, "0"},
        {"{\"num_experts\":5000}", FERRY_ERR_LIMIT, "5000"},
        {"{\"num_experts_per_tok\":17}", FERRY_ERR_ARG, "17"},
        {"{\"num_experts_per_tok\":0}", FERRY_ERR_ARG, "0"},
        {"{\"moe_intermediate_size\":0}", FERRY_ERR_LIMIT, "expert width"},
        {"{\"rms_norm_eps\":\"tiny\"}", FERRY_ERR_FORMAT, "'rms_norm_eps'"},
        {"{\"rms_norm_eps\":-1}", FERRY_ERR_FORMAT, "epsilon"},
        {"{\"rope_theta\":0}", FERRY_ERR_FORMAT, "rope theta"},
        {"{\"rope_theta\":[]}", FERRY_ERR_FORMAT, "'rope_theta'"},
        {"{\"tie_word_embeddings\":1}", FERRY_ERR_FORMAT, "'tie_word_embeddings'"},
        {"{\"norm_topk_prob\":\"yes\"}", FERRY_ERR_FORMAT, "'norm_topk_prob'"},
        {"{\"hidden_act\":\"gelu\"}", FERRY_ERR_UNSUPPORTED, "gelu"},
        {"{\"hidden_act\":3}", FERRY_ERR_FORMAT, "'hidden_act'"},
        {"{\"quantization_config\":{\"bits\":4}}", FERRY_ERR_UNSUPPORTED, "quantization_config"},
        {"{\"quantization_config\":4}", FERRY_ERR_FORMAT, "quantization_config"},
        {"{\"rope_scaling\":{\"rope_type\":\"yarn\",\"factor\":4}}", FERRY_ERR_UNSUPPORTED, "yarn"},
        {"{\"rope_scaling\":{\"type\":\"linear\",\"factor\":2}}", FERRY_ERR_UNSUPPORTED, "linear"},
        {"{\"rope_parameters\":{\"rope_type\":\"yarn\",\"rope_theta\":1e6}}", FERRY_ERR_UNSUPPORTED,
         "yarn"},
        /* New files may carry both: neither hides the other. */
        {"{\"rope_scaling\":{\"type\":\"linear\",\"factor\":2},"
         "\"rope_parameters\":{\"rope_type\":\"default\"}}",
         FERRY_ERR_UNSUPPORTED, "linear"},
        {"{\"rope_scaling\":\"yarn\"}", FERRY_ERR_FORMAT, "'rope_scaling'"},
        {"{\"rope_scaling\":{\"rope_type\":2}}", FERRY_ERR_FORMAT, "'rope_type'"},
        {"{\"rope_parameters\":{\"partial_rotary_factor\":0.5}}", FERRY_ERR_UNSUPPORTED,
         "partial_rotary_factor"},
        {"{\"partial_rotary_factor\":0.5}", FERRY_ERR_UNSUPPORTED, "partial_rotary_factor"},
        {"{\"decoder_sparse_step\":0}", FERRY_ERR_FORMAT, "decoder_sparse_step"},
        {"{\"mlp_only_layers\":[6]}", FERRY_ERR_FORMAT, "mlp_only_layers"},
        {"{\"mlp_only_layers\":[-1]}", FERRY_ERR_FORMAT, "mlp_only_layers"},
        {"{\"mlp_only_layers\":[0.5]}", FERRY_ERR_FORMAT, "mlp_only_layers"},
        {"{\"mlp_only_layers\":3}", FERRY_ERR_FORMAT, "mlp_only_layers"},
        {"{\"mlp_only_layers\":[0],\"intermediate_size\":\"(absent)\"}", FERRY_ERR_FORMAT,
         "dense width"},
        {"{\"use_sliding_window\":1}", FERRY_ERR_FORMAT, "use_sliding_window"},
        {"{\"use_sliding_window\":true,\"sliding_window\":-4}", FERRY_ERR_FORMAT, "sliding_window"},
        {"{\"use_sliding_window\":true,\"layer_types\":[\"full_attention\"]}", FERRY_ERR_FORMAT,
         "layer_types"},
        {"{\"use_sliding_window\":true,\"layer_types\":\"full_attention\"}", FERRY_ERR_FORMAT,
         "layer_types"},
        {"{\"use_sliding_window\":true,\"layer_types\":[\"chunked_attention\"]}",
         FERRY_ERR_UNSUPPORTED, "chunked_attention"},
    };

    (void)state;
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        struct config_case x;
        read_json(&x, QWEN3, cases[i].changes);
        expect(&x, cases[i].status, cases[i].what, cases[i].changes);
    }
}

static void granite_scales_must_be_numbers(void **state)
{
    struct config_case x;

    (void)state;
    read_json(&x, GRANITE, "{\"logits_scaling\":0}");
    expect(&x, FERRY_ERR_FORMAT, "divided by 0", "logits_scaling 0");
    read_json(&x, GRANITE, "{\"attention_multiplier\":\"x\"}");
    expect(&x, FERRY_ERR_FORMAT, "attention_multiplier", "attention_multiplier x");
    read_json(&x, GRANITE, "{\"embedding_multiplier\":1e300}");
    expect(&x, FERRY_ERR_FORMAT, "not finite", "embedding_multiplier 1e300");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(fields_are_read),
        cmocka_unit_test(defaults_are_the_architectures),
        cmocka_unit_test(granite_has_multipliers),
        cmocka_unit_test(layers_are_dense_where_said),
        cmocka_unit_test(windows_follow_the_architecture),
        cmocka_unit_test(rope_settings_are_found_in_both_places),
        cmocka_unit_test(refusals_name_the_field),
        cmocka_unit_test(granite_scales_must_be_numbers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
