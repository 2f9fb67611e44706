/* Any bytes as a GGUF file: what is accepted must be readable in full, what is refused must say why
 * in one line. */
#include "fuzz.h"

#include "base/assert.h"
#include "make.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct arena arena;
    struct gguf_contents contents;
    struct ferry_error err = {0};

    arena_init(&arena, "fuzz");
    if (gguf_parse(&contents, &arena, data, size, "x.gguf", &err) == FERRY_OK) {
        (void)(walk_tensors(&contents.tensors) + walk_meta(&contents.meta));
    } else {
        FERRY_ASSERT(strstr(err.msg, "x.gguf") != NULL);
        FERRY_ASSERT(strchr(err.msg, '\n') == NULL);
    }
    arena_fini(&arena);
    return 0;
}
