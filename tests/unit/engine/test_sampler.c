/* Sampling: the generator's published vectors, penalties and cut-offs against a plain f64 version
 * and against transformers (tests/oracle/golden/sampling.json), the distribution, and that nothing
 * of one call reaches the next. */
#include "tests/unit/unit.h"

#include "base/alloc.h"
#include "engine/sampler.h"

#include <fenv.h>
#include <float.h>
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static struct kernels kernels;

static const struct sampler_options NEUTRAL = SAMPLER_OPTIONS_INIT;

static struct sampler *make(size_t n_vocab, size_t n_valid)
{
    struct sampler *s = NULL;
    struct ferry_error err = {0};
    if (sampler_create(&s, n_vocab, n_valid, &kernels, &err) != FERRY_OK)
        fail_msg("%s", err.msg);
    return s;
}

/* splitmix64: independent of the generator under test */
static uint64_t next_random(uint64_t *state)
{
    uint64_t z = (*state += 0x9E3779B97F4A7C15u);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
}

/* [0, n) */
static size_t pick(uint64_t *state, size_t n)
{
    return (size_t)(next_random(state) >> 33) % n;
}

/* A sum of three uniforms, so that some logits stand out; a grid, so that ties occur. */
static void fill_logits(float *logits, size_t n, uint64_t *state)
{
    for (size_t i = 0; i < n; i++) {
        size_t sum = pick(state, 400) + pick(state, 400) + pick(state, 400);
        logits[i] = (float)sum / 64 - 9;
    }
}

/* ---- a plain version in f64 ---- */

enum { N_MAX = 512 };

struct entry {
    double logit, p;
    int32_t id;
};

static int by_logit(const void *a, const void *b)
{
    const struct entry *x = a, *y = b;
    if (x->logit != y->logit)
        return x->logit > y->logit ? -1 : 1;
    return x->id < y->id ? -1 : 1;
}

static size_t count_of(int32_t id, const int32_t *ids, size_t n)
{
    size_t count = 0;
    for (size_t i = 0; i < n; i++)
        count += ids[i] == id;
    return count;
}

static double reference_logit(const struct sampler_options *o, float logit, int32_t id,
                              const int32_t *ids, size_t n_prompt, size_t n_ids)
{
    double x = (double)logit;
    size_t n_answer = count_of(id, ids + n_prompt, n_ids - n_prompt);
    bool banned = false;

    for (size_t i = 0; i < o->n_biases; i++) {
        if (o->biases[i].id == id) {
            banned |= o->biases[i].bias == -100;
            x += (double)o->biases[i].bias;
        }
    }
    if (count_of(id, ids, n_ids) > 0)
        x = x > 0 ? x / (double)o->repetition_penalty : x * (double)o->repetition_penalty;
    x -= (double)o->frequency_penalty * (double)n_answer;
    x -= n_answer > 0 ? (double)o->presence_penalty : 0;
    return banned ? -INFINITY : x;
}

/* The wanted token for u; -1: an edge or u itself is too close to call in f32. */
static int32_t reference(const struct sampler_options *o, const float *logits, size_t n,
                         const int32_t *ids, size_t n_prompt, size_t n_ids, double u)
{
    enum { CLOSE = 500000 }; /* 1 / relative distance */
    static struct entry e[N_MAX];
    double total = 0, sum = 0, seen = 0;
    size_t n_kept = 0;

    for (size_t i = 0; i < n; i++)
        e[i] = (struct entry){reference_logit(o, logits[i], (int32_t)i, ids, n_prompt, n_ids), 0,
                              (int32_t)i};
    for (size_t i = 0; i < n; i++)
        e[i].logit = (double)(float)e[i].logit; /* equal in f32 is equal */
    qsort(e, n, sizeof e[0], by_logit);
    if (o->temperature == 0)
        return e[0].id;
    for (size_t i = 0; i < n; i++)
        total += e[i].p = exp((e[i].logit - e[0].logit) / (double)o->temperature);
    for (size_t i = 0; i < n; i++)
        e[i].p /= total;
    for (; n_kept < n && (o->top_k == 0 || n_kept < o->top_k); n_kept++) {
        double cut = (double)o->min_p * e[0].p;
        if (n_kept > 0 && o->top_p < 1 && fabs(sum - (double)o->top_p) < 1.0 / CLOSE)
            return -1;
        if (n_kept > 0 && o->min_p > 0 && fabs(e[n_kept].p - cut) < e[0].p / CLOSE)
            return -1;
        if (n_kept > 0 && ((o->top_p < 1 && sum >= (double)o->top_p) || e[n_kept].p < cut))
            break;
        sum += e[n_kept].p;
    }
    for (size_t i = 0; i < n_kept; i++) {
        seen += e[i].p;
        if (fabs(u * sum - seen) < 1.0 / CLOSE && i + 1 < n_kept)
            return -1;
        if (u * sum < seen)
            return e[i].id;
    }
    return e[n_kept - 1].id;
}

/* Random settings, each on or off. */
static struct sampler_options random_options(uint64_t *state, size_t n, struct logit_bias *biases,
                                             size_t n_biases_max)
{
    static const float TEMPERATURES[] = {0, 0.25f, 0.7f, 1, 1, 1.5f, 8},
                       REPETITIONS[] = {1, 1, 1.1f, 2, 0.8f}, PENALTIES[] = {0, 0, 0.5f, 1.5f, -1},
                       TOP_PS[] = {1, 1, 0.95f, 0.5f, 0}, MIN_PS[] = {0, 0, 0.05f, 0.3f, 1};
    static const size_t TOP_KS[] = {0, 0, 1, 5, 40, 1000};
    struct sampler_options o = {
        .temperature = TEMPERATURES[pick(state, COUNT_OF(TEMPERATURES))],
        .top_k = TOP_KS[pick(state, COUNT_OF(TOP_KS))],
        .top_p = TOP_PS[pick(state, COUNT_OF(TOP_PS))],
        .min_p = MIN_PS[pick(state, COUNT_OF(MIN_PS))],
        .repetition_penalty = REPETITIONS[pick(state, COUNT_OF(REPETITIONS))],
        .presence_penalty = PENALTIES[pick(state, COUNT_OF(PENALTIES))],
        .frequency_penalty = PENALTIES[pick(state, COUNT_OF(PENALTIES))],
        .biases = biases,
        .n_biases = pick(state, 2) * pick(state, n_biases_max),
        .seed = next_random(state),
        .choice = (uint32_t)pick(state, 3),
    };
    for (size_t i = 0; i < o.n_biases; i++)
        biases[i] = (struct logit_bias){(int32_t)pick(state, n), (float)pick(state, 81) / 8 - 5};
    for (size_t i = 0; i < o.n_biases; i += 3)
        biases[i].bias = SAMPLER_BIAS_BAN;
    return o;
}

static void equals_a_plain_version(void **state)
{
    static const size_t SIZES[] = {2, 7, 64, 300, N_MAX};
    float logits[N_MAX];
    int32_t ids[200];
    struct logit_bias biases[16];
    uint64_t random = 1;
    size_t n_close = 0, n_cases = 0;

    (void)state;
    for (size_t round = 0; round < 3000; round++) {
        size_t n = SIZES[pick(&random, COUNT_OF(SIZES))], n_ids = pick(&random, COUNT_OF(ids)),
               n_prompt = pick(&random, n_ids + 1);
        struct sampler *s = make(n, n);
        struct sampler_options o =
            random_options(&random, n, biases, n < COUNT_OF(biases) ? n : COUNT_OF(biases));
        struct ferry_error err = {0};
        fill_logits(logits, n, &random);
        for (size_t i = 0; i < n_ids; i++)
            ids[i] = (int32_t)pick(&random, n < 20 ? n : 20); /* many repetitions */
        assert_int_equal(sampler_options_check(&o, n, &err), FERRY_OK);
        double u = (double)sampler_uniform(o.seed, o.choice, n_ids);
        int32_t wanted = reference(&o, logits, n, ids, n_prompt, n_ids, u);
        int32_t got = sampler_sample(s, &o, logits, ids, n_prompt, n_ids);
        n_cases++;
        n_close += wanted < 0;
        if (wanted >= 0 && got != wanted)
            fail_msg("round %zu, %zu ids: token %d, wanted %d", round, n, got, wanted);
        sampler_destroy(s);
    }
    assert_true(n_close * 50 < n_cases);
}

/* ---- transformers ---- */

static float number(const json_t *object, const char *key)
{
    const json_t *value = json_object_get(object, key);
    assert_true(json_is_number(value));
    return (float)json_number_value(value);
}

static void golden_draws(const json_t *c, struct sampler *s, struct sampler_options *o,
                         const float *logits, const int32_t *ids, size_t n_ids)
{
    const json_t *kept = json_object_get(c, "kept"), *probs = json_object_get(c, "probs");
    size_t n_kept = json_array_size(kept), n_close = 0;

    for (o->seed = 0; o->seed < 300; o->seed++) {
        double u = (double)sampler_uniform(o->seed, 0, n_ids), seen = 0;
        int32_t got = sampler_sample(s, o, logits, ids, n_ids / 2, n_ids);
        bool close = false;
        size_t at = 0;
        for (; at + 1 < n_kept; at++) {
            seen += json_number_value(json_array_get(probs, at));
            close |= fabs(u - seen) < 1e-6;
            if (u < seen)
                break;
        }
        n_close += close;
        if (!close && got != json_integer_value(json_array_get(kept, at)))
            fail_msg("%s, seed %zu: token %d, wanted %d",
                     json_string_value(json_object_get(c, "name")), (size_t)o->seed, got,
                     (int)json_integer_value(json_array_get(kept, at)));
    }
    assert_true(n_close < 6);
    o->temperature = 0;
    assert_int_equal(sampler_sample(s, o, logits, ids, n_ids / 2, n_ids),
                     json_integer_value(json_array_get(kept, 0)));
}

static void equals_transformers(void **state)
{
    json_error_t error;
    json_t *file = json_load_file(FERRY_SOURCE_DIR "/tests/oracle/golden/sampling.json", 0, &error);
    const json_t *cases = json_object_get(file, "cases");

    (void)state;
    assert_non_null(file);
    assert_true(json_array_size(cases) >= 40);
    for (size_t i = 0; i < json_array_size(cases); i++) {
        const json_t *c = json_array_get(cases, i), *row = json_object_get(c, "logits"),
                     *seen = json_object_get(c, "ids"), *pairs = json_object_get(c, "biases");
        float logits[64];
        int32_t ids[64];
        struct logit_bias biases[64];
        size_t n = json_array_size(row), n_ids = json_array_size(seen);
        struct sampler_options o = {.temperature = number(c, "temperature"),
                                    .top_k = (size_t)number(c, "top_k"),
                                    .top_p = number(c, "top_p"),
                                    .min_p = number(c, "min_p"),
                                    .repetition_penalty = number(c, "repetition_penalty"),
                                    .biases = biases,
                                    .n_biases = json_array_size(pairs)};
        assert_true(n <= 64 && n_ids <= 64 && o.n_biases <= 64);
        for (size_t k = 0; k < n; k++)
            logits[k] = (float)json_number_value(json_array_get(row, k));
        for (size_t k = 0; k < n_ids; k++)
            ids[k] = (int32_t)json_integer_value(json_array_get(seen, k));
        for (size_t k = 0; k < o.n_biases; k++) {
            const json_t *pair = json_array_get(pairs, k);
            biases[k] = (struct logit_bias){(int32_t)json_integer_value(json_array_get(pair, 0)),
                                            (float)json_number_value(json_array_get(pair, 1))};
        }
        struct sampler *s = make(n, n);
        golden_draws(c, s, &o, logits, ids, n_ids);
        sampler_destroy(s);
    }
    json_decref(file);
}

/* ---- the generator, the order ---- */

/* Known answers of Philox4x32-10 as published with Random123. */
static void philox_known_answers(void **state)
{
    static const struct {
        uint32_t counter[4], key[2], out[4];
    } VECTORS[] = {
        {{0, 0, 0, 0}, {0, 0}, {0x6627e8d5u, 0xe169c58du, 0xbc57ac4cu, 0x9b00dbd8u}},
        {{0xffffffffu, 0xffffffffu, 0xffffffffu, 0xffffffffu},
         {0xffffffffu, 0xffffffffu},
         {0x408f276du, 0x41c83b0eu, 0xa20bc7c6u, 0x6d5451fdu}},
        {{0x243f6a88u, 0x85a308d3u, 0x13198a2eu, 0x03707344u},
         {0xa4093822u, 0x299f31d0u},
         {0xd16cfe09u, 0x94fdccebu, 0x5001e420u, 0x24126ea1u}},
    };

    (void)state;
    for (size_t i = 0; i < COUNT_OF(VECTORS); i++) {
        uint32_t out[4];
        philox4x32(VECTORS[i].counter, VECTORS[i].key, out);
        assert_memory_equal(out, VECTORS[i].out, sizeof out);
    }
}

static void greedy_takes_the_lowest_id_among_equals(void **state)
{
    const float logits[5] = {1, 3, 3, 2, 9};
    struct sampler *s = make(5, 4); /* id 4 is padding */
    struct sampler_options o = NEUTRAL;

    (void)state;
    o.temperature = 0;
    assert_int_equal(sampler_sample(s, &o, logits, NULL, 0, 0), 1);
    assert_int_equal(sampler_argmax(logits, 5), 4);
    assert_int_equal(sampler_n_valid(s), 4);
    sampler_destroy(s);
}

/* -0 and +0, positive and negative logits: the sorted order of a full walk by hand-made u. */
static void equal_logits_are_drawn_in_id_order(void **state)
{
    const float logits[6] = {-0.0f, 0.0f, -0.0f, 0.0f, -0.0f, 0.0f};
    struct sampler *s = make(6, 6);
    struct sampler_options o = NEUTRAL;

    (void)state;
    for (o.seed = 0; o.seed < 500; o.seed++) {
        double u = (double)sampler_uniform(o.seed, 0, 3);
        if (fabs(u * 6 - rint(u * 6)) > 1e-5)
            assert_int_equal(sampler_sample(s, &o, logits, NULL, 0, 3), (int32_t)(u * 6));
    }
    sampler_destroy(s);
}

static void same_seed_same_token_wherever(void **state)
{
    float logits[97];
    struct sampler_options o = NEUTRAL;
    struct sampler *a = make(97, 97), *b = make(97, 97);
    int n_differ = 0;

    (void)state;
    o.temperature = 0.8f;
    o.top_p = 0.9f;
    o.seed = 42;
    for (int i = 0; i < 97; i++)
        logits[i] = (float)((i * 37) % 11) / 3;
    for (size_t p = 0; p < 200; p++) {
        int32_t first = sampler_sample(a, &o, logits, NULL, 0, p);
        assert_int_equal(first, sampler_sample(b, &o, logits, NULL, 0, p));
        assert_int_equal(first, sampler_sample(a, &o, logits, NULL, 0, p)); /* changes nothing */
        n_differ += first != sampler_sample(a, &o, logits, NULL, 0, p + 1);
    }
    assert_true(n_differ > 100);
    sampler_destroy(a);
    sampler_destroy(b);
}

static void choices_differ(void **state)
{
    float logits[64] = {0};
    struct sampler_options o = NEUTRAL, other = NEUTRAL;
    struct sampler *s = make(64, 64);
    int n_differ = 0;

    (void)state;
    o.seed = other.seed = 9;
    other.choice = 1;
    for (size_t p = 0; p < 100; p++)
        n_differ += sampler_sample(s, &o, logits, NULL, 0, p) !=
                    sampler_sample(s, &other, logits, NULL, 0, p);
    assert_true(n_differ > 80);
    sampler_destroy(s);
}

/* ---- neighbours ---- */

/* One sampler for everybody gives what a fresh one gives, in two roundings of the caller, without
 * touching the heap. */
static void nothing_stays_behind(void **state)
{
    enum { N = 300 };
    float logits[N], before[N];
    int32_t ids[100];
    struct logit_bias biases[16];
    uint64_t random = 7;
    struct sampler *shared = make(N + 8, N);

    (void)state;
    for (size_t round = 0; round < 1500; round++) {
        size_t n_ids = pick(&random, COUNT_OF(ids)), n_prompt = pick(&random, n_ids + 1);
        struct sampler_options o = random_options(&random, N, biases, COUNT_OF(biases));
        struct sampler *fresh = make(N + 8, N);
        fill_logits(logits, N, &random);
        memcpy(before, logits, sizeof before);
        for (size_t i = 0; i < n_ids; i++) /* padding and nonsense among them */
            ids[i] = (int32_t)pick(&random, N + 8) - 4;
        int32_t wanted = sampler_sample(fresh, &o, logits, ids, n_prompt, n_ids);
        uint64_t calls = mem_count_calls();
        (void)fesetround(FE_UPWARD);
        int32_t got = sampler_sample(shared, &o, logits, ids, n_prompt, n_ids);
        (void)fesetround(FE_TONEAREST);
        assert_true(mem_count_calls() == calls);
        assert_int_equal(got, wanted);
        assert_memory_equal(before, logits, sizeof before);
        sampler_destroy(fresh);
    }
    sampler_destroy(shared);
}

static void every_cpu_level_gives_the_same_token(void **state)
{
    enum { N = 5003 };
    static float logits[N];
    int32_t ids[100];
    struct logit_bias biases[16];
    uint64_t random = 11;
    struct sampler *samplers[CPU_LEVEL_COUNT] = {NULL};
    struct kernels levels[CPU_LEVEL_COUNT];
    struct ferry_error err = {0};
    int n_levels = 0;

    (void)state;
    for (int level = 0; level <= (int)cpu_best_level(); level++, n_levels++) {
        kernels_init(&levels[level], (enum cpu_level)level);
        assert_int_equal(sampler_create(&samplers[level], N, N, &levels[level], &err), FERRY_OK);
    }
    for (size_t round = 0; round < 300; round++) {
        size_t n_ids = pick(&random, COUNT_OF(ids));
        struct sampler_options o = random_options(&random, N, biases, COUNT_OF(biases));
        fill_logits(logits, N, &random);
        for (size_t i = 0; i < n_ids; i++)
            ids[i] = (int32_t)pick(&random, N);
        int32_t wanted = sampler_sample(samplers[0], &o, logits, ids, n_ids / 2, n_ids);
        for (int level = 1; level < n_levels; level++)
            assert_int_equal(sampler_sample(samplers[level], &o, logits, ids, n_ids / 2, n_ids),
                             wanted);
    }
    for (int level = 0; level < n_levels; level++)
        sampler_destroy(samplers[level]);
}

/* ---- the distribution ---- */

/* Pearson's statistic of many draws stays below the 99.9 % quantile; seeds are fixed. */
static void check_frequencies(struct sampler_options o, const double *wanted, size_t n,
                              const float *logits, const int32_t *ids, size_t n_prompt,
                              size_t n_ids)
{
    static const double QUANTILES[] = {0, 10.83, 13.82, 16.27, 18.47, 20.52, 22.46, 24.32};
    enum { DRAWS = 40000 };
    struct sampler *s = make(n, n);
    size_t counts[8] = {0}, n_possible = 0;
    double chi = 0;

    for (size_t i = 0; i < DRAWS; i++, o.seed++)
        counts[sampler_sample(s, &o, logits, ids, n_prompt, n_ids)]++;
    for (size_t i = 0; i < n; i++) {
        double expected = wanted[i] * DRAWS, d = (double)counts[i] - expected;
        if (wanted[i] > 0)
            chi += d * d / expected;
        else
            assert_int_equal(counts[i], 0);
        n_possible += wanted[i] > 0;
    }
    if (!(chi < QUANTILES[n_possible - 1]))
        fail_msg("chi-square %.2f with %zu tokens", chi, n_possible);
    sampler_destroy(s);
}

static void frequencies_follow_probabilities(void **state)
{
    const float logits[4] = {logf(0.1f), logf(0.4f), logf(0.2f), logf(0.3f)};
    const double all[4] = {0.1, 0.4, 0.2, 0.3}, two[4] = {0, 4.0 / 7, 0, 3.0 / 7},
                 three[4] = {0, 4.0 / 9, 2.0 / 9, 3.0 / 9};
    struct sampler_options o = NEUTRAL;

    (void)state;
    check_frequencies(o, all, 4, logits, NULL, 0, 0);
    o.top_k = 2;
    check_frequencies(o, two, 4, logits, NULL, 0, 0);
    o.top_k = 0;
    o.top_p = 0.65f;
    check_frequencies(o, two, 4, logits, NULL, 0, 0);
    o.top_p = 1;
    o.min_p = 0.45f;
    check_frequencies(o, three, 4, logits, NULL, 0, 0);
}

static void frequencies_follow_penalties(void **state)
{
    const float logits[8] = {2, 1.5f, 1, 0.5f, 0, -0.5f, -1, -1.5f};
    const int32_t ids[] = {0, 0, 5, 1, 2, 2, 2, 6}; /* the first three are the prompt */
    const struct logit_bias biases[] = {{3, 1}, {7, 2.5f}, {4, SAMPLER_BIAS_BAN}, {7, 0.25f}};
    struct sampler_options o = {.temperature = 1.25f,
                                .top_p = 1,
                                .repetition_penalty = 1.5f,
                                .presence_penalty = 0.25f,
                                .frequency_penalty = 0.125f,
                                .biases = biases,
                                .n_biases = COUNT_OF(biases),
                                .seed = 1};
    const double adjusted[8] = {
        2 / 1.5,    1.5 / 1.5 - 0.125 - 0.25, 1 / 1.5 - 3 * 0.125 - 0.25, 0.5 + 1, -INFINITY,
        -0.5 * 1.5, -1 * 1.5 - 0.125 - 0.25,  -1.5 + 2.5 + 0.25};
    double wanted[8], sum = 0;

    (void)state;
    for (int i = 0; i < 8; i++)
        sum += wanted[i] = exp(adjusted[i] / 1.25);
    for (int i = 0; i < 8; i++)
        wanted[i] /= sum;
    check_frequencies(o, wanted, 8, logits, ids, 3, COUNT_OF(ids));
}

/* ---- edges ---- */

static void a_ban_holds_whatever_else_is_set(void **state)
{
    const float logits[3] = {300, 0, -1};
    const struct logit_bias biases[] = {{0, 100}, {0, SAMPLER_BIAS_BAN}, {0, 100}};
    const int32_t ids[] = {0, 0, 0};
    struct sampler *s = make(3, 3);
    struct sampler_options o = {.top_p = 1,
                                .repetition_penalty = 0.01f,
                                .presence_penalty = -100,
                                .frequency_penalty = -100,
                                .biases = biases,
                                .n_biases = 3};

    (void)state;
    assert_int_equal(sampler_sample(s, &o, logits, ids, 0, 3), 1);
    o.temperature = 1e6f; /* both others are about as likely */
    size_t counts[3] = {0};
    for (o.seed = 0; o.seed < 1000; o.seed++)
        counts[sampler_sample(s, &o, logits, ids, 0, 3)]++;
    assert_int_equal(counts[0], 0);
    assert_true(counts[1] > 400 && counts[2] > 400);
    sampler_destroy(s);
}

/* sampler_options_check refuses to ban everything; given it all the same, bans are passed over and
 * the best raw logit is taken. */
static void with_everything_banned_nothing_is(void **state)
{
    const float logits[3] = {1, 5, 2};
    const struct logit_bias biases[] = {{0, -100}, {1, -100}, {2, -100}};
    struct sampler *s = make(3, 3);
    struct sampler_options o = NEUTRAL;
    struct ferry_error err = {0};

    (void)state;
    o.biases = biases;
    o.n_biases = 3;
    assert_int_equal(sampler_options_check(&o, 3, &err), FERRY_ERR_ARG);
    assert_non_null(strstr(err.msg, "logit_bias"));
    assert_int_equal(sampler_sample(s, &o, logits, NULL, 0, 0), 1);
    o.n_biases = 2;
    assert_int_equal(sampler_options_check(&o, 3, &err), FERRY_OK);
    assert_int_equal(sampler_sample(s, &o, logits, NULL, 0, 0), 2);
    sampler_destroy(s);
}

static void foreign_ids_are_passed_over(void **state)
{
    const float logits[4] = {1, 2, 3, 9};
    const int32_t ids[] = {-1, 3, 4, INT32_MAX, INT32_MIN, 2};
    const struct logit_bias biases[] = {{3, 100}, {4, 100}, {-1, -100}, {INT32_MIN, 5}};
    struct sampler *s = make(4, 3);
    struct sampler_options o = {.top_p = 1,
                                .repetition_penalty = 2,
                                .presence_penalty = 1,
                                .biases = biases,
                                .n_biases = COUNT_OF(biases)};

    (void)state;
    assert_int_equal(sampler_sample(s, &o, logits, ids, 5, 6), 1); /* 2 became 0.5 */
    sampler_destroy(s);
}

static void extreme_logits_give_a_valid_id(void **state)
{
    const float rows[][4] = {
        {FLT_MAX, -FLT_MAX, FLT_MAX, 0},
        {-FLT_MAX, -FLT_MAX, -FLT_MAX, -FLT_MAX},
        {NAN, NAN, NAN, NAN},
        {0, NAN, 1, NAN},
        {INFINITY, 0, 0, INFINITY},
        {-INFINITY, -INFINITY, -INFINITY, -INFINITY},
        {-INFINITY, 0, -INFINITY, -INFINITY},
    };
    static const float TEMPERATURES[] = {0, 1e-45f, 1, FLT_MAX};
    const int32_t ids[] = {0, 1, 2, 3, 3};
    struct sampler *s = make(4, 4);

    (void)state;
    for (size_t r = 0; r < COUNT_OF(rows); r++) {
        for (size_t t = 0; t < COUNT_OF(TEMPERATURES); t++) {
            struct sampler_options o = {.temperature = TEMPERATURES[t],
                                        .top_k = r % 3,
                                        .top_p = 0.5f,
                                        .min_p = 0.1f,
                                        .repetition_penalty = 0.01f,
                                        .frequency_penalty = 100};
            for (o.seed = 0; o.seed < 50; o.seed++) {
                int32_t id = sampler_sample(s, &o, rows[r], ids, 1, 5);
                assert_in_range(id, 0, 3);
                if (r == 6)
                    assert_int_equal(id, 1);
            }
        }
    }
    sampler_destroy(s);
}

static void a_penalty_makes_no_infinity(void **state)
{
    const float logits[3] = {FLT_MAX, 0, FLT_MAX};
    const int32_t ids[] = {0, 2};
    struct sampler *s = make(3, 3);
    struct sampler_options o = {.temperature = 1, .top_p = 1, .repetition_penalty = 0.01f};
    size_t counts[3] = {0};

    (void)state;
    for (o.seed = 0; o.seed < 200; o.seed++)
        counts[sampler_sample(s, &o, logits, ids, 2, 2)]++;
    assert_true(counts[0] > 50 && counts[1] == 0 && counts[2] > 50);
    sampler_destroy(s);
}

/* min-p of 1 keeps all that are as likely as the best. */
static void min_p_keeps_its_edge(void **state)
{
    const float logits[4] = {1, 3, 3, 2};
    struct sampler *s = make(4, 4);
    struct sampler_options o = NEUTRAL;
    size_t counts[4] = {0};

    (void)state;
    o.min_p = 1;
    for (o.seed = 0; o.seed < 200; o.seed++)
        counts[sampler_sample(s, &o, logits, NULL, 0, 0)]++;
    assert_true(counts[1] > 50 && counts[2] > 50 && counts[1] + counts[2] == 200);
    sampler_destroy(s);
}

/* Four probabilities of exactly 1/4: two of them reach 0.5, a third does not come in. */
static void top_p_stops_where_it_is_reached(void **state)
{
    const float logits[4] = {2, 2, 2, 2};
    struct sampler *s = make(4, 4);
    struct sampler_options o = NEUTRAL;
    size_t counts[4] = {0};

    (void)state;
    o.top_p = 0.5f;
    for (o.seed = 0; o.seed < 200; o.seed++)
        counts[sampler_sample(s, &o, logits, NULL, 0, 0)]++;
    assert_true(counts[0] > 50 && counts[1] > 50 && counts[0] + counts[1] == 200);
    o.top_p = nextafterf(0.5f, 1);
    for (o.seed = 0; o.seed < 200; o.seed++)
        counts[sampler_sample(s, &o, logits, NULL, 0, 0)]++;
    assert_true(counts[2] > 30 && counts[3] == 0);
    sampler_destroy(s);
}

/* Two logits that a penalty makes equal when it is rounded to nearest, and only then. */
static void the_callers_rounding_does_not_show(void **state)
{
    static const int MODES[] = {FE_TONEAREST, FE_UPWARD, FE_DOWNWARD, FE_TOWARDZERO};
    const int32_t ids[] = {1};
    struct sampler *s = make(2, 2);
    struct sampler_options o = NEUTRAL;

    (void)state;
    o.temperature = 0;
    o.repetition_penalty = 1.1f;
    for (size_t m = 0; m < COUNT_OF(MODES); m++) {
        for (int i = 1; i < 100; i++) {
            float logits[2] = {(float)i / 1.1f, (float)i};
            (void)fesetround(MODES[m]);
            int32_t id = sampler_sample(s, &o, logits, ids, 1, 1);
            int mode = fegetround();
            (void)fesetround(FE_TONEAREST);
            assert_int_equal(id, 0);
            assert_int_equal(mode, MODES[m]);
        }
    }
    sampler_destroy(s);
}

static void settings_are_checked(void **state)
{
    static const struct logit_bias BIASES[] = {{4, 0}, {-1, 0}, {0, NAN}, {0, 100.5f}, {0, -101}};
    static const struct {
        const char *field;
        size_t at;
        float values[4]; /* each of them refused */
    } BAD[] = {
        {"temperature", offsetof(struct sampler_options, temperature), {-1, NAN, INFINITY, -1e-9f}},
        {"top_p", offsetof(struct sampler_options, top_p), {-0.1f, 1.5f, NAN, -INFINITY}},
        {"min_p", offsetof(struct sampler_options, min_p), {-0.1f, 2, NAN, INFINITY}},
        {"repetition_penalty",
         offsetof(struct sampler_options, repetition_penalty),
         {0, -1, NAN, INFINITY}},
        {"presence_penalty",
         offsetof(struct sampler_options, presence_penalty),
         {101, -101, NAN, INFINITY}},
        {"frequency_penalty",
         offsetof(struct sampler_options, frequency_penalty),
         {101, -101, NAN, -INFINITY}},
    };
    struct ferry_error err = {0};
    struct sampler_options good = NEUTRAL;

    (void)state;
    assert_int_equal(sampler_options_check(&good, 4, &err), FERRY_OK);
    good = (struct sampler_options){.repetition_penalty = 0.01f,
                                    .top_k = SIZE_MAX,
                                    .min_p = 1,
                                    .presence_penalty = -100,
                                    .frequency_penalty = 100};
    assert_int_equal(sampler_options_check(&good, 1, &err), FERRY_OK);
    for (size_t i = 0; i < COUNT_OF(BAD); i++) {
        for (size_t v = 0; v < COUNT_OF(BAD[i].values); v++) {
            struct sampler_options o = NEUTRAL;
            memcpy((char *)&o + BAD[i].at, &BAD[i].values[v], sizeof(float));
            err.msg[0] = 0;
            assert_int_equal(sampler_options_check(&o, 4, &err), FERRY_ERR_ARG);
            assert_int_equal(strncmp(err.msg, BAD[i].field, strlen(BAD[i].field)), 0);
        }
    }
    for (size_t i = 0; i < COUNT_OF(BIASES); i++) {
        struct sampler_options o = NEUTRAL;
        o.biases = &BIASES[i];
        o.n_biases = 1;
        err.msg[0] = 0;
        assert_int_equal(sampler_options_check(&o, 4, &err), FERRY_ERR_ARG);
        assert_int_equal(strncmp(err.msg, "logit_bias", 10), 0);
    }
}

static void running_out_of_memory_is_a_status(void **state)
{
    struct sampler *s = NULL;
    struct ferry_error err = {0};
    int n_failed = 0;

    (void)state;
    for (uint64_t n = 1; s == NULL && n < 100; n++) {
        mem_fail_after(n);
        enum ferry_status st = sampler_create(&s, 64, 0, &kernels, &err);
        mem_fail_after(0);
        assert_int_equal(st, s == NULL ? FERRY_ERR_NOMEM : FERRY_OK);
        n_failed += s == NULL;
    }
    assert_true(n_failed >= 5);
    assert_int_equal(sampler_n_valid(s), 64);
    sampler_destroy(s);
    sampler_destroy(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(equals_a_plain_version),
        cmocka_unit_test(equals_transformers),
        cmocka_unit_test(philox_known_answers),
        cmocka_unit_test(greedy_takes_the_lowest_id_among_equals),
        cmocka_unit_test(equal_logits_are_drawn_in_id_order),
        cmocka_unit_test(same_seed_same_token_wherever),
        cmocka_unit_test(choices_differ),
        cmocka_unit_test(nothing_stays_behind),
        cmocka_unit_test(every_cpu_level_gives_the_same_token),
        cmocka_unit_test(frequencies_follow_probabilities),
        cmocka_unit_test(frequencies_follow_penalties),
        cmocka_unit_test(a_ban_holds_whatever_else_is_set),
        cmocka_unit_test(with_everything_banned_nothing_is),
        cmocka_unit_test(foreign_ids_are_passed_over),
        cmocka_unit_test(extreme_logits_give_a_valid_id),
        cmocka_unit_test(a_penalty_makes_no_infinity),
        cmocka_unit_test(min_p_keeps_its_edge),
        cmocka_unit_test(top_p_stops_where_it_is_reached),
        cmocka_unit_test(the_callers_rounding_does_not_show),
        cmocka_unit_test(settings_are_checked),
        cmocka_unit_test(running_out_of_memory_is_a_status),
    };
    kernels_init(&kernels, cpu_best_level());
    return cmocka_run_group_tests(tests, NULL, NULL);
}
