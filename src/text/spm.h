/* SentencePiece-style byte-pair encoding: merges by the score of the joined text.
 *
 * Why apart from bpe.c: GGUF files of this family carry scores and no merges; a pair merges when
 * its text is a vocabulary entry, even when its parts are not. */
#ifndef TEXT_SPM_H
#define TEXT_SPM_H

#include "ferry/status.h"
#include "text/merge_heap.h"
#include "text/tokenizer.h"
#include "text/vocab.h"

struct spm_model {
    struct vocab vocab;    /* finds normal and user-defined tokens only */
    uint32_t *ranks;       /* [n] by id: 0 is the best score, equal scores share a rank */
    int32_t byte_ids[256]; /* -1: no such token */
    int32_t unk_id;        /* -1: unknown characters vanish */
};

struct spm_symbol {
    uint32_t start;
    uint32_t size; /* 0: merged into the one before */
    uint32_t prev;
    uint32_t next;
    uint32_t rank;    /* of the pair with next */
    uint32_t pair_id; /* what that pair becomes */
    int32_t id;       /* -1: not in the vocabulary */
};

/* Buffers of one thread; {0} to start. */
struct spm_scratch {
    struct spm_symbol *symbols;
    size_t capacity;
    struct merge_heap heap;
};
void spm_scratch_fini(struct spm_scratch *scratch);

/* Appends the ids of text [0 < n_bytes < 2^31], well-formed UTF-8 with spaces already escaped.
 * O(n log n). Errors: FERRY_ERR_NOMEM. */
enum ferry_status spm_encode(const struct spm_model *model, struct spm_scratch *scratch,
                             const char *text, size_t n_bytes, struct token_ids *ids,
                             struct ferry_error *err) FERRY_MUST_CHECK;

#endif
