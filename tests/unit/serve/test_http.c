/* Connections over real sockets: answers from other threads, clients that leave, slow readers,
 * limits of the loop. */
#include "web.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define GET(path)  "GET " path " HTTP/1.1\r\nHost: localhost\r\n"
#define LAST       "Connection: close\r\n\r\n"
#define POST(path) "POST " path " HTTP/1.1\r\nHost: localhost\r\n"

static char text[1 << 16];

static void answers(void **state)
{
    struct web web = {0};

    (void)state;
    web_start(&web, web_options());
    assert_int_equal(
        web_ask(&web, POST("/echo") "Content-Length: 5\r\n" LAST "hello", text, sizeof text), 200);
    assert_non_null(strstr(text, "\r\n\r\nhello"));
    assert_non_null(strstr(text, "X-Request-Id: "));
    assert_int_equal(
        web_ask(&web, POST("/later") "Content-Length: 5\r\n" LAST "hello", text, sizeof text), 200);
    assert_non_null(strstr(text, "\r\n\r\nhello"));
    assert_int_equal(web_ask(&web,
                             POST("/echo") "Transfer-Encoding: chunked\r\n" LAST
                                           "3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n",
                             text, sizeof text),
                     200);
    assert_non_null(strstr(text, "\r\n\r\nabcde"));
    assert_int_equal(web_ask(&web, GET("/nowhere") LAST, text, sizeof text), 404);
    assert_non_null(strstr(text, "\"code\":\"not_found\""));
    assert_non_null(
        strstr(text, "\"param\":\"path\"")); /* and the message's bad byte is not in it */
    assert_null(strchr(text, '\xff'));
    web_wait(&web.n_closed, 1); /* only /later was owned */
    web_stop(&web);
    assert_int_equal(web.n_closed, 1);
    assert_int_equal(web.n_gone, 0);
}

/* Whoever creates a server stores where it is before any handler could look there. */
static void nobody_is_heard_before_the_start(void **state)
{
    struct web web = {.waits = true}, unused = {.waits = true};
    struct ferry_error err = {0};
    const struct timespec pause = {.tv_nsec = 100000000};

    (void)state;
    web_start(&web, web_options());
    int fd = web_connect(&web);
    web_say(fd, POST("/echo") "Content-Length: 5\r\n" LAST "hello");
    (void)nanosleep(&pause, NULL);
    assert_int_equal(web.n_handled, 0);
    assert_int_equal(http_server_start(web.server, &err), FERRY_OK);
    assert_true(web_hear(fd, text, sizeof text, "\r\n\r\nhello"));
    assert_int_equal(web.n_handled, 1);
    (void)close(fd);
    web_stop(&web);
    web_start(&unused, web_options());
    web_stop(&unused);
}

static void connections_are_kept(void **state)
{
    struct web web = {0};

    (void)state;
    web_start(&web, web_options());
    int fd = web_connect(&web);
    /* Two at once, the first of which waits for a thread. */
    web_say(fd, POST("/later") "Content-Length: 3\r\n\r\none" POST(
                    "/echo") "Content-Length: 3\r\n\r\ntwo");
    assert_true(web_hear(fd, text, sizeof text, "two"));
    assert_true(strstr(text, "one") < strstr(text, "two"));
    web_say(fd, POST("/echo") "Expect: 100-continue\r\nContent-Length: 5\r\n\r\n");
    assert_true(web_hear(fd, text, sizeof text, "100 Continue"));
    web_say(fd, "three");
    assert_true(web_hear(fd, text, sizeof text, "three"));
    http_server_drain(web.server);
    web_say(fd, POST("/echo") "Content-Length: 4\r\n\r\nfour");
    assert_true(web_hear(fd, text, sizeof text, "four"));
    assert_non_null(strstr(text, "Connection: close"));
    (void)close(fd);
    web_stop(&web);
}

static void streams(void **state)
{
    struct web web = {.n_pieces = 100, .piece_bytes = 1000};
    size_t n = 0;

    (void)state;
    web_start(&web, web_options());
    static char all[1 << 18];
    assert_int_equal(web_ask(&web, GET("/stream") LAST, all, sizeof all), 200);
    for (const char *c = strstr(all, "\r\n\r\n"); *c != 0; c++)
        n += *c == 'x';
    assert_int_equal(n, 100000);
    assert_non_null(strstr(all, "\r\n0\r\n")); /* HTTP's end mark */
    assert_int_equal(web_ask(&web, GET("/fail") LAST, all, sizeof all), 200);
    assert_non_null(strstr(all, "data: half"));
    assert_null(strstr(all, "\r\n0\r\n"));
    web_stop(&web);
    assert_int_equal(web.n_closed, 2);
}

static void headers_and_comments_come_in_time(void **state)
{
    struct web web = {.quiet_ms = 600};
    struct http_options options = web_options();

    (void)state;
    options.keepalive_ms = 100;
    web_start(&web, options);
    int fd = web_connect(&web);
    web_say(fd, GET("/quiet") LAST);
    assert_true(web_hear(fd, text, sizeof text, "text/event-stream"));
    assert_null(strstr(text, "data: end"));
    assert_true(web_hear(fd, text, sizeof text, "data: end"));
    size_t n = 0;
    for (const char *at = text; (at = strstr(at, ": keep-alive\n\n")) != NULL; at++)
        n++;
    assert_true(n >= 2);
    (void)close(fd);
    web_stop(&web);
}

static void clients_leave(void **state)
{
    struct web web = {.n_pieces = 1000000, .piece_bytes = 1000, .quiet_ms = 60000};

    (void)state;
    web_start(&web, web_options());
    int fd = web_connect(&web); /* while it waits for its answer */
    web_say(fd, GET("/hang") LAST);
    web_wait(&web.n_handled, 1);
    (void)close(fd);
    web_wait(&web.n_gone, 1);
    fd = web_connect(&web); /* half: it will send nothing more, so nobody is left who asks */
    web_say(fd, GET("/hang") LAST);
    web_wait(&web.n_handled, 2);
    (void)shutdown(fd, SHUT_WR);
    web_wait(&web.n_gone, 2);
    (void)close(fd);
    fd = web_connect(&web); /* in the middle of a stream */
    web_say(fd, GET("/stream") LAST);
    assert_true(web_hear(fd, text, sizeof text, "xxxx"));
    (void)close(fd);
    web_wait(&web.n_gone, 3);
    web_wait(&web.n_cancelled, 1);
    fd = web_connect(&web); /* of a stream that is silent */
    web_say(fd, GET("/quiet") LAST);
    assert_true(web_hear(fd, text, sizeof text, "event-stream"));
    (void)close(fd);
    web_wait(&web.n_gone, 4);
    fd = web_connect(&web); /* and in the middle of its own request */
    web_say(fd, POST("/echo") "Content-Length: 100\r\n\r\nhalf");
    (void)close(fd);
    web_wait(&web.n_closed, 4);
    assert_int_equal(web_ask(&web, GET("/echo") LAST, text, sizeof text), 200);
    web_stop(&web);
    assert_int_equal(web.n_gone, 4);
}

/* At once, and not at the next tick of 50 ms: every step of the engine for nobody is one too many.
 * The fastest of ten, since the machine may be busy. */
static void clients_are_missed_at_once(void **state)
{
    struct web web = {0};
    double fastest = 1;

    (void)state;
    web_start(&web, web_options());
    for (int i = 1; i <= 10; i++) {
        struct timespec from, to;
        int fd = web_connect(&web);
        web_say(fd, GET("/hang") LAST);
        web_wait(&web.n_handled, i);
        (void)clock_gettime(CLOCK_MONOTONIC, &from);
        (void)close(fd);
        web_wait(&web.n_gone, i);
        (void)clock_gettime(CLOCK_MONOTONIC, &to);
        double s = (double)(to.tv_sec - from.tv_sec) + (double)(to.tv_nsec - from.tv_nsec) * 1e-9;
        fastest = s < fastest ? s : fastest;
    }
    assert_true(fastest < 0.04);
    web_stop(&web);
}

static void slow_readers(void **state)
{
    struct web web = {.n_pieces = 100000, .piece_bytes = 1000};
    struct http_options options = web_options();

    (void)state;
    options.stall_ms = 300;
    web_start(&web, options);
    int fd = web_connect(&web);
    web_say(fd, GET("/stream") LAST);
    web_wait(&web.n_again, 1);
    /* Others are served meanwhile. */
    assert_int_equal(
        web_ask(&web, POST("/later") "Content-Length: 2\r\n" LAST "hi", text, sizeof text), 200);
    web_wait(&web.n_gone, 1);
    web_wait(&web.n_closed, 2);
    (void)close(fd);
    /* A slow one that does read is not dropped. */
    fd = web_connect(&web);
    web_say(fd, GET("/stream") LAST);
    for (int i = 0; i < 50; i++) {
        struct timespec t = {0, 20000000};
        (void)nanosleep(&t, NULL);
        assert_true(recv(fd, text, 30000, 0) > 0);
    }
    assert_int_equal(web.n_gone, 1);
    assert_true(web.n_drained > 0);
    (void)close(fd);
    web_wait(&web.n_gone, 2);
    web_wait(&web.n_closed, 3); /* its owner has ended: nobody uses the exchange any more */
    web_stop(&web);
}

/* One address has so many connections and no more, and gets its place back. */
static void peers_have_a_share(void **state)
{
    struct web web = {0};
    struct http_options options = web_options();
    int fds[4];

    (void)state;
    options.max_per_peer = 3;
    web_start(&web, options);
    for (int round = 0; round < 2; round++) {
        for (size_t i = 0; i < 4; i++) {
            fds[i] = web_connect(&web);
            if (i < 3) {
                web_say(fds[i], POST("/echo") "Content-Length: 3\r\n\r\none");
                assert_true(web_hear(fds[i], text, sizeof text, "one"));
            }
        }
        struct timeval patience = {5, 0};
        assert_int_equal(setsockopt(fds[3], SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience),
                         0);
        assert_true(recv(fds[3], text, sizeof text, 0) == 0 || errno == ECONNRESET);
        for (size_t i = 0; i < 4; i++)
            (void)close(fds[i]);
        struct timespec t = {0, 300000000};
        (void)nanosleep(&t, NULL);
    }
    web_stop(&web);
}

static void *one_client(void *arg)
{
    const struct web *web = arg;
    char answer[4096];
    size_t good = 0;

    for (int i = 0; i < 20; i++)
        good += web_ask(web, POST("/later") "Content-Length: 5\r\n" LAST "hello", answer,
                        sizeof answer) == 200 &&
                strstr(answer, "\r\n\r\nhello") != NULL;
    return (void *)(uintptr_t)good;
}

static size_t n_descriptors(void)
{
    DIR *dir = opendir("/proc/self/fd");
    size_t n = 0;

    while (readdir(dir) != NULL)
        n++;
    (void)closedir(dir);
    return n;
}

static void many_clients(void **state)
{
    struct web web = {0};
    pthread_t threads[64];

    (void)state;
    web_start(&web, web_options());
    assert_int_equal(web_ask(&web, GET("/echo") LAST, text, sizeof text), 200);
    size_t before = n_descriptors();
    for (size_t i = 0; i < 64; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, one_client, &web), 0);
    for (size_t i = 0; i < 64; i++) {
        void *good = NULL;
        assert_int_equal(pthread_join(threads[i], &good), 0);
        assert_int_equal((uintptr_t)good, 20);
    }
    for (int i = 0; i < 1000; i++) { /* connections that say nothing, or garbage */
        int fd = web_connect(&web);
        if (i % 2 == 0)
            web_send(fd, "\x16\x03\x01\x00\xff\x00\r\n\r\n", 10);
        (void)close(fd);
    }
    assert_int_equal(web_ask(&web, GET("/echo") LAST, text, sizeof text), 200);
    web_wait(&web.n_closed, 1280);
    for (int i = 0; i < 200 && n_descriptors() > before; i++) {
        struct timespec t = {0, 10000000};
        (void)nanosleep(&t, NULL);
    }
    assert_true(n_descriptors() <= before);
    web_stop(&web);
}

static void stopping_while_busy(void **state)
{
    struct web web = {.n_pieces = 1000000, .piece_bytes = 1000};

    (void)state;
    web_start(&web, web_options());
    int fds[6];
    for (int i = 0; i < 6; i++) {
        fds[i] = web_connect(&web);
        web_say(fds[i],
                i % 2 == 0 ? GET("/stream") LAST : POST("/echo") "Content-Length: 9\r\n\r\nhal");
    }
    web_wait(&web.n_handled, 3);
    /* The owners have to end first; they do when the clients leave. */
    for (int i = 0; i < 6; i++)
        (void)close(fds[i]);
    web_wait(&web.n_closed, 3);
    web_stop(&web);
    /* Clients that wait for an answer are told by the end of their connection. */
    web = (struct web){0};
    web_start(&web, web_options());
    for (int i = 0; i < 6; i++) {
        fds[i] = web_connect(&web);
        web_say(fds[i], i < 4 ? GET("/hang") "\r\n" : GET("/hang"));
    }
    web_wait(&web.n_handled, 4);
    web_stop(&web);
    assert_int_equal(web.n_gone, 4);
    assert_int_equal(web.n_closed, 4);
    for (int i = 0; i < 6; i++) {
        assert_false(web_hear(fds[i], text, sizeof text, "HTTP/1.1"));
        (void)close(fds[i]);
    }
}

static void addresses(void **state)
{
    struct web web = {0};
    struct http_server *second = NULL;
    struct ferry_error err = {0};

    (void)state;
    web_start(&web, web_options());
    struct http_options options = web_options();
    options.port = web.port;
    assert_int_equal(http_server_create(&second, &options, &err), FERRY_ERR_IO);
    assert_non_null(strstr(err.msg, "--port"));
    options = web_options();
    options.host = "0.0.0.0";
    assert_int_equal(http_server_create(&second, &options, &err), FERRY_ERR_ARG);
    assert_non_null(strstr(err.msg, "--api-key-file"));
    options.host = "no such host";
    assert_int_equal(http_server_create(&second, &options, &err), FERRY_ERR_ARG);
    options = web_options();
    options.tls_cert = options.tls_key = "no certificate";
    assert_int_equal(http_server_create(&second, &options, &err), FERRY_ERR_ARG);
    web_stop(&web);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(answers),
        cmocka_unit_test(nobody_is_heard_before_the_start),
        cmocka_unit_test(connections_are_kept),
        cmocka_unit_test(streams),
        cmocka_unit_test(headers_and_comments_come_in_time),
        cmocka_unit_test(clients_leave),
        cmocka_unit_test(clients_are_missed_at_once),
        cmocka_unit_test(slow_readers),
        cmocka_unit_test(peers_have_a_share),
        cmocka_unit_test(many_clients),
        cmocka_unit_test(stopping_while_busy),
        cmocka_unit_test(addresses),
    };
    (void)signal(SIGPIPE, SIG_IGN); /* as the command does */
    return cmocka_run_group_tests(tests, NULL, NULL);
}
