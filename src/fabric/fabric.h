/* One rank's end of the group: who is in it, and the roads to them.
 *
 * Why here: `exchange` sends rows and `engine` sends work through this, and neither sees
 * transports, handshakes or heartbeats. It must not know models, experts or what messages mean. The
 * outward header of the room, with lane.h (message header, bells).
 *
 * Seats are stable places 0..n_seats-1 with holes; a process that takes a seat again has a new
 * incarnation. One epoch number covers membership; it grows with every change of a state, and one
 * member issues it: docs/membership.md has the rules.
 *
 * Threads: the fabric has its own (heartbeats go on beside compute). Data calls belong to the
 * engine thread; all others are legal from any thread. */
#ifndef FABRIC_FABRIC_H
#define FABRIC_FABRIC_H

#include "base/limits.h"
#include "fabric/lane.h"
#include "fabric/transport.h"
#include "ferry/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct fabric;
struct metric_registry;

/* X(name, label) */
#define SEAT_STATE_LIST(X)                                                                 \
    X(SEAT_EMPTY, "empty")       /* nobody has joined yet, or it left after a drain */     \
    X(SEAT_JOINING, "joining")   /* connected and checked; loads its weights */            \
    X(SEAT_WARM, "warm")         /* has said that it is ready; live with the next epoch */ \
    X(SEAT_LIVE, "live")         /* holds its experts */                                   \
    X(SEAT_DRAINING, "draining") /* holds its experts until the others have taken over */  \
    X(SEAT_SUSPECT, "suspect")   /* silent for a while: no new work; not yet given up */   \
    X(SEAT_DEAD, "dead")         /* given up; its lanes are in quarantine */

enum seat_state {
#define SEAT_STATE_ENUM(name, label) name,
    SEAT_STATE_LIST(SEAT_STATE_ENUM)
#undef SEAT_STATE_ENUM
        SEAT_N_STATES
};
const char *seat_state_name(enum seat_state state);

/* A setting on which all ranks must agree; compared as text at the handshake. Unequal: the joiner
 * is refused at once, and both sides' errors name the term, both values and both ranks. */
struct fabric_term {
    const char *name, *value;
};

struct fabric_options {
    const struct transport_ops *transport; /* NULL: transport_ucx */
    struct fabric_hub *hub;                /* loop and sim */
    const char *listen;                    /* "host:port" */
    const char *join; /* "host:port" of any member; NULL: this rank founds the group */
    int seat;         /* wanted; -1: any free one. The founder sits on 0 unless told */
    size_t n_seats;   /* of the group; joiners take the group's (0) or must name the same */
    const void *key;  /* group key: who joins proves that it has it, and so does the group, before
                         anything else is said. n_key 0: only loopback addresses are accepted */
    size_t n_key;
    const struct fabric_term *terms;
    size_t n_terms;
    struct transport_lanes lanes;
    uint64_t heartbeat_ns; /* 0: 100 ms. Limits scale with it and by the sanitizer factor */
    uint64_t suspect_ns;   /* silence until suspect; 0: 4 heartbeats */
    uint64_t dead_ns;      /* silence until dead; 0: 8 heartbeats */
    uint64_t connect_ns;   /* deadline of joining; 0: 10 s */
    bool settles;          /* the layers above call fabric_settle; a drain waits for them */
    uint64_t spin_ns;      /* that a wait spins before it blocks; 0 with more threads than cores */
    struct metric_registry *metrics; /* or NULL */
};

/* Founds or joins. Returns when the seat is taken (state joining: others know it, it holds
 * nothing) with connections and lanes to all members. Errors: FERRY_ERR_TIMEOUT (err has each
 * peer's phase), FERRY_ERR_ARG (terms, seat taken, key), FERRY_ERR_PEER, FERRY_ERR_NOMEM,
 * FERRY_ERR_IO (address in use). */
enum ferry_status fabric_create(struct fabric **ret_fabric, const struct fabric_options *options,
                                struct ferry_error *err) FERRY_MUST_CHECK;
/* Leaves without a word: to the others it has died. Drain first to leave politely. */
void fabric_destroy(struct fabric *fabric);

int fabric_seat(const struct fabric *fabric);
size_t fabric_n_seats(const struct fabric *fabric);
void fabric_address(const struct fabric *fabric, char ret_address[TRANSPORT_ADDRESS_MAX]);
uint64_t fabric_now_ns(const struct fabric *fabric);

/* This rank has loaded what its place in the group asks for: it becomes live with the next epoch.
 */
void fabric_ready(struct fabric *fabric);

/* Asks the group to take this rank's experts over; its state is draining and then empty. */
void fabric_drain(struct fabric *fabric);

/* With options->settles: the layers above have acted on every epoch up to this one (experts of a
 * draining seat are held elsewhere now). A draining seat becomes empty when every live seat has
 * settled the epoch in which it began to drain; without the option, when it has that epoch. */
void fabric_settle(struct fabric *fabric, uint32_t epoch);

/* A number that grows as work goes on, and whether there is work at all; goes out with the
 * heartbeats. A rank that is busy and does not move is slow: shown (stalled_ns), never given up. */
void fabric_progress(struct fabric *fabric, uint64_t counter, bool busy);

/* ---- membership as seen here ---- */

struct fabric_view {
    uint32_t epoch;
    int issuer;       /* seat; -1: none holds the lease, nothing new is admitted */
    uint64_t live;    /* bit per seat: live or draining, not suspect: may be given work */
    uint64_t members; /* bit per seat: joining to draining, suspect too */
    struct {
        enum seat_state state;
        uint32_t incarnation; /* of who sits or sat there; 0: nobody yet */
        enum link_class link;
        char address[TRANSPORT_ADDRESS_MAX];
        uint64_t heard_ns;   /* age of the last sign of life */
        uint64_t stalled_ns; /* that its progress counter has stood still with work to do; 0: not */
    } seats[LIMIT_SEATS];
};
void fabric_view(struct fabric *fabric, struct fabric_view *ret_view);

/* Why a connection was refused last ("": none was), for the operator of this side: a joiner with
 * other terms gets the same text. size: at least 1. */
void fabric_refusal(struct fabric *fabric, char *ret_text, size_t size);

/* What all limits of time are multiplied by in this build (sanitizers: more than 1). */
unsigned fabric_time_factor(void);

/* The two numbers that hot loops look at, without a lock. live: as in the view; it follows what
 * this rank sees (a lost connection, silence, a voice that is back) at once, and epochs. When both
 * change, the epoch does so last. */
uint32_t fabric_epoch(const struct fabric *fabric);
uint64_t fabric_live(const struct fabric *fabric);
enum link_class fabric_link(const struct fabric *fabric, int seat);

/* Whether what this rank stores for that seat had better stay in a cache: both run where lines pass
 * between them faster than through memory, by what the last messages took. It may change at any
 * time, on virtual machines it does. Engine thread. */
bool fabric_shares_cache(const struct fabric *fabric, int seat);

/* Whether any other rank shares this host's memory: then waits may be so short that looking into
 * lanes pays. What comes over a network lands in them only when somebody moves it (fabric_sleep).
 */
bool fabric_is_near(const struct fabric *fabric);

/* Seats at the host of this seat, itself included, as far as their addresses tell: their text
 * before the port; bit per seat. Takes a lock: for when the set of live seats has changed. */
uint64_t fabric_mates(struct fabric *fabric, int seat);

/* Waits until n seats are live. FERRY_ERR_TIMEOUT: err lists each seat with its state. */
enum ferry_status fabric_wait_live(struct fabric *fabric, size_t n, uint64_t timeout_ns,
                                   struct ferry_error *err) FERRY_MUST_CHECK;

/* ---- control messages between ranks, for the rooms above ---- */

enum fabric_topic { FABRIC_TOPIC_GROUP, FABRIC_TOPIC_ENGINE, FABRIC_TOPIC_APP, FABRIC_N_TOPICS };

/* data: hostile until the handler has checked it; dies with the call. On the fabric's thread: be
 * short, never wait for the engine. */
typedef void fabric_message_fn(void *arg, int seat, uint32_t incarnation, const void *data,
                               size_t n_bytes);
/* A state of a seat has changed. On the fabric's thread. */
typedef void fabric_change_fn(void *arg, int seat, enum seat_state from, enum seat_state to);

/* Once. What arrives for a topic before its handler is kept; a rank that sends some megabytes of it
 * is taken for broken and its connection dropped. */
void fabric_on_message(struct fabric *fabric, enum fabric_topic topic, fabric_message_fn *fn,
                       void *arg);
/* Once, before fabric_ready. */
void fabric_on_change(struct fabric *fabric, fabric_change_fn *fn, void *arg);

/* Reliable and in order per seat while both live; n_bytes <= TRANSPORT_CONTROL_MAX - 64.
 * FERRY_AGAIN: too much is queued for this peer. FERRY_ERR_PEER: not a member. Any thread. */
enum ferry_status fabric_send(struct fabric *fabric, int seat, enum fabric_topic topic,
                              const void *data, size_t n_bytes);

/* ---- data: engine thread only ---- */

/* As lane_reserve to a seat's lane; FERRY_ERR_PEER also when the seat is not a member, or has no
 * lanes to this rank. */
enum ferry_status fabric_reserve(struct fabric *fabric, int seat, enum lane_channel channel,
                                 size_t n_bytes, void **ret_data);
/* Sends what was reserved; fills header->epoch. Counts bytes by link class. */
void fabric_commit(struct fabric *fabric, int seat, enum lane_channel channel,
                   struct lane_header *header);

struct fabric_message {
    struct lane_header header;
    const unsigned char *data;
    int seat;             /* sender, by the lane it came in; header.origin is only a claim */
    uint32_t incarnation; /* sender's */
    enum lane_channel channel;
    void *lanes; /* the fabric's own */
};

/* The oldest message of that lane which was not taken yet; false: none, or the seat is lost. In
 * place until released; messages of a lane are released in the order they were taken. */
bool fabric_take(struct fabric *fabric, int seat, enum lane_channel channel,
                 struct fabric_message *ret_message);
/* Gives the space back. Harmless when the sender was lost in the meantime. */
void fabric_release(struct fabric *fabric, const struct fabric_message *message);

/* Incarnation of the lanes to a seat that data calls use now; 0: none. When it changes, whatever
 * was sent to the former one is lost, and messages taken from it must no longer be read after
 * their release. New lanes come into use only inside this call: call it between rounds and while
 * waiting. */
uint32_t fabric_lanes(struct fabric *fabric, int seat);

/* Largest payload of one message on a channel. */
size_t fabric_max_payload(const struct fabric *fabric, enum lane_channel channel);

/* Waiting: seen = fabric_rings(); look for work; fabric_sleep(seen, ...) returns when anything came
 * in since (a message, freed space, a change of membership, fabric_wake), or after timeout_ns.
 * Looks for spin_ns before it blocks, where a rank is near or this
 * thread moves data itself. Any thread may wake. */
uint32_t fabric_rings(const struct fabric *fabric);
void fabric_sleep(struct fabric *fabric, uint32_t seen, uint64_t timeout_ns);
void fabric_wake(struct fabric *fabric);

/* Adds to the time that this rank's engine thread waited for a seat: the wait matrix' row. */
void fabric_count_wait(struct fabric *fabric, int seat, uint64_t ns);

#endif
