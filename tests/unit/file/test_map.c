/* Mappings: what is refused, what shrinks, what is dropped. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/alloc.h"
#include "file/map.h"
#include "make.h"

#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static struct dir dir;

static void test_open(void **state)
{
    struct map *map = NULL;

    (void)state;
    dir_write_text(&dir, "a", "hello");
    assert_int_equal(map_open(&map, dir_path(&dir, "a"), 5, NULL), FERRY_OK);
    assert_int_equal(map->size, 5);
    assert_memory_equal(map->data, "hello", 5);
    assert_string_equal(map->name, "a");
    assert_int_equal(map_recheck(map, NULL), FERRY_OK);
    map_close(map);
    map_close(NULL);
}

static void test_refused(void **state)
{
    struct map *map = NULL;
    struct ferry_error err = {0};

    (void)state;
    assert_int_equal(map_open(&map, dir_path(&dir, "none"), 0, &err), FERRY_ERR_NOT_FOUND);
    assert_non_null(strstr(err.msg, "none: no such file"));
    dir_write_text(&dir, "a", "hello");
    assert_int_equal(map_open(&map, dir_path(&dir, "a/b"), 0, &err), FERRY_ERR_NOT_FOUND);
    assert_int_equal(map_open(&map, dir_path(&dir, "a"), 4, &err), FERRY_ERR_LIMIT);
    assert_non_null(strstr(err.msg, "has 5 bytes, the limit is 4"));
    dir_write_text(&dir, "empty", "");
    assert_int_equal(map_open(&map, dir_path(&dir, "empty"), 0, &err), FERRY_ERR_FORMAT);
    assert_non_null(strstr(err.msg, "is empty"));
    assert_int_equal(map_open(&map, dir.path, 0, &err), FERRY_ERR_FORMAT);
    assert_non_null(strstr(err.msg, "no regular file"));
    assert_int_equal(mkfifo(dir_path(&dir, "fifo"), 0600), 0);
    assert_int_equal(map_open(&map, dir_path(&dir, "fifo"), 0, &err), FERRY_ERR_FORMAT);
    assert_null(map);
}

static void test_shrinks_and_grows(void **state)
{
    struct map *map = NULL;
    struct ferry_error err = {0};

    (void)state;
    dir_write_text(&dir, "a", "hello");
    assert_int_equal(map_open(&map, dir_path(&dir, "a"), 0, NULL), FERRY_OK);
    assert_int_equal(truncate(dir_path(&dir, "a"), 9), 0);
    assert_int_equal(map_recheck(map, &err), FERRY_OK);
    assert_int_equal(truncate(dir_path(&dir, "a"), 3), 0);
    assert_int_equal(map_recheck(map, &err), FERRY_ERR_IO);
    assert_non_null(strstr(err.msg, "shrank from 5 to 3 bytes"));
    map_close(map);
}

static size_t resident(const struct map *map)
{
    unsigned char flags[64];
    size_t n = 0;

    assert_int_equal(mincore((void *)(uintptr_t)map->data, map->size, flags), 0);
    for (size_t i = 0; i < map->size / 4096; i++)
        n += flags[i] & 1;
    return n;
}

/* Contents stay readable; pages outside the range are not asked for. */
static void test_forget(void **state)
{
    static unsigned char data[16 * 4096];
    struct map *map = NULL;

    (void)state;
    for (size_t i = 0; i < sizeof data; i++)
        data[i] = (unsigned char)(i * 7);
    dir_write(&dir, "big", data, sizeof data);
    assert_int_equal(map_open(&map, dir_path(&dir, "big"), 0, NULL), FERRY_OK);
    assert_memory_equal(map->data, data, sizeof data);
    map_forget(map, map->data + 100, 3 * 4096);
    map_forget(map, map->data, map->size);
    map_forget(map, map->data + 5000, 10); /* within a page: nothing to drop */
    map_forget(map, map->data + map->size, 0);
    assert_memory_equal(map->data, data, sizeof data);
    assert_int_equal(resident(map), 16);
    map_close(map);
}

static void test_no_memory(void **state)
{
    enum ferry_status st = FERRY_ERR_NOMEM;
    uint64_t n = 1;

    (void)state;
    dir_write_text(&dir, "a", "hello");
    for (; st != FERRY_OK && n < 10; n++) {
        struct map *map = NULL;
        mem_fail_after(n);
        st = map_open(&map, dir_path(&dir, "a"), 0, NULL);
        mem_fail_after(0);
        if (st != FERRY_OK)
            assert_int_equal(st, FERRY_ERR_NOMEM);
        map_close(map);
    }
    assert_int_equal(n, 4); /* two allocations, the third never comes */
}

static int set_up(void **state)
{
    (void)state;
    dir_make(&dir);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    dir_remove(&dir);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_open),
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_shrinks_and_grows),
        cmocka_unit_test(test_forget),
        cmocka_unit_test(test_no_memory),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
