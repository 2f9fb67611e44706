/* What is refused before anyone sees it: limits, shapes that smuggle a second request past a proxy,
 * keys, names, origins; and requests that come in slowly, in pieces, or as noise. */
#include "web.h"

#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define HOST     "Host: localhost\r\n"
#define POST     "POST /echo HTTP/1.1\r\n" HOST
#define LAST     "Connection: close\r\n\r\n"
#define SMUGGLED "GET /smuggled HTTP/1.1\r\n" HOST "\r\n"

static char text[1 << 16];

/* Every one of them may mean two things to two readers: it is refused, nothing behind it is read,
 * and the connection ends. */
static void ambiguous_requests(void **state)
{
    static const struct {
        int status; /* -1: closed without an answer, or with any that refuses */
        const char *request;
    } SHAPES[] = {
        {400, POST "Content-Length: 5\r\nContent-Length: 5\r\n\r\nhello" SMUGGLED},
        {400, POST "Content-Length: 5\r\nContent-Length: 50\r\n\r\nhello" SMUGGLED},
        {400, POST "Content-Length: 5, 5\r\n\r\nhello" SMUGGLED},
        {400, POST "Content-Length: +5\r\n\r\nhello" SMUGGLED},
        {400, POST "X-Request-Id: mine\r\nContent-Length: 3 0\r\n\r\nhello" SMUGGLED},
        {400, POST "Content-Length: -5\r\n\r\nhello" SMUGGLED},
        {400, POST "Content-Length: 0x5\r\n\r\nhello" SMUGGLED},
        {400, POST "Content-Length: 5 0\r\n\r\nhello" SMUGGLED},
        {400, POST "Content-Length:\r\n\r\nhello" SMUGGLED},
        {413, POST "Content-Length: 99999999999999999999999\r\n\r\nhello" SMUGGLED},
        {413, POST "Content-Length: 18446744073709551615\r\n\r\nhello" SMUGGLED},
        {413, POST "Content-Length: 18446744073709551616\r\n\r\nhello" SMUGGLED},
        {400, POST "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" SMUGGLED},
        {400, POST "Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n" SMUGGLED},
        {400, POST "Transfer-Encoding: identity\r\n\r\n" SMUGGLED},
        {400, POST "Transfer-Encoding: xchunked\r\n\r\n" SMUGGLED},
        {400, POST "Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n" SMUGGLED},
        {400, POST "Transfer-Encoding: chunked\r\nTransfer-Encoding: x\r\n\r\n0\r\n\r\n" SMUGGLED},
        {400, POST "Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n" SMUGGLED},
        {400, POST "Transfer-Encoding\t: chunked\r\n\r\n0\r\n\r\n" SMUGGLED},
        {400, POST "Transfer-Encoding:\r\n chunked\r\n\r\n0\r\n\r\n" SMUGGLED},
        {400, POST "Content-Length: 5\r\n 0\r\n\r\nhello" SMUGGLED},
        {400, POST "Content-Length: 5\r\n\t\r\n\r\nhello" SMUGGLED},
        {400, POST "X: a\r\n b\r\n c\r\nContent-Length: 5\r\n\r\nhello" SMUGGLED},
        {400, POST "X:\r\n y\r\n\r\n" SMUGGLED},
        {400, POST "X: a\rContent-Length: 5\r\n\r\nhello" SMUGGLED},
        {400, POST "Content-Length: 5\r\r\n\r\nhello" SMUGGLED},
        {400, POST "Content Length: 5\r\n\r\nhello" SMUGGLED},
        {400, POST "Content-Length\xff: 5\r\n\r\nhello" SMUGGLED},
        {400, POST "no colon\r\n\r\n" SMUGGLED},
        {400, POST HOST "\r\n" SMUGGLED},
        {400, "POST /echo HTTP/1.1\r\nContent-Length: 0\r\n\r\n" SMUGGLED},
        {400, "POST /echo HTTP/1.9\r\nContent-Length: 0\r\n\r\n" SMUGGLED},
        {400,
         "POST /echo HTTP/1.0\r\n" HOST "Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n" SMUGGLED},
        {400, POST "Authorization: Bearer a\r\nAuthorization: Bearer b\r\n\r\n" SMUGGLED},
        {400, "G\xffT /echo HTTP/1.1\r\n" HOST "\r\n" SMUGGLED},
        {400, "GETGETGETGETGETGET /echo HTTP/1.1\r\n" HOST "\r\n" SMUGGLED},
        {400, "GET /echo%00x HTTP/1.1\r\n" HOST "\r\n" SMUGGLED},
        {400, "GET /ec ho HTTP/1.1\r\n" HOST "\r\n" SMUGGLED},
        {400, "GET /ec\x01ho HTTP/1.1\r\n" HOST "\r\n" SMUGGLED},
        {400, "GET /echo\r\n" HOST "\r\n" SMUGGLED},
        {400, POST ": x\r\n\r\n" SMUGGLED},
        {400, POST ": x\r\nContent-Length: 0\r\n\r\n" SMUGGLED},
        {400, "POST /echo HTTP/1.1\nHost: localhost\nContent-Length: 0\n\n" SMUGGLED},
        {400, POST "X: a\nContent-Length: 0\r\n\r\n" SMUGGLED},
        {400, "POST  /echo HTTP/1.1\r\n" HOST "\r\n" SMUGGLED},
        {400, "POST /echo HTTP/1.1\r\nHost: localhost:99999999999999\r\n\r\n" SMUGGLED},
        {400, "POST /echo HTTP/1.1\r\nHost: localhost:65536\r\n\r\n" SMUGGLED},
        {417, POST "Expect: foo\r\nContent-Length: 5\r\n\r\nhello" SMUGGLED},
        {415, POST "Content-Encoding: gzip\r\nContent-Length: 5\r\n\r\nhello" SMUGGLED},
        {505, "GET /echo HTTP/2.0\r\n" HOST "\r\n" SMUGGLED},
        {-1, "GET /echo HTTQ/1.1\r\n" HOST "\r\n" SMUGGLED},
        {-1, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" SMUGGLED},
    };
    struct web web = {0};

    (void)state;
    web_start(&web, web_options());
    for (size_t i = 0; i < COUNT_OF(SHAPES); i++) {
        int fd = web_connect(&web), status = 0;
        web_say(fd, SHAPES[i].request);
        (void)shutdown(fd, SHUT_WR);
        bool never = web_hear(fd, text, sizeof text, "smuggled");
        assert_false(never);
        if (recv(fd, text + 60000, 1, MSG_DONTWAIT) != 0)
            fail_msg("shape %zu: the connection is kept: %s", i, text);
        (void)close(fd);
        if (sscanf(text, "HTTP/1.1 %d", &status) != 1)
            status = 0;
        if (SHAPES[i].status < 0 ? status == 200 : status != SHAPES[i].status)
            fail_msg("shape %zu: %d instead of %d: %s", i, status, SHAPES[i].status, text);
        const char *second = strstr(text + 1, "HTTP/1.1 ");
        if (status != 0 && second != NULL)
            fail_msg("shape %zu has two answers: %s", i, text);
        /* libmicrohttpd's own words, where it gives us no chance: docs/api.md. */
        bool html = status == 505 || strstr(SHAPES[i].request, "no colon") != NULL ||
                    strstr(SHAPES[i].request, "GET /echo\r\n") != NULL;
        if (SHAPES[i].status > 0 && !html &&
            (strstr(text, "\r\nX-Request-Id: ") == NULL || strstr(text, "{\"error\":{") == NULL))
            fail_msg("shape %zu: not our answer: %s", i, text);
        if (strstr(SHAPES[i].request, "Id: mine") != NULL)
            assert_non_null(strstr(text, "\r\nX-Request-Id: mine\r\n"));
        if (atomic_load(&web.n_handled) != 0)
            fail_msg("shape %zu was handled", i);
    }
    web_stop(&web);
}

/* A 0 byte somewhere in a request line or a header: what stands behind it must not be passed over,
 * least of all in a key. */
static void zero_bytes(void **state)
{
    static const char REQUEST[] =
        "POST /noted?q=1 HTTP/1.1\r\n" HOST "Authorization: Bearer first-key\r\nX: \r\n"
        "Content-Length: 0\r\nConnection: close\r\n\r\n";
    struct http_options options = web_options();
    struct auth *auth = NULL;
    struct web web = {0};
    char request[sizeof REQUEST + 4];

    (void)state;
    assert_int_equal(auth_create(&auth, "first-key", 9, NULL), FERRY_OK);
    options.auth = auth;
    web_start(&web, options);
    assert_int_equal(web_ask(&web, REQUEST, text, sizeof text), 200);
    for (size_t n = 1; n <= 3; n++) {
        for (size_t i = 0; i < sizeof REQUEST - 1; i++) {
            memcpy(request, REQUEST, i);
            memset(request + i, 0, n);
            memcpy(request + i + n, REQUEST + i, sizeof REQUEST - 1 - i);
            int fd = web_connect(&web), status = 0;
            web_send(fd, request, sizeof REQUEST - 1 + n);
            (void)shutdown(fd, SHUT_WR);
            (void)web_hear(fd, text, sizeof text, "\x01 never sent");
            (void)close(fd);
            if (sscanf(text, "HTTP/1.1 %d", &status) == 1 && status != 400)
                fail_msg("%zu at %zu: %d", n, i, status);
            if (atomic_load(&web.n_handled) != 1)
                fail_msg("%zu at %zu was handled", n, i);
        }
    }
    web_stop(&web);
    auth_destroy(auth);
}

/* Chunks: their bad sizes end the connection after the headers were good. */
static void bad_chunks(void **state)
{
    static const char *const CHUNKS[] = {
        "0x3\r\nabc\r\n0\r\n\r\n",
        "-3\r\nabc\r\n0\r\n\r\n",
        "+3\r\nabc\r\n0\r\n\r\n",
        " 3\r\nabc\r\n0\r\n\r\n",
        "3\r\nabcX\r\n0\r\n\r\n",
        "\r\nabc\r\n0\r\n\r\n",
        "g\r\nabc\r\n0\r\n\r\n",
        "3 \r\nabc\r\n0\r\n\r\n",
        "fffffffffffffffff\r\nabc\r\n0\r\n\r\n",
        "ffffffffffffffff\r\nabc",
    };
    struct web web = {0};
    char request[400];

    (void)state;
    web_start(&web, web_options());
    for (size_t i = 0; i < COUNT_OF(CHUNKS); i++) {
        (void)snprintf(request, sizeof request,
                       POST "Transfer-Encoding: chunked\r\n\r\n%s" SMUGGLED, CHUNKS[i]);
        int fd = web_connect(&web), status = 0;
        web_say(fd, request);
        (void)shutdown(fd, SHUT_WR);
        assert_false(web_hear(fd, text, sizeof text, "smuggled"));
        (void)close(fd);
        if (sscanf(text, "HTTP/1.1 %d", &status) == 1 && status != 400 && status != 413)
            fail_msg("chunks %zu: %d", i, status);
        assert_int_equal(web.n_handled, 0);
    }
    assert_int_equal(web_ask(&web,
                             POST "Transfer-Encoding: Chunked\r\n" LAST
                                  "3;x=y\r\nabc\r\nA\r\n0123456789\r\n0\r\nTrailer: x\r\n\r\n",
                             text, sizeof text),
                     200);
    assert_non_null(strstr(text, "\r\n\r\nabc0123456789"));
    web_stop(&web);
}

static int ask_with(const struct web *web, const char *before, char fill, size_t n,
                    const char *after)
{
    size_t size = strlen(before) + n + strlen(after) + 1;
    char *request = malloc(size);

    memcpy(request, before, strlen(before));
    memset(request + strlen(before), fill, n);
    memcpy(request + strlen(before) + n, after, strlen(after) + 1);
    int status = web_ask(web, request, text, sizeof text);
    free(request);
    return status;
}

static int ask_with_headers(const struct web *web, size_t n)
{
    size_t used = 0;
    char *request = malloc(n * 16 + 200);

    used += (size_t)sprintf(request, "GET /echo HTTP/1.1\r\n" HOST);
    for (size_t i = 2; i < n; i++) /* the two others are Host and Connection */
        used += (size_t)sprintf(request + used, "X-%zu: y\r\n", i);
    (void)sprintf(request + used, LAST);
    int status = web_ask(web, request, text, sizeof text);
    free(request);
    return status;
}

static void limits_of_headers(void **state)
{
    struct web web = {0};

    (void)state;
    web_start(&web, web_options());
    const char *end = " HTTP/1.1\r\n" HOST LAST;
    assert_int_equal(ask_with(&web, "GET /", 'a', 8191, end), 404); /* 8 KiB: looked for */
    assert_int_equal(ask_with(&web, "GET /", 'a', 8192, end), 414);
    assert_non_null(strstr(text, "uri_too_long"));
    assert_int_equal(ask_with(&web, "GET /echo?", 'a', 8186, end), 200);
    assert_int_equal(ask_with(&web, "GET /echo?", 'a', 8187, end), 414);
    assert_int_equal(ask_with(&web, "GET /", 'a', 1 << 20, end), 414);
    assert_int_equal(ask_with_headers(&web, 100), 200);
    assert_int_equal(ask_with_headers(&web, 101), 431);
    assert_int_equal(ask_with_headers(&web, 3000), 431);
    /* With the others 16 KiB: name, value, and four bytes of each count. */
    size_t rest = 16384 - strlen(HOST) - strlen("Connection: close\r\n") - strlen("X: \r\n");
    const char *start = "GET /echo HTTP/1.1\r\n" HOST "X: ", *stop = "\r\n" LAST;
    assert_int_equal(ask_with(&web, start, 'v', rest, stop), 200);
    assert_int_equal(ask_with(&web, start, 'v', rest + 1, stop), 431);
    assert_non_null(strstr(text, "headers_too_large"));
    assert_int_equal(ask_with(&web, start, 'v', 1 << 20, stop), 431);
    web_stop(&web);
}

static void limits_of_bodies(void **state)
{
    struct http_options options = web_options();
    struct web web = {0};

    (void)state;
    options.max_body_bytes = 20000;
    options.max_bodies_bytes = 60000;
    web_start(&web, options);
    assert_int_equal(ask_with(&web, POST "Content-Length: 20000\r\n" LAST, 'b', 20000, ""), 200);
    assert_int_equal(ask_with(&web, POST "Content-Length: 20001\r\n" LAST, 'b', 0, ""), 413);
    assert_non_null(strstr(text, "20000")); /* refused by its length: nothing was sent */
    assert_int_equal(
        ask_with(&web, POST "Expect: 100-continue\r\nContent-Length: 20001\r\n" LAST, 'b', 0, ""),
        413);
    assert_null(strstr(text, "100 Continue"));
    const char *chunks = POST "Transfer-Encoding: chunked\r\n" LAST "4e20\r\n"; /* 20,000 */
    assert_int_equal(ask_with(&web, chunks, 'b', 20000, "\r\n0\r\n\r\n"), 200);
    assert_int_equal(ask_with(&web, chunks, 'b', 20000, "\r\n1\r\nx\r\n0\r\n\r\n"), 413);
    /* One without an end is not read for ever. */
    time_t begun = time(NULL);
    assert_int_equal(
        ask_with(&web, POST "Transfer-Encoding: chunked\r\n" LAST "fffffff\r\n", 'b', 300000, ""),
        0);
    assert_true(time(NULL) - begun < 4); /* web_ask waits for 5 s */
    /* Bodies of several that wait for an answer are too many together. */
    int fds[6], refused = 0;
    for (int i = 0; i < 6; i++) {
        char *request = malloc(20200);
        int n = sprintf(request, "POST /hang HTTP/1.1\r\n" HOST "Content-Length: 18000\r\n\r\n");
        memset(request + n, 'b', 18000);
        fds[i] = web_connect(&web);
        web_send(fds[i], request, (size_t)n + 18000);
        free(request);
        struct timeval soon = {0, 200000};
        (void)setsockopt(fds[i], SOL_SOCKET, SO_RCVTIMEO, &soon, sizeof soon);
        ssize_t got = recv(fds[i], text, sizeof text - 1, 0);
        text[got > 0 ? got : 0] = 0;
        if (got > 0) {
            assert_non_null(strstr(text, "HTTP/1.1 503"));
            assert_non_null(strstr(text, "Retry-After: "));
            refused++;
        }
    }
    assert_in_range(refused, 3, 5);
    for (int i = 0; i < 6; i++)
        (void)close(fds[i]);
    web_wait(&web.n_closed, 6 - refused);
    assert_int_equal(ask_with(&web, POST "Content-Length: 20000\r\n" LAST, 'b', 20000, ""), 200);
    web_stop(&web);
}

static void keys(void **state)
{
    static const struct {
        int status;
        const char *index, *header;
    } CASES[] = {
        {401, "", ""},
        {200, "0", "Authorization: Bearer first-key\r\n"},
        {200, "1", "authorization: bearer  second-key\r\n"},
        {200, "1", "x-api-key: second-key\r\n"},
        {401, "", "Authorization: Bearer first-ke\r\n"},
        {401, "", "Authorization: Bearer first-key2\r\n"},
        {401, "", "Authorization: Bearer \r\n"},
        {401, "", "Authorization: Basic first-key\r\n"},
        {401, "", "Authorization: first-key\r\n"},
        {401, "", "X-Api-Key:\r\n"},
        {401, "", "Authorization: Bearer wrong\r\nX-Api-Key: first-key\r\n"},
    };
    static const char KEYS[] = "first-key\n# a comment\nsecond-key\n";
    struct http_options options = web_options();
    struct auth *auth = NULL;
    struct web web = {0};
    char request[400];

    (void)state;
    assert_int_equal(auth_create(&auth, KEYS, sizeof KEYS - 1, NULL), FERRY_OK);
    options.auth = auth;
    web_start(&web, options);
    for (size_t i = 0; i < COUNT_OF(CASES); i++) {
        (void)snprintf(request, sizeof request, "GET /noted HTTP/1.1\r\n" HOST "%s" LAST,
                       CASES[i].header);
        int status = web_ask(&web, request, text, sizeof text);
        if (status != CASES[i].status)
            fail_msg("%s: %d", CASES[i].header, status);
        if (status == 200)
            assert_string_equal(strstr(text, "\r\n\r\n") + 4, CASES[i].index);
        else
            assert_non_null(strstr(text, "WWW-Authenticate: Bearer"));
        assert_null(strstr(text, "-key")); /* no answer repeats one */
    }
    int handled = web.n_handled;
    /* Whatever a path looks like, only these two are open. */
    assert_int_equal(web_ask(&web, "GET /health HTTP/1.1\r\n" HOST LAST, text, sizeof text), 404);
    assert_int_equal(web_ask(&web, "GET /ready?x HTTP/1.1\r\n" HOST LAST, text, sizeof text), 404);
    assert_int_equal(web.n_handled, handled + 2);
    assert_int_equal(web_ask(&web, "GET /health/ HTTP/1.1\r\n" HOST LAST, text, sizeof text), 401);
    assert_int_equal(web_ask(&web, "GET //health HTTP/1.1\r\n" HOST LAST, text, sizeof text), 401);
    assert_int_equal(web_ask(&web, "GET /metrics HTTP/1.1\r\n" HOST LAST, text, sizeof text), 401);
    assert_int_equal(web_ask(&web, "GET /Health HTTP/1.1\r\n" HOST LAST, text, sizeof text), 401);
    assert_int_equal(web.n_handled, handled + 2);
    web_stop(&web);
    auth_destroy(auth);
}

static int ask_as(const struct web *web, const char *headers)
{
    char request[400];

    (void)snprintf(request, sizeof request, "GET /echo HTTP/1.1\r\n%s" LAST, headers);
    return web_ask(web, request, text, sizeof text);
}

static void names(void **state)
{
    static const char *const HOSTS[] = {"ferry.lan", NULL};
    struct http_options options = web_options();
    struct web web = {0};

    (void)state;
    options.allowed_hosts = HOSTS;
    web_start(&web, options);
    assert_int_equal(ask_as(&web, "Host: localhost\r\n"), 200);
    assert_int_equal(ask_as(&web, "Host: LOCALHOST:1234\r\n"), 200);
    assert_int_equal(ask_as(&web, "Host: 127.0.0.1:80\r\n"), 200);
    assert_int_equal(ask_as(&web, "Host: [::1]:80\r\n"), 200);
    assert_int_equal(ask_as(&web, "Host: [::1]\r\n"), 200);
    assert_int_equal(ask_as(&web, "Host: ferry.lan:8080\r\n"), 200);
    assert_int_equal(ask_as(&web, "Host: evil.example\r\n"), 403); /* CVE-2024-28224 */
    assert_non_null(strstr(text, "--allow-host"));
    assert_int_equal(ask_as(&web, "Host: localhost.evil.example\r\n"), 403);
    assert_int_equal(ask_as(&web, "Host: evil.example:localhost\r\n"), 403);
    assert_int_equal(ask_as(&web, "Host: localhost:80:80\r\n"), 403);
    assert_int_equal(ask_as(&web, "Host:\r\n"), 403);
    assert_int_equal(web_ask(&web, "GET /echo HTTP/1.0\r\n\r\n", text, sizeof text), 200);
    web_stop(&web);
    options = web_options();
    options.host = "0.0.0.0"; /* its names are not known, its clients need keys */
    options.insecure = true;
    web_start(&web, options);
    assert_int_equal(ask_as(&web, "Host: any.example\r\n"), 200);
    web_stop(&web);
}

static void origins(void **state)
{
    static const char *const ONE[] = {"https://good.example", NULL}, *const ALL[] = {"*", NULL};
#define PREFLIGHT                                                        \
    "OPTIONS /echo HTTP/1.1\r\n" HOST "Origin: https://good.example\r\n" \
    "Access-Control-Request-Method: POST\r\n"
    static const struct {
        const char *wanted;
        bool usual;
    } WANTED[] = {
        {"authorization,content-type,user-agent,x-stainless-arch,x-stainless-lang,x-stainless-os,"
         "x-stainless-package-version,x-stainless-retry-count,x-stainless-runtime,"
         "x-stainless-runtime-version,x-stainless-timeout",
         false},
        {"authorization", false},
        {"a , b,  c", false},
        {"", true},
        {",a", true},
        {"a,,b", true},
        {"a b", true},
        {"a; b", true},
        {"a, \"b\"", true},
        {"<script>", true},
    };
    const char *preflight = PREFLIGHT LAST;
    struct http_options options = web_options();
    struct web web = {0};

    (void)state;
    web_start(&web, options); /* off */
    assert_int_equal(ask_as(&web, HOST "Origin: https://good.example\r\n"), 403);
    assert_null(strstr(text, "Access-Control"));
    assert_int_equal(ask_as(&web, HOST "Origin: null\r\n"), 403);
    assert_int_equal(web_ask(&web, preflight, text, sizeof text), 403);
    /* Its own pages, whatever they are called. */
    assert_int_equal(ask_as(&web, "Host: localhost:80\r\nOrigin: http://localhost:80\r\n"), 200);
    assert_int_equal(ask_as(&web, "Host: localhost:80\r\nOrigin: http://localhost:81\r\n"), 403);
    assert_int_equal(ask_as(&web, "Host: evil.example\r\nOrigin: http://evil.example\r\n"), 403);
    assert_int_equal(web.n_handled, 1);
    web_stop(&web);
    options.allowed_origins = ONE;
    web_start(&web, options);
    assert_int_equal(ask_as(&web, HOST "Origin: https://good.example\r\n"), 200);
    assert_non_null(strstr(text, "Access-Control-Allow-Origin: https://good.example\r\n"));
    assert_non_null(strstr(text, "Vary: Origin"));
    assert_int_equal(ask_as(&web, HOST "Origin: https://good.example.evil\r\n"), 403);
    int handled = web.n_handled;
    assert_int_equal(web_ask(&web, preflight, text, sizeof text), 204);
    assert_non_null(strstr(text, "Access-Control-Allow-Headers: Authorization"));
    /* What OpenAI's client sends from a browser; and no line of a client's making. */
    for (size_t i = 0; i < COUNT_OF(WANTED); i++) {
        char ask[700];
        (void)snprintf(ask, sizeof ask, PREFLIGHT "Access-Control-Request-Headers: %s\r\n" LAST,
                       WANTED[i].wanted);
        assert_int_equal(web_ask(&web, ask, text, sizeof text), 204);
        (void)snprintf(ask, sizeof ask, "\r\nAccess-Control-Allow-Headers: %s\r\n",
                       WANTED[i].usual ? "Authorization, Content-Type, X-Api-Key, X-Request-Id"
                                       : WANTED[i].wanted);
        if (strstr(text, ask) == NULL)
            fail_msg("'%s': %s", WANTED[i].wanted, text);
    }
    assert_int_equal(web.n_handled, handled);
    web_stop(&web);
    options.allowed_origins = ALL;
    web_start(&web, options);
    assert_int_equal(ask_as(&web, HOST "Origin: http://any.example\r\n"), 200);
    assert_null(strstr(text, "Allow-Credentials"));
    web_stop(&web);
}

static void request_ids(void **state)
{
    struct web web = {0};
    char first[200], other[200];

    (void)state;
    web_start(&web, web_options());
    assert_int_equal(ask_as(&web, HOST "X-Request-Id: run-7.b:2_x\r\n"), 200);
    assert_non_null(strstr(text, "X-Request-Id: run-7.b:2_x\r\n"));
    assert_int_equal(ask_as(&web, HOST "X-Request-Id: a b<script>\r\n"), 200);
    assert_null(strstr(text, "script"));
    assert_int_equal(sscanf(strstr(text, "X-Request-Id: ") + 14, "%199s", first), 1);
    assert_int_equal(ask_as(&web, HOST), 200);
    assert_int_equal(sscanf(strstr(text, "X-Request-Id: ") + 14, "%199s", other), 1);
    assert_int_equal(strlen(other), 24);
    assert_string_not_equal(first, other);
    web_stop(&web);
}

static void in_pieces(void **state)
{
    static const char WHOLE[] = POST "Content-Length: 5\r\n" LAST "hello";
    struct web web = {0};

    (void)state;
    web_start(&web, web_options());
    int fd = web_connect(&web);
    for (size_t i = 0; i + 1 < sizeof WHOLE; i++) {
        struct timespec t = {0, 200000};
        web_send(fd, WHOLE + i, 1);
        (void)nanosleep(&t, NULL);
    }
    assert_true(web_hear(fd, text, sizeof text, "\r\n\r\nhello"));
    (void)close(fd);
    web_stop(&web);
}

/* Seconds until the server closes, when a byte of request comes every 100 ms, or none. */
static double seconds_to_close(const struct web *web, const char *request)
{
    struct timespec from, to;
    int fd = web_connect(web);
    size_t at = 0;
    char byte;

    (void)clock_gettime(CLOCK_MONOTONIC, &from);
    for (int i = 0; i < 100; i++) {
        struct timeval soon = {0, 100000};
        (void)setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &soon, sizeof soon);
        if (recv(fd, &byte, 1, 0) == 0)
            break;
        if (request[at] != 0)
            web_send(fd, request + at++, 1);
    }
    (void)close(fd);
    (void)clock_gettime(CLOCK_MONOTONIC, &to);
    return (double)(to.tv_sec - from.tv_sec) + (double)(to.tv_nsec - from.tv_nsec) * 1e-9;
}

static void slow_senders(void **state)
{
    struct http_options options = web_options();
    struct web web = {0};

    (void)state;
    options.idle_seconds = 1;
    options.read_seconds = 1;
    web_start(&web, options);
    double silent = seconds_to_close(&web, "");
    assert_true(silent > 0.9 && silent < 5);
    double dripping = seconds_to_close(
        &web,
        "GET /echo HTTP/1.1\r\nHost: localhost\r\nX-Long: abcdefghijklmnopqrstuvwxyz0123456789"
        "abcdefghijklmnopqrstuvwxyz0123456789abcdefghijklmnopqrstuvwxyz0123456789\r\n\r\n");
    assert_true(dripping > 1.9 && dripping < 6);
    assert_int_equal(web.n_handled, 0);
    web_stop(&web);
}

/* An end that comes together with data, which libmicrohttpd misses: no socket is kept for it. */
static void ends_with_data(void **state)
{
    static const char *const PARTS[] = {"", "GET /ec", "GET /echo HTTP/1.1\r\nHost: loc",
                                        POST "Content-Length: 9\r\n\r\nhalf",
                                        "GET /echo HTTP/1.1\r\n" HOST "\r\n"};
    struct web web = {0};

    (void)state;
    web_start(&web, web_options());
    for (size_t i = 0; i < 5 * COUNT_OF(PARTS); i++) {
        int fd = web_connect(&web);
        web_say(fd, PARTS[i % COUNT_OF(PARTS)]);
        (void)shutdown(fd, SHUT_WR);
        struct timeval soon = {1, 0};
        (void)setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &soon, sizeof soon);
        ssize_t got;
        while ((got = recv(fd, text, sizeof text, 0)) > 0)
            ;
        if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
            fail_msg("the connection of \"%s\" is kept", PARTS[i % COUNT_OF(PARTS)]);
        (void)close(fd);
    }
    web_stop(&web);
}

static void noise(void **state)
{
    static const char SEED[] =
        POST "Content-Length: 5\r\nX: y\r\nTransfer-Encoding: x\r\n\r\n"
             "hello" POST "Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n";
    struct web web = {0};
    uint64_t random = 20261130;
    char bytes[sizeof SEED];

    (void)state;
    web_start(&web, web_options());
    for (int i = 0; i < 400; i++) {
        memcpy(bytes, SEED, sizeof SEED);
        for (int j = 0; j < 1 + i % 6; j++) {
            random = random * 6364136223846793005u + 1442695040888963407u;
            bytes[(random >> 40) % (sizeof SEED - 1)] = (char)(random >> 32);
        }
        int fd = web_connect(&web);
        web_send(fd, bytes, (i & 1) != 0 ? sizeof SEED - 1 : (random >> 20) % sizeof SEED);
        (void)shutdown(fd, SHUT_WR);
        (void)web_hear(fd, text, sizeof text, "\x01 never sent");
        (void)close(fd);
    }
    assert_int_equal(ask_as(&web, HOST), 200);
    web_stop(&web);
}

static void connections_are_bounded(void **state)
{
    struct http_options options = web_options();
    struct web web = {0};

    (void)state;
    options.max_connections = 2;
    web_start(&web, options);
    int a = web_connect(&web), b = web_connect(&web), c = web_connect(&web);
    web_say(a, "GET /hang HTTP/1.1\r\n" HOST "\r\n");
    web_say(b, "GET /hang HTTP/1.1\r\n" HOST "\r\n");
    web_wait(&web.n_handled, 2);
    web_say(c, "GET /echo HTTP/1.1\r\n" HOST LAST);
    struct timeval soon = {0, 300000};
    (void)setsockopt(c, SOL_SOCKET, SO_RCVTIMEO, &soon, sizeof soon);
    assert_int_equal(recv(c, text, 100, 0), -1); /* it waits in the kernel */
    assert_int_equal(web.n_handled, 2);
    (void)close(a);
    assert_true(web_hear(c, text, sizeof text, "HTTP/1.1 200"));
    (void)close(b);
    (void)close(c);
    web_wait(&web.n_closed, 2);
    web_stop(&web);
}

static void version_6(void **state)
{
    struct http_options options = web_options();
    struct sockaddr_in6 to = {.sin6_family = AF_INET6, .sin6_addr = IN6ADDR_LOOPBACK_INIT};
    struct ferry_error err;
    struct web web = {0};

    (void)state;
    int fd = socket(AF_INET6, SOCK_STREAM, 0);
    if (fd < 0 || bind(fd, (struct sockaddr *)(void *)&to, sizeof to) != 0) {
        print_message("this machine has no ::1; not tested\n");
        if (fd >= 0)
            (void)close(fd);
        return;
    }
    (void)close(fd);
    options.host = "[::1]"; /* loopback: no key wanted */
    web_start(&web, options);
    to.sin6_port = htons((uint16_t)web.port);
    fd = socket(AF_INET6, SOCK_STREAM, 0);
    assert_int_equal(connect(fd, (struct sockaddr *)(void *)&to, sizeof to), 0);
    web_say(fd, "GET /echo HTTP/1.1\r\nHost: [::1]:1\r\n" LAST);
    assert_true(web_hear(fd, text, sizeof text, "HTTP/1.1 200"));
    (void)close(fd);
    web_stop(&web);
    options.host = "::";
    assert_int_equal(http_server_create(&web.server, &options, &err), FERRY_ERR_ARG);
    assert_non_null(strstr(err.msg, "API key"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ambiguous_requests),
        cmocka_unit_test(zero_bytes),
        cmocka_unit_test(bad_chunks),
        cmocka_unit_test(limits_of_headers),
        cmocka_unit_test(limits_of_bodies),
        cmocka_unit_test(keys),
        cmocka_unit_test(names),
        cmocka_unit_test(origins),
        cmocka_unit_test(request_ids),
        cmocka_unit_test(in_pieces),
        cmocka_unit_test(slow_senders),
        cmocka_unit_test(ends_with_data),
        cmocka_unit_test(noise),
        cmocka_unit_test(connections_are_bounded),
        cmocka_unit_test(version_6),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
