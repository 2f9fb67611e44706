/* Any bytes as a tokenizer.json, and, behind the first byte 0, as a text for it: what is accepted
 * must encode and decode without harm, what is refused must say why in one line. */
#include "fuzz.h"

#include "base/alloc.h"
#include "base/assert.h"
#include "text/tokenizer.h"

#include <string.h>

enum { TEXT_MAX = 200 }; /* hostile patterns may take a million steps per match */

static void encode_and_decode(const struct tokenizer *tokenizer, const char *text, size_t n,
                              bool special)
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

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct tokenizer *tokenizer = NULL;
    struct ferry_error err = {0};
    const uint8_t *end = size == 0 ? NULL : memchr(data, 0, size);
    size_t n_json = end == NULL ? size : (size_t)(end - data);
    size_t n_text = end == NULL ? 0 : size - n_json - 1;
    const char *text = end == NULL ? "" : (const char *)end + 1;

    if (n_text > TEXT_MAX)
        n_text = TEXT_MAX;
    if (tokenizer_create_json(&tokenizer, (const char *)data, n_json, NULL, 0, &err) != FERRY_OK) {
        FERRY_ASSERT(err.msg[0] != 0 && strchr(err.msg, '\n') == NULL);
        return 0;
    }
    encode_and_decode(tokenizer, text, n_text, true);
    encode_and_decode(tokenizer, text, n_text, false);
    tokenizer_destroy(tokenizer);
    return 0;
}
