/* Names of shards. See shards.h. */
#include "file/shards.h"

#include "base/assert.h"
#include "base/error.h"
#include "base/limits.h"
#include "file/utf8.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NAME_SHOWN = 120, PATTERN_BYTES = 15 }; /* -NNNNN-of-MMMMM */

char *shards_dir_of(struct arena *arena, const char *path)
{
    const char *slash = strrchr(path, '/');

    if (slash == NULL)
        return arena_strndup(arena, ".", 1);
    if (slash == path)
        return arena_strndup(arena, "/", 1);
    return arena_strndup(arena, path, (size_t)(slash - path));
}

char *shards_join(struct arena *arena, const char *dir, const char *name)
{
    size_t n = strlen(dir) + strlen(name) + 2;
    char *path = arena_alloc(arena, n);

    if (path != NULL)
        (void)snprintf(path, n, "%s/%s", dir, name);
    return path;
}

static bool ends_with(const char *text, const char *end)
{
    size_t n = strlen(text);
    size_t m = strlen(end);
    return n >= m && strcmp(text + n - m, end) == 0;
}

static enum ferry_status check_name(const char *tensor, const json_t *value,
                                    struct ferry_error *err)
{
    const char *name = json_string_value(value);

    if (name == NULL)
        return FERRY_FAIL(err, FERRY_ERR_FORMAT,
                          "model.safetensors.index.json: file of tensor '%.*s' is no string",
                          NAME_SHOWN, tensor);
    if (name[0] == 0 || name[0] == '.' || strlen(name) > 255 || strchr(name, '/') != NULL ||
        strchr(name, '\\') != NULL || !utf8_is_name(name, strlen(name)) ||
        !ends_with(name, ".safetensors"))
        return FERRY_FAIL(
            err, FERRY_ERR_FORMAT,
            "model.safetensors.index.json: tensor '%.*s' is said to be in '%.*s': not "
            "a plain .safetensors name in this folder",
            NAME_SHOWN, tensor, NAME_SHOWN, name);
    return FERRY_OK;
}

static int by_text(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

enum ferry_status shards_from_index(struct shard_list *ret_list, struct arena *arena,
                                    const json_t *index, struct ferry_error *err)
{
    json_t *map = json_object_get(index, "weight_map");
    const char *key;
    json_t *value;
    size_t n = 0;
    size_t n_unique = 0;

    if (!json_is_object(map) || json_object_size(map) == 0)
        return FERRY_FAIL(err, FERRY_ERR_FORMAT,
                          "model.safetensors.index.json: weight_map is missing or empty");
    const char **names = arena_array(arena, json_object_size(map), sizeof *names);
    if (names == NULL)
        return FERRY_FAIL(err, FERRY_ERR_NOMEM, "model.safetensors.index.json: out of memory");
    json_object_foreach(map, key, value)
    {
        enum ferry_status st = check_name(key, value, err);
        if (st != FERRY_OK)
            return st;
        names[n++] = json_string_value(value);
    }
    qsort(names, n, sizeof *names, by_text);
    for (size_t i = 0; i < n; i++) {
        if (i > 0 && strcmp(names[i], names[n_unique - 1]) == 0)
            continue;
        if (n_unique == LIMIT_SHARDS)
            return FERRY_FAIL(err, FERRY_ERR_LIMIT,
                              "model.safetensors.index.json: names more than %d files",
                              (int)LIMIT_SHARDS);
        names[n_unique++] = names[i];
    }
    for (size_t i = 0; i < n_unique; i++) {
        names[i] = arena_strndup(arena, names[i], strlen(names[i]));
        if (names[i] == NULL)
            return FERRY_FAIL(err, FERRY_ERR_NOMEM, "model.safetensors.index.json: out of memory");
    }
    *ret_list = (struct shard_list){.names = names, .count = n_unique};
    return FERRY_OK;
}

static bool five_digits(const char *s, unsigned *ret)
{
    unsigned n = 0;

    for (int i = 0; i < 5; i++) {
        if (s[i] < '0' || s[i] > '9')
            return false;
        n = n * 10 + (unsigned)(s[i] - '0');
    }
    *ret = n;
    return true;
}

bool shards_split_name(const char *name, const char *suffix, unsigned *ret_no, unsigned *ret_count,
                       size_t *ret_stem)
{
    size_t n = strlen(name);
    size_t tail = PATTERN_BYTES + strlen(suffix);
    unsigned no = 0;
    unsigned count = 0;

    if (n < tail || !ends_with(name, suffix))
        return false;
    const char *s = name + n - tail;
    if (s[0] != '-' || !five_digits(s + 1, &no) || strncmp(s + 6, "-of-", 4) != 0 ||
        !five_digits(s + 10, &count))
        return false;
    if (no < 1 || no > count)
        return false;
    *ret_no = no;
    *ret_count = count;
    *ret_stem = n - tail;
    return true;
}

char *shards_gguf_path(struct arena *arena, const char *first, unsigned no)
{
    unsigned first_no = 0;
    unsigned count = 0;
    size_t stem = 0;
    size_t size = strlen(first) + 1;

    FERRY_ASSERT(shards_split_name(first, ".gguf", &first_no, &count, &stem));
    FERRY_ASSERT(no >= 1);
    FERRY_ASSERT(no <= count);
    char *path = arena_strndup(arena, first, size - 1);
    if (path != NULL)
        (void)snprintf(path + stem, size - stem, "-%05u-of-%05u.gguf", no, count);
    return path;
}
