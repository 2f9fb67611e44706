/* Who a process is, and when it is gone: running, stopped, a zombie, reaped, of another name space.
 */
#include "../unit.h"
#include "fabric/ucx_impl.h"

#include <poll.h>
#include <signal.h>
#include <string.h>

/* A child that waits until it is killed, and what it says about itself. */
static pid_t start_child(struct ucx_process *ret)
{
    int ends[2];

    assert_int_equal(pipe(ends), 0);
    pid_t pid = fork();
    if (pid == 0) {
        struct ucx_process self;
        ucx_process_self(&self);
        if (write(ends[1], &self, sizeof self) != (ssize_t)sizeof self)
            _exit(1);
        for (;;)
            (void)pause();
    }
    assert_int_equal(read(ends[0], ret, sizeof *ret), sizeof *ret);
    (void)close(ends[0]);
    (void)close(ends[1]);
    return pid;
}

/* The end of a process becomes visible some time after the signal. */
static bool becomes_gone(const struct ucx_watch *watch)
{
    for (int i = 0; i < 2000; i++) {
        if (ucx_watch_is_gone(watch))
            return true;
        (void)poll(NULL, 0, 1);
    }
    return false;
}

static void the_own_process_is_named_and_lives(void **state)
{
    struct ucx_process self, again;
    struct ucx_watch watch;

    (void)state;
    ucx_process_self(&self);
    ucx_process_self(&again);
    assert_memory_equal(&self, &again, sizeof self);
    assert_int_equal(self.pid, getpid());
    assert_true(self.start > 0 && self.pid_ns > 0);
    ucx_watch_open(&watch, &self);
    assert_true(watch.can_judge);
    assert_false(ucx_watch_is_gone(&watch));
    ucx_watch_close(&watch);
    ucx_watch_close(&watch); /* harmless */
    assert_int_not_equal(ucx_host_id(), 0);
    assert_int_equal(ucx_host_id(), ucx_host_id());
}

/* by_number: as where the kernel has no process descriptors. */
static void follow_a_death(bool by_number)
{
    struct ucx_process process;
    struct ucx_watch watch;
    pid_t pid = start_child(&process);

    assert_int_equal(process.pid, pid);
    ucx_watch_open(&watch, &process);
    assert_true(watch.can_judge && watch.fd >= 0);
    if (by_number) {
        (void)close(watch.fd);
        watch.fd = -1;
    }
    assert_false(ucx_watch_is_gone(&watch));
    assert_int_equal(kill(pid, SIGSTOP), 0);
    assert_int_equal(waitpid(pid, NULL, WUNTRACED), pid);
    assert_false(ucx_watch_is_gone(&watch)); /* stopped, it may go on any time */
    assert_int_equal(kill(pid, SIGCONT), 0);
    assert_false(ucx_watch_is_gone(&watch));
    assert_int_equal(kill(pid, SIGKILL), 0);
    assert_true(becomes_gone(&watch)); /* a zombie has no memory */
    assert_int_equal(waitpid(pid, NULL, 0), pid);
    assert_true(ucx_watch_is_gone(&watch));
    ucx_watch_close(&watch);
    ucx_watch_open(&watch, &process); /* looked for too late */
    assert_true(ucx_watch_is_gone(&watch));
    ucx_watch_close(&watch);
}

static void a_death_is_seen_by_descriptor_and_by_number(void **state)
{
    (void)state;
    follow_a_death(false);
    follow_a_death(true);
}

static void a_number_that_went_to_another_process_is_not_taken_for_it(void **state)
{
    struct ucx_process process;
    struct ucx_watch watch;

    (void)state;
    ucx_process_self(&process);
    process.start++; /* the peer had the number before this process */
    ucx_watch_open(&watch, &process);
    assert_true(watch.can_judge);
    assert_true(ucx_watch_is_gone(&watch));
    ucx_watch_close(&watch);
}

static void what_cannot_be_judged_is_never_gone(void **state)
{
    struct ucx_process good, bad[4];
    struct ucx_watch watch;

    (void)state;
    ucx_process_self(&good);
    for (size_t i = 0; i < COUNT_OF(bad); i++)
        bad[i] = good;
    bad[0].pid_ns++;
    bad[1].pid = 0;
    bad[2].start = 0;
    bad[3].pid = UINT32_MAX;
    for (size_t i = 0; i < COUNT_OF(bad); i++) {
        ucx_watch_open(&watch, &bad[i]);
        assert_false(watch.can_judge);
        assert_false(ucx_watch_is_gone(&watch));
        ucx_watch_close(&watch);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_own_process_is_named_and_lives),
        cmocka_unit_test(a_death_is_seen_by_descriptor_and_by_number),
        cmocka_unit_test(a_number_that_went_to_another_process_is_not_taken_for_it),
        cmocka_unit_test(what_cannot_be_judged_is_never_gone),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
