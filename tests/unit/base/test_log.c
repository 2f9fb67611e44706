/* Unit tests of base/log.c: levels, one line per message, hostile text, whole lines from several
 * threads. */
#include "../unit.h"

#include "base/log.h"

#include <pthread.h>
#include <string.h>

static void write_at_default_level(void)
{
    LOG_ERROR("e %d", 1);
    LOG_WARNING("w %d", 2);
    LOG_INFO("i %d", 3);
    LOG_DEBUG("d %d", 4);
}

static void write_at_all_levels(void)
{
    log_set_level(LOG_LEVEL_DEBUG);
    write_at_default_level();
    log_set_level(LOG_LEVEL_ERROR);
    write_at_default_level();
}

static void levels_filter(void **state)
{
    char text[1000];

    (void)state;
    assert_int_equal(run_in_child(write_at_default_level, text, sizeof text), 0);
    assert_string_equal(text, "ferry: error: e 1\nferry: warning: w 2\n");
    assert_int_equal(run_in_child(write_at_all_levels, text, sizeof text), 0);
    assert_string_equal(text, "ferry: error: e 1\nferry: warning: w 2\nferry: i 3\n"
                              "ferry: debug: d 4\nferry: error: e 1\n");
}

static void write_hostile(void)
{
    LOG_ERROR("%s", "a\nferry: error: forged\033[2J\xFF");
}

static void hostile_text_stays_one_line(void **state)
{
    char text[1000];

    (void)state;
    assert_int_equal(run_in_child(write_hostile, text, sizeof text), 0);
    assert_string_equal(text, "ferry: error: a?ferry: error: forged?[2J?\n");
}

static void write_long(void)
{
    char text[5000];

    memset(text, 'x', sizeof text);
    text[sizeof text - 1] = 0;
    LOG_ERROR("%s", text);
}

static void long_text_is_cut(void **state)
{
    char text[6000];

    (void)state;
    assert_int_equal(run_in_child(write_long, text, sizeof text), 0);
    size_t n = strlen(text);
    assert_int_equal(n, strlen("ferry: error: ") + 1023 + 1);
    assert_int_equal(text[n - 1], '\n');
}

enum { N_THREADS = 4, N_LINES = 100 };

static void *write_many(void *arg)
{
    for (int i = 0; i < N_LINES; i++)
        LOG_ERROR("%s", (const char *)arg);
    return NULL;
}

static void write_from_threads(void)
{
    static char texts[N_THREADS][40];
    pthread_t threads[N_THREADS];

    for (int i = 0; i < N_THREADS; i++) {
        memset(texts[i], 'a' + i, sizeof texts[i] - 1);
        (void)pthread_create(&threads[i], NULL, write_many, texts[i]);
    }
    for (int i = 0; i < N_THREADS; i++)
        (void)pthread_join(threads[i], NULL);
}

static void lines_do_not_mix(void **state)
{
    static char text[1 << 16];
    int n_lines = 0;

    (void)state;
    assert_int_equal(run_in_child(write_from_threads, text, sizeof text), 0);
    for (char *line = strtok(text, "\n"); line != NULL; line = strtok(NULL, "\n")) {
        assert_int_equal(strncmp(line, "ferry: error: ", 14), 0);
        char one[2] = {line[14], 0};
        assert_int_equal(strlen(line + 14), 39);
        assert_int_equal(strspn(line + 14, one), 39);
        n_lines++;
    }
    assert_int_equal(n_lines, N_THREADS * N_LINES);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(levels_filter),
        cmocka_unit_test(hostile_text_stays_one_line),
        cmocka_unit_test(long_text_is_cut),
        cmocka_unit_test(lines_do_not_mix),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
