/* See use_tokenizer.h. */
#include "use_tokenizer.h"

#include "base/alloc.h"
#include "base/assert.h"

#include <string.h>

void use_tokenizer(const struct tokenizer *tokenizer, const char *text, size_t n, bool special)
{
    struct token_ids ids = {0};
    struct ferry_error err = {0};
    char *decoded = NULL;
    size_t size = 0;

    if (tokenizer_encode(tokenizer, text, n, special, special, &ids, &err) == FERRY_OK) {
        for (size_t i = 0; i < ids.count; i++) {
            (void)tokenizer_piece(tokenizer, ids.ids[i], true, &size);
            (void)tokenizer_is_eog(tokenizer, ids.ids[i]);
        }
        if (tokenizer_decode(tokenizer, ids.ids, ids.count, false, &decoded, &size, &err) ==
            FERRY_OK)
            FERRY_ASSERT(decoded[size] == 0);
        mem_free(decoded);
    } else {
        FERRY_ASSERT(err.msg[0] != 0 && strchr(err.msg, '\n') == NULL);
        FERRY_ASSERT(ids.count == 0);
    }
    token_ids_fini(&ids);
}
