/* Membership: who is in the group, decided together, without input, output or a clock.
 *
 * Why here: deaths, cuts, stopped processes and races between them are many more than any test
 * over real connections would meet, so the rules are a state machine that a seeded schedule drives:
 * in go messages, evidence about connections and the time, out come messages, and the time when it
 * wants to be asked again. It must not know transports, threads, keys or lanes.
 *
 * docs/membership.md has the rules with their reasons. In short: an epoch is the whole table of
 * seats; one member, the issuer, proposes the next one, and it is in force when every member that
 * can still believe itself in the group has acknowledged it; a new issuer needs the promise of a
 * majority of the members. One thread. */
#ifndef FABRIC_GROUP_H
#define FABRIC_GROUP_H

#include "fabric/wire.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct group_limits {
    uint64_t heartbeat_ns;
    uint64_t suspect_ns; /* silence until no new work is given */
    uint64_t dead_ns;    /* silence until given up; at least 4 heartbeats */
    uint64_t grant_ns;   /* that a joiner has to connect to all members */
};

/* Evidence about the process that holds a seat, and what it said last. */
struct group_peer {
    uint64_t instance;     /* whom it is about; 0: nobody */
    bool connected;        /* messages go through */
    bool lost;             /* the connection is broken */
    bool laneless;         /* mended: messages go, but lanes are gone for good */
    bool gone;             /* its process ended, known while this rank's own lease was valid */
    uint64_t heard_ns;     /* own clock: last message */
    uint64_t confirmed_ns; /* own clock: it has received what was sent then */
    uint64_t lease_ns;     /* own clock: while it is the issuer, this rank is a member until then */
    uint64_t moved_ns;     /* own clock: its progress counter moved, or it was not busy */
    uint64_t odd_ns;       /* own clock: since when it has reported broken roads; 0: none */
    uint64_t fed_ns;       /* own clock: last beat to it, which may have prolonged its lease */
    bool starved;          /* is to go, and gets no more beats, so that its lease ends */
    bool beaten;           /* `beat` holds something */
    struct wire_beat beat;
};

enum group_role { GROUP_FOLLOWER, GROUP_CANDIDATE, GROUP_ISSUER };

typedef void group_send_fn(void *arg, int seat, const struct wire *message);

struct group {
    struct group_limits limits;
    group_send_fn *send;
    void *arg;

    int seat;
    uint64_t instance;
    size_t n_seats;
    bool entered; /* found or enter was called */
    bool dropped; /* this instance was declared dead; nothing more happens until entered again */
    bool left;    /* this instance has drained; the same */

    struct wire_table committed; /* in force; epoch 0: none yet */
    struct wire_table accepted;  /* the last that was acknowledged */
    uint64_t accepted_term;
    uint64_t term; /* highest promised; counter * LIMIT_SEATS + seat of who asked */
    int leader;    /* whom the term was promised to; -1: nobody who still wants it */

    enum group_role role;
    bool proposing;    /* issuer: `accepted` is not in force yet */
    bool first;        /* issuer: no epoch of this term is in force yet */
    uint64_t base;     /* issuer: members when the proposal began */
    uint64_t acks;     /* issuer: who has acknowledged it */
    uint64_t promises; /* candidate: who has promised */
    uint64_t sent_ns;  /* of the last proposal or prepare, to resend */
    uint64_t asked_ns; /* of the first one, for leases */
    uint64_t refused;  /* candidate: highest term of a rejection */

    struct { /* issuer: the joiner that is on its way */
        uint64_t instance;
        int seat;
        uint64_t expires_ns;
        bool joined;
        char address[TRANSPORT_ADDRESS_MAX];
    } grant;

    struct group_peer peers[LIMIT_SEATS];
    uint64_t reported; /* own broken roads in the last beat; a change is told at once */
    bool was_out;
    uint64_t beat_ns; /* when the next beat is due */
    uint64_t ticked_ns;
    uint32_t wishes; /* WIRE_BEAT_READY, WIRE_BEAT_DRAIN, WIRE_BEAT_BUSY */
    uint64_t progress;
    uint32_t settled;
};

void group_init(struct group *group, const struct group_limits *limits, group_send_fn *send,
                void *arg);

/* This rank is the first. instance: random, not 0. */
void group_found(struct group *group, int seat, size_t n_seats, uint64_t instance,
                 const char *address, uint64_t now_ns);

/* This rank was granted a seat and has connections to all members of the table; it is a member when
 * an epoch says so. */
void group_enter(struct group *group, int seat, uint64_t instance, const struct wire_table *table,
                 uint64_t now_ns);

/* ---- evidence ---- */

/* A connection to the process that holds a seat, or will with the next epoch. */
void group_connected(struct group *group, int seat, uint64_t instance, uint64_t now_ns);
void group_lost(struct group *group, int seat, uint64_t instance, uint64_t now_ns);
/* There is a connection again, for messages only. */
void group_mended(struct group *group, int seat, uint64_t instance, uint64_t now_ns);
/* Its process has ended for sure. */
void group_gone(struct group *group, int seat, uint64_t instance, uint64_t now_ns);
/* A message of WIRE_BEAT..WIRE_REJECT from that process. */
void group_receive(struct group *group, int seat, uint64_t instance, const struct wire *message,
                   uint64_t now_ns);

/* ---- time ---- */

void group_tick(struct group *group, uint64_t now_ns);
/* When to tick at the latest. */
uint64_t group_next_ns(const struct group *group);

/* ---- joining, at a member ---- */

enum group_answer {
    GROUP_GRANTED,
    GROUP_WAIT,    /* ask again; *ret_text: why */
    GROUP_REFER,   /* *ret_seat is the issuer */
    GROUP_REFUSED, /* *ret_text: why */
};
/* join->wanted, instance and former count. text: WIRE_TEXT_MAX bytes. */
enum group_answer group_ask(struct group *group, const struct wire_join *join, uint64_t now_ns,
                            int *ret_seat, char *ret_text);
/* The joiner has lanes to `seats`. False: not the one that was granted, or some are missing. */
bool group_joined(struct group *group, uint64_t instance, uint64_t seats, const char *address,
                  uint64_t now_ns);
void group_give_up(struct group *group, uint64_t instance);

/* ---- what this rank wants ---- */

/* Sets and clears WIRE_BEAT_READY, DRAIN, BUSY; tells the others at once when something changed. */
void group_wish(struct group *group, uint32_t set, uint32_t clear, uint64_t now_ns);

/* The layers above have acted on every epoch up to this one. */
void group_settle(struct group *group, uint32_t epoch, uint64_t now_ns);

/* ---- what it sees ---- */

/* Members by the epoch in force; 0 when this rank is none of them. */
uint64_t group_members(const struct group *group);
bool group_is_member(const struct group *group);
/* May be given work: live or draining, connected, not silent. */
uint64_t group_live(const struct group *group, uint64_t now_ns);
/* The state with this rank's own suspicion laid over it. */
enum seat_state group_state(const struct group *group, int seat, uint64_t now_ns);
/* Who issues epochs; -1: this rank has no valid lease with it, so that it may be out already. */
int group_issuer(const struct group *group, uint64_t now_ns);
/* Age of the last message of a seat's holder; 0 for the own seat, UINT64_MAX when never heard. */
uint64_t group_heard_ago(const struct group *group, int seat, uint64_t now_ns);
/* How long a busy holder's progress counter has stood still; 0: it moves, or it has no work. */
uint64_t group_stalled(const struct group *group, int seat, uint64_t now_ns);

#endif
