/* The manifest of a checkpoint: the SHA-256 of every expert, as somebody knows them to be right:
 * whoever published the weights, or an operator who has checked them.
 *
 * Why here: a load can then tell a damaged or exchanged expert from the right one (law 3), and
 * ranks that agree on one hash over all of it agree on every expert. Without one, nothing is
 * compared, and `inspect` says so. A manifest comes from where the weights come from: hostile
 * input. It must not know where experts lie or run. */
#ifndef EXPERT_MANIFEST_H
#define EXPERT_MANIFEST_H

#include "ferry/status.h"
#include "file/checkpoint.h"

#include <stdbool.h>
#include <stddef.h>

struct expert_manifest;

/* Where the manifest of a checkpoint is looked for: FOLDER/ferry-manifest.json, or
 * FILE.gguf.ferry.json (of the first shard). The caller's (mem_free); NULL: out of memory. */
char *expert_manifest_path(const struct checkpoint *checkpoint);

/* Which experts a manifest is about. */
struct expert_manifest_shape {
    const char *model_hash;        /* checkpoint_header_hash */
    const bool *layer_has_experts; /* [n_layers] */
    size_t n_layers, n_experts;
};

/* Reads the file at path (docs/json/manifest.schema.json). No such file: FERRY_OK and *ret NULL.
 * Errors: FERRY_ERR_FORMAT (also: it is another model's, an expert is missing or there twice;
 * unknown keys), FERRY_ERR_LIMIT, FERRY_ERR_IO, FERRY_ERR_NOMEM. */
enum ferry_status expert_manifest_read(struct expert_manifest **ret, const char *path,
                                       const struct expert_manifest_shape *shape,
                                       struct ferry_error *err) FERRY_MUST_CHECK;

/* Fills ret_hex with the SHA-256 of an expert's bytes, 64 hex digits and a 0; "": it cannot. */
typedef void expert_hash_fn(void *arg, size_t layer, size_t expert, char ret_hex[65]);

/* A manifest of what `hash` says, which is asked for every expert in order. FERRY_ERR_NOMEM (also
 * when a hash cannot be computed). */
enum ferry_status expert_manifest_create(struct expert_manifest **ret,
                                         const struct expert_manifest_shape *shape,
                                         expert_hash_fn *hash, void *arg,
                                         struct ferry_error *err) FERRY_MUST_CHECK;

/* Creates the file at path, as a whole. FERRY_ERR_ARG (it is there already), FERRY_ERR_NOMEM,
 * FERRY_ERR_IO. */
enum ferry_status expert_manifest_write(const struct expert_manifest *manifest, const char *path,
                                        struct ferry_error *err) FERRY_MUST_CHECK;
void expert_manifest_destroy(struct expert_manifest *manifest);

/* SHA-256 of an expert's bytes, 64 lower-case hex digits and a 0; borrowed. */
const char *expert_manifest_hash(const struct expert_manifest *manifest, size_t layer,
                                 size_t expert);

/* One hash over the model's and all experts', in order: what ranks compare. Borrowed. */
const char *expert_manifest_root(const struct expert_manifest *manifest);

#endif
