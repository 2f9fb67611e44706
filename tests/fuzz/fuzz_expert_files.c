/* Any bytes as a placement ('p' first) or as a manifest of experts' hashes: what is taken is
 * complete and in range, what is refused says why in one line that names the file. */
#include "fuzz.h"

#include "base/assert.h"
#include "base/limits.h"
#include "expert/manifest.h"
#include "file/json.h"
#include "placement/placement.h"

#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { N_LAYERS = 3, N_EXPERTS = 2, N_SEATS = 3 };

static const char MODEL[] = "0000000000000000000000000000000000000000000000000000000000000000";

/* Puts the bytes where the reader finds them. */
static const char *as_file(const uint8_t *data, size_t size)
{
    static char path[64];
    static int fd = -1;

    if (fd < 0) {
        fd = memfd_create("fuzz", MFD_CLOEXEC);
        (void)snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    }
    FERRY_ASSERT(ftruncate(fd, (off_t)size) == 0);
    FERRY_ASSERT(pwrite(fd, data, size, 0) == (ssize_t)size);
    return path;
}

static void check_refusal(const struct ferry_error *err, const char *path)
{
    FERRY_ASSERT(strstr(err->msg, path) != NULL);
    FERRY_ASSERT(strchr(err->msg, '\n') == NULL);
}

static void read_placement(const uint8_t *data, size_t size)
{
    static const bool HAS[N_LAYERS] = {true, false, true};
    static const char NAME[] = "plan.json";
    struct placement *p = NULL;
    struct ferry_error err = {0};
    json_t *json = NULL;

    enum ferry_status st = json_parse(&json, data, size, LIMIT_JSON_VALUES, NAME, &err);
    if (st == FERRY_OK)
        st = placement_from_json(&p, json, NAME, HAS, N_LAYERS, N_EXPERTS, N_SEATS, &err);
    json_decref(json);
    if (st != FERRY_OK) {
        check_refusal(&err, NAME);
        FERRY_ASSERT(p == NULL);
        return;
    }
    for (size_t i = 0; i < N_LAYERS * N_EXPERTS; i++) {
        uint64_t listed = placement_listed(p, i / N_EXPERTS, i % N_EXPERTS);
        FERRY_ASSERT((listed != 0) == (HAS[i / N_EXPERTS] != 0));
        FERRY_ASSERT(listed < 1 << N_SEATS);
        for (uint64_t live = 1; live < 1 << N_SEATS; live++)
            FERRY_ASSERT((placement_holders(p, i / N_EXPERTS, i % N_EXPERTS, live) != 0) ==
                         (listed != 0));
    }
    placement_destroy(p);
}

static void read_manifest(const char *path)
{
    static const bool HAS[N_LAYERS] = {true, false, true};
    const struct expert_manifest_shape shape = {MODEL, HAS, N_LAYERS, N_EXPERTS};
    struct expert_manifest *m = NULL;
    struct ferry_error err = {0};

    if (expert_manifest_read(&m, path, &shape, &err) != FERRY_OK) {
        check_refusal(&err, path);
        FERRY_ASSERT(m == NULL);
        return;
    }
    for (size_t i = 0; i < N_LAYERS * N_EXPERTS; i++) {
        const char *hex = expert_manifest_hash(m, i / N_EXPERTS, i % N_EXPERTS);
        FERRY_ASSERT(strlen(hex) == (HAS[i / N_EXPERTS] ? 64 : 0));
        FERRY_ASSERT(strspn(hex, "0123456789abcdef") == strlen(hex));
    }
    FERRY_ASSERT(strlen(expert_manifest_root(m)) == 64);
    expert_manifest_destroy(m);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size == 0)
        return 0;
    if (data[0] == 'p')
        read_placement(data + 1, size - 1);
    else
        read_manifest(as_file(data + 1, size - 1));
    return 0;
}
