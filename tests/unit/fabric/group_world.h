/* A world of processes for the group's state machine: a clock, a network with delays, cuts, stops
 * and deaths, all from one seed. What the fabric does around the machine (handshakes, closing of
 * connections, joining again) is done here in its simplest form. Test code only. */
#ifndef TESTS_UNIT_FABRIC_GROUP_WORLD_H
#define TESTS_UNIT_FABRIC_GROUP_WORLD_H

#include "../unit.h"

#include "fabric/group.h"

#include <stdbool.h>

enum { WORLD_PROCESSES = 2 * LIMIT_SEATS, WORLD_EPOCHS = 1 << 14 };

#define WORLD_MS ((uint64_t)1000000)

struct world_event;

struct world_process {
    struct group group;
    bool alive, ready;
    uint64_t id; /* its place on the network: a process, whatever its instance */
    uint64_t host;
    uint64_t skew_ns;      /* its clock against the world's */
    uint64_t stopped_ns;   /* until then it neither hears nor does anything */
    uint64_t closed_epoch; /* connections are in accord with */
    uint32_t last_epoch;
    uint64_t led_ns, ask_ns, tick_ns;
    int contact; /* process that it asks for a seat; -1: picks one */
    int wanted;
    uint64_t asks;                    /* instance that it wants to be; 0: wants nothing */
    uint64_t linked[WORLD_PROCESSES]; /* instance of the other end; 0: no connection */
    uint64_t conns[WORLD_PROCESSES];  /* number of that connection, the same at both ends */
};

struct world {
    uint64_t seed, random;
    uint64_t now_ns;
    size_t n_seats;
    struct group_limits limits;
    uint64_t delay_ns;                          /* longest of one message */
    struct world_process *processes;            /* [WORLD_PROCESSES] */
    bool cut[WORLD_PROCESSES][WORLD_PROCESSES]; /* from, to */
    uint64_t last_due[WORLD_PROCESSES][WORLD_PROCESSES];
    struct world_event **heap;
    size_t n_heap, heap_size;
    uint64_t n_events, n_conns;
    /* What every epoch was when it came into force first. */
    uint64_t hashes[WORLD_EPOCHS];
    int issuers[WORLD_EPOCHS];
    uint32_t top_epoch;
    bool may_freeze; /* faults that no group can survive were let happen */
};

void world_open(struct world *world, uint64_t seed, size_t n_seats);
void world_close(struct world *world);

uint64_t world_random(struct world *world, uint64_t below);

/* A new process founds (first) or asks for a seat until it has one; returns its number. */
int world_start(struct world *world, int wanted);
void world_kill(struct world *world, int process);
void world_stop(struct world *world, int process, uint64_t ns);
void world_cut(struct world *world, int from, int to, bool cut);
void world_heal(struct world *world);

/* Runs; checks after every event what must always hold. */
void world_run(struct world *world, uint64_t ns);

/* Runs until every process that lives is live by all, with one epoch and one issuer; false: not
 * within ns. */
bool world_settle(struct world *world, uint64_t ns);
/* Process of a seat by its own opinion; -1. */
int world_at(const struct world *world, int seat);
size_t world_alive(const struct world *world);
void world_print(const struct world *world);

#endif
