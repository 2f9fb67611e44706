/* Operators of chat templates. See template_ops.h. */
#include "text/template_ops.h"

#include "base/size.h"
#include "text/template_ast.h"
#include "text/template_lex.h"
#include "text/template_method.h"
#include "text/template_print.h"
#include "text/template_text.h"
#include "text/unicode.h"

#include <math.h>
#include <string.h>

bool tpl_truth(const struct tpl_value *value)
{
    switch (value->kind) {
    case TPL_MISSING:
    case TPL_UNDEFINED:
    case TPL_NONE:
        return false;
    case TPL_BOOL:
        return value->u.b;
    case TPL_INT:
        return value->u.i != 0;
    case TPL_FLOAT:
        return value->u.f != 0;
    case TPL_STRING:
        return value->u.s.size > 0;
    case TPL_SEQ:
        return value->u.seq->kind == TPL_GENERATOR || value->u.seq->n > 0;
    case TPL_DICT:
        return value->u.dict->n > 0;
    default:
        return true;
    }
}

bool tpl_is_number(const struct tpl_value *value)
{
    return value->kind == TPL_BOOL || value->kind == TPL_INT || value->kind == TPL_FLOAT;
}

bool tpl_as_int(const struct tpl_value *value, int64_t *ret)
{
    if (value->kind == TPL_INT)
        *ret = value->u.i;
    else if (value->kind == TPL_BOOL)
        *ret = value->u.b;
    else
        return false;
    return true;
}

static double as_double(const struct tpl_value *value)
{
    int64_t i = 0;

    if (value->kind == TPL_FLOAT)
        return value->u.f;
    (void)tpl_as_int(value, &i);
    return (double)i;
}

/* Order of two numbers as in tpl_compare. Exact: a double of 2^53 and more is compared as an
 * integer. */
static int compare_numbers(const struct tpl_value *a, const struct tpl_value *b)
{
    int64_t x;
    int64_t y;

    if (tpl_as_int(a, &x) && tpl_as_int(b, &y))
        return (x > y) - (x < y);
    if (a->kind == TPL_FLOAT && b->kind != TPL_FLOAT) {
        int order = compare_numbers(b, a);
        return order == 2 ? 2 : -order;
    }
    double f = b->u.f;
    if (!tpl_as_int(a, &x)) {
        if (isnan(a->u.f) || isnan(f))
            return 2;
        return (a->u.f > f) - (a->u.f < f);
    }
    if (isnan(f))
        return 2;
    if (f >= 9223372036854775808.0)
        return -1;
    if (f < -9223372036854775808.0)
        return 1;
    int64_t whole = (int64_t)f;
    if (x != whole)
        return x > whole ? 1 : -1;
    double rest = f - (double)whole;
    return (rest < 0) - (rest > 0);
}

static int compare_strings(const struct tpl_string *a, const struct tpl_string *b)
{
    int order = memcmp(a->data, b->data, min_size(a->size, b->size));

    if (order == 0)
        order = (a->size > b->size) - (a->size < b->size);
    return (order > 0) - (order < 0);
}

static bool equal_items(struct tpl_run *run, const struct tpl_seq *a, const struct tpl_seq *b,
                        bool *ret)
{
    *ret = a == b;
    if (a == b || a->kind != b->kind || a->kind == TPL_GENERATOR || a->n != b->n)
        return true;
    *ret = true;
    for (size_t i = 0; i < a->n && *ret; i++) {
        if (!tpl_equal(run, &a->items[i], &b->items[i], ret))
            return false;
    }
    return true;
}

static bool equal_dicts(struct tpl_run *run, const struct tpl_dict *a, const struct tpl_dict *b,
                        bool *ret)
{
    *ret = a->n == b->n;
    for (size_t i = 0; i < a->n && *ret && a != b; i++) {
        bool ok;
        const struct tpl_value *other = tpl_dict_find(run, b, &a->keys[i], &ok);
        if (!ok)
            return false;
        if (other == NULL)
            *ret = false;
        else if (!tpl_equal(run, &a->values[i], other, ret))
            return false;
    }
    return true;
}

bool tpl_equal(struct tpl_run *run, const struct tpl_value *a, const struct tpl_value *b, bool *ret)
{
    bool ok = true;

    *ret = false;
    if (!tpl_work(run, 1))
        return false;
    if (tpl_is_number(a) && tpl_is_number(b)) {
        *ret = compare_numbers(a, b) == 0;
        return true;
    }
    if (a->kind != b->kind)
        return true;
    switch (a->kind) {
    case TPL_STRING:
        *ret = a->u.s.size == b->u.s.size && compare_strings(&a->u.s, &b->u.s) == 0;
        return tpl_work_bytes(run, a->u.s.size);
    case TPL_SEQ:
    case TPL_DICT:
        if (!tpl_enter(run))
            return false;
        ok = a->kind == TPL_SEQ ? equal_items(run, a->u.seq, b->u.seq, ret)
                                : equal_dicts(run, a->u.dict, b->u.dict, ret);
        tpl_leave(run);
        return ok;
    case TPL_NONE:
    case TPL_UNDEFINED:
        *ret = true;
        return true;
    case TPL_FUNCTION:
        *ret = a->u.function == b->u.function;
        return true;
    case TPL_NAMESPACE:
        *ret = a->u.dict == b->u.dict;
        return true;
    case TPL_LOOP:
        *ret = a->u.loop == b->u.loop;
        return true;
    case TPL_MACRO:
        *ret = a->u.macro == b->u.macro;
        return true;
    default:
        return true;
    }
}

static bool compare_items(struct tpl_run *run, const struct tpl_seq *a, const struct tpl_seq *b,
                          int *ret)
{
    for (size_t i = 0; i < a->n && i < b->n; i++) {
        bool equal;
        if (!tpl_equal(run, &a->items[i], &b->items[i], &equal))
            return false;
        if (!equal)
            return tpl_compare(run, &a->items[i], &b->items[i], ret);
    }
    *ret = (a->n > b->n) - (a->n < b->n);
    return true;
}

bool tpl_compare(struct tpl_run *run, const struct tpl_value *a, const struct tpl_value *b,
                 int *ret)
{
    if (!tpl_work(run, 1))
        return false;
    if (tpl_is_number(a) && tpl_is_number(b)) {
        *ret = compare_numbers(a, b);
        return true;
    }
    if (a->kind == TPL_STRING && b->kind == TPL_STRING) {
        *ret = compare_strings(&a->u.s, &b->u.s);
        return tpl_work_bytes(run, min_size(a->u.s.size, b->u.s.size));
    }
    if (a->kind == TPL_SEQ && b->kind == TPL_SEQ && a->u.seq->kind == b->u.seq->kind &&
        a->u.seq->kind <= TPL_TUPLE) {
        if (!tpl_enter(run))
            return false;
        bool ok = compare_items(run, a->u.seq, b->u.seq, ret);
        tpl_leave(run);
        return ok;
    }
    if (a->kind == TPL_UNDEFINED || b->kind == TPL_UNDEFINED)
        return tpl_fail_undefined(run, a->kind == TPL_UNDEFINED ? a : b);
    return tpl_fail(run, FERRY_ERR_ARG, "'<' not supported between '%s' and '%s'", tpl_type_name(a),
                    tpl_type_name(b));
}

bool tpl_compare_by(struct tpl_run *run, int op, const struct tpl_value *a,
                    const struct tpl_value *b, bool *ret)
{
    int order;

    if (op == OPERAND_IN || op == OPERAND_NOT_IN) {
        bool ok = tpl_contains(run, a, b, ret);
        *ret = *ret != (op == OPERAND_NOT_IN);
        return ok;
    }
    if (op == TOKEN_EQ || op == TOKEN_NE) {
        bool ok = tpl_equal(run, a, b, ret);
        *ret = *ret != (op == TOKEN_NE);
        return ok;
    }
    if (!tpl_compare(run, a, b, &order))
        return false;
    *ret = order != 2 && (op == TOKEN_LT   ? order < 0
                          : op == TOKEN_LE ? order <= 0
                          : op == TOKEN_GT ? order > 0
                                           : order >= 0);
    return true;
}

bool tpl_contains(struct tpl_run *run, const struct tpl_value *item, const struct tpl_value *in,
                  bool *ret)
{
    bool ok;

    *ret = false;
    if (in->kind == TPL_STRING) {
        if (item->kind != TPL_STRING)
            return item->kind == TPL_UNDEFINED
                       ? tpl_fail(run, FERRY_ERR_ARG,
                                  "'in <string>' requires string as left operand, not Undefined")
                       : tpl_fail(run, FERRY_ERR_ARG,
                                  "'in <string>' requires string as left operand, not %s",
                                  tpl_type_name(item));
        *ret = tpl_find(run, &in->u.s, &item->u.s, 0, &ok) != SIZE_MAX;
        return ok;
    }
    if (in->kind == TPL_DICT) {
        if (item->kind == TPL_DICT || (item->kind == TPL_SEQ && item->u.seq->kind == TPL_LIST))
            return tpl_fail(run, FERRY_ERR_ARG, "unhashable type: '%s'", tpl_type_name(item));
        *ret = tpl_dict_find(run, in->u.dict, item, &ok) != NULL;
        return ok;
    }
    if (in->kind != TPL_SEQ && in->kind != TPL_UNDEFINED)
        return tpl_fail(run, FERRY_ERR_ARG, "argument of type '%s' is not iterable",
                        tpl_type_name(in));
    struct tpl_value *items;
    size_t n;
    if (!tpl_iterate(run, in, &items, &n))
        return false;
    for (size_t i = 0; i < n && !*ret; i++) {
        if (!tpl_equal(run, &items[i], item, ret))
            return false;
    }
    return true;
}

static bool bad_operands(struct tpl_run *run, const char *op, const struct tpl_value *a,
                         const struct tpl_value *b)
{
    if (a->kind == TPL_UNDEFINED || b->kind == TPL_UNDEFINED)
        return tpl_fail_undefined(run, a->kind == TPL_UNDEFINED ? a : b);
    return tpl_fail(run, FERRY_ERR_ARG, "unsupported operand types for %s: '%s' and '%s'", op,
                    tpl_type_name(a), tpl_type_name(b));
}

static bool too_large(struct tpl_run *run)
{
    return tpl_fail(run, FERRY_ERR_LIMIT, "an integer of more than 64 bits (limit)");
}

static bool power(struct tpl_run *run, int64_t x, int64_t y, bool trusted, struct tpl_value *ret)
{
    int64_t result = 1;

    if (y < 0) {
        if (x == 0)
            return tpl_fail(run, FERRY_ERR_ARG, "0.0 cannot be raised to a negative power");
        *ret = tpl_float(pow((double)x, (double)y), trusted);
        return true;
    }
    if ((x == 0 || x == 1 || x == -1) && y > 1)
        y = 2 + (y & 1);
    for (; y > 0; y--) {
        if (__builtin_mul_overflow(result, x, &result))
            return too_large(run);
    }
    *ret = tpl_int(result, trusted);
    return true;
}

static bool int_arithmetic(struct tpl_run *run, int op, int64_t x, int64_t y, bool trusted,
                           struct tpl_value *ret)
{
    int64_t r = 0;
    bool over = false;

    switch (op) {
    case TOKEN_ADD:
        over = __builtin_add_overflow(x, y, &r);
        break;
    case TOKEN_SUB:
        over = __builtin_sub_overflow(x, y, &r);
        break;
    case TOKEN_MUL:
        over = __builtin_mul_overflow(x, y, &r);
        break;
    case TOKEN_POW:
        return power(run, x, y, trusted, ret);
    default:
        if (y == 0)
            return tpl_fail(run, FERRY_ERR_ARG, "division by zero");
        if (op == TOKEN_DIV) {
            *ret = tpl_float((double)x / (double)y, trusted);
            return true;
        }
        over = x == INT64_MIN && y == -1;
        if (over)
            break;
        r = x / y;
        int64_t rest = x % y;
        bool adjust = rest != 0 && (rest < 0) != (y < 0);
        r = op == TOKEN_MOD ? rest + (adjust ? y : 0) : r - adjust;
        break;
    }
    if (over)
        return too_large(run);
    *ret = tpl_int(r, trusted);
    return true;
}

static bool float_arithmetic(struct tpl_run *run, int op, double x, double y, bool trusted,
                             struct tpl_value *ret)
{
    double r;

    if ((op == TOKEN_DIV || op == TOKEN_FLOORDIV || op == TOKEN_MOD) && y == 0)
        return tpl_fail(run, FERRY_ERR_ARG, "float division by zero");
    double rest = op == TOKEN_FLOORDIV || op == TOKEN_MOD ? fmod(x, y) : 0;
    bool adjust = rest != 0 && (rest < 0) != (y < 0);
    switch (op) {
    case TOKEN_ADD:
        r = x + y;
        break;
    case TOKEN_SUB:
        r = x - y;
        break;
    case TOKEN_MUL:
        r = x * y;
        break;
    case TOKEN_DIV:
        r = x / y;
        break;
    case TOKEN_POW:
        if (x < 0 && y != floor(y))
            return tpl_fail(run, FERRY_ERR_ARG, "a negative number to a broken power");
        if (x == 0 && y < 0)
            return tpl_fail(run, FERRY_ERR_ARG, "0.0 cannot be raised to a negative power");
        r = pow(x, y);
        break;
    case TOKEN_FLOORDIV: {
        double quotient = (x - rest) / y - (adjust ? 1 : 0);
        r = quotient == 0 ? copysign(0, x / y) : floor(quotient);
        r += quotient != 0 && quotient - r > 0.5;
        break;
    }
    default:
        r = rest == 0 ? copysign(0, y) : rest + (adjust ? y : 0);
        break;
    }
    *ret = tpl_float(r, trusted);
    return true;
}

static bool repeat(struct tpl_run *run, const struct tpl_value *what, int64_t times,
                   struct tpl_value *ret)
{
    size_t n = times < 0 ? 0 : (size_t)times;

    if (what->kind == TPL_STRING) {
        struct tpl_builder b = {0};
        if (!tpl_put_times(run, &b, what, n))
            return false;
        *ret = tpl_built(&b);
        return true;
    }
    const struct tpl_seq *from = what->u.seq;
    size_t total;
    if (!mul_size(from->n, n, &total))
        total = SIZE_MAX;
    struct tpl_seq *seq = tpl_seq_new(run, from->kind, total);
    if (seq == NULL)
        return false;
    for (size_t i = 0; i < total; i++)
        seq->items[i] = from->items[i % from->n];
    *ret = tpl_seq_value(seq);
    return true;
}

static bool is_list(const struct tpl_value *value)
{
    return value->kind == TPL_SEQ && value->u.seq->kind <= TPL_TUPLE;
}

static bool add_lists(struct tpl_run *run, const struct tpl_seq *a, const struct tpl_seq *b,
                      struct tpl_value *ret)
{
    struct tpl_seq *seq = tpl_seq_new(run, a->kind, a->n + b->n);

    if (seq == NULL)
        return false;
    if (a->n > 0)
        memcpy(seq->items, a->items, a->n * sizeof *seq->items);
    if (b->n > 0)
        memcpy(seq->items + a->n, b->items, b->n * sizeof *seq->items);
    *ret = tpl_seq_value(seq);
    return true;
}

static bool concat(struct tpl_run *run, const struct tpl_value *a, const struct tpl_value *b,
                   struct tpl_value *ret)
{
    struct tpl_builder builder = {0};

    if (!tpl_print(run, &builder, a) || !tpl_print(run, &builder, b))
        return false;
    *ret = tpl_built(&builder);
    return true;
}

/* a + b of strings; when one is HTML, so is the sum, and the other is escaped. */
static bool add_strings(struct tpl_run *run, const struct tpl_value *a, const struct tpl_value *b,
                        struct tpl_value *ret)
{
    struct tpl_value left;
    struct tpl_value right;

    if (!a->markup && !b->markup)
        return concat(run, a, b, ret);
    if (!tpl_escape(run, a, &left) || !tpl_escape(run, b, &right) ||
        !concat(run, &left, &right, ret))
        return false;
    ret->markup = true;
    return true;
}

bool tpl_binary(struct tpl_run *run, int op, const struct tpl_value *a, const struct tpl_value *b,
                struct tpl_value *ret)
{
    static const struct {
        int op;
        const char *text;
    } NAMES[] = {{TOKEN_ADD, "+"},       {TOKEN_SUB, "-"}, {TOKEN_MUL, "*"}, {TOKEN_DIV, "/"},
                 {TOKEN_FLOORDIV, "//"}, {TOKEN_MOD, "%"}, {TOKEN_POW, "**"}};
    int64_t x;
    int64_t y;
    size_t name = 0;

    if (op == TOKEN_TILDE)
        return concat(run, a, b, ret);
    if (tpl_as_int(a, &x) && tpl_as_int(b, &y))
        return int_arithmetic(run, op, x, y, a->trusted && b->trusted, ret);
    if (tpl_is_number(a) && tpl_is_number(b))
        return float_arithmetic(run, op, as_double(a), as_double(b), a->trusted && b->trusted, ret);
    if (op == TOKEN_ADD && a->kind == TPL_STRING && b->kind == TPL_STRING)
        return add_strings(run, a, b, ret);
    if (op == TOKEN_ADD && is_list(a) && is_list(b) && a->u.seq->kind == b->u.seq->kind)
        return add_lists(run, a->u.seq, b->u.seq, ret);
    if (op == TOKEN_MUL && (a->kind == TPL_STRING || is_list(a)) && tpl_as_int(b, &y))
        return repeat(run, a, y, ret);
    if (op == TOKEN_MUL && (b->kind == TPL_STRING || is_list(b)) && tpl_as_int(a, &x))
        return repeat(run, b, x, ret);
    if (op == TOKEN_MOD && a->kind == TPL_STRING)
        return tpl_fail(run, FERRY_ERR_UNSUPPORTED, "formatting by %% is not handled; use ~");
    while (NAMES[name].op != op)
        name++;
    return bad_operands(run, NAMES[name].text, a, b);
}

bool tpl_negate(struct tpl_run *run, const struct tpl_value *a, struct tpl_value *ret)
{
    int64_t x;

    if (a->kind == TPL_FLOAT) {
        *ret = tpl_float(-a->u.f, a->trusted);
        return true;
    }
    if (!tpl_as_int(a, &x))
        return a->kind == TPL_UNDEFINED
                   ? tpl_fail_undefined(run, a)
                   : tpl_fail(run, FERRY_ERR_ARG, "bad operand type for unary -: '%s'",
                              tpl_type_name(a));
    if (x == INT64_MIN)
        return too_large(run);
    *ret = tpl_int(-x, a->trusted);
    return true;
}

/* owner[key] as Python looks it up; *ret MISSING when that fails. */
static bool subscript(struct tpl_run *run, const struct tpl_value *owner,
                      const struct tpl_value *key, struct tpl_value *ret)
{
    int64_t i;
    bool ok = true;

    *ret = (struct tpl_value){0};
    if (owner->kind == TPL_DICT) {
        const struct tpl_value *found = tpl_dict_find(run, owner->u.dict, key, &ok);
        if (found != NULL)
            *ret = *found;
        return ok;
    }
    if (!tpl_as_int(key, &i))
        return true;
    if (owner->kind == TPL_SEQ && owner->u.seq->kind <= TPL_RANGE) {
        const struct tpl_seq *seq = owner->u.seq;
        i += i < 0 ? (int64_t)seq->n : 0;
        if (i >= 0 && (uint64_t)i < seq->n)
            *ret = seq->items[i];
    } else if (owner->kind == TPL_STRING) {
        const struct tpl_string *s = &owner->u.s;
        if (i < 0)
            i += (int64_t)tpl_count_chars(s->data, s->size);
        size_t at = i < 0 ? s->size : tpl_char_offset(s->data, s->size, (size_t)i);
        int32_t code;
        if (at < s->size)
            *ret = tpl_sub(owner, at, at + utf8_decode(s->data + at, s->size - at, &code));
        return tpl_work_bytes(run, 2 * s->size);
    }
    return true;
}

bool tpl_getattr(struct tpl_run *run, const struct tpl_value *owner, const struct tpl_value *name,
                 struct tpl_value *ret)
{
    if (owner->kind == TPL_UNDEFINED)
        return tpl_fail_undefined(run, owner);
    if (!tpl_find_member(run, owner, name, ret))
        return false;
    if (ret->kind == TPL_MISSING && !subscript(run, owner, name, ret))
        return false;
    return ret->kind != TPL_MISSING || tpl_undefined(run, owner, name, ret);
}

bool tpl_getitem(struct tpl_run *run, const struct tpl_value *owner, const struct tpl_value *key,
                 struct tpl_value *ret)
{
    if (owner->kind == TPL_UNDEFINED)
        return tpl_fail_undefined(run, owner);
    if (!subscript(run, owner, key, ret))
        return false;
    if (ret->kind == TPL_MISSING && key->kind == TPL_STRING &&
        !tpl_find_member(run, owner, key, ret))
        return false;
    return ret->kind != TPL_MISSING || tpl_undefined(run, owner, key, ret);
}

/* Python's slice.indices for a length of n. */
static bool slice_bounds(struct tpl_run *run, const struct tpl_value *part, int64_t absent,
                         int64_t n, int64_t step, int64_t *ret)
{
    int64_t low = step < 0 ? -1 : 0;
    int64_t high = step < 0 ? n - 1 : n;

    *ret = absent;
    if (part == NULL || part->kind == TPL_NONE)
        return true;
    if (!tpl_as_int(part, ret))
        return part->kind == TPL_UNDEFINED
                   ? tpl_fail_undefined(run, part)
                   : tpl_fail(run, FERRY_ERR_ARG, "slice indices must be integers or None");
    if (*ret < 0)
        *ret += n;
    *ret = *ret < low ? low : *ret > high ? high : *ret;
    return true;
}

static bool slice_string(struct tpl_run *run, const struct tpl_value *s, int64_t start,
                         int64_t stop, int64_t step, struct tpl_value *ret)
{
    const char *data = s->u.s.data;
    size_t n = s->u.s.size;
    struct tpl_builder b = {0};

    if (step == 1) {
        size_t from = tpl_char_offset(data, n, (size_t)start);
        size_t to = from;
        if (stop > start)
            to += tpl_char_offset(data + from, n - from, (size_t)(stop - start));
        *ret = tpl_sub(s, from, to);
        return true;
    }
    size_t *offsets = tpl_array(run, n + 1, sizeof *offsets);
    size_t n_chars = 0;
    if (offsets == NULL)
        return false;
    for (size_t i = 0; i < n; i++) {
        if (((unsigned char)data[i] & 0xC0) != 0x80)
            offsets[n_chars++] = i;
    }
    offsets[n_chars] = n;
    for (int64_t i = start; step > 0 ? i < stop : i > stop; i += step) {
        struct tpl_value c = tpl_sub(s, offsets[i], offsets[i + 1]);
        if (!tpl_put_string(run, &b, &c))
            return false;
    }
    *ret = tpl_built(&b);
    return true;
}

bool tpl_slice(struct tpl_run *run, const struct tpl_value *owner, const struct tpl_value *start,
               const struct tpl_value *stop, const struct tpl_value *step, struct tpl_value *ret)
{
    int64_t by = 1;
    int64_t from;
    int64_t to;

    if (owner->kind == TPL_UNDEFINED)
        return tpl_fail_undefined(run, owner);
    bool is_string = owner->kind == TPL_STRING;
    if (!is_string && (owner->kind != TPL_SEQ || owner->u.seq->kind > TPL_RANGE))
        return tpl_fail(run, FERRY_ERR_ARG, "'%s' object cannot be sliced", tpl_type_name(owner));
    if (step != NULL && step->kind != TPL_NONE && !tpl_as_int(step, &by))
        return tpl_fail(run, FERRY_ERR_ARG, "slice indices must be integers or None");
    if (by == 0)
        return tpl_fail(run, FERRY_ERR_ARG, "slice step cannot be zero");
    size_t n = is_string ? tpl_count_chars(owner->u.s.data, owner->u.s.size) : owner->u.seq->n;
    int64_t length = (int64_t)n;
    if (!tpl_work(run, is_string ? 1 + owner->u.s.size / 16 : 1 + n / 16))
        return false;
    by = by > length ? length + 1 : by < -length ? -length - 1 : by;
    if (!slice_bounds(run, start, by < 0 ? length - 1 : 0, length, by, &from) ||
        !slice_bounds(run, stop, by < 0 ? -1 : length, length, by, &to))
        return false;
    if (is_string)
        return slice_string(run, owner, from, to, by, ret);
    size_t count = 0;
    for (int64_t i = from; by > 0 ? i < to : i > to; i += by)
        count++;
    struct tpl_seq *seq = tpl_seq_new(run, owner->u.seq->kind, count);
    if (seq == NULL)
        return false;
    if (owner->u.seq->kind == TPL_RANGE) { /* numbers that are only printed: they may wrap */
        uint64_t first = (uint64_t)owner->u.seq->start;
        uint64_t apart = (uint64_t)owner->u.seq->step;
        seq->start = (int64_t)(first + (uint64_t)from * apart);
        seq->stop = (int64_t)(first + (uint64_t)to * apart);
        seq->step = (int64_t)(apart * (uint64_t)by);
    }
    count = 0;
    for (int64_t i = from; by > 0 ? i < to : i > to; i += by)
        seq->items[count++] = owner->u.seq->items[i];
    *ret = tpl_seq_value(seq);
    return true;
}

bool tpl_length(struct tpl_run *run, const struct tpl_value *value, size_t *ret)
{
    switch (value->kind) {
    case TPL_UNDEFINED:
        *ret = 0;
        return true;
    case TPL_STRING:
        *ret = tpl_count_chars(value->u.s.data, value->u.s.size);
        return tpl_work_bytes(run, value->u.s.size);
    case TPL_DICT:
        *ret = value->u.dict->n;
        return true;
    case TPL_SEQ:
        *ret = value->u.seq->n;
        if (value->u.seq->kind != TPL_GENERATOR)
            return true;
        break;
    default:
        break;
    }
    return tpl_fail(run, FERRY_ERR_ARG, "object of type '%s' has no len()", tpl_type_name(value));
}

static bool iterate_string(struct tpl_run *run, const struct tpl_value *value,
                           struct tpl_value **ret_items, size_t *ret_n)
{
    const struct tpl_string *s = &value->u.s;

    *ret_n = tpl_count_chars(s->data, s->size);
    *ret_items = tpl_array(run, *ret_n, sizeof **ret_items);
    if (*ret_items == NULL)
        return false;
    size_t n = 0;
    for (size_t at = 0; at < s->size;) {
        int32_t code;
        size_t size = utf8_decode(s->data + at, s->size - at, &code);
        (*ret_items)[n++] = tpl_sub(value, at, at + size);
        at += size;
    }
    return true;
}

bool tpl_iterate(struct tpl_run *run, const struct tpl_value *value, struct tpl_value **ret_items,
                 size_t *ret_n)
{
    struct tpl_seq *seq = value->u.seq;

    switch (value->kind) {
    case TPL_UNDEFINED:
        *ret_items = NULL;
        *ret_n = 0;
        return true;
    case TPL_STRING:
        return iterate_string(run, value, ret_items, ret_n);
    case TPL_DICT:
        *ret_items = value->u.dict->keys;
        *ret_n = value->u.dict->n;
        return true;
    case TPL_SEQ:
        *ret_items = seq->items + seq->taken;
        *ret_n = seq->n - seq->taken;
        if (seq->kind == TPL_GENERATOR)
            seq->taken = seq->n;
        return true;
    default:
        return tpl_fail(run, FERRY_ERR_ARG, "'%s' object is not iterable", tpl_type_name(value));
    }
}

/* Stable merge sort of indices order[0 .. n) by keys; scratch [n]. */
static bool merge_sort(struct tpl_run *run, const struct tpl_value *keys, size_t *order,
                       size_t *scratch, size_t n, bool reverse)
{
    for (size_t width = 1; width < n; width *= 2) {
        for (size_t low = 0; low < n; low += 2 * width) {
            size_t middle = min_size(low + width, n);
            size_t high = min_size(low + 2 * width, n);
            size_t i = low;
            size_t j = middle;
            for (size_t k = low; k < high; k++) {
                int less = 0;
                if (i < middle && j < high) {
                    /* Python asks only "<"; reversed sorting keeps equal items in order, too. */
                    const struct tpl_value *x = &keys[order[reverse ? i : j]];
                    const struct tpl_value *y = &keys[order[reverse ? j : i]];
                    if (!tpl_compare(run, x, y, &less))
                        return false;
                }
                bool take_right = i >= middle || (j < high && less < 0);
                scratch[k] = take_right ? order[j++] : order[i++];
            }
        }
        memcpy(order, scratch, n * sizeof *order);
    }
    return true;
}

bool tpl_sort(struct tpl_run *run, const struct tpl_value *keys, size_t n, bool reverse,
              size_t *order)
{
    size_t *scratch = tpl_array(run, n, sizeof *scratch);

    for (size_t i = 0; i < n; i++)
        order[i] = i;
    return scratch != NULL && merge_sort(run, keys, order, scratch, n, reverse);
}
