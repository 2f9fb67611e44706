/* Requests, choices, and their text. See request.h. */
#include "engine/request.h"

#include "base/alloc.h"
#include "base/assert.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/size.h"

#include <string.h>

/* Tokens that can wait behind a held byte; more are let go with it. */
enum { HELD_SLACK = 8 };

static enum ferry_status no_memory(struct ferry_error *err)
{
    return FERRY_FAIL(err, FERRY_ERR_NOMEM, "request: no memory for its answer");
}

enum ferry_status request_check(const struct request_options *o, const struct model_config *config,
                                size_t max_ids, size_t n_valid, struct ferry_error *err)
{
    if (o->n_choices < 1 || o->n_choices > REQUEST_CHOICES_MAX)
        return FERRY_FAIL(err, FERRY_ERR_ARG, "n %zu is not in 1..%d", o->n_choices,
                          REQUEST_CHOICES_MAX);
    if (o->n_top_logprobs > LOGPROBS_TOP_MAX)
        return FERRY_FAIL(err, FERRY_ERR_ARG, "top_logprobs %zu is not in 0..%d", o->n_top_logprobs,
                          LOGPROBS_TOP_MAX);
    if (o->n_ids == 0)
        return FERRY_FAIL(err, FERRY_ERR_ARG,
                          "the prompt is empty and this tokenizer adds no BOS; give it some text");
    if (o->n_ids > max_ids)
        return FERRY_FAIL(err, FERRY_ERR_CONTEXT_FULL,
                          "the prompt has %zu tokens and the context is %zu; shorten it or raise "
                          "--context",
                          o->n_ids, max_ids);
    if (o->n_answered >= o->n_ids)
        return FERRY_FAIL(err, FERRY_ERR_ARG, "%zu of %zu ids are an answer without a prompt",
                          o->n_answered, o->n_ids);
    for (size_t i = 0; i < o->n_ids; i++) {
        if (o->ids[i] < 0 || (size_t)o->ids[i] >= config->n_vocab)
            return FERRY_FAIL(err, FERRY_ERR_ARG, "token id %d at position %zu is not in 0..%zu",
                              o->ids[i], i, config->n_vocab - 1);
    }
    return sampler_options_check(&o->sampling, n_valid, err);
}

static enum ferry_status init_choice(struct choice *c, struct request *request, size_t index,
                                     const struct request_options *o, size_t max_tokens,
                                     struct ferry_error *err)
{
    size_t longest = 0;

    c->request = request;
    c->index = index;
    /* First, since it has the limits: what follows grows with the stop strings. */
    enum ferry_status st = text_stream_init(&c->text, o->stops, o->n_stops, err);
    if (st != FERRY_OK)
        return st;
    c->ids_max = o->n_ids + max_tokens;
    c->ids = mem_alloc(c->ids_max * sizeof *c->ids);
    for (size_t i = 0; i < o->n_stops; i++)
        longest = max_size(longest, strlen(o->stops[i]));
    c->held_max = min_size(longest + HELD_SLACK, max_tokens);
    c->held = mem_array(c->held_max, sizeof *c->held);
    c->held_starts = mem_array(c->held_max, sizeof *c->held_starts);
    if (o->logprobs)
        c->held_logprobs = mem_array(c->held_max, sizeof *c->held_logprobs);
    if (c->ids == NULL || c->held == NULL || c->held_starts == NULL ||
        (o->logprobs && c->held_logprobs == NULL))
        return no_memory(err);
    memcpy(c->ids, o->ids, o->n_ids * sizeof *c->ids);
    c->n_ids = o->n_ids;
    return FERRY_OK;
}

enum ferry_status request_init(struct request *r, const struct request_options *o, size_t max_ids,
                               struct ferry_error *err)
{
    /* A sequence may be full and still yield one more token, which nobody feeds. */
    size_t max_tokens = max_ids - o->n_ids + 1;
    enum ferry_status st = FERRY_OK;

    if (o->max_tokens > 0)
        max_tokens = min_size(max_tokens, o->max_tokens);
    r->options = *o;
    r->options.ids = NULL;
    r->options.stops = NULL;
    r->options.max_tokens = max_tokens;
    r->n_prompt = r->usage.prompt_tokens = o->n_ids - o->n_answered;
    r->n_choices = o->n_choices;
    r->usage.seed = o->sampling.seed;
    r->choices = mem_array(o->n_choices, sizeof *r->choices);
    if (r->choices == NULL)
        return no_memory(err);
    if (o->sampling.n_biases > 0) {
        size_t bytes = o->sampling.n_biases * sizeof *r->biases;
        r->biases = mem_alloc(bytes);
        if (r->biases == NULL)
            return no_memory(err);
        memcpy(r->biases, o->sampling.biases, bytes);
        r->options.sampling.biases = r->biases;
    }
    for (size_t i = 0; i < o->n_choices && st == FERRY_OK; i++)
        st = init_choice(&r->choices[i], r, i, o, max_tokens, err);
    return st;
}

void request_destroy(struct request *request)
{
    if (request == NULL)
        return;
    for (size_t i = 0; i < request->n_choices && request->choices != NULL; i++) {
        struct choice *c = &request->choices[i];
        FERRY_ASSERT(c->sequence == NULL);
        text_stream_fini(&c->text);
        mem_free(c->ids);
        mem_free(c->held);
        mem_free(c->held_logprobs);
        mem_free(c->held_starts);
    }
    mem_free(request->choices);
    mem_free(request->biases);
    mem_free(request);
}

const struct request_usage *request_usage(const struct request *request)
{
    return &request->usage;
}

/* Sends an event with this text and the first n of the held tokens, which are then forgotten. */
static void send(struct choice *c, struct request_event *event, size_t n)
{
    struct request *r = c->request;

    event->choice = c->index;
    event->tokens = c->held;
    event->n_tokens = n;
    for (size_t i = 0; i < n && c->held_logprobs != NULL; i++)
        c->held[i].logprobs = &c->held_logprobs[i];
    if (r->options.on_event != NULL)
        r->options.on_event(r->options.arg, r, event);
    c->n_held -= n;
    memmove(c->held, c->held + n, c->n_held * sizeof *c->held);
    memmove(c->held_starts, c->held_starts + n, c->n_held * sizeof *c->held_starts);
    if (c->held_logprobs != NULL)
        memmove(c->held_logprobs, c->held_logprobs + n, c->n_held * sizeof *c->held_logprobs);
}

/* Held tokens whose text has begun to be shown: all when the stream keeps nothing back. */
static size_t tokens_out(const struct choice *c)
{
    size_t n = 0;

    if (!text_stream_stopped(&c->text) && text_stream_held(&c->text) == 0)
        return c->n_held;
    while (n < c->n_held && c->held_starts[n] < c->given_bytes)
        n++;
    return n;
}

/* Whether these bytes continue the character whose beginning the stream keeps back. */
static bool continues(const struct text_stream *text, const char *piece, size_t n_bytes)
{
    char bytes[sizeof text->tail + 1];
    int32_t code;

    if (n_bytes == 0)
        return true;
    memcpy(bytes, text->tail, text->tail_size);
    bytes[text->tail_size] = piece[0];
    if (utf8_is_incomplete(bytes, text->tail_size + 1))
        return true;
    (void)utf8_decode(bytes, text->tail_size + 1, &code);
    return code >= 0;
}

/* Where the next piece begins in the text: at the character that its first byte belongs to. */
static size_t start_of(const struct choice *c, const char *piece, size_t n_bytes)
{
    enum { REPLACEMENT_BYTES = 3 }; /* of U+FFFD, which a cut character becomes */
    size_t start = c->given_bytes + text_stream_held(&c->text) - c->text.tail_size;

    if (c->text.tail_size > 0 && !continues(&c->text, piece, n_bytes))
        start += REPLACEMENT_BYTES;
    return start;
}

static void hold_token(struct choice *c, int32_t id, size_t start)
{
    if (c->n_held == c->held_max) { /* tokens without bytes: let the oldest go */
        struct request_event event = {.kind = REQUEST_EVENT_TOKEN, .text = ""};
        send(c, &event, 1);
    }
    c->held[c->n_held] = (struct request_token){.id = id};
    c->held_starts[c->n_held] = start;
    if (c->held_logprobs != NULL)
        c->held_logprobs[c->n_held] = c->sampled_logprobs;
    c->n_held++;
}

/* Passes the token's bytes through the text stream and shows what may be shown. */
static enum ferry_status show(struct choice *c, const struct tokenizer *tokenizer, int32_t id,
                              struct ferry_error *err)
{
    struct request_event event = {.kind = REQUEST_EVENT_TOKEN, .text = ""};
    const char *piece = "";
    size_t n_bytes = 0;

    if (tokenizer != NULL)
        piece = tokenizer_piece(tokenizer, id, true, &n_bytes);
    hold_token(c, id, start_of(c, piece, n_bytes));
    enum ferry_status st =
        text_stream_push(&c->text, piece, n_bytes, &event.text, &event.text_size, err);
    if (st != FERRY_OK)
        return st;
    c->given_bytes += event.text_size;
    size_t n = tokens_out(c);
    if (n > 0 || event.text_size > 0)
        send(c, &event, n);
    return FERRY_OK;
}

/* The token alone. */
static void tell(struct choice *c, int32_t id)
{
    struct request_event event = {.kind = REQUEST_EVENT_TOKEN, .text = ""};

    hold_token(c, id, 0);
    send(c, &event, c->n_held);
}

enum ferry_status choice_take(struct choice *choice, const struct tokenizer *tokenizer,
                              size_t max_ids, bool *ret_finished, enum request_finish *ret_finish,
                              struct ferry_error *err)
{
    struct request *r = choice->request;
    int32_t id = choice->sampled;

    FERRY_ASSERT(choice->n_ids < choice->ids_max);
    choice->ids[choice->n_ids++] = id;
    r->usage.completion_tokens++;
    *ret_finished = true;
    *ret_finish = REQUEST_FINISH_STOP;
    if (r->options.ids_only)
        tell(choice, id);
    if (tokenizer != NULL && tokenizer_is_eog(tokenizer, id) && !r->options.ignore_eos)
        return FERRY_OK;
    enum ferry_status st = r->options.ids_only ? FERRY_OK : show(choice, tokenizer, id, err);
    if (st != FERRY_OK || text_stream_stopped(&choice->text))
        return st;
    *ret_finish = REQUEST_FINISH_LENGTH;
    *ret_finished = choice->n_ids == choice->ids_max || choice->n_ids > max_ids;
    return FERRY_OK;
}

void choice_finish(struct choice *choice, enum request_finish finish,
                   const struct ferry_error *error)
{
    struct request *r = choice->request;
    struct request_event event = {.kind = REQUEST_EVENT_FINISH,
                                  .text = "",
                                  .finish = finish,
                                  .error = finish == REQUEST_FINISH_ERROR ? error : NULL};

    FERRY_ASSERT(choice->state != CHOICE_DONE && choice->sequence == NULL);
    choice->state = CHOICE_DONE;
    /* What was held back is part of the answer, unless a stop string ended it. */
    if (!text_stream_stopped(&choice->text) &&
        text_stream_finish(&choice->text, &event.text, &event.text_size, NULL) != FERRY_OK)
        event.text_size = 0; /* no memory for the U+FFFD of a cut character */
    send(choice, &event, text_stream_stopped(&choice->text) ? 0 : choice->n_held);
    if (++r->n_done < r->n_choices)
        return;
    r->usage.done_ns = clock_now_ns();
    if (r->options.on_event != NULL)
        r->options.on_event(r->options.arg, r,
                            &(struct request_event){.kind = REQUEST_EVENT_DONE, .text = ""});
}
