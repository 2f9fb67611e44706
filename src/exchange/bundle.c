/* Bundles: which parts travel together, and passing them on. See bundle.h. */
#include "exchange/bundle.h"

#include "base/error.h"
#include "base/size.h"

#include <string.h>

/* Bytes that a member must save. A neighbour passes on when it looks, which may be a while later;
 * so few bytes are not worth it (1 Gbit/s: 0.26 ms). */
static const size_t SAVED_LEAST = (size_t)32 << 10;

/* ---- at the origin ---- */

/* Parts that travel together, the receiver's first. */
struct choice {
    size_t parts[LIMIT_SEATS];
    struct wire_member members[LIMIT_SEATS];
    size_t n, n_rows; /* members; rows of all, each once: x->bundle_tokens */
};

/* Rows of the part that are in the bundle already. */
static size_t shared_rows(const struct exchange *x, const struct plan *plan,
                          const struct part *part)
{
    size_t n = 0;

    for (size_t r = 0; r < part->n_rows; r++)
        n += x->bundle_row[plan->row_token[part->first_row + r]] != 0;
    return n;
}

static struct wire_member member_of(const struct plan *plan, size_t i)
{
    const struct part *part = &plan->parts[i];

    return (struct wire_member){.n_rows = (uint32_t)part->n_rows,
                                .n_pairs = (uint32_t)part->n_pairs,
                                .n_groups = (uint32_t)part->n_groups,
                                .seat = (uint16_t)part->seat,
                                .more = i + 1 < plan->n_parts && part[1].seat == part->seat};
}

static void take_part(struct exchange *x, const struct plan *plan, size_t i, struct choice *c)
{
    const struct part *part = &plan->parts[i];

    for (size_t r = 0; r < part->n_rows; r++) {
        uint32_t token = plan->row_token[part->first_row + r];
        if (x->bundle_row[token] != 0)
            continue;
        x->bundle_tokens[c->n_rows++] = token;
        x->bundle_row[token] = (uint32_t)c->n_rows; /* its number, plus one */
    }
    c->parts[c->n] = i;
    c->members[c->n++] = member_of(plan, i);
}

/* Whether a seat has lanes to this rank for certain: it answers who is not its neighbour, too. */
static bool hears_us(const struct exchange *x, int seat)
{
    uint32_t lanes = fabric_lanes(x->options.fabric, seat);

    return impl_is_live(x, seat) && lanes != 0 && x->heard[seat] == lanes;
}

/* Part i, and of each neighbour of its seat the next planned part that shares enough rows. */
static void choose(struct exchange *x, const struct round *round, size_t i, struct choice *c)
{
    const struct plan *plan = &round->plan;
    int first = plan->parts[i].seat;
    size_t row_bytes = wire_row_bytes(&x->shape, round->flags);
    size_t most = fabric_max_payload(x->options.fabric, LANE_REQUEST);
    size_t least = x->options.bundle_bytes > 0 ? x->options.bundle_bytes : SAVED_LEAST;
    uint64_t mates =
        x->mates[first] & ~round->straight & ~(UINT64_C(1) << first | UINT64_C(1) << x->self);

    c->n = c->n_rows = 0;
    take_part(x, plan, i, c);
    for (size_t j = i + 1; j < plan->n_parts && mates != 0; j++) {
        const struct part *part = &plan->parts[j];
        if (part->state != PART_PLANNED || (mates >> part->seat & 1) == 0)
            continue;
        mates &= ~(UINT64_C(1) << part->seat); /* one of each seat */
        size_t shared = shared_rows(x, plan, part), n_rows = c->n_rows + part->n_rows - shared;
        c->members[c->n] = member_of(plan, j);
        size_t saved = shared * row_bytes,
               cost = part->n_rows * sizeof(uint32_t) + sizeof *c->members;
        if (saved < least || saved - least < cost ||
            wire_bundle_bytes(&x->shape, round->flags, n_rows, c->members, c->n + 1) > most ||
            !hears_us(x, part->seat))
            continue;
        take_part(x, plan, j, c);
    }
}

/* Behind the rows: members, and what each of them wants with which rows. */
static void write_members(const struct exchange *x, const struct round *round,
                          const struct choice *c, unsigned char *to)
{
    const struct plan *plan = &round->plan;

    memcpy(to, c->members, c->n * sizeof *c->members);
    to += c->n * sizeof *c->members;
    for (size_t m = 0; m < c->n; m++) {
        const struct part *part = &plan->parts[c->parts[m]];
        for (size_t r = 0; r < part->n_rows; r++, to += sizeof(uint32_t)) {
            uint32_t number = x->bundle_row[plan->row_token[part->first_row + r]] - 1;
            memcpy(to, &number, sizeof number);
        }
        size_t n = part->n_pairs * sizeof *plan->pairs;
        memcpy(to, plan->pairs + part->first_pair, n);
        to += n;
    }
}

static enum ferry_status send(struct exchange *x, struct round *round, struct choice *c,
                              size_t relay, struct ferry_error *err)
{
    struct plan *plan = &round->plan;
    int seat = plan->parts[c->parts[relay]].seat;
    size_t row_bytes = wire_row_bytes(&x->shape, round->flags), n_pairs = 0;
    uint32_t incarnation;
    void *payload = NULL;

    for (size_t m = 0; m < c->n; m++) {
        struct part *part = &plan->parts[c->parts[m]];
        c->members[m].id = round_message_id(round, c->parts[m]);
        part->incarnation = fabric_lanes(x->options.fabric, part->seat);
        n_pairs += part->n_pairs;
    }
    size_t n_bytes = wire_bundle_bytes(&x->shape, round->flags, c->n_rows, c->members, c->n);
    struct lane_header header = {.id = c->members[relay].id,
                                 .step = x->step,
                                 .layer = (uint32_t)round->input.layer,
                                 .n_bytes = (uint32_t)n_bytes,
                                 .n_rows = (uint32_t)c->n_rows,
                                 .n_pairs = (uint32_t)n_pairs,
                                 .n_groups = (uint32_t)c->n,
                                 .origin = (uint16_t)x->self,
                                 .kind = (uint16_t)(WIRE_BUNDLE | round->flags),
                                 .more = c->members[relay].more};
    enum ferry_status st =
        serve_reserve(x, seat, LANE_REQUEST, n_bytes, &payload, &incarnation, err);
    if (st != FERRY_OK)
        return st;
    wire_request_write(payload, x->device, &x->shape, round->flags, &round->input.rows,
                       x->bundle_tokens, c->n_rows, NULL, 0, true);
    write_members(x, round, c, (unsigned char *)payload + c->n_rows * row_bytes);
    fabric_commit(x->options.fabric, seat, LANE_REQUEST, &header);
    for (size_t m = 0; m < c->n; m++) {
        struct part *part = &plan->parts[c->parts[m]];
        part->via = part->seat == seat ? -1 : seat;
        part->via_incarnation = incarnation;
        part->incarnation = part->seat == seat ? incarnation : part->incarnation;
        part->state = PART_SENT;
    }
    return FERRY_OK;
}

enum ferry_status bundle_send(struct exchange *x, struct round *round, size_t i, size_t *ret_sent,
                              size_t *ret_part, struct ferry_error *err)
{
    int seat = round->plan.parts[i].seat;
    enum link_class link = x->links[seat];
    bool is_here = link <= LINK_PCIE || (x->mates[seat] >> x->self & 1) != 0;
    enum ferry_status st = FERRY_OK;
    struct choice c;

    *ret_sent = 0;
    if (is_here || link == LINK_UNKNOWN || (round->straight >> seat & 1) != 0 || !hears_us(x, seat))
        return FERRY_OK;
    choose(x, round, i, &c);
    if (c.n > 1) {
        size_t relay = round->input.layer % c.n; /* in turn: whoever passes on has the work of it */
        *ret_part = c.parts[relay];
        st = send(x, round, &c, relay, err);
        *ret_sent = st == FERRY_OK ? c.n : 0;
    }
    for (size_t r = 0; r < c.n_rows; r++)
        x->bundle_row[x->bundle_tokens[r]] = 0;
    return st;
}

/* ---- at the receiver ---- */

/* A bundle for other seats than the sender's, each once. */
static bool read_bundle(const struct exchange *x, const struct fabric_message *m,
                        struct wire_bundle *ret)
{
    struct ferry_error err;
    uint64_t seen = UINT64_C(1) << m->seat;

    if (wire_bundle_read(ret, &x->shape, m, &err) != FERRY_OK)
        return false;
    for (size_t i = 0; i < ret->n_members; i++) {
        size_t seat = ret->members[i].seat;
        if (seat >= fabric_n_seats(x->options.fabric) || (seen >> seat & 1) != 0)
            return false;
        seen |= UINT64_C(1) << seat;
    }
    return true;
}

bool bundle_note(struct exchange *x, struct inbox *inbox, size_t place)
{
    struct wire_bundle bundle;

    inbox->own[place] = false;
    inbox->pass[place] = 0;
    if (!read_bundle(x, &inbox->messages[place], &bundle))
        return false;
    for (size_t i = 0; i < bundle.n_members; i++) {
        if (bundle.members[i].seat == x->self)
            inbox->own[place] = true;
        else
            inbox->pass[place] |= UINT64_C(1) << i;
    }
    inbox->n_pass += inbox->pass[place] != 0;
    return true;
}

/* Tells the origin that somebody's part did not get through. False: there is no room now. */
static bool refuse(struct exchange *x, const struct fabric_message *m,
                   const struct wire_member *member)
{
    struct lane_header header = {.id = member->id,
                                 .step = m->header.step,
                                 .layer = m->header.layer,
                                 .n_pairs = member->n_pairs,
                                 .origin = m->header.origin,
                                 .kind = WIRE_REFUSED};
    void *payload;

    if (fabric_lanes(x->options.fabric, m->seat) != m->incarnation)
        return true; /* who asked is gone */
    enum ferry_status st = fabric_reserve(x->options.fabric, m->seat, LANE_REPLY, 0, &payload);
    if (st != FERRY_OK)
        return st != FERRY_AGAIN;
    fabric_commit(x->options.fabric, m->seat, LANE_REPLY, &header);
    return true;
}

/* Passes member i on. False: there is no room now. */
static bool pass_on(struct exchange *x, const struct fabric_message *m,
                    const struct wire_bundle *bundle, size_t i)
{
    const struct wire_member *member = &bundle->members[i];
    struct fabric *f = x->options.fabric;
    unsigned flags = m->header.kind & ~(unsigned)WIRE_KIND_MASK;
    size_t n_bytes = member->n_rows * wire_row_bytes(&x->shape, flags) +
                     member->n_pairs * sizeof(struct exchange_pair);
    struct lane_header header = m->header;
    struct ferry_error err;
    void *payload = NULL;

    if (wire_member_rows(bundle, i, x->pass_rows, &err) != FERRY_OK) {
        x->ledger.bad_messages++;
        return true;
    }
    (void)fabric_lanes(f, member->seat);
    enum ferry_status st = impl_is_live(x, member->seat)
                               ? fabric_reserve(f, member->seat, LANE_REQUEST, n_bytes, &payload)
                               : FERRY_ERR_PEER;
    if (st == FERRY_AGAIN)
        return false;
    if (st != FERRY_OK)
        return refuse(x, m, member);
    header.id = member->id;
    header.n_bytes = (uint32_t)n_bytes;
    header.n_rows = member->n_rows;
    header.n_pairs = member->n_pairs;
    header.n_groups = member->n_groups;
    header.kind = (uint16_t)(WIRE_ROWS | flags);
    header.more = member->more;
    header.origin_incarnation = m->incarnation;
    wire_request_write(payload, x->device, &x->shape, flags, &bundle->rows, x->pass_rows,
                       member->n_rows,
                       (const void *)(bundle->data[i] + member->n_rows * sizeof(uint32_t)),
                       member->n_pairs, !fabric_shares_cache(f, member->seat));
    fabric_commit(f, member->seat, LANE_REQUEST, &header);
    x->ledger.passed_on++;
    return true;
}

bool bundle_pass(struct exchange *x, struct inbox *inbox)
{
    struct wire_bundle bundle;
    bool any = false;

    for (size_t i = 0; i < inbox->n; i++) {
        size_t place = (inbox->first + i) % INBOX_MAX;
        const struct fabric_message *m = &inbox->messages[place];
        if (inbox->done[place] || inbox->pass[place] == 0)
            continue;
        /* Read again, since its sender may write into what it has sent: whoever is not there any
         * more gets nothing. */
        uint64_t still = 0;
        size_t n_members = read_bundle(x, m, &bundle) ? bundle.n_members : 0;
        for (size_t k = 0; k < n_members; k++) {
            if ((inbox->pass[place] >> k & 1) == 0 || bundle.members[k].seat == x->self)
                continue;
            if (pass_on(x, m, &bundle, k))
                any = true;
            else
                still |= UINT64_C(1) << k;
        }
        inbox->pass[place] = still;
        inbox->n_pass -= still == 0;
    }
    for (size_t i = inbox->n; i-- > 0;) /* the oldest last: then places are given back */
        serve_settle(x, inbox, (inbox->first + i) % INBOX_MAX);
    return any;
}

enum ferry_status bundle_own(struct exchange *x, const struct fabric_message *message,
                             struct wire_request *ret, struct exchange_pair *pairs,
                             struct lane_header *ret_header, struct ferry_error *err)
{
    struct wire_bundle bundle;
    size_t i = 0;

    enum ferry_status st = wire_bundle_read(&bundle, &x->shape, message, err);
    if (st != FERRY_OK)
        return st;
    while (i < bundle.n_members && bundle.members[i].seat != x->self)
        i++;
    if (i == bundle.n_members)
        return FERRY_FAIL(err, FERRY_ERR_FORMAT, "nothing for this rank");
    st = wire_member_rows(&bundle, i, x->pass_rows, err);
    if (st == FERRY_OK)
        st = wire_member_read(ret, pairs, &bundle, i, x->pass_rows, &x->shape, err);
    *ret_header = message->header;
    ret_header->id = bundle.members[i].id;
    ret_header->n_rows = bundle.members[i].n_rows;
    ret_header->n_pairs = bundle.members[i].n_pairs;
    ret_header->n_groups = bundle.members[i].n_groups;
    return st;
}
