/* Ranks under test in one process: what happened to each connection is written down, and every wait
 * has a deadline by the transport's clock. Test code only. */
#ifndef TESTS_UNIT_FABRIC_CONTRACT_WORLD_H
#define TESTS_UNIT_FABRIC_CONTRACT_WORLD_H

#include "pattern.h"
#include "../unit.h"
#include "transport_contract.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { MAX_ENDS = 3, MAX_RECORDS = 64 };

struct end;

/* One end of a connection, from the first event or connect on. */
struct record {
    struct end *end;
    struct transport_conn *conn;
    bool closed;
    int n_accepted, n_connected, n_lost;
    size_t n_control, control_bytes;   /* come */
    size_t n_expected, expected_bytes; /* sent, by the case */
    size_t n_bad; /* control messages that were not fill(data, n_bytes, their number) */
};

struct end {
    struct world *world;
    struct transport *transport; /* NULL: destroyed */
    struct lane_bell *bell;
    char address[TRANSPORT_ADDRESS_MAX];
    struct record records[MAX_RECORDS];
    size_t n_records, n_events;
    void (*on_accepted)(struct end *end, struct record *record);
    void (*on_connected)(struct end *end, struct record *record);
    void (*on_control)(struct end *end, struct record *record);
    void (*on_lost)(struct end *end, struct record *record);
};

struct world {
    const struct contract_setup *setup;
    struct fabric_hub *hub;
    struct end ends[MAX_ENDS];
    size_t n_ends;
    uint64_t patience; /* deadlines are multiplied by it: sanitizers are slow */
};

struct pair {
    struct world *world;
    struct record *near, *far; /* who connected, who accepted */
};

/* n_threads: those that will poll or sleep, for sim. Ends with the case when something fails. */
struct world *world_open(const struct contract_setup *setup, size_t n_ends, size_t n_threads);
void world_close(struct world *world);

/* Runs everything that is on the way; the time is that of some round trips. */
void world_settle(struct world *world);

/* Polls all ends once; waits a little when nothing happens. */
void world_turn(struct world *world);
uint64_t world_now(const struct world *world);

/* The calling thread takes part in sim's clock from now on, or no longer (it joins others). */
void world_enter(const struct world *world);
void world_leave(const struct world *world);

enum { WAIT_DEADLINE_MS = 10000 };

/* Polls until the condition holds; fails the case at the deadline. */
#define WAIT_FOR(world, condition)                                                                \
    do {                                                                                          \
        uint64_t wait_end = world_now(world) + 1000000ull * WAIT_DEADLINE_MS * (world)->patience; \
        while (!(condition)) {                                                                    \
            if (world_now(world) > wait_end)                                                      \
                fail_msg("not within %d ms: %s", WAIT_DEADLINE_MS, #condition);                   \
            world_turn(world);                                                                    \
        }                                                                                         \
    } while (0)

struct record *end_connect(struct end *end, const char *address);
void end_close(struct end *end, struct record *record, bool keep_lanes);
void end_destroy(struct end *end);

/* A connection between two ends, and its lanes with these ring sizes. */
struct pair pair_open(struct world *world, size_t from, size_t to);
void pair_lanes(const struct pair *pair, size_t request_bytes, size_t reply_bytes);
struct lane *record_lane(const struct record *record, enum lane_channel channel,
                         enum lane_side side);

/* Bytes that tell message `number` from any other, at every position. */

/* contract_lanes.c */
int contract_lanes_run(const struct contract_setup *setup);

#endif
