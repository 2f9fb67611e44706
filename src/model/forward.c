/* The forward pass, one for all architectures: what differs is in struct model_config. See model.h,
 * and ARCHITECTURE.md for the way of one token through it. Shapes: T tokens of the step, H hidden.
 */
#include "model/forward.h"

#include "base/assert.h"
#include "base/error.h"
#include "base/size.h"

#include <math.h>
#include <stdatomic.h>
#include <string.h>

/* One step in progress. */
struct pass {
    struct model *model;
    const struct model_config *config;
    struct device *device;
    struct step_buffers *s;
    const struct model_run *runs;
    size_t n_runs;
    size_t n_tokens;
    size_t slot;             /* of the exchange's rounds */
    struct step_buffers own; /* a micro-batch's: the step's, from its first row on */
    struct ferry_error *err;
};

enum { OVERLAP_TOKENS = 64 }; /* of a step that is worth cutting in two */

static bool takes_a32(const struct weight *w)
{
    return act_format_for(w->dtype) == ACT_FORMAT_A32;
}

/* ---- inputs ---- */

static void rope_items(void *arg, size_t begin, size_t end, int thread_index)
{
    const struct pass *p = arg;
    size_t n = p->config->n_rope_pairs;

    (void)thread_index;
    for (size_t t = begin; t < end; t++) {
        for (size_t i = 0; i < n; i++) {
            /* The angle is an f32 product, as the models were trained with; its sine is ours in
             * f64, rounded once. */
            float angle = (float)p->s->positions[t] * p->model->inv_freq[i];
            double sine, cosine;
            math_sincos_f64((double)angle, &sine, &cosine);
            p->s->sin[t * n + i] = (float)sine;
            p->s->cos[t * n + i] = (float)cosine;
        }
    }
}

/* Flattens the runs: ids, positions, rotary tables, embeddings. */
static void prepare(struct pass *p)
{
    size_t t = 0;

    for (size_t r = 0; r < p->n_runs; r++) {
        for (size_t i = 0; i < p->runs[r].n_tokens; i++, t++) {
            p->s->ids[t] = p->runs[r].ids[i];
            p->s->positions[t] = (int32_t)(p->runs[r].first_position + i);
        }
    }
    p->n_tokens = t;
    device_for(p->device, t, 8, rope_items, p);
    device_embed(p->device, &p->model->weights.embed, p->s->ids, t, p->config->embed_scale,
                 p->s->x);
}

/* ---- attention ---- */

/* norm [T, H] to q, k, v: projections, biases, norms, clamp, rotation. Order as the models were
 * trained: norm, clamp, rotate. */
static void project(struct pass *p, const struct layer_weights *w)
{
    const struct model_config *c = p->config;
    struct step_buffers *s = p->s;
    size_t q = c->n_heads * c->head_dim, kv = c->n_kv_heads * c->head_dim, t = p->n_tokens;
    struct act_rows in = {s->norm, c->hidden, s->act_hidden, c->hidden};
    const struct matmul_out outs[3] = {
        {&w->q, s->q, q, w->q_bias}, {&w->k, s->k, kv, w->k_bias}, {&w->v, s->v, kv, w->v_bias}};

    if (takes_a32(&w->q) || takes_a32(&w->k) || takes_a32(&w->v))
        device_quantize(p->device, &in, t);
    device_matmul(p->device, &in, t, outs, 3);
    if (c->arch->qk_norm == QK_NORM_WHOLE) {
        device_rms_norm(p->device, s->q, s->q, w->q_norm, t, q, c->norm_eps);
        device_rms_norm(p->device, s->k, s->k, w->k_norm, t, kv, c->norm_eps);
    } else if (c->arch->qk_norm == QK_NORM_HEAD) {
        device_head_norm(p->device, s->q, q, w->q_norm, t, c->n_heads, c->head_dim, c->norm_eps);
        device_head_norm(p->device, s->k, kv, w->k_norm, t, c->n_kv_heads, c->head_dim,
                         c->norm_eps);
    }
    if (c->qkv_clamp > 0) {
        device_clamp(p->device, s->q, c->qkv_clamp, t * q);
        device_clamp(p->device, s->k, c->qkv_clamp, t * kv);
        device_clamp(p->device, s->v, c->qkv_clamp, t * kv);
    }
    struct rope_job rope = {s->q,
                            s->k,
                            q,
                            kv,
                            c->n_heads,
                            c->n_kv_heads,
                            c->head_dim,
                            c->n_rope_pairs,
                            s->cos,
                            s->sin,
                            c->rope_interleaved};
    device_rope(p->device, &rope, t);
}

/* Stores K and V, attends, and leaves the output projection in s->branch [T, H]. */
static void attention(struct pass *p, size_t layer, const struct layer_weights *w)
{
    const struct model_config *c = p->config;
    struct step_buffers *s = p->s;
    size_t q = c->n_heads * c->head_dim, kv = c->n_kv_heads * c->head_dim, row = 0;
    struct attn_shape shape = {.n_heads = c->n_heads,
                               .n_kv_heads = c->n_kv_heads,
                               .head_dim = c->head_dim,
                               .kv_dtype = p->model->options.kv_dtype,
                               .window = c->layer_window[layer],
                               .scale = c->attn_scale};

    shape.page_offset = layer * attn_layer_bytes(&shape);
    project(p, w);
    for (size_t r = 0; r < p->n_runs; r++) {
        const struct model_run *run = &p->runs[r];
        s->attn_runs[r] = (struct attn_run){.q = s->q + row * q,
                                            .out = s->attn + row * q,
                                            .pages = run->pages,
                                            .first_position = run->first_position,
                                            .n_rows = run->n_tokens,
                                            .k = s->k + row * kv,
                                            .v = s->v + row * kv};
        row += run->n_tokens;
    }
    p->model->counters.kv_overflows += device_attention(p->device, &shape, s->attn_runs, p->n_runs);
    struct act_rows in = {s->attn, q, s->act_attn, q};
    const struct matmul_out out = {&w->o, s->branch, c->hidden, w->o_bias};
    if (takes_a32(&w->o))
        device_quantize(p->device, &in, p->n_tokens);
    device_matmul(p->device, &in, p->n_tokens, &out, 1);
}

/* ---- feed-forward ---- */

struct select_arg {
    const struct pass *pass;
    atomic_size_t bad_token; /* lowest token with a non-finite score, SIZE_MAX: none */
};

static void select_items(void *arg, size_t begin, size_t end, int thread_index)
{
    struct select_arg *a = arg;
    const struct pass *p = a->pass;
    const struct router_policy *policy = &p->config->router;

    (void)thread_index;
    for (size_t t = begin; t < end; t++) {
        enum ferry_status st =
            router_select(policy, device_kernels(p->device), p->s->scores + t * policy->n_experts,
                          p->s->experts + t * policy->top_k, p->s->weights + t * policy->top_k);
        if (st == FERRY_OK)
            continue;
        size_t seen = atomic_load(&a->bad_token);
        while (t < seen && !atomic_compare_exchange_weak(&a->bad_token, &seen, t)) {
        }
    }
}

static enum ferry_status route(struct pass *p, size_t layer, const struct layer_weights *w)
{
    const struct model_config *c = p->config;
    struct act_rows in = {p->s->norm, c->hidden, p->s->act_hidden, c->hidden};
    const struct matmul_out out = {&w->router, p->s->scores, c->router.n_experts, NULL};
    struct select_arg arg = {p, SIZE_MAX};

    device_matmul(p->device, &in, p->n_tokens, &out, 1);
    device_for(p->device, p->n_tokens, 8, select_items, &arg);
    size_t bad = atomic_load(&arg.bad_token);
    if (bad == SIZE_MAX)
        return FERRY_OK;
    return FERRY_FAIL(p->err, FERRY_ERR_NONFINITE,
                      "layer %zu: a router score is not finite at position %d (token %d)", layer,
                      p->s->positions[bad], p->s->ids[bad]);
}

/* Whether rows have come in the formats that a layer's experts take, as any of them says. */
static bool has_formats(const struct exchange_job *work, const struct ffn_weights *w)
{
    bool a32 = takes_a32(&w->gate) || takes_a32(&w->up);
    bool f32 = !takes_a32(&w->gate) || !takes_a32(&w->up);

    return (!a32 || work->a32_at != NULL) && (!f32 || work->f32_at != NULL);
}

/* The exchange's callback: a layer's experts over sorted slots, this rank's tokens and others'. */
size_t forward_experts(void *arg, const struct exchange_job *work)
{
    const struct model *model = arg;
    const struct ffn_weights *experts = expert_store_layer(model->store, work->layer);
    size_t first = 0;

    while (first < work->n_experts && work->begin[first + 1] == 0)
        first++;
    if (first == work->n_experts || !has_formats(work, &experts[first]))
        return 0;
    struct ffn_job job = {.experts = experts,
                          .n_experts = work->n_experts,
                          .begin = work->begin,
                          .a32_at = work->a32_at,
                          .f32_at = work->f32_at,
                          .hidden = model->step.ffn_hidden,
                          .out = work->out,
                          .out_stride = work->out_stride};
    return device_ffn(model->device, &job);
}

/* A feed-forward block that every token passes: one pseudo-expert. */
static void run_single(struct pass *p, const struct ffn_weights *ffn, float *out)
{
    p->s->dense_begin[0] = 0;
    p->s->dense_begin[1] = (int32_t)p->n_tokens;
    struct ffn_job job = {
        .experts = ffn,
        .n_experts = 1,
        .begin = p->s->dense_begin,
        .in = {p->s->norm, p->config->hidden, p->s->act_hidden, p->config->hidden},
        .hidden = p->s->ffn_hidden,
        .out = out,
        .out_stride = p->config->hidden};
    (void)device_ffn(p->device, &job);
}

static void add_shared_expert(struct pass *p, const struct layer_weights *w)
{
    const struct model_config *c = p->config;
    struct act_rows in = {p->s->norm, c->hidden, p->s->act_hidden, c->hidden};
    const struct matmul_out out = {&w->shared_score, p->s->gate, 1, NULL};

    run_single(p, &w->shared, p->s->shared);
    device_matmul(p->device, &in, p->n_tokens, &out, 1);
    device_gate_rows(p->device, p->s->shared, p->s->gate, p->n_tokens, c->hidden);
    device_add(p->device, p->s->branch, p->s->shared, p->n_tokens * c->hidden);
}

/* The rows that a layer's experts take: all of them have one format. */
static struct exchange_rows expert_rows(const struct pass *p, const struct ffn_weights *w)
{
    const struct model_config *c = p->config;
    struct exchange_rows rows = {0};

    if (takes_a32(&w->gate) || takes_a32(&w->up)) {
        rows.a32 = p->s->act_hidden;
        rows.a32_bytes = act_row_bytes(ACT_FORMAT_A32, c->hidden);
    }
    if (!takes_a32(&w->gate) || !takes_a32(&w->up)) {
        rows.f32 = p->s->norm;
        rows.f32_stride = c->hidden;
    }
    return rows;
}

/* The first half of the block: what needs no other rank is done, rows are on their way. */
static enum ferry_status feed_forward_begin(struct pass *p, size_t layer,
                                            const struct layer_weights *w)
{
    const struct model_config *c = p->config;
    struct act_rows in = {p->s->norm, c->hidden, p->s->act_hidden, c->hidden};

    if (!c->layer_has_experts[layer]) {
        if (takes_a32(&w->dense.gate) || takes_a32(&w->dense.up))
            device_quantize(p->device, &in, p->n_tokens);
        run_single(p, &w->dense, p->s->branch);
        return FERRY_OK;
    }
    const struct ffn_weights *experts = expert_store_layer(p->model->store, layer);
    /* Law 3: an expert runs only where its weights are. In a group the exchange looks at each. */
    if (p->model->options.fabric == NULL &&
        expert_store_count(p->model->store, layer) < c->router.n_experts)
        return FERRY_FAIL(p->err, FERRY_ERR_NO_HOLDER, "layer %zu: an expert is not resident",
                          layer);
    if (takes_a32(&experts[0].gate) || takes_a32(&experts[0].up) || takes_a32(&w->router) ||
        (c->shared_width > 0 &&
         (takes_a32(&w->shared.gate) || takes_a32(&w->shared.up) || takes_a32(&w->shared_score))))
        device_quantize(p->device, &in, p->n_tokens);
    enum ferry_status st = route(p, layer, w);
    if (st != FERRY_OK)
        return st;
    struct exchange_round_input round = {.layer = layer,
                                         .experts = p->s->experts,
                                         .weights = p->s->weights,
                                         .n_tokens = p->n_tokens,
                                         .top_k = c->router.top_k,
                                         .n_experts = c->router.n_experts,
                                         .rows = expert_rows(p, &experts[0]),
                                         .out = p->s->branch};
    st = exchange_begin(p->model->exchange, p->slot, &round, p->err);
    if (st != FERRY_OK)
        error_prefix(p->err, "layer %zu: ", layer);
    return st;
}

/* The second half: leaves the block's output in s->branch [T, H]. */
static enum ferry_status feed_forward_end(struct pass *p, size_t layer,
                                          const struct layer_weights *w)
{
    if (!p->config->layer_has_experts[layer])
        return FERRY_OK;
    enum ferry_status st = exchange_end(p->model->exchange, p->slot, p->err);
    if (st != FERRY_OK) {
        error_prefix(p->err, "layer %zu: ", layer);
        return st;
    }
    if (p->config->shared_width > 0)
        add_shared_expert(p, w);
    return FERRY_OK;
}

/* x += branch * residual_scale */
static void add_residual(struct pass *p)
{
    size_t n = p->n_tokens * p->config->hidden;

    if (p->config->residual_scale != 1.0f)
        device_scale(p->device, p->s->branch, p->config->residual_scale, n);
    device_add(p->device, p->s->x, p->s->branch, n);
}

/* ---- logits ---- */

static enum ferry_status check_logits(struct pass *p, const float *logits, size_t n_rows)
{
    size_t n_vocab = p->config->n_vocab, row = 0;

    for (size_t r = 0; r < p->n_runs; r++) {
        for (size_t i = 0; i < p->runs[r].n_logits; i++, row++) {
            for (size_t v = 0; v < n_vocab; v++) {
                if (!isfinite(logits[row * n_vocab + v]))
                    return FERRY_FAIL(p->err, FERRY_ERR_NONFINITE,
                                      "the logit of token %zu is not finite at position %zu", v,
                                      p->runs[r].first_position + p->runs[r].n_tokens -
                                          p->runs[r].n_logits + i);
            }
        }
    }
    FERRY_DCHECK(row == n_rows);
    (void)n_rows;
    return FERRY_OK;
}

static enum ferry_status make_logits(struct pass *p, float *logits)
{
    const struct model_config *c = p->config;
    const struct model_weights *w = &p->model->weights;
    size_t row = 0, n = 0;

    for (size_t r = 0; r < p->n_runs; r++) {
        const struct model_run *run = &p->runs[r];
        memcpy(p->s->rows + n * c->hidden,
               p->s->x + (row + run->n_tokens - run->n_logits) * c->hidden,
               run->n_logits * c->hidden * sizeof(float));
        row += run->n_tokens;
        n += run->n_logits;
    }
    if (n == 0)
        return FERRY_OK;
    device_rms_norm(p->device, p->s->rows, p->s->rows, w->final_norm, n, c->hidden, c->norm_eps);
    struct act_rows in = {p->s->rows, c->hidden, p->s->act_hidden, c->hidden};
    const struct matmul_out out = {&w->head, logits, c->n_vocab, NULL};
    if (takes_a32(&w->head))
        device_quantize(p->device, &in, n);
    device_matmul(p->device, &in, n, &out, 1);
    if (c->logit_divisor != 1.0f) {
        for (size_t i = 0; i < n * c->n_vocab; i++)
            logits[i] /= c->logit_divisor;
    }
    return check_logits(p, logits, n);
}

/* ---- layers, and two micro-batches that hide each other's way to other ranks ---- */

/* A layer up to where its rows leave. */
static enum ferry_status layer_begin(struct pass *p, size_t l)
{
    const struct model_config *c = p->config;
    const struct layer_weights *w = &p->model->weights.layers[l];

    device_rms_norm(p->device, p->s->norm, p->s->x, w->attn_norm, p->n_tokens, c->hidden,
                    c->norm_eps);
    attention(p, l, w);
    add_residual(p);
    device_rms_norm(p->device, p->s->norm, p->s->x, w->ffn_norm, p->n_tokens, c->hidden,
                    c->norm_eps);
    return feed_forward_begin(p, l, w);
}

static enum ferry_status layer_end(struct pass *p, size_t l)
{
    enum ferry_status st = feed_forward_end(p, l, &p->model->weights.layers[l]);

    if (st == FERRY_OK)
        add_residual(p);
    return st;
}

/* The step's buffers from row `first` on. */
static struct step_buffers from_row(const struct pass *p, size_t first)
{
    const struct model_config *c = p->config;
    struct step_buffers b = *p->s;
    size_t q = c->n_heads * c->head_dim, kv = c->n_kv_heads * c->head_dim;

    b.x += first * c->hidden;
    b.norm += first * c->hidden;
    b.q += first * q;
    b.k += first * kv;
    b.v += first * kv;
    b.attn += first * q;
    b.branch += first * c->hidden;
    b.shared += c->shared_width > 0 ? first * c->hidden : 0;
    b.scores += first * c->router.n_experts;
    b.gate += first;
    b.cos += first * c->n_rope_pairs;
    b.sin += first * c->n_rope_pairs;
    b.act_hidden = (char *)b.act_hidden + first * act_row_bytes(ACT_FORMAT_A32, c->hidden);
    b.act_attn = (char *)b.act_attn + first * act_row_bytes(ACT_FORMAT_A32, q);
    b.ids += first;
    b.positions += first;
    b.experts += first * c->router.top_k;
    b.weights += first * c->router.top_k;
    b.attn_runs += first;
    return b;
}

/* Rows [first, first + n) of the step as a pass of its own. The runs' parts go to `runs`. */
static void cut(const struct pass *whole, size_t first, size_t n, struct model_run *runs,
                struct pass *ret)
{
    size_t row = 0;

    *ret = *whole;
    ret->own = from_row(whole, first);
    ret->s = &ret->own;
    ret->runs = runs;
    ret->n_runs = 0;
    ret->n_tokens = n;
    for (size_t r = 0; r < whole->n_runs; r++) {
        const struct model_run *run = &whole->runs[r];
        size_t begin = max_size(row, first), end = min_size(row + run->n_tokens, first + n);
        if (begin < end)
            runs[ret->n_runs++] =
                (struct model_run){.ids = run->ids + (begin - row),
                                   .n_tokens = end - begin,
                                   .first_position = run->first_position + (begin - row),
                                   .pages = run->pages};
        row += run->n_tokens;
    }
}

/* Whether the way to some other rank is long enough that computing meanwhile pays. */
static bool pays_to_overlap(const struct pass *p)
{
    struct fabric *fabric = p->model->options.fabric;
    size_t n = p->model->options.micro_batches;

    if (fabric == NULL || p->n_tokens < 2)
        return false;
    if (n != 0) /* somebody has decided */
        return n == 2;
    for (uint64_t live = fabric_live(fabric); p->n_tokens >= OVERLAP_TOKENS && live != 0;
         live &= live - 1) {
        if (fabric_link(fabric, __builtin_ctzll(live)) >= LINK_RDMA)
            return true;
    }
    return false;
}

/* The other ranks see that this one computes and moves on, or that it does not. */
static void tell_progress(const struct model *model, size_t layer, bool busy)
{
    uint64_t n = model->config.n_layers + 1;

    if (model->options.fabric != NULL)
        fabric_progress(model->options.fabric, model->counters.steps * n + layer, busy);
}

/* While one micro-batch's rows travel, the other attends. Later rows of a sequence find the K and V
 * of the earlier ones: within a layer the first micro-batch is always ahead. */
static enum ferry_status run_layers(struct pass *parts, size_t n_parts)
{
    size_t n_layers = parts[0].config->n_layers;
    enum ferry_status st = FERRY_OK;

    for (size_t l = 0; l <= n_layers && st == FERRY_OK; l++) {
        tell_progress(parts[0].model, l, true);
        for (size_t i = 0; i < n_parts && st == FERRY_OK; i++) {
            if (l > 0)
                st = layer_end(&parts[i], l - 1);
            if (st == FERRY_OK && l < n_layers)
                st = layer_begin(&parts[i], l);
        }
    }
    return st;
}

enum ferry_status forward(struct model *model, const struct model_run *runs, size_t n_runs,
                          float *logits, struct ferry_error *err)
{
    struct pass p = {.model = model,
                     .config = &model->config,
                     .device = model->device,
                     .s = &model->step,
                     .runs = runs,
                     .n_runs = n_runs,
                     .err = err};
    struct pass parts[EXCHANGE_ROUNDS];
    size_t n_parts = 1;

    prepare(&p);
    exchange_set_step(model->exchange, model->counters.steps);
    parts[0] = p;
    if (pays_to_overlap(&p)) {
        size_t half = p.n_tokens / 2;
        n_parts = 2;
        cut(&p, 0, half, model->step.runs, &parts[0]);
        cut(&p, half, p.n_tokens - half, model->step.runs + half, &parts[1]);
        parts[1].slot = 1;
    }
    enum ferry_status st = run_layers(parts, n_parts);
    tell_progress(model, p.config->n_layers, false);
    if (st != FERRY_OK) {
        exchange_abandon(model->exchange);
        return st;
    }
    return make_logits(&p, logits);
}
