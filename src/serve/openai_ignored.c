/* Names for X-Ignored-Params. See openai_ignored.h. */
#include "serve/openai_ignored.h"

#include "serve/openai_request.h"

#include <string.h>

enum { NAME_BYTES_MAX = 64 }; /* of each, in the header */

static bool is_plain(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
           c == '.' || c == '-';
}

static bool append_name(struct bytes *out, const char *name)
{
    size_t n = strnlen(name, NAME_BYTES_MAX);

    for (size_t i = 0; i < n; i++) {
        char c = is_plain(name[i]) ? name[i] : '?';
        if (!bytes_append(out, &c, 1))
            return false;
    }
    return true;
}

enum ferry_status openai_ignored_add(struct openai_ignored *ignored, const char *prefix,
                                     const char *name, struct openai_error *err)
{
    struct bytes *out = &ignored->names;

    if (ignored->strict) {
        (void)openai_error_set(err, FERRY_ERR_UNSUPPORTED,
                               "this server has no such parameter, and was told to refuse what it "
                               "would ignore (--strict-params)");
        openai_error_param(err, "%s%s", prefix, name);
        return FERRY_ERR_UNSUPPORTED;
    }
    size_t place = ignored->count++;
    if (place > OPENAI_IGNORED_MAX)
        return FERRY_OK;
    bool good = place == 0 || bytes_append(out, ", ", 2);
    if (place == OPENAI_IGNORED_MAX)
        good = good && bytes_append(out, "...", 3);
    else
        good = good && append_name(out, prefix) && append_name(out, name);
    if (!good)
        return openai_error_set(err, FERRY_ERR_NOMEM, "out of memory");
    return FERRY_OK;
}

enum ferry_status openai_ignored_take(struct openai_ignored *ignored, char **ret_value,
                                      struct openai_error *err)
{
    if (ignored->count == 0) {
        *ret_value = NULL;
        return FERRY_OK;
    }
    if (!bytes_append(&ignored->names, "", 1))
        return openai_error_set(err, FERRY_ERR_NOMEM, "out of memory");
    *ret_value = ignored->names.data;
    ignored->names = (struct bytes){0};
    ignored->count = 0;
    return FERRY_OK;
}

void openai_ignored_fini(struct openai_ignored *ignored)
{
    bytes_fini(&ignored->names);
}
