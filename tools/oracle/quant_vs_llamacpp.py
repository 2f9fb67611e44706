#!/usr/bin/env python3
"""Per quantised type: how far ferry's and llama.cpp's logits are from f32 logits on the very same
GGUF file.

What: prints, per type, the RMS distance over >= 2,000 positions in row standard deviations, for
both engines, to
  (a) an exact forward pass on the dequantised weights: what the engine's own arithmetic loses
  (decides), and (b) an exact forward pass on the weights before quantisation: what a user loses in
  all (shown).
Why here: "at most 1.02 x llama.cpp's own" is a promise of the project; anyone with both binaries
can check it.
Must not know: how either engine computes.

The model is a random olmoe-shaped one (hidden 256, 16 experts, top 4, 4 layers, vocabulary 512) or,
with --model, a Hugging Face folder. Exit 1 when a ratio of (a) is over 1.02, or an engine failed.
Without --ferry, llama.cpp alone.
"""

import argparse
import json
import os
import sys
import tempfile

import numpy as np

import gguf_write
import quants
import weights
from numpy_forward import Model
from peer import ferry_logits, peer_logits, peer_python, row_distances

BOUND = 1.02
TYPES = ["Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL", "MXFP4"]


def random_case(arch):
    config = {
        "architectures": [weights.CLASS_NAMES[arch]],
        "model_type": arch,
        "vocab_size": 512,
        "hidden_size": 256,
        "num_hidden_layers": 4,
        "num_attention_heads": 8,
        "num_key_value_heads": 8,
        "hidden_act": "silu",
        "max_position_embeddings": 1024,
        "num_experts_per_tok": 4,
        "tie_word_embeddings": False,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "num_experts": 16,
        "intermediate_size": 256,
        "norm_topk_prob": arch == "qwen3_moe",
        "clip_qkv": None,
    }
    if arch == "qwen3_moe":
        config.update(moe_intermediate_size=256, head_dim=32, num_key_value_heads=4)
    return {"seed": 4242, "dtype": "F32", "config": config}


def folder_case(folder):
    """A case and its f32 tensors from a Hugging Face folder (original layout)."""
    with open(os.path.join(folder, "config.json")) as f:
        config = json.load(f)
    tensors = {}
    for name in sorted(os.listdir(folder)):
        if name.endswith(".safetensors"):
            tensors.update(weights.read_safetensors(os.path.join(folder, name)))
    return {"seed": 0, "dtype": "F32", "config": config}, tensors


def exact_logits(config, tensors, prompts):
    rows = []
    for ids in prompts:
        rows.append(Model(config, tensors, capacity=len(ids)).forward(ids))
    return np.concatenate(rows)


def rms(got, want):
    return float(np.sqrt(np.mean(row_distances(got, want) ** 2)))


def measure(case, tensors, kind, prompts, original, args, python):
    """One type: {"peer": (a, b), "ferry": (a, b)} of RMS distances."""
    case = dict(case, quant=kind)
    effective = gguf_write.effective_tensors(case, tensors)
    exact = exact_logits(case["config"], effective, prompts)
    out = {}
    with tempfile.TemporaryDirectory() as folder:
        path = gguf_write.write_gguf(case, folder, "gguf", tensors)
        engines = {"peer": lambda ids: peer_logits(python, path, ids, folder)}
        if args.ferry:
            engines["ferry"] = lambda ids: ferry_logits(args.ferry, path, ids, folder)
        for name, engine in engines.items():
            got = np.concatenate([engine(ids) for ids in prompts])
            out[name] = (rms(got, exact), rms(got, original))
    return out


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument(
        "--ferry", help="the ferry binary; without it only llama.cpp's distances are printed"
    )
    parser.add_argument("--model", help="a Hugging Face folder to use instead of the random model")
    parser.add_argument("--arch", default="olmoe", choices=["olmoe", "qwen3_moe"])
    parser.add_argument("--types", default=",".join(TYPES))
    parser.add_argument("--positions", type=int, default=2048)
    args = parser.parse_args()
    python = peer_python()
    if args.model:
        case, tensors = folder_case(args.model)
    else:
        case = random_case(args.arch)
        tensors = weights.make_tensors(case)
    shape = weights.Shape(case["config"])
    rng = np.random.Generator(np.random.Philox(key=99))
    prompts = [
        rng.integers(shape.vocab, size=512).tolist() for _ in range(-(-args.positions // 512))
    ]
    original = exact_logits(case["config"], tensors, prompts)
    print(
        f"{len(prompts) * 512} positions; RMS distance in row standard deviations\n"
        f"{'type':8}{'llama.cpp (a)':>14}{'ferry (a)':>12}{'ratio':>8}{'llama.cpp (b)':>15}{'ferry (b)':>12}{'ratio':>8}"
    )
    passed = failed = skipped = 0
    for kind in args.types.split(","):
        if min(shape.hidden, shape.inter, shape.heads * shape.head_dim) % quants.BLOCK[kind][1]:
            print(f"{kind:8}skipped: rows are no multiple of {quants.BLOCK[kind][1]}")
            skipped += 1
            continue
        try:
            d = measure(case, tensors, kind, prompts, original, args, python)
        except RuntimeError as e:
            print(f"{kind:8}FAIL {e}", flush=True)
            failed += 1
            continue
        peer, ferry = d["peer"], d.get("ferry", (float("nan"),) * 2)
        bad = args.ferry is not None and ferry[0] > BOUND * peer[0]
        failed, passed = failed + bad, passed + (not bad)
        print(
            f"{kind:8}{peer[0]:14.5f}{ferry[0]:12.5f}{ferry[0] / peer[0]:8.3f}{peer[1]:15.5f}{ferry[1]:12.5f}"
            f"{ferry[1] / peer[1]:8.3f}{'  OVER 1.02' if bad else ''}",
            flush=True,
        )
    print(f"{passed} passed, {failed} failed, {skipped} skipped")
    return 1 if failed or not passed else 0


if __name__ == "__main__":
    sys.exit(main())
