#!/usr/bin/env python3
"""Checks that every header compiles alone, twice in a row, and that public ones are C99 and C++ too.

For each header of src/ and include/ a one-line C file is compiled for syntax only, with the warnings
of the build. Guards must be named after the path.
"""

import concurrent.futures
import os
import re
import shutil
import subprocess

from checklib import Check

WARNINGS = """-Wall -Wextra -Wconversion -Wshadow -Wstrict-prototypes -Wmissing-prototypes -Wvla -Wundef
-Wpointer-arith -Werror""".split()
# An inline function that a lone header does not call is no mistake.
C11 = ["-xc", "-std=c11", "-D_GNU_SOURCE", "-Wno-unused-function"]
C99 = ["-xc", "-std=c99", "-pedantic"]
CXX = ["-xc++", "-std=c++11", "-Wall", "-Wextra", "-Werror", "-pedantic"]


def compile_alone(check, compiler, flags, header):
    """Empty, or what the compiler says."""
    source = f'#include "{header}"\n#include "{header}"\nextern int ferry_header_alone;\n'
    x86 = ["-mavx2", "-mfma", "-mf16c"] if "/x86/" in header else []
    run = subprocess.run([compiler, "-fsyntax-only", *flags, *x86, "-I", check.path("src"), "-I",
                          check.path("include"), "-"], input=source, text=True, capture_output=True,
                         check=False)
    return "" if run.returncode == 0 else run.stderr


def check_guard(check, rel, header):
    want = re.sub(r"\W", "_", header).upper()
    text = check.read(rel)
    if not re.search(rf"^#ifndef {want}\n#define {want}$", text, re.M):
        check.bad(rel, 0, f"wants the guard '#ifndef {want}' / '#define {want}', no pragma")


def add_arguments(parser):
    parser.add_argument("--cc", default="cc", help="C compiler")
    parser.add_argument("--cxx", default="", help="C++ compiler (default: g++ or clang++ if there is one)")


def main():
    check = Check("check_headers", __doc__, add_arguments)
    cxx = check.args.cxx or shutil.which("g++") or shutil.which("clang++")
    jobs = []
    headers = check.files(["src", "include"], [".h"])
    for rel in headers:
        header = rel.split(os.sep, 1)[1]
        check_guard(check, rel, header)
        jobs.append((rel, "C11", check.args.cc, WARNINGS + C11, header))
        if rel.startswith("include"):
            jobs.append((rel, "C99", check.args.cc, C99 + ["-Wall", "-Wextra", "-Werror"], header))
            if cxx:
                jobs.append((rel, "C++", cxx, CXX, header))
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        results = pool.map(lambda job: compile_alone(check, job[2], job[3], job[4]), jobs)
        for (rel, language, *_), said in zip(jobs, results):
            if said:
                first = next((l for l in said.splitlines() if "error" in l), said.splitlines()[0])
                check.bad(rel, 0, f"does not compile alone as {language}: {first.strip()}")
    check.done(f"{len(headers)} headers" + ("" if cxx else ", no C++ compiler: C++ not checked"))


if __name__ == "__main__":
    main()
