/* The contract of a transport: connections that carry control messages, and lanes for data.
 *
 * Why here: `loop` (threads of one process), `sim` (virtual clock) and `ucx` (processes and hosts)
 * are used through these functions only, and one contract test runs over all of them. A transport
 * must not know seats, epochs, heartbeats or what messages mean: that is group.h and above.
 *
 * Threads: everything is called from the fabric's own thread (the one that calls poll) unless said
 * otherwise; events come on it too, only inside poll. The lanes' ends belong to the engine thread.
 */
#ifndef FABRIC_TRANSPORT_H
#define FABRIC_TRANSPORT_H

#include "fabric/lane.h"
#include "ferry/status.h"
#include "topology/link.h"

enum {
    TRANSPORT_CONTROL_MAX = 64 << 10, /* bytes of one control message */
    TRANSPORT_OFFER_MAX = 4096,       /* bytes of a lane offer */
    TRANSPORT_ADDRESS_MAX = 128,      /* characters of "host:port", with the 0 */
};

/* Lanes of different channels never wait for each other. Replies are always consumed without
 * sending anything, so that no ring of ranks can wait for itself. */
enum lane_channel { LANE_REQUEST, LANE_REPLY, LANE_N_CHANNELS };
enum lane_side { LANE_SEND, LANE_RECEIVE, LANE_N_SIDES };

struct transport;
struct transport_conn;

struct transport_events {
    /* Somebody connected. The connection is the owner's until it closes it. */
    void (*accepted)(void *arg, struct transport_conn *conn);
    /* An own connect is through. */
    void (*connected)(void *arg, struct transport_conn *conn);
    /* A control message, whole and in order; data dies with the call. */
    void (*control)(void *arg, struct transport_conn *conn, const void *data, size_t n_bytes);
    /* Once per connection at most, also for a connect that failed: nothing comes or goes any more;
     * lanes keep their memory until close. reason: one line. Not called for an own close. */
    void (*lost)(void *arg, struct transport_conn *conn, const char *reason);
    void *arg;
};

struct transport_options {
    struct transport_events events;
    const char *listen; /* "host:port"; port 0: any. Loop and sim: a name, unique in the hub */
    uint64_t spin_ns;   /* that `sleep` may look for data before it blocks, where it moves data */
    struct fabric_hub *hub;      /* loop and sim: what joins the ranks */
    struct lane_bell **ret_bell; /* set to this process' bell, which all lanes of this rank ring;
                                    the transport's memory */
};

struct transport_lanes {
    size_t ring_bytes[LANE_N_CHANNELS]; /* legal ones (lane_ring_bytes); equal on both sides */
};

struct transport_ops {
    const char *name;
    enum ferry_status (*create)(struct transport **ret, const struct transport_options *options,
                                struct ferry_error *err);
    /* Closes everything. Lanes are gone. */
    void (*destroy)(struct transport *transport);
    /* Where others connect to. */
    void (*address)(const struct transport *transport, char ret_address[TRANSPORT_ADDRESS_MAX]);

    /* Begins to connect; `connected` or `lost` follows. Errors: FERRY_ERR_ARG (address). */
    enum ferry_status (*connect)(struct transport *transport, const char *address,
                                 struct transport_conn **ret_conn, struct ferry_error *err);
    /* Queues a control message, copied. FERRY_AGAIN: the peer does not read and 1 MiB is queued.
     * FERRY_ERR_PEER: lost. */
    enum ferry_status (*send)(struct transport_conn *conn, const void *data, size_t n_bytes);
    /* Drops the connection at once, without waiting for the peer, and frees it. Lane memory that
     * the peer may still write is NOT unmapped or reused: `keep_lanes` hands it over to the
     * transport's quarantine, which frees it when the peer's process is known to be gone (a peer
     * on another host cannot write here: at once). The engine thread no longer uses its ends. */
    void (*close)(struct transport_conn *conn, bool keep_lanes);

    /* Makes this side's receiving lanes and describes them for the peer (opaque, <=
     * TRANSPORT_OFFER_MAX bytes). FERRY_ERR_NOMEM: no memory for them (err says sizes); it is
     * claimed now, not at the first store. */
    enum ferry_status (*offer)(struct transport_conn *conn, const struct transport_lanes *lanes,
                               void *ret_offer, size_t *ret_bytes, struct ferry_error *err);
    /* Takes the peer's offer: the sending ends exist afterwards. Both sides offer and accept.
     * FERRY_ERR_FORMAT: not an offer, or sizes differ from the own ones. */
    enum ferry_status (*accept)(struct transport_conn *conn, const void *offer, size_t n_bytes,
                                struct ferry_error *err);
    /* An end; valid from accept until close. It may be used by the engine thread although the
     * connection is lost: stores then go nowhere. */
    struct lane *(*lane)(struct transport_conn *conn, enum lane_channel channel,
                         enum lane_side side);
    /* The road that lanes take; LINK_UNKNOWN before accept. */
    enum link_class (*link)(const struct transport_conn *conn);

    /* Runs events for at most timeout_ns (0: what is there). Returns early after any. */
    void (*poll)(struct transport *transport, uint64_t timeout_ns);
    /* Ends a poll soon. Any thread. */
    void (*wake)(struct transport *transport);
    /* The clock that timeouts and heartbeats go by: monotonic, or virtual. Any thread. */
    uint64_t (*now_ns)(const struct transport *transport);
    /* Sleeps on the own bell as lane_bell_sleep does, by the transport's clock; meanwhile it may
     * move data itself. Engine thread. */
    void (*sleep)(struct transport *transport, uint32_t seen, uint64_t timeout_ns);
    /* Rings the own bell. Any thread; who has nothing but the bell wakes no `sleep` that does more.
     */
    void (*ring)(struct transport *transport);
    /* Bytes in quarantine. */
    size_t (*quarantined)(const struct transport *transport);
    /* True: the process at the other end is proven to have ended; silence, a reset or a closed
     * connection prove nothing. Also after `lost`, until close: the proof may come a moment later.
     * NULL: this transport never knows. */
    bool (*gone)(const struct transport_conn *conn);
};

extern const struct transport_ops transport_loop, transport_sim, transport_ucx;

/* What joins the ranks of one process. Sim: every pair of ranks has the road that the options
 * give, and time stands still while any rank computes. Destroyed after its transports. */
struct fabric_hub;
struct fabric_hub_options {
    bool sim;
    size_t n_ranks;      /* sim: threads that take part in the virtual clock */
    uint64_t latency_ns; /* sim: one way */
    double bytes_per_ns; /* sim: of one direction of one pair; 0: no bound */
};
enum ferry_status fabric_hub_create(struct fabric_hub **ret_hub,
                                    const struct fabric_hub_options *options,
                                    struct ferry_error *err) FERRY_MUST_CHECK;
void fabric_hub_destroy(struct fabric_hub *hub);

/* Faults for tests; by the name that a transport listens on. Any thread. */
void fabric_hub_kill(struct fabric_hub *hub, const char *name); /* as kill -9 */
void fabric_hub_cut(struct fabric_hub *hub, const char *a, const char *b, bool cut); /* silence */

/* Sim: a thread takes part in the virtual clock from its first poll or sleep that blocks, or from
 * fabric_hub_join, until it exits or its rank is killed. Time stands still while a thread that
 * takes part is not in poll or sleep; so one that will wait in another way, for others that need
 * time to pass (a join of threads, say), leaves before. The calling thread; loop: nothing. */
void fabric_hub_join(struct fabric_hub *hub);
void fabric_hub_leave(struct fabric_hub *hub);

#endif
