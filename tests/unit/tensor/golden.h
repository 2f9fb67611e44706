/* Reading of tests/data/codec, for test_codec.c and test_codec_k.c. Test code only. */
#ifndef TESTS_UNIT_TENSOR_GOLDEN_H
#define TESTS_UNIT_TENSOR_GOLDEN_H

#include "../unit.h"

#include "tensor/codec.h"
#include "tensor/half.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { GOLDEN_KINDS = 4, GOLDEN_KIND = 1024, GOLDEN_INPUT = GOLDEN_KINDS * GOLDEN_KIND };

/* A whole file; the caller frees it. */
static inline unsigned char *golden_read(const char *name, size_t *ret_bytes)
{
    char path[512];

    (void)snprintf(path, sizeof path, "%s/tests/data/codec/%s", FERRY_SOURCE_DIR, name);
    FILE *f = fopen(path, "rb");
    if (f == NULL)
        fail_msg("cannot open %s", path);
    const size_t max = 1 << 20;
    unsigned char *data = malloc(max);
    assert_non_null(data);
    *ret_bytes = fread(data, 1, max, f);
    (void)fclose(f);
    return data;
}

static inline bool same_number(float a, float b)
{
    return f32_to_bits(a) == f32_to_bits(b) || (isnan(a) && isnan(b));
}

/* Decoding of the committed blocks, at every alignment of 0..3, equals gguf's bit for bit. */
static inline void golden_check_decode(enum dtype dtype)
{
    char name[32];
    size_t n_file;
    uint32_t n, n_bytes;

    (void)snprintf(name, sizeof name, "%s.bin", dtype_name(dtype));
    unsigned char *file = golden_read(name, &n_file);
    assert_memory_equal(file, "FCODEC1", 8);
    memcpy(&n, file + 8, 4);
    memcpy(&n_bytes, file + 12, 4);
    assert_int_equal(n_file, 16 + (size_t)n_bytes + 4 * (size_t)n);
    uint64_t row_bytes = 0;
    assert_true(dtype_row_bytes(dtype, n, &row_bytes));
    assert_int_equal(row_bytes, n_bytes);

    const float *want = (const float *)(const void *)(file + 16 + n_bytes);
    for (size_t shift = 0; shift < 4; shift++) {
        unsigned char *src = malloc(n_bytes + shift); /* exact size: overreads show under asan */
        float *got = malloc(n * sizeof *got);
        assert_true(src != NULL && got != NULL);
        memcpy(src + shift, file + 16, n_bytes);
        codec_decode_row(dtype, src + shift, got, n);
        for (size_t i = 0; i < n; i++) {
            float w;
            memcpy(&w, (const unsigned char *)want + 4 * i, 4);
            if (!same_number(got[i], w))
                fail_msg("%s element %zu: %a, want %a", dtype_name(dtype), i, (double)got[i],
                         (double)w);
        }
        free(got);
        free(src);
    }
    free(file);
}

static inline double mean_squared_error(const float *x, const float *y, size_t n)
{
    double sum = 0;
    for (size_t i = 0; i < n; i++)
        sum += ((double)x[i] - (double)y[i]) * ((double)x[i] - (double)y[i]);
    return sum / (double)n;
}

/* Our encoder's mean squared error is at most `margin` times that of ggml's, per distribution. */
static inline void golden_check_encode(enum dtype dtype, double margin)
{
    size_t n_file, n_text;
    unsigned char *file = golden_read("input.bin", &n_file);
    char *text = (char *)golden_read("errors.txt", &n_text);
    static float x[GOLDEN_INPUT], back[GOLDEN_INPUT];
    double peer[GOLDEN_KINDS];
    uint64_t n_bytes = 0;
    bool found = false;

    assert_int_equal(n_file, sizeof x);
    memcpy(x, file, sizeof x);
    text[n_text - 1] = 0;
    for (char *line = strtok(text, "\n"); line != NULL; line = strtok(NULL, "\n")) {
        char name[16];
        if (sscanf(line, "%15s %lf %lf %lf %lf", name, &peer[0], &peer[1], &peer[2], &peer[3]) ==
                5 &&
            strcmp(name, dtype_name(dtype)) == 0) {
            found = true;
            break;
        }
    }
    assert_true(found);
    assert_true(dtype_row_bytes(dtype, GOLDEN_INPUT, &n_bytes));
    unsigned char *blocks = malloc(n_bytes);
    assert_non_null(blocks);
    codec_encode_row(dtype, x, blocks, GOLDEN_INPUT);
    codec_decode_row(dtype, blocks, back, GOLDEN_INPUT);
    for (size_t k = 0; k < GOLDEN_KINDS; k++) {
        double e = mean_squared_error(x + k * GOLDEN_KIND, back + k * GOLDEN_KIND, GOLDEN_KIND);
        if (!(e <= margin * peer[k]))
            fail_msg("%s distribution %zu: error %g, ggml's %g, ratio %.4f over %.4f",
                     dtype_name(dtype), k, e, peer[k], e / peer[k], margin);
    }
    free(blocks);
    free(text);
    free(file);
}

/* A broken value makes its block decode to NaN, and only its block. */
static inline void golden_check_broken(enum dtype dtype)
{
    static const float BROKEN[] = {INFINITY, -INFINITY, NAN};
    size_t block = dtype_block_elems(dtype);
    float x[768], back[768];
    unsigned char blocks[3072];

    for (size_t b = 0; b < COUNT_OF(BROKEN); b++) {
        for (size_t i = 0; i < COUNT_OF(x); i++)
            x[i] = (float)i - 300.0f;
        x[block + block - 1] = BROKEN[b];
        codec_encode_row(dtype, x, blocks, 3 * block);
        codec_decode_row(dtype, blocks, back, 3 * block);
        for (size_t i = 0; i < 3 * block; i++)
            assert_int_equal(isnan(back[i]), i / block == 1);
    }
}

/* All zeros encode to zeros; so does a block too small for an f16 scale (but not MXFP4, whose scale
 * reaches 2^-127). A constant comes back within the format's step. */
static inline void golden_check_edges(enum dtype dtype, float step)
{
    size_t n = dtype_block_elems(dtype);
    float x[256], back[256];
    unsigned char blocks[1024];

    memset(x, 0, sizeof x);
    codec_encode_row(dtype, x, blocks, n);
    codec_decode_row(dtype, blocks, back, n);
    for (size_t i = 0; i < n; i++)
        assert_true(back[i] == 0.0f);
    for (size_t i = 0; i < n; i++)
        x[i] = i % 2 == 0 ? 1e-30f : -1e-30f;
    codec_encode_row(dtype, x, blocks, n);
    codec_decode_row(dtype, blocks, back, n);
    for (size_t i = 0; i < n; i++)
        assert_true(fabsf(back[i]) <= 1.5e-30f);
    static const float CONSTANTS[] = {1.0f, -1.0f, 1000.0f, -0.015625f};
    for (size_t c = 0; c < COUNT_OF(CONSTANTS); c++) {
        for (size_t i = 0; i < n; i++)
            x[i] = CONSTANTS[c];
        codec_encode_row(dtype, x, blocks, n);
        codec_decode_row(dtype, blocks, back, n);
        for (size_t i = 0; i < n; i++) {
            if (!(fabsf(back[i] - x[i]) <= step * fabsf(x[i])))
                fail_msg("%s: %g comes back as %g", dtype_name(dtype), (double)x[i],
                         (double)back[i]);
        }
    }
}

/* 0 elements read and write nothing; n that is no multiple of the block is a caller's bug. */
static inline void golden_check_empty(enum dtype dtype)
{
    unsigned char byte = 0xA5;
    float value = 7.0f;

    codec_encode_row(dtype, &value, &byte, 0);
    codec_decode_row(dtype, &byte, &value, 0);
    assert_int_equal(byte, 0xA5);
    assert_true(value == 7.0f);
}

/* Encoding writes exactly the row's bytes. */
static inline void golden_check_bounds(enum dtype dtype)
{
    size_t n = dtype_block_elems(dtype) * 3;
    uint64_t n_bytes = 0;
    float x[768];
    static unsigned char first[3072];

    assert_true(dtype_row_bytes(dtype, n, &n_bytes));
    for (size_t i = 0; i < n; i++)
        x[i] = sinf((float)i);
    unsigned char *blocks = malloc(n_bytes + 2);
    assert_non_null(blocks);
    for (int fill = 0; fill < 2; fill++) { /* every byte is written, none beyond */
        memset(blocks, fill ? 0xFF : 0x00, n_bytes + 2);
        codec_encode_row(dtype, x, blocks + 1, n);
        assert_int_equal(blocks[0], fill ? 0xFF : 0x00);
        assert_int_equal(blocks[n_bytes + 1], fill ? 0xFF : 0x00);

        if (fill == 0)
            memcpy(first, blocks + 1, n_bytes);
        else
            assert_memory_equal(first, blocks + 1, n_bytes);
    }
    free(blocks);
}

#endif
