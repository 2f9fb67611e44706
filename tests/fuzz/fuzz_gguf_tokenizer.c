/* Any bytes as a GGUF file with a tokenizer in its metadata; the text to encode is its key "text".
 * What is accepted must encode and decode without harm, what is refused must say why in one line.
 */
#include "fuzz.h"

#include "base/arena.h"
#include "base/assert.h"
#include "file/gguf_parse.h"
#include "text/from_gguf.h"
#include "use_tokenizer.h"

#include <string.h>

static void try_tokenizer(const struct gguf_meta *meta)
{
    struct tokenizer *tokenizer = NULL;
    struct ferry_error err = {0};
    struct gguf_string text = {"", 0};

    if (tokenizer_from_gguf(&tokenizer, meta, &err) != FERRY_OK) {
        FERRY_ASSERT(tokenizer == NULL);
        FERRY_ASSERT(err.msg[0] != 0 && strchr(err.msg, '\n') == NULL);
        return;
    }
    size_t n = tokenizer_n_vocab(tokenizer);
    FERRY_ASSERT(tokenizer_bos(tokenizer) < (int32_t)n && tokenizer_eos(tokenizer) < (int32_t)n);
    (void)tokenizer_chat_template(tokenizer);
    (void)gguf_get_string(meta, "text", &text, NULL);
    if (text.size > TEXT_MAX)
        text.size = TEXT_MAX;
    use_tokenizer(tokenizer, text.data, text.size, true);
    use_tokenizer(tokenizer, text.data, text.size, false);
    tokenizer_destroy(tokenizer);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct arena arena;
    struct gguf_contents contents;

    arena_init(&arena, "fuzz");
    if (gguf_parse(&contents, &arena, data, size, "x.gguf", NULL) == FERRY_OK)
        try_tokenizer(&contents.meta);
    arena_fini(&arena);
    return 0;
}
