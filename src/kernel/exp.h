/* Constants of the f32 exponential, shared by the scalar function and the vector kernels.
 *
 * Why here: law 2 wants the same bits from both, so they share every constant and cut-off. The
 * operation order is stated once, at math_exp() in math.c. */
#ifndef KERNEL_EXP_H
#define KERNEL_EXP_H

#define EXP_MAX    0x1.62e42ep+6f  /* largest x whose exponential is finite: 88.7228317 */
#define EXP_MIN    -0x1.5d589ep+6f /* smallest x whose exponential is normal: -87.3365402 */
#define EXP_LOG2E  0x1.715476p+0f
#define EXP_MAGIC  0x1.8p+23f /* x + EXP_MAGIC rounds x to an integer, kept in the low bits */
#define EXP_LN2_HI 0x1.62e430p-1f
#define EXP_LN2_LO -0x1.05c610p-29f
/* exp(r) = 1 + r + r^2 * (C2 + C3 r + ...) on |r| <= ln(2) / 2: minimax for the relative error
 * (Remez exchange with C2 = 1/2 fixed): 4.3e-9, that is 0.07 ulp, before rounding. */
#define EXP_C2 0.5f
#define EXP_C3 0x1.555466p-3f
#define EXP_C4 0x1.555300p-5f
#define EXP_C5 0x1.125792p-7f
#define EXP_C6 0x1.6fee8cp-10f

#endif
