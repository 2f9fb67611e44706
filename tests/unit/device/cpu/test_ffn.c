/* Grouped experts: every slot equals the same block computed for it alone from single products,
 * whatever the mates, threads, level, packing, formats and tiles. */
#include "setup.h"

enum { N_EXPERTS = 6, HIDDEN = 256, N_TOKENS = 90, WIDTH_MAX = 800 };

/* Slots per expert: none at both ends and in the middle, more than two row tiles, one. */
static const int32_t COUNTS[N_EXPERTS] = {0, 150, 1, 0, 70, 0};

struct block {
    struct ffn_weights w[N_EXPERTS];
    size_t width;
    int32_t begin[N_EXPERTS + 1];
    int32_t token[256];
    const void *a32_at[256], *f32_at[256];
    size_t n_slots;
    struct act_rows in;
};

static void block_make(struct block *b, enum dtype gate, enum dtype up, enum dtype down,
                       size_t width, bool packed)
{
    memset(b, 0, sizeof *b);
    b->width = width;
    b->in = rows_make(N_TOKENS, HIDDEN);
    for (size_t e = 0; e < N_EXPERTS; e++) {
        b->w[e].gate = matrix_make(gate, width, HIDDEN, packed);
        b->w[e].up = matrix_make(up, width, HIDDEN, packed);
        b->w[e].down = matrix_make(down, HIDDEN, width, packed);
        b->begin[e + 1] = b->begin[e] + COUNTS[e];
    }
    b->n_slots = (size_t)b->begin[N_EXPERTS];
    for (size_t s = 0; s < b->n_slots; s++) {
        size_t t = s * 7 % N_TOKENS;
        b->token[s] = (int32_t)t;
        b->a32_at[s] = (char *)b->in.a32 + t * act_row_bytes(ACT_FORMAT_A32, HIDDEN);
        b->f32_at[s] = b->in.f32 + t * HIDDEN;
    }
}

static void block_fini(struct block *b)
{
    for (size_t e = 0; e < N_EXPERTS; e++) {
        matrix_fini(&b->w[e].gate);
        matrix_fini(&b->w[e].up);
        matrix_fini(&b->w[e].down);
    }
    rows_fini(&b->in);
}

/* One slot by the definition: down(silu(gate x) * up x), from products of one row. */
static void one_slot(const struct block *b, size_t expert, size_t token, float *out)
{
    const struct ffn_weights *w = &b->w[expert];
    struct act_rows x = b->in;
    float gate[WIDTH_MAX], up[WIDTH_MAX];
    unsigned char a32[2 * WIDTH_MAX] __attribute__((aligned(64)));

    x.f32 += token * HIDDEN;
    x.a32 = (unsigned char *)x.a32 + token * act_row_bytes(ACT_FORMAT_A32, HIDDEN);
    const struct matmul_out pair[2] = {{&w->gate, gate, b->width, NULL},
                                       {&w->up, up, b->width, NULL}};
    device_matmul(devices[0], &x, 1, pair, 2);
    device_kernels(devices[0])->silu_mul(gate, gate, up, b->width);
    struct act_rows h = {gate, b->width, a32, b->width};
    device_quantize(devices[0], &h, 1);
    const struct matmul_out last = {&w->down, out, HIDDEN, NULL};
    device_matmul(devices[0], &h, 1, &last, 1);
}

static void check_block(struct block *b, bool by_token)
{
    size_t stride = HIDDEN + 5;
    size_t hidden_bytes = act_row_bytes(ACT_FORMAT_F32, b->width);
    float *want = random_floats(b->n_slots * stride), *got = mem_array(b->n_slots * stride, 4);
    void *hidden = mem_alloc(b->n_slots * hidden_bytes);
    /* Without addresses slot i reads row i: the tokens gathered first. */
    struct act_rows gathered = rows_make(b->n_slots, HIDDEN);
    size_t a32_bytes = act_row_bytes(ACT_FORMAT_A32, HIDDEN);

    for (size_t s = 0; s < b->n_slots; s++) {
        size_t t = (size_t)b->token[s];
        memcpy((float *)(uintptr_t)gathered.f32 + s * HIDDEN, b->in.f32 + t * HIDDEN,
               HIDDEN * sizeof(float));
        memcpy((char *)gathered.a32 + s * a32_bytes, (char *)b->in.a32 + t * a32_bytes, a32_bytes);
    }
    for (size_t e = 0; e < N_EXPERTS; e++) {
        for (int32_t s = b->begin[e]; s < b->begin[e + 1]; s++)
            one_slot(b, e, (size_t)b->token[s], want + (size_t)s * stride);
    }
    for (int d = 0; d < N_DEVICES; d++) {
        struct ffn_job job = {.experts = b->w,
                              .n_experts = N_EXPERTS,
                              .begin = b->begin,
                              .a32_at = by_token ? b->a32_at : NULL,
                              .f32_at = by_token ? b->f32_at : NULL,
                              .in = gathered,
                              .hidden = hidden,
                              .out = got,
                              .out_stride = stride};
        memcpy(got, want, b->n_slots * stride * sizeof(float));
        for (size_t s = 0; s < b->n_slots; s++)
            memset(got + s * stride, 0, HIDDEN * sizeof(float));
        device_ffn(devices[d], &job);
        if (memcmp(got, want, b->n_slots * stride * sizeof(float)) != 0)
            fail_msg("gate %s, down %s, width %zu: device %d has other bits",
                     dtype_name(b->w[0].gate.dtype), dtype_name(b->w[0].down.dtype), b->width, d);
    }
    mem_free(want);
    mem_free(got);
    mem_free(hidden);
    rows_fini(&gathered);
}

static void slots_equal_single_products(void **state)
{
    static const struct {
        enum dtype gate, up, down;
        size_t width;
    } cases[] = {
        {DTYPE_F32, DTYPE_F32, DTYPE_F32, 100},   /* no multiple of anything */
        {DTYPE_BF16, DTYPE_BF16, DTYPE_BF16, 24}, /* less than one tile */
        {DTYPE_Q8_0, DTYPE_Q8_0, DTYPE_Q8_0, 160},
        {DTYPE_Q4_0, DTYPE_Q4_0, DTYPE_Q8_0, 288},
        {DTYPE_Q4_K, DTYPE_Q4_K, DTYPE_Q4_K, 256},
        {DTYPE_Q4_K, DTYPE_Q4_K, DTYPE_Q6_K, 256}, /* as Q4_K_M files are */
        {DTYPE_Q8_0, DTYPE_F32, DTYPE_F16, 160},   /* both activation formats at once */
        {DTYPE_F16, DTYPE_Q4_0, DTYPE_Q4_0, 96},
        {DTYPE_MXFP4, DTYPE_MXFP4, DTYPE_MXFP4, 128},
        {DTYPE_Q4_0, DTYPE_Q4_0, DTYPE_Q4_0, WIDTH_MAX}, /* enough for the widest tiles */
    };

    (void)state;
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        struct block b;
        block_make(&b, cases[i].gate, cases[i].up, cases[i].down, cases[i].width, true);
        check_block(&b, true);
        block_fini(&b);
    }
}

static void slots_may_read_their_own_rows(void **state)
{
    struct block b;

    (void)state;
    block_make(&b, DTYPE_Q8_0, DTYPE_F32, DTYPE_Q8_0, 160, true);
    check_block(&b, false);
    block_fini(&b);
}

static void unpacked_weights_give_the_same(void **state)
{
    static const enum dtype DTYPES[] = {DTYPE_F32, DTYPE_Q8_0, DTYPE_Q4_K};

    (void)state;
    for (size_t i = 0; i < COUNT_OF(DTYPES); i++) {
        struct block b;
        block_make(&b, DTYPES[i], DTYPES[i], DTYPES[i], 256, true);
        struct ffn_weights packed[N_EXPERTS];
        memcpy(packed, b.w, sizeof packed);
        for (size_t e = 0; e < N_EXPERTS; e++)
            b.w[e].gate.packed = b.w[e].up.packed = b.w[e].down.packed = NULL;
        float *a = mem_array(b.n_slots * HIDDEN, 4), *c = mem_array(b.n_slots * HIDDEN, 4);
        void *hidden = mem_alloc(b.n_slots * act_row_bytes(ACT_FORMAT_F32, b.width));
        struct ffn_job job = {packed,   N_EXPERTS, b.begin, b.in,  b.a32_at,
                              b.f32_at, hidden,    a,       HIDDEN};
        device_ffn(devices[3], &job);
        job.experts = b.w;
        job.out = c;
        device_ffn(devices[4], &job);
        assert_memory_equal(a, c, b.n_slots * HIDDEN * sizeof(float));
        memcpy(b.w, packed, sizeof packed);
        block_fini(&b);
        mem_free(a);
        mem_free(c);
        mem_free(hidden);
    }
}

static void no_slots_is_legal(void **state)
{
    struct block b;
    int32_t none[N_EXPERTS + 1] = {0};
    float out[1] = {42};

    (void)state;
    block_make(&b, DTYPE_F32, DTYPE_F32, DTYPE_F32, 24, true);
    struct ffn_job job = {b.w, N_EXPERTS, none, b.in, b.a32_at, b.f32_at, out, out, HIDDEN};
    device_ffn(devices[4], &job);
    assert_true(out[0] == 42);
    block_fini(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(slots_equal_single_products),
        cmocka_unit_test(slots_may_read_their_own_rows),
        cmocka_unit_test(unpacked_weights_give_the_same),
        cmocka_unit_test(no_slots_is_legal),
    };
    return cmocka_run_group_tests(tests, open_devices, close_devices);
}
