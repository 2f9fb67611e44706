/* Numbers of the process: they follow what the process does, and files of the kernel that look odd
 * are read right or not at all. */
#include "page.h"

#include "base/alloc.h"
#include "observe/process.h"

#include <fcntl.h>
#include <math.h>
#include <stdlib.h>
#include <time.h>

/* A series of a fresh page. */
static double read_now(const char *name)
{
    struct exposition e = {0};
    char start[200];

    process_expose(&e);
    (void)snprintf(start, sizeof start, "\n%s ", name);
    const char *at = strstr(page_text(&e), start);
    if (at == NULL)
        fail_msg("no %s in\n%s", name, page_text(&e));
    double value = strtod(at + strlen(start), NULL);
    exposition_fini(&e);
    return value;
}

static void memory_follows(void **state)
{
    enum { BYTES = 64 << 20, SLACK = 16 << 20 };
    static const char *const NAMES[] = {"process_resident_memory_bytes",
                                        "ferry_memory_anonymous_bytes"};
    double before[2], virtual_before = read_now("process_virtual_memory_bytes");

    (void)state;
    for (size_t i = 0; i < 2; i++)
        before[i] = read_now(NAMES[i]);
    unsigned char *block = map_alloc(BYTES, 0);
    assert_non_null(block);
    assert_true(read_now("process_virtual_memory_bytes") >= virtual_before + BYTES);
    memset(block, 1, BYTES);
    double swapped =
        read_now("ferry_memory_swapped_bytes"); /* the machine may be short of memory */
    for (size_t i = 0; i < 2; i++)
        assert_true(read_now(NAMES[i]) + swapped >= before[i] + BYTES - SLACK);
    map_free(block, BYTES);
    for (size_t i = 0; i < 2; i++)
        assert_true(read_now(NAMES[i]) <= before[i] + SLACK);
}

static void descriptors_follow(void **state)
{
    double before = read_now("process_open_fds");
    int fds[3];

    (void)state;
    assert_true(before >= 3);
    for (size_t i = 0; i < 3; i++)
        assert_true((fds[i] = open("/proc/self/stat", O_RDONLY)) >= 0);
    assert_int_equal((int)read_now("process_open_fds"), (int)before + 3);
    for (size_t i = 0; i < 3; i++)
        (void)close(fds[i]);
    assert_int_equal((int)read_now("process_open_fds"), (int)before);
    assert_true(read_now("process_max_fds") >= before);
}

static void time_follows(void **state)
{
    double cpu = read_now("process_cpu_seconds_total");
    double started = read_now("process_start_time_seconds");
    volatile double x = 1;

    (void)state;
    while (read_now("process_cpu_seconds_total") < cpu + 0.02)
        x = x * 1.0000001;
    double age = read_now("ferry_uptime_seconds");
    assert_true(age >= 0.01 && age < 600);
    /* One number for the whole life of the process, and the right one. */
    assert_true(read_now("process_start_time_seconds") == started);
    assert_true(fabs((double)time(NULL) - age - started) < 3);
    assert_true(read_now("process_threads") >= 1);
}

static void each_name_once(void **state)
{
    struct exposition e = {0};

    (void)state;
    process_expose(&e);
    const char *page = page_text(&e);
    assert_int_equal(times_in(page, "# TYPE "), 10);
    assert_int_equal(times_in(page, "# TYPE ") * 3, times_in(page, "\n"));
    assert_line(page, "# TYPE process_cpu_seconds_total counter");
    assert_null(strstr(page, "NaN"));
    exposition_fini(&e);
}

static void status_lines(void **state)
{
    static const char TEXT[] = "Name:\tVmSwap: 3 kB\nVmRSS:\t    1234 kB\nRssAnon:\t0 kB\n"
                               "VmOdd:\tmany kB\nVmNeg:\t-5 kB\nVmEnd:\t7";
    (void)state;
    assert_true(process_status_bytes(TEXT, "VmRSS") == 1234.0 * 1024);
    assert_true(process_status_bytes(TEXT, "RssAnon") == 0);
    assert_true(process_status_bytes(TEXT, "VmEnd") == 7 * 1024);
    assert_true(isnan(process_status_bytes(TEXT, "VmSwap"))); /* a name that looks like it */
    assert_true(isnan(process_status_bytes(TEXT, "VmOdd")));
    assert_true(isnan(process_status_bytes(TEXT, "VmNeg")));
    assert_true(isnan(process_status_bytes(TEXT, "Vm")));
    assert_true(isnan(process_status_bytes("", "VmRSS")));
}

static void stat_fields(void **state)
{
    static const char TEXT[] = "12 (a) b ((x) 9) S 1 22 -3 44";
    (void)state;
    assert_true(isnan(process_stat_field(TEXT, 3))); /* the state is a letter */
    assert_true(process_stat_field(TEXT, 4) == 1);
    assert_true(process_stat_field(TEXT, 5) == 22);
    assert_true(isnan(process_stat_field(TEXT, 6))); /* nothing that we ask for is negative */
    assert_true(process_stat_field(TEXT, 7) == 44);
    assert_true(isnan(process_stat_field(TEXT, 8)));
    assert_true(isnan(process_stat_field(TEXT, 99)));
    assert_true(isnan(process_stat_field(TEXT, 2)));
    assert_true(isnan(process_stat_field("", 4)));
    assert_true(isnan(process_stat_field("12 (a", 4)));
    assert_true(isnan(process_stat_field("12 (a)", 4)));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(memory_follows), cmocka_unit_test(descriptors_follow),
        cmocka_unit_test(time_follows),   cmocka_unit_test(each_name_once),
        cmocka_unit_test(status_lines),   cmocka_unit_test(stat_fields),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
