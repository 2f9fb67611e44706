#!/usr/bin/env python3
"""Writes tests/data/file/: tiny files made by the reference writers, for the tests of src/file.

The files are committed; the tests need no Python. To make them anew, with the versions of the
packages that wrote them:

    python3 -m venv VENV && VENV/bin/pip install gguf==0.19.0 safetensors==0.8.0 numpy==2.4.6
    VENV/bin/python tools/make_file_fixtures.py
"""
import json
import pathlib

import gguf
import numpy as np
from safetensors.numpy import save_file

OUT = pathlib.Path(__file__).resolve().parent.parent / "tests" / "data" / "file"


def arrays():
    """Counting numbers, so that a test can recompute them."""
    return {
        "token_embd.weight": np.arange(6 * 32, dtype=np.float32).reshape(6, 32),
        "blk.0.attn_norm.weight": np.arange(32, dtype=np.float32) / 2,
        "blk.0.ffn_gate_exps.weight": np.arange(3 * 4 * 32, dtype=np.float32).reshape(3, 4, 32),
    }


def write_gguf(path, **kwargs):
    w = gguf.GGUFWriter(path, "qwen3moe", **kwargs)
    w.add_uint32("qwen3moe.block_count", 1)
    w.add_float32("qwen3moe.attention.layer_norm_rms_epsilon", 1e-6)
    w.add_bool("tokenizer.ggml.add_bos_token", False)
    w.add_uint64("test.u64", 2**63 + 5)
    w.add_int32("test.negative", -7)
    w.add_array("tokenizer.ggml.tokens", ["a", "", "\u00e9\u6f22", "<|end|>"])
    w.add_array("tokenizer.ggml.token_type", [1, 2, 3, -4])
    w.add_array("tokenizer.ggml.scores", [0.5, -1.25])
    for name, a in arrays().items():
        if name == "blk.0.ffn_gate_exps.weight":
            q = gguf.quants.quantize(a, gguf.GGMLQuantizationType.Q8_0)
            w.add_tensor(name, q, raw_dtype=gguf.GGMLQuantizationType.Q8_0)
        else:
            w.add_tensor(name, a.astype(np.float16) if name.startswith("token") else a)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


def main():
    OUT.mkdir(parents=True, exist_ok=True)
    for old in OUT.glob("*"):
        if old.is_file():
            old.unlink()
    write_gguf(OUT / "tiny.gguf")
    write_gguf(OUT / "split.gguf", split_max_tensors=2)
    hf = OUT / "hf"
    hf.mkdir(exist_ok=True)
    a = arrays()
    (hf / "config.json").write_text(json.dumps({"model_type": "qwen3_moe", "hidden_size": 32}))
    first = {"model.embed_tokens.weight": a["token_embd.weight"].astype(np.float16)}
    second = {"model.norm.weight": a["blk.0.attn_norm.weight"], "scalar": np.array(3.5, np.float32),
              "none": np.zeros((0, 4), np.float32)}
    names = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]
    save_file(first, hf / names[0], metadata={"format": "pt"})
    save_file(second, hf / names[1])
    # "none" is said to be in the wrong file, "gone" is nowhere: a stale index.
    weight_map = {k: names[0] for k in first} | {k: names[1] for k in second}
    weight_map |= {"none": names[0], "gone": names[1]}
    (hf / "model.safetensors.index.json").write_text(
        json.dumps({"metadata": {"total_size": 1}, "weight_map": weight_map}))
    save_file(first | second, OUT / "tiny.safetensors")
    (OUT / "config.json").write_text(json.dumps({"model_type": "qwen3_moe"}))


if __name__ == "__main__":
    main()
