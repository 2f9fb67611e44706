/* KV pages with owners: which are free, which belong to sequences, and which hold a prefix that a
 * later sequence may take over instead of computing it again.
 *
 * Why here: sequences share pages, so somebody has to count. A full page can be published under the
 * tokens that made it; by law 2 its bits are those that anyone would compute for these tokens
 * behind the same prefix. A match compares tokens, never only hashes, and prefixes are found only
 * under the key that they were published with. It must not know requests. One owning thread;
 * nothing allocates after create. */
#ifndef ENGINE_PAGES_H
#define ENGINE_PAGES_H

#include "ferry/status.h"
#include "model/kv.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { PAGE_KEY_BYTES = 32 };

struct page;
struct page_cache;

/* Room for n_pages pages. FERRY_ERR_NOMEM. */
enum ferry_status page_cache_create(struct page_cache **ret_cache,
                                    const struct model_config *config, enum dtype dtype,
                                    size_t n_pages, struct ferry_error *err) FERRY_MUST_CHECK;
void page_cache_destroy(struct page_cache *cache);

/* A page of one's own, referenced once; the least recently used prefix makes room when there is no
 * free one. NULL: every page is referenced. */
struct page *page_take(struct page_cache *cache);

/* Gives back one reference. A published page stays findable until its memory is needed. Sequences
 * give back their pages last one first. */
void page_put(struct page_cache *cache, struct page *page);

/* Published pages are read by others: they must not be written any more. */
unsigned char *page_data(const struct page *page);
bool page_is_published(const struct page *page);

/* A page to write what `page` holds: itself if nobody else can see it, else a copy (the reference
 * to `page` is given back). NULL: no page to be had, nothing has changed. */
struct page *page_own(struct page_cache *cache, struct page *page);

/* Publishes a full page: ids [KERNEL_KV_CHUNK] are its tokens, `parent` the published page before
 * it (NULL: it is the first of its sequence, and `key` decides who may find it). Returns the page
 * to use from now on: `page`, or an equal one that was published before (references are exchanged).
 */
struct page *page_publish(struct page_cache *cache, struct page *parent,
                          const unsigned char key[PAGE_KEY_BYTES], const int32_t *ids,
                          struct page *page);

/* Longest published beginning of ids [n_ids]: fills ret_pages (room for all pages of n_ids), each
 * referenced once more, and returns how many tokens they hold; the last page may fit in its first
 * tokens only. */
size_t page_match(struct page_cache *cache, const unsigned char key[PAGE_KEY_BYTES],
                  const int32_t *ids, size_t n_ids, struct page **ret_pages);

size_t page_cache_n_pages(const struct page_cache *cache);

/* Pages that page_take can still give: free ones and unreferenced prefixes. */
size_t page_cache_n_available(const struct page_cache *cache);

#endif
