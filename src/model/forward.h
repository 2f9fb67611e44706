/* Inside of the room: a loaded model's state, and the forward pass over it. */
#ifndef MODEL_FORWARD_H
#define MODEL_FORWARD_H

#include "base/arena.h"
#include "model/model.h"
#include "model/weights.h"

/* Step buffers, [step_tokens, ...] row-major f32 unless said otherwise; carved at load,
 * never grown. */
struct step_buffers {
    float *x;         /* [T, hidden] residual stream */
    float *norm;      /* [T, hidden] */
    float *q;         /* [T, n_heads * head_dim] */
    float *k, *v;     /* [T, n_kv_heads * head_dim] */
    float *attn;      /* [T, n_heads * head_dim] */
    float *branch;    /* [T, hidden] output of attention or feed-forward, before the residual */
    float *shared;    /* [T, hidden] */
    float *scores;    /* [T, n_experts] router logits */
    float *gate;      /* [T] shared expert's gate */
    float *cos, *sin; /* [T, n_rope_pairs] */
    void *act_hidden; /* [T] A32 rows of `hidden` values */
    void *act_attn;   /* [T] A32 rows of n_heads * head_dim values */
    void *ffn_hidden; /* [job slots or T] rows of the widest feed-forward, any activation format */
    float *rows;      /* [step_logits, hidden] rows whose logits are wanted */
    int32_t *ids;     /* [T] */
    int32_t *positions; /* [T] */
    int32_t *experts;   /* [T, top_k] */
    float *weights;     /* [T, top_k] */
    int32_t *
        dense_begin; /* [2] one pseudo-expert that owns all rows: dense layers and shared experts */
    struct attn_run *attn_runs; /* [T] */
    struct model_run *runs;     /* [T] of micro-batches: at most one a row */
};

struct model {
    struct checkpoint *checkpoint;
    struct device *device;
    struct model_options options;
    struct model_config config;
    struct model_plan plan;
    struct model_weights weights;
    struct expert_store *store;
    struct exchange *exchange;
    struct step_buffers step;
    struct model_counters counters;
    struct arena arena;               /* configuration, norms, biases: the model's lifetime */
    struct arena step_arena;          /* step buffers: carved at load, never grown */
    struct expert_manifest *manifest; /* NULL: the checkpoint has none */
    unsigned char *packed;            /* weights_memory_bytes */
    float *inv_freq;                  /* [n_rope_pairs] */
    char numerics[512];
    bool loaded;
};

/* Runs a layer's experts for the exchange; arg is the model. */
size_t forward_experts(void *arg, const struct exchange_job *work);

/* The pass itself; model_step checks arguments and retries a voided step. */
enum ferry_status forward(struct model *model, const struct model_run *runs, size_t n_runs,
                          float *logits, struct ferry_error *err) FERRY_MUST_CHECK;

#endif
