/* Matmul kernels: packing is exact, every level gives the reference's bits, a row's result depends
 * on nothing but the row, and the reference is close to an f64 product of the decoded weights. */
#include "base/alloc.h"
#include "kernel/kernel.h"
#include "tensor/codec.h"
#include "tensor/half.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

enum { GUARD = 0x7FA5C3D2, MARGIN = 16 };

/* How weights or activations are drawn. */
enum draw {
    DRAW_RANDOM,  /* random codes, ordinary scales */
    DRAW_LOW,     /* every code bit 0, or the most negative byte */
    DRAW_HIGH,    /* every code bit 1, or the most positive byte */
    DRAW_MIXED,   /* LOW or HIGH by column or element */
    DRAW_SPECIAL, /* random codes; scales NaN, infinite, denormal, zero */
    DRAW_COUNT,
};

static uint64_t state;

static uint32_t next(void)
{
    state += 0x9E3779B97F4A7C15u;
    uint64_t z = state;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return (uint32_t)(z >> 32);
}

static size_t below(size_t n)
{
    return next() % n;
}

static float uniform(float low, float high)
{
    return low + (high - low) * ((float)(next() >> 8) * 0x1p-24f);
}

/* ---- weights in file order ---- */

static const uint16_t SPECIAL_F16[] = {0x7E00, 0x7C00, 0xFC00, 0x0001, 0x83FF, 0x0000,
                                       0x8000, 0x7BFF, 0xFBFF, 0x0400, 0x3C00, 0xFD01};
static const uint8_t SPECIAL_E8M0[] = {0, 1, 2, 3, 127, 253, 254, 255};

static void put_f16(uint8_t *p, float v, enum draw draw)
{
    uint16_t h = f16_from_f32(v);
    if (draw == DRAW_SPECIAL && below(3) == 0)
        h = SPECIAL_F16[below(sizeof SPECIAL_F16 / sizeof SPECIAL_F16[0])];
    memcpy(p, &h, sizeof h);
}

static void draw_plain(enum dtype dtype, uint8_t *row, size_t k, enum draw draw)
{
    for (size_t i = 0; i < k; i++) {
        float v = uniform(-1, 1);
        if (draw == DRAW_LOW || draw == DRAW_HIGH)
            v = draw == DRAW_LOW ? -60000.0f : 60000.0f;
        if (draw == DRAW_SPECIAL && below(40) == 0)
            v = f16_to_f32(SPECIAL_F16[below(sizeof SPECIAL_F16 / sizeof SPECIAL_F16[0])]);
        if (draw == DRAW_SPECIAL && dtype != DTYPE_F16 && below(20) == 0)
            v = 0x1p-140f;
        uint16_t h = dtype == DTYPE_F16 ? f16_from_f32(v) : bf16_from_f32(v);
        if (dtype == DTYPE_F32)
            memcpy(row + 4 * i, &v, 4);
        else
            memcpy(row + 2 * i, &h, 2);
    }
}

/* One file block: random or extreme bytes, then sane or special scales over them. */
static void draw_block(enum dtype dtype, uint8_t *p, enum draw draw)
{
    size_t n = dtype_block_bytes(dtype);
    float d = uniform(0.001f, 0.1f) * (below(2) != 0 ? 1.0f : -1.0f);
    bool high = draw == DRAW_HIGH || (draw == DRAW_MIXED && below(2) != 0);

    for (size_t i = 0; i < n; i++) {
        p[i] = (uint8_t)next();
        if (draw == DRAW_LOW || draw == DRAW_HIGH || draw == DRAW_MIXED)
            p[i] = dtype == DTYPE_Q8_0 ? (high ? 0x7F : 0x80) : (high ? 0xFF : 0x00);
    }
    switch (dtype) {
    case DTYPE_MXFP4:
        p[0] = (uint8_t)(120 + below(10));
        if (draw == DRAW_SPECIAL && below(2) == 0)
            p[0] = SPECIAL_E8M0[below(sizeof SPECIAL_E8M0)];
        break;
    case DTYPE_Q6_K:
        put_f16(p + 208, d, draw);
        if (draw == DRAW_LOW)
            memset(p + 192, 0x80, 16);
        break;
    case DTYPE_Q4_1:
    case DTYPE_Q5_1:
    case DTYPE_Q4_K:
    case DTYPE_Q5_K:
        put_f16(p, d, draw);
        put_f16(p + 2, uniform(-0.1f, 0.1f), draw);
        break;
    default:
        put_f16(p, d, draw);
        break;
    }
}

static void draw_weights(enum dtype dtype, uint8_t *row, size_t k, enum draw draw)
{
    if (dtype_block_elems(dtype) == 1) {
        draw_plain(dtype, row, k, draw);
        return;
    }
    for (size_t i = 0; i < k / dtype_block_elems(dtype); i++)
        draw_block(dtype, row + i * dtype_block_bytes(dtype), draw);
}

/* ---- activations ---- */

static void draw_a32(void *row, size_t k, enum draw draw)
{
    int8_t *q = row;
    float *scale = (float *)(uintptr_t)act_a32_scales(row, k);
    int32_t *sum = (int32_t *)(uintptr_t)act_a32_sums(row, k);
    static const float special[] = {0.0f, 0x1p-126f, 0x1p-140f, 1e30f, 3e38f};

    for (size_t b = 0; b < k / ACT_BLOCK; b++) {
        scale[b] = uniform(0.0001f, 0.1f);
        bool broken = draw == DRAW_SPECIAL && below(20) == 0;
        if (draw == DRAW_SPECIAL && below(4) == 0)
            scale[b] = special[below(5)];
        if (broken)
            scale[b] = NAN;
        sum[b] = 0;
        for (size_t j = 0; j < ACT_BLOCK; j++) {
            int v = (int)below(255) - 127;
            if (draw == DRAW_LOW || draw == DRAW_HIGH)
                v = draw == DRAW_LOW ? -127 : 127;
            if (draw == DRAW_MIXED)
                v = below(2) != 0 ? 127 : -127;
            q[b * ACT_BLOCK + j] = (int8_t)(broken ? 0 : v);
            sum[b] += q[b * ACT_BLOCK + j];
        }
    }
}

static void draw_act(enum dtype dtype, void *row, size_t k, enum draw draw)
{
    if (act_format_for(dtype) == ACT_FORMAT_A32)
        draw_a32(row, k, draw);
    else
        draw_plain(DTYPE_F32, row, k, draw);
}

/* ---- one problem: weights, packed weights, activations, their addresses, guarded output ---- */

struct problem {
    enum dtype dtype;
    size_t k, n_cols, n_act, n_rows, row_bytes;
    uint8_t *file;
    void *packed;
    uint8_t *act;
    const void **at;
    float *out;
    size_t out_floats;
    struct matmul_job job;
};

static size_t file_row_bytes(enum dtype dtype, size_t k)
{
    return k / dtype_block_elems(dtype) * dtype_block_bytes(dtype);
}

static void problem_init(struct problem *p, enum dtype dtype, size_t k, size_t n_cols,
                         size_t n_rows, enum draw weights, enum draw act)
{
    size_t gap = below(2) * 3; /* odd row distance: nothing in the file is aligned */
    size_t n_groups = (n_cols + KERNEL_GROUP - 1) / KERNEL_GROUP;
    size_t group_bytes = pack_group_bytes(dtype, k);
    size_t act_stride = act_row_bytes(act_format_for(dtype), k) + 64 * below(2);

    memset(p, 0, sizeof *p);
    p->dtype = dtype, p->k = k, p->n_cols = n_cols, p->n_rows = n_rows;
    p->n_act = n_rows + 2;
    p->row_bytes = file_row_bytes(dtype, k) + gap;
    p->file = mem_alloc(n_cols * p->row_bytes + 1);
    p->packed = mem_alloc(n_groups * group_bytes + 1);
    p->act = mem_alloc(p->n_act * act_stride + 64);
    p->at = mem_alloc((n_rows + 1) * sizeof *p->at);
    size_t stride = n_cols + below(5);
    p->out_floats = n_rows * stride + 2 * MARGIN;
    p->out = mem_alloc(p->out_floats * sizeof *p->out);
    memset(p->file, 0xEE, n_cols * p->row_bytes + 1);
    memset(p->act, 0xEE, p->n_act * act_stride);
    for (size_t c = 0; c < n_cols; c++)
        draw_weights(dtype, p->file + 1 + c * p->row_bytes, k, weights);
    memset(p->packed, 0xEE, n_groups * group_bytes + 1);
    for (size_t g = 0; g < n_groups; g++) {
        size_t n = n_cols - g * KERNEL_GROUP;
        pack_group(dtype, (char *)p->packed + g * group_bytes,
                   p->file + 1 + g * KERNEL_GROUP * p->row_bytes, p->row_bytes,
                   n < KERNEL_GROUP ? n : KERNEL_GROUP, k);
    }
    assert_int_equal(((uint8_t *)p->packed)[n_groups * group_bytes], 0xEE);
    for (size_t i = 0; i < p->n_act; i++)
        draw_act(dtype, p->act + i * act_stride, k, act);
    for (size_t i = 0; i < n_rows; i++)
        p->at[i] = p->act + below(p->n_act) * act_stride;
    p->job = (struct matmul_job){.act = p->act,
                                 .act_stride = act_stride,
                                 .n_rows = n_rows,
                                 .out = p->out + MARGIN,
                                 .out_stride = stride,
                                 .packed = p->packed,
                                 .k = k,
                                 .n_cols = n_cols,
                                 .group_end = n_groups};
}

static void problem_fini(struct problem *p)
{
    mem_free(p->file);
    mem_free(p->packed);
    mem_free(p->act);
    mem_free(p->at);
    mem_free(p->out);
}

static void clear_out(struct problem *p)
{
    for (size_t i = 0; i < p->out_floats; i++)
        p->out[i] = f32_from_bits(GUARD);
}

/* ---- comparison ---- */

static bool same(float a, float b)
{
    return f32_to_bits(a) == f32_to_bits(b) || (isnan(a) && isnan(b));
}

static void expect_same(const struct problem *p, const float *want, const float *got,
                        const char *what)
{
    for (size_t i = 0; i < p->out_floats; i++) {
        bool guard = f32_to_bits(want[i]) == GUARD;
        if (guard ? f32_to_bits(got[i]) == GUARD : same(want[i], got[i]))
            continue;
        size_t at = i - MARGIN;
        fail_msg("%s %s k %zu cols %zu rows %zu groups %zu..%zu: row %zd col %zd: want %a got %a",
                 dtype_name(p->dtype), what, p->k, p->n_cols, p->n_rows, p->job.group_begin,
                 p->job.group_end, (ptrdiff_t)(at / p->job.out_stride),
                 (ptrdiff_t)(at % p->job.out_stride), (double)want[i], (double)got[i]);
    }
}

/* Every level against ref; also that ref wrote exactly the columns it was asked for. */
static void check_levels(struct problem *p)
{
    struct kernels ref, k;
    float *want = mem_alloc(p->out_floats * sizeof *want);
    size_t first = p->job.group_begin * KERNEL_GROUP, last = p->job.group_end * KERNEL_GROUP;

    kernels_init(&ref, CPU_LEVEL_REF);
    clear_out(p);
    ref.matmul[p->dtype](&p->job);
    memcpy(want, p->out, p->out_floats * sizeof *want);
    for (size_t i = 0; i < p->out_floats; i++) {
        size_t row = (i - MARGIN) / p->job.out_stride, col = (i - MARGIN) % p->job.out_stride;
        bool inside =
            i >= MARGIN && row < p->n_rows && col >= first && col < last && col < p->n_cols;
        assert_int_equal(f32_to_bits(want[i]) != GUARD, inside);
    }
    for (int level = CPU_LEVEL_REF + 1; level <= (int)cpu_best_level(); level++) {
        kernels_init(&k, (enum cpu_level)level);
        clear_out(p);
        k.matmul[p->dtype](&p->job);
        expect_same(p, want, p->out, cpu_level_name((enum cpu_level)level));
    }
    mem_free(want);
}

static size_t draw_k(enum dtype dtype, size_t max)
{
    size_t unit = dtype_block_elems(dtype);
    return unit * (1 + below(max / unit));
}

static const size_t ROW_COUNTS[] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 13, 16, 20, 21, 22, 64};
enum { N_ROW_COUNTS = sizeof ROW_COUNTS / sizeof ROW_COUNTS[0] };

/* ---- tests ---- */

static void test_levels_equal_ref(void **unused)
{
    (void)unused;
    for (int t = 0; t < DTYPE_COUNT; t++) {
        for (size_t i = 0; i < 4 * N_ROW_COUNTS; i++) {
            struct problem p;
            state = (uint64_t)t << 32 | i;
            size_t n_rows = ROW_COUNTS[i % N_ROW_COUNTS];
            size_t k = draw_k((enum dtype)t, n_rows >= 13 ? 512 : 1280);
            size_t n_cols = 1 + below(n_rows >= 13 ? 20 : 40);
            problem_init(&p, (enum dtype)t, k, n_cols, n_rows, DRAW_RANDOM, DRAW_RANDOM);
            if (below(2) != 0)
                p.job.act_at = p.at;
            if (below(2) != 0)
                p.job.next = p.packed;
            if (below(2) != 0) {
                size_t n_groups = p.job.group_end;
                p.job.group_begin = below(n_groups + 1);
                p.job.group_end = p.job.group_begin + below(n_groups - p.job.group_begin + 1);
            }
            check_levels(&p);
            problem_fini(&p);
        }
    }
}

/* int16 sums are largest here; also NaN, infinity and denormal scales. */
static void test_extremes(void **unused)
{
    (void)unused;
    for (int t = 0; t < DTYPE_COUNT; t++) {
        for (int w = 0; w < DRAW_COUNT; w++) {
            for (int a = 0; a < DRAW_COUNT; a++) {
                static const size_t rows[] = {1, 3, 9};
                for (size_t i = 0; i < 3; i++) {
                    struct problem p;
                    state = (uint64_t)(t * 100 + w * 10 + a) << 32 | i;
                    problem_init(&p, (enum dtype)t,
                                 dtype_block_elems((enum dtype)t) > 32 ? 512 : 160, 11, rows[i],
                                 (enum draw)w, (enum draw)a);
                    check_levels(&p);
                    problem_fini(&p);
                }
            }
        }
    }
}

/* k beyond what a kernel prepares at a time (AVX2: at most 65536 / rows), so that sums rest in the
 * output in between; rows beyond its row block. */
static void test_long_k_many_rows(void **unused)
{
    (void)unused;
    for (int t = 0; t < DTYPE_COUNT; t++) {
        static const size_t shapes[][3] = {/* k, columns, rows */
                                           {16384 + 512, 9, 4},  {8192 + 1280, 9, 8},
                                           {4096 + 256, 11, 13}, {3072 + 256, 11, 21},
                                           {2048 + 768, 19, 64}, {256, 2, 131}};
        for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
            struct problem p;
            state = (uint64_t)(t + 1000) << 32 | i;
            problem_init(&p, (enum dtype)t, shapes[i][0], shapes[i][1], shapes[i][2], DRAW_RANDOM,
                         DRAW_RANDOM);
            p.job.act_at = p.at;
            check_levels(&p);
            problem_fini(&p);
        }
    }
}

/* Row by row and column group by column group gives what one call gives. */
static void test_rows_are_independent(void **unused)
{
    (void)unused;
    for (int t = 0; t < DTYPE_COUNT; t++) {
        for (int level = CPU_LEVEL_REF; level <= (int)cpu_best_level(); level++) {
            struct problem p;
            struct kernels k;
            state = (uint64_t)(t + 2000);
            problem_init(&p, (enum dtype)t, dtype_block_elems((enum dtype)t) > 32 ? 768 : 416, 37,
                         level == CPU_LEVEL_REF ? 5 : 23, DRAW_RANDOM, DRAW_RANDOM);
            p.job.act_at = p.at;
            kernels_init(&k, (enum cpu_level)level);
            clear_out(&p);
            k.matmul[t](&p.job);
            float *want = mem_alloc(p.out_floats * sizeof *want);
            memcpy(want, p.out, p.out_floats * sizeof *want);
            clear_out(&p);
            for (size_t i = 0; i < p.n_rows; i++) {
                size_t row = p.n_rows - 1 - i;
                for (size_t g = 0; g < p.job.group_end; g++) {
                    struct matmul_job one = p.job;
                    one.act_at = p.at + row;
                    one.n_rows = 1;
                    one.out = p.job.out + row * p.job.out_stride;
                    one.group_begin = g;
                    one.group_end = g + 1;
                    k.matmul[t](&one);
                }
            }
            expect_same(&p, want, p.out, "row by row");
            mem_free(want);
            problem_fini(&p);
        }
    }
}

/* A row that is 1 at j and 0 elsewhere returns weight j: packing moved no bit. */
static void test_packing_is_exact(void **unused)
{
    struct kernels ref;

    (void)unused;
    kernels_init(&ref, CPU_LEVEL_REF);
    for (int t = 0; t < DTYPE_COUNT; t++) {
        struct problem p;
        size_t k = dtype_block_elems((enum dtype)t) > 32 ? 512 : 160;
        float want[512];
        state = (uint64_t)(t + 3000);
        problem_init(&p, (enum dtype)t, k, 11, 1, DRAW_RANDOM, DRAW_RANDOM);
        clear_out(&p);
        for (size_t c = 0; c < p.n_cols; c++) {
            codec_decode_row((enum dtype)t, p.file + 1 + c * p.row_bytes, want, k);
            p.job.group_begin = c / KERNEL_GROUP;
            p.job.group_end = c / KERNEL_GROUP + 1;
            for (size_t j = 0; j < k; j++) {
                memset(p.act, 0, p.job.act_stride);
                if (act_format_for((enum dtype)t) == ACT_FORMAT_F32) {
                    ((float *)(void *)p.act)[j] = 1;
                } else {
                    p.act[j] = 1;
                    ((float *)(uintptr_t)act_a32_scales(p.act, k))[j / ACT_BLOCK] = 1;
                    ((int32_t *)(uintptr_t)act_a32_sums(p.act, k))[j / ACT_BLOCK] = 1;
                }
                ref.matmul[t](&p.job);
                if (p.job.out[c] != want[j])
                    fail_msg("%s column %zu element %zu: packed %a, file %a",
                             dtype_name((enum dtype)t), c, j, (double)p.job.out[c],
                             (double)want[j]);
            }
        }
        problem_fini(&p);
    }
}

/* |ref - exact| <= (terms + 4) * 2^-23 * sum of |w| + max|w| times |x|; terms = fused multiply-adds
 * per output; the max stands for the part of a weight that its minimum cancels. */
static void test_ref_is_near_f64(void **unused)
{
    struct kernels ref;
    double worst = 0;

    (void)unused;
    kernels_init(&ref, CPU_LEVEL_REF);
    for (int t = 0; t < DTYPE_COUNT; t++) {
        struct problem p;
        static float w[1024];
        size_t k = 1024;
        bool plain = act_format_for((enum dtype)t) == ACT_FORMAT_F32;
        state = (uint64_t)(t + 4000);
        problem_init(&p, (enum dtype)t, k, 24, 4, DRAW_RANDOM, DRAW_RANDOM);
        ref.matmul[t](&p.job);
        for (size_t c = 0; c < p.n_cols; c++) {
            double max = 0;
            codec_decode_row((enum dtype)t, p.file + 1 + c * p.row_bytes, w, k);
            for (size_t j = 0; j < k; j++)
                max = fmax(max, fabs((double)w[j]));
            for (size_t i = 0; i < p.n_rows; i++) {
                const uint8_t *row = p.act + i * p.job.act_stride;
                double sum = 0, size = 0;
                for (size_t j = 0; j < k; j++) {
                    double x = plain ? (double)((const float *)(const void *)row)[j]
                                     : (double)(int8_t)row[j] *
                                           (double)act_a32_scales(row, k)[j / ACT_BLOCK];
                    sum += (double)w[j] * x;
                    size += (fabs((double)w[j]) + max) * fabs(x);
                }
                double terms = plain ? (double)k : (double)k / ACT_BLOCK * 2;
                double bound = (terms + 4) * 0x1p-23 * size;
                double error = fabs((double)p.job.out[i * p.job.out_stride + c] - sum);
                worst = fmax(worst, error / bound);
                if (!(error <= bound))
                    fail_msg("%s: error %g over bound %g", dtype_name((enum dtype)t), error, bound);
            }
        }
        problem_fini(&p);
    }
    print_message("largest error against f64: %.3f of the bound\n", worst);
}

static void test_packed_sizes(void **unused)
{
    (void)unused;
    for (int t = 0; t < DTYPE_COUNT; t++) {
        double packed = (double)pack_group_bytes((enum dtype)t, 2048);
        double file = (double)(file_row_bytes((enum dtype)t, 2048) * KERNEL_GROUP);
        print_message("%-7s packed %6.0f bytes per group of k 2048, %.3f of the file\n",
                      dtype_name((enum dtype)t), packed, packed / file);
        assert_true(packed >= file && packed <= 1.03 * file);
        assert_int_equal(pack_group_bytes((enum dtype)t, 768) % 64, 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_packed_sizes),
        cmocka_unit_test(test_packing_is_exact),
        cmocka_unit_test(test_ref_is_near_f64),
        cmocka_unit_test(test_levels_equal_ref),
        cmocka_unit_test(test_extremes),
        cmocka_unit_test(test_long_k_many_rows),
        cmocka_unit_test(test_rows_are_independent),
    };
    return cmocka_run_group_tests_name("matmul", tests, NULL, NULL);
}
