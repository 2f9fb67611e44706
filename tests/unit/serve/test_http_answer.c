/* What goes out: errors of any bytes, headers that cannot be split, pieces that are not held back,
 * answers that nobody reads. */
#include "web.h"

#include <jansson.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define GET(path) "GET " path " HTTP/1.1\r\nHost: localhost\r\n"
#define LAST      "Connection: close\r\n\r\n"

static char text[1 << 16];

static double now(void)
{
    struct timespec t;

    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void errors_are_json(void **state)
{
    struct web web = {0};

    (void)state;
    web_start(&web, web_options());
    assert_int_equal(web_ask(&web, GET("/odd") LAST, text, sizeof text), 400);
    json_t *all = json_loads(strstr(text, "\r\n\r\n") + 4, 0, NULL);
    json_t *error = json_object_get(all, "error");
    assert_string_equal(json_string_value(json_object_get(error, "type")), "invalid_request_error");
    assert_string_equal(json_string_value(json_object_get(error, "code")), "odd");
    assert_int_equal(json_string_length(json_object_get(error, "message")), 511);
    assert_int_equal(json_string_length(json_object_get(error, "param")), 255);
    json_decref(all);
    assert_int_equal(web_ask(&web, GET("/nowhere") LAST, text, sizeof text), 404);
    all = json_loads(strstr(text, "\r\n\r\n") + 4, 0, NULL);
    assert_string_equal(
        json_string_value(json_object_get(json_object_get(all, "error"), "message")),
        "no ? such \"path\"");
    json_decref(all);
    web_stop(&web);
}

static void headers_stay_one_line(void **state)
{
    struct web web = {0};

    (void)state;
    web_start(&web, web_options());
    assert_int_equal(web_ask(&web, GET("/noted") LAST, text, sizeof text), 200);
    assert_non_null(strstr(text, "\r\nX-Odd: aX-Injected: b\r\n"));
    assert_null(strstr(text, "\nX-Injected"));
    assert_non_null(strstr(text, "X-Content-Type-Options: nosniff"));
    /* HEAD has the headers of GET and nothing behind them. */
    assert_int_equal(
        web_ask(&web, "HEAD /noted HTTP/1.1\r\nHost: localhost\r\n" LAST, text, sizeof text), 200);
    assert_non_null(strstr(text, "Content-Length: 2\r\n"));
    assert_string_equal(strstr(text, "\r\n\r\n"), "\r\n\r\n");
    web_stop(&web);
}

/* No piece waits for the next one: neither in libmicrohttpd nor in the kernel (Nagle, cork). */
static void pieces_go_out_at_once(void **state)
{
    struct http_options options = web_options();
    struct web web = {.quiet_ms = 1500};
    double begun, first, second;

    (void)state;
    options.keepalive_ms = 400;
    web_start(&web, options);
    int fd = web_connect(&web);
    begun = now();
    web_say(fd, GET("/quiet") LAST);
    assert_true(web_hear(fd, text, sizeof text, "\r\n\r\n")); /* headers, before anything is said */
    first = now();
    assert_true(first - begun < 0.35);
    assert_true(web_hear(fd, text, sizeof text, ": keep-alive"));
    second = now();
    assert_in_range((int)((second - begun) * 1000), 380, 1200);
    assert_true(web_hear(fd, text, sizeof text, "data: end"));
    (void)close(fd);
    web_wait(&web.n_closed, 1);
    web_stop(&web);
}

/* Nothing is said for longer than a connection may be idle (a long prompt in a long queue): it is
 * the server that is silent, not its client. */
static void silence_is_not_idleness(void **state)
{
    struct http_options options = web_options();
    struct web web = {.quiet_ms = 3000};

    (void)state;
    options.idle_seconds = options.read_seconds = 1;
    options.keepalive_ms = 60000;
    web_start(&web, options);
    assert_int_equal(web_ask(&web, GET("/quiet") LAST, text, sizeof text), 200);
    assert_non_null(strstr(text, "data: end"));
    assert_int_equal(web.n_gone, 0);
    web_wait(&web.n_closed, 1);
    web_stop(&web);
}

static size_t read_all(int fd)
{
    size_t n = 0;
    ssize_t got;

    while ((got = recv(fd, text, sizeof text, 0)) > 0)
        n += (size_t)got;
    return n;
}

static void long_answers(void **state)
{
    struct web web = {.n_pieces = 8, .piece_bytes = 1 << 20};

    (void)state;
    web_start(&web, web_options());
    int fd = web_connect(&web);
    web_say(fd, GET("/big") LAST);
    assert_in_range(read_all(fd), 8 << 20, (8 << 20) + 1000);
    (void)close(fd);
    fd = web_connect(&web); /* one that leaves in the middle of it */
    web_say(fd, GET("/big") LAST);
    assert_true(recv(fd, text, 1000, 0) > 0);
    (void)close(fd);
    for (int i = 0; i < 500 && http_server_n_open(web.server) > 0; i++) {
        struct timespec t = {0, 10000000};
        (void)nanosleep(&t, NULL);
    }
    assert_int_equal(http_server_n_open(web.server), 0);
    web_stop(&web);
}

/* An answer as a whole, of which the reader takes nothing, ends like a stream. */
static void nobody_reads_a_long_answer(void **state)
{
    struct http_options options = web_options();
    struct web web = {.n_pieces = 8, .piece_bytes = 1 << 20};
    double begun = now();

    (void)state;
    options.stall_ms = 300;
    web_start(&web, options);
    int fd = web_connect(&web);
    web_say(fd, GET("/big") LAST);
    web_wait(&web.n_handled, 1);
    for (int i = 0; i < 500 && http_server_n_open(web.server) > 0; i++) {
        struct timespec t = {0, 10000000};
        (void)nanosleep(&t, NULL);
    }
    assert_int_equal(http_server_n_open(web.server), 0);
    assert_true(now() - begun > 0.29);
    (void)close(fd);
    web_stop(&web);
}

/* A writer that does not heed AGAIN loses its client, not the server its memory. */
static void the_buffer_ends(void **state)
{
    struct web web = {.n_pieces = 100000, .piece_bytes = 1000};

    (void)state;
    web_start(&web, web_options());
    int fd = web_connect(&web);
    web_say(fd, GET("/flood") LAST);
    web_wait(&web.n_cancelled, 1);
    web_wait(&web.n_closed, 1);
    assert_true(web.n_again > 10);
    assert_true(web.n_again < 3000); /* 64 times 16 KiB, and what the sockets hold */
    (void)close(fd);
    web_stop(&web);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(errors_are_json),       cmocka_unit_test(headers_stay_one_line),
        cmocka_unit_test(pieces_go_out_at_once), cmocka_unit_test(silence_is_not_idleness),
        cmocka_unit_test(long_answers),          cmocka_unit_test(nobody_reads_a_long_answer),
        cmocka_unit_test(the_buffer_ends),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
