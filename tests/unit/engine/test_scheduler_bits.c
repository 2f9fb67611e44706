/* Law 2 through the scheduler: an answer does not depend on who else is served, on when it was
 * submitted, on steps, threads, prefixes that were found, or on being preempted. Every request is
 * compared, bit for bit, with its run alone. */
#include "tests/unit/engine/served.h"

#include "base/size.h"
#include "kernel/kernel.h"
#include "tests/unit/text/small.h"

#include <stdlib.h>
#include <string.h>

enum { N_REQUESTS = 16, LONGEST = 600, SHARED_MIN = 100, SHARED_MAX = 400 };

static size_t n_preempted, n_cached, n_partial;

static float fraction(uint64_t *random)
{
    return (float)(small_random(random) % 1000) / 1000.0f;
}

static void random_sampling(struct asked *a, uint64_t *random)
{
    struct sampler_options *s = &a->options.sampling;

    s->seed = small_random(random);
    if (small_random(random) % 3 > 0)
        s->temperature = 0.2f + 2 * fraction(random);
    if (small_random(random) % 2 == 0)
        s->top_p = 0.3f + 0.7f * fraction(random);
    if (small_random(random) % 3 == 0)
        s->top_k = 1 + small_random(random) % 40;
    if (small_random(random) % 3 == 0)
        s->min_p = 0.2f * fraction(random);
    if (small_random(random) % 3 == 0)
        s->repetition_penalty = 0.8f + fraction(random);
    if (small_random(random) % 3 == 0) {
        s->presence_penalty = fraction(random) - 0.3f;
        s->frequency_penalty = fraction(random);
    }
    if (small_random(random) % 3 == 0) {
        a->bias = (struct logit_bias){(int32_t)(small_random(random) % 256), 4 * fraction(random)};
        s->biases = &a->bias;
        s->n_biases = 1;
    }
}

/* shared [2, SHARED_MAX]: what some prompts begin with. */
static void random_request(struct asked *a, uint64_t *random, int32_t (*shared)[SHARED_MAX])
{
    size_t n = 1 + small_random(random) % LONGEST;
    size_t same = SHARED_MIN + small_random(random) % (SHARED_MAX - SHARED_MIN);

    asked_init(a, n, small_random(random), 1 + small_random(random) % 90);
    if (small_random(random) % 3 > 0)
        memcpy(a->ids, shared[small_random(random) % 2], min_size(n, same) * sizeof a->ids[0]);
    a->options.n_choices = small_random(random) % 3 == 0 ? 1 + small_random(random) % 3 : 1;
    a->options.logprobs = small_random(random) % 2 == 0;
    a->options.n_top_logprobs = small_random(random) % 6;
    a->options.ignore_eos = small_random(random) % 2 == 0;
    a->options.cache_key[7] = small_random(random) % 8 == 0;
    random_sampling(a, random);
}

static void check_round(uint64_t seed, size_t step_tokens, int n_threads)
{
    static struct asked asked[N_REQUESTS];
    int32_t shared[2][SHARED_MAX];
    uint64_t random = seed;
    struct served served;
    /* Six pages hold the longest alone: by far too few for five sequences. */
    const struct served_options options = {.step_tokens = step_tokens,
                                           .n_threads = n_threads,
                                           .n_sequences = 5,
                                           .n_pages = 6,
                                           .context = 700};
    struct asked *list[N_REQUESTS];
    size_t n = 0;

    print_message("seed %zu: step_tokens %zu, %d threads\n", (size_t)seed, step_tokens, n_threads);
    served_open(&served, &options);
    for (size_t i = 0; i < 2 * SHARED_MAX; i++)
        shared[i / SHARED_MAX][i % SHARED_MAX] = (int32_t)(small_random(&random) % 259);
    for (size_t i = 0; i < N_REQUESTS; i++) {
        list[i] = &asked[i];
        random_request(&asked[i], &random, shared);
    }
    while (n < N_REQUESTS) {
        if (small_random(&random) % 4 == 0)
            asked_submit(&asked[n++], &served);
        (void)served_step(&served);
    }
    served_finish(&served, list, N_REQUESTS, 20000);
    assert_int_equal(engine_n_pages_available(served.engine), options.n_pages);
    for (size_t i = 0; i < N_REQUESTS; i++) {
        const struct request_usage *u = &asked[i].usage;
        n_preempted += u->n_preempted;
        n_cached += u->cached_tokens;
        n_partial += u->cached_tokens % KERNEL_KV_CHUNK != 0; /* its next token needs a copy */
        assert_int_equal(u->prompt_tokens, asked[i].options.n_ids);
        asked_check(&asked[i]);
        asked_end(&asked[i]);
    }
    served_close(&served);
}

static void answers_are_those_of_solo_runs(void **state)
{
    static const size_t STEPS[] = {7, 64, 512};
#ifdef FERRY_SANITIZED
    size_t n_rounds = 6;
#else
    size_t n_rounds = 18;
#endif
    const char *from = getenv("FERRY_SEED");
    uint64_t first = from != NULL ? strtoull(from, NULL, 10) : 1;

    (void)state;
    for (size_t i = 0; i < n_rounds; i++) /* neighbours differ in both */
        check_round(first + i, STEPS[i % 3], 1 + (int)((i + i / 3) % 3));
    print_message("%zu preemptions, %zu tokens from the cache, %zu partial pages\n", n_preempted,
                  n_cached, n_partial);
    assert_true(n_preempted >= n_rounds);
    assert_true(n_cached >= 100 * n_rounds);
    assert_true(2 * n_partial >= n_rounds);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(answers_are_those_of_solo_runs)};
    return cmocka_run_group_tests(tests, served_setup, served_teardown);
}
