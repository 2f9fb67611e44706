#!/usr/bin/env python3
"""Writes tests/oracle/template/snippets.json: small templates and what jinja2 makes of them.

Usage: make_snippets.py > tests/oracle/template/snippets.json      (needs jinja2, requirements.txt)
"""

import json

import reference
from snippets import SNIPPETS, VARIABLES


def main():
    cases = []
    for number, (group, source) in enumerate(SNIPPETS):
        case = {"name": f"{group} {number}", "source": source, "now": reference.NOW}
        case.update(reference.outcome(source, VARIABLES))
        if " at 0x" in case.get("want", ""):  # an address: nobody prints these
            continue
        cases.append(case)
    lines = ",\n".join(json.dumps(c, ensure_ascii=True) for c in cases)
    print(f'{{"made_by": "{reference.versions()}", "variables": '
          f'{json.dumps(VARIABLES, ensure_ascii=True)}, "cases": [\n{lines}\n]}}')


if __name__ == "__main__":
    main()
