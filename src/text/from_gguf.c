/* Reading a tokenizer from GGUF metadata (tokenizer.ggml.*).
 *
 * Why here: the keys name a family and list tokens; splitting, normalising and decoding follow from
 * the family, so that ids equal those of the family's own tokenizer.json. It must not know how text
 * is encoded. */
#include "text/from_gguf.h"

#include "base/alloc.h"
#include "base/error.h"
#include "base/limits.h"
#include "text/gguf_families.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* tokenizer.ggml.token_type */
enum token_type {
    TYPE_NORMAL = 1,
    TYPE_UNKNOWN = 2,
    TYPE_CONTROL = 3,
    TYPE_USER_DEFINED = 4,
    TYPE_UNUSED = 5,
    TYPE_BYTE = 6,
};

static const char KEY_TOKENS[] = "tokenizer.ggml.tokens";
static const char KEY_TYPES[] = "tokenizer.ggml.token_type";
static const char KEY_SCORES[] = "tokenizer.ggml.scores";
static const char KEY_MERGES[] = "tokenizer.ggml.merges";

struct reader {
    struct tokenizer *tokenizer;
    const struct gguf_meta *meta;
    size_t n;       /* tokens */
    bool has_types; /* else all tokens are normal */
    struct ferry_error *err;
};

static enum ferry_status no_memory(const struct reader *r)
{
    return FERRY_FAIL(r->err, FERRY_ERR_NOMEM, "tokenizer: out of memory");
}

static enum ferry_status bad_key(const struct reader *r, const char *key)
{
    return FERRY_FAIL(r->err, FERRY_ERR_FORMAT, "tokenizer: key %s has the wrong type or size",
                      key);
}

static bool is_integer_type(enum gguf_type type)
{
    return type == GGUF_TYPE_I32 || type == GGUF_TYPE_U32 || type == GGUF_TYPE_I8 ||
           type == GGUF_TYPE_U8 || type == GGUF_TYPE_I16 || type == GGUF_TYPE_U16 ||
           type == GGUF_TYPE_I64 || type == GGUF_TYPE_U64;
}

static int64_t type_of(const struct reader *r, size_t i)
{
    return r->has_types ? gguf_array_i64(r->meta, KEY_TYPES, i) : TYPE_NORMAL;
}

/* Checks the token and type arrays and their sizes. */
static enum ferry_status measure(struct reader *r, size_t *ret_bytes)
{
    enum gguf_type type;
    size_t n_types;

    if (!gguf_get_array(r->meta, KEY_TOKENS, &type, &r->n) || type != GGUF_TYPE_STRING || r->n == 0)
        return bad_key(r, KEY_TOKENS);
    if (r->n > LIMIT_VOCAB)
        return FERRY_FAIL(r->err, FERRY_ERR_LIMIT, "tokenizer: %zu tokens (limit %d)", r->n,
                          LIMIT_VOCAB);
    r->has_types = gguf_has(r->meta, KEY_TYPES);
    if (r->has_types && (!gguf_get_array(r->meta, KEY_TYPES, &type, &n_types) ||
                         !is_integer_type(type) || n_types != r->n))
        return bad_key(r, KEY_TYPES);
    *ret_bytes = 0;
    for (size_t i = 0; i < r->n; i++) {
        struct gguf_string text = gguf_array_string(r->meta, KEY_TOKENS, i);
        if (text.size > LIMIT_TOKEN_BYTES)
            return FERRY_FAIL(r->err, FERRY_ERR_LIMIT,
                              "tokenizer: token %zu has %zu bytes (limit %d)", i, text.size,
                              LIMIT_TOKEN_BYTES);
        if (utf8_valid_size(text.data, text.size) != text.size)
            return FERRY_FAIL(r->err, FERRY_ERR_FORMAT, "tokenizer: token %zu is not UTF-8", i);
        *ret_bytes += text.size;
    }
    return FERRY_OK;
}

/* Copies all tokens. With only_normal nothing else is found by its text (a control token that user
 * text spells out must not come out of a merge); a text that occurs twice is the first one's. */
static enum ferry_status read_tokens(struct reader *r, struct vocab *vocab, bool only_normal)
{
    size_t n_bytes = 0;
    enum ferry_status st = measure(r, &n_bytes);

    if (st != FERRY_OK)
        return st;
    char *blob = arena_alloc(&r->tokenizer->arena, n_bytes + 1);
    if (blob == NULL || !vocab_init(vocab, &r->tokenizer->arena, r->n, r->n))
        return no_memory(r);
    for (size_t i = 0; i < r->n; i++) {
        struct gguf_string text = gguf_array_string(r->meta, KEY_TOKENS, i);
        uint32_t size = (uint32_t)text.size;
        bool can_find = size > 0 && (!only_normal || type_of(r, i) == TYPE_NORMAL);
        if (size > 0)
            memcpy(blob, text.data, size);
        if (vocab_add(vocab, (uint32_t)i, blob, size, can_find) == VOCAB_ADD_SAME_TEXT)
            (void)vocab_add(vocab, (uint32_t)i, blob, size, false);
        blob += size;
    }
    return FERRY_OK;
}

/* Control and unknown tokens are special added tokens, user-defined ones ordinary added tokens. */
static enum ferry_status read_added(struct reader *r, const struct vocab *vocab)
{
    struct tokenizer *tokenizer = r->tokenizer;

    tokenizer->added = arena_array(&tokenizer->arena, r->n, sizeof *tokenizer->added);
    if (tokenizer->added == NULL)
        return no_memory(r);
    for (size_t i = 0; i < r->n; i++) {
        int64_t type = type_of(r, i);
        bool special = type == TYPE_CONTROL || type == TYPE_UNKNOWN;
        if (vocab->tokens[i].size == 0 || (!special && type != TYPE_USER_DEFINED))
            continue;
        tokenizer->added[tokenizer->n_added++] = (struct added_token){.text = vocab->tokens[i].text,
                                                                      .size = vocab->tokens[i].size,
                                                                      .id = (int32_t)i,
                                                                      .special = special};
    }
    return FERRY_OK;
}

static enum ferry_status add_merge(const struct reader *r, struct gguf_string text, uint32_t rank,
                                   struct bytes *joined)
{
    struct bpe_model *bpe = &r->tokenizer->bpe;
    const char *space =
        text.size < 3 ? NULL : memchr(text.data + 1, ' ', text.size - 1); /* not the first byte */

    if (space == NULL)
        return FERRY_FAIL(r->err, FERRY_ERR_FORMAT, "tokenizer: merge %u is not two strings", rank);
    size_t left_size = (size_t)(space - text.data);
    size_t right_size = text.size - left_size - 1;
    joined->size = 0;
    if (!bytes_append(joined, text.data, left_size) || !bytes_append(joined, space + 1, right_size))
        return no_memory(r);
    int32_t left = vocab_find(&bpe->vocab, text.data, left_size);
    int32_t right = vocab_find(&bpe->vocab, space + 1, right_size);
    int32_t new_id = vocab_find(&bpe->vocab, joined->data, joined->size);
    if (left < 0 || right < 0 || new_id < 0)
        return FERRY_FAIL(r->err, FERRY_ERR_FORMAT,
                          "tokenizer: merge %u (\"%.*s\") is not in the vocabulary", rank,
                          (int)(text.size < 80 ? text.size : 80), text.data);
    merges_add(&bpe->merges, (uint32_t)left, (uint32_t)right, rank, (uint32_t)new_id);
    return FERRY_OK;
}

static enum ferry_status read_merges(const struct reader *r)
{
    enum gguf_type type;
    size_t n;
    struct bytes joined = {0};
    enum ferry_status st = FERRY_OK;

    if (!gguf_get_array(r->meta, KEY_MERGES, &type, &n) || (n > 0 && type != GGUF_TYPE_STRING))
        return bad_key(r, KEY_MERGES);
    if (n > 2 * (size_t)LIMIT_VOCAB)
        return FERRY_FAIL(r->err, FERRY_ERR_LIMIT, "tokenizer: %zu merges (limit %d)", n,
                          2 * LIMIT_VOCAB);
    if (!merges_init(&r->tokenizer->bpe.merges, &r->tokenizer->arena, n))
        return no_memory(r);
    for (size_t i = 0; i < n && st == FERRY_OK; i++)
        st = add_merge(r, gguf_array_string(r->meta, KEY_MERGES, i), (uint32_t)i, &joined);
    bytes_fini(&joined);
    return st;
}

static enum ferry_status find_family(const struct reader *r, const struct gguf_family **ret)
{
    struct gguf_string name = {"default", 7};
    bool bad = false;
    char list[256];

    (void)gguf_get_string(r->meta, "tokenizer.ggml.pre", &name, &bad);
    if (bad)
        return bad_key(r, "tokenizer.ggml.pre");
    *ret = gguf_family_find(name.data, name.size);
    if (*ret != NULL)
        return FERRY_OK;
    gguf_family_list(list, sizeof list);
    return FERRY_FAIL(r->err, FERRY_ERR_UNSUPPORTED,
                      "tokenizer: tokenizer.ggml.pre \"%.*s\" is not supported (supported: %s)",
                      (int)(name.size < 40 ? name.size : 40), name.data, list);
}

static enum ferry_status add_patterns(const struct reader *r, const struct gguf_family *family)
{
    struct pretokenizer *pretokenizer = &r->tokenizer->pretokenizer;

    for (int i = 0; i < GGUF_PATTERNS_MAX && family->patterns[i] != NULL; i++) {
        struct pretoken_step *step = &pretokenizer->steps[pretokenizer->n_steps];
        step->kind = PRETOKEN_SPLIT;
        step->behavior = PRETOKEN_ISOLATED;
        enum ferry_status st =
            tokenizer_add_regex(r->tokenizer, false, family->patterns[i],
                                strlen(family->patterns[i]), &step->regex, r->err);
        if (st != FERRY_OK)
            return st;
        pretokenizer->n_steps++;
    }
    return FERRY_OK;
}

static enum ferry_status read_bpe(struct reader *r, bool *ret_adds_bos)
{
    struct tokenizer *tokenizer = r->tokenizer;
    struct bpe_model *bpe = &tokenizer->bpe;
    const struct gguf_family *family;
    enum ferry_status st = find_family(r, &family);

    if (st == FERRY_OK)
        st = add_patterns(r, family);
    if (st == FERRY_OK)
        st = read_tokens(r, &bpe->vocab, false);
    if (st == FERRY_OK)
        st = read_added(r, &bpe->vocab);
    if (st == FERRY_OK)
        st = read_merges(r);
    if (st != FERRY_OK)
        return st;
    bpe->byte_level = true;
    bpe->ignore_merges = family->ignore_merges;
    if (family->nfc)
        tokenizer->normalizer.steps[tokenizer->normalizer.n_steps++].kind = NORMALIZE_NFC;
    tokenizer->decoder.steps[tokenizer->decoder.n_steps++].kind = DECODER_BYTE_LEVEL;
    *ret_adds_bos = family->adds_bos;
    return bpe_finish(bpe, &tokenizer->arena, tokenizer->added, tokenizer->n_added) ? FERRY_OK
                                                                                    : no_memory(r);
}

struct scored {
    float score;
    uint32_t id;
};

static int compare_scores(const void *a, const void *b)
{
    const struct scored *x = a;
    const struct scored *y = b;
    if (x->score != y->score)
        return x->score > y->score ? -1 : 1;
    return x->id < y->id ? -1 : x->id > y->id;
}

/* Best score first; equal scores share a rank, so that the leftmost pair wins among them. */
static enum ferry_status read_scores(const struct reader *r)
{
    struct spm_model *spm = &r->tokenizer->spm;
    enum gguf_type type;
    size_t n;

    if (!gguf_get_array(r->meta, KEY_SCORES, &type, &n) || n != r->n ||
        (type != GGUF_TYPE_F32 && type != GGUF_TYPE_F64))
        return bad_key(r, KEY_SCORES);
    struct scored *order = mem_array(n, sizeof *order);
    spm->ranks = arena_array(&r->tokenizer->arena, n, sizeof *spm->ranks);
    if (order == NULL || spm->ranks == NULL) {
        mem_free(order);
        return no_memory(r);
    }
    for (size_t i = 0; i < n; i++) {
        order[i] = (struct scored){(float)gguf_array_f64(r->meta, KEY_SCORES, i), (uint32_t)i};
        if (isnan(order[i].score)) {
            mem_free(order);
            return FERRY_FAIL(r->err, FERRY_ERR_FORMAT, "tokenizer: score of token %zu is NaN", i);
        }
    }
    qsort(order, n, sizeof *order, compare_scores);
    uint32_t rank = 0;
    for (size_t i = 0; i < n; i++) {
        if (i > 0 && order[i].score < order[i - 1].score)
            rank = (uint32_t)i;
        spm->ranks[order[i].id] = rank;
    }
    mem_free(order);
    return FERRY_OK;
}

static void find_byte_tokens(const struct reader *r)
{
    struct spm_model *spm = &r->tokenizer->spm;
    static const char HEX[] = "0123456789ABCDEF";

    for (int byte = 0; byte < 256; byte++)
        spm->byte_ids[byte] = -1;
    for (size_t i = 0; i < r->n; i++) {
        const struct vocab_token *token = &spm->vocab.tokens[i];
        if (type_of(r, i) == TYPE_UNKNOWN && spm->unk_id < 0)
            spm->unk_id = (int32_t)i;
        if (type_of(r, i) != TYPE_BYTE || token->size != 6 || memcmp(token->text, "<0x", 3) != 0 ||
            token->text[5] != '>')
            continue;
        const char *high = memchr(HEX, token->text[3], 16);
        const char *low = memchr(HEX, token->text[4], 16);
        if (high != NULL && low != NULL)
            spm->byte_ids[(high - HEX) * 16 + (low - HEX)] = (int32_t)i;
    }
}

/* Spaces become U+2581, one in front when the file wants it; decoding undoes both. */
static enum ferry_status add_spm_steps(const struct reader *r)
{
    static const char MARK[] = "\xE2\x96\x81";
    struct tokenizer *tokenizer = r->tokenizer;
    struct regex *space = NULL;
    struct regex *mark = NULL;
    bool prefix = true;
    bool extra = false;
    bool bad = false;

    (void)gguf_get_bool(r->meta, "tokenizer.ggml.add_space_prefix", &prefix, &bad);
    (void)gguf_get_bool(r->meta, "tokenizer.ggml.remove_extra_whitespaces", &extra, &bad);
    if (bad)
        return bad_key(r, "tokenizer.ggml.add_space_prefix or remove_extra_whitespaces");
    if (extra)
        return FERRY_FAIL(r->err, FERRY_ERR_UNSUPPORTED,
                          "tokenizer: tokenizer.ggml.remove_extra_whitespaces is not supported");
    enum ferry_status st = tokenizer_add_regex(tokenizer, true, " ", 1, &space, r->err);
    if (st == FERRY_OK)
        st = tokenizer_add_regex(tokenizer, true, MARK, 3, &mark, r->err);
    if (st != FERRY_OK)
        return st;
    struct normalizer *normalizer = &tokenizer->normalizer;
    if (prefix)
        normalizer->steps[normalizer->n_steps++] =
            (struct normalize_step){.kind = NORMALIZE_PREPEND, .content = MARK, .content_size = 3};
    normalizer->steps[normalizer->n_steps++] = (struct normalize_step){
        .kind = NORMALIZE_REPLACE, .regex = space, .content = MARK, .content_size = 3};
    struct decoder *decoder = &tokenizer->decoder;
    decoder->steps[decoder->n_steps++] = (struct decoder_step){
        .kind = DECODER_REPLACE, .regex = mark, .content = " ", .content_size = 1};
    decoder->steps[decoder->n_steps++].kind = DECODER_BYTE_FALLBACK;
    decoder->steps[decoder->n_steps++].kind = DECODER_FUSE;
    if (prefix)
        decoder->steps[decoder->n_steps++] =
            (struct decoder_step){.kind = DECODER_STRIP, .code = ' ', .start = 1};
    return FERRY_OK;
}

static enum ferry_status read_spm(struct reader *r, bool *ret_adds_bos)
{
    enum ferry_status st;

    r->tokenizer->kind = TOKENIZER_SPM;
    st = read_tokens(r, &r->tokenizer->spm.vocab, true);
    if (st == FERRY_OK)
        st = read_added(r, &r->tokenizer->spm.vocab);
    if (st == FERRY_OK)
        st = read_scores(r);
    if (st == FERRY_OK)
        st = add_spm_steps(r);
    if (st == FERRY_OK)
        find_byte_tokens(r);
    *ret_adds_bos = true;
    return st;
}

/* An id that a key names; -1 when the key is absent. */
static enum ferry_status read_id(const struct reader *r, const char *key, int32_t *ret)
{
    uint64_t id = 0;
    bool bad = false;

    *ret = -1;
    if (!gguf_get_u64(r->meta, key, &id, &bad))
        return bad ? bad_key(r, key) : FERRY_OK;
    if (id >= r->n)
        return FERRY_FAIL(r->err, FERRY_ERR_FORMAT,
                          "tokenizer: %s is %llu, but there are %zu tokens", key,
                          (unsigned long long)id, r->n);
    *ret = (int32_t)id;
    return FERRY_OK;
}

static enum ferry_status read_roles(struct reader *r, bool adds_bos)
{
    struct tokenizer *tokenizer = r->tokenizer;
    bool adds_eos = false;
    bool bad = false;
    int32_t eot = -1;
    int32_t eom = -1;
    enum ferry_status st = read_id(r, "tokenizer.ggml.bos_token_id", &tokenizer->bos);

    if (st == FERRY_OK)
        st = read_id(r, "tokenizer.ggml.eos_token_id", &tokenizer->eos);
    if (st == FERRY_OK)
        st = read_id(r, "tokenizer.ggml.eot_token_id", &eot);
    if (st == FERRY_OK)
        st = read_id(r, "tokenizer.ggml.eom_token_id", &eom);
    if (st != FERRY_OK)
        return st;
    (void)gguf_get_bool(r->meta, "tokenizer.ggml.add_bos_token", &adds_bos, &bad);
    (void)gguf_get_bool(r->meta, "tokenizer.ggml.add_eos_token", &adds_eos, &bad);
    if (bad)
        return bad_key(r, "tokenizer.ggml.add_bos_token or add_eos_token");
    if (adds_bos && tokenizer->bos >= 0)
        tokenizer->prefix[tokenizer->n_prefix++] = tokenizer->bos;
    if (adds_eos && tokenizer->eos >= 0)
        tokenizer->suffix[tokenizer->n_suffix++] = tokenizer->eos;
    tokenizer_add_eog(tokenizer, tokenizer->eos);
    tokenizer_add_eog(tokenizer, eot);
    tokenizer_add_eog(tokenizer, eom);
    tokenizer_add_known_eog(tokenizer);
    struct gguf_string text;
    if (gguf_get_string(r->meta, "tokenizer.chat_template", &text, NULL)) {
        tokenizer->chat_template = arena_strndup(&tokenizer->arena, text.data, text.size);
        if (tokenizer->chat_template == NULL)
            return no_memory(r);
    }
    return FERRY_OK;
}

enum ferry_status tokenizer_from_gguf(struct tokenizer **ret_tokenizer,
                                      const struct gguf_meta *meta, struct ferry_error *err)
{
    struct gguf_string model;
    bool bad = false;
    bool adds_bos = false;
    enum ferry_status st;

    if (!gguf_get_string(meta, "tokenizer.ggml.model", &model, &bad))
        return FERRY_FAIL(err, bad ? FERRY_ERR_FORMAT : FERRY_ERR_NOT_FOUND,
                          "tokenizer: the file has no tokenizer (tokenizer.ggml.model is %s)",
                          bad ? "no string" : "absent");
    bool is_bpe = model.size == 4 && memcmp(model.data, "gpt2", 4) == 0;
    bool is_spm = model.size == 5 && memcmp(model.data, "llama", 5) == 0;
    if (!is_bpe && !is_spm)
        return FERRY_FAIL(err, FERRY_ERR_UNSUPPORTED,
                          "tokenizer: tokenizer.ggml.model \"%.*s\" is not supported (supported: "
                          "gpt2, llama)",
                          (int)(model.size < 40 ? model.size : 40), model.data);
    struct reader r = {.tokenizer = tokenizer_new(), .meta = meta, .err = err};
    if (r.tokenizer == NULL)
        return no_memory(&r);
    st = is_bpe ? read_bpe(&r, &adds_bos) : read_spm(&r, &adds_bos);
    if (st == FERRY_OK)
        st = tokenizer_finish(r.tokenizer, err);
    if (st == FERRY_OK)
        st = read_roles(&r, adds_bos);
    if (st == FERRY_OK) {
        *ret_tokenizer = r.tokenizer;
        r.tokenizer = NULL;
    }
    tokenizer_destroy(r.tokenizer);
    return st;
}
