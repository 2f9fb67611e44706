/* Small files, read or replaced as a whole: plans, manifests, keys.
 *
 * Why here: a reader must not hang on a pipe or swallow a huge file, and a writer must leave the
 * old file or the new one, never half of it. It must not know what is in the file. */
#ifndef BASE_WHOLE_FILE_H
#define BASE_WHOLE_FILE_H

#include "ferry/status.h"

#include <stddef.h>

/* Reads the regular file at path, at most max_bytes (an empty file is legal). *ret_data: n bytes
 * and a 0 behind them, the caller's (mem_free). FERRY_ERR_NOT_FOUND, FERRY_ERR_IO, FERRY_ERR_FORMAT
 * (no regular file), FERRY_ERR_LIMIT, FERRY_ERR_NOMEM; err names the file. */
enum ferry_status whole_file_read(char **ret_data, size_t *ret_n, const char *path,
                                  size_t max_bytes, struct ferry_error *err) FERRY_MUST_CHECK;

/* Makes `data` the content of the file at path: written beside it under another name, brought to
 * disk, then renamed. On failure the old file is untouched. FERRY_ERR_IO, FERRY_ERR_NOMEM. */
enum ferry_status whole_file_write(const char *path, const void *data, size_t n,
                                   struct ferry_error *err) FERRY_MUST_CHECK;
/* The same for a file that must not be there yet, whatever it is: else FERRY_ERR_ARG, and it stays
 * as it is. */
enum ferry_status whole_file_create(const char *path, const void *data, size_t n,
                                    struct ferry_error *err) FERRY_MUST_CHECK;

#endif
