#!/bin/sh
# Builds the peers and runs them one after the other: one JSON line per measurement on standard output.
# All options go to the programs (`./run.sh --help`); --peer and --metric choose. Exit code 77: everything that could
# be measured was, but DPDK is missing.
cd "$(dirname "$0")" || exit 1

case " $* " in *" --help "* | *" -h "*)
    echo "Usage: run.sh [OPTION]..."
    echo "Builds and runs cacheline, bare_ring, bare_queues and dpdk_peer with the options below; --peer LIST may name"
    echo "cacheline, bare_ring, bare_queues, dpdk_vhost and dpdk_memif."
    echo
    make -s >&2 && exec ./dpdk_peer --help
    exit 1 ;;
esac

# --peer is ours: each program knows only its own names.
peers=cacheline,bare_ring,bare_queues,dpdk_vhost,dpdk_memif
count=$#
while [ "$count" -gt 0 ]; do
    argument=$1
    shift
    count=$((count - 1))
    case $argument in
    --peer)
        [ "$count" -gt 0 ] || { echo "run.sh: --peer needs a LIST" >&2; exit 2; }
        peers=$1
        shift
        count=$((count - 1)) ;;
    --peer=*) peers=${argument#--peer=} ;;
    *) set -- "$@" "$argument" ;;
    esac
done

dpdk=
for peer in $(echo "$peers" | tr ',' ' '); do
    case $peer in
    cacheline | bare_ring | bare_queues) ;;
    dpdk_vhost | dpdk_memif) dpdk=${dpdk:+$dpdk,}$peer ;;
    *) echo "run.sh: --peer: '$peer' is not cacheline, bare_ring, bare_queues, dpdk_vhost or dpdk_memif" >&2; exit 2 ;;
    esac
done

make -s >&2 || { echo "run.sh: the build failed, see above; it needs gcc (or cc) and make" >&2; exit 1; }

# In the background, so that a SIGTERM to this script reaches the program, which then cleans up.
child=
trap 'trap "" INT TERM HUP; [ -n "$child" ] && kill "$child" 2>/dev/null; wait; exit 130' INT TERM HUP
run() {
    "$@" &
    child=$!
    wait "$child"
    code=$?
    child=
    return "$code"
}

status=0
for peer in $(echo "$peers" | tr ',' ' '); do
    case $peer in
    cacheline | bare_ring | bare_queues) run "./$peer" "$@" || { status=$?; break; } ;;
    esac
done
if [ -n "$dpdk" ] && [ "$status" -eq 0 ]; then
    run ./dpdk_peer --peer "$dpdk" "$@"
    status=$?
fi
exit "$status"
