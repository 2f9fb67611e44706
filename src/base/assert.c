/* The end of a process that found its own bug. See assert.h. */
#include "base/assert.h"

#include <stdio.h>
#include <stdlib.h>

_Noreturn void assert_fail(const char *condition, const char *file, int line)
{
    (void)fprintf(stderr, "ferry: internal error: '%s' does not hold at %s:%d\n", condition, file,
                  line);
    abort();
}
