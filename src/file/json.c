/* JSON with limits. See json.h. */
#include "file/json.h"

#include "base/error.h"
#include "base/limits.h"
#include "file/map.h"

#include <string.h>

/* One pass over the raw bytes, before jansson allocates anything: nesting, number of values and of
 * keys. It need not be exact for malformed text, which jansson refuses. */
static enum ferry_status check_limits(const unsigned char *s, size_t size, size_t max_values,
                                      const char *name, struct ferry_error *err)
{
    size_t depth = 0;
    size_t n_values = 1;
    size_t n_keys = 0;
    bool in_string = false;

    for (size_t i = 0; i < size; i++) {
        if (in_string) {
            if (s[i] == '\\')
                i++;
            else if (s[i] == '"')
                in_string = false;
            continue;
        }
        switch (s[i]) {
        case '"':
            in_string = true;
            break;
        case '[':
        case '{':
            n_values++;
            if (++depth > LIMIT_JSON_DEPTH)
                return FERRY_FAIL(err, FERRY_ERR_LIMIT,
                                  "%s: JSON nests deeper than %d at offset %zu", name,
                                  (int)LIMIT_JSON_DEPTH, i);
            break;
        case ']':
        case '}':
            depth -= depth > 0;
            break;
        case ',':
            n_values++;
            break;
        case ':':
            n_keys++;
            break;
        default:
            break;
        }
        if (n_values > max_values || n_keys > max_values / 2)
            return FERRY_FAIL(err, FERRY_ERR_LIMIT,
                              "%s: JSON has more than %zu values or %zu keys (reached at offset "
                              "%zu); fetch it again, or split a checkpoint into smaller shards",
                              name, max_values, max_values / 2, i);
    }
    return FERRY_OK;
}

enum ferry_status json_parse(json_t **ret_json, const void *data, size_t size, size_t max_values,
                             const char *name, struct ferry_error *err)
{
    json_error_t cause;

    enum ferry_status st = check_limits(data, size, max_values, name, err);
    if (st != FERRY_OK)
        return st;
    memset(&cause, 0, sizeof cause);
    json_t *json = json_loadb(data, size, JSON_REJECT_DUPLICATES, &cause);
    if (json != NULL) {
        *ret_json = json;
        return FERRY_OK;
    }
    /* jansson leaves the text empty when it could not allocate in the middle of a value. */
    if (json_error_code(&cause) == json_error_out_of_memory || cause.text[0] == 0)
        return FERRY_FAIL(err, FERRY_ERR_NOMEM, "%s: out of memory while reading %zu bytes of JSON",
                          name, size);
    return FERRY_FAIL(err, FERRY_ERR_FORMAT, "%s: bad JSON in line %d column %d: %s", name,
                      cause.line, cause.column, cause.text);
}

enum ferry_status json_load_object(json_t **ret_json, const char *path, struct ferry_error *err)
{
    struct map *map = NULL;
    json_t *json = NULL;

    enum ferry_status st = map_open(&map, path, LIMIT_JSON_FILE, err);
    if (st != FERRY_OK)
        return st;
    st = json_parse(&json, map->data, map->size, LIMIT_HEADER_VALUES, map->name, err);
    if (st == FERRY_OK && !json_is_object(json)) {
        json_decref(json);
        st = FERRY_FAIL(err, FERRY_ERR_FORMAT, "%s: holds no JSON object", map->name);
    }
    if (st == FERRY_OK)
        *ret_json = json;
    map_close(map);
    return st;
}

/* The member, NULL when absent or null. */
static json_t *member(const json_t *object, const char *key)
{
    json_t *value = json_object_get(object, key);
    return json_is_null(value) ? NULL : value;
}

static bool wrong_type(bool *ret_bad)
{
    if (ret_bad != NULL)
        *ret_bad = true;
    return false;
}

bool json_get_u64(const json_t *object, const char *key, uint64_t *ret, bool *ret_bad)
{
    const json_t *value = member(object, key);

    if (value == NULL)
        return false;
    if (!json_is_integer(value) || json_integer_value(value) < 0)
        return wrong_type(ret_bad);
    *ret = (uint64_t)json_integer_value(value);
    return true;
}

bool json_get_f64(const json_t *object, const char *key, double *ret, bool *ret_bad)
{
    const json_t *value = member(object, key);

    if (value == NULL)
        return false;
    if (!json_is_number(value))
        return wrong_type(ret_bad);
    *ret = json_number_value(value);
    return true;
}

bool json_get_bool(const json_t *object, const char *key, bool *ret, bool *ret_bad)
{
    const json_t *value = member(object, key);

    if (value == NULL)
        return false;
    if (!json_is_boolean(value))
        return wrong_type(ret_bad);
    *ret = json_is_true(value);
    return true;
}

bool json_get_string(const json_t *object, const char *key, const char **ret, bool *ret_bad)
{
    const json_t *value = member(object, key);

    if (value == NULL)
        return false;
    if (!json_is_string(value))
        return wrong_type(ret_bad);
    *ret = json_string_value(value);
    return true;
}
