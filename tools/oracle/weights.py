#!/usr/bin/env python3
"""Tiny random MoE checkpoints from a seed, with nothing but numpy.

What: lists the tensors of the five architectures, draws each one from a counter-based generator
keyed by (seed, tensor name), and writes a Hugging Face folder: config.json plus one or several
safetensors files.
Why here: the golden vectors in tests/oracle/golden hold only config, seed and expected outputs, so
that a machine with Debian's python3 and python3-numpy rebuilds the very same bytes.
Must not know: torch, transformers, expected outputs, how Ferry computes.

Random numbers: key = first 16 bytes of SHA-256("ferry-oracle-v1\\0<seed>\\0<name>"), Philox4x64-10
from counter 0 (numpy's Philox(key=...).random_raw). Each u64 gives one value: the sum of its four
16-bit lanes minus 131070, divided by 37837.2274, which is close to a unit normal (Irwin-Hall of
order 4, kurtosis 2.7). Only integer sums, one f64 multiply and one rounding to the file's dtype:
the same bits on every numpy.
"""

import hashlib
import json
import math
import os
import struct

import numpy as np

DTYPE_SIZES = {"F32": 4, "F16": 2, "BF16": 2}
ARCHS = ("mixtral", "qwen2_moe", "qwen3_moe", "olmoe", "granitemoe")
CLASS_NAMES = {
    "mixtral": "MixtralForCausalLM",
    "qwen2_moe": "Qwen2MoeForCausalLM",
    "qwen3_moe": "Qwen3MoeForCausalLM",
    "olmoe": "OlmoeForCausalLM",
    "granitemoe": "GraniteMoeForCausalLM",
}


class Shape:
    """The sizes of a checkpoint under one set of names, read from its Hugging Face config dict."""

    def __init__(self, config):
        self.arch = config["model_type"]
        self.hidden = config["hidden_size"]
        self.layers = config["num_hidden_layers"]
        self.heads = config["num_attention_heads"]
        self.kv_heads = config["num_key_value_heads"]
        self.head_dim = config.get("head_dim") or self.hidden // self.heads
        self.vocab = config["vocab_size"]
        self.k = config["num_experts_per_tok"]
        self.experts = config.get("num_local_experts") or config.get("num_experts")
        self.inter = config.get("moe_intermediate_size") or config["intermediate_size"]
        self.dense_inter = config["intermediate_size"]
        self.shared_inter = (
            config.get("shared_expert_intermediate_size", 0) if self.arch == "qwen2_moe" else 0
        )
        self.tied = config.get("tie_word_embeddings", False)
        self.qkv_bias = config.get("qkv_bias", True) if self.arch == "qwen2_moe" else False
        self.sparse_step = config.get("decoder_sparse_step", 1)
        self.dense_layers = config.get("mlp_only_layers") or []
        rope = config.get("rope_parameters") or {}
        self.rope_theta = float(rope.get("rope_theta", config.get("rope_theta", 10000.0)))
        self.eps = config["rms_norm_eps"]
        self.window = config.get("sliding_window") if self.arch == "mixtral" else None

    def is_moe(self, layer):
        """Qwen's rule; the other architectures have neither key, so every layer is sparse."""
        return layer not in self.dense_layers and (layer + 1) % self.sparse_step == 0


def tensor_list(config):
    """[(name, shape, mean, std)] of the original (per expert) layout, in file order.

    The scales keep a random model healthy: attention scores of std about 2, router logits of std
    about 2.5, branch outputs comparable with the residual stream, norm weights spread around 1,
    biases away from 0.
    """
    s = Shape(config)
    h, d = s.hidden, s.head_dim
    out = [("model.embed_tokens.weight", (s.vocab, h), 0.0, 1.0)]

    def linear(name, rows, cols, gain):
        out.append((name, (rows, cols), 0.0, gain / math.sqrt(cols)))

    def norm(name, n, mean=1.0):
        out.append((name, (n,), mean, 0.25))

    for i in range(s.layers):
        p = f"model.layers.{i}."
        norm(p + "input_layernorm.weight", h)
        for proj, n in (("q", s.heads), ("k", s.kv_heads), ("v", s.kv_heads)):
            linear(p + f"self_attn.{proj}_proj.weight", n * d, h, 1.0 if proj == "v" else 1.4)
            if s.qkv_bias:
                out.append((p + f"self_attn.{proj}_proj.bias", (n * d,), 0.0, 0.3))
        linear(p + "self_attn.o_proj.weight", h, s.heads * d, 0.9)
        if s.arch == "qwen3_moe":
            norm(p + "self_attn.q_norm.weight", d, 1.4)
            norm(p + "self_attn.k_norm.weight", d, 1.4)
        if s.arch == "olmoe":
            norm(p + "self_attn.q_norm.weight", s.heads * d, 1.4)
            norm(p + "self_attn.k_norm.weight", s.kv_heads * d, 1.4)
        norm(p + "post_attention_layernorm.weight", h)
        out.extend(_mlp_list(s, i, p))
    norm("model.norm.weight", h)
    if not s.tied:
        linear("lm_head.weight", s.vocab, h, 2.0)
    return out


def _mlp_list(s, layer, p):
    """The feed-forward tensors of one layer; granitemoe's own layout is already fused over
    experts."""
    h, n = s.hidden, s.inter
    out = []

    def linear(name, rows, cols, gain, lead=()):
        out.append((name, lead + (rows, cols), 0.0, gain / math.sqrt(cols)))

    if not s.is_moe(layer):
        for proj in ("gate", "up"):
            linear(p + f"mlp.{proj}_proj.weight", s.dense_inter, h, 1.3)
        linear(p + "mlp.down_proj.weight", h, s.dense_inter, 1.3)
        return out
    if s.arch == "granitemoe":
        linear(p + "block_sparse_moe.router.layer.weight", s.experts, h, 2.5)
        linear(p + "block_sparse_moe.input_linear.weight", 2 * n, h, 1.3, (s.experts,))
        linear(p + "block_sparse_moe.output_linear.weight", h, n, 1.6, (s.experts,))
        return out
    mixtral = s.arch == "mixtral"
    block = p + ("block_sparse_moe." if mixtral else "mlp.")
    linear(block + "gate.weight", s.experts, h, 2.5)
    gate, up, down = ("w1", "w3", "w2") if mixtral else ("gate_proj", "up_proj", "down_proj")
    for e in range(s.experts):
        linear(block + f"experts.{e}.{gate}.weight", n, h, 1.3)
        linear(block + f"experts.{e}.{up}.weight", n, h, 1.3)
        linear(block + f"experts.{e}.{down}.weight", h, n, 1.6)
    if s.shared_inter:
        for proj in ("gate", "up"):
            linear(block + f"shared_expert.{proj}_proj.weight", s.shared_inter, h, 1.3)
        linear(block + "shared_expert.down_proj.weight", h, s.shared_inter, 1.3)
        linear(block + "shared_expert_gate.weight", 1, h, 1.0)
    return out


def raw_normal(seed, name, count):
    """[count] f64, nearly unit normal, a pure function of (seed, name)."""
    digest = hashlib.sha256(f"ferry-oracle-v1\0{seed}\0{name}".encode()).digest()
    key = np.frombuffer(digest[:16], dtype="<u8").astype(np.uint64)
    raw = np.random.Philox(key=key).random_raw(count).astype("<u8")
    lanes = raw.view("<u2").reshape(count, 4).astype(np.int64)
    return (lanes.sum(axis=1) - 131070).astype(np.float64) * (1.0 / 37837.2274)


def to_bf16_bits(x):
    """f32 array -> uint16 bfloat16 bits, round to nearest even (finite input)."""
    bits = np.ascontiguousarray(x, dtype="<f4").view("<u4").astype(np.uint64)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype("<u2")


def from_bf16_bits(bits):
    """uint16 bfloat16 bits -> f32."""
    return (bits.astype("<u4") << 16).view("<f4")


def encode(x, dtype):
    """f32 array -> bytes in `dtype` (F32, F16, BF16), row-major little endian."""
    if dtype == "F32":
        return np.ascontiguousarray(x, dtype="<f4").tobytes()
    if dtype == "F16":
        return np.ascontiguousarray(x, dtype="<f4").astype("<f2").tobytes()
    return to_bf16_bits(x).tobytes()


def rounded(x, dtype):
    """f32 array after one trip through `dtype`: what every reader of the file sees."""
    if dtype == "F32":
        return x
    if dtype == "F16":
        return x.astype("<f2").astype("<f4")
    return from_bf16_bits(to_bf16_bits(x))


def family_directions(seed, s):
    """[ceil(E / k), H] f64: one direction per family of k experts, shared by all layers and the
    embedding."""
    families = -(-s.experts // s.k)
    return raw_normal(seed, "#family", families * s.hidden).reshape(families, s.hidden)


def router_values(seed, name, s):
    """[E, H] f64 unit normal router rows: a family's direction plus a seventh of an own one,
    experts shuffled.

    With independent rows the k-th and the (k+1)-th of 300 scores are almost always closer than the
    2 % of a standard deviation that a golden vector may rest on, and no prompt of 700 tokens would
    survive. As in trained models, the token's identity mostly decides: embed_values() adds its
    family's direction to each token's row.
    """
    shared = family_directions(seed, s)[np.arange(s.experts) // s.k]
    own = raw_normal(seed, name, s.experts * s.hidden).reshape(s.experts, s.hidden)
    order = np.argsort(raw_normal(seed, name + "#order", s.experts), kind="stable")
    return (shared + 0.15 * own)[order]


def embed_values(seed, name, s):
    """[V, H] f64 embedding rows: an own part plus twice the direction of one full family of
    experts."""
    own = raw_normal(seed, name, s.vocab * s.hidden).reshape(s.vocab, s.hidden)
    order = np.argsort(raw_normal(seed, name + "#order", s.vocab), kind="stable")
    return 0.5 * (own + 2.0 * family_directions(seed, s)[order % (s.experts // s.k)])


def make_tensors(case):
    """{name: f32 array} of a case's checkpoint in the original layout, already rounded to the
    case's dtype."""
    tensors, seed, s = {}, case["seed"], Shape(case["config"])
    for name, shape, mean, std in tensor_list(case["config"]):
        if name.endswith((".gate.weight", "router.layer.weight")):
            x = router_values(seed, name, s)
        elif name == "model.embed_tokens.weight":
            x = embed_values(seed, name, s)
        else:
            x = raw_normal(seed, name, int(np.prod(shape))).reshape(shape)
        x = mean + std * x
        if (
            name == "model.norm.weight" and s.tied
        ):  # else a tied model answers every token with itself
            x = np.where(raw_normal(seed, name + "#sign", x.size) < 0, -x, x)
        tensors[name] = rounded(x.astype(np.float32), case["dtype"])
    return tensors


def to_fused(config, tensors):
    """The layout that transformers 5 writes with save_original_format=False: [E, 2I, H] and [E, H,
    I] per layer."""
    s = Shape(config)
    out = {}
    for name, x in tensors.items():
        if s.arch == "granitemoe":
            name = name.replace("router.layer.weight", "router.weight")
            name = name.replace("input_linear.weight", "experts.gate_up_proj")
            name = name.replace("output_linear.weight", "experts.down_proj")
        else:
            name = name.replace(".block_sparse_moe.", ".mlp.")
        if ".mlp.experts." not in name:
            out[name] = x
            continue
        prefix, rest = name.split(".mlp.experts.")
        if not rest.startswith("0.") or not rest.endswith(("w1.weight", "gate_proj.weight")):
            continue
        old = prefix + (".block_sparse_moe." if s.arch == "mixtral" else ".mlp.") + "experts."
        gate, up, down = (
            ("w1", "w3", "w2") if s.arch == "mixtral" else ("gate_proj", "up_proj", "down_proj")
        )
        out[prefix + ".mlp.experts.gate_up_proj"] = np.stack(
            [
                np.concatenate(
                    [tensors[f"{old}{e}.{gate}.weight"], tensors[f"{old}{e}.{up}.weight"]]
                )
                for e in range(s.experts)
            ]
        )
        out[prefix + ".mlp.experts.down_proj"] = np.stack(
            [tensors[f"{old}{e}.{down}.weight"] for e in range(s.experts)]
        )
    return out


def write_safetensors(path, tensors, dtype="F32", metadata=None):
    """Writes {name: f32 array} as one safetensors file; header padded with spaces to a multiple of
    8."""
    header, offset = {}, 0
    if metadata:
        header["__metadata__"] = metadata
    for name, x in tensors.items():
        size = int(x.size) * DTYPE_SIZES[dtype]
        header[name] = {
            "dtype": dtype,
            "shape": list(x.shape),
            "data_offsets": [offset, offset + size],
        }
        offset += size
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text)
        for x in tensors.values():
            f.write(encode(x, dtype))


def read_safetensors(path):
    """{name: f32 array} of a safetensors file with F32, F16 or BF16 tensors."""
    with open(path, "rb") as f:
        data = f.read()
    n = struct.unpack_from("<Q", data)[0]
    out = {}
    for name, t in json.loads(data[8 : 8 + n]).items():
        if name == "__metadata__":
            continue
        begin, end = t["data_offsets"]
        raw = data[8 + n + begin : 8 + n + end]
        if t["dtype"] == "BF16":
            x = from_bf16_bits(np.frombuffer(raw, "<u2"))
        else:
            x = np.frombuffer(raw, {"F32": "<f4", "F16": "<f2"}[t["dtype"]]).astype(np.float32)
        out[name] = x.reshape(t["shape"])
    return out


def write_checkpoint(case, folder, tensors=None):
    """Writes config.json and the safetensors files of `case` into `folder`; layout and shard count
    from the case."""
    os.makedirs(folder, exist_ok=True)
    tensors = tensors if tensors is not None else make_tensors(case)
    if case.get("layout", "original") == "fused":
        tensors = to_fused(case["config"], tensors)
    with open(os.path.join(folder, "config.json"), "w") as f:
        json.dump(case["config"], f, indent=1)
    shards = case.get("shards", 1)
    if shards == 1:
        write_safetensors(
            os.path.join(folder, "model.safetensors"), tensors, case["dtype"], {"format": "pt"}
        )
        return
    names = list(tensors)
    per_shard = -(-len(names) // shards)
    index = {"metadata": {"total_size": 0}, "weight_map": {}}
    for i in range(shards):
        part = {n: tensors[n] for n in names[i * per_shard : (i + 1) * per_shard]}
        file_name = f"model-{i + 1:05d}-of-{shards:05d}.safetensors"
        write_safetensors(os.path.join(folder, file_name), part, case["dtype"], {"format": "pt"})
        for n, x in part.items():
            index["weight_map"][n] = file_name
            index["metadata"]["total_size"] += int(x.size) * DTYPE_SIZES[case["dtype"]]
    with open(os.path.join(folder, "model.safetensors.index.json"), "w") as f:
        json.dump(index, f, indent=1)


def weights_sha256(tensors):
    """SHA-256 over names and f32 bytes in name order: tells a drift of the generator from a wrong
    engine."""
    h = hashlib.sha256()
    for name in sorted(tensors):
        h.update(name.encode() + b"\0" + np.ascontiguousarray(tensors[name], "<f4").tobytes())
    return h.hexdigest()
