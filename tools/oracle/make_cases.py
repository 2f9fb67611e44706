#!/usr/bin/env python3
"""Turns the design into concrete cases: a seed per checkpoint, prompts whose routing cannot flip, a
greedy answer.

What: writes cases.json (config, seed, prompts, positions, greedy ids, smallest gaps, counts of
rejected candidates).
Why here: golden vectors must not rest on near-ties. A candidate is rejected when a router gap (k-th
minus (k+1)-th logit) or a greedy gap (first minus second logit) is under 100 x 2e-4 of the standard
deviation of those logits.
Must not know: torch, transformers. The expected outputs come from reference.py; the margins come
from numpy_forward.py, which reference.py then checks against transformers on the same prompts.

Prompts of 33 and 700 tokens grow token by token, each token drawn again until all its router gaps
are wide; the 64-token answer is searched by drawing the last tokens of the 33-token prompt again,
then other seeds.
"""

import argparse
import json
import sys

import numpy as np

from design import pairwise_cases, quant_cases
from gguf_write import effective_tensors
from numpy_forward import Model
from weights import Shape, make_tensors, weights_sha256

TOLERANCE = 2e-4
GAP = 100 * TOLERANCE
GREEDY_TOKENS = 64
POSITIONS = {1: [0], 33: [0, 1, 7, 20, 32], 700: [63, 64, 127, 128, 255, 256, 511, 512, 640, 699]}
TAIL = 4  # tokens of the 33-token prompt that the greedy search draws again
ATTEMPTS = 250  # greedy attempts per seed


def greedy_gap(logits):
    ordered = np.sort(logits)
    return float((ordered[-1] - ordered[-2]) / logits.std())


class Search:
    """One candidate checkpoint: the model, a random stream, and how much was rejected."""

    def __init__(self, case, seed):
        self.case = dict(case, seed=seed)
        self.tensors = make_tensors(self.case)
        self.model = Model(case["config"], effective_tensors(self.case, self.tensors))
        self.vocab = Shape(case["config"]).vocab
        self.rng = np.random.Generator(np.random.Philox(key=seed))
        self.rejected = {"tokens": 0, "greedy": 0}

    def grow(self, ids, length):
        """Extends `ids` (already in the cache) to `length`; returns the last logits, or None when
        stuck."""
        logits = None
        while len(ids) < length:
            for _ in range(60):
                token = int(self.rng.integers(self.vocab))
                logits = self.model.forward([token])[0]
                if self.model.margins[0] >= GAP:
                    break
                self.model.used -= 1
                self.rejected["tokens"] += 1
            else:
                return None
            ids.append(token)
        return logits

    def prompt(self, length):
        self.model.used = 0
        ids = []
        return ids if self.grow(ids, length) is not None else None

    def answer(self, logits):
        """64 greedy tokens after the cached prompt, or None at the first narrow gap; sets the
        smallest gaps."""
        out, smallest = [], np.inf
        while True:
            smallest = min(smallest, greedy_gap(logits))
            if smallest < GAP:
                return None
            out.append(int(logits.argmax()))
            if len(out) == GREEDY_TOKENS:
                self.smallest_greedy = smallest
                return out
            logits = self.model.forward([out[-1]])[0]
            if self.model.margins[0] < GAP:
                return None

    def prompt_with_answer(self, length):
        """A prompt of `length` tokens and its greedy answer, or (None, None)."""
        ids = self.prompt(length)
        if ids is None:
            return None, None
        best = None
        for _ in range(ATTEMPTS):
            self.model.used = length - TAIL
            ids = ids[: length - TAIL]
            logits = self.grow(ids, length)
            out = self.answer(logits) if logits is not None else None
            if out is None:
                self.rejected["greedy"] += 1
                continue
            if best is None or len(set(out)) > len(set(best[1])):
                best = (list(ids), out, self.smallest_greedy)
            if len(set(best[1])) >= 12:  # a varied answer is a better test than a short loop
                break
        if best is None:
            return None, None
        self.smallest_greedy = best[2]
        return best[0], best[1]


def solve(template, first_seed, seeds):
    """The first seed that has all prompts; returns a finished case. Raises when none of `seeds`
    seeds works."""
    rejected_seeds, tokens, greedy = 0, 0, 0
    for seed in range(first_seed, first_seed + seeds):
        search = Search(template, seed)
        prompts, answer = [], None
        quant = template["kind"] == "quant"
        short, answer = (search.prompt(33), []) if quant else search.prompt_with_answer(33)
        if short is not None:
            one, long = search.prompt(1), search.prompt(96 if quant else 700)
            prompts = [one, short, long]
        tokens, greedy = tokens + search.rejected["tokens"], greedy + search.rejected["greedy"]
        if not prompts or None in prompts:
            rejected_seeds += 1
            continue
        return finish(
            search, prompts, answer, {"seeds": rejected_seeds, "tokens": tokens, "greedy": greedy}
        )
    raise SystemExit(
        f"{template['name']}: no seed of {seeds} has wide enough gaps; change the design"
    )


def finish(search, prompts, answer, rejected):
    """Fills in prompts, positions, gaps over everything that will be compared, hash and counts."""
    case, smallest, used = search.case, np.inf, None
    entries = []
    for ids in prompts:
        search.model.used = 0
        whole = ids + (answer[:-1] if len(ids) == 33 else [])
        search.model.forward(whole)
        smallest = min(smallest, float(search.model.margins.min()))
        entries.append({"ids": ids, "positions": POSITIONS.get(len(ids), [0, 31, 32, 63, 95])})
    used = float((search.model.expert_hits > 0).mean(axis=1).max())
    case["prompts"] = entries
    case["greedy"] = {"prompt": 1, "ids": answer} if answer else None
    case["smallest_router_gap"] = round(smallest, 6) if np.isfinite(smallest) else None
    case["smallest_greedy_gap"] = round(search.smallest_greedy, 6) if answer else None
    case["experts_used"] = round(used, 3)
    case["rejected"] = rejected
    case["weights_sha256"] = weights_sha256(search.tensors)
    return case


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", required=True)
    parser.add_argument("--filter", default="", help="only cases whose name contains this")
    args = parser.parse_args()
    cases = []
    for index, template in enumerate(pairwise_cases() + quant_cases()):
        if args.filter not in template["name"]:
            continue
        case = solve(template, 1000 + 100 * index, 60)
        distinct = len(set(case["greedy"]["ids"])) if case["greedy"] else 0
        print(
            f"{case['name']}: seed {case['seed']}, router gap {case['smallest_router_gap']}, greedy gap "
            f"{case['smallest_greedy_gap']}, {distinct} distinct answer tokens, experts used "
            f"{case['experts_used']}, rejected {case['rejected']}",
            flush=True,
        )
        cases.append(case)
    with open(args.out, "w") as f:
        json.dump(cases, f)
    return 0


if __name__ == "__main__":
    sys.exit(main())
