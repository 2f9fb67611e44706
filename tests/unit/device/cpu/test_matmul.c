/* Products over threads: close to an f64 product of the decoded numbers, equal bits for every
 * device, for packed and unpacked weights, and for one row and many. */
#include "setup.h"

#include <math.h>

enum { K = 256, ROWS = 130 }; /* two row tiles and a rest */

static const size_t N_COLS[4] = {300, 8, 1, 13};

struct product {
    struct weight w[4];
    float *bias;
    float *out[4]; /* [ROWS, N_COLS + 3]: a margin that nothing writes */
};

static void run(struct device *device, struct product *p, const struct act_rows *rows,
                size_t first_row, size_t n_rows)
{
    struct act_rows in = *rows;
    struct matmul_out outs[4];

    in.f32 += first_row * in.f32_stride;
    in.a32 = (unsigned char *)in.a32 + first_row * act_row_bytes(ACT_FORMAT_A32, in.k);
    for (size_t o = 0; o < 4; o++) {
        size_t stride = N_COLS[o] + 3;
        outs[o] = (struct matmul_out){&p->w[o], p->out[o] + first_row * stride, stride,
                                      o % 2 == 0 ? p->bias : NULL};
    }
    device_matmul(device, &in, n_rows, outs, 4);
}

/* The number that activation j of a row has for weights of this type. */
static double act_value(const struct act_rows *rows, enum dtype dtype, size_t row, size_t j)
{
    const unsigned char *a32 =
        (const unsigned char *)rows->a32 + row * act_row_bytes(ACT_FORMAT_A32, rows->k);

    if (act_format_for(dtype) == ACT_FORMAT_F32)
        return (double)rows->f32[row * rows->f32_stride + j];
    return (double)((const int8_t *)a32)[j] * (double)act_a32_scales(a32, rows->k)[j / ACT_BLOCK];
}

static void check_f64(const struct product *p, const struct act_rows *rows, size_t o)
{
    const struct weight *w = &p->w[o];
    float row[K];

    for (size_t c = 0; c < w->n_cols; c++) {
        codec_decode_row(w->dtype, (const char *)w->rows + c * w->row_bytes, row, K);
        for (size_t i = 0; i < ROWS; i += 43) {
            double sum = 0, size = 0;
            for (size_t j = 0; j < K; j++) {
                double term = (double)row[j] * act_value(rows, w->dtype, i, j);
                sum += term;
                size += fabs(term);
            }
            if (o % 2 == 0)
                sum += (double)p->bias[c];
            assert_float_equal(p->out[o][i * (N_COLS[o] + 3) + c], (float)sum,
                               (float)(3e-6 * (size + 1)));
        }
    }
}

static void check_dtype(enum dtype dtype)
{
    struct act_rows rows = rows_make(ROWS, K);
    struct product p = {.bias = random_floats(300)};
    float *want[4];

    for (size_t o = 0; o < 4; o++) {
        /* Mixed groups: the third is plain, so both activation formats are in use at once. */
        p.w[o] = matrix_make(o == 2 ? DTYPE_F32 : dtype, N_COLS[o], K, true);
        p.out[o] = random_floats(ROWS * (N_COLS[o] + 3));
        want[o] = mem_array(ROWS * (N_COLS[o] + 3), sizeof(float));
    }
    run(devices[0], &p, &rows, 0, ROWS);
    for (size_t o = 0; o < 4; o++) {
        check_f64(&p, &rows, o);
        memcpy(want[o], p.out[o], ROWS * (N_COLS[o] + 3) * sizeof(float));
    }
    for (int d = 1; d < N_DEVICES; d++) {
        for (size_t cut = 0; cut < 2;
             cut++) { /* all rows at once, and one by one after the first */
            for (size_t o = 0; o < 4; o++) {
                for (size_t i = 0; i < ROWS; i++)
                    memset(p.out[o] + i * (N_COLS[o] + 3), 0, N_COLS[o] * sizeof(float));
            }
            run(devices[d], &p, &rows, 0, cut == 0 ? ROWS : 1);
            for (size_t i = 1; cut == 1 && i < ROWS; i += i < 5 ? 1 : 125)
                run(devices[d], &p, &rows, i, i < 5 ? 1 : 125);
            for (size_t o = 0; o < 4; o++) {
                if (memcmp(p.out[o], want[o], ROWS * (N_COLS[o] + 3) * sizeof(float)) != 0)
                    fail_msg("%s: device %d, cut %zu, product %zu has other bits",
                             dtype_name(dtype), d, cut, o);
            }
        }
        /* Without repacking; every second device, as it is slow. */
        for (size_t o = 0; o < 4 && d % 2 == 0; o++) {
            struct weight w = p.w[o];
            p.w[o].packed = NULL;
            run(devices[d], &p, &rows, 0, ROWS);
            p.w[o] = w;
            assert_memory_equal(p.out[o], want[o], ROWS * (N_COLS[o] + 3) * sizeof(float));
        }
    }
    for (size_t o = 0; o < 4; o++) {
        matrix_fini(&p.w[o]);
        mem_free(p.out[o]);
        mem_free(want[o]);
    }
    mem_free(p.bias);
    rows_fini(&rows);
}

static void every_dtype(void **state)
{
    (void)state;
    for (int dtype = 0; dtype < DTYPE_COUNT; dtype++)
        check_dtype((enum dtype)dtype);
}

static void plain_weights_of_odd_sizes(void **state)
{
    static const size_t SIZES[] = {1, 7, 33, 100};
    float want[3 * 5], got[3 * 5];

    (void)state;
    for (size_t s = 0; s < COUNT_OF(SIZES); s++) {
        struct act_rows rows = rows_make(3, SIZES[s]);
        struct weight w = matrix_make(DTYPE_BF16, 5, SIZES[s], true);
        for (int d = 0; d < N_DEVICES; d++) {
            const struct matmul_out out = {&w, d == 0 ? want : got, 5, NULL};
            device_matmul(devices[d], &rows, 3, &out, 1);
            if (d > 0)
                assert_memory_equal(got, want, sizeof want);
        }
        for (size_t i = 0; i < 3; i++) {
            for (size_t c = 0; c < 5; c++) {
                float row[100];
                double sum = 0;
                codec_decode_row(w.dtype, (const char *)w.rows + c * w.row_bytes, row, SIZES[s]);
                for (size_t j = 0; j < SIZES[s]; j++)
                    sum += (double)row[j] * (double)rows.f32[i * SIZES[s] + j];
                assert_float_equal(want[i * 5 + c], (float)sum, 1e-5f);
            }
        }
        matrix_fini(&w);
        rows_fini(&rows);
    }
}

static void no_rows_is_legal(void **state)
{
    struct act_rows rows = rows_make(1, K);
    struct weight w = matrix_make(DTYPE_Q8_0, 8, K, true);
    float out[8] = {42};
    const struct matmul_out one = {&w, out, 8, NULL};

    (void)state;
    device_matmul(devices[4], &rows, 0, &one, 1);
    assert_true(out[0] == 42);
    matrix_fini(&w);
    rows_fini(&rows);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_dtype),
        cmocka_unit_test(plain_weights_of_odd_sizes),
        cmocka_unit_test(no_rows_is_legal),
    };
    return cmocka_run_group_tests(tests, open_devices, close_devices);
}
