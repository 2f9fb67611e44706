/* Baseline B: Ferry's own rows and groups, carried by Open MPI.
 *
 * A round: a token is quantised once; one A32 row (src/tensor/act.h) goes to each rank that has any
 * of its experts, with 8 bytes per pair; the holder reads every row and sends one f32 row per group
 * of the combine tree (a largest node all of whose chosen experts it has); the origin adds the
 * groups' rows and its own experts' in the tree's order.
 *
 * Experts are left out: a group's row is the row that came times the sum of its pairs' weights and
 * factors, made in one pass into the send buffer. With --holder summed, the rows of experts were
 * computed once per scene and are read from memory and added along the tree, sorted by expert, as
 * matmuls leave them: what a real layer does on top.
 *
 * Two roads: messages whose length the receiver learns from MPI (receives posted before the round,
 * no counts), or MPI_Alltoall of counts and MPI_Alltoallv.
 *
 * Why here: what Ferry gains by its row format alone must not be taken for its transport's merit.
 * It must not know mode A. */
#include "baseline.h"

#include "base/cpu.h"
#include "kernel/kernel.h"
#include "tensor/act.h"

#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TAG_DISPATCH = 1, TAG_RETURN = 2, FIRST_OF_ROW = 1, FIRST_OF_GROUP = 2 };

/* A message: head, rows, pairs. */
struct head {
    _Alignas(CACHE_LINE) uint32_t n_rows;
    uint32_t n_pairs, n_groups;
};

struct pair {
    uint16_t expert, flags;
    float weight;
};

/* What a rank sends to or gets from another. */
struct box {
    unsigned char *data;
    size_t most, used;
};

struct state {
    const struct shape *shape;
    const struct routing *scenes;
    const float *x;
    struct kernels kernels;
    size_t row_bytes, group_bytes;  /* of a row out, of a row back */
    struct box out[RANKS_MAX];      /* own tokens' rows; [rank]: for own experts, stays here */
    struct box in[RANKS_MAX];       /* others' rows; [rank]: out[rank] */
    struct box results[RANKS_MAX];  /* groups' rows for others */
    struct box returned[RANKS_MAX]; /* groups' rows from others */
    unsigned char *out_base, *in_base, *results_base, *returned_base;
    uint32_t n_returns[RANKS_MAX]; /* groups that each rank owes */
    int n_scenes;
    int32_t *slots[RANKS_MAX]; /* by source and pair: where the expert's row stands */
    int32_t *begin;            /* [experts + 1] */
    float **expert_rows;       /* by scene */
    MPI_Request posted[RANKS_MAX];
    bool is_posted;
    size_t bytes_out;
    uint64_t sink;
    float *wide;
};

static struct head *head_of(const struct box *box)
{
    return (struct head *)(void *)box->data;
}

static unsigned char *rows_of(const struct box *box)
{
    return box->data + sizeof(struct head);
}

static struct pair *pairs_of(const struct state *s, const struct box *box)
{
    return (struct pair *)(void *)(rows_of(box) + head_of(box)->n_rows * s->row_bytes);
}

/* ---- origin: rows out ---- */

/* Rows, pairs and groups per rank, so that pairs can stand right behind the rows. */
static void count_out(struct state *s, int scene)
{
    const struct shape *shape = s->shape;

    for (int r = 0; r < shape->n_ranks; r++)
        *head_of(&s->out[r]) = (struct head){0, 0, 0};
    for (int t = 0; t < shape->tokens; t++) {
        const int32_t *ids = s->scenes[scene].ids + (size_t)t * (size_t)shape->top_k;
        uint64_t seen = 0;

        for (int i = 0; i < shape->top_k; i++) {
            const int seat = shape->seat[ids[i]];

            head_of(&s->out[seat])->n_rows += (seen >> seat & 1) == 0;
            head_of(&s->out[seat])->n_pairs++;
            seen |= (uint64_t)1 << seat;
        }
    }
}

/* Quantises every token once and writes its rows and pairs. */
static void fill_out(struct state *s, int scene)
{
    const struct shape *shape = s->shape;
    unsigned char *row[RANKS_MAX];
    struct pair *pair[RANKS_MAX];

    for (int r = 0; r < shape->n_ranks; r++) {
        row[r] = rows_of(&s->out[r]);
        pair[r] = pairs_of(s, &s->out[r]);
    }
    for (int t = 0; t < shape->tokens; t++) {
        const size_t first = (size_t)t * (size_t)shape->top_k;
        const int32_t *ids = s->scenes[scene].ids + first;
        const unsigned char *made = NULL;
        uint8_t begin[TOP_K_MAX];
        uint64_t seen = 0;
        const int n_groups = tree_groups(shape, ids, shape->top_k, begin);

        for (int i = 0, g = 0; i < shape->top_k; i++) {
            const int seat = shape->seat[ids[i]];
            const bool is_first = g < n_groups && begin[g] == i;
            const bool is_new = (seen >> seat & 1) == 0;

            g += is_first;
            if (is_new && made == NULL) {
                s->kernels.quantize_a32(row[seat], s->x + (size_t)t * (size_t)shape->hidden,
                                        (size_t)shape->hidden);
                made = row[seat];
            } else if (is_new) {
                memcpy(row[seat], made, s->row_bytes);
            }
            row[seat] += is_new ? s->row_bytes : 0;
            seen |= (uint64_t)1 << seat;
            head_of(&s->out[seat])->n_groups += is_first;
            *pair[seat]++ = (struct pair){
                (uint16_t)ids[i],
                (uint16_t)((is_new ? FIRST_OF_ROW : 0) | (is_first ? FIRST_OF_GROUP : 0)),
                s->scenes[scene].weights[first + (size_t)i]};
        }
    }
    for (int r = 0; r < shape->n_ranks; r++) {
        s->out[r].used = (size_t)((unsigned char *)pair[r] - s->out[r].data);
        s->n_returns[r] = head_of(&s->out[r])->n_groups;
    }
}

/* ---- holder ---- */

/* Slots of all pairs that arrived, sorted by expert; returns how many there are. */
static int32_t place_pairs(struct state *s)
{
    const struct shape *shape = s->shape;
    int32_t at = 0;

    memset(s->begin, 0, ((size_t)shape->experts + 1) * sizeof *s->begin);
    for (int r = 0; r < shape->n_ranks; r++) {
        const struct pair *pairs = pairs_of(s, &s->in[r]);

        for (uint32_t i = 0; i < head_of(&s->in[r])->n_pairs; i++)
            s->begin[pairs[i].expert]++;
    }
    for (int e = 0; e <= shape->experts; e++) {
        const int32_t n = s->begin[e];

        s->begin[e] = at;
        at += n;
    }
    for (int r = 0; r < shape->n_ranks; r++) {
        const struct pair *pairs = pairs_of(s, &s->in[r]);

        for (uint32_t i = 0; i < head_of(&s->in[r])->n_pairs; i++)
            s->slots[r][i] = s->begin[pairs[i].expert]++;
    }
    return at;
}

/* What a row says, as floats. */
static void widen(const struct state *s, const unsigned char *row, float *ret)
{
    const size_t hidden = (size_t)s->shape->hidden;
    const float *scales = act_a32_scales(row, hidden);

    for (size_t c = 0; c < hidden; c++)
        ret[c] = (float)((const int8_t *)row)[c] * scales[c / ACT_BLOCK];
}

/* Every pair's row times its expert's factor; kept for the scene's later rounds. */
static void run_experts(struct state *s, int scene, int32_t n_slots)
{
    const size_t hidden = (size_t)s->shape->hidden;

    free(s->expert_rows[scene]);
    s->expert_rows[scene] = memory_take((size_t)n_slots * hidden * sizeof(float));
    for (int r = 0; r < s->shape->n_ranks; r++) {
        const struct pair *pairs = pairs_of(s, &s->in[r]);
        const unsigned char *row = rows_of(&s->in[r]) - s->row_bytes;

        for (uint32_t i = 0; i < head_of(&s->in[r])->n_pairs; i++) {
            float *to = s->expert_rows[scene] + (size_t)s->slots[r][i] * hidden;

            row += pairs[i].flags & FIRST_OF_ROW ? s->row_bytes : 0;
            widen(s, row, to);
            for (size_t c = 0; c < hidden; c++)
                to[c] *= expert_factor(pairs[i].expert);
        }
    }
}

/* Leaves of the group that begins at pair i of a source, whose row is `row`; *ret_next is the pair
 * behind it. Returns how many leaves it has. */
static int group_leaves(const struct state *s, int scene, int source, uint32_t i,
                        const unsigned char *row, uint32_t *ret_next, struct leaf *leaves,
                        int32_t *ids)
{
    const struct pair *pairs = pairs_of(s, &s->in[source]);
    const uint32_t n_pairs = head_of(&s->in[source])->n_pairs, first = i;
    int n = 0;

    if (!s->shape->sum_experts)
        leaves[0] = (struct leaf){row, 0.0f, LEAF_A32};
    for (; i < n_pairs && (i == first || !(pairs[i].flags & FIRST_OF_GROUP)); i++, n++) {
        if (s->shape->sum_experts) {
            leaves[n] = (struct leaf){s->expert_rows[scene] +
                                          (size_t)s->slots[source][i] * (size_t)s->shape->hidden,
                                      pairs[i].weight, LEAF_F32};
            ids[n] = pairs[i].expert;
        } else {
            leaves[0].weight += pairs[i].weight * expert_factor(pairs[i].expert);
        }
    }
    *ret_next = i;
    return s->shape->sum_experts ? n : 1;
}

/* One row per group that r sent, in the order in which it sent them. */
static void add_groups(struct state *s, int scene, int r)
{
    const struct pair *pairs = pairs_of(s, &s->in[r]);
    const uint32_t n_pairs = head_of(&s->in[r])->n_pairs;
    const unsigned char *row = rows_of(&s->in[r]) - s->row_bytes;
    unsigned char *to = s->results[r].data;

    for (uint32_t i = 0, next; i < n_pairs; i = next) {
        struct leaf leaves[TOP_K_MAX];
        int32_t ids[TOP_K_MAX];
        uint8_t left[TOP_K_MAX], right[TOP_K_MAX];
        int n;

        row += pairs[i].flags & FIRST_OF_ROW ? s->row_bytes : 0;
        n = group_leaves(s, scene, r, i, row, &next, leaves, ids);
        (void)tree_steps(ids, n, s->shape->experts, left, right);
        if (s->shape->combine_bf16) {
            tree_sum(leaves, n, left, right, s->shape->hidden, s->wide);
            to_bf16((uint16_t *)(void *)to, s->wide, s->shape->hidden);
        } else {
            tree_sum(leaves, n, left, right, s->shape->hidden, (float *)(void *)to);
        }
        to += s->group_bytes;
    }
    s->results[r].used = (size_t)(to - s->results[r].data);
}

/* ---- origin: rows back ---- */

/* Where the next things of each rank stand while tokens are added up in order. */
struct cursor {
    const unsigned char *back[RANKS_MAX];
    const unsigned char *own_row;
    uint32_t own_pair;
};

/* Leaves of a token: its own experts', and a row for each group that came back. */
static int token_leaves(const struct state *s, int scene, size_t token, struct cursor *at,
                        struct leaf *leaves, int32_t *ids)
{
    const struct shape *shape = s->shape;
    const int32_t *chosen = s->scenes[scene].ids + token * (size_t)shape->top_k;
    uint8_t begin[TOP_K_MAX];
    const int n_groups = tree_groups(shape, chosen, shape->top_k, begin);
    int n = 0;

    for (int g = 0; g < n_groups; g++) {
        const int first = chosen[begin[g]], seat = shape->seat[first];

        if (seat == shape->rank) {
            const uint16_t flags = pairs_of(s, &s->in[seat])[at->own_pair].flags;

            at->own_row += flags & FIRST_OF_ROW ? s->row_bytes : 0;
            ids[n] = first;
            n += group_leaves(s, scene, seat, at->own_pair, at->own_row, &at->own_pair, leaves + n,
                              ids + n);
        } else {
            leaves[n] =
                (struct leaf){at->back[seat], 1.0f, shape->combine_bf16 ? LEAF_BF16 : LEAF_F32};
            at->back[seat] += s->group_bytes;
            ids[n++] = first;
        }
    }
    return n;
}

static void add_tokens(struct state *s, int scene, float *out)
{
    const struct shape *shape = s->shape;
    struct cursor at = {.own_row = rows_of(&s->in[shape->rank]) - s->row_bytes};

    for (int r = 0; r < shape->n_ranks; r++)
        at.back[r] = s->returned[r].data;
    for (size_t t = 0; t < (size_t)shape->tokens; t++) {
        struct leaf leaves[TOP_K_MAX];
        int32_t ids[TOP_K_MAX];
        uint8_t left[TOP_K_MAX], right[TOP_K_MAX];
        const int n = token_leaves(s, scene, t, &at, leaves, ids);

        (void)tree_steps(ids, n, shape->experts, left, right);
        tree_sum(leaves, n, left, right, shape->hidden, out + t * (size_t)shape->hidden);
    }
}

/* ---- the roads ---- */

static void post_receives(struct state *s)
{
    for (int r = 0, n = 0; r < s->shape->n_ranks; r++) {
        if (r != s->shape->rank)
            MPI_Irecv(s->in[r].data, (int)s->in[r].most, MPI_BYTE, r, TAG_DISPATCH, MPI_COMM_WORLD,
                      &s->posted[n++]);
    }
    s->is_posted = true;
}

/* Sends boxes to all others while the receives that were posted come in. */
static void send_and_wait(struct state *s, const struct box *boxes, int tag, MPI_Request *receives)
{
    const int n = s->shape->n_ranks - 1;
    MPI_Request sends[RANKS_MAX];

    for (int i = 1; i <= n; i++) {
        const int r = (s->shape->rank + i) % s->shape->n_ranks;

        MPI_Isend(boxes[r].data, (int)boxes[r].used, MPI_BYTE, r, tag, MPI_COMM_WORLD,
                  &sends[i - 1]);
    }
    MPI_Waitall(n, receives, MPI_STATUSES_IGNORE);
    MPI_Waitall(n, sends, MPI_STATUSES_IGNORE);
}

/* Alltoallv from one set of boxes into another; sizes are known, own boxes stay. */
static void all_to_all(struct state *s, unsigned char *from, const struct box *sent,
                       unsigned char *to, const struct box *received)
{
    int n_out[RANKS_MAX], at_out[RANKS_MAX], n_in[RANKS_MAX], at_in[RANKS_MAX];

    for (int r = 0; r < s->shape->n_ranks; r++) {
        const bool other = r != s->shape->rank;

        n_out[r] = other ? (int)sent[r].used : 0;
        at_out[r] = other ? (int)(sent[r].data - from) : 0;
        n_in[r] = other ? (int)received[r].used : 0;
        at_in[r] = other ? (int)(received[r].data - to) : 0;
    }
    MPI_Alltoallv(from, n_out, at_out, MPI_BYTE, to, n_in, at_in, MPI_BYTE, MPI_COMM_WORLD);
}

static void dispatch(struct state *s)
{
    int32_t n_out[RANKS_MAX], n_in[RANKS_MAX];

    if (s->shape->point_to_point) {
        send_and_wait(s, s->out, TAG_DISPATCH, s->posted);
        return;
    }
    for (int r = 0; r < s->shape->n_ranks; r++)
        n_out[r] = (int32_t)s->out[r].used;
    MPI_Alltoall(n_out, 1, MPI_INT32_T, n_in, 1, MPI_INT32_T, MPI_COMM_WORLD);
    for (int r = 0; r < s->shape->n_ranks; r++) {
        if (r != s->shape->rank)
            s->in[r].used = (size_t)n_in[r];
    }
    all_to_all(s, s->out_base, s->out, s->in_base, s->in);
}

static void mode_round(void *state, int scene, bool compute, float *out)
{
    struct state *s = state;
    const int rank = s->shape->rank;
    MPI_Request receives[RANKS_MAX];

    if (s->shape->point_to_point && !s->is_posted)
        post_receives(s);
    count_out(s, scene);
    fill_out(s, scene);
    for (int r = 0, n = 0; r < s->shape->n_ranks; r++) { /* before anybody can send them */
        s->returned[r].used = s->n_returns[r] * s->group_bytes;
        if (s->shape->point_to_point && r != rank)
            MPI_Irecv(s->returned[r].data, (int)s->returned[r].used, MPI_BYTE, r, TAG_RETURN,
                      MPI_COMM_WORLD, &receives[n++]);
    }
    dispatch(s);
    s->in[rank] = s->out[rank];
    if (s->shape->sum_experts) { /* else group_leaves' rows are read */
        for (int r = 0; r < s->shape->n_ranks; r++)
            s->sink += touch(rows_of(&s->in[r]), head_of(&s->in[r])->n_rows * s->row_bytes);
        const int32_t n_slots = place_pairs(s);

        if (compute)
            run_experts(s, scene, n_slots);
    }
    for (int r = 0; r < s->shape->n_ranks; r++) {
        if (r != rank)
            add_groups(s, scene, r);
    }
    if (s->shape->point_to_point) {
        post_receives(s); /* of the next round */
        send_and_wait(s, s->results, TAG_RETURN, receives);
    } else {
        all_to_all(s, s->results_base, s->results, s->returned_base, s->returned);
    }
    add_tokens(s, scene, out);

    s->bytes_out = 0;
    for (int r = 0; r < s->shape->n_ranks; r++) {
        if (r != rank)
            s->bytes_out += s->out[r].used + s->results[r].used;
    }
}

/* ---- setting up ---- */

/* Cuts one piece of memory into boxes of a size. */
static unsigned char *make_boxes(const struct shape *shape, struct box *boxes, size_t most)
{
    const size_t size = (most + CACHE_LINE - 1) / CACHE_LINE * CACHE_LINE;
    unsigned char *base = memory_take(size * (size_t)shape->n_ranks);

    if (size * (size_t)shape->n_ranks > INT32_MAX) {
        fprintf(stderr, "mpi_baseline: messages pass 2 GiB; take fewer --tokens\n");
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
    for (int r = 0; r < shape->n_ranks; r++)
        boxes[r] = (struct box){base + (size_t)r * size, size, 0};
    return base;
}

/* Rows that a rank returns to another in any scene, at most, over what this rank takes part in. */
static uint32_t most_returns(const struct state *s, int n_scenes)
{
    const struct shape *shape = s->shape;
    uint32_t most = 0;

    for (int scene = 0; scene < n_scenes; scene++) {
        uint32_t gets[RANKS_MAX] = {0}, owes[RANKS_MAX];

        for (int t = 0; t < shape->tokens; t++) {
            const int32_t *ids = s->scenes[scene].ids + (size_t)t * (size_t)shape->top_k;
            uint8_t begin[TOP_K_MAX];
            const int n_groups = tree_groups(shape, ids, shape->top_k, begin);

            for (int g = 0; g < n_groups; g++)
                gets[shape->seat[ids[begin[g]]]]++;
        }
        MPI_Alltoall(gets, 1, MPI_UINT32_T, owes, 1, MPI_UINT32_T, MPI_COMM_WORLD);
        for (int r = 0; r < shape->n_ranks; r++) {
            most = gets[r] > most ? gets[r] : most;
            most = owes[r] > most ? owes[r] : most;
        }
    }
    return most;
}

static void *mode_create(const struct shape *shape, const struct routing *scenes, int n_scenes,
                         const float *x)
{
    struct state *s = memory_take(sizeof *s);
    const size_t tokens = (size_t)shape->tokens, k = (size_t)shape->top_k;
    size_t most, most_back;

    s->shape = shape;
    s->scenes = scenes;
    s->n_scenes = n_scenes;
    s->x = x;
    kernels_init(&s->kernels, cpu_best_level());
    s->row_bytes = act_row_bytes(ACT_FORMAT_A32, (size_t)shape->hidden);
    s->group_bytes = (size_t)shape->hidden * (shape->combine_bf16 ? 2 : 4);
    most = sizeof(struct head) + tokens * (s->row_bytes + k * sizeof(struct pair));
    most_back = most_returns(s, n_scenes) * s->group_bytes;
    s->out_base = make_boxes(shape, s->out, most);
    s->in_base = make_boxes(shape, s->in, most);
    s->results_base = make_boxes(shape, s->results, most_back);
    s->returned_base = make_boxes(shape, s->returned, most_back);
    for (int r = 0; r < shape->n_ranks; r++)
        s->slots[r] = memory_take(tokens * k * sizeof(int32_t));
    s->begin = memory_take(((size_t)shape->experts + 1) * sizeof *s->begin);
    s->expert_rows = memory_take((size_t)n_scenes * sizeof *s->expert_rows);
    s->wide = memory_take((size_t)shape->hidden * sizeof *s->wide);
    return s;
}

static void mode_destroy(void *state)
{
    struct state *s = state;

    for (int i = 0; s->is_posted && i + 1 < s->shape->n_ranks; i++) {
        MPI_Cancel(&s->posted[i]);
        MPI_Wait(&s->posted[i], MPI_STATUS_IGNORE);
    }
    for (int r = 0; r < s->shape->n_ranks; r++)
        free(s->slots[r]);
    for (int i = 0; i < s->n_scenes; i++)
        free(s->expert_rows[i]);
    free(s->out_base);
    free(s->in_base);
    free(s->results_base);
    free(s->returned_base);
    free(s->begin);
    free(s->expert_rows);
    free(s->wide);
    free(s);
}

static void mode_direct(void *state, int scene, int token, bool computed, float *ret_sum)
{
    struct state *s = state;
    const size_t hidden = (size_t)s->shape->hidden, k = (size_t)s->shape->top_k;
    unsigned char *row = memory_take(s->row_bytes);
    float *wide = memory_take(hidden * sizeof *wide);

    (void)computed; /* the rows of computed experts stay */
    s->kernels.quantize_a32(row, s->x + (size_t)token * hidden, hidden);
    widen(s, row, wide);
    memset(ret_sum, 0, hidden * sizeof *ret_sum);
    for (size_t i = (size_t)token * k; i < ((size_t)token + 1) * k; i++) {
        const float factor = expert_factor(s->scenes[scene].ids[i]) * s->scenes[scene].weights[i];

        for (size_t c = 0; c < hidden; c++)
            ret_sum[c] += factor * wide[c];
    }
    free(row);
    free(wide);
}

static size_t mode_bytes(void *state)
{
    return ((struct state *)state)->bytes_out;
}

const struct mode mode_b = {"B", mode_create, mode_round, mode_destroy, mode_direct, mode_bytes};
