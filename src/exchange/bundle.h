/* Rows for several ranks of one other host, sent to one of them, who passes on what is not its own.
 *
 * Inside of the room. A network between hosts is slower than any memory: a token's row crosses it
 * once, whatever the number of ranks there that hold its experts. Sums come back directly, each
 * from who made it. Which parts travel together is decided here; what a part is, in plan.h. */
#ifndef EXCHANGE_BUNDLE_H
#define EXCHANGE_BUNDLE_H

#include "exchange/impl.h"

/* Sends part i of a round together with planned parts for its neighbours, if some share its rows.
 * *ret_sent: how many were sent; 0: none share enough, or there is no way. Errors: those of
 * serve_reserve; *ret_part is the part that met them. */
enum ferry_status bundle_send(struct exchange *x, struct round *round, size_t i, size_t *ret_sent,
                              size_t *ret_part, struct ferry_error *err);

/* A bundle has come to this place of the inbox: notes what it holds for whom. False: no rank may
 * send this. */
bool bundle_note(struct exchange *x, struct inbox *inbox, size_t place);

/* Passes on what waits in an inbox, as far as there is room. Returns whether anything was. */
bool bundle_pass(struct exchange *x, struct inbox *inbox);

/* The own request in a bundle, as wire_request_read would give it, and the header that it would
 * have had alone. */
enum ferry_status bundle_own(struct exchange *x, const struct fabric_message *message,
                             struct wire_request *ret, struct exchange_pair *pairs,
                             struct lane_header *ret_header, struct ferry_error *err);

#endif
