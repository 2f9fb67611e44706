/* How the kernel table is filled: one function per level and family, called by kernels_init() from
 * the plain reference upward, so that a level overrides only what it has.
 *
 * Why here: kernels.c is the only caller; no other room may include this. */
#ifndef KERNEL_INIT_H
#define KERNEL_INIT_H

#include "kernel/kernel.h"

void kernels_init_ref_matmul(struct kernels *k); /* every dtype */
void kernels_init_ref_rows(struct kernels *k); /* norms, quantisation, softmax, rope, conversions */
void kernels_init_ref_attn(struct kernels *k);

void kernels_init_x86_matmul(struct kernels *k);       /* k->level says which x86 level is wanted */
void kernels_init_x86_matmul_block(struct kernels *k); /* called by the one above */
void kernels_init_x86_rows(struct kernels *k);
void kernels_init_x86_attn(struct kernels *k);

#endif
