/* What this machine's vector units and memory can do at most: one function per instruction mix.
 *
 * Why here: a speed is worth quoting only beside the limit it runs into, and the limits must be
 * measured with the same instructions that the kernels use, in the same run.
 * Must not know: any kernel or model of Ferry.
 *
 * Every compute mix works on registers only for a number of rounds, at least 1, and
 * returns a value that depends on its work. Callers
 * check the CPU first (AVX2 and FMA). */
#ifndef BENCH_LIMITS_MIXES_H
#define BENCH_LIMITS_MIXES_H

#include <stddef.h>
#include <stdint.h>

/* One instruction mix and the arithmetic that one of its rounds stands for. */
struct mix {
    const char *name; /* JSON key */
    const char *what; /* the instructions, for people */
    uint64_t (*run)(uint64_t rounds, uint64_t seed);
    double ops_per_round; /* 2 per multiply-add */
};

enum { MIX_COUNT = 5 };

/* The table of compute mixes; [MIX_COUNT], static storage. */
const struct mix *mixes_table(void);

/* Reads bytes bytes at data (32-byte aligned, a multiple of 4096 * streams) once, as streams
 * sequential streams side by side (1, 2 or 4); returns a checksum. */
uint64_t mixes_read(const void *data, size_t bytes, int streams);

#endif
