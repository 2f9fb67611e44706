"""The demo model in PyTorch: Qwen3-MoE, written for training on one CPU thread.

What: the forward pass of transformers' Qwen3MoeForCausalLM (pre-norm blocks, grouped-query attention
with per-head q/k RMSNorm before half-split rope, softmax-top-k routing with renormalisation, SwiGLU
experts, tied embeddings) and the two router losses.
Why here: training needs speed (tokens sorted by expert, one matmul per expert) and the router
losses per layer; check_export.py proves it equals transformers on the exported file.
Must not know: data, schedule, files.
"""
from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F


@dataclass
class Config:
    """Shape of the model; names follow Hugging Face's config.json."""
    vocab_size: int = 4096
    hidden_size: int = 192
    num_hidden_layers: int = 6
    num_attention_heads: int = 6
    num_key_value_heads: int = 2
    head_dim: int = 32
    num_experts: int = 16
    num_experts_per_tok: int = 4
    moe_intermediate_size: int = 96
    rms_norm_eps: float = 1e-6
    rope_theta: float = 10000.0
    max_position_embeddings: int = 2048


class RMSNorm(nn.Module):
    """x / rms(x) * weight over the last dimension."""

    def __init__(self, dim, eps):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))
        self.eps = eps

    def forward(self, x):
        return F.rms_norm(x, (x.shape[-1],), self.weight, self.eps)


def rope_table(cfg, length):
    """cos and sin, each [length, head_dim], half-split layout."""
    inv = cfg.rope_theta ** (-torch.arange(0, cfg.head_dim, 2, dtype=torch.float32) / cfg.head_dim)
    angle = torch.outer(torch.arange(length, dtype=torch.float32), inv)
    angle = torch.cat((angle, angle), -1)
    return angle.cos(), angle.sin()


def rotate(x, cos, sin):
    """Apply rope to x [batch, heads, time, head_dim]."""
    half = x.shape[-1] // 2
    return x * cos + torch.cat((-x[..., half:], x[..., :half]), -1) * sin


class Attention(nn.Module):
    """Grouped-query causal attention with per-head q/k norm."""

    def __init__(self, cfg):
        super().__init__()
        self.cfg = cfg
        width, kv = cfg.num_attention_heads * cfg.head_dim, cfg.num_key_value_heads * cfg.head_dim
        self.q_proj = nn.Linear(cfg.hidden_size, width, bias=False)
        self.k_proj = nn.Linear(cfg.hidden_size, kv, bias=False)
        self.v_proj = nn.Linear(cfg.hidden_size, kv, bias=False)
        self.o_proj = nn.Linear(width, cfg.hidden_size, bias=False)
        self.q_norm = RMSNorm(cfg.head_dim, cfg.rms_norm_eps)
        self.k_norm = RMSNorm(cfg.head_dim, cfg.rms_norm_eps)

    def forward(self, x, cos, sin):
        b, t, _ = x.shape
        d, group = self.cfg.head_dim, self.cfg.num_attention_heads // self.cfg.num_key_value_heads
        q = self.q_norm(self.q_proj(x).view(b, t, -1, d)).transpose(1, 2)
        k = self.k_norm(self.k_proj(x).view(b, t, -1, d)).transpose(1, 2)
        v = self.v_proj(x).view(b, t, -1, d).transpose(1, 2)
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.o_proj(y.transpose(1, 2).reshape(b, t, -1))


class Experts(nn.Module):
    """Router and experts. gate_up is [E, 2I, H] (gate rows first), down is [E, H, I]."""

    def __init__(self, cfg):
        super().__init__()
        self.cfg = cfg
        e, h, i = cfg.num_experts, cfg.hidden_size, cfg.moe_intermediate_size
        self.gate = nn.Linear(h, e, bias=False)
        self.gate_up = nn.Parameter(torch.empty(e, 2 * i, h))
        self.down = nn.Parameter(torch.empty(e, h, i))
        self.aux = self.z = None  # losses of the last forward pass
        self.load = None          # tokens per expert of the last forward pass, [E]

    def forward(self, x):
        b, t, h = x.shape
        x = x.reshape(-1, h)
        e, k = self.cfg.num_experts, self.cfg.num_experts_per_tok
        logits = self.gate(x).float()
        prob = logits.softmax(-1)
        weight, index = prob.topk(k, -1)
        weight = weight / weight.sum(-1, keepdim=True)
        order = index.reshape(-1).argsort(stable=True)
        load = torch.bincount(index.reshape(-1), minlength=e)
        token = order // k
        parts = x.index_select(0, token).split(load.tolist())
        out = []
        # unbind: its backward stacks the experts' gradients instead of summing padded copies.
        for part, gate_up, down in zip(parts, self.gate_up.unbind(), self.down.unbind()):
            gate, up = (part @ gate_up.t()).chunk(2, -1)
            out.append((F.silu(gate) * up) @ down.t())
        y = torch.cat(out) * weight.reshape(-1)[order].unsqueeze(-1)
        self.load = load
        if self.training:
            self.aux = e * (load / (x.shape[0] * k) * prob.mean(0)).sum()
            self.z = logits.logsumexp(-1).square().mean()
        return torch.zeros_like(x).index_add(0, token, y).view(b, t, h)


class Block(nn.Module):
    """Pre-norm attention and expert layer."""

    def __init__(self, cfg):
        super().__init__()
        self.input_layernorm = RMSNorm(cfg.hidden_size, cfg.rms_norm_eps)
        self.self_attn = Attention(cfg)
        self.post_attention_layernorm = RMSNorm(cfg.hidden_size, cfg.rms_norm_eps)
        self.mlp = Experts(cfg)

    def forward(self, x, cos, sin):
        x = x + self.self_attn(self.input_layernorm(x), cos, sin)
        return x + self.mlp(self.post_attention_layernorm(x))


class Model(nn.Module):
    """The language model; logits come from the tied embedding."""

    def __init__(self, cfg, seed=1):
        super().__init__()
        self.cfg = cfg
        self.embed_tokens = nn.Embedding(cfg.vocab_size, cfg.hidden_size)
        self.layers = nn.ModuleList(Block(cfg) for _ in range(cfg.num_hidden_layers))
        self.norm = RMSNorm(cfg.hidden_size, cfg.rms_norm_eps)
        cos, sin = rope_table(cfg, cfg.max_position_embeddings)
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)
        self.reset(seed)

    @torch.no_grad()
    def reset(self, seed):
        """Initialise. The tied embedding starts as large as the blocks' outputs (so that it is not
        drowned in the residual stream) and the final norm scales the logits back down."""
        gen = torch.Generator().manual_seed(seed)
        depth = (2 * self.cfg.num_hidden_layers) ** -0.5
        for name, p in self.named_parameters():
            if p.ndim > 1:
                std = p.shape[-1] ** -0.5
                if "embed" in name:
                    std = 0.2
                elif "mlp.gate." in name:
                    std = 0.02
                elif name.endswith(("o_proj.weight", "mlp.down")):
                    std *= depth
                nn.init.normal_(p, 0.0, std, generator=gen)
        self.norm.weight.fill_(0.2)

    def forward(self, ids):
        """ids [batch, time] -> logits [batch, time, vocab]."""
        x = self.embed_tokens(ids)
        cos, sin = self.cos[: ids.shape[1]], self.sin[: ids.shape[1]]
        for layer in self.layers:
            x = layer(x, cos, sin)
        return self.norm(x) @ self.embed_tokens.weight.t()

    def router_losses(self):
        """(balance, z), each summed over layers, of the last training forward pass."""
        return (sum(layer.mlp.aux for layer in self.layers),
                sum(layer.mlp.z for layer in self.layers))

    def loads(self):
        """Tokens per expert of the last forward pass, [layers, experts]."""
        return torch.stack([layer.mlp.load for layer in self.layers])
