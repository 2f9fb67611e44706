/* T05, T06, T07 with a model that writes text: the repository's own. Its answers are cut at stop
 * strings taken from their middle; the reference is the answer without any, cut afterwards. The
 * model's Chinese is bytes: most tokens end inside a character, some answers are not UTF-8. */
#include "tests/unit/unit.h"

#include "engine/scheduler.h"
#include "tests/unit/text/small.h"

#include <string.h>

enum { N_PROMPTS = 6, N_STOPPED = 10, ANSWER = 40, TEXT_MAX = 1024 };

struct told {
    struct request_options options;
    struct request *request;
    char text[TEXT_MAX];
    size_t n_text, n_ids, n_events;
    int32_t ids[ANSWER];
    size_t starts[ANSWER]; /* text that was out before the event of a token */
    enum request_finish finish;
    bool done;
    char stop[2][64];
    const char *stops[2];
};

static struct checkpoint *checkpoint;
static struct device *device;
static struct model *model;
static struct engine *engine;
static struct tokenizer *tokenizer;
static struct scheduler *scheduler;

static int open_demo(void **state)
{
    struct ferry_error err = {0};
    struct device_options device_options = {2, cpu_best_level()};
    struct model_options model_options = {.step_tokens = 128, .kv_dtype = DTYPE_F16};
    struct engine_options engine_options = {6, 512, 0};
    struct scheduler_options scheduler_options = {0};

    (void)state;
    if (checkpoint_open(&checkpoint, FERRY_SOURCE_DIR "/models/demo", &err) != FERRY_OK ||
        tokenizer_create(&tokenizer, checkpoint, &err) != FERRY_OK ||
        device_create_cpu(&device, &device_options, &err) != FERRY_OK ||
        model_create(&model, checkpoint, device, &model_options, &err) != FERRY_OK ||
        engine_create(&engine, model, &engine_options, &err) != FERRY_OK ||
        scheduler_create(&scheduler, engine, tokenizer, &scheduler_options, &err) != FERRY_OK) {
        print_error("%s\n", err.msg);
        return -1;
    }
    return 0;
}

static int close_demo(void **state)
{
    (void)state;
    scheduler_destroy(scheduler);
    engine_destroy(engine);
    model_destroy(model);
    device_destroy(device);
    tokenizer_destroy(tokenizer);
    checkpoint_close(checkpoint);
    return 0;
}

static void listen(void *arg, struct request *request, const struct request_event *event)
{
    struct told *t = arg;

    (void)request;
    assert_false(t->done);
    assert_true(t->n_text + event->text_size <= TEXT_MAX);
    assert_int_equal(utf8_valid_size(event->text, event->text_size), event->text_size);
    for (size_t i = 0; i < event->n_tokens; i++) {
        t->starts[t->n_ids] = t->n_text;
        t->ids[t->n_ids++] = event->tokens[i].id;
    }
    memcpy(t->text + t->n_text, event->text, event->text_size);
    t->n_text += event->text_size;
    t->n_events++;
    if (event->kind == REQUEST_EVENT_FINISH)
        t->finish = event->finish;
    t->done = event->kind == REQUEST_EVENT_DONE;
}

static void ask(struct told *t, const struct token_ids *prompt, size_t i)
{
    static const struct sampler_options SAMPLING = SAMPLER_OPTIONS_INIT;
    struct ferry_error err = {0};

    t->options = (struct request_options){.ids = prompt->ids,
                                          .n_ids = prompt->count,
                                          .max_tokens = ANSWER,
                                          .n_choices = 1,
                                          .sampling = SAMPLING,
                                          .stops = t->stops,
                                          .n_stops = t->stops[1] != NULL   ? 2
                                                     : t->stops[0] != NULL ? 1
                                                                           : 0,
                                          .ignore_eos = true,
                                          .on_event = listen,
                                          .arg = t};
    t->options.sampling.seed = i;
    t->options.sampling.temperature = i % 2 == 0 ? 0.7f : 5.0f; /* hot: ill-formed bytes come */
    if (request_create(&t->request, scheduler, &t->options, &err) != FERRY_OK ||
        scheduler_submit(scheduler, t->request, &err) != FERRY_OK)
        fail_msg("%s", err.msg);
}

static void finish(struct told *t)
{
    struct ferry_error err = {0};
    bool idle = false;

    while (!t->done) {
        assert_int_equal(scheduler_step(scheduler, &idle, &err), FERRY_OK);
        assert_false(idle);
    }
    request_destroy(t->request);
}

/* Where a stop string is complete first, its beginning (the longest's); else all of the text. */
static size_t cut_of(const struct told *whole, const struct told *t)
{
    for (size_t end = 1; end <= whole->n_text; end++) {
        size_t longest = 0;
        for (size_t i = 0; i < t->options.n_stops; i++) {
            size_t n = strlen(t->stops[i]);
            if (n <= end && n > longest && memcmp(whole->text + end - n, t->stops[i], n) == 0)
                longest = n;
        }
        if (longest > 0)
            return end - longest;
    }
    return whole->n_text;
}

/* A few characters from somewhere in the answer; every fourth one is never completed. */
static void choose_stop(struct told *t, size_t which, const struct told *whole, uint64_t *random)
{
    char *stop = t->stop[which];
    size_t start = small_random(random) % whole->n_text, size = 0;
    int32_t code;

    while (((unsigned char)whole->text[start] & 0xC0) == 0x80)
        start--;
    for (size_t n = 1 + small_random(random) % 8; n > 0 && start + size < whole->n_text; n--)
        size += utf8_decode(whole->text + start + size, whole->n_text - start - size, &code);
    memcpy(stop, whole->text + start, size);
    if (small_random(random) % 4 == 0)
        stop[size++] = '\x7F';
    stop[size] = 0;
    t->stops[which] = stop;
}

static void check(const struct told *t, const struct told *whole, size_t *ret_stopped)
{
    size_t cut = cut_of(whole, t);

    if (t->n_text != cut || memcmp(t->text, whole->text, cut) != 0)
        fail_msg("cut at '%s': '%.*s' is not the beginning of '%.*s'", t->stops[0], (int)t->n_text,
                 t->text, (int)whole->n_text, whole->text);
    assert_int_equal(t->finish, cut < whole->n_text ? REQUEST_FINISH_STOP : REQUEST_FINISH_LENGTH);
    assert_memory_equal(t->ids, whole->ids, t->n_ids * sizeof t->ids[0]);
    for (size_t i = 0; i < t->n_ids;
         i++) /* a token whose text is all behind the cut is not there */
        assert_true(whole->starts[i] < cut || cut == whole->n_text);
    *ret_stopped += t->finish == REQUEST_FINISH_STOP;
}

static void stop_strings_cut_answers(void **state)
{
    static const char *const PROMPTS[N_PROMPTS] = {
        "\xE6\xB5\xB7\xE4\xB8\x8A\xE9\xA3\x8E\xE9\x9B\xA8\xE8\x87\xB3\xEF\xBC\x8C",
        "\xE4\xBD\x9C\xE8\x80\x85\xEF\xBC\x9A",
        "def main(",
        "The captain said",
        "\xE4\xB8\x80\xE6\x9D\xAF\xE9\x85\x92",
        "1 + 1 ="};
    static struct told whole[N_PROMPTS], stopped[N_STOPPED];
    struct token_ids prompts[N_PROMPTS] = {0};
    struct ferry_error err = {0};
    uint64_t random = 11;
    size_t n_stopped = 0, n_replaced = 0, n_split = 0;

    (void)state;
    for (size_t p = 0; p < N_PROMPTS; p++) {
        assert_int_equal(tokenizer_encode(tokenizer, PROMPTS[p], strlen(PROMPTS[p]), true, false,
                                          &prompts[p], &err),
                         FERRY_OK);
        ask(&whole[p], &prompts[p], p);
    }
    for (size_t p = 0; p < N_PROMPTS; p++) {
        finish(&whole[p]);
        assert_int_equal(whole[p].n_ids, ANSWER);
        n_replaced += memmem(whole[p].text, whole[p].n_text, "\xEF\xBF\xBD", 3) != NULL;
        n_split += whole[p].n_events < ANSWER; /* several tokens for one character */
    }
    assert_true(n_replaced > 0 && n_split > 0); /* otherwise this tests less than it says */
    for (size_t p = 0; p < N_PROMPTS; p++) {
        memset(stopped, 0, sizeof stopped);
        for (size_t i = 0; i < N_STOPPED; i++) {
            choose_stop(&stopped[i], 0, &whole[p], &random);
            if (i % 3 == 0)
                choose_stop(&stopped[i], 1, &whole[p], &random);
            ask(&stopped[i], &prompts[p], p);
        }
        for (size_t i = 0; i < N_STOPPED; i++) {
            finish(&stopped[i]);
            check(&stopped[i], &whole[p], &n_stopped);
        }
    }
    print_message("%zu stopped, %zu answers with ill-formed bytes\n", n_stopped, n_replaced);
    assert_true(n_stopped > N_PROMPTS * N_STOPPED / 2);
    for (size_t p = 0; p < N_PROMPTS; p++)
        token_ids_fini(&prompts[p]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(stop_strings_cut_answers)};
    return cmocka_run_group_tests(tests, open_demo, close_demo);
}
