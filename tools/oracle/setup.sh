#!/usr/bin/env bash
# Makes the oracle's own Python environment and prints its interpreter's path.
# Only generating golden vectors needs it; replaying them needs python3 and python3-numpy alone.
# FERRY_CACHE moves it (default ~/.cache/ferry). About 6 GB of disk, 5 minutes on a fast line.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
venv=${FERRY_CACHE:-$HOME/.cache/ferry}/oracle-venv
stamp=$venv/.requirements
if ! cmp -s "$here/requirements.txt" "$stamp"; then
    echo "oracle: installing $(grep -c == "$here/requirements.txt") pinned packages into $venv" >&2
    python3 -m venv "$venv" || {
        echo "oracle: python3 -m venv failed; run: apt-get install python3-venv" >&2
        exit 1
    }
    "$venv/bin/python" -m pip install --quiet --disable-pip-version-check -r "$here/requirements.txt" >&2
    cp "$here/requirements.txt" "$stamp"
fi
echo "$venv/bin/python"
