/* Placement files: docs/json/placement.schema.json. See placement.h.
 *
 * A file may come from anywhere: its size, nesting and number of values are checked before a value
 * is allocated, and nothing in it is skipped. */
#include "placement/placement.h"

#include "base/alloc.h"
#include "base/error.h"
#include "base/limits.h"
#include "base/size.h"
#include "base/whole_file.h"
#include "placement/inside.h"

#include <jansson.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

/* One read in progress. */
struct reader {
    const char *path;
    const unsigned char *layer_has_experts;
    size_t n_layers, n_experts, n_seats;
    const json_t **layers; /* [n_layers] the lists of experts; NULL: not seen yet */
    struct ferry_error *err;
};

/* Nesting and number of values, from the raw bytes; what is no JSON is jansson's to refuse. */
static enum ferry_status check_size(const struct reader *r, const char *text, size_t n)
{
    size_t depth = 0, n_values = 1, max_values = LIMIT_JSON_VALUES;
    bool in_string = false;

    for (size_t i = 0; i < n; i++) {
        if (text[i] == '"')
            in_string = !in_string;
        else if (in_string)
            i += text[i] == '\\';
        else if (text[i] == '[' || text[i] == '{')
            depth++;
        else if (text[i] == ']' || text[i] == '}')
            depth -= depth > 0;
        if (!in_string && strchr("[{,:", text[i]) != NULL)
            n_values++;
        if (depth > LIMIT_JSON_DEPTH || n_values > max_values)
            return FERRY_FAIL(
                r->err, FERRY_ERR_LIMIT,
                "%s: JSON nests deeper than %d or has more than %zu values (at offset "
                "%zu); a plan needs neither",
                r->path, LIMIT_JSON_DEPTH, max_values, i);
    }
    return FERRY_OK;
}

static enum ferry_status parse(const struct reader *r, json_t **ret_json)
{
    char *text = NULL;
    size_t n = 0;
    json_error_t cause;

    enum ferry_status st = whole_file_read(&text, &n, r->path, LIMIT_JSON_FILE, r->err);
    if (st == FERRY_OK)
        st = check_size(r, text, n);
    if (st == FERRY_OK) {
        memset(&cause, 0, sizeof cause);
        *ret_json = json_loadb(text, n, JSON_REJECT_DUPLICATES, &cause);
        /* jansson leaves the text empty when it could not allocate in the middle of a value. */
        if (*ret_json == NULL && cause.text[0] == 0)
            st = FERRY_FAIL(r->err, FERRY_ERR_NOMEM, "%s: no memory for %zu bytes of JSON", r->path,
                            n);
        else if (*ret_json == NULL)
            st = FERRY_FAIL(r->err, FERRY_ERR_FORMAT, "%s: bad JSON in line %d column %d: %s",
                            r->path, cause.line, cause.column, cause.text);
    }
    mem_free(text);
    return st;
}

/* Refuses members that are neither `a` nor `b`. */
static enum ferry_status check_keys(const struct reader *r, json_t *object, const char *a,
                                    const char *b)
{
    const char *key;
    json_t *value;

    json_object_foreach(object, key, value)
    {
        if (strcmp(key, a) != 0 && strcmp(key, b) != 0)
            return FERRY_FAIL(r->err, FERRY_ERR_FORMAT,
                              "%s: unknown key '%.60s'; only \"%s\" and \"%s\" may be here",
                              r->path, key, a, b);
    }
    return FERRY_OK;
}

/* One element of "layers": remembers its experts. */
static enum ferry_status read_layer(struct reader *r, json_t *item, size_t position)
{
    const json_t *layer = json_object_get(item, "layer");
    const json_t *experts = json_object_get(item, "experts");
    json_int_t l = json_integer_value(layer);

    if (!json_is_object(item) || !json_is_integer(layer) || !json_is_array(experts))
        return FERRY_FAIL(r->err, FERRY_ERR_FORMAT,
                          "%s: element %zu of \"layers\" must be {\"layer\": number, \"experts\": "
                          "[[seat, ...], ...]}",
                          r->path, position);
    enum ferry_status st = check_keys(r, item, "layer", "experts");
    if (st != FERRY_OK)
        return st;
    if (l < 0 || (unsigned long long)l >= r->n_layers)
        return FERRY_FAIL(r->err, FERRY_ERR_ARG,
                          "%s: layer %lld is not in 0..%zu; the plan is for another model", r->path,
                          (long long)l, r->n_layers - 1);
    if (!r->layer_has_experts[l])
        return FERRY_FAIL(r->err, FERRY_ERR_ARG,
                          "%s: layer %lld has no experts in this model and must be left out",
                          r->path, (long long)l);
    if (r->layers[l] != NULL)
        return FERRY_FAIL(r->err, FERRY_ERR_ARG, "%s: layer %lld is listed twice", r->path,
                          (long long)l);
    if (json_array_size(experts) != r->n_experts)
        return FERRY_FAIL(r->err, FERRY_ERR_ARG,
                          "%s: layer %lld lists %zu experts, the model has %zu", r->path,
                          (long long)l, json_array_size(experts), r->n_experts);
    r->layers[l] = experts;
    return FERRY_OK;
}

static enum ferry_status read_expert(const struct reader *r, struct placement *p, size_t layer,
                                     size_t expert)
{
    const json_t *list = json_array_get(r->layers[layer], expert);
    unsigned char seats[LIMIT_SEATS];
    uint64_t seen = 0;

    if (!json_is_array(list))
        return FERRY_FAIL(r->err, FERRY_ERR_FORMAT,
                          "%s: layer %zu expert %zu: wanted a list of seats", r->path, layer,
                          expert);
    size_t n = json_array_size(list);
    if (n == 0)
        return FERRY_FAIL(r->err, FERRY_ERR_ARG, "%s: layer %zu expert %zu has no seat", r->path,
                          layer, expert);
    for (size_t i = 0; i < n; i++) {
        const json_t *item = json_array_get(list, i);
        json_int_t seat = json_integer_value(item);
        if (!json_is_integer(item))
            return FERRY_FAIL(r->err, FERRY_ERR_FORMAT,
                              "%s: layer %zu expert %zu: a seat must be a whole number", r->path,
                              layer, expert);
        if (seat < 0 || (unsigned long long)seat >= r->n_seats)
            return FERRY_FAIL(r->err, FERRY_ERR_ARG,
                              "%s: layer %zu expert %zu: seat %lld is not in 0..%zu", r->path,
                              layer, expert, (long long)seat, r->n_seats - 1);
        if ((seen >> seat & 1) != 0)
            return FERRY_FAIL(r->err, FERRY_ERR_ARG,
                              "%s: layer %zu expert %zu: seat %lld is listed twice", r->path, layer,
                              expert, (long long)seat);
        seen |= (uint64_t)1 << seat;
        seats[i] = (unsigned char)seat; /* distinct and below n_seats: at most LIMIT_SEATS */
    }
    return placement_add(p, layer * r->n_experts + expert, seats, n, r->err);
}

static enum ferry_status read_top(struct reader *r, json_t *json)
{
    const json_t *version = json_object_get(json, "version");
    const json_t *layers = json_object_get(json, "layers");

    if (!json_is_object(json) || !json_is_integer(version) || !json_is_array(layers))
        return FERRY_FAIL(r->err, FERRY_ERR_FORMAT,
                          "%s: is no placement: wanted {\"version\": 1, \"layers\": [...]}",
                          r->path);
    if (json_integer_value(version) != 1)
        return FERRY_FAIL(r->err, FERRY_ERR_FORMAT,
                          "%s: has version %lld of placements, this program reads version 1",
                          r->path, (long long)json_integer_value(version));
    enum ferry_status st = check_keys(r, json, "version", "layers");
    for (size_t i = 0; i < json_array_size(layers) && st == FERRY_OK; i++)
        st = read_layer(r, json_array_get(layers, i), i);
    for (size_t l = 0; l < r->n_layers && st == FERRY_OK; l++) {
        if (r->layer_has_experts[l] && r->layers[l] == NULL)
            st = FERRY_FAIL(r->err, FERRY_ERR_ARG,
                            "%s: layer %zu is missing; the plan is for another model", r->path, l);
    }
    return st;
}

enum ferry_status placement_read(struct placement **ret, const char *path,
                                 const unsigned char *layer_has_experts, size_t n_layers,
                                 size_t n_experts, size_t n_seats, struct ferry_error *err)
{
    struct reader r = {path, layer_has_experts, n_layers, n_experts, n_seats, NULL, err};
    struct placement *p = NULL;
    json_t *json = NULL;

    enum ferry_status st = placement_start(&p, n_layers, n_experts, n_seats, err);
    if (st != FERRY_OK)
        return st;
    r.layers = mem_array(n_layers, sizeof *r.layers);
    if (r.layers == NULL)
        st = FERRY_FAIL(err, FERRY_ERR_NOMEM, "placement: no memory for %zu layers", n_layers);
    if (st == FERRY_OK)
        st = parse(&r, &json);
    if (st == FERRY_OK)
        st = read_top(&r, json);
    for (size_t i = 0; i < n_layers * n_experts && st == FERRY_OK; i++) {
        if (layer_has_experts[i / n_experts])
            st = read_expert(&r, p, i / n_experts, i % n_experts);
        else
            st = placement_add(p, i, NULL, 0, err);
    }
    if (st == FERRY_OK)
        st = placement_finish(p, err);
    if (st == FERRY_OK) {
        *ret = p;
        p = NULL;
    }
    json_decref(json);
    mem_free(r.layers);
    placement_destroy(p);
    return st;
}

/* ---- writing ---- */

struct text {
    char *data;
    size_t n, capacity;
    bool failed;
};

static void put(struct text *t, const char *s)
{
    size_t n = strlen(s);

    t->failed = t->failed || !mem_reserve(&t->data, t->n, &t->capacity, n, 4096);
    if (t->failed)
        return;
    memcpy(t->data + t->n, s, n);
    t->n += n;
}

static void put_number(struct text *t, const char *before, size_t number)
{
    char digits[64];

    (void)snprintf(digits, sizeof digits, "%s%zu", before, number);
    put(t, digits);
}

/* One line per layer: a plan of thousands of experts stays readable, and diffs stay small. */
static void put_layer(struct text *t, const struct placement *p, size_t layer)
{
    put_number(t, "\n  {\"layer\": ", layer);
    put(t, ", \"experts\": [");
    for (size_t e = 0; e < p->n_experts; e++) {
        size_t i = layer * p->n_experts + e;
        put(t, e > 0 ? ", [" : "[");
        for (uint32_t s = p->first[i]; s < p->first[i + 1]; s++)
            put_number(t, s > p->first[i] ? ", " : "", p->seats[s]);
        put(t, "]");
    }
    put(t, "]}");
}

enum ferry_status placement_write(const struct placement *p, const char *path,
                                  struct ferry_error *err)
{
    struct text t = {0};
    bool first = true;

    put(&t, "{\"version\": 1, \"layers\": [");
    for (size_t l = 0; l < p->n_layers; l++) {
        if (p->listed[l * p->n_experts] == 0) /* the layer has no experts */
            continue;
        put(&t, first ? "" : ",");
        put_layer(&t, p, l);
        first = false;
    }
    put(&t, "\n]}\n");
    enum ferry_status st = t.failed
                               ? FERRY_FAIL(err, FERRY_ERR_NOMEM,
                                            "%s: no memory to write %zu layers", path, p->n_layers)
                               : whole_file_write(path, t.data, t.n, err);
    mem_free(t.data);
    return st;
}
