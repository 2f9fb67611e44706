/* The scheduler with many threads around its owner: they submit, cancel, hold, look, and wait,
 * while it steps. Runs under the thread sanitizer. */
#include "tests/unit/engine/served.h"

#include "base/alloc.h"
#include "tests/unit/text/small.h"

#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>

enum { N_THREADS = 4, N_KINDS = 6, AT_ONCE = 4 };
#ifdef FERRY_SANITIZED
enum { N_EACH = 25, N_RELEASES = 60 };
#else
enum { N_EACH = 125, N_RELEASES = 150 };
#endif

static struct asked kinds[N_KINDS]; /* what is asked, and its answers alone */

struct client {
    struct served *served;
    pthread_t thread;
    uint64_t random;
    size_t n_whole, n_cancelled, n_refused;
    struct asked asked[AT_ONCE];
    size_t kind[AT_ONCE];
    bool doomed[AT_ONCE], cancelled[AT_ONCE];
};

static void make_kinds(void)
{
    for (size_t i = 0; i < N_KINDS; i++) {
        struct asked *k = &kinds[i];
        asked_init(k, 20 + 50 * i, i / 2, 3 + 3 * i); /* pairs share a beginning */
        k->options.n_choices = 1 + i % 3;
        k->options.sampling.temperature = (float)(i % 2);
        k->options.logprobs = i % 2 == 0;
        asked_alone(k, k->answers);
    }
}

/* Submits one of a random kind; tries again later when the queue is full. */
static bool ask(struct client *client, size_t slot)
{
    struct asked *a = &client->asked[slot];
    size_t kind = small_random(&client->random) % N_KINDS;
    struct ferry_error err = {0};

    memset(a, 0, sizeof *a);
    a->options = kinds[kind].options;
    client->kind[slot] = kind;
    client->doomed[slot] = small_random(&client->random) % 4 == 0;
    client->cancelled[slot] = false;
    a->options.on_event = kinds[kind].options.on_event;
    a->options.arg = a;
    assert_int_equal(request_create(&a->request, client->served->scheduler, &a->options, &err),
                     FERRY_OK);
    if (scheduler_submit(client->served->scheduler, a->request, &err) == FERRY_OK)
        return true;
    assert_int_equal(err.status, FERRY_AGAIN);
    client->n_refused++;
    request_destroy(a->request);
    a->request = NULL;
    return false;
}

static void check(struct client *client, size_t slot)
{
    const struct asked *a = &client->asked[slot], *want = &kinds[client->kind[slot]];

    assert_int_equal(a->n_done, 1);
    for (size_t i = 0; i < a->options.n_choices; i++) {
        answer_begins(&a->answers[i], &want->answers[i]);
        if (a->answers[i].finish == REQUEST_FINISH_CANCELLED) {
            assert_true(client->cancelled[slot]);
            client->n_cancelled++;
        } else {
            assert_memory_equal(&a->answers[i], &want->answers[i], sizeof a->answers[i]);
            client->n_whole++;
        }
    }
}

static void disturb(struct client *client, size_t slot)
{
    struct request *r = client->asked[slot].request;
    struct scheduler_view view;

    if (client->doomed[slot] && small_random(&client->random) % 8 == 0) {
        client->cancelled[slot] = true;
        request_cancel(r);
        return;
    }
    switch (small_random(&client->random) % 64) {
    case 1:
    case 2:
        request_hold(r, true);
        break;
    case 3:
        scheduler_view(client->served->scheduler, &view);
        assert_true(view.n_pages_used <= view.n_pages);
        break;
    default:
        request_hold(r, false);
    }
}

static void *run_client(void *arg)
{
    struct client *client = arg;
    size_t n_asked = 0, n_open = 0;

    while (n_asked < N_EACH || n_open > 0) {
        size_t slot = small_random(&client->random) % AT_ONCE;
        struct asked *a = &client->asked[slot];
        if (a->request == NULL) {
            if (n_asked < N_EACH && ask(client, slot)) {
                n_asked++;
                n_open++;
            }
        } else if (atomic_load(&a->done)) {
            check(client, slot);
            request_destroy(a->request);
            a->request = NULL;
            n_open--;
        } else {
            disturb(client, slot);
        }
        (void)sched_yield();
    }
    return NULL;
}

static atomic_size_t n_running_clients;

static void *run_client_and_tell(void *arg)
{
    struct client *client = arg;

    (void)run_client(client);
    atomic_fetch_sub(&n_running_clients, 1);
    scheduler_wake(client->served->scheduler);
    return NULL;
}

static void clients_disturb_each_other(void **state)
{
    static struct client clients[N_THREADS];
    struct served served;
    size_t n_whole = 0, n_cancelled = 0;

    (void)state;
    make_kinds();
    served_open(&served, &(struct served_options){.n_sequences = 4,
                                                  .n_pages = 7,
                                                  .context = 700,
                                                  .step_tokens = 64,
                                                  .n_threads = 2,
                                                  .scheduler = {.max_waiting = 12}});
    atomic_store(&n_running_clients, N_THREADS);
    for (size_t i = 0; i < N_THREADS; i++) {
        clients[i] = (struct client){.served = &served, .random = i};
        assert_int_equal(pthread_create(&clients[i].thread, NULL, run_client_and_tell, &clients[i]),
                         0);
    }
    while (atomic_load(&n_running_clients) > 0) {
        if (!served_step(&served)) /* a lost wake-up would be a second's stop: a time-out at last */
            scheduler_wait(served.scheduler, UINT64_C(1000000000));
    }
    for (size_t i = 0; i < N_THREADS; i++) {
        assert_int_equal(pthread_join(clients[i].thread, NULL), 0);
        n_whole += clients[i].n_whole;
        n_cancelled += clients[i].n_cancelled;
    }
    print_message("%zu whole answers, %zu cancelled\n", n_whole, n_cancelled);
    assert_true(n_whole > N_EACH && n_cancelled >= 5); /* how many depends on the machine */
    assert_int_equal(engine_n_pages_available(served.engine), 7);
    served_close(&served);
}

/* ---- a hold that changes at any moment of a step ---- */

struct toggler {
    pthread_t thread;
    atomic_bool stop;
    struct request *_Atomic request;
};

static void *toggle(void *arg)
{
    struct toggler *t = arg;

    for (bool hold = true; !atomic_load(&t->stop); hold = !hold) {
        struct request *r = atomic_exchange(&t->request, NULL); /* not destroyed while we have it */
        if (r == NULL)
            continue;
        request_hold(r, hold);
        atomic_store(&t->request, r);
    }
    return NULL;
}

/* What the step sees of a hold, it sees once: between "nobody may go" and "somebody waits for
 * pages" nothing changes, so nobody is ended for want of pages that there are. */
static void hold_changes_at_any_time(void **state)
{
    static struct toggler toggler;
    static struct asked asked;
    struct served served;

    (void)state;
    served_open(&served, &(struct served_options){.n_sequences = 2, .n_pages = 4, .context = 512});
    atomic_store(&toggler.stop, false);
    assert_int_equal(pthread_create(&toggler.thread, NULL, toggle, &toggler), 0);
    for (uint64_t i = 0; i < N_RELEASES; i++) {
        struct request *r = NULL;
        asked_init(&asked, 126 + i % 3, i, 3);
        asked_submit(&asked, &served);
        request_hold(asked.request, true);
        (void)served_step(&served);
        atomic_store(&toggler.request, asked.request);
        while (!atomic_load(&asked.done))
            (void)served_step(&served);
        do
            r = atomic_exchange(&toggler.request, NULL);
        while (r == NULL);
        if (asked.answers[0].finish != REQUEST_FINISH_LENGTH)
            fail_msg("request %zu: %s", (size_t)i, asked.answers[0].message);
        asked_end(&asked);
    }
    atomic_store(&toggler.stop, true);
    assert_int_equal(pthread_join(toggler.thread, NULL), 0);
    served_close(&served);
}

/* ---- waiting ---- */

static void *submit_soon(void *arg)
{
    struct served *served = arg;
    static struct asked asked;

    for (int i = 0; i < 300; i++)
        (void)sched_yield();
    asked_init(&asked, 10, 1, 2);
    asked.destroy_at_done = true;
    asked_submit(&asked, served);
    return NULL;
}

/* The longest wait there is ends with the work, not before. */
static void waiting_ends_with_work(void **state)
{
    struct served served;
    pthread_t thread;
    struct scheduler_view view;

    (void)state;
    served_open(&served, &(struct served_options){0});
    for (int i = 0; i < 10; i++) {
        assert_false(served_step(&served));
        assert_int_equal(pthread_create(&thread, NULL, submit_soon, &served), 0);
        scheduler_wait(served.scheduler, UINT64_MAX - (uint64_t)i);
        scheduler_view(served.scheduler, &view);
        assert_int_equal(view.n_waiting, 1);
        assert_int_equal(pthread_join(thread, NULL), 0);
        while (served_step(&served))
            ;
    }
    scheduler_wake(served.scheduler); /* before the wait: not lost */
    scheduler_wait(served.scheduler, UINT64_MAX);
    scheduler_wait(served.scheduler, 1);
    scheduler_wait(served.scheduler, 0);
    served_close(&served);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(clients_disturb_each_other),
        cmocka_unit_test(hold_changes_at_any_time),
        cmocka_unit_test(waiting_ends_with_work),
    };
    return cmocka_run_group_tests(tests, served_setup, served_teardown);
}
