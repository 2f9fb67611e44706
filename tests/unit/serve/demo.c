/* See demo.h. */
#include "demo.h"

#include "base/cpu.h"
#include "tests/support/tiny.h"
#include "tests/unit/text/small.h"

#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

static struct {
    struct checkpoint *checkpoint;
    struct device *device;
    struct tokenizer *tokenizer;
    struct model *model;
    struct engine *engine;
    struct chat *chat;
} shared;

static enum ferry_status open_engine(const char *path, struct checkpoint **ret_checkpoint,
                                     struct model **ret_model, struct engine **ret_engine,
                                     struct ferry_error *err)
{
    struct model_options model = {.step_tokens = DEMO_STEP, .kv_dtype = DTYPE_F16};
    struct engine_options engine = {DEMO_SEQUENCES, DEMO_CONTEXT, 0};
    enum ferry_status st = checkpoint_open(ret_checkpoint, path, err);

    if (st == FERRY_OK)
        st = model_create(ret_model, *ret_checkpoint, shared.device, &model, err);
    return st == FERRY_OK ? engine_create(ret_engine, *ret_model, &engine, err) : st;
}

int demo_setup(void **state)
{
    struct device_options device = {1, cpu_best_level()};
    struct ferry_error err = {0};

    (void)state;
    if (device_create_cpu(&shared.device, &device, &err) != FERRY_OK ||
        open_engine(FERRY_SOURCE_DIR "/models/demo", &shared.checkpoint, &shared.model,
                    &shared.engine, &err) != FERRY_OK ||
        tokenizer_create(&shared.tokenizer, shared.checkpoint, &err) != FERRY_OK ||
        chat_create(&shared.chat, shared.tokenizer, NULL, 0, &err) != FERRY_OK) {
        (void)fprintf(stderr, "%s\n", err.msg);
        return -1;
    }
    return 0;
}

int demo_teardown(void **state)
{
    (void)state;
    chat_destroy(shared.chat);
    engine_destroy(shared.engine);
    model_destroy(shared.model);
    tokenizer_destroy(shared.tokenizer);
    device_destroy(shared.device);
    checkpoint_close(shared.checkpoint);
    return 0;
}

struct server_options demo_options(void)
{
    return (struct server_options){
        .http = {.log_fd = -1}, .model_name = "demo", .drain_seconds = 20};
}

enum ferry_status demo_try(const struct server_options *options, struct ferry_error *err)
{
    struct server *server = NULL;
    enum ferry_status st =
        server_create(&server, shared.engine, shared.tokenizer, shared.chat, options, err);

    server_destroy(server);
    return st;
}

void demo_start(struct demo *demo, const struct server_options *options)
{
    struct ferry_error err = {0};

    *demo = (struct demo){0};
    if (server_create(&demo->server, shared.engine, shared.tokenizer, shared.chat, options, &err) !=
        FERRY_OK)
        fail_msg("%s", err.msg);
    demo->web.port = server_port(demo->server);
}

static void start_tiny(struct demo *demo, const struct tiny_options *tiny,
                       const struct small *small)
{
    struct server_options options = demo_options();
    struct ferry_error err = {0};

    *demo = (struct demo){0};
    const char *folder = tiny_write(tiny);
    enum ferry_status st =
        open_engine(folder, &demo->checkpoint, &demo->model, &demo->engine, &err);
    tiny_remove(folder);
    demo->tokenizer = small_tokenizer(small);
    if (st == FERRY_OK)
        st = server_create(&demo->server, demo->engine, demo->tokenizer, NULL, &options, &err);
    if (st != FERRY_OK)
        fail_msg("%s", err.msg);
    demo->web.port = server_port(demo->server);
}

void demo_start_poisoned(struct demo *demo, int32_t poisoned)
{
    static const char *const MERGES[] = {"a b", NULL};
    static const struct small SMALL = {
        .pre_tokenizer = BYTE_LEVEL, .decoder = BYTE_LEVEL_DECODER, .merges = MERGES};
    struct tiny_options tiny = tiny_defaults("qwen3_moe");

    tiny.n_vocab = 257;
    tiny.poison = "model.embed_tokens.weight";
    tiny.poisoned_item = (size_t)poisoned * tiny.hidden + 3;
    start_tiny(demo, &tiny, &SMALL);
}

void demo_start_bos(struct demo *demo)
{
    static const struct small SMALL = {
        .pre_tokenizer = BYTE_LEVEL,
        .decoder = BYTE_LEVEL_DECODER,
        .added = "{\"id\":256,\"content\":\"<bos>\",\"single_word\":false,\"lstrip\":false,"
                 "\"rstrip\":false,\"normalized\":false,\"special\":true}",
        .post_processor =
            "{\"type\":\"TemplateProcessing\",\"single\":[{\"SpecialToken\":{\"id\":\"<bos>\","
            "\"type_id\":0}},{\"Sequence\":{\"id\":\"A\",\"type_id\":0}}],\"pair\":[],"
            "\"special_tokens\":{\"<bos>\":{\"id\":\"<bos>\",\"ids\":[256],\"tokens\":"
            "[\"<bos>\"]}}}"};
    struct tiny_options tiny = tiny_defaults("qwen3_moe");

    tiny.n_vocab = 257;
    start_tiny(demo, &tiny, &SMALL);
}

static void *run(void *arg)
{
    struct demo *demo = arg;
    struct ferry_error err = {0};

    demo->ended = server_run(demo->server, &err);
    return NULL;
}

void demo_run(struct demo *demo)
{
    assert_int_equal(pthread_create(&demo->thread, NULL, run, demo), 0);
    demo->threaded = true;
    for (int i = 0; i < 5000 && !atomic_load(&demo->server->running); i++)
        demo_nap();
    assert_true(atomic_load(&demo->server->running));
}

void demo_join(struct demo *demo)
{
    if (demo->threaded)
        assert_int_equal(pthread_join(demo->thread, NULL), 0);
    demo->threaded = false;
}

void demo_by_hand(struct demo *demo)
{
    atomic_store(&demo->server->running, true);
}

bool demo_step(struct demo *demo)
{
    struct ferry_error err = {0};
    bool idle = false;

    if (scheduler_step(demo->server->scheduler, &idle, &err) != FERRY_OK)
        fail_msg("%s", err.msg);
    return !idle;
}

void demo_finish(struct demo *demo)
{
    for (int i = 0; i < 50000 && atomic_load(&demo->server->n_answers) > 0; i++) {
        if (!demo_step(demo))
            demo_nap();
    }
    assert_int_equal(atomic_load(&demo->server->n_answers), 0);
}

void demo_end(struct demo *demo)
{
    server_stop(demo->server);
    demo_join(demo);
    server_destroy(demo->server);
    engine_destroy(demo->engine);
    model_destroy(demo->model);
    tokenizer_destroy(demo->tokenizer);
    checkpoint_close(demo->checkpoint);
    assert_int_equal(demo->ended, FERRY_OK);
}

struct scheduler_view demo_view(const struct demo *demo)
{
    struct scheduler_view view;

    scheduler_view(demo->server->scheduler, &view);
    return view;
}

void demo_wait_idle(const struct demo *demo)
{
    demo_wait_answers(demo, 0);
    for (int i = 0; i < 50000 && demo_view(demo).n_running + demo_view(demo).n_held > 0; i++)
        demo_nap(); /* shown after the step */
    assert_int_equal(demo_view(demo).n_running + demo_view(demo).n_held, 0);
    assert_int_equal(demo_view(demo).n_waiting, 0);
}

void demo_nap(void)
{
    struct timespec ms = {0, 1000000};
    (void)nanosleep(&ms, NULL);
}

void demo_wait_answers(const struct demo *demo, size_t n)
{
    for (int i = 0; i < 50000 && atomic_load(&demo->server->n_answers) != n; i++)
        demo_nap();
    assert_int_equal(atomic_load(&demo->server->n_answers), n);
}

void demo_wait_waiting(const struct demo *demo, size_t n)
{
    for (int i = 0; i < 50000 && demo_view(demo).n_waiting != n; i++)
        demo_nap();
    assert_int_equal(demo_view(demo).n_waiting, n);
}

double demo_metric(const struct demo *demo, const char *series)
{
    static struct reply page;
    char line[300];

    assert_int_equal(demo_ask(demo, "GET", "/metrics", NULL, &page), 200);
    (void)snprintf(line, sizeof line, "\n%s ", series);
    const char *at = strstr(page.body, line);
    if (at == NULL) {
        fail_msg("no %s", series);
        return 0;
    }
    return strtod(at + strlen(line), NULL);
}

/* ---- clients ---- */

int demo_send(const struct demo *demo, const char *method, const char *path, const char *headers,
              const char *body)
{
    char head[2048];
    size_t size = body != NULL ? strlen(body) : 0;
    int fd = web_connect(&demo->web);

    int n = snprintf(head, sizeof head,
                     "%s %s HTTP/1.1\r\nHost: localhost\r\nContent-Length: %zu\r\n%s"
                     "Connection: close\r\n\r\n",
                     method, path, size, headers);
    assert_true(n > 0 && (size_t)n < sizeof head);
    web_send(fd, head, (size_t)n);
    if (size > 0)
        web_send(fd, body, size);
    return fd;
}

/* Joins the chunks in place; whether the last one is there. */
static bool join_chunks(char *body, size_t size)
{
    size_t at = 0, used = 0;

    while (at < size) {
        char *end = NULL;
        size_t n = strtoul(body + at, &end, 16);
        if (end == body + at || strncmp(end, "\r\n", 2) != 0)
            break;
        at = (size_t)(end - body) + 2;
        if (n == 0) {
            body[used] = 0;
            return true;
        }
        if (n + 2 > size - at)
            n = size - at > 2 ? size - at - 2 : 0;
        memmove(body + used, body + at, n);
        used += n;
        at += n + 2;
    }
    body[used] = 0;
    return false;
}

void demo_read(int fd, struct reply *r)
{
    size_t n = 0;

    for (;;) {
        struct pollfd p = {fd, POLLIN, 0};
        if (poll(&p, 1, 60000) <= 0)
            fail_msg("no answer for a minute after: %.300s", n > 0 ? r->all : "");
        ssize_t got = recv(fd, r->all + n, sizeof r->all - 1 - n, 0);
        if (got <= 0)
            break;
        n += (size_t)got;
    }
    (void)close(fd);
    r->all[n] = 0;
    r->status = 0;
    r->complete = false;
    r->body = strstr(r->all, "\r\n\r\n");
    if (sscanf(r->all, "HTTP/1.1 %d", &r->status) != 1 || r->body == NULL) {
        r->body = r->all + n;
        return;
    }
    *r->body = 0;
    r->head_size = (size_t)(r->body - r->all);
    r->body += 4;
    const char *length = strstr(r->all, "Content-Length: ");
    if (strstr(r->all, "Transfer-Encoding: chunked") != NULL)
        r->complete = join_chunks(r->body, n - r->head_size - 4);
    else if (length != NULL)
        r->complete = n - r->head_size - 4 == strtoul(length + 16, NULL, 10);
}

int demo_ask(const struct demo *demo, const char *method, const char *path, const char *body,
             struct reply *r)
{
    demo_read(demo_send(demo, method, path, "", body), r);
    return r->status;
}

json_t *reply_json(const struct reply *r)
{
    json_t *json = json_loads(r->body, 0, NULL);

    if (json == NULL)
        fail_msg("no JSON: %d %.300s", r->status, r->body);
    return json;
}

const char *json_word(const json_t *json, const char *path)
{
    char name[64];

    while (json != NULL) {
        size_t n = strcspn(path, ".");
        (void)snprintf(name, sizeof name, "%.*s", (int)n, path);
        json = json_object_get(json, name);
        if (path[n] == 0)
            return json_is_string(json) ? json_string_value(json) : "";
        path += n + 1;
    }
    return "";
}

/* Takes what one choice of one object says. */
static void take_choice(struct told *t, const json_t *choice)
{
    const json_t *message = json_object_get(choice, "message"), *all, *item;
    const char *text, *name, *finish = json_word(choice, "finish_reason");
    size_t i;

    message = message != NULL ? message : json_object_get(choice, "delta");
    text = message != NULL ? json_word(message, "content") : json_word(choice, "text");
    assert_true(t->n_text + strlen(text) < sizeof t->text);
    memcpy(t->text + t->n_text, text, strlen(text) + 1);
    t->n_text += strlen(text);
    t->n_chunks++;
    if (finish[0] != 0) {
        assert_int_equal(t->finish[0], 0);
        (void)snprintf(t->finish, sizeof t->finish, "%s", finish);
    }
    all = json_object_get(choice, "logprobs");
    if (!json_is_object(all))
        return;
    if (t->logprobs == NULL)
        t->logprobs = json_object();
    void *at = json_object_iter((json_t *)(uintptr_t)all);
    for (; at != NULL; at = json_object_iter_next((json_t *)(uintptr_t)all, at)) {
        name = json_object_iter_key(at);
        if (!json_is_array(json_object_iter_value(at)))
            continue;
        if (json_object_get(t->logprobs, name) == NULL)
            (void)json_object_set_new(t->logprobs, name, json_array());
        json_array_foreach(json_object_iter_value(at), i, item)(void)
            json_array_append(json_object_get(t->logprobs, name), (json_t *)(uintptr_t)item);
    }
}

static void take_object(struct told *t, const json_t *object, size_t index)
{
    const json_t *choice;
    size_t i;

    json_array_foreach(json_object_get(object, "choices"), i, choice)
    {
        if ((size_t)json_integer_value(json_object_get(choice, "index")) == index)
            take_choice(t, choice);
    }
}

void told_init(struct told *t, const struct reply *r, bool stream, size_t index)
{
    const char *at = r->body;

    *t = (struct told){0};
    if (!stream) {
        json_t *object = reply_json(r);
        take_object(t, object, index);
        json_decref(object);
        return;
    }
    while ((at = strstr(at, "data: {")) != NULL) {
        json_t *object = json_loads(at + 6, JSON_DISABLE_EOF_CHECK, NULL);
        assert_non_null(object);
        take_object(t, object, index);
        json_decref(object);
        at += 6;
    }
}

void told_fini(struct told *t)
{
    json_decref(t->logprobs);
    t->logprobs = NULL;
}

size_t count_of(const char *text, const char *part)
{
    size_t n = 0;

    for (; (text = strstr(text, part)) != NULL; text += strlen(part))
        n++;
    return n;
}
