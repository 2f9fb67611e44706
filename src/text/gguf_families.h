/* The pre-tokenizer families that GGUF files name by tokenizer.ggml.pre.
 *
 * Why here: the file holds a name only; what it stands for is this table. Nobody outside `text`
 * includes this. */
#ifndef TEXT_GGUF_FAMILIES_H
#define TEXT_GGUF_FAMILIES_H

#include <stdbool.h>
#include <stddef.h>

enum { GGUF_PATTERNS_MAX = 6 };

struct gguf_family {
    const char *name;
    const char *patterns[GGUF_PATTERNS_MAX]; /* each isolates within the pieces of the one before */
    bool nfc;
    bool ignore_merges;
    bool adds_bos; /* unless the file says otherwise */
};

/* NULL when the name is not known. */
const struct gguf_family *gguf_family_find(const char *name, size_t n_bytes);

/* All names, separated by commas, for messages; cut when they do not fit. */
void gguf_family_list(char *text, size_t size);

#endif
