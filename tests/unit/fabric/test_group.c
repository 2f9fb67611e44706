/* Membership under seeded schedules of joins, deaths, cuts, stops and drains. group_world.c checks
 * after every event that no epoch is two different ones, that epochs grow, and that no two
 * processes can believe at once to issue or to hold a seat; here it is checked that a group comes
 * to rest, and how soon. */
#include "group_world.h"

#include <stdlib.h>
#include <string.h>

static struct world world;
static uint64_t n_seeds = 60; /* an argument gives another number */

static void start_all(size_t n)
{
    for (size_t i = 0; i < n; i++) {
        (void)world_start(&world, -1);
        world_run(&world, WORLD_MS);
    }
    if (!world_settle(&world, 60000 * WORLD_MS)) {
        world_print(&world);
        fail_msg("seed %llu: %zu ranks do not come together", (unsigned long long)world.seed, n);
    }
}

static void settle(uint64_t ms, const char *after)
{
    if (world_settle(&world, ms * WORLD_MS))
        return;
    world_print(&world);
    fail_msg("seed %llu: no rest %llu ms after %s", (unsigned long long)world.seed,
             (unsigned long long)ms, after);
}

static void test_all_sizes_join(void **state)
{
    static const size_t SIZES[] = {1, 2, 3, 4, 5, 7, 16, 64};

    (void)state;
    for (size_t i = 0; i < COUNT_OF(SIZES); i++) {
        world_open(&world, i, SIZES[i]);
        start_all(SIZES[i]);
        world_close(&world);
    }
}

static int random_member(void)
{
    int found = -1;
    size_t n = 0;

    for (int p = 0; p < WORLD_PROCESSES; p++) {
        if (world.processes[p].alive && group_is_member(&world.processes[p].group) &&
            world_random(&world, ++n) == 0)
            found = p;
    }
    return found;
}

/* One fault, rest, the next fault: the group always comes back whole. */
static void one_fault(int kind)
{
    int p = random_member();

    assert_true(p >= 0);
    switch (kind) {
    case 0:
        world_kill(&world, p);
        settle(3000, "a death");
        (void)world_start(&world, -1);
        settle(8000, "a joining");
        break;
    case 1:
        world_stop(&world, p, world_random(&world, 4000) * WORLD_MS);
        world_run(&world, world_random(&world, 5000) * WORLD_MS);
        world_heal(&world);
        settle(20000, "a stop");
        break;
    case 2:
        for (int q = 0; q < WORLD_PROCESSES; q++) {
            world_cut(&world, p, q, true);
            world_cut(&world, q, p, true);
        }
        world_run(&world, world_random(&world, 5000) * WORLD_MS);
        world_heal(&world);
        settle(20000, "a cut");
        break;
    default: { /* one way between two */
        int q = random_member();
        if (q != p)
            world_cut(&world, p, q, true);
        world_run(&world, world_random(&world, 4000) * WORLD_MS);
        world_heal(&world);
        settle(20000, "a one-way cut");
        break;
    }
    }
}

static void test_one_fault_at_a_time(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= n_seeds / 4; seed++) {
        size_t n = 3 + seed % 5;

        world_open(&world, seed, n);
        start_all(n);
        for (int i = 0; i < 12; i++)
            one_fault((int)world_random(&world, 4));
        world_close(&world);
    }
}

static void random_fault(void)
{
    int p = random_member(), q = random_member();

    if (p < 0)
        return;
    switch (world_random(&world, 8)) {
    case 0:
        if (world_alive(&world) > 1)
            world_kill(&world, p);
        break;
    case 1:
        if (world_alive(&world) < world.n_seats)
            (void)world_start(&world, -1);
        break;
    case 2:
        world_stop(&world, p, world_random(&world, 3000) * WORLD_MS);
        break;
    case 3:
    case 4:
        world_cut(&world, p, q, true);
        break;
    case 5:
        world_heal(&world);
        break;
    case 6: { /* into two halves */
        uint64_t side = world_random(&world, UINT64_MAX);
        for (int a = 0; a < WORLD_PROCESSES; a++) {
            for (int b = 0; b < WORLD_PROCESSES; b++)
                world_cut(&world, a, b, ((side >> (a % 64)) & 1) != ((side >> (b % 64)) & 1));
        }
        break;
    }
    default:
        group_wish(&world.processes[p].group, WIRE_BEAT_DRAIN, 0,
                   world.now_ns + world.processes[p].skew_ns);
        break;
    }
}

/* Whatever happens, what must never happen does not. Whether the group comes back depends. */
static void test_anything(void **state)
{
    const char *given = getenv("FERRY_SEED");
    uint64_t first = given != NULL ? strtoull(given, NULL, 10) : 1000;
    uint64_t n = given != NULL ? 1 : n_seeds;
    size_t n_back = 0;

    (void)state;
    for (uint64_t seed = first; seed < first + n; seed++) {
        size_t n_seats = 2 + seed % 6;

        world_open(&world, seed, n_seats);
        start_all(n_seats);
        for (int i = 0; i < 40; i++) {
            random_fault();
            world_run(&world, world_random(&world, 1500) * WORLD_MS);
        }
        world_heal(&world);
        bool back = world_settle(&world, 30000 * WORLD_MS);
        if (!back && given != NULL)
            world_print(&world);
        n_back += back;
        world_close(&world);
    }
    print_message("%zu of %llu schedules ended in a whole group\n", n_back, (unsigned long long)n);
}

int main(int argc, char **argv)
{
    if (argc > 1)
        n_seeds = strtoull(argv[1], NULL, 10);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_all_sizes_join),
        cmocka_unit_test(test_one_fault_at_a_time),
        cmocka_unit_test(test_anything),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
