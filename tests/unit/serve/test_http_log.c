/* The access log: its members, what it must never hold, and a reader that does not read. */
#include "web.h"

#include <fcntl.h>
#include <jansson.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define HOST "Host: localhost\r\n"
#define LAST "Connection: close\r\n\r\n"

static char text[1 << 16];

/* The next line, as JSON; NULL when there is none for two seconds. */
static json_t *next_line(int fd)
{
    char line[8192];
    size_t n = 0;

    for (int i = 0; i < 2000 && n + 1 < sizeof line; i++) {
        while (n + 1 < sizeof line && read(fd, line + n, 1) == 1) {
            if (line[n++] == '\n') {
                line[n] = 0;
                assert_null(strstr(line, "secret"));
                return json_loads(line, 0, NULL);
            }
        }
        struct timespec t = {0, 1000000};
        (void)nanosleep(&t, NULL);
    }
    return NULL;
}

static void assert_word(const json_t *line, const char *name, const char *value)
{
    assert_string_equal(json_string_value(json_object_get(line, name)), value);
}

static void assert_number(const json_t *line, const char *name, json_int_t value)
{
    assert_true(json_is_integer(json_object_get(line, name)));
    assert_int_equal(json_integer_value(json_object_get(line, name)), value);
}

static void members(void **state)
{
    struct http_options options = web_options();
    struct auth *auth = NULL;
    struct web web = {0};
    int ends[2];

    (void)state;
    assert_int_equal(pipe2(ends, O_CLOEXEC), 0);
    assert_int_equal(fcntl(ends[0], F_SETFL, O_NONBLOCK), 0);
    assert_int_equal(auth_create(&auth, "other\nsecret-key\n", 17, NULL), FERRY_OK);
    options.log_fd = ends[1];
    options.auth = auth;
    web_start(&web, options);
    assert_int_equal(web_ask(&web,
                             "POST /noted?secret-query HTTP/1.1\r\n" HOST
                             "X-Request-Id: id-1\r\nAuthorization: Bearer secret-key\r\n"
                             "Content-Length: 13\r\n" LAST "secret prompt",
                             text, sizeof text),
                     200);
    json_t *line = next_line(ends[0]);
    assert_word(line, "id", "id-1");
    assert_word(line, "method", "POST");
    assert_word(line, "route", "test");
    assert_word(line, "finish", "stop");
    assert_number(line, "status", 200);
    assert_number(line, "key", 1);
    assert_number(line, "bytes_in", 13);
    assert_number(line, "bytes_out", 1);
    assert_number(line, "tokens", 7);
    assert_true(json_is_false(json_object_get(line, "client_left")));
    assert_true(json_is_false(json_object_get(line, "stream")));
    assert_true(json_real_value(json_object_get(line, "seconds")) > 0);
    assert_int_equal(json_string_length(json_object_get(line, "time")), 24);
    json_decref(line);
    /* Wrong keys and odd methods are not repeated either, and their lines are JSON. */
    assert_int_equal(web_ask(&web, "GET /secret HTTP/1.1\r\n" HOST "x-api-key: secret-ke\r\n" LAST,
                             text, sizeof text),
                     401);
    line = next_line(ends[0]);
    assert_number(line, "status", 401);
    assert_number(line, "key", -1);
    assert_word(line, "route", "other");
    json_decref(line);
    assert_int_equal(web_ask(&web, "G\xff\"T /x HTTP/1.1\r\n" HOST LAST, text, sizeof text), 400);
    line = next_line(ends[0]);
    assert_word(line, "method", "G?\"T");
    json_decref(line);
    /* Probes are left out. */
    assert_int_equal(web_ask(&web, "GET /health HTTP/1.1\r\n" HOST LAST, text, sizeof text), 404);
    int fd = web_connect(&web);
    web_say(fd, "GET /hang HTTP/1.1\r\n" HOST "x-api-key: other\r\n\r\n");
    web_wait(&web.n_handled, 3);
    (void)close(fd);
    line = next_line(ends[0]);
    assert_number(line, "status", 499);
    assert_number(line, "key", 0);
    assert_true(json_is_true(json_object_get(line, "client_left")));
    json_decref(line);
    web_wait(&web.n_closed, 1);
    web_stop(&web);
    auth_destroy(auth);
    (void)close(ends[0]);
    (void)close(ends[1]);
}

/* The pipe is full and blocks: answers do not wait for it, and the lines that were lost are told.
 */
static void nobody_reads_the_log(void **state)
{
    struct http_options options = web_options();
    struct web web = {0};
    static char fill[4096];
    json_int_t lost = 0, n = 0;
    int ends[2];

    (void)state;
    assert_int_equal(pipe2(ends, O_CLOEXEC), 0);
    assert_int_equal(fcntl(ends[1], F_SETPIPE_SZ, 8192), 8192);
    options.log_fd = ends[1];
    web_start(&web, options);
    memset(fill, '\n', sizeof fill);
    for (int i = 0; i < 100; i++)
        assert_int_equal(web_ask(&web, "GET /echo HTTP/1.1\r\n" HOST LAST, text, sizeof text), 200);
    assert_int_equal(fcntl(ends[0], F_SETFL, O_NONBLOCK), 0);
    while (read(ends[0], text, sizeof text) > 0)
        n++;
    assert_true(n > 0);
    assert_int_equal(web_ask(&web, "GET /echo HTTP/1.1\r\n" HOST LAST, text, sizeof text), 200);
    json_t *line = next_line(ends[0]);
    lost = json_integer_value(json_object_get(line, "lost_lines"));
    assert_in_range(lost, 40, 99);
    json_decref(line);
    line = next_line(ends[0]);
    assert_number(line, "status", 200);
    json_decref(line);
    web_stop(&web);
    (void)close(ends[0]);
    (void)close(ends[1]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(members),
                                       cmocka_unit_test(nobody_reads_the_log)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
