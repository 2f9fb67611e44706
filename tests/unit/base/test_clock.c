/* Unit tests of base/clock.c: monotonic, and in nanoseconds. */
#include "../unit.h"

#include "base/clock.h"

#include <time.h>

static void never_goes_back(void **state)
{
    uint64_t last = clock_now_ns();

    (void)state;
    for (int i = 0; i < 100000; i++) {
        uint64_t now = clock_now_ns();
        assert_true(now >= last);
        last = now;
    }
}

static void agrees_with_the_system(void **state)
{
    struct timespec before, after;

    (void)state;
    (void)clock_gettime(CLOCK_MONOTONIC, &before);
    uint64_t now = clock_now_ns();
    (void)clock_gettime(CLOCK_MONOTONIC, &after);
    assert_true(now >= (uint64_t)before.tv_sec * 1000000000u + (uint64_t)before.tv_nsec);
    assert_true(now <= (uint64_t)after.tv_sec * 1000000000u + (uint64_t)after.tv_nsec);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(never_goes_back),
        cmocka_unit_test(agrees_with_the_system),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
