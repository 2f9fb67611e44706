/* Resident-only expert store. See store.h. */
#include "expert/store.h"

#include "base/alloc.h"
#include "base/assert.h"
#include "base/error.h"
#include "file/hash.h"

struct expert_store {
    size_t n_layers, n_experts;
    struct ffn_weights *experts; /* [n_layers, n_experts] */
    size_t packed_bytes, file_bytes;
};

enum ferry_status expert_store_create(struct expert_store **ret_store, size_t n_layers,
                                      size_t n_experts, struct ferry_error *err)
{
    struct expert_store *store = mem_zero(sizeof *store);
    if (store == NULL)
        return FERRY_FAIL(err, FERRY_ERR_NOMEM, "experts: no memory");
    store->n_layers = n_layers;
    store->n_experts = n_experts;
    store->experts = mem_array(n_layers * n_experts, sizeof *store->experts);
    if (store->experts == NULL) {
        mem_free(store);
        return FERRY_FAIL(err, FERRY_ERR_NOMEM, "experts: no memory for %zu layers of %zu experts",
                          n_layers, n_experts);
    }
    *ret_store = store;
    return FERRY_OK;
}

void expert_store_destroy(struct expert_store *store)
{
    if (store == NULL)
        return;
    mem_free(store->experts);
    mem_free(store);
}

static struct ffn_weights *at(const struct expert_store *store, size_t layer, size_t expert)
{
    FERRY_ASSERT(layer < store->n_layers && expert < store->n_experts);
    return &store->experts[layer * store->n_experts + expert];
}

static size_t packed_bytes(const struct weight *w)
{
    size_t n = 0;
    bool fits = device_weight_bytes(w->dtype, w->n_cols, w->k, &n);
    FERRY_ASSERT(fits); /* the matrix lies in a file: its size was checked there */
    return n;
}

void expert_store_set(struct expert_store *store, size_t layer, size_t expert,
                      const struct expert_source *source)
{
    struct ffn_weights *w = at(store, layer, expert);

    w->gate = source->gate;
    w->up = source->up;
    w->down = source->down;
    store->packed_bytes += packed_bytes(&w->gate) + packed_bytes(&w->up) + packed_bytes(&w->down);
    store->file_bytes += w->gate.n_cols * w->gate.row_bytes + w->up.n_cols * w->up.row_bytes +
                         w->down.n_cols * w->down.row_bytes;
}

size_t expert_store_packed_bytes(const struct expert_store *store)
{
    return store->packed_bytes;
}

size_t expert_store_file_bytes(const struct expert_store *store)
{
    return store->file_bytes;
}

unsigned char *expert_store_pack(struct expert_store *store, struct device *device, size_t layer,
                                 size_t expert, unsigned char *dst)
{
    struct ffn_weights *w = at(store, layer, expert);
    struct weight *all[3] = {&w->gate, &w->up, &w->down};

    for (int i = 0; i < 3; i++) {
        device_weight_pack(device, all[i], dst);
        dst += packed_bytes(all[i]);
    }
    return dst;
}

const struct ffn_weights *expert_store_layer(const struct expert_store *store, size_t layer)
{
    const struct ffn_weights *w = at(store, layer, 0);

    for (size_t e = 0; e < store->n_experts; e++) {
        if (w[e].gate.rows == NULL || w[e].up.rows == NULL || w[e].down.rows == NULL)
            return NULL;
    }
    return w;
}

void expert_store_hash(const struct expert_store *store, size_t layer, size_t expert,
                       char ret_hex[65])
{
    const struct ffn_weights *w = at(store, layer, expert);
    const struct weight *all[3] = {&w->gate, &w->up, &w->down};
    struct hash *hash = hash_create();

    ret_hex[0] = 0;
    if (hash == NULL)
        return;
    for (int i = 0; i < 3; i++)
        hash_raw(hash, all[i]->rows, all[i]->n_cols * all[i]->row_bytes);
    if (!hash_finish(hash, ret_hex))
        ret_hex[0] = 0;
    hash_destroy(hash);
}
