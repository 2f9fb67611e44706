/* ref/rows kernels: not written yet. */
#include "kernel/init.h"

void kernels_init_ref_rows(struct kernels *k)
{
    (void)k;
}
