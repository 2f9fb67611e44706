/* JSON straight into a buffer. See json_writer.h. */
#include "serve/json_writer.h"

#include "base/alloc.h"
#include "text/unicode.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

enum { FIRST_CAPACITY = 1024, NEXT_LINE = 0x85, LINE_SEPARATOR = 0x2028, PARAGRAPH_SEPARATOR };

/* What stands for a number that JSON cannot say; OpenAI's own "very unlikely". */
static const char NOT_A_NUMBER[] = "-9999.0";

void json_writer_fini(struct json_writer *w)
{
    mem_free(w->data);
    *w = (struct json_writer){0};
}

void json_writer_reset(struct json_writer *w)
{
    w->size = 0;
    w->failed = false;
}

static bool reserve(struct json_writer *w, size_t n)
{
    w->failed = w->failed || !mem_reserve(&w->data, w->size, &w->capacity, n, FIRST_CAPACITY);
    return !w->failed;
}

void json_put_raw(struct json_writer *w, const void *data, size_t size)
{
    if (size == 0 || !reserve(w, size))
        return;
    memcpy(w->data + w->size, data, size);
    w->size += size;
}

void json_put_text(struct json_writer *w, const char *text)
{
    json_put_raw(w, text, strlen(text));
}

static void put_escape(struct json_writer *w, int32_t code)
{
    static const char SHORT[] = "\b\f\n\r\t\"\\";
    static const char LETTER[] = "bfnrt\"\\";
    char text[8];

    const char *at = code > 0 && code < 0x80 ? strchr(SHORT, code) : NULL;
    if (code < 0)
        json_put_text(w, "\xEF\xBF\xBD");
    else if (at != NULL)
        json_put_raw(w, (char[]){'\\', LETTER[at - SHORT]}, 2);
    else
        json_put_raw(w, text, (size_t)snprintf(text, sizeof text, "\\u%04" PRIx32, (uint32_t)code));
}

void json_put_chars(struct json_writer *w, const char *s, size_t size)
{
    size_t start = 0; /* of the bytes that have not been written and need no escape */
    size_t i = 0;

    while (i < size) {
        int32_t code = (unsigned char)s[i];
        size_t step = 1;
        if (code >= 0x20 && code < 0x80 && code != '"' && code != '\\') {
            i++;
            continue;
        }
        if (code >= 0x80)
            step = utf8_decode(s + i, size - i, &code);
        if (code < 0x80 || code == NEXT_LINE || code == LINE_SEPARATOR ||
            code == PARAGRAPH_SEPARATOR) {
            json_put_raw(w, s + start, i - start);
            put_escape(w, code);
            start = i + step;
        }
        i += step;
    }
    if (size > start)
        json_put_raw(w, s + start, size - start);
}

void json_put_string(struct json_writer *w, const char *s, size_t size)
{
    json_put_raw(w, "\"", 1);
    json_put_chars(w, s, size);
    json_put_raw(w, "\"", 1);
}

void json_put_string0(struct json_writer *w, const char *s)
{
    if (s == NULL)
        json_put_text(w, "null");
    else
        json_put_string(w, s, strlen(s));
}

void json_put_int(struct json_writer *w, int64_t value)
{
    char text[24];
    json_put_raw(w, text, (size_t)snprintf(text, sizeof text, "%" PRId64, value));
}

void json_put_uint(struct json_writer *w, uint64_t value)
{
    char text[24];
    json_put_raw(w, text, (size_t)snprintf(text, sizeof text, "%" PRIu64, value));
}

void json_put_float(struct json_writer *w, float value)
{
    char text[32];

    if (!(value - value == 0)) { /* false for NaN and both infinities */
        json_put_text(w, NOT_A_NUMBER);
        return;
    }
    int n = snprintf(text, sizeof text, "%.9g", (double)value);
    json_put_raw(w, text, (size_t)n);
    if (strpbrk(text, ".e") == NULL)
        json_put_text(w, ".0");
}
