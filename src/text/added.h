/* Added tokens: strings that are cut out of the text before anything else happens to it.
 *
 * Why here: control tokens are what a prompt injection aims at, so the rule of what is recognised
 * stands in one place. It must not know merges. */
#ifndef TEXT_ADDED_H
#define TEXT_ADDED_H

#include "base/arena.h"
#include "ferry/status.h"
#include "text/span.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct added_token {
    const char *text; /* as in the file; borrowed */
    size_t size;
    int32_t id;
    bool special;
    bool normalized; /* looked for in the normalised text */
    bool lstrip;     /* takes the white space before it */
    bool rstrip;
    bool single_word; /* not inside of a word */
};

struct added_pattern {
    const char *text;
    size_t size;
    const struct added_token *token;
};

/* Patterns to look for at once, leftmost first and then longest. */
struct added_set {
    struct added_pattern *patterns; /* [n] sorted by text, no two alike */
    size_t n;
    uint32_t first[257]; /* patterns that begin with byte b: first[b] .. first[b + 1] - 1 */
};

/* Sorts patterns [n] (kept; none empty) in place; of equal texts the one given first stays. False
 * when out of memory. */
bool added_set_init(struct added_set *set, struct arena *arena, struct added_pattern *patterns,
                    size_t n);

/* A stretch of text: a token, or ordinary text when token is NULL. */
struct added_piece {
    const struct added_token *token;
    size_t start;
    size_t end;
};

/* The bytes of a text in which special tokens may be recognised. */
struct added_trust {
    const struct text_span *spans; /* [n] ascending, disjoint, not touching */
    size_t n;
    size_t offset; /* byte 0 of the text is byte `offset` for the spans */
};

/* Iteration state; {0} to start, or with trust set. */
struct added_cursor {
    const struct added_trust *trust; /* NULL: parse_special decides alone; borrowed */
    size_t search;                   /* where the next search begins */
    size_t done;                     /* everything before has been given out */
    struct added_piece queued;       /* a token found behind the text that was given out first */
};

/* Next stretch of text [n_bytes]; false at the end. Without parse_special special tokens stay
 * ordinary text; with it and cursor->trust they are recognised only where all their bytes are
 * trusted, and a longer match that reaches into other bytes does not hide one that does not. Time:
 * bytes times the longest pattern at worst, bytes in practice. */
bool added_next(const struct added_set *set, const char *text, size_t n_bytes, bool parse_special,
                struct added_cursor *cursor, struct added_piece *ret_piece);

#endif
