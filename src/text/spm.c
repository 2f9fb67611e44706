/* SentencePiece-style merging. See spm.h. Source of the rules: sentencepiece, bpe_model.cc. */
#include "text/spm.h"

#include "base/error.h"
#include "text/bpe.h"
#include "text/unicode.h"

static const uint32_t NONE = UINT32_MAX;

void spm_scratch_fini(struct spm_scratch *scratch)
{
    mem_free(scratch->symbols);
    merge_heap_fini(&scratch->heap);
    *scratch = (struct spm_scratch){0};
}

static bool queue_pair(const struct spm_model *model, struct spm_scratch *scratch, const char *text,
                       uint32_t i)
{
    struct spm_symbol *symbol = &scratch->symbols[i];

    symbol->rank = NONE;
    if (symbol->next == NONE)
        return true;
    size_t size = symbol->size + scratch->symbols[symbol->next].size;
    int32_t id = vocab_find(&model->vocab, text + symbol->start, size);
    if (id < 0)
        return true;
    symbol->rank = model->ranks[id];
    symbol->pair_id = (uint32_t)id;
    return merge_heap_push(&scratch->heap, symbol->rank, i);
}

/* One symbol per character; returns how many. */
static uint32_t init_symbols(const struct spm_model *model, struct spm_symbol *symbols,
                             const char *text, size_t n_bytes)
{
    uint32_t n = 0;

    for (size_t i = 0; i < n_bytes; n++) {
        int32_t code;
        size_t size = utf8_decode(text + i, n_bytes - i, &code);
        symbols[n] = (struct spm_symbol){.start = (uint32_t)i,
                                         .size = (uint32_t)size,
                                         .prev = n == 0 ? NONE : n - 1,
                                         .next = i + size == n_bytes ? NONE : n + 1,
                                         .rank = NONE,
                                         .id = vocab_find(&model->vocab, text + i, size)};
        i += size;
    }
    return n;
}

static bool merge_all(const struct spm_model *model, struct spm_scratch *scratch, const char *text,
                      uint32_t n)
{
    struct spm_symbol *symbols = scratch->symbols;

    scratch->heap.n = 0;
    for (uint32_t i = 0; i < n; i++) {
        if (!queue_pair(model, scratch, text, i))
            return false;
    }
    while (scratch->heap.n > 0) {
        uint64_t key = merge_heap_pop(&scratch->heap);
        uint32_t i = (uint32_t)key;
        struct spm_symbol *symbol = &symbols[i];
        if (symbol->size == 0 || symbol->rank != key >> 32)
            continue;
        struct spm_symbol *right = &symbols[symbol->next];
        symbol->id = (int32_t)symbol->pair_id;
        symbol->size += right->size;
        symbol->next = right->next;
        right->size = 0;
        if (symbol->next != NONE)
            symbols[symbol->next].prev = i;
        if (symbol->prev != NONE && !queue_pair(model, scratch, text, symbol->prev))
            return false;
        if (!queue_pair(model, scratch, text, i))
            return false;
    }
    return true;
}

/* A symbol that is no entry becomes its bytes, or one unknown token when a byte is missing. */
static bool append_unknown(const struct spm_model *model, const char *text, size_t size,
                           struct token_ids *ids)
{
    bool has_bytes = true;

    for (size_t i = 0; i < size; i++)
        has_bytes = has_bytes && model->byte_ids[(unsigned char)text[i]] >= 0;
    if (!has_bytes)
        return model->unk_id < 0 || token_ids_append(ids, model->unk_id);
    for (size_t i = 0; i < size; i++) {
        if (!token_ids_append(ids, model->byte_ids[(unsigned char)text[i]]))
            return false;
    }
    return true;
}

enum ferry_status spm_encode(const struct spm_model *model, struct spm_scratch *scratch,
                             const char *text, size_t n_bytes, struct token_ids *ids,
                             struct ferry_error *err)
{
    if (n_bytes > scratch->capacity) {
        size_t capacity = max_size(n_bytes, scratch->capacity * 2);
        struct spm_symbol *symbols = mem_alloc(capacity * sizeof *symbols);
        if (symbols == NULL)
            goto no_memory;
        mem_free(scratch->symbols);
        scratch->symbols = symbols;
        scratch->capacity = capacity;
    }
    uint32_t n = init_symbols(model, scratch->symbols, text, n_bytes);
    if (!merge_all(model, scratch, text, n))
        goto no_memory;
    for (uint32_t i = 0; i < n; i++) {
        const struct spm_symbol *symbol = &scratch->symbols[i];
        if (symbol->size == 0)
            continue;
        bool ok = symbol->id >= 0 ? token_ids_append(ids, symbol->id)
                                  : append_unknown(model, text + symbol->start, symbol->size, ids);
        if (!ok)
            goto no_memory;
    }
    return FERRY_OK;
no_memory:
    return FERRY_FAIL(err, FERRY_ERR_NOMEM, "tokenizer: no memory to encode %zu bytes", n_bytes);
}
