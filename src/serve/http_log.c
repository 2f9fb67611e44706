/* The access log: one JSON object a line and request. No prompts, no keys, no paths of clients'
 * making. See http.h. */
#include "serve/http_impl.h"

#include "base/log.h"

#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

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

void http_log(const struct http_exchange *x, uint64_t now_ns)
{
    const struct http_options *o = &x->server->options;
    char text[4096];

    if (o->log_fd < 0 || (is_probe(x->route) && !o->log_probes))
        return;
    json_t *line = json_pack(
        "{s:o, s:s, s:s, s:s, s:i, s:i, s:I, s:I, s:f, s:b}", "time", wall_clock(), "id", x->id,
        "method", x->method, "route", x->route, "status", x->status, "key", x->key_index,
        "bytes_in", (json_int_t)x->body_size, "bytes_out", (json_int_t)x->sent_bytes, "seconds",
        (double)(now_ns - x->start_ns) * 1e-9, "client_left", (int)x->told_gone);
    for (size_t i = 0; line != NULL && i < x->n_notes; i++) {
        const struct http_note *n = &x->notes[i];
        (void)json_object_set_new(line, n->name,
                                  n->word != NULL ? json_string(n->word)
                                                  : json_integer((json_int_t)n->number));
    }
    size_t size = 0;
    if (line != NULL)
        size = json_dumpb(line, text, sizeof text - 1, JSON_COMPACT | JSON_REAL_PRECISION(6));
    json_decref(line);
    if (size == 0 || size > sizeof text - 1)
        return;
    text[size] = '\n'; /* one write, so that lines never mix */
    if (write(o->log_fd, text, size + 1) < 0)
        LOG_DEBUG("access log: %s", strerror(errno)); /* must not stop the answers */
}
