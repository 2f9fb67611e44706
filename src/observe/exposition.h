/* Metrics as Prometheus' text format 0.0.4, into a buffer that grows.
 *
 * Why here: only this room knows how numbers are shown. It must not know who counts, or HTTP. What
 * stands on a page in which order is its caller's business; a family (all series of a name) must
 * be written in one piece. */
#ifndef OBSERVE_EXPOSITION_H
#define OBSERVE_EXPOSITION_H

#include "ferry/status.h"
#include "metric/metric.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define EXPOSITION_CONTENT_TYPE "text/plain; version=0.0.4; charset=utf-8"

/* Growing text in the caller's storage: {0} to start, exposition_fini to free. One thread. */
struct exposition {
    char *text; /* [size], without an ending 0 */
    size_t size, capacity;
    bool failed; /* no memory: the text is not complete and nothing is appended any more */
};

void exposition_fini(struct exposition *e);

/* Appends every metric of the registry: families in order of their first registration, series in
 * theirs. Any thread after seal. */
void exposition_registry(struct exposition *e, const struct metric_registry *registry);

/* ---- series that are no registered metrics ---- */

/* Begins a family: its HELP and TYPE lines. name is written as it is. */
void exposition_family(struct exposition *e, const char *name, enum metric_type type,
                       const char *help);

/* One series of a gauge or counter. Label values may be any bytes: they are escaped, and what is
 * not UTF-8 becomes '?', because one bad byte would void the whole page for its reader. */
void exposition_value(struct exposition *e, const char *name, const struct metric_label *labels,
                      size_t n_labels, double value);
void exposition_count(struct exposition *e, const char *name, const struct metric_label *labels,
                      size_t n_labels, uint64_t value);

/* The series of a registered metric, under a name and labels of the caller's. */
void exposition_metric(struct exposition *e, const char *name, const struct metric_label *labels,
                       size_t n_labels, const struct metric *metric);

#endif
