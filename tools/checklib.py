"""What the repository checks share: arguments, finding files, C text without comments, reporting.

Why here: every check prints the same kind of line, "path:line: what is wrong; what to do", and ends
with exit status 0 (clean), 1 (findings) or 2 (cannot run). Only Python's own library is used.
"""

import argparse
import os
import re
import subprocess
import sys

SKIPPED_DIRS = {".git", "build", "__pycache__", ".venv", "node_modules"}


class Check:
    """One check run: the tree it looks at and what it found."""

    def __init__(self, name, doc, add_arguments=None):
        parser = argparse.ArgumentParser(prog=name, description=doc.strip().split("\n")[0])
        default = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
        parser.add_argument("--root", default=default, help="source tree (default: this repository)")
        if add_arguments:
            add_arguments(parser)
        self.name = name
        self.args = parser.parse_args()
        self.root = os.path.abspath(self.args.root)
        self.findings = []

    def path(self, *parts):
        return os.path.join(self.root, *parts)

    def exists(self, *parts):
        return os.path.exists(self.path(*parts))

    def read(self, rel):
        with open(self.path(rel), encoding="utf-8", errors="replace") as f:
            return f.read()

    def files(self, folders, endings):
        """Paths relative to the root, sorted, of files below `folders` that end so."""
        found = []
        for folder in folders:
            for base, dirs, names in os.walk(self.path(folder)):
                dirs[:] = sorted(d for d in dirs if d not in SKIPPED_DIRS)
                found += [os.path.relpath(os.path.join(base, n), self.root)
                          for n in names if n.endswith(tuple(endings))]
        return sorted(found)

    def tracked(self):
        """All files of the tree that git tracks; all files there are when it is no repository."""
        try:
            out = subprocess.run(["git", "-C", self.root, "ls-files", "-z"], capture_output=True,
                                 check=True).stdout.decode()
            if out:
                return sorted(p for p in out.split("\0") if p and os.path.isfile(self.path(p)))
        except (OSError, subprocess.CalledProcessError):
            pass
        return self.files(["."], [""])

    def bad(self, where, line, text):
        self.findings.append(f"{where}:{line}: {text}" if line else f"{where}: {text}")

    def reasons(self, rel):
        """The exception list `rel`: {path: reason}, lines "path: reason"; '#' starts a comment."""
        found = {}
        if not self.exists(rel):
            return found
        for number, line in enumerate(self.read(rel).splitlines(), 1):
            line = line.strip()
            if not line or line.startswith("#"):
                continue
            path, _, reason = line.partition(": ")
            if len(reason.strip()) < 15:
                self.bad(rel, number, f"'{path}' has no written reason; write 'PATH: why'")
            elif not self.exists(path):
                self.bad(rel, number, f"'{path}' does not exist; remove the line")
            elif path in found:
                self.bad(rel, number, f"'{path}' is listed twice")
            found[path] = reason.strip()
        return found

    def done(self, summary):
        for finding in self.findings:
            print(finding)
        if self.findings:
            print(f"{self.name}: {len(self.findings)} finding(s)")
            sys.exit(1)
        print(f"{self.name}: ok, {summary}")
        sys.exit(0)


_TOKENS = re.compile(r'/\*.*?\*/|//[^\n]*|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'', re.S)


def strip_c(text, keep_strings=False):
    """C text with comments (and the insides of literals) blanked; lines and columns stay."""
    def blank(match):
        token = match.group(0)
        if token[0] in "\"'":
            return token if keep_strings else token[0] + " " * (len(token) - 2) + token[-1]
        return re.sub(r"[^\n]", " ", token)
    return _TOKENS.sub(blank, text)


def line_of(text, position):
    return text.count("\n", 0, position) + 1
