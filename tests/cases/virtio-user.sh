#!/usr/bin/env bash
# DPDK's virtio-user at a vhost-user port, which answers pings that Linux sends through the card: with four queues, as
# docs/neighbours.md shows it, and with one; with the card and with DPDK as the one that listens.
. "$(dirname "$0")/../lib.sh"
. "$tests/network.sh"
needs ping dpdk-testpmd
[ -c /dev/net/tun ] || skip "there is no /dev/net/tun"
private_network "$@"
page=$(shown docs/neighbours.md "A DPDK program")

# pings_all_sizes: frames from the shortest to the longest, around the lengths of one and two cache lines.
pings_all_sizes() {
    local frame
    for frame in 60 61 64 65 127 128 129 512 1024 1513 1514; do
        ping -c 3 -i 0.01 -W 5 -s $((frame - 42)) 192.0.2.2 >"$scratch/ping.log" || fail "no frames of $frame bytes"
    done
    # Many in flight; of a flood Linux itself loses some on a busy machine, which is why only counts are compared.
    ping -q -f -l 64 -c 2000 -W 5 -s 1000 192.0.2.2 >"$scratch/ping.log" || fail "no answers to a flood"
}

for variant in 4,server 4,client 1,server; do
    queues=${variant%,*}
    commands=${page//queues=4/queues=$queues}
    commands=${commands//rxq=4 --txq=4/rxq=$queues --txq=$queues}
    commands=${commands//--file-prefix mill/--file-prefix mill$$-$variant}
    if [[ $variant = *client ]]; then
        commands=${commands//dpdk.sock,queues=4 --port/dpdk.sock,client,queues=4 --port}
        commands=${commands//mac=/server=1,mac=}
    fi
    first=${#pids[@]}
    follow "$commands"
    export MILLRACE_DEVICE=unix:$scratch/card.sock
    pings_all_sizes
    check_neighbour 1 here mill0
    check_counting
    # The program first, and then the card.
    for ((pid = ${#pids[@]} - 1; pid >= first; pid--)); do
        kill -INT "${pids[pid]}"
        ended "${pids[pid]}" 10
    done
    echo "$queues queues, the card as ${variant#*,}: pings of all sizes, 2000 in a flood"
done
