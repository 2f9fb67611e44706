/* Binding tensors to roles and packing them. See weights.h. */
#include "model/weights.h"

#include "base/assert.h"
#include "base/error.h"
#include "base/size.h"
#include "model/names.h"
#include "tensor/codec.h"

#include <stdio.h>
#include <string.h>

/* One bind in progress. */
struct binder {
    const struct model_config *config;
    struct checkpoint *checkpoint;
    struct arena *arena;
    struct model_weights *weights;
    struct ferry_error *err;
    size_t layer;
};

static void dims_text(const struct checkpoint_tensor *t, char *text, size_t size)
{
    size_t n = 0;

    text[0] = 0;
    for (int i = 0; i < t->n_dims && n < size; i++) {
        int wrote = snprintf(text + n, size - n, "%s%llu", i > 0 ? "x" : "",
                             (unsigned long long)t->dims[i]);
        n += wrote > 0 ? (size_t)wrote : 0;
    }
}

/* Takes the tensor of a role. Absent: FERRY_ERR_FORMAT, or *ret NULL when `optional`. */
static enum ferry_status take(struct binder *b, enum weight_role role, size_t expert, bool optional,
                              const struct checkpoint_tensor **ret)
{
    char name[160];
    const struct checkpoint_tensor *t =
        names_find(b->checkpoint, role, b->layer, expert, name, sizeof name);

    if (t == NULL) {
        if (optional) {
            *ret = NULL;
            return FERRY_OK;
        }
        return FERRY_FAIL(b->err, FERRY_ERR_FORMAT, "tensor '%s' is missing (%s)", name,
                          b->config->arch->name);
    }
    *ret = checkpoint_take(b->checkpoint, t->name);
    return FERRY_OK;
}

static enum ferry_status wrong_shape(struct binder *b, const struct checkpoint_tensor *t,
                                     const char *wanted)
{
    char seen[100];

    dims_text(t, seen, sizeof seen);
    return FERRY_FAIL(b->err, FERRY_ERR_FORMAT, "tensor '%s' in %s at offset %llu is %s, wanted %s",
                      t->name, t->file, (unsigned long long)t->offset, seen, wanted);
}

/* n_cols rows of k inputs, starting at `first_row` of slice `slice` of a tensor whose last
 * dimension is k. */
static enum ferry_status set_weight(struct binder *b, struct weight *w,
                                    const struct checkpoint_tensor *t, size_t first_row,
                                    size_t n_cols, size_t k)
{
    uint64_t row_bytes;

    if (!dtype_row_bytes(t->dtype, k, &row_bytes))
        return FERRY_FAIL(b->err, FERRY_ERR_FORMAT,
                          "tensor '%s': rows of %zu do not fill %s blocks of %zu", t->name, k,
                          dtype_name(t->dtype), dtype_block_elems(t->dtype));
    *w = (struct weight){
        .dtype = t->dtype, .n_cols = n_cols, .k = k, .row_bytes = (size_t)row_bytes};
    w->rows = (const unsigned char *)t->data + first_row * (size_t)row_bytes;
    w->group_bytes = pack_group_bytes(t->dtype, k);
    b->weights->group_bytes_max = max_size(b->weights->group_bytes_max, w->group_bytes);
    return FERRY_OK;
}

/* A matrix [n_cols, k]; a vector [k] is a matrix of one row. */
static enum ferry_status bind_matrix(struct binder *b, enum weight_role role, size_t n_cols,
                                     size_t k, struct weight *w)
{
    const struct checkpoint_tensor *t = NULL;
    char wanted[100];

    enum ferry_status st = take(b, role, 0, false, &t);
    if (st != FERRY_OK)
        return st;
    bool fits = (t->n_dims == 2 && t->dims[0] == n_cols && t->dims[1] == k) ||
                (n_cols == 1 && t->n_dims == 1 && t->dims[0] == k);
    if (!fits) {
        (void)snprintf(wanted, sizeof wanted, "%zux%zu", n_cols, k);
        return wrong_shape(b, t, wanted);
    }
    st = set_weight(b, w, t, 0, n_cols, k);
    size_t packed = 0;
    if (st == FERRY_OK && device_weight_bytes(w->dtype, n_cols, k, &packed)) {
        b->weights->packed_bytes += packed;
        b->weights->matrix_bytes += t->size_bytes;
    }
    return st;
}

/* A vector [n], decoded to f32 in the arena; *ret NULL when optional and absent. */
static enum ferry_status bind_vector(struct binder *b, enum weight_role role, size_t n,
                                     bool optional, const float **ret)
{
    const struct checkpoint_tensor *t = NULL;
    char wanted[100];

    enum ferry_status st = take(b, role, 0, optional, &t);
    if (st != FERRY_OK || t == NULL) {
        *ret = NULL;
        return st;
    }
    if (t->n_dims != 1 || t->dims[0] != n || n % dtype_block_elems(t->dtype) != 0) {
        (void)snprintf(wanted, sizeof wanted, "a vector of %zu", n);
        return wrong_shape(b, t, wanted);
    }
    float *values = arena_array(b->arena, n, sizeof *values);
    if (values == NULL)
        return FERRY_FAIL(b->err, FERRY_ERR_NOMEM, "tensor '%s': no memory for %zu floats", t->name,
                          n);
    codec_decode_row(t->dtype, t->data, values, n);
    *ret = values;
    return FERRY_OK;
}

/* n_cols rows of expert `expert` in a tensor that stacks all experts, from row first_row of its
 * slice. */
static enum ferry_status bind_stacked(struct binder *b, const struct checkpoint_tensor *t,
                                      size_t rows_per_expert, size_t first_row, size_t n_cols,
                                      size_t k, size_t expert, struct weight *w)
{
    char wanted[100];
    size_t n_experts = b->config->router.n_experts;

    if (t->n_dims != 3 || t->dims[0] != n_experts || t->dims[1] != rows_per_expert ||
        t->dims[2] != k) {
        (void)snprintf(wanted, sizeof wanted, "%zux%zux%zu", n_experts, rows_per_expert, k);
        return wrong_shape(b, t, wanted);
    }
    return set_weight(b, w, t, expert * rows_per_expert + first_row, n_cols, k);
}

static enum ferry_status bind_own(struct binder *b, enum weight_role role, size_t expert,
                                  size_t n_cols, size_t k, struct weight *w)
{
    const struct checkpoint_tensor *t = NULL;
    char wanted[100];

    enum ferry_status st = take(b, role, expert, false, &t);
    if (st != FERRY_OK)
        return st;
    if (t->n_dims != 2 || t->dims[0] != n_cols || t->dims[1] != k) {
        (void)snprintf(wanted, sizeof wanted, "%zux%zu", n_cols, k);
        return wrong_shape(b, t, wanted);
    }
    return set_weight(b, w, t, 0, n_cols, k);
}

/* Grouped products walk all experts of a layer with one activation format per matrix. */
static enum ferry_status same_format(struct binder *b, const struct expert_source *first,
                                     const struct expert_source *source, size_t expert)
{
    const struct weight *a[3] = {&first->gate, &first->up, &first->down};
    const struct weight *w[3] = {&source->gate, &source->up, &source->down};
    static const char *const NAMES[3] = {"gate", "up", "down"};

    for (int i = 0; i < 3; i++) {
        if (act_format_for(a[i]->dtype) != act_format_for(w[i]->dtype))
            return FERRY_FAIL(b->err, FERRY_ERR_UNSUPPORTED,
                              "layer %zu: the %s matrix of expert %zu is %s, that of expert 0 is "
                              "%s; quantised and plain experts in one layer are not supported",
                              b->layer, NAMES[i], expert, dtype_name(w[i]->dtype),
                              dtype_name(a[i]->dtype));
    }
    return FERRY_OK;
}

/* All experts of one layer, in whichever of the three forms the checkpoint has them. */
static enum ferry_status bind_experts(struct binder *b, struct expert_store *store)
{
    const struct model_config *c = b->config;
    size_t width = c->expert_width, hidden = c->hidden;
    const struct checkpoint_tensor *fused = NULL, *gate = NULL, *up = NULL, *down = NULL;
    struct expert_source first = {0};
    enum ferry_status st;

    st = take(b, ROLE_STACKED_GATE_UP, 0, true, &fused);
    if (st == FERRY_OK)
        st = take(b, ROLE_STACKED_DOWN, 0, true, &down);
    if (st == FERRY_OK && fused == NULL)
        st = take(b, ROLE_STACKED_GATE, 0, true, &gate);
    if (st == FERRY_OK && fused == NULL)
        st = take(b, ROLE_STACKED_UP, 0, true, &up);
    for (size_t e = 0; e < c->router.n_experts && st == FERRY_OK; e++) {
        struct expert_source source;
        if (fused != NULL) {
            st = bind_stacked(b, fused, 2 * width, 0, width, hidden, e, &source.gate);
            if (st == FERRY_OK)
                st = bind_stacked(b, fused, 2 * width, width, width, hidden, e, &source.up);
        } else {
            st = gate != NULL ? bind_stacked(b, gate, width, 0, width, hidden, e, &source.gate)
                              : bind_own(b, ROLE_EXPERT_GATE, e, width, hidden, &source.gate);
            if (st == FERRY_OK)
                st = up != NULL ? bind_stacked(b, up, width, 0, width, hidden, e, &source.up)
                                : bind_own(b, ROLE_EXPERT_UP, e, width, hidden, &source.up);
        }
        if (st == FERRY_OK)
            st = down != NULL ? bind_stacked(b, down, hidden, 0, hidden, width, e, &source.down)
                              : bind_own(b, ROLE_EXPERT_DOWN, e, hidden, width, &source.down);
        if (st == FERRY_OK && e == 0)
            first = source;
        if (st == FERRY_OK)
            st = same_format(b, &first, &source, e);
        if (st == FERRY_OK)
            expert_store_set(store, b->layer, e, &source);
    }
    return st;
}

static enum ferry_status bind_ffn(struct binder *b, const enum weight_role roles[3], size_t width,
                                  struct ffn_weights *ffn)
{
    enum ferry_status st = bind_matrix(b, roles[0], width, b->config->hidden, &ffn->gate);
    if (st == FERRY_OK)
        st = bind_matrix(b, roles[1], width, b->config->hidden, &ffn->up);
    if (st == FERRY_OK)
        st = bind_matrix(b, roles[2], b->config->hidden, width, &ffn->down);
    return st;
}

static enum ferry_status bind_attention(struct binder *b, struct layer_weights *l)
{
    const struct model_config *c = b->config;
    size_t q = c->n_heads * c->head_dim, kv = c->n_kv_heads * c->head_dim;
    bool whole = c->arch->qk_norm == QK_NORM_WHOLE, norms = c->arch->qk_norm != QK_NORM_NONE;

    enum ferry_status st = bind_vector(b, ROLE_ATTN_NORM, c->hidden, false, &l->attn_norm);
    if (st == FERRY_OK)
        st = bind_matrix(b, ROLE_Q, q, c->hidden, &l->q);
    if (st == FERRY_OK)
        st = bind_matrix(b, ROLE_K, kv, c->hidden, &l->k);
    if (st == FERRY_OK)
        st = bind_matrix(b, ROLE_V, kv, c->hidden, &l->v);
    if (st == FERRY_OK)
        st = bind_matrix(b, ROLE_O, c->hidden, q, &l->o);
    if (st == FERRY_OK && c->attn_bias)
        st = bind_vector(b, ROLE_Q_BIAS, q, false, &l->q_bias);
    if (st == FERRY_OK && c->attn_bias)
        st = bind_vector(b, ROLE_K_BIAS, kv, false, &l->k_bias);
    if (st == FERRY_OK && c->attn_bias)
        st = bind_vector(b, ROLE_V_BIAS, kv, false, &l->v_bias);
    if (st == FERRY_OK && c->attn_bias)
        st = bind_vector(b, ROLE_O_BIAS, c->hidden, true, &l->o_bias);
    if (st == FERRY_OK && norms)
        st = bind_vector(b, ROLE_Q_NORM, whole ? q : c->head_dim, false, &l->q_norm);
    if (st == FERRY_OK && norms)
        st = bind_vector(b, ROLE_K_NORM, whole ? kv : c->head_dim, false, &l->k_norm);
    return st;
}

static enum ferry_status bind_layer(struct binder *b, struct expert_store *store,
                                    struct layer_weights *l)
{
    static const enum weight_role DENSE[3] = {ROLE_GATE, ROLE_UP, ROLE_DOWN};
    static const enum weight_role SHARED[3] = {ROLE_SHARED_GATE, ROLE_SHARED_UP, ROLE_SHARED_DOWN};
    const struct model_config *c = b->config;

    enum ferry_status st = bind_attention(b, l);
    if (st == FERRY_OK)
        st = bind_vector(b, ROLE_FFN_NORM, c->hidden, false, &l->ffn_norm);
    if (st != FERRY_OK)
        return st;
    if (!c->layer_has_experts[b->layer])
        return bind_ffn(b, DENSE, c->dense_width, &l->dense);
    st = bind_matrix(b, ROLE_ROUTER, c->router.n_experts, c->hidden, &l->router);
    if (st == FERRY_OK)
        st = bind_experts(b, store);
    if (st == FERRY_OK && c->shared_width > 0)
        st = bind_ffn(b, SHARED, c->shared_width, &l->shared);
    if (st == FERRY_OK && c->shared_width > 0)
        st = bind_matrix(b, ROLE_SHARED_SCORE, 1, c->hidden, &l->shared_score);
    return st;
}

static enum ferry_status bind_ends(struct binder *b)
{
    const struct model_config *c = b->config;
    struct model_weights *w = b->weights;
    size_t before = w->packed_bytes, matrix_before = w->matrix_bytes;

    enum ferry_status st = bind_matrix(b, ROLE_EMBED, c->n_vocab, c->hidden, &w->embed);
    if (st != FERRY_OK)
        return st;
    if (c->tied) { /* the table is the head too: packed once, as that */
        w->head = w->embed;
        if (names_find(b->checkpoint, ROLE_HEAD, 0, 0, NULL, 0) != NULL) {
            /* Some writers store the tied head as well; it must be the same bytes to be the same
             * model. */
            const struct checkpoint_tensor *head = NULL;
            st = take(b, ROLE_HEAD, 0, false, &head);
            if (st == FERRY_OK && (head->dtype != w->embed.dtype ||
                                   head->size_bytes != c->n_vocab * w->embed.row_bytes ||
                                   memcmp(head->data, w->embed.rows, head->size_bytes) != 0))
                st = FERRY_FAIL(b->err, FERRY_ERR_FORMAT,
                                "tensor '%s' differs from the embedding table although "
                                "tie_word_embeddings is set",
                                head->name);
        }
    } else {
        w->packed_bytes = before; /* the table is read by row, never packed */
        w->matrix_bytes = matrix_before;
        st = bind_matrix(b, ROLE_HEAD, c->n_vocab, c->hidden, &w->head);
    }
    if (st == FERRY_OK)
        st = bind_vector(b, ROLE_FINAL_NORM, c->hidden, false, &w->final_norm);
    return st;
}

/* Every tensor was taken or is on the ignore list. */
static enum ferry_status check_all_taken(struct binder *b)
{
    size_t n_left = 0;
    const char *first = NULL;

    for (size_t i = 0; i < checkpoint_n_tensors(b->checkpoint); i++) {
        const struct checkpoint_tensor *t = checkpoint_tensor(b->checkpoint, i);
        if (t->taken)
            continue;
        if (names_ignored(t->name) != NULL) {
            b->weights->n_ignored++;
            continue;
        }
        first = n_left++ == 0 ? t->name : first;
    }
    if (n_left == 0)
        return FERRY_OK;
    return FERRY_FAIL(
        b->err, FERRY_ERR_FORMAT,
        "%zu tensors would be left unread, the first is '%s': this is no plain %s checkpoint",
        n_left, first, b->config->arch->name);
}

enum ferry_status weights_bind(struct model_weights *weights, struct expert_store *store,
                               const struct model_config *config, struct checkpoint *checkpoint,
                               struct arena *arena, struct ferry_error *err)
{
    struct binder b = {config, checkpoint, arena, weights, err, 0};

    *weights = (struct model_weights){0};
    weights->layers = arena_array(arena, config->n_layers, sizeof *weights->layers);
    if (weights->layers == NULL)
        return FERRY_FAIL(err, FERRY_ERR_NOMEM, "model: no memory for %zu layers",
                          config->n_layers);
    enum ferry_status st = bind_ends(&b);
    for (b.layer = 0; b.layer < config->n_layers && st == FERRY_OK; b.layer++)
        st = bind_layer(&b, store, &weights->layers[b.layer]);
    return st == FERRY_OK ? check_all_taken(&b) : st;
}

/* ---- loading ---- */

/* Experts that are loaded by one call: enough to share the hashing, few enough that their file
 * pages do not pile up. */
enum { BATCH = 64, BATCH_BYTES = 16 << 20, FORGET_BYTES = 64 << 20 };

struct loader {
    struct device *device;
    struct expert_store *store;
    const struct checkpoint *checkpoint;
    const struct weights_home *home;
    struct ferry_error *err;
    unsigned char *at;
    size_t n_unforgotten; /* bytes packed since file pages were last let go */
    struct expert_id batch[BATCH];
    size_t n_batch, batch_bytes;
};

/* File pages that were packed leave memory, so that loading never holds the weights twice. */
static void packed_more(struct loader *p, size_t n_bytes)
{
    p->n_unforgotten += n_bytes;
    if (p->n_unforgotten < FORGET_BYTES)
        return;
    checkpoint_forget_pages(p->checkpoint);
    p->n_unforgotten = 0;
}

static void pack(struct loader *p, struct weight *w)
{
    size_t n;

    if (w->rows == NULL || !device_weight_bytes(w->dtype, w->n_cols, w->k, &n))
        return;
    device_weight_pack(p->device, w, p->at);
    p->at += n;
    packed_more(p, n);
}

static void pack_ffn(struct loader *p, struct ffn_weights *ffn)
{
    pack(p, &ffn->gate);
    pack(p, &ffn->up);
    pack(p, &ffn->down);
}

static void pack_dense(struct loader *p, struct layer_weights *w)
{
    struct weight *attn[] = {&w->q, &w->k, &w->v, &w->o, &w->router, &w->shared_score};

    for (size_t i = 0; i < sizeof attn / sizeof attn[0]; i++)
        pack(p, attn[i]);
    pack_ffn(p, &w->dense);
    pack_ffn(p, &w->shared);
}

static enum ferry_status load_batch(struct loader *p)
{
    enum ferry_status st =
        expert_store_load_many(p->store, p->device, p->batch, p->n_batch, p->err);

    if (p->home->memory != NULL)
        packed_more(p, p->batch_bytes);
    p->n_batch = p->batch_bytes = 0;
    return st;
}

static enum ferry_status load_experts(struct loader *p, size_t layer, size_t n_experts)
{
    size_t n_bytes = expert_store_one_bytes(p->store, layer);
    size_t enough = min_size(BATCH, (size_t)device_threads(p->device));
    enum ferry_status st = FERRY_OK;

    for (size_t e = 0; e < n_experts && st == FERRY_OK; e++) {
        if (!expert_store_wants(p->home->placement, p->home->seat, layer, e))
            continue;
        if (p->home->placement == NULL && p->home->memory != NULL) {
            expert_store_lend(p->store, layer, e, p->at);
            p->at += n_bytes;
        }
        p->batch[p->n_batch++] = (struct expert_id){(uint32_t)layer, (uint32_t)e};
        p->batch_bytes += n_bytes;
        if (p->n_batch == BATCH || (p->n_batch >= enough && p->batch_bytes >= BATCH_BYTES))
            st = load_batch(p);
    }
    return st == FERRY_OK ? load_batch(p) : st;
}

size_t weights_memory_bytes(const struct model_weights *weights, const struct expert_store *store,
                            const struct placement *placement)
{
    return weights->packed_bytes + (placement == NULL ? expert_store_packed_bytes(store) : 0);
}

enum ferry_status weights_load(struct model_weights *weights, struct expert_store *store,
                               const struct model_config *config,
                               const struct checkpoint *checkpoint, struct device *device,
                               const struct weights_home *home, struct ferry_error *err)
{
    struct loader p = {.device = device,
                       .store = store,
                       .checkpoint = checkpoint,
                       .home = home,
                       .err = err,
                       .at = home->memory};
    enum ferry_status st = FERRY_OK;

    if (home->placement != NULL)
        st = expert_store_reserve(store, home->placement, home->seat, err);
    for (size_t l = 0; l < config->n_layers && st == FERRY_OK; l++) {
        if (home->memory != NULL)
            pack_dense(&p, &weights->layers[l]);
        if (config->layer_has_experts[l])
            st = load_experts(&p, l, config->router.n_experts);
    }
    if (st != FERRY_OK || home->memory == NULL)
        return st;
    pack(&p, &weights->head);
    if (config->tied)
        weights->embed.packed = NULL;
    checkpoint_forget_pages(checkpoint);
    FERRY_ASSERT((size_t)(p.at - home->memory) ==
                 weights_memory_bytes(weights, store, home->placement));
    return FERRY_OK;
}
