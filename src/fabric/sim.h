/* The virtual clock of a hub: when things arrive, and when time may go on.
 *
 * Why here: hub.c and loop.c ask it at the few places where sim differs from loop. It must not know
 * connections' states.
 *
 * Taking part: a thread takes part from its first wait that blocks (in poll with a timeout, or in
 * sleep) or from fabric_hub_join, until it exits, leaves (fabric_hub_leave), or its rank is killed.
 * A rank with a fabric thread and an engine thread is two, one thread that drives several ranks is
 * one. Time stands still until fabric_hub_options.n_ranks threads have waited once, and from then
 * on while any of those that take part is not waiting. A thread that waits in another way (a mutex,
 * a join) for something that needs time to pass waits for ever: it has to leave before.
 *
 * Deterministic: what arrives at one instant is put in an order that does not depend on threads
 * (next_event in loop.c), nothing that is sent arrives at the same instant, and every wire has one
 * sending thread. Two threads of one rank that are awake at one instant run side by side. */
#ifndef FABRIC_SIM_H
#define FABRIC_SIM_H

#include "fabric/hub.h"

/* All with the hub's lock, but for create and destroy. */
enum ferry_status sim_create(struct fabric_hub *hub, struct ferry_error *err);
void sim_destroy(struct fabric_hub *hub);
uint64_t sim_now(const struct sim *sim);

/* When n_bytes that are sent now arrive. wire: NULL for what takes no room. */
uint64_t sim_due(const struct fabric_hub *hub, struct sim_wire *wire, size_t n_bytes);

/* Waits until the bell was rung since `seen` or deadline_ns has come; gives the lock up meanwhile.
 * With a dead transport it waits for a moment only. */
void sim_wait(struct transport *transport, struct lane_bell *bell, uint32_t seen,
              uint64_t deadline_ns);

/* Lets time go on if every thread that takes part waits. After any change that is not made by a
 * thread that takes part. */
void sim_advance(struct fabric_hub *hub);

/* The threads that waited for this rank last no longer take part. */
void sim_kill(struct transport *transport);

/* The calling thread takes part from now on (without memory: from its first wait), or no longer. */
void sim_join(struct fabric_hub *hub);
void sim_leave(struct fabric_hub *hub);

#endif
