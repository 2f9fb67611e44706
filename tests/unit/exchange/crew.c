/* See crew.h. */
#include "tests/unit/exchange/crew.h"

#include <stdlib.h>
#include <string.h>

size_t fake_experts(void *arg, const struct exchange_job *job)
{
    struct member *m = arg; /* NULL: one rank alone */

    for (size_t e = 0; e < job->n_experts; e++) {
        for (int32_t s = job->begin[e]; s < job->begin[e + 1]; s++) {
            const float *row = job->f32_at[s];
            for (size_t c = 0; c < HIDDEN; c++)
                job->out[(size_t)s * job->out_stride + c] =
                    row[c] * (float)(e + 1) + (float)c / 8 + (float)job->layer;
        }
    }
    if (m == NULL || m->n_short == 0)
        return job->n_slots;
    m->n_short--;
    memset(job->out + (job->n_slots - 1) * job->out_stride, 0, HIDDEN * sizeof *job->out);
    return job->n_slots - 1;
}

uint64_t draw(uint64_t *state)
{
    uint64_t z = (*state += UINT64_C(0x9E3779B97F4A7C15));
    z = (z ^ (z >> 30)) * UINT64_C(0xBF58476D1CE4E5B9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94D049BB133111EB);
    return z ^ (z >> 31);
}

void make_input(struct input *in, uint64_t seed)
{
    uint64_t state = seed * 77 + 5;

    for (size_t t = 0; t < TOKENS; t++) {
        int32_t all[EXPERTS];
        for (int32_t e = 0; e < EXPERTS; e++)
            all[e] = e;
        for (size_t j = 0; j < TOP_K; j++) { /* without repetition, in random order */
            size_t at = j + draw(&state) % (EXPERTS - j);
            int32_t id = all[at];
            all[at] = all[j];
            all[j] = id;
            in->experts[t * TOP_K + j] = id;
            in->weights[t * TOP_K + j] = (float)(1 + draw(&state) % 1000) / 1000;
        }
        for (size_t c = 0; c < HIDDEN; c++)
            in->rows[t * HIDDEN + c] = (float)(draw(&state) % 20011) / 997;
    }
}

struct exchange_round_input round_of(struct input *in, size_t layer, size_t first, size_t n)
{
    return (struct exchange_round_input){
        .layer = layer,
        .experts = in->experts + first * TOP_K,
        .weights = in->weights + first * TOP_K,
        .n_tokens = n,
        .top_k = TOP_K,
        .n_experts = EXPERTS,
        .rows = {.f32 = in->rows + first * HIDDEN, .f32_stride = HIDDEN},
        .out = in->out + first * HIDDEN};
}

struct exchange_options options_of(struct fabric *fabric, const struct placement *placement)
{
    return (struct exchange_options){.max_tokens = TOKENS,
                                     .max_top_k = TOP_K,
                                     .max_experts = EXPERTS,
                                     .n_layers = LAYERS,
                                     .hidden = HIDDEN,
                                     .f32_floats = (HIDDEN + 15) / 16 * 16,
                                     .run_experts = fake_experts,
                                     .fabric = fabric,
                                     .placement = placement};
}

struct exchange *alone_on(struct device *on, bool bf16)
{
    struct exchange *x = NULL;
    struct ferry_error err = {0};
    struct exchange_options options = options_of(NULL, NULL);

    options.combine_bf16 = bf16;
    assert_int_equal(exchange_create(&x, on, &options, &err), FERRY_OK);
    return x;
}

static enum ferry_status resident(void *arg, size_t layer, size_t expert, struct ferry_error *err)
{
    const struct member *m = arg;

    (void)layer;
    (void)expert;
    (void)err;
    if (m->broken) {
        err->msg[0] = 0;
        return FERRY_ERR_NOMEM;
    }
    return FERRY_OK;
}

/* What the rounds of this member must give: by one rank alone. */
static bool equals_one_rank(struct member *m, struct exchange *one, struct input *wanted, size_t i)
{
    struct ferry_error err = {0};
    size_t n = m->crew->tokens[m->seat];

    memcpy(wanted->experts, m->in->experts, sizeof wanted->experts);
    memcpy(wanted->weights, m->in->weights, sizeof wanted->weights);
    memcpy(wanted->rows, m->in->rows, sizeof wanted->rows);
    struct exchange_round_input round = round_of(wanted, i % LAYERS, 0, n);
    return exchange_run(one, &round, &err) == FERRY_OK &&
           memcmp(wanted->out, m->in->out, n * HIDDEN * sizeof(float)) == 0;
}

static enum ferry_status run_round(struct member *m, size_t i, struct ferry_error *err)
{
    size_t n = m->crew->tokens[m->seat];

    if (!m->crew->overlap || n < 2) {
        struct exchange_round_input round = round_of(m->in, i % LAYERS, 0, n);
        return exchange_run(m->x, &round, err);
    }
    struct exchange_round_input a = round_of(m->in, i % LAYERS, 0, n / 2),
                                b = round_of(m->in, i % LAYERS, n / 2, n - n / 2);
    enum ferry_status st = exchange_begin(m->x, 0, &a, err);
    if (st != FERRY_OK)
        return st;
    enum ferry_status second = exchange_begin(m->x, 1, &b, err);
    st = exchange_end(m->x, 0, err);
    return second == FERRY_OK ? (st == FERRY_OK ? exchange_end(m->x, 1, err) : st) : second;
}

/* Who gives a member up and takes it back may be held up in between. After 20 s the next round says
 * that it is not live. */
static void wait_until_live(const struct member *m)
{
    struct fabric *end = fake_end(m->crew->group, m->seat);
    uint64_t until = fabric_now_ns(end) + UINT64_C(20000000000);

    for (;;) {
        uint32_t seen = fabric_rings(end);
        if ((fabric_live(end) >> m->seat & 1) != 0 || atomic_load(&m->crew->dead) == m->seat ||
            fabric_now_ns(end) > until)
            return;
        fabric_sleep(end, seen, 100000000);
    }
}

static void *member_main(void *arg)
{
    struct member *m = arg;
    struct crew *c = m->crew;
    struct exchange *one = alone_on(m->device, c->bf16);
    struct input *wanted = malloc(sizeof *wanted);

    for (size_t i = 0; i < c->n_rounds && atomic_load(&c->dead) != m->seat; i++) {
        struct ferry_error err = {0};
        make_input(m->in, c->seed + i * 100 + (size_t)m->seat);
        exchange_set_step(m->x, i);
        enum ferry_status st = run_round(m, i, &err);
        for (int again = 0;
             again < 20 && c->many_losses && (st == FERRY_ERR_LEDGER || st == FERRY_ERR_PEER);
             again++) {
            wait_until_live(m);
            st = run_round(m, i, &err); /* void: as the model does, but more patient */
        }
        if (atomic_load(&c->dead) == m->seat)
            break; /* it does not know what it returns */
        if (st != FERRY_OK || !equals_one_rank(m, one, wanted, i)) {
            (void)fprintf(stderr, "seat %d round %zu: %s\n", m->seat, i,
                          st != FERRY_OK ? err.msg : "other bits");
            atomic_fetch_add(&c->n_failed, 1);
            m->n_failed++;
        }
    }
    atomic_fetch_add(&c->n_done, 1);
    while (atomic_load(&c->n_done) < c->n) {
        if (atomic_load(&c->dead) == m->seat)
            (void)usleep(1000);
        else
            (void)exchange_serve(m->x, 2000000, true);
    }
    (void)exchange_serve(m->x, 0, false); /* what came last is taken and given back */
    exchange_destroy(one);
    free(wanted);
    return NULL;
}

void crew_start(struct crew *c, const size_t max_payload[LANE_N_CHANNELS])
{
    struct ferry_error err = {0};

    c->group = fake_group_create(c->n, max_payload);
    if (c->per_host > 0)
        fake_hosts(c->group, c->per_host);
    atomic_store(&c->dead, -1);
    for (size_t s = 0; s < c->n; s++) {
        struct member *m = &c->members[s];
        struct exchange_options options = options_of(fake_end(c->group, (int)s), c->placement);
        struct device_options one = {.n_threads = 1, .level = CPU_LEVEL_REF};
        options.combine_bf16 = c->bf16;
        options.make_resident = resident;
        options.arg = m;
        options.deadline_ns = c->deadline_ns > 0 ? c->deadline_ns : UINT64_C(20000000000);
        options.gather_ns = c->gather_ns;
        options.bundle_bytes = c->per_host > 0 ? 1 : 0;
        m->crew = c;
        m->seat = (int)s;
        m->in = malloc(sizeof *m->in);
        assert_int_equal(device_create_cpu(&m->device, &one, &err), FERRY_OK);
        assert_int_equal(exchange_create(&m->x, m->device, &options, &err), FERRY_OK);
    }
}

void crew_run(struct crew *c)
{
    for (size_t s = 0; s < c->n; s++)
        assert_int_equal(pthread_create(&c->members[s].thread, NULL, member_main, &c->members[s]),
                         0);
    for (size_t s = 0; s < c->n; s++)
        (void)pthread_join(c->members[s].thread, NULL);
}

void crew_end(struct crew *c, bool all_alive)
{
    uint64_t served = 0, routed = 0, local = 0;

    for (size_t s = 0; s < c->n; s++) {
        const struct exchange_ledger *l = exchange_ledger(c->members[s].x);
        if (all_alive) {
            assert_int_equal(l->routed, c->tokens[s] * TOP_K * c->n_rounds);
            assert_int_equal(l->delivered, l->routed);
            assert_int_equal(l->combined, l->routed);
            assert_int_equal(l->late + l->bad_messages + l->voided, 0);
        }
        served += l->served;
        routed += l->routed;
        uint64_t counts[EXPERTS];
        for (size_t layer = 0; layer < LAYERS; layer++) {
            exchange_counts(c->members[s].x, layer, EXPERTS, counts);
            for (size_t e = 0; e < EXPERTS; e++)
                local += counts[e];
        }
    }
    if (all_alive) {
        assert_int_equal(local, routed);
        assert_true(served <= routed);
        assert_int_equal(fake_unreleased(c->group), 0);
    }
    for (size_t s = 0; s < c->n; s++) {
        exchange_destroy(c->members[s].x);
        device_destroy(c->members[s].device);
        free(c->members[s].in);
    }
    fake_group_destroy(c->group);
    placement_destroy(c->placement);
}

const size_t WIDE[LANE_N_CHANNELS] = {1 << 20, 1 << 20};
const size_t NARROW[LANE_N_CHANNELS] = {HIDDEN * 4 + 64 + TOP_K * 12, TOP_K *HIDDEN * 4};

struct placement *placed(size_t n_seats, size_t n_replicas, uint64_t seed)
{
    struct placement *p = NULL;
    struct ferry_error err = {0};

    assert_int_equal(seed == 0
                         ? placement_contiguous(&p, LAYERS, EXPERTS, n_seats, n_replicas, &err)
                         : placement_random(&p, LAYERS, EXPERTS, n_seats, n_replicas, seed, &err),
                     FERRY_OK);
    return p;
}
