/* What joins the ranks of one process: the inside of the transports loop and sim.
 *
 * Why here: both are the same connections, queues and lanes; they differ in when something that
 * was sent has arrived. Loop: at once. Sim: at a time of the virtual clock (sim.h). It must not
 * know seats, heartbeats or what messages mean.
 *
 * One lock per hub guards everything in this header except the shared parts of lanes and bells,
 * which are atomics. Functions are called with it unless they say otherwise; events are called
 * without it. */
#ifndef FABRIC_HUB_H
#define FABRIC_HUB_H

#include "fabric/transport.h"
#include "ferry/status.h"

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    HUB_QUEUE_BYTES = 1 << 20, /* of control messages on the way to one end */
    HUB_CUTS = 1024,           /* at once */
};

struct sim;

/* When the last byte that was put on a wire has left; sim only. Control and data of one direction
 * have a wire each, because they are sent by different threads, whose order is chance. */
struct sim_wire {
    uint64_t busy_ns;
};

/* A mark that is on its way to the other end of a lane: a new head or a new tail. */
struct hub_mark {
    uint64_t due, value;
};
struct hub_flight {
    struct hub_mark *marks; /* [capacity], a ring; when it is full the last one is overwritten */
    size_t capacity, first, count;
};

/* Memory of one lane. Lives as long as an end or a quarantine refers to it. */
struct hub_ring {
    struct fabric_hub *hub;
    struct lane_shared *shared;
    size_t ring_bytes;
    uint64_t id;     /* unique in the hub; what an offer names */
    uint64_t writer; /* serial of the transport that may write; 0: none yet */
    unsigned n_refs;
    struct transport_conn *receiver, *sender; /* NULL: closed or lost; nothing arrives any more */
    struct hub_flight heads, tails;
    struct hub_ring *next_quarantined;
};

enum hub_item_kind { HUB_ACCEPTED, HUB_CONNECTED, HUB_CONTROL, HUB_LOST };

/* An event on its way to one end of a connection. */
struct hub_item {
    struct hub_item *next;
    uint64_t due; /* sim: virtual time; loop: the order of sending */
    enum hub_item_kind kind;
    size_t n_bytes;
    unsigned char *data;
};

struct transport_conn {
    struct transport *owner;
    struct transport_conn *next; /* of the owner */
    struct transport_conn *peer; /* the other end; NULL: refused, lost or closed */
    char peer_name[TRANSPORT_ADDRESS_MAX];
    uint64_t peer_rank; /* its serial; 0: there was none of that name */
    uint64_t serial;
    bool accepted; /* not by an own connect */
    bool known;    /* to the owner: only then it is told of a loss, and closes */
    bool lost;     /* the owner was told */
    bool cut;
    struct hub_item intro, loss; /* need no memory when they happen */
    char reason[TRANSPORT_ADDRESS_MAX + 80];
    struct hub_item *first, *last; /* on the way to this end */
    size_t queued_bytes;
    size_t known_bytes; /* the same as the other end knows it: sim: when the clock last went on,
                           and what was sent since */
    struct sim_wire control_wire, data_wire; /* from this end */
    struct transport_lanes sizes;
    struct hub_ring *rings[LANE_N_CHANNELS][LANE_N_SIDES];
    struct lane ends[LANE_N_CHANNELS][LANE_N_SIDES];
};

struct transport {
    struct lane_bell bell;      /* of the engine thread */
    struct lane_bell poll_bell; /* of the polling thread */
    struct fabric_hub *hub;
    struct transport *next;
    struct transport_conn *conns;
    struct hub_ring *quarantine;
    char name[TRANSPORT_ADDRESS_MAX];
    struct transport_events events;
    uint64_t serial;
    uint32_t polled;  /* rings of poll_bell when the last poll looked */
    bool dead;        /* killed: nothing comes or goes */
    uint64_t dead_ns; /* sim: what the waits of a dead rank have added to the time that it sees */
};

struct hub_cut {
    char a[TRANSPORT_ADDRESS_MAX], b[TRANSPORT_ADDRESS_MAX];
};

struct fabric_hub {
    pthread_mutex_t lock;
    struct fabric_hub_options options;
    struct sim *sim; /* NULL: loop */
    struct transport *ranks;
    uint64_t sequence; /* of items, rings and serials */
    struct hub_cut cuts[HUB_CUTS];
    size_t n_cuts;
};

/* hub.c */

/* Everything up to this has arrived: a time for sim, a sequence number for loop. */
uint64_t hub_arrived(const struct fabric_hub *hub);
/* Nothing passes between the two ends any more, and the other one is told the reason. */
void hub_sever(struct transport_conn *conn, const char *reason);
bool hub_is_cut(const struct fabric_hub *hub, const char *a, const char *b);
/* Takes a connection out of its owner's list and frees it, with what is on the way to it. */
void hub_conn_free(struct transport_conn *conn);
/* Puts an item on the way to an end, over a wire of the other one. */
void hub_push(struct transport_conn *to, struct sim_wire *wire, struct hub_item *item);

/* hub_lane.c */

/* A commit or a release has happened or may have arrived: publishes what is due, rings bells. */
void hub_ring_land(struct hub_ring *ring);
/* Nothing that is still on the way arrives; the memory stays. */
void hub_rings_sever(struct transport_conn *conn);
/* Gives up the rings of a connection that closes. */
void hub_rings_close(struct transport_conn *conn, bool keep);
/* Frees what the other ranks' quarantines hold because of this writer. */
void hub_quarantine_forget(struct fabric_hub *hub, uint64_t writer);
/* Frees a rank's own quarantine. */
void hub_quarantine_drop(struct transport *transport);
/* Earliest arrival on a ring after now_ns; UINT64_MAX: none. */
uint64_t hub_ring_next(const struct hub_ring *ring, uint64_t now_ns);
/* Whatever was held by a cut arrives at due_ns at the earliest. */
void hub_ring_delay(struct hub_ring *ring, uint64_t due_ns);

/* Operations of both transports, as transport.h says; without the lock. */
enum ferry_status hub_offer(struct transport_conn *conn, const struct transport_lanes *lanes,
                            void *ret_offer, size_t *ret_bytes, struct ferry_error *err);
enum ferry_status hub_accept(struct transport_conn *conn, const void *offer, size_t n_bytes,
                             struct ferry_error *err);
struct lane *hub_lane(struct transport_conn *conn, enum lane_channel channel, enum lane_side side);
size_t hub_quarantined(const struct transport *transport);
bool hub_gone(const struct transport_conn *conn);

/* loop.c; the same */

enum ferry_status loop_create(struct transport **ret, const struct transport_options *options,
                              struct ferry_error *err);
void loop_destroy(struct transport *transport);
void loop_address(const struct transport *transport, char ret_address[TRANSPORT_ADDRESS_MAX]);
enum ferry_status loop_connect(struct transport *transport, const char *address,
                               struct transport_conn **ret_conn, struct ferry_error *err);
enum ferry_status loop_send(struct transport_conn *conn, const void *data, size_t n_bytes);
void loop_close(struct transport_conn *conn, bool keep_lanes);
void loop_poll(struct transport *transport, uint64_t timeout_ns);
void loop_wake(struct transport *transport);
void loop_ring(struct transport *transport);

#endif
