#!/usr/bin/env bash
# An agent and Open vSwitch beside one another: the same commands of ovs-ofctl to both, in the same order, have the same answers: errors, entries,
# groups, meters. Where they are known to differ, they do so as is known. Then the card goes, and what a controller has set up is there with the
# next one, as --state says.
# waits: for timers, of entries and of connections
. "$(dirname "$0")/../lib.sh"
. "$tests/openvswitch.sh"
needs python3 ip ovs-ofctl ovs-vswitchd
private_network "$@"
ip link set lo up
for port in p1 p2; do
    ip link add "$port" type veth peer name "$port-end" || skip "there is no veth here"
    ip link set "$port" up
    ip link set "$port-end" up
done
for port in q1 q2; do
    ip link add "$port" type veth peer name "$port-end"
    ip link set "$port" up
    ip link set "$port-end" up
done

start_open_vswitch
configure add-br br -- set bridge br datapath_type=netdev protocols=OpenFlow13 fail_mode=secure \
    -- add-port br p1 -- set Interface p1 ofport_request=1 -- add-port br p2 -- set Interface p2 ofport_request=2 \
    -- set-controller br ptcp:6654:127.0.0.1
await 10 ovs-ofctl -O OpenFlow13 probe tcp:127.0.0.1:6654 || fail "Open vSwitch does not listen"

start_both() {
    start_card --port af_packet:q1 --port af_packet:q2 --queues 2
    background "agent${#pids[@]}" "$millrace" agent --listen ptcp:6653:127.0.0.1 --state "$scratch/state" --control "$scratch/control"
    agent=$started
    await 10 ovs-ofctl -O OpenFlow13 probe tcp:127.0.0.1:6653 2>/dev/null || fail "the agent does not listen"
}
start_both
python3 "$tests/openflow_beside.py" tcp:127.0.0.1:6653 tcp:127.0.0.1:6654 || fail "they answer otherwise"

# The card is killed, and the agent with it; both come again.
ofctl() {
    ovs-ofctl -O OpenFlow13 "$1" tcp:127.0.0.1:6653 "${@:2}"
}
ofctl add-group group_id=1,type=all,bucket=output:1,bucket=output:2
ofctl add-meter meter=1,pktps,burst,band=type=drop,rate=10,burst_size=5
ofctl add-flow cookie=0x21,priority=5,in_port=1,actions=meter:1,group:1
ofctl add-flow cookie=0x22,hard_timeout=900,priority=5,in_port=2,actions=output:1
slay "$card" || true
await 10 is_gone "$agent" || fail "the agent goes on without a card"
start_both
"$millrace" flow list >"$scratch/list"
for words in "meter=1" "in_port=0,actions=meter:1,output:0,output:1" "hard_timeout=900"; do
    grep -qF "$words" "$scratch/list" || fail "no '$words' in the new card: $(cat "$scratch/list")"
done
[ "$(ofctl dump-flows | grep -c cookie=0x2)" -eq 2 ] || fail "$(ofctl dump-flows)"
