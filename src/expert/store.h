/* The expert store: where each expert's bytes lie in the files, and which experts are resident
 * here, verified and ready to run.
 *
 * Why apart: an expert is the unit that ranks hold, verify, replicate and move. It runs only where
 * its verified weights are resident (law 3): expert_store_resident() tells, and the weights of any
 * other expert are null pointers. It must not know routing or the forward pass.
 *
 * Threads. The engine thread reads and unloads. Loads may run on any thread beside it, several at
 * once: an expert is packed into memory that nobody sees, then published with one store. */
#ifndef EXPERT_STORE_H
#define EXPERT_STORE_H

#include "device/device.h"
#include "expert/manifest.h"
#include "ferry/status.h"
#include "file/checkpoint.h"
#include "placement/placement.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct expert_store;

/* Where one expert's bytes lie in the checkpoint: for hashing and for packing. */
struct expert_source {
    struct weight gate, up, down; /* rows set, packed NULL */
};

struct expert_id {
    uint32_t layer, expert;
};

struct expert_store_options {
    size_t n_layers, n_experts;
    bool no_repack; /* experts run from the file's mapping: resident means verified, nothing is
                       packed */
    const struct checkpoint *checkpoint; /* looked at before files are read, so that one which
                                            shrank is an error; borrowed. NULL: no files (tests) */
};

/* An empty store. FERRY_ERR_NOMEM. */
enum ferry_status expert_store_create(struct expert_store **ret_store,
                                      const struct expert_store_options *options,
                                      struct ferry_error *err) FERRY_MUST_CHECK;
void expert_store_destroy(struct expert_store *store);

/* Records where an expert's weights are, once; the mapping must outlive the store. All experts of a
 * layer have one shape. The expert is not resident yet. */
void expert_store_set(struct expert_store *store, size_t layer, size_t expert,
                      const struct expert_source *source);

/* What loads compare hashes with from now on; borrowed, NULL: nothing. Before the first load. */
void expert_store_use_manifest(struct expert_store *store, const struct expert_manifest *manifest);
const struct expert_manifest *expert_store_manifest(const struct expert_store *store);

/* Bytes of all recorded experts once packed, and in the file; of one of a layer. */
size_t expert_store_packed_bytes(const struct expert_store *store);
size_t expert_store_file_bytes(const struct expert_store *store);
size_t expert_store_one_bytes(const struct expert_store *store, size_t layer);

/* What a seat has to hold. placement NULL: everything. */
struct expert_share {
    size_t n_experts;    /* that the placement lists for the seat */
    size_t packed_bytes; /* of them, in slots */
    size_t file_bytes;   /* of them */
    size_t n_room;       /* most orphans that the loss of any one other seat would bring here */
    size_t room_bytes;
};
void expert_store_share(const struct expert_store *store, const struct placement *placement,
                        int seat, struct expert_share *ret);

/* Whether the seat is to hold the expert from the start. */
bool expert_store_wants(const struct placement *placement, int seat, size_t layer, size_t expert);

/* Takes the memory of expert_store_share, room included: address space at once, memory as it is
 * written. More orphans than that (a second loss) make it grow by slabs. Nothing with no_repack.
 * FERRY_ERR_NOMEM: err has the sizes. */
enum ferry_status expert_store_reserve(struct expert_store *store,
                                       const struct placement *placement, int seat,
                                       struct ferry_error *err) FERRY_MUST_CHECK;

/* Gives an expert memory of the caller's to live in [expert_store_one_bytes], instead of a slot of
 * the store. Before it is loaded. */
void expert_store_lend(struct expert_store *store, size_t layer, size_t expert, void *memory);

/* Makes experts resident: reads their file bytes, compares their hashes with the manifest, packs,
 * publishes. Those that are resident already are skipped. All or none of the others.
 *
 * ids     [n] distinct
 * device  its threads share the work; engine thread only. NULL: the calling thread alone, any
 *
 * Errors: FERRY_ERR_FORMAT (a hash differs: err has layer, expert, both hashes), FERRY_ERR_NOMEM
 * (err has the sizes), FERRY_ERR_IO (a file shrank), FERRY_AGAIN (another thread is loading one of
 * them). */
enum ferry_status expert_store_load_many(struct expert_store *store, struct device *device,
                                         const struct expert_id *ids, size_t n,
                                         struct ferry_error *err) FERRY_MUST_CHECK;
enum ferry_status expert_store_load(struct expert_store *store, struct device *device, size_t layer,
                                    size_t expert, struct ferry_error *err) FERRY_MUST_CHECK;

/* Gives an expert's memory back to the store. Engine thread, between steps: nobody may compute with
 * it. Nothing if it is not resident. */
void expert_store_unload(struct expert_store *store, size_t layer, size_t expert);

/* Any thread. The engine thread may use the weights of an expert after this said true. */
bool expert_store_resident(const struct expert_store *store, size_t layer, size_t expert);
size_t expert_store_count(const struct expert_store *store, size_t layer);

/* Experts that the seat holds while `live` is the group (placement_holders) and that are not
 * resident; and the other way round, resident ones that it does not hold. ret [max], in order;
 * returns how many there are, which may be more. Engine thread. */
size_t expert_store_missing(const struct expert_store *store, const struct placement *placement,
                            int seat, uint64_t live, struct expert_id *ret, size_t max);
size_t expert_store_surplus(const struct expert_store *store, const struct placement *placement,
                            int seat, uint64_t live, struct expert_id *ret, size_t max);

/* The experts of a layer, [n_experts], for the device; borrowed, the same array always. All have
 * their shape and format; the weights of those that are not resident are NULL. */
const struct ffn_weights *expert_store_layer(const struct expert_store *store, size_t layer);

/* SHA-256 over an expert's file-order bytes (gate, up, down), hex, resident or not; "" when it
 * cannot be computed (out of memory). Any thread. */
void expert_store_hash(const struct expert_store *store, size_t layer, size_t expert,
                       char ret_hex[65]);

#endif
