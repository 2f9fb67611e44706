#!/usr/bin/env python3
"""Replays the golden vectors of tests/oracle/golden against a `ferry` binary.

What: rebuilds each checkpoint from its seed in a temporary folder, in every form the case names
(safetensors, GGUF, split GGUF, legacy Mixtral GGUF), runs `ferry logits` and `ferry run`, and
compares with transformers' numbers.
Why here: it needs Debian's python3 and python3-numpy only; torch ran once, when the vectors were
made.
Must not know: anything of Ferry but its command line.

Bounds, in units of a row's standard deviation over the vocabulary:
  float weights, --kv f32   max |difference| <= 2e-4 at every golden position
  float weights, default KV max |difference| <= KV_DEFAULT_BOUND (measured)
  quantised weights         RMS |difference| <= QUANT_BOUNDS[type] (measured), to transformers on
                            the dequantised weights
Greedy answers (64 tokens, --kv f32) must be equal.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time

import numpy as np

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "..", "tools", "oracle"))
sys.dont_write_bytecode = True
import gguf_write  # noqa: E402
import weights  # noqa: E402

GOLDEN = os.path.join(HERE, "golden")
# Measured: at most 2.6e-3 (qwen2_moe-04); numpy_forward with K and V rounded to f16 gives 1e-4 to
# 5.9e-3.
KV_DEFAULT_BOUND = 5e-3
# Measured 1.5e-2 to 2.1e-2, plus a quarter; numpy_forward with activations rounded to int8 blocks
# of 32 gives 1.5e-2 to 1.8e-2, so nearly all of it is the activation format. A wrong nibble order
# or scale gives more than 1.
QUANT_BOUNDS = {
    "Q8_0": 0.0205,
    "Q4_0": 0.0187,
    "Q4_1": 0.0224,
    "Q5_0": 0.0217,
    "Q5_1": 0.0233,
    "Q4_K": 0.0219,
    "Q5_K": 0.0213,
    "Q6_K": 0.02,
    "IQ4_NL": 0.0268,
    "MXFP4": 0.0208,
}
TIMEOUT_S = 120


class Failure(Exception):
    """One check of one case that did not hold; the text says what was seen."""


def run(command):
    """Runs ferry; returns stdout, or raises Failure with the exit code and the last line of
    stderr."""
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, timeout=TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired as e:
        raise Failure(f"no answer in {TIMEOUT_S} s") from e
    if done.returncode != 0:
        lines = done.stderr.decode(errors="replace").strip().splitlines() or ["(nothing on stderr)"]
        raise Failure(f"exit {done.returncode}: {lines[-1]}")
    return done.stdout.decode(errors="replace")


def ferry_logits(ferry, model, ids, folder, kv=("--kv", "f32")):
    """[n, vocab] f32 logits of a prompt; long prompts go through a file."""
    out = os.path.join(folder, "out.safetensors")
    if os.path.exists(out):
        os.unlink(out)
    if len(ids) > 64:
        ids_path = os.path.join(folder, "ids.txt")
        with open(ids_path, "w") as f:
            f.write(" ".join(map(str, ids)) + "\n")
        given = ["--ids-file", ids_path]
    else:
        given = ["--ids", ",".join(map(str, ids))]
    run([ferry, "logits", model] + given + list(kv) + ["--out", out])
    tensors = weights.read_safetensors(out)
    if (
        "logits" not in tensors
        or tensors["logits"].ndim != 2
        or tensors["logits"].shape[0] != len(ids)
    ):
        raise Failure(
            f"expected tensor logits [{len(ids)}, vocab], got "
            f"{({n: t.shape for n, t in tensors.items()})}"
        )
    return tensors["logits"]


def distances(got, want):
    """(worst max |difference|, overall RMS difference), both in units of each row's standard
    deviation."""
    if got.shape != want.shape:
        raise Failure(f"logits rows have shape {got.shape}, expected {want.shape}")
    if not np.isfinite(got).all():
        raise Failure("logits contain NaN or infinity")
    difference = (got.astype(np.float64) - want) / want.std(axis=1, keepdims=True)
    return float(np.abs(difference).max()), float(np.sqrt(np.mean(difference**2)))


def check_logits(ferry, case, golden, model, folder):
    """Compares every prompt with --kv f32; returns the worst figure of the case's own measure."""
    worst = 0.0
    for index, prompt in enumerate(case["prompts"]):
        got = ferry_logits(ferry, model, prompt["ids"], folder)[prompt["positions"]]
        per_row = [
            distances(got[i : i + 1], golden[f"{case['name']}/{index}"][i : i + 1])
            for i in range(len(got))
        ]
        peak, rms = max(p for p, _ in per_row), distances(got, golden[f"{case['name']}/{index}"])[1]
        if case["kind"] == "quant":
            worst = max(worst, rms)
            bound = QUANT_BOUNDS[case["quant"]]
            if rms > bound:
                raise Failure(f"prompt of {len(prompt['ids'])}: RMS {rms:.2e} std, bound {bound}")
            continue
        worst = max(worst, peak)
        if peak > 2e-4:
            first = next(i for i, (p, _) in enumerate(per_row) if p > 2e-4)
            raise Failure(
                f"prompt of {len(prompt['ids'])}: {peak:.2e} std, bound 2e-4; first at position "
                f"{prompt['positions'][first]} ({per_row[first][0]:.2e})"
            )
    return worst


def check_default_kv(ferry, case, golden, model, folder):
    worst = 0.0
    for index, prompt in enumerate(case["prompts"]):
        got = ferry_logits(ferry, model, prompt["ids"], folder, kv=())[prompt["positions"]]
        worst = max(worst, distances(got, golden[f"{case['name']}/{index}"])[0])
    if worst > KV_DEFAULT_BOUND:
        raise Failure(f"default KV: {worst:.2e} std, bound {KV_DEFAULT_BOUND:.0e}")
    return worst


def check_greedy(ferry, case, model):
    want = case["greedy"]["ids"]
    ids = case["prompts"][case["greedy"]["prompt"]]["ids"]
    text = run(
        [
            ferry,
            "run",
            model,
            "--ids",
            ",".join(map(str, ids)),
            "--greedy",
            "-n",
            str(len(want)),
            "--ignore-eos",
            "--json",
            "--kv",
            "f32",
        ]
    )
    try:
        got = json.loads(text)["ids"]
    except (ValueError, KeyError, TypeError) as e:
        raise Failure(f"ferry run --json printed no object with \"ids\": {text[:80]!r}") from e
    if got != want:
        at = next(
            (i for i, (a, b) in enumerate(zip(got, want)) if a != b), min(len(got), len(want))
        )
        raise Failure(
            f"greedy differs at token {at} of {len(want)}: got {got[at:at + 4]}, "
            f"want {want[at:at + 4]}"
        )


def run_form(ferry, case, golden, form, tensors, folder):
    """All checks of one case in one file form; returns [(check, seconds, figure or Failure)]."""
    results = []
    if form == "safetensors":
        weights.write_checkpoint(case, folder, tensors)
        model = folder
    else:
        model = gguf_write.write_gguf(case, folder, form, tensors)
    checks = [("logits", lambda: check_logits(ferry, case, golden, model, folder))]
    if case["greedy"]:
        checks.append(("greedy", lambda: check_greedy(ferry, case, model)))
    if case["kind"] == "float" and form == case["formats"][0]:
        checks.append(("default-kv", lambda: check_default_kv(ferry, case, golden, model, folder)))
    for name, check in checks:
        started = time.monotonic()
        try:
            figure = check()
        except Failure as e:
            figure = e
        results.append((name, time.monotonic() - started, figure))
    return results


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--ferry", required=True, help="the ferry binary")
    parser.add_argument("--filter", default="", help="only cases whose name contains this")
    parser.add_argument(
        "--form", default="", help="only this form: safetensors, gguf, gguf-split, gguf-legacy"
    )
    parser.add_argument("--keep", help="write checkpoints below this folder and keep them")
    args = parser.parse_args()
    if not os.access(args.ferry, os.X_OK):
        sys.exit(f"run_golden: {args.ferry} is no program that can be run; build ferry first")
    with open(os.path.join(GOLDEN, "manifest.json")) as f:
        manifest = json.load(f)
    golden = weights.read_safetensors(os.path.join(GOLDEN, "logits.safetensors"))
    passed = failed = skipped = 0
    for case in manifest["cases"]:
        if args.filter not in case["name"]:
            skipped += len(case["formats"])
            continue
        tensors = weights.make_tensors(case)
        if weights.weights_sha256(tensors) != case["weights_sha256"]:
            print(
                f"FAIL {case['name']}: weights.py does not rebuild the committed weights "
                "(the generator drifted)"
            )
            failed += 1
            continue
        for form in case["formats"]:
            if args.form and form != args.form:
                skipped += 1
                continue
            with tempfile.TemporaryDirectory() as scratch:
                folder = os.path.join(args.keep, f"{case['name']}.{form}") if args.keep else scratch
                for name, seconds, figure in run_form(
                    args.ferry, case, golden, form, tensors, folder
                ):
                    bad = isinstance(figure, Failure)
                    failed, passed = failed + bad, passed + (not bad)
                    detail = str(figure) if bad else "" if figure is None else f"{figure:.2e} std"
                    print(
                        f"{'FAIL' if bad else 'ok  '} {case['name']} {form} {name} {detail} "
                        f"({seconds:.1f} s)",
                        flush=True,
                    )
    print(f"{passed} passed, {failed} failed, {skipped} skipped")
    return 1 if failed or not passed else 0


if __name__ == "__main__":
    sys.exit(main())
