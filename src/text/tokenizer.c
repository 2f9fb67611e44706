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
    const struct added_trust *trust;  /* NULL: all bytes */
    struct normalize_scratch aligned; /* of one run, beside the whole section */
    struct text_span *spans;          /* [n_spans_max] trusted bytes of a normalised section */
    size_t n_spans_max;
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
        tokenizer->normalized_special = tokenizer->normalized_special || token->special;
    }
    if (!added_set_init(&tokenizer->raw_added, &tokenizer->arena, raw, n_raw) ||
        !added_set_init(&tokenizer->normalized_added, &tokenizer->arena, normalized, n_normalized))
        return no_memory(err);
    return FERRY_OK;
}

static bool has_all_bytes(const int32_t byte_ids[256])
{
    for (size_t i = 0; i < 256; i++) {
        if (byte_ids[i] < 0)
            return false;
    }
    return true;
}

/* An id is a vocabulary entry, or stands for an unknown character; unless those vanish, or one id
 * stands for many. Texts of byte-level entries are longer than the bytes that they mean. */
static size_t most_bytes_of_id(const struct tokenizer *tokenizer)
{
    enum { CHARACTER_BYTES = 4 };
    const struct vocab *vocab = tokenizer_vocab(tokenizer);
    const struct bpe_model *bpe = &tokenizer->bpe;
    size_t longest = CHARACTER_BYTES;
    bool known = tokenizer->kind == TOKENIZER_SPM
                     ? has_all_bytes(tokenizer->spm.byte_ids)
                     : (bpe->byte_level || bpe->byte_fallback) && has_all_bytes(bpe->byte_ids);

    if (!known && (tokenizer->kind == TOKENIZER_SPM ? tokenizer->spm.unk_id < 0
                                                    : bpe->unk_id < 0 || bpe->fuse_unk))
        return SIZE_MAX;
    for (size_t id = 0; id < vocab->n; id++)
        longest = max_size(longest, vocab->tokens[id].text != NULL ? vocab->tokens[id].size : 0);
    return longest;
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
    tokenizer->id_bytes = most_bytes_of_id(tokenizer);
    normalize_scratch_fini(&scratch);
    regex_matcher_destroy(matcher);
    return st;
}

/* Fails when the ids so far and those of n_bytes more of a piece are beyond the limit for sure. */
static enum ferry_status check_most(const struct encoder *e, size_t n_bytes)
{
    size_t most = e->ids->most;

    if (most > 0 &&
        (e->ids->count > most || n_bytes / e->tokenizer->id_bytes > most - e->ids->count))
        return FERRY_FAIL(e->err, FERRY_ERR_CONTEXT_FULL, "the text has more than %zu tokens",
                          most);
    return FERRY_OK;
}

static enum ferry_status append_added(const struct encoder *e, int32_t id)
{
    return token_ids_append(e->ids, id) ? check_most(e, 0) : no_memory(e->err);
}

static enum ferry_status encode_piece(void *arg, const char *piece, size_t n_bytes)
{
    struct encoder *e = arg;
    enum ferry_status st = check_most(e, n_bytes);

    if (st != FERRY_OK)
        return st;
    if (e->tokenizer->kind == TOKENIZER_SPM)
        return spm_encode(&e->tokenizer->spm, &e->spm, piece, n_bytes, e->ids, e->err);
    return bpe_encode(&e->tokenizer->bpe, &e->bpe, piece, n_bytes, e->ids, e->err);
}

/* A section while its trusted bytes are looked for in its normalised form. */
struct alignment {
    const char *text; /* [n] before normalising */
    size_t n;
    const char *whole; /* [n_whole] normalised */
    size_t n_whole;
    struct added_trust trust; /* of text */
};

/* Run i of the section: alternately not trusted (even) and trusted (odd). */
static struct text_span run_of(const struct alignment *a, size_t i)
{
    const struct text_span *spans = a->trust.spans;
    size_t offset = a->trust.offset;
    struct text_span run = {0, a->n};

    if (i % 2 == 1) {
        run.start = spans[i / 2].start > offset ? spans[i / 2].start - offset : 0;
        run.end = min_size(spans[i / 2].end - offset, a->n);
    } else {
        if (i > 0)
            run.start = min_size(spans[i / 2 - 1].end - offset, a->n);
        if (i / 2 < a->trust.n)
            run.end = spans[i / 2].start > offset ? spans[i / 2].start - offset : 0;
    }
    return run;
}

/* Size of run i in the normalised section if it stands at the end (from_start: the beginning) of
 * whole [low, high), *ret_ok false when it does not. Text that a step puts in front of every text
 * is left out of all runs but the first. */
static enum ferry_status align_run(struct encoder *e, const struct alignment *a, size_t i,
                                   size_t low, size_t high, bool from_start, size_t *ret_size,
                                   bool *ret_ok)
{
    struct text_span run = run_of(a, i);
    const struct normalizer *normalizer = &e->tokenizer->normalizer;
    const char *text = "";
    size_t n = 0;
    enum ferry_status st = FERRY_OK;

    if (run.end > run.start)
        st = normalize_run(normalizer, &e->aligned, e->matcher, a->text + run.start,
                           run.end - run.start, &text, &n, e->err);
    for (int k = 0; k < normalizer->n_steps && st == FERRY_OK && run.start > 0; k++) {
        const struct normalize_step *step = &normalizer->steps[k];
        if (step->kind == NORMALIZE_PREPEND && n >= step->content_size &&
            memcmp(text, step->content, step->content_size) == 0) {
            text += step->content_size;
            n -= step->content_size;
        }
    }
    *ret_size = n;
    *ret_ok = st == FERRY_OK && n <= high - low &&
              memcmp(a->whole + (from_start ? low : high - n), text, n) == 0;
    return st;
}

/* Finds the trusted bytes of a normalised section run by run, from both ends: where a normal form
 * joined bytes of two runs they meet, and what lies between is not trusted. */
static enum ferry_status align(struct encoder *e, struct alignment *a, struct added_trust *ret)
{
    size_t n_runs = 2 * a->trust.n + 1;
    size_t low = 0;
    size_t high = a->n_whole;
    size_t first = 0;
    size_t last = n_runs;
    size_t size;
    bool ok = true;

    if (a->trust.n > e->n_spans_max) {
        mem_free(e->spans);
        e->n_spans_max = 0;
        e->spans = mem_array(a->trust.n, sizeof *e->spans);
        if (e->spans == NULL)
            return no_memory(e->err);
        e->n_spans_max = a->trust.n;
    }
    for (size_t i = 0; i < a->trust.n; i++)
        e->spans[i] = (struct text_span){0, 0};
    for (; first < last && ok; first += ok) {
        enum ferry_status st = align_run(e, a, first, low, high, true, &size, &ok);
        if (st != FERRY_OK)
            return st;
        if (ok && first % 2 == 1)
            e->spans[first / 2] = (struct text_span){low, low + size};
        low += ok ? size : 0;
    }
    for (ok = true; last > first && ok; last -= ok) {
        enum ferry_status st = align_run(e, a, last - 1, low, high, false, &size, &ok);
        if (st != FERRY_OK)
            return st;
        if (ok && last % 2 == 0)
            e->spans[last / 2 - 1] = (struct text_span){high - size, high};
        high -= ok ? size : 0;
    }
    *ret = (struct added_trust){.spans = e->spans};
    for (size_t i = 0; i < a->trust.n; i++) {
        if (e->spans[i].end > e->spans[i].start)
            e->spans[ret->n++] = e->spans[i];
    }
    return FERRY_OK;
}

/* The spans that touch bytes [start, end) of the text that they speak of. */
static struct added_trust clip_trust(const struct added_trust *trust, size_t start, size_t end)
{
    struct added_trust clipped = {.spans = trust->spans, .n = trust->n, .offset = start};
    size_t low = 0;
    size_t high = trust->n;

    while (low < high) { /* first span that ends behind start */
        size_t middle = low + (high - low) / 2;
        if (trust->spans[middle].end <= start)
            low = middle + 1;
        else
            high = middle;
    }
    clipped.spans += low;
    for (clipped.n = 0; low + clipped.n < trust->n && clipped.spans[clipped.n].start < end;)
        clipped.n++;
    return clipped;
}

/* Text between raw added tokens: normalised, cut at normalised added tokens, split, merged. offset:
 * where it begins in the whole text. */
static enum ferry_status encode_section(struct encoder *e, const char *text, size_t n_bytes,
                                        size_t offset)
{
    const struct tokenizer *tokenizer = e->tokenizer;
    struct added_trust trust;
    struct added_cursor cursor = {0};
    struct added_piece piece;
    struct alignment a = {.text = text, .n = n_bytes};
    bool at_start = offset == 0;
    enum ferry_status st = normalize_run(&tokenizer->normalizer, &e->normalize, e->matcher, text,
                                         n_bytes, &text, &n_bytes, e->err);

    if (st == FERRY_OK && e->trust != NULL && tokenizer->normalized_special) {
        a.whole = text;
        a.n_whole = n_bytes;
        a.trust = clip_trust(e->trust, offset, offset + a.n);
        trust = a.trust;
        if (n_bytes != a.n || memcmp(text, a.text, n_bytes) != 0)
            st = align(e, &a, &trust);
        cursor.trust = &trust;
    }
    while (st == FERRY_OK && added_next(&tokenizer->normalized_added, text, n_bytes,
                                        e->parse_special, &cursor, &piece)) {
        if (piece.token != NULL)
            st = append_added(e, piece.token->id);
        else
            st = pretoken_run(&tokenizer->pretokenizer, &e->pretoken, e->matcher,
                              text + piece.start, piece.end - piece.start,
                              at_start && piece.start == 0, encode_piece, e, e->err);
    }
    return st;
}

static enum ferry_status encode_text(struct encoder *e, const char *text, size_t n_bytes)
{
    struct added_cursor cursor = {.trust = e->trust};
    struct added_piece piece;
    enum ferry_status st = FERRY_OK;

    while (st == FERRY_OK &&
           added_next(&e->tokenizer->raw_added, text, n_bytes, e->parse_special, &cursor, &piece)) {
        if (piece.token != NULL)
            st = append_added(e, piece.token->id);
        else
            st = encode_section(e, text + piece.start, piece.end - piece.start, piece.start);
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

static void encoder_fini(struct encoder *e)
{
    normalize_scratch_fini(&e->normalize);
    normalize_scratch_fini(&e->aligned);
    pretoken_scratch_fini(&e->pretoken);
    bpe_scratch_fini(&e->bpe);
    spm_scratch_fini(&e->spm);
    regex_matcher_destroy(e->matcher);
    mem_free(e->spans);
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
    if (st == FERRY_OK)
        st = check_most(&e, 0);
    if (st != FERRY_OK)
        ids->count = old_count;
    bytes_fini(&lossy);
    encoder_fini(&e);
    return st;
}

enum ferry_status tokenizer_encode_rendered(const struct tokenizer *tokenizer,
                                            const struct rendered *rendered, struct token_ids *ids,
                                            struct ferry_error *err)
{
    struct added_trust trust = {.spans = rendered->trusted, .n = rendered->n_trusted};
    struct encoder e = {
        .tokenizer = tokenizer, .ids = ids, .parse_special = true, .trust = &trust, .err = err};
    size_t old_count = ids->count;

    if (rendered->n_bytes > LIMIT_TEXT)
        return text_too_long(rendered->n_bytes, err);
    if (utf8_valid_size(rendered->text, rendered->n_bytes) != rendered->n_bytes)
        return FERRY_FAIL(err, FERRY_ERR_FORMAT, "tokenizer: a rendered text is not UTF-8");
    enum ferry_status st = regex_matcher_create(&e.matcher, err);
    if (st == FERRY_OK)
        st = encode_text(&e, rendered->text, rendered->n_bytes);
    if (st == FERRY_OK)
        st = check_most(&e, 0);
    if (st != FERRY_OK)
        ids->count = old_count;
    encoder_fini(&e);
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
