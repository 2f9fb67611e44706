#!/usr/bin/env bash
# Installs clients that others wrote, for tests/integration/test_serve_clients.py.
#
#   tools/clients/setup.sh          the openai package: 70 MB
#   tools/clients/setup.sh --load   also aiperf, a load generator that cancels: 1.2 GB more
#
# Each has an environment of its own below ${FERRY_CACHE:-~/.cache/ferry}: clients-venv, aiperf-venv.
# Running it again is cheap.
set -euo pipefail

cache=${FERRY_CACHE:-$HOME/.cache/ferry}

install() { # install FOLDER PACKAGE
    local venv=$cache/$1 package=$2
    [ "$(cat "$venv/.package" 2>/dev/null || true)" = "$package" ] && return 0
    echo "clients: installing $package into $venv"
    /usr/bin/python3 -m venv "$venv" || {
        echo "clients: python3 -m venv failed; as root: apt-get install python3-venv" >&2
        return 1
    }
    "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --only-binary :all: "$package"
    echo "$package" >"$venv/.package"
}

case "${1:-}" in
"") install clients-venv openai==3.57.0 ;;
--load)
    install clients-venv openai==3.57.0
    install aiperf-venv aiperf==0.13.0
    ;;
-h | --help) sed -n '2,8s/^# \{0,1\}//p' "$0" ;;
*) echo "clients: there is no option '$1'; --help lists them" >&2; exit 2 ;;
esac
