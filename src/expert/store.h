/* The expert store: which experts' weights are resident here, layer by layer.
 *
 * Why apart: an expert is the unit that ranks hold, verify, replicate and move. This first store is
 * resident-only: every expert of the checkpoint is loaded. An expert runs only if its weights are
 * resident (law 3), which expert_store_layer() tells by returning NULL. It must not know routing
 * or the forward pass. */
#ifndef EXPERT_STORE_H
#define EXPERT_STORE_H

#include "device/device.h"
#include "ferry/status.h"

#include <stddef.h>

struct expert_store;

/* Where one expert's bytes lie in the checkpoint: for hashing and for packing. */
struct expert_source {
    struct weight gate, up, down; /* rows set, packed NULL */
};

/* Empty store for n_layers x n_experts. FERRY_ERR_NOMEM. */
enum ferry_status expert_store_create(struct expert_store **ret_store, size_t n_layers,
                                      size_t n_experts, struct ferry_error *err) FERRY_MUST_CHECK;
void expert_store_destroy(struct expert_store *store);

/* Records where an expert's weights are; the mapping must outlive the store. */
void expert_store_set(struct expert_store *store, size_t layer, size_t expert,
                      const struct expert_source *source);

/* Bytes of all recorded experts once packed, and in the file. */
size_t expert_store_packed_bytes(const struct expert_store *store);
size_t expert_store_file_bytes(const struct expert_store *store);

/* Packs one expert into dst [its packed size], which is returned advanced. */
unsigned char *expert_store_pack(struct expert_store *store, struct device *device, size_t layer,
                                 size_t expert, unsigned char *dst);

/* The experts of a layer, [n_experts], for the device; borrowed. NULL if any of them is not
 * resident. */
const struct ffn_weights *expert_store_layer(const struct expert_store *store, size_t layer);

/* SHA-256 over an expert's file-order bytes (gate, up, down), hex; "" when it cannot be computed
 * (out of memory). */
void expert_store_hash(const struct expert_store *store, size_t layer, size_t expert,
                       char ret_hex[65]);

#endif
