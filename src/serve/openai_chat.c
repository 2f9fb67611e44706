/* Conversations. See openai_chat.h. */
#include "serve/openai_chat.h"

#include "base/size.h"
#include "file/json.h"
#include "text/unicode.h"

#include <stdio.h>
#include <string.h>

enum {
    PATH_BYTES = 96,
    EFFORT_BYTES_MAX = 32,
    TOOL_CALLS_MAX = 1024, /* of one message */
    /* Tool arguments are JSON inside a string, which the limits of the body do not see. */
    ARGUMENT_BYTES_MAX = 1 << 18,
    ARGUMENTS_BYTES_MAX = 1 << 20, /* of all together */
    ARGUMENT_VALUES_MAX = 1 << 16,
};

struct chat_parse {
    const struct openai_limits *limits;
    struct openai_error *err;
    size_t argument_bytes; /* parsed so far */
    size_t n_bad_arguments;
};

static bool knows(const struct openai_limits *limits, const char *name)
{
    return limits->template_knows == NULL || limits->template_knows(limits->template_arg, name);
}

static enum ferry_status no_memory(struct openai_error *err)
{
    return openai_error_set(err, FERRY_ERR_NOMEM, "out of memory");
}

/* Takes value (NULL: out of memory) into object[name]. */
static enum ferry_status set(json_t *object, const char *name, json_t *value,
                             struct openai_error *err)
{
    if (value == NULL || json_object_set_new(object, name, value) != 0)
        return no_memory(err);
    return FERRY_OK;
}

/* ---- content ---- */

static enum ferry_status text_of_part(const struct fields *message, size_t index,
                                      const json_t *part, const char **ret_text)
{
    char path[PATH_BYTES];
    char name[32];
    const char *type = NULL;

    (void)snprintf(name, sizeof name, "content[%zu]", index);
    if (!json_is_object(part))
        return field_fail(message, name, FERRY_ERR_ARG, "must be an object with type and text");
    (void)snprintf(path, sizeof path, "%s%s.", message->path, name);
    struct fields fields = {part, path, message->err};
    enum ferry_status st = field_string(&fields, "type", &type);
    if (st != FERRY_OK)
        return st;
    if (type == NULL)
        return field_fail(&fields, "type", FERRY_ERR_ARG, "is missing");
    if (strcmp(type, "text") != 0)
        return field_fail(&fields, "type", FERRY_ERR_UNSUPPORTED,
                          "is not supported; this server takes parts of type \"text\" only");
    st = field_string(&fields, "text", ret_text);
    if (st == FERRY_OK && *ret_text == NULL)
        st = field_fail(&fields, "text", FERRY_ERR_ARG, "is missing");
    return st;
}

/* Parts become one string, with a line end between two. */
static enum ferry_status join_parts(const struct fields *message, const json_t *parts,
                                    json_t **ret_text)
{
    struct bytes joined = {0};
    enum ferry_status st = FERRY_OK;

    for (size_t i = 0; i < json_array_size(parts) && st == FERRY_OK; i++) {
        const char *text = NULL;
        st = text_of_part(message, i, json_array_get(parts, i), &text);
        if (st == FERRY_OK && ((i > 0 && !bytes_append(&joined, "\n", 1)) ||
                               !bytes_append(&joined, text, strlen(text))))
            st = no_memory(message->err);
    }
    if (st == FERRY_OK) {
        *ret_text = json_stringn(joined.data == NULL ? "" : joined.data, joined.size);
        if (*ret_text == NULL)
            st = no_memory(message->err);
    }
    bytes_fini(&joined);
    return st;
}

/* Afterwards content is a string, whatever it was. */
static enum ferry_status tidy_content(const struct fields *message, json_t *object,
                                      bool may_be_absent)
{
    json_t *content = field_get(message, "content");
    json_t *text = NULL;

    if (json_is_string(content))
        return FERRY_OK;
    if (content == NULL && may_be_absent)
        return set(object, "content", json_string(""), message->err);
    if (content == NULL)
        return field_fail(message, "content", FERRY_ERR_ARG, "is missing");
    if (!json_is_array(content))
        return field_fail(message, "content", FERRY_ERR_ARG,
                          "must be a string or an array of text parts");
    if (json_array_size(content) == 0 && !may_be_absent)
        return field_fail(message, "content", FERRY_ERR_ARG, "must not be an empty array");
    enum ferry_status st = join_parts(message, content, &text);
    return st != FERRY_OK ? st : set(object, "content", text, message->err);
}

/* ---- tool calls of the history ---- */

/* Clients send arguments as JSON in a string; templates want the object. What is no object stays
 * the string that it is: the model wrote it, and the conversation must go on. */
static enum ferry_status tidy_arguments(struct chat_parse *parse, const struct fields *fields,
                                        json_t *function)
{
    struct ferry_error cause = {0};
    json_t *value = field_get(fields, "arguments");
    json_t *parsed = NULL;

    if (json_is_object(value))
        return FERRY_OK;
    if (value == NULL)
        return set(function, "arguments", json_object(), parse->err);
    if (!json_is_string(value))
        return field_fail(fields, "arguments", FERRY_ERR_ARG,
                          "must be a string with JSON, or an object");
    size_t size = json_string_length(value);
    size_t left = ARGUMENTS_BYTES_MAX - parse->argument_bytes;
    if (size <= min_size(left, ARGUMENT_BYTES_MAX)) {
        parse->argument_bytes += size;
        enum ferry_status st = json_parse(&parsed, json_string_value(value), size,
                                          ARGUMENT_VALUES_MAX, "arguments", &cause);
        if (st == FERRY_ERR_NOMEM)
            return no_memory(parse->err);
    }
    if (json_is_object(parsed))
        return set(function, "arguments", parsed, parse->err);
    json_decref(parsed);
    parse->n_bad_arguments++;
    return FERRY_OK;
}

static enum ferry_status tidy_tool_call(struct chat_parse *parse, const struct fields *message,
                                        size_t index, const json_t *call)
{
    char path[PATH_BYTES];
    char inner_path[PATH_BYTES + 16];
    const char *type = NULL;
    const char *text = NULL;
    json_t *function = NULL;

    (void)snprintf(path, sizeof path, "%stool_calls[%zu].", message->path, index);
    (void)snprintf(inner_path, sizeof inner_path, "%sfunction.", path);
    struct fields fields = {call, path, parse->err};
    enum ferry_status st = field_string(&fields, "type", &type);
    if (st == FERRY_OK && type != NULL && strcmp(type, "function") != 0)
        st = field_fail(&fields, "type", FERRY_ERR_UNSUPPORTED, "must be \"function\"");
    if (st == FERRY_OK)
        st = field_string(&fields, "id", &text);
    if (st == FERRY_OK)
        st = field_object(&fields, "function", &function);
    if (st == FERRY_OK && function == NULL)
        st = field_fail(&fields, "function", FERRY_ERR_ARG, "is missing");
    if (st != FERRY_OK)
        return st;
    struct fields inner = {function, inner_path, parse->err};
    text = NULL;
    st = field_string(&inner, "name", &text);
    if (st == FERRY_OK && text == NULL)
        st = field_fail(&inner, "name", FERRY_ERR_ARG, "is missing");
    return st != FERRY_OK ? st : tidy_arguments(parse, &inner, function);
}

/* An empty list is no list: templates ask whether there is one. */
static enum ferry_status tidy_tool_calls(struct chat_parse *parse, const struct fields *message,
                                         json_t *object, bool allowed)
{
    json_t *calls = NULL;

    enum ferry_status st = field_array(message, "tool_calls", TOOL_CALLS_MAX, &calls);
    if (st != FERRY_OK || calls == NULL)
        return st;
    if (json_array_size(calls) == 0) {
        (void)json_object_del(object, "tool_calls");
        return FERRY_OK;
    }
    if (!allowed)
        return field_fail(message, "tool_calls", FERRY_ERR_ARG,
                          "is for messages of the assistant only");
    for (size_t i = 0; i < json_array_size(calls) && st == FERRY_OK; i++) {
        json_t *call = json_array_get(calls, i);
        if (!json_is_object(call)) {
            char name[40];
            (void)snprintf(name, sizeof name, "tool_calls[%zu]", i);
            return field_fail(message, name, FERRY_ERR_ARG, "must be an object");
        }
        st = tidy_tool_call(parse, message, i, call);
    }
    return st;
}

/* ---- messages ---- */

static void drop_nulls(json_t *object)
{
    const char *key;
    void *next;
    json_t *value;

    json_object_foreach_safe(object, next, key, value)
    {
        if (json_is_null(value))
            (void)json_object_del(object, key);
    }
}

static enum ferry_status tidy_role(struct chat_parse *parse, const struct fields *message,
                                   json_t *object, const char **ret_role)
{
    static const char *const ROLES[] = {"system",    "user", "assistant",
                                        "developer", "tool", "function"};
    const char *role = NULL;

    enum ferry_status st = field_string(message, "role", &role);
    if (st != FERRY_OK)
        return st;
    if (role == NULL)
        return field_fail(message, "role", FERRY_ERR_ARG, "is missing");
    size_t i = 0;
    while (i < sizeof ROLES / sizeof ROLES[0] && strcmp(role, ROLES[i]) != 0)
        i++;
    if (i == sizeof ROLES / sizeof ROLES[0])
        return field_fail(message, "role", FERRY_ERR_ARG,
                          "must be system, developer, user, assistant, tool or function");
    *ret_role = ROLES[i];
    if (strcmp(role, "developer") == 0 && !knows(parse->limits, "developer")) {
        *ret_role = "system";
        return set(object, "role", json_string("system"), parse->err);
    }
    return FERRY_OK;
}

static enum ferry_status tidy_message(struct chat_parse *parse, size_t index, json_t *object)
{
    static const char *const REFUSED[] = {"audio", "function_call", "images"};
    static const char *const STRINGS[] = {"name", "tool_call_id"};
    char path[PATH_BYTES];
    const char *role = NULL;

    (void)snprintf(path, sizeof path, "messages[%zu].", index);
    struct fields fields = {object, path, parse->err};
    drop_nulls(object);
    enum ferry_status st = tidy_role(parse, &fields, object, &role);
    if (st != FERRY_OK)
        return st;
    for (size_t i = 0; i < sizeof REFUSED / sizeof REFUSED[0]; i++) {
        if (field_get(&fields, REFUSED[i]) != NULL)
            return field_fail(&fields, REFUSED[i], FERRY_ERR_UNSUPPORTED, "is not supported");
    }
    for (size_t i = 0; i < sizeof STRINGS / sizeof STRINGS[0] && st == FERRY_OK; i++) {
        const char *text = NULL;
        st = field_string(&fields, STRINGS[i], &text);
    }
    bool assistant = strcmp(role, "assistant") == 0;
    if (st == FERRY_OK)
        st = tidy_tool_calls(parse, &fields, object, assistant);
    return st != FERRY_OK ? st : tidy_content(&fields, object, assistant);
}

static enum ferry_status tidy_messages(struct chat_parse *parse, const struct fields *fields,
                                       json_t **ret_messages)
{
    json_t *messages = NULL;

    enum ferry_status st = field_array(fields, "messages", OPENAI_MESSAGES_MAX, &messages);
    if (st != FERRY_OK)
        return st;
    if (messages == NULL)
        return field_fail(fields, "messages", FERRY_ERR_ARG, "is required");
    if (json_array_size(messages) == 0)
        return field_fail(fields, "messages", FERRY_ERR_ARG, "must not be empty");
    for (size_t i = 0; i < json_array_size(messages) && st == FERRY_OK; i++) {
        json_t *message = json_array_get(messages, i);
        if (!json_is_object(message)) {
            char name[40];
            (void)snprintf(name, sizeof name, "messages[%zu]", i);
            return field_fail(fields, name, FERRY_ERR_ARG, "must be an object");
        }
        st = tidy_message(parse, i, message);
    }
    *ret_messages = messages;
    return st;
}

/* ---- tools and other variables ---- */

static enum ferry_status check_tool(const struct fields *fields, size_t index, const json_t *tool)
{
    char path[PATH_BYTES];
    char inner_path[PATH_BYTES + 16];
    const char *text = NULL;
    json_t *object = NULL;

    (void)snprintf(path, sizeof path, "tools[%zu].", index);
    (void)snprintf(inner_path, sizeof inner_path, "%sfunction.", path);
    struct fields outer = {tool, path, fields->err};
    enum ferry_status st = field_string(&outer, "type", &text);
    if (st == FERRY_OK && (text == NULL || strcmp(text, "function") != 0))
        st = field_fail(&outer, "type", FERRY_ERR_UNSUPPORTED, "must be \"function\"");
    if (st == FERRY_OK)
        st = field_object(&outer, "function", &object);
    if (st == FERRY_OK && object == NULL)
        st = field_fail(&outer, "function", FERRY_ERR_ARG, "is missing");
    if (st != FERRY_OK)
        return st;
    struct fields inner = {object, inner_path, fields->err};
    text = NULL;
    st = field_string(&inner, "name", &text);
    if (st == FERRY_OK && (text == NULL || text[0] == 0))
        st = field_fail(&inner, "name", FERRY_ERR_ARG, "is missing");
    text = NULL;
    if (st == FERRY_OK)
        st = field_string(&inner, "description", &text);
    object = NULL;
    return st != FERRY_OK ? st : field_object(&inner, "parameters", &object);
}

/* *ret_wanted: whether the template should see the tools. */
static enum ferry_status check_tool_choice(const struct fields *fields, bool *ret_wanted)
{
    const json_t *choice = field_get(fields, "tool_choice");
    const char *text = json_string_value(choice);

    *ret_wanted = true;
    if (choice == NULL || (text != NULL && strcmp(text, "auto") == 0))
        return FERRY_OK;
    if (text == NULL || strcmp(text, "none") != 0)
        return field_fail(fields, "tool_choice", FERRY_ERR_UNSUPPORTED,
                          "can be \"auto\" or \"none\": this server cannot force a call");
    *ret_wanted = false;
    return FERRY_OK;
}

/* An array of objects that the template gets as it is. */
static enum ferry_status add_list(const struct fields *fields, const struct openai_limits *limits,
                                  const char *name, bool tools, json_t *variables)
{
    json_t *list = NULL;

    enum ferry_status st = field_array(fields, name, OPENAI_TOOLS_MAX, &list);
    if (st != FERRY_OK || list == NULL || json_array_size(list) == 0)
        return st;
    for (size_t i = 0; i < json_array_size(list) && st == FERRY_OK; i++) {
        const json_t *item = json_array_get(list, i);
        if (!json_is_object(item)) {
            char place[48];
            (void)snprintf(place, sizeof place, "%s[%zu]", name, i);
            return field_fail(fields, place, FERRY_ERR_ARG, "must be an object");
        }
        if (tools)
            st = check_tool(fields, i, item);
    }
    if (st == FERRY_OK && !knows(limits, name))
        st = field_fail(fields, name, FERRY_ERR_UNSUPPORTED,
                        "cannot be used: the chat template of this model has no place for it");
    return st != FERRY_OK ? st : set(variables, name, json_incref(list), fields->err);
}

static enum ferry_status add_effort(const struct fields *fields, const struct openai_limits *limits,
                                    struct openai_ignored *ignored, json_t *variables)
{
    static const char NAME[] = "reasoning_effort";
    const char *effort = NULL;

    enum ferry_status st = field_string(fields, NAME, &effort);
    if (st != FERRY_OK || effort == NULL)
        return st;
    if (effort[0] == 0 || strlen(effort) > EFFORT_BYTES_MAX)
        return field_fail(fields, NAME, FERRY_ERR_ARG, "must be a word, like \"low\"");
    if (!knows(limits, NAME))
        return openai_ignored_add(ignored, "", NAME, fields->err);
    return set(variables, NAME, json_string(effort), fields->err);
}

static enum ferry_status add_kwargs(const struct fields *fields, const struct openai_limits *limits,
                                    struct openai_ignored *ignored, json_t *variables)
{
    static const char *const RESERVED[] = {"messages", "tools", "documents",
                                           "add_generation_prompt", "continue_final_message"};
    static const char PATH[] = "chat_template_kwargs.";
    json_t *kwargs = NULL;
    const char *key;
    json_t *value;

    enum ferry_status st = field_object(fields, "chat_template_kwargs", &kwargs);
    if (st != FERRY_OK || kwargs == NULL)
        return st;
    struct fields inner = {kwargs, PATH, fields->err};
    json_object_foreach(kwargs, key, value)
    {
        for (size_t i = 0; i < sizeof RESERVED / sizeof RESERVED[0]; i++) {
            if (strcmp(key, RESERVED[i]) == 0)
                return field_fail(&inner, key, FERRY_ERR_ARG, "is a field of the request itself");
        }
        st = knows(limits, key) ? set(variables, key, json_incref(value), fields->err)
                                : openai_ignored_add(ignored, PATH, key, fields->err);
        if (st != FERRY_OK)
            return st;
    }
    return FERRY_OK;
}

enum ferry_status openai_chat_variables(const struct fields *fields,
                                        const struct openai_limits *limits,
                                        struct openai_ignored *ignored, json_t **ret_variables,
                                        size_t *ret_n_bad_arguments)
{
    struct chat_parse parse = {.limits = limits, .err = fields->err};
    json_t *variables = json_object();
    json_t *messages = NULL;
    bool generate = true;
    bool with_tools = false;
    bool go_on = false;

    enum ferry_status st = variables != NULL ? FERRY_OK : no_memory(fields->err);
    if (st == FERRY_OK)
        st = tidy_messages(&parse, fields, &messages);
    if (st == FERRY_OK)
        st = set(variables, "messages", json_incref(messages), fields->err);
    if (st == FERRY_OK)
        st = field_bool(fields, "add_generation_prompt", &generate);
    if (st == FERRY_OK)
        st = set(variables, "add_generation_prompt", json_boolean(generate), fields->err);
    if (st == FERRY_OK)
        st = field_bool(fields, "continue_final_message", &go_on);
    if (st == FERRY_OK && go_on)
        st = field_fail(fields, "continue_final_message", FERRY_ERR_UNSUPPORTED,
                        "is not supported; use /v1/completions with the rendered text");
    if (st == FERRY_OK)
        st = check_tool_choice(fields, &with_tools);
    if (st == FERRY_OK && with_tools)
        st = add_list(fields, limits, "tools", true, variables);
    if (st == FERRY_OK)
        st = add_list(fields, limits, "documents", false, variables);
    if (st == FERRY_OK)
        st = add_effort(fields, limits, ignored, variables);
    if (st == FERRY_OK)
        st = add_kwargs(fields, limits, ignored, variables);
    if (st != FERRY_OK) {
        json_decref(variables);
        return st;
    }
    *ret_variables = variables;
    *ret_n_bad_arguments = parse.n_bad_arguments;
    return FERRY_OK;
}
