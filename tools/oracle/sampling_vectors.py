#!/usr/bin/env python3
"""What transformers' logits processors leave of a row of logits, and with which probabilities.

What: sampling.json, a list of {name, temperature, top_k, top_p, min_p, repetition_penalty, biases,
logits, ids, kept, probs}: kept candidates best first and their probabilities, in f64.
Why here: order and edges of penalties and cut-offs are where engines differ; the reference's own
classes decide, in the order in which generate() applies them.
Must not know: the C sampler.

Only what means the same in Ferry is here: never top-k together with top-p (transformers' top-p then
speaks of the probabilities after top-k), no presence or frequency penalty (transformers has none),
no logits tied at a cut (transformers keeps all of them). A bias of -100 is a ban in Ferry and -inf
there. Cases whose cut is closer than MARGIN to another answer are drawn again.
"""

import argparse
import json
import sys

import numpy as np
import torch
import transformers
from transformers.generation import logits_process as lp

MARGIN = 1e-5
BAN = -100.0
NEUTRAL = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "repetition_penalty": 1.0}
SETTINGS = {
    "plain": {},
    "cold": {"temperature": 0.25},
    "hot": {"temperature": 1.75},
    "top-k-1": {"top_k": 1},
    "top-k-7": {"top_k": 7, "temperature": 1.5},
    "top-k-beyond": {"top_k": 1000},
    "top-p-half": {"top_p": 0.5},
    "top-p-hot": {"top_p": 0.9, "temperature": 1.5},
    "top-p-tiny": {"top_p": 0.0009765625},
    "min-p": {"min_p": 0.125},
    "min-p-one": {"min_p": 1.0},
    "min-p-cold": {"min_p": 0.125, "temperature": 0.5},
    "top-p-min-p": {"top_p": 0.75, "min_p": 0.0625, "temperature": 1.5},
    "top-k-min-p": {"top_k": 5, "min_p": 0.03125, "temperature": 1.5},
    "repetition": {"repetition_penalty": 1.25},
    "repetition-below-1": {"repetition_penalty": 0.75},
    "repetition-large": {"repetition_penalty": 8.0},
    "repetition-top-p": {"repetition_penalty": 1.5, "top_p": 0.75, "temperature": 1.25},
    "bias": {"n_biases": 6},
    "bias-top-k": {"n_biases": 6, "top_k": 4},
    "bias-repetition": {"n_biases": 12, "repetition_penalty": 1.5},
    "ban": {"n_bans": 5},
    "ban-repetition-min-p": {"n_bans": 5, "repetition_penalty": 1.5, "min_p": 0.0625},
    "all": {"n_biases": 8, "n_bans": 3, "repetition_penalty": 1.25, "temperature": 0.75, "top_p": 0.875, "min_p": 0.015625},
}


def processors(c):
    """transformers' chain for these settings, as generate() orders it."""
    chain = []
    biases = {(i,): b for i, b in c["biases"] if b > BAN}
    bans = [[i] for i, b in c["biases"] if b <= BAN]
    if biases:
        chain.append(lp.SequenceBiasLogitsProcessor(biases))
    if c["repetition_penalty"] != 1:
        chain.append(lp.RepetitionPenaltyLogitsProcessor(c["repetition_penalty"]))
    if bans:
        chain.append(lp.NoBadWordsLogitsProcessor(bans))
    if c["temperature"] != 1:
        chain.append(lp.TemperatureLogitsWarper(c["temperature"]))
    if c["top_k"] > 0:
        chain.append(lp.TopKLogitsWarper(c["top_k"]))
    if c["top_p"] < 1:
        chain.append(lp.TopPLogitsWarper(c["top_p"]))
    if c["min_p"] > 0:
        chain.append(lp.MinPLogitsWarper(c["min_p"]))
    return lp.LogitsProcessorList(chain)


def kept(c, nudge=0.0):
    """[(id, probability)] best first; nudge moves the cuts, to see whether one is close."""
    c = dict(c)
    if c["top_p"] < 1:
        c["top_p"] *= 1 + nudge
    if 0 < c["min_p"] < 1:
        c["min_p"] *= 1 + nudge
    scores = torch.tensor([c["logits"]], dtype=torch.float64)
    scores = processors(c)(torch.tensor([c["ids"]]), scores)[0]
    probs = torch.softmax(scores, -1).numpy()
    order = np.argsort(-probs, kind="stable")
    return [(int(i), float(probs[i])) for i in order if scores[i] > -np.inf]


def draw(rng, name, settings, vocab):
    """One case, or None when something in it is too close to call."""
    grid = rng.choice(np.arange(-512, 513), size=vocab, replace=False) / 64
    c = {"name": name, **NEUTRAL}
    c.update({k: v for k, v in settings.items() if k in NEUTRAL})
    n_biases, n_bans = settings.get("n_biases", 0), settings.get("n_bans", 0)
    chosen = rng.choice(vocab, size=n_biases + n_bans, replace=False)
    values = [float(v) for v in rng.integers(-64, 65, size=n_biases) / 8] + [BAN] * n_bans
    c["biases"] = [[int(i), v] for i, v in zip(chosen, values)]
    c["logits"] = [float(v) for v in grid]
    c["ids"] = [int(i) for i in rng.integers(0, vocab, size=vocab // 3)]
    best = kept(c)
    if any([i for i, _ in kept(c, n)] != [i for i, _ in best] for n in (-MARGIN, MARGIN)):
        return None
    probs = [p for _, p in best]
    if any(a - b < MARGIN * a for a, b in zip(probs, probs[1:])):
        return None  # penalties and biases can make ties; ours go by id, torch's need not
    c["kept"] = [i for i, _ in best]
    c["probs"] = probs
    return c


def vectors():
    out = []
    for number, (name, settings) in enumerate(SETTINGS.items()):
        for vocab in (16, 48):
            rng = np.random.Generator(np.random.Philox(key=1000 * number + vocab))
            c = None
            while c is None:
                c = draw(rng, f"{name}-v{vocab}", settings, vocab)
            out.append(c)
    return out


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", required=True)
    parser.add_argument("--compare", help="committed sampling.json to compare with")
    args = parser.parse_args()
    cases = vectors()
    with open(args.out, "w") as f:
        f.write(f'{{"transformers": "{transformers.__version__}", "cases": [\n')
        f.write(",\n".join(json.dumps(c, separators=(",", ":")) for c in cases))
        f.write("\n]}\n")
    if not args.compare:
        return 0
    with open(args.compare) as f:
        old = json.load(f)["cases"]
    same = len(old) == len(cases) and all(
        x["name"] == y["name"]
        and x["logits"] == y["logits"]
        and x["kept"] == y["kept"]
        and np.allclose(x["probs"], y["probs"], rtol=1e-12)
        for x, y in zip(old, cases)
    )
    print(f"sampling.json: {len(cases)} cases, {'equal' if same else 'DIFFERENT'}")
    return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main())
