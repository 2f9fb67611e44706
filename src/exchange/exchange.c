/* Making an exchange, its counts, and serving without own work. See exchange.h. */
#include "exchange/exchange.h"

#include "base/alloc.h"
#include "base/assert.h"
#include "base/error.h"
#include "base/size.h"
#include "exchange/impl.h"

#include <string.h>

static const uint64_t DEADLINE_NS = UINT64_C(60000000000);

static size_t slots_of(const struct exchange_options *options)
{
    return options->max_tokens * options->max_top_k;
}

size_t exchange_job_slots(const struct exchange_options *options)
{
    return options->fabric != NULL ? 2 * slots_of(options) : slots_of(options);
}

static size_t rounds_of(const struct exchange_options *options)
{
    return options->fabric != NULL ? EXCHANGE_ROUNDS : 1;
}

size_t exchange_bytes(const struct exchange_options *options)
{
    bool many = options->fabric != NULL;
    size_t slots = slots_of(options), n = job_bytes(options, exchange_job_slots(options));

    n += options->n_layers * options->max_experts * sizeof(atomic_uint_fast64_t);
    n += rounds_of(options) * plan_bytes(slots, many);
    if (many)
        n += rounds_of(options) * slots *
                 (options->hidden * sizeof(float) + sizeof(struct round_leaf)) +
             rounds_of(options) * options->max_tokens * 3 * sizeof(uint32_t) +
             2 * slots * sizeof(struct exchange_pair) +
             (2 * options->max_tokens + slots) * sizeof(uint32_t) +
             (options->n_layers + 1) * options->max_experts * sizeof(uint64_t) +
             fabric_n_seats(options->fabric) * LANE_N_CHANNELS * sizeof(struct inbox);
    return n + sizeof(struct exchange);
}

void exchange_lane_sizes(const struct exchange_options *options, size_t most,
                         struct transport_lanes *ret_lanes)
{
    size_t row = options->a32_bytes + options->f32_floats * sizeof(float) +
                 options->max_top_k * sizeof(struct exchange_pair);
    size_t sum = options->hidden * sizeof(float);
    /* A message never wraps, so that a ring carries a half of itself at once. The smallest useful
     * one carries a token with all its experts. */
    size_t least = max_size(row, sum * options->max_top_k) + sizeof(struct lane_header);
    size_t request = 2 * (options->max_tokens * row + sizeof(struct lane_header)),
           reply = 2 * (slots_of(options) * sum + sizeof(struct lane_header));

    ret_lanes->ring_bytes[LANE_REQUEST] =
        lane_ring_bytes(max_size(min_size(request, most), 2 * least));
    ret_lanes->ring_bytes[LANE_REPLY] = lane_ring_bytes(max_size(min_size(reply, most), 2 * least));
}

static bool make_round(struct exchange *x, struct round *round)
{
    const struct exchange_options *o = &x->options;
    bool many = o->fabric != NULL;
    size_t slots = slots_of(o);

    if (!plan_create(&round->plan, &x->arena, slots, many))
        return false;
    if (!many)
        return true;
    round->own_sums = arena_array(&x->arena, slots, o->hidden * sizeof(float));
    round->leaves = arena_array(&x->arena, slots, sizeof *round->leaves);
    round->n_leaves = arena_array(&x->arena, o->max_tokens, sizeof *round->n_leaves);
    round->n_missing = arena_array(&x->arena, o->max_tokens, sizeof *round->n_missing);
    round->ready = arena_array(&x->arena, o->max_tokens, sizeof *round->ready);
    return round->own_sums != NULL && round->leaves != NULL && round->n_leaves != NULL &&
           round->n_missing != NULL && round->ready != NULL;
}

static bool make_rest(struct exchange *x)
{
    const struct exchange_options *o = &x->options;
    size_t slots = slots_of(o), n_counts = 0;

    if (!mul_size(o->n_layers, o->max_experts, &n_counts))
        return false;
    x->counts = arena_array(&x->arena, n_counts, sizeof *x->counts);
    x->told = arena_zero(&x->arena, n_counts * sizeof *x->told);
    if (x->counts == NULL || x->told == NULL ||
        !job_create(&x->job, &x->arena, x->device, o, exchange_job_slots(o)))
        return false;
    for (size_t i = 0; i < n_counts; i++)
        atomic_init(&x->counts[i], 0);
    for (size_t i = 0; i < rounds_of(o); i++) {
        if (!make_round(x, &x->rounds[i]))
            return false;
    }
    if (o->fabric == NULL)
        return true;
    x->holders = arena_zero(&x->arena, n_counts * sizeof *x->holders);
    x->layer_live = arena_zero(&x->arena, o->n_layers * sizeof *x->layer_live);
    x->others = arena_array(&x->arena, o->max_experts, sizeof *x->others);
    x->inboxes = arena_zero(&x->arena, fabric_n_seats(o->fabric) * sizeof *x->inboxes);
    x->served_pairs = arena_array(&x->arena, 2 * slots, sizeof *x->served_pairs);
    x->bundle_row = arena_zero(&x->arena, o->max_tokens * sizeof *x->bundle_row);
    x->bundle_tokens = arena_array(&x->arena, o->max_tokens, sizeof *x->bundle_tokens);
    x->pass_rows = arena_array(&x->arena, slots, sizeof *x->pass_rows);
    return x->holders != NULL && x->layer_live != NULL && x->others != NULL && x->inboxes != NULL &&
           x->served_pairs != NULL && x->bundle_row != NULL && x->bundle_tokens != NULL &&
           x->pass_rows != NULL;
}

enum ferry_status exchange_create(struct exchange **ret_exchange, struct device *device,
                                  const struct exchange_options *options, struct ferry_error *err)
{
    struct exchange *x = mem_zero(sizeof *x);

    FERRY_ASSERT(options->max_top_k <= LIMIT_TOP_K);
    FERRY_ASSERT((options->fabric == NULL) == (options->placement == NULL));
    if (x != NULL) {
        arena_init(&x->arena, "exchange");
        x->device = device;
        x->options = *options;
        if (x->options.deadline_ns == 0)
            x->options.deadline_ns = DEADLINE_NS;
        x->shape = (struct wire_shape){.n_layers = options->n_layers,
                                       .n_experts = options->max_experts,
                                       .hidden = options->hidden,
                                       .max_slots = slots_of(options),
                                       .a32_bytes = options->a32_bytes,
                                       .f32_floats = options->f32_floats};
        x->self = options->fabric != NULL ? fabric_seat(options->fabric) : 0;
    }
    if (x == NULL || !make_rest(x)) {
        exchange_destroy(x);
        return FERRY_FAIL(err, FERRY_ERR_NOMEM,
                          "exchange: no memory for %zu tokens x %zu experts per token x %zu floats",
                          options->max_tokens, options->max_top_k, options->hidden);
    }
    *ret_exchange = x;
    return FERRY_OK;
}

void exchange_destroy(struct exchange *exchange)
{
    if (exchange == NULL)
        return;
    arena_fini(&exchange->arena);
    mem_free(exchange);
}

const struct exchange_ledger *exchange_ledger(const struct exchange *exchange)
{
    return &exchange->ledger;
}

void exchange_set_step(struct exchange *exchange, uint64_t step)
{
    exchange->step = step;
}

void exchange_counts(const struct exchange *exchange, size_t layer, size_t n_experts,
                     uint64_t *ret_counts)
{
    FERRY_ASSERT(n_experts <= exchange->options.max_experts && layer < exchange->options.n_layers);
    for (size_t e = 0; e < n_experts; e++)
        ret_counts[e] = atomic_load_explicit(
            &exchange->counts[layer * exchange->options.max_experts + e], memory_order_relaxed);
}

enum ferry_status exchange_run(struct exchange *exchange, const struct exchange_round_input *input,
                               struct ferry_error *err)
{
    enum ferry_status st = exchange_begin(exchange, 0, input, err);

    return st == FERRY_OK ? exchange_end(exchange, 0, err) : st;
}

bool exchange_serve(struct exchange *exchange, uint64_t timeout_ns, bool once)
{
    struct fabric *fabric = exchange->options.fabric;
    uint64_t until = fabric_now_ns(fabric) + timeout_ns;
    bool any = false;

    for (;;) {
        uint32_t rings = fabric_rings(fabric);
        serve_collect(exchange);
        bool served = serve_others(exchange, SIZE_MAX);
        uint64_t now = fabric_now_ns(fabric);
        any |= served;
        /* Whatever rang since the last look, in an earlier call too, ends the wait: the caller may
         * have been looking elsewhere when it was woken. */
        bool woken = rings != exchange->seen_rings;
        exchange->seen_rings = rings;
        if (now >= until || (once && (any || woken)))
            return any;
        if (served || serve_poll(exchange, until))
            continue;
        now = fabric_now_ns(fabric);
        fabric_sleep(fabric, rings, until > now ? until - now : 0);
    }
}
