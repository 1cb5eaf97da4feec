#!/usr/bin/env bash
# `millrace router why` and `status` name the reason: for a flow that is fast, for one that Linux filters, for one that has no rule; for interfaces that are not taken.
. "$(dirname "$0")/../lib.sh"
private_network "$@"
. "$tests/router/ends.sh"

start_router --mode xdp
listen 5201
at_left ping -q -i 0.05 -c 10 10.0.2.2 >/dev/null
"$millrace" router why 10.0.2.2 --protocol icmp --json >"$scratch/why" || fail "why fails"
python3 - "$scratch/why" <<'END' || fail "the echo is not explained: $(cat "$scratch/why")"
import json, sys
flows = [json.loads(line) for line in open(sys.argv[1])]
assert any(flow["is_fast"] and flow["rule"]["packets"] > 0 and flow["rule"]["output"] in ("left", "right") for flow in flows), flows
assert all("fast" in flow["why"] for flow in flows if flow["is_fast"])
END

# send PORT: thirty datagrams from there to port 9 of the other end.
send() {
    at_left python3 -c '
import socket, sys, time
udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
udp.bind(("10.0.1.2", int(sys.argv[1])))
for _ in range(30):
    udp.sendto(b"x", ("10.0.2.2", 9))
    time.sleep(0.02)' "$1"
}

# With rules that do not use conntrack no flow is fast, and it is said what changes that.
nft -f - <<'END'
table ip u {
    chain forward {
        type filter hook forward priority 0
        counter
    }
}
END
await 3 is_so "s['mode'] == 'conntrack, IPv6 route'" || fail "the ruleset is not seen: $(status "s['mode']")"
send 9998
"$millrace" router why 10.0.1.2:9998 --protocol udp >"$scratch/why" || fail "why fails for what conntrack does not know"
for words in "no-conntrack: rules look at forwarded packets (nft u forward)" "no rule asks it, which any rule with \`ct state\` changes, or a rule drops whatever came" "name both ends"; do
    grep -qF "$words" "$scratch/why" || fail "why does not say '$words': $(cat "$scratch/why")"
done
nft delete table ip u

# At XDP, too, a second router says that there is a first one, and not that somebody's program is in its way.
background second "$millrace" router start --interfaces left right --socket other --json
await 15 grep -q '"event":"routing"' "$scratch/second.out" || fail "the second router does not start"
[ "$("$millrace" router status --socket other --json | python3 -c 'import json, sys; print({i["off"] for i in json.load(sys.stdin)["interfaces"]})')" = "{'other-router'}" ] ||
    fail "the second router says: $("$millrace" router status --socket other)"
"$millrace" router stop --socket other
ended "$started" 10

# A flow that a rule of Linux drops stays with it, and it is said why.
nft -f - <<'END'
table ip t {
    chain forward {
        type filter hook forward priority 0
        ct state established accept
        udp dport 9 drop
    }
}
END
await 3 is_so "s['mode'] == 'conntrack, IPv6 route' and s['hooks'] == ['nft t forward']" || fail "the ruleset is not seen: $(status "s['mode'], s['hooks']")"
send 9999
"$millrace" router why 10.0.1.2:9999 10.0.2.2:9 --protocol udp >"$scratch/why" || fail "why fails for what is dropped"
grep -Eq 'no-conntrack|not-established|linux-silent|there is no rule' "$scratch/why" || fail "why says: $(cat "$scratch/why")"
# One of which there were too few packets to call Linux silent.
nft insert rule ip t forward icmp type echo-request drop
! at_left ping -q -i 0.01 -c 2 -W 1 10.0.2.2 >/dev/null || fail "what is dropped is answered"
"$millrace" router why 10.0.1.2 --protocol icmp >"$scratch/why" || fail "why fails for what is dropped silently"
grep -q "Linux has sent no packet of the flow on" "$scratch/why" || fail "why says: $(cat "$scratch/why")"
! grep -q 'left?' "$scratch/why" || fail "where it would leave is said as if it were known: $(cat "$scratch/why")"

# One that nobody has seen: Linux is asked.
"$millrace" router why 10.0.1.2:1 10.0.2.2:2 >"$scratch/why" || fail "why fails for what is not there"
for words in "there is no rule" "has no such connection" "out of right" "out of left" "has made no rule for it" "in the last half second"; do
    grep -q "$words" "$scratch/why" || fail "why does not say '$words': $(cat "$scratch/why")"
done
# Where somebody is given packets, nothing of that version of IP goes past him, and it is said.
queue=
if nft insert rule ip t forward udp dport 7 queue 2>/dev/null; then
    queue="t forward"
elif iptables -A FORWARD -p udp --dport 7 -j NFQUEUE 2>/dev/null; then
    queue="filter FORWARD"
fi
if [ -n "$queue" ]; then
    await 3 is_so "s['mode'] == 'off, IPv6 route' and 'nft queue $queue' in s['hooks']" || fail "a queue is not seen: $(status "s['mode'], s['hooks']")"
    is_so "any('$queue gives packets to a program' in a['what'] for a in s['advice'])" || fail "the queue is not spoken of: $(status "s['advice']")"
    nft delete table ip filter 2>/dev/null || true
else
    echo "this kernel has no queues"
fi
nft delete table ip t
await 3 is_so "s['mode'] == 'route'" || fail "the ruleset is gone, and conntrack still asked"

# Interfaces, each for its reason; each is taken again when that is over.
reason() {
    local wanted=$1 begin=$2 end=$3
    eval "$begin"
    await 5 test "$wanted" = "$(off_of left)" || await 3 expect "$wanted" || fail "$wanted: it is $(off_of left)"
    eval "$end"
    await 12 expect None || fail "$wanted is over, and it is $(off_of left)"
}
expect() { [ "$(off_of left)" = "$1" ]; }
reason down "ip link set left down" "ip link set left up; ip address replace 10.0.1.1/24 dev left"
reason shaped "tc qdisc replace dev left root tbf rate 1gbit burst 1mb latency 50ms" "tc qdisc del dev left root"
reason ingress-filter "tc qdisc add dev left clsact 2>/dev/null || true; tc filter add dev left ingress prio 5 protocol ip u32 match u32 0 0 flowid 1:1" "tc filter del dev left ingress prio 5"
reason vlan-offload "ethtool -K left rxvlan on" "ethtool -K left rxvlan off"
nft_begin="nft 'add table netdev n; add chain netdev n c { type filter hook ingress device left priority 0; }'"
eval "$nft_begin" 2>/dev/null && nft delete table netdev n && reason netdev-hook "$nft_begin" "nft delete table netdev n"
ip link add bridge7 type bridge
ip link set bridge7 up
"$millrace" router add bridge7
[ "$(off_of bridge7)" = upper ] || fail "a bridge is $(off_of bridge7)"
reason port-guarded "ip link set left master bridge7; bridge link set dev left isolated on" "ip link set left nomaster"
await 5 gets_fast || fail "in the end nothing is fast: $("$millrace" router status)"
# What Linux would better be told is said.
sysctl -qw net.ipv4.conf.left.rp_filter=1
await 3 is_so "any('rp_filter' in a['what'] for a in s['advice'])" || fail "rp_filter is not spoken of"
