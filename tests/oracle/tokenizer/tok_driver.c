/* Encodes length-prefixed texts for tools/oracle_tokenizer/compare.py.
 *
 * Usage: tok_driver MODEL < requests > answers, where MODEL is a tokenizer.json or a GGUF file,
 * which may hold metadata only. A request is u32 flags (1: add special tokens, 2: parse special
 * tokens, 4: decode the ids as well, 8: decode without special tokens), u32 size, bytes; an answer
 * is u32 count, i32 ids, and with flag 4 u32 size and bytes. Little endian. */
#include "text/tokenizer.h"

#include "base/alloc.h"
#include "file/map.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A GGUF file through its checkpoint, which must outlive nothing: the tokenizer copies all. */
static enum ferry_status create(struct tokenizer **ret_tokenizer, const char *path,
                                struct ferry_error *err)
{
    struct checkpoint *checkpoint = NULL;
    struct map *map = NULL;
    size_t n = strlen(path);
    enum ferry_status st;

    if (n > 5 && strcmp(path + n - 5, ".gguf") == 0) {
        st = checkpoint_open(&checkpoint, path, err);
        if (st == FERRY_OK)
            st = tokenizer_create(ret_tokenizer, checkpoint, err);
    } else {
        st = map_open(&map, path, 0, err);
        if (st == FERRY_OK)
            st = tokenizer_create_json(ret_tokenizer, (const char *)map->data, map->size, NULL, 0,
                                       err);
    }
    map_close(map);
    checkpoint_close(checkpoint);
    return st;
}

static int answer(const struct tokenizer *tokenizer, const char *text, const uint32_t head[2])
{
    struct token_ids ids = {0};
    struct ferry_error err = {0};
    char *decoded = NULL;
    size_t size = 0;
    enum ferry_status st = tokenizer_encode(tokenizer, text, head[1], (head[0] & 1) != 0,
                                            (head[0] & 2) != 0, &ids, &err);

    if (st == FERRY_OK && (head[0] & 4) != 0)
        st = tokenizer_decode(tokenizer, ids.ids, ids.count, (head[0] & 8) != 0, &decoded, &size,
                              &err);
    if (st != FERRY_OK) {
        (void)fprintf(stderr, "tok_driver: %s\n", err.msg);
        token_ids_fini(&ids);
        return 1;
    }
    uint32_t count = (uint32_t)ids.count;
    uint32_t n_bytes = (uint32_t)size;
    (void)fwrite(&count, sizeof count, 1, stdout);
    if (count > 0)
        (void)fwrite(ids.ids, sizeof *ids.ids, count, stdout);
    if ((head[0] & 4) != 0) {
        (void)fwrite(&n_bytes, sizeof n_bytes, 1, stdout);
        (void)fwrite(decoded, 1, size, stdout);
    }
    mem_free(decoded);
    token_ids_fini(&ids);
    return 0;
}

int main(int argc, char **argv)
{
    struct tokenizer *tokenizer = NULL;
    struct ferry_error err = {0};
    uint32_t head[2];
    int rc = 0;

    if (argc != 2) {
        (void)fprintf(stderr, "usage: tok_driver MODEL < requests > answers\n");
        return 2;
    }
    if (create(&tokenizer, argv[1], &err) != FERRY_OK) {
        (void)fprintf(stderr, "tok_driver: %s\n", err.msg);
        return 2;
    }
    while (rc == 0 && fread(head, sizeof head, 1, stdin) == 1) {
        char *text = mem_alloc((size_t)head[1] + 1);
        if (text == NULL || fread(text, 1, head[1], stdin) != head[1])
            rc = 1;
        else
            rc = answer(tokenizer, text, head);
        mem_free(text);
    }
    tokenizer_destroy(tokenizer);
    return rc;
}
