/* Status texts and error records. See error.h. */
#include "base/error.h"

#include <errno.h>
#include <stdarg.h>
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

/* Length of a valid UTF-8 sequence at s, 0 when it is not one. */
static size_t utf8_sequence(const unsigned char *s)
{
    size_t n = s[0] < 0x80                   ? 1
               : s[0] >= 0xC2 && s[0] < 0xE0 ? 2
               : (s[0] & 0xF0) == 0xE0       ? 3
               : s[0] >= 0xF0 && s[0] < 0xF5 ? 4
                                             : 0;
    for (size_t i = 1; i < n; i++) {
        if ((s[i] & 0xC0) != 0x80)
            return 0;
    }
    return n;
}

/* Makes text from a hostile source safe for one line of a terminal or a log. */
static void make_printable(char *text)
{
    unsigned char *s = (unsigned char *)text;

    while (*s != 0) {
        size_t n = utf8_sequence(s);
        if (n == 0 || (n == 1 && (*s < 0x20 || *s == 0x7F)) ||
            (n == 2 && s[0] == 0xC2 && s[1] < 0xA0)) {
            *s = '?';
            n = 1;
        }
        s += n;
    }
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
    make_printable(err->msg);
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
    make_printable(text);
    memcpy(old, err->msg, sizeof old);
    size_t used = strlen(text);
    memcpy(err->msg, text, used + 1);
    size_t rest = sizeof err->msg - 1 - used;
    size_t n = strlen(old);
    if (n > rest)
        n = rest;
    memcpy(err->msg + used, old, n);
    err->msg[used + n] = 0;
}
