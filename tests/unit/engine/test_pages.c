/* KV pages: counts, prefixes, eviction; then 200,000 random operations beside a plain model of
 * them.
 *
 * The source is included, not only its header: equal hashes cannot be made without the cache's
 * secret seed, and the lists and the tree are checked from inside. */
#include "tests/unit/unit.h"

#include "engine/pages.c"

#include <stdlib.h>

enum { CHUNK = KERNEL_KV_CHUNK };

static const struct model_config CONFIG = {.n_layers = 1, .n_kv_heads = 1, .head_dim = 2};
static const unsigned char KEYS[2][PAGE_KEY_BYTES] = {{1}, {1, 2}};

static struct page_cache *open_cache(size_t n_pages)
{
    struct page_cache *cache = NULL;
    struct ferry_error err = {0};

    if (page_cache_create(&cache, &CONFIG, DTYPE_F16, n_pages, &err) != FERRY_OK)
        fail_msg("%s", err.msg);
    return cache;
}

/* ids [CHUNK]: `same` ids of a common beginning, then others that `salt` makes. */
static void fill_ids(int32_t *ids, size_t same, int32_t salt)
{
    for (size_t i = 0; i < CHUNK; i++)
        ids[i] = (int32_t)i % 11 + (i < same ? 0 : 100 * salt);
}

/* Every list and count agrees with every other. */
static void check_inside(const struct page_cache *c)
{
    size_t n_listed = 0, n_published = 0, n_used = 0, n_in_buckets = 0, n_unreferenced = 0;

    for (const struct page *p = c->oldest; p != NULL; p = p->newer) {
        assert_true(p->published && p->n_refs == 0);
        assert_ptr_equal(p->newer != NULL ? p->newer->older : c->newest, p);
        n_listed++;
    }
    for (size_t i = 0; i < c->n_pages; i++) {
        const struct page *p = &c->pages[i];
        n_used += p->data != NULL;
        n_published += p->published;
        n_unreferenced += p->published && p->n_refs == 0;
        if (p->data != NULL)
            assert_true(p->published || p->n_refs == 1);
        for (const struct page *child = p->children; child != NULL; child = child->next_sibling) {
            assert_true(p->published && child->published);
            assert_ptr_equal(child->parent, p);
            assert_true(p->n_refs >= (child->n_refs > 0 ? 1 : 0));
        }
    }
    for (size_t i = 0; i < c->n_buckets; i++) {
        for (const struct page *p = c->buckets[i]; p != NULL; p = p->next_in_bucket)
            n_in_buckets++;
    }
    assert_int_equal(n_listed, c->n_unreferenced);
    assert_int_equal(n_listed, n_unreferenced);
    assert_int_equal(n_in_buckets, n_published);
    assert_int_equal(n_used, c->n_pages - kv_pool_n_free(c->pool));
}

static void pages_are_counted(void **state)
{
    struct page_cache *c = open_cache(3);
    struct page *pages[3];

    (void)state;
    assert_int_equal(page_cache_n_pages(c), 3);
    assert_int_equal(page_cache_n_available(c), 3);
    for (size_t i = 0; i < 3; i++) {
        pages[i] = page_take(c);
        assert_non_null(pages[i]);
        assert_false(page_is_published(pages[i]));
        memset(page_data(pages[i]), (int)i + 1, c->page_bytes);
    }
    assert_null(page_take(c));
    assert_int_equal(page_cache_n_available(c), 0);
    for (size_t i = 0; i < 3; i++) /* their memory is apart */
        assert_true(page_data(pages[i])[0] == i + 1 &&
                    page_data(pages[i])[c->page_bytes - 1] == i + 1);
    page_put(c, pages[1]);
    assert_int_equal(page_cache_n_available(c), 1);
    struct page *again = page_take(c);
    assert_non_null(again);
    assert_null(page_take(c));
    page_put(c, again);
    page_put(c, pages[2]);
    page_put(c, pages[0]);
    assert_int_equal(page_cache_n_available(c), 3);
    check_inside(c);
    page_cache_destroy(c);
    page_cache_destroy(NULL);
}

/* Publishes a page of its own for ids, kept referenced. */
static struct page *publish(struct page_cache *c, struct page *parent, size_t key,
                            const int32_t *ids)
{
    struct page *page = page_take(c);

    assert_non_null(page);
    return page_publish(c, parent, KEYS[key], ids, page);
}

static void equal_pages_become_one(void **state)
{
    struct page_cache *c = open_cache(4);
    int32_t ids[CHUNK], other[CHUNK];

    (void)state;
    fill_ids(ids, CHUNK, 0);
    fill_ids(other, CHUNK - 1, 1); /* the last id differs */
    struct page *a = publish(c, NULL, 0, ids);
    assert_int_equal(page_cache_n_available(c), 3);
    assert_ptr_equal(publish(c, NULL, 0, ids), a); /* the second page went back */
    assert_int_equal(page_cache_n_available(c), 3);
    struct page *b = publish(c, NULL, 0, other);
    assert_ptr_not_equal(b, a);
    struct page *child = publish(c, a, 0, ids); /* the same ids behind another page: not equal */
    assert_ptr_not_equal(child, a);
    page_put(c, child);
    page_put(c, b);
    page_put(c, a);
    assert_int_equal(page_cache_n_available(c), 3); /* the other holder of a is still there */
    page_put(c, a);
    assert_int_equal(page_cache_n_available(c), 4);
    /* All three are prefixes still, and one taken from the list is found and counted again. */
    assert_ptr_equal(publish(c, NULL, 0, ids), a);
    assert_int_equal(page_cache_n_available(c), 3);
    check_inside(c);
    page_cache_destroy(c);
}

static void keys_isolate(void **state)
{
    struct page_cache *c = open_cache(6);
    struct page *found[3] = {0};
    int32_t ids[2 * CHUNK];

    (void)state;
    fill_ids(ids, CHUNK, 0);
    fill_ids(ids + CHUNK, CHUNK, 0);
    struct page *a = publish(c, NULL, 0, ids), *b = publish(c, a, 0, ids + CHUNK);
    assert_int_equal(page_match(c, KEYS[1], ids, 2 * CHUNK, found), 0);
    assert_int_equal(page_match(c, KEYS[1], ids, 40, found), 0); /* nor its beginning */
    struct page *mine = publish(c, NULL, 1, ids);
    assert_ptr_not_equal(mine, a);
    /* Behind the other key's equal first page there is nothing of the first key. */
    assert_int_equal(page_match(c, KEYS[1], ids, 2 * CHUNK, found), CHUNK);
    assert_ptr_equal(found[0], mine);
    assert_int_equal(page_match(c, KEYS[0], ids, 2 * CHUNK, found), 2 * CHUNK);
    assert_true(found[0] == a && found[1] == b);
    page_cache_destroy(c);
}

/* However much others publish, one's own prefix is found, and its beginning too. */
static void others_are_not_in_the_way(void **state)
{
    enum { OTHERS = 600 };
    struct page_cache *c = open_cache(OTHERS + 1);
    struct page *found[1] = {0};
    unsigned char key[PAGE_KEY_BYTES] = {9};
    int32_t ids[CHUNK];

    (void)state;
    for (int same = 0; same < 2; same++) { /* a key for each of them, or one for all */
        fill_ids(ids, CHUNK, 0);
        struct page *mine = publish(c, NULL, 0, ids);
        for (int32_t i = 0; i < OTHERS; i++) {
            struct page *page = page_take(c);
            assert_non_null(page);
            fill_ids(ids, 0, i + 1);
            if (!same)
                memcpy(key + 1, &i, sizeof i);
            page_put(c, page_publish(c, NULL, key, ids, page));
        }
        fill_ids(ids, 70, 1);
        assert_int_equal(page_match(c, KEYS[0], ids, CHUNK, found), 70);
        assert_ptr_equal(found[0], mine);
        page_put(c, mine);
        page_put(c, mine);
        check_inside(c);
    }
    page_cache_destroy(c);
}

static void longest_beginning_is_found(void **state)
{
    struct page_cache *c = open_cache(12);
    struct page *found[3] = {0};
    int32_t first[CHUNK], ids[2 * CHUNK], none[CHUNK];
    struct page *parts[4];
    static const size_t SAME[] = {50, 100, 99, 1};

    (void)state;
    fill_ids(first, CHUNK, 0);
    struct page *root = publish(c, NULL, 0, first);
    for (size_t i = 0; i < COUNT_OF(SAME); i++) {
        fill_ids(ids, SAME[i], (int32_t)i + 2);
        parts[i] = publish(c, root, 0, ids);
    }
    memcpy(ids, first, sizeof first);
    fill_ids(ids + CHUNK, 120, 1);
    assert_int_equal(page_match(c, KEYS[0], ids, 2 * CHUNK, found), CHUNK + 100);
    assert_true(found[0] == root && found[1] == parts[1]);
    assert_int_equal(parts[1]->n_refs, 2);
    page_put(c, found[1]);
    page_put(c, found[0]);
    /* Fewer ids than fit: all of them. */
    assert_int_equal(page_match(c, KEYS[0], ids, CHUNK + 30, found), CHUNK + 30);
    page_put(c, found[1]);
    page_put(c, found[0]);
    /* Nothing left after a whole page: one page only. */
    found[1] = NULL;
    assert_int_equal(page_match(c, KEYS[0], ids, CHUNK, found), CHUNK);
    assert_null(found[1]);
    page_put(c, found[0]);
    /* One id less than a page: the page's own beginning. */
    assert_int_equal(page_match(c, KEYS[0], ids, CHUNK - 1, found), CHUNK - 1);
    assert_ptr_equal(found[0], root);
    page_put(c, found[0]);
    /* Another first id: nothing, and nothing is referenced. */
    fill_ids(none, 0, 7);
    assert_int_equal(page_match(c, KEYS[0], none, CHUNK, found), 0);
    assert_int_equal(page_match(c, KEYS[0], none, 0, found), 0);
    assert_int_equal(root->n_refs, 1);
    check_inside(c);
    page_cache_destroy(c);
}

struct candidate {
    uint64_t hash;
    int32_t id;
};

static int by_hash(const void *a, const void *b)
{
    const struct candidate *x = a, *y = b;
    return x->hash < y->hash ? -1 : x->hash > y->hash;
}

/* Two different lists of ids with one hash: among many lists, two states before the last id that
 * agree in their upper halves; the last ids make up for the lower ones. */
static void find_equal_hashes(const struct page_cache *c, int32_t *a, int32_t *b)
{
    size_t n = 1 << 20, i = 0;
    struct candidate *all = malloc(n * sizeof *all);
    int32_t ids[CHUNK] = {0};

    assert_non_null(all);
    uint64_t h = c->seed, word;
    for (size_t w = 0; w < PAGE_KEY_BYTES; w += sizeof word) {
        memcpy(&word, KEYS[0] + w, sizeof word);
        h = mix(h, word);
    }
    for (size_t k = 0; k < CHUNK - 3; k++)
        h = mix(h, 0);
    for (size_t k = 0; k < n; k++) /* two ids: one alone moves the upper half too evenly */
        all[k] = (struct candidate){mix(mix(h, (uint32_t)k), (uint32_t)k), (int32_t)k};
    qsort(all, n, sizeof *all, by_hash);
    while (i + 1 < n && (all[i].hash ^ all[i + 1].hash) >> 32 != 0)
        i++;
    assert_true(i + 1 < n); /* of 2^39 pairs one in 2^32 does */
    memcpy(a, ids, sizeof ids);
    memcpy(b, ids, sizeof ids);
    a[CHUNK - 3] = a[CHUNK - 2] = all[i].id;
    b[CHUNK - 3] = b[CHUNK - 2] = all[i + 1].id;
    uint32_t low = (uint32_t)(all[i].hash ^ all[i + 1].hash);
    memcpy(&b[CHUNK - 1], &low, sizeof low);
    assert_true(hash_of(c, NULL, KEYS[0], a) == hash_of(c, NULL, KEYS[0], b));
    free(all);
}

static void equal_hashes_are_not_equal_pages(void **state)
{
    struct page_cache *c = open_cache(8);
    int32_t a[2 * CHUNK], b[2 * CHUNK], child[CHUNK];
    struct page *found[2] = {0};

    (void)state;
    find_equal_hashes(c, a, b);
    fill_ids(child, CHUNK, 3);
    memcpy(a + CHUNK, child, sizeof child);
    memcpy(b + CHUNK, child, sizeof child);
    struct page *pa = publish(c, NULL, 0, a);
    assert_int_equal(page_match(c, KEYS[0], b, CHUNK, found), CHUNK - 3); /* only what is equal */
    page_put(c, found[0]);
    struct page *pb = publish(c, NULL, 0, b);
    assert_ptr_not_equal(pa, pb);
    assert_true(pa->hash == pb->hash);
    assert_int_equal(page_match(c, KEYS[0], a, CHUNK, found), CHUNK);
    assert_ptr_equal(found[0], pa);
    assert_int_equal(page_match(c, KEYS[0], b, CHUNK, found), CHUNK);
    assert_ptr_equal(found[0], pb);
    /* Equal ids behind parents of equal hashes: the parents decide. */
    struct page *ca = publish(c, pa, 0, child);
    assert_int_equal(page_match(c, KEYS[0], b, 2 * CHUNK, found), CHUNK);
    struct page *cb = publish(c, pb, 0, child);
    assert_true(ca != cb && ca->hash == cb->hash);
    assert_int_equal(page_match(c, KEYS[0], b, 2 * CHUNK, found), 2 * CHUNK);
    assert_true(found[0] == pb && found[1] == cb);
    check_inside(c);
    page_cache_destroy(c);
}

/* Two keys with one hash: the last word of the second makes up for its first. A prefix is still
 * found only under the key that it was published with. */
static void equal_hashes_are_not_equal_keys(void **state)
{
    struct page_cache *c = open_cache(4);
    uint64_t a[PAGE_KEY_BYTES / 8] = {1, 2, 3, 4}, b[PAGE_KEY_BYTES / 8] = {5, 2, 3, 4};
    uint64_t ha = c->seed, hb = c->seed;
    int32_t ids[CHUNK];
    struct page *found[1] = {0};

    (void)state;
    fill_ids(ids, CHUNK, 7);
    for (size_t i = 0; i + 1 < COUNT_OF(a); i++) {
        ha = mix(ha, a[i]);
        hb = mix(hb, b[i]);
    }
    b[COUNT_OF(b) - 1] ^= ha ^ hb;
    const unsigned char *ka = (const unsigned char *)a, *kb = (const unsigned char *)b;
    assert_true(hash_of(c, NULL, ka, ids) == hash_of(c, NULL, kb, ids));
    struct page *pa = page_publish(c, NULL, ka, ids, page_take(c));
    assert_int_equal(page_match(c, kb, ids, CHUNK, found), 0);
    struct page *pb = page_publish(c, NULL, kb, ids, page_take(c));
    assert_ptr_not_equal(pa, pb);
    assert_int_equal(page_match(c, kb, ids, CHUNK, found), CHUNK);
    assert_ptr_equal(found[0], pb);
    page_cache_destroy(c);
}

/* More pages than buckets would like, all found in the full buckets. */
static void full_buckets(void **state)
{
    struct page_cache *c = open_cache(500);
    struct page *pages[500], *found[1] = {0};
    int32_t ids[CHUNK];
    size_t longest = 0;

    (void)state;
    for (size_t i = 0; i < COUNT_OF(pages); i++) {
        fill_ids(ids, CHUNK - 1, (int32_t)i + 1);
        pages[i] = publish(c, NULL, 0, ids);
    }
    for (size_t i = 0; i < c->n_buckets; i++) {
        size_t n = 0;
        for (const struct page *p = c->buckets[i]; p != NULL; p = p->next_in_bucket)
            n++;
        longest = max_size(longest, n);
    }
    assert_true(longest > 1); /* otherwise this tests nothing */
    for (size_t i = 0; i < COUNT_OF(pages); i++) {
        fill_ids(ids, CHUNK - 1, (int32_t)i + 1);
        assert_int_equal(page_match(c, KEYS[0], ids, CHUNK, found), CHUNK);
        assert_ptr_equal(found[0], pages[i]);
        page_put(c, found[0]);
    }
    page_cache_destroy(c);
}

static void own_pages_are_copies(void **state)
{
    struct page_cache *c = open_cache(3);
    struct page *found[1] = {0};
    int32_t ids[CHUNK];

    (void)state;
    fill_ids(ids, CHUNK, 0);
    struct page *own = page_take(c);
    assert_ptr_equal(page_own(c, own), own); /* nobody else can see it */
    memset(page_data(own), 0x5A, c->page_bytes);
    struct page *a = page_publish(c, NULL, KEYS[0], ids, own);
    assert_int_equal(page_match(c, KEYS[0], ids, 60, found), 60);
    struct page *copy = page_own(c, found[0]);
    assert_non_null(copy);
    assert_ptr_not_equal(copy, a);
    assert_false(page_is_published(copy));
    assert_memory_equal(page_data(copy), page_data(a), c->page_bytes);
    assert_int_equal(a->n_refs, 1); /* the reference was given back */
    memset(page_data(copy), 0x11, c->page_bytes);
    assert_int_equal(page_data(a)[0], 0x5A);
    /* No page to be had: nothing has changed. */
    struct page *third = page_take(c);
    assert_null(page_own(c, a));
    assert_true(a->n_refs == 1 && page_is_published(a));
    page_put(c, third);
    page_put(c, copy);
    page_put(c, a);
    check_inside(c);
    page_cache_destroy(c);
}

static void least_recently_used_goes_first(void **state)
{
    struct page_cache *c = open_cache(4);
    struct page *chain[3], *found[4] = {0}, *taken[4];
    int32_t ids[4][CHUNK], all[3 * CHUNK];

    (void)state;
    for (size_t i = 0; i < 4; i++)
        fill_ids(ids[i], 0, (int32_t)i + 1);
    for (size_t i = 0; i < 3; i++) {
        chain[i] = publish(c, i > 0 ? chain[i - 1] : NULL, 0, ids[i]);
        memcpy(all + i * CHUNK, ids[i], sizeof ids[i]);
    }
    struct page *single = publish(c, NULL, 0, ids[3]);
    page_put(c, single); /* the oldest */
    for (size_t i = 3; i-- > 0;)
        page_put(c, chain[i]);
    /* Used again: now it is the newest. */
    assert_int_equal(page_match(c, KEYS[0], ids[3], CHUNK, found), CHUNK);
    page_put(c, found[0]);
    for (size_t n = 3; n-- > 0;) { /* the chain shrinks from its end */
        taken[n] = page_take(c);
        assert_non_null(taken[n]);
        memset(found, 0, sizeof found);
        assert_int_equal(page_match(c, KEYS[0], all, 3 * CHUNK, found), n * CHUNK);
        for (size_t i = n; i-- > 0;)
            page_put(c, found[i]);
        assert_int_equal(page_match(c, KEYS[0], ids[3], CHUNK, found), CHUNK);
        page_put(c, found[0]);
        check_inside(c);
    }
    assert_non_null(page_take(c));
    assert_int_equal(page_match(c, KEYS[0], ids[3], CHUNK, found), 0);
    assert_null(page_take(c));
    page_cache_destroy(c);
}

static void create_fails_cleanly(void **state)
{
    (void)state;
    for (uint64_t n = 1;; n++) {
        struct page_cache *c = NULL;
        struct ferry_error err = {0};
        mem_fail_after(n);
        enum ferry_status st = page_cache_create(&c, &CONFIG, DTYPE_F16, 5, &err);
        mem_fail_after(0);
        if (st == FERRY_OK) {
            assert_true(n > 3);
            page_cache_destroy(c);
            break;
        }
        assert_int_equal(st, FERRY_ERR_NOMEM);
        assert_true(err.msg[0] != 0);
        assert_null(c);
    }
}

/* ---- random operations beside a model ---- */

enum { N_PAGES = 16, N_SEQUENCES = 7, PAGES_MAX = 6, N_OPERATIONS = 200000 };

/* What the model knows of the page in a slot. */
struct known {
    size_t n_refs;
    bool used, published;
    size_t key, depth; /* published: how many pages its prefix has, itself included */
    int32_t ids[PAGES_MAX * CHUNK];
    uint64_t last_use;
};

struct reader {
    bool open;
    size_t key, n_target, n_tokens, n_pages, n_published;
    int32_t ids[PAGES_MAX * CHUNK];
    struct page *pages[PAGES_MAX];
};

struct world {
    struct page_cache *cache;
    struct known known[N_PAGES];
    struct reader readers[N_SEQUENCES];
    uint64_t random, clock;
    size_t n_evicted, n_partial, n_deduped, n_refused, n_copied, n_whole;
};

static size_t below(struct world *w, size_t n)
{
    w->random = w->random * 6364136223846793005u + 1442695040888963407u;
    return (size_t)(w->random >> 33) % n;
}

static struct known *known_of(struct world *w, const struct page *page)
{
    return &w->known[page - w->cache->pages];
}

static size_t model_available(const struct world *w)
{
    size_t n = 0;

    for (size_t i = 0; i < N_PAGES; i++)
        n += w->known[i].n_refs == 0;
    return n;
}

/* What is said about position p of these ids: K and V depend on all ids up to it. */
static uint64_t content(const int32_t *ids, size_t p)
{
    uint64_t h = 99;

    for (size_t i = 0; i <= p; i++)
        h = mix(h, (uint32_t)ids[i]);
    return h;
}

static void write_position(struct reader *r, size_t p)
{
    uint64_t value = content(r->ids, p);
    memcpy(page_data(r->pages[p / CHUNK]) + p % CHUNK * sizeof value, &value, sizeof value);
}

static void check_position(const struct reader *r, size_t p)
{
    uint64_t value;
    memcpy(&value, page_data(r->pages[p / CHUNK]) + p % CHUNK * sizeof value, sizeof value);
    assert_true(value == content(r->ids, p));
}

/* The model's page_take: which slot's prefix dies, if one must. */
static void model_evict(struct world *w)
{
    struct known *oldest = NULL;

    for (size_t i = 0; i < N_PAGES; i++) {
        struct known *k = &w->known[i];
        if (!k->used)
            return; /* a free one */
        if (k->n_refs == 0 && (oldest == NULL || k->last_use < oldest->last_use))
            oldest = k;
    }
    if (oldest == NULL)
        return;
    for (size_t i = 0; i < N_PAGES; i++) { /* nobody stands behind it */
        const struct known *k = &w->known[i];
        assert_false(k->published && k->depth == oldest->depth + 1 && k->key == oldest->key &&
                     memcmp(k->ids, oldest->ids, oldest->depth * CHUNK * sizeof k->ids[0]) == 0);
    }
    *oldest = (struct known){0};
    w->n_evicted++;
}

static void model_put(struct world *w, const struct page *page)
{
    struct known *k = known_of(w, page);

    assert_true(k->n_refs > 0);
    if (--k->n_refs > 0)
        return;
    if (k->published)
        k->last_use = ++w->clock;
    else
        *k = (struct known){0};
}

static void give_back(struct world *w, struct reader *r, size_t n_pages)
{
    while (r->n_pages > n_pages) {
        struct page *page = r->pages[--r->n_pages];
        model_put(w, page);
        page_put(w->cache, page);
    }
    r->n_published = min_size(r->n_published, n_pages);
}

static const struct known *model_find(const struct world *w, const struct reader *r, size_t depth)
{
    for (size_t i = 0; i < N_PAGES; i++) {
        const struct known *k = &w->known[i];
        if (k->published && k->key == r->key && k->depth == depth &&
            memcmp(k->ids, r->ids, depth * CHUNK * sizeof r->ids[0]) == 0)
            return k;
    }
    return NULL;
}

/* Tokens that a reader of these ids must find. */
static size_t model_match(const struct world *w, const struct reader *r)
{
    size_t depth = 0, best = 0;

    while ((depth + 1) * CHUNK <= r->n_target && model_find(w, r, depth + 1) != NULL)
        depth++;
    for (size_t i = 0; i < N_PAGES; i++) {
        const struct known *k = &w->known[i];
        if (!k->published || k->key != r->key || k->depth != depth + 1)
            continue;
        if (memcmp(k->ids, r->ids, depth * CHUNK * sizeof r->ids[0]) != 0)
            continue;
        size_t n = 0, most = min_size(r->n_target - depth * CHUNK, CHUNK);
        while (n < most && k->ids[depth * CHUNK + n] == r->ids[depth * CHUNK + n])
            n++;
        best = max_size(best, n);
    }
    return depth * CHUNK + best;
}

static void open_reader(struct world *w, struct reader *r)
{
    static const size_t SAME[] = {CHUNK, 50, 100, 0, 127};

    *r = (struct reader){.open = true, .key = below(w, 8) == 0};
    r->n_target = 1 + below(w, PAGES_MAX * CHUNK);
    for (size_t i = 0; i < PAGES_MAX; i++) {
        size_t kind = below(w, 3) > 0 ? 0 : below(w, COUNT_OF(SAME));
        fill_ids(r->ids + i * CHUNK, SAME[kind], (int32_t)kind);
    }
    size_t want = model_match(w, r);
    r->n_tokens = page_match(w->cache, KEYS[r->key], r->ids, r->n_target, r->pages);
    assert_int_equal(r->n_tokens, want);
    r->n_pages = div_up(r->n_tokens, CHUNK);
    r->n_published = r->n_tokens / CHUNK;
    w->n_whole += r->n_published;
    w->n_partial += r->n_tokens % CHUNK != 0;
    for (size_t i = 0; i < r->n_pages; i++)
        known_of(w, r->pages[i])->n_refs++;
    for (size_t p = 0; p < r->n_tokens; p += 17)
        check_position(r, p);
    if (r->n_tokens > 0)
        check_position(r, r->n_tokens - 1);
}

/* One page to write position n_tokens into. False: refused, as the model says. */
static bool get_page(struct world *w, struct reader *r)
{
    size_t i = r->n_tokens / CHUNK, available = model_available(w);
    struct page *page;

    if (i < r->n_pages && !page_is_published(r->pages[i]))
        return true;
    model_evict(w);
    if (i < r->n_pages) {
        struct page *old = r->pages[i];
        page = page_own(w->cache, old);
        if (page != NULL) {
            model_put(w, old);
            w->n_copied++;
        }
    } else {
        page = page_take(w->cache);
    }
    assert_int_equal(page != NULL, available > 0);
    if (page == NULL) {
        w->n_refused++;
        return false;
    }
    struct known *k = known_of(w, page);
    assert_false(k->used);
    *k = (struct known){.used = true, .n_refs = 1};
    r->pages[i] = page;
    r->n_pages = i + 1;
    return true;
}

static void publish_full(struct world *w, struct reader *r)
{
    for (; r->n_published < r->n_tokens / CHUNK; r->n_published++) {
        size_t i = r->n_published;
        const struct known *equal = model_find(w, r, i + 1);
        struct page *mine = r->pages[i];
        struct page *page = page_publish(w->cache, i > 0 ? r->pages[i - 1] : NULL, KEYS[r->key],
                                         r->ids + i * CHUNK, mine);
        struct known *k = known_of(w, page);
        if (equal != NULL) {
            assert_ptr_equal(k, equal);
            k->n_refs++;
            model_put(w, mine);
            w->n_deduped++;
        } else {
            assert_ptr_equal(page, mine);
            k->published = true;
            k->key = r->key;
            k->depth = i + 1;
            memcpy(k->ids, r->ids, (i + 1) * CHUNK * sizeof r->ids[0]);
        }
        r->pages[i] = page;
    }
}

static void extend(struct world *w, struct reader *r)
{
    size_t n = min_size(1 + below(w, 200), r->n_target - r->n_tokens);

    for (; n > 0 && get_page(w, r); n--)
        write_position(r, r->n_tokens++);
    publish_full(w, r);
}

static void random_operations(void **state)
{
    struct world *w = calloc(1, sizeof *w);

    (void)state;
    assert_non_null(w);
    w->random = 20260101;
    w->cache = open_cache(N_PAGES);
    uint64_t calls = mem_count_calls();
    for (size_t i = 0; i < N_OPERATIONS; i++) {
        struct reader *r = &w->readers[below(w, N_SEQUENCES)];
        if (!r->open) {
            open_reader(w, r);
        } else if (below(w, 8) == 0) {
            give_back(w, r, 0);
            r->open = false;
        } else if (below(w, 10) == 0) {
            r->n_tokens = below(w, r->n_tokens + 1);
            give_back(w, r, div_up(r->n_tokens, CHUNK));
            r->n_published = min_size(r->n_published, r->n_tokens / CHUNK);
        } else {
            extend(w, r);
        }
        for (size_t p = 0; r->open && p < r->n_tokens; p += 131)
            check_position(r, p);
        assert_int_equal(page_cache_n_available(w->cache), model_available(w));
        if (i % 64 == 0)
            check_inside(w->cache);
    }
    assert_int_equal(mem_count_calls(), calls);
    print_message("evicted %zu, partial %zu, whole %zu, equal %zu, refused %zu, copied %zu\n",
                  w->n_evicted, w->n_partial, w->n_whole, w->n_deduped, w->n_refused, w->n_copied);
    assert_true(w->n_evicted > 1000 && w->n_partial > 1000 && w->n_whole > 1000);
    assert_true(w->n_deduped > 1000 && w->n_refused > 1000 && w->n_copied > 1000);
    for (size_t i = 0; i < N_SEQUENCES; i++)
        give_back(w, &w->readers[i], 0);
    assert_int_equal(page_cache_n_available(w->cache), N_PAGES);
    check_inside(w->cache);
    page_cache_destroy(w->cache);
    free(w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pages_are_counted),
        cmocka_unit_test(equal_pages_become_one),
        cmocka_unit_test(keys_isolate),
        cmocka_unit_test(others_are_not_in_the_way),
        cmocka_unit_test(longest_beginning_is_found),
        cmocka_unit_test(equal_hashes_are_not_equal_pages),
        cmocka_unit_test(equal_hashes_are_not_equal_keys),
        cmocka_unit_test(full_buckets),
        cmocka_unit_test(own_pages_are_copies),
        cmocka_unit_test(least_recently_used_goes_first),
        cmocka_unit_test(create_fails_cleanly),
        cmocka_unit_test(random_operations),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
