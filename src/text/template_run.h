/* Walking the syntax tree of a chat template.
 *
 * Why here: scopes, loops, macros and calls. It must not know JSON or files. Nobody outside `text`
 * includes this. */
#ifndef TEXT_TEMPLATE_RUN_H
#define TEXT_TEMPLATE_RUN_H

#include "text/template_ast.h"

/* Runs the whole template, whose output goes to run->out. False after an error. */
bool tpl_run_template(struct tpl_run *run);

const struct tpl_value *tpl_macro_name(struct tpl_run *run, const struct tpl_macro *macro);

#endif
