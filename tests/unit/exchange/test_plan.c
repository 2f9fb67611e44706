/* Plans: every pair in exactly one part, nearest holder first, messages within their bounds, and
 * the same after parts were planned again and again. */
#include "tests/unit/unit.h"

#include "exchange/plan.h"

#include <stdlib.h>
#include <string.h>

enum { EXPERTS = 24, TOP_K = 6, TOKENS = 40 };

struct fixture {
    struct arena arena;
    struct plan plan;
    int32_t experts[TOKENS * TOP_K];
    float weights[TOKENS * TOP_K];
    uint64_t seats[EXPERTS];
    enum link_class links[LIMIT_SEATS];
    struct plan_holders holders;
    struct plan_limits limits;
};

static void set_up(struct fixture *f, uint32_t seed, size_t n_seats)
{
    memset(f, 0, sizeof *f);
    arena_init(&f->arena, "test");
    assert_true(plan_create(&f->plan, &f->arena, TOKENS * TOP_K, true));
    for (size_t t = 0; t < TOKENS; t++) {
        int32_t all[EXPERTS];
        for (int32_t e = 0; e < EXPERTS; e++)
            all[e] = e;
        for (size_t j = 0; j < TOP_K; j++) {
            size_t at = j + unit_draw(&seed) % (EXPERTS - j);
            int32_t id = all[at];
            all[at] = all[j];
            all[j] = id;
            f->experts[t * TOP_K + j] = id;
            f->weights[t * TOP_K + j] = (float)(t * 100) + (float)id;
        }
    }
    for (size_t e = 0; e < EXPERTS; e++)
        f->seats[e] = (UINT64_C(1) << unit_draw(&seed) % n_seats) |
                      (UINT64_C(1) << unit_draw(&seed) % n_seats);
    for (size_t s = 0; s < LIMIT_SEATS; s++)
        f->links[s] = s < n_seats ? (s % 2 == 0 ? LINK_SHM : LINK_TCP) : LINK_UNKNOWN;
    f->holders = (struct plan_holders){f->seats, 0, f->links};
    f->limits = (struct plan_limits){.request_bytes = 5 * 100 + 20 * 12,
                                     .reply_bytes = 7 * 64,
                                     .row_bytes = 100,
                                     .sum_bytes = 64,
                                     .n_pairs = 11};
}

static void build(struct fixture *f)
{
    struct exchange_round_input input = {.experts = f->experts,
                                         .weights = f->weights,
                                         .n_tokens = TOKENS,
                                         .top_k = TOP_K,
                                         .n_experts = EXPERTS};

    plan_build(&f->plan, &input, &f->holders, &f->limits);
}

/* Every pair of the decision is in exactly one part that is not lost, with its weight and its
 * token; the parts keep their bounds. */
static void check(const struct fixture *f, uint64_t may)
{
    static unsigned char seen[TOKENS][EXPERTS];
    size_t n_seen = 0;

    memset(seen, 0, sizeof seen);
    for (size_t p = 0; p < f->plan.n_parts; p++) {
        const struct part *part = &f->plan.parts[p];
        bool is_self = part->seat == f->holders.self;
        size_t in_groups = 0;
        if (part->state == PART_LOST)
            continue;
        assert_true((may >> part->seat & 1) != 0);
        assert_true(part->n_groups > 0);
        if (!is_self && part->n_groups > 1) {
            assert_true(part->n_rows * 100 + part->n_pairs * 12 <= f->limits.request_bytes);
            assert_true(part->n_groups * 64 <= f->limits.reply_bytes);
            assert_true(part->n_pairs <= f->limits.n_pairs);
        }
        for (size_t g = 0; g < part->n_groups; g++) {
            const struct plan_group *group = &f->plan.groups[part->first_group + g];
            in_groups += group->n_pairs;
            for (size_t i = 0; i < group->n_pairs; i++) {
                const struct exchange_pair *pair = &f->plan.pairs[group->first_pair + i];
                assert_int_equal(pair->begins, i == 0);
                assert_true(i == 0 || pair->expert > pair[-1].expert);
                uint32_t token =
                    is_self ? pair->row : f->plan.row_token[part->first_row + pair->row];
                assert_int_equal(token, group->token);
                assert_true(pair->weight == (float)(token * 100) + (float)pair->expert);
                assert_true((f->seats[pair->expert] >> part->seat & 1) != 0);
                assert_int_equal(seen[token][pair->expert]++, 0);
                n_seen++;
            }
        }
        assert_int_equal(in_groups, part->n_pairs);
    }
    assert_int_equal(n_seen, TOKENS * TOP_K);
    for (size_t i = 0; i < TOKENS * TOP_K; i++)
        assert_int_equal(seen[i / TOP_K][f->experts[i]], 1);
}

static void every_pair_has_one_holder(void **state)
{
    (void)state;
    for (uint32_t seed = 0; seed < 50; seed++) {
        struct fixture *f = malloc(sizeof *f);
        set_up(f, seed, 1 + seed % 9);
        build(f);
        check(f, UINT64_MAX);
        size_t n_own = 0;
        for (size_t i = 0; i < TOKENS * TOP_K; i++)
            n_own += f->seats[f->experts[i]] & 1;
        assert_int_equal(plan_own_pairs(&f->plan, f->holders.self), n_own);
        /* Local first; then no seat by TCP while one by shared memory holds it. */
        for (size_t p = 0; p < f->plan.n_parts; p++) {
            const struct part *part = &f->plan.parts[p];
            for (size_t i = 0; i < part->n_pairs; i++) {
                uint64_t seats = f->seats[f->plan.pairs[part->first_pair + i].expert];
                assert_true(part->seat == 0 || (seats & 1) == 0);
                assert_true(f->links[part->seat] == LINK_SHM ||
                            (seats & UINT64_C(0x5555555555555555)) == 0);
            }
        }
        arena_fini(&f->arena);
        free(f);
    }
}

/* Parts are lost one after the other; seats may become none of those that were lost. */
static void lost_parts_are_planned_again(void **state)
{
    (void)state;
    for (uint32_t seed = 0; seed < 50; seed++) {
        struct fixture *f = malloc(sizeof *f);
        size_t n_seats = 3 + seed % 6;
        set_up(f, seed, n_seats);
        build(f);
        uint64_t lost = 0, all = (UINT64_C(1) << n_seats) - 1;
        for (int death = 0; death < 2; death++) {
            int seat = 1 + (int)((seed + (uint32_t)death) % (n_seats - 1));
            lost |= UINT64_C(1) << seat;
            for (size_t e = 0; e < EXPERTS; e++) {
                f->seats[e] &= ~lost;
                if (f->seats[e] == 0) /* an orphan goes to some survivor */
                    f->seats[e] = UINT64_C(1) << (all & ~lost & ~UINT64_C(1)
                                                      ? __builtin_ctzll(all & ~lost & ~UINT64_C(1))
                                                      : 0);
            }
            size_t n = f->plan.n_parts;
            for (size_t p = 0; p < n; p++) {
                if (f->plan.parts[p].seat == seat && f->plan.parts[p].state != PART_LOST)
                    assert_true(plan_again(&f->plan, p, &f->holders, &f->limits));
            }
        }
        /* Holders of what was not lost may have been given more seats: only lost ones are new. */
        check(f, ~lost);
        arena_fini(&f->arena);
        free(f);
    }
}

static void without_end_is_void(void **state)
{
    struct fixture *f = malloc(sizeof *f);
    int n = 0;

    (void)state;
    set_up(f, 5, 4);
    for (size_t e = 0; e < EXPERTS; e++)
        f->seats[e] = 2;
    build(f);
    for (;; n++) {
        size_t last = f->plan.n_parts;
        bool fits = true;
        for (size_t p = 0; p < last && fits; p++) {
            if (f->plan.parts[p].state != PART_LOST)
                fits = plan_again(&f->plan, p, &f->holders, &f->limits);
        }
        if (!fits)
            break;
        assert_true(n < 100);
    }
    assert_true(n >= 2); /* it can be lost more than once */
    arena_fini(&f->arena);
    free(f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_pair_has_one_holder),
        cmocka_unit_test(lost_parts_are_planned_again),
        cmocka_unit_test(without_end_is_void),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
