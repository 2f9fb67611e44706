#!/usr/bin/env python3
"""Writes a case's weights as GGUF v3: single, split or with the legacy per-expert Mixtral tensors;
numpy only.

What: Hugging Face names and layouts -> GGUF names, metadata keys and tensor types, as llama.cpp's
converter does.
Why here: GGUF goldens are the same weights as the safetensors ones, so their expected logits are
already committed.
Must not know: expected outputs, prompts.

Two conversions are easy to miss: architectures `llama` (Mixtral) and `granitemoe` store Q and K
with their rows permuted for rope on neighbouring pairs; and norm_topk_prob is not stored at all,
the architecture implies it. The vocabulary is declared as tokenizer.ggml.model = "none": these
files are fed token ids only.
"""

import os
import struct

import numpy as np

import quants
from weights import Shape, make_tensors, to_bf16_bits

GGUF_ARCH = {
    "mixtral": "llama",
    "qwen2_moe": "qwen2moe",
    "qwen3_moe": "qwen3moe",
    "olmoe": "olmoe",
    "granitemoe": "granitemoe",
}
PERMUTED = ("mixtral", "granitemoe")
U16, U32, I32, F32, STRING = 2, 4, 5, 6, 8
ALIGNMENT = 32


def permute_rows(x, heads):
    """[heads * d, in] half-split row order -> neighbouring pairs: row (h, half, i) moves to (h, i,
    half)."""
    return (
        x.reshape(heads, 2, x.shape[0] // heads // 2, *x.shape[1:]).swapaxes(1, 2).reshape(x.shape)
    )


def metadata(config, file_type=0):
    """[(key, value type, value)] of a model, without split keys."""
    s = Shape(config)
    a = GGUF_ARCH[s.arch]
    kv = [
        ("general.architecture", STRING, a),
        ("general.name", STRING, "oracle"),
        ("general.file_type", U32, file_type),
        ("general.quantization_version", U32, 2),
        (f"{a}.block_count", U32, s.layers),
        (f"{a}.context_length", U32, config["max_position_embeddings"]),
        (f"{a}.embedding_length", U32, s.hidden),
        (f"{a}.feed_forward_length", U32, s.dense_inter),
        (f"{a}.attention.head_count", U32, s.heads),
        (f"{a}.attention.head_count_kv", U32, s.kv_heads),
        (f"{a}.attention.key_length", U32, s.head_dim),
        (f"{a}.attention.value_length", U32, s.head_dim),
        (f"{a}.attention.layer_norm_rms_epsilon", F32, s.eps),
        (f"{a}.rope.dimension_count", U32, s.head_dim),
        (f"{a}.rope.freq_base", F32, s.rope_theta),
        (f"{a}.expert_count", U32, s.experts),
        (f"{a}.expert_used_count", U32, s.k),
        (f"{a}.vocab_size", U32, s.vocab),
        ("tokenizer.ggml.model", STRING, "none"),
    ]
    if s.arch in ("qwen2_moe", "qwen3_moe"):
        kv.append((f"{a}.expert_feed_forward_length", U32, s.inter))
    if s.shared_inter:
        kv.append((f"{a}.expert_shared_feed_forward_length", U32, s.shared_inter))
    if s.window is not None:
        kv.append((f"{a}.attention.sliding_window", U32, s.window))
    if s.arch == "olmoe" and config.get("clip_qkv") is not None:
        kv.append((f"{a}.attention.clamp_kqv", F32, config["clip_qkv"]))
    if s.arch == "granitemoe":
        kv += [
            (f"{a}.embedding_scale", F32, config["embedding_multiplier"]),
            (f"{a}.residual_scale", F32, config["residual_multiplier"]),
            (f"{a}.attention.scale", F32, config["attention_multiplier"]),
            (f"{a}.logit_scale", F32, config["logits_scaling"]),
        ]
    return kv


def gguf_tensors(config, tensors, legacy=False):
    """{GGUF name: f32 array} from the original Hugging Face layout; `legacy` keeps Mixtral's
    experts apart."""
    s = Shape(config)
    out = {"token_embd.weight": tensors["model.embed_tokens.weight"]}
    plain = {
        "input_layernorm": "attn_norm",
        "post_attention_layernorm": "ffn_norm",
        "self_attn.q_norm": "attn_q_norm",
        "self_attn.k_norm": "attn_k_norm",
        "self_attn.o_proj": "attn_output",
        "mlp.gate": "ffn_gate_inp",
        "block_sparse_moe.gate": "ffn_gate_inp",
        "block_sparse_moe.router.layer": "ffn_gate_inp",
        "mlp.shared_expert_gate": "ffn_gate_inp_shexp",
        "mlp.shared_expert.gate_proj": "ffn_gate_shexp",
        "mlp.shared_expert.up_proj": "ffn_up_shexp",
        "mlp.shared_expert.down_proj": "ffn_down_shexp",
    }
    for i in range(s.layers):
        p, b = f"model.layers.{i}.", f"blk.{i}."
        for hf, name in plain.items():
            if p + hf + ".weight" in tensors:
                out[b + name + ".weight"] = tensors[p + hf + ".weight"]
        if b + "ffn_gate_inp_shexp.weight" in out:
            out[b + "ffn_gate_inp_shexp.weight"] = out[b + "ffn_gate_inp_shexp.weight"].reshape(-1)
        for proj, heads in (("q", s.heads), ("k", s.kv_heads), ("v", s.kv_heads)):
            for part in ("weight", "bias"):
                x = tensors.get(f"{p}self_attn.{proj}_proj.{part}")
                if x is not None:
                    permute = s.arch in PERMUTED and proj != "v"
                    out[f"{b}attn_{proj}.{part}"] = permute_rows(x, heads) if permute else x
        for role, per_expert in _experts(s, p, tensors).items():
            if legacy:
                out.update({f"{b}ffn_{role}.{e}.weight": x for e, x in enumerate(per_expert)})
            else:
                out[f"{b}ffn_{role}_exps.weight"] = np.stack(per_expert)
    out["output_norm.weight"] = tensors["model.norm.weight"]
    if not s.tied:
        out["output.weight"] = tensors["lm_head.weight"]
    return out


def _experts(s, p, tensors):
    """{"gate" | "up" | "down": [matrix of each expert]} of one layer."""
    if s.arch == "granitemoe":
        both = tensors[p + "block_sparse_moe.input_linear.weight"]
        return {
            "gate": list(both[:, : s.inter]),
            "up": list(both[:, s.inter :]),
            "down": list(tensors[p + "block_sparse_moe.output_linear.weight"]),
        }
    block = p + ("block_sparse_moe.experts." if s.arch == "mixtral" else "mlp.experts.")
    names = (
        {"gate": "w1", "up": "w3", "down": "w2"}
        if s.arch == "mixtral"
        else {"gate": "gate_proj", "up": "up_proj", "down": "down_proj"}
    )
    return {
        role: [tensors[f"{block}{e}.{n}.weight"] for e in range(s.experts)]
        for role, n in names.items()
    }


def type_of(name, x, matrix_type):
    """Storage type of a tensor: vectors and routers stay F32; in MXFP4 files only experts are
    MXFP4, the rest Q8_0."""
    if x.ndim == 1 or "ffn_gate_inp" in name:
        return "F32"
    if matrix_type == "MXFP4" and "_exps." not in name:
        return "Q8_0"
    return matrix_type


def encode(x, kind):
    if kind == "F32":
        return np.ascontiguousarray(x, "<f4").tobytes()
    if kind == "F16":
        return x.astype("<f2").tobytes()
    if kind == "BF16":
        return to_bf16_bits(x).tobytes()
    return quants.quantise(x, kind).tobytes()


def _string(text):
    raw = text.encode()
    return struct.pack("<Q", len(raw)) + raw


def _kv(key, kind, value):
    head = _string(key) + struct.pack("<I", kind)
    if kind == STRING:
        return head + _string(value)
    return head + struct.pack({U16: "<H", U32: "<I", I32: "<i", F32: "<f"}[kind], value)


def write_file(path, kv, tensors, matrix_type):
    """One GGUF v3 file: header, metadata, tensor infos (dimensions fastest first), aligned data."""
    infos, blobs, offset = b"", [], 0
    for name, x in tensors.items():
        kind = type_of(name, x, matrix_type)
        blob = encode(x, kind)
        infos += (
            _string(name)
            + struct.pack("<I", x.ndim)
            + struct.pack(f"<{x.ndim}Q", *reversed(x.shape))
        )
        infos += struct.pack("<IQ", quants.BLOCK[kind][0], offset)
        blob += b"\0" * (-len(blob) % ALIGNMENT)
        blobs.append(blob)
        offset += len(blob)
    head = (
        b"GGUF"
        + struct.pack("<IQQ", 3, len(tensors), len(kv))
        + b"".join(_kv(*item) for item in kv)
        + infos
    )
    with open(path, "wb") as f:
        f.write(head + b"\0" * (-len(head) % ALIGNMENT))
        for blob in blobs:
            f.write(blob)


def write_gguf(case, folder, form="gguf", tensors=None):
    """Writes `form` ("gguf", "gguf-split", "gguf-legacy") of a case into `folder`; returns the path
    to open."""
    os.makedirs(folder, exist_ok=True)
    tensors = tensors if tensors is not None else make_tensors(case)
    matrix_type = case.get("quant", case["dtype"])
    kv = metadata(case["config"])
    named = gguf_tensors(case["config"], tensors, legacy=form == "gguf-legacy")
    if form != "gguf-split":
        path = os.path.join(folder, "model.gguf")
        write_file(path, kv, named, matrix_type)
        return path
    shards, names = case["shards"], list(named)
    per_shard = -(-len(names) // shards)
    for i in range(shards):
        part = {n: named[n] for n in names[i * per_shard : (i + 1) * per_shard]}
        split = [
            ("split.no", U16, i),
            ("split.count", U16, shards),
            ("split.tensors.count", I32, len(names)),
        ]
        write_file(
            os.path.join(folder, f"model-{i + 1:05d}-of-{shards:05d}.gguf"),
            (kv if i == 0 else kv[:1]) + split,
            part,
            matrix_type,
        )
    return os.path.join(folder, f"model-00001-of-{shards:05d}.gguf")


def effective_tensors(case, tensors=None):
    """The f32 weights a reader of the case's file sees, in Hugging Face names: dequantised where
    quantised."""
    tensors = tensors if tensors is not None else make_tensors(case)
    if "quant" not in case:
        return tensors
    out = {}
    for name, x in tensors.items():
        gguf_name = (
            "ffn_gate_inp"
            if "gate.weight" in name or "router.layer" in name
            else "_exps." if ".experts." in name or "_linear.weight" in name else name
        )
        kind = type_of(gguf_name, x, case["quant"])
        if kind in ("F32", "F16", "BF16"):
            out[name] = x
        else:
            out[name] = quants.dequantise(quants.quantise(x, kind), kind, x.shape[-1]).reshape(
                x.shape
            )
    return out
