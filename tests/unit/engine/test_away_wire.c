/* Messages between engines: what was written is read back, cut anywhere it is an error or shorter,
 * and nothing that no rank may send points outside of its bytes. */
#include "tests/unit/unit.h"

#include "engine/away_wire.h"

#include <stdlib.h>
#include <string.h>

static void ids_travel_in_parts(void **state)
{
    enum { N = 20000 };
    int32_t *ids = malloc(N * sizeof *ids), *got = malloc(N * sizeof *got);
    unsigned char bytes[AWAY_MESSAGE_MAX];
    const struct logit_bias biases[2] = {{7, -100.0f}, {9, 2.5f}};
    struct away_message m = {.type = AWAY_START, .id = 77, .biases = biases};
    struct away_message back;
    struct ferry_error err;
    size_t n_messages = 0;

    (void)state;
    for (int32_t i = 0; i < N; i++)
        ids[i] = i * 3;
    m.start = (struct away_start){.n_ids = N,
                                  .n_answered = 4,
                                  .max_tokens = 9,
                                  .n_biases = 2,
                                  .seed = UINT64_MAX,
                                  .temperature = 0.5f,
                                  .choice = 3,
                                  .ignore_eos = 1};
    for (size_t done = 0, n = 0; done < N; done += n, n_messages++) {
        m.ids = ids + done;
        m.n_ids = N - done;
        size_t n_bytes = away_wire_write(&m, bytes, &n);
        assert_true(n > 0 && n_bytes <= AWAY_MESSAGE_MAX);
        unsigned char *exact = malloc(n_bytes);
        memcpy(exact, bytes, n_bytes);
        assert_int_equal(away_wire_read(&back, exact, n_bytes, &err), FERRY_OK);
        assert_int_equal(back.id, 77);
        assert_int_equal(back.n_ids, n);
        memcpy(got + done, back.ids, n * sizeof *got);
        if (done == 0) {
            struct logit_bias copy[2];
            memcpy(copy, back.biases, sizeof copy);
            assert_int_equal(copy[1].id, 9);
            assert_memory_equal(&back.start, &m.start, sizeof m.start);
        } else {
            assert_int_equal(back.offset, done);
        }
        free(exact);
        m.type = AWAY_MORE;
        m.offset = done + n;
    }
    assert_int_equal(n_messages, 3);
    assert_memory_equal(got, ids, N * sizeof *ids);
    free(ids);
    free(got);
}

static void small_ones_come_back(void **state)
{
    unsigned char bytes[AWAY_MESSAGE_MAX];
    struct away_message back, m = {.type = AWAY_TOKEN, .id = 5};
    struct ferry_error err;
    size_t none = 0;

    (void)state;
    m.token.n_ids = 12;
    m.token.token = 31;
    m.token.has_logprobs = 1;
    m.token.logprobs.n_top = 20;
    m.token.logprobs.top[19].logprob = -3.5f;
    size_t n = away_wire_write(&m, bytes, &none);
    assert_int_equal(away_wire_read(&back, bytes, n, &err), FERRY_OK);
    assert_memory_equal(&back.token, &m.token, sizeof m.token);
    m = (struct away_message){.type = AWAY_HOLD, .id = 6, .hold = true};
    n = away_wire_write(&m, bytes, &none);
    assert_int_equal(away_wire_read(&back, bytes, n, &err), FERRY_OK);
    assert_true(back.hold && back.id == 6);
    m = (struct away_message){.type = AWAY_HELLO, .hello = {16, 1000, 2048}};
    n = away_wire_write(&m, bytes, &none);
    assert_int_equal(away_wire_read(&back, bytes, n, &err), FERRY_OK);
    assert_int_equal(back.hello.max_ids, 2048);
    m = (struct away_message){.type = AWAY_HOLD, .id = 6, .hold = false};
    n = away_wire_write(&m, bytes, &none);
    assert_int_equal(away_wire_read(&back, bytes, n, &err), FERRY_OK);
    assert_false(back.hold);
    static const enum away_type BARE[] = {AWAY_FAILED, AWAY_CANCEL, AWAY_CHECK};
    for (size_t i = 0; i < 3; i++) {
        m = (struct away_message){.type = BARE[i], .id = 8};
        n = away_wire_write(&m, bytes, &none);
        assert_int_equal(away_wire_read(&back, bytes, n, &err), FERRY_OK);
        assert_true(back.id == 8 && back.type == BARE[i]);
        assert_int_equal(away_wire_read(&back, bytes, n - 1, &err), FERRY_ERR_FORMAT);
    }
}

static void anything_is_survived(void **state)
{
    uint32_t seed = 11;
    size_t n_good = 0, n_bad = 0;

    (void)state;
    for (int round = 0; round < 100000; round++) {
        static unsigned char bytes[AWAY_MESSAGE_MAX];
        const struct logit_bias biases[3] = {{1, 1}, {2, 2}, {3, 3}};
        const int32_t ids[40] = {5};
        struct away_message back, m = {.type = (enum away_type)(unit_draw(&seed) % AWAY_TYPES),
                                       .biases = biases,
                                       .ids = ids,
                                       .n_ids = 1 + unit_draw(&seed) % 40};
        struct ferry_error err;
        size_t n_ids = 0;
        if (m.type == AWAY_START)
            m.start = (struct away_start){.n_ids = 40, .n_biases = unit_draw(&seed) % 4};
        size_t n = away_wire_write(&m, bytes, &n_ids);
        for (uint32_t i = unit_draw(&seed) % 4; i > 0; i--)
            bytes[unit_draw(&seed) % n] ^= (unsigned char)(1u << unit_draw(&seed) % 8);
        n -= unit_draw(&seed) % 3 == 0 ? unit_draw(&seed) % n : 0;
        unsigned char *exact = malloc(n + 1);
        memcpy(exact, bytes, n);
        if (away_wire_read(&back, exact, n, &err) != FERRY_OK) {
            n_bad++;
        } else {
            uint32_t sum = 0; /* every byte that it points to can be read */
            n_good++;
            for (size_t i = 0; i < back.n_ids * sizeof(int32_t); i++)
                sum += ((const unsigned char *)back.ids)[i];
            for (size_t i = 0;
                 back.type == AWAY_START && i < back.start.n_biases * sizeof(struct logit_bias);
                 i++)
                sum += ((const unsigned char *)back.biases)[i];
            assert_true(sum < UINT32_MAX);
            assert_true(back.type != AWAY_START || back.n_ids <= back.start.n_ids);
        }
        free(exact);
    }
    assert_true(n_good > 5000 && n_bad > 5000);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ids_travel_in_parts),
        cmocka_unit_test(small_ones_come_back),
        cmocka_unit_test(anything_is_survived),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
