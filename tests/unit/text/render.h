/* Rendering chat templates in the tests of src/text/template*.c. */
#ifndef TESTS_TEXT_RENDER_H
#define TESTS_TEXT_RENDER_H

#include "../unit.h"

#include "text/template.h"
#include "text/template_value.h"

/* Expects the text of source with the variables (a JSON object; ' stands for "), trusted bytes in
 * square brackets. */
void expect_marked(const char *source, const char *variables, const char *marked);

/* The same without brackets. */
void expect_rendered(const char *source, const char *variables, const char *text);

/* Expects creation (or, if that succeeds, rendering) to fail with a message that holds `part`. */
void expect_create_error(const char *source, enum ferry_status status, const char *part);
void expect_render_error(const char *source, const char *variables, enum ferry_status status,
                         const char *part);

/* Renders or fails the test; the caller frees. */
void render(const char *source, const char *variables, const struct template_limits *limits,
            struct rendered *ret);

/* A run for tests of single functions: default limits, no template. */
struct test_run {
    struct tpl_run run;
    struct ferry_error err;
    struct tpl_builder out;
};
void test_run_init(struct test_run *t);
void test_run_fini(struct test_run *t);

/* Expects a string value of the run. */
void expect_string_value(const struct tpl_value *value, const char *text);

#endif
