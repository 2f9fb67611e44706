/* From gate logits to a router decision: which experts a token goes to, and with which weights.
 *
 * Why here: every architecture's router is one setting of the same few fields, so that what a model
 * was trained with is data and not code. It must not know where experts live or what they compute.
 * Numerics: f32 throughout, docs/numerics.md. */
#ifndef ROUTING_ROUTER_H
#define ROUTING_ROUTER_H

#include "ferry/status.h"
#include "kernel/kernel.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum router_score {
    ROUTER_SCORE_SOFTMAX, /* over all experts (Mixtral, Qwen, OLMoE) */
    ROUTER_SCORE_NONE,    /* raw logits (Granite, GPT-OSS) */
};

enum router_post {
    ROUTER_POST_GATHER,  /* weights are the selected scores */
    ROUTER_POST_SOFTMAX, /* softmax over the selected scores */
};

/* One architecture's router as data. */
struct router_policy {
    enum router_score score;
    enum router_post post;
    bool renormalise; /* divide by the sum of the selected weights, added in selection order */
    float scale;      /* multiplies the weights last */
    size_t n_experts; /* 1..LIMIT_EXPERTS */
    size_t top_k;     /* 1..n_experts, at most LIMIT_TOP_K */
};

/* Checks a policy once, at load. FERRY_ERR_ARG / FERRY_ERR_LIMIT name the field. */
enum ferry_status router_policy_check(const struct router_policy *policy,
                                      struct ferry_error *err) FERRY_MUST_CHECK;

/* One token: logits [n_experts] f32 (overwritten) to experts, weights [top_k]. Never allocates; any
 * thread. FERRY_ERR_NONFINITE: a logit is NaN or infinite; the outputs are unspecified then. */
enum ferry_status router_select(const struct router_policy *policy, const struct kernels *kernels,
                                float *logits, int32_t *experts, float *weights) FERRY_MUST_CHECK;

#endif
