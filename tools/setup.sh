#!/usr/bin/env bash
# Installs what Ferry is built with, from Debian packages, and says what it does. Sourced by ./run and ./test; does nothing when
# everything is there.

# What the build needs, and what ./run and the tests need on top.
FERRY_BUILD_PACKAGES="gcc cmake ninja-build pkg-config libc6-dev libjansson-dev libpcre2-dev libutf8proc-dev libssl-dev libmicrohttpd-dev libucx-dev"
FERRY_RUN_PACKAGES="curl"
FERRY_TEST_PACKAGES="curl iproute2 libcmocka-dev python3 python3-numpy python3-prometheus-client binutils clang clang-format xz-utils"
FERRY_CI_PACKAGES="libclang-rt-14-dev python3-venv curl"

# setup_packages PACKAGE...: installs those that are missing; root, or sudo.
setup_packages() {
    local missing=() package
    for package in "$@"; do
        [ "$(dpkg-query -W -f='${db:Status-Status}' "$package" 2>/dev/null)" = installed ] || missing+=("$package")
    done
    [ ${#missing[@]} -gt 0 ] || return 0
    local as_root=()
    if [ "$(id -u)" != 0 ]; then
        if ! command -v sudo >/dev/null; then
            echo "ferry: these Debian packages are missing and there is no sudo: ${missing[*]}" >&2
            echo "ferry: as root: apt-get install ${missing[*]}" >&2
            return 1
        fi
        as_root=(sudo)
    fi
    echo "ferry: installing Debian packages: ${missing[*]}"
    local log
    log=$(mktemp)
    if ! { "${as_root[@]}" apt-get -o DPkg::Lock::Timeout=300 update -q &&
        "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=300 install -y -q \
            --no-install-recommends "${missing[@]}"; } >"$log" 2>&1; then
        tail -n 20 "$log" >&2
        echo "ferry: apt-get failed; the lines above are its last" >&2
        rm -f "$log"
        return 1
    fi
    rm -f "$log"
}

# setup_progress LOG: takes what a build prints into LOG, and says how far it is, five times.
setup_progress() {
    awk -v log_file="$1" '
        { print > log_file; fflush(log_file) }
        /^\[[0-9]+\/[0-9]+\]/ {
            split(substr($0, 2), at, /[\/\]]/)
            fifth = int(at[1] * 5 / at[2])
            if (at[2] >= 20 && fifth > said) {
                said = fifth
                print "ferry: " at[1] " of " at[2] " steps of the build are done"
                fflush()
            }
        }'
}

# setup_build PRESET [cmake options]: configures and builds (FERRY_TARGET, or everything), and says little unless it fails.
setup_build() {
    local preset=$1 log
    local -a targets
    shift
    log=$(mktemp)
    read -ra targets <<<"${FERRY_TARGET:-all}"
    if ! (
        set -o pipefail
        { cmake --preset "$preset" "$@" && cmake --build "build/$preset" --target "${targets[@]}"; } 2>&1 |
            setup_progress "$log"
    ); then
        tail -n 40 "$log" >&2
        echo "ferry: the build failed; the lines above are its last" >&2
        rm -f "$log"
        return 1
    fi
    rm -f "$log"
}
