/* Vocabulary and merge tables. See vocab.h. */
#include "text/vocab.h"

#include "base/assert.h"

#include <string.h>

/* Slots for n entries at a load of at most one half. */
static size_t slots_for(size_t n)
{
    size_t slots = 16;
    while (slots / 2 < n)
        slots *= 2;
    return slots;
}

static uint64_t mix(uint64_t x)
{
    x ^= x >> 32;
    x *= 0xD6E8FEB86659FD93U;
    x ^= x >> 32;
    x *= 0xD6E8FEB86659FD93U;
    return x ^ (x >> 32);
}

static uint64_t hash_text(const char *text, size_t size)
{
    uint64_t hash = size * 0x9E3779B97F4A7C15U;
    uint64_t word;

    while (size >= sizeof word) {
        memcpy(&word, text, sizeof word);
        hash = mix(hash ^ word);
        text += sizeof word;
        size -= sizeof word;
    }
    word = 0;
    memcpy(&word, text, size);
    return mix(hash ^ word);
}

bool vocab_init(struct vocab *vocab, struct arena *arena, size_t n, size_t n_texts)
{
    size_t slots = slots_for(n_texts);

    vocab->tokens = arena_array(arena, n, sizeof *vocab->tokens);
    vocab->slots = arena_array(arena, slots, sizeof *vocab->slots);
    vocab->n = n;
    vocab->mask = slots - 1;
    return vocab->tokens != NULL && vocab->slots != NULL;
}

/* Slot that holds the text, or the free one where it belongs. */
static uint32_t *find_slot(const struct vocab *vocab, const char *text, size_t size)
{
    size_t i = hash_text(text, size) & vocab->mask;

    for (; vocab->slots[i] != 0; i = (i + 1) & vocab->mask) {
        const struct vocab_token *token = &vocab->tokens[vocab->slots[i] - 1];
        if (token->size == size && memcmp(token->text, text, size) == 0)
            break;
    }
    return &vocab->slots[i];
}

enum vocab_add vocab_add(struct vocab *vocab, uint32_t id, const char *text, uint32_t size,
                         bool can_find)
{
    FERRY_ASSERT(id < vocab->n);
    if (vocab->tokens[id].text != NULL)
        return VOCAB_ADD_SAME_ID;
    if (can_find) {
        uint32_t *slot = find_slot(vocab, text, size);
        if (*slot != 0)
            return VOCAB_ADD_SAME_TEXT;
        *slot = id + 1;
    }
    vocab->tokens[id] = (struct vocab_token){text, size};
    return VOCAB_ADD_OK;
}

int32_t vocab_find(const struct vocab *vocab, const char *text, size_t size)
{
    return (int32_t)*find_slot(vocab, text, size) - 1;
}

bool merges_init(struct merges *merges, struct arena *arena, size_t n)
{
    size_t slots = slots_for(n);

    merges->slots = arena_array(arena, slots, sizeof *merges->slots);
    merges->new_ids = arena_array(arena, n, sizeof *merges->new_ids);
    merges->n = n;
    merges->mask = slots - 1;
    if (merges->slots == NULL || merges->new_ids == NULL)
        return false;
    for (size_t i = 0; i < slots; i++)
        merges->slots[i].rank = UINT32_MAX;
    return true;
}

static struct merge_slot *merge_slot(const struct merges *merges, uint64_t pair)
{
    size_t i = mix(pair) & merges->mask;
    while (merges->slots[i].rank != UINT32_MAX && merges->slots[i].pair != pair)
        i = (i + 1) & merges->mask;
    return &merges->slots[i];
}

void merges_add(struct merges *merges, uint32_t left, uint32_t right, uint32_t rank,
                uint32_t new_id)
{
    uint64_t pair = (uint64_t)left << 32 | right;
    struct merge_slot *slot = merge_slot(merges, pair);

    FERRY_ASSERT(rank < merges->n);
    *slot = (struct merge_slot){pair, rank};
    merges->new_ids[rank] = new_id;
}

uint32_t merges_find(const struct merges *merges, uint32_t left, uint32_t right)
{
    return merge_slot(merges, (uint64_t)left << 32 | right)->rank;
}
