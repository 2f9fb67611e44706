/* Memory that processes of one host share: own regions, and those of peers.
 *
 * Why here, and not UCX's: ucp_ep_rkey_unpack of 1.13.1 ends the process when the owner of a
 * segment dies meanwhile, and ucp_rkey_ptr checks no bounds. A region is a sealed memfd that peers
 * open by /proc/PID/fd, which is how UCX maps its own segments: it has no name, so that whoever is
 * killed leaves nothing, its pages are claimed at once, and whatever a peer says is compared with
 * what is there. It must not know lanes. */
#include "base/alloc.h"
#include "base/error.h"
#include "base/size.h"
#include "fabric/ucx_impl.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23 /* Linux 5.14 */
#endif

/* What may not happen to a region after it was made: a store into it is never SIGBUS. */
enum { SEALS = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL };

uint64_t ucx_random(void)
{
    uint64_t value = 0;

    while (value == 0) {
        if (getrandom(&value, sizeof value, 0) != (ssize_t)sizeof value)
            value = 0;
    }
    return value;
}

/* Bytes that the kernel can still give without pushing anything out; UINT64_MAX: it does not say.
 */
static uint64_t free_bytes(void)
{
    char line[128];
    uint64_t kib = UINT64_MAX;
    FILE *file = fopen("/proc/meminfo", "re");

    if (file == NULL)
        return UINT64_MAX;
    while (fgets(line, sizeof line, file) != NULL) {
        if (strncmp(line, "MemAvailable:", 13) == 0)
            kib = strtoull(line + 13, NULL, 10);
    }
    (void)fclose(file);
    return kib > UINT64_MAX / 1024 ? UINT64_MAX : kib * 1024;
}

/* Maps a whole region and faults its pages in; NULL: no address space or no memory. */
static struct ucx_region *map_region(int fd, size_t total)
{
    void *data = mmap(NULL, total, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);

    if (data == MAP_FAILED)
        return NULL;
    /* An older kernel does not know it, and faults them in one by one later. */
    if (madvise(data, total, MADV_POPULATE_WRITE) != 0 && errno != EINVAL) {
        (void)munmap(data, total);
        return NULL;
    }
    return data;
}

/* ---- own ---- */

enum ferry_status ucx_memory_share(struct ucx_memory *ret, size_t n_bytes, const char *what,
                                   struct ferry_error *err)
{
    struct ucx_region *region = NULL;
    uint64_t available = free_bytes();
    size_t total;

    if (!add_size(n_bytes, sizeof *region, &total) || total > INT64_MAX || total > available)
        return FERRY_FAIL(err, FERRY_ERR_NOMEM,
                          "%s: %zu bytes of shared memory are needed, %" PRIu64
                          " are free; make the lanes smaller",
                          what, n_bytes, available);
    int fd = memfd_create("ferry-lanes", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd >= 0 && ftruncate(fd, (off_t)total) == 0 && fallocate(fd, 0, 0, (off_t)total) == 0 &&
        fcntl(fd, F_ADD_SEALS, SEALS) == 0)
        region = map_region(fd, total);
    if (region == NULL) {
        enum ferry_status st =
            FERRY_FAIL(err, FERRY_ERR_NOMEM, "%s: no shared memory for %zu bytes: %s; %s", what,
                       total, strerror(errno),
                       errno == EMFILE || errno == ENFILE ? "allow more open files (ulimit -n)"
                                                          : "make the lanes smaller");
        if (fd >= 0)
            (void)close(fd);
        return st;
    }
    *ret = (struct ucx_memory){.region = region, .n_bytes = n_bytes, .fd = fd};
    region->nonce = ucx_random();
    return FERRY_OK;
}

enum ferry_status ucx_memory_own(struct ucx_memory *ret, size_t n_bytes, const char *what,
                                 struct ferry_error *err)
{
    size_t total;
    void *data = NULL;

    if (add_size(n_bytes, sizeof(struct ucx_region), &total))
        data = map_alloc(total, 0);
    if (data == NULL)
        return FERRY_FAIL(err, FERRY_ERR_NOMEM, "%s: no memory for %zu bytes", what, n_bytes);
    *ret = (struct ucx_memory){.region = data, .n_bytes = n_bytes, .fd = -1};
    return FERRY_OK;
}

void ucx_memory_fini(struct ucx_memory *memory)
{
    size_t total = memory->n_bytes + sizeof(struct ucx_region);

    if (memory->region == NULL)
        return;
    if (memory->fd >= 0) {
        (void)munmap(memory->region, total);
        (void)close(memory->fd);
    } else {
        map_free(memory->region, total);
    }
    *memory = (struct ucx_memory){.fd = -1};
}

bool ucx_memory_is_shared(const struct ucx_memory *memory)
{
    return memory->region != NULL && memory->fd >= 0;
}

void ucx_memory_key(const struct ucx_memory *memory, struct ucx_key *ret)
{
    struct stat st;

    memset(ret, 0, sizeof *ret);
    ret->n_bytes = memory->n_bytes;
    if (!ucx_memory_is_shared(memory) || fstat(memory->fd, &st) != 0)
        return;
    ret->nonce = memory->region->nonce;
    ret->device = (uint64_t)st.st_dev;
    ret->inode = (uint64_t)st.st_ino;
    ret->pid = (uint32_t)getpid();
    ret->fd = (uint32_t)memory->fd;
}

/* ---- a peer's ---- */

/* Opens what the key names; -1: it is not there, not to be had, or something else. */
static int open_region(const struct ucx_key *key, size_t total)
{
    char path[64];
    struct stat st;

    (void)snprintf(path, sizeof path, "/proc/%" PRIu32 "/fd/%" PRIu32, key->pid, key->fd);
    int fd = open(path, O_RDWR | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (fd < 0)
        return -1;
    if (fstat(fd, &st) == 0 && S_ISREG(st.st_mode) && (uint64_t)st.st_dev == key->device &&
        (uint64_t)st.st_ino == key->inode && st.st_size == (off_t)total) {
        int seals = fcntl(fd, F_GET_SEALS);
        if (seals >= 0 && (seals & F_SEAL_SHRINK) != 0)
            return fd;
    }
    (void)close(fd);
    return -1;
}

bool ucx_window_open(struct ucx_window *ret, const struct ucx_key *key, size_t n_bytes)
{
    size_t total;

    if (key->nonce == 0 || key->n_bytes != n_bytes ||
        !add_size(n_bytes, sizeof(struct ucx_region), &total) || total > INT64_MAX)
        return false;
    int fd = open_region(key, total);
    if (fd < 0)
        return false;
    struct ucx_region *region = map_region(fd, total);
    (void)close(fd);
    if (region == NULL)
        return false;
    if (region->nonce != key->nonce) {
        (void)munmap(region, total);
        return false;
    }
    *ret = (struct ucx_window){.region = region, .n_bytes = n_bytes};
    return true;
}

void ucx_window_close(struct ucx_window *window, bool leave)
{
    if (window->region == NULL)
        return;
    if (leave) /* pairs with the load in ucx_memory_is_left */
        atomic_store_explicit(&window->region->left, 1, memory_order_release);
    (void)munmap(window->region, window->n_bytes + sizeof(struct ucx_region));
    *window = (struct ucx_window){0};
}

bool ucx_memory_is_left(const struct ucx_memory *memory)
{
    return atomic_load_explicit(&memory->region->left, memory_order_acquire) != 0;
}
