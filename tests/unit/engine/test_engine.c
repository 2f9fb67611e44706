/* Law 2 at the level of sequences: a token's logits do not depend on chunks, batch mates, threads,
 * level, packing, or on a cache that was filled before. Byte equality, on tiny checkpoints of every
 * architecture. */
#include "tests/unit/unit.h"

#include "base/alloc.h"
#include "engine/engine.h"
#include "tests/support/tiny.h"

#include <stdlib.h>
#include <string.h>

enum { N_IDS = 150, N_VOCAB = 97 };

static int32_t ids[4][N_IDS];

/* One way to compute. */
struct way {
    size_t step_tokens, step_logits;
    int n_threads;
    enum cpu_level level;
    bool no_repack;
    enum dtype kv;
};

struct setup {
    struct checkpoint *checkpoint;
    struct device *device;
    struct model *model;
    struct engine *engine;
};

static void open_setup(struct setup *s, const char *folder, struct way way, size_t n_sequences)
{
    struct ferry_error err = {0};
    struct device_options device = {way.n_threads, way.level};
    struct model_options model = {.step_tokens = way.step_tokens,
                                  .step_logits = way.step_logits,
                                  .no_repack = way.no_repack,
                                  .kv_dtype = way.kv};
    struct engine_options engine = {n_sequences, N_IDS, 0};

    if (checkpoint_open(&s->checkpoint, folder, &err) != FERRY_OK ||
        device_create_cpu(&s->device, &device, &err) != FERRY_OK ||
        model_create(&s->model, s->checkpoint, s->device, &model, &err) != FERRY_OK ||
        engine_create(&s->engine, s->model, &engine, &err) != FERRY_OK)
        fail_msg("%s", err.msg);
}

static void close_setup(struct setup *s)
{
    engine_destroy(s->engine);
    model_destroy(s->model);
    device_destroy(s->device);
    checkpoint_close(s->checkpoint);
}

static enum ferry_status store_row(void *arg, size_t feed, size_t position, const float *logits)
{
    float(*rows)[N_IDS][N_VOCAB] = arg;
    memcpy(rows[feed][position], logits, sizeof rows[feed][position]);
    return FERRY_OK;
}

static void feed_ok(struct engine *engine, const struct engine_feed *feeds, size_t n, void *rows)
{
    struct ferry_error err = {0};
    if (engine_feed(engine, feeds, n, store_row, rows, &err) != FERRY_OK)
        fail_msg("%s", err.msg);
}

/* Logits of ids[which] computed one way, alone. */
static void solo(const char *folder, struct way way, size_t which, float (*rows)[N_IDS][N_VOCAB])
{
    struct setup s = {0};
    struct ferry_error err = {0};
    struct sequence *sequence = NULL;

    open_setup(&s, folder, way, 1);
    assert_int_equal(sequence_open(s.engine, &sequence, &err), FERRY_OK);
    struct engine_feed feed = {sequence, ids[which], N_IDS, N_IDS};
    feed_ok(s.engine, &feed, 1, rows);
    close_setup(&s);
}

static void check_architecture(const char *arch)
{
    static const struct way BASE = {512, 512, 2, CPU_LEVEL_REF, false, DTYPE_F16};
    struct tiny_options options = tiny_defaults(arch);
    size_t size = sizeof(float[N_IDS][N_VOCAB]);
    float(*want)[N_IDS][N_VOCAB] = malloc(4 * size), (*got)[N_IDS][N_VOCAB] = malloc(4 * size);
    const struct way ways[] = {
        {1, 1, 1, CPU_LEVEL_REF, false, DTYPE_F16},
        {7, 3, 2, cpu_best_level(), false, DTYPE_F16},
        {64, 64, 5, cpu_best_level(), false, DTYPE_F16},
        {512, 512, 2, cpu_best_level(), true, DTYPE_F16},
    };

    options.tied = strcmp(arch, "olmoe") == 0;
    const char *folder = tiny_write(&options);
    for (size_t i = 0; i < 4; i++)
        solo(folder, BASE, i, want + i);
    for (size_t w = 0; w < COUNT_OF(ways); w++) {
        solo(folder, ways[w], w, got);
        if (memcmp(got[0], want[w], size) != 0)
            fail_msg("%s: way %zu has other bits", arch, w);
    }
    /* Batch mates: four sequences at once, with steps that cut through them. */
    struct setup s = {0};
    struct engine_feed feeds[4];
    struct ferry_error err = {0};
    open_setup(&s, folder, (struct way){50, 50, 2, cpu_best_level(), false, DTYPE_F16}, 4);
    for (size_t i = 0; i < 4; i++) {
        struct sequence *sequence = NULL;
        assert_int_equal(sequence_open(s.engine, &sequence, &err), FERRY_OK);
        feeds[i] = (struct engine_feed){sequence, ids[i], N_IDS, N_IDS};
    }
    feed_ok(s.engine, feeds, 4, got);
    assert_memory_equal(got, want, 4 * size);
    /* A refilled cache: cut one back into the middle of a page, fill it with the rest of another,
     * cut again, feed again token by token. */
    sequence_truncate(s.engine, feeds[0].sequence, 40);
    struct engine_feed other = {feeds[0].sequence, ids[1] + 40, 60, 0};
    feed_ok(s.engine, &other, 1, got);
    sequence_truncate(s.engine, feeds[0].sequence, 40);
    memset(got[0][40], 0, (N_IDS - 40) * sizeof got[0][0]);
    for (size_t i = 40; i < N_IDS; i++) {
        struct engine_feed one = {feeds[0].sequence, ids[0] + i, 1, 1};
        feed_ok(s.engine, &one, 1, got);
    }
    assert_memory_equal(got[0], want[0], size);
    close_setup(&s);
    tiny_remove(folder);
    free(want);
    free(got);
}

static void same_bits_mixtral(void **state)
{
    (void)state;
    check_architecture("mixtral");
}

static void same_bits_qwen2_moe(void **state)
{
    (void)state;
    check_architecture("qwen2_moe");
}

static void same_bits_qwen3_moe(void **state)
{
    (void)state;
    check_architecture("qwen3_moe");
}

static void same_bits_olmoe(void **state)
{
    (void)state;
    check_architecture("olmoe");
}

static void same_bits_granitemoe(void **state)
{
    (void)state;
    check_architecture("granitemoe");
}

static void decoding_does_not_allocate(void **state)
{
    struct tiny_options options = tiny_defaults("qwen3_moe");
    float(*rows)[N_IDS][N_VOCAB] = malloc(sizeof *rows);
    struct setup s = {0};
    struct ferry_error err = {0};
    struct sequence *sequence = NULL;

    (void)state;
    const char *folder = tiny_write(&options);
    open_setup(&s, folder, (struct way){64, 64, 2, cpu_best_level(), false, DTYPE_F16}, 1);
    assert_int_equal(sequence_open(s.engine, &sequence, &err), FERRY_OK);
    uint64_t before = mem_count_calls();
    for (size_t i = 0; i < N_IDS; i++) {
        struct engine_feed one = {sequence, ids[0] + i, 1, 1};
        feed_ok(s.engine, &one, 1, rows);
    }
    assert_int_equal(mem_count_calls(), before);
    close_setup(&s);
    tiny_remove(folder);
    free(rows);
}

static void limits_are_statuses(void **state)
{
    struct tiny_options options = tiny_defaults("qwen3_moe");
    struct setup s = {0};
    struct ferry_error err = {0};
    struct sequence *a = NULL, *b = NULL;
    float(*rows)[N_IDS][N_VOCAB] = malloc(sizeof *rows);
    const int32_t bad[1] = {N_VOCAB}, negative[1] = {-1};

    (void)state;
    const char *folder = tiny_write(&options);
    open_setup(&s, folder, (struct way){64, 64, 1, cpu_best_level(), false, DTYPE_F32}, 1);
    assert_int_equal(sequence_open(s.engine, &a, &err), FERRY_OK);
    assert_int_equal(sequence_open(s.engine, &b, &err), FERRY_ERR_LIMIT);
    struct engine_feed feed = {a, bad, 1, 1};
    assert_int_equal(engine_feed(s.engine, &feed, 1, store_row, rows, &err), FERRY_ERR_ARG);
    assert_non_null(strstr(err.msg, "97"));
    feed.ids = negative;
    assert_int_equal(engine_feed(s.engine, &feed, 1, store_row, rows, &err), FERRY_ERR_ARG);
    struct engine_feed full = {a, ids[0], N_IDS, 1};
    feed_ok(s.engine, &full, 1, rows);
    struct engine_feed more = {a, ids[0], 1, 1};
    assert_int_equal(engine_feed(s.engine, &more, 1, store_row, rows, &err),
                     FERRY_ERR_CONTEXT_FULL);
    assert_int_equal(sequence_n_tokens(a), N_IDS);
    sequence_close(s.engine, a);
    assert_int_equal(sequence_open(s.engine, &b, &err), FERRY_OK);
    assert_int_equal(sequence_n_tokens(b), 0);
    close_setup(&s);
    tiny_remove(folder);
    free(rows);
}

static void out_of_memory_is_a_status(void **state)
{
    struct tiny_options options = tiny_defaults("qwen2_moe");
    struct ferry_error err = {0};

    (void)state;
    const char *folder = tiny_write(&options);
    for (uint64_t n = 1;; n++) {
        struct setup s = {0};
        struct device_options device = {1, CPU_LEVEL_REF};
        struct model_options model = {.step_tokens = 16, .step_logits = 16, .kv_dtype = DTYPE_F16};
        struct engine_options engine = {2, 64, 0};
        mem_fail_after(n);
        enum ferry_status st = checkpoint_open(&s.checkpoint, folder, &err);
        if (st == FERRY_OK)
            st = device_create_cpu(&s.device, &device, &err);
        if (st == FERRY_OK)
            st = model_create(&s.model, s.checkpoint, s.device, &model, &err);
        if (st == FERRY_OK)
            st = engine_create(&s.engine, s.model, &engine, &err);
        mem_fail_after(0);
        close_setup(&s);
        if (st == FERRY_OK)
            break;
        assert_int_equal(st, FERRY_ERR_NOMEM);
        assert_true(n < 5000);
    }
    tiny_remove(folder);
}

/* Feeds ids from the sequence's end to N_IDS, one step, logits of all. */
static void step_rest(struct engine *engine, struct sequence *sequence, const int32_t *all,
                      float (*rows)[N_IDS][N_VOCAB])
{
    struct ferry_error err = {0};
    size_t n = sequence_n_tokens(sequence);
    struct engine_feed feed = {sequence, all + n, N_IDS - n, N_IDS - n};

    if (engine_step(engine, &feed, 1, store_row, rows, &err) != FERRY_OK)
        fail_msg("%s", err.msg);
}

/* Pages that are taken over give the bits that were computed, and who only begins like them writes
 * into a copy. */
static void shared_pages_have_the_same_bits(void **state)
{
    static const unsigned char KEY[PAGE_KEY_BYTES] = {1}, OTHER[PAGE_KEY_BYTES] = {2};
    enum { SAME = 60, PAGE = KERNEL_KV_CHUNK };
    struct tiny_options options = tiny_defaults("qwen3_moe");
    float(*want)[N_IDS][N_VOCAB] = calloc(1, sizeof *want), (*got)[N_IDS][N_VOCAB];
    struct setup s = {0};
    struct ferry_error err = {0};
    struct sequence *first = NULL, *sequence = NULL, *mixed = NULL;
    int32_t mix[N_IDS];

    (void)state;
    got = calloc(1, sizeof *got);
    memcpy(mix, ids[0], sizeof mix);
    memcpy(mix + SAME, ids[1] + SAME, sizeof mix - SAME * sizeof mix[0]);
    mix[SAME] = (ids[0][SAME] + 1) % N_VOCAB;
    const char *folder = tiny_write(&options);
    open_setup(&s, folder, (struct way){256, 256, 2, cpu_best_level(), false, DTYPE_F16}, 3);
    assert_int_equal(sequence_open(s.engine, &first, &err), FERRY_OK);
    step_rest(s.engine, first, ids[0], want);
    sequence_publish(s.engine, first, KEY, ids[0]);
    sequence_publish(s.engine, first, KEY, ids[0]); /* nothing new */
    assert_int_equal(sequence_open(s.engine, &sequence, &err), FERRY_OK);
    assert_int_equal(sequence_attach(s.engine, sequence, OTHER, ids[0], N_IDS), 0);
    assert_int_equal(sequence_attach(s.engine, sequence, KEY, ids[0], N_IDS - 1), PAGE);
    step_rest(s.engine, sequence, ids[0], got);
    assert_memory_equal(got[0][PAGE], want[0][PAGE], (N_IDS - PAGE) * sizeof got[0][0]);
    /* Another one begins like the page. */
    assert_int_equal(sequence_open(s.engine, &mixed, &err), FERRY_OK);
    assert_int_equal(sequence_attach(s.engine, mixed, KEY, mix, N_IDS - 1), SAME);
    assert_int_equal(sequence_room(mixed), 0); /* not into a page that others read */
    assert_int_equal(sequence_reserve(s.engine, mixed, 1, &err), FERRY_OK);
    assert_int_equal(sequence_room(mixed), PAGE - SAME);
    step_rest(s.engine, mixed, mix, got);
    sequence_close(s.engine, mixed); /* so that there are pages for all, and none is evicted */
    sequence_close(s.engine, sequence);
    /* So does the first one itself, cut back into the page that it has published. */
    sequence_truncate(s.engine, first, SAME);
    memset(want, 0, SAME * sizeof want[0][0]);
    float(*again)[N_IDS][N_VOCAB] = calloc(1, sizeof *again);
    step_rest(s.engine, first, mix, again);
    assert_memory_equal(again[0][SAME], got[0][SAME], (N_IDS - SAME) * sizeof got[0][0]);
    assert_int_equal(sequence_open(s.engine, &sequence, &err), FERRY_OK);
    step_rest(s.engine, sequence, mix, again); /* and so it is without any cache */
    assert_memory_equal(again[0][SAME], got[0][SAME], (N_IDS - SAME) * sizeof got[0][0]);
    /* What it holds now can be published as well. */
    sequence_publish(s.engine, first, KEY, mix);
    sequence_truncate(s.engine, sequence, 0);
    assert_int_equal(sequence_attach(s.engine, sequence, KEY, mix, N_IDS - 1), PAGE);
    /* The page itself is as it was. */
    sequence_truncate(s.engine, sequence, 0);
    assert_int_equal(sequence_attach(s.engine, sequence, KEY, ids[0], N_IDS - 1), PAGE);
    step_rest(s.engine, sequence, ids[0], got);
    assert_memory_equal(got[0][PAGE], want[0][PAGE], (N_IDS - PAGE) * sizeof got[0][0]);
    close_setup(&s);
    tiny_remove(folder);
    free(want);
    free(got);
    free(again);
}

/* A step that cannot be has changed nothing; pages that are not there are a status. */
static void failed_steps_change_nothing(void **state)
{
    struct tiny_options options = tiny_defaults("qwen3_moe");
    struct engine_options two_pages = {2, N_IDS, 2};
    float(*want)[N_IDS][N_VOCAB] = calloc(2, sizeof *want),
    (*got)[N_IDS][N_VOCAB] = calloc(2, sizeof *got);
    struct setup s = {0};
    struct ferry_error err = {0};
    struct sequence *a = NULL, *b = NULL;
    const int32_t bad[2] = {3, N_VOCAB};

    (void)state;
    const char *folder = tiny_write(&options);
    open_setup(&s, folder, (struct way){256, 256, 1, cpu_best_level(), false, DTYPE_F16}, 2);
    engine_destroy(s.engine);
    s.engine = NULL;
    assert_int_equal(engine_create(&s.engine, s.model, &two_pages, &err), FERRY_OK);
    assert_int_equal(engine_n_pages(s.engine), 2);
    assert_int_equal(sequence_open(s.engine, &a, &err), FERRY_OK);
    assert_int_equal(sequence_open(s.engine, &b, &err), FERRY_OK);
    step_rest(s.engine, a, ids[0], want); /* both pages */
    sequence_truncate(s.engine, a, 100);
    struct engine_feed feeds[] = {{a, ids[0] + 100, 20, 20}, {b, bad, 2, 1}};
    assert_int_equal(engine_step(s.engine, feeds, 2, store_row, got, &err), FERRY_ERR_ARG);
    assert_int_equal(sequence_n_tokens(a), 100);
    assert_int_equal(sequence_n_tokens(b), 0);
    feeds[1].ids = ids[1];
    feeds[1].n_tokens = N_IDS + 1;
    assert_int_equal(engine_step(s.engine, feeds, 2, store_row, got, &err), FERRY_ERR_CONTEXT_FULL);
    assert_int_equal(engine_step(s.engine, feeds, 0, store_row, got, &err), FERRY_OK);
    /* b has one page, a needs two. */
    feeds[1].n_tokens = 20;
    feeds[0].n_tokens = feeds[0].n_logits = 50;
    assert_int_equal(engine_step(s.engine, feeds, 2, store_row, got, &err), FERRY_ERR_NOMEM);
    assert_non_null(strstr(err.msg, "all 2 are in use"));
    assert_int_equal(sequence_n_tokens(a), 100);
    assert_int_equal(sequence_reserve(s.engine, a, 29, &err), FERRY_ERR_NOMEM);
    assert_int_equal(sequence_reserve(s.engine, a, 28, &err), FERRY_OK);
    assert_int_equal(sequence_reserve(s.engine, a, 0, &err), FERRY_OK);
    assert_int_equal(sequence_room(a), 28);
    assert_int_equal(engine_n_pages_available(s.engine), 0);
    sequence_close(s.engine, b);
    assert_int_equal(engine_n_pages_available(s.engine), 1);
    step_rest(s.engine, a, ids[0], got);
    assert_memory_equal(got[0][100], want[0][100], (N_IDS - 100) * sizeof got[0][0]);
    close_setup(&s);
    tiny_remove(folder);
    free(want);
    free(got);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(same_bits_mixtral),
        cmocka_unit_test(same_bits_qwen2_moe),
        cmocka_unit_test(same_bits_qwen3_moe),
        cmocka_unit_test(same_bits_olmoe),
        cmocka_unit_test(same_bits_granitemoe),
        cmocka_unit_test(decoding_does_not_allocate),
        cmocka_unit_test(limits_are_statuses),
        cmocka_unit_test(out_of_memory_is_a_status),
        cmocka_unit_test(shared_pages_have_the_same_bits),
        cmocka_unit_test(failed_steps_change_nothing),
    };
    for (size_t i = 0; i < 4; i++) {
        for (size_t j = 0; j < N_IDS; j++)
            ids[i][j] = (int32_t)((j * j * 31 + i * 17 + j * 7) % N_VOCAB);
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
