/* Loading and stepping: the plan is what is taken, errors leave a model usable, packing changes no
 * bit. */
#include "bind.h"

#include <ctype.h>

enum { N_IDS = 60, N_VOCAB = 97 };

static int32_t ids[N_IDS];
static float want[N_IDS * N_VOCAB], got[N_IDS * N_VOCAB];

static void errors_leave_the_model_usable(void **state)
{
    struct tiny_options tiny = tiny_defaults("qwen3_moe");
    struct model_options options = {.step_tokens = 40, .step_logits = 30, .kv_dtype = DTYPE_F16};
    struct opened o;
    int32_t bad[3] = {1, N_VOCAB, 2};

    (void)state;
    open_good(&o, &tiny, &options);
    step_good(&o, ids, 30, want);
    assert_int_equal(model_counters(o.model)->steps, 1);
    assert_int_equal(step(&o, bad, 3, 30, got), FERRY_ERR_ARG);
    assert_non_null(strstr(o.err.msg, "97"));
    assert_non_null(strstr(o.err.msg, "0..96"));
    bad[1] = -1;
    assert_int_equal(step(&o, bad, 3, 30, got), FERRY_ERR_ARG);
    bad[1] = INT32_MIN;
    assert_int_equal(step(&o, bad, 3, 30, got), FERRY_ERR_ARG);
    assert_int_equal(step(&o, ids, 41, 0, got), FERRY_ERR_LIMIT); /* tokens */
    assert_non_null(strstr(o.err.msg, "40"));
    assert_int_equal(step(&o, ids, 31, 0, got), FERRY_ERR_LIMIT);          /* rows of logits */
    assert_int_equal(model_step(o.model, NULL, 0, got, &o.err), FERRY_OK); /* nothing to do */
    assert_int_equal(model_counters(o.model)->steps, 1); /* only good steps count */
    assert_int_equal(model_counters(o.model)->tokens, 30);
    /* The cache still holds the first 30 tokens: going on equals starting anew. */
    assert_int_equal(step(&o, ids + 30, 10, 30, got), FERRY_OK);
    const struct model_run all = {ids, 40, 0, o.pages, 10};
    assert_int_equal(model_step(o.model, &all, 1, want, &o.err), FERRY_OK);
    assert_memory_equal(want, got, 10 * N_VOCAB * sizeof(float));
    /* A step is repeated harmlessly. */
    assert_int_equal(step(&o, ids + 30, 10, 30, got), FERRY_OK);
    assert_memory_equal(want, got, 10 * N_VOCAB * sizeof(float));
    close_tiny(&o);
}

static void packing_changes_no_bit(void **state)
{
    (void)state;
    for (size_t a = 0; a < COUNT_OF(ARCHS); a++) {
        struct tiny_options tiny = tiny_defaults(ARCHS[a]);
        struct model_options options = DEFAULTS;
        struct opened o;
        open_good(&o, &tiny, &options);
        step_good(&o, ids, N_IDS, want);
        assert_true(model_plan(o.model)->weights_packed >= model_plan(o.model)->weights_file);
        size_t file = model_plan(o.model)->weights_file;
        close_tiny(&o);
        options.no_repack = true;
        open_good(&o, &tiny, &options);
        step_good(&o, ids, N_IDS, got);
        assert_int_equal(model_plan(o.model)->weights_packed, 0);
        assert_int_equal(model_plan(o.model)->weights_file, file);
        close_tiny(&o);
        assert_memory_equal(want, got, sizeof want);
    }
}

static void the_plan_comes_before_the_memory(void **state)
{
    struct tiny_options tiny = tiny_defaults("mixtral");
    const struct device_options device_options = {1, cpu_best_level()};
    struct model_options small = {.step_tokens = 16, .step_logits = 16, .kv_dtype = DTYPE_F16},
                         large = {.step_tokens = 1024, .step_logits = 1024, .kv_dtype = DTYPE_F16};
    struct device *device = NULL;
    struct checkpoint *a = NULL, *b = NULL;
    struct model *one = NULL, *two = NULL;
    struct ferry_error err = {0};
    const char *folder = tiny_write(&tiny);

    (void)state;
    assert_int_equal(device_create_cpu(&device, &device_options, &err), FERRY_OK);
    assert_int_equal(checkpoint_open(&a, folder, &err), FERRY_OK);
    assert_int_equal(checkpoint_open(&b, folder, &err), FERRY_OK);
    assert_int_equal(model_open(&one, a, device, &small, &err), FERRY_OK);
    assert_int_equal(model_open(&two, b, device, &large, &err), FERRY_OK);
    /* 2 layers, 2 kv heads of 10, K and V, f16 */
    assert_int_equal(model_plan(one)->kv_per_token, 160);
    /* q, k, v, o, router, 8 experts of 3 matrices, per layer; the head; f32 */
    size_t matrices = 2 * (40 * 40 * 2 + 20 * 40 * 2 + 8 * 40 + 8 * 3 * 24 * 40) + 97 * 40;
    assert_int_equal(model_plan(one)->weights_file, matrices * 4);
    assert_int_equal(model_plan(one)->embed_mapped, 97 * 40 * 4);
    assert_true(model_plan(two)->step > 8 * model_plan(one)->step);
    uint64_t counts[8];
    assert_false(model_expert_counts(one, 0, counts)); /* not loaded */
    assert_int_equal(model_load(one, &err), FERRY_OK);
    assert_true(model_expert_counts(one, 0, counts));
    model_destroy(one);
    model_destroy(two);
    model_destroy(NULL);
    device_destroy(device);
    checkpoint_close(a);
    checkpoint_close(b);
    tiny_remove(folder);
}

static void default_sizes(void **state)
{
    struct tiny_options tiny = tiny_defaults("olmoe");
    const struct model_options options = {.kv_dtype = DTYPE_BF16};
    struct opened o;

    (void)state;
    open_good(&o, &tiny, &options);
    assert_int_equal(model_options(o.model)->step_tokens, 512);
    assert_int_equal(model_options(o.model)->step_logits, 512);
    close_tiny(&o);
}

static void numerics_tell_models_apart(void **state)
{
    struct tiny_options tiny = tiny_defaults("qwen3_moe");
    struct model_options options = DEFAULTS;
    struct opened o;
    char first[512];

    (void)state;
    open_good(&o, &tiny, &options);
    (void)snprintf(first, sizeof first, "%s", model_numerics(o.model));
    assert_non_null(strstr(first, "kv=F32"));
    close_tiny(&o);
    options.no_repack = true; /* not a numeric option */
    options.step_tokens = 7;
    options.step_logits = 7;
    open_good(&o, &tiny, &options);
    assert_string_equal(model_numerics(o.model), first);
    close_tiny(&o);
    options.kv_dtype = DTYPE_BF16;
    open_good(&o, &tiny, &options);
    assert_string_not_equal(model_numerics(o.model), first);
    close_tiny(&o);
    options.kv_dtype = DTYPE_F32;
    tiny.config = ",\"rope_scaling\":null";
    open_good(&o, &tiny, &options);
    assert_string_not_equal(model_numerics(o.model), first);
    close_tiny(&o);
}

static void experts_have_hashes(void **state)
{
    struct tiny_options tiny = tiny_defaults("qwen2_moe");
    struct opened o;
    char a[65], b[65];

    (void)state;
    tiny.dense = 1;
    open_good(&o, &tiny, &DEFAULTS);
    model_expert_hash(o.model, 0, 0, a);
    assert_string_equal(a, ""); /* a dense layer */
    model_expert_hash(o.model, 1, 0, a);
    model_expert_hash(o.model, 1, 1, b);
    assert_int_equal(strlen(a), 64);
    for (size_t i = 0; i < 64; i++)
        assert_true(isxdigit((unsigned char)a[i]));
    assert_string_not_equal(a, b);
    close_tiny(&o);
}

static void the_ledger_counts_every_choice(void **state)
{
    struct tiny_options tiny = tiny_defaults("mixtral");
    struct model_options options = {.step_tokens = 256, .step_logits = 256, .kv_dtype = DTYPE_F16};
    struct opened o;

    (void)state;
    open_good(&o, &tiny, &options);
    step_good(&o, ids, N_IDS, got);
    assert_int_equal(model_counters(o.model)->kv_overflows, 0);
    assert_int_equal(model_ledger(o.model)->routed, 2 * 3 * N_IDS);
    assert_int_equal(model_ledger(o.model)->combined, 2 * 3 * N_IDS);
    close_tiny(&o);
}

/* Sum of a layer's counts. */
static uint64_t load_of(const struct model *model, size_t layer)
{
    uint64_t counts[64] = {0}, sum = 0;

    assert_true(model_config(model)->router.n_experts <= 64);
    assert_true(model_expert_counts(model, layer, counts));
    for (size_t e = 0; e < 64; e++)
        sum += counts[e];
    return sum;
}

static void the_load_of_experts_is_counted_by_layer(void **state)
{
    struct tiny_options tiny = tiny_defaults("qwen2_moe"); /* two layers */
    struct opened o;
    uint64_t once[64] = {0}, twice[64] = {0}, untouched[64] = {7};

    (void)state;
    tiny.dense = 1;
    open_good(&o, &tiny, &DEFAULTS);
    size_t n_experts = model_config(o.model)->router.n_experts,
           top_k = model_config(o.model)->router.top_k;
    assert_int_equal(load_of(o.model, 1), 0);
    step_good(&o, ids, N_IDS, got);
    assert_int_equal(load_of(o.model, 1), N_IDS * top_k);
    assert_true(model_expert_counts(o.model, 1, once));
    for (size_t e = 0; e < n_experts; e++)
        assert_true(once[e] <= N_IDS); /* a token is at an expert once */
    step_good(&o, ids, N_IDS, got);    /* the same tokens go the same ways */
    assert_true(model_expert_counts(o.model, 1, twice));
    for (size_t e = 0; e < n_experts; e++)
        assert_int_equal(twice[e], 2 * once[e]);
    /* Layer 0 is dense, layer 2 is none. */
    assert_false(model_expert_counts(o.model, 0, untouched));
    assert_false(model_expert_counts(o.model, 2, untouched));
    assert_false(model_expert_counts(o.model, SIZE_MAX, untouched));
    assert_int_equal(untouched[0], 7);
    assert_int_equal(model_ledger(o.model)->routed, load_of(o.model, 1));
    close_tiny(&o);
}

/* ---- lossy experts, put in front of the real ones by the linker (--wrap) ---- */

static struct {
    size_t calls;       /* layer rounds so far */
    size_t first, last; /* rounds [first, last) deliver one row less than was routed */
} lossy;

size_t __real_forward_experts(void *arg, const struct exchange_job *work);
size_t __wrap_forward_experts(void *arg, const struct exchange_job *work);

/* Spoils the last row and does not count it: what a peer that fell silent leaves behind. */
size_t __wrap_forward_experts(void *arg, const struct exchange_job *work)
{
    bool loses = lossy.calls >= lossy.first && lossy.calls < lossy.last;
    size_t n = __real_forward_experts(arg, work);

    lossy.calls++;
    for (size_t c = 0; loses && c < work->out_stride; c++)
        work->out[(work->n_slots - 1) * work->out_stride + c] = 1e9f;
    return loses ? n - 1 : n;
}

/* Loses in rounds [first, last) of the next step. */
static void lose(size_t first, size_t last)
{
    lossy.calls = 0;
    lossy.first = first;
    lossy.last = last;
}

/* A rank that asks for a layer's experts with rows in another format than they take gets no sums.
 */
static void rows_of_another_format_are_not_computed(void **state)
{
    struct tiny_options tiny = tiny_defaults("qwen3_moe");
    struct opened o;
    static const float row[1024];
    static float out[1024];
    const void *at[] = {row};
    const int32_t begin[] = {0, 1};
    struct exchange_job work = {
        .n_experts = 1, .n_slots = 1, .begin = begin, .a32_at = at, .out = out, .out_stride = 1024};

    (void)state;
    open_good(&o, &tiny, &DEFAULTS);
    lose(0, 0);
    size_t a32 = __real_forward_experts(o.model, &work);
    work.f32_at = at;
    work.a32_at = NULL;
    size_t f32 = __real_forward_experts(o.model, &work);
    work.a32_at = at;
    assert_int_equal(a32 + f32, 1); /* one of them it takes */
    assert_int_equal(__real_forward_experts(o.model, &work), 1);
    close_tiny(&o);
}

/* A step whose ledger does not balance is void: repeated once, as if nothing had been, then an
 * error. */
static void a_void_step_is_repeated_once(void **state)
{
    struct tiny_options tiny = tiny_defaults("qwen3_moe"); /* two layers, top-3 */
    struct opened o;

    (void)state;
    open_good(&o, &tiny, &DEFAULTS);
    step_good(&o, ids, N_IDS, want);
    /* Rounds that do not balance are not in the load; those before them are there twice. */
    uint64_t load0 = load_of(o.model, 0) - 3 * 20, load1 = load_of(o.model, 1) - 3 * 20;
    for (size_t round = 0; round < 2; round++) { /* in the first layer, in the second one */
        lose(round, round + 1);
        memset(got, 0, sizeof got);
        step_good(&o, ids, 40, got);
        assert_memory_equal(got, want, 40 * N_VOCAB * sizeof(float));
        assert_int_equal(lossy.calls, round + 1 + 2);
        assert_int_equal(model_counters(o.model)->steps_retried, round + 1);
        assert_int_equal(model_ledger(o.model)->voided, round + 1);
        assert_int_equal(load_of(o.model, 0), load0 += 3 * (40 + 20 + 40 * round));
        assert_int_equal(load_of(o.model, 1), load1 += 3 * (40 + 20));
        /* And the cache holds what an undisturbed step leaves there. */
        assert_int_equal(step(&o, ids + 40, N_IDS - 40, 40, got), FERRY_OK);
        assert_memory_equal(got, want + (size_t)40 * N_VOCAB,
                            (N_IDS - 40) * N_VOCAB * sizeof(float));
    }
    assert_int_equal(model_counters(o.model)->steps, 5);
    lose(0, 2); /* the second try fails, too, in its first layer */
    assert_int_equal(step(&o, ids, 10, 0, got), FERRY_ERR_LEDGER);
    assert_string_equal(o.err.msg, "layer 0: exchange: 30 rows routed, 29 delivered, 30 combined");
    assert_int_equal(lossy.calls, 2);
    assert_int_equal(model_counters(o.model)->steps_retried, 3);
    assert_int_equal(model_counters(o.model)->steps, 5);
    assert_int_equal(model_counters(o.model)->tokens, N_IDS * 3);
    lose(0, 0);
    step_good(&o, ids, N_IDS, got);
    assert_memory_equal(got, want, N_IDS * N_VOCAB * sizeof(float));
    close_tiny(&o);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(errors_leave_the_model_usable),
        cmocka_unit_test(packing_changes_no_bit),
        cmocka_unit_test(the_plan_comes_before_the_memory),
        cmocka_unit_test(default_sizes),
        cmocka_unit_test(numerics_tell_models_apart),
        cmocka_unit_test(experts_have_hashes),
        cmocka_unit_test(the_ledger_counts_every_choice),
        cmocka_unit_test(the_load_of_experts_is_counted_by_layer),
        cmocka_unit_test(rows_of_another_format_are_not_computed),
        cmocka_unit_test(a_void_step_is_repeated_once),
    };
    for (size_t i = 0; i < N_IDS; i++)
        ids[i] = (int32_t)(i * i * 31 % N_VOCAB);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
