/* Pre-tokenizers of tokenizer.json: text to the pieces that merges may not cross.
 *
 * Why here: the steps come from the file; each works on the pieces of the one before. Pieces go
 * depth first through the steps, so that no list of pieces is ever held. It must not know
 * vocabularies. */
#ifndef TEXT_PRETOKEN_H
#define TEXT_PRETOKEN_H

#include "ferry/status.h"
#include "text/regex.h"
#include "text/unicode.h"

enum pretoken_kind {
    PRETOKEN_SPLIT,            /* by regex */
    PRETOKEN_DIGITS,           /* by characters of category N */
    PRETOKEN_PUNCTUATION,      /* by punctuation characters */
    PRETOKEN_WHITESPACE_SPLIT, /* by White_Space */
    PRETOKEN_METASPACE,        /* spaces become a visible character; words keep it in front */
    PRETOKEN_PREFIX_SPACE,     /* a space in front of a piece that has none */
};

/* What becomes of a match (the reference's SplitDelimiterBehavior). */
enum pretoken_behavior {
    PRETOKEN_REMOVED,
    PRETOKEN_ISOLATED,
    PRETOKEN_MERGED_WITH_PREVIOUS,
    PRETOKEN_MERGED_WITH_NEXT,
    PRETOKEN_CONTIGUOUS,
};

/* When Metaspace puts its character in front of a text that does not begin with it. */
enum pretoken_prepend {
    PRETOKEN_PREPEND_ALWAYS,
    PRETOKEN_PREPEND_FIRST, /* only at the very start of the input */
    PRETOKEN_PREPEND_NEVER,
};

struct pretoken_step {
    enum pretoken_kind kind;
    enum pretoken_behavior behavior;
    bool invert; /* what lies between matches is the match */
    struct regex *regex;
    int32_t replacement; /* METASPACE */
    enum pretoken_prepend prepend;
    bool split;
};

enum { PRETOKEN_STEPS_MAX = 16 };

struct pretokenizer {
    struct pretoken_step steps[PRETOKEN_STEPS_MAX];
    int n_steps;
};

/* Buffers of one thread; {0} to start. */
struct pretoken_scratch {
    struct bytes text[PRETOKEN_STEPS_MAX]; /* of steps that change the text */
};
void pretoken_scratch_fini(struct pretoken_scratch *scratch);

/* Takes a piece [n_bytes > 0]; the text is valid during the call only. */
typedef enum ferry_status pretoken_emit(void *arg, const char *piece, size_t n_bytes);

/* Cuts text [n_bytes], well-formed UTF-8, and gives every piece in order to emit. at_start: the
 * text begins where the user's input begins. Errors: those of emit, FERRY_ERR_LIMIT (also when the
 * pieces between two steps have more bytes than normalize_limit), FERRY_ERR_NOMEM. */
enum ferry_status pretoken_run(const struct pretokenizer *pretokenizer,
                               struct pretoken_scratch *scratch, struct regex_matcher *matcher,
                               const char *text, size_t n_bytes, bool at_start, pretoken_emit *emit,
                               void *arg, struct ferry_error *err) FERRY_MUST_CHECK;

#endif
