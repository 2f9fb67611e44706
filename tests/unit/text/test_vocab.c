/* Vocabulary and merge tables over many entries, duplicates, holes. */
#include "../unit.h"

#include "text/vocab.h"

#include <stdio.h>

enum { N = 20000 };

static void every_text_and_only_these_are_found(void **state)
{
    struct arena arena;
    struct vocab vocab = {0};
    char text[32];

    (void)state;
    arena_init(&arena, "test");
    assert_true(vocab_init(&vocab, &arena, 2 * N, N));
    for (uint32_t i = 0; i < N; i++) {
        int n = snprintf(text, sizeof text, "token %u%s", i, i % 3 == 0 ? " of some length" : "");
        const char *kept = arena_strndup(&arena, text, (size_t)n);
        assert_non_null(kept);
        assert_int_equal(vocab_add(&vocab, 2 * i, kept, (uint32_t)n, true), VOCAB_ADD_OK);
    }
    for (uint32_t i = 0; i < N; i++) {
        int n = snprintf(text, sizeof text, "token %u%s", i, i % 3 == 0 ? " of some length" : "");
        assert_int_equal(vocab_find(&vocab, text, (size_t)n), 2 * i);
    }
    assert_int_equal(vocab_find(&vocab, "", 0), -1);
    assert_int_equal(vocab_find(&vocab, "token ", 6), -1);
    assert_int_equal(vocab_find(&vocab, "token 0", 7), -1);
    assert_int_equal(vocab_find(&vocab, "token 1 of", 10), -1);
    assert_null(vocab.tokens[1].text);
    assert_int_equal(vocab_add(&vocab, 0, "new", 3, true), VOCAB_ADD_SAME_ID);
    assert_int_equal(vocab_add(&vocab, 1, "token 1", 7, true), VOCAB_ADD_SAME_TEXT);
    assert_int_equal(vocab_add(&vocab, 1, "hidden", 6, false), VOCAB_ADD_OK);
    assert_int_equal(vocab_find(&vocab, "hidden", 6), -1);
    arena_fini(&arena);
}

static void pairs_have_ranks(void **state)
{
    struct arena arena;
    struct merges merges = {0};

    (void)state;
    arena_init(&arena, "test");
    assert_true(merges_init(&merges, &arena, N));
    for (uint32_t i = 0; i < N; i++)
        merges_add(&merges, i % 100, i / 100, i, i + 1000);
    for (uint32_t i = 0; i < N; i++) {
        assert_int_equal(merges_find(&merges, i % 100, i / 100), i);
        assert_int_equal(merges.new_ids[i], i + 1000);
    }
    assert_int_equal(merges_find(&merges, 100, 0), UINT32_MAX);
    merges_add(&merges, 5, 0, 7, 77);
    assert_int_equal(merges_find(&merges, 5, 0), 7);
    assert_true(merges_init(&merges, &arena, 0));
    assert_int_equal(merges_find(&merges, 0, 0), UINT32_MAX);
    arena_fini(&arena);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_text_and_only_these_are_found),
        cmocka_unit_test(pairs_have_ranks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
