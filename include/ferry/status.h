/* What went wrong, as one number that callers decide by.
 *
 * Why here: every public call returns it. 0 is success, positive values steer the flow, negative
 * values are errors in bands by the largest thing that is damaged: the request, the session, the
 * peer, the device, the process. This file must not know any room. */
#ifndef FERRY_STATUS_H
#define FERRY_STATUS_H

#ifdef __cplusplus
extern "C" {
#endif

/* X(name, value, text, HTTP status, metric label) */
#define FERRY_STATUS_LIST(X)                                                      \
    X(FERRY_OK, 0, "ok", 200, "ok")                                               \
    X(FERRY_AGAIN, 1, "not now, call again", 503, "again")                        \
    X(FERRY_EOF, 2, "end of input", 200, "eof")                                   \
    /* request band: this call's input is at fault; nothing else is harmed */     \
    X(FERRY_ERR_ARG, -100, "invalid argument", 400, "arg")                        \
    X(FERRY_ERR_FORMAT, -101, "malformed input", 400, "format")                   \
    X(FERRY_ERR_UNSUPPORTED, -102, "not supported", 400, "unsupported")           \
    X(FERRY_ERR_NOT_FOUND, -103, "not found", 404, "not_found")                   \
    X(FERRY_ERR_LIMIT, -104, "over a limit", 400, "limit")                        \
    X(FERRY_ERR_CANCELLED, -105, "cancelled", 499, "cancelled")                   \
    X(FERRY_ERR_NONFINITE, -106, "non-finite number", 500, "nonfinite")           \
    /* session band: a sequence or a model handle is lost */                      \
    X(FERRY_ERR_CONTEXT_FULL, -200, "context is full", 400, "context_full")       \
    X(FERRY_ERR_LEDGER, -201, "exchange ledger mismatch", 500, "ledger")          \
    /* peer band: another rank is lost */                                         \
    X(FERRY_ERR_NO_HOLDER, -300, "no live holder of an expert", 503, "no_holder") \
    X(FERRY_ERR_PEER, -301, "peer lost", 503, "peer")                             \
    X(FERRY_ERR_TIMEOUT, -302, "deadline passed", 504, "timeout")                 \
    /* device band */                                                             \
    X(FERRY_ERR_DEVICE, -400, "device failed", 500, "device")                     \
    /* process band: memory or the operating system */                            \
    X(FERRY_ERR_NOMEM, -500, "out of memory", 503, "nomem")                       \
    X(FERRY_ERR_IO, -501, "input/output error", 500, "io")                        \
    X(FERRY_ERR_INTERNAL, -502, "internal error", 500, "internal")

enum ferry_status {
#define FERRY_STATUS_ENUM(name, value, text, http, label) name = value,
    FERRY_STATUS_LIST(FERRY_STATUS_ENUM)
#undef FERRY_STATUS_ENUM
};

#if defined(__GNUC__)
#define FERRY_MUST_CHECK        __attribute__((warn_unused_result))
#define FERRY_PRINTF(fmt, args) __attribute__((format(printf, fmt, args)))
#else
#define FERRY_MUST_CHECK
#define FERRY_PRINTF(fmt, args)
#endif

/* Details of one failure. Callers own the storage; a null pointer means "not interested". The first
 * detector writes cause, number seen, limit and hint; callers may prefix ("layer 12: ") but never
 * rewrite. */
struct ferry_error {
    enum ferry_status status;
    int sys;          /* errno, or 0 */
    char msg[480];    /* one line */
    const char *file; /* source location of the detector */
    int line;
};

/* Text, HTTP status, metric label and identifier of a status; never NULL. Any thread. */
const char *ferry_status_text(enum ferry_status status);
const char *ferry_status_name(enum ferry_status status);
const char *ferry_status_label(enum ferry_status status);
int ferry_status_http(enum ferry_status status);

#ifdef __cplusplus
}
#endif
#endif
