/* Any bytes as the body of a request, the first of them choosing its kind and what the server has:
 * what is taken keeps every promise of openai_request.h, what is refused has an error that can be
 * sent, and the bytes as an answer's text give JSON. */
#include "fuzz.h"

#include "base/assert.h"
#include "serve/openai_reply.h"
#include "text/unicode.h"

#include <jansson.h>
#include <string.h>

enum { N_VOCAB = 1000 };

static bool knows_nothing(const void *arg, const char *name)
{
    (void)arg;
    (void)name;
    return false;
}

/* Writer's JSON, which must be well formed; the caller owns it. */
static json_t *read_back(const struct json_writer *w, size_t skip, size_t cut)
{
    FERRY_ASSERT(!w->failed && w->size >= skip + cut);
    json_t *json = json_loadb(w->data + skip, w->size - skip - cut,
                              JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL | JSON_DECODE_ANY, NULL);
    FERRY_ASSERT(json != NULL);
    return json;
}

static void check_error(const struct openai_error *err)
{
    struct json_writer w = {0};

    FERRY_ASSERT(err->http == 400 || err->http == 404);
    FERRY_ASSERT(err->message[0] != 0 && strchr(err->message, '\n') == NULL);
    openai_write_error_event(&w, err);
    FERRY_ASSERT(memchr(w.data, '\n', w.size - 2) == NULL);
    json_decref(read_back(&w, 6, 2));
    json_writer_fini(&w);
}

static void check_prompts(const struct openai_request *r)
{
    for (size_t i = 0; i < r->n_prompts; i++) {
        const struct openai_prompt *p = &r->prompts[i];
        FERRY_ASSERT(p->text == NULL || (p->ids == NULL && strlen(p->text) == p->text_size));
        FERRY_ASSERT(p->text != NULL || p->n_ids > 0 || r->kind == OPENAI_DETOKENIZE);
        for (size_t j = 0; j < p->n_ids; j++)
            FERRY_ASSERT(p->ids[j] >= 0 && p->ids[j] < N_VOCAB);
    }
}

static void check_messages(const json_t *variables)
{
    const json_t *messages = json_object_get(variables, "messages");

    FERRY_ASSERT(json_array_size(messages) > 0);
    for (size_t i = 0; i < json_array_size(messages); i++) {
        const json_t *message = json_array_get(messages, i);
        const json_t *calls = json_object_get(message, "tool_calls");
        FERRY_ASSERT(json_is_string(json_object_get(message, "role")));
        FERRY_ASSERT(json_is_string(json_object_get(message, "content")));
        FERRY_ASSERT(calls == NULL || json_array_size(calls) > 0);
    }
    FERRY_ASSERT(json_is_boolean(json_object_get(variables, "add_generation_prompt")));
}

static void check_request(const struct openai_request *r)
{
    FERRY_ASSERT(r->model != NULL && strcmp(r->model, "m") == 0);
    FERRY_ASSERT((r->variables != NULL) != (r->n_prompts > 0));
    if (r->variables != NULL)
        check_messages(r->variables);
    check_prompts(r);
    FERRY_ASSERT(r->n_choices >= 1 && r->n_choices <= OPENAI_CHOICES_MAX);
    FERRY_ASSERT(r->n_prompts * r->n_choices <= OPENAI_ANSWERS_MAX);
    FERRY_ASSERT(r->n_top_logprobs <= OPENAI_TOP_LOGPROBS_MAX);
    FERRY_ASSERT(!r->include_usage || r->stream);
    FERRY_ASSERT(!r->echo || !r->logprobs);
    FERRY_ASSERT(r->max_tokens <= INT32_MAX && r->n_stops <= OPENAI_STOPS_MAX);
    for (size_t i = 0; i < r->n_stops; i++)
        FERRY_ASSERT(r->stops[i][0] != 0 && strlen(r->stops[i]) <= OPENAI_STOP_BYTES_MAX);
    for (const char *c = r->ignored; c != NULL && *c != 0; c++)
        FERRY_ASSERT(*c >= ' ' && *c < 0x7F);
}

/* Ranges of docs/api.md; the sampler takes all of them. */
static void check_sampling(const struct sampler_options *s)
{
    FERRY_ASSERT(s->temperature >= 0 && s->temperature <= 2);
    FERRY_ASSERT(s->top_p >= 0 && s->top_p <= 1 && s->min_p >= 0 && s->min_p <= 1);
    FERRY_ASSERT(s->repetition_penalty >= 0.01F && s->repetition_penalty <= 100);
    FERRY_ASSERT(s->presence_penalty >= -2 && s->presence_penalty <= 2);
    FERRY_ASSERT(s->frequency_penalty >= -2 && s->frequency_penalty <= 2);
    FERRY_ASSERT(s->n_biases <= OPENAI_BIASES_MAX);
    for (size_t i = 0; i < s->n_biases; i++) {
        FERRY_ASSERT(s->biases[i].id >= 0 && s->biases[i].id < N_VOCAB);
        FERRY_ASSERT(s->biases[i].bias >= -100 && s->biases[i].bias <= 100);
        FERRY_ASSERT(i == 0 || s->biases[i].id != s->biases[i - 1].id);
    }
}

/* The text of a chunk is the bytes, decoded as everybody does. */
static void check_text(const char *text, size_t size)
{
    const struct openai_head head = {.kind = OPENAI_COMPLETION, .id = "i", .fingerprint = "f"};
    const struct openai_delta delta = {.text = text, .text_size = size};
    struct json_writer w = {0};
    struct bytes lossy = {0};

    openai_write_chunk(&w, &head, &delta);
    FERRY_ASSERT(memchr(w.data, '\n', w.size - 2) == NULL);
    json_t *chunk = read_back(&w, 6, 2);
    const json_t *choice = json_array_get(json_object_get(chunk, "choices"), 0);
    const json_t *back = json_object_get(choice, "text");
    FERRY_ASSERT(utf8_append_lossy(&lossy, text, size));
    FERRY_ASSERT(json_string_length(back) == lossy.size);
    FERRY_ASSERT(lossy.size == 0 || memcmp(json_string_value(back), lossy.data, lossy.size) == 0);
    json_decref(chunk);
    json_writer_fini(&w);
    bytes_fini(&lossy);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char *const MODELS[] = {"m"};
    struct openai_request r = {0};
    struct openai_error err = {0};

    if (size == 0)
        return 0;
    unsigned choice = data[0];
    const struct openai_limits limits = {.models = MODELS,
                                         .n_models = 1,
                                         .n_vocab = N_VOCAB,
                                         .has_bos = (choice & 4) != 0,
                                         .strict_params = (choice & 8) != 0,
                                         .template_knows =
                                             (choice & 16) != 0 ? knows_nothing : NULL};
    const char *body = (const char *)data + 1;
    if (openai_request_parse((enum openai_kind)(choice & 3), body, size - 1, &limits, &r, &err) ==
        FERRY_OK) {
        check_request(&r);
        check_sampling(&r.sampling);
    } else {
        check_error(&err);
    }
    openai_request_fini(&r);
    check_text(body, size - 1);
    return 0;
}
