/* Answers of the API from request to wire: streams equal whole answers, queues that are full,
 * clients that leave at any moment, readers that are slow, engines that fail. Mostly driven by hand
 * (demo.h), so that every moment is hit. */
#include "demo.h"

#include "base/alloc.h"
#include "serve/http_impl.h"
#include "serve/openai_request.h"

#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define CHAT "/v1/chat/completions"
#define TEXT "/v1/completions"

static struct reply whole, stream;

#define INVALID "ferry_requests_rejected_total{reason=\"invalid\"}"

static double left(const struct demo *demo)
{
    return demo_metric(demo, "ferry_clients_left_total");
}

/* ---- streams ---- */

static void check_same(const struct told *a, const struct told *b, const char *fields, size_t i)
{
    if (strcmp(a->text, b->text) != 0)
        fail_msg("%s: choice %zu: '%s', streamed '%s'", fields, i, a->text, b->text);
    assert_string_equal(a->finish, b->finish);
    assert_true((a->logprobs == NULL) == (b->logprobs == NULL));
    if (a->logprobs != NULL && !json_equal(a->logprobs, b->logprobs))
        fail_msg("%s: choice %zu has other log-probabilities", fields, i);
}

/* The same request whole and as a stream. */
static void compare(const struct demo *demo, const char *path, const char *fields, size_t n)
{
    static struct told a, b;
    char body[2048];

    (void)snprintf(body, sizeof body, "{%s}", fields);
    if (demo_ask(demo, "POST", path, body, &whole) != 200)
        fail_msg("%s: %s", fields, whole.body);
    (void)snprintf(body, sizeof body,
                   "{%s,\"stream\":true,\"stream_options\":{\"include_usage\":true}}", fields);
    if (demo_ask(demo, "POST", path, body, &stream) != 200)
        fail_msg("%s: %s", fields, stream.body);
    assert_true(whole.complete && stream.complete);
    assert_non_null(strstr(stream.all, "text/event-stream"));
    assert_int_equal(count_of(stream.body, "data: [DONE]\n\n"), 1);
    assert_string_equal(stream.body + strlen(stream.body) - 14, "data: [DONE]\n\n");
    for (size_t i = 0; i < n; i++) {
        told_init(&a, &whole, false, i);
        told_init(&b, &stream, true, i);
        assert_int_equal(a.n_chunks, 1);
        assert_true(b.n_chunks > 1);
        check_same(&a, &b, fields, i);
        told_fini(&a);
        told_fini(&b);
    }
    assert_int_equal(count_of(stream.body, "\"finish_reason\":\""), n);
    /* Tokens are counted alike; cached_tokens of the second are more. */
    json_t *json = reply_json(&whole);
    assert_int_equal(json_array_size(json_object_get(json, "choices")), n);
    char *usage = strstr(strstr(stream.body, "\"choices\":[],"), "\"usage\":");
    char number[64];
    (void)snprintf(number, sizeof number, "\"completion_tokens\":%lld,",
                   (long long)json_integer_value(
                       json_object_get(json_object_get(json, "usage"), "completion_tokens")));
    assert_non_null(strstr(usage, number));
    json_decref(json);
}

static void streams_equal_whole_answers(void **state)
{
    static const char MESSAGES[] =
        "\"messages\":[{\"role\":\"user\",\"content\":\"Tell me a story \\ud83d\\ude00\"}]";
    struct server_options options = demo_options();
    struct demo demo;
    char f[1024];

    (void)state;
    demo_start(&demo, &options);
    demo_run(&demo);
    for (int seed = 1; seed <= 3; seed++) {
        (void)snprintf(f, sizeof f, "%s,\"seed\":%d,\"max_tokens\":24,\"temperature\":1.5",
                       MESSAGES, seed);
        compare(&demo, CHAT, f, 1);
        (void)snprintf(f, sizeof f,
                       "\"prompt\":\"Once\",\"seed\":%d,\"max_tokens\":24,\"temperature\":2", seed);
        compare(&demo, TEXT, f, 1);
    }
    (void)snprintf(f, sizeof f,
                   "%s,\"seed\":7,\"max_tokens\":12,\"n\":3,\"logprobs\":true,\"top_logprobs\":4",
                   MESSAGES);
    compare(&demo, CHAT, f, 3);
    compare(&demo, TEXT,
            "\"prompt\":[\"One\",\"Two three\",[72,101]],\"n\":2,\"seed\":9,\"max_tokens\":10", 6);
    compare(&demo, TEXT, "\"prompt\":\"One\",\"seed\":9,\"max_tokens\":16,\"logprobs\":3", 1);
    compare(&demo, TEXT, "\"prompt\":[\"One\",\"Two\"],\"seed\":9,\"max_tokens\":8,\"echo\":true",
            2);
    compare(&demo, TEXT,
            "\"prompt\":\"The\",\"seed\":4,\"max_tokens\":60,\"stop\":[\" the\",\"e\"],"
            "\"temperature\":1",
            1);
    assert_null(strstr(whole.body, "abort"));
    demo_end(&demo);
}

/* More text than any context of this size can hold is not even rendered, wherever it stands. */
static void long_conversation(const struct demo *demo)
{
    static const char *const BODIES[][2] = {
        {"{\"messages\":[{\"role\":\"user\",\"content\":\"", "\"}]}"},
        {"{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"",
         "\"}]}]}"},
    };
    enum { N = (1 << 20) + 10 };
    char *text = malloc(N + 1), *body = malloc(N + 300);

    memset(text, 'a', N);
    text[N] = 0;
    for (size_t i = 0; i < COUNT_OF(BODIES); i++) {
        (void)sprintf(body, "%s%s%s", BODIES[i][0], text, BODIES[i][1]);
        assert_int_equal(demo_ask(demo, "POST", "/v1/chat/completions", body, &whole), 400);
        if (strstr(whole.body, "context_length_exceeded") == NULL ||
            strstr(whole.body, "bytes of text") == NULL)
            fail_msg("body %zu: %.500s", i, whole.body);
    }
    free(text);
    free(body);
}

static void details(void **state)
{
    struct server_options options = demo_options();
    struct demo demo;
    static struct told told;

    (void)state;
    demo_start(&demo, &options);
    demo_run(&demo);
    assert_int_equal(demo_ask(&demo, "POST", TEXT,
                              "{\"prompt\":\"Echo me\",\"echo\":true,\"max_tokens\":2,\"odd\":1,"
                              "\"user\":\"u\"}",
                              &whole),
                     200);
    told_init(&told, &whole, false, 0);
    assert_memory_equal(told.text, "Echo me", 7);
    assert_non_null(strstr(whole.all, "X-Ignored-Params: odd"));
    /* A drawn seed is told, and gives the same answer again. */
    json_t *json = reply_json(&whole);
    char body[300];
    (void)snprintf(body, sizeof body,
                   "{\"prompt\":\"Echo me\",\"echo\":true,\"max_tokens\":2,\"seed\":%lld}",
                   (long long)json_integer_value(json_object_get(json, "seed")));
    json_decref(json);
    static struct told again;
    assert_int_equal(demo_ask(&demo, "POST", TEXT, body, &stream), 200);
    told_init(&again, &stream, false, 0);
    assert_string_equal(told.text, again.text);
    /* The id is that of the log and of the header. */
    demo_read(demo_send(&demo, "POST", TEXT, "X-Request-Id: my-id.1\r\n",
                        "{\"prompt\":\"a\",\"max_tokens\":1}"),
              &whole);
    assert_non_null(strstr(whole.all, "X-Request-Id: my-id.1"));
    assert_non_null(strstr(whole.body, "\"id\":\"cmpl-my-id.1\""));
    /* A prompt that leaves no room. */
    char *longer = malloc(20000);
    size_t n = (size_t)sprintf(longer, "{\"prompt\":[7");
    for (int i = 1; i <= DEMO_CONTEXT; i++)
        n += (size_t)sprintf(longer + n, ",7");
    (void)sprintf(longer + n, "],\"stream\":true}");
    assert_int_equal(demo_ask(&demo, "POST", TEXT, longer, &whole), 400);
    assert_non_null(strstr(whole.body, "context_length_exceeded"));
    free(longer);
    long_conversation(&demo);
    demo_end(&demo);
}

/* Every name that was promised is in the header, however long they all are. */
static void ignored_names_are_told(void **state)
{
    struct server_options options = demo_options();
    struct demo demo;
    char body[8000], name[100];
    size_t n;

    (void)state;
    demo_start(&demo, &options);
    demo_run(&demo);
    for (size_t count = 30; count <= 40; count += 5) {
        n = (size_t)snprintf(body, sizeof body, "{\"prompt\":\"a\",\"max_tokens\":1");
        for (size_t i = 0; i < count; i++)
            n += (size_t)snprintf(body + n, sizeof body - n, ",\"f%02zu%077d\":1", i, 0);
        (void)snprintf(body + n, sizeof body - n, "}");
        assert_int_equal(demo_ask(&demo, "POST", TEXT, body, &whole), 200);
        const char *header = strstr(whole.all, "X-Ignored-Params: ");
        assert_non_null(header);
        for (size_t i = 0; i < count && i < OPENAI_IGNORED_MAX; i++) {
            (void)snprintf(name, sizeof name, "%sf%02zu%061d%s", i > 0 ? ", " : ": ", i, 0,
                           i + 1 < count ? "," : "\r");
            if (strstr(header, name) == NULL)
                fail_msg("no '%s' in '%s'", name, header);
        }
        assert_true((strstr(header, ", ...\r\n") != NULL) == (count > OPENAI_IGNORED_MAX));
    }
    demo_end(&demo);
}

/* The prompt as it was sent: without what the tokenizer puts around it, control tokens only where
 * they were sent as ids. */
static void echo(void **state)
{
    static const struct {
        const char *prompt, *want;
    } CASES[] = {
        {"\"ab<bos>\"", "ab<bos>"}, {"[65,256,66]", "A<bos>B"}, {"\"\\u00e9\"", "\xc3\xa9"}};
    struct demo demo;
    char body[300];
    static struct told told;

    (void)state;
    demo_start_bos(&demo);
    demo_run(&demo);
    for (size_t i = 0; i < 2 * COUNT_OF(CASES); i++) {
        bool streamed = i % 2 == 1;
        (void)snprintf(
            body, sizeof body,
            "{\"prompt\":%s,\"echo\":true,\"max_tokens\":1,\"logit_bias\":{\"67\":100}%s}",
            CASES[i / 2].prompt, streamed ? ",\"stream\":true" : "");
        assert_int_equal(demo_ask(&demo, "POST", TEXT, body, &whole), 200);
        told_init(&told, &whole, streamed, 0);
        size_t n = strlen(CASES[i / 2].want);
        if (strncmp(told.text, CASES[i / 2].want, n) != 0 || strlen(told.text) != n + 1)
            fail_msg("%s: '%s'", body, told.text);
        told_fini(&told);
    }
    demo_end(&demo);
}

/* Many copies of a long prompt: more than a stream holds is refused, what is less arrives, however
 * slow its reader. */
static void long_echoes(void **state)
{
    struct server_options options = demo_options();
    struct demo demo;
    char body[3000], prompt[1201];
    static struct told told;

    (void)state;
    options.http.stream_bytes = 4000; /* 128,000 to begin with */
    demo_start(&demo, &options);
    demo_run(&demo);
    for (size_t i = 0; i < sizeof prompt - 1; i++)
        prompt[i] = i % 5 == 4 ? ' ' : (char)('a' + i * i % 26);
    prompt[sizeof prompt - 1] = 0;
    for (int n = 8; n >= 1; n -= 7) {
        (void)snprintf(body, sizeof body,
                       "{\"prompt\":[\"%s\",\"%s\"],\"echo\":true,\"max_tokens\":1,\"n\":%d,"
                       "\"stream\":true}",
                       "x", prompt, n);
        assert_int_equal(demo_ask(&demo, "POST", TEXT, body, &whole), 200);
        assert_true(whole.complete);
        for (int i = 0; i < 2 * n; i++) {
            told_init(&told, &whole, true, (size_t)i);
            const char *want = i < n ? "x" : prompt;
            assert_memory_equal(told.text, want, strlen(want));
            assert_string_equal(told.finish, "length");
            told_fini(&told);
        }
    }
    demo_end(&demo);
    options.http.stream_bytes = 300; /* 9,600 */
    demo_start(&demo, &options);
    demo_run(&demo);
    (void)snprintf(body, sizeof body,
                   "{\"prompt\":\"%s\",\"echo\":true,\"max_tokens\":1,\"n\":8,\"stream\":true}",
                   prompt);
    assert_int_equal(demo_ask(&demo, "POST", TEXT, body, &whole), 400);
    assert_non_null(strstr(whole.body, "over_limit"));
    assert_non_null(strstr(whole.body, "9600 bytes"));
    *strstr(body, ",\"stream\":true") = '}';
    *strstr(body, "\"stream\":true") = 0;
    assert_int_equal(demo_ask(&demo, "POST", TEXT, body, &whole), 200);
    demo_wait_idle(&demo);
    demo_end(&demo);
}

/* ---- the queue ---- */

#define SHORT "{\"prompt\":\"One two three\",\"max_tokens\":3,\"ignore_eos\":true"

/* A request that has all sequences. */
static int occupy(struct demo *demo)
{
    int fd = demo_send(demo, "POST", TEXT, "",
                       "{\"prompt\":\"One\",\"n\":4,\"max_tokens\":60,\"ignore_eos\":true}");

    demo_wait_waiting(demo, DEMO_SEQUENCES);
    for (int i = 0; i < 3; i++)
        assert_true(demo_step(demo));
    assert_int_equal(demo_view(demo).n_running, DEMO_SEQUENCES);
    return fd;
}

static void full_queue(void **state)
{
    struct server_options options = demo_options();
    struct demo demo;
    int fds[2];

    (void)state;
    options.max_waiting = 2;
    demo_start(&demo, &options);
    demo_by_hand(&demo);
    int busy = occupy(&demo);
    for (size_t i = 0; i < 2; i++) {
        fds[i] = demo_send(&demo, "POST", TEXT, "", SHORT "}");
        demo_wait_waiting(&demo, i + 1);
    }
    assert_int_equal(demo_ask(&demo, "POST", TEXT, SHORT "}", &whole), 429);
    assert_non_null(strstr(whole.all, "Retry-After: "));
    assert_non_null(strstr(whole.body, "queue_full"));
    assert_int_equal(demo_ask(&demo, "POST", TEXT, SHORT ",\"stream\":true}", &whole), 429);
    assert_true(demo_metric(&demo, "ferry_requests_rejected_total{reason=\"queue_full\"}") == 2);
    demo_finish(&demo);
    demo_read(busy, &whole);
    for (size_t i = 0; i < 2; i++) {
        demo_read(fds[i], &whole);
        assert_int_equal(whole.status, 200);
    }
    int fd = demo_send(&demo, "POST", TEXT, "", SHORT "}");
    demo_wait_waiting(&demo, 1);
    demo_finish(&demo);
    demo_read(fd, &whole);
    assert_int_equal(whole.status, 200);
    demo_end(&demo);
}

/* Some prompts of a request find room and some do not: all or nothing. */
static void half_a_request(void **state)
{
    static const char *const MORE[] = {"", ",\"stream\":true"};
    struct server_options options = demo_options();
    struct demo demo;
    char body[300];

    (void)state;
    options.max_waiting = 2;
    demo_start(&demo, &options);
    demo_by_hand(&demo);
    for (size_t i = 0; i < COUNT_OF(MORE); i++) {
        int busy = occupy(&demo);
        (void)snprintf(body, sizeof body,
                       "{\"prompt\":[\"a\",\"b\",\"c\",\"d\"],\"max_tokens\":3%s}", MORE[i]);
        int fd = demo_send(&demo, "POST", TEXT, "", body);
        demo_wait_waiting(&demo, 2);
        demo_finish(&demo);
        demo_read(busy, &stream);
        assert_int_equal(stream.status, 200);
        demo_read(fd, &whole);
        assert_int_equal(whole.status, 429);
        assert_true(whole.complete);
        assert_non_null(strstr(whole.all, "Retry-After: "));
        assert_non_null(strstr(whole.body, "queue_full"));
        assert_int_equal(demo_view(&demo).n_waiting, 0);
    }
    assert_true(demo_metric(&demo, "ferry_requests_rejected_total{reason=\"queue_full\"}") == 2);
    demo_end(&demo);
}

static void queue_timeout(void **state)
{
    struct server_options options = demo_options();
    struct demo demo;

    (void)state;
    options.queue_seconds = 0.05;
    demo_start(&demo, &options);
    demo_by_hand(&demo);
    int fd = demo_send(&demo, "POST", TEXT, "", SHORT "}");
    demo_wait_waiting(&demo, 1);
    int other = demo_send(&demo, "POST", TEXT, "", SHORT ",\"stream\":true}");
    demo_wait_waiting(&demo, 2);
    for (int i = 0; i < 100; i++)
        demo_nap();
    demo_finish(&demo);
    demo_read(fd, &whole);
    assert_int_equal(whole.status, 503);
    assert_non_null(strstr(whole.body, "queue_timeout"));
    assert_non_null(strstr(whole.all, "Retry-After: "));
    demo_read(other, &stream);
    assert_non_null(strstr(stream.body, "queue_timeout"));
    assert_true(demo_metric(&demo, "ferry_requests_rejected_total{reason=\"queue_timeout\"}") == 2);
    assert_true(demo_metric(&demo, INVALID) == 0);
    demo_end(&demo);
}

/* A body with a field that nobody knows: a tree of n empty objects. */
static char *many_values(size_t n, const char *more)
{
    char *body = malloc(3 * n + 300), *at = body;

    at += sprintf(at, "{\"prompt\":\"a\",\"max_tokens\":5,\"ignore_eos\":true%s,\"x\":[{}", more);
    for (size_t i = 1; i < n; i++)
        at = (char *)memcpy(at, ",{}", 3) + 3;
    (void)strcpy(at, "]}");
    return body;
}

static size_t heap_bytes(void)
{
    struct mallinfo2 info = mallinfo2(); /* 0 under a sanitizer */

    return info.uordblks + info.hblkhd;
}

/* While an answer waits or is made nothing is left of what it was read from. */
static void requests_are_forgotten(void **state)
{
    static const char *const MORE[] = {"", ",\"stream\":true", ",\"echo\":true,\"stream\":true"};
    enum { VALUES = 130000 };
    struct server_options options = demo_options();
    struct demo demo;
    int fds[COUNT_OF(MORE)];

    (void)state;
    demo_start(&demo, &options);
    demo_by_hand(&demo);
    assert_int_equal(demo_ask(&demo, "POST", "/tokenize", "{\"prompt\":\"a\"}", &whole), 200);
    size_t before = heap_bytes();
    for (size_t i = 0; i < COUNT_OF(MORE); i++) {
        char *body = many_values(VALUES, MORE[i]);
        fds[i] = demo_send(&demo, "POST", TEXT, "", body);
        free(body);
        demo_wait_waiting(&demo, i + 1);
        for (int wait = 0; wait < 2000 && atomic_load(&demo.server->http->bodies_bytes) > 0; wait++)
            demo_nap();
        assert_int_equal(atomic_load(&demo.server->http->bodies_bytes), 0);
    }
    size_t after = heap_bytes();
    if (after > before + (4 << 20)) /* one tree has 30 MB */
        fail_msg("%zu bytes more", after - before);
    demo_finish(&demo);
    for (size_t i = 0; i < COUNT_OF(MORE); i++) {
        demo_read(fds[i], &whole);
        assert_int_equal(whole.status, 200);
        assert_true(whole.complete);
    }
    /* Nor of one that is refused, however long its client looks at the error. */
    char *body = many_values(VALUES, ",\"n\":99");
    int fd = demo_send(&demo, "POST", TEXT, "", body);
    free(body);
    for (int wait = 0; wait < 5000 && demo_metric(&demo, INVALID) < 1; wait++)
        demo_nap();
    assert_int_equal(atomic_load(&demo.server->http->bodies_bytes), 0);
    demo_read(fd, &whole);
    assert_int_equal(whole.status, 400);
    demo_end(&demo);
}

/* ---- clients that leave ---- */

/* 600 tokens of prompt, several steps; an answer that has no end of its own. */
static char *long_request(const char *more)
{
    char *body = malloc(8000);
    size_t n = (size_t)sprintf(body, "{\"prompt\":[7");

    for (int i = 1; i < 600; i++)
        n += (size_t)sprintf(body + n, ",%d", 7 + i % 50);
    (void)sprintf(body + n, "],\"max_tokens\":400,\"ignore_eos\":true%s}", more);
    return body;
}

static void wait_left(const struct demo *demo, double n)
{
    for (int i = 0; i < 1000 && left(demo) < n; i++)
        demo_nap();
    assert_true(left(demo) == n);
}

/* At each moment: the client's end is heard, and one more step is the last one. */
static void clients_leave(void **state)
{
    enum moment { QUEUED, PREFILL, ANSWERING, MOMENTS };
    static const char *const KINDS[] = {"", ",\"stream\":true", ",\"n\":3"};
    struct server_options options = demo_options();
    struct demo demo;
    double n_left = 0;

    (void)state;
    options.no_prefix_cache = true; /* every prompt takes its steps */
    demo_start(&demo, &options);
    demo_by_hand(&demo);
    for (size_t kind = 0; kind < COUNT_OF(KINDS); kind++) {
        char *body = long_request(KINDS[kind]);
        for (int moment = 0; moment < MOMENTS; moment++) {
            int fd = demo_send(&demo, "POST", TEXT, "", body);
            demo_wait_waiting(&demo, kind == 2 ? 3 : 1);
            if (moment == PREFILL)
                assert_true(demo_step(&demo));
            for (int i = 0; moment == ANSWERING && i < 40; i++)
                assert_true(demo_step(&demo));
            if (moment != QUEUED)
                assert_true(demo_view(&demo).n_running > 0);
            double tokens = demo_metric(&demo, "ferry_generation_tokens_total");
            (void)close(fd);
            wait_left(&demo, ++n_left);
            (void)demo_step(&demo);
            assert_int_equal(demo_view(&demo).n_running, 0);
            assert_int_equal(demo_view(&demo).n_waiting, 0);
            assert_int_equal(demo_view(&demo).n_pages_used, 0);
            demo_wait_answers(&demo, 0);
            assert_true(demo_metric(&demo, "ferry_generation_tokens_total") == tokens);
        }
        free(body);
    }
    /* The slots are free. */
    int fd = demo_send(&demo, "POST", TEXT, "", SHORT ",\"n\":4}");
    demo_wait_waiting(&demo, 4);
    demo_finish(&demo);
    demo_read(fd, &whole);
    assert_int_equal(whole.status, 200);
    demo_end(&demo);
}

/* 16 prompts of 30,000 characters each: a worker is busy with them for a while. */
static char *many_prompts(void)
{
    enum { PROMPTS = 16, CHARS = 30000 };
    char *body = malloc(PROMPTS * (CHARS + 3) + 32), *at = body;

    at += sprintf(at, "{\"prompt\":[");
    for (size_t i = 0; i < PROMPTS; i++) {
        *at++ = '"';
        for (size_t k = 0; k < CHARS; k++)
            *at++ = k % 7 == 0 ? ' ' : (char)('a' + (k * k + i) % 26);
        *at++ = '"';
        *at++ = ',';
    }
    (void)strcpy(at - 1, "]}");
    return body;
}

/* While a worker still reads the request, or soon after. */
static void clients_leave_at_once(void **state)
{
    struct server_options options = demo_options();
    struct demo demo;
    char *bodies[] = {long_request(""), long_request(",\"stream\":true"), many_prompts()};

    (void)state;
    demo_start(&demo, &options);
    demo_run(&demo);
    for (int i = 0; i < 120; i++) {
        int fd = demo_send(&demo, "POST", TEXT, "", bodies[i % 3]);
        if (i % 4 == 0)
            demo_nap();
        if (i % 5 == 0)
            (void)shutdown(fd, SHUT_WR);
        (void)close(fd);
    }
    demo_wait_idle(&demo);
    assert_int_equal(demo_ask(&demo, "POST", TEXT, SHORT "}", &whole), 200);
    demo_end(&demo);
    for (size_t i = 0; i < COUNT_OF(bodies); i++)
        free(bodies[i]);
}

/* ---- readers that are slow ---- */

#define LARGE                                                                     \
    "{\"messages\":[{\"role\":\"user\",\"content\":\"One\"}],\"max_tokens\":400," \
    "\"ignore_eos\":true,\"logprobs\":true,\"top_logprobs\":20,\"seed\":3,\"stream\":true}"

static void slow_reader(void **state)
{
    struct server_options options = demo_options();
    struct demo demo;
    int idle = 0;

    (void)state;
    options.http.stream_bytes = 8000;
    options.drain_seconds = 100;
    demo_start(&demo, &options);
    demo_by_hand(&demo);
    int other = demo_send(&demo, "POST", TEXT, "", SHORT ",\"stream\":true}");
    demo_wait_waiting(&demo, 1);
    int fd = demo_send(&demo, "POST", CHAT, "", LARGE);
    demo_wait_waiting(&demo, 2);
    /* It stands still: ten rounds without anything to do. */
    for (int i = 0; i < 3000 && idle < 10; i++) {
        bool busy = demo_step(&demo);
        idle = busy ? 0 : idle + 1;
        demo_nap();
    }
    assert_int_equal(idle, 10);
    assert_int_equal(demo_view(&demo).n_running, 0);
    assert_int_equal(demo_view(&demo).n_held, 1);
    double tokens = demo_metric(&demo, "ferry_generation_tokens_total");
    assert_true(tokens < 400);
    demo_read(other, &whole); /* who reads is served */
    assert_true(whole.complete);
    /* It goes on when it reads, and is what it is without a pause. */
    server_stop(demo.server); /* so that the run ends with it */
    demo_run(&demo);
    demo_read(fd, &stream);
    assert_true(stream.complete);
    assert_int_equal(count_of(stream.body, "data: [DONE]\n\n"), 1);
    demo_join(&demo);
    assert_true(demo_metric(&demo, "ferry_client_backpressure_seconds_total") > 0.005);
    assert_true(demo_metric(&demo, "ferry_generation_tokens_total") == 403);
    assert_true(left(&demo) == 0);
    demo_end(&demo);
}

/* ---- an engine that fails ---- */

/* What is written to stderr from here to said. */
static int listen_to_stderr(FILE **ret_file)
{
    int before = dup(STDERR_FILENO);

    *ret_file = tmpfile();
    assert_non_null(*ret_file);
    assert_true(before >= 0);
    assert_true(dup2(fileno(*ret_file), STDERR_FILENO) >= 0);
    return before;
}

static void said(int before, FILE *file, char *text, size_t size)
{
    assert_true(dup2(before, STDERR_FILENO) >= 0);
    (void)close(before);
    rewind(file);
    text[fread(text, 1, size - 1, file)] = 0;
    (void)fclose(file);
}

/* Failures of the server are lines of its log, one a second; mistakes of clients are not. */
static void failures_are_logged(void **state)
{
    struct demo demo;
    FILE *file;
    char text[8192], body[200];

    (void)state;
    demo_start_poisoned(&demo, 150);
    demo_run(&demo);
    for (int streamed = 0; streamed < 2; streamed++) {
        (void)snprintf(body, sizeof body, "{\"prompt\":[65,150],\"max_tokens\":4%s}",
                       streamed ? ",\"stream\":true" : "");
        atomic_store(&demo.server->log_next_ns, 0);
        int before = listen_to_stderr(&file);
        demo_read(demo_send(&demo, "POST", TEXT, "X-Request-Id: first.1\r\n", body), &whole);
        atomic_store(&demo.server->log_next_ns, UINT64_MAX); /* a second that does not end */
        for (int i = 0; i < 5; i++)
            (void)demo_ask(&demo, "POST", TEXT, body, &whole);
        assert_int_equal(demo_ask(&demo, "POST", TEXT, "{\"prompt\":\"secret\",\"n\":0}", &whole),
                         400);
        demo_wait_idle(&demo);
        atomic_store(&demo.server->log_next_ns, 0);
        (void)demo_ask(&demo, "POST", TEXT, body, &whole);
        said(before, file, text, sizeof text);
        assert_int_equal(count_of(text, "ferry: error: request "), 2);
        assert_non_null(strstr(text, "request first.1 failed with nonfinite_logits: "));
        assert_non_null(strstr(text, "(5 more since the last line)"));
        assert_null(strstr(text, "secret"));
    }
    demo_end(&demo);
}

static void poisoned(void **state)
{
    struct demo demo;

    (void)state;
    demo_start_poisoned(&demo, 150);
    demo_run(&demo);
    const char *good = "{\"prompt\":[65,66],\"max_tokens\":4,\"logit_bias\":{\"150\":-100},"
                       "\"ignore_eos\":true}";
    for (int i = 0; i < 3; i++) {
        assert_int_equal(
            demo_ask(&demo, "POST", TEXT, "{\"prompt\":[65,150],\"max_tokens\":4}", &whole), 500);
        assert_non_null(strstr(whole.body, "nonfinite_logits"));
        assert_int_equal(demo_ask(&demo, "POST", TEXT,
                                  "{\"prompt\":[65,150],\"max_tokens\":4,\"stream\":true}",
                                  &stream),
                         200);
        assert_false(stream.complete); /* cut: nobody may take it for an answer */
        assert_int_equal(count_of(stream.body, "data: {\"error\":"), 1);
        assert_int_equal(count_of(stream.body, "[DONE]"), 0);
        /* One of several prompts fails them all. */
        assert_int_equal(demo_ask(&demo, "POST", TEXT,
                                  "{\"prompt\":[[65],[150],[66]],\"max_tokens\":50}", &whole),
                         500);
        assert_int_equal(demo_ask(&demo, "POST", TEXT, good, &whole), 200);
        assert_int_equal(demo_ask(&demo, "POST", CHAT,
                                  "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}]}", &whole),
                         400);
        assert_non_null(strstr(whole.body, "chat template"));
    }
    demo_wait_idle(&demo);
    demo_end(&demo);
}

/* ---- memory that runs out ---- */

/* Steps until nothing is open, whatever the steps say. */
static void finish_anyhow(struct demo *demo)
{
    for (int i = 0; i < 5000; i++) {
        struct ferry_error err = {0};
        bool idle = true;
        enum ferry_status st = scheduler_step(demo->server->scheduler, &idle, &err);
        if (st != FERRY_OK)
            fail_msg("the engine is lost: %s", err.msg);
        if (idle && http_server_n_open(demo->server->http) == 0)
            return;
        if (idle)
            demo_nap();
    }
    fail_msg("an exchange stays open");
}

/* Allocation N of a request fails, for each N: it is refused, or cut so that everybody can tell;
 * never is a part of an answer passed off as all of it. */
static void out_of_memory(void **state)
{
    static const char *const MORE[] = {"", ",\"stream\":true"};
    struct server_options options = demo_options();
    static struct told want, got;
    struct demo demo;
    char body[300];

    (void)state;
    demo_start(&demo, &options);
    demo_by_hand(&demo);
    for (size_t kind = 0; kind < COUNT_OF(MORE); kind++) {
        size_t n = 0, n_refused = 0;
        (void)snprintf(body, sizeof body,
                       "{\"prompt\":[\"a\",\"b\"],\"max_tokens\":6,\"logprobs\":1,"
                       "\"temperature\":0,\"odd\":1%s}",
                       MORE[kind]);
        int fd = demo_send(&demo, "POST", TEXT, "", body);
        demo_wait_waiting(&demo, 2);
        finish_anyhow(&demo);
        demo_read(fd, &whole);
        told_init(&want, &whole, kind == 1, 1);
        for (bool failed = true; failed; n++) {
            uint64_t before = mem_count_calls();
            mem_fail_after(n + 1);
            fd = demo_send(&demo, "POST", TEXT, "", body);
            for (int i = 0; i < 5000 && atomic_load(&demo.server->n_answers) == 0 &&
                            mem_count_calls() < before + n + 1 && demo_view(&demo).n_waiting < 2;
                 i++)
                demo_nap();
            finish_anyhow(&demo);
            demo_read(fd, &stream);
            failed = mem_count_calls() >= before + n + 1;
            mem_fail_after(0);
            if (stream.status != 200 || !stream.complete) {
                n_refused++;
                assert_int_equal(count_of(stream.body, "[DONE]"), 0);
                if (stream.status != 200 && stream.status != 0)
                    if (stream.status != 503 && stream.status != 500)
                        fail_msg("allocation %zu: %d %.300s", n, stream.status, stream.body);
                continue;
            }
            told_init(&got, &stream, kind == 1, 1);
            check_same(&want, &got, body, n);
            told_fini(&got);
        }
        assert_true(n > 20);
        assert_true(n_refused > 10);
        told_fini(&want);
    }
    demo_end(&demo);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(streams_equal_whole_answers),
        cmocka_unit_test(details),
        cmocka_unit_test(ignored_names_are_told),
        cmocka_unit_test(echo),
        cmocka_unit_test(long_echoes),
        cmocka_unit_test(full_queue),
        cmocka_unit_test(half_a_request),
        cmocka_unit_test(queue_timeout),
        cmocka_unit_test(requests_are_forgotten),
        cmocka_unit_test(clients_leave),
        cmocka_unit_test(clients_leave_at_once),
        cmocka_unit_test(slow_reader),
        cmocka_unit_test(failures_are_logged),
        cmocka_unit_test(poisoned),
        cmocka_unit_test(out_of_memory),
    };

    return cmocka_run_group_tests(tests, demo_setup, demo_teardown);
}
