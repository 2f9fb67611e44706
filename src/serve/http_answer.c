/* Answers: from any thread into a bounded buffer, from there to the wire. See http.h. */
#include "serve/http_impl.h"

#include "base/alloc.h"
#include "base/assert.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/size.h"

#include <jansson.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>

enum {
    FIRST_OUT_BYTES = 512,
    DEFAULT_STREAM_BYTES = 64 << 10,
    HARD_CAPS = 64,
    OUT_KEPT_BYTES = 16 << 10,
    BLOCK_BYTES = 8 << 10,
    ADDED_BYTES = 16 << 10, /* of one header: libmicrohttpd has HTTP_POOL_BYTES for all */
};

static size_t soft_cap(const struct http_exchange *x)
{
    size_t n = x->server->options.stream_bytes;

    return n > 0 ? n : DEFAULT_STREAM_BYTES;
}

/* Under the mutex. False when there is no memory. */
static bool append(struct http_exchange *x, const void *data, size_t size)
{
    if (x->out_start > 0 && x->out_start == x->out_size)
        x->out_start = x->out_size = 0;
    if (size > x->out_capacity - x->out_size && x->out_start > 0) {
        x->out_size -= x->out_start;
        memmove(x->out, x->out + x->out_start, x->out_size);
        x->out_start = 0;
    }
    if (!mem_reserve(&x->out, x->out_size, &x->out_capacity, size, FIRST_OUT_BYTES))
        return false;
    if (size > 0)
        memcpy(x->out + x->out_size, data, size);
    if (x->out_start == x->out_size) /* the reader was not in debt until now */
        x->taken_ns = clock_now_ns();
    x->out_size += size;
    x->wrote_ns = clock_now_ns();
    return true;
}

static void lock(struct http_exchange *x)
{
    (void)pthread_mutex_lock(&x->mutex);
}

static void unlock(struct http_exchange *x)
{
    (void)pthread_mutex_unlock(&x->mutex);
}

/* Unlocks, and has the I/O thread look at the exchange. It is freed on that thread, but never while
 * it is marked dirty: so the mark is set under the same lock as what ends it. */
static void unlock_and_touch(struct http_exchange *x)
{
    bool was = x->dirty;

    x->dirty = true;
    unlock(x);
    if (!was)
        http_push_dirty(x);
}

void http_reply(struct http_exchange *x, int status, const char *content_type, const void *body,
                size_t size)
{
    lock(x);
    FERRY_ASSERT(x->state == ANSWER_NONE);
    x->status = status;
    x->content_type = content_type;
    if (!x->gone && !append(x, body, size)) {
        x->status = 503;
        x->out_size = x->out_start = 0;
    }
    x->state = ANSWER_WHOLE;
    unlock_and_touch(x);
}

/* The type of error in OpenAI's words. */
static const char *error_type(int status)
{
    return status == 401   ? "authentication_error"
           : status == 403 ? "permission_error"
           : status == 429 ? "rate_limit_error"
           : status >= 500 ? "server_error"
                           : "invalid_request_error";
}

void http_error(struct http_exchange *x, int status, const char *code, const char *param,
                const char *message)
{
    static const char PLAIN[] =
        "{\"error\":{\"message\":\"out of memory\",\"type\":\"server_error\"}}";
    char text[512], name[256], body[4096]; /* the two fit in the third, also when all is escaped */

    /* Bytes of a client's making may be in both. */
    (void)snprintf(text, sizeof text, "%s", message);
    (void)snprintf(name, sizeof name, "%s", param != NULL ? param : "");
    error_make_printable(text);
    error_make_printable(name);
    json_t *error =
        json_pack("{s:{s:s, s:s, s:s?, s:s?}}", "error", "message", text, "type",
                  error_type(status), "code", code, "param", param != NULL ? name : NULL);
    size_t size = error != NULL ? json_dumpb(error, body, sizeof body, JSON_COMPACT) : 0;

    json_decref(error);
    if (size > 0 && size <= sizeof body)
        http_reply(x, status, "application/json", body, size);
    else
        http_reply(x, status, "application/json", PLAIN, sizeof PLAIN - 1);
}

void http_stream_begin(struct http_exchange *x, int status, const char *content_type)
{
    lock(x);
    FERRY_ASSERT(x->state == ANSWER_NONE);
    x->status = status;
    x->content_type = content_type;
    x->state = ANSWER_STREAM;
    x->wrote_ns = x->taken_ns = clock_now_ns();
    unlock_and_touch(x);
}

enum ferry_status http_stream_write(struct http_exchange *x, const void *data, size_t size)
{
    enum ferry_status st = FERRY_OK;

    lock(x);
    FERRY_ASSERT(x->state == ANSWER_STREAM);
    size_t waiting = x->out_size - x->out_start;
    if (x->gone) {
        st = FERRY_ERR_CANCELLED;
    } else if (waiting + size > HARD_CAPS * soft_cap(x) || !append(x, data, size)) {
        x->gone = true; /* told on the I/O thread */
        st = FERRY_ERR_CANCELLED;
    } else if (waiting + size > soft_cap(x)) {
        x->above = true;
        st = FERRY_AGAIN;
    }
    unlock_and_touch(x);
    return st;
}

size_t http_stream_room(const struct http_exchange *x)
{
    return HARD_CAPS / 2 * soft_cap(x);
}

void http_stream_end(struct http_exchange *x, bool complete)
{
    lock(x);
    FERRY_ASSERT(x->state == ANSWER_STREAM);
    x->state = complete ? ANSWER_WHOLE : ANSWER_CUT;
    unlock_and_touch(x);
}

bool http_add_header(struct http_exchange *x, const char *name, const char *value)
{
    size_t size = strlen(value), n = 0;
    char *copy = size <= ADDED_BYTES ? mem_strndup(value, size) : NULL;

    if (copy == NULL)
        return false;
    for (; *value != 0; value++) {
        if (*value >= ' ' && *value <= '~')
            copy[n++] = *value;
    }
    copy[n] = 0;
    lock(x);
    bool fits = x->n_added < HTTP_ADDED_MAX && strlen(name) < sizeof x->added[0].name;
    if (fits) {
        memcpy(x->added[x->n_added].name, name, strlen(name) + 1);
        x->added[x->n_added++].value = copy;
    }
    unlock(x);
    if (!fits)
        mem_free(copy);
    return fits;
}

static void note(struct http_exchange *x, struct http_note n)
{
    lock(x);
    if (x->n_notes < HTTP_NOTES_MAX)
        x->notes[x->n_notes++] = n;
    unlock(x);
}

void http_log_number(struct http_exchange *x, const char *name, uint64_t value)
{
    note(x, (struct http_note){.name = name, .number = value});
}

void http_log_word(struct http_exchange *x, const char *name, const char *constant)
{
    note(x, (struct http_note){.name = name, .word = constant});
}

/* ---- I/O thread ---- */

void http_tell_gone(struct http_exchange *x)
{
    bool owed;

    lock(x);
    x->gone = true;
    owed = x->state == ANSWER_NONE || x->state == ANSWER_STREAM;
    unlock(x);
    if (x->told_gone)
        return;
    x->told_gone = true;
    if (owed && x->owner.gone != NULL)
        x->owner.gone(x->owner_arg);
}

bool http_has_stalled(struct http_exchange *x, uint64_t now_ns, uint64_t limit_ns)
{
    lock(x);
    bool stalled =
        x->out_size > x->out_start && now_ns > x->taken_ns && now_ns - x->taken_ns > limit_ns;
    unlock(x);
    return stalled;
}

bool http_keep_alive(struct http_exchange *x, uint64_t now_ns, uint64_t quiet_ns)
{
    static const char COMMENT[] = ": keep-alive\n\n";

    lock(x);
    bool quiet = x->state == ANSWER_STREAM && !x->gone && x->out_size == x->out_start &&
                 now_ns > x->wrote_ns && now_ns - x->wrote_ns > quiet_ns;
    quiet = quiet && append(x, COMMENT, sizeof COMMENT - 1);
    unlock(x);
    return quiet;
}

/* libmicrohttpd asks for the next bytes of an answer. */
static ssize_t read_stream(void *cls, uint64_t pos, char *buf, size_t max)
{
    struct http_exchange *x = cls;
    bool drained = false;

    (void)pos;
    lock(x);
    size_t n = min_size(max, x->out_size - x->out_start);
    if (n > 0) {
        memcpy(buf, x->out + x->out_start, n);
        x->out_start += n;
        x->taken_ns = clock_now_ns();
        drained = x->above && x->out_size - x->out_start < soft_cap(x) / 2;
        if (drained)
            x->above = false;
        if (x->out_start == x->out_size && x->out_capacity > OUT_KEPT_BYTES &&
            x->state != ANSWER_STREAM) {
            mem_free(x->out);
            x->out = NULL;
            x->out_start = x->out_size = x->out_capacity = 0;
        }
    }
    enum answer_state state = x->state;
    bool gone = x->gone;
    unlock(x);
    x->sent_bytes += n;
    if (drained && x->owner.drained != NULL && !gone)
        x->owner.drained(x->owner_arg);
    if (n > 0)
        return (ssize_t)n;
    if (gone || state == ANSWER_CUT)
        return MHD_CONTENT_READER_END_WITH_ERROR;
    if (state == ANSWER_WHOLE)
        return MHD_CONTENT_READER_END_OF_STREAM;
    http_suspend(x);
    return 0;
}

static void add_headers(struct http_exchange *x, struct MHD_Response *response)
{
    (void)MHD_add_response_header(response, "Content-Type", x->content_type);
    (void)MHD_add_response_header(response, "X-Request-Id", x->id);
    (void)MHD_add_response_header(response, "X-Content-Type-Options", "nosniff");
    if (x->origin != NULL) {
        (void)MHD_add_response_header(response, "Access-Control-Allow-Origin", x->origin);
        (void)MHD_add_response_header(response, "Access-Control-Expose-Headers",
                                      "X-Request-Id, X-Ignored-Params, Retry-After");
        (void)MHD_add_response_header(response, "Vary", "Origin");
    }
    for (size_t i = 0; i < x->n_added; i++)
        (void)MHD_add_response_header(response, x->added[i].name, x->added[i].value);
    if (x->refused || atomic_load(&x->server->draining))
        (void)MHD_add_response_header(response, "Connection", "close");
}

/* The state can only move on from here to more complete ones, so what was read stays true. */
enum MHD_Result http_answer(struct http_exchange *x)
{
    struct MHD_Response *response;

    lock(x);
    enum answer_state state = x->state;
    bool gone = x->gone;
    bool whole = state == ANSWER_WHOLE;
    x->taken_ns = clock_now_ns(); /* from now on it is the reader's turn */
    unlock(x);
    if (gone)
        return MHD_NO; /* closes the connection */
    if (state == ANSWER_NONE) {
        http_suspend(x);
        return MHD_YES;
    }
    /* Whole ones are taken from us in pieces, too: that is how a reader that stalls is seen. */
    x->pulled = !whole || strncmp(x->content_type, "text/event-stream", 17) == 0;
    if (!x->pulled && x->out_size == 0)
        response = MHD_create_response_from_buffer(0, NULL, MHD_RESPMEM_PERSISTENT);
    else
        response = MHD_create_response_from_callback(x->pulled ? MHD_SIZE_UNKNOWN : x->out_size,
                                                     BLOCK_BYTES, read_stream, x, NULL);
    if (response != NULL && x->pulled)
        (void)MHD_add_response_header(response, "Cache-Control", "no-cache");
    if (response == NULL)
        return MHD_NO;
    add_headers(x, response);
    x->queued = true;
    enum MHD_Result result = MHD_queue_response(x->connection, (unsigned)x->status, response);
    MHD_destroy_response(response);
    return result;
}

void http_answer_raw(struct http_exchange *x)
{
    char head[512], date[40] = "";
    time_t now = time(NULL);
    struct tm utc;

    if (gmtime_r(&now, &utc) != NULL)
        (void)strftime(date, sizeof date, "Date: %a, %d %b %Y %H:%M:%S GMT\r\n", &utc);
    int n = snprintf(head, sizeof head,
                     "HTTP/1.1 %d %s\r\n%sConnection: close\r\nContent-Type: %s\r\n"
                     "X-Request-Id: %s\r\nX-Content-Type-Options: nosniff\r\n"
                     "Content-Length: %zu\r\n\r\n",
                     x->status, MHD_get_reason_phrase_for((unsigned)x->status), date,
                     x->content_type, x->id, x->out_size);
    struct iovec parts[] = {{head, (size_t)n}, {x->out, x->out_size}};
    struct msghdr message = {.msg_iov = parts, .msg_iovlen = 2};
    /* Less than a kilobyte, behind answers that the kernel has: if it does not fit, then the reader
     * is in no hurry. */
    ssize_t sent = sendmsg(x->fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    x->sent_bytes = sent > n ? (uint64_t)(sent - n) : 0;
    x->out_start = x->out_size;
    (void)shutdown(x->fd, SHUT_WR);
}
