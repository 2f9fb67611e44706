/* Tokens are added up as their sums come back, from windows, the job, or copies of either: the bits
 * of one rank, whatever the order; and every message is given back. */
#include "tests/unit/exchange/crew.h"

#include <string.h>

static void check(struct crew *c, const size_t max_payload[LANE_N_CHANNELS])
{
    crew_start(c, max_payload);
    crew_run(c);
    assert_int_equal(atomic_load(&c->n_failed), 0);
    crew_end(c, true);
}

/* Random placement: many groups per token, own ones too. Narrow lanes: several messages per round,
 * so that tokens wait for the last of them. Two rounds at once: the job is needed for the second
 * while rows of the first still lie in it. */
static void any_order_gives_the_bits_of_one(void **state)
{
    (void)state;
    for (int kind = 0; kind < 16; kind++) {
        static struct crew c;
        memset(&c, 0, sizeof c);
        c.n = 2 + (size_t)kind % 4;
        c.n_rounds = 12;
        c.seed = 900 + (uint64_t)kind;
        c.overlap = (kind & 4) != 0;
        c.bf16 = (kind & 8) != 0;
        c.placement = placed(c.n, 1, kind % 2 == 0 ? 0 : 31);
        for (size_t s = 0; s < c.n; s++)
            c.tokens[s] = (s * 17 + (size_t)kind * 5) % (TOKENS + 1);
        check(&c, kind % 3 == 0 ? NARROW : WIDE);
    }
}

/* A stated sum (exchange_options.sum_group) instead of experts' rows. */
static void stated(void *arg, const struct exchange_sum *sum, float *dst)
{
    const float *row = sum->rows.f32 + sum->row * sum->rows.f32_stride + sum->col;

    (void)arg;
    for (size_t c = 0; c < sum->n_cols; c++)
        dst[c] = 0;
    for (size_t i = 0; i < sum->n; i++) {
        for (size_t c = 0; c < sum->n_cols; c++)
            dst[c] += row[c] * (float)(sum->experts[i] + 1) * sum->weights[i];
    }
}

static size_t no_experts(void *arg, const struct exchange_job *job)
{
    (void)arg;
    return job->n_slots;
}

static void stated_sums_are_combined(void **state)
{
    struct device *device = NULL;
    struct device_options one = {.n_threads = 1, .level = cpu_best_level()};
    struct exchange_options options = options_of(NULL, NULL);
    struct exchange *x = NULL;
    struct ferry_error err = {0};
    static struct input in;

    (void)state;
    options.sum_group = stated;
    options.run_experts = no_experts;
    assert_int_equal(device_create_cpu(&device, &one, &err), FERRY_OK);
    assert_int_equal(exchange_create(&x, device, &options, &err), FERRY_OK);
    make_input(&in, 4);
    struct exchange_round_input round = round_of(&in, 0, 0, TOKENS);
    assert_int_equal(exchange_run(x, &round, &err), FERRY_OK);
    for (size_t t = 0; t < TOKENS; t++) {
        for (size_t c = 0; c < HIDDEN; c++) {
            double want = 0, size = 0;
            for (size_t k = 0; k < TOP_K; k++) {
                double leaf = (double)in.rows[t * HIDDEN + c] * (in.experts[t * TOP_K + k] + 1) *
                              (double)in.weights[t * TOP_K + k];
                want += leaf;
                size += leaf > 0 ? leaf : -leaf;
            }
            double gap = (double)in.out[t * HIDDEN + c] - want;
            assert_true(gap <= 1e-5 * size && -gap <= 1e-5 * size);
        }
    }
    exchange_destroy(x);
    device_destroy(device);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_order_gives_the_bits_of_one),
        cmocka_unit_test(stated_sums_are_combined),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
