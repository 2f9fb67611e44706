/* One answer of the API: parsed and tokenised by a worker, computed by the engine, sent through
 * HTTP.
 *
 * An answer belongs to its exchange: the exchange's `closed` frees it. Everybody who may still use
 * it is counted in the one rule of http.h: whoever ends the exchange (http_reply, http_stream_end)
 * does so as his last act. Lock order: server, answer, then scheduler or exchange. */
#include "serve/answer.h"

#include "base/alloc.h"
#include "base/assert.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/size.h"
#include "serve/openai_reply.h"
#include "serve/openai_request.h"
#include "serve/server_metrics.h"

#include <stdio.h>
#include <string.h>

enum {
    LARGE_BODY_BYTES = 256 << 10, /* some milliseconds of a worker's time, and more */
    /* A prompt up to so many times too long is encoded to its end, so that its client is told how
     * long it is; what is longer is given up there. */
    MEASURED_CONTEXTS = 8,
    TOKEN_BYTES = 16, /* more than any text has on average; text of one language has 3 to 5 */
    TEXT_BYTES_MIN = 1 << 20,
};

static const char JSON[] = "application/json", EVENTS[] = "text/event-stream";

/* One prompt and its choices. */
struct part {
    struct answer *answer;
    size_t first; /* its first choice among those of the answer */
    struct token_ids ids;
    struct request *request; /* NULL: not yet, or done */
};

struct answer {
    struct job job;
    struct server *server;
    struct http_exchange *x;
    enum openai_kind kind;
    struct answer *next, *previous; /* all of the server; its mutex */

    /* The worker's, then constant. */
    struct openai_request q; /* plain fields only, once its requests are made */
    struct openai_head head;
    char id[96];
    size_t n_choices;

    /* Guards the rest. */
    pthread_mutex_t mutex;
    struct part *parts; /* [n_parts] set once; all but `request` is the worker's, then constant */
    size_t n_parts;
    bool gone;     /* the client; nobody reads what is made */
    bool shutting; /* the server breaks off */
    bool failed;   /* `error` is the answer */
    bool held;
    uint64_t held_ns;
    size_t n_live; /* parts that the scheduler has */
    struct openai_error error;
    struct openai_usage usage;
    const char *finish;
    uint64_t first_token_ns;
    struct openai_choice *choices; /* [n_choices] whole answers */
    struct stream_state {
        bool begun;
        size_t text_offset;
    } * streams; /* [n_choices] streams */
    struct json_writer writer;
};

static void lock(struct answer *a)
{
    (void)pthread_mutex_lock(&a->mutex);
}

static void unlock(struct answer *a)
{
    (void)pthread_mutex_unlock(&a->mutex);
}

/* ---- the ways out; each is the caller's last use of the answer ---- */

static void reply_json(struct http_exchange *x, int status, const struct json_writer *w)
{
    if (w->failed)
        http_error(x, 503, "out_of_memory", NULL, "no memory for the answer");
    else
        http_reply(x, status, JSON, w->data, w->size);
}

static void reply_error(struct answer *a, const struct openai_error *error)
{
    struct json_writer w = {0};
    struct http_exchange *x = a->x;

    if (error->http == 429 || error->http == 503)
        (void)http_add_header(x, "Retry-After", error->http == 429 ? "1" : "5");
    openai_write_error(&w, error);
    server_metrics_refused(a->server->http_metrics, error);
    server_log_failure(a->server, http_id(x), error);
    http_log_word(x, "finish", "error");
    reply_json(x, error->http, &w);
    json_writer_fini(&w);
}

/* ---- events ---- */

/* Under the lock. */
static void cancel_parts(struct answer *a)
{
    for (size_t i = 0; i < a->n_parts; i++) {
        if (a->parts[i].request != NULL)
            request_cancel(a->parts[i].request);
    }
}

/* Under the lock. */
static void hold_parts(struct answer *a, bool hold)
{
    if (a->held == hold)
        return;
    a->held = hold;
    if (hold)
        a->held_ns = clock_now_ns();
    else
        server_metrics_paused(a->server->http_metrics, clock_now_ns() - a->held_ns);
    for (size_t i = 0; i < a->n_parts; i++) {
        if (a->parts[i].request != NULL)
            request_hold(a->parts[i].request, hold);
    }
}

/* Under the lock: the first failure is the answer; the other parts stop. */
static void break_off(struct answer *a, const struct ferry_error *cause)
{
    if (a->failed)
        return;
    a->failed = true;
    if (a->shutting)
        (void)openai_error_set(&a->error, FERRY_ERR_CANCELLED, "the server is shutting down");
    else
        (void)openai_error_from(&a->error, cause);
    cancel_parts(a);
}

/* Under the lock: what was written goes out. */
static void flush(struct answer *a)
{
    struct ferry_error err = {0};
    bool lost = a->writer.failed;
    enum ferry_status st =
        lost ? FERRY_OK : http_stream_write(a->x, a->writer.data, a->writer.size);

    json_writer_reset(&a->writer);
    if (lost) { /* a piece is missing: what follows would be another answer */
        (void)FERRY_FAIL(&err, FERRY_ERR_NOMEM, "no memory for the answer");
        break_off(a, &err);
    } else if (st == FERRY_AGAIN) {
        hold_parts(a, true);
    } else if (st != FERRY_OK) {
        cancel_parts(a);
    }
}

static void take_piece(struct answer *a, struct part *part, const struct request_event *event)
{
    size_t index = part->first + event->choice;
    const char *finish =
        event->kind == REQUEST_EVENT_FINISH ? openai_finish_name(event->finish) : NULL;

    if (finish != NULL)
        a->finish = finish;
    if (!a->q.stream) {
        struct openai_choice *c = &a->choices[index];
        if (!openai_choice_append(c, event->text, event->text_size, event->tokens,
                                  event->n_tokens)) {
            struct ferry_error err = {0};
            (void)FERRY_FAIL(&err, FERRY_ERR_NOMEM, "no memory for the answer");
            break_off(a, &err);
        }
        c->finish = finish;
        return;
    }
    struct openai_delta delta = {.index = index,
                                 .first = !a->streams[index].begun,
                                 .text = event->text,
                                 .text_size = event->text_size,
                                 .tokens = event->tokens,
                                 .n_tokens = event->n_tokens,
                                 .text_offset = &a->streams[index].text_offset,
                                 .finish = finish};
    if (event->text_size == 0 && event->n_tokens == 0 && finish == NULL)
        return;
    if (event->text_size == 0 && !a->q.logprobs && finish == NULL && a->streams[index].begun)
        return; /* a token without text of its own */
    a->streams[index].begun = true;
    openai_write_chunk(&a->writer, &a->head, &delta);
    flush(a);
}

static void take_usage(struct answer *a, struct part *part)
{
    const struct request_usage *u = request_usage(part->request);

    a->usage.prompt_tokens += u->prompt_tokens;
    a->usage.completion_tokens += u->completion_tokens;
    a->usage.cached_tokens += u->cached_tokens;
    if (a->first_token_ns == 0 || (u->first_token_ns > 0 && u->first_token_ns < a->first_token_ns))
        a->first_token_ns = u->first_token_ns;
}

static void note_usage(struct answer *a, uint64_t submit_ns)
{
    http_log_number(a->x, "prompt_tokens", a->usage.prompt_tokens);
    http_log_number(a->x, "cached_tokens", a->usage.cached_tokens);
    http_log_number(a->x, "completion_tokens", a->usage.completion_tokens);
    if (a->first_token_ns > submit_ns)
        http_log_number(a->x, "first_token_ms", (a->first_token_ns - submit_ns) / 1000000);
    http_log_word(a->x, "finish", a->failed ? "error" : a->finish != NULL ? a->finish : "none");
}

static void end_stream(struct answer *a)
{
    struct http_exchange *x = a->x;

    lock(a);
    if (a->failed) {
        openai_write_error_event(&a->writer, &a->error);
    } else {
        if (a->q.include_usage)
            openai_write_usage_chunk(&a->writer, &a->head, &a->usage);
        openai_write_done(&a->writer);
    }
    flush(a);
    bool complete = !a->failed;
    unlock(a);
    if (!complete) {
        server_metrics_refused(a->server->http_metrics, &a->error);
        server_log_failure(a->server, http_id(x), &a->error);
    }
    http_stream_end(x, complete);
}

/* A worker's job: long answers with log-probabilities are megabytes of JSON. */
static void run_reply(struct job *job)
{
    struct answer *a = (struct answer *)job; /* its first member */

    if (a->failed) {
        reply_error(a, &a->error);
        return;
    }
    openai_write_answer(&a->writer, &a->head, a->choices, a->n_choices, &a->usage);
    reply_json(a->x, 200, &a->writer);
}

/* On the engine's thread. */
static void on_event(void *arg, struct request *request, const struct request_event *event)
{
    struct part *part = arg;
    struct answer *a = part->answer;

    lock(a);
    if (event->kind != REQUEST_EVENT_DONE) {
        bool broken = event->kind == REQUEST_EVENT_FINISH &&
                      (event->finish == REQUEST_FINISH_ERROR ||
                       (event->finish == REQUEST_FINISH_CANCELLED && a->shutting));
        if (broken)
            break_off(a, event->error);
        else if (!a->failed && !a->gone)
            take_piece(a, part, event);
        unlock(a);
        return;
    }
    uint64_t submit_ns = request_usage(request)->submit_ns;
    take_usage(a, part);
    part->request = NULL;
    bool last = --a->n_live == 0;
    if (last)
        hold_parts(a, false);
    unlock(a);
    request_destroy(request);
    if (!last)
        return;
    note_usage(a, submit_ns);
    if (a->q.stream) {
        end_stream(a);
        return;
    }
    a->job.run = run_reply;
    (void)server_add_job(a->server, &a->job, JOB_REST);
}

/* ---- the client, on the I/O thread ---- */

static void on_gone(void *arg)
{
    struct answer *a = arg;

    server_metrics_client_left(a->server->http_metrics);
    lock(a);
    a->gone = true;
    cancel_parts(a);
    unlock(a);
}

static void on_drained(void *arg)
{
    struct answer *a = arg;

    lock(a);
    hold_parts(a, false);
    unlock(a);
}

static void on_closed(void *arg)
{
    struct answer *a = arg;
    struct server *s = a->server;

    (void)pthread_mutex_lock(&s->mutex);
    if (a->previous != NULL)
        a->previous->next = a->next;
    else
        s->answers = a->next;
    if (a->next != NULL)
        a->next->previous = a->previous;
    (void)pthread_mutex_unlock(&s->mutex);
    for (size_t i = 0; i < a->n_parts; i++) {
        FERRY_ASSERT(a->parts[i].request == NULL);
        token_ids_fini(&a->parts[i].ids);
    }
    for (size_t i = 0; a->choices != NULL && i < a->n_choices; i++)
        openai_choice_fini(&a->choices[i]);
    openai_request_fini(&a->q);
    json_writer_fini(&a->writer);
    (void)pthread_mutex_destroy(&a->mutex);
    mem_free(a->parts);
    mem_free(a->choices);
    mem_free(a->streams);
    mem_free(a);
    atomic_fetch_sub(&s->n_answers, 1);
}

void answer_cancel_all(struct server *server)
{
    (void)pthread_mutex_lock(&server->mutex);
    for (struct answer *a = server->answers; a != NULL; a = a->next) {
        lock(a);
        a->shutting = true;
        cancel_parts(a);
        unlock(a);
    }
    (void)pthread_mutex_unlock(&server->mutex);
}

/* ---- a worker's part ---- */

/* Whether the engine has a part in it. */
static bool completes(const struct answer *a)
{
    return a->kind == OPENAI_COMPLETION || a->kind == OPENAI_CHAT;
}

static bool template_knows(const void *arg, const char *name)
{
    return chat_mentions(arg, name);
}

static enum ferry_status parse(struct answer *a, struct openai_error *error)
{
    struct server *s = a->server;
    const char *names[] = {s->options.model_name};
    struct openai_limits limits = {.models = names,
                                   .n_models = 1,
                                   .n_vocab = s->n_valid,
                                   .has_bos = tokenizer_adds_bos(s->tokenizer),
                                   .strict_params = s->options.strict_params,
                                   .template_knows = s->chat != NULL ? template_knows : NULL,
                                   .template_arg = s->chat};
    size_t size;
    const char *body = http_body(a->x, &size);

    return openai_request_parse(a->kind, body, size, &limits, &a->q, error);
}

/* Bytes of the strings and keys in a value; it nests no deeper than a body may. */
static size_t text_bytes(json_t *value)
{
    const char *key;
    json_t *item;
    size_t i, n = json_string_length(value);

    json_object_foreach(value, key, item)
    {
        n += strlen(key) + text_bytes(item);
    }
    json_array_foreach(value, i, item)
    {
        n += text_bytes(item);
    }
    return n;
}

/* A template may walk over its text many times, and what comes out is measured only then: so text
 * that no context of this size can hold is not rendered. */
static enum ferry_status check_text_bytes(const struct answer *a, struct ferry_error *err)
{
    size_t context = engine_context(a->server->engine), most;
    size_t n = text_bytes(a->q.variables);

    if (!mul_size(context, MEASURED_CONTEXTS * TOKEN_BYTES, &most))
        most = SIZE_MAX;
    most = max_size(most, TEXT_BYTES_MIN);
    if (n <= most)
        return FERRY_OK;
    return FERRY_FAIL(err, FERRY_ERR_CONTEXT_FULL,
                      "the messages and tools have %zu bytes of text; with a context of %zu tokens "
                      "at most %zu are looked at; shorten them or raise --context",
                      n, context, most);
}

static enum ferry_status encode_text(struct answer *a, struct part *part, size_t i,
                                     struct ferry_error *err)
{
    const struct server *s = a->server;

    if (a->q.variables != NULL) {
        if (s->chat == NULL)
            return FERRY_FAIL(err, FERRY_ERR_ARG,
                              "this model has no chat template; use /v1/completions, or start the "
                              "server with --chat-template");
        return chat_encode(s->chat, a->q.variables, &part->ids, err);
    }
    const struct openai_prompt *p = &a->q.prompts[i];
    return tokenizer_encode(s->tokenizer, p->text, p->text_size, a->q.add_special_tokens, false,
                            &part->ids, err);
}

static enum ferry_status encode(struct answer *a, struct part *part, size_t i,
                                struct ferry_error *err)
{
    size_t context = engine_context(a->server->engine);

    if (a->q.variables == NULL && a->q.prompts[i].text == NULL) {
        struct openai_prompt *p = &a->q.prompts[i];
        part->ids = (struct token_ids){.ids = p->ids, .count = p->n_ids, .capacity = p->n_ids};
        p->ids = NULL;
        return FERRY_OK;
    }
    if (completes(a))
        part->ids.most = MEASURED_CONTEXTS * context;
    enum ferry_status st = a->q.variables != NULL ? check_text_bytes(a, err) : FERRY_OK;
    if (st != FERRY_OK)
        return st;
    st = encode_text(a, part, i, err);
    if (st == FERRY_ERR_CONTEXT_FULL)
        return FERRY_FAIL(err, st,
                          "the prompt has more than %zu tokens and the context is %zu; shorten it "
                          "or raise --context",
                          part->ids.most, context);
    return st;
}

/* Nobody waits any more: a worker has better to do. */
static bool is_gone(struct answer *a)
{
    lock(a);
    bool gone = a->gone;
    unlock(a);
    return gone;
}

static enum ferry_status left(struct ferry_error *err)
{
    return FERRY_FAIL(err, FERRY_ERR_CANCELLED, "the client left");
}

/* The ids of all prompts. */
static enum ferry_status encode_all(struct answer *a, struct ferry_error *err)
{
    enum ferry_status st = FERRY_OK;

    size_t n_parts = a->q.variables != NULL ? 1 : a->q.n_prompts;
    struct part *parts = mem_array(n_parts, sizeof *parts);
    if (parts == NULL)
        return FERRY_FAIL(err, FERRY_ERR_NOMEM, "no memory for the answer");
    lock(a); /* the client may leave at any time, and then they are looked through */
    a->parts = parts;
    a->n_parts = n_parts;
    unlock(a);
    for (size_t i = 0; i < n_parts && st == FERRY_OK; i++) {
        parts[i].answer = a;
        parts[i].first = i * a->q.n_choices;
        st = is_gone(a) ? left(err) : encode(a, &parts[i], i, err);
    }
    return st;
}

/* Everything that a completion needs beside its requests. */
static enum ferry_status prepare(struct answer *a, struct ferry_error *err)
{
    struct server *s = a->server;

    a->n_choices = a->n_parts * a->q.n_choices;
    if (a->q.stream)
        a->streams = mem_array(a->n_choices, sizeof *a->streams);
    else
        a->choices = mem_array(a->n_choices, sizeof *a->choices);
    if (a->streams == NULL && a->choices == NULL)
        return FERRY_FAIL(err, FERRY_ERR_NOMEM, "no memory for the answer");
    if (!a->q.has_seed)
        a->q.sampling.seed = sampler_draw_seed();
    (void)snprintf(a->id, sizeof a->id, "%s-%s", a->kind == OPENAI_CHAT ? "chatcmpl" : "cmpl",
                   http_id(a->x));
    a->head = (struct openai_head){.kind = a->kind,
                                   .id = a->id,
                                   .created = (int64_t)time(NULL),
                                   .model = s->options.model_name,
                                   .fingerprint = model_numerics(engine_model(s->engine)),
                                   .seed = a->q.sampling.seed,
                                   .include_usage = a->q.include_usage,
                                   .logprobs = a->q.logprobs,
                                   .n_top_logprobs = a->q.n_top_logprobs,
                                   .tokenizer = s->tokenizer};
    return FERRY_OK;
}

static enum ferry_status create_request(struct answer *a, struct part *part,
                                        struct ferry_error *err)
{
    struct server *s = a->server;
    struct request *request = NULL;
    struct request_options o = {.ids = part->ids.ids,
                                .n_ids = part->ids.count,
                                .max_tokens = a->q.max_tokens,
                                .n_choices = a->q.n_choices,
                                .sampling = a->q.sampling,
                                .stops = a->q.stops,
                                .n_stops = a->q.n_stops,
                                .ignore_eos = a->q.ignore_eos,
                                .logprobs = a->q.logprobs,
                                .n_top_logprobs = a->q.n_top_logprobs,
                                .on_event = on_event,
                                .arg = part};

    memcpy(o.cache_key, http_cache_key(a->x), sizeof o.cache_key);
    if (s->options.queue_seconds > 0)
        o.start_by_ns = clock_now_ns() + (uint64_t)(s->options.queue_seconds * 1e9);
    enum ferry_status st = request_create(&request, s->scheduler, &o, err);
    lock(a);
    part->request = request;
    unlock(a);
    return st;
}

/* Of part `from` and those behind it, which the scheduler does not have. Under the lock. */
static void destroy_requests(struct answer *a, size_t from)
{
    for (size_t i = from; i < a->n_parts; i++) {
        request_destroy(a->parts[i].request);
        a->parts[i].request = NULL;
    }
}

/* Puts a prompt in front of each of its choices, before the engine has any of them. A stream begins
 * with all of it at once: more than its buffer holds is refused. */
static enum ferry_status echo_text(struct answer *a, const struct part *part, const char *text,
                                   size_t size, struct ferry_error *err)
{
    size_t most = http_stream_room(a->x);
    bool good = true;

    for (size_t i = part->first; i < part->first + a->q.n_choices && good; i++) {
        if (!a->q.stream) {
            good = openai_choice_append(&a->choices[i], text, size, NULL, 0);
            continue;
        }
        struct openai_delta delta = {.index = i,
                                     .first = true,
                                     .text = text,
                                     .text_size = size,
                                     .text_offset = &a->streams[i].text_offset};
        a->streams[i].begun = true;
        openai_write_chunk(&a->writer, &a->head, &delta);
        good = !a->writer.failed;
        if (a->writer.size > most)
            return FERRY_FAIL(err, FERRY_ERR_LIMIT,
                              "echo would put more than %zu bytes in front of the answers, and a "
                              "stream cannot begin with more; ask for fewer prompts or answers, or "
                              "without stream",
                              most);
    }
    return good ? FERRY_OK : FERRY_FAIL(err, FERRY_ERR_NOMEM, "no memory for the answer");
}

/* A text is echoed as it was sent: its ids may have a begin-of-text token in front, and a tokenizer
 * may have normalised it. */
static enum ferry_status echo(struct answer *a, size_t i, struct ferry_error *err)
{
    const struct openai_prompt *p = &a->q.prompts[i];
    const struct part *part = &a->parts[i];
    char *text = NULL;
    size_t size = 0;

    if (p->text != NULL)
        return echo_text(a, part, p->text, p->text_size, err);
    enum ferry_status st = tokenizer_decode(a->server->tokenizer, part->ids.ids, part->ids.count,
                                            false, &text, &size, err);
    if (st == FERRY_OK)
        st = echo_text(a, part, text, size, err);
    mem_free(text);
    return st;
}

/* Under the lock. Hands the parts over in order until the queue is full (n_live tells how many);
 * those that were not handed over are destroyed. */
static enum ferry_status submit(struct answer *a, struct ferry_error *err)
{
    enum ferry_status st = FERRY_OK;

    if (a->shutting)
        st = FERRY_FAIL(err, FERRY_ERR_CANCELLED, "the server is shutting down");
    else if (a->gone)
        st = left(err);
    while (st == FERRY_OK && a->n_live < a->n_parts) {
        st = scheduler_submit(a->server->scheduler, a->parts[a->n_live].request, err);
        a->n_live += st == FERRY_OK;
    }
    destroy_requests(a, a->n_live);
    return st;
}

/* A completion. The last thing that the worker does with it. */
static void complete(struct answer *a)
{
    struct ferry_error err = {0};
    struct openai_error error;

    lock(a);
    enum ferry_status st = submit(a, &err);
    if (a->n_live > 0) {
        if (st != FERRY_OK) { /* some parts wait, others found the queue full */
            break_off(a, &err);
            a->q.stream = false; /* nothing was begun: it can still be a plain error */
        } else if (a->q.stream) {
            http_stream_begin(a->x, 200, EVENTS);
            if (a->writer.size > 0) /* echoes */
                flush(a);
        }
        unlock(a);
        return;
    }
    unlock(a);
    (void)openai_error_from(&error, &err);
    reply_error(a, &error);
}

static void reply_tokens(struct answer *a)
{
    struct json_writer w = {0};
    const struct server *s = a->server;

    openai_write_tokens(&w, a->parts[0].ids.ids, a->parts[0].ids.count, engine_context(s->engine),
                        a->q.return_token_strings ? s->tokenizer : NULL);
    token_ids_fini(&a->parts[0].ids); /* the reader may take its time */
    reply_json(a->x, 200, &w);
    json_writer_fini(&w);
}

static void reply_text(struct answer *a)
{
    struct json_writer w = {0};
    struct openai_error error;
    struct ferry_error err;
    char *text = NULL;
    size_t size = 0;

    if (tokenizer_decode(a->server->tokenizer, a->parts[0].ids.ids, a->parts[0].ids.count, false,
                         &text, &size, &err) != FERRY_OK) {
        (void)openai_error_from(&error, &err);
        reply_error(a, &error);
        return;
    }
    openai_write_prompt(&w, text, size);
    reply_json(a->x, 200, &w);
    json_writer_fini(&w);
    mem_free(text);
}

static enum ferry_status read_request(struct answer *a, struct openai_error *error)
{
    struct ferry_error err = {0};

    if (is_gone(a))
        return openai_error_set(error, FERRY_ERR_CANCELLED, "the client left");
    enum ferry_status st = parse(a, error);
    if (st != FERRY_OK)
        return st;
    if (a->q.n_bad_arguments > 0)
        http_log_number(a->x, "bad_arguments", a->q.n_bad_arguments);
    /* Nothing is ignored without a word. */
    if (a->q.ignored != NULL && !http_add_header(a->x, "X-Ignored-Params", a->q.ignored))
        return openai_error_set(error, FERRY_ERR_NOMEM, "no memory for the request");
    st = encode_all(a, &err);
    bool encoded = st == FERRY_OK;
    if (encoded && completes(a))
        st = prepare(a, &err);
    for (size_t i = 0; completes(a) && i < a->n_parts && st == FERRY_OK; i++)
        st = create_request(a, &a->parts[i], &err);
    for (size_t i = 0; a->q.echo && i < a->n_parts && st == FERRY_OK; i++)
        st = echo(a, i, &err);
    if (st != FERRY_OK)
        (void)openai_error_from(error, &err);
    if (st == FERRY_ERR_ARG && !encoded && a->q.variables != NULL) /* the template's own words */
        openai_error_param(error, "messages");
    return st;
}

/* The request has been read, and what will be looked at again has been copied. Its body and the
 * tree that was made of it are large beside the answer, which may take minutes. */
static void forget_request(struct answer *a)
{
    openai_request_forget(&a->q);
    http_drop_body(a->x);
    for (size_t i = 0; completes(a) && i < a->n_parts; i++)
        token_ids_fini(&a->parts[i].ids);
}

static void run_request(struct job *job)
{
    struct answer *a = (struct answer *)job; /* its first member */
    struct openai_error error = {0};
    enum ferry_status st = read_request(a, &error);

    forget_request(a);
    if (st != FERRY_OK) {
        lock(a);
        destroy_requests(a, 0);
        unlock(a);
        reply_error(a, &error);
    } else if (a->kind == OPENAI_TOKENIZE) {
        reply_tokens(a);
    } else if (a->kind == OPENAI_DETOKENIZE) {
        reply_text(a);
    } else {
        complete(a);
    }
}

/* ---- on the I/O thread ---- */

void answer_start(struct server *server, struct http_exchange *x, enum openai_kind kind)
{
    static const struct http_owner OWNER = {on_gone, on_drained, on_closed};
    struct answer *a = mem_zero(sizeof *a);

    if (a == NULL) {
        atomic_fetch_sub(&server->n_answers, 1);
        http_error(x, 503, "out_of_memory", NULL, "no memory for the request");
        return;
    }
    a->server = server;
    a->x = x;
    a->kind = kind;
    a->job.run = run_request;
    (void)pthread_mutex_init(&a->mutex, NULL);
    http_own(x, &OWNER, a);
    (void)pthread_mutex_lock(&server->mutex);
    a->next = server->answers;
    if (a->next != NULL)
        a->next->previous = a;
    server->answers = a;
    (void)pthread_mutex_unlock(&server->mutex);
    size_t body_size;
    (void)http_body(x, &body_size);
    if (server_add_job(server, &a->job, body_size > LARGE_BODY_BYTES ? JOB_LARGE : JOB_NEW))
        return;
    struct openai_error error = {0};
    (void)openai_error_set(&error, FERRY_AGAIN,
                           "too many requests wait to be read; try again later");
    error.http = 429;
    reply_error(a, &error);
}

static struct openai_model served(const struct server *server)
{
    return (struct openai_model){server->options.model_name, (int64_t)server->created,
                                 engine_context(server->engine)};
}

void answer_models(struct server *server, struct http_exchange *x)
{
    struct openai_model model = served(server);
    struct json_writer w = {0};

    openai_write_models(&w, &model, 1);
    reply_json(x, 200, &w);
    json_writer_fini(&w);
}

void answer_model(struct server *server, struct http_exchange *x, const char *name)
{
    struct openai_model model = served(server);
    struct json_writer w = {0};

    if (strcmp(name, model.name) != 0) {
        http_error(x, 404, "model_not_found", "model", "this server serves another model");
        return;
    }
    openai_write_model(&w, &model);
    reply_json(x, 200, &w);
    json_writer_fini(&w);
}
