/* Tags of chat templates. See template_parse.h. */
#include "text/template_parse.h"

#include "base/error.h"
#include "base/limits.h"
#include "base/size.h"
#include "text/template_expr.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

void *tpl_parse_fail(struct tpl_parser *p, enum ferry_status status, const char *format, ...)
{
    char text[300];
    va_list args;

    if (p->status != FERRY_OK)
        return NULL;
    p->status = status;
    va_start(args, format);
    (void)vsnprintf(text, sizeof text, format, args);
    va_end(args);
    (void)FERRY_FAIL(p->err, status, "chat template line %d: %s", p->at->line, text);
    return NULL;
}

void *tpl_parse_unexpected(struct tpl_parser *p, const char *wanted)
{
    if (p->at->kind == TOKEN_NAME)
        return tpl_parse_fail(p, FERRY_ERR_FORMAT, "expected %s, found '%.*s'", wanted,
                              (int)min_size(p->at->size, 60), p->at->text);
    return tpl_parse_fail(p, FERRY_ERR_FORMAT, "expected %s, found %s", wanted,
                          tpl_token_name(p->at->kind));
}

struct tpl_node *tpl_node_new(struct tpl_parser *p, enum tpl_node_kind kind, int line)
{
    if (p->status != FERRY_OK)
        return NULL;
    if (++p->n_nodes > LIMIT_TEMPLATE_NODES)
        return tpl_parse_fail(p, FERRY_ERR_LIMIT, "more than %d nodes (limit)",
                              (int)LIMIT_TEMPLATE_NODES);
    struct tpl_node *node = tpl_pool_get(&p->t->pool, sizeof *node);
    if (node == NULL)
        return tpl_parse_fail(p, FERRY_ERR_NOMEM, "out of memory");
    *node = (struct tpl_node){.kind = kind, .line = line};
    return node;
}

bool tpl_at_name(const struct tpl_parser *p, const char *name)
{
    return p->at->kind == TOKEN_NAME && p->at->size == strlen(name) &&
           memcmp(p->at->text, name, p->at->size) == 0;
}

bool tpl_skip(struct tpl_parser *p, enum tpl_token_kind kind)
{
    if (p->at->kind != kind)
        return false;
    p->at++;
    return true;
}

bool tpl_expect(struct tpl_parser *p, enum tpl_token_kind kind)
{
    return tpl_skip(p, kind) || tpl_parse_unexpected(p, tpl_token_name(kind)) != NULL;
}

bool tpl_parse_enter(struct tpl_parser *p)
{
    if (p->depth >= LIMIT_TEMPLATE_DEPTH)
        return tpl_parse_fail(p, FERRY_ERR_LIMIT, "nested more than %d deep (limit)",
                              (int)LIMIT_TEMPLATE_DEPTH) != NULL;
    p->depth++;
    return true;
}

struct tpl_value tpl_token_text(const struct tpl_token *token)
{
    return tpl_bytes(token->text, token->size, true);
}

int tpl_name_number(struct tpl_parser *p, const char *name, size_t size)
{
    struct template *t = p->t;

    for (size_t i = 0; i < t->n_names; i++) {
        if (t->names[i].u.s.size == size && memcmp(t->names[i].u.s.data, name, size) == 0)
            return (int)i;
    }
    if (t->n_names == LIMIT_TEMPLATE_NAMES) {
        (void)tpl_parse_fail(p, FERRY_ERR_LIMIT, "more than %d names of variables (limit)",
                             (int)LIMIT_TEMPLATE_NAMES);
        return -1;
    }
    if (t->n_names == t->names_capacity) {
        size_t capacity = t->names_capacity * 2 + 32;
        struct tpl_value *names = tpl_pool_get(&t->pool, capacity * sizeof *names);
        if (names == NULL) {
            (void)tpl_parse_fail(p, FERRY_ERR_NOMEM, "out of memory");
            return -1;
        }
        if (t->n_names > 0)
            memcpy(names, t->names, t->n_names * sizeof *names);
        t->names = names;
        t->names_capacity = capacity;
    }
    t->names[t->n_names] = tpl_bytes(name, size, true);
    return (int)t->n_names++;
}

static bool parse_body(struct tpl_parser *p, const char *const *ends, struct tpl_node **ret);

/* A body and the tag that ends it, which has nothing but its name. */
static bool parse_block(struct tpl_parser *p, const char *end, struct tpl_node **ret)
{
    const char *const ends[] = {end, NULL};

    if (!tpl_expect(p, TOKEN_BLOCK_END) || !parse_body(p, ends, ret))
        return false;
    p->at++;
    return true;
}

static struct tpl_node *parse_if(struct tpl_parser *p)
{
    static const char *const ENDS[] = {"elif", "else", "endif", NULL};
    struct tpl_node *first = NULL;
    struct tpl_node *last = NULL;
    int chain = 0;

    do {
        struct tpl_node *node = tpl_node_new(p, NODE_IF, p->at->line);
        p->at++;                                 /* if, elif */
        if (node == NULL || !tpl_parse_enter(p)) /* an elif hangs below the if before it */
            return NULL;
        chain++;
        node->a = tpl_parse_tuple(p, false);
        if (node->a == NULL || !tpl_expect(p, TOKEN_BLOCK_END) || !parse_body(p, ENDS, &node->body))
            return NULL;
        node->op = last != NULL; /* an elif */
        if (last != NULL)
            last->orelse = node;
        else
            first = node;
        last = node;
    } while (tpl_at_name(p, "elif"));
    p->depth -= chain;
    bool has_else = tpl_at_name(p, "else");
    p->at++;
    return !has_else || parse_block(p, "endif", &last->orelse) ? first : NULL;
}

static struct tpl_node *parse_for(struct tpl_parser *p)
{
    static const char *const ENDS[] = {"else", "endfor", NULL};
    struct tpl_node *node = tpl_node_new(p, NODE_FOR, p->at->line);

    p->at++;
    if (node == NULL)
        return NULL;
    node->a = tpl_parse_target(p, false);
    if (node->a == NULL)
        return NULL;
    for (const struct tpl_node *name = node->a->kind == NODE_TUPLE ? node->a->list : node->a;
         name != NULL; name = name->next) {
        if (name->kind == NODE_NAME && name->op == NAME_LOOP)
            return tpl_parse_fail(p, FERRY_ERR_FORMAT, "cannot assign to 'loop' in a for loop");
    }
    if (!tpl_at_name(p, "in"))
        return tpl_parse_unexpected(p, "'in'");
    p->at++;
    node->b = tpl_parse_tuple(p, false);
    if (node->b != NULL && tpl_at_name(p, "if")) {
        p->at++;
        node->c = tpl_parse_expression(p, true);
    }
    if (p->status == FERRY_OK && tpl_at_name(p, "recursive"))
        return tpl_parse_fail(p, FERRY_ERR_UNSUPPORTED, "recursive loops are not handled");
    if (p->status != FERRY_OK || !tpl_expect(p, TOKEN_BLOCK_END))
        return NULL;
    p->n_loops++;
    bool ok = parse_body(p, ENDS, &node->body);
    p->n_loops--;
    if (!ok)
        return NULL;
    bool has_else = tpl_at_name(p, "else");
    p->at++;
    return !has_else || parse_block(p, "endfor", &node->orelse) ? node : NULL;
}

/* A body that is a function of its own in jinja2: loops around it are out of reach. */
static bool parse_inner_block(struct tpl_parser *p, const char *end, struct tpl_node **ret)
{
    int n_loops = p->n_loops;

    p->n_loops = 0;
    bool ok = parse_block(p, end, ret);
    p->n_loops = n_loops;
    return ok;
}

static struct tpl_node *parse_set(struct tpl_parser *p)
{
    struct tpl_node *node = tpl_node_new(p, NODE_SET, p->at->line);

    p->at++;
    if (node == NULL)
        return NULL;
    node->a = tpl_parse_target(p, true);
    if (node->a == NULL)
        return NULL;
    if (tpl_skip(p, TOKEN_ASSIGN)) {
        node->b = tpl_parse_tuple(p, true);
        return node->b == NULL ? NULL : node;
    }
    node->kind = NODE_SET_BLOCK;
    node->b = tpl_parse_filters(p, NULL, false);
    return p->status == FERRY_OK && parse_block(p, "endset", &node->body) ? node : NULL;
}

/* "(a, b=1)" as a list of PARAM. */
static bool parse_signature(struct tpl_parser *p, struct tpl_node **ret)
{
    struct tpl_node **end = ret;
    bool has_default = false;

    if (!tpl_expect(p, TOKEN_LPAREN))
        return false;
    while (!tpl_skip(p, TOKEN_RPAREN)) {
        if (end != ret && !tpl_expect(p, TOKEN_COMMA))
            return false;
        if (p->at->kind != TOKEN_NAME)
            return tpl_parse_unexpected(p, "the name of a parameter") != NULL;
        struct tpl_node *param = tpl_node_new(p, NODE_PARAM, p->at->line);
        if (param == NULL)
            return false;
        param->value = tpl_token_text(p->at);
        param->op = tpl_name_number(p, p->at->text, p->at->size);
        p->at++;
        if (tpl_skip(p, TOKEN_ASSIGN)) {
            has_default = true;
            param->a = tpl_parse_expression(p, true);
        } else if (has_default) {
            return tpl_parse_fail(p, FERRY_ERR_FORMAT,
                                  "a parameter without default behind one with default") != NULL;
        }
        if (p->status != FERRY_OK)
            return false;
        *end = param;
        end = &param->next;
    }
    return true;
}

static struct tpl_node *parse_macro(struct tpl_parser *p)
{
    struct tpl_node *node = tpl_node_new(p, NODE_MACRO, p->at->line);

    p->at++;
    if (node == NULL)
        return NULL;
    if (p->at->kind != TOKEN_NAME)
        return tpl_parse_unexpected(p, "the name of a macro");
    node->value = tpl_token_text(p->at);
    node->op = tpl_name_number(p, p->at->text, p->at->size);
    p->at++;
    return p->status == FERRY_OK && parse_signature(p, &node->list) &&
                   parse_inner_block(p, "endmacro", &node->body)
               ? node
               : NULL;
}

static struct tpl_node *parse_call_block(struct tpl_parser *p)
{
    struct tpl_node *node = tpl_node_new(p, NODE_CALL_BLOCK, p->at->line);

    p->at++;
    if (node == NULL)
        return NULL;
    node->op = NAME_CALLER;
    node->value = tpl_text("caller", true);
    if (p->at->kind == TOKEN_LPAREN && !parse_signature(p, &node->list))
        return NULL;
    node->a = tpl_parse_expression(p, true);
    if (node->a == NULL)
        return NULL;
    if (node->a->kind != NODE_CALL)
        return tpl_parse_fail(p, FERRY_ERR_FORMAT, "expected a call behind 'call'");
    return parse_inner_block(p, "endcall", &node->body) ? node : NULL;
}

static struct tpl_node *parse_filter_block(struct tpl_parser *p)
{
    struct tpl_node *node = tpl_node_new(p, NODE_FILTER_BLOCK, p->at->line);

    p->at++;
    if (node == NULL)
        return NULL;
    node->b = tpl_parse_filters(p, NULL, true);
    return node->b != NULL && parse_block(p, "endfilter", &node->body) ? node : NULL;
}

static struct tpl_node *parse_with(struct tpl_parser *p)
{
    struct tpl_node *node = tpl_node_new(p, NODE_WITH, p->at->line);
    struct tpl_node **end;

    p->at++;
    if (node == NULL)
        return NULL;
    end = &node->list;
    while (p->at->kind != TOKEN_BLOCK_END) {
        if (node->list != NULL && !tpl_expect(p, TOKEN_COMMA))
            return NULL;
        struct tpl_node *target = tpl_parse_target(p, false);
        if (target == NULL || !tpl_expect(p, TOKEN_ASSIGN))
            return NULL;
        struct tpl_node *value = tpl_parse_expression(p, true);
        if (value == NULL)
            return NULL;
        *end = target;
        target->next = value;
        end = &value->next;
    }
    return parse_block(p, "endwith", &node->body) ? node : NULL;
}

/* {% generation %} marks what the model wrote, for training masks: its text is plain output. */
static struct tpl_node *parse_generation(struct tpl_parser *p)
{
    struct tpl_node *node = tpl_node_new(p, NODE_SCOPE, p->at->line);

    p->at++;
    return node != NULL && parse_inner_block(p, "endgeneration", &node->body) ? node : NULL;
}

static struct tpl_node *parse_jump(struct tpl_parser *p)
{
    bool is_break = tpl_at_name(p, "break");

    if (p->n_loops == 0)
        return tpl_parse_fail(p, FERRY_ERR_FORMAT, "'%s' outside of a loop",
                              is_break ? "break" : "continue");
    struct tpl_node *node = tpl_node_new(p, is_break ? NODE_BREAK : NODE_CONTINUE, p->at->line);
    p->at++;
    return node;
}

typedef struct tpl_node *statement_parser(struct tpl_parser *p);

static const struct {
    const char *name;
    statement_parser *parse; /* NULL: a tag of jinja2 that is not handled */
} STATEMENTS[] = {
    {"if", parse_if},
    {"for", parse_for},
    {"set", parse_set},
    {"macro", parse_macro},
    {"call", parse_call_block},
    {"filter", parse_filter_block},
    {"with", parse_with},
    {"generation", parse_generation},
    {"break", parse_jump},
    {"continue", parse_jump},
    {"include", NULL},
    {"import", NULL},
    {"from", NULL},
    {"extends", NULL},
    {"block", NULL},
    {"print", NULL},
    {"do", NULL},
    {"autoescape", NULL},
    {"trans", NULL},
    {"debug", NULL},
};

static struct tpl_node *parse_statement(struct tpl_parser *p)
{
    if (p->at->kind != TOKEN_NAME)
        return tpl_parse_unexpected(p, "the name of a tag");
    for (size_t i = 0; i < sizeof STATEMENTS / sizeof STATEMENTS[0]; i++) {
        if (!tpl_at_name(p, STATEMENTS[i].name))
            continue;
        if (STATEMENTS[i].parse == NULL)
            return tpl_parse_fail(p, FERRY_ERR_UNSUPPORTED, "the tag '%s' is not handled",
                                  STATEMENTS[i].name);
        if (!tpl_parse_enter(p))
            return NULL;
        struct tpl_node *node = STATEMENTS[i].parse(p);
        p->depth--;
        return node;
    }
    return tpl_parse_unexpected(p, "a tag");
}

static bool at_one_of(const struct tpl_parser *p, const char *const *names)
{
    for (; names != NULL && *names != NULL; names++) {
        if (tpl_at_name(p, *names))
            return true;
    }
    return false;
}

static struct tpl_node *parse_output(struct tpl_parser *p)
{
    struct tpl_node *node = tpl_node_new(p, NODE_OUTPUT, p->at->line);

    p->at++;
    if (node == NULL)
        return NULL;
    node->a = tpl_parse_tuple(p, true);
    return node->a != NULL && tpl_expect(p, TOKEN_VARIABLE_END) ? node : NULL;
}

/* Statements up to a tag of `ends` (NULL: the end of the template), whose name is then looked at.
 */
static bool parse_body(struct tpl_parser *p, const char *const *ends, struct tpl_node **ret)
{
    struct tpl_node **end = ret;
    int line = ends == NULL ? 1 : p->at[-1].line; /* of the tag in front of the body */

    *ret = NULL;
    for (;;) {
        struct tpl_node *node;
        if (p->at->kind == TOKEN_END) {
            if (ends == NULL)
                return true;
            return tpl_parse_fail(p, FERRY_ERR_FORMAT,
                                  "the template ends inside of a block begun in line %d",
                                  line) != NULL;
        }
        if (p->at->kind == TOKEN_DATA) {
            node = tpl_node_new(p, NODE_DATA, p->at->line);
            if (node != NULL)
                node->value = tpl_token_text(p->at);
            p->at++;
        } else if (p->at->kind == TOKEN_VARIABLE_BEGIN) {
            node = parse_output(p);
        } else {
            p->at++;
            if (at_one_of(p, ends))
                return true;
            node = parse_statement(p);
            if (node != NULL && !tpl_expect(p, TOKEN_BLOCK_END))
                node = NULL;
        }
        if (node == NULL)
            return false;
        *end = node;
        end = &node->next;
    }
}

enum ferry_status tpl_parse(struct template *t, const struct tpl_tokens *tokens,
                            struct ferry_error *err)
{
    static const char *const KNOWN[NAMES_KNOWN] = {
        [NAME_LOOP] = "loop",
        [NAME_CALLER] = "caller",
        [NAME_VARARGS] = "varargs",
        [NAME_KWARGS] = "kwargs",
        [NAME_RANGE] = "range",
        [NAME_DICT] = "dict",
        [NAME_NAMESPACE] = "namespace",
        [NAME_RAISE_EXCEPTION] = "raise_exception",
        [NAME_STRFTIME_NOW] = "strftime_now",
    };
    struct tpl_parser p = {.t = t, .at = tokens->tokens, .err = err};

    for (int i = 0; i < NAMES_KNOWN; i++)
        (void)tpl_name_number(&p, KNOWN[i], strlen(KNOWN[i]));
    (void)(p.status == FERRY_OK && parse_body(&p, NULL, &t->body));
    return p.status;
}
