/* Running chat templates. See template_run.h. */
#include "text/template_run.h"

#include "text/template_filter.h"
#include "text/template_function.h"
#include "text/template_lex.h"
#include "text/template_method.h"
#include "text/template_ops.h"
#include "text/template_print.h"
#include "text/template_test.h"

#include <string.h>

struct variable {
    struct variable *next;
    int name;
    struct tpl_value value;
};

/* Variables of a block that has its own; look-ups go outwards. */
struct tpl_scope {
    struct tpl_scope *parent;
    struct variable *variables;
};

struct tpl_macro {
    const struct tpl_node *node; /* MACRO or CALL_BLOCK */
    struct tpl_scope *scope;     /* where it was defined */
};

enum flow { FLOW_NEXT, FLOW_BREAK, FLOW_CONTINUE, FLOW_FAIL };

static bool eval(struct tpl_run *run, struct tpl_scope *scope, const struct tpl_node *node,
                 struct tpl_value *ret);
static enum flow exec_all(struct tpl_run *run, struct tpl_scope *scope,
                          const struct tpl_node *first);

const struct tpl_value *tpl_macro_name(struct tpl_run *run, const struct tpl_macro *macro)
{
    (void)run;
    return &macro->node->value;
}

static struct tpl_scope *scope_new(struct tpl_run *run, struct tpl_scope *parent)
{
    struct tpl_scope *scope = tpl_get(run, sizeof *scope);

    if (scope != NULL)
        *scope = (struct tpl_scope){.parent = parent};
    return scope;
}

static bool scope_set(struct tpl_run *run, struct tpl_scope *scope, int name,
                      const struct tpl_value *value)
{
    for (struct variable *v = scope->variables; v != NULL; v = v->next) {
        if (v->name == name) {
            v->value = *value;
            return true;
        }
    }
    struct variable *v = tpl_get(run, sizeof *v);
    if (v == NULL)
        return false;
    *v = (struct variable){.next = scope->variables, .name = name, .value = *value};
    scope->variables = v;
    return true;
}

static bool eval_name(struct tpl_run *run, struct tpl_scope *scope, const struct tpl_node *node,
                      struct tpl_value *ret)
{
    uint64_t steps = 0;

    for (; scope != NULL; scope = scope->parent, steps++) {
        for (struct variable *v = scope->variables; v != NULL; v = v->next, steps++) {
            if (v->name == node->op && v->value.kind != TPL_MISSING) {
                *ret = v->value;
                return tpl_work(run, steps / 8);
            }
        }
    }
    if (run->globals[node->op].kind != TPL_MISSING)
        *ret = run->globals[node->op];
    else if (node->op >= NAME_RANGE && node->op < NAMES_KNOWN)
        *ret = (struct tpl_value){.kind = TPL_FUNCTION, .u.function = node->op};
    else if (!tpl_undefined(run, NULL, &node->value, ret))
        return false;
    return tpl_work(run, steps / 8);
}

static size_t count_nodes(const struct tpl_node *first)
{
    size_t n = 0;

    for (; first != NULL; first = first->next)
        n++;
    return n;
}

static bool eval_list(struct tpl_run *run, struct tpl_scope *scope, const struct tpl_node *node,
                      struct tpl_value *ret)
{
    struct tpl_seq *seq =
        tpl_seq_new(run, node->kind == NODE_LIST ? TPL_LIST : TPL_TUPLE, count_nodes(node->list));
    size_t i = 0;

    if (seq == NULL)
        return false;
    for (const struct tpl_node *item = node->list; item != NULL; item = item->next) {
        if (!eval(run, scope, item, &seq->items[i++]))
            return false;
    }
    *ret = tpl_seq_value(seq);
    return true;
}

static bool eval_dict(struct tpl_run *run, struct tpl_scope *scope, const struct tpl_node *node,
                      struct tpl_value *ret)
{
    struct tpl_dict *dict = tpl_dict_new(run, count_nodes(node->list) / 2);

    if (dict == NULL)
        return false;
    for (const struct tpl_node *key = node->list; key != NULL; key = key->next->next) {
        struct tpl_value k;
        struct tpl_value v;
        if (!eval(run, scope, key, &k) || !eval(run, scope, key->next, &v))
            return false;
        if (k.kind == TPL_DICT || (k.kind == TPL_SEQ && k.u.seq->kind == TPL_LIST))
            return tpl_fail(run, FERRY_ERR_ARG, "unhashable type: '%s'", tpl_type_name(&k));
        if (!tpl_dict_set(run, dict, &k, &v))
            return false;
    }
    *ret = tpl_dict_value(dict);
    return true;
}

/* *a: all items behind the arguments so far. */
static bool add_star(struct tpl_run *run, const struct tpl_value *star, struct tpl_args *args)
{
    struct tpl_value *items;
    size_t n;

    if (!tpl_iterate(run, star, &items, &n))
        return false;
    struct tpl_value *values = tpl_array(run, args->n + n, sizeof *values);
    if (values == NULL)
        return false;
    if (args->n > 0)
        memcpy(values, args->values, args->n * sizeof *values);
    if (n > 0)
        memcpy(values + args->n, items, n * sizeof *values);
    args->values = values;
    args->n += n;
    return true;
}

/* **a: all members behind the keywords so far. */
static bool add_star_star(struct tpl_run *run, const struct tpl_value *star, struct tpl_args *args)
{
    if (star->kind != TPL_DICT)
        return tpl_fail(run, FERRY_ERR_ARG, "argument after ** must be a mapping, not %s",
                        tpl_type_name(star));
    const struct tpl_dict *dict = star->u.dict;
    struct tpl_keyword *keywords = tpl_array(run, args->n_keywords + dict->n, sizeof *keywords);
    if (keywords == NULL)
        return false;
    if (args->n_keywords > 0)
        memcpy(keywords, args->keywords, args->n_keywords * sizeof *keywords);
    for (size_t i = 0; i < dict->n; i++) {
        if (dict->keys[i].kind != TPL_STRING)
            return tpl_fail(run, FERRY_ERR_ARG, "keywords must be strings");
        keywords[args->n_keywords++] = (struct tpl_keyword){dict->keys[i], dict->values[i]};
    }
    args->keywords = keywords;
    return true;
}

static bool eval_args(struct tpl_run *run, struct tpl_scope *scope, const struct tpl_node *list,
                      struct tpl_args *args)
{
    size_t n = count_nodes(list);
    struct tpl_value value;

    *args = (struct tpl_args){0};
    if (n == 0)
        return true;
    args->values = tpl_array(run, n, sizeof *args->values);
    args->keywords = tpl_array(run, n, sizeof *args->keywords);
    if (args->values == NULL || args->keywords == NULL)
        return false;
    for (; list != NULL; list = list->next) {
        bool is_plain =
            list->kind != NODE_KEYWORD && list->kind != NODE_STAR && list->kind != NODE_STARSTAR;
        if (!eval(run, scope, is_plain ? list : list->a, &value))
            return false;
        if (list->kind == NODE_KEYWORD)
            args->keywords[args->n_keywords++] = (struct tpl_keyword){list->value, value};
        else if (is_plain)
            args->values[args->n++] = value;
        else if (!(list->kind == NODE_STAR ? add_star(run, &value, args)
                                           : add_star_star(run, &value, args)))
            return false;
    }
    return true;
}

/* Runs a body into a string of its own. */
static bool capture(struct tpl_run *run, struct tpl_scope *scope, const struct tpl_node *body,
                    struct tpl_value *ret)
{
    struct tpl_builder b = {0};
    struct tpl_builder *out = run->out;

    run->out = &b;
    enum flow flow = exec_all(run, scope, body);
    run->out = out;
    *ret = tpl_built(&b);
    return flow != FLOW_FAIL;
}

/* Keywords of a macro call that are not parameters; caller is one for every macro. */
static bool check_keywords(struct tpl_run *run, const struct tpl_node *node,
                           const struct tpl_args *args, struct tpl_scope *scope)
{
    for (size_t k = 0; k < args->n_keywords; k++) {
        const struct tpl_value *name = &args->keywords[k].name;
        const struct tpl_node *param = node->list;
        bool equal = false;
        for (; param != NULL && !equal; param = param->next) {
            if (!tpl_equal(run, &param->value, name, &equal))
                return false;
        }
        if (equal)
            continue;
        if (!tpl_is_text(name, "caller"))
            return tpl_fail(run, FERRY_ERR_ARG, "macro '%.*s' takes no keyword argument '%.*s'",
                            (int)(node->value.u.s.size > 60 ? 60 : node->value.u.s.size),
                            node->value.u.s.data, (int)(name->u.s.size > 60 ? 60 : name->u.s.size),
                            name->u.s.data);
        if (!scope_set(run, scope, NAME_CALLER, &args->keywords[k].value))
            return false;
    }
    return true;
}

/* Value of one parameter: by position, by name, its default, undefined. */
static bool bind_param(struct tpl_run *run, struct tpl_scope *scope, const struct tpl_node *param,
                       size_t index, const struct tpl_args *args, struct tpl_value *ret)
{
    bool found = index < args->n;

    if (found)
        *ret = args->values[index];
    for (size_t k = 0; k < args->n_keywords; k++) {
        bool equal;
        if (!tpl_equal(run, &param->value, &args->keywords[k].name, &equal))
            return false;
        if (equal && found)
            return tpl_fail(run, FERRY_ERR_ARG, "a macro got several values for '%.*s'",
                            (int)(param->value.u.s.size > 60 ? 60 : param->value.u.s.size),
                            param->value.u.s.data);
        if (equal)
            *ret = args->keywords[k].value;
        found = found || equal;
    }
    if (found)
        return true;
    if (param->a != NULL)
        return eval(run, scope, param->a, ret);
    return tpl_undefined_because(run, "parameter was not provided", ret);
}

static bool call_macro(struct tpl_run *run, const struct tpl_macro *macro,
                       const struct tpl_args *args, struct tpl_value *ret)
{
    const struct tpl_node *node = macro->node;
    struct tpl_scope *scope = scope_new(run, macro->scope);
    size_t n_params = count_nodes(node->list);
    size_t i = 0;

    if (scope == NULL || !tpl_work(run, 1 + n_params))
        return false;
    if (args->n > n_params)
        return tpl_fail(run, FERRY_ERR_ARG, "macro '%.*s' takes not more than %zu arguments",
                        (int)(node->value.u.s.size > 60 ? 60 : node->value.u.s.size),
                        node->value.u.s.data, n_params);
    if (!check_keywords(run, node, args, scope))
        return false;
    for (const struct tpl_node *param = node->list; param != NULL; param = param->next) {
        struct tpl_value value;
        if (!bind_param(run, scope, param, i++, args, &value) ||
            !scope_set(run, scope, param->op, &value))
            return false;
    }
    return capture(run, scope, node->body, ret);
}

static bool call_value(struct tpl_run *run, const struct tpl_value *callee,
                       const struct tpl_args *args, struct tpl_value *ret)
{
    switch (callee->kind) {
    case TPL_FUNCTION:
        return tpl_call_function(run, callee->u.function, args, ret);
    case TPL_METHOD:
        return tpl_call_method(run, callee->u.method, args, ret);
    case TPL_MACRO:
        return call_macro(run, callee->u.macro, args, ret);
    case TPL_UNDEFINED:
        return tpl_fail_undefined(run, callee);
    default:
        return tpl_fail(run, FERRY_ERR_ARG, "'%s' object is not callable", tpl_type_name(callee));
    }
}

static bool eval_call(struct tpl_run *run, struct tpl_scope *scope, const struct tpl_node *node,
                      struct tpl_value *ret)
{
    struct tpl_value callee;
    struct tpl_args args;

    if (!eval(run, scope, node->a, &callee) || !eval_args(run, scope, node->list, &args))
        return false;
    run->line = node->line;
    return call_value(run, &callee, &args, ret);
}

static bool eval_getitem(struct tpl_run *run, struct tpl_scope *scope, const struct tpl_node *node,
                         struct tpl_value *ret)
{
    struct tpl_value owner;
    struct tpl_value parts[3];
    const struct tpl_node *key = node->b;

    if (!eval(run, scope, node->a, &owner))
        return false;
    if (key->kind != NODE_SLICE) {
        if (!eval(run, scope, key, &parts[0]))
            return false;
        run->line = node->line;
        return tpl_getitem(run, &owner, &parts[0], ret);
    }
    if ((key->a != NULL && !eval(run, scope, key->a, &parts[0])) ||
        (key->b != NULL && !eval(run, scope, key->b, &parts[1])) ||
        (key->c != NULL && !eval(run, scope, key->c, &parts[2])))
        return false;
    run->line = node->line;
    return tpl_slice(run, &owner, key->a == NULL ? NULL : &parts[0],
                     key->b == NULL ? NULL : &parts[1], key->c == NULL ? NULL : &parts[2], ret);
}

/* Filters behind a text: the innermost one has no operand node. */
static bool apply_filters(struct tpl_run *run, struct tpl_scope *scope, const struct tpl_node *node,
                          const struct tpl_value *text, struct tpl_value *ret)
{
    struct tpl_value value = *text;
    struct tpl_args args;

    if (node == NULL) {
        *ret = *text;
        return true;
    }
    if (node->kind == NODE_FILTER && node->a != NULL) {
        if (!tpl_enter(run))
            return false;
        bool ok = apply_filters(run, scope, node->a, text, &value);
        tpl_leave(run);
        if (!ok)
            return false;
    }
    if (!eval_args(run, scope, node->list, &args))
        return false;
    run->line = node->line;
    return tpl_filter_call(run, node->op, &value, &args, ret);
}

static bool eval_filter(struct tpl_run *run, struct tpl_scope *scope, const struct tpl_node *node,
                        struct tpl_value *ret)
{
    struct tpl_value value;
    struct tpl_args args;

    if (!eval(run, scope, node->a, &value) || !eval_args(run, scope, node->list, &args))
        return false;
    run->line = node->line;
    return tpl_filter_call(run, node->op, &value, &args, ret);
}

static bool eval_test(struct tpl_run *run, struct tpl_scope *scope, const struct tpl_node *node,
                      struct tpl_value *ret)
{
    struct tpl_value value;
    struct tpl_args args;
    bool yes;

    if (!eval(run, scope, node->a, &value) || !eval_args(run, scope, node->list, &args))
        return false;
    run->line = node->line;
    if (!tpl_test_call(run, node->op, &value, &args, &yes))
        return false;
    *ret = tpl_bool(yes);
    return true;
}

static bool eval_compare(struct tpl_run *run, struct tpl_scope *scope, const struct tpl_node *node,
                         struct tpl_value *ret)
{
    struct tpl_value left;
    struct tpl_value right;
    bool yes = true;

    if (!eval(run, scope, node->a, &left))
        return false;
    for (const struct tpl_node *operand = node->list; operand != NULL && yes;
         operand = operand->next) {
        if (!eval(run, scope, operand->a, &right))
            return false;
        run->line = operand->line;
        if (!tpl_compare_by(run, operand->op, &left, &right, &yes))
            return false;
        left = right;
    }
    *ret = tpl_bool(yes);
    return true;
}

static bool eval_operator(struct tpl_run *run, struct tpl_scope *scope, const struct tpl_node *node,
                          struct tpl_value *ret)
{
    struct tpl_value a;
    struct tpl_value b;
    struct tpl_value zero = tpl_int(0, true);

    if (!eval(run, scope, node->a, &a))
        return false;
    if (node->kind == NODE_BINARY && !eval(run, scope, node->b, &b))
        return false;
    run->line = node->line;
    switch (node->kind) {
    case NODE_BINARY:
        return tpl_binary(run, node->op, &a, &b, ret);
    case NODE_NEGATIVE:
        return tpl_negate(run, &a, ret);
    case NODE_POSITIVE:
        return a.kind == TPL_FLOAT ? (*ret = a, true) : tpl_binary(run, TOKEN_ADD, &zero, &a, ret);
    default:
        *ret = tpl_bool(!tpl_truth(&a));
        return true;
    }
}

/* and, or, if: operands that are not needed are not worked out. */
static bool eval_branch(struct tpl_run *run, struct tpl_scope *scope, const struct tpl_node *node,
                        struct tpl_value *ret)
{
    struct tpl_value test;

    if (!eval(run, scope, node->a, &test))
        return false;
    bool yes = tpl_truth(&test);
    if (node->kind != NODE_COND) {
        if (yes == (node->kind == NODE_AND))
            return eval(run, scope, node->b, ret);
        *ret = test;
        return true;
    }
    if (yes)
        return eval(run, scope, node->b, ret);
    if (node->c != NULL)
        return eval(run, scope, node->c, ret);
    return tpl_undefined_because(
        run, "the inline if-expression evaluated to false and no else section was defined.", ret);
}

static bool eval_kind(struct tpl_run *run, struct tpl_scope *scope, const struct tpl_node *node,
                      struct tpl_value *ret)
{
    struct tpl_value owner;

    switch (node->kind) {
    case NODE_LIST:
    case NODE_TUPLE:
        return eval_list(run, scope, node, ret);
    case NODE_DICT:
        return eval_dict(run, scope, node, ret);
    case NODE_GETATTR:
        if (!eval(run, scope, node->a, &owner))
            return false;
        run->line = node->line;
        return tpl_getattr(run, &owner, &node->value, ret);
    case NODE_GETITEM:
        return eval_getitem(run, scope, node, ret);
    case NODE_CALL:
        return eval_call(run, scope, node, ret);
    case NODE_FILTER:
        return eval_filter(run, scope, node, ret);
    case NODE_TEST:
        return eval_test(run, scope, node, ret);
    case NODE_COMPARE:
        return eval_compare(run, scope, node, ret);
    case NODE_AND:
    case NODE_OR:
    case NODE_COND:
        return eval_branch(run, scope, node, ret);
    default:
        return eval_operator(run, scope, node, ret);
    }
}

static bool eval(struct tpl_run *run, struct tpl_scope *scope, const struct tpl_node *node,
                 struct tpl_value *ret)
{
    if (!tpl_work(run, 1))
        return false;
    run->line = node->line;
    if (node->kind == NODE_CONST) {
        *ret = node->value;
        return true;
    }
    if (node->kind == NODE_NAME)
        return eval_name(run, scope, node, ret);
    if (!tpl_enter(run))
        return false;
    bool ok = eval_kind(run, scope, node, ret);
    tpl_leave(run);
    return ok;
}

static bool assign(struct tpl_run *run, struct tpl_scope *scope, const struct tpl_node *target,
                   const struct tpl_value *value);

static bool unpack(struct tpl_run *run, struct tpl_scope *scope, const struct tpl_node *target,
                   const struct tpl_value *value)
{
    struct tpl_value *items;
    size_t n;
    size_t want = count_nodes(target->list);
    size_t i = 0;

    if (value->kind == TPL_UNDEFINED)
        n = 0;
    else if (!tpl_iterate(run, value, &items, &n))
        return false;
    if (n != want)
        return tpl_fail(run, FERRY_ERR_ARG,
                        n > want ? "too many values to unpack (expected %zu)"
                                 : "not enough values to unpack (expected %zu)",
                        want);
    for (const struct tpl_node *t = target->list; t != NULL; t = t->next) {
        if (!assign(run, scope, t, &items[i++]))
            return false;
    }
    return true;
}

static bool assign(struct tpl_run *run, struct tpl_scope *scope, const struct tpl_node *target,
                   const struct tpl_value *value)
{
    struct tpl_value owner;

    if (target->kind == NODE_NAME)
        return scope_set(run, scope, target->op, value);
    if (!tpl_enter(run))
        return false;
    bool ok;
    if (target->kind == NODE_TUPLE) {
        ok = unpack(run, scope, target, value);
    } else {
        ok = eval_name(run, scope, target->a, &owner);
        if (ok && owner.kind != TPL_NAMESPACE)
            ok = tpl_fail(run, FERRY_ERR_ARG, "cannot assign attribute on non-namespace object");
        ok = ok && tpl_dict_set(run, owner.u.dict, &target->value, value);
    }
    tpl_leave(run);
    return ok;
}

/* The items that pass the condition of a loop. */
static bool filter_items(struct tpl_run *run, struct tpl_scope *scope, const struct tpl_node *node,
                         struct tpl_value **items, size_t *n)
{
    struct tpl_value *kept = tpl_array(run, *n, sizeof *kept);
    size_t n_kept = 0;

    if (kept == NULL)
        return false;
    for (size_t i = 0; i < *n; i++) {
        struct tpl_scope *inner = scope_new(run, scope);
        struct tpl_value test;
        if (inner == NULL || !assign(run, inner, node->a, &(*items)[i]) ||
            !eval(run, inner, node->c, &test))
            return false;
        if (tpl_truth(&test))
            kept[n_kept++] = (*items)[i];
    }
    *items = kept;
    *n = n_kept;
    return true;
}

static enum flow exec_for(struct tpl_run *run, struct tpl_scope *scope, const struct tpl_node *node)
{
    struct tpl_value over;
    struct tpl_value *items;
    size_t n;

    if (!eval(run, scope, node->b, &over))
        return FLOW_FAIL;
    run->line = node->line;
    if (!tpl_iterate(run, &over, &items, &n) ||
        (node->c != NULL && !filter_items(run, scope, node, &items, &n)))
        return FLOW_FAIL;
    if (n == 0)
        return exec_all(run, scope_new(run, scope), node->orelse);
    struct tpl_loop *loop = tpl_get(run, sizeof *loop);
    if (loop == NULL)
        return FLOW_FAIL;
    *loop = (struct tpl_loop){.items = items, .n = n};
    struct tpl_value loop_value = {.kind = TPL_LOOP, .u.loop = loop};
    for (size_t i = 0; i < n; i++) {
        struct tpl_scope *inner = scope_new(run, scope);
        loop->index = i;
        run->line = node->line;
        if (inner == NULL || !tpl_work(run, 1) || !scope_set(run, inner, NAME_LOOP, &loop_value) ||
            !assign(run, inner, node->a, &items[i]))
            return FLOW_FAIL;
        enum flow flow = exec_all(run, inner, node->body);
        if (flow == FLOW_FAIL)
            return flow;
        if (flow == FLOW_BREAK)
            break;
    }
    return FLOW_NEXT;
}

static enum flow exec_if(struct tpl_run *run, struct tpl_scope *scope, const struct tpl_node *node)
{
    struct tpl_value test;

    for (;;) {
        if (!eval(run, scope, node->a, &test))
            return FLOW_FAIL;
        if (tpl_truth(&test))
            return exec_all(run, scope, node->body);
        if (node->orelse == NULL || node->orelse->kind != NODE_IF || node->orelse->op == 0)
            return exec_all(run, scope, node->orelse);
        node = node->orelse;
    }
}

static bool define_macro(struct tpl_run *run, struct tpl_scope *scope, const struct tpl_node *node,
                         struct tpl_value *ret)
{
    struct tpl_macro *macro = tpl_get(run, sizeof *macro);

    if (macro == NULL)
        return false;
    *macro = (struct tpl_macro){.node = node, .scope = scope};
    *ret = (struct tpl_value){.kind = TPL_MACRO, .u.macro = macro};
    return true;
}

static bool exec_call_block(struct tpl_run *run, struct tpl_scope *scope,
                            const struct tpl_node *node)
{
    struct tpl_value callee;
    struct tpl_value caller;
    struct tpl_value result;
    struct tpl_args args;

    if (!define_macro(run, scope, node, &caller) || !eval(run, scope, node->a->a, &callee) ||
        !eval_args(run, scope, node->a->list, &args))
        return false;
    struct tpl_keyword *keywords = tpl_array(run, args.n_keywords + 1, sizeof *keywords);
    if (keywords == NULL)
        return false;
    if (args.n_keywords > 0)
        memcpy(keywords, args.keywords, args.n_keywords * sizeof *keywords);
    keywords[args.n_keywords++] = (struct tpl_keyword){tpl_text("caller", true), caller};
    args.keywords = keywords;
    run->line = node->line;
    return call_value(run, &callee, &args, &result) && tpl_print(run, run->out, &result);
}

static bool exec_with(struct tpl_run *run, struct tpl_scope *scope, const struct tpl_node *node,
                      struct tpl_scope *inner)
{
    for (const struct tpl_node *target = node->list; target != NULL; target = target->next->next) {
        struct tpl_value value;
        if (!eval(run, scope, target->next, &value) || !assign(run, inner, target, &value))
            return false;
    }
    return true;
}

/* Blocks whose text becomes a value or output. */
static bool exec_captured(struct tpl_run *run, struct tpl_scope *scope, const struct tpl_node *node)
{
    struct tpl_scope *inner = scope_new(run, scope);
    struct tpl_value text;
    struct tpl_value value;

    if (inner == NULL || !capture(run, inner, node->body, &text) ||
        !apply_filters(run, scope, node->b, &text, &value))
        return false;
    return node->kind == NODE_SET_BLOCK ? assign(run, scope, node->a, &value)
                                        : tpl_print(run, run->out, &value);
}

static enum flow exec(struct tpl_run *run, struct tpl_scope *scope, const struct tpl_node *node)
{
    struct tpl_value value;
    struct tpl_scope *inner;
    bool ok;

    switch (node->kind) {
    case NODE_DATA:
        ok = tpl_put_string(run, run->out, &node->value);
        break;
    case NODE_OUTPUT:
        ok = eval(run, scope, node->a, &value);
        run->line = node->line;
        ok = ok && tpl_print(run, run->out, &value);
        break;
    case NODE_IF:
        return exec_if(run, scope, node);
    case NODE_FOR:
        return exec_for(run, scope, node);
    case NODE_SET:
        ok = eval(run, scope, node->b, &value) && assign(run, scope, node->a, &value);
        break;
    case NODE_SET_BLOCK:
    case NODE_FILTER_BLOCK:
        ok = exec_captured(run, scope, node);
        break;
    case NODE_MACRO:
        ok = define_macro(run, scope, node, &value) && scope_set(run, scope, node->op, &value);
        break;
    case NODE_CALL_BLOCK:
        ok = exec_call_block(run, scope, node);
        break;
    case NODE_WITH:
    case NODE_SCOPE:
        inner = scope_new(run, scope);
        if (inner == NULL || !exec_with(run, scope, node, inner))
            return FLOW_FAIL;
        return exec_all(run, inner, node->body);
    case NODE_BREAK:
        return FLOW_BREAK;
    case NODE_CONTINUE:
        return FLOW_CONTINUE;
    default:
        ok = false;
        break;
    }
    return ok ? FLOW_NEXT : FLOW_FAIL;
}

static enum flow exec_all(struct tpl_run *run, struct tpl_scope *scope,
                          const struct tpl_node *first)
{
    enum flow flow = FLOW_NEXT;

    if (scope == NULL || !tpl_enter(run))
        return FLOW_FAIL;
    for (const struct tpl_node *node = first; node != NULL && flow == FLOW_NEXT;
         node = node->next) {
        run->line = node->line;
        flow = tpl_work(run, 1) ? exec(run, scope, node) : FLOW_FAIL;
        if (flow != FLOW_FAIL && run->out->size > run->output_limit)
            flow = tpl_fail(run, FERRY_ERR_LIMIT, "the text is longer than %zu bytes (limit)",
                            run->output_limit)
                       ? FLOW_NEXT
                       : FLOW_FAIL;
    }
    tpl_leave(run);
    return flow;
}

bool tpl_run_template(struct tpl_run *run)
{
    struct tpl_scope *scope = scope_new(run, NULL);
    return scope != NULL && exec_all(run, scope, run->t->body) != FLOW_FAIL;
}
