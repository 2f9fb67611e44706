/* The table of fields. See openai_table.h. */
#include "serve/openai_table.h"

#include <string.h>

enum {
    C = 1 << OPENAI_CHAT,
    P = 1 << OPENAI_COMPLETION,
    T = 1 << OPENAI_TOKENIZE,
    D = 1 << OPENAI_DETOKENIZE,
    A = C | P, /* what makes an answer */
};

/* What becomes of a field. NONE_BUT_x: refused, unless the value is x, which asks for nothing. */
enum treatment {
    USED,
    STRING, /* no effect, but the type is checked */
    BOOLEAN,
    OBJECT,
    NONE,
    NONE_BUT_FALSE,
    NONE_BUT_TRUE,
    NONE_BUT_ZERO,
    NONE_BUT_ONE,
    NONE_BUT_EMPTY, /* string, array, object */
    NONE_BUT_TEXT,  /* {"type": "text"} or ["text"] */
};

struct row {
    const char *name;
    unsigned kinds;
    enum treatment treatment;
    const char *hint; /* NULL: there is nothing instead */
};

/* clang-format off */
static const struct row ROWS[] = {
    {"model", C | P | T | D, USED, NULL},
    {"messages", C | T, USED, NULL},
    {"prompt", P | T, USED, NULL},
    {"tokens", D, USED, NULL},
    {"max_tokens", A, USED, NULL},
    {"max_completion_tokens", A, USED, NULL},
    {"temperature", A, USED, NULL},
    {"top_p", A, USED, NULL},
    {"top_k", A, USED, NULL},
    {"min_p", A, USED, NULL},
    {"repetition_penalty", A, USED, NULL},
    {"presence_penalty", A, USED, NULL},
    {"frequency_penalty", A, USED, NULL},
    {"logit_bias", A, USED, NULL},
    {"seed", A, USED, NULL},
    {"n", A, USED, NULL},
    {"best_of", A, USED, NULL},
    {"stop", A, USED, NULL},
    {"ignore_eos", A, USED, NULL},
    {"stream", A, USED, NULL},
    {"stream_options", A, USED, NULL},
    {"logprobs", A, USED, NULL},
    {"top_logprobs", C, USED, NULL},
    {"echo", P, USED, NULL},
    {"add_special_tokens", P | T, USED, NULL},
    {"return_token_strs", T, USED, NULL},
    {"tools", C | T, USED, NULL},
    {"tool_choice", C | T, USED, NULL},
    {"documents", C | T, USED, NULL},
    {"reasoning_effort", C | T, USED, NULL},
    {"add_generation_prompt", C | T, USED, NULL},
    {"continue_final_message", C | T, USED, NULL},
    {"chat_template_kwargs", C | T, USED, NULL},

    {"user", A, STRING, NULL},
    {"safety_identifier", A, STRING, NULL},
    {"prompt_cache_key", A, STRING, NULL},
    {"service_tier", A, STRING, NULL},
    {"store", A, BOOLEAN, NULL},
    {"metadata", A, OBJECT, NULL},

    {"suffix", P, NONE_BUT_EMPTY, NULL},
    {"response_format", A, NONE_BUT_TEXT, "ask for the format in the prompt"},
    {"modalities", C, NONE_BUT_TEXT, NULL},
    {"audio", C, NONE, NULL},
    {"prediction", C, NONE, NULL},
    {"functions", C, NONE_BUT_EMPTY, "use tools"},
    {"function_call", C, NONE, "use tools and tool_choice"},
    {"web_search_options", C, NONE, NULL},
    {"input", A, NONE, "use messages or prompt"},
    {"prompt", C, NONE, "use messages, or /v1/completions"},
    {"messages", P, NONE, "use prompt, or /v1/chat/completions"},
    {"top_logprobs", P, NONE, "here logprobs is the number of alternatives"},
    {"echo", C, NONE_BUT_FALSE, NULL},
    {"prompt_embeds", A, NONE, NULL},
    {"chat_template", C | T, NONE, "the server's template is fixed when it starts"},
    {"add_special_tokens", C, NONE_BUT_FALSE, "the chat template writes them"},
    {"guided_json", A, NONE, NULL},
    {"guided_regex", A, NONE, NULL},
    {"guided_choice", A, NONE, NULL},
    {"guided_grammar", A, NONE, NULL},
    {"structured_outputs", A, NONE, NULL},
    {"grammar", A, NONE_BUT_EMPTY, NULL},
    {"json_schema", A, NONE, NULL},
    {"min_tokens", A, NONE_BUT_ZERO, NULL},
    {"stop_token_ids", A, NONE_BUT_EMPTY, "use stop with the token's text, or logit_bias"},
    {"bad_words", A, NONE_BUT_EMPTY, "use logit_bias with -100"},
    {"allowed_token_ids", A, NONE_BUT_EMPTY, "use logit_bias"},
    {"use_beam_search", A, NONE_BUT_FALSE, NULL},
    {"length_penalty", A, NONE_BUT_ONE, NULL},
    {"prompt_logprobs", A, NONE, NULL},
    {"truncate_prompt_tokens", A, NONE, "prompts are never cut"},
    {"truncation", A, NONE, "prompts are never cut"},
    {"include_stop_str_in_output", A, NONE_BUT_FALSE, NULL},
    {"skip_special_tokens", A, NONE_BUT_TRUE, NULL},
    {"return_tokens_as_token_ids", A, NONE_BUT_FALSE, NULL},
    {"return_token_ids", A, NONE_BUT_FALSE, NULL},
    {"n_predict", A, NONE, "use max_tokens"},
    {"max_new_tokens", A, NONE, "use max_tokens"},
    {"max_output_tokens", A, NONE, "use max_tokens"},
    {"n_probs", A, NONE_BUT_ZERO, "use logprobs"},
    {"repeat_penalty", A, NONE_BUT_ONE, "use repetition_penalty"},
    {"typical_p", A, NONE_BUT_ONE, NULL},
    {"tfs_z", A, NONE_BUT_ONE, NULL},
    {"mirostat", A, NONE_BUT_ZERO, NULL},
    {"dry_multiplier", A, NONE_BUT_ZERO, NULL},
    {"xtc_probability", A, NONE_BUT_ZERO, NULL},
    {"content", T, NONE, "use prompt or messages"},
    {"prompt", D, NONE, "use tokens"},
};
/* clang-format on */

static bool is_empty(const json_t *value)
{
    switch (json_typeof(value)) {
    case JSON_STRING:
        return json_string_length(value) == 0;
    case JSON_ARRAY:
        return json_array_size(value) == 0;
    case JSON_OBJECT:
        return json_object_size(value) == 0;
    default:
        return false;
    }
}

static bool is_text(const json_t *value)
{
    const json_t *word = json_is_array(value) && json_array_size(value) == 1
                             ? json_array_get(value, 0)
                             : json_object_get(value, "type");
    const char *text = json_string_value(word);
    return text != NULL && strcmp(text, "text") == 0;
}

/* Whether a value of a field that is not supported asks for nothing. */
static bool asks_nothing(enum treatment treatment, const json_t *value)
{
    switch (treatment) {
    case NONE_BUT_FALSE:
        return json_is_false(value);
    case NONE_BUT_TRUE:
        return json_is_true(value);
    case NONE_BUT_ZERO:
        return json_is_number(value) && json_number_value(value) == 0;
    case NONE_BUT_ONE:
        return json_is_number(value) && json_number_value(value) == 1;
    case NONE_BUT_EMPTY:
        return is_empty(value);
    case NONE_BUT_TEXT:
        return is_text(value);
    default:
        return false;
    }
}

static enum ferry_status check_row(const struct row *row, const struct fields *fields,
                                   const json_t *value)
{
    const char *text = NULL;
    json_t *object = NULL;
    bool flag = false;

    switch (row->treatment) {
    case USED:
        return FERRY_OK;
    case STRING:
        return field_string(fields, row->name, &text);
    case BOOLEAN:
        return field_bool(fields, row->name, &flag);
    case OBJECT:
        return field_object(fields, row->name, &object);
    default:
        if (json_is_null(value) || asks_nothing(row->treatment, value))
            return FERRY_OK;
        return field_fail(fields, row->name, FERRY_ERR_UNSUPPORTED, "is not supported%s%s%s",
                          row->treatment == NONE ? "" : " with this value",
                          row->hint == NULL ? "" : "; ", row->hint == NULL ? "" : row->hint);
    }
}

static const struct row *find_row(enum openai_kind kind, const char *name)
{
    for (size_t i = 0; i < sizeof ROWS / sizeof ROWS[0]; i++) {
        if ((ROWS[i].kinds >> kind & 1U) != 0 && strcmp(ROWS[i].name, name) == 0)
            return &ROWS[i];
    }
    return NULL;
}

enum ferry_status openai_table_check(enum openai_kind kind, const struct fields *fields,
                                     struct openai_ignored *ignored)
{
    /* jansson wants an object that it may change for a walk by iterator; it does not. */
    json_t *object = (json_t *)(uintptr_t)fields->object;
    const char *name;
    json_t *value;

    json_object_foreach(object, name, value)
    {
        const struct row *row = find_row(kind, name);
        enum ferry_status st = FERRY_OK;
        if (row != NULL)
            st = check_row(row, fields, value);
        else if (!json_is_null(value))
            st = openai_ignored_add(ignored, "", name, fields->err);
        if (st != FERRY_OK)
            return st;
    }
    return FERRY_OK;
}
