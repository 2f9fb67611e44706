/* Finding a checkpoint's tokenizer: tokenizer.json and its neighbours, else GGUF metadata.
 *
 * Why here: file names and what overrides what. It must not know what is in a tokenizer. */
#include "text/from_gguf.h"

#include "base/error.h"
#include "base/limits.h"
#include "file/json.h"
#include "file/map.h"

#include <stdio.h>
#include <string.h>

enum { PATH_BYTES = 4096 };

/* Maps DIR/name; *ret_map stays NULL when there is no such file. */
static enum ferry_status map_optional(struct map **ret_map, const char *dir, const char *name,
                                      struct ferry_error *err)
{
    char path[PATH_BYTES];
    int n = snprintf(path, sizeof path, "%s/%s", dir, name);

    if (n < 0 || (size_t)n >= sizeof path)
        return FERRY_FAIL(err, FERRY_ERR_LIMIT, "tokenizer: path of %s is too long", name);
    enum ferry_status st = map_open(ret_map, path, LIMIT_JSON_FILE, err);
    return st == FERRY_ERR_NOT_FOUND ? FERRY_OK : st;
}

/* Ids that end generation: "eos_token_id" of one file, an integer or a list; none when it is absent
 * or null. Ids that the vocabulary does not have can never be drawn and are skipped. */
static enum ferry_status apply_eos(struct tokenizer *tokenizer, const json_t *object,
                                   const char *file, struct ferry_error *err)
{
    const json_t *value = json_object_get(object, "eos_token_id");
    int32_t n_vocab = (int32_t)tokenizer_n_vocab(tokenizer);

    for (size_t i = 0; i < (json_is_array(value) ? json_array_size(value) : 1); i++) {
        const json_t *id = json_is_array(value) ? json_array_get(value, i) : value;
        if (id != NULL && !json_is_null(id) && !json_is_integer(id))
            return FERRY_FAIL(err, FERRY_ERR_FORMAT,
                              "%s: eos_token_id is neither a token id nor a list of them", file);
        if (!json_is_integer(id) || json_integer_value(id) < 0 || json_integer_value(id) >= n_vocab)
            continue;
        tokenizer_add_eog(tokenizer, (int32_t)json_integer_value(id));
        if (tokenizer->eos < 0)
            tokenizer->eos = (int32_t)json_integer_value(id);
    }
    return FERRY_OK;
}

static enum ferry_status apply_generation_config(struct tokenizer *tokenizer, const char *dir,
                                                 struct ferry_error *err)
{
    struct map *map = NULL;
    json_t *root = NULL;
    enum ferry_status st = map_optional(&map, dir, "generation_config.json", err);

    if (st == FERRY_OK && map != NULL)
        st = json_parse(&root, map->data, map->size, LIMIT_HEADER_VALUES, map->name, err);
    if (st == FERRY_OK && root != NULL)
        st = apply_eos(tokenizer, root, map->name, err);
    json_decref(root);
    map_close(map);
    return st;
}

/* chat_template.jinja, where newer exports put it; wins over tokenizer_config.json. */
static enum ferry_status apply_template_file(struct tokenizer *tokenizer, const char *dir,
                                             struct ferry_error *err)
{
    struct map *map = NULL;
    enum ferry_status st = map_optional(&map, dir, "chat_template.jinja", err);

    if (st == FERRY_OK && map != NULL) {
        tokenizer->chat_template =
            arena_strndup(&tokenizer->arena, (const char *)map->data, map->size);
        if (tokenizer->chat_template == NULL)
            st = FERRY_FAIL(err, FERRY_ERR_NOMEM, "tokenizer: no memory for the chat template");
    }
    map_close(map);
    return st;
}

static enum ferry_status create_from_folder(struct tokenizer **ret_tokenizer, const struct map *map,
                                            const struct checkpoint *checkpoint,
                                            struct ferry_error *err)
{
    const char *dir = checkpoint_dir(checkpoint);
    struct tokenizer *tokenizer = NULL;
    struct map *config = NULL;
    enum ferry_status st = map_optional(&config, dir, "tokenizer_config.json", err);

    if (st == FERRY_OK)
        st = tokenizer_create_json(&tokenizer, (const char *)map->data, map->size,
                                   config == NULL ? NULL : (const char *)config->data,
                                   config == NULL ? 0 : config->size, err);
    if (st == FERRY_OK)
        st = apply_eos(tokenizer, checkpoint_config(checkpoint), "config.json", err);
    if (st == FERRY_OK)
        st = apply_generation_config(tokenizer, dir, err);
    if (st == FERRY_OK)
        st = apply_template_file(tokenizer, dir, err);
    if (st == FERRY_OK) {
        *ret_tokenizer = tokenizer;
        tokenizer = NULL;
    }
    tokenizer_destroy(tokenizer);
    map_close(config);
    return st;
}

enum ferry_status tokenizer_create(struct tokenizer **ret_tokenizer,
                                   const struct checkpoint *checkpoint, struct ferry_error *err)
{
    const struct gguf_meta *meta = checkpoint_meta(checkpoint);
    struct map *map = NULL;

    /* A GGUF file carries its own; whatever lies beside it may belong to another model. */
    if (meta != NULL && gguf_has(meta, "tokenizer.ggml.model"))
        return tokenizer_from_gguf(ret_tokenizer, meta, err);
    enum ferry_status st = map_optional(&map, checkpoint_dir(checkpoint), "tokenizer.json", err);
    if (st == FERRY_OK && map != NULL)
        st = create_from_folder(ret_tokenizer, map, checkpoint, err);
    else if (st == FERRY_OK)
        st = FERRY_FAIL(err, FERRY_ERR_NOT_FOUND,
                        "tokenizer: no tokenizer.json in %.200s; it belongs beside the weights",
                        checkpoint_dir(checkpoint));
    map_close(map);
    return st;
}
