/* Read-only mappings. See map.h. */
#include "file/map.h"

#include "base/alloc.h"
#include "base/assert.h"
#include "base/error.h"
#include "file/fault.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static enum ferry_status open_failed(const char *path, struct ferry_error *err)
{
    if (errno == ENOENT || errno == ENOTDIR)
        return FERRY_FAIL(err, FERRY_ERR_NOT_FOUND, "%s: no such file; check the path", path);
    return FERRY_FAIL(err, FERRY_ERR_IO, "%s: cannot open: %s", path, strerror(errno));
}

/* Size of the file behind fd; it must be a regular one within the bounds. */
static enum ferry_status size_of(int fd, const char *path, uint64_t max_bytes, size_t *ret_size,
                                 struct ferry_error *err)
{
    struct stat info;

    if (fstat(fd, &info) != 0)
        return FERRY_FAIL(err, FERRY_ERR_IO, "%s: cannot stat: %s", path, strerror(errno));
    if (!S_ISREG(info.st_mode))
        return FERRY_FAIL(err, FERRY_ERR_FORMAT, "%s: is no regular file", path);
    if (info.st_size <= 0)
        return FERRY_FAIL(err, FERRY_ERR_FORMAT, "%s: is empty (0 bytes); fetch it again", path);
    uint64_t size = (uint64_t)info.st_size;
    if (max_bytes != 0 && size > max_bytes)
        return FERRY_FAIL(err, FERRY_ERR_LIMIT, "%s: has %llu bytes, the limit is %llu", path,
                          (unsigned long long)size, (unsigned long long)max_bytes);
    *ret_size = (size_t)size;
    return FERRY_OK;
}

static enum ferry_status map_pages(struct map *map, uint64_t max_bytes, struct ferry_error *err)
{
    size_t size = 0;
    size_t size_after = 0;

    enum ferry_status st = size_of(map->fd, map->path, max_bytes, &size, err);
    if (st != FERRY_OK)
        return st;
    void *data = mmap(NULL, size, PROT_READ, MAP_SHARED, map->fd, 0);
    if (data == MAP_FAILED)
        return FERRY_FAIL(err, errno == ENOMEM ? FERRY_ERR_NOMEM : FERRY_ERR_IO,
                          "%s: cannot map %zu bytes: %s", map->path, size, strerror(errno));
    map->data = data;
    map->size = size;
    st = size_of(map->fd, map->path, max_bytes, &size_after, err);
    if (st == FERRY_OK && size_after != size)
        st = FERRY_FAIL(err, FERRY_ERR_IO,
                        "%s: changed from %zu to %zu bytes while it was opened; wait until it is "
                        "written completely",
                        map->path, size, size_after);
    return st;
}

enum ferry_status map_open(struct map **ret_map, const char *path, uint64_t max_bytes,
                           struct ferry_error *err)
{
    enum ferry_status st = FERRY_OK;
    struct map *map = mem_zero(sizeof *map);
    char *copy = mem_strndup(path, strlen(path));

    if (map == NULL || copy == NULL) {
        mem_free(map);
        mem_free(copy);
        return FERRY_FAIL(err, FERRY_ERR_NOMEM, "%s: out of memory while opening", path);
    }
    const char *slash = strrchr(copy, '/');
    *map = (struct map){
        .path = copy, .name = slash == NULL ? copy : slash + 1, .fd = -1, .fault_slot = -1};
    /* O_NONBLOCK: a FIFO must fail below, not hang here. */
    map->fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (map->fd < 0) {
        st = open_failed(path, err);
        goto out;
    }
    st = map_pages(map, max_bytes, err);
    if (st != FERRY_OK)
        goto out;
    map->fault_slot = fault_register(map->data, map->size, map->name);
    *ret_map = map;
    map = NULL;
out:
    map_close(map);
    return st;
}

void map_close(struct map *map)
{
    if (map == NULL)
        return;
    fault_unregister(map->fault_slot);
    if (map->data != NULL)
        (void)munmap((void *)(uintptr_t)map->data, map->size);
    if (map->fd >= 0)
        (void)close(map->fd);
    mem_free(map->path);
    mem_free(map);
}

enum ferry_status map_recheck(const struct map *map, struct ferry_error *err)
{
    struct stat info;

    if (fstat(map->fd, &info) != 0)
        return FERRY_FAIL(err, FERRY_ERR_IO, "%s: cannot stat: %s", map->path, strerror(errno));
    if ((uint64_t)info.st_size < map->size)
        return FERRY_FAIL(err, FERRY_ERR_IO,
                          "%s: shrank from %zu to %lld bytes while in use; restore the file and "
                          "start again",
                          map->path, map->size, (long long)info.st_size);
    return FERRY_OK;
}

void map_forget(const struct map *map, const void *data, size_t n_bytes)
{
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    uintptr_t base = (uintptr_t)map->data;
    uintptr_t begin = (uintptr_t)data;

    FERRY_ASSERT(begin >= base);
    FERRY_ASSERT(begin - base <= map->size);
    FERRY_ASSERT(n_bytes <= map->size - (begin - base));
    uintptr_t first = (begin + page - 1) & ~(page - 1);
    uintptr_t last = (begin + n_bytes) & ~(page - 1);
    if (first < last)
        (void)madvise((void *)first, last - first, MADV_DONTNEED);
}
