/* The global functions of chat templates: range, dict, namespace, raise_exception, strftime_now.
 *
 * Nobody outside `text` includes this. */
#ifndef TEXT_TEMPLATE_FUNCTION_H
#define TEXT_TEMPLATE_FUNCTION_H

#include "text/template_method.h"

/* Calls the function with the number of its name (NAME_RANGE ... of template_ast.h). */
bool tpl_call_function(struct tpl_run *run, int function, const struct tpl_args *args,
                       struct tpl_value *ret);

#endif
