/* A request on its way in: what is refused before anyone sees it, and its body. See http.h.
 *
 * Refusals come from the headers where possible, so that nothing is read for nothing. */
#include "serve/http_impl.h"

#include "base/alloc.h"
#include "base/size.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/random.h>

enum { DEFAULT_BODY = 32 << 20, DEFAULT_BODIES = 128 << 20 };

static size_t max_body(const struct http_server *s)
{
    return s->options.max_body_bytes > 0 ? s->options.max_body_bytes : DEFAULT_BODY;
}

static size_t max_bodies(const struct http_server *s)
{
    return s->options.max_bodies_bytes > 0 ? s->options.max_bodies_bytes : DEFAULT_BODIES;
}

/* What is looked for in the headers, in one pass. */
struct headers {
    size_t n, n_bytes, n_lengths, n_encodings;
    const char *length, *encoding, *host, *origin, *authorization, *api_key, *request_id;
    size_t n_hosts, n_authorizations;
    bool two_line; /* folded, or with a byte that no header may have */
};

static enum MHD_Result see_header(void *cls, enum MHD_ValueKind kind, const char *key,
                                  const char *value)
{
    struct headers *h = cls;

    (void)kind;
    if (value == NULL)
        value = "";
    h->n++;
    h->n_bytes += strlen(key) + strlen(value) + 4;
    if (strpbrk(value, "\r\n") != NULL)
        h->two_line = true;
    if (strcasecmp(key, "Content-Length") == 0) {
        h->length = value;
        h->n_lengths++;
    } else if (strcasecmp(key, "Transfer-Encoding") == 0) {
        h->encoding = value;
        h->n_encodings++;
    } else if (strcasecmp(key, "Host") == 0) {
        h->host = value;
        h->n_hosts++;
    } else if (strcasecmp(key, "Origin") == 0) {
        h->origin = value;
    } else if (strcasecmp(key, "Authorization") == 0) {
        h->authorization = value;
        h->n_authorizations++;
    } else if (strcasecmp(key, "x-api-key") == 0) {
        h->api_key = value;
    } else if (strcasecmp(key, "X-Request-Id") == 0) {
        h->request_id = value;
    }
    return MHD_YES;
}

static void set_id(struct http_exchange *x, const char *given)
{
    static const char ALPHABET[] = "abcdefghijklmnopqrstuvwxyz012345";
    size_t n = given != NULL ? strlen(given) : 0;
    unsigned char random[24];

    bool sane = n > 0 && n <= HTTP_ID_BYTES;
    for (size_t i = 0; sane && i < n; i++)
        sane = isalnum((unsigned char)given[i]) || strchr("-_.:", given[i]) != NULL;
    if (sane) {
        memcpy(x->id, given, n + 1);
        return;
    }
    if (getrandom(random, sizeof random, 0) != (ssize_t)sizeof random)
        memset(random, 0, sizeof random);
    for (size_t i = 0; i < sizeof random; i++)
        x->id[i] = ALPHABET[random[i] & 31];
    x->id[sizeof random] = 0;
}

static bool in_list(const char *const *list, const char *text, size_t size)
{
    for (; list != NULL && *list != NULL; list++) {
        if (strlen(*list) == size && strncasecmp(*list, text, size) == 0)
            return true;
    }
    return false;
}

/* A web page can make a browser send requests to a loopback server under any name that its owner's
 * DNS gives out (rebinding): so the name has to be one of ours. */
static bool host_is_ours(const struct http_server *s, const char *host)
{
    static const char *const LOOPBACK[] = {"localhost", "127.0.0.1", "[::1]", NULL};
    size_t size = strlen(host);
    const char *colon = strrchr(host, ':');

    if (!s->loopback)
        return true;
    if (colon != NULL && strspn(colon + 1, "0123456789") == strlen(colon + 1))
        size = (size_t)(colon - host);
    return in_list(LOOPBACK, host, size) || in_list(s->options.allowed_hosts, host, size) ||
           (strlen(s->host) == size && strncasecmp(s->host, host, size) == 0);
}

static bool origin_is_allowed(const struct http_server *s, const char *origin)
{
    return in_list(s->options.allowed_origins, "*", 1) ||
           in_list(s->options.allowed_origins, origin, strlen(origin));
}

static int find_key(const struct http_server *s, const struct headers *h)
{
    const char *key = h->api_key;

    if (h->authorization != NULL && strncasecmp(h->authorization, "Bearer ", 7) == 0) {
        key = h->authorization + 7;
        while (*key == ' ')
            key++;
    }
    return key != NULL ? auth_find(s->options.auth, key, strlen(key)) : -1;
}

static enum MHD_Result refuse(struct http_exchange *x, int status, const char *code,
                              const char *message)
{
    x->refused = true;
    if (status == 503)
        http_add_header(x, "Retry-After", "5");
    if (status == 401)
        http_add_header(x, "WWW-Authenticate", "Bearer");
    http_error(x, status, code, NULL, message);
    return http_answer(x);
}

static const char *framing_error(const struct headers *h)
{
    if (h->two_line)
        return "a header goes on in a second line";
    if (h->n_lengths > 1)
        return "more than one Content-Length";
    if (h->n_encodings > 1 || (h->encoding != NULL && strcasecmp(h->encoding, "chunked") != 0))
        return "Transfer-Encoding is not just 'chunked'";
    if (h->n_encodings > 0 && h->n_lengths > 0)
        return "Content-Length and Transfer-Encoding together";
    if (h->length != NULL &&
        (h->length[0] == 0 || strspn(h->length, "0123456789") != strlen(h->length)))
        return "Content-Length is not a number";
    if (h->n_hosts > 1)
        return "more than one Host";
    if (h->n_authorizations > 1)
        return "more than one Authorization";
    return NULL;
}

static bool is_public_route(const char *path)
{
    return strcmp(path, "/health") == 0 || strcmp(path, "/ready") == 0;
}

static enum MHD_Result check(struct http_exchange *x, const struct headers *h, size_t uri_bytes)
{
    const struct http_server *s = x->server;
    const char *framing = framing_error(h);
    char message[160];

    if (framing != NULL)
        return refuse(x, 400, "bad_request", framing);
    if (uri_bytes > HTTP_URI_BYTES)
        return refuse(x, 414, "uri_too_long", "the address is longer than 8 KiB");
    if (h->n > HTTP_HEADERS_MAX || h->n_bytes > HTTP_HEADER_BYTES)
        return refuse(x, 431, "headers_too_large", "more than 100 headers, or 16 KiB of them");
    if (h->host != NULL && !host_is_ours(s, h->host))
        return refuse(x, 403, "host_not_allowed",
                      "this server does not go by the name in the Host header; --allow-host adds "
                      "one");
    if (h->origin != NULL) {
        if (!origin_is_allowed(s, h->origin))
            return refuse(x, 403, "origin_not_allowed",
                          "web pages of this origin may not ask this server; --allow-origin "
                          "permits it");
        x->origin = memcpy(x->path + strlen(x->path) + 1, h->origin, strlen(h->origin) + 1);
        if (strcmp(x->method, "OPTIONS") == 0) { /* a browser asks before it asks */
            http_add_header(x, "Access-Control-Allow-Methods", "GET, POST, OPTIONS");
            http_add_header(x, "Access-Control-Allow-Headers",
                            "Authorization, Content-Type, X-Api-Key, X-Request-Id");
            http_add_header(x, "Access-Control-Max-Age", "600");
            http_reply(x, 204, "text/plain", NULL, 0);
            x->refused = true;
            return http_answer(x);
        }
    }
    if (s->options.auth != NULL && !is_public_route(x->path)) {
        x->key_index = find_key(s, h);
        if (x->key_index < 0)
            return refuse(x, 401, "invalid_api_key",
                          "this server needs an API key: Authorization: Bearer KEY");
    }
    /* At most 20 digits are looked at: longer ones are too much, too. */
    if (h->length != NULL &&
        (strlen(h->length) > 18 || strtoull(h->length, NULL, 10) > max_body(s))) {
        (void)snprintf(message, sizeof message, "a body may have %zu bytes at most", max_body(s));
        return refuse(x, 413, "body_too_large", message);
    }
    return MHD_YES;
}

static enum MHD_Result begin(struct http_server *s, struct MHD_Connection *connection,
                             const char *url, const char *method, void **con_cls)
{
    struct headers h = {0};
    struct http_exchange *x;
    char padded[HTTP_URI_BYTES + 1];

    (void)MHD_get_connection_values(connection, MHD_HEADER_KIND, see_header, &h);
    (void)snprintf(padded, sizeof padded, "%s", url);
    x = http_exchange_new(s, connection, method, padded,
                          h.origin != NULL ? strlen(h.origin) + 1 : 0);
    if (x == NULL)
        return MHD_NO;
    *con_cls = x;
    set_id(x, h.request_id);
    return check(x, &h, strlen(url));
}

/* Takes a piece of the body; more than allowed is refused when the whole request has come in, since
 * libmicrohttpd takes no answer in between: the rest is read and forgotten. */
static void take_body(struct http_exchange *x, const char *data, size_t size)
{
    struct http_server *s = x->server;

    if (x->body_size > max_body(s) || x->no_room)
        return;
    if (size > x->body_capacity - x->body_size) {
        size_t capacity = min_size(2 * x->body_capacity + size + 4096, max_body(s) + 1 + size);
        size_t more = capacity - x->body_capacity;
        char *grown = s->bodies_bytes + more <= max_bodies(s)
                          ? mem_resize(x->body, x->body_size, capacity)
                          : NULL;
        if (grown == NULL) {
            x->no_room = true;
            return;
        }
        s->bodies_bytes += more;
        x->body = grown;
        x->body_capacity = capacity;
    }
    memcpy(x->body + x->body_size, data, size);
    x->body_size += size;
}

enum MHD_Result http_access(void *cls, struct MHD_Connection *connection, const char *url,
                            const char *method, const char *version, const char *upload_data,
                            size_t *upload_data_size, void **con_cls)
{
    struct http_server *s = cls;
    struct http_exchange *x = *con_cls;
    char message[160];

    (void)version;
    if (x == NULL)
        return begin(s, connection, url, method, con_cls);
    if (x->queued)
        return MHD_YES;
    if (*upload_data_size > 0) {
        take_body(x, upload_data, *upload_data_size);
        *upload_data_size = 0;
        if (x->body_size <= max_body(s) && !x->no_room)
            return MHD_YES;
        if (++x->overflows > HTTP_OVERFLOWS_MAX) /* a chunked body without an end */
            return MHD_NO;
        return MHD_YES;
    }
    if (x->complete)
        return http_answer(x);
    x->complete = true;
    if (x->no_room)
        return refuse(x, 503, "overloaded", "too many large requests at once; try again later");
    if (x->body_size > max_body(s)) {
        (void)snprintf(message, sizeof message, "a body may have %zu bytes at most", max_body(s));
        return refuse(x, 413, "body_too_large", message);
    }
    s->options.handler(s->options.arg, x);
    return http_answer(x);
}
