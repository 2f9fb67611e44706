#!/usr/bin/env python3
"""`ferry logits` and `ferry run --json` over numpy_forward, for safetensors folders: tests the
test.

What: the two command lines that tests/oracle/run_golden.py calls, computed in f64, optionally with
one known mistake.
Why here: run_golden.py must pass on a right engine and fail on each classic mistake; `--self-test`
shows both.
Must not know: golden files.

FERRY_MISTAKE=NAME picks a mistake; `numpy_ferry.py --self-test` runs them all against
run_golden.py.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile

import numpy as np

import numpy_forward
import weights

# mistake: (a case that must notice it, what goes wrong)
MISTAKES = {
    "renorm": ("qwen2_moe-05", "norm_topk_prob read the wrong way round"),
    "window": ("mixtral-02", "sliding window one key too wide"),
    "no-window": ("mixtral-02", "sliding window ignored"),
    "theta": ("mixtral-02", "rope theta left at its default"),
    "eps": ("olmoe-01", "norm epsilon of another model"),
    "interleaved": ("olmoe-02", "rope on neighbouring pairs"),
    "no-clip": ("olmoe-03", "clip_qkv ignored"),
    "no-bias": ("qwen2_moe-05", "QKV bias ignored"),
    "shared-ungated": ("qwen2_moe-03", "shared expert added without its gate"),
    "scale": ("granitemoe-01", "attention scaled by 1/sqrt(d) instead of attention_multiplier"),
    "residual": ("granitemoe-01", "residual_multiplier ignored"),
    "softmax-all": ("granitemoe-03", "softmax over all experts instead of the selected"),
    "gate-up": ("qwen3_moe-02", "gate and up exchanged"),
    "kv-f16": ("qwen3_moe-03", "KV cache in f16 where f32 was asked"),
    "bf16-router": ("qwen3_moe-04", "router computed in bf16"),
}


def apply_mistake(mistake, config, model):
    """Changes config and module functions so that one known mistake is made."""
    s, original = model.s, numpy_forward.route
    if mistake == "renorm":
        model.renormalise = not model.renormalise
    elif mistake in ("window", "no-window"):
        s.window = s.window + 1 if mistake == "window" else None
    elif mistake == "theta":
        s.rope_theta = 12345.0
    elif mistake == "eps":
        s.eps *= 10
    elif mistake == "no-clip":
        config["clip_qkv"] = None
    elif mistake == "no-bias":
        s.qkv_bias = False
    elif mistake == "shared-ungated":
        for name in model.w:
            if name.endswith("shared_expert_gate.weight"):
                model.w[name] = model.w[name] * 0 + 1e3
    elif mistake == "scale":
        model.score_scale = s.head_dim**-0.5
    elif mistake == "residual":
        model.branch_scale = 1.0 if model.branch_scale != 1.0 else 0.5
    elif mistake == "softmax-all":
        numpy_forward.route = lambda arch, logits, k, renorm: original("olmoe", logits, k, False)
    elif mistake == "gate-up":
        swap = {"gate_proj": "up_proj", "up_proj": "gate_proj"}
        model.w = {
            next((n.replace(a, b) for a, b in swap.items() if a in n), n): x
            for n, x in model.w.items()
        }
    elif mistake == "interleaved":
        rotate = numpy_forward.rotate
        order = np.concatenate([np.arange(0, s.head_dim, 2), np.arange(1, s.head_dim, 2)])
        numpy_forward.rotate = lambda x, positions, theta: rotate(x[..., order], positions, theta)
    elif mistake == "kv-f16":
        model.keys, model.values = model.keys.astype(np.float16), model.values.astype(np.float16)
    elif mistake == "bf16-router":
        numpy_forward.route = lambda arch, logits, k, renorm: original(
            arch, weights.rounded(logits.astype(np.float32), "BF16").astype(np.float64), k, renorm
        )
    elif mistake:
        sys.exit(f"unknown FERRY_MISTAKE {mistake}")


def load(folder):
    with open(os.path.join(folder, "config.json")) as f:
        config = json.load(f)
    tensors = {}
    for name in sorted(os.listdir(folder)):
        if name.endswith(".safetensors"):
            tensors.update(weights.read_safetensors(os.path.join(folder, name)))
    model = numpy_forward.Model(config, unfuse(config, tensors))
    apply_mistake(os.environ.get("FERRY_MISTAKE", ""), config, model)
    return model


def unfuse(config, tensors):
    """Fused expert tensors back to the original names."""
    s, out = weights.Shape(config), {}
    gate, up, down = (
        ("w1", "w3", "w2") if s.arch == "mixtral" else ("gate_proj", "up_proj", "down_proj")
    )
    for name, x in tensors.items():
        if s.arch == "granitemoe":
            name = name.replace("router.weight", "router.layer.weight")
            name = name.replace("experts.gate_up_proj", "input_linear.weight")
            name = name.replace("experts.down_proj", "output_linear.weight")
        elif s.arch == "mixtral":
            name = name.replace(".mlp.", ".block_sparse_moe.")
        if name.endswith("experts.gate_up_proj"):
            for e in range(s.experts):
                out[name.replace("gate_up_proj", f"{e}.{gate}.weight")] = x[e, : s.inter]
                out[name.replace("gate_up_proj", f"{e}.{up}.weight")] = x[e, s.inter :]
        elif name.endswith("experts.down_proj"):
            out.update(
                {name.replace("down_proj", f"{e}.{down}.weight"): x[e] for e in range(s.experts)}
            )
        else:
            out[name] = x
    return out


def command(argv):
    parser = argparse.ArgumentParser()
    parser.add_argument("verb", choices=["logits", "run"])
    parser.add_argument("model")
    parser.add_argument("--ids", default="")
    parser.add_argument("--ids-file")
    parser.add_argument("--out")
    parser.add_argument("--kv", default="f16")
    parser.add_argument("-n", type=int, default=64)
    for flag in ("--greedy", "--ignore-eos", "--json"):
        parser.add_argument(flag, action="store_true")
    args = parser.parse_args(argv)
    if args.ids_file:
        with open(args.ids_file) as f:
            ids = [int(v) for v in f.read().replace(",", " ").split()]
    else:
        ids = [int(v) for v in args.ids.split(",")]
    model = load(args.model)
    if args.kv == "f16":
        model.keys, model.values = model.keys.astype(np.float16), model.values.astype(np.float16)
    logits = model.forward(ids)
    if args.verb == "logits":
        weights.write_safetensors(args.out, {"logits": logits.astype(np.float32)})
        return 0
    out = [int(logits[-1].argmax())]
    while len(out) < args.n:
        out.append(int(model.forward(out[-1:])[-1].argmax()))
    print(json.dumps({"ids": out}))
    return 0


def self_test(names):
    """run_golden.py must pass on the right engine and fail on every mistake (or those named)."""
    here = os.path.dirname(os.path.abspath(__file__))
    golden = os.path.join(here, "..", "..", "tests", "oracle", "run_golden.py")
    passed = failed = 0
    right = [("", (f"{arch}-02", "no mistake")) for arch in weights.ARCHS]
    with tempfile.TemporaryDirectory() as folder:
        ferry = os.path.join(folder, "ferry")
        with open(ferry, "w") as f:
            f.write(f'#!/bin/sh\nexec "{sys.executable}" "{os.path.abspath(__file__)}" "$@"\n')
        os.chmod(ferry, 0o755)
        chosen = [(n, MISTAKES[n]) for n in names] or right + list(MISTAKES.items())
        for mistake, (case, what) in chosen:
            done = subprocess.run(
                [
                    sys.executable,
                    golden,
                    "--ferry",
                    ferry,
                    "--filter",
                    case,
                    "--form",
                    "safetensors",
                ],
                env=dict(os.environ, FERRY_MISTAKE=mistake),
                capture_output=True,
                text=True,
                check=False,
            )
            first = next((line for line in done.stdout.splitlines() if line.startswith("FAIL")), "")
            crashed = "exit" in first  # a mistake must be seen in the numbers
            good = (done.returncode == 0) == (mistake == "") and not crashed
            passed, failed = passed + good, failed + (not good)
            print(
                f"{'ok  ' if good else 'FAIL'} {mistake or 'right'} ({what}) on {case}: "
                f"{first or 'passes'}",
                flush=True,
            )
    print(f"{passed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    if sys.argv[1:2] == ["--self-test"]:
        sys.exit(self_test(sys.argv[2:]))
    sys.exit(command(sys.argv[1:]))
