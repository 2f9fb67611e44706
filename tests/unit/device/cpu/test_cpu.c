/* The CPU backend's row operations against plain loops in f64, equal bits for every device, and its
 * life cycle. */
#include "setup.h"

#include "base/size.h"

#include <math.h>
#include <stdatomic.h>

enum { ROWS = 37, K = 100 };

/* Runs `body` for every device on a fresh copy of x and compares with the first device's result. */
#define ON_ALL(out, x, n, body)                                             \
    do {                                                                    \
        float *first_ = mem_array(n, sizeof *first_);                       \
        for (int d = 0; d < N_DEVICES; d++) {                               \
            memcpy(out, x, (n) * sizeof *(out));                            \
            struct device *device = devices[d];                             \
            body;                                                           \
            if (d == 0)                                                     \
                memcpy(first_, out, (n) * sizeof *(out));                   \
            else if (memcmp(first_, out, (n) * sizeof *(out)) != 0)         \
                fail_msg("device %d has other bits than the reference", d); \
        }                                                                   \
        mem_free(first_);                                                   \
    } while (0)

static void embedding_decodes_and_scales(void **state)
{
    static const enum dtype DTYPES[] = {DTYPE_F32, DTYPE_F16, DTYPE_BF16, DTYPE_Q8_0, DTYPE_Q4_K};
    const int32_t ids[5] = {3, 0, 9, 9, 1};
    float zero[5 * 256] = {0}, out[5 * 256], row[256];

    (void)state;
    for (size_t i = 0; i < COUNT_OF(DTYPES); i++) {
        struct weight table = matrix_make(DTYPES[i], 10, 256, false);
        for (int s = 0; s < 2; s++) {
            float scale = s == 0 ? 1.0f : 12.0f;
            ON_ALL(out, zero, (size_t)(5 * 256), device_embed(device, &table, ids, 5, scale, out));
            for (size_t t = 0; t < 5; t++) {
                codec_decode_row(DTYPES[i],
                                 (const char *)table.rows + (size_t)ids[t] * table.row_bytes, row,
                                 256);
                for (size_t j = 0; j < 256; j++)
                    assert_true(out[t * 256 + j] == row[j] * scale);
            }
        }
        matrix_fini(&table);
    }
}

static void check_norm(const float *out, const float *x, const float *w, size_t n, double eps)
{
    double sum = 0;

    for (size_t j = 0; j < n; j++)
        sum += (double)x[j] * (double)x[j];
    double scale = 1 / sqrt(sum / (double)n + eps);
    for (size_t j = 0; j < n; j++)
        assert_float_equal(out[j], (float)((double)x[j] * scale * (double)w[j]), 2e-6f);
}

static void norms_are_root_mean_squares(void **state)
{
    float *x = random_floats(ROWS * K), *w = random_floats(K), *out = mem_array(ROWS * K, 4);

    (void)state;
    ON_ALL(out, x, (size_t)(ROWS * K), device_rms_norm(device, out, x, w, ROWS, K, 1e-5f));
    for (size_t i = 0; i < ROWS; i++)
        check_norm(out + i * K, x + i * K, w, K, 1e-5);
    /* In place gives the same, and so do heads inside of wider rows: 3 heads of 20 in 100. */
    float *again = mem_array(ROWS * K, 4);
    ON_ALL(again, x, (size_t)(ROWS * K), device_rms_norm(device, again, again, w, ROWS, K, 1e-5f));
    assert_memory_equal(again, out, ROWS * K * sizeof *out);
    ON_ALL(out, x, (size_t)(ROWS * K), device_head_norm(device, out, K, w, ROWS, 3, 20, 1e-6f));
    for (size_t i = 0; i < ROWS; i++) {
        for (size_t h = 0; h < 3; h++)
            check_norm(out + i * K + h * 20, x + i * K + h * 20, w, 20, 1e-6);
        assert_memory_equal(out + i * K + 60, x + i * K + 60, 40 * sizeof *x);
    }
    mem_free(x);
    mem_free(w);
    mem_free(out);
    mem_free(again);
}

static void quantising_is_the_kernel_on_each_row(void **state)
{
    size_t stride = act_row_bytes(ACT_FORMAT_A32, K), used = act_blocks(K) * (ACT_BLOCK + 8);
    float *x = random_floats(ROWS * (K + 3));
    unsigned char *out = mem_alloc(ROWS * stride), *one = mem_alloc(stride);

    (void)state;
    for (int d = 0; d < N_DEVICES; d++) {
        struct act_rows rows = {x, K + 3, out, K};
        memset(out, 0x55, ROWS * stride);
        device_quantize(devices[d], &rows, ROWS);
        for (size_t i = 0; i < ROWS; i++) {
            device_kernels(devices[0])->quantize_a32(one, x + i * (K + 3), K);
            assert_memory_equal(out + i * stride, one, used);
        }
    }
    mem_free(x);
    mem_free(out);
    mem_free(one);
}

static void rope_turns_pairs(void **state)
{
    enum { HEADS = 3, DIM = 20, PAIRS = 8, WIDTH = HEADS * DIM };
    float *x = random_floats(ROWS * WIDTH), *out = mem_array(ROWS * WIDTH, 4);
    float *q = random_floats(ROWS * WIDTH), cos_[ROWS * PAIRS], sin_[ROWS * PAIRS];

    (void)state;
    for (size_t i = 0; i < (size_t)ROWS * PAIRS; i++) {
        cos_[i] = (float)cos((double)i);
        sin_[i] = (float)sin((double)i);
    }
    for (int interleaved = 0; interleaved < 2; interleaved++) {
        struct rope_job job = {q,   out,   WIDTH, WIDTH, HEADS,           HEADS,
                               DIM, PAIRS, cos_,  sin_,  interleaved != 0};
        ON_ALL(out, x, (size_t)(ROWS * WIDTH), device_rope(device, &job, ROWS));
        for (size_t i = 0; i < (size_t)ROWS * HEADS; i++) {
            const float *a = x + i * DIM, *b = out + i * DIM;
            for (size_t p = 0; p < PAIRS; p++) {
                size_t at = interleaved ? 2 * p : p, to = interleaved ? 2 * p + 1 : p + PAIRS;
                double c = (double)cos_[i / HEADS * PAIRS + p];
                double s = (double)sin_[i / HEADS * PAIRS + p];
                assert_float_equal(b[at], (float)((double)a[at] * c - (double)a[to] * s), 1e-6f);
                assert_float_equal(b[to], (float)((double)a[at] * s + (double)a[to] * c), 1e-6f);
            }
            assert_memory_equal(a + 2 * PAIRS, b + 2 * PAIRS, (DIM - 2 * PAIRS) * sizeof *a);
        }
    }
    mem_free(x);
    mem_free(q);
    mem_free(out);
}

static void element_operations(void **state)
{
    enum { N = 40000 }; /* more than one grain of work */
    float *x = random_floats(N), *y = random_floats(N), *out = mem_array(N, 4);

    (void)state;
    ON_ALL(out, y, (size_t)N, device_add(device, out, x, N));
    for (size_t i = 0; i < N; i++)
        assert_true(out[i] == x[i] + y[i]);
    ON_ALL(out, y, (size_t)N, device_scale(device, out, 0.22f, N));
    for (size_t i = 0; i < N; i++)
        assert_true(out[i] == y[i] * 0.22f);
    x[7] = NAN;
    x[8] = INFINITY;
    x[9] = -INFINITY;
    ON_ALL(out, x, (size_t)N, device_clamp(device, out, 0.5f, N));
    for (size_t i = 0; i < N; i++) {
        if (i != 7)
            assert_true(out[i] == (x[i] > 0.5f ? 0.5f : x[i] < -0.5f ? -0.5f : x[i]));
    }
    assert_true(isnan(out[7])); /* a NaN must stay visible */
    mem_free(x);
    mem_free(y);
    mem_free(out);
}

static void gates_scale_rows(void **state)
{
    float *y = random_floats(ROWS * K), *gate = random_floats(ROWS), *out = mem_array(ROWS * K, 4);

    (void)state;
    for (size_t i = 0; i < ROWS; i++)
        gate[i] *= 8;
    ON_ALL(out, y, (size_t)(ROWS * K), device_gate_rows(device, out, gate, ROWS, K));
    for (size_t i = 0; i < (size_t)ROWS * K; i++)
        assert_float_equal(out[i], (float)((double)y[i] / (1 + exp(-(double)gate[i / K]))), 1e-6f);
    mem_free(y);
    mem_free(gate);
    mem_free(out);
}

static void count(void *arg, size_t begin, size_t end, int thread_index)
{
    atomic_int *seen = arg;

    (void)thread_index;

    for (size_t i = begin; i < end; i++)
        atomic_fetch_add(&seen[i], 1);
}

static void loops_touch_each_item_once(void **state)
{
    static atomic_int seen[1000];

    (void)state;
    for (int d = 0; d < N_DEVICES; d++) {
        device_for(devices[d], 1000, 7, count, seen);
        device_for(devices[d], 0, 7, count, seen);
        for (size_t i = 0; i < 1000; i++)
            assert_int_equal(atomic_load(&seen[i]), d + 1);
    }
}

static void options_are_followed(void **state)
{
    (void)state;
    assert_int_equal(device_threads(devices[0]), 1);
    assert_int_equal(device_threads(devices[4]), 5);
    assert_int_equal(device_kernels(devices[0])->level, CPU_LEVEL_REF);
    assert_int_equal(device_kernels(devices[4])->level, cpu_best_level());
    struct device *all = NULL;
    const struct device_options options = {0, CPU_LEVEL_COUNT}; /* more than there is: the best */
    assert_int_equal(device_create_cpu(&all, &options, NULL), FERRY_OK);
    assert_int_equal(device_threads(all), cpu_count());
    assert_int_equal(device_kernels(all)->level, cpu_best_level());
    device_destroy(all);
    device_destroy(NULL);
}

static void sizes_are_checked(void **state)
{
    size_t n = 0;

    (void)state;
    assert_true(device_weight_bytes(DTYPE_Q8_0, 9, 64, &n));
    assert_int_equal(n, 2 * pack_group_bytes(DTYPE_Q8_0, 64)); /* 9 columns are two groups */
    assert_true(device_weight_bytes(DTYPE_F32, 0, 64, &n));
    assert_int_equal(n, 0);
    assert_false(device_weight_bytes(DTYPE_F32, SIZE_MAX / 2, 1 << 20, &n));
}

static void one_thread_packs_the_same_bytes(void **state)
{
    enum { COLS = 203 };
    static float rows[COLS * K];
    struct weight w = {.dtype = DTYPE_F32, .n_cols = COLS, .k = K, .row_bytes = K * 4};
    size_t n = 0;

    (void)state;
    for (size_t i = 0; i < COUNT_OF(rows); i++)
        rows[i] = (float)(i * 2654435761u >> 7);
    w.rows = rows;
    w.group_bytes = pack_group_bytes(w.dtype, w.k);
    assert_true(device_weight_bytes(w.dtype, w.n_cols, w.k, &n));
    unsigned char *want = mem_alloc(n), *got = mem_alloc(n);
    memset(want, 1, n);
    memset(got, 2, n); /* columns that are not there are packed, too */
    device_weight_pack(devices[2], &w, want);
    assert_ptr_equal(w.packed, want);
    device_weight_pack_alone(&w, got);
    assert_ptr_equal(w.packed, got);
    assert_memory_equal(want, got, n);
    mem_free(want);
    mem_free(got);
}

static void reserving_grows_and_plans(void **state)
{
    struct device *device = NULL;
    const struct device_options options = {2, cpu_best_level()};
    struct device_limits limits = {10, 4, 2, 8, 0}, big = {1000, 64, 4, 128, 1 << 20};

    (void)state;
    assert_int_equal(device_create_cpu(&device, &options, NULL), FERRY_OK);
    assert_true(device_reserve_bytes(device, &limits) < device_reserve_bytes(device, &big));
    assert_true(device_reserve_bytes(device, &big) > 2u << 20);
    uint64_t before = mem_count_calls();
    assert_int_equal(device_reserve(device, &limits, NULL), FERRY_OK);
    assert_true(mem_count_calls() > before);
    before = mem_count_calls();
    assert_int_equal(device_reserve(device, &limits, NULL), FERRY_OK); /* enough is there */
    assert_int_equal(mem_count_calls(), before);
    assert_int_equal(device_reserve(device, &big, NULL), FERRY_OK);
    device_destroy(device);
}

static void out_of_memory_is_a_status(void **state)
{
    const struct device_options options = {2, cpu_best_level()};
    struct ferry_error err = {0};

    (void)state;
    for (uint64_t n = 1; n < 100; n++) {
        struct device *device = NULL;
        mem_fail_after(n);
        enum ferry_status st = device_create_cpu(&device, &options, &err);
        if (st == FERRY_OK)
            st = device_reserve(device, &LIMITS, &err);
        mem_fail_after(0);
        device_destroy(device);
        if (st == FERRY_OK) {
            assert_true(n > 3);
            return;
        }
        assert_int_equal(st, FERRY_ERR_NOMEM);
        assert_non_null(strstr(err.msg, "memory"));
    }
    fail_msg("device_reserve never succeeded");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(embedding_decodes_and_scales),
        cmocka_unit_test(norms_are_root_mean_squares),
        cmocka_unit_test(quantising_is_the_kernel_on_each_row),
        cmocka_unit_test(rope_turns_pairs),
        cmocka_unit_test(element_operations),
        cmocka_unit_test(gates_scale_rows),
        cmocka_unit_test(loops_touch_each_item_once),
        cmocka_unit_test(options_are_followed),
        cmocka_unit_test(sizes_are_checked),
        cmocka_unit_test(one_thread_packs_the_same_bytes),
        cmocka_unit_test(reserving_grows_and_plans),
        cmocka_unit_test(out_of_memory_is_a_status),
    };
    return cmocka_run_group_tests(tests, open_devices, close_devices);
}
