/* Loading a model, planning its memory, stepping it. See model.h. */
#include "model/model.h"

#include "base/alloc.h"
#include "base/assert.h"
#include "base/error.h"
#include "base/fpmode.h"
#include "base/limits.h"
#include "base/size.h"
#include "model/forward.h"

#include <math.h>
#include <string.h>
#include <stdio.h>

enum { STEP_TOKENS_DEFAULT = 512, NUMERICS_VERSION = 1 };

static size_t memory_bytes(const struct model *model)
{
    return weights_memory_bytes(&model->weights, model->store, model->options.placement);
}

void model_destroy(struct model *model)
{
    if (model == NULL)
        return;
    exchange_destroy(model->exchange);
    if (model->packed != NULL)
        map_free(model->packed, memory_bytes(model));
    expert_store_destroy(model->store);
    expert_manifest_destroy(model->manifest);
    arena_fini(&model->step_arena);
    arena_fini(&model->arena);
    mem_free(model);
}

/* Law 3 on demand: an expert that came here with the loss of another rank. */
static enum ferry_status make_resident(void *arg, size_t layer, size_t expert,
                                       struct ferry_error *err)
{
    struct model *model = arg;

    if (expert_store_resident(model->store, layer, expert))
        return FERRY_OK;
    enum ferry_status st = expert_store_load(model->store, model->device, layer, expert, err);
    if (st == FERRY_OK)
        model->counters.experts_loaded++;
    return st;
}

static struct exchange_options exchange_options_of(const struct model *model)
{
    const struct model_config *c = &model->config;
    const struct model_options *o = &model->options;
    struct exchange_options exchange = {.max_tokens = o->step_tokens,
                                        .max_top_k = c->router.top_k,
                                        .max_experts = c->router.n_experts,
                                        .n_layers = c->n_layers,
                                        .hidden = c->hidden,
                                        .combine_bf16 = o->combine_bf16,
                                        .run_experts = forward_experts,
                                        .arg = (void *)(uintptr_t)model,
                                        .gather_ns = o->gather_ns,
                                        .bundle_bytes = o->bundle_bytes};

    for (size_t l = 0; l < c->n_layers; l++) {
        if (!c->layer_has_experts[l])
            continue;
        const struct ffn_weights *w = expert_store_layer(model->store, l);
        bool gate = act_format_for(w->gate.dtype) == ACT_FORMAT_A32,
             up = act_format_for(w->up.dtype) == ACT_FORMAT_A32;
        if (gate || up)
            exchange.a32_bytes = act_row_bytes(ACT_FORMAT_A32, c->hidden);
        if (!gate || !up)
            exchange.f32_floats = act_row_bytes(ACT_FORMAT_F32, c->hidden) / sizeof(float);
    }
    if (o->fabric != NULL) {
        exchange.fabric = o->fabric;
        exchange.placement = o->placement;
        exchange.make_resident = make_resident;
    }
    return exchange;
}

void model_lanes(const struct model *model, size_t most, struct transport_lanes *ret_lanes)
{
    const struct exchange_options exchange = exchange_options_of(model);

    exchange_lane_sizes(&exchange, most, ret_lanes);
}

/* Width of the widest feed-forward rows and how many there can be: a job of experts has many rows
 * per token, the others one. */
static size_t ffn_hidden_bytes(const struct model *model)
{
    const struct model_config *c = &model->config;
    const struct exchange_options exchange = exchange_options_of(model);
    size_t single = act_row_bytes(ACT_FORMAT_F32, max_size(c->dense_width, c->shared_width));

    return max_size(exchange_job_slots(&exchange) * act_row_bytes(ACT_FORMAT_F32, c->expert_width),
                    model->options.step_tokens * single);
}

/* One place that says what a step needs: with arena NULL it only counts. Returns bytes, 0 when
 * memory ran out. */
static size_t carve_step(struct model *model, struct arena *arena)
{
    const struct model_config *c = &model->config;
    struct step_buffers *s = &model->step;
    size_t t = model->options.step_tokens, q = c->n_heads * c->head_dim,
           kv = c->n_kv_heads * c->head_dim;
    size_t total = 0;
    const struct {
        void **place;
        size_t n_bytes;
    } pieces[] = {
        {(void **)&s->x, t * c->hidden * 4},
        {(void **)&s->norm, t * c->hidden * 4},
        {(void **)&s->q, t * q * 4},
        {(void **)&s->k, t * kv * 4},
        {(void **)&s->v, t * kv * 4},
        {(void **)&s->attn, t * q * 4},
        {(void **)&s->branch, t * c->hidden * 4},
        {(void **)&s->shared, c->shared_width > 0 ? t * c->hidden * 4 : 0},
        {(void **)&s->scores, t * c->router.n_experts * 4},
        {(void **)&s->gate, t * 4},
        {(void **)&s->cos, t * c->n_rope_pairs * 4},
        {(void **)&s->sin, t * c->n_rope_pairs * 4},
        {(void **)&s->act_hidden, t * act_row_bytes(ACT_FORMAT_A32, c->hidden)},
        {(void **)&s->act_attn, t * act_row_bytes(ACT_FORMAT_A32, q)},
        {(void **)&s->ffn_hidden, ffn_hidden_bytes(model)},
        {(void **)&s->rows, model->options.step_logits * c->hidden * 4},
        {(void **)&s->ids, t * 4},
        {(void **)&s->positions, t * 4},
        {(void **)&s->experts, t * c->router.top_k * 4},
        {(void **)&s->weights, t * c->router.top_k * 4},
        {(void **)&s->dense_begin, 2 * 4},
        {(void **)&s->attn_runs, t * sizeof(struct attn_run)},
        {(void **)&s->runs, t * sizeof(struct model_run)},
    };
    for (size_t i = 0; i < sizeof pieces / sizeof pieces[0]; i++) {
        total += pieces[i].n_bytes;
        if (arena == NULL)
            continue;
        *pieces[i].place = arena_zero(arena, pieces[i].n_bytes);
        if (*pieces[i].place == NULL)
            return 0;
    }
    return total;
}

static struct device_limits limits_of(const struct model *model)
{
    const struct model_config *c = &model->config;
    return (struct device_limits){
        .n_slots = model->options.step_tokens * c->router.top_k + c->router.n_experts,
        .n_heads = c->n_heads,
        .n_kv_heads = c->n_kv_heads,
        .head_dim = c->head_dim,
        .group_bytes = model->options.no_repack ? model->weights.group_bytes_max : 0,
    };
}

static void make_plan(struct model *model)
{
    const struct model_config *c = &model->config;
    struct device_limits limits = limits_of(model);
    const struct exchange_options exchange = exchange_options_of(model);
    struct expert_share share;
    bool packs = !model->options.no_repack;

    expert_store_share(model->store, model->options.placement, model->options.seat, &share);
    if (model->options.placement == NULL) /* laid out one behind the other, not in slots */
        share.packed_bytes = expert_store_packed_bytes(model->store);
    model->plan = (struct model_plan){
        .weights_file = model->weights.matrix_bytes + share.file_bytes,
        .weights_packed = packs ? model->weights.packed_bytes + share.packed_bytes : 0,
        .experts_held = share.n_experts,
        .experts_room = share.n_room,
        .room_packed = packs ? share.room_bytes : 0,
        .embed_mapped = model->weights.embed.n_cols * model->weights.embed.row_bytes,
        .step = carve_step(model, NULL) + device_reserve_bytes(model->device, &limits) +
                exchange_bytes(&exchange),
        .active_per_token = model->weights.matrix_bytes + expert_store_file_bytes(model->store) /
                                                              c->router.n_experts * c->router.top_k,
        .kv_per_token = model_config_kv_bytes_per_token(c, model->options.kv_dtype),
    };
}

/* docs/numerics.md, "The numerics string". */
static void make_numerics(struct model *model)
{
    char hash[65];

    checkpoint_header_hash(model->checkpoint, hash);
    (void)snprintf(model->numerics, sizeof model->numerics,
                   "ferry-n%d;backend=cpu;model=%.16s;kv=%s;act=a32;chunk=%d;combine=%s,index;"
                   "routing=as-trained",
                   NUMERICS_VERSION, hash, dtype_name(model->options.kv_dtype), KERNEL_KV_CHUNK,
                   model->options.combine_bf16 ? "bf16" : "f32");
}

static enum ferry_status check_placement(const struct model *model, struct ferry_error *err)
{
    const struct placement *p = model->options.placement;
    const struct model_config *c = &model->config;

    if (p == NULL)
        return FERRY_OK;
    if (placement_n_layers(p) != c->n_layers || placement_n_experts(p) != c->router.n_experts)
        return FERRY_FAIL(
            err, FERRY_ERR_ARG,
            "the placement is for %zu layers of %zu experts, the model has %zu of %zu",
            placement_n_layers(p), placement_n_experts(p), c->n_layers, c->router.n_experts);
    if (model->options.seat < 0 || (size_t)model->options.seat >= placement_n_seats(p))
        return FERRY_FAIL(err, FERRY_ERR_ARG,
                          "the placement has seats 0..%zu, this rank is seat %d",
                          placement_n_seats(p) - 1, model->options.seat);
    for (size_t l = 0; l < c->n_layers; l++) {
        if (c->layer_has_experts[l] && placement_listed(p, l, 0) == 0)
            return FERRY_FAIL(err, FERRY_ERR_ARG,
                              "the placement leaves out layer %zu, which has experts", l);
    }
    return FERRY_OK;
}

static struct expert_manifest_shape shape_of(const struct model *model, char model_hash[65])
{
    const struct model_config *c = &model->config;

    checkpoint_header_hash(model->checkpoint, model_hash);
    return (struct expert_manifest_shape){model_hash, c->layer_has_experts, c->n_layers,
                                          c->router.n_experts};
}

static enum ferry_status read_manifest(struct model *model, struct ferry_error *err)
{
    char hash[65], *path = expert_manifest_path(model->checkpoint);
    struct expert_manifest_shape shape = shape_of(model, hash);

    if (path == NULL)
        return FERRY_FAIL(err, FERRY_ERR_NOMEM, "model: no memory");
    enum ferry_status st = expert_manifest_read(&model->manifest, path, &shape, err);
    mem_free(path);
    expert_store_use_manifest(model->store, model->manifest);
    return st;
}

/* Everything but the weights' bytes. */
static enum ferry_status bind(struct model *model, struct ferry_error *err)
{
    enum ferry_status st = model_config_read(&model->config, model->checkpoint, &model->arena, err);
    struct expert_store_options store = {.n_layers = model->config.n_layers,
                                         .n_experts = model->config.router.n_experts,
                                         .no_repack = model->options.no_repack,
                                         .checkpoint = model->checkpoint};

    if (st == FERRY_OK)
        st = check_placement(model, err);
    if (st == FERRY_OK)
        st = expert_store_create(&model->store, &store, err);
    if (st == FERRY_OK)
        st = weights_bind(&model->weights, model->store, &model->config, model->checkpoint,
                          &model->arena, err);
    return st == FERRY_OK ? read_manifest(model, err) : st;
}

enum ferry_status model_open(struct model **ret_model, struct checkpoint *checkpoint,
                             struct device *device, const struct model_options *options,
                             struct ferry_error *err)
{
    struct model *model = mem_zero(sizeof *model);
    if (model == NULL)
        return FERRY_FAIL(err, FERRY_ERR_NOMEM, "model: no memory");
    model->checkpoint = checkpoint;
    model->device = device;
    model->options = *options;
    if (model->options.step_tokens == 0)
        model->options.step_tokens = STEP_TOKENS_DEFAULT;
    if (model->options.step_logits == 0)
        model->options.step_logits = model->options.step_tokens;
    arena_init(&model->arena, "model");
    arena_init(&model->step_arena, "step");
    enum ferry_status st = bind(model, err);
    if (st != FERRY_OK) {
        model_destroy(model);
        return st;
    }
    make_plan(model);
    make_numerics(model);
    *ret_model = model;
    return FERRY_OK;
}

enum ferry_status model_join(struct model *model, struct fabric *fabric,
                             const struct placement *placement, int seat, struct ferry_error *err)
{
    FERRY_ASSERT(!model->loaded);
    model->options.fabric = fabric;
    model->options.placement = placement;
    model->options.seat = seat;
    enum ferry_status st = check_placement(model, err);
    if (st == FERRY_OK)
        make_plan(model);
    return st;
}

/* Rotary frequencies as the reference computes them: theta^(-2i/d) rounded to f32. */
static enum ferry_status make_frequencies(struct model *model, struct ferry_error *err)
{
    const struct model_config *c = &model->config;

    model->inv_freq = arena_array(&model->arena, c->n_rope_pairs, sizeof(float));
    if (model->inv_freq == NULL)
        return FERRY_FAIL(err, FERRY_ERR_NOMEM, "model: no memory for rotary frequencies");
    for (size_t i = 0; i < c->n_rope_pairs; i++) {
        double exponent = (double)(2 * i) / (double)(2 * c->n_rope_pairs);
        model->inv_freq[i] = (float)(1.0 / math_pow_f64(c->rope_theta, exponent));
    }
    return FERRY_OK;
}

enum ferry_status model_load(struct model *model, struct ferry_error *err)
{
    const struct model_config *c = &model->config;
    struct device_limits limits = limits_of(model);
    const struct exchange_options exchange = exchange_options_of(model);

    enum ferry_status st = checkpoint_recheck(model->checkpoint, err);
    if (st == FERRY_OK)
        st = make_frequencies(model, err);
    if (st == FERRY_OK)
        st = device_reserve(model->device, &limits, err);
    if (st == FERRY_OK)
        st = exchange_create(&model->exchange, model->device, &exchange, err);
    if (st == FERRY_OK && carve_step(model, &model->step_arena) == 0)
        st = FERRY_FAIL(
            err, FERRY_ERR_NOMEM,
            "model: no memory for the buffers of %zu tokens; use a smaller --prefill-chunk",
            model->options.step_tokens);
    if (st != FERRY_OK)
        return st;
    if (!model->options.no_repack) {
        model->packed = map_alloc(memory_bytes(model), 1);
        if (model->packed == NULL)
            return FERRY_FAIL(err, FERRY_ERR_NOMEM,
                              "model: no memory for %zu bytes of weights; try --no-repack",
                              memory_bytes(model));
    }
    const struct weights_home home = {model->packed, model->options.placement, model->options.seat};
    st = weights_load(&model->weights, model->store, c, model->checkpoint, model->device, &home,
                      err);
    if (st != FERRY_OK)
        return st;
    model->loaded = true;
    return FERRY_OK;
}

enum ferry_status model_create(struct model **ret_model, struct checkpoint *checkpoint,
                               struct device *device, const struct model_options *options,
                               struct ferry_error *err)
{
    struct model *model = NULL;

    enum ferry_status st = model_open(&model, checkpoint, device, options, err);
    if (st == FERRY_OK)
        st = model_load(model, err);
    if (st != FERRY_OK) {
        model_destroy(model);
        return st;
    }
    *ret_model = model;
    return FERRY_OK;
}

enum ferry_status model_step(struct model *model, const struct model_run *runs, size_t n_runs,
                             float *logits, struct ferry_error *err)
{
    size_t n_tokens = 0, n_logits = 0;

    FERRY_ASSERT(model->loaded);
    for (size_t r = 0; r < n_runs; r++) {
        FERRY_ASSERT(runs[r].n_tokens > 0);
        FERRY_ASSERT(runs[r].n_logits <= runs[r].n_tokens);
        n_tokens += runs[r].n_tokens;
        n_logits += runs[r].n_logits;
        for (size_t i = 0; i < runs[r].n_tokens; i++) {
            if (runs[r].ids[i] < 0 || (size_t)runs[r].ids[i] >= model->config.n_vocab)
                return FERRY_FAIL(err, FERRY_ERR_ARG, "token id %d is not in 0..%zu",
                                  runs[r].ids[i], model->config.n_vocab - 1);
        }
    }
    if (n_tokens > model->options.step_tokens || n_logits > model->options.step_logits)
        return FERRY_FAIL(err, FERRY_ERR_LIMIT,
                          "step: %zu tokens with %zu rows of logits, at most %zu and %zu", n_tokens,
                          n_logits, model->options.step_tokens, model->options.step_logits);
    if (n_tokens == 0)
        return FERRY_OK;
    unsigned mode = fp_mode_enter();
    uint64_t overflows = model->counters.kv_overflows;
    enum ferry_status st = forward(model, runs, n_runs, logits, err);
    if (st ==
        FERRY_ERR_LEDGER) { /* a void step is repeated once: K and V are written by position */
        model->counters.steps_retried++;
        overflows = model->counters.kv_overflows;
        st = forward(model, runs, n_runs, logits, err);
    }
    fp_mode_leave(mode);
    overflows = model->counters.kv_overflows - overflows; /* this step's: others' are their own */
    if (st == FERRY_ERR_NONFINITE && overflows > 0)
        error_prefix(err, "%llu keys or values do not fit the KV cache's format, use --kv bf16: ",
                     (unsigned long long)overflows);
    if (st != FERRY_OK)
        return st;
    model->counters.steps++;
    model->counters.tokens += n_tokens;
    return FERRY_OK;
}

bool model_serve(struct model *model, uint64_t timeout_ns, bool once)
{
    FERRY_ASSERT(model->loaded);
    unsigned mode = fp_mode_enter();
    bool any = exchange_serve(model->exchange, timeout_ns, once);
    fp_mode_leave(mode);
    return any;
}

const struct model_config *model_config(const struct model *model)
{
    return &model->config;
}

const struct model_plan *model_plan(const struct model *model)
{
    return &model->plan;
}

const struct exchange_ledger *model_ledger(const struct model *model)
{
    return exchange_ledger(model->exchange);
}

struct device *model_device(const struct model *model)
{
    return model->device;
}

const struct model_options *model_options(const struct model *model)
{
    return &model->options;
}

const char *model_numerics(const struct model *model)
{
    return model->numerics;
}

const struct model_counters *model_counters(const struct model *model)
{
    return &model->counters;
}

bool model_expert_counts(const struct model *model, size_t layer, uint64_t *ret_counts)
{
    const struct model_config *c = &model->config;

    if (!model->loaded || layer >= c->n_layers || !c->layer_has_experts[layer])
        return false;
    exchange_counts(model->exchange, layer, c->router.n_experts, ret_counts);
    return true;
}

size_t model_n_ignored(const struct model *model)
{
    return model->weights.n_ignored;
}

void model_expert_hash(const struct model *model, size_t layer, size_t expert, char ret_hex[65])
{
    ret_hex[0] = 0;
    if (model->config.layer_has_experts[layer])
        expert_store_hash(model->store, layer, expert, ret_hex);
}

/* ---- experts that come, go, or are described ---- */

const char *model_manifest_hash(const struct model *model, size_t layer, size_t expert)
{
    return model->manifest != NULL ? expert_manifest_hash(model->manifest, layer, expert) : NULL;
}

const char *model_manifest_root(const struct model *model)
{
    return model->manifest != NULL ? expert_manifest_root(model->manifest) : NULL;
}

static void hash_expert(void *arg, size_t layer, size_t expert, char ret_hex[65])
{
    const struct model *model = arg;

    expert_store_hash(model->store, layer, expert, ret_hex);
    if (expert + 1 == model->config.router.n_experts)
        checkpoint_forget_pages(model->checkpoint);
}

enum ferry_status model_write_manifest(const struct model *model, const char *path,
                                       char ret_root[65], struct ferry_error *err)
{
    char hash[65];
    struct expert_manifest_shape shape = shape_of(model, hash);
    struct expert_manifest *manifest = NULL;

    enum ferry_status st =
        expert_manifest_create(&manifest, &shape, hash_expert, (void *)(uintptr_t)model, err);
    if (st == FERRY_OK)
        st = checkpoint_recheck(model->checkpoint, err); /* not of files that changed meanwhile */
    if (st == FERRY_OK)
        st = expert_manifest_write(manifest, path, err);
    if (st == FERRY_OK)
        memcpy(ret_root, expert_manifest_root(manifest), 65);
    expert_manifest_destroy(manifest);
    return st;
}

enum ferry_status model_load_missing(struct model *model, uint64_t live, size_t *ret_n,
                                     struct ferry_error *err)
{
    enum { BATCH = 32 };
    const struct model_options *o = &model->options;
    struct expert_id ids[BATCH];
    size_t n;

    *ret_n = 0;
    while (o->placement != NULL &&
           (n = expert_store_missing(model->store, o->placement, o->seat, live, ids, BATCH)) > 0) {
        n = min_size(n, BATCH);
        enum ferry_status st = expert_store_load_many(model->store, model->device, ids, n, err);
        if (st != FERRY_OK)
            return st;
        if (!o->no_repack)
            checkpoint_forget_pages(model->checkpoint);
        *ret_n += n;
    }
    return FERRY_OK;
}

void model_unload_surplus(struct model *model, uint64_t live, size_t *ret_n)
{
    enum { BATCH = 32 };
    const struct model_options *o = &model->options;
    struct expert_id ids[BATCH];
    size_t n;

    *ret_n = 0;
    while (o->placement != NULL &&
           (n = expert_store_surplus(model->store, o->placement, o->seat, live, ids, BATCH)) > 0) {
        n = min_size(n, BATCH);
        for (size_t i = 0; i < n; i++)
            expert_store_unload(model->store, ids[i].layer, ids[i].expert);
        *ret_n += n;
    }
}
