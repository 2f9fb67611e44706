#!/usr/bin/env python3
"""The five architectures as one plain f64 forward pass in numpy, written for reading.

What: Model(config, tensors).forward(ids) -> logits, with a key/value cache, and the routing margin
of every decision.
Why here: it is the second, independent opinion beside transformers (both must agree on every golden
vector), it checks weights.py without torch, and its margins pick the prompts whose routing cannot
flip under rounding.
Must not know: torch, transformers, file formats, Ferry.

`quant_rows` optionally rounds the input rows of every matmul to int8 blocks of 32 (NUMERICS section
3, A32), which predicts what an engine with quantised activations may lose.
"""

import numpy as np

from weights import Shape


def rms_norm(x, weight, eps):
    """x [..., n] -> x / sqrt(mean(x^2) + eps) * weight."""
    return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + eps) * weight


def silu(x):
    return x / (1.0 + np.exp(-x))


def softmax(x):
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


def rotate(x, positions, theta):
    """Half-split rope over the whole head. x [T, heads, d]; pair (i, i + d/2) turns by position /
    theta^(2i/d)."""
    d = x.shape[-1]
    inv_freq = (
        1.0 / (np.float32(theta) ** (np.arange(0, d, 2, dtype=np.float32) / np.float32(d)))
    ).astype(np.float64)
    angle = np.asarray(positions, dtype=np.float64)[:, None] * inv_freq[None, :]
    cos, sin = np.cos(angle)[:, None, :], np.sin(angle)[:, None, :]
    a, b = x[..., : d // 2], x[..., d // 2 :]
    return np.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1)


def top_k(scores, k):
    """Indices of the k largest, higher score first, then lower index."""
    return np.argsort(-scores, kind="stable")[:k]


def route(arch, logits, k, renormalise):
    """One token's router: logits [E] -> (expert ids [k], weights [k]).

    granitemoe: softmax over the k selected logits. The others: softmax over all experts, gather,
    and divide by the sum only where the architecture (mixtral) or its config (norm_topk_prob) says
    so.
    """
    if arch == "granitemoe":
        ids = top_k(logits, k)
        return ids, softmax(logits[ids])
    probs = softmax(logits)
    ids = top_k(probs, k)
    weights = probs[ids]
    return ids, weights / weights.sum() if renormalise else weights


def margin_of(logits, k):
    """Distance between the k-th and the (k+1)-th router logit in units of the logits' standard
    deviation."""
    ordered = np.sort(logits)[::-1]
    return np.inf if k >= ordered.size else float((ordered[k - 1] - ordered[k]) / logits.std())


def quantise_rows(x):
    """A32: blocks of 32 values along the last axis, scale amax/127, nearest even."""
    n = x.shape[-1]
    pad = -n % 32
    y = np.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, pad)]).reshape(*x.shape[:-1], -1, 32)
    scale = np.abs(y).max(axis=-1, keepdims=True) / 127.0
    q = np.rint(np.divide(y, scale, out=np.zeros_like(y), where=scale > 0))
    return (q * scale).reshape(*x.shape[:-1], n + pad)[..., :n]


class Model:
    """Holds f64 weights and the cache of one sequence; `used` counts cached positions and may be
    set back."""

    def __init__(self, config, tensors, capacity=1024, quant_rows=False):
        self.s = Shape(config)
        self.config = config
        self.w = {n: t.astype(np.float64) for n, t in tensors.items()}
        self.quant_rows = quant_rows
        granite = self.s.arch == "granitemoe"
        self.embed_scale = config.get("embedding_multiplier", 1.0) if granite else 1.0
        self.branch_scale = config.get("residual_multiplier", 1.0) if granite else 1.0
        self.logit_divisor = config.get("logits_scaling", 1.0) if granite else 1.0
        self.score_scale = (
            config.get("attention_multiplier", 1.0) if granite else self.s.head_dim**-0.5
        )
        self.renormalise = self.s.arch == "mixtral" or bool(config.get("norm_topk_prob", False))
        shape = (self.s.layers, capacity, self.s.kv_heads, self.s.head_dim)
        self.keys, self.values = np.zeros(shape), np.zeros(shape)
        self.used = 0
        self.margins = []
        self.expert_hits = np.zeros((self.s.layers, self.s.experts), dtype=np.int64)

    def matmul(self, x, weight):
        """x [..., in] times weight [out, in]."""
        return (quantise_rows(x) if self.quant_rows else x) @ weight.T

    def forward(self, ids):
        """Appends tokens `ids` to the sequence; returns logits [len(ids), vocab] and sets `margins`
        [len(ids)]."""
        w, s = self.w, self.s
        positions = np.arange(self.used, self.used + len(ids))
        self.margins = np.full(len(ids), np.inf)
        x = w["model.embed_tokens.weight"][np.asarray(ids)] * self.embed_scale
        for i in range(s.layers):
            p = f"model.layers.{i}."
            y = self.attention(i, p, rms_norm(x, w[p + "input_layernorm.weight"], s.eps), positions)
            x = x + self.branch_scale * y
            y = rms_norm(x, w[p + "post_attention_layernorm.weight"], s.eps)
            y = (
                self.sparse_mlp(i, p, y)
                if s.is_moe(i)
                else self.gated_mlp(y, p + "mlp.{}_proj.weight")
            )
            x = x + self.branch_scale * y
        self.used += len(ids)
        x = rms_norm(x, w["model.norm.weight"], s.eps)
        head = w["model.embed_tokens.weight"] if s.tied else w["lm_head.weight"]
        return self.matmul(x, head) / self.logit_divisor

    def attention(self, layer, p, x, positions):
        """Causal attention with grouped key/value heads, q/k norms, clamp and window where the
        model has them."""
        w, s, n = self.w, self.s, len(positions)
        projected = {}
        for name in "qkv":
            y = self.matmul(x, w[p + f"self_attn.{name}_proj.weight"])
            if s.qkv_bias:
                y = y + w[p + f"self_attn.{name}_proj.bias"]
            if (
                s.arch == "olmoe" and name != "v"
            ):  # over the whole projection, before the head split
                y = rms_norm(y, w[p + f"self_attn.{name}_norm.weight"], s.eps)
            if s.arch == "olmoe" and self.config.get("clip_qkv") is not None:
                y = np.clip(y, -self.config["clip_qkv"], self.config["clip_qkv"])
            y = y.reshape(n, -1, s.head_dim)
            if s.arch == "qwen3_moe" and name != "v":  # per head
                y = rms_norm(y, w[p + f"self_attn.{name}_norm.weight"], s.eps)
            projected[name] = y if name == "v" else rotate(y, positions, s.rope_theta)
        total = self.used + n
        self.keys[layer, self.used : total] = projected["k"]
        self.values[layer, self.used : total] = projected["v"]
        group = s.heads // s.kv_heads
        q = projected["q"].reshape(n, s.kv_heads, group, s.head_dim)
        scores = np.einsum("tngd,jnd->ngtj", q, self.keys[layer, :total]) * self.score_scale
        distance = positions[:, None] - np.arange(total)[None, :]
        visible = distance >= 0
        if s.window is not None:
            visible &= distance < s.window
        probs = softmax(np.where(visible, scores, -np.inf))
        y = np.einsum("ngtj,jnd->tngd", probs, self.values[layer, :total]).reshape(n, -1)
        return self.matmul(y, w[p + "self_attn.o_proj.weight"])

    def gated_mlp(self, x, pattern):
        """down(silu(gate(x)) * up(x)) with tensors pattern.format('gate' | 'up' | 'down')."""
        w = self.w
        y = silu(self.matmul(x, w[pattern.format("gate")])) * self.matmul(
            x, w[pattern.format("up")]
        )
        return self.matmul(y, w[pattern.format("down")])

    def expert(self, p, e, x):
        """One expert on rows x [n, hidden]."""
        w, s = self.w, self.s
        if s.arch == "granitemoe":
            gate, up = np.split(
                self.matmul(x, w[p + "block_sparse_moe.input_linear.weight"][e]), 2, axis=-1
            )
            return self.matmul(silu(gate) * up, w[p + "block_sparse_moe.output_linear.weight"][e])
        if s.arch == "mixtral":
            q = p + f"block_sparse_moe.experts.{e}."
            y = silu(self.matmul(x, w[q + "w1.weight"])) * self.matmul(x, w[q + "w3.weight"])
            return self.matmul(y, w[q + "w2.weight"])
        return self.gated_mlp(x, p + f"mlp.experts.{e}." + "{}_proj.weight")

    def sparse_mlp(self, layer, p, x):
        """Router, chosen experts and, for qwen2_moe, the sigmoid-gated shared expert."""
        w, s = self.w, self.s
        gate_name = {
            "granitemoe": "block_sparse_moe.router.layer.weight",
            "mixtral": "block_sparse_moe.gate.weight",
        }.get(s.arch, "mlp.gate.weight")
        logits = x @ w[p + gate_name].T
        out = np.zeros_like(x)
        rows_of = {}
        for t in range(x.shape[0]):
            ids, weights = route(s.arch, logits[t], s.k, self.renormalise)
            self.margins[t] = min(self.margins[t], margin_of(logits[t], s.k))
            for e, weight in zip(ids, weights):
                rows_of.setdefault(int(e), []).append((t, weight))
        for e in sorted(rows_of):
            rows = [t for t, _ in rows_of[e]]
            self.expert_hits[layer, e] += len(rows)
            out[rows] += np.array([[weight] for _, weight in rows_of[e]]) * self.expert(
                p, e, x[rows]
            )
        if s.shared_inter:
            gate = 1.0 / (1.0 + np.exp(-(x @ w[p + "mlp.shared_expert_gate.weight"].T)))
            out = out + gate * self.gated_mlp(x, p + "mlp.shared_expert.{}_proj.weight")
        return out
