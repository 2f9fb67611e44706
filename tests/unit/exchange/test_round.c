/* Rounds over several ranks: the same bits however many ranks, replicas, messages and losses there
 * are. */
#include "tests/unit/exchange/crew.h"

#include <stdlib.h>
#include <string.h>

/* Sanitizers see as much of fewer cases; 5 has no divisor with what the cases are made from. */
#ifdef FERRY_SANITIZED
enum { STRIDE = 5 };
#else
enum { STRIDE = 1 };
#endif

static void ranks_give_the_bits_of_one(void **state)
{
    (void)state;
    for (size_t n = 1; n <= RANKS; n += n == 4 ? 3 : 1) {
        for (unsigned variant = 0; variant < 24; variant += STRIDE) {
            struct crew c = {.n = n,
                             .n_rounds = 6,
                             .per_host = variant < 12 ? 0 : 2 + variant % 2,
                             .bf16 = (variant & 1) != 0,
                             .overlap = (variant & 2) != 0,
                             .seed = n * 1000 + variant,
                             .placement = placed(n, 1 + variant % 3, variant < 4 ? 0 : variant)};
            for (size_t s = 0; s < n; s++)
                c.tokens[s] = (const size_t[]){TOKENS, 1, 0, 17, 2, 0, 33}[s];
            crew_start(&c, variant % 3 == 2 ? NARROW : WIDE);
            crew_run(&c);
            assert_int_equal(atomic_load(&c.n_failed), 0);
            crew_end(&c, true);
        }
    }
}

/* ---- losses ---- */

struct fault {
    struct crew *crew;
    atomic_size_t n_commits;
    size_t at; /* commit at which it happens */
    int seat;
    bool revive;
};

static bool kill_at(void *arg, int from, int to, enum lane_channel channel,
                    struct lane_header *header, unsigned char *payload)
{
    struct fault *f = arg;
    size_t n = atomic_fetch_add(&f->n_commits, 1);

    (void)to;
    (void)channel;
    (void)header;
    (void)payload;
    if (n == f->at) {
        atomic_store(&f->crew->dead, f->seat);
        fake_kill(f->crew->group, f->seat);
    }
    return atomic_load(&f->crew->dead) != from;
}

/* A rank dies at the n-th message, whichever that is: all others get the same bits. */
static void a_death_changes_nothing(void **state)
{
    (void)state;
    for (size_t i = 0; i < 120; i += STRIDE) {
        size_t at = i / 2;
        struct crew c = {.n = 3 + at % 2,
                         .n_rounds = 5,
                         .per_host = i % 2 == 0 ? 0 : 2,
                         .overlap = at % 3 == 0,
                         .seed = at,
                         .placement = placed(3 + at % 2, 1 + at % 2, at % 5)};
        struct fault f = {.crew = &c, .at = at, .seat = (int)(at % 3)};
        for (size_t s = 0; s < c.n; s++)
            c.tokens[s] = (const size_t[]){9, 5, TOKENS, 1}[s];
        crew_start(&c, at % 4 == 1 ? NARROW : WIDE);
        fake_on_commit(c.group, kill_at, &f);
        crew_run(&c);
        assert_int_equal(atomic_load(&c.n_failed), 0);
        crew_end(&c, false);
    }
}

static bool kill_and_revive(void *arg, int from, int to, enum lane_channel channel,
                            struct lane_header *header, unsigned char *payload)
{
    struct fault *f = arg;
    size_t n = atomic_fetch_add(&f->n_commits, 1);

    (void)from;
    (void)to;
    (void)channel;
    (void)header;
    (void)payload;
    if (n % f->at ==
        f->at - 1) { /* as a rank that was stopped: it goes on with what it was doing */
        fake_kill(f->crew->group, f->seat);
        fake_revive(f->crew->group, f->seat);
    }
    return true;
}

/* A holder that was given up comes back again and again and answers what it was asked before. */
static void a_holder_that_comes_back_is_asked_again(void **state)
{
    (void)state;
    for (size_t i = 2; i < 48; i++) {
        size_t at = i / 2;
        struct crew c = {.n = 3,
                         .n_rounds = 8,
                         .per_host = i % 2 == 0 ? 0 : 2,
                         .many_losses = true,
                         .seed = at,
                         .placement = placed(3, 1, at % 4)};
        struct fault f = {.crew = &c, .at = at + 2, .seat = 2};
        c.tokens[0] = 11;
        c.tokens[1] = 3; /* seat 2 only serves: its own rounds end when it is given up */
        crew_start(&c, WIDE);
        fake_on_commit(c.group, kill_and_revive, &f);
        crew_run(&c);
        assert_int_equal(atomic_load(&c.n_failed), 0);
        crew_end(&c, false);
    }
}

struct doubt {
    struct crew *crew;
    size_t at;
    atomic_size_t n_asked;
    atomic_bool doubts, over;
};

/* Rank 1 takes rank 0 for silent at the moment at which it is asked by it, for a while. */
static bool suspect_who_asks(void *arg, int from, int to, enum lane_channel channel,
                             struct lane_header *header, unsigned char *payload)
{
    struct doubt *d = arg;

    (void)payload;
    if (from == 0 && to == 1 && channel == LANE_REQUEST && header->n_pairs > 0 &&
        atomic_fetch_add(&d->n_asked, 1) % d->at == 0) {
        fake_suspect(d->crew->group, 1, 0, true);
        atomic_store(&d->doubts, true);
    }
    return true;
}

static void *trust_again(void *arg)
{
    struct doubt *d = arg;

    while (!atomic_load(&d->over)) {
        (void)usleep(1000);
        if (!atomic_exchange(&d->doubts, false))
            continue;
        (void)usleep(4000);
        fake_suspect(d->crew->group, 1, 0, false);
    }
    return NULL;
}

/* A holder that doubts an origin for a moment owes it its sums all the same: the origin, which sees
 * the holder live all the time, would wait for them until its deadline. */
static void a_doubt_loses_no_sums(void **state)
{
    (void)state;
    for (size_t at = 1; at < 5; at++) {
        struct crew c = {.n = 3, .n_rounds = 6, .seed = at, .placement = placed(3, 1, at)};
        struct doubt d = {.crew = &c, .at = at};
        pthread_t thread;

        c.tokens[0] = 9;
        c.tokens[2] = at % 2 == 0 ? 4 : 0;
        crew_start(&c, at == 4 ? NARROW : WIDE);
        fake_on_commit(c.group, suspect_who_asks, &d);
        assert_int_equal(pthread_create(&thread, NULL, trust_again, &d), 0);
        crew_run(&c);
        atomic_store(&d.over, true);
        (void)pthread_join(thread, NULL);
        assert_true(atomic_load(&d.n_asked) > 0);
        assert_int_equal(atomic_load(&c.n_failed), 0);
        crew_end(&c, true);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ranks_give_the_bits_of_one),
        cmocka_unit_test(a_death_changes_nothing),
        cmocka_unit_test(a_holder_that_comes_back_is_asked_again),
        cmocka_unit_test(a_doubt_loses_no_sums),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
