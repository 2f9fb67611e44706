/* Tensor names: every alternative of both formats is found, the first one is what messages say, and
 * the ignore list holds nothing else. */
#include "tests/unit/unit.h"

#include "make.h"
#include "model/names.h"

#include <string.h>

static struct checkpoint *open_with(struct dir *dir, const char *name)
{
    struct checkpoint *checkpoint = NULL;
    struct ferry_error err = {0};
    struct bytes file;
    char header[300];

    (void)snprintf(header, sizeof header,
                   "{\"%s\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}", name);
    make_safetensors(&file, header, 4);
    dir_make(dir);
    dir_write_text(dir, "config.json", "{}");
    dir_write(dir, "model.safetensors", file.data, file.size);
    if (checkpoint_open(&checkpoint, dir->path, &err) != FERRY_OK)
        fail_msg("%s", err.msg);
    return checkpoint;
}

static void alternatives_are_found(void **state)
{
    static const struct {
        enum weight_role role;
        size_t layer, expert;
        const char *name;
    } cases[] = {
        {ROLE_EMBED, 0, 0, "model.embed_tokens.weight"},
        {ROLE_Q_NORM, 11, 0, "model.layers.11.self_attn.q_norm.weight"},
        {ROLE_ROUTER, 2, 0, "model.layers.2.mlp.gate.weight"},
        {ROLE_ROUTER, 2, 0, "model.layers.2.block_sparse_moe.gate.weight"},
        {ROLE_ROUTER, 2, 0, "model.layers.2.block_sparse_moe.router.layer.weight"},
        {ROLE_ROUTER, 2, 0, "model.layers.2.block_sparse_moe.router.weight"},
        {ROLE_EXPERT_GATE, 7, 299, "model.layers.7.mlp.experts.299.gate_proj.weight"},
        {ROLE_EXPERT_GATE, 7, 3, "model.layers.7.block_sparse_moe.experts.3.w1.weight"},
        {ROLE_EXPERT_UP, 7, 3, "model.layers.7.block_sparse_moe.experts.3.w3.weight"},
        {ROLE_EXPERT_DOWN, 7, 3, "model.layers.7.block_sparse_moe.experts.3.w2.weight"},
        {ROLE_STACKED_GATE_UP, 1, 0, "model.layers.1.mlp.experts.gate_up_proj"},
        {ROLE_STACKED_GATE_UP, 1, 0, "model.layers.1.block_sparse_moe.input_linear.weight"},
        {ROLE_STACKED_DOWN, 1, 0, "model.layers.1.block_sparse_moe.output_linear.weight"},
        {ROLE_STACKED_DOWN, 1, 0, "model.layers.1.block_sparse_moe.experts.down_proj"},
        {ROLE_SHARED_SCORE, 0, 0, "model.layers.0.mlp.shared_expert_gate.weight"},
    };

    (void)state;
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        struct dir dir;
        struct checkpoint *c = open_with(&dir, cases[i].name);
        for (int role = 0; role < ROLE_COUNT; role++) {
            const struct checkpoint_tensor *t =
                names_find(c, (enum weight_role)role, cases[i].layer, cases[i].expert, NULL, 0);
            if ((t != NULL) != (role == (int)cases[i].role))
                fail_msg("%s: role %d", cases[i].name, role);
        }
        if (strstr(cases[i].name, "layers") != NULL) /* of this layer, of no other */
            assert_null(names_find(c, cases[i].role, cases[i].layer + 1, cases[i].expert, NULL, 0));
        if (strstr(cases[i].name, "experts.3.") != NULL)
            assert_null(names_find(c, cases[i].role, cases[i].layer, 30, NULL, 0));
        checkpoint_close(c);
        dir_remove(&dir);
    }
}

static void messages_get_the_first_alternative(void **state)
{
    struct dir dir;
    struct checkpoint *c = open_with(&dir, "x");
    char name[100], tiny[8];

    (void)state;
    assert_null(names_find(c, ROLE_ROUTER, 12, 0, name, sizeof name));
    assert_string_equal(name, "model.layers.12.mlp.gate.weight");
    assert_null(names_find(c, ROLE_EXPERT_UP, 1, 23, tiny, sizeof tiny));
    assert_string_equal(tiny, "model.l");                                   /* cut, ended */
    assert_null(names_find(c, ROLE_STACKED_GATE, 1, 0, name, sizeof name)); /* GGUF only */
    assert_string_equal(name, "");
    checkpoint_close(c);
    dir_remove(&dir);
}

static void ignored_tensors_have_a_reason(void **state)
{
    (void)state;
    assert_non_null(names_ignored("model.layers.3.self_attn.rotary_emb.inv_freq"));
    assert_null(names_ignored(".rotary_emb.inv_freq"));
    assert_null(names_ignored("model.layers.3.self_attn.rotary_emb.inv_freq2"));
    assert_null(names_ignored("model.layers.3.mlp.gate.e_score_correction_bias"));
    assert_null(names_ignored(""));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(alternatives_are_found),
        cmocka_unit_test(messages_get_the_first_alternative),
        cmocka_unit_test(ignored_tensors_have_a_reason),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
