/* Control messages between ranks: what they hold, and their bytes.
 *
 * Why here: whoever reaches the group's port can send anything, so one file turns bytes into
 * checked values, and everything above works on those. It must not know connections, seats' states
 * over time, or what an answer to a message would be.
 *
 * Layout: version, type, then the fields in the order of the structs below, little endian, texts
 * and blobs with their length in front. Nothing may be left over. */
#ifndef FABRIC_WIRE_H
#define FABRIC_WIRE_H

#include "base/limits.h"
#include "fabric/fabric.h"
#include "ferry/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    WIRE_VERSION = 1,
    WIRE_NONCE_BYTES = 32,
    WIRE_MAC_BYTES = 32,
    WIRE_TEXT_MAX = 400,   /* of a refusal or a reason to wait, with the 0 */
    WIRE_TOPIC_BYTES = 64, /* at most, in front of the data of a topic message */
};

/* X(type, number, name) */
#define WIRE_TYPE_LIST(X)                                                                 \
    /* handshake */                                                                       \
    X(WIRE_HELLO, 1, "hello")         /* who dials: a nonce */                            \
    X(WIRE_CHALLENGE, 2, "challenge") /* who was dialled: its nonce and its proof */      \
    X(WIRE_PROOF, 3, "proof")         /* the dialler's proof */                           \
    X(WIRE_JOIN, 4, "join")           /* asks for a seat */                               \
    X(WIRE_REFER, 5, "refer")         /* somebody else grants seats */                    \
    X(WIRE_WAIT, 6, "wait")           /* not yet */                                       \
    X(WIRE_REFUSE, 7, "refuse")       /* no */                                            \
    X(WIRE_GRANT, 8, "grant")         /* a seat, and whom to connect to */                \
    X(WIRE_ATTACH, 9, "attach")       /* a lane offer of who was granted a seat */        \
    X(WIRE_ATTACHED, 10, "attached")  /* the member's */                                  \
    X(WIRE_JOINED, 11, "joined")      /* has lanes to all members */                      \
    X(WIRE_MENDED, 12, "mended")      /* it is a member still: talk on this connection */ \
    /* membership */                                                                      \
    X(WIRE_BEAT, 16, "beat")       /* alive, and what the sender sees */                  \
    X(WIRE_PROPOSE, 17, "propose") /* the next epoch */                                   \
    X(WIRE_ACK, 18, "ack")         /* has it */                                           \
    X(WIRE_COMMIT, 19, "commit")   /* it is in force */                                   \
    X(WIRE_PREPARE, 20, "prepare") /* wants to issue from now on */                       \
    X(WIRE_PROMISE, 21, "promise") /* may; and the last epoch that the voter has */       \
    X(WIRE_REJECT, 22, "reject")   /* may not: another term, or the issuer is there */    \
    /* above */                                                                           \
    X(WIRE_TOPIC, 32, "topic") /* bytes of the rooms above */

enum wire_type {
#define WIRE_TYPE_ENUM(type, number, name) type = number,
    WIRE_TYPE_LIST(WIRE_TYPE_ENUM)
#undef WIRE_TYPE_ENUM
};

/* One seat of the table. */
struct wire_seat {
    enum seat_state state; /* never SEAT_SUSPECT: that is each rank's own view */
    uint32_t incarnation;  /* the epoch in which its holder came in; 0: nobody yet */
    uint32_t since;        /* the epoch of its last change */
    uint64_t instance;     /* random number of the holder's process and entry; 0: nobody yet */
    char address[TRANSPORT_ADDRESS_MAX];
};

/* The whole membership; what an epoch is. */
struct wire_table {
    uint32_t epoch;
    int issuer;
    size_t n_seats;
    struct wire_seat seats[LIMIT_SEATS];
};

/* Not terminated; points into the received bytes. */
struct wire_text {
    const char *data;
    size_t size;
};

struct wire_join {
    uint32_t n_seats; /* 0: whatever the group has */
    int wanted;       /* seat, or -1 */
    uint64_t instance;
    uint64_t former; /* instance that the same process had before; 0: none */
    uint64_t ring_bytes[LANE_N_CHANNELS];
    char address[TRANSPORT_ADDRESS_MAX]; /* where the joiner listens */
    size_t n_terms;
    struct {
        struct wire_text name, value;
    } terms[LIMIT_TERMS];
};

enum {
    WIRE_BEAT_READY = 1, /* fabric_ready was called */
    WIRE_BEAT_DRAIN = 2, /* fabric_drain was called */
    WIRE_BEAT_BUSY = 4,  /* works on a step */
    WIRE_BEAT_OUT = 8,   /* the issuer that the sender knows is out */
    WIRE_BEAT_CLAIM = 16 /* the sender issues epochs or wants to */
};

struct wire_beat {
    uint64_t stamp; /* sender's clock */
    uint64_t echo;  /* the receiver's own stamp that came in last */
    uint64_t lease; /* how long the sender may go on issuing epochs, ns; 0: it may not */
    uint64_t term;
    uint32_t epoch;   /* in force at the sender */
    uint32_t settled; /* epoch that the sender's layers above have acted on */
    uint32_t flags;
    uint64_t progress; /* step counter */
    uint64_t broken;   /* bit per seat: members to which the sender has no working road */
    uint64_t gone;     /* those whose process is proven to have ended */
};

struct wire {
    enum wire_type type;
    union {
        struct {
            unsigned char nonce[WIRE_NONCE_BYTES];
        } hello;
        struct {
            unsigned char nonce[WIRE_NONCE_BYTES], mac[WIRE_MAC_BYTES];
        } challenge;
        struct {
            unsigned char mac[WIRE_MAC_BYTES];
        } proof;
        struct wire_join join;
        struct {
            int seat;
            char address[TRANSPORT_ADDRESS_MAX];
        } refer;
        struct {
            char text[WIRE_TEXT_MAX];
        } wait, refuse;
        struct {
            int seat;
            struct wire_table table;
        } grant;
        struct {
            int seat;
            uint64_t instance;
            const void *offer; /* borrowed */
            size_t n_offer;
        } attach, attached;
        struct {
            uint64_t seats; /* bit per seat to which there are lanes */
        } joined;
        struct {
            int seat; /* the sender's */
            uint64_t instance;
        } mended;
        struct wire_beat beat;
        struct {
            uint64_t term;
            struct wire_table table;
        } propose;
        struct {
            uint64_t term;
            uint32_t epoch;
        } ack, commit;
        struct {
            uint64_t term;
        } prepare, reject;
        struct {
            uint64_t term, accepted_term;
            struct wire_table table;
        } promise;
        struct {
            enum fabric_topic topic;
            const void *data; /* borrowed */
            size_t n_bytes;
        } topic;
    };
};

/* Name of a type; "?" for numbers that are none. */
const char *wire_type_name(enum wire_type type);

/* Bytes of a message; *ret_bytes <= TRANSPORT_CONTROL_MAX. Errors: FERRY_ERR_LIMIT (a topic's data
 * over TRANSPORT_CONTROL_MAX - WIRE_TOPIC_BYTES, an offer over TRANSPORT_OFFER_MAX, terms that fill
 * the message). Values must be legal. Any thread. */
enum ferry_status wire_encode(const struct wire *message, unsigned char *ret_data,
                              size_t *ret_bytes) FERRY_MUST_CHECK;

/* Checks hostile bytes; *ret_message borrows from data. FERRY_ERR_FORMAT: err says which field;
 * FERRY_ERR_UNSUPPORTED: another version. Any thread. */
enum ferry_status wire_decode(struct wire *ret_message, const void *data, size_t n_bytes,
                              struct ferry_error *err) FERRY_MUST_CHECK;

/* ---- the table's sets, one bit per seat ---- */

static inline uint64_t seat_bit(int seat)
{
    return (uint64_t)1 << seat;
}

/* Holds a place: joining to draining. */
static inline bool seat_is_member(enum seat_state state)
{
    return state != SEAT_EMPTY && state != SEAT_DEAD;
}

uint64_t wire_table_members(const struct wire_table *table);

#endif
