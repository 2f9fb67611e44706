#!/usr/bin/env python3
"""Checks that tests mirror the sources.

Rules: src/room/foo.c has tests/unit/room/test_foo.c; a file of src/kernel has tests/kernel/test_foo.c or
that of a shorter name (matmul_q4.c: test_matmul_q4.c or test_matmul.c), as one test walks all levels;
a verb in src/app may have tests/integration/test_foo*.* instead. These tests and every test_*.py
must be named in the CMakeLists.txt of their folder. Exceptions, each with a written reason, are in
tools/mirror_exceptions.txt.
"""

import os
import re

from checklib import Check

LIST = "tools/mirror_exceptions.txt"


def candidates(rel):
    """Paths of tests that may mirror the source, best first."""
    parts = rel.split(os.sep)
    room, stem = parts[1], parts[-1][:-2]
    inner = "/".join(parts[2:-1])
    found = [f"tests/unit/{room}/test_{stem}.c"]
    if inner:
        found.append(f"tests/unit/{room}/{inner}/test_{stem}.c")
    if room == "kernel":
        words = stem.split("_")
        found += [f"tests/kernel/test_{'_'.join(words[:n])}.c" for n in range(len(words), 0, -1)]
    return found


def has_integration(check, rel):
    stem = os.path.basename(rel)[:-2]
    folder = check.path("tests", "integration")
    return os.path.isdir(folder) and any(n.startswith(f"test_{stem}") for n in os.listdir(folder))


def is_built(check, test):
    """The test's name, or the part after test_, stands in the CMakeLists.txt of its folder."""
    listing = os.path.join(os.path.dirname(test), "CMakeLists.txt")
    if not check.exists(listing):
        return False
    base = os.path.basename(test)
    stem = os.path.splitext(base)[0]
    words = set(re.findall(r"[\w.]+", re.sub(r"#[^\n]*", "", check.read(listing))))
    return bool(words & {stem, base, stem[len("test_"):]})


def main():
    check = Check("check_mirror", __doc__)
    exceptions = check.reasons(LIST)
    sources = check.files(["src"], [".c"])
    listed = [t for t in check.files(["tests"], [".py"]) if os.path.basename(t).startswith("test_")]
    n_mirrored = 0
    for rel in sources:
        tests = [t for t in candidates(rel) if check.exists(t)]
        found = bool(tests) or (rel.startswith("src/app/") and has_integration(check, rel))
        n_mirrored += found
        if found and rel in exceptions:
            check.bad(LIST, 0, f"'{rel}' has a test now; remove the line")
        elif not found and rel not in exceptions:
            check.bad(rel, 0, f"no test mirrors it; write {candidates(rel)[0]}"
                      + (f" or {candidates(rel)[-1]}" if rel.startswith("src/kernel/") else "")
                      + f", or give a reason in {LIST}")
        listed += tests
    for test in listed:
        if not is_built(check, test):
            check.bad(test, 0, "is not named in the CMakeLists.txt of its folder, so it never runs")
    check.done(f"{n_mirrored} of {len(sources)} files mirrored, {len(exceptions)} exceptions")


if __name__ == "__main__":
    main()
