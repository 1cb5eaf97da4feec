#!/usr/bin/env bash
# A vhost-user back end as the neighbour: dpdk-testpmd with net_vhost, which answers pings that Linux sends through a
# virtio-user port of the card, as docs/neighbours.md shows it; with one queue and with two, as server and as client. Then the
# program is killed and comes again while the card lives, and the card is killed and comes again while the program lives.
. "$(dirname "$0")/../lib.sh"
. "$tests/network.sh"
needs ping dpdk-testpmd
[ -c /dev/net/tun ] || skip "there is no /dev/net/tun"
private_network "$@"
page=$(shown docs/neighbours.md "A DPDK program that is the device")

ready() {
    "$millrace" ports --json | grep -q "back end ready"
}

gone() {
    ! ready
}

answers() {
    ping -c 1 -W 1 192.0.2.2 >"$scratch/ping.log"
}

pings_all_sizes() {
    local frame
    for frame in 60 65 128 512 1514; do
        ping -c 3 -i 0.01 -W 5 -s $((frame - 42)) 192.0.2.2 >"$scratch/ping.log" || fail "no frames of $frame bytes"
    done
    ping -q -f -l 32 -c 1000 -W 5 -s 1000 192.0.2.2 >"$scratch/ping.log" || fail "no answers to a flood"
}

# What came in at one port has gone out at the other, or was dropped there and counted. What Linux sent before the ports
# were connected was offered to the queues of its port instead.
check_ports() {
    await 10 ports_agree || fail "in at one port and out at the other are not the same: $("$millrace" stats --json)"
}

ports_agree() {
    "$millrace" stats --json | python3 -c '
import json, sys
stats = json.load(sys.stdin)
ports = stats["ports"]
early = sum(queue["offered"] for queue in stats["queues"] if queue["queue"].startswith("rx"))
drops = lambda port: sum(drop["count"] for drop in port["tx_drops"])
missing = [ports[i]["rx_frames"] - ports[1 - i]["tx_frames"] - drops(ports[1 - i]) for i in (0, 1)]
sys.exit(min(missing) < 0 or sum(missing) != early)'
}

for variant in 1,client 2,client 1,server; do
    queues=${variant%,*} role=${variant#*,}
    commands=${page//--file-prefix mill/--file-prefix vu$$-$queues$role}
    if [ "$queues" = 2 ]; then
        commands=${commands//dev.sock --port/dev.sock,queues=2 --port}
        commands=${commands//iface=\/tmp\/dev.sock/iface=\/tmp\/dev.sock,queues=2}
        commands=${commands//--auto-start/--rxq=2 --txq=2 --auto-start}
    fi
    if [ "$role" = server ]; then
        commands=${commands//dev.sock --port/dev.sock,server --port}
        commands=${commands//iface=\/tmp\/dev.sock/iface=\/tmp\/dev.sock,client=1}
    fi
    first=${#pids[@]}
    follow "$commands"
    export MILLRACE_DEVICE=unix:$scratch/card.sock
    await 10 ready || fail "no back end: $("$millrace" ports --json)"
    pings_all_sizes
    check_counting
    check_ports
    card=${pids[first]} program=${pids[first + 1]}
    # The program dies and comes again.
    slay "$program"
    await 10 gone || fail "the card does not notice that the back end is dead"
    # DPDK does not replace the socket of one that was killed.
    [ "$role" = server ] || rm "$scratch/dev.sock"
    again=$(grep dpdk-testpmd <<<"$commands")
    again=${again/--file-prefix vu/--file-prefix vw}
    follow "$again"
    program=${pids[-1]}
    await 30 ready || fail "the back end does not come back: $("$millrace" ports --json)"
    await 30 answers || fail "no answers after the back end was killed"
    pings_all_sizes
    check_counting
    # The card dies and comes again.
    slay "$card"
    rm -f "$scratch/card.sock"
    follow "$(grep 'millrace card' <<<"$commands")
ip address add 192.0.2.1/24 dev mill0
ip link set mill0 up"
    card=${pids[-1]}
    await 30 ready || fail "the back end does not meet the new card: $("$millrace" ports --json)"
    await 30 answers || fail "no answers after the card was killed"
    pings_all_sizes
    check_counting
    check_ports
    for pid in "$program" "$card"; do
        kill -INT "$pid"
        ended "$pid" 10
    done
    echo "$queues queues, the card as $role: pings of all sizes, the program and the card killed in between"
done
