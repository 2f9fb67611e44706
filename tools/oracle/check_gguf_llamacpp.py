#!/usr/bin/env python3
"""Runs llama.cpp on the GGUF forms of the golden cases: shows that our files mean to it what they
mean to us.

What: per case and form, the RMS distance of llama.cpp's logits to the golden ones, in row standard
deviations.
Why here: a GGUF writer and a GGUF reader by the same hand can agree on a mistake (row order of Q
and K, key names).
Must not know: Ferry.

llama.cpp keeps K and V in f16 and rounds activations, so the bound is loose; a wrong convention
gives about 1.
Cases it cannot express are skipped with the reason. Exit 1 when any other is over the bound.
"""

import argparse
import json
import os
import sys
import tempfile

import gguf_write
import weights
from peer import peer_logits, peer_python, row_distances

GOLDEN = os.path.join(
    os.path.dirname(os.path.abspath(__file__)), "..", "..", "tests", "oracle", "golden"
)
BOUND = {"float": 0.02, "quant": 0.15}


def reason_to_skip(case):
    if case["config"].get("clip_qkv") is not None:
        return "llama.cpp does not clamp q, k, v for olmoe"
    if case["config"].get("sliding_window") is not None:
        return "llama.cpp has no sliding window for architecture llama"
    if (
        case["config"]["model_type"] in ("olmoe", "qwen2_moe")
        and case["config"]["tie_word_embeddings"]
    ):
        return "llama.cpp needs output.weight for this architecture"
    if (
        case["config"]["model_type"] == "olmoe"
        and case["config"]["num_key_value_heads"] != case["config"]["num_attention_heads"]
    ):
        return "llama.cpp takes olmoe without grouped heads only"
    return None


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--filter", default="")
    args = parser.parse_args()
    python = peer_python()
    with open(os.path.join(GOLDEN, "manifest.json")) as f:
        cases = json.load(f)["cases"]
    golden = weights.read_safetensors(os.path.join(GOLDEN, "logits.safetensors"))
    passed = failed = skipped = 0
    for case in cases:
        for form in case["formats"]:
            if args.filter not in case["name"] or not form.startswith("gguf"):
                continue
            reason = reason_to_skip(case)
            if reason:
                print(f"skip {case['name']} {form}: {reason}")
                skipped += 1
                continue
            prompt = case["prompts"][1]
            with tempfile.TemporaryDirectory() as folder:
                path = gguf_write.write_gguf(case, folder, form)
                try:
                    got = peer_logits(python, path, prompt["ids"], folder)[prompt["positions"]]
                    worst = float(row_distances(got, golden[f"{case['name']}/1"]).max())
                    text = f"worst row {worst:.2e} std"
                except RuntimeError as e:
                    worst, text = float("inf"), str(e)
            bad = worst > BOUND[case["kind"]]
            failed, passed = failed + bad, passed + (not bad)
            print(f"{'FAIL' if bad else 'ok  '} {case['name']} {form}: {text}", flush=True)
    print(f"{passed} passed, {failed} failed, {skipped} skipped")
    return 1 if failed or not passed else 0


if __name__ == "__main__":
    sys.exit(main())
