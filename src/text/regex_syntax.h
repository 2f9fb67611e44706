/* From Oniguruma's Ruby syntax to PCRE2's.
 *
 * Why apart from regex.c: the list of what both engines read alike is the contract with the
 * reference and is tested alone. It must not know PCRE2's functions. */
#ifndef TEXT_REGEX_SYNTAX_H
#define TEXT_REGEX_SYNTAX_H

#include "ferry/status.h"
#include "text/unicode.h"

/* Appends to *ret the PCRE2 pattern (UTF, UCP) that means what pattern [n_bytes] means to
 * Oniguruma. What is read differently and cannot be rewritten is FERRY_ERR_UNSUPPORTED and named;
 * malformed UTF-8 is FERRY_ERR_FORMAT; FERRY_ERR_NOMEM. */
enum ferry_status regex_translate(struct bytes *ret, const char *pattern, size_t n_bytes,
                                  struct ferry_error *err) FERRY_MUST_CHECK;

/* Appends text [n_bytes] so quoted that PCRE2 matches it literally; false when out of memory. */
bool regex_quote(struct bytes *ret, const char *text, size_t n_bytes);

#endif
