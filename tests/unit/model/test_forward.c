/* The forward pass: windows, dense layers, clamps and multipliers do what their settings say, odd
 * shapes are legal, and a number that is not finite is an error that says where. Numbers against
 * reference implementations are in tests/oracle. */
#include "bind.h"

#include <math.h>

enum { N_IDS = 30, N_VOCAB = 97 };

static int32_t ids[N_IDS];
static float want[N_IDS * N_VOCAB], got[N_IDS * N_VOCAB];

static void compute(const struct tiny_options *tiny, const int32_t *which, float *logits)
{
    struct opened o;

    open_good(&o, tiny, &DEFAULTS);
    step_good(&o, which, N_IDS, logits);
    close_tiny(&o);
}

static bool same_row(size_t row)
{
    return memcmp(want + row * N_VOCAB, got + row * N_VOCAB, N_VOCAB * sizeof(float)) == 0;
}

static void a_window_ends_what_a_token_sees(void **state)
{
    struct tiny_options tiny = tiny_defaults("mixtral");
    int32_t changed[N_IDS];

    (void)state;
    tiny.n_layers = 1; /* with more, what is outside travels in by way of the layers */
    tiny.config = ",\"sliding_window\":8";
    memcpy(changed, ids, sizeof ids);
    changed[3] = (ids[3] + 1) % N_VOCAB;
    compute(&tiny, ids, want);
    compute(&tiny, changed, got);
    for (size_t i = 0; i < N_IDS; i++) {
        /* Key j is visible at i while i - j < 8: 3 is seen from 3 to 10. */
        if (same_row(i) != (i < 3 || i > 10))
            fail_msg("position %zu %s", i, same_row(i) ? "does not see 3" : "sees 3");
    }
    tiny.config = NULL;
    compute(&tiny, changed, got);
    for (size_t i = 11; i < N_IDS; i++)
        assert_false(same_row(i));
}

static void dense_layers_take_the_place_of_experts(void **state)
{
    static const char *const QWEN[] = {"qwen2_moe", "qwen3_moe"};
    struct opened o;

    (void)state;
    for (size_t a = 0; a < COUNT_OF(QWEN); a++) {
        struct tiny_options tiny = tiny_defaults(QWEN[a]);
        tiny.n_layers = 3;
        tiny.dense = 1 | 4;
        open_good(&o, &tiny, &DEFAULTS);
        step_good(&o, ids, N_IDS, want);
        assert_int_equal(model_ledger(o.model)->layers, 1); /* one layer routed */
        assert_int_equal(model_ledger(o.model)->routed, 3 * N_IDS);
        close_tiny(&o);
    }
}

static void clamps_cut_queries_keys_and_values(void **state)
{
    struct tiny_options tiny = tiny_defaults("olmoe");

    (void)state;
    compute(&tiny, ids, want);
    tiny.config = ",\"clip_qkv\":1000";
    compute(&tiny, ids, got);
    assert_memory_equal(want, got, sizeof want); /* nothing is that large */
    tiny.config = ",\"clip_qkv\":0.5";
    compute(&tiny, ids, got);
    for (size_t i = 0; i < N_IDS; i++)
        assert_false(same_row(i));
}

static void multipliers_are_applied_once(void **state)
{
    struct tiny_options tiny = tiny_defaults("granitemoe");
    struct opened o;

    (void)state;
    /* The tiny file divides logits by 2. A head that is 2 times as large would undo it; here the
     * same model is asked with another divisor by way of a second key set. */
    open_good(&o, &tiny, &DEFAULTS);
    const struct model_config *c = model_config(o.model);
    assert_true(c->embed_scale == 3 && c->residual_scale == 0.5f && c->logit_divisor == 2);
    assert_true(c->attn_scale == 0.25f);
    step_good(&o, ids, N_IDS, want);
    ((struct model_config *)(uintptr_t)c)->logit_divisor = 1;
    step_good(&o, ids, N_IDS, got);
    for (size_t i = 0; i < (size_t)N_IDS * N_VOCAB; i++)
        assert_true(want[i] == got[i] / 2);
    /* The residual stream starts as 3 times the embedding: a norm follows, so scaling it together
     * with what is added to it changes nothing but the weight of eps. */
    ((struct model_config *)(uintptr_t)c)->embed_scale = 6;
    ((struct model_config *)(uintptr_t)c)->residual_scale = 1;
    step_good(&o, ids, N_IDS, want);
    for (size_t v = 0; v < N_VOCAB; v++)
        assert_float_equal(want[v], got[v], 1e-3);
    close_tiny(&o);
}

/* Residual streams of real models leave the range of f16 (65504): nothing on the way is narrower
 * than f32 but the KV cache, which stands behind a norm. */
static void large_residuals_stay_finite(void **state)
{
    struct tiny_options tiny = tiny_defaults("granitemoe");
    struct model_options options = DEFAULTS;
    struct opened o;

    (void)state;
    options.kv_dtype = DTYPE_F16;
    tiny.n_layers = 4;
    open_good(&o, &tiny, &options);
    struct model_config *c = (struct model_config *)(uintptr_t)model_config(o.model);
    c->embed_scale = 1e7f;
    c->residual_scale = 1e7f;
    step_good(&o, ids, N_IDS, got);
    for (size_t i = 0; i < (size_t)N_IDS * N_VOCAB; i++)
        assert_true(fabsf(got[i]) < 1000);
    assert_int_equal(model_counters(o.model)->kv_overflows, 0);
    close_tiny(&o);
}

static void expect_nonfinite(const char *arch, const char *tensor, size_t item, const char *what,
                             const char *where)
{
    struct tiny_options tiny = tiny_defaults(arch);
    struct opened o;
    int32_t good_ids[4] = {5, 6, 7, 8};

    tiny.poison = tensor;
    tiny.poisoned_item = item;
    open_good(&o, &tiny, &DEFAULTS);
    enum ferry_status st = step(&o, ids, N_IDS, 0, got);
    if (st != FERRY_ERR_NONFINITE || strstr(o.err.msg, what) == NULL ||
        strstr(o.err.msg, where) == NULL)
        fail_msg("%s: status %d, '%s'; wanted '%s' and '%s'", tensor, st, o.err.msg, what, where);
    assert_int_equal(model_counters(o.model)->steps, 0);
    if (strcmp(tensor, "model.embed_tokens.weight") == 0) /* one bad token: others still work */
        assert_int_equal(step(&o, good_ids, 4, 0, got), FERRY_OK);
    close_tiny(&o);
}

static void nan_weights_are_found(void **state)
{
    (void)state;
    expect_nonfinite("qwen3_moe", "model.layers.1.mlp.gate.weight", 0, "layer 1: a router score",
                     "position 0");
    expect_nonfinite("granitemoe", "model.layers.0.block_sparse_moe.router.layer.weight", 0,
                     "layer 0: a router score", "position 0");
    /* Token 96 is at position 4 and nowhere before. */
    expect_nonfinite("mixtral", "model.embed_tokens.weight", 96 * 40, "layer 0: a router score",
                     "position 4 (token 96)");
    expect_nonfinite("olmoe", "model.layers.0.self_attn.v_proj.weight", 0, "layer 0", "position 0");
    expect_nonfinite("qwen2_moe", "model.layers.0.mlp.shared_expert.down_proj.weight", 0,
                     "layer 1: a router score", "position 0");
    expect_nonfinite("qwen3_moe", "lm_head.weight", 50 * 40 + 3, "the logit of token 50",
                     "position 0");
    expect_nonfinite("qwen3_moe", "model.norm.weight", 0, "logit", "position 0");
}

static void odd_shapes_are_legal(void **state)
{
    static const struct {
        size_t experts, top_k, hidden, width;
    } shapes[] = {{1, 1, 40, 24}, {5, 5, 33, 7}, {7, 1, 40, 1}, {300, 8, 17, 3}, {3, 2, 129, 130}};

    (void)state;
    for (size_t i = 0; i < COUNT_OF(shapes) * COUNT_OF(ARCHS); i++) {
        struct tiny_options tiny = tiny_defaults(ARCHS[i % COUNT_OF(ARCHS)]);
        struct model_options options = DEFAULTS;
        struct opened o;
        tiny.n_experts = shapes[i / COUNT_OF(ARCHS)].experts;
        tiny.top_k = shapes[i / COUNT_OF(ARCHS)].top_k;
        tiny.hidden = shapes[i / COUNT_OF(ARCHS)].hidden;
        tiny.expert_width = shapes[i / COUNT_OF(ARCHS)].width;
        tiny.n_layers = 1;
        compute(&tiny, ids, want);
        options.step_tokens = options.step_logits = 1; /* token by token, most experts idle */
        open_good(&o, &tiny, &options);
        for (size_t t = 0; t < N_IDS; t++)
            assert_int_equal(step(&o, ids + t, 1, t, got + t * N_VOCAB), FERRY_OK);
        close_tiny(&o);
        assert_memory_equal(want, got, sizeof want);
    }
}

static void logits_only_where_wanted(void **state)
{
    struct tiny_options tiny = tiny_defaults("qwen3_moe");
    struct opened o;

    (void)state;
    open_good(&o, &tiny, &DEFAULTS);
    step_good(&o, ids, N_IDS, want);
    memset(got, 0, sizeof got);
    struct model_run run = {ids, N_IDS, 0, o.pages, 2};
    assert_int_equal(model_step(o.model, &run, 1, got, &o.err), FERRY_OK);
    assert_memory_equal(got, want + (N_IDS - 2) * N_VOCAB, 2 * N_VOCAB * sizeof(float));
    for (size_t i = 2 * N_VOCAB; i < (size_t)N_IDS * N_VOCAB; i++)
        assert_true(got[i] == 0);
    run.n_logits = 0;
    assert_int_equal(model_step(o.model, &run, 1, NULL, &o.err), FERRY_OK);
    close_tiny(&o);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_window_ends_what_a_token_sees),
        cmocka_unit_test(dense_layers_take_the_place_of_experts),
        cmocka_unit_test(clamps_cut_queries_keys_and_values),
        cmocka_unit_test(multipliers_are_applied_once),
        cmocka_unit_test(large_residuals_stay_finite),
        cmocka_unit_test(nan_weights_are_found),
        cmocka_unit_test(odd_shapes_are_legal),
        cmocka_unit_test(logits_only_where_wanted),
    };
    for (size_t i = 0; i < N_IDS; i++)
        ids[i] = (int32_t)(i * 24 % N_VOCAB); /* all different; 96 is number 4 */
    return cmocka_run_group_tests(tests, NULL, NULL);
}
