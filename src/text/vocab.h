/* The model's own vocabulary and its merges: text to id, id to text, pair to rank.
 *
 * Why here: encoding looks up millions of pairs; hash tables laid out once do it without a pointer
 * chase. It must not know added tokens, splitting or file formats. */
#ifndef TEXT_VOCAB_H
#define TEXT_VOCAB_H

#include "base/arena.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct vocab_token {
    const char *text; /* as in the file; NULL where the id is unused */
    uint32_t size;
};

/* Texts by id and ids by text. All memory is the arena's. */
struct vocab {
    struct vocab_token *tokens; /* [n] by id */
    size_t n;                   /* highest id + 1 */
    uint32_t *slots;            /* id + 1, 0 where free; power of two */
    size_t mask;
};

enum vocab_add {
    VOCAB_ADD_OK,
    VOCAB_ADD_SAME_ID,   /* the id has a text already */
    VOCAB_ADD_SAME_TEXT, /* the text has an id already */
};

/* Room for ids below n and n_texts texts; false when out of memory. */
bool vocab_init(struct vocab *vocab, struct arena *arena, size_t n, size_t n_texts);

/* id < n; text is borrowed and must outlive the vocabulary. With can_find false the id gets its
 * text but the text is not found by vocab_find. */
enum vocab_add vocab_add(struct vocab *vocab, uint32_t id, const char *text, uint32_t size,
                         bool can_find);

/* Id of an exact text, -1 when absent. */
int32_t vocab_find(const struct vocab *vocab, const char *text, size_t size);

/* Merges by pair of ids; rank r makes new_ids[r]. */
struct merge_slot {
    uint64_t pair; /* left << 32 | right */
    uint32_t rank; /* UINT32_MAX where free */
};

struct merges {
    struct merge_slot *slots;
    uint32_t *new_ids; /* [n] by rank */
    size_t n;
    size_t mask;
};

/* Room for n merges, below 2^31; false when out of memory. */
bool merges_init(struct merges *merges, struct arena *arena, size_t n);

/* rank < n. A pair that is there already takes the new rank, as in the reference. */
void merges_add(struct merges *merges, uint32_t left, uint32_t right, uint32_t rank,
                uint32_t new_id);

/* Rank of a pair, UINT32_MAX when it does not merge. */
uint32_t merges_find(const struct merges *merges, uint32_t left, uint32_t right);

#endif
