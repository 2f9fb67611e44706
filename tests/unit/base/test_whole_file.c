/* Whole files: what is read is what is there, odd files are refused without hanging, and a failed
 * write leaves the old content. */
#include "tests/unit/unit.h"

#include "base/alloc.h"
#include "base/whole_file.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static char folder[64];

static const char *path_of(const char *name)
{
    static char path[160];
    (void)snprintf(path, sizeof path, "%s/%s", folder, name);
    return path;
}

static void what_is_written_is_read(void **state)
{
    static char big[300000];
    static const size_t SIZES[] = {0, 1, 4096, sizeof big};
    char *data = NULL;
    size_t n = 99;

    (void)state;
    for (size_t i = 0; i < sizeof big; i++)
        big[i] = (char)(i * 2654435761u >> 11);
    for (size_t i = 0; i < COUNT_OF(SIZES); i++) {
        assert_int_equal(whole_file_write(path_of("a"), big, SIZES[i], NULL), FERRY_OK);
        assert_int_equal(whole_file_read(&data, &n, path_of("a"), sizeof big, NULL), FERRY_OK);
        assert_int_equal(n, SIZES[i]);
        assert_memory_equal(data, big, n);
        assert_int_equal(data[n], 0);
        mem_free(data);
    }
}

static void refuse(const char *name, size_t most, enum ferry_status want, const char *text)
{
    struct ferry_error err = {0};
    char *data = NULL;
    size_t n = 99;

    assert_int_equal(whole_file_read(&data, &n, path_of(name), most, &err), want);
    assert_non_null(strstr(err.msg, text));
    assert_non_null(strstr(err.msg, name));
    assert_null(data);
    assert_int_equal(n, 99);
}

static void odd_files_are_refused(void **state)
{
    (void)state;
    refuse("none", 10, FERRY_ERR_NOT_FOUND, "no such file");
    assert_int_equal(mkdir(path_of("dir"), 0700), 0);
    refuse("dir", 10, FERRY_ERR_FORMAT, "no regular file");
    assert_int_equal(mkfifo(path_of("fifo"), 0600), 0);
    refuse("fifo", 10, FERRY_ERR_FORMAT, "no regular file");
    assert_int_equal(whole_file_write(path_of("b"), "12345", 5, NULL), FERRY_OK);
    refuse("b", 4, FERRY_ERR_LIMIT, "the limit is 4");
    /* Files of the kernel tell size 0 and have bytes: as if they grew. */
    struct ferry_error err = {0};
    char *data = NULL;
    size_t n = 0;
    assert_int_equal(whole_file_read(&data, &n, "/proc/self/status", 1 << 20, &err), FERRY_ERR_IO);
    assert_non_null(strstr(err.msg, "grew"));
}

static size_t n_entries(void)
{
    char command[128];
    unsigned n = 0;

    (void)snprintf(command, sizeof command, "ls -A %s | wc -l", folder);
    FILE *f = popen(command, "r");
    assert_non_null(f);
    assert_int_equal(fscanf(f, "%u", &n), 1);
    assert_int_equal(pclose(f), 0);
    return n;
}

static void a_failed_write_leaves_the_old_file(void **state)
{
    struct ferry_error err = {0};
    char *data = NULL;
    size_t n = 0;

    (void)state;
    assert_int_equal(whole_file_write(path_of("keep"), "old", 3, NULL), FERRY_OK);
    size_t before = n_entries();
    mem_fail_after(1);
    assert_int_equal(whole_file_write(path_of("keep"), "new", 3, &err), FERRY_ERR_NOMEM);
    mem_fail_after(0);
    assert_int_equal(whole_file_write(path_of("none/keep"), "new", 3, &err), FERRY_ERR_IO);
    assert_int_equal(mkdir(path_of("taken"), 0700), 0); /* a file cannot replace a folder */
    assert_int_equal(whole_file_write(path_of("taken"), "new", 3, &err), FERRY_ERR_IO);
    assert_non_null(strstr(err.msg, "taken"));
    assert_int_equal(n_entries(), before + 1); /* the folder, and no unfinished part */
    assert_int_equal(whole_file_read(&data, &n, path_of("keep"), 10, NULL), FERRY_OK);
    assert_string_equal(data, "old");
    mem_free(data);
    mem_fail_after(1);
    assert_int_equal(whole_file_read(&data, &n, path_of("keep"), 10, &err), FERRY_ERR_NOMEM);
    mem_fail_after(0);
}

static void what_is_there_is_not_created(void **state)
{
    struct ferry_error err = {0};
    char *data = NULL;
    size_t n = 0;

    (void)state;
    assert_int_equal(whole_file_create(path_of("first"), "one", 3, NULL), FERRY_OK);
    assert_int_equal(symlink("nowhere", path_of("link")), 0);
    assert_int_equal(mkdir(path_of("here"), 0700), 0);
    size_t before = n_entries();
    static const char *const THERE[] = {"first", "link", "here"};
    for (size_t i = 0; i < 3; i++) {
        assert_int_equal(whole_file_create(path_of(THERE[i]), "two", 3, &err), FERRY_ERR_ARG);
        assert_non_null(strstr(err.msg, "is not replaced"));
    }
    assert_int_equal(n_entries(), before); /* and no unfinished part */
    /* A link to nothing is not the same as nothing. */
    assert_int_equal(whole_file_read(&data, &n, path_of("link"), 10, &err), FERRY_ERR_IO);
    assert_int_equal(whole_file_read(&data, &n, path_of("first"), 10, NULL), FERRY_OK);
    assert_string_equal(data, "one");
    mem_free(data);
}

static int make_folder(void **state)
{
    (void)state;
    (void)snprintf(folder, sizeof folder, "%s/ferry-whole-XXXXXX",
                   getenv("TMPDIR") != NULL ? getenv("TMPDIR") : "/tmp");
    return mkdtemp(folder) == NULL;
}

static int remove_folder(void **state)
{
    char command[128];

    (void)state;
    (void)snprintf(command, sizeof command, "rm -rf %s", folder);
    return system(command);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_written_is_read),
        cmocka_unit_test(odd_files_are_refused),
        cmocka_unit_test(a_failed_write_leaves_the_old_file),
        cmocka_unit_test(what_is_there_is_not_created),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
