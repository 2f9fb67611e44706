/* One view of a model's files, whatever format they are in: named tensors plus metadata.
 *
 * Why here: `model` binds weights without knowing GGUF from safetensors. All bytes are hostile
 * until checked; tensor data stay in read-only file mappings. It must not know architectures or
 * kernels. */
#ifndef FILE_CHECKPOINT_H
#define FILE_CHECKPOINT_H

#include "ferry/status.h"
#include "tensor/dtype.h"

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct checkpoint;
struct gguf_meta; /* file/gguf.h: metadata keys */

enum checkpoint_format {
    CHECKPOINT_FORMAT_SAFETENSORS,
    CHECKPOINT_FORMAT_GGUF,
};

/* One tensor. dims are row-major, outermost first, in both formats: a matrix is [out, in], stacked
 * experts [E, out, in]. */
struct checkpoint_tensor {
    const char *name; /* as in the file */
    enum dtype dtype;
    int n_dims; /* 0..4 */
    uint64_t dims[4];
    const void *data; /* size_bytes in a read-only mapping; any alignment */
    uint64_t size_bytes;
    uint64_t offset;  /* in its file, for messages */
    const char *file; /* its file's name, for messages */
    bool taken;       /* by checkpoint_take */
};

/* Opens MODEL: a .gguf file (or the first shard of a split one), or a folder with config.json and
 * safetensors (model.safetensors, or the files that model.safetensors.index.json names), or one
 * .safetensors file beside its config.json. Checks every header completely; reads no tensor data.
 * Errors: FERRY_ERR_NOT_FOUND, FERRY_ERR_ARG (one shard of several was given), FERRY_ERR_FORMAT,
 * FERRY_ERR_UNSUPPORTED, FERRY_ERR_LIMIT, FERRY_ERR_IO, FERRY_ERR_NOMEM; err names file, tensor,
 * offset, sizes. */
enum ferry_status checkpoint_open(struct checkpoint **ret_checkpoint, const char *path,
                                  struct ferry_error *err) FERRY_MUST_CHECK;

/* Unmaps everything; tensors and metadata die with it. NULL is allowed. */
void checkpoint_close(struct checkpoint *checkpoint);

enum checkpoint_format checkpoint_format(const struct checkpoint *checkpoint);

/* The folder that the checkpoint lives in (for tokenizer.json and the like); borrowed. */
const char *checkpoint_dir(const struct checkpoint *checkpoint);

/* Path of the first file that tensors come from, as opened: the .gguf that was given. Borrowed. */
const char *checkpoint_first_file(const struct checkpoint *checkpoint);

/* config.json (safetensors); NULL for GGUF. Borrowed. */
const json_t *checkpoint_config(const struct checkpoint *checkpoint);

/* Metadata keys (GGUF; of the first shard); NULL for safetensors. Borrowed. */
const struct gguf_meta *checkpoint_meta(const struct checkpoint *checkpoint);

/* Tensors in name order. */
size_t checkpoint_n_tensors(const struct checkpoint *checkpoint);
const struct checkpoint_tensor *checkpoint_tensor(const struct checkpoint *checkpoint,
                                                  size_t index);

/* Finds by name (binary search), NULL when absent; take also marks it as consumed. Taking twice is
 * legal only for tied tensors: the caller takes once and shares. FERRY_ASSERTs on a second take. */
const struct checkpoint_tensor *checkpoint_find(const struct checkpoint *checkpoint,
                                                const char *name);
const struct checkpoint_tensor *checkpoint_take(struct checkpoint *checkpoint, const char *name);

/* Files that tensors come from, and entries of model.safetensors.index.json that the headers
 * contradict (the headers are believed); for `inspect`. */
size_t checkpoint_n_files(const struct checkpoint *checkpoint);
size_t checkpoint_n_stale(const struct checkpoint *checkpoint);

/* Whether the file with this device and inode number is one that tensors come from: it must not be
 * written. */
bool checkpoint_reads(const struct checkpoint *checkpoint, uint64_t device, uint64_t inode);

/* Total bytes of all tensors. */
uint64_t checkpoint_tensor_bytes(const struct checkpoint *checkpoint);

/* Tells that the files have not shrunk since they were opened (truncation would turn reads into
 * SIGBUS). FERRY_ERR_IO names the file and both sizes. */
enum ferry_status checkpoint_recheck(const struct checkpoint *checkpoint,
                                     struct ferry_error *err) FERRY_MUST_CHECK;

/* Drops this process's resident pages of all files, after their tensors were repacked; a later read
 * brings them back. */
void checkpoint_forget_pages(const struct checkpoint *checkpoint);

/* SHA-256 over what the headers say, whatever the sharding: format, (name, dtype, dims) of all
 * tensors in name order, then config.json (white space and key order aside) or the metadata keys
 * except split.*. It is the model hash of the numerics string; weight bytes, too slow to read at
 * open, are verified per expert elsewhere. 64 hex digits and a 0. */
void checkpoint_header_hash(const struct checkpoint *checkpoint, char ret_hex[65]);

#endif
