/* What the two baselines of bench/exchange share: the shape of a run, who routes what where, the
 * combine tree, memory, and the check of a sum.
 *
 * Why here: mode A (mode_a.c) and mode B (mode_b.c) must be given the same tokens, experts and
 * weights, and must not know each other. Nothing here is Ferry's exchange. */
#ifndef BENCH_EXCHANGE_BASELINE_H
#define BENCH_EXCHANGE_BASELINE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { TOP_K_MAX = 16, EXPERTS_MAX = 4096, RANKS_MAX = 64, CACHE_LINE = 64 };

struct shape {
    int rank, n_ranks;
    int tokens, experts, top_k, hidden;
    uint64_t seed;
    bool random_placement;
    bool sum_experts;             /* mode B: holders add up experts' f32 rows */
    bool combine_bf16;            /* mode B: rows come back as bf16 */
    bool point_to_point;          /* mode B: messages without a count first, instead of Alltoallv */
    bool stream_stores;           /* mode A: large gathers bypass the cache */
    int16_t seat[EXPERTS_MAX];    /* who holds an expert */
    int32_t order[EXPERTS_MAX];   /* experts by holder, then by number */
    int32_t begin[RANKS_MAX + 1]; /* holder r: order[begin[r]] to order[begin[r + 1] - 1] */
};

/* The tokens of one rank in one scene: every token k distinct experts, ascending. */
struct routing {
    int32_t *ids;   /* [tokens, top_k] */
    float *weights; /* [tokens, top_k], sum 1 */
};

/* Fills seat, order and begin. Contiguous: expert e on rank e * n_ranks / experts. */
void shape_place(struct shape *shape);

/* Draws the routing of a rank in a scene; the same numbers on every rank and in every mode. */
void routing_draw(const struct shape *shape, uint64_t scene, int rank, struct routing *ret);
void routing_free(struct routing *routing);

/* Element c of token t's hidden vector on a rank, about uniform in (-1, 1). */
void tokens_draw(const struct shape *shape, int rank, float *ret_x);

/* What expert e makes of a row: the row times this. Few bits, so that products are exact or nearly.
 */
static inline float expert_factor(int expert)
{
    return 1.0f + (float)(expert % 8) * 0.125f;
}

/* Order of additions along the tree over [0, experts) whose node [lo, hi) is split at lo + (hi -
 * lo) / 2. leaves [n] ascending; step i adds row right[i] into row left[i]; the sum ends in row 0.
 * Returns n - 1. */
int tree_steps(const int32_t *leaves, int n, int experts, uint8_t *left, uint8_t *right);

/* Cuts ids [k] into groups: a largest node all of whose chosen experts are on one rank is one.
 * ret_begin[i] is the first id of group i; returns how many there are. */
int tree_groups(const struct shape *shape, const int32_t *ids, int k, uint8_t *ret_begin);

/* What is added: a row in one of three formats, and its weight. */
enum leaf_format { LEAF_F32, LEAF_BF16, LEAF_A32 };
struct leaf {
    const void *row;
    float weight;
    enum leaf_format format;
};

/* Adds leaves [n] of hidden columns, each times its weight, in the order of the steps, into out;
 * hidden is a multiple of 32. */
void tree_sum(const struct leaf *leaves, int n, const uint8_t *left, const uint8_t *right,
              int hidden, float *out);

/* Zeroed memory in huge pages where there are any, for free(); ends the program when there is none.
 */
void *memory_take(size_t n_bytes);

/* Reads a word of every cache line. */
uint64_t touch(const void *data, size_t n_bytes);

/* Rounds to bf16, nearest even; finite numbers only. hidden is a multiple of 16. */
void to_bf16(uint16_t *dst, const float *src, int hidden);
void from_bf16(float *dst, const uint16_t *src, int hidden);

/* A mode: state, a round, and what the check must know. */
struct mode {
    const char *name;
    void *(*create)(const struct shape *shape, const struct routing *scenes, int n_scenes,
                    const float *x);
    /* One round of a scene; out [tokens, hidden]. compute: experts are computed (and the results
     * kept for later rounds of the scene); otherwise results are what is there already. */
    void (*round)(void *state, int scene, bool compute, float *out);
    void (*destroy)(void *state);
    /* The sum of token t in a scene by the shortest calculation, from the mode's own row format. */
    void (*direct)(void *state, int scene, int token, bool computed, float *ret_sum);
    /* Bytes that this rank gave to MPI for other ranks in the last round, both ways. */
    size_t (*bytes_out)(void *state);
};

extern const struct mode mode_a, mode_b;

#endif
