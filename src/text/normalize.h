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
 * scratch, valid until the next call. No step may make the text longer than normalize_limit.
 * Errors: FERRY_ERR_NOMEM, FERRY_ERR_LIMIT. */
enum ferry_status normalize_run(const struct normalizer *normalizer,
                                struct normalize_scratch *scratch, struct regex_matcher *matcher,
                                const char *text, size_t n_bytes, const char **ret_text,
                                size_t *ret_size, struct ferry_error *err) FERRY_MUST_CHECK;

/* Bytes that a file's steps may make of a text of n_bytes: LIMIT_TEXT_GROWTH times as many (of
 * short texts: of LIMIT_TEXT_FLOOR), LIMIT_TEXT at most. Without it 16 steps that each double the
 * text make 64 kB of one byte. For the steps of decoders, too. */
size_t normalize_limit(size_t n_bytes);

/* FERRY_ERR_LIMIT with a message that names the part of the tokenizer that went over. */
enum ferry_status normalize_over(size_t n_bytes, const char *part,
                                 struct ferry_error *err) FERRY_MUST_CHECK;

#endif
