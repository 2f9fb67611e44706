/* Which files make up a checkpoint: names only.
 *
 * Why apart from checkpoint.c: names come from hostile indexes and must not lead out of the folder;
 * that is easier to see and to test alone. It must not know tensors. */
#ifndef FILE_SHARDS_H
#define FILE_SHARDS_H

#include "base/arena.h"
#include "ferry/status.h"

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

/* File names, sorted, each once; strings live in the arena. */
struct shard_list {
    const char **names;
    size_t count;
};

/* The folder of a file's path ("." when it names none), or "dir/name"; in the arena, NULL when out
 * of memory. */
char *shards_dir_of(struct arena *arena, const char *path);
char *shards_join(struct arena *arena, const char *dir, const char *name);

/* The files that the weight_map of a parsed index names. A name must be one plain component ending
 * in .safetensors. Errors: FERRY_ERR_FORMAT, FERRY_ERR_LIMIT (LIMIT_SHARDS), FERRY_ERR_NOMEM. */
enum ferry_status shards_from_index(struct shard_list *ret_list, struct arena *arena,
                                    const json_t *index, struct ferry_error *err) FERRY_MUST_CHECK;

/* Whether name ends in -NNNNN-of-MMMMM + suffix with 1 <= N <= M; gives both numbers and the length
 * of what stands before. */
bool shards_split_name(const char *name, const char *suffix, unsigned *ret_no, unsigned *ret_count,
                       size_t *ret_stem);

/* Path of shard `no` (from 1) of the split GGUF whose first shard is `first`; NULL when out of
 * memory. The name of `first` must match the pattern. */
char *shards_gguf_path(struct arena *arena, const char *first, unsigned no);

#endif
