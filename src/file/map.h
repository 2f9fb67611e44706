/* One file, mapped read-only.
 *
 * Why here: every format reads through it, so the checks that make a mapping safe (regular file,
 * size before and after, shrinking later) exist once. It must not know what is in the file. */
#ifndef FILE_MAP_H
#define FILE_MAP_H

#include "ferry/status.h"

#include <stddef.h>
#include <stdint.h>

struct map {
    const unsigned char *data; /* size bytes, read-only, page-aligned */
    size_t size;               /* at open; never 0 */
    const char *name;          /* last component of path, printable, for messages */
    char *path;                /* as opened */
    int fd;                    /* kept, so that map_recheck sees this file and no successor */
    int fault_slot;            /* in the registry of fault.h, or -1 */
};

/* Maps the regular file at path; its size must be 1..max_bytes (0: no bound). The mapping is
 * registered with fault.h. Any thread. Errors: FERRY_ERR_NOT_FOUND, FERRY_ERR_IO,
 * FERRY_ERR_FORMAT (empty or no regular file), FERRY_ERR_LIMIT, FERRY_ERR_NOMEM. */
enum ferry_status map_open(struct map **ret_map, const char *path, uint64_t max_bytes,
                           struct ferry_error *err) FERRY_MUST_CHECK;

/* Unmaps; pointers into data die. NULL is allowed. */
void map_close(struct map *map);

/* FERRY_ERR_IO when the file is now smaller than it was at open. */
enum ferry_status map_recheck(const struct map *map, struct ferry_error *err) FERRY_MUST_CHECK;

/* Drops this process's pages that lie wholly in [data, data + n_bytes); a later read brings them
 * back from the file. */
void map_forget(const struct map *map, const void *data, size_t n_bytes);

#endif
