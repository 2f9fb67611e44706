/* Speed of the matmul kernels on one thread, beside the limits measured in the same run.
 *
 * Why here: a figure without its limit says nothing, and machines drift and are shared: every
 * sample is taken right after a sample of the limit, and the ratio's median is what counts. Prompt
 * case: one expert matrix of 1024 columns by k 2048 in cache, rows picked by an index. Generation
 * case: 1 to 8 rows against more weights than any cache holds.
 *
 * Usage: bench_matmul [dtype ...] [--ref] [--rows N] [--cols N] [--mb N] [--repeat N] */
#include "../limits/mixes.h"

#include "base/alloc.h"
#include "kernel/kernel.h"
#include "tensor/half.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { K = 2048, COLS_MAX = 1024, ROWS_MAX = 512, REPEAT_MAX = 1001 };

struct options {
    enum cpu_level level;
    size_t rows, cols, mb, repeat;
    bool want[DTYPE_COUNT];
};

static uint32_t next(void)
{
    static uint64_t state;
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(state >> 33);
}

/* CPU time of this thread: the machine is shared, and a preempted kernel is not a slow one. */
static uint64_t cpu_now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Random codes with ordinary scales, one row of the file. */
static void draw_row(enum dtype t, uint8_t *row, size_t k)
{
    size_t bytes = dtype_block_bytes(t), n = k / dtype_block_elems(t);
    uint16_t d = f16_from_f32(0.01f);

    for (size_t i = 0; i < n * bytes; i++)
        row[i] = (uint8_t)next();
    for (size_t i = 0; i < n; i++) {
        uint8_t *p = row + i * bytes;
        float v = 0.01f;
        if (t == DTYPE_F32)
            memcpy(p, &v, 4);
        else if (t == DTYPE_MXFP4)
            p[0] = 120;
        else
            memcpy(t == DTYPE_Q6_K ? p + 208 : p, &d, 2);
        if (t == DTYPE_Q4_1 || t == DTYPE_Q5_1 || t == DTYPE_Q4_K || t == DTYPE_Q5_K)
            memcpy(p + 2, &d, 2);
    }
}

static void draw_act(enum dtype t, void *row, size_t k)
{
    if (act_format_for(t) == ACT_FORMAT_F32) {
        for (size_t i = 0; i < k; i++)
            ((float *)row)[i] = (float)(next() % 255) - 127;
        return;
    }
    int8_t *q = row;
    float *scale = (float *)(uintptr_t)act_a32_scales(row, k);
    int32_t *sum = (int32_t *)(uintptr_t)act_a32_sums(row, k);
    for (size_t b = 0; b < k / ACT_BLOCK; b++) {
        scale[b] = 0.01f;
        sum[b] = 0;
        for (size_t j = 0; j < ACT_BLOCK; j++) {
            q[b * ACT_BLOCK + j] = (int8_t)((int)(next() % 255) - 127);
            sum[b] += q[b * ACT_BLOCK + j];
        }
    }
}

/* Fills `bytes` bytes with copies of one packed group. */
static void fill_groups(enum dtype t, void *packed, size_t n_groups)
{
    size_t group_bytes = pack_group_bytes(t, K);
    size_t row_bytes = K / dtype_block_elems(t) * dtype_block_bytes(t);
    uint8_t *file = mem_alloc(row_bytes * KERNEL_GROUP);

    for (size_t c = 0; c < KERNEL_GROUP; c++)
        draw_row(t, file + c * row_bytes, K);
    pack_group(t, packed, file, row_bytes, KERNEL_GROUP, K);
    for (size_t g = 1; g < n_groups; g++)
        memcpy((char *)packed + g * group_bytes, packed, group_bytes);
    mem_free(file);
}

/* Sorted samples of one figure; median and best. */
struct samples {
    double v[REPEAT_MAX];
    size_t n;
};

static void add(struct samples *s, double v)
{
    s->v[s->n++] = v;
}

static double median(struct samples *s)
{
    qsort(s->v, s->n, sizeof s->v[0], compare);
    return s->v[s->n / 2];
}

static double best(struct samples *s)
{
    qsort(s->v, s->n, sizeof s->v[0], compare);
    return s->v[s->n - 1];
}

static double call_ns(matmul_fn *fn, const struct matmul_job *job)
{
    uint64_t start = cpu_now_ns();
    fn(job);
    return (double)(cpu_now_ns() - start);
}

static double read_gbs(const void *data, size_t bytes, int streams)
{
    size_t n = bytes & ~(size_t)(4096 * 4 - 1);
    uint64_t start = cpu_now_ns();
    volatile uint64_t sum = mixes_read(data, n, streams);
    (void)sum;
    return (double)n / (double)(cpu_now_ns() - start);
}

/* About 0.1 ms of the mix: long against the clock call. */
static double mix_gops(const struct mix *mix)
{
    uint64_t rounds = (uint64_t)(15e6 / mix->ops_per_round);
    uint64_t start = cpu_now_ns();
    volatile uint64_t sum = mix->run(rounds, rounds & 3);
    (void)sum;
    return mix->ops_per_round * (double)rounds / (double)(cpu_now_ns() - start);
}

static void print_mixes(size_t repeat)
{
    for (int m = 0; m < MIX_COUNT; m++) {
        const struct mix *mix = &mixes_table()[m];
        struct samples s = {.n = 0};
        for (size_t i = 0; i < repeat; i++)
            add(&s, mix_gops(mix));
        double best_gops = best(&s);
        printf("limit %-9s median %6.1f best %6.1f GOP/s  %s\n", mix->name, median(&s), best_gops,
               mix->what);
    }
}

/* One expert matrix in cache, beside the mix of 4-bit codes (plain types: of f32). */
static void bench_prompt(matmul_fn *fn, struct matmul_job *job, enum dtype t, size_t repeat)
{
    static struct samples gops, ratio;
    const struct mix *mix = &mixes_table()[act_format_for(t) == ACT_FORMAT_F32 ? 4 : 0];
    double ops = 2.0 * (double)job->n_rows * (double)job->k * (double)job->n_cols;

    gops.n = ratio.n = 0;
    fn(job);
    for (size_t i = 0; i < repeat; i++) {
        double limit = mix_gops(mix);
        double g = ops / call_ns(fn, job);
        add(&gops, g);
        add(&ratio, g / limit);
    }
    double top = best(&gops);
    printf("%-7s prompt %zu rows: median %5.1f best %5.1f GOP/s, %.2f of %s |", dtype_name(t),
           job->n_rows, median(&gops), top, median(&ratio), mix->name);
}

/* A few rows against all of the weights, beside plain reads of the same memory. */
static void bench_stream(matmul_fn *fn, struct matmul_job *job, size_t bytes, size_t rows_max,
                         size_t repeat)
{
    static const size_t rows[] = {1, 2, 3, 4, 8};
    static struct samples gbs, ratio, one, four;

    one.n = four.n = 0;
    printf(" stream GB/s");
    for (size_t r = 0; r < 5 && rows[r] <= rows_max; r++) {
        gbs.n = ratio.n = 0;
        job->n_rows = rows[r];
        for (size_t i = 0; i < repeat; i++) {
            double limit = read_gbs(job->packed, bytes, 1);
            double g = (double)bytes / call_ns(fn, job);
            if (r == 0) {
                add(&one, limit);
                add(&four, read_gbs(job->packed, bytes, 4));
            }
            add(&gbs, g);
            add(&ratio, g / limit);
        }
        printf("  %zu: %.1f (%.2f)", rows[r], median(&gbs), median(&ratio));
    }
    printf("  read 1 stream %.1f, 4 streams %.1f\n", median(&one), median(&four));
}

static void bench_dtype(enum dtype t, const struct options *o, void *weights, size_t bytes)
{
    static float out[(size_t)ROWS_MAX * COLS_MAX];
    struct kernels kernels;
    size_t n_groups = bytes / pack_group_bytes(t, K);
    size_t stride = act_row_bytes(act_format_for(t), K);
    uint8_t *act = mem_alloc(stride * o->rows);
    float *wide = mem_alloc(n_groups * KERNEL_GROUP * 8 * sizeof *wide);
    const void *at[ROWS_MAX];

    kernels_init(&kernels, o->level);
    for (size_t i = 0; i < o->rows; i++) {
        draw_act(t, act + i * stride, K);
        at[i] = act + i * 7 % o->rows * stride;
    }
    fill_groups(t, weights, n_groups);
    struct matmul_job job = {.act_at = at,
                             .n_rows = o->rows,
                             .out = out,
                             .out_stride = COLS_MAX,
                             .packed = weights,
                             .k = K,
                             .n_cols = o->cols,
                             .group_end = o->cols / KERNEL_GROUP};
    bench_prompt(kernels.matmul[t], &job, t, o->repeat);
    job.out = wide;
    job.n_cols = job.out_stride = n_groups * KERNEL_GROUP;
    job.group_end = n_groups;
    bench_stream(kernels.matmul[t], &job, n_groups * pack_group_bytes(t, K), o->rows,
                 o->repeat / 4 + 1);
    fflush(stdout);
    mem_free(wide);
    mem_free(act);
}

static bool parse(int argc, char **argv, struct options *o)
{
    bool any = false;

    *o = (struct options){
        .level = cpu_best_level(), .rows = 64, .cols = COLS_MAX, .mb = 80, .repeat = 41};
    for (int i = 1; i < argc; i++) {
        enum dtype t;
        size_t *number = strcmp(argv[i], "--rows") == 0     ? &o->rows
                         : strcmp(argv[i], "--cols") == 0   ? &o->cols
                         : strcmp(argv[i], "--mb") == 0     ? &o->mb
                         : strcmp(argv[i], "--repeat") == 0 ? &o->repeat
                                                            : NULL;
        if (number != NULL && i + 1 < argc) {
            *number = strtoul(argv[++i], NULL, 10);
        } else if (strcmp(argv[i], "--ref") == 0) {
            o->level = CPU_LEVEL_REF;
        } else if (dtype_parse(argv[i], &t)) {
            o->want[t] = any = true;
        } else {
            fprintf(stderr, "bench_matmul: unknown argument '%s'\n", argv[i]);
            return false;
        }
    }
    for (int t = 0; t < DTYPE_COUNT && !any; t++)
        o->want[t] = true;
    if (o->rows < 1 || o->rows > ROWS_MAX || o->repeat < 1 || o->repeat > REPEAT_MAX ||
        o->mb < 16 || o->cols < KERNEL_GROUP || o->cols > COLS_MAX) {
        fprintf(stderr, "bench_matmul: rows 1..%d, cols 8..%d, repeat 1..%d, mb at least 16\n",
                ROWS_MAX, COLS_MAX, REPEAT_MAX);
        return false;
    }
    return true;
}

int main(int argc, char **argv)
{
    struct options o;

    if (!parse(argc, argv, &o))
        return 2;
    size_t bytes = o.mb << 20;
    void *weights = map_alloc(bytes, 1);
    if (weights == NULL) {
        fprintf(stderr, "bench_matmul: cannot map %zu MiB\n", o.mb);
        return 1;
    }
    if (cpu_best_level() < CPU_LEVEL_AVX2) {
        fprintf(stderr, "bench_matmul: this machine has no AVX2\n");
        return 1;
    }
    print_mixes(o.repeat);
    for (int t = 0; t < DTYPE_COUNT; t++)
        if (o.want[t])
            bench_dtype((enum dtype)t, &o, weights, bytes);
    map_free(weights, bytes);
    return 0;
}
