/* Merging against a plain reading of the rules, unknown characters, byte fallback, whole pieces. */
#include "../unit.h"

#include "base/alloc.h"
#include "small.h"
#include "text/bpe.h"

#include <stdlib.h>
#include <string.h>

enum { LETTERS = 4, MERGES = 24, LINES = 300 };

/* Model over the letters a..d with random merges; every token is made by one merge only. */
static void random_model(struct bpe_model *model, struct arena *arena, unsigned seed)
{
    static char texts[LETTERS + MERGES][64];
    struct merges *merges = &model->merges;
    uint32_t n = LETTERS;

    uint64_t counter = seed;

    *model = (struct bpe_model){.unk_id = -1};
    assert_true(vocab_init(&model->vocab, arena, LETTERS + MERGES, LETTERS + MERGES));
    assert_true(merges_init(merges, arena, MERGES));
    for (uint32_t i = 0; i < LETTERS; i++) {
        texts[i][0] = (char)('a' + i);
        texts[i][1] = 0;
        assert_int_equal(vocab_add(&model->vocab, i, texts[i], 1, true), VOCAB_ADD_OK);
    }
    for (int tries = 0; n < LETTERS + MERGES && tries < 10000; tries++) {
        uint32_t left = small_random(&counter) % n;
        uint32_t right = small_random(&counter) % n;
        if (strlen(texts[left]) + strlen(texts[right]) > 12)
            continue;
        size_t left_size = strlen(texts[left]);
        memmove(texts[n], texts[left], left_size);
        memmove(texts[n] + left_size, texts[right], strlen(texts[right]) + 1);
        uint32_t size = (uint32_t)strlen(texts[n]);
        if (vocab_add(&model->vocab, n, texts[n], size, true) != VOCAB_ADD_OK)
            continue;
        merges_add(merges, left, right, n - LETTERS, n);
        n++;
    }
}

/* The rule itself: merge the pair of lowest rank, leftmost, until none is left. */
static size_t merge_plainly(const struct bpe_model *model, uint32_t *ids, size_t n)
{
    for (;;) {
        size_t best = SIZE_MAX;
        uint32_t best_rank = UINT32_MAX;
        for (size_t i = 0; i + 1 < n; i++) {
            uint32_t rank = merges_find(&model->merges, ids[i], ids[i + 1]);
            if (rank < best_rank) {
                best_rank = rank;
                best = i;
            }
        }
        if (best == SIZE_MAX)
            return n;
        ids[best] = model->merges.new_ids[best_rank];
        memmove(ids + best + 1, ids + best + 2, (n - best - 2) * sizeof *ids);
        n--;
    }
}

static void merges_by_rank_then_leftmost(void **state)
{
    struct bpe_scratch scratch = {0};

    (void)state;
    for (unsigned seed = 1; seed <= 20; seed++) {
        uint64_t counter = seed;
        struct arena arena;
        struct bpe_model model;
        arena_init(&arena, "test");
        random_model(&model, &arena, seed);
        for (int line = 0; line < LINES; line++) {
            char text[200];
            uint32_t want[200];
            struct token_ids got = {0};
            size_t n = 1 + small_random(&counter) % sizeof text;
            for (size_t i = 0; i < n; i++) {
                text[i] = (char)('a' + small_random(&counter) % (line % 3 == 0 ? 1 : LETTERS));
                want[i] = (uint32_t)(text[i] - 'a');
            }
            size_t n_want = merge_plainly(&model, want, n);
            assert_int_equal(bpe_encode(&model, &scratch, text, n, &got, NULL), FERRY_OK);
            assert_int_equal(got.count, n_want);
            assert_memory_equal(got.ids, want, n_want * sizeof *want);
            token_ids_fini(&got);
        }
        arena_fini(&arena);
    }
    bpe_scratch_fini(&scratch);
}

/* Two merges make "aaaa"; the reference takes the queued one for the other. Expected ids from
 * `tokenizers` 0.23.3 for the same document. */
static void several_ways_to_one_token(void **state)
{
    const char *const merges[] = {"a a", "aa a", "aa aa", "aaa a", "a aaa", NULL};
    const struct small small = {.vocab = "\"a\":0,\"aa\":1,\"aaa\":2,\"aaaa\":3", .merges = merges};
    struct tokenizer *t = small_tokenizer(&small);

    (void)state;
    expect_ids(t, "aaa", true, "2");
    expect_ids(t, "aaaa", true, "3");
    expect_ids(t, "aaaaa", true, "1 2");
    expect_ids(t, "aaaaaaa", true, "3 2");
    tokenizer_destroy(t);
}

static void unknown_characters(void **state)
{
    struct small small = {.vocab =
                              "\"a\":0,\"b\":1,\"<unk>\":2,\"ab\":3,\"<0xC3>\":4,\"<0xA9>\":5"};
    const char *const merges[] = {"a b", NULL};

    (void)state;
    small.merges = merges;
    struct tokenizer *t = small_tokenizer(&small); /* no unk_token: they vanish */
    expect_ids(t, "axb", true, "3");
    expect_ids(t, "xyz", true, "");
    tokenizer_destroy(t);
    small.model = "\"unk_token\":\"<unk>\",";
    t = small_tokenizer(&small);
    expect_ids(t, "axyb", true, "0 2 2 1");
    expect_ids(t, "x", true, "2");
    tokenizer_destroy(t);
    small.model = "\"unk_token\":\"<unk>\",\"fuse_unk\":true,";
    t = small_tokenizer(&small);
    expect_ids(t, "axyb", true, "0 2 1");
    tokenizer_destroy(t);
    small.model = "\"unk_token\":\"<unk>\",\"fuse_unk\":true,\"byte_fallback\":true,";
    t = small_tokenizer(&small);
    expect_ids(t,
               "a\xC3\xA9"
               "b",
               true, "0 4 5 1");
    expect_ids(t, "a\xC3\xA8", true, "0 2"); /* a byte is missing */
    expect_ids(t,
               "x\xC3\xA9"
               "a",
               true, "4 5 2 0"); /* the reference's order */
    tokenizer_destroy(t);
}

static void whole_pieces(void **state)
{
    const char *const merges[] = {"b c", NULL};
    struct small small = {.pre_tokenizer = BYTE_LEVEL, .merges = merges};
    struct tokenizer *t = small_tokenizer(&small);

    (void)state;
    expect_ids(t, "bc", true, "256");
    tokenizer_destroy(t);
    small.vocab = "\"a\":0,\"b\":1,\"bc\":2,\"c\":3,\"abc\":4,\"\xC4\xA0"
                  "abc\":5";
    t = small_tokenizer(&small);
    expect_ids(t, "abc", true, "0 2");
    tokenizer_destroy(t);
    small.model = "\"ignore_merges\":true,";
    t = small_tokenizer(&small);
    expect_ids(t, "abc", true, "4");
    expect_ids(t, "abc abc", true, "4 5");
    expect_ids(t, "abcb", true, "0 2 1");
    tokenizer_destroy(t);
}

static void every_allocation_may_fail(void **state)
{
    struct arena arena;
    struct bpe_model model;
    bool done = false;

    (void)state;
    arena_init(&arena, "test");
    random_model(&model, &arena, 1);
    for (uint64_t n = 1; !done; n++) {
        struct bpe_scratch scratch = {0};
        struct token_ids ids = {0};
        mem_fail_after(n);
        enum ferry_status st = bpe_encode(&model, &scratch, "abcdabcd", 8, &ids, NULL);
        mem_fail_after(0);
        bpe_scratch_fini(&scratch);
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
        cmocka_unit_test(merges_by_rank_then_leftmost), cmocka_unit_test(several_ways_to_one_token),
        cmocka_unit_test(unknown_characters),           cmocka_unit_test(whole_pieces),
        cmocka_unit_test(every_allocation_may_fail),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
