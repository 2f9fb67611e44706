/* The compute pool: fork/join of one function over a fixed set of threads inside a step.
 *
 * Why own code: a step forks a few hundred times; the join has to cost about a microsecond when
 * cores are free and must still block when they are not. It must not know what is computed. Work is
 * handed out in grains, so that a slow core takes fewer; what a grain computes never depends on who
 * took it (law 2). */
#ifndef BASE_POOL_H
#define BASE_POOL_H

#include "ferry/status.h"

#include <stddef.h>

struct pool;

/* Work on items [begin, end); thread_index in [0, pool_size). */
typedef void pool_fn(void *arg, size_t begin, size_t end, int thread_index);

/* n_threads >= 1, the caller's own thread counted. Starts n_threads - 1 workers.
 * Errors: FERRY_ERR_NOMEM, FERRY_ERR_LIMIT (LIMIT_THREADS), FERRY_ERR_IO (no thread to be had). */
enum ferry_status pool_create(struct pool **ret_pool, int n_threads,
                              struct ferry_error *err) FERRY_MUST_CHECK;

/* Stops and joins the workers; NULL is allowed. */
void pool_destroy(struct pool *pool);

int pool_size(const struct pool *pool);

/* Calls fn over [0, n_items) in grains of at most `grain` (> 0) items and returns when all are
 * done. The caller works too. One thread at a time, not from inside fn. Never allocates, never
 * fails. Writes made by fn are visible afterwards. Floating-point mode inside: round to nearest,
 * denormals kept. */
void pool_for(struct pool *pool, size_t n_items, size_t grain, pool_fn *fn, void *arg);

#endif
