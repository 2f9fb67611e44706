/* Manifests of experts' hashes. See manifest.h. */
#include "expert/manifest.h"

#include "base/alloc.h"
#include "base/assert.h"
#include "base/error.h"
#include "base/limits.h"
#include "base/whole_file.h"
#include "file/hash.h"
#include "file/json.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

enum { HEX = 65 }; /* 64 digits and a 0 */

struct expert_manifest {
    size_t n_layers, n_experts;
    bool *layer_has_experts; /* [n_layers] */
    char *hashes;            /* [n_layers, n_experts, HEX]; "": none */
    char model[HEX], root[HEX];
};

char *expert_manifest_path(const struct checkpoint *checkpoint)
{
    bool is_file = checkpoint_format(checkpoint) == CHECKPOINT_FORMAT_GGUF;
    const char *stem = is_file ? checkpoint_first_file(checkpoint) : checkpoint_dir(checkpoint);
    size_t n = strlen(stem) + 32;
    char *path = mem_alloc(n);

    if (path == NULL)
        return NULL;
    if (is_file)
        (void)snprintf(path, n, "%s.ferry.json", stem);
    else if (stem[0] == 0)
        (void)snprintf(path, n, "ferry-manifest.json");
    else
        (void)snprintf(path, n, "%s/ferry-manifest.json", stem);
    return path;
}

void expert_manifest_destroy(struct expert_manifest *m)
{
    if (m == NULL)
        return;
    mem_free(m->layer_has_experts);
    mem_free(m->hashes);
    mem_free(m);
}

static char *at(const struct expert_manifest *m, size_t layer, size_t expert)
{
    FERRY_ASSERT(layer < m->n_layers && expert < m->n_experts);
    return m->hashes + (layer * m->n_experts + expert) * HEX;
}

const char *expert_manifest_hash(const struct expert_manifest *manifest, size_t layer,
                                 size_t expert)
{
    return at(manifest, layer, expert);
}

const char *expert_manifest_root(const struct expert_manifest *manifest)
{
    return manifest->root;
}

/* No hashes yet. */
static enum ferry_status start(struct expert_manifest **ret,
                               const struct expert_manifest_shape *shape, struct ferry_error *err)
{
    struct expert_manifest *m = mem_zero(sizeof *m);

    if (m != NULL) {
        m->n_layers = shape->n_layers;
        m->n_experts = shape->n_experts;
        m->layer_has_experts = mem_array(shape->n_layers, sizeof *m->layer_has_experts);
        m->hashes = mem_array(shape->n_layers * shape->n_experts, HEX);
    }
    if (m == NULL || m->layer_has_experts == NULL || m->hashes == NULL) {
        expert_manifest_destroy(m);
        return FERRY_FAIL(err, FERRY_ERR_NOMEM, "manifest: no memory for %zu layers of %zu experts",
                          shape->n_layers, shape->n_experts);
    }
    memcpy(m->layer_has_experts, shape->layer_has_experts,
           shape->n_layers * sizeof *m->layer_has_experts);
    (void)snprintf(m->model, sizeof m->model, "%s", shape->model_hash);
    *ret = m;
    return FERRY_OK;
}

/* Every expert has its hash: computes the root. */
static enum ferry_status finish(struct expert_manifest *m, struct ferry_error *err)
{
    struct hash *hash = hash_create();
    bool good = hash != NULL;

    if (good) {
        hash_text(hash, "ferry manifest 1");
        hash_text(hash, m->model);
        hash_u64(hash, m->n_layers);
        hash_u64(hash, m->n_experts);
        for (size_t i = 0; i < m->n_layers * m->n_experts; i++)
            hash_text(hash, m->hashes + i * HEX);
        good = hash_finish(hash, m->root);
    }
    hash_destroy(hash);
    return good ? FERRY_OK : FERRY_FAIL(err, FERRY_ERR_NOMEM, "manifest: no memory to hash it");
}

enum ferry_status expert_manifest_create(struct expert_manifest **ret,
                                         const struct expert_manifest_shape *shape,
                                         expert_hash_fn *hash, void *arg, struct ferry_error *err)
{
    struct expert_manifest *m = NULL;

    enum ferry_status st = start(&m, shape, err);
    for (size_t l = 0; l < shape->n_layers && st == FERRY_OK; l++) {
        for (size_t e = 0; e < shape->n_experts && m->layer_has_experts[l]; e++) {
            char *hex = at(m, l, e);
            hash(arg, l, e, hex);
            if (hex[0] == 0) {
                st = FERRY_FAIL(err, FERRY_ERR_NOMEM,
                                "manifest: no memory to hash expert %zu of layer %zu", e, l);
                break;
            }
        }
    }
    if (st == FERRY_OK)
        st = finish(m, err);
    if (st != FERRY_OK) {
        expert_manifest_destroy(m);
        return st;
    }
    *ret = m;
    return FERRY_OK;
}

/* ---- reading ---- */

static bool is_hash(const char *text)
{
    return text != NULL && strlen(text) == 64 && strspn(text, "0123456789abcdef") == 64;
}

/* Refuses members beside the three given. */
static enum ferry_status check_keys(json_t *object, const char *a, const char *b, const char *c,
                                    const char *path, struct ferry_error *err)
{
    const char *key;
    json_t *value;

    json_object_foreach(object, key, value)
    {
        if (strcmp(key, a) != 0 && strcmp(key, b) != 0 && strcmp(key, c) != 0)
            return FERRY_FAIL(err, FERRY_ERR_FORMAT,
                              "%s: unknown key '%.60s'; only \"%s\", \"%s\" and \"%s\" may be here",
                              path, key, a, b, c);
    }
    return FERRY_OK;
}

/* One element of "experts". */
static enum ferry_status read_expert(struct expert_manifest *m, json_t *item, size_t position,
                                     const char *path, struct ferry_error *err)
{
    uint64_t layer = 0, expert = 0;
    const char *hex = NULL;

    if (!json_is_object(item) || !json_get_u64(item, "layer", &layer, NULL) ||
        !json_get_u64(item, "expert", &expert, NULL) ||
        !json_get_string(item, "sha256", &hex, NULL) || !is_hash(hex))
        return FERRY_FAIL(err, FERRY_ERR_FORMAT,
                          "%s: element %zu of \"experts\" must be {\"layer\": number, \"expert\": "
                          "number, \"sha256\": 64 lower-case hex digits}",
                          path, position);
    enum ferry_status st = check_keys(item, "layer", "expert", "sha256", path, err);
    if (st != FERRY_OK)
        return st;
    if (layer >= m->n_layers || !m->layer_has_experts[layer] || expert >= m->n_experts)
        return FERRY_FAIL(err, FERRY_ERR_FORMAT, "%s: the model has no expert %llu in layer %llu",
                          path, (unsigned long long)expert, (unsigned long long)layer);
    char *place = at(m, (size_t)layer, (size_t)expert);
    if (place[0] != 0)
        return FERRY_FAIL(err, FERRY_ERR_FORMAT, "%s: expert %llu of layer %llu is listed twice",
                          path, (unsigned long long)expert, (unsigned long long)layer);
    memcpy(place, hex, HEX);
    return FERRY_OK;
}

/* A manifest that leaves an expert out would leave it unverified, silently. */
static enum ferry_status check_complete(const struct expert_manifest *m, const char *path,
                                        struct ferry_error *err)
{
    for (size_t l = 0; l < m->n_layers; l++) {
        for (size_t e = 0; e < m->n_experts && m->layer_has_experts[l]; e++) {
            if (at(m, l, e)[0] == 0)
                return FERRY_FAIL(err, FERRY_ERR_FORMAT,
                                  "%s: expert %zu of layer %zu is missing; remove it and write it "
                                  "anew (ferry inspect MODEL --write-manifest)",
                                  path, e, l);
        }
    }
    return FERRY_OK;
}

static enum ferry_status read_top(struct expert_manifest *m, json_t *json, const char *path,
                                  struct ferry_error *err)
{
    uint64_t version = 0;
    const char *model = NULL;
    const json_t *experts = json_object_get(json, "experts");

    if (!json_is_object(json) || !json_get_u64(json, "version", &version, NULL) ||
        !json_get_string(json, "model", &model, NULL) || !is_hash(model) || !json_is_array(experts))
        return FERRY_FAIL(
            err, FERRY_ERR_FORMAT,
            "%s: is no manifest: wanted {\"version\": 1, \"model\": 64 lower-case hex "
            "digits, \"experts\": [...]}",
            path);
    if (version != 1)
        return FERRY_FAIL(err, FERRY_ERR_FORMAT,
                          "%s: has version %llu of manifests, this program reads version 1", path,
                          (unsigned long long)version);
    enum ferry_status st = check_keys(json, "version", "model", "experts", path, err);
    if (st == FERRY_OK && strcmp(model, m->model) != 0)
        st =
            FERRY_FAIL(err, FERRY_ERR_FORMAT,
                       "%s: is of model %.16s..., the one here is %.16s...; put the right manifest "
                       "there, or remove this one to load without comparing",
                       path, model, m->model);
    for (size_t i = 0; i < json_array_size(experts) && st == FERRY_OK; i++)
        st = read_expert(m, json_array_get(experts, i), i, path, err);
    if (st == FERRY_OK)
        st = check_complete(m, path, err);
    return st;
}

/* An expert is an object of three; keys may be half as many as values. */
enum { VALUES_EACH = 6 };

enum ferry_status expert_manifest_read(struct expert_manifest **ret, const char *path,
                                       const struct expert_manifest_shape *shape,
                                       struct ferry_error *err)
{
    struct ferry_error cause = {0};
    struct expert_manifest *m = NULL;
    json_t *json = NULL;
    char *text = NULL;
    size_t n = 0;

    enum ferry_status st = whole_file_read(&text, &n, path, LIMIT_JSON_FILE, &cause);
    if (st == FERRY_ERR_NOT_FOUND) {
        *ret = NULL;
        return FERRY_OK;
    }
    if (st != FERRY_OK) {
        if (err != NULL)
            *err = cause;
        return st;
    }
    st = start(&m, shape, err);
    if (st == FERRY_OK)
        st = json_parse(&json, text, n, VALUES_EACH * shape->n_layers * shape->n_experts + 64, path,
                        err);
    if (st == FERRY_OK)
        st = read_top(m, json, path, err);
    if (st == FERRY_OK)
        st = finish(m, err);
    if (st == FERRY_OK) {
        *ret = m;
        m = NULL;
    }
    json_decref(json);
    mem_free(text);
    expert_manifest_destroy(m);
    return st;
}

/* ---- writing ---- */

enum ferry_status expert_manifest_write(const struct expert_manifest *m, const char *path,
                                        struct ferry_error *err)
{
    enum { LINE_BYTES = 160 };
    size_t n = 0, n_bytes = (m->n_layers * m->n_experts + 2) * LINE_BYTES;
    char *text = mem_alloc(n_bytes);
    const char *before = "";

    if (text == NULL)
        return FERRY_FAIL(err, FERRY_ERR_NOMEM, "%s: no memory to write %zu layers", path,
                          m->n_layers);
    n += (size_t)snprintf(text, n_bytes, "{\"version\": 1, \"model\": \"%s\", \"experts\": [",
                          m->model);
    for (size_t l = 0; l < m->n_layers; l++) {
        for (size_t e = 0; e < m->n_experts && m->layer_has_experts[l]; e++) {
            n += (size_t)snprintf(text + n, n_bytes - n,
                                  "%s\n{\"layer\": %zu, \"expert\": %zu, \"sha256\": \"%s\"}",
                                  before, l, e, at(m, l, e));
            before = ",";
        }
    }
    n += (size_t)snprintf(text + n, n_bytes - n, "\n]}\n");
    FERRY_ASSERT(n < n_bytes);
    enum ferry_status st = whole_file_create(path, text, n, err);
    mem_free(text);
    return st;
}
