#!/usr/bin/env python3
"""Check an exported demo model against transformers, and report expert balance and samples.

What: loads model.safetensors twice, into transformers' Qwen3MoeForCausalLM (f32) and back into
model.py, and compares logits; counts experts per layer and domain on the held-out text; continues
one prompt per domain greedily. Fails (exit 1) if logits differ by more than --tolerance times their
standard deviation, if an expert is dead, or if the files are too large.
Why here: training uses its own forward pass, so the claim "this is a Qwen3-MoE checkpoint" needs
a test.
Must not know: Ferry's engine.
"""
import argparse
import json
import os
import sys

import torch
from safetensors.torch import load_file

from model import Config, Model

PROMPTS = {"code": "def read(self, size=-1):\n    \"\"\"Read",
           "math": "-- Commutative law for union of classes.\nuncom $p |-",
           "english": "And it came to pass in those days, that",
           "chinese": "子曰：“"}
SIZE_LIMIT = 25_000_000


def from_hf(directory):
    """model.py's Model from an exported directory, weights upcast to f32."""
    with open(os.path.join(directory, "config.json"), encoding="utf-8") as f:
        conf = json.load(f)
    cfg = Config(**{k: conf[k] for k in Config.__dataclass_fields__})
    tensors = {k.removeprefix("model."): v.float()
               for k, v in load_file(os.path.join(directory, "model.safetensors")).items()}
    state = {}
    for n in range(cfg.num_hidden_layers):
        base = f"layers.{n}.mlp."
        parts = [[tensors.pop(f"{base}experts.{e}.{p}_proj.weight") for e in range(cfg.num_experts)]
                 for p in ("gate", "up", "down")]
        state[base + "gate_up"] = torch.cat((torch.stack(parts[0]), torch.stack(parts[1])), 1)
        state[base + "down"] = torch.stack(parts[2])
    state.update(tensors)
    model = Model(cfg)
    model.load_state_dict(state, strict=True)
    return model.eval()


@torch.no_grad()
def balance(model, streams):
    """Per domain and overall: max and min expert load over the mean, per layer."""
    out, total = {}, 0
    for name, ids in streams.items():
        model(torch.tensor(ids[: len(ids) // 512 * 512]).view(-1, 512))
        load = model.loads().double()
        total = total + load
        share = load / load.mean(1, keepdim=True)
        out[name] = {"max_over_mean": [round(v, 2) for v in share.max(1).values.tolist()],
                     "min_over_mean": [round(v, 2) for v in share.min(1).values.tolist()]}
    share = total / total.mean(1, keepdim=True)
    out["all"] = {"max_over_mean": [round(v, 2) for v in share.max(1).values.tolist()],
                  "min_over_mean": [round(v, 2) for v in share.min(1).values.tolist()]}
    return out, share.min().item()


def main():
    """Run the checks and print JSON."""
    ap = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    ap.add_argument("model", help="exported model directory")
    ap.add_argument("--tolerance", type=float, default=1e-4)
    ap.add_argument("--tokens", type=int, default=80, help="tokens to continue each prompt by")
    args = ap.parse_args()
    torch.set_num_threads(1)
    import transformers  # pylint: disable=import-outside-toplevel
    tok = transformers.AutoTokenizer.from_pretrained(args.model)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(
        args.model, dtype=torch.float32, attn_implementation="eager").eval()
    ours, streams, worst, failures = from_hf(args.model), {}, 0.0, []
    for name in PROMPTS:
        path = os.path.join(args.model, "heldout", name + ".txt")
        with open(path, encoding="utf-8") as f:
            streams[name] = tok(f.read())["input_ids"]
        ids = torch.tensor([streams[name][:512]])
        with torch.no_grad():
            a, b = ours(ids), theirs(input_ids=ids).logits
        worst = max(worst, ((a - b).abs().amax(-1) / b.std(-1)).max().item())
    if not worst <= args.tolerance:
        failures.append(f"logits differ by {worst:.2e} standard deviations")
    loads, least = balance(ours, streams)
    if least <= 0.05:
        failures.append("an expert gets less than 5 % of its share")
    size = sum(os.path.getsize(os.path.join(d, f)) for d, _, fs in os.walk(args.model) for f in fs)
    if size > SIZE_LIMIT:
        failures.append(f"{size} bytes; the limit is {SIZE_LIMIT}")
    samples = {}
    for name, prompt in PROMPTS.items():
        ids = tok(prompt, return_tensors="pt")["input_ids"]
        out = theirs.generate(input_ids=ids, attention_mask=torch.ones_like(ids), do_sample=False,
                              temperature=None, top_k=None, top_p=None, max_new_tokens=args.tokens)
        samples[name] = tok.decode(out[0])
    print(json.dumps({"max_logit_difference_in_std": worst, "bytes": size, "load": loads,
                      "samples": samples, "failures": failures}, indent=1, ensure_ascii=False))
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
