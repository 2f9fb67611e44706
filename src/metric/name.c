/* Naming rules. See name.h.
 *
 * Why enforced at registration: dashboards and alerts outlive a careless name. Must not know the
 * registry. Source: Prometheus, "Metric and label naming", and the checks of promtool. */
#include "metric/name.h"

#include "base/error.h"

#include <stdbool.h>
#include <string.h>

/* A part of a name, and what to write instead. */
struct banned_part {
    const char *part, *instead;
};

static const struct banned_part BANNED_PARTS[] = {
    {"ms", "seconds"},       {"msec", "seconds"},
    {"millis", "seconds"},   {"milliseconds", "seconds"},
    {"us", "seconds"},       {"usec", "seconds"},
    {"micros", "seconds"},   {"microseconds", "seconds"},
    {"ns", "seconds"},       {"nsec", "seconds"},
    {"nanos", "seconds"},    {"nanoseconds", "seconds"},
    {"sec", "seconds"},      {"secs", "seconds"},
    {"minutes", "seconds"},  {"hours", "seconds"},
    {"days", "seconds"},     {"kb", "bytes"},
    {"mb", "bytes"},         {"gb", "bytes"},
    {"kib", "bytes"},        {"mib", "bytes"},
    {"gib", "bytes"},        {"kilobytes", "bytes"},
    {"megabytes", "bytes"},  {"gigabytes", "bytes"},
    {"bits", "bytes"},       {"percent", "ratio"},
    {"percentage", "ratio"}, {"counter", "no type"},
    {"gauge", "no type"},    {"histogram", "no type"},
    {"summary", "no type"},
};

static const char *const UNITS[] = {"seconds", "bytes", "ratio"};
static const char *const RESERVED_ENDS[] = {"count", "sum", "bucket", "created"};

static bool is_lower(char c)
{
    return c >= 'a' && c <= 'z';
}

/* [a-z][a-z0-9_]*, no "__", no "_" at the end. */
static enum ferry_status snake_check(const char *what, const char *name, struct ferry_error *err)
{
    if (name == NULL || name[0] == 0)
        return FERRY_FAIL(err, FERRY_ERR_ARG, "%s: the name is empty", what);
    size_t n = strlen(name);
    if (n > METRIC_NAME_MAX)
        return FERRY_FAIL(err, FERRY_ERR_LIMIT, "%s: the name has %zu bytes, over the limit of %d",
                          what, n, METRIC_NAME_MAX);
    bool good = is_lower(name[0]) && name[n - 1] != '_' && strstr(name, "__") == NULL;
    for (size_t i = 0; i < n; i++)
        good = good && (is_lower(name[i]) || (name[i] >= '0' && name[i] <= '9') || name[i] == '_');
    if (!good)
        return FERRY_FAIL(err, FERRY_ERR_ARG,
                          "%s '%s': use lower-case words joined by single '_' (no colons, no "
                          "capitals, no digit or '_' first, no '_' last)",
                          what, name);
    return FERRY_OK;
}

/* Any text that can be shown on one line. */
static enum ferry_status text_check(const char *name, const char *what, const char *text,
                                    struct ferry_error *err)
{
    char copy[METRIC_TEXT_MAX + 1];

    if (text == NULL || text[0] == 0)
        return FERRY_FAIL(err, FERRY_ERR_ARG, "metric '%s': %s is empty", name, what);
    size_t n = strlen(text);
    if (n > METRIC_TEXT_MAX)
        return FERRY_FAIL(err, FERRY_ERR_LIMIT,
                          "metric '%s': %s has %zu bytes, over the limit of %d", name, what, n,
                          METRIC_TEXT_MAX);
    memcpy(copy, text, n + 1);
    error_make_printable(copy);
    if (strcmp(copy, text) != 0)
        return FERRY_FAIL(err, FERRY_ERR_ARG,
                          "metric '%s': %s holds control characters or invalid UTF-8: '%s'", name,
                          what, text);
    return FERRY_OK;
}

static bool part_is(const char *part, size_t n, const char *word)
{
    return strlen(word) == n && memcmp(part, word, n) == 0;
}

/* Rules on the words of a metric's name. */
static enum ferry_status parts_check(const struct metric_spec *spec, struct ferry_error *err)
{
    const char *part = spec->name;
    bool total = false;

    for (;;) {
        size_t n = strcspn(part, "_");
        bool last = part[n] == 0;
        for (size_t i = 0; i < sizeof BANNED_PARTS / sizeof BANNED_PARTS[0]; i++) {
            if (part_is(part, n, BANNED_PARTS[i].part))
                return FERRY_FAIL(err, FERRY_ERR_ARG,
                                  "metric '%s': '%s' in the name; write %s instead", spec->name,
                                  BANNED_PARTS[i].part, BANNED_PARTS[i].instead);
        }
        for (size_t i = 0; i < sizeof UNITS / sizeof UNITS[0]; i++) {
            if (part_is(part, n, UNITS[i]) && !last && strcmp(part + n, "_total") != 0)
                return FERRY_FAIL(err, FERRY_ERR_ARG,
                                  "metric '%s': the unit '%s' comes last (before _total)",
                                  spec->name, UNITS[i]);
        }
        for (size_t i = 0; last && i < sizeof RESERVED_ENDS / sizeof RESERVED_ENDS[0]; i++) {
            if (part != spec->name && part_is(part, n, RESERVED_ENDS[i]))
                return FERRY_FAIL(err, FERRY_ERR_ARG,
                                  "metric '%s': _%s at the end is kept for parts of histograms",
                                  spec->name, RESERVED_ENDS[i]);
        }
        total = last && part != spec->name && part_is(part, n, "total");
        if (last)
            break;
        part += n + 1;
    }
    if (total != (spec->type == METRIC_TYPE_COUNTER))
        return FERRY_FAIL(err, FERRY_ERR_ARG,
                          "metric '%s': counters end in _total and nothing else does", spec->name);
    return FERRY_OK;
}

static enum ferry_status labels_check(const struct metric_spec *spec, struct ferry_error *err)
{
    if (spec->n_labels > METRIC_LABELS_MAX)
        return FERRY_FAIL(err, FERRY_ERR_LIMIT, "metric '%s': %zu labels, over the limit of %d",
                          spec->name, spec->n_labels, METRIC_LABELS_MAX);
    for (size_t i = 0; i < spec->n_labels; i++) {
        const struct metric_label *label = &spec->labels[i];
        enum ferry_status st = snake_check("label", label->name, err);
        if (st == FERRY_OK)
            st = text_check(spec->name, label->name, label->value, err);
        if (st != FERRY_OK)
            return st;
        if (strcmp(label->name, "le") == 0 || strcmp(label->name, "quantile") == 0)
            return FERRY_FAIL(err, FERRY_ERR_ARG, "metric '%s': the label '%s' is reserved",
                              spec->name, label->name);
        for (size_t j = 0; j < i; j++) {
            if (strcmp(label->name, spec->labels[j].name) == 0)
                return FERRY_FAIL(err, FERRY_ERR_ARG, "metric '%s': the label '%s' appears twice",
                                  spec->name, label->name);
        }
    }
    return FERRY_OK;
}

static enum ferry_status bounds_check(const struct metric_spec *spec, struct ferry_error *err)
{
    if (spec->type != METRIC_TYPE_HISTOGRAM) {
        if (spec->n_bounds != 0)
            return FERRY_FAIL(err, FERRY_ERR_ARG, "metric '%s': only histograms have bounds",
                              spec->name);
        return FERRY_OK;
    }
    if (spec->n_bounds == 0 || spec->n_bounds > METRIC_BOUNDS_MAX)
        return FERRY_FAIL(err, FERRY_ERR_LIMIT, "metric '%s': %zu bounds, want 1..%d", spec->name,
                          spec->n_bounds, METRIC_BOUNDS_MAX);
    for (size_t i = 0; i < spec->n_bounds; i++) {
        double b = spec->bounds[i];
        if (b - b != 0.0) /* infinity or NaN */
            return FERRY_FAIL(err, FERRY_ERR_ARG, "metric '%s': bound %zu is not finite",
                              spec->name, i);
        if (i > 0 && !(b > spec->bounds[i - 1]))
            return FERRY_FAIL(err, FERRY_ERR_ARG, "metric '%s': bound %zu (%g) does not ascend",
                              spec->name, i, b);
    }
    return FERRY_OK;
}

enum ferry_status metric_spec_check(const struct metric_spec *spec, struct ferry_error *err)
{
    enum ferry_status st = snake_check("metric", spec->name, err);

    if (st == FERRY_OK)
        st = parts_check(spec, err);
    if (st == FERRY_OK)
        st = text_check(spec->name, "help", spec->help, err);
    if (st == FERRY_OK)
        st = labels_check(spec, err);
    if (st == FERRY_OK)
        st = bounds_check(spec, err);
    if (st != FERRY_OK)
        return st;
    bool unit_good = spec->unit == 0.0 || (spec->type == METRIC_TYPE_COUNTER && spec->unit > 0.0 &&
                                           spec->unit - spec->unit == 0.0);
    if (!unit_good)
        return FERRY_FAIL(err, FERRY_ERR_ARG,
                          "metric '%s': unit %g; only counters have one, positive and finite",
                          spec->name, spec->unit);
    return FERRY_OK;
}
