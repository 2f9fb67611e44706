/* Unit tests of tensor/codec.c: decoding equals gguf bit for bit, encoding errs no more than ggml,
 * edges of the formats. */
#include "golden.h"

#include <signal.h>
#include <sys/resource.h>

static const struct {
    enum dtype dtype;
    double margin; /* squared error against ggml's encoder */
    float step;    /* relative error of a constant block */
} BLOCKS[] = {
    {DTYPE_Q8_0, 1.001, 0.001f}, {DTYPE_Q4_0, 1.001, 0.001f}, {DTYPE_Q4_1, 1.001, 0.001f},
    {DTYPE_Q5_0, 1.001, 0.001f}, {DTYPE_Q5_1, 1.001, 0.001f}, {DTYPE_IQ4_NL, 1.01, 0.001f},
    {DTYPE_MXFP4, 1.0, 0.25f},
};

static void decoding_equals_gguf(void **state)
{
    (void)state;
    golden_check_decode(DTYPE_F32);
    golden_check_decode(DTYPE_F16);
    golden_check_decode(DTYPE_BF16);
    for (size_t i = 0; i < COUNT_OF(BLOCKS); i++)
        golden_check_decode(BLOCKS[i].dtype);
}

static void encoding_errs_no_more_than_ggml(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT_OF(BLOCKS); i++)
        golden_check_encode(BLOCKS[i].dtype, BLOCKS[i].margin);
}

static void edges(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT_OF(BLOCKS); i++) {
        golden_check_broken(BLOCKS[i].dtype);
        golden_check_edges(BLOCKS[i].dtype, BLOCKS[i].step);
        golden_check_bounds(BLOCKS[i].dtype);
        golden_check_empty(BLOCKS[i].dtype);
    }
    golden_check_empty(DTYPE_F16);
    golden_check_bounds(DTYPE_F32);
    golden_check_bounds(DTYPE_F16);
    golden_check_bounds(DTYPE_BF16);
}

static void plain_types_go_both_ways(void **state)
{
    static uint16_t halves[65536], back[65536];
    static float values[65536];

    (void)state;
    for (size_t i = 0; i < COUNT_OF(halves); i++)
        halves[i] = (uint16_t)i;
    codec_decode_row(DTYPE_F16, halves, values, COUNT_OF(halves));
    codec_encode_row(DTYPE_F16, values, back, COUNT_OF(halves));
    for (size_t i = 0; i < COUNT_OF(halves); i++)
        assert_int_equal(back[i], isnan(values[i]) ? i | 0x200 : i);
    codec_decode_row(DTYPE_BF16, halves, values, COUNT_OF(halves));
    codec_encode_row(DTYPE_BF16, values, back, COUNT_OF(halves));
    for (size_t i = 0; i < COUNT_OF(halves); i++)
        assert_int_equal(back[i], isnan(values[i]) ? i | 0x40 : i);
    uint32_t bits[] = {0, 0x80000000u, 1, 0x7F800000u, 0x7F800001u, 0xFFFFFFFFu, 0x3F800000u};
    uint32_t same[COUNT_OF(bits)];
    float f[COUNT_OF(bits)];
    codec_decode_row(DTYPE_F32, bits, f, COUNT_OF(bits));
    codec_encode_row(DTYPE_F32, f, same, COUNT_OF(bits));
    assert_memory_equal(bits, same, sizeof bits);
}

/* Q8_0 codes may be -128 in a file, though no encoder writes it. */
static void least_code_is_exact(void **state)
{
    unsigned char block[34] = {0x00, 0x3C}; /* d = 1 */
    float x[32];

    (void)state;
    memset(block + 2, 0x80, 32);
    codec_decode_row(DTYPE_Q8_0, block, x, 32);
    for (int i = 0; i < 32; i++)
        assert_true(x[i] == -128.0f);
}

/* GGUF order: low nibbles are elements 0..15, high nibbles 16..31 (checkpoints of the MXFP4 models
 * themselves interleave them; mixing the two up is a known bug of engines). */
static void mxfp4_order_scale_and_nan(void **state)
{
    static const float VALUES[] = {0, .5f, 1, 1.5f, 2, 3, 4, 6, 0, -.5f, -1, -1.5f, -2, -3, -4, -6};
    unsigned char block[17] = {127}; /* scale 1 */
    float x[32];

    (void)state;
    for (int i = 0; i < 16; i++)
        block[1 + i] = (unsigned char)(i | (15 - i) << 4);
    codec_decode_row(DTYPE_MXFP4, block, x, 32);
    for (int i = 0; i < 16; i++) {
        assert_true(x[i] == VALUES[i]);
        assert_true(x[16 + i] == VALUES[15 - i]);
    }
    for (int e = 0; e < 255; e++) {
        block[0] = (unsigned char)e;
        codec_decode_row(DTYPE_MXFP4, block, x, 32);
        for (int i = 0; i < 16; i++)
            assert_true(x[i] == (float)ldexp((double)VALUES[i], e - 127));
    }
    block[0] = 255;
    codec_decode_row(DTYPE_MXFP4, block, x, 32);
    for (int i = 0; i < 32; i++)
        assert_true(isnan(x[i]));
}

static void mxfp4_encodes_what_it_can_say_exactly(void **state)
{
    static const float VALUES[] = {0, .5f, 1, 1.5f, 2, 3, 4, 6, 0, -.5f, -1, -1.5f, -2, -3, -4, -6};
    unsigned char block[17];
    float x[32], back[32];

    (void)state;
    for (int e = 0; e < 253; e++) { /* 6 * 2^126 is no float */
        for (int i = 0; i < 32; i++)
            x[i] = (float)ldexp((double)VALUES[(i * 7) % 16], e - 127);
        codec_encode_row(DTYPE_MXFP4, x, block, 32);
        codec_decode_row(DTYPE_MXFP4, block, back, 32);
        for (int i = 0; i < 32; i++)
            assert_true(back[i] == x[i]);
    }
    /* ties to the even code: 0.25 1.25 2.5 down, 0.75 1.75 3.5 5 to the even neighbour; 6 sets the
     * scale */
    static const float IN[] = {6, .25f, .75f, 1.25f, 1.75f, 2.5f, 3.5f, 5, -.75f, -2.5f, -5, -.25f};
    static const float OUT[] = {6, 0, 1, 1, 2, 2, 4, 4, -1, -2, -4, 0};
    memset(x, 0, sizeof x);
    memcpy(x, IN, sizeof IN);
    codec_encode_row(DTYPE_MXFP4, x, block, 32);
    codec_decode_row(DTYPE_MXFP4, block, back, 32);
    assert_int_equal(block[0], 127);
    for (size_t i = 0; i < COUNT_OF(OUT); i++)
        assert_true(back[i] == OUT[i]);
}

/* Codes are the nearest for the scale as stored: no other code of the block comes closer. Walks all
 * codes by rewriting the block. */
static void codes_are_nearest(void **state)
{
    static const struct {
        enum dtype dtype;
        size_t at; /* of the nibbles */
    } NIBBLES[] = {{DTYPE_Q4_0, 2}, {DTYPE_Q4_1, 4}, {DTYPE_IQ4_NL, 2}, {DTYPE_MXFP4, 1}};
    unsigned char block[34], other[34];
    float x[32], back[32], alternative[32];
    uint32_t r = 1;

    (void)state;
    for (int round = 0; round < 200; round++) {
        for (int i = 0; i < 32; i++) {
            r = r * 1664525u + 1013904223u;
            x[i] = ((float)(r >> 8) / 8388608.0f - 1.0f) * (i % 5 == 0 ? 0.1f : 0.01f);
        }
        for (size_t t = 0; t < COUNT_OF(NIBBLES); t++) {
            codec_encode_row(NIBBLES[t].dtype, x, block, 32);
            codec_decode_row(NIBBLES[t].dtype, block, back, 32);
            for (int c = 0; c < 16; c++) {
                memcpy(other, block, sizeof other);
                memset(other + NIBBLES[t].at, c | c << 4, 16);
                codec_decode_row(NIBBLES[t].dtype, other, alternative, 32);
                for (int i = 0; i < 32; i++) /* 1e-6: the encoder multiplies by 1 / d */
                    assert_true(fabsf(back[i] - x[i]) <=
                                fabsf(alternative[i] - x[i]) + 1e-6f * fabsf(x[i]));
            }
        }
    }
}

static void partial_block(void)
{
    const struct rlimit none = {0, 0};
    unsigned char block[34] = {0};
    float x[33];

    (void)setrlimit(RLIMIT_CORE, &none);
    (void)signal(SIGABRT, SIG_DFL);
    codec_decode_row(DTYPE_Q8_0, block, x, 33);
}

static void partial_blocks_are_caught(void **state)
{
    char text[400];

    (void)state;
    int status = run_in_child(partial_block, text, sizeof text);
    assert_true(WIFSIGNALED(status));
    assert_int_equal(WTERMSIG(status), SIGABRT);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(decoding_equals_gguf),
        cmocka_unit_test(encoding_errs_no_more_than_ggml),
        cmocka_unit_test(edges),
        cmocka_unit_test(plain_types_go_both_ways),
        cmocka_unit_test(least_code_is_exact),
        cmocka_unit_test(mxfp4_order_scale_and_nan),
        cmocka_unit_test(mxfp4_encodes_what_it_can_say_exactly),
        cmocka_unit_test(codes_are_nearest),
        cmocka_unit_test(partial_blocks_are_caught),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
