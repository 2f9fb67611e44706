/* Unit tests of base/cpu.c: level names, detection, brand text, processor count. */
#include "../unit.h"

#include "base/cpu.h"

#include <sched.h>
#include <string.h>

static void level_names_go_both_ways(void **state)
{
    enum cpu_level level = CPU_LEVEL_COUNT;

    (void)state;
    for (int i = 0; i < CPU_LEVEL_COUNT; i++) {
        assert_true(cpu_level_parse(cpu_level_name((enum cpu_level)i), &level));
        assert_int_equal(level, i);
    }
    level = CPU_LEVEL_AVX2;
    assert_false(cpu_level_parse("avx3", &level));
    assert_false(cpu_level_parse("", &level));
    assert_false(cpu_level_parse("AVX2 ", &level));
    assert_int_equal(level, CPU_LEVEL_AVX2); /* untouched */
}

/* True when /proc/cpuinfo lists the flag; -1 when it cannot be read. */
static int proc_has(const char *flag)
{
    static char text[1 << 16];
    FILE *f = fopen("/proc/cpuinfo", "re");

    if (f == NULL)
        return -1;
    size_t n = fread(text, 1, sizeof text - 1, f);
    (void)fclose(f);
    text[n] = 0;
    for (const char *p = strstr(text, flag); p != NULL; p = strstr(p + 1, flag)) {
        char end = p[strlen(flag)];
        if (p > text && p[-1] == ' ' && (end == ' ' || end == '\n'))
            return 1;
    }
    return 0;
}

static void best_level_is_what_the_kernel_sees(void **state)
{
    (void)state;
#if defined(__x86_64__)
    int avx2 = proc_has("avx2"), fma = proc_has("fma"), f16c = proc_has("f16c");
    if (avx2 < 0)
        skip();
    assert_int_equal(cpu_best_level() >= CPU_LEVEL_AVX2, avx2 && fma && f16c);
#else
    (void)proc_has;
    assert_int_equal(cpu_best_level(), CPU_LEVEL_REF);
#endif
}

static void brand_fits_any_buffer(void **state)
{
    char text[300], small[5];

    (void)state;
    memset(text, 'x', sizeof text);
    assert_ptr_equal(cpu_brand(text, sizeof text), text);
    assert_true(strlen(text) > 0);
    assert_null(strchr(text, '\n'));
    (void)cpu_brand(small, sizeof small);
    assert_true(strlen(small) <= 4);
    assert_memory_equal(small, text, strlen(small));
}

static void count_follows_the_affinity_mask(void **state)
{
    cpu_set_t old, one;

    (void)state;
    assert_int_equal(sched_getaffinity(0, sizeof old, &old), 0);
    assert_int_equal(cpu_count(), CPU_COUNT(&old));
    CPU_ZERO(&one);
    for (size_t i = 0; i < CPU_SETSIZE; i++) {
        if (CPU_ISSET(i, &old)) {
            CPU_SET(i, &one);
            break;
        }
    }
    assert_int_equal(sched_setaffinity(0, sizeof one, &one), 0);
    assert_int_equal(cpu_count(), 1);
    assert_int_equal(sched_setaffinity(0, sizeof old, &old), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(level_names_go_both_ways),
        cmocka_unit_test(best_level_is_what_the_kernel_sees),
        cmocka_unit_test(brand_fits_any_buffer),
        cmocka_unit_test(count_follows_the_affinity_mask),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
