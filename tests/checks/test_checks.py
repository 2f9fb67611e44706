#!/usr/bin/env python3
"""Tests the checks themselves: in a small tree each of them passes, and fails for each planted fault.

Why: a check that can no longer fail protects nothing. Each case plants one fault into a fresh copy of
a clean tree and wants exit status 1 and a message that names it.
"""

import argparse
import contextlib
import importlib
import io
import os
import shutil
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
TOOLS = os.path.join(HERE, "..", "..", "tools")
sys.dont_write_bytecode = True
sys.path.insert(0, TOOLS)

GUARDED = "/* Head. */\n#ifndef {0}\n#define {0}\n\n{1}\n#endif\n"
CLEAN = {
    "src/base/CMakeLists.txt": "ferry_room(base SOURCES one.c)\n",
    "src/base/one.h": GUARDED.format("BASE_ONE_H", "int one(void);\n"),
    "src/base/one.c": '/* Head. */\n#include "base/one.h"\n\nint one(void)\n{\n    return 1;\n}\n',
    "src/tensor/CMakeLists.txt": "ferry_room(tensor\n    SOURCES two.c # two\n    DEPS base)\n",
    "src/tensor/two.c": '/* Head. */\n#include "base/one.h"\n\n/* free( and "x" in a comment */\n'
                        'static const char TEXT[] = "malloc(1)";\n',
    "src/kernel/CMakeLists.txt": "ferry_room(kernel SOURCES ref/mul_q4.c DEPS tensor)\n",
    "src/kernel/ref/mul_q4.c": '/* Head. */\n#include "base/one.h"\n',
    "include/ferry/pub.h": GUARDED.format("FERRY_PUB_H", "int ferry_pub(void);\n"),
    "tests/unit/base/CMakeLists.txt": "foreach(name one)\n",
    "tests/unit/base/test_one.c": "/* Head. */\n",
    "tests/unit/tensor/CMakeLists.txt": "ferry_test(t SOURCES test_two.c)\n",
    "tests/unit/tensor/test_two.c": "/* Head. */\n",
    "tests/kernel/CMakeLists.txt": "ferry_test(t SOURCES test_mul.c)\n",
    "tests/kernel/test_mul.c": "/* Head. */\n",
    "tools/a.py": '#!/usr/bin/env python3\n"""Head."""\n',
    "README.md": "See [the source](src/base/one.c#L1), [web](https://example.org/x) and `[no](link)`.\n",
    "ARCHITECTURE.md": "| room | what | may include |\n|---|---|---|\n| `tensor` | x | base |\n| base | x | - |\n\n"
                       "| 1 | hop | base/one.c:one | engine |\n",
}
LONG = "    x = 1;\n"

# (check, {path: new text, or None to remove it}, what the message must hold)
FAULTS = [
    ("rooms", {"src/base/one.c": '/* Head. */\n#include "tensor/two.h"\n', "src/tensor/two.h": "x"},
     "src/base/one.c:2: room 'base' may not include 'tensor/two.h'; it may include: nothing"),
    ("rooms", {"src/base/one.c": '#  include   "one.h"\n'}, 'write includes from src/, as "base/one.h"'),
    ("rooms", {"src/tensor/two.c": '#include "base/gone.h"\n'}, "does not exist below src/"),
    ("rooms", {"src/tensor/CMakeLists.txt": "ferry_room(tensor SOURCES two.c)\n"},
     "src/tensor/two.c:2: room 'tensor' includes 'base/one.h' but its DEPS"),
    ("rooms", {"src/base/CMakeLists.txt": "ferry_room(base SOURCES one.c DEPS tensor LIBS m)\n"},
     "src/base/CMakeLists.txt:1: room 'base' may not depend on 'tensor'"),
    ("rooms", {"src/cellar/CMakeLists.txt": "ferry_room(cellar SOURCES a.c)\n"},
     "room 'cellar' is not in the arrow list"),
    ("rooms", {"src/cellar/a.c": '#include "base/one.h"\n'}, "room 'cellar' is not in the arrow list"),
    ("rooms", {"ARCHITECTURE.md": "| room | may include |\n|--|--|\n| tensor | file |\n"},
     "the table says 'tensor' may include 'file'"),
    ("mirror", {"tests/unit/base/test_one.c": None}, "src/base/one.c: no test mirrors it"),
    ("mirror", {"tests/kernel/test_mul.c": None}, "src/kernel/ref/mul_q4.c: no test mirrors it"),
    ("mirror", {"src/app/verb_x.c": "/* Head. */\n"}, "src/app/verb_x.c: no test mirrors it"),
    ("mirror", {"tests/unit/base/CMakeLists.txt": "# one\n"}, "test_one.c: is not named in the CMakeLists.txt"),
    ("mirror", {"tools/mirror_exceptions.txt": "src/base/one.c: covered by another test elsewhere\n"},
     "has a test now; remove the line"),
    ("mirror", {"tests/unit/base/test_one.c": None, "tools/mirror_exceptions.txt": "src/base/one.c: no\n"},
     "has no written reason"),
    ("mirror", {"tools/mirror_exceptions.txt": "src/base/gone.c: there was a reason once\n"}, "does not exist"),
    ("banned", {"src/base/one.c": "void *f(void)\n{\n    return malloc (3);\n}\n"},
     "src/base/one.c:3: calls malloc(); use mem_alloc"),
    ("banned", {"src/base/alloc.c": "void f(char *p)\n{\n    free(p);\n    printf(p);\n}\n"},
     "src/base/alloc.c:4: calls printf()"),
    ("banned", {"src/base/one.h": "static inline void f(char *a)\n{\n    strcpy(a, a);\n}\n"}, "calls strcpy()"),
    ("banned", {"src/base/one.c": "const char *T = __DATE__;\n"}, "__DATE__ makes builds differ"),
    ("headers", {"src/base/one.h": GUARDED.format("BASE_ONE_H", "size_t one(void);\n")},
     "src/base/one.h: does not compile alone as C11"),
    ("headers", {"src/base/one.h": GUARDED.format("ONE_H", "int one(void);\n")}, "wants the guard '#ifndef BASE_ONE_H'"),
    ("headers", {"src/base/one.h": "/* Head. */\n#pragma once\nint one(void);\n"}, "wants the guard"),
    ("headers", {"include/ferry/pub.h": GUARDED.format("FERRY_PUB_H", "_Static_assert(1, \"C11\");\n")},
     "include/ferry/pub.h: does not compile alone as C99"),
    ("headers", {"include/ferry/pub.h": GUARDED.format("FERRY_PUB_H", "int ferry_pub(int class);\n")},
     "include/ferry/pub.h: does not compile alone as C++"),
    ("style", {"src/base/one.c": "/* Head. */\n" + "\n" * 1500}, "1501 lines, over 1500"),
    ("style", {"src/base/one.c": "/* Head. */\n" + "\n" * 1000}, "1001 lines, over 1000"),
    ("style", {"src/base/one.c": "/* Head. */\nint one(void)\n{\n" + LONG * 101 + "}\n"},
     "src/base/one.c:3: function one: 101 lines, over 100"),
    ("style", {"src/base/one.c": "/* Head. */\n// " + "x" * 98 + "\n"}, "src/base/one.c:2: 101 columns, over 100"),
    ("style", {"src/base/one.c": "/* Head. */\n\tint x;\n"}, "a tab"),
    ("style", {"src/base/one.c": "/* Head. */\nint x; \n"}, "blanks at the end"),
    ("style", {"src/base/one.c": "int x;\n"}, "src/base/one.c:1: no head comment"),
    ("style", {"tools/a.py": "import os\n"}, "tools/a.py:1: no head comment"),
    ("style", {"tools/a.sh": "#!/bin/sh\nset -eu\n"}, "tools/a.sh:1: no head comment"),
    ("style", {"README.md": "cd /root/ferry\n"}, "README.md:1: '/root': a path of one machine"),
    ("style", {"README.md": "\ncp x /tmp/y.bin\n"}, "README.md:2: '/tmp/y.bin': a path of one machine"),
    ("style", {"README.md": "(/home/someone/x)\n"}, "a path of one machine"),
    ("style", {"a.txt": "https://pypi" ".org/simple\n"}, "a.txt:1: 'pypi" ".org': host of a package registry"),
    ("style", {"a.txt": "deb http://deb.debian" ".org/debian x\n"}, "host of a package registry"),
    ("links", {"ARCHITECTURE.md": "| 1 | base/gone.c:one |\n"}, "'base/gone.c' does not exist"),
    ("links", {"ARCHITECTURE.md": "\n| 1 | base/one.c:two |\n"},
     "ARCHITECTURE.md:2: 'src/base/one.c' does not define 'two'"),
    ("links", {"ARCHITECTURE.md": "| 1 | base/one.h:one |\n"}, "does not define 'one'"),  # declared only
    ("links", {"README.md": "![x](docs/gone.png)\n"}, "README.md:1: link to 'docs/gone.png'"),
    ("format", {"src/base/one.c": "/* Head. */\nint  one;\n"}, "differ from .clang-format"),
]
# Things that look like faults and are none.
GOOD = [
    ("style", {"README.md": "Use ${TMPDIR:-/tmp}, a/work/x, https://x.org/root/y and /workshop.\n"}),
    ("style", {"src/base/one.c": "/* Head. */\n/* clang-format off */\n// " + "x" * 110 + "\n/* clang-format on */\n"}),
    ("style", {"src/base/one.c": "/* Head. */\n" + "\n" * 1000,
               "tools/style_exceptions.txt": "src/base/one.c: one table that belongs together\n"}),
    ("mirror", {"tests/unit/base/test_one.c": None,
                "tools/mirror_exceptions.txt": "# note\nsrc/base/one.c: walked by the integration test\n"}),
    ("mirror", {"src/app/verb_x.c": "/* Head. */\n", "tests/integration/test_verb_x.sh": "# Head.\n"}),
    ("banned", {"src/base/one.c": "void f(struct x *p)\n{\n    p->free(p);\n    p.exit(1);\n    my_free(p);\n}\n"}),
    ("links", {"ARCHITECTURE.md": None}),
]


def write_tree(root, changes):
    for path, text in {**CLEAN, **changes}.items():
        full = os.path.join(root, path)
        if text is None:
            continue
        os.makedirs(os.path.dirname(full), exist_ok=True)
        with open(full, "w", encoding="utf-8") as f:
            f.write(text)
    shutil.copy(os.path.join(TOOLS, "..", ".clang-format"), root)


def run_check(name, root, args, extra=()):
    """Exit status and output; Python checks run inside this process, which saves a minute."""
    if name == "format":
        run = subprocess.run(["sh", os.path.join(TOOLS, "check_format.sh"), root], capture_output=True,
                             text=True, check=False)
        return run.returncode, run.stdout + run.stderr
    module = importlib.import_module(f"check_{name}")
    said = io.StringIO()
    old = sys.argv
    sys.argv = [name, "--root", root, *extra] + (["--cc", args.cc] if name == "headers" else [])
    try:
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            module.main()
        code = 0
    except SystemExit as end:
        code = end.code
    finally:
        sys.argv = old
    return code, said.getvalue()


def check_library(args, root):
    """A library of room kernel that needs expf is refused, one that needs fmaf is not."""
    faults = 0
    for function, want in (("expf", 1), ("fmaf", 0), ("sincos", 1), ("sqrtf", 0)):
        source = os.path.join(root, "x.c")
        with open(source, "w", encoding="utf-8") as f:
            f.write(f"float {function}(float);\nfloat g(float x);\nfloat g(float x)\n{{\n    return {function}(x);\n}}\n")
        library = os.path.join(root, "libferry_kernel.a")
        if os.path.exists(library):
            os.remove(library)
        subprocess.run([args.cc, "-w", "-fno-builtin", "-c", source, "-o", os.path.join(root, "x.o")], check=True)
        subprocess.run([args.ar, "rcs", library, os.path.join(root, "x.o")], check=True)
        code, said = run_check("banned", root, args, ["--nm", args.nm, library])
        if code != want or (want and f"x.o needs '{function}' of libm" not in said):
            print(f"FAIL banned symbol {function}: exit {code}\n{said}")
            faults += 1
    return faults


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--cc", default="cc")
    parser.add_argument("--nm", default="nm")
    parser.add_argument("--ar", default="ar")
    args = parser.parse_args()
    faults = n_skipped = 0
    names = ["rooms", "mirror", "banned", "headers", "style", "links", "format"]
    cases = [(n, {}, None) for n in names] + [(n, c, None) for n, c in GOOD] + FAULTS
    for name, changes, says in cases:
        root = tempfile.mkdtemp(prefix="ferry-checks-")
        try:
            write_tree(root, changes)
            code, said = run_check(name, root, args)
        finally:
            shutil.rmtree(root)
        if code == 77 or (says and "C++" in says and "no C++ compiler" in said):
            n_skipped += 1
        elif code != (1 if says else 0) or (says and says not in said):
            print(f"FAIL {name} with {changes}: exit {code}, wanted {says or 'a clean run'!r}\n{said}")
            faults += 1
    root = tempfile.mkdtemp(prefix="ferry-checks-")
    try:
        write_tree(root, {})
        faults += check_library(args, root)
    finally:
        shutil.rmtree(root)
    print(f"test_checks: {len(cases) + 4} cases, {n_skipped} skipped, {faults} failed")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
