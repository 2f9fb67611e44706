/* Writer of tiny checkpoints. See tiny.h. */
#include "tests/support/tiny.h"

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

/* One tensor [rows, cols]; rows 0 is a vector [cols]. `scale` 0: values around 1, for norms. */
static void add(struct writer *w, const char *name, size_t rows, size_t cols, float scale)
{
    char text[256];
    uint64_t key = key_of(name);

    if (w->o->skip != NULL && strcmp(w->o->skip, name) == 0)
        return;
    if (w->o->squeeze != NULL && strcmp(w->o->squeeze, name) == 0)
        cols--;
    size_t n = (rows > 0 ? rows : 1) * cols;
    if (rows > 0)
        (void)snprintf(text, sizeof text,
                       ",\"%s\":{\"dtype\":\"F32\",\"shape\":[%zu,%zu],\"data_offsets\":[%zu,%zu]}",
                       name, rows, cols, w->offset, w->offset + n * 4);
    else
        (void)snprintf(text, sizeof text,
                       ",\"%s\":{\"dtype\":\"F32\",\"shape\":[%zu],\"data_offsets\":[%zu,%zu]}",
                       name, cols, w->offset, w->offset + n * 4);
    header_add(w, text);
    for (size_t i = 0; i < n; i++) {
        float v = scale > 0 ? value_at(key, i) * scale : 1.0f + 0.3f * value_at(key, i);
        if (i == 0 && w->o->poison != NULL && strcmp(w->o->poison, name) == 0)
            v = __builtin_nanf("");
        assert_int_equal(fwrite(&v, sizeof v, 1, w->data), 1);
    }
    w->offset += n * 4;
}

static void add_in_layer(struct writer *w, size_t layer, const char *name, size_t rows, size_t cols,
                         float scale)
{
    char text[200];
    (void)snprintf(text, sizeof text, "model.layers.%zu.%s", layer, name);
    add(w, text, rows, cols, scale);
}

static void add_experts(struct writer *w, size_t layer, bool mixtral)
{
    const struct tiny_options *o = w->o;
    char name[100];

    for (size_t e = 0; e < o->n_experts; e++) {
        (void)snprintf(name, sizeof name,
                       mixtral ? "block_sparse_moe.experts.%zu.w1.weight"
                               : "mlp.experts.%zu.gate_proj.weight",
                       e);
        add_in_layer(w, layer, name, o->expert_width, o->hidden, 0.4f);
        (void)snprintf(name, sizeof name,
                       mixtral ? "block_sparse_moe.experts.%zu.w3.weight"
                               : "mlp.experts.%zu.up_proj.weight",
                       e);
        add_in_layer(w, layer, name, o->expert_width, o->hidden, 0.4f);
        (void)snprintf(name, sizeof name,
                       mixtral ? "block_sparse_moe.experts.%zu.w2.weight"
                               : "mlp.experts.%zu.down_proj.weight",
                       e);
        add_in_layer(w, layer, name, o->hidden, o->expert_width, 0.4f);
    }
}

static void add_layer(struct writer *w, size_t layer)
{
    const struct tiny_options *o = w->o;
    size_t q = o->n_heads * o->head_dim, kv = o->n_kv_heads * o->head_dim;
    bool mixtral = strcmp(o->arch, "mixtral") == 0, qwen2 = strcmp(o->arch, "qwen2_moe") == 0;

    add_in_layer(w, layer, "input_layernorm.weight", 0, o->hidden, 0);
    add_in_layer(w, layer, "post_attention_layernorm.weight", 0, o->hidden, 0);
    add_in_layer(w, layer, "self_attn.q_proj.weight", q, o->hidden, 0.3f);
    add_in_layer(w, layer, "self_attn.k_proj.weight", kv, o->hidden, 0.3f);
    add_in_layer(w, layer, "self_attn.v_proj.weight", kv, o->hidden, 0.3f);
    add_in_layer(w, layer, "self_attn.o_proj.weight", o->hidden, q, 0.3f);
    if (qwen2) {
        add_in_layer(w, layer, "self_attn.q_proj.bias", 0, q, 0.2f);
        add_in_layer(w, layer, "self_attn.k_proj.bias", 0, kv, 0.2f);
        add_in_layer(w, layer, "self_attn.v_proj.bias", 0, kv, 0.2f);
        add_in_layer(w, layer, "mlp.shared_expert.gate_proj.weight", 16, o->hidden, 0.3f);
        add_in_layer(w, layer, "mlp.shared_expert.up_proj.weight", 16, o->hidden, 0.3f);
        add_in_layer(w, layer, "mlp.shared_expert.down_proj.weight", o->hidden, 16, 0.3f);
        add_in_layer(w, layer, "mlp.shared_expert_gate.weight", 1, o->hidden, 0.3f);
    }
    if (strcmp(o->arch, "qwen3_moe") == 0) {
        add_in_layer(w, layer, "self_attn.q_norm.weight", 0, o->head_dim, 0);
        add_in_layer(w, layer, "self_attn.k_norm.weight", 0, o->head_dim, 0);
    } else if (strcmp(o->arch, "olmoe") == 0) {
        add_in_layer(w, layer, "self_attn.q_norm.weight", 0, q, 0);
        add_in_layer(w, layer, "self_attn.k_norm.weight", 0, kv, 0);
    }
    add_in_layer(w, layer, mixtral ? "block_sparse_moe.gate.weight" : "mlp.gate.weight",
                 o->n_experts, o->hidden, 0.5f);
    add_experts(w, layer, mixtral);
}

static void write_config(const struct tiny_options *o, const char *folder)
{
    char path[300];

    (void)snprintf(path, sizeof path, "%s/config.json", folder);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    bool width_is_own = strncmp(o->arch, "qwen", 4) == 0;
    (void)fprintf(
        f,
        "{\"model_type\":\"%s\",\"hidden_size\":%zu,\"num_hidden_layers\":%zu,\"num_attention_"
        "heads\":%zu,"
        "\"num_key_value_heads\":%zu,\"head_dim\":%zu,\"vocab_size\":%zu,\"max_position_"
        "embeddings\":2048,"
        "\"rms_norm_eps\":1e-6,\"rope_theta\":10000,\"num_experts_per_tok\":%zu,\"%s\":%zu,\"%s\":%"
        "zu,"
        "\"tie_word_embeddings\":%s,\"hidden_act\":\"silu\",\"shared_expert_intermediate_size\":16,"
        "\"norm_topk_prob\":true,\"intermediate_size\":%zu}",
        o->arch, o->hidden, o->n_layers, o->n_heads, o->n_kv_heads, o->head_dim, o->n_vocab,
        o->top_k, strcmp(o->arch, "mixtral") == 0 ? "num_local_experts" : "num_experts",
        o->n_experts, width_is_own ? "moe_intermediate_size" : "unused", o->expert_width,
        o->tied ? "true" : "false", o->expert_width);
    assert_int_equal(fclose(f), 0);
}

const char *tiny_write(const struct tiny_options *options)
{
    static char folder[128];
    char path[300];
    struct writer w = {.o = options};

    (void)snprintf(folder, sizeof folder, "/tmp/ferry-tiny-XXXXXX");
    assert_non_null(mkdtemp(folder));
    write_config(options, folder);
    w.data = tmpfile();
    assert_non_null(w.data);
    header_add(&w, "{\"__metadata__\":{\"format\":\"pt\"}");
    add(&w, "model.embed_tokens.weight", options->n_vocab, options->hidden, 1.0f);
    add(&w, "model.norm.weight", 0, options->hidden, 0);
    if (!options->tied)
        add(&w, "lm_head.weight", options->n_vocab, options->hidden, 0.5f);
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
