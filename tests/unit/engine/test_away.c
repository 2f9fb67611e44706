/* Answers that other ranks compute: ranks as threads over the transport loop, each with a model
 * that holds its share of the experts. Whatever happens to a rank, the answers are those that the
 * request gets alone. */
#include "tests/unit/engine/served.h"

#include "engine/away_wire.h"
#include "tests/unit/fabric/ranks.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum { N_RANKS = 3, N_ASKED = 8, EXPERTS = 4, LAYERS = 2 };

struct rank {
    struct served served;
    pthread_t thread;
    atomic_bool stop;
    bool runs;
};

static struct ranks group;
static struct placement *placement;
static struct rank crew[N_RANKS];
static struct asked *asked[N_ASKED];
static atomic_uint heard;    /* seats that have told the front door about themselves */
static size_t small_context; /* of all ranks but the front door; 0: as usual */

static void on_message(void *arg, int seat, uint32_t incarnation, const void *data, size_t n_bytes)
{
    struct rank *rank = arg;

    scheduler_peer_message(rank->served.scheduler, seat, incarnation, data, n_bytes);
    if (rank == &crew[0])
        (void)atomic_fetch_or(&heard, 1u << seat);
}

/* The other ranks' owners. A rank that is lost gets errors, and waits for better times. */
static void *rank_main(void *arg)
{
    struct rank *rank = arg;
    bool idle;

    while (!atomic_load(&rank->stop)) {
        if (scheduler_step(rank->served.scheduler, &idle, NULL) != FERRY_OK || idle)
            scheduler_wait(rank->served.scheduler, 2000000);
    }
    return NULL;
}

static void start(void)
{
    struct ferry_error err = {0};

    ranks_open(&group, N_RANKS);
    atomic_store(&heard, 0);
    assert_int_equal(placement_contiguous(&placement, LAYERS, EXPERTS, N_RANKS, 1, &err), FERRY_OK);
    for (int i = 0; i < N_RANKS; i++) {
        struct served_options options = {.n_sequences = 4, .placement = placement};
        options.context = i == 0 ? 0 : small_context;
        ranks_start(&group, i, i == 0 ? -1 : 0);
        options.fabric = group.fabrics[i];
        served_open(&crew[i].served, &options);
        fabric_on_message(group.fabrics[i], FABRIC_TOPIC_ENGINE, on_message, &crew[i]);
        fabric_ready(group.fabrics[i]);
    }
    ranks_wait_live(&group, (1 << N_RANKS) - 1, (1 << N_RANKS) - 1);
    for (int i = 1; i < N_RANKS; i++) {
        atomic_store(&crew[i].stop, false);
        assert_int_equal(pthread_create(&crew[i].thread, NULL, rank_main, &crew[i]), 0);
    }
    /* Or a front door that is faster than their first steps would keep all answers. */
    uint64_t until = fabric_now_ns(group.fabrics[0]) + UINT64_C(20000000000);
    while (atomic_load(&heard) != (1u << N_RANKS) - 2) {
        uint32_t seen = fabric_rings(group.fabrics[0]);
        assert_true(fabric_now_ns(group.fabrics[0]) < until);
        if (atomic_load(&heard) != (1u << N_RANKS) - 2)
            fabric_sleep(group.fabrics[0], seen, 1000000);
    }
}

static void end(void)
{
    for (int i = 1; i < N_RANKS; i++) {
        atomic_store(&crew[i].stop, true);
        fabric_wake(group.fabrics[i]);
        (void)pthread_join(crew[i].thread, NULL);
    }
    /* Messages come on the fabrics' threads: those end before who takes them. The models' exchanges
     * are not used any more. */
    ranks_close(&group);
    for (int i = 0; i < N_RANKS; i++)
        served_close(&crew[i].served);
    placement_destroy(placement);
}

static uint64_t steps_of(int rank)
{
    struct scheduler_view view;

    scheduler_view(crew[rank].served.scheduler, &view);
    return view.n_steps;
}

static bool all_done(void)
{
    for (size_t i = 0; i < N_ASKED; i++) {
        if (!atomic_load(&asked[i]->done))
            return false;
    }
    return true;
}

/* Runs the front door until all are done; `fault` after n_before steps of rank 1. */
static void run(void (*fault)(void), uint64_t n_before)
{
    uint64_t until = fabric_now_ns(group.fabrics[0]) + UINT64_C(60000000000);
    bool idle;

    while (!all_done()) {
        assert_int_equal(scheduler_step(crew[0].served.scheduler, &idle, NULL), FERRY_OK);
        if (fault != NULL && steps_of(1) >= n_before) {
            fault();
            fault = NULL;
        }
        if (idle)
            scheduler_wait(crew[0].served.scheduler, 1000000);
        assert_true(fabric_now_ns(group.fabrics[0]) < until);
    }
}

/* Greedy and drawn, with log-probabilities, stop strings, penalties and two choices. */
static void ask(uint64_t seed, size_t max_tokens)
{
    static const char *const STOPS[] = {"ab", "e"};

    for (size_t i = 0; i < N_ASKED; i++) {
        asked[i] = calloc(1, sizeof *asked[i]);
        asked_init(asked[i], 5 + i * 9, seed + i, max_tokens);
        asked[i]->options.sampling.temperature = i % 2 == 0 ? 0.0f : 1.1f;
        asked[i]->options.sampling.seed = seed * 31 + i;
        asked[i]->options.logprobs = i % 3 == 0;
        asked[i]->options.n_top_logprobs = i % 3 == 0 ? 4 : 0;
        asked[i]->options.n_choices = i % 4 == 1 ? 2 : 1;
        if (i % 4 == 2) {
            asked[i]->options.stops = STOPS;
            asked[i]->options.n_stops = 2;
        }
        asked[i]->options.sampling.frequency_penalty = i % 4 == 3 ? 0.5f : 0.0f;
    }
    for (size_t i = 0; i < N_ASKED; i++)
        asked_submit(asked[i], &crew[0].served);
}

static void check_and_end(void)
{
    for (size_t i = 0; i < N_ASKED; i++) {
        asked_check(asked[i]);
        asked_end(asked[i]);
        free(asked[i]);
    }
}

static void spread_over_ranks(void **state)
{
    (void)state;
    start();
    for (uint64_t round = 0; round < 3; round++) {
        ask(round * 100, 40);
        run(NULL, 0);
        check_and_end();
    }
    for (int i = 0; i < N_RANKS; i++)
        assert_true(steps_of(i) > 0);
    end();
}

/* A host whose context is smaller than an answer computes what it can. */
static void a_small_host_passes_on(void **state)
{
    (void)state;
    small_context = 48;
    start();
    small_context = 0;
    ask(17, 70);
    run(NULL, 0);
    check_and_end();
    assert_true(steps_of(1) > 0);
    end();
}

static void kill_rank_1(void)
{
    char name[32];

    ranks_name(&group, 1, name);
    fabric_hub_kill(group.hub, name);
}

static void a_lost_rank_changes_nothing(void **state)
{
    (void)state;
    for (uint64_t n = 1; n < 40; n += 13) {
        start();
        ask(n, 60);
        run(kill_rank_1, n);
        check_and_end();
        end();
    }
}

static void cut_rank_2(void)
{
    ranks_cut(&group, 2, true);
}

static void a_silent_rank_changes_nothing(void **state)
{
    (void)state;
    start();
    ask(5, 60);
    run(cut_rank_2, 3);
    check_and_end();
    ranks_cut(&group, 2, false);
    end();
}

static void cancel_half(void)
{
    for (size_t i = 0; i < N_ASKED; i += 2)
        request_cancel(asked[i]->request);
}

static void who_leaves_is_forgotten_everywhere(void **state)
{
    (void)state;
    start();
    ask(9, 80);
    run(cancel_half, 4);
    for (size_t i = 0; i < N_ASKED; i++) {
        if (i % 2 == 1)
            asked_check(asked[i]);
        asked_end(asked[i]);
        free(asked[i]);
    }
    /* Nothing is left that anybody computes. */
    uint64_t until = fabric_now_ns(group.fabrics[0]) + UINT64_C(10000000000);
    for (int i = 1; i < N_RANKS; i++) {
        struct scheduler_view view;
        do {
            (void)usleep(1000);
            scheduler_view(crew[i].served.scheduler, &view);
            assert_true(fabric_now_ns(group.fabrics[0]) < until);
        } while (view.n_running + view.n_waiting > 0);
    }
    end();
}

/* Whatever a peer sends: no answer of somebody else's changes, nothing is read out of place. */
static void nonsense_of_a_peer(void **state)
{
    uint32_t seed = 77;

    (void)state;
    start();
    ask(3, 60);
    for (int i = 0; i < 3000; i++) {
        unsigned char bytes[400];
        size_t n = 1;
        for (size_t b = 0; b < sizeof bytes; b++) {
            bytes[b] = (unsigned char)(unit_draw(&seed) >> 16);
            n = 1 + (seed >> 8) % sizeof bytes;
        }
        bytes[0] = 1; /* version, and a type that there is */
        bytes[1] = bytes[2] = bytes[3] = bytes[5] = bytes[6] = bytes[7] = 0;
        bytes[4] = (unsigned char)((unsigned)i % 8);
        (void)fabric_send(group.fabrics[1], 0, FABRIC_TOPIC_ENGINE, bytes, n);
        if (i % 16 == 0) {
            bool idle;
            assert_int_equal(scheduler_step(crew[0].served.scheduler, &idle, NULL), FERRY_OK);
        }
    }
    run(NULL, 0);
    check_and_end();
    end();
}

static uint32_t guess; /* how long an answer is with its prompt */

/* The next token of every answer of that length, as if it came from `seat`. One of another length
 * would only call the answer back. */
static void say_as(int seat, uint32_t incarnation, uint32_t front)
{
    for (uint32_t id = 1; id <= 200; id++) {
        unsigned char bytes[AWAY_MESSAGE_MAX];
        struct away_message m = {.type = AWAY_TOKEN, .id = (uint64_t)front << 32 | id};
        size_t none;
        m.token = (struct away_token){.n_ids = guess, .token = 7, .has_logprobs = 1};
        size_t n = away_wire_write(&m, bytes, &none);
        scheduler_peer_message(crew[0].served.scheduler, seat, incarnation, bytes, n);
    }
}

/* A rank that computes nothing here, hosts in another life, and hosts that answer an earlier life
 * of this seat. */
static void strangers_speak(void)
{
    struct fabric_view view;

    fabric_view(group.fabrics[0], &view);
    say_as(0, view.seats[0].incarnation, view.seats[0].incarnation);
    for (int host = 1; host < N_RANKS; host++) {
        say_as(host, view.seats[host].incarnation + 1, view.seats[0].incarnation);
        say_as(host, view.seats[host].incarnation, view.seats[0].incarnation - 1);
    }
}

static void only_the_host_of_an_answer_is_heard(void **state)
{
    (void)state;
    start();
    for (uint32_t i = 0; i < N_ASKED; i++) {
        guess = 5 + i * 9; /* its prompt: nothing has been answered after the first step */
        ask(11 + i, 20);
        run(strangers_speak, 0);
        check_and_end();
    }
    assert_true(steps_of(1) > 0 && steps_of(2) > 0);
    end();
}

/* A rank that had no room for all ids of an answer begins others: halves must not pile up until the
 * host has no place for anybody's. */
static void halves_of_answers_do_not_pile_up(void **state)
{
    static const int32_t IDS[4] = {1, 2, 3, 4};
    unsigned char bytes[AWAY_MESSAGE_MAX];

    (void)state;
    start();
    for (uint64_t i = 0; i < 5000; i++) {
        struct away_message m = {.type = AWAY_START, .id = UINT64_C(1) << 40 | i};
        size_t n_ids;
        m.start = (struct away_start){.n_ids = 40, .max_tokens = 1};
        m.ids = IDS;
        m.n_ids = 4;
        size_t n = away_wire_write(&m, bytes, &n_ids);
        for (int host = 1; host < N_RANKS; host++)
            scheduler_peer_message(crew[host].served.scheduler, 0, 1, bytes, n);
    }
    ask(21, 40);
    run(NULL, 0);
    check_and_end();
    assert_true(steps_of(1) > 0 && steps_of(2) > 0);
    end();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(halves_of_answers_do_not_pile_up),
        cmocka_unit_test(spread_over_ranks),
        cmocka_unit_test(a_small_host_passes_on),
        cmocka_unit_test(a_lost_rank_changes_nothing),
        cmocka_unit_test(a_silent_rank_changes_nothing),
        cmocka_unit_test(who_leaves_is_forgotten_everywhere),
        cmocka_unit_test(nonsense_of_a_peer),
        cmocka_unit_test(only_the_host_of_an_answer_is_heard),
    };
    return cmocka_run_group_tests(tests, served_setup, served_teardown);
}
