/* The pool of KV pages: every page once, all of it writable, no allocation after the start. */
#include "tests/unit/unit.h"

#include "base/alloc.h"
#include "kernel/kernel.h"
#include "model/kv.h"

#include <string.h>

static const struct model_config CONFIG = {.n_layers = 3, .n_kv_heads = 2, .head_dim = 10};

static void pages_go_out_once(void **state)
{
    struct kv_pool *pool = NULL;
    unsigned char *pages[5];
    size_t n = 0;

    (void)state;
    assert_true(kv_page_bytes(&CONFIG, DTYPE_F16, &n));
    assert_int_equal(n, (size_t)3 * 2 * 2 * 10 * 2 * KERNEL_KV_CHUNK);
    assert_int_equal(kv_pool_create(&pool, &CONFIG, DTYPE_F16, 5, NULL), FERRY_OK);
    assert_int_equal(kv_pool_dtype(pool), DTYPE_F16);
    assert_int_equal(kv_pool_n_free(pool), 5);
    uint64_t calls = mem_count_calls();
    for (size_t i = 0; i < 5; i++) {
        pages[i] = kv_pool_get(pool);
        assert_non_null(pages[i]);
        memset(pages[i], (int)i + 1, n);
    }
    assert_null(kv_pool_get(pool));
    assert_int_equal(kv_pool_n_free(pool), 0);
    for (size_t i = 0; i < 5; i++) { /* they do not overlap */
        for (size_t k = 0; k < n; k++)
            assert_int_equal(pages[i][k], i + 1);
    }
    kv_pool_put(pool, pages[2]);
    kv_pool_put(pool, pages[0]);
    assert_int_equal(kv_pool_n_free(pool), 2);
    assert_ptr_equal(kv_pool_get(pool), pages[0]);
    assert_ptr_equal(kv_pool_get(pool), pages[2]);
    assert_int_equal(mem_count_calls(), calls);
    kv_pool_destroy(pool);
    kv_pool_destroy(NULL);
}

static void too_much_is_a_status(void **state)
{
    struct kv_pool *pool = NULL;
    struct ferry_error err = {0};
    const struct model_config huge = {.n_layers = 1000, .n_kv_heads = 1 << 12, .head_dim = 1 << 10};

    (void)state;
    assert_int_equal(kv_pool_create(&pool, &huge, DTYPE_F32, (size_t)1 << 40, &err),
                     FERRY_ERR_NOMEM);
    assert_null(pool);
    assert_non_null(strstr(err.msg, "--context"));
    for (uint64_t n = 1; n <= 2; n++) {
        mem_fail_after(n);
        assert_int_equal(kv_pool_create(&pool, &CONFIG, DTYPE_F16, 5, &err), FERRY_ERR_NOMEM);
        mem_fail_after(0);
        assert_null(pool);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pages_go_out_once),
        cmocka_unit_test(too_much_is_a_status),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
