/* Methods and members. See template_method.h. */
#include "text/template_method.h"

#include "base/limits.h"
#include "text/template_ops.h"
#include "text/template_print.h"
#include "text/template_text.h"
#include "text/unicode.h"

#include <string.h>

enum { ARGS_MAX = 3 };

/* A call with its arguments put in place. */
struct call {
    struct tpl_run *run;
    const struct tpl_value *self;
    const struct tpl_args *args;
    struct tpl_value a[ARGS_MAX]; /* MISSING where none was given */
    const char *name;
    int variant;
};

typedef bool method_function(struct call *call, struct tpl_value *ret);

bool tpl_bind(struct tpl_run *run, const struct tpl_args *args, const char *what,
              const char *const *names, size_t n_names, struct tpl_value *ret)
{
    if (args->n > n_names)
        return tpl_fail(run, FERRY_ERR_ARG, "%s takes at most %zu arguments (%zu given)", what,
                        n_names, args->n);
    for (size_t i = 0; i < n_names; i++)
        ret[i] = i < args->n ? args->values[i] : (struct tpl_value){0};
    for (size_t k = 0; k < args->n_keywords; k++) {
        const struct tpl_value *name = &args->keywords[k].name;
        size_t i = 0;
        while (i < n_names && !tpl_is_text(name, names[i]))
            i++;
        if (i == n_names)
            return tpl_fail(run, FERRY_ERR_ARG, "%s has no argument '%.*s'", what,
                            (int)(name->u.s.size > 60 ? 60 : name->u.s.size), name->u.s.data);
        if (ret[i].kind != TPL_MISSING)
            return tpl_fail(run, FERRY_ERR_ARG, "%s got several values for '%s'", what, names[i]);
        ret[i] = args->keywords[k].value;
    }
    return true;
}

bool tpl_join(struct tpl_run *run, const struct tpl_value *separator, const struct tpl_value *items,
              size_t n, bool all, struct tpl_value *ret)
{
    struct tpl_builder b = {0};

    for (size_t i = 0; i < n; i++) {
        if (!tpl_work(run, 1) || (i > 0 && !tpl_put_string(run, &b, separator)))
            return false;
        if (!all && items[i].kind != TPL_STRING)
            return tpl_fail(run, FERRY_ERR_ARG, "join: item %zu is of type %s, not str", i,
                            tpl_type_name(&items[i]));
        if (!tpl_print(run, &b, &items[i]))
            return false;
    }
    *ret = tpl_built(&b);
    return true;
}

static bool wrong_type(struct call *call, size_t i, const char *want)
{
    if (call->a[i].kind == TPL_MISSING)
        return tpl_fail(call->run, FERRY_ERR_ARG, "%s() needs argument %zu", call->name, i + 1);
    return tpl_fail(call->run, FERRY_ERR_ARG, "%s(): argument %zu must be %s, not %s", call->name,
                    i + 1, want, tpl_type_name(&call->a[i]));
}

/* An argument that must be a string; none or absent: NULL, when that is allowed. */
static bool string_or_none(struct call *call, size_t i, const struct tpl_string **ret)
{
    *ret = NULL;
    if (call->a[i].kind == TPL_MISSING || call->a[i].kind == TPL_NONE)
        return true;
    if (call->a[i].kind != TPL_STRING)
        return wrong_type(call, i, "str");
    *ret = &call->a[i].u.s;
    return true;
}

static bool int_or(struct call *call, size_t i, int64_t absent, int64_t *ret)
{
    *ret = absent;
    if (call->a[i].kind == TPL_MISSING || tpl_as_int(&call->a[i], ret))
        return true;
    return wrong_type(call, i, "int");
}

static bool no_arguments(struct call *call)
{
    if (call->args->n + call->args->n_keywords > 0)
        return tpl_fail(call->run, FERRY_ERR_ARG, "%s() takes no arguments (%zu given)", call->name,
                        call->args->n + call->args->n_keywords);
    return true;
}

enum { STRIP_LEFT = 1, STRIP_RIGHT = 2 };

static bool strip(struct call *call, struct tpl_value *ret)
{
    const struct tpl_string *chars;
    return string_or_none(call, 0, &chars) &&
           tpl_strip(call->run, call->self, chars, (call->variant & STRIP_LEFT) != 0,
                     (call->variant & STRIP_RIGHT) != 0, ret);
}

static bool split(struct call *call, struct tpl_value *ret)
{
    const struct tpl_string *separator;
    int64_t max;

    if (!string_or_none(call, 0, &separator) || !int_or(call, 1, -1, &max))
        return false;
    return call->variant == 0 ? tpl_split(call->run, call->self, separator, max, ret)
                              : tpl_rsplit(call->run, call->self, separator, max, ret);
}

static bool splitlines(struct call *call, struct tpl_value *ret)
{
    return tpl_splitlines(call->run, call->self,
                          call->a[0].kind != TPL_MISSING && tpl_truth(&call->a[0]), ret);
}

static bool change_case(struct call *call, struct tpl_value *ret)
{
    return no_arguments(call) &&
           tpl_change_case(call->run, call->self, (enum tpl_case)call->variant, ret);
}

static bool ask(struct call *call, struct tpl_value *ret)
{
    *ret = tpl_bool(tpl_ask(&call->self->u.s, (enum tpl_question)call->variant));
    return no_arguments(call) && tpl_work(call->run, call->self->u.s.size / 4);
}

static bool replace(struct call *call, struct tpl_value *ret)
{
    int64_t max;

    for (size_t i = 0; i < 2; i++) {
        if (call->a[i].kind != TPL_STRING)
            return wrong_type(call, i, "str");
    }
    return int_or(call, 2, -1, &max) &&
           tpl_replace(call->run, call->self, &call->a[0], &call->a[1], max, ret);
}

/* Whether [start, end) of self, cut by the optional arguments 1 and 2, is there; as bytes. */
static bool cut_self(struct call *call, struct tpl_value *ret, bool *ret_empty)
{
    struct tpl_value *start = call->a[1].kind == TPL_MISSING ? NULL : &call->a[1];
    struct tpl_value *stop = call->a[2].kind == TPL_MISSING ? NULL : &call->a[2];
    int64_t from;
    size_t n;

    *ret = *call->self;
    *ret_empty = false;
    if (start == NULL && stop == NULL)
        return true;
    if (!tpl_length(call->run, call->self, &n))
        return false;
    *ret_empty = start != NULL && tpl_as_int(start, &from) && from > (int64_t)n;
    return tpl_slice(call->run, call->self, start, stop, NULL, ret);
}

static bool has_end(const struct tpl_string *s, const struct tpl_string *end, bool at_start)
{
    return end->size <= s->size &&
           memcmp(at_start ? s->data : s->data + (s->size - end->size), end->data, end->size) == 0;
}

static bool starts_or_ends(struct call *call, struct tpl_value *ret)
{
    struct tpl_value self;
    const struct tpl_value *wanted = &call->a[0];
    size_t n = 1;
    bool empty;

    if (!cut_self(call, &self, &empty))
        return false;
    if (wanted->kind == TPL_SEQ && wanted->u.seq->kind == TPL_TUPLE) {
        n = wanted->u.seq->n;
        wanted = wanted->u.seq->items;
    }
    *ret = tpl_bool(false);
    for (size_t i = 0; i < n; i++) {
        if (wanted[i].kind != TPL_STRING)
            return wrong_type(call, 0, "str or a tuple of str");
        if (!empty && has_end(&self.u.s, &wanted[i].u.s, call->variant == 0))
            *ret = tpl_bool(true);
    }
    return tpl_work(call->run, n);
}

enum { FIND_LAST = 1, FIND_OR_FAIL = 2 };

static bool find(struct call *call, struct tpl_value *ret)
{
    struct tpl_value self;
    bool empty;
    bool ok;

    if (call->a[0].kind != TPL_STRING)
        return wrong_type(call, 0, "str");
    if (!cut_self(call, &self, &empty))
        return false;
    const struct tpl_string *needle = &call->a[0].u.s;
    size_t at = (call->variant & FIND_LAST) != 0 ? tpl_find_last(call->run, &self.u.s, needle, &ok)
                                                 : tpl_find(call->run, &self.u.s, needle, 0, &ok);
    if (!ok)
        return false;
    if (at == SIZE_MAX || empty) {
        if ((call->variant & FIND_OR_FAIL) != 0)
            return tpl_fail(call->run, FERRY_ERR_ARG, "%s(): substring not found", call->name);
        *ret = tpl_int(-1, false);
        return true;
    }
    size_t offset = (size_t)(self.u.s.data - call->self->u.s.data) + at;
    *ret = tpl_int((int64_t)tpl_count_chars(call->self->u.s.data, offset), false);
    return tpl_work_bytes(call->run, offset);
}

static bool count(struct call *call, struct tpl_value *ret)
{
    struct tpl_value self;
    int64_t n = 0;
    size_t at = 0;
    bool empty;
    bool ok = true;

    if (call->a[0].kind != TPL_STRING)
        return wrong_type(call, 0, "str");
    if (!cut_self(call, &self, &empty))
        return false;
    const struct tpl_string *needle = &call->a[0].u.s;
    if (needle->size == 0) {
        size_t n_chars = tpl_count_chars(self.u.s.data, self.u.s.size);
        *ret = tpl_int(empty ? 0 : (int64_t)n_chars + 1, false);
        return true;
    }
    for (; ok && (at = tpl_find(call->run, &self.u.s, needle, at, &ok)) != SIZE_MAX; n++) {
        at += needle->size;
        ok = tpl_work(call->run, 1);
    }
    *ret = tpl_int(n, false);
    return ok;
}

static bool join(struct call *call, struct tpl_value *ret)
{
    struct tpl_value *items;
    size_t n;

    if (call->a[0].kind == TPL_MISSING)
        return wrong_type(call, 0, "iterable");
    return tpl_iterate(call->run, &call->a[0], &items, &n) &&
           tpl_join(call->run, call->self, items, n, false, ret);
}

static bool remove_end(struct call *call, struct tpl_value *ret)
{
    const struct tpl_string *s = &call->self->u.s;

    if (call->a[0].kind != TPL_STRING)
        return wrong_type(call, 0, "str");
    size_t size = has_end(s, &call->a[0].u.s, call->variant == 0) ? call->a[0].u.s.size : 0;
    *ret = call->variant == 0 ? tpl_sub(call->self, size, s->size)
                              : tpl_sub(call->self, 0, s->size - size);
    return true;
}

static bool partition(struct call *call, struct tpl_value *ret)
{
    const struct tpl_string *s = &call->self->u.s;
    bool ok;

    if (call->a[0].kind != TPL_STRING)
        return wrong_type(call, 0, "str");
    const struct tpl_string *separator = &call->a[0].u.s;
    if (separator->size == 0)
        return tpl_fail(call->run, FERRY_ERR_ARG, "%s(): empty separator", call->name);
    bool last = call->variant == 1;
    size_t at = last ? tpl_find_last(call->run, s, separator, &ok)
                     : tpl_find(call->run, s, separator, 0, &ok);
    struct tpl_seq *seq = ok ? tpl_seq_new(call->run, TPL_TUPLE, 3) : NULL;
    if (seq == NULL)
        return false;
    size_t end = at == SIZE_MAX ? at : at + separator->size;
    if (at == SIZE_MAX)
        at = end = last ? 0 : s->size;
    seq->items[0] = tpl_sub(call->self, 0, at);
    seq->items[1] = tpl_sub(call->self, at, end);
    seq->items[2] = tpl_sub(call->self, end, s->size);
    *ret = tpl_seq_value(seq);
    return true;
}

/* ljust, rjust, center, zfill without sign: variant is the kind. */
enum { PAD_LEFT, PAD_RIGHT, PAD_CENTER };

static bool pad(struct call *call, struct tpl_value *ret)
{
    struct tpl_builder b = {0};
    struct tpl_value fill = tpl_text(" ", true);
    int64_t width;
    size_t n;

    if (call->a[0].kind == TPL_MISSING || !int_or(call, 0, 0, &width))
        return call->run->status != FERRY_OK ? false : wrong_type(call, 0, "int");
    if (call->a[1].kind == TPL_STRING)
        fill = call->a[1];
    if (tpl_count_chars(fill.u.s.data, fill.u.s.size) != 1)
        return tpl_fail(call->run, FERRY_ERR_ARG, "%s(): the fill must be one character",
                        call->name);
    if (!tpl_length(call->run, call->self, &n))
        return false;
    uint64_t total = width > (int64_t)n ? (uint64_t)width - n : 0;
    uint64_t left = call->variant == PAD_RIGHT ? 0 : total;
    if (call->variant == PAD_CENTER) /* as Python rounds it */
        left = total / 2 + (total & (uint64_t)width & 1);
    if (!tpl_put_times(call->run, &b, &fill, left) || !tpl_put_string(call->run, &b, call->self) ||
        !tpl_put_times(call->run, &b, &fill, total - left))
        return false;
    *ret = tpl_built(&b);
    return true;
}

/* One field of str.format: {}, {0} or {name}. */
static bool put_field(struct call *call, struct tpl_builder *b, const char *field, size_t size,
                      size_t *automatic)
{
    const struct tpl_args *args = call->args;
    size_t index = 0;
    bool is_number = size > 0 && size < 6;

    for (size_t i = 0; i < size; i++) {
        if (field[i] < '0' || field[i] > '9')
            is_number = false;
        index = is_number ? index * 10 + (size_t)(field[i] - '0') : 0;
        if (strchr(":!.[", field[i]) != NULL)
            return tpl_fail(call->run, FERRY_ERR_UNSUPPORTED,
                            "format(): only {}, {0} and {name} are handled, not {%.*s}",
                            (int)(size > 40 ? 40 : size), field);
    }
    if (size == 0)
        index = (*automatic)++;
    if (size == 0 || is_number) {
        if (index < args->n)
            return tpl_print(call->run, b, &args->values[index]);
        return tpl_fail(call->run, FERRY_ERR_ARG, "format(): no argument %zu", index);
    }
    for (size_t k = 0; k < args->n_keywords; k++) {
        const struct tpl_string *name = &args->keywords[k].name.u.s;
        if (name->size == size && memcmp(name->data, field, size) == 0)
            return tpl_print(call->run, b, &args->keywords[k].value);
    }
    return tpl_fail(call->run, FERRY_ERR_ARG, "format(): no argument '%.*s'",
                    (int)(size > 60 ? 60 : size), field);
}

static bool format(struct call *call, struct tpl_value *ret)
{
    const struct tpl_string *s = &call->self->u.s;
    struct tpl_builder b = {0};
    size_t automatic = 0;

    for (size_t at = 0; at < s->size;) {
        size_t end = at;
        while (end < s->size && s->data[end] != '{' && s->data[end] != '}')
            end++;
        bool is_double = end + 1 < s->size && s->data[end + 1] == s->data[end];
        struct tpl_value text = tpl_sub(call->self, at, is_double ? end + 1 : end);
        if (!tpl_work(call->run, 1) || !tpl_put_string(call->run, &b, &text))
            return false;
        at = is_double ? end + 2 : end;
        if (is_double || end == s->size)
            continue;
        const char *close = memchr(s->data + end, '}', s->size - end);
        if (s->data[end] == '}' || close == NULL)
            return tpl_fail(call->run, FERRY_ERR_ARG, "format(): single '%c' in the text",
                            s->data[end]);
        size_t stop = (size_t)(close - s->data);
        if (!put_field(call, &b, s->data + end + 1, stop - end - 1, &automatic))
            return false;
        at = stop + 1;
    }
    *ret = tpl_built(&b);
    return true;
}

enum { VIEW_KEYS, VIEW_VALUES, VIEW_ITEMS };

static bool view(struct call *call, struct tpl_value *ret)
{
    const struct tpl_dict *dict = call->self->u.dict;

    if (!no_arguments(call))
        return false;
    struct tpl_seq *seq = tpl_seq_new(call->run, TPL_VIEW, dict->n);
    if (seq == NULL)
        return false;
    seq->start = call->variant;
    for (size_t i = 0; i < dict->n; i++) {
        if (call->variant != VIEW_ITEMS)
            seq->items[i] = call->variant == VIEW_KEYS ? dict->keys[i] : dict->values[i];
        else if (!tpl_work(call->run, 1) ||
                 !tpl_pair(call->run, &dict->keys[i], &dict->values[i], &seq->items[i]))
            return false;
    }
    *ret = tpl_seq_value(seq);
    return true;
}

static bool get(struct call *call, struct tpl_value *ret)
{
    bool ok;

    if (call->a[0].kind == TPL_MISSING)
        return wrong_type(call, 0, "a key");
    const struct tpl_value *found = tpl_dict_find(call->run, call->self->u.dict, &call->a[0], &ok);
    if (found != NULL)
        *ret = *found;
    else
        *ret = call->a[1].kind == TPL_MISSING ? tpl_none() : call->a[1];
    return ok;
}

static bool copy_dict(struct call *call, struct tpl_value *ret)
{
    const struct tpl_dict *from = call->self->u.dict;
    struct tpl_dict *dict = tpl_dict_new(call->run, from->n);

    if (!no_arguments(call) || dict == NULL)
        return false;
    dict->n = from->n;
    if (from->n > 0) {
        memcpy(dict->keys, from->keys, from->n * sizeof *dict->keys);
        memcpy(dict->values, from->values, from->n * sizeof *dict->values);
    }
    *ret = tpl_dict_value(dict);
    return true;
}

static bool find_in_list(struct call *call, struct tpl_value *ret)
{
    const struct tpl_seq *seq = call->self->u.seq;
    int64_t n = 0;

    if (call->a[0].kind == TPL_MISSING)
        return wrong_type(call, 0, "a value");
    for (size_t i = 0; i < seq->n; i++) {
        bool equal;
        if (!tpl_equal(call->run, &seq->items[i], &call->a[0], &equal))
            return false;
        if (equal && call->variant == FIND_OR_FAIL) {
            *ret = tpl_int((int64_t)i, false);
            return true;
        }
        n += equal;
    }
    if (call->variant == FIND_OR_FAIL)
        return tpl_fail(call->run, FERRY_ERR_ARG, "index(): the value is not in the list");
    *ret = tpl_int(n, false);
    return true;
}

/* Names of arguments; the rest of the row are NULL. */
#define NO_NAMES         \
    {                    \
        NULL, NULL, NULL \
    }
static const struct method {
    enum tpl_kind kind;
    const char *name;
    method_function *call;
    int variant;
    int n_args; /* -1: the function looks at them itself */
    const char *args[ARGS_MAX];
} METHODS[] = {
    {TPL_STRING, "strip", strip, STRIP_LEFT | STRIP_RIGHT, 1, {"", "", ""}},
    {TPL_STRING, "lstrip", strip, STRIP_LEFT, 1, {"", "", ""}},
    {TPL_STRING, "rstrip", strip, STRIP_RIGHT, 1, {"", "", ""}},
    {TPL_STRING, "split", split, 0, 2, {"sep", "maxsplit", ""}},
    {TPL_STRING, "rsplit", split, 1, 2, {"sep", "maxsplit", ""}},
    {TPL_STRING, "splitlines", splitlines, 0, 1, {"keepends", "", ""}},
    {TPL_STRING, "startswith", starts_or_ends, 0, 3, {"", "", ""}},
    {TPL_STRING, "endswith", starts_or_ends, 1, 3, {"", "", ""}},
    {TPL_STRING, "upper", change_case, TPL_UPPER, -1, NO_NAMES},
    {TPL_STRING, "lower", change_case, TPL_LOWER, -1, NO_NAMES},
    {TPL_STRING, "title", change_case, TPL_TITLE, -1, NO_NAMES},
    {TPL_STRING, "capitalize", change_case, TPL_CAPITALIZE, -1, NO_NAMES},
    {TPL_STRING, "replace", replace, 0, 3, {"", "", ""}},
    {TPL_STRING, "find", find, 0, 3, {"", "", ""}},
    {TPL_STRING, "rfind", find, FIND_LAST, 3, {"", "", ""}},
    {TPL_STRING, "index", find, FIND_OR_FAIL, 3, {"", "", ""}},
    {TPL_STRING, "rindex", find, FIND_LAST | FIND_OR_FAIL, 3, {"", "", ""}},
    {TPL_STRING, "count", count, 0, 3, {"", "", ""}},
    {TPL_STRING, "join", join, 0, 1, {"", "", ""}},
    {TPL_STRING, "removeprefix", remove_end, 0, 1, {"", "", ""}},
    {TPL_STRING, "removesuffix", remove_end, 1, 1, {"", "", ""}},
    {TPL_STRING, "partition", partition, 0, 1, {"", "", ""}},
    {TPL_STRING, "rpartition", partition, 1, 1, {"", "", ""}},
    {TPL_STRING, "ljust", pad, PAD_RIGHT, 2, {"", "", ""}},
    {TPL_STRING, "rjust", pad, PAD_LEFT, 2, {"", "", ""}},
    {TPL_STRING, "center", pad, PAD_CENTER, 2, {"", "", ""}},
    {TPL_STRING, "format", format, 0, -1, NO_NAMES},
    {TPL_STRING, "isupper", ask, TPL_IS_UPPER, -1, NO_NAMES},
    {TPL_STRING, "islower", ask, TPL_IS_LOWER, -1, NO_NAMES},
    {TPL_STRING, "isalpha", ask, TPL_IS_ALPHA, -1, NO_NAMES},
    {TPL_STRING, "isdigit", ask, TPL_IS_DIGIT, -1, NO_NAMES},
    {TPL_STRING, "isalnum", ask, TPL_IS_ALNUM, -1, NO_NAMES},
    {TPL_STRING, "isspace", ask, TPL_IS_SPACE, -1, NO_NAMES},
    {TPL_DICT, "items", view, VIEW_ITEMS, -1, NO_NAMES},
    {TPL_DICT, "keys", view, VIEW_KEYS, -1, NO_NAMES},
    {TPL_DICT, "values", view, VIEW_VALUES, -1, NO_NAMES},
    {TPL_DICT, "get", get, 0, 2, {"", "", ""}},
    {TPL_DICT, "copy", copy_dict, 0, -1, NO_NAMES},
    {TPL_SEQ, "index", find_in_list, FIND_OR_FAIL, 1, {"", "", ""}},
    {TPL_SEQ, "count", find_in_list, 0, 1, {"", "", ""}},
};

/* Methods that Python has and the sandbox of transformers refuses: they change their object. */
static const struct {
    enum tpl_kind kind;
    const char *name;
} UNSAFE[] = {
    {TPL_DICT, "clear"},  {TPL_DICT, "pop"},   {TPL_DICT, "popitem"}, {TPL_DICT, "setdefault"},
    {TPL_DICT, "update"}, {TPL_SEQ, "append"}, {TPL_SEQ, "clear"},    {TPL_SEQ, "extend"},
    {TPL_SEQ, "insert"},  {TPL_SEQ, "pop"},    {TPL_SEQ, "remove"},   {TPL_SEQ, "reverse"},
    {TPL_SEQ, "sort"},
};

/* Methods of str that are neither handled nor keys of anything. */
static const char *const UNHANDLED[] = {
    "casefold",  "encode",      "expandtabs", "format_map", "isascii",  "isdecimal", "isidentifier",
    "isnumeric", "isprintable", "istitle",    "maketrans",  "swapcase", "translate", "zfill",
};

static bool loop_member(struct tpl_run *run, const struct tpl_loop *loop, const char *name,
                        struct tpl_value *ret)
{
    int64_t i = (int64_t)loop->index;
    int64_t n = (int64_t)loop->n;

    if (strcmp(name, "index") == 0)
        *ret = tpl_int(i + 1, true);
    else if (strcmp(name, "index0") == 0)
        *ret = tpl_int(i, true);
    else if (strcmp(name, "revindex") == 0)
        *ret = tpl_int(n - i, true);
    else if (strcmp(name, "revindex0") == 0)
        *ret = tpl_int(n - i - 1, true);
    else if (strcmp(name, "length") == 0)
        *ret = tpl_int(n, true);
    else if (strcmp(name, "depth") == 0)
        *ret = tpl_int((int64_t)loop->depth + 1, true);
    else if (strcmp(name, "depth0") == 0)
        *ret = tpl_int((int64_t)loop->depth, true);
    else if (strcmp(name, "first") == 0)
        *ret = tpl_bool(i == 0);
    else if (strcmp(name, "last") == 0)
        *ret = tpl_bool(i == n - 1);
    else if (strcmp(name, "previtem") == 0)
        return i > 0 ? (*ret = loop->items[i - 1], true)
                     : tpl_undefined_because(run, "there is no previous item", ret);
    else if (strcmp(name, "nextitem") == 0)
        return i + 1 < n ? (*ret = loop->items[i + 1], true)
                         : tpl_undefined_because(run, "there is no next item", ret);
    return true;
}

static bool bind_method(struct tpl_run *run, const struct tpl_value *self, int index,
                        struct tpl_value *ret)
{
    struct tpl_method *method = tpl_get(run, sizeof *method);

    if (method == NULL)
        return false;
    *method = (struct tpl_method){.self = *self, .index = index};
    *ret = (struct tpl_value){.kind = TPL_METHOD, .u.method = method};
    return true;
}

enum { LOOP_CYCLE = -1, LOOP_CHANGED = -2 };

static bool find_method(struct tpl_run *run, const struct tpl_value *owner,
                        const struct tpl_value *name, struct tpl_value *ret)
{
    for (size_t i = 0; i < sizeof METHODS / sizeof METHODS[0]; i++) {
        if (METHODS[i].kind == owner->kind && tpl_is_text(name, METHODS[i].name))
            return bind_method(run, owner, (int)i, ret);
    }
    for (size_t i = 0; i < sizeof UNSAFE / sizeof UNSAFE[0]; i++) {
        if (UNSAFE[i].kind == owner->kind && tpl_is_text(name, UNSAFE[i].name))
            return tpl_undefined_because(
                run, "access to an attribute that changes a list or dict is unsafe", ret);
    }
    for (size_t i = 0; owner->kind == TPL_STRING && i < sizeof UNHANDLED / sizeof UNHANDLED[0];
         i++) {
        if (tpl_is_text(name, UNHANDLED[i]))
            return tpl_fail(run, FERRY_ERR_UNSUPPORTED, "str.%s is not handled", UNHANDLED[i]);
    }
    return true;
}

bool tpl_find_member(struct tpl_run *run, const struct tpl_value *owner,
                     const struct tpl_value *name, struct tpl_value *ret)
{
    char text[16];
    bool ok;

    *ret = (struct tpl_value){0};
    if (name->u.s.size >= 2 && name->u.s.data[0] == '_' && name->u.s.data[1] == '_')
        return true;
    if (owner->kind == TPL_NAMESPACE) {
        const struct tpl_value *found = tpl_dict_find(run, owner->u.dict, name, &ok);
        if (found != NULL)
            *ret = *found;
        return ok;
    }
    if (owner->kind == TPL_LOOP) {
        if (tpl_is_text(name, "cycle"))
            return bind_method(run, owner, LOOP_CYCLE, ret);
        if (tpl_is_text(name, "changed"))
            return bind_method(run, owner, LOOP_CHANGED, ret);
        if (name->u.s.size >= sizeof text)
            return true;
        memcpy(text, name->u.s.data, name->u.s.size);
        text[name->u.s.size] = 0;
        return loop_member(run, owner->u.loop, text, ret);
    }
    if (owner->kind == TPL_SEQ && owner->u.seq->kind > TPL_RANGE)
        return true;
    return owner->kind == TPL_STRING || owner->kind == TPL_DICT || owner->kind == TPL_SEQ
               ? find_method(run, owner, name, ret)
               : true;
}

static bool call_loop(struct tpl_run *run, struct tpl_loop *loop, int index,
                      const struct tpl_args *args, struct tpl_value *ret)
{
    if (index == LOOP_CYCLE) {
        if (args->n == 0)
            return tpl_fail(run, FERRY_ERR_ARG, "no items for cycling given");
        *ret = args->values[loop->index % args->n];
        return true;
    }
    struct tpl_seq *seq = tpl_seq_new(run, TPL_TUPLE, args->n);
    if (seq == NULL)
        return false;
    if (args->n > 0)
        memcpy(seq->items, args->values, args->n * sizeof *seq->items);
    struct tpl_value now = tpl_seq_value(seq);
    bool equal = false;
    if (loop->changed.kind != TPL_MISSING && !tpl_equal(run, &loop->changed, &now, &equal))
        return false;
    loop->changed = now;
    *ret = tpl_bool(!equal);
    return true;
}

bool tpl_call_method(struct tpl_run *run, const struct tpl_method *method,
                     const struct tpl_args *args, struct tpl_value *ret)
{
    if (method->index < 0)
        return call_loop(run, method->self.u.loop, method->index, args, ret);
    const struct method *row = &METHODS[method->index];
    struct call call = {.run = run,
                        .self = &method->self,
                        .args = args,
                        .name = row->name,
                        .variant = row->variant};
    if (row->n_args >= 0 && !tpl_bind(run, args, row->name, row->args, (size_t)row->n_args, call.a))
        return false;
    return row->call(&call, ret);
}
