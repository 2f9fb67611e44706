/* Adding up a round's tokens: each as soon as its last sum has come back. See exchange.h.
 *
 * A sum is read once, where it lies: in the window of the lane, which is given back when all its
 * tokens are added up, or, of experts computed here, as their rows in the job (`lazy`), until the
 * job's memory is needed for another one. */
#include "base/assert.h"
#include "base/size.h"
#include "exchange/exchange.h"
#include "exchange/impl.h"

#include <string.h>

void combine_begin(struct round *round)
{
    const struct plan *plan = &round->plan;

    round->n_own_sums = 0;
    round->lazy_part = SIZE_MAX;
    memset(round->n_leaves, 0, plan->n_tokens * sizeof *round->n_leaves);
    memset(round->n_missing, 0, plan->n_tokens * sizeof *round->n_missing);
    combine_expect(round, 0);
}

void combine_expect(struct round *round, size_t first_part)
{
    const struct plan *plan = &round->plan;

    for (size_t i = first_part; i < plan->n_parts; i++) {
        struct part *part = &round->plan.parts[i];
        part->n_open = part->n_groups;
        for (size_t g = 0; g < part->n_groups; g++)
            round->n_missing[plan->groups[part->first_group + g].token]++;
    }
}

void combine_forget(struct round *round, size_t part)
{
    const struct plan *plan = &round->plan;

    for (size_t g = 0; g < plan->parts[part].n_groups; g++)
        round->n_missing[plan->groups[plan->parts[part].first_group + g].token]--;
}

/* ---- tokens ---- */

/* A group becomes a leaf of its token, ids ascending. Returns whether it was the last one. */
static bool add_leaf(struct round *round, size_t part, size_t g)
{
    const struct plan *plan = &round->plan;
    size_t index = plan->parts[part].first_group + g;
    const struct plan_group *group = &plan->groups[index];
    int32_t id = plan->pairs[group->first_pair].expert;
    struct round_leaf *leaves = round->leaves + group->token * plan->top_k;
    size_t at = round->n_leaves[group->token]++;

    FERRY_ASSERT(at < plan->top_k);
    for (; at > 0 && leaves[at - 1].id > id; at--)
        leaves[at] = leaves[at - 1];
    leaves[at] = (struct round_leaf){id, (uint32_t)part, (uint32_t)index};
    return --round->n_missing[group->token] == 0;
}

/* Leaves of a group, whose columns begin at `col`: a node that is here, or the rows of the job.
 * `wide` [TREE_COLS] is for a node that has to be made. Returns how many. */
static size_t group_leaves(const struct exchange *x, const struct round *round,
                           const struct round_leaf *leaf, size_t col, size_t n_cols,
                           struct tree_leaf *ret_leaves, int32_t *ret_ids, float *wide)
{
    const struct part *part = &round->plan.parts[leaf->part];
    const struct plan_group *group = &round->plan.groups[leaf->group];

    if (leaf->part == round->lazy_part) {
        size_t first = group->first_pair - part->first_pair;
        return job_leaves(&x->job, &round->lazy, 0, first, first + group->n_pairs, col, n_cols,
                          ret_leaves, ret_ids, wide);
    }
    size_t bytes = part->sums_bf16 ? sizeof(uint16_t) : sizeof(float);
    size_t at = (leaf->group - part->first_group) * x->options.hidden + col;
    ret_leaves[0] = (struct tree_leaf){.row = (const unsigned char *)part->sums + at * bytes,
                                       .is_node = true,
                                       .is_bf16 = part->sums_bf16};
    ret_ids[0] = leaf->id;
    return 1;
}

struct combine_arg {
    struct exchange *x;
    const struct round *round;
    size_t item_cols, n_col_items;
    atomic_size_t n_combined; /* rows that entered a sum; counted on the first columns only */
};

/* Columns of a token's sum. Returns the rows in it. */
static size_t combine_token(const struct combine_arg *a, size_t token, size_t col, size_t n_cols,
                            float *scratch)
{
    const struct exchange *x = a->x;
    const struct round *round = a->round;
    const struct round_leaf *l = round->leaves + token * round->plan.top_k;
    float *out = round->input.out + token * x->options.hidden + col;
    struct tree_leaf leaves[LIMIT_TOP_K];
    int32_t ids[LIMIT_TOP_K];
    size_t n_lazy = 0, n_rows = 0;

    for (size_t i = 0; i < round->n_leaves[token]; i++) {
        n_lazy += l[i].part == round->lazy_part;
        n_rows += round->plan.groups[l[i].group].n_pairs;
    }
    /* A node that is made on the way is made where the sum goes; further ones in scratch. */
    size_t step = x->options.sum_group != NULL && n_lazy > 1 ? TREE_COLS : n_cols;
    for (size_t at = 0; at < n_cols; at += step) {
        size_t width = min_size(step, n_cols - at), n = 0;
        for (size_t i = 0; i < round->n_leaves[token]; i++)
            n += group_leaves(x, round, &l[i], col + at, width, leaves + n, ids + n,
                              n_lazy > 1 ? scratch + n * TREE_COLS : out + at);
        if (tree_sum(device_kernels(x->device), leaves, ids, n, round->plan.n_experts, 0, width,
                     x->options.combine_bf16, out + at, TREE_F32, scratch) != n)
            return 0;
    }
    return n_rows;
}

/* Items are (ready token, columns). */
static void combine_items(void *arg, size_t begin, size_t end, int thread_index)
{
    struct combine_arg *a = arg;
    float scratch[LIMIT_TOP_K * TREE_COLS];
    size_t hidden = a->x->options.hidden, n_combined = 0;

    (void)thread_index;
    for (size_t item = begin; item < end; item++) {
        size_t token = a->round->ready[item / a->n_col_items];
        size_t col = item % a->n_col_items * a->item_cols;
        size_t n = combine_token(a, token, col, min_size(a->item_cols, hidden - col), scratch);
        if (col == 0)
            n_combined += n;
    }
    atomic_fetch_add_explicit(&a->n_combined, n_combined, memory_order_relaxed);
}

void combine_part(struct exchange *x, struct round *round, size_t part)
{
    struct plan *plan = &round->plan;
    size_t n_ready = 0;

    for (size_t g = 0; g < plan->parts[part].n_groups; g++) {
        if (add_leaf(round, part, g))
            round->ready[n_ready++] = plan->groups[plan->parts[part].first_group + g].token;
    }
    if (n_ready == 0)
        return;
    struct combine_arg arg = {
        .x = x, .round = round, .item_cols = job_item_cols(x->device, n_ready, x->options.hidden)};
    arg.n_col_items = div_up(x->options.hidden, arg.item_cols);
    device_for(x->device, n_ready * arg.n_col_items, n_ready >= 64 ? 4 : 1, combine_items, &arg);
    round->combined += atomic_load_explicit(&arg.n_combined, memory_order_relaxed);
    for (size_t t = 0; t < n_ready; t++) {
        const struct round_leaf *l = round->leaves + round->ready[t] * plan->top_k;
        for (size_t i = 0; i < round->n_leaves[round->ready[t]]; i++) {
            struct part *done = &plan->parts[l[i].part];
            if (--done->n_open > 0 || done->held < 0)
                continue;
            serve_done(x, &x->inboxes[done->seat][LANE_REPLY], (size_t)done->held);
            done->held = -1;
        }
    }
}

/* ---- sums that cannot stay where they are ---- */

static float *take_own_sums(struct exchange *x, struct round *round, size_t n)
{
    float *sums = round->own_sums + round->n_own_sums * x->options.hidden;

    FERRY_ASSERT(round->n_own_sums + n <= round->plan.max_slots);
    round->n_own_sums += n;
    return sums;
}

void combine_keep(struct exchange *x, struct round *round, size_t part)
{
    struct part *p = &round->plan.parts[part];
    float *copy = take_own_sums(x, round, p->n_groups);

    memcpy(copy, p->sums, p->n_groups * impl_sum_bytes(x));
    p->sums = copy;
    p->held = -1;
}

void combine_flush(struct exchange *x)
{
    for (size_t r = 0; x->options.fabric != NULL && r < EXCHANGE_ROUNDS; r++) {
        struct round *round = &x->rounds[r];
        if (!round->open || round->lazy_part == SIZE_MAX)
            continue;
        struct part *part = &round->plan.parts[round->lazy_part];
        if (part->n_open > 0) {
            float *sums = take_own_sums(x, round, part->n_groups);
            (void)job_sums(&x->job, &round->lazy, 0, sums, TREE_F32);
            part->sums = sums;
        }
        round->lazy_part = SIZE_MAX;
    }
}
