/* The same numbers once more under the names of vLLM, which dashboards, autoscalers and load
 * generators know.
 *
 * Why here: one table says which of our series stands for which of theirs, read at scrape time, so
 * that there is one truth. It must not know who counts. Where meanings differ: docs/metrics.md. */
#ifndef OBSERVE_VLLM_H
#define OBSERVE_VLLM_H

#include "observe/exposition.h"

struct vllm_options {
    const char *model_name;      /* label of every series */
    size_t page_tokens, n_pages; /* of the KV cache */
    const char *kv_dtype;
};

/* Appends the aliases with the labels model_name and engine="0". What the registry does not have is
 * left out. Any thread after seal. */
void vllm_expose(struct exposition *e, const struct metric_registry *registry,
                 const struct vllm_options *options);

#endif
