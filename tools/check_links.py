#!/usr/bin/env python3
"""Checks what the documents point at: file:function rows of ARCHITECTURE.md, and relative links.

A row names "room/file.c:function" (relative to src/); the file must exist and define the function. In
all Markdown files, links and images to files of the repository must exist. Without ARCHITECTURE.md
only the links are checked.
"""

import os
import re

from checklib import Check, line_of, strip_c

ROW = re.compile(r"(?<![\w/])((?:[\w-]+/)+[\w-]+\.[ch]):([A-Za-z_]\w*)")
LINK = re.compile(r"\]\(<?([^)\s>]+)>?(?:\s+\"[^\"]*\")?\)")


def defines(text, function):
    """True when the C text defines the function (a body follows), or the macro, type or table."""
    code = strip_c(text)
    body = re.compile(rf"^[A-Za-z_][^;{{}}#]*?\b{function}\s*\([^;{{}}]*\)\s*\{{", re.M)
    other = re.compile(rf"^#\s*define\s+{function}\b|^(?:struct|enum)\s+{function}\s*\{{"
                       rf"|\b{function}\s*(?:\[[^\]]*\])*\s*=", re.M)
    return bool(body.search(code) or other.search(code))


def check_rows(check):
    if not check.exists("ARCHITECTURE.md"):
        return 0
    text = check.read("ARCHITECTURE.md")
    rows = list(ROW.finditer(text))
    for row in rows:
        path, function = row.groups()
        rel = path if path.startswith(("src/", "include/", "tests/", "bench/", "tools/")) else f"src/{path}"
        line = line_of(text, row.start())
        if not check.exists(rel):
            check.bad("ARCHITECTURE.md", line, f"'{path}' does not exist (looked for {rel})")
        elif not defines(check.read(rel), function):
            check.bad("ARCHITECTURE.md", line, f"'{rel}' does not define '{function}'")
    return len(rows)


def check_relative_links(check):
    n_links = 0
    for rel in check.tracked():
        if not rel.endswith(".md"):
            continue
        text = re.sub(r"```.*?```|`[^`\n]*`", lambda m: re.sub(r"[^\n]", " ", m.group(0)),
                      check.read(rel), flags=re.S)
        for link in LINK.finditer(text):
            target = link.group(1).split("#")[0]
            if not target or re.match(r"[a-z][a-z0-9+.-]*:", target):
                continue
            n_links += 1
            base = check.root if target.startswith("/") else os.path.dirname(check.path(rel))
            if not os.path.exists(os.path.join(base, target.lstrip("/"))):
                check.bad(rel, line_of(text, link.start()), f"link to '{target}', which does not exist")
    return n_links


def main():
    check = Check("check_links", __doc__)
    n_rows = check_rows(check)
    n_links = check_relative_links(check)
    check.done(f"{n_rows} rows, {n_links} links"
               + ("" if check.exists("ARCHITECTURE.md") else "; no ARCHITECTURE.md yet"))


if __name__ == "__main__":
    main()
