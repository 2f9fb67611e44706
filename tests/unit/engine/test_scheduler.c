/* The scheduler from its owner's side: queue, cancellation, hold, limits, failures. That answers
 * keep their bits is tested in test_scheduler_bits.c, several threads in
 * test_scheduler_threads.c. */
#include "tests/unit/engine/served.h"

#include "base/alloc.h"
#include "base/clock.h"
#include "tests/support/tiny.h"

#include <string.h>

static struct asked a, b, c, many[64];

static void expect_end(const struct asked *asked, enum request_finish finish)
{
    assert_true(atomic_load(&asked->done));
    assert_int_equal(asked->n_done, 1);
    for (size_t i = 0; i < asked->options.n_choices; i++)
        assert_int_equal(asked->answers[i].finish, finish);
}

/* Tokens so far, those included whose text is held back. */
static size_t n_generated(const struct asked *asked)
{
    return request_usage(asked->request)->completion_tokens;
}

/* Steps until the request has n tokens. */
static void step_to_token(struct served *s, const struct asked *asked, size_t n)
{
    for (size_t steps = 0; n_generated(asked) < n; steps++) {
        assert_true(steps < 1000);
        assert_true(served_step(s));
    }
}

/* ---- cancellation ---- */

/* T10, T11: one that waits is dropped, and the one that runs does not notice. */
static void cancelled_while_waiting(void **state)
{
    struct served s;
    struct asked *list[] = {&a, &c};

    (void)state;
    served_open(&s, &(struct served_options){.n_sequences = 1});
    asked_init(&a, 40, 1, 30);
    asked_init(&b, 50, 2, 30);
    asked_init(&c, 60, 3, 5);
    asked_submit(&a, &s);
    asked_submit(&b, &s);
    asked_submit(&c, &s);
    step_to_token(&s, &a, 3);
    request_cancel(b.request);
    request_cancel(b.request);
    assert_true(served_step(&s));
    expect_end(&b, REQUEST_FINISH_CANCELLED);
    assert_int_equal(b.answers[0].n_ids, 0);
    assert_int_equal(b.usage.start_ns, 0);
    request_cancel(b.request); /* legal until it is destroyed */
    served_finish(&s, list, 2, 200);
    assert_int_equal(b.n_done, 1);
    asked_check(&a);
    asked_check(&c);
    asked_end(&a);
    asked_end(&b);
    asked_end(&c);
    served_close(&s);
}

/* T09: between two chunks of a prompt. */
static void cancelled_in_prefill(void **state)
{
    struct served s;
    struct asked *list[] = {&b};
    struct scheduler_view view;

    (void)state;
    served_open(&s, &(struct served_options){.step_tokens = 64});
    asked_init(&a, 1500, 4, 5);
    asked_init(&b, 90, 5, 20);
    asked_submit(&a, &s);
    asked_submit(&b, &s);
    for (int i = 0; i < 5; i++)
        assert_true(served_step(&s));
    assert_int_equal(a.answers[0].n_ids, 0);
    request_cancel(a.request);
    assert_true(served_step(&s));
    expect_end(&a, REQUEST_FINISH_CANCELLED);
    served_finish(&s, list, 1, 200);
    asked_check(&b);
    assert_false(served_step(&s));
    scheduler_view(s.scheduler, &view);
    assert_int_equal(view.n_pages_used, 0);
    assert_int_equal(view.n_running + view.n_waiting + view.n_waiting_tokens, 0);
    asked_end(&a);
    asked_end(&b);
    served_close(&s);
}

/* T08: within one step, with no token more. */
static void cancelled_in_decode(void **state)
{
    struct served s;
    struct asked *list[] = {&b};
    struct answer whole[SERVED_CHOICES];

    (void)state;
    served_open(&s, &(struct served_options){.n_sequences = 6});
    asked_init(&a, 30, 6, 90);
    a.options.n_choices = 3;
    a.options.sampling.temperature = 1;
    asked_init(&b, 31, 7, 40);
    asked_submit(&a, &s);
    asked_submit(&b, &s);
    step_to_token(&s, &a, 10);
    size_t n = n_generated(&a);
    request_cancel(a.request);
    assert_true(served_step(&s));
    expect_end(&a, REQUEST_FINISH_CANCELLED);
    assert_int_equal(n_generated(&a), n);
    asked_alone(&a, whole);
    for (size_t i = 0; i < 3; i++)
        answer_begins(&a.answers[i], &whole[i]);
    served_finish(&s, list, 1, 200);
    asked_check(&b);
    asked_end(&a);
    asked_end(&b);
    served_close(&s);
}

static void cancel_at_third_token(struct asked *asked, const struct request_event *event)
{
    asked->counter += event->n_tokens;
    if (asked->counter >= 3) /* also at FINISH and at DONE: harmless */
        request_cancel(asked->request);
}

static void cancelled_by_its_own_event(void **state)
{
    struct served s;
    struct asked *list[] = {&a, &b};

    (void)state;
    served_open(&s, &(struct served_options){.n_sequences = 4});
    asked_init(&a, 30, 8, 90);
    a.on_event = cancel_at_third_token;
    a.destroy_at_done = true;
    asked_init(&b, 31, 9, 20);
    asked_submit(&a, &s);
    asked_submit(&b, &s);
    served_finish(&s, list, 2, 200);
    expect_end(&a, REQUEST_FINISH_CANCELLED);
    assert_int_equal(a.answers[0].n_ids, 3);
    asked_check(&b);
    asked_end(&b);
    /* Before it was submitted. */
    struct ferry_error err = {0};
    asked_init(&a, 30, 8, 90);
    assert_int_equal(request_create(&a.request, s.scheduler, &a.options, &err), FERRY_OK);
    request_cancel(a.request);
    assert_int_equal(scheduler_submit(s.scheduler, a.request, &err), FERRY_OK);
    assert_true(served_step(&s));
    expect_end(&a, REQUEST_FINISH_CANCELLED);
    assert_false(served_step(&s));
    asked_end(&a);
    served_close(&s);
}

/* Requests in every state: all are told, once. */
static void destroyed_in_all_states(void **state)
{
    struct served s;

    (void)state;
    served_open(&s, &(struct served_options){.step_tokens = 32, .n_sequences = 3, .n_pages = 16});
    for (size_t i = 0; i < 8; i++) {
        asked_init(&many[i], i == 2 ? 1500 : 20, i, 90);
        many[i].options.n_choices = i == 5 ? 3 : 1;
        many[i].destroy_at_done = i % 2 == 0;
    }
    asked_submit(&many[0], &s); /* held in decode */
    step_to_token(&s, &many[0], 2);
    request_hold(many[0].request, true);
    for (size_t i = 1; i < 7; i++)
        asked_submit(&many[i], &s); /* 1: decode, 2: prefill, others wait */
    step_to_token(&s, &many[1], 2);
    asked_submit(&many[7], &s); /* in the inbox */
    served_close(&s);
    for (size_t i = 0; i < 8; i++) {
        expect_end(&many[i], REQUEST_FINISH_CANCELLED);
        asked_end(&many[i]);
    }
    scheduler_destroy(NULL);
}

/* ---- hold ---- */

/* T24: the others go on, and the answer does not notice the pause. */
static void held_requests_pause(void **state)
{
    struct served s;
    struct asked *list[] = {&a, &b};

    (void)state;
    served_open(&s, &(struct served_options){0});
    asked_init(&a, 100, 10, 40);
    asked_init(&b, 120, 11, 60);
    asked_submit(&a, &s);
    asked_submit(&b, &s);
    step_to_token(&s, &a, 5);
    request_hold(a.request, true);
    size_t n = n_generated(&a);
    step_to_token(&s, &b, 40);
    assert_int_equal(n_generated(&a), n);
    served_finish(&s, list + 1, 1, 200);
    assert_false(served_step(&s)); /* nothing to do, and no busy waiting for a held one */
    request_hold(a.request, false);
    served_finish(&s, list, 1, 200);
    asked_check(&a);
    asked_check(&b);
    asked_end(&a);
    asked_end(&b);
    /* Held before its prompt, and cancelled while held. */
    asked_init(&a, 100, 12, 40);
    asked_submit(&a, &s);
    request_hold(a.request, true);
    assert_false(served_step(&s));
    assert_false(served_step(&s));
    request_cancel(a.request);
    assert_true(served_step(&s));
    expect_end(&a, REQUEST_FINISH_CANCELLED);
    asked_end(&a);
    served_close(&s);
}

/* A reader that does not read keeps no pages from those that do. */
static void held_requests_give_pages_up(void **state)
{
    struct served s;
    struct asked *list[] = {&a, &b, &c};

    (void)state;
    served_open(&s, &(struct served_options){.n_pages = 6, .context = 700});
    asked_init(&a, 500, 13, 60); /* five pages with its answer */
    asked_init(&b, 120, 14, 60); /* grows into a second page */
    asked_init(&c, 600, 15, 20);
    asked_submit(&a, &s);
    step_to_token(&s, &a, 4);
    request_hold(a.request, true);
    asked_submit(&b, &s);
    asked_submit(&c, &s);
    served_finish(&s, list + 1, 2, 500);
    assert_true(a.request != NULL && !atomic_load(&a.done));
    assert_false(served_step(&s));
    request_hold(a.request, false);
    served_finish(&s, list, 1, 500);
    assert_true(a.usage.n_preempted > 0);
    for (size_t i = 0; i < 3; i++) {
        asked_check(list[i]);
        asked_end(list[i]);
    }
    served_close(&s);
}

/* Nor a sequence, however many of them there are: who reads is served, and they lose nothing but
 * time. */
static void held_requests_give_sequences_up(void **state)
{
    struct served s;
    struct scheduler_view view;
    struct asked *readers[4], *all[7];

    (void)state;
    for (size_t n = 1; n <= 3; n++) { /* of n sequences, all */
        served_open(&s, &(struct served_options){.n_sequences = n});
        for (size_t i = 0; i < n; i++) {
            asked_init(&many[i], 100 + i, 70 + i, 60);
            many[i].options.logprobs = true;
            asked_submit(&many[i], &s);
        }
        for (size_t i = 0; i < n; i++)
            step_to_token(&s, &many[i], 4);
        for (size_t i = 0; i < n; i++)
            request_hold(many[i].request, true);
        assert_false(served_step(&s));
        scheduler_view(s.scheduler, &view);
        assert_int_equal(view.n_running, 0); /* no step is due: an alarm must not say so */
        assert_int_equal(view.n_held, n);
        assert_int_equal(view.n_waiting, 0);
        for (size_t i = 0; i < 4; i++) {
            readers[i] = &many[n + i];
            asked_init(readers[i], 50 + i, 80 + i, 10);
            asked_submit(readers[i], &s);
        }
        assert_true(served_step(&s));
        scheduler_view(s.scheduler, &view);
        assert_int_equal(view.n_running, n);
        assert_int_equal(view.n_held, n); /* with or without a sequence */
        assert_int_equal(view.n_waiting, 4 - n);
        served_finish(&s, readers, 4, 200);
        assert_false(served_step(&s));
        for (size_t i = 0; i < n; i++) {
            assert_false(atomic_load(&many[i].done));
            request_hold(many[i].request, false);
        }
        for (size_t i = 0; i < n + 4; i++)
            all[i] = &many[i];
        served_finish(&s, all, n + 4, 300);
        for (size_t i = 0; i < n + 4; i++) {
            asked_check(&many[i]);
            asked_end(&many[i]);
        }
        scheduler_view(s.scheduler, &view);
        assert_int_equal(view.n_running + view.n_held + view.n_waiting, 0);
        served_close(&s);
    }
}

/* One that does not read is not thrown out for another that does not. */
static void held_requests_do_not_compete(void **state)
{
    struct served s;
    struct asked *list[] = {&a, &b};

    (void)state;
    served_open(&s, &(struct served_options){.n_sequences = 1});
    asked_init(&a, 40, 90, 10);
    asked_init(&b, 41, 91, 10);
    asked_submit(&a, &s);
    asked_submit(&b, &s);
    step_to_token(&s, &a, 2);
    request_hold(a.request, true);
    request_hold(b.request, true);
    assert_false(served_step(&s));
    assert_int_equal(request_usage(a.request)->n_preempted, 0);
    request_hold(a.request, false);
    request_hold(b.request, false);
    served_finish(&s, list, 2, 100);
    assert_int_equal(a.usage.n_preempted, 0);
    asked_check(&a);
    asked_check(&b);
    asked_end(&a);
    asked_end(&b);
    served_close(&s);
}

/* ---- limits ---- */

static enum ferry_status try_submit(struct served *s, struct asked *asked, struct ferry_error *err)
{
    assert_int_equal(request_create(&asked->request, s->scheduler, &asked->options, err), FERRY_OK);
    return scheduler_submit(s->scheduler, asked->request, err);
}

/* T22 */
static void the_queue_is_bounded(void **state)
{
    struct served s;
    struct ferry_error err = {0};
    struct asked *list[8];
    struct scheduler_view view;

    (void)state;
    served_open(
        &s, &(struct served_options){.n_sequences = 1,
                                     .scheduler = {.max_waiting = 3, .max_waiting_tokens = 200}});
    asked_init(&b, 20, 9, 90); /* has the sequence */
    asked_submit(&b, &s);
    assert_true(served_step(&s));
    for (size_t i = 0; i < 8; i++) {
        asked_init(&many[i], 50, i, 4);
        list[i] = &many[i];
    }
    many[3].options.n_ids = 120; /* too many tokens */
    many[4].options.n_choices = 2;
    for (size_t i = 0; i < 2; i++)
        assert_int_equal(try_submit(&s, &many[i], &err), FERRY_OK);
    assert_int_equal(try_submit(&s, &many[3], &err), FERRY_AGAIN);
    assert_non_null(strstr(err.msg, "2 answers with 100 prompt tokens"));
    assert_non_null(strstr(err.msg, "3 and 200"));
    assert_int_equal(try_submit(&s, &many[4], &err), FERRY_AGAIN); /* two answers, one place */
    assert_int_equal(try_submit(&s, &many[2], &err), FERRY_OK);
    assert_int_equal(try_submit(&s, &many[5], &err), FERRY_AGAIN);
    assert_non_null(strstr(err.msg, "3 answers"));
    scheduler_view(s.scheduler, &view);
    assert_int_equal(view.n_waiting, 3);
    assert_int_equal(view.n_waiting_tokens, 150);
    request_cancel(b.request);
    assert_true(served_step(&s)); /* one has a sequence now, and its place in the queue is free */
    assert_int_equal(scheduler_submit(s.scheduler, many[5].request, &err), FERRY_OK);
    assert_int_equal(try_submit(&s, &many[6], &err), FERRY_AGAIN);
    served_finish(&s, list, 3, 200);
    served_finish(&s, list + 5, 1, 200);
    /* Empty again: what is larger than the limit is taken alone. */
    assert_int_equal(scheduler_submit(s.scheduler, many[4].request, &err), FERRY_OK);
    served_finish(&s, list + 4, 1, 200);
    many[7].options.n_ids = 300;
    memcpy(many[7].ids, many[0].ids, 50 * sizeof many[0].ids[0]);
    assert_int_equal(try_submit(&s, &many[7], &err), FERRY_OK);
    served_finish(&s, list + 7, 1, 200);
    for (size_t i = 0; i < 8; i++)
        asked_end(&many[i]); /* those that were refused are still the caller's */
    asked_end(&b);
    scheduler_view(s.scheduler, &view);
    assert_int_equal(view.n_waiting + view.n_waiting_tokens, 0);
    served_close(&s);
}

/* Nobody is sent away while sequences are free, however many come between two steps. */
static void free_sequences_are_no_queue(void **state)
{
    enum { SLOTS = 6, WAITING = 2, ALL = SLOTS + WAITING };
    struct served s;
    struct ferry_error err = {0};
    struct asked *list[ALL];
    struct scheduler_view view;

    (void)state;
    served_open(&s, &(struct served_options){
                        .n_sequences = SLOTS,
                        .scheduler = {.max_waiting = WAITING, .max_waiting_tokens = 100}});
    for (int round = 0; round < 2; round++) { /* slots that are free again count again */
        for (size_t i = 0; i < ALL; i++) {
            asked_init(&many[i], i < SLOTS ? 80 : 10, i, 6);
            list[i] = &many[i];
            if (i == SLOTS) /* no room for so many tokens that have to wait */
                assert_true(served_step(&s));
            assert_int_equal(try_submit(&s, &many[i], &err), FERRY_OK);
        }
        asked_init(&a, 10, 9, 6);
        assert_int_equal(try_submit(&s, &a, &err), FERRY_AGAIN);
        asked_end(&a);
        scheduler_view(s.scheduler, &view);
        assert_int_equal(view.n_running, SLOTS);
        assert_int_equal(view.n_waiting, WAITING);
        served_finish(&s, list, ALL, 300);
        for (size_t i = 0; i < ALL; i++)
            asked_end(&many[i]);
    }
    /* All between two steps: those that will start, and as many as may wait. */
    for (size_t i = 0; i < ALL; i++) {
        asked_init(&many[i], 5, i, 6);
        assert_int_equal(try_submit(&s, &many[i], &err), FERRY_OK);
    }
    asked_init(&a, 5, 9, 6);
    assert_int_equal(try_submit(&s, &a, &err), FERRY_AGAIN);
    asked_end(&a);
    served_finish(&s, list, ALL, 300);
    for (size_t i = 0; i < ALL; i++)
        asked_end(&many[i]);
    served_close(&s);
}

/* T23: what was admitted once is neither refused nor timed out when it has to wait again, and does
 * not take a place in the queue from others. */
static void preempted_work_is_exempt(void **state)
{
    struct served s;
    struct asked *list[2] = {&many[0], &many[1]};
    struct ferry_error err = {0};
    struct scheduler_view view;
    size_t steps = 0;

    (void)state;
    served_open(
        &s, &(struct served_options){
                .n_sequences = 3, .n_pages = 5, .context = 640, .scheduler = {.max_waiting = 2}});
    uint64_t soon = clock_now_ns() + UINT64_C(3600000000000);
    for (size_t i = 0; i < 2; i++) { /* two pages each, then three: one too many */
        asked_init(&many[i], 200, 20 + i, 90);
        many[i].options.start_by_ns = soon;
        asked_submit(&many[i], &s);
        assert_true(served_step(&s));
    }
    asked_init(&b, 20, 29, 4); /* two running ones leave no page for it */
    asked_submit(&b, &s);
    while (request_usage(many[1].request)->n_preempted == 0) {
        assert_true(steps++ < 500);
        assert_true(served_step(&s));
    }
    scheduler_view(s.scheduler, &view);
    assert_int_equal(view.n_waiting, 2); /* both wait, and one of them is exempt from the limit */
    assert_int_equal(view.n_waiting_tokens, 20);
    asked_init(&a, 10, 30, 4);
    assert_int_equal(try_submit(&s, &a, &err), FERRY_OK); /* the last place */
    served_finish(&s, list, 2, 1000);
    list[0] = &a;
    list[1] = &b;
    served_finish(&s, list, 2, 200);
    /* It came back before those that had come after it, and waited for the first one's pages. */
    assert_true(b.usage.start_ns >= many[0].usage.done_ns);
    assert_true(a.usage.start_ns >= b.usage.start_ns);
    for (size_t i = 0; i < 2; i++) {
        expect_end(&many[i], REQUEST_FINISH_LENGTH);
        asked_check(&many[i]);
        asked_end(&many[i]);
    }
    asked_end(&a);
    asked_end(&b);
    served_close(&s);
}

static void late_starts_time_out(void **state)
{
    struct served s;
    struct asked *list[] = {&a, &c};

    (void)state;
    served_open(&s, &(struct served_options){.n_sequences = 1, .step_tokens = 16});
    asked_init(&a, 40, 31, 10);
    a.options.n_choices = 2; /* the second one waits for the first, but the request has started */
    asked_init(&b, 40, 32, 10);
    asked_init(&c, 40, 33, 10);
    a.options.start_by_ns = clock_now_ns() + UINT64_C(50000000);
    asked_submit(&a, &s);
    assert_true(served_step(&s));
    assert_true(request_usage(a.request)->start_ns > 0);
    b.options.start_by_ns = clock_now_ns() + 1;
    c.options.start_by_ns = UINT64_MAX;
    asked_submit(&b, &s);
    asked_submit(&c, &s);
    while (clock_now_ns() <= a.options.start_by_ns)
        ;
    assert_true(served_step(&s));
    assert_true(atomic_load(&b.done));
    expect_end(&b, REQUEST_FINISH_ERROR);
    assert_int_equal(b.answers[0].error, FERRY_ERR_TIMEOUT);
    assert_non_null(strstr(b.answers[0].message, "waited"));
    served_finish(&s, list, 2, 200);
    asked_check(&a);
    asked_check(&c);
    asked_end(&a);
    asked_end(&b);
    asked_end(&c);
    served_close(&s);
}

/* T30 and every other request that cannot be served: said at once, with numbers. */
static void impossible_requests_are_refused(void **state)
{
    struct served s;
    struct ferry_error err = {0};
    struct request *r = NULL;

    (void)state;
    /* Two pages are less than the context: they are the limit. */
    served_open(&s, &(struct served_options){.n_pages = 2, .context = 1000});
    asked_init(&a, 257, 34, 4);
    assert_int_equal(request_create(&r, s.scheduler, &a.options, &err), FERRY_ERR_CONTEXT_FULL);
    assert_non_null(strstr(err.msg, "257"));
    assert_non_null(strstr(err.msg, "256"));
    assert_null(r);
    asked_init(&a, 0, 34, 4);
    assert_int_equal(request_create(&r, s.scheduler, &a.options, &err), FERRY_ERR_ARG);
    asked_init(&a, 3, 34, 4);
    a.ids[2] = SERVED_VOCAB;
    assert_int_equal(request_create(&r, s.scheduler, &a.options, &err), FERRY_ERR_ARG);
    assert_non_null(strstr(err.msg, "280 at position 2"));
    asked_init(&a, 3, 34, 4);
    a.options.n_choices = 0;
    assert_int_equal(request_create(&r, s.scheduler, &a.options, &err), FERRY_ERR_ARG);
    asked_init(&a, 3, 34, 4);
    /* Scored by the model, unknown to the tokenizer: no bias makes it an answer. */
    a.bias = (struct logit_bias){SERVED_VOCAB - 1, 1};
    a.options.sampling.biases = &a.bias;
    a.options.sampling.n_biases = 1;
    assert_int_equal(request_create(&r, s.scheduler, &a.options, &err), FERRY_ERR_ARG);
    assert_null(r);
    served_close(&s);
}

/* The context is the end of an answer, not an error; and no length is too absurd. */
static void answers_end_at_the_context(void **state)
{
    static const size_t PROMPT[] = {256, 255, 250, 200};
    struct served s;
    struct asked *list[] = {&a};

    (void)state;
    served_open(&s, &(struct served_options){.n_pages = 2, .context = 1000});
    for (size_t i = 0; i < COUNT_OF(PROMPT); i++) {
        asked_init(&a, PROMPT[i], 35 + i, SIZE_MAX - i);
        asked_submit(&a, &s);
        served_finish(&s, list, 1, 200);
        expect_end(&a, REQUEST_FINISH_LENGTH);
        assert_int_equal(a.answers[0].n_ids, 257 - PROMPT[i]); /* the last one is not fed */
        assert_int_equal(a.usage.completion_tokens, 257 - PROMPT[i]);
        asked_end(&a);
    }
    asked_init(&a, 20, 40, 1);
    asked_submit(&a, &s);
    served_finish(&s, list, 1, 5);
    expect_end(&a, REQUEST_FINISH_LENGTH);
    assert_int_equal(a.answers[0].n_ids, 1);
    asked_check(&a);
    asked_end(&a);
    served_close(&s);
}

/* ---- fairness ---- */

/* T15, T16: few slots, a pool full of cached prefixes, many requests: all end. */
static void many_requests_few_pages(void **state)
{
    struct served s;
    struct asked *list[64];

    (void)state;
    served_open(&s, &(struct served_options){.n_sequences = 2, .n_pages = 6, .context = 700});
    for (int round = 0; round < 2; round++) { /* in the second one the pool is full of prefixes */
        for (size_t i = 0; i < 64; i++) {
            asked_init(&many[i], 1 + i * 67 % 640, i, 1 + i % 7);
            many[i].destroy_at_done = true;
            list[i] = &many[i];
            asked_submit(&many[i], &s);
        }
        served_finish(&s, list, 64, 3000);
        assert_int_equal(engine_n_pages_available(s.engine), 6);
        for (size_t i = 0; i < 64; i += 7)
            asked_check(&many[i]);
    }
    served_close(&s);
}

/* Steps of one token: one sequence at a time, prompts token by token. */
static void smallest_steps(void **state)
{
    struct served s;
    struct asked *list[] = {&a, &b, &c};

    (void)state;
    served_open(&s, &(struct served_options){.step_tokens = 1});
    for (size_t i = 0; i < 3; i++) {
        asked_init(list[i], 130 + i, 47 + i, 5);
        list[i]->options.n_choices = i + 1;
        list[i]->options.sampling.temperature = 1;
        asked_submit(list[i], &s);
    }
    served_finish(&s, list, 3, 2000);
    for (size_t i = 0; i < 3; i++) {
        asked_check(list[i]);
        asked_end(list[i]);
    }
    served_close(&s);
}

/* The only page holds a prefix that begins like the request and cannot be copied anywhere: it is
 * given up. */
static void the_last_page_is_given_up(void **state)
{
    struct served s;
    struct asked *list[] = {&a, &b};

    (void)state;
    served_open(&s, &(struct served_options){.n_pages = 1, .context = 128});
    asked_init(&a, 127, 45, 2);
    asked_submit(&a, &s);
    served_finish(&s, list, 1, 20);
    asked_init(&b, 100, 46, 10);
    memcpy(b.ids, a.ids, 50 * sizeof a.ids[0]);
    b.ids[50] = (a.ids[50] + 1) % 256;
    asked_submit(&b, &s);
    served_finish(&s, list + 1, 1, 30);
    expect_end(&b, REQUEST_FINISH_LENGTH);
    assert_int_equal(b.usage.cached_tokens, 50);
    asked_check(&b);
    asked_end(&a);
    asked_end(&b);
    served_close(&s);
}

/* T17: a long prompt takes no step from the others' answers. */
static void long_prompts_stop_nobody(void **state)
{
    struct served s;
    size_t n_steps = 0;

    (void)state;
    served_open(&s, &(struct served_options){.n_sequences = 5, .step_tokens = 64});
    for (size_t i = 0; i < 3; i++) {
        asked_init(&many[i], 30 + i, i, 90);
        asked_submit(&many[i], &s);
    }
    for (size_t i = 0; i < 3; i++)
        step_to_token(&s, &many[i], 2);
    asked_init(&a, 2000, 41, 2);
    asked_submit(&a, &s);
    for (; n_generated(&a) == 0; n_steps++) {
        size_t before[3];
        for (size_t i = 0; i < 3; i++)
            before[i] = n_generated(&many[i]);
        assert_true(served_step(&s));
        for (size_t i = 0; i < 3; i++) {
            if (!atomic_load(&many[i].done))
                assert_int_equal(n_generated(&many[i]), before[i] + 1);
        }
    }
    assert_true(n_steps >= 2000 / 64);
    assert_false(atomic_load(&many[0].done)); /* it was there all the time */
    /* A short prompt does not wait for the end of a long one. */
    asked_init(&b, 2000, 42, 2);
    asked_init(&c, 20, 43, 2);
    asked_submit(&b, &s);
    asked_submit(&c, &s);
    step_to_token(&s, &c, 1);
    assert_int_equal(n_generated(&b), 0);
    served_close(&s);
    for (size_t i = 0; i < 3; i++)
        asked_end(&many[i]);
    asked_end(&a);
    asked_end(&b);
    asked_end(&c);
}

/* Small ones arrive as fast as they end; a large one among them, and one whose pages are taken
 * away, end nevertheless. */
static void nobody_waits_for_ever(void **state)
{
    struct served s;
    uint64_t seed = 0;
    size_t steps = 0;

    (void)state;
    served_open(&s, &(struct served_options){.n_sequences = 4, .n_pages = 8, .context = 1024});
    for (size_t i = 0; i < 8; i++) {
        asked_init(&many[i], 100 + 20 * i, seed++, 20);
        asked_submit(&many[i], &s);
    }
    asked_init(&a, 900, 44, 60); /* all pages but one, in the end all */
    asked_submit(&a, &s);
    while (!atomic_load(&a.done)) {
        assert_true(steps++ < 1000);
        for (size_t i = 0; i < 8; i++) {
            if (!atomic_load(&many[i].done))
                continue;
            asked_end(&many[i]);
            asked_init(&many[i], 100 + 20 * i, seed++, 20);
            asked_submit(&many[i], &s);
        }
        assert_true(served_step(&s));
    }
    asked_check(&a);
    asked_end(&a);
    served_close(&s);
    for (size_t i = 0; i < 8; i++)
        asked_end(&many[i]);
}

/* ---- failures ---- */

/* T45: a number that is not finite ends the request that has it, with an error; batch mates get
 * their answers. */
static void nonfinite_is_one_requests(void **state)
{
    struct tiny_options tiny = tiny_defaults("qwen3_moe");
    struct served s, clean;
    struct asked *list[3] = {&many[0], &many[1], &many[2]};
    struct answer want[3];
    static char folder[200];
    const int32_t poisoned = 150;

    (void)state;
    tiny.n_vocab = SERVED_VOCAB;
    tiny.poison = "model.embed_tokens.weight";
    tiny.poisoned_item = (size_t)poisoned * tiny.hidden + 3;
    (void)snprintf(folder, sizeof folder, "%s", tiny_write(&tiny));
    for (int round = 0; round < 2; round++) { /* the second one batched */
        served_open(&clean, &(struct served_options){.folder = folder, .n_sequences = 4});
        for (size_t i = 0; i < 3; i++) {
            asked_init(&many[i], 30 + 40 * i, 50 + i, 20);
            for (size_t k = 0; k < many[i].options.n_ids; k++)
                many[i].ids[k] %= poisoned;
            many[i].bias = (struct logit_bias){poisoned, SAMPLER_BIAS_BAN};
            many[i].options.sampling.biases = &many[i].bias;
            many[i].options.sampling.n_biases = 1;
            asked_submit(&many[i], &clean);
            if (round == 0)
                served_finish(&clean, list + i, 1, 100);
        }
        if (round == 1) {
            asked_init(&a, 200, 60, 20);
            for (size_t k = 0; k < 200; k++)
                a.ids[k] %= poisoned;
            memcpy(a.ids, many[2].ids, 100 * sizeof a.ids[0]);
            a.ids[170] = poisoned;
            a.options.n_choices = 2;
            step_to_token(&clean, &many[2], 3);
            asked_submit(&a, &clean);
            served_finish(&clean, list, 3, 200);
            struct asked *bad[] = {&a};
            served_finish(&clean, bad, 1, 200);
            expect_end(&a, REQUEST_FINISH_ERROR);
            for (size_t i = 0; i < 2; i++) {
                assert_int_equal(a.answers[i].error, FERRY_ERR_NONFINITE);
                assert_int_equal(a.answers[i].n_ids, 0);
                assert_true(a.answers[i].message[0] != 0);
            }
            asked_end(&a);
        }
        for (size_t i = 0; i < 3; i++) {
            expect_end(&many[i], REQUEST_FINISH_LENGTH);
            if (round == 0)
                want[i] = many[i].answers[0];
            else
                assert_memory_equal(&many[i].answers[0], &want[i], sizeof want[i]);
            asked_end(&many[i]);
        }
        served_close(&clean);
    }
    /* Nobody asked for details: the event has them all the same. */
    served_open(&s, &(struct served_options){.folder = folder});
    asked_init(&a, 5, 61, 3);
    a.ids[4] = poisoned;
    asked_submit(&a, &s);
    bool idle;
    assert_int_equal(scheduler_step(s.scheduler, &idle, NULL), FERRY_OK);
    expect_end(&a, REQUEST_FINISH_ERROR);
    assert_int_equal(a.answers[0].error, FERRY_ERR_NONFINITE);
    /* What others' keys did to the cache before is not in this one's words. */
    char message[sizeof a.answers[0].message];
    memcpy(message, a.answers[0].message, sizeof message);
    asked_end(&a);
    ((struct model_counters *)(uintptr_t)model_counters(s.model))->kv_overflows += 7;
    asked_init(&a, 5, 61, 3);
    a.ids[4] = poisoned;
    asked_submit(&a, &s);
    assert_true(served_step(&s));
    expect_end(&a, REQUEST_FINISH_ERROR);
    assert_string_equal(a.answers[0].message, message);
    asked_end(&a);
    served_close(&s);
    tiny_remove(folder);
}

static void decoding_does_not_allocate(void **state)
{
    struct served s;
    struct asked *list[8];

    (void)state;
    served_open(&s, &(struct served_options){.n_sequences = 8, .n_threads = 2});
    for (size_t i = 0; i < 8; i++) {
        asked_init(&many[i], 100 + i, i, 90); /* all cross the end of a page */
        many[i].options.logprobs = i % 2 == 0;
        many[i].options.n_top_logprobs = 5;
        many[i].options.sampling.temperature = (float)(i % 3);
        many[i].options.sampling.frequency_penalty = 0.5f;
        list[i] = &many[i];
        asked_submit(&many[i], &s);
    }
    for (size_t i = 0; i < 8; i++)
        step_to_token(&s, &many[i], 1);
    uint64_t calls = mem_count_calls();
    served_finish(&s, list, 8, 100);
    assert_int_equal(mem_count_calls(), calls);
    for (size_t i = 0; i < 8; i++) {
        asked_check(&many[i]);
        asked_end(&many[i]);
    }
    served_close(&s);
}

/* Every allocation from create to the last step fails once: a clean status, and another request
 * does not notice. */
static void out_of_memory_is_a_status(void **state)
{
    static const char *const STOPS[] = {"never in this answer"};
    struct served s;
    struct answer want[SERVED_CHOICES];
    struct asked *list[] = {&b};

    (void)state;
    asked_init(&b, 60, 63, 8);
    asked_alone(&b, want);
    served_open(&s, &(struct served_options){0});
    for (uint64_t n = 1;; n++) {
        struct ferry_error err = {0};
        asked_init(&b, 60, 63, 8);
        asked_submit(&b, &s);
        assert_true(served_step(&s));
        asked_init(&a, 50, 62, 6);
        a.options.stops = STOPS;
        a.options.n_stops = 1;
        a.options.logprobs = true;
        mem_fail_after(n);
        enum ferry_status st = request_create(&a.request, s.scheduler, &a.options, &err);
        if (st == FERRY_OK)
            st = scheduler_submit(s.scheduler, a.request, &err);
        for (int i = 0; i < 12; i++)
            (void)served_step(&s);
        mem_fail_after(0);
        served_finish(&s, list, 1, 50);
        assert_memory_equal(&b.answers[0], &want[0], sizeof want[0]);
        asked_end(&b);
        if (st == FERRY_OK) {
            assert_true(n > 6);
            asked_check(&a);
            asked_end(&a);
            break;
        }
        assert_int_equal(st, FERRY_ERR_NOMEM);
        assert_null(a.request);
    }
    served_close(&s);
    for (uint64_t n = 1;; n++) { /* create itself */
        struct ferry_error err = {0};
        struct scheduler_options options = {0};
        struct scheduler *scheduler = NULL;
        if (n == 1)
            served_open(&s, &(struct served_options){0});
        mem_fail_after(n);
        enum ferry_status st =
            scheduler_create(&scheduler, s.engine, served_tokenizer(), &options, &err);
        mem_fail_after(0);
        scheduler_destroy(scheduler);
        if (st == FERRY_OK)
            break;
        assert_int_equal(st, FERRY_ERR_NOMEM);
        assert_null(scheduler);
    }
    served_close(&s);
}

/* n answers of one prompt: computed once, each with its own random numbers. */
static void choices_share_their_prompt(void **state)
{
    struct served s;
    struct asked *list[] = {&a};

    (void)state;
    served_open(&s, &(struct served_options){.step_tokens = 64});
    asked_init(&a, 256, 64, 20);
    a.options.n_choices = 3;
    a.options.sampling.temperature = 1.5f;
    asked_submit(&a, &s);
    served_finish(&s, list, 1, 100);
    /* 256 tokens once; the others feed what is behind the last whole page that they may share. */
    assert_true(model_counters(s.model)->tokens <= 256 + 2 * 128 + 3 * 20);
    assert_int_equal(a.usage.completion_tokens, 60);
    assert_int_equal(a.usage.prompt_tokens, 256);
    assert_memory_not_equal(a.answers[0].ids, a.answers[1].ids, 20 * sizeof a.answers[0].ids[0]);
    asked_check(&a);
    asked_end(&a);
    served_close(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(cancelled_while_waiting),
        cmocka_unit_test(cancelled_in_prefill),
        cmocka_unit_test(cancelled_in_decode),
        cmocka_unit_test(cancelled_by_its_own_event),
        cmocka_unit_test(destroyed_in_all_states),
        cmocka_unit_test(held_requests_pause),
        cmocka_unit_test(held_requests_give_pages_up),
        cmocka_unit_test(held_requests_give_sequences_up),
        cmocka_unit_test(held_requests_do_not_compete),
        cmocka_unit_test(the_queue_is_bounded),
        cmocka_unit_test(free_sequences_are_no_queue),
        cmocka_unit_test(preempted_work_is_exempt),
        cmocka_unit_test(late_starts_time_out),
        cmocka_unit_test(impossible_requests_are_refused),
        cmocka_unit_test(answers_end_at_the_context),
        cmocka_unit_test(many_requests_few_pages),
        cmocka_unit_test(smallest_steps),
        cmocka_unit_test(the_last_page_is_given_up),
        cmocka_unit_test(long_prompts_stop_nobody),
        cmocka_unit_test(nobody_waits_for_ever),
        cmocka_unit_test(nonfinite_is_one_requests),
        cmocka_unit_test(decoding_does_not_allocate),
        cmocka_unit_test(out_of_memory_is_a_status),
        cmocka_unit_test(choices_share_their_prompt),
    };
    return cmocka_run_group_tests(tests, served_setup, served_teardown);
}
