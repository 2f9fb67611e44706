/* Any bytes as a safetensors file: what is accepted must tile the file and be readable in full,
 * what is refused must say why in one line. */
#include "fuzz.h"

#include "base/assert.h"
#include "file/safetensors.h"
#include "make.h"

#include <stdlib.h>
#include <string.h>

static void parse(const uint8_t *data, size_t size)
{
    struct arena arena;
    struct tensor_list list;
    struct ferry_error err = {0};

    arena_init(&arena, "fuzz");
    if (safetensors_parse(&list, &arena, data, size, "x.safetensors", &err) == FERRY_OK) {
        uint64_t end = list.count > 0 ? list.items[0].offset : size;
        for (size_t i = 0; i < list.count; i++) {
            FERRY_ASSERT(list.items[i].offset == end);
            end += list.items[i].size_bytes;
        }
        FERRY_ASSERT(end == size);
        (void)walk_tensors(&list);
    } else {
        FERRY_ASSERT(strstr(err.msg, "x.safetensors") != NULL);
        FERRY_ASSERT(strchr(err.msg, '\n') == NULL);
    }
    arena_fini(&arena);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    size_t end = size;

    parse(data, size);
    /* Mutations rarely keep the length field right: once more with the header ending at the last
     * brace. */
    while (end > 8 && data[end - 1] != '}')
        end--;
    if (end <= 8)
        return 0;
    uint8_t *copy = exact_copy(data, size);
    for (size_t i = 0; i < 8; i++)
        copy[i] = (uint8_t)((end - 8) >> (8 * i));
    parse(copy, size);
    free(copy);
    return 0;
}
