/* Reference counts, the tree of published pages, eviction. See pages.h. */
#include "engine/pages.h"

#include "base/alloc.h"
#include "base/assert.h"
#include "base/error.h"
#include "base/size.h"
#include "kernel/kernel.h"

#include <string.h>
#include <sys/random.h>

/* Siblings that are looked at for a page of which only the first tokens fit; roots of other keys
 * that lie in the same list do not count as such. */
enum { PARTIAL_TRIES = 256, PARTIAL_SCAN = 4096 };

struct page {
    unsigned char *data;
    size_t n_refs;
    bool published;
    int32_t ids[KERNEL_KV_CHUNK];      /* published: its tokens */
    unsigned char key[PAGE_KEY_BYTES]; /* published without parent: who may find it */
    struct page *parent;
    struct page *children, *next_sibling, *previous_sibling;
    uint64_t hash;
    struct page *next_in_bucket;
    struct page *newer, *older; /* unreferenced and published: in the order of their last use */
};

struct page_cache {
    struct kv_pool *pool;
    size_t n_pages, page_bytes;
    struct page *pages; /* [n_pages] */
    struct page *spare; /* records without memory, linked by next_sibling */
    struct page **buckets;
    size_t n_buckets;    /* power of two */
    struct page **roots; /* [n_buckets] lists by key: what others publish is not in one's way */
    struct page *oldest, *newest;
    size_t n_unreferenced; /* in that list */
    uint64_t seed;         /* so that nobody can aim at one bucket */
};

enum ferry_status page_cache_create(struct page_cache **ret_cache,
                                    const struct model_config *config, enum dtype dtype,
                                    size_t n_pages, struct ferry_error *err)
{
    struct page_cache *c = mem_zero(sizeof *c);

    if (c == NULL)
        return FERRY_FAIL(err, FERRY_ERR_NOMEM, "pages: no memory");
    c->n_pages = n_pages;
    c->n_buckets = 64;
    while (c->n_buckets < n_pages)
        c->n_buckets *= 2;
    c->pages = mem_array(n_pages, sizeof *c->pages);
    c->buckets = mem_array(c->n_buckets, sizeof(struct page *));
    c->roots = mem_array(c->n_buckets, sizeof(struct page *));
    enum ferry_status st = FERRY_OK;
    if (c->pages == NULL || c->buckets == NULL || c->roots == NULL)
        st = FERRY_FAIL(err, FERRY_ERR_NOMEM, "pages: no memory for %zu of them", n_pages);
    if (st == FERRY_OK)
        st = kv_pool_create(&c->pool, config, dtype, n_pages, err);
    if (st != FERRY_OK) {
        page_cache_destroy(c);
        return st;
    }
    (void)kv_page_bytes(config, dtype, &c->page_bytes);
    for (size_t i = n_pages; i-- > 0;) {
        c->pages[i].next_sibling = c->spare;
        c->spare = &c->pages[i];
    }
    if (getrandom(&c->seed, sizeof c->seed, GRND_NONBLOCK) != (ssize_t)sizeof c->seed)
        c->seed = 0; /* collisions cost time only: matches compare tokens */
    *ret_cache = c;
    return FERRY_OK;
}

void page_cache_destroy(struct page_cache *cache)
{
    if (cache == NULL)
        return;
    kv_pool_destroy(cache->pool);
    mem_free(cache->pages);
    mem_free(cache->buckets);
    mem_free(cache->roots);
    mem_free(cache);
}

size_t page_cache_n_pages(const struct page_cache *cache)
{
    return cache->n_pages;
}

size_t page_cache_n_available(const struct page_cache *cache)
{
    return kv_pool_n_free(cache->pool) + cache->n_unreferenced;
}

unsigned char *page_data(const struct page *page)
{
    return page->data;
}

bool page_is_published(const struct page *page)
{
    return page->published;
}

static void list_append(struct page_cache *c, struct page *page)
{
    page->older = c->newest;
    page->newer = NULL;
    if (c->newest != NULL)
        c->newest->newer = page;
    else
        c->oldest = page;
    c->newest = page;
    c->n_unreferenced++;
}

static void list_remove(struct page_cache *c, struct page *page)
{
    if (page->older != NULL)
        page->older->newer = page->newer;
    else
        c->oldest = page->newer;
    if (page->newer != NULL)
        page->newer->older = page->older;
    else
        c->newest = page->older;
    page->older = page->newer = NULL;
    c->n_unreferenced--;
}

static uint64_t mix(uint64_t h, uint64_t value)
{
    h = (h ^ value) * 0x9E3779B97F4A7C15u;
    return h ^ (h >> 29);
}

static uint64_t hash_of_key(const struct page_cache *c, const unsigned char *key)
{
    uint64_t h = c->seed, word;

    for (size_t i = 0; i < PAGE_KEY_BYTES; i += sizeof word) {
        memcpy(&word, key + i, sizeof word);
        h = mix(h, word);
    }
    return h;
}

static uint64_t hash_of(const struct page_cache *c, const struct page *parent,
                        const unsigned char *key, const int32_t *ids)
{
    uint64_t h = parent != NULL ? mix(c->seed, parent->hash) : hash_of_key(c, key);

    for (size_t i = 0; i < KERNEL_KV_CHUNK; i++)
        h = mix(h, (uint32_t)ids[i]);
    return h;
}

static struct page **siblings_of(struct page_cache *c, struct page *parent,
                                 const unsigned char *key)
{
    return parent != NULL ? &parent->children : &c->roots[hash_of_key(c, key) & (c->n_buckets - 1)];
}

static void tree_insert(struct page_cache *c, struct page *page)
{
    struct page **siblings = siblings_of(c, page->parent, page->key),
                **bucket = &c->buckets[page->hash & (c->n_buckets - 1)];

    page->previous_sibling = NULL;
    page->next_sibling = *siblings;
    if (*siblings != NULL)
        (*siblings)->previous_sibling = page;
    *siblings = page;
    page->next_in_bucket = *bucket;
    *bucket = page;
    page->published = true;
}

static void tree_remove(struct page_cache *c, struct page *page)
{
    struct page **at = &c->buckets[page->hash & (c->n_buckets - 1)];

    while (*at != page)
        at = &(*at)->next_in_bucket;
    *at = page->next_in_bucket;
    if (page->previous_sibling != NULL)
        page->previous_sibling->next_sibling = page->next_sibling;
    else
        *siblings_of(c, page->parent, page->key) = page->next_sibling;
    if (page->next_sibling != NULL)
        page->next_sibling->previous_sibling = page->previous_sibling;
    page->published = false;
}

static void free_page(struct page_cache *c, struct page *page)
{
    kv_pool_put(c->pool, page->data);
    *page = (struct page){.next_sibling = c->spare};
    c->spare = page;
}

/* A sequence that holds a page holds all pages before it, and gives them back later: so the page
 * that was used least recently never has a child. */
static void evict_oldest(struct page_cache *c)
{
    struct page *page = c->oldest;

    FERRY_ASSERT(page->children == NULL);
    list_remove(c, page);
    tree_remove(c, page);
    free_page(c, page);
}

struct page *page_take(struct page_cache *cache)
{
    if (kv_pool_n_free(cache->pool) == 0) {
        if (cache->oldest == NULL)
            return NULL;
        evict_oldest(cache);
    }
    struct page *page = cache->spare;
    cache->spare = page->next_sibling;
    *page = (struct page){.data = kv_pool_get(cache->pool), .n_refs = 1};
    return page;
}

static void page_ref(struct page_cache *c, struct page *page)
{
    if (page->n_refs++ == 0)
        list_remove(c, page);
}

void page_put(struct page_cache *cache, struct page *page)
{
    FERRY_ASSERT(page->n_refs > 0);
    if (--page->n_refs > 0)
        return;
    if (page->published)
        list_append(cache, page);
    else
        free_page(cache, page);
}

struct page *page_own(struct page_cache *cache, struct page *page)
{
    if (!page->published)
        return page;
    struct page *copy = page_take(cache);
    if (copy == NULL)
        return NULL;
    memcpy(copy->data, page->data, cache->page_bytes);
    page_put(cache, page);
    return copy;
}

static struct page *find(struct page_cache *c, const struct page *parent, const unsigned char *key,
                         const int32_t *ids, uint64_t hash)
{
    struct page *page = c->buckets[hash & (c->n_buckets - 1)];

    for (; page != NULL; page = page->next_in_bucket) {
        if (page->hash == hash && page->parent == parent &&
            (parent != NULL || memcmp(page->key, key, PAGE_KEY_BYTES) == 0) &&
            memcmp(page->ids, ids, sizeof page->ids) == 0)
            break;
    }
    return page;
}

struct page *page_publish(struct page_cache *cache, struct page *parent,
                          const unsigned char key[PAGE_KEY_BYTES], const int32_t *ids,
                          struct page *page)
{
    uint64_t hash = hash_of(cache, parent, key, ids);
    struct page *known = find(cache, parent, key, ids, hash);

    FERRY_ASSERT(!page->published);
    FERRY_ASSERT(parent == NULL || parent->published);
    if (known != NULL) {
        page_ref(cache, known);
        page_put(cache, page);
        return known;
    }
    memcpy(page->ids, ids, sizeof page->ids);
    memcpy(page->key, key, PAGE_KEY_BYTES);
    page->parent = parent;
    page->hash = hash;
    page->children = NULL;
    tree_insert(cache, page);
    return page;
}

static size_t common(const int32_t *a, const int32_t *b, size_t n)
{
    size_t i = 0;

    while (i < n && a[i] == b[i])
        i++;
    return i;
}

/* The published page behind `parent` whose first tokens fit best, NULL when none does at all. */
static struct page *find_partial(struct page_cache *c, struct page *parent,
                                 const unsigned char *key, const int32_t *ids, size_t n,
                                 size_t *ret_fit)
{
    struct page *page = *siblings_of(c, parent, key), *best = NULL;
    size_t n_tries = 0;

    *ret_fit = 0;
    for (size_t i = 0; page != NULL && n_tries < PARTIAL_TRIES && i < PARTIAL_SCAN;
         i++, page = page->next_sibling) {
        if (parent == NULL && memcmp(page->key, key, PAGE_KEY_BYTES) != 0)
            continue;
        n_tries++;
        size_t fit = common(page->ids, ids, n);
        if (fit > *ret_fit) {
            *ret_fit = fit;
            best = page;
        }
    }
    return best;
}

size_t page_match(struct page_cache *cache, const unsigned char key[PAGE_KEY_BYTES],
                  const int32_t *ids, size_t n_ids, struct page **ret_pages)
{
    struct page *parent = NULL, *page;
    size_t n = 0, fit;

    while (n_ids - n >= KERNEL_KV_CHUNK) {
        page = find(cache, parent, key, ids + n, hash_of(cache, parent, key, ids + n));
        if (page == NULL)
            break;
        page_ref(cache, page);
        *ret_pages++ = parent = page;
        n += KERNEL_KV_CHUNK;
    }
    page = find_partial(cache, parent, key, ids + n, min_size(n_ids - n, KERNEL_KV_CHUNK), &fit);
    if (page != NULL) {
        page_ref(cache, page);
        *ret_pages = page;
    }
    return n + fit;
}
