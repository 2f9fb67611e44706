/* Running a tokenizer: encode, decode, roles. See tokenizer.h. */
#include "text/tokenizer_impl.h"

#include "base/alloc.h"
#include "base/error.h"
#include "base/limits.h"
#include "base/size.h"

#include <string.h>

/* One encode call: the const tokenizer plus what the calling thread needs. */
struct encoder {
    const struct tokenizer *tokenizer;
    struct regex_matcher *matcher;
    struct normalize_scratch normalize;
    struct pretoken_scratch pretoken;
    struct bpe_scratch bpe;
    struct spm_scratch spm;
    struct token_ids *ids;
    bool parse_special;
    struct ferry_error *err;
};

struct tokenizer *tokenizer_new(void)
{
    struct tokenizer *tokenizer = mem_zero(sizeof *tokenizer);

    if (tokenizer == NULL)
        return NULL;
    arena_init(&tokenizer->arena, "tokenizer");
    tokenizer->bos = -1;
    tokenizer->eos = -1;
    tokenizer->bpe.unk_id = -1;
    tokenizer->spm.unk_id = -1;
    return tokenizer;
}

void tokenizer_destroy(struct tokenizer *tokenizer)
{
    if (tokenizer == NULL)
        return;
    for (int i = 0; i < tokenizer->n_regexes; i++)
        regex_destroy(tokenizer->regexes[i]);
    arena_fini(&tokenizer->arena);
    mem_free(tokenizer);
}

enum ferry_status tokenizer_add_regex(struct tokenizer *tokenizer, bool literal,
                                      const char *pattern, size_t n_bytes, struct regex **ret_regex,
                                      struct ferry_error *err)
{
    struct regex *regex = NULL;

    if (tokenizer->n_regexes == TOKENIZER_REGEXES_MAX)
        return FERRY_FAIL(err, FERRY_ERR_LIMIT, "tokenizer: more than %d patterns",
                          TOKENIZER_REGEXES_MAX);
    enum ferry_status st = literal ? regex_create_literal(&regex, pattern, n_bytes, err)
                                   : regex_create(&regex, pattern, n_bytes, err);
    if (st == FERRY_OK) {
        tokenizer->regexes[tokenizer->n_regexes++] = regex;
        *ret_regex = regex;
    }
    return st;
}

const struct vocab *tokenizer_vocab(const struct tokenizer *tokenizer)
{
    return tokenizer->kind == TOKENIZER_SPM ? &tokenizer->spm.vocab : &tokenizer->bpe.vocab;
}

static enum ferry_status no_memory(struct ferry_error *err)
{
    return FERRY_FAIL(err, FERRY_ERR_NOMEM, "tokenizer: out of memory");
}

/* Appends to blob the bytes of one token as they appear in the middle of a text. */
static enum ferry_status set_piece(const struct tokenizer *tokenizer,
                                   struct tokenizer_piece_text *piece,
                                   struct regex_matcher *matcher, struct decoder_list *list,
                                   struct bytes *blob, struct ferry_error *err)
{
    list->text.size = 0;
    list->n = 0;
    if (!decoder_list_append(list, piece->raw, piece->raw_size))
        return no_memory(err);
    enum ferry_status st = decoder_run(&tokenizer->decoder, matcher, list, true, err);
    if (st != FERRY_OK)
        return st;
    if (!bytes_append(blob, list->text.data, list->text.size))
        return no_memory(err);
    piece->size = (uint32_t)list->text.size;
    return FERRY_OK;
}

/* Fills all of pieces but text; blob takes the bytes in id order. An added token hides the model's
 * entry of the same id. */
static enum ferry_status collect_pieces(struct tokenizer *tokenizer, struct regex_matcher *matcher,
                                        struct decoder_list *list, struct bytes *blob,
                                        struct ferry_error *err)
{
    const struct vocab *vocab = tokenizer_vocab(tokenizer);
    struct tokenizer_piece_text *pieces = tokenizer->pieces;
    enum ferry_status st = FERRY_OK;

    for (size_t id = 0; id < vocab->n; id++) {
        pieces[id].raw = vocab->tokens[id].text;
        pieces[id].raw_size = vocab->tokens[id].size;
    }
    for (size_t i = 0; i < tokenizer->n_added; i++) {
        const struct added_token *token = &tokenizer->added[i];
        pieces[token->id].raw = token->text;
        pieces[token->id].raw_size = (uint32_t)token->size;
        pieces[token->id].special = token->special;
    }
    for (size_t id = 0; id < tokenizer->n_vocab && st == FERRY_OK; id++) {
        if (pieces[id].raw != NULL)
            st = set_piece(tokenizer, &pieces[id], matcher, list, blob, err);
    }
    return st;
}

static enum ferry_status build_pieces(struct tokenizer *tokenizer, struct regex_matcher *matcher,
                                      struct ferry_error *err)
{
    struct decoder_list list = {0};
    struct bytes blob = {0};
    size_t n = tokenizer_vocab(tokenizer)->n;

    for (size_t i = 0; i < tokenizer->n_added; i++)
        n = max_size(n, (size_t)tokenizer->added[i].id + 1);
    tokenizer->n_vocab = n;
    tokenizer->pieces = arena_array(&tokenizer->arena, n, sizeof *tokenizer->pieces);
    enum ferry_status st = tokenizer->pieces == NULL
                               ? no_memory(err)
                               : collect_pieces(tokenizer, matcher, &list, &blob, err);
    char *text = NULL;
    if (st == FERRY_OK) {
        text = arena_alloc(&tokenizer->arena, blob.size + 1);
        if (text == NULL)
            st = no_memory(err);
    }
    if (st == FERRY_OK) {
        if (blob.size > 0)
            memcpy(text, blob.data, blob.size);
        text[blob.size] = 0;
        for (size_t id = 0; id < n; id++) {
            tokenizer->pieces[id].text = text;
            text += tokenizer->pieces[id].size;
        }
    }
    decoder_list_fini(&list);
    bytes_fini(&blob);
    return st;
}

/* Patterns of the tokens that are looked for after normalising: their own normalised form. */
static enum ferry_status build_added(struct tokenizer *tokenizer, struct regex_matcher *matcher,
                                     struct normalize_scratch *scratch, struct ferry_error *err)
{
    size_t n_raw = 0;
    size_t n_normalized = 0;
    struct added_pattern *raw = arena_array(&tokenizer->arena, tokenizer->n_added, sizeof *raw);
    struct added_pattern *normalized =
        arena_array(&tokenizer->arena, tokenizer->n_added, sizeof *normalized);

    if (raw == NULL || normalized == NULL)
        return no_memory(err);
    for (size_t i = 0; i < tokenizer->n_added; i++) {
        const struct added_token *token = &tokenizer->added[i];
        if (!token->normalized) {
            raw[n_raw++] = (struct added_pattern){token->text, token->size, token};
            continue;
        }
        const char *text;
        size_t size;
        enum ferry_status st = normalize_run(&tokenizer->normalizer, scratch, matcher, token->text,
                                             token->size, &text, &size, err);
        if (st != FERRY_OK)
            return st;
        char *copy = arena_strndup(&tokenizer->arena, text, size);
        if (copy == NULL)
            return no_memory(err);
        if (size > 0)
            normalized[n_normalized++] = (struct added_pattern){copy, size, token};
    }
    if (!added_set_init(&tokenizer->raw_added, &tokenizer->arena, raw, n_raw) ||
        !added_set_init(&tokenizer->normalized_added, &tokenizer->arena, normalized, n_normalized))
        return no_memory(err);
    return FERRY_OK;
}

enum ferry_status tokenizer_finish(struct tokenizer *tokenizer, struct ferry_error *err)
{
    struct regex_matcher *matcher = NULL;
    struct normalize_scratch scratch = {0};
    enum ferry_status st = regex_matcher_create(&matcher, err);

    if (st == FERRY_OK)
        st = build_added(tokenizer, matcher, &scratch, err);
    if (st == FERRY_OK)
        st = build_pieces(tokenizer, matcher, err);
    normalize_scratch_fini(&scratch);
    regex_matcher_destroy(matcher);
    return st;
}

static enum ferry_status encode_piece(void *arg, const char *piece, size_t n_bytes)
{
    struct encoder *e = arg;

    if (e->tokenizer->kind == TOKENIZER_SPM)
        return spm_encode(&e->tokenizer->spm, &e->spm, piece, n_bytes, e->ids, e->err);
    return bpe_encode(&e->tokenizer->bpe, &e->bpe, piece, n_bytes, e->ids, e->err);
}

/* Text between raw added tokens: normalised, cut at normalised added tokens, split, merged. */
static enum ferry_status encode_section(struct encoder *e, const char *text, size_t n_bytes,
                                        bool at_start)
{
    const struct tokenizer *tokenizer = e->tokenizer;
    struct added_cursor cursor = {0};
    struct added_piece piece;
    enum ferry_status st = normalize_run(&tokenizer->normalizer, &e->normalize, e->matcher, text,
                                         n_bytes, &text, &n_bytes, e->err);

    while (st == FERRY_OK && added_next(&tokenizer->normalized_added, text, n_bytes,
                                        e->parse_special, &cursor, &piece)) {
        if (piece.token != NULL)
            st = token_ids_append(e->ids, piece.token->id) ? FERRY_OK : no_memory(e->err);
        else
            st = pretoken_run(&tokenizer->pretokenizer, &e->pretoken, e->matcher,
                              text + piece.start, piece.end - piece.start,
                              at_start && piece.start == 0, encode_piece, e, e->err);
    }
    return st;
}

static enum ferry_status encode_text(struct encoder *e, const char *text, size_t n_bytes)
{
    struct added_cursor cursor = {0};
    struct added_piece piece;
    enum ferry_status st = FERRY_OK;

    while (st == FERRY_OK &&
           added_next(&e->tokenizer->raw_added, text, n_bytes, e->parse_special, &cursor, &piece)) {
        if (piece.token != NULL)
            st = token_ids_append(e->ids, piece.token->id) ? FERRY_OK : no_memory(e->err);
        else
            st = encode_section(e, text + piece.start, piece.end - piece.start, piece.start == 0);
    }
    return st;
}

static enum ferry_status append_fix(struct token_ids *ids, const int32_t *fix, int n,
                                    struct ferry_error *err)
{
    for (int i = 0; i < n; i++) {
        if (!token_ids_append(ids, fix[i]))
            return no_memory(err);
    }
    return FERRY_OK;
}

static enum ferry_status text_too_long(size_t n_bytes, struct ferry_error *err)
{
    return FERRY_FAIL(err, FERRY_ERR_LIMIT,
                      "tokenizer: text of %zu bytes (limit %d); encode it in parts", n_bytes,
                      (int)LIMIT_TEXT);
}

enum ferry_status tokenizer_encode(const struct tokenizer *tokenizer, const char *text,
                                   size_t n_bytes, bool add_special, bool parse_special,
                                   struct token_ids *ids, struct ferry_error *err)
{
    struct bytes lossy = {0};
    struct encoder e = {
        .tokenizer = tokenizer, .ids = ids, .parse_special = parse_special, .err = err};
    size_t old_count = ids->count;

    if (n_bytes > LIMIT_TEXT)
        return text_too_long(n_bytes, err);
    enum ferry_status st = regex_matcher_create(&e.matcher, err);
    if (st == FERRY_OK && utf8_valid_size(text, n_bytes) != n_bytes) {
        if (utf8_append_lossy(&lossy, text, n_bytes)) {
            text = lossy.data;
            n_bytes = lossy.size;
        } else {
            st = no_memory(err);
        }
        if (st == FERRY_OK && n_bytes > LIMIT_TEXT) /* a stray byte has become three */
            st = text_too_long(n_bytes, err);
    }
    if (st == FERRY_OK && add_special)
        st = append_fix(ids, tokenizer->prefix, tokenizer->n_prefix, err);
    if (st == FERRY_OK)
        st = encode_text(&e, text, n_bytes);
    if (st == FERRY_OK && add_special)
        st = append_fix(ids, tokenizer->suffix, tokenizer->n_suffix, err);
    if (st != FERRY_OK)
        ids->count = old_count;
    bytes_fini(&lossy);
    normalize_scratch_fini(&e.normalize);
    pretoken_scratch_fini(&e.pretoken);
    bpe_scratch_fini(&e.bpe);
    spm_scratch_fini(&e.spm);
    regex_matcher_destroy(e.matcher);
    return st;
}

enum ferry_status tokenizer_decode(const struct tokenizer *tokenizer, const int32_t *ids, size_t n,
                                   bool skip_special, char **ret_text, size_t *ret_size,
                                   struct ferry_error *err)
{
    struct decoder_list list = {0};
    struct regex_matcher *matcher = NULL;
    enum ferry_status st = regex_matcher_create(&matcher, err);

    for (size_t i = 0; i < n && st == FERRY_OK; i++) {
        if (ids[i] < 0 || (size_t)ids[i] >= tokenizer->n_vocab)
            continue;
        const struct tokenizer_piece_text *piece = &tokenizer->pieces[ids[i]];
        if (piece->raw == NULL || (skip_special && piece->special))
            continue;
        if (!decoder_list_append(&list, piece->raw, piece->raw_size))
            st = no_memory(err);
    }
    if (st == FERRY_OK)
        st = decoder_run(&tokenizer->decoder, matcher, &list, false, err);
    if (st == FERRY_OK && !bytes_append(&list.text, "", 1))
        st = no_memory(err);
    if (st == FERRY_OK) {
        *ret_size = list.text.size - 1;
        *ret_text = list.text.data;
        list.text = (struct bytes){0};
    }
    decoder_list_fini(&list);
    regex_matcher_destroy(matcher);
    return st;
}

const char *tokenizer_piece(const struct tokenizer *tokenizer, int32_t id, bool skip_special,
                            size_t *ret_size)
{
    *ret_size = 0;
    if (id < 0 || (size_t)id >= tokenizer->n_vocab ||
        (skip_special && tokenizer->pieces[id].special))
        return "";
    *ret_size = tokenizer->pieces[id].size;
    return tokenizer->pieces[id].text;
}

int32_t tokenizer_find(const struct tokenizer *tokenizer, const char *piece, size_t n_bytes)
{
    for (size_t i = 0; i < tokenizer->n_added; i++) {
        const struct added_token *token = &tokenizer->added[i];
        if (token->size == n_bytes && memcmp(token->text, piece, n_bytes) == 0)
            return token->id;
    }
    return vocab_find(tokenizer_vocab(tokenizer), piece, n_bytes);
}

size_t tokenizer_n_vocab(const struct tokenizer *tokenizer)
{
    return tokenizer->n_vocab;
}

size_t tokenizer_bytes(const struct tokenizer *tokenizer)
{
    return tokenizer->arena.used;
}

int32_t tokenizer_bos(const struct tokenizer *tokenizer)
{
    return tokenizer->bos;
}

int32_t tokenizer_eos(const struct tokenizer *tokenizer)
{
    return tokenizer->eos;
}

bool tokenizer_is_eog(const struct tokenizer *tokenizer, int32_t id)
{
    for (int i = 0; i < tokenizer->n_eog; i++) {
        if (tokenizer->eog[i] == id)
            return true;
    }
    return false;
}

bool tokenizer_adds_bos(const struct tokenizer *tokenizer)
{
    return tokenizer->n_prefix > 0 && tokenizer->prefix[0] == tokenizer->bos;
}

const char *tokenizer_chat_template(const struct tokenizer *tokenizer)
{
    return tokenizer->chat_template;
}

void tokenizer_add_eog(struct tokenizer *tokenizer, int32_t id)
{
    if (id >= 0 && !tokenizer_is_eog(tokenizer, id) && tokenizer->n_eog < TOKENIZER_EOG_MAX)
        tokenizer->eog[tokenizer->n_eog++] = id;
}

void tokenizer_add_known_eog(struct tokenizer *tokenizer)
{
    static const char *const NAMES[] = {
        "<|im_end|>",
        "<|endoftext|>",
        "<|end_of_text|>",
        "<|eot_id|>",
        "<|eom_id|>",
        "<end_of_turn>",
        "<|eot|>",
        "<|eom|>",
        "<|return|>",
        "<|call|>",
        "<|end_of_role|>",
        "<|END_OF_TURN_TOKEN|>",
        "<\357\275\234end\342\226\201of\342\226\201sentence\357\275\234>",
    };

    for (size_t i = 0; i < tokenizer->n_added; i++) {
        const struct added_token *token = &tokenizer->added[i];
        for (size_t k = 0; k < sizeof NAMES / sizeof NAMES[0] && token->special; k++) {
            if (token->size == strlen(NAMES[k]) && memcmp(token->text, NAMES[k], token->size) == 0)
                tokenizer_add_eog(tokenizer, token->id);
        }
    }
}
