/* A fixed pool of KV pages. See kv.h. */
#include "model/kv.h"

#include "base/alloc.h"
#include "base/assert.h"
#include "base/error.h"
#include "base/size.h"
#include "kernel/kernel.h"

struct kv_pool {
    enum dtype dtype;
    size_t page_bytes, n_pages, n_free;
    unsigned char *memory;
    unsigned char **free_pages; /* [n_pages] stack */
};

bool kv_page_bytes(const struct model_config *config, enum dtype dtype, size_t *ret_bytes)
{
    return mul_size(model_config_kv_bytes_per_token(config, dtype), KERNEL_KV_CHUNK, ret_bytes);
}

enum ferry_status kv_pool_create(struct kv_pool **ret_pool, const struct model_config *config,
                                 enum dtype dtype, size_t n_pages, struct ferry_error *err)
{
    size_t total;
    struct kv_pool *pool = mem_zero(sizeof *pool);

    if (pool == NULL)
        return FERRY_FAIL(err, FERRY_ERR_NOMEM, "kv: no memory");
    pool->dtype = dtype;
    pool->n_pages = n_pages;
    pool->free_pages = mem_array(n_pages, sizeof *pool->free_pages);
    if (!kv_page_bytes(config, dtype, &pool->page_bytes) ||
        !mul_size(pool->page_bytes, n_pages, &total))
        total = 0;
    pool->memory = total > 0 ? map_alloc(total, 1) : NULL;
    if (pool->free_pages == NULL || pool->memory == NULL) {
        size_t page = pool->page_bytes;
        kv_pool_destroy(pool);
        return FERRY_FAIL(err, FERRY_ERR_NOMEM,
                          "kv: no memory for %zu pages of %zu bytes; use a smaller --context",
                          n_pages, page);
    }
    /* Lowest addresses go out first. */
    for (size_t i = 0; i < n_pages; i++)
        pool->free_pages[i] = pool->memory + (n_pages - 1 - i) * pool->page_bytes;
    pool->n_free = n_pages;
    *ret_pool = pool;
    return FERRY_OK;
}

void kv_pool_destroy(struct kv_pool *pool)
{
    if (pool == NULL)
        return;
    if (pool->memory != NULL)
        map_free(pool->memory, pool->page_bytes * pool->n_pages);
    mem_free(pool->free_pages);
    mem_free(pool);
}

unsigned char *kv_pool_get(struct kv_pool *pool)
{
    return pool->n_free > 0 ? pool->free_pages[--pool->n_free] : NULL;
}

void kv_pool_put(struct kv_pool *pool, unsigned char *page)
{
    FERRY_ASSERT(pool->n_free < pool->n_pages);
    pool->free_pages[pool->n_free++] = page;
}

size_t kv_pool_n_free(const struct kv_pool *pool)
{
    return pool->n_free;
}

enum dtype kv_pool_dtype(const struct kv_pool *pool)
{
    return pool->dtype;
}
