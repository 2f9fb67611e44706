/* A request on its way in: what is refused before anyone sees it, and its body. See http.h.
 *
 * Refusals come from the headers where possible, so that nothing is read for nothing. */
#include "serve/http_impl.h"

#include "base/alloc.h"
#include "base/error.h"
#include "base/limits.h"
#include "base/size.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/random.h>
#include <sys/socket.h>

static size_t max_body(const struct http_server *s)
{
    return s->options.max_body_bytes > 0 ? s->options.max_body_bytes : LIMIT_HTTP_BODY;
}

static size_t max_bodies(const struct http_server *s)
{
    return s->options.max_bodies_bytes > 0 ? s->options.max_bodies_bytes : LIMIT_HTTP_BODIES;
}

/* What is looked for in the headers, in one pass. */
struct headers {
    size_t n, n_bytes, n_lengths, n_encodings;
    const char *length, *encoding, *host, *origin, *authorization, *api_key, *request_id;
    const char *wanted; /* Access-Control-Request-Headers */
    const char *expect, *coding;
    size_t n_hosts, n_authorizations;
    bool two_line; /* folded, or with a byte that no header may have */
    bool bad_name;
    const char *next; /* where the next line has to begin; NULL: not known */
    bool gap;         /* one did not */
};

/* Names of headers and methods. */
static size_t token_size(const char *text)
{
    size_t n = 0;

    while (text[n] != 0 &&
           (isalnum((unsigned char)text[n]) || strchr("!#$%&'*+-.^_`|~", text[n]) != NULL))
        n++;
    return n;
}

static bool is_token(const char *text)
{
    size_t n = token_size(text);

    return n > 0 && text[n] == 0;
}

/* libmicrohttpd 0.9.75 joins a header that goes on in a second line: not to its value but to its
 * name, which it moves away for that. "Content-Length: 5", folded, is then a header of another name
 * and nobody's length, while a proxy in front may think otherwise. Where nothing was joined, name
 * and value lie as they came: the colon (a 0 by now) and blanks between them. */
static bool is_folded(const char *name, const char *value)
{
    const char *at = name + strlen(name) + 1;

    if ((uintptr_t)value < (uintptr_t)at ||
        (uintptr_t)value - (uintptr_t)at > LIMIT_HTTP_HEADER_BYTES)
        return true;
    for (; at < value; at++) {
        if (*at != ' ' && *at != '\t')
            return true;
    }
    return false;
}

static enum MHD_Result see_header(void *cls, enum MHD_ValueKind kind, const char *key,
                                  const char *value)
{
    struct headers *h = cls;

    (void)kind;
    if (value == NULL || is_folded(key, value))
        h->two_line = true;
    if (value == NULL)
        value = "";
    h->gap |= h->next != NULL && h->next != key;
    h->next = value + strlen(value) + 2;
    if (!is_token(key))
        h->bad_name = true;
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
    } else if (strcasecmp(key, "Access-Control-Request-Headers") == 0) {
        h->wanted = value;
    } else if (strcasecmp(key, "Expect") == 0) {
        h->expect = value;
    } else if (strcasecmp(key, "Content-Encoding") == 0) {
        h->coding = value;
    }
    return MHD_YES;
}

/* libmicrohttpd reads lines as strings of C: what stands behind a 0 is not seen, a line that begins
 * with one ends the headers, and one without a name is left out. Their bytes lie as they came, with
 * a 0 for each CR and LF: so line by line there must be nothing between what was seen. Only CR LF
 * ends a line. */
static void see_head(struct MHD_Connection *connection, const char *method, const char *version,
                     struct headers *h)
{
    const struct http_connection *c = http_connection_of(connection);
    const char *uri = method + strlen(method) + 1;

    h->next = version + strlen(version) + 2;
    (void)MHD_get_connection_values(connection, MHD_HEADER_KIND, see_header, h);
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(connection, MHD_CONNECTION_INFO_REQUEST_HEADER_SIZE);
    h->gap |= c->uri != uri || uri + c->uri_bytes + 1 != version || info == NULL ||
              method + info->header_size != h->next + 2;
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

/* A page that this server itself gave out may ask it; on a loopback address only, where the Host is
 * known to be ours. */
static bool is_same_origin(const struct http_server *s, const struct headers *h)
{
    const char *scheme = s->options.tls_cert != NULL ? "https://" : "http://";
    size_t size = strlen(scheme);

    return s->loopback && h->host != NULL && strncmp(h->origin, scheme, size) == 0 &&
           strcasecmp(h->origin + size, h->host) == 0;
}

static bool origin_is_allowed(const struct http_server *s, const struct headers *h)
{
    return is_same_origin(s, h) || in_list(s->options.allowed_origins, "*", 1) ||
           in_list(s->options.allowed_origins, h->origin, strlen(h->origin));
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
        (void)http_add_header(x, "Retry-After", "5");
    if (status == 401)
        (void)http_add_header(x, "WWW-Authenticate", "Bearer");
    http_error(x, status, code, NULL, message);
    return http_answer(x);
}

/* Behind the last colon; names that have none, or something else there, are not ours to judge. */
static bool has_good_port(const char *host)
{
    const char *port = strrchr(host, ':');
    size_t n = port != NULL ? strspn(port + 1, "0123456789") : 0;

    if (n == 0 || port[1 + n] != 0)
        return true;
    return n <= 5 && strtoul(port + 1, NULL, 10) <= 65535;
}

static const char *framing_error(const struct headers *h, const char *version)
{
    bool old = strcmp(version, "HTTP/1.0") == 0;

    if (h->two_line)
        return "a header goes on in a second line, or has a line end in it";
    if (h->gap)
        return "a line has a 0 byte in it, has no name, or does not end in CR LF";
    if (h->bad_name)
        return "the name of a header has bytes that no name may have";
    if (h->n_encodings > 0 && old)
        return "Transfer-Encoding is of HTTP/1.1";
    if (h->n_hosts == 0 && !old)
        return "there is no Host";
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
    if (h->host != NULL && !has_good_port(h->host))
        return "the port in Host is none";
    if (h->n_authorizations > 1)
        return "more than one Authorization";
    return NULL;
}

static bool is_public_route(const char *path)
{
    return strcmp(path, "/health") == 0 || strcmp(path, "/ready") == 0;
}

/* Method, address, headers; NULL when they are as HTTP wants them. */
static const char *syntax_error(const struct http_exchange *x, const struct headers *h,
                                const char *version)
{
    if (!is_token(x->method))
        return "the method is none";
    if (x->socket->odd_uri)
        return "the address has a space, a control character or %00 in it";
    return framing_error(h, version);
}

/* The headers that a page of an allowed origin may send: those that its browser asks for, since
 * clients send ones of their own (OpenAI's has a dozen, X-Stainless-*), if it is a list of names.
 * None of them has a power here that the page would not have without it. */
static const char *allowed_headers(const char *wanted)
{
    static const char USUAL[] = "Authorization, Content-Type, X-Api-Key, X-Request-Id";
    size_t n_names = 0;

    for (const char *at = wanted; at != NULL && *at != 0; n_names++) {
        at += strspn(at, " \t");
        size_t n = token_size(at);
        if (n == 0)
            return USUAL;
        at += n + strspn(at + n, " \t");
        if (*at != 0 && *at++ != ',')
            return USUAL;
    }
    return n_names > 0 ? wanted : USUAL;
}

static enum MHD_Result preflight(struct http_exchange *x, const struct headers *h)
{
    (void)http_add_header(x, "Access-Control-Allow-Methods", "GET, POST, OPTIONS");
    (void)http_add_header(x, "Access-Control-Allow-Headers", allowed_headers(h->wanted));
    (void)http_add_header(x, "Access-Control-Max-Age", "600");
    http_reply(x, 204, "text/plain", NULL, 0);
    x->refused = true;
    return http_answer(x);
}

static enum MHD_Result check(struct http_exchange *x, const struct headers *h, const char *version)
{
    const struct http_server *s = x->server;
    const char *wrong = syntax_error(x, h, version);
    char message[160];

    if (wrong != NULL)
        return refuse(x, 400, "bad_request", wrong);
    if (x->socket->uri_bytes > LIMIT_HTTP_URI)
        return refuse(x, 414, "uri_too_long", "the address is longer than 8 KiB");
    if (h->n > LIMIT_HTTP_HEADERS || h->n_bytes > LIMIT_HTTP_HEADER_BYTES)
        return refuse(x, 431, "headers_too_large", "more than 100 headers, or 16 KiB of them");
    if (h->host != NULL && !host_is_ours(s, h->host))
        return refuse(x, 403, "host_not_allowed",
                      "this server does not go by the name in the Host header; --allow-host adds "
                      "one");
    if (h->origin != NULL) {
        if (!origin_is_allowed(s, h))
            return refuse(x, 403, "origin_not_allowed",
                          "web pages of this origin may not ask this server; --allow-origin "
                          "permits it");
        x->origin = memcpy(x->path + strlen(x->path) + 1, h->origin, strlen(h->origin) + 1);
        if (strcmp(x->method, "OPTIONS") == 0) /* a browser asks before it asks */
            return preflight(x, h);
    }
    if (s->options.auth != NULL && !is_public_route(x->path)) {
        x->key_index = find_key(s, h);
        if (x->key_index < 0)
            return refuse(x, 401, "invalid_api_key",
                          "this server needs an API key: Authorization: Bearer KEY");
    }
    if (h->expect != NULL && strcasecmp(h->expect, "100-continue") != 0)
        return refuse(x, 417, "expectation_failed", "Expect may say 100-continue, nothing else");
    if (h->coding != NULL && h->coding[0] != 0 && strcasecmp(h->coding, "identity") != 0)
        return refuse(x, 415, "unsupported_content_encoding",
                      "bodies are taken as they are, without Content-Encoding");
    /* At most 20 digits are looked at: longer ones are too much, too. */
    if (h->length != NULL &&
        (strlen(h->length) > 18 || strtoull(h->length, NULL, 10) > max_body(s))) {
        (void)snprintf(message, sizeof message, "a body may have %zu bytes at most", max_body(s));
        return refuse(x, 413, "body_too_large", message);
    }
    return MHD_YES;
}

void *http_see_uri(void *cls, const char *uri, struct MHD_Connection *connection)
{
    struct http_connection *c = http_connection_of(connection);

    (void)cls;
    if (c == NULL)
        return NULL;
    c->reads_head = true;
    c->uri = uri;
    c->odd_uri = uri == NULL || strstr(uri, "%00") != NULL;
    c->uri_bytes = uri != NULL ? strlen(uri) : 0;
    for (size_t i = 0; i < c->uri_bytes; i++)
        c->odd_uri |= (unsigned char)uri[i] <= ' ' || uri[i] == 0x7f;
    return NULL; /* there is no exchange yet */
}

static enum MHD_Result begin(struct http_server *s, struct MHD_Connection *connection,
                             const char *url, const char *method, const char *version,
                             void **con_cls)
{
    struct headers h = {0};
    struct http_exchange *x;
    char cut[LIMIT_HTTP_URI + 1]; /* longer ones are refused: only this much is remembered */

    if (http_connection_of(connection) == NULL) /* there was no memory for it: it is closed */
        return MHD_NO;
    http_connection_of(connection)->reads_head = false;
    see_head(connection, method, version, &h);
    (void)snprintf(cut, sizeof cut, "%s", url);
    if (strlen(method) > LIMIT_HTTP_METHOD)
        method = "?"; /* refused, and logged as that */
    x = http_exchange_new(s, connection, method, cut, h.origin != NULL ? strlen(h.origin) + 1 : 0);
    if (x == NULL)
        return MHD_NO;
    *con_cls = x;
    error_make_printable(x->method); /* it is logged */
    set_id(x, h.request_id);
    return check(x, &h, version);
}

/* The connection whose headers are complete and nobody's yet: there is never more than one. NULL:
 * libmicrohttpd was at another place. */
static struct http_connection *in_headers(const struct http_server *s)
{
    for (struct http_connection *c = s->connections; c != NULL; c = c->next) {
        if (c->reads_head &&
            MHD_get_connection_info(c->mhd, MHD_CONNECTION_INFO_REQUEST_HEADER_SIZE) != NULL &&
            MHD_get_connection_info(c->mhd, MHD_CONNECTION_INFO_HTTP_STATUS) == NULL)
            return c;
    }
    return NULL;
}

/* libmicrohttpd 0.9.75 answers a Content-Length that is no number itself, and then goes on as if it
 * had not: it sends two heads, which a reader may take for two answers. So ours is sent before, and
 * the way of its own is closed. Over TLS, where we cannot write, the connection just ends. */
void http_library_refuses(struct http_server *s, int status)
{
    struct http_connection *c = in_headers(s);
    struct headers h = {0};

    if (c == NULL)
        return;
    c->reads_head = false;
    (void)MHD_get_connection_values(c->mhd, MHD_HEADER_KIND, see_header, &h);
    struct http_exchange *x = http_exchange_new(s, c->mhd, "?", "", 0);
    const char *wrong = framing_error(&h, "HTTP/1.1");
    if (x == NULL || s->options.tls_cert != NULL) {
        (void)shutdown(c->fd, SHUT_RDWR);
        if (x == NULL)
            return;
    }
    set_id(x, h.request_id);
    x->refused = true;
    http_off_wire(x);
    if (status == 413)
        http_error(x, status, "body_too_large", NULL, "Content-Length is too large a number");
    else
        http_error(x, status, status == 431 ? "headers_too_large" : "bad_request", NULL,
                   wrong != NULL ? wrong : "the headers are malformed, or too many");
    if (s->options.tls_cert == NULL)
        http_answer_raw(x);
}

/* Takes a piece of the body; more than allowed is refused when the whole request has come in, since
 * libmicrohttpd takes no answer in between: the rest is read and forgotten. */
static void take_body(struct http_exchange *x, const char *data, size_t size)
{
    struct http_server *s = x->server;

    if (x->body_size > max_body(s) || x->no_room) {
        x->forgotten_bytes += size;
        return;
    }
    if (size > x->body_capacity - x->body_size) {
        size_t capacity = min_size(2 * x->body_capacity + size + 4096, max_body(s) + 1 + size);
        size_t more = capacity - x->body_capacity;
        char *grown = atomic_load(&s->bodies_bytes) + more <= max_bodies(s)
                          ? mem_resize(x->body, x->body_size, capacity)
                          : NULL;
        if (grown == NULL) {
            x->no_room = true;
            return;
        }
        atomic_fetch_add(&s->bodies_bytes, more);
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

    if (x == NULL)
        return begin(s, connection, url, method, version, con_cls);
    if (x->queued)
        return MHD_YES;
    if (*upload_data_size > 0) {
        take_body(x, upload_data, *upload_data_size);
        *upload_data_size = 0;
        /* A chunked body without an end is not read for ever. */
        return x->forgotten_bytes > max_body(s) ? MHD_NO : MHD_YES;
    }
    if (x->complete)
        return http_answer(x);
    x->complete = true;
    x->socket->busy = true;
    if (x->no_room)
        return refuse(x, 503, "overloaded", "too many large requests at once; try again later");
    if (x->body_size > max_body(s)) {
        (void)snprintf(message, sizeof message, "a body may have %zu bytes at most", max_body(s));
        return refuse(x, 413, "body_too_large", message);
    }
    s->options.handler(s->options.arg, x);
    return http_answer(x);
}
