/* Messages for the operator, on stderr. Only the application logs above debug level; libraries
 * return errors. */
#ifndef BASE_LOG_H
#define BASE_LOG_H

#include "ferry/status.h"

enum log_level {
    LOG_LEVEL_ERROR,
    LOG_LEVEL_WARNING,
    LOG_LEVEL_INFO,
    LOG_LEVEL_DEBUG,
};

/* Set once, before threads start. Default: warning. */
void log_set_level(enum log_level level);

/* One line "ferry: level: text" (no level for info), cut at 1023 bytes; control bytes and invalid
 * UTF-8 are replaced as in error records. Any thread. */
void log_write(enum log_level level, const char *format, ...) FERRY_PRINTF(2, 3);

#define LOG_ERROR(...)   log_write(LOG_LEVEL_ERROR, __VA_ARGS__)
#define LOG_WARNING(...) log_write(LOG_LEVEL_WARNING, __VA_ARGS__)
#define LOG_INFO(...)    log_write(LOG_LEVEL_INFO, __VA_ARGS__)
#define LOG_DEBUG(...)   log_write(LOG_LEVEL_DEBUG, __VA_ARGS__)

#endif
