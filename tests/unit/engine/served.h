/* For the tests of the scheduler: a tiny model that answers in bytes, requests with everything that
 * they need, and what came back. Test code only. */
#ifndef TESTS_ENGINE_SERVED_H
#define TESTS_ENGINE_SERVED_H

#include "tests/unit/unit.h"

#include "engine/scheduler.h"

#include <stdatomic.h>

/* The model scores more ids than the tokenizer has: bytes, a few pieces, two special tokens. */
enum { SERVED_VOCAB = 280, SERVED_CONTEXT = 2048, SERVED_ANSWER_MAX = 96, SERVED_CHOICES = 3 };

struct served_options {
    size_t step_tokens, n_sequences, n_pages, context; /* 0: 512, 4, enough, SERVED_CONTEXT */
    int n_threads;                                     /* 0: 1 */
    const char *folder;                                /* a model of its own; NULL: the usual one */
    struct fabric *fabric; /* a rank of this group, which holds what the placement says */
    const struct placement *placement;
    struct scheduler_options scheduler;
};

struct served {
    struct checkpoint *checkpoint;
    struct device *device;
    struct model *model;
    struct engine *engine;
    struct scheduler *scheduler;
};

/* Group fixtures: the model's folder and the tokenizer, once for all tests. */
int served_setup(void **state);
int served_teardown(void **state);
const struct tokenizer *served_tokenizer(void);

/* Fails the test on error. */
void served_open(struct served *served, const struct served_options *options);
void served_close(struct served *served);

/* One choice's answer as it came. */
struct answer {
    int32_t ids[SERVED_ANSWER_MAX];
    size_t n_ids, n_text;
    char text[4 * SERVED_ANSWER_MAX];
    uint64_t logprobs; /* hash of all their bits */
    bool finished;
    enum request_finish finish;
    enum ferry_status error;
    char message[200];
};

struct asked;

/* Called in the event, on the owner's thread. */
typedef void asked_fn(struct asked *asked, const struct request_event *event);

/* A request, the memory that its options point to, and its answers. */
struct asked {
    int32_t ids[SERVED_CONTEXT + 1];
    struct logit_bias bias;
    struct request_options options;
    struct request *request;
    struct answer answers[SERVED_CHOICES];
    struct request_usage usage; /* from DONE on */
    atomic_bool done;
    size_t n_done;
    bool destroy_at_done;
    asked_fn *on_event; /* NULL: nothing more */
    uint64_t last_step; /* for on_event's use */
    size_t counter;
};

/* Greedy, one choice, max_tokens as given (0: 16), n random ids by seed as its prompt. */
void asked_init(struct asked *asked, size_t n_ids, uint64_t seed, size_t max_tokens);

/* Creates and submits; fails the test on error. */
void asked_submit(struct asked *asked, struct served *served);

/* Destroys the request; the answers stay. */
void asked_end(struct asked *asked);

/* One step; fails the test on error. Returns whether there was something to do. */
bool served_step(struct served *served);

/* Steps until all are done; fails the test when that takes more than `most` steps. */
void served_finish(struct served *served, struct asked *const *asked, size_t n, size_t most);

/* The same request alone, with a scheduler, an engine and a model of its own, one thread, no prefix
 * cache. */
void asked_alone(const struct asked *asked, struct answer ret_answers[SERVED_CHOICES]);

/* Fails the test unless the answers are those that the request gets alone. */
void asked_check(const struct asked *asked);

/* Fails unless what there is of the answer is how `whole` begins. */
void answer_begins(const struct answer *answer, const struct answer *whole);

#endif
