/* Errors in OpenAI's shape. See openai_error.h. */
#include "serve/openai_error.h"

#include "base/size.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static const char INVALID[] = "invalid_request_error";
static const char SERVER[] = "server_error";

/* docs/api.md, "Errors". A status that is not here: ferry_status_http, and by that number client or
 * server at fault. */
static const struct {
    enum ferry_status status;
    int http;
    const char *type;
    const char *code;
} MAP[] = {
    {FERRY_AGAIN, 429, "rate_limit_error", "queue_full"},
    {FERRY_ERR_ARG, 400, INVALID, "invalid_value"},
    {FERRY_ERR_FORMAT, 400, INVALID, "invalid_json"},
    {FERRY_ERR_UNSUPPORTED, 400, INVALID, "unsupported_parameter"},
    {FERRY_ERR_NOT_FOUND, 404, INVALID, "model_not_found"},
    {FERRY_ERR_LIMIT, 400, INVALID, "over_limit"},
    {FERRY_ERR_CONTEXT_FULL, 400, INVALID, "context_length_exceeded"},
    {FERRY_ERR_CANCELLED, 503, SERVER, "cancelled"},
    {FERRY_ERR_NONFINITE, 500, SERVER, "nonfinite_logits"},
    {FERRY_ERR_TIMEOUT, 503, SERVER, "queue_timeout"},
    {FERRY_ERR_NOMEM, 503, SERVER, "out_of_memory"},
};

static void fill(struct openai_error *err, enum ferry_status status)
{
    err->param[0] = 0;
    for (size_t i = 0; i < sizeof MAP / sizeof MAP[0]; i++) {
        if (MAP[i].status == status) {
            err->http = MAP[i].http;
            err->type = MAP[i].type;
            err->code = MAP[i].code;
            return;
        }
    }
    err->http = ferry_status_http(status);
    err->type = err->http < 500 ? INVALID : SERVER;
    err->code = err->http < 500 ? "invalid_value" : "internal_error";
}

enum ferry_status openai_error_set(struct openai_error *err, enum ferry_status status,
                                   const char *format, ...)
{
    va_list args;

    if (err == NULL)
        return status;
    fill(err, status);
    va_start(args, format);
    (void)vsnprintf(err->message, sizeof err->message, format, args);
    va_end(args);
    error_make_printable(err->message);
    return status;
}

enum ferry_status openai_error_from(struct openai_error *err, const struct ferry_error *from)
{
    return openai_error_set(err, from->status, "%s",
                            from->msg[0] != 0 ? from->msg : ferry_status_text(from->status));
}

void openai_error_param(struct openai_error *err, const char *format, ...)
{
    va_list args;

    if (err == NULL)
        return;
    va_start(args, format);
    (void)vsnprintf(err->param, sizeof err->param, format, args);
    va_end(args);
    error_make_printable(err->param);
}
