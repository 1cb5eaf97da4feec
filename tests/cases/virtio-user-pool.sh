#!/usr/bin/env bash
# Two hosts at a switch, and behind the switch a program that forwards by descriptors: the virtio-user ports of its card have
# the switch write into the program's pool. Pings and transfers arrive whole, nothing is lost without a name, the receiving
# queues copy nothing, and everything goes on when the switch is killed and comes back, when the program is, and when a wire is
# unplugged under it. The switch is a second card.
. "$(dirname "$0")/../lib.sh"
needs python3 ping
private_network "$@"
. "$tests/network.sh"

second_network

for host in 1 2; do
    ip link add "vp-c$host" type veth peer name "vp-h$host" || skip "there is no veth here"
    echo 1 >"/proc/sys/net/ipv6/conf/vp-c$host/disable_ipv6"
    ip link set "vp-c$host" up
done
ip link set vp-h2 netns "$second"

# Between the hosts: interface 1 - switch - card - program - card - switch - interface 2.
start_switch() {
    start_card --port af_packet:vp-c1 --port "vhost-user:$scratch/1.sock" \
        --port af_packet:vp-c2 --port "vhost-user:$scratch/2.sock" --connect 0-1 --connect 2-3
    switch=$card switch_device=$device
}
start_switch
start_card --engine dd --rx 2 --tx 2 --port "virtio-user:$scratch/1.sock" --port "virtio-user:$scratch/2.sock"
be_host 1 vp-h1
there "ip link set lo up; ip address add 192.0.2.2/24 dev vp-h2; ip link set vp-h2 up"
there "ip -6 address add 2001:db8::2/64 dev vp-h2 nodad"

# What the switch has put into the rings of either port has come out of them or was dropped there, and the other way round.
check_switch() {
    await 10 switch_agrees || fail "the switch and the card do not agree: $("$millrace" stats; "$millrace" stats --device "$switch_device")"
}

switch_agrees() {
    { "$millrace" stats --json && "$millrace" stats --json --device "$switch_device"; } | python3 -c '
import json, sys
card, switch = (json.loads(line)["ports"] for line in sys.stdin)
dropped = lambda port, way: sum(drop["count"] for drop in port[way + "_drops"])
for ours, theirs in (card[0], switch[1]), (card[1], switch[3]):
    if theirs["tx_frames"] != ours["rx_frames"] + dropped(ours, "rx"):
        sys.exit(1)
    if ours["tx_frames"] != theirs["rx_frames"] + dropped(theirs, "rx"):
        sys.exit(1)'
}

background forward "$millrace" forward --queue 0,1
forwarder=$started
await 10 on_pools 2 || fail "the switch does not work on the pool: $("$millrace" stats)"
pings here 2
pings here 2 -s 1400
serve here 3000000
fetch there here 1

# The other side has received into the buffers of the program, from where the program has sent: that is the one copy.
"$millrace" stats --json | python3 -c '
import json, sys
stats = json.load(sys.stdin)
for queue in stats["queues"]:
    is_rx = queue["queue"].startswith("rx")
    if queue["passed"] < 500 or queue["copies"] != (0 if is_rx else queue["passed"]):
        sys.exit("failed: %(queue)s passed %(passed)s frames with %(copies)s copies" % queue)
for port in stats["ports"]:
    if port["rx_copies"] or port["tx_copies"] != port["tx_frames"] or port["rx_frames"] < 500:
        sys.exit("failed: port %(port)s: %(rx_frames)s frames, %(rx_copies)s and %(tx_copies)s copies" % port)
passed = {queue["queue"]: queue["passed"] for queue in stats["queues"]}
print("copies of received frames: 0 of", passed["rx0"] + passed["rx1"])
' || exit 1
check_counting
check_switch

# The switch is killed in the middle of traffic, and comes back to the same buffers.
for round in 1 2 3; do
    background "flood$round" ping -f -c 1000000 192.0.2.2
    flood=$started
    sleep 0.2
    slay "$switch"
    await 10 on_pools 0 || fail "the card does not notice that the switch is dead"
    kill -INT "$flood"
    ended "$flood" 10
    rm -f "$scratch"/[12].sock
    kept=$device
    start_switch
    device=$kept
    export MILLRACE_DEVICE=$device
    await 10 on_pools 2 || fail "the new switch does not work on the pool: $("$millrace" stats)"
    pings here 2
    check_counting
done

# The program ends, and its successor is killed in the middle of traffic.
kill -INT "$forwarder"
ended "$forwarder" 10
[ "$code" -eq 0 ] || fail "the forwarder ended with $code"
await 5 on_pools 0 || fail "the switch still works on the pool of a program that has ended"
background forward2 "$millrace" forward --queue 0,1
forwarder=$started
await 10 on_pools 2 || fail "the switch does not work on the second pool"
pings here 2
background flood ping -f -c 1000000 192.0.2.2
flood=$started
sleep 0.2
slay "$forwarder"
await 5 on_pools 0 || fail "the switch still works on the pool of a program that was killed"
background forward3 "$millrace" forward --queue 0,1
await 10 on_pools 2 || fail "the switch does not work on the third pool"
kill -INT "$flood"
ended "$flood" 10
pings here 2

# A wire goes and comes under the program.
"$millrace" ports plug 1 none >/dev/null
on_pools 1 || fail "a port without a wire works on memory"
"$millrace" ports plug 1 "virtio-user:$scratch/2.sock" >/dev/null
await 10 on_pools 2 || fail "the new wire does not work on the pool"
pings here 2
check_counting
