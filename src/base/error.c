/* Status texts and error records. See error.h. */
#include "base/error.h"

#include <errno.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

struct status_info {
    enum ferry_status status;
    const char *name;
    const char *text;
    int http;
    const char *label;
};

static const struct status_info STATUS_INFO[] = {
#define STATUS_ROW(name, value, text, http, label) {name, #name, text, http, label},
    FERRY_STATUS_LIST(STATUS_ROW)
#undef STATUS_ROW
};

static const struct status_info *info_of(enum ferry_status status)
{
    for (size_t i = 0; i < sizeof STATUS_INFO / sizeof STATUS_INFO[0]; i++) {
        if (STATUS_INFO[i].status == status)
            return &STATUS_INFO[i];
    }
    static const struct status_info UNKNOWN = {FERRY_ERR_INTERNAL, "FERRY_?", "unknown status", 500,
                                               "unknown"};
    return &UNKNOWN;
}

const char *ferry_status_text(enum ferry_status status)
{
    return info_of(status)->text;
}

const char *ferry_status_name(enum ferry_status status)
{
    return info_of(status)->name;
}

const char *ferry_status_label(enum ferry_status status)
{
    return info_of(status)->label;
}

int ferry_status_http(enum ferry_status status)
{
    return info_of(status)->http;
}

/* Length of a valid UTF-8 sequence at s (shortest form, no surrogates, at most U+10FFFF), 0 when it
 * is not one. Reads no further than the terminating 0. */
static size_t utf8_sequence(const unsigned char *s, uint32_t *ret_code)
{
    static const uint32_t LEAST[5] = {0, 0, 0x80, 0x800, 0x10000};
    size_t n = s[0] < 0x80                  ? 1
               : s[0] < 0xC0 || s[0] > 0xF4 ? 0
               : s[0] < 0xE0                ? 2
               : s[0] < 0xF0                ? 3
                                            : 4;
    uint32_t code = n < 2 ? s[0] : s[0] & (0x7Fu >> n);

    for (size_t i = 1; i < n; i++) {
        if ((s[i] & 0xC0) != 0x80)
            return 0;
        code = code << 6 | (s[i] & 0x3Fu);
    }
    if (code < LEAST[n] || code > 0x10FFFF || (code >= 0xD800 && code < 0xE000))
        return 0;
    *ret_code = code;
    return n;
}

/* Control characters, line separators, and marks that change the order of the text around them. */
static bool is_control(uint32_t code)
{
    return code < 0x20 || (code >= 0x7F && code < 0xA0) || (code >= 0x2028 && code <= 0x202E) ||
           (code >= 0x2066 && code <= 0x2069);
}

void error_make_printable(char *text)
{
    unsigned char *s = (unsigned char *)text, *out = s;

    while (*s != 0) {
        uint32_t code = 0;
        size_t n = utf8_sequence(s, &code);
        if (n == 0 || is_control(code)) {
            *out++ = '?';
            s += n == 0 ? 1 : n;
            continue;
        }
        memmove(out, s, n);
        out += n;
        s += n;
    }
    *out = 0;
}

enum ferry_status error_set(struct ferry_error *err, enum ferry_status status, const char *file,
                            int line, const char *format, ...)
{
    if (err == NULL)
        return status;
    int sys = errno;
    va_list args;
    va_start(args, format);
    (void)vsnprintf(err->msg, sizeof err->msg, format, args);
    va_end(args);
    error_make_printable(err->msg);
    err->status = status;
    err->sys = sys;
    err->file = file;
    err->line = line;
    return status;
}

void error_prefix(struct ferry_error *err, const char *format, ...)
{
    char text[sizeof err->msg];
    char old[sizeof err->msg];

    if (err == NULL)
        return;
    va_list args;
    va_start(args, format);
    (void)vsnprintf(text, sizeof text, format, args);
    va_end(args);
    memcpy(old, err->msg, sizeof old);
    size_t used = strlen(text);
    memcpy(err->msg, text, used + 1);
    size_t rest = sizeof err->msg - 1 - used;
    size_t n = strlen(old);
    if (n > rest)
        n = rest;
    memcpy(err->msg + used, old, n);
    err->msg[used + n] = 0;
    error_make_printable(err->msg); /* the cut may have split a character */
}
