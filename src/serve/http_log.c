/* The access log: one JSON object a line and request. No prompts, no keys, no paths of clients'
 * making. See http.h. */
#include "serve/http_impl.h"

#include "base/log.h"

#include <errno.h>
#include <jansson.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { LINE_BYTES = 4096 }; /* PIPE_BUF: a pipe takes it whole or not at all */

static bool is_probe(const char *route)
{
    return strcmp(route, "health") == 0 || strcmp(route, "ready") == 0 ||
           strcmp(route, "metrics") == 0;
}

static json_t *wall_clock(void)
{
    struct timespec now;
    struct tm utc;
    char text[40], all[64];

    (void)clock_gettime(CLOCK_REALTIME, &now);
    if (gmtime_r(&now.tv_sec, &utc) == NULL)
        return json_null();
    (void)strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%S", &utc);
    (void)snprintf(all, sizeof all, "%s.%03ldZ", text, now.tv_nsec / 1000000);
    return json_string(all);
}

/* The I/O thread writes, so nothing may wait here: not for a pipe that nobody reads, either. Lines
 * are shorter than what a pipe takes whole once it takes anything. */
static bool is_writable(int fd)
{
    struct pollfd p = {.fd = fd, .events = POLLOUT};

    return poll(&p, 1, 0) == 1 && (p.revents & POLLOUT) != 0;
}

/* Takes line over. One write, so that lines never mix. */
static bool put(int fd, json_t *line)
{
    char text[LINE_BYTES];
    size_t size = 0;

    if (line != NULL)
        size = json_dumpb(line, text, sizeof text - 1, JSON_COMPACT | JSON_REAL_PRECISION(6));
    json_decref(line);
    if (size == 0 || size > sizeof text - 1)
        return false;
    text[size] = '\n';
    return write(fd, text, size + 1) == (ssize_t)(size + 1);
}

static json_t *line_of(const struct http_exchange *x, int status, uint64_t now_ns)
{
    json_t *line = json_pack(
        "{s:o, s:s, s:s, s:s, s:i, s:i, s:I, s:I, s:f, s:b, s:b}", "time", wall_clock(), "id",
        x->id, "method", x->method, "route", x->route, "status", status, "key", x->key_index,
        "bytes_in", (json_int_t)(x->body_size + x->forgotten_bytes), "bytes_out",
        (json_int_t)x->sent_bytes, "seconds", (double)(now_ns - x->start_ns) * 1e-9, "stream",
        (int)x->pulled, "client_left", (int)x->told_gone);

    for (size_t i = 0; line != NULL && i < x->n_notes; i++) {
        const struct http_note *n = &x->notes[i];
        (void)json_object_set_new(line, n->name,
                                  n->word != NULL ? json_string(n->word)
                                                  : json_integer((json_int_t)n->number));
    }
    return line;
}

/* Said once, until a line could be written again. */
static void lose(struct http_server *s, const char *why)
{
    if (s->n_log_lost++ == 0)
        LOG_WARNING("the access log loses lines: %s", why);
}

void http_log(const struct http_exchange *x, int status, uint64_t now_ns)
{
    struct http_server *s = x->server;
    const struct http_options *o = &s->options;

    if (o->log_fd < 0 || (is_probe(x->route) && !o->log_probes))
        return;
    if (!is_writable(o->log_fd)) {
        lose(s, "its reader is behind");
        return;
    }
    if (s->n_log_lost > 0 && put(o->log_fd, json_pack("{s:o, s:I}", "time", wall_clock(),
                                                      "lost_lines", (json_int_t)s->n_log_lost)))
        s->n_log_lost = 0;
    errno = 0;
    if (!is_writable(o->log_fd) || !put(o->log_fd, line_of(x, status, now_ns)))
        lose(s, errno != 0 ? strerror(errno) : "it is full");
}
