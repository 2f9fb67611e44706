/* A file that shrinks under a reader ends the process with one line. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/limits.h"
#include "file/fault.h"
#include "file/map.h"
#include "make.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

/* Runs `child` in a process of its own; returns its wait status and what it wrote on stderr. */
static int run_child(void (*child)(void), char *text, size_t size)
{
    int pipe_fds[2];
    size_t used = 0;
    int status = 0;

    assert_int_equal(pipe(pipe_fds), 0);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        const struct rlimit none = {0, 0};
        (void)setrlimit(RLIMIT_CORE, &none);
        (void)dup2(pipe_fds[1], STDERR_FILENO);
        (void)close(pipe_fds[0]);
        child();
        _exit(99);
    }
    (void)close(pipe_fds[1]);
    for (ssize_t n = 1; n > 0 && used < size - 1; used += (size_t)(n > 0 ? n : 0))
        n = read(pipe_fds[0], text + used, size - 1 - used);
    text[used] = 0;
    (void)close(pipe_fds[0]);
    assert_true(waitpid(pid, &status, 0) == pid);
    return status;
}

static struct dir dir;

static void read_shrunk_file(void)
{
    struct map *map = NULL;
    volatile unsigned char sink;

    if (fault_install() != 0 ||
        map_open(&map, dir_path(&dir, "model\033.gguf"), 0, NULL) != FERRY_OK)
        _exit(98);
    if (truncate(dir_path(&dir, "model\033.gguf"), 4096) != 0)
        _exit(97);
    sink = map->data[100];
    sink = map->data[3 * 4096]; /* beyond the new end */
    (void)sink;
}

static void test_shrunk(void **state)
{
    static unsigned char data[4 * 4096];
    char text[512];

    (void)state;
    dir_make(&dir);
    dir_write(&dir, "model\033.gguf", data, sizeof data);
    int status = run_child(read_shrunk_file, text, sizeof text);
    dir_remove(&dir);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 1);
    assert_string_equal(text, "ferry: error: file shrank while in use: model?.gguf (or its disk "
                              "failed); restore the file and start again\n");
}

/* A SIGBUS that is not about our files keeps its meaning. */
static void raise_foreign(void)
{
    if (fault_install() != 0)
        _exit(98);
    for (int i = 0; i < 2; i++)
        (void)raise(SIGBUS);
}

static void test_foreign(void **state)
{
    char text[512];

    (void)state;
    int status = run_child(raise_foreign, text, sizeof text);
    assert_true(WIFSIGNALED(status));
    assert_int_equal(WTERMSIG(status), SIGBUS);
    assert_string_equal(text, "");
}

/* Slots run out without harm and are used again. */
static void test_registry(void **state)
{
    static int slots[LIMIT_SHARDS + 100];
    static char long_name[400];
    size_t n_full = 0;

    (void)state;
    memset(long_name, 'n', sizeof long_name - 1);
    for (size_t i = 0; i < sizeof slots / sizeof slots[0]; i++) {
        slots[i] = fault_register(&slots[i], 1, long_name);
        n_full += slots[i] < 0;
    }
    assert_int_equal(n_full, 36);
    for (size_t i = 0; i < sizeof slots / sizeof slots[0]; i++)
        fault_unregister(slots[i]);
    int slot = fault_register(slots, 1, "x");
    assert_int_equal(slot, 0);
    fault_unregister(slot);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_shrunk),
        cmocka_unit_test(test_foreign),
        cmocka_unit_test(test_registry),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
