/* Normalizers of tokenizer.json: text to text, before splitting.
 *
 * Why here: the steps and their order come from the file. Unicode normal forms use utf8proc's
 * tables but our own ordering of marks: utf8proc sorts them in quadratic time. It must not know
 * tokens. */
#ifndef TEXT_NORMALIZE_H
#define TEXT_NORMALIZE_H

#include "ferry/status.h"
#include "text/regex.h"
#include "text/unicode.h"

enum normalize_kind {
    NORMALIZE_NFC,
    NORMALIZE_NFD,
    NORMALIZE_NFKC,
    NORMALIZE_NFKD,
    NORMALIZE_PREPEND,   /* content in front of text that is not empty */
    NORMALIZE_REPLACE,   /* every match of regex by content */
    NORMALIZE_LOWERCASE, /* per character, without context */
    NORMALIZE_STRIP,     /* White_Space at the chosen ends */
};

struct normalize_step {
    enum normalize_kind kind;
    struct regex *regex;
    const char *content;
    size_t content_size;
    bool left;
    bool right;
};

enum { NORMALIZE_STEPS_MAX = 16 };

struct normalizer {
    struct normalize_step steps[NORMALIZE_STEPS_MAX];
    int n_steps;
};

/* Buffers of one thread; {0} to start. */
struct normalize_scratch {
    struct bytes out[2];
    int32_t *codes;
    size_t capacity;
};
void normalize_scratch_fini(struct normalize_scratch *scratch);

/* Applies all steps to text [n_bytes], well-formed UTF-8. *ret_text is the text itself or lies in
 * scratch, valid until the next call. Errors: FERRY_ERR_NOMEM, FERRY_ERR_LIMIT. */
enum ferry_status normalize_run(const struct normalizer *normalizer,
                                struct normalize_scratch *scratch, struct regex_matcher *matcher,
                                const char *text, size_t n_bytes, const char **ret_text,
                                size_t *ret_size, struct ferry_error *err) FERRY_MUST_CHECK;

#endif
