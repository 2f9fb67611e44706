/* OpenAI's answers. See openai_reply.h. */
#include "serve/openai_reply.h"

#include "base/alloc.h"
#include "base/size.h"
#include "serve/openai_logprobs.h"

#include <string.h>

enum { LOGPROBS_FIRST = 64 };

/* ---- what all objects share ---- */

static void put_member(struct json_writer *w, const char *name_and_colon, const char *value)
{
    json_put_text(w, name_and_colon);
    json_put_string0(w, value);
}

/* Up to the opening bracket of choices. */
static void put_head(struct json_writer *w, const struct openai_head *head, bool chunk)
{
    put_member(w, "{\"id\":", head->id);
    json_put_text(w, head->kind == OPENAI_COMPLETION ? ",\"object\":\"text_completion\""
                     : chunk                         ? ",\"object\":\"chat.completion.chunk\""
                                                     : ",\"object\":\"chat.completion\"");
    json_put_text(w, ",\"created\":");
    json_put_int(w, head->created);
    put_member(w, ",\"model\":", head->model);
    put_member(w, ",\"system_fingerprint\":", head->fingerprint);
    json_put_text(w, ",\"seed\":");
    json_put_int(w, (int64_t)head->seed);
    json_put_text(w, ",\"choices\":[");
}

static void put_usage(struct json_writer *w, const struct openai_usage *usage)
{
    json_put_text(w, "{\"prompt_tokens\":");
    json_put_uint(w, usage->prompt_tokens);
    json_put_text(w, ",\"completion_tokens\":");
    json_put_uint(w, usage->completion_tokens);
    json_put_text(w, ",\"total_tokens\":");
    json_put_uint(w, usage->prompt_tokens + usage->completion_tokens);
    json_put_text(w, ",\"prompt_tokens_details\":{\"cached_tokens\":");
    json_put_uint(w, usage->cached_tokens);
    json_put_text(w, "}}");
}

/* Behind the text of a choice, up to its closing brace. */
static void put_choice_end(struct json_writer *w, const struct openai_head *head,
                           const struct openai_tokens *tokens, size_t *text_offset,
                           const char *finish)
{
    json_put_text(w, ",\"logprobs\":");
    if (tokens == NULL)
        json_put_text(w, "null");
    else if (head->kind == OPENAI_COMPLETION)
        openai_write_completion_logprobs(w, head->tokenizer, tokens, head->n_top_logprobs,
                                         text_offset);
    else
        openai_write_chat_logprobs(w, head->tokenizer, tokens, head->n_top_logprobs);
    put_member(w, ",\"finish_reason\":", finish);
    json_put_text(w, "}");
}

static void put_index(struct json_writer *w, size_t index)
{
    json_put_text(w, "{\"index\":");
    json_put_uint(w, index);
}

/* ---- streams ---- */

static void put_delta(struct json_writer *w, const struct openai_delta *delta)
{
    bool content = delta->text_size > 0 || delta->finish == NULL || delta->first;

    json_put_text(w, ",\"delta\":{");
    if (delta->first) /* always with content */
        json_put_text(w, "\"role\":\"assistant\",");
    if (content) {
        json_put_text(w, "\"content\":");
        json_put_string(w, delta->text, delta->text_size);
    }
    json_put_text(w, "}");
}

void openai_write_chunk(struct json_writer *w, const struct openai_head *head,
                        const struct openai_delta *delta)
{
    const struct openai_tokens tokens = {.tokens = delta->tokens, .n = delta->n_tokens};
    size_t nowhere = 0;

    json_put_text(w, "data: ");
    put_head(w, head, true);
    put_index(w, delta->index);
    if (head->kind == OPENAI_COMPLETION) {
        json_put_text(w, ",\"text\":");
        json_put_string(w, delta->text, delta->text_size);
    } else {
        put_delta(w, delta);
    }
    put_choice_end(w, head, head->logprobs && delta->n_tokens > 0 ? &tokens : NULL,
                   delta->text_offset != NULL ? delta->text_offset : &nowhere, delta->finish);
    json_put_text(w, head->include_usage ? "],\"usage\":null}\n\n" : "]}\n\n");
}

void openai_write_usage_chunk(struct json_writer *w, const struct openai_head *head,
                              const struct openai_usage *usage)
{
    json_put_text(w, "data: ");
    put_head(w, head, true);
    json_put_text(w, "],\"usage\":");
    put_usage(w, usage);
    json_put_text(w, "}\n\n");
}

void openai_write_error_event(struct json_writer *w, const struct openai_error *error)
{
    json_put_text(w, "data: ");
    openai_write_error(w, error);
    json_put_text(w, "\n\n");
}

void openai_write_done(struct json_writer *w)
{
    json_put_text(w, "data: [DONE]\n\n");
}

const char *openai_finish_name(enum request_finish finish)
{
    switch (finish) {
    case REQUEST_FINISH_STOP:
        return "stop";
    case REQUEST_FINISH_LENGTH:
        return "length";
    case REQUEST_FINISH_CANCELLED:
        return "abort";
    case REQUEST_FINISH_ERROR:
        break;
    }
    return "error";
}

/* ---- whole answers ---- */

static bool reserve_logprobs(struct openai_choice *choice, size_t n)
{
    size_t wanted;
    size_t size;

    if (!add_size(choice->n_logprobs, n, &wanted))
        return false;
    if (wanted <= choice->logprobs_max)
        return true;
    wanted = max_size(wanted, max_size(2 * choice->logprobs_max, LOGPROBS_FIRST));
    if (!mul_size(wanted, sizeof *choice->logprobs, &size))
        return false;
    struct logprobs *grown =
        mem_resize(choice->logprobs, choice->n_logprobs * sizeof *choice->logprobs, size);
    if (grown == NULL)
        return false;
    choice->logprobs = grown;
    choice->logprobs_max = wanted;
    return true;
}

bool openai_choice_append(struct openai_choice *choice, const char *text, size_t text_size,
                          const struct request_token *tokens, size_t n_tokens)
{
    json_put_raw(&choice->text, text, text_size);
    for (size_t i = 0; i < n_tokens; i++) {
        if (tokens[i].logprobs == NULL)
            continue;
        if (!reserve_logprobs(choice, 1))
            return false;
        choice->logprobs[choice->n_logprobs++] = *tokens[i].logprobs;
    }
    return !choice->text.failed;
}

void openai_choice_fini(struct openai_choice *choice)
{
    json_writer_fini(&choice->text);
    mem_free(choice->logprobs);
    *choice = (struct openai_choice){0};
}

static void put_choice(struct json_writer *w, const struct openai_head *head, size_t index,
                       const struct openai_choice *choice)
{
    const struct openai_tokens tokens = {.logprobs = choice->logprobs, .n = choice->n_logprobs};
    size_t text_offset = 0;

    put_index(w, index);
    json_put_text(w, head->kind == OPENAI_COMPLETION
                         ? ",\"text\":"
                         : ",\"message\":{\"role\":\"assistant\",\"content\":");
    json_put_string(w, choice->text.data, choice->text.size);
    if (head->kind != OPENAI_COMPLETION)
        json_put_text(w, ",\"refusal\":null}");
    put_choice_end(w, head, head->logprobs ? &tokens : NULL, &text_offset, choice->finish);
}

void openai_write_answer(struct json_writer *w, const struct openai_head *head,
                         const struct openai_choice *choices, size_t n_choices,
                         const struct openai_usage *usage)
{
    put_head(w, head, false);
    for (size_t i = 0; i < n_choices; i++) {
        if (i > 0)
            json_put_text(w, ",");
        put_choice(w, head, i, &choices[i]);
    }
    json_put_text(w, "],\"usage\":");
    put_usage(w, usage);
    json_put_text(w, "}");
}

/* ---- the rest ---- */

void openai_write_error(struct json_writer *w, const struct openai_error *error)
{
    put_member(w, "{\"error\":{\"message\":", error->message);
    put_member(w, ",\"type\":", error->type);
    put_member(w, ",\"param\":", error->param[0] != 0 ? error->param : NULL);
    put_member(w, ",\"code\":", error->code);
    json_put_text(w, "}}");
}

void openai_write_model(struct json_writer *w, const struct openai_model *model)
{
    put_member(w, "{\"id\":", model->name);
    json_put_text(w, ",\"object\":\"model\",\"created\":");
    json_put_int(w, model->created);
    json_put_text(w, ",\"owned_by\":\"ferry\",\"max_model_len\":");
    json_put_uint(w, model->max_model_len);
    json_put_text(w, "}");
}

void openai_write_models(struct json_writer *w, const struct openai_model *models, size_t n)
{
    json_put_text(w, "{\"object\":\"list\",\"data\":[");
    for (size_t i = 0; i < n; i++) {
        if (i > 0)
            json_put_text(w, ",");
        openai_write_model(w, &models[i]);
    }
    json_put_text(w, "]}");
}

void openai_write_tokens(struct json_writer *w, const int32_t *ids, size_t n, size_t max_model_len,
                         const struct tokenizer *tokenizer)
{
    json_put_text(w, "{\"count\":");
    json_put_uint(w, n);
    json_put_text(w, ",\"max_model_len\":");
    json_put_uint(w, max_model_len);
    json_put_text(w, ",\"tokens\":[");
    for (size_t i = 0; i < n; i++) {
        if (i > 0)
            json_put_text(w, ",");
        json_put_int(w, ids[i]);
    }
    json_put_text(w, tokenizer == NULL ? "],\"token_strs\":null}" : "],\"token_strs\":[");
    for (size_t i = 0; i < n && tokenizer != NULL; i++) {
        if (i > 0)
            json_put_text(w, ",");
        openai_write_token_text(w, tokenizer, ids[i]);
    }
    if (tokenizer != NULL)
        json_put_text(w, "]}");
}

void openai_write_prompt(struct json_writer *w, const char *text, size_t size)
{
    json_put_text(w, "{\"prompt\":");
    json_put_string(w, text, size);
    json_put_text(w, "}");
}
