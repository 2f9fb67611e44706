/* Requests over a tiny model. See served.h. */
#include "tests/unit/engine/served.h"

#include "tests/support/tiny.h"
#include "tests/unit/text/small.h"

#include <stdlib.h>
#include <string.h>

static const char *const MERGES[] = {"a b", "\xC4\xA0 a", "\xC3\x83 \xC2\xA9", NULL};
static const struct small SMALL = {.pre_tokenizer = BYTE_LEVEL,
                                   .decoder = BYTE_LEVEL_DECODER,
                                   .merges = MERGES, /* 256..258 */
                                   .added =
                                       "{\"id\":259,\"content\":\"<|im_start|>\",\"special\":true},"
                                       "{\"id\":260,\"content\":\"<|im_end|>\",\"special\":true}"};

static char folder[200];
static struct tokenizer *tokenizer;
static struct served alone; /* what asked_alone uses */

int served_setup(void **state)
{
    struct tiny_options tiny = tiny_defaults("qwen3_moe");

    (void)state;
    tiny.hidden = 24;
    tiny.n_heads = 2;
    tiny.n_kv_heads = 1;
    tiny.head_dim = 8;
    tiny.n_experts = 4;
    tiny.top_k = 2;
    tiny.expert_width = 8;
    tiny.n_vocab = SERVED_VOCAB;
    (void)snprintf(folder, sizeof folder, "%s", tiny_write(&tiny));
    tokenizer = small_tokenizer(&SMALL);
    return 0;
}

int served_teardown(void **state)
{
    (void)state;
    served_close(&alone);
    tokenizer_destroy(tokenizer);
    tiny_remove(folder);
    return 0;
}

const struct tokenizer *served_tokenizer(void)
{
    return tokenizer;
}

static size_t or_else(size_t n, size_t other)
{
    return n > 0 ? n : other;
}

void served_open(struct served *s, const struct served_options *o)
{
    struct ferry_error err = {0};
    struct device_options device = {o->n_threads > 0 ? o->n_threads : 1, cpu_best_level()};
    struct model_options model = {.step_tokens = or_else(o->step_tokens, 512),
                                  .kv_dtype = DTYPE_F16,
                                  .fabric = o->fabric,
                                  .placement = o->placement,
                                  .seat = o->fabric != NULL ? fabric_seat(o->fabric) : 0};
    struct engine_options engine = {or_else(o->n_sequences, 4), or_else(o->context, SERVED_CONTEXT),
                                    o->n_pages};
    const char *path = o->folder != NULL ? o->folder : folder;

    *s = (struct served){0};
    if (checkpoint_open(&s->checkpoint, path, &err) != FERRY_OK ||
        device_create_cpu(&s->device, &device, &err) != FERRY_OK ||
        model_create(&s->model, s->checkpoint, s->device, &model, &err) != FERRY_OK ||
        engine_create(&s->engine, s->model, &engine, &err) != FERRY_OK ||
        scheduler_create(&s->scheduler, s->engine, tokenizer, &o->scheduler, &err) != FERRY_OK)
        fail_msg("%s", err.msg);
}

void served_close(struct served *s)
{
    scheduler_destroy(s->scheduler);
    engine_destroy(s->engine);
    model_destroy(s->model);
    device_destroy(s->device);
    checkpoint_close(s->checkpoint);
    *s = (struct served){0};
}

static uint64_t hash(uint64_t h, const void *data, size_t n)
{
    const unsigned char *bytes = data;

    for (size_t i = 0; i < n; i++)
        h = (h ^ bytes[i]) * 1099511628211u;
    return h;
}

static void keep_token(struct answer *a, const struct request_token *token)
{
    assert_true(a->n_ids < SERVED_ANSWER_MAX);
    a->ids[a->n_ids++] = token->id;
    if (token->logprobs == NULL)
        return;
    assert_int_equal(token->logprobs->chosen.id, token->id);
    a->logprobs = hash(a->logprobs, &token->logprobs->chosen, sizeof token->logprobs->chosen);
    a->logprobs = hash(a->logprobs, token->logprobs->top,
                       token->logprobs->n_top * sizeof token->logprobs->top[0]);
}

static void keep(void *arg, struct request *request, const struct request_event *event)
{
    struct asked *asked = arg;
    struct answer *a = &asked->answers[event->choice];

    assert_ptr_equal(asked->request, request);
    assert_false(atomic_load(&asked->done));
    if (event->kind != REQUEST_EVENT_DONE) {
        assert_false(a->finished);
        assert_true(a->n_text + event->text_size <= sizeof a->text);
        assert_int_equal(utf8_valid_size(event->text, event->text_size), event->text_size);
        memcpy(a->text + a->n_text, event->text, event->text_size);
        a->n_text += event->text_size;
        for (size_t i = 0; i < event->n_tokens; i++)
            keep_token(a, &event->tokens[i]);
    }
    if (event->kind == REQUEST_EVENT_FINISH) {
        a->finished = true;
        a->finish = event->finish;
        assert_int_equal(event->error != NULL, event->finish == REQUEST_FINISH_ERROR);
        a->error = event->error != NULL ? event->error->status : FERRY_OK;
        (void)snprintf(a->message, sizeof a->message, "%.190s",
                       event->error != NULL ? event->error->msg : "");
    }
    if (asked->on_event != NULL)
        asked->on_event(asked, event);
    if (event->kind == REQUEST_EVENT_DONE) {
        for (size_t i = 0; i < asked->options.n_choices; i++)
            assert_true(asked->answers[i].finished);
        asked->usage = *request_usage(request);
        asked->n_done++;
        if (asked->destroy_at_done) {
            request_destroy(request);
            asked->request = NULL;
        }
        atomic_store(&asked->done, true);
    }
}

void asked_init(struct asked *asked, size_t n_ids, uint64_t seed, size_t max_tokens)
{
    static const struct sampler_options SAMPLING = SAMPLER_OPTIONS_INIT;

    assert_true(n_ids <= COUNT_OF(asked->ids));
    memset(asked, 0, sizeof *asked);
    for (size_t i = 0; i < n_ids; i++)
        asked->ids[i] = (int32_t)(small_random(&seed) % 259);
    asked->options = (struct request_options){.ids = asked->ids,
                                              .n_ids = n_ids,
                                              .max_tokens = or_else(max_tokens, 16),
                                              .n_choices = 1,
                                              .sampling = SAMPLING,
                                              .ignore_eos = true,
                                              .on_event = keep,
                                              .arg = asked};
    asked->options.sampling.temperature = 0;
}

void asked_submit(struct asked *asked, struct served *served)
{
    struct ferry_error err = {0};

    if (request_create(&asked->request, served->scheduler, &asked->options, &err) != FERRY_OK ||
        scheduler_submit(served->scheduler, asked->request, &err) != FERRY_OK)
        fail_msg("%s", err.msg);
}

void asked_end(struct asked *asked)
{
    request_destroy(asked->request);
    asked->request = NULL;
}

bool served_step(struct served *served)
{
    struct ferry_error err = {0};
    bool idle = false;

    if (scheduler_step(served->scheduler, &idle, &err) != FERRY_OK)
        fail_msg("%s", err.msg);
    return !idle;
}

void served_finish(struct served *served, struct asked *const *asked, size_t n, size_t most)
{
    for (size_t steps = 0, i = 0; i < n; i++) {
        for (; !atomic_load(&asked[i]->done); steps++) {
            if (steps == most)
                fail_msg("request %zu is not done after %zu steps", i, steps);
            (void)served_step(served);
        }
    }
}

void asked_alone(const struct asked *asked, struct answer ret_answers[SERVED_CHOICES])
{
    static struct asked copy;
    static const struct served_options OPTIONS = {.n_sequences = 1,
                                                  .scheduler = {.no_prefix_cache = true}};
    struct scheduler_options scheduler = OPTIONS.scheduler;
    struct engine_options engine = {1, SERVED_CONTEXT, 0};
    struct ferry_error err = {0};

    if (alone.model == NULL) {
        served_open(&alone, &OPTIONS);
    }
    scheduler_destroy(alone.scheduler); /* nothing of an earlier answer is left */
    engine_destroy(alone.engine);
    alone.scheduler = NULL;
    alone.engine = NULL;
    if (engine_create(&alone.engine, alone.model, &engine, &err) != FERRY_OK ||
        scheduler_create(&alone.scheduler, alone.engine, tokenizer, &scheduler, &err) != FERRY_OK)
        fail_msg("%s", err.msg);
    memset(&copy, 0, sizeof copy);
    copy.options = asked->options;
    copy.options.arg = &copy;
    copy.options.start_by_ns = 0;
    asked_submit(&copy, &alone);
    struct asked *list = &copy;
    served_finish(&alone, &list, 1, 10000);
    memcpy(ret_answers, copy.answers, sizeof copy.answers);
    asked_end(&copy);
}

static void check_equal(const struct answer *got, const struct answer *want, size_t choice)
{
    if (got->n_ids != want->n_ids ||
        memcmp(got->ids, want->ids, got->n_ids * sizeof got->ids[0]) != 0)
        fail_msg("choice %zu has other ids (%zu, alone %zu)", choice, got->n_ids, want->n_ids);
    if (got->n_text != want->n_text || memcmp(got->text, want->text, got->n_text) != 0)
        fail_msg("choice %zu has another text", choice);
    assert_true(got->logprobs == want->logprobs);
    if (got->finish != want->finish)
        fail_msg("choice %zu ends with %d, alone with %d", choice, (int)got->finish,
                 (int)want->finish);
}

void asked_check(const struct asked *asked)
{
    struct answer want[SERVED_CHOICES];

    asked_alone(asked, want);
    assert_true(atomic_load(&asked->done));
    assert_int_equal(asked->n_done, 1);
    for (size_t i = 0; i < asked->options.n_choices; i++)
        check_equal(&asked->answers[i], &want[i], i);
}

void answer_begins(const struct answer *answer, const struct answer *whole)
{
    assert_true(answer->n_ids <= whole->n_ids);
    assert_memory_equal(answer->ids, whole->ids, answer->n_ids * sizeof answer->ids[0]);
}
