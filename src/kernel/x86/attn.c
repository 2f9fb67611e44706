/* x86/attn kernels: not written yet. */
#include "kernel/init.h"

void kernels_init_x86_attn(struct kernels *k)
{
    (void)k;
}
