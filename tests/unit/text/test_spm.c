/* Score merging against a plain reading of the rules; bytes and unknown tokens. */
#include "../unit.h"

#include "base/alloc.h"
#include "small.h"
#include "text/spm.h"

#include <stdlib.h>
#include <string.h>

static const char *const TEXTS[] = {"<unk>", "a",   "b",        "c",  "ab", "bc", "abc", "aa",
                                    "aab",   "cab", "\xC3\xA9", "xy", "ca", "bb", "aaaa"};
enum { N = sizeof TEXTS / sizeof TEXTS[0] };

static void make(struct spm_model *model, struct arena *arena)
{
    /* Equal ranks for some: leftmost wins among them. */
    static const uint32_t RANKS[N] = {99, 50, 51, 52, 3, 3, 1, 5, 0, 2, 53, 4, 6, 6, 7};

    *model = (struct spm_model){.unk_id = 0};
    assert_true(vocab_init(&model->vocab, arena, N, N));
    model->ranks = arena_array(arena, N, sizeof *model->ranks);
    assert_non_null(model->ranks);
    for (uint32_t i = 0; i < N; i++) {
        assert_int_equal(vocab_add(&model->vocab, i, TEXTS[i], (uint32_t)strlen(TEXTS[i]), i > 0),
                         VOCAB_ADD_OK);
        model->ranks[i] = RANKS[i];
    }
    for (int byte = 0; byte < 256; byte++)
        model->byte_ids[byte] = -1;
}

static size_t merge_plainly(const struct spm_model *model, const char *text, size_t *ends, size_t n)
{
    for (;;) {
        size_t best = SIZE_MAX;
        uint32_t best_rank = UINT32_MAX;
        for (size_t i = 0; i + 1 < n; i++) {
            size_t begin = i == 0 ? 0 : ends[i - 1];
            int32_t id = vocab_find(&model->vocab, text + begin, ends[i + 1] - begin);
            if (id >= 0 && model->ranks[id] < best_rank) {
                best_rank = model->ranks[id];
                best = i;
            }
        }
        if (best == SIZE_MAX)
            return n;
        memmove(ends + best, ends + best + 1, (n - best - 1) * sizeof *ends);
        n--;
    }
}

static void merges_by_score_then_leftmost(void **state)
{
    struct arena arena;
    struct spm_model model;
    struct spm_scratch scratch = {0};

    (void)state;
    arena_init(&arena, "test");
    make(&model, &arena);
    uint64_t counter = 7;
    for (int line = 0; line < 3000; line++) {
        char text[120];
        size_t ends[120];
        struct token_ids got = {0};
        size_t n = 1 + small_random(&counter) % sizeof text;
        for (size_t i = 0; i < n; i++) {
            text[i] = "abcxy"[small_random(&counter) % 5];
            ends[i] = i + 1;
        }
        size_t n_want = merge_plainly(&model, text, ends, n);
        assert_int_equal(spm_encode(&model, &scratch, text, n, &got, NULL), FERRY_OK);
        assert_int_equal(got.count, n_want);
        for (size_t i = 0; i < n_want; i++) {
            size_t begin = i == 0 ? 0 : ends[i - 1];
            int32_t id = vocab_find(&model.vocab, text + begin, ends[i] - begin);
            assert_int_equal(got.ids[i], id < 0 ? 0 : id);
        }
        token_ids_fini(&got);
    }
    spm_scratch_fini(&scratch);
    arena_fini(&arena);
}

static void unknown_characters_become_bytes_or_unk(void **state)
{
    struct arena arena;
    struct spm_model model;
    struct spm_scratch scratch = {0};
    struct token_ids ids = {0};

    (void)state;
    arena_init(&arena, "test");
    make(&model, &arena);
    assert_int_equal(spm_encode(&model, &scratch, "a\xC3\xA8", 3, &ids, NULL), FERRY_OK);
    assert_int_equal(ids.count, 2);
    assert_int_equal(ids.ids[1], 0);
    ids.count = 0;
    model.byte_ids[0xC3] = 20;
    model.byte_ids[0xA8] = 21;
    assert_int_equal(spm_encode(&model, &scratch, "a\xC3\xA8\xC3\xA9", 5, &ids, NULL), FERRY_OK);
    assert_int_equal(ids.count, 4);
    assert_int_equal(ids.ids[1], 20);
    assert_int_equal(ids.ids[2], 21);
    assert_int_equal(ids.ids[3], 10);
    ids.count = 0;
    model.unk_id = -1;
    assert_int_equal(spm_encode(&model, &scratch, "z", 1, &ids, NULL), FERRY_OK);
    assert_int_equal(ids.count, 0);
    token_ids_fini(&ids);
    spm_scratch_fini(&scratch);
    arena_fini(&arena);
}

static void every_allocation_may_fail(void **state)
{
    struct arena arena;
    struct spm_model model;
    bool done = false;

    (void)state;
    arena_init(&arena, "test");
    make(&model, &arena);
    for (uint64_t n = 1; !done; n++) {
        struct spm_scratch scratch = {0};
        struct token_ids ids = {0};
        mem_fail_after(n);
        enum ferry_status st = spm_encode(&model, &scratch, "abcab", 5, &ids, NULL);
        mem_fail_after(0);
        spm_scratch_fini(&scratch);
        token_ids_fini(&ids);
        assert_true(st == FERRY_OK || st == FERRY_ERR_NOMEM);
        done = st == FERRY_OK;
        assert_true(!done || n > 2);
    }
    arena_fini(&arena);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(merges_by_score_then_leftmost),
        cmocka_unit_test(unknown_characters_become_bytes_or_unk),
        cmocka_unit_test(every_allocation_may_fail),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
