#!/bin/sh
# Installs the peer that Ferry's speed and accuracy are compared with: one pinned llama.cpp build.
#
# What: a Python virtual environment with numpy and, in lib/llama/, llama.cpp's shared libraries
#       compiled for this very CPU from the source that the llama-cpp-python package carries.
# Why here: benches and oracles must name the peer they measured; this file is that name.
# Must not: touch anything outside the environment folder, except missing Debian packages (said
#       aloud before they are installed).
#
# Why from source: the ready-made wheels need a newer C library than Debian 12 has, or are not
# built for the CPU at hand; a peer that leaves vector units unused would be no fair peer.
#
# Usage: tools/peers/setup.sh [FOLDER]
#   FOLDER  default ${FERRY_CACHE:-$HOME/.cache/ferry}/peers-venv
# Takes 5 to 20 minutes (one compile job at low priority; PEER_JOBS=2 for two) and 600 MB while it
# runs, 100 MB after. Running it again is cheap. Exit 0 when the peer is usable.
set -eu

# The peer: llama.cpp 0.5.0, commit 0c1e57098 (2026-10), ggml 0.25.3.
PEER_PACKAGE='llama-cpp-python==0.3.36'
PEER_HASH='sha256:832db0699007f1be95a7e41ef12e88926b02ba836461e36a36372db2760c1a2e'
PEER_COMMIT='0c1e57098'
PEER_DEPS='numpy==2.4.6'

here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd)
venv=${1:-${FERRY_CACHE:-$HOME/.cache/ferry}/peers-venv}
jobs=${PEER_JOBS:-1}

say() { printf 'peers: %s\n' "$*"; }
die() { printf 'peers: error: %s\n' "$*" >&2; exit 1; }

need_packages() {
    missing=''
    # ensurepip marks python3-venv; without it "python3 -m venv" fails half way.
    /usr/bin/python3 -c 'import ensurepip, venv' 2>/dev/null || missing="$missing python3-venv"
    command -v cmake >/dev/null || missing="$missing cmake"
    command -v ninja >/dev/null || missing="$missing ninja-build"
    command -v g++ >/dev/null || missing="$missing g++"
    [ -z "$missing" ] && return 0
    say "installing Debian packages:$missing"
    sudo=''
    if [ "$(id -u)" != 0 ]; then
        command -v sudo >/dev/null || die "need$missing: install them, or run as root or with sudo"
        sudo=sudo
    fi
    $sudo apt-get update -qq
    # shellcheck disable=SC2086
    $sudo env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $missing
}

fetch_source() {
    say "fetching the source of $PEER_PACKAGE (77 MB)"
    printf '%s --hash=%s\n' "$PEER_PACKAGE" "$PEER_HASH" >"$work/requirements.txt"
    "$venv/bin/python" -m pip download -q --disable-pip-version-check --no-deps --require-hashes \
        --no-binary llama-cpp-python -d "$work" -r "$work/requirements.txt"
    tar -C "$work" -xzf "$work"/llama_cpp_python-*.tar.gz
    grep -q "llama.cpp@$PEER_COMMIT" "$work"/llama_cpp_python-*/CHANGELOG.md ||
        die "$PEER_PACKAGE does not name llama.cpp commit $PEER_COMMIT in its changelog"
}

build() {
    say "compiling llama.cpp $PEER_COMMIT for this CPU with $jobs job(s), log in $venv/build.log"
    # GGML_NATIVE is -march=native; repacked matmuls and OpenMP are llama.cpp's own defaults.
    {
        nice -n 10 cmake -G Ninja -S "$work"/llama_cpp_python-*/vendor/llama.cpp -B "$work/build" \
            -DCMAKE_BUILD_TYPE=Release -DBUILD_SHARED_LIBS=ON -DGGML_NATIVE=ON \
            -DGGML_CPU_REPACK=ON -DGGML_OPENMP=ON -DGGML_CCACHE=OFF \
            -DCMAKE_BUILD_WITH_INSTALL_RPATH=ON -DCMAKE_INSTALL_RPATH='$ORIGIN' \
            -DLLAMA_BUILD_NUMBER=0 -DLLAMA_BUILD_COMMIT="$PEER_COMMIT" \
            -DLLAMA_BUILD_COMMON=OFF -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_TOOLS=OFF \
            -DLLAMA_BUILD_EXAMPLES=OFF -DLLAMA_BUILD_SERVER=OFF &&
            nice -n 10 ninja -C "$work/build" -j "$jobs" llama
    } >"$venv/build.log" 2>&1 || die "the build failed; the end of $venv/build.log says why"
    rm -rf "$venv/lib/llama"
    mkdir -p "$venv/lib/llama"
    cp -P "$work"/build/bin/lib*.so* "$venv/lib/llama/"
}

[ "$(uname -m)" = x86_64 ] || say "note: not an x86-64 machine; the AVX2 check is skipped"
need_packages

if [ ! -x "$venv/bin/python" ]; then
    say "creating $venv"
    mkdir -p "$(dirname -- "$venv")"
    /usr/bin/python3 -m venv "$venv"
fi

# The stamp holds everything the result depends on, the CPU included.
stamp="$venv/ferry-peer"
cpu=$(grep -m1 '^flags' /proc/cpuinfo 2>/dev/null | md5sum | cut -c1-12)
want="$PEER_PACKAGE $PEER_HASH $PEER_DEPS $cpu"
if [ "$(cat "$stamp" 2>/dev/null || true)" != "$want" ]; then
    # shellcheck disable=SC2086
    "$venv/bin/python" -m pip install -q --disable-pip-version-check --only-binary :all: $PEER_DEPS
    work=$(mktemp -d "$venv/work.XXXXXX")
    trap 'rm -rf "$work"' EXIT
    fetch_source
    build
    printf '%s\n' "$PEER_COMMIT" >"$venv/lib/llama/commit"
    printf '%s\n' "$PEER_PACKAGE" >"$venv/lib/llama/package"
    printf '%s\n' "$want" >"$stamp"
fi

# Loads the library and refuses a build that leaves this CPU's vector units unused.
"$venv/bin/python" "$here/llama.py" info
say "ready: $venv"
