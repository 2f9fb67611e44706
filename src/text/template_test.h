/* Tests of chat templates: what stands behind `is`, and what select and reject ask.
 *
 * Nobody outside `text` includes this. */
#ifndef TEXT_TEMPLATE_TEST_H
#define TEXT_TEMPLATE_TEST_H

#include "text/template_method.h"

/* Number of a test by name, -1 when it is not handled. */
int tpl_test_find(const char *name, size_t size);

bool tpl_test_call(struct tpl_run *run, int test, const struct tpl_value *value,
                   const struct tpl_args *args, bool *ret);

#endif
