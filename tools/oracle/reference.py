#!/usr/bin/env python3
"""Runs transformers in f32 on every case and writes the golden vectors; checks them against the
numpy forward pass.

What: cases.json -> manifest.json + logits.safetensors (tensor "<case>/<prompt index>": f32
[positions, vocab]).
Why here: transformers is the definition of "right"; nothing it disagrees with numpy_forward.py
about gets written.
Must not know: Ferry.

Checks, each fatal: no missing or unexpected tensor at load; both forward passes within half the
tolerance; the greedy answer equal to the searched one with wide gaps; for fused layouts, names and
values equal to what transformers writes itself with save_original_format=False.
"""

import argparse
import hashlib
import json
import os
import platform
import sys
import tempfile

import numpy as np
import safetensors
import torch
import transformers

import weights
from gguf_write import effective_tensors
from make_cases import GAP, TOLERANCE, greedy_gap
from numpy_forward import Model

AGREEMENT = 0.5 * TOLERANCE


def load(case, folder, tensors):
    """Writes the checkpoint (dequantised for quant cases) and loads it as the library's users do,
    in f32."""
    weights.write_checkpoint(case, folder, tensors)
    model, info = transformers.AutoModelForCausalLM.from_pretrained(
        folder,
        dtype=torch.float32,
        attn_implementation="eager",
        experts_implementation="eager",
        output_loading_info=True,
    )
    bad = {k: v for k, v in info.items() if v}
    if bad:
        raise SystemExit(
            f"{case['name']}: transformers does not take the checkpoint as it is: {bad}"
        )
    return model.eval()


def check_fused(case, model, tensors):
    """The fused layout must be what transformers itself writes: same names, same values."""
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder, save_original_format=False)
        theirs = weights.read_safetensors(os.path.join(folder, "model.safetensors"))
    ours = weights.to_fused(case["config"], tensors)
    if set(ours) != set(theirs) or any(not np.array_equal(ours[n], theirs[n]) for n in ours):
        raise SystemExit(
            f"{case['name']}: fused layout differs from transformers': {set(ours) ^ set(theirs)}"
        )


def greedy(model, ids, count):
    """Greedy continuation with the library's own cache; returns ids and the smallest gap."""
    out, smallest, cache, step = [], np.inf, None, torch.tensor([ids])
    while len(out) < count:
        result = model(step, cache=cache, use_cache=True)
        cache = result.past_key_values
        logits = result.logits[0, -1].numpy()
        smallest = min(smallest, greedy_gap(logits.astype(np.float64)))
        out.append(int(logits.argmax()))
        step = torch.tensor([[out[-1]]])
    return out, smallest


def run_case(case, store):
    """Adds the case's golden rows to `store`; returns the worst difference to numpy_forward in
    units of std."""
    tensors = weights.make_tensors(case)
    if weights.weights_sha256(tensors) != case["weights_sha256"]:
        raise SystemExit(
            f"{case['name']}: weights are not those that the prompts were searched with"
        )
    effective = effective_tensors(case, tensors)
    worst = 0.0
    with tempfile.TemporaryDirectory() as folder:
        model = load(case, folder, effective)
        second = Model(case["config"], effective)
        for index, prompt in enumerate(case["prompts"]):
            rows = model(torch.tensor([prompt["ids"]])).logits[0].numpy()
            second.used = 0
            other = second.forward(prompt["ids"])
            worst = max(worst, float((np.abs(rows - other).max(axis=1) / rows.std(axis=1)).max()))
            store[f"{case['name']}/{index}"] = rows[prompt["positions"]].astype(np.float32)
        if worst > AGREEMENT:
            raise SystemExit(
                f"{case['name']}: transformers and numpy_forward differ by {worst:.2e} std"
            )
        if case["greedy"]:
            ids, gap = greedy(
                model, case["prompts"][case["greedy"]["prompt"]]["ids"], len(case["greedy"]["ids"])
            )
            if ids != case["greedy"]["ids"] or gap < GAP:
                raise SystemExit(
                    f"{case['name']}: greedy answer {ids} (gap {gap:.3g}) is not the searched one"
                )
        if case["layout"] == "fused":
            check_fused(case, model, effective)
    return worst


def write(cases, store, worst, out):
    logits_path = os.path.join(out, "logits.safetensors")
    weights.write_safetensors(logits_path, store)
    with open(logits_path, "rb") as f:
        digest = hashlib.sha256(f.read()).hexdigest()
    rejected = {k: sum(c["rejected"][k] for c in cases) for k in ("seeds", "tokens", "greedy")}
    head = {
        "what": "golden vectors of tools/oracle; regenerate with tools/oracle/regenerate.sh",
        "tolerance_std": TOLERANCE,
        "smallest_gap_std": GAP,
        "versions": {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "transformers": transformers.__version__,
            "numpy": np.__version__,
            "safetensors": safetensors.__version__,
        },
        "logits_sha256": digest,
        "worst_difference_to_numpy_forward_std": float(f"{worst:.3g}"),
        "rejected_candidates": rejected,
    }
    text = json.dumps(head, indent=1)[:-2] + ',\n "cases": [\n'
    text += ",\n".join("  " + json.dumps(c, separators=(",", ":")) for c in cases) + "\n ]\n}\n"
    with open(os.path.join(out, "manifest.json"), "w") as f:
        f.write(text)


def compare(out, committed):
    """Same cases, and logits within a hundredth of the tolerance (another machine's BLAS may round
    differently)."""

    def read(folder):
        with open(os.path.join(folder, "manifest.json")) as f:
            return json.load(f)["cases"], weights.read_safetensors(
                os.path.join(folder, "logits.safetensors")
            )

    (new_cases, new), (old_cases, old) = read(out), read(committed)
    if new_cases != old_cases or set(new) != set(old):
        names = {c["name"] for c in new_cases} ^ {c["name"] for c in old_cases}
        print(
            f"regenerated cases differ from the committed ones {sorted(names) or '(same names, other contents)'}"
        )
        return 1
    worst = max(
        float((np.abs(new[n] - old[n]).max(axis=1) / old[n].std(axis=1)).max()) for n in old
    )
    print(
        f"{len(old_cases)} cases compared, worst difference {worst:.2e} of a row's standard deviation"
    )
    return 0 if worst <= 0.01 * TOLERANCE else 1


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument(
        "--cases", required=True, help="cases.json of make_cases.py, or a manifest.json"
    )
    parser.add_argument(
        "--out", required=True, help="folder for manifest.json and logits.safetensors"
    )
    parser.add_argument("--compare", help="folder with committed golden files to compare with")
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.set_grad_enabled(False)
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    with open(args.cases) as f:
        cases = json.load(f)
    cases = cases["cases"] if isinstance(cases, dict) else cases
    store, worst = {}, 0.0
    for case in cases:
        difference = run_case(case, store)
        worst = max(worst, difference)
        print(
            f"{case['name']}: agrees, worst difference to numpy_forward {difference:.2e} std",
            flush=True,
        )
    os.makedirs(args.out, exist_ok=True)
    write(cases, store, worst, args.out)
    return compare(args.out, args.compare) if args.compare else 0


if __name__ == "__main__":
    sys.exit(main())
