#!/usr/bin/env python3
"""Writes FOLDER/cases.json: every template of the folder with every conversation, and what jinja2
makes of it.

Usage: make_cases.py FOLDER          (needs jinja2, requirements.txt)
FOLDER holds *.jinja: tests/oracle/template (ours), or the templates of real checkpoints, which stay
on the machine that downloads them (README.md).
"""

import json
import os
import sys

import reference
from conversations import CONVERSATIONS


def main():
    folder = sys.argv[1]
    lines = []
    for file in sorted(os.listdir(folder)):
        if not file.endswith(".jinja"):
            continue
        with open(os.path.join(folder, file), encoding="utf-8", newline="") as f:
            source = f.read()
        for name, variables in CONVERSATIONS.items():
            case = {"name": f"{file} {name}", "file": file, "now": reference.NOW, "conversation": name}
            case.update(reference.outcome(source, variables))
            lines.append(json.dumps(case, ensure_ascii=True))
    with open(os.path.join(folder, "cases.json"), "w", encoding="utf-8") as f:
        f.write(f'{{"made_by": "{reference.versions()}", "conversations": '
                f'{json.dumps(CONVERSATIONS, ensure_ascii=True)}, "cases": [\n' + ",\n".join(lines) + "\n]}\n")
    print(f"{folder}/cases.json: {len(lines)} cases")


if __name__ == "__main__":
    main()
