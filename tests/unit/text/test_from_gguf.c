/* Tokenizers from metadata: both kinds, roles, control tokens that text spells out, damage. */
#include "../unit.h"

#include "base/alloc.h"
#include "base/arena.h"
#include "file/gguf_parse.h"
#include "small.h"
#include "text/from_gguf.h"

#include <string.h>

/* Creates from the keys; frees them. */
static enum ferry_status create(struct small_gguf *gguf, struct tokenizer **ret,
                                struct ferry_error *err)
{
    struct bytes file = {0};
    struct arena arena;
    struct gguf_contents contents;
    enum ferry_status st;

    gguf_write(gguf, &file);
    arena_init(&arena, "test");
    st = gguf_parse(&contents, &arena, file.data, file.size, "x.gguf", err);
    if (st == FERRY_OK)
        st = tokenizer_from_gguf(ret, &contents.meta, err);
    arena_fini(&arena);
    bytes_fini(&file);
    return st;
}

/* The byte alphabet as tokens 0..255, then the given ones. */
struct alphabet {
    char texts[256][4];
    const char *tokens[300];
    int32_t types[300];
    size_t n;
};

static void alphabet_init(struct alphabet *a)
{
    memset(a, 0, sizeof *a);
    for (; a->n < 256; a->n++) {
        (void)utf8_encode(byte_level_from_byte((unsigned char)a->n), a->texts[a->n]);
        a->tokens[a->n] = a->texts[a->n];
        a->types[a->n] = 1;
    }
}

static void alphabet_add(struct alphabet *a, const char *text, int32_t type)
{
    a->tokens[a->n] = text;
    a->types[a->n++] = type;
}

static void put_alphabet(struct small_gguf *gguf, const struct alphabet *a, const char *pre)
{
    static const char *const MERGES[] = {"a b", "ab c", "1 2"};

    gguf_put_string(gguf, "tokenizer.ggml.model", "gpt2");
    if (pre != NULL)
        gguf_put_string(gguf, "tokenizer.ggml.pre", pre);
    gguf_put_strings(gguf, "tokenizer.ggml.tokens", a->tokens, a->n);
    gguf_put_i32s(gguf, "tokenizer.ggml.token_type", a->types, a->n);
    gguf_put_strings(gguf, "tokenizer.ggml.merges", MERGES, 3);
}

static void byte_level_family(void **state)
{
    struct alphabet a;
    struct small_gguf gguf = {.n_keys = 0};
    struct tokenizer *t = NULL;
    struct ferry_error err = {0};

    (void)state;
    alphabet_init(&a);
    alphabet_add(&a, "ab", 1);         /* 256 */
    alphabet_add(&a, "abc", 1);        /* 257 */
    alphabet_add(&a, "12", 1);         /* 258 */
    alphabet_add(&a, "<|im_end|>", 3); /* 259 */
    alphabet_add(&a, "<think>", 4);    /* 260 */
    alphabet_add(&a, "[PAD]", 5);      /* 261 */
    put_alphabet(&gguf, &a, "qwen2");
    gguf_put_u32(&gguf, "tokenizer.ggml.eos_token_id", 259);
    gguf_put_string(&gguf, "tokenizer.chat_template", "{{ m }}");
    if (create(&gguf, &t, &err) != FERRY_OK)
        fail_msg("%s", err.msg);
    expect_ids(t, "abc12", true, "257 49 50"); /* qwen2: digits alone */
    expect_ids(t, "ab<|im_end|><think>", true, "256 259 260");
    expect_ids(t, "<|im_end|>", false, "60 124 105 109 95 101 110 100 124 62");
    expect_ids(t, "e\xCC\x81", true, "195 169"); /* NFC */
    expect_ids(t, "[PAD]", true, "91 80 65 68 93");
    assert_int_equal(tokenizer_eos(t), 259);
    assert_int_equal(tokenizer_bos(t), -1);
    assert_true(tokenizer_is_eog(t, 259));
    assert_int_equal(tokenizer_n_vocab(t), 262);
    assert_string_equal(tokenizer_chat_template(t), "{{ m }}");
    assert_int_equal(tokenizer_find(t, "<think>", 7), 260);
    expect_round_trip(t, "abc \xE4\xBD\xA0<think> 12\n", 18);
    tokenizer_destroy(t);
}

static void begin_of_text_by_family_and_key(void **state)
{
    static const struct {
        const char *pre;
        int key; /* -1: absent */
        const char *ids;
    } CASES[] = {
        {"llama-bpe", -1, "256 97"}, {"llama-bpe", 0, "97"}, {"gpt-2", -1, "97"},
        {"gpt-2", 1, "256 97"},      {NULL, -1, "97"},
    };

    (void)state;
    for (size_t i = 0; i < COUNT_OF(CASES); i++) {
        struct alphabet a;
        struct small_gguf gguf = {.n_keys = 0};
        struct tokenizer *t = NULL;
        alphabet_init(&a);
        alphabet_add(&a, "<s>", 3);
        alphabet_add(&a, "ab", 1);
        alphabet_add(&a, "abc", 1);
        alphabet_add(&a, "12", 1);
        put_alphabet(&gguf, &a, CASES[i].pre);
        gguf_put_u32(&gguf, "tokenizer.ggml.bos_token_id", 256);
        if (CASES[i].key >= 0)
            gguf_put_bool(&gguf, "tokenizer.ggml.add_bos_token", CASES[i].key != 0);
        assert_int_equal(create(&gguf, &t, NULL), FERRY_OK);
        expect_ids_n(t, "a", 1, true, false, CASES[i].ids);
        assert_int_equal(tokenizer_adds_bos(t), strlen(CASES[i].ids) > 3);
        tokenizer_destroy(t);
    }
}

/* A scored vocabulary; "\xE2\x96\x81" is the visible space. */
static void put_scored(struct small_gguf *gguf)
{
    static const char *const TOKENS[] = {
        "<unk>", "<s>", "</s>", "<0xC3>", "<0xA9>", "\xE2\x96\x81", "a", "b", "\342\226\201a", "ab",
        "<s",    "s>",  "<",    "s",      ">"};
    static const float SCORES[] = {0, 0, 0, 0, 0, -10, -11, -12, -1, -2, -3, -4, -13, -14, -15};
    static const int32_t TYPES[] = {2, 3, 3, 6, 6, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1};

    gguf_put_string(gguf, "tokenizer.ggml.model", "llama");
    gguf_put_strings(gguf, "tokenizer.ggml.tokens", TOKENS, COUNT_OF(TOKENS));
    gguf_put_f32s(gguf, "tokenizer.ggml.scores", SCORES, COUNT_OF(SCORES));
    gguf_put_i32s(gguf, "tokenizer.ggml.token_type", TYPES, COUNT_OF(TYPES));
    gguf_put_u32(gguf, "tokenizer.ggml.bos_token_id", 1);
    gguf_put_u32(gguf, "tokenizer.ggml.eos_token_id", 2);
}

static void scored_family(void **state)
{
    struct small_gguf gguf = {.n_keys = 0};
    struct tokenizer *t = NULL;
    struct ferry_error err = {0};
    const int32_t ids[] = {1, 8, 7, 3, 4};

    (void)state;
    put_scored(&gguf);
    if (create(&gguf, &t, &err) != FERRY_OK)
        fail_msg("%s", err.msg);
    expect_ids(t, "ab", true, "8 7"); /* the prefix takes the a: better score */
    expect_ids(t, " ab", true, "5 8 7");
    expect_ids(t, "a\xC3\xA9z", true, "8 3 4 0");
    expect_ids(t, "a<s>b", true, "8 1 5 7");
    /* Spelled out, the pieces may merge to "<s" but never to the control token. */
    expect_ids(t, "<s>", false, "5 10 14");
    expect_ids_n(t, "a", 1, true, false, "1 8");
    expect_text(t, ids, COUNT_OF(ids), true, "ab\xC3\xA9");
    expect_text(t, ids, COUNT_OF(ids), false, "<s> ab\xC3\xA9");
    tokenizer_destroy(t);
    gguf = (struct small_gguf){.n_keys = 0};
    put_scored(&gguf);
    gguf_put_bool(&gguf, "tokenizer.ggml.add_space_prefix", false);
    gguf_put_bool(&gguf, "tokenizer.ggml.add_eos_token", true);
    assert_int_equal(create(&gguf, &t, NULL), FERRY_OK);
    expect_ids_n(t, "ab", 2, true, false, "1 9 2");
    tokenizer_destroy(t);
}

static void expect_failure(struct small_gguf *gguf, enum ferry_status status, const char *part)
{
    struct tokenizer *t = NULL;
    struct ferry_error err = {0};

    assert_int_equal(create(gguf, &t, &err), status);
    assert_null(t);
    if (strstr(err.msg, part) == NULL)
        fail_msg("\"%s\" does not hold \"%s\"", err.msg, part);
}

static void damage_is_named(void **state)
{
    static const char *const ONE[] = {"a"};
    static const char *const BAD_MERGE[] = {"ab"};
    static const char *const LOST_MERGE[] = {"a z"};
    static const char *const NOT_UTF8[] = {"\xFF"};
    static const float NAN_SCORE[] = {__builtin_nanf("")};
    static const int32_t TYPES[] = {1, 1};

    (void)state;
    struct small_gguf g = {.n_keys = 0};
    gguf_put_u32(&g, "x", 1);
    expect_failure(&g, FERRY_ERR_NOT_FOUND, "no tokenizer");
    g = (struct small_gguf){.n_keys = 0};
    gguf_put_u32(&g, "tokenizer.ggml.model", 1);
    expect_failure(&g, FERRY_ERR_FORMAT, "no string");
    g = (struct small_gguf){.n_keys = 0};
    gguf_put_string(&g, "tokenizer.ggml.model", "bert");
    expect_failure(&g, FERRY_ERR_UNSUPPORTED, "bert");
    g = (struct small_gguf){.n_keys = 0};
    gguf_put_string(&g, "tokenizer.ggml.model", "gpt2");
    gguf_put_string(&g, "tokenizer.ggml.pre", "dbrx");
    expect_failure(&g, FERRY_ERR_UNSUPPORTED, "\"dbrx\" is not supported (supported: gpt-2");
    g = (struct small_gguf){.n_keys = 0};
    gguf_put_string(&g, "tokenizer.ggml.model", "gpt2");
    expect_failure(&g, FERRY_ERR_FORMAT, "tokens");
    for (int i = 0; i < 6; i++) {
        static const char *const PARTS[] = {"merges",    "merge 0",    "merge 0",
                                            "not UTF-8", "token_type", "eos_token_id is 7"};
        g = (struct small_gguf){.n_keys = 0};
        gguf_put_string(&g, "tokenizer.ggml.model", "gpt2");
        gguf_put_strings(&g, "tokenizer.ggml.tokens", i == 3 ? NOT_UTF8 : ONE, 1);
        if (i == 4)
            gguf_put_i32s(&g, "tokenizer.ggml.token_type", TYPES, 2);
        if (i > 0)
            gguf_put_strings(&g, "tokenizer.ggml.merges", i == 1 ? BAD_MERGE : LOST_MERGE,
                             i == 5 ? 0 : 1);
        if (i == 5)
            gguf_put_u32(&g, "tokenizer.ggml.eos_token_id", 7);
        expect_failure(&g, FERRY_ERR_FORMAT, PARTS[i]);
    }
    g = (struct small_gguf){.n_keys = 0};
    gguf_put_string(&g, "tokenizer.ggml.model", "llama");
    gguf_put_strings(&g, "tokenizer.ggml.tokens", ONE, 1);
    expect_failure(&g, FERRY_ERR_FORMAT, "scores");
    g = (struct small_gguf){.n_keys = 0};
    gguf_put_string(&g, "tokenizer.ggml.model", "llama");
    gguf_put_strings(&g, "tokenizer.ggml.tokens", ONE, 1);
    gguf_put_f32s(&g, "tokenizer.ggml.scores", NAN_SCORE, 1);
    expect_failure(&g, FERRY_ERR_FORMAT, "NaN");
    g = (struct small_gguf){.n_keys = 0};
    put_scored(&g);
    gguf_put_bool(&g, "tokenizer.ggml.remove_extra_whitespaces", true);
    expect_failure(&g, FERRY_ERR_UNSUPPORTED, "remove_extra_whitespaces");
}

static void every_allocation_may_fail(void **state)
{
    struct small_gguf gguf = {.n_keys = 0};
    struct bytes file = {0};
    struct arena arena;
    struct gguf_contents contents;
    bool done = false;

    (void)state;
    put_scored(&gguf);
    gguf_write(&gguf, &file);
    arena_init(&arena, "test");
    assert_int_equal(gguf_parse(&contents, &arena, file.data, file.size, "x", NULL), FERRY_OK);
    for (uint64_t n = 1; !done; n++) {
        struct tokenizer *t = NULL;
        uint64_t calls = mem_count_calls();
        mem_fail_after(n);
        enum ferry_status st = tokenizer_from_gguf(&t, &contents.meta, NULL);
        mem_fail_after(0);
        assert_true(st == FERRY_OK || st == FERRY_ERR_NOMEM);
        tokenizer_destroy(t);
        done = mem_count_calls() - calls < n;
        assert_true(!done || (st == FERRY_OK && n > 8));
    }
    arena_fini(&arena);
    bytes_fini(&file);
}

/* Seeds of the fuzzer that ought to be good are: it would look at nothing but refusals else. */
static void seeds_of_the_fuzzer_load(void **state)
{
    static const char *const PATHS[] = {CORPUS "/ranked-gpt-2", CORPUS "/scored"};

    (void)state;
    for (size_t i = 0; i < COUNT_OF(PATHS); i++) {
        static unsigned char data[1 << 16];
        struct arena arena;
        struct gguf_contents contents;
        struct tokenizer *tokenizer = NULL;
        struct ferry_error err = {0};
        FILE *f = fopen(PATHS[i], "rb");
        assert_non_null(f);
        size_t n = fread(data, 1, sizeof data, f);
        (void)fclose(f);
        arena_init(&arena, "test");
        assert_int_equal(gguf_parse(&contents, &arena, data, n, "seed", &err), FERRY_OK);
        if (tokenizer_from_gguf(&tokenizer, &contents.meta, &err) != FERRY_OK)
            fail_msg("%s: %s", PATHS[i], err.msg);
        tokenizer_destroy(tokenizer);
        arena_fini(&arena);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(byte_level_family),
        cmocka_unit_test(begin_of_text_by_family_and_key),
        cmocka_unit_test(scored_family),
        cmocka_unit_test(damage_is_named),
        cmocka_unit_test(every_allocation_may_fail),
        cmocka_unit_test(seeds_of_the_fuzzer_load),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
