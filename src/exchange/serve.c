/* The holder's side: taking messages, running experts for whoever asked, sending sums back. See
 * exchange.h. */
#include "base/assert.h"
#include "base/cpu.h"
#include "base/error.h"
#include "base/log.h"
#include "base/size.h"
#include "exchange/bundle.h"
#include "exchange/exchange.h"
#include "exchange/impl.h"

#include <string.h>

static const uint64_t RESERVE_NS = UINT64_C(10000000000); /* longest wait for a peer's credit */
static const uint64_t REPLY_NS = UINT64_C(1000000000);    /* the same, to answer it */
static const uint64_t LOOK_NS = UINT64_C(5000000);

/* ---- messages ---- */

static void release_done(struct exchange *x, struct inbox *inbox)
{
    while (inbox->n > 0 && inbox->done[inbox->first]) {
        const struct fabric_message *m = &inbox->messages[inbox->first];
        inbox->n_bytes -= m->header.n_bytes;
        fabric_release(x->options.fabric, m);
        inbox->first = (inbox->first + 1) % INBOX_MAX;
        inbox->n--;
    }
}

void serve_done(struct exchange *x, struct inbox *inbox, size_t place)
{
    inbox->done[place] = true;
    release_done(x, inbox);
}

void serve_settle(struct exchange *x, struct inbox *inbox, size_t place)
{
    if (!inbox->own[place] && inbox->pass[place] == 0)
        serve_done(x, inbox, place);
}

/* Takes one message of a lane into its inbox; *ret_place is its place. */
static bool take(struct exchange *x, int seat, enum lane_channel channel, size_t *ret_place)
{
    struct inbox *inbox = &x->inboxes[seat][channel];
    size_t place = (inbox->first + inbox->n) % INBOX_MAX;

    if (inbox->n == INBOX_MAX ||
        !fabric_take(x->options.fabric, seat, channel, &inbox->messages[place]))
        return false;
    x->heard[seat] = inbox->messages[place].incarnation;
    inbox->done[place] = false;
    inbox->own[place] = true;
    inbox->pass[place] = 0;
    inbox->n++;
    inbox->n_bytes += inbox->messages[place].header.n_bytes;
    *ret_place = place;
    return true;
}

/* Returns whether anything came; so does collect_requests. */
static bool collect_replies(struct exchange *x, int seat)
{
    struct inbox *inbox = &x->inboxes[seat][LANE_REPLY];
    bool any = false;
    size_t place;

    while (take(x, seat, LANE_REPLY, &place)) {
        any = true;
        if (round_reply(x, inbox, place))
            serve_done(x, inbox, place);
    }
    return any;
}

/* Whether a request may come from whom it names: its sender, or a rank whose rows the sender passes
 * on. */
static bool is_sound(const struct exchange *x, const struct fabric_message *m, unsigned kind)
{
    const struct lane_header *h = &m->header;

    if (h->layer >= x->shape.n_layers)
        return false;
    if (h->origin == m->seat)
        return kind == WIRE_ROWS || kind == WIRE_NONE || kind == WIRE_BUNDLE;
    return kind == WIRE_ROWS && h->origin < fabric_n_seats(x->options.fabric) &&
           h->origin != x->self && h->origin_incarnation != 0;
}

/* A request's header says where its origin is. */
static bool note_request(struct exchange *x, struct inbox *inbox, size_t place)
{
    const struct fabric_message *m = &inbox->messages[place];
    const struct lane_header *h = &m->header;
    unsigned kind = h->kind & WIRE_KIND_MASK;

    if (!is_sound(x, m, kind) || (kind == WIRE_BUNDLE && !bundle_note(x, inbox, place))) {
        x->ledger.bad_messages++;
        return false;
    }
    if (h->origin != m->seat &&
        fabric_lanes(x->options.fabric, h->origin) != h->origin_incarnation) {
        x->ledger.late += h->n_pairs; /* whose rows they are has started anew */
        return false;
    }
    wire_ask_for(m->data, h->n_bytes);
    x->origins[h->origin] =
        (struct origin){h->step, h->layer, true, kind == WIRE_NONE || h->more == 0};
    return kind != WIRE_NONE;
}

/* What was passed on outlives its origin's lanes: it goes when that rank is gone or has started
 * anew. */
static void drop_orphans(struct exchange *x, struct inbox *inbox)
{
    for (size_t i = inbox->n; i-- > 0;) { /* the oldest last: then places are given back */
        size_t place = (inbox->first + i) % INBOX_MAX;
        const struct fabric_message *m = &inbox->messages[place];
        if (inbox->done[place] || m->header.origin == m->seat ||
            fabric_lanes(x->options.fabric, m->header.origin) == m->header.origin_incarnation)
            continue;
        x->ledger.late += m->header.n_pairs;
        serve_done(x, inbox, place);
    }
}

static bool collect_requests(struct exchange *x, int seat, uint32_t incarnation)
{
    struct inbox *inbox = &x->inboxes[seat][LANE_REQUEST];
    bool any = false;
    size_t place;

    if (inbox->incarnation != incarnation) { /* who asked is gone, or has started anew */
        for (size_t i = 0; i < inbox->n; i++)
            inbox->done[(inbox->first + i) % INBOX_MAX] = true;
        release_done(x, inbox);
        inbox->incarnation = incarnation;
        inbox->n_pass = 0;
        x->origins[seat] = (struct origin){0};
    }
    drop_orphans(x, inbox);
    while (take(x, seat, LANE_REQUEST, &place)) {
        any = true;
        if (!note_request(x, inbox, place))
            serve_done(x, inbox, place);
    }
    return any;
}

bool serve_collect(struct exchange *x)
{
    size_t n_seats = fabric_n_seats(x->options.fabric);
    bool any = false;

    for (size_t s = 0; s < n_seats; s++) {
        if ((int)s == x->self)
            continue;
        uint32_t incarnation = fabric_lanes(x->options.fabric, (int)s);
        any |= collect_replies(x, (int)s);
        if (!x->in_job)
            any |= collect_requests(x, (int)s, incarnation);
        if (x->inboxes[s][LANE_REQUEST].n_pass > 0)
            any |= bundle_pass(x, &x->inboxes[s][LANE_REQUEST]);
    }
    return any;
}

bool serve_poll(struct exchange *x, uint64_t until_ns)
{
    struct fabric *f = x->options.fabric;
    uint32_t seen = fabric_rings(f);

    if (x->options.spin_ns == 0 || !fabric_is_near(f))
        return false;
    for (uint64_t until = min_size(fabric_now_ns(f) + x->options.spin_ns, until_ns);;) {
        for (int i = 0; i < 32; i++) {
            if (serve_collect(x))
                return true;
            cpu_relax();
        }
        if (fabric_rings(f) != seen) /* woken by something else, perhaps */
            return true;
        if (fabric_now_ns(f) >= until)
            return false;
    }
}

enum ferry_status serve_reserve(struct exchange *x, int seat, enum lane_channel channel,
                                size_t n_bytes, void **ret_data, uint32_t *ret_incarnation,
                                struct ferry_error *err)
{
    struct fabric *f = x->options.fabric;
    uint64_t start = fabric_now_ns(f), patience = RESERVE_NS;

    if (channel == LANE_REPLY)
        patience = x->clogged[seat] ? 0 : REPLY_NS;

    for (;;) {
        uint32_t seen = fabric_rings(f);
        /* Between here and the commit nothing may take new lanes into use. */
        *ret_incarnation = fabric_lanes(f, seat);
        /* Sums are owed to whoever asked, silent for a moment or not, as long as its lanes are
         * there: it may see this rank live all the time and wait. But nobody waits for its room. */
        bool is_live = impl_is_live(x, seat);
        enum ferry_status st = is_live || channel == LANE_REPLY
                                   ? fabric_reserve(f, seat, channel, n_bytes, ret_data)
                                   : FERRY_ERR_PEER;
        bool is_out = !impl_is_live(x, x->self); /* then nobody makes room for it either */
        if (st == FERRY_OK && channel == LANE_REPLY)
            x->clogged[seat] = false;
        if (st == FERRY_OK || (st == FERRY_AGAIN && channel == LANE_REPLY && (!is_live || is_out)))
            return st;
        if (st == FERRY_AGAIN && is_out)
            st = FERRY_ERR_PEER;
        if (st != FERRY_AGAIN)
            return FERRY_FAIL(err, st, "exchange: seat %d cannot take %zu bytes", seat, n_bytes);
        uint64_t now = fabric_now_ns(f);
        if (now - start >= patience) {
            if (channel == LANE_REPLY)
                x->clogged[seat] = true; /* it takes none of what it asks for: others come first */
            return FERRY_FAIL(err, FERRY_ERR_TIMEOUT,
                              "exchange: dispatch to seat %d waited %.1f s for room for %zu bytes",
                              seat, (double)(now - start) * 1e-9, n_bytes);
        }
        /* Whoever waits for room takes what has come, or two ranks could wait for each other. */
        serve_collect(x);
        if (channel == LANE_REQUEST && !x->in_job && serve_others(x, SIZE_MAX))
            continue;
        fabric_sleep(f, seen, LOOK_NS);
        uint64_t waited = fabric_now_ns(f) - now;
        fabric_count_wait(f, seat, waited);
        x->ledger.others_ns += waited;
    }
}

/* ---- a job ---- */

/* Where a source came from, to answer it. */
struct asker {
    int seat; /* whose inbox it is in; header.origin is who gets the sums */
    size_t place;
    struct lane_header header;
    uint32_t incarnation; /* of whom the sums are for; who sits there later gets none */
    bool refuse;
};

struct batch {
    struct job_source sources[SOURCES_MAX];
    struct asker askers[SOURCES_MAX]; /* seat < 0: the own part */
    size_t n, n_pairs, n_served_pairs;
    size_t layer;
};

static bool same_formats(const struct exchange_rows *a, const struct exchange_rows *b)
{
    return (a->a32 != NULL) == (b->a32 != NULL) && (a->f32 != NULL) == (b->f32 != NULL);
}

static bool add_request(struct exchange *x, struct batch *b, int seat, size_t place)
{
    struct inbox *inbox = &x->inboxes[seat][LANE_REQUEST];
    const struct fabric_message *m = &inbox->messages[place];
    struct exchange_pair *pairs = x->served_pairs + b->n_served_pairs;
    struct lane_header header = m->header;
    struct wire_request request;
    struct ferry_error err;

    /* Of a bundle, all pairs are counted: at most some too many. */
    bool fits =
        b->n < SOURCES_MAX && !impl_has_enough(x, b->n_pairs) &&
        b->n_pairs + min_size(header.n_pairs, x->shape.max_slots) <= x->job.max_slots &&
        b->n_served_pairs + min_size(header.n_pairs, x->shape.max_slots) <= 2 * x->shape.max_slots;
    bool is_bundle = (header.kind & WIRE_KIND_MASK) == WIRE_BUNDLE;
    if (!fits && (is_bundle || header.n_pairs <= x->shape.max_slots))
        return false; /* in a later job; but one that never fits is refused below */
    enum ferry_status st = is_bundle ? bundle_own(x, m, &request, pairs, &header, &err)
                                     : wire_request_read(&request, pairs, &x->shape, m, &err);
    if (st != FERRY_OK || request.n_groups != header.n_groups ||
        request.n_groups * impl_sum_bytes(x) > fabric_max_payload(x->options.fabric, LANE_REPLY)) {
        if (x->ledger.bad_messages++ == 0)
            LOG_WARNING("exchange: seat %d sent what no rank may send (%s); ignored", seat,
                        st != FERRY_OK ? err.msg : "groups");
        inbox->own[place] = false;
        serve_settle(x, inbox, place);
        return true;
    }
    if (b->n > 0 && !same_formats(&b->sources[0].rows, &request.rows))
        return false; /* no rank sends such; in a job of its own */
    b->sources[b->n] = (struct job_source){pairs, request.n_pairs, request.n_groups, request.rows};
    b->askers[b->n++] =
        (struct asker){seat, place, header,
                       header.origin == seat ? m->incarnation : header.origin_incarnation, false};
    b->n_pairs += request.n_pairs;
    b->n_served_pairs += request.n_pairs;
    return true;
}

/* Whether sums for a seat have a place. Whoever hangs takes none: its requests would be computed
 * again and again, and each answer waited for. */
static bool has_room(const struct exchange *x, int seat)
{
    struct fabric *f = x->options.fabric;
    void *data;

    return !x->clogged[seat] ||
           fabric_reserve(f, seat, LANE_REPLY, impl_held_most(x), &data) != FERRY_AGAIN;
}

/* Whether there is something to compute in a place. Whoever is silent waits, and who takes no
 * answers: its requests stay until it is heard again, or its lanes are gone. */
static bool is_waiting(const struct exchange *x, const struct inbox *inbox, size_t place)
{
    int origin = inbox->messages[place].header.origin;

    return !inbox->done[place] && inbox->own[place] && impl_is_live(x, origin) &&
           has_room(x, origin);
}

/* Adds the waiting requests of b->layer, seats in turn. */
static void add_requests(struct exchange *x, struct batch *b)
{
    int n_seats = (int)fabric_n_seats(x->options.fabric);

    for (int s = 0; s < n_seats; s++) {
        int seat = (x->next_seat + s) % n_seats;
        const struct inbox *inbox = &x->inboxes[seat][LANE_REQUEST];
        size_t first = inbox->first, n = inbox->n;
        for (size_t i = 0; i < n; i++) {
            size_t place = (first + i) % INBOX_MAX;
            if (!is_waiting(x, inbox, place) || inbox->messages[place].header.layer != b->layer)
                continue;
            if (!add_request(x, b, seat, place))
                break;
        }
    }
    x->next_seat = (x->next_seat + 1) % n_seats;
}

/* The layer of a waiting request, seats in turn, but not `except`; SIZE_MAX: none. */
static size_t waiting_layer(const struct exchange *x, size_t except)
{
    int n_seats = (int)fabric_n_seats(x->options.fabric);

    for (int s = 0; s < n_seats; s++) {
        int seat = (x->next_seat + s) % n_seats;
        const struct inbox *inbox = &x->inboxes[seat][LANE_REQUEST];
        for (size_t i = 0; i < inbox->n; i++) {
            size_t place = (inbox->first + i) % INBOX_MAX;
            size_t layer = inbox->messages[place].header.layer;
            if (layer != except && is_waiting(x, inbox, place))
                return layer;
        }
    }
    return SIZE_MAX;
}

static bool make_resident(struct exchange *x, size_t layer, size_t expert)
{
    bool *told = &x->told[layer * x->options.max_experts + expert];
    struct ferry_error err = {0};

    if (x->options.make_resident(x->options.arg, layer, expert, &err) == FERRY_OK) {
        *told = false;
        return true;
    }
    if (!*told) /* it is asked for again and again */
        LOG_WARNING("exchange: rows for an expert are refused: %s", err.msg);
    *told = true;
    return false;
}

/* Law 3: experts run with resident, verified weights. Who needs one that cannot be had is
 * refused. */
static void refuse_missing(struct exchange *x, struct batch *b)
{
    uint64_t seen[LIMIT_EXPERTS / 64] = {0}, missing[LIMIT_EXPERTS / 64] = {0};

    if (x->options.make_resident == NULL)
        return;
    for (size_t s = 0; s < b->n; s++) {
        for (size_t i = 0; i < b->sources[s].n_pairs; i++) {
            size_t e = b->sources[s].pairs[i].expert;
            uint64_t bit = UINT64_C(1) << (e & 63);
            if ((seen[e / 64] & bit) == 0 && !make_resident(x, b->layer, e))
                missing[e / 64] |= bit;
            seen[e / 64] |= bit;
            b->askers[s].refuse |= (missing[e / 64] & bit) != 0;
        }
    }
}

static void answer(struct exchange *x, const struct batch *b, size_t i, bool refuse)
{
    const struct asker *a = &b->askers[i];
    struct inbox *inbox = &x->inboxes[a->seat][LANE_REQUEST];
    struct lane_header header = a->header;
    int origin = header.origin;
    struct ferry_error err;
    uint32_t incarnation;
    void *sums = NULL;

    header.kind =
        refuse ? WIRE_REFUSED : (uint16_t)(WIRE_SUMS | (x->options.combine_bf16 ? WIRE_BF16 : 0u));
    header.n_rows = refuse ? 0 : header.n_groups;
    header.n_bytes = refuse ? 0 : (uint32_t)(header.n_groups * impl_sum_bytes(x));
    header.origin_incarnation = 0;
    enum ferry_status st =
        serve_reserve(x, origin, LANE_REPLY, header.n_bytes, &sums, &incarnation, &err);
    if (st == FERRY_OK && incarnation != a->incarnation)
        st = FERRY_ERR_PEER; /* who wanted them is gone; what sits there has numbers of its own */
    enum tree_store store = x->options.combine_bf16                          ? TREE_BF16
                            : fabric_shares_cache(x->options.fabric, origin) ? TREE_F32
                                                                             : TREE_STREAM;
    if (st == FERRY_OK && !refuse &&
        job_sums(&x->job, b->sources, i, sums, store) != b->sources[i].n_pairs) {
        header.kind = WIRE_REFUSED; /* a sum without all its rows does not leave */
        header.n_bytes = 0;
    }
    if (st == FERRY_OK)
        fabric_commit(x->options.fabric, origin, LANE_REPLY, &header);
    else if (st != FERRY_ERR_PEER) {
        LOG_DEBUG("exchange: sums for seat %d wait: %s", origin, ferry_status_text(st));
        return; /* the request stays, and is computed again when there is room */
    }
    x->ledger.served += st == FERRY_OK && !refuse ? header.n_pairs : 0;
    inbox->own[a->place] = false;
    serve_settle(x, inbox, a->place);
}

static void finish_own(struct exchange *x, struct round *round, size_t i, const struct batch *b,
                       size_t n_computed)
{
    struct part *part = &round->plan.parts[i];

    round->delivered +=
        b->n == 1 || n_computed == b->n_pairs ? min_size(n_computed, part->n_pairs) : 0;
    part->sums_bf16 = false;
    part->state = PART_BACK;
    round->n_owed--;
    if (round->direct) {
        round->combined = job_sums(&x->job, b->sources, 0, round->input.out, TREE_F32);
    } else {
        round->lazy_part = i;
        round->lazy = b->sources[0];
        combine_part(x, round, i);
    }
}

static void count_job(struct exchange *x, const struct batch *b)
{
    atomic_uint_fast64_t *counts = x->counts + b->layer * x->options.max_experts;

    for (size_t e = 0; e < x->job.work.n_experts; e++) {
        int32_t n = x->job.begin[e + 1] - x->job.begin[e];
        if (n > 0)
            atomic_store_explicit(
                &counts[e], atomic_load_explicit(&counts[e], memory_order_relaxed) + (uint64_t)n,
                memory_order_relaxed);
    }
    x->ledger.jobs++;
    x->ledger.weight_reads += job_n_active(&x->job);
}

/* Takes out who was refused: answers are sent, the own part will be planned again. */
static void drop_refused(struct exchange *x, struct batch *b, struct round *round, size_t part)
{
    size_t n = 0;

    for (size_t s = 0; s < b->n; s++) {
        if (b->askers[s].refuse && b->askers[s].seat >= 0) {
            answer(x, b, s, true);
        } else if (b->askers[s].refuse) {
            round->refused |= UINT64_C(1) << x->self;
            round->plan.parts[part].state = PART_REFUSED;
        } else {
            b->sources[n] = b->sources[s];
            b->askers[n++] = b->askers[s];
            continue;
        }
        b->n_pairs -= b->sources[s].n_pairs;
    }
    b->n = n;
}

static void run_batch(struct exchange *x, struct batch *b, struct round *round, size_t part)
{
    size_t n_experts = round != NULL ? round->input.n_experts : x->shape.n_experts;

    x->in_job = true;
    refuse_missing(x, b);
    drop_refused(x, b, round, part);
    if (b->n > 0) {
        combine_flush(x);
        size_t n = job_run(&x->job, b->layer, n_experts, b->sources, b->n, x->options.run_experts,
                           x->options.arg);
        if (n == b->n_pairs)
            count_job(x, b);
        for (size_t s = 0; s < b->n; s++) {
            if (b->askers[s].seat < 0)
                finish_own(x, round, part, b, n);
            else
                answer(x, b, s, n != b->n_pairs);
        }
    }
    x->in_job = false;
}

/* One job of a layer, with an own part when round is given. */
static void run_layer(struct exchange *x, size_t layer, struct round *round, size_t part)
{
    struct batch b;

    b.layer = layer;
    b.n = b.n_pairs = b.n_served_pairs = 0;
    if (round != NULL) {
        const struct part *p = &round->plan.parts[part];
        b.sources[0] = (struct job_source){round->plan.pairs + p->first_pair, p->n_pairs,
                                           p->n_groups, round->input.rows};
        b.askers[0] = (struct asker){.seat = -1};
        b.n = 1;
        b.n_pairs = p->n_pairs;
    }
    if (x->options.fabric == NULL) {
        run_batch(x, &b, round, part);
        return;
    }
    add_requests(x, &b);
    if (b.n == 0)
        return; /* nothing sound was asked */
    uint64_t start = fabric_now_ns(x->options.fabric), others = x->ledger.others_ns;
    size_t n_own = round != NULL ? round->plan.parts[part].n_pairs : 0;
    double share = b.n_pairs > 0 ? (double)(b.n_pairs - n_own) / (double)b.n_pairs : 0;
    run_batch(x, &b, round, part);
    uint64_t took = fabric_now_ns(x->options.fabric) - start;
    uint64_t waited = x->ledger.others_ns - others; /* for credit, in answer: counted there */
    double ns = took > waited ? (double)(took - waited) : 0;
    x->ledger.others_ns += (uint64_t)(ns * share);
    if (round != NULL)
        x->job_ns = x->job_ns > 0 ? 0.8 * x->job_ns + 0.2 * ns : ns;
}

void serve_job(struct exchange *x, struct round *round, size_t part)
{
    run_layer(x, round->input.layer, round, part);
}

bool serve_others(struct exchange *x, size_t except)
{
    size_t layer = waiting_layer(x, except);

    if (layer != SIZE_MAX)
        run_layer(x, layer, NULL, 0);
    return layer != SIZE_MAX;
}
