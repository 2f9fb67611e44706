/* The registry and the lock-free values. See metric.h; the naming rules are in name.c.
 *
 * Layout: everything lives in one arena; each metric's numbers start on a cache line of their own,
 * so that two threads that count different things do not share one. f64 numbers are kept as their
 * bits in 64-bit atomics. */
#include "metric/metric.h"

#include "base/alloc.h"
#include "base/arena.h"
#include "base/assert.h"
#include "base/error.h"
#include "metric/name.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <string.h>

/* All metrics of one name. */
struct family {
    struct family *next;
    struct metric *first, *last;
};

struct metric {
    struct metric_spec spec;
    struct metric_registry *registry;
    struct family *family;
    struct metric *next; /* in the family */
    uint64_t hash;       /* of the label values */
    /* Relaxed throughout: numbers order nothing. Counter: [0] counts. Gauge: [0] bits of the value.
     * Histogram: [0] bits of the sum, [1 + i] bucket i. */
    atomic_uint_fast64_t *values;
};

struct metric_registry {
    struct arena arena;
    struct family *first, *last;
    size_t n_metrics;
    bool sealed;
    atomic_uint_fast64_t n_invalid; /* relaxed */
};

enum ferry_status metric_registry_create(struct metric_registry **ret_registry,
                                         struct ferry_error *err)
{
    struct metric_registry *registry = mem_zero(sizeof *registry);

    if (registry == NULL)
        return FERRY_FAIL(err, FERRY_ERR_NOMEM, "metrics: no memory for the registry");
    arena_init(&registry->arena, "metrics");
    *ret_registry = registry;
    return FERRY_OK;
}

void metric_registry_destroy(struct metric_registry *registry)
{
    if (registry == NULL)
        return;
    arena_fini(&registry->arena);
    mem_free(registry);
}

void metric_registry_seal(struct metric_registry *registry)
{
    registry->sealed = true;
}

static struct family *family_find(const struct metric_registry *registry, const char *name)
{
    for (struct family *f = registry->first; f != NULL; f = f->next) {
        if (strcmp(f->first->spec.name, name) == 0)
            return f;
    }
    return NULL;
}

/* FNV-1a over the label values with their ends: tells almost all metrics of a name apart, so that
 * registering thousands does not compare their texts. */
static uint64_t values_hash(const struct metric_spec *spec)
{
    uint64_t hash = 0xCBF29CE484222325u;

    for (size_t i = 0; i < spec->n_labels; i++) {
        const char *c = spec->labels[i].value;
        do
            hash = (hash ^ (unsigned char)*c) * 0x100000001B3u;
        while (*c++ != 0);
    }
    return hash;
}

static bool same_values(const struct metric_spec *a, const struct metric_spec *b)
{
    for (size_t i = 0; i < a->n_labels; i++) {
        if (strcmp(a->labels[i].value, b->labels[i].value) != 0)
            return false;
    }
    return true;
}

/* A new metric must look like the first of its name and differ from all in its label values. */
static enum ferry_status family_check(const struct family *family, const struct metric_spec *spec,
                                      struct ferry_error *err)
{
    const struct metric_spec *first = &family->first->spec;
    double unit = spec->unit != 0.0 ? spec->unit : 1.0;
    const char *differs = NULL;

    if (first->type != spec->type)
        differs = "type";
    else if (strcmp(first->help, spec->help) != 0)
        differs = "help text";
    else if (first->n_labels != spec->n_labels)
        differs = "number of labels";
    else if (first->unit != unit)
        differs = "unit";
    else if (first->n_bounds != spec->n_bounds ||
             (spec->n_bounds > 0 &&
              memcmp(first->bounds, spec->bounds, spec->n_bounds * sizeof spec->bounds[0]) != 0))
        differs = "list of bounds";
    for (size_t i = 0; differs == NULL && i < spec->n_labels; i++) {
        if (strcmp(first->labels[i].name, spec->labels[i].name) != 0)
            differs = "list of label names";
    }
    if (differs != NULL)
        return FERRY_FAIL(err, FERRY_ERR_ARG,
                          "metric '%s': another %s than its first registration has", spec->name,
                          differs);
    uint64_t hash = values_hash(spec);
    for (const struct metric *m = family->first; m != NULL; m = m->next) {
        if (m->hash == hash && same_values(&m->spec, spec))
            return FERRY_FAIL(err, FERRY_ERR_ARG,
                              "metric '%s': registered before with the same label values",
                              spec->name);
    }
    return FERRY_OK;
}

/* Copies what spec points to; false when out of memory. */
static bool spec_copy(struct arena *arena, struct metric_spec *ret_spec,
                      const struct metric_spec *spec)
{
    struct metric_label *labels = arena_array(arena, spec->n_labels, sizeof *labels);
    double *bounds = arena_array(arena, spec->n_bounds, sizeof *bounds);

    *ret_spec = *spec;
    ret_spec->name = arena_strndup(arena, spec->name, strlen(spec->name));
    ret_spec->help = arena_strndup(arena, spec->help, strlen(spec->help));
    ret_spec->labels = labels;
    ret_spec->bounds = bounds;
    if (ret_spec->unit == 0.0)
        ret_spec->unit = 1.0;
    if (labels == NULL || bounds == NULL || ret_spec->name == NULL || ret_spec->help == NULL)
        return false;
    for (size_t i = 0; i < spec->n_bounds; i++)
        bounds[i] = spec->bounds[i];
    for (size_t i = 0; i < spec->n_labels; i++) {
        labels[i].name = arena_strndup(arena, spec->labels[i].name, strlen(spec->labels[i].name));
        labels[i].value =
            arena_strndup(arena, spec->labels[i].value, strlen(spec->labels[i].value));
        if (labels[i].name == NULL || labels[i].value == NULL)
            return false;
    }
    return true;
}

static void metric_link(struct metric_registry *registry, struct metric *metric)
{
    struct family *family = metric->family;

    if (family->first == NULL) {
        family->first = metric;
        if (registry->last != NULL)
            registry->last->next = family;
        else
            registry->first = family;
        registry->last = family;
    } else {
        family->last->next = metric;
    }
    family->last = metric;
    registry->n_metrics++;
}

enum ferry_status metric_register(struct metric_registry *registry, const struct metric_spec *spec,
                                  struct metric **ret_metric, struct ferry_error *err)
{
    enum ferry_status st = metric_spec_check(spec, err);

    if (st != FERRY_OK)
        return st;
    if (registry->sealed)
        return FERRY_FAIL(err, FERRY_ERR_ARG, "metric '%s': the registry is sealed", spec->name);
    if (registry->n_metrics >= METRIC_SERIES_MAX)
        return FERRY_FAIL(err, FERRY_ERR_LIMIT, "metric '%s': over the limit of %d metrics",
                          spec->name, METRIC_SERIES_MAX);
    struct family *family = family_find(registry, spec->name);
    if (family != NULL) {
        st = family_check(family, spec, err);
        if (st != FERRY_OK)
            return st;
    }

    /* What a failure below leaves in the arena is lost until destroy, and harmless. */
    struct arena *arena = &registry->arena;
    struct metric *metric = arena_zero(arena, sizeof *metric);
    if (family == NULL)
        family = arena_zero(arena, sizeof *family);
    size_t n_values = spec->type == METRIC_TYPE_HISTOGRAM ? spec->n_bounds + 2 : 1;
    atomic_uint_fast64_t *values = arena_array(arena, n_values, sizeof *values);
    if (metric == NULL || family == NULL || values == NULL ||
        !spec_copy(arena, &metric->spec, spec))
        return FERRY_FAIL(err, FERRY_ERR_NOMEM, "metric '%s': no memory", spec->name);
    for (size_t i = 0; i < n_values; i++)
        atomic_init(&values[i], 0);
    metric->registry = registry;
    metric->family = family;
    metric->hash = values_hash(spec);
    metric->values = values;
    metric_link(registry, metric);
    *ret_metric = metric;
    return FERRY_OK;
}

/* ---- updates ---- */

static uint64_t bits_of(double v)
{
    uint64_t bits;
    memcpy(&bits, &v, sizeof bits);
    return bits;
}

static double from_bits(uint64_t bits)
{
    double v;
    memcpy(&v, &bits, sizeof v);
    return v;
}

static void add_f64(atomic_uint_fast64_t *word, double delta)
{
    uint64_t old = atomic_load_explicit(word, memory_order_relaxed);

    while (!atomic_compare_exchange_weak_explicit(word, &old, bits_of(from_bits(old) + delta),
                                                  memory_order_relaxed, memory_order_relaxed))
        ;
}

void metric_add(struct metric *metric, uint64_t n)
{
    if (metric == NULL)
        return;
    FERRY_ASSERT(metric->spec.type == METRIC_TYPE_COUNTER);
    atomic_fetch_add_explicit(&metric->values[0], n, memory_order_relaxed);
}

void metric_set(struct metric *metric, double value)
{
    if (metric == NULL)
        return;
    FERRY_ASSERT(metric->spec.type == METRIC_TYPE_GAUGE);
    atomic_store_explicit(&metric->values[0], bits_of(value), memory_order_relaxed);
}

void metric_shift(struct metric *metric, double delta)
{
    if (metric == NULL)
        return;
    FERRY_ASSERT(metric->spec.type == METRIC_TYPE_GAUGE);
    add_f64(&metric->values[0], delta);
}

void metric_observe(struct metric *metric, double value)
{
    if (metric == NULL)
        return;
    FERRY_ASSERT(metric->spec.type == METRIC_TYPE_HISTOGRAM);
    if (value != value) {
        atomic_fetch_add_explicit(&metric->registry->n_invalid, 1, memory_order_relaxed);
        return;
    }
    size_t i = 0;
    while (i < metric->spec.n_bounds && !(value <= metric->spec.bounds[i]))
        i++;
    atomic_fetch_add_explicit(&metric->values[1 + i], 1, memory_order_relaxed);
    add_f64(&metric->values[0], value);
}

/* ---- reading ---- */

const struct metric *metric_first(const struct metric_registry *registry)
{
    return registry->first != NULL ? registry->first->first : NULL;
}

const struct metric *metric_next(const struct metric *metric)
{
    if (metric->next != NULL)
        return metric->next;
    return metric->family->next != NULL ? metric->family->next->first : NULL;
}

size_t metric_registry_count(const struct metric_registry *registry)
{
    return registry->n_metrics;
}

const struct metric_spec *metric_info(const struct metric *metric)
{
    return &metric->spec;
}

uint64_t metric_counts(const struct metric *metric)
{
    FERRY_ASSERT(metric->spec.type == METRIC_TYPE_COUNTER);
    return atomic_load_explicit(&metric->values[0], memory_order_relaxed);
}

double metric_value(const struct metric *metric)
{
    FERRY_ASSERT(metric->spec.type != METRIC_TYPE_HISTOGRAM);
    uint64_t word = atomic_load_explicit(&metric->values[0], memory_order_relaxed);
    if (metric->spec.type == METRIC_TYPE_COUNTER)
        return (double)word * metric->spec.unit;
    return from_bits(word);
}

uint64_t metric_buckets(const struct metric *metric, uint64_t *ret_buckets, double *ret_sum)
{
    uint64_t count = 0;

    FERRY_ASSERT(metric->spec.type == METRIC_TYPE_HISTOGRAM);
    for (size_t i = 0; i <= metric->spec.n_bounds; i++) {
        ret_buckets[i] = atomic_load_explicit(&metric->values[1 + i], memory_order_relaxed);
        count += ret_buckets[i];
    }
    *ret_sum = from_bits(atomic_load_explicit(&metric->values[0], memory_order_relaxed));
    return count;
}

uint64_t metric_registry_invalid(const struct metric_registry *registry)
{
    return atomic_load_explicit(&registry->n_invalid, memory_order_relaxed);
}
