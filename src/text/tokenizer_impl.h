/* What a tokenizer is made of; for tokenizer.c and the readers of the two file formats.
 *
 * Why here: readers fill it, tokenizer.c runs it. Nobody outside `text` includes this. */
#ifndef TEXT_TOKENIZER_IMPL_H
#define TEXT_TOKENIZER_IMPL_H

#include "base/arena.h"
#include "text/added.h"
#include "text/bpe.h"
#include "text/decoder.h"
#include "text/normalize.h"
#include "text/pretoken.h"
#include "text/spm.h"
#include "text/tokenizer.h"

enum tokenizer_kind {
    TOKENIZER_BPE, /* ranked merges */
    TOKENIZER_SPM, /* scores */
};

enum { TOKENIZER_FIXES_MAX = 16, TOKENIZER_EOG_MAX = 64, TOKENIZER_REGEXES_MAX = 48 };

/* One id: its string in the file and the bytes it decodes to in the middle of a text. */
struct tokenizer_piece_text {
    const char *raw; /* NULL: no such id */
    const char *text;
    uint32_t raw_size;
    uint32_t size;
    bool special;
};

struct tokenizer {
    struct arena arena; /* owns every table and string below */
    enum tokenizer_kind kind;
    struct added_token *added; /* [n_added] in file order, ids distinct */
    size_t n_added;
    struct added_set raw_added;        /* looked for in the raw text */
    struct added_set normalized_added; /* looked for after normalising, in normalised form */
    bool normalized_special;           /* one of them is special */
    struct normalizer normalizer;
    struct pretokenizer pretokenizer;
    struct bpe_model bpe;
    struct spm_model spm;
    struct decoder decoder;
    struct tokenizer_piece_text *pieces; /* [n_vocab] */
    size_t n_vocab;
    size_t id_bytes; /* most bytes of a piece that become one id; SIZE_MAX: there is no bound */
    int32_t prefix[TOKENIZER_FIXES_MAX]; /* what add_special puts around the text */
    int32_t suffix[TOKENIZER_FIXES_MAX];
    int n_prefix;
    int n_suffix;
    int32_t bos;
    int32_t eos;
    int32_t eog[TOKENIZER_EOG_MAX];
    int n_eog;
    const char *chat_template;                    /* NULL: none */
    struct regex *regexes[TOKENIZER_REGEXES_MAX]; /* owned here, borrowed by the steps */
    int n_regexes;
};

/* Empty tokenizer with no roles set; NULL when out of memory. */
struct tokenizer *tokenizer_new(void);

/* Compiles a pattern (literal: a plain string) that the tokenizer owns. Errors as regex_create,
 * FERRY_ERR_LIMIT. */
enum ferry_status tokenizer_add_regex(struct tokenizer *tokenizer, bool literal,
                                      const char *pattern, size_t n_bytes, struct regex **ret_regex,
                                      struct ferry_error *err) FERRY_MUST_CHECK;

/* The model's own vocabulary. */
const struct vocab *tokenizer_vocab(const struct tokenizer *tokenizer);

/* After vocabulary, added tokens and all steps are set: builds the added-token sets, the bytes of
 * every token and n_vocab. Errors: FERRY_ERR_NOMEM, FERRY_ERR_LIMIT. */
enum ferry_status tokenizer_finish(struct tokenizer *tokenizer,
                                   struct ferry_error *err) FERRY_MUST_CHECK;

/* Adds an id that ends generation, once; ids below 0 and those past the limit are dropped. */
void tokenizer_add_eog(struct tokenizer *tokenizer, int32_t id);

/* Adds the special tokens whose names are known to end a turn. */
void tokenizer_add_known_eog(struct tokenizer *tokenizer);

/* Roles from tokenizer_config.json: bos_token, eos_token, chat_template. Errors:
 * FERRY_ERR_FORMAT, FERRY_ERR_NOMEM. */
enum ferry_status tokenizer_apply_config(struct tokenizer *tokenizer, const char *json,
                                         size_t n_bytes, struct ferry_error *err) FERRY_MUST_CHECK;

#endif
