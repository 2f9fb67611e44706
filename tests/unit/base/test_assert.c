/* Unit tests of base/assert.c: a broken assertion ends the process and names itself. */
#include "../unit.h"

#include "base/assert.h"

#include <signal.h>
#include <string.h>
#include <sys/resource.h>

static void break_one(void)
{
    const struct rlimit none = {0, 0};

    (void)setrlimit(RLIMIT_CORE, &none);
    (void)signal(SIGABRT, SIG_DFL);
    FERRY_ASSERT(1 + 1 == 3);
}

static void broken_assertion_aborts_with_its_text(void **state)
{
    char text[512];

    (void)state;
    int status = run_in_child(break_one, text, sizeof text);
    assert_true(WIFSIGNALED(status));
    assert_int_equal(WTERMSIG(status), SIGABRT);
    assert_non_null(strstr(text, "ferry: internal error: '1 + 1 == 3' does not hold at "));
    assert_non_null(strstr(text, "test_assert.c:"));
}

static void true_assertions_go_on_and_evaluate_once(void **state)
{
    int n = 0;

    (void)state;
    FERRY_ASSERT(++n == 1);
    assert_int_equal(n, 1);
    FERRY_DCHECK(n == 1);
    FERRY_DCHECK(++n > 0); /* evaluated in debug builds only */
#ifdef FERRY_DEBUG
    assert_int_equal(n, 2);
#else
    assert_int_equal(n, 1);
#endif
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(broken_assertion_aborts_with_its_text),
        cmocka_unit_test(true_assertions_go_on_and_evaluate_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
