#!/usr/bin/env python3
"""Writes the seeds of tests/fuzz/fuzz_template.c: snippets, ten to a file, and whole templates.

Usage: fuzz_seeds.py FOLDER          (tests/fuzz/corpus/template)
"""

import json
import os
import sys

from conversations import CONVERSATIONS
from snippets import SNIPPETS, VARIABLES

HERE = os.path.dirname(os.path.abspath(__file__))
TEMPLATES = os.path.join(HERE, "..", "..", "tests", "oracle", "template")


def write(folder, name, source, variables):
    with open(os.path.join(folder, name), "wb") as f:
        f.write(source.encode() + b"\0" + json.dumps(variables, ensure_ascii=False).encode())


def main():
    folder = sys.argv[1]
    os.makedirs(folder, exist_ok=True)
    groups = {}
    for group, source in SNIPPETS:
        groups.setdefault(group, []).append(source)
    for group, sources in groups.items():
        if group in ("syntax", "statements"):  # one broken piece would hide the others
            for number, source in enumerate(sources):
                if number % 3 == 0:
                    write(folder, f"{group}-{number:03}", source, {"name": "World", "numbers": [3, 1, 2]})
            continue
        for start in range(0, len(sources), 10):
            write(folder, f"{group}-{start:03}", "\n".join(sources[start:start + 10]), VARIABLES)
    for file in sorted(os.listdir(TEMPLATES)):
        if file.endswith(".jinja"):
            with open(os.path.join(TEMPLATES, file), encoding="utf-8") as f:
                write(folder, file[:-6], f.read(), CONVERSATIONS["called_answered"])


if __name__ == "__main__":
    main()
