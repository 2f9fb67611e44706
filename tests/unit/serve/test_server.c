/* The server's life: start, stop, drain, and an end in every state; threads and descriptors that
 * come back; too few descriptors. */
#include "demo.h"

#include <dirent.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#define TEXT "/v1/completions"
#define SHORT \
    "{\"prompt\":\"One two three\",\"max_tokens\":3,\"ignore_eos\":true,\"temperature\":0}"
#define LONG(more)                                                                                \
    "{\"prompt\":\"One two three\",\"max_tokens\":300,\"ignore_eos\":true,\"temperature\":0" more \
    "}"

static struct reply reply, other;

static size_t n_entries(const char *path)
{
    DIR *dir = opendir(path);
    size_t n = 0;

    assert_non_null(dir);
    while (readdir(dir) != NULL)
        n++;
    (void)closedir(dir);
    return n;
}

static void wait_entries(const char *path, size_t most)
{
    for (int i = 0; i < 2000 && n_entries(path) > most; i++) /* a thread is there a bit longer */
        demo_nap();
    assert_true(n_entries(path) <= most);
}

static void rounds(void **state)
{
    struct server_options options = demo_options();
    struct demo demo;
    size_t descriptors = n_entries("/proc/self/fd"), threads = 0;

    (void)state;
    for (int i = 0; i < 20; i++) {
        if (i == 1) { /* a sanitizer has its own thread by now; ours take a moment to leave */
            for (int k = 0; k < 100; k++)
                demo_nap();
            threads = n_entries("/proc/self/task");
        }
        options.n_workers = (size_t)i % 4;
        demo_start(&demo, &options);
        if (i % 3 != 0) {
            demo_run(&demo);
            assert_int_equal(demo_ask(&demo, "POST", TEXT, SHORT, &reply), 200);
        }
        demo_end(&demo);
    }
    wait_entries("/proc/self/fd", descriptors);
    wait_entries("/proc/self/task", threads);
}

/* What was begun is finished, what is new is refused. */
static void drain(void **state)
{
    struct server_options options = demo_options();
    struct demo demo;

    (void)state;
    options.drain_seconds = 100;
    demo_start(&demo, &options);
    demo_by_hand(&demo);
    int whole = demo_send(&demo, "POST", TEXT, "", LONG(""));
    demo_wait_waiting(&demo, 1);
    int stream = demo_send(&demo, "POST", TEXT, "", LONG(",\"stream\":true"));
    demo_wait_waiting(&demo, 2);
    (void)demo_step(&demo);
    int queued = demo_send(&demo, "POST", TEXT, "", LONG(",\"n\":4"));
    demo_wait_waiting(&demo, 4);
    server_stop(demo.server);
    assert_int_equal(demo_ask(&demo, "GET", "/ready", NULL, &reply), 503);
    assert_int_equal(demo_ask(&demo, "POST", TEXT, SHORT, &reply), 503);
    assert_non_null(strstr(reply.all, "Retry-After: "));
    assert_non_null(strstr(reply.body, "shutting down"));
    demo_run(&demo);
    demo_read(whole, &reply);
    assert_int_equal(reply.status, 200);
    assert_true(reply.complete);
    demo_read(stream, &other);
    assert_true(other.complete);
    assert_int_equal(count_of(other.body, "data: [DONE]\n\n"), 1);
    demo_read(queued, &reply); /* it was taken: it is answered */
    assert_int_equal(reply.status, 200);
    assert_true(reply.complete);
    demo_join(&demo);
    assert_int_equal(demo.ended, FERRY_OK);
    demo_end(&demo);
}

/* A second stop, or the end of the time for it, breaks off what is left, and says so. */
static void break_off(void **state)
{
    struct server_options options = demo_options();
    struct demo demo;

    (void)state;
    for (int late = 0; late < 2; late++) {
        options.drain_seconds = late ? 0.1 : 100;
        demo_start(&demo, &options);
        demo_by_hand(&demo);
        int whole = demo_send(&demo, "POST", TEXT, "", LONG(",\"n\":2"));
        demo_wait_waiting(&demo, 2);
        int stream = demo_send(&demo, "POST", TEXT, "", LONG(",\"stream\":true"));
        demo_wait_waiting(&demo, 3);
        for (int i = 0; i < 6; i++)
            (void)demo_step(&demo);
        int queued = demo_send(&demo, "POST", TEXT, "", LONG(",\"n\":4"));
        demo_wait_waiting(&demo, 4);
        server_stop(demo.server);
        if (!late)
            server_stop(demo.server);
        demo_run(&demo);
        demo_read(whole, &reply);
        assert_int_equal(reply.status, 503);
        assert_non_null(strstr(reply.body, "shutting down"));
        demo_read(queued, &reply);
        assert_int_equal(reply.status, 503);
        demo_read(stream, &other);
        assert_int_equal(other.status, 200);
        assert_false(other.complete);
        assert_int_equal(count_of(other.body, "[DONE]"), 0);
        assert_int_equal(count_of(other.body, "data: {\"error\":"), 1);
        demo_join(&demo);
        assert_int_equal(demo.ended, FERRY_OK);
        demo_end(&demo);
    }
}

/* Nobody steps, nothing is drained: every exchange and every request is given back all the same
 * (leaks and threads are the sanitizers' part). */
static void end_in_every_state(void **state)
{
    enum { NOTHING, HALF_SENT, QUEUED, PREFILL, ANSWERING, HELD, STATES };
    struct server_options options = demo_options();
    size_t descriptors = n_entries("/proc/self/fd");
    struct demo demo;

    (void)state;
    options.http.stream_bytes = 300; /* of two pieces the second waits */
    for (int at = NOTHING; at < STATES; at++) {
        int fds[2] = {-1, -1};
        demo_start(&demo, &options);
        demo_by_hand(&demo);
        if (at == HALF_SENT) {
            fds[0] = web_connect(&demo.web);
            web_say(fds[0], "POST " TEXT
                            " HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{\"pr");
            for (int i = 0; i < 1000 && http_server_n_open(demo.server->http) == 0; i++)
                demo_nap();
        } else if (at >= QUEUED) {
            fds[0] = demo_send(&demo, "POST", TEXT, "", LONG(""));
            demo_wait_waiting(&demo, 1);
            fds[1] = demo_send(&demo, "POST", TEXT, "", LONG(",\"stream\":true,\"n\":2"));
            demo_wait_waiting(&demo, 3);
        }
        for (int i = 0; i < (at == PREFILL ? 1 : at == ANSWERING ? 5 : at == HELD ? 50 : 0); i++)
            (void)demo_step(&demo);
        server_destroy(demo.server);
        for (int i = 0; i < 2; i++) {
            if (fds[i] < 0)
                continue;
            demo_read(fds[i], &reply);
            assert_int_equal(count_of(reply.body, "[DONE]"), 0);
            assert_false(reply.status == 200 && reply.complete);
        }
    }
    wait_entries("/proc/self/fd", descriptors);
    server_destroy(NULL);
}

/* Right after it was taken, a request is with a worker, or on its way. */
static void end_while_workers_work(void **state)
{
    struct server_options options = demo_options();
    struct demo demo;
    int fds[16];

    (void)state;
    for (int round = 0; round < 6; round++) {
        demo_start(&demo, &options);
        demo_by_hand(&demo);
        for (size_t i = 0; i < COUNT_OF(fds); i++)
            fds[i] = demo_send(&demo, "POST", TEXT, "",
                               i % 2 == 0 ? LONG("") : LONG(",\"stream\":true,\"n\":2"));
        for (int i = 0; i < round; i++)
            demo_nap();
        server_destroy(demo.server);
        for (size_t i = 0; i < COUNT_OF(fds); i++) {
            demo_read(fds[i], &reply);
            assert_false(reply.status == 200 && reply.complete);
        }
    }
}

/* A job that says when it runs and waits to be let go. */
struct probe {
    struct job job;
    atomic_int begun; /* its place among all, from 1 */
    atomic_bool go;
};

static atomic_int n_begun;

static void run_probe(struct job *job)
{
    struct probe *p = (struct probe *)job;

    atomic_store(&p->begun, atomic_fetch_add(&n_begun, 1) + 1);
    for (int i = 0; i < 60000 && !atomic_load(&p->go); i++)
        demo_nap();
}

static void add_probe(struct demo *demo, struct probe *probe, enum job_kind kind)
{
    *probe = (struct probe){.job.run = run_probe};
    assert_true(server_add_job(demo->server, &probe->job, kind));
}

static void wait_begun(int n)
{
    for (int i = 0; i < 10000 && atomic_load(&n_begun) < n; i++)
        demo_nap();
    for (int i = 0; i < 20; i++) /* and no more */
        demo_nap();
    assert_int_equal(atomic_load(&n_begun), n);
}

/* Large requests leave a worker for the small ones; what ends an answer overtakes both; and nobody
 * is overtaken for ever. */
static void large_requests_hold_up_nobody(void **state)
{
    struct server_options options = demo_options();
    struct probe large[4], small[3], rest;
    struct demo demo;

    (void)state;
    options.n_workers = 2;
    demo_start(&demo, &options);
    atomic_store(&n_begun, 0);
    for (size_t i = 0; i < 3; i++)
        add_probe(&demo, &large[i], JOB_LARGE);
    wait_begun(1);
    assert_int_equal(atomic_load(&large[0].begun), 1);
    for (size_t i = 0; i < 2; i++)
        add_probe(&demo, &small[i], JOB_NEW);
    wait_begun(2);
    assert_int_equal(atomic_load(&small[0].begun), 2);
    add_probe(&demo, &rest, JOB_REST); /* behind all the others */
    atomic_store(&small[0].go, true);
    wait_begun(3);
    assert_int_equal(atomic_load(&rest.begun), 3);
    /* Who is done with a large one takes a small one if it is its turn, and the other way round. */
    atomic_store(&large[0].go, true);
    wait_begun(4);
    assert_int_equal(atomic_load(&large[1].begun) + atomic_load(&small[1].begun), 4);
    atomic_store(&rest.go, true);
    wait_begun(5);
    assert_int_equal(atomic_load(&large[1].begun) + atomic_load(&small[1].begun), 9);
    add_probe(&demo, &small[2], JOB_NEW);
    add_probe(&demo, &large[3], JOB_LARGE);
    atomic_store(&small[1].go, true);
    wait_begun(6);
    assert_int_equal(atomic_load(&small[2].begun), 6);
    for (size_t i = 0; i < COUNT_OF(large); i++)
        atomic_store(&large[i].go, true);
    atomic_store(&small[2].go, true);
    wait_begun(8); /* one behind the other */
    demo_end(&demo);
    /* One worker does everything. */
    options.n_workers = 1;
    demo_start(&demo, &options);
    atomic_store(&n_begun, 0);
    add_probe(&demo, &small[0], JOB_NEW);
    wait_begun(1);
    for (size_t i = 0; i < 2; i++)
        add_probe(&demo, &large[i], JOB_LARGE);
    for (size_t i = 1; i < 3; i++)
        add_probe(&demo, &small[i], JOB_NEW);
    for (int i = 0; i < 2; i++) {
        atomic_store(&small[i].go, true);
        wait_begun(2 + 2 * i);
        assert_int_equal(atomic_load(&large[i].begun), 2 + 2 * i); /* in turn */
        atomic_store(&large[i].go, true);
        wait_begun(3 + 2 * i);
        assert_int_equal(atomic_load(&small[i + 1].begun), 3 + 2 * i);
    }
    add_probe(&demo, &large[2], JOB_LARGE); /* in the queue at the end: it is done all the same */
    atomic_store(&large[2].go, true);
    atomic_store(&small[2].go, true);
    demo_end(&demo);
    assert_int_equal(atomic_load(&n_begun), 6);
}

/* Which of them a request is goes by its body. */
static void large_bodies_are_large(void **state)
{
    struct server_options options = demo_options();
    size_t size = 300 << 10;
    char *body = malloc(size + 1);
    struct probe large;
    struct demo demo;

    (void)state;
    options.n_workers = 2;
    demo_start(&demo, &options);
    demo_run(&demo);
    atomic_store(&n_begun, 0);
    add_probe(&demo, &large, JOB_LARGE);
    wait_begun(1);
    (void)memset(body, ' ', size);
    (void)memcpy(body, SHORT, strlen(SHORT));
    body[size] = 0;
    int fd = demo_send(&demo, "POST", TEXT, "", body);
    demo_wait_answers(&demo, 1);
    for (int i = 0; i < 50; i++) {
        assert_int_equal(demo_ask(&demo, "POST", TEXT, SHORT, &reply), 200);
        assert_int_equal(atomic_load(&demo.server->n_answers), 1);
    }
    atomic_store(&large.go, true);
    demo_read(fd, &reply);
    assert_int_equal(reply.status, 200);
    free(body);
    demo_end(&demo);
}

static void refusals(void **state)
{
    struct server_options options = demo_options();
    struct ferry_error err = {0};
    struct demo demo;

    (void)state;
    demo_start(&demo, &options);
    size_t descriptors = n_entries("/proc/self/fd"), threads = n_entries("/proc/self/task");
    options.http.port = demo.web.port;
    assert_int_equal(demo_try(&options, &err), FERRY_ERR_IO);
    assert_non_null(strstr(err.msg, "--port"));
    options = demo_options();
    options.http.host = "0.0.0.0";
    assert_int_equal(demo_try(&options, &err), FERRY_ERR_ARG);
    options = demo_options();
    options.http.tls_cert = options.http.tls_key = "none";
    assert_int_equal(demo_try(&options, &err), FERRY_ERR_ARG);
    wait_entries("/proc/self/fd", descriptors);
    wait_entries("/proc/self/task", threads);
    demo_end(&demo);
}

/* Stopped by a signal handler, as the command does it, while it sleeps. */
static struct server *stopped_by_signal;

static void on_signal(int sig)
{
    (void)sig;
    server_stop(stopped_by_signal);
}

static void signals(void **state)
{
    struct sigaction action = {.sa_handler = on_signal}, before;
    struct server_options options = demo_options();
    struct demo demo;

    (void)state;
    demo_start(&demo, &options);
    stopped_by_signal = demo.server;
    assert_int_equal(sigaction(SIGTERM, &action, &before), 0);
    demo_run(&demo);
    assert_int_equal(demo_ask(&demo, "POST", TEXT, SHORT, &reply), 200);
    assert_int_equal(kill(getpid(), SIGTERM), 0);
    demo_join(&demo);
    assert_int_equal(demo.ended, FERRY_OK);
    assert_int_equal(sigaction(SIGTERM, &before, NULL), 0);
    demo_end(&demo);
}

/* More clients than descriptors: those that got one are served, the others when there are some
 * again. */
static void few_descriptors(void **state)
{
    struct server_options options = demo_options();
    struct sockaddr_storage address;
    socklen_t size = sizeof address;
    struct rlimit before, few;
    struct demo demo;
    int fds[24];
    size_t n_served = 0;

    (void)state;
    demo_start(&demo, &options);
    demo_run(&demo);
    int probe = web_connect(&demo.web);
    assert_int_equal(getpeername(probe, (struct sockaddr *)(void *)&address, &size), 0);
    for (size_t i = 0; i < COUNT_OF(fds); i++) { /* ours first: both sides are one process */
        fds[i] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        assert_true(fds[i] >= 0);
    }
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
    few = before;
    few.rlim_cur = (rlim_t)fds[COUNT_OF(fds) - 1] + 8;
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &few), 0);
    for (size_t i = 0; i < COUNT_OF(fds); i++) {
        static const char ASK[] = "GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n";
        assert_int_equal(connect(fds[i], (struct sockaddr *)(void *)&address, size), 0);
        web_say(fds[i], ASK);
    }
    for (size_t i = 0; i < COUNT_OF(fds); i++) { /* one after the other makes room */
        static char text[4096];
        if (!web_hear(fds[i], text, sizeof text, "\"status\":\"ok\""))
            fail_msg("client %zu was not served", i);
        n_served++;
        (void)close(fds[i]);
    }
    (void)close(probe);
    assert_int_equal(n_served, COUNT_OF(fds));
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
    assert_int_equal(demo_ask(&demo, "POST", TEXT, SHORT, &reply), 200);
    demo_end(&demo);
}

static void *one_client(void *arg)
{
    static const char *const BODIES[] = {SHORT, LONG(",\"stream\":true"), "{", LONG(""),
                                         "{\"prompt\":[\"a\",\"b\"],\"n\":2,\"max_tokens\":5}"};
    const struct demo *demo = arg;
    static atomic_int turn;
    struct reply *r = malloc(sizeof *r);

    for (int i = 0; i < 10; i++) {
        int k = atomic_fetch_add(&turn, 1);
        int fd = demo_send(demo, "POST", TEXT, "", BODIES[k % 5]);
        if (k % 5 == 1 || k % 5 == 3) { /* they leave */
            for (int wait = 0; wait < k % 9; wait++)
                demo_nap();
            (void)close(fd);
            continue;
        }
        demo_read(fd, r);
        if (r->status != (k % 5 == 2 ? 400 : 200) || !r->complete)
            fail_msg("%s: %d %.200s", BODIES[k % 5], r->status, r->body);
    }
    free(r);
    return NULL;
}

static void many_clients(void **state)
{
    struct server_options options = demo_options();
    pthread_t threads[8];
    struct demo demo;

    (void)state;
    demo_start(&demo, &options);
    demo_run(&demo);
    for (size_t i = 0; i < COUNT_OF(threads); i++)
        assert_int_equal(pthread_create(&threads[i], NULL, one_client, &demo), 0);
    for (int i = 0; i < 20; i++) {
        assert_int_equal(demo_ask(&demo, "GET", "/metrics", NULL, &reply), 200);
        assert_int_equal(demo_ask(&demo, "GET", "/health", NULL, &reply), 200);
    }
    for (size_t i = 0; i < COUNT_OF(threads); i++)
        assert_int_equal(pthread_join(threads[i], NULL), 0);
    demo_wait_idle(&demo);
    assert_int_equal(demo_view(&demo).n_pages_used, 0);
    demo_end(&demo);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rounds),
        cmocka_unit_test(drain),
        cmocka_unit_test(break_off),
        cmocka_unit_test(end_in_every_state),
        cmocka_unit_test(end_while_workers_work),
        cmocka_unit_test(large_requests_hold_up_nobody),
        cmocka_unit_test(large_bodies_are_large),
        cmocka_unit_test(refusals),
        cmocka_unit_test(signals),
        cmocka_unit_test(few_descriptors),
        cmocka_unit_test(many_clients),
    };

    (void)signal(SIGPIPE, SIG_IGN); /* as the command does */
    return cmocka_run_group_tests(tests, demo_setup, demo_teardown);
}
