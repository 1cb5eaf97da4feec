#!/usr/bin/env bash
# Two hosts with a card between them that has AF_XDP on both sides: pings of all sizes and transfers, IPv4 and IPv6, with an
# MTU of 1500 and of 9000. Checksums that Linux left unfinished arrive
# finished, or no transfer would come to its end.
. "$(dirname "$0")/../lib.sh"
needs python3 ping nsenter
private_network "$@"

# The second host is a namespace of its own; the first is this one.
background second unshare -n sleep 1000
second=$started
elsewhere() {
    [ "$(readlink "/proc/$second/ns/net")" != "$(readlink /proc/self/ns/net)" ]
}
await 5 elsewhere || fail "there is no second namespace"
there=(nsenter -t "$second" -n)

# cables MTU: a cable from each host to the card.
cables() {
    local host
    for host in 1 2; do
        ip link add "xdp-c$host" mtu "$1" type veth peer name "xdp-h$host" mtu "$1" || skip "there is no veth here"
        echo 1 >"/proc/sys/net/ipv6/conf/xdp-c$host/disable_ipv6"
    done
    ip link set xdp-h2 netns "$second"
}

# be_host N [COMMAND...]: gives host N its addresses; COMMAND leads there.
be_host() {
    local host=$1
    shift
    "$@" ip address add "192.0.2.$host/24" dev "xdp-h$host"
    "$@" ip link set "xdp-h$host" up
    # Usable at once, not after having asked for a second whether somebody else has it.
    "$@" ip -6 address add "2001:db8::$host/64" dev "xdp-h$host" nodad
}

# between MTU LONGEST SPEC SPEC: pings with up to LONGEST bytes and transfers between the hosts.
between() {
    local size address
    cables "$1"
    start_card --port "$3" --port "$4"
    "$millrace" ports connect 0 1 >/dev/null
    # Nobody has said anything yet, so all that is ever said is forwarded.
    be_host 1
    be_host 2 "${there[@]}"
    await 10 linked || fail "there is no link: $("$millrace" ports --json)"
    for size in 0 56 1000 "$2"; do
        for address in 192.0.2.2 2001:db8::2; do
            ping -c 3 -i 0.02 -W 5 -s "$size" "$address" >"$scratch/ping.log" 2>&1 ||
                fail "no answer to ping -s $size $address: $(tail -n 3 "$scratch/ping.log")"
        done
    done
    for address in 192.0.2.2 2001:db8::2; do
        transfer "$address" || fail "a transfer to $address does not arrive"
    done
    check_ports
    kill -INT "$card"
    ended "$card" 10
    [ "$code" -eq 0 ] || fail "the card ended with $code"
    ip link delete xdp-c1
    ip link delete xdp-c2
}

linked() {
    [ "$("$millrace" ports --json | grep -c '"link":true')" -eq 2 ]
}

# transfer ADDRESS: 4 MB from this host to the other and back.
transfer() {
    background server "${there[@]}" python3 "$tests/transfer.py" serve "$1" 7777
    python3 "$tests/transfer.py" send "$1" 7777 4000000
    ended "$started" 10
    [ "$code" -eq 0 ]
}

# Whatever came in at one port went out at the other, or was dropped because there was no link yet.
check_ports() {
    "$millrace" ports --json | python3 -c '
import json, sys
one, other = [json.loads(line) for line in sys.stdin if line.strip()]
for come, gone in (one, other), (other, one):
    dropped = sum(drop["count"] for drop in gone["tx_drops"] if drop["reason"] == "link-down")
    if come["rx_frames"] != gone["tx_frames"] + dropped or come["rx_drops"] or dropped > 20:
        sys.exit("failed: the counting equation: %r, %r" % (come, gone))' || exit 1
}

between 1500 1452 af_xdp:xdp-c1 af_xdp:xdp-c2
between 9000 8952 af_xdp:xdp-c1 af_xdp:xdp-c2,mode=copy
echo "pings and transfers, 1500 and 9000 byte MTU"
