#!/usr/bin/env bash
# Regenerates every golden vector from scratch and compares it with the committed ones; --write replaces those instead.
# --quick keeps the committed seeds and prompts and runs only transformers again.
# Sets up its own environment first. On one free core about 8 minutes, most of it the search for prompts with wide
# gaps; --quick takes 1.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
golden=$here/../../tests/oracle/golden
python=$("$here/setup.sh")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 PYTHONDONTWRITEBYTECODE=1

"$python" "$here/check_quants.py"
if [ "${1:-}" = --quick ]; then
    "$python" "$here/router_vectors.py" --out "$work/router.json" --compare "$golden/router.json"
    "$python" "$here/sampling_vectors.py" --out "$work/sampling.json" --compare "$golden/sampling.json"
    "$python" "$here/reference.py" --cases "$golden/manifest.json" --out "$work/golden" --compare "$golden"
    exit
fi
"$python" "$here/make_cases.py" --out "$work/cases.json"
"$python" "$here/router_vectors.py" --out "$work/router.json"
"$python" "$here/sampling_vectors.py" --out "$work/sampling.json"
if [ "${1:-}" = --write ]; then
    "$python" "$here/reference.py" --cases "$work/cases.json" --out "$golden"
    cp "$work/router.json" "$work/sampling.json" "$golden/"
    exit
fi
"$python" "$here/reference.py" --cases "$work/cases.json" --out "$work/golden" --compare "$golden"
"$python" "$here/router_vectors.py" --out "$work/router.json" --compare "$golden/router.json"
"$python" "$here/sampling_vectors.py" --out "$work/sampling.json" --compare "$golden/sampling.json"
