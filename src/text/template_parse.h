/* Tokens to a syntax tree.
 *
 * Why here: everything that is not handled is refused now, with its line and name, and not in the
 * middle of somebody's request. It must not know values at run time. Nobody outside `text` includes
 * this. */
#ifndef TEXT_TEMPLATE_PARSE_H
#define TEXT_TEMPLATE_PARSE_H

#include "text/template_ast.h"
#include "text/template_lex.h"

struct tpl_parser {
    struct template *t;
    const struct tpl_token *at; /* the token that is looked at */
    int depth;
    int n_loops; /* around the statement at work, within the macro or block */
    size_t n_nodes;
    enum ferry_status status;
    struct ferry_error *err;
};

/* Parses tokens into t->body and t->names; t->pool owns all. Errors: FERRY_ERR_FORMAT,
 * FERRY_ERR_UNSUPPORTED, FERRY_ERR_LIMIT (LIMIT_TEMPLATE_DEPTH, _NODES, _NAMES), FERRY_ERR_NOMEM.
 */
enum ferry_status tpl_parse(struct template *t, const struct tpl_tokens *tokens,
                            struct ferry_error *err) FERRY_MUST_CHECK;

/* Shared by template_parse.c and template_expr.c. Functions that give a node give NULL after an
 * error, which stands in parser->status. */
void *tpl_parse_fail(struct tpl_parser *p, enum ferry_status status, const char *format, ...)
    FERRY_PRINTF(3, 4);
void *tpl_parse_unexpected(struct tpl_parser *p, const char *wanted);
struct tpl_node *tpl_node_new(struct tpl_parser *p, enum tpl_node_kind kind, int line);
bool tpl_at_name(const struct tpl_parser *p, const char *name);
bool tpl_skip(struct tpl_parser *p, enum tpl_token_kind kind);
bool tpl_expect(struct tpl_parser *p, enum tpl_token_kind kind);
bool tpl_parse_enter(struct tpl_parser *p);
struct tpl_value tpl_token_text(const struct tpl_token *token);

/* Number of a name, -1 after an error. */
int tpl_name_number(struct tpl_parser *p, const char *name, size_t size);

#endif
