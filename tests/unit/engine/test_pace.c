/* How much of prompts steps carry, on machines that are made up: what a step takes is a function of
 * its tokens, with noise. */
#include "tests/unit/unit.h"

#include "engine/pace.h"

#include <math.h>
#include <stdlib.h>

#define MS     1e6
#define TARGET 750.0 /* the scheduler's default */

/* A machine: weights that every step reads, those that a token's experts add until all are read,
 * and arithmetic. */
struct machine {
    double base_ms, experts_ms, token_ms, noise;
    double n_experts; /* tokens that have read nearly all of them */
    uint64_t seed;
};

/* OLMoE Q8_0 and Q4_0 on two threads (docs/performance.md: 1, 16 and 138 tokens), and a fast one.
 */
static const struct machine SLOW = {20, 170, 13.5, 0.05, 12, 1}, HALF = {12, 100, 7, 0.05, 12, 2},
                            FAST = {0.5, 2, 0.05, 0.1, 12, 3};

static double took(struct machine *m, size_t rows)
{
    m->seed = m->seed * 6364136223846793005u + 1442695040888963407u;
    double noise = 1 + m->noise * (2 * (double)(m->seed >> 40) / (double)(1 << 24) - 1);
    double n = (double)rows;

    return noise * MS *
           (m->base_ms + m->experts_ms * (1 - exp(-n / m->n_experts)) + m->token_ms * n);
}

static double mean_ms(const struct machine *machine, size_t rows)
{
    struct machine quiet = *machine;

    quiet.noise = 0;
    return took(&quiet, rows) / MS;
}

static struct pace start(void)
{
    return (struct pace){.step_target_ns = (uint64_t)(TARGET * MS),
                         .prefill_target_ns = (uint64_t)(2000 * MS)};
}

static size_t step(struct pace *p, struct machine *m, size_t n_decode, size_t left, double *ret_ms)
{
    size_t n = left > 0 ? pace_prompt_tokens(p, n_decode, 512 - n_decode) : 0;

    n = n < left ? n : left;
    double ns = took(m, n_decode + n);
    pace_learn(p, n_decode + n, (uint64_t)ns, 0);
    *ret_ms = ns / MS;
    return n;
}

/* N prompts arrive at once; each becomes an answer when it has been read. No step is without a
 * prompt until the last one is. */
static void prompts_get_half_without_a_pause(void **state)
{
    enum { N = 16, PROMPT = 128 };
    const struct machine *const machines[] = {&SLOW, &HALF, &FAST};

    (void)state;
    for (size_t i = 0; i < COUNT_OF(machines); i++) {
        struct machine m = *machines[i];
        struct pace p = start();
        double all_ms = 0, ms;
        size_t done = 0, seen = 0;
        for (size_t steps = 0; done < (size_t)N * PROMPT; steps++) {
            size_t n_decode = done / PROMPT;
            size_t n = step(&p, &m, n_decode, (size_t)N * PROMPT - done, &ms);
            double answers = n_decode > 0 ? mean_ms(&m, n_decode) : 0;
            double most = n_decode == 0 ? 2000 : fmax(TARGET, 2 * answers);
            done += n;
            all_ms += ms;
            if (steps < 3) /* it has to learn first */
                continue;
            if (ms > 1.35 * most)
                fail_msg("machine %zu: %zu answers and %zu tokens: %.0f ms, %.0f alone", i,
                         n_decode, n, ms, answers);
            if (n_decode > 0 && done < (size_t)N * PROMPT && ms - answers < 0.4 * ms)
                fail_msg(
                    "machine %zu: %zu answers and %zu tokens: %.0f ms, %.0f alone: prompts get "
                    "less than half",
                    i, n_decode, n, ms, answers);
            seen += n_decode > 8;
        }
        assert_true(seen > 0);
        /* All prompts in one go take that long; most of the time was theirs. */
        double alone = mean_ms(&m, 128) * N;
        if (all_ms > 1.55 * alone)
            fail_msg("machine %zu: %.0f ms, %.0f without answers", i, all_ms, alone);
    }
}

/* Steps of answers alone for a long time, then a prompt: what it costs is still known. */
static void a_pause_forgets_nothing(void **state)
{
    struct machine m = SLOW;
    struct pace p = start();
    double ms;

    (void)state;
    for (int i = 0; i < 10; i++)
        (void)step(&p, &m, 0, 1000, &ms);
    for (int i = 0; i < 500; i++)
        (void)step(&p, &m, 16, 0, &ms);
    double alone = mean_ms(&m, 16);
    for (int i = 0; i < 20; i++) {
        size_t n = step(&p, &m, 16, 1000, &ms);
        assert_true(n >= 16);
        assert_true(ms < 2.7 * alone);
    }
    /* And after answers of one: a prompt alone takes about its target. */
    for (int i = 0; i < 500; i++)
        (void)step(&p, &m, 1, 0, &ms);
    for (int i = 0; i < 10; i++) {
        (void)step(&p, &m, 0, 100000, &ms);
        assert_in_range((int)ms, i < 5 ? 500 : 1500, 3000);
    }
}

/* A machine that becomes five times slower or faster is believed within some steps. */
static void changes_are_followed(void **state)
{
    struct machine m = HALF, other = HALF;
    struct pace p = start();
    double ms;

    (void)state;
    for (int round = 0; round < 4; round++) {
        other.base_ms = m.base_ms * (round % 2 == 0 ? 5 : 1);
        other.experts_ms = m.experts_ms * (round % 2 == 0 ? 5 : 1);
        other.token_ms = m.token_ms * (round % 2 == 0 ? 5 : 1);
        double alone = mean_ms(&other, 4), fewest = mean_ms(&other, 4 + 16);
        for (int i = 0; i < 60; i++) {
            (void)step(&p, &other, 4, 1000, &ms);
            if (i > 30 && ms > 1.4 * fmax(fmax(TARGET, 2 * alone), fewest))
                fail_msg("round %d, step %d: %.0f ms, %.0f alone", round, i, ms, alone);
        }
        assert_true(ms > 0.4 * fmax(TARGET, 2 * alone));
    }
}

static void edges(void **state)
{
    struct pace p = start();

    (void)state;
    assert_int_equal(pace_prompt_tokens(&p, 0, 512), 128); /* nothing is known */
    assert_int_equal(pace_prompt_tokens(&p, 3, 100), 100);
    assert_int_equal(pace_prompt_tokens(&p, 3, 0), 0);
    pace_learn(&p, 1, 0, 0);
    assert_int_equal(pace_prompt_tokens(&p, 0, 512), 128); /* a clock that stands still */
    for (int i = 0; i < 50; i++)
        pace_learn(&p, 1 + (size_t)i % 7, UINT64_MAX / 1000, 0);
    assert_int_equal(pace_prompt_tokens(&p, 0, 512), 16); /* however slow */
    assert_in_range(pace_prompt_tokens(&p, 16, 512), 16, 64);
    p = start();
    for (int i = 0; i < 50; i++)
        pace_learn(&p, 100 - (size_t)i, 1000 + (uint64_t)i * 1000, 0); /* the larger, the faster */
    assert_int_equal(pace_prompt_tokens(&p, 16, 512), 512);
    assert_true(p.row_ns > 0 && p.fixed_ns >= 0);
    srand(1);
    for (int i = 0; i < 2000; i++) { /* any noise: numbers stay numbers */
        pace_learn(&p, 1 + (size_t)rand() % 512, (uint64_t)rand(), 0);
        assert_true(p.row_ns > 0 && p.fixed_ns > -1 && isfinite(p.fixed_ns));
        assert_in_range(pace_prompt_tokens(&p, (size_t)i % 64, 512), 16, 512);
    }
}

/* Two ranks prefill at once, layer by layer side by side: a step of either lasts as long as the
 * rows of both. Whoever began first does not keep the step to itself, and the two together stay
 * near the target. */
static void ranks_share_a_step(void **state)
{
    (void)state;
    for (int unfair = 0; unfair < 2; unfair++) { /* which of them has everything at first */
        struct pace p[2] = {start(), start()};
        struct machine m = HALF;
        size_t n[2];

        n[unfair] = 250;
        n[!unfair] = 16;
        for (int i = 0; i < 40; i++) {
            double ns = took(&m, n[0] + n[1]);
            for (int r = 0; r < 2; r++) {
                double others = ns * (double)n[!r] / (double)(n[0] + n[1]);
                pace_learn(&p[r], n[r], (uint64_t)ns, (uint64_t)others);
            }
            for (int r = 0; r < 2; r++)
                n[r] = pace_prompt_tokens(&p[r], 0, 512);
        }
        assert_true(n[0] < 2 * n[1] && n[1] < 2 * n[0]);
        assert_true(mean_ms(&m, n[0] + n[1]) > 1000 && mean_ms(&m, n[0] + n[1]) < 3000);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(prompts_get_half_without_a_pause),
        cmocka_unit_test(a_pause_forgets_nothing),
        cmocka_unit_test(changes_are_followed),
        cmocka_unit_test(ranks_share_a_step),
        cmocka_unit_test(edges),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
