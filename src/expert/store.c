/* The expert store. See store.h. */
#include "expert/store.h"

#include "base/alloc.h"
#include "base/assert.h"
#include "base/error.h"
#include "base/limits.h"
#include "base/size.h"
#include "expert/slots.h"
#include "file/hash.h"

#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

enum { N_MATRICES = 3, GROW_BYTES = 32 << 20 }; /* of a slab that is not announced */

/* How an expert stands. COLD -> LOADING by the thread that loads it, which owns its entries until
 * it stores RESIDENT (release; pairs with the acquire of expert_store_resident) or COLD. RESIDENT
 * -> COLD by the engine thread. */
enum residency { COLD, LOADING, RESIDENT };

struct entry {
    const unsigned char *rows[N_MATRICES]; /* gate, up, down in the mapping; NULL: never set */
    unsigned char *memory;                 /* packed home: a slot, or lent; NULL: none yet */
    bool lent;
    atomic_uchar residency;
};

struct expert_store {
    struct expert_store_options options;
    size_t n_layers, n_experts;
    struct ffn_weights *experts; /* [n_layers, n_experts] what the device sees */
    struct entry *entries;       /* [n_layers, n_experts] */
    size_t *file_bytes;          /* [n_layers] of one expert */
    size_t *kinds;               /* [n_layers] index of its slots */
    struct slots *slots;         /* [n_kinds] one size each; room for n_layers */
    size_t n_kinds;
    size_t packed_total, file_total;
    const struct expert_manifest *manifest;
    pthread_mutex_t mutex; /* guards `slots`; never held while anything is read or packed */
};

static enum ferry_status no_memory(const struct expert_store_options *options,
                                   struct ferry_error *err)
{
    return FERRY_FAIL(err, FERRY_ERR_NOMEM, "experts: no memory for %zu layers of %zu experts",
                      options->n_layers, options->n_experts);
}

enum ferry_status expert_store_create(struct expert_store **ret_store,
                                      const struct expert_store_options *options,
                                      struct ferry_error *err)
{
    size_t n_layers = options->n_layers, n = n_layers * options->n_experts;

    struct expert_store *store = mem_zero(sizeof *store);
    if (store == NULL)
        return no_memory(options, err);
    store->options = *options;
    store->n_layers = n_layers;
    store->n_experts = options->n_experts;
    (void)pthread_mutex_init(&store->mutex, NULL);
    store->experts = mem_array(n, sizeof *store->experts);
    store->entries = mem_array(n, sizeof *store->entries);
    store->file_bytes = mem_array(n_layers, sizeof *store->file_bytes);
    store->kinds = mem_array(n_layers, sizeof *store->kinds);
    store->slots = mem_array(n_layers, sizeof *store->slots);
    if (store->experts == NULL || store->entries == NULL || store->file_bytes == NULL ||
        store->kinds == NULL || store->slots == NULL) {
        expert_store_destroy(store);
        return no_memory(options, err);
    }
    *ret_store = store;
    return FERRY_OK;
}

void expert_store_destroy(struct expert_store *store)
{
    if (store == NULL)
        return;
    for (size_t i = 0; i < store->n_kinds; i++)
        slots_fini(&store->slots[i]);
    (void)pthread_mutex_destroy(&store->mutex);
    mem_free(store->experts);
    mem_free(store->entries);
    mem_free(store->file_bytes);
    mem_free(store->kinds);
    mem_free(store->slots);
    mem_free(store);
}

static size_t index_of(const struct expert_store *store, size_t layer, size_t expert)
{
    FERRY_ASSERT(layer < store->n_layers && expert < store->n_experts);
    return layer * store->n_experts + expert;
}

static struct weight *matrix_of(struct ffn_weights *w, int i)
{
    struct weight *all[N_MATRICES] = {&w->gate, &w->up, &w->down};
    return all[i];
}

static size_t matrix_packed_bytes(const struct weight *w)
{
    size_t n = 0;
    bool fits = device_weight_bytes(w->dtype, w->n_cols, w->k, &n);
    FERRY_ASSERT(fits); /* the matrix lies in a file: its size was checked there */
    return n;
}

/* The kind of experts that take n_bytes once packed; a new one if there is none yet. */
static size_t kind_of(struct expert_store *store, size_t n_bytes)
{
    struct slots wanted;

    slots_init(&wanted, n_bytes);
    for (size_t i = 0; i < store->n_kinds; i++) {
        if (store->slots[i].slot_bytes == wanted.slot_bytes)
            return i;
    }
    FERRY_ASSERT(store->n_kinds < store->n_layers);
    store->slots[store->n_kinds] = wanted;
    return store->n_kinds++;
}

void expert_store_set(struct expert_store *store, size_t layer, size_t expert,
                      const struct expert_source *source)
{
    size_t i = index_of(store, layer, expert), packed = 0, in_file = 0;
    struct ffn_weights *w = &store->experts[i];
    struct entry *entry = &store->entries[i];

    FERRY_ASSERT(entry->rows[0] == NULL);
    *w = (struct ffn_weights){source->gate, source->up, source->down};
    for (int m = 0; m < N_MATRICES; m++) {
        struct weight *matrix = matrix_of(w, m);
        entry->rows[m] = matrix->rows;
        matrix->rows = NULL;
        packed += matrix_packed_bytes(matrix);
        in_file += matrix->n_cols * matrix->row_bytes;
    }
    size_t kind = kind_of(store, packed);
    FERRY_ASSERT(store->file_bytes[layer] == 0 ||
                 (store->file_bytes[layer] == in_file && store->kinds[layer] == kind));
    store->kinds[layer] = kind;
    store->file_bytes[layer] = in_file;
    store->packed_total += packed;
    store->file_total += in_file;
}

void expert_store_use_manifest(struct expert_store *store, const struct expert_manifest *manifest)
{
    store->manifest = manifest;
}

const struct expert_manifest *expert_store_manifest(const struct expert_store *store)
{
    return store->manifest;
}

size_t expert_store_packed_bytes(const struct expert_store *store)
{
    return store->packed_total;
}

size_t expert_store_file_bytes(const struct expert_store *store)
{
    return store->file_total;
}

size_t expert_store_one_bytes(const struct expert_store *store, size_t layer)
{
    size_t n = 0;

    for (int m = 0; m < N_MATRICES && store->file_bytes[layer] > 0; m++)
        n += matrix_packed_bytes(matrix_of(&store->experts[index_of(store, layer, 0)], m));
    return n;
}

void expert_store_hash(const struct expert_store *store, size_t layer, size_t expert,
                       char ret_hex[65])
{
    size_t i = index_of(store, layer, expert);
    struct hash *hash = hash_create();

    ret_hex[0] = 0;
    if (hash == NULL)
        return;
    for (int m = 0; m < N_MATRICES; m++) {
        const struct weight *w = matrix_of(&store->experts[i], m);
        hash_raw(hash, store->entries[i].rows[m], w->n_cols * w->row_bytes);
    }
    if (!hash_finish(hash, ret_hex))
        ret_hex[0] = 0;
    hash_destroy(hash);
}

/* ---- who is here ---- */

static enum residency residency_of(const struct expert_store *store, size_t i)
{
    /* acquire: the weights that the loader wrote before are visible with it */
    return (enum residency)atomic_load_explicit(&store->entries[i].residency, memory_order_acquire);
}

bool expert_store_resident(const struct expert_store *store, size_t layer, size_t expert)
{
    return residency_of(store, index_of(store, layer, expert)) == RESIDENT;
}

size_t expert_store_count(const struct expert_store *store, size_t layer)
{
    size_t n = 0, first = index_of(store, layer, 0);

    for (size_t e = 0; e < store->n_experts; e++)
        n += residency_of(store, first + e) == RESIDENT;
    return n;
}

const struct ffn_weights *expert_store_layer(const struct expert_store *store, size_t layer)
{
    return &store->experts[index_of(store, layer, 0)];
}

/* ---- loading ---- */

/* One call of expert_store_load_many. */
struct load {
    struct expert_store *store;
    const struct expert_id *ids;
    unsigned char *mine;     /* [n] whether this call loads it */
    atomic_size_t first_bad; /* lowest number of an expert that failed; n: none. Relaxed: read
                                after the threads have joined */
    size_t n;
};

static size_t id_index(const struct load *load, size_t k)
{
    return index_of(load->store, load->ids[k].layer, load->ids[k].expert);
}

/* A slot for the expert; the kind grows by a slab when it is full. */
static enum ferry_status take_slot(struct expert_store *store, size_t layer, struct entry *entry,
                                   struct ferry_error *err)
{
    struct slots *slots = &store->slots[store->kinds[layer]];
    enum ferry_status st = FERRY_OK;

    (void)pthread_mutex_lock(&store->mutex);
    entry->memory = slots_take(slots);
    if (entry->memory == NULL) {
        st = slots_reserve(slots, max_size(GROW_BYTES / slots->slot_bytes, 1), err);
        if (st == FERRY_OK)
            entry->memory = slots_take(slots);
    }
    (void)pthread_mutex_unlock(&store->mutex);
    return st;
}

static void give_slot(struct expert_store *store, size_t layer, struct entry *entry)
{
    if (entry->lent || entry->memory == NULL)
        return;
    (void)pthread_mutex_lock(&store->mutex);
    slots_give(&store->slots[store->kinds[layer]], entry->memory);
    (void)pthread_mutex_unlock(&store->mutex);
    entry->memory = NULL;
}

/* Claims the experts that are cold, and their memory. */
static enum ferry_status claim(struct load *load, struct ferry_error *err)
{
    struct expert_store *store = load->store;
    enum ferry_status st = FERRY_OK;

    for (size_t k = 0; k < load->n && st == FERRY_OK; k++) {
        struct entry *entry = &store->entries[id_index(load, k)];
        unsigned char seen = COLD;
        FERRY_ASSERT(entry->rows[0] != NULL);
        /* acquire: pairs with the release of whoever gave the expert up */
        load->mine[k] = atomic_compare_exchange_strong_explicit(
            &entry->residency, &seen, LOADING, memory_order_acquire, memory_order_acquire);
        if (!load->mine[k] && seen == LOADING)
            return FERRY_AGAIN;
        if (load->mine[k] && entry->memory == NULL && !store->options.no_repack)
            st = take_slot(store, load->ids[k].layer, entry, err);
    }
    return st;
}

/* Gives up what was claimed. */
static void abandon(struct load *load)
{
    for (size_t k = 0; k < load->n; k++) {
        struct entry *entry = &load->store->entries[id_index(load, k)];
        if (!load->mine[k])
            continue;
        give_slot(load->store, load->ids[k].layer, entry);
        atomic_store_explicit(&entry->residency, COLD, memory_order_release);
    }
}

static void verify_some(void *arg, size_t begin, size_t end, int thread_index)
{
    struct load *load = arg;
    char hex[65];

    (void)thread_index;
    for (size_t k = begin; k < end; k++) {
        const struct expert_id *id = &load->ids[k];
        size_t bad = atomic_load_explicit(&load->first_bad, memory_order_relaxed);
        if (!load->mine[k] || bad < k)
            continue;
        expert_store_hash(load->store, id->layer, id->expert, hex);
        if (strcmp(hex, expert_manifest_hash(load->store->manifest, id->layer, id->expert)) == 0)
            continue;
        while (k < bad &&
               !atomic_compare_exchange_weak_explicit(&load->first_bad, &bad, k,
                                                      memory_order_relaxed, memory_order_relaxed))
            continue;
    }
}

static enum ferry_status verify(struct load *load, struct device *device, struct ferry_error *err)
{
    char hex[65];

    if (load->store->manifest == NULL)
        return FERRY_OK;
    if (device != NULL)
        device_for(device, load->n, 1, verify_some, load);
    else
        verify_some(load, 0, load->n, 0);
    size_t bad = atomic_load_explicit(&load->first_bad, memory_order_relaxed);
    if (bad == load->n)
        return FERRY_OK;
    const struct expert_id *id = &load->ids[bad];
    const char *wanted = expert_manifest_hash(load->store->manifest, id->layer, id->expert);
    expert_store_hash(load->store, id->layer, id->expert, hex);
    if (hex[0] == 0 || strcmp(hex, wanted) == 0) /* could not be computed, here or before */
        return FERRY_FAIL(err, FERRY_ERR_NOMEM, "layer %u expert %u: no memory to hash it",
                          id->layer, id->expert);
    return FERRY_FAIL(err, FERRY_ERR_FORMAT,
                      "layer %u expert %u: its bytes have SHA-256 %s, the manifest says %s; the "
                      "file is damaged or "
                      "another one: fetch it again",
                      id->layer, id->expert, hex, wanted);
}

/* Packs one claimed expert and makes it known. */
static void pack_and_publish(struct load *load, struct device *device, size_t k)
{
    struct ffn_weights *w = &load->store->experts[id_index(load, k)];
    struct entry *entry = &load->store->entries[id_index(load, k)];
    unsigned char *dst = entry->memory;

    for (int m = 0; m < N_MATRICES; m++) {
        struct weight *matrix = matrix_of(w, m), source = *matrix;
        source.rows = entry->rows[m];
        if (load->store->options.no_repack) {
            matrix->rows = entry->rows[m];
            continue;
        }
        if (device != NULL)
            device_weight_pack(device, &source, dst);
        else
            device_weight_pack_alone(&source, dst);
        matrix->packed = source.packed;
        dst += matrix_packed_bytes(matrix);
    }
    atomic_store_explicit(&entry->residency, RESIDENT, memory_order_release);
}

enum ferry_status expert_store_load_many(struct expert_store *store, struct device *device,
                                         const struct expert_id *ids, size_t n,
                                         struct ferry_error *err)
{
    struct load load = {.store = store, .ids = ids, .n = n};
    unsigned char few[64] = {0};

    atomic_init(&load.first_bad, n);
    load.mine = n <= sizeof few ? few : mem_zero(n); /* no heap for what a step may ask for */
    if (load.mine == NULL)
        return FERRY_FAIL(err, FERRY_ERR_NOMEM, "experts: no memory to load %zu", n);
    enum ferry_status st = claim(&load, err);
    if (st == FERRY_OK && store->options.checkpoint != NULL)
        st = checkpoint_recheck(store->options.checkpoint, err);
    if (st == FERRY_OK)
        st = verify(&load, device, err);
    for (size_t k = 0; k < n && st == FERRY_OK; k++) {
        if (load.mine[k])
            pack_and_publish(&load, device, k);
    }
    if (st != FERRY_OK)
        abandon(&load);
    if (load.mine != few)
        mem_free(load.mine);
    return st;
}

enum ferry_status expert_store_load(struct expert_store *store, struct device *device, size_t layer,
                                    size_t expert, struct ferry_error *err)
{
    const struct expert_id id = {(uint32_t)layer, (uint32_t)expert};

    FERRY_ASSERT(layer < store->n_layers && expert < store->n_experts);
    return expert_store_load_many(store, device, &id, 1, err);
}

void expert_store_lend(struct expert_store *store, size_t layer, size_t expert, void *memory)
{
    struct entry *entry = &store->entries[index_of(store, layer, expert)];

    FERRY_ASSERT(entry->memory == NULL);
    entry->memory = memory;
    entry->lent = true;
}

void expert_store_unload(struct expert_store *store, size_t layer, size_t expert)
{
    size_t i = index_of(store, layer, expert);

    if (residency_of(store, i) != RESIDENT)
        return;
    for (int m = 0; m < N_MATRICES; m++) {
        struct weight *matrix = matrix_of(&store->experts[i], m);
        matrix->packed = NULL;
        matrix->rows = NULL;
    }
    give_slot(store, layer, &store->entries[i]);
    /* release: a thread that claims the expert next sees its entries as they are now */
    atomic_store_explicit(&store->entries[i].residency, COLD, memory_order_release);
}

/* ---- what a placement asks for ---- */

bool expert_store_wants(const struct placement *placement, int seat, size_t layer, size_t expert)
{
    return placement == NULL || (placement_listed(placement, layer, expert) >> seat & 1) != 0;
}

static size_t count_listed(const struct expert_store *store, const struct placement *placement,
                           int seat, size_t layer)
{
    size_t n = 0;

    for (size_t e = 0; e < store->n_experts && store->file_bytes[layer] > 0; e++)
        n += expert_store_wants(placement, seat, layer, e);
    return n;
}

static uint64_t all_seats(const struct placement *placement)
{
    return UINT64_MAX >> (64 - placement_n_seats(placement));
}

/* Experts of a kind that come to the seat, unlisted, when `lost` is lost. */
static size_t count_orphans(const struct expert_store *store, const struct placement *placement,
                            int seat, int lost, size_t kind)
{
    uint64_t holders[LIMIT_EXPERTS], live = all_seats(placement) & ~((uint64_t)1 << lost);
    size_t n = 0;

    for (size_t l = 0; l < store->n_layers; l++) {
        if (store->file_bytes[l] == 0 || store->kinds[l] != kind)
            continue;
        placement_layer_holders(placement, l, live, holders);
        for (size_t e = 0; e < store->n_experts; e++)
            n += (holders[e] >> seat & 1) != 0 && !expert_store_wants(placement, seat, l, e);
    }
    return n;
}

/* Most orphans of a kind that any one loss brings. */
static size_t room_of(const struct expert_store *store, const struct placement *placement, int seat,
                      size_t kind)
{
    size_t most = 0;

    if (placement == NULL || placement_losses_survived(placement, all_seats(placement)) > 0)
        return 0;
    for (int lost = 0; lost < (int)placement_n_seats(placement); lost++) {
        if (lost != seat)
            most = max_size(most, count_orphans(store, placement, seat, lost, kind));
    }
    return most;
}

void expert_store_share(const struct expert_store *store, const struct placement *placement,
                        int seat, struct expert_share *ret)
{
    struct expert_share share = {0};

    for (size_t l = 0; l < store->n_layers; l++) {
        size_t n = count_listed(store, placement, seat, l);
        share.n_experts += n;
        share.packed_bytes += n > 0 ? n * store->slots[store->kinds[l]].slot_bytes : 0;
        share.file_bytes += n * store->file_bytes[l];
    }
    for (size_t kind = 0; kind < store->n_kinds; kind++) {
        size_t n = room_of(store, placement, seat, kind);
        share.n_room += n;
        share.room_bytes += n * store->slots[kind].slot_bytes;
    }
    *ret = share;
}

enum ferry_status expert_store_reserve(struct expert_store *store,
                                       const struct placement *placement, int seat,
                                       struct ferry_error *err)
{
    enum ferry_status st = FERRY_OK;

    for (size_t kind = 0; kind < store->n_kinds && !store->options.no_repack && st == FERRY_OK;
         kind++) {
        size_t n = room_of(store, placement, seat, kind);
        for (size_t l = 0; l < store->n_layers; l++)
            n += store->kinds[l] == kind ? count_listed(store, placement, seat, l) : 0;
        st = slots_reserve(&store->slots[kind], n, err);
    }
    return st;
}

/* Experts that the seat holds and lacks, or that it has and does not hold. */
static size_t list(const struct expert_store *store, const struct placement *placement, int seat,
                   uint64_t live, bool resident, struct expert_id *ret, size_t max)
{
    uint64_t holders[LIMIT_EXPERTS];
    size_t n = 0;

    for (size_t l = 0; l < store->n_layers; l++) {
        if (store->file_bytes[l] == 0)
            continue;
        placement_layer_holders(placement, l, live, holders);
        for (size_t e = 0; e < store->n_experts; e++) {
            bool held = (holders[e] >> seat & 1) != 0;
            if (held == resident || expert_store_resident(store, l, e) != resident)
                continue;
            if (n < max)
                ret[n] = (struct expert_id){(uint32_t)l, (uint32_t)e};
            n++;
        }
    }
    return n;
}

size_t expert_store_missing(const struct expert_store *store, const struct placement *placement,
                            int seat, uint64_t live, struct expert_id *ret, size_t max)
{
    return list(store, placement, seat, live, false, ret, max);
}

size_t expert_store_surplus(const struct expert_store *store, const struct placement *placement,
                            int seat, uint64_t live, struct expert_id *ret, size_t max)
{
    return list(store, placement, seat, live, true, ret, max);
}
