/* What the processor can do. Detected once; kernels are chosen by it at run time. */
#ifndef BASE_CPU_H
#define BASE_CPU_H

#include <stdbool.h>
#include <stddef.h>

/* Instruction-set levels that kernels exist for, worst first. */
enum cpu_level {
    CPU_LEVEL_REF,  /* plain C */
    CPU_LEVEL_AVX2, /* AVX2 + FMA + F16C */
    CPU_LEVEL_COUNT,
};

/* Best level of this machine. Any thread. */
enum cpu_level cpu_best_level(void);

/* "ref", "avx2"; parse returns false for an unknown name. */
const char *cpu_level_name(enum cpu_level level);
bool cpu_level_parse(const char *name, enum cpu_level *ret_level);

/* Brand string of the processor, or "unknown". */
const char *cpu_brand(char *text, size_t size);

/* Between two looks of a loop that waits for another thread's store. */
static inline void cpu_relax(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
}

/* Processors that this process may run on (affinity mask), at least 1. */
int cpu_count(void);

#endif
