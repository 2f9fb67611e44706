#!/usr/bin/env bash
# Hosts for tests on one machine: network, UTS, IPC and mount namespaces, joined by a shaped link.
#
# What: each host has its own network (one interface, eth0), host name, System V IPC, /dev/shm and
#       /etc/hosts; processor, memory, process ids and files are shared. README.md here says more.
# Why here: survival and speed across hosts are tested on machines that have no second one.
# Must not know: what runs in the hosts.
#
#   hosts.sh up N tbf RATE_MBIT             N hosts (A, B, ...), links of that rate
#   hosts.sh up N tap RATE_MBIT DELAY_US    the same with delay (one way), carried by linkemu
#   hosts.sh exec HOST COMMAND...           runs a command in a host, as this very process
#   hosts.sh cut A B | heal A B             drops everything between two hosts, without a sign
#   hosts.sh address HOST | bytes HOST | list
#   hosts.sh down [--all]                   kills what runs in the hosts, removes them
#   hosts.sh check [tbf|tap]                can this machine do it? One line says why not
#
# FERRY_HOSTS_RUN names the run (default: default): runs do not see each other. FERRY_HOSTS_OWNER, a
# process id: when that process is gone, the next `up` of any run removes the hosts.
# Exit 0 good, 1 failed, 2 wrong usage; exec: the command's.
set -uo pipefail

RUN=${FERRY_HOSTS_RUN:-default}
STATE=/run/ferry-hosts
NETWORK=10.77.0
NAMES=(A B C D E F G H I J K L M N O P)
HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
DEAD=02:fe:00:00:00:ff # nobody has it: what is sent there is lost

fail() {
    echo "hosts: $*" >&2
    exit 1
}

usage() {
    [ $# = 0 ] || echo "hosts: $*" >&2
    sed -n '8,17p' "${BASH_SOURCE[0]}" | sed 's/^# \{0,1\}//' >&2
    exit 2
}

[[ $RUN =~ ^[A-Za-z0-9_-]{1,40}$ ]] ||
    usage "FERRY_HOSTS_RUN '$RUN': want 1 to 40 letters, digits, - or _"

netns() { # netns HOST [RUN]: the name of its network namespace
    echo "fh.${2:-$RUN}.$1"
}

index() { # index HOST: 0 for A, ...
    local i
    for i in "${!NAMES[@]}"; do
        [ "${NAMES[i]}" != "$1" ] || { echo "$i"; return; }
    done
    return 1
}

mac() { # mac INDEX
    printf '02:fe:00:00:00:%02x' $(($1 + 1))
}

started() { # started PID: when a process started, in ticks; nothing when there is none
    local stat
    stat=$(cat "/proc/$1/stat" 2>/dev/null) || return 1
    stat=${stat##*) } # a name may hold anything, blanks and brackets too
    set -- $stat
    echo "${20}"
}

host_count() { # of the run that is up
    [ -f "$STATE/$RUN/ready" ] || return 1
    read -r n _ <"$STATE/$RUN/spec" && echo "$n"
}

known() { # known HOST: its index, or the end
    local i n
    n=$(host_count) || fail "run '$RUN' is not up; start it with: hosts.sh up N tbf RATE_MBIT"
    i=$(index "$1") && [ "$i" -lt "$n" ] || fail "run '$RUN' has no host '$1'; it has ${NAMES[*]:0:n}"
    echo "$i"
}

namespaces() { # namespaces RUN: those that exist
    local path
    for path in /run/netns/fh."$1".*; do
        [ ! -e "$path" ] || echo "${path##*/}"
    done
}

remove() { # remove RUN: whatever is left of it, in whatever state
    local run=$1 ns pids
    for _ in $(seq 100); do
        pids=
        for ns in $(namespaces "$run"); do
            pids+=" $(ip netns pids "$ns" 2>/dev/null | tr '\n' ' ')"
        done
        [ -n "${pids// /}" ] || break
        # shellcheck disable=SC2086
        kill -9 $pids 2>/dev/null
        sleep 0.05
    done
    [ -z "${pids// /}" ] || fail "run '$run': processes do not die:$pids"
    for ns in $(namespaces "$run"); do
        ip netns del "$ns" || fail "run '$run': cannot remove the namespace $ns"
    done
    rm -rf "${STATE:?}/$run"
}

reap() { # removes the runs whose owner is gone
    local path owner since
    for path in "$STATE"/*/owner; do
        [ -f "$path" ] || continue
        read -r owner since <"$path"
        [ "$(started "$owner")" = "$since" ] || remove "$(basename "$(dirname "$path")")"
    done
}

lock() { # one change at a time, over all runs; fd 9 must not be inherited by what stays
    mkdir -p "$STATE" || fail "cannot make $STATE"
    exec 9>"$STATE/.lock"
    flock -w 60 9 || fail "another hosts.sh has held $STATE/.lock for 60 s"
}

find_linkemu() {
    local path newest=
    if [ -n "${FERRY_LINKEMU:-}" ]; then
        [ -x "$FERRY_LINKEMU" ] || fail "FERRY_LINKEMU=$FERRY_LINKEMU: no such program"
        echo "$FERRY_LINKEMU"
        return
    fi
    for path in "$HERE"/../../build/*/tests/cluster/linkemu; do
        [ ! -x "$path" ] || [ -n "$newest" ] && [ ! "$path" -nt "$newest" ] || newest=$path
    done
    if [ -z "$newest" ] || [ "$HERE/linkemu.c" -nt "$newest" ]; then
        newest=${FERRY_CACHE:-$HOME/.cache/ferry}/linkemu
        if [ ! -x "$newest" ] || [ "$HERE/linkemu.c" -nt "$newest" ]; then
            mkdir -p "$(dirname "$newest")" &&
                ${CC:-cc} -std=c11 -O2 -o "$newest.part" "$HERE/linkemu.c" && mv "$newest.part" "$newest" ||
                fail "cannot compile linkemu.c; build the CMake target linkemu, set FERRY_LINKEMU"
        fi
    fi
    echo "$newest"
}

check() { # check KIND: prints the reason when this machine cannot do it
    local tool reason trial="fh-check-$$"
    [ "$(id -u)" = 0 ] || { echo "not root: namespaces need CAP_SYS_ADMIN"; return 1; }
    for tool in ip tc bridge unshare nsenter flock; do
        command -v "$tool" >/dev/null || { echo "no '$tool' (Debian: iproute2, util-linux)"; return 1; }
    done
    ip netns add "$trial" 2>/dev/null || { echo "no network namespaces: the kernel or a container forbids them"; return 1; }
    reason=$(try_features "$1" "$trial")
    ip netns del "$trial"
    [ -z "$reason" ] || { echo "$reason"; return 1; }
}

try_features() { # try_features KIND NETNS: prints the first one that is missing
    unshare -u -i -m true 2>/dev/null || { echo "no UTS, IPC or mount namespaces here"; return; }
    ip -n "$2" link add x type veth peer name y 2>/dev/null || { echo "the kernel has no veth"; return; }
    ip -n "$2" link add z type bridge 2>/dev/null || { echo "the kernel has no bridge"; return; }
    ip netns exec "$2" tc qdisc add dev x root tbf rate 1mbit burst 16kb latency 20ms 2>/dev/null ||
        { echo "the kernel has no tbf queue"; return; }
    [ "$1" = tap ] || return
    [ -c /dev/net/tun ] || { echo "no /dev/net/tun"; return; }
    ip -n "$2" tuntap add mode tap name t 2>/dev/null || echo "no TAP interfaces here"
}

shape() { # shape NETNS INTERFACE RATE: a bucket that is small, so that short messages are slowed, too
    ip -n "$1" link set "$2" gso_max_size 16384 gso_max_segs 12 &&
        ip netns exec "$1" tc qdisc replace dev "$2" root tbf rate "$3mbit" burst 20kb latency 20ms
}

make_host() { # make_host INDEX N: everything of a host but its link
    local i=$1 n=$2 j ns name=${NAMES[$1]}
    ns=$(netns "$name")
    ip netns add "$ns" && ip -n "$ns" link set lo up || return 1
    ip netns exec "$ns" sh -c 'for f in /proc/sys/net/ipv6/conf/*/disable_ipv6; do echo 1 >$f; done' 2>/dev/null
    {
        echo "127.0.0.1 localhost"
        for ((j = 0; j < n; j++)); do echo "$NETWORK.$((j + 1)) host${NAMES[j]}"; done
    } >"$STATE/$RUN/hosts"
    # shellcheck disable=SC2016
    setsid ip netns exec "$ns" unshare -u -i -m --propagation private sh -c '
        hostname "$1" && mount -t tmpfs -o mode=1777 tmpfs /dev/shm && mount --bind "$2" /etc/hosts &&
        echo $$ $(readlink /proc/self/ns/net) >"$3.part" && mv "$3.part" "$3" && exec sleep infinity' \
        ferry-host "host$name" "$STATE/$RUN/hosts" "$STATE/$RUN/pid.$name" \
        </dev/null >/dev/null 2>"$STATE/$RUN/log.$name" 9>&- &
    disown
}

wait_file() { # wait_file FILE LOG: at most 10 s
    for _ in $(seq 200); do
        [ ! -s "$1" ] || return 0
        sleep 0.05
    done
    fail "no $1 after 10 s: $(tail -n 1 "$2" 2>/dev/null)"
}

join_tbf() { # join_tbf N RATE: a bridge, a veth pair per host, a bucket in both directions
    local i ns sw
    sw=$(netns switch)
    ip -n "$sw" link add br0 type bridge stp_state 0 mcast_snooping 0 && ip -n "$sw" link set br0 up || return 1
    for ((i = 0; i < $1; i++)); do
        ns=$(netns "${NAMES[i]}")
        ip -n "$ns" link add eth0 address "$(mac "$i")" type veth peer name "p$i" netns "$sw" &&
            ip -n "$sw" link set "p$i" master br0 up &&
            ip -n "$sw" link set "p$i" type bridge_slave flood off mcast_flood off learning off &&
            bridge -n "$sw" fdb replace "$(mac "$i")" dev "p$i" master static &&
            shape "$sw" "p$i" "$2" || return 1
    done
}

join_tap() { # join_tap N RATE DELAY
    local i program ports=() log="$STATE/$RUN/log.linkemu"
    program=$(find_linkemu) || exit 1
    for ((i = 0; i < $1; i++)); do
        ports+=("$(netns "${NAMES[i]}")=eth0=$(mac "$i")")
    done
    setsid ip netns exec "$(netns switch)" "$program" "$2" "$3" "${ports[@]}" \
        </dev/null >"$STATE/$RUN/linkemu" 2>"$log" 9>&- &
    disown
    wait_file "$STATE/$RUN/linkemu" "$log"
    for ((i = 0; i < $1; i++)); do
        ip -n "$(netns "${NAMES[i]}")" link set eth0 address "$(mac "$i")" || return 1
    done
}

address_host() { # address_host INDEX N RATE: the link's end in the host; neighbours are fixed
    local i=$1 j ns
    ns=$(netns "${NAMES[$1]}")
    ip -n "$ns" addr add "$NETWORK.$((i + 1))/24" dev eth0 && ip -n "$ns" link set eth0 mtu 1500 up &&
        shape "$ns" eth0 "$3" || return 1
    for ((j = 0; j < $2; j++)); do
        [ "$j" = "$i" ] ||
            ip -n "$ns" neigh replace "$NETWORK.$((j + 1))" lladdr "$(mac "$j")" dev eth0 nud permanent || return 1
    done
}

number() { # number TEXT MIN MAX WHAT
    [[ $1 =~ ^[0-9]{1,8}$ ]] && [ "$1" -ge "$2" ] && [ "$1" -le "$3" ] || usage "$4 wants $2..$3, got '$1'"
}

healthy() { # is every host of the run alive?
    local i n
    n=$(host_count) || return 1
    for ((i = 0; i < n; i++)); do
        ip netns pids "$(netns "${NAMES[i]}")" 2>/dev/null |
            grep -qx "$(cut -d' ' -f1 "$STATE/$RUN/pid.${NAMES[i]}" 2>/dev/null)" || return 1
    done
    [ ! -f "$STATE/$RUN/linkemu" ] || [ -n "$(ip netns pids "$(netns switch)" 2>/dev/null)" ]
}

up() {
    local n=${1:-} kind=${2:-} rate=${3:-} delay=${4:-0} i reason spec owner=${FERRY_HOSTS_OWNER:-}
    number "$n" 2 ${#NAMES[@]} "the number of hosts"
    case $kind in
    tbf) [ $# = 3 ] || usage "tbf takes a rate only" ;;
    tap) [ $# = 4 ] || usage "tap takes a rate and a delay" ;;
    *) usage "a link is tbf or tap, not '$kind'" ;;
    esac
    number "$rate" 1 100000 RATE_MBIT
    number "$delay" 0 10000000 DELAY_US
    reason=$(check "$kind") || fail "cannot make hosts here: $reason"
    lock
    reap
    spec="$n $kind $rate $delay"
    if [ -f "$STATE/$RUN/ready" ] && healthy; then
        [ "$(cat "$STATE/$RUN/spec")" = "$spec" ] ||
            fail "run '$RUN' is up as '$(cat "$STATE/$RUN/spec")'; hosts.sh down first"
        return
    fi
    remove "$RUN"
    mkdir -p "$STATE/$RUN" && echo "$spec" >"$STATE/$RUN/spec" || fail "cannot write $STATE/$RUN"
    [ -z "$owner" ] || echo "$owner $(started "$owner")" >"$STATE/$RUN/owner"
    trap 'remove "$RUN"' EXIT # until it is whole
    ip netns add "$(netns switch)" || fail "cannot make the switch's namespace"
    for ((i = 0; i < n; i++)); do
        make_host "$i" "$n" || fail "cannot make host ${NAMES[i]}"
    done
    "join_$kind" "$n" "$rate" "$delay" || fail "cannot make the $kind link"
    for ((i = 0; i < n; i++)); do
        address_host "$i" "$n" "$rate" || fail "cannot set up eth0 of host ${NAMES[i]}"
        wait_file "$STATE/$RUN/pid.${NAMES[i]}" "$STATE/$RUN/log.${NAMES[i]}"
    done
    touch "$STATE/$RUN/ready"
    trap - EXIT
}

inside() { # inside HOST COMMAND...: becomes the command
    local pid ns
    [ $# -ge 2 ] || usage "exec wants a host and a command"
    known "$1" >/dev/null || exit 1
    # Not by /run/netns: a host that calls us does not see the hosts that were made after it.
    read -r pid ns 2>/dev/null <"$STATE/$RUN/pid.$1"
    [ -n "${ns:-}" ] && [ "$(readlink "/proc/$pid/ns/net" 2>/dev/null)" = "$ns" ] ||
        fail "host $1 of run '$RUN' is gone; take the run down and up again"
    shift
    exec nsenter -t "$pid" -n -u -i -m -W "$PWD" -- "$@"
}

point() { # point FROM TO MAC: where FROM sends what is for TO
    ip -n "$(netns "${NAMES[$1]}")" neigh replace "$NETWORK.$(($2 + 1))" lladdr "$3" dev eth0 nud permanent ||
        fail "cannot change the link from ${NAMES[$1]} to ${NAMES[$2]}"
}

cut_or_heal() { # cut_or_heal cut|heal A B
    local a b
    [ $# = 3 ] && [ "$2" != "$3" ] || usage "$1 wants two hosts"
    a=$(known "$2") && b=$(known "$3") || exit 1
    if [ "$1" = cut ]; then
        point "$a" "$b" $DEAD
        point "$b" "$a" $DEAD
    else
        point "$a" "$b" "$(mac "$b")"
        point "$b" "$a" "$(mac "$a")"
    fi
}

down() {
    local path
    case ${1:-} in
    "") lock && remove "$RUN" ;;
    --all)
        lock
        for path in "$STATE"/*/; do
            [ ! -d "$path" ] || remove "$(basename "$path")"
        done
        ;;
    *) usage "down takes --all or nothing" ;;
    esac
}

verb=${1:-}
[ $# = 0 ] || shift
case $verb in
up) up "$@" ;;
exec) inside "$@" ;;
cut | heal) cut_or_heal "$verb" "$@" ;;
address) i=$(known "${1:-}") && echo "$NETWORK.$((i + 1))" ;;
bytes) known "${1:-}" >/dev/null && inside "$1" cat /sys/class/net/eth0/statistics/rx_bytes \
    /sys/class/net/eth0/statistics/tx_bytes ;;
list)
    for path in "$STATE"/*/; do
        [ ! -d "$path" ] || echo "$(basename "$path"): $(cat "$path/spec" 2>/dev/null)"
    done
    ;;
down) down "$@" ;;
check) check "${1:-tap}" ;;
-h | --help) usage ;;
*) usage "there is no verb '$verb'" ;;
esac
