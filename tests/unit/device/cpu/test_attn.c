/* Attention over pages: equal to the definition in f64, equal bits for every device and however a
 * sequence is cut into runs; pages hold NaN wherever no position was stored. */
#include "setup.h"

#include "tensor/half.h"

#include <math.h>

enum { HEADS = 6, KV_HEADS = 2, DIM = 20, LAYERS = 3, LAYER = 1, N_PAGES = 4, N = 300 };

struct cache {
    struct attn_shape shape;
    unsigned char *memory;
    unsigned char *pages[N_PAGES];
    float *q, *k, *v; /* [N, heads * DIM] */
};

static void cache_make(struct cache *c, enum dtype dtype, size_t window)
{
    *c = (struct cache){.shape = {HEADS, KV_HEADS, DIM, dtype, 0, window, 0.3f}};
    size_t layer = attn_layer_bytes(&c->shape), page = layer * LAYERS;

    assert_int_equal(layer, 2 * KV_HEADS * DIM * 128 * dtype_block_bytes(dtype));
    c->shape.page_offset = layer * LAYER;
    c->memory = mem_alloc(page * N_PAGES);
    assert_non_null(c->memory);
    memset(c->memory, 0xFF, page * N_PAGES); /* NaN in all three types */
    for (size_t i = 0; i < N_PAGES; i++)     /* pages of a sequence lie anywhere */
        c->pages[i] = c->memory + (N_PAGES - 1 - i) * page;
    c->q = random_floats(N * HEADS * DIM);
    c->k = random_floats(N * KV_HEADS * DIM);
    c->v = random_floats(N * KV_HEADS * DIM);
}

static void cache_fini(struct cache *c)
{
    mem_free(c->memory);
    mem_free(c->q);
    mem_free(c->k);
    mem_free(c->v);
}

static size_t store(struct cache *c, struct device *device, size_t first, size_t n)
{
    size_t at = first * KV_HEADS * DIM;
    return device_kv_store(device, &c->shape, c->pages, first, n, c->k + at, c->v + at);
}

static struct attn_run run_of(struct cache *c, float *out, size_t first, size_t n)
{
    size_t at = first * HEADS * DIM;
    return (struct attn_run){
        .q = c->q + at, .out = out + at, .pages = c->pages, .first_position = first, .n_rows = n};
}

/* What a number is after a trip through the cache. */
static double cached(enum dtype dtype, float x)
{
    if (dtype == DTYPE_F16)
        return (double)f16_to_f32(f16_from_f32(x));
    return (double)(dtype == DTYPE_BF16 ? bf16_to_f32(bf16_from_f32(x)) : x);
}

static void check_f64(const struct cache *c, const float *out, size_t position, size_t head)
{
    size_t kv = head / (HEADS / KV_HEADS), window = c->shape.window;
    size_t first = window > 0 && position + 1 > window ? position + 1 - window : 0;
    double score[N], sum = 0, max = -INFINITY;

    for (size_t p = first; p <= position; p++) {
        score[p] = 0;
        for (size_t d = 0; d < DIM; d++)
            score[p] += (double)c->q[(position * HEADS + head) * DIM + d] *
                        cached(c->shape.kv_dtype, c->k[(p * KV_HEADS + kv) * DIM + d]);
        score[p] *= (double)c->shape.scale;
        max = fmax(max, score[p]);
    }
    for (size_t p = first; p <= position; p++)
        sum += score[p] = exp(score[p] - max);
    for (size_t d = 0; d < DIM; d++) {
        double want = 0;
        for (size_t p = first; p <= position; p++)
            want += score[p] / sum * cached(c->shape.kv_dtype, c->v[(p * KV_HEADS + kv) * DIM + d]);
        assert_float_equal(out[(position * HEADS + head) * DIM + d], (float)want, 2e-6f);
    }
}

static void equals_the_definition(void **state)
{
    static const enum dtype DTYPES[] = {DTYPE_F32, DTYPE_F16, DTYPE_BF16};
    /* One key, inside a page, exactly a page, over a page's end, more than there is, all. */
    static const size_t WINDOWS[] = {1, 50, 128, 130, 1000, 0};
    float *want = mem_array(N * HEADS * DIM, 4), *got = mem_array(N * HEADS * DIM, 4);
    size_t size = sizeof(float) * N * HEADS * DIM;

    (void)state;
    for (size_t i = 0; i < COUNT_OF(DTYPES) * COUNT_OF(WINDOWS); i++) {
        struct cache c;
        cache_make(&c, DTYPES[i % 3], WINDOWS[i / 3]);
        assert_int_equal(store(&c, devices[0], 0, N), 0);
        struct attn_run all = run_of(&c, want, 0, N);
        assert_int_equal(device_attention(devices[0], &c.shape, &all, 1), 0);
        for (size_t p = 0; p < N; p += p < 120 ? 37 : 9)
            check_f64(&c, want, p, p % HEADS);
        check_f64(&c, want, N - 1, 0);
        for (int d = 1; d < N_DEVICES; d++) {
            /* Cut into runs that start inside a page, on its edge and just before it. */
            struct attn_run runs[5] = {run_of(&c, got, 0, 100), run_of(&c, got, 100, 27),
                                       run_of(&c, got, 127, 1), run_of(&c, got, 128, 122),
                                       run_of(&c, got, 250, N - 250)};
            memset(got, 0, size);
            assert_int_equal(device_attention(devices[d], &c.shape, runs, 5), 0);
            if (memcmp(got, want, size) != 0)
                fail_msg("%s, window %zu: device %d has other bits", dtype_name(DTYPES[i % 3]),
                         c.shape.window, d);
        }
        cache_fini(&c);
    }
    mem_free(want);
    mem_free(got);
}

static void storing_writes_its_layer_only(void **state)
{
    struct cache c;

    (void)state;
    for (int d = 0; d < N_DEVICES; d++) {
        cache_make(&c, DTYPE_F16, 0);
        size_t layer = attn_layer_bytes(&c.shape);
        (void)store(&c, devices[d], 0, 3);
        (void)store(&c, devices[d], 3, 140); /* over the end of the first page */
        for (size_t page = 0; page < N_PAGES; page++) {
            for (size_t i = 0; i < layer * LAYERS; i++) {
                bool inside = i / layer == LAYER && page < 2;
                if (!inside && c.pages[page][i] != 0xFF)
                    fail_msg("byte %zu of page %zu was written", i, page);
            }
            /* K is transposed, head by head: [dim][128]; V [128][dim] follows. */
            const uint16_t *k = (const uint16_t *)(void *)(c.pages[page] + layer * LAYER);
            for (size_t i = 0; i < 128 && page * 128 + i < 143; i++) {
                size_t p = page * 128 + i;
                for (size_t h = 0; h < KV_HEADS; h++) {
                    const uint16_t *head = k + h * 2 * DIM * 128;
                    for (size_t x = 0; x < DIM; x++) {
                        assert_int_equal(head[x * 128 + i],
                                         f16_from_f32(c.k[(p * KV_HEADS + h) * DIM + x]));
                        assert_int_equal(head[DIM * 128 + i * DIM + x],
                                         f16_from_f32(c.v[(p * KV_HEADS + h) * DIM + x]));
                    }
                }
            }
        }
        cache_fini(&c);
    }
}

static void overflows_are_counted(void **state)
{
    static const enum dtype DTYPES[] = {DTYPE_F16, DTYPE_F32, DTYPE_BF16};

    (void)state;
    for (size_t i = 0; i < COUNT_OF(DTYPES) * N_DEVICES; i++) {
        struct cache c;
        cache_make(&c, DTYPES[i % 3], 0);
        c.k[5] = 1e6f;
        c.k[77 * KV_HEADS * DIM + DIM] = -65536;
        c.v[100 * KV_HEADS * DIM + 3] = 65520; /* rounds to infinity in f16 */
        c.v[101 * KV_HEADS * DIM + 3] = 65519; /* does not */
        c.v[9] = INFINITY;                     /* was infinite before: not ours */
        assert_int_equal(store(&c, devices[i / 3], 0, 200), DTYPES[i % 3] == DTYPE_F16 ? 3 : 0);
        cache_fini(&c);
    }
}

static void runs_of_several_sequences(void **state)
{
    struct cache a, b;
    float *want = mem_array(2 * N * HEADS * DIM, 4), *got = mem_array(2 * N * HEADS * DIM, 4);
    size_t half = (size_t)N * HEADS * DIM;

    (void)state;
    cache_make(&a, DTYPE_F16, 100);
    cache_make(&b, DTYPE_F16, 100);
    (void)store(&a, devices[0], 0, N);
    (void)store(&b, devices[0], 0, N);
    memset(want, 0, 2 * half * sizeof *want);
    memset(got, 0, 2 * half * sizeof *got);
    struct attn_run one = run_of(&a, want, 0, 40), two = run_of(&b, want + half, 299, 1);
    (void)device_attention(devices[0], &a.shape, &one, 1);
    (void)device_attention(devices[0], &a.shape, &two, 1);
    for (int d = 0; d < N_DEVICES; d++) {
        struct attn_run both[2] = {run_of(&b, got + half, 299, 1), run_of(&a, got, 0, 40)};
        (void)device_attention(devices[d], &a.shape, both, 2);
        assert_memory_equal(got, want, 2 * half * sizeof *want);
    }
    cache_fini(&a);
    cache_fini(&b);
    mem_free(want);
    mem_free(got);
}

/* The same pages, bits and count as when everything is stored before. */
static void attention_stores_what_it_reads(void **state)
{
    static const enum dtype DTYPES[] = {DTYPE_F32, DTYPE_F16, DTYPE_BF16};
    /* Blocks of rows are 10 long here: one block, over a page's end too, and several. */
    static const size_t ENDS[] = {1, 100, 110, 126, 127, 137, 138, 255, 256, 257, N};
    float *want = mem_array(N * HEADS * DIM, 4), *got = mem_array(N * HEADS * DIM, 4);
    float *half = mem_array(N * HEADS * DIM, 4);

    (void)state;
    for (size_t i = 0; i < COUNT_OF(DTYPES) * N_DEVICES; i++) {
        struct device *device = devices[i / 3];
        struct cache c;
        cache_make(&c, DTYPES[i % 3], 0);
        size_t kv = KV_HEADS * DIM, size = attn_layer_bytes(&c.shape) * LAYERS * N_PAGES;
        c.k[5 * kv] = 1e6f;   /* inside a run of several blocks */
        c.v[133 * kv] = 1e6f; /* of one block */
        size_t n_overflows = store(&c, devices[0], 0, N);
        assert_int_equal(n_overflows, DTYPES[i % 3] == DTYPE_F16 ? 2 : 0);
        struct attn_run all = run_of(&c, want, 0, N), other = run_of(&c, half, 0, 7);
        assert_int_equal(device_attention(devices[0], &c.shape, &all, 1), 0);
        unsigned char *stored = mem_alloc(size);
        assert_non_null(stored);
        memcpy(stored, c.memory, size);
        memset(c.memory, 0xFF, size);
        for (size_t begin = 0, r = 0; r < COUNT_OF(ENDS); begin = ENDS[r++]) {
            /* Beside a run that is stored already. */
            struct attn_run runs[2] = {run_of(&c, got, begin, ENDS[r] - begin), other};
            runs[0].k = c.k + begin * kv;
            runs[0].v = c.v + begin * kv;
            n_overflows -= device_attention(device, &c.shape, runs, begin < 7 ? 1 : 2);
        }
        assert_int_equal(n_overflows, 0);
        assert_memory_equal(c.memory, stored, size);
        if (memcmp(got, want, sizeof(float) * N * HEADS * DIM) != 0)
            fail_msg("%s: device %zu has other bits", dtype_name(DTYPES[i % 3]), i / 3);
        mem_free(stored);
        cache_fini(&c);
    }
    mem_free(half);
    mem_free(want);
    mem_free(got);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(equals_the_definition),
        cmocka_unit_test(storing_writes_its_layer_only),
        cmocka_unit_test(overflows_are_counted),
        cmocka_unit_test(runs_of_several_sequences),
        cmocka_unit_test(attention_stores_what_it_reads),
    };
    return cmocka_run_group_tests(tests, open_devices, close_devices);
}
