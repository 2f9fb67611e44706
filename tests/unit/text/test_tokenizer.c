/* The whole way on small vocabularies: control tokens, look-alikes, empty and blank texts, invalid
 * UTF-8, round trips over every kind of byte, one tokenizer in several threads. */
#include "../unit.h"

#include "small.h"

#include "base/alloc.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

static const char *const MERGES[] = {
    "h e", "l l", "he ll", "hell o", "\xC4\xA0 h", "\xC4\xA0 \xC4\xA0", NULL};

static const struct small QWEN_LIKE = {
    .normalizer = "{\"type\":\"NFC\"}",
    .pre_tokenizer =
        "{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Split\",\"pattern\":{\"Regex\":"
        "\"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\\\r\\\\n\\\\p{L}\\\\p{N}]?\\\\p{L}+|\\\\p{N}| "
        "?[^\\\\s\\\\p{L}\\\\p{N}]+[\\\\r\\\\n]*|\\\\s*[\\\\r\\\\n]+|\\\\s+(?!\\\\S)|\\\\s+\"},"
        "\"behavior\":\"Isolated\",\"invert\":false},{\"type\":\"ByteLevel\",\"add_prefix_space\":"
        "false,\"trim_offsets\":false,\"use_regex\":false}]}",
    .decoder = BYTE_LEVEL_DECODER,
    .merges = MERGES, /* ids 256..261 */
    .added = "{\"id\":262,\"content\":\"<|im_start|>\",\"special\":true},"
             "{\"id\":263,\"content\":\"<|im_end|>\",\"special\":true},"
             "{\"id\":264,\"content\":\"<think>\",\"special\":false,\"normalized\":false},"
             "{\"id\":265,\"content\":\"caf\xC3\xA9\",\"special\":false,\"normalized\":true},"
             "{\"id\":266,\"content\":\"<mask>\",\"special\":true,\"lstrip\":true},"
             "{\"id\":267,\"content\":\"<pad>\",\"special\":true,\"rstrip\":true}"};

static void texts_and_control_tokens(void **state)
{
    struct tokenizer *t = small_tokenizer(&QWEN_LIKE);

    (void)state;
    expect_ids(t, "hello", true, "259");
    expect_ids(t, "hello hello", true, "259 32 259");
    expect_ids(t, "<|im_start|>hello<|im_end|>", true, "262 259 263");
    expect_ids(t, "<|im_end|>", false, "60 124 105 109 95 101 110 100 124 62");
    expect_ids(t, "<|im_end|", true, "60 124 105 109 95 101 110 100 124");
    expect_ids(t, "<|im_end|>>", true, "263 62");
    expect_ids(t, "<think>", false, "264"); /* not special: always */
    /* looked for in normalised text, so the decomposed spelling counts */
    expect_ids(t, "cafe\xCC\x81", true, "265");
    expect_ids(t, "a  <mask> a", true, "97 266 32 97");
    expect_ids(t, "a <pad> \n a", true, "97 32 267 97");
    tokenizer_destroy(t);
}

static void blank_texts(void **state)
{
    struct tokenizer *t = small_tokenizer(&QWEN_LIKE);

    (void)state;
    expect_ids(t, "", true, "");
    expect_ids(t, " ", true, "32");
    expect_ids(t, "  ", true, "261");
    expect_ids(t, "   ", true, "261 32");
    expect_ids(t, " \n\t ", true, "32 10 9 32");
    expect_ids_n(t, "\0", 1, true, true, "0");
    tokenizer_destroy(t);
}

static void invalid_bytes_are_replaced(void **state)
{
    struct tokenizer *t = small_tokenizer(&QWEN_LIKE);

    (void)state;
    expect_ids(t, "\xFF", true, "239 191 189");
    expect_ids(t, "h\xE2\x82h", true, "104 239 191 189 104");
    expect_ids(t, "\xF0\x9F\x98", true, "239 191 189");
    tokenizer_destroy(t);
}

static void decoding(void **state)
{
    struct tokenizer *t = small_tokenizer(&QWEN_LIKE);
    const int32_t ids[] = {262, 259, -1, 260, 263, 264, 9999};
    const int32_t fragment[] = {0xE4, 0xBD};
    size_t size;

    (void)state;
    expect_text(t, ids, COUNT_OF(ids), true, "hello h<think>");
    expect_text(t, ids, COUNT_OF(ids), false, "<|im_start|>hello h<|im_end|><think>");
    expect_text(t, fragment, COUNT_OF(fragment), false, "\xE4\xBD");
    expect_text(t, NULL, 0, false, "");
    assert_string_equal(tokenizer_piece(t, 9999, false, &size), "");
    assert_int_equal(size, 0);
    assert_string_equal(tokenizer_piece(t, 263, true, &size), "");
    assert_memory_equal(tokenizer_piece(t, 260, false, &size), " h", 2);
    assert_int_equal(size, 2);
    tokenizer_destroy(t);
}

static void random_texts_survive(void **state)
{
    struct tokenizer *t = small_tokenizer(&QWEN_LIKE);
    static const uint32_t HIGH[] = {0x7F, 0xFF, 0x2FF, 0xFFF, 0xFFFF, 0x10FFFF};

    (void)state;
    uint64_t counter = 3;
    for (int line = 0; line < 2000; line++) {
        struct bytes text = {0};
        uint32_t n = small_random(&counter) % 40;
        for (uint32_t i = 0; i < n; i++) {
            int32_t code =
                (int32_t)(small_random(&counter) % HIGH[small_random(&counter) % COUNT_OF(HIGH)]);
            bool surrogate = code >= 0xD800 && code < 0xE000;
            /* NFC would change marks; they have tests of their own. */
            bool changes = code >= 0x300 && !(code >= 0x4E00 && code < 0x9FA5) && code < 0x1F600;
            assert_true(bytes_append_code(&text, surrogate || changes ? ' ' : code));
        }
        if (text.size > 0 && memmem(text.data, text.size, "\xF0\xAF", 2) == NULL &&
            memmem(text.data, text.size, "\xF0\xB0", 2) == NULL)
            expect_round_trip(t, text.data, text.size);
        bytes_fini(&text);
    }
    tokenizer_destroy(t);
}

/* Ids up to a limit: refused exactly when there are more, whether an id may stand for any number of
 * characters or not. */
static void a_limit_of_ids_is_exact(void **state)
{
    static const char VOCAB[] =
        "\"a\":0,\"b\":1,\"ab\":2,\"c\":3,\"abc\":4,\"<unk>\":5,\"\xC4\xA0\":6";
    static const char *const FEW[] = {"a b", "ab c", NULL};
    static const struct small KINDS[] = {
        {.vocab = VOCAB, .merges = FEW, .model = "\"unk_token\":\"<unk>\",\"fuse_unk\":true,"},
        {.vocab = VOCAB, .merges = FEW, .model = "\"unk_token\":\"<unk>\","},
        {.vocab = VOCAB, .merges = FEW}, /* unknown characters vanish */
    };
    static const char LETTERS[] = "abcabcabcab xyz\xC3\xA9";
    char text[200];
    uint64_t counter = 5;
    size_t n_refused = 0;

    (void)state;
    for (size_t kind = 0; kind <= COUNT_OF(KINDS); kind++) {
        struct tokenizer *t = small_tokenizer(kind < COUNT_OF(KINDS) ? &KINDS[kind] : &QWEN_LIKE);
        for (int round = 0; round < 300; round++) {
            struct token_ids all = {0}, some = {0};
            struct ferry_error err = {0};
            size_t n = small_random(&counter) % sizeof text;
            for (size_t i = 0; i < n; i++)
                text[i] = LETTERS[small_random(&counter) % (sizeof LETTERS - 1)];
            assert_int_equal(tokenizer_encode(t, text, n, true, false, &all, NULL), FERRY_OK);
            some.most = 1 + (round % 3 == 0 ? small_random(&counter) % 100
                                            : all.count - (all.count > 0 && round % 3 == 1));
            enum ferry_status st = tokenizer_encode(t, text, n, true, false, &some, &err);
            assert_int_equal(st, all.count > some.most ? FERRY_ERR_CONTEXT_FULL : FERRY_OK);
            assert_int_equal(some.count, st == FERRY_OK ? all.count : 0);
            if (st != FERRY_OK)
                assert_non_null(strstr(err.msg, "more than"));
            n_refused += st != FERRY_OK;
            some.most = all.count > 1 ? all.count - 1 : 1;
            some.count = 0;
            st = tokenizer_encode(t, text, n, true, false, &some, NULL);
            assert_int_equal(st, all.count > 1 ? FERRY_ERR_CONTEXT_FULL : FERRY_OK);
            token_ids_fini(&all);
            token_ids_fini(&some);
        }
        tokenizer_destroy(t);
    }
    assert_true(n_refused > 50);
}

/* One word of megabytes is refused by its length, before anything is allocated for its merging,
 * which would take 16 bytes and more for each of its own. */
static void endless_words_are_not_merged(void **state)
{
    enum { BYTES = 8 << 20 };
    struct tokenizer *t = small_tokenizer(&QWEN_LIKE);
    struct token_ids ids = {.most = 100};
    char *text = mem_alloc(BYTES);

    (void)state;
    memset(text, 'x', BYTES);
    uint64_t calls = mem_count_calls();
    assert_int_equal(tokenizer_encode(t, "x", 1, false, false, &ids, NULL), FERRY_OK);
    calls = mem_count_calls() - calls;
    ids.count = 0;
    uint64_t before = mem_count_calls();
    assert_int_equal(tokenizer_encode(t, text, BYTES, false, false, &ids, NULL),
                     FERRY_ERR_CONTEXT_FULL);
    assert_true(mem_count_calls() - before < calls);
    mem_free(text);
    token_ids_fini(&ids);
    tokenizer_destroy(t);
}

static void too_long_texts_are_refused(void **state)
{
    struct tokenizer *t = small_tokenizer(&QWEN_LIKE);
    struct token_ids ids = {0};
    struct ferry_error err = {0};

    (void)state;
    assert_int_equal(tokenizer_encode(t, "", (size_t)INT32_MAX, false, false, &ids, &err),
                     FERRY_ERR_LIMIT);
    assert_int_equal(ids.count, 0);
    tokenizer_destroy(t);
}

static void *encode_often(void *arg)
{
    for (int i = 0; i < 200; i++)
        expect_ids(arg, "hello <|im_end|> caf\xC3\xA9", true, "259 32 263 32 265");
    return NULL;
}

static void one_tokenizer_in_several_threads(void **state)
{
    struct tokenizer *t = small_tokenizer(&QWEN_LIKE);
    pthread_t threads[4];

    (void)state;
    for (size_t i = 0; i < COUNT_OF(threads); i++)
        assert_int_equal(pthread_create(&threads[i], NULL, encode_often, t), 0);
    for (size_t i = 0; i < COUNT_OF(threads); i++)
        assert_int_equal(pthread_join(threads[i], NULL), 0);
    tokenizer_destroy(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(texts_and_control_tokens),
        cmocka_unit_test(blank_texts),
        cmocka_unit_test(invalid_bytes_are_replaced),
        cmocka_unit_test(decoding),
        cmocka_unit_test(random_texts_survive),
        cmocka_unit_test(a_limit_of_ids_is_exact),
        cmocka_unit_test(endless_words_are_not_merged),
        cmocka_unit_test(too_long_texts_are_refused),
        cmocka_unit_test(one_tokenizer_in_several_threads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
