/* The kernel table: reference first, then each level above it overrides what it does faster. See
 * kernel.h. */
#include "kernel/kernel.h"

#include "kernel/init.h"

#include <string.h>

void kernels_init(struct kernels *k, enum cpu_level level)
{
    memset(k, 0, sizeof *k);
    k->level = CPU_LEVEL_REF;
    kernels_init_ref_matmul(k);
    kernels_init_ref_rows(k);
    kernels_init_ref_attn(k);
#if defined(__x86_64__)
    if (level < CPU_LEVEL_AVX2)
        return;
    k->level = CPU_LEVEL_AVX2;
    kernels_init_x86_matmul(k);
    kernels_init_x86_rows(k);
    kernels_init_x86_attn(k);
#else
    (void)level;
#endif
}
