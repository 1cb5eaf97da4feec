#!/usr/bin/env bash
# Routing daemons (FRR) change the router's routes under load: OSPF by costs, by a link that fails, by two ways that are equally good; BGP by a thousand routes that come
# and go. Packets follow Linux's routes at once, those that have a way are not lost, and what there is no route for does not pass.
# waits: for timers of Linux and of rules
. "$(dirname "$0")/../lib.sh"
private_network "$@"
. "$tests/router/ends.sh"
. "$tests/router/frr.sh"
python=/usr/bin/python3

# `left` sends to 10.9.0.2, which is behind two routers: `right`, and another one, `third`.
end_of third 3
nsenter -t "$third_end" -n ethtool -K wire gro on tx off txvlan off >/dev/null
ethtool -K third rxvlan off >/dev/null
background far unshare -n sleep 1000
far_end=$started
await 5 test ! "/proc/$far_end/ns/net" -ef /proc/self/ns/net
as_place far sh -ec 'ip link set lo up; ip link add lan type bridge forward_delay 0; ip address add 10.9.0.2/24 dev lan; ip link set lan up'
for place in right third; do
    end=${place}_end
    as_place far sh -ec "ip link add to-$place type veth peer name lan netns ${!end}; ip link set to-$place master lan up"
    as_place $place sh -ec "
        ip route del default
        ip address add 10.9.0.$([ $place = right ] && echo 3 || echo 4)/24 dev lan; ip link set lan up
        sysctl -qw net.ipv4.ip_forward=1
        nft 'table ip seen { counter stream {}; chain seen { type filter hook prerouting priority -300; iifname wire ip daddr 10.9.0.2 meta l4proto udp counter name stream; }; }'"
done
as_place far ip route add default via 10.9.0.3

# daemons_of PLACE COSTS BGP: it tells of all its networks by OSPF, and speaks BGP with the router at `third`.
interface() { printf 'interface %s\n ip ospf network point-to-point\n ip ospf dead-interval minimal hello-multiplier 4\n ip ospf cost %s\n' "$1" "$2"; }
ospf() { printf 'router ospf\n ospf router-id %s\n network 10.0.0.0/8 area 0\n timers throttle spf 0 20 100\n timers lsa min-arrival 0\n timers throttle lsa all 0\n' "$1"; }
mkdir "$scratch/router" "$scratch/right" "$scratch/third"
for place in router right third; do : >"$scratch/$place/zebra.conf"; done
{ interface right 10; interface third 20; printf 'interface left\n ip ospf passive\n'; ospf 10.255.0.1; } >"$scratch/router/ospfd.conf"
{ interface wire 10; interface lan 10; ospf 10.255.0.2; } >"$scratch/right/ospfd.conf"
{ interface wire 20; interface lan 10; ospf 10.255.0.3; } >"$scratch/third/ospfd.conf"
cat >"$scratch/router/bgpd.conf" <<'BGP'
router bgp 65001
 bgp router-id 10.255.0.1
 no bgp ebgp-requires-policy
 neighbor 10.0.3.2 remote-as 65003
 neighbor 10.0.3.2 timers connect 1
BGP
cat >"$scratch/third/bgpd.conf" <<'BGP'
router bgp 65003
 bgp router-id 10.255.0.3
 no bgp ebgp-requires-policy
 neighbor 10.0.3.1 remote-as 65001
 neighbor 10.0.3.1 timers connect 1
 address-family ipv4 unicast
  redistribute kernel
 exit-address-family
BGP
run_daemons router ospfd bgpd
run_daemons right ospfd
run_daemons third ospfd bgpd

# Where Linux sends packets to 10.9.0.2 now.
way() { ip route get 10.9.0.2 from 10.0.1.2 iif left "$@" 2>/dev/null | sed -n 's/.* dev \([a-z]*\) .*/\1/p'; }
way_is() { [ "$(way)" = "$1" ]; }
seen() { as_place "$1" nft list counter ip seen stream | sed -n 's/.*packets \([0-9]*\) .*/\1/p'; }
await 10 way_is right || fail "OSPF has no route to 10.9.0.2: $(ip route; tell router 'show ip ospf neighbor')"

start_router --mode xdp
"$millrace" router add third
await 5 is_so "all(i['off'] is None for i in s['interfaces']) and len(s['interfaces']) == 3" || fail "not all interfaces are taken: $("$millrace" router status)"

flows=16
background receiver nsenter -t "$far_end" -n $python "$tests/router/stream.py" receive 5000
receiver=$started
await 5 grep -q ready "$scratch/receiver.out" || fail "the receiver does not start"
background sender nsenter -t "$left_end" -n $python "$tests/router/stream.py" send 10.9.0.2 5000 $flows 8000
sender=$started
await 5 grep -q ready "$scratch/sender.out" || fail "the sender does not start"

# goes_by PLACE: Linux routes to it; whatever comes from now on comes there, without Linux, and nothing at the other one.
goes_by() {
    local other before here there
    other=$([ "$1" = right ] && echo third || echo right)
    await 5 way_is "$1" || fail "$2: Linux routes to $(way)"
    # What was on the way, and the time from the event to the epoch on a busy machine.
    sleep 0.1
    before=$(fast) here=$(seen "$1") there=$(seen "$other")
    comes() { [ $(($(fast) - before)) -ge 500 ] && [ $(($(seen "$1") - here)) -ge 500 ]; }
    await 5 comes "$1" || fail "$2: in all this time $(($(fast) - before)) packets were fast and $(($(seen "$1") - here)) came by $1: $("$millrace" router status)"
    [ "$(seen "$other")" -eq "$there" ] || fail "$2: $(($(seen "$other") - there)) packets went by $other, where Linux does not route any more"
}
goes_by right "at first"

# Costs, to and fro; and as fast as the daemons can.
for cost in 30 10; do
    tell router "configure terminal" "interface right" "ip ospf cost $cost"
    goes_by "$([ $cost = 30 ] && echo third || echo right)" "cost $cost"
done
for round in $(seq 10); do
    tell router "configure terminal" "interface right" "ip ospf cost $((round % 2 ? 30 : 10))"
    sleep 0.05
done
goes_by right "after ten changes of costs"

# Both ways are equally good: each flow goes where Linux sends it when the router is off (its hash is that of the sender's socket, which no table tells).
sysctl -qw net.ipv4.fib_multipath_hash_policy=1
tell router "configure terminal" "interface right" "ip ospf cost 20"
both() { ip route show 10.9.0.0/24 | grep -c nexthop | grep -q 2; }
await 5 both || fail "OSPF does not find two ways: $(ip route)"
for place in right third; do
    as_place $place nft 'add set ip seen flows { type inet_service; flags dynamic; size 1024; }; add rule ip seen seen iifname wire ip daddr 10.9.0.2 meta l4proto udp add @flows { udp sport }'
done
# flows_at PLACE: the ports of those that come there.
flows_at() { as_place "$1" nft list set ip seen flows | grep -oE '2[0-9]{4}' | sort -n | paste -sd' '; }
sleep 0.3
for place in right third; do as_place $place nft flush set ip seen flows; done
before=$(fast)
many() { [ $(($(fast) - before)) -ge 1000 ]; }
await 5 many || fail "with two ways $(($(fast) - before)) packets were fast"
by_right=$(flows_at right) by_third=$(flows_at third)
"$millrace" router off
sleep 0.3
for place in right third; do as_place $place nft flush set ip seen flows; done
sleep 0.5
[ "$by_right / $by_third" = "$(flows_at right) / $(flows_at third)" ] ||
    fail "with the router came by right and by third $by_right / $by_third, without it $(flows_at right) / $(flows_at third)"
{ [ -n "$by_right" ] && [ -n "$by_third" ]; } || fail "all flows go one way: $by_right / $by_third"
"$millrace" router on
for place in right third; do
    as_place $place nft 'flush chain ip seen seen; delete set ip seen flows; add rule ip seen seen iifname wire ip daddr 10.9.0.2 meta l4proto udp counter name stream'
done
tell router "configure terminal" "interface right" "ip ospf cost 10"
goes_by right "one way again"

# A thousand routes by BGP that come and go, and among them one for where the stream goes.
batch() {
    { seq 0 999 | awk -v "what=$1" '{ printf "route %s 10.20.%d.%d/32 dev lan\n", what, $1 / 250, $1 % 250 }'; echo "route $1 10.9.0.2/32 dev lan"; } |
        as_place third ip -batch -
}
routes_of_bgp() { [ "$(ip route show proto bgp | wc -l)" -eq "$1" ]; }
established() { tell router "show bgp summary" | grep -qE '10\.0\.3\.2 .* [0-9]+ +0 N/A|10\.0\.3\.2 .*:[0-9][0-9] +[0-9]+'; }
await 10 established || fail "BGP does not come up: $(tell router 'show bgp summary')"
for round in 1 2; do
    batch add
    goes_by third "the routes of BGP, $round"
    await 5 routes_of_bgp 1001 || fail "of 1001 routes of BGP there are $(ip route show proto bgp | wc -l)"
    batch del
    goes_by right "the routes of BGP have gone, $round"
    await 5 routes_of_bgp 0 || fail "$(ip route show proto bgp | wc -l) routes of BGP stay"
done

# Until now each packet had a way.
changed=$(status "dict(s['changes'])['routes']")
[ "$changed" -ge 4000 ] || fail "of 4000 changes of routes the router has seen $changed"
kill "$sender"
ended "$sender" 5
sleep 0.3
kill "$receiver"
ended "$receiver" 5
$python - "$scratch/sender.out" "$scratch/receiver.out" <<'CHECK' || fail "packets that had a way were lost, or came twice"
import json, sys
sent, got = (json.loads(open(file).readlines()[-1]) for file in sys.argv[1:])
total, come = sum(sent["sent"].values()), sum(got["come"].values())
print(f"{total} packets, {total - come} lost, {got['twice']} twice, {got['late']} late, longest silence {got['silence']} s")
sys.exit(total != come or got["twice"] or len(got["come"]) != len(sent["sent"]))
CHECK
echo "from event to epoch: $(status "s['delay']")"

# A link fails: the stream goes the other way, and back when there is one.
background sender2 nsenter -t "$left_end" -n $python "$tests/router/stream.py" send 10.9.0.2 5000 $flows 8000
await 5 grep -q ready "$scratch/sender2.out"
as_place right ip link set wire down
goes_by third "the link to right has failed"
as_place right ip link set wire up
goes_by right "the link to right is back"

# And none: nothing passes, though every rule was in force a moment ago.
for place in right third; do tell router "configure terminal" "interface $place" "ip ospf passive"; done
gone() { [ -z "$(ip route show 10.9.0.0/24)" ]; }
await 5 gone || fail "OSPF has still a route: $(ip route)"
sleep 0.1
before=$(($(seen right) + $(seen third))) fast_before=$(fast)
sleep 0.5
[ $(($(seen right) + $(seen third))) -eq "$before" ] && [ "$(fast)" -eq "$fast_before" ] || fail "stale rules send where there is no route"
for place in right third; do tell router "configure terminal" "interface $place" "no ip ospf passive"; done
goes_by right "OSPF is back"
