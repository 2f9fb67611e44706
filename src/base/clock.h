/* Monotonic time. The only clock that deadlines and measurements use. */
#ifndef BASE_CLOCK_H
#define BASE_CLOCK_H

#include <stdint.h>

/* Nanoseconds of the monotonic clock. Any thread. */
uint64_t clock_now_ns(void);

#endif
