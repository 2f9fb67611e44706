/* Inside of the transport `ucx`: what its files share. No other file includes it.
 *
 * Why here: processes talk over one TCP connection each, which is how they know of each other's
 * death; lanes inside a host are memory that both map, and between hosts ranges of a ring travel as
 * UCX's active messages. ucx.c has the listener and the poll loop, ucx_conn.c connections and
 * control messages, ucx_lane.c offers and lanes, ucx_memory.c shared memory, ucx_worker.c what is
 * UCX's, ucx_ship.c the lanes that travel, ucx_drive.c the engine's thread where it moves data
 * itself, ucx_process.c who a process is, ucx_address.c "host:port".
 *
 * Threads: everything belongs to the fabric's thread, except what says "engine". UCX, the list of
 * connections, and of a connection its lanes and whether it has failed are touched with
 * transport.lock held, which the fabric's thread has in all operations that do. Nothing is reported
 * to the owner from inside a callback: events may close any connection. */
#ifndef FABRIC_UCX_IMPL_H
#define FABRIC_UCX_IMPL_H

#include "base/limits.h"
#include "fabric/transport.h"

#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>
#include <sys/types.h>
#include <ucp/api/ucp.h>

enum {
    UCX_CONNS = 4 * LIMIT_SEATS, /* at once; more are refused */
    UCX_STRANGERS = LIMIT_SEATS, /* of them, those that have connected and said nothing yet */
    UCX_QUEUE_BYTES =
        1 << 20,           /* of control messages that the kernel has not taken, per connection */
    UCX_IN_FLIGHT = 4,     /* ranges of one lane that UCX has not sent yet */
    UCX_RANGES = 256,      /* ranges of one lane that have come before their turn */
    UCX_WORKER_MAX = 2048, /* bytes of a worker's address (100 to 240 in use) */
    UCX_DEVICE_MAX = 16,   /* of a device's name, as IF_NAMESIZE */
};

/* ---- ucx_address.c ---- */

struct ucx_address {
    struct sockaddr_storage storage;
    socklen_t n_bytes;
};

/* "host:port" or "[v6]:port", names too: of several addresses the first of the family, if there is
 * one (AF_UNSPEC: any). FERRY_ERR_ARG. */
enum ferry_status ucx_address_parse(struct ucx_address *ret, const char *text, sa_family_t family,
                                    struct ferry_error *err) FERRY_MUST_CHECK;
/* Numeric; a wildcard is replaced by an address of this host that others may reach. */
void ucx_address_format(const struct sockaddr_storage *address,
                        char ret_text[TRANSPORT_ADDRESS_MAX]);

/* Name of the device that has an address; "" when none has it, as of a wildcard. */
void ucx_address_device(const struct sockaddr_storage *address, char ret_name[UCX_DEVICE_MAX]);

/* ---- ucx_process.c ---- */

/* Names a process of this host beyond the life of its number. Travels in offers. */
struct ucx_process {
    uint64_t pid_ns; /* inode; pid means something only in the same one */
    uint64_t start;  /* clock ticks since boot */
    uint32_t pid;
    uint32_t zero;
};

/* A watched process; fd -1: not by descriptor. */
struct ucx_watch {
    struct ucx_process process;
    int fd;
    bool can_judge; /* false: nobody can say whether it is gone */
};

void ucx_process_self(struct ucx_process *ret);
void ucx_watch_open(struct ucx_watch *ret, const struct ucx_process *process);
void ucx_watch_close(struct ucx_watch *watch);
/* Whether the process is known to be gone (a zombie is: it has no memory any more). */
bool ucx_watch_is_gone(const struct ucx_watch *watch);
/* Number that is equal for two processes that may share memory, and hardly ever otherwise; not 0.
 */
uint64_t ucx_host_id(void);

/* ---- ucx_memory.c ---- */

/* What a region of memory begins with. A peer is told the nonce beside the key, and uses what it
 * has mapped only when it finds it there. */
struct ucx_region {
    _Alignas(64) uint64_t nonce;
    _Atomic uint32_t left; /* rings: the peer has unmapped them, its last store */
    _Alignas(64) unsigned char data[];
};

/* Own memory that peers may map, or that is private to the process (fd -1). */
struct ucx_memory {
    struct ucx_region *region; /* NULL: none */
    size_t n_bytes;            /* of the data */
    int fd;
};

/* A peer's memory, mapped here. */
struct ucx_window {
    struct ucx_region *region; /* NULL: not mapped */
    size_t n_bytes;
};

/* How a peer maps a region: travels in offers. */
struct ucx_key {
    uint64_t nonce;   /* 0: it cannot be mapped */
    uint64_t n_bytes; /* of the data */
    uint64_t device, inode;
    uint32_t pid, fd; /* of the owner */
};

/* Rings that a peer may still write: until its process is gone, or has said that it let go of them.
 */
struct ucx_quarantined {
    struct ucx_quarantined *next;
    struct ucx_memory memory;
    struct ucx_watch watch;
};

/* n_bytes of zeroed memory that peers of this host can map; its pages are claimed. what: for the
 * error. FERRY_ERR_NOMEM. */
enum ferry_status ucx_memory_share(struct ucx_memory *ret, size_t n_bytes, const char *what,
                                   struct ferry_error *err) FERRY_MUST_CHECK;
/* The same, for this process alone. FERRY_ERR_NOMEM. */
enum ferry_status ucx_memory_own(struct ucx_memory *ret, size_t n_bytes, const char *what,
                                 struct ferry_error *err) FERRY_MUST_CHECK;
void ucx_memory_fini(struct ucx_memory *memory);
bool ucx_memory_is_shared(const struct ucx_memory *memory);
/* Whether the peer has unmapped it. One that lies writes to pages that nobody else has. */
bool ucx_memory_is_left(const struct ucx_memory *memory);
/* The key that peers map it by. */
void ucx_memory_key(const struct ucx_memory *memory, struct ucx_key *ret);

/* Maps a peer's region with n_bytes of data; false: not to be had, or not what the peer says that
 * it is. The key is hostile. */
bool ucx_window_open(struct ucx_window *ret, const struct ucx_key *key, size_t n_bytes);
/* leave: says so to the owner, who may then free it. */
void ucx_window_close(struct ucx_window *window, bool leave);

/* A number that nobody can guess. */
uint64_t ucx_random(void);

/* ---- connections ---- */

/* The receiver's connection, and proof of being at its other end: only that peer was told. */
struct ucx_label {
    uint64_t token;
    uint32_t slot;
    uint32_t zero;
};

/* The first thing that both sides say. Little endian, as all that follows. */
struct ucx_hello {
    uint32_t magic, version;
    struct ucx_label label; /* for active messages to who sends this */
    uint64_t host;          /* ucx_host_id, 0: shares no memory */
    struct ucx_process process;
};

/* Before each control message. */
struct ucx_frame {
    uint32_t n_bytes;
};

/* A control message that has come. */
struct ucx_inbox {
    struct ucx_inbox *next;
    size_t n_bytes, have;
    unsigned char data[];
};

/* Active messages of UCX, by their id. */
enum ucx_message { UCX_DATA, UCX_CREDIT, UCX_N_MESSAGES };

/* A range of a lane's ring; the payload lies at `from`. Positions as in lane.h. */
struct ucx_data {
    struct ucx_label label;
    uint64_t from, next; /* next - from: the payload, and what the ring leaves unused behind it */
    uint32_t channel;
    uint32_t whole; /* 1: a message ends at next, so that the head may move there */
};

struct ucx_credit {
    struct ucx_label label;
    uint64_t tail;
    uint32_t channel;
    uint32_t zero;
};

/* One active message on its way out. */
struct ucx_send {
    struct transport_conn *conn;
    unsigned *in_flight; /* of a lane; or NULL */
    union {
        struct ucx_data data;
        struct ucx_credit credit;
    } header;
};

/* A range of a ring that has come. */
struct ucx_range {
    uint64_t from, next;
    bool whole;
};

/* The sending end of a lane that travels. */
struct ucx_outlet {
    struct transport_conn *conn;
    struct lane_shared *shared; /* the mirror */
    size_t ring_bytes;
    _Atomic uint64_t committed; /* engine writes */
    _Atomic uint64_t pad_from;  /* engine: where the newest lap's unused rest begins */
    uint64_t target;            /* committed as it was seen; a message ends there */
    uint64_t sent;              /* given to UCX */
    uint64_t tail;              /* the receiver's, as told */
    unsigned in_flight;
};

/* The receiving end; a peer that maps the ring leaves all but `conn` as it is. */
struct ucx_inlet {
    struct transport_conn *conn;
    struct lane_shared *shared;
    size_t ring_bytes;
    _Atomic bool travels;      /* the peer sends ranges */
    _Atomic uint64_t released; /* engine writes */
    _Atomic uint64_t credited; /* engine reads: the tail that the peer was told */
    _Atomic uint64_t landed;   /* all before it is there; engine reads */
    uint64_t head;
    uint64_t told_ns; /* when the last credit was sent */
    size_t n_ranges;
    struct ucx_range *ranges; /* those that came before their turn; or NULL */
};

struct ucx_lanes {
    bool offered, accepted;
    size_t ring_bytes[LANE_N_CHANNELS];
    size_t at[LANE_N_CHANNELS]; /* of each lane in a region of rings */
    size_t n_bytes;             /* of a region */
    struct ucx_memory rings;    /* own: the receiving ends */
    struct ucx_memory mirror;   /* own: the sending ends, when they travel */
    struct ucx_window window;   /* the peer's: the sending ends, when they are mapped */
    struct ucx_window bell;     /* the peer's */
    struct lane ends[LANE_N_CHANNELS][LANE_N_SIDES];
    struct ucx_outlet out[LANE_N_CHANNELS];
    struct ucx_inlet in[LANE_N_CHANNELS];
};

enum ucx_state {
    UCX_CONNECTING, /* an own connect is not through */
    UCX_GREETING,   /* no hello from the peer yet */
    UCX_OPEN,
};

struct transport_conn {
    struct transport *owner;
    struct transport_conn *next; /* of those that were closed and still wait for UCX */
    int fd;
    uint32_t watched; /* of epoll */
    enum ucx_state state;
    bool incoming;
    bool say_open; /* accepted or connected is due */
    bool failed;   /* lost is due, or was said */
    bool said_lost;
    struct ucx_label label; /* for active messages from the peer */
    struct ucx_label peer;  /* for those to it */
    uint64_t peer_host;     /* as it says */
    struct ucx_watch watch; /* its process; judges only inside a host */
    uint64_t since_ns;
    /* Out: what the kernel has not taken yet. */
    char *out;
    size_t out_at, out_size, out_capacity;
    /* In: a hello or a frame's head, then its message. */
    unsigned char head[sizeof(struct ucx_hello)];
    size_t head_have;
    struct ucx_inbox *partial, *first, *last;
    /* Lanes. */
    ucp_ep_h ep;              /* NULL: none travels */
    uint64_t linger_until_ns; /* a closed one's ep stays so long, see ucx_conn_reap */
    unsigned n_sends;         /* active messages that UCX still holds */
    struct ucx_lanes lanes;
    char name[TRANSPORT_ADDRESS_MAX];
    char reason[200];
};

struct transport {
    struct transport_events events;
    int listen_fd, wake_fd, epoll_fd;
    int worker_fd, ring_fd; /* UCX's; and what wakes the engine's thread while it polls */
    bool listens; /* the listener is watched: not for a while after it ran out of descriptors */
    sa_family_t family;          /* of the listener */
    char device[UCX_DEVICE_MAX]; /* that it is bound to; "": to all */
    bool no_share;               /* this process maps nobody's memory and nobody maps its */
    uint64_t host;
    uint64_t swept_ns; /* when quarantine and strangers were looked through */
    uint64_t spin_ns;  /* that ucx_sleep looks before it blocks */
    bool has_landed;   /* something has, the engine is to be told */
    bool has_failed;   /* a connection has, since failures were looked for */
    uint64_t deaf_ns;  /* see doze */
    _Atomic bool woken, asleep;
    pthread_mutex_t lock; /* recursive; see above */
    bool has_lock;
    _Atomic unsigned wanted; /* threads that wait for the lock */
    _Atomic unsigned n_near; /* connections whose lanes are mapped */
    _Atomic bool travels;    /* there is a worker */
    _Atomic bool driven;     /* the engine's thread moves data now */
    _Atomic uint32_t drives; /* times that it has begun to */
    _Atomic bool polls;      /* and sleeps on ring_fd */
    _Atomic bool deaf;       /* the fabric's thread leaves it to that for long */
    struct ucx_memory bell;
    ucp_context_h context; /* NULL: no lane travels yet */
    ucp_worker_h worker;
    struct transport_conn *conns[UCX_CONNS];
    struct transport_conn *closed;
    struct ucx_quarantined *quarantine;
    char address[TRANSPORT_ADDRESS_MAX];
};

/* ---- ucx.c ---- */

/* Sees to it that poll looks at the lanes again. Any thread. */
void ucx_nudge(struct transport *transport);

/* ---- ucx_drive.c ---- */

void ucx_lock(struct transport *transport);
void ucx_unlock(struct transport *transport);
bool ucx_try_lock(struct transport *transport); /* false: another has it, or waits for it */
struct lane_bell *ucx_bell(struct transport *transport);
/* Waits until a descriptor is readable, or the time is over. Returns whether one is. */
bool ucx_wait(struct pollfd *fds, size_t n, uint64_t timeout_ns);
/* Rings the own bell, however the engine's thread sleeps. Any thread. */
void ucx_ring(struct transport *transport);
/* Lets UCX work, and rings if anything came. Returns whether there was anything. With the lock. */
bool ucx_move_data(struct transport *transport);
/* As lane_bell_sleep on the own bell. Any thread, but one at a time moves data. */
void ucx_sleep(struct transport *transport, uint32_t seen, uint64_t timeout_ns);

/* ---- ucx_conn.c ---- */

enum ferry_status ucx_connect(struct transport *transport, const char *address,
                              struct transport_conn **ret_conn, struct ferry_error *err);
/* Takes those who connect. False: out of descriptors or memory, try later. */
bool ucx_conn_accept(struct transport *transport);
/* Moves bytes; events: of epoll. */
void ucx_conn_move(struct transport_conn *conn, uint32_t events);
enum ferry_status ucx_send(struct transport_conn *conn, const void *data, size_t n_bytes);
void ucx_close(struct transport_conn *conn, bool keep_lanes);
/* Closes the endpoints of those closed ones that have lingered, and frees those that UCX has let
 * go; all: without asking, the worker is gone. */
void ucx_conn_reap(struct transport *transport, bool all);
/* Runs the events that are due and returns their number. */
size_t ucx_conn_deliver(struct transport *transport);
/* Drops who connected and has not said hello in time. */
void ucx_conn_expire(struct transport *transport, uint64_t now_ns);
/* Those that have connected and said nothing yet. */
size_t ucx_conn_strangers(const struct transport *transport);
/* The connection broke; `lost` will be said. reason is copied. */
void ucx_conn_fail(struct transport_conn *conn, const char *reason);
/* The connection that an active message's label names, or NULL. */
struct transport_conn *ucx_conn_find(struct transport *transport, const struct ucx_label *label);

/* ---- ucx_worker.c ---- */

/* Starts UCX when it was not yet, and writes the worker's address. FERRY_ERR_NOMEM, FERRY_ERR_IO.
 */
enum ferry_status ucx_worker_address(struct transport *transport,
                                     unsigned char ret_address[UCX_WORKER_MAX], size_t *ret_bytes,
                                     struct ferry_error *err) FERRY_MUST_CHECK;
/* Lets UCX work until it has nothing more to do. Returns whether it had anything. */
bool ucx_worker_progress(struct transport *transport);
/* False: there is something to do; otherwise worker_fd becomes readable when there is. */
bool ucx_worker_may_sleep(struct transport *transport);
void ucx_worker_destroy(struct transport *transport);
/* The road to a peer's worker. address is hostile. FERRY_ERR_PEER. */
enum ferry_status ucx_endpoint_open(struct transport_conn *conn, const unsigned char *address,
                                    size_t n_bytes, struct ferry_error *err) FERRY_MUST_CHECK;
void ucx_endpoint_close(struct transport_conn *conn);
/* Sends header (n_header bytes, in send->header) and payload, which stays until it is sent. Takes
 * send. */
void ucx_endpoint_post(struct ucx_send *send, enum ucx_message id, size_t n_header,
                       const void *payload, size_t n_payload);

/* ---- ucx_lane.c ---- */

enum ferry_status ucx_offer(struct transport_conn *conn, const struct transport_lanes *lanes,
                            void *ret_offer, size_t *ret_bytes, struct ferry_error *err);
enum ferry_status ucx_accept(struct transport_conn *conn, const void *offer, size_t n_bytes,
                             struct ferry_error *err);
struct lane *ucx_lane(struct transport_conn *conn, enum lane_channel channel, enum lane_side side);
enum link_class ucx_link(const struct transport_conn *conn);
/* Lets go of the peer's memory, and of the own with keep: into quarantine, unless the peer is gone
 * or on another host. What remains stays until ucx_lanes_free, since UCX may still read or write
 * it. */
void ucx_lanes_close(struct transport_conn *conn, bool keep);
void ucx_lanes_free(struct transport_conn *conn);
/* Frees what is in quarantine and no longer written by anybody; all: everything. */
void ucx_quarantine_sweep(struct transport *transport, bool all);
size_t ucx_quarantined(const struct transport *transport);

/* ---- ucx_ship.c ---- */

void ucx_committed(void *arg, struct lane *lane, uint64_t from, uint64_t to); /* engine */
void ucx_released(void *arg, struct lane *lane, uint64_t tail);               /* engine */
/* Sends what was committed and released. */
void ucx_ship(struct transport *transport);
/* Whether ucx_ship would have something to do. */
bool ucx_ship_due(struct transport *transport);
ucs_status_t ucx_on_data(void *arg, const void *header, size_t n_header, void *data, size_t n_bytes,
                         const ucp_am_recv_param_t *param);
ucs_status_t ucx_on_credit(void *arg, const void *header, size_t n_header, void *data,
                           size_t n_bytes, const ucp_am_recv_param_t *param);

#endif
