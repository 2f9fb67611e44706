/* The table of architectures: both names find a row, and each row routes as its model was trained
 * (the semantics that engines commonly get wrong). */
#include "tests/unit/unit.h"

#include "model/config.h"

#include <string.h>

static const struct {
    const char *name, *gguf;
    enum router_score score;
    enum router_post post;
    bool renormalise; /* of a GGUF file, which has no key for it */
    bool from_key, interleaved;
    enum qk_norm norm;
} WANTED[] = {
    {"mixtral", "llama", ROUTER_SCORE_SOFTMAX, ROUTER_POST_GATHER, true, false, true, QK_NORM_NONE},
    {"qwen2_moe", "qwen2moe", ROUTER_SCORE_SOFTMAX, ROUTER_POST_GATHER, false, true, false,
     QK_NORM_NONE},
    {"qwen3_moe", "qwen3moe", ROUTER_SCORE_SOFTMAX, ROUTER_POST_GATHER, true, true, false,
     QK_NORM_HEAD},
    {"olmoe", "olmoe", ROUTER_SCORE_SOFTMAX, ROUTER_POST_GATHER, false, true, false, QK_NORM_WHOLE},
    {"granitemoe", "granitemoe", ROUTER_SCORE_NONE, ROUTER_POST_SOFTMAX, false, false, true,
     QK_NORM_NONE},
};

static void both_names_find_the_row(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT_OF(WANTED); i++) {
        const struct model_arch *arch = model_arch_by_name(WANTED[i].name);
        assert_non_null(arch);
        assert_string_equal(arch->name, WANTED[i].name);
        assert_ptr_equal(model_arch_by_gguf_name(WANTED[i].gguf, strlen(WANTED[i].gguf)), arch);
        assert_non_null(strstr(model_arch_names(), WANTED[i].name));
        assert_int_equal(arch->score, WANTED[i].score);
        assert_int_equal(arch->post, WANTED[i].post);
        assert_int_equal(arch->renormalise, WANTED[i].renormalise);
        assert_int_equal(arch->renormalise_from_key, WANTED[i].from_key);
        assert_int_equal(arch->gguf_interleaved, WANTED[i].interleaved);
        assert_int_equal(arch->qk_norm, WANTED[i].norm);
        assert_true(arch->norm_eps > 0 && arch->rope_theta > 0);
    }
}

static void other_names_find_none(void **state)
{
    static const char *const NAMES[] = {"",         "Mixtral",     "mixtra",
                                        "mixtrall", "deepseek_v3", "llama"};

    (void)state;
    for (size_t i = 0; i < COUNT_OF(NAMES); i++)
        assert_null(model_arch_by_name(NAMES[i]));
    assert_null(model_arch_by_gguf_name("llama4", 6));
    assert_null(model_arch_by_gguf_name("lla", 3));
    assert_null(model_arch_by_gguf_name("mixtral", 7));
    assert_non_null(model_arch_by_gguf_name("llama4", 5)); /* the length counts, not a 0 */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(both_names_find_the_row),
        cmocka_unit_test(other_names_find_none),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
