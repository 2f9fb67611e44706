/* Memory that processes of one host share through UCX: own regions, and those of peers.
 *
 * Why here: UCX makes the segments (unlinked at once, so that a killed process leaves nothing
 * behind) and maps those of peers, but it trusts keys and addresses. Whatever comes from a peer is
 * checked here before it is used as a pointer. It must not know lanes. */
#include "base/alloc.h"
#include "base/error.h"
#include "base/size.h"
#include "fabric/ucx_impl.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/statvfs.h>

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23 /* Linux 5.14 */
#endif

/* UCX needs some of /dev/shm for itself: 4.3 MB per worker, and small ones per connection. */
static const uint64_t SHM_MARGIN = 1 << 20;

uint64_t ucx_random(void)
{
    uint64_t value = 0;

    while (value == 0) {
        if (getrandom(&value, sizeof value, 0) != (ssize_t)sizeof value)
            value = 0;
    }
    return value;
}

/* ---- own ---- */

static const char *shm_folder(void)
{
    const char *folder = getenv("UCX_POSIX_DIR");

    return folder != NULL && folder[0] != 0 ? folder : "/dev/shm";
}

/* Free bytes where UCX makes segments; UINT64_MAX when that cannot be said. */
static uint64_t shm_free_bytes(void)
{
    struct statvfs st;
    uint64_t n;

    if (statvfs(shm_folder(), &st) != 0 || st.f_blocks == 0 ||
        !mul_u64(st.f_bavail, st.f_frsize, &n))
        return UINT64_MAX;
    return n;
}

static enum ferry_status no_room(const char *what, size_t n_bytes, struct ferry_error *err)
{
    return FERRY_FAIL(err, FERRY_ERR_NOMEM,
                      "%s: %s has %" PRIu64 " bytes free, %zu are needed; make it larger (mount -o "
                      "remount,size=, or --shm-size of a container) or the lanes smaller",
                      what, shm_folder(), shm_free_bytes(), n_bytes);
}

/* Faults the pages in, writable. False: some cannot be had, where a store would be SIGBUS. */
static bool claim(void *data, size_t n_bytes)
{
    uintptr_t begin = (uintptr_t)data & ~(uintptr_t)4095;
    uintptr_t end = (uintptr_t)data + n_bytes;

    if (madvise((void *)begin, end - begin, MADV_POPULATE_WRITE) == 0)
        return true;
    /* An older kernel does not know it. The owner's pages are there even so: UCX has written them.
     */
    return errno == EINVAL;
}

enum ferry_status ucx_memory_share(struct ucx_memory *ret, ucp_context_h context, size_t n_bytes,
                                   const char *what, struct ferry_error *err)
{
    size_t total;
    ucp_mem_h handle;

    if (!add_size(n_bytes, sizeof(struct ucx_region), &total))
        return FERRY_FAIL(err, FERRY_ERR_NOMEM, "%s: %zu bytes are too many", what, n_bytes);
    if (shm_free_bytes() < total + SHM_MARGIN)
        return no_room(what, total, err);
    ucp_mem_map_params_t params = {
        .field_mask = UCP_MEM_MAP_PARAM_FIELD_LENGTH | UCP_MEM_MAP_PARAM_FIELD_FLAGS,
        .length = total,
        .flags = UCP_MEM_MAP_ALLOCATE,
    };
    ucs_status_t status = ucp_mem_map(context, &params, &handle);
    if (status != UCS_OK) {
        if (shm_free_bytes() < total + SHM_MARGIN)
            return no_room(what, total, err);
        return FERRY_FAIL(err, FERRY_ERR_UNSUPPORTED, "%s: UCX cannot share %zu bytes: %s", what,
                          total, ucs_status_string(status));
    }
    ucp_mem_attr_t attr = {.field_mask = UCP_MEM_ATTR_FIELD_ADDRESS};
    status = ucp_mem_query(handle, &attr);
    if (status != UCS_OK || !claim(attr.address, total)) {
        (void)ucp_mem_unmap(context, handle);
        return no_room(what, total, err);
    }
    *ret = (struct ucx_memory){.handle = handle, .region = attr.address, .n_bytes = n_bytes};
    ret->region->nonce = ucx_random();
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
    *ret = (struct ucx_memory){.region = data, .n_bytes = n_bytes};
    return FERRY_OK;
}

void ucx_memory_fini(struct ucx_memory *memory, ucp_context_h context)
{
    if (memory->handle != NULL)
        (void)ucp_mem_unmap(context, memory->handle);
    else if (memory->region != NULL)
        map_free(memory->region, memory->n_bytes + sizeof(struct ucx_region));
    *memory = (struct ucx_memory){NULL};
}

void ucx_memory_key(const struct ucx_memory *memory, ucp_context_h context, struct ucx_key *ret)
{
    void *rkey;
    size_t n;

    memset(ret, 0, sizeof *ret);
    ret->n_bytes = memory->n_bytes;
    if (memory->handle == NULL || ucp_rkey_pack(context, memory->handle, &rkey, &n) != UCS_OK)
        return;
    if (n <= UCX_RKEY_MAX) {
        memcpy(ret->rkey, rkey, n);
        ret->n_rkey = (uint32_t)n;
        ret->address = (uint64_t)(uintptr_t)memory->region;
        ret->nonce = memory->region->nonce;
    }
    ucp_rkey_buffer_release(rkey);
}

/* ---- a peer's ---- */

/* Whether [data, data + n_bytes) lies in one mapping that is shared and may be written. UCX adds a
 * number of the peer's to where it has mapped the segment and does not look where that leads. */
static bool is_shared_mapping(const void *data, size_t n_bytes)
{
    uintptr_t begin = (uintptr_t)data, end;
    char line[512];
    bool found = false, at_start = true;

    if (__builtin_add_overflow(begin, n_bytes, &end))
        return false;
    FILE *maps = fopen("/proc/self/maps", "re");
    if (maps == NULL)
        return false;
    while (!found && fgets(line, sizeof line, maps) != NULL) {
        bool was_start = at_start;
        char *rest;
        at_start = strchr(line, '\n') != NULL; /* the next piece is a new line */
        if (!was_start)
            continue;
        uintptr_t from = (uintptr_t)strtoull(line, &rest, 16);
        uintptr_t to = *rest == '-' ? (uintptr_t)strtoull(rest + 1, &rest, 16) : 0;
        found = from <= begin && end <= to && strncmp(rest, " rw-s ", 6) == 0;
    }
    (void)fclose(maps);
    return found;
}

/* A copy of the key that may be read far beyond its end: ucp_ep_rkey_unpack takes no size, and goes
 * by up to 64 lengths of one byte that stand in the key. */
static ucs_status_t unpack(ucp_ep_h ep, const struct ucx_key *key, ucp_rkey_h *ret)
{
    enum { PADDED = 64 * 256 + 2 * UCX_RKEY_MAX };
    unsigned char *copy = mem_zero(PADDED);

    if (copy == NULL)
        return UCS_ERR_NO_MEMORY;
    memcpy(copy, key->rkey, key->n_rkey);
    ucs_status_t status = ucp_ep_rkey_unpack(ep, copy, ret);
    mem_free(copy);
    return status;
}

bool ucx_window_open(struct ucx_window *ret, ucp_ep_h ep, const struct ucx_key *key, size_t n_bytes)
{
    ucp_rkey_h rkey;
    void *data = NULL;
    size_t total;

    if (key->n_rkey == 0 || key->n_rkey > UCX_RKEY_MAX || key->n_bytes != n_bytes ||
        !add_size(n_bytes, sizeof(struct ucx_region), &total) || unpack(ep, key, &rkey) != UCS_OK)
        return false;
    if (ucp_rkey_ptr(rkey, key->address, &data) != UCS_OK || (uintptr_t)data % LANE_ALIGN != 0 ||
        !is_shared_mapping(data, total) || !claim(data, total) ||
        ((const struct ucx_region *)data)->nonce != key->nonce) {
        ucp_rkey_destroy(rkey);
        return false;
    }
    *ret = (struct ucx_window){.rkey = rkey, .data = ((struct ucx_region *)data)->data};
    return true;
}

void ucx_window_close(struct ucx_window *window)
{
    if (window->rkey != NULL)
        ucp_rkey_destroy(window->rkey);
    *window = (struct ucx_window){NULL};
}
