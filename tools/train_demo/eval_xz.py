#!/usr/bin/env python3
"""Bits per byte of `xz -9` on the held-out text, primed with the training text.

What: size(xz(prime + heldout)) - size(xz(prime)) in bits per held-out byte, for prime = nothing,
the domain's own training text, and all training text with the domain's own last.
Why here: the baseline the demo model has to beat in every domain.
Must not know: the model.
"""
import argparse
import json
import lzma
import os

DOMAINS = ("code", "math", "english", "chinese")
# xz -9 with a dictionary (64 MiB) that spans all of the training text.
FILTERS = [{"id": lzma.FILTER_LZMA2, "preset": 9}]


def packed(data):
    """Size of the .xz stream in bytes."""
    return len(lzma.compress(data, format=lzma.FORMAT_XZ, filters=FILTERS))


def main():
    """Print JSON: domain -> {bytes, xz_alone, xz_own, xz_all}."""
    cache = os.environ.get("FERRY_CACHE", os.path.expanduser("~/.cache/ferry"))
    ap = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    ap.add_argument("--text", default=os.path.join(cache, "demo-data", "text"))
    ap.add_argument("--heldout", required=True, help="directory with <domain>.txt")
    args = ap.parse_args()
    train = {}
    for d in DOMAINS:
        with open(os.path.join(args.text, "train", d + ".jsonl"), encoding="utf-8") as f:
            train[d] = "\n".join(json.loads(line) for line in f).encode()
    out = {}
    for d in DOMAINS:
        with open(os.path.join(args.heldout, d + ".txt"), "rb") as f:
            held = f.read()
        everything = b"\n".join(train[o] for o in DOMAINS if o != d) + b"\n" + train[d]

        def bits(prime, held=held):
            return round(8 * (packed(prime + held) - packed(prime)) / len(held), 4)

        out[d] = {"bytes": len(held), "xz_alone": bits(b""), "xz_own": bits(train[d] + b"\n"),
                  "xz_all": bits(everything + b"\n")}
    print(json.dumps(out, indent=1))


if __name__ == "__main__":
    main()
