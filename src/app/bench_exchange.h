/* What `ferry bench exchange` measures: rounds of one MoE layer over a group of ranks, without a
 * model. bench/exchange compares it with Open MPI; its README.md says what a round is.
 *
 * Why here: verb_bench_exchange.c makes the group and prints; this file knows tokens, experts and
 * clocks, and not how the ranks were started. */
#ifndef APP_BENCH_EXCHANGE_H
#define APP_BENCH_EXCHANGE_H

#include "base/limits.h"
#include "fabric/fabric.h"
#include "ferry/status.h"
#include "metric/metric.h"

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { BENCH_CASES_MAX = 32 };

/* What all ranks must agree on. */
struct bench_shape {
    size_t n_ranks;
    size_t tokens[BENCH_CASES_MAX]; /* of each rank, in a round */
    size_t n_cases;
    size_t n_experts, top_k, hidden, n_replicas;
    bool random; /* placement */
    uint64_t placement_seed;
    bool combine_bf16;
    bool summed;    /* the holder adds up experts' f32 rows, instead of scaling the row that came */
    size_t rounds;  /* that are timed; 0: as many as fit into seconds */
    double seconds; /* of timed rounds */
    int n_threads;
    size_t bundle_bytes; /* exchange_options.bundle_bytes; need not be agreed on */
};

/* Bytes of a lane's rings, at most. */
extern const size_t BENCH_LANE_BYTES;

/* One number of tokens, over all ranks. Times are in microseconds. */
struct bench_result {
    size_t tokens, rounds;
    double us_p50, us_p10, us_p90; /* of the rank whose median is the largest */
    double us_p50_rank0;
    double bytes_out;   /* of a rank in a round, both ways, with headers; mean over ranks */
    double max_error;   /* of any rank, relative to the largest sum */
    double largest_gap; /* that is allowed */
};

/* What another rank has said last. */
struct bench_word {
    uint32_t kind, phase;
    double values[6];
};

/* A rank's view of a run. The group is made by who calls; `words` is filled on the fabric's
 * thread. */
struct bench_rank {
    const struct bench_shape *shape;
    struct fabric *fabric;
    struct metric_registry *metrics;
    uint64_t spin_ns;     /* that waits may spin */
    uint32_t phase;       /* meetings so far */
    pthread_mutex_t lock; /* of words */
    struct bench_word words[LIMIT_SEATS];
};

/* The lanes that a group for this shape needs. */
void bench_lanes(const struct bench_shape *shape, struct transport_lanes *ret_lanes);

/* Takes a control message of another rank (FABRIC_TOPIC_APP); arg is the struct bench_rank. */
void bench_message(void *arg, int seat, uint32_t incarnation, const void *data, size_t n_bytes);

/* Runs every case together with all other ranks, which must be live. Seat 0 calls `done` after each
 * case. Errors: FERRY_ERR_PEER (a rank was lost), FERRY_ERR_TIMEOUT (err names rank and phase), and
 * those of the exchange. */
typedef void bench_done_fn(void *arg, const struct bench_result *result);
enum ferry_status bench_run(struct bench_rank *rank, bench_done_fn *done, void *arg,
                            struct ferry_error *err) FERRY_MUST_CHECK;

/* The verb, for verb_bench.c: argv[0] is "ferry bench exchange". */
int verb_bench_exchange(int argc, char **argv);

#endif
