/* Binding: every tensor is taken once, or the load fails with the tensor's name; all layouts of one
 * checkpoint give the same weights; a seat loads its share, verified. */
#include "bind.h"

#include "model/forward.h" /* struct model: what is resident is its store's to say */

#include <unistd.h>

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

/* Experts of layer 1 (layer 0 is dense) that are resident, as a bit set. */
static unsigned resident(const struct opened *o)
{
    unsigned bits = 0;

    for (size_t e = 0; e < 8; e++)
        bits |= (unsigned)expert_store_resident(o->model->store, 1, e) << e;
    return bits;
}

/* A rank holds what the placement lists for its seat, and nothing else; with everything there, the
 * bits are those of a model that was loaded whole. */
static void seats_load_their_share(void **state)
{
    static float want[N_IDS * N_VOCAB], got[N_IDS * N_VOCAB];
    struct tiny_options tiny = tiny_defaults("qwen2_moe");
    struct placement *p = NULL;
    struct opened o;
    size_t n = 0, whole_packed, whole_file;

    (void)state;
    tiny.dense = 1;
    open_good(&o, &tiny, &DEFAULTS);
    step_good(&o, ids, N_IDS, want);
    whole_packed = model_plan(o.model)->weights_packed;
    whole_file = model_plan(o.model)->weights_file;
    assert_int_equal(model_plan(o.model)->experts_held, 8);
    assert_int_equal(model_plan(o.model)->experts_room, 0);
    size_t expert = expert_store_one_bytes(o.model->store, 1);
    size_t active = model_plan(o.model)->active_per_token;
    close_tiny(&o);
    assert_int_equal(placement_contiguous(&p, 2, 8, 3, 1, NULL), FERRY_OK); /* 0-2, 3-5, 6-7 */
    for (int repack = 0; repack < 2; repack++) {
        struct model_options options = DEFAULTS;
        options.no_repack = repack == 0;
        options.placement = p;
        options.seat = 2;
        open_good(&o, &tiny, &options);
        const struct model_plan *plan = model_plan(o.model);
        assert_int_equal(plan->experts_held, 2);
        assert_int_equal(plan->experts_room, 2); /* half of another seat's three, rounded up */
        assert_int_equal(plan->room_packed, repack ? 2 * expert : 0);
        assert_int_equal(plan->weights_packed, repack ? whole_packed - 6 * expert : 0);
        assert_int_equal(plan->weights_file, whole_file - 6 * 3 * 24 * 40 * 4);
        assert_int_equal(plan->active_per_token, active); /* of the group */
        assert_int_equal(resident(&o), 0xC0);
        /* Law 3: what is not here does not run here. */
        assert_int_equal(step(&o, ids, N_IDS, 0, got), FERRY_ERR_NO_HOLDER);
        assert_int_equal(model_load_missing(o.model, 7, &n, &o.err), FERRY_OK);
        assert_int_equal(n, 0);
        assert_int_equal(model_load_missing(o.model, 6, &n, &o.err), FERRY_OK); /* 0 is lost */
        assert_int_equal(n, 2);
        assert_int_equal(resident(&o), 0xC5); /* 0 to seat 2, 1 to seat 1, 2 to seat 2 */
        assert_int_equal(model_load_missing(o.model, 4, &n, &o.err), FERRY_OK); /* and 1 */
        assert_int_equal(n, 4);
        step_good(&o, ids, N_IDS, got);
        assert_memory_equal(want, got, sizeof want);
        model_unload_surplus(o.model, 7, &n);
        assert_int_equal(n, 6);
        assert_int_equal(resident(&o), 0xC0);
        close_tiny(&o);
    }
    placement_destroy(p);
}

static void placements_must_fit(void **state)
{
    static const bool NONE[2] = {1, 0};
    struct tiny_options tiny = tiny_defaults("mixtral");
    struct model_options options = DEFAULTS;
    struct placement *p = NULL, *q = NULL;
    struct opened o;

    (void)state;
    assert_int_equal(placement_contiguous(&p, 2, 9, 3, 1, NULL), FERRY_OK);
    options.placement = p;
    open_tiny(&o, &tiny, &options);
    assert_int_equal(o.status, FERRY_ERR_ARG);
    assert_non_null(strstr(o.err.msg, "for 2 layers of 9 experts, the model has 2 of 8"));
    close_tiny(&o);
    placement_destroy(p);
    assert_int_equal(placement_contiguous(&p, 2, 8, 3, 1, NULL), FERRY_OK);
    options.placement = p;
    for (options.seat = -1; options.seat <= 3; options.seat += 4) {
        open_tiny(&o, &tiny, &options);
        assert_int_equal(o.status, FERRY_ERR_ARG);
        assert_non_null(strstr(o.err.msg, "has seats 0..2"));
        close_tiny(&o);
    }
    assert_int_equal(placement_only(&q, p, NONE, NULL), FERRY_OK);
    options.placement = q;
    options.seat = 0;
    open_tiny(&o, &tiny, &options);
    assert_int_equal(o.status, FERRY_ERR_ARG);
    assert_non_null(strstr(o.err.msg, "leaves out layer 1"));
    close_tiny(&o);
    placement_destroy(p);
    placement_destroy(q);
}

/* Opens the files of `folder` as they are. */
static enum ferry_status load_folder(const char *folder, const struct model_options *options,
                                     char root[65], struct ferry_error *err)
{
    const struct device_options device_options = {2, cpu_best_level()};
    struct checkpoint *checkpoint = NULL;
    struct device *device = NULL;
    struct model *model = NULL;

    assert_int_equal(device_create_cpu(&device, &device_options, err), FERRY_OK);
    assert_int_equal(checkpoint_open(&checkpoint, folder, err), FERRY_OK);
    enum ferry_status st = model_create(&model, checkpoint, device, options, err);
    root[0] = 0;
    if (st == FERRY_OK && model_manifest_root(model) != NULL)
        (void)snprintf(root, 65, "%s", model_manifest_root(model));
    model_destroy(model);
    device_destroy(device);
    checkpoint_close(checkpoint);
    return st;
}

static void flip_byte(const char *path, long offset)
{
    FILE *f = fopen(path, "r+e");
    assert_non_null(f);
    assert_int_equal(fseek(f, offset, SEEK_SET), 0);
    int c = fgetc(f);
    assert_int_equal(fseek(f, offset, SEEK_SET), 0);
    assert_int_not_equal(fputc(c ^ 1, f), EOF);
    assert_int_equal(fclose(f), 0);
}

/* With a manifest every expert is compared: one changed bit, and whoever holds that expert does not
 * start; who does not hold it does. */
static void manifests_are_obeyed(void **state)
{
    struct tiny_options tiny = tiny_defaults("olmoe");
    struct model_options options = DEFAULTS;
    struct placement *p = NULL;
    struct opened o;
    struct ferry_error err = {0};
    char path[200], root[65], again[65];

    (void)state;
    open_good(&o, &tiny, &options);
    assert_null(model_manifest_root(o.model)); /* none yet */
    (void)snprintf(path, sizeof path, "%s/ferry-manifest.json", o.folder);
    assert_int_equal(model_write_manifest(o.model, path, again, &err), FERRY_OK);
    assert_int_equal(load_folder(o.folder, &options, root, &err), FERRY_OK);
    assert_int_equal(strlen(root), 64);
    assert_string_equal(root, again);
    assert_int_equal(model_write_manifest(o.model, path, again, &err), FERRY_ERR_ARG);
    const struct checkpoint_tensor *t =
        checkpoint_find(o.checkpoint, "model.layers.1.mlp.experts.6.up_proj.weight");
    assert_non_null(t);
    char weights[200];
    (void)snprintf(weights, sizeof weights, "%s/model.safetensors", o.folder);
    flip_byte(weights, (long)t->offset + 777);
    assert_int_equal(placement_contiguous(&p, 2, 8, 2, 1, NULL), FERRY_OK);
    for (int way = 0; way < 4; way++) {
        options.no_repack = way % 2 == 1;
        options.placement = way < 2 ? NULL : p;
        options.seat = 1;
        assert_int_equal(load_folder(o.folder, &options, again, &err), FERRY_ERR_FORMAT);
        assert_non_null(strstr(err.msg, "layer 1 expert 6"));
        options.placement = p;
        options.seat = 0;
        assert_int_equal(load_folder(o.folder, &options, again, &err), FERRY_OK);
        assert_string_equal(root, again);
    }
    flip_byte(weights, (long)t->offset + 777);
    options = DEFAULTS;
    assert_int_equal(load_folder(o.folder, &options, again, &err), FERRY_OK);
    flip_byte(path, 40); /* of the model's hash */
    assert_int_equal(load_folder(o.folder, &options, again, &err), FERRY_ERR_FORMAT);
    assert_non_null(strstr(err.msg, "ferry-manifest.json"));
    assert_int_equal(model_write_manifest(o.model, "/nonexistent/manifest", again, &err),
                     FERRY_ERR_IO);
    assert_int_equal(unlink(path), 0);
    placement_destroy(p);
    close_tiny(&o);
}

/* A file that was cut after the start is an error of the load, not a SIGBUS. */
static void files_that_shrank_are_errors(void **state)
{
    struct tiny_options tiny = tiny_defaults("olmoe");
    struct model_options options = DEFAULTS;
    struct placement *p = NULL;
    struct opened o;
    char weights[200];
    size_t n = 0;

    (void)state;
    assert_int_equal(placement_contiguous(&p, 2, 8, 2, 1, NULL), FERRY_OK);
    options.placement = p;
    open_good(&o, &tiny, &options);
    (void)snprintf(weights, sizeof weights, "%s/model.safetensors", o.folder);
    assert_int_equal(truncate(weights, 5000), 0);
    assert_int_equal(model_load_missing(o.model, 1, &n, &o.err), FERRY_ERR_IO);
    assert_non_null(strstr(o.err.msg, "shrank"));
    assert_int_equal(n, 0);
    assert_int_equal(resident(&o), 0x0F); /* as before */
    close_tiny(&o);
    placement_destroy(p);
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
        cmocka_unit_test(seats_load_their_share),
        cmocka_unit_test(placements_must_fit),
        cmocka_unit_test(manifests_are_obeyed),
        cmocka_unit_test(files_that_shrank_are_errors),
    };
    for (size_t i = 0; i < N_IDS; i++)
        ids[i] = (int32_t)(i * i * 31 % N_VOCAB);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
