/* Splitting patterns of tokenizer files, run by PCRE2 but meaning what they mean to the reference.
 *
 * Why here: the files are written for Oniguruma (Ruby syntax); only the part of it that both
 * engines read alike, or that can be rewritten, is accepted. It must not know pre-tokenizers. */
#ifndef TEXT_REGEX_H
#define TEXT_REGEX_H

#include "ferry/status.h"

#include "text/unicode.h"

#include <stdbool.h>
#include <stddef.h>

struct regex;
struct regex_matcher;

/* Compiles pattern [n_bytes] (UTF-8, Oniguruma syntax). Errors: FERRY_ERR_FORMAT,
 * FERRY_ERR_UNSUPPORTED (names the construct), FERRY_ERR_LIMIT, FERRY_ERR_NOMEM. The result is
 * const and may be used from any thread. */
enum ferry_status regex_create(struct regex **ret_regex, const char *pattern, size_t n_bytes,
                               struct ferry_error *err) FERRY_MUST_CHECK;

/* The same for a plain string, which must not be empty. */
enum ferry_status regex_create_literal(struct regex **ret_regex, const char *text, size_t n_bytes,
                                       struct ferry_error *err) FERRY_MUST_CHECK;
void regex_destroy(struct regex *regex);

/* Whether the pattern runs as machine code (else by PCRE2's interpreter). */
bool regex_is_jitted(const struct regex *regex);

/* What one thread needs for matching, for any number of patterns. */
enum ferry_status regex_matcher_create(struct regex_matcher **ret_matcher,
                                       struct ferry_error *err) FERRY_MUST_CHECK;
void regex_matcher_destroy(struct regex_matcher *matcher);

/* Iteration over one subject; {0} to start. regex_next frees what it holds when it returns anything
 * but FERRY_OK; who stops earlier calls regex_cursor_fini. */
struct regex_cursor {
    size_t next;      /* where the search goes on */
    size_t last_end;  /* end of the last match */
    bool has_matched; /* last_end counts */
    bool has_begun;
    uint32_t steps;         /* what one search may cost: by the size of this subject */
    struct bytes stand_ins; /* the subject with stand-ins, when it has characters that need one */
};
void regex_cursor_fini(struct regex_cursor *cursor);

/* Next match in subject [n_bytes], which must be well-formed UTF-8 and the same at every call of
 * one iteration. Empty matches directly behind a match are skipped, as the reference does.
 * FERRY_OK and the byte range, FERRY_EOF when there is no more, FERRY_ERR_LIMIT (of
 * each search anew: the backtracking limit follows the subject's size, the memory limit is fixed),
 * FERRY_ERR_NOMEM. Iterations over other subjects may share the matcher and take turns. */
enum ferry_status regex_next(const struct regex *regex, struct regex_matcher *matcher,
                             const char *subject, size_t n_bytes, struct regex_cursor *cursor,
                             size_t *ret_start, size_t *ret_end,
                             struct ferry_error *err) FERRY_MUST_CHECK;

#endif
