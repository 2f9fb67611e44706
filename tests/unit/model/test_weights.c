/* Binding: every tensor is taken once, or the load fails with the tensor's name; all layouts of one
 * checkpoint give the same weights. */
#include "bind.h"

enum { N_IDS = 40, N_VOCAB = 97 };

static int32_t ids[N_IDS];

static void refuse(const struct tiny_options *tiny, const char *what, const char *also)
{
    struct opened o;

    open_tiny(&o, tiny, &DEFAULTS);
    if (o.status != FERRY_ERR_FORMAT || strstr(o.err.msg, what) == NULL ||
        strstr(o.err.msg, also) == NULL)
        fail_msg("status %d, '%s'; wanted '%s' and '%s'", o.status, o.err.msg, what, also);
    assert_null(o.model);
    close_tiny(&o);
}

/* Every name of a checkpoint of this architecture, one after another. */
static size_t names_of(const struct tiny_options *tiny, char names[][100], size_t max)
{
    struct checkpoint *c = NULL;
    const char *folder = tiny_write(tiny);
    size_t n;

    assert_int_equal(checkpoint_open(&c, folder, NULL), FERRY_OK);
    for (n = 0; n < checkpoint_n_tensors(c) && n < max; n++)
        (void)snprintf(names[n], 100, "%s", checkpoint_tensor(c, n)->name);
    checkpoint_close(c);
    tiny_remove(folder);
    return n;
}

static void missing_tensors_are_named(void **state)
{
    static char names[200][100];

    (void)state;
    for (size_t a = 0; a < COUNT_OF(ARCHS); a++) {
        struct tiny_options tiny = tiny_defaults(ARCHS[a]);
        tiny.n_experts = 3;
        size_t n = names_of(&tiny, names, COUNT_OF(names));
        assert_true(n > 20);
        for (size_t i = 0; i < n; i++) {
            if (strstr(names[i], "_linear") != NULL || strstr(names[i], "w2") != NULL ||
                strstr(names[i], "w3") != NULL || strstr(names[i], "w1") != NULL ||
                strstr(names[i], "block_sparse_moe") != NULL)
                continue; /* messages name the first alternative: below */
            tiny.skip = names[i];
            refuse(&tiny, names[i], "missing");
        }
    }
    struct tiny_options mixtral = tiny_defaults("mixtral");
    mixtral.skip = "model.layers.1.block_sparse_moe.experts.5.w2.weight";
    refuse(&mixtral, "model.layers.1.mlp.experts.5.down_proj.weight", "missing");
    mixtral.skip = "model.layers.0.block_sparse_moe.gate.weight";
    refuse(&mixtral, "model.layers.0.mlp.gate.weight", "missing");
}

static void wrong_shapes_are_named_with_both_sizes(void **state)
{
    struct tiny_options tiny = tiny_defaults("qwen3_moe");

    (void)state;
    tiny.squeeze = "model.layers.1.self_attn.k_proj.weight";
    refuse(&tiny, "model.layers.1.self_attn.k_proj.weight", "is 20x39, wanted 20x40");
    tiny.squeeze = "model.layers.0.mlp.experts.7.down_proj.weight";
    refuse(&tiny, "model.layers.0.mlp.experts.7.down_proj.weight", "is 40x23, wanted 40x24");
    tiny.squeeze = "model.norm.weight";
    refuse(&tiny, "model.norm.weight", "is 39, wanted a vector of 40");
    tiny.squeeze = "lm_head.weight";
    refuse(&tiny, "lm_head.weight", "is 97x39, wanted 97x40");
    tiny.squeeze = "model.layers.0.mlp.gate.weight";
    refuse(&tiny, "model.layers.0.mlp.gate.weight", "offset");
    tiny = tiny_defaults("granitemoe");
    tiny.expert_width = 24;
    tiny.config = ",\"num_experts\":8";
    struct opened o;
    open_good(&o, &tiny, &DEFAULTS);
    close_tiny(&o);
}

static void extra_tensors_are_refused(void **state)
{
    struct tiny_options tiny = tiny_defaults("mixtral");
    struct opened o;

    (void)state;
    tiny.extra = "model.layers.2.input_layernorm.weight"; /* a layer too many */
    refuse(&tiny, tiny.extra, "1 tensors would be left unread");
    tiny.extra = "model.layers.0.mlp.gate.e_score_correction_bias"; /* another router's bias */
    refuse(&tiny, tiny.extra, "left unread");
    tiny.extra = "model.layers.0.self_attn.q_proj.bias"; /* no biases were announced */
    refuse(&tiny, tiny.extra, "left unread");
    tiny.extra = "model.layers.0.self_attn.q_proj.weight_scale"; /* quantised by someone's tool */
    refuse(&tiny, tiny.extra, "left unread");
    tiny.extra = "model.layers.0.self_attn.rotary_emb.inv_freq"; /* on the ignore list */
    open_good(&o, &tiny, &DEFAULTS);
    assert_int_equal(model_n_ignored(o.model), 1);
    close_tiny(&o);
}

static void heads_may_be_tied(void **state)
{
    struct tiny_options tiny = tiny_defaults("qwen3_moe");
    struct opened o;
    static float want[N_IDS * N_VOCAB], got[N_IDS * N_VOCAB];

    (void)state;
    tiny.tied = true;
    open_good(&o, &tiny, &DEFAULTS);
    step_good(&o, ids, N_IDS, want);
    close_tiny(&o);
    tiny.with_head = true; /* stored as well, with the same values */
    open_good(&o, &tiny, &DEFAULTS);
    step_good(&o, ids, N_IDS, got);
    close_tiny(&o);
    assert_memory_equal(want, got, sizeof want);
    tiny.poison = "model.embed_tokens.weight"; /* both have it: still equal */
    tiny.poisoned_item = 96 * 40;
    open_good(&o, &tiny, &DEFAULTS);
    close_tiny(&o);
    tiny.poison = NULL;
    tiny.squeeze = "lm_head.weight";
    refuse(&tiny, "lm_head.weight", "differs from the embedding table");
    tiny = tiny_defaults("qwen3_moe"); /* other values under tie_word_embeddings */
    tiny.tied = true;
    tiny.extra = "lm_head.weight";
    refuse(&tiny, "lm_head.weight", "differs");
    tiny.tied = false; /* untied without a head */
    tiny.extra = NULL;
    tiny.skip = "lm_head.weight";
    refuse(&tiny, "lm_head.weight", "missing");
}

static void layouts_give_the_same_weights(void **state)
{
    static float want[N_IDS * N_VOCAB], got[N_IDS * N_VOCAB];

    (void)state;
    for (size_t a = 0; a < COUNT_OF(ARCHS); a++) {
        struct tiny_options tiny = tiny_defaults(ARCHS[a]);
        struct opened o;
        open_good(&o, &tiny, &DEFAULTS);
        step_good(&o, ids, N_IDS, want);
        close_tiny(&o);
        tiny.fused = true; /* gate rows first, up rows second */
        open_good(&o, &tiny, &DEFAULTS);
        step_good(&o, ids, N_IDS, got);
        close_tiny(&o);
        assert_memory_equal(want, got, sizeof want);
    }
}

static void biases_are_as_announced(void **state)
{
    struct tiny_options tiny = tiny_defaults("qwen2_moe");
    struct opened o;

    (void)state;
    tiny.config = ",\"qkv_bias\":false";
    open_tiny(&o, &tiny, &DEFAULTS);
    assert_int_equal(o.status, FERRY_ERR_FORMAT); /* the biases would be left unread */
    assert_non_null(strstr(o.err.msg, "proj.bias"));
    close_tiny(&o);
    tiny = tiny_defaults("olmoe");
    tiny.config = ",\"attention_bias\":true";
    refuse(&tiny, "model.layers.0.self_attn.q_proj.bias", "missing");
}

static void plain_dtypes_are_read(void **state)
{
    static const enum dtype DTYPES[] = {DTYPE_F32, DTYPE_F16, DTYPE_BF16};
    static float logits[3][N_IDS * N_VOCAB];
    struct opened o;

    (void)state;
    for (size_t i = 0; i < 3; i++) {
        struct tiny_options tiny = tiny_defaults("qwen2_moe");
        tiny.dtype = DTYPES[i];
        open_good(&o, &tiny, &DEFAULTS);
        step_good(&o, ids, N_IDS, logits[i]);
        /* file bytes follow the type: all matrices but the table, which is read in place */
        assert_int_equal(model_plan(o.model)->embed_mapped, (i == 0 ? 4 : 2) * 97 * 40);
        close_tiny(&o);
    }
    /* Rounded weights give near, unequal logits at the first position (later ones may route
     * elsewhere). */
    for (size_t v = 0; v < N_VOCAB; v++) {
        assert_float_equal(logits[1][v], logits[0][v], 0.1);
        assert_float_equal(logits[2][v], logits[0][v], 0.8);
    }
    assert_memory_not_equal(logits[0], logits[1], sizeof logits[0]);
    assert_memory_not_equal(logits[1], logits[2], sizeof logits[0]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(missing_tensors_are_named),
        cmocka_unit_test(wrong_shapes_are_named_with_both_sizes),
        cmocka_unit_test(extra_tensors_are_refused),
        cmocka_unit_test(heads_may_be_tied),
        cmocka_unit_test(layouts_give_the_same_weights),
        cmocka_unit_test(biases_are_as_announced),
        cmocka_unit_test(plain_dtypes_are_read),
    };
    for (size_t i = 0; i < N_IDS; i++)
        ids[i] = (int32_t)(i * i * 31 % N_VOCAB);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
