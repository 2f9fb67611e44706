/* Ranks as threads over the fake group, for the tests of the exchange: each runs own rounds, serves
 * the others, and compares every output with one rank alone. Test code only. */
#ifndef TESTS_UNIT_EXCHANGE_CREW_H
#define TESTS_UNIT_EXCHANGE_CREW_H

#include "tests/unit/unit.h"

#include "exchange/exchange.h"
#include "tests/unit/exchange/fake_fabric.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

enum { HIDDEN = 600, EXPERTS = 13, TOP_K = 5, TOKENS = 37, LAYERS = 3, RANKS = 7 };

/* A router's decision and rows for TOKENS tokens. */
struct input {
    int32_t experts[TOKENS * TOP_K];
    float weights[TOKENS * TOP_K];
    float rows[TOKENS * HIDDEN];
    float out[TOKENS * HIDDEN];
};

/* A counter-based generator: splitmix64. */
uint64_t draw(uint64_t *state);
void make_input(struct input *in, uint64_t seed);
struct exchange_round_input round_of(struct input *in, size_t layer, size_t first, size_t n);

/* Expert e turns a row into row * (e + 1) + column / 8 + layer, whatever the batch. */
size_t fake_experts(void *arg, const struct exchange_job *job);

struct exchange_options options_of(struct fabric *fabric, const struct placement *placement);
/* An exchange of one rank. */
struct exchange *alone_on(struct device *on, bool bf16);

struct crew;

struct member {
    struct crew *crew;
    int seat;
    pthread_t thread;
    struct device *device;
    struct exchange *x;
    struct input *in;
    bool broken;     /* it cannot load experts */
    size_t n_short;  /* jobs whose last row its experts do not compute */
    size_t n_failed; /* of its rounds */
};

struct crew {
    struct fake_group *group;
    struct placement *placement;
    size_t n, n_rounds, tokens[RANKS];
    size_t per_host; /* ranks; rows for other hosts are bundled whatever they save. 0: one host */
    bool bf16, overlap, many_losses;
    uint64_t seed, deadline_ns; /* of a round; 0: 20 s */
    uint64_t gather_ns;         /* 0: a tenth of a job */
    atomic_size_t n_done, n_failed;
    atomic_int dead; /* seat whose thread only waits; -1: none */
    struct member members[RANKS];
};

/* Payloads: of any round at once; of one row with its pairs and the sums of one token. */
extern const size_t WIDE[LANE_N_CHANNELS], NARROW[LANE_N_CHANNELS];

/* Contiguous (seed 0) or random. */
struct placement *placed(size_t n_seats, size_t n_replicas, uint64_t seed);

void crew_start(struct crew *c, const size_t max_payload[LANE_N_CHANNELS]);
/* Runs n_rounds on every rank at once; n_failed counts errors and other bits. */
void crew_run(struct crew *c);
/* all_alive: every account must balance. */
void crew_end(struct crew *c, bool all_alive);

#endif
