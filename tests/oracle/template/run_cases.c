/* Renders the chat templates and snippets of case files and compares every byte with what jinja2
 * gave (tools/oracle_template writes the files).
 *
 * Usage: run_cases FILE.json ... A file is {"cases": [case, ...]}; a case has "name", "source" (or
 * "file", a template beside the case file), "variables" (or "conversation", the name of a member of
 * the file's "conversations"; else the file's "variables"), perhaps "now", and either "want" or
 * "error": "create" or "render", with "message", a text that the error must hold. */
#include "text/template.h"

#include "base/alloc.h"
#include "file/json.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A template file; cases name the same one often. */
struct source {
    char path[1024];
    char *text;
    size_t size;
};

static struct source last_source;

static const char *read_source(const char *folder, const char *name, size_t *ret_size)
{
    char path[1024];

    (void)snprintf(path, sizeof path, "%s%s", folder, name);
    if (strcmp(path, last_source.path) != 0) {
        FILE *f = fopen(path, "rb");
        char *text = malloc(1 << 20);
        free(last_source.text);
        last_source.text = text;
        if (f == NULL || text == NULL) {
            perror(path);
            exit(2);
        }
        last_source.size = fread(text, 1, 1 << 20, f);
        (void)snprintf(last_source.path, sizeof last_source.path, "%s", path);
        (void)fclose(f);
    }
    *ret_size = last_source.size;
    return last_source.text;
}

static void show(const char *what, const char *text, size_t size)
{
    (void)fprintf(stderr, "  %s: \"", what);
    for (size_t i = 0; i < size; i++) {
        unsigned char c = (unsigned char)text[i];
        if (c == '\n')
            (void)fputs("\\n", stderr);
        else
            (void)fputc(c, stderr);
    }
    (void)fputs("\"\n", stderr);
}

/* Spans must be in order, apart, not empty, within the text. */
static bool spans_are_sound(const struct rendered *r)
{
    size_t end = 0;

    for (size_t i = 0; i < r->n_trusted; i++) {
        const struct text_span *span = &r->trusted[i];
        if (span->start >= span->end || span->end > r->n_bytes || (i > 0 && span->start <= end))
            return false;
        end = span->end;
    }
    return true;
}

/* Whether the outcome is the one that the case wants; says what was seen when it is not. */
static bool is_wanted(const json_t *c, const char *stage, const struct rendered *r,
                      const struct ferry_error *err)
{
    const json_t *want = json_object_get(c, "want");
    const char *error = json_string_value(json_object_get(c, "error"));
    const char *message = json_string_value(json_object_get(c, "message"));

    if (stage != NULL) {
        if (error != NULL && strcmp(error, stage) == 0 &&
            (message == NULL || strstr(err->msg, message) != NULL))
            return true;
        (void)fprintf(stderr, "  failed in %s: %s\n", stage, err->msg);
        if (message != NULL)
            (void)fprintf(stderr, "  wanted message: %s\n", message);
        return false;
    }
    if (error != NULL) {
        (void)fprintf(stderr, "  no error in %s (%s)\n", error, message == NULL ? "" : message);
        show("got ", r->text, r->n_bytes);
        return false;
    }
    if (r->n_bytes == json_string_length(want) &&
        memcmp(r->text, json_string_value(want), r->n_bytes) == 0)
        return spans_are_sound(r);
    show("want", json_string_value(want), json_string_length(want));
    show("got ", r->text, r->n_bytes);
    return false;
}

static bool run_case(const json_t *c, const char *folder, const json_t *file)
{
    struct template *t = NULL;
    struct rendered r = {0};
    struct ferry_error err = {0};
    struct template_limits limits = template_limits_default();
    const json_t *source = json_object_get(c, "source");
    const char *text = json_string_value(source);
    size_t size = json_string_length(source);
    const char *stage = NULL;
    const json_t *variables = json_object_get(c, "variables");

    const char *conversation = json_string_value(json_object_get(c, "conversation"));

    if (conversation != NULL)
        variables = json_object_get(json_object_get(file, "conversations"), conversation);
    else if (variables == NULL)
        variables = json_object_get(file, "variables");
    limits.now_s = json_integer_value(json_object_get(c, "now"));
    if (text == NULL)
        text = read_source(folder, json_string_value(json_object_get(c, "file")), &size);
    if (template_create(&t, text, size, &err) != FERRY_OK)
        stage = "create";
    else if (template_render(t, variables, &limits, &r, &err) != FERRY_OK)
        stage = "render";
    bool ok = is_wanted(c, stage, &r, &err);
    rendered_fini(&r);
    template_destroy(t);
    return ok;
}

static bool run_file(const char *path)
{
    char folder[1024];
    size_t n_bad = 0;
    json_error_t error;
    json_t *file = json_load_file(path, JSON_ALLOW_NUL, &error);
    const json_t *cases = json_object_get(file, "cases");

    if (!json_is_array(cases)) {
        (void)fprintf(stderr, "%s: %s\n", path, file == NULL ? error.text : "no cases");
        return false;
    }
    (void)snprintf(folder, sizeof folder, "%s", path);
    char *slash = strrchr(folder, '/');
    if (slash != NULL)
        slash[1] = 0;
    else
        folder[0] = 0;
    size_t n = json_array_size(cases);
    for (size_t i = 0; i < n; i++) {
        const json_t *c = json_array_get(cases, i);
        if (run_case(c, folder, file))
            continue;
        (void)fprintf(stderr, "%s: case %zu \"%s\" differs: %s\n", path, i,
                      json_string_value(json_object_get(c, "name")),
                      json_is_string(json_object_get(c, "source"))
                          ? json_string_value(json_object_get(c, "source"))
                          : "");
        n_bad++;
    }
    (void)printf("%s: %zu of %zu cases equal\n", path, n - n_bad, n);
    json_decref(file);
    return n > 0 && n_bad == 0;
}

int main(int argc, char **argv)
{
    bool ok = argc > 1;

    for (int i = 1; i < argc; i++)
        ok = run_file(argv[i]) && ok;
    free(last_source.text);
    return ok ? EXIT_SUCCESS : EXIT_FAILURE;
}
