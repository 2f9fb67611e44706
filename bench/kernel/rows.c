/* Speed of the row and attention kernels, per level, one thread: best of 7 rounds, in processor
 * time of the thread, so that other work on the machine disturbs little.
 *
 * bench_rows [attn]: all, or attention only. Rows stay in the cache; "memory" cases of attention
 * walk 256 MiB of pages, so that they show what the memory gives. */
#include "base/alloc.h"
#include "base/cpu.h"
#include "kernel/kernel.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { ROUNDS = 7, N = 2048 };

static float x[N], y[N], w[N];
static _Alignas(64) char row[4 * N];
static const struct kernels *kernels;

static uint64_t cpu_now_ns(void)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* Best seconds per call of body(argument), calls repeated until a round takes 20 ms. */
static double time_calls(void (*body)(void *), void *argument)
{
    uint64_t best = UINT64_MAX, calls = 1, elapsed = 0;

    while (elapsed < 20000000) {
        calls *= elapsed == 0 ? 1 : elapsed < 2000000 ? 8 : 2;
        uint64_t start = cpu_now_ns();
        for (uint64_t i = 0; i < calls; i++)
            body(argument);
        elapsed = cpu_now_ns() - start;
    }
    for (int r = 0; r < ROUNDS; r++) {
        uint64_t start = cpu_now_ns();
        for (uint64_t i = 0; i < calls; i++)
            body(argument);
        elapsed = cpu_now_ns() - start;
        best = elapsed < best ? elapsed : best;
    }
    return (double)best * 1e-9 / (double)calls;
}

static void do_quantize(void *unused)
{
    (void)unused;
    kernels->quantize_a32(row, x, N);
}

static void do_rms_norm(void *unused)
{
    (void)unused;
    kernels->rms_norm(y, x, w, N, 1e-6f);
}

static void do_silu(void *unused)
{
    (void)unused;
    kernels->silu_mul(y, x, w, N);
}

static void do_softmax(void *unused)
{
    (void)unused;
    kernels->softmax(y, N);
}

static void do_add(void *unused)
{
    (void)unused;
    kernels->add(y, x, N);
}

static void do_rope(void *unused)
{
    (void)unused;
    kernels->rope(y, 128, N / 128, 64, x, w, false);
}

static void do_encode(void *dtype)
{
    (void)kernels->encode[*(enum dtype *)dtype](row, x, N);
}

static void do_decode(void *dtype)
{
    kernels->decode[*(enum dtype *)dtype](y, row, N);
}

static void bench_rows(void)
{
    enum dtype f16 = DTYPE_F16, bf16 = DTYPE_BF16;
    const struct {
        const char *name;
        void (*body)(void *);
        void *argument;
        double bytes; /* read and written per element */
    } cases[] = {
        {"quantize_a32", do_quantize, NULL, 5.25},
        {"rms_norm", do_rms_norm, NULL, 16},
        {"silu_mul", do_silu, NULL, 12},
        {"softmax", do_softmax, NULL, 20},
        {"add", do_add, NULL, 12},
        {"rope", do_rope, NULL, 12},
        {"encode f16", do_encode, &f16, 6},
        {"encode bf16", do_encode, &bf16, 6},
        {"decode f16", do_decode, &f16, 6},
        {"decode bf16", do_decode, &bf16, 6},
    };

    for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++) {
        for (int i = 0; i < N; i++) {
            x[i] = (float)(i * 7919 % 2003 - 1001) * 0x1p-9f;
            y[i] = x[i];
            w[i] = 0.5f;
        }
        double seconds = time_calls(cases[c].body, cases[c].argument);
        printf("%-5s %-14s n %d  %8.2f ns/1000  %7.2f GB/s\n", cpu_level_name(kernels->level),
               cases[c].name, N, seconds * 1e12 / N, cases[c].bytes * N / seconds * 1e-9);
    }
}

/* A run over pages, one after the other. */
struct attn_case {
    enum dtype dtype;
    size_t head_dim, n_q, n_pages, next;
    char *pages;
    struct attn_job job;
};

static void do_attn(void *argument)
{
    struct attn_case *c = argument;
    size_t half = KERNEL_KV_CHUNK * c->head_dim * dtype_block_bytes(c->dtype);
    c->job.k = c->pages + c->next * 2 * half;
    c->job.v = (const char *)c->job.k + half;
    c->next = (c->next + 1) % c->n_pages;
    kernels->attn[c->dtype](&c->job);
}

static void bench_attn_case(enum dtype dtype, size_t head_dim, size_t n_q, bool memory)
{
    int32_t begin[32] = {0}, end[32];
    float max[32], sum[32] = {0};
    size_t half = KERNEL_KV_CHUNK * head_dim * dtype_block_bytes(dtype);
    struct attn_case c = {dtype, head_dim, n_q, memory ? ((size_t)256 << 20) / (2 * half) : 1,
                          0,     NULL,     {0}};
    float *q = mem_zero(n_q * head_dim * 4), *acc = mem_zero(n_q * head_dim * 4);
    float *scratch = mem_zero(attn_scratch_floats(n_q, head_dim) * 4), *v = mem_zero(head_dim * 4);

    c.pages = map_alloc(c.n_pages * 2 * half, 1);
    if (q == NULL || acc == NULL || scratch == NULL || v == NULL || c.pages == NULL) {
        (void)fprintf(stderr, "bench: out of memory\n");
        exit(1);
    }
    for (size_t i = 0; i < n_q * head_dim; i++)
        q[i] = (float)(i * 7919 % 2003) * 0x1p-11f - 0.5f;
    for (size_t page = 0; page < c.n_pages; page++)
        for (size_t p = 0; p < KERNEL_KV_CHUNK; p++) {
            for (size_t d = 0; d < head_dim; d++)
                v[d] = (float)((p * head_dim + d) * 104729 % 4001) * 0x1p-12f - 0.5f;
            (void)kernels->kv_store[dtype](c.pages + page * 2 * half,
                                           c.pages + (page * 2 + 1) * half, p, head_dim, v, v);
        }
    for (int i = 0; i < 32; i++)
        end[i] = KERNEL_KV_CHUNK;
    c.job = (struct attn_job){q,   head_dim, n_q,     head_dim, NULL, NULL, begin,
                              end, 0.1f,     scratch, max,      sum,  acc,  head_dim};
    double seconds = time_calls(do_attn, &c);
    printf("%-5s attn %-4s d %3zu n_q %2zu %-6s  %7.2f GFLOP/s  %6.2f GB/s of KV\n",
           cpu_level_name(kernels->level), dtype_name(dtype), head_dim, n_q,
           memory ? "memory" : "cache",
           4.0 * KERNEL_KV_CHUNK * (double)(head_dim * n_q) / seconds * 1e-9,
           2.0 * (double)half / seconds * 1e-9);
    mem_free(q);
    mem_free(acc);
    mem_free(scratch);
    mem_free(v);
    map_free(c.pages, c.n_pages * 2 * half);
}

/* What one core reads from memory: the bound of decoding attention. */
static void bench_memory(void)
{
    size_t n = (size_t)256 << 20;
    uint64_t best = UINT64_MAX;
    uint64_t *p = map_alloc(n, 1);
    volatile uint64_t sink = 0;

    if (p == NULL)
        return;
    memset(p, 1, n);
    for (int r = 0; r < ROUNDS; r++) {
        uint64_t start = cpu_now_ns(), sum = 0;
        for (size_t i = 0; i < n / 8; i++)
            sum += p[i];
        sink = sum;
        uint64_t elapsed = cpu_now_ns() - start;
        best = elapsed < best ? elapsed : best;
    }
    (void)sink;
    printf("memory read, one core: %.2f GB/s\n", (double)n / (double)best);
    map_free(p, n);
}

int main(int argc, char **argv)
{
    static const size_t DIMS[] = {64, 128};
    static const size_t COUNTS[] = {1, 4, 8, 32};
    static const enum dtype TYPES[] = {DTYPE_F16, DTYPE_BF16, DTYPE_F32};
    bool attn_only = argc > 1 && strcmp(argv[1], "attn") == 0;

    bench_memory();
    for (int level = (int)cpu_best_level(); level >= 0; level--) {
        struct kernels k;
        kernels_init(&k, (enum cpu_level)level);
        kernels = &k;
        if (!attn_only)
            bench_rows();
        for (size_t t = 0; t < (level == 0 ? 1 : 3); t++)
            for (size_t d = 0; d < 2; d++)
                for (size_t c = 0; c < 4; c++)
                    bench_attn_case(TYPES[t], DIMS[d], COUNTS[c], false);
        for (size_t c = 0; c < 4 && level > 0; c++)
            bench_attn_case(DTYPE_F16, 128, COUNTS[c], true);
    }
    return 0;
}
