/* Rendering chat templates. See render.h. */
#include "render.h"

#include "base/limits.h"

#include <string.h>

static json_t *parse(const char *variables)
{
    char text[4096];
    json_error_t error;

    assert_true(strlen(variables) < sizeof text);
    (void)snprintf(text, sizeof text, "%s", variables);
    for (char *c = text; *c != 0; c++) {
        if (*c == '\'')
            *c = '"';
    }
    json_t *json = json_loads(text, JSON_ALLOW_NUL, &error);
    if (json == NULL)
        fail_msg("%s: %s", variables, error.text);
    return json;
}

void render(const char *source, const char *variables, const struct template_limits *limits,
            struct rendered *ret)
{
    struct template *t = NULL;
    struct ferry_error err = {0};
    json_t *json = parse(variables);

    if (template_create(&t, source, strlen(source), &err) != FERRY_OK ||
        template_render(t, json, limits, ret, &err) != FERRY_OK)
        fail_msg("%s: %s", source, err.msg);
    template_destroy(t);
    json_decref(json);
}

static void expect_text_of(const char *source, const char *variables, const char *want, bool marked)
{
    struct rendered r = {0};
    char got[4096];
    size_t used = 0;
    size_t span = 0;

    render(source, variables, NULL, &r);
    assert_true(r.n_bytes * 3 < sizeof got);
    for (size_t i = 0; i < r.n_bytes; i++) {
        if (marked && span < r.n_trusted && r.trusted[span].start == i)
            got[used++] = '[';
        got[used++] = r.text[i];
        if (marked && span < r.n_trusted && r.trusted[span].end == i + 1) {
            got[used++] = ']';
            span++;
        }
    }
    got[used] = 0;
    assert_string_equal(got, want);
    assert_int_equal(r.text[r.n_bytes], 0);
    rendered_fini(&r);
}

void expect_marked(const char *source, const char *variables, const char *marked)
{
    expect_text_of(source, variables, marked, true);
}

void expect_rendered(const char *source, const char *variables, const char *text)
{
    expect_text_of(source, variables, text, false);
}

static void expect_message(const struct ferry_error *err, const char *part)
{
    if (strstr(err->msg, part) == NULL)
        fail_msg("\"%s\" does not hold \"%s\"", err->msg, part);
    assert_null(strchr(err->msg, '\n'));
}

void expect_create_error(const char *source, enum ferry_status status, const char *part)
{
    struct template *t = NULL;
    struct ferry_error err = {0};

    assert_int_equal(template_create(&t, source, strlen(source), &err), status);
    assert_null(t);
    expect_message(&err, part);
}

void expect_render_error(const char *source, const char *variables, enum ferry_status status,
                         const char *part)
{
    struct template *t = NULL;
    struct rendered r = {0};
    struct ferry_error err = {0};
    json_t *json = parse(variables);

    if (template_create(&t, source, strlen(source), &err) != FERRY_OK)
        fail_msg("%s: %s", source, err.msg);
    assert_int_equal(template_render(t, json, NULL, &r, &err), status);
    assert_null(r.text);
    expect_message(&err, part);
    template_destroy(t);
    json_decref(json);
}

void test_run_init(struct test_run *t)
{
    *t = (struct test_run){0};
    tpl_pool_init(&t->run.pool, "test", 1 << 24);
    t->run.steps_left = 1000000;
    t->run.line = 1;
    t->run.err = &t->err;
    t->run.out = &t->out;
    t->run.output_limit = 1 << 20;
}

void test_run_fini(struct test_run *t)
{
    tpl_pool_fini(&t->run.pool);
}

void expect_string_value(const struct tpl_value *value, const char *text)
{
    assert_int_equal(value->kind, TPL_STRING);
    assert_int_equal(value->u.s.size, strlen(text));
    assert_memory_equal(value->u.s.data, text, strlen(text));
}
