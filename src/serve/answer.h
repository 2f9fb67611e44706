/* Answers of the API: everything that needs a worker or the engine.
 *
 * Why here: routes.c hands requests over and forgets them. It must not know sockets. */
#ifndef SERVE_ANSWER_H
#define SERVE_ANSWER_H

#include "serve/openai_request.h"
#include "serve/server_impl.h"

/* Takes the exchange and answers it in time; the caller has counted it in n_answers. I/O thread. */
void answer_start(struct server *server, struct http_exchange *x, enum openai_kind kind);

/* The models list, and one of it. I/O thread. */
void answer_models(struct server *server, struct http_exchange *x);
void answer_model(struct server *server, struct http_exchange *x, const char *name);

/* Breaks off every answer that is still made; may be repeated. Engine thread. */
void answer_cancel_all(struct server *server);

#endif
