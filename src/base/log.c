/* Operator messages. See log.h. */
#include "base/log.h"

#include "base/error.h"

#include <stdarg.h>
#include <stdio.h>

static enum log_level level_max = LOG_LEVEL_WARNING; /* written before threads start */

void log_set_level(enum log_level level)
{
    level_max = level;
}

void log_write(enum log_level level, const char *format, ...)
{
    static const char *const NAMES[] = {"error: ", "warning: ", "", "debug: "};
    char text[1024];

    if (level > level_max)
        return;
    va_list args;
    va_start(args, format);
    (void)vsnprintf(text, sizeof text, format, args);
    va_end(args);
    error_make_printable(text);
    (void)fprintf(stderr, "ferry: %s%s\n", NAMES[level], text); /* one call: lines do not mix */
}
