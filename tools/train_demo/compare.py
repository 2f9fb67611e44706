#!/usr/bin/env python3
"""Fail unless the model beats primed xz in every domain; print the comparison as a table.

What: reads reference_eval.json and xz_eval.json. Why here: the acceptance test of the demo model.
Must not know: how either file was made.
"""
import json
import sys


def main():
    """Table on stdout; exit status 1 if xz wins anywhere."""
    if len(sys.argv) != 3:
        sys.exit("usage: compare.py reference_eval.json xz_eval.json")
    with open(sys.argv[1], encoding="utf-8") as f:
        model = json.load(f)["texts"]
    with open(sys.argv[2], encoding="utf-8") as f:
        xz = json.load(f)
    print("| domain | bytes | tokens | perplexity | model bits/byte | xz -9, own domain primed | "
          "xz -9, all primed | xz -9 alone |\n|---|---|---|---|---|---|---|---|")
    lost = []
    for name, m in model.items():
        x = xz[name]
        print(f"| {name} | {m['bytes']} | {m['tokens']} | {m['perplexity']:.2f} | "
              f"**{m['bits_per_byte']:.3f}** | {x['xz_own']:.3f} | {x['xz_all']:.3f} | "
              f"{x['xz_alone']:.3f} |")
        if m["bytes"] != x["bytes"] or m["bits_per_byte"] >= min(x["xz_own"], x["xz_all"]):
            lost.append(name)
    if lost:
        sys.exit("compare: the model does not beat xz in: " + ", ".join(lost))


if __name__ == "__main__":
    main()
