/* Holders, groups and messages of a round. See plan.h. */
#include "exchange/plan.h"

#include "base/assert.h"
#include "base/size.h"
#include "exchange/tree.h"

#include <string.h>

/* How often every pair of a round may change its holder. */
enum { PLAN_AGAIN = 4 };

static size_t most_pairs(size_t max_slots, bool many_seats)
{
    return many_seats ? max_slots * PLAN_AGAIN : max_slots;
}

static size_t most_parts(size_t max_slots, bool many_seats)
{
    return many_seats ? max_slots + PLAN_AGAIN * LIMIT_SEATS : 1;
}

bool plan_create(struct plan *plan, struct arena *arena, size_t max_slots, bool many_seats)
{
    *plan = (struct plan){.max_slots = max_slots,
                          .max_pairs = most_pairs(max_slots, many_seats),
                          .max_parts = most_parts(max_slots, many_seats)};
    plan->ids = arena_array(arena, max_slots, sizeof *plan->ids);
    plan->weights = arena_array(arena, max_slots, sizeof *plan->weights);
    plan->pairs = arena_array(arena, plan->max_pairs, sizeof *plan->pairs);
    plan->row_token = arena_array(arena, plan->max_pairs, sizeof *plan->row_token);
    plan->groups = arena_array(arena, plan->max_pairs, sizeof *plan->groups);
    plan->parts = arena_array(arena, plan->max_parts, sizeof *plan->parts);
    plan->unit_seats = arena_array(arena, max_slots, sizeof *plan->unit_seats);
    return plan->ids != NULL && plan->weights != NULL && plan->pairs != NULL &&
           plan->row_token != NULL && plan->groups != NULL && plan->parts != NULL &&
           plan->unit_seats != NULL;
}

size_t plan_bytes(size_t max_slots, bool many_seats)
{
    return max_slots * (sizeof(int32_t) + sizeof(float) + sizeof(int16_t)) +
           most_pairs(max_slots, many_seats) *
               (sizeof(struct exchange_pair) + sizeof(uint32_t) + sizeof(struct plan_group)) +
           most_parts(max_slots, many_seats) * sizeof(struct part);
}

/* A token's pairs in ascending expert order: k is small, insertion sort. */
static void sort_token(int32_t *ids, float *weights, size_t k)
{
    for (size_t i = 1; i < k; i++) {
        int32_t id = ids[i];
        float weight = weights[i];
        size_t j = i;
        for (; j > 0 && ids[j - 1] > id; j--) {
            ids[j] = ids[j - 1];
            weights[j] = weights[j - 1];
        }
        ids[j] = id;
        weights[j] = weight;
    }
}

/* Pairs that get their holders together: a token's, or those of a group that is planned again.
 * `seats` is filled by choose(). */
struct unit {
    uint32_t token;
    size_t n;
    const int32_t *ids;
    const float *weights;
    int16_t *seats;
};

/* A source of units. The second pass sees the seats of the first. */
struct units {
    const struct plan *plan;
    bool again;
    size_t first_group, n; /* again: of these groups */
    int32_t *ids;          /* again: [LIMIT_TOP_K] */
    float *weights;        /* again: the same */
    size_t n_seats_used;   /* of plan.unit_seats */
};

static struct unit unit_at(struct units *u, size_t i)
{
    const struct plan *p = u->plan;

    if (!u->again)
        return (struct unit){.token = (uint32_t)i,
                             .n = p->top_k,
                             .ids = p->ids + i * p->top_k,
                             .weights = p->weights + i * p->top_k,
                             .seats = p->unit_seats + i * p->top_k};
    const struct plan_group *g = &p->groups[u->first_group + i];
    for (size_t j = 0; j < g->n_pairs; j++) {
        u->ids[j] = p->pairs[g->first_pair + j].expert;
        u->weights[j] = p->pairs[g->first_pair + j].weight;
    }
    if (i == 0)
        u->n_seats_used = 0;
    struct unit unit = {.token = g->token,
                        .n = g->n_pairs,
                        .ids = u->ids,
                        .weights = u->weights,
                        .seats = p->unit_seats + u->n_seats_used};
    u->n_seats_used += g->n_pairs;
    return unit;
}

static bool is_better(int seat, int than, uint64_t used, const struct plan_holders *holders,
                      const size_t *load)
{
    bool here = (used >> seat & 1) != 0, there = (used >> than & 1) != 0;

    if (holders->links[seat] != holders->links[than])
        return holders->links[seat] < holders->links[than];
    return here != there ? here : load[seat] < load[than];
}

/* used: seats that the token goes to anyway. */
static int pick_seat(uint64_t seats, uint64_t used, const struct plan_holders *holders,
                     const size_t *load)
{
    int best = -1;

    if ((seats >> holders->self & 1) != 0)
        return holders->self;
    for (; seats != 0; seats &= seats - 1) {
        int seat = __builtin_ctzll(seats);
        if (best < 0 || is_better(seat, best, used, holders, load))
            best = seat;
    }
    return best;
}

/* Fills unit->seats and counts into load; returns the seats that were chosen. */
static uint64_t choose(const struct unit *unit, const struct plan_holders *holders, size_t *load)
{
    uint64_t used = 0;

    for (size_t j = 0; j < unit->n; j++) {
        int seat = holders->seats == NULL
                       ? holders->self
                       : pick_seat(holders->seats[unit->ids[j]], used, holders, load);
        FERRY_ASSERT(seat >= 0);
        used |= UINT64_C(1) << seat;
        unit->seats[j] = (int16_t)seat;
        load[seat]++;
    }
    return used;
}

/* Cuts a seat's pairs [first, last) into parts. Their rows hold tokens so far. */
static bool cut_parts(struct plan *plan, int seat, size_t first, size_t last, bool is_self,
                      const struct plan_limits *limits)
{
    for (size_t at = first; at < last;) {
        if (plan->n_parts == plan->max_parts)
            return false;
        struct part *part = &plan->parts[plan->n_parts++];
        *part = (struct part){.seat = seat,
                              .first_pair = at,
                              .first_row = plan->n_rows,
                              .first_group = plan->n_groups,
                              .via = -1,
                              .held = -1};
        while (at < last) {
            size_t end = at + 1;
            while (end < last && plan->pairs[end].begins == 0)
                end++;
            uint32_t token = plan->pairs[at].row;
            bool new_row =
                part->n_rows == 0 || plan->row_token[part->first_row + part->n_rows - 1] != token;
            size_t n_rows = part->n_rows + new_row, n_pairs = end - part->first_pair;
            size_t bytes = n_rows * limits->row_bytes + n_pairs * sizeof *plan->pairs;
            if (!is_self && part->n_groups > 0 &&
                (bytes > limits->request_bytes || n_pairs > limits->n_pairs ||
                 (part->n_groups + 1) * limits->sum_bytes > limits->reply_bytes))
                break;
            if (new_row)
                plan->row_token[part->first_row + part->n_rows++] = token;
            plan->groups[plan->n_groups++] =
                (struct plan_group){token, (uint32_t)at, (uint32_t)(end - at)};
            part->n_groups++;
            for (; at < end && !is_self; at++)
                plan->pairs[at].row = (uint32_t)(part->n_rows - 1);
            at = end;
        }
        part->n_pairs = at - part->first_pair;
        plan->n_rows += part->n_rows;
    }
    return true;
}

/* Holders, groups and parts for n units. */
static bool place_units(struct plan *plan, struct units *units, const struct plan_holders *holders,
                        const struct plan_limits *limits)
{
    size_t load[LIMIT_SEATS] = {0}, cursor[LIMIT_SEATS], total = 0, at = plan->n_pairs;
    uint8_t begins[LIMIT_TOP_K];
    uint64_t used = 0;

    for (size_t i = 0; i < units->n; i++) {
        struct unit unit = unit_at(units, i);
        used |= choose(&unit, holders, load);
        total += unit.n;
    }
    if (plan->n_pairs + total > plan->max_pairs)
        return false;
    for (uint64_t seats = used; seats != 0; seats &= seats - 1) {
        int s = __builtin_ctzll(seats);
        cursor[s] = at;
        at += load[s];
    }
    for (size_t i = 0; i < units->n; i++) {
        struct unit unit = unit_at(units, i);
        size_t n_groups = tree_groups(unit.ids, unit.seats, unit.n, plan->n_experts, begins);
        for (size_t j = 0, g = 0; j < unit.n; j++) {
            bool is_first = g < n_groups && begins[g] == j;
            g += is_first;
            plan->pairs[cursor[unit.seats[j]]++] = (struct exchange_pair){
                unit.token, (uint16_t)unit.ids[j], is_first, unit.weights[j]};
        }
    }
    plan->n_pairs += total;
    for (uint64_t seats = used; seats != 0; seats &= seats - 1) {
        int s = __builtin_ctzll(seats); /* its cursor stands at its end */
        if (!cut_parts(plan, s, cursor[s] - load[s], cursor[s], s == holders->self, limits))
            return false;
    }
    return true;
}

void plan_build(struct plan *plan, const struct exchange_round_input *input,
                const struct plan_holders *holders, const struct plan_limits *limits)
{
    size_t n = input->n_tokens * input->top_k;
    struct units units = {.plan = plan, .n = input->n_tokens};

    FERRY_ASSERT(n <= plan->max_slots);
    plan->n_tokens = input->n_tokens;
    plan->top_k = input->top_k;
    plan->n_experts = input->n_experts;
    plan->n_pairs = plan->n_rows = plan->n_groups = plan->n_parts = 0;
    for (size_t i = 0; i < n; i++)
        FERRY_ASSERT(input->experts[i] >= 0 && (size_t)input->experts[i] < input->n_experts);
    if (n == 0)
        return;
    memcpy(plan->ids, input->experts, n * sizeof *plan->ids);
    memcpy(plan->weights, input->weights, n * sizeof *plan->weights);
    for (size_t t = 0; t < input->n_tokens; t++)
        sort_token(plan->ids + t * input->top_k, plan->weights + t * input->top_k, input->top_k);
    bool fits = place_units(plan, &units, holders, limits);
    FERRY_ASSERT(fits); /* the arrays are made for this */
}

size_t plan_own_pairs(const struct plan *plan, int self)
{
    size_t n = 0;

    for (size_t i = 0; i < plan->n_parts; i++)
        n += plan->parts[i].seat == self && plan->parts[i].state != PART_LOST
                 ? plan->parts[i].n_pairs
                 : 0;
    return n;
}

bool plan_again(struct plan *plan, size_t part, const struct plan_holders *holders,
                const struct plan_limits *limits)
{
    int32_t ids[LIMIT_TOP_K];
    float weights[LIMIT_TOP_K];
    struct part *lost = &plan->parts[part];
    struct units units = {.plan = plan,
                          .again = true,
                          .first_group = lost->first_group,
                          .n = lost->n_groups,
                          .ids = ids,
                          .weights = weights};

    lost->state = PART_LOST;
    lost->sums = NULL;
    return place_units(plan, &units, holders, limits);
}
