/* ref/attn kernels: not written yet. */
#include "kernel/init.h"

void kernels_init_ref_attn(struct kernels *k)
{
    (void)k;
}
