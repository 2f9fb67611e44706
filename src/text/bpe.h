/* Byte-pair encoding of one piece by a table of ranked merges.
 *
 * Why here: this is where ids come from, merge for merge as the reference does it. It must not know
 * where pieces come from. */
#ifndef TEXT_BPE_H
#define TEXT_BPE_H

#include "ferry/status.h"
#include "text/added.h"
#include "text/merge_heap.h"
#include "text/tokenizer.h"
#include "text/vocab.h"

struct bpe_model {
    struct vocab vocab;
    struct vocab raw; /* byte_level with ignore_merges: texts as bytes; else n is 0 */
    struct merges merges;
    int32_t byte_ids[256]; /* byte_level: id of a byte; byte_fallback: of "<0xNN>"; -1 none */
    bool byte_level;       /* pieces are bytes, symbols of the vocabulary the byte alphabet */
    bool byte_fallback;
    bool fuse_unk;
    bool ignore_merges; /* a piece that is a vocabulary entry is that entry */
    int32_t unk_id;     /* -1: unknown characters vanish, as in the reference */
};

struct bpe_symbol {
    uint32_t id;
    uint32_t prev; /* UINT32_MAX at the ends */
    uint32_t next;
    uint32_t rank; /* of the pair with next, UINT32_MAX: does not merge */
};

/* Buffers of one thread; {0} to start. */
struct bpe_scratch {
    struct bpe_symbol *symbols;
    size_t capacity;
    size_t n;
    struct merge_heap heap;
};
void bpe_scratch_fini(struct bpe_scratch *scratch);

/* Appends the ids of piece [0 < n_bytes < 2^31], well-formed UTF-8. O(n log n). Errors:
 * FERRY_ERR_NOMEM. */
enum ferry_status bpe_encode(const struct bpe_model *model, struct bpe_scratch *scratch,
                             const char *piece, size_t n_bytes, struct token_ids *ids,
                             struct ferry_error *err) FERRY_MUST_CHECK;

/* Last step of building a model: byte_ids (byte_level or byte_fallback set before) and, where whole
 * pieces are looked up, raw; added tokens [n_added] are no whole pieces. False when out of memory.
 */
bool bpe_finish(struct bpe_model *model, struct arena *arena, const struct added_token *added,
                size_t n_added);

#endif
