/* Fork/join with a short spin, then a futex. See pool.h.
 *
 * One round: the caller publishes the job, bumps `round` (release); workers see it (acquire), claim
 * grains from `next`, and count themselves out in `n_busy` (release), which the caller waits on
 * (acquire). A worker that wakes late finds no grains left and still counts itself out, so a job's
 * fields are never overwritten under a reader. */
#include "base/pool.h"

#include "base/alloc.h"
#include "base/assert.h"
#include "base/cpu.h"
#include "base/error.h"
#include "base/fpmode.h"
#include "base/limits.h"
#include "base/size.h"

#include <errno.h>
#include <linux/futex.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { SPIN_ROUNDS = 4000, CACHE_LINE = 64 };

struct worker {
    struct pool *pool;
    pthread_t thread;
    int index;
    bool started;
};

struct pool {
    int n_threads;
    int spin; /* 0 when threads outnumber cores */
    pool_fn *fn;
    void *arg;
    size_t n_items;
    size_t grain;
    bool stop;
    _Alignas(CACHE_LINE) atomic_uint round; /* pairs: release in pool_for, acquire in worker_main */
    atomic_uint n_asleep; /* workers in futex wait on round (seq_cst with round) */
    _Alignas(CACHE_LINE) atomic_size_t next; /* first unclaimed item; relaxed, ordered by round */
    _Alignas(CACHE_LINE)
        atomic_uint n_busy; /* workers still in this round; release in worker, acquire in caller */
    atomic_uint caller_asleep;
    struct worker workers[];
};

static void futex_wait(atomic_uint *word, unsigned expected)
{
    (void)syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, expected, NULL, NULL, 0);
}

static void futex_wake(atomic_uint *word, int n)
{
    (void)syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, n, NULL, NULL, 0);
}

static void work(struct pool *pool, int thread_index)
{
    for (;;) {
        size_t begin = atomic_fetch_add_explicit(&pool->next, pool->grain, memory_order_relaxed);
        if (begin >= pool->n_items)
            return;
        size_t end = begin + min_size(pool->grain, pool->n_items - begin);
        pool->fn(pool->arg, begin, end, thread_index);
    }
}

static unsigned wait_round(struct pool *pool, unsigned seen)
{
    for (int i = 0; i < pool->spin; i++) {
        unsigned round = atomic_load_explicit(&pool->round, memory_order_acquire);
        if (round != seen)
            return round;
        cpu_relax();
    }
    for (;;) {
        atomic_fetch_add(&pool->n_asleep, 1);
        unsigned round = atomic_load(&pool->round);
        if (round == seen)
            futex_wait(&pool->round, seen);
        atomic_fetch_sub(&pool->n_asleep, 1);
        round = atomic_load_explicit(&pool->round, memory_order_acquire);
        if (round != seen)
            return round;
    }
}

static void *worker_main(void *p)
{
    struct worker *worker = p;
    struct pool *pool = worker->pool;
    unsigned seen = 0;

    for (;;) {
        seen = wait_round(pool, seen);
        if (pool->stop)
            return NULL;
        (void)fp_mode_enter(); /* each round: what an earlier one left behind must not count */
        work(pool, worker->index);
        if (atomic_fetch_sub(&pool->n_busy, 1) == 1 && atomic_load(&pool->caller_asleep) != 0)
            futex_wake(&pool->n_busy, 1);
    }
}

static void start_round(struct pool *pool)
{
    atomic_fetch_add(&pool->round, 1);
    if (atomic_load(&pool->n_asleep) != 0)
        futex_wake(&pool->round, INT32_MAX);
}

static void wait_workers(struct pool *pool)
{
    for (int i = 0; i < pool->spin; i++) {
        if (atomic_load_explicit(&pool->n_busy, memory_order_acquire) == 0)
            return;
        cpu_relax();
    }
    atomic_store(&pool->caller_asleep, 1);
    for (;;) {
        unsigned busy = atomic_load(&pool->n_busy);
        if (busy == 0)
            break;
        futex_wait(&pool->n_busy, busy);
    }
    atomic_store(&pool->caller_asleep, 0);
}

void pool_for(struct pool *pool, size_t n_items, size_t grain, pool_fn *fn, void *arg)
{
    FERRY_ASSERT(grain > 0 || n_items == 0);
    /* Every thread runs `next` past the end once; it must not wrap. */
    FERRY_ASSERT(n_items <= SIZE_MAX / (LIMIT_THREADS + 1));
    unsigned mode = fp_mode_enter();

    if (pool->n_threads == 1 || n_items <= grain) {
        for (size_t begin = 0; begin < n_items;) {
            size_t end = begin + min_size(grain, n_items - begin);
            fn(arg, begin, end, 0);
            begin = end;
        }
        fp_mode_leave(mode);
        return;
    }
    pool->fn = fn;
    pool->arg = arg;
    pool->n_items = n_items;
    pool->grain = grain;
    atomic_store_explicit(&pool->next, 0, memory_order_relaxed);
    atomic_store_explicit(&pool->n_busy, (unsigned)pool->n_threads - 1, memory_order_relaxed);
    start_round(pool);
    work(pool, 0);
    wait_workers(pool);
    fp_mode_leave(mode);
}

enum ferry_status pool_create(struct pool **ret_pool, int n_threads, struct ferry_error *err)
{
    if (n_threads < 1 || n_threads > LIMIT_THREADS)
        return FERRY_FAIL(err, FERRY_ERR_LIMIT, "threads: %d is not in 1..%d", n_threads,
                          LIMIT_THREADS);
    struct pool *pool = mem_zero(sizeof *pool + sizeof pool->workers[0] * (size_t)n_threads);
    if (pool == NULL)
        return FERRY_FAIL(err, FERRY_ERR_NOMEM, "threads: no memory for a pool of %d", n_threads);
    pool->n_threads = n_threads;
    pool->spin = n_threads <= cpu_count() ? SPIN_ROUNDS : 0;
    for (int i = 1; i < n_threads; i++) {
        struct worker *worker = &pool->workers[i];
        worker->pool = pool;
        worker->index = i;
        int rc = pthread_create(&worker->thread, NULL, worker_main, worker);
        if (rc != 0) {
            errno = rc;
            pool_destroy(pool);
            return FERRY_FAIL(
                err, FERRY_ERR_IO,
                "threads: cannot start thread %d of %d (error %d); use fewer --threads", i + 1,
                n_threads, rc);
        }
        worker->started = true;
    }
    *ret_pool = pool;
    return FERRY_OK;
}

void pool_destroy(struct pool *pool)
{
    if (pool == NULL)
        return;
    pool->stop = true;
    start_round(pool);
    for (int i = 1; i < pool->n_threads; i++) {
        if (pool->workers[i].started)
            (void)pthread_join(pool->workers[i].thread, NULL);
    }
    mem_free(pool);
}

int pool_size(const struct pool *pool)
{
    return pool->n_threads;
}
