/* Chat templates from source to spans. See template.h. */
#include "text/template.h"

#include "base/alloc.h"
#include "base/error.h"
#include "base/limits.h"
#include "base/size.h"
#include "text/template_ast.h"
#include "text/template_lex.h"
#include "text/template_parse.h"
#include "text/template_run.h"

#include <string.h>

struct template_limits template_limits_default(void)
{
    return (struct template_limits){.steps = LIMIT_TEMPLATE_STEPS,
                                    .output_bytes = LIMIT_TEMPLATE_OUTPUT,
                                    .memory_bytes = LIMIT_TEMPLATE_MEMORY};
}

void rendered_fini(struct rendered *rendered)
{
    mem_free(rendered->text);
    mem_free(rendered->trusted);
    *rendered = (struct rendered){0};
}

enum ferry_status template_create(struct template **ret_template, const char *source,
                                  size_t n_bytes, struct ferry_error *err)
{
    struct tpl_tokens tokens = {0};
    struct template *t = mem_zero(sizeof *t);

    if (t == NULL)
        return FERRY_FAIL(err, FERRY_ERR_NOMEM, "chat template: out of memory");
    tpl_pool_init(&t->pool, "template", LIMIT_TEMPLATE_MEMORY);
    enum ferry_status st = tpl_lex(&tokens, &t->pool, source, n_bytes, err);
    if (st == FERRY_OK)
        st = tpl_parse(t, &tokens, err);
    tpl_tokens_fini(&tokens);
    if (st != FERRY_OK) {
        template_destroy(t);
        return st;
    }
    *ret_template = t;
    return FERRY_OK;
}

void template_destroy(struct template *t)
{
    if (t == NULL)
        return;
    tpl_pool_fini(&t->pool);
    mem_free(t);
}

/* Where in the variables a value stands: roles of messages are trusted. */
enum place { PLACE_OTHER, PLACE_TRUSTED, PLACE_MESSAGES, PLACE_MESSAGE };

static bool is_role(const json_t *json)
{
    static const char *const ROLES[] = {"system",    "user", "assistant",
                                        "developer", "tool", "function"};

    for (size_t i = 0; i < sizeof ROLES / sizeof ROLES[0]; i++) {
        if (json_string_length(json) == strlen(ROLES[i]) &&
            memcmp(json_string_value(json), ROLES[i], strlen(ROLES[i])) == 0)
            return true;
    }
    return false;
}

static bool convert(struct tpl_run *run, const json_t *json, enum place place,
                    struct tpl_value *ret);

static bool convert_array(struct tpl_run *run, const json_t *json, enum place place,
                          struct tpl_value *ret)
{
    struct tpl_seq *seq = tpl_seq_new(run, TPL_LIST, json_array_size(json));
    enum place inner = place == PLACE_MESSAGES  ? PLACE_MESSAGE
                       : place == PLACE_TRUSTED ? PLACE_TRUSTED
                                                : PLACE_OTHER;

    if (seq == NULL)
        return false;
    for (size_t i = 0; i < seq->n; i++) {
        if (!convert(run, json_array_get(json, i), inner, &seq->items[i]))
            return false;
    }
    *ret = tpl_seq_value(seq);
    return true;
}

static bool convert_object(struct tpl_run *run, const json_t *json, enum place place,
                           struct tpl_value *ret)
{
    struct tpl_dict *dict = tpl_dict_new(run, json_object_size(json));
    const char *key;
    const json_t *value;

    if (dict == NULL)
        return false;
    /* jansson's iteration does not change the object, but its interface takes it as changeable. */
    json_t *object = (json_t *)(uintptr_t)json;
    for (void *at = json_object_iter(object); at != NULL; at = json_object_iter_next(object, at)) {
        key = json_object_iter_key(at);
        value = json_object_iter_value(at);
        enum place inner = PLACE_OTHER;
        if (place == PLACE_TRUSTED || (place == PLACE_MESSAGE && strcmp(key, "role") == 0 &&
                                       json_is_string(value) && is_role(value)))
            inner = PLACE_TRUSTED;
        dict->keys[dict->n] = tpl_text(key, place == PLACE_TRUSTED);
        if (!convert(run, value, inner, &dict->values[dict->n++]))
            return false;
    }
    *ret = tpl_dict_value(dict);
    return true;
}

static bool convert(struct tpl_run *run, const json_t *json, enum place place,
                    struct tpl_value *ret)
{
    bool trusted = place == PLACE_TRUSTED;
    bool ok = true;

    if (!tpl_work(run, 1))
        return false;
    switch (json_typeof(json)) {
    case JSON_NULL:
        *ret = tpl_none();
        return true;
    case JSON_TRUE:
    case JSON_FALSE:
        *ret = tpl_bool(json_is_true(json));
        return true;
    case JSON_INTEGER:
        *ret = tpl_int(json_integer_value(json), trusted);
        return true;
    case JSON_REAL:
        *ret = tpl_float(json_real_value(json), trusted);
        return true;
    case JSON_STRING:
        *ret = tpl_bytes(json_string_value(json), json_string_length(json), trusted);
        return true;
    default:
        if (!tpl_enter(run))
            return false;
        ok = json_is_array(json) ? convert_array(run, json, place, ret)
                                 : convert_object(run, json, place, ret);
        tpl_leave(run);
        return ok;
    }
}

static bool is_listed(const char *const *names, const struct tpl_value *name)
{
    for (; *names != NULL; names++) {
        if (tpl_is_text(name, *names))
            return true;
    }
    return false;
}

/* The variables that the template mentions. */
static bool convert_globals(struct tpl_run *run, const json_t *variables,
                            const char *const *trusted_names)
{
    static const char *const USUAL[] = {"bos_token", "eos_token", "pad_token",  "unk_token",
                                        "sep_token", "cls_token", "mask_token", NULL};
    const struct template *t = run->t;

    run->globals = tpl_array(run, t->n_names, sizeof *run->globals);
    if (run->globals == NULL)
        return false;
    for (size_t i = 0; i < t->n_names; i++) {
        const struct tpl_string *name = &t->names[i].u.s;
        char text[256]; /* names in the source have no 0 byte at the end */
        if (name->size >= sizeof text)
            continue;
        memcpy(text, name->data, name->size);
        text[name->size] = 0;
        const json_t *json = json_object_get(variables, text);
        enum place place = PLACE_OTHER;
        if (is_listed(trusted_names == NULL ? USUAL : trusted_names, &t->names[i]))
            place = PLACE_TRUSTED;
        else if (tpl_is_text(&t->names[i], "messages"))
            place = PLACE_MESSAGES;
        if (json != NULL && !convert(run, json, place, &run->globals[i]))
            return false;
    }
    return true;
}

/* Copies the text, and the mask as spans. */
static bool finish(struct tpl_run *run, const struct tpl_builder *b, struct rendered *ret)
{
    struct rendered rendered = {.n_bytes = b->size};
    size_t n = 0;

    for (size_t i = 0; i < b->size; i++)
        n += b->mask[i] != 0 && (i == 0 || b->mask[i - 1] == 0);
    rendered.text = mem_strndup(b->size == 0 ? "" : b->data, b->size);
    rendered.trusted = n == 0 ? NULL : mem_array(n, sizeof *rendered.trusted);
    if (rendered.text == NULL || (n > 0 && rendered.trusted == NULL)) {
        rendered_fini(&rendered);
        return tpl_no_memory(run);
    }
    for (size_t i = 0; i < b->size; i++) {
        if (b->mask[i] == 0)
            continue;
        size_t start = i;
        while (i < b->size && b->mask[i] != 0)
            i++;
        rendered.trusted[rendered.n_trusted++] = (struct text_span){start, i};
    }
    *ret = rendered;
    return true;
}

enum ferry_status template_render(const struct template *t, const json_t *variables,
                                  const struct template_limits *limits, struct rendered *ret,
                                  struct ferry_error *err)
{
    struct template_limits use = template_limits_default();
    struct tpl_builder out = {0};
    struct tpl_run run = {.line = 1, .t = t, .err = err, .out = &out};

    if (!json_is_object(variables))
        return FERRY_FAIL(err, FERRY_ERR_ARG, "chat template: the variables are not an object");
    if (limits != NULL) {
        use.steps = limits->steps != 0 ? limits->steps : use.steps;
        use.output_bytes = limits->output_bytes != 0 ? limits->output_bytes : use.output_bytes;
        use.memory_bytes = limits->memory_bytes != 0 ? limits->memory_bytes : use.memory_bytes;
        use.now_s = limits->now_s;
        use.trusted_names = limits->trusted_names;
    }
    run.steps_left = use.steps;
    run.output_limit = use.output_bytes;
    run.now_s = use.now_s;
    tpl_pool_init(&run.pool, "chat template", use.memory_bytes);
    (void)(convert_globals(&run, variables, use.trusted_names) && tpl_run_template(&run) &&
           finish(&run, &out, ret));
    tpl_pool_fini(&run.pool);
    return run.status;
}

static bool mentions(const struct tpl_node *node, const char *name)
{
    for (; node != NULL; node = node->next) {
        if (tpl_is_text(&node->value, name) || mentions(node->a, name) || mentions(node->b, name) ||
            mentions(node->c, name) || mentions(node->list, name) || mentions(node->body, name) ||
            mentions(node->orelse, name))
            return true;
    }
    return false;
}

bool template_mentions(const struct template *t, const char *name)
{
    return mentions(t->body, name);
}
