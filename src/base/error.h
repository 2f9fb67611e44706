/* Writing and prefixing struct ferry_error.
 *
 * Why here: every room reports through it. It must not know what failed, only how to say so. */
#ifndef BASE_ERROR_H
#define BASE_ERROR_H

#include "ferry/status.h"

/* Fills `err` (may be NULL) and returns `status`. The message is one line; control bytes and
 * invalid UTF-8 in it are replaced, since names from hostile files end up in it. errno is recorded.
 * Any thread. */
enum ferry_status error_set(struct ferry_error *err, enum ferry_status status, const char *file,
                            int line, const char *format, ...) FERRY_PRINTF(5, 6);

/* Puts "prefix" in front of the message of `err` (may be NULL); cuts at the end when it does not
 * fit. */
void error_prefix(struct ferry_error *err, const char *format, ...) FERRY_PRINTF(2, 3);

/* Makes text from a hostile source safe for one line of a terminal or a log, in place: control
 * characters, invalid UTF-8 and marks that turn the direction of text become '?'. Never grows. */
void error_make_printable(char *text);

#define FERRY_FAIL(err, status, ...) error_set((err), (status), __FILE__, __LINE__, __VA_ARGS__)

#endif
