/* Streaming of generated text. See utf8.h. */
#include "text/utf8.h"

#include "base/error.h"

#include <string.h>

enum { FIRST_BYTES = 4096 };

enum ferry_status text_stream_init(struct text_stream *stream, const char *const *stops,
                                   size_t n_stops, struct ferry_error *err)
{
    *stream = (struct text_stream){0};
    if (n_stops > TEXT_STOPS_MAX)
        return FERRY_FAIL(err, FERRY_ERR_LIMIT, "%zu stop strings (limit %d)", n_stops,
                          TEXT_STOPS_MAX);
    for (size_t i = 0; i < n_stops; i++) {
        size_t size = strlen(stops[i]);
        if (size == 0)
            return FERRY_FAIL(err, FERRY_ERR_ARG, "stop string %zu is empty", i);
        if (stream->stops.size + size > TEXT_STOP_BYTES_MAX)
            return FERRY_FAIL(err, FERRY_ERR_LIMIT, "stop strings of more than %d bytes",
                              TEXT_STOP_BYTES_MAX);
        if (!bytes_append(&stream->stops, stops[i], size))
            goto no_memory;
        stream->ends[i] = stream->stops.size;
        stream->n_stops++;
    }
    if (bytes_reserve(&stream->held, stream->stops.size + FIRST_BYTES))
        return FERRY_OK;
no_memory:
    text_stream_fini(stream);
    return FERRY_FAIL(err, FERRY_ERR_NOMEM, "no memory for stop strings");
}

void text_stream_fini(struct text_stream *stream)
{
    bytes_fini(&stream->stops);
    bytes_fini(&stream->held);
    *stream = (struct text_stream){0};
}

/* Moves what the last call gave out away. */
static void drop_given(struct text_stream *stream)
{
    if (stream->given > 0)
        memmove(stream->held.data, stream->held.data + stream->given,
                stream->held.size - stream->given);
    stream->held.size -= stream->given;
    stream->given = 0;
}

/* Makes the waiting tail and the new bytes one text of whole characters behind what is held. */
static bool take(struct text_stream *stream, const char *data, size_t n_bytes)
{
    while (n_bytes > 0 && stream->tail_size > 0) {
        stream->tail[stream->tail_size] = *data;
        if (utf8_is_incomplete(stream->tail, stream->tail_size + 1)) {
            stream->tail_size++;
            data++;
            n_bytes--;
            continue;
        }
        int32_t code;
        size_t size = utf8_decode(stream->tail, stream->tail_size + 1, &code);
        if (!bytes_append_code(&stream->held, code < 0 ? 0xFFFD : code))
            return false;
        size_t used = size - stream->tail_size; /* 1, or 0 when the new byte does not fit */
        data += used;
        n_bytes -= used;
        stream->tail_size = 0;
    }
    /* The last one to three bytes may be the beginning of a character. */
    size_t keep = 0;
    for (size_t n = 1; n <= 3 && n <= n_bytes; n++) {
        if (utf8_is_incomplete(data + n_bytes - n, n))
            keep = n;
    }
    if (!utf8_append_lossy(&stream->held, data, n_bytes - keep))
        return false;
    if (keep > 0) {
        memcpy(stream->tail, data + n_bytes - keep, keep);
        stream->tail_size = keep;
    }
    return true;
}

/* Start of the stop string that ends first in the held text from `from` on (of several with one
 * end, the longest); SIZE_MAX when there is none. */
static size_t find_stop(const struct text_stream *stream, size_t from)
{
    const struct bytes *held = &stream->held;
    size_t best_start = SIZE_MAX;
    size_t best_end = SIZE_MAX;
    size_t begin = 0;

    for (size_t i = 0; i < stream->n_stops; i++) {
        const char *stop = stream->stops.data + begin;
        size_t size = stream->ends[i] - begin;
        begin = stream->ends[i];
        size_t first = from > size ? from - size : 0;
        if (held->size < first + size)
            continue;
        const char *found = memmem(held->data + first, held->size - first, stop, size);
        if (found == NULL)
            continue;
        size_t start = (size_t)(found - held->data);
        if (start + size < best_end || (start + size == best_end && start < best_start)) {
            best_start = start;
            best_end = start + size;
        }
    }
    return best_start;
}

/* Length of the longest end of the held text that begins a stop string. */
static size_t maybe_stop(const struct text_stream *stream)
{
    const struct bytes *held = &stream->held;
    size_t longest = 0;
    size_t begin = 0;

    for (size_t i = 0; i < stream->n_stops; i++) {
        const char *stop = stream->stops.data + begin;
        size_t size = stream->ends[i] - begin;
        begin = stream->ends[i];
        for (size_t n = size - 1 < held->size ? size - 1 : held->size; n > longest; n--) {
            if (memcmp(held->data + held->size - n, stop, n) == 0)
                longest = n;
        }
    }
    return longest;
}

enum ferry_status text_stream_push(struct text_stream *stream, const char *data, size_t n_bytes,
                                   const char **ret_text, size_t *ret_size, struct ferry_error *err)
{
    drop_given(stream);
    size_t old_size = stream->held.size;
    if (!stream->stopped) {
        if (!take(stream, data, n_bytes))
            return FERRY_FAIL(err, FERRY_ERR_NOMEM, "no memory for generated text");
        size_t stop = find_stop(stream, old_size);
        if (stop != SIZE_MAX) {
            stream->stopped = true;
            stream->tail_size = 0;
            stream->held.size = stop;
        }
        stream->given = stream->stopped ? stop : stream->held.size - maybe_stop(stream);
    }
    *ret_text = stream->given > 0 ? stream->held.data : "";
    *ret_size = stream->given;
    return FERRY_OK;
}

enum ferry_status text_stream_finish(struct text_stream *stream, const char **ret_text,
                                     size_t *ret_size, struct ferry_error *err)
{
    drop_given(stream);
    if (stream->tail_size > 0) {
        stream->tail_size = 0;
        if (!bytes_append_code(&stream->held, 0xFFFD))
            return FERRY_FAIL(err, FERRY_ERR_NOMEM, "no memory for generated text");
    }
    stream->given = stream->held.size;
    *ret_text = stream->given > 0 ? stream->held.data : "";
    *ret_size = stream->given;
    return FERRY_OK;
}

bool text_stream_stopped(const struct text_stream *stream)
{
    return stream->stopped;
}

size_t text_stream_held(const struct text_stream *stream)
{
    return stream->held.size - stream->given + stream->tail_size;
}
