/* Stretches of a text.
 *
 * Why here: the template interpreter says with them which bytes are its own, and the tokenizer
 * looks for control tokens only there. Neither must know the other. */
#ifndef TEXT_SPAN_H
#define TEXT_SPAN_H

#include <stddef.h>

/* Bytes [start, end) of a text. */
struct text_span {
    size_t start;
    size_t end;
};

#endif
