/* What the tests of the CPU backend share: devices of several kinds that must all give one answer,
 * and random matrices in any format. Test code only. */
#ifndef TESTS_UNIT_DEVICE_CPU_SETUP_H
#define TESTS_UNIT_DEVICE_CPU_SETUP_H

#include "tests/unit/unit.h"

#include "base/alloc.h"
#include "device/device.h"
#include "tensor/codec.h"

#include <stdlib.h>
#include <string.h>

/* devices[0] is the plainest: one thread, reference kernels. */
enum { N_DEVICES = 5 };
static struct device *devices[N_DEVICES];

static const struct device_limits LIMITS = {
    .n_slots = 4096, .n_heads = 12, .n_kv_heads = 2, .head_dim = 32, .group_bytes = 64 << 10};

static int open_devices(void **state)
{
    const struct device_options options[N_DEVICES] = {{1, CPU_LEVEL_REF},
                                                      {2, CPU_LEVEL_REF},
                                                      {1, cpu_best_level()},
                                                      {2, cpu_best_level()},
                                                      {5, cpu_best_level()}};
    struct ferry_error err = {0};

    (void)state;
    for (int i = 0; i < N_DEVICES; i++) {
        if (device_create_cpu(&devices[i], &options[i], &err) != FERRY_OK ||
            device_reserve(devices[i], &LIMITS, &err) != FERRY_OK) {
            (void)fprintf(stderr, "%s\n", err.msg);
            return -1;
        }
    }
    return 0;
}

static int close_devices(void **state)
{
    (void)state;
    for (int i = 0; i < N_DEVICES; i++)
        device_destroy(devices[i]);
    return 0;
}

static uint64_t random_state = 1;

/* Uniform in [-1, 1). */
static float uniform(void)
{
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (float)(random_state >> 40) * 0x1p-23f - 1.0f;
}

static float *random_floats(size_t n)
{
    float *x = mem_array(n, sizeof *x);
    assert_non_null(x);
    for (size_t i = 0; i < n; i++)
        x[i] = uniform();
    return x;
}

/* A random matrix in file rows; packed too unless `packed` is false. Freed by matrix_fini. */
static inline struct weight matrix_make(enum dtype dtype, size_t n_cols, size_t k, bool packed)
{
    struct weight w = {.dtype = dtype, .n_cols = n_cols, .k = k};
    float *row = mem_array(k, sizeof *row);
    size_t size;

    w.row_bytes = k / dtype_block_elems(dtype) * dtype_block_bytes(dtype);
    w.group_bytes = pack_group_bytes(dtype, k);
    unsigned char *rows = mem_array(n_cols, w.row_bytes);
    assert_non_null(row);
    assert_non_null(rows);
    for (size_t c = 0; c < n_cols; c++) {
        for (size_t j = 0; j < k; j++)
            row[j] = uniform();
        codec_encode_row(dtype, row, rows + c * w.row_bytes, k);
    }
    mem_free(row);
    w.rows = rows;
    if (packed) {
        assert_true(device_weight_bytes(dtype, n_cols, k, &size));
        void *dst = mem_alloc(size);
        assert_non_null(dst);
        device_weight_pack(devices[3], &w, dst);
        assert_ptr_equal(w.packed, dst);
    }
    return w;
}

static inline void matrix_fini(struct weight *w)
{
    mem_free((void *)(uintptr_t)w->rows);
    mem_free((void *)(uintptr_t)w->packed);
    *w = (struct weight){0};
}

/* Both formats of n random rows of k; the floats and the A32 rows are the caller's to free. */
static inline struct act_rows rows_make(size_t n, size_t k)
{
    struct act_rows rows = {.f32 = random_floats(n * k), .f32_stride = k, .k = k};
    rows.a32 = mem_alloc(n * act_row_bytes(ACT_FORMAT_A32, k));
    assert_non_null(rows.a32);
    device_quantize(devices[0], &rows, n);
    return rows;
}

static inline void rows_fini(struct act_rows *rows)
{
    mem_free((void *)(uintptr_t)rows->f32);
    mem_free(rows->a32);
}

#endif
