/* Writer of tiny checkpoints. See tiny.h. */
#include "tests/support/tiny.h"

#include "tensor/half.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

/* Header and data grow together, in the order that tensors are added. */
struct writer {
    const struct tiny_options *o;
    FILE *data;
    char *header;
    size_t header_size, header_capacity, offset;
};

struct tiny_options tiny_defaults(const char *arch)
{
    return (struct tiny_options){.arch = arch,
                                 .hidden = 40,
                                 .n_layers = 2,
                                 .n_heads = 4,
                                 .n_kv_heads = 2,
                                 .head_dim = 10,
                                 .n_experts = 8,
                                 .top_k = 3,
                                 .expert_width = 24,
                                 .n_vocab = 97};
}

/* splitmix64 over (name, index): uniform in [-1, 1). */
static float value_at(uint64_t key, size_t index)
{
    uint64_t z = key + 0x9E3779B97F4A7C15u * (index + 1);

    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    z ^= z >> 31;
    return (float)(z >> 40) * 0x1p-23f - 1.0f;
}

static uint64_t key_of(const char *name)
{
    uint64_t h = 1469598103934665603u;
    for (; *name != 0; name++)
        h = (h ^ (unsigned char)*name) * 1099511628211u;
    return h;
}

static void header_add(struct writer *w, const char *text)
{
    size_t n = strlen(text);

    if (w->header_size + n + 1 > w->header_capacity) {
        w->header_capacity = 2 * (w->header_capacity + n + 1);
        w->header = realloc(w->header, w->header_capacity);
        assert_non_null(w->header);
    }
    memcpy(w->header + w->header_size, text, n + 1);
    w->header_size += n;
}

static bool is(const char *option, const char *name)
{
    return option != NULL && strcmp(option, name) == 0;
}

/* n values of the tensor or part of a tensor called `name`. `scale` 0: values around 1, for norms.
 */
static void put_values(struct writer *w, const char *name, size_t n, float scale)
{
    uint64_t key = key_of(name);

    for (size_t i = 0; i < n; i++) {
        float v = scale > 0 ? value_at(key, i) * scale : 1.0f + 0.3f * value_at(key, i);
        if (i == w->o->poisoned_item && is(w->o->poison, name))
            v = __builtin_nanf("");
        uint16_t h = w->o->dtype == DTYPE_F16 ? f16_from_f32(v) : bf16_from_f32(v);
        if (w->o->dtype == DTYPE_F32)
            assert_int_equal(fwrite(&v, sizeof v, 1, w->data), 1);
        else
            assert_int_equal(fwrite(&h, sizeof h, 1, w->data), 1);
    }
}

/* The header's entry of the next tensor, of n values; shape as JSON. */
static void declare(struct writer *w, const char *name, const char *shape, size_t n)
{
    static const char *const NAMES[] = {"F32", "F16", "BF16"};
    char text[400];
    size_t size = n * dtype_block_bytes(w->o->dtype);

    (void)snprintf(text, sizeof text,
                   ",\"%s\":{\"dtype\":\"%s\",\"shape\":%s,\"data_offsets\":[%zu,%zu]}", name,
                   NAMES[w->o->dtype], shape, w->offset, w->offset + size);
    header_add(w, text);
    w->offset += size;
}

/* One tensor [rows, cols] with the values of `values`; rows 0 is a vector [cols]. */
static void add_as(struct writer *w, const char *name, const char *values, size_t rows, size_t cols,
                   float scale)
{
    char shape[64];

    if (is(w->o->skip, name))
        return;
    if (is(w->o->squeeze, name))
        cols--;
    if (rows > 0)
        (void)snprintf(shape, sizeof shape, "[%zu,%zu]", rows, cols);
    else
        (void)snprintf(shape, sizeof shape, "[%zu]", cols);
    size_t n = (rows > 0 ? rows : 1) * cols;
    declare(w, name, shape, n);
    put_values(w, values, n, scale);
}

static void add(struct writer *w, const char *name, size_t rows, size_t cols, float scale)
{
    add_as(w, name, name, rows, cols, scale);
}

static void add_in_layer(struct writer *w, size_t layer, const char *name, size_t rows, size_t cols,
                         float scale)
{
    char text[200];
    (void)snprintf(text, sizeof text, "model.layers.%zu.%s", layer, name);
    add(w, text, rows, cols, scale);
}

static bool is_arch(const struct writer *w, const char *arch)
{
    return strcmp(w->o->arch, arch) == 0;
}

enum part { PART_GATE, PART_UP, PART_DOWN };

/* What the matrix of one expert is called where each has its own tensor. */
static const char *expert_name(const struct writer *w, size_t layer, size_t expert, enum part part)
{
    static const char *const MIXTRAL[] = {"w1", "w3", "w2"};
    static const char *const OTHERS[] = {"gate_proj", "up_proj", "down_proj"};
    static char name[200];
    bool mixtral = is_arch(w, "mixtral");

    (void)snprintf(name, sizeof name, "model.layers.%zu.%s.experts.%zu.%s.weight", layer,
                   mixtral ? "block_sparse_moe" : "mlp", expert,
                   mixtral ? MIXTRAL[part] : OTHERS[part]);
    return name;
}

/* All experts in two tensors; the values are those of the separate ones. */
static void add_fused_experts(struct writer *w, size_t layer, const char *gate_up, const char *down)
{
    const struct tiny_options *o = w->o;
    size_t n = o->expert_width * o->hidden;
    char name[200], shape[100];

    (void)snprintf(name, sizeof name, "model.layers.%zu.%s", layer, gate_up);
    (void)snprintf(shape, sizeof shape, "[%zu,%zu,%zu]", o->n_experts, 2 * o->expert_width,
                   o->hidden);
    declare(w, name, shape, o->n_experts * 2 * n);
    for (size_t e = 0; e < o->n_experts; e++) {
        put_values(w, expert_name(w, layer, e, PART_GATE), n, 0.4f);
        put_values(w, expert_name(w, layer, e, PART_UP), n, 0.4f);
    }
    (void)snprintf(name, sizeof name, "model.layers.%zu.%s", layer, down);
    (void)snprintf(shape, sizeof shape, "[%zu,%zu,%zu]", o->n_experts, o->hidden, o->expert_width);
    declare(w, name, shape, o->n_experts * n);
    for (size_t e = 0; e < o->n_experts; e++)
        put_values(w, expert_name(w, layer, e, PART_DOWN), n, 0.4f);
}

static void add_experts(struct writer *w, size_t layer)
{
    const struct tiny_options *o = w->o;

    if (is_arch(w, "granitemoe") && o->fused) {
        add_fused_experts(w, layer, "block_sparse_moe.experts.gate_up_proj",
                          "block_sparse_moe.experts.down_proj");
    } else if (is_arch(w, "granitemoe")) {
        add_fused_experts(w, layer, "block_sparse_moe.input_linear.weight",
                          "block_sparse_moe.output_linear.weight");
    } else if (o->fused) {
        add_fused_experts(w, layer, "mlp.experts.gate_up_proj", "mlp.experts.down_proj");
    } else {
        for (size_t e = 0; e < o->n_experts; e++) {
            add(w, expert_name(w, layer, e, PART_GATE), o->expert_width, o->hidden, 0.4f);
            add(w, expert_name(w, layer, e, PART_UP), o->expert_width, o->hidden, 0.4f);
            add(w, expert_name(w, layer, e, PART_DOWN), o->hidden, o->expert_width, 0.4f);
        }
    }
}

/* The router keeps its values whatever it is called. */
static void add_router(struct writer *w, size_t layer)
{
    const char *name = "mlp.gate.weight";
    char full[200], key[200];

    if (is_arch(w, "granitemoe"))
        name =
            w->o->fused ? "block_sparse_moe.router.weight" : "block_sparse_moe.router.layer.weight";
    else if (is_arch(w, "mixtral") && !w->o->fused)
        name = "block_sparse_moe.gate.weight";
    (void)snprintf(full, sizeof full, "model.layers.%zu.%s", layer, name);
    (void)snprintf(key, sizeof key, "model.layers.%zu.mlp.gate.weight", layer);
    add_as(w, full, is(w->o->poison, full) ? full : key, w->o->n_experts, w->o->hidden, 0.5f);
}

static void add_feed_forward(struct writer *w, size_t layer)
{
    const struct tiny_options *o = w->o;

    if ((o->dense >> layer & 1u) != 0) {
        add_in_layer(w, layer, "mlp.gate_proj.weight", o->expert_width, o->hidden, 0.4f);
        add_in_layer(w, layer, "mlp.up_proj.weight", o->expert_width, o->hidden, 0.4f);
        add_in_layer(w, layer, "mlp.down_proj.weight", o->hidden, o->expert_width, 0.4f);
        return;
    }
    add_router(w, layer);
    add_experts(w, layer);
    if (is_arch(w, "qwen2_moe")) {
        add_in_layer(w, layer, "mlp.shared_expert.gate_proj.weight", 16, o->hidden, 0.3f);
        add_in_layer(w, layer, "mlp.shared_expert.up_proj.weight", 16, o->hidden, 0.3f);
        add_in_layer(w, layer, "mlp.shared_expert.down_proj.weight", o->hidden, 16, 0.3f);
        add_in_layer(w, layer, "mlp.shared_expert_gate.weight", 1, o->hidden, 0.3f);
    }
}

static void add_layer(struct writer *w, size_t layer)
{
    const struct tiny_options *o = w->o;
    size_t q = o->n_heads * o->head_dim, kv = o->n_kv_heads * o->head_dim;

    add_in_layer(w, layer, "input_layernorm.weight", 0, o->hidden, 0);
    add_in_layer(w, layer, "post_attention_layernorm.weight", 0, o->hidden, 0);
    add_in_layer(w, layer, "self_attn.q_proj.weight", q, o->hidden, 0.3f);
    add_in_layer(w, layer, "self_attn.k_proj.weight", kv, o->hidden, 0.3f);
    add_in_layer(w, layer, "self_attn.v_proj.weight", kv, o->hidden, 0.3f);
    add_in_layer(w, layer, "self_attn.o_proj.weight", o->hidden, q, 0.3f);
    if (is_arch(w, "qwen2_moe")) {
        add_in_layer(w, layer, "self_attn.q_proj.bias", 0, q, 0.2f);
        add_in_layer(w, layer, "self_attn.k_proj.bias", 0, kv, 0.2f);
        add_in_layer(w, layer, "self_attn.v_proj.bias", 0, kv, 0.2f);
    } else if (is_arch(w, "qwen3_moe")) {
        add_in_layer(w, layer, "self_attn.q_norm.weight", 0, o->head_dim, 0);
        add_in_layer(w, layer, "self_attn.k_norm.weight", 0, o->head_dim, 0);
    } else if (is_arch(w, "olmoe")) {
        add_in_layer(w, layer, "self_attn.q_norm.weight", 0, q, 0);
        add_in_layer(w, layer, "self_attn.k_norm.weight", 0, kv, 0);
    }
    add_feed_forward(w, layer);
}

/* Members that only some architectures have. */
static void write_arch_config(const struct tiny_options *o, FILE *f)
{
    bool first = true;

    if (strcmp(o->arch, "granitemoe") == 0)
        (void)fprintf(f, ",\"embedding_multiplier\":3,\"residual_multiplier\":0.5,"
                         "\"attention_multiplier\":0.25,\"logits_scaling\":2");
    if (strncmp(o->arch, "qwen", 4) != 0)
        return;
    (void)fprintf(f, ",\"moe_intermediate_size\":%zu,\"mlp_only_layers\":[", o->expert_width);
    for (size_t l = 0; l < o->n_layers; l++) {
        if ((o->dense >> l & 1u) == 0)
            continue;
        (void)fprintf(f, first ? "%zu" : ",%zu", l);
        first = false;
    }
    (void)fprintf(f, "]");
}

static void write_config(const struct tiny_options *o, const char *folder)
{
    char path[300];

    (void)snprintf(path, sizeof path, "%s/config.json", folder);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    bool local = strcmp(o->arch, "mixtral") == 0 || strcmp(o->arch, "granitemoe") == 0;
    (void)fprintf(f,
                  "{\"model_type\":\"%s\",\"hidden_size\":%zu,\"num_hidden_layers\":%zu,"
                  "\"num_attention_heads\":%zu,\"num_key_value_heads\":%zu,\"head_dim\":%zu,"
                  "\"vocab_size\":%zu,\"max_position_embeddings\":2048,\"rms_norm_eps\":1e-6,"
                  "\"rope_theta\":10000,\"num_experts_per_tok\":%zu,\"%s\":%zu,"
                  "\"tie_word_embeddings\":%s,\"hidden_act\":\"silu\","
                  "\"shared_expert_intermediate_size\":16,\"norm_topk_prob\":true,"
                  "\"intermediate_size\":%zu",
                  o->arch, o->hidden, o->n_layers, o->n_heads, o->n_kv_heads, o->head_dim,
                  o->n_vocab, o->top_k, local ? "num_local_experts" : "num_experts", o->n_experts,
                  o->tied ? "true" : "false", o->expert_width);
    write_arch_config(o, f);
    (void)fprintf(f, "%s}", o->config != NULL ? o->config : "");
    assert_int_equal(fclose(f), 0);
}

const char *tiny_write(const struct tiny_options *options)
{
    static char folder[128];
    char path[300];
    struct writer w = {.o = options};

    const char *base = getenv("TMPDIR");
    (void)snprintf(folder, sizeof folder, "%s/ferry-tiny-XXXXXX", base != NULL ? base : P_tmpdir);
    assert_non_null(mkdtemp(folder));
    write_config(options, folder);
    w.data = tmpfile();
    assert_non_null(w.data);
    header_add(&w, "{\"__metadata__\":{\"format\":\"pt\"}");
    add(&w, "model.embed_tokens.weight", options->n_vocab, options->hidden, 1.0f);
    add(&w, "model.norm.weight", 0, options->hidden, 0);
    if (!options->tied)
        add(&w, "lm_head.weight", options->n_vocab, options->hidden, 0.5f);
    else if (options->with_head)
        add_as(&w, "lm_head.weight", "model.embed_tokens.weight", options->n_vocab, options->hidden,
               1.0f);
    for (size_t l = 0; l < options->n_layers; l++)
        add_layer(&w, l);
    if (options->extra != NULL)
        add(&w, options->extra, 2, 3, 1.0f);
    header_add(&w, "}");
    while (w.header_size % 8 != 0)
        header_add(&w, " ");
    (void)snprintf(path, sizeof path, "%s/model.safetensors", folder);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    uint64_t size = w.header_size; /* tests run on little-endian machines */
    assert_int_equal(fwrite(&size, sizeof size, 1, f), 1);
    assert_int_equal(fwrite(w.header, w.header_size, 1, f), 1);
    rewind(w.data);
    char buffer[4096];
    size_t n;
    while ((n = fread(buffer, 1, sizeof buffer, w.data)) > 0)
        assert_int_equal(fwrite(buffer, 1, n, f), n);
    assert_int_equal(fclose(f), 0);
    (void)fclose(w.data);
    free(w.header);
    return folder;
}

void tiny_remove(const char *folder)
{
    char path[300];

    (void)snprintf(path, sizeof path, "%s/config.json", folder);
    (void)unlink(path);
    (void)snprintf(path, sizeof path, "%s/model.safetensors", folder);
    (void)unlink(path);
    (void)rmdir(folder);
}
