/* ferry doctor: what this machine offers, what Ferry will use of it, and what is in the way. */
#include "app/app.h"

#include "base/alloc.h"
#include "base/clock.h"
#include "base/cpu.h"

#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/utsname.h>
#include <unistd.h>

enum { N_CHECKS_MAX = 16 };

/* One line of the report. */
struct check {
    const char *name;
    bool good;
    char text[200];
};

struct report {
    struct check checks[N_CHECKS_MAX];
    int count;
};

static void add(struct report *r, const char *name, bool good, const char *format, ...)
    FERRY_PRINTF(4, 5);

static void add(struct report *r, const char *name, bool good, const char *format, ...)
{
    va_list args;
    struct check *c = &r->checks[r->count++];

    c->name = name;
    c->good = good;
    va_start(args, format);
    (void)vsnprintf(c->text, sizeof c->text, format, args);
    va_end(args);
}

static void check_cpu(struct report *r)
{
    char brand[128];
    enum cpu_level level = cpu_best_level();

    add(r, "cpu", true, "%s, %d processors for this process", cpu_brand(brand, sizeof brand),
        cpu_count());
    add(r, "instructions", level > CPU_LEVEL_REF,
        level > CPU_LEVEL_REF
            ? "%s kernels"
            : "%s kernels only: no AVX2, FMA and F16C here, expect a tenth of the speed",
        cpu_level_name(level));
}

static void check_memory(struct report *r)
{
    char a[32], b[32];
    uint64_t total = proc_kb("/proc/meminfo", "MemTotal") * 1024,
             available = proc_kb("/proc/meminfo", "MemAvailable") * 1024;

    add(r, "memory", available > (uint64_t)1 << 30,
        "%s, %s available; a model needs about its file size", bytes_text((double)total, a),
        bytes_text((double)available, b));
    char mode[128] = "";
    FILE *f = fopen("/sys/kernel/mm/transparent_hugepage/enabled", "re");
    if (f != NULL) {
        if (fgets(mode, sizeof mode, f) == NULL)
            mode[0] = 0;
        (void)fclose(f);
    }
    mode[strcspn(mode, "\n")] = 0;
    bool on = strstr(mode, "[always]") != NULL || strstr(mode, "[madvise]") != NULL;
    add(r, "huge pages", on,
        on ? "transparent huge pages: %s"
           : "transparent huge pages are off (%s): generation is about 10 %% slower; as root: "
             "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled",
        mode[0] != 0 ? mode : "not in this kernel");
}

struct read_arg {
    const unsigned char *memory;
    atomic_uint_fast64_t sum; /* keeps the reads alive */
};

static void read_blocks(void *arg, size_t begin, size_t end, int thread_index)
{
    struct read_arg *a = arg;
    const uint64_t *p = (const uint64_t *)(const void *)(a->memory + begin * ((size_t)1 << 20));
    uint64_t s0 = 0, s1 = 0, s2 = 0, s3 = 0;

    for (size_t i = 0; i < (end - begin) << 17; i += 4) {
        s0 += p[i];
        s1 += p[i + 1];
        s2 += p[i + 2];
        s3 += p[i + 3];
    }
    (void)thread_index;
    atomic_fetch_add_explicit(&a->sum, s0 + s1 + s2 + s3, memory_order_relaxed);
}

double read_bandwidth(struct device *device)
{
    enum { MEGABYTES = 512, ROUNDS = 3 };
    struct read_arg arg = {.memory = map_alloc((size_t)MEGABYTES << 20, 1)};
    double best = 0;

    if (arg.memory == NULL)
        return 0;
    memset((void *)(uintptr_t)arg.memory, 1, (size_t)MEGABYTES << 20);
    for (int i = 0; i < ROUNDS; i++) {
        uint64_t start = clock_now_ns();
        device_for(device, MEGABYTES, 4, read_blocks, &arg);
        double rate = (double)((uint64_t)MEGABYTES << 20) / (double)(clock_now_ns() - start);
        best = rate > best ? rate : best;
    }
    map_free((void *)(uintptr_t)arg.memory, (size_t)MEGABYTES << 20);
    return best;
}

static void check_bandwidth(struct report *r)
{
    struct shared_options shared;
    shared_options_init(&shared); /* FERRY_THREADS counts here, too */
    struct device_options options = {shared.n_threads, shared.level};
    struct device *device = NULL;
    struct ferry_error err = {0};

    if (device_create_cpu(&device, &options, &err) != FERRY_OK) {
        add(r, "threads", false, "%s", err.msg);
        return;
    }
    double rate = read_bandwidth(device);
    add(r, "bandwidth", rate > 5,
        "%.1f GB/s read by %d threads: an upper bound on generation speed", rate,
        device_threads(device));
    device_destroy(device);
}

int verb_doctor(int argc, char **argv)
{
    struct report r = {.count = 0};
    struct utsname system;
    bool json = false;
    int n_bad = 0;

    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--json") == 0) {
            json = true;
        } else if (strcmp(argv[i], "--help") == 0) {
            (void)printf("usage: ferry doctor [--json]\nWhat this machine offers and what Ferry "
                         "will use of it.\n");
            return EXIT_GOOD;
        } else {
            (void)fprintf(
                stderr,
                "ferry: error: doctor takes no '%s'; 'ferry doctor --help' tells the usage\n",
                argv[i]);
            return EXIT_USAGE;
        }
    }
    check_cpu(&r);
    check_memory(&r);
    check_bandwidth(&r);
    if (uname(&system) == 0)
        add(&r, "system", true, "%s %s %s", system.sysname, system.release, system.machine);
    json_t *list = json_array();
    for (int i = 0; i < r.count; i++) {
        const struct check *c = &r.checks[i];
        n_bad += !c->good;
        if (json)
            (void)json_array_append_new(list, json_pack("{s:s, s:b, s:s}", "name", c->name, "good",
                                                        (int)c->good, "text", c->text));
        else
            (void)printf("%-4s  %-12s  %s\n", c->good ? "PASS" : "WARN", c->name, c->text);
    }
    if (json)
        return print_json(json_pack("{s:s, s:i, s:o}", "version", FERRY_VERSION, "warnings", n_bad,
                                    "checks", list));
    json_decref(list);
    return EXIT_GOOD;
}
