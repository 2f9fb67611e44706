/* A holder's side: experts that cannot be had, messages that no rank may send, wrong answers. */
#include "exchange/wire.h"
#include "tests/unit/exchange/crew.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Runs the round again and again, as an engine does that waits for better times. Returns the lines
 * that it logs. */
static size_t lines_of_runs(struct exchange *x, const struct exchange_round_input *round,
                            enum ferry_status want)
{
    FILE *log = tmpfile();
    int kept = dup(STDERR_FILENO);
    size_t n_lines = 0, n_wrong = 0;
    int c;

    assert_true(log != NULL && kept >= 0 && dup2(fileno(log), STDERR_FILENO) >= 0);
    for (int i = 0; i < 50; i++)
        n_wrong += exchange_run(x, round, NULL) != want;
    assert_true(dup2(kept, STDERR_FILENO) >= 0);
    (void)close(kept);
    rewind(log);
    while ((c = fgetc(log)) != EOF)
        n_lines += c == '\n';
    (void)fclose(log);
    assert_int_equal(n_wrong, 0);
    return n_lines;
}

static void who_cannot_load_is_passed_over(void **state)
{
    struct crew c = {.n = 3, .n_rounds = 4, .seed = 9, .placement = placed(3, 1, 0)};

    (void)state;
    c.tokens[0] = 9;
    c.tokens[1] = 4;
    c.tokens[2] = 2;
    crew_start(&c, WIDE);
    c.members[1].broken = true;
    crew_run(&c);
    assert_int_equal(atomic_load(&c.n_failed), 0);
    assert_int_equal(exchange_ledger(c.members[1].x)->served, 0);
    assert_true(exchange_ledger(c.members[0].x)->redirected > 0);
    assert_true(exchange_ledger(c.members[1].x)->redirected > 0);
    crew_end(&c, false);
}

/* A sum without all its rows does not leave: somebody else is asked. */
static void who_computes_too_few_is_passed_over(void **state)
{
    struct crew c = {.n = 3, .n_rounds = 4, .seed = 10, .placement = placed(3, 1, 0)};

    (void)state;
    c.tokens[0] = 9;
    crew_start(&c, WIDE);
    c.members[1].n_short = 2;
    crew_run(&c);
    assert_int_equal(atomic_load(&c.n_failed), 0);
    assert_int_equal(c.members[1].n_short, 0);
    assert_true(exchange_ledger(c.members[0].x)->redirected > 0);
    crew_end(&c, false);
}

static void nobody_left_is_an_error(void **state)
{
    struct crew c = {.n = 2, .placement = placed(2, 1, 0)};
    struct ferry_error err = {0};

    (void)state;
    crew_start(&c, WIDE);
    c.members[0].broken = true;
    fake_kill(c.group, 1);
    make_input(c.members[0].in, 1);
    struct exchange_round_input round = round_of(c.members[0].in, 0, 0, 4);
    assert_int_equal(exchange_run(c.members[0].x, &round, &err), FERRY_ERR_NO_HOLDER);
    assert_non_null(strstr(err.msg, "no rank has one of its experts"));
    assert_int_equal(lines_of_runs(c.members[0].x, &round, FERRY_ERR_NO_HOLDER), 0); /* said */
    c.members[0].broken = false;
    assert_int_equal(lines_of_runs(c.members[0].x, &round, FERRY_OK), 0);
    c.members[0].broken = true; /* again: a line for each of its experts */
    size_t n_lines = lines_of_runs(c.members[0].x, &round, FERRY_ERR_NO_HOLDER);
    assert_true(n_lines > 0 && n_lines <= EXPERTS);
    fake_kill(c.group, 0);
    assert_int_equal(exchange_run(c.members[0].x, &round, &err), FERRY_ERR_PEER);
    assert_non_null(strstr(err.msg, "seat 0"));
    crew_end(&c, false);
}

/* ---- messages that no rank may send ---- */

struct spoil {
    uint64_t state;
    enum lane_channel channel;
    atomic_size_t n;
};

static bool spoil_some(void *arg, int from, int to, enum lane_channel channel,
                       struct lane_header *header, unsigned char *payload)
{
    struct spoil *s = arg;
    static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;

    (void)to;
    (void)pthread_mutex_lock(&mutex);
    uint64_t r = draw(&s->state);
    (void)pthread_mutex_unlock(&mutex);
    if (from != 1 || channel != s->channel)
        return true;
    atomic_fetch_add(&s->n, 1);
    switch (r % 9) {
    case 0:
        header->n_pairs += (uint32_t)(1 + (r >> 8) % 100000);
        break;
    case 1:
        header->n_rows = (uint32_t)(r >> 8);
        break;
    case 2:
        header->layer = (uint32_t)(r >> 40);
        break;
    case 3:
        header->kind = (uint16_t)(r >> 16);
        break;
    case 4:
        header->id ^= r;
        break;
    case 5:
        header->n_groups += 1;
        break;
    case 6:
        header->n_bytes /= 2;
        break;
    case 7:
        header->origin = (uint16_t)(r >> 8);
        break;
    default: /* pairs stand at the end */
        for (size_t i = 0; i < 8 && header->n_bytes >= 8; i++)
            payload[header->n_bytes - 1 - i] ^= (unsigned char)(r >> (8 * i));
        break;
    }
    return true;
}

/* Rank 1 sends nonsense. Its own rounds fail or time out; nobody else's do, and nothing is read
 * outside of a message (sanitizers look). Sums are rows of any bytes: rank 0's parts at rank 1 are
 * only spoiled in their headers. */
static void nonsense_harms_nobody_else(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < 12; seed++) {
        struct crew c = {.n = 2, .n_rounds = 1, .seed = seed, .placement = placed(2, 1, 0)};
        struct spoil s = {.state = seed, .channel = LANE_REQUEST};
        struct ferry_error err = {0};
        crew_start(&c, WIDE);
        fake_on_commit(c.group, spoil_some, &s);
        make_input(c.members[1].in, seed);
        for (size_t i = 0; i < 40; i++) { /* sends, does not wait for what comes back */
            struct exchange_round_input round = round_of(c.members[1].in, i % LAYERS, 0, 1 + i % 9);
            assert_int_equal(exchange_begin(c.members[1].x, 0, &round, &err), FERRY_OK);
            (void)exchange_serve(c.members[0].x, 0, false);
            fake_kill(c.group, 1); /* ends the round at once */
            assert_int_equal(exchange_end(c.members[1].x, 0, &err), FERRY_ERR_PEER);
            fake_revive(c.group, 1);
        }
        assert_true(atomic_load(&s.n) >= 40);
        assert_true(exchange_ledger(c.members[0].x)->bad_messages > 0);
        crew_end(&c, false);
    }
}

static bool spoil_headers(void *arg, int from, int to, enum lane_channel channel,
                          struct lane_header *header, unsigned char *payload)
{
    struct spoil *s = arg;
    size_t n = atomic_fetch_add(&s->n, 1);

    (void)payload;
    (void)to;
    if (from == 1 && channel == LANE_REPLY) {
        switch (n % 4) {
        case 0:
            header->n_bytes -= 4;
            break;
        case 1:
            header->kind ^= 0x400;
            break;
        case 2:
            header->n_pairs++;
            break;
        default:
            break;
        }
    }
    return true;
}

static void wrong_replies_are_not_combined(void **state)
{
    struct crew c = {.n = 3, .n_rounds = 20, .seed = 3, .placement = placed(3, 1, 0)};
    struct spoil s = {.channel = LANE_REPLY};

    (void)state;
    c.tokens[0] = 13;
    crew_start(&c, WIDE);
    fake_on_commit(c.group, spoil_headers, &s);
    crew_run(&c);
    assert_int_equal(atomic_load(&c.n_failed), 0);
    assert_true(exchange_ledger(c.members[0].x)->bad_messages > 0);
    assert_true(exchange_ledger(c.members[0].x)->redirected > 0);
    crew_end(&c, false);
}

static bool name_more_formats(void *arg, int from, int to, enum lane_channel channel,
                              struct lane_header *header, unsigned char *payload)
{
    (void)arg;
    (void)to;
    (void)payload;
    if (from == 2 && channel == LANE_REQUEST)
        header->kind |= WIRE_A32; /* of no bytes in this group: all sizes stay right */
    return true;
}

/* Rank 2's rows have a format more than rank 1's: no job computes both. */
static void rows_of_other_formats_have_jobs_of_their_own(void **state)
{
    struct crew c = {.n = 3, .seed = 8, .placement = placed(3, 1, 0)};
    struct exchange *x;

    (void)state;
    crew_start(&c, WIDE);
    fake_on_commit(c.group, name_more_formats, NULL);
    x = c.members[0].x;
    for (size_t s = 1; s < 3; s++) {
        make_input(c.members[s].in, s);
        struct exchange_round_input round = round_of(c.members[s].in, 1, 0, 9);
        assert_int_equal(exchange_begin(c.members[s].x, 0, &round, NULL), FERRY_OK);
    }
    while (exchange_serve(x, 0, false))
        ;
    assert_int_equal(exchange_ledger(x)->jobs, 2);
    assert_int_equal(exchange_ledger(x)->bad_messages, 0);
    for (int s = 1; s < 3; s++) {
        fake_kill(c.group, s);
        assert_int_equal(exchange_end(c.members[s].x, 0, NULL), FERRY_ERR_PEER);
    }
    crew_end(&c, false);
}

/* ---- ranks that are out of step ---- */

struct apart {
    struct crew *crew;
    pthread_barrier_t sent;
    atomic_bool passed; /* rank 0 has ended its layer 0 */
    atomic_size_t n_wrong;
};

static void serve_until_alone(struct apart *a)
{
    while (fabric_live(fake_end(a->crew->group, 1)) != 1 << 1)
        (void)exchange_serve(a->crew->members[1].x, 2000000, true);
}

static enum ferry_status run_layer(struct member *m, size_t layer)
{
    struct exchange_round_input round = round_of(m->in, layer, 0, m->crew->tokens[m->seat]);

    return exchange_run(m->x, &round, NULL);
}

/* Two ranks, of which the second does what `rank_one` says. */
static void begin_apart(struct apart *a, void *(*rank_one)(void *), pthread_t *ret_thread)
{
    struct crew *c = a->crew;

    c->tokens[0] = 6;
    c->tokens[1] = 7;
    crew_start(c, WIDE);
    make_input(c->members[0].in, 3);
    make_input(c->members[1].in, 4);
    (void)pthread_barrier_init(&a->sent, NULL, 2);
    assert_int_equal(pthread_create(ret_thread, NULL, rank_one, a), 0);
}

static void end_apart(struct apart *a, pthread_t thread)
{
    fake_kill(a->crew->group, 0);
    (void)pthread_join(thread, NULL);
    assert_int_equal(atomic_load(&a->n_wrong), 0);
    (void)pthread_barrier_destroy(&a->sent);
    crew_end(a->crew, false);
}

static void *rank_one_behind(void *arg)
{
    struct apart *a = arg;
    struct member *m = &a->crew->members[1];
    struct exchange_round_input round = round_of(m->in, 0, 0, a->crew->tokens[1]);

    while (!atomic_load(&a->passed))
        (void)exchange_serve(m->x, 2000000, true);
    a->n_wrong += exchange_begin(m->x, 0, &round, NULL) != FERRY_OK;
    (void)pthread_barrier_wait(&a->sent);
    a->n_wrong += exchange_end(m->x, 0, NULL) != FERRY_OK;
    a->n_wrong += run_layer(m, 1) != FERRY_OK;
    serve_until_alone(a);
    return NULL;
}

/* Rank 1 is a layer behind. Rank 0 waits for its rows of layer 1 (30 s, and a round may take 20),
 * and serves those of layer 0 meanwhile: without their sums rank 1 does not come, and two ranks
 * that lost step with each other stay so. Weights of layer 1 are read once. */
static void who_gathers_serves_other_layers(void **state)
{
    struct crew c = {
        .n = 2, .seed = 5, .gather_ns = UINT64_C(30000000000), .placement = placed(2, 1, 0)};
    struct apart a = {.crew = &c};
    struct member *m = &c.members[0];
    pthread_t other;

    (void)state;
    begin_apart(&a, rank_one_behind, &other);
    a.n_wrong += run_layer(m, 0) != FERRY_OK;
    atomic_store(&a.passed, true);
    fabric_wake(fake_end(c.group, 1));
    (void)pthread_barrier_wait(&a.sent);
    uint64_t before = exchange_ledger(m->x)->jobs;
    a.n_wrong += run_layer(m, 1) != FERRY_OK;
    assert_int_equal(exchange_ledger(m->x)->jobs, before + 2);
    end_apart(&a, other);
}

static void *rank_one_idle(void *arg)
{
    struct apart *a = arg;
    struct member *m = &a->crew->members[1];

    for (size_t layer = 0; layer < LAYERS; layer++)
        a->n_wrong += run_layer(m, layer) != FERRY_OK;
    serve_until_alone(a);
    return NULL;
}

/* Rank 1 has no more steps. Rank 0 does not wait for its rows (30 s, and a round may take 20). */
static void who_has_finished_a_step_is_not_awaited(void **state)
{
    struct crew c = {
        .n = 2, .seed = 6, .gather_ns = UINT64_C(30000000000), .placement = placed(2, 1, 0)};
    struct apart a = {.crew = &c};
    pthread_t other;

    (void)state;
    begin_apart(&a, rank_one_idle, &other);
    for (size_t step = 0; step < 3; step++) {
        for (size_t layer = 0; layer < (step == 0 ? LAYERS : 1); layer++)
            a.n_wrong += run_layer(&c.members[0], layer) != FERRY_OK;
    }
    end_apart(&a, other);
}

/* ---- an origin that takes no answers ---- */

static void *end_of_rank_one(void *arg)
{
    struct apart *a = arg;

    a->n_wrong += exchange_end(a->crew->members[1].x, 0, NULL) != FERRY_OK;
    atomic_store(&a->passed, true);
    return NULL;
}

/* Rank 1 asks for more sums than its lane holds, and hangs: it lives, and takes nothing. Rank 0
 * answers rank 2 all the same, computes nothing in vain, and owes rank 1 nothing less. */
static void who_takes_no_answers_holds_up_nobody(void **state)
{
    static const size_t SMALL_REPLIES[LANE_N_CHANNELS] = {1 << 20, TOP_K * HIDDEN * 4};
    struct crew c = {.n = 3, .seed = 7, .placement = placed(3, 1, 0)};
    struct apart a = {.crew = &c};
    pthread_t thread;

    (void)state;
    crew_start(&c, SMALL_REPLIES);
    struct exchange *x[3] = {c.members[0].x, c.members[1].x, c.members[2].x};
    struct exchange *one = alone_on(c.members[0].device, false);
    struct input *in = c.members[1].in, *few = c.members[2].in;
    make_input(in, 3);
    make_input(few, 4);
    for (size_t i = 0; i < 3 * TOP_K; i++)
        few->experts[i] = (int32_t)(i % TOP_K); /* all of them at rank 0 */
    struct exchange_round_input many = round_of(in, 0, 0, TOKENS), other = round_of(few, 1, 0, 3);
    assert_int_equal(exchange_begin(x[1], 0, &many, NULL), FERRY_OK);
    (void)exchange_serve(x[0], 0, false);
    assert_int_equal(exchange_begin(x[2], 0, &other, NULL), FERRY_OK);
    (void)exchange_serve(x[0], 0, false);
    uint64_t n_jobs = exchange_ledger(x[0])->jobs;
    for (int i = 0; i < 20; i++)
        assert_false(exchange_serve(x[0], 1000000, false));
    assert_int_equal(exchange_ledger(x[0])->jobs, n_jobs);
    assert_int_equal(exchange_end(x[2], 0, NULL), FERRY_OK);
    static struct input wanted;
    wanted = *few;
    struct exchange_round_input again = round_of(&wanted, 1, 0, 3);
    assert_int_equal(exchange_run(one, &again, NULL), FERRY_OK);
    assert_memory_equal(wanted.out, few->out, 3 * HIDDEN * sizeof(float));
    /* It goes on. */
    assert_int_equal(pthread_create(&thread, NULL, end_of_rank_one, &a), 0);
    while (!atomic_load(&a.passed)) {
        (void)exchange_serve(x[0], 0, false);
        (void)exchange_serve(x[2], 0, false);
    }
    (void)pthread_join(thread, NULL);
    assert_int_equal(atomic_load(&a.n_wrong), 0);
    wanted = *in;
    again = round_of(&wanted, 0, 0, TOKENS);
    assert_int_equal(exchange_run(one, &again, NULL), FERRY_OK);
    assert_memory_equal(wanted.out, in->out, sizeof wanted.out);
    exchange_destroy(one);
    crew_end(&c, false);
}

enum { FEW = 2, MANY_TOKENS = 192 };

/* Own rows of layer 1, all for the first of two experts, which is here, while rank 1 is still in
 * layer 0. Rank 0 may wait for its rows 30 s; its round, 2 s. */
static enum ferry_status run_own_rows(size_t n_tokens)
{
    struct fake_group *group = fake_group_create(2, WIDE);
    struct placement *placement = NULL;
    struct exchange *x[2];
    static int32_t experts[MANY_TOKENS];
    static float weights[MANY_TOKENS], rows[MANY_TOKENS * HIDDEN], out[MANY_TOKENS * HIDDEN];
    struct exchange_round_input round = {.experts = experts,
                                         .weights = weights,
                                         .n_tokens = 1,
                                         .top_k = 1,
                                         .n_experts = FEW,
                                         .rows = {.f32 = rows, .f32_stride = HIDDEN},
                                         .out = out};
    struct device_options one = {.n_threads = 1, .level = CPU_LEVEL_REF};
    struct device *device;

    assert_int_equal(placement_contiguous(&placement, LAYERS, FEW, 2, 1, NULL), FERRY_OK);
    assert_int_equal(device_create_cpu(&device, &one, NULL), FERRY_OK);
    for (int s = 0; s < 2; s++) {
        struct exchange_options options = options_of(fake_end(group, s), placement);
        options.max_tokens = MANY_TOKENS;
        options.max_top_k = 1;
        options.max_experts = FEW;
        options.gather_ns = UINT64_C(30000000000);
        options.deadline_ns = UINT64_C(2000000000);
        assert_int_equal(exchange_create(&x[s], device, &options, NULL), FERRY_OK);
    }
    assert_int_equal(exchange_begin(x[1], 0, &round, NULL), FERRY_OK); /* its row goes to rank 0 */
    assert_int_equal(exchange_run(x[0], &round, NULL), FERRY_OK);
    round.layer = 1;
    round.n_tokens = n_tokens;
    enum ferry_status st = exchange_run(x[0], &round, NULL);
    exchange_abandon(x[1]);
    for (int s = 0; s < 2; s++)
        exchange_destroy(x[s]);
    device_destroy(device);
    placement_destroy(placement);
    fake_group_destroy(group);
    return st;
}

/* A job of 64 rows an expert reads weights no less often than two: it waits for nobody. */
static void who_has_rows_enough_does_not_gather(void **state)
{
    (void)state;
    assert_int_equal(run_own_rows(64 * FEW), FERRY_OK);
    assert_int_equal(run_own_rows(64 * FEW - 1), FERRY_ERR_TIMEOUT);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(who_cannot_load_is_passed_over),
        cmocka_unit_test(who_computes_too_few_is_passed_over),
        cmocka_unit_test(nobody_left_is_an_error),
        cmocka_unit_test(nonsense_harms_nobody_else),
        cmocka_unit_test(wrong_replies_are_not_combined),
        cmocka_unit_test(rows_of_other_formats_have_jobs_of_their_own),
        cmocka_unit_test(who_gathers_serves_other_layers),
        cmocka_unit_test(who_has_finished_a_step_is_not_awaited),
        cmocka_unit_test(who_takes_no_answers_holds_up_nobody),
        cmocka_unit_test(who_has_rows_enough_does_not_gather),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
