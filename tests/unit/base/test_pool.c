/* Unit tests of base/pool.c: every item once, grains, floating-point mode, life cycle, no memory,
 * no threads. Meant to run under the thread sanitizer too. */
#include "../unit.h"

#include "base/alloc.h"
#include "base/limits.h"
#include "base/pool.h"

#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <string.h>
#include <sys/resource.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

static const int THREADS[] = {1, 2, 5};

static struct pool *pool_of(int n_threads)
{
    struct pool *pool = NULL;
    struct ferry_error err;

    assert_int_equal(pool_create(&pool, n_threads, &err), FERRY_OK);
    assert_non_null(pool);
    assert_int_equal(pool_size(pool), n_threads);
    return pool;
}

/* ---- every item once ---- */

struct marks {
    unsigned char *seen; /* [n]; plain, so that a race shows in the thread sanitizer */
    size_t n, grain;
    int n_threads;
    atomic_size_t n_bad, n_calls;
};

static void mark(void *arg, size_t begin, size_t end, int thread_index)
{
    struct marks *m = arg;

    if (begin >= end || end > m->n || end - begin > m->grain || thread_index < 0 ||
        thread_index >= m->n_threads)
        atomic_fetch_add(&m->n_bad, 1);
    atomic_fetch_add(&m->n_calls, 1);
    for (size_t i = begin; i < end; i++)
        m->seen[i]++;
}

static void every_item_runs_once_in_grains(void **state)
{
    static const size_t ITEMS[] = {0, 1, 2, 3, 7, 64, 1000, 4097};
    static const size_t GRAINS[] = {1, 2, 3, 64, 999, 1000, 1001, SIZE_MAX / 2, SIZE_MAX};
    static unsigned char seen[4097];

    (void)state;
    for (size_t t = 0; t < COUNT_OF(THREADS); t++) {
        struct pool *pool = pool_of(THREADS[t]);
        for (size_t i = 0; i < COUNT_OF(ITEMS); i++) {
            for (size_t g = 0; g < COUNT_OF(GRAINS); g++) {
                struct marks m = {
                    .seen = seen, .n = ITEMS[i], .grain = GRAINS[g], .n_threads = THREADS[t]};
                memset(seen, 0, sizeof seen);
                pool_for(pool, ITEMS[i], GRAINS[g], mark, &m);
                assert_int_equal(m.n_bad, 0);
                size_t calls = ITEMS[i] / GRAINS[g] + (ITEMS[i] % GRAINS[g] != 0);
                assert_int_equal(m.n_calls, calls);
                for (size_t j = 0; j < ITEMS[i]; j++)
                    assert_int_equal(seen[j], 1);
            }
        }
        pool_destroy(pool);
    }
}

struct ranges {
    atomic_size_t n_items, n_calls;
};

static void add_range(void *arg, size_t begin, size_t end, int thread_index)
{
    struct ranges *r = arg;

    (void)thread_index;
    atomic_fetch_add_explicit(&r->n_items, end - begin, memory_order_relaxed);
    atomic_fetch_add_explicit(&r->n_calls, 1, memory_order_relaxed);
}

static void huge_counts_do_not_wrap(void **state)
{
    const size_t n = SIZE_MAX / (LIMIT_THREADS + 1);

    (void)state;
    for (size_t t = 0; t < COUNT_OF(THREADS); t++) {
        struct pool *pool = pool_of(THREADS[t]);
        for (size_t parts = 2; parts < 2000; parts = parts * 5 + 1) {
            struct ranges r = {0};
            pool_for(pool, n, n / parts, add_range, &r);
            assert_int_equal(r.n_items, n);
            assert_in_range(r.n_calls, parts, parts + 1);
        }
        struct ranges r = {0};
        pool_for(pool, n, n - 1, add_range, &r);
        assert_int_equal(r.n_items, n);
        assert_int_equal(r.n_calls, 2);
        pool_destroy(pool);
    }
}

static void no_items_make_no_call(void **state)
{
    (void)state;
    for (size_t t = 0; t < COUNT_OF(THREADS); t++) {
        struct pool *pool = pool_of(THREADS[t]);
        struct ranges r = {0};
        pool_for(pool, 0, 1, add_range, &r);
        pool_for(pool, 0, 0, add_range, &r);
        assert_int_equal(r.n_calls, 0);
        pool_destroy(pool);
    }
}

/* ---- many rounds, plain data handed from round to round ---- */

struct rounds {
    uint64_t values[257]; /* plain: written by one thread in a round, read by another in the next */
};

static void step(void *arg, size_t begin, size_t end, int thread_index)
{
    struct rounds *r = arg;

    (void)thread_index;
    for (size_t i = begin; i < end; i++)
        r->values[i] = r->values[i] * 3 + i;
}

static void sums_hold_over_many_rounds(void **state)
{
#ifdef FERRY_SANITIZED
    enum { ROUNDS = 800 };
#else
    enum { ROUNDS = 2500 };
#endif
    static struct rounds expect, got;

    (void)state;
    for (size_t t = 0; t < COUNT_OF(THREADS); t++) {
        struct pool *pool = pool_of(THREADS[t]);
        memset(&expect, 0, sizeof expect);
        memset(&got, 0, sizeof got);
        for (size_t round = 0; round < ROUNDS; round++) {
            step(&expect, 0, COUNT_OF(expect.values), 0);
            pool_for(pool, COUNT_OF(got.values), 1 + round % 40, step, &got);
        }
        assert_memory_equal(&expect, &got, sizeof got);
        pool_destroy(pool);
    }
}

/* ---- floating-point mode ---- */

#if defined(__x86_64__)
enum { N_FP = 64 };

struct fp {
    float sum[N_FP], tiny[N_FP], third[N_FP];
    unsigned mode[N_FP];
    bool spoil;
};

static void compute(void *arg, size_t begin, size_t end, int thread_index)
{
    struct fp *fp = arg;

    (void)thread_index;
    for (size_t i = begin; i < end; i++) {
        volatile float one = 1.0f, three = 3.0f, small = 1e-40f, ulp = 5.9604645e-8f;
        fp->mode[i] = _mm_getcsr() & ~0x3Fu; /* without the sticky flags */
        fp->third[i] = one / three;
        fp->tiny[i] = small * one; /* 0 under FTZ or DAZ */
        fp->sum[i] = -one - ulp;   /* differs when rounding is not to nearest */
    }
    if (fp->spoil)
        _mm_setcsr(0xFFC0); /* FTZ, DAZ, towards zero */
}

static void callers_mode_does_not_leak_and_comes_back(void **state)
{
    static const unsigned MODES[] = {0x1F80,          0x9FC0 /* FTZ + DAZ */, 0x3F80 /* down */,
                                     0x5F80 /* up */, 0x7F80 /* to zero */,   0xFFC0};
    unsigned first = _mm_getcsr();
    static struct fp plain;

    (void)state;
    _mm_setcsr(0x1F80);
    compute(&plain, 0, N_FP, 0);
    assert_true(plain.tiny[0] != 0.0f);
    for (size_t t = 0; t < COUNT_OF(THREADS); t++) {
        for (size_t m = 0; m < COUNT_OF(MODES); m++) {
            for (int spoil = 0; spoil < 2; spoil++) {
                _mm_setcsr(MODES[m]);
                struct pool *pool = NULL; /* workers inherit the mode of their creator */
                enum ferry_status st = pool_create(&pool, THREADS[t], NULL);
                static struct fp got[3];
                memset(got, 0, sizeof got);
                for (int round = 0; st == FERRY_OK && round < 3; round++) {
                    got[round].spoil = spoil != 0 && round < 2;
                    /* one grain per call: a spoiled mode would reach the next grain, by the
                     * contract only the round ends it */
                    pool_for(pool, N_FP, got[round].spoil ? N_FP : 1, compute, &got[round]);
                }
                unsigned after = _mm_getcsr();
                _mm_setcsr(0x1F80);
                assert_int_equal(st, FERRY_OK);
                assert_int_equal(after, MODES[m]);
                for (int round = 0; round < 3; round++) {
                    assert_memory_equal(got[round].third, plain.third, sizeof plain.third);
                    assert_memory_equal(got[round].tiny, plain.tiny, sizeof plain.tiny);
                    assert_memory_equal(got[round].sum, plain.sum, sizeof plain.sum);
                    for (int i = 0; i < N_FP; i++)
                        assert_int_equal(got[round].mode[i], 0x1F80);
                }
                pool_destroy(pool);
            }
        }
    }
    _mm_setcsr(first);
}

/* A worker whose fn changed the mode starts the next round clean. */
struct spoil_worker {
    atomic_uint n_seen[8], n_bad;
    bool spoil;
};

static void spoil_by_thread(void *arg, size_t begin, size_t end, int thread_index)
{
    struct spoil_worker *s = arg;

    (void)begin;
    (void)end;
    if (s->spoil)
        _mm_setcsr(0xFFC0);
    else if ((_mm_getcsr() & 0xFFC0u) != 0x1F80)
        atomic_fetch_add(&s->n_bad, 1);
    atomic_fetch_add(&s->n_seen[thread_index], 1);
}

static void spoiled_worker_starts_the_next_round_clean(void **state)
{
    struct pool *pool = pool_of(2);
    static struct spoil_worker s;

    (void)state;
    memset(&s, 0, sizeof s);
    for (int round = 0; round < 2000; round++) {
        s.spoil = round % 2 == 0;
        pool_for(pool, 40, 1, spoil_by_thread, &s);
    }
    assert_int_equal(s.n_bad, 0);
    pool_destroy(pool);
}
#endif

/* ---- life cycle ---- */

static void create_and_destroy_a_thousand_times(void **state)
{
    (void)state;
    for (int i = 0; i < 1000; i++) {
        struct pool *pool = pool_of(1 + i % 5);
        if (i % 3 == 0) {
            struct ranges r = {0};
            pool_for(pool, 10, 1, add_range, &r);
            assert_int_equal(r.n_items, 10);
        }
        pool_destroy(pool);
    }
    pool_destroy(NULL);
}

static void bad_counts_and_no_memory_are_errors(void **state)
{
    static const int BAD[] = {0, -1, INT32_MIN, LIMIT_THREADS + 1, INT32_MAX};
    struct pool *const untouched = (struct pool *)(uintptr_t)64;
    struct pool *pool = untouched;
    struct ferry_error err;

    (void)state;
    for (size_t i = 0; i < COUNT_OF(BAD); i++) {
        assert_int_equal(pool_create(&pool, BAD[i], &err), FERRY_ERR_LIMIT);
        assert_int_equal(pool_create(&pool, BAD[i], NULL), FERRY_ERR_LIMIT);
        char number[16];
        (void)snprintf(number, sizeof number, " %d ", BAD[i]);
        assert_non_null(strstr(err.msg, number));
    }
    mem_fail_after(1);
    assert_int_equal(pool_create(&pool, 3, &err), FERRY_ERR_NOMEM);
    mem_fail_after(0);
    assert_ptr_equal(pool, untouched);
}

/* With room for few stacks only, pool_create must take back the threads it started. Runs in a
 * child; _exit code 0 is good. */
static void create_without_address_space(void)
{
    struct rlimit limit = {(rlim_t)128 << 20, (rlim_t)128 << 20};
    struct ferry_error err = {0};
    struct pool *pool = NULL;

    if (setrlimit(RLIMIT_AS, &limit) != 0)
        _exit(2);
    enum ferry_status st = pool_create(&pool, LIMIT_THREADS, &err);
    if (st != FERRY_ERR_IO || pool != NULL || strstr(err.msg, "cannot start thread") == NULL)
        _exit(3);
    if (pool_create(&pool, 2, &err) != FERRY_OK) /* stacks were given back */
        _exit(4);
    struct ranges r = {0};
    pool_for(pool, 10, 1, add_range, &r);
    if (r.n_items != 10)
        _exit(5);
    pool_destroy(pool);
}

static void missing_threads_are_an_error(void **state)
{
    char text[400];

    (void)state;
#ifdef FERRY_SANITIZED /* shadow memory does not fit under an address-space limit */
    (void)text;
    (void)create_without_address_space;
    skip();
#else
    int status = run_in_child(create_without_address_space, text, sizeof text);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
#endif
}

static void grain_zero(void)
{
    const struct rlimit none = {0, 0};
    struct pool *pool = NULL;
    struct ranges r = {0};

    (void)setrlimit(RLIMIT_CORE, &none);
    (void)signal(SIGABRT, SIG_DFL);
    if (pool_create(&pool, 1, NULL) == FERRY_OK)
        pool_for(pool, 5, 0, add_range, &r);
}

static void grain_zero_is_caught(void **state)
{
    char text[400];

    (void)state;
    int status = run_in_child(grain_zero, text, sizeof text);
    assert_true(WIFSIGNALED(status));
    assert_int_equal(WTERMSIG(status), SIGABRT);
    assert_non_null(strstr(text, "grain > 0"));
}

static void rounds_allocate_nothing(void **state)
{
    (void)state;
    struct pool *pool = pool_of(5);
    struct ranges r = {0};
    uint64_t before = mem_count_calls();
    for (int i = 0; i < 100; i++)
        pool_for(pool, 100, 3, add_range, &r);
    assert_int_equal(mem_count_calls(), before);
    pool_destroy(pool);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(missing_threads_are_an_error), /* first: the child needs a small process */
        cmocka_unit_test(grain_zero_is_caught),
        cmocka_unit_test(every_item_runs_once_in_grains),
        cmocka_unit_test(huge_counts_do_not_wrap),
        cmocka_unit_test(no_items_make_no_call),
        cmocka_unit_test(sums_hold_over_many_rounds),
#if defined(__x86_64__)
        cmocka_unit_test(callers_mode_does_not_leak_and_comes_back),
        cmocka_unit_test(spoiled_worker_starts_the_next_round_clean),
#endif
        cmocka_unit_test(create_and_destroy_a_thousand_times),
        cmocka_unit_test(bad_counts_and_no_memory_are_errors),
        cmocka_unit_test(rounds_allocate_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
