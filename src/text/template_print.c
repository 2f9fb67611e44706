/* Values of chat templates as text. See template_print.h. */
#include "text/template_print.h"

#include "text/template_ast.h"
#include "text/template_method.h"
#include "text/template_ops.h"
#include "text/template_run.h"
#include "text/unicode.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

void tpl_double_text(double f, char ret[TPL_DOUBLE_TEXT])
{
    char text[TPL_DOUBLE_TEXT];

    if (isnan(f) || isinf(f)) {
        (void)snprintf(ret, TPL_DOUBLE_TEXT, "%s", isnan(f) ? "nan" : f > 0 ? "inf" : "-inf");
        return;
    }
    int precision = 1;
    do
        (void)snprintf(text, sizeof text, "%.*e", precision - 1, f);
    while (strtod(text, NULL) != f && ++precision <= 17);
    char *e = strchr(text, 'e');
    long exponent = strtol(e + 1, NULL, 10);
    if (exponent >= -4 && exponent < 16) {
        int decimals = precision - 1 - (int)exponent;
        (void)snprintf(ret, TPL_DOUBLE_TEXT, "%.*f", decimals > 0 ? decimals : 1, f);
        return;
    }
    *e = 0;
    char sign = exponent < 0 ? '-' : '+';
    (void)snprintf(ret, TPL_DOUBLE_TEXT, "%.23se%c%02d", text, sign, abs((int)exponent) % 1000);
}

static bool put_number(struct tpl_run *run, struct tpl_builder *out, const struct tpl_value *value)
{
    char text[TPL_DOUBLE_TEXT];

    if (value->kind == TPL_FLOAT)
        tpl_double_text(value->u.f, text);
    else
        (void)snprintf(text, sizeof text, "%" PRId64, value->u.i);
    return tpl_put(run, out, text, strlen(text), value->trusted);
}

/* What str.isprintable() says of one character. */
static bool is_printable(int32_t code)
{
    utf8proc_category_t c = utf8proc_category(code);
    return code == ' ' || (c != UTF8PROC_CATEGORY_CN && c < UTF8PROC_CATEGORY_ZS);
}

static bool put_escape(struct tpl_run *run, struct tpl_builder *out, int32_t code, bool trusted)
{
    char text[16];
    int n = snprintf(text, sizeof text,
                     code < 0x100     ? "\\x%02" PRIx32
                     : code < 0x10000 ? "\\u%04" PRIx32
                                      : "\\U%08" PRIx32,
                     (uint32_t)code);
    return tpl_put(run, out, text, (size_t)n, trusted);
}

static bool repr_string(struct tpl_run *run, struct tpl_builder *out, const struct tpl_value *s)
{
    const char *data = s->u.s.data;
    size_t size = s->u.s.size;
    bool has_single = memchr(data, '\'', size) != NULL;
    char quote = has_single && memchr(data, '"', size) == NULL ? '"' : '\'';

    if (!tpl_work(run, 1 + size / 4) || !tpl_put(run, out, &quote, 1, false))
        return false;
    for (size_t at = 0; at < size;) {
        int32_t code;
        size_t n = utf8_decode(data + at, size - at, &code);
        bool trusted = tpl_is_trusted(s, at);
        const char *simple = code == '\n'                    ? "\\n"
                             : code == '\r'                  ? "\\r"
                             : code == '\t'                  ? "\\t"
                             : code == '\\'                  ? "\\\\"
                             : code == '\'' && quote == '\'' ? "\\'"
                                                             : NULL;
        bool ok;
        if (simple != NULL)
            ok = tpl_put(run, out, simple, 2, trusted);
        else if (!is_printable(code))
            ok = put_escape(run, out, code, trusted);
        else
            ok = tpl_put(run, out, data + at, n, trusted);
        if (!ok)
            return false;
        at += n;
    }
    return tpl_put(run, out, &quote, 1, false);
}

static bool repr_items(struct tpl_run *run, struct tpl_builder *out, const struct tpl_seq *seq)
{
    for (size_t i = 0; i < seq->n; i++) {
        if ((i > 0 && !tpl_put_text(run, out, ", ")) || !tpl_repr(run, out, &seq->items[i]))
            return false;
    }
    return true;
}

static bool repr_seq(struct tpl_run *run, struct tpl_builder *out, const struct tpl_seq *seq)
{
    static const char *const VIEWS[] = {"dict_keys([", "dict_values([", "dict_items(["};
    char text[80];

    switch (seq->kind) {
    case TPL_LIST:
        return tpl_put_text(run, out, "[") && repr_items(run, out, seq) &&
               tpl_put_text(run, out, "]");
    case TPL_TUPLE:
        return tpl_put_text(run, out, "(") && repr_items(run, out, seq) &&
               tpl_put_text(run, out, seq->n == 1 ? ",)" : ")");
    case TPL_RANGE:
        if (seq->step == 1)
            (void)snprintf(text, sizeof text, "range(%" PRId64 ", %" PRId64 ")", seq->start,
                           seq->stop);
        else
            (void)snprintf(text, sizeof text, "range(%" PRId64 ", %" PRId64 ", %" PRId64 ")",
                           seq->start, seq->stop, seq->step);
        return tpl_put_text(run, out, text);
    case TPL_VIEW:
        return tpl_put_text(run, out, VIEWS[seq->start]) && repr_items(run, out, seq) &&
               tpl_put_text(run, out, "])");
    default:
        return tpl_fail(run, FERRY_ERR_UNSUPPORTED,
                        "a generator (map, select, items ...) is printed; add |list");
    }
}

static bool repr_dict(struct tpl_run *run, struct tpl_builder *out, const struct tpl_dict *dict)
{
    if (!tpl_put_text(run, out, "{"))
        return false;
    for (size_t i = 0; i < dict->n; i++) {
        if ((i > 0 && !tpl_put_text(run, out, ", ")) || !tpl_repr(run, out, &dict->keys[i]) ||
            !tpl_put_text(run, out, ": ") || !tpl_repr(run, out, &dict->values[i]))
            return false;
    }
    return tpl_put_text(run, out, "}");
}

static bool repr_nested(struct tpl_run *run, struct tpl_builder *out, const struct tpl_value *value)
{
    if (value->kind == TPL_SEQ)
        return repr_seq(run, out, value->u.seq);
    if (value->kind == TPL_DICT)
        return repr_dict(run, out, value->u.dict);
    return tpl_put_text(run, out, "<Namespace ") && repr_dict(run, out, value->u.dict) &&
           tpl_put_text(run, out, ">");
}

static bool repr_loop(struct tpl_run *run, struct tpl_builder *out, const struct tpl_loop *loop)
{
    char text[64];

    (void)snprintf(text, sizeof text, "<LoopContext %zu/%zu>", loop->index + 1, loop->n);
    return tpl_put_text(run, out, text);
}

bool tpl_repr(struct tpl_run *run, struct tpl_builder *out, const struct tpl_value *value)
{
    if (!tpl_work(run, 1))
        return false;
    switch (value->kind) {
    case TPL_UNDEFINED:
        return tpl_put_text(run, out, "Undefined");
    case TPL_NONE:
        return tpl_put_text(run, out, "None");
    case TPL_BOOL:
        return tpl_put_text(run, out, value->u.b ? "True" : "False");
    case TPL_INT:
    case TPL_FLOAT:
        return put_number(run, out, value);
    case TPL_STRING:
        return repr_string(run, out, value);
    case TPL_SEQ:
    case TPL_DICT:
    case TPL_NAMESPACE: {
        if (!tpl_enter(run))
            return false;
        bool ok = repr_nested(run, out, value);
        tpl_leave(run);
        return ok;
    }
    case TPL_LOOP:
        return repr_loop(run, out, value->u.loop);
    case TPL_MACRO:
        return tpl_put_text(run, out, "<Macro ") &&
               repr_string(run, out, tpl_macro_name(run, value->u.macro)) &&
               tpl_put_text(run, out, ">");
    default:
        return tpl_fail(run, FERRY_ERR_UNSUPPORTED, "a %s is printed; call it",
                        tpl_type_name(value));
    }
}

bool tpl_print(struct tpl_run *run, struct tpl_builder *out, const struct tpl_value *value)
{
    if (value->kind == TPL_UNDEFINED)
        return true;
    if (value->kind == TPL_STRING)
        return tpl_put_string(run, out, value);
    return tpl_repr(run, out, value);
}

/* A writer of JSON. */
struct json {
    struct tpl_run *run;
    struct tpl_builder *out;
    const struct tpl_json_options *options;
    size_t level;
};

static bool json_value(struct json *json, const struct tpl_value *value);

static bool json_escape(struct json *json, int32_t code, bool trusted)
{
    char text[16];
    int n;

    if (code >= 0x10000) {
        uint32_t rest = (uint32_t)code - 0x10000;
        n = snprintf(text, sizeof text, "\\u%04" PRIx32 "\\u%04" PRIx32, 0xD800 + (rest >> 10),
                     0xDC00 + (rest & 0x3FF));
    } else {
        n = snprintf(text, sizeof text, "\\u%04" PRIx32, (uint32_t)code);
    }
    return tpl_put(json->run, json->out, text, (size_t)n, trusted);
}

static bool json_string(struct json *json, const struct tpl_value *s)
{
    static const char FROM[] = "\"\\\b\f\n\r\t";
    static const char TO[] = "\"\\bfnrt";
    const char *data = s->u.s.data;
    size_t size = s->u.s.size;
    bool ascii = json->options->ensure_ascii;

    if (!tpl_work(json->run, 1 + size / 4) || !tpl_put_text(json->run, json->out, "\""))
        return false;
    for (size_t at = 0; at < size;) {
        int32_t code;
        size_t n = utf8_decode(data + at, size - at, &code);
        bool trusted = tpl_is_trusted(s, at);
        const char *simple = code > 0 && code < 0x80 ? strchr(FROM, code) : NULL;
        bool ok;
        if (simple != NULL) {
            char text[2] = {'\\', TO[simple - FROM]};
            ok = tpl_put(json->run, json->out, text, 2, trusted);
        } else if (code < 0x20 || (ascii && code >= 0x7F)) {
            ok = json_escape(json, code, trusted);
        } else {
            ok = tpl_put(json->run, json->out, data + at, n, trusted);
        }
        if (!ok)
            return false;
        at += n;
    }
    return tpl_put_text(json->run, json->out, "\"");
}

/* A line break and the indentation of the level, when there is any. */
static bool json_line(struct json *json)
{
    if (!json->options->has_indent)
        return true;
    if (!tpl_put_text(json->run, json->out, "\n"))
        return false;
    for (size_t i = 0; i < json->level; i++) {
        if (!tpl_put_string(json->run, json->out, &json->options->indent))
            return false;
    }
    return true;
}

static bool json_between(struct json *json, size_t index)
{
    return (index == 0 || tpl_put_string(json->run, json->out, &json->options->item_separator)) &&
           json_line(json);
}

static bool json_list(struct json *json, const struct tpl_seq *seq)
{
    if (seq->n == 0)
        return tpl_put_text(json->run, json->out, "[]");
    if (!tpl_put_text(json->run, json->out, "["))
        return false;
    json->level++;
    for (size_t i = 0; i < seq->n; i++) {
        if (!json_between(json, i) || !json_value(json, &seq->items[i]))
            return false;
    }
    json->level--;
    return json_line(json) && tpl_put_text(json->run, json->out, "]");
}

static bool json_key(struct json *json, const struct tpl_value *key)
{
    if (key->kind == TPL_STRING)
        return json_string(json, key);
    if (key->kind > TPL_FLOAT || key->kind < TPL_NONE)
        return tpl_fail(json->run, FERRY_ERR_ARG,
                        "tojson: keys must be str, int, float, bool or "
                        "None, not %s",
                        tpl_type_name(key));
    return tpl_put_text(json->run, json->out, "\"") && json_value(json, key) &&
           tpl_put_text(json->run, json->out, "\"");
}

/* Indices of a dict's entries by key. */
static size_t *sorted_entries(struct tpl_run *run, const struct tpl_dict *dict)
{
    struct tpl_value *keys = tpl_array(run, dict->n, sizeof *keys);
    size_t *order = tpl_array(run, dict->n, sizeof *order);

    if (keys == NULL || order == NULL)
        return NULL;
    memcpy(keys, dict->keys, dict->n * sizeof *keys);
    return tpl_sort(run, keys, dict->n, false, order) ? order : NULL;
}

static bool json_dict(struct json *json, const struct tpl_dict *dict)
{
    size_t *order = NULL;

    if (dict->n == 0)
        return tpl_put_text(json->run, json->out, "{}");
    if (json->options->sort_keys) {
        order = sorted_entries(json->run, dict);
        if (order == NULL)
            return false;
    }
    if (!tpl_put_text(json->run, json->out, "{"))
        return false;
    json->level++;
    for (size_t i = 0; i < dict->n; i++) {
        size_t entry = order == NULL ? i : order[i];
        if (!json_between(json, i) || !json_key(json, &dict->keys[entry]) ||
            !tpl_put_string(json->run, json->out, &json->options->key_separator) ||
            !json_value(json, &dict->values[entry]))
            return false;
    }
    json->level--;
    return json_line(json) && tpl_put_text(json->run, json->out, "}");
}

static bool json_scalar(struct json *json, const struct tpl_value *value)
{
    switch (value->kind) {
    case TPL_NONE:
        return tpl_put_text(json->run, json->out, "null");
    case TPL_BOOL:
        return tpl_put_text(json->run, json->out, value->u.b ? "true" : "false");
    case TPL_FLOAT:
        if (isnan(value->u.f) || isinf(value->u.f))
            return tpl_put_text(json->run, json->out,
                                isnan(value->u.f) ? "NaN"
                                : value->u.f > 0  ? "Infinity"
                                                  : "-Infinity");
        return put_number(json->run, json->out, value);
    case TPL_INT:
        return put_number(json->run, json->out, value);
    case TPL_STRING:
        return json_string(json, value);
    default:
        return tpl_fail(json->run, FERRY_ERR_ARG,
                        "tojson: object of type %s is not JSON "
                        "serializable",
                        tpl_type_name(value));
    }
}

static bool json_value(struct json *json, const struct tpl_value *value)
{
    bool is_list = value->kind == TPL_SEQ && value->u.seq->kind <= TPL_TUPLE;

    if (!tpl_work(json->run, 1))
        return false;
    if (!is_list && value->kind != TPL_DICT)
        return json_scalar(json, value);
    if (!tpl_enter(json->run))
        return false;
    bool ok = is_list ? json_list(json, value->u.seq) : json_dict(json, value->u.dict);
    tpl_leave(json->run);
    return ok;
}

bool tpl_json(struct tpl_run *run, struct tpl_builder *out, const struct tpl_value *value,
              const struct tpl_json_options *options)
{
    struct json json = {.run = run, .out = out, .options = options};
    return json_value(&json, value);
}
