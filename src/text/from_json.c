/* Reading tokenizer.json and tokenizer_config.json (Hugging Face).
 *
 * Why here: the file is hostile until checked; what is not understood is refused by name. It must
 * not know how text is encoded. */
#include "text/from_json.h"

#include "base/error.h"
#include "base/limits.h"
#include "base/size.h"
#include "file/json.h"

#include <string.h>

enum ferry_status json_unsupported(const struct json_reader *reader, const char *what,
                                   const char *value)
{
    return FERRY_FAIL(reader->err, FERRY_ERR_UNSUPPORTED,
                      "tokenizer.json: %s \"%.60s\" is not supported", what, value);
}

enum ferry_status json_malformed(const struct json_reader *reader, const char *what)
{
    return FERRY_FAIL(reader->err, FERRY_ERR_FORMAT,
                      "tokenizer.json: %s is missing or malformed; the file may be damaged", what);
}

enum ferry_status json_no_memory(const struct json_reader *reader)
{
    return FERRY_FAIL(reader->err, FERRY_ERR_NOMEM, "tokenizer.json: out of memory");
}

enum ferry_status json_read_bool(const struct json_reader *reader, const json_t *object,
                                 const char *key, bool fallback, bool *ret)
{
    const json_t *value = json_object_get(object, key);

    *ret = fallback;
    if (value == NULL || json_is_null(value))
        return FERRY_OK;
    if (!json_is_boolean(value))
        return json_malformed(reader, key);
    *ret = json_is_true(value);
    return FERRY_OK;
}

enum ferry_status json_read_string(const struct json_reader *reader, const json_t *object,
                                   const char *key, const char **ret, size_t *ret_size)
{
    const json_t *value = json_object_get(object, key);

    *ret = NULL;
    *ret_size = 0;
    if (value == NULL || json_is_null(value))
        return FERRY_OK;
    if (!json_is_string(value))
        return json_malformed(reader, key);
    *ret = json_string_value(value);
    *ret_size = json_string_length(value);
    return FERRY_OK;
}

/* Ids of a model vocabulary are distinct, below the limit; *ret_n is the highest + 1 and
 * *ret_bytes what all strings take. */
static enum ferry_status measure_vocab(const struct json_reader *reader, json_t *vocab,
                                       size_t *ret_n, size_t *ret_bytes)
{
    const char *text;
    json_t *value;

    *ret_n = 0;
    *ret_bytes = 0;
    json_object_foreach(vocab, text, value)
    {
        json_int_t id = json_integer_value(value);
        size_t size = strlen(text);
        if (!json_is_integer(value) || id < 0 || id >= LIMIT_VOCAB)
            return FERRY_FAIL(reader->err, FERRY_ERR_FORMAT,
                              "tokenizer.json: id of \"%.40s\" is not in 0..%d", text,
                              LIMIT_VOCAB - 1);
        if (size > LIMIT_TOKEN_BYTES)
            return FERRY_FAIL(reader->err, FERRY_ERR_LIMIT,
                              "tokenizer.json: token %lld has %zu bytes (limit %d)", (long long)id,
                              size, LIMIT_TOKEN_BYTES);
        *ret_n = max_size(*ret_n, (size_t)id + 1);
        *ret_bytes += size;
    }
    return FERRY_OK;
}

static enum ferry_status read_vocab(const struct json_reader *reader, const json_t *model)
{
    struct tokenizer *tokenizer = reader->tokenizer;
    json_t *object = json_object_get(model, "vocab");
    size_t n;
    size_t n_bytes;
    const char *text;
    json_t *value;

    if (!json_is_object(object))
        return json_malformed(reader, "model.vocab");
    enum ferry_status st = measure_vocab(reader, object, &n, &n_bytes);
    if (st != FERRY_OK)
        return st;
    char *blob = arena_alloc(&tokenizer->arena, n_bytes);
    if (blob == NULL ||
        !vocab_init(&tokenizer->bpe.vocab, &tokenizer->arena, n, json_object_size(object)))
        return json_no_memory(reader);
    json_object_foreach(object, text, value)
    {
        uint32_t size = (uint32_t)strlen(text);
        uint32_t id = (uint32_t)json_integer_value(value);
        memcpy(blob, text, size);
        if (vocab_add(&tokenizer->bpe.vocab, id, blob, size, true) != VOCAB_ADD_OK)
            return FERRY_FAIL(reader->err, FERRY_ERR_FORMAT,
                              "tokenizer.json: id %u stands for two tokens", id);
        blob += size;
    }
    return FERRY_OK;
}

/* The two halves of one merge: "a b" or ["a", "b"]. */
static bool merge_halves(const json_t *merge, const char **left, size_t *left_size,
                         const char **right, size_t *right_size)
{
    if (json_is_array(merge)) {
        const json_t *a = json_array_get(merge, 0);
        const json_t *b = json_array_get(merge, 1);
        if (json_array_size(merge) != 2 || !json_is_string(a) || !json_is_string(b))
            return false;
        *left = json_string_value(a);
        *left_size = json_string_length(a);
        *right = json_string_value(b);
        *right_size = json_string_length(b);
        return true;
    }
    if (!json_is_string(merge))
        return false;
    const char *text = json_string_value(merge);
    const char *space = strchr(text, ' ');
    if (space == NULL || strchr(space + 1, ' ') != NULL)
        return false;
    *left = text;
    *left_size = (size_t)(space - text);
    *right = space + 1;
    *right_size = json_string_length(merge) - *left_size - 1;
    return true;
}

static enum ferry_status add_merge(const struct json_reader *reader, const json_t *merge,
                                   uint32_t rank, struct bytes *joined)
{
    struct bpe_model *bpe = &reader->tokenizer->bpe;
    const char *left;
    const char *right;
    size_t left_size;
    size_t right_size;

    if (!merge_halves(merge, &left, &left_size, &right, &right_size))
        return FERRY_FAIL(reader->err, FERRY_ERR_FORMAT,
                          "tokenizer.json: merge %u is not two strings", rank);
    joined->size = 0;
    if (!bytes_append(joined, left, left_size) || !bytes_append(joined, right, right_size))
        return json_no_memory(reader);
    int32_t left_id = vocab_find(&bpe->vocab, left, left_size);
    int32_t right_id = vocab_find(&bpe->vocab, right, right_size);
    int32_t new_id = vocab_find(&bpe->vocab, joined->data, joined->size);
    if (left_id < 0 || right_id < 0 || new_id < 0)
        return FERRY_FAIL(reader->err, FERRY_ERR_FORMAT,
                          "tokenizer.json: merge %u (\"%.*s\" + \"%.*s\") is not in the "
                          "vocabulary",
                          rank, (int)min_size(left_size, 40), left, (int)min_size(right_size, 40),
                          right);
    merges_add(&bpe->merges, (uint32_t)left_id, (uint32_t)right_id, rank, (uint32_t)new_id);
    return FERRY_OK;
}

static enum ferry_status read_merges(const struct json_reader *reader, const json_t *model)
{
    struct tokenizer *tokenizer = reader->tokenizer;
    const json_t *list = json_object_get(model, "merges");
    size_t n = json_array_size(list);
    struct bytes joined = {0};
    enum ferry_status st = FERRY_OK;

    if (!json_is_array(list))
        return json_malformed(reader, "model.merges");
    if (n > 2 * (size_t)LIMIT_VOCAB)
        return FERRY_FAIL(reader->err, FERRY_ERR_LIMIT, "tokenizer.json: %zu merges (limit %d)", n,
                          2 * LIMIT_VOCAB);
    if (!merges_init(&tokenizer->bpe.merges, &tokenizer->arena, n))
        return json_no_memory(reader);
    for (size_t i = 0; i < n && st == FERRY_OK; i++)
        st = add_merge(reader, json_array_get(list, i), (uint32_t)i, &joined);
    bytes_fini(&joined);
    return st;
}

static enum ferry_status refuse_affixes(const struct json_reader *reader, const json_t *model)
{
    static const char *const KEYS[] = {"continuing_subword_prefix", "end_of_word_suffix"};
    const json_t *dropout = json_object_get(model, "dropout");

    for (size_t i = 0; i < 2; i++) {
        const char *text;
        size_t size;
        enum ferry_status st = json_read_string(reader, model, KEYS[i], &text, &size);
        if (st != FERRY_OK)
            return st;
        if (size > 0)
            return json_unsupported(reader, KEYS[i], text);
    }
    if (dropout != NULL && !json_is_null(dropout) && json_number_value(dropout) != 0)
        return json_unsupported(reader, "model option", "dropout");
    return FERRY_OK;
}

static enum ferry_status read_unk(const struct json_reader *reader, const json_t *model)
{
    struct bpe_model *bpe = &reader->tokenizer->bpe;
    const char *text;
    size_t size;
    enum ferry_status st = json_read_string(reader, model, "unk_token", &text, &size);

    if (st != FERRY_OK || text == NULL)
        return st;
    bpe->unk_id = vocab_find(&bpe->vocab, text, size);
    if (bpe->unk_id < 0)
        return FERRY_FAIL(reader->err, FERRY_ERR_FORMAT,
                          "tokenizer.json: unk_token \"%.40s\" is not in the vocabulary", text);
    return FERRY_OK;
}

static enum ferry_status read_model(const struct json_reader *reader, const json_t *model)
{
    struct bpe_model *bpe = &reader->tokenizer->bpe;
    const char *type = json_string_value(json_object_get(model, "type"));

    if (!json_is_object(model))
        return json_malformed(reader, "model");
    if (type != NULL ? strcmp(type, "BPE") != 0 : json_object_get(model, "merges") == NULL)
        return json_unsupported(reader, "model type", type == NULL ? "(none)" : type);
    enum ferry_status st = refuse_affixes(reader, model);
    if (st == FERRY_OK)
        st = json_read_bool(reader, model, "byte_fallback", false, &bpe->byte_fallback);
    if (st == FERRY_OK)
        st = json_read_bool(reader, model, "fuse_unk", false, &bpe->fuse_unk);
    if (st == FERRY_OK)
        st = json_read_bool(reader, model, "ignore_merges", false, &bpe->ignore_merges);
    if (st == FERRY_OK)
        st = read_vocab(reader, model);
    if (st == FERRY_OK)
        st = read_merges(reader, model);
    if (st == FERRY_OK)
        st = read_unk(reader, model);
    if (st != FERRY_OK)
        return st;
    if (!bpe_finish(bpe, &reader->tokenizer->arena, NULL, 0))
        return json_no_memory(reader);
    if (bpe->byte_level && bpe->byte_fallback) {
        for (int byte = 0; byte < 256; byte++) {
            if (bpe->byte_ids[byte] < 0)
                return json_unsupported(reader, "model option",
                                        "byte_fallback with an incomplete byte alphabet");
        }
    }
    return FERRY_OK;
}

static enum ferry_status read_added_token(const struct json_reader *reader, const json_t *entry,
                                          struct added_token *token)
{
    const json_t *id = json_object_get(entry, "id");
    const char *text;
    enum ferry_status st = json_read_string(reader, entry, "content", &text, &token->size);

    if (st != FERRY_OK)
        return st;
    if (text == NULL || token->size == 0 || token->size > LIMIT_TOKEN_BYTES ||
        !json_is_integer(id) || json_integer_value(id) < 0 || json_integer_value(id) >= LIMIT_VOCAB)
        return json_malformed(reader, "an entry of added_tokens");
    token->id = (int32_t)json_integer_value(id);
    st = json_read_bool(reader, entry, "special", false, &token->special);
    if (st == FERRY_OK)
        st = json_read_bool(reader, entry, "normalized", !token->special, &token->normalized);
    if (st == FERRY_OK)
        st = json_read_bool(reader, entry, "lstrip", false, &token->lstrip);
    if (st == FERRY_OK)
        st = json_read_bool(reader, entry, "rstrip", false, &token->rstrip);
    if (st == FERRY_OK)
        st = json_read_bool(reader, entry, "single_word", false, &token->single_word);
    if (st != FERRY_OK)
        return st;
    int32_t model_id = vocab_find(&reader->tokenizer->bpe.vocab, text, token->size);
    if (model_id >= 0 && model_id != token->id)
        return FERRY_FAIL(reader->err, FERRY_ERR_FORMAT,
                          "tokenizer.json: added token \"%.40s\" has id %d, but %d in the "
                          "vocabulary",
                          text, token->id, model_id);
    token->text = arena_strndup(&reader->tokenizer->arena, text, token->size);
    return token->text == NULL ? json_no_memory(reader) : FERRY_OK;
}

static enum ferry_status read_added(const struct json_reader *reader, const json_t *list)
{
    struct tokenizer *tokenizer = reader->tokenizer;
    size_t n = json_array_size(list);
    enum ferry_status st = FERRY_OK;

    if (list != NULL && !json_is_null(list) && !json_is_array(list))
        return json_malformed(reader, "added_tokens");
    if (n > LIMIT_VOCAB)
        return FERRY_FAIL(reader->err, FERRY_ERR_LIMIT, "tokenizer.json: %zu added tokens", n);
    tokenizer->added = arena_array(&tokenizer->arena, n, sizeof *tokenizer->added);
    if (tokenizer->added == NULL)
        return json_no_memory(reader);
    for (size_t i = 0; i < n && st == FERRY_OK; i++)
        st = read_added_token(reader, json_array_get(list, i), &tokenizer->added[i]);
    tokenizer->n_added = n;
    return st;
}

static enum ferry_status read_root(const struct json_reader *reader, const json_t *root)
{
    const json_t *truncation = json_object_get(root, "truncation");
    struct tokenizer *tokenizer = reader->tokenizer;

    if (!json_is_object(root))
        return json_malformed(reader, "the top-level object");
    if (truncation != NULL && !json_is_null(truncation))
        return json_unsupported(reader, "option", "truncation");
    enum ferry_status st = json_read_normalizer(reader, json_object_get(root, "normalizer"));
    if (st == FERRY_OK)
        st = json_read_pretokenizer(reader, json_object_get(root, "pre_tokenizer"),
                                    &tokenizer->bpe.byte_level);
    if (st == FERRY_OK)
        st = read_model(reader, json_object_get(root, "model"));
    if (st == FERRY_OK)
        st = read_added(reader, json_object_get(root, "added_tokens"));
    if (st == FERRY_OK)
        st = json_read_post_processor(reader, json_object_get(root, "post_processor"));
    if (st == FERRY_OK)
        st = json_read_decoder(reader, json_object_get(root, "decoder"));
    if (st == FERRY_OK)
        st = tokenizer_finish(tokenizer, reader->err);
    return st;
}

/* Id of a token that the configuration names as a string or as {"content": string}. */
static int32_t named_token(const struct tokenizer *tokenizer, const json_t *value)
{
    const json_t *text = json_is_object(value) ? json_object_get(value, "content") : value;

    if (!json_is_string(text))
        return -1;
    return tokenizer_find(tokenizer, json_string_value(text), json_string_length(text));
}

/* The template itself, or the one named "default" of a list. */
static const json_t *default_template(const json_t *value)
{
    for (size_t i = 0; i < json_array_size(value); i++) {
        const json_t *entry = json_array_get(value, i);
        const char *name = json_string_value(json_object_get(entry, "name"));
        if (name != NULL && strcmp(name, "default") == 0)
            return json_object_get(entry, "template");
    }
    return json_is_string(value) ? value : NULL;
}

enum ferry_status tokenizer_apply_config(struct tokenizer *tokenizer, const char *json,
                                         size_t n_bytes, struct ferry_error *err)
{
    json_t *root = NULL;
    enum ferry_status st =
        json_parse(&root, json, n_bytes, LIMIT_JSON_VALUES, "tokenizer_config.json", err);
    if (st != FERRY_OK)
        return st;
    tokenizer->bos = named_token(tokenizer, json_object_get(root, "bos_token"));
    tokenizer->eos = named_token(tokenizer, json_object_get(root, "eos_token"));
    tokenizer_add_eog(tokenizer, tokenizer->eos);
    const json_t *text = default_template(json_object_get(root, "chat_template"));
    if (json_is_string(text)) {
        tokenizer->chat_template =
            arena_strndup(&tokenizer->arena, json_string_value(text), json_string_length(text));
        if (tokenizer->chat_template == NULL)
            st = FERRY_FAIL(err, FERRY_ERR_NOMEM, "tokenizer_config.json: out of memory");
    }
    json_decref(root);
    return st;
}

enum ferry_status tokenizer_create_json(struct tokenizer **ret_tokenizer, const char *json,
                                        size_t n_bytes, const char *config_json,
                                        size_t config_bytes, struct ferry_error *err)
{
    struct tokenizer *tokenizer = NULL;
    json_t *root = NULL;
    enum ferry_status st =
        json_parse(&root, json, n_bytes, LIMIT_JSON_VALUES, "tokenizer.json", err);

    if (st != FERRY_OK)
        return st;
    tokenizer = tokenizer_new();
    if (tokenizer == NULL) {
        st = FERRY_FAIL(err, FERRY_ERR_NOMEM, "tokenizer.json: out of memory");
        goto out;
    }
    struct json_reader reader = {tokenizer, err};
    st = read_root(&reader, root);
    if (st == FERRY_OK && config_json != NULL)
        st = tokenizer_apply_config(tokenizer, config_json, config_bytes, err);
    if (st != FERRY_OK)
        goto out;
    tokenizer_add_known_eog(tokenizer);
    *ret_tokenizer = tokenizer;
    tokenizer = NULL;
out:
    tokenizer_destroy(tokenizer);
    json_decref(root);
    return st;
}
