/* The expert store. Law 3 first: an expert that is not resident has no weights to run with, and one
 * whose bytes are not the manifest's never gets any. Then: the same bytes however it was loaded,
 * shares of seats, and loads beside a reading thread. */
#include "make.h"

#include <openssl/evp.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

enum { EXPERT_LAYERS = 2 };

static struct device *device;

static size_t packed_bytes(size_t layer)
{
    return 2 * (WIDTH / 8) * pack_group_bytes(DTYPE_Q8_0, HIDDEN) +
           (HIDDEN / 8) * pack_group_bytes(layer == 2 ? DTYPE_F16 : DTYPE_F32, WIDTH);
}

static size_t file_bytes(size_t layer)
{
    return layer == 2 ? FILE_BYTES - HIDDEN * WIDTH * 2 : FILE_BYTES;
}

/* What an expert must look like once packed. */
static void check_packed(const struct expert_store *store, size_t layer, size_t expert)
{
    struct expert_source s = source_at(layer, file_offset(layer, expert));
    const struct ffn_weights *got = &expert_store_layer(store, layer)[expert];
    const struct weight *have[3] = {&got->gate, &got->up, &got->down};
    struct weight *want[3] = {&s.gate, &s.up, &s.down};

    assert_true(expert_store_resident(store, layer, expert));
    for (int i = 0; i < 3; i++) {
        size_t n = 0;
        assert_true(device_weight_bytes(want[i]->dtype, want[i]->n_cols, want[i]->k, &n));
        unsigned char *packed = mem_alloc(n);
        device_weight_pack_alone(want[i], packed);
        assert_non_null(have[i]->packed);
        assert_memory_equal(have[i]->packed, packed, n);
        assert_null(have[i]->rows);
        mem_free(packed);
    }
}

static void check_absent(const struct expert_store *store, size_t layer, size_t expert)
{
    const struct ffn_weights *w = &expert_store_layer(store, layer)[expert];

    assert_false(expert_store_resident(store, layer, expert));
    assert_null(w->gate.packed);
    assert_null(w->up.packed);
    assert_null(w->down.packed);
    assert_null(w->gate.rows);
    assert_null(w->up.rows);
    assert_null(w->down.rows);
}

static void nothing_runs_before_it_is_loaded(void **state)
{
    struct expert_store *store = make_store(false), *mapped = make_store(true);

    (void)state;
    for (size_t l = 0; l < LAYERS; l++) {
        for (size_t e = 0; e < EXPERTS; e++) {
            check_absent(store, l, e);
            check_absent(mapped, l, e);
        }
        assert_int_equal(expert_store_count(store, l), 0);
    }
    /* Shapes and formats are there: the device asks the first expert for them. */
    assert_int_equal(expert_store_layer(store, 2)[0].down.dtype, DTYPE_F16);
    assert_int_equal(expert_store_layer(store, 2)[0].down.n_cols, HIDDEN);
    expert_store_unload(store, 0, 0); /* nothing to do */
    expert_store_destroy(store);
    expert_store_destroy(mapped);
    expert_store_destroy(NULL);
}

static void sizes_add_up(void **state)
{
    struct expert_store *store = make_store(false);

    (void)state;
    assert_int_equal(expert_store_one_bytes(store, 0), packed_bytes(0));
    assert_int_equal(expert_store_one_bytes(store, 1), 0);
    assert_int_equal(expert_store_one_bytes(store, 2), packed_bytes(2));
    assert_int_equal(expert_store_packed_bytes(store),
                     EXPERTS * (packed_bytes(0) + packed_bytes(2)));
    assert_int_equal(expert_store_file_bytes(store), EXPERTS * (file_bytes(0) + file_bytes(2)));
    expert_store_destroy(store);
}

static void hash_is_sha256_of_file_bytes(void **state)
{
    struct expert_store *store = make_store(false);
    char got[65], want[65];
    unsigned char digest[EVP_MAX_MD_SIZE];
    unsigned n = 0;

    (void)state;
    for (size_t l = 0; l < LAYERS; l += 2) {
        for (size_t e = 0; e < EXPERTS; e++) {
            /* source_at lays gate, up and down one behind the other. */
            assert_int_equal(
                EVP_Digest(file + file_offset(l, e), file_bytes(l), digest, &n, EVP_sha256(), NULL),
                1);
            for (size_t i = 0; i < 32; i++)
                (void)snprintf(want + 2 * i, 3, "%02x", digest[i]);
            expert_store_hash(store, l, e, got);
            assert_string_equal(got, want);
            assert_int_equal(expert_store_load(store, device, l, e, NULL), FERRY_OK);
            expert_store_hash(store, l, e, got); /* not of the packed ones */
            assert_string_equal(got, want);
        }
    }
    mem_fail_after(1);
    expert_store_hash(store, 0, 0, got);
    mem_fail_after(0);
    assert_string_equal(got, "");
    expert_store_destroy(store);
}

static void bytes_do_not_depend_on_the_way(void **state)
{
    struct expert_store *lent = make_store(false), *many = make_store(false),
                        *alone = make_store(false), *mapped = make_store(true);
    unsigned char *memory = mem_alloc(expert_store_packed_bytes(lent) + 64), *at = memory;
    struct expert_id ids[EXPERT_LAYERS * EXPERTS];
    size_t n = 0;

    (void)state;
    memset(memory + expert_store_packed_bytes(lent), 0x77, 64);
    for (size_t l = 0; l < LAYERS; l += 2) {
        for (size_t e = 0; e < EXPERTS; e++) {
            expert_store_lend(lent, l, e, at);
            at += packed_bytes(l);
            ids[n++] = (struct expert_id){(uint32_t)l, (uint32_t)e};
        }
    }
    assert_int_equal(expert_store_load_many(lent, device, ids, n, NULL), FERRY_OK);
    assert_int_equal(expert_store_reserve(many, NULL, 0, NULL), FERRY_OK);
    assert_int_equal(expert_store_load_many(many, device, ids, n, NULL), FERRY_OK);
    assert_int_equal(expert_store_load_many(many, device, ids, n, NULL), FERRY_OK); /* again */
    assert_int_equal(expert_store_load_many(many, device, ids, 0, NULL), FERRY_OK);
    for (size_t i = n; i-- > 0;) { /* the other way round */
        assert_int_equal(expert_store_load(alone, NULL, ids[i].layer, ids[i].expert, NULL),
                         FERRY_OK);
        assert_int_equal(expert_store_load(mapped, NULL, ids[i].layer, ids[i].expert, NULL),
                         FERRY_OK);
    }
    at = memory;
    for (size_t i = 0; i < n; i++) {
        size_t l = ids[i].layer, e = ids[i].expert;
        check_packed(lent, l, e);
        check_packed(many, l, e);
        check_packed(alone, l, e);
        assert_ptr_equal(expert_store_layer(lent, l)[e].gate.packed, at);
        at += packed_bytes(l);
        const struct ffn_weights *w = &expert_store_layer(mapped, l)[e];
        assert_true(expert_store_resident(mapped, l, e));
        assert_null(w->gate.packed);
        assert_ptr_equal(w->gate.rows, file + file_offset(l, e));
        assert_ptr_equal(w->up.rows, file + file_offset(l, e) + WIDTH * w->gate.row_bytes);
    }
    assert_int_equal(expert_store_count(many, 0), EXPERTS);
    assert_int_equal(expert_store_count(many, 1), 0);
    for (size_t i = 0; i < 64; i++)
        assert_int_equal(memory[expert_store_packed_bytes(lent) + i], 0x77);
    expert_store_unload(lent, 0, 3); /* lent memory is its home */
    check_absent(lent, 0, 3);
    assert_int_equal(expert_store_load(lent, device, 0, 3, NULL), FERRY_OK);
    check_packed(lent, 0, 3);
    assert_ptr_equal(expert_store_layer(lent, 0)[3].gate.packed, memory + 3 * packed_bytes(0));
    expert_store_unload(mapped, 2, 1);
    check_absent(mapped, 2, 1);
    expert_store_destroy(lent);
    expert_store_destroy(many);
    expert_store_destroy(alone);
    expert_store_destroy(mapped);
    mem_free(memory);
}

/* Law 3: one wrong bit anywhere in an expert's three matrices. */
static void a_wrong_hash_refuses(void **state)
{
    static const size_t BYTES[] = {0, FILE_BYTES / 3, FILE_BYTES - 1};
    struct expert_id ids[EXPERTS];
    struct ferry_error err = {0};
    char seen[65];

    (void)state;
    for (size_t e = 0; e < EXPERTS; e++)
        ids[e] = (struct expert_id){0, (uint32_t)e};
    for (size_t way = 0; way < 12; way++) {
        struct expert_store *store = make_store(way % 2 == 1);
        struct expert_manifest *manifest = make_manifest(store);
        struct device *by = way % 4 < 2 ? device : NULL;
        size_t byte = file_offset(0, 4) + BYTES[way % 3];
        expert_store_use_manifest(store, manifest);
        assert_ptr_equal(expert_store_manifest(store), manifest);
        file[byte] ^= 4;
        expert_store_hash(store, 0, 4, seen);
        assert_int_equal(expert_store_load(store, by, 0, 4, &err), FERRY_ERR_FORMAT);
        assert_non_null(strstr(err.msg, "layer 0 expert 4"));
        assert_non_null(strstr(err.msg, seen));
        assert_non_null(strstr(err.msg, expert_manifest_hash(manifest, 0, 4)));
        assert_int_equal(expert_store_load_many(store, by, ids, EXPERTS, &err), FERRY_ERR_FORMAT);
        for (size_t e = 0; e < EXPERTS; e++)
            check_absent(store, 0, e); /* all or none */
        assert_int_equal(expert_store_load_many(store, by, ids, 4, &err), FERRY_OK);
        assert_int_equal(expert_store_load_many(store, by, ids, EXPERTS, &err), FERRY_ERR_FORMAT);
        assert_int_equal(expert_store_count(store, 0), 4); /* those that were there stay */
        file[byte] ^= 4;
        assert_int_equal(expert_store_load_many(store, by, ids, EXPERTS, &err), FERRY_OK);
        assert_int_equal(expert_store_count(store, 0), EXPERTS);
        mem_fail_after(1); /* no memory to hash with is no wrong hash */
        enum ferry_status st = expert_store_load(store, by, 2, 0, &err);
        mem_fail_after(0);
        assert_true(st == FERRY_OK || st == FERRY_ERR_NOMEM);
        expert_store_destroy(store);
        expert_manifest_destroy(manifest);
    }
    struct expert_store *store = make_store(false); /* no manifest: nothing to compare with */
    file[file_offset(0, 4)] ^= 4;
    assert_int_equal(expert_store_load(store, device, 0, 4, &err), FERRY_OK);
    file[file_offset(0, 4)] ^= 4;
    expert_store_destroy(store);
}

static void loads_and_unloads_do_not_grow(void **state)
{
    struct expert_store *store = make_store(false);
    uint64_t calls = 0;

    (void)state;
    for (size_t round = 0; round < 1000; round++) {
        size_t l = round % 2 * 2, e = round * 5 % EXPERTS;
        assert_int_equal(expert_store_load(store, round % 3 == 0 ? NULL : device, l, e, NULL),
                         FERRY_OK);
        if (round == 1) /* each kind has its slab */
            calls = mem_count_calls();
        if (round % 97 == 0)
            check_packed(store, l, e);
        expert_store_unload(store, l, e);
        check_absent(store, l, e);
    }
    assert_true(mem_count_calls() - calls < 200); /* those of check_packed */
    expert_store_destroy(store);
}

static void seats_have_shares(void **state)
{
    struct expert_store *store = make_store(false);
    struct placement *p = NULL;
    struct expert_share share;
    struct expert_id ids[2 * EXPERTS];

    (void)state;
    expert_store_share(store, NULL, 0, &share);
    assert_int_equal(share.n_experts, 2 * EXPERTS);
    assert_int_equal(share.file_bytes, expert_store_file_bytes(store));
    assert_int_equal(share.n_room, 0);
    /* 4 seats of 6 experts: seat 0 has 0 and 1, seat 1 has 2, seat 2 has 3 and 4, seat 3 has 5. */
    assert_int_equal(placement_contiguous(&p, LAYERS, EXPERTS, 4, 1, NULL), FERRY_OK);
    expert_store_share(store, p, 1, &share);
    assert_int_equal(share.n_experts, 2);
    assert_int_equal(share.file_bytes, file_bytes(0) + file_bytes(2));
    assert_int_equal(share.packed_bytes, packed_bytes(0) + packed_bytes(2));
    assert_int_equal(share.n_room, 2); /* one of each layer, when seat 0 or 2 is lost */
    assert_int_equal(share.room_bytes, packed_bytes(0) + packed_bytes(2));
    assert_true(expert_store_wants(p, 1, 0, 2));
    assert_false(expert_store_wants(p, 1, 0, 3));
    assert_true(expert_store_wants(NULL, 0, 0, 3));

    assert_int_equal(expert_store_reserve(store, p, 1, NULL), FERRY_OK);
    uint64_t calls = mem_count_calls();
    assert_int_equal(expert_store_missing(store, p, 1, 15, ids, 2 * EXPERTS), 2);
    assert_int_equal(expert_store_load_many(store, device, ids, 2, NULL), FERRY_OK);
    assert_int_equal(expert_store_missing(store, p, 1, 15, ids, 2 * EXPERTS), 0);
    /* Seat 2 is lost: of its 3 and 4, the first goes to seat 1, which has fewest. */
    assert_int_equal(expert_store_missing(store, p, 1, 11, ids, 1), 2);
    assert_int_equal(expert_store_missing(store, p, 1, 11, ids, 2 * EXPERTS), 2);
    assert_int_equal(ids[1].layer, 2);
    assert_int_equal(ids[1].expert, 3);
    assert_int_equal(expert_store_load_many(store, device, ids, 2, NULL), FERRY_OK);
    assert_int_equal(mem_count_calls(), calls); /* the room was there */
    check_packed(store, 2, 3);
    /* It is back: what it holds is one too many here. */
    assert_int_equal(expert_store_surplus(store, p, 1, 11, ids, 2 * EXPERTS), 0);
    assert_int_equal(expert_store_surplus(store, p, 1, 15, ids, 2 * EXPERTS), 2);
    assert_int_equal(ids[0].layer, 0);
    assert_int_equal(ids[0].expert, 3);
    for (size_t i = 0; i < 2; i++)
        expert_store_unload(store, ids[i].layer, ids[i].expert);
    /* All others are lost: everything is here, in more memory than was announced. */
    assert_int_equal(expert_store_missing(store, p, 1, 2, ids, 2 * EXPERTS), 10);
    assert_int_equal(expert_store_load_many(store, device, ids, 10, NULL), FERRY_OK);
    for (size_t e = 0; e < EXPERTS; e++) {
        check_packed(store, 0, e);
        check_packed(store, 2, e);
    }
    placement_destroy(p);
    assert_int_equal(placement_contiguous(&p, LAYERS, EXPERTS, 4, 2, NULL), FERRY_OK);
    expert_store_share(store, p, 1, &share);
    assert_int_equal(share.n_experts, 6); /* 0, 1, 2 */
    assert_int_equal(share.n_room, 0);    /* any one may be lost */
    placement_destroy(p);
    expert_store_destroy(store);
}

/* A thread that loads everything, round after round. */
struct loading {
    struct expert_store *store;
    atomic_bool over;
    atomic_uint n_loaded;
};

static void *load_always(void *arg)
{
    struct loading *l = arg;

    while (!atomic_load(&l->over)) {
        for (size_t i = 0; i < 2 * EXPERTS; i++) {
            size_t layer = i / EXPERTS * 2, expert = i % EXPERTS;
            if (expert_store_resident(l->store, layer, expert))
                continue;
            enum ferry_status st = expert_store_load(l->store, NULL, layer, expert, NULL);
            if (st != FERRY_OK && st != FERRY_AGAIN)
                return l;
            atomic_fetch_add(&l->n_loaded, 1);
        }
    }
    return NULL;
}

/* The engine's side: whatever is resident is whole. */
static void loads_run_beside_the_engine(void **state)
{
    struct loading l = {.store = make_store(false)};
    struct expert_manifest *manifest = make_manifest(l.store);
    pthread_t threads[2];
    void *failed = NULL;
    size_t n_seen = 0;

    (void)state;
    expert_store_use_manifest(l.store, manifest);
    for (size_t i = 0; i < 2; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, load_always, &l), 0);
    for (size_t i = 0; n_seen < 300 && i < 200000000; i++) {
        size_t layer = i % 2 * 2, expert = i * 7 % EXPERTS;
        if (!expert_store_resident(l.store, layer, expert))
            continue;
        check_packed(l.store, layer, expert);
        if (n_seen++ % 3 != 0)
            expert_store_unload(l.store, layer, expert);
    }
    atomic_store(&l.over, true);
    for (size_t i = 0; i < 2; i++) {
        assert_int_equal(pthread_join(threads[i], &failed), 0);
        assert_null(failed);
    }
    assert_int_equal(n_seen, 300);
    expert_store_destroy(l.store);
    expert_manifest_destroy(manifest);
}

static void out_of_memory_is_a_status(void **state)
{
    const struct expert_store_options options = {.n_layers = LAYERS, .n_experts = EXPERTS};
    struct ferry_error err = {0};
    struct expert_id ids[100];
    struct placement *p = NULL;

    (void)state;
    for (uint64_t n = 1; n <= 6; n++) {
        struct expert_store *store = NULL;
        mem_fail_after(n);
        assert_int_equal(expert_store_create(&store, &options, &err), FERRY_ERR_NOMEM);
        mem_fail_after(0);
        assert_null(store);
    }
    assert_non_null(strstr(err.msg, "3 layers of 6 experts"));
    struct expert_store *store = make_store(false);
    assert_int_equal(placement_contiguous(&p, LAYERS, EXPERTS, 2, 1, NULL), FERRY_OK);
    for (uint64_t n = 1; n <= 6; n++) {
        mem_fail_after(n);
        enum ferry_status st = expert_store_reserve(store, p, 0, &err);
        mem_fail_after(0);
        if (n <= 3) /* one slab may then be there already, as later rounds find it */
            assert_int_equal(st, FERRY_ERR_NOMEM);
    }
    assert_non_null(strstr(err.msg, "experts: no memory for 6 more of "));
    placement_destroy(p);
    expert_store_destroy(store);
    store = make_store(false);
    for (uint64_t n = 1; n <= 3; n++) {
        mem_fail_after(n);
        assert_int_equal(expert_store_load(store, device, 0, 1, &err), FERRY_ERR_NOMEM);
        mem_fail_after(0);
        check_absent(store, 0, 1);
    }
    for (size_t i = 0; i < 100; i++) /* too many for the stack; the first alone is distinct */
        ids[i] = (struct expert_id){0, 1};
    mem_fail_after(1);
    assert_int_equal(expert_store_load_many(store, device, ids, 100, &err), FERRY_ERR_NOMEM);
    mem_fail_after(0);
    assert_int_equal(expert_store_load(store, device, 0, 1, &err), FERRY_OK);
    check_packed(store, 0, 1);
    expert_store_destroy(store);
}

static int setup(void **state)
{
    const struct device_options options = {2, cpu_best_level()};

    (void)state;
    fill_file();
    return device_create_cpu(&device, &options, NULL) != FERRY_OK;
}

static int teardown(void **state)
{
    (void)state;
    device_destroy(device);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nothing_runs_before_it_is_loaded),
        cmocka_unit_test(sizes_add_up),
        cmocka_unit_test(hash_is_sha256_of_file_bytes),
        cmocka_unit_test(bytes_do_not_depend_on_the_way),
        cmocka_unit_test(a_wrong_hash_refuses),
        cmocka_unit_test(loads_and_unloads_do_not_grow),
        cmocka_unit_test(seats_have_shares),
        cmocka_unit_test(loads_run_beside_the_engine),
        cmocka_unit_test(out_of_memory_is_a_status),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
