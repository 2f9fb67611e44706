#!/bin/bash
# Make models/demo from nothing: environment, data, tokenizer, training, export, checks.
# What: the whole path in order. Why here: one command reproduces the demo model.
# Must not know: anything the Python files decide.
#
#   tools/train_demo/run.sh [MINUTES]     of training (default 115; one CPU thread): a third of them from
#                                         nothing, the rest from there with more code and mathematics
#   FERRY_CACHE   where downloads, the environment and checkpoints go (~/.cache/ferry)
#   DEMO_OUT      where the model goes (models/demo)
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
export FERRY_CACHE=${FERRY_CACHE:-$HOME/.cache/ferry} OMP_NUM_THREADS=1
out=${DEMO_OUT:-$here/../../models/demo}
minutes=${1:-115}
runs=$FERRY_CACHE/demo-train
python=$FERRY_CACHE/train-venv/bin/python
if [ ! -x "$python" ]; then
    echo "run.sh: making a Python environment in $FERRY_CACHE/train-venv (about 6 GB with torch)"
    mkdir -p "$FERRY_CACHE"
    python3 -m venv "$FERRY_CACHE/train-venv" ||
        { echo "run.sh: python3 -m venv failed; install python3-venv" >&2; exit 1; }
    "$python" -m pip install -q -r "$here/requirements.txt"
fi
"$python" "$here/fetch_data.py" >"$FERRY_CACHE/demo-data-stats.json"
mkdir -p "$out/heldout"
cp "$FERRY_CACHE"/demo-data/text/heldout/*.txt "$out/heldout/"
"$python" "$here/make_tokenizer.py" --out "$out"
"$python" "$here/train.py" --tokenizer "$out/tokenizer.json" --out "$runs-1" \
    --minutes "$((minutes / 3))"
"$python" "$here/train.py" --tokenizer "$out/tokenizer.json" --out "$runs-2" \
    --minutes "$((minutes - minutes / 3))" --init "$runs-1/checkpoint.pt" --seed 2 \
    --mix 34,37,15,14 --short 0.6
"$python" "$here/export.py" --checkpoint "$runs-2/checkpoint.pt" --out "$out"
"$python" "$here/plot_loss.py" "$runs-1/loss.csv" "$runs-2/loss.csv" --csv "$out/loss.csv" \
    --svg "$out/loss.svg"
"$python" "$here/eval_reference.py" "$out" >"$out/reference_eval.json"
"$python" "$here/eval_xz.py" --heldout "$out/heldout" >"$out/xz_eval.json"
"$python" "$here/check_export.py" "$out" >"$FERRY_CACHE/demo-check.json"
"$python" "$here/compare.py" "$out/reference_eval.json" "$out/xz_eval.json"
