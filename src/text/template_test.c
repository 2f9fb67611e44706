/* Tests of chat templates. See template_test.h. */
#include "text/template_test.h"

#include "text/template_ast.h"
#include "text/template_lex.h"
#include "text/template_ops.h"
#include "text/template_print.h"
#include "text/template_text.h"

#include <string.h>

enum test {
    TEST_DEFINED,
    TEST_UNDEFINED,
    TEST_NONE,
    TEST_BOOLEAN,
    TEST_TRUE,
    TEST_FALSE,
    TEST_INTEGER,
    TEST_FLOAT,
    TEST_NUMBER,
    TEST_STRING,
    TEST_MAPPING,
    TEST_SEQUENCE,
    TEST_ITERABLE,
    TEST_CALLABLE,
    TEST_ODD,
    TEST_EVEN,
    TEST_UPPER,
    TEST_LOWER,
    TEST_DIVISIBLEBY, /* from here on: one argument */
    TEST_SAMEAS,
    TEST_IN,
    TEST_COMPARE, /* by op */
};

static const struct {
    const char *name;
    enum test test;
    int op;
} TESTS[] = {
    {"defined", TEST_DEFINED, 0},
    {"undefined", TEST_UNDEFINED, 0},
    {"none", TEST_NONE, 0},
    {"boolean", TEST_BOOLEAN, 0},
    {"true", TEST_TRUE, 0},
    {"false", TEST_FALSE, 0},
    {"integer", TEST_INTEGER, 0},
    {"float", TEST_FLOAT, 0},
    {"number", TEST_NUMBER, 0},
    {"string", TEST_STRING, 0},
    {"mapping", TEST_MAPPING, 0},
    {"sequence", TEST_SEQUENCE, 0},
    {"iterable", TEST_ITERABLE, 0},
    {"callable", TEST_CALLABLE, 0},
    {"odd", TEST_ODD, 0},
    {"even", TEST_EVEN, 0},
    {"upper", TEST_UPPER, 0},
    {"lower", TEST_LOWER, 0},
    {"divisibleby", TEST_DIVISIBLEBY, 0},
    {"sameas", TEST_SAMEAS, 0},
    {"in", TEST_IN, 0},
    {"eq", TEST_COMPARE, TOKEN_EQ},
    {"==", TEST_COMPARE, TOKEN_EQ},
    {"equalto", TEST_COMPARE, TOKEN_EQ},
    {"ne", TEST_COMPARE, TOKEN_NE},
    {"!=", TEST_COMPARE, TOKEN_NE},
    {"lt", TEST_COMPARE, TOKEN_LT},
    {"<", TEST_COMPARE, TOKEN_LT},
    {"lessthan", TEST_COMPARE, TOKEN_LT},
    {"le", TEST_COMPARE, TOKEN_LE},
    {"<=", TEST_COMPARE, TOKEN_LE},
    {"gt", TEST_COMPARE, TOKEN_GT},
    {">", TEST_COMPARE, TOKEN_GT},
    {"greaterthan", TEST_COMPARE, TOKEN_GT},
    {"ge", TEST_COMPARE, TOKEN_GE},
    {">=", TEST_COMPARE, TOKEN_GE},
};

int tpl_test_find(const char *name, size_t size)
{
    for (size_t i = 0; i < sizeof TESTS / sizeof TESTS[0]; i++) {
        if (strlen(TESTS[i].name) == size && memcmp(TESTS[i].name, name, size) == 0)
            return (int)i;
    }
    return -1;
}

/* value % by == want */
static bool has_rest(struct tpl_run *run, const struct tpl_value *value, const struct tpl_value *by,
                     int64_t want, bool *ret)
{
    struct tpl_value rest;
    struct tpl_value wanted = tpl_int(want, false);

    return tpl_binary(run, TOKEN_MOD, value, by, &rest) && tpl_equal(run, &rest, &wanted, ret);
}

static bool is_case(struct tpl_run *run, const struct tpl_value *value, enum tpl_question question,
                    bool *ret)
{
    struct tpl_builder b = {0};

    if (!tpl_print(run, &b, value))
        return false;
    struct tpl_value text = tpl_built(&b);
    *ret = tpl_ask(&text.u.s, question);
    return true;
}

static bool same(struct tpl_run *run, const struct tpl_value *a, const struct tpl_value *b,
                 bool *ret)
{
    *ret = a->kind == b->kind;
    if (!*ret || a->kind == TPL_NONE)
        return true;
    if (a->kind == TPL_SEQ)
        *ret = a->u.seq == b->u.seq;
    else if (a->kind == TPL_DICT)
        *ret = a->u.dict == b->u.dict;
    else
        return tpl_equal(run, a, b, ret);
    return true;
}

static bool is_kind(enum test test, const struct tpl_value *value)
{
    bool is_undefined = value->kind == TPL_UNDEFINED;

    switch (test) {
    case TEST_DEFINED:
        return !is_undefined;
    case TEST_UNDEFINED:
        return is_undefined;
    case TEST_NONE:
        return value->kind == TPL_NONE;
    case TEST_BOOLEAN:
        return value->kind == TPL_BOOL;
    case TEST_TRUE:
        return value->kind == TPL_BOOL && value->u.b;
    case TEST_FALSE:
        return value->kind == TPL_BOOL && !value->u.b;
    case TEST_INTEGER:
        return value->kind == TPL_INT;
    case TEST_FLOAT:
        return value->kind == TPL_FLOAT;
    case TEST_NUMBER:
        return tpl_is_number(value);
    case TEST_STRING:
        return value->kind == TPL_STRING;
    case TEST_MAPPING:
        return value->kind == TPL_DICT;
    case TEST_SEQUENCE: /* has a length and an index: an undefined value has both, too */
        return value->kind == TPL_STRING || value->kind == TPL_DICT || is_undefined ||
               (value->kind == TPL_SEQ && value->u.seq->kind <= TPL_RANGE);
    case TEST_ITERABLE:
        return value->kind == TPL_STRING || value->kind == TPL_DICT || is_undefined ||
               value->kind == TPL_SEQ || value->kind == TPL_LOOP;
    default: /* callable; the class of undefined values has a call, which fails */
        return value->kind >= TPL_MACRO || is_undefined;
    }
}

bool tpl_test_call(struct tpl_run *run, int test, const struct tpl_value *value,
                   const struct tpl_args *args, bool *ret)
{
    const char *name = TESTS[test].name;
    enum test kind = TESTS[test].test;
    struct tpl_value two = tpl_int(2, false);

    *ret = false;
    if (args->n_keywords > 0 || args->n != (kind >= TEST_DIVISIBLEBY ? 1 : 0))
        return tpl_fail(run, FERRY_ERR_ARG, "the test '%s' takes %d arguments (%zu given)", name,
                        kind >= TEST_DIVISIBLEBY ? 1 : 0, args->n + args->n_keywords);
    switch (kind) {
    case TEST_ODD:
    case TEST_EVEN:
        return has_rest(run, value, &two, kind == TEST_ODD, ret);
    case TEST_DIVISIBLEBY:
        return has_rest(run, value, args->values, 0, ret);
    case TEST_UPPER:
        return is_case(run, value, TPL_IS_UPPER, ret);
    case TEST_LOWER:
        return is_case(run, value, TPL_IS_LOWER, ret);
    case TEST_SAMEAS:
        return same(run, value, args->values, ret);
    case TEST_IN:
        return tpl_contains(run, value, args->values, ret);
    case TEST_COMPARE:
        return tpl_compare_by(run, TESTS[test].op, value, args->values, ret);
    default:
        *ret = is_kind(kind, value);
        return true;
    }
}
