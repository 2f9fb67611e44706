/* Many requests at once over one engine: queue, admission, continuous batching with chunked
 * prefill, preemption, and each answer's text on its way out.
 *
 * Why here: the server and `ferry run` hand in prompts and take text; which tokens are stepped
 * together is nobody else's business, and by law 2 nobody can see it in an answer. It must not know
 * HTTP or JSON.
 *
 * Threads: one owner calls scheduler_step and scheduler_wait; create, submit, cancel, hold and wake
 * may be called from any thread. Events are delivered on the owner's thread, without a lock. */
#ifndef ENGINE_SCHEDULER_H
#define ENGINE_SCHEDULER_H

#include "engine/engine.h"
#include "engine/logprobs.h"
#include "engine/metrics.h"
#include "engine/sampler.h"
#include "ferry/status.h"
#include "text/tokenizer.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct scheduler;
struct request;

enum { REQUEST_CHOICES_MAX = 64 };

struct scheduler_options {
    size_t max_waiting;        /* answers (choices) that may wait for a sequence, beside those that
                                  find one free at the next step; 0: 256 */
    size_t max_waiting_tokens; /* prompt tokens of their requests together; 0: 1 << 20 */
    uint64_t step_target_ns;   /* a step with answers in it carries as much prompt as fits into this
                                  or into twice the time of the answers; 0: 750 ms */
    uint64_t prefill_target_ns; /* a step of prompts only: as fits into this; 0: 2 s */
    bool no_prefix_cache;
    const struct engine_metrics *metrics; /* NULL: nobody counts; outlives the scheduler */
    /* Called on the owner's thread before every step and while it waits: follows what happens to
     * the group of ranks. NULL: nothing to follow. */
    void (*follow)(void *arg);
    void *follow_arg;
    uint64_t peer_patience_ns; /* that answers wait while the group cannot compute a step (this rank
                                  was given up for a while, holders are lost); 0: 20 s */
};

enum request_finish {
    REQUEST_FINISH_STOP,      /* end-of-text token or stop string */
    REQUEST_FINISH_LENGTH,    /* max_tokens, or the context is full */
    REQUEST_FINISH_CANCELLED, /* request_cancel */
    REQUEST_FINISH_ERROR,     /* event.error tells */
};

enum request_event_kind {
    REQUEST_EVENT_TOKEN,  /* one more token of a choice, and the text that it sets free */
    REQUEST_EVENT_FINISH, /* a choice is complete: rest of its text, finish reason */
    REQUEST_EVENT_DONE,   /* all choices are; the scheduler has forgotten the request */
};

/* One generated token. */
struct request_token {
    int32_t id;
    const struct logprobs *logprobs; /* NULL unless the request wants them */
};

struct request_event {
    enum request_event_kind kind;
    size_t choice;
    const char *text; /* well-formed UTF-8 that may be shown now; the concatenation over all events
                         of a choice is its answer, however it is cut */
    size_t text_size;
    const struct request_token *tokens; /* [n_tokens] those whose text has begun to be shown; a stop
                                           string's own tokens never appear */
    size_t n_tokens;
    enum request_finish finish;      /* FINISH */
    const struct ferry_error *error; /* FINISH with REQUEST_FINISH_ERROR */
};

/* Everything that the event points to dies with the call. Must not block; may call request_hold and
 * request_cancel, and request_destroy at DONE. */
typedef void request_event_fn(void *arg, struct request *request,
                              const struct request_event *event);

struct request_options {
    const int32_t *ids; /* [n_ids] the prompt; copied */
    size_t n_ids;
    size_t max_tokens;               /* of each choice; 0: as many as the context holds */
    size_t n_choices;                /* in 1..REQUEST_CHOICES_MAX */
    struct sampler_options sampling; /* biases are copied; choice is set by the scheduler */
    const char *const *stops;        /* [n_stops] copied */
    size_t n_stops;
    bool ignore_eos;
    /* For an answer that another rank began: the last n_answered of ids belong to it, it is choice
     * number first_choice of its request, and its tokens are told one by one, end-of-text too,
     * without text. */
    size_t n_answered, first_choice;
    bool ids_only;
    bool logprobs; /* log-probabilities of the tokens drawn, and of the n_top_logprobs best */
    size_t n_top_logprobs;
    unsigned char cache_key[32]; /* prefixes are shared between requests of equal keys only */
    uint64_t start_by_ns; /* no choice has been given a sequence until this time of the monotonic
                             clock: it fails with FERRY_ERR_TIMEOUT; 0: never */
    request_event_fn *on_event;
    void *arg;
};

/* What a request used: for the owner's thread while it runs, for everybody from DONE on. */
struct request_usage {
    size_t prompt_tokens;
    size_t cached_tokens;     /* of the prompt, taken from the prefix cache by the first choice */
    size_t completion_tokens; /* over all choices, end-of-text tokens included */
    size_t n_preempted;
    uint64_t seed;
    uint64_t submit_ns, start_ns, first_token_ns, done_ns; /* monotonic; 0: not yet */
};

/* The engine and the tokenizer (NULL: no text, ids only) outlive the scheduler. FERRY_ERR_NOMEM. */
enum ferry_status scheduler_create(struct scheduler **ret_scheduler, struct engine *engine,
                                   const struct tokenizer *tokenizer,
                                   const struct scheduler_options *options,
                                   struct ferry_error *err) FERRY_MUST_CHECK;

/* Requests that are not done are cancelled first (their events are delivered here). NULL is
 * allowed. */
void scheduler_destroy(struct scheduler *scheduler);

/* Checks and copies everything that the answer needs, so that a step allocates nothing. Errors:
 * FERRY_ERR_ARG (a setting out of range, an id that the model does not know, an empty prompt),
 * FERRY_ERR_CONTEXT_FULL (the prompt leaves no room for one token; err has both numbers),
 * FERRY_ERR_LIMIT, FERRY_ERR_NOMEM. */
enum ferry_status request_create(struct request **ret_request, struct scheduler *scheduler,
                                 const struct request_options *options,
                                 struct ferry_error *err) FERRY_MUST_CHECK;

/* Only before a successful submit or at DONE and after. NULL is allowed. */
void request_destroy(struct request *request);

/* Hands the request to the scheduler until its DONE event. FERRY_AGAIN: too many requests or prompt
 * tokens wait (err has the numbers); the request is still the caller's. */
enum ferry_status scheduler_submit(struct scheduler *scheduler, struct request *request,
                                   struct ferry_error *err) FERRY_MUST_CHECK;

/* Ends it soon: before the next step, whether it waits, is being prefilled or answers. Only this
 * request; may be repeated; legal until request_destroy or scheduler_destroy. */
void request_cancel(struct request *request);

/* A reader that cannot keep up: its choices are left out of steps until hold is false again. They
 * keep their sequences and pages, but are the first to lose them when others need some. */
void request_hold(struct request *request, bool hold);

const struct request_usage *request_usage(const struct request *request);

/* The owner's loop: one round of admission, at most one model step, and its events. *ret_idle:
 * there was nothing to do. Errors of single requests end those requests; a returned error is the
 * process' (device, memory of the step) and every request has been failed with it. */
enum ferry_status scheduler_step(struct scheduler *scheduler, bool *ret_idle,
                                 struct ferry_error *err) FERRY_MUST_CHECK;

/* Sleeps until there may be work, at most timeout_ns; a rank of a group serves the others
 * meanwhile. */
void scheduler_wait(struct scheduler *scheduler, uint64_t timeout_ns);
void scheduler_wake(struct scheduler *scheduler);

/* A message of another rank's engine (FABRIC_TOPIC_ENGINE). Fabric's thread, until
 * scheduler_destroy. */
void scheduler_peer_message(struct scheduler *scheduler, int seat, uint32_t incarnation,
                            const void *data, size_t n_bytes);

/* A view from any thread, without a lock: each number was true at some moment of the call. */
struct scheduler_view {
    size_t n_waiting;             /* for a sequence: not admitted yet, or preempted */
    size_t n_running;             /* in steps */
    size_t n_held;                /* begun, and left out of steps by request_hold */
    size_t n_waiting_tokens;      /* prompts of requests that were not admitted yet */
    size_t n_pages, n_pages_used; /* used: by running requests, cached prefixes not counted */
    uint64_t heartbeat_ns;        /* when the owner was last seen between two steps */
    uint64_t n_steps;
    uint64_t group_wait_ns; /* since when answers wait for other ranks; 0: they do not */
};
void scheduler_view(const struct scheduler *scheduler, struct scheduler_view *ret_view);

#endif
