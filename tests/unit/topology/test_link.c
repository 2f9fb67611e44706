/* Unit tests of topology/link.c: every class has its own label, nearest first, and a number that is
 * no class has one too. */
#include "../unit.h"

#include "topology/link.h"

#include <string.h>

static void labels_are_distinct_words(void **state)
{
    (void)state;
    for (int a = 0; a < LINK_N_CLASSES; a++) {
        const char *name = link_class_name((enum link_class)a);
        assert_true(strlen(name) > 0);
        assert_int_equal(strspn(name, "abcdefghijklmnopqrstuvwxyz"), strlen(name));
        for (int b = 0; b < a; b++)
            assert_string_not_equal(name, link_class_name((enum link_class)b));
    }
}

static void nearer_roads_come_first(void **state)
{
    static const char *const ORDER[] = {"local", "shm", "numa", "pcie", "rdma", "tcp", "none"};

    (void)state;
    assert_int_equal(COUNT_OF(ORDER), LINK_N_CLASSES);
    for (size_t i = 0; i < COUNT_OF(ORDER); i++)
        assert_string_equal(link_class_name((enum link_class)i), ORDER[i]);
}

static void numbers_that_are_no_class_have_a_label(void **state)
{
    (void)state;
    assert_string_equal(link_class_name(LINK_N_CLASSES), "unknown");
    assert_string_equal(link_class_name((enum link_class)77), "unknown");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(labels_are_distinct_words),
        cmocka_unit_test(nearer_roads_come_first),
        cmocka_unit_test(numbers_that_are_no_class_have_a_label),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
