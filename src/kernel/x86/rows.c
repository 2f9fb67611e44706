/* x86/rows kernels: not written yet. */
#include "kernel/init.h"

void kernels_init_x86_rows(struct kernels *k)
{
    (void)k;
}
