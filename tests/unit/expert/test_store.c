/* The resident expert store: sizes, packing order, hashes over file bytes, and law 3: a layer with
 * a missing expert is no layer. */
#include "tests/unit/unit.h"

#include "base/alloc.h"
#include "expert/store.h"

#include <openssl/evp.h>
#include <string.h>

enum { LAYERS = 2, EXPERTS = 3, HIDDEN = 64, WIDTH = 40 };

static unsigned char file[1 << 17];

/* Gate and up Q8_0 [WIDTH, HIDDEN], down F32 [HIDDEN, WIDTH], all taken from `file`. */
static struct expert_source source_at(size_t offset)
{
    struct expert_source s = {0};
    struct weight *all[3] = {&s.gate, &s.up, &s.down};

    s.gate = s.up = (struct weight){
        .dtype = DTYPE_Q8_0, .n_cols = WIDTH, .k = HIDDEN, .row_bytes = HIDDEN / 32 * 34};
    s.down =
        (struct weight){.dtype = DTYPE_F32, .n_cols = HIDDEN, .k = WIDTH, .row_bytes = WIDTH * 4};
    for (int i = 0; i < 3; i++) {
        all[i]->rows = file + offset;
        all[i]->group_bytes = pack_group_bytes(all[i]->dtype, all[i]->k);
        offset += all[i]->n_cols * all[i]->row_bytes;
    }
    return s;
}

enum { FILE_BYTES = 2 * WIDTH * (HIDDEN / 32 * 34) + HIDDEN * WIDTH * 4 };

static size_t packed_bytes(void)
{
    return 2 * (WIDTH / 8) * pack_group_bytes(DTYPE_Q8_0, HIDDEN) +
           (HIDDEN / 8) * pack_group_bytes(DTYPE_F32, WIDTH);
}

static struct expert_store *make_store(void)
{
    struct expert_store *store = NULL;
    assert_int_equal(expert_store_create(&store, LAYERS, EXPERTS, NULL), FERRY_OK);
    return store;
}

static void layers_need_all_their_experts(void **state)
{
    struct expert_store *store = make_store();
    struct expert_source s = source_at(0);

    (void)state;
    assert_null(expert_store_layer(store, 0));
    for (size_t e = 0; e < EXPERTS; e++) {
        assert_null(expert_store_layer(store, 1));
        expert_store_set(store, 1, e, &s);
    }
    const struct ffn_weights *layer = expert_store_layer(store, 1);
    assert_non_null(layer);
    assert_ptr_equal(layer[2].down.rows, s.down.rows);
    assert_null(expert_store_layer(store, 0));
    s.up.rows = NULL; /* half an expert is none */
    for (size_t e = 0; e < EXPERTS; e++)
        expert_store_set(store, 0, e, &s);
    assert_null(expert_store_layer(store, 0));
    expert_store_destroy(store);
    expert_store_destroy(NULL);
}

static void sizes_add_up(void **state)
{
    struct expert_store *store = make_store();

    (void)state;
    assert_int_equal(expert_store_packed_bytes(store), 0);
    assert_int_equal(expert_store_file_bytes(store), 0);
    for (size_t e = 0; e < EXPERTS; e++) {
        struct expert_source s = source_at(e * FILE_BYTES);
        expert_store_set(store, 0, e, &s);
        assert_int_equal(expert_store_file_bytes(store), (e + 1) * FILE_BYTES);
        assert_int_equal(expert_store_packed_bytes(store), (e + 1) * packed_bytes());
    }
    expert_store_destroy(store);
}

static void hash_is_sha256_of_file_bytes(void **state)
{
    struct expert_store *store = make_store();
    char got[65], want[65];
    unsigned char digest[EVP_MAX_MD_SIZE];
    unsigned n = 0;

    (void)state;
    for (size_t e = 0; e < EXPERTS; e++) {
        struct expert_source s = source_at(e * FILE_BYTES);
        expert_store_set(store, 0, e, &s);
        /* source_at lays gate, up and down one behind the other. */
        assert_int_equal(
            EVP_Digest(file + e * FILE_BYTES, FILE_BYTES, digest, &n, EVP_sha256(), NULL), 1);
        assert_int_equal(n, 32);
        for (size_t i = 0; i < 32; i++)
            (void)snprintf(want + 2 * i, 3, "%02x", digest[i]);
        expert_store_hash(store, 0, e, got);
        assert_string_equal(got, want);
    }
    /* Another order of the same bytes is another expert. */
    struct expert_source s = source_at(0), swapped = s;
    swapped.gate = s.up;
    swapped.up = s.gate;
    expert_store_set(store, 1, 0, &s);
    expert_store_hash(store, 1, 0, want);
    expert_store_set(store, 1, 0, &swapped);
    expert_store_hash(store, 1, 0, got);
    assert_string_not_equal(got, want);
    expert_store_destroy(store);
}

static void packing_advances_and_keeps_the_hash(void **state)
{
    const struct device_options options = {2, cpu_best_level()};
    struct device *device = NULL;
    struct expert_store *store = make_store();
    char before[65], after[65];
    size_t size = packed_bytes();
    unsigned char *memory = mem_alloc(EXPERTS * size + 64), *at = memory, *want = mem_alloc(size);

    (void)state;
    assert_int_equal(device_create_cpu(&device, &options, NULL), FERRY_OK);
    memset(memory + EXPERTS * size, 0x77, 64);
    for (size_t e = 0; e < EXPERTS; e++) {
        struct expert_source s = source_at(e * FILE_BYTES);
        expert_store_set(store, 0, e, &s);
        expert_store_hash(store, 0, e, before);
        unsigned char *next = expert_store_pack(store, device, 0, e, at);
        assert_int_equal(next - at, size);
        expert_store_hash(store, 0, e, after); /* of the file's bytes, not of the packed ones */
        assert_string_equal(before, after);
        struct weight gate = s.gate;
        device_weight_pack(device, &gate, want);
        assert_memory_equal(at, want, (WIDTH / 8) * gate.group_bytes);
        at = next;
    }
    for (size_t i = 0; i < 64; i++)
        assert_int_equal(memory[EXPERTS * size + i], 0x77);
    const struct ffn_weights *layer = expert_store_layer(store, 0);
    assert_ptr_equal(layer[0].gate.packed, memory);
    assert_ptr_equal(layer[1].gate.packed, memory + size);
    mem_free(memory);
    mem_free(want);
    device_destroy(device);
    expert_store_destroy(store);
}

static void out_of_memory_is_a_status(void **state)
{
    struct ferry_error err = {0};

    (void)state;
    for (uint64_t n = 1; n <= 2; n++) {
        struct expert_store *store = NULL;
        mem_fail_after(n);
        assert_int_equal(expert_store_create(&store, LAYERS, EXPERTS, &err), FERRY_ERR_NOMEM);
        mem_fail_after(0);
        assert_null(store);
    }
    assert_non_null(strstr(err.msg, "2 layers of 3 experts"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(layers_need_all_their_experts),
        cmocka_unit_test(sizes_add_up),
        cmocka_unit_test(hash_is_sha256_of_file_bytes),
        cmocka_unit_test(packing_advances_and_keeps_the_hash),
        cmocka_unit_test(out_of_memory_is_a_status),
    };
    for (size_t i = 0; i < sizeof file; i++)
        file[i] = (unsigned char)(i * 2654435761u >> 13);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
