/* Typed look-ups. See openai_fields.h. */
#include "serve/openai_fields.h"

#include "base/alloc.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

enum ferry_status field_fail(const struct fields *fields, const char *name,
                             enum ferry_status status, const char *format, ...)
{
    char text[sizeof fields->err->message];
    va_list args;

    va_start(args, format);
    (void)vsnprintf(text, sizeof text, format, args);
    va_end(args);
    (void)openai_error_set(fields->err, status, "%s%s %s", fields->path, name, text);
    openai_error_param(fields->err, "%s%s", fields->path, name);
    return status;
}

static const char *type_name(const json_t *value)
{
    switch (json_typeof(value)) {
    case JSON_OBJECT:
        return "an object";
    case JSON_ARRAY:
        return "an array";
    case JSON_STRING:
        return "a string";
    case JSON_INTEGER:
        return "an integer";
    case JSON_REAL:
        return "a real number";
    case JSON_TRUE:
    case JSON_FALSE:
        return "a boolean";
    default:
        return "null";
    }
}

static enum ferry_status wrong_type(const struct fields *fields, const char *name,
                                    const json_t *value, const char *wanted)
{
    return field_fail(fields, name, FERRY_ERR_ARG, "must be %s, not %s", wanted, type_name(value));
}

json_t *field_get(const struct fields *fields, const char *name)
{
    json_t *value = json_object_get(fields->object, name);
    return json_is_null(value) ? NULL : value;
}

enum ferry_status field_int(const struct fields *fields, const char *name, int64_t min, int64_t max,
                            int64_t *ret)
{
    const json_t *value = field_get(fields, name);

    if (value == NULL)
        return FERRY_OK;
    if (!json_is_integer(value))
        return wrong_type(fields, name, value, "an integer");
    int64_t number = json_integer_value(value);
    if (number < min || number > max)
        return field_fail(fields, name, FERRY_ERR_ARG,
                          "is %" PRId64 "; it must be in [%" PRId64 ", %" PRId64 "]", number, min,
                          max);
    *ret = number;
    return FERRY_OK;
}

enum ferry_status field_size(const struct fields *fields, const char *name, size_t min, size_t max,
                             size_t *ret)
{
    int64_t number = (int64_t)min;

    if (field_get(fields, name) == NULL)
        return FERRY_OK;
    enum ferry_status st = field_int(fields, name, (int64_t)min, (int64_t)max, &number);
    if (st == FERRY_OK)
        *ret = (size_t)number;
    return st;
}

enum ferry_status field_real(const struct fields *fields, const char *name, double min, double max,
                             float *ret)
{
    const json_t *value = field_get(fields, name);

    if (value == NULL)
        return FERRY_OK;
    if (!json_is_number(value))
        return wrong_type(fields, name, value, "a number");
    double number = json_number_value(value);
    if (!(number >= min && number <= max)) {
        char text[40];
        /* Not "2", where 2 would be right. */
        for (int digits = 6; digits <= 17; digits++) {
            (void)snprintf(text, sizeof text, "%.*g", digits, number);
            if (strtod(text, NULL) == number)
                break;
        }
        return field_fail(fields, name, FERRY_ERR_ARG, "is %s; it must be in [%g, %g]", text, min,
                          max);
    }
    *ret = (float)number;
    return FERRY_OK;
}

enum ferry_status field_bool(const struct fields *fields, const char *name, bool *ret)
{
    const json_t *value = field_get(fields, name);

    if (value == NULL)
        return FERRY_OK;
    if (!json_is_boolean(value))
        return wrong_type(fields, name, value, "true or false");
    *ret = json_is_true(value);
    return FERRY_OK;
}

enum ferry_status field_string(const struct fields *fields, const char *name, const char **ret)
{
    const json_t *value = field_get(fields, name);

    if (value == NULL)
        return FERRY_OK;
    if (!json_is_string(value))
        return wrong_type(fields, name, value, "a string");
    *ret = json_string_value(value);
    return FERRY_OK;
}

enum ferry_status field_array(const struct fields *fields, const char *name, size_t max_items,
                              json_t **ret)
{
    json_t *value = field_get(fields, name);

    if (value == NULL)
        return FERRY_OK;
    if (!json_is_array(value))
        return wrong_type(fields, name, value, "an array");
    if (json_array_size(value) > max_items)
        return field_fail(fields, name, FERRY_ERR_LIMIT, "has %zu items; the most are %zu",
                          json_array_size(value), max_items);
    *ret = value;
    return FERRY_OK;
}

enum ferry_status field_object(const struct fields *fields, const char *name, json_t **ret)
{
    json_t *value = field_get(fields, name);

    if (value == NULL)
        return FERRY_OK;
    if (!json_is_object(value))
        return wrong_type(fields, name, value, "an object");
    *ret = value;
    return FERRY_OK;
}

enum ferry_status field_ids(const struct fields *fields, const char *name, const json_t *array,
                            size_t n_vocab, int32_t **ret_ids, size_t *ret_n)
{
    size_t n = json_array_size(array);
    int64_t end = n_vocab > 0 && n_vocab < INT32_MAX ? (int64_t)n_vocab : INT32_MAX;
    int32_t *ids = n > 0 ? mem_array(n, sizeof *ids) : NULL;
    enum ferry_status st = FERRY_OK;

    if (n > 0 && ids == NULL)
        return openai_error_set(fields->err, FERRY_ERR_NOMEM, "out of memory for %zu ids", n);
    for (size_t i = 0; i < n && st == FERRY_OK; i++) {
        const json_t *item = json_array_get(array, i);
        char place[96];
        (void)snprintf(place, sizeof place, "%s[%zu]", name, i);
        if (!json_is_integer(item))
            st = wrong_type(fields, place, item, "a token id");
        else if (json_integer_value(item) < 0 || json_integer_value(item) >= end)
            st = field_fail(fields, place, FERRY_ERR_ARG,
                            "is %" JSON_INTEGER_FORMAT "; ids are in [0, %" PRId64 ")",
                            json_integer_value(item), end);
        else
            ids[i] = (int32_t)json_integer_value(item);
    }
    if (st != FERRY_OK) {
        mem_free(ids);
        return st;
    }
    *ret_ids = ids;
    *ret_n = n;
    return FERRY_OK;
}
