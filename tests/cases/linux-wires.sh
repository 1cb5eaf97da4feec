#!/usr/bin/env bash
# Two hosts with a card between them: a tap interface of the one, a packet socket on the cable to the other. Pings and
# transfers, IPv4 and IPv6, with an MTU of 1500 and of 9000, with large and checksum-partial frames and without. A cable that
# is pulled, an interface that is deleted in use, a user without the right.
# alone: it counts what iperf3 loses
. "$(dirname "$0")/../lib.sh"
needs python3 ping nsenter iperf3 tcpdump ethtool setpriv
[ -c /dev/net/tun ] || skip "there is no /dev/net/tun"
private_network "$@"

# The second host is a namespace of its own; the first is this one.
background second unshare -n sleep 1000
second=$started
elsewhere() {
    [ "$(readlink "/proc/$second/ns/net")" != "$(readlink /proc/self/ns/net)" ]
}
await 5 elsewhere || fail "there is no second namespace"
there=(nsenter -t "$second" -n)
ip link set lo up

# cable MTU: from the card to the second host.
cable() {
    ip link add pkt-c mtu "$1" type veth peer name pkt-h mtu "$1" || skip "there is no veth here"
    echo 1 >/proc/sys/net/ipv6/conf/pkt-c/disable_ipv6
    # The end of the card is in the namespace of the first host, which must not answer there.
    echo 8 >/proc/sys/net/ipv4/conf/pkt-c/arp_ignore
    ip link set pkt-h netns "$second"
    ip link set pkt-c up
}

# be_host N INTERFACE [COMMAND...]: gives host N its addresses; COMMAND leads there.
be_host() {
    local host=$1 interface=$2
    shift 2
    "$@" ip address add "192.0.2.$host/24" dev "$interface"
    "$@" ip link set "$interface" up
    "$@" ip -6 address add "2001:db8::$host/64" dev "$interface" nodad
}

answers() {
    ping -c 1 -W 1 192.0.2.2 >/dev/null 2>&1
}

pings() {
    local size address
    for size in 56 "$1"; do
        for address in 192.0.2.2 2001:db8::2; do
            ping -c 3 -i 0.02 -W 5 -s "$size" "$address" >"$scratch/ping.log" 2>&1 ||
                fail "no answer to ping -s $size $address: $(tail -n 3 "$scratch/ping.log")"
        done
    done
}

# flows ADDRESS OPTION...: a short iperf3 to the second host; what it has received, in bytes, must not be nothing.
flows() {
    local address=$1
    shift
    iperf3 --client "$address" --time 1 --json "$@" >"$scratch/iperf.json" 2>"$scratch/iperf.log" ||
        fail "iperf3 $address $*: $(tail -n 3 "$scratch/iperf.json")"
    python3 - "$scratch/iperf.json" "$address $*" <<'PY'
import json, sys
end = json.load(open(sys.argv[1]))["end"]
got = end.get("sum_received") or end["sum"]
if got["bytes"] < 100_000 or got.get("lost_percent", 0) > 50:
    sys.exit("failed: iperf3 %s: %r" % (sys.argv[2], got))
PY
}

# errors [COMMAND...]: segments and datagrams with a wrong checksum that a host has received.
errors() {
    "$@" awk '/InCsumErrors/ && !seen[$1]++ { for (i = 2; i <= NF; i++) if ($i == "InCsumErrors") place[$1] = i; next }
        $1 in place { sum += $place[$1] } END { print sum + 0 }' /proc/net/snmp
}

# Whatever came in at one port went out at the other, or was dropped by a name. What Linux says before the ports are connected
# goes to a queue, which counts it.
check_ports() {
    check_counting
    "$millrace" stats --json | python3 -c '
import json, sys
stats = json.load(sys.stdin)
one, other = stats["ports"]
early = sum(queue["offered"] for queue in stats["queues"])
for come, gone in (one, other), (other, one):
    if come["rx_frames"] < 1000:
        sys.exit("failed: nearly nothing came: %r" % come)
    early -= come["rx_frames"] - gone["tx_frames"] - sum(drop["count"] for drop in gone["tx_drops"])
if early:
    sys.exit("failed: the counting equation, by %d: %r" % (early, stats))' || exit 1
}

linked() {
    [ "$("$millrace" ports --json | grep -c '"link":true')" -eq 2 ]
}

unlinked() {
    ! linked
}

# between MTU on|off: everything, with large frames from both hosts or without.
between() {
    cable "$1"
    start_card --port tap:pkt-t --port af_packet:pkt-c --connect 0-1
    ip link set pkt-t mtu "$1"
    be_host 1 pkt-t
    be_host 2 pkt-h "${there[@]}"
    ethtool -K pkt-t tso "$2" gso "$2" tx "$2" >/dev/null 2>&1 || true
    "${there[@]}" ethtool -K pkt-h tso "$2" gso "$2" gro "$2" tx "$2" >/dev/null 2>&1 || true
    await 10 linked || fail "there is no link: $("$millrace" ports --json)"
    background tcpdump "${there[@]}" tcpdump --immediate-mode -n -i pkt-h -c 3 -l icmp and dst 192.0.2.2
    local dump=$started
    await 10 grep -q "listening on" "$scratch/tcpdump.log" || fail "tcpdump does not listen"
    pings $(($1 - 48))
    ended "$dump" 10
    [ "$(grep -c "echo request" "$scratch/tcpdump.out")" -eq 3 ] || fail "tcpdump has not seen three requests"
    background iperf "${there[@]}" iperf3 --server
    local server=$started
    await 10 listening || fail "iperf3 does not listen"
    flows 192.0.2.2
    flows 2001:db8::2 --reverse
    flows 192.0.2.2 --udp --bitrate 100M --length 1400
    flows 2001:db8::2 --udp --bitrate 100M --length 1400 --reverse
    kill "$server"
    [ "$(errors)$(errors "${there[@]}")" = 00 ] || fail "wrong checksums: $(errors) here, $(errors "${there[@]}") there"
}

listening() {
    "${there[@]}" ss -tln | grep -q :5201
}

ends() {
    check_ports
    kill -INT "$card"
    ended "$card" 10
    [ "$code" -eq 0 ] || fail "the card ended with $code"
    ip link delete pkt-c 2>/dev/null || true
}

between 1500 off
ends
between 9000 on

# The cable is pulled, and plugged in again.
"${there[@]}" ip link set pkt-h down
await 10 unlinked || fail "nobody notices that the cable is pulled"
ping -c 3 -i 0.02 -W 0.1 192.0.2.2 >/dev/null 2>&1 && fail "an answer without a cable"
"${there[@]}" ip link set pkt-h up
await 10 linked || fail "nobody notices that the cable is back"
await 10 answers || fail "no answer after the cable was plugged in again"

# The interface is deleted while frames pass.
background pinging ping -f -W 1 192.0.2.2
ip link delete pkt-c
await 10 unlinked || fail "nobody notices that the interface is gone"
before=$(awk '{ print $14 + $15 }' "/proc/$card/stat")
sleep 0.5
[ $(($(awk '{ print $14 + $15 }' "/proc/$card/stat") - before)) -lt 40 ] || fail "the card spins for an interface that is gone"
ends

# Without the right there is a message that names it.
ip link add pkt-c type veth peer name pkt-d
code=0
setpriv --bounding-set -net_raw "$millrace" card --listen "$scratch/none.sock" --port af_packet:pkt-c \
    </dev/null >"$scratch/denied.out" 2>&1 || code=$?
[ "$code" -ne 0 ] && grep -q CAP_NET_RAW "$scratch/denied.out" || fail "no CAP_NET_RAW: $(cat "$scratch/denied.out")"
echo "pings, tcpdump, iperf3 with TCP and UDP over tap and packet socket; link down, interface gone, no right"
