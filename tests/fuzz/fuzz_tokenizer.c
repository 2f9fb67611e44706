/* Any bytes as a tokenizer.json, and, behind the first byte 0, as a text for it: what is accepted
 * must encode and decode without harm, what is refused must say why in one line. */
#include "fuzz.h"

#include "base/assert.h"
#include "use_tokenizer.h"

#include <string.h>

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
    use_tokenizer(tokenizer, text, n_text, true);
    use_tokenizer(tokenizer, text, n_text, false);
    tokenizer_destroy(tokenizer);
    return 0;
}
