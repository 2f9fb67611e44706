/* The inside of a fabric, shared by the files that make it up.
 *
 * Why here: one thread owns connections, handshakes and the group's state machine; the engine
 * thread uses lanes; any thread reads the view. This header says which field is whose. Outside of
 * the room nobody includes it.
 *
 * fabric.c   life, the thread, the view
 * peers.c    connections of members: from attached over current to closed, and their roads
 * admit.c    handshakes of who was dialled
 * enter.c    handshakes of who dials: joining and joining again
 * data.c     the engine thread's calls
 * topic.c    messages of the rooms above
 * stats.c    metrics */
#ifndef FABRIC_FABRIC_IMPL_H
#define FABRIC_FABRIC_IMPL_H

#include "fabric/auth.h"
#include "fabric/fabric.h"
#include "fabric/group.h"
#include "fabric/wire.h"
#include "metric/metric.h"

#include <pthread.h>
#include <stdatomic.h>

enum {
    FABRIC_GRAVES = 4,             /* roads of one seat that the engine has not let go */
    FABRIC_WAITS = 8,              /* times that an asking rank is put off before it asks another */
    FABRIC_RETRY_NS = 20000000,    /* between two questions for a seat */
    FABRIC_REDIAL_NS = 50000000,   /* between two attempts to connect */
    FABRIC_REENTER_NS = 500000000, /* between two attempts to join again */
};

/* Lanes to one process, both ways, as the engine thread uses them. Made by the fabric's thread,
 * freed by it when the engine thread has let go or never took it. */
struct road {
    struct lane *lanes[LANE_N_CHANNELS][LANE_N_SIDES];
    int seat;
    uint32_t incarnation;
    enum link_class link;
    bool adopted;       /* the engine thread has or had it; guarded by fabric->lock */
    atomic_bool lost;   /* fabric's thread to engine thread: of no use any more; relaxed */
    atomic_bool broken; /* engine thread to fabric's: the peer wrote nonsense; relaxed */
    atomic_bool let_go; /* engine thread to fabric's: no message of it is held; release/acquire */
    bool dropped;       /* engine thread: no longer current */
    unsigned n_taken;   /* engine thread: messages that are not released */
};

/* X(phase, text) */
#define PEER_PHASE_LIST(X)                                    \
    X(PEER_DIALLING, "connecting")                            \
    X(PEER_GREETING, "connected, waiting for a greeting")     \
    X(PEER_PROVING, "waiting for the proof of the group key") \
    X(PEER_PROVEN, "key proven")                              \
    X(PEER_ASKING, "terms sent, waiting for a seat")          \
    X(PEER_ATTACHING, "waiting for its lanes")                \
    X(PEER_ATTACHED, "lanes exist")

enum peer_phase {
#define PEER_PHASE_ENUM(phase, text) phase,
    PEER_PHASE_LIST(PEER_PHASE_ENUM)
#undef PEER_PHASE_ENUM
};
const char *peer_phase_text(enum peer_phase phase);

/* A connection. Fabric's thread only. */
struct peer {
    struct peer *next;
    struct transport_conn *conn;
    enum peer_phase phase;
    bool dialled;
    bool lost;    /* by the transport */
    bool gone;    /* told the group so */
    bool doomed;  /* closed as soon as it can be */
    bool retired; /* was a member's, of an incarnation that is over */
    int seat;     /* -1: not known */
    uint64_t instance;
    uint64_t asked_instance; /* of who asks for a seat on it */
    uint64_t deadline_ns;    /* of the handshake, or of a retired one's last words */
    unsigned char nonces[2][WIRE_NONCE_BYTES]; /* by enum auth_role */
    char address[TRANSPORT_ADDRESS_MAX];       /* that was dialled, or where it listens */
    struct road *road;
};

/* Joining, for the first time or again. Fabric's thread only. */
struct entry {
    bool active;
    bool probing; /* this rank's incarnation is not given up yet: asks whether there is a group */
    struct peer *ask;
    uint64_t instance, former;
    size_t n_contacts, contact;
    char contacts[LIMIT_SEATS + 1][TRANSPORT_ADDRESS_MAX];
    char referred[TRANSPORT_ADDRESS_MAX]; /* the issuer's, by a member's word; "": none */
    bool granted;
    int seat;
    struct wire_table table;
    uint64_t wanted, attached; /* bit per seat */
    bool joined;
    unsigned n_waits;
    uint64_t next_ns, expires_ns;
    char why[WIRE_TEXT_MAX]; /* what it last waited for */
};

struct topic_item {
    struct topic_item *next;
    int seat;
    uint64_t instance;
    enum fabric_topic topic;
    size_t n_bytes;
    unsigned char data[];
};
struct topic_queue {
    struct topic_item *first, *last;
    size_t n_bytes;
};

struct fabric_stats; /* stats.c */

struct fabric {
    /* Constant after create. */
    const struct transport_ops *ops;
    struct fabric_hub *hub;
    struct fabric_options options; /* with own copies of texts, terms and key */
    char *texts;
    struct fabric_term *terms;
    unsigned char *key;
    struct group_limits limits;
    struct transport *transport;
    struct lane_bell *bell;
    pthread_t thread;
    bool has_thread, has_lock, has_cond;

    /* Fabric's thread. */
    struct group group;
    struct peer *peers;
    size_t n_peers;
    struct peer *seats[LIMIT_SEATS]; /* members' */
    struct entry entry;
    struct topic_queue
        waiting;     /* came before a handler, or before the epoch that names the sender */
    uint32_t synced; /* epoch that the connections are in accord with */
    uint64_t entry_deadline_ns;
    uint64_t led_ns; /* when an issuer was known last */
    enum seat_state told[LIMIT_SEATS];
    unsigned char *buffer; /* TRANSPORT_CONTROL_MAX */
    struct wire *in, *out; /* one message each */

    /* Any thread, with the lock. No other lock is taken inside, no callback called. */
    pthread_mutex_t lock;
    pthread_cond_t started; /* for `created`, with `status` and `error` */
    bool created;           /* the transport exists, or status says why not */
    bool entered;           /* this rank is a member, or status says why not */
    enum ferry_status status;
    struct ferry_error error;
    struct fabric_view view; /* heard_ns: a time, not an age */
    struct topic_queue sending[LIMIT_SEATS];
    fabric_message_fn *on_message[FABRIC_N_TOPICS];
    void *on_message_arg[FABRIC_N_TOPICS];
    fabric_change_fn *on_change;
    void *on_change_arg;
    struct road *offered[LIMIT_SEATS]; /* what the engine thread should use */
    char refusal[WIRE_TEXT_MAX];

    /* Any thread. */
    atomic_bool stop;
    _Atomic uint32_t wishes;   /* WIRE_BEAT_*; relaxed, followed by a wake */
    _Atomic uint32_t settled;  /* relaxed */
    _Atomic uint64_t progress; /* relaxed */
    _Atomic uint64_t live;     /* release before epoch, acquire after it */
    _Atomic uint32_t epoch;
    _Atomic uint32_t seat_number;                /* relaxed */
    _Atomic uint32_t links[LIMIT_SEATS];         /* enum link_class; relaxed */
    _Atomic uint32_t road_versions[LIMIT_SEATS]; /* grows with offered[seat]; release/acquire */
    _Atomic(struct fabric_stats *) stats;        /* release/acquire; NULL: no metrics */

    /* Engine thread. */
    struct road *current[LIMIT_SEATS];
    uint32_t seen_versions[LIMIT_SEATS];
};

/* peers.c */
struct peer *peers_add(struct fabric *f, struct transport_conn *conn, bool dialled);
struct peer *peers_dial(struct fabric *f, const char *address);
struct peer *peers_find(struct fabric *f, const struct transport_conn *conn);
/* FERRY_AGAIN and FERRY_ERR_PEER as transport's send. */
enum ferry_status peers_send(struct fabric *f, struct peer *peer, const struct wire *message);
/* Takes the other side's lanes, from ATTACH or ATTACHED; peer->seat is set before. */
enum ferry_status peers_accept(struct fabric *f, struct peer *peer, const struct wire *message,
                               struct ferry_error *err);
/* Roads that seats' former holders have left and the engine thread has not let go. */
size_t peers_count_graves(const struct fabric *f, int seat);
/* The connection to an instance; NULL. */
struct peer *peers_of(struct fabric *f, int seat, uint64_t instance);
/* Brings connections into accord with the epoch in force. */
void peers_sync(struct fabric *f, uint64_t now_ns);
/* Makes a connection that of a member whose own is lost, for messages only, so that a group whose
 * connections all broke can decide again. Only without an issuer; false: no. */
bool peers_mend(struct fabric *f, struct peer *peer, int seat, uint64_t instance, uint64_t now_ns);
/* Everything of this incarnation is over. */
void peers_retire_all(struct fabric *f, uint64_t now_ns);
void peers_lost(struct fabric *f, struct peer *peer, uint64_t now_ns);
void peers_look(struct fabric *f, uint64_t now_ns); /* after who ended; at broken lanes */
void peers_reap(struct fabric *f, uint64_t now_ns); /* closes what can be closed */
void peers_free(struct fabric *f);

/* admit.c */
void admit_message(struct fabric *f, struct peer *peer, const struct wire *m, uint64_t now_ns);
/* What differs between two sets of terms, in words for both sides; false: nothing. */
bool admit_compare(const struct fabric *f, const struct wire_join *join, int joiner,
                   char text[WIRE_TEXT_MAX]);

/* enter.c */
void enter_start(struct fabric *f, bool probing, uint64_t now_ns);
void enter_stop(struct fabric *f);
void enter_connected(struct fabric *f, struct peer *peer, uint64_t now_ns);
void enter_message(struct fabric *f, struct peer *peer, const struct wire *m, uint64_t now_ns);
void enter_lost(struct fabric *f, struct peer *peer, const char *reason, uint64_t now_ns);
void enter_tick(struct fabric *f, uint64_t now_ns);
uint64_t enter_next_ns(const struct fabric *f);
/* Where every connection stands, for the error of a deadline. */
void enter_describe(const struct fabric *f, char *text, size_t size);

/* fabric.c */
/* The first entry is over, with this; what comes later changes nothing. */
void fabric_set_entered(struct fabric *f, enum ferry_status status, const struct ferry_error *err);
void fabric_refused(struct fabric *f, const char *text);
void fabric_reset(struct fabric *f, uint64_t now_ns);

/* topic.c */
void topic_receive(struct fabric *f, struct peer *peer, const struct wire *m);
void topic_flush(struct fabric *f);
void topic_deliver(struct fabric *f); /* what came before its handler */
void topic_drop(struct fabric *f, int seat);
void topic_free(struct fabric *f);

/* stats.c */
enum ferry_status stats_create(struct fabric *f, struct ferry_error *err);
void stats_destroy(struct fabric *f);
void stats_update(struct fabric *f, uint64_t now_ns);
void stats_count(struct fabric *f, int seat, enum link_class link, enum lane_side side,
                 size_t n_bytes);
void stats_wait(struct fabric *f, int seat, uint64_t ns);
void stats_rejected(struct fabric *f);

#endif
