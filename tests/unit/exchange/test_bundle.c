/* Bundles: a row crosses from host to host once, whatever ranks want it there; whoever cannot pass
 * on says so; nothing that a peer puts into a bundle harms anybody. */
#include "tests/unit/exchange/crew.h"

#include "exchange/wire.h"

#include <stdlib.h>
#include <string.h>

/* ---- what crosses ---- */

struct crossing {
    size_t per_host;
    atomic_size_t n_rows, n_bundles, n_passed, n_refused;
};

static bool count_crossing(void *arg, int from, int to, enum lane_channel channel,
                           struct lane_header *header, unsigned char *payload)
{
    struct crossing *c = arg;
    bool crosses = (size_t)from / c->per_host != (size_t)to / c->per_host;

    (void)payload;
    atomic_fetch_add(&c->n_refused, channel == LANE_REPLY && header->kind == WIRE_REFUSED);
    if (channel != LANE_REQUEST)
        return true;
    if (crosses && header->step > 0) /* in the first round nobody was heard yet: straight to all */
        atomic_fetch_add(&c->n_rows, header->n_rows);
    atomic_fetch_add(&c->n_bundles, (header->kind & WIRE_KIND_MASK) == WIRE_BUNDLE);
    atomic_fetch_add(&c->n_passed, header->origin != from);
    return true;
}

/* Rows that have to cross: tokens with an expert at another host, once for each such host. */
static size_t rows_wanted(const struct crew *c, const struct input *in, size_t layer, size_t host)
{
    size_t n = 0;

    for (size_t t = 0; t < c->tokens[0]; t++) {
        bool any = false;
        for (size_t j = 0; j < TOP_K; j++) {
            size_t expert = (size_t)in->experts[t * TOP_K + j];
            int seat = __builtin_ctzll(placement_listed(c->placement, layer, expert));
            any |= (size_t)seat / c->per_host == host;
        }
        n += any;
    }
    return n;
}

static void a_row_crosses_once(void **state)
{
    (void)state;
    for (size_t per_host = 2; per_host <= 3; per_host++) {
        struct crew c = {.n = 6,
                         .n_rounds = 5,
                         .per_host = per_host,
                         .seed = per_host,
                         .placement = placed(6, 1, per_host)};
        struct crossing crossing = {.per_host = per_host};
        struct input *in = malloc(sizeof *in);
        size_t wanted = 0;

        c.tokens[0] = TOKENS; /* the others only serve */
        crew_start(&c, WIDE);
        fake_on_commit(c.group, count_crossing, &crossing);
        crew_run(&c);
        assert_int_equal(atomic_load(&c.n_failed), 0);
        for (size_t i = 1; i < c.n_rounds; i++) {
            make_input(in, c.seed + i * 100);
            for (size_t host = 1; host < c.n / per_host; host++)
                wanted += rows_wanted(&c, in, i % LAYERS, host);
        }
        assert_int_equal(atomic_load(&crossing.n_rows), wanted);
        assert_true(atomic_load(&crossing.n_bundles) > 0 && atomic_load(&crossing.n_passed) > 0);
        crew_end(&c, true);
        free(in);
    }
}

/* Inside a host, and where nothing is saved, messages go as they always did. */
static void what_saves_nothing_goes_alone(void **state)
{
    (void)state;
    for (size_t i = 0; i < 2; i++) {
        struct crew c = {.n = 4, .n_rounds = 3, .seed = i, .placement = placed(4, 1, i)};
        struct crossing crossing = {.per_host = 2};

        c.tokens[0] = 1; /* one row: less than the least that is worth it */
        c.tokens[2] = i == 0 ? TOKENS : 1;
        crew_start(&c, WIDE);
        if (i == 1)
            fake_hosts(c.group, 2);
        fake_on_commit(c.group, count_crossing, &crossing);
        crew_run(&c);
        assert_int_equal(atomic_load(&c.n_failed), 0);
        assert_int_equal(atomic_load(&crossing.n_bundles), 0);
        crew_end(&c, true);
    }
}

/* Two ranks of one host that do not hear each other: what one was to pass on to the other is
 * refused, and comes straight. */
static void who_cannot_pass_on_says_so(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < 6; seed++) {
        struct crew c = {.n = 4,
                         .n_rounds = 6,
                         .per_host = 2,
                         .many_losses = true,
                         .seed = seed,
                         .placement = placed(4, 1 + seed % 2, seed)};
        struct crossing crossing = {.per_host = 2};

        c.tokens[0] = 19;
        crew_start(&c, WIDE);
        fake_on_commit(c.group, count_crossing, &crossing);
        fake_suspect(c.group, 2, 3, true);
        fake_suspect(c.group, 3, 2, true);
        crew_run(&c);
        assert_int_equal(atomic_load(&c.n_failed), 0);
        assert_true(seed % 2 != 0 || atomic_load(&crossing.n_bundles) > 0); /* replicas: one rank */
        assert_int_equal(atomic_load(&crossing.n_refused), atomic_load(&crossing.n_bundles));
        assert_int_equal(atomic_load(&crossing.n_passed), 0);
        crew_end(&c, false);
    }
}

struct restart {
    struct crew *crew;
    atomic_int holder; /* who was passed something; -1: nobody yet */
    uint64_t id;
    atomic_size_t n_wrong;
};

static bool restart_origin(void *arg, int from, int to, enum lane_channel channel,
                           struct lane_header *header, unsigned char *payload)
{
    struct restart *r = arg;
    int nobody = -1;

    (void)payload;
    if (channel == LANE_REPLY && from == atomic_load(&r->holder) && header->id == r->id)
        atomic_fetch_add(&r->n_wrong, 1);
    if (channel == LANE_REQUEST && header->origin != from && atomic_load(&r->holder) < 0) {
        r->id = header->id;
        if (atomic_compare_exchange_strong(&r->holder, &nobody, to)) {
            fake_kill(r->crew->group, header->origin);
            fake_revive(r->crew->group, header->origin);
        }
    }
    return true;
}

/* A rank that starts anew counts its messages from the beginning: sums for what its former life
 * asked, by way of a neighbour that knows nothing of it yet, must not reach it. */
static void who_starts_anew_gets_no_sums_of_before(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < 3; seed++) {
        struct crew c = {.n = 4,
                         .n_rounds = 2,
                         .per_host = 2,
                         .seed = seed,
                         .deadline_ns = UINT64_C(300000000),
                         .placement = placed(4, 1, seed)};
        struct restart restart = {.crew = &c, .holder = -1};

        c.tokens[0] = TOKENS;
        crew_start(&c, WIDE);
        fake_on_commit(c.group, restart_origin, &restart);
        crew_run(&c); /* the second round fails: nobody owes it anything any more */
        assert_true(atomic_load(&restart.holder) >= 0);
        assert_int_equal(atomic_load(&restart.n_wrong), 0);
        crew_end(&c, false);
    }
}

/* ---- hostile bundles ---- */

enum { A32 = 128, SLOTS = 50, ROWS = 6, MEMBERS = 3 };

static const struct wire_shape SHAPE = {4, 11, 37, SLOTS, A32, 0};

/* Three members of 2, 3 and 4 rows with one pair each; returns its bytes. */
static size_t make_bundle(unsigned char *payload, struct fabric_message *ret)
{
    struct wire_member members[MEMBERS];
    unsigned char *at = payload + ROWS * A32;

    memset(payload, 7, ROWS * A32);
    for (uint32_t m = 0; m < MEMBERS; m++)
        members[m] = (struct wire_member){100 + m, m + 2, m + 2, m + 2, (uint16_t)(m + 1), 0};
    memcpy(at, members, sizeof members);
    at += sizeof members;
    for (uint32_t m = 0; m < MEMBERS; m++) {
        for (uint32_t r = 0; r < m + 2; r++, at += sizeof r) {
            uint32_t row = (r + m) % ROWS;
            memcpy(at, &row, sizeof row);
        }
        for (uint32_t r = 0; r < m + 2; r++, at += sizeof(struct exchange_pair)) {
            struct exchange_pair pair = {r, (uint16_t)(r + m), 1, 1};
            memcpy(at, &pair, sizeof pair);
        }
    }
    *ret = (struct fabric_message){.data = payload, .seat = 5};
    ret->header = (struct lane_header){.layer = 1,
                                       .kind = WIRE_BUNDLE | WIRE_A32,
                                       .n_rows = ROWS,
                                       .n_pairs = 9,
                                       .n_groups = MEMBERS};
    ret->header.n_bytes = (uint32_t)(at - payload);
    assert_int_equal(ret->header.n_bytes,
                     wire_bundle_bytes(&SHAPE, WIRE_A32, ROWS, members, MEMBERS));
    return ret->header.n_bytes;
}

static void members_are_read(void **state)
{
    unsigned char *payload = aligned_alloc(64, 64 * 64);
    struct fabric_message m;
    struct wire_bundle bundle;
    struct wire_request request;
    struct exchange_pair pairs[SLOTS];
    uint32_t rows[SLOTS];
    struct ferry_error err;

    (void)state;
    (void)make_bundle(payload, &m);
    assert_int_equal(wire_bundle_read(&bundle, &SHAPE, &m, &err), FERRY_OK);
    assert_int_equal(bundle.n_members, MEMBERS);
    assert_int_equal(bundle.members[2].id, 102);
    assert_int_equal(wire_member_rows(&bundle, 2, rows, &err), FERRY_OK);
    assert_int_equal(rows[3], 5);
    assert_int_equal(wire_member_read(&request, pairs, &bundle, 2, rows, &SHAPE, &err), FERRY_OK);
    assert_int_equal(request.n_pairs, 4);
    assert_int_equal(request.n_groups, 4);
    assert_int_equal(pairs[3].row, 5); /* of the bundle */
    assert_int_equal(pairs[3].expert, 5);
    assert_ptr_equal(request.rows.a32, payload);
    free(payload);
}

static void anything_is_survived(void **state)
{
    uint32_t seed = 11;
    size_t n_good = 0, n_bad = 0;

    (void)state;
    for (int round = 0; round < 60000; round++) {
        unsigned char *payload = aligned_alloc(64, 64 * 64);
        struct fabric_message m;
        struct wire_bundle bundle;
        struct ferry_error err = {0};
        size_t n = make_bundle(payload, &m);
        unsigned char *exact = malloc(n); /* a sanitizer sees every byte too far */
        memcpy(exact, payload, n);
        m.data = exact;
        switch (unit_draw(&seed) % 6) {
        case 0:
            m.header.n_rows = unit_draw(&seed) % 12;
            break;
        case 1:
            m.header.n_groups = unit_draw(&seed) % 90;
            break;
        case 2:
            m.header.kind ^= (uint16_t)(1u << unit_draw(&seed) % 16);
            break;
        case 3:
            m.header.n_rows = unit_draw(&seed) * 977;
            break;
        default:
            for (uint32_t i = 1 + unit_draw(&seed) % 3; i > 0; i--)
                exact[ROWS * A32 + unit_draw(&seed) % (n - ROWS * A32)] ^=
                    (unsigned char)(1u << unit_draw(&seed) % 8);
            break;
        }
        bool good = wire_bundle_read(&bundle, &SHAPE, &m, &err) == FERRY_OK;
        for (size_t i = 0; good && i < bundle.n_members; i++) {
            uint32_t rows[SLOTS];
            struct exchange_pair pairs[SLOTS];
            struct wire_request request;
            if (wire_member_rows(&bundle, i, rows, &err) != FERRY_OK ||
                wire_member_read(&request, pairs, &bundle, i, rows, &SHAPE, &err) != FERRY_OK) {
                good = false;
                break;
            }
            for (size_t p = 0; p < request.n_pairs; p++)
                assert_true(pairs[p].row < bundle.n_rows && pairs[p].expert < 11);
        }
        n_good += good;
        n_bad += !good;
        assert_true(good || strlen(err.msg) > 0);
        free(exact);
        free(payload);
    }
    assert_true(n_good > 1000 && n_bad > 1000);
}

/* Flips bits of rank 0's bundles, behind the rows and in the header. */
static bool damage(void *arg, int from, int to, enum lane_channel channel,
                   struct lane_header *header, unsigned char *payload)
{
    uint32_t *seed = arg;
    size_t rows = header->n_rows * (size_t)((HIDDEN + 15) / 16 * 16) * sizeof(float);

    (void)to;
    if (from != 0 || channel != LANE_REQUEST || (header->kind & WIRE_KIND_MASK) != WIRE_BUNDLE)
        return true;
    switch (unit_draw(seed) % 4) {
    case 0:
        header->n_pairs = unit_draw(seed) % 200;
        break;
    case 1:
        header->n_rows = unit_draw(seed) % 60;
        break;
    default:
        for (uint32_t i = 1 + unit_draw(seed) % 8; i > 0; i--)
            payload[rows + unit_draw(seed) % (header->n_bytes - rows)] ^=
                (unsigned char)(1u << unit_draw(seed) % 8);
    }
    return true;
}

/* A rank that sends damaged bundles harms itself; nobody ends, others' rounds are right. */
static void damaged_bundles_harm_their_sender(void **state)
{
    (void)state;
    for (uint32_t seed = 1; seed < 4; seed++) {
        uint32_t random = seed;
        struct crew c = {.n = 4,
                         .n_rounds = 6,
                         .per_host = 2,
                         .seed = seed,
                         .deadline_ns = UINT64_C(300000000),
                         .placement = placed(4, 1, seed)};

        c.tokens[0] = 19;
        c.tokens[2] = 7;
        crew_start(&c, WIDE);
        fake_on_commit(c.group, damage, &random);
        crew_run(&c);
        assert_int_equal(c.members[1].n_failed + c.members[2].n_failed, 0);
        crew_end(&c, false);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_row_crosses_once),
        cmocka_unit_test(what_saves_nothing_goes_alone),
        cmocka_unit_test(who_cannot_pass_on_says_so),
        cmocka_unit_test(who_starts_anew_gets_no_sums_of_before),
        cmocka_unit_test(damaged_bundles_harm_their_sender),
        cmocka_unit_test(members_are_read),
        cmocka_unit_test(anything_is_survived),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
