/* Memory that processes share: both ends of it, hostile keys, no room, nothing left open. */
#include "../unit.h"
#include "base/alloc.h"
#include "fabric/ucx_impl.h"
#include "ucx_peer.h"

#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>

enum { BYTES = 100000 };

static void share(struct ucx_memory *memory, struct ucx_key *key)
{
    struct ferry_error err = {0};

    if (ucx_memory_share(memory, BYTES, "lanes", &err) != FERRY_OK)
        fail_msg("%s", err.msg);
    ucx_memory_key(memory, key);
}

static void both_ends_see_the_same_bytes(void **state)
{
    struct ucx_memory memory;
    struct ucx_window window;
    struct ucx_key key;
    size_t before = count_descriptors();

    (void)state;
    share(&memory, &key);
    assert_true(ucx_memory_is_shared(&memory));
    for (size_t i = 0; i < BYTES; i++)
        assert_int_equal(memory.region->data[i], 0);
    assert_true(ucx_window_open(&window, &key, BYTES));
    assert_ptr_not_equal(window.region, memory.region);
    memset(window.region->data, 0x5a, BYTES);
    assert_int_equal(memory.region->data[BYTES - 1], 0x5a);
    assert_false(ucx_memory_is_left(&memory));
    ucx_window_close(&window, true);
    assert_true(ucx_memory_is_left(&memory));
    ucx_window_close(&window, true); /* harmless */
    ucx_memory_fini(&memory);
    ucx_memory_fini(&memory);
    assert_false(ucx_window_open(&window, &key, BYTES)); /* it is gone */
    assert_int_equal(count_descriptors(), before);
}

/* The owner closes while the peer still stores: its pages stay its own. */
static void a_window_outlives_its_owner(void **state)
{
    struct ucx_memory memory, other;
    struct ucx_window window;
    struct ucx_key key;

    (void)state;
    share(&memory, &key);
    assert_true(ucx_window_open(&window, &key, BYTES));
    ucx_memory_fini(&memory);
    share(&other, &key);
    memset(window.region->data, 0x77, BYTES);
    for (size_t i = 0; i < BYTES; i++)
        assert_int_equal(other.region->data[i], 0);
    ucx_window_close(&window, false);
    ucx_memory_fini(&other);
}

static void another_process_maps_it_and_dies(void **state)
{
    struct ucx_memory memory;
    struct ucx_key key;
    int status;

    (void)state;
    share(&memory, &key);
    pid_t pid = fork();
    if (pid == 0) {
        struct ucx_window window;
        if (!ucx_window_open(&window, &key, BYTES))
            _exit(1);
        memset(window.region->data, 0x33, BYTES);
        _exit(0);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
    assert_int_equal(memory.region->data[0] + memory.region->data[BYTES - 1], 2 * 0x33);
    assert_false(ucx_memory_is_left(&memory));
    ucx_memory_fini(&memory);
}

static void hostile_keys_open_nothing(void **state)
{
    struct ucx_memory memory;
    struct ucx_window window = {0};
    struct ucx_key key, bad;
    int ends[2];

    (void)state;
    share(&memory, &key);
    size_t before = count_descriptors();
    for (size_t bit = 0; bit < 8 * sizeof key; bit++) { /* any bit of it */
        bad = key;
        ((unsigned char *)&bad)[bit / 8] ^= (unsigned char)(1u << bit % 8);
        assert_false(ucx_window_open(&window, &bad, BYTES));
    }
    assert_false(ucx_window_open(&window, &key, BYTES + 1));
    assert_false(ucx_window_open(&window, &key, 0));
    bad = key;
    bad.n_bytes = SIZE_MAX;
    assert_false(ucx_window_open(&window, &bad, SIZE_MAX));
    assert_null(window.region);
    assert_int_equal(count_descriptors(), before);

    assert_int_equal(pipe(ends), 0); /* one end of a pipe would make open wait */
    bad = key;
    bad.fd = (uint32_t)ends[0];
    assert_false(ucx_window_open(&window, &bad, BYTES));
    (void)close(ends[0]);
    (void)close(ends[1]);
    ucx_memory_fini(&memory);
}

/* A file of the right size that can shrink would be SIGBUS one day. */
static void memory_that_can_shrink_is_refused(void **state)
{
    struct ucx_memory fake = {.n_bytes = BYTES};
    struct ucx_window window;
    struct ucx_key key;
    size_t total = BYTES + sizeof(struct ucx_region);

    (void)state;
    fake.fd = memfd_create("fake", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    assert_true(fake.fd >= 0);
    assert_int_equal(ftruncate(fake.fd, (off_t)total), 0);
    fake.region = mmap(NULL, total, PROT_READ | PROT_WRITE, MAP_SHARED, fake.fd, 0);
    assert_ptr_not_equal(fake.region, MAP_FAILED);
    fake.region->nonce = 7;
    ucx_memory_key(&fake, &key);
    assert_false(ucx_window_open(&window, &key, BYTES));
    assert_int_equal(fcntl(fake.fd, F_ADD_SEALS, F_SEAL_SHRINK), 0);
    assert_true(ucx_window_open(&window, &key, BYTES)); /* it was only that */
    ucx_window_close(&window, false);
    ucx_memory_fini(&fake);
}

static void no_room_is_an_error_that_names_sizes(void **state)
{
    static const size_t SIZES[] = {SIZE_MAX, SIZE_MAX / 2, (size_t)1 << 50};
    struct ucx_memory memory;

    (void)state;
    for (size_t i = 0; i < COUNT_OF(SIZES); i++) {
        struct ferry_error err = {0};
        assert_int_equal(ucx_memory_share(&memory, SIZES[i], "lanes to x", &err), FERRY_ERR_NOMEM);
        assert_non_null(strstr(err.msg, "lanes to x"));
        assert_non_null(strstr(err.msg, "make the lanes smaller"));
    }
    /* No descriptor to be had. */
    struct rlimit old, none;
    struct ferry_error err = {0};
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &old), 0);
    none = (struct rlimit){.rlim_cur = 0, .rlim_max = old.rlim_max};
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &none), 0);
    enum ferry_status st = ucx_memory_share(&memory, BYTES, "lanes to x", &err);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &old), 0);
    assert_int_equal(st, FERRY_ERR_NOMEM);
}

static void private_memory_has_no_key(void **state)
{
    struct ucx_memory memory;
    struct ucx_window window;
    struct ucx_key key;
    struct ferry_error err = {0};

    (void)state;
    assert_int_equal(ucx_memory_own(&memory, BYTES, "lanes", &err), FERRY_OK);
    assert_false(ucx_memory_is_shared(&memory));
    assert_int_equal(memory.region->data[BYTES - 1], 0);
    ucx_memory_key(&memory, &key);
    assert_false(ucx_window_open(&window, &key, BYTES));
    ucx_memory_fini(&memory);
    assert_int_equal(ucx_memory_own(&memory, SIZE_MAX, "lanes", &err), FERRY_ERR_NOMEM);
    mem_fail_after(1);
    assert_int_equal(ucx_memory_own(&memory, BYTES, "lanes", &err), FERRY_ERR_NOMEM);
    mem_fail_after(0);
    assert_true(ucx_random() != ucx_random());
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(both_ends_see_the_same_bytes),
        cmocka_unit_test(a_window_outlives_its_owner),
        cmocka_unit_test(another_process_maps_it_and_dies),
        cmocka_unit_test(hostile_keys_open_nothing),
        cmocka_unit_test(memory_that_can_shrink_is_refused),
        cmocka_unit_test(no_room_is_an_error_that_names_sizes),
        cmocka_unit_test(private_memory_has_no_key),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
