/* Rounds of own tokens: sending rows off, waiting for the sums, combining. See exchange.h. */
#include "base/assert.h"
#include "base/error.h"
#include "base/size.h"
#include "exchange/bundle.h"
#include "exchange/exchange.h"
#include "exchange/impl.h"

#include <string.h>

/* Sums that come back in one message: more messages let combining overlap with what is still to
 * come, but cost more than that (docs/performance.md), so that only large rounds are cut. */
enum { CHUNK_BYTES = 1 << 20 };
static const uint64_t LOOK_NS = UINT64_C(20000000); /* at losses, at least so often */

/* ---- holders ---- */

static enum ferry_status not_live(const struct exchange *x, struct ferry_error *err)
{
    return FERRY_FAIL(err, FERRY_ERR_PEER,
                      "exchange: this rank (seat %d) is not live in its group (epoch %u)", x->self,
                      fabric_epoch(x->options.fabric));
}

/* Roads to the live seats, and who stands with whom: again when seats came, went or moved. */
static void look_at_roads(struct exchange *x, uint64_t live)
{
    struct fabric *f = x->options.fabric;
    uint32_t epoch = fabric_epoch(f);

    if (x->roads_live == live && x->roads_epoch == epoch)
        return;
    x->roads_live = live;
    x->roads_epoch = epoch;
    for (int s = 0; s < LIMIT_SEATS; s++) {
        bool is_live = (live >> s & 1) != 0;
        x->links[s] = is_live ? fabric_link(f, s) : LINK_UNKNOWN;
        x->mates[s] = is_live ? fabric_mates(f, s) : 0;
    }
}

/* Who may compute a layer's experts: found once per layer and set of live seats. */
static enum ferry_status find_holders(struct exchange *x, const struct round *round,
                                      struct plan_holders *ret, struct ferry_error *err)
{
    struct fabric *f = x->options.fabric;
    size_t layer = round->input.layer;

    if (f == NULL)
        return FERRY_OK;
    uint64_t live = fabric_live(f);
    if ((live >> x->self & 1) == 0)
        return not_live(x, err);
    uint64_t *holders = x->holders + layer * x->options.max_experts;
    if (x->layer_live[layer] != live) {
        placement_layer_holders(x->options.placement, layer, live, holders);
        x->layer_live[layer] = live;
    }
    look_at_roads(x, live);
    if ((round->refused & live) != 0) {
        if ((live & ~round->refused) == 0)
            return FERRY_FAIL(
                err, FERRY_ERR_NO_HOLDER,
                "exchange: layer %zu: no rank has one of its experts; the ranks' own messages "
                "say why",
                layer);
        placement_layer_holders(x->options.placement, layer, live & ~round->refused, x->others);
        holders = x->others;
    }
    *ret = (struct plan_holders){holders, x->self, x->links};
    return FERRY_OK;
}

static struct plan_limits limits_of(const struct exchange *x, const struct round *round)
{
    struct plan_limits limits = {.row_bytes = wire_row_bytes(&x->shape, round->flags),
                                 .sum_bytes = impl_sum_bytes(x),
                                 .n_pairs = x->shape.max_slots};

    if (x->options.fabric != NULL) {
        limits.request_bytes = fabric_max_payload(x->options.fabric, LANE_REQUEST);
        limits.reply_bytes = min_size(CHUNK_BYTES, impl_held_most(x));
    }
    return limits;
}

/* ---- sending ---- */

/* Another holder for everything that a part carries. */
static enum ferry_status redirect(struct exchange *x, struct round *round, size_t part,
                                  struct ferry_error *err)
{
    struct plan_holders holders;
    struct plan_limits limits = limits_of(x, round);
    size_t n_parts = round->plan.n_parts, n_pairs = round->plan.parts[part].n_pairs;
    enum ferry_status st = find_holders(x, round, &holders, err);

    if (st != FERRY_OK)
        return st;
    combine_forget(round, part);
    if (!plan_again(&round->plan, part, &holders, &limits)) {
        x->ledger.voided++;
        return FERRY_FAIL(err, FERRY_ERR_LEDGER,
                          "exchange: layer %zu: holders were lost too often in one round",
                          round->input.layer);
    }
    combine_expect(round, n_parts);
    round->n_owed += round->plan.n_parts - n_parts - 1;
    round->direct = false;
    x->ledger.redirected += n_pairs;
    return FERRY_OK;
}

static enum ferry_status send_part(struct exchange *x, struct round *round, size_t i,
                                   struct ferry_error *err)
{
    struct part *part = &round->plan.parts[i];
    size_t n_bytes = part->n_rows * wire_row_bytes(&x->shape, round->flags) +
                     part->n_pairs * sizeof *round->plan.pairs;
    struct lane_header header = {.id = round_message_id(round, i),
                                 .step = x->step,
                                 .layer = (uint32_t)round->input.layer,
                                 .n_bytes = (uint32_t)n_bytes,
                                 .n_rows = (uint32_t)part->n_rows,
                                 .n_pairs = (uint32_t)part->n_pairs,
                                 .origin = (uint16_t)x->self,
                                 .kind = (uint16_t)(WIRE_ROWS | round->flags),
                                 .n_groups = (uint32_t)part->n_groups,
                                 .more = i + 1 < round->plan.n_parts && part[1].seat == part->seat};
    void *payload = NULL;
    enum ferry_status st =
        serve_reserve(x, part->seat, LANE_REQUEST, n_bytes, &payload, &part->incarnation, err);

    if (st != FERRY_OK)
        return st;
    wire_request_write(payload, x->device, &x->shape, round->flags, &round->input.rows,
                       round->plan.row_token + part->first_row, part->n_rows,
                       round->plan.pairs + part->first_pair, part->n_pairs,
                       !fabric_shares_cache(x->options.fabric, part->seat));
    fabric_commit(x->options.fabric, part->seat, LANE_REQUEST, &header);
    part->via = -1;
    part->state = PART_SENT;
    return FERRY_OK;
}

/* Sends every part that has not been sent; those of lost seats get other holders, and so on. */
static enum ferry_status send_parts(struct exchange *x, struct round *round,
                                    struct ferry_error *err)
{
    for (size_t i = 0; i < round->plan.n_parts;) {
        const struct part *part = &round->plan.parts[i];
        size_t at = i, n_sent = 0;
        if (part->state != PART_PLANNED || part->seat == x->self) {
            i++;
            continue;
        }
        enum ferry_status st = bundle_send(x, round, i, &n_sent, &at, err);
        if (st == FERRY_OK && n_sent == 0)
            st = send_part(x, round, i, err);
        if (st == FERRY_ERR_PEER) {
            int seat = round->plan.parts[at].seat;
            if (impl_is_live(x, seat)) /* without lanes, it is of no use to this round */
                round->refused |= UINT64_C(1) << seat;
            st = redirect(x, round, at, err);
        }
        if (st != FERRY_OK)
            return st;
    }
    return FERRY_OK;
}

/* Tells the others where this rank is, so that they need not wait for rows that do not come. Best
 * effort: a full lane has told them already. */
static void send_none(struct exchange *x, const struct round *round)
{
    struct fabric *f = x->options.fabric;
    uint64_t seats = fabric_live(f) & ~(UINT64_C(1) << x->self);
    void *payload;

    for (size_t i = 0; i < round->plan.n_parts; i++)
        seats &= ~(UINT64_C(1) << round->plan.parts[i].seat);
    for (; seats != 0; seats &= seats - 1) {
        int seat = __builtin_ctzll(seats);
        struct lane_header header = {.step = x->step,
                                     .layer = (uint32_t)round->input.layer,
                                     .origin = (uint16_t)x->self,
                                     .kind = WIRE_NONE};
        if (fabric_reserve(f, seat, LANE_REQUEST, 0, &payload) == FERRY_OK)
            fabric_commit(f, seat, LANE_REQUEST, &header);
    }
}

/* ---- a round's life ---- */

static void close_round(struct exchange *x, struct round *round)
{
    for (size_t i = 0; i < round->plan.n_parts; i++) {
        struct part *part = &round->plan.parts[i];
        if (part->held >= 0)
            serve_done(x, &x->inboxes[part->seat][LANE_REPLY], (size_t)part->held);
        part->held = -1;
    }
    round->open = false;
}

enum ferry_status exchange_begin(struct exchange *exchange, size_t slot,
                                 const struct exchange_round_input *input, struct ferry_error *err)
{
    struct exchange *x = exchange;
    struct round *round = &x->rounds[slot];
    struct plan_holders holders = {NULL, x->self, x->links};
    struct plan_limits limits;

    FERRY_ASSERT(slot < (x->options.fabric != NULL ? EXCHANGE_ROUNDS : 1) && !round->open);
    /* Rows of all ranks meet in one job: they have the same experts. */
    FERRY_ASSERT(x->options.fabric == NULL || input->n_experts == x->options.max_experts);
    FERRY_ASSERT(input->n_tokens <= x->options.max_tokens && input->top_k <= x->options.max_top_k &&
                 input->n_experts <= x->options.max_experts && input->layer < x->options.n_layers);
    round->input = *input;
    round->flags =
        (input->rows.a32 != NULL ? WIRE_A32 : 0u) | (input->rows.f32 != NULL ? WIRE_F32 : 0u);
    round->generation = ++x->generation;
    round->refused = round->straight = 0;
    round->delivered = round->combined = 0;
    round->gather_until_ns = 0;
    enum ferry_status st = find_holders(x, round, &holders, err);
    if (st != FERRY_OK)
        return st;
    limits = limits_of(x, round);
    plan_build(&round->plan, input, &holders, &limits);
    if (x->options.fabric != NULL)
        combine_begin(round);
    round->n_owed = round->plan.n_parts;
    round->direct = x->options.fabric == NULL ||
                    (round->plan.n_parts == 1 && round->plan.parts[0].seat == x->self &&
                     round->plan.n_groups == input->n_tokens);
    round->open = true;
    if (x->own_layer != (uint32_t)input->layer) {
        x->before_layer = x->own_layer;
        x->own_layer = (uint32_t)input->layer;
    }
    if (x->options.fabric == NULL)
        return FERRY_OK;
    round->start_ns = fabric_now_ns(x->options.fabric);
    st = send_parts(x, round, err);
    if (st == FERRY_OK)
        send_none(x, round);
    else
        close_round(x, round);
    return st;
}

/* Lanes are given back in order: what stays in one would keep all that came behind it. */
static void hold_nothing(struct exchange *x, int seat)
{
    struct inbox *inbox = &x->inboxes[seat][LANE_REPLY];

    for (size_t r = 0; r < EXCHANGE_ROUNDS; r++) {
        struct round *round = &x->rounds[r];
        for (size_t i = 0; round->open && i < round->plan.n_parts; i++) {
            struct part *part = &round->plan.parts[i];
            if (part->seat != seat || part->held < 0)
                continue;
            size_t place = (size_t)part->held;
            combine_keep(x, round, i);
            serve_done(x, inbox, place);
        }
    }
}

/* Who holds a part answers it; whoever was to pass it on may say that it could not. */
static bool may_answer(const struct part *part, const struct fabric_message *m)
{
    if (part->seat == m->seat)
        return part->incarnation == m->incarnation;
    return part->via == m->seat && part->via_incarnation == m->incarnation &&
           m->header.kind == WIRE_REFUSED;
}

bool round_reply(struct exchange *x, struct inbox *inbox, size_t place)
{
    const struct fabric_message *m = &inbox->messages[place];
    const struct lane_header *h = &m->header;
    size_t i = h->id & ((UINT64_C(1) << PART_BITS) - 1);
    struct round *round = NULL;

    for (size_t r = 0; r < EXCHANGE_ROUNDS; r++) {
        if (x->rounds[r].open && x->rounds[r].generation == h->id >> PART_BITS)
            round = &x->rounds[r];
    }
    if (round == NULL || i >= round->plan.n_parts || round->plan.parts[i].state != PART_SENT ||
        !may_answer(&round->plan.parts[i], m)) {
        x->ledger.late += h->n_pairs;
        return true;
    }
    struct part *part = &round->plan.parts[i];
    unsigned kind = WIRE_SUMS | (x->options.combine_bf16 ? WIRE_BF16 : 0u);
    if (h->kind != kind || h->n_bytes != part->n_groups * impl_sum_bytes(x) ||
        h->n_pairs != part->n_pairs) {
        x->ledger.bad_messages += h->kind != WIRE_REFUSED;
        if (m->seat == part->seat)
            round->refused |= UINT64_C(1) << part->seat;
        else
            round->straight |= UINT64_C(1) << part->seat;
        part->state = PART_REFUSED;
        return true;
    }
    bool hold = inbox->n <= INBOX_MAX / 2 && inbox->n_bytes <= impl_held_most(x);
    wire_ask_for(m->data, h->n_bytes);
    part->sums = m->data;
    part->sums_bf16 = x->options.combine_bf16;
    part->held = (int)place;
    part->state = PART_BACK;
    round->n_owed--;
    round->delivered += part->n_pairs;
    combine_part(x, round, i);
    if (!hold) /* not only this one: it may be done with, and stand behind others that are not */
        hold_nothing(x, m->seat);
    return false; /* it is given back when its tokens are added up, or was just now */
}

static bool is_gone(const struct exchange *x, int seat, uint32_t incarnation)
{
    return !impl_is_live(x, seat) || fabric_lanes(x->options.fabric, seat) != incarnation;
}

/* Parts that nobody will answer any more get other holders. */
static enum ferry_status look_for_losses(struct exchange *x, struct round *round,
                                         struct ferry_error *err)
{
    bool any = false;

    if (!impl_is_live(x, x->self))
        return not_live(x, err);
    for (size_t i = 0; i < round->plan.n_parts; i++) {
        struct part *part = &round->plan.parts[i];
        bool is_lost = part->state == PART_REFUSED ||
                       (part->state == PART_SENT &&
                        (is_gone(x, part->seat, part->incarnation) ||
                         (part->via >= 0 && is_gone(x, part->via, part->via_incarnation))));
        if (!is_lost)
            continue;
        enum ferry_status st = redirect(x, round, i, err);
        if (st != FERRY_OK)
            return st;
        any = true;
    }
    return any ? send_parts(x, round, err) : FERRY_OK;
}

/* Whether rows of the same layer are likely to come from somebody else in a moment. */
static bool others_follow(const struct exchange *x, size_t layer)
{
    for (uint64_t seats = fabric_live(x->options.fabric); seats != 0; seats &= seats - 1) {
        int seat = __builtin_ctzll(seats);
        const struct origin *o = &x->origins[seat];
        if (seat == x->self || !o->active)
            continue;
        if (o->layer == layer ? !o->whole : o->layer == x->before_layer && o->layer < layer)
            return true;
    }
    return false;
}

/* The own part that can be computed now; n_parts: none. *ret_gathers: one waits for others' rows of
 * the layer, which had better wait, too. */
static size_t own_part(struct exchange *x, struct round *round, uint64_t now, bool *ret_gathers)
{
    *ret_gathers = false;
    for (size_t i = 0; i < round->plan.n_parts; i++) {
        const struct part *part = &round->plan.parts[i];
        if (part->state != PART_PLANNED || part->seat != x->self)
            continue;
        if (x->options.fabric == NULL)
            return i;
        if (round->gather_until_ns == 0)
            round->gather_until_ns = now + impl_gather_ns(x);
        if (now >= round->gather_until_ns ||
            impl_has_enough(x, plan_own_pairs(&round->plan, x->self)) ||
            !others_follow(x, round->input.layer))
            return i;
        *ret_gathers = true;
        return round->plan.n_parts;
    }
    return round->plan.n_parts;
}

static enum ferry_status too_late(struct exchange *x, const struct round *round, uint64_t now,
                                  struct ferry_error *err)
{
    int seat = -1;

    for (size_t i = 0; i < round->plan.n_parts && seat < 0; i++) {
        if (round->plan.parts[i].state == PART_SENT)
            seat = round->plan.parts[i].seat;
    }
    return FERRY_FAIL(
        err, FERRY_ERR_TIMEOUT,
        "exchange: step %llu: combine waited %.1f s for seat %d: %zu of %zu parts came "
        "back",
        (unsigned long long)x->step, (double)(now - round->start_ns) * 1e-9, seat,
        round->plan.n_parts - round->n_owed, round->plan.n_parts);
}

/* Sleeps until something comes; the time counts against the first seat that owes something. */
static void await(struct exchange *x, const struct round *round, uint32_t seen, uint64_t now)
{
    struct fabric *f = x->options.fabric;
    uint64_t until = now + LOOK_NS, start = fabric_now_ns(f);
    int seat = -1;

    for (size_t i = 0; i < round->plan.n_parts && seat < 0; i++) {
        if (round->plan.parts[i].state == PART_SENT)
            seat = round->plan.parts[i].seat;
    }
    if (round->gather_until_ns > now)
        until = min_size(until, round->gather_until_ns);
    if (!serve_poll(x, until)) {
        now = fabric_now_ns(f);
        fabric_sleep(f, seen, until > now ? until - now : 0);
    }
    uint64_t waited = fabric_now_ns(f) - start;
    x->ledger.others_ns += waited;
    if (seat >= 0)
        fabric_count_wait(f, seat, waited);
}

static enum ferry_status complete(struct exchange *x, struct round *round, struct ferry_error *err)
{
    struct fabric *f = x->options.fabric;

    while (round->n_owed > 0) {
        uint64_t now = f != NULL ? fabric_now_ns(f) : 0;
        uint32_t seen = f != NULL ? fabric_rings(f) : 0;
        if (f != NULL) {
            serve_collect(x);
            enum ferry_status st = look_for_losses(x, round, err);
            if (st != FERRY_OK)
                return st;
        }
        bool gathers;
        size_t part = own_part(x, round, now, &gathers);
        if (part < round->plan.n_parts) {
            serve_job(x, round, part);
            continue;
        }
        /* Rows of the layer that own ones wait in are left for their job; the others' rows are what
         * those that are awaited need to come here. */
        if (round->n_owed == 0)
            continue;
        if (now - round->start_ns > x->options.deadline_ns)
            return too_late(x, round, now, err);
        if (serve_others(x, gathers ? round->input.layer : SIZE_MAX))
            continue;
        await(x, round, seen, now);
    }
    return FERRY_OK;
}

/* ---- the end ---- */

/* Both sides of the round's account; a mismatch voids it. */
static enum ferry_status settle(struct exchange *x, const struct round *round,
                                struct ferry_error *err)
{
    size_t routed = round->plan.n_tokens * round->plan.top_k;

    x->ledger.layers++;
    x->ledger.routed += routed;
    x->ledger.delivered += round->delivered;
    x->ledger.combined += round->combined;
    if (round->delivered == routed && round->combined == routed)
        return FERRY_OK;
    x->ledger.voided++;
    return FERRY_FAIL(err, FERRY_ERR_LEDGER,
                      "exchange: %zu rows routed, %zu delivered, %zu combined", routed,
                      round->delivered, round->combined);
}

enum ferry_status exchange_end(struct exchange *exchange, size_t slot, struct ferry_error *err)
{
    struct exchange *x = exchange;
    struct round *round = &x->rounds[slot];

    FERRY_ASSERT(round->open);
    enum ferry_status st = complete(x, round, err);
    if (st == FERRY_OK)
        st = settle(x, round, err);
    close_round(x, round);
    return st;
}

void exchange_abandon(struct exchange *exchange)
{
    for (size_t r = 0; r < EXCHANGE_ROUNDS; r++) {
        if (exchange->rounds[r].open)
            close_round(exchange, &exchange->rounds[r]);
    }
}
