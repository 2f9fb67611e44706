/* Tiny random checkpoints for tests: written to a temporary folder in the Hugging Face layout, one
 * per architecture.
 *
 * Weights come from a counter-based generator keyed by the tensor's name, so a checkpoint needs
 * only its description. They are not trained: tests compare Ferry with itself (law 2); numbers
 * against references are in tests/oracle. */
#ifndef TESTS_SUPPORT_TINY_H
#define TESTS_SUPPORT_TINY_H

#include "tensor/dtype.h"

#include <stdbool.h>
#include <stddef.h>

struct tiny_options {
    const char *arch; /* model_type */
    size_t hidden, n_layers, n_heads, n_kv_heads, head_dim;
    size_t n_experts, top_k, expert_width, n_vocab;
    bool tied;
    bool with_head;       /* tied, and the head is stored as well, with the embedding's values */
    bool fused;           /* experts as transformers 5 writes them: gate_up_proj and down_proj */
    unsigned dense;       /* bit l: layer l has no experts (Qwen); written as mlp_only_layers */
    enum dtype dtype;     /* of every tensor: F32 (0), F16 or BF16 */
    const char *config;   /* more members of config.json, each after a comma, or NULL */
    const char *skip;     /* a tensor that is left out, or NULL */
    const char *extra;    /* a tensor that nobody reads, or NULL */
    const char *poison;   /* a tensor one of whose values is NaN, or NULL */
    size_t poisoned_item; /* which one */
    const char *squeeze;  /* a tensor that is written with a wrong shape, or NULL */
};

/* Reasonable values for an architecture: 2 layers, 8 experts, top-3, hidden 40. */
struct tiny_options tiny_defaults(const char *arch);

/* Writes config.json and model.safetensors into a new folder; its path is returned in a static
 * buffer. Fails the test on error. */
const char *tiny_write(const struct tiny_options *options);

/* Removes what tiny_write made. */
void tiny_remove(const char *folder);

#endif
