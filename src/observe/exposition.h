/* Metrics as Prometheus' text format 0.0.4, and under the names of vLLM that dashboards and
 * autoscalers know.
 *
 * Why here: only this room knows how numbers are shown. It must not know who counts, or HTTP. */
#ifndef OBSERVE_EXPOSITION_H
#define OBSERVE_EXPOSITION_H

#include "ferry/status.h"
#include "metric/metric.h"

#include <stdbool.h>
#include <stddef.h>

#define EXPOSITION_CONTENT_TYPE "text/plain; version=0.0.4; charset=utf-8"

/* Growing text in the caller's storage: {0} to start, exposition_fini to free. */
struct exposition {
    char *text; /* [size] */
    size_t size, capacity;
    bool failed; /* no memory: the text is not complete */
};

void exposition_fini(struct exposition *e);

/* Appends every metric of the registry: HELP and TYPE once a name, series in order of registration.
 */
void exposition_registry(struct exposition *e, const struct metric_registry *registry);

/* The same values once more under vLLM's names, with its labels model_name and engine; metrics that
 * it has no name for are left out. */
void exposition_vllm(struct exposition *e, const struct metric_registry *registry,
                     const char *model_name);

/* A series of its own, computed while reading: type "gauge" or "counter"; help and type are written
 * when help is given. labels: as it stands between the braces, NULL: none. */
void exposition_value(struct exposition *e, const char *name, const char *type, const char *help,
                      const char *labels, double value);

/* Writes value so that it may stand in quotes as a label's value; to holds size bytes, the rest is
 * cut off at a character. */
void exposition_escape(char *to, size_t size, const char *value);

/* What the kernel knows of this process: memory, processor time, descriptors. */
void exposition_process(struct exposition *e);

#endif
