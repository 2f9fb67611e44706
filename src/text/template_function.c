/* Global functions of chat templates. See template_function.h. */
#include "text/template_function.h"

#include "base/error.h"
#include "base/limits.h"
#include "base/size.h"
#include "text/template_ast.h"
#include "text/template_ops.h"
#include "text/template_print.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

static bool make_range(struct tpl_run *run, const struct tpl_args *args, struct tpl_value *ret)
{
    int64_t parts[3] = {0, 0, 1};

    if (args->n < 1 || args->n > 3 || args->n_keywords > 0)
        return tpl_fail(run, FERRY_ERR_ARG, "range takes 1 to 3 arguments (%zu given)",
                        args->n + args->n_keywords);
    for (size_t i = 0; i < args->n; i++) {
        if (args->values[i].kind == TPL_UNDEFINED)
            return tpl_fail_undefined(run, &args->values[i]);
        if (!tpl_as_int(&args->values[i], &parts[args->n == 1 ? 1 : i]))
            return tpl_fail(run, FERRY_ERR_ARG, "'%s' object cannot be interpreted as an integer",
                            tpl_type_name(&args->values[i]));
    }
    int64_t start = parts[0];
    int64_t stop = parts[1];
    int64_t step = parts[2];
    if (step == 0)
        return tpl_fail(run, FERRY_ERR_ARG, "range() arg 3 must not be zero");
    uint64_t n = 0;
    if (step > 0 && start < stop)
        n = ((uint64_t)stop - (uint64_t)start - 1) / (uint64_t)step + 1;
    else if (step < 0 && start > stop)
        n = ((uint64_t)start - (uint64_t)stop - 1) / (0 - (uint64_t)step) + 1;
    if (n > LIMIT_TEMPLATE_RANGE)
        return tpl_fail(run, FERRY_ERR_LIMIT, "a range of %" PRIu64 " numbers (limit %d)", n,
                        (int)LIMIT_TEMPLATE_RANGE);
    struct tpl_seq *seq = tpl_seq_new(run, TPL_RANGE, (size_t)n);
    if (seq == NULL)
        return false;
    seq->start = start;
    seq->stop = stop;
    seq->step = step;
    for (size_t i = 0; i < seq->n; i++)
        seq->items[i] = tpl_int(start + (int64_t)i * step, true);
    *ret = tpl_seq_value(seq);
    return true;
}

/* Adds the pairs or the members of a value to dict. */
static bool add_all(struct tpl_run *run, struct tpl_dict *dict, const struct tpl_value *from)
{
    struct tpl_value *items;
    size_t n;

    if (from->kind == TPL_DICT) {
        for (size_t i = 0; i < from->u.dict->n; i++) {
            if (!tpl_dict_set(run, dict, &from->u.dict->keys[i], &from->u.dict->values[i]))
                return false;
        }
        return true;
    }
    if (!tpl_iterate(run, from, &items, &n))
        return false;
    for (size_t i = 0; i < n; i++) {
        struct tpl_value *pair;
        size_t n_pair;
        if (!tpl_iterate(run, &items[i], &pair, &n_pair))
            return false;
        if (n_pair != 2)
            return tpl_fail(run, FERRY_ERR_ARG,
                            "dictionary update sequence element #%zu has length %zu; 2 is required",
                            i, n_pair);
        if (pair[0].kind == TPL_DICT ||
            (pair[0].kind == TPL_SEQ && pair[0].u.seq->kind == TPL_LIST))
            return tpl_fail(run, FERRY_ERR_ARG, "unhashable type: '%s'", tpl_type_name(&pair[0]));
        if (!tpl_dict_set(run, dict, &pair[0], &pair[1]))
            return false;
    }
    return true;
}

static bool make_dict(struct tpl_run *run, const struct tpl_args *args, bool is_namespace,
                      struct tpl_value *ret)
{
    struct tpl_dict *dict = tpl_dict_new(run, args->n_keywords);

    if (dict == NULL)
        return false;
    if (args->n > 1)
        return tpl_fail(run, FERRY_ERR_ARG, "dict expected at most 1 argument, got %zu", args->n);
    if (args->n == 1 && !add_all(run, dict, &args->values[0]))
        return false;
    for (size_t i = 0; i < args->n_keywords; i++) {
        if (!tpl_dict_set(run, dict, &args->keywords[i].name, &args->keywords[i].value))
            return false;
    }
    *ret = tpl_dict_value(dict);
    if (is_namespace)
        ret->kind = TPL_NAMESPACE;
    return true;
}

/* The template says no: its message is the error. */
static bool raise_exception(struct tpl_run *run, const struct tpl_args *args)
{
    struct tpl_builder b = {0};

    if (args->n + args->n_keywords != 1)
        return tpl_fail(run, FERRY_ERR_ARG, "raise_exception takes 1 argument (%zu given)",
                        args->n + args->n_keywords);
    if (!tpl_print(run, &b, args->n == 1 ? args->values : &args->keywords[0].value))
        return false;
    return tpl_fail(run, FERRY_ERR_ARG, "%.*s", (int)min_size(b.size, 380),
                    b.size == 0 ? "" : b.data);
}

/* strftime's conversions that mean the same everywhere. */
static const char CONVERSIONS[] = "aAbBcdHIjmMpSUwWxXyYzZDeFhnRtTuVgG%";

enum { TIME_TEXT = 128, CONVERSION_TEXT = 8 };

/* One conversion, like "%-d"; *at stands behind its '%' and moves behind its letter. */
static bool put_time(struct tpl_run *run, struct tpl_builder *b, const struct tpl_value *format,
                     size_t *at, const struct tm *now)
{
    const struct tpl_string *s = &format->u.s;
    char conversion[CONVERSION_TEXT] = "%";
    char text[TIME_TEXT];
    size_t n = 1;

    if (*at < s->size && strchr("-_0^#", s->data[*at]) != NULL && s->data[*at] != 0)
        conversion[n++] = s->data[(*at)++];
    char letter = *at < s->size ? s->data[*at] : 0;
    if (letter == 'f' && n == 1) {
        (*at)++;
        return tpl_put(run, b, "000000", 6, true);
    }
    if (letter == 0 || strchr(CONVERSIONS, letter) == NULL)
        return tpl_fail(run, FERRY_ERR_UNSUPPORTED, "strftime_now: the conversion %%%c",
                        letter > ' ' && letter < 0x7F ? letter : '?');
    (*at)++;
    if (letter == 'z' || letter == 'Z') /* Python's datetime.now() has no zone */
        return true;
    conversion[n++] = letter;
    conversion[n] = 0;
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
    size_t size = strftime(text, sizeof text, conversion, now);
#pragma GCC diagnostic pop
    return tpl_put(run, b, text, size, true);
}

static bool strftime_now(struct tpl_run *run, const struct tpl_args *args, struct tpl_value *ret)
{
    struct tpl_builder b = {0};
    time_t seconds = (time_t)run->now_s;
    struct tm now;

    if (args->n != 1 || args->n_keywords > 0 || args->values[0].kind != TPL_STRING)
        return tpl_fail(run, FERRY_ERR_ARG, "strftime_now takes one string");
    if (gmtime_r(&seconds, &now) == NULL)
        return tpl_fail(run, FERRY_ERR_ARG, "strftime_now: the time is out of range");
    const struct tpl_value *format = &args->values[0];
    for (size_t at = 0; at < format->u.s.size;) {
        size_t end = at;
        while (end < format->u.s.size && format->u.s.data[end] != '%')
            end++;
        struct tpl_value text = tpl_sub(format, at, end);
        if (!tpl_work(run, 1) || !tpl_put_string(run, &b, &text))
            return false;
        at = end + 1;
        if (end < format->u.s.size && !put_time(run, &b, format, &at, &now))
            return false;
    }
    *ret = tpl_built(&b);
    return true;
}

bool tpl_call_function(struct tpl_run *run, int function, const struct tpl_args *args,
                       struct tpl_value *ret)
{
    switch (function) {
    case NAME_RANGE:
        return make_range(run, args, ret);
    case NAME_DICT:
        return make_dict(run, args, false, ret);
    case NAME_NAMESPACE:
        return make_dict(run, args, true, ret);
    case NAME_RAISE_EXCEPTION:
        return raise_exception(run, args);
    default:
        return strftime_now(run, args, ret);
    }
}
