/* What both configuration readers share: the KV size, allocation of per-layer settings, failing
 * allocations. Limits are tested through the readers in test_config_hf.c and test_config_gguf.c. */
#include "config_case.h"

#include "base/limits.h"

#include <stdlib.h>

static void kv_bytes_count_both_and_all_layers(void **state)
{
    const struct model_config c = {.n_layers = 48, .n_kv_heads = 4, .head_dim = 128};

    (void)state;
    assert_int_equal(model_config_kv_bytes_per_token(&c, DTYPE_F16), 98304);
    assert_int_equal(model_config_kv_bytes_per_token(&c, DTYPE_BF16), 98304);
    assert_int_equal(model_config_kv_bytes_per_token(&c, DTYPE_F32), 196608);
}

static void layers_start_full_and_without_window(void **state)
{
    struct model_config c = {.n_layers = LIMIT_LAYERS};
    struct arena arena;
    struct ferry_error err = {0};

    (void)state;
    arena_init(&arena, "test");
    assert_int_equal(config_alloc_layers(&c, &arena, &err), FERRY_OK);
    for (size_t l = 0; l < c.n_layers; l++)
        assert_true(!c.layer_has_experts[l] && c.layer_window[l] == 0);
    c.n_layers = LIMIT_LAYERS + 1;
    assert_int_equal(config_alloc_layers(&c, &arena, &err), FERRY_ERR_LIMIT);
    c.n_layers = 0;
    assert_int_equal(config_alloc_layers(&c, &arena, &err), FERRY_ERR_LIMIT);
    arena_fini(&arena);
}

/* The arena gives out at call number fail_at (an arena asks for less before it fails, so a single
 * failing allocation is not enough). */
void *__real_arena_array(struct arena *arena, size_t n, size_t size);
void *__wrap_arena_array(struct arena *arena, size_t n, size_t size);
static int fail_at;

void *__wrap_arena_array(struct arena *arena, size_t n, size_t size)
{
    return fail_at > 0 && --fail_at == 0 ? NULL : __real_arena_array(arena, n, size);
}

static void out_of_memory_is_a_status(void **state)
{
    (void)state;
    for (int n = 1; n <= 2; n++) {
        struct model_config c = {.n_layers = 4};
        struct arena arena;
        struct ferry_error err = {0};
        arena_init(&arena, "test");
        fail_at = n;
        assert_int_equal(config_alloc_layers(&c, &arena, &err), FERRY_ERR_NOMEM);
        assert_int_equal(fail_at, 0);
        assert_non_null(strstr(err.msg, "4 layers"));
        arena_fini(&arena);
    }
}

static void the_format_chooses_the_reader(void **state)
{
    struct config_case x;

    (void)state;
    read_json(&x, "{\"model_type\":\"bert\"}", "{}");
    expect(&x, FERRY_ERR_UNSUPPORTED, "config.json", "safetensors");
    static struct gguf_spec spec;
    static struct bytes file;
    struct dir dir;
    gguf_spec_init(&spec);
    gguf_spec_write(&spec, &file);
    dir_make(&dir);
    dir_write(&dir, "m.gguf", file.data, file.size);
    read_case(&x, dir_path(&dir, "m.gguf"));
    expect(&x, FERRY_ERR_UNSUPPORTED, "gguf: architecture 'test'", "gguf");
    dir_remove(&dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(kv_bytes_count_both_and_all_layers),
        cmocka_unit_test(layers_start_full_and_without_window),
        cmocka_unit_test(out_of_memory_is_a_status),
        cmocka_unit_test(the_format_chooses_the_reader),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
