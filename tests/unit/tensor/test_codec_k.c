/* Unit tests of tensor/codec_k.c: decoding equals gguf bit for bit, encoding errs no more than
 * ggml, every bit of the packed scales and codes has its place. */
#include "golden.h"

static const struct {
    enum dtype dtype;
    double margin; /* squared error against ggml's encoder */
    float step;    /* relative error of a constant block */
} TYPES[] = {
    {DTYPE_Q4_K, 1.0, 0.01f},
    {DTYPE_Q5_K, 1.0, 0.01f},
    {DTYPE_Q6_K, 1.0, 0.01f},
};

static void decoding_equals_gguf(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT_OF(TYPES); i++)
        golden_check_decode(TYPES[i].dtype);
}

static void encoding_errs_no_more_than_ggml(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT_OF(TYPES); i++)
        golden_check_encode(TYPES[i].dtype, TYPES[i].margin);
}

static void edges(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT_OF(TYPES); i++) {
        golden_check_broken(TYPES[i].dtype);
        golden_check_edges(TYPES[i].dtype, TYPES[i].step);
        golden_check_bounds(TYPES[i].dtype);
        golden_check_empty(TYPES[i].dtype);
    }
}

/* Values that sit on a grid the format can say come back exactly: exercises every code of every
 * sub-block through pack and unpack. Scales 1..63 and minimums up to 63 with d = dmin = 2^-6. */
static void grid_values_come_back(void **state)
{
    static const struct {
        enum dtype dtype;
        int levels;
    } AFFINE[] = {{DTYPE_Q4_K, 15}, {DTYPE_Q5_K, 31}};
    unsigned char block[256];
    float x[256], back[256];

    (void)state;
    for (size_t t = 0; t < COUNT_OF(AFFINE); t++) {
        for (int round = 0; round < 63; round++) {
            for (int s = 0; s < 8; s++) {
                int sc = 1 + (s * 9 + round) % 63, m = (s * 8 + round * 5) % 64;
                sc = s == 3 ? 63 : sc; /* the largest ones set d and dmin */
                m = s == 5 ? 63 : m;
                for (int l = 0; l < 32; l++) {
                    int q = (l * 11 + s) % (AFFINE[t].levels + 1);
                    x[s * 32 + l] = ldexpf((float)(sc * q - m), -6);
                }
            }
            codec_encode_row(AFFINE[t].dtype, x, block, 256);
            codec_decode_row(AFFINE[t].dtype, block, back, 256);
            double e = mean_squared_error(x, back, 256);
            assert_true(e < 1e-3 * 1e-3); /* one step of the smallest grid is 1.6e-2 */
        }
    }
    for (int round = 0; round < 64; round++) {
        for (int s = 0; s < 16; s++) {
            int sc = s == 7 ? -128 : (s * 16 + round * 4) % 255 - 127;
            for (int l = 0; l < 16; l++) {
                int q = l == round % 16 ? -32 : (l * 5 + round) % 64 - 32; /* -32 fixes the scale */
                x[s * 16 + l] = ldexpf((float)(sc * q), -9);
            }
        }
        codec_encode_row(DTYPE_Q6_K, x, block, 256);
        codec_decode_row(DTYPE_Q6_K, block, back, 256);
        for (int i = 0; i < 256; i++)
            assert_true(back[i] == x[i]);
    }
}

/* Flipping any bit of a block changes a decoded value: no bit is read twice for another or not at
 * all. */
static void every_bit_counts(void **state)
{
    unsigned char block[256];
    float x[256], base[256], back[256];

    (void)state;
    for (size_t t = 0; t < COUNT_OF(TYPES); t++) {
        size_t n_bytes = dtype_block_bytes(TYPES[t].dtype);
        for (int i = 0; i < 256; i++)
            x[i] = sinf((float)i * 1.7f) * (0.5f + (float)(i / 16)) - 0.3f;
        codec_encode_row(TYPES[t].dtype, x, block, 256);
        codec_decode_row(TYPES[t].dtype, block, base, 256);
        for (size_t bit = 0; bit < 8 * n_bytes; bit++) {
            block[bit / 8] ^= (unsigned char)(1u << bit % 8);
            codec_decode_row(TYPES[t].dtype, block, back, 256);
            block[bit / 8] ^= (unsigned char)(1u << bit % 8);
            int n_changed = 0;
            for (int i = 0; i < 256; i++)
                n_changed += !same_number(base[i], back[i]);
            if (n_changed == 0)
                fail_msg("%s: bit %zu changes nothing", dtype_name(TYPES[t].dtype), bit);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(decoding_equals_gguf),
        cmocka_unit_test(encoding_errs_no_more_than_ggml),
        cmocka_unit_test(edges),
        cmocka_unit_test(grid_values_come_back),
        cmocka_unit_test(every_bit_counts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
