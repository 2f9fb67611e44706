/* KV pages: the memory of attention, 128 positions of all layers each, handed out to sequences.
 *
 * Why here: `model` defines what a page holds, `engine` decides who gets one. One owning thread. */
#ifndef MODEL_KV_H
#define MODEL_KV_H

#include "ferry/status.h"
#include "model/config.h"

#include <stddef.h>

struct kv_pool;

/* Room for n_pages pages of this model in `dtype` (F32, F16 or BF16). Pages are backed by memory
 * when first written. FERRY_ERR_NOMEM, FERRY_ERR_LIMIT. */
enum ferry_status kv_pool_create(struct kv_pool **ret_pool, const struct model_config *config,
                                 enum dtype dtype, size_t n_pages,
                                 struct ferry_error *err) FERRY_MUST_CHECK;
void kv_pool_destroy(struct kv_pool *pool);

/* A free page, NULL when there is none; goes back with kv_pool_put. Never allocates memory. */
unsigned char *kv_pool_get(struct kv_pool *pool);
void kv_pool_put(struct kv_pool *pool, unsigned char *page);

size_t kv_pool_n_free(const struct kv_pool *pool);
enum dtype kv_pool_dtype(const struct kv_pool *pool);

/* Bytes of one page; layer l starts at l * (bytes / n_layers). False on overflow. */
bool kv_page_bytes(const struct model_config *config, enum dtype dtype, size_t *ret_bytes);

#endif
