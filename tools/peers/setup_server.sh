#!/bin/sh
# Builds llama.cpp's HTTP server, from the same pinned source and with the same settings as the
# libraries that setup.sh makes, for bench/peers/serve.py.
#
# What: the program llama-server and its own copies of the libraries, in lib/llama-server/ of the
#       peer's environment.
# Why apart: the server pulls in twice as much code as the libraries; most who measure never need it.
# Must not: use another source or other settings than setup.sh names; its numbers would be no peer's.
#
# Usage: tools/peers/setup_server.sh [FOLDER]
#   FOLDER  default ${FERRY_CACHE:-$HOME/.cache/ferry}/peers-venv
# Takes 10 to 30 minutes (one compile job at low priority; PEER_JOBS=2 for two) and 900 MB while it
# runs. Running it again is cheap. Exit 0 when the server is usable.
set -eu

here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd)
venv=${1:-${FERRY_CACHE:-$HOME/.cache/ferry}/peers-venv}
jobs=${PEER_JOBS:-1}

say() { printf 'peers: %s\n' "$*"; }
die() { printf 'peers: error: %s\n' "$*" >&2; exit 1; }
named() { sed -n "s/^$1='\(.*\)'\$/\1/p" "$here/setup.sh"; } # a constant of setup.sh

"$here/setup.sh" "$venv" >/dev/null
package=$(named PEER_PACKAGE)
hash=$(named PEER_HASH)
commit=$(named PEER_COMMIT)
[ -n "$package" ] && [ -n "$hash" ] && [ -n "$commit" ] || die "setup.sh names no package, hash and commit"

stamp="$venv/ferry-peer-server"
if ! [ -x "$venv/lib/llama-server/llama-server" ] || ! cmp -s "$stamp" "$venv/ferry-peer"; then
    work=$(mktemp -d "$venv/work.XXXXXX")
    trap 'rm -rf "$work"' EXIT
    say "fetching the source of $package (77 MB)"
    printf '%s --hash=%s\n' "$package" "$hash" >"$work/requirements.txt"
    "$venv/bin/python" -m pip download -q --disable-pip-version-check --no-deps --require-hashes \
        --no-binary llama-cpp-python -d "$work" -r "$work/requirements.txt"
    tar -C "$work" -xzf "$work"/llama_cpp_python-*.tar.gz
    say "compiling llama-server $commit for this CPU with $jobs job(s), log in $venv/build-server.log"
    # As in setup.sh, plus the server; no TLS and no web page: the benchmark uses neither.
    {
        nice -n 10 cmake -G Ninja -S "$work"/llama_cpp_python-*/vendor/llama.cpp -B "$work/build" \
            -DCMAKE_BUILD_TYPE=Release -DBUILD_SHARED_LIBS=ON -DGGML_NATIVE=ON \
            -DGGML_CPU_REPACK=ON -DGGML_OPENMP=ON -DGGML_CCACHE=OFF \
            -DCMAKE_BUILD_WITH_INSTALL_RPATH=ON -DCMAKE_INSTALL_RPATH='$ORIGIN' \
            -DLLAMA_BUILD_NUMBER=0 -DLLAMA_BUILD_COMMIT="$commit" \
            -DLLAMA_BUILD_COMMON=ON -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_TOOLS=ON \
            -DLLAMA_BUILD_EXAMPLES=OFF -DLLAMA_BUILD_SERVER=ON -DLLAMA_BUILD_APP=OFF \
            -DLLAMA_BUILD_UI=OFF -DLLAMA_USE_PREBUILT_UI=OFF -DLLAMA_OPENSSL=OFF &&
            nice -n 10 ninja -C "$work/build" -j "$jobs" llama-server
    } >"$venv/build-server.log" 2>&1 || die "the build failed; the end of $venv/build-server.log says why"
    rm -rf "$venv/lib/llama-server"
    mkdir -p "$venv/lib/llama-server"
    cp -P "$work"/build/bin/lib*.so* "$work/build/bin/llama-server" "$venv/lib/llama-server/"
    cp "$venv/ferry-peer" "$stamp"
fi
"$venv/lib/llama-server/llama-server" --version 2>&1 | sed 's/^/peers: /'
say "ready: $venv/lib/llama-server/llama-server"
