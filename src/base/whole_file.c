/* Whole files. See whole_file.h. */
#include "base/whole_file.h"

#include "base/alloc.h"
#include "base/error.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static enum ferry_status failed(const char *path, const char *what, struct ferry_error *err)
{
    return FERRY_FAIL(err, FERRY_ERR_IO, "%s: cannot %s: %s", path, what, strerror(errno));
}

/* Reads what there is, up to max_bytes + 1: one byte too many tells of a file that grew. */
static enum ferry_status read_all(int fd, const char *path, char *data, size_t most, size_t *ret_n,
                                  struct ferry_error *err)
{
    size_t n = 0;

    while (n < most) {
        ssize_t got = read(fd, data + n, most - n);
        if (got == 0)
            break;
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return failed(path, "read", err);
        n += (size_t)got;
    }
    *ret_n = n;
    return FERRY_OK;
}

static enum ferry_status too_large(const char *path, size_t n, size_t max_bytes,
                                   struct ferry_error *err)
{
    return FERRY_FAIL(err, FERRY_ERR_LIMIT, "%s: has %zu bytes or more, the limit is %zu", path, n,
                      max_bytes);
}

enum ferry_status whole_file_read(char **ret_data, size_t *ret_n, const char *path,
                                  size_t max_bytes, struct ferry_error *err)
{
    enum ferry_status st = FERRY_OK;
    struct stat info;
    char *data = NULL;
    size_t n = 0;

    /* O_NONBLOCK: a FIFO must fail below, not hang here. */
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0 && errno == ENOENT && lstat(path, &info) == 0)
        return FERRY_FAIL(err, FERRY_ERR_IO, "%s: is a link to nothing; mend it or remove it",
                          path);
    if (fd < 0 && (errno == ENOENT || errno == ENOTDIR))
        return FERRY_FAIL(err, FERRY_ERR_NOT_FOUND, "%s: no such file; check the path", path);
    if (fd < 0)
        return failed(path, "open", err);
    if (fstat(fd, &info) != 0)
        st = failed(path, "stat", err);
    else if (!S_ISREG(info.st_mode))
        st = FERRY_FAIL(err, FERRY_ERR_FORMAT, "%s: is no regular file", path);
    else if ((unsigned long long)info.st_size > max_bytes)
        st = too_large(path, (size_t)info.st_size, max_bytes, err);
    if (st != FERRY_OK)
        goto out;
    size_t most = (size_t)info.st_size + 1; /* what grows meanwhile is found by the byte more */
    data = mem_alloc(most + 1);
    if (data == NULL) {
        st = FERRY_FAIL(err, FERRY_ERR_NOMEM, "%s: no memory for %zu bytes", path, most);
        goto out;
    }
    st = read_all(fd, path, data, most, &n, err);
    if (st == FERRY_OK && n == most)
        st = FERRY_FAIL(err, FERRY_ERR_IO,
                        "%s: grew while it was read; wait until it is written completely", path);
    if (st != FERRY_OK)
        goto out;
    data[n] = 0;
    *ret_data = data;
    *ret_n = n;
    data = NULL;
out:
    mem_free(data);
    (void)close(fd);
    return st;
}

static bool write_all(int fd, const char *data, size_t n)
{
    while (n > 0) {
        ssize_t wrote = write(fd, data, n);
        if (wrote < 0 && errno == EINTR)
            continue;
        if (wrote < 0)
            return false;
        data += wrote;
        n -= (size_t)wrote;
    }
    return true;
}

/* Gives the written part its name. A link, unlike a rename, fails where something is. */
static enum ferry_status name_part(const char *part, const char *path, bool replace,
                                   struct ferry_error *err)
{
    if ((replace ? rename(part, path) : link(part, path)) == 0)
        return FERRY_OK;
    if (!replace && errno == EEXIST)
        return FERRY_FAIL(err, FERRY_ERR_ARG,
                          "%s: is there already and is not replaced; remove it first, or write to "
                          "another place",
                          path);
    return failed(path, "write", err);
}

static enum ferry_status write_file(const char *path, const void *data, size_t n, bool replace,
                                    struct ferry_error *err)
{
    size_t part_bytes = strlen(path) + 32;
    char *part = mem_alloc(part_bytes);
    enum ferry_status st = FERRY_OK;

    if (part == NULL)
        return FERRY_FAIL(err, FERRY_ERR_NOMEM, "%s: out of memory while writing", path);
    /* By process: two ranks that write the same file must not write into one part. */
    (void)snprintf(part, part_bytes, "%s.%ld.part", path, (long)getpid());
    int fd = open(part, O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0666);
    if (fd < 0) {
        st = failed(path, "write", err);
        mem_free(part);
        return st;
    }
    if (!write_all(fd, data, n) || fsync(fd) != 0)
        st = failed(path, "write", err);
    if (close(fd) != 0 && st == FERRY_OK)
        st = failed(path, "write", err);
    if (st == FERRY_OK)
        st = name_part(part, path, replace, err);
    if (st != FERRY_OK || !replace)
        (void)unlink(part);
    mem_free(part);
    return st;
}

enum ferry_status whole_file_write(const char *path, const void *data, size_t n,
                                   struct ferry_error *err)
{
    return write_file(path, data, n, true, err);
}

enum ferry_status whole_file_create(const char *path, const void *data, size_t n,
                                    struct ferry_error *err)
{
    return write_file(path, data, n, false, err);
}
