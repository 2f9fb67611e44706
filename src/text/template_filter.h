/* Filters of chat templates: what stands behind '|'.
 *
 * Nobody outside `text` includes this. */
#ifndef TEXT_TEMPLATE_FILTER_H
#define TEXT_TEMPLATE_FILTER_H

#include "text/template_method.h"

/* Number of a filter by name, -1 when it is not handled. */
int tpl_filter_find(const char *name, size_t size);

bool tpl_filter_call(struct tpl_run *run, int filter, const struct tpl_value *value,
                     const struct tpl_args *args, struct tpl_value *ret);

#endif
