/* Decoders of tokenizer.json: token strings to text.
 *
 * Why here: the steps come from the file and see either single tokens or the joined text. It must
 * not know ids. */
#ifndef TEXT_DECODER_H
#define TEXT_DECODER_H

#include "ferry/status.h"
#include "text/regex.h"
#include "text/unicode.h"

enum decoder_kind {
    DECODER_BYTE_LEVEL,    /* byte alphabet to bytes; joins */
    DECODER_BYTE_FALLBACK, /* "<0xNN>" to its byte */
    DECODER_FUSE,          /* joins */
    DECODER_STRIP,         /* up to start and stop characters at the ends */
    DECODER_REPLACE,       /* every match of regex by content */
    DECODER_METASPACE,     /* visible character to a space; gone in the first token */
};

struct decoder_step {
    enum decoder_kind kind;
    struct regex *regex;
    const char *content;
    size_t content_size;
    int32_t code; /* STRIP: the character; METASPACE: the replacement */
    size_t start;
    size_t stop;
    bool drop_first; /* METASPACE: prepend_scheme is not "never" */
};

enum { DECODER_STEPS_MAX = 16 };

struct decoder {
    struct decoder_step steps[DECODER_STEPS_MAX];
    int n_steps; /* 0 with joins_by_space: the file has no decoder */
    bool join_by_space;
};

/* Strings laid end to end; {0} to start. */
struct decoder_list {
    struct bytes text;
    size_t *ends;
    size_t n;
    size_t capacity;
    size_t n_given; /* bytes of text when decoding began, and what Replace may make of them */
    size_t limit;
};

/* False when out of memory. */
bool decoder_list_append(struct decoder_list *list, const char *text, size_t n_bytes);
void decoder_list_fini(struct decoder_list *list);

/* Decodes the strings of list (used up) and leaves the text, possibly with ill-formed UTF-8, in
 * list->text. in_middle: as if other text stood before (no first token, no stripping of the joined
 * text): what one token gives while generating. Errors: FERRY_ERR_NOMEM, FERRY_ERR_LIMIT
 * (normalize_limit, for Replace). */
enum ferry_status decoder_run(const struct decoder *decoder, struct regex_matcher *matcher,
                              struct decoder_list *list, bool in_middle,
                              struct ferry_error *err) FERRY_MUST_CHECK;

#endif
