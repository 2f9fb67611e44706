/* Why a request was refused, as OpenAI's clients expect to be told.
 *
 * Why here: parsing, routes and streams report failures in one shape. It must not know HTTP beyond
 * the status number. Messages hold no text of users: field names, positions, numbers and limits
 * only, since they may be logged. */
#ifndef SERVE_OPENAI_ERROR_H
#define SERVE_OPENAI_ERROR_H

#include "base/error.h"
#include "ferry/status.h"

#include <stdbool.h>

struct openai_error {
    int http;          /* status of the answer */
    const char *type;  /* constant: invalid_request_error, rate_limit_error, server_error, ... */
    const char *code;  /* constant; NULL: null */
    char param[96];    /* field at fault, as messages[2].content; "": null */
    char message[512]; /* one line, printable */
};

/* Fills err from a status: HTTP status, type and code as docs/api.md lists them, no param. Returns
 * status. err may be NULL in both. */
enum ferry_status openai_error_set(struct openai_error *err, enum ferry_status status,
                                   const char *format, ...) FERRY_PRINTF(3, 4);

/* The same from another room's error, with its message. */
enum ferry_status openai_error_from(struct openai_error *err, const struct ferry_error *from);

/* Names the field; the name may be hostile. Cut when too long. */
void openai_error_param(struct openai_error *err, const char *format, ...) FERRY_PRINTF(2, 3);

#endif
