/* What every unit test includes: cmocka behind the headers that it asks for, numbers that look
 * drawn, and a fork helper for code that ends the process. Test code only. */
#ifndef TESTS_UNIT_UNIT_H
#define TESTS_UNIT_UNIT_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

#define COUNT_OF(array) (sizeof(array) / sizeof((array)[0]))

/* The next of a sequence of 24-bit numbers that *state begins. */
static inline uint32_t unit_draw(uint32_t *state)
{
    *state = *state * 1664525u + 1013904223u;
    return *state >> 8;
}

/* Runs fn in a child whose stderr goes to text (cut at size - 1, ended by 0); returns the wait
 * status. */
static inline int run_in_child(void (*fn)(void), char *text, size_t size)
{
    int ends[2];
    int status = -1;
    size_t used = 0;

    if (pipe(ends) != 0)
        return -1;
    (void)fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) {
        (void)dup2(ends[1], STDERR_FILENO);
        (void)close(ends[0]);
        (void)close(ends[1]);
        fn();
        _exit(0);
    }
    (void)close(ends[1]);
    for (;;) {
        ssize_t n = read(ends[0], text + used, size - 1 - used);
        if (n <= 0)
            break;
        used += (size_t)n;
    }
    text[used] = 0;
    (void)close(ends[0]);
    if (pid < 0 || waitpid(pid, &status, 0) != pid)
        return -1;
    return status;
}

#endif
