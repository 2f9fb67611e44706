#!/usr/bin/env python3
"""Checks banned calls in the sources and banned symbols in the libraries.

Calls: src/ and include/ may call none of BANNED, except where ALLOWED says why. Symbols: the rooms of
NO_LIBM must not need a transcendental function of libm, since its results differ between versions of
the C library (law 2); fma, sqrt, floor and their like are exact and fine. Give the libraries as
arguments; one that is not built yet is simply not given.
"""

import os
import re
import subprocess
import sys

from checklib import Check, line_of, strip_c

# call: what to use instead
BANNED = {
    "malloc": "mem_alloc", "calloc": "mem_array", "realloc": "mem_resize", "free": "mem_free",
    "aligned_alloc": "mem_alloc", "posix_memalign": "mem_alloc", "memalign": "mem_alloc",
    "strdup": "mem_strndup", "strndup": "mem_strndup", "asprintf": "snprintf", "vasprintf": "vsnprintf",
    "alloca": "an arena", "strcpy": "memcpy or snprintf", "strcat": "snprintf", "strncpy": "memcpy",
    "strncat": "snprintf", "sprintf": "snprintf", "vsprintf": "vsnprintf", "gets": "fgets",
    "strtok": "strcspn", "rand": "a counter-based generator", "srand": "a counter-based generator",
    "random": "a counter-based generator", "drand48": "a counter-based generator",
    "exit": "a status", "_exit": "a status", "_Exit": "a status", "quick_exit": "a status",
    "abort": "FERRY_ASSERT or a status", "assert": "FERRY_ASSERT", "printf": "log_write or a status",
    "vprintf": "log_write or a status", "puts": "log_write or a status",
    "putchar": "log_write or a status", "perror": "a struct ferry_error", "system": "posix_spawn",
    "popen": "posix_spawn", "tmpnam": "mkstemp", "mktemp": "mkstemp", "setenv": "an option",
}
# A path, or a folder ending in '/', and the calls that it may make, each with a reason.
ALLOWED = {
    "src/base/alloc.c": {"aligned_alloc": "the one road to the heap", "free": "the one road to the heap"},
    "src/base/assert.c": {"abort": "the end of a process that found its own bug"},
    "src/app/": {"printf": "the application talks to the user", "puts": "the application talks to the user",
                 "putchar": "the application talks to the user",
                 "vprintf": "the application talks to the user"},
    "src/app/main.c": {"exit": "the process ends here", "_exit": "at exit nothing else can change the code"},
    "src/app/output.c": {"free": "the path that realpath made"},
    "src/app/options.c": {"exit": "wrong usage, found inside an argp callback before anything is open"},
    "src/app/verb_run.c": {"free": "the buffer of getline"},
    "src/file/fault.c": {"_exit": "a SIGBUS handler cannot return to a read of a file that shrank"},
}
NO_LIBM = ("kernel", "routing", "model", "engine")
ROOTS = """exp exp2 exp10 expm1 log log2 log10 log1p pow sin cos tan sincos asin acos atan atan2 sinh cosh
tanh asinh acosh atanh erf erfc lgamma tgamma cbrt hypot""".split()
BANNED_SYMBOLS = {root + end for root in ROOTS for end in ("", "f", "l")} | {
    f"__{root}{end}_finite" for root in ROOTS for end in ("", "f")}
BANNED_PREFIXES = ("_ZGV", "cblas_", "sgemm_", "dgemm_")  # libmvec, BLAS


def allowed_in(rel, call):
    return any(call in calls for path, calls in ALLOWED.items()
               if rel == path or (path.endswith("/") and rel.startswith(path)))


def check_calls(check):
    pattern = re.compile(r"(?<![\w.>])(" + "|".join(BANNED) + r")\s*\(")
    files = check.files(["src", "include"], [".c", ".h"])
    for rel in files:
        text = strip_c(check.read(rel))
        for call in pattern.finditer(text):
            name = call.group(1)
            if not allowed_in(rel, name):
                check.bad(rel, line_of(text, call.start()),
                          f"calls {name}(); use {BANNED[name]} (list: tools/check_banned.py)")
        for macro in re.finditer(r"\b__(DATE|TIME|TIMESTAMP)__\b", text):
            check.bad(rel, line_of(text, macro.start()), f"{macro.group(0)} makes builds differ")
    return len(files)


def check_symbols(check, nm):
    n_seen = 0
    for library in check.args.libraries:
        base = os.path.basename(library)
        room = base.removeprefix("libferry_").removesuffix(".a")
        if room not in NO_LIBM:
            continue
        run = subprocess.run([nm, "-A", "-u", library], capture_output=True, text=True, check=False)
        if run.returncode != 0:
            print(f"check_banned: {nm} cannot read {library}: {run.stderr.strip()}", file=sys.stderr)
            sys.exit(2)
        n_seen += 1
        for line in run.stdout.splitlines():
            where, _, symbol = line.rpartition(" U ")
            symbol = symbol.strip().split("@")[0]
            if symbol in BANNED_SYMBOLS or symbol.startswith(BANNED_PREFIXES):
                member = where.split(":")[1] if ":" in where else where
                check.bad(base, 0, f"{member.strip()} needs '{symbol}' of libm; use the functions of "
                          "src/kernel/math.c")
    return n_seen


def add_arguments(parser):
    parser.add_argument("--nm", default="nm", help="the nm to use")
    parser.add_argument("libraries", nargs="*", help="libferry_*.a to look into")


def main():
    check = Check("check_banned", __doc__, add_arguments)
    n_files = check_calls(check)
    n_libraries = check_symbols(check, check.args.nm)
    check.done(f"{n_files} files, {n_libraries} of {len(NO_LIBM)} libraries")


if __name__ == "__main__":
    main()
