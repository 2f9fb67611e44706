/* What the work of a round takes without an exchange: the floor under Ferry's and baseline B's
 * figures of run.py for 2 ranks in one host. (A's rows are others: bf16, and as many as experts.)
 *
 * Two processes, pinned, over one shared mapping. Each quantises its tokens into memory that the
 * other reads, makes a row of every row that came where the other reads it, and adds that to what
 * its own row gives: the stores and loads that no exchange of these rows can do without, where
 * caches serve them best. No plan, no router's ids, no messages, no accounts, nobody who may be
 * late or lost; two flags a round, and both always spin. What it takes is no target: it is how much
 * of a figure is not the exchange's. It must not know Ferry's exchange.
 *
 *     least --tokens T [--seconds S]        one JSON line, us_p50 as run.py has it */
#include "base/clock.h"
#include "base/cpu.h"
#include "kernel/kernel.h"
#include "tensor/act.h"

#include <immintrin.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum { HIDDEN = 2048, ROUNDS_MOST = 2000, WARM = 20, CACHE_LINE = 64, TOKENS_MOST = 16384 };
enum { AHEAD = 512 }; /* values that are asked for before their turn */

/* A rank's part of the shared mapping. Flags count rounds. */
struct side {
    _Alignas(2 * CACHE_LINE) _Atomic size_t sent;     /* its rows are here; pairs with await */
    _Alignas(2 * CACHE_LINE) _Atomic size_t answered; /* its answers are here; pairs with await */
    unsigned char *rows;                              /* [2, tokens, row_bytes] */
    float *answers;                                   /* [2, tokens, HIDDEN] */
    uint64_t ns[ROUNDS_MOST];
};

static struct side *sides[2];
static size_t n_tokens = 1, n_rounds, row_bytes;
static pid_t parent, child; /* child: 0 in itself */

static void fail(const char *what)
{
    perror(what);
    exit(1);
}

static void *share(size_t n_bytes)
{
    void *data = mmap(NULL, n_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

    if (data == MAP_FAILED)
        fail("least: mmap");
    memset(data, 0, n_bytes);
    return data;
}

static void pin(int rank)
{
    cpu_set_t allowed, one;
    int n = 0;

    CPU_ZERO(&one);
    if (sched_getaffinity(0, sizeof allowed, &allowed) != 0 || CPU_COUNT(&allowed) < 2) {
        (void)fprintf(stderr, "least: two processors are needed\n");
        exit(1);
    }
    for (size_t cpu = 0; cpu < CPU_SETSIZE; cpu++) {
        if (CPU_ISSET(cpu, &allowed) && n++ == rank)
            CPU_SET(cpu, &one);
    }
    if (sched_setaffinity(0, sizeof one, &one) != 0)
        fail("least: sched_setaffinity");
}

/* Eight values of a quantised row, times `by`. */
static inline __m256 values(const unsigned char *row, const float *scales, size_t c, __m256 by)
{
    __m256i codes = _mm256_cvtepi8_epi32(_mm_loadl_epi64((const void *)(row + c)));

    return _mm256_mul_ps(
        by, _mm256_mul_ps(_mm256_cvtepi32_ps(codes), _mm256_set1_ps(scales[c / ACT_BLOCK])));
}

/* dst = by * row, plus `other` if there is one. */
static void widen(float *dst, const unsigned char *row, float by, const float *other)
{
    const float *scales = act_a32_scales(row, HIDDEN);
    const __m256 factor = _mm256_set1_ps(by);

    for (size_t c = 0; c < HIDDEN; c += 8) {
        __m256 v = values(row, scales, c, factor);
        if (other != NULL) {
            _mm_prefetch((const char *)(other + c + AHEAD), _MM_HINT_T0);
            v = _mm256_add_ps(v, _mm256_load_ps(other + c));
        }
        _mm256_store_ps(dst + c, v);
    }
}

/* The other process may have ended: with what is awaited, or with a message that says why not. */
static void check_other(const _Atomic size_t *count, size_t round)
{
    siginfo_t ended = {0};
    bool is_gone = child > 0
                       ? waitid(P_PID, (id_t)child, &ended, WEXITED | WNOHANG | WNOWAIT) != 0 ||
                             ended.si_pid != 0
                       : getppid() != parent;

    if (is_gone && atomic_load_explicit(count, memory_order_acquire) < round)
        exit(1);
}

static void await(const _Atomic size_t *count, size_t round)
{
    enum { LOOK_EVERY = 1 << 24 };

    for (size_t i = 1; atomic_load_explicit(count, memory_order_acquire) < round; i++) {
        if (i % LOOK_EVERY == 0)
            check_other(count, round);
        cpu_relax();
    }
}

static void run_round(int rank, size_t round, const struct kernels *kernels, const float *x,
                      float *out)
{
    struct side *own = sides[rank], *other = sides[1 - rank];
    size_t first = round % 2 * n_tokens; /* two buffers in turn */
    unsigned char *rows = own->rows + first * row_bytes, *came = other->rows + first * row_bytes;
    float *answers = own->answers + first * HIDDEN, *back = other->answers + first * HIDDEN;

    for (size_t t = 0; t < n_tokens; t++)
        kernels->quantize_a32(rows + t * row_bytes, x + t * HIDDEN, HIDDEN);
    atomic_store_explicit(&own->sent, round, memory_order_release);
    await(&other->sent, round);
    for (size_t t = 0; t < n_tokens; t++)
        widen(answers + t * HIDDEN, came + t * row_bytes, 0.25f, NULL);
    atomic_store_explicit(&own->answered, round, memory_order_release);
    await(&other->answered, round);
    for (size_t t = 0; t < n_tokens; t++)
        widen(out + t * HIDDEN, rows + t * row_bytes, 0.75f, back + t * HIDDEN);
}

static void run(int rank)
{
    float *x = aligned_alloc(CACHE_LINE, n_tokens * HIDDEN * sizeof *x);
    float *out = aligned_alloc(CACHE_LINE, n_tokens * HIDDEN * sizeof *out);
    struct kernels kernels;

    if (x == NULL || out == NULL)
        fail("least: memory");
    pin(rank);
    kernels_init(&kernels, cpu_best_level());
    for (size_t i = 0; i < n_tokens * HIDDEN; i++)
        x[i] = (float)(int)(i * 2654435761u % 2001) / 1000 - 1;
    memset(out, 0, n_tokens * HIDDEN * sizeof *out);
    uint64_t begin = 0;
    for (size_t round = 1; round <= WARM + n_rounds; round++) {
        run_round(rank, round, &kernels, x, out);
        uint64_t end = clock_now_ns();
        if (round > WARM)
            sides[rank]->ns[round - WARM - 1] = end - begin;
        begin = end;
    }
    for (size_t t = 0; t < n_tokens; t++) { /* both ranks have the same tokens: out is x, rounded */
        for (size_t c = 0; c < HIDDEN; c++) {
            float gap = out[t * HIDDEN + c] - x[t * HIDDEN + c];
            if (!(gap < 0.005f && gap > -0.005f)) {
                (void)fprintf(stderr, "least: token %zu has a wrong sum\n", t);
                exit(1);
            }
        }
    }
    free(x);
    free(out);
}

static int compare(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

    return (x > y) - (x < y);
}

/* Rounds that fit, by a guess of 2 us a token. */
static void set_rounds(double seconds)
{
    double n = seconds * 1e6 / (2 * (double)n_tokens + 2);

    n_rounds = n < 20 ? 20 : n > ROUNDS_MOST ? ROUNDS_MOST : (size_t)n;
}

int main(int argc, char **argv)
{
    double seconds = 1;
    bool wrong = argc % 2 == 0;

    for (int i = 1; i + 1 < argc && !wrong; i += 2) {
        if (strcmp(argv[i], "--tokens") == 0)
            n_tokens = strtoul(argv[i + 1], NULL, 10);
        else if (strcmp(argv[i], "--seconds") == 0)
            seconds = strtod(argv[i + 1], NULL);
        else
            wrong = true;
    }
    if (wrong || n_tokens < 1 || n_tokens > TOKENS_MOST || !(seconds > 0) ||
        cpu_best_level() < CPU_LEVEL_AVX2) {
        (void)fprintf(stderr, "usage: least --tokens 1..%d [--seconds S], on a machine with AVX2\n",
                      TOKENS_MOST);
        return 2;
    }
    set_rounds(seconds);
    row_bytes = act_row_bytes(ACT_FORMAT_A32, HIDDEN);
    for (int rank = 0; rank < 2; rank++) {
        sides[rank] = share(sizeof *sides[rank]);
        sides[rank]->rows = share(2 * n_tokens * row_bytes);
        sides[rank]->answers = share(2 * n_tokens * HIDDEN * sizeof(float));
    }
    parent = getpid();
    child = fork();
    if (child < 0)
        fail("least: fork");
    run(child == 0 ? 1 : 0);
    int status = 0;
    if (child == 0)
        return 0;
    if (waitpid(child, &status, 0) != child || status != 0)
        return 1;
    double p50 = 0;
    for (int rank = 0; rank < 2; rank++) {
        qsort(sides[rank]->ns, n_rounds, sizeof *sides[rank]->ns, compare);
        double us = (double)sides[rank]->ns[n_rounds / 2] * 1e-3;
        p50 = us > p50 ? us : p50;
    }
    printf(
        "{\"mode\": \"least\", \"ranks\": 2, \"tokens\": %zu, \"us_p50\": %.2f, \"rounds\": %zu}\n",
        n_tokens, p50, n_rounds);
    return 0;
}
