/* The whole server over a small model, in the process of the test: driven by its own thread, or by
 * hand, step by step, so that nothing depends on who is faster. Test code only. */
#ifndef TESTS_SERVE_DEMO_H
#define TESTS_SERVE_DEMO_H

#include "web.h"

#include "serve/server_impl.h"

#include <jansson.h>

enum { DEMO_CONTEXT = 1024, DEMO_SEQUENCES = 4, DEMO_STEP = 256 };

/* Group fixtures: models/demo with its tokenizer and template, loaded once. */
int demo_setup(void **state);
int demo_teardown(void **state);

struct demo {
    struct server *server;
    struct web web; /* only the port is set, for web_connect and its like */
    pthread_t thread;
    bool threaded;
    enum ferry_status ended; /* of server_run */
    /* Of demo_start_poisoned. */
    struct checkpoint *checkpoint;
    struct model *model;
    struct engine *engine;
    struct tokenizer *tokenizer;
};

/* No log, "demo" as the model's name, 20 seconds to drain. */
struct server_options demo_options(void);

/* Creates it, and no more: nobody steps. Fails the test on error. */
void demo_start(struct demo *demo, const struct server_options *options);

/* The same over a random model of bytes whose token `poisoned` has a number that is none. */
void demo_start_poisoned(struct demo *demo, int32_t poisoned);

/* The same without the poison, and the tokenizer puts <bos>, id 256, in front of every text. */
void demo_start_bos(struct demo *demo);

/* Tries to create one; returns what server_create does. The server is destroyed again. */
enum ferry_status demo_try(const struct server_options *options, struct ferry_error *err);

/* server_run on a thread of its own. */
void demo_run(struct demo *demo);
/* Waits until it has ended. */
void demo_join(struct demo *demo);

/* In place of server_run: requests are taken, demo_step is the engine. */
void demo_by_hand(struct demo *demo);
/* One step; returns whether there was something to do. */
bool demo_step(struct demo *demo);
/* Steps until no answer is open; fails the test after 50,000 rounds. */
void demo_finish(struct demo *demo);

/* Stops (once), joins and destroys. */
void demo_end(struct demo *demo);

struct scheduler_view demo_view(const struct demo *demo);
/* Waits up to a minute until so many answers are open, or choices wait. */
void demo_wait_answers(const struct demo *demo, size_t n);
void demo_wait_waiting(const struct demo *demo, size_t n);
/* Waits up to a minute until no answer is open and the engine has nothing to do. */
void demo_wait_idle(const struct demo *demo);
void demo_nap(void); /* a millisecond */

/* A series of the metrics page; fails the test when it is not there. */
double demo_metric(const struct demo *demo, const char *series);

/* ---- clients ---- */

enum { REPLY_BYTES = 4 << 20 };

struct reply {
    int status;
    char *body;       /* in `all`, chunks joined */
    bool complete;    /* HTTP says that this is all of it */
    size_t head_size; /* `all` begins with the headers, ended by 0 */
    char all[REPLY_BYTES];
};

/* Sends a request; headers may be "" or whole lines. Returns the socket. */
int demo_send(const struct demo *demo, const char *method, const char *path, const char *headers,
              const char *body);
/* Reads the answer to the end of the connection and closes it. */
void demo_read(int fd, struct reply *ret);
/* Both. Returns the status. */
int demo_ask(const struct demo *demo, const char *method, const char *path, const char *body,
             struct reply *ret);

/* The body as JSON; the caller owns it. */
json_t *reply_json(const struct reply *reply);
/* A word of a JSON object by path, as "error.code"; "" when there is none. */
const char *json_word(const json_t *json, const char *path);

/* One choice of an answer, whole or put together from its pieces. */
struct told {
    char text[16384];
    size_t n_text, n_chunks;
    char finish[16];
    json_t *logprobs; /* arrays joined; NULL: none */
};

/* What one choice of a completion or chat answer says, streamed or not. */
void told_init(struct told *told, const struct reply *reply, bool stream, size_t index);
void told_fini(struct told *told);

/* How often `part` is in the text. */
size_t count_of(const char *text, const char *part);

#endif
