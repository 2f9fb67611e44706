/* The combine tree: its shape, its groups, and that groups added up elsewhere give the same bits.
 */
#include "tests/unit/unit.h"

#include "exchange/tree.h"

#include <stdlib.h>
#include <string.h>

/* Every leaf but the first is added into another exactly once, and nothing is added after it was.
 */
static void every_leaf_is_used_once(void **state)
{
    uint8_t left[LIMIT_TOP_K], right[LIMIT_TOP_K];
    int32_t ids[LIMIT_TOP_K];

    (void)state;
    for (size_t n_experts = 1; n_experts <= 70; n_experts++) {
        for (size_t k = 1; k <= n_experts && k <= LIMIT_TOP_K; k++) {
            uint8_t gone[LIMIT_TOP_K] = {0};
            for (size_t i = 0; i < k; i++) /* spread over the range */
                ids[i] = (int32_t)(i * n_experts / k);
            assert_int_equal(tree_steps(ids, k, n_experts, left, right), k - 1);
            for (size_t i = 0; i + 1 < k; i++) {
                assert_true(left[i] < right[i] && right[i] < k);
                assert_int_equal(gone[left[i]], 0);
                assert_int_equal(gone[right[i]], 0);
                gone[right[i]] = 1;
            }
        }
    }
}

static void known_tree(void **state)
{
    /* Experts 0..7: {1, 2} meet in [0, 4), {6, 7} in [6, 8), then both in [0, 8). */
    const int32_t ids[4] = {1, 2, 6, 7};
    uint8_t left[4], right[4];

    (void)state;
    assert_int_equal(tree_steps(ids, 4, 8, left, right), 3);
    const uint8_t want_left[3] = {0, 2, 0}, want_right[3] = {1, 3, 2};
    assert_memory_equal(left, want_left, 3);
    assert_memory_equal(right, want_right, 3);
}

static void known_groups(void **state)
{
    /* Of experts 0..7. Halves [0, 4) and [4, 8): one seat each gives two groups. */
    const int32_t ids[5] = {0, 1, 3, 4, 7};
    const int16_t halves[5] = {2, 2, 2, 5, 5}, mixed[5] = {1, 2, 1, 1, 1}, one[5] = {3, 3, 3, 3, 3};
    uint8_t begins[5];

    (void)state;
    assert_int_equal(tree_groups(ids, halves, 5, 8, begins), 2);
    assert_memory_equal(begins, ((const uint8_t[]){0, 3}), 2);
    assert_int_equal(tree_groups(ids, one, 5, 8, begins), 1);
    assert_int_equal(begins[0], 0);
    /* 0 and 3 are on one seat but no node holds them without 1; 4 and 7 are [4, 8). */
    assert_int_equal(tree_groups(ids, mixed, 5, 8, begins), 4);
    assert_memory_equal(begins, ((const uint8_t[]){0, 1, 2, 3}), 4);
    /* The same seat on both sides of a boundary that is not a node's: two groups. */
    const int32_t across[2] = {3, 4};
    const int16_t seats[2] = {1, 1};
    assert_int_equal(tree_groups(across, seats, 2, 8, begins), 1); /* the root is one */
    const int32_t three[3] = {3, 4, 7};
    const int16_t split[3] = {1, 1, 2};
    assert_int_equal(tree_groups(three, split, 3, 8, begins), 3);
}

/* Groups anywhere, nodes put together here: the bits of adding up at one place. */
static void groups_keep_the_bits(void **state)
{
    enum { COLS = 70, K_MAX = 24 };
    struct kernels kernels;
    float *scratch = malloc(sizeof(float) * LIMIT_TOP_K * TREE_COLS);
    static float rows[K_MAX][COLS], sums[K_MAX][COLS];
    static uint16_t sums_bf16[K_MAX][COLS];
    uint32_t seed = 1;

    (void)state;
    kernels_init(&kernels, CPU_LEVEL_REF);
    for (int round = 0; round < 3000; round++) {
        size_t n_experts = 1 + unit_draw(&seed) % 300, k = 0;
        struct tree_leaf leaves[K_MAX], nodes[K_MAX];
        int32_t ids[K_MAX], node_ids[K_MAX];
        int16_t seats[K_MAX];
        uint8_t begins[K_MAX];
        bool bf16 = round % 2 == 1;
        float want[COLS], got[COLS];
        for (size_t e = 0; e < n_experts && k < K_MAX; e++) {
            if (unit_draw(&seed) % n_experts > 12)
                continue;
            for (size_t c = 0; c < COLS; c++)
                rows[k][c] = (float)((int32_t)(unit_draw(&seed) % 20001) - 10000) / 777.0f;
            ids[k] = (int32_t)e;
            seats[k] = (int16_t)(unit_draw(&seed) % (1 + (unsigned)round % 4));
            leaves[k] = (struct tree_leaf){.row = rows[k],
                                           .weight = (float)(unit_draw(&seed) % 1000) / 999.0f};
            k++;
        }
        if (k == 0)
            continue;
        assert_int_equal(
            tree_sum(&kernels, leaves, ids, k, n_experts, 0, COLS, bf16, want, false, scratch), k);
        size_t n = tree_groups(ids, seats, k, n_experts, begins);
        for (size_t g = 0; g < n; g++) {
            size_t first = begins[g], last = g + 1 < n ? begins[g + 1] : k;
            for (size_t i = first; i < last; i++)
                assert_int_equal(seats[i], seats[first]);
            void *sum = bf16 ? (void *)sums_bf16[g] : (void *)sums[g];
            assert_int_equal(tree_sum(&kernels, leaves + first, ids + first, last - first,
                                      n_experts, 0, COLS, bf16, sum, bf16, scratch),
                             last - first);
            nodes[g] = (struct tree_leaf){.row = sum, .is_node = true, .is_bf16 = bf16};
            node_ids[g] = ids[first];
        }
        assert_int_equal(
            tree_sum(&kernels, nodes, node_ids, n, n_experts, 0, COLS, bf16, got, false, scratch),
            n);
        assert_memory_equal(got, want, sizeof got);
    }
    free(scratch);
}

/* A group is as large as it can be: two neighbours of one seat are never one node. */
static void groups_are_the_largest(void **state)
{
    uint32_t seed = 7;
    uint8_t begins[8];

    (void)state;
    for (int round = 0; round < 2000; round++) {
        int32_t ids[8];
        int16_t seats[8];
        size_t k = 0;
        for (int32_t e = 0; e < 8; e++) {
            if (unit_draw(&seed) % 3 > 0) {
                seats[k] = (int16_t)(unit_draw(&seed) % 2);
                ids[k++] = e;
            }
        }
        size_t n = k > 0 ? tree_groups(ids, seats, k, 8, begins) : 0;
        for (size_t g = 0; g < n; g++) {
            size_t first = begins[g], last = g + 1 < n ? begins[g + 1] : k;
            /* The node above: of the size that holds the group, doubled. */
            int32_t size = 1;
            while (ids[first] / size != ids[last - 1] / size)
                size *= 2;
            bool other = size == 8;
            for (; size <= 8 && !other; size *= 2) {
                size_t in = 0;
                for (size_t i = 0; i < k; i++) {
                    in += ids[i] / size == ids[first] / size;
                    other |= ids[i] / size == ids[first] / size && seats[i] != seats[first];
                }
                assert_true(other || in == last - first);
            }
        }
    }
}

/* Adding up as the head of the file says, one float at a time. */
static float direct_sum(const struct tree_leaf *leaves, const int32_t *ids, size_t first,
                        size_t last, int32_t lo, int32_t hi, size_t col)
{
    if (last - first == 1) {
        float value = ((const float *)leaves[first].row)[col];
        return leaves[first].is_node ? value : value * leaves[first].weight;
    }
    int32_t mid = lo + (hi - lo) / 2;
    size_t split = first;
    while (split < last && ids[split] < mid)
        split++;
    if (split == first)
        return direct_sum(leaves, ids, first, last, mid, hi, col);
    if (split == last)
        return direct_sum(leaves, ids, first, last, lo, mid, col);
    return direct_sum(leaves, ids, first, split, lo, mid, col) +
           direct_sum(leaves, ids, split, last, mid, hi, col);
}

/* Every level, every place (aligned or not), past the caches or not, in place or not: the same
 * bits, and nothing beside dst is written. */
static void levels_and_stores_agree(void **state)
{
    enum { K_MAX = 11, PAD = 40 };
    static float rows[K_MAX][TREE_COLS + 16], scratch[LIMIT_TOP_K * TREE_COLS];
    static _Alignas(64) float out[TREE_COLS + 2 * PAD];
    uint32_t seed = 5;

    (void)state;
    for (int round = 0; round < 4000; round++) {
        struct kernels kernels;
        struct tree_leaf leaves[K_MAX];
        int32_t ids[K_MAX], id = 0;
        size_t k = 1 + unit_draw(&seed) % K_MAX, n = 1 + unit_draw(&seed) % TREE_COLS;
        size_t col = unit_draw(&seed) % 16, at = PAD + unit_draw(&seed) % 9;
        bool stream = unit_draw(&seed) % 2 == 0, in_place = unit_draw(&seed) % 4 == 0;
        kernels_init(&kernels, unit_draw(&seed) % 2 == 0 ? CPU_LEVEL_REF : cpu_best_level());
        for (size_t i = 0; i < k; i++) {
            for (size_t c = 0; c < TREE_COLS + 16; c++)
                rows[i][c] = (float)((int32_t)(unit_draw(&seed) % 20001) - 10000) / 777.0f;
            id += 1 + (int32_t)(unit_draw(&seed) % 5);
            ids[i] = id;
            leaves[i] = (struct tree_leaf){.row = rows[i],
                                           .weight = (float)(unit_draw(&seed) % 1000) / 999.0f,
                                           .is_node = unit_draw(&seed) % 3 == 0};
        }
        for (size_t c = 0; c < TREE_COLS + 2 * PAD; c++)
            out[c] = -7;
        if (in_place) { /* one leaf lies where the sum goes */
            size_t i = unit_draw(&seed) % k;
            memcpy(out + at, rows[i] + col, n * sizeof(float));
            leaves[i].row = out + at - col;
        }
        float want[TREE_COLS];
        for (size_t c = 0; c < n; c++)
            want[c] = direct_sum(leaves, ids, 0, k, 0, 64, col + c);
        assert_int_equal(tree_sum(&kernels, leaves, ids, k, 64, col, n, false, out + at,
                                  stream ? TREE_STREAM : TREE_F32, scratch),
                         k);
        tree_fence();
        assert_memory_equal(out + at, want, n * sizeof(float));
        for (size_t c = 0; c < TREE_COLS + 2 * PAD; c++)
            assert_true((c >= at && c < at + n) || out[c] == -7);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_leaf_is_used_once),
        cmocka_unit_test(known_tree),
        cmocka_unit_test(known_groups),
        cmocka_unit_test(groups_keep_the_bits),
        cmocka_unit_test(groups_are_the_largest),
        cmocka_unit_test(levels_and_stores_agree),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
