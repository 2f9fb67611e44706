/* The expressions of chat templates.
 *
 * Why apart from template_parse.h: operators and their precedence are one subject, tags another.
 * Nobody outside `text` includes this. */
#ifndef TEXT_TEMPLATE_EXPR_H
#define TEXT_TEMPLATE_EXPR_H

#include "text/template_parse.h"

/* One expression; with_condition: "x if y else z" is one. */
struct tpl_node *tpl_parse_expression(struct tpl_parser *p, bool with_condition);

/* One expression, or several with commas between them: a tuple. */
struct tpl_node *tpl_parse_tuple(struct tpl_parser *p, bool with_condition);

/* What a for loop or set assigns to: a name, with_namespace "name.member", or a tuple of these. */
struct tpl_node *tpl_parse_target(struct tpl_parser *p, bool with_namespace);

/* Filters behind `node` (NULL: the text of a block), each after a '|'; the first without one when
 * `inline_first`. */
struct tpl_node *tpl_parse_filters(struct tpl_parser *p, struct tpl_node *node, bool inline_first);

#endif
