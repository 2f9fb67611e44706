/* Byte-pair encoding. See bpe.h. Source of the rules: `tokenizers`, models/bpe. */
#include "text/bpe.h"

#include "base/error.h"
#include "text/unicode.h"

#include <string.h>

enum { DEAD = -1 };
static const uint32_t NONE = UINT32_MAX;

void bpe_scratch_fini(struct bpe_scratch *scratch)
{
    mem_free(scratch->symbols);
    merge_heap_fini(&scratch->heap);
    *scratch = (struct bpe_scratch){0};
}

bool token_ids_append(struct token_ids *ids, int32_t id)
{
    if (ids->count == ids->capacity) {
        size_t capacity = max_size(ids->capacity * 2, 64);
        size_t n_bytes;
        if (!mul_size(capacity, sizeof *ids->ids, &n_bytes))
            return false;
        int32_t *grown = mem_resize(ids->ids, ids->count * sizeof *ids->ids, n_bytes);
        if (grown == NULL)
            return false;
        ids->ids = grown;
        ids->capacity = capacity;
    }
    ids->ids[ids->count++] = id;
    return true;
}

void token_ids_fini(struct token_ids *ids)
{
    mem_free(ids->ids);
    *ids = (struct token_ids){0};
}

/* Ids of the byte alphabet, or of the "<0xNN>" tokens. */
static void find_byte_ids(struct bpe_model *model)
{
    static const char HEX[] = "0123456789ABCDEF";

    for (int byte = 0; byte < 256; byte++) {
        char text[8] = {'<', '0', 'x', HEX[byte >> 4], HEX[byte & 15], '>'};
        size_t size = 6;
        if (model->byte_level)
            size = utf8_encode(byte_level_from_byte((unsigned char)byte), text);
        model->byte_ids[byte] = vocab_find(&model->vocab, text, size);
    }
}

/* Writes the bytes that text [size] stands for to ret; UINT32_MAX when a character is not of the
 * byte alphabet. */
static uint32_t to_bytes(const char *text, uint32_t size, char *ret)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < size;) {
        int32_t code;
        i += (uint32_t)utf8_decode(text + i, size - i, &code);
        int byte = byte_level_to_byte(code);
        if (byte < 0)
            return UINT32_MAX;
        ret[n++] = (char)byte;
    }
    return n;
}

/* Texts as bytes, for whole-piece look-ups. Entries outside of the byte alphabet are never met. */
static bool build_raw(struct bpe_model *model, struct arena *arena, const bool *skip)
{
    const struct vocab *vocab = &model->vocab;
    size_t n_bytes = 1;

    for (size_t id = 0; id < vocab->n; id++)
        n_bytes += vocab->tokens[id].size;
    char *blob = arena_alloc(arena, n_bytes);
    if (blob == NULL || !vocab_init(&model->raw, arena, vocab->n, vocab->n))
        return false;
    for (size_t id = 0; id < vocab->n; id++) {
        const struct vocab_token *token = &vocab->tokens[id];
        if (token->text == NULL || token->size == 0 || skip[id])
            continue;
        uint32_t size = to_bytes(token->text, token->size, blob);
        if (size == UINT32_MAX)
            continue;
        (void)vocab_add(&model->raw, (uint32_t)id, blob, size, true);
        blob += size;
    }
    return true;
}

bool bpe_finish(struct bpe_model *model, struct arena *arena, const struct added_token *added,
                size_t n_added)
{
    find_byte_ids(model);
    if (!model->byte_level || !model->ignore_merges)
        return true;
    bool *skip = arena_array(arena, model->vocab.n, sizeof *skip);
    if (skip == NULL)
        return false;
    for (size_t i = 0; i < n_added; i++)
        skip[added[i].id] = true;
    return build_raw(model, arena, skip);
}

static bool reserve_symbols(struct bpe_scratch *scratch, size_t n)
{
    if (n <= scratch->capacity)
        return true;
    size_t capacity = max_size(n, scratch->capacity * 2);
    struct bpe_symbol *symbols = mem_alloc(capacity * sizeof *symbols);
    if (symbols == NULL)
        return false;
    mem_free(scratch->symbols);
    scratch->symbols = symbols;
    scratch->capacity = capacity;
    return true;
}

static void add_symbol(struct bpe_scratch *scratch, int32_t id)
{
    scratch->symbols[scratch->n++].id = (uint32_t)id;
}

/* Symbols of a byte-level piece. A byte without a symbol is an unknown character. */
static void symbols_of_bytes(const struct bpe_model *model, struct bpe_scratch *scratch,
                             const char *piece, size_t n_bytes)
{
    bool pending_unk = false;

    for (size_t i = 0; i < n_bytes; i++) {
        int32_t id = model->byte_ids[(unsigned char)piece[i]];
        if (id < 0 && model->unk_id < 0)
            continue;
        if (pending_unk && (id >= 0 || !model->fuse_unk))
            add_symbol(scratch, model->unk_id);
        pending_unk = id < 0;
        if (id >= 0)
            add_symbol(scratch, id);
    }
    if (pending_unk)
        add_symbol(scratch, model->unk_id);
}

/* Falls back to the byte tokens of a character; false when one is missing. */
static bool add_fallback(const struct bpe_model *model, struct bpe_scratch *scratch,
                         const char *text, size_t size)
{
    for (size_t i = 0; i < size; i++) {
        if (model->byte_ids[(unsigned char)text[i]] < 0)
            return false;
    }
    for (size_t i = 0; i < size; i++)
        add_symbol(scratch, model->byte_ids[(unsigned char)text[i]]);
    return true;
}

/* Symbols of a piece of characters. An unknown token waits until the next known character, also
 * behind bytes that fall back: the reference's order. */
static void symbols_of_characters(const struct bpe_model *model, struct bpe_scratch *scratch,
                                  const char *piece, size_t n_bytes)
{
    bool pending_unk = false;

    for (size_t i = 0; i < n_bytes;) {
        int32_t code;
        size_t size = utf8_decode(piece + i, n_bytes - i, &code);
        int32_t id = vocab_find(&model->vocab, piece + i, size);
        const char *text = piece + i;
        i += size;
        if (id < 0 && model->byte_fallback && add_fallback(model, scratch, text, size))
            continue;
        if (id < 0 && model->unk_id < 0)
            continue;
        if (pending_unk && (id >= 0 || !model->fuse_unk))
            add_symbol(scratch, model->unk_id);
        pending_unk = id < 0;
        if (id >= 0)
            add_symbol(scratch, id);
    }
    if (pending_unk)
        add_symbol(scratch, model->unk_id);
}

/* Looks up the pair that begins at symbol i and queues it; false when out of memory. */
static bool queue_pair(const struct bpe_model *model, struct bpe_scratch *scratch, uint32_t i)
{
    struct bpe_symbol *symbol = &scratch->symbols[i];

    symbol->rank = symbol->next == NONE
                       ? NONE
                       : merges_find(&model->merges, symbol->id, scratch->symbols[symbol->next].id);
    return symbol->rank == NONE || merge_heap_push(&scratch->heap, symbol->rank, i);
}

/* Merges until nothing merges. A queued candidate counts as long as the pair now at its place makes
 * the same token, even by another merge: so does the reference, and vocabularies with several ways
 * to one token depend on it. */
static bool merge_all(const struct bpe_model *model, struct bpe_scratch *scratch)
{
    struct bpe_symbol *symbols = scratch->symbols;
    uint32_t n = (uint32_t)scratch->n;
    const uint32_t *new_ids = model->merges.new_ids;

    scratch->heap.n = 0;
    for (uint32_t i = 0; i < n; i++) {
        symbols[i].prev = i == 0 ? NONE : i - 1;
        symbols[i].next = i + 1 == n ? NONE : i + 1;
        if (!queue_pair(model, scratch, i))
            return false;
    }
    while (scratch->heap.n > 0) {
        uint64_t key = merge_heap_pop(&scratch->heap);
        uint32_t i = (uint32_t)key;
        uint32_t new_id = new_ids[key >> 32];
        struct bpe_symbol *symbol = &symbols[i];
        if (symbol->id == (uint32_t)DEAD || symbol->rank == NONE || new_ids[symbol->rank] != new_id)
            continue;
        struct bpe_symbol *right = &symbols[symbol->next];
        symbol->id = new_id;
        symbol->next = right->next;
        right->id = (uint32_t)DEAD;
        if (symbol->next != NONE)
            symbols[symbol->next].prev = i;
        if (symbol->prev != NONE && !queue_pair(model, scratch, symbol->prev))
            return false;
        if (!queue_pair(model, scratch, i))
            return false;
    }
    return true;
}

enum ferry_status bpe_encode(const struct bpe_model *model, struct bpe_scratch *scratch,
                             const char *piece, size_t n_bytes, struct token_ids *ids,
                             struct ferry_error *err)
{
    bool ok = true;

    if (model->ignore_merges) {
        int32_t id = vocab_find(model->byte_level ? &model->raw : &model->vocab, piece, n_bytes);
        if (id >= 0) {
            if (!token_ids_append(ids, id))
                goto no_memory;
            return FERRY_OK;
        }
    }
    if (!reserve_symbols(scratch, n_bytes))
        goto no_memory;
    scratch->n = 0;
    if (model->byte_level)
        symbols_of_bytes(model, scratch, piece, n_bytes);
    else
        symbols_of_characters(model, scratch, piece, n_bytes);
    if (scratch->n > 1 && !merge_all(model, scratch))
        goto no_memory;
    for (uint32_t i = 0; i < scratch->n && ok; i++) {
        if (scratch->symbols[i].id != (uint32_t)DEAD)
            ok = token_ids_append(ids, (int32_t)scratch->symbols[i].id);
    }
    if (ok)
        return FERRY_OK;
no_memory:
    return FERRY_FAIL(err, FERRY_ERR_NOMEM, "tokenizer: no memory to encode a piece of %zu bytes",
                      n_bytes);
}
