/* Processor detection. See cpu.h. */
#include "base/cpu.h"

#include <limits.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#if defined(__x86_64__)
#include <cpuid.h>
#endif

static const char *const LEVEL_NAMES[CPU_LEVEL_COUNT] = {"ref", "avx2"};

#if defined(__x86_64__)
/* clang's __builtin_cpu_supports does not know F16C. That the system saves the registers is part of
 * its answer on AVX2. */
static bool has_f16c(void)
{
    unsigned a, b, c, d;
    return __get_cpuid(1, &a, &b, &c, &d) != 0 && (c & bit_F16C) != 0;
}
#endif

enum cpu_level cpu_best_level(void)
{
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && has_f16c())
        return CPU_LEVEL_AVX2;
#endif
    return CPU_LEVEL_REF;
}

const char *cpu_level_name(enum cpu_level level)
{
    return LEVEL_NAMES[level];
}

bool cpu_level_parse(const char *name, enum cpu_level *ret_level)
{
    for (int i = 0; i < CPU_LEVEL_COUNT; i++) {
        if (strcmp(name, LEVEL_NAMES[i]) == 0) {
            *ret_level = (enum cpu_level)i;
            return true;
        }
    }
    return false;
}

const char *cpu_brand(char *text, size_t size)
{
    char line[256];

    (void)snprintf(text, size, "unknown");
    FILE *f = fopen("/proc/cpuinfo", "re");
    if (f == NULL)
        return text;
    while (fgets(line, sizeof line, f) != NULL) {
        const char *colon = strchr(line, ':');
        if (strncmp(line, "model name", 10) != 0 || colon == NULL)
            continue;
        (void)snprintf(text, size, "%s", colon + 1 + strspn(colon + 1, " \t"));
        text[strcspn(text, "\n")] = 0;
        break;
    }
    (void)fclose(f);
    return text;
}

int cpu_count(void)
{
    cpu_set_t set;

    if (sched_getaffinity(0, sizeof set, &set) != 0) { /* more processors than a cpu_set_t holds */
        long online = sysconf(_SC_NPROCESSORS_ONLN);
        return online > 0 && online <= INT_MAX ? (int)online : 1;
    }
    int n = CPU_COUNT(&set);
    return n > 0 ? n : 1;
}
