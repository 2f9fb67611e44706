/* bench_limits: measures what this machine can do at most and prints it as JSON.
 *
 * What: read bandwidth (1 and N threads, 4 KiB and huge pages) and the peak rate of the
 *       instruction mixes in mixes.h (1 and N threads); each figure the median of several runs,
 *       with minimum and maximum. Compute rates are per CPU time, bandwidth per wall time.
 * Why here: bench/peers divides every speed by a limit measured in the same run.
 * Must not know: any kernel or model of Ferry.
 *
 * Usage: bench_limits [--threads N] [--mib M] [--reps R]      defaults: all CPUs, 1024, 5
 * Takes about 15 s. Exit 0 good, 1 failed, 2 wrong usage. */
#define _GNU_SOURCE
#include "mixes.h"

#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

enum { THREADS_MAX = 256, REPS_MAX = 101, MIB_MAX = 1 << 20, READ_UNIT_BYTES = 4096 * 4 };

static const double MIX_SECONDS = 0.15;

struct options {
    int threads;
    int mib;
    int reps;
};

/* What each thread does between the two barriers of one timed run. */
struct job {
    const struct mix *mix; /* NULL: read memory */
    uint64_t rounds;
    const char *data;
    size_t bytes;
    int streams;
    pthread_barrier_t *gate;
    uint64_t result;
    double cpu_s; /* out: CPU time this thread spent on it */
};

/* Median, least and largest of one figure's repetitions. */
struct figure {
    double median;
    double min;
    double max;
};

static volatile uint64_t g_sink; /* keeps every result observable */

static double now_s(clockid_t clock)
{
    struct timespec t;

    clock_gettime(clock, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void job_run(struct job *job)
{
    const double started = now_s(CLOCK_THREAD_CPUTIME_ID);

    job->result = job->mix != NULL ? job->mix->run(job->rounds, 1)
                                   : mixes_read(job->data, job->bytes, job->streams);
    job->cpu_s = now_s(CLOCK_THREAD_CPUTIME_ID) - started;
}

static void *worker(void *arg)
{
    struct job *job = arg;

    pthread_barrier_wait(job->gate);
    job_run(job);
    pthread_barrier_wait(job->gate);
    return NULL;
}

/* Runs jobs[0..threads) at once; returns the seconds from the common start to the last end, or a
 * negative value when a thread cannot be started. */
static double timed_run(struct job *jobs, int threads)
{
    pthread_t ids[THREADS_MAX];
    pthread_barrier_t gate;
    double started;
    double elapsed;
    int t;

    if (pthread_barrier_init(&gate, NULL, (unsigned)threads) != 0)
        return -1.0;
    for (t = 0; t < threads; t++)
        jobs[t].gate = &gate;
    for (t = 1; t < threads; t++) {
        if (pthread_create(&ids[t], NULL, worker, &jobs[t]) != 0) {
            fprintf(stderr, "bench_limits: cannot start thread %d of %d; try fewer --threads\n", t,
                    threads);
            exit(1); /* the threads already waiting at the gate go down with the process */
        }
    }
    pthread_barrier_wait(&gate);
    started = now_s(CLOCK_MONOTONIC);
    job_run(&jobs[0]);
    pthread_barrier_wait(&gate);
    elapsed = now_s(CLOCK_MONOTONIC) - started;
    for (t = 1; t < threads; t++)
        pthread_join(ids[t], NULL);
    pthread_barrier_destroy(&gate);
    for (t = 0; t < threads; t++)
        g_sink ^= jobs[t].result;
    return elapsed;
}

static int compare_double(const void *a, const void *b)
{
    const double x = *(const double *)a;
    const double y = *(const double *)b;

    return (x > y) - (x < y);
}

/* Sorts values[n] in place. */
static struct figure summarise(double *values, int n)
{
    struct figure f;

    qsort(values, (size_t)n, sizeof *values, compare_double);
    f.median = n % 2 == 1 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2;
    f.min = values[0];
    f.max = values[n - 1];
    return f;
}

/* Rate of one mix in units of 1e9 operations per second, the threads' own rates added up. Each
 * thread's rate is per second of its own CPU time: a peak is a property of the core, and another
 * program that takes the core away for a while does not lower it. */
static struct figure measure_mix(const struct mix *mix, int threads, int reps)
{
    struct job jobs[THREADS_MAX];
    double values[REPS_MAX];
    uint64_t rounds = 20000;
    double seconds;
    int i;

    memset(jobs, 0, sizeof jobs);
    for (i = 0; i < threads; i++)
        jobs[i].mix = mix;
    do { /* warms the clock up and finds a round count that lasts long enough to time */
        rounds *= 2;
        for (i = 0; i < threads; i++)
            jobs[i].rounds = rounds;
        seconds = timed_run(jobs, threads);
    } while (seconds >= 0 && seconds < MIX_SECONDS);
    for (i = 0; i < reps; i++) {
        int t;

        (void)timed_run(jobs, threads);
        values[i] = 0.0;
        for (t = 0; t < threads; t++)
            values[i] += mix->ops_per_round * (double)rounds / jobs[t].cpu_s * 1e-9;
    }
    return summarise(values, reps);
}

/* Read bandwidth in GB/s over a buffer split evenly between threads; the best stream count wins. */
static struct figure measure_read(const char *data, size_t bytes, int threads, int reps)
{
    struct figure best = {0.0, 0.0, 0.0};
    int streams;

    for (streams = 1; streams <= 4; streams *= 2) {
        struct job jobs[THREADS_MAX];
        double values[REPS_MAX];
        const size_t part = bytes / (size_t)threads / READ_UNIT_BYTES * READ_UNIT_BYTES;
        struct figure f;
        int i;

        memset(jobs, 0, sizeof jobs);
        for (i = 0; i < threads; i++) {
            jobs[i].data = data + (size_t)i * part;
            jobs[i].bytes = part;
            jobs[i].streams = streams;
        }
        for (i = 0; i < reps; i++)
            values[i] = (double)part * threads / timed_run(jobs, threads) * 1e-9;
        f = summarise(values, reps);
        if (f.median > best.median)
            best = f;
    }
    return best;
}

/* Maps and touches a buffer with or without huge pages; NULL when the memory is not there. */
static char *map_buffer(size_t bytes, bool huge)
{
    const size_t align = (size_t)2 << 20;
    char *raw =
        mmap(NULL, bytes + align, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    char *data;

    if (raw == MAP_FAILED)
        return NULL;
    data = raw + (align - (uintptr_t)raw % align) % align;
    if (madvise(data, bytes, huge ? MADV_HUGEPAGE : MADV_NOHUGEPAGE) != 0)
        fprintf(stderr, "bench_limits: note: madvise(%s) refused: %s\n",
                huge ? "huge pages" : "small pages", strerror(errno));
    memset(data, 1, bytes);
    return data;
}

/* MiB of this process that huge pages back just now. */
static long huge_mib(void)
{
    char line[256];
    long kib = 0;
    FILE *f = fopen("/proc/self/smaps_rollup", "r");

    if (f == NULL)
        return -1;
    while (fgets(line, sizeof line, f) != NULL) {
        if (strncmp(line, "AnonHugePages:", 14) == 0)
            kib = strtol(line + 14, NULL, 10);
    }
    fclose(f);
    return kib / 1024;
}

static void print_pair(const char *key, const char *unit, struct figure one, struct figure all,
                       const char *end)
{
    printf("    \"%s\": {\"unit\": \"%s\", \"one\": %.1f, \"one_range\": [%.1f, %.1f], "
           "\"all\": %.1f, \"all_range\": [%.1f, %.1f]}%s\n",
           key, unit, one.median, one.min, one.max, all.median, all.min, all.max, end);
}

static int print_reads(const struct options *opt)
{
    const size_t bytes = (size_t)opt->mib << 20;
    const char *keys[2] = {"read_4k", "read_huge"};
    long backed = 0;
    int kind;

    printf("  \"read\": {\n");
    for (kind = 0; kind < 2; kind++) {
        char *data = map_buffer(bytes, kind == 1);
        struct figure one;
        struct figure all;

        if (data == NULL) {
            fprintf(stderr, "bench_limits: cannot map %d MiB; try a smaller --mib\n", opt->mib);
            return 1;
        }
        backed = huge_mib();
        one = measure_read(data, bytes, 1, opt->reps);
        all = measure_read(data, bytes, opt->threads, opt->reps);
        print_pair(keys[kind], "GB/s", one, all, ",");
        munmap(data, bytes);
    }
    printf("    \"buffer_mib\": %d, \"huge_mib\": %ld\n  },\n", opt->mib, backed);
    return 0;
}

static void print_mixes(const struct options *opt)
{
    const struct mix *table = mixes_table();
    int i;

    printf("  \"compute\": {\n");
    for (i = 0; i < MIX_COUNT; i++) {
        const bool is_float = strncmp(table[i].name, "f32", 3) == 0;
        struct figure one = measure_mix(&table[i], 1, opt->reps);
        struct figure all = measure_mix(&table[i], opt->threads, opt->reps);

        print_pair(table[i].name, is_float ? "GFLOP/s" : "GOP/s", one, all,
                   i + 1 < MIX_COUNT ? "," : "");
    }
    printf("  }\n}\n");
}

/* Reads a whole number in min..max; exits with 2 and one line when it is none. */
static int parse_int(const char *flag, const char *text, int min, int max)
{
    char *end = NULL;
    long value;

    errno = 0;
    value = text == NULL ? 0 : strtol(text, &end, 10);
    if (text == NULL || end == text || *end != '\0' || errno != 0 || value < min || value > max) {
        fprintf(stderr, "bench_limits: %s wants a whole number %d..%d, got '%s'\n", flag, min, max,
                text == NULL ? "" : text);
        exit(2);
    }
    return (int)value;
}

static struct options parse_options(int argc, char **argv)
{
    const long online = sysconf(_SC_NPROCESSORS_ONLN);
    struct options opt = {(int)(online < 1             ? 1
                                : online > THREADS_MAX ? THREADS_MAX
                                                       : online),
                          1024, 5};
    int i;

    for (i = 1; i < argc; i += 2) {
        const char *value = i + 1 < argc ? argv[i + 1] : NULL;

        if (strcmp(argv[i], "--threads") == 0) {
            opt.threads = parse_int(argv[i], value, 1, THREADS_MAX);
        } else if (strcmp(argv[i], "--mib") == 0) {
            opt.mib = parse_int(argv[i], value, 64, MIB_MAX);
        } else if (strcmp(argv[i], "--reps") == 0) {
            opt.reps = parse_int(argv[i], value, 1, REPS_MAX);
        } else {
            fprintf(stderr,
                    "bench_limits: unknown option '%s'; "
                    "usage: bench_limits [--threads N] [--mib M] [--reps R]\n",
                    argv[i]);
            exit(2);
        }
    }
    return opt;
}

int main(int argc, char **argv)
{
    const struct options opt = parse_options(argc, argv);

    if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma")) {
        fprintf(stderr, "bench_limits: this CPU has no AVX2 with FMA; nothing to measure\n");
        return 1;
    }
    printf("{\n  \"threads\": %d, \"reps\": %d,\n", opt.threads, opt.reps);
    if (print_reads(&opt) != 0)
        return 1;
    print_mixes(&opt);
    return 0;
}
