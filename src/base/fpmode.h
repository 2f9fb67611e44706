/* The floating-point mode that all of Ferry computes in: rounding to nearest, denormals kept.
 *
 * Why here: a caller's own mode must not leak into the arithmetic (law 2). Enter before computing,
 * leave with what enter returned. */
#ifndef BASE_FPMODE_H
#define BASE_FPMODE_H

#if defined(__x86_64__)
#include <immintrin.h>
#endif

/* Returns the mode to go back to. */
static inline unsigned fp_mode_enter(void)
{
#if defined(__x86_64__)
    unsigned old = _mm_getcsr();
    _mm_setcsr(0x1F80); /* all exceptions masked, nearest, FTZ and DAZ off */
    return old;
#else
    return 0;
#endif
}

static inline void fp_mode_leave(unsigned old)
{
#if defined(__x86_64__)
    _mm_setcsr(old);
#else
    (void)old;
#endif
}

#endif
