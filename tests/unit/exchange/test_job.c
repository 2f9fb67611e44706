/* Jobs: pairs of several sources sorted by expert, rows found again, groups added up. */
#include "tests/unit/exchange/one_device.h"

#include "base/error.h"
#include "exchange/job.h"

#include <stdlib.h>
#include <string.h>

enum { HIDDEN = 300, EXPERTS = 9, SLOTS = 64, A32 = 64 };

static size_t n_runs;

/* Row = first value of the row times the expert's number plus the column. */
static size_t experts(void *arg, const struct exchange_job *job)
{
    (void)arg;
    n_runs++;
    assert_int_equal(job->begin[job->n_experts], job->n_slots);
    for (size_t e = 0; e < job->n_experts; e++) {
        for (int32_t s = job->begin[e]; s < job->begin[e + 1]; s++) {
            float value;
            assert_true((job->a32_at != NULL) != (job->f32_at != NULL));
            if (job->a32_at != NULL)
                value = (float)*(const unsigned char *)job->a32_at[s];
            else
                value = *(const float *)job->f32_at[s];
            for (size_t c = 0; c < HIDDEN; c++)
                job->out[(size_t)s * job->out_stride + c] = value * (float)(e + 1) + (float)c;
        }
    }
    return job->n_slots;
}

static void sources_meet_and_part(void **state)
{
    /* Source 0: rows 3 floats wide apart HIDDEN; source 1: rows as they come off a lane. */
    const struct exchange_pair first[] = {{0, 2, 1, 0.5f}, {0, 7, 0, 2.0f}, {2, 2, 1, 1.0f}};
    const struct exchange_pair second[] = {{0, 2, 1, 4.0f}, {1, 0, 1, 1.0f}, {1, 8, 1, 3.0f}};
    struct exchange_options options = {
        .max_experts = EXPERTS, .hidden = HIDDEN, .f32_floats = 304, .a32_bytes = A32};

    (void)state;
    for (int a32 = 0; a32 < 2; a32++) {
        struct arena arena;
        struct job job;
        static float own[3 * HIDDEN], lane[2 * 304];
        static unsigned char own_a32[3 * A32], lane_a32[2 * A32];
        static float sums[2][3][HIDDEN];
        static uint16_t half[3][HIDDEN];
        arena_init(&arena, "test");
        assert_true(job_create(&job, &arena, device, &options, SLOTS));
        for (int i = 0; i < 3; i++) {
            own[i * HIDDEN] = (float)(10 + i);
            own_a32[i * A32] = (unsigned char)(10 + i);
        }
        for (int i = 0; i < 2; i++) {
            lane[i * 304] = (float)(20 + i);
            lane_a32[i * A32] = (unsigned char)(20 + i);
        }
        struct job_source sources[2] = {{first, 3, 2, {.f32 = own, .f32_stride = HIDDEN}},
                                        {second, 3, 3, {.f32 = lane, .f32_stride = 304}}};
        if (a32 == 1) {
            sources[0].rows = (struct exchange_rows){.a32 = own_a32, .a32_bytes = A32};
            sources[1].rows = (struct exchange_rows){.a32 = lane_a32, .a32_bytes = A32};
        }
        assert_int_equal(job_run(&job, 1, EXPERTS, sources, 2, experts, NULL), 6);
        assert_int_equal(job_n_active(&job), 4); /* 0, 2, 7, 8 */
        assert_int_equal(job_sums(&job, sources, 0, sums[0], false), 3);
        assert_int_equal(job_sums(&job, sources, 1, sums[1], false), 3);
        for (size_t c = 0; c < HIDDEN; c++) {
            float f = (float)c;
            assert_true(sums[0][0][c] == 0.5f * (30 + f) + 2.0f * (80 + f));
            assert_true(sums[0][1][c] == 36 + f);
            assert_true(sums[1][0][c] == 4.0f * (60 + f));
            assert_true(sums[1][1][c] == 21 + f);
            assert_true(sums[1][2][c] == 3.0f * (189 + f));
        }
        job.bf16_nodes = true;
        assert_int_equal(job_sums(&job, sources, 1, half, true), 3);
        assert_int_equal(half[1][2], 0x41B8); /* 23 */
        /* Rows are read where they lie. */
        assert_int_equal(job_run(&job, 1, EXPERTS, sources, 2, experts, NULL), 6);
        const void *last = a32 == 1 ? (const void *)(lane_a32 + A32) : (const void *)(lane + 304);
        assert_ptr_equal(a32 == 1 ? job.work.a32_at[5] : job.work.f32_at[5], last);
        arena_fini(&arena);
    }
}

static void no_pairs_run_nothing(void **state)
{
    struct exchange_options options = {.max_experts = EXPERTS, .hidden = HIDDEN};
    struct job_source none = {0};
    struct arena arena;
    struct job job;

    (void)state;
    arena_init(&arena, "test");
    assert_true(job_create(&job, &arena, device, &options, SLOTS));
    size_t before = n_runs;
    assert_int_equal(job_run(&job, 0, EXPERTS, &none, 1, experts, NULL), 0);
    assert_int_equal(job_n_active(&job), 0);
    assert_int_equal(n_runs, before);
    arena_fini(&arena);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sources_meet_and_part),
        cmocka_unit_test(no_pairs_run_nothing),
    };
    return cmocka_run_group_tests(tests, make_device, free_device);
}
