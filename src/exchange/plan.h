/* The plan of one round: which seat computes which (token, expert) pair, in which messages.
 *
 * Inside of the room. Pure arithmetic over arrays of a fixed size: it sends nothing and waits for
 * nothing, so that every decision can be tested alone. */
#ifndef EXCHANGE_PLAN_H
#define EXCHANGE_PLAN_H

#include "base/arena.h"
#include "exchange/exchange.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* One token at one expert, as it travels. Pairs of a group stand together, experts ascending. */
struct exchange_pair {
    uint32_t row; /* of the message; of the round's input when it stays here */
    uint16_t expert;
    uint16_t begins; /* 1: the first of a group, whose sum comes back as one row */
    float weight;
};
_Static_assert(sizeof(struct exchange_pair) == 12, "travels between ranks");

enum part_state {
    PART_PLANNED, /* not sent yet; or local and not computed yet */
    PART_SENT,    /* its holder owes the sums */
    PART_BACK,    /* the sums are here */
    PART_REFUSED, /* its holder will not compute it; to be planned again */
    PART_LOST,    /* its pairs are planned again in later parts */
};

/* What one message carries to one seat, or all that this rank computes itself. */
struct part {
    int seat;
    uint32_t incarnation; /* of the seat's lanes when it was sent */
    int via;              /* seat that passes it on; -1: it went straight there */
    uint32_t via_incarnation;
    enum part_state state;
    size_t first_pair, n_pairs;   /* in plan.pairs */
    size_t first_row, n_rows;     /* in plan.row_token; remote parts only */
    size_t first_group, n_groups; /* in plan.groups */
    const void *sums;             /* BACK: [n_groups, hidden], f32 or bf16 */
    bool sums_bf16;
    size_t n_open; /* groups whose tokens are not added up yet */
    int held;      /* place of the reply in its inbox while the sums lie there; -1: they do not */
};

struct plan_group {
    uint32_t token;
    uint32_t first_pair; /* in plan.pairs */
    uint32_t n_pairs;
};

struct plan {
    size_t n_tokens, top_k, n_experts;
    size_t max_slots; /* n_tokens * top_k at most */

    /* The router's decision, experts ascending in each token. */
    int32_t *ids;   /* [n_tokens, top_k] */
    float *weights; /* [n_tokens, top_k] */

    /* By part. Pairs that are planned again are appended. */
    struct exchange_pair *pairs; /* [max_pairs] */
    uint32_t *row_token;         /* [max_pairs] */
    struct plan_group *groups;   /* [max_pairs] */
    struct part *parts;          /* [max_parts] */
    size_t n_pairs, n_rows, n_groups, n_parts, max_pairs, max_parts;

    int16_t *unit_seats; /* [max_slots] scratch */
};

/* What bounds one message to another seat. */
struct plan_limits {
    size_t request_bytes, reply_bytes; /* payload */
    size_t row_bytes, sum_bytes;       /* of one row there, of one sum back */
    size_t n_pairs;
};

/* Who may compute what. */
struct plan_holders {
    const uint64_t *seats; /* [n_experts] bit per seat that may compute the expert now; not 0.
                              NULL: self holds everything */
    int self;
    const enum link_class *links; /* [LIMIT_SEATS] */
};

/* Room for rounds of max_slots pairs, from the arena. False: no memory. */
bool plan_create(struct plan *plan, struct arena *arena, size_t max_slots, bool many_seats);
size_t plan_bytes(size_t max_slots, bool many_seats);

/* Takes a router's decision and decides a first holder for everything: local first, then the
 * nearest link, then a seat that the token goes to anyway, then the least loaded. */
void plan_build(struct plan *plan, const struct exchange_round_input *input,
                const struct plan_holders *holders, const struct plan_limits *limits);

/* Pairs that are computed here. */
size_t plan_own_pairs(const struct plan *plan, int self);

/* Decides other holders for the pairs of a part, which becomes LOST. Groups stay whole or are cut
 * into nodes of their own. False: no room left in the arrays; the round is void. */
bool plan_again(struct plan *plan, size_t part, const struct plan_holders *holders,
                const struct plan_limits *limits);

#endif
