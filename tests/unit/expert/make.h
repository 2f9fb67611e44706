/* Experts made of noise, for the tests of the room. Test code only. */
#ifndef TESTS_UNIT_EXPERT_MAKE_H
#define TESTS_UNIT_EXPERT_MAKE_H

#include "tests/unit/unit.h"

#include "base/alloc.h"
#include "expert/store.h"

#include <string.h>

enum { LAYERS = 3, EXPERTS = 6, HIDDEN = 64, WIDTH = 40 };

static unsigned char file[1 << 19];

/* Gate and up Q8_0 [WIDTH, HIDDEN], down F32 (layer 2: F16) [HIDDEN, WIDTH], all taken from `file`
 * one behind the other. */
static inline struct expert_source source_at(size_t layer, size_t offset)
{
    struct expert_source s = {0};
    struct weight *all[3] = {&s.gate, &s.up, &s.down};
    enum dtype down = layer == 2 ? DTYPE_F16 : DTYPE_F32;

    s.gate = s.up = (struct weight){
        .dtype = DTYPE_Q8_0, .n_cols = WIDTH, .k = HIDDEN, .row_bytes = HIDDEN / 32 * 34};
    s.down = (struct weight){
        .dtype = down, .n_cols = HIDDEN, .k = WIDTH, .row_bytes = WIDTH * (layer == 2 ? 2 : 4)};
    for (int i = 0; i < 3; i++) {
        all[i]->rows = file + offset;
        all[i]->group_bytes = pack_group_bytes(all[i]->dtype, all[i]->k);
        offset += all[i]->n_cols * all[i]->row_bytes;
    }
    return s;
}

enum { FILE_BYTES = 2 * WIDTH * (HIDDEN / 32 * 34) + HIDDEN * WIDTH * 4 };

static inline size_t file_offset(size_t layer, size_t expert)
{
    return (layer * EXPERTS + expert) * FILE_BYTES;
}

static inline void fill_file(void)
{
    for (size_t i = 0; i < sizeof file; i++)
        file[i] = (unsigned char)(i * 2654435761u >> 13);
}

/* A store of all experts but those of layer 1, which has none. */
static inline struct expert_store *make_store(bool no_repack)
{
    const struct expert_store_options options = {
        .n_layers = LAYERS, .n_experts = EXPERTS, .no_repack = no_repack};
    struct expert_store *store = NULL;

    assert_int_equal(expert_store_create(&store, &options, NULL), FERRY_OK);
    for (size_t l = 0; l < LAYERS; l += 2) {
        for (size_t e = 0; e < EXPERTS; e++) {
            struct expert_source s = source_at(l, file_offset(l, e));
            expert_store_set(store, l, e, &s);
        }
    }
    return store;
}

static const bool HAS_EXPERTS[LAYERS] = {true, false, true};
static const char MODEL_HASH[] = "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff";

static inline struct expert_manifest_shape make_shape(void)
{
    return (struct expert_manifest_shape){MODEL_HASH, HAS_EXPERTS, LAYERS, EXPERTS};
}

static inline void hash_of_store(void *arg, size_t layer, size_t expert, char ret_hex[65])
{
    expert_store_hash(arg, layer, expert, ret_hex);
}

static inline struct expert_manifest *make_manifest(struct expert_store *store)
{
    struct expert_manifest *manifest = NULL;
    struct expert_manifest_shape shape = make_shape();
    assert_int_equal(expert_manifest_create(&manifest, &shape, hash_of_store, store, NULL),
                     FERRY_OK);
    return manifest;
}

#endif
