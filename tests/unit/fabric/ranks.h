/* Groups of ranks for tests: fabrics of one process, joined by a hub of the transport loop.
 * Test code only. */
#ifndef TESTS_UNIT_FABRIC_RANKS_H
#define TESTS_UNIT_FABRIC_RANKS_H

#include "../unit.h"

#include "fabric/fabric.h"

#include <stdbool.h>

enum { RANKS_MAX = 6, RANKS_RING = 1 << 16 };

struct ranks {
    struct fabric_hub *hub;
    size_t n_seats;
    struct fabric *fabrics[RANKS_MAX];
    unsigned births[RANKS_MAX]; /* makes names unique over the lives of a seat */
};

/* A hub without ranks. */
void ranks_open(struct ranks *ranks, size_t n_seats);
void ranks_close(struct ranks *ranks);

/* The name that a seat's present holder listens on. */
void ranks_name(const struct ranks *ranks, int seat, char ret_name[32]);

/* Options of a seat's next holder, who founds (contact < 0) or joins by another seat's holder. */
struct fabric_options ranks_options(struct ranks *ranks, int seat, int contact);
/* Creates it, from these options; asserts that it works. */
void ranks_start(struct ranks *ranks, int seat, int contact);
/* Seats 0..n-1, live everywhere. */
void ranks_start_all(struct ranks *ranks, size_t n);
/* As kill -9: nobody hears a last word. Its threads are ended. */
void ranks_kill(struct ranks *ranks, int seat);
/* Cuts a seat from all others, or lets it be heard again. */
void ranks_cut(struct ranks *ranks, int seat, bool cut);

/* Waits until every rank of `of` sees `state` of the seat; asserts that it does within 10 s times
 * the build's factor. */
void ranks_wait(struct ranks *ranks, uint64_t of, int seat, enum seat_state state);
/* Until all of `of` see exactly these live, with one epoch and one issuer. */
void ranks_wait_live(struct ranks *ranks, uint64_t of, uint64_t live);

#endif
