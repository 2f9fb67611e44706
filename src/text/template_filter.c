/* Filters of chat templates. See template_filter.h. Generators of jinja2 are worked out at once;
 * only the moment of an error differs. */
#include "text/template_filter.h"

#include "text/template_lex.h"
#include "text/template_ops.h"
#include "text/template_print.h"
#include "text/template_test.h"
#include "text/template_text.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ARGS_MAX = 4 };

struct call {
    struct tpl_run *run;
    const struct tpl_value *value;
    const struct tpl_args *args;
    struct tpl_value a[ARGS_MAX]; /* MISSING where none was given */
    const char *name;
    int variant;
};

typedef bool filter_function(struct call *call, struct tpl_value *ret);

/* str(value) */
static bool as_text(struct tpl_run *run, const struct tpl_value *value, struct tpl_value *ret)
{
    struct tpl_builder b = {0};

    if (value->kind == TPL_STRING) {
        *ret = *value;
        return true;
    }
    if (!tpl_print(run, &b, value))
        return false;
    *ret = tpl_built(&b);
    return true;
}

static bool given(const struct call *call, size_t i)
{
    return call->a[i].kind != TPL_MISSING && call->a[i].kind != TPL_NONE;
}

static bool flag(const struct call *call, size_t i)
{
    return call->a[i].kind != TPL_MISSING && tpl_truth(&call->a[i]);
}

static bool bad_argument(const struct call *call, const char *what)
{
    return tpl_fail(call->run, FERRY_ERR_ARG, "the filter '%s': %s", call->name, what);
}

static bool change_case(struct call *call, struct tpl_value *ret)
{
    struct tpl_value text;
    return as_text(call->run, call->value, &text) &&
           tpl_change_case(call->run, &text, (enum tpl_case)call->variant, ret);
}

static bool trim(struct call *call, struct tpl_value *ret)
{
    struct tpl_value text;

    if (given(call, 0) && call->a[0].kind != TPL_STRING)
        return bad_argument(call, "characters must be a string");
    return as_text(call->run, call->value, &text) &&
           tpl_strip(call->run, &text, given(call, 0) ? &call->a[0].u.s : NULL, true, true, ret);
}

static bool string(struct call *call, struct tpl_value *ret)
{
    return as_text(call->run, call->value, ret);
}

static bool length(struct call *call, struct tpl_value *ret)
{
    size_t n;

    if (!tpl_length(call->run, call->value, &n))
        return false;
    *ret = tpl_int((int64_t)n, false);
    return true;
}

static bool use_default(struct call *call, struct tpl_value *ret)
{
    if (call->value->kind != TPL_UNDEFINED && !(flag(call, 1) && !tpl_truth(call->value)))
        *ret = *call->value;
    else
        *ret = call->a[0].kind == TPL_MISSING ? tpl_text("", true) : call->a[0];
    return true;
}

static bool replace(struct call *call, struct tpl_value *ret)
{
    struct tpl_value s;
    struct tpl_value old;
    struct tpl_value new_text;
    int64_t max = -1;

    if (call->a[0].kind == TPL_MISSING || call->a[1].kind == TPL_MISSING)
        return bad_argument(call, "needs an old and a new text");
    if (given(call, 2) && !tpl_as_int(&call->a[2], &max))
        return bad_argument(call, "the count must be an integer");
    return as_text(call->run, call->value, &s) && as_text(call->run, &call->a[0], &old) &&
           as_text(call->run, &call->a[1], &new_text) &&
           tpl_replace(call->run, &s, &old, &new_text, max, ret);
}

/* Looks up a path "a.b.0" (a string or an integer) in item; default_value (may be NULL) instead of
 * undefined. */
static bool look_up(struct tpl_run *run, const struct tpl_value *item, const struct tpl_value *path,
                    const struct tpl_value *default_value, struct tpl_value *ret)
{
    struct tpl_value at = *item;

    if (path->kind != TPL_STRING) {
        if (!tpl_getitem(run, &at, path, ret))
            return false;
        if (default_value != NULL && ret->kind == TPL_UNDEFINED)
            *ret = *default_value;
        return true;
    }
    const struct tpl_string *s = &path->u.s;
    for (size_t start = 0; start <= s->size;) {
        const char *dot = memchr(s->data + start, '.', s->size - start);
        size_t end = dot == NULL ? s->size : (size_t)(dot - s->data);
        struct tpl_value part = tpl_sub(path, start, end);
        int64_t number = 0;
        bool is_number = end > start && end - start < 10;
        for (size_t i = start; i < end && is_number; i++) {
            is_number = s->data[i] >= '0' && s->data[i] <= '9';
            number = number * 10 + (s->data[i] - '0');
        }
        if (is_number)
            part = tpl_int(number, false);
        struct tpl_value next;
        if (!tpl_getitem(run, &at, &part, &next))
            return false;
        at = default_value != NULL && next.kind == TPL_UNDEFINED ? *default_value : next;
        start = end + 1;
    }
    *ret = at;
    return true;
}

static bool join(struct call *call, struct tpl_value *ret)
{
    struct tpl_value separator = tpl_text("", true);
    struct tpl_value *items;
    size_t n;

    if (call->a[0].kind != TPL_MISSING && !as_text(call->run, &call->a[0], &separator))
        return false;
    if (!tpl_iterate(call->run, call->value, &items, &n))
        return false;
    if (given(call, 1)) {
        struct tpl_value *members = tpl_array(call->run, n, sizeof *members);
        if (members == NULL)
            return false;
        for (size_t i = 0; i < n; i++) {
            if (!look_up(call->run, &items[i], &call->a[1], NULL, &members[i]))
                return false;
        }
        items = members;
    }
    return tpl_join(call->run, &separator, items, n, true, ret);
}

static bool first(struct call *call, struct tpl_value *ret)
{
    struct tpl_value *items;
    size_t n;
    size_t taken = call->value->kind == TPL_SEQ ? call->value->u.seq->taken : 0;

    if (!tpl_iterate(call->run, call->value, &items, &n))
        return false;
    if (n == 0)
        return tpl_undefined_because(call->run, "No first item, sequence was empty.", ret);
    *ret = items[0];
    if (call->value->kind == TPL_SEQ && call->value->u.seq->kind == TPL_GENERATOR)
        call->value->u.seq->taken = taken + 1;
    return true;
}

static bool last(struct call *call, struct tpl_value *ret)
{
    struct tpl_value *items;
    size_t n;

    if (call->value->kind == TPL_SEQ && call->value->u.seq->kind == TPL_GENERATOR)
        return tpl_fail(call->run, FERRY_ERR_ARG, "'generator' object is not reversible");
    if (!tpl_iterate(call->run, call->value, &items, &n))
        return false;
    if (n == 0)
        return tpl_undefined_because(call->run, "No last item, sequence was empty.", ret);
    *ret = items[n - 1];
    return true;
}

/* All items in a new sequence. */
static bool collect(struct call *call, enum tpl_seq_kind kind, bool reverse, struct tpl_value *ret)
{
    struct tpl_value *items;
    size_t n;

    if (!tpl_iterate(call->run, call->value, &items, &n))
        return false;
    struct tpl_seq *seq = tpl_seq_new(call->run, kind, n);
    if (seq == NULL)
        return false;
    for (size_t i = 0; i < n; i++)
        seq->items[i] = items[reverse ? n - 1 - i : i];
    *ret = tpl_seq_value(seq);
    return true;
}

static bool list(struct call *call, struct tpl_value *ret)
{
    return collect(call, TPL_LIST, false, ret);
}

static bool reverse(struct call *call, struct tpl_value *ret)
{
    struct tpl_value back = tpl_int(-1, false);

    if (call->value->kind == TPL_STRING)
        return tpl_slice(call->run, call->value, NULL, NULL, &back, ret);
    bool was_generator = call->value->kind == TPL_SEQ && call->value->u.seq->kind == TPL_GENERATOR;
    return collect(call, was_generator ? TPL_LIST : TPL_GENERATOR, true, ret);
}

static bool items(struct call *call, struct tpl_value *ret)
{
    struct tpl_value *keys;
    size_t n;

    if (call->value->kind != TPL_DICT && call->value->kind != TPL_UNDEFINED)
        return tpl_fail(call->run, FERRY_ERR_ARG, "Can only get item pairs from a mapping.");
    if (!tpl_iterate(call->run, call->value, &keys, &n))
        return false;
    struct tpl_seq *seq = tpl_seq_new(call->run, TPL_GENERATOR, n);
    for (size_t i = 0; seq != NULL && i < n; i++) {
        if (!tpl_pair(call->run, &keys[i], &call->value->u.dict->values[i], &seq->items[i]))
            return false;
    }
    *ret = tpl_seq_value(seq);
    return seq != NULL;
}

/* What filters compare by: the value or a member of it, strings in lower case. */
static bool sort_key(struct tpl_run *run, const struct tpl_value *item,
                     const struct tpl_value *attribute, bool case_sensitive, struct tpl_value *ret)
{
    struct tpl_value key = *item;

    if (attribute->kind != TPL_MISSING && attribute->kind != TPL_NONE &&
        !look_up(run, item, attribute, NULL, &key))
        return false;
    *ret = key;
    return key.kind != TPL_STRING || case_sensitive || tpl_change_case(run, &key, TPL_LOWER, ret);
}

static struct tpl_value *sort_keys(struct call *call, const struct tpl_value *from, size_t n,
                                   const struct tpl_value *attribute, bool case_sensitive)
{
    struct tpl_value *keys = tpl_array(call->run, n, sizeof *keys);

    for (size_t i = 0; keys != NULL && i < n; i++) {
        if (!sort_key(call->run, &from[i], attribute, case_sensitive, &keys[i]))
            return NULL;
    }
    return keys;
}

/* from [n] in the order of keys as a list. */
static bool ordered(struct call *call, const struct tpl_value *from, const struct tpl_value *keys,
                    size_t n, bool backwards, struct tpl_value *ret)
{
    size_t *order = tpl_array(call->run, n, sizeof *order);
    struct tpl_seq *seq = tpl_seq_new(call->run, TPL_LIST, n);

    if (order == NULL || seq == NULL || !tpl_sort(call->run, keys, n, backwards, order))
        return false;
    for (size_t i = 0; i < n; i++)
        seq->items[i] = from[order[i]];
    *ret = tpl_seq_value(seq);
    return true;
}

static bool sort(struct call *call, struct tpl_value *ret)
{
    struct tpl_value *from;
    size_t n;

    if (call->a[2].kind == TPL_STRING &&
        memchr(call->a[2].u.s.data, ',', call->a[2].u.s.size) != NULL)
        return tpl_fail(call->run, FERRY_ERR_UNSUPPORTED, "sort by several attributes");
    if (!tpl_iterate(call->run, call->value, &from, &n))
        return false;
    struct tpl_value *keys = sort_keys(call, from, n, &call->a[2], flag(call, 1));
    return keys != NULL && ordered(call, from, keys, n, flag(call, 0), ret);
}

static bool dictsort(struct call *call, struct tpl_value *ret)
{
    bool by_value = tpl_is_text(&call->a[1], "value");
    struct tpl_value none = tpl_none();

    if (call->value->kind != TPL_DICT)
        return call->value->kind == TPL_UNDEFINED ? tpl_fail_undefined(call->run, call->value)
                                                  : bad_argument(call, "needs a mapping");
    if (call->a[1].kind != TPL_MISSING && !by_value && !tpl_is_text(&call->a[1], "key"))
        return bad_argument(call, "can only sort by 'key' or 'value'");
    const struct tpl_dict *dict = call->value->u.dict;
    struct tpl_value *pairs = tpl_array(call->run, dict->n, sizeof *pairs);
    struct tpl_value *keys =
        sort_keys(call, by_value ? dict->values : dict->keys, dict->n, &none, flag(call, 0));
    if (pairs == NULL || keys == NULL)
        return false;
    for (size_t i = 0; i < dict->n; i++) {
        if (!tpl_pair(call->run, &dict->keys[i], &dict->values[i], &pairs[i]))
            return false;
    }
    return ordered(call, pairs, keys, dict->n, flag(call, 2), ret);
}

static bool min_or_max(struct call *call, struct tpl_value *ret)
{
    struct tpl_value *from;
    size_t n;
    size_t best = 0;

    if (!tpl_iterate(call->run, call->value, &from, &n))
        return false;
    if (n == 0)
        return tpl_undefined_because(call->run, "No aggregated item, sequence was empty.", ret);
    struct tpl_value *keys = sort_keys(call, from, n, &call->a[1], flag(call, 0));
    if (keys == NULL)
        return false;
    for (size_t i = 1; i < n; i++) {
        int order;
        if (!tpl_compare(call->run, &keys[i], &keys[best], &order))
            return false;
        if (order != 2 && (call->variant < 0 ? order < 0 : order > 0))
            best = i;
    }
    *ret = from[best];
    return true;
}

static bool unique(struct call *call, struct tpl_value *ret)
{
    struct tpl_value *from;
    size_t n;
    size_t n_kept = 0;

    if (!tpl_iterate(call->run, call->value, &from, &n))
        return false;
    struct tpl_value *keys = sort_keys(call, from, n, &call->a[1], flag(call, 0));
    struct tpl_seq *seq = tpl_seq_new(call->run, TPL_GENERATOR, n);
    if (keys == NULL || seq == NULL)
        return false;
    for (size_t i = 0; i < n; i++) {
        bool equal = false;
        if (keys[i].kind == TPL_DICT ||
            (keys[i].kind == TPL_SEQ && keys[i].u.seq->kind == TPL_LIST))
            return tpl_fail(call->run, FERRY_ERR_ARG, "unhashable type: '%s'",
                            tpl_type_name(&keys[i]));
        for (size_t k = 0; k < n_kept && !equal; k++) {
            if (!tpl_equal(call->run, &keys[k], &keys[i], &equal))
                return false;
        }
        if (equal)
            continue;
        keys[n_kept] = keys[i];
        seq->items[n_kept++] = from[i];
    }
    seq->n = n_kept;
    *ret = tpl_seq_value(seq);
    return true;
}

static bool sum(struct call *call, struct tpl_value *ret)
{
    struct tpl_value *from;
    size_t n;
    struct tpl_value total = call->a[1].kind == TPL_MISSING ? tpl_int(0, true) : call->a[1];

    if (total.kind == TPL_STRING)
        return bad_argument(call, "cannot sum strings; use join");
    if (!tpl_iterate(call->run, call->value, &from, &n))
        return false;
    for (size_t i = 0; i < n; i++) {
        struct tpl_value item = from[i];
        struct tpl_value next;
        if ((given(call, 0) && !look_up(call->run, &from[i], &call->a[0], NULL, &item)) ||
            !tpl_binary(call->run, TOKEN_ADD, &total, &item, &next))
            return false;
        total = next;
    }
    *ret = total;
    return true;
}

/* Python's int(text): white space, a sign, digits with single '_' between them. */
static bool text_to_int(const struct tpl_string *s, int64_t *ret, bool *ret_over)
{
    size_t at = tpl_space_size(s->data, s->size);
    size_t end = tpl_rstrip_size(s->data, s->size);
    bool negative = at < end && s->data[at] == '-';
    int64_t value = 0;
    bool was_digit = false;

    *ret_over = false;
    at += at < end && (s->data[at] == '-' || s->data[at] == '+');
    if (at >= end)
        return false;
    for (; at < end; at++) {
        char c = s->data[at];
        if (c == '_' && was_digit) {
            was_digit = false;
            continue;
        }
        if (c < '0' || c > '9')
            return false;
        was_digit = true;
        *ret_over = *ret_over || __builtin_mul_overflow(value, 10, &value) ||
                    __builtin_add_overflow(value, c - '0', &value);
    }
    *ret = negative ? -value : value;
    return was_digit;
}

/* Python's float(text), of at most 100 characters. */
static bool text_to_double(const struct tpl_string *s, double *ret)
{
    char text[101];
    size_t start = tpl_space_size(s->data, s->size);
    size_t end = tpl_rstrip_size(s->data, s->size);
    char *stop;

    if (start >= end || end - start >= sizeof text ||
        memchr(s->data + start, 0, end - start) != NULL)
        return false;
    memcpy(text, s->data + start, end - start);
    text[end - start] = 0;
    if (strpbrk(text, "xXpP(") != NULL) /* strtod's hexadecimal and nan(...) */
        return false;
    *ret = strtod(text, &stop);
    return *stop == 0;
}

static bool double_to_int(struct call *call, double f, struct tpl_value *ret)
{
    if (!(fabs(f) < 9.2e18))
        return tpl_fail(call->run, isfinite(f) ? FERRY_ERR_LIMIT : FERRY_ERR_ARG,
                        "cannot convert this float to an integer");
    *ret = tpl_int((int64_t)f, false);
    return true;
}

static bool to_int(struct call *call, struct tpl_value *ret)
{
    int64_t i;
    int64_t base = 10;
    double f;
    bool over;

    if (given(call, 1) && (!tpl_as_int(&call->a[1], &base) || base != 10))
        return tpl_fail(call->run, FERRY_ERR_UNSUPPORTED, "the filter 'int' with a base");
    *ret = call->a[0].kind == TPL_MISSING ? tpl_int(0, true) : call->a[0];
    if (call->value->kind == TPL_UNDEFINED)
        return tpl_fail_undefined(call->run, call->value);
    if (tpl_as_int(call->value, &i)) {
        *ret = tpl_int(i, call->value->trusted);
        return true;
    }
    if (call->value->kind == TPL_FLOAT)
        return double_to_int(call, call->value->u.f, ret);
    if (call->value->kind != TPL_STRING)
        return true;
    if (text_to_int(&call->value->u.s, &i, &over)) {
        if (over)
            return tpl_fail(call->run, FERRY_ERR_LIMIT, "an integer of more than 64 bits (limit)");
        *ret = tpl_int(i, false);
        return true;
    }
    if (text_to_double(&call->value->u.s, &f) && isfinite(f))
        return double_to_int(call, f, ret);
    return true;
}

static bool to_float(struct call *call, struct tpl_value *ret)
{
    int64_t i;
    double f;

    *ret = call->a[0].kind == TPL_MISSING ? tpl_float(0, true) : call->a[0];
    if (call->value->kind == TPL_UNDEFINED)
        return tpl_fail_undefined(call->run, call->value);
    if (tpl_as_int(call->value, &i))
        *ret = tpl_float((double)i, call->value->trusted);
    else if (call->value->kind == TPL_FLOAT)
        *ret = *call->value;
    else if (call->value->kind == TPL_STRING && text_to_double(&call->value->u.s, &f))
        *ret = tpl_float(f, false);
    return true;
}

static bool absolute(struct call *call, struct tpl_value *ret)
{
    int64_t i;

    if (call->value->kind == TPL_FLOAT) {
        *ret = tpl_float(fabs(call->value->u.f), call->value->trusted);
        return true;
    }
    if (!tpl_as_int(call->value, &i))
        return call->value->kind == TPL_UNDEFINED ? tpl_fail_undefined(call->run, call->value)
                                                  : bad_argument(call, "needs a number");
    if (i < 0)
        return tpl_negate(call->run, call->value, ret);
    *ret = tpl_int(i, call->value->trusted);
    return true;
}

enum { ROUND_DIGITS_MAX = 15, ROUND_TEXT = 400 };

static bool round_number(struct call *call, struct tpl_value *ret)
{
    int64_t digits = 0;
    int64_t i = 0;
    bool is_common = call->a[1].kind == TPL_MISSING || tpl_is_text(&call->a[1], "common");
    bool is_ceil = tpl_is_text(&call->a[1], "ceil");
    char text[ROUND_TEXT];

    if (!is_common && !is_ceil && !tpl_is_text(&call->a[1], "floor"))
        return bad_argument(call, "method must be common, ceil or floor");
    if (given(call, 0) && !tpl_as_int(&call->a[0], &digits))
        return bad_argument(call, "the precision must be an integer");
    if (digits < 0 || digits > ROUND_DIGITS_MAX)
        return tpl_fail(call->run, FERRY_ERR_UNSUPPORTED, "round to %lld digits (0 to %d)",
                        (long long)digits, (int)ROUND_DIGITS_MAX);
    bool is_int = tpl_as_int(call->value, &i);
    if (!is_int && call->value->kind != TPL_FLOAT)
        return call->value->kind == TPL_UNDEFINED ? tpl_fail_undefined(call->run, call->value)
                                                  : bad_argument(call, "needs a number");
    if (is_common && is_int) {
        *ret = tpl_int(i, call->value->trusted);
        return true;
    }
    double f = is_int ? (double)i : call->value->u.f;
    if (is_common) { /* correctly rounded, halves to even, as Python's round */
        (void)snprintf(text, sizeof text, "%.*f", (int)digits, f);
        *ret = tpl_float(strtod(text, NULL), call->value->trusted);
        return true;
    }
    double scale = 1;
    for (int64_t k = 0; k < digits; k++)
        scale *= 10;
    *ret = tpl_float((is_ceil ? ceil(f * scale) : floor(f * scale)) / scale, call->value->trusted);
    return true;
}

static bool indent(struct call *call, struct tpl_value *ret)
{
    struct tpl_builder b = {0};
    struct tpl_value width = tpl_text("    ", true);
    struct tpl_value lines;
    int64_t n = 0;
    struct tpl_value space = tpl_text(" ", true);

    if (call->value->kind != TPL_STRING)
        return call->value->kind == TPL_UNDEFINED ? tpl_fail_undefined(call->run, call->value)
                                                  : bad_argument(call, "needs a string");
    if (call->a[0].kind == TPL_STRING) {
        width = call->a[0];
    } else if (call->a[0].kind != TPL_MISSING) {
        struct tpl_value times;
        if (!tpl_as_int(&call->a[0], &n))
            return bad_argument(call, "the width must be an integer or a string");
        times = tpl_int(n, true);
        if (!tpl_binary(call->run, TOKEN_MUL, &space, &times, &width))
            return false;
    }
    struct tpl_value newline = tpl_text("\n", true);
    struct tpl_value text;
    if (!tpl_binary(call->run, TOKEN_ADD, call->value, &newline, &text) ||
        !tpl_splitlines(call->run, &text, false, &lines))
        return false;
    for (size_t i = 0; i < lines.u.seq->n; i++) {
        const struct tpl_value *line = &lines.u.seq->items[i];
        bool with_width = i == 0 ? flag(call, 1) : flag(call, 2) || line->u.s.size > 0;
        if ((i > 0 && !tpl_put_string(call->run, &b, &newline)) ||
            (with_width && !tpl_put_string(call->run, &b, &width)) ||
            !tpl_put_string(call->run, &b, line))
            return false;
    }
    *ret = tpl_built(&b);
    return true;
}

static bool safe(struct call *call, struct tpl_value *ret)
{
    if (!as_text(call->run, call->value, ret))
        return false;
    ret->markup = true;
    return true;
}

static bool escape(struct call *call, struct tpl_value *ret)
{
    struct tpl_value text;
    return as_text(call->run, call->value, &text) && tpl_escape(call->run, &text, ret);
}

/* A separator of tojson(separators=(a, b)). */
static bool separator(struct call *call, size_t i, struct tpl_value *ret)
{
    const struct tpl_value *pair = &call->a[2];

    if (!given(call, 2))
        return true;
    if (pair->kind != TPL_SEQ || pair->u.seq->n != 2 || pair->u.seq->items[i].kind != TPL_STRING)
        return bad_argument(call, "separators must be two strings");
    *ret = pair->u.seq->items[i];
    return true;
}

static bool to_json(struct call *call, struct tpl_value *ret)
{
    struct tpl_json_options options = {.ensure_ascii = flag(call, 0),
                                       .has_indent = given(call, 1),
                                       .sort_keys = flag(call, 3),
                                       .key_separator = tpl_text(": ", false)};
    struct tpl_value space = tpl_text(" ", false);
    struct tpl_builder b = {0};

    options.item_separator = tpl_text(options.has_indent ? "," : ", ", false);
    if (call->a[1].kind == TPL_STRING)
        options.indent = call->a[1];
    else if (options.has_indent &&
             !tpl_binary(call->run, TOKEN_MUL, &space, &call->a[1], &options.indent))
        return false;
    if (!separator(call, 0, &options.item_separator) || !separator(call, 1, &options.key_separator))
        return false;
    if (options.has_indent && options.indent.kind != TPL_STRING)
        return bad_argument(call, "the indent must be an integer or a string");
    if (!tpl_json(call->run, &b, call->value, &options))
        return false;
    *ret = tpl_built(&b);
    return true;
}

/* map(attribute='a', default=x). */
static bool map_attribute(struct call *call, struct tpl_value *from, size_t n, struct tpl_seq *seq)
{
    static const char *const NAMES[] = {"attribute", "default"};
    struct tpl_value a[2];

    if (!tpl_bind(call->run, call->args, "map", NAMES, 2, a))
        return false;
    if (a[0].kind == TPL_MISSING)
        return bad_argument(call, "needs a filter or an attribute");
    for (size_t i = 0; i < n; i++) {
        if (!look_up(call->run, &from[i], &a[0], a[1].kind <= TPL_NONE ? NULL : &a[1],
                     &seq->items[i]))
            return false;
    }
    return true;
}

static bool map(struct call *call, struct tpl_value *ret)
{
    const struct tpl_args *args = call->args;
    struct tpl_value *from;
    size_t n;

    if (!tpl_iterate(call->run, call->value, &from, &n))
        return false;
    struct tpl_seq *seq = tpl_seq_new(call->run, TPL_GENERATOR, n);
    if (seq == NULL)
        return false;
    *ret = tpl_seq_value(seq);
    if (args->n == 0)
        return map_attribute(call, from, n, seq);
    const struct tpl_value *name = &args->values[0];
    int filter = name->kind == TPL_STRING ? tpl_filter_find(name->u.s.data, name->u.s.size) : -1;
    if (filter < 0)
        return tpl_fail(call->run, FERRY_ERR_UNSUPPORTED, "map: a filter that is not handled");
    struct tpl_args rest = *args;
    rest.values++;
    rest.n--;
    for (size_t i = 0; i < n; i++) {
        if (!tpl_enter(call->run))
            return false;
        bool ok = tpl_filter_call(call->run, filter, &from[i], &rest, &seq->items[i]);
        tpl_leave(call->run);
        if (!ok)
            return false;
    }
    return true;
}

enum { SELECT_ATTRIBUTE = 1, SELECT_REJECT = 2 };

static bool select_items(struct call *call, struct tpl_value *ret)
{
    bool by_attribute = (call->variant & SELECT_ATTRIBUTE) != 0;
    struct tpl_args args = *call->args;
    const struct tpl_value *attribute = args.values;
    struct tpl_value *from = NULL;
    size_t n = 0;
    int test = -1;

    if (tpl_truth(call->value) && !tpl_iterate(call->run, call->value, &from, &n))
        return false;
    if (by_attribute && args.n == 0)
        return bad_argument(call, "needs the name of an attribute");
    if (by_attribute) {
        args.values++;
        args.n--;
    }
    bool has_test = args.n > 0;
    if (has_test) {
        const struct tpl_value *name = args.values;
        test = name->kind == TPL_STRING ? tpl_test_find(name->u.s.data, name->u.s.size) : -1;
        if (test < 0)
            return tpl_fail(call->run, FERRY_ERR_UNSUPPORTED, "%s: a test that is not handled",
                            call->name);
        args.values++;
        args.n--;
    }
    struct tpl_seq *seq = tpl_seq_new(call->run, TPL_GENERATOR, n);
    if (seq == NULL)
        return false;
    seq->n = 0;
    for (size_t i = 0; i < n; i++) {
        struct tpl_value asked = from[i];
        if (!tpl_work(call->run, 1) ||
            (by_attribute && !look_up(call->run, &from[i], attribute, NULL, &asked)))
            return false;
        bool yes = tpl_truth(&asked);
        if (has_test && !tpl_test_call(call->run, test, &asked, &args, &yes))
            return false;
        if (yes != ((call->variant & SELECT_REJECT) != 0))
            seq->items[seq->n++] = from[i];
    }
    *ret = tpl_seq_value(seq);
    return true;
}

#define NO_NAMES               \
    {                          \
        NULL, NULL, NULL, NULL \
    }
static const struct {
    const char *name;
    filter_function *call;
    int variant;
    int n_args; /* -1: the function looks at them itself */
    const char *args[ARGS_MAX];
} FILTERS[] = {
    {"abs", absolute, 0, 0, NO_NAMES},
    {"capitalize", change_case, TPL_CAPITALIZE, 0, NO_NAMES},
    {"count", length, 0, 0, NO_NAMES},
    {"d", use_default, 0, 2, {"default_value", "boolean", "", ""}},
    {"default", use_default, 0, 2, {"default_value", "boolean", "", ""}},
    {"dictsort", dictsort, 0, 3, {"case_sensitive", "by", "reverse", ""}},
    {"e", escape, 0, 0, NO_NAMES},
    {"escape", escape, 0, 0, NO_NAMES},
    {"first", first, 0, 0, NO_NAMES},
    {"float", to_float, 0, 1, {"default", "", "", ""}},
    {"indent", indent, 0, 3, {"width", "first", "blank", ""}},
    {"int", to_int, 0, 2, {"default", "base", "", ""}},
    {"items", items, 0, 0, NO_NAMES},
    {"join", join, 0, 2, {"d", "attribute", "", ""}},
    {"last", last, 0, 0, NO_NAMES},
    {"length", length, 0, 0, NO_NAMES},
    {"list", list, 0, 0, NO_NAMES},
    {"lower", change_case, TPL_LOWER, 0, NO_NAMES},
    {"map", map, 0, -1, NO_NAMES},
    {"max", min_or_max, 1, 2, {"case_sensitive", "attribute", "", ""}},
    {"min", min_or_max, -1, 2, {"case_sensitive", "attribute", "", ""}},
    {"reject", select_items, SELECT_REJECT, -1, NO_NAMES},
    {"rejectattr", select_items, SELECT_REJECT | SELECT_ATTRIBUTE, -1, NO_NAMES},
    {"replace", replace, 0, 3, {"old", "new", "count", ""}},
    {"reverse", reverse, 0, 0, NO_NAMES},
    {"round", round_number, 0, 2, {"precision", "method", "", ""}},
    {"safe", safe, 0, 0, NO_NAMES},
    {"select", select_items, 0, -1, NO_NAMES},
    {"selectattr", select_items, SELECT_ATTRIBUTE, -1, NO_NAMES},
    {"sort", sort, 0, 3, {"reverse", "case_sensitive", "attribute", ""}},
    {"string", string, 0, 0, NO_NAMES},
    {"sum", sum, 0, 2, {"attribute", "start", "", ""}},
    {"title", change_case, TPL_TITLE_FILTER, 0, NO_NAMES},
    {"tojson", to_json, 0, 4, {"ensure_ascii", "indent", "separators", "sort_keys"}},
    {"trim", trim, 0, 1, {"chars", "", "", ""}},
    {"unique", unique, 0, 2, {"case_sensitive", "attribute", "", ""}},
    {"upper", change_case, TPL_UPPER, 0, NO_NAMES},
};

int tpl_filter_find(const char *name, size_t size)
{
    for (size_t i = 0; i < sizeof FILTERS / sizeof FILTERS[0]; i++) {
        if (strlen(FILTERS[i].name) == size && memcmp(FILTERS[i].name, name, size) == 0)
            return (int)i;
    }
    return -1;
}

bool tpl_filter_call(struct tpl_run *run, int filter, const struct tpl_value *value,
                     const struct tpl_args *args, struct tpl_value *ret)
{
    struct call call = {.run = run,
                        .value = value,
                        .args = args,
                        .name = FILTERS[filter].name,
                        .variant = FILTERS[filter].variant};

    if (FILTERS[filter].n_args >= 0 && !tpl_bind(run, args, call.name, FILTERS[filter].args,
                                                 (size_t)FILTERS[filter].n_args, call.a))
        return false;
    return FILTERS[filter].call(&call, ret);
}
