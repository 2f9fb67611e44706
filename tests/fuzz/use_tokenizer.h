/* What both tokenizer fuzzers do with a tokenizer that was accepted. */
#ifndef TESTS_USE_TOKENIZER_H
#define TESTS_USE_TOKENIZER_H

#include "text/tokenizer.h"

#include <stddef.h>

enum { TEXT_MAX = 200 }; /* bytes; hostile patterns may take a million steps per match */

/* Encodes the text (special: with all that stands around it), asks everything about the ids,
 * decodes them: no harm may come of it, and a refusal must say why in one line. */
void use_tokenizer(const struct tokenizer *tokenizer, const char *text, size_t n, bool special);

#endif
