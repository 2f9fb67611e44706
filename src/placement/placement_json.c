/* Plans as JSON: docs/json/placement.schema.json. See placement.h.
 *
 * A plan may come from anywhere: nothing in it is skipped. */
#include "placement/placement.h"

#include "base/alloc.h"
#include "base/error.h"
#include "base/limits.h"
#include "base/whole_file.h"
#include "placement/inside.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

/* One read in progress. */
struct reader {
    const char *name;
    const bool *layer_has_experts;
    size_t n_layers, n_experts, n_seats;
    const json_t **layers; /* [n_layers] the lists of experts; NULL: not seen yet */
    struct ferry_error *err;
};

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
                              r->name, key, a, b);
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
                          r->name, position);
    enum ferry_status st = check_keys(r, item, "layer", "experts");
    if (st != FERRY_OK)
        return st;
    if (l < 0 || (unsigned long long)l >= r->n_layers)
        return FERRY_FAIL(r->err, FERRY_ERR_ARG,
                          "%s: layer %lld is not in 0..%zu; the plan is for another model", r->name,
                          (long long)l, r->n_layers - 1);
    if (!r->layer_has_experts[l])
        return FERRY_FAIL(r->err, FERRY_ERR_ARG,
                          "%s: layer %lld has no experts in this model and must be left out",
                          r->name, (long long)l);
    if (r->layers[l] != NULL)
        return FERRY_FAIL(r->err, FERRY_ERR_ARG, "%s: layer %lld is listed twice", r->name,
                          (long long)l);
    if (json_array_size(experts) != r->n_experts)
        return FERRY_FAIL(r->err, FERRY_ERR_ARG,
                          "%s: layer %lld lists %zu experts, the model has %zu", r->name,
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
                          "%s: layer %zu expert %zu: wanted a list of seats", r->name, layer,
                          expert);
    size_t n = json_array_size(list);
    if (n == 0)
        return FERRY_FAIL(r->err, FERRY_ERR_ARG, "%s: layer %zu expert %zu has no seat", r->name,
                          layer, expert);
    for (size_t i = 0; i < n; i++) {
        const json_t *item = json_array_get(list, i);
        json_int_t seat = json_integer_value(item);
        if (!json_is_integer(item))
            return FERRY_FAIL(r->err, FERRY_ERR_FORMAT,
                              "%s: layer %zu expert %zu: a seat must be a whole number", r->name,
                              layer, expert);
        if (seat < 0 || (unsigned long long)seat >= r->n_seats)
            return FERRY_FAIL(r->err, FERRY_ERR_ARG,
                              "%s: layer %zu expert %zu: seat %lld is not in 0..%zu", r->name,
                              layer, expert, (long long)seat, r->n_seats - 1);
        if ((seen >> seat & 1) != 0)
            return FERRY_FAIL(r->err, FERRY_ERR_ARG,
                              "%s: layer %zu expert %zu: seat %lld is listed twice", r->name, layer,
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
                          r->name);
    if (json_integer_value(version) != 1)
        return FERRY_FAIL(r->err, FERRY_ERR_FORMAT,
                          "%s: has version %lld of placements, this program reads version 1",
                          r->name, (long long)json_integer_value(version));
    enum ferry_status st = check_keys(r, json, "version", "layers");
    for (size_t i = 0; i < json_array_size(layers) && st == FERRY_OK; i++)
        st = read_layer(r, json_array_get(layers, i), i);
    for (size_t l = 0; l < r->n_layers && st == FERRY_OK; l++) {
        if (r->layer_has_experts[l] && r->layers[l] == NULL)
            st = FERRY_FAIL(r->err, FERRY_ERR_ARG,
                            "%s: layer %zu is missing; the plan is for another model", r->name, l);
    }
    return st;
}

enum ferry_status placement_from_json(struct placement **ret, json_t *json, const char *name,
                                      const bool *layer_has_experts, size_t n_layers,
                                      size_t n_experts, size_t n_seats, struct ferry_error *err)
{
    struct reader r = {name, layer_has_experts, n_layers, n_experts, n_seats, NULL, err};
    struct placement *p = NULL;

    enum ferry_status st = placement_start(&p, n_layers, n_experts, n_seats, err);
    if (st != FERRY_OK)
        return st;
    r.layers = mem_array(n_layers, sizeof *r.layers);
    st = r.layers == NULL
             ? FERRY_FAIL(err, FERRY_ERR_NOMEM, "placement: no memory for %zu layers", n_layers)
             : read_top(&r, json);
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
