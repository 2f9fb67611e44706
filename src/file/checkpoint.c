/* The joined view of a checkpoint's files. See checkpoint.h. */
#include "file/checkpoint.h"

#include "base/alloc.h"
#include "base/arena.h"
#include "base/assert.h"
#include "base/error.h"
#include "base/limits.h"
#include "base/size.h"
#include "file/gguf_parse.h"
#include "file/hash.h"
#include "file/json.h"
#include "file/map.h"
#include "file/safetensors.h"
#include "file/shards.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { NAME_SHOWN = 120 };

typedef unsigned long long ull;

static const char INDEX_NAME[] = "model.safetensors.index.json";
static const char SINGLE_NAME[] = "model.safetensors";

struct checkpoint {
    enum checkpoint_format format;
    struct arena arena; /* everything below except maps and config */
    const char *dir;
    json_t *config;        /* safetensors */
    struct gguf_meta meta; /* GGUF, of the first shard */
    struct map **maps;
    struct tensor_list *parts; /* tensors of each map */
    size_t n_maps;
    struct checkpoint_tensor *tensors; /* in name order */
    size_t n_tensors;
    uint64_t tensor_bytes;
    size_t n_stale;
    char hash[65];
};

static enum ferry_status no_memory(const char *path, struct ferry_error *err)
{
    return FERRY_FAIL(err, FERRY_ERR_NOMEM, "%s: out of memory while opening", path);
}

static enum ferry_status reserve_maps(struct checkpoint *c, size_t n, const char *path,
                                      struct ferry_error *err)
{
    c->maps = arena_array(&c->arena, n, sizeof(struct map *));
    c->parts = arena_array(&c->arena, n, sizeof *c->parts);
    if (c->maps == NULL || c->parts == NULL)
        return no_memory(path, err);
    return FERRY_OK;
}

/* safetensors */

static enum ferry_status add_safetensors(struct checkpoint *c, const char *name,
                                         struct ferry_error *err)
{
    struct map *map = NULL;

    const char *path = shards_join(&c->arena, c->dir, name);
    if (path == NULL)
        return no_memory(name, err);
    enum ferry_status st = map_open(&map, path, 0, err);
    if (st != FERRY_OK)
        return st;
    c->maps[c->n_maps] = map;
    struct tensor_list *part = &c->parts[c->n_maps++];
    return safetensors_parse(part, &c->arena, map->data, map->size, map->name, err);
}

static bool exists(const char *path)
{
    struct stat info;
    return stat(path, &info) == 0;
}

/* Nothing to open in the folder: say what was looked for, and what to do. */
static enum ferry_status no_weights(const struct checkpoint *c, const char *single,
                                    struct ferry_error *err)
{
    return FERRY_FAIL(err, FERRY_ERR_NOT_FOUND,
                      "%s: neither model.safetensors nor model.safetensors.index.json is there; "
                      "PyTorch .bin weights need converting to safetensors, a .gguf file is given "
                      "by its own path",
                      c->dir[0] != 0 ? c->dir : single);
}

static enum ferry_status open_sharded(struct checkpoint *c, const char *index_path,
                                      json_t **ret_index, struct ferry_error *err)
{
    struct shard_list list = {0};

    enum ferry_status st = json_load_object(ret_index, index_path, err);
    if (st == FERRY_OK)
        st = shards_from_index(&list, &c->arena, *ret_index, err);
    if (st == FERRY_OK)
        st = reserve_maps(c, list.count, index_path, err);
    for (size_t i = 0; i < list.count && st == FERRY_OK; i++) {
        st = add_safetensors(c, list.names[i], err);
        if (st == FERRY_ERR_NOT_FOUND)
            error_prefix(
                err, "model.safetensors.index.json names %zu files, one is missing: ", list.count);
    }
    return st;
}

/* One of several shards alone would look like a model with missing tensors. */
static enum ferry_status refuse_lone_shard(const char *name, struct ferry_error *err)
{
    unsigned no = 0;
    unsigned count = 0;
    size_t stem = 0;

    if (!shards_split_name(name, ".safetensors", &no, &count, &stem) || count < 2)
        return FERRY_OK;
    return FERRY_FAIL(err, FERRY_ERR_ARG, "%s: is file %u of %u; give the folder instead", name, no,
                      count);
}

/* name: of one file, or NULL to look in the folder. */
static enum ferry_status open_safetensors(struct checkpoint *c, const char *name,
                                          json_t **ret_index, struct ferry_error *err)
{
    enum ferry_status st;
    const char *config_path = shards_join(&c->arena, c->dir, "config.json");
    const char *single_path = shards_join(&c->arena, c->dir, SINGLE_NAME);
    const char *index_path = shards_join(&c->arena, c->dir, INDEX_NAME);

    c->format = CHECKPOINT_FORMAT_SAFETENSORS;
    if (config_path == NULL || single_path == NULL || index_path == NULL)
        return no_memory(c->dir, err);
    st = json_load_object(&c->config, config_path, err);
    if (st == FERRY_ERR_NOT_FOUND)
        return FERRY_FAIL(err, FERRY_ERR_NOT_FOUND,
                          "%s: no such file; a safetensors model needs its config.json beside it "
                          "(a .gguf file is given by its own path)",
                          config_path);
    if (st != FERRY_OK)
        return st;
    if (name == NULL && exists(single_path)) /* the order that transformers has */
        name = SINGLE_NAME;
    if (name == NULL && exists(index_path))
        return open_sharded(c, index_path, ret_index, err);
    if (name == NULL)
        return no_weights(c, single_path, err);
    st = refuse_lone_shard(name, err);
    if (st == FERRY_OK)
        st = reserve_maps(c, 1, name, err);
    if (st == FERRY_OK)
        st = add_safetensors(c, name, err);
    return st;
}

/* GGUF */

/* Reads split.* of one shard; count 1 when absent. */
static enum ferry_status read_split(const struct gguf_meta *meta, const char *file,
                                    uint64_t *ret_no, uint64_t *ret_count, struct ferry_error *err)
{
    bool bad = false;

    *ret_no = 0;
    *ret_count = 1;
    (void)gguf_get_u64(meta, "split.no", ret_no, &bad);
    (void)gguf_get_u64(meta, "split.count", ret_count, &bad);
    if (bad || *ret_count == 0 || *ret_no >= *ret_count)
        return FERRY_FAIL(err, FERRY_ERR_FORMAT,
                          "%s: split.no %llu and split.count %llu do not fit together (or have a "
                          "wrong type)",
                          file, (ull)*ret_no, (ull)*ret_count);
    if (*ret_count > LIMIT_SHARDS)
        return FERRY_FAIL(err, FERRY_ERR_LIMIT, "%s: split.count is %llu, the limit is %d", file,
                          (ull)*ret_count, (int)LIMIT_SHARDS);
    return FERRY_OK;
}

/* Takes over the map; shard `index` of `count` (0: the first, not known yet). */
static enum ferry_status add_gguf(struct checkpoint *c, struct map *map, struct gguf_meta *ret_meta,
                                  struct ferry_error *err)
{
    struct gguf_contents contents = {0};

    size_t i = c->n_maps++;
    c->maps[i] = map;
    enum ferry_status st = gguf_parse(&contents, &c->arena, map->data, map->size, map->name, err);
    if (st != FERRY_OK)
        return st;
    c->parts[i] = contents.tensors;
    *ret_meta = contents.meta;
    return FERRY_OK;
}

static enum ferry_status check_first(const struct map *map, uint64_t no, uint64_t count,
                                     struct ferry_error *err)
{
    unsigned name_no = 0;
    unsigned name_count = 0;
    size_t stem = 0;

    if (no != 0)
        return FERRY_FAIL(err, FERRY_ERR_ARG,
                          "%s: is shard %llu of %llu; give the first one (-00001-of-%05llu.gguf)",
                          map->name, (ull)no + 1, (ull)count, (ull)count);
    if (count > 1 && (!shards_split_name(map->name, ".gguf", &name_no, &name_count, &stem) ||
                      name_no != 1 || name_count != count))
        return FERRY_FAIL(err, FERRY_ERR_FORMAT,
                          "%s: is the first of %llu shards, so its name must end in "
                          "-00001-of-%05llu.gguf for the others to be found",
                          map->name, (ull)count, (ull)count);
    return FERRY_OK;
}

static enum ferry_status add_gguf_shard(struct checkpoint *c, const char *first, uint64_t index,
                                        uint64_t count, struct ferry_error *err)
{
    struct map *map = NULL;
    struct gguf_meta meta = {0};
    uint64_t no = 0;
    uint64_t n = 0;

    const char *path = shards_gguf_path(&c->arena, first, (unsigned)index + 1);
    if (path == NULL)
        return no_memory(first, err);
    enum ferry_status st = map_open(&map, path, 0, err);
    if (st == FERRY_OK)
        st = add_gguf(c, map, &meta, err);
    if (st == FERRY_OK)
        st = read_split(&meta, c->maps[c->n_maps - 1]->name, &no, &n, err);
    if (st == FERRY_OK && (no != index || n != count))
        st = FERRY_FAIL(
            err, FERRY_ERR_FORMAT, "%s: says it is shard %llu of %llu, its name says %llu of %llu",
            c->maps[c->n_maps - 1]->name, (ull)no + 1, (ull)n, (ull)index + 1, (ull)count);
    return st;
}

static enum ferry_status check_split_total(const struct checkpoint *c, uint64_t count,
                                           struct ferry_error *err)
{
    uint64_t want = 0;
    uint64_t have = 0;
    bool bad = false;

    for (size_t i = 0; i < c->n_maps; i++)
        have += c->parts[i].count;
    bool found = gguf_get_u64(&c->meta, "split.tensors.count", &want, &bad);
    if (bad || (!found && count > 1))
        return FERRY_FAIL(
            err, FERRY_ERR_FORMAT,
            "%s: split.tensors.count is missing or no count, though the file is split",
            c->maps[0]->name);
    if (found && want != have)
        return FERRY_FAIL(err, FERRY_ERR_FORMAT,
                          "%s: split.tensors.count is %llu, the %zu shards hold %llu tensors",
                          c->maps[0]->name, (ull)want, c->n_maps, (ull)have);
    return FERRY_OK;
}

/* Takes over the map of the first shard. */
static enum ferry_status open_gguf(struct checkpoint *c, struct map *map, struct ferry_error *err)
{
    struct tensor_list *part;
    struct map **old_maps;
    uint64_t no = 0;
    uint64_t count = 1;

    c->format = CHECKPOINT_FORMAT_GGUF;
    enum ferry_status st = reserve_maps(c, 1, map->path, err);
    if (st != FERRY_OK) {
        map_close(map);
        return st;
    }
    st = add_gguf(c, map, &c->meta, err);
    if (st == FERRY_OK)
        st = read_split(&c->meta, map->name, &no, &count, err);
    if (st == FERRY_OK)
        st = check_first(map, no, count, err);
    if (st == FERRY_OK && count > 1) {
        old_maps = c->maps;
        part = c->parts;
        c->n_maps = 0;
        st = reserve_maps(c, (size_t)count, map->path, err);
        if (st != FERRY_OK) {
            c->maps = old_maps;
            c->n_maps = 1;
            return st;
        }
        c->maps[0] = old_maps[0];
        c->parts[0] = part[0];
        c->n_maps = 1;
    }
    for (uint64_t i = 1; i < count && st == FERRY_OK; i++)
        st = add_gguf_shard(c, map->path, i, count, err);
    if (st == FERRY_OK)
        st = check_split_total(c, count, err);
    return st;
}

/* Joining */

static int by_name(const void *a, const void *b)
{
    return strcmp(((const struct checkpoint_tensor *)a)->name,
                  ((const struct checkpoint_tensor *)b)->name);
}

static enum ferry_status join_parts(struct checkpoint *c, struct ferry_error *err)
{
    size_t n = 0;

    for (size_t i = 0; i < c->n_maps; i++)
        n += c->parts[i].count;
    if (n > LIMIT_TENSORS)
        return FERRY_FAIL(err, FERRY_ERR_LIMIT, "%s: %zu tensors in %zu files, the limit is %d",
                          c->dir, n, c->n_maps, (int)LIMIT_TENSORS);
    c->tensors = arena_array(&c->arena, n, sizeof *c->tensors);
    if (c->tensors == NULL)
        return no_memory(c->dir, err);
    for (size_t i = 0; i < c->n_maps; i++) {
        for (size_t k = 0; k < c->parts[i].count; k++) {
            c->tensors[c->n_tensors++] = c->parts[i].items[k];
            c->tensor_bytes += c->parts[i].items[k].size_bytes; /* within the files: no overflow */
        }
    }
    if (n > 1)
        qsort(c->tensors, n, sizeof *c->tensors, by_name);
    for (size_t i = 1; i < n; i++) {
        const struct checkpoint_tensor *a = &c->tensors[i - 1];
        const struct checkpoint_tensor *b = &c->tensors[i];
        if (strcmp(a->name, b->name) == 0)
            return FERRY_FAIL(err, FERRY_ERR_FORMAT,
                              "tensor '%.*s' is in two files: %.*s at offset %llu and %.*s at "
                              "offset %llu; remove the file that does not belong here",
                              NAME_SHOWN, a->name, NAME_SHOWN, a->file, (ull)a->offset, NAME_SHOWN,
                              b->file, (ull)b->offset);
    }
    return FERRY_OK;
}

/* Entries of the index that the headers contradict. They cost nothing but trust. */
static void count_stale(struct checkpoint *c, json_t *index)
{
    const char *key;
    json_t *value;

    json_object_foreach(json_object_get(index, "weight_map"), key, value)
    {
        const struct checkpoint_tensor *t = checkpoint_find(c, key);
        if (t == NULL || strcmp(t->file, json_string_value(value)) != 0)
            c->n_stale++;
    }
}

static enum ferry_status compute_hash(struct checkpoint *c, struct ferry_error *err)
{
    struct hash *hash = hash_create();
    bool ok = hash != NULL;

    if (ok) {
        hash_text(hash, "ferry checkpoint 1");
        hash_text(hash, c->format == CHECKPOINT_FORMAT_GGUF ? "gguf" : "safetensors");
        hash_u64(hash, c->n_tensors);
        for (size_t i = 0; i < c->n_tensors; i++) {
            const struct checkpoint_tensor *t = &c->tensors[i];
            hash_text(hash, t->name);
            hash_text(hash, dtype_name(t->dtype));
            hash_u64(hash, (uint64_t)t->n_dims);
            for (int k = 0; k < t->n_dims; k++)
                hash_u64(hash, t->dims[k]);
        }
        if (c->format == CHECKPOINT_FORMAT_SAFETENSORS)
            hash_json(hash, c->config);
        for (size_t i = 0; i < c->meta.count; i++) {
            const struct gguf_value *value = c->meta.by_name[i];
            if (strncmp(value->key, "split.", 6) == 0)
                continue;
            hash_text(hash, value->key);
            hash_u64(hash, (uint64_t)value->type);
            hash_bytes(hash, value->raw, value->raw_bytes);
        }
        ok = hash_finish(hash, c->hash);
    }
    hash_destroy(hash);
    return ok ? FERRY_OK : no_memory(c->dir, err);
}

/* A file: which format its first bytes and its name tell. */
static enum ferry_status open_file(struct checkpoint *c, const char *path, json_t **ret_index,
                                   struct ferry_error *err)
{
    struct map *map = NULL;

    enum ferry_status st = map_open(&map, path, 0, err);
    if (st != FERRY_OK)
        return st;
    size_t n = strlen(map->name);
    bool named_gguf = n > 5 && strcmp(map->name + n - 5, ".gguf") == 0;
    bool named_safetensors = n > 12 && strcmp(map->name + n - 12, ".safetensors") == 0;
    if (named_gguf || (map->size >= 4 && memcmp(map->data, "GGUF", 4) == 0))
        return open_gguf(c, map, err);
    if (named_safetensors)
        st = open_safetensors(c, map->name, ret_index, err);
    else
        st = FERRY_FAIL(err, FERRY_ERR_FORMAT,
                        "%s: is neither a GGUF nor a .safetensors file; give one of them, or a "
                        "folder with config.json and safetensors",
                        path);
    map_close(map);
    return st;
}

enum ferry_status checkpoint_open(struct checkpoint **ret_checkpoint, const char *path,
                                  struct ferry_error *err)
{
    struct stat info;
    json_t *index = NULL;
    enum ferry_status st;

    struct checkpoint *c = mem_zero(sizeof *c);
    if (c == NULL)
        return no_memory(path, err);
    arena_init(&c->arena, "checkpoint");
    bool is_dir = stat(path, &info) == 0 && S_ISDIR(info.st_mode);
    c->dir = is_dir ? arena_strndup(&c->arena, path, strlen(path)) : shards_dir_of(&c->arena, path);
    if (c->dir == NULL) {
        st = no_memory(path, err);
        goto out;
    }
    st = is_dir ? open_safetensors(c, NULL, &index, err) : open_file(c, path, &index, err);
    if (st == FERRY_OK)
        st = join_parts(c, err);
    if (st == FERRY_OK)
        st = compute_hash(c, err);
    if (st != FERRY_OK)
        goto out;
    if (index != NULL)
        count_stale(c, index);
    *ret_checkpoint = c;
    c = NULL;
out:
    json_decref(index);
    checkpoint_close(c);
    return st;
}

void checkpoint_close(struct checkpoint *checkpoint)
{
    if (checkpoint == NULL)
        return;
    for (size_t i = 0; i < checkpoint->n_maps; i++)
        map_close(checkpoint->maps[i]);
    json_decref(checkpoint->config);
    arena_fini(&checkpoint->arena);
    mem_free(checkpoint);
}

enum checkpoint_format checkpoint_format(const struct checkpoint *checkpoint)
{
    return checkpoint->format;
}

const char *checkpoint_dir(const struct checkpoint *checkpoint)
{
    return checkpoint->dir;
}

const char *checkpoint_first_file(const struct checkpoint *checkpoint)
{
    return checkpoint->maps[0]->path;
}

const json_t *checkpoint_config(const struct checkpoint *checkpoint)
{
    return checkpoint->config;
}

const struct gguf_meta *checkpoint_meta(const struct checkpoint *checkpoint)
{
    return checkpoint->format == CHECKPOINT_FORMAT_GGUF ? &checkpoint->meta : NULL;
}

size_t checkpoint_n_tensors(const struct checkpoint *checkpoint)
{
    return checkpoint->n_tensors;
}

const struct checkpoint_tensor *checkpoint_tensor(const struct checkpoint *checkpoint, size_t index)
{
    FERRY_ASSERT(index < checkpoint->n_tensors);
    return &checkpoint->tensors[index];
}

static struct checkpoint_tensor *find(const struct checkpoint *c, const char *name)
{
    const struct checkpoint_tensor key = {.name = name};

    if (c->n_tensors == 0)
        return NULL;
    return bsearch(&key, c->tensors, c->n_tensors, sizeof key, by_name);
}

const struct checkpoint_tensor *checkpoint_find(const struct checkpoint *checkpoint,
                                                const char *name)
{
    return find(checkpoint, name);
}

const struct checkpoint_tensor *checkpoint_take(struct checkpoint *checkpoint, const char *name)
{
    struct checkpoint_tensor *t = find(checkpoint, name);

    if (t == NULL)
        return NULL;
    FERRY_ASSERT(!t->taken);
    t->taken = true;
    return t;
}

size_t checkpoint_n_files(const struct checkpoint *checkpoint)
{
    return checkpoint->n_maps;
}

size_t checkpoint_n_stale(const struct checkpoint *checkpoint)
{
    return checkpoint->n_stale;
}

bool checkpoint_reads(const struct checkpoint *c, uint64_t device, uint64_t inode)
{
    struct stat info;

    for (size_t i = 0; i < c->n_maps; i++) {
        if (fstat(c->maps[i]->fd, &info) == 0 && info.st_dev == device && info.st_ino == inode)
            return true;
    }
    return false;
}

uint64_t checkpoint_tensor_bytes(const struct checkpoint *checkpoint)
{
    return checkpoint->tensor_bytes;
}

enum ferry_status checkpoint_recheck(const struct checkpoint *checkpoint, struct ferry_error *err)
{
    for (size_t i = 0; i < checkpoint->n_maps; i++) {
        enum ferry_status st = map_recheck(checkpoint->maps[i], err);
        if (st != FERRY_OK)
            return st;
    }
    return FERRY_OK;
}

void checkpoint_forget_pages(const struct checkpoint *checkpoint)
{
    for (size_t i = 0; i < checkpoint->n_maps; i++)
        map_forget(checkpoint->maps[i], checkpoint->maps[i]->data, checkpoint->maps[i]->size);
}

void checkpoint_header_hash(const struct checkpoint *checkpoint, char ret_hex[65])
{
    memcpy(ret_hex, checkpoint->hash, sizeof checkpoint->hash);
}
