/* From a body to a request: the model's name, prompts, and everything else by its own file. See
 * openai_request.h. */
#include "serve/openai_request.h"

#include "base/alloc.h"
#include "base/size.h"
#include "serve/openai_body.h"
#include "serve/openai_chat.h"
#include "serve/openai_fields.h"
#include "serve/openai_ignored.h"
#include "serve/openai_settings.h"
#include "serve/openai_table.h"

#include <stdio.h>
#include <string.h>

static enum ferry_status no_memory(const struct fields *f)
{
    return openai_error_set(f->err, FERRY_ERR_NOMEM, "out of memory");
}

/* ---- model ---- */

static enum ferry_status parse_model(const struct fields *f, const struct openai_limits *limits,
                                     struct openai_request *r)
{
    const char *model = NULL;

    enum ferry_status st = field_string(f, "model", &model);
    if (st != FERRY_OK)
        return st;
    r->model = model;
    for (size_t i = 0; i < limits->n_models && model != NULL; i++) {
        if (strcmp(model, limits->models[i]) == 0)
            return FERRY_OK;
    }
    if (model != NULL && limits->n_models > 0) {
        (void)openai_error_set(f->err, FERRY_ERR_NOT_FOUND,
                               "there is no such model here; this server has \"%s\" "
                               "(GET /v1/models lists all)",
                               limits->models[0]);
        openai_error_param(f->err, "model");
        return FERRY_ERR_NOT_FOUND;
    }
    return FERRY_OK;
}

/* The served name lives with the server, whose life may be shorter: a copy inside the body. */
static enum ferry_status default_model(const struct fields *f, const struct openai_limits *limits,
                                       struct openai_request *r)
{
    if (r->model != NULL)
        return FERRY_OK;
    json_t *name = json_string(limits->n_models > 0 ? limits->models[0] : "");
    if (name == NULL || json_object_set_new(r->json, "model", name) != 0)
        return no_memory(f);
    r->model = json_string_value(name);
    return FERRY_OK;
}

/* ---- prompts ---- */

static enum ferry_status add_text(const struct fields *f, const char *name, const json_t *value,
                                  bool may_be_empty, struct openai_request *r)
{
    struct openai_prompt *prompt = &r->prompts[r->n_prompts];

    prompt->text = json_string_value(value);
    prompt->text_size = json_string_length(value);
    if (prompt->text_size == 0 && !may_be_empty)
        return field_fail(f, name, FERRY_ERR_ARG,
                          "must not be empty: this model's tokenizer puts nothing in front of it");
    r->n_prompts++;
    return FERRY_OK;
}

static enum ferry_status add_ids(const struct fields *f, const char *name, const json_t *value,
                                 const struct openai_limits *limits, bool may_be_empty,
                                 struct openai_request *r)
{
    struct openai_prompt *prompt = &r->prompts[r->n_prompts];

    if (json_array_size(value) == 0 && !may_be_empty)
        return field_fail(f, name, FERRY_ERR_ARG, "must not be empty");
    enum ferry_status st = field_ids(f, name, value, limits->n_vocab, &prompt->ids, &prompt->n_ids);
    r->n_prompts += st == FERRY_OK;
    return st;
}

/* Several prompts: strings and arrays of ids, mixed as one likes. */
static enum ferry_status parse_batch(const struct fields *f, const json_t *batch,
                                     const struct openai_limits *limits, bool may_be_empty,
                                     struct openai_request *r)
{
    enum ferry_status st = FERRY_OK;

    for (size_t i = 0; i < json_array_size(batch) && st == FERRY_OK; i++) {
        const json_t *value = json_array_get(batch, i);
        char name[32];
        (void)snprintf(name, sizeof name, "prompt[%zu]", i);
        if (json_is_string(value))
            st = add_text(f, name, value, may_be_empty, r);
        else if (json_is_array(value))
            st = add_ids(f, name, value, limits, false, r);
        else
            st = field_fail(f, name, FERRY_ERR_ARG, "must be a string or an array of token ids");
    }
    return st;
}

static enum ferry_status parse_prompt(const struct fields *f, const struct openai_limits *limits,
                                      struct openai_request *r)
{
    const json_t *value = field_get(f, "prompt");
    bool tokenize = r->kind == OPENAI_TOKENIZE;
    bool may_be_empty = tokenize || (limits->has_bos && r->add_special_tokens);
    size_t max = tokenize ? 1 : OPENAI_PROMPTS_MAX;

    if (value == NULL)
        return field_fail(f, "prompt", FERRY_ERR_ARG,
                          tokenize ? "or messages is required" : "is required");
    if (tokenize && !json_is_string(value))
        return field_fail(f, "prompt", FERRY_ERR_ARG, "must be a string");
    if (!json_is_string(value) && !json_is_array(value))
        return field_fail(f, "prompt", FERRY_ERR_ARG,
                          "must be a string, an array of token ids, or an array of prompts");
    const json_t *first = json_array_get(value, 0);
    bool batch = json_is_string(first) || json_is_array(first);
    size_t n = batch ? json_array_size(value) : 1;
    if (n > max || n * r->n_choices > OPENAI_ANSWERS_MAX)
        return field_fail(f, "prompt", FERRY_ERR_LIMIT,
                          "has %zu prompts with n %zu; the most are %zu prompts and %d answers; "
                          "send several requests",
                          n, r->n_choices, max, (int)OPENAI_ANSWERS_MAX);
    r->prompts = mem_array(n, sizeof *r->prompts);
    if (r->prompts == NULL)
        return no_memory(f);
    if (json_is_string(value))
        return add_text(f, "prompt", value, may_be_empty, r);
    return batch ? parse_batch(f, value, limits, may_be_empty, r)
                 : add_ids(f, "prompt", value, limits, false, r);
}

/* ---- the four kinds ---- */

static enum ferry_status parse_tokenize(const struct fields *f, const struct openai_limits *limits,
                                        struct openai_ignored *ignored, struct openai_request *r)
{
    bool chat = field_get(f, "messages") != NULL;

    r->add_special_tokens = !chat;
    enum ferry_status st = field_bool(f, "add_special_tokens", &r->add_special_tokens);
    if (st == FERRY_OK)
        st = field_bool(f, "return_token_strs", &r->return_token_strings);
    if (st != FERRY_OK)
        return st;
    if (!chat)
        return parse_prompt(f, limits, r);
    if (field_get(f, "prompt") != NULL)
        return field_fail(f, "prompt", FERRY_ERR_ARG, "cannot go with messages; send one of them");
    if (r->add_special_tokens)
        return field_fail(f, "add_special_tokens", FERRY_ERR_UNSUPPORTED,
                          "cannot go with messages: the chat template writes them");
    return openai_chat_variables(f, limits, ignored, &r->variables, &r->n_bad_arguments);
}

static enum ferry_status parse_detokenize(const struct fields *f,
                                          const struct openai_limits *limits,
                                          struct openai_request *r)
{
    json_t *tokens = NULL;

    enum ferry_status st = field_array(f, "tokens", OPENAI_VALUES_MAX, &tokens);
    if (st != FERRY_OK)
        return st;
    if (tokens == NULL)
        return field_fail(f, "tokens", FERRY_ERR_ARG, "is required");
    r->prompts = mem_array(1, sizeof *r->prompts);
    return r->prompts == NULL ? no_memory(f) : add_ids(f, "tokens", tokens, limits, true, r);
}

static enum ferry_status parse_kind(const struct fields *f, const struct openai_limits *limits,
                                    struct openai_ignored *ignored, struct openai_request *r)
{
    enum ferry_status st = FERRY_OK;

    switch (r->kind) {
    case OPENAI_CHAT:
        st = openai_settings_parse(f, limits, r);
        if (st == FERRY_OK)
            st = openai_chat_variables(f, limits, ignored, &r->variables, &r->n_bad_arguments);
        return st;
    case OPENAI_COMPLETION:
        r->add_special_tokens = true;
        st = openai_settings_parse(f, limits, r);
        if (st == FERRY_OK)
            st = field_bool(f, "add_special_tokens", &r->add_special_tokens);
        return st != FERRY_OK ? st : parse_prompt(f, limits, r);
    case OPENAI_TOKENIZE:
        return parse_tokenize(f, limits, ignored, r);
    case OPENAI_DETOKENIZE:
        return parse_detokenize(f, limits, r);
    }
    return openai_error_set(f->err, FERRY_ERR_INTERNAL, "no such kind of request");
}

enum ferry_status openai_request_parse(enum openai_kind kind, const void *body, size_t size,
                                       const struct openai_limits *limits,
                                       struct openai_request *ret, struct openai_error *err)
{
    struct openai_request r = {.kind = kind, .sampling = SAMPLER_OPTIONS_INIT, .n_choices = 1};
    struct openai_ignored ignored = {.strict = limits->strict_params};

    enum ferry_status st = openai_body_parse(&r.json, body, size, OPENAI_VALUES_MAX, err);
    struct fields fields = {r.json, "", err};
    if (st == FERRY_OK)
        st = parse_model(&fields, limits, &r);
    if (st == FERRY_OK)
        st = openai_table_check(kind, &fields, &ignored);
    if (st == FERRY_OK)
        st = parse_kind(&fields, limits, &ignored, &r);
    if (st == FERRY_OK)
        st = default_model(&fields, limits, &r);
    if (st == FERRY_OK)
        st = openai_ignored_take(&ignored, &r.ignored, err);
    openai_ignored_fini(&ignored);
    if (st != FERRY_OK) {
        openai_request_fini(&r);
        return st;
    }
    *ret = r;
    return FERRY_OK;
}

void openai_request_forget(struct openai_request *request)
{
    struct openai_request *r = request;

    for (size_t i = 0; i < r->n_prompts && r->prompts != NULL; i++)
        mem_free(r->prompts[i].ids);
    mem_free(r->prompts);
    mem_free(r->stops);
    mem_free(r->biases);
    mem_free(r->ignored);
    json_decref(r->variables);
    json_decref(r->json);
    r->model = r->ignored = NULL;
    r->prompts = NULL;
    r->stops = NULL;
    r->biases = NULL;
    r->sampling.biases = NULL;
    r->sampling.n_biases = r->n_prompts = r->n_stops = 0;
    r->variables = r->json = NULL;
}

void openai_request_fini(struct openai_request *request)
{
    openai_request_forget(request);
    *request = (struct openai_request){0};
}
