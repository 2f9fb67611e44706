"""Calls the pinned llama.cpp (tools/peers) and ferry for logits of token ids; shared by the
comparisons with peers.

What: peer_python(), peer_logits(), ferry_logits(), row_distances().
Why here: two scripts compare GGUF files with llama.cpp; both must call it the same way.
Must not know: what is compared, and any bound.
"""

import os
import subprocess
import sys

import numpy as np

from weights import read_safetensors

HERE = os.path.dirname(os.path.abspath(__file__))


def peer_python():
    """The interpreter of tools/peers' environment; exits with what to do when it is not there."""
    cache = os.environ.get("FERRY_CACHE") or os.path.join(
        os.path.expanduser("~"), ".cache", "ferry"
    )
    path = os.path.join(cache, "peers-venv", "bin", "python")
    if not os.path.exists(path):
        sys.exit(f"oracle: no llama.cpp at {path}; run tools/peers/setup.sh first")
    return path


def _run(command, env=None):
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, check=False, env=env
    )
    if done.returncode:
        last = (
            done.stderr.decode(errors="replace").strip().splitlines() or ["(nothing on stderr)"]
        )[-1]
        raise RuntimeError(f"{os.path.basename(command[0])} exit {done.returncode}: {last}")


def peer_logits(python, model, ids, folder):
    """[n, vocab] f32 from llama.cpp with its default settings (KV f16, one thread here)."""
    out = os.path.join(folder, "peer.npy")
    _run(
        [
            python,
            os.path.join(HERE, "..", "peers", "llama.py"),
            "logits",
            model,
            "--ids",
            ",".join(map(str, ids)),
            "--out",
            out,
            "--threads",
            "1",
        ],
        env=dict(os.environ, PYTHONDONTWRITEBYTECODE="1"),
    )
    return np.load(out)


def ferry_logits(ferry, model, ids, folder, extra=()):
    """[n, vocab] f32 from ferry with its default settings."""
    ids_path, out = os.path.join(folder, "ids.txt"), os.path.join(folder, "ferry.safetensors")
    with open(ids_path, "w") as f:
        f.write(" ".join(map(str, ids)) + "\n")
    _run([ferry, "logits", model, "--ids-file", ids_path, "--out", out, *extra])
    return read_safetensors(out)["logits"]


def row_distances(got, want):
    """[n] RMS difference of each row in units of that row's standard deviation over the
    vocabulary."""
    if got.shape != want.shape:
        raise RuntimeError(f"logits have shape {got.shape}, expected {want.shape}")
    difference = (got.astype(np.float64) - want) / want.std(axis=1, keepdims=True)
    return np.sqrt(np.mean(difference**2, axis=1))
