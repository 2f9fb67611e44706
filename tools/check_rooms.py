#!/usr/bin/env python3
"""Checks the arrows between rooms: who may include and link whom.

Rules: every #include "room/..." in src/ goes along an arrow (arrows are transitive); every ferry_room()
in CMake lists only allowed DEPS; and the DEPS, followed to the end, reach every room that is included.
The table below is the list of record; a table with the columns "room" and "may include" in
ARCHITECTURE.md must say the same.
"""

import os
import re

from checklib import Check, line_of, strip_c

ARROWS = {
    "base": "",
    "metric": "base",
    "tensor": "base",
    "file": "tensor",
    "text": "file",
    "kernel": "tensor",
    "device": "kernel",
    "topology": "base",
    "routing": "kernel metric",
    "placement": "routing topology",
    "fabric": "topology metric",
    "exchange": "fabric placement device",
    "expert": "file device placement fabric",
    "model": "exchange expert",
    "engine": "model text",
    "observe": "metric",
    "serve": "engine observe",
    "train": "model text observe",
    "sim": "exchange observe",
    "app": "all",
}


def closure(direct):
    """{room: rooms reachable by one or more arrows}"""
    reach = {}

    def visit(room):
        if room not in reach:
            reach[room] = set()
            for nxt in direct.get(room, ()):
                reach[room] |= {nxt} | visit(nxt)
        return reach[room]

    for room in direct:
        visit(room)
    return reach


def check_cmake(check, allowed):
    """Returns {room: DEPS} of the rooms that are built."""
    deps = {}
    for rel in check.files(["src"], ["CMakeLists.txt"]):
        text = re.sub(r"#[^\n]*", "", check.read(rel))
        for call in re.finditer(r"ferry_room\(\s*(\w+)([^)]*)\)", text):
            room, line = call.group(1), line_of(text, call.start())
            words = re.search(r"\bDEPS\b(.*?)(?:\b(?:SOURCES|LIBS|AVX2)\b|$)", call.group(2), re.S)
            deps[room] = words.group(1).split() if words else []
            if room not in ARROWS:
                check.bad(rel, line, f"room '{room}' is not in the arrow list of tools/check_rooms.py")
                continue
            for dep in deps[room]:
                if dep not in allowed[room]:
                    check.bad(rel, line, f"room '{room}' may not depend on '{dep}'; it may on: "
                              + (", ".join(sorted(allowed[room])) or "nothing"))
    return deps


def check_includes(check, allowed, deps):
    linked = closure(deps)
    n_includes = 0
    for rel in check.files(["src"], [".c", ".h"]):
        room = rel.split(os.sep)[1]
        text = strip_c(check.read(rel), keep_strings=True)
        for inc in re.finditer(r'^[ \t]*#[ \t]*include[ \t]*"([^"]*)"', text, re.M):
            n_includes += 1
            path, line = inc.group(1), line_of(text, inc.start())
            if path.startswith("ferry/"):
                if not check.exists("include", path):
                    check.bad(rel, line, f'public header "{path}" does not exist')
                continue
            if "/" not in path or path.startswith("."):
                check.bad(rel, line, f'"{path}": write includes from src/, as "{room}/{path}"')
                continue
            target = path.split("/")[0]
            if not check.exists("src", path):
                check.bad(rel, line, f'"{path}" does not exist below src/')
            if room not in ARROWS:
                check.bad(rel, 0, f"room '{room}' is not in the arrow list of tools/check_rooms.py")
                break
            if target == room:
                continue
            if target not in allowed[room]:
                check.bad(rel, line, f"room '{room}' may not include '{path}'; it may include: "
                          + (", ".join(sorted(allowed[room])) or "nothing"))
            elif room in deps and target not in linked[room]:
                check.bad(rel, line, f"room '{room}' includes '{path}' but its DEPS in "
                          f"src/{room}/CMakeLists.txt do not reach '{target}'")
    return n_includes


def check_document(check):
    if not check.exists("ARCHITECTURE.md"):
        return
    rows = [[cell.strip().strip("`") for cell in line.strip().strip("|").split("|")]
            for line in check.read("ARCHITECTURE.md").splitlines() if line.startswith("|")]
    columns = None
    for row in rows:
        if "room" in row and "may include" in row:
            columns = (row.index("room"), row.index("may include"))
        elif columns and len(row) > max(columns) and row[columns[0]] in ARROWS:
            room, said = row[columns[0]], row[columns[1]]
            said = set(re.findall(r"[a-z]+", said))
            if said != set(ARROWS[room].split()):
                check.bad("ARCHITECTURE.md", 0, f"the table says '{room}' may include "
                          f"'{' '.join(sorted(said))}', tools/check_rooms.py '{ARROWS[room]}'")


def main():
    check = Check("check_rooms", __doc__)
    direct = {room: [r for r in ARROWS if r != room] if words == "all" else words.split()
              for room, words in ARROWS.items()}
    allowed = closure(direct)
    deps = check_cmake(check, allowed)
    n_includes = check_includes(check, allowed, deps)
    check_document(check)
    check.done(f"{n_includes} includes, {len(deps)} rooms built of {len(ARROWS)}")


if __name__ == "__main__":
    main()
