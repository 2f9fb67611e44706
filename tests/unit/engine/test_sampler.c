/* Sampling: the generator's published vectors, the order of candidates, the cut-offs, and the
 * distribution. */
#include "tests/unit/unit.h"

#include "engine/sampler.h"

#include <math.h>
#include <string.h>

static struct kernels kernels;

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

static struct sampler *make(size_t n_vocab, size_t n_valid)
{
    struct sampler *s = NULL;
    struct ferry_error err = {0};
    if (sampler_create(&s, n_vocab, n_valid, &kernels, &err) != FERRY_OK)
        fail_msg("%s", err.msg);
    return s;
}

static void greedy_takes_the_lowest_id_among_equals(void **state)
{
    const float logits[5] = {1, 3, 3, 2, 9};
    struct sampler *s = make(5, 4); /* id 4 is padding */
    struct sampler_options o = SAMPLER_OPTIONS_INIT;

    (void)state;
    o.temperature = 0;
    assert_int_equal(sampler_sample(s, &o, logits, NULL, 0, 0), 1);
    assert_int_equal(sampler_argmax(logits, 5), 4);
    sampler_destroy(s);
}

static void same_seed_same_token_wherever(void **state)
{
    float logits[97];
    struct sampler_options o = {
        .temperature = 0.8f, .top_p = 0.9f, .repetition_penalty = 1, .seed = 42};
    struct sampler *a = make(97, 97), *b = make(97, 97);
    int n_differ = 0;

    (void)state;
    for (int i = 0; i < 97; i++)
        logits[i] = (float)((i * 37) % 11) / 3;
    for (size_t p = 0; p < 200; p++) {
        int32_t first = sampler_sample(a, &o, logits, NULL, 0, p);
        assert_int_equal(first, sampler_sample(b, &o, logits, NULL, 0, p));
        assert_int_equal(
            first, sampler_sample(a, &o, logits, NULL, 0, p)); /* asking twice changes nothing */
        n_differ += first != sampler_sample(a, &o, logits, NULL, 0, p + 1);
    }
    assert_true(n_differ > 100);
    sampler_destroy(a);
    sampler_destroy(b);
}

/* Frequencies over many positions follow the probabilities. */
static void check_frequencies(struct sampler_options o, const double *wanted, size_t n,
                              const float *logits)
{
    enum { DRAWS = 40000 };
    struct sampler *s = make(n, n);
    size_t counts[8] = {0};

    for (size_t p = 0; p < DRAWS; p++)
        counts[sampler_sample(s, &o, logits, NULL, 0, p)]++;
    for (size_t i = 0; i < n; i++) {
        double bound = 5 * sqrt(wanted[i] * (1 - wanted[i]) / DRAWS); /* five standard deviations */
        if (fabs((double)counts[i] / DRAWS - wanted[i]) > bound)
            fail_msg("token %zu: %.4f drawn, %.4f wanted", i, (double)counts[i] / DRAWS, wanted[i]);
    }
    sampler_destroy(s);
}

static void frequencies_follow_probabilities(void **state)
{
    const float logits[4] = {logf(0.1f), logf(0.4f), logf(0.2f), logf(0.3f)};
    const double all[4] = {0.1, 0.4, 0.2, 0.3}, two[4] = {0, 4.0 / 7, 0, 3.0 / 7},
                 three[4] = {0, 4.0 / 9, 2.0 / 9, 3.0 / 9};

    (void)state;
    check_frequencies(
        (struct sampler_options){.temperature = 1, .top_p = 1, .repetition_penalty = 1, .seed = 1},
        all, 4, logits);
    check_frequencies(
        (struct sampler_options){
            .temperature = 1, .top_p = 1, .top_k = 2, .repetition_penalty = 1, .seed = 2},
        two, 4, logits);
    check_frequencies(
        (struct sampler_options){
            .temperature = 1, .top_p = 0.65f, .repetition_penalty = 1, .seed = 3},
        two, 4, logits);
    check_frequencies(
        (struct sampler_options){
            .temperature = 1, .top_p = 1, .min_p = 0.45f, .repetition_penalty = 1, .seed = 4},
        three, 4, logits);
}

static void choices_differ(void **state)
{
    float logits[64] = {0};
    struct sampler_options o = {.temperature = 1, .top_p = 1, .repetition_penalty = 1, .seed = 9};
    struct sampler *a = make(64, 64);
    struct sampler_options other = o;
    int n_differ = 0;

    (void)state;
    other.choice = 1;
    for (size_t p = 0; p < 100; p++)
        n_differ += sampler_sample(a, &o, logits, NULL, 0, p) !=
                    sampler_sample(a, &other, logits, NULL, 0, p);
    assert_true(n_differ > 80);
    sampler_destroy(a);
}

static void settings_are_checked(void **state)
{
    const struct sampler_options bad[] = {
        {.temperature = -1, .top_p = 1},
        {.temperature = NAN, .top_p = 1},
        {.temperature = INFINITY, .top_p = 1},
        {.temperature = 1, .top_p = -0.1f},
        {.temperature = 1, .top_p = 1.5f},
        {.temperature = 1, .top_p = NAN},
        {.temperature = 1, .top_p = 1, .min_p = -0.1f},
        {.temperature = 1, .top_p = 1, .min_p = 2},
    };

    (void)state;
    for (size_t i = 0; i < COUNT_OF(bad); i++) {
        struct ferry_error err = {0};
        assert_int_equal(sampler_options_check(&bad[i], 4, &err), FERRY_ERR_ARG);
        assert_true(err.msg[0] != 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(philox_known_answers),
        cmocka_unit_test(greedy_takes_the_lowest_id_among_equals),
        cmocka_unit_test(same_seed_same_token_wherever),
        cmocka_unit_test(frequencies_follow_probabilities),
        cmocka_unit_test(choices_differ),
        cmocka_unit_test(settings_are_checked),
    };
    kernels_init(&kernels, cpu_best_level());
    return cmocka_run_group_tests(tests, NULL, NULL);
}
