/* Counters, gauges and histograms: registered at start, bumped from any thread without a lock, read
 * in a fixed order by whoever shows them.
 *
 * Why here: every room from routing upward counts what it does ("nothing silent"), while only
 * `observe` knows how numbers are shown. This room must not know exposition formats, HTTP, or who
 * counts. There is no global registry: it is passed by pointer.
 *
 * Life: create; register everything (one thread); seal; from then on any thread updates and reads;
 * destroy when no thread uses it any more. */
#ifndef METRIC_METRIC_H
#define METRIC_METRIC_H

#include "ferry/status.h"

#include <stddef.h>
#include <stdint.h>

struct metric_registry;
struct metric;

enum metric_type {
    METRIC_TYPE_COUNTER,   /* only grows */
    METRIC_TYPE_GAUGE,     /* goes both ways */
    METRIC_TYPE_HISTOGRAM, /* counts by upper bound, and a sum */
};

enum {
    METRIC_LABELS_MAX = 8,
    METRIC_BOUNDS_MAX = 64,
    METRIC_NAME_MAX = 128,   /* bytes of a metric or label name */
    METRIC_TEXT_MAX = 512,   /* bytes of a help text or label value */
    METRIC_SERIES_MAX = 8192 /* metrics of one registry; registration looks through all of a name */
};

struct metric_label {
    const char *name;
    const char *value;
};

/* What a metric is. Given at registration (everything is copied) and given back by metric_info. */
struct metric_spec {
    enum metric_type type;
    const char *name;                  /* Prometheus rules, see metric_register */
    const char *help;                  /* one sentence, same for all metrics of the name */
    const struct metric_label *labels; /* fixed for the metric's life; same names, in the same
                                          order, for all metrics of the name */
    size_t n_labels;
    const double *bounds; /* histogram: strictly ascending, finite; +Inf is implied */
    size_t n_bounds;
    double unit; /* counter: the value of one count in the unit of the name, 1e-9 for nanoseconds
                    counted under a name in _seconds_total; 0 means 1 */
};

enum ferry_status metric_registry_create(struct metric_registry **ret_registry,
                                         struct ferry_error *err) FERRY_MUST_CHECK;

/* NULL is allowed. Metrics of the registry die with it. */
void metric_registry_destroy(struct metric_registry *registry);

/* Adds a metric, at value 0; *ret_metric is borrowed from the registry. One thread, before seal.
 *
 * Names: [a-z][a-z0-9_]*, no "__", no "_" at the end; a counter ends in _total and nothing else
 * does; _count, _sum, _bucket and _created belong to histograms' parts; no part of the name is a
 * type or a unit that is not a base unit (ms, kb, percent, ...); seconds, bytes and ratio come
 * last (before _total). Labels: [a-z][a-z0-9_]*, no "__", not le or quantile, no name twice; values
 * are not empty, printable UTF-8.
 * Errors: FERRY_ERR_ARG (a rule is broken, an equal metric exists, the name has another type, help,
 * label names or bounds, registry is sealed), FERRY_ERR_LIMIT, FERRY_ERR_NOMEM. */
enum ferry_status metric_register(struct metric_registry *registry, const struct metric_spec *spec,
                                  struct metric **ret_metric,
                                  struct ferry_error *err) FERRY_MUST_CHECK;

/* Ends registration. Happens before the threads that update or read are started. */
void metric_registry_seal(struct metric_registry *registry);

/* ---- updates: any thread, lock-free, relaxed; a NULL metric is ignored, so that a room works
 * without a registry ---- */

/* Counter: adds n counts; wraps at 2^64. */
void metric_add(struct metric *metric, uint64_t n);

/* Gauge: replaces the value, or adds to it (a retry loop: no update is lost). NaN and infinities
 * are allowed. */
void metric_set(struct metric *metric, double value);
void metric_shift(struct metric *metric, double delta);

/* Histogram: counts value in the first bucket with value <= bound and adds it to the sum. A NaN
 * fits no bucket: it is left out and counted in metric_registry_invalid. */
void metric_observe(struct metric *metric, double value);

/* ---- reading: any thread after seal ----
 *
 * A reader sees each number as it was at some moment during the call, and later calls of the same
 * thread never see an older one. Numbers of different metrics are not taken at one moment. Within a
 * histogram the sum may be ahead of or behind the buckets by observations in flight; the count is
 * defined as the sum of the buckets read, so buckets and count always agree. */

/* Metrics in order: names in the order of their first registration, all metrics of a name together
 * in theirs (as exposition formats want it). NULL ends. */
const struct metric *metric_first(const struct metric_registry *registry);
const struct metric *metric_next(const struct metric *metric);

size_t metric_registry_count(const struct metric_registry *registry);

/* The registered description (unit is never 0); lives as long as the registry. */
const struct metric_spec *metric_info(const struct metric *metric);

/* Counter: counts. */
uint64_t metric_counts(const struct metric *metric);

/* Counter: counts * unit. Gauge: the value. */
double metric_value(const struct metric *metric);

/* Histogram: ret_buckets [n_bounds + 1], not cumulative, the last one above all bounds; returns the
 * number of observations. */
uint64_t metric_buckets(const struct metric *metric, uint64_t *ret_buckets, double *ret_sum);

/* NaNs that metric_observe left out, over all histograms. */
uint64_t metric_registry_invalid(const struct metric_registry *registry);

#endif
