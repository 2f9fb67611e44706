/* Inside of the engine: a request, its choices, and the way of a token to its reader.
 *
 * Why here: what an answer is (ids, text, stop strings, finish reason) is kept apart from when it
 * is computed (scheduler.c). It must not know steps or queues. */
#ifndef ENGINE_REQUEST_H
#define ENGINE_REQUEST_H

#include "engine/scheduler.h"
#include "text/utf8.h"

#include <stdatomic.h>

enum choice_state {
    CHOICE_WAITING, /* in a queue; what it has generated so far stands in ids */
    CHOICE_RUNNING, /* has a sequence */
    CHOICE_AWAY,    /* another rank computes it; its ids here are the truth all the same */
    CHOICE_DONE,
};

struct choice {
    struct request *request;
    size_t index;
    enum choice_state state;
    bool paused;               /* its request's hold, as this step saw it */
    struct choice *next;       /* in the queue */
    struct sequence *sequence; /* RUNNING */
    int32_t *ids; /* prompt and answer; those behind the sequence's are still to be fed */
    size_t n_ids, ids_max;
    bool counted; /* it has been admitted once: it is in no limit and no statistics any more */
    size_t n_prompt_counted; /* of its prompt's tokens, those that are in a counter */

    struct text_stream text;
    size_t given_bytes;             /* of the text, out so far */
    struct request_token *held;     /* [held_max] tokens whose text has not begun to be shown */
    struct logprobs *held_logprobs; /* [held_max], with logprobs */
    size_t *held_starts;            /* [held_max] where they begin in the text */
    size_t n_held, held_max;

    /* AWAY: who computes it, and under which number; a new one for every attempt. */
    int away_seat;
    uint32_t away_incarnation;
    uint64_t away_id;
    uint64_t away_heard_ns; /* its last sign of life, or the last question */
    bool away_held;         /* the hold that it was told */
    bool stays_here;        /* another rank refused it */

    int32_t sampled; /* of the step that just ended */
    struct logprobs sampled_logprobs;
    uint64_t last_token_ns;
};

struct request {
    struct scheduler *scheduler;
    struct request_options options; /* without ids and stops; biases are a copy */
    struct logit_bias *biases;
    struct choice *choices; /* [n_choices] */
    size_t n_prompt, n_choices, n_done;
    size_t n_waiting_tokens; /* what it adds to the queue's account */
    struct request_usage usage;
    struct request *next;  /* in the inbox */
    atomic_bool cancelled; /* set by anyone, read by the owner before each step: a flag, no data */
    atomic_bool hold;      /* the same */
};

/* Whether a request with these options can be served: see request_create. max_ids: tokens that a
 * sequence can hold; n_valid: ids that may be sampled. */
enum ferry_status request_check(const struct request_options *options,
                                const struct model_config *config, size_t max_ids, size_t n_valid,
                                struct ferry_error *err) FERRY_MUST_CHECK;

/* Fills a zeroed request from options that request_check has passed; request_destroy also takes a
 * half-filled one. FERRY_ERR_NOMEM and those of text_stream_init. */
enum ferry_status request_init(struct request *request, const struct request_options *options,
                               size_t max_ids, struct ferry_error *err) FERRY_MUST_CHECK;

/* Takes the token that was sampled for the choice: ids, text, events. *ret_finished: that was its
 * last one, and *ret_finish says why. max_ids: ids of a sequence that is full. Errors:
 * FERRY_ERR_NOMEM (text). */
enum ferry_status choice_take(struct choice *choice, const struct tokenizer *tokenizer,
                              size_t max_ids, bool *ret_finished, enum request_finish *ret_finish,
                              struct ferry_error *err) FERRY_MUST_CHECK;

/* The rest of the text and the FINISH event; DONE when it was the last choice: then the request may
 * be gone. */
void choice_finish(struct choice *choice, enum request_finish finish,
                   const struct ferry_error *error);

#endif
