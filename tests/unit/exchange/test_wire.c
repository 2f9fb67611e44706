/* Requests: what was written is read back; nothing that no rank may send gets through, whatever a
 * peer puts into a message, also while it is being read. */
#include "tests/unit/exchange/one_device.h"

#include "exchange/wire.h"

#include <stdlib.h>
#include <string.h>

enum { A32 = 128, F32 = 48, HIDDEN = 37, SLOTS = 50, EXPERTS = 11, LAYERS = 4 };

static const struct wire_shape SHAPE = {LAYERS, EXPERTS, HIDDEN, SLOTS, A32, F32};

/* A sound message of n_rows rows, two pairs in one group each. */
static struct fabric_message make(unsigned char *payload, unsigned flags, size_t n_rows)
{
    static unsigned char a32[8 * A32];
    static float f32[8 * HIDDEN];
    struct exchange_rows rows = {.a32 = a32, .a32_bytes = A32, .f32 = f32, .f32_stride = HIDDEN};
    struct exchange_pair pairs[16];
    uint32_t tokens[8];

    for (size_t i = 0; i < 8 * A32; i++)
        a32[i] = (unsigned char)(i * 7);
    for (size_t i = 0; i < 8 * HIDDEN; i++)
        f32[i] = (float)i;
    for (uint32_t i = 0; i < n_rows; i++) {
        tokens[i] = 7 - i;
        pairs[2 * i] = (struct exchange_pair){i, (uint16_t)i, 1, (float)i};
        pairs[2 * i + 1] = (struct exchange_pair){i, (uint16_t)(i + 3), 0, 1};
    }
    wire_request_write(payload, device, &SHAPE, flags, &rows, tokens, n_rows, pairs, 2 * n_rows,
                       n_rows % 2 == 0);
    struct fabric_message m = {.data = payload, .seat = 3};
    m.header.kind = (uint16_t)(WIRE_ROWS | flags);
    m.header.n_rows = (uint32_t)n_rows;
    m.header.n_pairs = (uint32_t)(2 * n_rows);
    m.header.n_groups = (uint32_t)n_rows;
    m.header.layer = 2;
    m.header.n_bytes = (uint32_t)(n_rows * wire_row_bytes(&SHAPE, flags) + 24 * n_rows);
    return m;
}

static void written_is_read(void **state)
{
    static const unsigned FLAGS[] = {WIRE_A32, WIRE_F32, WIRE_A32 | WIRE_F32};
    struct ferry_error err;

    (void)state;
    for (size_t f = 0; f < 3; f++) {
        unsigned char *payload = aligned_alloc(64, 64 * 64);
        struct exchange_pair pairs[SLOTS];
        struct wire_request r;
        struct fabric_message m = make(payload, FLAGS[f], 5);
        assert_int_equal(wire_request_read(&r, pairs, &SHAPE, &m, &err), FERRY_OK);
        assert_int_equal(r.n_rows, 5);
        assert_int_equal(r.n_pairs, 10);
        assert_int_equal(r.n_groups, 5);
        assert_int_equal(pairs[9].row, 4);
        assert_int_equal(pairs[9].expert, 7);
        for (size_t i = 0; i < 5; i++) {
            size_t token = 7 - i;
            if ((FLAGS[f] & WIRE_A32) != 0)
                assert_int_equal(r.rows.a32[i * r.rows.a32_bytes + 1],
                                 (unsigned char)((token * A32 + 1) * 7));
            else
                assert_null(r.rows.a32);
            if ((FLAGS[f] & WIRE_F32) != 0)
                assert_true(r.rows.f32[i * r.rows.f32_stride + HIDDEN - 1] ==
                            (float)(token * HIDDEN + HIDDEN - 1));
            else
                assert_null(r.rows.f32);
        }
        free(payload);
    }
}

/* Any header over any bytes: an error, or a request all of whose parts lie in the payload. */
static void anything_is_survived(void **state)
{
    uint32_t seed = 3;
    size_t n_good = 0, n_bad = 0;

    (void)state;
    for (int round = 0; round < 60000; round++) {
        size_t n_rows = 1 + unit_draw(&seed) % 8;
        unsigned flags = (1 + unit_draw(&seed) % 3) << 8;
        unsigned char *payload = aligned_alloc(64, 64 * 200);
        struct exchange_pair pairs[SLOTS];
        struct wire_request r;
        struct ferry_error err;
        struct fabric_message m = make(payload, flags, n_rows);
        /* A payload of exactly its size, so that a sanitizer sees every byte too far. */
        unsigned char *exact = malloc(m.header.n_bytes);
        memcpy(exact, payload, m.header.n_bytes);
        m.data = exact;
        switch (unit_draw(&seed) % 8) {
        case 0:
            m.header.n_pairs = unit_draw(&seed) % 80;
            break;
        case 1:
            m.header.n_rows = unit_draw(&seed) % 80;
            break;
        case 2:
            m.header.kind ^= (uint16_t)(1u << unit_draw(&seed) % 16);
            break;
        case 3:
            m.header.layer = unit_draw(&seed) % 9;
            break;
        case 4:
            m.header.n_pairs = unit_draw(&seed) * 977;
            m.header.n_rows = unit_draw(&seed) * 331;
            break;
        default: { /* the pairs */
            size_t at = m.header.n_bytes - 24 * n_rows + unit_draw(&seed) % (24 * n_rows);
            exact[at] ^= (unsigned char)(1u << unit_draw(&seed) % 8);
            break;
        }
        }
        if (wire_request_read(&r, pairs, &SHAPE, &m, &err) != FERRY_OK) {
            n_bad++;
            assert_true(strlen(err.msg) > 0);
        } else {
            size_t n_groups = 0;
            n_good++;
            assert_true(m.header.layer < LAYERS && r.n_pairs <= SLOTS);
            for (size_t i = 0; i < r.n_pairs; i++) {
                assert_true(pairs[i].row < r.n_rows && pairs[i].expert < EXPERTS);
                n_groups += pairs[i].begins;
                assert_true(pairs[i].begins == 1 || (i > 0 && pairs[i].row == pairs[i - 1].row &&
                                                     pairs[i].expert > pairs[i - 1].expert));
            }
            assert_int_equal(n_groups, r.n_groups);
        }
        free(exact);
        free(payload);
    }
    assert_true(n_good > 1000 && n_bad > 1000);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(written_is_read),
        cmocka_unit_test(anything_is_survived),
    };
    return cmocka_run_group_tests(tests, make_device, free_device);
}
