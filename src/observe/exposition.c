/* The text format. See exposition.h. Source: "Prometheus exposition formats", text version 0.0.4.
 *
 * Numbers are read back bit for bit: %.15g where that suffices, else %.17g, counts in full. The
 * program sets no locale, so that the decimal point is one. */
#include "observe/exposition.h"

#include "base/alloc.h"
#include "base/error.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    FIRST_CAPACITY = 16 << 10,
    NUMBER_MAX = 40, /* bytes of any number's text */
    PIECE_MAX = 240, /* bytes of a label's value that are cleaned at once */
};

/* ---- the buffer ---- */

static bool reserve(struct exposition *e, size_t n)
{
    e->failed = e->failed || !mem_reserve(&e->text, e->size, &e->capacity, n, FIRST_CAPACITY);
    return !e->failed;
}

static void put(struct exposition *e, const char *text, size_t size)
{
    if (!reserve(e, size))
        return;
    memcpy(e->text + e->size, text, size);
    e->size += size;
}

static void put_text(struct exposition *e, const char *text)
{
    put(e, text, strlen(text));
}

void exposition_fini(struct exposition *e)
{
    mem_free(e->text);
    *e = (struct exposition){0};
}

/* ---- numbers ---- */

static void put_count(struct exposition *e, uint64_t value)
{
    char digits[NUMBER_MAX];
    size_t at = sizeof digits;

    do {
        digits[--at] = (char)('0' + value % 10);
        value /= 10;
    } while (value > 0);
    put(e, digits + at, sizeof digits - at);
}

static void format_number(char text[NUMBER_MAX], double value)
{
    if (isnan(value) || isinf(value)) {
        (void)snprintf(text, NUMBER_MAX, "%s", isnan(value) ? "NaN" : value > 0 ? "+Inf" : "-Inf");
        return;
    }
    (void)snprintf(text, NUMBER_MAX, "%.15g", value);
    if (strtod(text, NULL) != value)
        (void)snprintf(text, NUMBER_MAX, "%.17g", value);
}

static void put_number(struct exposition *e, double value)
{
    char text[NUMBER_MAX];

    format_number(text, value);
    put_text(e, text);
}

/* A bucket's bound is part of a series' identity: always with a point or an exponent ("1.0"), as
 * vLLM writes it and as newer Prometheus stores it. */
static void put_bound(struct exposition *e, double bound)
{
    char text[NUMBER_MAX];

    format_number(text, bound);
    put_text(e, text);
    if (isfinite(bound) && strpbrk(text, ".e") == NULL)
        put(e, ".0", 2);
}

/* ---- texts ---- */

/* special: which of '\', '"' and line end are escaped here. */
static void put_escaped(struct exposition *e, const char *text, const char *special)
{
    while (*text != 0) {
        size_t n = strcspn(text, special);
        put(e, text, n);
        text += n;
        if (*text == 0)
            break;
        put(e, *text == '\n' ? "\\n" : *text == '"' ? "\\\"" : "\\\\", 2);
        text++;
    }
}

/* A bounded piece at a time, cut before the first byte of a character. */
static void put_label_value(struct exposition *e, const char *value)
{
    char piece[PIECE_MAX + 1];

    while (*value != 0) {
        size_t n = strnlen(value, PIECE_MAX);
        if (value[n] != 0) {
            size_t cut = n;
            while (cut > n - 3 && ((unsigned char)value[cut] & 0xC0) == 0x80)
                cut--;
            n = ((unsigned char)value[cut] & 0xC0) == 0x80 ? n : cut;
        }
        memcpy(piece, value, n);
        piece[n] = 0;
        error_make_printable(piece);
        put_escaped(e, piece, "\\\"");
        value += n;
    }
}

static void put_labels(struct exposition *e, const struct metric_label *labels, size_t n_labels)
{
    for (size_t i = 0; i < n_labels; i++) {
        if (i > 0)
            put(e, ",", 1);
        put_text(e, labels[i].name);
        put(e, "=\"", 2);
        put_label_value(e, labels[i].value);
        put(e, "\"", 1);
    }
}

/* A series up to the blank before its number. */
static void put_series(struct exposition *e, const char *name, const char *part,
                       const struct metric_label *labels, size_t n_labels)
{
    put_text(e, name);
    put_text(e, part);
    if (n_labels > 0) {
        put(e, "{", 1);
        put_labels(e, labels, n_labels);
        put(e, "}", 1);
    }
    put(e, " ", 1);
}

/* ---- series ---- */

void exposition_family(struct exposition *e, const char *name, enum metric_type type,
                       const char *help)
{
    static const char *const TYPES[] = {"counter", "gauge", "histogram"};

    put_text(e, "# HELP ");
    put_text(e, name);
    put(e, " ", 1);
    put_escaped(e, help, "\\\n");
    put_text(e, "\n# TYPE ");
    put_text(e, name);
    put(e, " ", 1);
    put_text(e, TYPES[type]);
    put(e, "\n", 1);
}

void exposition_value(struct exposition *e, const char *name, const struct metric_label *labels,
                      size_t n_labels, double value)
{
    put_series(e, name, "", labels, n_labels);
    put_number(e, value);
    put(e, "\n", 1);
}

void exposition_count(struct exposition *e, const char *name, const struct metric_label *labels,
                      size_t n_labels, uint64_t value)
{
    put_series(e, name, "", labels, n_labels);
    put_count(e, value);
    put(e, "\n", 1);
}

/* Classic buckets: cumulative, the last one holds all. */
static void put_histogram(struct exposition *e, const char *name, const struct metric_label *labels,
                          size_t n_labels, const struct metric *metric)
{
    const struct metric_spec *spec = metric_info(metric);
    uint64_t buckets[METRIC_BOUNDS_MAX + 1], seen = 0;
    double sum = 0;
    uint64_t count = metric_buckets(metric, buckets, &sum);

    for (size_t i = 0; i <= spec->n_bounds; i++) {
        seen += buckets[i];
        put_text(e, name);
        put_text(e, "_bucket{");
        put_labels(e, labels, n_labels);
        put_text(e, n_labels > 0 ? ",le=\"" : "le=\"");
        put_bound(e, i < spec->n_bounds ? spec->bounds[i] : (double)INFINITY);
        put_text(e, "\"} ");
        put_count(e, seen);
        put(e, "\n", 1);
    }
    put_series(e, name, "_sum", labels, n_labels);
    put_number(e, sum);
    put(e, "\n", 1);
    put_series(e, name, "_count", labels, n_labels);
    put_count(e, count);
    put(e, "\n", 1);
}

void exposition_metric(struct exposition *e, const char *name, const struct metric_label *labels,
                       size_t n_labels, const struct metric *metric)
{
    const struct metric_spec *spec = metric_info(metric);

    if (spec->type == METRIC_TYPE_HISTOGRAM)
        put_histogram(e, name, labels, n_labels, metric);
    else if (spec->type == METRIC_TYPE_COUNTER && spec->unit == 1.0)
        exposition_count(e, name, labels, n_labels, metric_counts(metric));
    else
        exposition_value(e, name, labels, n_labels, metric_value(metric));
}

void exposition_registry(struct exposition *e, const struct metric_registry *registry)
{
    const char *last = "";

    for (const struct metric *m = metric_first(registry); m != NULL; m = metric_next(m)) {
        const struct metric_spec *spec = metric_info(m);
        if (strcmp(spec->name, last) != 0)
            exposition_family(e, spec->name, spec->type, spec->help);
        last = spec->name;
        exposition_metric(e, spec->name, spec->labels, spec->n_labels, m);
    }
}
