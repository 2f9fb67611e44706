/* JSON written straight into one growing buffer.
 *
 * Why here: answers are written token by token; a tree of values for each would cost an allocation
 * per string. It must not know what the API looks like. One owner at a time. */
#ifndef SERVE_JSON_WRITER_H
#define SERVE_JSON_WRITER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Caller's storage: {0} to start, json_writer_fini to free. `failed` stays set once memory ran out:
 * it is looked at once, when everything has been written. */
struct json_writer {
    char *data; /* [size] */
    size_t size, capacity;
    bool failed;
};

void json_writer_fini(struct json_writer *w);

/* Forgets what was written and keeps the memory. */
void json_writer_reset(struct json_writer *w);

/* Bytes as they are: JSON that is already well formed, or no JSON at all. */
void json_put_raw(struct json_writer *w, const void *data, size_t size);

/* A 0-terminated constant as it is. */
void json_put_text(struct json_writer *w, const char *text);

/* A string value with its quotes, whatever the bytes: ill-formed UTF-8 becomes U+FFFD. Control
 * characters, U+0085, U+2028 and U+2029 are escaped: some clients take these for ends of lines. */
void json_put_string(struct json_writer *w, const char *s, size_t size);

/* The inside of such a string, without the quotes; s ends with a whole character. */
void json_put_chars(struct json_writer *w, const char *s, size_t size);

/* A string value from a 0-terminated string; NULL: null. */
void json_put_string0(struct json_writer *w, const char *s);

void json_put_int(struct json_writer *w, int64_t value);
void json_put_uint(struct json_writer *w, uint64_t value);

/* A number that is read back as the same float, always with a point or an exponent; not a number or
 * infinite (JSON has neither): -9999.0. */
void json_put_float(struct json_writer *w, float value);

#endif
