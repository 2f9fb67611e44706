#!/usr/bin/env python3
"""Checks sizes, head comments, and words that do not belong into the repository.

C files: at most 1500 lines, over 1000 only with a reason in tools/style_exceptions.txt; functions over
70 lines are reported, over 100 refused; lines of at most 100 columns, outside of regions with
clang-format off (tables). A comment heads every C file, script and module. Text files name no paths of one machine and no
package registry's host.
"""

import os
import re

from checklib import Check, strip_c

LIST = "tools/style_exceptions.txt"
FOLDERS = ["src", "include", "tests", "bench", "tools"]
LINES_MAX, LINES_REASON, FUNCTION_MAX, FUNCTION_GOOD, COLUMNS = 1500, 1000, 100, 70, 100
# Data and licence texts that others wrote; this file, which must name what it looks for.
UNSEARCHED = ("models/", "tests/data/", "tests/oracle/", "LICENSE", "tools/check_style.py",
              "tests/checks/")
MACHINE_PATHS = re.compile(r"(?<![\w.$}/-])/(?:work|root|home/\w+|tmp/[\w.-]+)(?=/|\b)")
REGISTRIES = re.compile(r"\b(?:pypi\.org|pythonhosted\.org|npmjs\.(?:com|org)|crates\.io|proxy\.golang\.org"
                        r"|(?:deb|ftp|security|snapshot)(?:\.\w\w)?\.debian\.org|archive\.ubuntu\.com"
                        r"|artifactory|[\w-]*nexus[\w-]*\.\w+)\b", re.I)


def check_lines(check, rel, text, reasons):
    lines = text.split("\n")
    count = len(lines) - 1
    if count > LINES_MAX:
        check.bad(rel, 0, f"{count} lines, over {LINES_MAX}; split it by noun")
    elif count > LINES_REASON and rel not in reasons:
        check.bad(rel, 0, f"{count} lines, over {LINES_REASON}; split it or give a reason in {LIST}")
    table = False
    for number, line in enumerate(lines, 1):
        if "clang-format off" in line:
            table = True
        elif "clang-format on" in line:
            table = False
        if len(line) > COLUMNS and not table:
            check.bad(rel, number, f"{len(line)} columns, over {COLUMNS}")
        if "\t" in line:
            check.bad(rel, number, "a tab; use 4 spaces")
        if line.endswith((" ", "\r")):
            check.bad(rel, number, "blanks at the end of the line")


def check_functions(check, rel, text):
    """Functions: a '{' alone in the first column opens the body, a '}' there ends it."""
    lines = strip_c(text).split("\n")
    begin = None
    long_ones = []
    for number, line in enumerate(lines, 1):
        if line.rstrip() == "{":
            begin = number
        elif line.startswith("}") and begin:
            length = number - begin - 1
            head = " ".join(lines[max(0, begin - 6):begin - 1])
            name = re.findall(r"(\w+)\s*\(", head)
            what = f"function {name[-1] if name else '?'}: {length} lines"
            if length > FUNCTION_MAX:
                check.bad(rel, begin, f"{what}, over {FUNCTION_MAX}; split it")
            elif length > FUNCTION_GOOD:
                long_ones.append(f"{rel}:{begin}: note: {what}, over {FUNCTION_GOOD}")
            begin = None
    return long_ones


def check_head(check, rel, text):
    lines = text.split("\n")
    if rel.endswith((".c", ".h")):
        good = text.startswith("/*")
    else:
        rest = [l for l in lines if not l.startswith("#!") and l.strip()]
        good = bool(rest) and (rest[0].startswith("#") or rest[0].startswith(('"""', 'r"""')))
    if not good:
        check.bad(rel, 1, "no head comment: say what the file is, why it is here, what it must not know")


def check_words(check, rel):
    try:
        with open(check.path(rel), "rb") as f:
            data = f.read()
    except OSError:
        return
    if b"\0" in data:
        return
    for number, line in enumerate(data.decode("utf-8", "replace").split("\n"), 1):
        for match in MACHINE_PATHS.finditer(line):
            check.bad(rel, number, f"'{match.group(0)}': a path of one machine; make it an option, or "
                      "relative, or use TMPDIR")
        for match in REGISTRIES.finditer(line):
            check.bad(rel, number, f"'{match.group(0)}': host of a package registry; name the package only")


def main():
    check = Check("check_style", __doc__)
    reasons = check.reasons(LIST)
    notes = []
    code = check.files(FOLDERS, [".c", ".h"])
    for rel in code:
        text = check.read(rel)
        check_lines(check, rel, text, reasons)
        notes += check_functions(check, rel, text)
        check_head(check, rel, text)
    scripts = check.files(FOLDERS + [".ci"], [".py", ".sh"])
    for rel in scripts:
        if os.path.getsize(check.path(rel)) > 0:
            check_head(check, rel, check.read(rel))
    searched = [rel for rel in check.tracked() if not rel.startswith(UNSEARCHED)]
    for rel in searched:
        check_words(check, rel)
    for note in notes:
        print(note)
    check.done(f"{len(code)} C files, {len(scripts)} scripts, {len(searched)} texts, "
               f"{len(notes)} functions over {FUNCTION_GOOD} lines")


if __name__ == "__main__":
    main()
