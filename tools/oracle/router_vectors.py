#!/usr/bin/env python3
"""Unit vectors for the router: rules that engines confuse, ties, NaN-free extremes; exact f64
answers.

What: router.json, a list of {name, score, post, renorm, scale, k, logits, ids, weights[,
must_not_be]}.
Why here: a C unit test can read one flat file and needs no model. `must_not_be` holds the weights
of the bug the case was made for (public reports: norm_topk_prob ignored, softmax before or after
top-k, NaN ids repeated, ...).
Must not know: the C router's structures.

score "softmax": probabilities over all experts; "none": raw logits. post "gather": the selected
scores; "softmax": softmax over the selected logits. renorm: divide by the sum of the selected. Ties
go to the lower expert id, and ids are listed in order of choice. Logits are written so that their
f32 value is exact.
"""

import argparse
import json
import sys

import numpy as np

RULES = {  # name: (score, post, renorm)
    "mixtral": ("softmax", "gather", True),
    "qwen2_moe": ("softmax", "gather", False),
    "qwen3_moe": ("softmax", "gather", True),
    "olmoe": ("softmax", "gather", False),
    "granitemoe": ("none", "softmax", False),
}


def softmax(x):
    e = np.exp(x - x.max())
    return e / e.sum()


def answer(logits, k, score, post, renorm, scale=1.0):
    """ids and weights by the rule; f64."""
    scores = softmax(logits) if score == "softmax" else logits
    ids = np.argsort(-scores, kind="stable")[:k]
    weights = softmax(logits[ids]) if post == "softmax" else scores[ids]
    if renorm:
        weights = weights / weights.sum()
    return ids, weights * scale


def case(name, logits, k, rule, wrong=None, scale=1.0):
    logits = np.asarray(logits, np.float32).astype(np.float64)
    ids, weights = answer(logits, k, *rule, scale)
    out = {
        "name": name,
        "score": rule[0],
        "post": rule[1],
        "renorm": rule[2],
        "scale": scale,
        "k": k,
        "logits": [float(v) for v in logits],
        "ids": [int(i) for i in ids],
        "weights": [float(w) for w in weights],
    }
    if wrong is not None:
        out["must_not_be"] = [float(w) for w in answer(logits, k, *wrong)[1]]
    return out


def logits_of(seed, experts, gain=2.5):
    """[E] random logits on a grid of 1/64, so that ties occur and every value is exact in f32."""
    rng = np.random.Generator(np.random.Philox(key=seed))
    return (
        np.rint(gain * 64 * (rng.random(experts) + rng.random(experts) + rng.random(experts) - 1.5))
        / 64
    )


def vectors():
    out = []
    gather, renormalised = ("softmax", "gather", False), ("softmax", "gather", True)
    for seed, (arch, rule) in enumerate(RULES.items()):
        wrong = gather if rule != gather else renormalised
        for experts, k in ((5, 1), (5, 2), (8, 2), (8, 8), (60, 8), (300, 8)):
            c = case(
                f"{arch}-e{experts}k{k}",
                logits_of(100 * seed + experts + k, experts),
                k,
                rule,
                wrong,
            )
            if "must_not_be" in c and np.allclose(c["weights"], c["must_not_be"], rtol=1e-5):
                del c["must_not_be"]  # all experts chosen: the rules coincide
            out.append(c)
    ramp = np.array([0.25, 1.5, 1.5, -2.0, 1.5, 0.5, 1.5, 0.25])
    for name, rule in RULES.items():
        out.append(case(f"{name}-ties-take-lower-ids", ramp, 3, rule))
        out.append(case(f"{name}-all-equal", np.zeros(7), 4, rule))
        out.append(case(f"{name}-minus-zero-ties-zero", [-0.0, 0.0, -0.0, 0.0, -1.0], 2, rule))
        out.append(case(f"{name}-large-logits", [300.0, 299.0, -300.0, 0.0, 298.5], 2, rule))
        out.append(
            case(
                f"{name}-underflow-in-softmax-all",
                [0.0, -200.0, -201.0, -400.0, -202.0],
                3,
                rule if rule[0] == "none" else ("softmax", "gather", rule[2]),
            )
        )
    out.append(
        case(
            "softmax-all-renorm-equals-softmax-over-selected",
            logits_of(77, 16),
            4,
            renormalised,
            gather,
        )
    )
    out.append(
        case(
            "softmax-over-selected-equals-softmax-all-renorm",
            logits_of(77, 16),
            4,
            ("none", "softmax", False),
            gather,
        )
    )
    out.append(case("k1-renorm-is-one", logits_of(78, 8), 1, renormalised, gather))
    out.append(
        case("scale-once-after-renorm", logits_of(79, 8), 2, renormalised, renormalised, scale=2.5)
    )
    out.append(case("one-expert", [0.75], 1, gather))
    return out


def errors():
    """Inputs that must be refused with the layer's name, whatever the rule: unique ids cannot be
    promised for NaN."""
    return [
        {"name": "nan", "logits": [0.5, "nan", 0.25, 0.0], "k": 2},
        {"name": "plus-infinity", "logits": [0.5, "inf", 0.25, 0.0], "k": 2},
        {"name": "all-nan", "logits": ["nan"] * 4, "k": 2},
    ]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", required=True)
    parser.add_argument("--compare", help="committed router.json to compare with")
    args = parser.parse_args()
    with open(args.out, "w") as f:
        f.write(
            '{"weight_tolerance_relative": 1e-6, "weight_tolerance_absolute": 1e-7, "cases": [\n'
        )
        f.write(",\n".join(json.dumps(c, separators=(",", ":")) for c in vectors()))
        f.write(
            '\n], "refused": [\n'
            + ",\n".join(json.dumps(c, separators=(",", ":")) for c in errors())
            + "\n]}\n"
        )
    if not args.compare:
        return 0
    with open(args.out) as new, open(args.compare) as old:
        a, b = json.load(new), json.load(old)
    same = len(a["cases"]) == len(b["cases"]) and all(
        x["name"] == y["name"]
        and x["ids"] == y["ids"]
        and np.allclose(x["weights"], y["weights"], rtol=1e-12)
        for x, y in zip(a["cases"], b["cases"])
    )
    print(f"router.json: {len(a['cases'])} cases, {'equal' if same else 'DIFFERENT'}")
    return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main())
