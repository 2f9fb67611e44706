/* Expressions of chat templates. See template_expr.h. The grammar is jinja2's, tested against it by
 * tools/oracle_template. */
#include "text/template_expr.h"

#include "text/template_filter.h"
#include "text/template_test.h"

#include <string.h>

/* A growing list of nodes. */
struct list {
    struct tpl_node *first;
    struct tpl_node **end;
};

static void list_init(struct list *list)
{
    list->first = NULL;
    list->end = &list->first;
}

static bool list_add(struct list *list, struct tpl_node *node)
{
    if (node == NULL)
        return false;
    *list->end = node;
    list->end = &node->next;
    return true;
}

static struct tpl_node *make(struct tpl_parser *p, enum tpl_node_kind kind, int line, int op,
                             struct tpl_node *a, struct tpl_node *b)
{
    struct tpl_node *node = tpl_node_new(p, kind, line);

    if (node != NULL) {
        node->op = op;
        node->a = a;
        node->b = b;
    }
    return node;
}

static struct tpl_node *constant(struct tpl_parser *p, struct tpl_value value)
{
    struct tpl_node *node = tpl_node_new(p, NODE_CONST, p->at->line);

    if (node != NULL) {
        node->value = value;
        p->at++;
    }
    return node;
}

static struct tpl_node *name_node(struct tpl_parser *p)
{
    struct tpl_node *node = tpl_node_new(p, NODE_NAME, p->at->line);

    if (node == NULL)
        return NULL;
    node->value = tpl_token_text(p->at);
    node->op = tpl_name_number(p, p->at->text, p->at->size);
    if (node->op < 0)
        return NULL;
    p->at++;
    return node;
}

static struct tpl_node *parse_name(struct tpl_parser *p)
{
    static const char *const UNHANDLED[] = {"cycler", "joiner", "lipsum"};

    if (tpl_at_name(p, "true") || tpl_at_name(p, "True"))
        return constant(p, tpl_bool(true));
    if (tpl_at_name(p, "false") || tpl_at_name(p, "False"))
        return constant(p, tpl_bool(false));
    if (tpl_at_name(p, "none") || tpl_at_name(p, "None"))
        return constant(p, tpl_none());
    for (size_t i = 0; i < sizeof UNHANDLED / sizeof UNHANDLED[0]; i++) {
        if (tpl_at_name(p, UNHANDLED[i]) && p->at[1].kind == TOKEN_LPAREN)
            return tpl_parse_fail(p, FERRY_ERR_UNSUPPORTED, "the function '%s' is not handled",
                                  UNHANDLED[i]);
    }
    return name_node(p);
}

/* Strings side by side are one string. */
static struct tpl_node *parse_string(struct tpl_parser *p)
{
    const struct tpl_token *first = p->at;
    size_t size = 0;

    for (; p->at->kind == TOKEN_STRING; p->at++)
        size += p->at->size;
    struct tpl_node *node = tpl_node_new(p, NODE_CONST, first->line);
    if (node == NULL)
        return NULL;
    node->value = tpl_token_text(first);
    if (p->at == first + 1)
        return node;
    char *text = tpl_pool_get(&p->t->pool, size);
    if (text == NULL)
        return tpl_parse_fail(p, FERRY_ERR_NOMEM, "out of memory");
    size_t used = 0;
    for (const struct tpl_token *token = first; token < p->at; token++) {
        memcpy(text + used, token->text, token->size);
        used += token->size;
    }
    node->value = tpl_bytes(text, size, true);
    return node;
}

static bool is_tuple_end(const struct tpl_parser *p)
{
    return p->at->kind == TOKEN_VARIABLE_END || p->at->kind == TOKEN_BLOCK_END ||
           p->at->kind == TOKEN_RPAREN;
}

/* Items with commas between them up to `close`, which is eaten; pairs: key, ':', value. */
static struct tpl_node *parse_items(struct tpl_parser *p, enum tpl_node_kind kind,
                                    enum tpl_token_kind close)
{
    struct tpl_node *node = tpl_node_new(p, kind, p->at->line);
    struct list list;

    if (node == NULL)
        return NULL;
    list_init(&list);
    p->at++;
    while (p->at->kind != close) {
        if (list.first != NULL && !tpl_expect(p, TOKEN_COMMA))
            return NULL;
        if (p->at->kind == close)
            break;
        if (!list_add(&list, tpl_parse_expression(p, true)))
            return NULL;
        if (kind == NODE_DICT &&
            (!tpl_expect(p, TOKEN_COLON) || !list_add(&list, tpl_parse_expression(p, true))))
            return NULL;
    }
    p->at++;
    node->list = list.first;
    return node;
}

static struct tpl_node *parse_parentheses(struct tpl_parser *p)
{
    int line = p->at->line;

    p->at++;
    if (tpl_skip(p, TOKEN_RPAREN))
        return tpl_node_new(p, NODE_TUPLE, line);
    struct tpl_node *node = tpl_parse_tuple(p, true);
    return node != NULL && tpl_expect(p, TOKEN_RPAREN) ? node : NULL;
}

static struct tpl_node *parse_primary(struct tpl_parser *p)
{
    switch (p->at->kind) {
    case TOKEN_NAME:
        return parse_name(p);
    case TOKEN_STRING:
        return parse_string(p);
    case TOKEN_INT:
        return constant(p, tpl_int(p->at->i, true));
    case TOKEN_FLOAT:
        return constant(p, tpl_float(p->at->f, true));
    case TOKEN_LPAREN:
        return parse_parentheses(p);
    case TOKEN_LBRACKET:
        return parse_items(p, NODE_LIST, TOKEN_RBRACKET);
    case TOKEN_LBRACE:
        return parse_items(p, NODE_DICT, TOKEN_RBRACE);
    default:
        return tpl_parse_unexpected(p, "an expression");
    }
}

/* One part of a subscript: an expression or a slice. */
static struct tpl_node *parse_subscribed(struct tpl_parser *p)
{
    int line = p->at->line;
    struct tpl_node *parts[3] = {NULL, NULL, NULL};
    int n = 0;

    if (p->at->kind != TOKEN_COLON) {
        parts[0] = tpl_parse_expression(p, true);
        if (parts[0] == NULL || p->at->kind != TOKEN_COLON)
            return parts[0];
    }
    while (n < 2 && tpl_skip(p, TOKEN_COLON)) {
        n++;
        if (p->at->kind == TOKEN_COLON || p->at->kind == TOKEN_RBRACKET ||
            p->at->kind == TOKEN_COMMA)
            continue;
        parts[n] = tpl_parse_expression(p, true);
        if (parts[n] == NULL)
            return NULL;
    }
    struct tpl_node *node = make(p, NODE_SLICE, line, 0, parts[0], parts[1]);
    if (node != NULL)
        node->c = parts[2];
    return node;
}

static struct tpl_node *parse_subscript(struct tpl_parser *p, struct tpl_node *owner)
{
    int line = p->at->line;

    if (tpl_skip(p, TOKEN_DOT)) {
        if (p->at->kind == TOKEN_INT)
            return make(p, NODE_GETITEM, line, 0, owner, constant(p, tpl_int(p->at->i, true)));
        if (p->at->kind != TOKEN_NAME)
            return tpl_parse_unexpected(p, "a name or number");
        struct tpl_node *node = make(p, NODE_GETATTR, line, 0, owner, NULL);
        if (node != NULL) {
            node->value = tpl_token_text(p->at);
            p->at++;
        }
        return node;
    }
    p->at++;
    struct tpl_node *key = parse_subscribed(p);
    if (key != NULL && p->at->kind == TOKEN_COMMA)
        return tpl_parse_fail(p, FERRY_ERR_UNSUPPORTED, "a subscript of several parts");
    if (key == NULL || !tpl_expect(p, TOKEN_RBRACKET))
        return NULL;
    return make(p, NODE_GETITEM, line, 0, owner, key);
}

/* One argument of a call. */
static struct tpl_node *parse_argument(struct tpl_parser *p)
{
    int line = p->at->line;

    if (tpl_skip(p, TOKEN_MUL))
        return make(p, NODE_STAR, line, 0, tpl_parse_expression(p, true), NULL);
    if (tpl_skip(p, TOKEN_POW))
        return make(p, NODE_STARSTAR, line, 0, tpl_parse_expression(p, true), NULL);
    if (p->at->kind != TOKEN_NAME || p->at[1].kind != TOKEN_ASSIGN)
        return tpl_parse_expression(p, true);
    struct tpl_value name = tpl_token_text(p->at);
    p->at += 2;
    struct tpl_node *node = make(p, NODE_KEYWORD, line, 0, tpl_parse_expression(p, true), NULL);
    if (node != NULL)
        node->value = name;
    return node;
}

/* Positional arguments first, then keywords, *list and **dict, each once. */
static int argument_rank(const struct tpl_node *node)
{
    return node->kind == NODE_KEYWORD    ? 1
           : node->kind == NODE_STAR     ? 2
           : node->kind == NODE_STARSTAR ? 3
                                         : 0;
}

static bool parse_arguments(struct tpl_parser *p, struct tpl_node **ret)
{
    struct list list;
    int rank = 0;

    list_init(&list);
    p->at++;
    while (p->at->kind != TOKEN_RPAREN) {
        if (list.first != NULL && !tpl_expect(p, TOKEN_COMMA))
            return false;
        if (p->at->kind == TOKEN_RPAREN)
            break;
        struct tpl_node *argument = parse_argument(p);
        if (p->status != FERRY_OK || !list_add(&list, argument))
            return false;
        int here = argument_rank(argument);
        if ((here == 0 && rank > 0) || rank == 3 || (here == 2 && rank == 2))
            return tpl_parse_fail(p, FERRY_ERR_FORMAT, "arguments of a call in the wrong order") !=
                   NULL;
        rank = here > rank ? here : rank;
    }
    p->at++;
    *ret = list.first;
    return true;
}

static struct tpl_node *parse_call(struct tpl_parser *p, struct tpl_node *callee)
{
    struct tpl_node *node = make(p, NODE_CALL, p->at->line, 0, callee, NULL);
    return node != NULL && parse_arguments(p, &node->list) ? node : NULL;
}

static struct tpl_node *parse_postfix(struct tpl_parser *p, struct tpl_node *node)
{
    while (node != NULL) {
        if (p->at->kind == TOKEN_DOT || p->at->kind == TOKEN_LBRACKET)
            node = parse_subscript(p, node);
        else if (p->at->kind == TOKEN_LPAREN)
            node = parse_call(p, node);
        else
            break;
    }
    return node;
}

struct tpl_node *tpl_parse_filters(struct tpl_parser *p, struct tpl_node *node, bool inline_first)
{
    while (inline_first || p->at->kind == TOKEN_PIPE) {
        if (!inline_first)
            p->at++;
        inline_first = false;
        if (p->at->kind != TOKEN_NAME)
            return tpl_parse_unexpected(p, "the name of a filter");
        int filter = tpl_filter_find(p->at->text, p->at->size);
        if (filter < 0)
            return tpl_parse_fail(p, FERRY_ERR_UNSUPPORTED, "the filter '%.*s' is not handled",
                                  (int)(p->at->size > 60 ? 60 : p->at->size), p->at->text);
        node = make(p, NODE_FILTER, p->at->line, filter, node, NULL);
        p->at++;
        if (node == NULL || (p->at->kind == TOKEN_LPAREN && !parse_arguments(p, &node->list)))
            return NULL;
    }
    return node;
}

static struct tpl_node *parse_test(struct tpl_parser *p, struct tpl_node *value)
{
    int line = p->at->line;

    p->at++;
    bool negated = tpl_at_name(p, "not");
    if (negated)
        p->at++;
    if (p->at->kind != TOKEN_NAME)
        return tpl_parse_unexpected(p, "the name of a test");
    int test = tpl_test_find(p->at->text, p->at->size);
    if (test < 0)
        return tpl_parse_fail(p, FERRY_ERR_UNSUPPORTED, "the test '%.*s' is not handled",
                              (int)(p->at->size > 60 ? 60 : p->at->size), p->at->text);
    struct tpl_node *node = make(p, NODE_TEST, line, test, value, NULL);
    p->at++;
    if (node == NULL)
        return NULL;
    enum tpl_token_kind next = p->at->kind;
    if (next == TOKEN_LPAREN) {
        if (!parse_arguments(p, &node->list))
            return NULL;
    } else if (tpl_at_name(p, "is")) {
        return tpl_parse_fail(p, FERRY_ERR_FORMAT, "tests with 'is' cannot be chained");
    } else if ((next == TOKEN_NAME || next == TOKEN_STRING || next == TOKEN_INT ||
                next == TOKEN_FLOAT || next == TOKEN_LBRACKET || next == TOKEN_LBRACE) &&
               !tpl_at_name(p, "else") && !tpl_at_name(p, "or") && !tpl_at_name(p, "and")) {
        node->list = parse_postfix(p, parse_primary(p));
        if (node->list == NULL)
            return NULL;
    }
    return negated ? make(p, NODE_NOT, line, 0, node, NULL) : node;
}

static struct tpl_node *parse_filters_and_tests(struct tpl_parser *p, struct tpl_node *node)
{
    while (node != NULL) {
        if (p->at->kind == TOKEN_PIPE)
            node = tpl_parse_filters(p, node, false);
        else if (tpl_at_name(p, "is"))
            node = parse_test(p, node);
        else if (p->at->kind == TOKEN_LPAREN)
            node = parse_call(p, node);
        else
            break;
    }
    return node;
}

static struct tpl_node *parse_unary(struct tpl_parser *p, bool with_filter)
{
    int line = p->at->line;
    struct tpl_node *node;

    if (p->at->kind == TOKEN_SUB || p->at->kind == TOKEN_ADD) {
        enum tpl_node_kind kind = p->at->kind == TOKEN_SUB ? NODE_NEGATIVE : NODE_POSITIVE;
        p->at++;
        if (!tpl_parse_enter(p))
            return NULL;
        node = parse_unary(p, false);
        p->depth--;
        node = node == NULL ? NULL : make(p, kind, line, 0, node, NULL);
    } else {
        node = parse_primary(p);
    }
    node = parse_postfix(p, node);
    return with_filter ? parse_filters_and_tests(p, node) : node;
}

static int binary_level(enum tpl_token_kind kind)
{
    switch (kind) {
    case TOKEN_ADD:
    case TOKEN_SUB:
        return 0;
    case TOKEN_TILDE:
        return 1;
    case TOKEN_MUL:
    case TOKEN_DIV:
    case TOKEN_FLOORDIV:
    case TOKEN_MOD:
        return 2;
    case TOKEN_POW:
        return 3;
    default:
        return -1;
    }
}

enum { BINARY_LEVELS = 4 };

/* Left-associative operators, all of them, by level: + and -, ~, then * / // %, then **. */
static struct tpl_node *parse_binary(struct tpl_parser *p, int level)
{
    struct tpl_node *left =
        level == BINARY_LEVELS ? parse_unary(p, true) : parse_binary(p, level + 1);
    int chain = 0;

    while (left != NULL && level < BINARY_LEVELS && binary_level(p->at->kind) == level) {
        int line = p->at->line;
        enum tpl_token_kind op = p->at->kind;
        p->at++;
        if (!tpl_parse_enter(p)) /* the tree grows deeper to the left */
            return NULL;
        chain++;
        struct tpl_node *right = parse_binary(p, level + 1);
        left = right == NULL ? NULL : make(p, NODE_BINARY, line, (int)op, left, right);
    }
    p->depth -= chain;
    return left;
}

/* The comparison at hand, 0 when there is none; eats it. */
static int skip_comparison(struct tpl_parser *p)
{
    int op = 0;

    switch (p->at->kind) {
    case TOKEN_EQ:
    case TOKEN_NE:
    case TOKEN_LT:
    case TOKEN_LE:
    case TOKEN_GT:
    case TOKEN_GE:
        op = (int)p->at->kind;
        break;
    default:
        if (tpl_at_name(p, "in")) {
            op = OPERAND_IN;
        } else if (tpl_at_name(p, "not") && p->at[1].kind == TOKEN_NAME && p->at[1].size == 2 &&
                   memcmp(p->at[1].text, "in", 2) == 0) {
            op = OPERAND_NOT_IN;
            p->at++;
        }
        break;
    }
    p->at += op != 0;
    return op;
}

static struct tpl_node *parse_compare(struct tpl_parser *p)
{
    int line = p->at->line;
    struct tpl_node *first = parse_binary(p, 0);
    struct list list;

    list_init(&list);
    while (first != NULL) {
        int at_line = p->at->line;
        int op = skip_comparison(p);
        if (op == 0)
            break;
        struct tpl_node *right = parse_binary(p, 0);
        if (right == NULL || !list_add(&list, make(p, NODE_OPERAND, at_line, op, right, NULL)))
            return NULL;
    }
    if (first == NULL || list.first == NULL)
        return first;
    struct tpl_node *node = make(p, NODE_COMPARE, line, 0, first, NULL);
    if (node != NULL)
        node->list = list.first;
    return node;
}

static struct tpl_node *parse_not(struct tpl_parser *p)
{
    int line = p->at->line;

    if (!tpl_at_name(p, "not"))
        return parse_compare(p);
    p->at++;
    if (!tpl_parse_enter(p))
        return NULL;
    struct tpl_node *node = parse_not(p);
    p->depth--;
    return node == NULL ? NULL : make(p, NODE_NOT, line, 0, node, NULL);
}

static struct tpl_node *parse_logic(struct tpl_parser *p, bool is_or)
{
    struct tpl_node *left = is_or ? parse_logic(p, false) : parse_not(p);
    int chain = 0;

    while (left != NULL && tpl_at_name(p, is_or ? "or" : "and")) {
        int line = p->at->line;
        p->at++;
        if (!tpl_parse_enter(p))
            return NULL;
        chain++;
        struct tpl_node *right = is_or ? parse_logic(p, false) : parse_not(p);
        left = right == NULL ? NULL : make(p, is_or ? NODE_OR : NODE_AND, line, 0, left, right);
    }
    p->depth -= chain;
    return left;
}

struct tpl_node *tpl_parse_expression(struct tpl_parser *p, bool with_condition)
{
    int line = p->at->line;
    int chain = 1;

    if (!tpl_parse_enter(p))
        return NULL;
    struct tpl_node *node = parse_logic(p, true);
    while (node != NULL && with_condition && tpl_at_name(p, "if")) {
        p->at++;
        if (!tpl_parse_enter(p))
            return NULL;
        chain++;
        struct tpl_node *test = parse_logic(p, true);
        struct tpl_node *orelse = NULL;
        if (test != NULL && tpl_at_name(p, "else")) {
            p->at++;
            orelse = tpl_parse_expression(p, true);
        }
        if (p->status != FERRY_OK)
            return NULL;
        node = make(p, NODE_COND, line, 0, test, node);
        if (node != NULL)
            node->c = orelse;
    }
    p->depth -= chain;
    return node;
}

struct tpl_node *tpl_parse_tuple(struct tpl_parser *p, bool with_condition)
{
    struct list list;
    int line = p->at->line;

    list_init(&list);
    struct tpl_node *first = tpl_parse_expression(p, with_condition);
    if (!list_add(&list, first) || p->at->kind != TOKEN_COMMA)
        return first;
    while (tpl_skip(p, TOKEN_COMMA) && !is_tuple_end(p)) {
        if (!list_add(&list, tpl_parse_expression(p, with_condition)))
            return NULL;
    }
    struct tpl_node *node = tpl_node_new(p, NODE_TUPLE, line);
    if (node != NULL)
        node->list = list.first;
    return node;
}

static struct tpl_node *parse_one_target(struct tpl_parser *p, bool with_namespace)
{
    static const char *const CONSTANTS[] = {"true", "True", "false", "False", "none", "None"};

    if (tpl_skip(p, TOKEN_LPAREN)) {
        if (!tpl_parse_enter(p))
            return NULL;
        struct tpl_node *inner = tpl_parse_target(p, with_namespace);
        p->depth--;
        return inner != NULL && tpl_expect(p, TOKEN_RPAREN) ? inner : NULL;
    }
    if (p->at->kind != TOKEN_NAME)
        return tpl_parse_unexpected(p, "a name to assign to");
    for (size_t i = 0; i < sizeof CONSTANTS / sizeof CONSTANTS[0]; i++) {
        if (tpl_at_name(p, CONSTANTS[i]))
            return tpl_parse_fail(p, FERRY_ERR_FORMAT, "cannot assign to '%s'", CONSTANTS[i]);
    }
    struct tpl_node *name = name_node(p);
    if (name == NULL || !with_namespace || !tpl_skip(p, TOKEN_DOT))
        return name;
    if (p->at->kind != TOKEN_NAME)
        return tpl_parse_unexpected(p, "a name");
    struct tpl_node *node = make(p, NODE_NSREF, name->line, 0, name, NULL);
    if (node != NULL) {
        node->value = tpl_token_text(p->at);
        p->at++;
    }
    return node;
}

struct tpl_node *tpl_parse_target(struct tpl_parser *p, bool with_namespace)
{
    struct list list;
    int line = p->at->line;

    list_init(&list);
    struct tpl_node *first = parse_one_target(p, with_namespace);
    if (!list_add(&list, first) || p->at->kind != TOKEN_COMMA)
        return first;
    while (tpl_skip(p, TOKEN_COMMA) && !is_tuple_end(p) && !tpl_at_name(p, "in") &&
           p->at->kind != TOKEN_ASSIGN) {
        if (!list_add(&list, parse_one_target(p, with_namespace)))
            return NULL;
    }
    struct tpl_node *node = tpl_node_new(p, NODE_TUPLE, line);
    if (node != NULL)
        node->list = list.first;
    return node;
}
